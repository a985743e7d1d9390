//! From the command line to the runtime: options become the runtime's, prompts are rendered and
//! encoded, and one session is kept so that a conversation pays only for what is new.
//!
//! What a model computes is the runtime's business; nothing here knows an architecture.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use realizar_quant::BlockType;
use realizar_runtime::backend::Arithmetic;
use realizar_runtime::checkpoint::Checkpoint;
use realizar_runtime::device;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::template::{ChatTemplate, Message, RenderOptions};
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use realizar_runtime::{
    Error, Event, GenerateParams, Generation, LoadOptions, Model, ModelOutput, Session,
};

use crate::options::{ArithmeticArg, GenerateArgs, GlobalArgs, KvTypeArg, LoadArgs, TemplateArgs};
use crate::ui;

/// A loaded model with its chat template and its session.
pub(crate) struct Engine {
    pub(crate) model: Model,
    /// Threads of the CPU, if it runs any of the model.
    pub(crate) n_threads: Option<usize>,
    session: Option<Session>,
    template: Option<ChatTemplate>, // of --template; the model has its own
}

/// What a command needs beside the shared options.
#[derive(Clone, Copy, Default)]
pub(crate) struct Needs {
    /// The most tokens of a sequence; `None` leaves it to the model.
    pub(crate) ctx: Option<usize>,
    /// Rows of logits per step; `None` leaves it to the runtime.
    pub(crate) outputs: Option<usize>,
    /// What the model is to compute.
    pub(crate) output: ModelOutput,
    /// Sequences that run together; `None` leaves it to the runtime.
    pub(crate) seqs: Option<usize>,
    /// Whether to time each operation on the device.
    pub(crate) profile: bool,
}

impl Engine {
    /// Loads the model at `path`.
    pub(crate) fn load(
        path: &Path,
        args: &LoadArgs,
        global: &GlobalArgs,
        needs: Needs,
    ) -> Result<Self> {
        let default = LoadOptions::default();
        let options = LoadOptions {
            output: needs.output,
            arithmetic: match args.arithmetic {
                ArithmeticArg::Auto => Arithmetic::Auto,
                ArithmeticArg::F32 => Arithmetic::F32,
            },
            kv_type: args.kv_type.map(|ty| match ty {
                KvTypeArg::F32 => BlockType::F32,
                KvTypeArg::F16 => BlockType::F16,
                KvTypeArg::Bf16 => BlockType::BF16,
                KvTypeArg::Q8_0 => BlockType::Q8_0,
                KvTypeArg::Q4_0 => BlockType::Q4_0,
            }),
            max_seq_len: needs.ctx,
            chunk: args.chunk,
            max_outputs: needs.outputs.unwrap_or(default.max_outputs),
            max_seqs: needs.seqs.unwrap_or(default.max_seqs),
            profile: needs.profile,
            packed_cache: args.packed_cache(global)?,
            ..default
        };
        let device = args.device.unwrap_or_default();
        tracing::info!(
            model = %path.display(),
            device = %device,
            gpu_layers = args.gpu_layers,
            arithmetic = %value_name(&args.arithmetic),
            kv_type = %args.kv_type.as_ref().map_or_else(|| "default".to_owned(), value_name),
            ctx = options.max_seq_len,
            chunk = options.chunk,
            "loading"
        );
        let device_options = args.device_options();
        let loaded = device::load(path, &device, args.gpu_layers, &device_options, &options);
        let device::Loaded { model, n_threads } = loaded.map_err(usage_of_device)?;
        tracing::info!(
            architecture = model.architecture(),
            backend = model.backend(),
            threads = n_threads,
            ctx = model.max_seq_len(),
            "loaded"
        );
        Ok(Self { model, n_threads, session: None, template: None })
    }

    /// Uses the template of `--template`, if there is one, in place of the model's.
    pub(crate) fn set_template(&mut self, args: &TemplateArgs) -> Result<()> {
        let Some(path) = &args.template else { return Ok(()) };
        let source =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let tokenizer = self.model.tokenizer()?;
        let text = |id: Option<u32>| id.map_or(Ok(String::new()), |id| tokenizer.token_text(id));
        let (bos, eos) = (text(tokenizer.bos())?, text(tokenizer.eos())?);
        let template = ChatTemplate::new(&source, &bos, &eos)
            .with_context(|| format!("template {}", path.display()))?;
        self.template = Some(template);
        Ok(())
    }

    /// The prompt of a conversation, up to the beginning of the assistant's answer.
    pub(crate) fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let own = match &self.template {
            Some(template) => Some(template),
            None => self.model.chat_template()?.map(Arc::as_ref),
        };
        let Some(template) = own else {
            // A missing tokenizer also means no template, and is the better message.
            self.model.tokenizer()?;
            bail!(
                "{} has no chat template; give one with --template FILE, or use `run --raw`",
                self.model.path().display()
            );
        };
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let text = template.render(messages, &options)?;
        tracing::debug!("prompt {text:?}");
        // The template writes the special tokens itself.
        self.encode(&text, EncodeOptions { add_special: false, parse_special: true })
    }

    pub(crate) fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        Ok(self.model.tokenizer()?.encode(text, options)?)
    }

    /// Generates after `ids`, in the session.
    pub(crate) fn generate(
        &mut self,
        ids: &[u32],
        params: &GenerateParams,
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let session = match &mut self.session {
            Some(session) => session,
            none => none.insert(self.model.new_session()),
        };
        Ok(session.generate(&mut self.model, ids, params, on_event)?)
    }
}

/// Options that name a device or configure one are usage errors when they cannot be met.
fn usage_of_device(error: Error) -> anyhow::Error {
    match error {
        Error::Option {
            option: option @ ("device" | "gpu-layers" | "gpu-plain" | "threads" | "cpu-tier"),
            reason,
        } => ui::usage(format!("--{option}: {reason}")),
        error => error.into(),
    }
}

/// A value of an option as it is written on the command line.
fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The runtime's parameters for these arguments.
pub(crate) fn generate_params(args: &GenerateArgs, logprobs: Option<usize>) -> GenerateParams {
    let sampling = SamplingParams {
        temperature: args.temperature(),
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repeat_penalty,
        repeat_last_n: args.repeat_last_n,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        logit_bias: args.logit_bias.clone(),
        seed: Some(args.seed()),
    };
    GenerateParams {
        sampling,
        max_tokens: Some(args.max_tokens),
        stop: args.stop.clone(),
        ignore_eos: args.ignore_eos,
        logprobs,
    }
}

/// The tokenizer at `path` alone; no weight is read.
pub(crate) fn load_tokenizer(path: &Path) -> Result<Tokenizer> {
    if path.join("tokenizer.json").is_file() {
        return Ok(Tokenizer::from_hf_dir(path)?);
    }
    Ok(match Checkpoint::open(path)? {
        Checkpoint::Gguf(gguf) => Tokenizer::from_gguf(gguf.metadata())
            .with_context(|| gguf.path().display().to_string())?,
        Checkpoint::Hf { .. } => Tokenizer::from_hf_dir(path)?,
    })
}
