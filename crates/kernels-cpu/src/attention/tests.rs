//! Attention against the full softmax in f64, and its bits against themselves.

use realizar_quant::BlockType;

use super::{AttnLimits, AttnParams, AttnScratch, AttnSeq, attention, seen};
use crate::testing::tile_tiers;
use crate::{KvGeometry, KvSlot, PackedArithmetic, Rows, RowsMut, Team, Tier, kv_store};

/// The tiers that compute prompts in F32, which have the same bits, and those that do on
/// tiles of BF16, which have the same among each other.
fn tiers() -> [Vec<Tier>; 2] {
    let in_f32 = |tier: &Tier| tier.prompt_arithmetic() == PackedArithmetic::Int8;
    [Tier::available().filter(in_f32).collect(), tile_tiers()]
}

/// A pseudo-random value in -1..1 for each seed and index.
fn value(seed: usize, i: usize) -> f32 {
    let x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed as u64) << 32;
    let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// What the memory keeps of a row of heads.
fn round(ty: BlockType, x: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; ty.row_bytes(x.len()).expect("whole blocks")];
    realizar_quant::quantize(ty, x, &mut bytes).expect("finite values");
    let mut out = vec![0.0; x.len()];
    realizar_quant::dequantize(ty, &bytes, &mut out).expect("whole blocks");
    out
}

const TYPES: [BlockType; 6] = [
    BlockType::F32,
    BlockType::F16,
    BlockType::BF16,
    BlockType::F8,
    BlockType::Q8_0,
    BlockType::Q4_0,
];

/// Sequence, first position, rows, and whether they are generated.
type Part = (usize, usize, usize, bool);

/// The same rows as parts of prompts, and as generated tokens.
fn roles(batch: &[(usize, usize, usize)]) -> [Vec<Part>; 2] {
    [false, true].map(|role| batch.iter().map(|&(seq, first, n)| (seq, first, n, role)).collect())
}

#[derive(Clone, Copy)]
struct Case {
    params: AttnParams<'static>,
    page_len: usize,
    ty: BlockType,
    /// A position whose keys and values are infinite.
    outlier: Option<usize>,
    /// Positions that see each other in both directions.
    segment: (usize, usize),
}

