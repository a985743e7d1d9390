//! The run time of each kernel of a recording, by timestamps of the device.

use crate::{Buffer, Error, Gpu};
use std::time::Duration;

/// Runs per query set, with two timestamps each. WebGPU allows 4096 timestamps in a set, and the bytes of a
/// set must be a multiple of 256.
const RUNS_PER_SET: usize = 256;

/// Bytes per timestamp.
const TIMESTAMP_BYTES: u64 = 8;

/// Timestamps around each run of a recording; see [`Gpu::record_timed`].
///
/// A timer is reusable for any number of recordings, one after the other.
#[derive(Debug)]
pub struct Timer {
    sets: Vec<wgpu::QuerySet>,
    resolved: Buffer,
    readback: Buffer,
    /// Nanoseconds per tick.
    period: f64,
    /// Number of runs of the last submitted recording.
    n_runs: usize,
}

/// The duration between two timestamps.
///
/// The number of valid bits of a timestamp is unknown, so the duration is zero if the timestamps are out of
/// order: the counter wrapped between them, or the driver did not write them.
fn between([begin, end]: [u64; 2], period: f64) -> Duration {
    let nanoseconds = end.saturating_sub(begin) as f64 * period;
    Duration::from_nanos(nanoseconds as u64)
}

fn make_set(gpu: &Gpu) -> wgpu::QuerySet {
    gpu.device().create_query_set(&wgpu::QuerySetDescriptor {
        label: Some("timer"),
        ty: wgpu::QueryType::Timestamp,
        count: 2 * RUNS_PER_SET as u32,
    })
}

fn make_buffers(gpu: &Gpu, n_sets: usize) -> Result<(Buffer, Buffer), Error> {
    let n_bytes = set_bytes(n_sets);
    let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
    let resolved = gpu.raw_buffer("the timestamps", n_bytes, usage)?;
    Ok((resolved, gpu.readback_buffer("the timestamps", n_bytes)?))
}

/// Number of query sets for this many runs.
fn n_sets(n_runs: usize) -> usize {
    n_runs.max(1).div_ceil(RUNS_PER_SET)
}

/// Bytes of the timestamps of this many query sets.
fn set_bytes(n_sets: usize) -> u64 {
    (2 * RUNS_PER_SET * n_sets) as u64 * TIMESTAMP_BYTES
}

/// Nanoseconds per tick; `None` if the device has no timestamps.
fn period(gpu: &Gpu) -> Option<f64> {
    let period = f64::from(gpu.queue().get_timestamp_period());
    (gpu.caps().timestamps && period > 0.0).then_some(period)
}

impl Timer {
    /// Bytes of the buffers of a timer for `capacity` runs.
    pub fn bytes(gpu: &Gpu, capacity: usize) -> u64 {
        period(gpu).map_or(0, |_| 2 * set_bytes(n_sets(capacity)))
    }

    /// A timer for `capacity` runs, which grows if a recording has more. `None` if the device has no
    /// timestamps.
    ///
    /// # Errors
    /// If memory runs out or the device was lost.
    pub fn new(gpu: &Gpu, capacity: usize) -> Result<Option<Self>, Error> {
        let Some(period) = period(gpu) else { return Ok(None) };
        gpu.alive()?;
        let sets: Vec<_> = (0..n_sets(capacity)).map(|_| make_set(gpu)).collect();
        gpu.check("the timestamps", 0)?;
        let (resolved, readback) = make_buffers(gpu, sets.len())?;
        Ok(Some(Self { sets, resolved, readback, period, n_runs: 0 }))
    }

