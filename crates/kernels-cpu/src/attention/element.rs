//! Loads of stored keys and values: each type converts to vectors of f32 as it is read.

use crate::lanes::Lanes;

/// An element type of KV memory.
pub(super) trait Element: Copy {
    /// Loads values `8 * i..8 * i + 8`.
    ///
    /// # Safety
    /// `head` is the start of a stored head that has these values.
    unsafe fn load<L: Lanes>(l: L, head: *const u8, i: usize) -> L::V;

    /// Loads vector `i[0]` of the first head and vector `i[1]` of the second, eight values each, as the
    /// halves of sixteen lanes. The heads may be the same.
    ///
    /// # Safety
    /// Both are starts of stored heads that have these values.
    #[inline(always)]
    unsafe fn load_two<L: Lanes>(l: L, heads: [*const u8; 2], i: [usize; 2]) -> L::W {
        // SAFETY: the caller's promise.
        unsafe { l.join([Self::load(l, heads[0], i[0]), Self::load(l, heads[1], i[1])]) }
    }

    /// Loads values `8 * i..8 * i + n`, where `n` is below 8, and fills up with zeros.
    ///
    /// # Safety
    /// `head` is the start of a stored head that has these values.
    unsafe fn load_tail<L: Lanes>(l: L, head: *const u8, i: usize, n: usize) -> L::V;
}

/// Implements [`Element`] for a float type with this many bytes.
macro_rules! float {
    (
        $name:ident, $bytes:literal, $l:ident, $eight:ident => $load:expr,
        $a:ident, $b:ident => $two:expr
    ) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Element for $name {
            #[inline(always)]
            unsafe fn load<L: Lanes>($l: L, head: *const u8, i: usize) -> L::V {
                let at = head.wrapping_add(8 * $bytes * i).cast::<[u8; 8 * $bytes]>();
                // SAFETY: the caller's promise; arrays of bytes need no alignment.
                let $eight = unsafe { &*at };
                $load
            }

            #[inline(always)]
            unsafe fn load_two<L: Lanes>($l: L, heads: [*const u8; 2], i: [usize; 2]) -> L::W {
                let at = |h: usize| heads[h].wrapping_add(8 * $bytes * i[h]);
                // SAFETY: the caller's promise; arrays of bytes need no alignment.
                let ($a, $b) = unsafe {
                    (&*at(0).cast::<[u8; 8 * $bytes]>(), &*at(1).cast::<[u8; 8 * $bytes]>())
                };
                $two
            }

            #[inline(always)]
            unsafe fn load_tail<L: Lanes>(l: L, head: *const u8, i: usize, n: usize) -> L::V {
                let mut padded = [0; 8 * $bytes];
                // SAFETY: the caller's promise.
                let tail = unsafe {
                    std::slice::from_raw_parts(head.add(8 * $bytes * i), n.min(8) * $bytes)
                };
                padded[..tail.len()].copy_from_slice(tail);
                // SAFETY: the array holds eight values.
                unsafe { Self::load(l, padded.as_ptr(), 0) }
            }
        }
    };
}

/// Loads eight values from little-endian bytes.
#[inline(always)]
fn floats<L: Lanes>(l: L, bytes: &[u8; 32]) -> L::V {
    let mut x = [0.0; 8];
    for (x, bytes) in x.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *x = f32::from_le_bytes(*bytes);
    }
    l.load(&x)
}

float!(F32, 4, l, bytes => floats(l, bytes), a, b => l.join([floats(l, a), floats(l, b)]));
float!(F16, 2, l, bytes => l.widen_f16(bytes), a, b => l.widen16_f16(a, b));
float!(BF16, 2, l, bytes => l.widen_bf16(bytes), a, b => {
    l.join([l.widen_bf16(a), l.widen_bf16(b)])
});

float!(F8, 1, l, bytes => l.widen_e4m3(bytes), a, b => {
    l.join([l.widen_e4m3(a), l.widen_e4m3(b)])
});

/// Loads the scale at the start of a block.
///
/// # Safety
/// Two bytes can be read.
#[inline(always)]
unsafe fn block_scale<L: Lanes>(l: L, block: *const u8) -> L::V {
    // SAFETY: the caller's promise.
    let d = unsafe { *block.cast::<[u8; 2]>() };
    let mut lanes = [0; 16];
    lanes[..2].copy_from_slice(&d);
    let mut d = [0.0; 8];
    l.store(l.widen_f16(&lanes), &mut d);
    l.splat(d[0])
}

/// Blocks of `realizar_quant::BlockQ8_0`: the scale, then 32 signed bytes.
#[derive(Clone, Copy)]
pub(super) struct Q8_0;

impl Element for Q8_0 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, head: *const u8, i: usize) -> L::V {
        // SAFETY: the caller's promise; values 8 i.. are in block i / 4.
        let (d, levels) = unsafe {
            let block = head.add(i / 4 * 34);
            (block_scale(l, block), &*block.add(2 + i % 4 * 8).cast::<[u8; 8]>())
        };
        l.mul(d, l.widen_i8(levels))
    }

    #[inline(always)]
    unsafe fn load_tail<L: Lanes>(_: L, _: *const u8, _: usize, _: usize) -> L::V {
        unreachable!("heads of quantized types are whole blocks")
    }
}

/// Blocks of `realizar_quant::BlockQ4_0`: the scale, then 16 bytes with values 0 to 15 in the low
/// nibbles and 16 to 31 in the high ones.
#[derive(Clone, Copy)]
pub(super) struct Q4_0;

impl Element for Q4_0 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, head: *const u8, i: usize) -> L::V {
        // SAFETY: the caller's promise; values 8 i.. are in block i / 4.
        let (d, levels) = unsafe {
            let block = head.add(i / 4 * 18);
            (block_scale(l, block), &*block.add(2 + i % 2 * 8).cast::<[u8; 8]>())
        };
        let levels = if i % 4 < 2 { l.low_nibbles(levels) } else { l.high_nibbles(levels) };
        l.mul(d, levels)
    }

    #[inline(always)]
    unsafe fn load_tail<L: Lanes>(_: L, _: *const u8, _: usize, _: usize) -> L::V {
        unreachable!("heads of quantized types are whole blocks")
    }
}

/// Calls `$body` with `$E` as the element of a type of KV memory.
macro_rules! with_element {
    ($ty:expr, $E:ident => $body:expr) => {
        match $ty {
            realizar_quant::BlockType::F32 => {
                type $E = $crate::attention::element::F32;
                $body
            }
            realizar_quant::BlockType::F16 => {
                type $E = $crate::attention::element::F16;
                $body
            }
            realizar_quant::BlockType::BF16 => {
                type $E = $crate::attention::element::BF16;
                $body
            }
            realizar_quant::BlockType::F8 => {
                type $E = $crate::attention::element::F8;
                $body
            }
            realizar_quant::BlockType::Q8_0 => {
                type $E = $crate::attention::element::Q8_0;
                $body
            }
            realizar_quant::BlockType::Q4_0 => {
                type $E = $crate::attention::element::Q4_0;
                $body
            }
            ty => unreachable!("a geometry of {ty} cannot be made"),
        }
    };
}
pub(super) use with_element;
