//! Layer groups, and the layout of keys and values in a page.
//!
//! Layers with the same shape and attention window form a group. A page holds a fixed number of
//! positions for all layers of its group, so a sequence needs one block table per group, and a group
//! with a sliding window can release pages independently of the others.

use crate::Error;
use realizar_quant::BlockType;
use std::fmt;

/// Positions in a page.
pub const PAGE_LEN: usize = 32;

/// Alignment of pages in bytes: a cache line.
pub const PAGE_ALIGN: usize = 64;

/// Layers with the same key-value shape and attention window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Number of layers; 0 on a device that runs none of the group's layers.
    pub n_layers: usize,
    /// Key-value heads per layer.
    pub n_kv_heads: usize,
    /// Elements per key and per value of a head.
    pub head_dim: usize,
    /// Number of positions that a query attends to, its own included; `None` for all positions up to
    /// its own.
    pub window: Option<usize>,
    /// Whether the window does not slide: positions are cut into chunks of `window`, and a query
    /// attends to the positions of its chunk up to its own. The cache keeps the same pages either way,
    /// because no query sees more than `window` positions back.
    pub chunked: bool,
    /// Whether keys serve as values and are stored once, as in latent attention, whose values are
    /// columns of the single key.
    pub values_are_keys: bool,
}

impl GroupSpec {
    /// Vectors stored per position and head: 2 for key and value, 1 if values are keys.
    pub fn planes(&self) -> usize {
        if self.values_are_keys { 1 } else { 2 }
    }
}

/// The layout of keys and values in the pages of a group.
///
/// A page is `[n_layers][planes][n_kv_heads][PAGE_LEN][head_dim]` elements of `ty`, padded to
/// [`PAGE_ALIGN`] bytes. `planes` is 2, keys before values, or 1 if values are keys
/// ([`GroupSpec::planes`]). The `head_dim` elements of a quantized type are consecutive blocks, as in
/// a row of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    ty: BlockType,
    spec: GroupSpec,
}

impl fmt::Display for KvLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GroupSpec { n_layers, n_kv_heads, head_dim, window, chunked, values_are_keys } =
            &self.spec;
        let ty = self.ty;
        write!(f, "{n_layers} layers of {n_kv_heads} heads of {head_dim} {ty}")?;
        if *values_are_keys {
            write!(f, ", whose values are their keys,")?;
        }
        let of = if *chunked { "windows side by side" } else { "a window" };
        window.map_or(Ok(()), |window| write!(f, " in {of} of {window}"))?;
        write!(f, " by pages of {PAGE_LEN}")
    }
}

impl KvLayout {
    /// The layout of a group whose keys and values are stored as `ty`.
    ///
    /// # Errors
    /// [`Error::Layout`] if the cache does not support `ty`, `head_dim` is not a multiple of its block
    /// length, or the size of a page is 0 or overflows.
    pub fn new(ty: BlockType, spec: GroupSpec) -> Result<Self, Error> {
        use BlockType::{BF16, F8, F16, F32, Q4_0, Q8_0};
        if !matches!(ty, F32 | F16 | BF16 | F8 | Q8_0 | Q4_0) {
            let reason = "the cache stores F32, F16, BF16, F8, Q8_0 or Q4_0".to_owned();
            return Err(Error::Layout { ty, reason });
        }
        let (head_dim, block_len) = (spec.head_dim, ty.block_len());
        if !head_dim.is_multiple_of(block_len) {
            let reason =
                format!("heads of {head_dim} elements are not whole blocks of {block_len}");
            return Err(Error::Layout { ty, reason });
        }
        let n_bytes =
            [spec.planes(), spec.n_kv_heads, PAGE_LEN, head_dim / block_len, ty.block_bytes()]
                .iter()
                .try_fold(spec.n_layers.max(1), |n, &f| n.checked_mul(f));
        match n_bytes {
            Some(n) if n > 0 && n < isize::MAX as usize - PAGE_ALIGN => Ok(Self { ty, spec }),
            _ => Err(Error::Layout { ty, reason: format!("{spec:?} is empty or too large") }),
        }
    }

    /// The type of the stored elements.
    pub fn ty(&self) -> BlockType {
        self.ty
    }

    /// The group's shape.
    pub fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    /// Bytes of one layer's keys, or of its values, in a page.
    fn plane_bytes(&self) -> usize {
        let head_bytes = self.spec.head_dim / self.ty.block_len() * self.ty.block_bytes();
        self.spec.n_kv_heads * PAGE_LEN * head_bytes
    }

    /// Byte offset in a page of the keys of the group's layer `layer`.
    pub fn k_offset(&self, layer: usize) -> usize {
        self.spec.planes() * layer * self.plane_bytes()
    }

    /// Byte offset in a page of the values of the group's layer `layer`: that of the keys if values
    /// are keys.
    pub fn v_offset(&self, layer: usize) -> usize {
        self.k_offset(layer) + (self.spec.planes() - 1) * self.plane_bytes()
    }

