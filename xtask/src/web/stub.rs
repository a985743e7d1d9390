//! A model that says what it is told to: a GGUF file whose next token follows from the last one
//! alone, so that tests of the page talk to the real server and know every answer.
//!
//! Each token has a dimension of its own, its only layer adds zeros, and the head has for each token
//! the row of the token that it follows. The chat template ends a prompt with the token that begins
//! a script, chosen by a word in the last message. Letters follow one another in the order of the
//! alphabet without an end.

use std::path::Path;

use anyhow::{Context as _, Result};
use realizar_formats::{Array, GgufWriter, Value};
use realizar_quant::BlockType;

/// What the model says where the last message has the word, piece by piece.
const SCRIPTS: &[(&str, &[&str])] = &[
    ("hello", &["Hello", " there", "!", " How", " can I", " help", "?"]),
    (
        "markdown",
        &[
            "## A heading\n\n",
            "Some **bold** words, `code` and <b>a tag</b>.\n\n",
            "| Left | Right |\n|:-----|------:|\n",
            "| one | 1 |\n| two | 22 |\n\n",
            "```rust\n",
            "fn main() {\n    println!(\"hi\");\n}\n",
            "```\n\n",
            "A formula: $e^{i\\pi} + 1 = 0$.\n\n",
            "- [x] done\n- [ ] open\n\n",
            "![a picture](http://example.com/track.png) ",
            "[unsafe](javascript:alert(1))",
        ],
    ),
    (
        "think",
        &["<think>", "\nLet me think", " about it.\n", "</think>", "\n\nThe answer is", " 42."],
    ),
    (
        "weather",
        &[
            "<tool_call>\n",
            "{\"name\": ",
            "\"get_weather\"",
            ", \"arguments\": ",
            "{\"city\": ",
            "\"Oslo\"",
            "}}",
            "\n</tool_call>",
        ],
    ),
    ("degrees", &["It is sunny", " in Oslo."]),
    ("alphabet", &["a"]),
];
/// What it says to anything else.
const OTHERWISE: &[&str] = &["I see", "."];

const TEMPLATE: &str = "{%- for m in messages -%}{{ m.role }}: {{ m.content }}\n{% endfor -%}\
    {%- if tools -%}{{ tools | tojson }}<tool_call>{\"name\", \"arguments\"}</tool_call>{%- endif -%}\
    {%- if add_generation_prompt -%}{#- <think></think> -#}\
    {%- set last = messages[-1].content | string -%}SCRIPTS{%- endif -%}";

/// The tokenizer's types of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

const EOS: usize = 2;
/// The token that could stand in place of most others: a byte.
const SECOND: usize = 7;
/// Of each row of a matrix, which is a multiple of what kernels take at once.
const ROW: usize = 64;

#[derive(Default)]
struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    /// The token that follows each.
    next: Vec<usize>,
}

impl Vocabulary {
    fn add(&mut self, text: &str, ty: i32) -> usize {
        self.tokens.push(text.replace(' ', "\u{2581}"));
        self.types.push(ty);
        self.next.push(EOS);
        self.tokens.len() - 1
    }

    fn is_letter(&self, id: usize) -> bool {
        self.types[id] == NORMAL && self.tokens[id].len() == 1
    }

    fn new() -> Self {
        let mut own = Self::default();
        own.add("<unk>", UNKNOWN);
        own.add("<s>", CONTROL);
        own.add("</s>", CONTROL);
        for byte in 0..=255_u8 {
            own.add(&format!("<0x{byte:02X}>"), BYTE);
        }
        let letters: Vec<usize> =
            ('a'..='z').map(|letter| own.add(&letter.to_string(), NORMAL)).collect();
        for (idx, &letter) in letters.iter().enumerate() {
            own.next[letter] = letters[(idx + 1) % letters.len()];
        }
        for (word, pieces) in SCRIPTS.iter().chain([&("otherwise", OTHERWISE)]) {
            let mut last = own.add(&format!("<|{word}|>"), CONTROL);
            for piece in *pieces {
                let known = own.tokens.iter().position(|token| token == piece);
                let id = known.unwrap_or_else(|| own.add(piece, NORMAL));
                own.next[last] = id;
                last = id;
            }
        }
        own
    }
}

/// The template, with a branch for each script.
fn template() -> String {
    let mut branches = String::new();
    for (idx, (word, _)) in SCRIPTS.iter().enumerate() {
        let key = if idx == 0 { "if" } else { "elif" };
        branches += &format!("{{%- {key} '{word}' in last -%}}<|{word}|>");
    }
    branches += "{%- else -%}<|otherwise|>{%- endif -%}";
    TEMPLATE.replace("SCRIPTS", &branches)
}

