//! What nvcc made of CUDA C++: results beside plain loops.
//!
//! `cargo xtask kernels cuda` makes the PTX. Each module names the hash of the source that it was made of.

use half::{bf16, f16};
use sha2::{Digest, Sha256};

use crate::common::{Bench, Random};

const DEPENDENT: &str = include_str!("../kernels/dependent.ptx");
const Q8_MATVEC: &str = include_str!("../kernels/q8_matvec.ptx");
const ROWS: &str = include_str!("../kernels/rows.ptx");
const TILES: &str = include_str!("../kernels/tiles.ptx");

#[test]
fn modules_belong_to_their_sources() {
    for (name, source, ptx) in [
        ("dependent", include_str!("../kernels/dependent.cu"), DEPENDENT),
        ("q8_matvec", include_str!("../kernels/q8_matvec.cu"), Q8_MATVEC),
        ("rows", include_str!("../kernels/rows.cu"), ROWS),
        ("tiles", include_str!("../kernels/tiles.cu"), TILES),
    ] {
        let hash: String = Sha256::digest(source).iter().map(|b| format!("{b:02x}")).collect();
        let first = ptx.lines().next().unwrap();
        assert_eq!(first, format!("// source: {name}.cu {hash}"), "run cargo xtask kernels cuda");
    }
}

#[test]
fn quantized_matrix_by_vector() {
    let (rows, words) = (7, 8 * 70);
    let mut random = Random(1);
    let w: Vec<u32> = (0..rows * words).map(|_| random.bits() as u32).collect();
    let x: Vec<u32> = (0..words).map(|_| random.bits() as u32).collect();
    let w_scale: Vec<f16> = (0..rows * words / 8).map(|_| f16::from_f32(random.float())).collect();
    let x_scale: Vec<f32> = (0..words / 8).map(|_| random.float()).collect();
    let mut bench = Bench::new(Q8_MATVEC);
    let buffers = [bench.put(&w), bench.put(&x), bench.put(&w_scale), bench.put(&x_scale)];
    let y = bench.put(&vec![0f32; rows]);
    let [w_at, x_at, ws_at, xs_at] = buffers.map(u64::to_le_bytes);
    bench.run(
        "q8_matvec",
        4,
        [32, 2, 1],
        &[
            &w_at,
            &x_at,
            &ws_at,
            &xs_at,
            &y.to_le_bytes(),
            &(rows as i32).to_le_bytes(),
            &(words as i32).to_le_bytes(),
        ],
    );
    let found: Vec<f32> = bench.get(y, rows);
    for row in 0..rows {
        // In the kernel's order: a lane takes every 32nd block, then lanes are added in pairs.
        let mut lanes = [0f32; 32];
        for block in 0..words / 8 {
            let quants = |v: &[u32], at: usize| {
                v[at..at + 8].iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>()
            };
            let a = quants(&w, row * words + block * 8);
            let b = quants(&x, block * 8);
            let dot: i32 =
                a.iter().zip(&b).map(|(a, b)| i32::from(*a as i8) * i32::from(*b as i8)).sum();
            let scaled = dot as f32 * x_scale[block] * w_scale[row * words / 8 + block].to_f32();
            lanes[block % 32] += scaled;
        }
        for offset in [16, 8, 4, 2, 1] {
            lanes = std::array::from_fn(|i| lanes[i] + lanes[i ^ offset]);
        }
        assert_eq!(found[row].to_bits(), lanes[0].to_bits(), "row {row}");
    }
}

#[test]
fn tile_of_bf16() {
    for (rows, k) in [(16, 16), (16, 80), (5, 128)] {
        let mut random = Random(2);
        let mut matrix =
            |n: usize| (0..n).map(|_| bf16::from_f32(random.float())).collect::<Vec<_>>();
        let (a, b) = (matrix(rows * k), matrix(8 * k));
        let mut bench = Bench::new(TILES);
        let (a_at, b_at, c_at) = (bench.put(&a), bench.put(&b), bench.put(&[0f32; 128]));
        let sizes = [rows as i32, k as i32].map(i32::to_le_bytes);
        let [a_at, b_at, c] = [a_at, b_at, c_at].map(u64::to_le_bytes);
        bench.run("tile_bf16", 1, [32, 1, 1], &[&a_at, &b_at, &c, &sizes[0], &sizes[1]]);
        let found: Vec<f32> = bench.get(c_at, 128);
        for (i, found) in found.iter().enumerate() {
            let (row, col) = (i / 8, i % 8);
            let term = |at: usize| match row < rows {
                true => a[row * k + at].to_f64() * b[col * k + at].to_f64(),
                false => 0.0,
            };
            // Each step of 16 is rounded once.
            let expected = (0..k / 16).fold(0f32, |sum, step| {
                (step * 16..step * 16 + 16).fold(f64::from(sum), |sum, at| sum + term(at)) as f32
            });
            assert_eq!(found.to_bits(), expected.to_bits(), "{rows} x {k}: {row}, {col}");
        }
    }
}

