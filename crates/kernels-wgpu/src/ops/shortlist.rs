//! Shortlists of rows of logits: the best tokens, and individually requested tokens.
//!
//! A shortlist suffices to sample a token if the rest of the row cannot matter, and takes a few hundred bytes
//! where the row takes a megabyte. Selection only compares: the listed logits have the bits of the row, and among
//! equal logits the lower ids are listed. Sums over the whole vocabulary are sums of integer shares, which are
//! the same on every device.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Recorder, View};
use crate::{Buffer, Error, Gpu};
use realizar_types::{ShareScale, SharesOf, Shortlist, ShortlistLimits, ShortlistRow};

/// Logits per block. The largest logit of each block is found first.
const BLOCK: u32 = 64;
/// Invocations per workgroup.
const WORKGROUP: u32 = 256;
/// Words per row in the header, in addition to its lists and mask.
const HEADER: usize = 12;
/// Logits per workgroup of the share sums.
const WEIGHED: u32 = 4096;
/// Marks an absent mask, and a list of a row with unusable logits.
const NONE: u32 = u32::MAX;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    n_logits: u32,
    n_blocks: u32,
    x: [u32; 2], // start, stride
}

fn weighing_shader(name: &'static str, text: &'static str) -> Shader {
    use Access::{Read, ReadWrite};
    let common = include_str!("../../shaders/shortlist/common.wgsl");
    Shader {
        name: name.into(),
        parts: vec![common, include_str!("../../shaders/shortlist/shares.wgsl"), text],
        bindings: &[Read, ReadWrite, ReadWrite, ReadWrite, ReadWrite],
        constants: Vec::new(),
    }
}

fn shader(name: &'static str, text: &'static str) -> Shader {
    Shader {
        name: name.into(),
        parts: vec![include_str!("../../shaders/shortlist/common.wgsl"), text],
        bindings: &[Access::Read, Access::ReadWrite, Access::ReadWrite, Access::ReadWrite],
        constants: Vec::new(),
    }
}

fn gather_shader() -> Shader {
    shader("shortlist gather", include_str!("../../shaders/shortlist/gather.wgsl"))
}

fn maxima_shader() -> Shader {
    shader("shortlist maxima", include_str!("../../shaders/shortlist/maxima.wgsl"))
}

fn select_shader() -> Shader {
    shader("shortlist select", include_str!("../../shaders/shortlist/select.wgsl"))
}

fn weigh_shader() -> Shader {
    weighing_shader("shortlist weigh", include_str!("../../shaders/shortlist/weigh.wgsl"))
}

fn draw_shader() -> Shader {
    weighing_shader("shortlist draw", include_str!("../../shaders/shortlist/draw.wgsl"))
}

pub(crate) fn shaders() -> Vec<Shader> {
    vec![gather_shader(), maxima_shader(), select_shader(), weigh_shader(), draw_shader()]
}

/// The place and the contents of a row's list.
#[derive(Debug, Clone, Copy)]
struct ListPlace {
    at: usize,
    n_listed: usize,
    n_best: usize,
    has_shares: bool,
    n_draws: usize,
}

/// Intermediate memory, which consecutive shortlists share.
#[derive(Debug, Clone)]
pub struct ShortlistScratch {
    maxima: Buffer, // [n_rows, n_blocks]
    sums: Buffer,   // [n_rows, n_blocks], of 64 bits
}

impl ShortlistScratch {
    /// Bytes for `max_rows` rows of `n_logits` logits.
    pub fn bytes(n_logits: u32, max_rows: usize) -> u64 {
        12 * max_rows as u64 * u64::from(n_logits.div_ceil(BLOCK))
    }

    /// Allocates for `max_rows` rows of `n_logits` logits.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(gpu: &Gpu, n_logits: u32, max_rows: usize) -> Result<Self, Error> {
        let n_blocks = max_rows as u64 * u64::from(n_logits.div_ceil(BLOCK));
        Ok(Self {
            maxima: gpu.buffer("maxima of logits", 4 * n_blocks)?,
            sums: gpu.buffer("sums of shares", 8 * n_blocks)?,
        })
    }
}

/// Maximum number of words of a row's request.
fn want_words(limits: &ShortlistLimits, n_logits: u32) -> usize {
    let mask = if limits.masks { n_logits.div_ceil(32) as usize } else { 0 };
    HEADER + limits.listed + limits.draws + mask
}

/// Maximum number of words of a list.
fn list_words(limits: &ShortlistLimits) -> usize {
    3 + limits.listed + 2 * Shortlists::MAX_BEST as usize + 2 * limits.draws
}

