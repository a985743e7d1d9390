//! Embeddings, and what is computed from them: scores of pairs, and documents by rank.

use super::common::{self, TestServer};
use realizar_runtime::engine::{Engine, EngineOptions};
use realizar_runtime::{LoadOptions, Model, ModelOutput};
use realizar_server::{Models, ServedModel};
use serde_json::{Value, json};

/// A server with a model for text and one for embeddings, whose queue is short.
fn start() -> TestServer {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("tiny.gguf");
    common::write_model(&path);
    let models = Models::new();
    for (name, output) in [("text", ModelOutput::Logits), ("vectors", ModelOutput::Embeddings)] {
        let options =
            LoadOptions { output, max_seq_len: Some(64), max_seqs: 2, ..LoadOptions::default() };
        let model = Model::load(&path, &common::cpu(), &options).expect("the model loads");
        let options = EngineOptions { max_seqs: Some(2), max_queue: 3, ..EngineOptions::default() };
        let engine = Engine::start(model, options).expect("the engine starts");
        models.add(ServedModel::new(name, engine)).expect("a new name");
    }
    TestServer::of(models, |_| {})
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

/// The cosine of two texts' embeddings, from the endpoint for embeddings.
fn cosine(server: &TestServer, a: &str, b: &str) -> f64 {
    let answer = server.ok("/v1/embeddings", &json!({"input": [a, b]}));
    let [a, b] = [0, 1].map(|i| floats(&answer["data"][i]["embedding"]));
    a.iter().zip(&b).map(|(x, y)| x * y).sum()
}

fn assert_near(got: &Value, want: f64) {
    let got = got.as_f64().expect("a number");
    assert!((got - want).abs() < 1e-5, "{got}, not {want}");
}

#[test]
fn as_many_texts_are_embedded_as_openai_takes() {
    let server = start();
    let ids = |n: usize| json!({"input": vec![vec![5]; n]});
    let data = server.ok("/v1/embeddings", &ids(2048))["data"].clone();
    assert_eq!(data.as_array().map(Vec::len), Some(2048));
    assert_eq!(data[2047]["index"], 2047);
    assert_eq!(data[2047]["embedding"], data[0]["embedding"]);
    let answer = server.post("/v1/embeddings", &ids(2049));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("input")));
}

#[test]
fn documents_are_ranked_by_their_cosines() {
    let server = start();
    let (query, documents) = ("abc", ["xyz", "abc", "hello there", "abd"]);
    let cosines = documents.map(|document| cosine(&server, query, document));
    let body = json!({"query": query, "documents": ["xyz", {"text": "abc"}, "hello there", "abd"]});
    for path in ["/rerank", "/v1/rerank"] {
        let answer = server.ok(path, &body);
        assert_eq!(answer["model"], "vectors");
        assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("rerank-")));
        let results = answer["results"].as_array().expect("results");
        assert_eq!(results.len(), 4);
        assert_eq!(results[0]["index"], 1, "the same text is the nearest");
        assert_near(&results[0]["relevance_score"], 1.0);
        let mut last = f64::INFINITY;
        for result in results {
            let index = result["index"].as_u64().expect("an index") as usize;
            assert_eq!(result["document"]["text"], documents[index]);
            assert_near(&result["relevance_score"], cosines[index]);
            let score = result["relevance_score"].as_f64().expect("a number");
            assert!(score <= last, "the best come first");
            last = score;
        }
    }
    let usage = server.ok("/rerank", &body)["usage"].clone();
    let texts: Vec<&str> = std::iter::once(query).chain(documents).collect();
    let of_embeddings = server.ok("/v1/embeddings", &json!({"input": texts}))["usage"].clone();
    assert_eq!(usage, of_embeddings, "the query counts once");
    let two = json!({"query": query, "documents": documents, "top_n": 2,
                     "return_documents": false, "model": "vectors"});
    let results = server.ok("/rerank", &two)["results"].clone();
    assert_eq!(results.as_array().map(Vec::len), Some(2));
    assert_eq!(results[0].get("document"), None);
}

#[test]
fn pairs_are_scored() {
    let server = start();
    let near = |a: &str, b: &str| cosine(&server, a, b);
    for (body, want) in [
        (json!({"text_1": "abc", "text_2": "abd"}), vec![near("abc", "abd")]),
        (
            json!({"text_1": "abc", "text_2": ["abd", "xyz"]}),
            vec![near("abc", "abd"), near("abc", "xyz")],
        ),
        (
            json!({"queries": ["abc", "hi"], "documents": ["abd", "ho"]}),
            vec![near("abc", "abd"), near("hi", "ho")],
        ),
        (json!({"data_1": ["hi"], "data_2": ["hi"]}), vec![1.0]),
    ] {
        for path in ["/score", "/v1/score"] {
            let answer = server.ok(path, &body);
            assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("vectors")));
            let data = answer["data"].as_array().expect("data");
            assert_eq!(data.len(), want.len(), "{body}");
            for (i, (item, want)) in data.iter().zip(&want).enumerate() {
                assert_eq!((&item["index"], &item["object"]), (&json!(i), &json!("score")));
                assert_near(&item["score"], *want);
            }
            let usage = &answer["usage"];
            assert!(usage["prompt_tokens"].as_u64() > Some(0));
            assert_eq!(usage["prompt_tokens"], usage["total_tokens"]);
        }
    }
}

#[test]
fn a_long_list_does_not_fill_the_queue() {
    let server = start();
    let texts: Vec<String> = (0..40).map(|i| format!("text {i}")).collect();
    let answer = server.ok("/v1/embeddings", &json!({"input": texts}));
    let data = answer["data"].as_array().expect("data");
    assert_eq!(data.len(), 40);
    for i in [0, 39] {
        let alone = server.ok("/v1/embeddings", &json!({"input": texts[i]}));
        assert_eq!(data[i]["embedding"], alone["data"][0]["embedding"], "in their order");
    }
}

#[test]
fn what_cannot_be_scored_is_told() {
    let server = start();
    let check = |path: &str, body: Value, param: &str| {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        assert_eq!(answer.json()["error"]["param"], param, "{body}: {}", answer.body);
    };
    let documents = || json!(["a"]);
    let text = json!({"model": "text", "query": "a", "documents": documents()});
    check("/rerank", text, "model");
    check("/score", json!({"model": "text", "text_1": "a", "text_2": "b"}), "model");
    check("/rerank", json!({"documents": documents()}), "query");
    check("/rerank", json!({"query": "a", "documents": []}), "documents");
    check("/rerank", json!({"query": "a", "documents": [1]}), "documents[0]");
    check("/rerank", json!({"query": "a", "documents": documents(), "top_n": -1}), "top_n");
    let cut = json!({"query": "a", "documents": documents(), "max_tokens_per_doc": 5});
    check("/rerank", cut, "max_tokens_per_doc");
    check("/score", json!({"text_1": "a"}), "text_2");
    check("/score", json!({"text_1": ["a", "b"], "text_2": ["c"]}), "text_1");
    check("/score", json!({"text_1": "a", "text_2": "x".repeat(500)}), "text_2");
    let template = json!({"text_1": "a", "text_2": "b", "instruction": "c"});
    check("/score", template, "instruction");
}
