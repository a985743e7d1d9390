//! `POST /infill`: what stands between a text before and a text after, with other files as context.

use super::completion::Request;
use crate::answer::prompt::{check, check_length};
use crate::error::ApiError;
use crate::http::extract::JsonBody;
use crate::registry::served::ServedModel;
use crate::state::AppState;
use axum::extract::State;
use axum::response::Response;
use realizar_runtime::tokenizer::{EncodeOptions, Infill};
use serde::Deserialize;

/// What stands for the names that a request does not say, as in llama-server.
const REPO: &str = "myproject\n";
const FILE: &str = "filename\n";
const EXTRA_FILE: &str = "tmp";

/// What separates chunks for models without a token for files.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// The texts around the gap.
#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    input_prefix: Option<String>,
    input_suffix: Option<String>,
    input_extra: Option<Vec<Chunk>>,
    prompt: Option<String>,
}

/// A part of another file.
#[derive(Debug, Deserialize)]
pub(crate) struct Chunk {
    text: String,
    filename: Option<String>,
}

/// Fills a gap.
pub(crate) async fn create(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let read = |body: &JsonBody| Ok((Request::read(body)?, body.read::<Fields>()?));
    let ((request, fields), held) = body.parse(read).await?;
    let model = state.model(request.common.model.as_deref()).await?;
    let Some(tokens) = model.tokenizer().infill() else {
        let message = format!("the model `{}` has no fill-in-the-middle tokens", model.name);
        return Err(ApiError::not_supported(message));
    };
    let add_bos = request.common.add_special_tokens().unwrap_or(true);
    let n_answer = request.common.asked_tokens_most();
    let context = request.common.context(&model);
    let prompt = {
        let model = model.clone();
        held.work(move || fields.encode(&model, tokens, add_bos, (context, n_answer)))
    };
    let prompts = vec![prompt.await?];
    request.answer(&state, held, model, prompts, "input_prefix").await
}

impl Fields {
    /// The token ids of the prompt. Of the other files there is as much as the context has room for
    /// beside the texts around the gap and `n_answer` tokens, or a quarter of the context: their end,
    /// which is nearest to the gap.
    fn encode(
        self,
        model: &ServedModel,
        tokens: Infill,
        add_bos: bool,
        (context, n_answer): (usize, Option<usize>),
    ) -> Result<Vec<u32>, ApiError> {
        let Self { input_prefix, input_suffix, input_extra, prompt } = self;
        let needed = |param: &str, text: Option<String>| {
            text.ok_or_else(|| ApiError::invalid(param, format!("`{param}` is required")))
        };
        let tokenizer = model.tokenizer();
        let mut n_least = 0;
        let mut encode = |text: &str, param: &str| {
            n_least += tokenizer.min_tokens(text);
            check_length(model, n_least).map_err(|error| error.renamed(&[("prompt", param)]))?;
            encode_plain(model, text)
        };
        let prefix = encode(&needed("input_prefix", input_prefix)?, "input_prefix")?;
        let suffix = encode(&needed("input_suffix", input_suffix)?, "input_suffix")?;
        let prompt = encode(&prompt.unwrap_or_default(), "prompt")?;
        let mut rest: Vec<u32> =
            tokenizer.bos().filter(|_| add_bos && tokenizer.add_bos()).into_iter().collect();
        rest.push(tokens.prefix);
        rest.extend(prefix);
        rest.extend(prompt);
        rest.push(tokens.suffix);
        rest.extend(suffix);
        rest.push(tokens.middle);
        let n_answer = n_answer.unwrap_or(context / 4).max(1);
        let room = context.saturating_sub(rest.len()).saturating_sub(n_answer);
        let extra = encode_extra(model, tokens, &input_extra.unwrap_or_default(), room)?;
        check(model, [extra, rest].concat())
    }
}

fn encode_plain(model: &ServedModel, text: &str) -> Result<Vec<u32>, ApiError> {
    let plain = EncodeOptions { add_special: false, parse_special: false };
    Ok(model.tokenizer().encode(text, plain)?)
}

/// The last `room` tokens of what comes before the prefix: the repository, other files, and the name
/// of this one. Chunks that are before the room are not encoded.
fn encode_extra(
    model: &ServedModel,
    tokens: Infill,
    chunks: &[Chunk],
    room: usize,
) -> Result<Vec<u32>, ApiError> {
    let named = |token: Option<u32>, name: &str| -> Result<Vec<u32>, ApiError> {
        let Some(token) = token else { return Ok(Vec::new()) };
        Ok(std::iter::once(token).chain(encode_plain(model, name)?).collect())
    };
    // From the end to the beginning.
    let mut parts = vec![named(tokens.file, FILE)?];
    let mut n = parts[0].len();
    for chunk in chunks.iter().rev() {
        if n >= room {
            break;
        }
        let name = chunk.filename.as_deref().unwrap_or(EXTRA_FILE);
        let mut part = match tokens.file {
            Some(_) => named(tokens.file, &format!("{name}\n"))?,
            None => encode_plain(model, SNIPPET)?,
        };
        part.extend(encode_plain(model, &chunk.text)?);
        n += part.len();
        parts.push(part);
    }
    if n < room {
        parts.push(named(tokens.repo, REPO)?);
    }
    parts.reverse();
    let all = parts.concat();
    Ok(all[all.len().saturating_sub(room)..].to_vec())
}
