//! Launching: one arm per operation, each queueing what runs it on the rows of a step.

use super::room::ScratchRoom;
use super::store::{DeviceWeights, Store};
use super::words::{Counts, Places};
use crate::backend::gpu::weights::VectorKey;
use crate::graph::plan::{Place, Plan, Step};
use crate::graph::weights::WeightId;
use crate::graph::{
    Activation, Attention, Norm, NormKind, Op, Prologue, Reach, RopeStyle, RowDomain,
};
use realizar_kernels_cuda as kernels;
use realizar_kernels_cuda::{
    AttentionScratch, Buffer, Device, Elementwise, Error, Kernels, KvPages, Linear, List, Pairs,
    RopeAngles, Rows, Tables,
};
use std::ops::Range;

/// The keys and values of a group's layers.
pub(super) type KvGroup<D> = Vec<KvPages<D>>;

/// What launches work on.
pub(super) struct Launcher<'a, D: Device> {
    pub(super) kernels: &'a Kernels<D>,
    pub(super) store: &'a Store<D>,
    pub(super) plan: &'a Plan,
    pub(super) weights: &'a DeviceWeights<D>,
    pub(super) values: &'a Buffer<D>,
    pub(super) words: &'a Buffer<D>,
    pub(super) places: &'a Places,
    pub(super) kv: &'a [KvGroup<D>],
    pub(super) scratch: Option<&'a (ScratchRoom, AttentionScratch<D>)>,
    /// The rows of the step.
    pub(super) counts: Counts,
    /// Positions that a row sees at most.
    pub(super) max_kv_len: usize,
}

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

