//! From the command line to the runtime: options become the runtime's, prompts are rendered and
//! encoded, and one session is kept so that a conversation pays only for what is new.
//!
//! What a model computes is the runtime's business; nothing here knows an architecture.

use std::borrow::Cow;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use realizar_quant::BlockType;
use realizar_runtime::backend::Arithmetic;
use realizar_runtime::checkpoint::Checkpoint;
use realizar_runtime::constrain::{AdditionalProperties, Constrainer, Constraint, Grammar};
use realizar_runtime::device;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::template::{ChatTemplate, Message, RenderOptions};
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use realizar_runtime::{
    ByteSize, DraftHead, Error, Event, GenerateParams, Generation, LoadOptions, MemoryUse, Model,
    ModelOutput, Session,
};
use realizar_server::tools::Function;
use realizar_server::{ChatParser, ChatParserOptions, ReasoningFormat, TemplateTraits, ToolFormat};
use serde_json::{Map, Value};

use crate::options::{ArithmeticArg, GenerateArgs, GlobalArgs, KvTypeArg, LoadArgs, TemplateArgs};
use crate::status::{Reading, Status};
use crate::ui;

/// Tokens at the end of a prompt that may spell the marker which begins reasoning.
const MARKER_TOKENS: usize = 16;

/// A loaded model with its chat template and its session.
pub(crate) struct Engine {
    pub(crate) model: Model,
    /// Threads of the CPU, if it runs any of the model.
    pub(crate) n_threads: Option<usize>,
    session: Option<Session>,
    template: Option<ChatTemplate>, // of --template; the model has its own
    constraint: Option<Constraint>, // the beginning of every answer
    is_quiet: bool,                 // nothing is logged, so progress is shown
}

/// What a command needs beside the shared options.
#[derive(Clone, Copy, Default)]
pub(crate) struct Needs {
    /// The maximum number of tokens of a sequence; `None` leaves it to the model.
    pub(crate) ctx: Option<usize>,
    /// Rows of logits per step; `None` leaves it to the runtime.
    pub(crate) outputs: Option<usize>,
    /// What the model is to compute.
    pub(crate) output: ModelOutput,
    /// Sequences that run together; `None` leaves it to the runtime.
    pub(crate) seqs: Option<usize>,
    /// Tokens that the key-value cache holds; `None` leaves it to the runtime.
    pub(crate) kv_tokens: Option<usize>,
    /// Whether the pages of prompts are kept for those that begin alike, also where a window has
    /// passed them.
    pub(crate) prefix_cache: bool,
    /// Whether to time each operation on the device.
    pub(crate) profile: bool,
    /// Whether the model's layer for multi-token prediction is loaded.
    pub(crate) draft_head: DraftHead,
}

impl Engine {
    /// Loads the model at `path`.
    pub(crate) fn load(
        path: &Path,
        args: &LoadArgs,
        global: &GlobalArgs,
        needs: Needs,
    ) -> Result<Self> {
        let options = load_options(args, global, needs)?;
        let device = args.device.clone().unwrap_or_default();
        tracing::info!(
            model = %path.display(),
            device = %device,
            gpu_layers = args.gpu_layers,
            tensor_parallel = args.tensor_parallel,
            arithmetic = %value_name(&args.arithmetic),
            kv_type = %args.kv_type.as_ref().map_or_else(|| "default".to_owned(), value_name),
            ctx = options.max_seq_len,
            chunk = options.chunk,
            "loading"
        );
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let is_quiet = global.verbose == 0;
        let status = is_quiet.then(|| {
            Status::show(move |time| format!("loading {name}, {:.0} s", time.as_secs_f64()))
        });
        let device_options = args.device_options();
        let loaded = device::load(path, &device, args.gpu_layers, &device_options, &options);
        drop(status);
        let device::Loaded { model, n_threads } = loaded.map_err(usage_of_device)?;
        tracing::info!(
            architecture = model.architecture(),
            backend = model.backend(),
            threads = n_threads,
            ctx = model.max_seq_len(),
            kv_tokens = model.kv_tokens(),
            weights = %ByteSize::from(model.memory().weights),
            kv = %ByteSize::from(model.memory().kv),
            draft_head = model.draft_bytes().is_some(),
            workspace = %ByteSize::from(model.memory().scratch),
            "loaded"
        );
        let (session, template, constraint) = (None, None, None);
        Ok(Self { model, n_threads, session, template, constraint, is_quiet })
    }

