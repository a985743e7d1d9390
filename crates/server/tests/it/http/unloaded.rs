//! Models that are not loaded, as Ollama's API lists and shows them: by their files.

use super::common::{self, TestServer};
use realizar_runtime::{MemoryUse, ModelOutput};
use realizar_server::{ModelLoader, ModelSpec, Models, ModelsConfig, ServedModel};
use serde_json::{Value, json};
use std::error::Error;
use std::path::PathBuf;

/// Knows the files of models and loads none.
struct Shelf(tempfile::TempDir);

impl ModelLoader for Shelf {
    fn memory(&self, _: &str) -> Result<MemoryUse, Box<dyn Error + Send + Sync>> {
        Err("nothing is loaded".into())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        let name = match name {
            "folder" => "folder".to_owned(),
            "vectors" => "plain.gguf".to_owned(),
            name => format!("{name}.gguf"),
        };
        let path = self.0.path().join(name);
        path.exists().then_some(path)
    }

    fn load(&self, _: &str) -> Result<ServedModel, Box<dyn Error + Send + Sync>> {
        Err("nothing is loaded".into())
    }
}

const THINKER: &str = "{% if tools %}{{ tools | tojson }}{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
    {% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}";

fn server() -> TestServer {
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str| dir.path().join(name);
    common::write_model(&file("plain.gguf"));
    let template = [("tokenizer.chat_template", THINKER.into())];
    common::write_model_with(&file("thinker.gguf"), &template);
    std::fs::create_dir(file("folder")).expect("a folder");
    common::write_model(&file("folder/one.gguf"));
    std::fs::write(file("broken.gguf"), "GGUF").expect("a file");
    let spec = |(name, output): (&str, ModelOutput)| ModelSpec {
        name: name.to_owned(),
        aliases: Vec::new(),
        source: "a source".to_owned(),
        output,
    };
    let specs = [
        ("thinker", ModelOutput::Logits),
        ("plain", ModelOutput::Logits),
        ("folder", ModelOutput::Logits),
        ("vectors", ModelOutput::Embeddings),
        ("broken", ModelOutput::Logits),
        ("gone", ModelOutput::Logits),
    ]
    .map(spec);
    let models = Models::with_loader(Shelf(dir), ModelsConfig::default());
    specs.into_iter().for_each(|spec| models.configure(spec).expect("a unique name"));
    TestServer::of(models, |_| {})
}

#[test]
fn lists_have_the_details_of_models_that_are_not_loaded() {
    let loaded = TestServer::start().get("/api/tags").json()["models"][0].clone();
    assert_ne!(loaded["details"]["parameter_size"], "");
    let tags = server().get("/api/tags").json();
    let model = |idx: usize, name: &str| {
        let model = tags["models"][idx].clone();
        assert_eq!(model["name"], format!("{name}:latest"));
        model
    };
    for (idx, name) in ["thinker", "plain", "folder"].into_iter().enumerate() {
        let model = model(idx, name);
        assert_eq!(model["details"], loaded["details"], "{name}");
        assert_eq!(model["size"], loaded["size"], "{name}");
    }
    // Without the head.
    let vectors = model(3, "vectors");
    assert_eq!(vectors["details"]["family"], "llama");
    assert!(vectors["size"].as_u64() <= loaded["size"].as_u64());
    for (idx, name, size) in [(4, "broken", 4), (5, "gone", 0)] {
        let model = model(idx, name);
        let details = json!({"parent_model": "", "format": "gguf", "family": "", "families": [],
            "parameter_size": "", "quantization_level": ""});
        assert_eq!((&model["details"], &model["size"]), (&details, &json!(size)), "{name}");
    }
}

#[test]
fn templates_say_what_models_that_are_not_loaded_can_do() {
    let loaded = TestServer::start().ok("/api/show", &json!({"model": "tiny"}));
    let server = server();
    let show = |name: &str| server.ok("/api/show", &json!({"model": name}));
    let check = |name: &str, capabilities: Value| {
        let shown = show(name);
        assert_eq!(shown["capabilities"], capabilities, "{name}");
        shown
    };
    let thinker = check("thinker:latest", json!(["completion", "insert", "tools", "thinking"]));
    assert_eq!(thinker["template"], THINKER);
    let plain = check("plain", json!(["completion", "insert"]));
    assert_eq!(plain["template"], loaded["template"]);
    assert_eq!(plain["model_info"], loaded["model_info"]);
    assert_eq!(plain["details"], loaded["details"]);
    let vectors = check("vectors", json!(["embedding"]));
    assert_eq!(vectors["model_info"]["general.architecture"], "llama");
    for name in ["broken", "gone"] {
        let shown = check(name, json!(["completion"]));
        assert_eq!(shown["model_info"], json!({}), "{name}");
    }
}

#[test]
fn efforts_of_thinking_are_taken() {
    let server = TestServer::with_template(THINKER);
    let ask = |think: Value| {
        let body = json!({"model": "tiny", "stream": false, "think": think,
            "messages": [{"role": "user", "content": "Hello"}], "options": {"num_predict": 1}});
        server.post("/api/chat", &body)
    };
    let n_prompt = |think: Value| {
        let answer = ask(think);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["prompt_eval_count"].clone()
    };
    let (on, off) = (n_prompt(json!(true)), n_prompt(json!(false)));
    assert_ne!(on, off);
    for effort in ["low", "medium", "high", "max"] {
        assert_eq!(n_prompt(json!(effort)), on, "{effort}");
    }
    let answer = ask(json!("much"));
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("low, medium, high"), "{}", answer.body);
}
