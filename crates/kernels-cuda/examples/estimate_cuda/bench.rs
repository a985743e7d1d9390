//! The launches of a step, counted on the interpreter.

use std::collections::BTreeMap;
use std::sync::Arc;

use realizar_kernels_cuda::{
    Activation, Attention, AttentionArithmetic, AttentionScratch, Buffer, DecodeAttention, Device,
    Elementwise, Error, GatedGrouped, GatedQuantized, GatedRows, GroupedRows, HalfRows, HalfType,
    Interpreter, Kernels, KvPages, KvSpec, Linear, LinearGrouped, LinearHalf, LinearQuantized,
    List, MAX_GATED_ROWS, Matrix, NewHeads, Norm, NormKind, Pairs, PrefillAttention,
    PrefillResults, ProductRows, QuantType, QuantizedRows, RopeStore, Rows, TILE_ROWS, Tables,
    WgmmaKernels, attention_decode, attention_prefill, elementwise, gated_quantized, gated_wgmma,
    group_rows, half_type, is_worth_splitting, matmul_half, matmul_wgmma, matvec_parts,
    matvec_quantized, norm, quantize, quantize_activated, quantize_norm, rope_store, round_rows,
    split_rows, takes_quantized,
};
use realizar_ptx::{Checks, Counts, Stream};
use realizar_quant::BlockType;

use crate::{PAGE_LEN, PROMPT, SAMPLES, Shape, StepOf};

/// What a kernel does in a step: launches, bytes from and to memory, operations as in [`Card::rates`].
pub(crate) type Work = BTreeMap<String, [f64; 8]>;

fn work(counts: &[Counts]) -> Work {
    let mut work = Work::new();
    for c in counts {
        let bytes = [c.read_once, c.written_once];
        let rates = [c.flops, c.dot_ops, c.tensor_flops, c.tensor_int_ops, c.instructions];
        let all = [1].into_iter().chain(bytes).chain(rates);
        let entry = work.entry(c.kernel.clone()).or_default();
        entry.iter_mut().zip(all).for_each(|(sum, n)| *sum += n as f64);
    }
    work
}

/// Adds `factor` times `more`.
fn add(to: &mut Work, more: &Work, factor: f64) {
    for (kernel, more) in more {
        let entry = to.entry(kernel.clone()).or_default();
        entry.iter_mut().zip(more).for_each(|(sum, n)| *sum += factor * n);
    }
}

/// What is at `at` of the line through what is at the two [`SAMPLES`]. Launches do not grow.
fn line(of: &[Work; 2], at: usize) -> Work {
    let [a, b] = SAMPLES.map(|n| n as f64);
    let along = (at as f64 - a) / (b - a);
    let mut out = Work::new();
    assert!(of[0].keys().eq(of[1].keys()), "other kernels for other sizes");
    add(&mut out, &of[0], 1.0 - along);
    add(&mut out, &of[1], along);
    out
}

/// Types and rows of the matrices on a device: neighbours of one type are one matrix.
fn merged(parts: &[(BlockType, usize)]) -> Vec<(BlockType, usize)> {
    let of_run = |run: &[(BlockType, usize)]| (run[0].0, run.iter().map(|part| part.1).sum());
    parts.chunk_by(|a, b| a.0 == b.0).map(of_run).collect()
}

pub(crate) struct Bench {
    device: Arc<Interpreter>,
    kernels: Kernels<Interpreter>,
    wgmma: WgmmaKernels<Interpreter>,
    stream: Stream,
}

impl Bench {
    pub(crate) fn new() -> Result<Self, Error> {
        let device = Arc::new(Interpreter::new(Checks::FAST, usize::MAX));
        let (kernels, stream) = (Kernels::load(&device)?, device.stream()?);
        let wgmma = WgmmaKernels::load(&*device)?;
        Ok(Self { device, kernels, wgmma, stream })
    }

    fn values(&self, n: usize) -> Result<Buffer<Interpreter>, Error> {
        Buffer::with(&self.device, &self.stream, "values", &vec![0.5f32; n])
    }

