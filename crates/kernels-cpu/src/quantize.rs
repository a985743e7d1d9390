//! Activations as 8-bit integers, the input of the integer matrix products.
//!
//! One format serves every weight type: blocks of 32 values with an f32 scale, and
//! sums for the types whose blocks have a minimum. Blocks of 32 follow outliers more
//! closely than the 256-value blocks of `Q8_K`, and an f32 scale loses nothing.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::Range;

use crate::elementwise::row_grain;
#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::{Rows, RowsMut, Team, Tier};

/// Values that share a scale.
pub(crate) const BLOCK_LEN: usize = 32;
/// Blocks that the vector form quantizes at a time.
#[cfg(target_arch = "x86_64")]
const GROUP_LEN: usize = 4;
/// Elements of f32 in a cache line.
const LINE_LEN: usize = 16;

/// One quantized row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedRow<'a> {
    pub(crate) quants: &'a [i8],      // [n_cols]
    pub(crate) scales: &'a [f32],     // [n_cols / 32]
    pub(crate) half_sums: &'a [f32],  // [n_cols / 16], scale * sum of 16 quants
    pub(crate) block_sums: &'a [f32], // [n_cols / 32], scale * sum of 32 quants
    pub(crate) sums: &'a [i16],       // [n_cols / 16], sums of 16 quants
}

impl QuantizedRow<'_> {
    /// The columns in a range of whole blocks.
    pub(crate) fn slice_cols(&self, cols: Range<usize>) -> Self {
        let blocks = cols.start / BLOCK_LEN..cols.end / BLOCK_LEN;
        let halves = 2 * blocks.start..2 * blocks.end;
        Self {
            quants: &self.quants[cols],
            scales: &self.scales[blocks.clone()],
            half_sums: &self.half_sums[halves.clone()],
            block_sums: &self.block_sums[blocks],
            sums: &self.sums[halves],
        }
    }

    /// Whether every part covers the quants.
    pub(crate) fn is_whole(&self) -> bool {
        let n_blocks = self.quants.len() / BLOCK_LEN;
        self.quants.len().is_multiple_of(BLOCK_LEN)
            && (self.scales.len(), self.block_sums.len()) == (n_blocks, n_blocks)
            && (self.sums.len(), self.half_sums.len()) == (2 * n_blocks, 2 * n_blocks)
    }
}

/// One row to be quantized, in whole blocks.
pub(crate) struct QuantizedRowMut<'a> {
    quants: &'a mut [[i8; BLOCK_LEN]], // [n_blocks]
    scales: &'a mut [f32],             // [n_blocks]
    half_sums: &'a mut [[f32; 2]],     // [n_blocks]
    block_sums: &'a mut [f32],         // [n_blocks]
    sums: &'a mut [[i16; 2]],          // [n_blocks]
}

/// Rows of activations as 8-bit integers: `x[i] ≈ scale[i / 32] * quant[i]`, where
/// the scale is the block's largest magnitude over 127 and quants round to nearest,
/// ties to even. A block with a value that is not finite has a scale that is not
/// finite, so that every product with it shows it.
///
/// A row's parts lie one after the other in one buffer: quants, scales, the sums.
/// Rows begin on cache lines, an odd number of lines apart, so that rows do not
/// compete for the same sets of a cache.
///
/// ```
/// use realizar_kernels_cpu::{QuantizedRows, Rows, Team, Tier};
///
/// let team = Team::new(1);
/// let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
/// let mut q = QuantizedRows::with_capacity(1, 64);
/// q.quantize(&team, Tier::detect(), Rows::new(&x, 1, 64));
/// assert_eq!(q.quants(0)[31], 127);
/// assert_eq!(q.scales(0)[1], 63.0 / 127.0);
/// ```
#[derive(Debug)]
pub struct QuantizedRows {
    n_rows: usize,
    n_cols: usize,
    max_rows: usize,
    max_cols: usize,
    data: Vec<f32>, // [start + max_rows * stride of max_cols]
    start: usize,   // of the first cache line
}

/// Elements of f32 from the start of a row of `n_blocks` blocks to the next.
const fn row_stride(n_blocks: usize) -> usize {
    // Quants fill a quarter of their number, in whole lines; then 5 elements a block.
    let quants = (n_blocks * BLOCK_LEN / 4).next_multiple_of(LINE_LEN);
    let n_lines = (quants + 5 * n_blocks).div_ceil(LINE_LEN);
    (n_lines | 1) * LINE_LEN
}

