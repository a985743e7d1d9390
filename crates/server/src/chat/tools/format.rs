//! The ways in which models write tool calls, one row each.
//!
//! The parser reads any [`Syntax`], so another format of calls between markers, in a notation that is
//! known, is another row here and nothing else. Messages in channels have a parser of their own.

use std::str::FromStr;

use super::elements::Elements;
use super::{gemma, harmony};

/// What marks of DeepSeek V3.2 are told by.
const DSML: &str = "｜DSML｜";

/// How a model writes its tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4.
    Hermes,
    /// `{"name": …, "parameters": {…}}`, sometimes after `<|python_tag|>`, several with `;`
    /// between them: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}` of newer
    /// models: Mistral.
    Mistral,
    /// `[{"name": …, "arguments": {…}}]` between `<TOOLCALL>` and `</TOOLCALL>`: Nemotron Nano 2.
    Nemotron,
    /// `[{"name": …, "arguments": {…}}]` between `<tool_calls>` and `</tool_calls>`, or the
    /// objects alone: Apriel, MiniMax-M1.
    Apriel,
    /// `<|tool_call|>[{"name": …, "arguments": {…}}]`: Granite 3.
    Granite3,
    /// `[{"tool_name": …, "parameters": {…}}]` between `<|START_ACTION|>` and `<|END_ACTION|>`:
    /// Command-R7B, Command A.
    CommandR7b,
    /// ``function<｜tool▁sep｜>name``, then the arguments in a fenced block of JSON, between the
    /// marks of a call: DeepSeek V3 and R1.
    DeepSeekV3,
    /// `name<｜tool▁sep｜>{…}` between the marks of a call: DeepSeek V3.1.
    DeepSeekV31,
    /// `<invoke name="…">` with a `<parameter name="…" string="true|false">` for each argument, each
    /// mark with `｜DSML｜`: DeepSeek V3.2 and V4.
    DeepSeekV32,
    /// `functions.name:0<|tool_call_argument_begin|>{…}` between the marks of a call: Kimi K2.
    KimiK2,
    /// `<function=…>` with a `<parameter=…>` for each argument, in `<tool_call>`: Qwen3-Coder,
    /// Qwen3.5, Nemotron 3, StepFun 3.5.
    Qwen3Coder,
    /// As Qwen3-Coder's, in `<seed:tool_call>`: Seed-OSS.
    SeedOss,
    /// The name, and an `<arg_key>` and an `<arg_value>` for each argument, in `<tool_call>`: GLM-4.5
    /// and its successors.
    Glm45,
    /// `<invoke name="…">` with a `<parameter name="…">` for each argument, in
    /// `<minimax:tool_call>`: MiniMax-M2.
    MinimaxM2,
    /// `[name(key="value"), …]`, a list of calls as Python writes them and nothing else: Llama 3.2
    /// and 4.
    Pythonic,
    /// The same between `<|tool_call_start|>` and `<|tool_call_end|>`: LFM2.
    Lfm2,
    /// `call:name{key:<|"|>value<|"|>}` between `<|tool_call>` and `<tool_call|>`: Gemma 4.
    Gemma4,
    /// A message in the channel `commentary` to `functions.name`: gpt-oss.
    Harmony,
    /// One `{"name": …, "arguments": {…}}` or a list of them, and nothing else: what the schema of
    /// [`tool_schema`](super::tool_schema) makes any model write. Of itself a model whose template
    /// has no place for tools may also write Hermes' markers around it, as SmolLM3 does.
    Json,
}

/// The marks of a format.
#[derive(Debug)]
pub(crate) struct Syntax {
    /// How a call itself is written.
    pub(crate) notation: Notation,
    pub(crate) open: Option<&'static str>,
    pub(crate) close: Option<&'static str>,
    /// Around all calls; control tokens, which are left out wherever they are.
    pub(crate) section: Option<[&'static str; 2]>,
    /// Calls may come without a marker, where the answer begins with one.
    pub(crate) bare: bool,
    /// Calls may be a list in brackets.
    pub(crate) list: bool,
    /// What stands between calls that are not a list.
    pub(crate) separator: Option<u8>,
    /// The name may stand before the arguments instead of in an object with them.
    pub(crate) named: Option<Infix>,
}

/// How a call is written.
#[derive(Debug)]
pub(crate) enum Notation {
    /// A JSON object with the name and the arguments, or the latter alone after a name.
    Json,
    /// An element for each argument.
    Elements(Elements),
    /// A call in Python.
    Python,
    /// Gemma 4's.
    Gemma,
}

/// The marks between a name, the id that may follow it, and the arguments.
#[derive(Debug)]
pub(crate) struct Infix {
    /// What may stand before the name.
    pub(crate) prefixes: &'static [&'static str],
    /// Between the name and the id; empty where there is none.
    pub(crate) id: &'static str,
    /// Before the arguments.
    pub(crate) arguments: &'static str,
    /// What may stand after the arguments, before the mark that ends the call.
    pub(crate) tail: &'static str,
}

