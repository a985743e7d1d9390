//! Paged keys and values of a layer.
//!
//! The host assigns pages to sequences, in the tables of each step.

use std::sync::Arc;

use realizar_quant::BlockType;

use crate::device::{Argument, Device};
use crate::{Buffer, Error};

/// Element types of keys and values, in the order of the kernels' tables.
pub(crate) const KV_TYPES: [BlockType; 6] = [
    BlockType::F32,
    BlockType::F16,
    BlockType::BF16,
    BlockType::Q8_0,
    BlockType::Q4_0,
    BlockType::F8,
];

/// The maximum head dimension of attention kernels.
const MAX_HEAD_DIM: usize = 576;

/// The minimum page length: kernels look up a page once per this many positions.
const MIN_PAGE_LEN: usize = 16;

/// The shape of a layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSpec {
    /// Element type: F32, F16, BF16, F8, or blocks of Q8_0 or Q4_0 along a head.
    pub ty: BlockType,
    /// Key-value heads.
    pub n_kv_heads: usize,
    /// Elements per head, at most 576.
    pub head_dim: usize,
    /// Positions per page, a power of two of at least 16.
    pub page_len: usize,
    /// Number of pages.
    pub n_pages: usize,
    /// Whether values equal keys, which are then stored once.
    pub values_are_keys: bool,
}

impl KvSpec {
    /// Elements that a position of a head occupies in a page. Kernels read eight at a time, and whole blocks.
    pub(crate) fn row_len(&self) -> usize {
        self.head_dim.next_multiple_of(self.ty.block_len().max(8))
    }

    /// Index of the type in [`KV_TYPES`].
    pub(crate) fn type_index(&self) -> usize {
        let index = KV_TYPES.iter().position(|&ty| ty == self.ty);
        index.expect("pages have these types only")
    }

    /// Bytes of the keys, or of the values, of a page; `usize::MAX` on overflow.
    pub fn page_bytes(&self) -> usize {
        let row_bytes = self.row_len() / self.ty.block_len() * self.ty.block_bytes();
        let n = [self.page_len, row_bytes];
        n.into_iter().fold(self.n_kv_heads, usize::saturating_mul)
    }

    /// Number of stored tensors: keys and values, or keys only.
    pub fn planes(&self) -> usize {
        if self.values_are_keys { 1 } else { 2 }
    }

    /// Bytes of all keys and values; `usize::MAX` on overflow.
    pub fn n_bytes(&self) -> usize {
        self.page_bytes().saturating_mul(self.n_pages).saturating_mul(self.planes())
    }

    /// Checks whether kernels support this shape. Messages name it `what`.
    ///
    /// # Errors
    /// [`Error::Pages`] with the reason.
    pub fn check(&self, what: &str) -> Result<(), Error> {
        let wrong = |message: String| Err(Error::Pages { what: what.to_owned(), message });
        let &Self { ty, n_kv_heads, head_dim, page_len, n_pages, .. } = self;
        if !KV_TYPES.contains(&ty) {
            return wrong(format!(
                "elements of type {ty}: F32, F16, BF16, F8, Q8_0 and Q4_0 are supported"
            ));
        }
        if head_dim == 0 || head_dim > MAX_HEAD_DIM {
            return wrong(format!(
                "heads of {head_dim} elements: up to {MAX_HEAD_DIM} are supported"
            ));
        }
        if page_len < MIN_PAGE_LEN || !page_len.is_power_of_two() {
            return wrong(format!(
                "pages of {page_len} positions: powers of two from {MIN_PAGE_LEN} on are supported"
            ));
        }
        // Slots are 32-bit numbers, and the last one stands for none.
        let positions = n_pages.checked_mul(page_len);
        let fits = positions.is_some_and(|n| n > 0 && n <= i32::MAX as usize)
            && n_kv_heads > 0
            && n_kv_heads <= i32::MAX as usize / MAX_HEAD_DIM
            && self.n_bytes() < usize::MAX;
        if !fits {
            return wrong(format!(
                "{n_pages} pages of {page_len} positions with {n_kv_heads} heads of {head_dim}"
            ));
        }
        Ok(())
    }
}

