//! A model's dimensions and constants, the same whichever file they come from.

mod check;
mod hf_window;
mod unusual;

pub use unusual::{AltUp, Latent, QueryGrowth};

pub(crate) use check::MAX_SIZE;
pub(crate) use hf_window::HfWindow;

use crate::Error;
use crate::architectures::loader::Bias;
use crate::architectures::rope::{HfRopeKeys, Rope};
use crate::checkpoint::{GgufSettings, HfSettings};
use crate::graph::{Activation, AttentionSpec, Groups, NormKind, Reach, Scoring};

/// What an architecture needs to know to record its graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Columns of the hidden state.
    pub dim: usize,
    /// The layers, in order.
    pub layers: Vec<Layer>,
    /// Rows of the embedding, padding included.
    pub vocab_size: usize,
    /// The longest sequence the model was made for.
    pub max_seq_len: usize,
    /// Added to a norm's variance.
    pub norm_eps: f32,
    /// Rotary embeddings, which layers name by their index; the first is that of layers that see
    /// everything.
    pub ropes: Vec<Rope>,
    /// Whether the heads of Q and K are normalized, where models differ.
    pub qk_norm: bool,
    /// Limit on what the gates of experts open to, and on the absolute values that they let through.
    pub gate_limit: Option<f32>,
    /// Soft cap on attention scores.
    pub attn_softcap: Option<f32>,
    /// Whether scores have ALiBi, with the slopes of the paper (arXiv:2108.12409).
    pub alibi: bool,
    /// How far rows see behind themselves.
    pub reach: Reach,
    /// Growth of queries with their position, in the layers that have it.
    pub query_growth: Option<QueryGrowth>,
    /// Limit on the absolute values of queries, keys and values.
    pub qkv_limit: Option<f32>,
    /// Soft cap on logits.
    pub logit_softcap: Option<f32>,
    /// Factor on the embedding of tokens.
    pub embed_scale: f32,
    /// Factor on what attention and feed-forward network add to the residual stream.
    pub residual_scale: f32,
    /// Factor on logits.
    pub logit_scale: f32,
    /// Whether the feed-forward network reads what attention reads, and both are added at once.
    pub parallel_residual: bool,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// Biases of the projections of attention, where models of the architecture differ.
    pub attn_bias: Bias,
    /// That of attention's output projection, where it is not as with the others.
    pub wo_bias: Option<Bias>,
    /// Biases of the feed-forward network, where models of the architecture differ.
    pub ffn_bias: Bias,
    /// Whether the head is the embedding, when the file says.
    pub tied_head: Option<bool>,
    /// Layers that the file has after those of [`Self::layers`], which predict further tokens.
    pub n_predictors: usize,
    /// Columns of the embedding that every token has for each layer, in models with such; else 0.
    pub per_layer_dim: usize,
    /// Where keys and values are made of latent vectors, their sizes.
    pub latent: Option<Latent>,
    /// Tokens that have embeddings for each layer, if they are fewer than all; the others have the first's.
    pub per_layer_tokens: Option<usize>,
    /// The streams of hidden states, in models with several.
    pub altup: Option<AltUp>,
    /// The first of these, where the architecture knows what it looks like.
    pub predictor: Option<Layer>,
}

/// What may differ from one layer of a model to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layer {
    /// Query heads.
    pub n_heads: usize,
    /// Key-value heads; `n_heads` is a multiple.
    pub n_kv_heads: usize,
    /// Columns of a head; `n_heads * head_dim` need not be `dim`.
    pub head_dim: usize,
    /// Columns inside the feed-forward network.
    pub hidden_dim: usize,
    /// The positions that a query sees, itself included; `None` is all.
    pub window: Option<usize>,
    /// Whether windows lie side by side: a position sees only those of its own, up to itself.
    pub chunked: bool,
    /// Index of the rotary embedding in [`Config::ropes`]; `None` rotates nothing.
    pub rope: Option<usize>,
    /// Factor on attention scores.
    pub attn_scale: f32,
    /// What the layer has instead of one feed-forward network, if it has experts.
    pub experts: Option<Experts>,
    /// What the layer has instead of attention, if it does not attend.
    pub recurrent: Option<Recurrent>,
    /// The earlier layer whose keys and values it attends to, if it has none of its own.
    pub kv_of: Option<usize>,
    /// By how many deviations gates must lie above their mean to stay open, if any need to.
    pub gate_cutoff: Option<f32>,
}