    /// Begins a pass that is timed as run `i` of a recording.
    pub(crate) fn pass(
        &mut self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        i: usize,
    ) -> wgpu::ComputePass<'static> {
        let (set, first) = (i / RUNS_PER_SET, 2 * (i % RUNS_PER_SET) as u32);
        while self.sets.len() <= set {
            self.sets.push(make_set(gpu));
        }
        let timestamp_writes = Some(wgpu::ComputePassTimestampWrites {
            query_set: &self.sets[set],
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        });
        let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
        encoder.begin_compute_pass(&descriptor).forget_lifetime()
    }

    /// Records the copies of the timestamps of `n_runs` runs.
    pub(crate) fn resolve(
        &mut self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        n_runs: usize,
    ) -> Result<(), Error> {
        let n_bytes = 2 * n_runs as u64 * TIMESTAMP_BYTES;
        if n_bytes > self.resolved.n_bytes() {
            (self.resolved, self.readback) = make_buffers(gpu, self.sets.len())?;
        }
        for (i, set) in self.sets.iter().enumerate() {
            let n = n_runs.saturating_sub(i * RUNS_PER_SET).min(RUNS_PER_SET);
            if n > 0 {
                let offset = (2 * i * RUNS_PER_SET) as u64 * TIMESTAMP_BYTES;
                encoder.resolve_query_set(set, 0..2 * n as u32, &self.resolved.raw, offset);
            }
        }
        if n_bytes > 0 {
            let (from, to) = (&self.resolved.raw, &self.readback.raw);
            encoder.copy_buffer_to_buffer(from, 0, to, 0, Some(n_bytes));
        }
        Ok(())
    }

    /// Records that a recording of `n_runs` runs was submitted.
    pub(crate) fn submitted(&mut self, n_runs: usize) {
        self.n_runs = n_runs;
    }

    /// Waits for the last submitted recording, and replaces `times` by the durations of its runs, in order. Runs
    /// without rows are omitted. A duration is zero if the device's counter wrapped during the run.
    ///
    /// # Errors
    /// If the device was lost or refused something.
    pub fn read(&self, gpu: &Gpu, times: &mut Vec<Duration>) -> Result<(), Error> {
        times.clear();
        let mut stamps = vec![[0_u64; 2]; self.n_runs];
        gpu.read(&self.readback, &mut stamps)?;
        times.extend(stamps.into_iter().map(|pair| between(pair, self.period)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Rows, RowsAt, View};
    use crate::{Elementwise, elementwise, testing};

    #[test]
    fn timestamps_become_durations() {
        let cases = [
            ([10, 25], 1.0, 15),
            ([10, 25], 52.083, 781),
            ([0, 0], 1.0, 0),
            ([u64::MAX - 3, 12], 1.0, 0),
        ];
        for (pair, period, nanoseconds) in cases {
            assert_eq!(between(pair, period), Duration::from_nanos(nanoseconds), "{pair:?}");
        }
    }

    #[test]
    fn every_run_has_a_time_and_its_result() {
        for gpu in testing::gpus() {
            let Some(mut timer) = Timer::new(&gpu, 3).unwrap() else {
                println!("skipped: {} takes no timestamps", gpu.name());
                continue;
            };
            let (width, n_rows) = (4096, 64);
            let values = testing::filled(&gpu, &vec![1.0_f32; (width * n_rows) as usize]);
            let batch = testing::filled(&gpu, &[0, 1, 0, n_rows]);
            let add_to_itself = |at| {
                let rows = Rows { values: &values, batch: &batch, at: RowsAt(at) };
                let x = View::dense(0, width);
                elementwise(&gpu, rows, Elementwise::Add, x, x, x).unwrap()
            };
            let (small, large) = (add_to_itself(0), add_to_itself(2));
            let mut times = vec![Duration::MAX; 9];

            // Nothing was recorded so far.
            timer.read(&gpu, &mut times).unwrap();
            assert_eq!(times, []);

            let mut recorder = gpu.record_timed(&mut timer);
            recorder.run(&small, 1);
            recorder.run(&large, 0);
            recorder.run(&large, n_rows);
            recorder.submit().unwrap();
            timer.read(&gpu, &mut times).unwrap();
            assert_eq!(times.len(), 2, "{times:?}");
            assert!(times.iter().all(|t| *t > Duration::ZERO && *t < Duration::from_secs(10)));
            let found: Vec<f32> = testing::contents(&gpu, &values, 2 * width as usize);
            assert_eq!((found[0], found[width as usize]), (4.0, 2.0));

            // A recording that is dropped changes nothing.
            let mut recorder = gpu.record_timed(&mut timer);
            recorder.run(&small, 1);
            drop(recorder);
            timer.read(&gpu, &mut times).unwrap();
            assert_eq!(times.len(), 2);

            // More runs than there was room for.
            let n = RUNS_PER_SET + 5;
            let mut recorder = gpu.record_timed(&mut timer);
            (0..n).for_each(|_| recorder.run(&small, 1));
            recorder.submit().unwrap();
            timer.read(&gpu, &mut times).unwrap();
            assert_eq!(times.len(), n);
            assert!(times[n - 5..].iter().all(|t| *t > Duration::ZERO));
        }
    }
}
