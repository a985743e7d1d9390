//! The model that the suite runs on: llama's published vocabulary over small random weights, so that
//! both servers read it in milliseconds. It has the tokens' real texts and says nothing.

use std::path::Path;

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use realizar_formats::{Gguf, GgufWriter, TensorType};

const DIM: usize = 64;
const HIDDEN_DIM: usize = 128;
const N_LAYERS: u32 = 2;
const N_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;
/// Longer than any context that a test asks for.
const MAX_SEQ_LEN: u32 = 16384;
/// What llama-server takes for a model without a template.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
                        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Writes the model with the vocabulary of `vocabulary`, a GGUF file without tensors.
pub(super) fn write(vocabulary: &Path, out: &Path) -> Result<()> {
    let vocabulary = Gguf::open(vocabulary)?;
    let tokens = vocabulary.metadata().str_array("tokenizer.ggml.tokens")?;
    let vocab_size = tokens.context("the vocabulary has no tokens")?.len();
    let kv_dim = DIM / N_HEADS * N_KV_HEADS;
    // Logits with a standard deviation of 2: likely tokens, and many of them.
    let mut matrices = vec![
        ("token_embd.weight".to_owned(), vocab_size, DIM, 1.0),
        ("output.weight".to_owned(), vocab_size, DIM, 2.0 / (DIM as f32).sqrt()),
    ];
    let mut norms = vec!["output_norm.weight".to_owned()];
    for l in 0..N_LAYERS {
        for (name, rows, cols) in [
            ("attn_q", DIM, DIM),
            ("attn_k", kv_dim, DIM),
            ("attn_v", kv_dim, DIM),
            ("attn_output", DIM, DIM),
            ("ffn_gate", HIDDEN_DIM, DIM),
            ("ffn_up", HIDDEN_DIM, DIM),
            ("ffn_down", DIM, HIDDEN_DIM),
        ] {
            matrices.push((format!("blk.{l}.{name}.weight"), rows, cols, (cols as f32).powf(-0.5)));
        }
        norms.extend(["attn_norm", "ffn_norm"].map(|name| format!("blk.{l}.{name}.weight")));
    }
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let data: Vec<Vec<u8>> = matrices
        .iter()
        .map(|&(_, rows, cols, scale)| {
            (0..rows * cols).flat_map(|_| (scale * normal(&mut random)).to_le_bytes()).collect()
        })
        .collect();
    let ones: Vec<u8> = (0..DIM).flat_map(|_| 1.0_f32.to_le_bytes()).collect();

    let mut gguf = GgufWriter::new();
    gguf.set("general.architecture", "llama")?;
    for (key, value) in [
        ("block_count", N_LAYERS),
        ("context_length", MAX_SEQ_LEN),
        ("embedding_length", DIM as u32),
        ("feed_forward_length", HIDDEN_DIM as u32),
        ("attention.head_count", N_HEADS as u32),
        ("attention.head_count_kv", N_KV_HEADS as u32),
        ("rope.dimension_count", (DIM / N_HEADS) as u32),
        ("vocab_size", vocab_size as u32),
    ] {
        gguf.set(&format!("llama.{key}"), value)?;
    }
    gguf.set("llama.attention.layer_norm_rms_epsilon", 1e-5_f32)?;
    for (key, value) in vocabulary.metadata().iter() {
        if key.starts_with("tokenizer.") {
            gguf.set(key, value.clone())?;
        }
    }
    gguf.set("tokenizer.chat_template", TEMPLATE)?;

    for ((name, rows, cols, _), data) in matrices.iter().zip(&data) {
        gguf.tensor(name, TensorType::F32, &[*rows, *cols], data)?;
    }
    for name in &norms {
        gguf.tensor(name, TensorType::F32, &[DIM], &ones)?;
    }
    gguf.write_file(out).with_context(|| out.display().to_string())
}

/// A value of mean 0 and standard deviation 1, nearly normal: the sum of four uniform ones.
fn normal(random: &mut ChaCha8Rng) -> f32 {
    let sum: f32 = (0..4).map(|_| (random.next_u32() >> 8) as f32 / (1_u32 << 24) as f32).sum();
    (sum - 2.0) * 3.0_f32.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_spread_as_they_should() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let values: Vec<f32> = (0..10_000).map(|_| normal(&mut random)).collect();
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    #[test]
    fn a_vocabulary_becomes_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let [vocabulary, out] = ["vocabulary.gguf", "model.gguf"].map(|f| folder.path().join(f));
        let mut gguf = GgufWriter::new();
        let tokens = realizar_formats::Array::from_strs(["<unk>", "<s>", "</s>", "a"]);
        gguf.set("tokenizer.ggml.tokens", tokens).unwrap();
        gguf.set("llama.block_count", 32_u32).unwrap();
        gguf.write_file(&vocabulary).unwrap();
        write(&vocabulary, &out).unwrap();
        let model = Gguf::open(&out).unwrap();
        assert_eq!(model.metadata().u32("llama.block_count").unwrap(), Some(N_LAYERS));
        assert_eq!(model.metadata().str_array("tokenizer.ggml.tokens").unwrap().unwrap().len(), 4);
        assert_eq!(model.tensor_info("output.weight").unwrap().shape, [4, DIM]);
        assert_eq!(model.tensors().len(), 3 + 9 * N_LAYERS as usize);
    }
}
