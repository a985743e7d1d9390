//! Moves data between memory and registers after all checks.

use crate::program::access::Access;
use crate::program::lanes::{File, LANES, Reg, Registers, blend, lanes_of};
use crate::program::wide::wide;

/// Reads `width` bytes as a number.
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

#[inline(always)]
fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The layout of the lanes' offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// Consecutive.
    Block,
    /// All equal.
    Same,
    Scattered,
}

/// The pattern of the lanes' offsets with elements of `bytes`.
#[inline(always)]
fn pattern_of(offsets: &[usize; LANES], bytes: usize) -> Pattern {
    let (mut not_same, mut not_block) = (0, 0);
    for (lane, &offset) in offsets.iter().enumerate() {
        not_same |= offset ^ offsets[0];
        not_block |= offset ^ offsets[0].wrapping_add(lane * bytes);
    }
    match (not_same, not_block) {
        (0, _) => Pattern::Same,
        (_, 0) => Pattern::Block,
        _ => Pattern::Scattered,
    }
}

wide!(pattern_of in fn pattern(offsets: &[usize; LANES], bytes: usize) -> Pattern);

/// Moves the offsets of lanes outside `mask` to that of its first lane.
#[inline(always)]
fn settle_all(offsets: &mut [usize; LANES], mask: u32) {
    let first = offsets[mask.trailing_zeros() as usize & 31];
    for (lane, offset) in offsets.iter_mut().enumerate() {
        *offset = if mask >> lane & 1 == 1 { *offset } else { first };
    }
}

wide!(settle_all in fn settle(offsets: &mut [usize; LANES], mask: u32));

/// Splits a block of `N` words per lane into words.
#[inline(always)]
fn unzip_all<const N: usize>(block: &[u8]) -> [[u32; LANES]; N] {
    let mut out = [[0; LANES]; N];
    let block = &block[..4 * N * LANES];
    for lane in 0..LANES {
        for (i, out) in out.iter_mut().enumerate() {
            out[lane] = word(&block[4 * (N * lane + i)..]);
        }
    }
    out
}

#[inline(always)]
fn zip_all<const N: usize>(words: &[&[u32; LANES]; N], block: &mut [u8]) {
    let block = &mut block[..4 * N * LANES];
    for lane in 0..LANES {
        for (i, words) in words.iter().enumerate() {
            block[4 * (N * lane + i)..][..4].copy_from_slice(&words[lane].to_le_bytes());
        }
    }
}

#[inline(always)]
fn gather_all<const N: usize>(bytes: &[u8], offsets: &[usize; LANES]) -> [[u32; LANES]; N] {
    let mut out = [[0; LANES]; N];
    for (lane, &offset) in offsets.iter().enumerate() {
        let from = &bytes[offset..][..4 * N];
        for (i, out) in out.iter_mut().enumerate() {
            out[lane] = word(&from[4 * i..]);
        }
    }
    out
}

wide!(unzip_all in fn unzip<; const N: usize>(block: &[u8]) -> [[u32; LANES]; N]);
wide!(zip_all in fn zip<; const N: usize>(words: &[&[u32; LANES]; N], block: &mut [u8]));

/// Stores the active lanes' elements.
pub(super) fn store(
    registers: &Registers,
    access: &Access,
    bytes: &mut [u8],
    offsets: &[usize; LANES],
    mask: u32,
) {
    let width = access.width;
    if access.is_words && mask == u32::MAX {
        let all = width * access.regs.len();
        if pattern(offsets, all) == Pattern::Block {
            let block = &mut bytes[offsets[0]..];
            return match *access.regs {
                [a] => zip(&[a].map(|r| registers.word(r)), block),
                [a, b] => zip(&[a, b].map(|r| registers.word(r)), block),
                [a, b, c, d] => zip(&[a, b, c, d].map(|r| registers.word(r)), block),
                _ => unreachable!("words are stored by one, two or four"),
            };
        }
    }
    for (i, &reg) in access.regs.iter().enumerate() {
        let at = i * width;
        if reg.file == File::W32 && width == 4 {
            let words = registers.word(reg);
            for lane in lanes_of(mask) {
                bytes[offsets[lane] + at..][..4].copy_from_slice(&words[lane].to_le_bytes());
            }
            continue;
        }
        for lane in lanes_of(mask) {
            put(bytes, offsets[lane] + at, width, registers.lane(reg, lane));
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
    let mut places = *offsets;
    if mask != u32::MAX {
        settle(&mut places, mask);
    }
    let pattern = pattern(&places, access.width * access.regs.len());
    if access.is_words {
        return match *access.regs {
            [a] => load_words([a], registers, bytes, &places, pattern, mask),
            [a, b] => load_words([a, b], registers, bytes, &places, pattern, mask),
            [a, b, c, d] => load_words([a, b, c, d], registers, bytes, &places, pattern, mask),
            _ => unreachable!("words are loaded by one, two or four"),
        };
    }
    for (i, &reg) in access.regs.iter().enumerate() {
        load_any(registers, reg, access, bytes, &places, i * access.width, mask);
    }
}

fn load_words<const N: usize>(
    regs: [Reg; N],
    registers: &mut Registers,
    bytes: &[u8],
    places: &[usize; LANES],
    pattern: Pattern,
    mask: u32,
) {
    let words = match pattern {
        Pattern::Block => unzip::<N>(&bytes[places[0]..]),
        Pattern::Same => {
            let from = &bytes[places[0]..][..4 * N];
            std::array::from_fn(|i| [word(&from[4 * i..]); LANES])
        }
        Pattern::Scattered => gather_all::<N>(bytes, places),
    };
    for (reg, words) in regs.iter().zip(&words) {
        registers.set_word(*reg, mask, words);
    }
}

/// Loads elements of any size and extends them to their registers.
fn load_any(
    registers: &mut Registers,
    reg: Reg,
    access: &Access,
    bytes: &[u8],
    places: &[usize; LANES],
    at: usize,
    mask: u32,
) {
    let width = access.width;
    let mut out = [0u64; LANES];
    let mut each = |get: fn(&[u8]) -> u64| {
        for (out, place) in out.iter_mut().zip(places) {
            *out = get(&bytes[place + at..][..width]);
        }
    };
    match (width, access.signed) {
        (1, false) => each(|b| u64::from(b[0])),
        (1, true) => each(|b| b[0] as i8 as u64),
        (2, false) => each(|b| u64::from(u16::from_le_bytes([b[0], b[1]]))),
        (2, true) => each(|b| i16::from_le_bytes([b[0], b[1]]) as u64),
        (4, false) => each(|b| u64::from(word(b))),
        (4, true) => each(|b| word(b) as i32 as u64),
        _ => each(|b| u64::from_le_bytes(std::array::from_fn(|i| b[i]))),
    }
    if reg.file == File::W64 {
        return blend(&mut registers.w64[reg.idx as usize], mask, &out);
    }
    let keep = if reg.bits == 16 { 0xffff } else { u32::MAX };
    registers.set_word(reg, mask, &out.map(|x| x as u32 & keep));
}
