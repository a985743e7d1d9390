//! The graph as text: one line per operation, for `inspect --graph` and snapshots.

use super::{
    DeltaNet, ExpertLinear, Graph, Groups, Norm, NormKind, Op, Prologue, Reach, Route, RowDomain,
    ShortConv, ValueId,
};
use crate::graph::weights::WeightId;
use std::fmt;

impl Graph {
    fn weight(&self, id: WeightId) -> String {
        let info = &self.weights[id.idx()];
        format!("{} {}{:?}", info.name, info.ty, info.shape)
    }

    /// `%4`, or `%4[64..96]` for columns of a value.
    fn operand(&self, id: ValueId) -> String {
        let (root, col) = self.root(id);
        if root == id {
            format!("%{}", id.0)
        } else {
            format!("%{}[{col}..{}]", root.0, col + self.values[id.idx()].width)
        }
    }

    fn norm(&self, norm: &Norm) -> String {
        let kind = match norm.kind {
            NormKind::Rms => "rms_norm",
            NormKind::Layer => "layer_norm",
        };
        let weight = norm.weight.map_or(String::new(), |w| format!(" {}", self.weight(w)));
        let bias = norm.bias.map_or(String::new(), |w| format!(" {}", self.weight(w)));
        let per_run = if norm.per_run { ", of each run" } else { "" };
        format!("{kind}(eps {:e}{per_run}){weight}{bias}", norm.eps)
    }

    fn prologue(&self, prologue: &Prologue) -> String {
        match prologue {
            Prologue::None => String::new(),
            Prologue::Norm(norm) => format!("{} -> ", self.norm(norm)),
            Prologue::Gated(act) => format!("gated {act:?} -> "),
            Prologue::Act(act) => format!("{act:?} -> "),
        }
    }

    fn route(&self, route: &Route) -> String {
        let Route { scoring, n_experts, n_chosen, choice_bias, groups, normalize, scale } = route;
        let mut text = format!("route to {n_chosen} of {n_experts} experts, {scoring:?}");
        if let Some(bias) = choice_bias {
            text += &format!(", chosen with {}", self.weight(*bias));
        }
        if let Some(Groups { n, n_open, n_best }) = groups {
            text += &format!(", of {n_open} of {n} groups");
            if *n_best == 1 {
                text += " by the best of each";
            }
        }
        if *normalize {
            text += ", normalized";
        }
        if *scale != 1.0 {
            text += &format!(", scale {scale}");
        }
        text
    }

