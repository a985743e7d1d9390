//! A loaded model: from a path to something that computes logits, with its
//! tokenizer and chat template beside it.

use super::model_sampling::model_sampling;
use super::require_output;
use crate::Error;
use crate::run::chunk::{Chunk, Outputs};
use crate::run::context::{context, stretch_context};
use crate::run::drafting::DraftHead;
use crate::run::kv_room::{KvRoom, kv_pools, kv_room};
use crate::run::options::{LoadOptions, for_devices, n_states, part_options, row_limits};
use crate::run::placement::{DeviceLayers, Placement, ToLoad, place};
use crate::run::rules::PromptRules;
use crate::run::runner::Runner;
use realizar_backends::metrics::{DispatchMetrics, DispatchSnapshot};
use realizar_backends::stages::Stages;
use realizar_backends::{Backend, Fingerprint, MemoryUse, Phase};
use realizar_kvcache::PAGE_LEN;
use realizar_model::Error as LoadError;
use realizar_model::architectures::config::Config;
use realizar_model::architectures::{self, ModelOutput};
use realizar_model::checkpoint::{Checkpoint, Pooling};
use realizar_model::graph::plan::{RowLimits, plan};
use realizar_model::graph::weights::{WeightData, Weights};
use realizar_model::graph::{self, DraftBytes, Graph};
use realizar_quant::BlockType;
use realizar_text::sampling::SamplingParams;
use realizar_text::template::ChatTemplate;
use realizar_text::tokenizer::Tokenizer;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model that is ready to run.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    /// The file or directory of the tokenizer, for messages.
    text_path: PathBuf,
    architecture: &'static str,
    config: Config,
    placement: Placement,
    tokenizer: Result<Arc<Tokenizer>, Arc<realizar_text::tokenizer::Error>>,
    template: Result<Option<Arc<ChatTemplate>>, Arc<realizar_text::template::Error>>,
    runner: Runner,
    /// Of embeddings, when nothing else is requested.
    default_pooling: Pooling,
    /// Of text, when nothing else is requested.
    sampling: SamplingParams,
    backend: String,
    n_params: usize,
    quantization: String,
    weight_bytes: usize,
    bytes_per_token: usize,
    draft_bytes: Option<DraftBytes>,
    memory: MemoryUse,
    kv_tokens: Option<usize>,
    fingerprint: Fingerprint,
}

/// A model's graph and weights before they have a place.
pub(super) struct Recorded {
    pub(super) architecture: &'static str,
    pub(super) config: Config,
    graph: Graph,
    pub(super) weights: Weights,
    pub(super) max_seq_len: usize,
    limits: RowLimits,
}

impl Recorded {
    pub(super) fn open(path: &Path, options: &LoadOptions) -> Result<(Checkpoint, Self), Error> {
        let checkpoint = Checkpoint::open(path)?;
        let recorded = Self::of(&checkpoint, options);
        // What was made of pages that were lost means nothing, nor do its errors.
        checkpoint.check_files()?;
        Ok((checkpoint, recorded?))
    }

    fn of(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self, Error> {
        let mut config = architectures::config(checkpoint)?;
        if let Some(stretch) = options.rope_stretch {
            stretch_context(&mut config, stretch)?;
        }
        let max_seq_len = context(&config, options)?;
        let drafts = options.draft_head != DraftHead::Off;
        let recorded =
            architectures::record(checkpoint, config, max_seq_len, options.output, drafts)?;
        options.draft_head.check(&recorded.graph)?;
        let (config, mut graph, mut weights) = (recorded.config, recorded.graph, recorded.weights);
        let architecture = recorded.architecture;
        if options.output == ModelOutput::Embeddings {
            let body = graph::body(&graph).ok_or_else(|| LoadError::Unsupported {
                path: checkpoint.path().to_owned(),
                feature: format!("{architecture} for embeddings"),
            })?;
            weights = body.weights_of(&weights);
            graph = body.graph;
        }
        if options.gives_both() {
            let hidden = graph::head_input(&graph).ok_or_else(|| LoadError::Unsupported {
                path: checkpoint.path().to_owned(),
                feature: format!("{architecture} for embeddings beside text"),
            })?;
            graph.hidden = Some(hidden);
        }
        let limits = row_limits(options, max_seq_len, graph.draft.is_some())?;
        Ok(Self { architecture, config, graph, weights, max_seq_len, limits })
    }
}

impl Model {
    /// Loads a GGUF file or a Hugging Face directory onto `backend`.
    ///
    /// # Errors
    /// If a file is malformed, the model is of a kind that is not built, an
    /// option cannot be met, or the backend cannot run the model.
    pub fn load(path: &Path, backend: &dyn Backend, options: &LoadOptions) -> Result<Self, Error> {
        Self::load_onto(path, &[DeviceLayers::rest(backend)], options)
    }

