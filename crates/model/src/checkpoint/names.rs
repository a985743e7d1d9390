//! What tensors are called: from a weight's canonical name to the file's.
//!
//! A table row is a canonical leaf, such as `wq`, and the name in the file with
//! `{}` for the layer and `{e}` for the expert, without `.weight` or `.bias`. An architecture that
//! deviates has a table of its own, which is consulted first.

/// Rows of canonical leaf and file name.
pub(crate) type NameTable = &'static [(&'static str, &'static str)];

/// The names of llama.cpp's converter, the same for every architecture.
pub(crate) const GGUF: NameTable = &[
    ("tok_embed", "token_embd"),
    ("pos_embed", "position_embd"),
    ("final_norm", "output_norm"),
    ("lm_head", "output"),
    ("rope_freqs", "rope_freqs"),
    ("rope_factors_long", "rope_factors_long"),
    ("rope_factors_short", "rope_factors_short"),
    ("attn_norm", "blk.{}.attn_norm"),
    ("wq", "blk.{}.attn_q"),
    ("wk", "blk.{}.attn_k"),
    ("wv", "blk.{}.attn_v"),
    ("wqkv", "blk.{}.attn_qkv"),
    ("wo", "blk.{}.attn_output"),
    ("q_norm", "blk.{}.attn_q_norm"),
    ("k_norm", "blk.{}.attn_k_norm"),
    ("post_attn_norm", "blk.{}.post_attention_norm"),
    ("ffn_norm", "blk.{}.ffn_norm"),
    ("w_gate", "blk.{}.ffn_gate"),
    ("w_up", "blk.{}.ffn_up"),
    ("w_gate_up", "blk.{}.ffn_up"), // fused: rows of the gate, then of up
    ("w_down", "blk.{}.ffn_down"),
    ("post_ffn_norm", "blk.{}.post_ffw_norm"),
    ("router", "blk.{}.ffn_gate_inp"),
    ("choice_bias", "blk.{}.exp_probs_b.bias"),
    ("experts.w_gate", "blk.{}.ffn_gate_exps"),
    ("experts.w_up", "blk.{}.ffn_up_exps"),
    ("experts.w_gate_up", "blk.{}.ffn_gate_up_exps"),
    ("experts.w_down", "blk.{}.ffn_down_exps"),
    ("expert.w_gate", "blk.{}.ffn_gate.{e}"), // files of before the tensors were stacked
    ("expert.w_up", "blk.{}.ffn_up.{e}"),
    ("expert.w_down", "blk.{}.ffn_down.{e}"),
    ("shared.router", "blk.{}.ffn_gate_inp_shexp"),
    ("shared.w_gate", "blk.{}.ffn_gate_shexp"),
    ("shared.w_up", "blk.{}.ffn_up_shexp"),
    ("shared.w_down", "blk.{}.ffn_down_shexp"),
    ("nextn.join", "blk.{}.nextn.eh_proj"),
    ("nextn.embed_norm", "blk.{}.nextn.enorm"),
    ("nextn.hidden_norm", "blk.{}.nextn.hnorm"),
    ("nextn.norm", "blk.{}.nextn.shared_head_norm"),
    ("nextn.tok_embed", "blk.{}.nextn.embed_tokens"),
    ("nextn.lm_head", "blk.{}.nextn.shared_head_head"),
];

/// The names that most decoders of transformers share.
pub(crate) const HF: NameTable = &[
    ("tok_embed", "model.embed_tokens"),
    ("final_norm", "model.norm"),
    ("lm_head", "lm_head"),
    ("attn_norm", "model.layers.{}.input_layernorm"),
    ("wq", "model.layers.{}.self_attn.q_proj"),
    ("wk", "model.layers.{}.self_attn.k_proj"),
    ("wv", "model.layers.{}.self_attn.v_proj"),
    ("wqkv", "model.layers.{}.self_attn.qkv_proj"),
    ("wo", "model.layers.{}.self_attn.o_proj"),
    ("q_norm", "model.layers.{}.self_attn.q_norm"),
    ("k_norm", "model.layers.{}.self_attn.k_norm"),
    ("ffn_norm", "model.layers.{}.post_attention_layernorm"),
    ("w_gate", "model.layers.{}.mlp.gate_proj"),
    ("w_up", "model.layers.{}.mlp.up_proj"),
    ("w_gate_up", "model.layers.{}.mlp.gate_up_proj"),
    ("w_down", "model.layers.{}.mlp.down_proj"),
    ("router", "model.layers.{}.mlp.gate"),
    ("experts.w_gate_up", "model.layers.{}.mlp.experts.gate_up_proj"),
    ("experts.w_down", "model.layers.{}.mlp.experts.down_proj"),
    ("expert.w_gate", "model.layers.{}.mlp.experts.{e}.gate_proj"),
    ("expert.w_up", "model.layers.{}.mlp.experts.{e}.up_proj"),
    ("expert.w_down", "model.layers.{}.mlp.experts.{e}.down_proj"),
    ("shared.router", "model.layers.{}.mlp.shared_expert_gate"),
    ("shared.w_gate", "model.layers.{}.mlp.shared_expert.gate_proj"),
    ("shared.w_up", "model.layers.{}.mlp.shared_expert.up_proj"),
    ("shared.w_down", "model.layers.{}.mlp.shared_expert.down_proj"),
    ("nextn.join", "model.layers.{}.eh_proj"),
    ("nextn.embed_norm", "model.layers.{}.enorm"),
    ("nextn.hidden_norm", "model.layers.{}.hnorm"),
    ("nextn.norm", "model.layers.{}.shared_head.norm"),
    ("nextn.tok_embed", "model.layers.{}.embed_tokens"),
    ("nextn.lm_head", "model.layers.{}.shared_head.head"),
];

/// `stem.suffix`, or `stem` alone when the suffix is empty.
pub(crate) fn with_suffix(stem: String, suffix: &str) -> String {
    if suffix.is_empty() { stem } else { format!("{stem}.{suffix}") }
}

/// The file's name of `leaf`, with the layer filled in and `suffix` appended.
pub(crate) fn file_name(
    tables: [NameTable; 2],
    leaf: &str,
    layer: Option<usize>,
    suffix: &str,
) -> Option<String> {
    let row = tables.iter().flat_map(|t| t.iter()).find(|(name, _)| *name == leaf)?;
    let stem = match layer {
        Some(l) => row.1.replace("{}", &l.to_string()),
        None => row.1.to_owned(),
    };
    Some(with_suffix(stem, suffix))
}
