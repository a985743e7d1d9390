//! The machine's topology as Linux reports it: cores and their hardware threads, caches, NUMA nodes,
//! the container's CPU limit, huge pages.
//!
//! On other systems only the number of hardware threads is known. Every function queries the system
//! anew; none is called during a step.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The mode of transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePages {
    /// For any sufficiently large region.
    Always,
    /// For regions that request it (`madvise`).
    OnRequest,
    /// Never.
    Never,
}

impl HugePages {
    /// Whether a region that requests huge pages gets them.
    pub fn on_request(self) -> bool {
        self != Self::Never
    }

    /// The kernel's name for the mode.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::OnRequest => "madvise",
            Self::Never => "never",
        }
    }

    /// Parses the kernel's file, which brackets the active mode.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once('[')?;
        let (word, _) = rest.split_once(']')?;
        [Self::Always, Self::OnRequest, Self::Never].into_iter().find(|mode| mode.name() == word)
    }
}

/// The active mode of transparent huge pages; `None` if the system has none.
pub fn huge_pages() -> Option<HugePages> {
    HugePages::parse(&fs::read_to_string(HUGE_PAGES).ok()?)
}

/// A cache of the first hardware thread that this process may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// Cache level; 1 is the closest to the core.
    pub level: usize,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Size in bytes.
    pub n_bytes: usize,
    /// Number of hardware threads that share it.
    pub n_sharing: usize,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number of the node.
    pub id: u32,
    /// The node's hardware threads, including those outside the affinity mask.
    pub cpus: Vec<u32>,
    /// The node's memory in bytes.
    pub n_bytes: Option<usize>,
}

/// The part of the machine that this process may use.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Number of hardware threads of the machine.
    pub n_machine: usize,
    /// Hardware threads in the process's affinity mask, one list per core. Empty if the system does not
    /// report them.
    pub cores: Vec<Vec<u32>>,
    /// The CPU limit of the process's control groups, in hardware threads.
    pub cpu_limit: Option<f64>,
    /// The caches of one core, in the kernel's order.
    pub caches: Vec<Cache>,
    /// The NUMA nodes; empty if the system does not report them.
    pub nodes: Vec<Node>,
}

impl Topology {
    /// Queries the system.
    pub fn detect() -> Self {
        let cores = allowed_cores().unwrap_or_default();
        let caches = cores.first().map(|core| caches(core[0])).unwrap_or_default();
        let online = read_list(&format!("{CPUS}/online")).map_or(0, |cpus| cpus.len());
        let n_machine = online.max(thread::available_parallelism().map_or(1, usize::from));
        Self { n_machine, cores, cpu_limit: cpu_limit(), caches, nodes: nodes() }
    }
}

/// The default number of threads of a team: the number of physical cores that this process may use,
/// performance and efficiency cores alike, at most the container's CPU limit.
pub fn default_threads() -> usize {
    // The standard library knows the affinity mask and the limit of the container.
    let n_logical = thread::available_parallelism().map_or(1, usize::from);
    allowed_cores().map_or(n_logical, |cores| n_logical.min(cores.len())).max(1)
}

/// Assigns hardware threads to `n_threads` threads: the first one of each core, then the second ones,
/// and so on, and from the beginning again when none is left.
pub(crate) fn spread(cores: &[Vec<u32>], n_threads: usize) -> Vec<u32> {
    let deepest = cores.iter().map(Vec::len).max().unwrap_or(0);
    let cpus: Vec<u32> = (0..deepest)
        .flat_map(|i| cores.iter().filter_map(move |core| core.get(i).copied()))
        .collect();
    cpus.iter().copied().cycle().take(n_threads).collect()
}

/// Pins the calling thread to a hardware thread, if the system permits it.
#[cfg(target_os = "linux")]
pub(crate) fn stay_on(cpu: u32) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let cpu = cpu as usize;
    if cpu < CpuSet::MAX_CPU {
        let mut set = CpuSet::new();
        set.set(cpu);
        // If the system refuses, the thread stays unpinned.
        let _ = sched_setaffinity(None, &set);
    }
}

/// Pins the calling thread to a hardware thread, if the system permits it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn stay_on(_cpu: u32) {}

/// The hardware threads in the process's affinity mask, one list per core.
pub(crate) fn allowed_cores() -> Option<Vec<Vec<u32>>> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for cpu in parse_cpu_list(list.trim())? {
        let siblings = read_list(&format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"))?;
        cores.entry(*siblings.iter().min()?).or_default().push(cpu);
    }
    Some(cores.into_values().collect())
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn read_list(path: &str) -> Option<Vec<u32>> {
    parse_cpu_list(&read(path)?)
}

/// Parses a list such as `0-3,8`.
fn parse_cpu_list(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(cpus)
}

/// Parses a size such as `512K` to bytes.
fn parse_size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << unit)
}

