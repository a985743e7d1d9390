//! Activations as 8-bit integers, the input of the integer matrix products.
//!
//! One format serves every weight type: blocks of 32 values with an f32 scale per half, and sums for
//! weight types with minimums. A scale per 16 values limits the effect of an outlier more than the 32
//! of `Q8_0` or the 256 of `Q8_K`, and an f32 scale is not rounded.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::Range;

use crate::elementwise::row_grain;
#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::{Rows, RowsMut, Team, Tier};

/// Values per block. Rows are whole blocks.
pub(crate) const BLOCK_LEN: usize = 32;
/// Values that share a scale.
const HALF_LEN: usize = BLOCK_LEN / 2;
/// Number of blocks that the vector form quantizes at a time.
#[cfg(target_arch = "x86_64")]
const GROUP_LEN: usize = 4;
/// f32 elements per cache line.
const LINE_LEN: usize = 16;

/// One quantized row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedRow<'a> {
    pub(crate) quants: &'a [i8],          // [n_cols]
    pub(crate) scales: &'a [f32],         // [n_cols / 16]
    pub(crate) half_sums: &'a [f32],      // [n_cols / 16], scale * sum of 16 quants
    pub(crate) block_sums: &'a [f32],     // [n_cols / 32], sums of two half_sums
    pub(crate) pair_sums: &'a [[i16; 2]], // [n_cols / 16], see QuantizedRows::pair_sums
}

impl QuantizedRow<'_> {
    /// The columns in a range of whole blocks.
    pub(crate) fn slice_cols(&self, cols: Range<usize>) -> Self {
        let blocks = cols.start / BLOCK_LEN..cols.end / BLOCK_LEN;
        let halves = 2 * blocks.start..2 * blocks.end;
        Self {
            quants: &self.quants[cols],
            scales: &self.scales[halves.clone()],
            half_sums: &self.half_sums[halves.clone()],
            block_sums: &self.block_sums[blocks],
            pair_sums: &self.pair_sums[halves],
        }
    }

    /// Whether every part covers the quants.
    pub(crate) fn is_whole(&self) -> bool {
        let n_blocks = self.quants.len() / BLOCK_LEN;
        self.quants.len().is_multiple_of(BLOCK_LEN)
            && self.block_sums.len() == n_blocks
            && [self.scales.len(), self.half_sums.len(), self.pair_sums.len()] == [2 * n_blocks; 3]
    }
}

/// One row to be quantized, in whole blocks.
pub(crate) struct QuantizedRowMut<'a> {
    quants: &'a mut [[i8; BLOCK_LEN]],  // [n_blocks]
    scales: &'a mut [[f32; 2]],         // [n_blocks]
    half_sums: &'a mut [[f32; 2]],      // [n_blocks]
    block_sums: &'a mut [f32],          // [n_blocks]
    pair_sums: &'a mut [[[i16; 2]; 2]], // [n_blocks]
}

/// Rows of activations as 8-bit integers: `x[i] ≈ scale[i / 16] * quant[i]`. The scale is the largest
/// magnitude among its sixteen values, divided by 127; quants are rounded to nearest, ties to even. If
/// a value is not finite the scale is not either, and so is every product with it.
///
/// A row of activations takes one row here, or two planes ([`Self::quantize_in_planes`]): the second
/// plane has the rounding error of the first, so the two have 15 bits instead of 8.
///
/// A row is stored as its quants, then its scales, then its sums. Rows begin on cache lines, an odd
/// number of lines apart, so that they do not compete for the same cache sets.
///
/// ```
/// use realizar_kernels_cpu::{QuantizedRows, Rows, Team, Tier};
///
/// let team = Team::new(1);
/// let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
/// let mut q = QuantizedRows::with_capacity(1, 64);
/// q.quantize(&team, Tier::detect(), Rows::new(&x, 1, 64));
/// assert_eq!(q.quants(0)[31], 127);
/// assert_eq!(q.scales(0)[1], 31.0 / 127.0);
/// ```
#[derive(Debug)]
pub struct QuantizedRows {
    n_rows: usize,
    n_cols: usize,
    /// Number of activation rows with two planes, which are the first `2 * n_pairs` rows.
    n_pairs: usize,
    /// Indices of the activation rows: first those with two planes, then those with one.
    tokens: Vec<u32>, // [n_tokens], room for max_rows
    max_rows: usize,
    max_cols: usize,
    data: Vec<f32>, // [start + max_rows * stride of max_cols]
    start: usize,   // of the first cache line
}

