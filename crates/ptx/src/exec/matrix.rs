//! Warp-level instructions on small matrices: loads and stores of fragments, and products.
//!
//! A fragment register `r` of lane `l` holds neighbouring elements of one row of A, or of one column
//! of B. With `g = l / 4`, `t = l % 4` and `e` elements in a register, these are
//! - of A: row `g + 8 (r % 2)`, columns from `e t + 4 e (r / 2)`;
//! - of B: column `g`, rows from `e t + 4 e r`;
//! - of C and D: row `g + 8 (i / 2)`, column `2 t + i % 2`, for element `i`.
//!
//! Products of floats are exact. An element's products and C are added in F64 in the order of k, and the sum is rounded
//! once to nearest. The order and rounding of GPUs are not documented, so results of a GPU may differ in the last bits.

use super::state::{Context, Warp};
use crate::fault::LaneFault;
use crate::numeric::format::{BF16, F16, f16_to_f32};
use crate::numeric::round::Rounding;
use crate::program::lanes::{LANES, Registers};
use crate::program::matrix::{Element, Fragments, Matrix, Product, Sum};
use crate::program::wide::wide;

/// Columns of B.
const N: usize = 8;
/// The maximum number of rows of A.
const MAX_M: usize = 16;
/// The maximum number of columns of A.
const MAX_K: usize = 32;

impl Context<'_> {
    pub(super) fn matrix(&mut self, warp: &mut Warp, matrix: &Matrix) -> Result<(), LaneFault> {
        match matrix {
            Matrix::Load(fragments) => self.load_fragments(warp, fragments)?,
            Matrix::Store(fragments) => self.store_fragments(warp, fragments)?,
            Matrix::Product(product) => match product.sum {
                Sum::Integer { clamps } => product.integers(&mut warp.registers, clamps),
                _ => product.floats(&mut warp.registers),
            },
        }
        Ok(())
    }

    /// The lanes that provide row addresses: eight per matrix.
    fn rows(fragments: &Fragments) -> u32 {
        u32::MAX >> (LANES - 8 * fragments.regs.len())
    }

    fn load_fragments(&mut self, warp: &mut Warp, fragments: &Fragments) -> Result<(), LaneFault> {
        let at = self.shared_addresses(warp, fragments.address, fragments.space);
        let offsets = self.read_shared(warp, &at, Self::rows(fragments), 16)?;
        for (i, &reg) in fragments.regs.iter().enumerate() {
            let rows = &offsets[8 * i..8 * i + 8];
            let bytes = &self.shared.bytes;
            let element = |row: usize, col: usize| {
                let at = rows[row] + 2 * col;
                u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
            };
            let out = std::array::from_fn(|lane| {
                let (g, t) = (lane / 4, lane % 4 * 2);
                if fragments.transposed {
                    element(t, g) | element(t + 1, g) << 16
                } else {
                    element(g, t) | element(g, t + 1) << 16
                }
            });
            warp.registers.set_word(reg, u32::MAX, &out);
        }
        Ok(())
    }

    fn store_fragments(&mut self, warp: &mut Warp, fragments: &Fragments) -> Result<(), LaneFault> {
        let at = self.shared_addresses(warp, fragments.address, fragments.space);
        let offsets = self.write_shared(warp, &at, Self::rows(fragments), 16)?;
        for (i, &reg) in fragments.regs.iter().enumerate() {
            let rows = &offsets[8 * i..8 * i + 8];
            let words = warp.registers.word(reg);
            for (lane, word) in words.iter().enumerate() {
                let (g, t) = (lane / 4, lane % 4 * 2);
                for (j, half) in [*word as u16, (*word >> 16) as u16].into_iter().enumerate() {
                    let (row, col) = if fragments.transposed { (t + j, g) } else { (g, t + j) };
                    let at = rows[row] + 2 * col;
                    self.shared.bytes[at..at + 2].copy_from_slice(&half.to_le_bytes());
                }
            }
        }
        Ok(())
    }
}

impl Product {
    /// Gathers A as [m][k] or B as [k][8]. `of` extracts an element from a register's words by its index.
    #[inline(always)]
    fn gather<T: Copy + Default>(
        &self,
        registers: &Registers,
        of: impl Fn(Element, &[u32; LANES], usize) -> [T; LANES],
    ) -> ([[T; MAX_K]; MAX_M], [[T; N]; MAX_K]) {
        let mut a = [[T::default(); MAX_K]; MAX_M];
        let mut b = [[T::default(); N]; MAX_K];
        let [ea, eb] = self.elements;
        let (na, nb) = (ea.per_register(), eb.per_register());
        for (r, &reg) in self.a.iter().enumerate() {
            for i in 0..na {
                for (lane, value) in of(ea, registers.word(reg), i).into_iter().enumerate() {
                    let (row, col) = a_place(lane, r, i, na);
                    a[row][col % MAX_K] = value;
                }
            }
        }
        for (r, &reg) in self.b.iter().enumerate() {
            for i in 0..nb {
                for (lane, value) in of(eb, registers.word(reg), i).into_iter().enumerate() {
                    let (g, t) = (lane / 4, lane % 4);
                    b[(t * nb + i + r * 4 * nb) % MAX_K][g] = value;
                }
            }
        }
        (a, b)
    }

