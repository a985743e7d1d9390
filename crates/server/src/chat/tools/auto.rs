//! The grammar of an answer that may be calls: of the model's own will, or in the place of an answer
//! by a grammar.
//!
//! The answer is free up to the mark by which a call begins. From there on calls follow it, those of
//! strict functions and of custom tools by their schemas and grammars, and nothing else. Where nothing
//! but a bracket begins a call, an answer that begins with the bracket is one, and one that does not has none.
//! Beside a grammar for the answer there is no free text: the answer is calls, or follows that grammar.

use realizar_runtime::constrain::{Error, Grammar};
use realizar_runtime::tokenizer::Tokenizer;

use super::forced::{forced_grammar, forced_json, list};
use super::format::{Notation, Syntax, ToolFormat};
use super::harmony;
use super::layout::{CallLayout, Layout, Part};
use super::request::{Function, ToolInput, ToolRequest};
use super::writer::{Token, Writer, escaped, expression};

/// The grammar of an answer to a request with tools, and the format in which its calls are read;
/// `None` if the answer is free. `format` is the model's own, if it has a known one, `content` the
/// grammar of an answer without calls, if the request has one, and `template` the chat template.
///
/// # Errors
/// If what the request demands of calls cannot be written as a grammar.
pub fn call_grammar(
    format: Option<ToolFormat>,
    request: &ToolRequest,
    content: Option<&Grammar>,
    template: &str,
    tokenizer: &Tokenizer,
) -> Result<Option<(ToolFormat, Grammar)>, Error> {
    if request.must_call() {
        let own = format.and_then(|format| {
            Some((format, forced_grammar(format, request, template, tokenizer)?))
        });
        return match own {
            Some(own) => Ok(Some(own)),
            // Where the model's own form cannot be forced, a call is JSON.
            None => Ok(forced_json(request, tokenizer)?.map(|grammar| (ToolFormat::Json, grammar))),
        };
    }
    let held = |f: &Function| f.strict || matches!(f.input, ToolInput::Text(Some(_)));
    if !request.may_call() || content.is_none() && !request.functions.iter().any(held) {
        return Ok(None);
    }
    let format = format.unwrap_or(ToolFormat::Json);
    let mut writer = Writer::new(tokenizer, false);
    let content = content.map(Grammar::embedded).transpose()?;
    let functions: Vec<&Function> = request.functions.iter().collect();
    let start = if format == ToolFormat::Harmony {
        in_channels(&mut writer, template, content.as_deref(), &functions)
    } else {
        let several = request.parallel;
        either(&mut writer, format, template, content.as_deref(), &functions, several)
    };
    match start {
        Some(start) => {
            Ok(Some((format, Grammar::Lark(format!("start: {start}\n{}", writer.rules)))))
        }
        None => Err(writer.refusal()),
    }
}

/// Calls between marks or after a bracket, or content.
fn either(
    writer: &mut Writer<'_>,
    format: ToolFormat,
    template: &str,
    content: Option<&str>,
    functions: &[&Function],
    several: bool,
) -> Option<String> {
    let syntax = format.syntax();
    let marks = marks(syntax);
    let layout = Layout::of(format, template);
    let split = layout.as_ref().and_then(|layout| layout.split_mark(syntax));
    if let (Some(layout), Some((mark, first))) = (&layout, split) {
        // Calls in JSON are not looked for after a mark around all calls.
        let section = syntax.section.is_some_and(|[begin, _]| begin == mark);
        let calls = list(writer, [&first, layout], functions, several, !section)?;
        return Some(match content {
            Some(content) => format!("{content} | {} {calls}", writer.text(mark)),
            None => {
                let text = writer.text_without("(?s:.+)", &marks);
                format!("({text})? | {} {calls}", lead(writer, mark, &marks, &text))
            }
        });
    }
    let layouts = match layout {
        Some(layout) => vec![layout],
        None if several => vec![Layout::json(false), Layout::json(true)],
        None => vec![Layout::json(false)],
    };
    let mut all = Vec::new();
    for layout in &layouts {
        let several = several && (format != ToolFormat::Json || !layout.list_end.is_empty());
        all.push(list(writer, [layout, layout], functions, several, true)?);
    }
    let mut calls = all.join(" | ");
    if let Some(open) = syntax.open.filter(|_| format != ToolFormat::Json) {
        let (open, close) = (writer.text(open), writer.text(syntax.close.unwrap_or_default()));
        calls = format!("{calls} | {open} ({calls}) {close}");
    }
    let text = match content {
        Some(content) => content.to_owned(),
        None => {
            let bracket = match format {
                ToolFormat::Llama3Json => "{",
                ToolFormat::Pythonic => "\\[",
                _ => "{\\[",
            };
            let text = format!("\\s*[^\\s{bracket}](?s:.*)");
            format!("({})?", writer.text_without(&text, &marks))
        }
    };
    Some(format!("{text} | {calls}"))
}

