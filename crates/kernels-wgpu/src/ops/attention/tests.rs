//! Attention against f64, and the bits of a row however its step is put together.
//!
//! Slots that nothing was stored in hold what is not a number, and so do the
//! pages that a window has left behind, so that reading one too many shows.

use super::*;
use crate::dispatch::RowsAt;
use crate::ops::kv_store;
use crate::testing;
use std::collections::HashMap;

const PAGE_LEN: u32 = 32;
/// Rows of a step, and where its words and values begin.
const MAX_ROWS: u32 = 1000;
const ALL_ROWS_AT: u32 = 0;
const GENERATED_AT: u32 = 2;
const POSITIONS_AT: u32 = 4;
const SEQ_OF_ROW_AT: u32 = POSITIONS_AT + MAX_ROWS;
const SLOTS_AT: u32 = SEQ_OF_ROW_AT + MAX_ROWS;
const FIRST_ITEM_AT: u32 = SLOTS_AT + MAX_ROWS;
const ITEMS_AT: u32 = FIRST_ITEM_AT + MAX_ROWS;
const TILES_AT: u32 = ITEMS_AT + 4 * MAX_ROWS;
const WAVES_AT: u32 = TILES_AT + 2 * MAX_ROWS;
const BASES_AT: u32 = WAVES_AT + Splits::WAVE_WORDS + MAX_ROWS;
const REACHES_AT: u32 = BASES_AT + 16;
const PAGES_AT: u32 = REACHES_AT + MAX_ROWS;

/// A sequence's queries, keys and values, row after row.
struct Sequence {
    len: u32,
    q: Vec<f32>, // [len, n_heads * head_dim]
    k: Vec<f32>, // [len, n_kv_heads * head_dim]
    v: Vec<f32>, // as k
}

struct Case {
    spec: AttentionSpec,
    ty: BlockType,
    sequences: Vec<Sequence>,
    sinks: Vec<f32>, // [n_heads]
    /// Makes other pages of the same sequences.
    shuffle: u32,
    /// Items of a wave of decode rows at most.
    max_items: u32,
    /// Positions that see each other in both directions.
    segment: Option<(u32, u32)>,
}

/// Rows `from .. from + n` of a sequence; generated ones are stored and attended
/// to one position at a time, but in the same step.
#[derive(Clone, Copy)]
struct Part {
    seq: u32,
    from: u32,
    n: u32,
    generated: bool,
}

fn prompt(seq: u32, from: u32, n: u32) -> Part {
    Part { seq, from, n, generated: false }
}

fn generated(seq: u32, from: u32) -> Part {
    Part { seq, from, n: 1, generated: true }
}

/// Numbers in -1 .. 1 (xorshift, Marsaglia 2003).
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// `n_heads`, `n_kv_heads`, `head_dim`; scores of several units, so that weights
/// differ much.
fn case(ty: BlockType, heads: [u32; 3], lens: &[u32]) -> Case {
    let [n_heads, n_kv_heads, head_dim] = heads;
    let scale = 6.0 / (head_dim as f32).sqrt();
    let (softcap, window, chunked, sinks) = (None, None, false, None);
    let spec =
        AttentionSpec { n_heads, n_kv_heads, head_dim, scale, softcap, window, chunked, sinks };
    let sequence = |(seed, len): (u32, &u32)| {
        let rows = |heads: u32, seed| noise((len * heads * head_dim) as usize, seed);
        Sequence {
            len: *len,
            q: rows(n_heads, 3 * seed),
            k: rows(n_kv_heads, 3 * seed + 1),
            v: rows(n_kv_heads, 3 * seed + 2),
        }
    };
    let sequences = (1..).zip(lens).map(sequence).collect();
    let sinks = noise(n_heads as usize, 77).iter().map(|x| 4.0 * x).collect();
    Case { spec, ty, sequences, sinks, shuffle: 7, max_items: 2 * MAX_ROWS, segment: None }
}

impl Case {
    fn softcap(mut self, cap: f32) -> Self {
        self.spec.softcap = Some(cap);
        self
    }

    fn window(mut self, window: u32) -> Self {
        self.spec.window = Some(window);
        self
    }

    /// With windows that lie side by side.
    fn chunks(self, len: u32) -> Self {
        let mut case = self.window(len);
        case.spec.chunked = true;
        case
    }

