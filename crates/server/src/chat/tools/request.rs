//! The tools of a request: `tools`, `tool_choice` and `parallel_tool_calls`, checked.

use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::sync::LazyLock;

use crate::chat::delta::CallKind;
use crate::fields::{Fields, InvalidRequest};
use crate::ignored::{Api, is_ignored};

/// The longest name of a function.
pub(crate) const MAX_NAME_LEN: usize = 128;

/// The only parameter of a custom tool, as templates and formats see it.
pub(crate) const INPUT: &str = "input";

/// The schema of a custom tool's arguments, as templates and formats see them.
static TEXT_PARAMETERS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": false,
    })
});

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name: letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// What a call of it has for input.
    pub input: ToolInput,
    /// The request insists on arguments that meet the schema. Those of a forced call always do;
    /// a call that the model makes of itself is not checked here.
    pub strict: bool,
}

/// What a call of a function has for input.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolInput {
    /// Arguments: a JSON object that has this schema.
    Parameters(Value),
    /// A text, by a grammar if there is one: the input of a tool of the type `custom`. The model
    /// is shown a function with one parameter `input`, and its calls are read back as the text of it.
    Text(Option<TextGrammar>),
}

/// The grammar of a custom tool's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextGrammar {
    /// In Lark's notation.
    Lark(String),
    /// A regular expression, which the whole input matches.
    Regex(String),
}

/// Of a tool, or of the choice of one, by its type.
fn kind_of(tool: &Fields<'_>) -> Result<CallKind, InvalidRequest> {
    match tool.require_str("type")? {
        "function" => Ok(CallKind::Function),
        "custom" => Ok(CallKind::Custom),
        kind => {
            let (found, accepted) = (format!("the tool type {kind:?}"), "\"function\", \"custom\"");
            Err(InvalidRequest::unsupported(tool.path("type"), found, accepted))
        }
    }
}

/// Whether the model is to call a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// It must not; the template does not even get the tools.
    None,
    /// It may.
    #[default]
    Auto,
    /// It must call at least one.
    Required,
    /// It must call this one.
    Function(String),
}

/// Where a tool, or the choice of one, describes its function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FunctionAt {
    /// In its member `function`, as in chat completions.
    Member,
    /// In itself, as in responses.
    Itself,
}

impl FunctionAt {
    fn of<'a>(self, tool: Fields<'a>, kind: CallKind) -> Result<Fields<'a>, InvalidRequest> {
        match self {
            Self::Member => Fields::of(tool.require(kind.name())?, tool.path(kind.name())),
            Self::Itself => Ok(tool),
        }
    }

    /// Whether tools of a type are left out on purpose.
    fn leaves_out(self, kind: &str) -> bool {
        let api = match self {
            Self::Member => Api::Chat,
            Self::Itself => Api::Responses,
        };
        is_ignored(api, "tools[].type", kind)
    }

    /// The tool that a choice names.
    fn named(self, choice: Fields<'_>) -> Result<Named, InvalidRequest> {
        let kind = kind_of(&choice)?;
        let function = self.of(choice, kind)?;
        let (path, name) = (function.path("name"), function.require_str("name")?.to_owned());
        Ok(Named { kind, path, name })
    }

    /// The tools that `allowed_tools` lists.
    fn names(self, list: &Fields<'_>) -> Result<Vec<Named>, InvalidRequest> {
        list.require("tools")?;
        list.objects("tools")?.into_iter().map(|tool| self.named(tool)).collect()
    }
}

/// The tool that a choice names, and where it does.
struct Named {
    kind: CallKind,
    path: String,
    name: String,
}

impl Named {
    fn is(&self, function: &Function) -> bool {
        function.kind() == self.kind && function.name == self.name
    }

    /// Fails if there is no such tool.
    fn check(&self, functions: &[Function]) -> Result<(), InvalidRequest> {
        if functions.iter().any(|function| self.is(function)) {
            return Ok(());
        }
        let what = match self.kind {
            CallKind::Function => "a function",
            CallKind::Custom => "a custom tool",
        };
        let expected = format!("the name of {what} in tools");
        Err(InvalidRequest::value(self.path.clone(), expected, &json!(self.name)))
    }
}

/// What a request says of tools.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRequest {
    /// The functions.
    pub functions: Vec<Function>,
    /// Whether one is to be called.
    pub choice: ToolChoice,
    /// Whether there may be several calls in one answer.
    pub parallel: bool,
}