/// The experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// Experts to choose from.
    pub n_experts: usize,
    /// Experts of a row.
    pub n_chosen: usize,
    /// Columns inside an expert.
    pub hidden_dim: usize,
    /// How the scores of the router become factors.
    pub scoring: Scoring,
    /// Whether a vector is added to the factors for the choice alone.
    pub choice_bias: bool,
    /// Groups of the experts, if a row does not choose from all of them.
    pub groups: Option<Groups>,
    /// Whether factors of a row are divided by their sum.
    pub normalize: bool,
    /// Times each factor.
    pub scale: f32,
    /// Columns inside an expert that all rows use.
    pub shared_dim: Option<usize>,
    /// Whether what that expert gives is multiplied by the sigmoid of a score of its own.
    pub shared_gate: bool,
}

impl Experts {
    /// Experts that a softmax over all of them chooses.
    pub fn softmax(
        (n_experts, n_chosen): (usize, usize),
        hidden_dim: usize,
        normalize: bool,
    ) -> Self {
        Self {
            n_experts,
            n_chosen,
            hidden_dim,
            scoring: Scoring::Softmax,
            choice_bias: false,
            groups: None,
            normalize,
            scale: 1.0,
            shared_dim: None,
            shared_gate: false,
        }
    }
}

/// A layer that carries a state along the sequence instead of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recurrent {
    /// A gated convolution over `n_taps` positions.
    ShortConv {
        /// Positions that an element depends on.
        n_taps: usize,
    },
    /// Linear attention by the gated delta rule.
    DeltaNet {
        /// Heads of keys and queries.
        n_k_heads: usize,
        /// Heads of values, a multiple.
        n_v_heads: usize,
        /// Columns of a key.
        k_dim: usize,
        /// Columns of a value.
        v_dim: usize,
        /// Positions that the convolution before it sees.
        n_taps: usize,
    },
}

impl Layer {
    /// A layer without a window, with the first rotary embedding and scores that are divided by
    /// the square root of `head_dim`.
    pub fn new(n_heads: usize, n_kv_heads: usize, head_dim: usize, hidden_dim: usize) -> Self {
        let attn_scale = 1.0 / (head_dim as f32).sqrt();
        Self {
            n_heads,
            n_kv_heads,
            head_dim,
            hidden_dim,
            window: None,
            chunked: false,
            rope: Some(0),
            attn_scale,
            experts: None,
            recurrent: None,
            kv_of: None,
            gate_cutoff: None,
        }
    }

    /// Columns of the queries.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of the keys, and of the values.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

/// Which keys of config.json a family's class in transformers reads, where classes differ.
#[derive(Debug, Clone, Copy)]
pub struct HfKeys {
    /// The name of the activation; `None` where the class has SiLU whatever the file says.
    pub activation: Option<&'static str>,
    /// The rotary embedding.
    pub rope: HfRopeKeys,
}

impl HfKeys {
    /// What most families read.
    pub const COMMON: Self = Self { activation: Some("hidden_act"), rope: HfRopeKeys::COMMON };
}

impl Config {
    /// The attention of layer `l`.
    pub fn attention(&self, l: usize) -> AttentionSpec {
        let Layer { n_heads, n_kv_heads, head_dim, window, chunked, attn_scale, .. } =
            self.layers[l];
        AttentionSpec {
            n_heads,
            n_kv_heads,
            head_dim,
            scale: attn_scale,
            softcap: self.attn_softcap,
            window,
            chunked,
            reach: self.reach,
            sinks: None,
            alibi: None,
        }
    }