    fn sinks(mut self) -> Self {
        self.spec.sinks = Some(3);
        self
    }

    fn first_visible(&self, position: u32) -> u32 {
        match self.spec.window {
            Some(window) if self.spec.chunked => position - position % window,
            window => (position + 1).saturating_sub(window.unwrap_or(u32::MAX)),
        }
    }

    /// One past the last position that a row of a prompt sees.
    fn reach(&self, position: u32) -> u32 {
        let segment = self.segment.filter(|(start, end)| (*start..*end).contains(&position));
        segment.map_or(position + 1, |(_, end)| end)
    }

    fn n_pages_of(&self, seq: u32) -> u32 {
        self.sequences[seq as usize].len.div_ceil(PAGE_LEN)
    }

    /// Pages of all sequences; page 0 belongs to none.
    fn n_pages(&self) -> u32 {
        1 + (0..self.sequences.len() as u32).map(|seq| self.n_pages_of(seq)).sum::<u32>()
    }

    /// The page that a page of a sequence lies in.
    fn page(&self, seq: u32, page: u32) -> u32 {
        let index: u32 = (0..seq).map(|before| self.n_pages_of(before)).sum::<u32>() + page;
        let n = self.n_pages() - 1;
        // A step that has no factor in common with n visits every page.
        let gcd = |mut a: u32, mut b: u32| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let step = (self.shuffle..).find(|step| gcd(*step, n) == 1).unwrap();
        1 + (index * step + self.shuffle) % n
    }