/// The marks at which a call begins, or may.
fn marks(syntax: &Syntax) -> Vec<&'static str> {
    let section = syntax.section.iter().map(|[begin, _]| *begin);
    let bare = match &syntax.notation {
        Notation::Elements(marks) => marks.open,
        Notation::Json | Notation::Python | Notation::Gemma => "",
    };
    let all = syntax.open.into_iter().chain(section).chain([bare]);
    all.filter(|mark| !mark.is_empty()).collect()
}

/// An expression for any text up to the first mark, and this mark.
fn lead(writer: &mut Writer<'_>, mark: &str, marks: &[&str], text: &str) -> String {
    let tokens = writer.tokens(mark);
    match tokens.as_slice() {
        [Token::Text(mark)] => {
            let others: Vec<String> =
                marks.iter().filter(|other| *other != mark).map(|other| escaped(other)).collect();
            let without = match others.as_slice() {
                [] => String::new(),
                others => format!(" & ~/(?s:.*)({})(?s:.*)/", others.join("|")),
            };
            let suffix = expression(&tokens);
            writer.attributed(&format!("[suffix={suffix}]"), &format!("/(?s:.*)/{without}"))
        }
        [Token::Text(first), rest @ ..] => {
            let text = writer.text_without(&format!("(?s:.*){}", escaped(first)), marks);
            format!("{text} {}", expression(rest))
        }
        all => format!("({text})? {}", expression(all)),
    }
}

/// Messages in channels, from behind the role on: the answer, or a call, perhaps after a message to the user.
fn in_channels(
    writer: &mut Writer<'_>,
    template: &str,
    content: Option<&str>,
    functions: &[&Function],
) -> Option<String> {
    let layout = Layout::of(ToolFormat::Harmony, template)?;
    let text = |text: &str| Part::Text(text.to_owned());
    // The recipient may also stand in the channel.
    let in_channel = CallLayout::Json {
        before_name: vec![text("<|channel|>commentary to=functions.")],
        before_arguments: vec![Part::Optional(" <|constrain|>json"), text("<|message|>")],
        more: Vec::new(),
        close: String::new(),
    };
    let calls = writer.calls(&layout.call, functions, false)?;
    let calls = format!("({calls} | {})", writer.calls(&in_channel, functions, false)?);
    let any = writer.text_without("(?s:.+)", &harmony::MARKERS);
    let told = writer.text("<|channel|>commentary<|message|>");
    let answer = writer.text("<|channel|>final<|message|>");
    let answer = match content {
        Some(content) => format!("{answer} ({content})"),
        None => format!("{answer} ({any})?"),
    };
    let next = writer.text("<|end|><|start|>assistant");
    let told = if writer.ends { String::new() } else { format!("({told} {any} {next})?") };
    Some(format!("{answer} | {told} {calls}"))
}