/// f32 elements from the start of a row of `n_blocks` blocks to the next.
const fn row_stride(n_blocks: usize) -> usize {
    // Quants take a quarter of an element each, in whole cache lines; then 7 elements per block.
    let quants = (n_blocks * BLOCK_LEN / 4).next_multiple_of(LINE_LEN);
    let n_lines = (quants + 7 * n_blocks).div_ceil(LINE_LEN);
    (n_lines | 1) * LINE_LEN
}

impl QuantizedRows {
    /// Allocates room for `max_rows` rows of `max_cols` values.
    pub fn with_capacity(max_rows: usize, max_cols: usize) -> Self {
        let n_blocks = max_cols.div_ceil(BLOCK_LEN);
        let data = vec![0.0; max_rows * row_stride(n_blocks) + LINE_LEN];
        let start = data.as_ptr().align_offset(LINE_LEN * size_of::<f32>());
        Self {
            n_rows: 0,
            n_cols: 0,
            n_pairs: 0,
            tokens: Vec::with_capacity(max_rows),
            max_rows,
            max_cols: n_blocks * BLOCK_LEN,
            data,
            start,
        }
    }

    /// Bytes that [`Self::with_capacity`] allocates.
    pub const fn bytes_for(max_rows: usize, max_cols: usize) -> usize {
        (max_rows * row_stride(max_cols.div_ceil(BLOCK_LEN)) + LINE_LEN) * size_of::<f32>()
    }

    /// Number of rows; each plane counts.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Number of activation rows with two planes. The planes of the `i`-th are rows `2 i` and `2 i + 1`;
    /// activation rows with one plane follow.
    pub const fn n_pairs(&self) -> usize {
        self.n_pairs
    }

    /// Number of activation rows; two planes count once.
    pub const fn n_tokens(&self) -> usize {
        self.n_rows - self.n_pairs
    }

    /// Indices of the activation rows: those with two planes, then those with one, each ascending.
    /// `[n_tokens]`
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Values per row.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The quants of a row, aligned to a cache line. `[n_cols]`
    pub fn quants(&self, row: usize) -> &[i8] {
        self.row(row).quants
    }

    /// The scales of a row. `[n_cols / 16]`
    pub fn scales(&self, row: usize) -> &[f32] {
        self.row(row).scales
    }

    /// The sums of every 16 quants of a row, times their scale. `[n_cols / 16]`
    pub fn half_sums(&self, row: usize) -> &[f32] {
        self.row(row).half_sums
    }

    /// The sums of every two [`Self::half_sums`] of a row. `[n_cols / 32]`
    pub fn block_sums(&self, row: usize) -> &[f32] {
        self.row(row).block_sums
    }

    /// For every 16 quants of a row, the sum of the first two of each four, and the sum of the last two:
    /// the sums of the kernels' 16-bit lanes. `[n_cols / 16]`
    pub fn pair_sums(&self, row: usize) -> &[[i16; 2]] {
        self.row(row).pair_sums
    }

