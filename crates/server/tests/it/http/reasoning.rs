//! Reasoning over HTTP: how it is requested, how it is limited, and what follows it.

use super::common::TestServer;
use super::structured::{ask, check, schema, tools};
use realizar_formats::Value as GgufValue;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// A template that begins reasoning for the model, as DeepSeek-R1's does, and leaves it out of
/// earlier messages.
const ALWAYS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}\
                      {% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}";

/// A template whose model reasons unless it is told not to, as Qwen 3's does.
const SWITCH: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                      {% if add_generation_prompt %}<assistant>\
                      {% if enable_thinking is defined and not enable_thinking %}<think></think>\
                      {% elif enable_thinking is defined %}<think>{% endif %}{% endif %}";

fn reasoning(message: &Value) -> &str {
    message["reasoning_content"].as_str().unwrap_or_default()
}

#[test]
fn a_form_begins_behind_the_reasoning() {
    let server = TestServer::with_template(ALWAYS);
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema()}});
    for budget in [0, 1, 7] {
        let more = json!({"response_format": format, "thinking_budget_tokens": budget});
        let answer = server.ok(CHAT, &ask(&more));
        let message = &answer["choices"][0]["message"];
        check(message["content"].as_str().expect("content"));
        assert_eq!(reasoning(message).is_empty(), budget == 0, "{message}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let counted = |usage: &Value| {
            usage["completion_tokens_details"]["reasoning_tokens"].as_u64().expect("a count")
        };
        let n_reasoning = counted(&answer["usage"]);
        assert!(n_reasoning <= budget && (n_reasoning == 0) == (budget == 0), "{answer}");
        let mut streamed = ask(&more);
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let usage = server.chunks(CHAT, &streamed).last().expect("chunks")["usage"].clone();
        assert_eq!(counted(&usage), n_reasoning, "{usage}");
        let (mut text, mut thought) = (String::new(), String::new());
        for chunk in server.chunks(CHAT, &streamed) {
            let delta = &chunk["choices"][0]["delta"];
            text.push_str(delta["content"].as_str().unwrap_or_default());
            thought.push_str(reasoning(delta));
        }
        assert_eq!(
            (text.as_str(), thought.as_str()),
            (message["content"].as_str().unwrap(), reasoning(message))
        );
    }
    let more = json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false,
                      "thinking_budget_tokens": 3});
    let answer = server.ok(CHAT, &ask(&more));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert!(!reasoning(&choice["message"]).is_empty());
    check(choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().expect("arguments"));
    // Without a limit the reasoning continues until the model ends it, or to the maximum number of tokens.
    let answer = server.ok(CHAT, &ask(&json!({"guided_json": schema(), "max_tokens": 30})));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length", "{answer}");
    assert_eq!(choice["message"]["content"], "");
}

#[test]
fn an_effort_turns_reasoning_off() {
    let always = TestServer::with_template(ALWAYS);
    let none = json!({"reasoning_effort": "none", "max_tokens": 20});
    let answer = always.ok(CHAT, &ask(&none));
    let message = &answer["choices"][0]["message"];
    assert_eq!(reasoning(message), "", "{answer}");
    assert!(!message["content"].as_str().expect("content").contains("think"), "{answer}");
    let prompt = |server: &TestServer, more: Value| {
        server.ok("/apply-template", &ask(&more))["prompt"].as_str().expect("text").to_owned()
    };
    let switch = TestServer::with_template(SWITCH);
    assert!(prompt(&switch, json!({})).ends_with("<assistant>"));
    assert!(prompt(&switch, json!({"reasoning_effort": "none"})).ends_with("</think>"));
    assert!(prompt(&switch, json!({"reasoning_effort": "low"})).ends_with("<think>"));
    // A model without reasoning answers as it would without the hint.
    let plain = TestServer::start();
    let low = json!({"reasoning_effort": "low"});
    assert_eq!(prompt(&plain, low), prompt(&plain, json!({})));
}

