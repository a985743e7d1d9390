//! The config file: options under the names that they have on the command line, for all commands, for
//! one command or for one model.
//!
//! [`apply`] goes over the arguments before they are parsed and adds those of the file that nothing
//! overrides, so the parser checks both alike and no option is listed here. What counts, first to last:
//! the command line, the environment, the section of the model, that of the command, the options at the
//! top of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind as Refused;
use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

use crate::flags;
use crate::source::own::{self, OwnName};
use crate::ui;

/// The key of the model that commands use which are given none.
const DEFAULT_MODEL: &str = "default-model";
/// The commands that use it.
const WITH_DEFAULT: [&str; 3] = ["chat", "run", "serve"];
/// Sections for models are `[model."NAME"]`.
const MODEL: &str = "model";
/// Options that say which file is read, or ask for text.
const NOT_IN_FILE: [&str; 4] = ["config", "no-config", "help", "version"];
/// The command that shows the file takes none of its options.
const OWN_COMMAND: &str = "config";

/// A section of the file: values by the long names of options.
type Section = BTreeMap<String, Value>;

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct Config {
    path: PathBuf,
    general: Section,
    commands: BTreeMap<String, Section>,
    models: BTreeMap<String, Section>,
}

/// An option's value and where it comes from.
#[derive(Debug, PartialEq)]
pub(crate) struct Setting {
    /// As arguments spell it; none of a flag that is off.
    pub(crate) values: Vec<String>,
    /// `[run]`, or where else it stands.
    pub(crate) place: String,
}

/// What the command line says, as far as the file is concerned.
#[derive(Debug, Default)]
struct Given {
    /// The command and where its first argument is.
    command: Option<(String, usize)>,
    /// Names of options.
    options: BTreeSet<String>,
    positionals: Vec<String>,
}

/// The file that is read: what `--config` names, or the user's, which need not exist.
#[derive(Debug)]
pub(crate) enum Source {
    Named(PathBuf),
    Own(PathBuf),
    None,
}

impl Source {
    /// The file of these choices.
    pub(crate) fn new(named: Option<&Path>, is_off: bool) -> Self {
        match (named, own_path()) {
            _ if is_off => Self::None,
            (Some(path), _) => Self::Named(path.to_owned()),
            (None, Some(path)) => Self::Own(path),
            (None, None) => Self::None,
        }
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Named(path) | Self::Own(path) => Some(path),
            Self::None => None,
        }
    }

    /// Reads the file and checks its names.
    pub(crate) fn read(&self, program: &Command) -> Result<Option<Config>, String> {
        let Some(path) = self.path() else { return Ok(None) };
        match fs::read_to_string(path) {
            Ok(text) => Config::parse(&text, path, program).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound && matches!(self, Self::Own(_)) => {
                Ok(None)
            }
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        }
    }
}

/// `realizar/config.toml` in the user's directory of configuration.
fn own_path() -> Option<PathBuf> {
    let dir = |name: &str| env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let home =
        if cfg!(windows) { dir("APPDATA") } else { dir("HOME").map(|dir| dir.join(".config")) };
    Some(dir("XDG_CONFIG_HOME").or(home)?.join("realizar").join("config.toml"))
}

