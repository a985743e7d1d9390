//! Feed-forward networks of which each row uses a few experts, as several architectures have them.

use super::Build;
use crate::Error;
use crate::architectures::config::{Config, Experts, Layer};
use crate::architectures::loader::Bias;
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Groups, Route, Scoring, ValueId};

/// No published router chooses from more.
const MAX_EXPERTS: usize = 1024;

/// The numbers of experts and of those that a row uses, in config.json.
///
/// # Errors
/// If they are missing or cannot be right.
pub(super) fn hf_counts(s: &HfSettings) -> Result<(usize, usize), Error> {
    let [other, key] = ["num_local_experts", "num_experts"];
    let key = match (s.opt_usize(key)?, s.opt_usize(other)?) {
        (Some(a), Some(b)) if a != b => {
            return Err(s.wrong(key, format!("{b}, as `{other}` says")));
        }
        (None, _) => other,
        _ => key,
    };
    let (n_experts, n_chosen) = (s.usize(key)?, s.usize("num_experts_per_tok")?);
    if n_experts > MAX_EXPERTS {
        return Err(s.wrong(key, format!("at most {MAX_EXPERTS} experts")));
    }
    if n_experts > 0 && !(1..=n_experts).contains(&n_chosen) {
        return Err(s.wrong("num_experts_per_tok", format!("some of {n_experts} experts")));
    }
    Ok((n_experts, n_chosen))
}

/// The numbers of experts and of those that a row uses, by these keys of config.json.
///
/// # Errors
/// If they are missing or cannot be right.
pub(super) fn hf_counts_of(
    s: &HfSettings,
    of_all: &str,
    of_row: &str,
) -> Result<(usize, usize), Error> {
    let (n_experts, n_chosen) = (s.usize(of_all)?, s.usize(of_row)?);
    if !(1..=MAX_EXPERTS).contains(&n_experts) {
        return Err(s.wrong(of_all, format!("at most {MAX_EXPERTS} experts")));
    }
    if !(1..=n_experts).contains(&n_chosen) {
        return Err(s.wrong(of_row, format!("some of {n_experts} experts")));
    }
    Ok((n_experts, n_chosen))
}

/// Puts experts in the layers that `mlp_only_layers` and `decoder_sparse_step` of config.json leave
/// to them.
///
/// # Errors
/// If the settings cannot be right.
pub(super) fn with_hf_sparse_layers(
    config: Config,
    s: &HfSettings,
    experts: Experts,
) -> Result<Config, Error> {
    let step = s.opt_usize("decoder_sparse_step")?.unwrap_or(1);
    if step == 0 {
        return Err(s.wrong("decoder_sparse_step", "a positive number"));
    }
    let dense = s.opt_usizes("mlp_only_layers")?.unwrap_or_default();
    Ok(config.with_layers(|l, layer| {
        let is_sparse =
            experts.n_experts > 0 && (l + 1).is_multiple_of(step) && !dense.contains(&l);
        layer.experts = is_sparse.then_some(experts);
    }))
}

/// The numbers of experts and of those that a row uses, in GGUF files; `None` without experts.
///
/// # Errors
/// If they cannot be right.
pub(super) fn gguf_counts(s: GgufSettings<'_>) -> Result<Option<(usize, usize)>, Error> {
    let n_experts = s.opt_usize("expert_count")?.unwrap_or(0);
    if n_experts == 0 {
        return Ok(None);
    }
    if n_experts > MAX_EXPERTS {
        let expected = format!("at most {MAX_EXPERTS} experts");
        return Err(s.wrong("expert_count", expected, n_experts.to_string()));
    }
    let n_chosen = s.usize("expert_used_count")?;
    if !(1..=n_experts).contains(&n_chosen) {
        let expected = format!("some of {n_experts} experts");
        return Err(s.wrong("expert_used_count", expected, n_chosen.to_string()));
    }
    Ok(Some((n_experts, n_chosen)))
}

