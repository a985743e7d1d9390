//! Registers of a warp, and functions on them that run for all lanes at once.
//!
//! A register is an array with an element per lane, 32 bits wide (16-bit values are zero-extended) or 64. A predicate
//! is a word with a bit per lane. Functions compute all lanes, which the compiler vectorizes, and store those of the
//! active ones.

#[cfg(target_arch = "x86_64")]
use super::wide::is_wide;
use super::wide::wide;

/// Lanes per warp.
pub(crate) const LANES: usize = 32;

/// The array of [`Registers`] that holds a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum File {
    W32,
    W64,
    Predicate,
}

/// A register of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reg {
    pub(crate) file: File,
    /// Size: 1, 16, 32 or 64.
    pub(crate) bits: u8,
    /// Slot in its file.
    pub(crate) idx: u32,
    /// Index among the tracked registers, or [`UNTRACKED`]. Before registers are allocated, the index among all of
    /// them.
    pub(crate) id: u32,
}

/// Index of registers that are defined at every read.
pub(crate) const UNTRACKED: u32 = u32::MAX;

/// The registers of one warp.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    pub(crate) w32: Vec<[u32; LANES]>,
    pub(crate) w64: Vec<[u64; LANES]>,
    pub(crate) predicates: Vec<u32>,
    /// For each tracked register, the lanes in which it is defined.
    pub(crate) defined: Vec<u32>,
}

impl Registers {
    /// The bits of one lane.
    pub(crate) fn lane(&self, reg: Reg, lane: usize) -> u64 {
        match reg.file {
            File::W32 => u64::from(self.w32[reg.idx as usize][lane]),
            File::W64 => self.w64[reg.idx as usize][lane],
            File::Predicate => u64::from(self.predicates[reg.idx as usize] >> lane & 1),
        }
    }

    /// Sets one lane to the lower bits of `value`.
    pub(crate) fn set_lane(&mut self, reg: Reg, lane: usize, value: u64) {
        match reg.file {
            File::W32 if reg.bits == 16 => self.w32[reg.idx as usize][lane] = value as u32 & 0xffff,
            File::W32 => self.w32[reg.idx as usize][lane] = value as u32,
            File::W64 => self.w64[reg.idx as usize][lane] = value,
            File::Predicate => {
                let word = &mut self.predicates[reg.idx as usize];
                *word = *word & !(1 << lane) | (value as u32 & 1) << lane;
            }
        }
    }

    /// The lanes in which a register is defined.
    pub(crate) fn defined(&self, reg: Reg) -> u32 {
        self.defined.get(reg.id as usize).copied().unwrap_or(u32::MAX)
    }

    /// Marks a register as defined or undefined in the lanes of `mask`.
    pub(crate) fn define(&mut self, reg: Reg, mask: u32, has_value: bool) {
        if let Some(lanes) = self.defined.get_mut(reg.id as usize) {
            *lanes = *lanes & !mask | if has_value { mask } else { 0 };
        }
    }

    pub(crate) fn predicate(&self, reg: Reg) -> u32 {
        self.predicates[reg.idx as usize]
    }

    pub(crate) fn set_predicate(&mut self, reg: Reg, active: u32, value: u32) {
        let word = &mut self.predicates[reg.idx as usize];
        *word = *word & !active | value & active;
    }

    /// All lanes of a 32-bit register.
    pub(crate) fn word(&self, reg: Reg) -> &[u32; LANES] {
        &self.w32[reg.idx as usize]
    }

    pub(crate) fn set_word(&mut self, reg: Reg, active: u32, values: &[u32; LANES]) {
        put_words(&mut self.w32[reg.idx as usize], active, values);
    }
}

#[inline(always)]
fn put_all(to: &mut [u32; LANES], active: u32, values: &[u32; LANES]) {
    blend(to, active, values);
}

wide!(put_all in fn put_words(to: &mut [u32; LANES], active: u32, values: &[u32; LANES]));

/// The lanes of a mask, ascending.
pub(crate) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros() as usize;
        (rest != 0).then(|| {
            rest &= rest - 1;
            lane
        })
    })
}

