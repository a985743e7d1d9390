//! `realizar tokenize`: the token ids of a text, or the text of token ids.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use realizar_runtime::tokenizer::EncodeOptions;
use serde_json::json;

use crate::engine::load_tokenizer;
use crate::options::{GlobalArgs, List, list, read_text};
use crate::ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// The text; without it, -f FILE or standard input is read. Put -- before a text that starts
    /// with a hyphen
    #[arg(allow_negative_numbers = true)]
    text: Option<String>,
    /// Read the text from FILE; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Print the text of these ids instead, e.g. 5,17,42
    #[arg(long, value_name = "IDS", value_parser = list::<u32>, allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["text", "file"])]
    decode: Option<List<u32>>,
    /// Add no BOS or EOS token, even if the model specifies it
    #[arg(long)]
    no_add_special: bool,
    /// Treat special tokens in the text as ordinary text
    #[arg(long)]
    no_parse_special: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let text = match &args.decode {
        Some(_) => None,
        None => Some(read_text(args.text.as_deref(), args.file.as_ref(), "text")?),
    };
    let path = global.sources().resolve(&args.model)?;
    let tokenizer = load_tokenizer(&path)?;
    let ids = match (&args.decode, &text) {
        (Some(ids), _) => ids.0.clone(),
        (None, Some(text)) => {
            let options = EncodeOptions {
                add_special: !args.no_add_special,
                parse_special: !args.no_parse_special,
            };
            tokenizer.encode(text, options)?
        }
        (None, None) => Vec::new(),
    };
    if args.json {
        let tokens =
            ids.iter().map(|&id| tokenizer.token_text(id)).collect::<Result<Vec<_>, _>>()?;
        let text = text.map_or_else(|| tokenizer.decode(&ids, false), Ok)?;
        return ui::json(&json!({ "ids": ids, "tokens": tokens, "text": text }));
    }
    let mut out = ui::out();
    if args.decode.is_some() {
        writeln!(out, "{}", tokenizer.decode(&ids, false)?)?;
    } else {
        for id in ids {
            writeln!(out, "{id:>7}  {:?}", tokenizer.token_text(id)?)?;
        }
    }
    out.flush()?;
    Ok(())
}
