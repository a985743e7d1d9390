//! What a device cannot run of a plan: found before anything is uploaded, and said operation by operation.

use super::kv_spec;
use crate::backend::ExecutableOptions;
use crate::graph::plan::{Place, Plan};
use crate::graph::weights::{WeightData, WeightId, Weights};
use crate::graph::{Op, Prologue};
use realizar_kernels_cuda::{Driver, Matrix};

/// Reasons, each once, in the order of the plan.
#[derive(Default)]
struct Reasons(Vec<String>);

impl Reasons {
    fn add(&mut self, reason: String) {
        if !self.0.contains(&reason) {
            self.0.push(reason);
        }
    }
}

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
                    reasons.add("linear: a prologue was not asked for".to_owned());
                }
                aligned(&mut reasons, "linear", &step.inputs[0]);
                parts.iter().for_each(|part| matrix(&mut reasons, "linear", part.weight));
            }
            Op::Attention(a) => {
                let (layout, n_pages) = &options.kv[a.kv.group];
                if let Err(error) = kv_spec(layout, *n_pages).check("a layer's keys and values") {
                    reasons.add(format!("attention with heads of {}: {error}", a.head_dim));
                }
            }
            Op::ShortConv(_) | Op::DeltaNet(_) => {
                reasons.add("layers that carry a state".to_owned());
            }
            Op::Route(_) | Op::ExpertLinear(_) | Op::Combine => {
                reasons.add("layers of experts".to_owned());
            }
            Op::Reorder { .. } => reasons.add("columns in another order".to_owned()),
            _ => {}
        }
    }
    reasons.0
}