#[test]
fn anthropic_thinking() {
    let server = TestServer::with_template(SWITCH);
    let message = |content: Value, more: Value| {
        let mut body = json!({"model": "tiny", "max_tokens": 40, "temperature": 0.0,
            "messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": content},
                         {"role": "user", "content": "d"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 5},
                          "mcp_servers": [], "context_management": {"edits": []}});
    let redacted =
        json!([{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "c"}]);
    let answer = server.ok("/v1/messages", &message(redacted, thinking.clone()));
    assert_eq!(answer["content"][0]["type"], "thinking", "{answer}");
    assert_eq!(answer["content"][1]["type"], "text", "{answer}");
    assert_eq!(answer["usage"]["output_tokens"], 40);
    let off = message(json!("c"), json!({"thinking": {"type": "disabled"}}));
    let answer = server.ok("/v1/messages", &off);
    assert_eq!(answer["content"][0]["type"], "text", "{answer}");
    // Where there is no reasoning, none can be turned on, and none is limited.
    let plain = TestServer::start();
    let answer = plain.ok("/v1/messages", &message(json!("c"), thinking));
    let without = plain.ok("/v1/messages", &message(json!("c"), json!({})));
    assert_eq!(answer["content"], without["content"]);
}

#[test]
fn anthropic_answers_go_on_with_what_was_begun() {
    let server = TestServer::start();
    let begun = json!({"model": "tiny", "max_tokens": 12, "temperature": 0.0, "messages": [
        {"role": "user", "content": "abc"}, {"role": "assistant", "content": "Yes, "}]});
    let answer = server.ok("/v1/messages", &begun);
    let plain = json!({"model": "tiny", "max_tokens": 12, "temperature": 0.0,
                       "prompt": "<user>abc<assistant>Yes, ", "add_special_tokens": false});
    let want = server.ok("/v1/completions", &plain);
    assert_eq!(answer["content"][0]["text"], want["choices"][0]["text"], "{answer}");
    assert_eq!(
        answer["usage"]["input_tokens"].as_u64().unwrap()
            + answer["usage"]["cache_read_input_tokens"].as_u64().unwrap(),
        want["usage"]["prompt_tokens"].as_u64().unwrap()
    );
}

#[test]
fn what_a_message_spells_is_no_control_token() {
    let server =
        TestServer::with_template("{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}");
    let tokens = |content: &str| {
        let body = json!({"messages": [{"role": "user", "content": content}]});
        server.ok("/tokenize", &body)["tokens"].as_array().expect("ids").clone()
    };
    let plain = |text: &str, parse_special: bool| {
        let body = json!({"content": text, "parse_special": parse_special});
        server.ok("/tokenize", &body)["tokens"].as_array().expect("ids").clone()
    };
    let ends = [plain("<s>", true), plain("</s>", true)];
    assert_eq!((ends[0].len(), ends[1].len()), (1, 1));
    let spelled = "a</s><s>b";
    assert!(plain(spelled, true).len() < plain(spelled, false).len());
    assert_eq!(tokens(spelled), [&ends[0][..], &plain(spelled, false), &ends[1]].concat());
    let body = json!({"messages": [{"role": "user", "content": spelled}]});
    assert_eq!(server.ok("/apply-template", &body)["prompt"], "<s>a</s><s>b</s>");
    let rendered = server.ok("/v1/chat/completions/render", &ask(&body));
    assert_eq!(rendered["token_ids"].as_array().expect("ids"), &tokens(spelled));
}

#[test]
fn the_template_for_tools_decides_where_there_are_tools() {
    let tool_use = "{% if tools %}{{ tools | length }}{% endif %}{% for m in messages %}\
                    <{{ m.role }}>{{ m.content }}{% endfor %}\
                    {% if add_generation_prompt %}<assistant><think>{% endif %}{# </think> #}";
    let tool_use = GgufValue::Str(tool_use.to_owned());
    let server = TestServer::with_keys(&[("tokenizer.chat_template.tool_use", tool_use)]);
    let prompt = |more: Value| {
        server.ok("/apply-template", &ask(&more))["prompt"].as_str().expect("text").to_owned()
    };
    assert_eq!(prompt(json!({})), "<user>abc<assistant>");
    assert_eq!(prompt(json!({"tools": tools()})), "2<user>abc<assistant><think>");
    assert_eq!(prompt(json!({"tools": tools(), "tool_choice": "none"})), "<user>abc<assistant>");
    // What it begins for the model is read as such.
    let more = json!({"tools": tools(), "max_tokens": 5});
    let answer = server.ok(CHAT, &ask(&more));
    let message = &answer["choices"][0]["message"];
    assert!(!reasoning(message).is_empty() && message["content"] == "", "{answer}");
}
