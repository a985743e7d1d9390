//! The layout of keys and values in paged KV memory, and the kernel that stores new ones.
//!
//! The memory is one buffer of bytes, cut into pages of equal size. A page holds `page_len` positions of
//! every layer; a [`KvGeometry`] describes one layer's part. The owners of pages are not known here.

use realizar_quant::{BlockF8, BlockType, Quantize, quantize};

use crate::{Error, Rows, Team, Tier};

/// The layout of one layer's keys and values in a page.
///
/// Page `p` begins at byte `p * page_bytes` of the memory. Keys are `[n_kv_heads][page_len][head_dim]`
/// from byte `k_offset` of the page on, and values from byte `v_offset` on. If both offsets are the
/// same, keys serve as values and are stored once. Elements are little-endian and need no alignment.
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
    ty: BlockType,
    page_len: usize,
    n_kv_heads: usize,
    head_dim: usize,
    head_bytes: usize,
    page_bytes: usize,
    k_offset: usize,
    v_offset: usize,
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    K,
    V,
}

impl KvGeometry {
    /// Creates a geometry.
    ///
    /// # Errors
    /// If the type is not F32, F16, BF16, F8, Q8_0 or Q4_0, a head is not whole blocks, a size is zero, or
    /// keys and values overlap in part or end past the page.
    pub fn new(
        ty: BlockType,
        page_len: usize,
        n_kv_heads: usize,
        head_dim: usize,
        page_bytes: usize,
        k_offset: usize, // bytes from the start of the page
        v_offset: usize, // bytes from the start of the page
    ) -> Result<Self, Error> {
        use BlockType::{BF16, F8, F16, F32, Q4_0, Q8_0};
        if !matches!(ty, F32 | F16 | BF16 | F8 | Q8_0 | Q4_0) {
            return Err(Error::KvType { ty });
        }
        let head_bytes = ty.row_bytes(head_dim)?;
        let part_bytes = [page_len, n_kv_heads]
            .into_iter()
            .try_fold(head_bytes, usize::checked_mul)
            .filter(|&n| n > 0)
            .ok_or(Error::KvSize { page_len, n_kv_heads, head_dim })?;
        let fits = |offset: usize| offset.checked_add(part_bytes).is_some_and(|n| n <= page_bytes);
        let apart = k_offset == v_offset || k_offset.abs_diff(v_offset) >= part_bytes;
        if !(fits(k_offset) && fits(v_offset) && apart) {
            return Err(Error::KvLayout { k_offset, v_offset, part_bytes, page_bytes });
        }
        Ok(Self { ty, page_len, n_kv_heads, head_dim, head_bytes, page_bytes, k_offset, v_offset })
    }

    /// Positions per page.
    pub const fn page_len(&self) -> usize {
        self.page_len
    }

    /// Number of key-value heads.
    pub const fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Elements per head.
    pub const fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes from the start of a page to the start of the next.
    pub const fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes of this layer's keys in a page; its values have as many.
    pub const fn part_bytes(&self) -> usize {
        self.n_kv_heads * self.page_len * self.head_bytes
    }

    /// Whether keys serve as values and are stored once.
    pub const fn values_are_keys(&self) -> bool {
        self.k_offset == self.v_offset
    }

    /// The type of the elements.
    pub const fn ty(&self) -> BlockType {
        self.ty
    }

    /// Bytes of a head at one position.
    pub(crate) const fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Bytes from a position's key to its value.
    pub(crate) const fn v_offset_from_k(&self) -> isize {
        self.v_offset.wrapping_sub(self.k_offset) as isize
    }

    /// Byte offset in the memory of position `idx` of a head in a page.
    pub(crate) const fn start(&self, part: Part, page: usize, head: usize, idx: usize) -> usize {
        let offset = match part {
            Part::K => self.k_offset,
            Part::V => self.v_offset,
        };
        page * self.page_bytes + offset + (head * self.page_len + idx) * self.head_bytes
    }
}

