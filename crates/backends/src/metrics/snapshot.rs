//! Dispatch metrics at one moment, with what is derived from the counters: means,
//! deviations, percentiles, shares, throughput, and the ratio of CPU to GPU.
//!
//! Everything here serializes to JSON. A number that does not exist, such as the
//! mean of no latencies, is `None` and never NaN.

use super::{DeviceKind, OpClass};
use serde::Serialize;
use std::time::Duration;

/// Latencies of one op class, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LatencySnapshot {
    /// Dispatches that were timed; at least one.
    pub count: u64,
    /// Sum.
    pub sum_us: f64,
    /// Sum of squares.
    pub sum_squares_us2: f64,
    /// Shortest.
    pub min_us: f64,
    /// Longest.
    pub max_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Sample standard deviation; 0 of one latency.
    pub std_us: f64,
    /// Median. This and the other percentiles come from the histogram, whose
    /// buckets are at most a quarter wider than their lower end.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The buckets of the histogram that are not empty, in ascending order.
    pub buckets: Vec<Bucket>,
}

/// A bucket of a latency histogram.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bucket {
    /// Its latencies are shorter than this many microseconds; the last bucket is
    /// unbounded.
    pub below_us: Option<f64>,
    /// Latencies in this bucket alone.
    pub count: u64,
}

/// One op class on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassSnapshot {
    /// The class.
    pub op_class: OpClass,
    /// Dispatches, timed or not.
    pub dispatches: u64,
    /// Dispatches per second since the start.
    pub dispatches_per_second: f64,
    /// Its latencies over those of whole steps; `None` if either was not timed.
    pub share_of_time: Option<f64>,
    /// Its latencies; `None` if none was timed.
    pub latency: Option<LatencySnapshot>,
}

/// What of the output of steps came from a device to the host. All is zero where the host itself runs
/// the steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct OutputSnapshot {
    /// Rows of logits or of hidden states.
    pub whole_rows: u64,
    /// Shortlists of rows of logits: the best few, and those that are requested individually.
    pub shortlists: u64,
    /// Bytes of both.
    pub bytes: u64,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceSnapshot {
    /// Its name.
    pub device: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// When counting began, in seconds since 1970.
    pub start_unix_seconds: f64,
    /// Seconds since then.
    pub seconds: f64,
    /// Dispatches of all classes but [`OpClass::Step`].
    pub dispatches: u64,
    /// The same per second since the start.
    pub dispatches_per_second: f64,
    /// The same as a share of all devices' dispatches; `None` if there were none.
    pub share_of_dispatches: Option<f64>,
    /// What of the output was copied to the host.
    pub output: OutputSnapshot,
    /// The classes that were dispatched.
    pub op_classes: Vec<ClassSnapshot>,
}

impl DeviceSnapshot {
    /// Derives what the counters of a device say after `seconds`.
    pub(super) fn new(
        device: String,
        kind: DeviceKind,
        (started, seconds): (Duration, f64),
        output: OutputSnapshot,
        classes: impl Iterator<Item = (OpClass, u64, Option<LatencySnapshot>)>,
    ) -> Self {
        let mut op_classes: Vec<ClassSnapshot> = classes
            .filter(|(_, dispatches, latency)| *dispatches > 0 || latency.is_some())
            .map(|(op_class, dispatches, latency)| ClassSnapshot {
                op_class,
                dispatches,
                dispatches_per_second: dispatches as f64 / seconds,
                share_of_time: None,
                latency,
            })
            .collect();
        let sum_us = |class: &ClassSnapshot| class.latency.as_ref().map(|latency| latency.sum_us);
        let step = op_classes.iter().find(|class| class.op_class == OpClass::Step).and_then(sum_us);
        if let Some(step) = step.filter(|&step| step > 0.0) {
            for class in &mut op_classes {
                class.share_of_time = sum_us(class).map(|sum| sum / step);
            }
        }
        let ops = op_classes.iter().filter(|class| class.op_class != OpClass::Step);
        let dispatches = ops.map(|class| class.dispatches).sum();
        Self {
            device,
            kind,
            start_unix_seconds: started.as_secs_f64(),
            seconds,
            dispatches,
            dispatches_per_second: dispatches as f64 / seconds,
            share_of_dispatches: ratio(dispatches, dispatches),
            output,
            op_classes,
        }
    }
}