impl Syntax {
    /// Nothing but a name tells that a call begins, so it must be one of the request's functions.
    pub(crate) fn is_loose(&self) -> bool {
        matches!(&self.notation, Notation::Elements(marks) if marks.open.is_empty())
    }

    /// Whether a call that begins with `first` may follow another with no mark between them.
    pub(crate) fn may_repeat(&self, first: u8) -> bool {
        match self.notation {
            Notation::Json => first == b'{',
            _ => !self.is_loose(),
        }
    }
}

const NONE: Syntax = Syntax {
    notation: Notation::Json,
    open: None,
    close: None,
    section: None,
    bare: false,
    list: false,
    separator: None,
    named: None,
};
const INFIX: Infix = Infix { prefixes: &[], id: "", arguments: "", tail: "" };
const FUNCTION: Elements = Elements {
    open: "<function=",
    name_end: ">",
    key_open: "<parameter=",
    key_end: ">",
    attributes_end: None,
    value_open: "",
    value_end: "</parameter>",
    close: "</function>",
};

static HERMES: Syntax =
    Syntax { open: Some("<tool_call>"), close: Some("</tool_call>"), list: true, ..NONE };
static LLAMA3: Syntax =
    Syntax { open: Some("<|python_tag|>"), bare: true, separator: Some(b';'), ..NONE };
static MISTRAL: Syntax = Syntax {
    open: Some("[TOOL_CALLS]"),
    list: true,
    named: Some(Infix { id: "[CALL_ID]", arguments: "[ARGS]", ..INFIX }),
    ..NONE
};
static NEMOTRON: Syntax =
    Syntax { open: Some("<TOOLCALL>"), close: Some("</TOOLCALL>"), list: true, ..NONE };
static APRIEL: Syntax =
    Syntax { open: Some("<tool_calls>"), close: Some("</tool_calls>"), list: true, ..NONE };
static GRANITE3: Syntax = Syntax { open: Some("<|tool_call|>"), list: true, ..NONE };
static COMMAND_R7B: Syntax =
    Syntax { open: Some("<|START_ACTION|>"), close: Some("<|END_ACTION|>"), list: true, ..NONE };
static DEEPSEEK_V3: Syntax = Syntax {
    named: Some(Infix {
        prefixes: &["function<｜tool▁sep｜>"],
        arguments: "\n```json",
        tail: "```",
        ..INFIX
    }),
    ..DEEPSEEK
};
static DEEPSEEK_V31: Syntax =
    Syntax { named: Some(Infix { arguments: "<｜tool▁sep｜>", ..INFIX }), ..DEEPSEEK };
const DEEPSEEK: Syntax = Syntax {
    open: Some("<｜tool▁call▁begin｜>"),
    close: Some("<｜tool▁call▁end｜>"),
    section: Some(["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"]),
    ..NONE
};
static DEEPSEEK_V32: Syntax = Syntax {
    notation: Notation::Elements(Elements {
        open: "<｜DSML｜invoke name=\"",
        name_end: "\">",
        key_open: "<｜DSML｜parameter name=\"",
        key_end: "\"",
        attributes_end: Some(">"),
        value_open: "",
        value_end: "</｜DSML｜parameter>",
        close: "</｜DSML｜invoke>",
    }),
    section: Some(["<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"]),
    open: Some("<｜DSML｜function_calls>"),
    close: Some("</｜DSML｜function_calls>"),
    ..NONE
};
static KIMI_K2: Syntax = Syntax {
    open: Some("<|tool_call_begin|>"),
    close: Some("<|tool_call_end|>"),
    section: Some(["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"]),
    named: Some(Infix {
        prefixes: &["functions."],
        id: ":",
        arguments: "<|tool_call_argument_begin|>",
        ..INFIX
    }),
    ..NONE
};
static QWEN3_CODER: Syntax =
    Syntax { notation: Notation::Elements(FUNCTION), list: false, ..HERMES_MARKS };
const HERMES_MARKS: Syntax =
    Syntax { open: Some("<tool_call>"), close: Some("</tool_call>"), ..NONE };
