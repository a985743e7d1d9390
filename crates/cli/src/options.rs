//! Arguments that several commands share: global flags, how a model is loaded, how tokens are
//! chosen. The arguments of one command alone are in its own file.

mod sampling;

pub(crate) use sampling::SamplingArgs;

use std::hash::{BuildHasher, RandomState};
use std::io::IsTerminal;
use std::net::Ipv6Addr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use realizar_runtime::backend::cpu::Affinity;
use realizar_runtime::device::{DeviceList, DeviceOptions};
use realizar_runtime::rope::RopeStretch;
use realizar_runtime::{Error, PackedCache};

use crate::grammar::{GrammarArgs, UnlistedProperties};
use crate::source::Sources;
use crate::source::cache::Cache;
use crate::ui::{self, Color};

/// Flags that every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Directory for downloaded models [default: $REALIZAR_CACHE, or ~/.cache/realizar]
    #[arg(long, global = true, value_name = "DIR")]
    #[arg(hide_short_help = true)]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Open no connection and start no process; use only what is in the cache
    #[arg(long, global = true)]
    #[arg(hide_short_help = true)]
    pub(crate) offline: bool,
    /// Read options from FILE [default: realizar/config.toml in $XDG_CONFIG_HOME or ~/.config]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Read no config file
    #[arg(long, global = true, conflicts_with = "config")]
    #[arg(hide_short_help = true)]
    pub(crate) no_config: bool,
    /// Log to standard error (-vv: in more detail)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Colour messages: auto, always or never
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "WHEN")]
    #[arg(hide_possible_values = true)]
    #[arg(hide_short_help = true)]
    pub(crate) color: Color,
}

impl GlobalArgs {
    pub(crate) fn sources(&self) -> Sources {
        Sources::new(Cache::locate(self.cache_dir.as_deref()), self.offline)
    }
}

/// Arithmetic of matrix products with quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArithmeticArg {
    /// Quantize activations where the kernels gain from it.
    Auto,
    /// Keep activations in F32.
    F32,
}

/// Type of the values in the key-value cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvTypeArg {
    F32,
    F16,
    Bf16,
    #[value(name = "fp8", aliases = ["f8", "fp8_e4m3"])]
    Fp8,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
}

/// Where the threads of the CPU may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AffinityArg {
    /// Wherever the system puts them.
    None,
    /// Each on a core of its own.
    Cores,
}

/// Whether a model drafts tokens with a layer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DraftHeadArg {
    /// If it has one, unless there is a draft model.
    Auto,
    /// Yes.
    On,
    /// No.
    Off,
}

/// How a rotary embedding is stretched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RopeScalingArg {
    /// Every angle is divided by the factor.
    Linear,
    /// High frequencies stay, low ones are divided.
    Yarn,
}

