//! The kernels in AVX2: eight rows to a register, two registers to a group.
//!
//! Products of unsigned quants and activations are added in pairs to 16 bits, sixteen columns of them, and
//! then to 32 bits by an instruction that multiplies by the factors. Signed quants give their sign to the
//! activations; they have 8 bits, so only a pair of products fits 16 bits.
//!
//! `dot` expands the same walk over groups, panels and rows for the other tiers. AVX2 has a form of its own,
//! because in the shared one the compiler keeps the words of Q8_0 on the stack while it expands them: a
//! product of 18 rows with a 256 x 256 matrix then takes 7 % more instructions and 1.8 times the time.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::avx2_scales::{BlockScales, FormatAvx2, Integers};
use super::panel::PanelGroup;
use super::streams::{PREFETCH_BYTES, STRETCH, XRow, XRows};
use super::{GROUP_LEN, GroupSums, PACKED_ROWS};
use crate::quantize::{QuantizedRow, QuantizedRows};
use crate::streams::{PREFETCH_FAR_BYTES, STREAMS};
use crate::vec_dot::simd::{prefetch, prefetch_far};

/// Activation rows that a panel is multiplied with at a time: as many as have room for their sums in the
/// registers.
const TILE_ROWS: usize = 3;

/// Sixteen rows in two registers.
type Rows16<T> = [T; 2];

/// A source of 32 columns of sixteen rows, one word of each row at a time.
trait Words: Copy {
    /// Word `q` of each row.
    ///
    /// # Safety
    /// The processor has AVX2, and the memory behind the words lives.
    unsafe fn word(self, q: usize) -> Rows16<__m256i>;
}

/// The quants of a [`PanelGroup`].
#[derive(Clone, Copy)]
struct PanelWords(*const u8);

impl Words for PanelWords {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn word(self, q: usize) -> Rows16<__m256i> {
        // SAFETY: the pointer is to the eight words of a panel's group.
        unsafe { load2(self.0.add(64 * q)) }
    }
}

/// The planes of a packed block.
struct PlaneWords<F>(*const u8, std::marker::PhantomData<F>);

impl<F> Clone for PlaneWords<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for PlaneWords<F> {}

impl<F: FormatAvx2> Words for PlaneWords<F> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn word(self, q: usize) -> Rows16<__m256i> {
        let (p, at) = (F::PLANES, self.0);
        let shift_to = |v: __m256i, from: usize, to: usize| {
            let by = _mm_cvtsi32_si128(from.abs_diff(to) as i32);
            if from > to { _mm256_srl_epi16(v, by) } else { _mm256_sll_epi16(v, by) }
        };
        if p.bytes {
            // SAFETY: the pointer is to planes of the format, which has eight words.
            return unsafe { load2(at.add(64 * q)) };
        }
        let mut out = [_mm256_setzero_si256(); 2];
        if p.nibbles {
            // SAFETY: as above; the nibbles are four lines.
            let v = unsafe { load2(at.add(64 * (q % 4))) };
            for r in 0..2 {
                let v = if q < 4 { v[r] } else { _mm256_srli_epi16::<4>(v[r]) };
                out[r] = _mm256_and_si256(v, _mm256_set1_epi8(15));
            }
        }
        if let Some(to) = p.pairs {
            // SAFETY: as above; the pairs are two lines.
            let v = unsafe { load2(at.add(p.pairs_at() + 64 * (q / 4))) };
            for r in 0..2 {
                let v = shift_to(v[r], q % 4 * 2, to);
                let v = _mm256_and_si256(v, _mm256_set1_epi8(3 << to));
                out[r] = _mm256_or_si256(out[r], v);
            }
        }
        if let Some(to) = p.singles {
            // SAFETY: as above; the singles are one line.
            let v = unsafe { load2(at.add(p.singles_at())) };
            for r in 0..2 {
                let v = shift_to(v[r], q, to);
                let v = _mm256_and_si256(v, _mm256_set1_epi8(1 << to));
                out[r] = _mm256_or_si256(out[r], v);
            }
        }
        if let Some(codebook) = p.codebook {
            for out in &mut out {
                *out = look_up(codebook, *out);
            }
        }
        out
    }
}