    /// The settings that transformers' decoders share, without biases and windows. `s` has the
    /// defaults of the family's class, and at least that of `max_position_embeddings`.
    ///
    /// # Errors
    /// If a setting is missing or cannot be right.
    pub fn from_hf(s: &HfSettings, keys: &HfKeys) -> Result<Self, Error> {
        let n_heads = s.usize("num_attention_heads")?;
        let dim = s.usize("hidden_size")?;
        let head_dim = match s.opt_usize("head_dim")? {
            Some(head_dim) => head_dim,
            None => dim.checked_div(n_heads).unwrap_or(0),
        };
        let max_seq_len = s.usize("max_position_embeddings")?;
        let n_kv_heads = s.opt_usize("num_key_value_heads")?.unwrap_or(n_heads);
        let layer = Layer::new(n_heads, n_kv_heads, head_dim, s.usize("intermediate_size")?);
        let config = Self {
            dim,
            layers: vec![layer; hf_n_layers(s, "num_hidden_layers")?],
            vocab_size: s.usize("vocab_size")?,
            max_seq_len,
            norm_eps: s.f32_or("rms_norm_eps", 1e-6)?,
            ropes: vec![Rope::from_hf(s, &keys.rope, head_dim, max_seq_len)?],
            qk_norm: false,
            gate_limit: None,
            attn_softcap: None,
            alibi: false,
            reach: Reach::Causal,
            query_growth: None,
            qkv_limit: None,
            logit_softcap: None,
            embed_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            parallel_residual: false,
            activation: match keys.activation {
                Some(key) => activation_from_hf(s, s.str_or(key, "silu")?)?,
                None => Activation::Silu,
            },
            attn_bias: Bias::None,
            wo_bias: None,
            ffn_bias: Bias::None,
            // Inside other settings, the file may say it only by having no head.
            tied_head: match s.has("tie_word_embeddings") || !s.is_of_text() {
                true => Some(s.bool_or("tie_word_embeddings", false)?),
                false => None,
            },
            n_predictors: 0,
            per_layer_dim: 0,
            latent: None,
            per_layer_tokens: None,
            altup: None,
            predictor: None,
        };
        config.checked_hf(s)
    }

    /// The configuration, if its sizes can be a model's.
    pub(crate) fn checked_hf(self, s: &HfSettings) -> Result<Self, Error> {
        self.check().map_err(|(key, expected, _)| s.wrong(key.1, expected))?;
        Ok(self)
    }

    /// The configuration, if its sizes can be a model's.
    pub(crate) fn checked_gguf(self, s: GgufSettings<'_>) -> Result<Self, Error> {
        self.check().map_err(|(key, expected, found)| s.wrong(key.0, expected, found))?;
        Ok(self)
    }

    /// The settings that llama.cpp's converter writes for every decoder, with norms of this
    /// kind, without windows, and with the biases of attention that the file holds.
    ///
    /// # Errors
    /// If a setting is missing or cannot be right.
    pub fn from_gguf(s: GgufSettings<'_>, norm: NormKind) -> Result<Self, Error> {
        Self::from_gguf_with_head(s, norm, None)
    }