    /// The result of a row in f64, of all heads.
    fn reference(&self, seq: u32, position: u32) -> Vec<f64> {
        let (spec, sequence) = (&self.spec, &self.sequences[seq as usize]);
        let dim = spec.head_dim as usize;
        let stored = |x: f32| match self.ty {
            BlockType::F16 => half::f16::from_f32(x).to_f64(),
            BlockType::BF16 => half::bf16::from_f32(x).to_f64(),
            _ => f64::from(x),
        };
        // Of blocks, and numbers of 8 bits, what quantization leaves.
        let stored_heads = |values: &[f32]| -> Vec<f32> {
            let mut all = Vec::with_capacity(values.len());
            for head in values.chunks(dim) {
                let mut head = head.to_vec();
                head.resize(dim.next_multiple_of(self.ty.block_len()), 0.0);
                let mut bytes = vec![0; self.ty.row_bytes(head.len()).unwrap()];
                realizar_quant::quantize(self.ty, &head, &mut bytes).unwrap();
                realizar_quant::dequantize(self.ty, &bytes, &mut head).unwrap();
                all.extend_from_slice(&head[..dim]);
            }
            all
        };
        let is_quantized = self.ty == BlockType::F8 || self.ty.block_len() > 1;
        let heads_of = |values: &[f32]| match is_quantized {
            true => stored_heads(values),
            false => values.to_vec(),
        };
        let (keys, vals) = (heads_of(&sequence.k), heads_of(&sequence.v));
        let mut out = Vec::new();
        for head in 0..spec.n_heads {
            let kv_head = head / (spec.n_heads / spec.n_kv_heads);
            let q = &sequence.q[(position * spec.n_heads + head) as usize * dim..][..dim];
            let seen = self.first_visible(position)..=self.reach(position) - 1;
            let place = |at: u32| (at * spec.n_kv_heads + kv_head) as usize * dim;
            let mut scores: Vec<f64> = seen
                .clone()
                .map(|at| {
                    let k = &keys[place(at)..][..dim];
                    let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * stored(*k)).sum();
                    let score = dot * f64::from(spec.scale);
                    match spec.softcap {
                        Some(cap) => f64::from(cap) * (score / f64::from(cap)).tanh(),
                        None => score,
                    }
                })
                .collect();
            if spec.sinks.is_some() {
                scores.push(f64::from(self.sinks[head as usize]));
            }
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut x = vec![0.0; dim];
            for (at, weight) in seen.zip(&weights) {
                let v = &vals[place(at)..][..dim];
                x.iter_mut().zip(v).for_each(|(x, v)| *x += weight / sum * stored(*v));
            }
            out.extend(x);
        }
        out
    }

    /// Runs steps of parts, each with its decode rows first, and calls `found`
    /// with the sequence, the position and the result of each row.
    fn run(&self, gpu: &Gpu, steps: &[Vec<Part>], mut found: impl FnMut(u32, u32, &[f32])) {
        let spec = self.spec;
        let kv = KvSpec {
            ty: self.ty,
            n_kv_heads: spec.n_kv_heads,
            head_dim: spec.head_dim,
            page_len: PAGE_LEN,
            n_pages: self.n_pages(),
            values_are_keys: false,
        };
        let layer = KvLayer::new(gpu, "a layer", &kv).unwrap();
        let nothing = vec![0xffu8; kv.n_bytes() as usize];
        gpu.write(&layer.k, 0, &nothing).unwrap();
        gpu.write(&layer.v, 0, &nothing).unwrap();

        let (width, kv_width) = (spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim);
        let most = steps.iter().map(|step| step.iter().map(|part| part.n).sum::<u32>()).max();
        let max_rows = most.unwrap();
        // Query, key and value side by side, results apart.
        let stride = width + 2 * kv_width + 1;
        let q = View { start: 5, stride, width };
        let k = View { start: 5 + width, stride, width: kv_width };
        let v = View { start: 5 + width + kv_width, stride, width: kv_width };
        let out = View { start: 5 + max_rows * stride, stride: width + 3, width };
        let mut values = vec![0f32; (out.start + max_rows * out.stride) as usize];
        let values_buffer = testing::filled(gpu, &values);
        let batch_buffer = gpu.buffer("words", u64::from(PAGES_AT + self.n_pages()) * 4).unwrap();
        let rows = |at| Rows { values: &values_buffer, batch: &batch_buffer, at: RowsAt(at) };
        let vectors = testing::filled(gpu, &[&[9.0; 3], &*self.sinks].concat());
        let scratch =
            AttentionScratch::new(gpu, self.max_items, spec.n_heads, spec.head_dim).unwrap();

        let store = kv_store(gpu, rows(ALL_ROWS_AT), &kv, &layer, k, v, SLOTS_AT).unwrap();
        let tables = Tables {
            positions_at: POSITIONS_AT,
            seq_of_row_at: SEQ_OF_ROW_AT,
            bases_at: BASES_AT,
            reaches_at: self.segment.map(|_| REACHES_AT),
        };
        let attention = Attention {
            rows: rows(GENERATED_AT),
            spec,
            kv,
            layer: &layer,
            vectors: &vectors,
            q,
            out,
            tables,
        };
        let splits =
            Splits { items_at: ITEMS_AT, first_item_at: FIRST_ITEM_AT, waves_at: WAVES_AT };
        let [partial, combine] = attention_decode(gpu, &attention, &scratch, splits).unwrap();
        let next_wave = attention_next_wave(gpu, &batch_buffer, splits).unwrap();
        let prefill = attention_prefill(gpu, &attention, TILES_AT).unwrap();

        for step in steps {
            assert!(step.is_sorted_by_key(|part| !part.generated), "generated rows come first");
            let mut words = vec![u32::MAX; (PAGES_AT + self.n_pages()) as usize];
            let (mut n_rows, mut n_generated, mut n_items, mut n_tiles) = (0u32, 0u32, 0u32, 0u32);
            let mut first_seen = vec![u32::MAX; self.sequences.len()];
            let mut waves = Vec::<(u32, u32, u32)>::new(); // first row, rows, items
            for part in step {
                let sequence = &self.sequences[part.seq as usize];
                let seen = &mut first_seen[part.seq as usize];
                *seen = (*seen).min(self.first_visible(part.from));
                for i in 0..part.n {
                    let (row, position) = (n_rows + i, part.from + i);
                    let at = |table: u32| (table + row) as usize;
                    words[at(POSITIONS_AT)] = position;
                    words[at(SEQ_OF_ROW_AT)] = part.seq;
                    words[at(REACHES_AT)] = self.reach(position);
                    words[at(SLOTS_AT)] =
                        self.page(part.seq, position / PAGE_LEN) * PAGE_LEN + position % PAGE_LEN;
                    if part.generated {
                        words[at(FIRST_ITEM_AT)] = n_items;
                        let splits = self.first_visible(position) / SPLIT..=position / SPLIT;
                        let n = splits.clone().count() as u32;
                        match waves.last_mut() {
                            Some((_, rows, items)) if *items + n <= self.max_items => {
                                (*rows, *items) = (*rows + 1, *items + n);
                            }
                            _ => waves.push((row, 1, n)),
                        }
                        for split in splits {
                            let item = (ITEMS_AT + 2 * n_items) as usize;
                            words[item..item + 2].copy_from_slice(&[row, split]);
                            n_items += 1;
                        }
                    } else if i % TILE_ROWS == 0 {
                        let tile = (TILES_AT + 2 * n_tiles) as usize;
                        let n = (part.n - i).min(TILE_ROWS);
                        words[tile..tile + 2].copy_from_slice(&[row, n]);
                        n_tiles += 1;
                    }
                    for (view, from) in [(q, &sequence.q), (k, &sequence.k), (v, &sequence.v)] {
                        let to = (view.start + row * view.stride) as usize;
                        let (from_at, n) = ((position * view.width) as usize, view.width as usize);
                        values[to..to + n].copy_from_slice(&from[from_at..from_at + n]);
                    }
                }
                n_rows += part.n;
                n_generated += if part.generated { part.n } else { 0 };
            }
            words[..4].copy_from_slice(&[0, n_rows, 0, n_generated]);
            words[WAVES_AT as usize..][..4].copy_from_slice(&[0, 0, 0, waves.len() as u32]);
            for (wave, (first_row, ..)) in waves.iter().enumerate() {
                words[(WAVES_AT + Splits::WAVE_WORDS) as usize + wave] = *first_row;
            }
            // Pages in a row, of each sequence only those that are still seen.
            let mut at = PAGES_AT;
            for (seq, first) in (0..).zip(first_seen) {
                let dropped = first.min(u32::MAX - PAGE_LEN) / PAGE_LEN;
                words[(BASES_AT + seq) as usize] = at.wrapping_sub(dropped);
                for page in dropped..self.n_pages_of(seq) {
                    words[at as usize] = self.page(seq, page);
                    at += 1;
                }
            }
            gpu.write(&values_buffer, 0, bytemuck::cast_slice(&values)).unwrap();
            gpu.write(&batch_buffer, 0, bytemuck::cast_slice(&words)).unwrap();
            let mut recorder = gpu.record();
            recorder.run(&store, n_rows);
            for (_, n_rows, n_items) in &waves {
                recorder.run(&partial, *n_items);
                recorder.run(&combine, *n_rows);
                recorder.run(&next_wave, u32::from(waves.len() > 1));
            }
            recorder.run(&prefill, n_tiles);
            recorder.submit().unwrap();
            let results: Vec<f32> = testing::contents(gpu, &values_buffer, values.len());
            let mut row = 0;
            for part in step {
                for position in part.from..part.from + part.n {
                    let at = (out.start + row * out.stride) as usize;
                    found(part.seq, position, &results[at..at + width as usize]);
                    row += 1;
                }
            }
        }
    }

    /// Every sequence as a prompt, in one step.
    fn prompts(&self) -> Vec<Part> {
        (0..).zip(&self.sequences).map(|(seq, sequence)| prompt(seq, 0, sequence.len)).collect()
    }

    /// The results of the rows of sequence `seq`; nothing for those that are in
    /// no step.
    fn results(&self, gpu: &Gpu, steps: &[Vec<Part>], seq: u32) -> Vec<Vec<f32>> {
        let mut all = vec![Vec::new(); self.sequences[seq as usize].len as usize];
        self.run(gpu, steps, |of, position, x| {
            if of == seq {
                all[position as usize] = x.to_vec();
            }
        });
        all
    }
}

