//! Stores keys and values of new positions in pages, optionally after norms and rotary embeddings, which are also
//! applied to queries.

use super::rows::optional;
use crate::device::{Argument, Arguments, Device};
use crate::kernels::Kernels;
use crate::{Error, KvPages, KvSpec, List, Rows};
use realizar_types::RopeStyle;

/// Threads of a block.
const THREADS: u32 = 128;
/// Heads per block.
const HEADS: usize = 4;

/// Queues a copy of keys and values to their slots, rounded to the type of the pages. A slot is a page number times the
/// page length, plus the position in the page. Rows whose slot is `u32::MAX` are not stored. A page that does not exist
/// stops the device, which the next call that waits reports.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match.
pub fn kv_store<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    k: Rows<'_, D>,     // [n_rows, n_kv_heads * head_dim]
    v: Rows<'_, D>,     // [n_rows, n_kv_heads * head_dim]
    slots: List<'_, D>, // one for each row
    pages: &KvPages<D>,
) -> Result<(), Error> {
    let spec = pages.spec();
    check_stored(kernels, k, v, slots, spec);
    let heads = head_arguments(k, v, None, [None, None], slots);
    launch(kernels, stream, None, k.n_rows(), heads, pages)
}

/// RMS norm of each head: `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Debug)]
pub struct HeadNorm<'a, D: Device> {
    /// Weight, `[1, head_dim]`.
    pub weight: Rows<'a, D>,
    /// Added to the mean of the squares.
    pub eps: f32,
}

impl<D: Device> Clone for HeadNorm<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for HeadNorm<'_, D> {}

/// New keys and values as products leave them, with the norms and the rotary embedding to apply to them and to queries.
#[derive(Debug)]
pub struct NewHeads<'a, D: Device> {
    /// Keys, `[n_rows, n_kv_heads * head_dim]`.
    pub k: Rows<'a, D>,
    /// Values, with the shape of `k`.
    pub v: Rows<'a, D>,
    /// Norm of each query head, before rotation.
    pub q_norm: Option<HeadNorm<'a, D>>,
    /// Norm of each key head, before rotation.
    pub k_norm: Option<HeadNorm<'a, D>>,
    /// Cosines, then sines, of the angles by which the first columns of each row's queries and keys are rotated,
    /// `[n_rows, rotary_dim]`.
    pub table: Rows<'a, D>,
    /// The pairs of columns that are rotated.
    pub pairs: RopeStyle,
    /// Slots of keys and values, as for [`kv_store`].
    pub slots: List<'a, D>,
}

impl<D: Device> Clone for NewHeads<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for NewHeads<'_, D> {}

/// Number of kernel arguments that describe [`NewHeads`].
pub(crate) const HEAD_ARGUMENTS: usize = 13;

impl<D: Device> NewHeads<'_, D> {
    /// Arguments of kernels that store new heads.
    pub(crate) fn arguments(&self) -> [Argument; HEAD_ARGUMENTS] {
        let &Self { k, v, q_norm, k_norm, table, pairs, slots } = self;
        head_arguments(k, v, Some((table, pairs)), [q_norm, k_norm], slots)
    }

    /// Arguments of kernels that store no new heads.
    pub(crate) const NONE: [Argument; HEAD_ARGUMENTS] = {
        let (none, zero, eps) = (Argument::Address(0), Argument::I32(0), Argument::F32(0.0));
        [none, zero, none, zero, none, zero, zero, zero, none, eps, none, eps, none]
    };

    /// Asserts that shapes and devices match.
    pub(crate) fn check(&self, kernels: &Kernels<D>, spec: &KvSpec) {
        let &Self { k, v, q_norm, k_norm, table, slots, .. } = self;
        assert!(!spec.values_are_keys, "keys that turn on their way are no values");
        check_stored(kernels, k, v, slots, spec);
        for norm in [q_norm, k_norm].into_iter().flatten() {
            norm.weight.check(kernels, "the weight of a head's norm", 1, spec.head_dim);
        }
        let rotary_dim = table.n_cols();
        assert!(rotary_dim <= spec.head_dim, "{rotary_dim} of {}", spec.head_dim);
        assert!(rotary_dim.is_multiple_of(2), "pairs of {rotary_dim} columns");
        table.check(kernels, "table", k.n_rows(), rotary_dim);
    }
}

