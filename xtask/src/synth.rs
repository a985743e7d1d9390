//! `cargo xtask synth`: a GGUF file with the shape of a published model and made-up weights, to
//! measure speed on models that are too large to fetch for it. It says nothing, and has a tokenizer only
//! where another file lends its own.
//!
//! The types of its matrices are those that llama.cpp's quantizer chooses, so that a file has the size
//! of the published one.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;
use realizar_formats::{Array, Gguf, GgufWriter, Value};
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
    /// A GGUF file whose tokenizer and chat template it gets, to serve it.
    #[arg(long, value_name = "GGUF")]
    tokenizer: Option<PathBuf>,
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
    /// LFM2 350M: 1024 wide, 16 layers of which 10 are short convolutions, a tied head.
    #[value(name = "lfm2-350m")]
    Lfm2,
    /// Qwen3.5 0.8B: 1024 wide, 24 layers of which 18 are gated delta nets, a tied head.
    #[value(name = "qwen3.5-0.8b")]
    Qwen35,
    /// Qwen3 30B-A3B: 2048 wide, 48 layers of 128 experts, 8 of which a token uses.
    #[value(name = "30b-a3b")]
    B30A3,
}

/// The numbers of a shape.
struct Dims {
    architecture: &'static str,
    dim: usize,
    /// Of an expert, where there are experts.
    hidden_dim: usize,
    n_layers: u32,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    rope_theta: f32,
    tied: bool,
    /// Experts of a layer, and of a token.
    experts: Option<(u32, u32)>,
}

impl Shape {
    fn dims(self) -> Dims {
        let llama = Dims {
            architecture: "llama",
            dim: 2048,
            hidden_dim: 8192,
            n_layers: 16,
            n_heads: 32,
            n_kv_heads: 8,
            head_dim: 64,
            vocab_size: 128_256,
            rope_theta: 500_000.0,
            tied: true,
            experts: None,
        };
        match self {
            Self::B1 => llama,
            Self::B8 => Dims {
                dim: 4096,
                hidden_dim: 14336,
                n_layers: 32,
                head_dim: 128,
                tied: false,
                ..llama
            },
            Self::Lfm2 => Dims {
                architecture: "lfm2",
                dim: 1024,
                hidden_dim: 4608,
                n_heads: 16,
                vocab_size: 65_536,
                rope_theta: 1e6,
                ..llama
            },
            Self::Qwen35 => Dims {
                architecture: "qwen35",
                dim: 1024,
                hidden_dim: 3584,
                n_layers: 24,
                n_heads: 8,
                n_kv_heads: 2,
                head_dim: 256,
                vocab_size: 248_320,
                rope_theta: 1e7,
                ..llama
            },
            Self::B30A3 => Dims {
                architecture: "qwen3moe",
                hidden_dim: 768,
                n_layers: 48,
                n_kv_heads: 4,
                head_dim: 128,
                vocab_size: 151_936,
                rope_theta: 1e6,
                tied: false,
                experts: Some((128, 8)),
                ..llama
            },
        }
    }

    /// Whether a layer attends; the others carry a state.
    fn attends(self, l: u32) -> bool {
        match self {
            Self::B1 | Self::B8 | Self::B30A3 => true,
            Self::Lfm2 => [2, 5, 8, 10, 12, 14].contains(&l),
            Self::Qwen35 => (l + 1).is_multiple_of(4),
        }
    }
}

/// Positions that a convolution of LFM2 sees.
const LFM2_TAPS: usize = 3;
/// The same of Qwen3.5.
const QWEN35_TAPS: usize = 4;
/// Heads of keys, and of values, of Qwen3.5's linear attention.
const QWEN35_HEADS: usize = 16;
/// Elements of their keys and values.
const QWEN35_HEAD_DIM: usize = 128;

/// The tensors of a file.
struct Tensors {
    mixture: Mixture,
    n_layers: u32,
    matrices: Vec<(String, BlockType, [usize; 2])>,
    /// Name, shape and F32 elements.
    vectors: Vec<(String, Vec<usize>, Vec<u8>)>,
}

impl Tensors {
    /// Matrices of layer `l`: name, rows, columns.
    fn matrices<const N: usize>(&mut self, l: u32, all: [(&str, usize, usize); N]) {
        for (name, rows, cols) in all {
            let ty = self.mixture.of(name, l, self.n_layers);
            self.matrices.push((format!("blk.{l}.{name}.weight"), ty, [rows, cols]));
        }
    }

    /// A vector of layer `l` with one value in all places.
    fn filled(&mut self, l: u32, name: &str, shape: &[usize], value: f32) {
        let bytes = value.to_le_bytes().repeat(shape.iter().product());
        self.vectors.push((format!("blk.{l}.{name}"), shape.to_vec(), bytes));
    }

