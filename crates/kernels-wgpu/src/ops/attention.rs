//! Attention over paged keys and values: decode rows one by one, with their contexts split, and prefill rows
//! in tiles.
//!
//! The host plans the work of a step (items and tiles) in the words of `batch`. Contexts are cut at absolute
//! positions, so a row's result depends on its position and sequence alone: not on the step's other rows, the
//! chunks of the prompt, or the pages of the sequence.

#[cfg(test)]
mod tests;

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::storage::kv::{self, HEAD_DIMS, KvLayer, KvSpec, rounded_head_dim};
use crate::{Buffer, Error, Gpu};
use realizar_quant::BlockType;

/// Positions per split: item `(row, split)` covers the visible positions among the `SPLIT` from
/// `split * SPLIT` on.
pub const SPLIT: u32 = 256;

/// Maximum number of rows of a prefill tile.
pub const TILE_ROWS: u32 = 32;

/// Parameters of attention, `softmax(cap(scale * q k)) v` over the positions that a row sees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Number of query heads, a multiple of `n_kv_heads`.
    pub n_heads: u32,
    /// Number of key-value heads, each shared by `n_heads / n_kv_heads` consecutive query heads.
    pub n_kv_heads: u32,
    /// Elements per head, at most 576.
    pub head_dim: u32,
    /// Factor of the scores.
    pub scale: f32,
    /// Soft cap of the scores: `cap * tanh(score / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// Number of positions that a row sees, its own included, at least 1; `None` for all up to its own.
    pub window: Option<u32>,
    /// Whether the window does not slide: positions are cut into chunks of `window`, and a position sees those of
    /// its chunk up to itself.
    pub chunked: bool,
    /// Index in `vectors` of the attention sinks: a logit per query head that counts in the softmax as the score
    /// of a key without a value (gpt-oss).
    pub sinks: Option<u32>,
}

/// Indices in `batch` of the words of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    /// `batch[positions_at + row]` is the position of a row.
    pub positions_at: u32,
    /// `batch[seq_of_row_at + row]` is the sequence of a row.
    pub seq_of_row_at: u32,
    /// `batch[bases_at + seq]` is the base of a sequence: page `batch[base + p]` has its `page_len` positions from
    /// `p * page_len` on, where `base + p` wraps. Only pages with a visible position are looked up.
    pub bases_at: u32,
    /// `batch[reaches_at + row]` is the end of the positions that a prefill row sees, ascending within a sequence.
    /// `None` if rows see up to their own positions, as decode rows always do.
    pub reaches_at: Option<u32>,
}

/// Attention of a layer, with its operands.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Values and words of the step; `rows.at` is the range of decode rows.
    pub rows: Rows<'a>,
    /// The parameters.
    pub spec: AttentionSpec,
    /// The shape of the keys and values.
    pub kv: KvSpec,
    /// The keys and values.
    pub layer: &'a KvLayer,
    /// The f32 buffer with the sinks.
    pub vectors: &'a Buffer,
    /// Queries, `n_heads * head_dim` columns.
    pub q: View,
    /// Results, with the shape of `q`; may be `q`.
    pub out: View,
    /// Indices of the step's words.
    pub tables: Tables,
}

/// Indices in `batch` of the decode work: the splits, and the waves that they run in if there are more than
/// the [scratch](AttentionScratch) has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Splits {
    /// `batch[items_at + 2 * i]` is the row of item `i`, and the next word its split. The items of a row are
    /// consecutive, from the split of the first position that the row sees to the split of its own.
    pub items_at: u32,
    /// `batch[first_item_at + row]` is the first item of a row.
    pub first_item_at: u32,
    /// From `batch[waves_at]` on: the first item and the first row of the current wave, its index, the number of
    /// waves, and the first row of each wave. During a step only [`attention_next_wave`] changes these.
    pub waves_at: u32,
}

impl Splits {
    /// Words at `waves_at` before the list of first rows.
    pub const WAVE_WORDS: u32 = 4;
}

/// Results of the splits of a wave of decode rows, before they are merged. The layers of a model can share it.
#[derive(Debug, Clone)]
pub struct AttentionScratch {
    buffer: Buffer, // [max_items, n_heads, 2 + head_dim]: maximum, sum, values
    max_items: u32,
}

impl AttentionScratch {
    /// Bytes for `max_items` items of `n_heads` heads of `head_dim` elements.
    pub fn bytes(max_items: u32, n_heads: u32, head_dim: u32) -> u64 {
        let head_bytes = (u64::from(head_dim) + 2) * 4;
        (u64::from(max_items) * u64::from(n_heads)).saturating_mul(head_bytes)
    }