impl<'a, D: Device> Launcher<'a, D> {
    fn stream(&self) -> &'a D::Stream {
        &self.store.stream
    }

    /// The rows of a domain.
    fn all(&self, rows: RowDomain) -> Range<usize> {
        match rows {
            RowDomain::Tokens => 0..self.counts.rows,
            RowDomain::Outputs => 0..self.counts.outputs,
        }
    }

    /// The generated rows of a domain.
    fn generated(&self, rows: RowDomain) -> Range<usize> {
        match rows {
            RowDomain::Tokens => 0..self.counts.generated,
            RowDomain::Outputs => 0..self.counts.generated_outputs,
        }
    }

    /// The rows of prompts of a domain.
    fn prompt(&self, rows: RowDomain) -> Range<usize> {
        self.generated(rows).end..self.all(rows).end
    }

    /// Some rows of a value.
    fn rows(&self, place: &Place, rows: Range<usize>) -> Rows<'a, D> {
        let Place { start, stride, width, .. } = *place;
        Rows::new(self.values, start + rows.start * stride, rows.len(), width, stride)
    }

    /// A list of a step with `n` numbers.
    fn list(&self, at: usize, n: usize) -> List<'a, D> {
        List::new(self.words, at, n)
    }

    /// A vector of weights.
    fn vector(&self, key: &VectorKey, n: usize) -> Option<Rows<'a, D>> {
        let at = self.weights.places.place(key)?;
        Some(Rows::vector_at(&self.weights.vectors, at as usize, n))
    }

    fn weight(&self, id: Option<WeightId>, n: usize) -> Option<Rows<'a, D>> {
        id.and_then(|id| self.vector(&VectorKey::Weight(id), n))
    }

    /// Queues step `idx` of the plan; a step without rows queues nothing.
    ///
    /// # Errors
    /// What the driver reports.
    pub(super) fn launch(&self, idx: usize) -> Result<(), Error> {
        let step = &self.plan.steps[idx];
        let all = self.all(step.output.rows);
        if all.is_empty() {
            return Ok(());
        }
        let (kernels, stream) = (self.kernels, self.stream());
        let out = self.rows(&step.output, all.clone());
        let input = |i: usize| self.rows(&step.inputs[i], all.clone());
        let elementwise =
            |op: Elementwise<'_, D>| kernels::elementwise(kernels, stream, &op, input(0), out);
        match &step.op {
            Op::Input => unreachable!("a plan has no step for its input"),
            Op::Embed { table, scale } => {
                let ids = self.list(self.places.tokens, all.len());
                kernels::embed(kernels, stream, self.weights.table(*table), ids, *scale, out)
            }
            Op::PosEmbed { table } => {
                let ids = self.list(self.places.positions, all.len());
                kernels::embed(kernels, stream, self.weights.table(*table), ids, 1.0, out)
            }
            Op::RopeTable(angles) => {
                let n_pairs = angles.inv_freq.len();
                let key = VectorKey::Frequencies(idx);
                let of_step = self.weights.places.place(&key).expect("frequencies were uploaded");
                let vector = |first: usize| {
                    Rows::vector_at(&self.weights.vectors, of_step as usize + first, n_pairs)
                };
                let (n_components, stride) = match angles.components.is_empty() {
                    true => (1, 0),
                    false => (3, self.places.limits.tokens),
                };
                let n = (n_components - 1) * stride + all.len();
                let angles = RopeAngles {
                    positions: self.list(self.places.angles, n),
                    component_stride: stride,
                    inv_freq: vector(0),
                    components: (n_components > 1).then(|| vector(n_pairs)),
                    mscale: angles.mscale,
                };
                kernels::rope_table(kernels, stream, &angles, out)
            }
            Op::Norm(norm) => self.norm(norm, input(0), out),
            Op::Linear { prologue, residual, .. } => {
                assert_eq!(*prologue, Prologue::None, "the backend asks for no prologues");
                for rows in [self.generated(step.output.rows), self.prompt(step.output.rows)] {
                    self.linear((idx, step), rows, *residual)?;
                }
                Ok(())
            }
            Op::Rope { head_dim, style } => {
                let pairs = match style {
                    RopeStyle::Neox => Pairs::Halves,
                    RopeStyle::Interleaved => Pairs::Neighbours,
                };
                kernels::rope(kernels, stream, input(0), input(1), out, *head_dim, pairs)
            }
            Op::Attention(attention) => self.attention(step, attention),
            Op::Act(act) => elementwise(Elementwise::Act(activation(*act))),
            Op::GatedAct(act) => elementwise(Elementwise::Gated(activation(*act), input(1))),
            Op::Add => elementwise(Elementwise::Add(input(1))),
            Op::Mul => elementwise(Elementwise::Mul(input(1))),
            Op::Scale(factor) => elementwise(Elementwise::Scale(*factor)),
            Op::Softcap(cap) => elementwise(Elementwise::Softcap(*cap)),
            Op::Clamp { min, max } => elementwise(Elementwise::Clamp(*min, *max)),
            Op::SelectRows => {
                let from = self.rows(&step.inputs[0], self.all(RowDomain::Tokens));
                let numbers = self.list(self.places.outputs, all.len());
                kernels::select_rows(kernels, stream, from, numbers, out)
            }
            Op::Reorder { .. }
            | Op::Route(_)
            | Op::ExpertLinear(_)
            | Op::Combine
            | Op::ShortConv(_)
            | Op::DeltaNet(_) => unreachable!("refused before anything was uploaded"),
        }
    }

    fn norm(&self, norm: &Norm, x: Rows<'_, D>, out: Rows<'_, D>) -> Result<(), Error> {
        let args = kernels::Norm {
            kind: match norm.kind {
                NormKind::Rms => kernels::NormKind::Rms,
                NormKind::Layer => kernels::NormKind::Layer,
            },
            group: norm.group,
            eps: norm.eps,
            weight: self.weight(norm.weight, norm.group),
            bias: self.weight(norm.bias, norm.group),
        };
        kernels::norm(self.kernels, self.stream(), &args, x, out)
    }

    /// Products of some rows with the matrices of a step.
    fn linear(
        &self,
        (idx, step): (usize, &Step),
        rows: Range<usize>,
        residual: bool,
    ) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let x = self.rows(&step.inputs[0], rows.clone());
        let out = self.rows(&step.output, rows.clone());
        let residual = residual.then(|| self.rows(&step.inputs[1], rows));
        let mut first = 0;
        for (matrix, bias) in self.weights.linear(idx) {
            let width = matrix.n_rows();
            let bias = bias.map(|at| Rows::vector_at(&self.weights.vectors, at as usize, width));
            let linear = Linear {
                matrix,
                x,
                bias,
                residual: residual.map(|rows| rows.columns(first, width)),
                out: out.columns(first, width),
            };
            kernels::matvec(self.kernels, self.stream(), &linear)?;
            first += width;
        }
        Ok(())
    }

    /// Stores keys and values of all rows, then attends.
    fn attention(&self, step: &Step, attention: &Attention) -> Result<(), Error> {
        let pages = &self.kv[attention.kv.group][attention.kv.layer];
        let places = &self.places.groups[attention.kv.group];
        let n_rows = self.counts.rows;
        let [k, v] = [1, 2].map(|i| self.rows(&step.inputs[i], 0..n_rows));
        let slots = self.list(places.slots, n_rows);
        kernels::kv_store(self.kernels, self.stream(), k, v, slots, pages)?;
        let (room, scratch) = self.scratch.expect("there is room for the results of attention");
        // Rows in waves, as many at a time as there is room for.
        for first in (0..n_rows).step_by(room.max_rows) {
            let rows = first..n_rows.min(first + room.max_rows);
            let list = |at: usize| self.list(at + rows.start, rows.len());
            let args = kernels::Attention {
                q: self.rows(&step.inputs[0], rows.clone()),
                pages,
                tables: Tables {
                    positions: list(self.places.positions),
                    seq_of_row: list(self.places.seq_of_row),
                    bases: self.list(places.bases, self.places.limits.tokens),
                    words: self.list(0, self.places.n_words),
                    reaches: match attention.reach {
                        Reach::Causal => None,
                        Reach::OfRow => self.places.reaches.map(list),
                    },
                },
                n_heads: attention.n_heads,
                scale: attention.scale,
                softcap: attention.softcap,
                window: attention.window,
                sinks: self.weight(attention.sinks, attention.n_heads),
                out: self.rows(&step.output, rows.clone()),
            };
            let max_kv_len = self.max_kv_len;
            kernels::attention_decode(self.kernels, self.stream(), &args, max_kv_len, scratch)?;
        }
        Ok(())
    }
}
