//! Tools of `/v1/messages`: functions of the client's own, and those that only have a name and a
//! version.
//!
//! A client runs `bash`, the text editor and the memory itself, with inputs that Anthropic publishes and
//! requests do not repeat. They become functions with these inputs, so that any model can call them.
//! Tools that show images are an error, and those that Anthropic's servers run are
//! [left out](crate::ignored).

use crate::chat::tools::{Function, ToolChoice, ToolRequest};
use crate::fields::{Fields, InvalidRequest};
use crate::ignored::{Api, is_ignored};
use serde_json::{Value, json};

const ACCEPTED: &str = "\"custom\", or a version of \"bash\", \"text_editor\" or \"memory\"";

/// Reads `tools` and `tool_choice`.
pub(super) fn read(body: &Fields<'_>) -> Result<ToolRequest, InvalidRequest> {
    let mut functions = Vec::new();
    for tool in body.objects("tools")? {
        let kind = match tool.str("type")? {
            None | Some("custom") => {
                tool.require("input_schema")?;
                functions.push(Function::read(&tool, "input_schema")?);
                continue;
            }
            Some(kind) => kind,
        };
        if is_ignored(Api::Messages, "tools[].type", kind) {
            continue;
        }
        let published = published(kind).ok_or_else(|| {
            let found = format!("the tool type {kind:?}");
            InvalidRequest::unsupported(tool.path("type"), found, ACCEPTED)
        })?;
        // Its name is fixed, so it is not read, but a call has to bear it.
        tool.only("name", &[json!(published.name)])?;
        let strict = tool.bool("strict")?.unwrap_or(false);
        functions.push(Function { strict, ..published });
    }
    let (mut choice, mut parallel) = (ToolChoice::Auto, true);
    if let Some(fields) = body.object("tool_choice")? {
        choice = match fields.require_str("type")? {
            "auto" => ToolChoice::Auto,
            "any" => ToolChoice::Required,
            "none" => ToolChoice::None,
            "tool" => ToolChoice::Function(fields.require_str("name")?.to_owned()),
            other => {
                let expected = "\"auto\", \"any\", \"tool\" or \"none\"";
                return Err(InvalidRequest::value(fields.path("type"), expected, &json!(other)));
            }
        };
        parallel = !fields.bool("disable_parallel_tool_use")?.unwrap_or(false);
    }
    ToolRequest::new(functions, choice, parallel, "tools", "tool_choice", "tool_choice.name")
}

/// The function of a tool whose input Anthropic publishes.
fn published(kind: &str) -> Option<Function> {
    let (name, description, parameters) = match kind {
        "bash_20241022" | "bash_20250124" => ("bash", BASH, bash()),
        "text_editor_20241022" | "text_editor_20250124" => {
            ("str_replace_editor", EDITOR, editor("new_str", true))
        }
        // Its documents call the text to insert `new_str`, and its models `insert_text`.
        "text_editor_20250429" | "text_editor_20250728" => {
            ("str_replace_based_edit_tool", EDITOR, editor("insert_text", false))
        }
        "memory_20250818" => ("memory", MEMORY, memory()),
        _ => return None,
    };
    let description = Some(description.to_owned());
    Some(Function { description, ..Function::new(name, parameters) })
}

const BASH: &str =
    "Runs a command in a bash session that is kept between calls, and returns its output.";
const EDITOR: &str = "Views, creates and edits text files. `view` shows a file with line numbers, or lists a \
                      directory; `create` writes a new file; `str_replace` replaces a text that occurs exactly once; \
                      `insert` inserts a text after a line.";
const MEMORY: &str = "Keeps notes between conversations, as files below /memories. Look at them before a task, and \
                      write down what will be of use later.";