/// The keys and values of a layer, `[n_pages, n_kv_heads, page_len, head_dim]` each. Heads are padded with zeros to a
/// multiple of eight elements, or of 32 with Q8_0 and Q4_0. With these block types, a head of a page has the levels of
/// all positions, followed by their scales.
#[derive(Debug)]
pub struct KvPages<D: Device> {
    spec: KvSpec,
    k: Buffer<D>,
    v: Option<Buffer<D>>, // none where values are keys
}

impl<D: Device> KvPages<D> {
    /// Allocates pages with undefined content. Messages name them `what`.
    ///
    /// # Errors
    /// [`Error::Pages`] for a shape that no kernel takes; [`Error::OutOfMemory`].
    pub fn new(device: &Arc<D>, what: &str, spec: KvSpec) -> Result<Self, Error> {
        spec.check(what)?;
        let plane = |name: &str| {
            Buffer::new(device, &format!("{what} ({name})"), spec.n_bytes() / spec.planes())
        };
        let k = plane("keys")?;
        let v = if spec.values_are_keys { None } else { Some(plane("values")?) };
        Ok(Self { spec, k, v })
    }

    /// Shape of the pages.
    pub fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// Bytes on the device, of keys and values together.
    pub fn n_bytes(&self) -> usize {
        self.buffers().map(Buffer::n_bytes).sum()
    }

    /// Queues a copy of the keys and values of page `from` to page `to`.
    ///
    /// # Errors
    /// Any error of the driver.
    ///
    /// # Panics
    /// If a page does not exist, or both are the same.
    pub fn copy_page(&self, stream: &D::Stream, from: u32, to: u32) -> Result<(), Error> {
        assert_ne!(from, to, "a page is copied to itself");
        let [from, to] = [from, to].map(|page| self.offset(page) as u64);
        for buffer in self.buffers() {
            let at = buffer.address();
            // SAFETY: both pages exist, as `offset` asserts, and do not overlap, because their numbers differ.
            unsafe { buffer.device().copy(stream, at + to, at + from, self.spec.page_bytes()) }?;
        }
        Ok(())
    }

    /// Waits for the stream and appends the keys and then the values of a page to `out`, in the format of the device,
    /// [`KvSpec::page_bytes`] each.
    ///
    /// # Errors
    /// Any error of the driver.
    ///
    /// # Panics
    /// If the page does not exist.
    pub fn read_page(&self, stream: &D::Stream, page: u32, out: &mut Vec<u8>) -> Result<(), Error> {
        for buffer in self.buffers() {
            let at = out.len();
            out.resize(at + self.spec.page_bytes(), 0);
            buffer.read(stream, self.offset(page), &mut out[at..])?;
        }
        Ok(())
    }

    /// Queues a copy of the output of [`Self::read_page`] to a page.
    ///
    /// # Errors
    /// Any error of the driver.
    ///
    /// # Panics
    /// If the page does not exist, or `bytes` has another length.
    pub fn write_page(&self, stream: &D::Stream, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let n_bytes = self.spec.page_bytes();
        let planes = self.spec.planes();
        assert_eq!(bytes.len(), planes * n_bytes, "bytes of the keys and values of a page");
        let mut planes = self.buffers().zip(bytes.chunks_exact(n_bytes));
        planes.try_for_each(|(buffer, bytes)| buffer.write(stream, self.offset(page), bytes))
    }

