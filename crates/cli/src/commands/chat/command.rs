//! The commands of a conversation: the table of them, and what a line asks for.

use super::entry::block;

/// A command: a line that begins with its name.
#[derive(Debug, PartialEq)]
pub(super) struct Command {
    pub(super) name: &'static str,
    /// Other names that are accepted for it.
    others: &'static [&'static str],
    /// The arguments after the name, in brackets if optional.
    pub(super) argument: &'static str,
    about: &'static str,
}

const fn command(name: &'static str, argument: &'static str, about: &'static str) -> Command {
    Command { name, others: &[], argument, about }
}

/// Every command, in the order in which `/help` lists them. The rows with one name are the forms of one command.
pub(super) const COMMANDS: &[Command] = &[
    Command { others: &["/?"], ..command("/help", "", "list the commands") },
    command("/retry", "", "answer the last message again"),
    command("/undo", "", "drop the last message and its answer"),
    Command {
        others: &["/reset"],
        ..command("/clear", "", "forget the conversation; the system message stays")
    },
    command(
        "/system",
        "[TEXT]",
        "set the system message, or remove it, and forget the conversation",
    ),
    command(
        "/set",
        "parameter NAME [VALUE]",
        "set a parameter; without VALUE, as it was at the start",
    ),
    command(
        "/set",
        "system [TEXT]",
        "set the system message, or remove it; the conversation stays",
    ),
    command("/set", "think | nothink", "turn reasoning on or off"),
    command("/set", "format json | noformat", "answer with JSON objects, or with text"),
    command("/set", "verbose | quiet", "show timings after each answer, or don't"),
    command("/set", "history | nohistory", "keep the lines typed for the next start, or don't"),
    command("/set", "markdown auto | on | off", "render Markdown on a terminal, always or never"),
    command("/show", "[TOPIC]", "show the model, parameters, system, template or license"),
    command("/model", "[NAME]", "show the model, or switch to another; the conversation stays"),
    command("/save", "FILE", "write the conversation to FILE as JSON"),
    command("/load", "FILE", "continue the conversation in FILE"),
    command("/tools", "", "list the tools that the model may call"),
    Command { others: &["/quit", "/exit"], ..command("/bye", "", "leave; so does Ctrl-D") },
];

/// Below the commands in `/help`.
const KEYS: &str = "\
Ctrl-C stops an answer, Tab completes commands and files. A line that ends with \\ is continued.
A text between \"\"\" and \"\"\" may have several lines, and begin with /.";

/// The text of `/help`.
pub(super) fn help() -> String {
    let left = COMMANDS.iter().map(|command| {
        let names = std::iter::once(&command.name).chain(command.others);
        let names = names.copied().collect::<Vec<_>>().join(", ");
        format!("{names} {}", command.argument).trim_end().to_owned()
    });
    let left: Vec<String> = left.collect();
    let width = left.iter().map(String::len).max().unwrap_or(0);
    let rows = left.iter().zip(COMMANDS);
    let rows = rows.map(|(left, command)| format!("{left:width$}  {}\n", command.about));
    rows.chain([KEYS.to_owned()]).collect()
}