/// Loads 64 bytes.
///
/// # Safety
/// The bytes can be read.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load2(at: *const u8) -> Rows16<__m256i> {
    // SAFETY: the caller's promise.
    unsafe { [_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())] }
}

/// The codebook's values at indices of one byte each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn look_up(codebook: &[i8; 16], levels: __m256i) -> __m256i {
    // SAFETY: the load reads the array.
    let codebook = unsafe { _mm_loadu_si128(codebook.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codebook), levels)
}

/// Makes the sums of several rows opaque to the compiler. It would otherwise reorder the
/// additions so that those of a row are neighbours, and run out of registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn keep<const T: usize>(sums: &mut [Rows16<__m256i>; T]) {
    // SAFETY: the blocks have no instructions.
    unsafe {
        match sums.as_flattened_mut() {
            [a, b, c, d, e, f] => asm!(
                "/* {0} {1} {2} {3} {4} {5} */",
                inout(ymm_reg) * a,
                inout(ymm_reg) * b,
                inout(ymm_reg) * c,
                inout(ymm_reg) * d,
                inout(ymm_reg) * e,
                inout(ymm_reg) * f,
                options(pure, nomem, nostack, preserves_flags)
            ),
            [a, b, c, d] => asm!(
                "/* {0} {1} {2} {3} */",
                inout(ymm_reg) * a,
                inout(ymm_reg) * b,
                inout(ymm_reg) * c,
                inout(ymm_reg) * d,
                options(pure, nomem, nostack, preserves_flags)
            ),
            _ => {}
        }
    }
}

/// The sums of a block for `T` activation rows, before the scales of the block.
#[derive(Clone, Copy)]
struct BlockSums<const T: usize> {
    totals: [Rows16<__m256>; T],
    mins: [Rows16<__m256>; T],
}