fn cases() -> Vec<Case> {
    use BlockType::{BF16, F8, F16, F32, Q4_0, Q8_0};
    let lens = &[1, 45, 300];
    vec![
        case(F32, [2, 1, 20], lens),
        case(F32, [4, 4, 32], lens).window(5),
        case(F16, [9, 3, 64], &[70, 600]),
        case(F16, [3, 3, 64], lens).sinks().window(290),
        case(BF16, [8, 1, 64], lens).sinks().window(40),
        case(F32, [6, 2, 80], lens).softcap(4.0),
        case(F32, [2, 1, 128], lens).window(1),
        case(BF16, [5, 1, 128], lens).window(100).sinks(),
        case(F16, [4, 1, 256], &[33, 270]).softcap(9.0).window(33),
        case(F32, [2, 2, 256], &[64, 257]),
        case(F16, [12, 1, 50], lens).softcap(20.0).sinks(),
        case(BF16, [2, 2, 47], lens),
        case(F32, [6, 1, 512], &[40]),
        case(F16, [5, 1, 576], &[33, 258]),
        case(F8, [6, 2, 20], lens).window(290),
        case(F8, [4, 1, 128], &[33, 270]).sinks(),
        case(Q8_0, [4, 2, 64], lens).window(290),
        case(Q8_0, [3, 3, 96], &[33, 270]).sinks(),
        case(Q8_0, [2, 1, 256], &[45]).softcap(9.0),
        case(Q4_0, [4, 2, 64], lens).window(5),
        case(F32, [4, 2, 64], &[70, 600]).chunks(40),
        case(F16, [3, 1, 128], &[33, 600]).chunks(256),
        case(BF16, [2, 2, 47], &[600]).chunks(100).sinks(),
        case(Q8_0, [2, 1, 64], lens).chunks(1),
        case(Q4_0, [3, 1, 40], &[33, 270]).sinks(),
        case(Q4_0, [2, 1, 512], &[45]),
    ]
}

