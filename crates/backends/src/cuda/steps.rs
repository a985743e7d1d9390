//! Launching: one arm per operation, each queueing what runs it on the rows of a step.

use super::experts::Experts;
use super::fused::{Fused, FusedSteps, OfHeads, Rounded};
use super::products::Products;
use super::recurrent::{States, delta_spec};
use super::store::{DeviceWeights, Store};
use super::words::{Counts, Places, SEQ_WORDS};
use crate::Arithmetic;
use crate::Phase;
use crate::gpu::weights::VectorKey;
use realizar_kernels_cuda as kernels;
use realizar_kernels_cuda::{
    AttentionScratch, Buffer, DecodeAttention, Device, Elementwise, Error, HeadNorm, Kernels,
    KvPages, List, NewHeads, PrefillAttention, PrefillResults, RankRows, RopeAngles, RopeStore,
    Rows, StateLists, Tables,
};
use realizar_model::graph::plan::{Place, Plan, Step, parts};
use realizar_model::graph::weights::WeightId;
use realizar_model::graph::{Attention, DeltaNet, Norm, Op, Prologue, Reach, RowDomain, ShortConv};
use std::ops::Range;

/// The keys and values of a group's layers.
pub(super) type KvGroup<D> = Vec<KvPages<D>>;

/// What launches work on.
pub(super) struct Launcher<'a, D: Device> {
    pub(super) kernels: &'a Kernels<D>,
    pub(super) store: &'a Store<D>,
    pub(super) plan: &'a Plan,
    /// What becomes of each step.
    pub(super) fused: &'a FusedSteps,
    pub(super) weights: &'a DeviceWeights<D>,
    pub(super) values: &'a Buffer<D>,
    pub(super) words: &'a Buffer<D>,
    pub(super) places: &'a Places,
    pub(super) kv: &'a [KvGroup<D>],
    pub(super) states: &'a States<D>,
    pub(super) products: &'a Products<D>,
    pub(super) experts: &'a Experts<D>,
    pub(super) scratch: Option<&'a AttentionScratch<D>>,
    /// The device's place in a group, if it is in one.
    pub(super) ranks: Option<&'a RankRows<D>>,
    pub(super) arithmetic: Arithmetic,
    /// The rows of the step.
    pub(super) counts: Counts,
    /// Positions that a row sees at most.
    pub(super) max_kv_len: usize,
    /// Whether the step may have rows that it was filled up with.
    pub(super) is_captured: bool,
}

