//! Dispatch metrics: what each device ran, how often, and how long it took.
//!
//! An executable owns one [`DispatchMetrics`] per device. The thread that runs
//! the device records into it by atomic additions, without locks and without
//! allocations, and any other thread takes a [`DeviceSnapshot`] at any time.
//! Only numbers are here: how they are shown is the reader's business.
//!
//! What one dispatch is depends on the device: a step of the plan on the CPU, a
//! kernel on a GPU, which may need several for one operation or one for several.
//! Counts of devices of two kinds, and their ratio, compare different units.

mod latency;
mod snapshot;

pub use snapshot::OutputSnapshot;
pub use snapshot::{Bucket, ClassSnapshot, DeviceSnapshot, DispatchSnapshot, LatencySnapshot};

use latency::Latencies;
use realizar_model::graph::Op;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a dispatch does: an operation of the graph by its kind, or a whole step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OpClass {
    /// Rows of a table by token or by position.
    Embed,
    /// Normalizations that are operations of their own.
    Norm,
    /// Matrix products, with what is fused into them.
    Linear,
    /// The choice of experts, and the sum of what they give.
    Routing,
    /// Matrix products with the experts that rows chose.
    Experts,
    /// Rotary embeddings and their tables.
    Rope,
    /// Storing keys and values, and attention.
    Attention,
    /// Short convolutions and linear attention, which carry a state.
    Recurrent,
    /// Activation functions, gated or not.
    Activation,
    /// Sums, factors and caps.
    Elementwise,
    /// Selecting the rows whose logits are wanted.
    Select,
    /// What ranks exchange, and its sums.
    Exchange,
    /// A whole step, submission and read-back included. It contains the others
    /// and is not a dispatch in the sums over classes.
    Step,
}

impl OpClass {
    /// Every class, in the order of their declaration.
    pub const ALL: [Self; 13] = [
        Self::Embed,
        Self::Norm,
        Self::Linear,
        Self::Routing,
        Self::Experts,
        Self::Rope,
        Self::Attention,
        Self::Recurrent,
        Self::Activation,
        Self::Elementwise,
        Self::Select,
        Self::Exchange,
        Self::Step,
    ];

    /// The class of an operation.
    pub fn of(op: &Op) -> Self {
        match op {
            Op::Input | Op::Embed { .. } | Op::PosEmbed { .. } => Self::Embed,
            Op::Norm(_) => Self::Norm,
            Op::Linear { .. } => Self::Linear,
            Op::Route(_) | Op::ExpertBias(_) | Op::Combine => Self::Routing,
            Op::ExpertLinear(_) => Self::Experts,
            Op::RopeTable(_) | Op::Rope { .. } => Self::Rope,
            Op::Attention(_) | Op::StoreKv(_) => Self::Attention,
            Op::ShortConv(_) | Op::DeltaNet(_) => Self::Recurrent,
            Op::Act(_) | Op::GatedAct(_) => Self::Activation,
            Op::Add | Op::Mul | Op::Scale(_) | Op::Softcap(_) | Op::Clamp { .. } => {
                Self::Elementwise
            }
            Op::SelectRows | Op::Reorder { .. } | Op::Concat => Self::Select,
            Op::AllReduce { .. } | Op::AllGather => Self::Exchange,
        }
    }

    /// Its name, as it is serialized.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Norm => "norm",
            Self::Linear => "linear",
            Self::Routing => "routing",
            Self::Experts => "experts",
            Self::Rope => "rope",
            Self::Attention => "attention",
            Self::Recurrent => "recurrent",
            Self::Activation => "activation",
            Self::Elementwise => "elementwise",
            Self::Select => "select",
            Self::Exchange => "exchange",
            Self::Step => "step",
        }
    }
}

/// Whether a device is the processor or an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The processor of the machine, used directly.
    Cpu,
    /// A device behind a driver.
    Gpu,
}

/// The counters of one op class.
#[derive(Debug, Default)]
struct ClassMetrics {
    dispatches: AtomicU64,
    latencies: Latencies,
}

/// The counters of one device.
///
/// ```
/// use realizar_backends::metrics::{DeviceKind, DispatchMetrics, OpClass};
/// use std::time::Duration;
///
/// let metrics = DispatchMetrics::new("cpu".to_owned(), DeviceKind::Cpu);
/// metrics.record(OpClass::Linear, Duration::from_micros(250));
/// metrics.count(OpClass::Norm, 2);
/// let snapshot = metrics.snapshot();
/// assert_eq!(snapshot.dispatches, 3);
/// ```
#[derive(Debug)]
pub struct DispatchMetrics {
    device: String,
    kind: DeviceKind,
    created: (Instant, SystemTime),
    /// When counting began, in nanoseconds after `created`.
    start_ns: AtomicU64,
    classes: [ClassMetrics; OpClass::ALL.len()],
    whole_rows: AtomicU64,
    shortlists: AtomicU64,
    bytes_down: AtomicU64,
}