    fn layer(&mut self, shape: Shape, dims: &Dims, l: u32) {
        let &Dims { dim, hidden_dim, n_heads, n_kv_heads, head_dim, .. } = dims;
        let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
        let is_qwen35 = shape == Shape::Qwen35;
        if shape.attends(l) {
            // Qwen3.5 has a gate for each column beside the query's.
            let q_rows = if is_qwen35 { 2 * q_dim } else { q_dim };
            self.matrices(
                l,
                [
                    ("attn_q", q_rows, dim),
                    ("attn_k", kv_dim, dim),
                    ("attn_v", kv_dim, dim),
                    ("attn_output", dim, q_dim),
                ],
            );
            if shape != Shape::B1 && shape != Shape::B8 {
                self.filled(l, "attn_q_norm.weight", &[head_dim], 1.0);
                self.filled(l, "attn_k_norm.weight", &[head_dim], 1.0);
            }
        } else if is_qwen35 {
            let inner = QWEN35_HEADS * QWEN35_HEAD_DIM;
            self.matrices(
                l,
                [
                    ("attn_qkv", 3 * inner, dim),
                    ("attn_gate", inner, dim),
                    ("ssm_alpha", QWEN35_HEADS, dim),
                    ("ssm_beta", QWEN35_HEADS, dim),
                    ("ssm_out", dim, inner),
                ],
            );
            self.filled(l, "ssm_conv1d.weight", &[3 * inner, QWEN35_TAPS], 0.3);
            self.filled(l, "ssm_a", &[QWEN35_HEADS], -0.1);
            self.filled(l, "ssm_dt.bias", &[QWEN35_HEADS], -2.0);
            self.filled(l, "ssm_norm.weight", &[QWEN35_HEAD_DIM], 1.0);
        } else {
            self.matrices(
                l,
                [("shortconv.in_proj", 3 * dim, dim), ("shortconv.out_proj", dim, dim)],
            );
            self.filled(l, "shortconv.conv.weight", &[dim, LFM2_TAPS], 0.3);
        }
        let (n, names) = match dims.experts {
            Some((n, _)) => (n as usize, ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]),
            None => (1, ["ffn_gate", "ffn_up", "ffn_down"]),
        };
        let [gate, up, down] = names;
        self.matrices(
            l,
            [(gate, n * hidden_dim, dim), (up, n * hidden_dim, dim), (down, n * dim, hidden_dim)],
        );
        if dims.experts.is_some() {
            let router = format!("blk.{l}.ffn_gate_inp.weight");
            self.matrices.push((router, BlockType::F32, [n, dim]));
        }
        self.filled(l, "attn_norm.weight", &[dim], 1.0);
        let ffn_norm = if is_qwen35 { "post_attention_norm.weight" } else { "ffn_norm.weight" };
        self.filled(l, ffn_norm, &[dim], 1.0);
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
        let chosen =
            matches!(name, "attn_v" | "ffn_down" | "ffn_down_exps") && Self::is_finer(l, n_layers);
        if chosen { self.finer } else { self.base }
    }
}

/// Sets what a loader asks of the model.
fn set_numbers(gguf: &mut GgufWriter<'_>, shape: Shape, dims: &Dims, n_layers: u32) -> Result<()> {
    let name = dims.architecture;
    gguf.set("general.architecture", name)?;
    gguf.set("general.quantization_version", 2_u32)?;
    let head_dim = dims.head_dim as u32;
    let mut numbers = vec![
        ("block_count", n_layers),
        ("context_length", 8192),
        ("embedding_length", dims.dim as u32),
        ("feed_forward_length", dims.hidden_dim as u32),
        ("attention.head_count", dims.n_heads as u32),
        ("vocab_size", dims.vocab_size as u32),
    ];
    match shape {
        Shape::B1 | Shape::B8 => {}
        Shape::B30A3 => {
            numbers
                .extend([("attention.key_length", head_dim), ("attention.value_length", head_dim)]);
            let (n, n_used) = dims.experts.unwrap_or_default();
            numbers.extend([
                ("expert_count", n),
                ("expert_used_count", n_used),
                ("expert_feed_forward_length", dims.hidden_dim as u32),
            ]);
        }
        Shape::Lfm2 => numbers.push(("shortconv.l_cache", LFM2_TAPS as u32)),
        Shape::Qwen35 => numbers.extend([
            ("attention.key_length", head_dim),
            ("attention.value_length", head_dim),
            ("rope.dimension_count", head_dim / 4),
            ("full_attention_interval", 4),
            ("ssm.conv_kernel", QWEN35_TAPS as u32),
            ("ssm.state_size", QWEN35_HEAD_DIM as u32),
            ("ssm.group_count", QWEN35_HEADS as u32),
            ("ssm.time_step_rank", QWEN35_HEADS as u32),
            ("ssm.inner_size", (QWEN35_HEADS * QWEN35_HEAD_DIM) as u32),
        ]),
    }
    for (key, value) in numbers {
        gguf.set(&format!("{name}.{key}"), value)?;
    }
    let kv_heads = dims.n_kv_heads as u32;
    let value = match shape {
        Shape::Lfm2 => {
            let of = |l| if shape.attends(l) { kv_heads } else { 0 };
            let all: Vec<u32> = (0..n_layers).map(of).collect();
            Value::Array(Array::from(&all[..]))
        }
        _ => kv_heads.into(),
    };
    gguf.set(&format!("{name}.attention.head_count_kv"), value)?;
    let eps = if shape == Shape::Qwen35 { 1e-6_f32 } else { 1e-5 };
    gguf.set(&format!("{name}.attention.layer_norm_rms_epsilon"), eps)?;
    gguf.set(&format!("{name}.rope.freq_base"), dims.rope_theta)?;
    if shape == Shape::Qwen35 {
        // Pairs of time, height, width and none, of head_dim / 8.
        let sections = [11_i32, 11, 10, 0];
        gguf.set(&format!("{name}.rope.dimension_sections"), Array::from(&sections[..]))?;
    }
    Ok(())
}

