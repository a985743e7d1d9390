//! Which part of a model runs where: a list of devices, each with a run of layers.

use crate::Error;
use realizar_backends::Backend;
use realizar_model::graph::weights::Weights;
use realizar_model::graph::{Graph, fuse, select_early, shard, split};
use std::fmt;
use std::ops::Range;

/// A device in a list of those that a model is loaded onto. The layers lie on the devices in the order of
/// the list; the embedding is with the first layers and the head with the last.
#[derive(Debug, Clone, Copy)]
pub struct DeviceLayers<'a> {
    /// The device.
    pub backend: &'a dyn Backend,
    /// How many layers it takes at most. Devices without a number share what the others leave, the
    /// first of them one more where that is uneven. A device that is left without a layer is not used.
    pub n_layers: Option<usize>,
}

impl<'a> DeviceLayers<'a> {
    /// The device with what the others of the list leave: all layers, if it is alone.
    pub fn rest(backend: &'a dyn Backend) -> Self {
        Self { backend, n_layers: None }
    }

    /// The device with at most so many layers.
    pub fn at_most(backend: &'a dyn Backend, n_layers: usize) -> Self {
        Self { backend, n_layers: Some(n_layers) }
    }
}

/// The layers of each device of a list, those of a model of `n_layers` layers.
fn share_out(devices: &[DeviceLayers<'_>], n_layers: usize) -> Result<Vec<Range<usize>>, Error> {
    let mut left = n_layers;
    let mut take = |n: usize| {
        let taken = n.min(left);
        left -= taken;
        taken
    };
    let counted: Vec<_> = devices.iter().map(|device| device.n_layers.map(&mut take)).collect();
    let n_sharing = counted.iter().filter(|n| n.is_none()).count();
    if left > 0 && n_sharing == 0 {
        let reason = format!("the devices take {} of {n_layers} layers", n_layers - left);
        return Err(Error::Option { option: "device", reason });
    }
    let (mut first, mut nth) = (0, 0);
    let ranges = counted.into_iter().map(|n| {
        let n = n.unwrap_or_else(|| {
            nth += 1;
            left / n_sharing + usize::from(nth <= left % n_sharing)
        });
        first += n;
        first - n..first
    });
    Ok(ranges.collect())
}

/// A part of a model and the backend that it runs on.
#[derive(Debug)]
pub struct PlacedPart {
    /// The backend's name.
    pub backend: String,
    /// The layers; the embedding is with the first and the head with the last.
    pub layers: Range<usize>,
    /// The part's graph, after the backend's fusions.
    pub graph: Graph,
}

/// The parts of a model in the order in which they run, at least one.
///
/// As text it is the graph of a model that is on one backend, and with several
/// the graph of each under a line that names it.
#[derive(Debug)]
pub struct Placement {
    /// The parts.
    pub parts: Vec<PlacedPart>,
}

impl Placement {
    /// The names of the backends.
    pub fn backends(&self) -> String {
        let names: Vec<&str> = self.parts.iter().map(|part| part.backend.as_str()).collect();
        names.join(" + ")
    }

    /// The names of the backends, each with its layers where there are several.
    pub(crate) fn backends_with_layers(&self) -> String {
        if let [whole] = self.parts.as_slice() {
            return whole.backend.clone();
        }
        let name = |part: &PlacedPart| format!("{} for {:?}", part.backend, part.layers);
        self.parts.iter().map(name).collect::<Vec<_>>().join(" + ")
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [whole] = self.parts.as_slice() {
            return whole.graph.fmt(f);
        }
        for PlacedPart { backend, layers, graph } in &self.parts {
            let (first, last) = (layers.start, layers.end.saturating_sub(1));
            write!(f, "layers {first} to {last} on {backend}:\n{graph}")?;
        }
        Ok(())
    }
}

/// A part that is to be loaded: where, what, and the weights of each rank.
pub(crate) type ToLoad<'a> = (&'a dyn Backend, PlacedPart, Vec<Weights>);

/// Places a model of `n_layers` layers, divides each part among the ranks of its backend, and fuses it as the
/// backend wants it.
pub(crate) fn place<'a>(
    graph: Graph,
    weights: Weights,
    n_layers: usize,
    devices: &[DeviceLayers<'a>],
) -> Result<Vec<ToLoad<'a>>, Error> {
    let ranges = share_out(devices, n_layers)?;
    let used = devices.iter().zip(ranges).filter(|(_, layers)| !layers.is_empty() || n_layers == 0);
    let mut used = used.peekable();
    let mut parts = Vec::new();
    let mut rest = (graph, weights);
    while let Some((DeviceLayers { backend, .. }, layers)) = used.next() {
        let (graph, weights) = if used.peek().is_some() {
            let (before, after) = split(&rest.0, layers.end)?;
            let weights = before.weights_of(&rest.1);
            let weights_after = after.weights_of(&rest.1);
            rest = (after.graph, weights_after);
            (before.graph, weights)
        } else {
            std::mem::take(&mut rest)
        };
        let (graph, weights) = divide(select_early(graph), weights, *backend)?;
        let graph = fuse(graph, backend.fusions());
        parts.push((*backend, PlacedPart { backend: backend.name(), layers, graph }, weights));
    }
    Ok(parts)
}

/// The graph of a backend's ranks, and the weights of each.
fn divide(
    graph: Graph,
    weights: Weights,
    backend: &dyn Backend,
) -> Result<(Graph, Vec<Weights>), Error> {
    let n_ranks = backend.n_ranks();
    if n_ranks == 1 {
        return Ok((graph, vec![weights]));
    }
    let sharded = shard(&graph, n_ranks)?;
    if !sharded.whole.is_empty() {
        let names = sharded.whole.join(", ");
        tracing::info!(n_ranks, "every rank has all of {names}");
    }
    let of_ranks = (0..n_ranks).map(|rank| sharded.weights_of(&weights, rank)).collect();
    Ok((sharded.graph, of_ranks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_backends::cpu::CpuBackend;

    #[test]
    fn layers_are_shared_out_in_the_order_of_the_devices() {
        let cpu = CpuBackend::new(Some(1), None).expect("the processor");
        let check = |counts: &[Option<usize>], n_layers: usize, expected: Option<&[usize]>| {
            let one = |&n_layers| DeviceLayers { backend: &cpu as &dyn Backend, n_layers };
            let devices: Vec<_> = counts.iter().map(one).collect();
            let found = share_out(&devices, n_layers);
            let ends = found.as_ref().ok().map(|it| it.iter().map(|r| r.end).collect::<Vec<_>>());
            assert_eq!(ends.as_deref(), expected, "{counts:?} of {n_layers}: {found:?}");
        };
        check(&[None], 7, Some(&[7]));
        check(&[None, Some(3)], 7, Some(&[4, 7]));
        check(&[None, Some(0)], 7, Some(&[7, 7]));
        check(&[None, Some(99)], 7, Some(&[0, 7]));
        check(&[Some(2), None, Some(3)], 7, Some(&[2, 4, 7]));
        check(&[None, None], 7, Some(&[4, 7]));
        check(&[None, Some(1), None, None], 9, Some(&[3, 4, 7, 9]));
        check(&[Some(4), Some(3)], 7, Some(&[4, 7]));
        check(&[Some(4), Some(4)], 7, Some(&[4, 7]));
        check(&[Some(4), Some(2)], 7, None);
        check(&[None, None, None], 2, Some(&[1, 2, 2]));
    }
}
