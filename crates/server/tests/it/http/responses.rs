//! `/v1/responses`: first requests of coding agents and their tools; functions of older clients.

use super::common::TestServer;
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";

/// Tools as Codex sends them, in other words: functions, a namespace, a tool of free text, and
/// some that the vendor runs.
fn tools() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    let function = |name: &str, properties: Value, required: Value| {
        json!({"type": "function", "name": name, "description": "Does it.", "strict": false,
               "parameters": {"type": "object", "properties": properties, "required": required,
                              "additionalProperties": false}})
    };
    json!([
        function("run", json!({"command": text("What to run."), "dir": text("Where.")}), json!(["command"])),
        function("look", json!({"path": text("Which image.")}), json!(["path"])),
        {"type": "namespace", "name": "helpers", "description": "Work for others.", "tools": [
            function("begin", json!({"task": text("What to do.")}), json!(["task"])),
            function("end", json!({"id": {"enum": ["a", "b"]}}), json!(["id"])),
        ]},
        {"type": "custom", "name": "note", "description": "Writes a note."},
        {"type": "web_search", "external_web_access": false},
        {"type": "local_shell"},
        {"type": "image_generation", "output_format": "png"},
        {"type": "tool_search", "execution": "client"},
        {"type": "mcp", "server_label": "docs", "server_url": "http://localhost/mcp"},
    ])
}

/// A first request as Codex makes it, with these members.
fn first(members: Value) -> Value {
    let message = |role: &str, text: &str| {
        let content = json!([{"type": "input_text", "text": text}]);
        json!({"type": "message", "id": format!("msg_{role}"), "role": role, "content": content})
    };
    let mut body = json!({
        "model": "tiny", "instructions": "Be brief.",
        "input": [message("developer", "You work in a folder."), message("user", "Where are you?")],
        "tools": tools(), "tool_choice": "auto", "parallel_tool_calls": true,
        "reasoning": {"effort": "medium", "summary": "auto"}, "store": false,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "client_metadata": {"session": "s"}, "text": {"verbosity": "low"},
        "service_tier": "priority", "max_output_tokens": 400, "temperature": 0,
    });
    let Value::Object(members) = members else { panic!("members of an object") };
    for (key, value) in members {
        body[key] = value;
    }
    body
}

/// The events of a stream.
fn events(server: &TestServer, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    server.events(PATH, &body)
}

fn of_type<'a>(events: &'a [Value], ty: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == ty).collect()
}

/// A model that is shown its tools by its template, as names.
const NAMES: &str = "{% if tools %}{% for t in tools %}[{{ t.function.name }}]{% endfor %}{% endif %}\
                     {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                     {% if add_generation_prompt %}<assistant>{% endif %}";

#[test]
fn a_first_request_of_an_agent_is_answered() {
    let server = TestServer::with_template(NAMES);
    let response = server.ok(PATH, &first(json!({"max_output_tokens": 4})));
    assert_eq!((&response["object"], &response["store"]), (&json!("response"), &json!(false)));
    assert_eq!(response["tools"], tools());
    let events = events(&server, &first(json!({"max_output_tokens": 4})));
    assert_eq!(events[0]["type"], "response.created");
    // The model is shown the tools that the client runs, and no others.
    let shown = |tools: Value| {
        let body = first(json!({"tools": tools}));
        let count = |path: &str, body: &Value| server.ok(path, body)["input_tokens"].clone();
        count("/v1/responses/input_tokens", &body)
    };
    let named = |names: &[&str]| -> Value {
        names.iter().map(|name| json!({"type": "function", "name": name})).collect()
    };
    let flat = ["run", "look", "helpers__begin", "helpers__end", "note"];
    assert_eq!(shown(tools()), shown(named(&flat)));
    assert_ne!(shown(tools()), shown(named(&flat[..4])));
}

#[test]
fn a_call_in_a_namespace_names_it() {
    let server = TestServer::start();
    let choice = json!({"type": "function", "namespace": "helpers", "name": "end"});
    let body = first(json!({"tool_choice": choice, "parallel_tool_calls": false}));
    let response = server.ok(PATH, &body);
    let call = &response["output"][0];
    let name =
        |item: &Value| (item["type"].clone(), item["namespace"].clone(), item["name"].clone());
    let want = (json!("function_call"), json!("helpers"), json!("end"));
    assert_eq!(name(call), want, "{response}");
    let arguments = call["arguments"].as_str().expect("arguments");
    let arguments: Value = serde_json::from_str(arguments).expect("JSON");
    assert!(["a", "b"].iter().any(|id| arguments == json!({"id": id})), "{arguments}");
    let events = events(&server, &body);
    for ty in ["response.output_item.added", "response.output_item.done"] {
        assert_eq!(name(&of_type(&events, ty)[0]["item"]), want, "{ty}");
    }
    let done = of_type(&events, "response.function_call_arguments.done");
    assert_eq!((&done[0]["name"], &done[0]["arguments"]), (&json!("end"), &call["arguments"]));
    // The next request has the call and its result.
    let output =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "Ended."});
    let input = json!([{"role": "user", "content": "End it."}, call, output]);
    let next = server.ok(PATH, &first(json!({"input": input, "max_output_tokens": 4})));
    assert_eq!(next["output"][0]["type"], "message", "{next}");
}

