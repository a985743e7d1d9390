//! What a device cannot run of a plan: found before anything is uploaded, and said operation by operation.

use super::kv_spec;
use crate::ExecutableOptions;
use crate::gpu::Reasons;
use crate::gpu::weights;
use realizar_kernels_cuda::{DeltaNetSpec, Driver, Matrix, Routing};
use realizar_model::graph::plan::{Place, Plan};
use realizar_model::graph::weights::{WeightData, WeightId, Weights};
use realizar_model::graph::{Op, Prologue};

/// Why `plan` cannot run; empty when it can.
pub(super) fn refusals(plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> Vec<String> {
    let mut reasons = Reasons::default();
    let matrix = |reasons: &mut Reasons, op: &str, id: WeightId| {
        if let WeightData::Matrix { ty, rows, cols, .. } = weights.get(id)
            && let Err(error) = Matrix::<Driver>::check(op, *ty, *rows, *cols)
        {
            reasons.add(format!("{op} of {ty} [{rows}, {cols}]: {error}"));
        }
    };
    // Products read four values of their input at a time.
    let aligned = |reasons: &mut Reasons, op: &str, place: &Place| {
        if !place.start.is_multiple_of(4) || !place.stride.is_multiple_of(4) {
            let Place { width, stride, .. } = place;
            reasons.add(format!("{op} of {width} columns of {stride} that are not aligned"));
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
                aligned(&mut reasons, "linear", &step.inputs[0]);
                parts.iter().for_each(|part| matrix(&mut reasons, "linear", part.weight));
            }
            Op::Attention(a) if a.alibi.is_some() => {
                reasons.add("attention with ALiBi".to_owned());
            }
            Op::Attention(a) => {
                let (layout, n_pages) = &options.kv[a.kv.group];
                if let Err(error) = kv_spec(layout, *n_pages).check("a layer's keys and values") {
                    reasons.add(format!("attention with heads of {}: {error}", a.head_dim));
                }
            }
            Op::DeltaNet(net) if net.k_dim > DeltaNetSpec::MAX_KEY_DIM => {
                let most = DeltaNetSpec::MAX_KEY_DIM;
                reasons.add(format!("linear attention with keys of {}, at most {most}", net.k_dim));
            }
            Op::Route(route) if route.n_experts > Routing::<Driver>::MAX_EXPERTS => {
                reasons.add(format!("routing to {} experts", route.n_experts));
            }
            Op::ExpertLinear(linear) => {
                if linear.prologue != Prologue::None {
                    reasons.add("experts: a prologue was not requested".to_owned());
                }
                aligned(&mut reasons, "experts", &step.inputs[0]);
                if !linear.n_in.is_multiple_of(4) {
                    reasons.add(format!("experts of {} columns", linear.n_in));
                }
                for part in &linear.parts {
                    let (ty, rows, cols, _) = weights::matrix(weights, part.weight);
                    if let Err(error) = Matrix::<Driver>::check("experts", ty, rows, cols) {
                        reasons.add(format!("experts of {ty} [{rows}, {cols}]: {error}"));
                    }
                }
            }
            _ => {}
        }
    }
    reasons.0
}
