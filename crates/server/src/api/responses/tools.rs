//! The tools of a request for responses.
//!
//! A namespace brings its functions, which the model knows as `NAMESPACE__NAME`. Tools that others
//! run are left out by the table of what is ignored.

use crate::chat::tools::{Function, FunctionAt, MAX_NAME_LEN, ToolRequest, in_name};
use crate::fields::{Fields, InvalidRequest};
use crate::ignored::{Api, is_ignored};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// The tools that lie in namespaces, by the names under which the model knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolNames(HashMap<String, Namespaced>);

/// A tool of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Namespaced {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl ToolNames {
    /// Puts the name of a called tool, and its namespace if it lies in one, into an item.
    pub(super) fn name_into(&self, flat: &str, item: &mut Value) {
        match self.0.get(flat) {
            Some(Namespaced { namespace, name }) => {
                item["name"] = json!(name);
                item["namespace"] = json!(namespace);
            }
            None => item["name"] = json!(flat),
        }
    }

    /// The name of a called tool in its namespace.
    pub(super) fn name<'a>(&'a self, flat: &'a str) -> &'a str {
        self.0.get(flat).map_or(flat, |tool| &tool.name)
    }
}

/// The name under which the model knows a tool of a namespace.
pub(super) fn flat_name(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

/// Reads `tools`, those of items that add some, and `tool_choice`.
///
/// Fails, naming the parameter, on a tool that cannot be offered, two of one name, and a choice
/// that is not among those that the model is shown.
pub(super) fn read(
    fields: &Fields<'_>,
    additional: &[Fields<'_>],
) -> Result<(ToolRequest, ToolNames), InvalidRequest> {
    let mut reader = Reader::default();
    for tool in fields.objects("tools")? {
        reader.tool(&tool)?;
    }
    for item in additional {
        item.require("tools")?;
        for tool in item.objects("tools")? {
            reader.tool(&tool)?;
        }
    }
    let mut body = Map::new();
    body.insert("tools".to_owned(), Value::Array(reader.tools));
    for key in ["tool_choice", "parallel_tool_calls"] {
        if let Some(value) = fields.get(key) {
            body.insert(key.to_owned(), value.clone());
        }
    }
    if let Some(choice) = body.get_mut("tool_choice") {
        flatten_choice(choice)?;
    }
    let request = ToolRequest::read(&Fields::root(&body), FunctionAt::Itself)?;
    Ok((request, reader.names))
}

/// Reads tools into a flat list of those that the model is shown.
#[derive(Default)]
struct Reader {
    tools: Vec<Value>,
    names: ToolNames,
    taken: HashSet<String>,
}

impl Reader {
    fn tool(&mut self, tool: &Fields<'_>) -> Result<(), InvalidRequest> {
        match tool.require_str("type")? {
            "namespace" => self.namespace(tool),
            kind if is_ignored(Api::Responses, "tools[].type", kind) => Ok(()),
            _ => {
                let (name, shown) = read_one(tool)?;
                self.add(&name, tool, shown)
            }
        }
    }

    fn namespace(&mut self, group: &Fields<'_>) -> Result<(), InvalidRequest> {
        let namespace = group.require_str("name")?;
        let mut description = group.str("description")?;
        group.require("tools")?;
        for tool in group.objects("tools")? {
            let (name, mut shown) = read_one(&tool)?;
            let flat = flat_name(namespace, &name);
            shown["name"] = json!(flat);
            if flat.len() > MAX_NAME_LEN || !flat.bytes().all(in_name) {
                let expected = format!(
                    "a name that makes one of at most {MAX_NAME_LEN} letters, digits, '_', '-' \
                     and '.' with {name:?}"
                );
                let found = &json!(namespace);
                return Err(InvalidRequest::value(group.path("name"), expected, found));
            }
            // The model has no other place for what is said of all of them.
            if let Some(of_all) = description.take() {
                let own = shown["description"].as_str().unwrap_or_default();
                let begun = format!("Functions that begin with {namespace}__: {of_all}");
                shown["description"] = json!(format!("{begun}\n\n{own}").trim_end());
            }
            let namespace = namespace.to_owned();
            self.add(&flat, &tool, shown)?;
            self.names.0.insert(flat, Namespaced { namespace, name });
        }
        Ok(())
    }

    fn add(&mut self, name: &str, tool: &Fields<'_>, shown: Value) -> Result<(), InvalidRequest> {
        if !self.taken.insert(name.to_owned()) {
            return Err(InvalidRequest::value(tool.path("name"), "a unique name", &json!(name)));
        }
        self.tools.push(shown);
        Ok(())
    }
}

/// The name of a tool that the client runs, and the tool, which is checked.
fn read_one(tool: &Fields<'_>) -> Result<(String, Value), InvalidRequest> {
    match tool.require_str("type")? {
        "function" => {
            let function = Function::read(tool, "parameters")?;
            let mut shown = function.to_chat()["function"].take();
            shown["type"] = json!("function");
            shown["strict"] = json!(function.strict);
            Ok((function.name, shown))
        }
        "custom" => {
            let custom = Function::read_custom(tool)?;
            let mut shown = custom.to_chat()["custom"].take();
            shown["type"] = json!("custom");
            shown["format"] = json!(tool.get("format"));
            Ok((custom.name, shown))
        }
        kind => {
            let found = format!("the tool type {kind:?}");
            let accepted = "\"function\", \"custom\" and, outside of one, \"namespace\"";
            Err(InvalidRequest::unsupported(tool.path("type"), found, accepted))
        }
    }
}

/// Gives the tools of namespaces that a choice names the names that the model knows.
fn flatten_choice(choice: &mut Value) -> Result<(), InvalidRequest> {
    let is_list = choice["type"] == "allowed_tools";
    if !is_list {
        return flatten_name(choice, "tool_choice");
    }
    let listed = choice["tools"].as_array_mut().into_iter().flatten().enumerate();
    for (idx, tool) in listed {
        flatten_name(tool, &format!("tool_choice.tools[{idx}]"))?;
    }
    Ok(())
}

fn flatten_name(tool: &mut Value, path: &str) -> Result<(), InvalidRequest> {
    if !tool.is_object() {
        return Ok(());
    }
    let fields = Fields::of(tool, path.to_owned())?;
    if let Some(namespace) = fields.str("namespace")? {
        let flat = flat_name(namespace, fields.require_str("name")?);
        tool["name"] = json!(flat);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::tools::{TextGrammar, ToolChoice, ToolInput};

    fn read_body(body: &Value) -> Result<(ToolRequest, ToolNames), InvalidRequest> {
        read(&Fields::root(body.as_object().expect("an object")), &[])
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "name": name})
    }

    fn group() -> Value {
        json!({"type": "namespace", "name": "agents", "description": "Other agents.",
               "tools": [{"type": "function", "name": "start", "description": "Starts one."},
                         {"type": "function", "name": "stop", "strict": true}]})
    }

    #[test]
    fn a_namespace_brings_its_functions() {
        let (request, names) = read_body(&json!({"tools": [function("start"), group()]})).unwrap();
        let read: Vec<(&str, Option<&str>, bool)> = request
            .functions
            .iter()
            .map(|f| (f.name.as_str(), f.description.as_deref(), f.strict))
            .collect();
        let told = "Functions that begin with agents__: Other agents.\n\nStarts one.";
        let want = [
            ("start", None, false),
            ("agents__start", Some(told), false),
            ("agents__stop", None, true),
        ];
        assert_eq!(read, want);
        let item = |flat: &str| {
            let mut item = json!({});
            names.name_into(flat, &mut item);
            assert_eq!(item["name"], names.name(flat));
            item
        };
        assert_eq!(item("start"), json!({"name": "start"}));
        assert_eq!(item("agents__stop"), json!({"name": "stop", "namespace": "agents"}));
    }

    #[test]
    fn tools_that_others_run_are_left_out() {
        let kinds = ["web_search", "mcp", "image_generation", "tool_search", "local_shell"];
        let mut tools: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
        tools.insert(2, function("f"));
        let (request, _) = read_body(&json!({"tools": tools})).unwrap();
        let names: Vec<&str> = request.functions.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["f"]);
    }

    #[test]
    fn a_choice_may_name_a_tool_of_a_namespace() {
        let named = json!({"type": "function", "name": "stop", "namespace": "agents"});
        let (request, _) = read_body(&json!({"tools": [group()], "tool_choice": named})).unwrap();
        assert_eq!(request.choice, ToolChoice::Function("agents__stop".to_owned()));
        let some = json!({"type": "allowed_tools", "mode": "auto", "tools": [named]});
        let (request, _) = read_body(&json!({"tools": [group()], "tool_choice": some})).unwrap();
        assert_eq!(request.functions.len(), 1);
    }

    #[test]
    fn custom_tools_have_their_grammars() {
        let lark = json!({"type": "grammar", "syntax": "lark", "definition": "start: /a/"});
        let regex = json!({"type": "grammar", "syntax": "regex", "definition": "a+"});
        let custom = |name: &str, format: &Value| json!({"type": "custom", "name": name, "description": "d", "format": format});
        let group = json!({"type": "namespace", "name": "g", "tools": [custom("c", &regex)]});
        let tools = json!([custom("a", &lark), custom("b", &json!({"type": "text"})), group]);
        let choice = json!({"type": "custom", "name": "c", "namespace": "g"});
        let (request, names) = read_body(&json!({"tools": tools, "tool_choice": choice})).unwrap();
        let read: Vec<(&str, &ToolInput)> =
            request.functions.iter().map(|f| (f.name.as_str(), &f.input)).collect();
        let want = [
            ("a", &ToolInput::Text(Some(TextGrammar::Lark("start: /a/".to_owned())))),
            ("b", &ToolInput::Text(None)),
            ("g__c", &ToolInput::Text(Some(TextGrammar::Regex("a+".to_owned())))),
        ];
        assert_eq!(read, want);
        assert_eq!(request.choice, ToolChoice::Function("g__c".to_owned()));
        assert_eq!(names.name("g__c"), "c");
    }

    #[test]
    fn items_add_tools() {
        let body = json!({"tools": [function("f")]});
        let item = json!({"type": "additional_tools", "tools": [function("g"), group()]});
        let item = Fields::of(&item, "input[0]".to_owned()).unwrap();
        let fields = Fields::root(body.as_object().expect("an object"));
        let (request, _) = read(&fields, &[item]).unwrap();
        assert_eq!(request.functions.len(), 4);
        let item = json!({"type": "additional_tools", "tools": [function("f")]});
        let item = Fields::of(&item, "input[0]".to_owned()).unwrap();
        assert_eq!(read(&fields, &[item]).unwrap_err().param(), "input[0].tools[0].name");
    }

    #[test]
    fn errors_name_the_parameter() {
        let check = |body: Value, param: &str, problem: &str| {
            let error = read_body(&body).unwrap_err();
            assert_eq!(error.param(), param, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        };
        let tools = |tool: Value| json!({"tools": [{"type": "mcp"}, tool]});
        check(tools(json!({"type": "magic"})), "tools[1].type", "the tool type \"magic\"");
        check(tools(json!({"type": "function"})), "tools[1].name", "required");
        check(tools(json!({"type": "namespace", "name": "n"})), "tools[1].tools", "required");
        let nested = |name: &str, tool: Value| {
            tools(json!({"type": "namespace", "name": name, "tools": [function("f"), tool]}))
        };
        check(nested("n", json!({"type": "mcp"})), "tools[1].tools[1].type", "\"mcp\"");
        check(nested("n", function("a b")), "tools[1].tools[1].name", "letters");
        check(nested("n", function("f")), "tools[1].tools[1].name", "a unique name");
        check(nested("n n", function("g")), "tools[1].name", "makes one of");
        check(nested(&"n".repeat(127), function("g")), "tools[1].name", "makes one of");
        let choice = |choice: Value| {
            json!({"tools": [function("f"), {"type": "web_search"}],
                                            "tool_choice": choice})
        };
        check(choice(json!({"type": "web_search"})), "tool_choice.type", "web_search");
        check(choice(function("g")), "tool_choice.name", "function in tools");
        let allowed = json!({"type": "allowed_tools", "mode": "auto",
                             "tools": [function("f"), {"type": "web_search"}]});
        check(choice(allowed), "tool_choice.tools[1].type", "web_search");
        let only = json!({"tools": [{"type": "web_search"}], "tool_choice": "required"});
        check(only, "tool_choice", "tools to choose from");
        let wrong = json!({"type": "function", "name": "f", "namespace": 1});
        check(choice(wrong), "tool_choice.namespace", "a string");
    }
}
