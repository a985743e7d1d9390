//! From the text of an answer to what a chat response is made of: reasoning, content, tool calls.
//!
//! The text must contain the markers, which many models have as control tokens that decoding
//! leaves out. [`ChatParser::control_tokens`] names those that must be decoded.

use realizar_runtime::tokenizer::Tokenizer;

use crate::chat::delta::ChatDelta;
use crate::chat::reasoning::{Part, ReasoningFormat, ReasoningParser};
use crate::chat::tools::closing::Closing;
use crate::chat::tools::custom::CustomCalls;
use crate::chat::tools::harmony::{self, HarmonyParser};
use crate::chat::tools::parser::ToolParser;
use crate::chat::tools::{CallIds, Function, IdStyle, ToolFormat};

/// What is looked for in an answer.
#[derive(Clone, Debug, Default)]
pub struct ChatParserOptions {
    /// Tool calls in this format.
    pub tools: Option<ToolFormat>,
    /// The functions that the request offers. An object without a marker is a call only if it
    /// names one of them, and arguments that are written without quotes are what their schemas say.
    pub functions: Vec<Function>,
    /// The answer is calls and nothing else, as its grammar has it: what is cut before it tells
    /// which function it calls is not content, and is left out.
    pub calls_alone: bool,
    /// Calls after the first are left out.
    pub single_call: bool,
    /// Reasoning in this format. There is none in an answer that a grammar constrains from its
    /// beginning.
    pub reasoning: Option<ReasoningFormat>,
    /// The prompt ends inside the reasoning, see [`ReasoningFormat::is_open_in`].
    pub reasoning_open: bool,
    /// Makes ids from this seed instead of random ones.
    pub id_seed: Option<u64>,
}

/// Parses one answer as it comes.
///
/// ```
/// use realizar_server::{ChatDelta, ChatParser, ChatParserOptions, ToolFormat};
///
/// let options = ChatParserOptions { tools: Some(ToolFormat::Hermes), ..Default::default() };
/// let mut parser = ChatParser::new(options);
/// let mut deltas = Vec::new();
/// parser.push("<tool_call>{\"name\": \"f\", \"argu", &mut deltas);
/// assert!(deltas.is_empty());
/// parser.push("ments\": {\"a\": 1}}</tool_call>", &mut deltas);
/// parser.finish(&mut deltas);
/// assert!(matches!(&deltas[0], ChatDelta::ToolCallStart { name, .. } if name == "f"));
/// assert!(matches!(&deltas[1], ChatDelta::ToolCallArguments { text, .. } if text == r#"{"a": 1}"#));
/// ```
#[derive(Debug)]
pub struct ChatParser {
    reasoning: Option<ReasoningParser>,
    tools: Option<ToolParser>,
    /// In the place of both, where an answer comes as messages in channels.
    channels: Option<HarmonyParser>,
    closing: Closing,
    custom: CustomCalls,
    calls_alone: bool,
    parts: Vec<Part>,
    n_reasoning: usize,
    n_undecided: usize, // tokens since the last text that was emitted
}

impl ChatParser {
    /// A parser for one answer.
    pub fn new(options: ChatParserOptions) -> Self {
        let style = match options.tools {
            Some(ToolFormat::Mistral) => IdStyle::Mistral,
            _ => IdStyle::OpenAi,
        };
        let ids = match options.id_seed {
            Some(seed) => CallIds::seeded(style, seed),
            None => CallIds::random(style),
        };
        let custom = CustomCalls::of(&options.functions);
        let (functions, single) = (options.functions.into(), options.single_call);
        let calls_alone = options.calls_alone;
        let in_channels = options.reasoning == Some(ReasoningFormat::Harmony)
            || options.tools == Some(ToolFormat::Harmony);
        if in_channels && options.tools.is_none_or(|format| format == ToolFormat::Harmony) {
            let functions = options.tools.map(|_| functions);
            let mut channels = HarmonyParser::new(functions, single, ids);
            if options.reasoning_open {
                // The prompt has begun the message; a head alone is not part of the answer.
                channels.push(harmony::REASONING_OPEN, &mut Vec::new());
            }
            let channels = Some(channels);
            return Self { channels, ..Self::of(None, None, custom, calls_alone) };
        }
        let syntax = options.tools.map(ToolFormat::syntax);
        let tools = syntax.map(|syntax| ToolParser::new(syntax, functions, single, ids));
        let open = options.reasoning_open;
        let reasoning = options.reasoning.map(|format| ReasoningParser::new(format, open));
        Self::of(reasoning, tools, custom, calls_alone)
    }