/// The arguments, the program's name first, with what the file adds to them.
pub(crate) fn apply(args: Vec<OsString>, mut program: Command) -> Result<Vec<OsString>, String> {
    program.build();
    let (mut args, off) = flags::turn_off(args, &program);
    let given = Given::scan(&args, &program);
    if given.command.as_ref().is_some_and(|(name, _)| name == OWN_COMMAND) {
        return Ok(args);
    }
    let Some(config) = source_of(&args).read(&program)? else { return Ok(args) };
    let given = match &given.command {
        None if given.wants_default(&config) => {
            args.push("run".into());
            Given { command: Some(("run".to_owned(), args.len())), ..given }
        }
        _ => given,
    };
    let Some((name, at)) = &given.command else { return Ok(args) };
    let Some(command) = program.find_subcommand(name) else { return Ok(args) };
    let mut added: Vec<OsString> = Vec::new();
    let models = given.models(command, &config);
    if given.positionals.is_empty()
        && let [model] = &models[..]
    {
        added.push(model.into());
    }
    let in_force = config.in_force(command, &models);
    if models.len() > 1 {
        for model in models.iter().filter(|model| config.models.contains_key(*model)) {
            let place = config.place(&format!("[model.{model:?}]"));
            ui::note(&format!("note: {place} is ignored: `{name}` has several models"));
        }
    }
    for (long, setting) in in_force? {
        let Some(option) = flags::find(command, &long).filter(|_| !off.contains(&long)) else {
            continue;
        };
        let in_env = option.get_env().is_some_and(|name| env::var_os(name).is_some());
        let mut set = command
            .get_arguments()
            .filter(|arg| arg.get_long().is_some_and(|long| given.options.contains(long)));
        if in_env || set.any(|arg| arg.get_id() == option.get_id() || exclude(command, arg, option))
        {
            continue;
        }
        let spelled = spell(option, &long, &setting.values);
        check(&program, name, &spelled)
            .map_err(|reason| format!("{}: {reason}", config.place(&setting.place)))?;
        added.extend(spelled);
    }
    args.splice(at..at, added);
    Ok(args)
}

/// The names for models in the file that the arguments choose. What else is wrong with the file is reported by
/// [`apply`].
pub(crate) fn names(args: &[OsString]) -> Result<Vec<OwnName>, String> {
    let source = source_of(args);
    let text = source.path().and_then(|path| fs::read_to_string(path).ok());
    let table = text.and_then(|text| text.parse::<Table>().ok());
    let (Some(path), Some(section)) =
        (source.path(), table.as_ref().and_then(|t| t.get(own::SECTION)))
    else {
        return Ok(Vec::new());
    };
    let refuse = |reason: String| format!("{}, [{}]: {reason}", path.display(), own::SECTION);
    let Value::Table(section) = section else {
        return Err(refuse("expected names and their sources".to_owned()));
    };
    own::parse(section, path.parent().unwrap_or(Path::new("."))).map_err(refuse)
}

/// The file that the arguments choose.
fn source_of(args: &[OsString]) -> Source {
    let mut named = None;
    let mut is_off = false;
    let mut rest = args.iter().skip(1).take_while(|arg| *arg != "--");
    while let Some(arg) = rest.next() {
        let text = arg.to_str().unwrap_or_default();
        if text == "--no-config" {
            is_off = true;
        } else if text == "--config" {
            named = rest.next().map(PathBuf::from);
        } else if let Some(path) = text.strip_prefix("--config=") {
            named = Some(PathBuf::from(path));
        }
    }
    Source::new(named.as_deref(), is_off)
}

impl Given {
    fn scan(args: &[OsString], program: &Command) -> Self {
        let mut given = Self::default();
        let mut command = program;
        let mut rest = args.iter().enumerate().skip(1);
        while let Some((at, arg)) = rest.next() {
            let text = arg.to_string_lossy();
            if text == "--" {
                given.positionals.extend(rest.map(|(_, arg)| arg.to_string_lossy().into_owned()));
                break;
            }
            if text.starts_with('-') && text.len() > 1 {
                if let Some(option) = flags::option_of(command, &text) {
                    given.options.extend(option.get_long().map(str::to_owned));
                }
                if flags::wants_next(command, &text) {
                    rest.next();
                }
                continue;
            }
            match program.find_subcommand(&*text).filter(|_| given.command.is_none()) {
                Some(found) => {
                    command = found;
                    given.command = Some((found.get_name().to_owned(), at + 1));
                }
                None => given.positionals.push(text.into_owned()),
            }
        }
        given
    }

