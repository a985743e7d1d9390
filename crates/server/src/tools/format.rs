//! The ways in which models write tool calls, one row each.
//!
//! The parser reads any [`Syntax`], so another format of JSON calls between markers is another
//! row here and nothing else.

use std::str::FromStr;

/// How a model writes its tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4.
    Hermes,
    /// `{"name": …, "parameters": {…}}`, sometimes behind `<|python_tag|>`, several with `;`
    /// between them: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}` of newer
    /// models: Mistral.
    Mistral,
    /// `[{"name": …, "arguments": {…}}]` between `<TOOLCALL>` and `</TOOLCALL>`: Nemotron Nano 2.
    Nemotron,
    /// `[{"name": …, "arguments": {…}}]` between `<tool_calls>` and `</tool_calls>`: Apriel.
    Apriel,
    /// One `{"name": …, "arguments": {…}}` or a list of them, and nothing else: what the schema of
    /// [`tool_schema`](super::tool_schema) makes any model write. Of itself a model whose template
    /// has no place for tools may also write Hermes' markers around it, as SmolLM3 does.
    Json,
}

/// The marks of a format.
#[derive(Debug)]
pub(crate) struct Syntax {
    pub(crate) open: Option<&'static str>,
    pub(crate) close: Option<&'static str>,
    /// Calls may come without a marker, where the answer begins with one.
    pub(crate) bare: bool,
    /// Calls may be a JSON list.
    pub(crate) list: bool,
    /// What stands between calls that are not a list.
    pub(crate) separator: Option<u8>,
    /// The name may stand before the arguments instead of in an object with them.
    pub(crate) named: Option<Infix>,
}

/// The marks between a name, the id that may follow it, and the arguments.
#[derive(Debug)]
pub(crate) struct Infix {
    pub(crate) id: &'static str,
    pub(crate) arguments: &'static str,
}

const NONE: Syntax =
    Syntax { open: None, close: None, bare: false, list: false, separator: None, named: None };

static HERMES: Syntax =
    Syntax { open: Some("<tool_call>"), close: Some("</tool_call>"), list: true, ..NONE };
static LLAMA3: Syntax =
    Syntax { open: Some("<|python_tag|>"), bare: true, separator: Some(b';'), ..NONE };
static MISTRAL: Syntax = Syntax {
    open: Some("[TOOL_CALLS]"),
    list: true,
    named: Some(Infix { id: "[CALL_ID]", arguments: "[ARGS]" }),
    ..NONE
};
static NEMOTRON: Syntax =
    Syntax { open: Some("<TOOLCALL>"), close: Some("</TOOLCALL>"), list: true, ..NONE };
static APRIEL: Syntax =
    Syntax { open: Some("<tool_calls>"), close: Some("</tool_calls>"), list: true, ..NONE };
static JSON: Syntax = Syntax {
    open: Some("<tool_call>"),
    close: Some("</tool_call>"),
    bare: true,
    list: true,
    ..NONE
};

/// A name that no parser has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {what} parser is called {name:?}; there are {known}")]
pub struct UnknownParser {
    /// What it would parse.
    pub what: &'static str,
    /// The name that was asked for.
    pub name: String,
    /// The names that exist.
    pub known: &'static str,
}

impl ToolFormat {
    /// The format that a chat template teaches its model, if it is a known one.
    pub fn detect(template: &str) -> Option<Self> {
        let has = |text| template.contains(text);
        let json_arguments =
            has(r#""arguments""#) || has(r#"\"arguments\""#) || has(r#"'arguments'"#);
        // Some models put XML, not JSON, between the same markers.
        let xml = has("<function=") || has("<arg_key>") || has("<parameter ");
        if has("[TOOL_CALLS]") {
            Some(Self::Mistral)
        } else if has("<TOOLCALL>") {
            Some(Self::Nemotron)
        } else if has("</tool_calls>") && json_arguments && !xml {
            Some(Self::Apriel)
        } else if has("</tool_call>") && has("<tool_call>") && json_arguments && !xml {
            Some(Self::Hermes)
        } else if has("<|start_header_id|>") && has(r#""parameters": "#) && !has("<tool_call>") {
            Some(Self::Llama3Json)
        } else {
            None
        }
    }

    /// The markers that the parser must see. Where one of them is a control token, its text must
    /// not be left out of what is decoded.
    pub fn markers(self) -> Vec<&'static str> {
        let Syntax { open, close, named, .. } = self.syntax();
        let infixes = named.iter().flat_map(|infix| [infix.id, infix.arguments]);
        open.iter().chain(close).copied().chain(infixes).collect()
    }

