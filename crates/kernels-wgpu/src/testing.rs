//! Shared parts of kernel tests: devices, and buffers that are filled from and read into slices.

use crate::dispatch::{Kernel, Rows, RowsAt};
use crate::{Adapter, Buffer, Gpu, GpuOptions, StateLists};
use realizar_quant::BlockType;

/// The first adapter with all its optional features, and again with none. Empty, with a message, if there
/// is no adapter. If the environment names a driver, as `cargo xtask test` does, there must be one.
pub(crate) fn gpus() -> Vec<Gpu> {
    let options = [GpuOptions::default(), GpuOptions::PLAIN];
    options.into_iter().filter_map(opened).collect()
}

/// The first adapter with all its features, for shaders that use no optional ones. `None`, with a message,
/// if there is no adapter.
pub(crate) fn gpu() -> Option<Gpu> {
    opened(GpuOptions::default())
}

fn opened(options: GpuOptions) -> Option<Gpu> {
    let Some(adapter) = Adapter::all().into_iter().next() else {
        let named = std::env::var_os("VK_DRIVER_FILES");
        assert_eq!(named, None, "the driver that is named has no adapter");
        println!("skipped: no GPU adapter on this machine");
        return None;
    };
    Some(Gpu::with_adapter(&adapter, options).expect("the adapter opens"))
}

/// The buffers of a test.
pub(crate) struct Bench<'a> {
    gpu: &'a Gpu,
    values: Buffer,
    batch: Buffer,
    n: usize,
}

/// A storage buffer with these contents.
pub(crate) fn filled<T: bytemuck::Pod>(gpu: &Gpu, data: &[T]) -> Buffer {
    let bytes: &[u8] = bytemuck::cast_slice(data);
    let buffer = gpu.buffer("test", bytes.len() as u64).expect("memory");
    gpu.write(&buffer, 0, bytes).expect("a copy");
    buffer
}

/// The first `n` elements of a storage buffer.
pub(crate) fn contents<T: bytemuck::Pod>(gpu: &Gpu, buffer: &Buffer, n: usize) -> Vec<T> {
    let n_bytes = (n * size_of::<T>()) as u64;
    let readback = gpu.readback_buffer("test", n_bytes).expect("memory");
    let mut recorder = gpu.record();
    recorder.copy((buffer, 0), (&readback, 0), n_bytes.next_multiple_of(4));
    recorder.submit().expect("a submission");
    let mut out = vec![T::zeroed(); n];
    gpu.read(&readback, &mut out).expect("a read");
    out
}

impl<'a> Bench<'a> {
    pub(crate) fn new(gpu: &'a Gpu, values: &[f32], batch: &[u32]) -> Self {
        let n = values.len();
        Self { gpu, values: filled(gpu, values), batch: filled(gpu, batch), n }
    }

    /// The buffers, for a kernel whose rows are found at `batch[at]`.
    pub(crate) fn rows(&self, at: u32) -> Rows<'_> {
        Rows { values: &self.values, batch: &self.batch, at: RowsAt(at) }
    }

    /// Runs kernels in order and returns the values.
    pub(crate) fn run(&self, kernels: &[(&Kernel, u32)]) -> Vec<f32> {
        let mut recorder = self.gpu.record();
        kernels.iter().for_each(|(kernel, n_rows)| recorder.run(kernel, *n_rows));
        recorder.submit().expect("a submission");
        contents(self.gpu, &self.values, self.n)
    }
}

/// The error function, by its series or its continued fraction (Abramowitz and
/// Stegun 7.1.5, 7.1.14).
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        2.0 / std::f64::consts::PI.sqrt() * sum
    } else {
        let z = x.abs();
        let fraction = (1..60).rev().fold(z, |f, n| z + f64::from(n) / 2.0 / f);
        x.signum() * (1.0 - (-z * z).exp() / std::f64::consts::PI.sqrt() / fraction)
    }
}

/// Numbers that look random, in [-1, 1).
pub(crate) fn noise(n: usize, seed: u64) -> Vec<f32> {
    // The finalizer of SplitMix64.
    let number = |i: u64| {
        let mut z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0x2545_f491);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n as u64).map(number).collect()
}