/// How scores become factors in GGUF files, `default` where the file does not say.
///
/// # Errors
/// If it is not one of the supported ways.
pub(super) fn gguf_scoring(s: GgufSettings<'_>, default: Scoring) -> Result<Scoring, Error> {
    Ok(match s.opt_usize("expert_gating_func")? {
        None | Some(0) => default,
        Some(1) => Scoring::Softmax,
        Some(2) => Scoring::Sigmoid,
        Some(3) => Scoring::SoftmaxOfChosen,
        Some(other) => {
            let feature = format!("an `expert_gating_func` of {other}");
            return Err(s.unsupported_value(feature, &["0 to 3"]));
        }
    })
}

/// The columns inside the expert that all rows share, in GGUF files: as the file says, or of as many
/// experts with `hidden_dim` columns each as it counts; `None` if there is no such expert.
///
/// # Errors
/// If the settings are no whole numbers.
pub(super) fn gguf_shared_dim(
    s: GgufSettings<'_>,
    hidden_dim: usize,
) -> Result<Option<usize>, Error> {
    let n_shared = s.opt_usize("expert_shared_count")?;
    let dim = s.opt_usize("expert_shared_feed_forward_length")?.filter(|&dim| dim > 0);
    let of_count = n_shared.map(|n| n.saturating_mul(hidden_dim)).filter(|&dim| dim > 0);
    Ok(dim.or(of_count).filter(|_| n_shared != Some(0)))
}

/// Experts, and one that all rows share, with a gate, as Qwen's config.json has them.
///
/// # Errors
/// If a setting is missing or cannot be right.
pub(super) fn hf_gated(s: &HfSettings, normalize: bool) -> Result<Experts, Error> {
    let shared_dim = Some(s.usize("shared_expert_intermediate_size")?);
    let hidden_dim = s.usize("moe_intermediate_size")?;
    let experts = Experts::softmax(hf_counts(s)?, hidden_dim, normalize);
    Ok(Experts { shared_dim, shared_gate: true, ..experts })
}

/// The same of GGUF files: in every layer, where a file that does not say how wide the shared expert is
/// means a layer's own width.
///
/// # Errors
/// If a setting cannot be right.
pub(super) fn with_gguf_gated(
    config: Config,
    s: GgufSettings<'_>,
    normalize: bool,
) -> Result<Config, Error> {
    let shared_dim = s.opt_usize("expert_shared_feed_forward_length")?.filter(|&dim| dim > 0);
    Ok(with_gguf_experts(config, s, normalize)?.with_layers(|_, layer| {
        let hidden_dim = shared_dim.unwrap_or(layer.hidden_dim);
        if let Some(experts) = &mut layer.experts {
            (experts.shared_dim, experts.shared_gate) = (Some(hidden_dim), true);
        }
    }))
}

/// The groups of experts, of which the worth is the sum of their two best; `None` where a row chooses from all.
///
/// # Errors
/// What cannot be right of the second number, if the groups do not fit the experts.
pub(super) fn groups_of(
    (n_groups, n_open): (usize, usize),
    (n_experts, n_chosen): (usize, usize),
) -> Result<Option<Groups>, String> {
    let fits = n_groups > 0 && n_experts.is_multiple_of(n_groups);
    let fits = fits && (1..=n_groups).contains(&n_open);
    if !fits || n_open * (n_experts / n_groups) < n_chosen {
        return Err(format!(
            "some of {n_groups} groups of {n_experts} experts, with {n_chosen} or more in them"
        ));
    }
    Ok((n_groups > 1).then_some(Groups { n: n_groups, n_open, n_best: 2 }))
}

/// Puts experts with `expert_feed_forward_length` columns in all layers of a GGUF file; where the file
/// does not say, the experts of a row have those of a dense layer together.
///
/// # Errors
/// If the settings are missing or cannot be right.
pub(super) fn with_gguf_experts(
    config: Config,
    s: GgufSettings<'_>,
    normalize: bool,
) -> Result<Config, Error> {
    let Some(counts) = gguf_counts(s)? else {
        return Err(s.wrong("expert_count", "a number of experts", "nothing"));
    };
    let n_layers = config.layers.len() + config.n_predictors;
    let hidden_dims = s.opt_per_layer("expert_feed_forward_length", n_layers)?;
    Ok(config.with_layers(|l, layer| {
        let hidden_dim = match &hidden_dims {
            Some(hidden_dims) if hidden_dims[l] > 0 => hidden_dims[l],
            _ => layer.hidden_dim / counts.1,
        };
        layer.experts = Some(Experts::softmax(counts, hidden_dim, normalize));
    }))
}

