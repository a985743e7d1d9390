//! A plan on the CPU: one arm per operation, each calling its kernel.

use super::experts::{self, ExpertMemory, ExpertStep};
use super::finite;
use super::linear::{self, LinearScratch, LinearStep};
use super::memory::Arena;
use super::names;
use super::packed::PackedWeights;
use super::phases::FineRows;
use super::recurrent::States;
use crate::Error;
use crate::metrics::{DispatchMetrics, OpClass};
use crate::{Arithmetic, Batch, Executable, ExecutableOptions};
use realizar_base::ByteSize;
use realizar_formats::FileWatch;
use realizar_kernels_cpu as kernels;
use realizar_kernels_cpu::{
    AttnLimits, AttnParams, AttnScratch, AttnSeq, KvGeometry, KvSlot, Pages, RopePositions, Rows,
    RowsMut, Team, Tier,
};
use realizar_kvcache::{KvLayout, PAGE_LEN, PageCopy, PageId, StateId};
use realizar_model::graph::plan::{Place, Plan, Step, parts};
use realizar_model::graph::weights::{WeightData, WeightId, Weights};
use realizar_model::graph::{Attention, Op, Reach, RowDomain};
use std::sync::Arc;
use std::time::Instant;

/// Sequences whose attention is computed in one call, so that their tables can
/// be listed without an allocation.
const SEQS_PER_CALL: usize = 16;

/// The key-value pages of one group.
#[derive(Debug)]
struct KvGroup {
    /// Of each layer, where it lies in a page.
    layers: Vec<KvGeometry>,
    page_bytes: usize,
    memory: Pages,
}

/// A loaded plan.
#[derive(Debug)]
pub(super) struct CpuExecutable {
    team: Team,
    tier: Tier,
    plan: Plan,
    weights: Weights,
    packed: PackedWeights,
    biases: Vec<Option<Vec<f32>>>, // [n_steps]
    arithmetic: Arithmetic,
    arena: Arena,
    linear: LinearScratch,
    experts: ExpertMemory,
    attention: AttnScratch,
    kv: Vec<KvGroup>,
    slots: Vec<KvSlot>,
    states: States,
    fine: FineRows,
    /// Where the hidden states of the last step's output rows are, and how many rows.
    hidden: Option<(Place, usize)>,
    metrics: Arc<DispatchMetrics>,
}

pub(super) fn out_of_memory(option: &'static str, what: &str, n_bytes: usize) -> Error {
    let reason = format!("{what} of {} does not fit in memory", ByteSize::from(n_bytes));
    Error::Option { option, reason }
}

impl KvGroup {
    fn new(layout: &KvLayout, n_pages: usize) -> Result<Self, Error> {
        let spec = layout.spec();
        let page_bytes = layout.page_bytes();
        let geometry = |layer| {
            let (k, v) = (layout.k_offset(layer), layout.v_offset(layer));
            let (heads, dim) = (spec.n_kv_heads, spec.head_dim);
            KvGeometry::new(layout.ty(), PAGE_LEN, heads, dim, page_bytes, k, v)
                .expect("the cache's layouts are of types and sizes that the kernels have")
        };
        let n_bytes = page_bytes.saturating_mul(n_pages);
        let memory = Pages::zeroed(n_bytes)
            .ok_or_else(|| out_of_memory("ctx", "a key-value cache", n_bytes))?;
        Ok(Self { layers: (0..spec.n_layers).map(geometry).collect(), page_bytes, memory })
    }
}