fn caches(cpu: u32) -> Vec<Cache> {
    let cache = |i: usize| -> Option<Cache> {
        let dir = format!("{CPUS}/cpu{cpu}/cache/index{i}");
        Some(Cache {
            level: read(format!("{dir}/level"))?.parse().ok()?,
            kind: read(format!("{dir}/type"))?,
            n_bytes: parse_size(&read(format!("{dir}/size"))?)?,
            n_sharing: read_list(&format!("{dir}/shared_cpu_list"))?.len(),
        })
    };
    (0..).map_while(cache).collect()
}

fn nodes() -> Vec<Node> {
    let ids = read_list(&format!("{NODES}/online")).unwrap_or_default();
    let node = |id: u32| {
        // A node may have memory and no processors.
        let cpus = read_list(&format!("{NODES}/node{id}/cpulist")).unwrap_or_default();
        let info = read(format!("{NODES}/node{id}/meminfo"));
        Node { id, cpus, n_bytes: info.as_deref().and_then(node_memory) }
    };
    ids.into_iter().map(node).collect()
}

/// Parses a line such as `Node 0 MemTotal: 1024 kB` to bytes.
fn node_memory(info: &str) -> Option<usize> {
    let rest = info.lines().find_map(|line| line.split_once("MemTotal:"))?.1;
    rest.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// The smallest CPU limit among the process's control group and its ancestors.
fn cpu_limit() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let limits = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        if controllers.is_empty() {
            // Every group up to the root may have a limit.
            let dirs = Path::new(group.trim_start_matches('/')).ancestors();
            let root = Path::new("/sys/fs/cgroup");
            let limits = dirs.filter_map(|dir| quota(&read(root.join(dir).join("cpu.max"))?));
            return limits.reduce(f64::min);
        }
        controllers.split(',').find(|&name| name == "cpu")?;
        let dirs = Path::new(group.trim_start_matches('/')).ancestors();
        let root = Path::new("/sys/fs/cgroup").join("cpu");
        let limits = dirs.filter_map(|dir| {
            let dir = root.join(dir);
            let quota_us = read(dir.join("cpu.cfs_quota_us"))?;
            quota(&format!("{quota_us} {}", read(dir.join("cpu.cfs_period_us"))?))
        });
        limits.reduce(f64::min)
    });
    limits.reduce(f64::min)
}

/// Parses a quota and a period, such as `150000 100000`, to hardware threads; `None` for no limit.
fn quota(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_cpu_list("7"), Some(vec![7]));
        assert_eq!(parse_cpu_list(""), None);
    }

    #[test]
    fn sizes_limits_and_modes_are_read() {
        let sizes = [("512K", Some(512 << 10)), ("32M", Some(32 << 20)), ("7", Some(7))];
        for (text, expected) in sizes.into_iter().chain([("K", None), ("3X", None), ("", None)]) {
            assert_eq!(parse_size(text), expected, "{text}");
        }
        let quotas = [("150000 100000", Some(1.5)), ("max 100000", None), ("-1 100000", None)];
        for (text, expected) in quotas.into_iter().chain([("1 0", None), ("5", None)]) {
            assert_eq!(quota(text), expected, "{text}");
        }
        let modes = [
            ("always [madvise] never", Some(HugePages::OnRequest)),
            ("[always] madvise never", Some(HugePages::Always)),
            ("always madvise [never]", Some(HugePages::Never)),
            ("always madvise never", None),
            ("[other]", None),
        ];
        for (text, expected) in modes {
            assert_eq!(HugePages::parse(text), expected, "{text}");
        }
        assert_eq!(node_memory("Node 0 MemTotal:  2048 kB\nNode 0 MemFree: 1 kB"), Some(2 << 20));
        assert_eq!(node_memory("Node 0 MemFree: 1 kB"), None);
    }

    #[test]
    fn threads_are_spread_over_cores_first() {
        let cores = [vec![0, 4], vec![1, 5], vec![2]];
        assert_eq!(spread(&cores, 4), [0, 1, 2, 4]);
        assert_eq!(spread(&cores, 7), [0, 1, 2, 4, 5, 0, 1]);
        assert!(spread(&[], 3).is_empty());
    }

    #[test]
    fn the_machine_agrees_with_itself() {
        let topology = Topology::detect();
        let n_logical: usize = topology.cores.iter().map(Vec::len).sum();
        assert!(n_logical <= topology.n_machine, "{topology:?}");
        let allowed = thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=allowed).contains(&default_threads()));
        assert!(topology.cpu_limit.is_none_or(|limit| limit > 0.0));
    }
}