    /// As [`Self::from_gguf`], with heads of `head_dim` columns whatever the file says of keys and values.
    ///
    /// # Errors
    /// If a setting is missing or cannot be right.
    pub fn from_gguf_with_head(
        s: GgufSettings<'_>,
        norm: NormKind,
        head_dim: Option<usize>,
    ) -> Result<Self, Error> {
        let n_layers = match s.usize("block_count")? {
            n if (1..=MAX_LAYERS).contains(&n) => n,
            n => return Err(s.wrong("block_count", A_SIZE, n.to_string())),
        };
        let of_layers = |key: &str| {
            let numbers = s.opt_per_layer(key, n_layers)?;
            numbers.ok_or_else(|| s.wrong(key, "a whole number", "nothing"))
        };
        let n_heads = of_layers("attention.head_count")?;
        let dim = match s.usize("embedding_length")? {
            n if (1..=MAX_SIZE).contains(&n) => n,
            n => return Err(s.wrong("embedding_length", A_SIZE, n.to_string())),
        };
        let own_head_dim = head_dim;
        let head_dim = head_dim.or(s.opt_usize("attention.key_length")?);
        let head_dim = match (head_dim, dim.checked_div(n_heads[0])) {
            (Some(head_dim), _) | (None, Some(head_dim @ 1..)) => head_dim,
            (None, _) => {
                let (key, found) = ("attention.head_count", n_heads[0].to_string());
                return Err(s.wrong(key, "a part of `embedding_length`", found));
            }
        };
        let v_dim = s.opt_usize("attention.value_length")?;
        if own_head_dim.is_none() && v_dim.is_some_and(|v| v != head_dim) {
            return Err(s.unsupported(OTHER_VALUES));
        }
        let max_seq_len = s.usize("context_length")?;
        let eps_key = match norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        };
        let n_kv_heads = s.opt_per_layer("attention.head_count_kv", n_layers)?;
        let n_kv_heads = n_kv_heads.as_ref().unwrap_or(&n_heads);
        // Models all of whose layers have experts may give the columns of an expert alone.
        let hidden_dims = match s.opt_per_layer("feed_forward_length", n_layers)? {
            Some(hidden_dims) => hidden_dims,
            None => match s.opt_per_layer("expert_feed_forward_length", n_layers)? {
                Some(hidden_dims) => hidden_dims,
                None => of_layers("feed_forward_length")?,
            },
        };
        let heads = n_heads.iter().zip(n_kv_heads);
        let layers = heads.zip(hidden_dims);
        let config = Self {
            dim,
            layers: layers
                .map(|((&n, &n_kv), hidden_dim)| {
                    // Zero stands for a layer that does not attend.
                    let n_kv = if n_kv == 0 { n } else { n_kv };
                    Layer::new(n, n_kv, head_dim, hidden_dim)
                })
                .collect(),
            vocab_size: s.vocab_size()?,
            max_seq_len,
            norm_eps: s.f32(eps_key)?,
            ropes: vec![Rope::from_gguf(s, head_dim, max_seq_len)?],
            qk_norm: false,
            gate_limit: None,
            attn_softcap: None,
            alibi: false,
            reach: Reach::Causal,
            query_growth: None,
            qkv_limit: None,
            logit_softcap: None,
            embed_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            parallel_residual: false,
            activation: Activation::Silu,
            attn_bias: Bias::IfPresent,
            wo_bias: None,
            ffn_bias: Bias::None,
            tied_head: None,
            n_predictors: 0,
            per_layer_dim: 0,
            latent: None,
            per_layer_tokens: None,
            altup: None,
            predictor: None,
        };
        config.check().map_err(|(key, expected, found)| {
            let key = if key.1 == "rms_norm_eps" { eps_key } else { key.0 };
            s.wrong(key, expected, found)
        })?;
        Ok(config)
    }

    /// Its layers, and the first that predicts further tokens.
    fn all_layers(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().chain(&self.predictor)
    }

    /// Changes every layer; the function gets its index and the layer.
    #[must_use]
    pub fn with_layers(mut self, mut change: impl FnMut(usize, &mut Layer)) -> Self {
        let all = self.layers.iter_mut().chain(&mut self.predictor);
        all.enumerate().for_each(|(l, layer)| change(l, layer));
        self
    }

    /// Sets the window of every layer.
    #[must_use]
    pub fn with_windows(self, mut window: impl FnMut(usize) -> Option<usize>) -> Self {
        // A window as long as the longest sequence of any model shows all of it.
        self.with_layers(|l, layer| layer.window = window(l).map(|w| w.min(MAX_POSITIONS)))
    }

    /// Lets layers with a window rotate queries and keys, and no others.
    #[must_use]
    pub fn with_rope_where_sliding(self) -> Self {
        self.with_layers(|_, layer| layer.rope = layer.window.map(|_| 0))
    }

    /// Lets the last `n` layers attend to the keys and values of the last layer before them with the same
    /// window; `None` if there is none for one of them.
    #[must_use]
    pub fn with_shared_kv(mut self, n: usize) -> Option<Self> {
        let n_own = self.layers.len().checked_sub(n)?;
        let (own, sharing) = self.layers.split_at_mut(n_own);
        for layer in sharing {
            let is_alike = |of: &Layer| {
                let shape = |l: &Layer| (l.window, l.n_heads, l.n_kv_heads, l.head_dim, l.rope);
                shape(of) == shape(layer)
            };
            layer.kv_of = Some(own.iter().rposition(is_alike)?);
        }
        Some(self)
    }

