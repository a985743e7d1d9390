//! Cases of paged attention, whose launches rotate over several sets of pages, and of the store of prefill rows' keys
//! and values.

use super::between::Room;
use super::case::{Case, Form, Op, Phase};
use super::device::{Bench, PAGE_LEN, Target};
use super::products::{first, rows};
use super::random::Random;
use super::report::Report;
use crate::{
    Attention, AttentionArithmetic, AttentionScratch, BenchError, Buffer, DecodeAttention,
    HeadNorm, KvPages, List, NewHeads, PrefillAttention, PrefillResults, ProductRows, RopeStore,
    RopeStyle, Rows, TILE_ROWS, Tables, attention_decode, attention_prefill, rope_store,
    rounds_results,
};

/// Measures cases of attention, or of the kernel that stores keys and values.
pub(super) fn run<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
    cases: &[&Case],
) -> Result<(), BenchError> {
    report.each(cases, bench.launch_mode(), |report, case| {
        let step = Step::new(bench, case)?;
        match (case.op, case.phase) {
            (Op::RopeStore, _) => step.rope_store(report),
            (_, Phase::Decode) => step.decode(report),
            (_, Phase::Prefill) => step.prefill(report),
        }
    })
}

/// The lists and pages of a step, for each turn.
struct Step<'a, D: Target> {
    bench: &'a Bench<D>,
    case: &'a Case,
    n_seqs: usize,
    n_turns: usize,
    kv_len: usize,
    pages: KvPages<D>,
    q: Buffer<D>,
    k: Buffer<D>,
    v: Buffer<D>,
    angles: Buffer<D>,
    head_weight: Buffer<D>,
    out: Buffer<D>,
    positions: Buffer<D>,
    seq_of_row: Buffer<D>,
    /// Page tables of each turn: one list for all sequences, and one for all rows.
    bases: Buffer<D>,
    slots: Buffer<D>,
    /// Page numbers in random order, as in a pool that has been in use.
    words: Buffer<D>,
}

impl<'a, D: Target> Step<'a, D> {
    fn new(bench: &'a Bench<D>, case: &'a Case) -> Result<Self, BenchError> {
        let b = case.batch;
        let kv_len = case.positions.unwrap_or(b);
        let n_seqs = if case.phase == Phase::Decode { b } else { 1 };
        let (q_cols, kv_cols) = (case.shape.q_cols(), case.shape.kv_cols());
        // Keys and values in F16.
        let n_turns = bench.n_copies(n_seqs * kv_len * kv_cols * 4);
        let of_seq = kv_len.div_ceil(PAGE_LEN);
        let n_pages = n_turns * n_seqs * of_seq;
        let mut words: Vec<u32> = (0..n_pages as u32).collect();
        Random(17).shuffle(&mut words);
        // Decode rows are the last positions of their sequences; prefill rows are the last positions of one sequence.
        let seq = |row: usize| if case.phase == Phase::Decode { row } else { 0 };
        let position = |row: usize| match case.phase {
            Phase::Decode => kv_len - 1,
            Phase::Prefill => kv_len - b + row,
        };
        let first_page = |turn: usize, seq: usize| (turn * n_seqs + seq) * of_seq;
        let slot = |turn: usize, row: usize| {
            let page = words[first_page(turn, seq(row)) + position(row) / PAGE_LEN];
            page * PAGE_LEN as u32 + (position(row) % PAGE_LEN) as u32
        };
        let of_turns = |n: usize, f: &dyn Fn(usize, usize) -> u32| {
            let all = (0..n_turns).flat_map(|turn| (0..n).map(move |i| f(turn, i)));
            bench.numbers(&all.collect::<Vec<_>>())
        };
        let list = |f: &dyn Fn(usize) -> usize| {
            bench.numbers(&(0..b).map(|row| f(row) as u32).collect::<Vec<_>>())
        };
        let pages = KvPages::new(&bench.device, "keys and values", bench.kv_spec(case, n_pages))?;
        let pattern = bench.f16_pattern();
        for buffer in pages.buffers() {
            bench.fill(buffer, &pattern)?;
        }
        Ok(Self {
            bench,
            case,
            n_seqs,
            n_turns,
            kv_len,
            pages,
            q: bench.values(b * q_cols)?,
            k: bench.values(b * kv_cols)?,
            v: bench.values(b * kv_cols)?,
            angles: bench.values(b * case.shape.head_dim)?,
            head_weight: bench.values(case.shape.head_dim)?,
            out: bench.results(b * q_cols)?,
            positions: list(&position)?,
            seq_of_row: list(&seq)?,
            bases: of_turns(n_seqs, &|turn, seq| first_page(turn, seq) as u32)?,
            slots: of_turns(b, &|turn, row| slot(turn, row))?,
            words: bench.numbers(&words)?,
        })
    }

