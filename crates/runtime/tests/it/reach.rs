//! Attention whose rows see further than themselves: against the definition in f64, on every device.

use crate::common::gpus::gpus;
use realizar_kvcache::{KvLayout, PAGE_LEN};
use realizar_quant::BlockType;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{
    Arithmetic, Backend, Batch, BatchSeq, Executable, ExecutableOptions, SeqTable,
};
use realizar_runtime::graph::{AttentionSpec, GraphBuilder, Reach};
use realizar_runtime::plan::{RowLimits, plan};
use realizar_runtime::weights::Weights;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

const N_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const Q_DIM: usize = N_HEADS * HEAD_DIM;
const KV_DIM: usize = N_KV_HEADS * HEAD_DIM;
const DIM: usize = Q_DIM + 2 * KV_DIM;
const SCALE: f32 = 0.7;
const MAX_LEN: usize = 128;
const N_SEQS: usize = 2;

/// Query, key and value of a position, side by side. // [DIM]
fn row(seq: usize, pos: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + pos * 104_729 + seq * 31) % 401) as f32 / 200.0 - 1.0;
    (0..DIM).map(number).collect()
}

/// One attention on rows from outside, whose result is the output.
fn load(device: &dyn Backend, reach: Reach, window: Option<usize>) -> Box<dyn Executable> {
    let mut b = GraphBuilder::new();
    let x = b.input(DIM);
    let [q, k, v] = [(0, Q_DIM), (Q_DIM, KV_DIM), (Q_DIM + KV_DIM, KV_DIM)]
        .map(|(first, width)| b.columns(x, first, width));
    let spec = AttentionSpec {
        n_heads: N_HEADS,
        n_kv_heads: N_KV_HEADS,
        head_dim: HEAD_DIM,
        scale: SCALE,
        softcap: None,
        window,
        chunked: false,
        reach,
        sinks: None,
        alibi: None,
    };
    let a = b.attention(q, k, v, &spec);
    let graph = b.finish(a);
    assert_eq!(graph.to_string().contains("as each row reaches"), reach == Reach::OfRow);
    let layout = KvLayout::new(BlockType::F32, graph.kv_groups[0].clone()).unwrap();
    let limits = RowLimits { tokens: 2 * MAX_LEN, outputs: 1 };
    let options = ExecutableOptions {
        arithmetic: Arithmetic::F32,
        kv: vec![(layout, N_SEQS * MAX_LEN / PAGE_LEN)],
        n_states: 0,
        max_seq_len: MAX_LEN,
        profile: false,
        logits: false,
        packed_files: None,
    };
    device.load(plan(&graph, limits), Weights::default(), &options).unwrap()
}

/// What the prefill rows give: of each part a sequence and positions, of which those in `segment`
/// see each other.
fn run(
    executable: &mut dyn Executable,
    parts: &[(usize, Range<usize>)],
    segment: &Range<usize>,
) -> Vec<f32> {
    let mut batch = Batch::with_capacity(2 * MAX_LEN, 1);
    let mut input = Vec::new();
    let n_pages = MAX_LEN / PAGE_LEN;
    for (seq, positions) in parts {
        let first_row = batch.tokens.len();
        let (first_pos, n_rows) = (positions.start, positions.len());
        batch.seqs.push(BatchSeq { first_row, n_rows, first_pos });
        let group = &mut batch.groups[0];
        let start = group.pages.len();
        group.pages.extend((0..n_pages).map(|page| (seq * n_pages + page) as u32));
        group.tables.push(SeqTable { start, len: n_pages, first_page: 0 });
        for pos in positions.clone() {
            group.slots.push(((seq * n_pages + pos / PAGE_LEN) as u32, (pos % PAGE_LEN) as u32));
            batch.tokens.push(0);
            batch.positions.push(pos as u32);
            let reach = if segment.contains(&pos) { segment.end } else { pos + 1 };
            batch.reaches.push(reach as u32);
            input.extend(row(*seq, pos));
        }
    }
    executable.run(&batch, &input).unwrap().to_vec()
}