impl Build<'_> {
    /// The feed-forward network of layer `l`: the gated one, or its experts.
    pub(crate) fn ffn(&mut self, x: ValueId, l: usize, bias: Bias) -> Result<ValueId, Error> {
        let Layer { experts, .. } = self.config.layers[l];
        match experts {
            Some(experts) => self.routed_ffn(x, l, &experts),
            None => self.gated_ffn(x, l, bias),
        }
    }

    /// The sum over the experts that a row chose of `w_down(act(w_gate x) * w_up x)` by their factors,
    /// and of the expert that all rows share, if there is one.
    fn routed_ffn(&mut self, x: ValueId, l: usize, experts: &Experts) -> Result<ValueId, Error> {
        let &Experts {
            n_experts,
            n_chosen,
            hidden_dim,
            scoring,
            choice_bias,
            groups,
            normalize,
            scale,
            shared_dim,
            shared_gate,
        } = experts;
        let dim = self.config.dim;
        let scores = self.linear(x, (l, "router"), (n_experts, dim), Bias::None)?;
        let choice_bias = match choice_bias {
            true => Some(self.weights.vector((l, "choice_bias"), n_experts)?),
            false => None,
        };
        let route = Route { scoring, n_experts, n_chosen, choice_bias, groups, normalize, scale };
        let routes = self.graph.route(scores, route);
        let [gate, up] = self.weights.gate_up_experts(l, n_experts, hidden_dim, dim)?;
        let down = self.weights.experts((l, "experts.w_down"), n_experts, dim, hidden_dim)?;
        let gate = self.graph.expert_linear(x, routes, &gate);
        let up = self.graph.expert_linear(x, routes, &up);
        let hidden = self.graph.gated_act(gate, up, self.config.activation);
        let y = self.graph.expert_linear(hidden, routes, &down);
        let y = self.graph.combine(y, routes);
        match shared_dim {
            Some(hidden_dim) => {
                let shared = self.shared_expert(x, l, hidden_dim, shared_gate)?;
                Ok(self.graph.add(y, shared))
            }
            None => Ok(y),
        }
    }

    /// The expert that all rows share; if it is gated, times the sigmoid of a score of its own.
    pub(super) fn shared_expert(
        &mut self,
        x: ValueId,
        l: usize,
        hidden_dim: usize,
        is_gated: bool,
    ) -> Result<ValueId, Error> {
        let dim = self.config.dim;
        let [gate, up] = if self.weights.has((l, "shared.w_gate_up")) {
            let parts = [("shared.w_gate", hidden_dim), ("shared.w_up", hidden_dim)];
            self.weights.stacked_linears((l, "shared.w_gate_up"), parts, dim, Bias::None)?
        } else {
            let mut one = |leaf| self.weights.linear((l, leaf), hidden_dim, dim, Bias::None);
            [one("shared.w_gate")?, one("shared.w_up")?]
        };
        let [gate, up] = [gate, up].map(|linear| self.graph.linear(x, &linear));
        let score = match is_gated {
            true => Some(self.linear(x, (l, "shared.router"), (1, dim), Bias::None)?),
            false => None,
        };
        let hidden = self.graph.gated_act(gate, up, self.config.activation);
        let y = self.linear(hidden, (l, "shared.w_down"), (dim, hidden_dim), Bias::None)?;
        let Some(score) = score else { return Ok(y) };
        // The choice of one expert out of one, whose factor is what is wanted.
        let route = Route {
            scoring: Scoring::Sigmoid,
            n_experts: 1,
            n_chosen: 1,
            choice_bias: None,
            groups: None,
            normalize: false,
            scale: 1.0,
        };
        let routes = self.graph.route(score, route);
        Ok(self.graph.combine(y, routes))
    }
}
