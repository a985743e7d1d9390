//! What the graph names, as the CPU's kernels name it.

use crate::graph::weights::Weights;
use crate::graph::{Activation, Norm, NormKind, RopeStyle, Route, Scoring};
use realizar_kernels_cpu as kernels;

pub(super) fn activation(act: Activation) -> kernels::Activation {
    match act {
        Activation::Silu => kernels::Activation::Silu,
        Activation::Gelu => kernels::Activation::Gelu,
        Activation::GeluTanh => kernels::Activation::GeluTanh,
        Activation::GeluQuick => kernels::Activation::GeluQuick,
        Activation::Relu => kernels::Activation::Relu,
        Activation::ReluSquared => kernels::Activation::ReluSquared,
        Activation::Tanh => kernels::Activation::Tanh,
        Activation::Sigmoid => kernels::Activation::Sigmoid,
        Activation::Mish => kernels::Activation::Mish,
    }
}

pub(super) fn rope_style(style: RopeStyle) -> kernels::RopeStyle {
    match style {
        RopeStyle::Neox => kernels::RopeStyle::Neox,
        RopeStyle::Interleaved => kernels::RopeStyle::Interleaved,
    }
}

pub(super) fn routing<'a>(route: &Route, weights: &'a Weights) -> kernels::Routing<'a> {
    kernels::Routing {
        scoring: match route.scoring {
            Scoring::Softmax => kernels::Scoring::Softmax,
            Scoring::Sigmoid => kernels::Scoring::Sigmoid,
            Scoring::SoftmaxOfChosen => kernels::Scoring::SoftmaxOfChosen,
            Scoring::SparseMixer { margin } => kernels::Scoring::SparseMixer { margin },
        },
        n_chosen: route.n_chosen,
        choice_bias: route.choice_bias.map(|id| weights.vector(id)),
        groups: route.groups.map(|groups| kernels::Groups {
            n: groups.n,
            n_open: groups.n_open,
            n_best: groups.n_best,
        }),
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