#[test]
fn prompts_and_generated_rows_match_f64() {
    // Rows around the ends of pages, steps, splits and windows.
    let positions = [0, 1, 4, 5, 31, 32, 39, 40, 44, 63, 64, 99, 100, 255, 256, 257, 299, 511, 599];
    let Some(gpu) = testing::gpu() else { return };
    for case in cases() {
        // All prompts, then those rows again, generated.
        let mut again = Vec::new();
        let mut references = HashMap::new();
        for (seq, sequence) in (0..).zip(&case.sequences) {
            let inside = positions.into_iter().filter(|position| *position < sequence.len);
            let row = |position| ((seq, position), case.reference(seq, position));
            references.extend(inside.clone().map(row));
            again.push(inside.map(|position| generated(seq, position)).collect::<Vec<_>>());
        }
        let steps = [vec![case.prompts()], again].concat();
        case.run(&gpu, &steps, |seq, position, found| {
            assert!(found.iter().all(|x| x.is_finite()), "{seq} {position} {:?}", case.spec);
            let Some(wanted) = references.get(&(seq, position)) else { return };
            let apart = found
                .iter()
                .zip(wanted)
                .map(|(found, wanted)| (f64::from(*found) - wanted).abs())
                .fold(0.0, f64::max);
            assert!(
                apart <= 1e-5,
                "{:?} {:?}, sequence {seq}, position {position}: {apart:e}",
                case.ty,
                case.spec
            );
        });
    }
}

#[test]
fn a_segment_sees_itself_in_both_directions() {
    use BlockType::{BF16, F16, F32};
    let Some(gpu) = testing::gpu() else { return };
    for (case, segment) in [
        (case(F32, [2, 1, 20], &[300]), (0, 45)),
        (case(F16, [4, 2, 64], &[300]), (40, 290)),
        (case(BF16, [3, 1, 128], &[300]).window(50).sinks(), (31, 97)),
        (case(F32, [2, 2, 80], &[300]).softcap(6.0), (33, 34)),
    ] {
        let case = Case { segment: Some(segment), ..case };
        let whole = case.results(&gpu, &[vec![prompt(0, 0, 300)]], 0);
        for (position, found) in (0..).zip(&whole) {
            for (found, wanted) in found.iter().zip(case.reference(0, position)) {
                let apart = (f64::from(*found) - wanted).abs();
                assert!(apart <= 1e-5, "{:?}, position {position}: {apart:e}", case.spec);
            }
        }
        // In steps of which one has the whole segment; beside it, what rows see is as ever.
        let (start, end) = segment;
        let cuts = [0, start / 2, start, end, end + 1, 300];
        let steps = cuts.windows(2).filter(|cut| cut[0] < cut[1]);
        let steps: Vec<Vec<Part>> =
            steps.map(|cut| vec![prompt(0, cut[0], cut[1] - cut[0])]).collect();
        assert!(whole == case.results(&gpu, &steps, 0), "{:?} in steps", case.spec);
        let causal = Case { segment: None, ..case };
        let rows = causal.results(&gpu, &[vec![prompt(0, 0, 300)]], 0);
        assert!(whole[..start as usize] == rows[..start as usize], "before the segment");
        assert!(whole[end as usize..] == rows[end as usize..], "behind the segment");
    }
}