impl<const T: usize> BlockSums<T> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn zero() -> Self {
        let zero = [[_mm256_setzero_ps(); 2]; T];
        Self { totals: zero, mins: zero }
    }

    /// Adds the products of 32 columns of sixteen rows with the first 32 of the activation
    /// rows.
    ///
    /// # Safety
    /// Words and rows can be read.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_group<F: FormatAvx2>(
        &mut self,
        words: impl Words,
        integers: &Integers,
        x: &[XRow; T],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            self.add_half::<F, 0>(words, integers, x);
            self.add_half::<F, 1>(words, integers, x);
        }
    }

    /// Adds the sums of the first 32 columns of the activation rows times the minimums.
    ///
    /// # Safety
    /// Rows can be read.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_mins<F: FormatAvx2>(&mut self, integers: &Integers, x: &[XRow; T]) {
        for (mins, x) in self.mins.iter_mut().zip(x) {
            for half in 0..F::MINS {
                // SAFETY: a row has a sum for each minimum.
                let sum = unsafe { _mm256_set1_ps(*x.sums.add(half)) };
                for (acc, min) in mins.iter_mut().zip(integers.mins[half]) {
                    *acc = if F::FACTORS == 0 { sum } else { _mm256_fmadd_ps(min, sum, *acc) };
                }
            }
        }
    }

    /// Adds the products of half `HALF` of the columns.
    ///
    /// # Safety
    /// As [`Self::add_group`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_half<F: FormatAvx2, const HALF: usize>(
        &mut self,
        words: impl Words,
        integers: &Integers,
        x: &[XRow; T],
    ) {
        let factors = integers.factors[HALF];
        let mut isums = [[_mm256_setzero_si256(); 2]; T];
        let mut sums = isums;
        for i in 0..4 {
            let q = 4 * HALF + i;
            // SAFETY: the caller's promise.
            let w = unsafe { words.word(q) };
            for t in 0..T {
                // SAFETY: a row has eight words of 32 columns.
                let x = unsafe { x[t].quants.add(4 * q).cast::<i32>().read_unaligned() };
                let x = _mm256_set1_epi32(x);
                for r in 0..2 {
                    if F::PLANES.are_signed() {
                        let x = _mm256_sign_epi8(x, w[r]);
                        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[r]), x);
                        let fours = _mm256_madd_epi16(pairs, factors[r]);
                        isums[t][r] =
                            if i == 0 { fours } else { _mm256_add_epi32(isums[t][r], fours) };
                    } else {
                        let pairs = _mm256_maddubs_epi16(w[r], x);
                        sums[t][r] =
                            if i == 0 { pairs } else { _mm256_add_epi16(sums[t][r], pairs) };
                    }
                }
            }
            keep(if F::PLANES.are_signed() { &mut isums } else { &mut sums });
        }
        for t in 0..T {
            // SAFETY: a row has sums and a scale for each half.
            let (scale, pair_sums) =
                unsafe { (*x[t].scales.add(HALF), x[t].pair_sums.add(HALF).cast::<i32>()) };
            let scale = _mm256_set1_ps(scale);
            for r in 0..2 {
                if !F::PLANES.are_signed() {
                    let mut sum = sums[t][r];
                    if F::OFFSET > 0 {
                        // SAFETY: as above; the pointer is to two sums of 16 bits.
                        let offset = unsafe { _mm256_set1_epi32(pair_sums.read_unaligned()) };
                        let by = _mm_cvtsi32_si128(F::OFFSET.trailing_zeros() as i32);
                        sum = _mm256_sub_epi16(sum, _mm256_sll_epi16(offset, by));
                    }
                    isums[t][r] = _mm256_madd_epi16(sum, factors[r]);
                }
                let mut sum = _mm256_cvtepi32_ps(isums[t][r]);
                if F::FLOAT_FACTORS {
                    sum = _mm256_mul_ps(sum, integers.mins[HALF][r]);
                }
                self.totals[t][r] = _mm256_fmadd_ps(scale, sum, self.totals[t][r]);
            }
        }
    }

    /// Adds the sums times the scales of the block to those of the rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn finish<F: FormatAvx2>(&self, scales: &BlockScales, acc: &mut [Rows16<__m256>; T]) {
        for (t, acc) in acc.iter_mut().enumerate() {
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = _mm256_fmadd_ps(scales.scale[r], self.totals[t][r], *acc);
                if F::MINS > 0 {
                    *acc = _mm256_fmadd_ps(scales.min_scale[r], self.mins[t][r], *acc);
                }
            }
        }
    }
}

/// See [`super::dot_groups`].
///
/// # Safety
/// The processor has AVX2, FMA and F16C; groups and planes are whole.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dot_groups<F: FormatAvx2>(
    groups: &[&[u8]],
    rows: &[QuantizedRow<'_>],
    out: &mut [GroupSums],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (groups, rows) {
            (&[a, b, c, d], &[x]) => dot_streams::<F, STREAMS, 1>([a, b, c, d], [x], out),
            (&[a, b, c, d], &[x, y]) => dot_streams::<F, STREAMS, 2>([a, b, c, d], [x, y], out),
            _ => {
                for (group, out) in groups.iter().zip(out.chunks_exact_mut(rows.len())) {
                    dot_rows::<F>(group, rows, out);
                }
            }
        }
    }
}

/// The products of some rows with a group, two rows at a time; the group is read again from the nearest
/// caches.
///
/// # Safety
/// As [`dot_groups`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_rows<F: FormatAvx2>(group: &[u8], rows: &[QuantizedRow<'_>], out: &mut [GroupSums]) {
    let (pairs, last) = rows.as_chunks::<2>();
    let (out_pairs, out_last) = out.split_at_mut(2 * pairs.len());
    // SAFETY: the caller's promise.
    unsafe {
        for (&pair, out) in pairs.iter().zip(out_pairs.chunks_exact_mut(2)) {
            dot_streams::<F, 1, 2>([group], pair, out);
        }
        if let &[row] = last {
            dot_streams::<F, 1, 1>([group], [row], out_last);
        }
    }
}

