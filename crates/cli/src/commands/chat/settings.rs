//! Settings of a conversation: what `/set` changes, over the options of the command line.
//!
//! Parameters have the names of the HTTP API; those of options and of Ollama are known too.

use clap::ValueEnum;
use realizar_runtime::GenerateParams;
use realizar_runtime::sampling::SamplingParams;

use super::command::{nearest, split, unknown, unquoted};
use crate::terminal::MarkdownArg;

/// A parameter of generation.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    others: &'static [&'static str],
    place: Place,
}

/// Where a parameter is.
#[derive(Debug, Clone, Copy)]
enum Place {
    Real(fn(&mut SamplingParams) -> &mut f32),
    Count(fn(&mut SamplingParams) -> &mut usize),
    DryLastN,
    Mirostat,
    TemperatureLast,
    Breakers,
    Seed,
    MaxTokens,
    Stop,
    IgnoreEos,
}

const fn real(
    name: &'static str,
    others: &'static [&'static str],
    place: fn(&mut SamplingParams) -> &mut f32,
) -> Parameter {
    Parameter { name, others, place: Place::Real(place) }
}

/// Every parameter, in the order in which they are listed.
pub(super) const PARAMETERS: &[Parameter] = &[
    real("temperature", &["temp"], |p| &mut p.temperature),
    Parameter { name: "top_k", others: &[], place: Place::Count(|p| &mut p.top_k) },
    real("top_p", &[], |p| &mut p.top_p),
    real("min_p", &[], |p| &mut p.min_p),
    real("typical_p", &["typical"], |p| &mut p.typical_p),
    real("top_n_sigma", &["top_nsigma"], |p| &mut p.top_n_sigma),
    Parameter { name: "temperature_last", others: &[], place: Place::TemperatureLast },
    real("xtc_probability", &[], |p| &mut p.xtc_probability),
    real("xtc_threshold", &[], |p| &mut p.xtc_threshold),
    real("repeat_penalty", &["repetition_penalty"], |p| &mut p.repetition_penalty),
    Parameter { name: "repeat_last_n", others: &[], place: Place::Count(|p| &mut p.repeat_last_n) },
    real("presence_penalty", &[], |p| &mut p.presence_penalty),
    real("frequency_penalty", &[], |p| &mut p.frequency_penalty),
    real("dry_multiplier", &[], |p| &mut p.dry_multiplier),
    real("dry_base", &[], |p| &mut p.dry_base),
    Parameter {
        name: "dry_allowed_length",
        others: &[],
        place: Place::Count(|p| &mut p.dry_allowed_length),
    },
    Parameter { name: "dry_penalty_last_n", others: &[], place: Place::DryLastN },
    Parameter {
        name: "dry_sequence_breakers",
        others: &["dry_sequence_breaker"],
        place: Place::Breakers,
    },
    Parameter { name: "mirostat", others: &[], place: Place::Mirostat },
    real("mirostat_tau", &["mirostat_ent"], |p| &mut p.mirostat_tau),
    real("mirostat_eta", &["mirostat_lr"], |p| &mut p.mirostat_eta),
    Parameter { name: "seed", others: &[], place: Place::Seed },
    Parameter {
        name: "max_tokens",
        others: &["num_predict", "n_predict", "n"],
        place: Place::MaxTokens,
    },
    Parameter { name: "stop", others: &[], place: Place::Stop },
    Parameter { name: "ignore_eos", others: &[], place: Place::IgnoreEos },
];

/// Names of the context's length, which is not a parameter of an answer.
const CONTEXT: [&str; 5] = ["num_ctx", "n_ctx", "ctx_size", "ctx", "c"];

/// A name as parameters are spelled.
fn spelled(name: &str) -> String {
    name.trim_start_matches('-').to_ascii_lowercase().replace('-', "_")
}

/// The parameter of a name, in any of its spellings.
fn find(name: &str) -> Result<&'static Parameter, String> {
    let plain = spelled(name);
    if CONTEXT.contains(&plain.as_str()) {
        return Err(format!("`{name}` is fixed when the model is loaded: start with -c N"));
    }
    let is_named = |p: &&Parameter| p.name == plain || p.others.contains(&plain.as_str());
    PARAMETERS.iter().find(is_named).ok_or_else(|| {
        let near = nearest(&plain, PARAMETERS.iter().map(|p| p.name));
        unknown(&format!("parameter `{name}`"), near, "/show parameters lists them")
    })
}