    fn numbers(&self, values: &[u32]) -> Result<Buffer<Interpreter>, Error> {
        Buffer::with(&self.device, &self.stream, "numbers", values)
    }

    /// What `launch` does.
    fn count(&self, launch: impl FnOnce() -> Result<(), Error>) -> Result<Work, Error> {
        self.device.synchronize(&self.stream)?;
        self.device.start_counting();
        launch()?;
        self.device.synchronize(&self.stream)?;
        Ok(work(&self.device.take_counts()))
    }

    /// Products of decode rows with matrices in one launch where their types allow it.
    fn decode_product(
        &self,
        parts: &[(BlockType, usize)],
        n_cols: usize,
        (n_tokens, quants): (usize, QuantType),
    ) -> Result<Work, Error> {
        let least = parts.iter().map(|p| p.1).min().unwrap_or(1);
        let mut of = Vec::new();
        for sample in SAMPLES {
            let matrices = parts.iter().map(|&(ty, n)| {
                Matrix::new(&self.device, "weights", ty, sample * n / least, n_cols)
            });
            let matrices = matrices.collect::<Result<Vec<_>, _>>()?;
            let n_rows = matrices.iter().map(Matrix::n_rows).sum();
            let (x, out) = (self.values(n_tokens * n_cols)?, self.values(n_tokens * n_rows)?);
            let x = Rows::new(&x, 0, n_tokens, n_cols, n_cols);
            let out = Rows::new(&out, 0, n_tokens, n_rows, n_rows);
            if parts[0].0 == BlockType::BF16 {
                let room = HalfRows::new(&self.device, 2 * n_tokens, n_cols)?;
                let halves = room.rows(HalfType::BF16, 0, 2 * n_tokens, n_cols);
                let split = is_worth_splitting(n_tokens).then_some(halves);
                if let Some(to) = split {
                    split_rows(&self.kernels, &self.stream, x, to)?;
                }
                of.push(self.count(|| {
                    matrices.iter().try_for_each(|matrix| {
                        let out = out.columns(0, matrix.n_rows());
                        let linear = Linear { matrix, x, bias: None, residual: None, out };
                        matvec_parts(&self.kernels, &self.stream, &linear, split)
                    })
                })?);
                continue;
            }
            let room = QuantizedRows::new(&self.device, quants, n_tokens, n_cols)?;
            let to = room.rows(0, n_tokens, n_cols);
            quantize(&self.kernels, &self.stream, x, to)?;
            let matrices: Vec<_> = matrices.iter().collect();
            let linear =
                LinearQuantized { matrices: &matrices, x: to, bias: None, residual: None, out };
            of.push(self.count(|| matvec_quantized(&self.kernels, &self.stream, &linear))?);
        }
        let Ok(of) = of.try_into() else { unreachable!("one for each sample") };
        Ok(line(&of, least))
    }

    /// The gated products of decode rows with the halves of a matrix, and their quantized results.
    fn gated_product(
        &self,
        ty: BlockType,
        (n_rows, n_cols): (usize, usize),
        (n_tokens, quants): (usize, QuantType),
    ) -> Result<Work, Error> {
        let mut of = Vec::new();
        for sample in SAMPLES {
            let matrix = Matrix::new(&self.device, "weights", ty, 2 * sample, n_cols)?;
            let (x, out) = (self.values(n_tokens * n_cols)?, self.values(n_tokens * sample)?);
            let x = Rows::new(&x, 0, n_tokens, n_cols, n_cols);
            let room = QuantizedRows::new(&self.device, quants, n_tokens, n_cols)?;
            let to = GatedRows::new(&self.device, &self.stream, quants, sample)?;
            let of_x = room.rows(0, n_tokens, n_cols);
            quantize(&self.kernels, &self.stream, x, of_x)?;
            let gated = GatedQuantized {
                matrix: &matrix,
                up_first: false,
                bias: None,
                x: of_x,
                act: Activation::Silu,
                out: Rows::new(&out, 0, n_tokens, sample, sample),
                to: Some(&to),
            };
            of.push(self.count(|| gated_quantized(&self.kernels, &self.stream, &gated))?);
        }
        let Ok(of) = of.try_into() else { unreachable!("one for each sample") };
        Ok(line(&of, n_rows))
    }

