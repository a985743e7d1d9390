//! `cargo xtask synth`: a GGUF file with the shape of a published llama and made-up weights, to
//! measure speed on models that are too large to fetch for it. It has no tokenizer and says nothing.
//!
//! The types of its matrices are those that llama.cpp's quantizer chooses, so that a file has the size
//! of the published one.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use realizar_formats::GgufWriter;
use realizar_quant::{BlockType, quantize};

/// `cargo xtask synth`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shape of the model.
    #[arg(value_enum)]
    shape: Shape,
    /// Where the file goes.
    out: PathBuf,
    /// Type of the matrices: a block type such as Q8_0 or Q4_0, or the mixture Q4_K_M.
    #[arg(long, default_value = "Q4_K_M")]
    ty: String,
    /// Type of the head, instead of the one that goes with `--ty`.
    #[arg(long)]
    head_type: Option<String>,
    /// Layers, instead of the shape's.
    #[arg(long)]
    layers: Option<u32>,
}

/// Shapes of published models.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shape {
    /// Llama 3.2 1B: 2048 wide, 16 layers, a tied head.
    #[value(name = "1b")]
    B1,
    /// Llama 3.1 8B: 4096 wide, 32 layers.
    #[value(name = "8b")]
    B8,
}

/// The numbers of a shape.
struct Dims {
    dim: usize,
    hidden_dim: usize,
    n_layers: u32,
    n_heads: u32,
    n_kv_heads: u32,
    tied: bool,
}

const VOCAB_SIZE: usize = 128_256;

impl Shape {
    fn dims(self) -> Dims {
        let (n_heads, n_kv_heads) = (32, 8);
        match self {
            Self::B1 => {
                Dims { dim: 2048, hidden_dim: 8192, n_layers: 16, n_heads, n_kv_heads, tied: true }
            }
            Self::B8 => Dims {
                dim: 4096,
                hidden_dim: 14336,
                n_layers: 32,
                n_heads,
                n_kv_heads,
                tied: false,
            },
        }
    }
}

/// Different rows of a matrix; they follow one another again and again.
const N_ROWS: usize = 61;

/// Rows of made-up weights of a matrix with `cols` columns, quantized.
fn rows(ty: BlockType, cols: usize) -> Result<Vec<u8>> {
    let mut state = 1_u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
    };
    let scale = 2.0 / (cols as f32).sqrt();
    let values: Vec<f32> = (0..N_ROWS * cols).map(|_| random() * scale).collect();
    let mut data = vec![0; ty.row_bytes(values.len())?];
    quantize(ty, &values, &mut data)?;
    Ok(data)
}

/// Which matrix has which type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mixture {
    /// Of most matrices.
    base: BlockType,
    /// Of `attn_v` and `ffn_down` in the layers that [`Self::is_finer`] names.
    finer: BlockType,
    head: BlockType,
}

impl Mixture {
    /// `Q4_K_M`, or a block type.
    fn from_name(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("Q4_K_M") {
            let (base, finer) = (BlockType::Q4_K, BlockType::Q6_K);
            return Some(Self { base, finer, head: finer });
        }
        let base = BlockType::from_name(name)?;
        let whole =
            matches!(base, BlockType::F32 | BlockType::F16 | BlockType::BF16 | BlockType::Q8_0);
        Some(Self { base, finer: base, head: if whole { base } else { BlockType::Q6_K } })
    }

    /// Whether layer `l` is one of those that keep more bits: the first and the last eighth, and
    /// every third between them.
    fn is_finer(l: u32, n_layers: u32) -> bool {
        let eighth = n_layers / 8;
        l < eighth || l >= 7 * n_layers / 8 || (l - eighth) % 3 == 2
    }

    /// The type of a layer's matrix.
    fn of(&self, name: &str, l: u32, n_layers: u32) -> BlockType {
        let chosen = matches!(name, "attn_v" | "ffn_down") && Self::is_finer(l, n_layers);
        if chosen { self.finer } else { self.base }
    }
}

