//! GGUF files that Ollama's own converter wrote, with other names and fewer settings than llama.cpp's.
//!
//! Their settings and names become those of llama.cpp, so that nothing else knows of them. Sources: Ollama's
//! converters, and the layer by which it reads such files with llama.cpp. Tensors of vision and audio encoders,
//! which these files also hold, are `multimodal.rs`'s.

use super::multimodal::gguf_part_of;
use realizar_formats::{Array, Gguf, Value};

/// Architectures under another name, and llama.cpp's.
const RENAMED: [(&str, &str); 4] = [
    ("glm4moelite", "deepseek2"),
    ("gptoss", "gpt-oss"),
    ("olmo3", "olmo2"),
    ("qwen25vl", "qwen2vl"),
];

/// Settings under another name: the architecture, as llama.cpp calls it, the key, and llama.cpp's.
const KEYS: [(&str, &str, &str); 10] = [
    ("gemma3", "rope.global.freq_base", "rope.freq_base"),
    ("gemma3", "rope.local.freq_base", "rope.freq_base_swa"),
    ("gemma3n", "head_dim", "attention.key_length"),
    ("gemma3n", "head_dim", "attention.value_length"),
    ("gemma3n", "rope.freq_base_local", "rope.freq_base_swa"),
    ("mistral3", "rope.scaling.beta_fast", "rope.scaling.yarn_beta_fast"),
    ("mistral3", "rope.scaling.beta_slow", "rope.scaling.yarn_beta_slow"),
    ("mistral3", "rope.scaling.mscale_all_dim", "rope.scaling.yarn_log_multiplier"),
    ("mistral3", "rope.scaling_beta", "attention.temperature_scale"),
    ("qwen2vl", "rope.mrope_section", "rope.dimension_sections"),
];

/// Tensors under another name: the architecture, the end of the name, and llama.cpp's.
const TENSORS: [(&str, &str, &str); 9] = [
    ("gemma4", ".ffn_gate_inp.per_expert_scale", ".ffn_down_exps.scale"),
    ("gpt-oss", ".attn_out.weight", ".attn_output.weight"),
    ("gpt-oss", ".attn_out.bias", ".attn_output.bias"),
    ("gpt-oss", ".ffn_norm.weight", ".post_attention_norm.weight"),
    ("lfm2", "output_norm.weight", "token_embd_norm.weight"),
    ("lfm2moe", "output_norm.weight", "token_embd_norm.weight"),
    ("qwen35", ".ssm_dt", ".ssm_dt.bias"),
    ("qwen35moe", ".ssm_dt", ".ssm_dt.bias"),
    ("qwen3next", ".ssm_dt", ".ssm_dt.bias"),
];

/// The file with llama.cpp's names and settings; one that llama.cpp's converter wrote stays as it is.
pub(super) fn translated(mut gguf: Gguf) -> Gguf {
    let name = |gguf: &Gguf| match gguf.metadata().get("general.architecture") {
        Some(value) => value.as_str().map(str::to_owned),
        None => None,
    };
    let Some(own) = name(&gguf) else { return gguf };
    let renamed = RENAMED.iter().find(|(theirs, _)| *theirs == own);
    let arch = renamed.map_or(own.as_str(), |(_, ours)| ours).to_owned();
    if renamed.is_some() {
        rename_architecture(&mut gguf, &own, &arch);
    }
    for (_, from, to) in KEYS.iter().filter(|(of, ..)| *of == arch) {
        let (from, to) = (format!("{arch}.{from}"), format!("{arch}.{to}"));
        if let Some(value) = gguf.metadata().get(&from).cloned() {
            set_if_missing(&mut gguf, &to, value);
        }
    }
    let has_output_norm = gguf.tensor_info("output_norm.weight").is_some();
    for (_, from, to) in TENSORS.iter().filter(|(of, ..)| *of == arch) {
        rename_tensors(&mut gguf, from, to);
    }
    match arch.as_str() {
        "deepseek2" if own == "glm4moelite" => glm4moelite(&mut gguf),
        "gemma3" => gemma3(&mut gguf),
        "gemma4" => gemma4(&mut gguf),
        "gpt-oss" if own == "gptoss" => gptoss(&mut gguf),
        "lfm2" if has_output_norm => lfm2(&mut gguf),
        "mistral3" => mistral3(&mut gguf),
        "qwen3vl" | "qwen3vlmoe" => {
            let sections = Array::from(&[24, 20, 20, 0_i32][..]);
            set_if_missing(&mut gguf, &format!("{arch}.rope.dimension_sections"), sections);
        }
        _ => {}
    }
    gguf
}