    #[inline(always)]
    fn float_sums(&self, registers: &Registers) -> [[f64; N]; MAX_M] {
        let (a, b) = self.gather(registers, |element, words, i| {
            let half = |w: u32| w >> (16 * i as u32) & 0xffff;
            match element {
                Element::Float(F16) => words.map(|w| f64::from(f16_to_f32(half(w)))),
                Element::Float(BF16) => words.map(|w| f64::from(f32::from_bits(half(w) << 16))),
                Element::Float(format) => {
                    let bits = format.bits();
                    words.map(|w| format.widen(w >> (bits * i as u32) & ((1 << bits) - 1)))
                }
                _ => words.map(|w| f64::from(f32::from_bits(w & !0x1fff))),
            }
        });
        let mut sums = [[0f64; N]; MAX_M];
        for lane in 0..LANES {
            for i in 0..self.m / 4 {
                let (row, col) = place(lane, i);
                sums[row][col] = match self.sum {
                    Sum::F16 => {
                        let word = registers.word(self.c[i / 2])[lane];
                        F16.widen(word >> (16 * (i % 2)) & 0xffff)
                    }
                    _ => f64::from(f32::from_bits(registers.word(self.c[i])[lane])),
                };
            }
        }
        for (a, sums) in a.iter().zip(&mut sums).take(self.m) {
            for (a, b) in a.iter().zip(&b).take(self.k) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum += a * b;
                }
            }
        }
        sums
    }

    fn floats(&self, registers: &mut Registers) {
        let sums = float_sums(self, registers);
        if self.sum == Sum::F16 {
            let half = |x: f64| F16.narrow(x, Rounding::Near, false);
            for (r, &reg) in self.d.iter().enumerate() {
                let out = std::array::from_fn(|lane| {
                    let (row, col) = place(lane, 2 * r);
                    half(sums[row][col]) | half(sums[row][col + 1]) << 16
                });
                registers.set_word(reg, u32::MAX, &out);
            }
            return;
        }
        for (i, &reg) in self.d.iter().enumerate() {
            let out = std::array::from_fn(|lane| {
                let (row, col) = place(lane, i);
                crate::numeric::canonical(sums[row][col] as f32)
            });
            registers.set_word(reg, u32::MAX, &out);
        }
    }

    #[inline(always)]
    fn integer_sums(&self, registers: &Registers) -> [[i32; N]; MAX_M] {
        let (a, b) = self.gather(registers, |element, words, i| {
            let top = words.map(|w| w << (24 - 8 * i as u32));
            if element == Element::Signed8 {
                top.map(|w| w as i32 >> 24)
            } else {
                top.map(|w| (w >> 24) as i32)
            }
        });
        let mut sums = [[0i32; N]; MAX_M];
        for (a, sums) in a.iter().zip(&mut sums).take(self.m) {
            for (a, b) in a.iter().zip(&b).take(self.k) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum += a * b;
                }
            }
        }
        sums
    }

    fn integers(&self, registers: &mut Registers, clamps: bool) {
        let sums = integer_sums(self, registers);
        let outs: Vec<[u32; LANES]> = self
            .c
            .iter()
            .enumerate()
            .map(|(i, &c)| {
                let c = registers.word(c);
                std::array::from_fn(|lane| {
                    let (row, col) = place(lane, i);
                    let (sum, c) = (sums[row][col], c[lane] as i32);
                    (if clamps { sum.saturating_add(c) } else { sum.wrapping_add(c) }) as u32
                })
            })
            .collect();
        for (&reg, out) in self.d.iter().zip(&outs) {
            registers.set_word(reg, u32::MAX, out);
        }
    }
}

#[inline(always)]
fn float_sums_of(product: &Product, registers: &Registers) -> [[f64; N]; MAX_M] {
    product.float_sums(registers)
}

#[inline(always)]
fn integer_sums_of(product: &Product, registers: &Registers) -> [[i32; N]; MAX_M] {
    product.integer_sums(registers)
}

wide!(float_sums_of in fn float_sums(product: &Product, registers: &Registers) -> [[f64; N]; MAX_M]);
wide!(integer_sums_of in fn integer_sums(product: &Product, registers: &Registers) -> [[i32; N]; MAX_M]);

/// The row and column in A of element `i` of register `r` of a lane, with `n` elements per register.
#[inline(always)]
pub(super) fn a_place(lane: usize, r: usize, i: usize, n: usize) -> (usize, usize) {
    (lane / 4 + r % 2 * 8, lane % 4 * n + i + r / 2 * 4 * n)
}

/// The row and column in C and D of element `i` of a lane.
fn place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2)
}
