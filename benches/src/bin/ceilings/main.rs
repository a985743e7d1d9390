//! Measures what this machine can do at best: bytes read per second from memory and caches, and
//! multiply-adds per second in each instruction set. Kernels are held against these numbers.
//!
//! Usage: `ceilings [--threads 1,2] [--quick]`. Prints one JSON object; `cargo xtask bench --ceilings`
//! shows it as a table.

mod caches;
mod compute;
mod memory;
mod timing;

use std::process::ExitCode;

/// One measured number.
struct Row {
    what: &'static str,
    how: String,
    threads: usize,
    value: f64,
    unit: &'static str,
}

/// 1, 2, 4 and so on, and all.
fn default_threads() -> Vec<usize> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads: Vec<usize> = (0..).map(|i| 1 << i).take_while(|&n| n < all).collect();
    threads.push(all);
    threads
}

fn parse(args: impl Iterator<Item = String>) -> Option<(Vec<usize>, bool)> {
    let (mut threads, mut quick) = (default_threads(), false);
    let mut args = args;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => quick = true,
            "--threads" => {
                let numbers = args.next()?;
                let numbers = numbers.split(',').map(|n| n.parse().ok().filter(|&n| n > 0));
                threads = numbers.collect::<Option<_>>()?;
            }
            _ => return None,
        }
    }
    Some((threads, quick))
}

fn main() -> ExitCode {
    let Some((threads, quick)) = parse(std::env::args().skip(1)) else {
        println!("usage: ceilings [--threads 1,2] [--quick]");
        return ExitCode::FAILURE;
    };
    let n_samples = if quick { 20 } else { 100 };
    let mut rows = Vec::new();
    for &n in &threads {
        match memory::measure(n, n_samples) {
            Ok(more) => rows.extend(more),
            Err(error) => {
                println!("memory for {n} threads: {error}");
                return ExitCode::FAILURE;
            }
        }
        rows.extend(compute::measure(n, n_samples));
    }
    let rows: Vec<String> = rows.iter().map(json).collect();
    println!("{{\"rows\": [\n  {}\n]}}", rows.join(",\n  "));
    ExitCode::SUCCESS
}

/// The texts are this program's own and need no escapes.
fn json(row: &Row) -> String {
    let Row { what, how, threads, value, unit } = row;
    format!(
        "{{\"what\": \"{what}\", \"how\": \"{how}\", \"threads\": {threads}, \
         \"value\": {value:.2}, \"unit\": \"{unit}\"}}"
    )
}