fn string(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn commands(names: &[&str]) -> Value {
    json!({"type": "string", "enum": names, "description": "What to do."})
}

fn line(description: &str) -> Value {
    json!({"type": "integer", "minimum": 0, "description": description})
}

fn view_range() -> Value {
    json!({
        "type": "array",
        "items": {"type": "integer"},
        "description": "Of `view`: the first and the last line to show; -1 is the end of the file.",
    })
}

fn bash() -> Value {
    json!({
        "type": "object",
        "properties": {
            "command": string("The command to run. Required unless the session is restarted."),
            "restart": {"type": "boolean", "description": "Starts the session anew."},
        },
    })
}

/// The input of the text editor; `inserted` is the name of the text of `insert`.
fn editor(inserted: &str, undoes: bool) -> Value {
    let mut names = vec!["view", "create", "str_replace", "insert"];
    names.extend(undoes.then_some("undo_edit"));
    let mut properties = json!({
        "command": commands(&names),
        "path": string("The absolute path of a file or a directory."),
        "file_text": string("Of `create`: the content of the file."),
        "old_str": string("Of `str_replace`: the text to replace."),
        "new_str": string("Of `str_replace`: the text to put there; none deletes it."),
        "insert_line": line("Of `insert`: the line after which to insert; 0 is the beginning of the file."),
        "view_range": view_range(),
    });
    match inserted {
        "new_str" => {
            let description = "Of `str_replace`: the text to put there; none deletes it. Of `insert`: the text to insert.";
            properties["new_str"] = string(description);
        }
        name => properties[name] = string("Of `insert`: the text to insert."),
    }
    json!({"type": "object", "properties": properties, "required": ["command", "path"]})
}

fn memory() -> Value {
    json!({
        "type": "object",
        "properties": {
            "command": commands(&["view", "create", "str_replace", "insert", "delete", "rename"]),
            "path": string("The path of a file or a directory below /memories, for all but `rename`."),
            "file_text": string("Of `create`: the content of the file."),
            "old_str": string("Of `str_replace`: the text to replace."),
            "new_str": string("Of `str_replace`: the text to put there."),
            "insert_line": line("Of `insert`: the line after which to insert."),
            "insert_text": string("Of `insert`: the text to insert."),
            "old_path": string("Of `rename`: the path so far."),
            "new_path": string("Of `rename`: the new path."),
            "view_range": view_range(),
        },
        "required": ["command"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::tools::ToolInput;

    fn of(body: &Value) -> Result<ToolRequest, InvalidRequest> {
        read(&Fields::root(body.as_object().unwrap()))
    }

    #[test]
    fn tools_become_functions() {
        let tool = json!({"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": true});
        let check = |choice: Value, want: ToolChoice, parallel: bool| {
            let function = Function {
                name: "f".to_owned(),
                description: Some("d".to_owned()),
                input: ToolInput::Parameters(json!({"type": "object"})),
                strict: true,
            };
            let want = ToolRequest { functions: vec![function], choice: want, parallel };
            assert_eq!(of(&json!({"tools": [tool], "tool_choice": choice})).unwrap(), want);
        };
        check(Value::Null, ToolChoice::Auto, true);
        check(json!({"type": "auto"}), ToolChoice::Auto, true);
        check(json!({"type": "none"}), ToolChoice::None, true);
        check(
            json!({"type": "any", "disable_parallel_tool_use": true}),
            ToolChoice::Required,
            false,
        );
        check(json!({"type": "tool", "name": "f"}), ToolChoice::Function("f".to_owned()), true);
    }

    #[test]
    fn tools_of_a_published_form_become_functions() {
        let check = |kind: &str, name: &str, inputs: &[&str], commands: &[&str]| {
            let tool = json!({"type": kind, "name": name, "cache_control": {"type": "ephemeral"}});
            let function = of(&json!({"tools": [tool]})).unwrap().functions.remove(0);
            let properties = function.parameters()["properties"].as_object().unwrap();
            let mut keys: Vec<&str> = properties.keys().map(String::as_str).collect();
            keys.sort_unstable();
            assert_eq!((function.name.as_str(), keys), (name, inputs.to_vec()), "{kind}");
            if !commands.is_empty() {
                assert_eq!(properties["command"]["enum"], json!(commands), "{kind}");
            }
        };
        for kind in ["bash_20241022", "bash_20250124"] {
            check(kind, "bash", &["command", "restart"], &[]);
        }
        let old =
            ["command", "file_text", "insert_line", "new_str", "old_str", "path", "view_range"];
        let commands = ["view", "create", "str_replace", "insert", "undo_edit"];
        for kind in ["text_editor_20241022", "text_editor_20250124"] {
            check(kind, "str_replace_editor", &old, &commands);
        }
        let mut new = old.to_vec();
        new.insert(3, "insert_text");
        for kind in ["text_editor_20250429", "text_editor_20250728"] {
            check(kind, "str_replace_based_edit_tool", &new, &commands[..4]);
        }
        let memory = [
            "command",
            "file_text",
            "insert_line",
            "insert_text",
            "new_path",
            "new_str",
            "old_path",
            "old_str",
            "path",
            "view_range",
        ];
        let commands = ["view", "create", "str_replace", "insert", "delete", "rename"];
        check("memory_20250818", "memory", &memory, &commands);
    }

    #[test]
    fn errors_name_the_parameter() {
        let check = |tool: Value, param: &str, problem: &str| {
            let error = of(&json!({"tools": [tool]})).unwrap_err();
            assert_eq!(error.param(), param, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        };
        let web = json!({"type": "web_search", "name": "web_search"});
        check(web, "tools[0].type", "\"web_search\"");
        let other = json!({"type": "canvas_20260101", "name": "canvas"});
        check(other, "tools[0].type", "canvas_20260101");
        check(json!({"type": "bash_20250124", "name": "sh"}), "tools[0].name", "\"sh\"");
        check(json!({"name": "f"}), "tools[0].input_schema", "required");
        check(json!({"name": "a b", "input_schema": {}}), "tools[0].name", "letters");
        let choice = |choice: Value| of(&json!({"tool_choice": choice})).unwrap_err().to_string();
        assert!(choice(json!({"type": "any"})).starts_with("tool_choice: "));
        let named = choice(json!({"type": "tool", "name": "f"}));
        assert!(named.starts_with("tool_choice.name: "), "{named}");
    }
}