impl QuantizedRows {
    /// Room for `max_rows` rows of `max_cols` values.
    pub fn with_capacity(max_rows: usize, max_cols: usize) -> Self {
        let n_blocks = max_cols.div_ceil(BLOCK_LEN);
        let data = vec![0.0; max_rows * row_stride(n_blocks) + LINE_LEN];
        let start = data.as_ptr().align_offset(LINE_LEN * size_of::<f32>());
        Self { n_rows: 0, n_cols: 0, max_rows, max_cols: n_blocks * BLOCK_LEN, data, start }
    }

    /// Number of rows.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Values of a row.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The quants of a row, on a cache line. `[n_cols]`
    pub fn quants(&self, row: usize) -> &[i8] {
        self.row(row).quants
    }

    /// The scales of a row. `[n_cols / 32]`
    pub fn scales(&self, row: usize) -> &[f32] {
        self.row(row).scales
    }

    /// The sums of every 16 quants of a row, times their scale. `[n_cols / 16]`
    pub fn half_sums(&self, row: usize) -> &[f32] {
        self.row(row).half_sums
    }

    /// The sums of every 32 quants of a row, times their scale. `[n_cols / 32]`
    pub fn block_sums(&self, row: usize) -> &[f32] {
        self.row(row).block_sums
    }

    /// The sums of every 16 quants of a row. `[n_cols / 16]`
    pub fn sums(&self, row: usize) -> &[i16] {
        self.row(row).sums
    }

    /// Row `i` in all its parts.
    #[inline]
    pub(crate) fn row(&self, i: usize) -> QuantizedRow<'_> {
        assert!(i < self.n_rows, "row {i} of {}", self.n_rows);
        let n_blocks = self.n_cols / BLOCK_LEN;
        let stride = row_stride(n_blocks);
        let row = &self.data[self.start + i * stride..][..stride];
        let (quants, row) = row.split_at((self.n_cols / 4).next_multiple_of(LINE_LEN));
        let (scales, row) = row.split_at(n_blocks);
        let (half_sums, row) = row.split_at(2 * n_blocks);
        let (block_sums, row) = row.split_at(n_blocks);
        QuantizedRow {
            quants: &bytemuck::cast_slice(quants)[..self.n_cols],
            scales,
            half_sums,
            block_sums,
            sums: bytemuck::cast_slice(&row[..n_blocks]),
        }
    }

    /// Replaces the rows by those of `x`. Each row depends on that row of `x` alone,
    /// and its bytes are the same on every tier.
    ///
    /// # Panics
    /// If `x` is larger than the capacity, or its rows are not whole blocks of 32.
    pub fn quantize(&mut self, team: &Team, tier: Tier, x: Rows<'_>) {
        self.fill(team, x.n_rows(), x.n_cols(), |i, mut row| row.quantize(tier, 0, x.row(i)));
    }

    /// Replaces the rows by `n_rows` rows of `n_cols` values, each written by `f`.
    pub(crate) fn fill<F>(&mut self, team: &Team, n_rows: usize, n_cols: usize, f: F)
    where
        F: Fn(usize, QuantizedRowMut<'_>) + Sync,
    {
        assert!(n_cols.is_multiple_of(BLOCK_LEN), "{n_cols} columns are not blocks of 32");
        assert!(n_rows <= self.max_rows, "{n_rows} rows, room for {}", self.max_rows);
        assert!(n_cols <= self.max_cols, "{n_cols} columns, room for {}", self.max_cols);
        (self.n_rows, self.n_cols) = (n_rows, n_cols);
        let n_blocks = n_cols / BLOCK_LEN;
        let stride = row_stride(n_blocks);
        let data = &mut self.data[self.start..][..n_rows * stride];
        let rows = RowsMut::new(data, n_rows, stride);
        team.for_each_row_mut(rows, row_grain(n_cols), |i, row, _thread| {
            f(i, QuantizedRowMut::new(row, n_blocks));
        });
    }
}

impl<'a> QuantizedRowMut<'a> {
    /// The parts of a row of [`row_stride`] elements.
    fn new(row: &'a mut [f32], n_blocks: usize) -> Self {
        let n_quants = n_blocks * BLOCK_LEN / 4;
        let (quants, row) = row.split_at_mut(n_quants.next_multiple_of(LINE_LEN));
        let (scales, row) = row.split_at_mut(n_blocks);
        let (half_sums, row) = row.split_at_mut(2 * n_blocks);
        let (block_sums, row) = row.split_at_mut(n_blocks);
        Self {
            quants: bytemuck::cast_slice_mut(&mut quants[..n_quants]),
            scales,
            half_sums: half_sums.as_chunks_mut().0,
            block_sums,
            sums: bytemuck::cast_slice_mut(&mut row[..n_blocks]),
        }
    }

