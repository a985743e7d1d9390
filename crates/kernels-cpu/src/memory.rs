//! Size of main memory, on Linux and Windows.

/// Size of main memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MainMemory {
    /// All memory, in bytes.
    pub total_bytes: u64,
    /// Memory that can be allocated without swapping, in bytes.
    pub available_bytes: u64,
}

impl MainMemory {
    /// Queries the system; `None` on other systems than Linux and Windows.
    #[cfg(not(windows))]
    pub fn detect() -> Option<Self> {
        let is_linux = cfg!(target_os = "linux");
        let text = is_linux.then(|| std::fs::read_to_string("/proc/meminfo").ok())??;
        Self::read(&text)
    }

    /// Queries the system; `None` if the query fails.
    #[cfg(windows)]
    pub fn detect() -> Option<Self> {
        use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
        let n_bytes = size_of::<MEMORYSTATUSEX>() as u32;
        let mut status = MEMORYSTATUSEX { dwLength: n_bytes, ..MEMORYSTATUSEX::default() };
        // SAFETY: the structure is valid for writes and carries its own size.
        let is_known = unsafe { GlobalMemoryStatusEx(&raw mut status) } != 0;
        // Allocations also count against the commit limit.
        let available_bytes = status.ullAvailPhys.min(status.ullAvailPageFile);
        is_known.then_some(Self { total_bytes: status.ullTotalPhys, available_bytes })
    }

    /// Parses `/proc/meminfo`.
    #[cfg(any(test, not(windows)))]
    fn read(text: &str) -> Option<Self> {
        let bytes = |key: &str| -> Option<u64> {
            let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
            rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Self { total_bytes: bytes("MemTotal:")?, available_bytes: bytes("MemAvailable:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read() {
        let text = "MemTotal:       24689764 kB\nMemFree: 1 kB\nMemAvailable:   13000000 kB\n";
        let memory =
            MainMemory { total_bytes: 24_689_764 << 10, available_bytes: 13_000_000 << 10 };
        assert_eq!(MainMemory::read(text), Some(memory));
        for text in ["", "MemTotal: 1 kB\n", "MemTotal: 1\nMemAvailable: 1 kB\n"] {
            assert_eq!(MainMemory::read(text), None, "{text}");
        }
    }

    #[test]
    fn less_is_available_than_there_is() {
        let is_known = cfg!(any(windows, target_os = "linux"));
        let memory = MainMemory::detect();
        assert_eq!(memory.is_some(), is_known);
        assert!(memory.is_none_or(|m| 0 < m.available_bytes && m.available_bytes <= m.total_bytes));
    }
}