    /// Bytes from a part of a row to the same part of the next row.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) const fn row_stride(&self) -> usize {
        row_stride(self.n_cols / BLOCK_LEN) * size_of::<f32>()
    }

    /// All parts of row `i`.
    #[inline]
    pub(crate) fn row(&self, i: usize) -> QuantizedRow<'_> {
        assert!(i < self.n_rows, "row {i} of {}", self.n_rows);
        let n_blocks = self.n_cols / BLOCK_LEN;
        let stride = row_stride(n_blocks);
        let row = &self.data[self.start + i * stride..][..stride];
        let (quants, row) = row.split_at((self.n_cols / 4).next_multiple_of(LINE_LEN));
        let (scales, row) = row.split_at(2 * n_blocks);
        let (half_sums, row) = row.split_at(2 * n_blocks);
        let (block_sums, row) = row.split_at(n_blocks);
        QuantizedRow {
            quants: &bytemuck::cast_slice(quants)[..self.n_cols],
            scales,
            half_sums,
            block_sums,
            pair_sums: bytemuck::cast_slice(&row[..2 * n_blocks]),
        }
    }

    /// Replaces the rows by those of `x`. Each row depends on that row of `x` alone,
    /// and its bytes are the same on every tier.
    ///
    /// # Panics
    /// If `x` is larger than the capacity, or its rows are not whole blocks of 32.
    pub fn quantize(&mut self, team: &Team, tier: Tier, x: Rows<'_>) {
        self.quantize_in_planes(team, tier, x, &[]);
    }

    /// Replaces the rows by those of `x`. Rows in `pairs` get two planes,
    /// `x[i] ≈ scale1 * quant1 + scale2 * quant2`; the others get one, as by [`Self::quantize`]. The bytes
    /// are the same on every tier.
    ///
    /// # Panics
    /// As [`Self::quantize`], where a row of two planes counts twice; or if `pairs` are not ascending ranges
    /// of the rows of `x`.
    pub fn quantize_in_planes(
        &mut self,
        team: &Team,
        tier: Tier,
        x: Rows<'_>,
        pairs: &[Range<usize>],
    ) {
        self.arrange(x.n_rows(), x.n_cols(), pairs);
        self.fill(team, |token, mut row| row.quantize(tier, 0, x.row(token)));
        self.fill_pairs(team, tier, |_i, token| x.row(token));
    }

    /// Sets the shape to `n_tokens` activation rows, of which those in `pairs` have two planes, without
    /// writing their contents. Fused kernels such as [`norm_quantize`](crate::norm_quantize) then fill the
    /// rows of one plane, and [`Self::quantize_pairs`] fills the others.
    ///
    /// # Panics
    /// If the shape exceeds the capacity, rows are not whole blocks of 32, or `pairs` are not ascending
    /// ranges of rows.
    pub fn arrange(&mut self, n_tokens: usize, n_cols: usize, pairs: &[Range<usize>]) {
        let n_pairs: usize = pairs.iter().map(Range::len).sum();
        let n_rows = n_tokens + n_pairs;
        assert!(n_cols.is_multiple_of(BLOCK_LEN), "{n_cols} columns are not blocks of 32");
        assert!(n_rows <= self.max_rows, "{n_rows} rows, room for {}", self.max_rows);
        assert!(n_cols <= self.max_cols, "{n_cols} columns, room for {}", self.max_cols);
        (self.n_rows, self.n_cols, self.n_pairs) = (n_rows, n_cols, n_pairs);
        let mut next = 0;
        let end = std::iter::once(n_tokens..n_tokens);
        let single = pairs.iter().cloned().chain(end).flat_map(|pairs| {
            assert!(next <= pairs.start && pairs.end <= n_tokens, "rows {pairs:?} of {n_tokens}");
            std::mem::replace(&mut next, pairs.end)..pairs.start
        });
        self.tokens.clear();
        let tokens = pairs.iter().cloned().flatten().chain(single);
        self.tokens.extend(tokens.map(|token| token as u32));
    }

    /// Quantizes the rows of `x`, in order, to the rows of two planes.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn quantize_pairs(
        &mut self,
        team: &Team,
        tier: Tier,
        x: Rows<'_>, // [n_pairs, n_cols]
    ) {
        assert_eq!((x.n_rows(), x.n_cols()), (self.n_pairs, self.n_cols), "shape of the pairs");
        self.fill_pairs(team, tier, |i, _token| x.row(i));
    }

    /// # Panics
    /// If the shape is not that of `x`.
    pub(crate) fn assert_arranged(&self, x: Rows<'_>) {
        assert_eq!(
            (self.n_tokens(), self.n_cols),
            (x.n_rows(), x.n_cols()),
            "rows that are arranged"
        );
    }

    /// Fills each row of one plane by `f`, which gets the index of the activation row.
    pub(crate) fn fill<F>(&mut self, team: &Team, f: F)
    where
        F: Fn(usize, QuantizedRowMut<'_>) + Sync,
    {
        let n_blocks = self.n_cols / BLOCK_LEN;
        let stride = row_stride(n_blocks);
        let (n_pairs, tokens) = (self.n_pairs, &self.tokens);
        let n_single = self.n_rows - 2 * n_pairs;
        let data = &mut self.data[self.start + 2 * n_pairs * stride..][..n_single * stride];
        let rows = RowsMut::new(data, n_single, stride);
        team.for_each_row_mut(rows, row_grain(self.n_cols), |i, row, _thread| {
            f(tokens[n_pairs + i] as usize, QuantizedRowMut::new(row, n_blocks));
        });
    }

    /// Fills the rows of two planes with the rows that `x` returns for a pair's index and its activation
    /// row's index.
    fn fill_pairs<'x>(
        &mut self,
        team: &Team,
        tier: Tier,
        x: impl Fn(usize, usize) -> &'x [f32] + Sync,
    ) {
        let (n_pairs, n_cols, tokens) = (self.n_pairs, self.n_cols, &self.tokens);
        let n_blocks = n_cols / BLOCK_LEN;
        let stride = row_stride(n_blocks);
        let data = &mut self.data[self.start..][..2 * n_pairs * stride];
        let pairs = RowsMut::new(data, n_pairs, 2 * stride);
        team.for_each_row_mut(pairs, row_grain(2 * n_cols), |i, pair, _thread| {
            let (first, second) = pair.split_at_mut(stride);
            let (mut first, x) = (QuantizedRowMut::new(first, n_blocks), x(i, tokens[i] as usize));
            first.quantize(tier, 0, x);
            QuantizedRowMut::new(second, n_blocks)
                .produce(tier, 0, n_cols, |cols, out| first.rest(x, cols, out));
        });
    }
}