fn set_if_missing(gguf: &mut Gguf, key: &str, value: impl Into<Value>) {
    if gguf.metadata().get(key).is_none() {
        gguf.metadata_mut().set(key, value);
    }
}

/// A whole number, if the key has one.
fn number(gguf: &Gguf, key: &str) -> Option<u32> {
    u32::try_from(gguf.metadata().get(key)?.as_int()?).ok()
}

fn rename_architecture(gguf: &mut Gguf, from: &str, to: &str) {
    let start = format!("{from}.");
    let keys = gguf.metadata().iter().filter_map(|(key, _)| key.strip_prefix(&start));
    let keys: Vec<String> = keys.map(str::to_owned).collect();
    for key in keys {
        if let Some(value) = gguf.metadata_mut().remove(&format!("{start}{key}")) {
            gguf.metadata_mut().set(&format!("{to}.{key}"), value);
        }
    }
    gguf.metadata_mut().set("general.architecture", to);
}

/// Renames the tensors of layers, or the one of no layer, whose names end in `from`.
fn rename_tensors(gguf: &mut Gguf, from: &str, to: &str) {
    let names = gguf.tensors().iter().map(|tensor| tensor.name.as_str());
    let found = names.filter_map(|name| {
        let start = name.strip_suffix(from)?;
        let is_whole = start.is_empty() || (start.starts_with("blk.") && from.starts_with('.'));
        is_whole.then(|| (name.to_owned(), format!("{start}{to}")))
    });
    let found: Vec<_> = found.collect();
    for (name, new) in found {
        gguf.rename_tensor(&name, &new);
    }
}

/// The rows of a tensor: of the last dimension but one.
fn rows(gguf: &Gguf, name: &str) -> Option<u32> {
    let shape = &gguf.tensor_info(name)?.shape;
    u32::try_from(*shape.get(shape.len().checked_sub(2)?)?).ok()
}

/// Names the pre-tokenizer where the file names none, or the one of GPT-2.
fn set_pre(gguf: &mut Gguf, name: &str) {
    let key = "tokenizer.ggml.pre";
    let given = gguf.metadata().get(key).and_then(Value::as_str);
    if given.is_none_or(|given| given.is_empty() || given == "default") {
        gguf.metadata_mut().set(key, name);
    }
}

/// Settings that all published Gemma 3 share and these files omit; those for long contexts stretch the angles of
/// layers that see everything.
fn gemma3(gguf: &mut Gguf) {
    let has = |key: &str| gguf.metadata().get(key).is_some();
    let has_parts = gguf.tensors().iter().any(|tensor| gguf_part_of(&tensor.name).is_some());
    let is_theirs = has_parts
        || has("gemma3.mm.tokens_per_image")
        || has("gemma3.rope.global.freq_base")
        || has("gemma3.rope.local.freq_base")
        || !has("gemma3.attention.layer_norm_rms_epsilon");
    if !is_theirs {
        return;
    }
    set_if_missing(gguf, "gemma3.attention.layer_norm_rms_epsilon", 1e-6_f32);
    set_if_missing(gguf, "gemma3.rope.freq_base", 1e6_f32);
    if number(gguf, "gemma3.context_length").is_some_and(|length| length >= 131_072) {
        set_if_missing(gguf, "gemma3.rope.scaling.type", "linear");
        set_if_missing(gguf, "gemma3.rope.scaling.factor", 8.0_f32);
    }
    let Some(n_tokens) = rows(gguf, "token_embd.weight") else { return };
    let n_tokens = n_tokens as usize;
    // Tokens of images, which have no embedding.
    for key in ["tokens", "scores", "token_type"] {
        let key = format!("tokenizer.ggml.{key}");
        let array = gguf.metadata().get(&key).and_then(Value::as_array);
        let Some(array) = array.filter(|array| array.len() > n_tokens) else { continue };
        if let Some(first) = first_of(array, n_tokens) {
            gguf.metadata_mut().set(&key, first);
        }
    }
}