impl CpuExecutable {
    pub(super) fn new(
        team: Team,
        tier: Tier,
        plan: Plan,
        mut weights: Weights,
        options: &ExecutableOptions,
        metrics: Arc<DispatchMetrics>,
    ) -> Result<Self, Error> {
        let arena = Arena::new(plan.arena_len)
            .ok_or_else(|| out_of_memory("chunk", "an arena", plan.arena_len.saturating_mul(4)))?;
        let attentions = || {
            plan.steps.iter().filter_map(|step| match &step.op {
                Op::Attention(a) => Some(a),
                _ => None,
            })
        };
        let most = |size: fn(&Attention) -> usize| attentions().map(size).max().unwrap_or(1);
        let limits = AttnLimits {
            head_dim: most(|a| a.head_dim),
            group: most(|a| a.n_heads / a.n_kv_heads),
            n_kv_heads: most(|a| a.n_kv_heads),
            kv_len: options.max_seq_len,
        };
        let kv: Result<_, _> =
            options.kv.iter().map(|(layout, n_pages)| KvGroup::new(layout, *n_pages)).collect();
        let packed = match options.arithmetic {
            Arithmetic::Auto => {
                let files = options.packed_files.as_ref();
                PackedWeights::load((&team, tier), &plan, &mut weights, files)?
            }
            Arithmetic::F32 => PackedWeights::none(),
        };
        // What steps read is ready before the first one.
        weights.make();
        let n_experts = experts::scratch_bytes(&plan, &weights, options.arithmetic, tier);
        let experts = ExpertMemory::new(&plan, &weights, options.arithmetic, tier, &team);
        let n_scratch = linear::scratch_bytes(&plan, options.arithmetic, tier);
        let linear = LinearScratch::new(&plan, options.arithmetic, tier, &team);
        Ok(Self {
            tier,
            packed,
            biases: plan.steps.iter().map(|step| bias_of(&step.op, &weights)).collect(),
            arithmetic: options.arithmetic,
            linear: linear.ok_or_else(|| out_of_memory("chunk", "a buffer of rows", n_scratch))?,
            experts: experts
                .ok_or_else(|| out_of_memory("chunk", "a buffer of rows", n_experts))?,
            attention: AttnScratch::new(team.n_threads(), limits).for_tier(tier),
            slots: Vec::with_capacity(plan.limits.tokens),
            fine: FineRows::new(plan.limits.tokens),
            hidden: None,
            states: States::new(&plan, options, &team)?,
            kv: kv?,
            team,
            arena,
            plan,
            weights,
            metrics,
        })
    }

