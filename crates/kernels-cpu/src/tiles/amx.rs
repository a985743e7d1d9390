//! Tile products by AMX instructions.
//!
//! They are inline assembly, because the AMX intrinsics are not stable. One block goes from LDTILECFG
//! to TILERELEASE, so no tile register is in use between two products and a context switch has none to
//! save.

use std::arch::asm;

use super::{PAIR_LEN, Product, SplitPair, SplitProduct, TILE_LEN, TilePair, Tiles};
use crate::{AmxBf16, RowsMut};

/// The operand of LDTILECFG (Intel SDM, volume 1, section 18.2): number of rows and bytes per row of each
/// tile register, zero for unused ones.
#[derive(Debug, PartialEq, Eq)]
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// The configuration of whole tiles, in static memory so that LDTILECFG need not wait for a store.
    const WHOLE: &Self = &Self::new([TILE_LEN; 2], [TILE_LEN; 2]);

    /// [`Self::WHOLE`] if the shape is that of whole tiles, otherwise a configuration stored in `place`.
    fn of(place: &mut Option<Self>, rows: [usize; 2], cols: [usize; 2]) -> &Self {
        if [rows, cols] == [[TILE_LEN; 2]; 2] {
            return Self::WHOLE;
        }
        place.insert(Self::new(rows, cols))
    }

    /// Registers 0 to 3 hold the sums of two tiles of rows with two of columns, 4 and 5 activations, 6 and 7
    /// weights.
    const fn new(rows: [usize; 2], cols: [usize; 2]) -> Self {
        let mut config =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut i = 0;
        while i < 2 {
            config.set(i, rows[0], cols[i]);
            config.set(2 + i, rows[1], cols[i]);
            config.set(4 + i, rows[i], TILE_LEN);
            config.set(6 + i, TILE_LEN, cols[i]);
            i += 1;
        }
        config
    }

    const fn set(&mut self, tile: usize, n_rows: usize, n_words: usize) {
        if n_rows > 0 && n_words > 0 {
            self.rows[tile] = n_rows as u8;
            self.row_bytes[tile] = 4 * n_words as u16;
        }
    }
}

/// Splits a number up to 32 into up to sixteen and the remainder.
fn halves(n: usize) -> [usize; 2] {
    [n.min(TILE_LEN), n.saturating_sub(TILE_LEN)]
}

impl Tiles for AmxBf16 {
    fn multiply(self, product: &Product<'_>, mut c: RowsMut<'_>) {
        product.check(&c);
        let (n_rows, n_cols) = (c.n_rows(), c.n_cols());
        if n_rows == 0 || n_cols == 0 {
            return;
        }
        if product.a.is_empty() {
            if !product.add {
                (0..n_rows).for_each(|r| c.row_mut(r).fill(0.0));
            }
            return;
        }
        // Whole pairs of tiles in one loop, then the remaining columns.
        let n_whole = n_cols / PAIR_LEN;
        let rest = halves(n_cols % PAIR_LEN);
        for (first, n_blocks, cols) in [(0, n_whole, [TILE_LEN; 2]), (n_whole, 1, rest)] {
            if n_blocks == 0 || cols[0] == 0 {
                continue;
            }
            let rows = halves(n_rows);
            let mut made = None;
            let config = Config::of(&mut made, rows, cols);
            let from = first * PAIR_LEN;
            let to = n_cols.min((first + n_blocks) * PAIR_LEN);
            let mut c = c.slice_cols(from..to);
            let block = Blocks {
                config,
                a: product.a.as_ptr(),
                b: product.b[first * product.b_stride..].as_ptr(),
                c: c.as_mut_ptr(),
                c_stride: c.stride() * size_of::<f32>(),
                n_steps: product.a.len(),
                b_skip: (product.b_stride - product.a.len()) * size_of::<TilePair>(),
                n_blocks,
                add: usize::from(product.add),
                next: product.next.as_ptr(),
            };
            // SAFETY: the token proves that the instructions were detected and the system
            // permits them. The operands were checked against the shape of the result, and
            // the configuration has its rows and columns.
            unsafe {
                match (rows[1] > 0, cols[1] > 0) {
                    (true, true) => multiply_2x2(&block),
                    (true, false) => multiply_2x1(&block),
                    (false, true) => multiply_1x2(&block),
                    (false, false) => multiply_1x1(&block),
                }
            }
        }
    }

    fn multiply_split(self, product: &SplitProduct<'_>, mut c: RowsMut<'_>) {
        product.check(&c);
        if c.n_rows() == 0 || c.n_cols() == 0 {
            return;
        }
        let rows = halves(c.n_rows());
        let mut made = None;
        let config = Config::of(&mut made, rows, [TILE_LEN; 2]);
        let block = Blocks {
            config,
            a: product.a.as_ptr(),
            b: product.b.as_ptr(),
            c: c.as_mut_ptr(),
            c_stride: c.stride() * size_of::<f32>(),
            n_steps: product.a.len(),
            b_skip: 0,
            n_blocks: c.n_cols() / PAIR_LEN,
            add: 0,
            next: std::ptr::null(),
        };
        // SAFETY: as in `multiply`.
        unsafe { if rows[1] > 0 { multiply_split_2x2(&block) } else { multiply_split_1x2(&block) } }
    }
}