/// Operands of [`rope_store`].
#[derive(Debug)]
pub struct RopeStore<'a, D: Device> {
    /// Queries, `[n_rows, n_heads * head_dim]`.
    pub q: Rows<'a, D>,
    /// The rotated queries; may be `q`.
    pub q_out: Rows<'a, D>,
    /// Keys and values, with norms and rotary embedding.
    pub heads: NewHeads<'a, D>,
    /// The pages that keys and values are stored in.
    pub pages: &'a KvPages<D>,
}

/// Queues norms and rotary embeddings of queries and keys, and the store of keys and values, in one launch.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match.
pub fn rope_store<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    store: &RopeStore<'_, D>,
) -> Result<(), Error> {
    let &RopeStore { q, q_out, heads, pages } = store;
    let (n_rows, spec) = (heads.k.n_rows(), pages.spec());
    heads.check(kernels, spec);
    let n_heads = q.n_cols() / spec.head_dim;
    for q in [q, q_out] {
        q.check(kernels, "q", n_rows, n_heads * spec.head_dim);
    }
    launch(kernels, stream, Some([q, q_out]), n_rows, heads.arguments(), pages)
}

fn check_stored<D: Device>(
    kernels: &Kernels<D>,
    k: Rows<'_, D>,
    v: Rows<'_, D>,
    slots: List<'_, D>,
    spec: &KvSpec,
) {
    let n_rows = k.n_rows();
    k.check(kernels, "k", n_rows, spec.n_kv_heads * spec.head_dim);
    v.check(kernels, "v", n_rows, spec.n_kv_heads * spec.head_dim);
    slots.check(kernels, "slots", n_rows);
}