/// The shortlists of a step: their memory, and the kernels that compute them.
#[derive(Debug)]
pub struct Shortlists {
    n_logits: u32,
    limits: ShortlistLimits,
    kernels: [Kernel; Self::N_KERNELS],
    wants: Buffer,
    lists: Buffer,
    readback: Buffer,
    /// The requests: a header per row, and the lists and masks that headers refer to.
    headers: Vec<u32>,
    data: Vec<u32>,
    /// The place of each row's list.
    places: Vec<ListPlace>,
    n_words: usize,
    has_listed: bool,
    has_shares: bool,
    out: Vec<u32>,
}

impl Shortlists {
    /// Maximum number of best tokens per row.
    pub const MAX_BEST: u32 = 256;
    /// Maximum number of individually listed tokens per row.
    pub const MAX_LISTED: u32 = 1024;
    /// Maximum number of logits per row, given by the bits of an index in the selection.
    pub const MAX_LOGITS: u32 = 1 << 24;

    /// Maximum number of draws per row.
    pub const MAX_DRAWS: u32 = 64;

    /// Bytes on the device for shortlists of rows of `n_logits`, without kernels and scratch memory.
    pub fn bytes(n_logits: u32, limits: &ShortlistLimits) -> u64 {
        let of_row = want_words(limits, n_logits) + 2 * list_words(limits);
        4 * (limits.rows as u64) * of_row as u64
    }

    /// Bytes on the host.
    pub fn host_bytes(n_logits: u32, limits: &ShortlistLimits) -> u64 {
        4 * (limits.rows * (want_words(limits, n_logits) + list_words(limits))) as u64
    }

    /// Number of bound kernels.
    pub const N_KERNELS: usize = 5;

    /// Allocates shortlists of rows of `logits`, which are in `values`.
    ///
    /// # Errors
    /// If memory runs out or the device refuses a kernel.
    ///
    /// # Panics
    /// If a row is longer than [`Self::MAX_LOGITS`], or the scratch memory has room for fewer rows.
    pub fn new(
        gpu: &Gpu,
        values: &Buffer,
        logits: View,
        scratch: &ShortlistScratch,
        limits: ShortlistLimits,
    ) -> Result<Self, Error> {
        let n_logits = logits.width;
        assert!(n_logits <= Self::MAX_LOGITS, "{n_logits} logits");
        let n_blocks = n_logits.div_ceil(BLOCK);
        let ShortlistScratch { maxima, sums } = scratch;
        let words = |n: usize| 4 * (n * limits.rows) as u64;
        let wants = gpu.buffer("what shortlists are of", words(want_words(&limits, n_logits)))?;
        let lists = gpu.buffer("shortlists", words(list_words(&limits)))?;
        let readback = gpu.readback_buffer("shortlists", words(list_words(&limits)))?;
        let params = Params { n_logits, n_blocks, x: [logits.start, logits.stride] };
        let bind = |shader: Shader, x: u32| {
            let buffers = [&wants, values, maxima, &lists, sums];
            let buffers = &buffers[..shader.bindings.len()];
            gpu.kernel(&shader, &params, buffers, Grid { x, rows: 1, z: 1 })
        };
        let kernels = [
            bind(gather_shader(), (limits.listed as u32).div_ceil(WORKGROUP).max(1))?,
            bind(maxima_shader(), n_logits.div_ceil(WORKGROUP))?,
            bind(select_shader(), 1)?,
            bind(weigh_shader(), n_logits.div_ceil(WEIGHED))?,
            bind(draw_shader(), 1)?,
        ];
        let room = limits.rows * list_words(&limits);
        Ok(Self {
            n_logits,
            limits,
            kernels,
            wants,
            lists,
            readback,
            headers: Vec::with_capacity(limits.rows * HEADER),
            data: Vec::with_capacity(limits.rows * (want_words(&limits, n_logits) - HEADER)),
            places: Vec::with_capacity(limits.rows),
            n_words: 0,
            has_listed: false,
            has_shares: false,
            out: vec![0; room],
        })
    }

    /// Removes all requests.
    pub fn clear(&mut self) {
        self.headers.clear();
        self.data.clear();
        self.places.clear();
        (self.n_words, self.has_listed, self.has_shares) = (0, false, false);
    }