    /// The product of a prompt with a matrix; by groups of warps also with the two halves of one, gated.
    fn prompt_product(
        &self,
        ty: BlockType,
        (n_rows, n_cols): (usize, usize),
        (by_wgmma, gates): (bool, bool),
    ) -> Result<Work, Error> {
        let mut by_rows = Vec::new();
        for sample in SAMPLES {
            let mut by_tokens = Vec::new();
            let of_matrix = if gates { 2 * sample } else { sample };
            let matrix = Matrix::new(&self.device, "weights", ty, of_matrix, n_cols)?;
            for n_tokens in SAMPLES {
                let (x, out) = (self.values(n_tokens * n_cols)?, self.values(n_tokens * sample)?);
                let x = Rows::new(&x, 0, n_tokens, n_cols, n_cols);
                let out = Rows::new(&out, 0, n_tokens, sample, sample);
                let half = half_type(ty).expect("weights other than F32");
                if by_wgmma {
                    let (kernels, wgmma, stream) = (&self.kernels, &self.wgmma, &self.stream);
                    let room = GroupedRows::new(&self.device, n_tokens, n_cols)?;
                    let to = room.rows(half, n_tokens, n_cols);
                    group_rows(kernels, wgmma, stream, x, to)?;
                    if gates {
                        let room = GroupedRows::new(&self.device, n_tokens, sample)?;
                        let (x, to) = (to, room.rows(half, n_tokens, sample));
                        let (matrix, act) = (&matrix, Activation::Silu);
                        let gated =
                            GatedGrouped { matrix, up_first: false, bias: None, x, act, to };
                        let product = || gated_wgmma(kernels, wgmma, stream, &gated);
                        by_tokens.push(self.count(product)?);
                        continue;
                    }
                    let linear =
                        LinearGrouped { matrix: &matrix, x: to, bias: None, residual: None, out };
                    let product = || matmul_wgmma(kernels, wgmma, stream, &linear);
                    by_tokens.push(self.count(product)?);
                    continue;
                }
                let room = HalfRows::new(&self.device, n_tokens, n_cols)?;
                let to = room.rows(half, 0, n_tokens, n_cols);
                round_rows(&self.kernels, &self.stream, x, to)?;
                let linear = LinearHalf { matrix: &matrix, x: to, bias: None, residual: None, out };
                let work = self.count(|| matmul_half(&self.kernels, &self.stream, &linear))?;
                by_tokens.push(work);
            }
            let Ok(of) = by_tokens.try_into() else { unreachable!("one for each sample") };
            by_rows.push(line(&of, PROMPT));
        }
        let Ok(of) = by_rows.try_into() else { unreachable!("one for each sample") };
        Ok(line(&of, n_rows))
    }