const fn case(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Case {
    let params = AttnParams {
        n_heads,
        n_kv_heads,
        head_dim,
        scale: 0.6,
        softcap: None,
        window: None,
        chunked: false,
        sinks: None,
        alibi: None,
    };
    Case { params, page_len: 16, ty: BlockType::F32, outlier: None, segment: (0, 0) }
}

impl Case {
    fn kv_dim(&self) -> usize {
        self.params.n_kv_heads * self.params.head_dim
    }

    fn q_dim(&self) -> usize {
        self.params.n_heads * self.params.head_dim
    }

    /// One past the last position that `pos` sees.
    fn reach(&self, pos: usize) -> usize {
        let (start, end) = self.segment;
        if (start..end).contains(&pos) { end } else { pos + 1 }
    }

    /// Query `pos` of a sequence. // [q_dim]
    fn q(&self, seq: usize, pos: usize) -> Vec<f32> {
        let n = self.q_dim();
        (0..n).map(|i| 2.0 * value(3 * seq, pos * n + i)).collect()
    }

    /// Keys (`part` 1) or values (`part` 2) at a position. // [kv_dim]
    fn kv(&self, seq: usize, part: usize, pos: usize) -> Vec<f32> {
        let n = self.kv_dim();
        if self.outlier == Some(pos) {
            return vec![f32::INFINITY; n];
        }
        (0..n).map(|i| value(3 * seq + part, pos * n + i)).collect()
    }

    fn geometry(&self) -> KvGeometry {
        let part = self.page_len * self.ty.row_bytes(self.kv_dim()).expect("whole blocks");
        let p = &self.params;
        let page_bytes = 2 * part + 3;
        KvGeometry::new(self.ty, self.page_len, p.n_kv_heads, p.head_dim, page_bytes, 1, part + 2)
            .expect("the parts fit")
    }

    /// Runs the rows of a batch.
    fn run(&self, tier: Tier, n_threads: usize, batch: &[Part]) -> Vec<f32> {
        let (team, geo) = (Team::new(n_threads), self.geometry());
        let max_len = batch.iter().map(|&(_, first, n, _)| first + n).max().unwrap_or(0);
        let pages_per_seq = max_len.div_ceil(self.page_len);
        // All bits set is NaN in every type, and must not be seen. Pages lie backwards.
        let n_pages = pages_per_seq * batch.len() + 1;
        let mut memory = vec![0xff; n_pages * geo.page_bytes()];
        let mut pages = Vec::new();
        let mut q = Vec::new();
        for (slot, &(seq, first, n, _)) in batch.iter().enumerate() {
            let of_seq: Vec<u32> = (0..pages_per_seq)
                .map(|i| (n_pages - 1 - slot * pages_per_seq - i) as u32)
                .collect();
            let len = first + n;
            let k: Vec<f32> = (0..len).flat_map(|pos| self.kv(seq, 1, pos)).collect();
            let v: Vec<f32> = (0..len).flat_map(|pos| self.kv(seq, 2, pos)).collect();
            let slots: Vec<KvSlot> = (0..len)
                .map(|pos| KvSlot {
                    page: of_seq[pos / self.page_len],
                    idx: (pos % self.page_len) as u32,
                })
                .collect();
            let (k, v) = (Rows::new(&k, len, self.kv_dim()), Rows::new(&v, len, self.kv_dim()));
            kv_store(&team, tier, &geo, &mut memory, k, v, &slots);
            q.extend((first..len).flat_map(|pos| self.q(seq, pos)));
            pages.push(of_seq);
        }
        let mut row = 0;
        let reaches: Vec<Vec<u32>> = batch
            .iter()
            .map(|&(_, first, n, _)| (first..first + n).map(|pos| self.reach(pos) as u32).collect())
            .collect();
        let seqs: Vec<AttnSeq<'_>> = batch
            .iter()
            .zip(pages.iter().zip(&reaches))
            .map(|(&(_, first_pos, n, generated), (pages, reaches))| {
                let rows = row..row + n;
                let reaches = Some(&reaches[..]).filter(|_| !generated && self.segment.1 > 0);
                let mut seq = AttnSeq { rows, first_pos, pages, first_page: 0, reaches, generated };
                row += n;
                // Pages out of every window are dropped.
                seq.first_page = seen(&self.params, &seq, seq.rows.start).start / self.page_len;
                seq.pages = &pages[seq.first_page..];
                seq
            })
            .collect();
        let group = self.params.n_heads / self.params.n_kv_heads;
        let limits = AttnLimits {
            head_dim: self.params.head_dim,
            group,
            n_kv_heads: self.params.n_kv_heads,
            kv_len: max_len,
        };
        let scratch = AttnScratch::new(n_threads, limits).for_tier(tier);
        let mut out = vec![0.0; q.len()];
        let q = Rows::new(&q, row, self.q_dim());
        let out_rows = RowsMut::new(&mut out, row, self.q_dim());
        attention(&team, tier, &self.params, &geo, &memory, q, &seqs, &scratch, out_rows);
        out
    }

    /// The result at one position of a sequence, by the definition.
    fn expected(&self, seq: usize, pos: usize) -> Vec<f64> {
        let p = &self.params;
        let end = self.reach(pos);
        let start = match p.window {
            Some(window) if p.chunked => pos - pos % window,
            window => window.map_or(0, |w| (pos + 1).saturating_sub(w)),
        };
        let rounded = |part| -> Vec<Vec<f64>> {
            (start..end)
                .map(|pos| self.kv(seq, part, pos))
                .map(|x| round(self.ty, &x).into_iter().map(f64::from).collect())
                .collect()
        };
        let (k, v) = (rounded(1), rounded(2));
        let mut out = Vec::new();
        for (h, q) in self.q(seq, pos).chunks(p.head_dim).enumerate() {
            let cols = h / (p.n_heads / p.n_kv_heads) * p.head_dim;
            let slope = p.alibi.map_or(0.0, |slopes| f64::from(slopes[h]));
            let scores: Vec<f64> = k
                .iter()
                .zip(start..)
                .map(|(k, at)| {
                    let dot: f64 = q.iter().zip(&k[cols..]).map(|(&q, k)| f64::from(q) * k).sum();
                    let s = dot * f64::from(p.scale);
                    let s = p.softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh());
                    s - slope * (pos as f64 - at as f64)
                })
                .collect();
            let sink = p.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[h]));
            let max = scores.iter().copied().fold(sink, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum::<f64>() + (sink - max).exp();
            out.extend((cols..cols + p.head_dim).map(|c| {
                v.iter().zip(&weights).map(|(v, weight)| v[c] * weight).sum::<f64>() / sum
            }));
        }
        out
    }

    /// Compares with the definition, in both roles, and the tiers with each other.
    fn check(&self, batch: &[(usize, usize, usize)]) {
        self.check_roles(batch, &roles(batch));
    }

    /// The same of prefill rows alone.
    fn check_prompts(&self, batch: &[(usize, usize, usize)]) {
        self.check_roles(batch, &roles(batch)[..1]);
    }

    fn check_roles(&self, batch: &[(usize, usize, usize)], roles: &[Vec<Part>]) {
        for parts in roles {
            let generated = parts[0].3;
            let all = tiers().map(|tiers| {
                let mut results = tiers.into_iter().map(|tier| self.run(tier, 2, parts));
                let out = results.next().expect("a tier");
                assert!(results.all(|other| other == out), "every tier has the same bits");
                out
            });
            let with_tiles = !generated && self.ty != BlockType::F32;
            if !with_tiles {
                assert!(all[0] == all[1], "decode rows, and F32, have the bits of every tier");
            }
            for (out, bound) in all.iter().zip([5e-6, if with_tiles { 2.0 / 256.0 } else { 5e-6 }])
            {
                self.check_values(batch, out, generated, bound);
            }
        }
    }

    /// Compares a result with the definition. Values are at most one, and so are their
    /// means; on tiles weights and values are rounded by 2^-8 of themselves each at most.
    fn check_values(
        &self,
        batch: &[(usize, usize, usize)],
        out: &[f32],
        generated: bool,
        bound: f64,
    ) {
        let mut rows = out.chunks(self.q_dim());
        for &(seq, first, n) in batch {
            for pos in first..first + n {
                let expected = self.expected(seq, pos);
                let row = rows.next().expect("a row for each position");
                for (i, (&found, e)) in row.iter().zip(&expected).enumerate() {
                    let error = (f64::from(found) - e).abs();
                    assert!(
                        error < bound,
                        "generated {generated} sequence {seq} position {pos} {i}: {found} for {e}"
                    );
                }
            }
        }
    }
}