impl<'a> QuantizedRowMut<'a> {
    /// The parts of a row of [`row_stride`] elements.
    fn new(row: &'a mut [f32], n_blocks: usize) -> Self {
        let n_quants = n_blocks * BLOCK_LEN / 4;
        let (quants, row) = row.split_at_mut(n_quants.next_multiple_of(LINE_LEN));
        let (scales, row) = row.split_at_mut(2 * n_blocks);
        let (half_sums, row) = row.split_at_mut(2 * n_blocks);
        let (block_sums, row) = row.split_at_mut(n_blocks);
        Self {
            quants: bytemuck::cast_slice_mut(&mut quants[..n_quants]),
            scales: scales.as_chunks_mut().0,
            half_sums: half_sums.as_chunks_mut().0,
            block_sums,
            pair_sums: bytemuck::cast_slice_mut(&mut row[..2 * n_blocks]),
        }
    }

    /// Quantizes `x` to the blocks from block `first` on.
    pub(crate) fn quantize(&mut self, tier: Tier, first: usize, x: &[f32]) {
        let blocks = x.as_chunks::<BLOCK_LEN>().0;
        match tier.avx2() {
            None => {
                for (b, block) in (first..).zip(blocks) {
                    self.set_block(b, block);
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves that AVX2, FMA and F16C were detected.
            Some(_) => unsafe { self.quantize_avx2(first, blocks) },
        }
    }

    /// Quantizes `n_cols` values to the blocks from block `first` on. `f` writes the values of one piece
    /// at a time: it gets the columns of the piece, which are whole blocks, and a buffer for them that
    /// stays in the L1 cache.
    pub(crate) fn produce(
        &mut self,
        tier: Tier,
        first: usize,
        n_cols: usize,
        f: impl Fn(Range<usize>, &mut [f32]),
    ) {
        const PIECE: usize = 16 * BLOCK_LEN;
        let mut piece = [0.0; PIECE];
        for start in (0..n_cols).step_by(PIECE) {
            let cols = start..n_cols.min(start + PIECE);
            let piece = &mut piece[..cols.len()];
            f(cols, piece);
            self.quantize(tier, first + start / BLOCK_LEN, piece);
        }
    }

    /// Writes the rounding errors of some columns of `x`, whose quants are in this row. A product and a
    /// difference in F32 give the same bits on every tier.
    fn rest(&self, x: &[f32], cols: Range<usize>, out: &mut [f32]) {
        let halves = cols.start / HALF_LEN..cols.end / HALF_LEN;
        let quants = &self.quants.as_flattened().as_chunks::<HALF_LEN>().0[halves.clone()];
        let scales = &self.scales.as_flattened()[halves];
        let (x, out) = (x[cols].as_chunks::<HALF_LEN>().0, out.as_chunks_mut::<HALF_LEN>().0);
        for (((out, x), quants), scale) in out.iter_mut().zip(x).zip(quants).zip(scales) {
            for ((out, x), quant) in out.iter_mut().zip(x).zip(quants) {
                *out = x - scale * f32::from(*quant);
            }
        }
    }

    /// The twin of the scalar loop.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn quantize_avx2(&mut self, first: usize, x: &[[f32; BLOCK_LEN]]) {
        let (groups, rest) = x.as_chunks::<GROUP_LEN>();
        for (b, group) in (first..).step_by(GROUP_LEN).zip(groups) {
            self.set_group(b, GROUP_LEN, &quantize_group_avx2(group));
        }
        if !rest.is_empty() {
            let mut group = [[0.0; BLOCK_LEN]; GROUP_LEN];
            group[..rest.len()].copy_from_slice(rest);
            let b = first + GROUP_LEN * groups.len();
            self.set_group(b, rest.len(), &quantize_group_avx2(&group));
        }
    }

    /// Copies the first `n` blocks of a group to the blocks from `b` on.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn set_group(&mut self, b: usize, n: usize, group: &Group) {
        self.quants[b..b + n].copy_from_slice(&group.quants[..n]);
        self.scales[b..b + n].copy_from_slice(&group.scales[..n]);
        self.half_sums[b..b + n].copy_from_slice(&group.half_sums[..n]);
        self.block_sums[b..b + n].copy_from_slice(&group.block_sums[..n]);
        self.pair_sums[b..b + n].copy_from_slice(&group.pair_sums[..n]);
    }