/// How a model is loaded and run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Execution")]
pub(crate) struct LoadArgs {
    /// Device: auto, cpu, wgpu, wgpu:N, cuda or cuda:N; `realizar devices` lists them. A
    /// comma-separated list splits the layers: wgpu:0=20,cpu [default: auto]
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    #[arg(env = "REALIZAR_DEVICE", hide_env_values = true)]
    pub(crate) device: Option<DeviceList>, // `None` is auto where the model is run
    /// Run the last N layers and the head on the GPU and the rest on the CPU
    #[arg(long, value_name = "N", value_parser = gpu_layers, allow_negative_numbers = true)]
    pub(crate) gpu_layers: Option<usize>,
    /// Split every layer across N NVIDIA GPUs: the first N, or those named by --device
    #[arg(long, visible_alias = "tensor-parallel-size", value_name = "N", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(crate) tensor_parallel: Option<usize>,
    /// Do not use subgroups, half precision or packed dot products on the GPU
    #[arg(long, hide_short_help = true)]
    pub(crate) gpu_plain: bool,
    /// Use programmatic dependent launch of CUDA kernels, on GPUs of compute capability 9.0 or
    /// higher; not all tests have run with it on a GPU
    #[arg(long, hide_short_help = true, help_heading = "Experimental")]
    pub(crate) cuda_dependent_launch: bool,
    /// Use warpgroup matrix instructions (wgmma) for prompts, on GPUs of compute capability 9.0;
    /// not all tests have run with it on a GPU
    #[arg(long, hide_short_help = true, help_heading = "Experimental")]
    pub(crate) cuda_wgmma: bool,
    /// Round the activations of generated tokens to BF16, not to 8-bit integers, for quantized weights,
    /// and multiply them on tensor cores; not run on a GPU yet
    #[arg(long, hide_short_help = true, help_heading = "Experimental")]
    pub(crate) cuda_bf16_decode: bool,
    /// CPU threads [default: the number of physical cores]
    #[arg(short, long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) threads: Option<usize>,
    /// Thread affinity: none (the system decides) or cores (each thread is pinned to one)
    #[arg(long, value_enum, default_value = "none", value_name = "WHERE")]
    #[arg(hide_possible_values = true)]
    #[arg(hide_short_help = true)]
    pub(crate) affinity: AffinityArg,
    /// Arithmetic: auto (quantized activations where that is faster) or f32 (activations in F32)
    #[arg(long, value_enum, default_value = "auto", value_name = "KIND")]
    #[arg(hide_possible_values = true)]
    #[arg(hide_short_help = true)]
    pub(crate) arithmetic: ArithmeticArg,
    /// Type of the KV cache: f32, f16, bf16, fp8, q8_0 or q4_0 [default: f16, with --arithmetic
    /// f32: f32]
    #[arg(long, value_enum, value_name = "TYPE", hide_possible_values = true)]
    pub(crate) kv_type: Option<KvTypeArg>,
    /// RoPE scaling to extend the context: linear or yarn, by --rope-scale
    #[arg(long, value_enum, value_name = "KIND", requires = "rope_scale")]
    #[arg(hide_possible_values = true)]
    #[arg(hide_short_help = true)]
    pub(crate) rope_scaling: Option<RopeScalingArg>,
    /// Factor of --rope-scaling, by which the context grows
    #[arg(long, value_name = "F", requires = "rope_scaling", value_parser = number)]
    #[arg(allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(crate) rope_scale: Option<f32>,
    /// Prompt tokens per step; the results do not depend on it [default: 256; with AMX 512, with
    /// CUDA 1024]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub(crate) chunk: Option<usize>,
    /// Instruction set of the CPU kernels, e.g. avx2 or scalar [default: the best one here]
    #[arg(long, value_name = "TIER")]
    #[arg(hide_short_help = true)]
    pub(crate) cpu_tier: Option<String>,
    /// Keep packed weights in DIR for the next start; auto: next to the model [default: off]
    #[arg(long, value_name = "DIR")]
    #[arg(hide_short_help = true)]
    pub(crate) packed_cache: Option<PathBuf>,
}

impl LoadArgs {
    /// How the devices are used.
    pub(crate) fn device_options(&self) -> DeviceOptions {
        DeviceOptions {
            n_threads: self.threads,
            affinity: match self.affinity {
                AffinityArg::None => Affinity::None,
                AffinityArg::Cores => Affinity::Cores,
            },
            cpu_tier: self.cpu_tier.clone(),
            gpu_plain: self.gpu_plain,
            cuda_dependent_launch: self.cuda_dependent_launch,
            cuda_wgmma: self.cuda_wgmma,
            cuda_bf16_decode: self.cuda_bf16_decode,
            tensor_parallel: self.tensor_parallel,
        }
    }

    /// How the rotary embedding is stretched.
    pub(crate) fn rope_stretch(&self) -> Option<RopeStretch> {
        let factor = self.rope_scale?;
        Some(match self.rope_scaling? {
            RopeScalingArg::Linear => RopeStretch::Linear(factor),
            RopeScalingArg::Yarn => RopeStretch::Yarn(factor),
        })
    }

    /// Where packed weights are kept.
    pub(crate) fn packed_cache(&self, global: &GlobalArgs) -> Result<PackedCache> {
        Ok(match &self.packed_cache {
            None => PackedCache::Off,
            Some(auto) if auto.as_os_str() == "auto" => {
                let cache = Cache::locate(global.cache_dir.as_deref())?;
                PackedCache::Auto { fallback: cache.packed_dir() }
            }
            Some(dir) => PackedCache::Dir(dir.clone()),
        })
    }
}

