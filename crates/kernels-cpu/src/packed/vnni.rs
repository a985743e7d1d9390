//! The kernels with 8-bit dot products in one instruction, written once for registers
//! of 256 and of 512 bits.
//!
//! `vpdpbusd` adds four products of unsigned and signed bytes to 32 bits: a word of
//! sixteen rows of quants meets a word of activations in every lane. Signed quants are
//! made unsigned by adding 128, which the first value of the sum takes back.
//!
//! [`vnni_kernels`] writes the functions into a module that names the instructions of
//! its registers, because a function is compiled for one set of instructions.

/// The kernels for `$n` registers of sixteen rows. The module gives the instructions
/// the names used here, and `Scales` with its way to unpack them from a packed block.
macro_rules! vnni_kernels {
    ($features:literal, $n:literal, $float:ty, $int:ty, $Format:ident :: $unpack:ident) => {
        use $crate::packed::panel::PanelGroup;
        use $crate::packed::streams::{PREFETCH_BYTES, STRETCH, XRow};
        use $crate::packed::{GROUP_LEN, GroupSums, PACKED_ROWS, STREAMS};
        use $crate::quantize::QuantizedRow;
        use $crate::vec_dot::simd::prefetch;

        /// Sixteen rows.
        type Ints = [$int; $n];
        type Floats = [$float; $n];

        /// 64 bytes.
        ///
        /// # Safety
        /// The bytes can be read.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn line(at: *const u8) -> Ints {
            let mut out = [zero(); $n];
            for (r, out) in out.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *out = unsafe { load(at.add(64 / $n * r).cast()) };
            }
            out
        }

        /// Word `q` of each row from the planes of a packed block.
        ///
        /// # Safety
        /// The pointer is to the planes of 32 columns of the format.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn plane_word<F: $Format>(at: *const u8, q: usize) -> Ints {
            let p = F::PLANES;
            if p.bytes {
                // SAFETY: the bytes are eight lines.
                return unsafe { line(at.add(64 * q)) };
            }
            let shift_to = |v: $int, from: usize, to: usize| {
                let by = std::arch::x86_64::_mm_cvtsi32_si128(from.abs_diff(to) as i32);
                if from > to { srl_16(v, by) } else { sll_16(v, by) }
            };
            let mut out = [zero(); $n];
            if p.nibbles {
                // SAFETY: the nibbles are four lines.
                let v = unsafe { line(at.add(64 * (q % 4))) };
                for r in 0..$n {
                    let v = if q < 4 { v[r] } else { srli_16::<4>(v[r]) };
                    out[r] = and(v, set1_8(15));
                }
            }
            if let Some(to) = p.pairs {
                // SAFETY: the pairs are two lines.
                let v = unsafe { line(at.add(p.pairs_at() + 64 * (q / 4))) };
                for r in 0..$n {
                    let v = and(shift_to(v[r], q % 4 * 2, to), set1_8(3 << to));
                    out[r] = or(out[r], v);
                }
            }
            if let Some(to) = p.singles {
                // SAFETY: the singles are one line.
                let v = unsafe { line(at.add(p.singles_at())) };
                for r in 0..$n {
                    let v = and(shift_to(v[r], q, to), set1_8(1 << to));
                    out[r] = or(out[r], v);
                }
            }
            out
        }

        /// Adds the products of 32 columns of sixteen rows, in a panel or in planes,
        /// with the first 32 of `T` activation rows.
        ///
        /// # Safety
        /// The processor has the features; words and rows can be read.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn add_group<F: $Format, const PANEL: bool, const T: usize>(
            words: *const u8,
            scales: &Scales,
            x: &[XRow; T],
            acc: &mut [Floats; T],
        ) {
            let mut sums = [[[zero(); $n]; 2]; T];
            if F::PLANES.bytes {
                for t in 0..T {
                    // SAFETY: a row has two sums of 32 columns.
                    let [a, b] = unsafe { x[t].quant_sums.cast::<[i16; 2]>().read() };
                    sums[t][0] = [set1_32(-128 * (i32::from(a) + i32::from(b))); $n];
                }
            }
            // Two sums even where the format has one, if there are registers for them:
            // a sum's instructions wait for one another.
            let split = F::HALVES == 2 || T * $n * $n <= 8;
            for q in 0..8 {
                // SAFETY: the caller's promise.
                let mut w = unsafe {
                    if PANEL { line(words.add(64 * q)) } else { plane_word::<F>(words, q) }
                };
                if F::PLANES.bytes {
                    w = w.map(|w| xor(w, set1_8(-128)));
                }
                let part = if split { q / 4 } else { 0 };
                for t in 0..T {
                    // SAFETY: a row has eight words of 32 columns.
                    let x = unsafe { x[t].quants.add(4 * q).cast::<i32>().read_unaligned() };
                    for r in 0..$n {
                        sums[t][part][r] = dpbusd(sums[t][part][r], w[r], set1_32(x));
                    }
                }
            }
            for t in 0..T {
                // SAFETY: a row has a scale and its sums.
                let (x_scale, x_sums) = unsafe { (set1_f(*x[t].scales), x[t].sums) };
                for r in 0..$n {
                    let mut halves = [sums[t][0][r], sums[t][1][r]];
                    if F::HALVES == 2 {
                        for half in 0..2 {
                            let factor = srai_32::<16>(scales.factors[half][r]);
                            halves[half] = mullo_32(halves[half], factor);
                        }
                    }
                    let sum = to_float(add_32(halves[0], halves[1]));
                    acc[t][r] = fmadd(mul(scales.scale[r], x_scale), sum, acc[t][r]);
                }
                if F::HAS_MIN {
                    for half in 0..F::HALVES {
                        // SAFETY: as above.
                        let sum = unsafe { set1_f(*x_sums.add(half)) };
                        for r in 0..$n {
                            acc[t][r] = fmadd(scales.mins[half][r], sum, acc[t][r]);
                        }
                    }
                }
            }
        }

        /// See [`super::dot_groups`].
        ///
        /// # Safety
        /// The processor has the features; groups and row are whole.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn dot_groups<F: $Format>(
            groups: &[&[u8]],
            x: QuantizedRow<'_>,
            out: &mut [GroupSums],
        ) {
            match *groups {
                // SAFETY: the caller's promise.
                [a, b, c, d] => unsafe { dot_streams::<F, STREAMS>([a, b, c, d], x, out) },
                _ => {
                    for (group, out) in groups.iter().zip(out.chunks_exact_mut(1)) {
                        // SAFETY: the caller's promise.
                        unsafe { dot_streams::<F, 1>([group], x, out) };
                    }
                }
            }
        }

        /// The products of a row with `S` groups.
        ///
        /// # Safety
        /// As [`dot_groups`].
        #[target_feature(enable = $features)]
        unsafe fn dot_streams<F: $Format, const S: usize>(
            groups: [&[u8]; S],
            x: QuantizedRow<'_>,
            out: &mut [GroupSums],
        ) {
            let block_bytes = PACKED_ROWS * F::BYTES;
            let groups_of_block = F::LEN / GROUP_LEN;
            let n_blocks = x.quants.len() / F::LEN;
            let row = XRow::new::<F>(&x);
            let mut acc = [[[zero_f(); $n]; 1]; S];
            let stretch = STRETCH / F::LEN;
            let mut first = 0;
            while first < n_blocks {
                let end = n_blocks.min(first + stretch);
                for s in 0..S {
                    let mut sums = acc[s];
                    for b in first..end {
                        let block = groups[s].as_ptr().wrapping_add(b * block_bytes);
                        let scales = block.wrapping_add(F::SCALES_AT);
                        for g in 0..groups_of_block {
                            let planes = block.wrapping_add(g * F::PLANES.n_bytes());
                            let part = block_bytes / groups_of_block;
                            for line in 0..part.div_ceil(64) {
                                let ahead = PREFETCH_BYTES + g * part + 64 * line;
                                prefetch(block.wrapping_add(ahead));
                            }
                            // SAFETY: block `b` is inside the group, and the row has its
                            // columns.
                            unsafe {
                                let x = [row.skip::<F>(b * groups_of_block + g)];
                                let scales = F::$unpack(scales, g);
                                add_group::<F, false, 1>(planes, &scales, &x, &mut sums);
                            }
                        }
                    }
                    acc[s] = sums;
                }
                first = end;
            }
            for (acc, out) in acc.iter().zip(out) {
                store_sums(acc[0], out);
            }
        }

        /// See [`super::multiply_panel`].
        ///
        /// # Safety
        /// The processor has the features; the rows have the panel's columns.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn multiply_panel<F: $Format>(
            panel: &[PanelGroup],
            x: &[QuantizedRow<'_>],
            sums: &mut [GroupSums],
        ) {
            const MOST: usize = 8 / $n;
            // SAFETY: the caller's promise.
            unsafe {
                match x.len() {
                    0 => {}
                    1 => multiply_rows::<F, 1>(panel, x, sums),
                    2 => multiply_rows::<F, 2>(panel, x, sums),
                    3 => multiply_rows::<F, 3>(panel, x, sums),
                    4 => multiply_rows::<F, 4>(panel, x, sums),
                    n if n == MOST => multiply_rows::<F, MOST>(panel, x, sums),
                    n => {
                        let n = if n < MOST { 4 } else { MOST };
                        let (first, rest) = sums.split_at_mut(n);
                        multiply_panel::<F>(panel, &x[..n], first);
                        multiply_panel::<F>(panel, &x[n..], rest);
                    }
                }
            }
        }

        /// # Safety
        /// As [`multiply_panel`].
        #[target_feature(enable = $features)]
        unsafe fn multiply_rows<F: $Format, const T: usize>(
            panel: &[PanelGroup],
            x: &[QuantizedRow<'_>],
            sums: &mut [GroupSums],
        ) {
            let mut rows = [XRow::NONE; T];
            let mut acc = [[zero_f(); $n]; T];
            for t in 0..T {
                rows[t] = XRow::new::<F>(&x[t]);
                for r in 0..$n {
                    // SAFETY: the loads read the sixteen floats of the array.
                    acc[t][r] = unsafe { load_f(sums[t].as_ptr().add(16 / $n * r)) };
                }
            }
            for panel in panel {
                let words = panel.quants.as_ptr().cast();
                let scales = Scales::load::<F>(&panel.scales);
                // SAFETY: the rows have the columns of each group of the panel.
                unsafe {
                    add_group::<F, true, T>(words, &scales, &rows, &mut acc);
                    for row in &mut rows {
                        *row = row.skip::<F>(1);
                    }
                }
            }
            for t in 0..T {
                store_sums(acc[t], &mut sums[t]);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn store_sums(acc: Floats, out: &mut GroupSums) {
            for (r, acc) in acc.into_iter().enumerate() {
                // SAFETY: the stores write the sixteen floats of the array.
                unsafe { store_f(out.as_mut_ptr().add(16 / $n * r), acc) };
            }
        }
    };
}
pub(super) use vnni_kernels;
