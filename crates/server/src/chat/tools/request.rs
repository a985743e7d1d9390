//! The tools of a request: `tools`, `tool_choice` and `parallel_tool_calls`, checked.

use serde_json::{Map, Value, json};
use std::collections::HashSet;

use crate::fields::{Fields, InvalidRequest};
use crate::ignored::{Api, is_ignored};

/// The longest name of a function.
const MAX_NAME_LEN: usize = 128;

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name: letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub parameters: Value,
    /// The request insists on arguments that meet the schema. Those of a forced call always do;
    /// a call that the model makes of itself is not checked here.
    pub strict: bool,
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

impl ToolChoice {
    /// The choice as the `tool_choice` of a chat request.
    pub fn to_chat(&self) -> Value {
        match self {
            Self::None => json!("none"),
            Self::Auto => json!("auto"),
            Self::Required => json!("required"),
            Self::Function(name) => json!({"type": "function", "function": {"name": name}}),
        }
    }
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
    fn of<'a>(self, tool: Fields<'a>) -> Result<Fields<'a>, InvalidRequest> {
        match self {
            Self::Member => Fields::of(tool.require("function")?, tool.path("function")),
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

    /// The functions that `allowed_tools` lists, with the paths of their names.
    fn names(self, list: &Fields<'_>) -> Result<Vec<(String, String)>, InvalidRequest> {
        list.require("tools")?;
        let tools = list.objects("tools")?;
        tools.into_iter().try_fold(Vec::new(), |mut names, tool| {
            let kind = tool.require_str("type")?;
            if kind != "function" {
                let found = format!("the tool type {kind:?}");
                return Err(InvalidRequest::unsupported(tool.path("type"), found, "\"function\""));
            }
            let function = self.of(tool)?;
            names.push((function.path("name"), function.require_str("name")?.to_owned()));
            Ok(names)
        })
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
            let kind = tool.require_str("type")?;
            if place.leaves_out(kind) {
                continue;
            }
            if kind != "function" {
                let found = format!("the tool type {kind:?}");
                return Err(InvalidRequest::unsupported(tool.path("type"), found, "\"function\""));
            }
            functions.push(Function::read(&place.of(tool)?, "parameters")?);
        }
        let mut name_path = String::new();
        let mut allowed = None;
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
                    "function" => {
                        let function = place.of(choice)?;
                        name_path = function.path("name");
                        ToolChoice::Function(function.require_str("name")?.to_owned())
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
                        let accepted = "\"function\", \"allowed_tools\"";
                        return Err(InvalidRequest::unsupported(
                            choice.path("type"),
                            found,
                            accepted,
                        ));
                    }
                }
            }
        };
        // The model sees no others, so it calls no others.
        if let Some(allowed) = allowed {
            for (path, name) in &allowed {
                if !functions.iter().any(|f| f.name == *name) {
                    let expected = "the name of a function in tools";
                    return Err(InvalidRequest::value(path.clone(), expected, &json!(name)));
                }
            }
            functions.retain(|f| allowed.iter().any(|(_, name)| *name == f.name));
        }
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
        self.may_call().then(|| self.functions.iter().map(Function::to_chat).collect())
    }
}

impl Function {
    /// A function with this JSON schema of its arguments.
    pub fn new(name: impl Into<String>, parameters: Value) -> Self {
        Self { name: name.into(), description: None, parameters, strict: false }
    }

    /// Reads a function whose schema is called `parameters` or, with Anthropic, `input_schema`.
    pub(crate) fn read(fields: &Fields<'_>, schema: &str) -> Result<Self, InvalidRequest> {
        let name = fields.require_str("name")?;
        let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if name.is_empty() || name.len() > MAX_NAME_LEN || !name.bytes().all(ok) {
            let expected = format!("1 to {MAX_NAME_LEN} letters, digits, '_', '-' and '.'");
            return Err(InvalidRequest::value(fields.path("name"), expected, &json!(name)));
        }
        let strict = fields.bool("strict")?.unwrap_or(false);
        let parameters = match fields.get(schema) {
            None => json!({"type": "object", "properties": {}}),
            Some(parameters) => {
                let kind = Fields::of(parameters, fields.path(schema))?;
                kind.only("type", &[json!("object")])?;
                parameters.clone()
            }
        };
        let description = fields.str("description")?.map(str::to_owned);
        Ok(Self { name: name.to_owned(), description, parameters, strict })
    }

    /// The function as a tool of a chat request.
    pub fn to_chat(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), json!(self.name));
        if let Some(description) = &self.description {
            function.insert("description".to_owned(), json!(description));
        }
        function.insert("parameters".to_owned(), self.parameters.clone());
        json!({"type": "function", "function": function})
    }
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
        assert_eq!(bare.parameters, json!({"type": "object", "properties": {}}));
        assert!(!bare.strict);
        let strict = json!({"type": "function", "function": {"name": "f", "strict": true}});
        assert!(read(&json!({"tools": [strict]})).unwrap().functions[0].strict);
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
        check(choice(json!({"type": "custom"})), "tool_choice.type", "not supported");
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