    /// Quantizes block `b`.
    fn set_block(&mut self, b: usize, x: &[f32; BLOCK_LEN]) {
        for (half, x) in x.as_chunks::<HALF_LEN>().0.iter().enumerate() {
            let quants = &mut self.quants[b].as_chunks_mut::<HALF_LEN>().0[half];
            let scale = quantize_half(x, quants);
            let mut sums = [0; 2];
            for four in quants.as_chunks::<4>().0 {
                let [a, b, c, d] = four.map(i16::from);
                sums = [sums[0] + a + b, sums[1] + c + d];
            }
            self.scales[b][half] = scale;
            self.half_sums[b][half] = scale * f32::from(sums[0] + sums[1]);
            self.pair_sums[b][half] = sums;
        }
        self.block_sums[b] = self.half_sums[b][0] + self.half_sums[b][1];
    }
}

/// Quantizes values that share a scale and returns the scale.
fn quantize_half(x: &[f32; HALF_LEN], quants: &mut [i8; HALF_LEN]) -> f32 {
    // As integers, the bits of magnitudes compare like the magnitudes, with NaN above all others.
    let amax = f32::from_bits(x.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0));
    let scale = amax / 127.0;
    let inv = if scale.is_normal() { scale.recip() } else { 0.0 };
    for (q, &v) in quants.iter_mut().zip(x) {
        *q = (v * inv).round_ties_even() as i8;
    }
    // Values whose scale would be subnormal are rounded to zero.
    if scale < f32::MIN_POSITIVE { 0.0 } else { scale }
}
/// Quantized blocks.
#[cfg(target_arch = "x86_64")]
struct Group {
    quants: [[i8; BLOCK_LEN]; GROUP_LEN],
    scales: [[f32; 2]; GROUP_LEN],
    half_sums: [[f32; 2]; GROUP_LEN],
    block_sums: [f32; GROUP_LEN],
    pair_sums: [[[i16; 2]; 2]; GROUP_LEN],
}

