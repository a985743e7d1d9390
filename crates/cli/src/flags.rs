//! llama.cpp's flags that the parser does not know: those of several letters behind one hyphen, which
//! it would read letter by letter (`-ngl 99` as `-n gl`, `-hf` as `-h`), and some long ones.
//!
//! [`spell_out`] goes over the arguments before they are parsed. What means the same here is put
//! into the words of this program, and what does not is an error that says what to do instead.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

/// What a flag of llama.cpp is here.
enum Meaning {
    /// The option of this name, with the same value.
    Option(&'static str),
    /// An option whose value is a model, from the source of this scheme.
    OptionFrom(&'static str, &'static str),
    /// The model itself, from the source of this scheme.
    Model(&'static str),
    /// Nothing; this is printed instead.
    Nothing(&'static str),
}

const NO_CACHE_OPTION: &str = "the key-value cache is paged and shared by all requests; \
                               --kv-tokens N sets its size";
const DRAFT: &str = "the draft model is loaded with the same options as the model";
const ONE_GPU: &str = "--device names the GPUs, each with its layers: wgpu:0=20,wgpu:1; with --tensor-parallel N, \
                       N cards of NVIDIA share every layer";
const LAYERS: &str = "only whole layers can be offloaded: --gpu-layers N";
const ONE_ANSWER: &str = "`realizar run MODEL PROMPT` gives one answer, with --raw without the \
                          chat template; `realizar chat MODEL` is a conversation";
const ONE_TYPE: &str = "keys and values share one type, which --kv-type TYPE sets";
const TEXT_ALONE: &str = "only text input is supported";
const THREADS: &str = "prefill and decode use the same threads: --threads N";

/// A flag's names and its meaning.
const FLAGS: &[(&[&str], Meaning)] = &[
    (&["-cb"], Meaning::Option("cont-batching")),
    (&["-dev"], Meaning::Option("device")),
    (&["-jf", "--json-schema-file"], Meaning::Option("json-schema")),
    (&["-md"], Meaning::Option("draft-model")),
    (&["-ngl", "--n-gpu-layers"], Meaning::Option("gpu-layers")),
    (&["-np"], Meaning::Option("parallel")),
    (&["-sys", "--system-prompt"], Meaning::Option("system")),
    (&["-ub", "--ubatch-size"], Meaning::Option("chunk")),
    (&["-hfd", "-hfrd", "--hf-repo-draft"], Meaning::OptionFrom("draft-model", "hf:")),
    (&["-hf", "-hfr", "--hf-repo"], Meaning::Model("hf:")),
    (&["-m", "--model", "-mu", "--model-url"], Meaning::Model("")),
    (&["-cd", "-ctkd", "-ctvd", "-devd", "-ngld", "-tbd", "-td"], Meaning::Nothing(DRAFT)),
    (&["-cmoe", "-ncmoe", "-nkvo", "-ot"], Meaning::Nothing(LAYERS)),
    (&["-cnv", "--conversation", "-no-cnv", "-st", "--single-turn"], Meaning::Nothing(ONE_ANSWER)),
    (&["-cram", "-ctxcp", "-kvu", "-no-kvu"], Meaning::Nothing(NO_CACHE_OPTION)),
    (&["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"], Meaning::Nothing(ONE_TYPE)),
    (
        &["-fa", "--flash-attn"],
        Meaning::Nothing("attention always works like flash attention; omit the flag"),
    ),
    (
        &["-hff", "--hf-file"],
        Meaning::Nothing("the file is part of the model's name: hf:OWNER/REPO/FILE"),
    ),
    (&["-hft", "--hf-token"], Meaning::Nothing("set the environment variable HF_TOKEN")),
    (
        &["-lcd", "-lcs"],
        Meaning::Nothing("--lookup N drafts tokens by prompt lookup, without a file"),
    ),
    (&["-mg", "-sm", "-ts"], Meaning::Nothing(ONE_GPU)),
    (&["-mli"], Meaning::Nothing("in `realizar chat`, a line that ends with \\ is continued")),
    (&["-mm", "--mmproj", "-mmu"], Meaning::Nothing(TEXT_ALONE)),
    (&["-nocb"], Meaning::Nothing("continuous batching is always on")),
    (&["-sysf"], Meaning::Nothing("--system takes the text itself: --system \"$(cat FILE)\"")),
    (
        &["-p", "--prompt"],
        Meaning::Nothing("the prompt follows the model: `realizar run MODEL PROMPT`"),
    ),
    (&["-tb", "--threads-batch"], Meaning::Nothing(THREADS)),
    (
        &["-to"],
        Meaning::Nothing("--timeout S limits a whole request, --idle-timeout S an idle connection"),
    ),
];

/// The arguments, the program's name first, in the words of `program`; or why they cannot be used.
/// What is behind `--`, and the values of options, stay as they are.
pub(crate) fn spell_out(
    args: Vec<OsString>,
    mut program: Command,
) -> Result<Vec<OsString>, String> {
    program.build();
    let mut command = &program;
    let mut model_at = 0; // where the command's first argument belongs
    let mut out = Vec::new();
    let mut args = args.into_iter();
    out.extend(args.next());
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default();
        if text == "--" {
            out.push(arg);
            out.extend(args);
            break;
        }
        if let Some(meaning) = foreign(command, text) {
            let mut value = || {
                let value = args.next().ok_or_else(|| format!("`{text}` needs a value"))?;
                value.into_string().map_err(|_| format!("`{text}`: the value is not UTF-8"))
            };
            let name = command.get_name();
            match *meaning {
                Meaning::Nothing(hint) => return Err(format!("`{text}`: {hint}")),
                Meaning::Option(option) | Meaning::OptionFrom(option, _) => {
                    let Some(found) = find(command, option) else {
                        let lacks = format!("which `{name}` does not have");
                        return Err(format!("`{text}` is --{option}, {lacks}"));
                    };
                    out.push(format!("--{option}").into());
                    let scheme = meaning.scheme();
                    if found.get_action().takes_values() {
                        out.push(format!("{scheme}{}", value()?).into());
                    }
                }
                Meaning::Model(_) if model_at == 0 => {
                    return Err(format!("`{text}` must follow a command, such as `run`"));
                }
                Meaning::Model(_) if !command.get_positionals().any(is_model) => {
                    return Err(format!("`{text}` names a model, but `{name}` takes none"));
                }
                Meaning::Model(scheme) => {
                    out.insert(model_at, format!("{scheme}{}", value()?).into());
                    model_at += 1;
                }
            }
            continue;
        }
        if is_several_letters(text) && !is_repeated_flag(command, text) {
            return Err(format!(
                "unknown flag `{text}`: single-letter flags cannot be combined (-n 3), long flags \
                 take two hyphens, and an argument that begins with a hyphen goes after --"
            ));
        }
        let wants_next = wants_next(command, text);
        if model_at == 0
            && let Some(found) = command.find_subcommand(text)
        {
            (command, model_at) = (found, out.len() + 1);
        }
        out.push(arg);
        if wants_next {
            out.extend(args.next());
        }
    }
    Ok(out)
}

impl Meaning {
    /// What is written before the value.
    fn scheme(&self) -> &'static str {
        match self {
            Self::OptionFrom(_, scheme) | Self::Model(scheme) => scheme,
            Self::Option(_) | Self::Nothing(_) => "",
        }
    }
}

/// What `text` means if it is a flag of llama.cpp and none of the command's own.
fn foreign(command: &Command, text: &str) -> Option<&'static Meaning> {
    let long = text.strip_prefix("--");
    let is_own = match long {
        Some(long) => find(command, long).is_some(),
        None => text.len() == 2 && option_of(command, text).is_some(),
    };
    let (_, meaning) = FLAGS.iter().find(|(names, _)| names.contains(&text))?;
    (!is_own).then_some(meaning)
}

