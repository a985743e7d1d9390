//! The ceilings of the device: reads and copies that miss every cache, and empty launches.

use super::device::{Bench, Target};
use super::measure::WARM_REPLAYS;
use super::random::Random;
use super::report::{Object, Report, Time};
use crate::device::{Argument, Launch};
use crate::image::Image;
use crate::{BenchError, Buffer, Error};

const IMAGE: &[u8] = include_bytes!("../../image/ceiling.ptx.br");
/// Threads of a reading block, and bytes that each reads at once, as in `cuda/ceiling.cu`.
const READ_THREADS: u32 = 512;
const CHUNK: usize = 64 << 10;
/// Blocks per multiprocessor that are tried.
const BLOCKS: [usize; 3] = [2, 4, 8];
/// Reads and copies per graph, measured replays, and empty launches per graph.
const IN_GRAPH: usize = 3;
const REPLAYS: usize = 7;
const N_LAUNCHES: usize = 500;

/// The kernel `nothing`.
pub(super) struct Nothing<D: Target>(D::Function);

impl<D: Target> Nothing<D> {
    pub(super) fn load(bench: &Bench<D>) -> Result<Self, Error> {
        Ok(Self(Image::load(&*bench.device, "ceiling", IMAGE)?.function("nothing")?))
    }

    pub(super) fn queue(&self, bench: &Bench<D>) -> Result<(), Error> {
        let launch = Launch {
            function: &self.0,
            grid: [1, 1, 1],
            block: [32, 1, 1],
            shared_bytes: 0,
            is_dependent: bench.device.launches_early(),
            arguments: &[],
        };
        // SAFETY: `nothing` has no arguments and touches no memory.
        unsafe { bench.device.launch(&bench.stream, &launch) }
    }
}

/// Writes a ceiling, or another row that belongs to no model.
pub(super) fn write(
    report: &mut Report<'_>,
    name: &str,
    launch: &str,
    value: Option<f64>,
    unit: &str,
) -> Result<(), BenchError> {
    let mut object = Object::new("ceiling");
    object.text("name", name).text("launch", launch).float("value", value).text("unit", unit);
    report.record(&object.end())?;
    let value = value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    report.say(&format!("{name} {launch}: {value} {unit}"))
}

/// Measures reads and copies. The best read rate is the ceiling of the rows that follow.
pub(super) fn memory<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
) -> Result<(), BenchError> {
    let n_bytes = bench.sizes.ceiling_bytes;
    let from = bench.values(n_bytes / 4)?;
    let per_second = |n: usize, times: &[std::time::Duration]| {
        let time = Time::of(&times[WARM_REPLAYS..], IN_GRAPH);
        D::IS_GPU.then(|| n as f64 / time.median * 1e6)
    };
    let n_replays = WARM_REPLAYS + if D::IS_GPU { REPLAYS } else { 1 };
    let read = Image::load(&*bench.device, "ceiling", IMAGE)?.function("read_all")?;
    let n_chunks = n_bytes / CHUNK;
    let sums = Buffer::new(&bench.device, "sums of blocks", 4 * n_chunks)?;
    let expected = sum_of_values(n_bytes / 4);
    let mut best: Option<f64> = None;
    let in_turn = BLOCKS.map(|n| n * bench.device.n_multiprocessors());
    for n_blocks in std::iter::once(n_chunks).chain(in_turn) {
        let n_blocks = n_blocks.min(n_chunks) as u32;
        let arguments = [
            Argument::Address(from.address()),
            Argument::I32(n_chunks as i32),
            Argument::Address(sums.address()),
        ];
        let launch = Launch {
            function: &read,
            grid: [n_blocks, 1, 1],
            block: [READ_THREADS, 1, 1],
            shared_bytes: 0,
            is_dependent: bench.device.launches_early(),
            arguments: &arguments,
        };
        let times = bench.replayed(IN_GRAPH, n_replays, &|_| {
            // SAFETY: the arguments are those of `read_all` in order: the buffer has so many chunks. There are no more
            // blocks than chunks, and the sums have a word for each chunk. Both live until all replays have run.
            unsafe { bench.device.launch(&bench.stream, &launch) }
        })?;
        let mut found = vec![0u32; n_blocks as usize];
        sums.read(&bench.stream, 0, &mut found)?;
        let found = found.into_iter().fold(0, u32::wrapping_add);
        if found != expected {
            return Err(BenchError::Sum { found, expected });
        }
        let rate = per_second(n_bytes, &times);
        best = best.into_iter().chain(rate).reduce(f64::max);
        if !D::IS_GPU {
            break;
        }
    }
    let mode = bench.launch_mode();
    write(report, "read", mode, best.map(|rate| rate / 1e9), "GB/s")?;
    report.ceiling = best;

    let half = n_bytes / 2;
    let times = bench.replayed(IN_GRAPH, n_replays, &|_| {
        let at = from.address();
        // SAFETY: both halves lie inside the buffer, which lives until all replays have run.
        unsafe { bench.device.copy(&bench.stream, at + half as u64, at, half) }
    })?;
    // Bytes that are read; as many are written.
    let rate = per_second(n_bytes, &times);
    write(report, "copy", mode, rate.map(|rate| rate / 1e9), "GB/s")
}

/// Measures the cost of a launch in a graph of empty launches.
pub(super) fn launches<D: Target>(
    bench: &Bench<D>,
    report: &mut Report<'_>,
) -> Result<(), BenchError> {
    let nothing = Nothing::load(bench)?;
    let n = if D::IS_GPU { N_LAUNCHES } else { 2 };
    let times = bench.replayed(n, WARM_REPLAYS + REPLAYS, &|_| nothing.queue(bench))?;
    let time = D::IS_GPU.then(|| Time::of(&times[WARM_REPLAYS..], n).median);
    write(report, "launch_in_graph", bench.launch_mode(), time, "us")
}

/// The sum of the words of the first `n` values of [`Bench::values`], modulo 2^32.
fn sum_of_values(n: usize) -> u32 {
    let values = Random(11).floats(super::device::DISTINCT_VALUES.min(n));
    let sum = |values: &[f32]| values.iter().fold(0u32, |sum, x| sum.wrapping_add(x.to_bits()));
    let (times, rest) = (n / values.len(), n % values.len());
    sum(&values).wrapping_mul(times as u32).wrapping_add(sum(&values[..rest]))
}