    pub(crate) fn syntax(self) -> &'static Syntax {
        match self {
            Self::Hermes => &HERMES,
            Self::Llama3Json => &LLAMA3,
            Self::Mistral => &MISTRAL,
            Self::Nemotron => &NEMOTRON,
            Self::Apriel => &APRIEL,
            Self::Json => &JSON,
        }
    }
}

impl FromStr for ToolFormat {
    type Err = UnknownParser;

    /// Reads a name as `--tool-parser` takes it, with vLLM's names.
    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        match name {
            "hermes" | "qwen" => Ok(Self::Hermes),
            "llama3_json" | "llama4_json" => Ok(Self::Llama3Json),
            "mistral" => Ok(Self::Mistral),
            "nemotron" => Ok(Self::Nemotron),
            "apriel" => Ok(Self::Apriel),
            "json" => Ok(Self::Json),
            _ => Err(UnknownParser {
                what: "tool call",
                name: name.to_owned(),
                known: "hermes, qwen, llama3_json, llama4_json, mistral, nemotron, apriel, json",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_template() {
        let check = |template: &str, want: Option<ToolFormat>| {
            assert_eq!(ToolFormat::detect(template), want, "{template}");
        };
        let hermes = r#"<tool_call>\n{\"name\": <name>, \"arguments\": <args>}\n</tool_call>"#;
        check(hermes, Some(ToolFormat::Hermes));
        check(
            r#"'<tool_call>\n{"name": "', '"arguments": '</tool_call>"#,
            Some(ToolFormat::Hermes),
        );
        check("<tool_call>\n<function=f>\n</function>\n</tool_call> \"arguments\"", None);
        check("<tool_call>f\n<arg_key>a</arg_key></tool_call> 'arguments'", None);
        let llama = r#"<|start_header_id|> {{- '"parameters": ' }}{{ arguments | tojson }}"#;
        check(llama, Some(ToolFormat::Llama3Json));
        check("{{- '[TOOL_CALLS][' }}", Some(ToolFormat::Mistral));
        check("{{- '<TOOLCALL>[' -}}", Some(ToolFormat::Nemotron));
        check(
            "<tool_calls>[{\"name\": n, \"arguments\": a}]</tool_calls>",
            Some(ToolFormat::Apriel),
        );
        check("{{ message.content }}", None);
    }

    #[test]
    fn formats_are_known_by_name() {
        use ToolFormat::{Apriel, Hermes, Json, Llama3Json, Mistral, Nemotron};
        for (name, want) in [
            ("hermes", Hermes),
            ("llama3_json", Llama3Json),
            ("mistral", Mistral),
            ("nemotron", Nemotron),
            ("apriel", Apriel),
            ("json", Json),
        ] {
            assert_eq!(name.parse(), Ok(want));
        }
        let error = "pythonic".parse::<ToolFormat>().unwrap_err();
        for known in error.known.split(", ") {
            assert!(known.parse::<ToolFormat>().is_ok(), "{known}");
        }
        assert!(error.to_string().starts_with("no tool call parser is called \"pythonic\""));
        assert_eq!(Mistral.markers(), ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]);
        assert_eq!(Hermes.markers(), ["<tool_call>", "</tool_call>"]);
        assert_eq!(Json.markers(), Hermes.markers());
    }
}
