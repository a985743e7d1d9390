//! Compares lists with a full sort, and shares with their definition in rational numbers.

use realizar_ptx as ptx;

use super::*;
use crate::List;
use crate::testing::{Random, TestDevice, kernels, on_device};
use realizar_types::{DrawOfBest, NextToken};

/// Whether a token is eligible for the best.
fn may(of: &ShortlistRow<'_>, id: u32) -> bool {
    let by_mask =
        |mask: &[u32]| mask.get(id as usize / 32).is_some_and(|w| w >> (id % 32) & 1 == 1);
    id < of.n_tokens && !of.listed.contains(&id) && of.mask.is_none_or(by_mask)
}

/// The eligible tokens by descending logit, then ascending id.
fn sorted(logits: &[f32], of: &ShortlistRow<'_>) -> Vec<[u32; 2]> {
    let all = (0..).zip(logits).filter(|&(id, &x)| x != f32::NEG_INFINITY && may(of, id));
    let mut all: Vec<(u32, f32)> = all.map(|(id, &x)| (id, x)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(of.n_best as usize);
    all.iter().map(|&(id, x)| [id, x.to_bits()]).collect()
}

/// The share of a logit in rational numbers, as far as 128 bits can represent them.
fn share(logit: f32, max: f32, of: &SharesOf<'_>) -> u64 {
    let exponent = |x: f32| (x.to_bits() >> 23 & 255) as i32 - 127;
    let top = exponent(max).max(of.scale.range);
    let units = |x: f32| (f64::from(x) * 2_f64.powi(29 - top)).max(-2_f64.powi(31)) as i64;
    let product = (units(max) - units(logit)) as u128 * u128::from(of.scale.factor);
    let log = product >> (30 - (top - of.scale.range)).max(0);
    let rest = (log % (1 << 25)) << 7;
    let poly = [2_034_029, 19_784_458, 118_765_909, 515_789_246, 1_488_515_590, 1 << 31];
    let power = poly[1..].iter().fold(poly[0], |power, &c| c - ((rest * power) >> 32));
    if log >> 25 < 64 { ((power << 8) >> (log >> 25)) as u64 } else { 0 }
}

/// The total share of the eligible tokens, and the drawn tokens.
fn shares(logits: &[f32], of: &ShortlistRow<'_>) -> Option<(u64, Vec<[u32; 2]>)> {
    let shares = of.shares?;
    let mut all = sorted(logits, &ShortlistRow { n_best: u32::MAX, ..*of });
    let max = all.first().map_or(0.0, |best| f32::from_bits(best[1]));
    all.sort_unstable();
    let of: Vec<u64> = all.iter().map(|t| share(f32::from_bits(t[1]), max, &shares)).collect();
    let total: u64 = of.iter().sum();
    let drawn = shares.draws.iter().filter_map(|&place| {
        let goal = ((u128::from(total) * u128::from(place)) >> 32) as u64;
        let mut sum = 0;
        all.iter().zip(&of).find_map(|(&token, share)| {
            sum += share;
            (sum > goal).then_some(token)
        })
    });
    Some((total, drawn.collect()))
}

/// Rows of logits on a device, with gaps before and between them.
struct Bench {
    kernels: Kernels<TestDevice>,
    stream: ptx::Stream,
    values: Buffer<TestDevice>,
    logits: Vec<f32>,
    start: usize,
    width: usize,
    stride: usize,
}

impl Bench {
    fn new(logits: &[f32], width: usize, start: usize, stride: usize) -> Self {
        let (kernels, stream) = kernels();
        let n_rows = logits.len() / width;
        let mut all = vec![f32::MAX; start + n_rows * stride];
        for (row, logits) in logits.chunks(width).enumerate() {
            all[start + row * stride..][..width].copy_from_slice(logits);
        }
        let values = on_device(kernels.device(), &stream, &all);
        Self { kernels, stream, values, logits: logits.to_vec(), start, width, stride }
    }

    fn rows(&self) -> Rows<'_, TestDevice> {
        let n_rows = self.logits.len() / self.width;
        Rows::new(&self.values, self.start, n_rows, self.width, self.stride)
    }

    fn row(&self, row: u32) -> &[f32] {
        &self.logits[row as usize * self.width..][..self.width]
    }

    fn scratch(&self, n_rows: usize) -> ShortlistScratch<TestDevice> {
        let device = self.kernels.device();
        ShortlistScratch::new(device, &self.stream, self.width as u32, n_rows).unwrap()
    }

    fn lists(&self, n_rows: usize) -> Shortlists<TestDevice> {
        let limits = ShortlistLimits { rows: n_rows, listed: 1024, draws: 8, masks: true };
        Shortlists::new(self.kernels.device(), self.width as u32, limits).unwrap()
    }

    /// Lists of `rows`, computed in one launch.
    fn made(&self, rows: &[ShortlistRow<'_>]) -> Shortlists<TestDevice> {
        let (scratch, mut lists) = (self.scratch(rows.len()), self.lists(rows.len()));
        rows.iter().for_each(|row| lists.push(row));
        lists.upload(&self.stream).unwrap();
        let with_shares = lists.has_shares();
        let (kernels, stream) = (&self.kernels, &self.stream);
        lists.queue(kernels, stream, self.rows(), &scratch, rows.len(), with_shares).unwrap();
        lists.read(stream).unwrap();
        lists
    }

    /// Asserts that a list equals that of a full sort.
    fn check(&self, of: &ShortlistRow<'_>, list: &Shortlist<'_>) {
        let (width, row) = (self.width, self.row(of.row));
        let (total, drawn) = shares(row, of).unzip();
        assert_eq!(list.total, total, "{width} {of:?}");
        assert_eq!(list.drawn, drawn.unwrap_or_default(), "{width} {of:?}");
        let bits: Vec<u32> = of.listed.iter().map(|&id| row[id as usize].to_bits()).collect();
        assert_eq!(list.listed, bits, "{width} {of:?}");
        assert_eq!(list.best.expect("usable logits"), sorted(row, of), "{width} {of:?}");
    }

    fn check_all(&self, rows: &[ShortlistRow<'_>]) {
        let lists = self.made(rows);
        rows.iter().enumerate().for_each(|(i, of)| self.check(of, &lists.list(i)));
    }
}

/// Three rows: noise; many ties, both zeros and minus infinity; all equal.
fn rows_of(n: usize) -> Vec<f32> {
    let mut logits = Random(n as u64).floats(n);
    logits.extend((0..n).map(|i| match (i * 7919) % 11 {
        0 => f32::NEG_INFINITY,
        1 => -0.0,
        2 => 0.0,
        k => ((i * 31) % 3) as f32 - (k % 2) as f32,
    }));
    logits.extend(std::iter::repeat_n(-3.5, n));
    logits
}

fn best_of(row: u32, n_best: u32) -> ShortlistRow<'static> {
    ShortlistRow { row, n_best, n_tokens: u32::MAX, listed: &[], mask: None, shares: None }
}

/// Scales of 1, 2^-10 and 100. With the last, few tokens of a row have shares.
const SCALES: [(u32, i32); 3] = [(3_098_164_009, 5), (3_098_164_009, 15), (2_420_440_632, -2)];
const DRAWS: [u32; 5] = [0, 1, 1 << 30, 0x9e37_79b9, u32::MAX];

fn check_lists(width: usize, sizes: &[u32]) {
    let logits = rows_of(width);
    let mask: Vec<u32> =
        (0..width.div_ceil(32) as u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
    let n = width as u32;
    let mut rows = Vec::new();
    for row in 0..3 {
        rows.extend(sizes.iter().map(|&n_best| best_of(row, n_best)));
        rows.push(ShortlistRow { mask: Some(&mask), ..best_of(row, 40) });
        rows.push(ShortlistRow { mask: Some(&mask[..width / 64]), ..best_of(row, 3) });
        rows.push(ShortlistRow { n_tokens: n - n / 3, ..best_of(row, 256) });
        for (i, (factor, range)) in SCALES.into_iter().enumerate() {
            let shares = Some(SharesOf { scale: ShareScale { factor, range }, draws: &DRAWS });
            rows.push(match i {
                0 => ShortlistRow { shares, ..best_of(row, 1) },
                1 => ShortlistRow { shares, mask: Some(&mask), ..best_of(row, 40) },
                _ => ShortlistRow { shares, n_tokens: n / 2, ..best_of(row, 3) },
            });
        }
    }
    // Aligned rows are read four logits at a time.
    for (start, stride) in [(4, width.next_multiple_of(4) + 4), (5, width + 3)] {
        let bench = Bench::new(&logits, width, start, stride);
        bench.check_all(&rows);
        // Listing tokens changes their rows, so these requests are in a separate launch.
        let listed: Vec<u32> = (0..n).step_by((width / 40).max(1)).collect();
        let (factor, range) = SCALES[0];
        let shares = Some(SharesOf { scale: ShareScale { factor, range }, draws: &DRAWS });
        let rows = [0, 1, 2].map(|row| ShortlistRow {
            listed: &listed,
            mask: Some(&mask[..]).filter(|_| row != 1),
            shares,
            ..best_of(row, 40)
        });
        bench.check_all(&rows);
        let mut left = vec![0.0; bench.values.n_bytes() / 4];
        bench.values.read(&bench.stream, 0, &mut left).unwrap();
        let rows = logits.chunks(width).enumerate();
        let mut expected = vec![f32::MAX; left.len()];
        rows.for_each(|(row, x)| {
            let to = &mut expected[start + row * stride..][..width];
            to.copy_from_slice(x);
            listed.iter().for_each(|&id| to[id as usize] = f32::NEG_INFINITY);
        });
        assert_eq!(left, expected, "what is left of {width} logits");
    }
}

#[cfg_attr(test, test)]
fn lists_are_those_of_a_full_sort() {
    for width in [1, 7, 63, 64, 65, 257, 1000] {
        check_lists(width, &[1, 2, 40, 256]);
    }
}

#[cfg_attr(test, test)]
fn lists_of_several_chunks_are_those_of_a_full_sort() {
    check_lists(4097, &[2, 40]);
    check_lists(12_300, &[1, 256]);
}

#[cfg_attr(test, test)]
fn rows_with_more_blocks_than_are_kept_at_hand() {
    let width = 64 * 4096 + 1;
    let mut logits = Random(5).floats(width);
    // The last token is the best, tied with an earlier one.
    (logits[width - 1], logits[70_000]) = (2.0, 2.0);
    let (factor, range) = SCALES[0];
    let shares = Some(SharesOf { scale: ShareScale { factor, range }, draws: &DRAWS });
    let bench = Bench::new(&logits, width, 0, width);
    bench.check_all(&[ShortlistRow { shares, ..best_of(0, 100) }]);
}

#[cfg_attr(test, test)]
fn shares_have_these_bits() {
    // Computed from the definition with Python's rational numbers, for logits up to 17.25 and a scale of one.
    let logits = [17.25, 17.0, 16.7, 1.0, -3.5, -1e30];
    let expected: [u64; 6] = [549_755_813_888, 428_150_257_408, 317_181_723_648, 48_181, 535, 0];
    let (factor, range) = SCALES[0];
    let shares = Some(SharesOf { scale: ShareScale { factor, range }, draws: &[] });
    let bench = Bench::new(&logits, 6, 0, 6);
    for i in 1..6 {
        let row = [ShortlistRow { n_tokens: i as u32, shares, ..best_of(0, 1) }];
        let total: u64 = expected[..i].iter().sum();
        assert_eq!(bench.made(&row).list(0).total, Some(total), "{i}");
    }
}

#[cfg_attr(test, test)]
fn unusable_logits_are_told_where_their_tokens_may_come() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        let mut logits = Random(1).floats(1000);
        logits[700] = bad;
        let bench = Bench::new(&logits, 1000, 0, 1000);
        let mask: Vec<u32> = (0..32).map(|i| if i == 700 / 32 { 0 } else { u32::MAX }).collect();
        let (factor, range) = SCALES[0];
        let shares = Some(SharesOf { scale: ShareScale { factor, range }, draws: &DRAWS });
        let rows = [
            ShortlistRow { shares, ..best_of(0, 3) },
            ShortlistRow { n_tokens: 700, ..best_of(0, 3) },
            ShortlistRow { mask: Some(&mask), shares, ..best_of(0, 3) },
        ];
        let lists = bench.made(&rows);
        let none = Shortlist { listed: &[], best: None, total: Some(0), drawn: &[] };
        assert_eq!(lists.list(0), none, "{bad}");
        [1, 2].into_iter().for_each(|i| bench.check(&rows[i], &lists.list(i)));
        // A listed token is returned individually and removed from the row.
        let rows = [ShortlistRow { listed: &[700], ..best_of(0, 3) }];
        let lists = bench.made(&rows);
        assert_eq!(lists.list(0).listed, [bad.to_bits()]);
        assert_eq!(lists.list(0).best.unwrap(), sorted(&logits, &rows[0]));
    }
    // No token is eligible.
    let bench = Bench::new(&[f32::NEG_INFINITY; 100], 100, 0, 100);
    let (factor, range) = SCALES[0];
    let shares = Some(SharesOf { scale: ShareScale { factor, range }, draws: &DRAWS });
    let lists = bench.made(&[ShortlistRow { shares, ..best_of(0, 3) }]);
    assert_eq!(
        lists.list(0),
        Shortlist { listed: &[], best: Some(&[]), total: Some(0), drawn: &[] }
    );
}

