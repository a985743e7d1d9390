//! The kernels with 8-bit dot products in one instruction, written once for registers of
//! 128, 256 and 512 bits.
//!
//! The instruction adds four products of bytes to a 32-bit sum in each lane. On x86 (`vpdpbusd`) it takes
//! unsigned quants, and 128 is added to signed ones; on ARM (`sdot`) it takes signed quants, and unsigned ones
//! have at most 6 bits. Sums start at the negative contribution of the 128 or of the format's offset.
//!
//! A function is compiled for one instruction set, so [`dot_kernels`] expands the functions in a module per
//! tier.

/// Expands to the kernels for `$n` registers per sixteen rows. The expanding module must define the vector
/// instructions under the names used here, `SIGNED`, which says whether they take signed quants, and
/// `BlockScales`, `Integers` and `$unpack` for the scales of a packed block.
macro_rules! dot_kernels {
    ($features:literal, $n:literal, $float:ty, $int:ty, $Format:ident :: $unpack:ident) => {
        use $crate::packed::panel::PanelGroup;
        use $crate::packed::streams::{PREFETCH_BYTES, STRETCH, XRow, XRows};
        use $crate::packed::{GROUP_LEN, GroupSums, PACKED_ROWS};
        use $crate::quantize::{QuantizedRow, QuantizedRows};
        use $crate::streams::{PREFETCH_FAR_BYTES, STREAMS};

        /// Values of sixteen rows.
        type Ints = [$int; $n];
        type Floats = [$float; $n];

        /// Loads 64 bytes.
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
            if let Some(codebook) = p.codebook {
                for out in &mut out {
                    *out = look_up(codebook, *out);
                }
            }
            out
        }

        /// The sums of a block for `T` activation rows and `G` groups, before the scales of
        /// the block.
        #[derive(Clone, Copy)]
        struct BlockSums<const T: usize, const G: usize> {
            totals: [[Floats; G]; T],
            mins: [[Floats; G]; T],
        }

        impl<const T: usize, const G: usize> BlockSums<T, G> {
            #[inline]
            #[target_feature(enable = $features)]
            fn zero() -> Self {
                Self { totals: [[[zero_f(); $n]; G]; T], mins: [[[zero_f(); $n]; G]; T] }
            }

            /// Adds the products of 32 columns of the groups, in panels or in planes, with
            /// the first 32 of the activation rows.
            ///
            /// # Safety
            /// Words and rows can be read.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_group<F: $Format, const PANEL: bool>(
                &mut self,
                words: [*const u8; G],
                integers: &[Integers; G],
                x: &[XRow; T],
            ) {
                for half in 0..2 {
                    let mut sums = [[[zero(); $n]; G]; T];
                    let offset = if made_unsigned::<F>() { 128 } else { i32::from(F::OFFSET) };
                    if offset > 0 {
                        for t in 0..T {
                            // SAFETY: a row has the sums of each half.
                            let [a, b] = unsafe { *x[t].pair_sums.add(half) };
                            let sum = set1_32(-offset * (i32::from(a) + i32::from(b)));
                            sums[t] = [[sum; $n]; G];
                        }
                    }
                    for q in 4 * half..4 * half + 4 {
                        let mut w = [[zero(); $n]; G];
                        for (w, words) in w.iter_mut().zip(words) {
                            // SAFETY: the caller's promise.
                            *w = unsafe {
                                if PANEL {
                                    line(words.add(64 * q))
                                } else {
                                    unsigned::<F>(plane_word::<F>(words, q))
                                }
                            };
                        }
                        for t in 0..T {
                            let word = x[t].quants.wrapping_add(4 * q).cast::<i32>();
                            // SAFETY: a row has eight words of 32 columns.
                            let x = set1_32(unsafe { word.read_unaligned() });
                            for g in 0..G {
                                for r in 0..$n {
                                    sums[t][g][r] = dot(sums[t][g][r], w[g][r], x);
                                }
                            }
                        }
                    }
                    for t in 0..T {
                        // SAFETY: a row has a scale of each half.
                        let scale = unsafe { set1_f(*x[t].scales.add(half)) };
                        for g in 0..G {
                            for r in 0..$n {
                                let mut sum = to_float(sums[t][g][r]);
                                if F::FACTORS > 0 {
                                    // The product is less than 2^24, and so exact.
                                    let factor = srai_32::<16>(integers[g].factors[half][r]);
                                    sum = mul(sum, to_float(factor));
                                }
                                if F::FLOAT_FACTORS {
                                    sum = mul(sum, integers[g].mins[half][r]);
                                }
                                self.totals[t][g][r] = fmadd(scale, sum, self.totals[t][g][r]);
                            }
                        }
                    }
                }
                for (mins, x) in self.mins.iter_mut().zip(x) {
                    for half in 0..F::MINS {
                        // SAFETY: a row has a sum for each minimum.
                        let sum = unsafe { set1_f(*x.sums.add(half)) };
                        for (mins, integers) in mins.iter_mut().zip(integers) {
                            for (acc, min) in mins.iter_mut().zip(integers.mins[half]) {
                                *acc = if F::FACTORS == 0 { sum } else { fmadd(min, sum, *acc) };
                            }
                        }
                    }
                }
            }

            /// Adds the sums times the scales of the block to those of the rows.
            #[inline]
            #[target_feature(enable = $features)]
            fn finish<F: $Format>(&self, scales: &[BlockScales; G], acc: &mut [[Floats; G]; T]) {
                for t in 0..T {
                    for g in 0..G {
                        for r in 0..$n {
                            let acc = &mut acc[t][g][r];
                            *acc = fmadd(scales[g].scale[r], self.totals[t][g][r], *acc);
                            if F::MINS > 0 {
                                *acc = fmadd(scales[g].min_scale[r], self.mins[t][g][r], *acc);
                            }
                        }
                    }
                }
            }
        }

        /// Whether 128 is added to the format's quants: they are signed and the instruction takes unsigned ones.
        const fn made_unsigned<F: $Format>() -> bool {
            F::PLANES.are_signed() && !SIGNED
        }

        /// A word of quants as the instruction takes it.
        #[inline]
        #[target_feature(enable = $features)]
        fn unsigned<F: $Format>(mut word: Ints) -> Ints {
            if made_unsigned::<F>() {
                for word in &mut word {
                    *word = xor(*word, set1_8(-128));
                }
            }
            word
        }

        /// See [`super::dot_groups`].
        ///
        /// # Safety
        /// The processor has the features; groups and planes are whole.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn dot_groups<F: $Format>(
            groups: &[&[u8]],
            rows: &[QuantizedRow<'_>],
            out: &mut [GroupSums],
        ) {
            // SAFETY: the caller's promise.
            unsafe {
                match (groups, rows) {
                    (&[a, b, c, d], &[x]) => {
                        dot_streams::<F, STREAMS, 1>([a, b, c, d], [x], out);
                    }
                    (&[a, b, c, d], &[x, y]) => {
                        dot_streams::<F, STREAMS, 2>([a, b, c, d], [x, y], out);
                    }
                    _ => {
                        for (group, out) in groups.iter().zip(out.chunks_exact_mut(rows.len())) {
                            dot_rows::<F>(group, rows, out);
                        }
                    }
                }
            }
        }

        /// The products of some rows with a group, as many rows at a time as have room for their sums in the
        /// registers; the group is read again from the nearest caches.
        ///
        /// # Safety
        /// As [`dot_groups`].
        #[target_feature(enable = $features)]
        unsafe fn dot_rows<F: $Format>(
            group: &[u8],
            rows: &[QuantizedRow<'_>],
            out: &mut [GroupSums],
        ) {
            const MOST: usize = if $n == 1 { 4 } else { 2 };
            let mut done = 0;
            while done < rows.len() {
                let (rows, out) = (&rows[done..], &mut out[done..]);
                // SAFETY: the caller's promise.
                unsafe {
                    if let Some(&rows) = rows.first_chunk::<MOST>() {
                        dot_streams::<F, 1, MOST>([group], rows, out);
                    } else if let Some(&rows) = rows.first_chunk::<{ MOST - 1 }>() {
                        dot_streams::<F, 1, { MOST - 1 }>([group], rows, out);
                    } else if let Some(&rows) = rows.first_chunk::<{ MOST / 2 }>() {
                        dot_streams::<F, 1, { MOST / 2 }>([group], rows, out);
                    } else {
                        dot_streams::<F, 1, 1>([group], [rows[0]], out);
                    }
                }
                done += rows.len().min(MOST);
            }
        }

        /// The products of `T` rows with `S` groups. A word of weights is unpacked once for all rows.
        ///
        /// # Safety
        /// As [`dot_groups`].
        #[target_feature(enable = $features)]
        unsafe fn dot_streams<F: $Format, const S: usize, const T: usize>(
            groups: [&[u8]; S],
            rows: [QuantizedRow<'_>; T],
            out: &mut [GroupSums],
        ) {
            let block_bytes = PACKED_ROWS * F::PACKED_BYTES;
            let groups_of_block = F::LEN / GROUP_LEN;
            let n_blocks = rows[0].quants.len() / F::LEN;
            let rows: [XRow; T] = std::array::from_fn(|t| XRow::new::<F>(&rows[t]));
            let mut acc = [[[[zero_f(); $n]; 1]; T]; S];
            let stretch = STRETCH / F::LEN;
            let mut first = 0;
            while first < n_blocks {
                let end = n_blocks.min(first + stretch);
                for s in 0..S {
                    let mut sums = acc[s];
                    for b in first..end {
                        let block = groups[s].as_ptr().wrapping_add(b * block_bytes);
                        let scales = block.wrapping_add(F::SCALES_AT);
                        let mut block_sums = BlockSums::<T, 1>::zero();
                        for g in 0..groups_of_block {
                            let planes = block.wrapping_add(g * F::PLANES.n_bytes());
                            let part = block_bytes / groups_of_block;
                            let distance = if S == 1 { PREFETCH_FAR_BYTES } else { PREFETCH_BYTES };
                            let ahead = block.wrapping_add(g * part + distance);
                            for line in 0..part.div_ceil(64) {
                                let line = ahead.wrapping_add(64 * line);
                                if S == 1 { prefetch_far(line) } else { prefetch(line) }
                            }
                            // SAFETY: block `b` is inside the group, and the rows have its
                            // columns.
                            unsafe {
                                let mut x = rows;
                                for x in &mut x {
                                    *x = x.skip::<F>(b * groups_of_block + g);
                                }
                                let integers = [F::$unpack(scales, g)];
                                block_sums.add_group::<F, false>([planes], &integers, &x);
                            }
                        }
                        // SAFETY: as above.
                        let scales = [unsafe { BlockScales::unpack::<F>(scales) }];
                        block_sums.finish::<F>(&scales, &mut sums);
                    }
                    acc[s] = sums;
                }
                first = end;
            }
            for ([acc], out) in acc.as_flattened().iter().zip(out) {
                store_sums(*acc, out);
            }
        }

        /// See [`super::expand`].
        ///
        /// # Safety
        /// The processor has the features; the bytes are those of the panel's columns.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn expand<F: $Format>(bytes: &[u8], panel: &mut [PanelGroup]) {
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
                    let out = panel.quants.as_mut_ptr().cast::<$int>();
                    for q in 0..8 {
                        // SAFETY: the planes are whole, and the panel has eight words of
                        // 64 bytes.
                        unsafe {
                            let word = unsigned::<F>(plane_word::<F>(planes.as_ptr(), q));
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

        /// See [`super::multiply_panels`].
        ///
        /// # Safety
        /// The processor has the features; there are rows from row `first` on, and they have
        /// the columns, which are the panel's.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn multiply_panel<F: $Format>(
            panel: &[PanelGroup],
            x: &QuantizedRows,
            first: usize,
            cols: std::ops::Range<usize>,
            sums: &mut [GroupSums],
        ) {
            // As many rows as have room for their sums in the registers.
            const TILE_ROWS: usize = if $n > 2 { 2 } else { 8 / $n };
            let rows = XRows::new::<F>(x, first, cols);
            // SAFETY: the caller's promise.
            unsafe {
                let done = multiply_tiles::<F, TILE_ROWS, 1>([panel], &rows, 0, &mut [&mut *sums]);
                let done = multiply_tiles::<F, 4, 1>([panel], &rows, done, &mut [&mut *sums]);
                multiply_tiles::<F, 1, 1>([panel], &rows, done, &mut [&mut *sums]);
            }
        }

        /// Adds the products of the rows from row `first` on with `G` panels, `T` rows at a time while there are so
        /// many. Returns the first row that is left.
        ///
        /// # Safety
        /// As [`multiply_panel`].
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn multiply_tiles<F: $Format, const T: usize, const G: usize>(
            panels: [&[PanelGroup]; G],
            rows: &XRows,
            first: usize,
            sums: &mut [&mut [GroupSums]; G],
        ) -> usize {
            let mut first = first;
            while first + T <= sums[0].len() {
                let mut tile = [std::ptr::null_mut(); G];
                for (tile, sums) in tile.iter_mut().zip(&mut *sums) {
                    *tile = sums[first..first + T].as_mut_ptr();
                }
                // SAFETY: the caller's promise; the sums are those of `T` rows.
                unsafe { multiply_rows::<F, T, G>(panels, rows.tile(first), tile) };
                first += T;
            }
            first
        }

        /// Adds the products of `T` activation rows with `G` panels.
        ///
        /// # Safety
        /// As [`multiply_panel`]; from each pointer on there are the sums of `T` rows.
        #[target_feature(enable = $features)]
        unsafe fn multiply_rows<F: $Format, const T: usize, const G: usize>(
            panels: [&[PanelGroup]; G],
            mut rows: [XRow; T],
            sums: [*mut GroupSums; G],
        ) {
            let mut acc = [[[zero_f(); $n]; G]; T];
            for t in 0..T {
                for g in 0..G {
                    for r in 0..$n {
                        // SAFETY: the loads read the sixteen floats of a row's sums.
                        acc[t][g][r] = unsafe {
                            load_f(sums[g].add(t).cast::<f32>().cast_const().add(16 / $n * r))
                        };
                    }
                }
            }
            let groups_of_block = F::LEN / GROUP_LEN;
            let mut at = [std::ptr::null::<PanelGroup>(); G];
            for (at, panel) in at.iter_mut().zip(panels) {
                *at = panel.as_ptr();
            }
            for _ in 0..panels[0].len() / groups_of_block {
                let mut block_sums = BlockSums::<T, G>::zero();
                let mut scales = [BlockScales::none(); G];
                for (scales, at) in scales.iter_mut().zip(at) {
                    // SAFETY: the panels have one length, so each has the block.
                    *scales = unsafe { BlockScales::load::<F>(&(*at).scales) };
                }
                for _ in 0..groups_of_block {
                    let mut words = [std::ptr::null(); G];
                    let mut integers = [Integers::none(); G];
                    for g in 0..G {
                        // SAFETY: as above. The rows have the columns of each group of the
                        // panels.
                        unsafe {
                            words[g] = (*at[g]).quants.as_ptr().cast();
                            integers[g] = Integers::load::<F>(&(*at[g]).scales);
                            at[g] = at[g].add(1);
                        }
                    }
                    // SAFETY: as above.
                    unsafe {
                        block_sums.add_group::<F, true>(words, &integers, &rows);
                        for row in &mut rows {
                            *row = row.skip::<F>(1);
                        }
                    }
                }
                block_sums.finish::<F>(&scales, &mut acc);
            }
            for t in 0..T {
                for g in 0..G {
                    // SAFETY: the caller's promise.
                    unsafe { store_sums(acc[t][g], &mut *sums[g].add(t)) };
                }
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

/// Expands to the products with two panels at a time, for registers with room for the sums of both, in a
/// module that has [`dot_kernels`].
#[cfg(target_arch = "x86_64")]
macro_rules! two_panel_kernels {
    ($features:literal, $Format:ident) => {
        /// As [`multiply_panel`] for two panels of the same columns, which share the loads of activations.
        ///
        /// # Safety
        /// As [`multiply_panel`].
        #[target_feature(enable = $features)]
        pub(super) unsafe fn multiply_two_panels<F: $Format>(
            panels: [&[PanelGroup]; 2],
            x: &QuantizedRows,
            first: usize,
            cols: std::ops::Range<usize>,
            mut sums: [&mut [GroupSums]; 2],
        ) {
            let rows = XRows::new::<F>(x, first, cols);
            // SAFETY: the caller's promise.
            unsafe {
                let mut done = 0;
                // Sums of minimums and the constant that makes bytes unsigned take registers too.
                if F::FACTORS == 0 && !F::PLANES.bytes {
                    done = multiply_tiles::<F, 6, 2>(panels, &rows, done, &mut sums);
                }
                let done = multiply_tiles::<F, 4, 2>(panels, &rows, done, &mut sums);
                let done = multiply_tiles::<F, 2, 2>(panels, &rows, done, &mut sums);
                multiply_tiles::<F, 1, 2>(panels, &rows, done, &mut sums);
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use two_panel_kernels;
