//! The list of models as coding agents read it: Codex takes from it the context to keep to, the
//! efforts of reasoning to offer, and the instructions to begin with.

use crate::registry::ModelStatus;
use realizar_runtime::ModelOutput;
use serde::Serialize;

/// What an agent tells the model first.
const INSTRUCTIONS: &str = "\
You are a coding agent. You work in the user's working directory with the tools that are described \
to you.

- Look at the files that matter to the task before you change anything.
- Make the smallest change that solves the task, in the style of the code around it. Leave the rest \
as it is.
- Run commands by calling tools, and go by what they return. Never make up their output.
- Where you can, run the tests or the program after a change, and mend what you broke.
- Ask before you delete what was not yours, or do what cannot be undone.
- Go on until the task is done. Then say in a few sentences what you did and what you did not check.
";

/// Tokens of a tool's output that an agent shows the model, where the context has room for them.
const OUTPUT_TOKENS: usize = 10_000;

/// One model. The members `name`, `model` and `capabilities` are those of llama-server's list.
#[derive(Debug, Serialize)]
pub(crate) struct AgentModel {
    slug: String,
    display_name: String,
    description: (),
    name: String,
    model: String,
    capabilities: [&'static str; 1],
    /// Null as long as the model is not loaded.
    context_window: Option<usize>,
    truncation_policy: TruncationPolicy,
    supported_reasoning_levels: Vec<ReasoningLevel>,
    default_reasoning_level: (),
    support_verbosity: bool,
    input_modalities: [&'static str; 1],
    shell_type: &'static str,
    visibility: &'static str,
    supported_in_api: bool,
    priority: usize,
    experimental_supported_tools: [(); 0],
    base_instructions: &'static str,
}

/// How much of a tool's output is shown.
#[derive(Debug, Serialize)]
struct TruncationPolicy {
    mode: &'static str,
    limit: usize,
}

/// An effort of reasoning.
#[derive(Debug, Serialize)]
struct ReasoningLevel {
    effort: &'static str,
    description: &'static str,
}

const LEVELS: [(&str, &str); 4] = [
    ("none", "No reasoning."),
    ("low", "Little reasoning."),
    ("medium", "As much reasoning as the task needs."),
    ("high", "Much reasoning."),
];

/// The models that generate text, in their order.
pub(crate) fn models(statuses: &[ModelStatus]) -> Vec<AgentModel> {
    let generating = statuses.iter().filter(|status| status.output == ModelOutput::Logits);
    generating.enumerate().map(|(priority, status)| AgentModel::of(status, priority)).collect()
}

impl AgentModel {
    fn of(status: &ModelStatus, priority: usize) -> Self {
        let model = status.model.as_ref();
        let context_window = model.map(|model| model.engine.model().max_seq_len());
        let reasons =
            model.is_some_and(|model| model.chat_side().is_ok_and(|side| side.reasoning.is_some()));
        let levels = LEVELS.iter().filter(|_| reasons);
        let levels = levels.map(|&(effort, description)| ReasoningLevel { effort, description });
        let limit = context_window.map_or(OUTPUT_TOKENS, |n| OUTPUT_TOKENS.min(n / 4));
        let name = || status.name.clone();
        Self {
            slug: name(),
            display_name: name(),
            description: (),
            name: name(),
            model: name(),
            capabilities: ["completion"],
            context_window,
            truncation_policy: TruncationPolicy { mode: "tokens", limit },
            supported_reasoning_levels: levels.collect(),
            default_reasoning_level: (),
            support_verbosity: true,
            input_modalities: ["text"],
            shell_type: "default",
            visibility: "list",
            supported_in_api: true,
            priority,
            experimental_supported_tools: [],
            base_instructions: INSTRUCTIONS,
        }
    }
}
