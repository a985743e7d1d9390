//! `realizar config`: the options in force and where each value comes from.

use std::env;
use std::io::Write;

use anyhow::Result;
use clap::{Arg, ArgAction, Command, ValueEnum};

use crate::config::Source;
use crate::flags;
use crate::options::GlobalArgs;
use crate::ui;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// The options of a command, with their values.
    Show,
    /// The path of the file.
    Path,
}

/// Command line, environment, `[model."NAME"]`, `[COMMAND]` and the top of the file override one another
/// in this order.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to print: show (options and values) or path (of the file)
    #[arg(value_enum, default_value = "show", hide_possible_values = true)]
    what: What,
    /// Command whose options are shown
    #[arg(default_value = "run")]
    command: String,
    /// Model whose section counts
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs, mut program: Command) -> Result<()> {
    program.build();
    let source = Source::new(global.config.as_deref(), global.no_config);
    let path = source.path().map(|path| path.display().to_string());
    if args.what == What::Path {
        let Some(path) = path else { return Err(ui::usage("no config file is used")) };
        return ui::line(&path);
    }
    let Some(command) = program.find_subcommand(&args.command) else {
        return Err(ui::usage(format!("unknown command `{}`", args.command)));
    };
    let config = source.read(&program).map_err(ui::usage)?;
    let default = config.as_ref().and_then(|config| config.default_model(command.get_name()));
    let model = args.model.clone().or(default);
    let mut rows = vec![["OPTION", "VALUE", "FROM"].map(str::to_owned).to_vec()];
    rows.extend(model.iter().map(|model| {
        let from = if args.model.is_some() { "command line" } else { "default-model" };
        vec!["MODEL".to_owned(), model.clone(), from.to_owned()]
    }));
    let models: Vec<_> = model.into_iter().collect();
    let in_force = config.as_ref().map(|config| config.in_force(command, &models));
    let in_force = in_force.transpose().map_err(ui::usage)?.unwrap_or_default();
    for option in command.get_arguments() {
        let Some(long) = option.get_long() else { continue };
        let env = option.get_env().and_then(|name| Some((name, env::var_os(name)?)));
        let (values, from) = if let Some((name, value)) = env {
            (vec![value.to_string_lossy().into_owned()], name.to_string_lossy().into_owned())
        } else if let Some(setting) = in_force.get(long) {
            (setting.values.clone(), setting.place.clone())
        } else {
            let values = option.get_default_values().iter();
            let values = values.map(|value| value.to_string_lossy().into_owned()).collect();
            (values, "default".to_owned())
        };
        let told = || told_default(option).filter(|_| values.is_empty() && from == "default");
        if let Some(value) = shown(option, &values).or_else(told) {
            rows.push(vec![long.to_owned(), value, from]);
        }
    }
    let read = if config.is_some() { "is read" } else { "does not exist" };
    ui::note(&path.map_or_else(|| "no config file".to_owned(), |path| format!("{path} {read}")));
    let mut out = ui::out();
    ui::table(&mut out, &rows, &[])?;
    out.flush()?;
    Ok(())
}

/// The default that the help of an option tells in words, as it depends on the model or the machine.
fn told_default(option: &Arg) -> Option<String> {
    let help = option.get_help()?.to_string();
    let (_, default) = help.strip_suffix(']')?.rsplit_once("[default: ")?;
    Some(default.to_owned())
}

/// The values of an option for people; `None` if it is not set. Keys are not shown.
fn shown(option: &Arg, values: &[String]) -> Option<String> {
    let is_flag = matches!(option.get_action(), ArgAction::SetTrue | ArgAction::Count);
    if values.is_empty() || is_flag && values.iter().any(|value| value != "true") {
        return None;
    }
    if matches!(option.get_action(), ArgAction::Count) {
        return Some(values.len().to_string());
    }
    let is_secret = option.get_long().is_some_and(flags::is_secret);
    if is_secret {
        return Some("(hidden)".to_owned());
    }
    let quote = |value: &String| {
        let is_plain = !value.is_empty() && !value.contains([' ', '\t', '\n', ',']);
        if is_plain { value.clone() } else { format!("{value:?}") }
    };
    Some(values.iter().map(quote).collect::<Vec<_>>().join(", "))
}
