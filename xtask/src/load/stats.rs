//! Percentiles, and what one round of a case comes to.

use std::time::Duration;

use super::client::{Failure, Reply};

/// The value below which a fraction of all values lies, between two values by a straight line; NaN
/// for none.
pub(super) fn percentile(values: &[f64], fraction: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = fraction.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    sorted[below] + (sorted[above] - sorted[below]) * (place - place.floor())
}

/// What is told of an answer; times in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Timing {
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) tokens: usize,
    /// From sending the request to the first chunk with text.
    pub(super) ttft: f64,
    /// Between chunks with text.
    pub(super) gaps: Vec<f64>,
    /// From sending the request to the end of the stream.
    pub(super) total: f64,
}

impl Timing {
    pub(super) fn new(reply: &Reply) -> Self {
        let millis = |d: Duration| d.as_secs_f64() * 1e3;
        let arrivals: Vec<f64> = reply.arrivals.iter().map(|&at| millis(at)).collect();
        Self {
            prompt_tokens: reply.usage.map_or(0, |u| u.prompt),
            cached_tokens: reply.usage.map_or(0, |u| u.cached),
            tokens: reply.tokens(),
            ttft: arrivals.first().copied().unwrap_or(f64::NAN),
            gaps: arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect(),
            total: millis(reply.total),
        }
    }
}

/// One round of one case on one server.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// From the first request to the end of the last answer, in seconds.
    pub(super) wall: f64,
    pub(super) timings: Vec<Timing>,
    /// Why requests failed.
    pub(super) failures: Vec<String>,
    /// The maximum resident memory of the server; 0 where the system does not tell.
    pub(super) peak_bytes: u64,
}

impl Sample {
    pub(super) fn new(wall: Duration, answers: &[Result<Reply, Failure>], peak_bytes: u64) -> Self {
        let timings = answers.iter().flatten().map(Timing::new).collect();
        let failures = answers.iter().filter_map(|a| a.as_ref().err()).map(ToString::to_string);
        Self { wall: wall.as_secs_f64(), timings, failures: failures.collect(), peak_bytes }
    }

    fn ttfts(&self) -> Vec<f64> {
        self.timings.iter().map(|t| t.ttft).filter(|t| !t.is_nan()).collect()
    }

    fn totals(&self) -> Vec<f64> {
        self.timings.iter().map(|t| t.total).collect()
    }

    /// The times to the first token of the first, third, fifth answer, or those between.
    fn every_second(&self, first: usize) -> Vec<f64> {
        self.timings.iter().skip(first).step_by(2).map(|t| t.ttft).collect()
    }

    fn gaps(&self) -> Vec<f64> {
        self.timings.iter().flat_map(|t| t.gaps.iter().copied()).collect()
    }
}

/// A number that a round comes to.
pub(super) struct Measure {
    pub(super) name: &'static str,
    pub(super) better: Better,
    pub(super) of: fn(&Sample) -> f64,
}

/// Which of two values is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

const fn measure(name: &'static str, better: Better, of: fn(&Sample) -> f64) -> Measure {
    Measure { name, better, of }
}

/// Measures that are shown together.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) measures: &'static [Measure],
}

/// What is told of many requests at once.
pub(super) const MANY: &[Group] = &[
    Group {
        title: "Throughput",
        measures: &[
            measure("generated t/s", Better::Higher, |s| tokens(s, |t| t.tokens) / s.wall),
            measure("all t/s", Better::Higher, |s| {
                tokens(s, |t| t.tokens + t.prompt_tokens) / s.wall
            }),
        ],
    },
    Group {
        title: "Time to the first token",
        measures: &[
            measure("TTFT p50 ms", Better::Lower, |s| percentile(&s.ttfts(), 0.50)),
            measure("TTFT p95 ms", Better::Lower, |s| percentile(&s.ttfts(), 0.95)),
            measure("TTFT p99 ms", Better::Lower, |s| percentile(&s.ttfts(), 0.99)),
        ],
    },
    Group {
        title: "Time between tokens",
        measures: &[
            measure("ITL p50 ms", Better::Lower, |s| percentile(&s.gaps(), 0.50)),
            measure("ITL p95 ms", Better::Lower, |s| percentile(&s.gaps(), 0.95)),
            measure("ITL p99 ms", Better::Lower, |s| percentile(&s.gaps(), 0.99)),
        ],
    },
    Group {
        title: "Whole requests, failures and memory",
        measures: &[
            measure("request p50 ms", Better::Lower, |s| percentile(&s.totals(), 0.50)),
            measure("request p99 ms", Better::Lower, |s| percentile(&s.totals(), 0.99)),
            measure("prompt tokens cached", Better::Higher, |s| tokens(s, |t| t.cached_tokens)),
            measure("failed", Better::Lower, |s| s.failures.len() as f64),
            measure("peak MiB", Better::Lower, |s| s.peak_bytes as f64 / f64::from(1 << 20)),
        ],
    },
];

/// What is told of pairs of equal requests, one after the other on an idle server.
pub(super) const REPEATED: &[Group] = &[Group {
    title: "The same prompt twice",
    measures: &[
        measure("TTFT cold ms", Better::Lower, |s| percentile(&s.every_second(0), 0.50)),
        measure("TTFT cached ms", Better::Lower, |s| percentile(&s.every_second(1), 0.50)),
        measure("failed", Better::Lower, |s| s.failures.len() as f64),
    ],
}];

fn tokens(sample: &Sample, of: impl Fn(&Timing) -> usize) -> f64 {
    sample.timings.iter().map(of).sum::<usize>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_values() {
        let values = [4.0, 1.0, 3.0, 2.0];
        for (fraction, want) in [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0), (0.95, 3.85)] {
            assert!((percentile(&values, fraction) - want).abs() < 1e-12, "{fraction}");
        }
        assert_eq!(percentile(&[5.0], 0.99), 5.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_round_comes_to_its_numbers() {
        let timing = |ttft, gaps: &[f64], tokens| Timing {
            prompt_tokens: 10,
            cached_tokens: 0,
            tokens,
            ttft,
            gaps: gaps.to_vec(),
            total: 100.0,
        };
        let sample = Sample {
            wall: 2.0,
            timings: vec![timing(30.0, &[1.0, 3.0], 3), timing(10.0, &[2.0], 2)],
            failures: vec!["broken".to_owned()],
            peak_bytes: 3 << 20,
        };
        let of = |groups: &[Group], name: &str| {
            let mut measures = groups.iter().flat_map(|group| group.measures);
            (measures.find(|m| m.name == name).unwrap().of)(&sample)
        };
        for (name, want) in [
            ("generated t/s", 2.5),
            ("all t/s", 12.5),
            ("TTFT p50 ms", 20.0),
            ("ITL p50 ms", 2.0),
            ("failed", 1.0),
            ("peak MiB", 3.0),
        ] {
            assert_eq!(of(MANY, name), want, "{name}");
        }
        assert_eq!(of(REPEATED, "TTFT cold ms"), 30.0);
        assert_eq!(of(REPEATED, "TTFT cached ms"), 10.0);
    }
}