/// Whether the value of the option of this name is not to be printed.
pub(crate) fn is_secret(name: &str) -> bool {
    matches!(name, "api-key" | "admin-key")
}

/// Whether an argument is the command's model, or models.
fn is_model(arg: &Arg) -> bool {
    matches!(arg.get_id().as_str(), "model" | "models")
}

/// The option of this name, or with this alias.
pub(crate) fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let is_named = |arg: &&Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
    };
    command.get_arguments().find(is_named)
}

/// The option that an argument such as `--name`, `--name=value`, `-n` or `-n3` gives.
pub(crate) fn option_of<'a>(command: &'a Command, text: &str) -> Option<&'a Arg> {
    if let Some(long) = text.strip_prefix("--") {
        return find(command, long.split('=').next().unwrap_or_default());
    }
    let short = text.strip_prefix('-')?.chars().next()?;
    command.get_arguments().find(|arg| arg.get_short() == Some(short))
}

/// The flag that `text` turns off: `--no-NAME` turns off `--NAME`, and `--NAME` turns off `--no-NAME`.
/// Hidden flags change nothing, so they cannot be turned off.
fn turned_off<'a>(command: &'a Command, text: &str) -> Option<&'a Arg> {
    let name = text.strip_prefix("--").filter(|name| find(command, name).is_none())?;
    let flag = match name.strip_prefix("no-") {
        Some(name) => find(command, name),
        None => find(command, &format!("no-{name}")),
    };
    flag.filter(|arg| matches!(arg.get_action(), ArgAction::SetTrue) && !arg.is_hide_set())
}