/// How tokens are chosen and when generation ends.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Generation")]
pub(crate) struct GenerateArgs {
    /// Maximum number of tokens to generate [default: to the end of the answer or of the context]
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N", value_parser = whole)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<usize>,
    /// Context length: the maximum number of tokens of prompt and answer [default: the model's, as
    /// far as it fits into free memory]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) ctx: Option<usize>,
    /// Stop string (may be given several times)
    #[arg(long, value_name = "TEXT", value_parser = not_empty, allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// Never sample the end-of-text token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Add BIAS to the logit of token ID; -inf bans it (may be given several times)
    #[arg(long, value_name = "ID=BIAS", value_parser = logit_bias, allow_hyphen_values = true)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    #[command(flatten)]
    pub(crate) grammar: GrammarArgs,
    /// Allow properties that a schema says nothing of, or close objects that list theirs
    #[arg(long, value_name = "WHETHER", value_enum, default_value_t)]
    #[arg(help_heading = "Structured output")]
    pub(crate) additional_properties: UnlistedProperties,
}

impl GenerateArgs {
    /// The seed given, or one that is drawn: below 2^32, so that every JSON reader keeps it.
    pub(crate) fn seed(&self) -> u64 {
        // The hasher's random keys serve as the source.
        self.sampling.seed.unwrap_or_else(|| RandomState::new().hash_one(0_u64) >> 32)
    }
}

/// How a conversation becomes a prompt.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Prompt")]
pub(crate) struct TemplateArgs {
    /// System message
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Jinja chat template to use instead of the model's
    #[arg(long, value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,
}

/// A whole number of at least 1.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match whole(text) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("must be a whole number of at least 1".to_owned()),
    }
}

fn gpu_layers(text: &str) -> Result<usize, String> {
    positive(text).map_err(|error| format!("{error}; without layers on a GPU, the device is `cpu`"))
}

/// A whole number.
pub(crate) fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "must be a whole number of at least 0".to_owned())
}

/// An address or a name to listen on; an IPv6 address may stand in brackets, as in a URL.
pub(crate) fn host(text: &str) -> Result<String, String> {
    let refuse = |reason: &str| Err(format!("must be an address or a name; {reason}"));
    if text.is_empty() {
        return refuse("it is empty");
    }
    if text.contains('/') || text.starts_with("unix:") {
        return refuse(match text.split_once("://") {
            Some(("http" | "https", _)) => "a URL has more than that: see --port and --tls-cert",
            _ => "sockets of the file system are not supported",
        });
    }
    if let Some(rest) = text.strip_prefix('[') {
        return match rest.split_once(']') {
            Some((address, "")) if address.parse::<Ipv6Addr>().is_ok() => Ok(address.to_owned()),
            Some((_, port)) if port.starts_with(':') => refuse("the port is given by --port"),
            _ => refuse("brackets stand around an IPv6 address"),
        };
    }
    // More than one colon is an IPv6 address, with a zone or not.
    match text.split_once(':') {
        Some((_, port)) if !port.contains(':') => refuse("the port is given by --port"),
        _ => Ok(text.to_owned()),
    }
}

/// The number of a TCP port.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("must be a whole number from 0 to {}", u16::MAX))
}

/// A size of memory in bytes: a number of GiB, or one with a unit, of which each is 1024 times the
/// one before.
pub(crate) fn memory_size(text: &str) -> Result<usize, String> {
    let refuse = || "must be a size above 0 such as 8, 512M or 1.5GiB".to_owned();
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.to_ascii_lowercase();
    let power = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" if unit.is_empty() => 3,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(refuse()),
    };
    let bytes = number.trim().parse::<f64>().map_err(|_| refuse())? * 1024_f64.powi(power);
    let in_range = bytes >= 1.0 && bytes < usize::MAX as f64;
    if in_range { Ok(bytes as usize) } else { Err(refuse()) }
}

/// Values between commas or white space, in one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

/// A whole number in a list.
pub(crate) trait Whole: FromStr {
    /// The least one.
    const LEAST: u8 = 0;
}

impl Whole for u32 {}
impl Whole for usize {}
impl Whole for NonZeroUsize {
    const LEAST: u8 = 1;
}

