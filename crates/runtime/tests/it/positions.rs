//! Positions that segments of embeddings bring along for their angles: what sequences keep of them, which models
//! refuse them, and the files of models that were made for them.

use crate::common::segments::{Case, bits, embeddings, logits, refused};
use crate::common::tiny::tiny;
use realizar_formats::{Array, Gguf, GgufWriter, SafeTensors, SafeTensorsWriter};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Arithmetic, Backend, Phase};
use realizar_runtime::{Chunk, Embeddings, LoadOptions, Model, Outputs, Prompt, Rows, SeqId};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;

fn cpu() -> Box<dyn Backend> {
    Box::new(CpuBackend::new(Some(2), None).unwrap())
}

const CASES: [&str; 3] = ["qwen3_5_positions", "qwen2_vl_positions", "llama_positions"];

fn push(prompt: &mut Prompt, rows: Embeddings) {
    prompt.push_embeddings(Arc::new(rows));
}

#[test]
fn positions_of_text_give_the_bits_of_text() {
    for case in CASES.map(Case::read) {
        let mut model = case.load(&*cpu(), Arithmetic::Auto);
        let prompt = |is_positioned: bool| {
            let mut prompt = Prompt::from(vec![5, 6, 7]);
            for n in [6, 1] {
                let rows = embeddings(0, n, 32);
                let own = (0..n as u32).map(|i| [i; 3]).collect();
                let rows = if is_positioned { rows.with_positions(own).unwrap() } else { rows };
                push(&mut prompt, rows);
                prompt.push_tokens(&[8]);
            }
            prompt
        };
        let [plain, own] =
            [false, true].map(|own| bits(&logits(&mut model, prompt(own).rows(), 128)));
        assert!(plain == own, "{}", case.name);
        // And others do not.
        let with = bits(&logits(&mut model, case.prompt().rows(), 128));
        let without = bits(&logits(&mut model, case.prompt_with(|rows, _| rows).rows(), 128));
        assert!(with[..5] == without[..5] && with[5..] != without[5..], "{}", case.name);
    }
}

/// Appends rows, and returns the bits of the last row's logits.
fn run(model: &mut Model, seq: &SeqId, rows: Rows<'_>, phase: Phase) -> Vec<u32> {
    let step = Chunk { seq, rows, phase, outputs: Outputs::Last };
    let found = model.runner().step(&[step]).unwrap();
    found.row(0, 0).iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_sequence_keeps_the_offset_of_its_angles() {
    let generated = [7, 8, 9, 10];
    for case in CASES.map(Case::read) {
        let path = case.path();
        let options = LoadOptions {
            chunk: Some(128),
            prefix_cache: true,
            max_seqs: 4,
            ..LoadOptions::default()
        };
        let mut model = Model::load(&path, &*cpu(), &options).unwrap();
        let prompt = case.prompt();
        // A row at a time, after the prompt as a whole.
        let seq = model.runner().new_sequence();
        assert_eq!(model.runner().adopt(&seq, prompt.rows(), prompt.len() - 1), 0);
        run(&mut model, &seq, prompt.rows(), Phase::Prefill);
        let rows = generated.each_ref();
        let wanted = rows.map(|id| run(&mut model, &seq, (&[*id]).into(), Phase::Decode));
        // What was generated is forgotten, and comes back as drafts, of which some are rejected.
        let left = model.runner().truncate(&seq, prompt.len() + 1);
        let rest = [99, 98];
        if left == prompt.len() + 1 {
            let step = Chunk {
                seq: &seq,
                rows: (&rest).into(),
                phase: Phase::Decode,
                outputs: Outputs::All,
            };
            model.runner().step(&[step]).unwrap();
            assert_eq!(model.runner().truncate(&seq, prompt.len() + 1), prompt.len() + 1);
            let found = run(&mut model, &seq, (&[generated[1]]).into(), Phase::Decode);
            assert!(found == wanted[1], "{} after drafts", case.name);
        }
        // Another sequence begins with what the prefix cache has, and is forked.
        model.runner().remove(seq);
        let seq = model.runner().new_sequence();
        let cached = model.runner().adopt(&seq, prompt.rows(), prompt.len() - 1);
        assert!(cached >= 25, "{}: {cached}", case.name);
        run(&mut model, &seq, prompt.rows().slice(cached..prompt.len()), Phase::Prefill);
        let fork = model.runner().fork(&seq);
        for seq in [&fork, &seq] {
            for (id, wanted) in rows.iter().zip(&wanted) {
                let found = run(&mut model, seq, (&[**id]).into(), Phase::Decode);
                assert!(found == *wanted, "{} after the prefix", case.name);
            }
        }
        // An id that is used again has nothing of the sequence before.
        model.runner().remove(seq);
        model.runner().remove(fork);
        let text: Prompt = prompt.tokens().collect();
        let seq = model.runner().new_sequence();
        let found = run(&mut model, &seq, text.rows(), Phase::Prefill);
        let mut fresh = Model::load(&path, &*cpu(), &options).unwrap();
        let seq = fresh.runner().new_sequence();
        assert!(run(&mut fresh, &seq, text.rows(), Phase::Prefill) == found, "{}", case.name);
    }
}

#[test]
fn positions_that_a_model_does_not_have_are_refused() {
    let prompt = |positions: &[[u32; 3]]| {
        let mut prompt = Prompt::from(vec![5]);
        push(
            &mut prompt,
            embeddings(0, positions.len(), 32).with_positions(positions.to_vec()).unwrap(),
        );
        prompt
    };
    let error = |name: &str, positions: &[[u32; 3]]| {
        let mut model = Model::load(&tiny(name), &*cpu(), &LoadOptions::default()).unwrap();
        refused(&mut model, prompt(positions).rows(), Phase::Prefill)
    };
    let expected = "positions with three components for a model whose rotary embedding has one";
    let found = error("llama", &[[1; 3], [0, 0, 1]]);
    assert!(found.contains(expected), "{found}");
    let expected = "explicit positions for a model without rotary embeddings";
    let found = error("gpt2", &[[1; 3]]);
    assert!(found.contains(expected), "{found}");
    let found = error("qwen3_5_text", &[[0, 0, (1 << 31) - 1]]);
    assert!(found.contains("positions beyond 2147483648"), "{found}");

    let own = |positions| embeddings(0, 2, 4).with_positions(positions).unwrap_err().to_string();
    assert!(own(vec![[0; 3]]).contains("1 positions for 2 rows"));
    assert!(own(vec![[0; 3], [1, 1 << 31, 0]]).contains("position 2147483648 is too large"));
}

/// Writes a tiny model with these settings and with names made of its own, beside other parts.
fn write(dir: &Path, model: &str, config: &Value, name: impl Fn(&str) -> String) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let file = SafeTensors::open(tiny(model)).unwrap();
    let tensors: Vec<_> =
        file.tensors().iter().map(|info| file.tensor(&info.name).unwrap()).collect();
    let mut writer = SafeTensorsWriter::new();
    for tensor in &tensors {
        writer.tensor(&name(&tensor.name), tensor.ty, &tensor.shape, &tensor.data).unwrap();
    }
    let other = tensors.iter().find(|tensor| tensor.name == "model.norm.weight").unwrap();
    for part in ["visual.merger.ln_q.weight", "model.visual.norm.weight", "mtp.norm.weight"] {
        writer.tensor(part, other.ty, &other.shape, &other.data).unwrap();
    }
    writer.write_file(dir.join("model.safetensors")).unwrap();
}

