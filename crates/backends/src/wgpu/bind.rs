//! Binding: one arm per operation, each making the kernels that run it on the
//! device's buffers.

use super::experts::{self, PairTiles};
use super::recurrent::States;
use super::upload::DeviceWeights;
use super::words::{Places, RowCounts, Rows, SEQS, Words, rows_at};
use crate::Arithmetic;
use crate::gpu::weights::{VectorKey, WeightLayout, matrix};
use realizar_kernels_wgpu as kernels;
use realizar_kernels_wgpu::{
    AttentionScratch, Buffer, Elementwise, Error, ExpertPairs, Gpu, Kernel, KvLayer, KvSpec,
    Linear, MatmulOptions, Matrix, QuantizedRows, RowsAt, Tables, View,
};
use realizar_model::graph::plan::{Place, Plan, Step, parts};
use realizar_model::graph::weights::{WeightId, Weights};
use realizar_model::graph::{Attention, Norm, Op, Prologue, Reach, RowDomain};
use realizar_quant::BlockType;
use std::collections::HashSet;

/// Prefill rows up to which their product takes the smaller tiles.
const FEW_ROWS: u32 = 16;

/// How often a kernel runs in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    /// Once for each row, or each sequence, of a range.
    Rows(RowsAt),
    /// Once for each row of a range, if they are few.
    FewRows(RowsAt),
    /// Once for each row of a range, if they are more.
    ManyRows(RowsAt),
    /// Once for each tile of prompt rows.
    Tiles,
    /// Once for each tile of pairs of rows and experts.
    PairTiles(PairTiles),
    /// Once if there are such tiles.
    SortPairs(PairTiles),
}

impl Count {
    /// How often the kernel runs for a batch of which `counts` are the rows.
    fn of(self, counts: &RowCounts, words: &Words) -> u32 {
        match self {
            Self::Rows(at) => counts.n(at),
            Self::FewRows(at) => Some(counts.n(at)).filter(|&n| n <= FEW_ROWS).unwrap_or(0),
            Self::ManyRows(at) => Some(counts.n(at)).filter(|&n| n > FEW_ROWS).unwrap_or(0),
            Self::Tiles => words.n_tiles(),
            Self::PairTiles(tiles) => tiles.n(counts.n(tiles.rows())),
            Self::SortPairs(tiles) => tiles.n(counts.n(tiles.rows())).min(1),
        }
    }
}

/// What a step runs.
#[derive(Debug)]
pub(super) enum Run {
    /// A kernel.
    One(Kernel, Count),
    /// The attention of decode rows, wave by wave.
    Waves {
        /// The key-value group.
        group: usize,
        /// The splits of a wave.
        partial: Kernel,
        /// Its rows.
        combine: Kernel,
        /// Goes on to the next.
        next: Kernel,
    },
}

impl Run {
    /// Calls `run` with each kernel and how often it runs, in order, for the batch of
    /// `words`, of which `counts` are the rows.
    pub(super) fn each(
        &self,
        counts: &RowCounts,
        words: &Words,
        mut run: impl FnMut(&Kernel, u32),
    ) {
        match self {
            Self::One(kernel, count) => run(kernel, count.of(counts, words)),
            Self::Waves { group, partial, combine, next } => {
                let waves = words.waves(*group);
                for wave in waves {
                    run(partial, wave.n_items);
                    run(combine, wave.n_rows);
                    // After the last comes the first, for the next layer.
                    run(next, u32::from(waves.len() > 1));
                }
            }
        }
    }
}

/// The key-value memory of one group.
#[derive(Debug)]
pub(super) struct KvGroup {
    pub(super) spec: KvSpec,
    pub(super) layers: Vec<KvLayer>,
}

/// What kernels are bound to.
pub(super) struct Binder<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) arithmetic: Arithmetic,
    pub(super) weights: &'a DeviceWeights,
    pub(super) values: &'a Buffer,
    pub(super) batch: &'a Buffer,
    pub(super) places: &'a Places,
    pub(super) kv: &'a [KvGroup],
    pub(super) scratch: &'a AttentionScratch,
    /// Of each group, the kernel that continues to the next wave.
    pub(super) next_waves: &'a [Kernel],
    pub(super) states: &'a States,
    /// Activations as 8-bit integers; none when no step wants them.
    pub(super) quantized: Option<&'a QuantizedRows>,
    /// Prefill rows by expert; none when no step has experts.
    pub(super) pairs: Option<&'a ExpertPairs>,
}