    fn of(
        reasoning: Option<ReasoningParser>,
        tools: Option<ToolParser>,
        custom: CustomCalls,
        calls_alone: bool,
    ) -> Self {
        Self {
            reasoning,
            tools,
            channels: None,
            closing: Closing::default(),
            custom,
            calls_alone,
            parts: Vec::new(),
            n_reasoning: 0,
            n_undecided: 0,
        }
    }

    /// Takes the text of the next token, as [`Self::push`] does, and counts it if it is reasoning.
    pub fn push_token(&mut self, text: &str, out: &mut Vec<ChatDelta>) {
        let start = out.len();
        self.n_undecided += 1;
        self.push(text, out);
        self.count_reasoning(&out[start..]);
    }

    /// How many of the tokens were reasoning, its marks left out.
    pub fn reasoning_tokens(&self) -> usize {
        self.n_reasoning
    }

    fn count_reasoning(&mut self, new: &[ChatDelta]) {
        if new.iter().any(|delta| matches!(delta, ChatDelta::Reasoning(_))) {
            self.n_reasoning += self.n_undecided;
        }
        if !new.is_empty() {
            self.n_undecided = 0;
        }
    }

    /// Takes the next piece of the text and appends what it makes certain to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<ChatDelta>) {
        let start = out.len();
        match (&mut self.channels, &mut self.reasoning) {
            (Some(channels), _) => channels.push(text, out),
            (None, Some(reasoning)) => reasoning.push(text, &mut self.parts),
            (None, None) => self.parts.push(Part::Answer(text.to_owned())),
        }
        self.take_parts(out);
        self.closing.read(start, out);
        self.custom.read(start, out);
        self.leave_calls(start, out);
    }

    /// Ends the answer: what was held back is content, and arguments that are not complete are closed.
    pub fn finish(&mut self, out: &mut Vec<ChatDelta>) {
        self.end(false, out);
    }

    /// Ends an answer that was cut at a limit: arguments that are not complete stay open.
    pub fn finish_cut(&mut self, out: &mut Vec<ChatDelta>) {
        self.end(true, out);
    }

    fn end(&mut self, is_cut: bool, out: &mut Vec<ChatDelta>) {
        let start = out.len();
        if let Some(channels) = &mut self.channels {
            channels.finish(out);
        }
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.finish(&mut self.parts);
        }
        self.take_parts(out);
        if let Some(tools) = &mut self.tools {
            tools.finish(out);
        }
        self.closing.read(start, out);
        if is_cut {
            self.closing.cut(out);
        } else {
            self.closing.close(out);
        }
        self.custom.read(start, out);
        self.custom.finish(out);
        self.count_reasoning(&out[start..]);
        self.leave_calls(start, out);
    }

    /// Takes the content out of what is new since `start`, if there is to be none.
    fn leave_calls(&self, start: usize, out: &mut Vec<ChatDelta>) {
        if self.calls_alone {
            let new = out.split_off(start).into_iter();
            out.extend(new.filter(|delta| !matches!(delta, ChatDelta::Content(_))));
        }
    }

    /// Whether there was a tool call, which makes `tool_calls` the reason why the answer ended.
    pub fn has_tool_calls(&self) -> bool {
        self.tools.as_ref().is_some_and(ToolParser::has_calls)
            || self.channels.as_ref().is_some_and(HarmonyParser::has_calls)
    }

    /// Whether the only call that is wanted is complete, so that the generation may be stopped.
    pub fn is_complete(&self) -> bool {
        self.tools.as_ref().is_some_and(ToolParser::is_complete)
            || self.channels.as_ref().is_some_and(HarmonyParser::is_complete)
    }

    /// The control tokens of `tokenizer` that spell markers of these formats. A stream decoder
    /// must write them; see `StreamDecoder::with_specials`.
    pub fn control_tokens(
        tokenizer: &Tokenizer,
        tools: Option<ToolFormat>,
        reasoning: Option<ReasoningFormat>,
    ) -> Vec<u32> {
        let tools = tools.map(ToolFormat::markers).unwrap_or_default();
        let reasoning = reasoning.map(ReasoningFormat::markers);
        let markers = tools.into_iter().chain(reasoning.into_iter().flatten());
        let ids = markers.filter_map(|marker| tokenizer.id_of(marker));
        ids.filter(|&id| tokenizer.is_special(id)).collect()
    }

    fn take_parts(&mut self, out: &mut Vec<ChatDelta>) {
        for part in self.parts.drain(..) {
            match (part, &mut self.tools) {
                (Part::Reasoning(text), _) => out.push(ChatDelta::Reasoning(text)),
                (Part::Answer(text), Some(tools)) => tools.push(&text, out),
                (Part::Answer(text), None) if !text.is_empty() => {
                    out.push(ChatDelta::Content(text));
                }
                (Part::Answer(_), None) => {}
            }
        }
    }
}