/// Copies the tokenizer of the file at `path`.
fn set_tokenizer(gguf: &mut GgufWriter<'_>, path: &PathBuf, vocab_size: usize) -> Result<()> {
    let source = Gguf::open(path)?;
    let metadata = source.metadata();
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
    let n_tokens = tokens.map_or(0, Array::len);
    ensure!(
        n_tokens > 0 && n_tokens <= vocab_size,
        "{}: {n_tokens} tokens for a vocabulary of {vocab_size}",
        path.display()
    );
    for (key, value) in metadata.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        gguf.set(key, value.clone())?;
    }
    Ok(())
}

/// Write the file.
pub(crate) fn run(args: &Args) -> Result<()> {
    let unknown = |name: &str| anyhow!("`{name}` is not a block type");
    let mut mixture = Mixture::from_name(&args.ty).ok_or_else(|| unknown(&args.ty))?;
    if let Some(name) = &args.head_type {
        mixture.head = BlockType::from_name(name).ok_or_else(|| unknown(name))?;
    }
    let dims = args.shape.dims();
    let n_layers = args.layers.unwrap_or(dims.n_layers);
    let (dim, vocab_size) = (dims.dim, dims.vocab_size);

    let mut tensors = Tensors { mixture, n_layers, matrices: Vec::new(), vectors: Vec::new() };
    let embed = if dims.tied { mixture.head } else { mixture.base };
    tensors.matrices.push(("token_embd.weight".to_owned(), embed, [vocab_size, dim]));
    if !dims.tied {
        tensors.matrices.push(("output.weight".to_owned(), mixture.head, [vocab_size, dim]));
    }
    let final_norm = match args.shape {
        Shape::Lfm2 => "token_embd_norm.weight",
        _ => "output_norm.weight",
    };
    let ones = 1.0_f32.to_le_bytes().repeat(dim);
    tensors.vectors.push((final_norm.to_owned(), vec![dim], ones));
    (0..n_layers).for_each(|l| tensors.layer(args.shape, &dims, l));

    let mut made: Vec<((BlockType, usize), Vec<u8>)> = Vec::new(); // rows by type and columns
    for &(_, ty, [_, cols]) in &tensors.matrices {
        if !made.iter().any(|(kind, _)| *kind == (ty, cols)) {
            made.push(((ty, cols), rows(ty, cols)?));
        }
    }
    let mut gguf = GgufWriter::new();
    set_numbers(&mut gguf, args.shape, &dims, n_layers)?;
    match &args.tokenizer {
        Some(path) => set_tokenizer(&mut gguf, path, vocab_size)?,
        // How llama.cpp is told that there is none.
        None => gguf.set("tokenizer.ggml.model", "no_vocab")?,
    }
    for &(ref name, ty, [n_rows, cols]) in &tensors.matrices {
        let kind = made.iter().find(|(kind, _)| *kind == (ty, cols));
        let (_, data) = kind.context("rows of every kind were made")?;
        let row_bytes = data.len() / N_ROWS;
        let shape = match dims.experts {
            Some((n, _)) if name.contains("_exps") => vec![n as usize, n_rows / n as usize, cols],
            _ => vec![n_rows, cols],
        };
        gguf.tensor_with(name, ty, &shape, move |out: &mut dyn Write| {
            (0..n_rows)
                .try_for_each(|row| out.write_all(&data[row % N_ROWS * row_bytes..][..row_bytes]))
        })?;
    }
    for (name, shape, bytes) in &tensors.vectors {
        gguf.tensor(name, BlockType::F32, shape, bytes)?;
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
