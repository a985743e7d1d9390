//! Recurrent states on the device: each layer's in a buffer of its own, so that the limit on what a
//! kernel sees applies to a layer, and the kernels of the operations that read and write them.

use super::bind::{Binder, view};
use super::words::StatePlaces;
use crate::ExecutableOptions;
use realizar_kernels_wgpu as kernels;
use realizar_kernels_wgpu::{
    DeltaNetSpec, Error, Gpu, Kernel, RowsAt, StateLayer, StateLists, StateSpec,
};
use realizar_kvcache::StateId;
use realizar_model::graph::plan::{Plan, Step};
use realizar_model::graph::{DeltaNet, Op, ShortConv, StatePart};

/// The states of a plan's layers.
#[derive(Debug)]
pub(super) struct States {
    /// With the index of the step that they belong to, in the order of the steps.
    layers: Vec<(usize, StateLayer)>,
}

/// The part of the state that an operation has.
fn part(op: &Op) -> Option<StatePart> {
    match op {
        Op::ShortConv(ShortConv { state, .. }) | Op::DeltaNet(DeltaNet { state, .. }) => {
            Some(*state)
        }
        _ => None,
    }
}

fn state_spec(part: StatePart, options: &ExecutableOptions) -> StateSpec {
    // What does not fit is more than any device takes, and refused.
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    StateSpec { len: number(part.len), n_slots: number(options.n_states) }
}

/// Bytes of the states of a plan.
pub(super) fn n_bytes(plan: &Plan, options: &ExecutableOptions) -> u64 {
    let parts = plan.steps.iter().filter_map(|step| part(&step.op));
    parts.map(|part| state_spec(part, options).n_bytes()).fold(0, u64::saturating_add)
}

fn delta_spec(net: &DeltaNet) -> DeltaNetSpec {
    DeltaNetSpec {
        n_k_heads: net.n_k_heads as u32,
        n_v_heads: net.n_v_heads as u32,
        k_dim: net.k_dim as u32,
        v_dim: net.v_dim as u32,
        eps: DeltaNet::EPS,
        tiled: net.tiled,
    }
}

/// Why a device cannot run an operation, if it has a state.
pub(super) fn check(gpu: &Gpu, op: &Op, options: &ExecutableOptions) -> Result<(), Error> {
    let Some(part) = part(op) else { return Ok(()) };
    if let Op::DeltaNet(net) = op {
        delta_spec(net).check(gpu)?;
    }
    StateLayer::check(gpu, "a layer's states", state_spec(part, options))
}

impl States {
    pub(super) fn new(gpu: &Gpu, plan: &Plan, options: &ExecutableOptions) -> Result<Self, Error> {
        let mut layers = Vec::new();
        for (idx, step) in plan.steps.iter().enumerate() {
            if let Some(part) = part(&step.op) {
                let layer = StateLayer::new(gpu, "recurrent states", state_spec(part, options))?;
                layers.push((idx, layer));
            }
        }
        Ok(Self { layers })
    }

    /// The states of step `idx` of the plan.
    fn layer(&self, idx: usize) -> &StateLayer {
        let at = self.layers.binary_search_by_key(&idx, |layer| layer.0);
        &self.layers[at.expect("the step has a state")].1
    }

    /// Bytes of a state, of all layers.
    pub(super) fn state_bytes(&self) -> usize {
        self.layers.iter().map(|(_, layer)| layer.slot_bytes() as usize).sum()
    }

    /// Appends a state, one layer after the other.
    pub(super) fn read(&self, gpu: &Gpu, state: StateId, out: &mut Vec<u8>) -> Result<(), Error> {
        let most = self.layers.iter().map(|(_, layer)| layer.slot_bytes()).max();
        let Some(n_bytes) = most else { return Ok(()) };
        let room = gpu.readback_buffer("a state that is saved", n_bytes)?;
        self.layers.iter().try_for_each(|(_, layer)| layer.read(gpu, state.0, &room, out))
    }

    /// Fills a state with what [`Self::read`] gave.
    pub(super) fn write(&self, gpu: &Gpu, state: StateId, mut bytes: &[u8]) -> Result<(), Error> {
        self.layers.iter().try_for_each(|(_, layer)| {
            let (own, rest) = bytes.split_at(layer.slot_bytes() as usize);
            bytes = rest;
            layer.write(gpu, state.0, own)
        })
    }
}

impl Binder<'_> {
    fn state_lists(&self) -> StateLists {
        let StatePlaces { seqs_at, writes_at } =
            self.places.states.expect("a plan with states has their lists");
        StateLists { seq_of_row_at: self.places.seq_of_row_at, seqs_at, writes_at }
    }

    /// The kernel of a convolution, which runs once for each row at `rows`.
    pub(super) fn short_conv(
        &self,
        rows: RowsAt,
        (idx, step): (usize, &Step),
        conv: &ShortConv,
    ) -> Result<Kernel, Error> {
        let args = kernels::ShortConv {
            vectors: &self.weights.vectors,
            taps: self.weight(Some(conv.taps)).expect("weights of taps were uploaded"),
            n_taps: conv.n_taps as u32,
            bias: self.weight(conv.bias),
            act: conv.act,
            x: view(&step.inputs[0]),
            out: view(&step.output),
            states: self.states.layer(idx),
            lists: self.state_lists(),
        };
        kernels::short_conv(self.gpu, self.rows(rows), &args)
    }

    /// The kernel of a delta rule, which runs once for each sequence at `seqs`.
    pub(super) fn delta_net(
        &self,
        seqs: RowsAt,
        (idx, step): (usize, &Step),
        net: &DeltaNet,
    ) -> Result<Kernel, Error> {
        let [q, k, v, a, b] = [0, 1, 2, 3, 4].map(|i| view(&step.inputs[i]));
        let args = kernels::DeltaNet {
            spec: delta_spec(net),
            vectors: &self.weights.vectors,
            decay: self.weight(Some(net.decay)).expect("decays were uploaded"),
            dt_bias: self.weight(Some(net.dt_bias)).expect("biases were uploaded"),
            q,
            k,
            v,
            a,
            b,
            out: view(&step.output),
            states: self.states.layer(idx),
            lists: self.state_lists(),
        };
        kernels::delta_net(self.gpu, self.rows(seqs), &args)
    }
}