/// Rows in the file layout. Every other block is quantized noise; the blocks between have random bytes, but
/// the scales of the quantized ones. Types that cannot be quantized to have blocks of the second kind only,
/// with scales for values of about 1.
pub(crate) fn blocks(ty: BlockType, n_rows: usize, n_cols: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; n_rows * ty.row_bytes(n_cols).expect("whole blocks")];
    if ty.can_quantize() {
        let values = noise(n_rows * n_cols, seed);
        realizar_quant::quantize(ty, &values, &mut bytes).expect("whole blocks");
    }
    // Offsets of binary16 scales and exponents in a block.
    let scales = match ty {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => return bytes,
        BlockType::MXFP4 => 0..1,
        BlockType::Q4_0
        | BlockType::Q5_0
        | BlockType::Q8_0
        | BlockType::IQ4_NL
        | BlockType::IQ4_XS
        | BlockType::Q1_0
        | BlockType::Q2_0 => 0..2,
        BlockType::TQ1_0 => 52..54,
        BlockType::TQ2_0 => 64..66,
        ty if !ty.can_quantize() => 0..0,
        BlockType::Q2_K => 80..84,
        BlockType::Q3_K => 108..110,
        BlockType::Q6_K => 208..210,
        _ => 0..4,
    };
    let random = noise(bytes.len(), seed + 1);
    let n = ty.block_bytes();
    let step = if ty.can_quantize() { 2 } else { 1 };
    for (block, random) in bytes.chunks_exact_mut(n).zip(random.chunks_exact(n)).step_by(step) {
        for (i, byte) in block.iter_mut().enumerate().filter(|(i, _)| !scales.contains(i)) {
            *byte = (random[i] * 128.0) as i8 as u8;
        }
        let largest = match ty {
            BlockType::IQ2_XXS | BlockType::IQ2_XS | BlockType::IQ2_S => 0.006,
            BlockType::IQ3_XXS => 0.002,
            BlockType::IQ3_S => 0.002,
            BlockType::IQ1_S | BlockType::IQ1_M => 0.06,
            _ => continue,
        };
        let d = half::f16::from_f32(largest * random[0]).to_le_bytes();
        if ty == BlockType::IQ1_M {
            // A nibble of the scale in the upper bits of each of the last four words.
            let nibbles = [d[0] & 15, d[0] >> 4, d[1] & 15, d[1] >> 4];
            for (k, nibble) in nibbles.into_iter().enumerate() {
                block[49 + 2 * k] = block[49 + 2 * k] & 15 | nibble << 4;
            }
        } else {
            block[..2].copy_from_slice(&d);
        }
    }
    bytes
}

/// Dequantizes such rows.
pub(crate) fn dequantized(ty: BlockType, n_cols: usize, rows: &[u8]) -> Vec<f32> {
    let n_rows = rows.len() / ty.row_bytes(n_cols).expect("whole blocks");
    let mut out = vec![0.0; n_rows * n_cols];
    realizar_quant::dequantize(ty, rows, &mut out).expect("whole blocks");
    out
}

/// The words of a step with recurrent states: the range of rows at 0, the range of sequences at 2, then the
/// lists. `seqs` has the number of rows and the slot of the initial state of each sequence; `writes` has
/// rows and the slots for the states after them.
pub(crate) fn recurrent_batch(
    seqs: &[(u32, u32)],
    writes: &[(u32, u32)],
) -> (Vec<u32>, StateLists) {
    let n_rows: u32 = seqs.iter().map(|seq| seq.0).sum();
    let mut batch = vec![0, n_rows, 0, seqs.len() as u32];
    let seq_of_row_at = batch.len() as u32;
    for (i, &(n, _)) in (0..).zip(seqs) {
        batch.extend(std::iter::repeat_n(i, n as usize));
    }
    let seqs_at = batch.len() as u32;
    let mut first = 0;
    for &(n, from) in seqs {
        batch.extend([first, n, from]);
        first += n;
    }
    let writes_at = batch.len() as u32;
    let slot = |row| writes.iter().find(|write| write.0 == row).map_or(StateLists::NONE, |w| w.1);
    batch.extend((0..n_rows).map(slot));
    (batch, StateLists { seq_of_row_at, seqs_at, writes_at })
}