/// Sequence `seq` in chunks of `chunk` rows, a step each.
fn chunks(case: &Case, seq: u32, chunk: u32) -> Vec<Vec<Part>> {
    let len = case.sequences[seq as usize].len;
    let starts = (0..len).step_by(chunk as usize);
    starts.map(|from| vec![prompt(seq, from, chunk.min(len - from))]).collect()
}

fn bit_cases() -> Vec<Case> {
    use BlockType::{BF16, F8, F16, F32, Q4_0, Q8_0};
    let lens = &[50, 290, 100];
    vec![
        case(F32, [3, 1, 20], lens),
        case(F16, [4, 2, 64], lens).window(37).sinks(),
        case(BF16, [2, 1, 80], lens).window(270).softcap(6.0),
        case(F8, [2, 1, 20], lens).sinks(),
        case(Q8_0, [2, 1, 64], lens).window(37),
        case(F16, [4, 2, 64], lens).chunks(90),
        case(Q4_0, [2, 2, 32], lens),
    ]
}

#[test]
fn a_prompt_has_the_same_bits_in_any_chunks_batch_and_pages() {
    let Some(gpu) = testing::gpu() else { return };
    for mut case in bit_cases() {
        let whole = case.results(&gpu, &chunks(&case, 1, 1000), 1);
        for chunk in [1, 7, 16, 45] {
            assert!(whole == case.results(&gpu, &chunks(&case, 1, chunk), 1), "chunks of {chunk}");
        }
        // Between other sequences, in other pages.
        case.shuffle = 11;
        assert!(whole == case.results(&gpu, &[case.prompts()], 1), "in a batch");
        let steps = (0..290).step_by(29).map(|from| {
            let others = [prompt(0, from / 29 * 5, 5), prompt(2, from / 29 * 10, 10)];
            vec![others[0], prompt(1, from, 29), others[1]]
        });
        let steps: Vec<Vec<Part>> = steps.collect();
        assert!(whole == case.results(&gpu, &steps, 1), "in chunks in batches");
    }
}

#[test]
fn a_generated_row_has_the_same_bits_alone_and_in_a_batch() {
    let Some(gpu) = testing::gpu() else { return };
    for mut case in bit_cases() {
        let prompts = [vec![prompt(1, 0, 240)], vec![prompt(0, 0, 50), prompt(2, 0, 40)]];
        let alone = (240..290).map(|position| vec![generated(1, position)]);
        let steps: Vec<Vec<Part>> = prompts.iter().cloned().chain(alone).collect();
        let wanted = case.results(&gpu, &steps, 1);
        case.shuffle = 3;
        // With a sequence that is generated too, and a prompt.
        let batch = (240..290).map(|position| {
            let other = generated(2, position - 200);
            vec![other, generated(1, position), prompt(0, 0, 50)]
        });
        let steps: Vec<Vec<Part>> = prompts.iter().cloned().chain(batch).collect();
        assert!(wanted == case.results(&gpu, &steps, 1), "{:?}", case.spec);
        assert!(wanted.iter().flatten().all(|x| x.is_finite()));
    }
}

#[test]
fn a_generated_row_has_the_same_bits_in_one_wave_and_in_many() {
    let Some(gpu) = testing::gpu() else { return };
    for mut case in bit_cases() {
        let again = [240, 3, 289, 255, 256, 1, 257, 100].map(|position| generated(1, position));
        let steps = [vec![prompt(0, 0, 50), prompt(1, 0, 290)], again.to_vec()];
        let wanted = case.results(&gpu, &steps, 1);
        // A row of two splits fits a wave of two.
        for max_items in [2, 3, 5, 8] {
            case.max_items = max_items;
            assert!(wanted == case.results(&gpu, &steps, 1), "{max_items} {:?}", case.spec);
        }
    }
}

#[test]
fn what_the_kernels_lack_is_refused() {
    let Some(gpu) = testing::gpu() else { return };
    let available = gpu.caps().max_workgroups;
    let scratch = |items, dim| AttentionScratch::new(&gpu, items, 8, dim).map(|_| ());
    assert_eq!(scratch(64, 64), Ok(()));
    assert!(matches!(scratch(available + 1, 64), Err(Error::Limit { .. })));
    assert!(matches!(scratch(available, 1 << 20), Err(Error::Limit { .. })));
    assert_eq!(rounded_head_dim(65), Ok(128));
    assert!(matches!(rounded_head_dim(577), Err(Error::Unsupported(_))));
}