/// The first `n` elements of strings, of floats, or of whole numbers.
fn first_of(array: &Array, n: usize) -> Option<Array> {
    if let Some(strs) = array.strs() {
        return Some(Array::from_strs(strs.iter().take(n)));
    }
    let values: Vec<Value> = array.iter().take(n).collect();
    let ints: Option<Vec<i32>> =
        values.iter().map(|value| i32::try_from(value.as_int()?).ok()).collect();
    if let Some(ints) = ints {
        return Some(Array::from(&ints[..]));
    }
    let floats: Option<Vec<f32>> = values.iter().map(Value::as_f32).collect();
    floats.map(|floats| Array::from(&floats[..]))
}

/// The tokenizer is BPE, as its merges show.
fn gemma4(gguf: &mut Gguf) {
    let (model, merges) = ("tokenizer.ggml.model", "tokenizer.ggml.merges");
    let is_llama = gguf.metadata().get(model).and_then(Value::as_str) == Some("llama");
    if is_llama && gguf.metadata().get(merges).is_some() {
        gguf.metadata_mut().set(model, "gemma4");
    }
}

fn gptoss(gguf: &mut Gguf) {
    if let Some(rows) = rows(gguf, "blk.0.ffn_gate_exps.weight") {
        set_if_missing(gguf, "gpt-oss.expert_feed_forward_length", rows);
    }
    set_if_missing(gguf, "gpt-oss.rope.scaling.type", "yarn");
    set_pre(gguf, "gpt-4o");
}

/// The columns inside the feed-forward network are those of its tensors, not those before the class adjusts them.
fn lfm2(gguf: &mut Gguf) {
    if let Some(rows) = rows(gguf, "blk.0.ffn_gate.weight") {
        gguf.metadata_mut().set("lfm2.feed_forward_length", rows);
    }
    set_pre(gguf, "lfm2");
}

/// An empty type of scaling is none.
fn mistral3(gguf: &mut Gguf) {
    let key = "mistral3.rope.scaling.type";
    if gguf.metadata().get(key).and_then(Value::as_str) == Some("") {
        gguf.metadata_mut().remove(key);
    }
    set_pre(gguf, "tekken");
}

/// Keys and values as what the heads attend to: the latent vector, and beside it the key that turns.
fn glm4moelite(gguf: &mut Gguf) {
    let key = |key: &str| format!("deepseek2.{key}");
    let head_dim = number(gguf, &key("attention.key_length"));
    let rank = number(gguf, &key("attention.kv_lora_rank"));
    let turned = number(gguf, &key("rope.dimension_count"));
    let metadata = gguf.metadata_mut();
    metadata.set(&key("attention.head_count_kv"), 1_u32);
    if let (Some(rank), Some(turned)) = (rank, turned) {
        metadata.set(&key("attention.key_length"), rank.saturating_add(turned));
        metadata.set(&key("attention.value_length"), rank);
    }
    if let Some(head_dim) = head_dim {
        metadata.set(&key("attention.key_length_mla"), head_dim);
        metadata.set(&key("attention.value_length_mla"), head_dim);
    }
    set_pre(gguf, "glm4");
}
