//! Ollama's API: chats, texts, vectors and the list of models, in lines of JSON.
//!
//! Requests become those of OpenAI's endpoints and are checked as such; `options` that cannot be
//! honoured are refused by name. Models are those that the server was started with: nothing here
//! fetches, makes, copies or deletes one.

mod answer;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod models;
mod request;

use crate::error::ApiError;
use crate::state::AppState;
use realizar_runtime::template::strftime;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(test)]
pub(crate) use request::{read_chat, read_generate};

/// The version of Ollama whose API this is. Clients ask for a minimum.
const VERSION: &str = "0.12.0";

/// Whether a path belongs to Ollama's API.
pub(crate) fn is_ollama(path: &str) -> bool {
    path.starts_with("/api/")
}

/// Why a path of Ollama's API is not there, if it is one.
pub(crate) fn not_offered(path: &str) -> Option<ApiError> {
    let what = match path.strip_prefix("/api/")? {
        "copy" => "copied",
        "create" => "created",
        "delete" => "deleted",
        "push" => "pushed",
        name if name.starts_with("blobs/") => "uploaded",
        _ => return None,
    };
    Some(ApiError::not_offered(format!(
        "models cannot be {what} over HTTP on this server; `realizar pull` and `realizar rm` \
         manage model files"
    )))
}

/// The name of a model here: as it was requested, or without the tag that Ollama adds to names.
fn known_name(state: &AppState, name: &str) -> String {
    let is_known = |name: &str| state.models().status(name).is_some();
    match name.strip_suffix(":latest") {
        Some(base) if !is_known(name) && is_known(base) => base.to_owned(),
        _ => name.to_owned(),
    }
}

/// A name with a tag, as Ollama lists it.
fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') { name.to_owned() } else { format!("{name}:latest") }
}

/// A time as RFC 3339 writes it, in UTC.
fn timestamp(time: SystemTime) -> String {
    let nanos = time.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    let seconds = strftime(time, "%FT%T").expect("the directives are supported");
    format!("{seconds}.{nanos:09}Z")
}

fn now() -> String {
    timestamp(SystemTime::now())
}

/// A duration as Ollama writes it: in nanoseconds.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_in_rfc_3339() {
        // By `date -u -d @N +%FT%T`.
        for (secs, want) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_709_251_200, "2024-03-01T00:00:00"),
            (4_107_542_400, "2100-03-01T00:00:00"),
            (1_798_761_599, "2026-12-31T23:59:59"),
        ] {
            let time = UNIX_EPOCH + Duration::new(secs, 5);
            assert_eq!(timestamp(time), format!("{want}.000000005Z"));
        }
    }

    #[test]
    fn names_have_tags() {
        assert_eq!(tagged("llama3.2"), "llama3.2:latest");
        assert_eq!(tagged("llama3.2:1b"), "llama3.2:1b");
        assert_eq!(tagged("host:1/a"), "host:1/a:latest");
    }
}