/// A parsed line of input.
#[derive(Debug, PartialEq)]
pub(super) enum Typed<'a> {
    Nothing,
    Message(&'a str),
    Exit,
    Help,
    Retry,
    Undo,
    Clear,
    /// A system message, which may be none, for a new conversation.
    System(Option<&'a str>),
    /// The arguments of `/set`.
    Set(&'a str),
    /// The argument of `/show`.
    Show(&'a str),
    Model(Option<&'a str>),
    Save(&'a str),
    Load(&'a str),
    Tools,
    /// A command without its argument.
    Incomplete(&'static Command),
    /// No command: its name, and the nearest one.
    Unknown(&'a str, Option<&'static str>),
}

/// Reads a text that was typed.
pub(super) fn parse(text: &str) -> Typed<'_> {
    let text = text.trim();
    if let Some(block) = block(text) {
        return if block.trim().is_empty() { Typed::Nothing } else { Typed::Message(block) };
    }
    if text.is_empty() {
        return Typed::Nothing;
    }
    if !text.starts_with('/') {
        return Typed::Message(text);
    }
    let (typed, rest) = split(text);
    let is_named = |command: &&Command| command.name == typed || command.others.contains(&typed);
    let Some(command) = COMMANDS.iter().find(is_named) else {
        // Their common beginning would make all names alike.
        let near = nearest(&typed[1..], names().map(|name| &name[1..]));
        let near = near.and_then(|near| names().find(|name| name[1..] == *near));
        return Typed::Unknown(typed, near);
    };
    let given = (!rest.is_empty()).then_some(rest);
    match (command.name, given) {
        ("/help", _) => Typed::Help,
        ("/retry", _) => Typed::Retry,
        ("/undo", _) => Typed::Undo,
        ("/clear", _) => Typed::Clear,
        ("/system", text) => Typed::System(text.map(unquoted)),
        ("/set", _) => Typed::Set(rest),
        ("/show", _) => Typed::Show(rest),
        ("/model", name) => Typed::Model(name),
        ("/save", Some(file)) => Typed::Save(file),
        ("/load", Some(file)) => Typed::Load(file),
        ("/tools", _) => Typed::Tools,
        ("/bye", _) => Typed::Exit,
        _ => Typed::Incomplete(command),
    }
}

/// The first word of a text, and the rest without the space around it.
pub(super) fn split(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

/// A text without the quotes of a block.
pub(super) fn unquoted(text: &str) -> &str {
    block(text).unwrap_or(text)
}

/// Every name of every command.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS
        .iter()
        .flat_map(|command| std::iter::once(command.name).chain(command.others.iter().copied()))
}

/// The name that is spelled almost as `typed`.
pub(super) fn nearest<'n>(typed: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let near = names.map(|name| (strsim::jaro_winkler(typed, name), name));
    let best = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|&(nearness, _)| nearness > 0.8);
    best.map(|(_, name)| name)
}

/// An error about `what` was typed, with the nearest name if there is one, and the names that are known.
pub(super) fn unknown(what: &str, nearest: Option<&str>, known: &str) -> String {
    match nearest {
        Some(name) => format!("unknown {what}, did you mean {name}? {known}"),
        None => format!("unknown {what}; {known}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_commands() {
        for (line, want) in [
            ("", Typed::Nothing),
            ("  hello ", Typed::Message("hello")),
            ("/help", Typed::Help),
            ("/?", Typed::Help),
            ("/tools", Typed::Tools),
            ("/clear", Typed::Clear),
            ("/reset", Typed::Clear),
            ("/retry", Typed::Retry),
            ("/undo", Typed::Undo),
            ("/system be brief", Typed::System(Some("be brief"))),
            ("/system \"\"\"\nbe\nbrief\n\"\"\"", Typed::System(Some("be\nbrief"))),
            ("/system", Typed::System(None)),
            ("/set parameter top_k  5 ", Typed::Set("parameter top_k  5")),
            ("/set", Typed::Set("")),
            ("/show", Typed::Show("")),
            ("/show system", Typed::Show("system")),
            ("/model", Typed::Model(None)),
            ("/model qwen3:4b", Typed::Model(Some("qwen3:4b"))),
            ("/save a b.json", Typed::Save("a b.json")),
            ("/load\ta b.json", Typed::Load("a b.json")),
            ("/quit", Typed::Exit),
            ("/exit", Typed::Exit),
            ("/bye", Typed::Exit),
            ("/x", Typed::Unknown("/x", None)),
            ("/retyr now", Typed::Unknown("/retyr", Some("/retry"))),
            ("/parameters", Typed::Unknown("/parameters", None)),
            ("\"\"\"/x is a path\"\"\"", Typed::Message("/x is a path")),
            ("\"\"\"\n  a\nb\n\"\"\"", Typed::Message("  a\nb")),
            ("\"\"\"\n\"\"\"", Typed::Nothing),
        ] {
            assert_eq!(parse(line), want, "{line:?}");
        }
        for (line, argument) in [("/save", "FILE"), ("/load ", "FILE")] {
            match parse(line) {
                Typed::Incomplete(command) => assert_eq!(command.argument, argument),
                other => panic!("{line:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn help_lists_every_command() {
        let help = help();
        for name in names() {
            assert!(help.contains(name), "{name}");
        }
        let starts: Vec<_> = help.lines().filter(|line| line.starts_with("/set ")).collect();
        assert_eq!(starts.len(), 7);
        assert!(help.starts_with("/help, /?   "), "{help}");
        assert!(help.lines().all(|line| line.len() <= 100), "{help}");
    }
}