#[test]
fn tile_of_bytes() {
    let k = 96;
    let mut random = Random(3);
    let mut matrix = |n: usize| (0..n).map(|_| random.bits() as i8).collect::<Vec<_>>();
    let (a, b) = (matrix(16 * k), matrix(8 * k));
    let mut bench = Bench::new(TILES);
    let (a_at, b_at, c_at) = (bench.put(&a), bench.put(&b), bench.put(&[0i32; 128]));
    let [a_at, b_at, c] = [a_at, b_at, c_at].map(u64::to_le_bytes);
    let arguments: [&[u8]; 4] = [&a_at, &b_at, &c, &(k as i32).to_le_bytes()];
    bench.try_run("tile_s8", 1, [32, 1, 1], 24 * 48, &arguments).unwrap();
    let found: Vec<i32> = bench.get(c_at, 128);
    for (i, found) in found.iter().enumerate() {
        let (row, col) = (i / 8, i % 8);
        let terms = (0..k).map(|at| i32::from(a[row * k + at]) * i32::from(b[col * k + at]));
        assert_eq!(*found, terms.sum::<i32>(), "{row}, {col}");
    }
}

#[test]
fn work_is_counted_by_launch() {
    // 7 rows of 70 blocks: a warp for each row, two in a block of threads.
    let (rows, words) = (7, 8 * 70);
    let mut bench = Bench::new(Q8_MATVEC);
    let buffers = [
        bench.put(&vec![1u32; rows * words]),
        bench.put(&vec![1u32; words]),
        bench.put(&vec![f16::ONE; rows * words / 8]),
        bench.put(&vec![1f32; words / 8]),
        bench.put(&vec![0f32; rows]),
    ];
    let [w, x, ws, xs, y] = buffers.map(u64::to_le_bytes);
    let sizes = [rows as i32, words as i32].map(i32::to_le_bytes);
    let arguments: [&[u8]; 7] = [&w, &x, &ws, &xs, &y, &sizes[0], &sizes[1]];
    bench.run("q8_matvec", 4, [32, 2, 1], &arguments);
    bench.device.start_counting();
    bench.run("q8_matvec", 4, [32, 2, 1], &arguments);
    let before = bench.device.statistics().instructions;
    let [counts] = &bench.device.take_counts()[..] else { panic!("one launch") };
    assert_eq!((counts.kernel.as_str(), counts.threads), ("q8_matvec", 4 * 64));
    // Both launches ran the same; a predicate that no lane has ends before it is counted.
    assert!(counts.instructions <= before / 2 && counts.instructions > before / 3);
    let blocks = rows * words / 8;
    // A block of 32 quants with its scale, and as much of x, is requested by each row.
    assert_eq!(counts.loaded, (blocks * (32 + 2 + 32 + 4)) as u64);
    assert_eq!(counts.stored, 4 * rows as u64);
    let sectors = |bytes: usize| bytes.next_multiple_of(32);
    let read = [rows * words * 4, words * 4, rows * words / 8 * 2, words / 8 * 4].map(sectors);
    assert_eq!(counts.read_once, read.iter().sum::<usize>() as u64);
    assert_eq!(counts.written_once, 32);
    assert_eq!(counts.dot_ops, (blocks * 32 * 2) as u64);
    // Two products and a sum for each block, five sums of each lane at the end.
    assert_eq!(counts.flops, (blocks * 3 + rows * 32 * 5) as u64);
    assert_eq!((counts.tensor_flops, counts.tensor_int_ops), (0, 0));

    let mut bench = Bench::new(TILES);
    let (a, b, c) =
        (bench.put(&[1i8; 16 * 96]), bench.put(&[1i8; 8 * 96]), bench.put(&[0i32; 128]));
    let [a, b, c] = [a, b, c].map(u64::to_le_bytes);
    bench.device.start_counting();
    let arguments: [&[u8]; 4] = [&a, &b, &c, &96i32.to_le_bytes()];
    bench.try_run("tile_s8", 1, [32, 1, 1], 24 * 48, &arguments).unwrap();
    let [counts] = &bench.device.take_counts()[..] else { panic!("one launch") };
    assert_eq!(counts.tensor_int_ops, 2 * 16 * 8 * 96);
    assert_eq!((counts.loaded, counts.read_once), (24 * 96, 24 * 96));
    assert_eq!((counts.stored, counts.written_once), (512, 512));
}

#[test]
fn sums_of_rows() {
    let (rows, n) = (3, 1000);
    let x: Vec<f32> = (0..rows * n).map(|i| (i % 97) as f32).collect();
    let mut bench = Bench::new(ROWS);
    let (x_at, out) = (bench.put(&x), bench.put(&vec![0f32; rows]));
    let arguments: [&[u8]; 3] =
        [&x_at.to_le_bytes(), &out.to_le_bytes(), &(n as i32).to_le_bytes()];
    bench.run("row_sums", rows as u32, [128, 1, 1], &arguments);
    let expected: Vec<f32> = x.chunks(n).map(|row| row.iter().sum()).collect();
    assert_eq!(bench.get::<f32>(out, rows), expected);
}