    fn step(&mut self, idx: usize, batch: &Batch) {
        let step = &self.plan.steps[idx];
        let (team, tier) = (&self.team, self.tier);
        let rows = self.fine.of(step.output.rows, batch);
        let n_rows = rows.n_rows;
        match &step.op {
            Op::Input => unreachable!("a plan has no step for its input"),
            Op::Embed { table, scale } => {
                let out = self.arena.rows_mut(&step.output, n_rows);
                embed(team, tier, &self.weights, (*table, *scale), &batch.tokens, out);
                let mut out = self.arena.rows_mut(&step.output, n_rows);
                for (row, embedding) in batch.embedded_rows(out.n_cols()) {
                    out.row_mut(row).copy_from_slice(embedding);
                }
            }
            Op::PosEmbed { table } => {
                let out = self.arena.rows_mut(&step.output, n_rows);
                embed(team, tier, &self.weights, (*table, 1.0), &batch.positions, out);
            }
            Op::RopeTable(angles) => {
                let out = self.arena.rows_mut(&step.output, n_rows);
                let positions = match &batch.angles[..] {
                    [] => RopePositions::OfRows(&batch.positions),
                    own => RopePositions::Components(own, &angles.components),
                };
                kernels::rope_table(team, &angles.inv_freq, angles.mscale, positions, out);
            }
            Op::Norm(norm) => {
                let norm = names::norm(norm, &self.weights);
                let x = in_place(&mut self.arena, team, step, n_rows);
                kernels::norm_in_place(team, tier, &norm, x);
            }
            Op::Linear { .. } => {
                let linear = LinearStep {
                    team,
                    tier,
                    weights: &self.weights,
                    packed: &self.packed,
                    arithmetic: self.arithmetic,
                    rows,
                    bias: self.biases[idx].as_deref(),
                };
                linear.run(step, &mut self.arena, &mut self.linear);
                if cfg!(debug_assertions) {
                    let bias = self.biases[idx].as_deref();
                    finite::assert_finite(idx, step, &self.weights, bias, &self.arena, n_rows);
                }
            }
            Op::Reorder { order } => {
                let order = self.weights.vector(*order);
                let x = (&step.inputs[0], n_rows);
                let (out, [x]) = self.arena.borrow((&step.output, n_rows), [x]);
                kernels::reorder_columns(team, x, order, out);
            }
            Op::Concat => {
                for (input, part) in parts(step) {
                    let (out, [x]) = self.arena.borrow((&part, n_rows), [(&input, n_rows)]);
                    kernels::copy_rows(team, x, out);
                }
            }
            Op::Route(route) => {
                experts::route(team, route, &self.weights, step, &mut self.arena, n_rows);
            }
            Op::ExpertLinear(linear) => {
                let experts = ExpertStep {
                    team,
                    tier,
                    weights: &self.weights,
                    packed: &self.packed,
                    arithmetic: self.arithmetic,
                    rows,
                };
                experts.run(linear, step, &mut self.arena, &mut self.experts);
            }
            Op::ExpertBias(bias) => {
                let biases = self.weights.vector(bias.biases);
                copy_unless_in_place(&mut self.arena, team, step, n_rows);
                let routes = (&step.inputs[1], n_rows);
                let (x, [routes]) = self.arena.borrow((&step.output, n_rows), [routes]);
                kernels::add_expert_biases_in_place(team, tier, x, routes, biases);
            }
            Op::Combine => experts::combine(team, step, &mut self.arena, n_rows),
            Op::AllReduce { .. } | Op::AllGather => unreachable!("a device alone has no ranks"),
            Op::Rope { head_dim, style } => {
                copy_unless_in_place(&mut self.arena, team, step, n_rows);
                let table = (&step.inputs[1], n_rows);
                let (x, [table]) = self.arena.borrow((&step.output, n_rows), [table]);
                let n_heads = x.n_cols() / head_dim;
                kernels::rope(team, tier, x, n_heads, *head_dim, table, *style);
            }
            Op::Attention(attention) => {
                let attention = attention.clone();
                self.attend(idx, &attention, batch);
            }
            Op::StoreKv(layer) => {
                let group = &batch.groups[layer.group];
                self.slots.clear();
                self.slots.extend(group.slots.iter().map(|&(page, idx)| KvSlot { page, idx }));
                let KvGroup { layers, memory, .. } = &mut self.kv[layer.group];
                let [k, v] = [0, 1].map(|i| self.arena.rows(&step.inputs[i], n_rows));
                kernels::kv_store(team, tier, &layers[layer.layer], memory, k, v, &self.slots);
            }
            Op::ShortConv(conv) => {
                let (on, arena) = ((team, tier), &mut self.arena);
                self.states.short_conv(on, conv, &self.weights, step, arena, n_rows);
            }
            Op::DeltaNet(net) => {
                let (on, arena) = ((team, tier), &mut self.arena);
                self.states.delta_net(on, net, &self.weights, step, arena, n_rows);
            }
            Op::Act(act) => {
                let x = in_place(&mut self.arena, team, step, n_rows);
                kernels::activate_in_place(team, tier, *act, x);
            }
            Op::GatedAct(act) => {
                let inputs = [(&step.inputs[0], n_rows), (&step.inputs[1], n_rows)];
                let (out, [gate, up]) = self.arena.borrow((&step.output, n_rows), inputs);
                kernels::gated(team, tier, *act, gate, up, out);
            }
            Op::Add => {
                copy_unless_in_place(&mut self.arena, team, step, n_rows);
                let b = (&step.inputs[1], n_rows);
                let (a, [b]) = self.arena.borrow((&step.output, n_rows), [b]);
                kernels::add_in_place(team, tier, a, b);
            }
            Op::Mul => {
                copy_unless_in_place(&mut self.arena, team, step, n_rows);
                let b = (&step.inputs[1], n_rows);
                let (a, [b]) = self.arena.borrow((&step.output, n_rows), [b]);
                kernels::mul_in_place(team, tier, a, b);
            }
            Op::Scale(factor) => {
                let x = in_place(&mut self.arena, team, step, n_rows);
                kernels::scale_in_place(team, tier, x, *factor);
            }
            Op::Softcap(cap) => {
                let x = in_place(&mut self.arena, team, step, n_rows);
                kernels::softcap_in_place(team, tier, x, *cap);
            }
            Op::Clamp { min, max } => {
                let x = in_place(&mut self.arena, team, step, n_rows);
                kernels::clamp_in_place(team, tier, x, *min, *max);
            }
            Op::SelectRows => {
                let x = (&step.inputs[0], batch.n_rows());
                let (out, [x]) = self.arena.borrow((&step.output, n_rows), [x]);
                kernels::gather_rows(team, x, &batch.outputs, out);
            }
        }
    }

