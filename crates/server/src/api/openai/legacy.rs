//! `functions` and `function_call`, the tools of older clients, and the messages that go with them.

use crate::chat::tools::{Function, ToolChoice, ToolRequest};
use crate::fields::{Fields, InvalidRequest};
use realizar_runtime::template::Message;
use serde_json::{Map, Value, json};

/// The fields of a request.
pub(crate) const FIELDS: [&str; 2] = ["functions", "function_call"];

/// The functions of a request and the choice among them, if it has any.
///
/// Fails, naming the parameter, as [`ToolRequest::from_chat`] does, and where there are `tools` too.
pub(crate) fn tools(
    body: &Map<String, Value>,
    tools: &ToolRequest,
) -> Result<Option<ToolRequest>, InvalidRequest> {
    let fields = Fields::root(body);
    let mut functions = Vec::new();
    for function in fields.objects("functions")? {
        functions.push(Function::read(&function, "parameters")?);
    }
    let mut path = String::new();
    let choice = match fields.get("function_call") {
        None => ToolChoice::Auto,
        Some(Value::String(choice)) if choice == "auto" => ToolChoice::Auto,
        Some(Value::String(choice)) if choice == "none" => ToolChoice::None,
        Some(choice @ Value::Object(_)) => {
            let choice = Fields::of(choice, "function_call".to_owned())?;
            path = choice.path("name");
            ToolChoice::Function(choice.require_str("name")?.to_owned())
        }
        Some(choice) => {
            let expected = "\"none\", \"auto\" or a function";
            return Err(InvalidRequest::value("function_call", expected, choice));
        }
    };
    if !functions.is_empty() && !tools.functions.is_empty() {
        let found = "a list beside `tools`";
        return Err(InvalidRequest::unsupported("functions", found, "one of the two"));
    }
    // An answer has one call at most.
    let request = ToolRequest::new(functions, choice, false, "functions", "function_call", &path)?;
    Ok((!request.functions.is_empty()).then_some(request))
}

/// Messages in which the calls of such functions and their results are those of tools.
pub(super) fn modern(messages: Vec<Message>) -> Result<Vec<Message>, InvalidRequest> {
    let mut n_calls = 0_usize;
    let mut modern = Vec::with_capacity(messages.len());
    for (idx, mut message) in messages.into_iter().enumerate() {
        let call = message.fields.shift_remove("function_call").filter(|call| !call.is_null());
        if let Some(call) = call.filter(|_| message.role == "assistant") {
            n_calls += 1;
            let call = json!({"id": id(n_calls), "type": "function", "function": call});
            message.fields.entry("tool_calls").or_insert_with(|| json!([call]));
        }
        if message.role == "function" {
            if !message.fields.get("name").is_some_and(Value::is_string) {
                let param = format!("messages[{idx}].name");
                return Err(InvalidRequest::Missing { param });
            }
            "tool".clone_into(&mut message.role);
            message.fields.entry("tool_call_id").or_insert_with(|| json!(id(n_calls)));
        }
        modern.push(message);
    }
    Ok(modern)
}

/// The id of a call, which the older form has not: some templates insist on nine letters and digits.
fn id(n_calls: usize) -> String {
    format!("call{n_calls:05}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<Option<ToolRequest>, InvalidRequest> {
        let body = body.as_object().expect("an object");
        tools(body, &ToolRequest::from_chat(body)?)
    }

    #[test]
    fn functions_are_tools() {
        let functions = json!([{"name": "f", "description": "d"}, {"name": "g"}]);
        let check = |choice: Value, want: ToolChoice| {
            let body = json!({"functions": functions, "function_call": choice});
            let request = read(&body).unwrap().expect("functions");
            let names: Vec<&str> = request.functions.iter().map(|f| f.name.as_str()).collect();
            assert_eq!((names, request.choice, request.parallel), (vec!["f", "g"], want, false));
        };
        check(Value::Null, ToolChoice::Auto);
        check(json!("auto"), ToolChoice::Auto);
        check(json!("none"), ToolChoice::None);
        check(json!({"name": "g"}), ToolChoice::Function("g".to_owned()));
        for body in [json!({}), json!({"functions": [], "function_call": "none"})] {
            assert_eq!(read(&body), Ok(None));
        }
    }

    #[test]
    fn errors_name_the_parameter() {
        let check = |body: Value, param: &str, problem: &str| {
            let error = read(&body).unwrap_err();
            assert_eq!(error.param(), param, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        };
        check(json!({"functions": [{"name": "f"}, {}]}), "functions[1].name", "required");
        check(json!({"functions": [{"name": "f"}, {"name": "f"}]}), "functions[1]", "unique");
        check(json!({"function_call": "required"}), "function_call", "\"auto\"");
        check(json!({"function_call": {"name": "f"}}), "function_call.name", "in functions");
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let both = json!({"functions": [{"name": "f"}], "tools": [tool]});
        check(both, "functions", "beside `tools`");
    }

    #[test]
    fn messages_become_those_of_tools() {
        let read = |messages: Value| {
            let messages = serde_json::from_value(messages).expect("messages");
            modern(messages).map(|messages| json!(messages))
        };
        let call = json!({"name": "f", "arguments": "{}"});
        let tool_call =
            |id: &str| json!([{"id": id, "type": "function", "function": call.clone()}]);
        let messages = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": null, "function_call": call},
            {"role": "function", "name": "f", "content": "r"},
            {"role": "assistant", "content": "b", "function_call": null},
            {"role": "assistant", "content": null, "function_call": call},
            {"role": "function", "name": "f", "content": "s"},
        ]);
        let want = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": null, "tool_calls": tool_call("call00001")},
            {"role": "tool", "content": "r", "name": "f", "tool_call_id": "call00001"},
            {"role": "assistant", "content": "b"},
            {"role": "assistant", "content": null, "tool_calls": tool_call("call00002")},
            {"role": "tool", "content": "s", "name": "f", "tool_call_id": "call00002"},
        ]);
        assert_eq!(read(messages).unwrap(), want);
        let error = read(json!([{"role": "function", "content": "r"}])).unwrap_err();
        assert_eq!(error.param(), "messages[0].name");
    }
}
