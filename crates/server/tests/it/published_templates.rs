//! Published chat templates: their format of tool calls is known, and the calls that they write of
//! an earlier answer are read as those calls.
//!
//! Needs `REALIZAR_TEMPLATE_DIR`, a folder with templates; `cargo xtask test` sets it.

use std::path::PathBuf;

use realizar_runtime::template::{ChatTemplate, Message, RenderOptions};
use realizar_server::conversation::{Answer, AnswerPart};
use realizar_server::tools::Function;
use realizar_server::{ChatParser, ChatParserOptions, ReasoningFormat, TemplateTraits, ToolFormat};
use serde_json::json;

use ReasoningFormat as R;
use ToolFormat as T;

/// Templates with their formats of calls and of reasoning.
pub(crate) const TEMPLATES: &[(&str, Option<T>, Option<R>)] = &[
    ("Bielik-11B-v3.0-Instruct", Some(T::Hermes), Some(R::Think)),
    ("ByteDance-Seed-OSS", Some(T::SeedOss), Some(R::SeedOss)),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", Some(T::CommandR7b), Some(R::CommandR7b)),
    ("GLM-4.6", Some(T::Glm45), Some(R::Think)),
    ("GLM-4.7-Flash", Some(T::Glm45), Some(R::Think)),
    ("HuggingFaceTB-SmolLM3-3B", None, Some(R::Think)),
    ("Kimi-K2-Instruct", Some(T::KimiK2), None),
    ("Kimi-K2-Thinking", Some(T::KimiK2), Some(R::Think)),
    ("LFM2-8B-A1B", Some(T::Lfm2), None),
    ("LFM2.5-8B-A1B", Some(T::Lfm2), Some(R::Think)),
    ("MiMo-VL", Some(T::Hermes), None),
    ("MiniMax-M1", Some(T::Apriel), None),
    ("MiniMax-M2", Some(T::MinimaxM2), Some(R::Think)),
    ("Mistral-Small-3.2-24B-Instruct-2506", Some(T::Mistral), None),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", Some(T::Qwen3Coder), Some(R::Think)),
    ("NVIDIA-Nemotron-Nano-v2", Some(T::Nemotron), Some(R::Think)),
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", Some(T::Hermes), None),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", Some(T::Hermes), None),
    ("Qwen-QwQ-32B", Some(T::Hermes), Some(R::Think)),
    ("Qwen-Qwen2.5-7B-Instruct", Some(T::Hermes), None),
    ("Qwen-Qwen3-0.6B", Some(T::Hermes), Some(R::Think)),
    ("Qwen3-Coder", Some(T::Qwen3Coder), None),
    ("Qwen3.5-4B", Some(T::Qwen3Coder), Some(R::Think)),
    ("Reka-Edge", Some(T::Hermes), Some(R::Think)),
    ("StepFun3.5-Flash", Some(T::Qwen3Coder), Some(R::Think)),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", Some(T::DeepSeekV3), Some(R::Think)),
    ("deepseek-ai-DeepSeek-V3.1", Some(T::DeepSeekV31), Some(R::Think)),
    ("deepseek-ai-DeepSeek-V3.2", Some(T::DeepSeekV32), Some(R::Think)),
    ("google-gemma-2-2b-it", None, None),
    ("google-gemma-4-31B-it", Some(T::Gemma4), Some(R::Gemma4)),
    ("ibm-granite-granite-3.3-2B-Instruct", Some(T::Granite3), Some(R::Think)),
    ("ibm-granite-granite-4.0", Some(T::Hermes), None),
    ("llama-cpp-deepseek-r1", Some(T::DeepSeekV3), Some(R::Think)),
    ("meta-llama-Llama-3.1-8B-Instruct", Some(T::Llama3Json), None),
    ("meta-llama-Llama-3.2-3B-Instruct", Some(T::Llama3Json), None),
    ("meta-llama-Llama-3.3-70B-Instruct", Some(T::Llama3Json), None),
    ("microsoft-Phi-3.5-mini-instruct", None, None),
    ("mistralai-Ministral-3-14B-Reasoning-2512", Some(T::Mistral), Some(R::Mistral)),
    ("mistralai-Mistral-Nemo-Instruct-2407", Some(T::Mistral), None),
    ("moonshotai-Kimi-K2", Some(T::KimiK2), None),
    ("openai-gpt-oss-120b", Some(T::Harmony), Some(R::Harmony)),
    ("unsloth-Apriel-1.5", Some(T::Apriel), None),
    ("unsloth-mistral-Devstral-Small-2507", Some(T::Mistral), None),
];

/// Templates that leave the calls of earlier answers out.
pub(crate) const WITHOUT_CALLS: &[&str] = &["LFM2-8B-A1B", "ibm-granite-granite-3.3-2B-Instruct"];

/// The folders with templates; without any the test reports that it is skipped.
pub(crate) fn template_dirs() -> Option<Vec<PathBuf>> {
    let Some(dirs) = std::env::var_os("REALIZAR_TEMPLATE_DIR") else {
        println!("skipped: REALIZAR_TEMPLATE_DIR is not set");
        return None;
    };
    Some(std::env::split_paths(&dirs).collect())
}