impl DispatchMetrics {
    /// Counters at zero, from now on.
    pub fn new(device: String, kind: DeviceKind) -> Self {
        Self {
            device,
            kind,
            created: (Instant::now(), SystemTime::now()),
            start_ns: AtomicU64::new(0),
            classes: Default::default(),
            whole_rows: AtomicU64::new(0),
            shortlists: AtomicU64::new(0),
            bytes_down: AtomicU64::new(0),
        }
    }

    /// The name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The kind of the device.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Counts `n` dispatches whose latency is not known, or not yet.
    pub fn count(&self, class: OpClass, n: u64) {
        self.classes[class as usize].dispatches.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds the latency of a dispatch that was counted before, by
    /// [`Self::count`]: a device's timestamps arrive after the dispatch.
    pub fn time(&self, class: OpClass, latency: Duration) {
        self.classes[class as usize].latencies.record(latency);
    }

    /// Counts one dispatch and adds its latency.
    pub fn record(&self, class: OpClass, latency: Duration) {
        self.count(class, 1);
        self.time(class, latency);
    }

    /// Counts what of an output was copied to the host: whole rows, shortlists of rows, and their bytes.
    pub fn came_down(&self, whole_rows: usize, shortlists: usize, n_bytes: u64) {
        self.whole_rows.fetch_add(whole_rows as u64, Ordering::Relaxed);
        self.shortlists.fetch_add(shortlists as u64, Ordering::Relaxed);
        self.bytes_down.fetch_add(n_bytes, Ordering::Relaxed);
    }

    /// Sets every counter to zero and the start time to now. What another thread
    /// records at the same moment may be kept in part.
    pub fn reset(&self) {
        for class in &self.classes {
            class.latencies.reset();
            class.dispatches.store(0, Ordering::Relaxed);
        }
        for counter in [&self.whole_rows, &self.shortlists, &self.bytes_down] {
            counter.store(0, Ordering::Relaxed);
        }
        self.start_ns.store(nanoseconds(self.created.0.elapsed()), Ordering::Relaxed);
    }

    /// The numbers as they are now. Its share of all dispatches is that of a
    /// device alone; [`DispatchSnapshot::new`] sets it for several.
    pub fn snapshot(&self) -> DeviceSnapshot {
        let start = Duration::from_nanos(self.start_ns.load(Ordering::Relaxed));
        let seconds = self.created.0.elapsed().saturating_sub(start).as_secs_f64().max(1e-9);
        let started = self.created.1.duration_since(UNIX_EPOCH).unwrap_or_default() + start;
        let classes = OpClass::ALL.iter().zip(&self.classes).map(|(&op_class, class)| {
            // A dispatch is counted before its latency, so it is read after it.
            let latency = class.latencies.snapshot();
            let dispatches = class.dispatches.load(Ordering::Relaxed);
            (op_class, dispatches, latency)
        });
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let output = OutputSnapshot {
            whole_rows: of(&self.whole_rows),
            shortlists: of(&self.shortlists),
            bytes: of(&self.bytes_down),
        };
        let device = self.device.clone();
        DeviceSnapshot::new(device, self.kind, (started, seconds), output, classes)
    }
}

/// A duration in nanoseconds, at most what fits (584 years).
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_model::graph::weights::WeightId;
    use realizar_model::graph::{
        Activation, Attention, ExpertBias, ExpertLinear, KvLayer, Norm, NormKind, Prologue, Reach,
        RopeAngles, RopeStyle, Route, Scoring,
    };

