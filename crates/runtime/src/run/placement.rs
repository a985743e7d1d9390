//! Which part of a model runs where: the whole on one backend, or its first
//! layers on one and its last on another.

use crate::Error;
use crate::backend::Backend;
use crate::graph::weights::Weights;
use crate::graph::{Graph, Part, fuse, split};
use std::fmt;
use std::ops::Range;

/// Which backends a model is loaded onto: the embedding and its first layers onto `first`, the last
/// `last_layers` layers and the head onto `last`.
///
/// With 0 layers the whole model is on `first`, and with as many as it has or more, all of it is on
/// `last`.
#[derive(Debug, Clone, Copy)]
pub struct LayerSplit<'a> {
    /// The backend of the embedding and the first layers.
    pub first: &'a dyn Backend,
    /// The backend of the last layers and the head.
    pub last: &'a dyn Backend,
    /// How many layers are on `last`.
    pub last_layers: usize,
}

impl<'a> LayerSplit<'a> {
    /// The whole model on one backend.
    pub fn whole(backend: &'a dyn Backend) -> Self {
        Self { first: backend, last: backend, last_layers: 0 }
    }
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

/// A part that is to be loaded: where, what, and its weights.
pub(crate) type ToLoad<'a> = (&'a dyn Backend, PlacedPart, Weights);

/// Places a model of `n_layers` layers, and fuses each part as its backend wants it.
pub(crate) fn place<'a>(
    graph: Graph,
    weights: Weights,
    n_layers: usize,
    LayerSplit { first, last, last_layers }: LayerSplit<'a>,
) -> Result<Vec<ToLoad<'a>>, Error> {
    let placed = |backend: &'a dyn Backend, graph: Graph, layers: Range<usize>, weights| {
        let graph = fuse(graph, backend.fusions());
        (backend, PlacedPart { backend: backend.name(), layers, graph }, weights)
    };
    if last_layers == 0 || last_layers >= n_layers {
        let backend = if last_layers == 0 { first } else { last };
        return Ok(vec![placed(backend, graph, 0..n_layers, weights)]);
    }
    let cut = n_layers - last_layers;
    let (before, after) = split(&graph, cut)?;
    let one = |backend, part: Part, layers| {
        let weights = part.weights_of(&weights);
        placed(backend, part.graph, layers, weights)
    };
    Ok(vec![one(first, before, 0..cut), one(last, after, cut..n_layers)])
}