#[test]
fn heads_of_any_size_and_grouping_match_f64() {
    for (n_heads, n_kv_heads, head_dim) in [
        (1, 1, 8),
        (2, 2, 20),
        (9, 3, 64),
        (4, 1, 80),
        (6, 2, 96),
        (40, 1, 7),
        (2, 1, 256),
        (5, 1, 72),
    ] {
        case(n_heads, n_kv_heads, head_dim).check(&[(0, 0, 37)]);
        case(n_heads, n_kv_heads, head_dim).check(&[(0, 50, 1)]);
    }
}

#[test]
fn ragged_batches_match_f64() {
    let batch = [(0, 0, 19), (1, 33, 1), (2, 7, 0), (3, 15, 2), (4, 0, 1), (5, 64, 33)];
    for page_len in [16, 32, 5] {
        Case { page_len, ..case(6, 2, 24) }.check(&batch);
    }
}

#[test]
fn contexts_of_several_tiles_and_splits_match_f64() {
    for window in [None, Some(300)] {
        let mut case = case(3, 1, 16);
        case.params.window = window;
        case.page_len = 32;
        case.check(&[(0, 250, 12), (1, 120, 17), (2, 700, 2), (3, 511, 2)]);
    }
}

#[test]
fn windows_and_soft_caps_match_f64() {
    for window in [None, Some(1), Some(5), Some(16), Some(40), Some(1000)] {
        for softcap in [None, Some(1.5)] {
            let mut case = case(4, 2, 16);
            case.params.window = window;
            case.params.softcap = softcap;
            case.check(&[(0, 0, 40), (1, 70, 35), (2, 100, 1)]);
            case.params.chunked = true;
            case.check(&[(0, 0, 40), (1, 70, 35), (2, 100, 1)]);
        }
    }
}

/// A logit below, among and above the scores, one that takes nothing and one that takes all.
const SINKS: [f32; 6] = [-3.0, 0.7, 5.0, f32::NEG_INFINITY, 90.0, 1.5];

#[test]
fn sinks_match_f64() {
    for (window, softcap) in [(None, None), (Some(5), None), (None, Some(0.9))] {
        let mut case = case(6, 2, 16);
        case.params.window = window;
        case.params.softcap = softcap;
        case.params.sinks = Some(&SINKS);
        case.check(&[(0, 0, 40), (1, 70, 35), (2, 100, 1)]);
    }
}

/// Those of six heads as the paper has them, and one that takes nearly all but the query's own key.
const SLOPES: [f32; 6] = [0.25, 0.0625, 0.015_625, 0.003_906_25, 9.0, 0.0];