    /// Norms, forms of activations, rope, the store and attention of a layer.
    fn between(&self, shape: &Shape, is_bf16: bool, of: StepOf) -> Result<Work, Error> {
        let (n_rows, kv_len) = (of.n_rows(), of.kv_len());
        let is_decode = matches!(of, StepOf::Tokens(..));
        let quants = if let StepOf::Tokens(_, quants) = of { quants } else { QuantType::Int8 };
        let n_seqs = if is_decode { n_rows } else { 1 };
        let &Shape { dim, hidden_dim, n_heads, n_kv_heads, head_dim, .. } = shape;
        let (kernels, stream) = (&self.kernels, &self.stream);
        let (q_cols, kv_cols) = (n_heads * head_dim, n_kv_heads * head_dim);
        let pages_of_seq = kv_len.div_ceil(PAGE_LEN);
        let n_pages = n_seqs * pages_of_seq;
        let buffer = |cols: usize| self.values(n_rows * cols);
        let (x, gate, up) = (buffer(dim)?, buffer(hidden_dim)?, buffer(hidden_dim)?);
        let (q, k, angles) = (buffer(q_cols)?, buffer(kv_cols)?, buffer(head_dim)?);
        let rows = |buffer, cols| Rows::new(buffer, 0, n_rows, cols, cols);
        let numbers = |f: &dyn Fn(usize) -> usize, n| {
            self.numbers(&(0..n).map(|i| f(i) as u32).collect::<Vec<_>>())
        };
        // The last position of each sequence, or the last ones of one.
        let position = |i| if is_decode { kv_len - 1 } else { kv_len - n_rows + i };
        let seq = |i| if is_decode { i } else { 0 };
        let slot = |i| seq(i) * pages_of_seq * PAGE_LEN + position(i);
        let positions = numbers(&position, n_rows)?;
        let (seqs, slots) = (numbers(&seq, n_rows)?, numbers(&slot, n_rows)?);
        let bases = numbers(&|i| i * pages_of_seq, n_seqs)?;
        let table = self.numbers(&(0..n_pages as u32).collect::<Vec<_>>())?;
        let tiles: Vec<u32> = (0..n_rows.div_ceil(TILE_ROWS))
            .flat_map(|i| [i * TILE_ROWS, TILE_ROWS.min(n_rows - i * TILE_ROWS)])
            .map(|n| n as u32)
            .collect();
        let tile_list = self.numbers(&tiles)?;
        let spec = KvSpec {
            ty: BlockType::F16,
            n_kv_heads,
            head_dim,
            page_len: PAGE_LEN,
            n_pages,
            values_are_keys: false,
        };
        let pages = KvPages::new(&self.device, "keys and values", spec)?;
        let widest = dim.max(hidden_dim);
        let quantized = QuantizedRows::new(&self.device, quants, n_rows, widest)?;
        let half = HalfRows::new(&self.device, 2 * n_rows, widest)?;
        let grouped = GroupedRows::new(&self.device, n_rows, widest)?;
        let max_kv_len = kv_len.next_multiple_of(256);
        let scratch =
            AttentionScratch::new(&self.device, stream, n_rows, n_heads, head_dim, max_kv_len)?;
        let weight = self.values(dim)?;
        self.count(|| {
            let halves = |n, cols| half.rows(HalfType::BF16, 0, n, cols);
            // What a norm or an activation leaves for a product, if its launch does so.
            let made = |cols| {
                let groups = || grouped.rows(HalfType::BF16, n_rows, cols);
                Some(match of {
                    StepOf::Prompt { wgmma: true } => ProductRows::Grouped(groups()),
                    StepOf::Prompt { .. } => ProductRows::Halves(halves(n_rows, cols)),
                    StepOf::Tokens(..) if is_bf16 => return None,
                    StepOf::Tokens(..) => quantized.rows(0, n_rows, cols).into(),
                })
            };
            // Decode rows meet weights of BF16 in parts, where they are not too few.
            let split = |x, cols| match is_worth_splitting(n_rows) {
                true => split_rows(kernels, stream, x, halves(2 * n_rows, cols)),
                false => Ok(()),
            };
            let (kind, weight) = (NormKind::Rms, Some(Rows::vector(&weight, dim)));
            let of_rows = Norm { kind, group: dim, eps: 1e-5, weight, bias: None };
            let is_quantized = is_decode && !is_bf16;
            for _ in 0..2 {
                let x = rows(&x, dim);
                if let Some(to) = made(dim) {
                    let out = is_decode.then_some(x);
                    quantize_norm(kernels, stream, &of_rows, x, out, to)?;
                } else {
                    norm(kernels, stream, &of_rows, x, x)?;
                    split(x, dim)?;
                }
            }
            let (q, k) = (rows(&q, q_cols), rows(&k, kv_cols));
            let heads = NewHeads {
                k,
                v: k,
                q_norm: None,
                k_norm: None,
                table: rows(&angles, head_dim),
                pairs: Pairs::Neighbours,
                slots: List::new(&slots, 0, n_rows),
            };
            if !is_decode {
                let pages = &pages;
                rope_store(kernels, stream, &RopeStore { q, q_out: q, heads, pages })?;
            }
            let [positions, seq_of_row] = [&positions, &seqs].map(|of| List::new(of, 0, n_rows));
            let (bases, words) = (List::new(&bases, 0, n_seqs), List::new(&table, 0, n_pages));
            let attention = Attention {
                q,
                pages: &pages,
                tables: Tables { positions, seq_of_row, bases, words, reaches: None },
                n_heads,
                scale: 0.1,
                softcap: None,
                window: None,
                chunked: false,
                sinks: None,
                out: q,
            };
            if is_decode {
                let decode = DecodeAttention {
                    attention,
                    arithmetic: AttentionArithmetic::Tensor,
                    max_kv_len,
                    scratch: &scratch,
                    new_heads: Some(heads),
                    to: is_quantized.then(|| quantized.rows(0, n_rows, q_cols)),
                };
                attention_decode(kernels, stream, &decode)?;
            } else {
                let tiles = List::new(&tile_list, 0, tiles.len());
                let arithmetic = AttentionArithmetic::Tensor;
                let results =
                    made(q_cols).map(|to| PrefillResults { to, first: 0, is_read: false });
                let prefill = PrefillAttention { attention, arithmetic, tiles, results };
                attention_prefill(kernels, stream, &prefill)?;
            }
            if made(q_cols).is_none() {
                split(q, q_cols)?;
            }
            let (of_gate, up) = (rows(&gate, hidden_dim), rows(&up, hidden_dim));
            // The product of few decode rows gates and quantizes, and that by groups of warps gates as well.
            let is_gated = of == (StepOf::Prompt { wgmma: true });
            if is_gated || is_quantized && n_rows <= MAX_GATED_ROWS {
                return Ok(());
            }
            let act = Activation::Silu;
            if let Some(to) = made(hidden_dim) {
                let out = is_decode.then_some(of_gate);
                return quantize_activated(kernels, stream, act, of_gate, Some(up), out, to);
            }
            elementwise(kernels, stream, &Elementwise::Gated(act, up), of_gate, of_gate)?;
            split(of_gate, hidden_dim)
        })
    }