    fn rows<'b>(&self, buffer: &'b Buffer<D>, n_cols: usize) -> Rows<'b, D> {
        rows(buffer, self.case.batch, n_cols)
    }

    fn heads(&self, turn: usize) -> NewHeads<'_, D> {
        let (shape, b) = (&self.case.shape, self.case.batch);
        let weight = Rows::vector(&self.head_weight, shape.head_dim);
        let norm = shape.has_head_norms.then_some(HeadNorm { weight, eps: 1e-6 });
        NewHeads {
            k: self.rows(&self.k, shape.kv_cols()),
            v: self.rows(&self.v, shape.kv_cols()),
            q_norm: norm,
            k_norm: norm,
            table: self.rows(&self.angles, shape.head_dim),
            pairs: if shape.has_head_norms { RopeStyle::Neox } else { RopeStyle::Interleaved },
            slots: List::new(&self.slots, turn * b, b),
        }
    }

    fn attention(&self, turn: usize) -> Attention<'_, D> {
        let (shape, b) = (&self.case.shape, self.case.batch);
        Attention {
            q: self.rows(&self.q, shape.q_cols()),
            pages: &self.pages,
            tables: Tables {
                positions: List::new(&self.positions, 0, b),
                seq_of_row: List::new(&self.seq_of_row, 0, b),
                bases: List::new(&self.bases, turn * self.n_seqs, self.n_seqs),
                words: List::all(&self.words),
                reaches: None,
            },
            n_heads: shape.n_heads,
            scale: (shape.head_dim as f32).sqrt().recip(),
            softcap: None,
            sliding_window: None,
            chunked: false,
            sinks: None,
            out: self.rows(&self.out, shape.q_cols()),
        }
    }

    fn rope_store(&self, report: &mut Report<'_>) -> Result<(), BenchError> {
        let (bench, q_cols) = (self.bench, self.case.shape.q_cols());
        let launch = |turn: usize| {
            let (q, q_out) = (self.rows(&self.q, q_cols), self.rows(&self.out, q_cols));
            let store = RopeStore { q, q_out, heads: self.heads(turn), pages: &self.pages };
            rope_store(&bench.kernels, &bench.stream, &store)
        };
        let found = || first(bench, &self.out);
        bench.measure(report, self.case, self.n_turns, &launch, &found)
    }

    /// Decode attention that also stores the new keys and values and quantizes its results.
    fn decode(&self, report: &mut Report<'_>) -> Result<(), BenchError> {
        let (bench, case, q_cols) = (self.bench, self.case, self.case.shape.q_cols());
        let &Step { kv_len, .. } = self;
        let (n_heads, head_dim) = (case.shape.n_heads, case.shape.head_dim);
        // The runtime rounds the context up to whole splits.
        let max_kv_len = kv_len.next_multiple_of(256);
        let (device, stream) = (&bench.device, &bench.stream);
        let scratch =
            AttentionScratch::new(device, stream, case.batch, n_heads, head_dim, max_kv_len)?;
        let room = Room::new(bench, case, q_cols)?;
        let launch = |turn: usize| {
            let to = match room.rows(case.batch, q_cols) {
                Some(ProductRows::Quantized(to)) => Some(to),
                _ => None,
            };
            let decode = DecodeAttention {
                attention: self.attention(turn),
                arithmetic: AttentionArithmetic::Tensor,
                max_kv_len,
                scratch: &scratch,
                new_heads: Some(self.heads(turn)),
                to,
            };
            attention_decode(&bench.kernels, stream, &decode)
        };
        let found = || first(bench, &self.out);
        bench.measure(report, case, self.n_turns, &launch, &found)
    }

    /// Prefill attention that also rounds its results for the next product.
    fn prefill(&self, report: &mut Report<'_>) -> Result<(), BenchError> {
        let (bench, case, q_cols) = (self.bench, self.case, self.case.shape.q_cols());
        let arithmetic = AttentionArithmetic::Tensor;
        let b = case.batch;
        let tiles: Vec<u32> = (0..b)
            .step_by(TILE_ROWS)
            .flat_map(|at| [at as u32, TILE_ROWS.min(b - at) as u32])
            .collect();
        let tile_list = bench.numbers(&tiles)?;
        let room = Room::new(bench, case, q_cols)?;
        let rounds = rounds_results(self.pages.spec(), case.shape.n_heads, arithmetic);
        assert!(rounds && case.form != Form::F32, "results for a product");
        let attend = |turn: usize, is_read: bool| {
            let to = room.rows(b, q_cols);
            let prefill = PrefillAttention {
                attention: self.attention(turn),
                arithmetic,
                tiles: List::all(&tile_list),
                results: to.map(|to| PrefillResults { to, first: 0, is_read }),
            };
            attention_prefill(&bench.kernels, &bench.stream, &prefill)
        };
        let found = || {
            attend(0, true)?;
            first(bench, &self.out)
        };
        bench.measure(report, case, self.n_turns, &|turn| attend(turn, false), &found)
    }
}