impl Default for ToolRequest {
    fn default() -> Self {
        Self { functions: Vec::new(), choice: ToolChoice::Auto, parallel: true }
    }
}

impl ToolRequest {
    /// The fields of a chat request that [`Self::from_chat`] reads.
    pub(crate) const FIELDS: [&str; 3] = ["parallel_tool_calls", "tool_choice", "tools"];

    /// Reads the three fields of a chat request.
    ///
    /// Fails, naming the parameter, on a tool that is not a function, a name that is malformed or
    /// there twice, parameters that are not a schema, and a choice that the tools do not offer.
    pub fn from_chat(body: &Map<String, Value>) -> Result<Self, InvalidRequest> {
        Self::read(&Fields::root(body), FunctionAt::Member)
    }

    /// As [`Self::from_chat`], of a request whose functions lie elsewhere.
    pub(crate) fn read(body: &Fields<'_>, place: FunctionAt) -> Result<Self, InvalidRequest> {
        let mut functions = Vec::new();
        for tool in body.objects("tools")? {
            if place.leaves_out(tool.require_str("type")?) {
                continue;
            }
            let kind = kind_of(&tool)?;
            let fields = place.of(tool, kind)?;
            functions.push(match kind {
                CallKind::Function => Function::read(&fields, "parameters")?,
                CallKind::Custom => Function::read_custom(&fields)?,
            });
        }
        let (mut named, mut allowed) = (None, None);
        let choice = match body.get("tool_choice") {
            None => ToolChoice::Auto,
            Some(Value::String(choice)) => match choice.as_str() {
                "none" => ToolChoice::None,
                "auto" => ToolChoice::Auto,
                "required" => ToolChoice::Required,
                _ => {
                    let expected = "\"none\", \"auto\", \"required\" or a function";
                    return Err(InvalidRequest::value("tool_choice", expected, &json!(choice)));
                }
            },
            Some(choice) => {
                let choice = Fields::of(choice, "tool_choice".to_owned())?;
                match choice.require_str("type")? {
                    "function" | "custom" => {
                        let choice = named.insert(place.named(choice)?);
                        ToolChoice::Function(choice.name.clone())
                    }
                    "allowed_tools" => {
                        let list = match place {
                            FunctionAt::Member => Fields::of(
                                choice.require("allowed_tools")?,
                                choice.path("allowed_tools"),
                            )?,
                            FunctionAt::Itself => choice,
                        };
                        let choice = match list.require_str("mode")? {
                            "auto" => ToolChoice::Auto,
                            "required" => ToolChoice::Required,
                            mode => {
                                let expected = "\"auto\" or \"required\"";
                                let path = list.path("mode");
                                return Err(InvalidRequest::value(path, expected, &json!(mode)));
                            }
                        };
                        allowed = Some(place.names(&list)?);
                        choice
                    }
                    kind => {
                        let found = format!("the choice {kind:?}");
                        let accepted = "\"function\", \"custom\", \"allowed_tools\"";
                        return Err(InvalidRequest::unsupported(
                            choice.path("type"),
                            found,
                            accepted,
                        ));
                    }
                }
            }
        };
        let chosen = named.iter().chain(allowed.iter().flatten());
        chosen.into_iter().try_for_each(|named| named.check(&functions))?;
        // The model sees no others, so it calls no others.
        if let Some(allowed) = allowed {
            functions.retain(|function| allowed.iter().any(|named| named.is(function)));
        }
        let name_path = named.map(|named| named.path).unwrap_or_default();
        let parallel = body.bool("parallel_tool_calls")?.unwrap_or(true);
        Self::new(functions, choice, parallel, "tools", "tool_choice", &name_path)
    }