    /// Bytes per page, padding included.
    pub fn page_bytes(&self) -> usize {
        (self.spec.planes() * self.spec.n_layers * self.plane_bytes()).next_multiple_of(PAGE_ALIGN)
    }

    /// Maximum number of pages that one sequence of up to `max_seq_len` positions holds, if each step
    /// adds at most `max_step` positions.
    pub fn pages_for(&self, max_seq_len: usize, max_step: usize) -> usize {
        let whole = max_seq_len.div_ceil(PAGE_LEN);
        match self.spec.window {
            Some(window) => whole.min(window.saturating_add(max_step).div_ceil(PAGE_LEN) + 1),
            None => whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(ty: BlockType, n_layers: usize, window: Option<usize>) -> KvLayout {
        KvLayout::new(
            ty,
            GroupSpec {
                n_layers,
                n_kv_heads: 3,
                head_dim: 20,
                window,
                chunked: false,
                values_are_keys: false,
            },
        )
        .unwrap()
    }

    #[test]
    fn planes_follow_one_another_and_pages_are_aligned() {
        let l = layout(BlockType::F16, 5, None);
        let plane = 3 * PAGE_LEN * 20 * 2;
        assert_eq!(l.k_offset(0), 0);
        assert_eq!(l.v_offset(0), plane);
        assert_eq!(l.k_offset(4), 8 * plane);
        assert_eq!(l.page_bytes(), (10 * plane).next_multiple_of(64));
        assert_eq!(l.page_bytes() % PAGE_ALIGN, 0);
    }

    #[test]
    fn values_that_are_keys_are_stored_once() {
        let apart = layout(BlockType::F16, 5, None);
        let spec = GroupSpec { values_are_keys: true, ..apart.spec().clone() };
        let once = KvLayout::new(BlockType::F16, spec).unwrap();
        let plane = 3 * PAGE_LEN * 20 * 2;
        assert_eq!((once.k_offset(4), once.v_offset(4)), (4 * plane, 4 * plane));
        assert_eq!(once.page_bytes(), (5 * plane).next_multiple_of(64));
        let text = "5 layers of 3 heads of 20 F16, whose values are their keys, by pages of 32";
        assert_eq!(once.to_string(), text);
    }

    #[test]
    fn quantized_heads_are_whole_blocks() {
        let spec = GroupSpec {
            n_layers: 2,
            n_kv_heads: 3,
            head_dim: 64,
            window: None,
            chunked: false,
            values_are_keys: false,
        };
        let types = [(BlockType::F8, 64), (BlockType::Q8_0, 68), (BlockType::Q4_0, 36)];
        for (ty, head_bytes) in types {
            let l = KvLayout::new(ty, spec.clone()).unwrap();
            assert_eq!(l.v_offset(0), 3 * PAGE_LEN * head_bytes);
            assert_eq!(l.page_bytes(), (4 * 3 * PAGE_LEN * head_bytes).next_multiple_of(64));
        }
    }

    #[test]
    fn a_group_without_layers_takes_no_memory() {
        let spec = GroupSpec {
            n_layers: 0,
            n_kv_heads: 3,
            head_dim: 20,
            window: None,
            chunked: false,
            values_are_keys: false,
        };
        assert_eq!(KvLayout::new(BlockType::F16, spec.clone()).unwrap().page_bytes(), 0);
        assert!(KvLayout::new(BlockType::F16, GroupSpec { n_kv_heads: 0, ..spec }).is_err());
    }

    #[test]
    fn a_window_bounds_the_pages() {
        assert_eq!(layout(BlockType::F32, 1, None).pages_for(100, 16), 4);
        assert_eq!(layout(BlockType::F32, 1, Some(32)).pages_for(10_000, 16), 3);
        assert_eq!(layout(BlockType::F32, 1, Some(4096)).pages_for(64, 16), 2);
    }

    #[test]
    fn refuses_types_and_sizes_it_cannot_hold() {
        let spec = GroupSpec {
            n_layers: 1,
            n_kv_heads: 1,
            head_dim: 64,
            window: None,
            chunked: false,
            values_are_keys: false,
        };
        let err = KvLayout::new(BlockType::Q6_K, spec.clone()).unwrap_err().to_string();
        assert_eq!(
            err,
            "key-value cache of type Q6_K: the cache stores F32, F16, BF16, F8, Q8_0 or Q4_0"
        );
        let odd = GroupSpec { head_dim: 80, ..spec.clone() };
        let err = KvLayout::new(BlockType::Q8_0, odd).unwrap_err().to_string();
        let reason = "heads of 80 elements are not whole blocks of 32";
        assert_eq!(err, format!("key-value cache of type Q8_0: {reason}"));
        let huge = GroupSpec { head_dim: usize::MAX / 2, ..spec };
        assert!(KvLayout::new(BlockType::F32, huge).is_err());
    }
}