/// Stores the active lanes.
#[inline(always)]
pub(crate) fn blend<W: Copy>(to: &mut [W; LANES], active: u32, values: &[W; LANES]) {
    if active == u32::MAX {
        *to = *values;
        return;
    }
    for (lane, (to, value)) in to.iter_mut().zip(values).enumerate() {
        *to = if active >> lane & 1 == 1 { *value } else { *to };
    }
}

/// The storage type of a register's lane.
pub(crate) trait Word: Copy + Default + Send + Sync + 'static {
    const FILE: File;
    fn file(registers: &Registers) -> &Vec<[Self; LANES]>;
    fn file_mut(registers: &mut Registers) -> &mut Vec<[Self; LANES]>;
}

impl Word for u32 {
    const FILE: File = File::W32;

    #[inline(always)]
    fn file(registers: &Registers) -> &Vec<[Self; LANES]> {
        &registers.w32
    }

    #[inline(always)]
    fn file_mut(registers: &mut Registers) -> &mut Vec<[Self; LANES]> {
        &mut registers.w32
    }
}

impl Word for u64 {
    const FILE: File = File::W64;

    #[inline(always)]
    fn file(registers: &Registers) -> &Vec<[Self; LANES]> {
        &registers.w64
    }

    #[inline(always)]
    fn file_mut(registers: &mut Registers) -> &mut Vec<[Self; LANES]> {
        &mut registers.w64
    }
}

/// The type of an instruction's operand.
pub(crate) trait Value: Copy + 'static {
    type Word: Word;
    fn of(word: Self::Word) -> Self;
    fn to(self) -> Self::Word;
}

macro_rules! values {
    ($($type:ty, $word:ty, $of:expr, $to:expr;)*) => {$(
        impl Value for $type {
            type Word = $word;

            #[inline(always)]
            fn of(word: $word) -> Self {
                let of: fn($word) -> $type = $of;
                of(word)
            }

            #[inline(always)]
            fn to(self) -> $word {
                let to: fn($type) -> $word = $to;
                to(self)
            }
        }
    )*};
}

values! {
    u8, u32, |w| w as u8, u32::from;
    i8, u32, |w| w as i8, |x| x as u32;
    u16, u32, |w| w as u16, u32::from;
    i16, u32, |w| w as i16, |x| u32::from(x as u16);
    u32, u32, |w| w, |x| x;
    i32, u32, |w| w as i32, |x| x as u32;
    u64, u64, |w| w, |x| x;
    i64, u64, |w| w as i64, |x| x as u64;
    f32, u32, f32::from_bits, f32::to_bits;
    f64, u64, f64::from_bits, f64::to_bits;
}

/// A function on registers for the active lanes.
pub(crate) type LaneFn = Box<dyn Fn(&mut Registers, u32) + Send + Sync>;

#[inline(always)]
fn each1<A: Value, D: Value, F: Fn(A) -> D>(
    r: &mut Registers,
    [d, a]: [usize; 2],
    active: u32,
    f: &F,
) {
    let x = &A::Word::file(r)[a];
    let mut out = [D::Word::default(); LANES];
    for (out, x) in out.iter_mut().zip(x) {
        *out = f(A::of(*x)).to();
    }
    blend(&mut D::Word::file_mut(r)[d], active, &out);
}

#[inline(always)]
fn each2<A: Value, B: Value, D: Value, F: Fn(A, B) -> D>(
    r: &mut Registers,
    [d, a, b]: [usize; 3],
    active: u32,
    f: &F,
) {
    let (x, y) = (&A::Word::file(r)[a], &B::Word::file(r)[b]);
    let mut out = [D::Word::default(); LANES];
    for i in 0..LANES {
        out[i] = f(A::of(x[i]), B::of(y[i])).to();
    }
    blend(&mut D::Word::file_mut(r)[d], active, &out);
}

