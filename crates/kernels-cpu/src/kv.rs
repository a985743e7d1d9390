//! Where keys and values lie in paged KV memory, and the kernel that stores
//! new ones.
//!
//! The memory is one buffer of bytes, cut into pages of equal size. A page holds
//! `page_len` positions of every layer; a [`KvGeometry`] describes one layer's
//! part. Who owns which page is not known here.

use realizar_quant::BlockType;

use crate::{Error, Rows, Team, Tier};

/// Where the keys and values of one layer lie in a page.
///
/// Page `p` begins at byte `p * page_bytes` of the memory. From `k_offset` of the
/// page the keys follow each other as `[n_kv_heads][page_len][head_dim]`, and from
/// `v_offset` the values. Elements are little-endian and need no alignment.
///
/// ```
/// use realizar_kernels_cpu::KvGeometry;
/// use realizar_quant::BlockType;
///
/// let geo = KvGeometry::new(BlockType::F16, 16, 2, 64, 8192, 0, 4096)?;
/// assert_eq!(geo.part_bytes(), 4096);
/// # Ok::<(), realizar_kernels_cpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGeometry {
    ty: Element,
    page_len: usize,
    n_kv_heads: usize,
    head_dim: usize,
    page_bytes: usize,
    k_offset: usize,
    v_offset: usize,
}

/// The types that KV memory can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    BF16,
}

impl Element {
    pub(crate) const fn n_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    K,
    V,
}

impl KvGeometry {
    /// Checks and makes a geometry.
    ///
    /// # Errors
    /// If the type is none of F32, F16 and BF16, a size is zero, or keys and values
    /// overlap or end past the page.
    pub fn new(
        ty: BlockType,
        page_len: usize,
        n_kv_heads: usize,
        head_dim: usize,
        page_bytes: usize,
        k_offset: usize, // bytes from the start of the page
        v_offset: usize, // bytes from the start of the page
    ) -> Result<Self, Error> {
        let element = match ty {
            BlockType::F32 => Element::F32,
            BlockType::F16 => Element::F16,
            BlockType::BF16 => Element::BF16,
            _ => return Err(Error::KvType { ty }),
        };
        let part_bytes = [page_len, n_kv_heads, head_dim]
            .into_iter()
            .try_fold(element.n_bytes(), usize::checked_mul)
            .filter(|&n| n > 0)
            .ok_or(Error::KvSize { page_len, n_kv_heads, head_dim })?;
        let fits = |offset: usize| offset.checked_add(part_bytes).is_some_and(|n| n <= page_bytes);
        let apart = k_offset.abs_diff(v_offset) >= part_bytes;
        if !(fits(k_offset) && fits(v_offset) && apart) {
            return Err(Error::KvLayout { k_offset, v_offset, part_bytes, page_bytes });
        }
        Ok(Self { ty: element, page_len, n_kv_heads, head_dim, page_bytes, k_offset, v_offset })
    }

    /// Positions of a page.
    pub const fn page_len(&self) -> usize {
        self.page_len
    }

    /// Heads of keys, and of values.
    pub const fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Elements of a head.
    pub const fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes from the start of a page to the start of the next.
    pub const fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes of this layer's keys in a page, and of its values.
    pub const fn part_bytes(&self) -> usize {
        self.n_kv_heads * self.page_len * self.head_dim * self.ty.n_bytes()
    }

    pub(crate) const fn element(&self) -> Element {
        self.ty
    }

    /// Bytes of one position of one head.
    const fn head_bytes(&self) -> usize {
        self.head_dim * self.ty.n_bytes()
    }

    /// Byte where position `idx` of a head begins, in a page of the memory.
    pub(crate) const fn start(&self, part: Part, page: usize, head: usize, idx: usize) -> usize {
        let offset = match part {
            Part::K => self.k_offset,
            Part::V => self.v_offset,
        };
        page * self.page_bytes + offset + (head * self.page_len + idx) * self.head_bytes()
    }
}

/// The place of one position's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSlot {
    /// The page.
    pub page: u32,
    /// The position in the page, below `page_len`.
    pub idx: u32,
}

/// Elements below which one thread stores them all.
const SERIAL_LEN: usize = 16 * 1024;