impl Parameter {
    /// Sets it to what a text says.
    fn write(&self, params: &mut GenerateParams, text: &str) -> Result<(), String> {
        let refuse = |expected: &str| format!("`{}` must be {expected}, but is {text}", self.name);
        let whole = "a whole number of at least 0";
        let sampling = params.sampling.get_or_insert_default();
        match self.place {
            Place::Real(of) => *of(sampling) = text.parse().map_err(|_| refuse("a number"))?,
            Place::Count(of) => *of(sampling) = text.parse().map_err(|_| refuse(whole))?,
            Place::DryLastN => {
                let expected = "a whole number of at least -1";
                sampling.dry_penalty_last_n = text.parse().map_err(|_| refuse(expected))?;
            }
            Place::Mirostat => {
                sampling.mirostat = text.parse().map_err(|_| refuse("0 (off) or 2"))?;
            }
            Place::TemperatureLast => {
                sampling.temperature_last = flag(text).ok_or_else(|| refuse("true or false"))?;
            }
            Place::Breakers => {
                sampling.dry_sequence_breakers = texts(text).map_err(|e| refuse(&e))?;
            }
            Place::Seed => sampling.seed = Some(text.parse().map_err(|_| refuse(whole))?),
            // Ollama and llama.cpp write no limit as -1.
            Place::MaxTokens if text == "-1" => params.max_tokens = None,
            Place::MaxTokens => {
                let expected = "a whole number of at least 0, or -1 for no limit";
                params.max_tokens = Some(text.parse().map_err(|_| refuse(expected))?);
            }
            Place::Stop => {
                let stop = texts(text).map_err(|e| refuse(&e))?;
                if stop.iter().any(String::is_empty) {
                    return Err(refuse("texts, none of them empty"));
                }
                params.stop = stop;
            }
            Place::IgnoreEos => {
                params.ignore_eos = flag(text).ok_or_else(|| refuse("true or false"))?;
            }
        }
        params.sampling.get_or_insert_default().validate().map_err(|error| error.to_string())
    }

    /// Its value as [`Self::write`] reads it.
    pub(super) fn read(&self, params: &GenerateParams) -> String {
        let mut sampling = params.sampling.clone().unwrap_or_default();
        let quoted = |texts: &[String]| {
            let texts: Vec<_> = texts.iter().map(|text| format!("{text:?}")).collect();
            texts.join(" ")
        };
        match self.place {
            Place::Real(of) => of(&mut sampling).to_string(),
            Place::Count(of) => of(&mut sampling).to_string(),
            Place::DryLastN => sampling.dry_penalty_last_n.to_string(),
            Place::Mirostat => sampling.mirostat.to_string(),
            Place::TemperatureLast => sampling.temperature_last.to_string(),
            Place::Breakers => quoted(&sampling.dry_sequence_breakers),
            Place::Seed => sampling.seed.map_or_else(String::new, |seed| seed.to_string()),
            Place::MaxTokens => {
                params.max_tokens.map_or_else(|| "-1".to_owned(), |n| n.to_string())
            }
            Place::Stop => quoted(&params.stop),
            Place::IgnoreEos => params.ignore_eos.to_string(),
        }
    }
}

fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" | "1" => Some(true),
        "false" | "off" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// Words, or texts in quotes as JSON has them.
fn texts(text: &str) -> Result<Vec<String>, String> {
    let mut texts = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if rest.starts_with('"') {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            let Some(Ok(value)) = values.next() else {
                return Err("words, or texts in double quotes as in JSON".to_owned());
            };
            texts.push(value);
            rest = rest[values.byte_offset()..].trim_start();
        } else {
            let (word, next) = split(rest);
            texts.push(word.to_owned());
            rest = next;
        }
    }
    Ok(texts)
}

/// The setting that `/set` changes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Setting<'a> {
    /// A parameter; without a text it is as it was at the start.
    Parameter(&'static Parameter, Option<&'a str>),
    /// All parameters are to be listed.
    Parameters,
    System(Option<&'a str>),
    Think(bool),
    /// Whether answers are JSON objects.
    Json(bool),
    Verbose(bool),
    History(bool),
    Markdown(MarkdownArg),
}

/// The words that may follow `/set`.
pub(super) const SETTINGS: &[&str] = &[
    "parameter",
    "system",
    "think",
    "nothink",
    "format",
    "noformat",
    "verbose",
    "quiet",
    "history",
    "nohistory",
    "markdown",
];

