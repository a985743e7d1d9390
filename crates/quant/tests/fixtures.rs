//! Bits and errors against independent implementations: the `gguf` Python package and
//! ggml's reference quantizers. `fixtures/make.py` made the data and says how.

use realizar_quant::{BlockType, dequantize, quantize};

/// Records of a fixture: type, bytes, values.
fn records(mut data: &[u8]) -> Vec<(BlockType, &[u8], Vec<f32>)> {
    let mut take = |n: usize| {
        let (head, rest) = data.split_at(n);
        data = rest;
        head
    };
    let mut out = Vec::new();
    loop {
        let name = take(8);
        let name = std::str::from_utf8(name).unwrap().trim_end_matches('\0');
        if name == "END" {
            return out;
        }
        let n_bytes = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
        let n_values = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
        let bytes = take(n_bytes);
        let values = take(4 * n_values).as_chunks().0;
        let values = values.iter().map(|v| f32::from_le_bytes(*v)).collect();
        out.push((BlockType::from_name(name).unwrap(), bytes, values));
    }
}

#[test]
fn dequantize_has_the_bits_of_the_python_package() {
    let records = records(include_bytes!("fixtures/dequantize.bin"));
    // Numbers of 8 bits have a fixture of their own.
    assert_eq!(records.len(), BlockType::all().filter(|ty| *ty != BlockType::F8).count());
    for (ty, bytes, expected) in records {
        let mut out = vec![f32::NAN; expected.len()];
        dequantize(ty, bytes, &mut out).unwrap();
        for (i, (got, want)) in out.iter().zip(&expected).enumerate() {
            assert_eq!(got.to_bits(), want.to_bits(), "{ty}[{i}]: {got} is not {want}");
        }
    }
}

#[test]
fn quantize_has_the_bits_of_the_python_package() {
    let records = records(include_bytes!("fixtures/quantize.bin"));
    assert_eq!(records.len(), 8);
    for (ty, expected, values) in records {
        let mut out = vec![0u8; expected.len()];
        quantize(ty, &values, &mut out).unwrap();
        let blocks = out.chunks(ty.block_bytes()).zip(expected.chunks(ty.block_bytes()));
        for (i, (got, want)) in blocks.enumerate() {
            assert_eq!(got, want, "{ty}, block {i}");
        }
    }
}

/// All FP8 numbers, and values with the numbers that PyTorch makes of them.
#[test]
fn f8_has_the_bits_of_pytorch() {
    let (numbers, pairs) = include_bytes!("fixtures/f8.bin").split_at(4 * 256);
    let ty = BlockType::F8;
    for (bits, value) in (0..=255).zip(numbers.as_chunks().0) {
        let (want, mut out) = (f32::from_le_bytes(*value), [0.0]);
        dequantize(ty, &[bits], &mut out).unwrap();
        let [got] = out;
        let is_same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(is_same, "{bits:#x}: {got} is not {want}");
    }
    let pairs = pairs.as_chunks::<5>().0;
    assert_eq!(pairs.len(), 2000);
    for [a, b, c, d, want] in pairs {
        let value = f32::from_le_bytes([*a, *b, *c, *d]);
        let mut got = [0];
        quantize(ty, &[value], &mut got).unwrap();
        let is_nan = want & 0x7f == 0x7f && got[0] & 0x7f == 0x7f;
        assert!(got[0] == *want || is_nan, "{value}: {:#x} is not {want:#x}", got[0]);
    }
}

/// The generator that `make.py` describes.
struct Lcg(u64);

impl Lcg {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f64 / 16777216.0
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// A row of 4096 values of a distribution.
fn row(kind: &str) -> Vec<f32> {
    let mut g = Lcg(42);
    let value = |i: usize| {
        let (u, z) = (g.uniform(), g.normal());
        let v = match kind {
            "gaussian" => z,
            "heavy" => z * z * z,
            "zeros" => [0.0, z][usize::from(u < 0.25)],
            "constant" => 0.37,
            "negative" => -0.37,
            "offset" => z + 3.0,
            "small" => z * 0.0001,
            "outlier" => [z, z * 20.0][usize::from(u < 0.015625)],
            "steps" => (i / 16) as f64 * 0.01 - 1.0,
            "uniform" => u - 0.5,
            _ => panic!("unknown kind {kind}"),
        };
        v as f32
    };
    (0..4096).map(value).collect()
}

#[test]
fn quantization_error_is_no_worse_than_the_reference() {
    let mut worse = Vec::new();
    for line in include_str!("fixtures/reference_mse.txt").lines() {
        let [name, kind, mse] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let ty = BlockType::from_name(name).unwrap();
        let reference: f64 = mse.parse().unwrap();
        let values = row(kind);
        let mut bytes = vec![0u8; ty.row_bytes(values.len()).unwrap()];
        quantize(ty, &values, &mut bytes).unwrap();
        let mut back = vec![0.0f32; values.len()];
        dequantize(ty, &bytes, &mut back).unwrap();
        let errors = values.iter().zip(&back).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
        let ours = errors.sum::<f64>() / values.len() as f64;
        if ours > reference * (1.0 + 1e-6) {
            worse.push(format!("{name} {kind}: {ours:e} > {reference:e}"));
        }
    }
    assert!(worse.is_empty(), "{}", worse.join("\n"));
}