/// Stores row `i` of `k` and `v` at `slots[i]`, converted to the geometry's type by
/// rounding to nearest, ties to even. When two slots are equal, the later row stays.
///
/// # Panics
/// If the shapes disagree or a slot is outside the memory.
pub fn kv_store(
    team: &Team,
    tier: Tier,
    geo: &KvGeometry,
    memory: &mut [u8], // [n_pages * page_bytes]
    k: Rows<'_>,       // [n_rows, n_kv_heads * head_dim]
    v: Rows<'_>,       // [n_rows, n_kv_heads * head_dim]
    slots: &[KvSlot],  // [n_rows]
) {
    let shape = (slots.len(), geo.n_kv_heads * geo.head_dim);
    assert_eq!((k.n_rows(), k.n_cols()), shape, "shape of the keys");
    assert_eq!((v.n_rows(), v.n_cols()), shape, "shape of the values");
    let n_pages = memory.len() / geo.page_bytes;
    for slot in slots {
        let inside = (slot.page as usize) < n_pages && (slot.idx as usize) < geo.page_len;
        assert!(inside, "{slot:?} in {n_pages} pages of {}", geo.page_len);
    }
    let n_bytes = geo.head_bytes();
    let columns = |head: usize| head * geo.head_dim..(head + 1) * geo.head_dim;
    if shape.0 * shape.1 < SERIAL_LEN {
        for (i, slot) in slots.iter().enumerate() {
            for (part, x) in [(Part::K, k.row(i)), (Part::V, v.row(i))] {
                for head in 0..geo.n_kv_heads {
                    let start = geo.start(part, slot.page as usize, head, slot.idx as usize);
                    let out = &mut memory[start..start + n_bytes];
                    encode(tier, geo.ty, &x[columns(head)], out);
                }
            }
        }
        return;
    }
    let memory = SharedBytes(memory.as_mut_ptr());
    team.parallel_for(2 * geo.n_kv_heads, &|task, _thread| {
        let (part, x) = if task % 2 == 0 { (Part::K, k) } else { (Part::V, v) };
        let head = task / 2;
        for (i, slot) in slots.iter().enumerate() {
            let start = geo.start(part, slot.page as usize, head, slot.idx as usize);
            // SAFETY: the slot's page and index were checked against the memory above
            // and the parts against the page in `KvGeometry::new`, so the bytes are
            // inside. A task writes to its own head of its own part alone, and these
            // are disjoint in every page, so no two threads reach the same bytes.
            let out = unsafe { memory.slice(start, n_bytes) };
            encode(tier, geo.ty, &x.row(i)[columns(head)], out);
        }
    });
}

/// The start of memory that tasks write to in disjoint places.
struct SharedBytes(*mut u8);

// SAFETY: the pointer is used through `slice` alone, whose callers promise that
// threads reach disjoint bytes.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// # Safety
    /// The bytes are inside the memory, and nothing else reaches them while the
    /// slice lives.
    #[expect(clippy::mut_from_ref, reason = "callers promise that the slices are disjoint")]
    unsafe fn slice(&self, start: usize, len: usize) -> &mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Converts `x` to the bytes of a type.
fn encode(tier: Tier, ty: Element, x: &[f32], out: &mut [u8]) {
    match tier.avx2() {
        None => match ty {
            Element::F32 => put(x, out, f32::to_le_bytes),
            Element::F16 => put(x, out, |x| half::f16::from_f32(x).to_le_bytes()),
            Element::BF16 => put(x, out, |x| half::bf16::from_f32(x).to_le_bytes()),
        },
        #[cfg(target_arch = "x86_64")]
        Some(_) => match ty {
            Element::F32 => put(x, out, f32::to_le_bytes),
            // SAFETY: the token proves that AVX2, FMA and F16C were detected.
            Element::F16 => unsafe { avx2::encode_f16(x, out) },
            Element::BF16 => put(x, out, |x| half::bf16::from_f32(x).to_le_bytes()),
        },
    }
}

fn put<const N: usize>(x: &[f32], out: &mut [u8], to_bytes: impl Fn(f32) -> [u8; N]) {
    for (&x, out) in x.iter().zip(out.as_chunks_mut::<N>().0) {
        *out = to_bytes(x);
    }
}

/// Converts the bytes of a type to `out`.
pub(crate) fn decode(tier: Tier, ty: Element, bytes: &[u8], out: &mut [f32]) {
    match tier.avx2() {
        None => match ty {
            Element::F32 => get(bytes, out, f32::from_le_bytes),
            Element::F16 => get(bytes, out, |b| half::f16::from_le_bytes(b).to_f32()),
            Element::BF16 => get(bytes, out, |b| half::bf16::from_le_bytes(b).to_f32()),
        },
        #[cfg(target_arch = "x86_64")]
        Some(_) => match ty {
            Element::F32 => get(bytes, out, f32::from_le_bytes),
            // SAFETY: the token proves that AVX2, FMA and F16C were detected.
            Element::F16 => unsafe { avx2::decode_f16(bytes, out) },
            // SAFETY: the token proves that AVX2, FMA and F16C were detected.
            Element::BF16 => unsafe { avx2::decode_bf16(bytes, out) },
        },
    }
}