/// The arguments without flags that later ones turn off, and without those that do so; and the long names
/// of the flags that are off.
pub(crate) fn turn_off(
    args: Vec<OsString>,
    program: &Command,
) -> (Vec<OsString>, BTreeSet<String>) {
    let mut command = None;
    let mut off = BTreeSet::new();
    let mut out: Vec<(OsString, Option<&str>)> = Vec::new(); // with the option that it is
    let mut args = args.into_iter();
    out.extend(args.next().map(|name| (name, None)));
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if text == "--" {
            out.push((arg, None));
            break;
        }
        let known = command.unwrap_or(program);
        if let Some(name) = turned_off(known, &text).and_then(Arg::get_long) {
            out.retain(|(_, option)| *option != Some(name));
            off.insert(name.to_owned());
            continue;
        }
        let option = option_of(known, &text).and_then(Arg::get_long);
        if let Some(name) = option {
            off.remove(name);
        }
        let wants_next = wants_next(known, &text);
        command = command.or_else(|| program.find_subcommand(&*text));
        out.push((arg, option));
        if wants_next {
            out.extend(args.next().map(|value| (value, None)));
        }
    }
    out.extend(args.map(|arg| (arg, None)));
    (out.into_iter().map(|(arg, _)| arg).collect(), off)
}

/// Whether the value of the option `text` is the next argument.
pub(crate) fn wants_next(command: &Command, text: &str) -> bool {
    let has_value = if text.starts_with("--") { text.contains('=') } else { text.len() > 2 };
    !has_value && option_of(command, text).is_some_and(|arg| arg.get_action().takes_values())
}

/// Whether `text` has several letters behind one hyphen. `-n3` has one, and a value.
fn is_several_letters(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next() == Some('-') && chars.take(2).filter(char::is_ascii_alphabetic).count() == 2
}

