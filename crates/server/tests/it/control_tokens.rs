//! Markers that are control tokens: left out of decoded text, unless the parser's wish for them is
//! handed to the stream decoder.

use realizar_runtime::tokenizer::Tokenizer;
use realizar_server::conversation::{Answer, AnswerPart};
use realizar_server::tools::CallKind;
use realizar_server::{ChatParser, ChatParserOptions, ReasoningFormat, ToolFormat};
use serde_json::{Value, json};

/// One token per character, and markers: three control tokens from 94 on, `<think>` as ordinary text.
fn tokenizer() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for (id, c) in ('!'..='~').enumerate() {
        vocab.insert(c.to_string(), json!(id));
    }
    let added = [
        (94, "</s>", true),
        (95, "[TOOL_CALLS]", true),
        (96, "[ARGS]", true),
        (97, "<think>", false),
        (98, "</think>", false),
    ];
    let added: Vec<Value> = added
        .iter()
        .map(|(id, content, special)| {
            json!({"id": id, "content": content, "special": special, "single_word": false,
                   "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    Tokenizer::from_hf_dir(dir.path()).unwrap()
}

#[test]
fn markers_reach_the_parser() {
    let tokenizer = tokenizer();
    let (tools, reasoning) = (Some(ToolFormat::Mistral), Some(ReasoningFormat::Think));
    let wanted = ChatParser::control_tokens(&tokenizer, tools, reasoning);
    assert_eq!(wanted, [95, 96]);
    assert!(ChatParser::control_tokens(&tokenizer, None, reasoning).is_empty());
    let hermes = Some(ToolFormat::Hermes);
    assert!(ChatParser::control_tokens(&tokenizer, hermes, None).is_empty());

    let plain = |text: &str| text.bytes().map(|b| u32::from(b - b'!')).collect::<Vec<_>>();
    let mut ids = vec![97];
    ids.extend(plain("hm"));
    ids.extend([98, 95]);
    ids.extend(plain("f"));
    ids.push(96);
    ids.extend(plain("{\"a\":1}"));
    ids.push(94);
    let check = |shown: &[u32], want: &[AnswerPart]| {
        let mut stream = tokenizer.stream().continuing().with_specials(shown);
        let mut parser =
            ChatParser::new(ChatParserOptions { tools, reasoning, ..Default::default() });
        let mut deltas = Vec::new();
        for &id in &ids {
            parser.push(stream.push(id).unwrap(), &mut deltas);
        }
        parser.push(&stream.finish(), &mut deltas);
        parser.finish(&mut deltas);
        for delta in &mut deltas {
            if let realizar_server::ChatDelta::ToolCallStart { id, .. } = delta {
                assert_eq!(id.len(), 9, "Mistral's templates insist on it");
                id.clear();
            }
        }
        let answer: Answer = deltas.into_iter().collect();
        assert_eq!(answer.parts, want);
    };
    let thought = AnswerPart::Reasoning("hm".to_owned());
    let call = AnswerPart::ToolCall {
        id: String::new(),
        name: "f".to_owned(),
        arguments: "{\"a\":1}".to_owned(),
        kind: CallKind::Function,
    };
    check(&wanted, &[thought.clone(), call]);
    check(&[], &[thought, AnswerPart::Content("f{\"a\":1}".to_owned())]);
}
