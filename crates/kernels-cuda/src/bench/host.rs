//! Host time of a launch and of a copy, alone and while the GPU is busy.

use std::time::Instant;

use super::ceiling::{Nothing, write};
use super::device::{Bench, Target};
use super::report::Report;
use crate::{BenchError, Buffer, Error};

/// Measurements per value.
const RUNS: usize = 9;
/// Bytes of a large copy and of the copy that keeps the GPU busy, and how often the latter is repeated.
const LARGE: usize = 256 << 20;
const BUSY_BYTES: usize = 1 << 30;
const BUSY_COPIES: usize = 20;
/// Launches that are queued together.
const N_LAUNCHES: usize = 500;
/// Words of a small copy, and the number of copies: more than the ring of pinned memory holds, and few enough for the
/// driver's queue.
const SMALL_WORDS: usize = 1024;
const SMALL_COPIES: usize = 32;

/// The median time in seconds.
fn median(mut once: impl FnMut() -> Result<f64, Error>) -> Result<f64, Error> {
    let mut times = (0..RUNS).map(|_| once()).collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

fn timed(work: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Copies that keep a GPU busy for some milliseconds.
struct Busy<'a, D: Target> {
    bench: &'a Bench<D>,
    buffer: Buffer<D>,
}

impl<D: Target> Busy<'_, D> {
    fn queue(&self) -> Result<(), Error> {
        let (at, half) = (self.buffer.address(), BUSY_BYTES / 2);
        (0..BUSY_COPIES).try_for_each(|_| {
            // SAFETY: both halves lie inside the buffer, which callers keep until the stream has been waited for.
            unsafe { self.bench.device.copy(&self.bench.stream, at + half as u64, at, half) }
        })
    }
}

/// Measures launches and copies on a GPU.
pub(super) fn run<D: Target>(bench: &Bench<D>, report: &mut Report<'_>) -> Result<(), BenchError> {
    let (device, stream, mode) = (&bench.device, &bench.stream, bench.launch_mode());
    let synchronize = || device.synchronize(stream);
    let nothing = Nothing::load(bench)?;
    let busy = Busy { bench, buffer: Buffer::new(device, "work", BUSY_BYTES)? };
    let queue = || (0..N_LAUNCHES).try_for_each(|_| nothing.queue(bench));
    queue()?;
    let of_host = median(|| {
        synchronize()?;
        busy.queue()?;
        timed(queue)
    })?;
    synchronize()?;
    let alone = median(|| timed(|| queue().and_then(|()| synchronize())))?;
    for (name, time) in [("launch_of_host", of_host), ("launch_alone", alone)] {
        write(report, name, mode, Some(time / N_LAUNCHES as f64 * 1e6), "us")?;
    }
    if device.launches_early() {
        return Ok(());
    }
    let mut host = vec![1u8; LARGE];
    let large = Buffer::new(device, "a copy", LARGE)?;
    let up = median(|| timed(|| large.write(stream, 0, &host).and_then(|()| synchronize())))?;
    let down = median(|| timed(|| large.read(stream, 0, &mut host)))?;
    for (name, time) in [("upload", up), ("download", down)] {
        write(report, name, mode, Some(LARGE as f64 / time / 1e9), "GB/s")?;
    }
    let to = Buffer::new(device, "small copies", 4 * SMALL_COPIES * SMALL_WORDS)?;
    let small = [("idle", false, SMALL_COPIES), ("busy", true, SMALL_COPIES), ("busy_4", true, 4)];
    for (name, is_busy, n) in small {
        let mut run = 0;
        let mut is_intact = true;
        let time = median(|| {
            run += 1;
            let of_copy = |i: usize| -> Vec<u32> {
                (0..SMALL_WORDS).map(|w| (run * 64 + i) as u32 * 7919 + w as u32).collect()
            };
            let numbers: Vec<Vec<u32>> = (0..n).map(of_copy).collect();
            synchronize()?;
            if is_busy {
                busy.queue()?;
            }
            let time = timed(|| {
                let mut all = numbers.iter().enumerate();
                all.try_for_each(|(i, numbers)| to.write(stream, 4 * i * SMALL_WORDS, numbers))
            })?;
            let mut found = vec![0u32; n * SMALL_WORDS];
            to.read(stream, 0, &mut found)?;
            is_intact &= found == numbers.concat();
            Ok(time / n as f64)
        })?;
        if !is_intact {
            return Err(BenchError::Upload);
        }
        write(report, &format!("small_upload_{name}"), mode, Some(time * 1e6), "us")?;
    }
    Ok(())
}
