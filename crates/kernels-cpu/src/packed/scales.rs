//! The scales of packed blocks in registers, written once for registers of 128, 256 and 512 bits.
//!
//! A function is compiled for one instruction set, so [`packed_scales`] expands the types and functions
//! in a module per register size.

/// Expands to the scales for `$n` registers per sixteen rows, and the trait of formats that unpack theirs.
/// The expanding module must define the conversions of bytes to factors and floats (`halves`, `powers`,
/// `floats`, `twice`, `odd`, `sixes`, `six`, `iq1_s`, `e4m3_halves`, `low_nibbles`, `high_nibbles`).
macro_rules! packed_scales {
    ($features:literal, $n:literal, $float:ty, $int:ty, $Format:ident :: $unpack:ident) => {
        use $crate::packed::format::{Format, ScaleKind};
        use $crate::packed::panel::GroupScales;
        use $crate::packed::types::{
            IQ1M, IQ1S, IQ2S, IQ2XS, IQ2XXS, IQ3S, IQ3XXS, IQ4NL, IQ4XS, MXFP4, NVFP4, Q1_0, Q2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q4Z, Q5_0, Q5_1, Q5K, Q6K, Q8_0, TQ1_0, TQ2_0,
        };

        type Floats = [$float; $n];

        /// The scales of a block.
        #[derive(Clone, Copy)]
        pub(super) struct BlockScales {
            pub(super) scale: Floats,
            /// Zero if the format has no minimums.
            pub(super) min_scale: Floats,
        }

        impl BlockScales {
            /// Zeros.
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) fn none() -> Self {
                Self { scale: [set1_f(0.0); $n], min_scale: [set1_f(0.0); $n] }
            }

            /// Unpacks the scales of a packed block.
            ///
            /// # Safety
            /// The processor has the features, and the pointer is to the scales of a packed
            /// block.
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) unsafe fn unpack<F: Format>(scales: *const u8) -> Self {
                // SAFETY: the caller's promise.
                let mut scale = unsafe {
                    match F::SCALE {
                        ScaleKind::Half => halves(scales, 0),
                        ScaleKind::Exponent => powers(scales),
                        ScaleKind::One => [set1_f(1.0); $n],
                    }
                };
                if F::SCALE_UNIT != 1.0 {
                    for scale in &mut scale {
                        *scale = mul(*scale, set1_f(F::SCALE_UNIT));
                    }
                }
                let mut min_scale = [set1_f(0.0); $n];
                if let Some(ratio) = F::MIN_PER_SCALE {
                    for (min, scale) in min_scale.iter_mut().zip(scale) {
                        *min = mul(scale, set1_f(ratio));
                    }
                } else if F::MINS > 0 {
                    // SAFETY: the caller's promise.
                    min_scale = unsafe { halves(scales, 1) };
                    if F::HAS_ZEROS {
                        for (min, scale) in min_scale.iter_mut().zip(scale) {
                            *min = negative(mul(scale, *min));
                        }
                    }
                    if F::FACTORS > 0 {
                        // Integer minimums are subtracted.
                        for min in &mut min_scale {
                            *min = negative(*min);
                        }
                    }
                }
                Self { scale, min_scale }
            }

            /// Loads the block's scales from a panel's group.
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) fn load<F: Format>(from: &GroupScales) -> Self {
                let zero = [set1_f(0.0); $n];
                let min_scale = if F::MINS > 0 { load_floats(&from.min_scale) } else { zero };
                Self { scale: load_floats(&from.scale), min_scale }
            }

            /// Stores the scales in a panel's group.
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) fn store<F: Format>(&self, to: &mut GroupScales) {
                store_floats(self.scale, &mut to.scale);
                if F::MINS > 0 {
                    store_floats(self.min_scale, &mut to.min_scale);
                }
            }
        }

        /// Factors and minimums of 32 columns; 1 if the format has none.
        #[derive(Clone, Copy)]
        pub(super) struct Integers {
            /// Each factor twice, for products with pairs of sums.
            pub(super) factors: [[$int; $n]; 2],
            pub(super) mins: [Floats; 2],
        }

        impl Integers {
            /// Ones.
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) fn none() -> Self {
                Self { factors: [[set1_16(1); $n]; 2], mins: [[set1_f(1.0); $n]; 2] }
            }

            /// Loads the integers of a panel's group.
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) fn load<F: Format>(from: &GroupScales) -> Self {
                let mut to = Self::none();
                if F::FLOAT_FACTORS {
                    for (half, mins) in to.mins.iter_mut().enumerate() {
                        *mins = load_floats(&from.mins[half]);
                    }
                }
                if F::FACTORS == 0 {
                    return to;
                }
                for half in 0..F::FACTORS {
                    for (r, factor) in to.factors[half].iter_mut().enumerate() {
                        let at = from.factors[half].as_ptr().wrapping_add(16 / $n * r);
                        // SAFETY: the load reads rows of an array of sixteen.
                        *factor = unsafe { load_int(at.cast()) };
                    }
                }
                if F::FACTORS == 1 {
                    to.factors[1] = to.factors[0];
                }
                for half in 0..F::MINS {
                    to.mins[half] = load_floats(&from.mins[half]);
                }
                to
            }

            /// Stores the integers in a panel's group.
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) fn store<F: Format>(&self, to: &mut GroupScales) {
                if F::FLOAT_FACTORS {
                    for (half, mins) in self.mins.into_iter().enumerate() {
                        store_floats(mins, &mut to.mins[half]);
                    }
                }
                if F::FACTORS == 0 {
                    return;
                }
                for half in 0..F::FACTORS {
                    for (r, factor) in self.factors[half].into_iter().enumerate() {
                        let at = to.factors[half].as_mut_ptr().wrapping_add(16 / $n * r);
                        // SAFETY: the store writes rows of an array of sixteen.
                        unsafe { store_int(at.cast(), factor) };
                    }
                }
                for half in 0..F::MINS {
                    store_floats(self.mins[half], &mut to.mins[half]);
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn load_floats(from: &[f32; 16]) -> Floats {
            let mut out = [set1_f(0.0); $n];
            for (r, out) in out.iter_mut().enumerate() {
                // SAFETY: the loads read the sixteen floats of the array.
                *out = unsafe { load_f(from.as_ptr().add(16 / $n * r)) };
            }
            out
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn store_floats(v: Floats, to: &mut [f32; 16]) {
            for (r, v) in v.into_iter().enumerate() {
                // SAFETY: the stores write the sixteen floats of the array.
                unsafe { store_f(to.as_mut_ptr().add(16 / $n * r), v) };
            }
        }

        /// A format with a vector form of unpacking its integers.
        pub(super) trait $Format: Format {
            /// Vector twin of [`Format::integers`], from the scales of a packed block.
            ///
            /// # Safety
            /// The processor has the features, and the pointer is to the scales of a packed
            /// block.
            unsafe fn $unpack(scales: *const u8, group: usize) -> Integers;
        }

        $crate::packed::scales::integers_of!(
            $features, $Format::$unpack;
            Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4Z, IQ4NL, MXFP4, TQ1_0, TQ2_0, Q1_0, Q2_0:
            |_, _| Integers::none()
        );
        $crate::packed::scales::integers_of!(
            $features, $Format::$unpack;
            IQ2XXS, IQ3XXS, IQ3S: |scales, group| {
                // SAFETY: the caller's promise; a byte for each two groups and a row.
                let bytes = unsafe { load(scales.add(Self::INTEGERS_AT + 16 * (group / 2))) };
                let nibbles =
                    if group.is_multiple_of(2) { low_nibbles(bytes) } else { high_nibbles(bytes) };
                Integers { factors: [twice(odd(nibbles)); 2], ..Integers::none() }
            }
        );
        $crate::packed::scales::integers_of!(
            $features, $Format::$unpack;
            IQ2XS, IQ2S, IQ1M: |scales, group| {
                // SAFETY: the caller's promise; a byte for each group and row.
                let bytes = unsafe { load(scales.add(Self::INTEGERS_AT + 16 * group)) };
                let factors = [low_nibbles(bytes), high_nibbles(bytes)];
                let mut out = Integers::none();
                for (out, factors) in out.factors.iter_mut().zip(factors) {
                    *out = twice(odd(factors));
                }
                out
            }
        );
        $crate::packed::scales::integers_of!($features, $Format::$unpack; IQ1S: |scales, group| {
            // SAFETY: the caller's promise; a byte for each two groups and a row.
            let bytes = unsafe { load(scales.add(Self::INTEGERS_AT + 16 * (group / 2))) };
            let nibbles =
                if group.is_multiple_of(2) { low_nibbles(bytes) } else { high_nibbles(bytes) };
            let [factor, min] = iq1_s(nibbles);
            Integers { factors: [twice(factor); 2], mins: [floats(min); 2] }
        });
        $crate::packed::scales::integers_of!($features, $Format::$unpack; NVFP4: |scales, group| {
            let mut out = Integers::none();
            for (half, out) in out.mins.iter_mut().enumerate() {
                let at = Self::INTEGERS_AT + 16 * (2 * group + half);
                // SAFETY: the caller's promise; a byte for each half of a group and row.
                *out = e4m3_halves(unsafe { load(scales.add(at)) });
            }
            out
        });
        $crate::packed::scales::integers_of!($features, $Format::$unpack; IQ4XS: |scales, group| {
            // SAFETY: the caller's promise.
            let factor = unsafe { six(scales.add(Self::INTEGERS_AT), group) };
            Integers { factors: [twice(minus_32(factor)); 2], ..Integers::none() }
        });
        $crate::packed::scales::integers_of!($features, $Format::$unpack; Q4K, Q5K: |scales, group| {
            // SAFETY: the caller's promise.
            let [factor, min] = unsafe { sixes(scales.add(Self::INTEGERS_AT), group) };
            Integers { factors: [twice(factor); 2], mins: [floats(min); 2] }
        });
        $crate::packed::scales::integers_of!($features, $Format::$unpack; Q2K: |scales, group| {
            let mut out = Integers::none();
            for half in 0..2 {
                let at = Self::INTEGERS_AT + 16 * (2 * group + half);
                // SAFETY: the caller's promise; a byte for each half of a group and row.
                let bytes = unsafe { load(scales.add(at)) };
                out.factors[half] = twice(low_nibbles(bytes));
                out.mins[half] = floats(high_nibbles(bytes));
            }
            out
        });
        $crate::packed::scales::integers_of!($features, $Format::$unpack; Q3K: |scales, group| {
            // SAFETY: the caller's promise.
            let factors = unsafe { sixes(scales.add(Self::INTEGERS_AT), group) };
            let mut out = Integers::none();
            for (out, factors) in out.factors.iter_mut().zip(factors) {
                *out = twice(minus_32(factors));
            }
            out
        });
        $crate::packed::scales::integers_of!($features, $Format::$unpack; Q6K: |scales, group| {
            let mut out = Integers::none();
            for (half, out) in out.factors.iter_mut().enumerate() {
                let at = Self::INTEGERS_AT + 16 * (2 * group + half);
                // SAFETY: the caller's promise; a byte for each half of a group and row.
                *out = twice(unsafe { load(scales.add(at)) });
            }
            out
        });
    };
}
pub(super) use packed_scales;

/// Implements the trait of [`packed_scales`] for some types by one expression of scales and group.
macro_rules! integers_of {
    (
        $features:literal, $Format:ident :: $unpack:ident;
        $($name:ty),+: |$scales:pat_param, $group:pat_param| $body:expr
    ) => {$(
        impl $Format for $name {
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn $unpack($scales: *const u8, $group: usize) -> Integers {
                $body
            }
        }
    )+};
}
pub(super) use integers_of;
