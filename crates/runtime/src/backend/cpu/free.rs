//! The main memory that this process may use, where the system reports it: what is free or can be freed, on Linux within
//! the limits of its control groups.

use std::fs;
use std::path::Path;

use realizar_kernels_cpu::MainMemory;

/// Bytes that can be had without making others wait for theirs.
pub(super) fn available_bytes() -> Option<usize> {
    let of_machine = usize::try_from(MainMemory::detect()?.available_bytes).ok()?;
    let groups = read("/proc/self/cgroup");
    let of_groups = group_path(&groups).and_then(|path| {
        let root = Path::new("/sys/fs/cgroup");
        let folders = Path::new(path.trim_start_matches('/')).ancestors();
        folders.filter_map(|folder| of_group(&root.join(folder))).min()
    });
    Some(of_machine.min(of_groups.unwrap_or(usize::MAX)))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The path of the group in the one hierarchy of version 2.
fn group_path(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// What a group may still take: pages of files that are not in use count as free. None without a limit.
fn of_group(folder: &Path) -> Option<usize> {
    let number = |file: &str| -> Option<usize> {
        fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
    };
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let files = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let files = files.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read() {
        assert_eq!(group_path("12:cpu:/a\n0::/user.slice/b\n"), Some("/user.slice/b"));
        assert_eq!(group_path("12:cpu:/a\n"), None);
    }

    #[test]
    fn a_group_may_take_what_its_limit_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        assert_eq!(of_group(folder.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(of_group(folder.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(of_group(folder.path()), Some(300));
        write("memory.stat", "anon 400\ninactive_file 250\n");
        assert_eq!(of_group(folder.path()), Some(550));
    }
}