    /// Stores the keys and values of the batch, then attends.
    fn attend(&mut self, idx: usize, attention: &Attention, batch: &Batch) {
        let step = &self.plan.steps[idx];
        let n_rows = batch.n_rows();
        let KvGroup { layers, memory, .. } = &mut self.kv[attention.kv.group];
        let geometry = &layers[attention.kv.layer];
        let group = &batch.groups[attention.kv.group];
        if let [_, k, v] = &step.inputs[..] {
            let inputs = [k, v].map(|place| (place, n_rows));
            let (_, [k, v]) = self.arena.borrow((&step.output, n_rows), inputs);
            self.slots.clear();
            self.slots.extend(group.slots.iter().map(|&(page, idx)| KvSlot { page, idx }));
            kernels::kv_store(&self.team, self.tier, geometry, memory, k, v, &self.slots);
        }
        let q = (&step.inputs[0], n_rows);
        let (out, [q]) = self.arena.borrow((&step.output, n_rows), [q]);

        let params = AttnParams {
            n_heads: attention.n_heads,
            n_kv_heads: attention.n_kv_heads,
            head_dim: attention.head_dim,
            scale: attention.scale,
            softcap: attention.softcap,
            window: attention.window,
            chunked: attention.chunked,
            sinks: attention.sinks.map(|id| self.weights.vector(id)),
            alibi: attention.alibi.map(|id| self.weights.vector(id)),
        };
        let mut out = out;
        for (seqs, tables) in
            batch.seqs.chunks(SEQS_PER_CALL).zip(group.tables.chunks(SEQS_PER_CALL))
        {
            let in_call: [AttnSeq<'_>; SEQS_PER_CALL] = std::array::from_fn(|i| {
                let (seq, table) = (seqs[i.min(seqs.len() - 1)], tables[i.min(seqs.len() - 1)]);
                AttnSeq {
                    rows: seq.first_row..seq.first_row + seq.n_rows,
                    first_pos: seq.first_pos,
                    pages: &group.pages[table.start..table.start + table.len],
                    first_page: table.first_page,
                    reaches: match attention.reach {
                        Reach::Causal => None,
                        Reach::OfRow => batch.reaches_of(&seq),
                    },
                    generated: seq.first_row < batch.n_decode,
                }
            });
            kernels::attention(
                &self.team,
                self.tier,
                &params,
                geometry,
                memory,
                q,
                &in_call[..seqs.len()],
                &self.attention,
                out.reborrow(),
            );
        }
    }
}

impl Executable for CpuExecutable {
    fn run(&mut self, batch: &Batch, input: &[f32]) -> Result<&[f32], Error> {
        match self.plan.input_of(batch.drafts) {
            Some(place) => {
                let rows = Rows::new(input, batch.n_rows(), place.width);
                let place = self.arena.rows_mut(place, batch.n_rows());
                kernels::copy_rows(&self.team, rows, place);
            }
            None => assert!(input.is_empty(), "rows for a plan that takes none"),
        }
        if !batch.drafts {
            self.states.begin(batch);
        }
        self.fine.begin(batch, self.arithmetic, self.tier);
        // The clock is read between operations, once for the end of one and the start
        // of the next.
        let started = Instant::now();
        let mut last = started;
        for idx in self.plan.steps_of(batch.drafts) {
            // Without rows that want logits, what follows their selection is idle.
            let idle = self.plan.steps[idx].output.rows == RowDomain::Outputs;
            if idle && batch.outputs.is_empty() {
                continue;
            }
            self.step(idx, batch);
            let now = Instant::now();
            self.metrics.record(OpClass::of(&self.plan.steps[idx].op), now - last);
            last = now;
        }
        let output = self.plan.output_of(batch.drafts);
        self.hidden = self.plan.hidden_of(batch.drafts).map(|place| (*place, batch.outputs.len()));
        self.metrics.record(OpClass::Step, last - started);
        Ok(self.arena.dense(output, self.fine.of(output.rows, batch).n_rows))
    }

    fn hidden(&self) -> &[f32] {
        self.hidden.as_ref().map_or(&[], |(place, n_rows)| self.arena.dense(place, *n_rows))
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), Error> {
        for copy in copies {
            let KvGroup { page_bytes, memory, .. } = &mut self.kv[copy.group];
            let [from, to] = [copy.from, copy.to].map(|page| page.0 as usize * *page_bytes);
            memory.as_mut_slice().copy_within(from..from + *page_bytes, to);
        }
        Ok(())
    }

    fn page_bytes(&self, group: usize) -> usize {
        self.kv[group].page_bytes
    }

