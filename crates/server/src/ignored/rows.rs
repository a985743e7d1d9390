//! The table of what is left out or ignored. A row says why; [`super::document`] prints it.

use super::{Api, Row};

/// Tools that the servers of an API's vendor run.
const VENDOR_RUN: &str = "The vendor's servers run this tool, so it is left out.";
/// Tools that a client runs, whose form only the vendor's models know.
const UNKNOWN_FORM: &str = "The client runs this tool, but the request doesn't describe its input, which only the \
                            vendor's models know; it is left out.";
/// Devices and memory.
const AT_START: &str =
    "Devices, threads and batches are options of `realizar serve`, fixed when it starts.";
/// Options that Ollama has removed.
const REMOVED: &str = "Ollama has removed this option.";
/// Which cache a vendor uses, and for how long.
const CACHE: &str = "Equal beginnings of prompts are always reused.";
/// Tiers of a vendor's service.
const TIER: &str = "All requests are served alike.";
/// A hint that few chat templates take.
const VERBOSITY: &str =
    "Chat templates that use `verbosity` get it; other models answer as they would without it.";
/// Ids of a vendor's customers.
const CUSTOMER: &str = "The vendor finds abuse by it; nothing is reported here.";

const fn chat(
    field: &'static str,
    values: &'static [&'static str],
    reason: &'static str,
    example: &'static str,
) -> Row {
    Row { api: Api::Chat, field, values, reason, example }
}

const fn responses(
    field: &'static str,
    values: &'static [&'static str],
    reason: &'static str,
    example: &'static str,
) -> Row {
    Row { api: Api::Responses, field, values, reason, example }
}

const fn messages(
    field: &'static str,
    values: &'static [&'static str],
    reason: &'static str,
    example: &'static str,
) -> Row {
    Row { api: Api::Messages, field, values, reason, example }
}

const fn ollama(
    field: &'static str,
    values: &'static [&'static str],
    reason: &'static str,
    example: &'static str,
) -> Row {
    Row { api: Api::Ollama, field, values, reason, example }
}

