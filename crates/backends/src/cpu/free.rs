//! The main memory that this process may use, where the system reports it: what is free or can be freed, on Linux within
//! the limits of its control groups.

use std::fs;
use std::path::Path;

use realizar_kernels_cpu::MainMemory;

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// The files of a version of control groups.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with the pages of files that are not in use, those of groups below included.
    inactive: &'static str,
}

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    inactive: "total_inactive_file ",
};
const VERSION_2: Files =
    Files { limit: "memory.max", used: "memory.current", inactive: "inactive_file " };

/// Bytes that can be had without making others wait for theirs.
pub(super) fn available_bytes() -> Option<usize> {
    let of_machine = usize::try_from(MainMemory::detect()?.available_bytes).ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(of_machine.min(of_groups(Path::new(ROOT), &groups).unwrap_or(usize::MAX)))
}

/// The memory that the groups of a process, and every group above them, leave below their limits. `None` without a limit.
fn of_groups(root: &Path, groups: &str) -> Option<usize> {
    let of_line = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        // The one hierarchy of version 2 names no controllers; version 1 has one per controller. Inside a
        // container the path may be the host's, and the mounted root is the group.
        let (root, files) = if controllers.is_empty() {
            (root.to_owned(), &VERSION_2)
        } else {
            controllers.split(',').find(|&name| name == "memory")?;
            (root.join("memory"), &VERSION_1)
        };
        let folders = Path::new(path.trim_start_matches('/')).ancestors();
        folders.filter_map(|folder| of_group(&root.join(folder), files)).min()
    };
    groups.lines().filter_map(of_line).min()
}

/// What a group may still take: pages of files that are not in use count as free. None without a limit.
fn of_group(folder: &Path, files: &Files) -> Option<usize> {
    let number = |file: &str| -> Option<usize> {
        fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
    };
    // Without a limit, version 1 has the largest number of whole pages.
    let limit = number(files.limit).filter(|&limit| limit < 1 << (usize::BITS - 2))?;
    let used = number(files.used)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let inactive = stat.lines().find_map(|line| line.strip_prefix(files.inactive));
    let inactive = inactive.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(inactive)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of control groups.
    struct Groups(tempfile::TempDir);

    impl Groups {
        fn new(files: &[(&str, &str)]) -> Self {
            let groups = Self(tempfile::tempdir().expect("a folder"));
            files.iter().for_each(|(file, text)| groups.write(file, text));
            groups
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            fs::write(path, text).expect("written");
        }

        fn left(&self, groups: &str) -> Option<usize> {
            of_groups(self.0.path(), groups)
        }
    }

    #[test]
    fn groups_of_version_2_may_take_what_their_limits_leave() {
        let groups = Groups::new(&[]);
        let of = "12:cpu:/a\n0::/user.slice/b\n";
        assert_eq!(groups.left(of), None);
        groups.write("user.slice/b/memory.max", "max\n");
        groups.write("user.slice/b/memory.current", "700\n");
        assert_eq!(groups.left(of), None);
        groups.write("user.slice/b/memory.max", "1000\n");
        assert_eq!(groups.left(of), Some(300));
        groups.write("user.slice/b/memory.stat", "anon 400\ninactive_file 250\n");
        assert_eq!(groups.left(of), Some(550));
        // The group above is narrower.
        groups.write("user.slice/memory.max", "900\n");
        groups.write("user.slice/memory.current", "800\n");
        assert_eq!(groups.left(of), Some(100));
        assert_eq!(groups.left("12:cpu:/a\n"), None);
    }

    #[test]
    fn groups_of_version_1_may_take_what_their_limits_leave() {
        let groups = Groups::new(&[
            ("memory/docker/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/docker/a/memory.usage_in_bytes", "700\n"),
        ]);
        let of = "11:cpu,cpuacct:/docker/c\n7:hugetlb,memory:/docker/a\n0::/\n";
        assert_eq!(groups.left(of), None);
        groups.write("memory/docker/a/memory.limit_in_bytes", "1000\n");
        assert_eq!(groups.left(of), Some(300));
        let stat = "inactive_file 50\ntotal_cache 9\ntotal_inactive_file 250\n";
        groups.write("memory/docker/a/memory.stat", stat);
        assert_eq!(groups.left(of), Some(550));
        assert_eq!(groups.left("11:cpu,cpuacct:/docker/a\n"), None);
    }

    #[test]
    fn a_containers_group_is_the_mounted_root() {
        let groups = Groups::new(&[
            ("memory/memory.limit_in_bytes", "4096\n"),
            ("memory/memory.usage_in_bytes", "96\n"),
        ]);
        assert_eq!(groups.left("7:memory:/kubepods/pod1/c1\n"), Some(4000));
    }
}