    /// Allocates for `max_items` items of `n_heads` heads of `head_dim` elements, the maxima over all layers.
    ///
    /// # Errors
    /// If it is larger than the device allows, or memory runs out.
    pub fn new(gpu: &Gpu, max_items: u32, n_heads: u32, head_dim: u32) -> Result<Self, Error> {
        let what = "the splits of attention";
        let available = u64::from(gpu.caps().max_workgroups);
        if u64::from(max_items) > available {
            return Err(Error::Limit {
                what: what.to_owned(),
                needed: u64::from(max_items),
                limit: "maxComputeWorkgroupsPerDimension",
                available,
            });
        }
        let n_bytes = Self::bytes(max_items, n_heads, head_dim);
        Ok(Self { buffer: gpu.buffer(what, n_bytes)?, max_items })
    }

    /// Number of items that there is room for.
    pub fn max_items(&self) -> u32 {
        self.max_items
    }
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    head_dim: u32,
    row_words: u32,
    n_heads: u32,
    n_kv_heads: u32,
    page_shift: u32,
    window: u32,
    rows_at: u32,
    positions_at: u32,
    seq_of_row_at: u32,
    bases_at: u32,
    work_at: u32,
    first_item_at: u32,
    waves_at: u32,
    has_sinks: u32,
    sinks: u32,
    scale: f32,
    softcap: f32,
    reaches_at: u32,
    q: [u32; 2], // start, stride
    out: [u32; 2],
    chunked: u32,
    _end: u32,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct NextWave {
    waves_at: u32,
    first_item_at: u32,
    _pad: [u32; 2],
}

impl Attention<'_> {
    fn params(&self, work_at: u32, splits: Option<Splits>) -> Result<Params, Error> {
        let (spec, kv) = (&self.spec, &self.kv);
        let width = spec.n_heads * spec.head_dim;
        assert!(self.q.width == width && self.out.width == width, "widths {self:?}");
        assert!(
            (spec.n_kv_heads, spec.head_dim) == (kv.n_kv_heads, kv.head_dim)
                && spec.n_kv_heads > 0
                && spec.n_heads.is_multiple_of(spec.n_kv_heads)
                && spec.window != Some(0),
            "shapes {spec:?} {kv:?}"
        );
        Ok(Params {
            head_dim: spec.head_dim,
            row_words: kv.row_words(),
            n_heads: spec.n_heads,
            n_kv_heads: spec.n_kv_heads,
            page_shift: kv.page_shift()?,
            window: spec.window.unwrap_or(u32::MAX),
            rows_at: self.rows.at.0,
            positions_at: self.tables.positions_at,
            seq_of_row_at: self.tables.seq_of_row_at,
            bases_at: self.tables.bases_at,
            work_at,
            first_item_at: splits.map_or(0, |splits| splits.first_item_at),
            waves_at: splits.map_or(0, |splits| splits.waves_at),
            has_sinks: u32::from(spec.sinks.is_some()),
            sinks: spec.sinks.unwrap_or(0),
            scale: spec.scale,
            softcap: spec.softcap.unwrap_or(0.0),
            reaches_at: self.tables.reaches_at.unwrap_or(u32::MAX),
            q: [self.q.start, self.q.stride],
            out: [self.out.start, self.out.stride],
            chunked: u32::from(spec.chunked && spec.window.is_some()),
            _end: 0,
        })
    }
}

const COMMON: &str = include_str!("../../shaders/attention/common.wgsl");

/// The shader part with the constants of a head size of [`HEAD_DIMS`].
fn head_dim_part(head_dim: u32) -> &'static str {
    match head_dim {
        64 => "const WORDS: u32 = 16u;\nconst CHUNKS: u32 = 2u;\n",
        128 => "const WORDS: u32 = 32u;\nconst CHUNKS: u32 = 4u;\n",
        256 => "const WORDS: u32 = 64u;\nconst CHUNKS: u32 = 8u;\n",
        512 => "const WORDS: u32 = 128u;\nconst CHUNKS: u32 = 16u;\n",
        _ => "const WORDS: u32 = 144u;\nconst CHUNKS: u32 = 18u;\n",
    }
}

/// Numbers of query heads per workgroup of the decode kernel.
const HEADS: [u32; 4] = [1, 2, 4, 8];

fn heads_part(heads: u32) -> &'static str {
    match heads {
        1 => "const HEADS: u32 = 1u;\n",
        2 => "const HEADS: u32 = 2u;\n",
        4 => "const HEADS: u32 = 4u;\n",
        _ => "const HEADS: u32 = 8u;\n",
    }
}

/// Query heads per workgroup, for `group` query heads per KV head. With large heads, four of them fit 16 KiB
/// of workgroup memory.
fn heads_of_workgroup(group: u32, head_dim: u32) -> u32 {
    let most = if head_dim > 256 { 4 } else { 8 };
    HEADS.into_iter().find(|heads| group <= *heads).unwrap_or(most).min(most)
}

