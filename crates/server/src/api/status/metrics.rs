//! `GET /metrics`: numbers of engines and devices in Prometheus' text format, version 0.0.4.
//!
//! Engines and devices count by themselves and give snapshots; nothing is kept here. Names and
//! labels of engine metrics are vLLM's, so that dashboards and routers made for it work.

use crate::registry::served::ServedModel;
use crate::registry::{LoadState, ModelStatus, ModelsConfig};
use crate::state::AppState;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use realizar_runtime::MemoryUse;
use realizar_runtime::engine::{DraftCounts, EngineStats, Histogram, PAGE_LEN};
use realizar_runtime::metrics::{DeviceKind, DeviceSnapshot, LatencySnapshot};
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Upper bounds of the histograms of dispatches, in microseconds. They are powers of two
/// nanoseconds, which are bounds of the buckets that devices count in, so no count is split.
const DISPATCH_BOUNDS_US: [f64; 12] = [
    1.024,
    4.096,
    16.384,
    65.536,
    262.144,
    1_048.576,
    4_194.304,
    16_777.216,
    67_108.864,
    268_435.456,
    1_073_741.824,
    4_294_967.296,
];

/// Answers with all metrics.
pub(crate) async fn get(State(state): State<AppState>) -> impl IntoResponse {
    let models = state.models();
    let mut text = exposition(&models.statuses(), models.config());
    if let Some(lost) = &state.config().lost_log_records {
        let mut out = Exposition::default();
        let name = "realizar:log_records_lost_total";
        out.family(name, "counter", "Log records that could not be written.");
        out.sample(name, &[], lost.load(Ordering::Relaxed) as f64);
        text.push_str(&out.0);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

type Stats = Vec<(String, EngineStats)>;
type Select = fn(&EngineStats) -> &Histogram;
/// Name, help, value.
type Row = (&'static str, &'static str, fn(&EngineStats) -> f64);

const GAUGES: [Row; 5] = [
    ("vllm:num_requests_running", "Requests running.", |s| s.running as f64),
    ("vllm:num_requests_waiting", "Requests waiting.", |s| s.waiting as f64),
    ("vllm:kv_cache_usage_perc", "Fraction of the key-value cache in use, 0 to 1.", |s| {
        s.kv_used_pages as f64 / s.kv_total_pages.max(1) as f64
    }),
    ("realizar:state_usage_perc", "Fraction of the recurrent-state slots in use, 0 to 1.", |s| {
        s.states_used as f64 / s.states_total.max(1) as f64
    }),
    ("realizar:prefix_cache_states", "Recurrent states in the prefix cache.", |s| {
        s.prefix_states as f64
    }),
];

const COUNTERS: [Row; 14] = [
    ("vllm:prompt_tokens_total", "Prompt tokens.", |s| s.prompt_tokens as f64),
    ("vllm:generation_tokens_total", "Generated tokens.", |s| s.generated_tokens as f64),
    ("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.", |s| {
        s.prefix_queries as f64
    }),
    ("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.", |s| s.prefix_hits as f64),
    ("vllm:num_preemptions_total", "Preemptions of running requests.", |s| s.preemptions as f64),
    ("vllm:spec_decode_num_draft_tokens_total", "Draft tokens.", |s| s.draft_tokens as f64),
    ("vllm:spec_decode_num_accepted_tokens_total", "Accepted draft tokens.", |s| {
        s.accepted_tokens as f64
    }),
    (
        "realizar:ahead_rows_total",
        "Decode rows launched before the results of the previous step were read.",
        |s| s.ahead_rows as f64,
    ),
    ("realizar:ahead_rows_wasted_total", "Of these, rows that were discarded.", |s| {
        s.ahead_wasted as f64
    }),
    ("realizar:prefix_cache_evictions_total", "Pages evicted from the prefix cache.", |s| {
        s.prefix_evictions as f64
    }),
    (
        "realizar:prefix_cache_states_stored_total",
        "Recurrent states stored in the prefix cache.",
        |s| s.prefix_states_stored as f64,
    ),
    (
        "realizar:prefix_cache_state_evictions_total",
        "Recurrent states evicted from the prefix cache.",
        |s| s.prefix_state_evictions as f64,
    ),
    (
        "realizar:prefix_cache_stateless_tokens_total",
        "Tokens whose pages were in the prefix cache without a recurrent state to resume from.",
        |s| s.prefix_stateless as f64,
    ),
    ("realizar:engine_panics_total", "Steps that panicked and failed their requests.", |s| {
        s.panics as f64
    }),
];

const HISTOGRAMS: [(&str, &str, Select); 6] = [
    ("vllm:time_to_first_token_seconds", "Time from arrival to the first token.", |s| &s.ttft),
    ("vllm:inter_token_latency_seconds", "Time from one token to the next.", |s| &s.inter_token),
    ("vllm:e2e_request_latency_seconds", "Time from arrival to the last token.", |s| &s.e2e),
    ("vllm:request_queue_time_seconds", "Time from arrival to the first step.", |s| &s.queue),
    ("vllm:request_prefill_time_seconds", "Time from the first step to the first token.", |s| {
        &s.prefill
    }),
    ("vllm:request_decode_time_seconds", "Time from the first token to the last.", |s| &s.decode),
];

fn exposition(models: &[ModelStatus], config: &ModelsConfig) -> String {
    let mut out = Exposition::default();
    let loaded: Vec<_> = models.iter().filter_map(|status| status.model.clone()).collect();
    let stats = loaded.iter().map(|model| (model.name.clone(), model.engine.stats())).collect();
    loads(&mut out, models, config);
    engines(&mut out, &stats);
    devices(&mut out, &loaded);
    out.0
}

/// Which models are loaded, what they take, and what was done for it. The numbers of engines
/// restart with each load; these do not.
fn loads(out: &mut Exposition, models: &[ModelStatus], config: &ModelsConfig) {
    type Row = (&'static str, &'static str, &'static str, fn(&ModelStatus) -> f64);
    const ROWS: [Row; 5] = [
        ("realizar:model_loaded", "gauge", "Whether the model is loaded.", |status| {
            f64::from(u8::from(status.state == LoadState::Loaded))
        }),
        ("realizar:model_loads_total", "counter", "Loads that succeeded.", |status| {
            status.counts.loads as f64
        }),
        ("realizar:model_load_failures_total", "counter", "Loads that failed.", |status| {
            status.counts.failures as f64
        }),
        (
            "realizar:model_load_seconds_total",
            "counter",
            "Time spent loading the model.",
            |status| status.counts.load_seconds,
        ),
        (
            "realizar:model_unloads_total",
            "counter",
            "Times that the model was unloaded.",
            |status| status.counts.unloads as f64,
        ),
    ];
    for (name, kind, help, value) in ROWS {
        out.family(name, kind, help);
        for status in models {
            out.sample(name, &[("model_name", &status.name)], value(status));
        }
    }
    let name = "realizar:model_memory_bytes";
    out.family(name, "gauge", "Memory of the loaded models, by kind.");
    for (status, memory) in models.iter().filter_map(|s| Some((s, s.memory()?))) {
        let MemoryUse { weights, kv, scratch } = memory;
        for (kind, bytes) in [("weights", weights), ("kv", kv), ("scratch", scratch)] {
            out.sample(name, &[("model_name", &status.name), ("kind", kind)], bytes as f64);
        }
    }
    let name = "realizar:engine_up";
    out.family(name, "gauge", "Whether the engine of the loaded model runs; if not, it has ended.");
    for model in models.iter().filter_map(|status| status.model.as_ref()) {
        let is_up = f64::from(u8::from(model.engine.is_alive()));
        out.sample(name, &[("model_name", &model.name)], is_up);
    }
    if let Some(limit) = config.memory_limit {
        let name = "realizar:model_memory_limit_bytes";
        out.family(name, "gauge", "Memory limit of all loaded models together.");
        out.sample(name, &[], limit as f64);
    }
}

fn engines(out: &mut Exposition, stats: &Stats) {
    for (kind, rows) in [("gauge", &GAUGES[..]), ("counter", &COUNTERS[..])] {
        for (name, help, value) in rows {
            out.family(name, kind, help);
            for (model, stats) in stats {
                out.sample(name, &[("model_name", model)], value(stats));
            }
        }
    }
    let name = "vllm:request_success_total";
    out.family(name, "counter", "Finished requests, by reason.");
    for (model, stats) in stats {
        let n = &stats.finished;
        for (reason, n) in
            [("stop", n.stop), ("length", n.length), ("abort", n.cancelled), ("error", n.failed)]
        {
            out.sample(name, &[("model_name", model), ("finished_reason", reason)], n as f64);
        }
    }
    type Count = fn(&DraftCounts) -> u64;
    let counts: [(_, _, Count); 2] = [
        ("realizar:draft_tokens_total", "Draft tokens, by source.", |c| c.drafted),
        ("realizar:draft_tokens_accepted_total", "Accepted draft tokens, by source.", |c| {
            c.accepted
        }),
    ];
    for (name, help, value) in counts {
        out.family(name, "counter", help);
        for (model, stats) in stats {
            for (source, counts) in [
                ("lookup", stats.drafts_by_lookup),
                ("model", stats.drafts_by_model),
                ("head", stats.drafts_by_head),
            ] {
                out.sample(
                    name,
                    &[("model_name", model), ("source", source)],
                    value(&counts) as f64,
                );
            }
        }
    }
    let name = "vllm:cache_config_info";
    out.family(name, "gauge", "Key-value cache: tokens per page and number of pages.");
    for (model, stats) in stats {
        let (block_size, pages) = (PAGE_LEN.to_string(), stats.kv_total_pages.to_string());
        let labels =
            [("model_name", &**model), ("block_size", &block_size), ("num_gpu_blocks", &pages)];
        out.sample(name, &labels, 1.0);
    }
    let name = "vllm:lora_requests_info";
    out.family(name, "gauge", "LoRA adapters in use; none are supported.");
    let labels = [("max_lora", "0"), ("running_lora_adapters", ""), ("waiting_lora_adapters", "")];
    out.sample(name, &labels, 0.0);
    for (name, help, select) in HISTOGRAMS {
        out.family(name, "histogram", help);
        for (model, stats) in stats {
            let Histogram { bounds, counts, sum } = select(stats);
            out.histogram(name, &[("model_name", model)], bounds, counts, *sum);
        }
    }
}

/// What the devices ran, by device and class of operations.
fn devices(out: &mut Exposition, models: &[Arc<ServedModel>]) {
    let (total, seconds) = ("realizar_dispatches_total", "realizar_dispatch_duration_seconds");
    let snapshots: Vec<_> = models
        .iter()
        .flat_map(|model| {
            let metrics = model.engine.dispatch_metrics();
            let snapshots: Vec<_> = metrics.iter().map(|device| device.snapshot()).collect();
            snapshots.into_iter().map(|snapshot| (model.name.clone(), snapshot))
        })
        .collect();
    let mut classes = Vec::new(); // (labels, dispatches, latencies)
    for (model, device) in &snapshots {
        let kind = match device.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        };
        for class in &device.op_classes {
            let labels = [
                ("model_name", &**model),
                ("device", &device.device),
                ("kind", kind),
                ("op_class", class.op_class.name()),
            ];
            classes.push((labels, class.dispatches, class.latency.as_ref()));
        }
    }
    out.family(total, "counter", "Dispatches, by device and operation class.");
    for (labels, dispatches, _) in &classes {
        out.sample(total, labels, *dispatches as f64);
    }
    let (rows, bytes) = ("realizar_output_rows_total", "realizar_output_bytes_total");
    out.family(rows, "counter", "Output rows copied to the host, whole or as a shortlist.");
    for (model, DeviceSnapshot { device, output, .. }) in &snapshots {
        for (given, n) in [("whole", output.whole_rows), ("shortlist", output.shortlists)] {
            let labels = [("model_name", &**model), ("device", device), ("given", given)];
            out.sample(rows, &labels, n as f64);
        }
    }
    out.family(bytes, "counter", "Bytes of output rows copied to the host.");
    for (model, DeviceSnapshot { device, output, .. }) in &snapshots {
        let labels = [("model_name", &**model), ("device", device)];
        out.sample(bytes, &labels, output.bytes as f64);
    }
    out.family(seconds, "histogram", "Duration of a dispatch, by device and operation class.");
    let bounds = DISPATCH_BOUNDS_US.map(|us| us / 1e6);
    for (labels, _, latency) in &classes {
        let Some(latency) = latency else { continue };
        out.histogram(seconds, labels, &bounds, &dispatch_counts(latency), latency.sum_us / 1e6);
    }
}

/// Counts of the fixed buckets; the last one is unbounded.
fn dispatch_counts(latency: &LatencySnapshot) -> Vec<u64> {
    let mut counts = vec![0; DISPATCH_BOUNDS_US.len() + 1];
    for bucket in &latency.buckets {
        let below = bucket.below_us.unwrap_or(f64::INFINITY);
        counts[DISPATCH_BOUNDS_US.partition_point(|&bound| bound < below)] += bucket.count;
    }
    counts
}

/// Text in Prometheus' format.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    /// Begins the samples of a metric.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        let labels = labels.collect::<Vec<_>>().join(",");
        self.line(format_args!("{name}{{{labels}}} {value}"));
    }

    /// `counts` are those of each bucket alone, one more than there are bounds.
    fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        let bucket = format!("{name}_bucket");
        let mut total = 0;
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        for (bound, count) in bounds.zip(counts) {
            total += count;
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), total as f64);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, total as f64);
    }

    fn line(&mut self, line: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// A label's value, in which three characters have to be escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_runtime::metrics::{DispatchMetrics, OpClass};
    use std::time::Duration;

    #[test]
    fn samples_are_written_as_prometheus_reads_them() {
        let mut out = Exposition::default();
        out.family("m", "histogram", "Help.");
        out.histogram("m", &[("l", "a\"\\\n")], &[0.5, 2.0], &[3, 0, 1], 4.25);
        let want = "# HELP m Help.\n# TYPE m histogram\n\
                    m_bucket{l=\"a\\\"\\\\\\n\",le=\"0.5\"} 3\n\
                    m_bucket{l=\"a\\\"\\\\\\n\",le=\"2\"} 3\n\
                    m_bucket{l=\"a\\\"\\\\\\n\",le=\"+Inf\"} 4\n\
                    m_sum{l=\"a\\\"\\\\\\n\"} 4.25\n\
                    m_count{l=\"a\\\"\\\\\\n\"} 4\n";
        assert_eq!(out.0, want);
    }

    #[test]
    fn latencies_fall_into_fixed_buckets() {
        let metrics = DispatchMetrics::new("d".to_owned(), DeviceKind::Cpu);
        let check = |ns: &[u64], want: &[(usize, u64)]| {
            metrics.reset();
            ns.iter().for_each(|&ns| metrics.record(OpClass::Linear, Duration::from_nanos(ns)));
            let snapshot = metrics.snapshot();
            let latency = snapshot.op_classes[0].latency.as_ref().expect("latencies");
            let counts = dispatch_counts(latency);
            let found: Vec<_> = counts.into_iter().enumerate().filter(|(_, n)| *n > 0).collect();
            assert_eq!(found, want, "{ns:?}");
        };
        check(&[10, 1023], &[(0, 2)]);
        check(&[1024, 4095, 4096], &[(1, 2), (2, 1)]);
        check(&[4_294_967_295, 4_294_967_296, 60_000_000_000], &[(11, 1), (12, 2)]);
    }
}