    fn read_page(&mut self, group: usize, page: PageId, out: &mut Vec<u8>) -> Result<(), Error> {
        let KvGroup { page_bytes, memory, .. } = &self.kv[group];
        out.extend_from_slice(&memory[page.0 as usize * page_bytes..][..*page_bytes]);
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<(), Error> {
        let KvGroup { page_bytes, memory, .. } = &mut self.kv[group];
        let at = page.0 as usize * *page_bytes;
        memory.as_mut_slice()[at..at + *page_bytes].copy_from_slice(bytes);
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        self.states.state_bytes()
    }

    fn read_state(&mut self, state: StateId, out: &mut Vec<u8>) -> Result<(), Error> {
        self.states.read(state, out);
        Ok(())
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), Error> {
        self.states.write(state, bytes);
        Ok(())
    }

    fn files(&self) -> Vec<FileWatch> {
        let mut files: Vec<FileWatch> = Vec::new();
        for file in self.weights.files().chain(self.packed.file()) {
            if !files.iter().any(|other| other.is_same(&file)) {
                files.push(file);
            }
        }
        files
    }

    fn metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        vec![self.metrics.clone()]
    }
}

/// The biases of a linear step; `None` for other steps.
fn bias_of(op: &Op, weights: &Weights) -> Option<Vec<f32>> {
    let Op::Linear { parts, .. } = op else { return None };
    weights.stacked_bias(parts)
}

/// Rows of a table by id, times a factor.
fn embed(
    team: &Team,
    tier: Tier,
    weights: &Weights,
    (table, scale): (WeightId, f32),
    ids: &[u32],
    out: RowsMut<'_>,
) {
    let WeightData::Matrix { ty, data, .. } = weights.get(table) else {
        panic!("weight {} is no table", table.idx())
    };
    kernels::embed(team, tier, *ty, data, ids, scale, out).expect("rows are whole blocks");
}

/// Makes the output hold the first input, where it does not already.
fn copy_unless_in_place(arena: &mut Arena, team: &Team, step: &Step, n_rows: usize) {
    let input: &Place = &step.inputs[0];
    if *input != step.output {
        let (out, [x]) = arena.borrow((&step.output, n_rows), [(input, n_rows)]);
        kernels::copy_rows(team, x, out);
    }
}

