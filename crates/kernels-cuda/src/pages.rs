//! Keys and values of a layer on a device, in pages.
//!
//! Which page belongs to which sequence is the host's to say, in the tables of each step.

use std::sync::Arc;

use realizar_quant::BlockType;

use crate::device::{Argument, Device};
use crate::{Buffer, Error};

/// The types that elements of keys and values can have, in the order of the kernels' tables.
pub(crate) const KV_TYPES: [BlockType; 3] = [BlockType::F32, BlockType::F16, BlockType::BF16];

/// The widest heads that attention takes.
const MAX_HEAD_DIM: usize = 256;

/// The shape of a layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSpec {
    /// Type of an element: F32, F16 or BF16.
    pub ty: BlockType,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Elements of a head: a multiple of 8, at most 256.
    pub head_dim: usize,
    /// Positions of a page.
    pub page_len: usize,
    /// Pages.
    pub n_pages: usize,
}

/// The keys and values of a layer, `[n_pages, n_kv_heads, page_len, head_dim]` each.
#[derive(Debug)]
pub struct KvPages<D: Device> {
    spec: KvSpec,
    k: Buffer<D>,
    v: Buffer<D>,
}

impl<D: Device> KvPages<D> {
    /// Pages whose content is undefined; `what` names them in messages.
    ///
    /// # Errors
    /// [`Error::Pages`] for a shape that no kernel takes; [`Error::OutOfMemory`].
    pub fn new(device: &Arc<D>, what: &str, spec: KvSpec) -> Result<Self, Error> {
        let wrong = |message: String| Err(Error::Pages { what: what.to_owned(), message });
        let KvSpec { ty, n_kv_heads, head_dim, page_len, n_pages } = spec;
        if !KV_TYPES.contains(&ty) {
            return wrong(format!("elements of type {ty}: F32, F16 and BF16 are supported"));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(8) || head_dim > MAX_HEAD_DIM {
            return wrong(format!(
                "heads of {head_dim} elements: multiples of 8 up to {MAX_HEAD_DIM} are supported"
            ));
        }
        let positions = n_pages.checked_mul(page_len);
        let row = n_kv_heads.checked_mul(head_dim * ty.block_bytes());
        // Slots are numbered in 32 bits, and the last number stands for none.
        let fits = positions.is_some_and(|n| n > 0 && n < u32::MAX as usize)
            && row.is_some_and(|n| n > 0 && n <= i32::MAX as usize)
            && n_pages <= i32::MAX as usize
            && page_len <= i32::MAX as usize;
        let n_bytes = positions.zip(row).and_then(|(n, row)| n.checked_mul(row));
        let (true, Some(n_bytes)) = (fits, n_bytes) else {
            return wrong(format!(
                "{n_pages} pages of {page_len} positions with {n_kv_heads} heads of {head_dim}"
            ));
        };
        let k = Buffer::new(device, &format!("{what} (keys)"), n_bytes)?;
        let v = Buffer::new(device, &format!("{what} (values)"), n_bytes)?;
        Ok(Self { spec, k, v })
    }

    /// Their shape.
    pub fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// Bytes on the device, of keys and values together.
    pub fn n_bytes(&self) -> usize {
        self.k.n_bytes() + self.v.n_bytes()
    }

    /// The memory of the keys, which is on the device of the values.
    pub(crate) fn buffer(&self) -> &Buffer<D> {
        &self.k
    }

    /// Both addresses and the shape, as kernels take them.
    pub(crate) fn arguments(&self) -> [Argument; 6] {
        let KvSpec { n_kv_heads, head_dim, page_len, n_pages, .. } = self.spec;
        let [n_pages, n_kv_heads, page_len, head_dim] =
            [n_pages, n_kv_heads, page_len, head_dim].map(|n| Argument::I32(n as i32));
        let [k, v] = [&self.k, &self.v].map(|buffer| Argument::Address(buffer.address()));
        [k, v, n_pages, n_kv_heads, page_len, head_dim]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::bench;

    #[test]
    fn shapes_that_no_kernel_takes_are_named() {
        let (device, _) = bench();
        let spec =
            KvSpec { ty: BlockType::F16, n_kv_heads: 2, head_dim: 64, page_len: 16, n_pages: 3 };
        assert_eq!(KvPages::new(&device, "kv", spec).unwrap().n_bytes(), 2 * 3 * 2 * 16 * 64 * 2);
        let cases = [
            (KvSpec { ty: BlockType::Q4_0, ..spec }, "kv: elements of type Q4_0"),
            (KvSpec { head_dim: 20, ..spec }, "kv: heads of 20 elements"),
            (KvSpec { head_dim: 264, ..spec }, "kv: heads of 264 elements"),
            (KvSpec { page_len: 0, ..spec }, "kv: 3 pages of 0 positions"),
            (KvSpec { n_pages: usize::MAX, ..spec }, "kv: 18446744073709551615 pages"),
        ];
        for (spec, expected) in cases {
            let message = KvPages::new(&device, "kv", spec).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