fn prefill_shader(ty: BlockType, kv_parts: &[&'static str], head_dim: u32) -> Shader {
    Shader {
        name: format!("attention_prefill {ty:?} {head_dim}").into(),
        parts: [
            &[head_dim_part(head_dim)],
            kv_parts,
            &[COMMON, include_str!("../../shaders/attention/prefill.wgsl")],
        ]
        .concat(),
        bindings: &[Access::Read, Access::ReadWrite, Access::Read, Access::Read, Access::Read],
        constants: Vec::new(),
    }
}

fn decode_shader(ty: BlockType, kv_parts: &[&'static str], head_dim: u32, heads: u32) -> Shader {
    Shader {
        name: format!("attention_decode {ty:?} {head_dim} x{heads}").into(),
        parts: [
            &[head_dim_part(head_dim), heads_part(heads)],
            kv_parts,
            &[COMMON, include_str!("../../shaders/attention/decode.wgsl")],
        ]
        .concat(),
        bindings: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::ReadWrite],
        constants: Vec::new(),
    }
}

fn combine_shader() -> Shader {
    Shader {
        name: "attention_combine".into(),
        parts: vec![COMMON, include_str!("../../shaders/attention/combine.wgsl")],
        bindings: &[Access::Read, Access::ReadWrite, Access::Read, Access::Read],
        constants: Vec::new(),
    }
}

fn next_wave_shader() -> Shader {
    Shader {
        name: "attention_next_wave".into(),
        parts: vec![include_str!("../../shaders/attention/next_wave.wgsl")],
        bindings: &[Access::ReadWrite],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    let mut all = vec![combine_shader(), next_wave_shader()];
    for ty in kv::TYPES {
        let Some(parts) = kv::parts(ty) else { continue };
        for head_dim in HEAD_DIMS {
            all.push(prefill_shader(ty, parts, head_dim));
            let heads = HEADS.into_iter().filter(|n| heads_of_workgroup(*n, head_dim) == *n);
            all.extend(heads.map(|n| decode_shader(ty, parts, head_dim, n)));
        }
    }
    all
}

/// Attention of decode rows: a kernel that runs with the number of a wave's items, and one after it that runs
/// with the number of the wave's rows. A step with one wave runs each once; with more waves,
/// [`attention_next_wave`] runs after each pair. A row's result does not depend on its wave.
///
/// # Errors
/// If the kernels do not support the type, the page length or the head size, or the device refuses them.
pub fn attention_decode(
    gpu: &Gpu,
    attention: &Attention<'_>,
    scratch: &AttentionScratch,
    splits: Splits,
) -> Result<[Kernel; 2], Error> {
    let params = attention.params(splits.items_at, Some(splits))?;
    let Attention { rows, spec, kv, layer, vectors, .. } = attention;
    let needed = AttentionScratch::bytes(scratch.max_items, spec.n_heads, spec.head_dim);
    assert!(
        needed <= scratch.buffer.n_bytes(),
        "a scratch of {} items of {spec:?}",
        scratch.max_items
    );
    let head_dim = rounded_head_dim(spec.head_dim)?;
    let group = spec.n_heads / spec.n_kv_heads;
    let heads = heads_of_workgroup(group, head_dim);
    let partial = gpu.kernel(
        &decode_shader(kv.ty, kv.parts()?, head_dim, heads),
        &params,
        &[rows.batch, rows.values, &layer.k, &layer.v, &scratch.buffer],
        Grid { x: spec.n_kv_heads, rows: 1, z: group.div_ceil(heads) },
    )?;
    let combine = gpu.kernel(
        &combine_shader(),
        &params,
        &[rows.batch, rows.values, &scratch.buffer, vectors],
        Grid { x: spec.n_heads, rows: 1, z: 1 },
    )?;
    Ok([partial, combine])
}

/// Advances to the next wave of decode rows, and from the last one to the first: a kernel that runs with one
/// row.
///
/// # Errors
/// If the device refuses it.
pub fn attention_next_wave(gpu: &Gpu, batch: &Buffer, splits: Splits) -> Result<Kernel, Error> {
    let Splits { first_item_at, waves_at, .. } = splits;
    let params = NextWave { waves_at, first_item_at, _pad: [0; 2] };
    gpu.kernel(&next_wave_shader(), &params, &[batch], Grid { x: 1, rows: 1, z: 1 })
}

/// Attention of prefill rows: a kernel that runs with the number of tiles.
///
/// `batch[tiles_at + 2 * t]` is the first row of tile `t`, and the next word the number of its rows, 1 to
/// [`TILE_ROWS`]. They have consecutive positions of one sequence. The keys and values of all positions that
/// they see must be stored already.
///
/// # Errors
/// If the kernels do not support the type, the page length or the head size, or the device refuses them.
pub fn attention_prefill(
    gpu: &Gpu,
    attention: &Attention<'_>,
    tiles_at: u32,
) -> Result<Kernel, Error> {
    let params = attention.params(tiles_at, None)?;
    let Attention { rows, spec, kv, layer, vectors, .. } = attention;
    let head_dim = rounded_head_dim(spec.head_dim)?;
    gpu.kernel(
        &prefill_shader(kv.ty, kv.parts()?, head_dim),
        &params,
        &[rows.batch, rows.values, &layer.k, &layer.v, vectors],
        Grid { x: spec.n_heads, rows: 1, z: 1 },
    )
}
