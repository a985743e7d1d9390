//! What the machine has that bears on speed, and what of it is used. Only read from
//! the system; no driver is loaded here.

use super::list::processor_title;
use realizar_kernels_cpu::{MainMemory, Tier, Topology, default_threads, features, huge_pages};
use serde::Serialize;

/// The processor, the memory and how they are used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// What its maker calls the processor.
    pub processor: String,
    /// The architecture, such as `x86_64`.
    pub architecture: &'static str,
    /// Its cores.
    pub cores: Cores,
    /// The caches of a core, as the system lists them; empty where it does not.
    pub caches: Vec<CacheInfo>,
    /// The instruction sets that it has, of those that speed up inference.
    pub features: Vec<&'static str>,
    /// The sets of instructions that kernels are written for.
    pub tiers: Tiers,
    /// Main memory.
    pub memory: Memory,
    /// The nodes of memory; empty where the system does not tell.
    pub nodes: Vec<NodeInfo>,
    /// Pages of 2 MiB.
    pub huge_pages: HugePagesInfo,
}

/// The cores of the processors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cores {
    /// Physical cores this process may use, where the system reports them.
    pub physical: Option<usize>,
    /// Hardware threads this process may use, where the system reports them.
    pub logical: Option<usize>,
    /// Hardware threads of the machine.
    pub machine: usize,
    /// The limit of the container, in processors.
    pub limit: Option<f64>,
    /// Threads that a model gets by default.
    pub default_threads: usize,
}

/// A cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheInfo {
    /// 1 is next to the core.
    pub level: usize,
    /// `data`, `instruction` or `unified`.
    pub kind: String,
    /// Bytes of one such cache.
    pub bytes: usize,
    /// Hardware threads that share it.
    pub shared_by: usize,
}

/// The sets of instructions that kernels are written for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tiers {
    /// Those that run here, slowest first.
    pub available: Vec<&'static str>,
    /// The one that is used unless another is requested.
    pub chosen: &'static str,
}

/// Main memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Its bytes, where the system reports them.
    pub total_bytes: Option<u64>,
    /// What is free or can be freed.
    pub available_bytes: Option<u64>,
}

/// A node: processors and the memory next to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeInfo {
    /// The system's number of it.
    pub id: u32,
    /// Its hardware threads.
    pub logical: usize,
    /// Its memory in bytes.
    pub memory_bytes: Option<usize>,
}

/// Pages of 2 MiB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HugePagesInfo {
    /// The system's mode: `always`, `madvise` or `never`; `None` where it has none.
    pub mode: Option<&'static str>,
    /// Whether large memory is requested in them.
    pub used: bool,
}

/// Reads what the machine has.
pub fn machine() -> Machine {
    let topology = Topology::detect();
    let n_logical: usize = topology.cores.iter().map(Vec::len).sum();
    let is_known = !topology.cores.is_empty();
    let mode = huge_pages();
    let memory = MainMemory::detect();
    let caches = topology.caches.into_iter().map(|cache| CacheInfo {
        level: cache.level,
        kind: cache.kind.to_lowercase(),
        bytes: cache.n_bytes,
        shared_by: cache.n_sharing,
    });
    let nodes = topology.nodes.into_iter().map(|node| NodeInfo {
        id: node.id,
        logical: node.cpus.len(),
        memory_bytes: node.n_bytes,
    });
    Machine {
        processor: processor_title(),
        architecture: std::env::consts::ARCH,
        cores: Cores {
            physical: is_known.then_some(topology.cores.len()),
            logical: is_known.then_some(n_logical),
            machine: topology.n_machine,
            limit: topology.cpu_limit,
            default_threads: default_threads(),
        },
        caches: caches.collect(),
        features: features(),
        tiers: Tiers {
            available: Tier::selectable().map(Tier::name).collect(),
            chosen: Tier::detect().name(),
        },
        memory: Memory {
            total_bytes: memory.map(|memory| memory.total_bytes),
            available_bytes: memory.map(|memory| memory.available_bytes),
        },
        nodes: nodes.collect(),
        huge_pages: HugePagesInfo {
            mode: mode.map(|mode| mode.name()),
            used: mode.is_some_and(|mode| mode.on_request()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_agrees_with_itself() {
        let machine = machine();
        assert!(machine.tiers.available.contains(&machine.tiers.chosen), "{machine:?}");
        assert_eq!(machine.tiers.available[0], "scalar");
        let Cores { physical, logical, machine: all, default_threads, .. } = machine.cores;
        assert!(physical.unwrap_or(1) <= logical.unwrap_or(all) && logical.unwrap_or(1) <= all);
        assert!((1..=all).contains(&default_threads));
        let Memory { total_bytes, available_bytes } = machine.memory;
        assert!(available_bytes.unwrap_or(0) <= total_bytes.unwrap_or(u64::MAX));
        assert_eq!(
            machine.huge_pages.used,
            matches!(machine.huge_pages.mode, Some("always" | "madvise"))
        );
    }
}