    /// Quantizes a row of floats, or a run of its blocks from block `first` on.
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

    /// Quantizes `n_cols` values from block `first` on, which `f` writes piece by piece:
    /// it is called with the columns of a piece, whole blocks, and their place. Pieces
    /// stay in the nearest cache.
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

    /// The twin of the scalar loop.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn quantize_avx2(&mut self, first: usize, x: &[[f32; BLOCK_LEN]]) {
        for (b, group) in (first..).step_by(GROUP_LEN).zip(x.chunks(GROUP_LEN)) {
            self.set_group_avx2(b, group);
        }
    }

    /// Quantizes up to [`GROUP_LEN`] blocks from block `b` on.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn set_group_avx2(&mut self, b: usize, x: &[[f32; BLOCK_LEN]]) {
        let Some(four) = x.first_chunk::<GROUP_LEN>() else {
            for (i, x) in x.iter().enumerate() {
                self.set_block_avx2(b + i, lanes::load32(x));
            }
            return;
        };
        let n = b..b + GROUP_LEN;
        quantize_group_avx2(
            four,
            self.quants[n.clone()].first_chunk_mut().expect("four blocks"),
            self.scales[n.clone()].first_chunk_mut().expect("four blocks"),
            self.half_sums[n.clone()].first_chunk_mut().expect("four blocks"),
            self.block_sums[n.clone()].first_chunk_mut().expect("four blocks"),
            self.sums[n].first_chunk_mut().expect("four blocks"),
        );
    }

    /// Quantizes block `b`.
    fn set_block(&mut self, b: usize, x: &[f32; BLOCK_LEN]) {
        let scale = quantize_block(x, &mut self.quants[b], &mut self.sums[b]);
        self.set_scale(b, scale);
    }

    /// The twin of [`Self::set_block`].
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn set_block_avx2(&mut self, b: usize, x: [__m256; 4]) {
        let scale = quantize_block_avx2(x, &mut self.quants[b], &mut self.sums[b]);
        self.set_scale(b, scale);
    }

    /// Sets the scale of block `b`, and the sums that it multiplies.
    #[inline]
    fn set_scale(&mut self, b: usize, scale: f32) {
        let sums = self.sums[b].map(i32::from);
        self.scales[b] = scale;
        self.half_sums[b] = sums.map(|sum| scale * sum as f32);
        self.block_sums[b] = scale * (sums[0] + sums[1]) as f32;
    }
}

/// Quantizes one block and returns its scale.
fn quantize_block(x: &[f32; BLOCK_LEN], quants: &mut [i8; BLOCK_LEN], sums: &mut [i16; 2]) -> f32 {
    // The maximum of the bits is the maximum of the magnitudes, and NaN above all.
    let amax = f32::from_bits(x.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0));
    let scale = amax / 127.0;
    let inv = if scale.is_normal() { scale.recip() } else { 0.0 };
    for (q, &v) in quants.iter_mut().zip(x) {
        *q = (v * inv).round_ties_even() as i8;
    }
    for (sum, half) in sums.iter_mut().zip(quants.as_chunks::<16>().0) {
        *sum = half.iter().map(|&q| i16::from(q)).sum();
    }
    if quiet_block(amax) { 0.0 } else { scale }
}

/// Whether every value of the block counts as zero: the scale would be subnormal.
fn quiet_block(amax: f32) -> bool {
    amax / 127.0 < f32::MIN_POSITIVE
}

/// The twin of [`quantize_block`].
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_block_avx2(v: [__m256; 4], quants: &mut [i8; BLOCK_LEN], sums: &mut [i16; 2]) -> f32 {
    let sign_off = _mm256_set1_epi32(i32::MAX);
    let mut abs = [_mm256_setzero_si256(); 4];
    for (abs, &v) in abs.iter_mut().zip(&v) {
        *abs = _mm256_and_si256(_mm256_castps_si256(v), sign_off);
    }
    let m = _mm256_max_epi32(_mm256_max_epi32(abs[0], abs[1]), _mm256_max_epi32(abs[2], abs[3]));
    let m = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256::<1>(m));
    let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b0100_1110>(m));
    let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b1011_0001>(m));
    let amax = f32::from_bits(_mm_cvtsi128_si32(m).cast_unsigned());
    let scale = amax / 127.0;
    let inv = if scale.is_normal() { scale.recip() } else { 0.0 };
    let inv = _mm256_set1_ps(inv);
    // The conversion rounds ties to even, as the default rounding mode says. A value
    // that is not finite converts to i32::MIN where the twin has 0.
    let finite = _mm256_set1_epi32(if amax.is_finite() { -1 } else { 0 });
    let mut q = [_mm256_setzero_si256(); 4];
    for i in 0..4 {
        q[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v[i], inv)), finite);
    }
    let lo = _mm256_packs_epi32(q[0], q[1]); // quads 0 2 | 1 3
    let hi = _mm256_packs_epi32(q[2], q[3]); // quads 4 6 | 5 7
    let all = _mm256_packs_epi16(lo, hi); // quads 0 2 4 6 | 1 3 5 7
    let all = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // SAFETY: the store writes the 32 bytes of the array.
    unsafe { _mm256_storeu_si256(quants.as_mut_ptr().cast(), all) };
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), all);
    let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    let eights = _mm256_add_epi32(quads, _mm256_shuffle_epi32::<0b0100_1110>(quads));
    let total = _mm256_add_epi32(eights, _mm256_shuffle_epi32::<0b1011_0001>(eights));
    sums[0] = _mm256_extract_epi32::<0>(total) as i16;
    sums[1] = _mm256_extract_epi32::<4>(total) as i16;
    if quiet_block(amax) { 0.0 } else { scale }
}