/// At least one value; see [`List`].
pub(crate) fn list<T: Whole>(text: &str) -> Result<List<T>, String> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let refused = |word| format!("`{word}` must be a whole number of at least {}", T::LEAST);
    let values = words.map(|word| word.parse().map_err(|_| refused(word)));
    let values: Vec<T> = values.collect::<Result<_, String>>()?;
    if values.is_empty() {
        Err("must be whole numbers between commas or spaces".to_owned())
    } else {
        Ok(List(values))
    }
}

fn device(text: &str) -> Result<DeviceList, String> {
    text.parse().map_err(|error| match error {
        Error::Option { reason, .. } => reason,
        error => error.to_string(),
    })
}

fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
}

fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| "must be a number".to_owned())
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("must be ID=BIAS, such as 5=-1.5")?;
    let not_id = |_| format!("the token id must be a whole number from 0 to {}", u32::MAX);
    let id = id.trim().parse::<u32>().map_err(not_id)?;
    match number(bias.trim()) {
        Ok(x) if x == f32::NEG_INFINITY || (-100.0..=100.0).contains(&x) => Ok((id, x)),
        _ => Err("the bias must be a number from -100 to 100, or -inf".to_owned()),
    }
}

/// Reads the text of a command: an argument, `-f FILE` (`-` is standard input) or, when neither
/// is given, standard input that is not a terminal and not empty.
pub(crate) fn read_text(
    argument: Option<&str>,
    file: Option<&PathBuf>,
    what: &str,
) -> Result<String> {
    match (argument, file) {
        (Some(text), _) => Ok(text.to_owned()),
        (None, Some(path)) if path.as_os_str() == "-" => read_stdin(),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path);
            text.map(without_mark).with_context(|| format!("cannot read {}", path.display()))
        }
        (None, None) => match read_pipe()? {
            text if text.is_empty() => Err(ui::usage(format!(
                "no {what}: pass it as an argument, with -f FILE or through a pipe"
            ))),
            text => Ok(text),
        },
    }
}

/// Standard input where it is no terminal, and else nothing.
pub(crate) fn read_pipe() -> Result<String> {
    if std::io::stdin().is_terminal() { Ok(String::new()) } else { read_stdin() }
}

fn read_stdin() -> Result<String> {
    let text = std::io::read_to_string(std::io::stdin());
    text.map(without_mark).context("cannot read standard input as UTF-8 text")
}