/// Everything that is left out or ignored on purpose, by API and field.
pub const ROWS: &[Row] = &[
    // Chat completions.
    chat(
        "prediction",
        &[],
        "It speeds an answer up at the vendor and does not change it; `--lookup` drafts from the prompt.",
        r#"{"prediction": {"type": "content", "content": "x"}}"#,
    ),
    chat("prompt_cache_key", &[], CACHE, r#"{"prompt_cache_key": "k"}"#),
    chat("prompt_cache_options", &[], CACHE, r#"{"prompt_cache_options": {"mode": "implicit"}}"#),
    chat("prompt_cache_retention", &[], CACHE, r#"{"prompt_cache_retention": "24h"}"#),
    chat("safety_identifier", &[], CUSTOMER, r#"{"safety_identifier": "u"}"#),
    chat("service_tier", &[], TIER, r#"{"service_tier": "flex"}"#),
    chat("verbosity", &["low", "high"], VERBOSITY, r#"{"verbosity": "$VALUE"}"#),
    // Responses.
    responses(
        "tools[].type",
        &[
            "code_interpreter",
            "file_search",
            "image_generation",
            "mcp",
            "programmatic_tool_calling",
            "tool_search",
            "web_search",
            "web_search_20*",
            "web_search_preview",
            "web_search_preview_20*",
        ],
        VENDOR_RUN,
        r#"{"tools": [{"type": "$VALUE"}]}"#,
    ),
    responses(
        "tools[].type",
        &["apply_patch", "computer", "computer_use_preview", "local_shell", "shell"],
        UNKNOWN_FORM,
        r#"{"tools": [{"type": "$VALUE"}]}"#,
    ),
    responses(
        "include[]",
        &["reasoning.encrypted_content"],
        "Reasoning is returned as text, which the next request may send back.",
        r#"{"include": ["$VALUE"]}"#,
    ),
    responses(
        "include[]",
        &[
            "code_interpreter_call.outputs",
            "computer_call_output.output.image_url",
            "file_search_call.results",
            "message.input_image.image_url",
            "web_search_call.action.sources",
            "web_search_call.results",
        ],
        "Only images and tools that are left out have this.",
        r#"{"include": ["$VALUE"]}"#,
    ),
    responses(
        "input[].type",
        &[
            "computer_call",
            "computer_call_output",
            "file_search_call",
            "image_generation_call",
            "mcp_approval_request",
            "mcp_approval_response",
            "mcp_list_tools",
            "tool_search_call",
            "tool_search_output",
            "web_search_call",
        ],
        "The item has no text for the model to read, so it is left out.",
        r#"{"input": [{"role": "user", "content": "a"}, {"type": "$VALUE"}]}"#,
    ),
    responses(
        "text.verbosity",
        &["low", "high"],
        VERBOSITY,
        r#"{"text": {"verbosity": "$VALUE"}}"#,
    ),
    responses(
        "reasoning.summary",
        &["concise", "detailed", "none"],
        "Reasoning is returned as the model wrote it.",
        r#"{"reasoning": {"summary": "$VALUE"}}"#,
    ),
    responses(
        "reasoning.context",
        &["all_turns", "current_turn"],
        "The chat template decides which reasoning of earlier turns the model is shown.",
        r#"{"reasoning": {"context": "$VALUE"}}"#,
    ),
    responses(
        "access_programs",
        &[],
        "Access depends on API keys alone.",
        r#"{"access_programs": {"cyber": "standard"}}"#,
    ),
    responses(
        "background_options",
        &[],
        "It is for responses in the background, which are refused.",
        r#"{"background_options": {"completion_window": "soonest"}}"#,
    ),
    responses(
        "client_metadata",
        &[],
        "The client describes its session by it; nothing here reads that.",
        r#"{"client_metadata": {"session": "s"}}"#,
    ),
    responses(
        "image",
        &[],
        "It is for images, which are refused.",
        r#"{"image": {"context_compression": "auto"}}"#,
    ),
    responses("prompt_cache_key", &[], CACHE, r#"{"prompt_cache_key": "k"}"#),
    responses(
        "prompt_cache_options",
        &[],
        CACHE,
        r#"{"prompt_cache_options": {"mode": "implicit"}}"#,
    ),
    responses("prompt_cache_retention", &[], CACHE, r#"{"prompt_cache_retention": "24h"}"#),
    responses("safety_identifier", &[], CUSTOMER, r#"{"safety_identifier": "u"}"#),
    responses("service_tier", &[], TIER, r#"{"service_tier": "flex"}"#),
    responses(
        "stream_options.include_obfuscation",
        &[],
        "Streams are never padded.",
        r#"{"stream_options": {"include_obfuscation": true}}"#,
    ),
    // Messages.
    messages(
        "tools[].type",
        &[
            "advisor_20*",
            "code_execution_20*",
            "mcp_toolset",
            "tool_search_tool_bm25",
            "tool_search_tool_bm25_20*",
            "tool_search_tool_regex",
            "tool_search_tool_regex_20*",
            "web_fetch_20*",
            "web_search_20*",
        ],
        VENDOR_RUN,
        r#"{"tools": [{"type": "$VALUE", "name": "t"}]}"#,
    ),
    messages(
        "tools[].type",
        &["browser_toolset_20*", "computer_20*", "computer_toolset_20*"],
        "Its results are images, which no model here reads, so it is left out.",
        r#"{"tools": [{"type": "$VALUE", "name": "computer"}]}"#,
    ),
    messages(
        "tools[].allowed_callers",
        &[],
        "No code is run here, so tools are called by the model alone.",
        r#"{"tools": [{"name": "f", "input_schema": {"type": "object"}, "allowed_callers": ["direct"]}]}"#,
    ),
    messages(
        "tools[].cache_control",
        &[],
        CACHE,
        r#"{"tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}]}"#,
    ),
    messages(
        "tools[].defer_loading",
        &["true"],
        "All tools are described from the start, so that the beginning of the prompt stays the same.",
        r#"{"tools": [{"name": "f", "input_schema": {"type": "object"}, "defer_loading": $VALUE}]}"#,
    ),
    messages(
        "tools[].eager_input_streaming",
        &[],
        "Inputs of tools are always streamed as they are generated.",
        r#"{"tools": [{"name": "f", "input_schema": {"type": "object"}, "eager_input_streaming": true}]}"#,
    ),
    messages(
        "tools[].input_examples",
        &[],
        "Chat templates have no place for examples; the schema describes the input.",
        r#"{"tools": [{"name": "f", "input_schema": {"type": "object"}, "input_examples": [{}]}]}"#,
    ),
    messages(
        "tools[].max_characters",
        &[],
        "The client cuts what its editor shows.",
        r#"{"tools": [{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9}]}"#,
    ),
    messages(
        "mcp_servers",
        &[],
        "The vendor's servers connect to these, so their tools are left out.",
        r#"{"mcp_servers": [{"type": "url", "name": "m", "url": "https://m.example"}]}"#,
    ),
    messages(
        "container",
        &[],
        "The vendor runs code in it, and no code is run here. Skills are refused.",
        r#"{"container": "c"}"#,
    ),
    messages(
        "context_management.edits[].type",
        &["clear_thinking_20*", "clear_tool_uses_20*", "compact_20*"],
        "The conversation is kept whole. One that outgrows the context is an error, after which the client compacts.",
        r#"{"context_management": {"edits": [{"type": "$VALUE"}]}}"#,
    ),
    messages("cache_control", &[], CACHE, r#"{"cache_control": {"type": "ephemeral"}}"#),
    messages(
        "system[].cache_control",
        &[],
        CACHE,
        r#"{"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]}"#,
    ),
    messages(
        "system[].text",
        &["x-anthropic-billing-header:*"],
        "The block names the client's account and differs in each conversation; without it, these begin alike.",
        r#"{"system": [{"type": "text", "text": "$VALUE"}]}"#,
    ),
    messages(
        "messages[].content[].cache_control",
        &[],
        CACHE,
        r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}]}"#,
    ),
    messages(
        "messages[].content[].signature",
        &[],
        "Thinking that comes back is not verified.",
        r#"{"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}]}]}"#,
    ),
    messages(
        "messages[].content[].type",
        &["fallback", "mcp_tool_listing", "redacted_thinking"],
        "Only the vendor can use or read the block, so it is left out.",
        r#"{"messages": [{"role": "assistant", "content": [{"type": "$VALUE"}, {"type": "text", "text": "a"}]}]}"#,
    ),
    messages(
        "thinking.block_binding",
        &[],
        "Thinking that comes back is not verified.",
        r#"{"thinking": {"type": "adaptive", "block_binding": {}}}"#,
    ),
    messages(
        "thinking.display",
        &[],
        "Thinking is returned as the model wrote it.",
        r#"{"thinking": {"type": "adaptive", "display": "omitted"}}"#,
    ),
    messages(
        "output_config.task_budget",
        &[],
        "Models are not told of it; `max_tokens` limits an answer.",
        r#"{"output_config": {"task_budget": {"type": "tokens", "total": 1024}}}"#,
    ),
    messages(
        "billing_policy",
        &[],
        "Nothing is billed.",
        r#"{"billing_policy": {"type": "billing_policy"}}"#,
    ),
    messages(
        "diagnostics",
        &[],
        "The usage of an answer tells how much of the prompt was cached.",
        r#"{"diagnostics": {"previous_message_id": "msg_1"}}"#,
    ),
    messages(
        "fallback_credit_token",
        &[],
        "Nothing is billed.",
        r#"{"fallback_credit_token": "t"}"#,
    ),
    messages(
        "fallbacks",
        &[],
        "They answer what the vendor refuses by policy; nothing is refused so here.",
        r#"{"fallbacks": [{"model": "m"}]}"#,
    ),
    messages("service_tier", &[], TIER, r#"{"service_tier": "standard_only"}"#),
    messages("speed", &[], TIER, r#"{"speed": "fast"}"#),
    // Ollama.
    ollama("options.num_gpu", &[], AT_START, r#"{"options": {"num_gpu": 99}}"#),
    ollama("options.main_gpu", &[], AT_START, r#"{"options": {"main_gpu": 0}}"#),
    ollama("options.num_thread", &[], AT_START, r#"{"options": {"num_thread": 8}}"#),
    ollama("options.num_batch", &[], AT_START, r#"{"options": {"num_batch": 512}}"#),
    ollama(
        "options.use_mmap",
        &[],
        "Files of models are always mapped.",
        r#"{"options": {"use_mmap": true}}"#,
    ),
    ollama("options.use_mlock", &[], REMOVED, r#"{"options": {"use_mlock": true}}"#),
    ollama(
        "options.num_keep",
        &[],
        "Of a conversation that does not fit, whole turns are left out, and the system message stays.",
        r#"{"options": {"num_keep": 4}}"#,
    ),
    ollama("options.numa", &[], REMOVED, r#"{"options": {"numa": true}}"#),
    ollama("options.low_vram", &[], REMOVED, r#"{"options": {"low_vram": true}}"#),
    ollama("options.f16_kv", &[], REMOVED, r#"{"options": {"f16_kv": true}}"#),
    ollama("options.logits_all", &[], REMOVED, r#"{"options": {"logits_all": true}}"#),
    ollama("options.vocab_only", &[], REMOVED, r#"{"options": {"vocab_only": false}}"#),
    ollama("options.embedding_only", &[], REMOVED, r#"{"options": {"embedding_only": false}}"#),
    ollama("options.penalize_newline", &[], REMOVED, r#"{"options": {"penalize_newline": true}}"#),
    ollama("options.num_gqa", &[], REMOVED, r#"{"options": {"num_gqa": 8}}"#),
    ollama(
        "options.rope_frequency_base",
        &[],
        REMOVED,
        r#"{"options": {"rope_frequency_base": 1e4}}"#,
    ),
    ollama(
        "options.rope_frequency_scale",
        &[],
        REMOVED,
        r#"{"options": {"rope_frequency_scale": 1}}"#,
    ),
    ollama("options.tfs_z", &[], REMOVED, r#"{"options": {"tfs_z": 1.0}}"#),
];