/// Quantizes four blocks, with the bytes of [`quantize_block`] for each. Their scales and
/// sums are lanes of one vector, so that no block waits for another's division.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_group_avx2(
    x: &[[f32; BLOCK_LEN]; 4],
    quants: &mut [[i8; BLOCK_LEN]; 4],
    scales: &mut [f32; 4],
    half_sums: &mut [[f32; 2]; 4],
    block_sums: &mut [f32; 4],
    sums: &mut [[i16; 2]; 4],
) {
    // The largest magnitude of each block, as bits.
    let sign_off = _mm256_set1_epi32(i32::MAX);
    let mut m = [_mm_setzero_si128(); 4];
    for (m, x) in m.iter_mut().zip(x) {
        let mut abs = [_mm256_setzero_si256(); 4];
        for (abs, v) in abs.iter_mut().zip(lanes::load32(x)) {
            *abs = _mm256_and_si256(_mm256_castps_si256(v), sign_off);
        }
        let pairs = [_mm256_max_epi32(abs[0], abs[1]), _mm256_max_epi32(abs[2], abs[3])];
        let eight = _mm256_max_epi32(pairs[0], pairs[1]);
        *m = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
    }
    let ab = _mm_max_epi32(_mm_unpacklo_epi32(m[0], m[1]), _mm_unpackhi_epi32(m[0], m[1]));
    let cd = _mm_max_epi32(_mm_unpacklo_epi32(m[2], m[3]), _mm_unpackhi_epi32(m[2], m[3]));
    let amax = _mm_max_epi32(_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd));
    let amax = _mm_castsi128_ps(amax);

    let infinity = _mm_set1_ps(f32::INFINITY);
    let scale = _mm_div_ps(amax, _mm_set1_ps(127.0));
    let quiet = _mm_cmplt_ps(scale, _mm_set1_ps(f32::MIN_POSITIVE));
    let normal = _mm_andnot_ps(quiet, _mm_cmplt_ps(scale, infinity));
    let mut inverse = [0.0; 4];
    let inv = _mm_and_ps(normal, _mm_div_ps(_mm_set1_ps(1.0), scale));
    // SAFETY: the store writes the 16 bytes of the array.
    unsafe { _mm_storeu_ps(inverse.as_mut_ptr(), inv) };
    let mut finite = [0_i32; 4];
    let is_finite = _mm_castps_si128(_mm_cmplt_ps(amax, infinity));
    // SAFETY: the store writes the 16 bytes of the array.
    unsafe { _mm_storeu_si128(finite.as_mut_ptr().cast(), is_finite) };

    let mut quads = [_mm256_setzero_si256(); 4];
    for i in 0..4 {
        let inv = _mm256_set1_ps(inverse[i]);
        let mut q = [_mm256_setzero_si256(); 4];
        for (q, v) in q.iter_mut().zip(lanes::load32(&x[i])) {
            *q = _mm256_cvtps_epi32(_mm256_mul_ps(v, inv));
        }
        let all =
            _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        let all = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        let all = _mm256_and_si256(all, _mm256_set1_epi32(finite[i]));
        // SAFETY: the store writes the 32 bytes of the array.
        unsafe { _mm256_storeu_si256(quants[i].as_mut_ptr().cast(), all) };
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), all);
        quads[i] = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }

    // Lanes of the lower half are the sums of first halves, of the upper of second ones.
    let both = _mm256_hadd_epi32(
        _mm256_hadd_epi32(quads[0], quads[1]),
        _mm256_hadd_epi32(quads[2], quads[3]),
    );
    let (first, second) = (_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
    let halves = [_mm_unpacklo_epi32(first, second), _mm_unpackhi_epi32(first, second)];
    let scale = _mm_andnot_ps(quiet, scale);
    let half_scales = [_mm_unpacklo_ps(scale, scale), _mm_unpackhi_ps(scale, scale)];
    let whole = _mm_mul_ps(scale, _mm_cvtepi32_ps(_mm_add_epi32(first, second)));
    let half = half_sums.as_flattened_mut();
    // SAFETY: the stores write 16 bytes each: the four scales, the eight sums of halves in
    // two, the four sums of blocks, and the eight 16-bit sums.
    unsafe {
        _mm_storeu_ps(scales.as_mut_ptr(), scale);
        let low = _mm_mul_ps(half_scales[0], _mm_cvtepi32_ps(halves[0]));
        _mm_storeu_ps(half[..4].as_mut_ptr(), low);
        let high = _mm_mul_ps(half_scales[1], _mm_cvtepi32_ps(halves[1]));
        _mm_storeu_ps(half[4..].as_mut_ptr(), high);
        _mm_storeu_ps(block_sums.as_mut_ptr(), whole);
        _mm_storeu_si128(sums.as_mut_ptr().cast(), _mm_packs_epi32(halves[0], halves[1]));
    }
}

