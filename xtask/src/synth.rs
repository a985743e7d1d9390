//! `cargo xtask synth`: a GGUF file with the shape of a published llama and made-up weights, to
//! measure speed on models that are too large to fetch for it. It has no tokenizer and says nothing.

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
    /// Type of the matrices of the layers.
    #[arg(long, default_value = "Q4_K")]
    ty: String,
    /// Type of the embedding and the head.
    #[arg(long, default_value = "Q6_K")]
    head_type: String,
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

/// Write the file.
pub(crate) fn run(args: &Args) -> Result<()> {
    let block_type =
        |name: &str| BlockType::from_name(name).ok_or_else(|| anyhow!("`{name}` is no block type"));
    let (ty, head_type) = (block_type(&args.ty)?, block_type(&args.head_type)?);
    let dims = args.shape.dims();
    let n_layers = args.layers.unwrap_or(dims.n_layers);
    let (dim, hidden_dim) = (dims.dim, dims.hidden_dim);
    let kv_dim = dim / dims.n_heads as usize * dims.n_kv_heads as usize;

    let narrow = rows(ty, dim)?;
    let wide = rows(ty, hidden_dim)?;
    let head = rows(head_type, dim)?;
    let ones: Vec<u8> = (0..dim).flat_map(|_| 1.0_f32.to_le_bytes()).collect();
    let mut gguf = GgufWriter::new();
    gguf.set("general.architecture", "llama")?;
    for (key, value) in [
        ("block_count", n_layers),
        ("context_length", 8192),
        ("embedding_length", dim as u32),
        ("feed_forward_length", hidden_dim as u32),
        ("attention.head_count", dims.n_heads),
        ("attention.head_count_kv", dims.n_kv_heads),
    ] {
        gguf.set(&format!("llama.{key}"), value)?;
    }
    gguf.set("llama.attention.layer_norm_rms_epsilon", 1e-5_f32)?;
    gguf.set("llama.rope.freq_base", 500_000.0_f32)?;

    let mut matrices = vec![("token_embd.weight".to_owned(), head_type, VOCAB_SIZE, dim)];
    if !dims.tied {
        matrices.push(("output.weight".to_owned(), head_type, VOCAB_SIZE, dim));
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
            matrices.push((format!("blk.{l}.{name}.weight"), ty, rows, cols));
        }
        norms.extend(["attn_norm", "ffn_norm"].map(|name| format!("blk.{l}.{name}.weight")));
    }
    for (name, ty, n_rows, cols) in &matrices {
        let data = match (ty == &head_type && *n_rows == VOCAB_SIZE, *cols == dim) {
            (true, _) => &head,
            (false, true) => &narrow,
            (false, false) => &wide,
        };
        let (n_rows, row_bytes) = (*n_rows, data.len() / N_ROWS);
        gguf.tensor_with(name, *ty, &[n_rows, *cols], move |out: &mut dyn Write| {
            (0..n_rows)
                .try_for_each(|row| out.write_all(&data[row % N_ROWS * row_bytes..][..row_bytes]))
        })?;
    }
    for name in &norms {
        gguf.tensor(name, BlockType::F32, &[dim], &ones)?;
    }
    gguf.write_file(&args.out).with_context(|| args.out.display().to_string())?;
    println!("{}: {} layers, {dim} wide, {ty} and {head_type}", args.out.display(), n_layers);
    Ok(())
}