    /// As [`Self::load`], onto a list of devices.
    ///
    /// # Errors
    /// As for [`Self::load`], of each device; if the devices take fewer layers than there are.
    pub fn load_onto(
        path: &Path,
        devices: &[DeviceLayers<'_>],
        options: &LoadOptions,
    ) -> Result<Self, Error> {
        let options = &for_devices(options, devices)?;
        let (checkpoint, recorded) = Recorded::open(path, options)?;
        let Recorded { architecture, config, graph, weights, max_seq_len, limits } = recorded;
        let sampling = match options.output {
            ModelOutput::Logits => model_sampling(&checkpoint)?,
            ModelOutput::Embeddings => SamplingParams::default(),
        };
        let embeds = options.embeddings || options.output == ModelOutput::Embeddings;
        let pooling = if embeds { checkpoint.pooling()? } else { None };
        let default_pooling = pooling.unwrap_or(Pooling::Last);
        let kv_groups = graph.kv_groups.clone();
        let output = (options.output, graph.output_width());
        let n_states = n_states(&graph, options);
        let hidden_dim = graph.draft.as_ref().map(|draft| graph.values[draft.hidden.idx()].width);
        let embedding_dim = match options.output {
            ModelOutput::Logits => graph.hidden.map(|hidden| graph.values[hidden.idx()].width),
            ModelOutput::Embeddings => Some(graph.output_width()),
        };
        let draft_bytes = graph::draft_bytes(&graph, &weights);
        let rules = PromptRules::new(&graph, (config.vocab_size, config.dim), limits);
        let (n_params, weight_bytes) = sizes(&weights);
        let quantization = checkpoint.file_type().or_else(|| main_type(&weights));
        let bytes_per_token = graph::bytes_per_token(&graph, &weights);
        let fingerprint = Fingerprint::new(&graph, &weights, options.arithmetic);
        let to_load = place(graph, weights, config.layers.len(), devices)?;
        let KvRoom { max_seq_len, most_pages, notes } =
            kv_room(&to_load, options, max_seq_len, limits)?;
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        let kv = kv_pools(&kv_groups, options, max_seq_len, limits.tokens, most_pages)?;
        // Groups with a window need fewer pages for the same tokens.
        let kv_tokens = kv.iter().map(|(_, n_pages)| n_pages * PAGE_LEN).max();
        let packed_files = options.packed_cache.files(&checkpoint, &fingerprint)?;
        let mut memory = MemoryUse::default();
        let mut parts = Vec::new();
        // The text side needs one thread, and packing waits for memory: both at once.
        let mut text = None;
        let loaded = rayon::in_place_scope(|scope| {
            scope.spawn(|_| text = Some(text_side(&checkpoint, path)));
            let mut executables = Vec::new();
            for (backend, part, weights) in to_load {
                let mut for_part =
                    part_options(&part.graph, options, max_seq_len, limits, most_pages)?;
                for_part.packed_files = packed_files.clone();
                let plan = plan(&part.graph, limits);
                let of_ranks = backend.memory_of_ranks(&plan, &weights, &for_part);
                memory = memory + of_ranks.into_iter().sum();
                executables.push(backend.load_ranks(plan, weights, &for_part)?);
                parts.push(part);
            }
            Ok::<_, Error>(executables)
        });
        let (tokenizer, template) = text.expect("the scope has waited for it");
        checkpoint.check_files()?;
        let executable = Stages::join(loaded?);
        let placement = Placement { parts };
        let runner = Runner::new(
            executable,
            limits,
            output,
            rules,
            max_seq_len,
            (&kv, n_states),
            options.prefix_cache,
        );
        let runner = runner.with_draft_head(hidden_dim).with_embeddings(embedding_dim);
        let text_path = match &checkpoint {
            Checkpoint::Gguf(gguf) => gguf.path().to_owned(),
            Checkpoint::Hf { .. } => path.to_owned(),
        };
        Ok(Self {
            path: path.to_owned(),
            text_path,
            architecture,
            fingerprint: fingerprint.placed(placement.backends_with_layers(), runner.layout()),
            runner,
            default_pooling,
            sampling,
            backend: placement.backends(),
            config,
            placement,
            tokenizer: tokenizer.map(Arc::new).map_err(Arc::new),
            template: template.map(|t| t.map(Arc::new)).map_err(Arc::new),
            n_params,
            quantization: quantization.unwrap_or_default().to_owned(),
            weight_bytes,
            bytes_per_token,
            draft_bytes,
            memory,
            kv_tokens,
        })
    }

    /// The memory that [`Self::load_onto`] would take for the same. No weight is read, but for
    /// a head that the file stores although the settings call it tied, and the zero points and groups
    /// of inputs that say what GPTQ's linears become.
    ///
    /// # Errors
    /// As for [`Self::load_onto`], as far as the files and the options tell.
    pub fn memory_needed(
        path: &Path,
        devices: &[DeviceLayers<'_>],
        options: &LoadOptions,
    ) -> Result<MemoryUse, Error> {
        let options = &for_devices(options, devices)?;
        let (_, Recorded { config, graph, weights, max_seq_len, limits, .. }) =
            Recorded::open(path, options)?;
        let to_load = place(graph, weights, config.layers.len(), devices)?;
        let KvRoom { max_seq_len, most_pages, .. } =
            kv_room(&to_load, options, max_seq_len, limits)?;
        let needed = |(backend, part, weights): &ToLoad<'_>| {
            let for_part = part_options(&part.graph, options, max_seq_len, limits, most_pages)?;
            let plan = plan(&part.graph, limits);
            Ok(backend.memory_of_ranks(&plan, weights, &for_part).into_iter().sum())
        };
        to_load.iter().map(needed).sum()
    }

    /// The path that it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of its architecture, as GGUF files spell it.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Its dimensions and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its graph in parts, each with the backend that it runs on.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The backend that it runs on, or the names of its backends with ` + ` between them.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// What its keys and values depend on.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Elements of all weights.
    pub fn n_params(&self) -> usize {
        self.n_params
    }

    /// The type of the weights: the mixture that a GGUF file says it was quantized to, such as `Q4_K_M`, else the
    /// block type of the most elements.
    pub fn quantization(&self) -> &str {
        &self.quantization
    }

    /// Bytes of all weights as they are stored.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Bytes of weights that a generated token reads when it is alone in its step: of tables a row, and
    /// of experts those that it chose.
    pub fn bytes_per_token(&self) -> usize {
        self.bytes_per_token
    }

    /// What drafting with the model's own layer for multi-token prediction reads; `None` if no such layer was
    /// loaded.
    pub fn draft_bytes(&self) -> Option<DraftBytes> {
        self.draft_bytes
    }

    /// The memory that it takes on its devices.
    pub fn memory(&self) -> MemoryUse {
        self.memory
    }

    /// The tokens that its key-value cache holds, of all sequences together, where no window has passed them; none
    /// without attention.
    pub fn kv_tokens(&self) -> Option<usize> {
        self.kv_tokens
    }

    /// The maximum number of tokens of a sequence.
    pub fn max_seq_len(&self) -> usize {
        self.runner.max_seq_len()
    }

    /// What it was loaded to compute.
    pub fn output(&self) -> ModelOutput {
        self.runner.output()
    }

    /// The elements of its embeddings before any are left out; `None` if it was loaded for text alone.
    pub fn embedding_dim(&self) -> Option<usize> {
        self.runner.embedding_dim()
    }

    /// What prompts may be made of.
    pub(crate) fn rules(&self) -> PromptRules {
        self.runner.rules()
    }

    /// Its own sampling, which a generation begins from: what `generation_config.json` or the keys
    /// `general.sampling.*` of a GGUF file say, and [`SamplingParams::default`] of what they do not.
    /// The repetition penalty looks back on `repeat_last_n` tokens in both formats.
    pub fn sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    pub(crate) fn default_pooling(&self) -> Pooling {
        self.default_pooling
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// If the model came without one, or with one that cannot be read.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>, Error> {
        self.tokenizer.as_ref().map_err(|error| no_tokenizer(&self.text_path, error))
    }

    /// Its chat template, if it came with one.
    ///
    /// # Errors
    /// If the template cannot be read.
    pub fn chat_template(&self) -> Result<Option<&Arc<ChatTemplate>>, Error> {
        self.template.as_ref().map(Option::as_ref).map_err(|error| Error::Template {
            path: self.text_path.clone(),
            source: error.clone(),
        })
    }

    /// The runner, for batches of sequences.
    pub fn runner(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// What its devices have run since it was loaded, or since [`Self::reset_metrics`].
    pub fn metrics(&self) -> DispatchSnapshot {
        let metrics = self.dispatch_metrics();
        DispatchSnapshot::new(metrics.iter().map(|device| device.snapshot()).collect())
    }

    /// The counters of its devices, for a thread that does not hold the model.
    pub fn dispatch_metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        self.runner.dispatch_metrics()
    }

    /// Begins to count again.
    pub fn reset_metrics(&mut self) {
        for device in self.dispatch_metrics() {
            device.reset();
        }
    }

    /// The runner alone, for a caller that has taken everything else that it needs.
    pub(crate) fn into_runner(self) -> Runner {
        self.runner
    }

    /// Tokenizer and runner together, for generation.
    pub(crate) fn parts(&mut self) -> Result<(&Arc<Tokenizer>, &mut Runner), Error> {
        let text_path = &self.text_path;
        let tokenizer = self.tokenizer.as_ref().map_err(|error| no_tokenizer(text_path, error))?;
        Ok((tokenizer, &mut self.runner))
    }

    /// The logits of a prompt at `positions`, in their order, each `[vocab_size]`.
    /// The prompt is run in chunks of at most `chunk` tokens.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, a position is not in the prompt, the
    /// prompt does not fit the context, the model was loaded for embeddings, or a logit is not
    /// finite.
    pub fn logits(
        &mut self,
        ids: &[u32],
        positions: &[usize],
        chunk: usize,
    ) -> Result<Vec<Vec<f32>>, Error> {
        require_output(self.runner.output(), ModelOutput::Logits)?;
        if let Some(pos) = positions.iter().find(|&&pos| pos >= ids.len()) {
            let n = ids.len();
            return Err(Error::Request(format!("position {pos} is not in a prompt of {n}")));
        }
        let RowLimits { tokens, outputs } = self.runner.limits();
        let chunk = chunk.clamp(1, tokens);
        let mut wanted: Vec<usize> = positions.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let mut rows = Vec::with_capacity(wanted.len());
        let seq = self.runner.new_sequence();
        let mut result = Ok(());
        let mut first = 0;
        while first < ids.len() && result.is_ok() {
            // A chunk also ends where it would want more rows than a step gives.
            let mut end = (first + chunk).min(ids.len());
            let from = wanted.partition_point(|&pos| pos < first);
            if let Some(&beyond) = wanted.get(from + outputs) {
                end = end.min(beyond);
            }
            let to = wanted.partition_point(|&pos| pos < end);
            let at: Vec<usize> = wanted[from..to].iter().map(|pos| pos - first).collect();
            let tokens = &ids[first..end];
            let outputs = Outputs::At(&at);
            let step = Chunk { seq: &seq, rows: tokens.into(), phase: Phase::Prefill, outputs };
            result = self.runner.step(&[step]).map(|logits| {
                rows.extend((0..at.len()).map(|i| logits.row(0, i).to_vec()));
            });
            first = end;
        }
        self.runner.remove(seq);
        result?;
        if !rows.iter().flatten().all(|x: &f32| x.is_finite()) {
            return Err(Error::NotFinite { path: self.path.clone() });
        }
        let row = |pos: &usize| rows[wanted.partition_point(|w| w < pos)].clone();
        Ok(positions.iter().map(row).collect())
    }
}

/// What reads and writes text: a tokenizer and a chat template, or why there is none.
type TextSide = (
    Result<Tokenizer, realizar_text::tokenizer::Error>,
    Result<Option<ChatTemplate>, realizar_text::template::Error>,
);

pub(super) fn text_side(checkpoint: &Checkpoint, path: &Path) -> TextSide {
    let tokenizer = match checkpoint {
        Checkpoint::Gguf(gguf) => Tokenizer::from_gguf(gguf.metadata()),
        Checkpoint::Hf { .. } => Tokenizer::from_hf_dir(path),
    };
    let template = match (checkpoint, &tokenizer) {
        (_, Err(_)) => Ok(None),
        (Checkpoint::Gguf(gguf), Ok(t)) => ChatTemplate::from_gguf(gguf.metadata(), t),
        (Checkpoint::Hf { .. }, Ok(t)) => ChatTemplate::from_hf_dir(path, t),
    };
    (tokenizer, template)
}

fn no_tokenizer(path: &Path, source: &Arc<realizar_text::tokenizer::Error>) -> Error {
    Error::Tokenizer { path: path.to_owned(), source: source.clone() }
}

/// The block type that the most elements of matrices have.
pub(super) fn main_type(weights: &Weights) -> Option<&'static str> {
    let mut sums: Vec<(BlockType, usize)> = Vec::new();
    for data in &weights.0 {
        let Some(ty) = data.block_type() else { continue };
        match sums.iter_mut().find(|(known, _)| *known == ty) {
            Some((_, sum)) => *sum += data.n_elements(),
            None => sums.push((ty, data.n_elements())),
        }
    }
    sums.into_iter().max_by_key(|(_, sum)| *sum).map(|(ty, _)| ty.name())
}

/// Elements and bytes of the weights.
pub(super) fn sizes(weights: &Weights) -> (usize, usize) {
    let all = &weights.0;
    (all.iter().map(WeightData::n_elements).sum(), all.iter().map(WeightData::n_bytes).sum())
}