#[cfg(test)]
impl QuantizedRows {
    /// Asserts that two have the same rows, to the byte.
    pub(crate) fn assert_same_bytes(&self, other: &Self) {
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!((self.n_rows, self.n_cols), (other.n_rows, other.n_cols));
        for i in 0..self.n_rows {
            let (a, b) = (self.row(i), other.row(i));
            assert_eq!((a.quants, a.sums), (b.quants, b.sums), "row {i}");
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

    /// Checks quants, sums and scale of one block on every tier.
    fn check(x: &[f32], quants: &[i8], scale: f32) {
        for tier in Tier::available() {
            let q = quantize(tier, x);
            assert_eq!(q.quants(0), quants, "{tier}");
            assert_eq!(q.scales(0)[0].to_bits(), scale.to_bits(), "{tier}");
            for (half, &sum) in quants.chunks(16).zip(q.sums(0)) {
                assert_eq!(half.iter().map(|&q| i16::from(q)).sum::<i16>(), sum, "{tier}");
            }
            let block_sum: i16 = q.sums(0).iter().sum();
            let scaled = |sum: i16| (scale * f32::from(sum)).to_bits();
            assert_eq!(q.block_sums(0)[0].to_bits(), scaled(block_sum), "{tier}");
            for (half_sum, &sum) in q.half_sums(0).iter().zip(q.sums(0)) {
                assert_eq!(half_sum.to_bits(), scaled(sum), "{tier}");
            }
        }
    }

    #[test]
    fn values_round_to_nearest_even() {
        let mut x = [0.0; 32];
        let mut expected = [0; 32];
        let cases =
            [(127.0, 127), (0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-127.0, -127)];
        for (i, (v, q)) in cases.into_iter().enumerate() {
            (x[i * 3], expected[i * 3]) = (v, q);
        }
        check(&x, &expected, 1.0);
        check(&x.map(|v| v * 0.25), &expected, 0.25);
    }

    #[test]
    fn extreme_blocks() {
        check(&[0.0; 32], &[0; 32], 0.0);
        check(&[-0.0; 32], &[0; 32], 0.0);
        check(&[f32::MIN_POSITIVE / 2.0; 32], &[0; 32], 0.0);
        check(&[-f32::MAX; 32], &[-127; 32], f32::MAX / 127.0);
        let mut x = [1.0; 32];
        x[7] = f32::NEG_INFINITY;
        check(&x, &[0; 32], f32::INFINITY);
        x[31] = f32::NAN;
        for tier in Tier::available() {
            let q = quantize(tier, &x);
            assert!(q.scales(0)[0].is_nan());
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
            let scale = scalar.scales(0)[i / 32];
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
                for b in 0..50 {
                    let (a, e) = (q.scales(0)[b], scalar.scales(0)[b]);
                    assert!(a == e || (a.is_nan() && e.is_nan()), "{tier} block {b}");
                    let (a, e) = (q.block_sums(0)[b], scalar.block_sums(0)[b]);
                    assert!(a == e || (a.is_nan() && e.is_nan()), "{tier} block {b}");
                }
            }
        }
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
                assert_eq!(many.sums(i), one.sums(0));
                assert_eq!(many.half_sums(i), one.half_sums(0));
                assert_eq!(many.block_sums(i), one.block_sums(0));
            }
        }
    }
}