    /// Adds a request for the next [`Self::record`].
    ///
    /// # Panics
    /// If there is no room for the row, or the request violates a limit of [`ShortlistRow`].
    pub fn push(&mut self, of: &ShortlistRow<'_>) {
        let &ShortlistRow { row, n_best, n_tokens, listed, mask, shares } = of;
        let limits = self.limits;
        assert!(self.places.len() < limits.rows, "more than {} rows", limits.rows);
        assert!((1..=Self::MAX_BEST).contains(&n_best), "the best {n_best}");
        assert!(listed.len() <= limits.listed, "{} listed tokens", listed.len());
        assert!(mask.is_none() || limits.masks, "a mask");
        assert!(listed.iter().all(|&id| id < self.n_logits), "a listed token is in the vocabulary");
        let mut n_tokens = n_tokens.min(self.n_logits);
        let first = limits.rows * HEADER;
        let listed_at = first + self.data.len();
        self.data.extend_from_slice(listed);
        let mut mask_at = NONE;
        if let Some(mask) = mask {
            let n_words = mask.len().min(n_tokens.div_ceil(32) as usize);
            n_tokens = n_tokens.min(32 * n_words as u32);
            mask_at = (first + self.data.len()) as u32;
            self.data.extend_from_slice(&mask[..n_words]);
        }
        let none = SharesOf { scale: ShareScale { factor: 0, range: 0 }, draws: &[] };
        let SharesOf { scale: ShareScale { factor, range }, draws } = shares.unwrap_or(none);
        assert!(draws.len() <= limits.draws, "{} draws", draws.len());
        let draws_at = (first + self.data.len()) as u32;
        self.data.extend_from_slice(draws);
        let at = self.n_words;
        let (n_listed, n_draws) = (listed.len() as u32, draws.len() as u32);
        self.headers.extend([row, n_best, n_tokens, mask_at]);
        self.headers.extend([listed_at as u32, n_listed, at as u32]);
        self.headers.extend([factor, range.cast_unsigned(), draws_at, n_draws, 0]);
        let has_shares = shares.is_some();
        self.places.push(ListPlace {
            at,
            n_listed: listed.len(),
            n_best: n_best as usize,
            has_shares,
            n_draws: draws.len(),
        });
        self.n_words += 1 + listed.len() + 2 * n_best as usize;
        self.n_words += if has_shares { 2 + 2 * draws.len() } else { 0 };
        self.has_listed |= n_listed > 0;
        self.has_shares |= has_shares;
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of all lists, which [`Self::read`] copies to the host.
    pub fn n_bytes(&self) -> u64 {
        4 * self.n_words as u64
    }

    /// Records the kernels that compute the lists, and calls `each` for every kernel. Afterwards the logits of listed
    /// tokens are minus infinity in their rows.
    ///
    /// # Errors
    /// If the requests cannot be copied to the device.
    pub fn record(
        &self,
        gpu: &Gpu,
        recorder: &mut Recorder<'_>,
        mut each: impl FnMut(&Kernel),
    ) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        gpu.write(&self.wants, 0, bytemuck::cast_slice(&self.headers))?;
        if !self.data.is_empty() {
            let at = 4 * (self.limits.rows * HEADER) as u64;
            gpu.write(&self.wants, at, bytemuck::cast_slice(&self.data))?;
        }
        let skipped = usize::from(!self.has_listed);
        let n_kernels = if self.has_shares { Self::N_KERNELS } else { 3 };
        for kernel in &self.kernels[skipped..n_kernels] {
            recorder.run(kernel, self.places.len() as u32);
            each(kernel);
        }
        recorder.copy((&self.lists, 0), (&self.readback, 0), self.n_bytes());
        Ok(())
    }