/// The place of one position in KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSlot {
    /// The page's number.
    pub page: u32,
    /// The position's index in the page, below `page_len`.
    pub idx: u32,
}

/// Number of elements below which one thread stores all of them.
const SERIAL_LEN: usize = 16 * 1024;

/// Stores row `i` of `k` and `v` at `slots[i]`, converted to the geometry's type. Floats round to
/// nearest, ties to even. F8 saturates at 448, and stores infinity as NaN because it has none. Blocks
/// are those of [`quantize`]; a block with a value that is not finite becomes NaN. If values are keys,
/// `v` is not read. If two slots are equal, the later row remains.
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
    let n_parts = if geo.values_are_keys() { 1 } else { 2 };
    let columns = |head: usize| head * geo.head_dim..(head + 1) * geo.head_dim;
    if shape.0 * shape.1 < SERIAL_LEN {
        for (i, slot) in slots.iter().enumerate() {
            for (part, x) in [(Part::K, k.row(i)), (Part::V, v.row(i))].into_iter().take(n_parts) {
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
    team.parallel_for(n_parts * geo.n_kv_heads, &|task, _thread| {
        let (part, x) = if task % n_parts == 0 { (Part::K, k) } else { (Part::V, v) };
        let head = task / n_parts;
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

/// Start of memory that tasks write at disjoint places.
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
fn encode(tier: Tier, ty: BlockType, x: &[f32], out: &mut [u8]) {
    match (ty, tier.avx2()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        (BlockType::F16, Some(_)) => unsafe { avx2::encode_f16(x, out) },
        (BlockType::F16, _) => put(x, out, |x| half::f16::from_f32(x).to_le_bytes()),
        (BlockType::BF16, _) => put(x, out, |x| half::bf16::from_f32(x).to_le_bytes()),
        (BlockType::F32, _) => put(x, out, f32::to_le_bytes),
        (BlockType::F8, _) => put(x, out, |x| [BlockF8::quantize(&[x]).0]),
        _ => encode_blocks(ty, x, out),
    }
}

fn put<const N: usize>(x: &[f32], out: &mut [u8], to_bytes: impl Fn(f32) -> [u8; N]) {
    for (&x, out) in x.iter().zip(out.as_chunks_mut::<N>().0) {
        *out = to_bytes(x);
    }
}

/// Quantizes to blocks that begin with an f16 scale.
fn encode_blocks(ty: BlockType, x: &[f32], out: &mut [u8]) {
    if quantize(ty, x, out).is_ok() {
        return;
    }
    // A NaN scale makes all values of a block NaN if one of them is not finite.
    let blocks = x.chunks_exact(ty.block_len()).zip(out.chunks_exact_mut(ty.block_bytes()));
    for (x, out) in blocks {
        if quantize(ty, x, out).is_err() {
            out.fill(0);
            out[..2].copy_from_slice(&half::f16::NAN.to_le_bytes());
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, _MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph,
    };

    use crate::lanes::{load, load_partial};

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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 13) % 4001) as f32 / 500.0 - 4.0).collect()
    }

    /// What is left of a head.
    fn round(ty: BlockType, x: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0; ty.row_bytes(x.len()).expect("whole blocks")];
        quantize(ty, x, &mut bytes).expect("finite values");
        read(ty, &bytes, x.len())
    }

    fn read(ty: BlockType, bytes: &[u8], n: usize) -> Vec<f32> {
        let mut out = vec![0.0; n];
        realizar_quant::dequantize(ty, bytes, &mut out).expect("whole blocks");
        out
    }

    const TYPES: [BlockType; 6] = [
        BlockType::F32,
        BlockType::F16,
        BlockType::BF16,
        BlockType::F8,
        BlockType::Q8_0,
        BlockType::Q4_0,
    ];

    #[test]
    fn stored_rows_come_back_and_nothing_else_changes() {
        for tier in Tier::available() {
            for ty in TYPES {
                // The second case is large enough for parallel tasks.
                for (n_rows, page_len, n_kv_heads, head_dim) in [(5, 4, 2, 20), (300, 16, 3, 64)] {
                    let Ok(head_bytes) = ty.row_bytes(head_dim) else { continue };
                    let part = page_len * n_kv_heads * head_bytes;
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
                                let out = read(ty, bytes, head_dim);
                                let x = &x.row(i)[head * head_dim..][..head_dim];
                                assert_eq!(out, round(ty, x), "{tier} {ty} row {i} head {head}");
                                bytes.fill(0xa5);
                                touched += bytes.len();
                            }
                        }
                    }
                    assert_eq!(touched, 2 * n_rows * n_kv_heads * head_bytes);
                    assert!(memory.iter().all(|&b| b == 0xa5), "bytes of no slot were written");
                }
            }
        }
    }

    #[test]
    fn values_that_are_keys_are_stored_once() {
        // The second case is large enough for parallel tasks.
        for (n_rows, page_len, head_dim) in [(3, 4, 20), (300, 16, 64)] {
            let ty = BlockType::F32;
            let page_bytes = page_len * head_dim * 4;
            let geo = KvGeometry::new(ty, page_len, 1, head_dim, page_bytes, 0, 0).expect("fits");
            assert!(geo.values_are_keys() && geo.v_offset_from_k() == 0);
            let mut memory = vec![0; (n_rows / page_len + 1) * page_bytes];
            let slot =
                |i: usize| KvSlot { page: (i / page_len) as u32, idx: (i % page_len) as u32 };
            let slots: Vec<KvSlot> = (0..n_rows).map(slot).collect();
            let (keys, others) = (values(n_rows * head_dim, 1), values(n_rows * head_dim, 2));
            let rows = |x| Rows::new(x, n_rows, head_dim);
            let (team, tier) = (Team::new(2), Tier::detect());
            kv_store(&team, tier, &geo, &mut memory, rows(&keys), rows(&others), &slots);
            let n_bytes = size_of_val(&*keys);
            assert_eq!(read(ty, &memory[..n_bytes], keys.len()), keys);
        }
    }

    #[test]
    fn impossible_geometries_are_refused() {
        let new = KvGeometry::new;
        let ty = BlockType::Q4_1;
        assert_eq!(new(ty, 16, 2, 64, 1 << 20, 0, 1 << 19), Err(Error::KvType { ty }));
        let partial = new(BlockType::Q8_0, 16, 2, 48, 1 << 20, 0, 1 << 19);
        let n_elements = 48;
        let block = realizar_quant::Error::PartialBlock { ty: BlockType::Q8_0, n_elements };
        assert_eq!(partial, Err(Error::Block(block)));
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

    #[test]
    fn a_block_with_a_value_that_is_not_finite_becomes_nan() {
        for (ty, tier) in [(BlockType::Q8_0, Tier::Scalar), (BlockType::Q4_0, Tier::detect())] {
            let head_bytes = 2 * ty.block_bytes();
            let geo = KvGeometry::new(ty, 1, 1, 64, 2 * head_bytes, 0, head_bytes).expect("fits");
            let mut memory = vec![0; 2 * head_bytes];
            let (mut k, v) = (values(64, 1), values(64, 2));
            k[40] = f32::INFINITY;
            let (k, v) = (Rows::new(&k, 1, 64), Rows::new(&v, 1, 64));
            kv_store(&Team::new(1), tier, &geo, &mut memory, k, v, &[KvSlot { page: 0, idx: 0 }]);
            let out = read(ty, &memory, 128);
            assert_eq!(out[..32], round(ty, &k.row(0)[..32]));
            assert!(out[32..64].iter().all(|x| x.is_nan()));
            assert_eq!(out[64..], round(ty, v.row(0)));
        }
    }
}