#[cfg_attr(test, test)]
fn captured_lists_follow_what_is_uploaded() {
    let width = 5000;
    let logits = rows_of(width);
    let bench = Bench::new(&logits, width, 0, width);
    let (kernels, stream) = (&bench.kernels, &bench.stream);
    let device = kernels.device();
    let (scratch, mut lists) = (bench.scratch(4), bench.lists(4));
    lists.upload(stream).unwrap();
    device.begin_capture(stream).unwrap();
    lists.queue(kernels, stream, bench.rows(), &scratch, 4, true).unwrap();
    let graph = device.end_capture(stream).unwrap();
    let (factor, range) = SCALES[1];
    let shares = Some(SharesOf { scale: ShareScale { factor, range }, draws: &DRAWS });
    let mask = vec![0x5555_5555; width.div_ceil(32)];
    let all = [
        ShortlistRow { mask: Some(&mask), ..best_of(1, 7) },
        best_of(0, 200),
        ShortlistRow { shares, ..best_of(2, 30) },
        ShortlistRow { shares, ..best_of(0, 3) },
    ];
    // Rows that were not pushed are padding.
    for n_rows in [4, 1, 0, 3] {
        lists.clear();
        all[4 - n_rows..].iter().for_each(|row| lists.push(row));
        lists.upload(stream).unwrap();
        // SAFETY: the rows, the lists and the scratch are still alive.
        unsafe { device.replay(stream, &graph) }.unwrap();
        lists.read(stream).unwrap();
        for (i, of) in all[4 - n_rows..].iter().enumerate() {
            bench.check(of, &lists.list(i));
        }
    }
}