pub(super) fn view(place: &Place) -> View {
    View { start: place.start as u32, stride: place.stride as u32, width: place.width as u32 }
}

/// `width` columns of a view, from column `first` on.
pub(super) fn columns(view: View, first: usize, width: usize) -> View {
    View { start: view.start + first as u32, stride: view.stride, width: width as u32 }
}

/// The number of kernels that [`Binder::bind`] makes of all steps of a plan, and of those that
/// continue to the next wave in a key-value group.
pub(super) fn n_kernels(
    gpu: &Gpu,
    plan: &Plan,
    (weights, layout): (&Weights, &WeightLayout),
    arithmetic: Arithmetic,
) -> usize {
    // What has no kernels is refused when it is loaded.
    let of_matrix = |ty, rows: usize, cols: usize| {
        Matrix::n_kernels(gpu, ty, rows as u32, cols as u32).unwrap_or(0) as usize
    };
    let of_step = |(idx, step): (usize, &Step)| match &step.op {
        Op::Embed { table, .. } | Op::PosEmbed { table } => {
            let (ty, rows, cols, _) = matrix(weights, *table);
            of_matrix(ty, rows, cols)
        }
        // For decode rows, and for few and many prefill rows.
        Op::Linear { .. } => {
            let products = layout.linear(idx, weights);
            let bound = products.map(|(ty, rows, cols)| 3 * of_matrix(ty, rows, cols));
            let quantizes = layout.linear(idx, weights).any(|(ty, ..)| is_int8(arithmetic, ty));
            bound.sum::<usize>() + usize::from(quantizes)
        }
        Op::ExpertLinear(linear) => {
            let quantizes =
                arithmetic != Arithmetic::F32 && experts::takes_quantized(weights, linear);
            experts::n_kernels(gpu, weights, (plan, idx), linear) + usize::from(quantizes)
        }
        Op::Attention(_) => 3 + usize::from(step.inputs.len() > 1),
        Op::Concat => step.inputs.len(),
        _ => 1,
    };
    let group = |step: &Step| match &step.op {
        Op::Attention(attention) => Some(attention.kv.group),
        _ => None,
    };
    let groups: HashSet<usize> = plan.steps.iter().filter_map(group).collect();
    plan.steps.iter().enumerate().map(of_step).sum::<usize>() + groups.len()
}

/// Whether decode rows are quantized for products with matrices of a type.
pub(super) fn is_int8(arithmetic: Arithmetic, ty: BlockType) -> bool {
    arithmetic != Arithmetic::F32 && kernels::takes_quantized(ty)
}