#[test]
fn softmax_of_rows() {
    let (rows, n) = (2, 300);
    let mut random = Random(4);
    let x: Vec<f32> = (0..rows * n).map(|_| random.float() * 8.0).collect();
    let mut bench = Bench::new(ROWS);
    let (x_at, half_at) = (bench.put(&x), bench.put(&vec![f16::ZERO; rows * n]));
    let arguments: [&[u8]; 3] =
        [&x_at.to_le_bytes(), &half_at.to_le_bytes(), &(n as i32).to_le_bytes()];
    bench.run("softmax", rows as u32, [64, 1, 1], &arguments);
    let (found, halves) = (bench.get::<f32>(x_at, rows * n), bench.get::<f16>(half_at, rows * n));
    for (row, x) in x.chunks(n).enumerate() {
        let sum: f64 = x.iter().map(|&x| f64::from(x).exp()).sum();
        for (i, &x) in x.iter().enumerate() {
            let (expected, found) = (f64::from(x).exp() / sum, found[row * n + i]);
            assert!((f64::from(found) - expected).abs() <= 2e-6 * expected, "{found} {expected}");
            assert_eq!(halves[row * n + i], f16::from_f32(found));
        }
    }
}

#[test]
fn counts_of_classes() {
    let mut random = Random(5);
    let x: Vec<u8> = (0..5000).map(|_| random.bits() as u8).collect();
    let mut bench = Bench::new(ROWS);
    let (x_at, counts) = (bench.put(&x), bench.put(&[0u32; 5]));
    let arguments: [&[u8]; 3] =
        [&x_at.to_le_bytes(), &counts.to_le_bytes(), &(x.len() as i32).to_le_bytes()];
    bench.run("histogram", 3, [96, 1, 1], &arguments);
    let class = |x: u8| ((x & 15) + 1).ilog2() as usize;
    let mut expected = [0u32; 5];
    x.iter().for_each(|&x| expected[class(x)] += 1);
    assert_eq!(bench.get::<u32>(counts, 5), expected);
    let (seen, bytes) = bench.device.variable(bench.module, "seen").unwrap();
    assert_eq!(bytes, 4);
    assert_eq!(bench.get::<u32>(seen, 1), [5 + x.len() as u32]);
}

#[test]
fn functions_of_the_compilers_library() {
    let n = 200;
    let mut random = Random(6);
    let x: Vec<f32> = (0..n).map(|_| random.float() * 2.0).collect();
    let mut bench = Bench::new(ROWS);
    let (x_at, out) = (bench.put(&x), bench.put(&vec![0f32; n * 10]));
    let arguments: [&[u8]; 3] =
        [&x_at.to_le_bytes(), &out.to_le_bytes(), &(n as i32).to_le_bytes()];
    bench.run("functions", 2, [128, 1, 1], &arguments);
    let found: Vec<f32> = bench.get(out, n * 10);
    for (&x, found) in x.iter().zip(found.chunks(10)) {
        let wide = f64::from(x);
        let expected = [
            wide.exp(),
            f64::from(x.abs() + 0.5).ln(),
            f64::from(x * 100.0).sin(),
            f64::from(x * 1_000_000.0).cos(),
            wide.tanh(),
            error_function(wide),
            wide.abs().powf(f64::from(1.7f32)),
            1.0 / f64::from(x.abs() + 1e-3).sqrt() + wide.abs().sqrt(),
            f64::from(bf16::from_f32(x).to_f32() + x.round() + x.round_ties_even() + x.trunc()),
            wide * 3.0 + wide.abs().ln_1p() + wide % f64::from(0.3f32),
        ];
        for (i, (&found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - expected).abs();
            assert!(error <= 4e-7 * expected.abs().max(1.0), "{i} of {x}: {found} {expected}");
        }
    }
}

#[test]
fn dependent_launches() {
    let mut bench = Bench::new(DEPENDENT);
    let (x, y) = (bench.put(&[1.5f32; 100]), bench.put(&[1f32; 100]));
    for _ in 0..2 {
        let arguments: [&[u8]; 3] = [&x.to_le_bytes(), &y.to_le_bytes(), &100i32.to_le_bytes()];
        bench.run("add", 2, [64, 1, 1], &arguments);
    }
    assert_eq!(bench.get::<f32>(y, 100), [4.0; 100]);
    // The kernel waits in all threads before it reads.
    bench
        .try_run_early(
            "add",
            2,
            [64, 1, 1],
            &[&x.to_le_bytes(), &y.to_le_bytes(), &100i32.to_le_bytes()],
        )
        .unwrap();
    assert_eq!(bench.get::<f32>(y, 100), [5.5; 100]);
}

/// The error function by its series.
fn error_function(x: f64) -> f64 {
    let (mut sum, mut term) = (x, x);
    for n in 1..60 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}