    /// Whether the default model is meant by a command line with no command.
    fn wants_default(&self, config: &Config) -> bool {
        let asks = |name: &str| self.options.contains(name);
        let is_bare = self.positionals.is_empty() && !asks("help") && !asks("version");
        is_bare && config.default_model("run").is_some()
    }

    /// The models of the command line, or else the default.
    fn models(&self, command: &Command, config: &Config) -> Vec<String> {
        let has = |id: &str| command.get_positionals().any(|arg| arg.get_id() == id);
        let given = if has("models") { usize::MAX } else { usize::from(has("model")) };
        let models: Vec<_> = self.positionals.iter().take(given).cloned().collect();
        // A server may have models by its options alone.
        let by_option = ["models-dir", "embedding-model"];
        let is_met = by_option.iter().any(|name| self.options.contains(*name));
        if models.is_empty() && !is_met {
            return config.default_model(command.get_name()).into_iter().collect();
        }
        models
    }
}

impl Config {
    fn parse(text: &str, path: &Path, program: &Command) -> Result<Self, String> {
        let mut config = Self { path: path.to_owned(), ..Self::default() };
        let refuse = |place: &str, reason: String| format!("{}: {reason}", config.place(place));
        let table: Table = toml::from_str(text)
            .map_err(|error| refuse("", error.to_string().trim().to_owned()))?;
        let everywhere =
            |key: &str| commands_of(program).find_map(|command| flags::find(command, key));
        let sections: Vec<String> =
            commands_of(program).map(|command| command.get_name().to_owned()).collect();
        let (mut general, mut commands, mut models) =
            (Table::new(), BTreeMap::new(), BTreeMap::new());
        for (key, value) in table {
            match value {
                Value::Table(of_models) if key == MODEL => {
                    for (name, section) in of_models {
                        let place = format!("[model.{name:?}]");
                        let Value::Table(section) = section else {
                            let hint = format!(
                                "sections of models are [model.\"NAME\"]; `{DEFAULT_MODEL}` sets \
                                 the default model"
                            );
                            return Err(refuse("", hint));
                        };
                        let all = || known(commands_of(program));
                        let section = named(section, everywhere, all, false)
                            .map_err(|reason| refuse(&place, reason))?;
                        models.insert(name, section);
                    }
                }
                // Read by `names`.
                Value::Table(_) if key == own::SECTION => {}
                Value::Table(section) => {
                    let place = format!("[{key}]");
                    let Some(command) =
                        program.find_subcommand(&key).filter(|_| key != OWN_COMMAND)
                    else {
                        let mean = did_you_mean(&key, sections.iter().map(String::as_str));
                        return Err(refuse("", format!("unknown section {place}{mean}")));
                    };
                    let has_default = WITH_DEFAULT.contains(&command.get_name());
                    let find = |key: &str| flags::find(command, key);
                    let section = named(section, find, || known([command]), has_default)
                        .map_err(|reason| refuse(&place, reason))?;
                    commands.insert(command.get_name().to_owned(), section);
                }
                value => {
                    general.insert(key, value);
                }
            }
        }
        let all = || known(commands_of(program));
        let general = named(general, everywhere, all, true).map_err(|reason| refuse("", reason))?;
        (config.general, config.commands, config.models) = (general, commands, models);
        Ok(config)
    }

    /// The file and a place in it.
    fn place(&self, place: &str) -> String {
        let file = self.path.display();
        if place.is_empty() { file.to_string() } else { format!("{file}, {place}") }
    }

    /// The model of a command that is given none.
    pub(crate) fn default_model(&self, command: &str) -> Option<String> {
        let sections = [self.commands.get(command), Some(&self.general)];
        let value = sections.into_iter().flatten().find_map(|section| section.get(DEFAULT_MODEL));
        let value = value.filter(|_| WITH_DEFAULT.contains(&command))?;
        value.as_str().map(str::to_owned)
    }

