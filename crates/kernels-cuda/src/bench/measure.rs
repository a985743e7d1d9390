//! Measures the time of a case. Launches that rotate over copies of their weights are captured in a graph, which is
//! replayed between two events.

use std::time::Duration;

use super::case::Case;
use super::device::{Bench, Target};
use super::report::{Report, Row, Time};
use crate::{BenchError, Captured, Error};

/// Target duration of a replay in seconds. The first launch of a graph waits for microseconds that the others do not.
const REPLAY: f64 = 2.5e-3;
/// Bytes and operations per second, and the overhead of a launch in seconds, by which the number of launches per replay
/// is estimated.
const BYTES: f64 = 2.0e12;
const FLOPS: f64 = 150.0e12;
const LAUNCH: f64 = 3.0e-6;
/// The maximum number of launches of a graph, unless there are more copies.
const MAX_LAUNCHES: usize = 1000;
/// Warm-up replays, and measured replays.
pub(super) const WARM_REPLAYS: usize = 2;
const REPLAYS: usize = 9;

/// Number of launches of a graph: a multiple of `n_turns` that takes about [`REPLAY`].
fn n_launches(case: &Case, n_turns: usize) -> usize {
    let work = case.work();
    let time = (work.bytes / BYTES).max(work.flops / FLOPS) + LAUNCH;
    let wanted = ((REPLAY / time) as usize).clamp(1, MAX_LAUNCHES);
    wanted.div_ceil(n_turns).max(1) * n_turns
}

impl<D: Target> Bench<D> {
    /// Measures a case and writes its row. `launch` queues it with the copies of turn `i < n_turns`; `found` reads some
    /// of its results.
    pub(super) fn measure(
        &self,
        report: &mut Report<'_>,
        case: &Case,
        n_turns: usize,
        launch: &dyn Fn(usize) -> Result<(), Error>,
        found: &dyn Fn() -> Result<Vec<f32>, Error>,
    ) -> Result<(), BenchError> {
        let kernels = self.device.launched(&self.stream, &|| launch(0))?;
        let n = found()?.iter().filter(|x| !x.is_finite()).count();
        if n > 0 {
            return Err(BenchError::NotFinite { kernel: kernels.join("+"), n });
        }
        let time = self.time(case, n_turns, launch)?;
        let (launch, ceiling) = (self.launch_mode(), report.ceiling);
        report.row(&Row { case, kernels: &kernels, launch, time, ceiling })
    }

    /// Time of a launch in microseconds; none if the device is not measured.
    fn time(
        &self,
        case: &Case,
        n_turns: usize,
        launch: &dyn Fn(usize) -> Result<(), Error>,
    ) -> Result<Option<Time>, Error> {
        if !D::IS_GPU {
            self.replayed(n_turns, 1, &|i| launch(i % n_turns))?;
            return Ok(None);
        }
        let n = n_launches(case, n_turns);
        let times = self.replayed(n, WARM_REPLAYS + REPLAYS, &|i| launch(i % n_turns))?;
        Ok(Some(Time::of(&times[WARM_REPLAYS..], n)))
    }

    /// The durations of `n_replays` replays of `n` launches.
    pub(super) fn replayed(
        &self,
        n: usize,
        n_replays: usize,
        launch: &dyn Fn(usize) -> Result<(), Error>,
    ) -> Result<Vec<Duration>, Error> {
        let captured = Captured::new(&self.kernels, &self.stream, || (0..n).try_for_each(launch))?;
        let replay = |_| {
            let before = self.device.record_timed(&self.stream)?;
            captured.replay(&self.stream)?;
            let after = self.device.record_timed(&self.stream)?;
            self.device.synchronize(&self.stream)?;
            self.device.elapsed(&before, &after)
        };
        (0..n_replays).map(replay).collect()
    }
}

impl Time {
    /// Median and minimum per launch, from replays of `n` launches.
    pub(super) fn of(replays: &[Duration], n: usize) -> Self {
        let mut us: Vec<f64> = replays.iter().map(|t| t.as_secs_f64() * 1e6 / n as f64).collect();
        us.sort_by(f64::total_cmp);
        Self { median: us[us.len() / 2], min: us[0] }
    }
}

#[cfg(test)]
mod tests {
    use realizar_quant::BlockType;

    use super::super::case::{Form, Op, Phase};
    use super::super::shape::DENSE;
    use super::*;

    #[test]
    fn a_time_is_the_median_of_replays_divided_by_their_launches() {
        let replays = [30, 10, 20, 90, 25].map(Duration::from_micros);
        assert_eq!(Time::of(&replays, 10), Time { median: 2.5, min: 1.0 });
    }

    #[test]
    fn launches_take_all_copies_equally_often() {
        let types = vec![BlockType::Q4_K];
        let (phase, op, form) = (Phase::Decode, Op::Output, Form::Int8);
        let case = Case { shape: DENSE, phase, op, form, types, batch: 1, positions: None };
        // 9475072 bytes at 2 TB/s and 3 us are 7.74 us: 323 launches.
        for (n_turns, expected) in [(1, 323), (57, 342), (400, 400)] {
            assert_eq!(n_launches(&case, n_turns), expected, "{n_turns}");
        }
    }
}