static SEED_OSS: Syntax = Syntax {
    notation: Notation::Elements(FUNCTION),
    open: Some("<seed:tool_call>"),
    close: Some("</seed:tool_call>"),
    ..NONE
};
static GLM45: Syntax = Syntax {
    notation: Notation::Elements(Elements {
        open: "",
        name_end: "",
        key_open: "<arg_key>",
        key_end: "</arg_key>",
        attributes_end: None,
        value_open: "<arg_value>",
        value_end: "</arg_value>",
        close: "",
    }),
    ..HERMES_MARKS
};
static MINIMAX_M2: Syntax = Syntax {
    notation: Notation::Elements(Elements {
        open: "<invoke name=\"",
        name_end: "\">",
        key_open: "<parameter name=\"",
        key_end: "\">",
        attributes_end: None,
        value_open: "",
        value_end: "</parameter>",
        close: "</invoke>",
    }),
    open: Some("<minimax:tool_call>"),
    close: Some("</minimax:tool_call>"),
    ..NONE
};
static PYTHONIC: Syntax = Syntax {
    notation: Notation::Python,
    open: Some("<|python_start|>"),
    close: Some("<|python_end|>"),
    bare: true,
    list: true,
    ..NONE
};
static LFM2: Syntax = Syntax {
    open: Some("<|tool_call_start|>"),
    close: Some("<|tool_call_end|>"),
    notation: Notation::Python,
    list: true,
    ..NONE
};
static GEMMA4: Syntax = Syntax {
    notation: Notation::Gemma,
    open: Some("<|tool_call>"),
    close: Some("<tool_call|>"),
    ..NONE
};
static JSON: Syntax = Syntax { bare: true, list: true, ..HERMES_MARKS };

/// The names of the formats, as `--tool-parser` takes them; where there is one, vLLM's.
static NAMES: [(&str, ToolFormat); 26] = [
    ("hermes", ToolFormat::Hermes),
    ("qwen", ToolFormat::Hermes),
    ("llama3_json", ToolFormat::Llama3Json),
    ("llama4_json", ToolFormat::Llama3Json),
    ("mistral", ToolFormat::Mistral),
    ("nemotron", ToolFormat::Nemotron),
    ("apriel", ToolFormat::Apriel),
    ("minimax", ToolFormat::Apriel),
    ("granite", ToolFormat::Granite3),
    ("command_r7b", ToolFormat::CommandR7b),
    ("deepseek_v3", ToolFormat::DeepSeekV3),
    ("deepseek_v31", ToolFormat::DeepSeekV31),
    ("deepseek_v32", ToolFormat::DeepSeekV32),
    ("kimi_k2", ToolFormat::KimiK2),
    ("qwen3_coder", ToolFormat::Qwen3Coder),
    ("qwen3_xml", ToolFormat::Qwen3Coder),
    ("seed_oss", ToolFormat::SeedOss),
    ("glm45", ToolFormat::Glm45),
    ("glm47", ToolFormat::Glm45),
    ("minimax_m2", ToolFormat::MinimaxM2),
    ("pythonic", ToolFormat::Pythonic),
    ("llama4_pythonic", ToolFormat::Pythonic),
    ("lfm2", ToolFormat::Lfm2),
    ("gemma4", ToolFormat::Gemma4),
    ("openai", ToolFormat::Harmony),
    ("json", ToolFormat::Json),
];

/// A name that no parser has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} parser {name:?}; expected one of {known}")]
pub struct UnknownParser {
    /// What it would parse.
    pub what: &'static str,
    /// The name that was requested.
    pub name: String,
    /// The names that exist.
    pub known: String,
}

