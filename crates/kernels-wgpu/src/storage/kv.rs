//! The paged key-value store of a layer on the device.
//!
//! Keys and values have a buffer each, `[page][kv_head][page_len][head_dim]`. `head_dim` is padded with zeros
//! to a multiple of four, or of 32 for block types; with these, the scales of a position follow its levels.
//! The host assigns pages to sequences, in the words of each step.

use crate::Error;
use crate::device::{Buffer, Gpu};
use crate::dispatch::Recorder;
use realizar_quant::BlockType;

/// The supported element types.
pub(crate) const TYPES: [BlockType; 6] = [
    BlockType::F32,
    BlockType::F16,
    BlockType::BF16,
    BlockType::F8,
    BlockType::Q8_0,
    BlockType::Q4_0,
];

/// Head sizes with kernels; other sizes use the next larger one.
pub(crate) const HEAD_DIMS: [u32; 5] = [64, 128, 256, 512, 576];

pub(crate) fn rounded_head_dim(head_dim: u32) -> Result<u32, Error> {
    HEAD_DIMS.into_iter().find(|most| head_dim <= *most).ok_or_else(|| {
        Error::Unsupported(format!("attention with heads of {head_dim} columns (576 at most)"))
    })
}

/// The shape of a layer's key-value store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSpec {
    /// Type of an element: F32, F16, BF16, F8, or blocks of Q8_0 or Q4_0 along a head.
    pub ty: BlockType,
    /// Number of key-value heads.
    pub n_kv_heads: u32,
    /// Elements per head.
    pub head_dim: u32,
    /// Positions per page, a power of two of at least 4.
    pub page_len: u32,
    /// Number of pages.
    pub n_pages: u32,
    /// Whether keys serve as values and are stored once.
    pub values_are_keys: bool,
}

impl KvSpec {
    /// The shader parts that pack and unpack elements of the type.
    pub(crate) fn parts(&self) -> Result<&'static [&'static str], Error> {
        parts(self.ty)
            .ok_or_else(|| Error::Unsupported(format!("keys and values of type {:?}", self.ty)))
    }

    /// Words of four elements per position of a head.
    pub(crate) fn row_words(&self) -> u32 {
        let block_len = self.ty.block_len() as u32;
        self.head_dim.div_ceil(block_len.max(4)) * block_len.max(4) / 4
    }

    /// Bytes per position of a head. Two scales share a word.
    fn row_bytes(&self) -> u32 {
        let words = self.row_words();
        match self.ty {
            BlockType::F32 => 16 * words,
            BlockType::F8 => 4 * words,
            BlockType::Q8_0 => 4 * words + 4 * (words / 8).div_ceil(2),
            BlockType::Q4_0 => 2 * words + 4 * (words / 8).div_ceil(2),
            _ => 8 * words,
        }
    }

    /// The base-2 logarithm of `page_len`.
    pub(crate) fn page_shift(&self) -> Result<u32, Error> {
        if self.page_len < 4 || !self.page_len.is_power_of_two() {
            let what = format!("pages of {} positions (powers of two from 4 on)", self.page_len);
            return Err(Error::Unsupported(what));
        }
        Ok(self.page_len.ilog2())
    }

    /// Bytes of a layer's keys, or of its values.
    pub fn n_bytes(&self) -> u64 {
        self.page_bytes().saturating_mul(u64::from(self.n_pages))
    }

    /// Number of buffers: 2 for keys and values, 1 if values are keys.
    pub fn planes(&self) -> usize {
        if self.values_are_keys { 1 } else { 2 }
    }

    /// Bytes of a layer's keys, or of its values, in a page.
    pub fn page_bytes(&self) -> u64 {
        [self.n_kv_heads, self.page_len, self.row_bytes()]
            .into_iter()
            .fold(1, |n: u64, factor| n.saturating_mul(u64::from(factor)))
    }
}

/// The keys and values of a layer.
#[derive(Debug, Clone)]
pub struct KvLayer {
    pub(crate) k: Buffer, // [n_pages, n_kv_heads, page_len, head_dim]
    pub(crate) v: Buffer, // as k, or k itself
}

impl KvLayer {
    /// Creates zeroed pages. Errors name them `what`.
    ///
    /// # Errors
    /// If a buffer is larger than the device allows, memory runs out, or the kernels do not support the type or
    /// the page length.
    pub fn new(gpu: &Gpu, what: &str, spec: &KvSpec) -> Result<Self, Error> {
        spec.parts()?;
        spec.page_shift()?;
        let k = gpu.buffer(&format!("{what} (keys)"), spec.n_bytes())?;
        let v = match spec.values_are_keys {
            true => k.clone(),
            false => gpu.buffer(&format!("{what} (values)"), spec.n_bytes())?,
        };
        Ok(Self { k, v })
    }

    /// Checks whether a device supports the keys and values of a layer and attention over them, without
    /// allocating.
    ///
    /// # Errors
    /// As [`Self::new`] except for memory, or if heads are wider than the attention kernels support.
    pub fn check(gpu: &Gpu, what: &str, spec: &KvSpec) -> Result<(), Error> {
        spec.parts()?;
        spec.page_shift()?;
        rounded_head_dim(spec.head_dim)?;
        gpu.check_binding(what, spec.n_bytes())
    }