impl Binder<'_> {
    pub(super) fn rows(&self, at: RowsAt) -> kernels::Rows<'_> {
        kernels::Rows { values: self.values, batch: self.batch, at }
    }

    pub(super) fn weight(&self, id: Option<WeightId>) -> Option<u32> {
        id.and_then(|id| self.weights.places.place(&VectorKey::Weight(id)))
    }

    /// The kernels of step `idx` of the plan, in order.
    ///
    /// # Errors
    /// If the device refuses a kernel or memory runs out.
    pub(super) fn bind(&self, plan: &Plan, idx: usize) -> Result<Vec<Run>, Error> {
        let step = &plan.steps[idx];
        let out = view(&step.output);
        let at = rows_at(step.output.rows, Rows::All);
        let rows = self.rows(at);
        let x = step.inputs.first().map_or(out, view);
        let one = |kernel| vec![Run::One(kernel, Count::Rows(at))];
        let all = |kernels: Vec<Kernel>| {
            kernels.into_iter().map(|kernel| Run::One(kernel, Count::Rows(at))).collect()
        };
        let elementwise = |op, x, y| kernels::elementwise(self.gpu, rows, op, x, y, out).map(one);
        match &step.op {
            Op::Input => unreachable!("a plan has no step for its input"),
            Op::Embed { table, scale } => {
                let (table, ids_at) = (self.weights.table(*table), self.places.tokens_at);
                kernels::embed(self.gpu, rows, table, ids_at, *scale, out).map(all)
            }
            Op::PosEmbed { table } => {
                let (table, ids_at) = (self.weights.table(*table), self.places.positions_at);
                kernels::embed(self.gpu, rows, table, ids_at, 1.0, out).map(all)
            }
            Op::RopeTable(angles) => {
                let start = self.weights.places.place(&VectorKey::Frequencies(idx));
                let angles = kernels::RopeAngles {
                    n_pairs: angles.inv_freq.len() as u32,
                    inv_freq: start.expect("frequencies were uploaded"),
                    mscale: angles.mscale,
                    positions_at: self.places.angles_at,
                    component_stride: match angles.components.is_empty() {
                        true => 0,
                        false => self.places.max_rows as u32,
                    },
                };
                kernels::rope_table(self.gpu, rows, &self.weights.vectors, &angles, out).map(one)
            }
            Op::Norm(norm) => {
                let norm = self.norm(norm);
                kernels::norm(self.gpu, rows, &norm, &self.weights.vectors, x, out).map(one)
            }
            Op::Linear { .. } => self.linear(plan, idx),
            Op::Rope { head_dim, style } => {
                let (table, head_dim) = (view(&step.inputs[1]), *head_dim as u32);
                let style = *style;
                kernels::rope(self.gpu, rows, x, table, out, head_dim, style).map(one)
            }
            Op::Attention(attention) => self.attention(step, attention),
            Op::StoreKv(at) => {
                let KvGroup { spec, layers } = &self.kv[at.group];
                let (layer, slots_at) = (&layers[at.layer], self.places.groups[at.group].slots_at);
                let v = view(&step.inputs[1]);
                kernels::kv_store(self.gpu, rows, spec, layer, x, v, slots_at).map(one)
            }
            Op::Act(act) => elementwise(Elementwise::Act(*act), x, x),
            Op::GatedAct(act) => {
                let up = view(&step.inputs[1]);
                elementwise(Elementwise::Gated(*act), x, up)
            }
            Op::Add => elementwise(Elementwise::Add, x, view(&step.inputs[1])),
            Op::Mul => elementwise(Elementwise::Mul, x, view(&step.inputs[1])),
            Op::ShortConv(conv) => self.short_conv(at, (idx, step), conv).map(one),
            Op::DeltaNet(net) => {
                let kernel = self.delta_net(SEQS, (idx, step), net)?;
                Ok(vec![Run::One(kernel, Count::Rows(SEQS))])
            }
            Op::Route(route) => self.route(route, step).map(one),
            Op::ExpertLinear(linear) => self.experts(linear, (plan, idx)),
            Op::ExpertBias(bias) => {
                let biases = self.weight(Some(bias.biases)).expect("the biases were uploaded");
                let (vectors, routes) = (&self.weights.vectors, view(&step.inputs[1]));
                kernels::expert_bias(self.gpu, rows, vectors, biases, x, routes, out).map(one)
            }
            Op::Combine => self.combine(step).map(one),
            Op::AllReduce { .. } | Op::AllGather => unreachable!("a device alone has no ranks"),
            Op::Scale(factor) => elementwise(Elementwise::Scale(*factor), x, x),
            Op::Softcap(cap) => elementwise(Elementwise::Softcap(*cap), x, x),
            Op::Clamp { min, max } => {
                elementwise(Elementwise::Clamp { min: *min, max: *max }, x, x)
            }
            Op::Reorder { order } => {
                let order = self.weight(Some(*order)).expect("the order was uploaded");
                let vectors = &self.weights.vectors;
                kernels::reorder(self.gpu, rows, vectors, order, x, out).map(one)
            }
            Op::Concat => {
                let copies = parts(step).map(|(input, part)| {
                    let (input, part) = (view(&input), view(&part));
                    kernels::elementwise(
                        self.gpu,
                        rows,
                        Elementwise::Scale(1.0),
                        input,
                        input,
                        part,
                    )
                });
                copies.collect::<Result<_, _>>().map(all)
            }
            Op::SelectRows => {
                kernels::select_rows(self.gpu, rows, x, out, self.places.outputs_at).map(one)
            }
        }
    }

    fn norm(&self, norm: &Norm) -> kernels::Norm {
        kernels::Norm {
            kind: norm.kind,
            group: norm.group as u32,
            eps: norm.eps,
            weight: self.weight(norm.weight),
            bias: self.weight(norm.bias),
            per_run: norm.per_run,
        }
    }

    /// Decode rows by matrix-vector kernels, prefill rows by tiles, whatever
    /// their numbers.
    fn linear(&self, plan: &Plan, idx: usize) -> Result<Vec<Run>, Error> {
        let step = &plan.steps[idx];
        let Op::Linear { prologue: Prologue::None, residual, .. } = &step.op else {
            unreachable!("the backend asks for no prologues")
        };
        let domain = step.output.rows;
        let generated = rows_at(domain, Rows::Generated);
        let prompt = rows_at(domain, Rows::Prompt);
        let (x, out) = (view(&step.inputs[0]), view(&step.output));
        let residual = residual.then(|| view(&step.inputs[1]));
        let int8 = |matrix: &Matrix| is_int8(self.arithmetic, matrix.ty());

        let mut runs = Vec::new();
        let push = |runs: &mut Vec<Run>, kernels: Vec<Kernel>, count| {
            runs.extend(kernels.into_iter().map(|kernel| Run::One(kernel, count)));
        };
        if let Some(to) = self.quantized
            && self.weights.linear(idx).any(|(matrix, _)| int8(matrix))
        {
            let kernel = kernels::quantize(self.gpu, self.rows(generated), x, to)?;
            push(&mut runs, vec![kernel], Count::Rows(generated));
        }
        let mut first = 0;
        for (matrix, bias) in self.weights.linear(idx) {
            let width = matrix.n_rows() as usize;
            let linear = Linear {
                matrix,
                vectors: &self.weights.vectors,
                bias,
                x,
                residual: residual.map(|r| columns(r, first, width)),
                out: columns(out, first, width),
            };
            first += width;
            let bound = match self.quantized {
                Some(x) if int8(matrix) => {
                    kernels::matvec_int8(self.gpu, self.rows(generated), &linear, x)?
                }
                _ => kernels::matvec(self.gpu, self.rows(generated), &linear)?,
            };
            push(&mut runs, bound, Count::Rows(generated));
            // Half precision only where it rounds nothing: prompts are exact.
            let half_tiles = matrix.ty() == BlockType::F16;
            for (few_rows, count) in
                [(true, Count::FewRows(prompt)), (false, Count::ManyRows(prompt))]
            {
                let options = MatmulOptions { few_rows, half_tiles };
                let bound = kernels::matmul(self.gpu, self.rows(prompt), &linear, options)?;
                push(&mut runs, bound, count);
            }
        }
        Ok(runs)
    }

    /// Stores keys and values of all rows, then attends: decode rows by splits
    /// of their context, prompts by tiles.
    fn attention(&self, step: &Step, attention: &Attention) -> Result<Vec<Run>, Error> {
        let group = attention.kv.group;
        let KvGroup { spec, layers } = &self.kv[group];
        let (places, layer) = (&self.places.groups[group], &layers[attention.kv.layer]);
        let q = view(&step.inputs[0]);
        let all = rows_at(RowDomain::Tokens, Rows::All);
        let generated = rows_at(RowDomain::Tokens, Rows::Generated);
        let mut runs = Vec::with_capacity(3);
        if let [_, k, v] = &step.inputs[..] {
            let (k, v) = (view(k), view(v));
            let store =
                kernels::kv_store(self.gpu, self.rows(all), spec, layer, k, v, places.slots_at)?;
            runs.push(Run::One(store, Count::Rows(all)));
        }
        let args = kernels::Attention {
            rows: self.rows(generated),
            spec: kernels::AttentionSpec {
                n_heads: attention.n_heads as u32,
                n_kv_heads: attention.n_kv_heads as u32,
                head_dim: attention.head_dim as u32,
                scale: attention.scale,
                softcap: attention.softcap,
                window: attention.window.map(|w| w as u32),
                chunked: attention.chunked,
                sinks: self.weight(attention.sinks),
            },
            kv: *spec,
            layer,
            vectors: &self.weights.vectors,
            q,
            out: view(&step.output),
            tables: Tables {
                positions_at: self.places.positions_at,
                seq_of_row_at: self.places.seq_of_row_at,
                bases_at: places.bases_at,
                reaches_at: match attention.reach {
                    Reach::Causal => None,
                    Reach::OfRow => self.places.reaches_at,
                },
            },
        };
        let [partial, combine] =
            kernels::attention_decode(self.gpu, &args, self.scratch, places.splits)?;
        let prefill = kernels::attention_prefill(self.gpu, &args, self.places.tiles_at)?;
        runs.push(Run::Waves { group, partial, combine, next: self.next_waves[group].clone() });
        runs.push(Run::One(prefill, Count::Tiles));
        Ok(runs)
    }
}