#[test]
fn alibi_matches_f64() {
    for ty in [BlockType::F32, BlockType::F16] {
        for (window, softcap, sinks) in
            [(None, None, None), (Some(33), None, Some(&SINKS[..])), (None, Some(1.5), None)]
        {
            let mut case = Case { ty, ..case(6, 2, 16) };
            (case.params.window, case.params.softcap, case.params.sinks) = (window, softcap, sinks);
            case.params.alibi = Some(&SLOPES);
            case.check(&[(0, 0, 40), (1, 270, 35), (2, 600, 1)]);
        }
    }
    let mut case = Case { ty: BlockType::F16, ..case(6, 2, 8) };
    case.params.alibi = Some(&SLOPES);
    check_company(&case);
}

#[test]
fn slopes_of_nothing_change_no_bit() {
    for tier in tiers().into_iter().flatten() {
        for generated in [false, true] {
            let part = [(0, 300, 20, generated)];
            let mut case = case(6, 2, 16);
            let plain = case.run(tier, 2, &part);
            case.params.alibi = Some(&[0.0; 6]);
            assert_eq!(case.run(tier, 2, &part), plain, "{tier}");
        }
    }
}

#[test]
fn a_sink_of_nothing_changes_no_bit() {
    for tier in tiers().into_iter().flatten() {
        let batch = [(1, 70, 1, true), (2, 300, 2, true), (0, 0, 40, false)];
        let mut case = case(6, 2, 16);
        let without = case.run(tier, 2, &batch);
        case.params.sinks = Some(&[f32::NEG_INFINITY; 6]);
        assert_eq!(case.run(tier, 2, &batch), without, "{tier}");
    }
}

#[test]
fn rows_that_see_later_rows_match_f64() {
    // A text of its own, and segments within one, over the ends of pages, tiles and blocks.
    for (segment, window) in
        [((0, 40), None), ((7, 33), None), ((100, 290), None), ((100, 290), Some(60))]
    {
        for ty in [BlockType::F32, BlockType::F16] {
            let mut case = Case { segment, ty, ..case(2, 2, 16) };
            case.params.window = window;
            case.check_prompts(&[
                (0, 0, segment.1),
                (1, segment.0, 300 - segment.0),
                (2, segment.1, 3),
            ]);
        }
    }
}

#[test]
fn a_segment_changes_no_bit_of_the_rows_beside_it() {
    for tier in tiers().into_iter().flatten() {
        for ty in [BlockType::F32, BlockType::F16] {
            let causal = Case { ty, ..case(3, 1, 16) };
            let case = Case { segment: (20, 60), ..causal };
            let n = case.q_dim();
            let whole = case.run(tier, 2, &[(0, 0, 200, false)]);
            let before = causal.run(tier, 2, &[(0, 0, 20, false)]);
            assert!(whole[..20 * n] == before, "before the segment on {tier}");
            // The segment in a step of its own, and what follows it in steps.
            let segment = case.run(tier, 1, &[(1, 0, 3, false), (0, 20, 40, false)]);
            assert!(whole[20 * n..60 * n] == segment[3 * n..], "the segment on {tier}");
            let behind = case.run(tier, 2, &[(0, 60, 140, false)]);
            assert!(whole[60 * n..] == behind, "behind the segment on {tier}");
            assert!(behind == causal.run(tier, 1, &[(0, 60, 140, false)]), "{tier}");
        }
    }
}

#[test]
fn memory_of_every_type_matches_f64() {
    for ty in TYPES {
        for (n_heads, head_dim) in [(3, 64), (4, 32), (1, 96), (2, 256)] {
            Case { ty, ..case(n_heads, 1, head_dim) }.check(&[(0, 0, 35), (1, 40, 1)]);
        }
    }
    for ty in [BlockType::F16, BlockType::BF16, BlockType::F8] {
        Case { ty, ..case(3, 1, 20) }.check(&[(0, 0, 35), (1, 40, 1)]);
    }
}

#[test]
fn prompts_on_tiles_match_f64() {
    let f16 = |case: Case| Case { ty: BlockType::F16, ..case };
    for (n_heads, n_kv_heads, head_dim) in [(1, 1, 8), (9, 3, 64), (40, 1, 7), (5, 1, 72)] {
        f16(case(n_heads, n_kv_heads, head_dim)).check(&[(0, 0, 37), (1, 50, 1)]);
    }
    for (window, softcap, sinks) in [
        (Some(300), None, None),
        (Some(5), Some(1.5), None),
        (None, Some(0.9), Some(&SINKS[..])),
        (Some(40), None, Some(&SINKS[..])),
    ] {
        let mut case = f16(case(6, 2, 16));
        (case.params.window, case.params.softcap, case.params.sinks) = (window, softcap, sinks);
        case.check(&[(0, 250, 12), (1, 120, 17), (2, 0, 140)]);
    }
}

