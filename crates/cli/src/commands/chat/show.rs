//! The output of `/show`: the model, the parameters in effect, the system message, the template.

use anyhow::Result;
use realizar_runtime::GenerateParams;

use super::Chat;
use super::command::{nearest, unknown};
use super::settings::PARAMETERS;
use crate::commands::show;
use crate::engine::Engine;
use crate::ui;

/// The arguments that `/show` takes.
pub(super) const TOPICS: &[&str] =
    &["model", "info", "parameters", "system", "template", "license"];

/// The text of `/show TOPIC`; without a topic, a summary.
pub(super) fn text(chat: &Chat<'_>, engine: &Engine, topic: &str) -> Result<String> {
    match topic {
        "" => summary(chat, engine),
        "model" | "info" => {
            let mut rows = show::rows(&chat.model.path, &chat.sources)?;
            rows.push(("context in use", engine.model.max_seq_len().to_string()));
            rows.push(("device", engine.model.backend().to_owned()));
            table(rows)
        }
        "parameters" => parameters(chat, &chat.params(engine)?, |_| true),
        "system" => {
            Ok(chat.conversation.system.clone().unwrap_or_else(|| "no system message".to_owned()))
        }
        "template" => Ok(match engine.chat_template()? {
            Some(template) => template.source().trim_end().to_owned(),
            None => "no chat template".to_owned(),
        }),
        "license" | "licence" => {
            let rows = show::rows(&chat.model.path, &chat.sources)?;
            let licence = rows.into_iter().find(|(name, _)| *name == "licence");
            Ok(licence
                .map_or_else(|| "the model's files name no licence".to_owned(), |(_, text)| text))
        }
        _ => {
            let near = nearest(topic, TOPICS.iter().copied());
            let known = format!("/show takes {}", TOPICS.join(", "));
            Ok(unknown(&format!("topic `{topic}`"), near, &known))
        }
    }
}

fn summary(chat: &Chat<'_>, engine: &Engine) -> Result<String> {
    let model = &engine.model;
    let quantization = model.quantization();
    let n_params = ui::count(model.n_params() as u64);
    let architecture = model.architecture();
    let mut rows = vec![
        (
            "model",
            format!(
                "{}: {architecture}, {n_params} parameters, {quantization}",
                chat.model.shown()
            ),
        ),
        ("device", model.backend().to_owned()),
    ];
    let n_messages = chat.conversation.messages.len();
    let n_tokens = match n_messages {
        0 => 0,
        _ => engine.chat_prompt(&chat.conversation.all(), chat.tools.values(), chat.thinks)?.len(),
    };
    let context = model.max_seq_len();
    rows.push(("conversation", format!("{n_messages} messages, {n_tokens} of {context} tokens")));
    let system = chat.conversation.system.as_deref().unwrap_or("none");
    rows.push(("system", system.lines().next().unwrap_or_default().to_owned()));
    let text = table(rows)?;
    let params = chat.params(engine)?;
    let set = parameters(chat, &params, |name| chat.changed.has(name))?;
    Ok(if set.is_empty() { text } else { format!("{text}\n{set}") })
}

/// The parameters of these names with their values; those that were set are marked.
fn parameters(
    chat: &Chat<'_>,
    params: &GenerateParams,
    is_listed: impl Fn(&str) -> bool,
) -> Result<String> {
    let rows = PARAMETERS.iter().filter(|parameter| is_listed(parameter.name)).map(|parameter| {
        let value = match (parameter.name, chat.has_seed()) {
            // One is drawn for each answer.
            ("seed", false) => "random".to_owned(),
            _ => parameter.read(params),
        };
        let mark = if chat.changed.has(parameter.name) { "  (set)" } else { "" };
        (parameter.name, format!("{value}{mark}"))
    });
    table(rows.collect())
}

fn table(rows: Vec<(&'static str, String)>) -> Result<String> {
    let rows: Vec<_> = rows.into_iter().map(|(name, text)| vec![name.to_owned(), text]).collect();
    let mut text = Vec::new();
    ui::table(&mut text, &rows, &[])?;
    Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
}