fn get<const N: usize>(bytes: &[u8], out: &mut [f32], from_bytes: impl Fn([u8; N]) -> f32) {
    for (&bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = from_bytes(bytes);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_castsi256_ps,
        _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_slli_epi32,
    };

    use crate::lanes::{load, load_partial, store, store_partial};

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn load_bytes(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: the array holds the 16 bytes that the unaligned load reads.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn store_bytes(v: __m128i, out: &mut [u8; 16]) {
        // SAFETY: the array holds the 16 bytes that the unaligned store writes.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), v) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn encode_f16(x: &[f32], out: &mut [u8]) {
        let (x8, x) = x.as_chunks::<8>();
        let (out8, out) = out.as_chunks_mut::<16>();
        for (x, out) in x8.iter().zip(out8) {
            store_bytes(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load(x)), out);
        }
        if !x.is_empty() {
            let mut padded = [0; 16];
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load_partial(x));
            store_bytes(halves, &mut padded);
            out.copy_from_slice(&padded[..2 * x.len()]);
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
        decode(bytes, out, |halves| _mm256_cvtph_ps(halves));
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
        decode(bytes, out, |halves| {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        });
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn decode(bytes: &[u8], out: &mut [f32], f: impl Fn(__m128i) -> std::arch::x86_64::__m256) {
        let (bytes16, bytes) = bytes.as_chunks::<16>();
        let (out8, out) = out.as_chunks_mut::<8>();
        for (bytes, out) in bytes16.iter().zip(out8) {
            store(f(load_bytes(bytes)), out);
        }
        if !out.is_empty() {
            let mut padded = [0; 16];
            padded[..bytes.len()].copy_from_slice(bytes);
            store_partial(f(load_bytes(&padded)), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 13) % 4001) as f32 / 500.0 - 4.0).collect()
    }

    fn round(ty: BlockType, x: f32) -> f32 {
        match ty {
            BlockType::F16 => half::f16::from_f32(x).to_f32(),
            BlockType::BF16 => half::bf16::from_f32(x).to_f32(),
            _ => x,
        }
    }

    #[test]
    fn stored_rows_come_back_and_nothing_else_changes() {
        for tier in Tier::available() {
            for ty in [BlockType::F32, BlockType::F16, BlockType::BF16] {
                // The second case is large enough for parallel tasks.
                for (n_rows, page_len, n_kv_heads, head_dim) in [(5, 4, 2, 20), (300, 16, 3, 64)] {
                    let part = page_len * n_kv_heads * head_dim * ty.block_bytes();
                    let page_bytes = 2 * part + 24;
                    let geo = KvGeometry::new(
                        ty,
                        page_len,
                        n_kv_heads,
                        head_dim,
                        page_bytes,
                        part + 16,
                        8,
                    )
                    .expect("the parts fit");
                    let n_pages = n_rows / page_len + 2;
                    let mut memory = vec![0xa5_u8; n_pages * page_bytes];
                    let slots: Vec<KvSlot> = (0..n_rows)
                        .map(|i| KvSlot {
                            page: (n_pages - 1 - i / page_len) as u32,
                            idx: (i % page_len) as u32,
                        })
                        .collect();
                    let dim = n_kv_heads * head_dim;
                    let (k, v) = (values(n_rows * dim, 1), values(n_rows * dim, 2));
                    let (k, v) = (Rows::new(&k, n_rows, dim), Rows::new(&v, n_rows, dim));
                    kv_store(&Team::new(3), tier, &geo, &mut memory, k, v, &slots);
                    let mut touched = 0;
                    for (i, slot) in slots.iter().enumerate() {
                        for (part, x) in [(Part::K, k), (Part::V, v)] {
                            for head in 0..n_kv_heads {
                                let start =
                                    geo.start(part, slot.page as usize, head, slot.idx as usize);
                                let bytes = &mut memory[start..start + geo.head_bytes()];
                                let mut out = vec![0.0; head_dim];
                                decode(tier, geo.ty, bytes, &mut out);
                                let x = &x.row(i)[head * head_dim..][..head_dim];
                                let e: Vec<f32> = x.iter().map(|&x| round(ty, x)).collect();
                                assert_eq!(out, e, "{tier} {ty} row {i} head {head}");
                                bytes.fill(0xa5);
                                touched += bytes.len();
                            }
                        }
                    }
                    assert_eq!(touched, 2 * n_rows * dim * ty.block_bytes());
                    assert!(memory.iter().all(|&b| b == 0xa5), "bytes of no slot were written");
                }
            }
        }
    }

    #[test]
    fn impossible_geometries_are_refused() {
        let new = KvGeometry::new;
        let ty = BlockType::Q8_0;
        assert_eq!(new(ty, 16, 2, 64, 1 << 20, 0, 1 << 19), Err(Error::KvType { ty }));
        let size = Error::KvSize { page_len: 0, n_kv_heads: 2, head_dim: 64 };
        assert_eq!(new(BlockType::F32, 0, 2, 64, 100, 0, 0), Err(size));
        let size = Error::KvSize { page_len: usize::MAX, n_kv_heads: 2, head_dim: 64 };
        assert_eq!(new(BlockType::F32, usize::MAX, 2, 64, 100, 0, 0), Err(size));
        for (k_offset, v_offset, page_bytes) in [(0, 63, 128), (0, 64, 127), (usize::MAX, 0, 128)] {
            let layout = Error::KvLayout { k_offset, v_offset, part_bytes: 64, page_bytes };
            let result = new(BlockType::F16, 4, 2, 4, page_bytes, k_offset, v_offset);
            assert_eq!(result, Err(layout));
        }
    }
}
