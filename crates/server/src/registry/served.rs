//! A loaded model under its names: the engine, and what is known of how it converses.

use crate::chat::messages::TemplateTraits;
use crate::chat::reasoning::ReasoningFormat;
use crate::chat::tools::ToolFormat;
use crate::error::ApiError;
use crate::ids;
use crate::registry::slots::Slots;
use realizar_runtime::constrain::{AdditionalProperties, Constrainer};
use realizar_runtime::engine::Engine;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::template::ChatTemplate;
use realizar_runtime::tokenizer::Tokenizer;
use std::sync::{Arc, OnceLock};

/// A model under its names, with what requests to it begin from.
#[derive(Debug)]
pub struct ServedModel {
    /// The name that answers and lists show.
    pub name: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// What runs it.
    pub engine: Engine,
    /// The chat template in place of the model's own.
    pub template: Option<ChatTemplate>,
    /// The format of its tool calls; where there is none, the one that its template shows.
    pub tool_format: Option<ToolFormat>,
    /// The format of its reasoning; where there is none, the one that its template shows.
    pub reasoning_format: Option<ReasoningFormat>,
    /// The meaning of schemas that list properties and say nothing of others.
    pub additional_properties: AdditionalProperties,
    /// The sampling of a request that asks for nothing else.
    pub sampling: SamplingParams,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Without tools and with them.
    chat: [OnceLock<ChatSide>; 2],
    constrainer: OnceLock<Result<Constrainer, String>>,
    slots: Arc<Slots>,
}

/// What a model's chat template shows of how it converses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChatSide {
    /// What its messages may be made of.
    pub(crate) traits: TemplateTraits,
    /// The format of its tool calls, if it is a known one.
    pub(crate) tools: Option<ToolFormat>,
    /// How it marks reasoning, if it does.
    pub(crate) reasoning: Option<ReasoningFormat>,
}

impl ServedModel {
    /// A model under one name, with its own template and its own sampling.
    pub fn new(name: impl Into<String>, engine: Engine) -> Self {
        let sampling = engine.model().sampling().clone();
        Self {
            name: name.into(),
            aliases: Vec::new(),
            engine,
            template: None,
            tool_format: None,
            reasoning_format: None,
            additional_properties: AdditionalProperties::default(),
            sampling,
            created: ids::unix_seconds(),
            chat: [OnceLock::new(), OnceLock::new()],
            constrainer: OnceLock::new(),
            slots: Arc::default(),
        }
    }

    /// Its tokenizer.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        self.engine.model().tokenizer()
    }

    /// The places of its sequences.
    pub(crate) fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }

    /// The template of its conversations.
    pub(crate) fn chat_template(&self) -> Result<&ChatTemplate, ApiError> {
        let own = match &self.template {
            Some(template) => Some(template),
            None => {
                let own = self.engine.model().chat_template();
                own.map_err(|error| ApiError::internal(error.to_string()))?.map(|own| &**own)
            }
        };
        own.ok_or_else(|| {
            let name = &self.name;
            let message = format!("the model `{name}` has no chat template; use /v1/completions");
            ApiError::invalid("messages", message)
        })
    }

    /// The template of conversations with tools, or of those without.
    pub(crate) fn chat_template_for(&self, has_tools: bool) -> Result<&ChatTemplate, ApiError> {
        let template = self.chat_template()?;
        Ok(if has_tools { template.for_tools() } else { template })
    }

    /// How it converses without tools.
    pub(crate) fn chat_side(&self) -> Result<ChatSide, ApiError> {
        self.chat_side_for(false)
    }

    /// How it converses with tools, or without. The first call renders the template a few times.
    pub(crate) fn chat_side_for(&self, has_tools: bool) -> Result<ChatSide, ApiError> {
        let template = self.chat_template_for(has_tools)?;
        Ok(*self.chat[usize::from(has_tools)].get_or_init(|| ChatSide {
            traits: TemplateTraits::of(template),
            tools: self.tool_format.or_else(|| ToolFormat::detect(template.source())),
            reasoning: self.reasoning_format.or_else(|| ReasoningFormat::detect(template.source())),
        }))
    }

    /// What compiles grammars for it. The first call arranges the vocabulary.
    pub(crate) fn constrainer(&self) -> Result<&Constrainer, ApiError> {
        let made = self.constrainer.get_or_init(|| {
            let made = Constrainer::new(self.tokenizer()).map_err(|error| error.to_string())?;
            Ok(made.additional_properties(self.additional_properties))
        });
        made.as_ref().map_err(|error| ApiError::internal(error.clone()))
    }
}