/// The operands of a loop over blocks of one or two tiles of columns.
struct Blocks<'a, Step> {
    config: &'a Config,
    a: *const Step,
    b: *const Step,
    c: *mut f32,
    c_stride: usize, // bytes
    n_steps: usize,  // at least 1
    b_skip: usize,   // bytes from the last step of a block to the first of the next
    n_blocks: usize, // at least 1
    add: usize,      // 1 to add to the result, 0 to replace it
    next: *const TilePair,
}

/// Defines a function that multiplies one or two tiles of rows with one or two of columns. Each step
/// loads the tiles of both operands that it uses. With one pair of tiles per step, it also prefetches
/// four cache lines of the next product's operand to L2.
macro_rules! multiply {
    ($name:ident, $operand:ty, $shift:literal, $zero:tt, $load:tt, $step:tt, $store:tt) => {
        /// # Safety
        /// The processor has AMX-BF16, and the system permits its tiles. Operands and result
        /// have the steps, blocks and rows, and the configuration has their shape.
        #[inline(never)]
        unsafe fn $name(blocks: &Blocks<'_, $operand>) {
            const { assert!(size_of::<$operand>() == 1 << $shift) };
            multiply!(@asm blocks, $operand, $shift, $zero, $load, $step, $store)
        }
    };
    (@two_by_two $name:ident, $operand:ty, $shift:literal, $step:tt) => {
        multiply!(
            $name,
            $operand,
            $shift,
            ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
            [
                "tileloadd tmm0, [{c} + {ldc}*1]"
                "tileloadd tmm1, [{c} + {ldc}*1 + 64]"
                "tileloadd tmm2, [{n} + {ldc}*1]"
                "tileloadd tmm3, [{n} + {ldc}*1 + 64]"
            ],
            $step,
            [
                "tilestored [{c} + {ldc}*1], tmm0"
                "tilestored [{c} + {ldc}*1 + 64], tmm1"
                "tilestored [{n} + {ldc}*1], tmm2"
                "tilestored [{n} + {ldc}*1 + 64], tmm3"
            ]
        );
    };
    (@one_by_two $name:ident, $operand:ty, $shift:literal, $step:tt) => {
        multiply!(
            $name,
            $operand,
            $shift,
            ["tilezero tmm0" "tilezero tmm1"],
            [
                "tileloadd tmm0, [{c} + {ldc}*1]"
                "tileloadd tmm1, [{c} + {ldc}*1 + 64]"
            ],
            $step,
            [
                "tilestored [{c} + {ldc}*1], tmm0"
                "tilestored [{c} + {ldc}*1 + 64], tmm1"
            ]
        );
    };
    (@asm $blocks:ident, $operand:ty, $shift:literal, [$($zero:literal)+], [$($load:literal)+], [$($step:literal)+], [$($store:literal)+]) => {
        // SAFETY: the caller's promise; fetching what is not there does nothing.
        unsafe {
            asm!(
                // The counter's register first holds the configuration, and before and after the steps
                // the address of the result's second sixteen rows.
                "ldtilecfg [{n}]",
                "2:",
                "test {add}, {add}",
                "jnz 3f",
                $($zero,)+
                "jmp 4f",
                "3:",
                "mov {n}, {ldc}",
                "shl {n}, 4",
                "add {n}, {c}",
                $($load,)+
                "4:",
                "mov {n}, {steps}",
                "5:",
                $($step,)+
                "add {a}, {len}",
                "add {b}, {len}",
                "add {next}, 256",
                "sub {n}, 1",
                "jnz 5b",
                "mov {n}, {ldc}",
                "shl {n}, 4",
                "add {n}, {c}",
                $($store,)+
                "mov {n}, {steps}",
                concat!("shl {n}, ", $shift),
                "sub {a}, {n}",
                "add {b}, {skip}",
                "add {c}, 128",
                "sub {blocks}, 1",
                "jnz 2b",
                "tilerelease",
                n = inout(reg) $blocks.config => _,
                a = inout(reg) $blocks.a => _,
                b = inout(reg) $blocks.b => _,
                c = inout(reg) $blocks.c => _,
                ldc = in(reg) $blocks.c_stride,
                ld = in(reg) 64_usize,
                len = const size_of::<$operand>(),
                steps = in(reg) $blocks.n_steps,
                skip = in(reg) $blocks.b_skip,
                blocks = inout(reg) $blocks.n_blocks => _,
                add = in(reg) $blocks.add,
                next = inout(reg) $blocks.next => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    };
}

multiply!(
    @two_by_two
    multiply_2x2,
    TilePair,
    11,
    [
        "tileloadd tmm4, [{a} + {ld}*1]"
        "tileloadd tmm6, [{b} + {ld}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "prefetcht1 [{next}]"
        "prefetcht1 [{next} + 64]"
        "tileloadd tmm7, [{b} + {ld}*1 + 1024]"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "prefetcht1 [{next} + 128]"
        "prefetcht1 [{next} + 192]"
        "tileloadd tmm5, [{a} + {ld}*1 + 1024]"
        "tdpbf16ps tmm2, tmm5, tmm6"
        "tdpbf16ps tmm3, tmm5, tmm7"
    ]
);

multiply!(
    multiply_2x1,
    TilePair,
    11,
    ["tilezero tmm0" "tilezero tmm2"],
    [
        "tileloadd tmm0, [{c} + {ldc}*1]"
        "tileloadd tmm2, [{n} + {ldc}*1]"
    ],
    [
        "tileloadd tmm4, [{a} + {ld}*1]"
        "tileloadd tmm6, [{b} + {ld}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "prefetcht1 [{next}]"
        "prefetcht1 [{next} + 64]"
        "tileloadd tmm5, [{a} + {ld}*1 + 1024]"
        "tdpbf16ps tmm2, tmm5, tmm6"
        "prefetcht1 [{next} + 128]"
        "prefetcht1 [{next} + 192]"
    ],
    [
        "tilestored [{c} + {ldc}*1], tmm0"
        "tilestored [{n} + {ldc}*1], tmm2"
    ]
);

multiply!(
    @one_by_two
    multiply_1x2,
    TilePair,
    11,
    [
        "tileloadd tmm4, [{a} + {ld}*1]"
        "tileloadd tmm6, [{b} + {ld}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "prefetcht1 [{next}]"
        "prefetcht1 [{next} + 64]"
        "tileloadd tmm7, [{b} + {ld}*1 + 1024]"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "prefetcht1 [{next} + 128]"
        "prefetcht1 [{next} + 192]"
    ]
);

multiply!(
    multiply_1x1,
    TilePair,
    11,
    ["tilezero tmm0"],
    ["tileloadd tmm0, [{c} + {ldc}*1]"],
    [
        "tileloadd tmm4, [{a} + {ld}*1]"
        "tileloadd tmm6, [{b} + {ld}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "prefetcht1 [{next}]"
        "prefetcht1 [{next} + 64]"
        "prefetcht1 [{next} + 128]"
        "prefetcht1 [{next} + 192]"
    ],
    ["tilestored [{c} + {ldc}*1], tmm0"]
);

// In a step, the first pair of tiles has the upper halves, and the second the lower ones.
multiply!(
    @two_by_two
    multiply_split_2x2,
    SplitPair,
    12,
    [
        "tileloadd tmm4, [{a} + {ld}*1 + 2048]"
        "tileloadd tmm6, [{b} + {ld}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm7, [{b} + {ld}*1 + 1024]"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "tileloadd tmm5, [{a} + {ld}*1 + 3072]"
        "tdpbf16ps tmm2, tmm5, tmm6"
        "tdpbf16ps tmm3, tmm5, tmm7"
        "tileloadd tmm4, [{a} + {ld}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "tileloadd tmm5, [{a} + {ld}*1 + 1024]"
        "tdpbf16ps tmm2, tmm5, tmm6"
        "tdpbf16ps tmm3, tmm5, tmm7"
        "tileloadd tmm6, [{b} + {ld}*1 + 2048]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm7, [{b} + {ld}*1 + 3072]"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "tdpbf16ps tmm2, tmm5, tmm6"
        "tdpbf16ps tmm3, tmm5, tmm7"
    ]
);

multiply!(
    @one_by_two
    multiply_split_1x2,
    SplitPair,
    12,
    [
        "tileloadd tmm4, [{a} + {ld}*1 + 2048]"
        "tileloadd tmm6, [{b} + {ld}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm7, [{b} + {ld}*1 + 1024]"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "tileloadd tmm4, [{a} + {ld}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "tileloadd tmm6, [{b} + {ld}*1 + 2048]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm7, [{b} + {ld}*1 + 3072]"
        "tdpbf16ps tmm1, tmm4, tmm7"
    ]
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_shape_of_the_product() {
        assert_eq!(size_of::<Config>(), 64);
        let config = Config::new(halves(32), halves(32));
        assert_eq!(config.rows[..8], [16; 8]);
        assert_eq!(config.row_bytes[..8], [64; 8]);
        let config = Config::new(halves(19), halves(21));
        assert_eq!(config.rows[..8], [16, 16, 3, 3, 16, 3, 16, 16]);
        assert_eq!(config.row_bytes[..8], [64, 20, 64, 20, 64, 64, 64, 20]);
        let config = Config::new(halves(2), halves(7));
        assert_eq!(config.rows[..8], [2, 0, 0, 0, 2, 0, 16, 0]);
        assert_eq!(config.row_bytes[..8], [28, 0, 0, 0, 64, 0, 28, 0]);
        assert_eq!((config.palette, config.start_row, config.reserved), (1, 0, [0; 14]));
    }
}