    /// Checks functions that were read and a choice among them, with the paths of their parameters.
    pub(crate) fn new(
        functions: Vec<Function>,
        choice: ToolChoice,
        parallel: bool,
        tools: &str,
        choice_path: &str,
        name_path: &str,
    ) -> Result<Self, InvalidRequest> {
        let mut names = HashSet::new();
        for (idx, function) in functions.iter().enumerate() {
            if !names.insert(function.name.as_str()) {
                let path = format!("{tools}[{idx}]");
                let found = &json!(function.name);
                return Err(InvalidRequest::value(path, "a unique name", found));
            }
        }
        match &choice {
            ToolChoice::Required if functions.is_empty() => Err(InvalidRequest::Value {
                param: choice_path.to_owned(),
                expected: format!("{tools} to choose from"),
                found: "none".to_owned(),
            }),
            ToolChoice::Function(name) if !functions.iter().any(|f| f.name == *name) => {
                let expected = format!("the name of a function in {tools}");
                Err(InvalidRequest::value(name_path, expected, &json!(name)))
            }
            _ => Ok(Self { functions, choice, parallel }),
        }
    }

    /// Whether the answer may have tool calls.
    pub fn may_call(&self) -> bool {
        !self.functions.is_empty() && self.choice != ToolChoice::None
    }

    /// Whether the answer must be a tool call, so that [`tool_schema`](super::tool_schema)
    /// constrains it.
    pub fn must_call(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Function(_))
    }

    /// The tools as chat templates take them, or `None` if the model is not to know of any.
    pub fn for_template(&self) -> Option<Vec<Value>> {
        self.may_call().then(|| self.functions.iter().map(Function::for_template).collect())
    }

    /// The choice as the `tool_choice` of a chat request.
    pub(crate) fn choice_to_chat(&self) -> Value {
        match &self.choice {
            ToolChoice::None => json!("none"),
            ToolChoice::Auto => json!("auto"),
            ToolChoice::Required => json!("required"),
            ToolChoice::Function(name) => {
                let function = self.functions.iter().find(|f| f.name == *name);
                let kind = function.map(Function::kind).unwrap_or_default().name();
                json!({"type": kind, kind: {"name": name}})
            }
        }
    }
}

impl Function {
    /// A function with this JSON schema of its arguments.
    pub fn new(name: impl Into<String>, parameters: Value) -> Self {
        let input = ToolInput::Parameters(parameters);
        Self { name: name.into(), description: None, input, strict: false }
    }

    /// A custom tool, whose input is a text by this grammar.
    pub fn custom(name: impl Into<String>, grammar: Option<TextGrammar>) -> Self {
        let input = ToolInput::Text(grammar);
        Self { name: name.into(), description: None, input, strict: false }
    }

    /// Reads a function whose schema is called `parameters` or, with Anthropic, `input_schema`.
    pub(crate) fn read(fields: &Fields<'_>, schema: &str) -> Result<Self, InvalidRequest> {
        let name = read_name(fields)?;
        let strict = fields.bool("strict")?.unwrap_or(false);
        let parameters = match fields.get(schema) {
            None => json!({"type": "object", "properties": {}}),
            Some(parameters) => {
                let kind = Fields::of(parameters, fields.path(schema))?;
                kind.only("type", &[json!("object"), json!(["object"])])?;
                let mut parameters = parameters.clone();
                // As templates expect it.
                if let Some(name) = parameters.get_mut("type") {
                    *name = json!("object");
                }
                parameters
            }
        };
        let description = fields.str("description")?.map(str::to_owned);
        Ok(Self { description, strict, ..Self::new(name, parameters) })
    }

    /// Reads a custom tool. Its grammar stands in `format` as in responses, or in a member
    /// `grammar` of it as in chat completions.
    pub(crate) fn read_custom(fields: &Fields<'_>) -> Result<Self, InvalidRequest> {
        let name = read_name(fields)?;
        let description = fields.str("description")?.map(str::to_owned);
        let grammar = match fields.object("format")? {
            None => None,
            Some(format) => match format.require_str("type")? {
                "text" => None,
                "grammar" => {
                    let grammar = format.object("grammar")?.unwrap_or(format);
                    let syntax = grammar.require_str("syntax")?;
                    let text = grammar.require_str("definition")?.to_owned();
                    Some(match syntax {
                        "lark" => TextGrammar::Lark(text),
                        "regex" => TextGrammar::Regex(text),
                        other => {
                            let (path, expected) =
                                (grammar.path("syntax"), "\"lark\" or \"regex\"");
                            return Err(InvalidRequest::value(path, expected, &json!(other)));
                        }
                    })
                }
                other => {
                    let (found, accepted) =
                        (format!("the format {other:?}"), "\"text\", \"grammar\"");
                    return Err(InvalidRequest::unsupported(format.path("type"), found, accepted));
                }
            },
        };
        Ok(Self { description, ..Self::custom(name, grammar) })
    }

