//! Texts on the command line that begin with a hyphen, as in `realizar run m "- item"`.
//!
//! The parser would take them for options. An argument that cannot be an option is moved behind
//! `--`, so that everything else keeps its meaning; a text that has the form of an option needs
//! the `--` written out.

use std::ffi::OsString;

use clap::{Arg, Command};

/// The commands that end in a text.
const WITH_TEXT: [&str; 2] = ["run", "tokenize"];

/// `args` (the program's name first) with such a text moved to the end, behind `--`.
pub(crate) fn protect(root: &Command, mut args: Vec<OsString>) -> Vec<OsString> {
    let mut command = root;
    let mut i = 1;
    while let Some(arg) = args.get(i).and_then(|arg| arg.to_str()) {
        if arg == "--" {
            break;
        }
        let is_text = WITH_TEXT.contains(&command.get_name()) && is_text(root, command, arg);
        if is_text {
            if !args.iter().any(|arg| arg == "--") {
                let text = args.remove(i);
                args.push("--".into());
                args.push(text);
            }
            break;
        }
        i += if wants_value(root, command, arg) { 2 } else { 1 };
        if !arg.starts_with('-')
            && let Some(sub) = command.find_subcommand(arg)
        {
            command = sub;
        }
    }
    args
}

/// True for an argument that begins with a hyphen and has no form of an option.
fn is_text(root: &Command, command: &Command, arg: &str) -> bool {
    let Some(rest) = arg.strip_prefix('-').filter(|rest| !rest.is_empty()) else { return false };
    if let Some(long) = rest.strip_prefix('-') {
        let name = long.split_once('=').map_or(long, |(name, _)| name);
        return !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            || !name.starts_with(|c: char| c.is_ascii_alphabetic());
    }
    let known = |c: char| options(root, command).any(|arg| arg.get_short() == Some(c));
    let Some(first) = rest.chars().next() else { return false };
    !first.is_ascii_alphabetic()
        || rest.contains(char::is_whitespace) && !known(first) && !"hV".contains(first)
}

/// True for an option whose value is the next argument.
fn wants_value(root: &Command, command: &Command, arg: &str) -> bool {
    let takes = |arg: &Arg| arg.get_action().takes_values();
    let Some(rest) = arg.strip_prefix('-') else { return false };
    if let Some(long) = rest.strip_prefix('-') {
        let named = |arg: &Arg| {
            arg.get_long() == Some(long)
                || arg.get_all_aliases().is_some_and(|names| names.contains(&long))
        };
        return options(root, command).any(|arg| named(arg) && takes(arg));
    }
    // Flags may stand before the option: -vn 5. A value may follow it at once: -n5.
    for (at, c) in rest.char_indices() {
        let option = options(root, command).find(|arg| arg.get_short() == Some(c));
        if option.is_some_and(takes) {
            return at + c.len_utf8() == rest.len();
        }
    }
    false
}

/// The options of a command and the global ones.
fn options<'a>(root: &'a Command, command: &'a Command) -> impl Iterator<Item = &'a Arg> {
    root.get_arguments().chain(command.get_arguments()).filter(|arg| !arg.is_positional())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Cli;
    use clap::CommandFactory;

    #[test]
    fn only_texts_move() {
        let check = |args: &str, want: &str| {
            let words = |text: &str| -> Vec<OsString> {
                std::iter::once("realizar").chain(text.split('|')).map(OsString::from).collect()
            };
            assert_eq!(protect(&Cli::command(), words(args)), words(want), "{args}");
        };
        check("run|m|- item|-n|5", "run|m|-n|5|--|- item");
        check("-v|--color|never|run|m|-5", "-v|--color|never|run|m|--|-5");
        check("tokenize|m|-item one", "tokenize|m|--|-item one");
        check("run|m|-- what?|--raw", "run|m|--raw|--|-- what?");
        for same in [
            "run|m|hi",
            "run|m|-n5|-t|2|-f|-",
            "run|m|hi|--temp|-1|--temperature|-1",
            "run|m|hi|--stop|- x|--system|-5",
            "run|m|hi|--system=- be brief",
            "run|m|--tmep|1",
            "run|m|-x",
            "run|m|--|- item",
            "logits|m|--ids|-1|-5",
            "run|m|-ffile with spaces",
        ] {
            check(same, same);
        }
    }
}