/// A byte order mark at the front of a file is no part of its text.
fn without_mark(text: String) -> String {
    match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Cli;
    use clap::Parser;

    #[test]
    fn hosts_are_addresses_and_names() {
        for (text, want) in [
            ("127.0.0.1", Ok("127.0.0.1")),
            ("localhost", Ok("localhost")),
            ("::1", Ok("::1")),
            ("[::1]", Ok("::1")),
            ("fe80::1%eth0", Ok("fe80::1%eth0")),
            ("", Err("it is empty")),
            ("/run/x.sock", Err("sockets of the file system are not supported")),
            ("unix:x.sock", Err("sockets of the file system are not supported")),
            ("http://a", Err("a URL has more than that: see --port and --tls-cert")),
            ("127.0.0.1:80", Err("the port is given by --port")),
            ("[::1]:80", Err("the port is given by --port")),
            ("[a]", Err("brackets stand around an IPv6 address")),
            ("[::1", Err("brackets stand around an IPv6 address")),
        ] {
            let want = want.map(str::to_owned);
            let want = want.map_err(|reason| format!("must be an address or a name; {reason}"));
            assert_eq!(host(text), want, "{text}");
        }
    }

    #[test]
    fn values_are_checked() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["realizar", "run", "m"], args].concat());
        for good in [
            &["--temp", "0"][..],
            &["--logit-bias", "5=-1.5"],
            &["--presence-penalty", "-0.5"],
            &["--logit-bias", "5=-inf", "--stop", "- ", "--system", "- be brief"],
            &["-n", "3", "-t", "2", "--stop", "a", "--stop", "b"],
            &["--device", "cpu"],
            &["--affinity", "cores"],
            &["--packed-cache", "auto"],
            &["--device", "wgpu:1", "--gpu-layers", "3", "--gpu-plain"],
            &["--typical", "0.9", "--top-nsigma", "-1", "--xtc-probability", "1"],
            &["--typical-p", "0.9", "--top-n-sigma", "1.5", "--xtc-threshold", "0.2"],
            &["--dry-multiplier", "0.8", "--dry-base", "2", "--dry-allowed-length", "3"],
            &["--dry-penalty-last-n", "-1", "--dry-sequence-breaker", "-"],
            &["--mirostat", "2", "--mirostat-lr", "0.2", "--mirostat-ent", "3"],
        ] {
            assert!(parse(good).is_ok(), "{good:?}");
        }
        for bad in [
            &["--temp", "-1"][..],
            &["--temp", "nan"],
            &["--top-p", "1.5"],
            &["--logit-bias", "5"],
            &["--logit-bias", "5=inf"],
            &["--logit-bias", "5=nan"],
            &["--stop", ""],
            &["--repeat-penalty", "0"],
            &["--top-p", "0"],
            &["-n", "-1"],
            &["--logit-bias", "x=1"],
            &["-t", "0"],
            &["--chunk", "0"],
            &["--greedy", "--temp", "1"],
            &["--kv-type", "q3"],
            &["--device", "gpu"],
            &["--affinity", "all"],
            &["--device", "wgpu:x"],
            &["--gpu-layers", "0"],
            &["--typical", "0"],
            &["--top-nsigma", "-2"],
            &["--xtc-probability", "1.1"],
            &["--dry-base", "0.5"],
            &["--dry-penalty-last-n", "-2"],
            &["--dry-sequence-breaker", ""],
            &["--mirostat", "1"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn lists_of_numbers() {
        for text in ["5,17,42", "5, 17, 42", " 5 17\n42 ", "5,17,42,"] {
            assert_eq!(list::<u32>(text), Ok(List(vec![5, 17, 42])), "{text:?}");
        }
        for text in ["", " , ", "5,x", "-1"] {
            assert!(list::<u32>(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes_of_memory() {
        for (text, want) in [
            ("8", Some(8 << 30)),
            ("0.5", Some(512 << 20)),
            ("1.5GiB", Some(3 << 29)),
            ("1.5 g", Some(3 << 29)),
            ("512M", Some(512 << 20)),
            ("64kb", Some(64 << 10)),
            ("1T", Some(1 << 40)),
            ("0", None),
            ("-1", None),
            ("b", None),
            ("7b", None),
            ("G", None),
            ("nan", None),
            ("1e99", None),
            ("8 Gigs", None),
        ] {
            assert_eq!(memory_size(text).ok(), want, "{text}");
        }
    }

    #[test]
    fn errors_of_values_say_what_is_accepted() {
        use clap::CommandFactory;
        for command in Cli::command().get_subcommands() {
            for option in
                command.get_arguments().filter(|option| option.get_action().takes_values())
            {
                let Some(long) = option.get_long() else { continue };
                let args = ["realizar", command.get_name(), &format!("--{long}=@x")];
                let Err(error) = Cli::try_parse_from(args) else { continue };
                if error.kind() == clap::error::ErrorKind::ValueValidation {
                    let text = error.to_string();
                    let text = text.lines().next().unwrap_or_default();
                    let is_told = text.contains(long) && text.contains("@x");
                    assert!(
                        is_told && (text.contains("must be") || text.contains("expected")),
                        "{text}"
                    );
                }
            }
        }
    }

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        generate: GenerateArgs,
    }

    #[test]
    fn nothing_limits_an_answer_unless_it_is_said() {
        let limits = |args: &[&str]| {
            let only = Only::try_parse_from([&["x"], args].concat()).expect("well formed");
            (only.generate.max_tokens, only.generate.ctx)
        };
        assert_eq!(limits(&[]), (None, None));
        assert_eq!(limits(&["-n", "5", "--ctx", "64"]), (Some(5), Some(64)));
    }

    #[test]
    fn a_drawn_seed_is_small() {
        let only = Only::try_parse_from(["x"]).expect("no argument is needed");
        assert!(only.generate.seed() < 1 << 32);
        let only = Only::try_parse_from(["x", "--seed", "9000000000"]).expect("a seed");
        assert_eq!(only.generate.seed(), 9_000_000_000);
    }
}