/// All devices of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DispatchSnapshot {
    /// Dispatches on all devices, whole steps not counted.
    pub dispatches: u64,
    /// Those on the CPU.
    pub cpu_dispatches: u64,
    /// Those on GPUs.
    pub gpu_dispatches: u64,
    /// CPU dispatches over GPU dispatches; `None` without a GPU dispatch. The CPU
    /// counts operations and GPUs count kernels, so it is no share of the work.
    pub cpu_gpu_ratio: Option<f64>,
    /// Dispatches of all devices per second.
    pub dispatches_per_second: f64,
    /// Each device.
    pub devices: Vec<DeviceSnapshot>,
}

impl DispatchSnapshot {
    /// Puts devices side by side and gives each its share.
    pub fn new(mut devices: Vec<DeviceSnapshot>) -> Self {
        let of = |kind| {
            let devices = devices.iter().filter(move |device| device.kind == kind);
            devices.map(|device| device.dispatches).sum::<u64>()
        };
        let (cpu_dispatches, gpu_dispatches) = (of(DeviceKind::Cpu), of(DeviceKind::Gpu));
        let dispatches = cpu_dispatches + gpu_dispatches;
        for device in &mut devices {
            device.share_of_dispatches = ratio(device.dispatches, dispatches);
        }
        Self {
            dispatches,
            cpu_dispatches,
            gpu_dispatches,
            cpu_gpu_ratio: ratio(cpu_dispatches, gpu_dispatches),
            dispatches_per_second: devices.iter().map(|d| d.dispatches_per_second).sum(),
            devices,
        }
    }
}

/// The ratio of two counts; `None` where the second is 0.
fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::DispatchMetrics;
    use serde_json::{Value, json};

    fn device(kind: DeviceKind, dispatches: u64) -> DeviceSnapshot {
        let classes = [(OpClass::Linear, dispatches, None), (OpClass::Step, 1, None)];
        let output = OutputSnapshot::default();
        let times = (Duration::ZERO, 2.0);
        DeviceSnapshot::new("d".to_owned(), kind, times, output, classes.into_iter())
    }

    #[test]
    fn shares_and_the_ratio_of_several_devices() {
        let devices = [(DeviceKind::Cpu, 30), (DeviceKind::Gpu, 40), (DeviceKind::Gpu, 80)];
        let all = DispatchSnapshot::new(devices.map(|(kind, n)| device(kind, n)).to_vec());
        assert_eq!((all.dispatches, all.cpu_dispatches, all.gpu_dispatches), (150, 30, 120));
        assert_eq!((all.cpu_gpu_ratio, all.dispatches_per_second), (Some(0.25), 75.0));
        let shares: Vec<_> = all.devices.iter().map(|d| d.share_of_dispatches.unwrap()).collect();
        assert_eq!(shares, [0.2, 40.0 / 150.0, 80.0 / 150.0]);
    }

    #[test]
    fn nothing_counted_is_null_and_not_nan() {
        let idle = DispatchMetrics::new("gpu".to_owned(), DeviceKind::Gpu);
        let object = serde_json::to_value(DispatchSnapshot::new(vec![idle.snapshot()])).unwrap();
        assert_eq!(object["cpu_gpu_ratio"], Value::Null);
        assert_eq!(object["devices"][0]["share_of_dispatches"], Value::Null);
        assert_eq!(object["devices"][0]["dispatches_per_second"], 0.0);
        assert_eq!(object["devices"][0]["op_classes"], json!([]));
        assert_eq!(object["devices"][0]["kind"], "gpu");

        // Counted and never timed, with a step that took no time at all.
        idle.count(OpClass::Linear, 0);
        idle.count(OpClass::Attention, 4);
        idle.record(OpClass::Step, Duration::ZERO);
        let object = serde_json::to_value(idle.snapshot()).unwrap();
        let classes = object["op_classes"].as_array().unwrap();
        assert_eq!(classes.len(), 2);
        assert_eq!(classes[0]["op_class"], "attention");
        assert_eq!(classes[0]["dispatches"], 4);
        assert_eq!(classes[0]["latency"], Value::Null);
        assert_eq!(classes[0]["share_of_time"], Value::Null);
        assert_eq!(classes[1]["latency"]["std_us"], 0.0);
        assert_eq!(classes[1]["latency"]["p99_us"], 0.0);
        let mut text = String::new();
        walk(&object, &mut |value| text.push_str(&value.to_string()));
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    fn walk(value: &Value, see: &mut dyn FnMut(&Value)) {
        match value {
            Value::Object(map) => map.values().for_each(|value| walk(value, see)),
            Value::Array(list) => list.iter().for_each(|value| walk(value, see)),
            value => see(value),
        }
    }
}
