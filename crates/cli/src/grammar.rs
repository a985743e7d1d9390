//! What the answer must look like, as it is given on the command line.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use realizar_runtime::constrain::{AdditionalProperties, Grammar};

use crate::ui;

/// The meaning of schemas that list properties and say nothing of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnlistedProperties {
    /// An object with `properties` has no others
    #[default]
    Close,
    /// It may have others, as JSON Schema has it
    Allow,
}

impl From<UnlistedProperties> for AdditionalProperties {
    fn from(value: UnlistedProperties) -> Self {
        match value {
            UnlistedProperties::Close => Self::Closed,
            UnlistedProperties::Allow => Self::Allowed,
        }
    }
}

/// At most one grammar.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Structured output")]
#[group(multiple = false)]
pub(crate) struct GrammarArgs {
    /// Answer with a JSON object
    #[arg(long)]
    json_object: bool,
    /// Answer with JSON that is valid by this schema: a file, or the schema itself
    #[arg(long, value_name = "SCHEMA")]
    json_schema: Option<String>,
    /// Answer by the grammar in FILE: .gbnf is llama.cpp's format, .lark is llguidance's Lark
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
    /// Answer with a text that matches this regular expression as a whole
    #[arg(long, value_name = "REGEX", allow_hyphen_values = true)]
    regex: Option<String>,
}

impl GrammarArgs {
    /// The grammar that was requested.
    pub(crate) fn read(&self) -> Result<Option<Grammar>> {
        if self.json_object {
            return Ok(Some(Grammar::JsonObject));
        }
        if let Some(schema) = &self.json_schema {
            return json_schema(schema).map(Some);
        }
        if let Some(regex) = &self.regex {
            return Ok(Some(Grammar::Regex(regex.clone())));
        }
        let Some(path) = &self.grammar else { return Ok(None) };
        let extension = path.extension().and_then(|extension| extension.to_str());
        let kind: fn(String) -> Grammar = match extension {
            Some("gbnf") => Grammar::Gbnf,
            Some("lark") => Grammar::Lark,
            _ => {
                let path = path.display();
                return Err(ui::usage(format!(
                    "--grammar {path}: the name must end with .gbnf or .lark, which say its format"
                )));
            }
        };
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Some(kind(text)))
    }
}

/// A schema as such, or the file that it is in: no file's name begins like a schema.
fn json_schema(argument: &str) -> Result<Grammar> {
    let schema = argument.trim();
    if schema.starts_with('{') || schema == "true" || schema == "false" {
        return match serde_json::from_str(schema) {
            Ok(schema) => Ok(Grammar::JsonSchema(schema)),
            Err(error) => Err(ui::usage(format!("--json-schema: {error}"))),
        };
    }
    let text = fs::read_to_string(argument).with_context(|| format!("cannot read {argument}"))?;
    Ok(Grammar::JsonSchema(serde_json::from_str(&text).context(argument.to_owned())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        grammar: GrammarArgs,
    }

    fn read(args: &[&str]) -> Result<Option<Grammar>> {
        let args = ["x"].iter().chain(args);
        Only::try_parse_from(args)?.grammar.read()
    }

    #[test]
    fn at_most_one_grammar_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).expect("a writable directory");
            path.to_str().expect("a path of text").to_owned()
        };
        let check = |args: &[&str], want: Option<Grammar>| {
            assert_eq!(read(args).expect("a grammar"), want, "{args:?}");
        };
        check(&[], None);
        check(&["--json-object"], Some(Grammar::JsonObject));
        check(&["--regex", "-+"], Some(Grammar::Regex("-+".to_owned())));
        let schema = Grammar::JsonSchema(json!({"type": "null"}));
        check(&["--json-schema", " {\"type\": \"null\"}"], Some(schema.clone()));
        check(&["--json-schema", &file("a.json", "{\"type\": \"null\"}")], Some(schema));
        check(&["--json-schema", "true"], Some(Grammar::JsonSchema(json!(true))));
        check(&["--grammar", &file("a.gbnf", "g")], Some(Grammar::Gbnf("g".to_owned())));
        check(&["--grammar", &file("a.lark", "l")], Some(Grammar::Lark("l".to_owned())));

        let check = |args: &[&str], want: &str| {
            let error = format!("{:#}", read(args).expect_err(want));
            assert!(error.contains(want), "{want}: {error}");
        };
        check(&["--json-object", "--regex", "a"], "cannot be used with");
        check(&["--json-schema", "{\"type\""], "--json-schema: EOF");
        check(&["--json-schema", "missing.json"], "cannot read missing.json");
        check(&["--json-schema", &file("b.json", "{")], "b.json: EOF");
        check(&["--grammar", "a.txt"], "must end with .gbnf or .lark");
    }
}