/// Write the file.
pub(crate) fn run(args: &Args) -> Result<()> {
    let unknown = |name: &str| anyhow!("`{name}` is no block type");
    let mut mixture = Mixture::from_name(&args.ty).ok_or_else(|| unknown(&args.ty))?;
    if let Some(name) = &args.head_type {
        mixture.head = BlockType::from_name(name).ok_or_else(|| unknown(name))?;
    }
    let dims = args.shape.dims();
    let n_layers = args.layers.unwrap_or(dims.n_layers);
    let (dim, hidden_dim) = (dims.dim, dims.hidden_dim);
    let kv_dim = dim / dims.n_heads as usize * dims.n_kv_heads as usize;

    let ones: Vec<u8> = (0..dim).flat_map(|_| 1.0_f32.to_le_bytes()).collect();
    let embed = if dims.tied { mixture.head } else { mixture.base };
    let mut matrices = vec![("token_embd.weight".to_owned(), embed, VOCAB_SIZE, dim)];
    if !dims.tied {
        matrices.push(("output.weight".to_owned(), mixture.head, VOCAB_SIZE, dim));
    }
    let mut norms = vec!["output_norm.weight".to_owned()];
    for l in 0..n_layers {
        for (name, rows, cols) in [
            ("attn_q", dim, dim),
            ("attn_k", kv_dim, dim),
            ("attn_v", kv_dim, dim),
            ("attn_output", dim, dim),
            ("ffn_gate", hidden_dim, dim),
            ("ffn_up", hidden_dim, dim),
            ("ffn_down", dim, hidden_dim),
        ] {
            let ty = mixture.of(name, l, n_layers);
            matrices.push((format!("blk.{l}.{name}.weight"), ty, rows, cols));
        }
        norms.extend(["attn_norm", "ffn_norm"].map(|name| format!("blk.{l}.{name}.weight")));
    }
    let mut made: Vec<((BlockType, usize), Vec<u8>)> = Vec::new(); // rows by type and columns
    for &(_, ty, _, cols) in &matrices {
        if !made.iter().any(|(kind, _)| *kind == (ty, cols)) {
            made.push(((ty, cols), rows(ty, cols)?));
        }
    }
    let mut gguf = GgufWriter::new();
    gguf.set("general.architecture", "llama")?;
    gguf.set("general.quantization_version", 2_u32)?;
    for (key, value) in [
        ("block_count", n_layers),
        ("context_length", 8192),
        ("embedding_length", dim as u32),
        ("feed_forward_length", hidden_dim as u32),
        ("attention.head_count", dims.n_heads),
        ("attention.head_count_kv", dims.n_kv_heads),
        ("vocab_size", VOCAB_SIZE as u32),
    ] {
        gguf.set(&format!("llama.{key}"), value)?;
    }
    gguf.set("llama.attention.layer_norm_rms_epsilon", 1e-5_f32)?;
    gguf.set("llama.rope.freq_base", 500_000.0_f32)?;
    // How llama.cpp is told that there is none.
    gguf.set("tokenizer.ggml.model", "no_vocab")?;

    for &(ref name, ty, n_rows, cols) in &matrices {
        let kind = made.iter().find(|(kind, _)| *kind == (ty, cols));
        let (_, data) = kind.context("rows of every kind were made")?;
        let row_bytes = data.len() / N_ROWS;
        gguf.tensor_with(name, ty, &[n_rows, cols], move |out: &mut dyn Write| {
            (0..n_rows)
                .try_for_each(|row| out.write_all(&data[row % N_ROWS * row_bytes..][..row_bytes]))
        })?;
    }
    for name in &norms {
        gguf.tensor(name, BlockType::F32, &[dim], &ones)?;
    }
    gguf.write_file(&args.out).with_context(|| args.out.display().to_string())?;
    println!("{}: {n_layers} layers, {dim} wide, {}", args.out.display(), args.ty);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixture_names_the_type_of_each_matrix() {
        let of = |name: &str| Mixture::from_name(name).unwrap();
        let mixture = of("q4_k_m");
        let finer: Vec<u32> = (0..16).filter(|&l| Mixture::is_finer(l, 16)).collect();
        assert_eq!(finer, [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(mixture.of("attn_v", 1, 16), BlockType::Q6_K);
        assert_eq!(mixture.of("ffn_down", 2, 16), BlockType::Q4_K);
        assert_eq!(mixture.of("ffn_up", 1, 16), BlockType::Q4_K);
        assert_eq!(mixture.head, BlockType::Q6_K);
        assert_eq!(of("Q8_0").head, BlockType::Q8_0);
        assert_eq!(of("Q4_0").head, BlockType::Q6_K);
        assert_eq!(of("Q4_0").of("attn_v", 0, 16), BlockType::Q4_0);
        assert_eq!(Mixture::from_name("Q4_K_X"), None);
    }
}