/// What the template writes of an answer that calls `get_weather`: the end of the conversation
/// with it, after the prompt for it.
pub(crate) fn answer(template: &ChatTemplate) -> Result<(String, String), String> {
    let traits = TemplateTraits::of(template);
    let function = json!({"name": "get_weather", "description": "Weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}});
    let tools = [json!({"type": "function", "function": function})];
    let render = |messages: serde_json::Value, add_generation_prompt| {
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        let options =
            RenderOptions { add_generation_prompt, tools: Some(&tools), ..Default::default() };
        let messages = traits.prepare(messages).map_err(|error| error.to_string())?;
        template.render(&messages, &options).map_err(|error| error.to_string())
    };
    let user = json!({"role": "user", "content": "How is the weather in Zürich?"});
    let arguments = "{\"city\": \"Zürich\", \"days\": [1, 2]}";
    let function = json!({"name": "get_weather", "arguments": arguments});
    let call = json!({"id": "abcDEF123", "type": "function", "function": function});
    let assistant = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let prompt = render(json!([user]), true)?;
    let whole = render(json!([user, assistant]), false)?;
    match whole.strip_prefix(&prompt) {
        Some(answer) => Ok((prompt, answer.to_owned())),
        // A template may begin reasoning for the model and leave it out of earlier answers.
        None => {
            let common = prompt.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b);
            let begins = |(at, byte)| (byte == b'\n' || byte == b'>').then_some(at + 1);
            let start = common.map(|(byte, _)| byte).enumerate().filter_map(begins).last();
            let start = start.unwrap_or(0);
            Ok((String::new(), whole[start..].to_owned()))
        }
    }
}

#[test]
fn calls_are_read_as_templates_write_them() {
    let Some(dirs) = template_dirs() else { return };
    let mut n_templates = 0;
    for (name, tools, reasoning) in TEMPLATES {
        let paths = dirs.iter().map(|dir| dir.join(format!("{name}.jinja")));
        let Some(source) = paths.filter_map(|path| std::fs::read_to_string(path).ok()).next()
        else {
            continue;
        };
        n_templates += 1;
        let (got_tools, got_reasoning) =
            (ToolFormat::detect(&source), ReasoningFormat::detect(&source));
        assert_eq!((got_tools, got_reasoning), (*tools, *reasoning), "{name}");
        if tools.is_none() {
            continue;
        }
        if WITHOUT_CALLS.contains(name) {
            continue;
        }
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let (prompt, answer) = answer(&template).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut parser = ChatParser::new(ChatParserOptions {
            tools: *tools,
            functions: vec![Function::new(
                "get_weather",
                json!({"type": "object", "properties": {"city": {"type": "string"}}}),
            )],
            reasoning: *reasoning,
            reasoning_open: reasoning.is_some_and(|reasoning| reasoning.is_open_in(&prompt)),
            ..ChatParserOptions::default()
        });
        let mut deltas = Vec::new();
        for char in answer.chars() {
            parser.push(char.encode_utf8(&mut [0; 4]), &mut deltas);
        }
        parser.finish(&mut deltas);
        let answer_parts: Answer = deltas.into_iter().collect();
        let calls: Vec<_> = answer_parts
            .parts
            .iter()
            .filter_map(|part| match part {
                AnswerPart::ToolCall { name, arguments, .. } => Some((name, arguments)),
                _ => None,
            })
            .collect();
        assert_eq!(calls.len(), 1, "{name}: {answer}\n{answer_parts:?}");
        assert_eq!(calls[0].0, "get_weather", "{name}");
        let arguments: serde_json::Value = serde_json::from_str(calls[0].1).unwrap();
        assert_eq!(arguments, json!({"city": "Zürich", "days": [1, 2]}), "{name}");
    }
    assert!(n_templates > 0, "no known template is in {dirs:?}");
    println!("{n_templates} templates");
}

/// Templates with the variables by which they are told of tools and of reasoning, and whether they
/// begin reasoning for the model.
const VARIABLES: &[(&str, Option<&str>, Option<&str>, bool)] = &[
    ("HuggingFaceTB-SmolLM3-3B", None, Some("enable_thinking"), false),
    ("Kimi-K3", Some("tools"), Some("thinking"), false),
    ("MiniMax-M2", Some("tools"), None, true),
    ("NVIDIA-Nemotron-Nano-v2", Some("tools"), None, true),
    ("Qwen-QwQ-32B", Some("tools"), Some("enable_thinking"), false),
    ("Qwen-Qwen2.5-7B-Instruct", Some("tools"), None, false),
    ("Qwen-Qwen3-0.6B", Some("tools"), Some("enable_thinking"), false),
    ("Qwen3.5-4B", Some("tools"), Some("enable_thinking"), true),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", None, None, true),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", None, Some("enable_thinking"), false),
    ("deepseek-ai-DeepSeek-V3.1", None, Some("enable_thinking"), false),
    ("google-gemma-2-2b-it", None, None, false),
    ("google-gemma-4-31B-it", Some("tools"), Some("enable_thinking"), false),
    ("meta-llama-Llama-3.2-3B-Instruct", Some("tools"), None, false),
    ("microsoft-Phi-3.5-mini-instruct", None, None, false),
    ("openai-gpt-oss-120b", Some("tools"), None, false),
];

#[test]
fn variables_of_tools_and_reasoning_are_found() {
    let Some(dirs) = template_dirs() else { return };
    let mut wrong = Vec::new();
    for row @ (name, ..) in VARIABLES {
        let paths = dirs.iter().map(|dir| dir.join(format!("{name}.jinja")));
        let source = paths.filter_map(|path| std::fs::read_to_string(path).ok()).next();
        let Some(source) = source else { continue };
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let TemplateTraits { tools_variable, thinking_variable, string_content, .. } =
            TemplateTraits::of(&template);
        let content = json!("x");
        let content = if string_content { content } else { json!([{"type": "text", "text": "x"}]) };
        let messages = json!([{"role": "user", "content": content}]);
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let prompt = template.render(&messages, &options).unwrap();
        let begins = R::Think.is_open_in(&prompt);
        let found = (*name, tools_variable, thinking_variable, begins);
        if found != *row {
            wrong.push(found);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