    /// The stored tensors: keys, and values if they are separate.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Buffer<D>> {
        std::iter::once(&self.k).chain(&self.v)
    }

    /// Byte offset of a page.
    fn offset(&self, page: u32) -> usize {
        assert!((page as usize) < self.spec.n_pages, "page {page} of {}", self.spec.n_pages);
        page as usize * self.spec.page_bytes()
    }

    /// The memory of the keys. Values are on the same device.
    pub(crate) fn buffer(&self) -> &Buffer<D> {
        &self.k
    }

    /// Both addresses and the shape as kernel arguments.
    pub(crate) fn arguments(&self) -> [Argument; 6] {
        let KvSpec { n_kv_heads, head_dim, page_len, n_pages, .. } = self.spec;
        let page_shift = page_len.ilog2() as usize;
        let [n_pages, n_kv_heads, page_shift, head_dim] =
            [n_pages, n_kv_heads, page_shift, head_dim].map(|n| Argument::I32(n as i32));
        let v = self.v.as_ref().unwrap_or(&self.k);
        let [k, v] = [&self.k, v].map(|buffer| Argument::Address(buffer.address()));
        [k, v, n_pages, n_kv_heads, page_shift, head_dim]
    }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::bench;

    const SPEC: KvSpec = KvSpec {
        ty: BlockType::F16,
        n_kv_heads: 2,
        head_dim: 64,
        page_len: 16,
        n_pages: 3,
        values_are_keys: false,
    };

    #[cfg_attr(test, test)]
    fn shapes_that_no_kernel_takes_are_named() {
        let (device, _) = bench();
        assert_eq!(KvPages::new(&device, "kv", SPEC).unwrap().n_bytes(), 2 * 3 * 2 * 16 * 64 * 2);
        assert_eq!(SPEC.n_bytes(), 2 * 3 * 2 * 16 * 64 * 2);
        // Rows of 12 elements are padded to 16.
        assert_eq!(KvSpec { head_dim: 12, ..SPEC }.page_bytes(), 2 * 16 * 16 * 2);
        // 40 elements occupy 40 bytes, and two blocks.
        for (ty, n_bytes) in [(BlockType::F8, 40), (BlockType::Q8_0, 68), (BlockType::Q4_0, 36)] {
            assert_eq!(KvSpec { head_dim: 40, ty, ..SPEC }.page_bytes(), 2 * 16 * n_bytes);
        }
        let cases = [
            (KvSpec { ty: BlockType::Q4_1, ..SPEC }, "kv: elements of type Q4_1"),
            (KvSpec { head_dim: 0, ..SPEC }, "kv: heads of 0 elements"),
            (KvSpec { head_dim: 584, ..SPEC }, "kv: heads of 584 elements"),
            (KvSpec { page_len: 8, ..SPEC }, "kv: pages of 8 positions"),
            (KvSpec { page_len: 48, ..SPEC }, "kv: pages of 48 positions"),
            (KvSpec { n_pages: 0, ..SPEC }, "kv: 0 pages"),
            (KvSpec { n_pages: usize::MAX, ..SPEC }, "kv: 18446744073709551615 pages"),
        ];
        for (spec, expected) in cases {
            let message = spec.check("kv").unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
            let refused = KvPages::new(&device, "kv", spec).unwrap_err().to_string();
            assert_eq!(refused, message);
        }
    }

    #[cfg_attr(test, test)]
    fn pages_are_copied_read_and_written() {
        for values_are_keys in [false, true] {
            copy_read_and_write(KvSpec { values_are_keys, ..SPEC });
        }
    }

    fn copy_read_and_write(spec: KvSpec) {
        let (device, stream) = bench();
        let pages = KvPages::new(&device, "kv", spec).unwrap();
        let n_bytes = spec.planes() * spec.page_bytes();
        assert_eq!(pages.n_bytes(), 3 * n_bytes);
        let of = |seed: usize| -> Vec<u8> { (0..n_bytes).map(|i| (i * 7 + seed) as u8).collect() };
        for page in 0..3 {
            pages.write_page(&stream, page, &of(page as usize)).unwrap();
        }
        pages.copy_page(&stream, 2, 0).unwrap();
        let mut found = vec![1];
        for page in 0..3 {
            pages.read_page(&stream, page, &mut found).unwrap();
        }
        assert_eq!(found, [vec![1], of(2), of(1), of(2)].concat());
    }

    crate::testing::tests![
        shapes_that_no_kernel_takes_are_named,
        pages_are_copied_read_and_written,
    ];
}
