//! Prints what the kernels of decode steps and prompts move and compute, counted on the interpreter of PTX, and the
//! time that a card's limits would leave for that: the page `docs/cuda-estimates.md`. Nothing of it is measured on a
//! card.
//!
//! Work is counted at the widths of a model for a part of a matrix's rows and of a prompt's, and carried on along
//! straight lines through two sizes of each.

mod bench;

use bench::Bench;
use realizar_kernels_cuda::{Error, QuantType, takes_quantized};
use realizar_quant::BlockType;

/// A card's limits.
struct Card {
    name: &'static str,
    /// Bytes a second of a large copy, reads and writes together.
    bandwidth: f64,
    /// Operations a second: floats, `dp4a`, tensor cores in half precision, tensor cores of 8-bit integers; and
    /// instructions of warps.
    rates: [f64; 5],
}

/// Multiprocessors times cycles a second.
const CYCLES: f64 = 132.0 * 1.755e9;
/// Published for both cards: 128 floats and 64 `dp4a` a cycle and multiprocessor, the tensor cores without sparsity,
/// and four instructions of warps.
const RATES: [f64; 5] = [CYCLES * 128.0 * 2.0, CYCLES * 64.0 * 8.0, 989e12, 1979e12, CYCLES * 4.0];
const CARDS: [Card; 2] = [
    Card { name: "H100", bandwidth: 3.35e12 * 0.8, rates: RATES },
    Card { name: "H200", bandwidth: 4.3e12, rates: RATES },
];
/// Seconds that a launch in a graph takes by itself.
const LAUNCH: f64 = 1.3e-6;

/// The shape of a dense model.
struct Shape {
    name: &'static str,
    dim: usize,
    hidden_dim: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    /// Sequences that generate together.
    batches: &'static [usize],
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "1B",
        dim: 2048,
        hidden_dim: 8192,
        n_layers: 16,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        vocab_size: 128_256,
        batches: &[1],
    },
    Shape {
        name: "8B",
        dim: 4096,
        hidden_dim: 14_336,
        n_layers: 32,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 128,
        vocab_size: 128_256,
        batches: &[1, 8, 32, 128],
    },
];

/// The types of a file's weights: most of them, values and down projections of every second layer, and the head.
const FILES: [(&str, [BlockType; 3]); 3] = [
    ("Q4_K_M", [BlockType::Q4_K, BlockType::Q6_K, BlockType::Q6_K]),
    ("Q8_0", [BlockType::Q8_0; 3]),
    ("BF16", [BlockType::BF16; 3]),
];

/// Positions in front of a decode row alone, and of several.
const CONTEXTS: [usize; 2] = [4096, 512];
/// Rows of a prompt.
const PROMPT: usize = 512;
/// Rows of matrices and prompts that are counted.
const SAMPLES: [usize; 2] = [128, 256];
const PAGE_LEN: usize = 32;

/// What a step is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepOf {
    /// As many decode rows, each of a sequence, and what they are quantized to for products with levels.
    Tokens(usize, QuantType),
    /// A prompt, by `mma.sync` or by `wgmma`.
    Prompt { wgmma: bool },
}

impl StepOf {
    fn n_rows(self) -> usize {
        match self {
            Self::Tokens(n_rows, _) => n_rows,
            Self::Prompt { .. } => PROMPT,
        }
    }

    /// Positions of a sequence behind the step.
    fn kv_len(self) -> usize {
        match self {
            Self::Tokens(n_rows, _) => CONTEXTS[usize::from(n_rows > 1)] + 1,
            Self::Prompt { .. } => PROMPT,
        }
    }
}

/// Seconds of a kernel's launches on a card, and which limit they meet.
fn seconds(card: &Card, work: &[f64; 8]) -> (f64, &'static str) {
    let [launches, read, written, ops @ ..] = *work;
    let mut most = ((read + written) / card.bandwidth, "memory");
    let names = ["floats", "dp4a", "tensor cores", "tensor cores, int8", "instructions"];
    for ((n, rate), name) in ops.into_iter().zip(card.rates).zip(names) {
        if n / rate > most.0 {
            most = (n / rate, name);
        }
    }
    (most.0 + launches * LAUNCH, most.1)
}

/// What stands in front of the tables.
const HEAD: &str = include_str!("head.txt");

fn run() -> Result<(), Error> {
    let bench = Bench::new()?;
    println!("{HEAD}");
    let mut tables = String::new();
    println!(
        "| model | weights | step | launches | GB | H100, ms | H200, ms | H100, tokens/s | H200, tokens/s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for shape in &SHAPES {
        for (file, types) in FILES {
            let prompt = |wgmma| StepOf::Prompt { wgmma };
            let has_levels = takes_quantized(types[0]);
            let tokens = shape.batches.iter().flat_map(|&n| {
                let bf16 = has_levels.then_some(StepOf::Tokens(n, QuantType::Bf16));
                [StepOf::Tokens(n, QuantType::Int8)].into_iter().chain(bf16)
            });
            for of in tokens.chain([prompt(false), prompt(true)]) {
                let step = bench.step(shape, types, of)?;
                let (n_rows, after) = (of.n_rows(), of.kv_len() - 1);
                let what = match of {
                    StepOf::Tokens(n, quants) => {
                        let many = if n > 1 { format!(" of {n} sequences") } else { String::new() };
                        let by = if quants == QuantType::Bf16 { " in BF16" } else { "" };
                        format!("a token{many}{by} after {after}")
                    }
                    StepOf::Prompt { wgmma: false } => format!("a prompt of {PROMPT}"),
                    StepOf::Prompt { wgmma: true } => format!("a prompt of {PROMPT} by wgmma"),
                };
                let all = |i: usize| step.values().map(|work| work[i]).sum::<f64>();
                let [h100, h200] = CARDS
                    .each_ref()
                    .map(|card| step.values().map(|work| seconds(card, work).0).sum::<f64>());
                println!(
                    "| {} | {file} | {what} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} |",
                    shape.name,
                    all(0),
                    (all(1) + all(2)) / 1e9,
                    h100 * 1e3,
                    h200 * 1e3,
                    n_rows as f64 / h100,
                    n_rows as f64 / h200
                );
                tables += &format!("\n## {} in {file}: {what}\n\n", shape.name);
                tables += "| kernel | launches | MB | GFLOP | int8 Gop | M instructions | ";
                tables += &CARDS.each_ref().map(|card| format!("{}, us | ", card.name)).concat();
                tables += "limit |\n|---|---|---|---|---|---|---|---|---|\n";
                for (kernel, work) in &step {
                    let [launches, read, written, flops, dots, tensor, tensor_int, instructions] =
                        *work;
                    let times = CARDS.each_ref().map(|card| seconds(card, work));
                    tables += &format!(
                        "| `{kernel}` | {launches:.0} | {:.1} | {:.2} | {:.2} | {:.1} | {:.1} | {:.1} | {} |\n",
                        (read + written) / 1e6,
                        (flops + tensor) / 1e9,
                        (dots + tensor_int) / 1e9,
                        instructions / 1e6,
                        times[0].0 * 1e6,
                        times[1].0 * 1e6,
                        times[1].1
                    );
                }
            }
        }
    }
    print!("{tables}");
    Ok(())
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