    #[test]
    fn class_of_every_operation() {
        let (kind, weight, bias) = (NormKind::Rms, None, None);
        let norm = Norm { kind, group: 4, eps: 1e-5, weight, bias, per_run: false };
        let attention = Attention {
            kv: KvLayer { group: 0, layer: 0 },
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 4,
            scale: 0.5,
            softcap: None,
            window: None,
            chunked: false,
            reach: Reach::Causal,
            sinks: None,
            alibi: None,
        };
        let linear = |prologue| Op::Linear { prologue, parts: Vec::new(), residual: true };
        let route = Route {
            scoring: Scoring::Softmax,
            n_experts: 4,
            n_chosen: 2,
            choice_bias: None,
            groups: None,
            normalize: true,
            scale: 1.0,
        };
        let experts = ExpertLinear {
            prologue: Prologue::None,
            parts: Vec::new(),
            n_experts: 4,
            n_chosen: 2,
            n_in: 8,
        };
        let bias = ExpertBias { biases: WeightId(0), n_experts: 4, n_chosen: 2 };
        let angles = RopeAngles { inv_freq: [1.0].into(), mscale: 1.0, components: [].into() };
        let table = WeightId(0);
        for (op, want) in [
            (Op::Input, "embed"),
            (Op::Embed { table, scale: 1.0 }, "embed"),
            (Op::PosEmbed { table }, "embed"),
            (Op::RopeTable(angles), "rope"),
            (Op::Norm(norm.clone()), "norm"),
            (linear(Prologue::None), "linear"),
            (linear(Prologue::Norm(norm)), "linear"),
            (Op::Route(route), "routing"),
            (Op::ExpertLinear(experts), "experts"),
            (Op::ExpertBias(bias), "routing"),
            (Op::Combine, "routing"),
            (Op::Rope { head_dim: 4, style: RopeStyle::Neox }, "rope"),
            (Op::Attention(attention), "attention"),
            (Op::Act(Activation::Gelu), "activation"),
            (Op::GatedAct(Activation::Silu), "activation"),
            (Op::Add, "elementwise"),
            (Op::Scale(2.0), "elementwise"),
            (Op::Softcap(30.0), "elementwise"),
            (Op::Clamp { min: -1.0, max: 1.0 }, "elementwise"),
            (Op::SelectRows, "select"),
            (Op::Reorder { order: table }, "select"),
            (Op::AllReduce { residual: true }, "exchange"),
            (Op::AllGather, "exchange"),
        ] {
            assert_eq!(OpClass::of(&op).name(), want, "{op:?}");
        }
    }

    #[test]
    fn names_are_those_of_json_and_indices_those_of_the_list() {
        for (idx, class) in OpClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, idx);
            assert_eq!(serde_json::to_value(class).unwrap(), class.name());
        }
    }

    #[test]
    fn counted_timed_and_reset() {
        let metrics = DispatchMetrics::new("d".to_owned(), DeviceKind::Gpu);
        metrics.count(OpClass::Rope, 5);
        metrics.time(OpClass::Rope, Duration::from_micros(3));
        metrics.record(OpClass::Linear, Duration::from_micros(7));
        metrics.record(OpClass::Step, Duration::from_micros(20));
        let snapshot = metrics.snapshot();
        assert_eq!(snapshot.dispatches, 6, "a step is no dispatch");
        let class = |name: &str| {
            let mut found = snapshot.op_classes.iter().filter(|c| c.op_class.name() == name);
            found.next().unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!(class("rope").dispatches, 5);
        let rope = class("rope").latency.as_ref().unwrap();
        assert_eq!((rope.count, rope.mean_us), (1, 3.0));
        assert_eq!(class("linear").share_of_time, Some(0.35));
        assert_eq!(class("step").dispatches, 1);
        assert_eq!(snapshot.op_classes.len(), 3, "classes without dispatches are left out");

        metrics.reset();
        let after = metrics.snapshot();
        assert_eq!((after.dispatches, after.op_classes.len()), (0, 0));
        assert!(after.start_unix_seconds >= snapshot.start_unix_seconds);
    }

    #[test]
    fn snapshots_while_another_thread_records() {
        const N: u64 = 200_000;
        let metrics = DispatchMetrics::new("d".to_owned(), DeviceKind::Cpu);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..N {
                    metrics.record(OpClass::Linear, Duration::from_micros(1 + i % 9));
                }
            });
            let mut last = 0;
            while last < N {
                let snapshot = metrics.snapshot();
                let Some(class) = snapshot.op_classes.first() else { continue };
                let Some(latency) = &class.latency else { continue };
                let in_buckets: u64 = latency.buckets.iter().map(|b| b.count).sum();
                assert_eq!(in_buckets, latency.count);
                assert!(latency.count >= last && latency.count <= class.dispatches);
                assert!(latency.min_us >= 1.0 && latency.max_us <= 9.0);
                let ordered = [
                    latency.min_us,
                    latency.p50_us,
                    latency.p90_us,
                    latency.p95_us,
                    latency.p99_us,
                ];
                assert!(ordered.is_sorted() && latency.p99_us <= latency.max_us);
                assert!((latency.min_us..=latency.max_us).contains(&latency.mean_us));
                last = latency.count;
            }
        });
        let snapshot = metrics.snapshot();
        let latency = snapshot.op_classes[0].latency.as_ref().unwrap();
        let sum_us: u64 = (0..N).map(|i| 1 + i % 9).sum();
        assert_eq!((latency.count, latency.sum_us), (N, sum_us as f64));
        assert_eq!((latency.min_us, latency.max_us), (1.0, 9.0));
    }
}