fn head_arguments<D: Device>(
    k: Rows<'_, D>,
    v: Rows<'_, D>,
    rope: Option<(Rows<'_, D>, RopeStyle)>,
    norms: [Option<HeadNorm<'_, D>>; 2],
    slots: List<'_, D>,
) -> [Argument; HEAD_ARGUMENTS] {
    let [table, table_stride] = optional(rope.map(|(table, _)| table));
    let of_norm = |norm: Option<HeadNorm<'_, D>>| {
        (optional(norm.map(|norm| norm.weight))[0], norm.map_or(0.0, |norm| norm.eps))
    };
    let [(q_norm, q_eps), (k_norm, k_eps)] = norms.map(of_norm);
    [
        k.address(),
        k.stride(),
        v.address(),
        v.stride(),
        table,
        table_stride,
        Argument::I32(rope.map_or(0, |(table, _)| table.n_cols() as i32 / 2)),
        Argument::I32(rope.map_or(0, |(_, pairs)| i32::from(pairs == RopeStyle::Interleaved))),
        q_norm,
        Argument::F32(q_eps),
        k_norm,
        Argument::F32(k_eps),
        slots.address(),
    ]
}

/// Queues the kernel for keys, values and, if present, queries (input and output).
fn launch<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    q: Option<[Rows<'_, D>; 2]>,
    n_rows: usize,
    heads: [Argument; HEAD_ARGUMENTS],
    pages: &KvPages<D>,
) -> Result<(), Error> {
    let spec = pages.spec();
    kernels.check("pages", pages.buffer(), 0);
    let n_heads = q.map_or(0, |[q, _]| q.n_cols() / spec.head_dim);
    let of_q = [0, 1].map(|i| optional(q.map(|q| q[i])));
    let n_heads_argument = [Argument::I32(n_heads as i32)];
    let parts = [of_q.as_flattened(), &heads, &pages.arguments(), &n_heads_argument];
    let arguments = Arguments::of(&parts);
    let function = &kernels.kv_store.store[spec.type_index()];
    let n_blocks = (n_heads + spec.planes() * spec.n_kv_heads).div_ceil(HEADS);
    assert!(n_blocks <= 65535, "{n_heads} and {} heads", spec.n_kv_heads);
    let grid = [n_rows as u32, n_blocks as u32, 1];
    // SAFETY: the arguments are those of `kv_store_*` in order; rows lie inside their buffers, their shapes were
    // checked, and the kernel checks slots. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use realizar_quant::{BlockType, quantize};

    use super::*;
    use crate::KvSpec;
    use crate::testing::{Random, kernels, on_device, read};

    /// The bytes of a head of a position in a page.
    fn row_of_page(ty: BlockType, head: &[f32]) -> Vec<u8> {
        let mut head = head.to_vec();
        head.resize(head.len().next_multiple_of(8), 0.0);
        let mut bytes = vec![0; head.len() / ty.block_len() * ty.block_bytes()];
        quantize(ty, &head, &mut bytes).unwrap();
        bytes
    }

    struct Case {
        ty: BlockType,
        n_heads: usize,
        n_kv_heads: usize,
        head_dim: usize,
        rotary_dim: usize,
        pairs: RopeStyle,
        norms: bool,
    }

    /// Stores three rows, of which the second has no slot.
    fn check(case: &Case) {
        let Case { ty, n_heads, n_kv_heads, head_dim, rotary_dim, pairs, norms } = *case;
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let spec =
            KvSpec { ty, n_kv_heads, head_dim, page_len: 16, n_pages: 2, values_are_keys: false };
        let pages = KvPages::new(device, "kv", spec).unwrap();
        let mut random = Random(5);
        let (n_rows, q_cols, kv_cols) = (3, n_heads * head_dim, n_kv_heads * head_dim);
        // q, k and v are columns of one value.
        let stride = q_cols + 2 * kv_cols + 3;
        let x = random.floats(n_rows * stride);
        let table = random.floats(n_rows * rotary_dim.max(1));
        let weights = random.floats(2 * head_dim);
        let slots = [3u32, u32::MAX, 17];
        let [x_at, table_at, weights_at] =
            [&x, &table, &weights].map(|values| on_device(device, &stream, values));
        let q_at = on_device(device, &stream, &vec![7.0f32; n_rows * q_cols]);
        let slots_at = on_device(device, &stream, &slots);
        let rows = |from, n_cols| Rows::new(&x_at, from, n_rows, n_cols, stride);
        let norm = |from| {
            let weight = Rows::vector_at(&weights_at, from, head_dim);
            norms.then_some(HeadNorm { weight, eps: 1e-3 })
        };
        let store = RopeStore {
            q: rows(0, q_cols),
            q_out: Rows::new(&q_at, 0, n_rows, q_cols, q_cols),
            heads: NewHeads {
                k: rows(q_cols, kv_cols),
                v: rows(q_cols + kv_cols, kv_cols),
                q_norm: norm(0),
                k_norm: norm(head_dim),
                table: Rows::new(&table_at, 0, n_rows, rotary_dim, rotary_dim),
                pairs,
                slots: List::all(&slots_at),
            },
            pages: &pages,
        };
        let bytes: Vec<u8> = (0..2 * spec.page_bytes()).map(|i| i as u8).collect();
        for page in 0..2 {
            pages.write_page(&stream, page, &bytes).unwrap();
        }
        rope_store(&kernels, &stream, &store).unwrap();

        let turned = |row: usize, head: &[f32], weight: &[f32]| {
            let mut head: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
            if norms {
                let squares: f64 = head.iter().map(|x| x * x).sum();
                let scale = 1.0 / (squares / head_dim as f64 + 1e-3).sqrt();
                head.iter_mut().zip(weight).for_each(|(x, &w)| *x *= scale * f64::from(w));
            }
            let n = rotary_dim / 2;
            for i in 0..n {
                let [c, s] = [i, n + i].map(|i| f64::from(table[row * rotary_dim + i]));
                let (a, b) = match pairs {
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    RopeStyle::Neox => (i, i + n),
                };
                (head[a], head[b]) = (head[a] * c - head[b] * s, head[b] * c + head[a] * s);
            }
            head
        };
        let q = read(&stream, &q_at, n_rows * q_cols);
        let mut found = Vec::new();
        for page in 0..2 {
            pages.read_page(&stream, page, &mut found).unwrap();
        }
        let mut wanted = [&bytes[..], &bytes[..]].concat();
        for (row, &slot) in slots.iter().enumerate() {
            let x = &x[row * stride..];
            for (head, x) in x[..q_cols].chunks(head_dim).enumerate() {
                let wanted = turned(row, x, &weights);
                for (found, wanted) in q[row * q_cols + head * head_dim..].iter().zip(wanted) {
                    let away = (f64::from(*found) - wanted).abs();
                    assert!(away < 1e-6, "q {row} {head}: {found} is not {wanted}");
                }
            }
            if slot == u32::MAX {
                continue;
            }
            for part in 0..2 {
                let x = &x[q_cols + part * kv_cols..][..kv_cols];
                for (head, x) in x.chunks(head_dim).enumerate() {
                    let row_bytes = row_of_page(ty, x).len();
                    let (page, in_page) = (slot as usize / 16, slot as usize % 16);
                    let at =
                        (2 * page + part) * spec.page_bytes() + (head * 16 + in_page) * row_bytes;
                    let found = &found[at..][..row_bytes];
                    if part == 1 {
                        assert_eq!(found, row_of_page(ty, x), "v {row} {head}");
                    } else {
                        let mut back = vec![0.0; x.len().next_multiple_of(8)];
                        realizar_quant::dequantize(ty, found, &mut back).unwrap();
                        let keys = turned(row, x, &weights[head_dim..]);
                        // Half a step of the type, and of its subnormal numbers.
                        let (step, least) = match ty {
                            BlockType::F32 => (1e-6, 1e-6),
                            BlockType::F16 => (1.01 / 2048.0, 1e-6),
                            BlockType::F8 => (1.01 / 16.0, 1.01 / 1024.0),
                            _ => (1.01 / 256.0, 1e-6),
                        };
                        for (found, wanted) in back.iter().zip(keys) {
                            let away = (f64::from(*found) - wanted).abs();
                            let limit = step * wanted.abs() + least;
                            assert!(away <= limit, "k {row} {head}: {found} is not {wanted}");
                        }
                    }
                    wanted[at..at + row_bytes].copy_from_slice(found);
                }
            }
        }
        assert_eq!(found, wanted, "bytes of no slot");
    }

    #[cfg_attr(test, test)]
    fn queries_turn_and_keys_and_values_are_stored() {
        let case = |ty, head_dim, rotary_dim, pairs, norms| Case {
            ty,
            n_heads: 6,
            n_kv_heads: 2,
            head_dim,
            rotary_dim,
            pairs,
            norms,
        };
        use BlockType::{BF16, F8, F16, F32};
        check(&case(F32, 64, 64, RopeStyle::Neox, false));
        check(&case(F16, 12, 12, RopeStyle::Interleaved, true));
        check(&case(F16, 128, 32, RopeStyle::Neox, true));
        check(&case(BF16, 80, 20, RopeStyle::Interleaved, false));
        check(&case(F16, 320, 64, RopeStyle::Neox, true));
        check(&case(F8, 24, 24, RopeStyle::Neox, true));
    }

    /// The levels of a block in the order of a page.
    fn levels_in_page(ty: BlockType, block: &[u8]) -> Vec<u8> {
        if ty == BlockType::Q8_0 {
            return block[2..].to_vec();
        }
        let level = |i: usize| block[2 + i % 16] >> (4 * (i / 16)) & 15;
        let words = (0..4).flat_map(|word| {
            let nibble = |i: usize| u32::from(level(8 * word + i)) << (4 * (i / 2) + 16 * (i % 2));
            (0..8).map(nibble).sum::<u32>().to_le_bytes()
        });
        words.collect()
    }

    fn check_blocks(ty: BlockType) {
        // 40 columns are one and a partial block.
        let page_len = 16;
        let spec = KvSpec {
            ty,
            n_kv_heads: 2,
            head_dim: 40,
            page_len,
            n_pages: 1,
            values_are_keys: false,
        };
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let pages = KvPages::new(device, "kv", spec).unwrap();
        let mut x = Random(3).floats(page_len * 80);
        // A block of zeros, a tiny one, one with a non-finite value, and one with two values of the largest magnitude.
        x[..32].fill(0.0);
        x[80..112].iter_mut().for_each(|x| *x *= 1e-7);
        x[163] = f32::INFINITY;
        (x[245], x[269]) = (3.0, -3.0);
        (x[332], x[331]) = (3.0, -3.0);
        let x_at = on_device(device, &stream, &x);
        let slots: Vec<u32> = (0..page_len as u32).collect();
        let slots = on_device(device, &stream, &slots);
        let rows = Rows::new(&x_at, 0, page_len, 80, 80);
        kv_store(&kernels, &stream, rows, rows, List::all(&slots), &pages).unwrap();
        let mut found = Vec::new();
        pages.read_page(&stream, 0, &mut found).unwrap();
        let (block_bytes, level_bytes) = (ty.block_bytes(), ty.block_bytes() - 2);
        let head_bytes = page_len * 2 * block_bytes;
        for (row, x) in x.chunks(80).enumerate() {
            for (head, x) in x.chunks(40).enumerate() {
                let mut x = x.to_vec();
                x.resize(64, 0.0);
                let mut wanted = vec![0; 2 * block_bytes];
                let is_odd = x.iter().any(|x| x.is_infinite());
                if is_odd {
                    wanted[..2].copy_from_slice(&[0, 0x7e]);
                    quantize(ty, &x[32..], &mut wanted[block_bytes..]).unwrap();
                } else {
                    quantize(ty, &x, &mut wanted).unwrap();
                }
                for part in 0..2 {
                    let of_head = &found[part * spec.page_bytes() + head * head_bytes..];
                    let levels = &of_head[row * 2 * level_bytes..][..2 * level_bytes];
                    let scales = &of_head[page_len * 2 * level_bytes + row * 4..][..4];
                    for (block, wanted) in wanted.chunks(block_bytes).enumerate() {
                        let at = format!("{ty} row {row} head {head} block {block}");
                        let levels = &levels[block * level_bytes..][..level_bytes];
                        assert_eq!(scales[2 * block..][..2], wanted[..2], "{at}");
                        if !is_odd || block > 0 {
                            assert_eq!(levels, levels_in_page(ty, wanted), "{at}");
                        }
                    }
                }
            }
        }
    }

    #[cfg_attr(test, test)]
    fn blocks_are_those_of_the_host() {
        check_blocks(BlockType::Q8_0);
        check_blocks(BlockType::Q4_0);
    }

    #[cfg_attr(test, test)]
    fn numbers_of_8_bits_are_those_of_the_host() {
        let ty = BlockType::F8;
        let (head_dim, page_len) = (512, 16);
        let spec =
            KvSpec { ty, n_kv_heads: 1, head_dim, page_len, n_pages: 1, values_are_keys: false };
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let pages = KvPages::new(device, "kv", spec).unwrap();
        // All numbers and the midpoints between them, values of all magnitudes, and values out of range.
        let mut values: Vec<f32> = (0..=255).map(realizar_quant::small_floats::e4m3).collect();
        let middles = values.windows(2).map(|pair| f32::midpoint(pair[0], pair[1]));
        values.extend(middles.collect::<Vec<_>>());
        let mut random = Random(9);
        for exponent in -12..12 {
            values.extend(random.floats(300).iter().map(|x| x * (exponent as f32).exp2()));
        }
        values.extend([448.1, 464.0, -1e9, f32::MAX, f32::INFINITY, -f32::INFINITY, f32::NAN]);
        values.extend([0.0, -0.0, 1e-30, -1e-40]);
        assert!(values.len() <= page_len * head_dim);
        values.resize(page_len * head_dim, 1.0);
        let x = on_device(device, &stream, &values);
        let slots: Vec<u32> = (0..page_len as u32).collect();
        let slots = on_device(device, &stream, &slots);
        let rows = Rows::new(&x, 0, page_len, head_dim, head_dim);
        kv_store(&kernels, &stream, rows, rows, List::all(&slots), &pages).unwrap();
        let mut found = Vec::new();
        pages.read_page(&stream, 0, &mut found).unwrap();
        let mut wanted = vec![0; values.len()];
        quantize(ty, &values, &mut wanted).unwrap();
        for (part, found) in found.chunks(values.len()).enumerate() {
            for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                assert_eq!(found, wanted, "part {part}: {}", values[i]);
            }
        }
    }

    #[cfg_attr(test, test)]
    fn a_slot_that_does_not_exist_is_reported() {
        let spec = KvSpec {
            ty: BlockType::F16,
            n_kv_heads: 1,
            head_dim: 8,
            page_len: 16,
            n_pages: 2,
            values_are_keys: false,
        };
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let pages = KvPages::new(device, "kv", spec).unwrap();
        let x = on_device(device, &stream, &[0.0f32; 8]);
        let slots = on_device(device, &stream, &[32u32]);
        let rows = Rows::vector(&x, 8);
        kv_store(&kernels, &stream, rows, rows, List::all(&slots), &pages).unwrap();
        let message = device.synchronize(&stream).unwrap_err().to_string();
        assert!(message.contains("trap") && message.contains("kv_store_f16"), "{message}");
    }

    crate::testing::tests![
        queries_turn_and_keys_and_values_are_stored,
        blocks_are_those_of_the_host,
        numbers_of_8_bits_are_those_of_the_host,
        a_slot_that_does_not_exist_is_reported,
    ];
}