/// The products of `T` rows with `S` groups.
///
/// # Safety
/// As [`dot_groups`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_streams<F: FormatAvx2, const S: usize, const T: usize>(
    groups: [&[u8]; S],
    rows: [QuantizedRow<'_>; T],
    out: &mut [GroupSums],
) {
    let block_bytes = PACKED_ROWS * F::PACKED_BYTES;
    let groups_of_block = F::LEN / GROUP_LEN;
    let n_blocks = rows[0].quants.len() / F::LEN;
    let rows: [XRow; T] = std::array::from_fn(|t| XRow::new::<F>(&rows[t]));
    let mut acc = [[[_mm256_setzero_ps(); 2]; T]; S];
    let stretch = STRETCH / F::LEN;
    let mut first = 0;
    while first < n_blocks {
        let end = n_blocks.min(first + stretch);
        for s in 0..S {
            let mut sums = acc[s];
            for b in first..end {
                let block = groups[s].as_ptr().wrapping_add(b * block_bytes);
                let scales = block.wrapping_add(F::SCALES_AT);
                let mut block_sums = BlockSums::<T>::zero();
                for g in 0..groups_of_block {
                    let planes = block.wrapping_add(g * F::PLANES.n_bytes());
                    let part = block_bytes / groups_of_block;
                    let distance = if S == 1 { PREFETCH_FAR_BYTES } else { PREFETCH_BYTES };
                    let ahead = block.wrapping_add(g * part + distance);
                    for line in 0..part.div_ceil(64) {
                        let line = ahead.wrapping_add(64 * line);
                        if S == 1 { prefetch_far(line) } else { prefetch(line) }
                    }
                    // SAFETY: block `b` is inside the group, and the rows have its columns.
                    unsafe {
                        let words = PlaneWords::<F>(planes, std::marker::PhantomData);
                        let mut x = rows;
                        for x in &mut x {
                            *x = x.skip::<F>(b * groups_of_block + g);
                        }
                        let integers = F::integers_avx2(scales, g);
                        block_sums.add_group::<F>(words, &integers, &x);
                        block_sums.add_mins::<F>(&integers, &x);
                    }
                }
                // SAFETY: as above.
                let scales = unsafe { BlockScales::unpack::<F>(scales) };
                block_sums.finish::<F>(&scales, &mut sums);
            }
            acc[s] = sums;
        }
        first = end;
    }
    for (acc, out) in acc.as_flattened().iter().zip(out) {
        // SAFETY: the stores write the sixteen floats.
        unsafe { store_sums(*acc, out) };
    }
}

/// # Safety
/// The processor has AVX2, FMA and F16C.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_sums(acc: Rows16<__m256>, out: &mut GroupSums) {
    // SAFETY: the stores write the sixteen floats of the array.
    unsafe {
        _mm256_storeu_ps(out.as_mut_ptr(), acc[0]);
        _mm256_storeu_ps(out.as_mut_ptr().add(8), acc[1]);
    }
}