    /// A step with logits of each decode row, or of one row.
    pub(crate) fn step(
        &self,
        shape: &Shape,
        types: [BlockType; 3],
        of: StepOf,
    ) -> Result<Work, Error> {
        let &Shape { dim, hidden_dim, n_layers, n_heads, n_kv_heads, head_dim, .. } = shape;
        let [most, special, head] = types;
        let (q_rows, kv_rows) = (n_heads * head_dim, n_kv_heads * head_dim);
        let mut step = Work::new();
        let between = self.between(shape, most == BlockType::BF16, of)?;
        add(&mut step, &between, n_layers as f64);
        // Half of the layers have values and down projections of the second type.
        for ty in [most, special] {
            let qkv = [(most, q_rows), (most, kv_rows), (ty, kv_rows)];
            let gate_up = [(most, 2 * hidden_dim)];
            let products: [(&[_], usize); 4] = [
                (&merged(&qkv), dim),
                (&[(most, dim)], q_rows),
                (&gate_up, dim),
                (&[(ty, dim)], hidden_dim),
            ];
            for (parts, n_cols) in products {
                if let StepOf::Tokens(n_tokens, quants) = of {
                    let gates = takes_quantized(most) && n_tokens <= MAX_GATED_ROWS;
                    let product = match parts == gate_up && gates {
                        true => {
                            self.gated_product(most, (hidden_dim, n_cols), (n_tokens, quants))?
                        }
                        false => self.decode_product(parts, n_cols, (n_tokens, quants))?,
                    };
                    add(&mut step, &product, n_layers as f64 / 2.0);
                    continue;
                }
                let wgmma = of == StepOf::Prompt { wgmma: true };
                let gates = wgmma && parts == gate_up;
                for &(ty, rows) in parts {
                    let rows = if gates { rows / 2 } else { rows };
                    let product = self.prompt_product(ty, (rows, n_cols), (wgmma, gates))?;
                    add(&mut step, &product, n_layers as f64 / 2.0);
                }
            }
        }
        let rows = match of {
            StepOf::Tokens(n_tokens, quants) => (n_tokens, quants),
            StepOf::Prompt { .. } => (1, QuantType::Int8),
        };
        let logits = self.decode_product(&[(head, shape.vocab_size)], dim, rows)?;
        add(&mut step, &logits, 1.0);
        Ok(step)
    }
}
