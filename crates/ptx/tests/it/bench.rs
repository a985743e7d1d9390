//! How many instructions run in a second; printed, not judged.

use std::time::Instant;

use realizar_ptx::Checks;

use crate::common::{Bench, Random};

#[test]
fn rate_of_instructions() {
    let (rows, words) = (64, 8 * 512);
    let mut random = Random(7);
    let w: Vec<u32> = (0..rows * words).map(|_| random.bits() as u32).collect();
    for global_races in [true, false] {
        let checks = Checks { global_races, ..Checks::default() };
        let mut bench = Bench::with(include_str!("../kernels/q8_matvec.ptx"), checks).unwrap();
        let buffers = [
            bench.put(&w),
            bench.put(&w[..words]),
            bench.put(&vec![0x3c00u16; rows * words / 8]),
            bench.put(&vec![1f32; words / 8]),
            bench.put(&vec![0f32; rows]),
        ]
        .map(u64::to_le_bytes);
        let sizes = [rows as i32, words as i32].map(i32::to_le_bytes);
        let [w, x, ws, xs, y] = &buffers;
        let start = Instant::now();
        for _ in 0..20 {
            bench.run("q8_matvec", 64, [32, 1, 1], &[w, x, ws, xs, y, &sizes[0], &sizes[1]]);
        }
        let seconds = start.elapsed().as_secs_f64();
        let ran = bench.device.statistics();
        println!(
            "races in global memory checked: {global_races}; {} instructions of warps, {:.1} million per \
             second, {:.0} million of threads",
            ran.instructions,
            ran.instructions as f64 / seconds / 1e6,
            ran.thread_instructions as f64 / seconds / 1e6
        );
        assert_eq!(ran.launches, 20);
    }
}