/// See [`super::expand`].
///
/// # Safety
/// The processor has AVX2, FMA and F16C; the bytes are those of the panel's columns.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn expand<F: FormatAvx2>(bytes: &[u8], panel: &mut [PanelGroup]) {
    let blocks = bytes.chunks_exact(PACKED_ROWS * F::PACKED_BYTES);
    for (block, panel) in blocks.zip(panel.chunks_exact_mut(F::LEN / GROUP_LEN)) {
        let scales = block[F::SCALES_AT..].as_ptr();
        // SAFETY: the block's scales follow its planes.
        let block_scales = unsafe { BlockScales::unpack::<F>(scales) };
        for line in 0..block.len().div_ceil(64) {
            prefetch(block.as_ptr().wrapping_add(2 * PREFETCH_BYTES + 64 * line));
        }
        for (g, panel) in panel.iter_mut().enumerate() {
            let planes = &block[g * F::PLANES.n_bytes()..][..F::PLANES.n_bytes()];
            let words = PlaneWords::<F>(planes.as_ptr(), std::marker::PhantomData);
            let out = panel.quants.as_mut_ptr().cast::<__m256i>();
            for q in 0..8 {
                // SAFETY: the planes are whole, and the panel has eight words of 64 bytes
                // on cache lines.
                unsafe {
                    let [a, b] = words.word(q);
                    _mm256_store_si256(out.add(2 * q), a);
                    _mm256_store_si256(out.add(2 * q + 1), b);
                }
            }
            block_scales.store::<F>(&mut panel.scales);
            // SAFETY: the block's scales follow its planes.
            unsafe { F::integers_avx2(scales, g).store::<F>(&mut panel.scales) };
        }
    }
}

/// See [`super::multiply_panels`].
///
/// # Safety
/// The processor has AVX2, FMA and F16C; there are rows from row `first` on, and they have
/// the columns, which are the panel's.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply_panel<F: FormatAvx2>(
    panel: &[PanelGroup],
    x: &QuantizedRows,
    first: usize,
    cols: Range<usize>,
    sums: &mut [GroupSums],
) {
    let rows = XRows::new::<F>(x, first, cols);
    let next = TILE_ROWS * x.row_stride();
    let (tiles, rest) = sums.as_chunks_mut::<TILE_ROWS>();
    let first = tiles.len() * TILE_ROWS;
    // SAFETY: the caller's promise.
    unsafe {
        for (i, sums) in tiles.iter_mut().enumerate() {
            multiply_rows::<F, TILE_ROWS>(panel, rows.tile(i * TILE_ROWS), next, sums);
        }
        match rest {
            [] => {}
            [one] => {
                multiply_rows::<F, 1>(panel, rows.tile(first), next, std::array::from_mut(one));
            }
            rest => {
                let sums = rest.first_chunk_mut::<2>().expect("fewer rows than a tile's");
                multiply_rows::<F, 2>(panel, rows.tile(first), next, sums);
            }
        }
    }
}

/// Adds the products of `T` activation rows with a panel, and prefetches the next rows, which are `next`
/// bytes after these.
///
/// # Safety
/// As [`multiply_panel`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_rows<F: FormatAvx2, const T: usize>(
    panel: &[PanelGroup],
    mut rows: [XRow; T],
    next: usize,
    sums: &mut [GroupSums; T],
) {
    let mut acc = [[_mm256_setzero_ps(); 2]; T];
    for (acc, sums) in acc.iter_mut().zip(&*sums) {
        // SAFETY: the loads read the sixteen floats of the array.
        *acc = unsafe {
            let at = sums.as_ptr();
            [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))]
        };
    }
    for block in panel.chunks_exact(F::LEN / GROUP_LEN) {
        let mut block_sums = BlockSums::<T>::zero();
        let first = rows;
        for group in block {
            let words = PanelWords(group.quants.as_ptr().cast());
            // SAFETY: the rows have the columns of each group of the panel.
            unsafe {
                block_sums.add_group::<F>(words, &Integers::load::<F>(&group.scales), &rows);
                for row in &mut rows {
                    prefetch(row.quants.wrapping_byte_add(next).cast::<u8>());
                    *row = row.skip::<F>(1);
                }
            }
        }
        // A second pass for the minimums, because the products leave no registers for them.
        for (g, group) in block.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let x = first.map(|row| row.skip::<F>(g));
                block_sums.add_mins::<F>(&Integers::load::<F>(&group.scales), &x);
            }
        }
        block_sums.finish::<F>(&BlockScales::load::<F>(&block[0].scales), &mut acc);
    }
    for (acc, sums) in acc.into_iter().zip(sums) {
        // SAFETY: this function has the features.
        unsafe { store_sums(acc, sums) };
    }
}
