//! Requests may ask for things that this server leaves out or ignores on purpose: tools that a vendor
//! runs, hints, and options of a device that is chosen when the server starts. [`ROWS`] lists all of
//! them with a reason.
//!
//! Readers of requests ask `is_ignored` before they refuse a value. What a request contains is found
//! by `found` and logged once per connection by `Logged`. `docs/ignored.md` is [`document`]. A
//! value that is neither honoured nor listed here is an error of the request.

mod logged;
mod rows;

pub(crate) use logged::Logged;
pub use rows::ROWS;

use realizar_runtime::constrain::UNENFORCED_FORMATS;
use serde_json::{Map, Value};

/// An API whose requests have rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// Ollama's API.
    Ollama,
}

impl Api {
    /// All of them, in the order of the document.
    pub const ALL: [Self; 4] = [Self::Chat, Self::Responses, Self::Messages, Self::Ollama];

    /// Its name in the document and in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "Chat completions",
            Self::Responses => "Responses",
            Self::Messages => "Messages",
            Self::Ollama => "Ollama",
        }
    }

    /// The endpoints whose requests have its fields.
    pub fn paths(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &["/v1/chat/completions"],
            Self::Responses => &["/v1/responses"],
            Self::Messages => &["/v1/messages", "/v1/messages/count_tokens"],
            Self::Ollama => &["/api/chat", "/api/generate"],
        }
    }
}

/// Values of one field that are left out or ignored.
#[derive(Debug)]
pub struct Row {
    /// The API.
    pub api: Api,
    /// The path of the field; `[]` stands for each item of an array.
    pub field: &'static str,
    /// The values, any if there are none. A `*` at the end stands for any rest.
    pub values: &'static [&'static str],
    /// Why nothing comes of them, as a sentence about the field.
    pub reason: &'static str,
    /// Members of a request with the field, as JSON. `$VALUE` stands for each of the values.
    pub example: &'static str,
}

impl Row {
    /// Whether it speaks of a value. Null and empty lists count as absent.
    fn has(&self, value: &Value) -> bool {
        match value {
            Value::Null => false,
            Value::Array(list) if list.is_empty() => false,
            _ if self.values.is_empty() => true,
            Value::String(text) => self.has_text(text),
            value => self.has_text(&value.to_string()),
        }
    }

    fn has_text(&self, value: &str) -> bool {
        let fits = |pattern: &&str| match pattern.strip_suffix('*') {
            Some(start) => value.starts_with(start),
            None => value == *pattern,
        };
        self.values.is_empty() || self.values.iter().any(fits)
    }

    /// The example with each of the values.
    ///
    /// # Panics
    /// If the example is not an object, which the tests rule out.
    pub fn examples(&self) -> Vec<Map<String, Value>> {
        let read = |text: &str| serde_json::from_str(text).expect("an example is an object");
        if self.values.is_empty() {
            return vec![read(self.example)];
        }
        let values = self.values.iter().map(|value| value.replace('*', "20260101"));
        values.map(|value| read(&self.example.replace("$VALUE", &value))).collect()
    }

    /// The field with its values, as the document and the log have it.
    fn title(&self) -> String {
        let values: Vec<String> = self.values.iter().map(|value| format!("`{value}`")).collect();
        match values.as_slice() {
            [] => format!("`{}`", self.field),
            values => format!("`{}`: {}", self.field, values.join(", ")),
        }
    }
}

/// Whether a value of a field is left out or ignored on purpose.
pub(crate) fn is_ignored(api: Api, field: &str, value: &str) -> bool {
    ROWS.iter().any(|row| row.api == api && row.field == field && row.has_text(value))
}

/// The members of a request that rows of this API speak of.
pub(crate) fn members(api: Api) -> Vec<&'static str> {
    let name = |row: &'static Row| row.field.split(['.', '[']).next().unwrap_or_default();
    let mut names: Vec<&str> = ROWS.iter().filter(|row| row.api == api).map(name).collect();
    names.dedup();
    names
}

/// The rows that a request has values of, by their places in [`ROWS`].
pub(crate) fn found(api: Api, body: &Map<String, Value>) -> Vec<usize> {
    let has = |row: &Row| {
        let (first, rest) = row.field.split_once('.').unwrap_or((row.field, ""));
        let (name, is_list) = match first.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (first, false),
        };
        body.get(name).is_some_and(|value| any_at(value, is_list, rest, &|value| row.has(value)))
    };
    let rows = ROWS.iter().enumerate();
    rows.filter(|(_, row)| row.api == api && has(row)).map(|(idx, _)| idx).collect()
}