/// Quantizes four blocks, with the bytes of [`QuantizedRowMut::set_block`]. The scales of the eight
/// halves are lanes of one vector, so that one division computes all of them.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_group_avx2(x: &[[f32; BLOCK_LEN]; GROUP_LEN]) -> Group {
    // The largest magnitude of each half, as bits. Each step unpacks two registers against
    // each other and halves the number of lanes per half.
    let sign_off = _mm256_set1_epi32(i32::MAX);
    let mut pairs = [_mm256_setzero_si256(); GROUP_LEN];
    for (pair, x) in pairs.iter_mut().zip(x) {
        let mut abs = [_mm256_setzero_si256(); 4];
        for (abs, v) in abs.iter_mut().zip(lanes::load32(x)) {
            *abs = _mm256_and_si256(_mm256_castps_si256(v), sign_off);
        }
        let (a, b) = (_mm256_max_epi32(abs[0], abs[1]), _mm256_max_epi32(abs[2], abs[3]));
        *pair = _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    }
    let mut fours = [_mm256_setzero_si256(); 2];
    for (four, [a, b]) in fours.iter_mut().zip(pairs.as_chunks::<2>().0) {
        *four = _mm256_max_epi32(_mm256_unpacklo_epi64(*a, *b), _mm256_unpackhi_epi64(*a, *b));
    }
    let amax = _mm256_castsi256_ps(_mm256_max_epi32(
        _mm256_permute2x128_si256::<0x20>(fours[0], fours[1]),
        _mm256_permute2x128_si256::<0x31>(fours[0], fours[1]),
    ));

    let infinity = _mm256_set1_ps(f32::INFINITY);
    let scale = _mm256_div_ps(amax, _mm256_set1_ps(127.0));
    let quiet = _mm256_cmp_ps::<_CMP_LT_OQ>(scale, _mm256_set1_ps(f32::MIN_POSITIVE));
    let normal = _mm256_andnot_ps(quiet, _mm256_cmp_ps::<_CMP_LT_OQ>(scale, infinity));
    let inv = _mm256_and_ps(normal, _mm256_div_ps(_mm256_set1_ps(1.0), scale));
    let mut inverse = [0.0; 8];
    lanes::store(inv, &mut inverse);
    // A value that is not finite converts to i32::MIN here and to 0 in the scalar twin.
    let is_finite = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LT_OQ>(amax, infinity));
    let mut finite = [0_i32; 8];
    // SAFETY: the store writes the 32 bytes of the array.
    unsafe { _mm256_storeu_si256(finite.as_mut_ptr().cast(), is_finite) };

    let mut quants = [[0; BLOCK_LEN]; GROUP_LEN];
    let mut pairs = [_mm256_setzero_si256(); GROUP_LEN];
    for i in 0..GROUP_LEN {
        let mut q = [_mm256_setzero_si256(); 4];
        for (v, (q, x)) in q.iter_mut().zip(lanes::load32(&x[i])).enumerate() {
            // The conversion rounds ties to even, as the default rounding mode says.
            let half = 2 * i + v / 2;
            let ints = _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(inverse[half])));
            *q = _mm256_and_si256(ints, _mm256_set1_epi32(finite[half]));
        }
        let first = _mm256_packs_epi32(q[0], q[1]); // quads 0 2 | 1 3
        let second = _mm256_packs_epi32(q[2], q[3]); // quads 4 6 | 5 7
        let all = _mm256_packs_epi16(first, second); // quads 0 2 4 6 | 1 3 5 7
        let all = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        // SAFETY: the store writes the 32 bytes of the array.
        unsafe { _mm256_storeu_si256(quants[i].as_mut_ptr().cast(), all) };
        pairs[i] = _mm256_maddubs_epi16(_mm256_set1_epi8(1), all);
    }

    // The lower lanes are the sums of first halves, the upper ones of second halves.
    let mut twos = [_mm256_setzero_si256(); 2];
    for (two, [a, b]) in twos.iter_mut().zip(pairs.as_chunks::<2>().0) {
        *two = _mm256_add_epi16(_mm256_unpacklo_epi32(*a, *b), _mm256_unpackhi_epi32(*a, *b));
    }
    let [a, b] = twos;
    let both = _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let pair_sums = _mm256_permutevar8x32_epi32(both, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let sum = _mm256_madd_epi16(pair_sums, _mm256_set1_epi16(1));
    let scale = _mm256_andnot_ps(quiet, scale);
    let half_sum = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sum));
    let mut out = Group {
        quants,
        scales: [[0.0; 2]; GROUP_LEN],
        half_sums: [[0.0; 2]; GROUP_LEN],
        block_sums: [0.0; GROUP_LEN],
        pair_sums: [[[0; 2]; 2]; GROUP_LEN],
    };
    // SAFETY: the stores write 32 bytes each: the scales and the sums of eight halves.
    unsafe {
        _mm256_storeu_ps(out.scales.as_flattened_mut().as_mut_ptr(), scale);
        _mm256_storeu_ps(out.half_sums.as_flattened_mut().as_mut_ptr(), half_sum);
        _mm256_storeu_si256(out.pair_sums.as_mut_ptr().cast(), pair_sums);
    }
    for (sum, halves) in out.block_sums.iter_mut().zip(out.half_sums) {
        *sum = halves[0] + halves[1];
    }
    out
}