/// Reads what follows `/set`.
pub(super) fn parse(text: &str) -> Result<Setting<'_>, String> {
    let (word, rest) = split(text);
    let given = (!rest.is_empty()).then_some(rest);
    Ok(match (word, given) {
        ("parameter" | "parameters", None) => Setting::Parameters,
        ("parameter" | "parameters", Some(rest)) => parameter(rest)?,
        ("system", text) => Setting::System(text.map(unquoted)),
        ("think", _) => Setting::Think(true),
        ("nothink", _) => Setting::Think(false),
        ("format", Some("json")) => Setting::Json(true),
        ("format", found) => return Err(one_of("format", &["json"], found)),
        ("noformat", _) => Setting::Json(false),
        ("verbose", _) => Setting::Verbose(true),
        ("quiet", _) => Setting::Verbose(false),
        ("history", _) => Setting::History(true),
        ("nohistory", _) => Setting::History(false),
        ("markdown", found) => match found.map(|text| MarkdownArg::from_str(text, true)) {
            Some(Ok(markdown)) => Setting::Markdown(markdown),
            _ => return Err(one_of("markdown", &["auto", "on", "off"], found)),
        },
        ("", _) => return Err(format!("/set needs one of {}", SETTINGS.join(", "))),
        // A parameter may be named at once.
        _ => match find(word) {
            Ok(known) => Setting::Parameter(known, given),
            Err(error) if CONTEXT.contains(&spelled(word).as_str()) => return Err(error),
            Err(_) => {
                let names = SETTINGS.iter().copied().chain(PARAMETERS.iter().map(|p| p.name));
                let known = format!("/set takes {}", SETTINGS.join(", "));
                return Err(unknown(&format!("setting `{word}`"), nearest(word, names), &known));
            }
        },
    })
}

fn parameter(text: &str) -> Result<Setting<'_>, String> {
    let (name, value) = split(text);
    Ok(Setting::Parameter(find(name)?, (!value.is_empty()).then_some(value)))
}

fn one_of(name: &str, expected: &[&str], found: Option<&str>) -> String {
    let found = found.map_or_else(|| "is missing".to_owned(), |text| format!("is {text}"));
    format!("the value of /set {name} must be {}, but {found}", expected.join(" or "))
}