    fn op(&self, op: &Op, n_inputs: usize) -> String {
        match op {
            Op::Input => "input".to_owned(),
            Op::Embed { table, scale } if *scale == 1.0 => format!("embed {}", self.weight(*table)),
            Op::Embed { table, scale } => format!("embed {} * {scale}", self.weight(*table)),
            Op::PosEmbed { table } => format!("pos_embed {}", self.weight(*table)),
            Op::RopeTable(angles) => {
                let last = angles.inv_freq.last().copied().unwrap_or_default();
                let n = 2 * angles.inv_freq.len();
                let mscale = angles.mscale;
                let mut text = format!("rope_table {n} columns, slowest {last:e}, mscale {mscale}");
                if !angles.components.is_empty() {
                    text += ", by ";
                    text.extend(angles.components.iter().map(|&c| ['t', 'h', 'w'][usize::from(c)]));
                }
                text
            }
            Op::Norm(norm) => self.norm(norm),
            Op::Linear { prologue, parts, residual } => {
                let before = self.prologue(prologue);
                let parts: Vec<String> = parts
                    .iter()
                    .map(|part| match part.bias {
                        Some(bias) => {
                            format!("{} + {}", self.weight(part.weight), self.weight(bias))
                        }
                        None => self.weight(part.weight),
                    })
                    .collect();
                let after = if *residual { " + residual" } else { "" };
                format!("{before}linear {}{after}", parts.join(" | "))
            }
            Op::Reorder { order } => format!("columns in the order of {}", self.weight(*order)),
            Op::Concat => "side by side".to_owned(),
            Op::Route(route) => self.route(route),
            Op::ExpertLinear(ExpertLinear { prologue, parts, n_chosen, n_experts, n_in: _ }) => {
                let before = self.prologue(prologue);
                let parts: Vec<_> = parts.iter().map(|part| self.weight(part.weight)).collect();
                format!("{before}{n_chosen} of {n_experts} experts {}", parts.join(" | "))
            }
            Op::ExpertBias(bias) => format!("+ {} of each expert", self.weight(bias.biases)),
            Op::Combine => "combine".to_owned(),
            Op::Rope { head_dim, style } => format!("rope {style:?}, heads of {head_dim}"),
            Op::Attention(a) => {
                let mut text = format!(
                    "attention group {} layer {}, {}/{} heads of {}, scale {}",
                    a.kv.group, a.kv.layer, a.n_heads, a.n_kv_heads, a.head_dim, a.scale
                );
                if let Some(window) = a.window {
                    let of = if a.chunked { "windows side by side of" } else { "window" };
                    text += &format!(", {of} {window}");
                }
                if n_inputs == 1 {
                    text += ", of what is stored";
                }
                if a.reach == Reach::OfRow {
                    text += ", as far as each row reaches";
                }
                if let Some(cap) = a.softcap {
                    text += &format!(", soft cap {cap}");
                }
                if let Some(slopes) = a.alibi {
                    text += &format!(", ALiBi {}", self.weight(slopes));
                }
                if let Some(sinks) = a.sinks {
                    text += &format!(", sinks {}", self.weight(sinks));
                }
                text
            }
            Op::StoreKv(kv) => {
                format!("store keys and values group {} layer {}", kv.group, kv.layer)
            }
            Op::ShortConv(ShortConv { taps, n_taps, bias, act, state: _ }) => {
                let bias = bias.map_or(String::new(), |bias| format!(" + {}", self.weight(bias)));
                let act = act.map_or(String::new(), |act| format!(" -> {act:?}"));
                format!("convolution of {n_taps} rows {}{bias}{act}", self.weight(*taps))
            }
            Op::DeltaNet(DeltaNet { n_k_heads, n_v_heads, k_dim, v_dim, .. }) => {
                format!("gated delta rule, {n_v_heads}/{n_k_heads} heads of {k_dim} by {v_dim}")
            }
            Op::Act(act) => format!("{act:?}"),
            Op::GatedAct(act) => format!("gated {act:?}"),
            Op::Add => "add".to_owned(),
            Op::Mul => "mul".to_owned(),
            Op::Scale(factor) => format!("scale {factor}"),
            Op::Softcap(cap) => format!("soft cap {cap}"),
            Op::Clamp { min: f32::MIN, max } => format!("clamp ..{max}"),
            Op::Clamp { min, max } => format!("clamp {min}..{max}"),
            Op::SelectRows => "select_rows".to_owned(),
            Op::AllReduce { residual: false } => "sum over the ranks".to_owned(),
            Op::AllReduce { residual: true } => "sum over the ranks + residual".to_owned(),
            Op::AllGather => "columns of all ranks".to_owned(),
        }
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_trunk = self.nodes.len();
        for (i, node) in self.all_nodes().enumerate() {
            if i == n_trunk {
                writeln!(f, "draft:")?;
            }
            let output = &self.values[node.output.idx()];
            let rows = match output.rows {
                RowDomain::Tokens => "tokens",
                RowDomain::Outputs => "outputs",
            };
            let inputs: Vec<String> = node.inputs.iter().map(|&i| self.operand(i)).collect();
            writeln!(
                f,
                "%{} [{rows}, {}] = ({}) {}",
                node.output.0,
                output.width,
                inputs.join(", "),
                self.op(&node.op, inputs.len())
            )?;
        }
        Ok(())
    }
}