    /// Records a copy of page `from` to page `to`, through the buffer `room` of [`KvSpec::page_bytes`], because
    /// a buffer cannot be copied to itself.
    pub fn copy_page(
        &self,
        recorder: &mut Recorder<'_>,
        spec: &KvSpec,
        from: u32,
        to: u32,
        room: &Buffer,
    ) {
        let n_bytes = spec.page_bytes();
        for buffer in self.buffers(spec) {
            recorder.copy((buffer, u64::from(from) * n_bytes), (room, 0), n_bytes);
            recorder.copy((room, 0), (buffer, u64::from(to) * n_bytes), n_bytes);
        }
    }

    /// Appends the keys of a page, and then its values unless values are keys, to `out`, through `room`, a
    /// readback buffer of [`KvSpec::page_bytes`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn read_page(
        &self,
        gpu: &Gpu,
        spec: &KvSpec,
        page: u32,
        room: &Buffer,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let n_bytes = spec.page_bytes();
        for buffer in self.buffers(spec) {
            let mut recorder = gpu.record();
            recorder.copy((buffer, u64::from(page) * n_bytes), (room, 0), n_bytes);
            recorder.submit()?;
            let at = out.len();
            out.resize(at + n_bytes as usize, 0);
            gpu.read(room, &mut out[at..])?;
        }
        Ok(())
    }

    /// Writes the bytes that [`Self::read_page`] read to a page.
    ///
    /// # Errors
    /// If the device fails.
    pub fn write_page(
        &self,
        gpu: &Gpu,
        spec: &KvSpec,
        page: u32,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let n_bytes = spec.page_bytes();
        for (buffer, bytes) in self.buffers(spec).zip(bytes.chunks_exact(n_bytes as usize)) {
            gpu.write(buffer, u64::from(page) * n_bytes, bytes)?;
        }
        Ok(())
    }

    /// The distinct buffers.
    fn buffers(&self, spec: &KvSpec) -> impl Iterator<Item = &Buffer> {
        [&self.k, &self.v].into_iter().take(spec.planes())
    }
}

/// Whether the type has blocks with scales.
pub(crate) fn is_in_blocks(ty: BlockType) -> bool {
    ty.block_len() > 1
}

pub(crate) fn parts(ty: BlockType) -> Option<&'static [&'static str]> {
    const FLOATS: &str = include_str!("../../shaders/kv/floats.wgsl");
    const HALF: &str = include_str!("../../shaders/kv/half.wgsl");
    match ty {
        BlockType::F32 => Some(&[include_str!("../../shaders/kv/f32.wgsl"), FLOATS]),
        BlockType::F16 => Some(&[HALF, include_str!("../../shaders/kv/f16.wgsl"), FLOATS]),
        BlockType::BF16 => Some(&[include_str!("../../shaders/kv/bf16.wgsl"), FLOATS]),
        BlockType::F8 => Some(&[include_str!("../../shaders/kv/f8.wgsl"), FLOATS]),
        BlockType::Q8_0 => Some(&[HALF, include_str!("../../shaders/kv/q8_0.wgsl")]),
        BlockType::Q4_0 => Some(&[HALF, include_str!("../../shaders/kv/q4_0.wgsl")]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_does_not_fit_is_refused() {
        let Some(gpu) = testing::gpu() else { return };
        let fits = KvSpec {
            ty: BlockType::F16,
            n_kv_heads: 2,
            head_dim: 64,
            page_len: 32,
            n_pages: 2,
            values_are_keys: false,
        };
        assert_eq!(fits.n_bytes(), 2 * 2 * 32 * 64 * 2);
        let layer = |spec: KvSpec| KvLayer::new(&gpu, "layer 3", &spec).map(|_| ());
        assert_eq!(layer(fits), Ok(()));
        // Two blocks, a block and a half of one, and four elements more than sixteen.
        use BlockType::{F8, Q4_0, Q8_0};
        for (ty, head_dim, row_bytes) in
            [(Q8_0, 64, 68), (Q4_0, 64, 36), (Q8_0, 32, 36), (Q8_0, 48, 68), (F8, 20, 20)]
        {
            assert_eq!(KvSpec { ty, head_dim, ..fits }.page_bytes(), 2 * 32 * row_bytes);
        }
        let once =
            KvLayer::new(&gpu, "a layer", &KvSpec { values_are_keys: true, ..fits }).unwrap();
        assert_eq!(once.buffers(&KvSpec { values_are_keys: true, ..fits }).count(), 1);
        let large = KvSpec { n_pages: u32::MAX, ..fits };
        assert!(matches!(layer(large), Err(Error::Limit { what, .. }) if what == "layer 3 (keys)"));
        for spec in [KvSpec { page_len: 24, ..fits }, KvSpec { ty: BlockType::Q4_1, ..fits }] {
            assert!(matches!(layer(spec), Err(Error::Unsupported(_))), "{spec:?}");
        }
    }
}