/// Whether `text` is a flag that is counted, such as `-vv`.
fn is_repeated_flag(command: &Command, text: &str) -> bool {
    let mut letters = text.chars().skip(1);
    let is_one_letter = letters.next().is_some_and(|first| letters.all(|letter| letter == first));
    let option = option_of(command, text);
    is_one_letter && option.is_some_and(|arg| matches!(arg.get_action(), ArgAction::Count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Cli;
    use clap::CommandFactory;

    fn spelled(args: &[&str]) -> Result<Vec<String>, String> {
        let args = ["r"].iter().chain(args).map(OsString::from).collect();
        let text = |arg: OsString| arg.into_string().expect("text");
        Ok(spell_out(args, Cli::command())?.into_iter().skip(1).map(text).collect())
    }

    #[test]
    fn flags_that_mean_the_same_are_spelled_out() {
        let check = |args: &[&str], want: &[&str]| {
            assert_eq!(spelled(args).expect("known flags"), want, "{args:?}");
            let parsed = Cli::command().try_get_matches_from([&["r"], want].concat());
            assert!(parsed.is_ok(), "{want:?}: {parsed:?}");
        };
        check(&["run", "m", "-ngl", "99", "hi"], &["run", "m", "--gpu-layers", "99", "hi"]);
        check(&["run", "hi", "-hf", "x/y"], &["run", "hf:x/y", "hi"]);
        check(&["-v", "run", "-m", "a.gguf", "hi"], &["-v", "run", "a.gguf", "hi"]);
        check(
            &["--color", "never", "serve", "-hf", "x/y", "-np", "4", "-cb"],
            &["--color", "never", "serve", "hf:x/y", "--parallel", "4", "--cont-batching"],
        );
        check(&["serve", "-m", "a", "-hf", "x/y"], &["serve", "a", "hf:x/y"]);
        check(&["serve", "m", "-hfd", "x/z"], &["serve", "m", "--draft-model", "hf:x/z"]);
        check(
            &["serve", "m", "-md", "d", "-ub", "8"],
            &["serve", "m", "--draft-model", "d", "--chunk", "8"],
        );
        check(&["run", "m", "-sys", "-hf", "hi"], &["run", "m", "--system", "-hf", "hi"]);
        // Options of this program, counted flags, values and texts after `--` stay.
        for same in [
            &["-vv", "run", "m", "-n3", "-t", "2", "-f", "-"][..],
            &["run", "m", "--stop", "-ngl", "--regex", "-fa", "--seed=1"],
            &["run", "m", "--", "-ngl"],
            &["serve", "m", "--model-draft", "d"],
            &["bench", "m", "-p", "1,2", "-n", "3"],
        ] {
            check(same, same);
        }
    }

    #[test]
    fn other_flags_are_refused_with_a_hint() {
        for (args, want) in [
            (&["run", "m", "-fa", "hi"][..], "`-fa`: attention always"),
            (&["serve", "m", "--flash-attn", "on"], "`--flash-attn`: attention always"),
            (&["serve", "m", "-ctk", "q8_0"], "--kv-type TYPE"),
            (&["run", "m", "-cnv"], "realizar chat MODEL"),
            (&["run", "m", "-no-cnv"], "realizar run MODEL PROMPT"),
            (&["run", "m", "-np", "4"], "`-np` is --parallel, which `run` does not have"),
            (&["devices", "-hf", "x/y"], "`-hf` names a model, but `devices` takes none"),
            (&["serve", "-hf"], "`-hf` needs a value"),
            (&["-hf", "x/y"], "`-hf` must follow a command"),
            (&["run", "m", "-hx"], "unknown flag `-hx`"),
            (&["run", "m", "-nfoo"], "unknown flag `-nfoo`"),
            (&["run", "m", "-vx"], "unknown flag `-vx`"),
        ] {
            let error = spelled(args).expect_err(want);
            assert!(error.contains(want), "{args:?}: {error}");
        }
    }

    /// The arguments after the program's name, and the flags that are off.
    fn without_off(args: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut program = Cli::command();
        program.build();
        let args = ["r"].iter().chain(args).map(OsString::from).collect();
        let (args, off) = turn_off(args, &program);
        let text = |arg: OsString| arg.into_string().expect("text");
        (args.into_iter().skip(1).map(text).collect(), off.into_iter().collect())
    }

    #[test]
    fn what_stands_last_says_whether_a_flag_is_on() {
        for (args, want, off) in [
            (&["run", "m", "--no-greedy"][..], &["run", "m"][..], &["greedy"][..]),
            (&["run", "--greedy", "m", "--no-greedy", "hi"], &["run", "m", "hi"], &["greedy"]),
            (&["run", "m", "--no-greedy", "--greedy"], &["run", "m", "--greedy"], &[]),
            (&["--no-offline", "list"], &["list"], &["offline"]),
            (&["serve", "m", "--prefix-cache"], &["serve", "m"], &["no-prefix-cache"]),
            // Flags that were given already, options with values, values and texts after `--` stay.
            (&["run", "m", "--no-config"], &["run", "m", "--no-config"], &[]),
            (&["run", "m", "--no-temp"], &["run", "m", "--no-temp"], &[]),
            (&["serve", "m", "--no-jinja"], &["serve", "m", "--no-jinja"], &[]),
            (&["run", "m", "--stop", "--no-greedy"], &["run", "m", "--stop", "--no-greedy"], &[]),
            (&["run", "m", "--", "--no-greedy"], &["run", "m", "--", "--no-greedy"], &[]),
        ] {
            let (args, found) = without_off(args);
            assert_eq!((&args[..], &found[..]), (&strings(want)[..], &strings(off)[..]));
        }
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn every_flag_can_be_turned_off() {
        let mut program = Cli::command();
        program.build();
        let mut n_flags = 0;
        for command in program.get_subcommands() {
            let flags = command
                .get_arguments()
                .filter(|arg| matches!(arg.get_action(), ArgAction::SetTrue) && !arg.is_hide_set());
            for long in flags.filter_map(Arg::get_long) {
                let other = match long.strip_prefix("no-") {
                    // The option that names a file.
                    Some("config") => continue,
                    Some(rest) => format!("--{rest}"),
                    None => format!("--no-{long}"),
                };
                let (args, off) = without_off(&[command.get_name(), &format!("--{long}"), &other]);
                assert_eq!(args, [command.get_name()], "{other}");
                assert_eq!(off, [long]);
                n_flags += 1;
            }
        }
        assert!(n_flags > 20, "{n_flags}");
    }

    #[test]
    fn every_row_can_be_used() {
        let mut program = Cli::command();
        program.build();
        for (names, meaning) in FLAGS {
            assert!(names.iter().all(|name| name.starts_with('-')), "{names:?}");
            if let Meaning::Option(option) | Meaning::OptionFrom(option, _) = meaning {
                let is_somewhere = program.get_subcommands().any(|c| find(c, option).is_some());
                assert!(is_somewhere, "{names:?}: --{option}");
            }
        }
    }
}