    /// Sets a window for the layers that transformers' `layer_types` calls
    /// sliding; without the list, for those that `sliding` picks, if the model has a window at all.
    ///
    /// # Errors
    /// If the list does not fit the layers or names a type that is not built; if layers slide and there is no
    /// window for them.
    pub(crate) fn with_hf_layer_types(
        self,
        s: &HfSettings,
        window: HfWindow,
        sliding: impl Fn(usize) -> bool,
    ) -> Result<Self, Error> {
        let types = [("full_attention", false), ("attention", false), ("sliding_attention", true)];
        let slides = hf_layer_types(s, self.layers.len(), &types)?;
        let Some(slides) = slides else {
            let slides: Vec<bool> = (0..self.layers.len()).map(sliding).collect();
            let window = if slides.contains(&true) { window.of_every_layer(s)? } else { None };
            return Ok(self.with_windows(|l| window.filter(|_| slides[l])));
        };
        let window = match window {
            HfWindow::Of(window) => Some(window),
            window if slides.contains(&true) => {
                let expected = format!("only `full_attention`, as {}", window.reason());
                return Err(s.wrong("layer_types", expected));
            }
            _ => None,
        };
        Ok(self.with_windows(|l| window.filter(|_| slides[l])))
    }
}

// No published model comes near this; a file that does is damaged.
const MAX_LAYERS: usize = 1 << 14;

/// What is refused of the lengths of heads.
const OTHER_VALUES: &str =
    "a value length other than the key length (`attention.value_length`, `attention.key_length`)";

/// What is expected of a size that is none.
pub(crate) const A_SIZE: &str = "a size of a model";

/// The number of layers in config.json.
///
/// # Errors
/// If it is missing or cannot be right.
pub(crate) fn hf_n_layers(s: &HfSettings, key: &str) -> Result<usize, Error> {
    match s.usize(key)? {
        n if (1..=MAX_LAYERS).contains(&n) => Ok(n),
        _ => Err(s.wrong(key, A_SIZE)),
    }
}

/// The entries of `layer_types` of config.json for `n_layers` layers, if it is present, mapped by `known`.
///
/// # Errors
/// If it does not fit the layers, or names another type.
pub(crate) fn hf_layer_types<T: Copy>(
    s: &HfSettings,
    n_layers: usize,
    known: &[(&str, T)],
) -> Result<Option<Vec<T>>, Error> {
    let Some(types) = s.opt_strs("layer_types")? else { return Ok(None) };
    if types.len() != n_layers {
        return Err(s.wrong("layer_types", format!("{n_layers} layers")));
    }
    let read = |ty: &str| {
        let found = known.iter().find(|(name, _)| *name == ty).map(|(_, value)| *value);
        found.ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            s.unsupported_value(format!("layer type `{ty}` (`layer_types`)"), &names)
        })
    };
    types.into_iter().map(read).collect::<Result<_, _>>().map(Some)
}

/// No context is longer.
pub const MAX_POSITIONS: usize = 1 << 31;

/// A window as files give it, where zero stands for none.
pub(crate) fn window_or_none(window: Option<usize>) -> Option<usize> {
    window.filter(|&w| w > 0)
}

/// The biases that a setting of config.json turns on, off when it is missing.
///
/// # Errors
/// If it is neither true nor false.
pub(crate) fn hf_bias(s: &HfSettings, key: &'static str) -> Result<Bias, Error> {
    Ok(if s.bool_or(key, false)? { Bias::IfPresent } else { Bias::Denied(key) })
}

/// The activations that are built, each by one of its names.
const ACTIVATIONS: &[&str] = &[
    "silu",
    "gelu",
    "gelu_pytorch_tanh",
    "quick_gelu",
    "relu",
    "relu2",
    "tanh",
    "sigmoid",
    "mish",
];

/// The activation of that name in transformers.
///
/// # Errors
/// If it is not one of those that are built.
pub fn activation_from_hf(s: &HfSettings, name: &str) -> Result<Activation, Error> {
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu" | "gelu_python" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast" | "gelu_accurate" => {
            Activation::GeluTanh
        }
        "quick_gelu" => Activation::GeluQuick,
        "relu" => Activation::Relu,
        "relu2" => Activation::ReluSquared,
        "tanh" => Activation::Tanh,
        "sigmoid" => Activation::Sigmoid,
        "mish" => Activation::Mish,
        other => return Err(s.unsupported_value(format!("activation `{other}`"), ACTIVATIONS)),
    })
}