/// The definition. // [Q_DIM]
fn expected(seq: usize, pos: usize, seen: Range<usize>) -> Vec<f64> {
    let wide = |pos| row(seq, pos).into_iter().map(f64::from).collect::<Vec<f64>>();
    let (q, seen) = (wide(pos), seen.map(wide).collect::<Vec<_>>());
    let head = |h: usize| {
        let col = h / (N_HEADS / N_KV_HEADS) * HEAD_DIM;
        let weight = |x: &Vec<f64>| {
            let pairs = q[h * HEAD_DIM..][..HEAD_DIM].iter().zip(&x[Q_DIM + col..]);
            (f64::from(SCALE) * pairs.map(|(q, k)| q * k).sum::<f64>()).exp()
        };
        let weights: Vec<f64> = seen.iter().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let value = |i: usize| {
            let values = seen.iter().map(|x| x[Q_DIM + KV_DIM + col + i]);
            values.zip(&weights).map(|(v, w)| v * w).sum::<f64>() / sum
        };
        (0..HEAD_DIM).map(value).collect::<Vec<_>>()
    };
    (0..N_HEADS).flat_map(head).collect()
}

fn devices() -> impl Iterator<Item = Box<dyn Backend>> {
    let cpu: Box<dyn Backend> = Box::new(CpuBackend::new(Some(2), None).unwrap());
    std::iter::once(cpu).chain(gpus())
}

#[test]
fn rows_see_as_far_as_they_reach() {
    // A text of its own, as encoders have it, and a segment within a text, as images are.
    for device in devices() {
        for (segment, window) in [(0..100, None), (30..70, None), (30..70, Some(20))] {
            let case = format!("{segment:?}, window {window:?} on {}", device.name());
            let mut executable = load(&*device, Reach::OfRow, window);
            let whole = run(&mut *executable, &[(0, 0..100)], &segment);
            for (pos, row) in whole.chunks_exact(Q_DIM).enumerate() {
                let first = window.map_or(0, |window: usize| (pos + 1).saturating_sub(window));
                let end = if segment.contains(&pos) { segment.end } else { pos + 1 };
                for (found, wanted) in row.iter().zip(expected(0, pos, first..end)) {
                    let apart = (f64::from(*found) - wanted).abs();
                    assert!(apart < 5e-6, "{case}, position {pos}: {found} for {wanted}");
                }
            }
            // In steps of which one has the segment as a whole, beside another sequence.
            let mut in_steps: Vec<f32> = Vec::new();
            for positions in [0..segment.start, segment.clone(), segment.end..100] {
                if !positions.is_empty() {
                    let n = positions.len() * Q_DIM;
                    let parts = [(0, positions), (1, 0..segment.end)];
                    in_steps.extend(&run(&mut *executable, &parts, &segment)[..n]);
                }
            }
            assert!(in_steps == whole, "{case} in steps");
        }
    }
}

#[test]
fn a_layer_that_is_causal_does_not_ask_for_reaches() {
    for device in devices() {
        let [mut causal, mut reaching] =
            [Reach::Causal, Reach::OfRow].map(|reach| load(&*device, reach, None));
        let parts = [(0, 0..90), (1, 0..3)];
        let wanted = run(&mut *reaching, &parts, &(0..0));
        assert!(run(&mut *causal, &parts, &(20..60)) == wanted, "{}", device.name());
        assert!(run(&mut *reaching, &parts, &(20..60)) != wanted, "{}", device.name());
    }
}

#[test]
fn a_chunk_holds_the_whole_of_a_segment() {
    for device in devices() {
        let mut executable = load(&*device, Reach::OfRow, None);
        let mut step = || run(&mut *executable, &[(0, 0..50)], &(30..70));
        let message = catch_unwind(AssertUnwindSafe(&mut step)).unwrap_err();
        let message = message.downcast::<String>().unwrap();
        assert!(message.contains("in a chunk to 50"), "{message}");
    }
}