/// The first of the largest logits. Zeros of both signs are equal.
fn first_of_largest(logits: &[f32]) -> [u32; 2] {
    if let Some(bad) = logits.iter().find(|x| x.is_nan() || **x == f32::INFINITY) {
        return [NO_TOKEN, bad.to_bits()];
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let at = logits.iter().position(|&x| x == max && x > f32::NEG_INFINITY);
    at.map_or([NO_TOKEN, max.to_bits()], |at| [at as u32, logits[at].to_bits()])
}

#[cfg_attr(test, test)]
fn the_best_token_is_the_first_of_the_largest() {
    for width in [1, 3, 64, 4095, 4096, 4097, 20_000] {
        let mut logits = rows_of(width);
        // Rows whose largest values are both zeros, that are all minus infinity, and with an unusable logit.
        logits.extend((0..width).map(|i| [-0.0, 0.0, -1.0][(i + 1) % 3]));
        logits.extend(vec![f32::NEG_INFINITY; width]);
        logits.extend((0..width).map(|i| if i == width / 2 { f32::NAN } else { i as f32 }));
        for (start, stride) in [(0, width.next_multiple_of(4)), (3, width + 1)] {
            let bench = Bench::new(&logits, width, start, stride);
            let room = Greedy::new(bench.kernels.device(), &bench.stream, 8).unwrap();
            let tokens = on_device(bench.kernels.device(), &bench.stream, &[9u32; 8]);
            for n_tokens in [width, width - width / 3] {
                let list = List::new(&tokens, 1, 7);
                room.queue(&bench.kernels, &bench.stream, bench.rows(), n_tokens, Some(list))
                    .unwrap();
                let mut found = [[0; 2]; 6];
                room.read(&bench.stream, &mut found).unwrap();
                let expected: Vec<[u32; 2]> =
                    (0..6).map(|row| first_of_largest(&bench.row(row)[..n_tokens])).collect();
                assert_eq!(found.to_vec(), expected, "{n_tokens} of {width}");
                let mut written = [0u32; 8];
                tokens.read(&bench.stream, 0, &mut written).unwrap();
                let ids: Vec<u32> =
                    expected.iter().map(|x| if x[0] == NO_TOKEN { 0 } else { x[0] }).collect();
                assert_eq!(written[1..7], ids);
                assert_eq!([written[0], written[7]], [9, 9]);
            }
        }
    }
}

#[cfg_attr(test, test)]
fn a_captured_choice_feeds_the_next_step() {
    // Row `i` of a table has its largest value at token `i + 1`, so the loop looks up the token that it chose last.
    let n = 70;
    let next = |i: usize| (i * 31 + 7) % n;
    let (kernels, stream) = kernels();
    let device = kernels.device();
    let table: Vec<f32> =
        (0..n * n).map(|i| if i % n == next(i / n) { 1.0 } else { -(i as f32) }).collect();
    let table = on_device(device, &stream, &table);
    let tokens = on_device(device, &stream, &[3u32, 60]);
    let logits = Buffer::new(device, "logits", 4 * 2 * n).unwrap();
    let room = Greedy::new(device, &stream, 2).unwrap();
    let (table, tokens) = (Rows::new(&table, 0, n, n, n), List::all(&tokens));
    let rows = Rows::new(&logits, 0, 2, n, n);
    device.begin_capture(&stream).unwrap();
    crate::select_rows(&kernels, &stream, table, tokens, rows).unwrap();
    room.queue(&kernels, &stream, rows, n, Some(tokens)).unwrap();
    let graph = device.end_capture(&stream).unwrap();
    let mut expected = [3, 60];
    for _ in 0..5 {
        // SAFETY: the table, the logits, the tokens and the room are still alive.
        unsafe { device.replay(&stream, &graph) }.unwrap();
        expected = expected.map(next);
    }
    let mut found = [[0; 2]; 2];
    room.read(&stream, &mut found).unwrap();
    assert_eq!(found, expected.map(|id| [id as u32, 1f32.to_bits()]));
}

/// The expected token of a draw, by shares in rational numbers as far as 128 bits can represent them.
fn drawn_of_best(logits: &[f32], of: &ShortlistRow<'_>, draw: &DrawOfBest) -> u32 {
    let DrawOfBest { scale, top_p, of_row, min_p, draw, by_id } = *draw;
    let best = sorted(logits, of);
    let max = f32::from_bits(best[0][1]);
    let shares_of = SharesOf { scale, draws: &[] };
    let weigh = |bits: u32| u128::from(share(f32::from_bits(bits), max, &shares_of));
    let part = |x: u128, part: u32| (x * u128::from(part)) >> 32;
    let weighed = best.iter().map(|&[id, bits]| (id, weigh(bits)));
    let of_best: u128 = weighed.clone().map(|(_, share)| share).sum();
    let whole = ShortlistRow { shares: Some(shares_of), ..*of };
    let sum = if of_row { u128::from(shares(logits, &whole).unwrap().0) } else { of_best };
    let mut before = 0;
    let mut kept: Vec<(u32, u128)> = Vec::new();
    for (id, share) in weighed {
        let is_nucleus = top_p.is_none_or(|top_p| before < part(sum, top_p));
        if is_nucleus && share >= part(weigh(best[0][1]), min_p) {
            kept.push((id, share));
        }
        before += share;
    }
    if by_id {
        kept.sort_unstable();
    }
    let mut left = part(kept.iter().map(|(_, share)| share).sum(), draw);
    let found = kept.iter().find(|(_, share)| {
        let is_here = left < *share;
        left -= if is_here { 0 } else { *share };
        is_here
    });
    found.expect("a place is in front of the end").0
}

#[cfg_attr(test, test)]
fn lists_feed_the_next_step() {
    let width = 5000;
    let mut logits = rows_of(width);
    let n_usual = logits.len() / width;
    // The last two rows have no token and an unusable logit.
    logits.extend(vec![f32::NEG_INFINITY; width]);
    logits.extend((0..width).map(|i| if i == 70 { f32::NAN } else { i as f32 }));
    let bench = Bench::new(&logits, width, 0, width);
    let (factor, range) = SCALES[1];
    let shares = |draws| Some(SharesOf { scale: ShareScale { factor, range }, draws });
    let row = |row: usize| row as u32;
    let listed = [3, 4001, 4999];
    let mut wanted = vec![
        ShortlistRow { listed: &listed, ..best_of(row(1), 1) },
        ShortlistRow { shares: shares(&DRAWS), ..best_of(row(0), 1) },
        ShortlistRow { shares: shares(&[]), ..best_of(row(2), 5) },
    ];
    wanted.extend([best_of(row(n_usual), 1), best_of(row(n_usual + 1), 3)]);
    let mut lists = bench.made(&wanted);
    let list = |idx: usize| lists.list(idx);
    let first = |idx: usize| list(idx).best.unwrap()[0][0];
    let expected = [first(0), list(1).drawn[0][0], first(2)];
    let device = bench.kernels.device();
    // In another order than the lists, with rows that keep their tokens, and rows after those that are fed.
    let (n, n_fed) = (12, 5);
    let draw = DrawOfBest {
        scale: ShareScale { factor, range },
        top_p: None,
        of_row: false,
        min_p: 0,
        draw: 0,
        by_id: false,
    };
    let of = [(2, NextToken::Best), (0, NextToken::Best), (1, NextToken::Drawn)];
    let bad = [(3, NextToken::Best), (4, NextToken::OfBest(draw))];
    let mut sources = vec![[NONE; 8]; n];
    for (to, &(idx, next)) in sources.iter_mut().zip(of.iter().chain(&bad)) {
        *to = lists.source(idx, next);
    }
    let sources = on_device(device, &bench.stream, sources.as_flattened());
    let tokens = on_device(device, &bench.stream, &vec![7u32; n + 2]);
    let fed = List::new(&tokens, 1, n);
    lists.feed(&bench.kernels, &bench.stream, List::all(&sources), fed, n_fed).unwrap();
    lists.read(&bench.stream).unwrap();
    let mut found = vec![0u32; n + 2];
    tokens.read(&bench.stream, 0, &mut found).unwrap();
    for (i, &token) in found[1..=n].iter().enumerate() {
        match i {
            0..3 => assert_eq!((token, lists.fed(i)), (expected[of[i].0], expected[of[i].0])),
            // Any token is allowed if there is none.
            3 | 4 => assert!((token as usize) < width && lists.fed(i) == token, "{token}"),
            _ => assert_eq!(token, 7, "row {i}"),
        }
    }
    assert_eq!([found[0], found[n + 1]], [7, 7]);
    bench.check(&wanted[1], &lists.list(1));
}

#[cfg_attr(test, test)]
fn tokens_are_drawn_of_the_best_behind_filters() {
    let logits = rows_of(700);
    let n_rows = logits.len() / 700;
    let bench = Bench::new(&logits, 700, 0, 700);
    let device = bench.kernels.device();
    let half = 1 << 31;
    let mut cases = Vec::new();
    for (factor, range) in SCALES {
        let plain = DrawOfBest {
            scale: ShareScale { factor, range },
            top_p: None,
            of_row: false,
            min_p: 0,
            draw: half,
            by_id: false,
        };
        for draw in [0, half, u32::MAX] {
            cases.extend([
                (40, DrawOfBest { draw, ..plain }),
                (256, DrawOfBest { draw, top_p: Some(half), of_row: true, by_id: true, ..plain }),
                (20, DrawOfBest { draw, top_p: Some(0xf000_0000), min_p: half / 8, ..plain }),
                (256, DrawOfBest { draw, min_p: half / 4, by_id: true, ..plain }),
                (1, DrawOfBest { draw, top_p: Some(1), ..plain }),
            ]);
        }
    }
    for (n_best, draw) in cases {
        let shares = SharesOf { scale: draw.scale, draws: &[] };
        let wanted: Vec<_> = (0..n_rows as u32)
            .map(|row| ShortlistRow { shares: Some(shares), ..best_of(row, n_best) })
            .collect();
        let mut lists = bench.made(&wanted);
        let source = |idx| lists.source(idx, NextToken::OfBest(draw));
        let sources: Vec<[u32; 8]> = (0..n_rows).map(source).collect();
        let sources = on_device(device, &bench.stream, sources.as_flattened());
        let tokens = on_device(device, &bench.stream, &vec![7u32; n_rows]);
        let (sources, tokens) = (List::all(&sources), List::all(&tokens));
        lists.feed(&bench.kernels, &bench.stream, sources, tokens, n_rows).unwrap();
        lists.read(&bench.stream).unwrap();
        for (row, of) in wanted.iter().enumerate() {
            let expected = drawn_of_best(bench.row(of.row), of, &draw);
            assert_eq!(lists.fed(row), expected, "row {row}, the best {n_best}, {draw:?}");
        }
    }
}

#[cfg_attr(test, test)]
#[cfg_attr(test, should_panic(expected = "shares are wanted"))]
fn shares_are_not_left_out_silently() {
    let bench = Bench::new(&[1.0; 8], 8, 0, 8);
    let (scratch, mut lists) = (bench.scratch(1), bench.lists(1));
    let (factor, range) = SCALES[0];
    lists.push(&ShortlistRow {
        shares: Some(SharesOf { scale: ShareScale { factor, range }, draws: &[] }),
        ..best_of(0, 1)
    });
    lists.queue(&bench.kernels, &bench.stream, bench.rows(), &scratch, 1, false).unwrap();
}

crate::testing::tests![
    lists_are_those_of_a_full_sort,
    lists_of_several_chunks_are_those_of_a_full_sort,
    rows_with_more_blocks_than_are_kept_at_hand,
    shares_have_these_bits,
    unusable_logits_are_told_where_their_tokens_may_come,
    captured_lists_follow_what_is_uploaded,
    the_best_token_is_the_first_of_the_largest,
    a_captured_choice_feeds_the_next_step,
    lists_feed_the_next_step,
    tokens_are_drawn_of_the_best_behind_filters,
    shares_are_not_left_out_silently => "shares are wanted",
];