/// Large queries and keys: their scores must not be rounded to eight bits.
#[test]
fn scores_on_tiles_are_as_exact_as_the_memory() {
    let mut case = Case { ty: BlockType::F16, ..case(2, 1, 64) };
    case.params.scale = 20.0;
    let out = case.run(Tier::software_tiles(), 2, &[(0, 0, 60, false)]);
    case.check_values(&[(0, 0, 60)], &out, false, 2.0 / 256.0);
}

#[test]
fn large_scores_stay_finite() {
    let mut case = case(2, 1, 32);
    case.params.scale = 400.0;
    // Scores reach thousands, so only the largest counts and f32 decides which.
    for tier in tiers().into_iter().flatten() {
        for generated in [false, true] {
            let out = case.run(tier, 1, &[(0, 0, 50, generated)]);
            assert!(out.iter().all(|x| x.abs() <= 1.0), "weighted means of values in -1..1");
        }
    }
}

/// Decode and prefill rows, some of several splits and tiles.
const COMPANY: [Part; 4] =
    [(1, 33, 1, true), (3, 510, 4, true), (0, 0, 90, false), (2, 115, 40, false)];

fn check_company(case: &Case) {
    for tiers in tiers() {
        check_company_on(case, tiers);
    }
}

fn check_company_on(case: &Case, tiers: Vec<Tier>) {
    let results = tiers.into_iter().map(|tier| {
        let together = case.run(tier, 1, &COMPANY);
        for n_threads in [2, 3] {
            assert_eq!(case.run(tier, n_threads, &COMPANY), together, "{n_threads} threads");
        }
        let mut alone = Vec::new();
        for part in COMPANY {
            alone.extend(case.run(tier, 2, &[part]));
        }
        assert_eq!(alone, together, "alone or in a batch");
        for chunk in [1, 7, 16, 33] {
            let mut chunked = Vec::new();
            for (seq, first, n, generated) in COMPANY {
                for start in (0..n).step_by(chunk) {
                    let part = (seq, first + start, chunk.min(n - start), generated);
                    chunked.extend(case.run(tier, 1, &[part]));
                }
            }
            assert_eq!(chunked, together, "chunks of {chunk}");
        }
        together
    });
    let results: Vec<_> = results.collect();
    assert!(results.iter().all(|r| r == &results[0]), "every tier has the same bits");
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    for (group, window, sinks) in
        [(1, None, None), (3, None, Some(&SINKS[..])), (4, Some(21), None), (40, None, None)]
    {
        let mut case = case(2 * group, 2, 8);
        case.params.sinks = sinks;
        case.params.window = window;
        case.ty = BlockType::F16;
        check_company(&case);
        case.params.chunked = window.is_some();
        if window.is_some() {
            check_company(&case);
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company_with_every_type() {
    for ty in TYPES {
        check_company(&Case { ty, page_len: 32, ..case(3, 1, 32) });
    }
}

#[test]
fn pages_of_any_length_give_the_same_bits() {
    for tier in tiers().into_iter().flatten() {
        let case = Case { ty: BlockType::F16, ..case(3, 1, 16) };
        let of_len = |page_len| Case { page_len, ..case }.run(tier, 2, &COMPANY);
        let expected = of_len(32);
        for page_len in [1, 5, 16, 64] {
            assert_eq!(of_len(page_len), expected, "{tier} pages of {page_len}");
        }
    }
}

#[test]
fn values_that_no_row_sees_change_no_bit() {
    // The memory of the tests is NaN where nothing was stored; here a later row's value is
    // infinite.
    for tier in tiers().into_iter().flatten() {
        for ty in [BlockType::F32, BlockType::F16] {
            let mut case = Case { ty, ..case(3, 1, 16) };
            let expected = case.run(tier, 1, &[(0, 0, 30, false)]);
            case.outlier = Some(30);
            let found = case.run(tier, 1, &[(0, 0, 31, false)]);
            assert_eq!(found[..expected.len()], expected, "{tier} {ty}");
            assert!(found[expected.len()..].iter().all(|x| !x.is_finite()), "{tier} {ty}");
        }
    }
}
