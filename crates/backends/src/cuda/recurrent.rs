//! Recurrent states on the device: those of each layer in a buffer of their own.

use crate::ExecutableOptions;
use realizar_kernels_cuda::{DeltaNetSpec, Device, Error, StateLayer, StateSpec};
use realizar_kvcache::StateId;
use realizar_model::graph::plan::Plan;
use realizar_model::graph::{DeltaNet, Op, ShortConv};
use std::sync::Arc;

/// The states of a plan's layers, by the index of the step that they belong to.
#[derive(Debug)]
pub(super) struct States<D: Device>(Vec<Option<StateLayer<D>>>);

/// The states of an operation that has some.
fn spec(op: &Op, options: &ExecutableOptions) -> Option<StateSpec> {
    match op {
        Op::ShortConv(ShortConv { state, .. }) | Op::DeltaNet(DeltaNet { state, .. }) => {
            Some(StateSpec { len: state.len, n_slots: options.n_states })
        }
        _ => None,
    }
}

/// Bytes of the states of a plan.
pub(super) fn n_bytes(plan: &Plan, options: &ExecutableOptions) -> usize {
    let specs = plan.steps.iter().filter_map(|step| spec(&step.op, options));
    specs.map(|spec| spec.n_bytes()).fold(0, usize::saturating_add)
}

/// The shape of a delta rule.
pub(super) fn delta_spec(net: &DeltaNet) -> DeltaNetSpec {
    DeltaNetSpec {
        n_k_heads: net.n_k_heads,
        n_v_heads: net.n_v_heads,
        k_dim: net.k_dim,
        v_dim: net.v_dim,
        eps: DeltaNet::EPS,
        tiled: net.tiled,
    }
}

impl<D: Device> States<D> {
    pub(super) fn new(
        device: &Arc<D>,
        plan: &Plan,
        options: &ExecutableOptions,
    ) -> Result<Self, Error> {
        let new = |spec| StateLayer::new(device, "recurrent states", spec);
        let layers = plan.steps.iter().map(|step| spec(&step.op, options).map(new).transpose());
        Ok(Self(layers.collect::<Result<_, _>>()?))
    }

    /// The states of step `idx` of the plan.
    pub(super) fn layer(&self, idx: usize) -> &StateLayer<D> {
        self.0[idx].as_ref().expect("the step has a state")
    }

    fn layers(&self) -> impl Iterator<Item = &StateLayer<D>> {
        self.0.iter().flatten()
    }

    /// Bytes of a state, of all layers.
    pub(super) fn state_bytes(&self) -> usize {
        self.layers().map(|layer| layer.spec().slot_bytes()).sum()
    }

    /// Appends a state, one layer after the other.
    pub(super) fn read(
        &self,
        stream: &D::Stream,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.layers().try_for_each(|layer| {
            let at = out.len();
            out.resize(at + layer.spec().slot_bytes(), 0);
            layer.read(stream, state.0 as usize, &mut out[at..])
        })
    }

    /// Fills a state with what [`Self::read`] gave.
    pub(super) fn write(
        &self,
        stream: &D::Stream,
        state: StateId,
        mut bytes: &[u8],
    ) -> Result<(), Error> {
        self.layers().try_for_each(|layer| {
            let (own, rest) = bytes.split_at(layer.spec().slot_bytes());
            bytes = rest;
            layer.write(stream, state.0 as usize, own)
        })
    }
}