    /// Which kind of tool it is.
    pub fn kind(&self) -> CallKind {
        match self.input {
            ToolInput::Parameters(_) => CallKind::Function,
            ToolInput::Text(_) => CallKind::Custom,
        }
    }

    /// The JSON schema of its arguments, as templates and formats see them.
    pub fn parameters(&self) -> &Value {
        match &self.input {
            ToolInput::Parameters(parameters) => parameters,
            ToolInput::Text(_) => &TEXT_PARAMETERS,
        }
    }

    /// The tool as a chat request has it.
    pub fn to_chat(&self) -> Value {
        let kind = self.kind().name();
        let mut tool = Map::new();
        tool.insert("name".to_owned(), json!(self.name));
        if let Some(description) = &self.description {
            tool.insert("description".to_owned(), json!(description));
        }
        match &self.input {
            ToolInput::Parameters(parameters) => {
                tool.insert("parameters".to_owned(), parameters.clone());
            }
            ToolInput::Text(None) => {}
            ToolInput::Text(Some(grammar)) => {
                let (syntax, definition) = grammar.parts();
                let grammar = json!({"syntax": syntax, "definition": definition});
                let format = json!({"type": "grammar", "grammar": grammar});
                tool.insert("format".to_owned(), format);
            }
        }
        if self.strict {
            tool.insert("strict".to_owned(), json!(true));
        }
        json!({"type": kind, kind: tool})
    }

    /// The tool as chat templates take it: a function, in any case.
    fn for_template(&self) -> Value {
        let description = match &self.input {
            ToolInput::Text(Some(grammar)) => {
                let name = match grammar {
                    TextGrammar::Lark(_) => "Lark grammar",
                    TextGrammar::Regex(_) => "regular expression",
                };
                let (_, definition) = grammar.parts();
                let format = format!("The text of `{INPUT}` follows this {name}:\n{definition}");
                let own = self.description.iter().cloned();
                Some(own.chain([format]).collect::<Vec<_>>().join("\n\n"))
            }
            ToolInput::Parameters(_) | ToolInput::Text(None) => self.description.clone(),
        };
        Self { description, ..Self::new(self.name.as_str(), self.parameters().clone()) }.to_chat()
    }
}

impl TextGrammar {
    /// The names of its notation, and its text.
    fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Lark(text) => ("lark", text),
            Self::Regex(text) => ("regex", text),
        }
    }
}

/// Whether a byte may be in the name of a function.
pub(crate) fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

