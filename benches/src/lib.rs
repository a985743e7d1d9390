//! Inputs that the benchmarks share. The benchmarks are in `benches/`.

/// `n` numbers in -1..1 that repeat after 101.
pub fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
}

/// `n` bytes below 47: blocks of finite weights in every type.
pub fn block_bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 13 % 47) as u8).collect()
}
