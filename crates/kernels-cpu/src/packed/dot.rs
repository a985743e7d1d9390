//! The kernels with 8-bit dot products in one instruction, written once for registers of
//! 128, 256 and 512 bits.
//!
//! The instruction adds four products of bytes to 32 bits: a word of sixteen rows of
//! quants meets a word of activations in every lane. On x86 (`vpdpbusd`) quants are
//! unsigned, and signed ones are made so by adding 128; on ARM (`sdot`) they are signed,
//! and the unsigned ones have 6 bits at most. The first value of a sum takes 128 and
//! offsets back.
//!
//! [`dot_kernels`] writes the functions into a module that names the instructions of its
//! registers, because a function is compiled for one set of instructions.

/// The kernels for `$n` registers of sixteen rows. The module gives the instructions the
/// names used here, says with `SIGNED` whether they take signed quants, and has
/// `BlockScales` and `Integers` with the way to unpack the integers of a packed block.
macro_rules! dot_kernels {
    ($features:literal, $n:literal, $float:ty, $int:ty, $Format:ident :: $unpack:ident) => {
        use $crate::packed::panel::PanelGroup;
        use $crate::packed::streams::{PREFETCH_BYTES, STRETCH, XRow, XRows};
        use $crate::packed::{GROUP_LEN, GroupSums, PACKED_ROWS, STREAMS};
        use $crate::quantize::{QuantizedRow, QuantizedRows};

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
                if from > to { down_16(v, from - to) } else { up_16(v, to - from) }
            };
            let mut out = [zero(); $n];
            if p.nibbles {
                // SAFETY: the nibbles are four lines.
                let v = unsafe { line(at.add(64 * (q % 4))) };
                for r in 0..$n {
                    let v = if q < 4 { v[r] } else { down_16(v[r], 4) };
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

        /// The sums of a block for `T` activation rows, before the scales of the block.
        #[derive(Clone, Copy)]
        struct BlockSums<const T: usize> {
            totals: [Floats; T],
            mins: [Floats; T],
        }

        impl<const T: usize> BlockSums<T> {
            #[inline]
            #[target_feature(enable = $features)]
            fn zero() -> Self {
                Self { totals: [[zero_f(); $n]; T], mins: [[zero_f(); $n]; T] }
            }

            /// Adds the products of 32 columns of sixteen rows, in a panel or in planes,
            /// with the first 32 of the activation rows.
            ///
            /// # Safety
            /// Words and rows can be read.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_group<F: $Format, const PANEL: bool>(
                &mut self,
                words: *const u8,
                integers: &Integers,
                x: &[XRow; T],
            ) {
                for half in 0..2 {
                    let mut sums = [[zero(); $n]; T];
                    let made_unsigned = F::PLANES.bytes && !SIGNED;
                    let offset = if made_unsigned { 128 } else { i32::from(F::OFFSET) };
                    if offset > 0 {
                        for t in 0..T {
                            // SAFETY: a row has the sums of each half.
                            let [a, b] = unsafe { *x[t].pair_sums.add(half) };
                            sums[t] = [set1_32(-offset * (i32::from(a) + i32::from(b))); $n];
                        }
                    }
                    for q in 4 * half..4 * half + 4 {
                        // SAFETY: the caller's promise.
                        let mut w = unsafe {
                            if PANEL { line(words.add(64 * q)) } else { plane_word::<F>(words, q) }
                        };
                        if made_unsigned {
                            for w in &mut w {
                                *w = xor(*w, set1_8(-128));
                            }
                        }
                        for t in 0..T {
                            let word = x[t].quants.wrapping_add(4 * q).cast::<i32>();
                            // SAFETY: a row has eight words of 32 columns.
                            let x = unsafe { word.read_unaligned() };
                            for r in 0..$n {
                                sums[t][r] = dot(sums[t][r], w[r], set1_32(x));
                            }
                        }
                    }
                    for t in 0..T {
                        // SAFETY: a row has a scale of each half.
                        let scale = unsafe { set1_f(*x[t].scales.add(half)) };
                        for r in 0..$n {
                            let mut sum = to_float(sums[t][r]);
                            if F::FACTORS > 0 {
                                // The product is less than 2^24, and so exact.
                                let factor = srai_32::<16>(integers.factors[half][r]);
                                sum = mul(sum, to_float(factor));
                            }
                            self.totals[t][r] = fmadd(scale, sum, self.totals[t][r]);
                        }
                    }
                }
                for (mins, x) in self.mins.iter_mut().zip(x) {
                    for half in 0..F::MINS {
                        // SAFETY: a row has a sum for each minimum.
                        let sum = unsafe { set1_f(*x.sums.add(half)) };
                        for (acc, min) in mins.iter_mut().zip(integers.mins[half]) {
                            *acc = if F::FACTORS == 0 { sum } else { fmadd(min, sum, *acc) };
                        }
                    }
                }
            }

            /// Adds the sums times the scales of the block to those of the rows.
            #[inline]
            #[target_feature(enable = $features)]
            fn finish<F: $Format>(&self, scales: &BlockScales, acc: &mut [Floats; T]) {
                for (t, acc) in acc.iter_mut().enumerate() {
                    for (r, acc) in acc.iter_mut().enumerate() {
                        *acc = fmadd(scales.scale[r], self.totals[t][r], *acc);
                        if F::MINS > 0 {
                            *acc = fmadd(scales.min_scale[r], self.mins[t][r], *acc);
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
                        let mut block_sums = BlockSums::<1>::zero();
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
                                let integers = F::$unpack(scales, g);
                                block_sums.add_group::<F, false>(planes, &integers, &x);
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
            for (acc, out) in acc.iter().zip(out) {
                store_sums(acc[0], out);
            }
        }

        /// See [`super::expand`].
        ///
        /// # Safety
        /// The processor has the features; the bytes are those of the panel's columns.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn expand<F: $Format>(bytes: &[u8], panel: &mut [PanelGroup]) {
            let blocks = bytes.chunks_exact(PACKED_ROWS * F::BYTES);
            for (block, panel) in blocks.zip(panel.chunks_exact_mut(F::LEN / GROUP_LEN)) {
                let scales = block[F::SCALES_AT..].as_ptr();
                // SAFETY: the block's scales follow its planes.
                let block_scales = unsafe { BlockScales::unpack::<F>(scales) };
                for line in 0..block.len().div_ceil(64) {
                    prefetch(block.as_ptr().wrapping_add(2 * PREFETCH_BYTES + 64 * line));
                }
                for (g, panel) in panel.iter_mut().enumerate() {
                    let planes = &block[g * F::PLANES.n_bytes()..][..F::PLANES.n_bytes()];
                    let out = panel.quants.as_mut_ptr().cast::<$int>();
                    for q in 0..8 {
                        // SAFETY: the planes are whole, and the panel has eight words of
                        // 64 bytes.
                        unsafe {
                            let word = plane_word::<F>(planes.as_ptr(), q);
                            for (r, word) in word.into_iter().enumerate() {
                                store(out.add($n * q + r), word);
                            }
                        }
                    }
                    block_scales.store::<F>(&mut panel.scales);
                    // SAFETY: the block's scales follow its planes.
                    unsafe { F::$unpack(scales, g).store::<F>(&mut panel.scales) };
                }
            }
        }

        /// See [`super::multiply_panel`].
        ///
        /// # Safety
        /// The processor has the features; there are rows, and they have the columns,
        /// which are the panel's.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn multiply_panel<F: $Format>(
            panel: &[PanelGroup],
            x: &QuantizedRows,
            cols: std::ops::Range<usize>,
            sums: &mut [GroupSums],
        ) {
            // As many as have room for their sums in the registers.
            const TILE_ROWS: usize = if $n > 2 { 2 } else { 8 / $n };
            let rows = XRows::new::<F>(x, cols);
            let (tiles, rest) = sums.as_chunks_mut::<TILE_ROWS>();
            let mut first = tiles.len() * TILE_ROWS;
            // SAFETY: the caller's promise.
            unsafe {
                for (i, sums) in tiles.iter_mut().enumerate() {
                    multiply_rows::<F, TILE_ROWS>(panel, rows.tile(i * TILE_ROWS), sums);
                }
                let (fours, rest) = rest.as_chunks_mut::<4>();
                for sums in fours {
                    multiply_rows::<F, 4>(panel, rows.tile(first), sums);
                    first += 4;
                }
                for (i, sums) in rest.iter_mut().enumerate() {
                    let sums = std::array::from_mut(sums);
                    multiply_rows::<F, 1>(panel, rows.tile(first + i), sums);
                }
            }
        }

        /// Adds the products of `T` activation rows with a panel.
        ///
        /// # Safety
        /// As [`multiply_panel`].
        #[target_feature(enable = $features)]
        unsafe fn multiply_rows<F: $Format, const T: usize>(
            panel: &[PanelGroup],
            mut rows: [XRow; T],
            sums: &mut [GroupSums; T],
        ) {
            let mut acc = [[zero_f(); $n]; T];
            for (acc, sums) in acc.iter_mut().zip(&*sums) {
                for (r, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: the loads read the sixteen floats of the array.
                    *acc = unsafe { load_f(sums.as_ptr().add(16 / $n * r)) };
                }
            }
            for block in panel.chunks_exact(F::LEN / GROUP_LEN) {
                let mut block_sums = BlockSums::<T>::zero();
                for group in block {
                    let words = group.quants.as_ptr().cast();
                    let integers = Integers::load::<F>(&group.scales);
                    // SAFETY: the rows have the columns of each group of the panel.
                    unsafe {
                        block_sums.add_group::<F, true>(words, &integers, &rows);
                        for row in &mut rows {
                            *row = row.skip::<F>(1);
                        }
                    }
                }
                block_sums.finish::<F>(&BlockScales::load::<F>(&block[0].scales), &mut acc);
            }
            for (acc, sums) in acc.into_iter().zip(sums) {
                store_sums(acc, sums);
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
pub(super) use dot_kernels;