    /// Waits for the lists and copies them to the host.
    ///
    /// # Errors
    /// If the device was lost or refused something.
    pub fn read(&mut self, gpu: &Gpu) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        gpu.read(&self.readback, &mut self.out[..self.n_words])
    }

    /// The shortlist of request `idx`.
    pub fn list(&self, idx: usize) -> Shortlist<'_> {
        let ListPlace { at, n_listed, n_best, has_shares, n_draws } = self.places[idx];
        let (listed, rest) = self.out[at + 1..].split_at(n_listed);
        let (best, rest) = rest.split_at(2 * n_best);
        let best = match self.out[at] {
            NONE => None,
            n => Some(&best.as_chunks().0[..n as usize]),
        };
        if !has_shares {
            return Shortlist { listed, best, total: None, drawn: &[] };
        }
        let total = u64::from(rest[0]) | u64::from(rest[1]) << 32;
        let n_drawn = if total == 0 { 0 } else { n_draws };
        let drawn = &rest[2..][..2 * n_drawn].as_chunks().0;
        Shortlist { listed, best, total: Some(total), drawn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// What the device must find: all tokens that may be among the best, best first.
    fn sorted(logits: &[f32], of: &ShortlistRow<'_>) -> Vec<[u32; 2]> {
        let may = |id: u32| {
            let by_mask =
                |mask: &[u32]| mask.get(id as usize / 32).is_some_and(|w| w >> (id % 32) & 1 == 1);
            id < of.n_tokens && !of.listed.contains(&id) && of.mask.is_none_or(by_mask)
        };
        let all = (0..).zip(logits).filter(|&(id, &x)| may(id) && x != f32::NEG_INFINITY);
        let mut all: Vec<(u32, f32)> = all.map(|(id, &x)| (id, x)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all.truncate(of.n_best as usize);
        all.iter().map(|&(id, x)| [id, x.to_bits()]).collect()
    }

    /// The share of a logit, in rational numbers as far as 128 bits hold them.
    fn share(logit: f32, max: f32, of: &SharesOf<'_>) -> u64 {
        let exponent = |x: f32| (x.to_bits() >> 23 & 255) as i32 - 127;
        let top = exponent(max).max(of.scale.range);
        let units = |x: f32| (f64::from(x) * 2_f64.powi(29 - top)).max(-2_f64.powi(31)) as i64;
        let product = (units(max) - units(logit)) as u128 * u128::from(of.scale.factor);
        let log = product >> (30 - (top - of.scale.range)).max(0);
        let rest = (log % (1 << 25)) << 7;
        let poly = [2_034_029, 19_784_458, 118_765_909, 515_789_246, 1_488_515_590, 1 << 31];
        let power = poly[1..].iter().fold(poly[0], |power, &c| c - ((rest * power) >> 32));
        if log >> 25 < 64 { ((power << 8) >> (log >> 25)) as u64 } else { 0 }
    }

    /// The shares of what may be among the best, and the tokens at the places.
    fn shares(logits: &[f32], of: &ShortlistRow<'_>) -> Option<(u64, Vec<[u32; 2]>)> {
        let shares = of.shares?;
        let all = ShortlistRow { n_best: u32::MAX, ..*of };
        let mut all = sorted(logits, &all);
        let max = all.first().map_or(0.0, |best| f32::from_bits(best[1]));
        all.sort_unstable();
        let of = |token: &[u32; 2]| share(f32::from_bits(token[1]), max, &shares);
        let total: u64 = all.iter().map(of).sum();
        let drawn = shares.draws.iter().filter_map(|&place| {
            let goal = ((u128::from(total) * u128::from(place)) >> 32) as u64;
            let mut sum = 0;
            all.iter().copied().find(|token| {
                sum += of(token);
                sum > goal
            })
        });
        Some((total, drawn.collect()))
    }

    fn room(gpu: &Gpu, values: &Buffer, logits: View, n_rows: usize) -> Shortlists {
        let scratch = ShortlistScratch::new(gpu, logits.width, n_rows).unwrap();
        let limits = ShortlistLimits { rows: n_rows, listed: 1024, draws: 8, masks: true };
        Shortlists::new(gpu, values, logits, &scratch, limits).unwrap()
    }

    /// The lists of `rows`, which are made together.
    fn check(gpu: &Gpu, logits: &[f32], width: u32, rows: &[ShortlistRow<'_>]) {
        // Something before the rows and between them.
        let (start, stride) = (5, width + 3);
        let n_rows = logits.len() / width as usize;
        let mut all = vec![f32::MAX; start as usize + n_rows * stride as usize];
        for (row, logits) in logits.chunks(width as usize).enumerate() {
            all[start as usize + row * stride as usize..][..width as usize].copy_from_slice(logits);
        }
        let values = testing::filled(gpu, &all);
        let view = View { start, stride, width };
        let mut lists = room(gpu, &values, view, rows.len());
        lists.clear();
        rows.iter().for_each(|row| lists.push(row));
        let mut recorder = gpu.record();
        lists.record(gpu, &mut recorder, |_| ()).unwrap();
        recorder.submit().unwrap();
        lists.read(gpu).unwrap();
        for (i, of) in rows.iter().enumerate() {
            let row = &logits[of.row as usize * width as usize..][..width as usize];
            let Shortlist { listed, best, total, drawn } = lists.list(i);
            let (want_total, want_drawn) = shares(row, of).unzip();
            assert_eq!(total, want_total, "{width} {i}");
            assert_eq!(drawn, want_drawn.unwrap_or_default(), "{width} {i}");
            let bits: Vec<u32> = of.listed.iter().map(|&id| row[id as usize].to_bits()).collect();
            assert_eq!(listed, bits, "{width} {i}");
            let mut best = best.expect("usable logits").to_vec();
            best.sort_by(|a, b| {
                let of = |x: &[u32; 2]| f32::from_bits(x[1]);
                of(b).total_cmp(&of(a)).then(a[0].cmp(&b[0]))
            });
            assert_eq!(best, sorted(row, of), "{width} {i}: {:?}", of.n_best);
        }
    }

    #[test]
    fn lists_are_those_of_a_full_sort() {
        let Some(gpu) = testing::gpu() else { return };
        for width in [1, 7, 63, 64, 65, 255, 256, 257, 4097, 49152, 262_145_u32] {
            let n = width as usize;
            let mut logits = testing::noise(n, 3);
            // Many equals, both zeros, minus infinity; then all the same.
            logits.extend((0..n).map(|i| match (i * 7919) % 11 {
                0 => f32::NEG_INFINITY,
                1 => -0.0,
                2 => 0.0,
                k => ((i * 31) % 3) as f32 - (k % 2) as f32,
            }));
            logits.extend(std::iter::repeat_n(-3.5, n));
            let mask: Vec<u32> =
                (0..width.div_ceil(32)).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
            let listed: Vec<u32> = (0..width).step_by((n / 40).max(1)).collect();
            let of = |row, n_best| ShortlistRow {
                row,
                n_best,
                n_tokens: width,
                listed: &[],
                mask: None,
                shares: None,
            };
            let mut rows = Vec::new();
            for row in 0..3 {
                rows.extend([1, 2, 40, 256].map(|n_best| of(row, n_best)));
                rows.push(ShortlistRow { mask: Some(&mask), ..of(row, 40) });
                rows.push(ShortlistRow { mask: Some(&mask[..n / 64]), ..of(row, 3) });
                rows.push(ShortlistRow { n_tokens: width - width / 3, ..of(row, 256) });
            }
            // Scales of 1, 2^-10 and 100, of which a row has few shares.
            let draws = [0, 1, 1 << 30, 0x9e37_79b9, u32::MAX];
            for (factor, range) in [(3_098_164_009, 5), (3_098_164_009, 15), (2_420_440_632, -2)] {
                let shares = Some(SharesOf { scale: ShareScale { factor, range }, draws: &draws });
                for row in 0..3 {
                    rows.push(ShortlistRow { shares, ..of(row, 1) });
                    rows.push(ShortlistRow { shares, mask: Some(&mask), ..of(row, 40) });
                    rows.push(ShortlistRow { shares, n_tokens: width / 2, ..of(row, 3) });
                }
            }
            check(&gpu, &logits, width, &rows);
            // Listed tokens are taken out of their rows, so these come by themselves.
            let rows = [0, 1, 2].map(|row| ShortlistRow { listed: &listed, ..of(row, 40) });
            check(&gpu, &logits, width, &rows);
            let mask = Some(&mask[..]);
            let shares = Some(SharesOf { scale: ShareScale::new(1.0), draws: &draws });
            let rows = [0, 1, 2].map(|row| ShortlistRow { mask, shares, ..rows[row as usize] });
            check(&gpu, &logits, width, &rows);
        }
    }

    #[test]
    fn unusable_logits_are_told_where_their_tokens_may_come() {
        let Some(gpu) = testing::gpu() else { return };
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let mut logits = testing::noise(1000, 1);
            logits[700] = bad;
            let values = testing::filled(&gpu, &logits);
            let mut lists = room(&gpu, &values, View::dense(0, 1000), 3);
            let of = ShortlistRow {
                row: 0,
                n_best: 3,
                n_tokens: 1000,
                listed: &[],
                mask: None,
                shares: None,
            };
            let mask: Vec<u32> =
                (0..32).map(|i| if i == 700 / 32 { 0 } else { u32::MAX }).collect();
            lists.push(&of);
            lists.push(&ShortlistRow { n_tokens: 700, ..of });
            lists.push(&ShortlistRow { mask: Some(&mask), ..of });
            let mut recorder = gpu.record();
            lists.record(&gpu, &mut recorder, |_| ()).unwrap();
            recorder.submit().unwrap();
            lists.read(&gpu).unwrap();
            assert_eq!(lists.list(0).best, None, "{bad}");
            assert_eq!([1, 2].map(|i| lists.list(i).best.unwrap().len()), [3, 3], "{bad}");
        }
    }
}