impl ToolFormat {
    /// The format that a chat template teaches its model, if it is a known one.
    pub fn detect(template: &str) -> Option<Self> {
        let has = |text| template.contains(text);
        let json_arguments =
            has(r#""arguments""#) || has(r#"\"arguments\""#) || has(r#"'arguments'"#);
        // Some models put XML, not JSON, between the same markers.
        // Some models put XML, not JSON, between the same markers.
        let xml = has("<function=") || has("<arg_key>") || has("<parameter ");
        let marked = has("<tool_call>") && has("</tool_call>");
        // A mark that no other format has.
        let of_one = [
            ("<|channel|>commentary", Self::Harmony),
            ("[TOOL_CALLS]", Self::Mistral),
            ("<TOOLCALL>", Self::Nemotron),
            ("<seed:tool_call>", Self::SeedOss),
            ("<minimax:tool_call>", Self::MinimaxM2),
            ("｜DSML｜", Self::DeepSeekV32),
            ("<|tool_call_argument_begin|>", Self::KimiK2),
            ("<|START_ACTION|>", Self::CommandR7b),
            ("<|tool_list_start|>", Self::Lfm2),
            ("<|tool_call_start|>", Self::Lfm2),
            ("<|tool_call>call:", Self::Gemma4),
            ("<|tool_call|>", Self::Granite3),
            ("<|python_start|>", Self::Pythonic),
        ];
        if let Some((_, format)) = of_one.iter().find(|(mark, _)| has(mark)) {
            Some(*format)
        } else if has("<｜tool▁call▁begin｜>") {
            Some(if has("```json") { Self::DeepSeekV3 } else { Self::DeepSeekV31 })
        } else if marked && has("<arg_key>") {
            Some(Self::Glm45)
        } else if marked && has("<function=") {
            Some(Self::Qwen3Coder)
        } else if has("</tool_calls>") && json_arguments && !xml {
            Some(Self::Apriel)
        } else if marked && json_arguments && !xml {
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
        if self == Self::Harmony {
            return harmony::MARKERS.to_vec();
        }
        let Syntax { open, close, section, named, notation, .. } = self.syntax();
        let mut markers: Vec<&'static str> = open.iter().chain(close).copied().collect();
        markers.extend(section.iter().flatten());
        markers.extend(named.iter().flat_map(|infix| [infix.id, infix.arguments]));
        match notation {
            Notation::Gemma => markers.push(gemma::QUOTE),
            // It stands within the marks of DeepSeek, and is a token of its own.
            Notation::Elements(marks) if marks.close.contains(DSML) => markers.push(DSML),
            Notation::Elements(marks) => {
                markers.extend([marks.key_open, marks.key_end, marks.value_open, marks.value_end]);
            }
            Notation::Json | Notation::Python => {}
        }
        if self == Self::DeepSeekV3 {
            markers.push("<｜tool▁sep｜>");
        }
        markers.retain(|marker| !marker.is_empty());
        markers
    }

    /// The marks of calls; [`Self::Harmony`], whose calls are messages, has those of JSON.
    pub(crate) fn syntax(self) -> &'static Syntax {
        match self {
            Self::Hermes => &HERMES,
            Self::Llama3Json => &LLAMA3,
            Self::Mistral => &MISTRAL,
            Self::Nemotron => &NEMOTRON,
            Self::Apriel => &APRIEL,
            Self::Granite3 => &GRANITE3,
            Self::CommandR7b => &COMMAND_R7B,
            Self::DeepSeekV3 => &DEEPSEEK_V3,
            Self::DeepSeekV31 => &DEEPSEEK_V31,
            Self::DeepSeekV32 => &DEEPSEEK_V32,
            Self::KimiK2 => &KIMI_K2,
            Self::Qwen3Coder => &QWEN3_CODER,
            Self::SeedOss => &SEED_OSS,
            Self::Glm45 => &GLM45,
            Self::MinimaxM2 => &MINIMAX_M2,
            Self::Pythonic => &PYTHONIC,
            Self::Lfm2 => &LFM2,
            Self::Gemma4 => &GEMMA4,
            Self::Harmony | Self::Json => &JSON,
        }
    }
}

impl FromStr for ToolFormat {
    type Err = UnknownParser;

    /// Reads a name as `--tool-parser` takes it, with vLLM's names.
    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| *format).ok_or_else(|| UnknownParser {
            what: "tool call",
            name: name.to_owned(),
            known: NAMES.map(|(name, _)| name).join(", "),
        })
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
        check(
            "<tool_call>\n<function=f>\n</function>\n</tool_call> \"arguments\"",
            Some(ToolFormat::Qwen3Coder),
        );
        check(
            "<tool_call>f\n<arg_key>a</arg_key></tool_call> 'arguments'",
            Some(ToolFormat::Glm45),
        );
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
        use ToolFormat::{Gemma4, Hermes, Json, Mistral};
        for (name, want) in NAMES {
            assert_eq!(name.parse(), Ok(want));
        }
        let error = "xml".parse::<ToolFormat>().unwrap_err().to_string();
        assert!(
            error.starts_with("unknown tool call parser \"xml\"; expected one of hermes, "),
            "{error}"
        );
        assert_eq!(Gemma4.markers(), ["<|tool_call>", "<tool_call|>", "<|\"|>"]);
        assert_eq!(Mistral.markers(), ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]);
        assert_eq!(Hermes.markers(), ["<tool_call>", "</tool_call>"]);
        assert_eq!(Json.markers(), Hermes.markers());
    }
}