    /// What the file says of the options of a command with these models. What it says of one model
    /// counts where it is the only one.
    pub(crate) fn in_force(
        &self,
        command: &Command,
        models: &[String],
    ) -> Result<BTreeMap<String, Setting>, String> {
        let name = command.get_name();
        let mut layers = vec![(String::new(), Some(&self.general))];
        layers.push((format!("[{name}]"), self.commands.get(name)));
        if let [model] = models {
            layers.push((format!("[model.{model:?}]"), self.models.get(model)));
        }
        let mut all = BTreeMap::new();
        for (place, section) in layers {
            for (key, value) in section.into_iter().flatten() {
                let Some(option) = flags::find(command, key).filter(|_| key != DEFAULT_MODEL)
                else {
                    continue;
                };
                let values = values(option, value)
                    .map_err(|reason| format!("{}: `{key}` {reason}", self.place(&place)))?;
                let place =
                    if place.is_empty() { "top of the file".to_owned() } else { place.clone() };
                all.insert(key.clone(), Setting { values, place });
            }
        }
        Ok(all)
    }
}

/// A section with the long names of its options.
fn named<'a, N: Iterator<Item = &'a str>>(
    table: Table,
    find: impl Fn(&str) -> Option<&'a Arg>,
    known: impl Fn() -> N,
    has_default: bool,
) -> Result<Section, String> {
    let mut section = Section::new();
    for (key, value) in table {
        let long = match find(&key).and_then(Arg::get_long) {
            _ if key == DEFAULT_MODEL && has_default => {
                if !value.is_str() {
                    return Err(format!("`{key}` must be the name of a model"));
                }
                key.as_str()
            }
            Some(long) if !NOT_IN_FILE.contains(&long) => long,
            _ => {
                let names = known().chain(has_default.then_some(DEFAULT_MODEL));
                return Err(format!("unknown option `{key}`{}", did_you_mean(&key, names)));
            }
        };
        if section.insert(long.to_owned(), value).is_some() {
            return Err(format!("`{key}` sets `{long}`, which is already set"));
        }
    }
    Ok(section)
}

/// The commands that the file may set options of.
fn commands_of(program: &Command) -> impl Iterator<Item = &Command> {
    program.get_subcommands().filter(|command| command.get_name() != OWN_COMMAND)
}

/// Whether two options exclude each other; one of them says so.
fn exclude(command: &Command, a: &Arg, b: &Arg) -> bool {
    let names = |a: &Arg, b: &Arg| {
        let all = command.get_arg_conflicts_with(a);
        all.into_iter().any(|other| other.get_id() == b.get_id())
    };
    names(a, b) || names(b, a)
}

/// The long names of all options of commands.
fn known<'a>(commands: impl IntoIterator<Item = &'a Command>) -> impl Iterator<Item = &'a str> {
    let options = commands.into_iter().flat_map(Command::get_arguments);
    options.filter_map(Arg::get_long).filter(|long| !NOT_IN_FILE.contains(long))
}

/// `, did you mean …?`, if a name is near.
fn did_you_mean<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> String {
    let near = names.map(|name| (strsim::jaro_winkler(key, name), name));
    let best = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|&(nearness, _)| nearness > 0.8);
    best.map_or_else(String::new, |(_, name)| format!(", did you mean `{name}`?"))
}

/// A value as arguments spell it.
fn values(option: &Arg, value: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(n) => Ok(n.to_string()),
        Value::Float(x) => Ok(x.to_string()),
        _ => Err("must be a string or a number".to_owned()),
    };
    match (option.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(is_on)) => {
            Ok(if *is_on { vec!["true".to_owned()] } else { Vec::new() })
        }
        (ArgAction::SetTrue, _) => Err("must be true or false".to_owned()),
        (ArgAction::Count, Value::Integer(n @ 0..=9)) => Ok(vec!["true".to_owned(); *n as usize]),
        (ArgAction::Count, _) => Err("must be a number from 0 to 9".to_owned()),
        (ArgAction::Append, Value::Array(list)) => list.iter().map(one).collect(),
        (_, value) => Ok(vec![one(value)?]),
    }
}