    /// Uses the template of `--template`, if there is one, in place of the model's.
    pub(crate) fn set_template(&mut self, args: &TemplateArgs) -> Result<()> {
        let Some(path) = &args.template else { return Ok(()) };
        let template = read_template(path, self.model.tokenizer()?)?;
        self.template = Some(template);
        Ok(())
    }

    /// Makes every answer follow the grammar, or none. `objects` says what its schemas mean.
    pub(crate) fn set_grammar(
        &mut self,
        grammar: Option<&Grammar>,
        objects: AdditionalProperties,
    ) -> Result<()> {
        self.constraint = match grammar {
            Some(grammar) => {
                let constrainer = Constrainer::new(self.model.tokenizer()?)?;
                Some(constrainer.additional_properties(objects).compile(grammar)?)
            }
            None => None,
        };
        Ok(())
    }

    /// The prompt of a conversation, up to the beginning of the assistant's answer, in which the
    /// model is told of tools that are as those of a chat request, and whether to reason.
    pub(crate) fn chat_prompt(
        &self,
        messages: &[Message],
        tools: &[Value],
        thinks: Option<bool>,
    ) -> Result<Vec<u32>> {
        let Some(template) = self.chat_template()? else {
            // A missing tokenizer also means no template, and is the better message.
            self.model.tokenizer()?;
            bail!(
                "{} has no chat template; give one with --template FILE, or use `run --raw`",
                self.model.path().display()
            );
        };
        let template = if tools.is_empty() { template } else { template.for_tools() };
        let (mut extra, mut in_template) = (Map::new(), None);
        let mut messages = Cow::Borrowed(messages);
        if tools.is_empty() {
            messages = Cow::Owned(template.arranged(&messages).into_owned());
        } else {
            let traits = TemplateTraits::of(template);
            let mut prepared = traits.prepare(messages.into_owned())?;
            in_template = traits.tell_of_tools(tools, &mut prepared, &mut extra);
            messages = Cow::Owned(prepared);
        }
        if let Some(thinks) = thinks
            && let Some(variable) = TemplateTraits::of(template).thinking_variable
        {
            extra.insert(variable.to_owned(), thinks.into());
        }
        let options = RenderOptions {
            add_generation_prompt: true,
            tools: in_template,
            extra: Some(&extra),
            ..RenderOptions::default()
        };
        let tokenizer = self.model.tokenizer()?;
        let text = template.render_prompt(&messages, &options, tokenizer)?;
        tracing::debug!("prompt {:?}", text.text());
        // The template writes the special tokens itself.
        let options = EncodeOptions { add_special: false, parse_special: true };
        Ok(tokenizer.encode_guarded(&text, options)?)
    }

    /// What finds the reasoning in an answer to a conversation, and calls of these functions, and the
    /// control tokens that it has to see; `None` if there is nothing to find.
    pub(crate) fn answer_parser(
        &self,
        prompt: &[u32],
        functions: &[Function],
    ) -> Result<Option<(ChatParser, Vec<u32>)>> {
        let Some(template) = self.chat_template()? else { return Ok(None) };
        let template = if functions.is_empty() { template } else { template.for_tools() };
        let reasoning = ReasoningFormat::detect(template.source());
        let tools = match functions.is_empty() {
            true => None,
            false => Some(ToolFormat::detect(template.source()).unwrap_or(ToolFormat::Json)),
        };
        if reasoning.is_none() && tools.is_none() {
            return Ok(None);
        }
        let tokenizer = self.model.tokenizer()?;
        let end = tokenizer.decode(&prompt[prompt.len().saturating_sub(MARKER_TOKENS)..], false)?;
        let shown = ChatParser::control_tokens(tokenizer, tools, reasoning);
        let options = ChatParserOptions {
            tools,
            functions: functions.to_vec(),
            reasoning,
            reasoning_open: reasoning.is_some_and(|format| format.is_open_in(&end)),
            ..ChatParserOptions::default()
        };
        Ok(Some((ChatParser::new(options), shown)))
    }

