//! What a device cannot run of a plan: found before anything is uploaded, and
//! said operation by operation.

use super::room::{Room, f32_bytes};
use super::{experts, kv_spec, recurrent};
use crate::ExecutableOptions;
use crate::gpu::Reasons;
use realizar_base::ByteSize;
use realizar_kernels_wgpu::{ExpertPairs, Gpu, KvLayer, Matrix};
use realizar_model::graph::plan::Plan;
use realizar_model::graph::weights::{WeightData, WeightId, Weights};
use realizar_model::graph::{Op, Prologue};

/// Why `gpu` cannot run `plan`; empty when it can.
pub(super) fn refusals(
    gpu: &Gpu,
    plan: &Plan,
    weights: &Weights,
    room: &Room,
    options: &ExecutableOptions,
) -> Vec<String> {
    let mut reasons = Reasons::default();
    let matrix = |reasons: &mut Reasons, op: &str, id: WeightId| {
        if let WeightData::Matrix { ty, rows, cols, .. } = weights.get(id)
            && let Err(error) = Matrix::check(gpu, op, *ty, *cols as u32)
        {
            reasons.add(format!("{op} of {ty} [{rows}, {cols}]: {error}"));
        }
    };
    for step in &plan.steps {
        match &step.op {
            Op::Embed { table, .. } => matrix(&mut reasons, "embed", *table),
            Op::PosEmbed { table } => matrix(&mut reasons, "pos_embed", *table),
            Op::Linear { prologue, parts, .. } => {
                if *prologue != Prologue::None {
                    reasons.add("linear: a prologue was not requested".to_owned());
                }
                parts.iter().for_each(|part| matrix(&mut reasons, "linear", part.weight));
            }
            Op::Attention(a) if a.alibi.is_some() => {
                reasons.add("attention with ALiBi".to_owned());
            }
            Op::Attention(a) => {
                let (layout, n_pages) = &options.kv[a.kv.group];
                let spec = kv_spec(layout, *n_pages);
                if let Err(error) = KvLayer::check(gpu, "a layer's keys", &spec) {
                    reasons.add(format!("attention with heads of {}: {error}", a.head_dim));
                }
            }
            Op::ShortConv(_) | Op::DeltaNet(_) => {
                if let Err(error) = recurrent::check(gpu, &step.op, options) {
                    reasons.add(format!("layers that carry a state: {error}"));
                }
            }
            Op::Route(route) => {
                if let Some(reason) = experts::route_refusal(route) {
                    reasons.add(reason);
                }
            }
            Op::ExpertLinear(linear) => {
                let refused = linear.parts.iter().filter_map(|p| experts::refusal(gpu, weights, p));
                refused.for_each(|reason| reasons.add(reason));
            }
            _ => {}
        }
    }
    let (max_rows, available) = (plan.limits.tokens, gpu.caps().max_workgroups);
    if max_rows > available as usize {
        reasons.add(format!(
            "a step of {max_rows} tokens exceeds the GPU's maxComputeWorkgroupsPerDimension of \
             {available} (a smaller chunk needs less)"
        ));
    }
    let n_tiles =
        room.pairs.map_or(0, |(n_pairs, n_experts)| ExpertPairs::most(n_pairs, n_experts));
    if n_tiles > available {
        reasons.add(format!(
            "{n_tiles} tiles of tokens and experts exceed the GPU's \
             maxComputeWorkgroupsPerDimension of {available} (a smaller chunk needs less)"
        ));
    }
    let caps = gpu.caps();
    let available = caps.max_binding_bytes.min(caps.max_buffer_bytes);
    for (what, n) in
        [("activations", plan.arena_len), ("positions and block tables", room.places.n_words)]
    {
        let n_bytes = f32_bytes(n);
        if n_bytes > available {
            let (taken, seen) = (ByteSize(n_bytes), ByteSize(available));
            reasons.add(format!(
                "{what} of {max_rows} tokens take {taken}, but a kernel can bind {seen} (a smaller \
                 chunk needs less)"
            ));
        }
    }
    reasons.0
}