/// The arguments that set an option.
fn spell(option: &Arg, long: &str, values: &[String]) -> Vec<OsString> {
    let takes_values = option.get_action().takes_values();
    let one = |value: &String| {
        if takes_values { format!("--{long}={value}") } else { format!("--{long}") }.into()
    };
    values.iter().map(one).collect()
}

/// Why a command refuses the values of one option, if it does.
fn check(program: &Command, command: &str, spelled: &[OsString]) -> Result<(), String> {
    let mut args: Vec<OsString> = vec!["realizar".into(), command.into()];
    args.extend(spelled.iter().cloned());
    match program.clone().try_get_matches_from(args) {
        // What is missing comes from the command line, or is missed there.
        Err(error) if matches!(error.kind(), Refused::ValueValidation | Refused::InvalidValue) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            Err(line.trim_start_matches("error: ").to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Cli;
    use clap::CommandFactory;

    const FILE: &str = r#"
default-model = "smollm2"
temp = 0.2
threads = 2
[run]
max-tokens = 64
stop = ["a", "-b"]
[serve]
port = 9000
lazy = true
default-model = "qwen3:0.6b"
[model."qwen3:0.6b"]
temperature = 0.7
top-k = 20
"#;

    /// The arguments that the file makes of these.
    fn applied(file: &str, args: &[&str]) -> Result<Vec<String>, String> {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().join("c.toml");
        fs::write(&path, file).expect("written");
        let path = path.to_string_lossy().into_owned();
        let all = ["r", "--config", &path].into_iter().chain(args.iter().copied());
        let done = apply(all.map(OsString::from).collect(), Cli::command());
        let text = |arg: OsString| arg.into_string().expect("text");
        let done = done.map_err(|error| error.replace(&path, "FILE"))?;
        Ok(done.into_iter().skip(3).map(text).collect())
    }

    #[test]
    fn the_nearest_section_counts() {
        for (args, want) in [
            (
                &["run", "m", "hi"][..],
                &[
                    "run",
                    "--max-tokens=64",
                    "--stop=a",
                    "--stop=-b",
                    "--temp=0.2",
                    "--threads=2",
                    "m",
                    "hi",
                ][..],
            ),
            (
                &["chat", "qwen3:0.6b"],
                &["chat", "--temp=0.7", "--threads=2", "--top-k=20", "qwen3:0.6b"],
            ),
            // What is given stays, in every spelling, and so does what excludes an option of the file.
            (
                &["chat", "m", "-t4", "--temperature", "1"],
                &["chat", "m", "-t4", "--temperature", "1"],
            ),
            (&["chat", "m", "--greedy"], &["chat", "--threads=2", "m", "--greedy"]),
            (
                &["run", "m", "--stop", "x", "-n", "3"],
                &["run", "--temp=0.2", "--threads=2", "m", "--stop", "x", "-n", "3"],
            ),
            // Flags of the file can be turned off, and turn nothing else off.
            (
                &["serve", "m", "--no-lazy"],
                &["serve", "--port=9000", "--temp=0.2", "--threads=2", "m"],
            ),
            (&["chat", "m", "--no-greedy"], &["chat", "--temp=0.2", "--threads=2", "m"]),
            // A model is added where there is none.
            (
                &[],
                &[
                    "run",
                    "smollm2",
                    "--max-tokens=64",
                    "--stop=a",
                    "--stop=-b",
                    "--temp=0.2",
                    "--threads=2",
                ],
            ),
            (&["chat", "-v"], &["chat", "smollm2", "--temp=0.2", "--threads=2", "-v"]),
            (
                &["serve"],
                &[
                    "serve",
                    "qwen3:0.6b",
                    "--lazy",
                    "--port=9000",
                    "--temp=0.7",
                    "--threads=2",
                    "--top-k=20",
                ],
            ),
            (
                &["serve", "--models-dir", "d", "--port", "1", "--temp", "0", "-t", "1"],
                &["serve", "--lazy", "--models-dir", "d", "--port", "1", "--temp", "0", "-t", "1"],
            ),
            // Sections of models are for one model.
            (
                &["serve", "a", "qwen3:0.6b"],
                &["serve", "--lazy", "--port=9000", "--temp=0.2", "--threads=2", "a", "qwen3:0.6b"],
            ),
            (&["list"], &["list"]),
            (&["--version"], &["--version"]),
            (&["run", "m", "--no-config"], &["run", "m", "--no-config"]),
        ] {
            assert_eq!(applied(FILE, args).expect("a good file"), want, "{args:?}");
        }
    }

    #[test]
    fn names_of_models_are_read() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().join("c.toml");
        let args = || ["r", "--config", &path.to_string_lossy(), "list"].map(OsString::from);
        fs::write(&path, "[names]\nfast = \"hf:o/r:Q8_0\"\nhere = \"m.gguf\"").expect("written");
        let found = names(&args()).expect("names");
        let shown: Vec<_> = found.iter().map(|own| own.source.to_string()).collect();
        let here = temp.path().join("m.gguf").display().to_string();
        assert_eq!(shown, ["hf:o/r:Q8_0".to_owned(), here]);
        assert_eq!(apply(args().to_vec(), Cli::command()).expect("a good file"), args());
        for (file, want) in [
            ("names = 3", "c.toml, [names]: expected names and their sources"),
            ("[names]\na = 3", "c.toml, [names]: `a` must be a source"),
        ] {
            fs::write(&path, file).expect("written");
            let error = names(&args()).expect_err(want);
            assert!(error.contains(want), "{error}");
        }
        let without = ["r", "--no-config", "list"].map(OsString::from);
        assert!(names(&without).expect("no names").is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        for (file, args, want) in [
            ("tmp = 1", &["list"][..], "FILE: unknown option `tmp`, did you mean `temp`?"),
            ("[run]\nport = 1", &["list"], "FILE, [run]: unknown option `port`"),
            ("[srve]\nport = 1", &["list"], "FILE: unknown section [srve], did you mean `serve`?"),
            (
                "[model.x]\nctxx = 1",
                &["list"],
                "FILE, [model.\"x\"]: unknown option `ctxx`, did you mean `ctx`?",
            ),
            ("model = \"x\"", &["list"], "FILE: unknown option `model`"),
            ("temp = 1\ntemperature = 1", &["list"], "sets `temp`, which is already set"),
            (
                "temp = -1",
                &["run", "m"],
                "FILE, top of the file: invalid value '-1' for '--temp <T>'",
            ),
            (
                "[run]\ntemp = true",
                &["run", "m"],
                "FILE, [run]: `temp` must be a string or a number",
            ),
            ("greedy = 1", &["run", "m"], "FILE: `greedy` must be true or false"),
            ("temp = [1, 2]", &["run", "m"], "`temp` must be a string or a number"),
            ("default-model = 3", &["list"], "`default-model` must be the name of a model"),
            ("[list]\ndefault-model = \"x\"", &["list"], "unknown option `default-model`"),
            ("temp = ", &["list"], "FILE: TOML parse error"),
        ] {
            let error = applied(file, args).expect_err(want);
            assert!(error.contains(want), "{error}\n{want}");
        }
        let args = ["r", "--config", "/none/c.toml", "list"].map(OsString::from).to_vec();
        let error = apply(args, Cli::command()).expect_err("the file is not there");
        assert!(error.contains("cannot read /none/c.toml"), "{error}");
    }
}