    /// The variable by which the template turns reasoning on and off, if it has one.
    pub(crate) fn thinking_variable(&self) -> Result<Option<&'static str>> {
        Ok(self
            .chat_template()?
            .and_then(|template| TemplateTraits::of(template).thinking_variable))
    }

    /// The template of `--template`, or else the model's.
    pub(crate) fn chat_template(&self) -> Result<Option<&ChatTemplate>> {
        Ok(match &self.template {
            Some(template) => Some(template),
            None => self.model.chat_template()?.map(|template| &**template),
        })
    }

    pub(crate) fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        Ok(self.model.tokenizer()?.encode(text, options)?)
    }

    /// Continues with the session that a file holds, if there is the file.
    pub(crate) fn restore(&mut self, path: &Path) -> Result<()> {
        if path.exists() {
            self.session = Some(self.model.restore_session(path)?);
        }
        Ok(())
    }

    /// Writes the session to a file, if there is one.
    pub(crate) fn save(&mut self, path: &Path) -> Result<()> {
        if let Some(session) = &mut self.session {
            session.save(&mut self.model, path)?;
        }
        Ok(())
    }

    /// The runtime's parameters for these arguments.
    pub(crate) fn params(&self, args: &GenerateArgs, logprobs: Option<usize>) -> GenerateParams {
        let sampling = SamplingParams {
            logit_bias: args.logit_bias.clone(),
            seed: Some(args.seed()),
            penalize_prompt: true,
            ..args.sampling.over(self.model.sampling())
        };
        GenerateParams {
            sampling: Some(sampling),
            max_tokens: args.max_tokens,
            stop: args.stop.clone(),
            ignore_eos: args.ignore_eos,
            logprobs,
            constraint: self.constraint.clone(),
            ..GenerateParams::default()
        }
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
        let mut reading = self.is_quiet.then(|| Reading::show(ids.len()));
        let generation = session.generate(&mut self.model, ids, params, &mut |event| {
            if let Some(reading) = &mut reading {
                match event {
                    Event::Prompt { done, total } if done < total => reading.set(*done),
                    _ => reading.done(),
                }
            }
            on_event(event)
        })?;
        Ok(generation)
    }
}

/// The memory that the model at `path` will take.
pub(crate) fn memory_needed(
    path: &Path,
    args: &LoadArgs,
    global: &GlobalArgs,
    needs: Needs,
) -> Result<MemoryUse> {
    let options = load_options(args, global, needs)?;
    let device = args.device.clone().unwrap_or_default();
    let device_options = args.device_options();
    let needed = device::memory_needed(path, &device, args.gpu_layers, &device_options, &options);
    needed.map_err(usage_of_device)
}

/// The runtime's options for these arguments.
fn load_options(args: &LoadArgs, global: &GlobalArgs, needs: Needs) -> Result<LoadOptions> {
    let default = LoadOptions::default();
    Ok(LoadOptions {
        output: needs.output,
        embeddings: false,
        arithmetic: match args.arithmetic {
            ArithmeticArg::Auto => Arithmetic::Auto,
            ArithmeticArg::F32 => Arithmetic::F32,
        },
        kv_type: args.kv_type.map(|ty| match ty {
            KvTypeArg::F32 => BlockType::F32,
            KvTypeArg::F16 => BlockType::F16,
            KvTypeArg::Bf16 => BlockType::BF16,
            KvTypeArg::Fp8 => BlockType::F8,
            KvTypeArg::Q8_0 => BlockType::Q8_0,
            KvTypeArg::Q4_0 => BlockType::Q4_0,
        }),
        max_seq_len: needs.ctx,
        rope_stretch: args.rope_stretch(),
        chunk: args.chunk,
        max_outputs: needs.outputs.unwrap_or(default.max_outputs),
        max_seqs: needs.seqs.unwrap_or(default.max_seqs),
        prefix_cache: needs.prefix_cache,
        kv_tokens: needs.kv_tokens,
        profile: needs.profile,
        draft_head: needs.draft_head,
        packed_cache: args.packed_cache(global)?,
    })
}

/// The chat template in a file, with the special tokens of `tokenizer`.
pub(crate) fn read_template(path: &Path, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let source =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = |id: Option<u32>| id.map_or(Ok(String::new()), |id| tokenizer.token_text(id));
    let (bos, eos) = (text(tokenizer.bos())?, text(tokenizer.eos())?);
    ChatTemplate::new(&source, &bos, &eos).with_context(|| format!("template {}", path.display()))
}

/// Options that name a device or configure one are usage errors when they cannot be met.
fn usage_of_device(error: Error) -> anyhow::Error {
    match error {
        Error::Option {
            option:
                option @ ("device"
                | "gpu-layers"
                | "gpu-plain"
                | "tensor-parallel"
                | "threads"
                | "cpu-tier"
                | "rope-scaling"
                | "cuda-dependent-launch"
                | "cuda-wgmma"
                | "cuda-bf16-decode"),
            reason,
        } => ui::usage(format!("--{option}: {reason}")),
        error => error.into(),
    }
}

/// A value of an option as it is written on the command line.
fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
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
