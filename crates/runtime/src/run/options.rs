//! How a model is loaded: what is requested, and what the model and its devices make of it.

use realizar_quant::BlockType;

use crate::Error;
use crate::run::drafting::{DRAFTS, DraftHead, with_draft_head};
use crate::run::kv_room::kv_pools;
use crate::run::placement::DeviceLayers;
use realizar_backends::{Arithmetic, ExecutableOptions, PackedCache};
use realizar_model::architectures::ModelOutput;
use realizar_model::architectures::rope::RopeStretch;
use realizar_model::graph::Graph;
use realizar_model::graph::plan::RowLimits;

/// How a model is loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// What the model is to compute.
    pub output: ModelOutput,
    /// Whether a model of text computes [embeddings](crate::Model::embed) too, from the hidden states that its head
    /// reads. They are kept of every output row of a step, at most [`Self::max_outputs`], which also bounds the steps of
    /// an embedding that is the mean of all rows. For a model on one device, which does not divide its layers.
    pub embeddings: bool,
    /// The arithmetic of matrix products.
    pub arithmetic: Arithmetic,
    /// The type of stored keys and values: F32, F16, BF16, F8 or, for heads of whole blocks of 32 elements, Q8_0 or
    /// Q4_0. `None` is F16, or F32 with F32 arithmetic.
    pub kv_type: Option<BlockType>,
    /// The maximum number of tokens of a sequence. `None` is [what the model was made for](crate::default_context), or
    /// as many as fit where that is more than the memory that is free.
    pub max_seq_len: Option<usize>,
    /// A stretch of the rotary embedding, for contexts longer than the model was made for.
    pub rope_stretch: Option<RopeStretch>,
    /// The maximum number of tokens of a step; longer prompts are run in chunks of this size. None for what
    /// the devices are best at ([`Backend::step_rows`](realizar_backends::Backend::step_rows)).
    pub chunk: Option<usize>,
    /// The maximum number of rows of logits of a step. Hidden states are small: of these, a step gives as
    /// many as it has tokens.
    pub max_outputs: usize,
    /// Sequences that the key-value cache has room for.
    pub max_seqs: usize,
    /// Whether the pages of prompts are kept for requests that begin alike.
    pub prefix_cache: bool,
    /// The maximum number of tokens that the key-value cache holds, of all sequences together. `None` is room for
    /// `max_seqs` sequences of `max_seq_len` tokens, or for as many tokens as fit into the memory that is free, but one
    /// sequence at least. Without `max_seq_len` it is one whole context or `max_seqs` sequences of
    /// [`POOL_SEQ_LEN`](crate::POOL_SEQ_LEN) tokens, whichever is more, within half of what is free beside the weights.
    pub kv_tokens: Option<usize>,
    /// Whether the model's layer for multi-token prediction is loaded. What has no engine does not use it.
    pub draft_head: DraftHead,
    /// Whether to time each operation on devices where that slows the model down;
    /// see [`ExecutableOptions::profile`].
    pub profile: bool,
    /// Where packed weights are kept for the next start.
    pub packed_cache: PackedCache,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            output: ModelOutput::Logits,
            embeddings: false,
            arithmetic: Arithmetic::Auto,
            kv_type: None,
            max_seq_len: None,
            rope_stretch: None,
            chunk: None,
            max_outputs: 16,
            max_seqs: 1,
            prefix_cache: false,
            kv_tokens: None,
            draft_head: DraftHead::Off,
            profile: false,
            packed_cache: PackedCache::Off,
        }
    }
}

impl LoadOptions {
    /// Whether a model of text is to compute embeddings too.
    pub(super) fn gives_both(&self) -> bool {
        self.embeddings && self.output == ModelOutput::Logits
    }
}

/// The options with what these devices decide where nothing is requested.
pub(super) fn for_devices(
    options: &LoadOptions,
    devices: &[DeviceLayers<'_>],
) -> Result<LoadOptions, Error> {
    let is_alone = matches!(devices, [device] if device.backend.n_ranks() == 1);
    if options.gives_both() && !is_alone {
        let reason = "a model on several devices generates text or computes embeddings, not both";
        return Err(Error::Option { option: "embeddings", reason: reason.to_owned() });
    }
    let options = with_draft_head(options, devices)?;
    let step_rows = devices.iter().map(|device| device.backend.step_rows()).min();
    Ok(LoadOptions { chunk: options.chunk.or(step_rows), ..options })
}

pub(super) fn row_limits(
    options: &LoadOptions,
    max_seq_len: usize,
    drafts: bool,
) -> Result<RowLimits, Error> {
    // Only without any device, which is refused later, does nothing name it.
    let chunk = options.chunk.unwrap_or(options.max_seqs);
    for (option, n, what) in [
        ("chunk", chunk, "a step has at least one token"),
        ("max_outputs", options.max_outputs, "a step has at least one row of output"),
        ("max_seqs", options.max_seqs, "the key-value cache holds at least one sequence"),
    ] {
        if n == 0 {
            return Err(Error::Option { option, reason: format!("{what}, not 0") });
        }
    }
    // No step has more rows than all sequences have positions.
    let most = max_seq_len.saturating_mul(options.max_seqs);
    let tokens = chunk.max(options.max_seqs).min(most);
    let outputs = match options.output {
        ModelOutput::Logits => {
            let for_drafts = if drafts { DRAFTS } else { 0 };
            options.max_outputs.saturating_add(for_drafts).min(tokens)
        }
        ModelOutput::Embeddings => tokens,
    };
    Ok(RowLimits { tokens, outputs })
}

/// What a part of a model is made for, with at most `most_pages` of a key-value group; without files of packed weights.
pub(super) fn part_options(
    graph: &Graph,
    options: &LoadOptions,
    max_seq_len: usize,
    limits: RowLimits,
    most_pages: Option<usize>,
) -> Result<ExecutableOptions, Error> {
    Ok(ExecutableOptions {
        arithmetic: options.arithmetic,
        kv: kv_pools(&graph.kv_groups, options, max_seq_len, limits.tokens, most_pages)?,
        n_states: n_states(graph, options).unwrap_or(0),
        max_seq_len,
        profile: options.profile,
        logits: options.output == ModelOutput::Logits,
        packed_files: None,
    })
}

/// Recurrent states that there is room for: of each sequence those that it is at, that it writes, and
/// of its prompt's end; some drafts; and those that the prefix cache keeps. None for models without.
pub(super) fn n_states(graph: &Graph, options: &LoadOptions) -> Option<usize> {
    let kept = if options.prefix_cache { 2 * options.max_seqs + 16 } else { 0 };
    (graph.state_len > 0).then_some(3 * options.max_seqs + DRAFTS + kept)
}