#[test]
fn the_text_model_of_qwen2_vl_is_run_from_every_kind_of_file() {
    let case = Case::read("qwen2_vl_positions");
    let text = std::fs::read_to_string(case.path().join("config.json")).unwrap();
    let text: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let check = |path: &Path| {
        let options = LoadOptions {
            arithmetic: Arithmetic::F32,
            max_outputs: 128,
            chunk: Some(128),
            ..LoadOptions::default()
        };
        let mut model = Model::load(path, &*cpu(), &options).unwrap();
        case.check(&logits(&mut model, case.prompt().rows(), 128), &path.display().to_string());
    };

    // As transformers writes it now.
    let outer = json!({
        "model_type": "qwen2_5_vl",
        "text_config": text,
        "vision_config": {"depth": 2},
        "tie_word_embeddings": true,
    });
    write(dir.path(), "qwen2", &outer, |name| name.replacen("model.", "model.language_model.", 1));
    check(dir.path());

    // As the first checkpoints have it.
    let mut flat = text.clone();
    flat.remove("rope_parameters");
    flat.extend(
        json!({
            "model_type": "qwen2_vl",
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 1]},
            "vision_config": {"depth": 2},
        })
        .as_object()
        .unwrap()
        .clone(),
    );
    write(dir.path(), "qwen2", &Value::Object(flat.clone()), str::to_owned);
    check(dir.path());

    // Sections of other heads.
    flat.insert("rope_scaling".to_owned(), json!({"type": "mrope", "mrope_section": [2, 2, 1]}));
    write(dir.path(), "qwen2", &Value::Object(flat), str::to_owned);
    let error = Model::load(dir.path(), &*cpu(), &LoadOptions::default()).unwrap_err().to_string();
    let expected = "rope_scaling.mrope_section: expected three numbers of pairs that add up to 4";
    assert!(error.contains(expected), "{error}");

    // As llama.cpp's converter writes it.
    let gguf = Gguf::open(tiny("qwen2").join("model-f32.gguf")).unwrap();
    let path = dir.path().join("model.gguf");
    let tensors: Vec<_> =
        gguf.tensors().iter().map(|info| gguf.tensor(&info.name).unwrap()).collect();
    let convert = |sections: &[i32]| {
        let mut writer = GgufWriter::new();
        for (key, value) in gguf.metadata().iter() {
            let key = key.replacen("qwen2.", "qwen2vl.", 1);
            if key == "general.architecture" {
                writer.set(&key, "qwen2vl").unwrap();
            } else {
                writer.set(&key, value.clone()).unwrap();
            }
        }
        writer.set("qwen2vl.rope.dimension_sections", Array::from(sections)).unwrap();
        for tensor in &tensors {
            writer.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).unwrap();
        }
        writer.write_file(&path).unwrap();
    };
    convert(&[1, 2, 1, 0]);
    check(&path);
    convert(&[1, 2, 2, 0]);
    let error = Model::load(&path, &*cpu(), &LoadOptions::default()).unwrap_err().to_string();
    let expected = "qwen2vl.rope.dimension_sections: expected three numbers of pairs for 4 pairs";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn the_text_model_of_qwen3_5_is_run() {
    let case = Case::read("qwen3_5_positions");
    let text = std::fs::read_to_string(case.path().join("config.json")).unwrap();
    let text: Value = serde_json::from_str(&text).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let outer =
        json!({"model_type": "qwen3_5", "text_config": text, "vision_config": {"depth": 2}});
    write(dir.path(), "qwen3_5_text", &outer, |name| {
        name.replacen("model.", "model.language_model.", 1)
    });
    let options = LoadOptions {
        arithmetic: Arithmetic::F32,
        max_outputs: 128,
        chunk: Some(128),
        ..LoadOptions::default()
    };
    let mut model = Model::load(dir.path(), &*cpu(), &options).unwrap();
    case.check(&logits(&mut model, case.prompt().rows(), 128), "the CPU");
}