impl<'a, D: Device> Launcher<'a, D> {
    pub(super) fn stream(&self) -> &'a D::Stream {
        &self.store.stream
    }

    /// The rows of a domain.
    fn all(&self, rows: RowDomain) -> Range<usize> {
        match rows {
            RowDomain::Tokens => 0..self.counts.rows,
            RowDomain::Outputs => 0..self.counts.outputs,
        }
    }

    /// The rows of a phase in a domain.
    pub(super) fn of_phase(&self, rows: RowDomain, phase: Phase) -> Range<usize> {
        let n_decode = match rows {
            RowDomain::Tokens => self.counts.generated,
            RowDomain::Outputs => self.counts.generated_outputs,
        };
        match phase {
            Phase::Decode => 0..n_decode,
            Phase::Prefill => n_decode..self.all(rows).end,
        }
    }

    /// Some rows of a value.
    pub(super) fn rows(&self, place: &Place, rows: Range<usize>) -> Rows<'a, D> {
        let Place { start, stride, width, .. } = *place;
        Rows::new(self.values, start + rows.start * stride, rows.len(), width, stride)
    }

    /// A list of a step with `n` numbers.
    pub(super) fn list(&self, at: usize, n: usize) -> List<'a, D> {
        List::new(self.words, at, n)
    }

    /// A vector of weights.
    fn vector(&self, key: &VectorKey, n: usize) -> Option<Rows<'a, D>> {
        let at = self.weights.places.place(key)?;
        Some(Rows::vector_at(&self.weights.vectors, at as usize, n))
    }

    pub(super) fn weight(&self, id: Option<WeightId>, n: usize) -> Option<Rows<'a, D>> {
        id.and_then(|id| self.vector(&VectorKey::Weight(id), n))
    }

    /// Queues step `idx` of the plan; a step without rows queues nothing.
    ///
    /// # Errors
    /// What the driver reports.
    pub(super) fn launch(&self, idx: usize) -> Result<(), Error> {
        let step = &self.plan.steps[idx];
        let all = self.all(step.output.rows);
        if all.is_empty() || self.fused.steps[idx] == Fused::Skipped {
            return Ok(());
        }
        let is_made = idx > 0 && self.gates(idx - 1);
        let is_quantized = self.fused.steps[idx].quantizes();
        let is_rounded = self.fused.rounded[idx].is_for_product();
        // Attention has launches of its own for each phase, which do so.
        let is_attention = matches!(step.op, Op::Attention(_));
        if is_attention || !is_made && !is_quantized && !is_rounded {
            return self.plain(idx, step, all);
        }
        let of_phase = |phase| self.of_phase(step.output.rows, phase);
        let (generated, prompt) = (of_phase(Phase::Decode), of_phase(Phase::Prefill));
        if !is_made && is_quantized {
            self.for_product(idx, step, Phase::Decode, generated)?;
        } else if !is_made {
            self.plain(idx, step, generated)?;
        }
        if self.is_prompt_gated(idx) {
            Ok(())
        } else if is_rounded {
            self.for_product(idx, step, Phase::Prefill, prompt)
        } else {
            self.plain(idx, step, prompt)
        }
    }

    /// Queues a norm or an activation of the rows of a phase in the form that the product behind it takes.
    fn for_product(
        &self,
        idx: usize,
        step: &Step,
        phase: Phase,
        rows: Range<usize>,
    ) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let (kernels, stream, first) = (self.kernels, self.stream(), rows.start);
        let input = |i: usize| self.rows(&step.inputs[i], rows.clone());
        let (x, out) = (input(0), self.rows(&step.output, rows.clone()));
        let (to, out) = match phase {
            Phase::Decode => (self.products.quantized(first, &out).into(), Some(out)),
            Phase::Prefill => {
                let is_read = self.fused.rounded[idx] == Rounded::Too;
                (self.rounded_for(idx + 1, first, &out), is_read.then_some(out))
            }
        };
        let (act, up) = match &step.op {
            Op::Norm(norm) => {
                let norm = self.norm(norm, norm.group);
                return kernels::quantize_norm(kernels, stream, &norm, x, out, to);
            }
            Op::Act(act) => (act, None),
            Op::GatedAct(act) => (act, Some(input(1))),
            op => unreachable!("{op:?} is not in front of a product"),
        };
        kernels::quantize_activated(kernels, stream, *act, x, up, out, to)
    }

    /// Queues a step for some of its rows.
    fn plain(&self, idx: usize, step: &Step, all: Range<usize>) -> Result<(), Error> {
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
            Op::Norm(norm) => {
                let width = if norm.per_run { step.output.width } else { norm.group };
                kernels::norm(kernels, stream, &self.norm(norm, width), input(0), out)
            }
            Op::Linear { prologue, residual, .. } => {
                assert_eq!(*prologue, Prologue::None, "the backend asks for no prologues");
                // Prefill rows are first: what the step before has left for them lies where parts of decode rows go, and what is
                // gated may lie where they are, which nothing else reads.
                match self.fused.rounded[idx] {
                    Rounded::Gates { up_first } => self.gated_prompt((idx, step), up_first)?,
                    _ => self.linear((idx, step), Phase::Prefill, *residual)?,
                }
                match self.fused.steps[idx] {
                    Fused::Gates { up_first } if self.gates(idx) => {
                        self.gated((idx, step), up_first)
                    }
                    _ => self.linear((idx, step), Phase::Decode, *residual),
                }
            }
            Op::Rope { head_dim, style } => {
                let (x, table) = (input(0), input(1));
                kernels::rope(kernels, stream, x, table, out, *head_dim, *style)
            }
            Op::Attention(attention) => self.attention((idx, step), attention),
            Op::StoreKv(at) => {
                let slots = self.list(self.places.groups[at.group].slots, all.len());
                let pages = &self.kv[at.group][at.layer];
                kernels::kv_store(kernels, stream, input(0), input(1), slots, pages)
            }
            Op::Act(act) => elementwise(Elementwise::Act(*act)),
            Op::GatedAct(act) => elementwise(Elementwise::Gated(*act, input(1))),
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
            Op::Reorder { order } => {
                let order = self.weight(Some(*order), out.n_cols());
                let order = order.expect("the order was uploaded");
                kernels::reorder(kernels, stream, order, input(0), out)
            }
            Op::Concat => {
                for (input, part) in parts(step) {
                    let (x, out) = (self.rows(&input, all.clone()), self.rows(&part, all.clone()));
                    kernels::elementwise(kernels, stream, &Elementwise::Scale(1.0), x, out)?;
                }
                Ok(())
            }
            Op::Route(route) => self.route(route, input(0), out),
            Op::ExpertLinear(linear) => {
                self.experts(step, linear, Phase::Decode)?;
                self.experts(step, linear, Phase::Prefill)
            }
            Op::AllReduce { residual } => {
                let residual = residual.then(|| input(1));
                kernels::all_reduce(kernels, stream, self.group(), input(0), residual, out)
            }
            Op::AllGather => kernels::all_gather(kernels, stream, self.group(), input(0), out),
            Op::ExpertBias(bias) => {
                let n = bias.n_experts * (out.n_cols() / bias.n_chosen);
                let biases = self.weight(Some(bias.biases), n).expect("the biases were uploaded");
                kernels::expert_bias(kernels, stream, biases, input(0), input(1), out)
            }
            Op::Combine => kernels::combine(kernels, stream, input(0), input(1), out),
            Op::ShortConv(conv) => self.short_conv(idx, conv, input(0), out),
            Op::DeltaNet(net) => self.delta_net(idx, net, [0, 1, 2, 3, 4].map(input), out),
        }
    }

    /// The place in a group that a plan with exchanges is loaded with.
    fn group(&self) -> &'a RankRows<D> {
        self.ranks.expect("a plan with exchanges is that of a rank")
    }

    /// The norm, with vectors of `n` numbers.
    fn norm(&self, norm: &Norm, n: usize) -> kernels::Norm<'a, D> {
        kernels::Norm {
            kind: norm.kind,
            group: norm.group,
            eps: norm.eps,
            weight: self.weight(norm.weight, n),
            bias: self.weight(norm.bias, n),
        }
    }

    /// The norm of heads on their way to attention.
    fn head_norm(&self, of: OfHeads) -> Option<HeadNorm<'a, D>> {
        let Op::Norm(norm) = &self.plan.steps[of.norm?].op else { unreachable!("a norm") };
        let weight = self.weight(norm.weight, norm.group).expect("the weight was uploaded");
        Some(HeadNorm { weight, eps: norm.eps })
    }

    /// Stores keys and values of all rows, then attends; or both in one launch.
    fn attention(&self, (idx, step): (usize, &Step), attention: &Attention) -> Result<(), Error> {
        let pages = &self.kv[attention.kv.group][attention.kv.layer];
        let places = &self.places.groups[attention.kv.group];
        let n_rows = self.counts.rows;
        let rows = |place: &Place| self.rows(place, 0..n_rows);
        let slots = self.list(places.slots, n_rows);
        let mut of_decode = (&step.inputs[0], None);
        if let Fused::RopeStore { q: of_q, k: of_k, in_attention, .. } = self.fused.steps[idx] {
            let input = |of: OfHeads| &self.plan.steps[of.first()].inputs[0];
            let turn = &self.plan.steps[of_q.rope];
            let Op::Rope { style, .. } = &turn.op else { unreachable!("a rotary embedding") };
            let heads = NewHeads {
                k: rows(input(of_k)),
                v: rows(&step.inputs[2]),
                q_norm: self.head_norm(of_q),
                k_norm: self.head_norm(of_k),
                table: rows(&turn.inputs[1]),
                pairs: *style,
                slots,
            };
            if in_attention && self.counts.is_row_of_each() {
                of_decode = (input(of_q), Some(heads));
            } else {
                let (q, q_out) = (rows(input(of_q)), rows(&turn.output));
                let store = RopeStore { q, q_out, heads, pages };
                kernels::rope_store(self.kernels, self.stream(), &store)?;
            }
        } else if let [_, k, v] = &step.inputs[..] {
            kernels::kv_store(self.kernels, self.stream(), rows(k), rows(v), slots, pages)?;
        }
        let args = |rows: Range<usize>| {
            let list = |at: usize| self.list(at + rows.start, rows.len());
            kernels::Attention {
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
                sliding_window: attention.window,
                chunked: attention.chunked,
                sinks: self.weight(attention.sinks, attention.n_heads),
                out: self.rows(&step.output, rows.clone()),
            }
        };
        let arithmetic = super::attention_arithmetic(self.arithmetic);
        let (kernels, stream, generated) = (self.kernels, self.stream(), self.counts.generated);
        if generated > 0 {
            let (q, new_heads) = of_decode;
            let q = self.rows(q, 0..generated);
            let mut attention = kernels::Attention { q, ..args(0..generated) };
            // Decode rows reach as far as themselves.
            attention.tables.reaches = None;
            let to = self.fused.steps[idx].quantizes().then_some(attention.out);
            let decode = DecodeAttention {
                attention,
                arithmetic,
                max_kv_len: self.max_kv_len,
                scratch: self.scratch.expect("there is room for the results of attention"),
                new_heads,
                to: to.map(|out| self.products.quantized(0, &out)),
            };
            kernels::attention_decode(kernels, stream, &decode)?;
        }
        if self.counts.tiles > 0 {
            let (attention, rounded) = (args(0..n_rows), self.fused.rounded[idx]);
            let out = self.rows(&step.output, generated..n_rows);
            let to = rounded.is_for_product().then(|| self.rounded_for(idx + 1, generated, &out));
            let in_attention = kernels::rounds_results(pages.spec(), attention.n_heads, arithmetic);
            let is_read = rounded == Rounded::Too;
            let results = to.map(|to| PrefillResults { to, first: generated, is_read });
            let tiles = self.list(self.places.tiles, 2 * self.counts.tiles);
            let results = results.filter(|_| in_attention);
            let prefill = PrefillAttention { attention, arithmetic, tiles, results };
            kernels::attention_prefill(kernels, stream, &prefill)?;
            if let Some(to) = to.filter(|_| !in_attention) {
                self.round(out, to)?;
            }
        }
        Ok(())
    }

    fn state_lists(&self) -> StateLists<'a, D> {
        let [seqs, writes] = self.places.states.expect("a plan with states has their lists");
        StateLists {
            seqs: self.list(seqs, SEQ_WORDS * self.counts.seqs),
            seq_of_row: self.list(self.places.seq_of_row, self.counts.rows),
            writes: self.list(writes, self.counts.rows),
            n_seqs: self.counts.seqs,
        }
    }

    fn short_conv(
        &self,
        idx: usize,
        conv: &ShortConv,
        x: Rows<'_, D>,
        out: Rows<'_, D>,
    ) -> Result<(), Error> {
        let taps = self.weight(Some(conv.taps), conv.n_taps * x.n_cols());
        let args = kernels::ShortConv {
            taps: taps.expect("weights of taps were uploaded"),
            n_taps: conv.n_taps,
            bias: self.weight(conv.bias, x.n_cols()),
            act: conv.act,
            x,
            out,
            states: self.states.layer(idx),
            lists: self.state_lists(),
        };
        kernels::short_conv(self.kernels, self.stream(), &args)
    }

    fn delta_net(
        &self,
        idx: usize,
        net: &DeltaNet,
        [q, k, v, a, b]: [Rows<'_, D>; 5],
        out: Rows<'_, D>,
    ) -> Result<(), Error> {
        let vector = |id| self.weight(Some(id), net.n_v_heads).expect("the vector was uploaded");
        let args = kernels::DeltaNet {
            spec: delta_spec(net),
            decay: vector(net.decay),
            dt_bias: vector(net.dt_bias),
            q,
            k,
            v,
            a,
            b,
            out,
            states: self.states.layer(idx),
            lists: self.state_lists(),
        };
        kernels::delta_net(self.kernels, self.stream(), &args)
    }
}
