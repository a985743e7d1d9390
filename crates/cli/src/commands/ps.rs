//! `realizar ps`: the models that a running server has, as `GET /v1/models` reports them.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use realizar_runtime::ByteSize;
use serde_json::Value;
use ureq::Agent;

use crate::ui;

/// How long the server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer.
const MAX_ANSWER: u64 = 16 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Address of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Key of the server
    #[arg(long, value_name = "KEY", env = "REALIZAR_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,
    /// Print nothing; fail unless the server is ready (needs no key)
    #[arg(long, conflicts_with = "json")]
    ready: bool,
}

pub(crate) fn execute(args: &Args) -> Result<()> {
    if args.ready {
        return get(&args.url, "/ready", None).map(drop);
    }
    let list = models_of(&args.url, args.api_key.as_deref())?;
    if args.json {
        return ui::json(&list);
    }
    let models = list["data"].as_array().context("the server's response has no list of models")?;
    let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
    let mut rows = vec![row(["MODEL", "STATE", "MEMORY", "CONTEXT", "ARCHITECTURE"])];
    rows.extend(models.iter().map(|model| row(cells(model).each_ref().map(String::as_str))));
    let mut out = ui::out();
    ui::table(&mut out, &rows, &[2, 3])?;
    out.flush()?;
    Ok(())
}

/// Name, state, memory, context and architecture of a model.
fn cells(model: &Value) -> [String; 5] {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let memory = model["memory"]["total"].as_u64();
    let context = model["max_model_len"].as_u64();
    [
        text(&model["id"]),
        text(&model["status"]["value"]),
        memory.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string()),
        context.map_or_else(|| "-".to_owned(), |n| n.to_string()),
        text(&model["meta"]["architecture"]),
    ]
}

/// The answer of `GET /v1/models`.
pub(super) fn models_of(server: &str, api_key: Option<&str>) -> Result<Value> {
    get(server, "/v1/models", api_key)
}

/// The answer of a server to a request for a path.
fn get(server: &str, path: &str, api_key: Option<&str>) -> Result<Value> {
    let url = format!("{}{path}", server.trim_end_matches('/'));
    let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT));
    let mut request = Agent::from(config.build()).get(&url);
    if let Some(key) = api_key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let hint = || format!("no server at {server}; --url sets another address");
    let mut answer = request.call().with_context(hint)?;
    match answer.status().as_u16() {
        200 => {}
        401 | 403 => {
            bail!("{url}: the server requires an API key: --api-key KEY or REALIZAR_API_KEY")
        }
        status => bail!("{url}: status {status}"),
    }
    let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_string();
    let text = text.with_context(|| format!("cannot read the response of {url}"))?;
    serde_json::from_str(&text).with_context(|| format!("{url}: the response is not JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_models() {
        let loaded = serde_json::json!({
            "id": "m", "status": {"value": "loaded"}, "memory": {"total": 3_u64 << 30},
            "max_model_len": 4096, "meta": {"architecture": "llama"},
        });
        assert_eq!(cells(&loaded), ["m", "loaded", "3.00 GiB", "4096", "llama"]);
        let unloaded = serde_json::json!({
            "id": "m", "status": {"value": "unloaded"}, "memory": null, "max_model_len": null,
            "meta": null,
        });
        assert_eq!(cells(&unloaded), ["m", "unloaded", "-", "-", "-"]);
    }
}