/// Writes the model.
pub(super) fn write(path: &Path, context: u32) -> Result<()> {
    let vocabulary = Vocabulary::new();
    let n = vocabulary.tokens.len();
    let dim = n.next_multiple_of(ROW);
    let matrix = |places: &mut dyn Iterator<Item = (usize, usize, f32)>| {
        let mut values = vec![0.0_f32; n * dim];
        places.for_each(|(row, column, value)| values[row * dim + column] = value);
        bytes(&values)
    };
    let embeddings = matrix(&mut (0..n).map(|id| (id, id, 1.0)));
    // Elsewhere than in the alphabet, which has to be endless, a second token is less likely by some
    // units, for the probabilities that the page shows.
    let follows = vocabulary.next.iter().enumerate();
    let head = matrix(&mut follows.flat_map(|(id, &next)| {
        let second = if next == SECOND { SECOND + 1 } else { SECOND };
        [(next, id, 1.0), (second, id, if vocabulary.is_letter(id) { 0.0 } else { 0.8 })]
    }));
    let zeros = |n: usize| bytes(&vec![0.0; n]);
    let ones = bytes(&vec![1.0; dim]);
    let sharp = bytes(&vec![3.0; dim]);
    let tensors = [
        ("token_embd.weight", vec![n, dim], embeddings),
        ("output.weight", vec![n, dim], head),
        ("output_norm.weight", vec![dim], sharp),
        ("blk.0.attn_norm.weight", vec![dim], ones.clone()),
        ("blk.0.attn_q.weight", vec![dim, dim], zeros(dim * dim)),
        ("blk.0.attn_k.weight", vec![ROW, dim], zeros(ROW * dim)),
        ("blk.0.attn_v.weight", vec![ROW, dim], zeros(ROW * dim)),
        ("blk.0.attn_output.weight", vec![dim, dim], zeros(dim * dim)),
        ("blk.0.ffn_norm.weight", vec![dim], ones),
        ("blk.0.ffn_gate.weight", vec![ROW, dim], zeros(ROW * dim)),
        ("blk.0.ffn_up.weight", vec![ROW, dim], zeros(ROW * dim)),
        ("blk.0.ffn_down.weight", vec![dim, ROW], zeros(ROW * dim)),
    ];

    let mut gguf = GgufWriter::new();
    let u32s = [
        ("context_length", context),
        ("embedding_length", dim as u32),
        ("block_count", 1),
        ("feed_forward_length", ROW as u32),
        ("attention.head_count", (dim / ROW) as u32),
        ("attention.head_count_kv", 1),
        ("rope.dimension_count", ROW as u32),
        ("vocab_size", n as u32),
    ];
    gguf.set("general.architecture", "llama")?;
    gguf.set("general.name", "A model with a script")?;
    for (name, value) in u32s {
        gguf.set(&format!("llama.{name}"), value)?;
    }
    gguf.set("llama.attention.layer_norm_rms_epsilon", 1e-6_f32)?;
    gguf.set("tokenizer.ggml.model", "llama")?;
    gguf.set("tokenizer.ggml.tokens", Value::Array(Array::from_strs(&vocabulary.tokens)))?;
    gguf.set("tokenizer.ggml.token_type", Value::Array(Array::from(&vocabulary.types[..])))?;
    let scores: Vec<f32> = (0..n).map(|id| -(id as f32)).collect();
    gguf.set("tokenizer.ggml.scores", Value::Array(Array::from(&scores[..])))?;
    for (name, id) in [("unknown", 0), ("bos", 1), ("eos", EOS as u32)] {
        gguf.set(&format!("tokenizer.ggml.{name}_token_id"), id)?;
    }
    gguf.set("tokenizer.ggml.add_bos_token", true)?;
    gguf.set("tokenizer.ggml.add_space_prefix", false)?;
    gguf.set("tokenizer.chat_template", template().as_str())?;
    for (name, shape, data) in &tensors {
        gguf.tensor(name, BlockType::F32, shape, data)?;
    }
    gguf.write_file(path).context("write the file")
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_chains_of_tokens() {
        let own = Vocabulary::new();
        let said = |word: &str| {
            let start = own.tokens.iter().position(|t| *t == format!("<|{word}|>")).unwrap();
            let chain = std::iter::successors(Some(own.next[start]), |&id| Some(own.next[id]));
            let pieces: Vec<&str> = chain
                .take_while(|&id| id != EOS)
                .take(30)
                .map(|id| own.tokens[id].as_str())
                .collect();
            pieces.concat().replace('\u{2581}', " ")
        };
        assert_eq!(said("hello"), "Hello there! How can I help?");
        assert_eq!(said("otherwise"), "I see.");
        assert_eq!(said("alphabet"), "abcdefghijklmnopqrstuvwxyzabcd");
        // A token stands in one script only, or the chains would cross.
        let pieces: Vec<&str> = SCRIPTS.iter().flat_map(|(_, p)| p.iter().copied()).collect();
        let distinct: std::collections::HashSet<_> = pieces.iter().collect();
        assert_eq!(distinct.len(), pieces.len());
    }
}