fn read_name<'a>(fields: &Fields<'a>) -> Result<&'a str, InvalidRequest> {
    let name = fields.require_str("name")?;
    if name.is_empty() || name.len() > MAX_NAME_LEN || !name.bytes().all(in_name) {
        let expected = format!("1 to {MAX_NAME_LEN} letters, digits, '_', '-' and '.'");
        return Err(InvalidRequest::value(fields.path("name"), expected, &json!(name)));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<ToolRequest, InvalidRequest> {
        ToolRequest::from_chat(body.as_object().unwrap())
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    fn names(request: &ToolRequest) -> Vec<&str> {
        request.functions.iter().map(|function| function.name.as_str()).collect()
    }

    #[test]
    fn only_allowed_functions_are_left() {
        let tools = json!([tool("f"), tool("g"), tool("h")]);
        for (mode, want) in [("auto", ToolChoice::Auto), ("required", ToolChoice::Required)] {
            let list = json!({"mode": mode, "tools": [tool("h"), tool("f")]});
            let choice = json!({"type": "allowed_tools", "allowed_tools": list});
            let request = read(&json!({"tools": tools, "tool_choice": choice})).unwrap();
            assert_eq!((names(&request), &request.choice), (vec!["f", "h"], &want));
            // The responses API names them in place.
            let own = |name: &str| json!({"type": "function", "name": name});
            let choice = json!({"type": "allowed_tools", "mode": mode, "tools": [own("g")]});
            let body = json!({"tools": [own("f"), own("g")], "tool_choice": choice});
            let fields = Fields::root(body.as_object().unwrap());
            let request = ToolRequest::read(&fields, FunctionAt::Itself).unwrap();
            assert_eq!((names(&request), &request.choice), (vec!["g"], &want));
        }
    }

    #[test]
    fn choices_are_read() {
        let check = |choice: Value, want: ToolChoice, may: bool, must: bool| {
            let body = json!({"tools": [tool("f"), tool("g.h-1")], "tool_choice": choice});
            let request = read(&body).unwrap();
            assert_eq!(request.choice, want);
            assert_eq!((request.may_call(), request.must_call()), (may, must), "{choice}");
            assert_eq!(request.for_template().is_some(), may);
            assert_eq!(names(&request), ["f", "g.h-1"]);
        };
        check(Value::Null, ToolChoice::Auto, true, false);
        check(json!("auto"), ToolChoice::Auto, true, false);
        check(json!("none"), ToolChoice::None, false, false);
        check(json!("required"), ToolChoice::Required, true, true);
        check(tool("f"), ToolChoice::Function("f".to_owned()), true, true);
        let default = ToolRequest::default();
        assert_eq!(read(&json!({})).unwrap(), default);
        assert_eq!(read(&json!({"tools": [], "tool_choice": "auto"})).unwrap(), default);
        assert!(!read(&json!({"parallel_tool_calls": false})).unwrap().parallel);
    }

    #[test]
    fn templates_see_the_tools_as_they_were_sent() {
        let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
        let sent = json!([
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
        ]);
        let request = read(&json!({"tools": sent})).unwrap();
        assert_eq!(json!(request.for_template()).to_string(), sent.to_string());
        let bare = read(&json!({"tools": [tool("f")]})).unwrap().functions.remove(0);
        assert_eq!(*bare.parameters(), json!({"type": "object", "properties": {}}));
        assert!(!bare.strict);
        // As some generators of schemas write it; templates ask for the name itself.
        let listed = json!({"type": "function", "function": {"name": "f", "parameters": {"type": ["object"]}}});
        let listed = read(&json!({"tools": [listed]})).unwrap().functions.remove(0);
        assert_eq!(*listed.parameters(), json!({"type": "object"}));
        let strict = json!({"type": "function", "function": {"name": "f", "strict": true}});
        let strict = read(&json!({"tools": [strict]})).unwrap();
        assert!(strict.functions[0].strict);
        assert_eq!(strict.for_template().unwrap()[0]["function"]["strict"], Value::Null);
    }

    #[test]
    fn custom_tools_are_functions_of_one_text() {
        let grammar = json!({"syntax": "lark", "definition": "start: \"a\"+"});
        let format = json!({"type": "grammar", "grammar": grammar});
        let lark = json!({"name": "patch", "description": "Edits.", "format": format});
        let tools = json!([
            {"type": "custom", "custom": lark},
            {"type": "custom", "custom": {"name": "say", "format": {"type": "text"}}},
            {"type": "function", "function": {"name": "f", "strict": true, "parameters": {}}},
        ]);
        let choice = json!({"type": "custom", "custom": {"name": "patch"}});
        let request = read(&json!({"tools": tools, "tool_choice": choice})).unwrap();
        let lark = TextGrammar::Lark("start: \"a\"+".to_owned());
        assert_eq!(request.functions[0].input, ToolInput::Text(Some(lark)));
        assert_eq!(request.functions[1].input, ToolInput::Text(None));
        let kinds: Vec<CallKind> = request.functions.iter().map(Function::kind).collect();
        assert_eq!(kinds, [CallKind::Custom, CallKind::Custom, CallKind::Function]);
        // What a dialect writes is what chat completions read.
        let chat: Vec<Value> = request.functions.iter().map(Function::to_chat).collect();
        let body = json!({"tools": chat, "tool_choice": request.choice_to_chat()});
        assert_eq!(read(&body).unwrap(), request);
        let shown = request.for_template().unwrap();
        let text = json!({"type": "object", "properties": {"input": {"type": "string"}},
                          "required": ["input"], "additionalProperties": false});
        let description = "Edits.\n\nThe text of `input` follows this Lark grammar:\nstart: \"a\"+";
        assert_eq!(
            shown[0],
            json!({"type": "function", "function": {
                "name": "patch", "description": description, "parameters": text}})
        );
        assert_eq!(shown[1]["function"], json!({"name": "say", "parameters": text}));
        // Responses describe them in place.
        let format = json!({"type": "grammar", "syntax": "regex", "definition": "a+"});
        let own = json!({"type": "custom", "name": "g", "format": format});
        let allowed = json!([{"type": "custom", "name": "g"}]);
        let choice = json!({"type": "allowed_tools", "mode": "required", "tools": allowed});
        let body = json!({"tools": [own], "tool_choice": choice});
        let fields = Fields::root(body.as_object().unwrap());
        let request = ToolRequest::read(&fields, FunctionAt::Itself).unwrap();
        let regex = Some(TextGrammar::Regex("a+".to_owned()));
        assert_eq!(request.functions, [Function::custom("g", regex)]);
        assert_eq!(request.choice, ToolChoice::Required);
    }

    #[test]
    fn errors_name_the_parameter() {
        let check = |body: Value, param: &str, problem: &str| {
            let error = read(&body).unwrap_err();
            assert_eq!(error.param(), param, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        };
        let function = |function: Value| json!({"type": "function", "function": function});
        let tools = |second: Value| json!({"tools": [tool("f"), second]});
        check(json!({"tools": {}}), "tools", "an array");
        check(json!({"tools": ["f"]}), "tools[0]", "an object");
        check(tools(json!({"type": "web_search"})), "tools[1].type", "\"web_search\" is not");
        check(tools(json!({})), "tools[1].type", "required");
        check(tools(json!({"type": "function"})), "tools[1].function", "required");
        check(tools(function(json!({}))), "tools[1].function.name", "required");
        check(tools(tool("a b")), "tools[1].function.name", "letters");
        check(tools(tool("")), "tools[1].function.name", "letters");
        check(tools(tool("f")), "tools[1]", "a unique name");
        check(
            tools(function(json!({"name": "g", "parameters": []}))),
            "tools[1].function.parameters",
            "an object",
        );
        check(
            tools(function(json!({"name": "g", "parameters": {"type": "array"}}))),
            "tools[1].function.parameters.type",
            "\"array\" is not",
        );
        check(
            tools(function(json!({"name": "g", "description": 1}))),
            "tools[1].function.description",
            "a string",
        );
        let choice = |choice: Value| json!({"tools": [tool("f")], "tool_choice": choice});
        check(choice(json!("any")), "tool_choice", "\"required\"");
        check(choice(json!(1)), "tool_choice", "an object");
        check(choice(json!({"type": "mcp"})), "tool_choice.type", "not supported");
        check(choice(json!({"type": "custom"})), "tool_choice.custom", "required");
        let custom = choice(json!({"type": "custom", "custom": {"name": "f"}}));
        check(custom, "tool_choice.custom.name", "a custom tool in tools");
        let custom = |format: Value| {
            tools(json!({"type": "custom", "custom": {"name": "g", "format": format}}))
        };
        let path = "tools[1].custom.format";
        check(custom(json!({})), &format!("{path}.type"), "required");
        check(custom(json!({"type": "json"})), &format!("{path}.type"), "the format \"json\"");
        check(custom(json!({"type": "grammar"})), &format!("{path}.syntax"), "required");
        let grammar = json!({"syntax": "gbnf", "definition": "x"});
        let nested = json!({"type": "grammar", "grammar": grammar});
        check(custom(nested), &format!("{path}.grammar.syntax"), "\"lark\" or \"regex\"");
        let lark = json!({"type": "grammar", "syntax": "lark"});
        check(custom(lark), &format!("{path}.definition"), "required");
        let allowed = |list: Value| choice(json!({"type": "allowed_tools", "allowed_tools": list}));
        let path = "tool_choice.allowed_tools";
        check(choice(json!({"type": "allowed_tools"})), path, "required");
        check(allowed(json!({"mode": "any"})), &format!("{path}.mode"), "\"required\"");
        let null = json!({"mode": "auto", "tools": null});
        check(allowed(null), &format!("{path}.tools"), "required");
        let other = json!({"mode": "auto", "tools": [tool("g")]});
        check(allowed(other), &format!("{path}.tools[0].function.name"), "function in tools");
        let none = json!({"mode": "required", "tools": []});
        check(allowed(none), "tool_choice", "tools to choose from");
        check(choice(tool("g")), "tool_choice.function.name", "function in tools");
        check(json!({"tool_choice": "required"}), "tool_choice", "tools to choose from");
        check(json!({"parallel_tool_calls": 1}), "parallel_tool_calls", "true or false");
    }
}
