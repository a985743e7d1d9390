//! The routing and the norms of a graph as arguments of the CPU kernels.

use realizar_kernels_cpu as kernels;
use realizar_model::graph::weights::Weights;
use realizar_model::graph::{Norm, NormKind, Route};

pub(super) fn routing<'a>(route: &Route, weights: &'a Weights) -> kernels::Routing<'a> {
    kernels::Routing {
        scoring: route.scoring,
        n_chosen: route.n_chosen,
        choice_bias: route.choice_bias.map(|id| weights.vector(id)),
        groups: route.groups,
        normalize: route.normalize,
        scale: route.scale,
    }
}

pub(super) fn norm<'a>(norm: &Norm, weights: &'a Weights) -> kernels::Norm<'a> {
    let weight = norm.weight.map(|id| weights.vector(id));
    let bias = norm.bias.map(|id| weights.vector(id));
    let (group, eps) = (norm.group, norm.eps);
    match norm.kind {
        NormKind::Rms => kernels::Norm::Rms { group, weight, eps },
        NormKind::Layer => kernels::Norm::Layer { group, weight, bias, eps },
    }
}
