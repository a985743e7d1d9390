//! Bytes of memory to and from registers, when all checks are done.

use super::lanes::{File, LANES, Reg, Registers, blend, lanes_of};
use super::memory::Access;

/// `width` bytes as a number.
#[inline]
pub(super) fn get(bytes: &[u8], at: usize, width: usize) -> u64 {
    let bytes = &bytes[at..at + width];
    match width {
        1 => u64::from(bytes[0]),
        2 => u64::from(u16::from_le_bytes([bytes[0], bytes[1]])),
        4 => u64::from(word(bytes)),
        _ => u64::from_le_bytes(std::array::from_fn(|i| bytes[i])),
    }
}

#[inline]
pub(super) fn put(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

#[inline]
fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// How the lanes' places lie to one another.
enum Pattern {
    /// Lane by lane, `usize` bytes apart.
    Strided(usize),
    /// All at one place.
    Same,
    Scattered,
}

/// The pattern of a whole warp's places.
#[inline]
fn pattern(offsets: &[usize; LANES], mask: u32) -> Pattern {
    let stride = offsets[1].wrapping_sub(offsets[0]);
    let mut differences = 0;
    for pair in offsets.windows(2) {
        differences |= pair[1].wrapping_sub(pair[0]) ^ stride;
    }
    match stride {
        _ if mask != u32::MAX || differences != 0 => Pattern::Scattered,
        0 => Pattern::Same,
        stride => Pattern::Strided(stride),
    }
}

/// Stores the active lanes' elements.
pub(super) fn store(
    registers: &Registers,
    access: &Access,
    bytes: &mut [u8],
    offsets: &[usize; LANES],
    mask: u32,
) {
    let width = access.width;
    let pattern = pattern(offsets, mask);
    for (i, &reg) in access.regs.iter().enumerate() {
        let at = i * width;
        let is_word = reg.file == File::W32 && width == 4;
        match pattern {
            Pattern::Strided(stride) if is_word && stride < usize::MAX / 2 => {
                let all = &mut bytes[offsets[0] + at..];
                for (lane, value) in registers.word(reg).iter().enumerate() {
                    all[lane * stride..][..4].copy_from_slice(&value.to_le_bytes());
                }
            }
            _ => {
                for lane in lanes_of(mask) {
                    put(bytes, offsets[lane] + at, width, registers.lane(reg, lane));
                }
            }
        }
    }
}

/// Loads the active lanes' elements.
pub(super) fn load(
    registers: &mut Registers,
    access: &Access,
    bytes: &[u8],
    offsets: &[usize; LANES],
    mask: u32,
) {
    let width = access.width;
    let pattern = pattern(offsets, mask);
    for (i, &reg) in access.regs.iter().enumerate() {
        let at = i * width;
        if reg.file == File::W32 && width == 4 {
            let to = &mut registers.w32[reg.idx as usize];
            match pattern {
                Pattern::Strided(stride) if stride < usize::MAX / 2 => {
                    let all = &bytes[offsets[0] + at..];
                    for (lane, to) in to.iter_mut().enumerate() {
                        *to = word(&all[lane * stride..]);
                    }
                }
                Pattern::Same => *to = [word(&bytes[offsets[0] + at..]); LANES],
                _ => {
                    let mut out = [0; LANES];
                    for lane in lanes_of(mask) {
                        out[lane] = word(&bytes[offsets[lane] + at..]);
                    }
                    blend(to, mask, &out);
                }
            }
            continue;
        }
        load_any(registers, reg, access, bytes, offsets, at, mask);
    }
}

/// Elements of any size, extended to their registers.
fn load_any(
    registers: &mut Registers,
    reg: Reg,
    access: &Access,
    bytes: &[u8],
    offsets: &[usize; LANES],
    at: usize,
    mask: u32,
) {
    let width = access.width;
    let drop = 64 - 8 * width as u32;
    let extend = |value: u64| {
        if access.signed { ((value << drop) as i64 >> drop) as u64 } else { value }
    };
    if reg.file == File::W64 {
        let mut out = [0; LANES];
        for lane in lanes_of(mask) {
            out[lane] = extend(get(bytes, offsets[lane] + at, width));
        }
        blend(&mut registers.w64[reg.idx as usize], mask, &out);
        return;
    }
    let keep = if reg.bits == 16 { 0xffff } else { u32::MAX };
    let mut out = [0; LANES];
    for lane in lanes_of(mask) {
        out[lane] = extend(get(bytes, offsets[lane] + at, width)) as u32 & keep;
    }
    blend(&mut registers.w32[reg.idx as usize], mask, &out);
}