/// The parameters that were set, in that order.
#[derive(Debug, Default)]
pub(super) struct Changed(Vec<(&'static Parameter, String)>);

impl Changed {
    /// Sets a parameter, over `params`, or forgets that it was set.
    pub(super) fn set(
        &mut self,
        parameter: &'static Parameter,
        text: Option<&str>,
        params: &GenerateParams,
    ) -> Result<(), String> {
        if let Some(text) = text {
            parameter.write(&mut params.clone(), text)?;
        }
        self.0.retain(|(other, _)| other.name != parameter.name);
        self.0.extend(text.map(|text| (parameter, text.to_owned())));
        Ok(())
    }

    /// Changes what was set.
    pub(super) fn apply(&self, params: &mut GenerateParams) -> Result<(), String> {
        self.0.iter().try_for_each(|(parameter, text)| parameter.write(params, text))
    }

    /// Whether a parameter was set.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(parameter, _)| parameter.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Result<GenerateParams, String> {
        let mut params = GenerateParams::default();
        let mut changed = Changed::default();
        match parse(text)? {
            Setting::Parameter(parameter, text) => changed.set(parameter, text, &params)?,
            other => panic!("{text}: {other:?}"),
        }
        changed.apply(&mut params)?;
        Ok(params)
    }

    #[test]
    fn every_parameter_reads_what_it_writes() {
        let values = [
            ("temperature", "0.2"),
            ("top_k", "5"),
            ("top_p", "0.5"),
            ("min_p", "0.25"),
            ("typical_p", "0.75"),
            ("top_n_sigma", "1.5"),
            ("temperature_last", "true"),
            ("xtc_probability", "0.5"),
            ("xtc_threshold", "0.3"),
            ("repeat_penalty", "1.25"),
            ("repeat_last_n", "32"),
            ("presence_penalty", "-0.5"),
            ("frequency_penalty", "0.5"),
            ("dry_multiplier", "0.8"),
            ("dry_base", "2"),
            ("dry_allowed_length", "3"),
            ("dry_penalty_last_n", "-1"),
            ("dry_sequence_breakers", r#""\n" "|""#),
            ("mirostat", "2"),
            ("mirostat_tau", "4"),
            ("mirostat_eta", "0.2"),
            ("seed", "7"),
            ("max_tokens", "9"),
            ("stop", r#""a b" "\n""#),
            ("ignore_eos", "true"),
        ];
        assert_eq!(
            values.map(|(name, _)| name).to_vec(),
            PARAMETERS.iter().map(|p| p.name).collect::<Vec<_>>()
        );
        for (parameter, (name, value)) in PARAMETERS.iter().zip(values) {
            let params = set(&format!("parameter {name} {value}")).expect(name);
            assert_eq!(parameter.read(&params), value, "{name}");
            assert_ne!(parameter.read(&GenerateParams::default()), value, "{name}");
            // Only that one has changed.
            let others = PARAMETERS.iter().filter(|other| other.name != name);
            for other in others {
                let default = GenerateParams::default();
                assert_eq!(other.read(&params), other.read(&default), "{name}: {}", other.name);
            }
        }
    }

    #[test]
    fn names_have_spellings_and_values_are_checked() {
        for text in ["parameter temp 0.2", "temperature 0.2", "parameter --temp 0.2", "TEMP 0.2"] {
            assert_eq!(set(text).expect(text).sampling.expect("set").temperature, 0.2);
        }
        assert_eq!(set("parameter num_predict -1").expect("none").max_tokens, None);
        assert_eq!(set("parameter --top-k 3").expect("three").sampling.expect("set").top_k, 3);
        assert_eq!(set(r#"stop a "b c" d"#).expect("texts").stop, ["a", "b c", "d"]);
        for (text, want) in [
            ("parameter temperature x", "`temperature` must be a number, but is x"),
            ("parameter temperature -1", "`temperature` must be from 0 to 100, but is -1"),
            ("parameter top_k 1.5", "`top_k` must be a whole number of at least 0, but is 1.5"),
            ("parameter mirostat 1", "`mirostat` must be 0 (off) or 2, but is 1"),
            ("parameter ignore_eos maybe", "`ignore_eos` must be true or false, but is maybe"),
            ("stop \"a", "`stop` must be words, or texts in double quotes as in JSON, but is \"a"),
            ("stop \"\"", "`stop` must be texts, none of them empty, but is \"\""),
            (
                "parameter temprature 1",
                "unknown parameter `temprature`, did you mean temperature? /show parameters lists them",
            ),
            ("num_ctx 9", "`num_ctx` is fixed when the model is loaded: start with -c N"),
            ("parameter num_ctx 9", "`num_ctx` is fixed when the model is loaded: start with -c N"),
            ("format xml", "the value of /set format must be json, but is xml"),
            ("markdown", "the value of /set markdown must be auto or on or off, but is missing"),
        ] {
            assert_eq!(set(text).expect_err(text), want);
        }
        let error = set("sistem x").expect_err("unknown");
        assert!(
            error.starts_with("unknown setting `sistem`, did you mean system? /set takes param")
        );
        let error = set("").expect_err("nothing");
        assert!(error.starts_with("/set needs one of parameter, system, think"), "{error}");
    }

    #[test]
    fn what_is_set_again_or_taken_back_counts_once() {
        let params = GenerateParams::default();
        let mut changed = Changed::default();
        let top_k = find("top_k").expect("known");
        for text in [Some("5"), Some("6")] {
            changed.set(top_k, text, &params).expect("a number");
        }
        assert!(changed.set(top_k, Some("x"), &params).is_err() && changed.has("top_k"));
        let mut applied = params.clone();
        changed.apply(&mut applied).expect("checked");
        assert_eq!(applied.sampling.expect("set").top_k, 6);
        changed.set(top_k, None, &params).expect("nothing to read");
        assert!(!changed.has("top_k"));
    }

    #[test]
    fn switches_are_words() {
        assert!(matches!(parse("verbose"), Ok(Setting::Verbose(true))));
        assert!(matches!(parse("quiet"), Ok(Setting::Verbose(false))));
        assert!(matches!(parse("think"), Ok(Setting::Think(true))));
        assert!(matches!(parse("nothink"), Ok(Setting::Think(false))));
        assert!(matches!(parse("format json"), Ok(Setting::Json(true))));
        assert!(matches!(parse("noformat"), Ok(Setting::Json(false))));
        assert!(matches!(parse("nohistory"), Ok(Setting::History(false))));
        assert!(matches!(parse("markdown off"), Ok(Setting::Markdown(MarkdownArg::Off))));
        assert!(matches!(parse("system"), Ok(Setting::System(None))));
        assert!(matches!(parse("system \"\"\"\na\n\"\"\""), Ok(Setting::System(Some("a")))));
        assert!(matches!(parse("parameter"), Ok(Setting::Parameters)));
    }
}
