//! Quantized models that are made up on the spot.

use super::tiny::tiny;
use realizar_formats::{Gguf, GgufWriter};
use realizar_quant::{BlockType, quantize};
use std::path::Path;

/// Name, type, shape and data.
type Tensor = (String, BlockType, Vec<usize>, Vec<u8>);

/// Gives a block of random bits the scale 4e-4, with which the values of all IQ types are small.
fn set_scale(ty: BlockType, block: &mut [u8]) {
    if ty == BlockType::IQ1_M {
        // A nibble in the upper bits of each of the last four words.
        for (k, nibble) in [0xe, 0x8, 0xe, 0x0].into_iter().enumerate() {
            block[49 + 2 * k] = block[49 + 2 * k] & 0x0f | nibble << 4;
        }
    } else {
        block[..2].copy_from_slice(&[0x8e, 0x0e]);
    }
}

/// Writes a llama of two layers whose matrices cycle through `types`, with made-up
/// weights and the tokenizer of the tiny llama.
pub(crate) fn write_quantized(path: &Path, types: &[BlockType]) {
    write(path, types, None);
}

/// The same with five experts in every layer, of which a row uses two.
pub(crate) fn write_quantized_experts(path: &Path, types: &[BlockType]) {
    write(path, types, Some((5, 2)));
}

fn write(path: &Path, types: &[BlockType], experts: Option<(usize, usize)>) {
    const DIM: usize = 256;
    const HIDDEN_DIM: usize = 512;
    const VOCAB_SIZE: usize = 320;
    let mut state = 1_u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
    };
    let mut tensors = Vec::new();
    let mut matrix = |tensors: &mut Vec<Tensor>, name: &str, rows: usize, cols: usize| {
        let n = if name.contains("_exps") { experts.map_or(1, |(n, _)| n) } else { 1 };
        let ty = types[tensors.len() % types.len()];
        let shape = if n > 1 { vec![n, rows, cols] } else { vec![rows, cols] };
        let rows = n * rows;
        let scale = 2.0 / (cols as f32).sqrt();
        let values: Vec<f32> = (0..rows * cols).map(|_| random() * scale).collect();
        let mut data = vec![0; ty.row_bytes(rows * cols).unwrap()];
        if ty.can_quantize() {
            quantize(ty, &values, &mut data).unwrap();
        } else {
            data.fill_with(|| ((random() + 0.5) * 256.0) as u8);
            data.chunks_exact_mut(ty.block_bytes()).for_each(|block| set_scale(ty, block));
        }
        tensors.push((name.to_owned(), ty, shape, data));
    };
    let norm = |tensors: &mut Vec<Tensor>, name: &str| {
        let data = (0..DIM).flat_map(|_| 1.0_f32.to_le_bytes()).collect();
        tensors.push((name.to_owned(), BlockType::F32, vec![DIM], data));
    };
    matrix(&mut tensors, "token_embd.weight", VOCAB_SIZE, DIM);
    for l in 0..2 {
        for (name, rows, cols) in [
            ("attn_q", DIM, DIM),
            ("attn_k", DIM / 2, DIM),
            ("attn_v", DIM / 2, DIM),
            ("attn_output", DIM, DIM),
        ] {
            matrix(&mut tensors, &format!("blk.{l}.{name}.weight"), rows, cols);
        }
        let suffix = if experts.is_some() { "_exps" } else { "" };
        for (name, rows, cols) in [
            ("ffn_gate", HIDDEN_DIM, DIM),
            ("ffn_up", HIDDEN_DIM, DIM),
            ("ffn_down", DIM, HIDDEN_DIM),
        ] {
            matrix(&mut tensors, &format!("blk.{l}.{name}{suffix}.weight"), rows, cols);
        }
        if let Some((n, _)) = experts {
            matrix(&mut tensors, &format!("blk.{l}.ffn_gate_inp.weight"), n, DIM);
        }
        norm(&mut tensors, &format!("blk.{l}.attn_norm.weight"));
        norm(&mut tensors, &format!("blk.{l}.ffn_norm.weight"));
    }
    norm(&mut tensors, "output_norm.weight");
    let mut gguf = GgufWriter::new();
    gguf.set("general.architecture", "llama").unwrap();
    for (key, value) in [
        ("block_count", 2_u32),
        ("context_length", 768),
        ("embedding_length", DIM as u32),
        ("feed_forward_length", HIDDEN_DIM as u32),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        gguf.set(&format!("llama.{key}"), value).unwrap();
    }
    if let Some((n, n_used)) = experts {
        gguf.set("llama.expert_count", n as u32).unwrap();
        gguf.set("llama.expert_used_count", n_used as u32).unwrap();
    }
    gguf.set("llama.attention.layer_norm_rms_epsilon", 1e-5_f32).unwrap();
    let source = Gguf::open(tiny("llama").join("model-f32.gguf")).unwrap();
    for (key, value) in source.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        gguf.set(key, value.clone()).unwrap();
    }
    for (name, ty, shape, data) in &tensors {
        gguf.tensor(name, *ty, shape, data).unwrap();
    }
    gguf.write_file(path).unwrap();
}