#[inline(always)]
fn each3<A: Value, B: Value, C: Value, D: Value, F: Fn(A, B, C) -> D>(
    r: &mut Registers,
    [d, a, b, c]: [usize; 4],
    active: u32,
    f: &F,
) {
    let x = &A::Word::file(r)[a];
    let (y, z) = (&B::Word::file(r)[b], &C::Word::file(r)[c]);
    let mut out = [D::Word::default(); LANES];
    for i in 0..LANES {
        out[i] = f(A::of(x[i]), B::of(y[i]), C::of(z[i])).to();
    }
    blend(&mut D::Word::file_mut(r)[d], active, &out);
}

#[inline(always)]
fn test2<A: Value, F: Fn(A, A) -> bool>(r: &Registers, [a, b]: [usize; 2], f: &F) -> u32 {
    let file = A::Word::file(r);
    let (x, y) = (&file[a], &file[b]);
    let mut mask = 0;
    for i in 0..LANES {
        mask |= u32::from(f(A::of(x[i]), A::of(y[i]))) << i;
    }
    mask
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
fn wide1<A: Value, D: Value, F: Fn(A) -> D>(
    r: &mut Registers,
    regs: [usize; 2],
    active: u32,
    f: &F,
) {
    each1(r, regs, active, f);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
fn wide2<A: Value, B: Value, D: Value, F: Fn(A, B) -> D>(
    r: &mut Registers,
    regs: [usize; 3],
    active: u32,
    f: &F,
) {
    each2(r, regs, active, f);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
fn wide3<A: Value, B: Value, C: Value, D: Value, F: Fn(A, B, C) -> D>(
    r: &mut Registers,
    regs: [usize; 4],
    active: u32,
    f: &F,
) {
    each3(r, regs, active, f);
}

/// `d = f(a)`.
pub(crate) fn map1<A: Value, D: Value>(
    d: Reg,
    a: Reg,
    f: impl Fn(A) -> D + Send + Sync + 'static,
) -> LaneFn {
    debug_assert!(d.file == D::Word::FILE && a.file == A::Word::FILE);
    let regs = [d, a].map(|r| r.idx as usize);
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        // SAFETY: the features were detected.
        return Box::new(move |r, active| unsafe { wide1(r, regs, active, &f) });
    }
    Box::new(move |r, active| each1(r, regs, active, &f))
}

/// `d = f(a, b)`.
pub(crate) fn map2<A: Value, B: Value, D: Value>(
    d: Reg,
    a: Reg,
    b: Reg,
    f: impl Fn(A, B) -> D + Send + Sync + 'static,
) -> LaneFn {
    debug_assert!(d.file == D::Word::FILE && a.file == A::Word::FILE && b.file == B::Word::FILE);
    let regs = [d, a, b].map(|r| r.idx as usize);
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        // SAFETY: the features were detected.
        return Box::new(move |r, active| unsafe { wide2(r, regs, active, &f) });
    }
    Box::new(move |r, active| each2(r, regs, active, &f))
}

/// `d = f(a, b, c)`.
pub(crate) fn map3<A: Value, B: Value, C: Value, D: Value>(
    d: Reg,
    [a, b, c]: [Reg; 3],
    f: impl Fn(A, B, C) -> D + Send + Sync + 'static,
) -> LaneFn {
    debug_assert!(d.file == D::Word::FILE && a.file == A::Word::FILE);
    debug_assert!(b.file == B::Word::FILE && c.file == C::Word::FILE);
    let regs = [d, a, b, c].map(|r| r.idx as usize);
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        // SAFETY: the features were detected.
        return Box::new(move |r, active| unsafe { wide3(r, regs, active, &f) });
    }
    Box::new(move |r, active| each3(r, regs, active, &f))
}

/// The mask of the lanes for which `f(a, b)` holds.
#[inline]
pub(crate) fn compare<A: Value>(
    registers: &Registers,
    a: Reg,
    b: Reg,
    f: impl Fn(A, A) -> bool,
) -> u32 {
    let regs = [a.idx as usize, b.idx as usize];
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
        fn on_wide<A: Value, F: Fn(A, A) -> bool>(r: &Registers, regs: [usize; 2], f: &F) -> u32 {
            test2(r, regs, f)
        }
        // SAFETY: all of these features were detected.
        return unsafe { on_wide(registers, regs, &f) };
    }
    test2(registers, regs, &f)
}