/// The output, holding the first input, to be worked on in place.
fn in_place<'a>(arena: &'a mut Arena, team: &Team, step: &Step, n_rows: usize) -> RowsMut<'a> {
    copy_unless_in_place(arena, team, step, n_rows);
    arena.rows_mut(&step.output, n_rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::DeviceKind;
    use realizar_formats::Bytes;
    use realizar_model::graph::GraphBuilder;
    use realizar_model::graph::plan::{RowLimits, plan};
    use realizar_model::graph::weights::{Linear, Weight};
    use realizar_quant::BlockType;

    /// A batch of one prompt, without a cache.
    fn batch(n_rows: usize, outputs: &[u32]) -> Batch {
        let ids = vec![0; n_rows];
        Batch { tokens: ids.clone(), positions: ids, outputs: outputs.into(), ..Batch::default() }
    }

    fn load(b: GraphBuilder, output: realizar_model::graph::ValueId) -> CpuExecutable {
        let limits = RowLimits { tokens: 4, outputs: 2 };
        load_plan(plan(&b.finish(output), limits), Weights::default(), Arithmetic::F32)
    }

    fn load_plan(plan: Plan, weights: Weights, arithmetic: Arithmetic) -> CpuExecutable {
        load_plan_on(Tier::detect(), plan, weights, arithmetic)
    }

    fn load_plan_on(
        tier: Tier,
        plan: Plan,
        weights: Weights,
        arithmetic: Arithmetic,
    ) -> CpuExecutable {
        let options = ExecutableOptions {
            arithmetic,
            kv: Vec::new(),
            n_states: 0,
            max_seq_len: 4,
            profile: false,
            logits: false,
            packed_files: None,
        };
        let metrics = Arc::new(DispatchMetrics::new("cpu".to_owned(), DeviceKind::Cpu));
        CpuExecutable::new(Team::new(2), tier, plan, weights, &options, metrics).unwrap()
    }

    #[test]
    fn rows_come_from_outside_and_leave_as_hidden_states() {
        let mut b = GraphBuilder::new();
        let x = b.input(3);
        let y = b.scale(x, 2.0);
        let sum = b.add(y, x);
        let mut executable = load(b, sum);
        for rows in [&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..], &[-1.0, 0.5, 0.0]] {
            let expected: Vec<f32> = rows.iter().map(|x| 3.0 * x).collect();
            assert_eq!(executable.run(&batch(rows.len() / 3, &[]), rows).unwrap(), expected);
        }
    }

    #[test]
    fn output_rows_and_first_rows_of_prompts_are_multiplied_in_two_planes() {
        const COLS: usize = 64;
        const OUT: usize = 24;
        /// The position of each row.
        const POSITIONS: [u32; 4] = [2, 3, 4, 5];
        // Q8_0 with scales of 1, so that weights are small integers.
        let quant = |r: usize, c: usize| ((r * 31 + c * 17) % 255) as i64 - 127;
        let mut bytes = Vec::new();
        for r in 0..OUT {
            for block in 0..COLS / 32 {
                bytes.extend([0x00, 0x3c]); // 1 in half precision
                bytes.extend((0..32).map(|c| quant(r, 32 * block + c) as u8));
            }
        }
        let x: Vec<f32> = (0..4 * COLS).map(|i| ((i * 7919) % 1009) as f32 / 577.0 - 0.9).collect();
        for early in [false, true] {
            let mut b = GraphBuilder::new();
            let input = b.input(COLS);
            let matrix = Weight { id: WeightId(0), rows: OUT, cols: COLS };
            let linear = Linear { weight: matrix, bias: None, order: None, factor: 1.0 };
            let output = if early {
                let selected = b.select_rows(input);
                b.linear(selected, &linear)
            } else {
                let all = b.linear(input, &linear);
                b.select_rows(all)
            };
            let data = Bytes::from(bytes.clone());
            let ty = BlockType::Q8_0;
            let weights = Weights(vec![WeightData::Matrix { ty, rows: OUT, cols: COLS, data }]);
            let limits = RowLimits { tokens: 4, outputs: 4 };
            let plan = plan(&b.finish(output), limits);
            // With tiles, prefill rows are BF16.
            let tier = Tier::detect().vectors();
            let mut executable = load_plan_on(tier, plan, weights, Arithmetic::Auto);
            // A decode row, then three of a prompt.
            let positions = POSITIONS.to_vec();
            let whole = Batch { n_decode: 1, positions, ..batch(4, &[0, 1, 3]) };
            let out = executable.run(&whole, &x).unwrap().to_vec();
            for (found, row) in out.chunks(OUT).zip([0_usize, 1, 3]) {
                let x = &x[row * COLS..][..COLS];
                let amax = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                let mut worst = 0.0_f64;
                for (r, &found) in found.iter().enumerate() {
                    let products =
                        x.iter().enumerate().map(|(c, &x)| f64::from(x) * quant(r, c) as f64);
                    let error = (f64::from(found) - products.sum::<f64>()).abs();
                    let weight: i64 = (0..COLS).map(|c| quant(r, c).abs()).sum();
                    worst = worst.max(error / (weight as f64 * f64::from(amax)));
                }
                // Half a step of a 127th, and of its 127th; sums in F32 are exact to less.
                let fine = row == 1 || early && row == 3;
                assert!(worst < if fine { 1.0 / 254.0 / 254.0 } else { 1.0 / 254.0 });
                assert_eq!(worst > 1.0 / 254.0 / 254.0, !fine, "row {row}, {early}: {worst}");
            }
            // Alone it has the same bits.
            for (row, n_decode) in [(0, 1), (1, 0), (3, 0)] {
                let positions = vec![POSITIONS[row]];
                let alone = Batch { n_decode, positions, ..batch(1, &[0]) };
                let found = executable.run(&alone, &x[row * COLS..][..COLS]).unwrap();
                let place = if row == 3 { 2 } else { row };
                assert_eq!(found, &out[place * OUT..][..OUT], "row {row}");
            }
        }
    }

    #[test]
    fn values_stand_side_by_side() {
        let mut b = GraphBuilder::new();
        let x = b.input(3);
        let (first, last) = (b.columns(x, 0, 1), b.columns(x, 1, 2));
        let doubled = b.scale(last, 2.0);
        let all = b.concat(&[doubled, first, x]);
        let mut executable = load(b, all);
        let found = executable.run(&batch(2, &[]), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let wanted = [[4.0, 6.0, 1.0, 1.0, 2.0, 3.0], [10.0, 12.0, 4.0, 4.0, 5.0, 6.0]];
        assert_eq!(found, wanted.as_flattened());
    }

    #[test]
    fn the_selected_rows_of_an_input_are_the_output() {
        let mut b = GraphBuilder::new();
        let x = b.input(2);
        let selected = b.select_rows(x);
        let mut executable = load(b, selected);
        let rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(executable.run(&batch(3, &[0, 2]), &rows).unwrap(), [1.0, 2.0, 5.0, 6.0]);
        assert!(executable.run(&batch(3, &[]), &rows).unwrap().is_empty());
    }
}