#[test]
fn a_call_of_a_custom_tool_is_a_text() {
    let server = TestServer::start();
    let choice = json!({"type": "custom", "name": "note"});
    let body = first(json!({"tool_choice": choice, "parallel_tool_calls": false}));
    let response = server.ok(PATH, &body);
    let call = &response["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("custom_tool_call"), &json!("note")));
    let input = call["input"].as_str().expect("a text");
    assert!(call.get("arguments").is_none() && call.get("namespace").is_none());
    let events = events(&server, &body);
    let deltas = of_type(&events, "response.custom_tool_call_input.delta");
    let text: String = deltas.iter().map(|event| event["delta"].as_str().expect("text")).collect();
    let done = of_type(&events, "response.custom_tool_call_input.done");
    assert_eq!((text.as_str(), done[0]["input"].as_str()), (input, Some(input)));
    let output =
        json!({"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Noted."});
    let input = json!([{"role": "user", "content": "Note it."}, call, output]);
    let next = server.ok(PATH, &first(json!({"input": input, "max_output_tokens": 4})));
    assert_eq!(next["output"][0]["type"], "message", "{next}");
}

#[test]
fn what_cannot_be_honoured_is_named() {
    let server = TestServer::start();
    let check = |members: Value, param: &str| {
        let answer = server.post(PATH, &first(members));
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert_eq!(answer.json()["error"]["param"], param);
    };
    check(json!({"tool_choice": {"type": "web_search"}}), "tool_choice.type");
    check(json!({"tools": [{"type": "magic"}]}), "tools[0].type");
    check(json!({"background": true}), "background");
    check(json!({"conversation": "conv_1"}), "conversation");
    check(json!({"prompt": {"id": "p"}}), "prompt");
    check(json!({"text": {"verbosity": "mute"}}), "text.verbosity");
    check(json!({"include": ["message.output_text.logprobs"]}), "include[0]");
    let compacted = json!([{"type": "compaction", "encrypted_content": "x"}]);
    check(json!({"input": compacted}), "input[0].type");
}

#[test]
fn verbosity_reaches_templates_that_use_it() {
    let template = "{{ verbosity }}|{{ messages[0].content }}";
    let server = TestServer::with_template(template);
    let user = json!([{"role": "user", "content": "x"}]);
    for verbosity in ["low", "medium", "high"] {
        let chat = json!({"messages": user, "verbosity": verbosity});
        let text = server.ok("/apply-template", &chat)["prompt"].clone();
        assert_eq!(text, format!("{verbosity}|x"));
        let n_tokens = server.ok("/tokenize", &json!({"content": text}))["tokens"].clone();
        let body = json!({"model": "tiny", "input": "x", "text": {"verbosity": verbosity}});
        let counted = server.ok("/v1/responses/input_tokens", &body);
        assert_eq!(counted["input_tokens"], n_tokens.as_array().map(Vec::len).expect("tokens"));
    }
}

#[test]
fn functions_of_older_clients_are_answered_in_their_shape() {
    let server = TestServer::start();
    let functions = json!([{"name": "f", "parameters": {"type": "object", "properties":
        {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false}}]);
    let path = "/v1/chat/completions";
    let ask = |more: Value| {
        let mut body = json!({"model": "tiny", "temperature": 0, "max_tokens": 200,
            "messages": [{"role": "user", "content": "abc"}], "functions": functions});
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        body
    };
    let body = ask(json!({"function_call": {"name": "f"}}));
    let answer = server.ok(path, &body);
    let choice = &answer["choices"][0];
    let call = &choice["message"]["function_call"];
    assert_eq!((&call["name"], &choice["finish_reason"]), (&json!("f"), &json!("stop")));
    assert!(choice["message"].get("tool_calls").is_none());
    assert_eq!(choice["message"]["content"], Value::Null);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let (mut name, mut arguments) = (String::new(), String::new());
    for chunk in server.chunks(path, &streamed) {
        let delta = &chunk["choices"][0]["delta"];
        assert!(delta.get("tool_calls").is_none(), "{chunk}");
        name.push_str(delta["function_call"]["name"].as_str().unwrap_or_default());
        arguments.push_str(delta["function_call"]["arguments"].as_str().unwrap_or_default());
    }
    assert_eq!((json!(name), json!(arguments)), (call["name"].clone(), call["arguments"].clone()));
    // The result comes back in a message of its own role.
    let messages = json!([
        {"role": "user", "content": "abc"},
        {"role": "assistant", "content": null, "function_call": call},
        {"role": "function", "name": "f", "content": "3"},
    ]);
    let rendered = server.ok("/apply-template", &json!({"messages": messages}));
    let prompt = rendered["prompt"].as_str().expect("a text");
    assert!(prompt.ends_with("<tool>3<assistant>"), "{prompt}");
    let next = ask(json!({"messages": messages, "function_call": "none", "max_tokens": 4}));
    assert!(server.ok(path, &next)["choices"][0]["message"].get("function_call").is_none());
    let refused = server.post(path, &ask(json!({"function_call": {"name": "g"}})));
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("function_call.name"))
    );
}
