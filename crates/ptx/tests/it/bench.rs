//! How many instructions run in a second, by what is checked; printed, not judged.

use std::time::Instant;

use realizar_ptx::Checks;

use crate::common::{Bench, Random};

const Q8_MATVEC: &str = include_str!("../kernels/q8_matvec.ptx");
const ROWS: &str = include_str!("../kernels/rows.ptx");
const TILES: &str = include_str!("../kernels/tiles.ptx");

/// Runs a kernel `n` times; millions of instructions of warps in a second.
fn rate(
    bench: &mut Bench,
    (name, grid, block, shared): (&str, u32, u32, usize),
    n: u64,
    arguments: &[&[u8]],
) -> f64 {
    let start = Instant::now();
    for _ in 0..n {
        bench.try_run(name, grid, [block, 1, 1], shared, arguments).unwrap();
    }
    assert_eq!(bench.device.statistics().launches, n);
    bench.device.statistics().instructions as f64 / start.elapsed().as_secs_f64() / 1e6
}

#[test]
fn rate_of_instructions() {
    let kinds = [
        ("all", Checks::ALL),
        ("no races in global memory", Checks { global_races: false, ..Checks::ALL }),
        ("no races in shared memory", Checks { shared_races: false, ..Checks::ALL }),
        ("no races", Checks::FAST),
        ("no races, no values", Checks { uninitialised: false, ..Checks::FAST }),
    ];
    let mut random = Random(7);
    for (kind, checks) in kinds {
        let (rows, words) = (64, 8 * 512);
        let w: Vec<u32> = (0..rows * words).map(|_| random.bits() as u32).collect();
        let mut bench = Bench::with(Q8_MATVEC, checks.clone()).unwrap();
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
        let arguments: [&[u8]; 7] = [w, x, ws, xs, y, &sizes[0], &sizes[1]];
        let product = rate(&mut bench, ("q8_matvec", 64, 32, 0), 20, &arguments);

        let (rows, n) = (64, 1024);
        let x: Vec<f32> = (0..rows * n).map(|_| random.float()).collect();
        let mut bench = Bench::with(ROWS, checks.clone()).unwrap();
        let [x, half] = [bench.put(&x), bench.put(&vec![0u16; rows * n])].map(u64::to_le_bytes);
        let arguments: [&[u8]; 3] = [&x, &half, &(n as i32).to_le_bytes()];
        let softmax = rate(&mut bench, ("softmax", rows as u32, 64, 0), 5, &arguments);

        let k = 512;
        let bytes: Vec<u8> = (0..16 * k).map(|_| random.bits() as u8).collect();
        let mut bench = Bench::with(TILES, checks).unwrap();
        let [a, b, c] = [bench.put(&bytes), bench.put(&bytes[..8 * k]), bench.put(&[0i32; 128])]
            .map(u64::to_le_bytes);
        let arguments: [&[u8]; 4] = [&a, &b, &c, &(k as i32).to_le_bytes()];
        let tile = rate(&mut bench, ("tile_s8", 1, 32, 24 * 48), 100, &arguments);
        println!(
            "{kind}: product {product:.1}, softmax {softmax:.1}, tile {tile:.1} million a second"
        );
    }
}
