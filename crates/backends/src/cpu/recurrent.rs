//! Recurrent states on the CPU, and the operations that read and write them.

use super::executable::out_of_memory;
use super::memory::Arena;
use crate::Error;
use crate::{Batch, ExecutableOptions};
use realizar_kernels_cpu as kernels;
use realizar_kernels_cpu::{
    DeltaInputs, DeltaScratch, LayerStates, NO_STATE, Pages, StateSeq, StateSteps, Team, Tier,
};
use realizar_kvcache::StateId;
use realizar_model::graph::plan::{Plan, Step};
use realizar_model::graph::weights::Weights;
use realizar_model::graph::{DeltaNet, Op, ShortConv, StatePart};

/// The slots of recurrent states.
#[derive(Debug)]
pub(super) struct States {
    memory: Pages, // [n_slots][len]
    /// Elements of a slot.
    len: usize,
    n_slots: usize,
    /// What the batch that is being run reads and writes.
    steps: StateSteps,
    delta: DeltaScratch,
}

/// Bytes of the slots of a plan.
pub(super) fn n_bytes(plan: &Plan, options: &ExecutableOptions) -> usize {
    plan.state_len.saturating_mul(options.n_states).saturating_mul(size_of::<f32>())
}

impl States {
    pub(super) fn new(
        plan: &Plan,
        options: &ExecutableOptions,
        team: &Team,
    ) -> Result<Self, Error> {
        let n_bytes = n_bytes(plan, options);
        let memory = Pages::zeroed(n_bytes)
            .ok_or_else(|| out_of_memory("max_seqs", "room for recurrent states", n_bytes))?;
        let k_dim = plan.steps.iter().filter_map(|step| match &step.op {
            Op::DeltaNet(net) => Some(net.k_dim),
            _ => None,
        });
        Ok(Self {
            memory,
            len: plan.state_len,
            n_slots: if plan.state_len == 0 { 0 } else { options.n_states },
            steps: StateSteps::with_capacity(plan.limits.tokens),
            delta: DeltaScratch::new(team, k_dim.max().unwrap_or(0)),
        })
    }

    /// Takes up what a batch reads and writes.
    pub(super) fn begin(&mut self, batch: &Batch) {
        if self.len == 0 {
            return;
        }
        let seqs = batch
            .seqs
            .iter()
            .zip(&batch.state_reads)
            .map(|(seq, &from)| StateSeq { rows: seq.first_row..seq.first_row + seq.n_rows, from });
        let writes = batch.state_writes.iter().map(|slot| slot.unwrap_or(NO_STATE));
        self.steps.fill(seqs, writes, self.n_slots);
    }

    fn layer(&mut self, part: StatePart) -> (&StateSteps, LayerStates<'_>, &DeltaScratch) {
        let slots = bytemuck::cast_slice_mut(&mut self.memory);
        let states = LayerStates::new(slots, self.len, part.start, part.len);
        (&self.steps, states, &self.delta)
    }

    pub(super) fn short_conv(
        &mut self,
        (team, tier): (&Team, Tier),
        conv: &ShortConv,
        weights: &Weights,
        step: &Step,
        arena: &mut Arena,
        n_rows: usize,
    ) {
        let params = kernels::ShortConv {
            taps: weights.vector(conv.taps),
            bias: conv.bias.map(|id| weights.vector(id)),
            act: conv.act,
        };
        let (out, [x]) = arena.borrow((&step.output, n_rows), [(&step.inputs[0], n_rows)]);
        let (steps, states, _) = self.layer(conv.state);
        kernels::short_conv(team, tier, &params, x, out, steps, &states);
    }

    pub(super) fn delta_net(
        &mut self,
        (team, tier): (&Team, Tier),
        net: &DeltaNet,
        weights: &Weights,
        step: &Step,
        arena: &mut Arena,
        n_rows: usize,
    ) {
        let &DeltaNet { n_k_heads, n_v_heads, k_dim, v_dim, tiled, decay, dt_bias, state } = net;
        let params = kernels::DeltaNet {
            n_k_heads,
            n_v_heads,
            k_dim,
            v_dim,
            eps: DeltaNet::EPS,
            tiled,
            decay: weights.vector(decay),
            dt_bias: weights.vector(dt_bias),
        };
        let inputs = [0, 1, 2, 3, 4].map(|i| (&step.inputs[i], n_rows));
        let (out, [q, k, v, a, b]) = arena.borrow((&step.output, n_rows), inputs);
        let (steps, states, scratch) = self.layer(state);
        let inputs = DeltaInputs { q, k, v, a, b };
        kernels::delta_net(team, tier, &params, &inputs, out, steps, &states, scratch);
    }

    /// Bytes of a state.
    pub(super) fn state_bytes(&self) -> usize {
        self.len * size_of::<f32>()
    }

    pub(super) fn read(&self, state: StateId, out: &mut Vec<u8>) {
        let n = self.state_bytes();
        out.extend_from_slice(&self.memory[state.0 as usize * n..][..n]);
    }

    pub(super) fn write(&mut self, state: StateId, bytes: &[u8]) {
        let n = self.state_bytes();
        self.memory[state.0 as usize * n..][..n].copy_from_slice(bytes);
    }
}