/// Whether a value at the end of `path` passes a test.
fn any_at(value: &Value, is_list: bool, path: &str, test: &dyn Fn(&Value) -> bool) -> bool {
    if is_list {
        let mut items = value.as_array().into_iter().flatten();
        return items.any(|item| any_at(item, false, path, test));
    }
    if path.is_empty() {
        return test(value);
    }
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match first.strip_suffix("[]") {
        Some(name) => value.get(name).is_some_and(|value| any_at(value, true, rest, test)),
        None => value.get(first).is_some_and(|value| any_at(value, false, rest, test)),
    }
}

/// `docs/ignored.md`, which `cargo run -p realizar-server --example ignored` prints.
pub fn document() -> String {
    let mut text = String::from(
        "# What is left out or ignored\n\n\
         Requests may ask for things that exist only at the vendor whose API they are written for, or that are \
         fixed when the server\nstarts. The server leaves these out or ignores them, logs each once per connection, \
         and answers. Everything else that it\ncannot honour is refused with status 400, and the error names the \
         field, its value and what is accepted. Fields that it does not\nknow are ignored, as clients and routers \
         add their own.\n\n\
         These tables are printed by `cargo run -p realizar-server --example ignored`; a `*` stands for any \
         ending, as in dated\nversions. A tool that is left out is not described to the model.\n",
    );
    for api in Api::ALL {
        let paths: Vec<String> = api.paths().iter().map(|path| format!("`{path}`")).collect();
        text.push_str(&format!("\n## {}\n\n{}\n\n", api.name(), paths.join(", ")));
        text.push_str("| field | values | why |\n|---|---|---|\n");
        for row in ROWS.iter().filter(|row| row.api == api) {
            let values: Vec<String> = row.values.iter().map(|value| format!("`{value}`")).collect();
            let values = if values.is_empty() { "any".to_owned() } else { values.join(", ") };
            text.push_str(&format!("| `{}` | {values} | {} |\n", row.field, row.reason));
        }
    }
    text.push_str(
        "\n## JSON schemas\n\nOf structured output and of tools, in every API. Nothing is logged.\n\n\
         | keyword | values | why |\n|---|---|---|\n\
         | `uniqueItems` | any | No grammar describes which items are different. |\n",
    );
    let formats: Vec<String> =
        UNENFORCED_FORMATS.iter().map(|format| format!("`{format}`")).collect();
    text.push_str(&format!(
        "| `format` | {} | It says how a string is used, or no grammar describes it. Other unknown formats are refused. |\n",
        formats.join(", ")
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_example_has_its_row() {
        for (idx, row) in ROWS.iter().enumerate() {
            for example in row.examples() {
                assert!(found(row.api, &example).contains(&idx), "{row:?}: {example:?}");
                let name = row.field.split(['.', '[']).next();
                assert!(name.is_some_and(|name| members(row.api).contains(&name)), "{row:?}");
            }
        }
    }

    #[test]
    fn values_are_found_at_their_places() {
        let check = |api, body: Value, want: &[&str]| {
            let body = body.as_object().expect("an object").clone();
            let fields: Vec<&str> = found(api, &body).iter().map(|&at| ROWS[at].field).collect();
            assert_eq!(fields, want, "{body:?}");
        };
        let tools = |kind: &str| json!({"tools": [{"type": "function"}, {"type": kind}]});
        check(Api::Responses, tools("web_search"), &["tools[].type"]);
        check(Api::Responses, tools("web_search_2025_08_26"), &["tools[].type"]);
        check(Api::Responses, tools("function"), &[]);
        check(Api::Chat, tools("web_search"), &[]);
        check(
            Api::Ollama,
            json!({"options": {"num_gpu": 0, "low_vram": true}}),
            &["options.num_gpu", "options.low_vram"],
        );
        check(Api::Ollama, json!({"options": {"num_gpu": null, "top_k": 1}}), &[]);
        check(Api::Ollama, json!({"options": [{"num_gpu": 1}]}), &[]);
    }

    #[test]
    fn a_field_has_rows_for_the_values_that_are_listed() {
        let check = |api, value: &str, want: bool| {
            assert_eq!(is_ignored(api, "tools[].type", value), want, "{value}");
        };
        check(Api::Responses, "mcp", true);
        check(Api::Responses, "mcp2", false);
        check(Api::Responses, "custom", false);
        check(Api::Messages, "web_search_20250305", true);
        check(Api::Messages, "web_search", false);
        check(Api::Chat, "mcp", false);
    }
}