#[cfg(test)]
impl QuantizedRows {
    /// Asserts that two have the same rows, to the byte.
    pub(crate) fn assert_same_bytes(&self, other: &Self) {
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!((self.n_rows, self.n_cols), (other.n_rows, other.n_cols));
        for i in 0..self.n_rows {
            let (a, b) = (self.row(i), other.row(i));
            assert_eq!((a.quants, a.pair_sums), (b.quants, b.pair_sums), "row {i}");
            assert_eq!(bits(a.scales), bits(b.scales), "row {i}");
            assert_eq!(bits(a.half_sums), bits(b.half_sums), "row {i}");
            assert_eq!(bits(a.block_sums), bits(b.block_sums), "row {i}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantize(tier: Tier, x: &[f32]) -> QuantizedRows {
        let mut q = QuantizedRows::with_capacity(1, x.len());
        q.quantize(&Team::new(1), tier, Rows::new(x, 1, x.len()));
        q
    }

    /// Checks quants, sums and scales of one block on every tier.
    fn check(x: &[f32], quants: &[i8], scales: [f32; 2]) {
        for tier in Tier::available() {
            let q = quantize(tier, x);
            assert_eq!(q.quants(0), quants, "{tier}");
            assert_eq!(q.scales(0).len(), 2);
            for half in 0..2 {
                let quants = quants[16 * half..][..16].iter().map(|&q| i16::from(q));
                let pairs = [0, 2].map(|first| {
                    let lane = quants.clone().enumerate().filter(|(i, _)| i % 4 / 2 * 2 == first);
                    lane.map(|(_, q)| q).sum::<i16>()
                });
                let half_sum = scales[half] * f32::from(pairs[0] + pairs[1]);
                assert_eq!(q.scales(0)[half].to_bits(), scales[half].to_bits(), "{tier}");
                assert_eq!(q.pair_sums(0)[half], pairs, "{tier}");
                assert_eq!(q.half_sums(0)[half].to_bits(), half_sum.to_bits(), "{tier}");
            }
            assert_eq!(q.block_sums(0), [q.half_sums(0)[0] + q.half_sums(0)[1]], "{tier}");
        }
    }

    #[test]
    fn values_round_to_nearest_even() {
        let cases = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0];
        let (mut x, mut expected) = ([0.0; 32], [0; 32]);
        for (i, (v, q)) in cases.into_iter().zip([127, 0, 2, 2, 0, -2, -127]).enumerate() {
            // Both halves, with a scale each.
            (x[2 * i], expected[2 * i]) = (v, q);
            (x[16 + 2 * i + 1], expected[16 + 2 * i + 1]) = (4.0 * v, q);
        }
        check(&x, &expected, [1.0, 4.0]);
        check(&x.map(|v| v * 0.25), &expected, [0.25, 1.0]);
    }

    #[test]
    fn extreme_blocks() {
        check(&[0.0; 32], &[0; 32], [0.0; 2]);
        check(&[-0.0; 32], &[0; 32], [0.0; 2]);
        check(&[f32::MIN_POSITIVE / 2.0; 32], &[0; 32], [0.0; 2]);
        check(&[-f32::MAX; 32], &[-127; 32], [f32::MAX / 127.0; 2]);
        let mut x = [1.0; 32];
        (x[7], x[31]) = (f32::NEG_INFINITY, f32::NAN);
        for tier in Tier::available() {
            let q = quantize(tier, &x);
            assert_eq!(q.scales(0)[0], f32::INFINITY);
            assert!(q.scales(0)[1].is_nan());
            assert_eq!(q.quants(0), [0; 32]);
        }
    }

    #[test]
    fn tiers_agree_to_the_byte_and_the_error_is_half_a_step() {
        let mut seed = 1;
        let mut x = crate::testing::random(&mut seed, 32 * 50);
        x[32 * 5..32 * 6].fill(0.0);
        x[32 * 9..32 * 10].fill(1e-38);
        x[32 * 49..].fill(-1e38);
        let scalar = quantize(Tier::Scalar, &x);
        for (i, &v) in x.iter().enumerate() {
            let scale = scalar.scales(0)[i / 16];
            let back = scale * f32::from(scalar.quants(0)[i]);
            // Blocks of tiny values count as zero.
            assert!((back - v).abs() <= scale * 0.5001 + 1e-37, "{v} became {back}");
        }
        for tier in Tier::available() {
            quantize(tier, &x).assert_same_bytes(&scalar);
        }
        // Blocks that are not finite, first and last of a group and alone.
        for (block, value) in
            [(4, f32::NEG_INFINITY), (11, f32::INFINITY), (30, f32::NAN), (48, f32::INFINITY)]
        {
            x[32 * block + 3] = value;
            let scalar = quantize(Tier::Scalar, &x);
            for tier in Tier::available() {
                let q = quantize(tier, &x);
                assert_eq!(q.quants(0), scalar.quants(0), "{tier}");
                let same = |found: &[f32], expected: &[f32]| {
                    let mut both = found.iter().zip(expected);
                    both.all(|(a, e)| a == e || (a.is_nan() && e.is_nan()))
                };
                assert!(same(q.scales(0), scalar.scales(0)), "{tier}");
                assert!(same(q.half_sums(0), scalar.half_sums(0)), "{tier}");
                assert!(same(q.block_sums(0), scalar.block_sums(0)), "{tier}");
            }
        }
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "a list of ranges that may hold one")]
    fn a_second_plane_has_what_rounding_took() {
        let (team, n_cols) = (Team::new(2), 32 * 21);
        let mut seed = 11;
        let mut x = crate::testing::random(&mut seed, 5 * n_cols);
        x[2 * n_cols..][..32].fill(0.0);
        x[3 * n_cols..][..32].fill(1e-38);
        for pairs in [&[0..5][..], &[1..5], &[0..1, 3..4], &[2..2, 2..4], &[]] {
            let n_pairs = pairs.iter().map(Range::len).sum();
            let quantize = |tier| {
                let mut q = QuantizedRows::with_capacity(5 + n_pairs, n_cols);
                q.quantize_in_planes(&team, tier, Rows::new(&x, 5, n_cols), pairs);
                q
            };
            let planes = quantize(Tier::Scalar);
            assert_eq!(
                (planes.n_rows(), planes.n_pairs(), planes.n_tokens()),
                (5 + n_pairs, n_pairs, 5)
            );
            for tier in Tier::available() {
                quantize(tier).assert_same_bytes(&planes);
            }
            for (i, &token) in planes.tokens().iter().enumerate() {
                let x = &x[token as usize * n_cols..][..n_cols];
                let one = self::quantize(Tier::Scalar, x);
                let is_pair = pairs.iter().any(|pairs| pairs.contains(&(token as usize)));
                assert_eq!(is_pair, i < n_pairs);
                let row = if is_pair { 2 * i } else { n_pairs + i };
                assert_eq!(planes.quants(row), one.quants(0));
                assert_eq!(planes.scales(row), one.scales(0));
                if !is_pair {
                    continue;
                }
                let value = |row: usize, c: usize| {
                    f64::from(planes.scales(row)[c / 16]) * f64::from(planes.quants(row)[c])
                };
                for (c, &x) in x.iter().enumerate() {
                    let error = (value(row, c) + value(row + 1, c) - f64::from(x)).abs();
                    // Half a step of a half-step's 127th, and the roundings of the difference.
                    let step = f64::from(planes.scales(row)[c / 16]) / 254.0;
                    assert!(error <= step * 0.501 + 1e-37, "{x} is {error} away");
                }
            }
        }
        // What is not finite shows in both planes.
        x[7] = f32::NAN;
        x[40] = f32::INFINITY;
        for tier in Tier::available() {
            let mut q = QuantizedRows::with_capacity(2, n_cols);
            q.quantize_in_planes(&team, tier, Rows::new(&x[..n_cols], 1, n_cols), &[0..1]);
            for row in 0..2 {
                assert!(q.scales(row)[0].is_nan() && !q.scales(row)[2].is_finite(), "{tier}");
            }
        }
        // The next rows are without planes again.
        let mut q = quantize(Tier::Scalar, &x[..32]);
        q.quantize(&team, Tier::Scalar, Rows::new(&x[..32], 1, 32));
        assert_eq!((q.n_rows(), q.n_pairs()), (1, 0));
    }

    #[test]
    fn rows_are_on_lines_and_keep_their_bytes_beside_others() {
        let mut seed = 5;
        let team = Team::new(3);
        let mut many = QuantizedRows::with_capacity(40, 32 * 50);
        // Fewer columns than there is room for, and again more.
        for (n_rows, n_cols) in [(40, 576), (1, 32), (7, 32 * 50), (0, 64), (33, 96)] {
            let x = crate::testing::random(&mut seed, n_rows * n_cols);
            many.quantize(&team, Tier::detect(), Rows::new(&x, n_rows, n_cols));
            assert_eq!((many.n_rows(), many.n_cols()), (n_rows, n_cols));
            for i in 0..n_rows {
                let one = quantize(Tier::detect(), &x[i * n_cols..][..n_cols]);
                assert!(many.quants(i).as_ptr().addr().is_multiple_of(64));
                assert_eq!(many.quants(i), one.quants(0));
                assert_eq!(many.scales(i), one.scales(0));
                assert_eq!(many.pair_sums(i), one.pair_sums(0));
                assert_eq!(many.half_sums(i), one.half_sums(0));
                assert_eq!(many.block_sums(i), one.block_sums(0));
            }
        }
    }
}
