//! `realizar inspect`: what a model file holds: metadata, tensors, sizes by type, and with
//! `--graph` the graph that the runtime builds from it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use realizar_formats::{Array, Gguf, SafeTensors, TensorInfo, Value, open_regular, read_regular};
use realizar_runtime::ByteSize;
use realizar_runtime::device::DeviceChoice;
use serde_json::{Map, json};

use crate::engine::{Engine, Needs};
use crate::options::{GlobalArgs, LoadArgs};
use crate::ui;

/// Bytes of a JSON file that is shown.
const MAX_JSON: usize = 8 << 20;
/// Arrays up to this length are printed whole without --full.
const SHORT_ARRAY: usize = 8;
/// Strings up to this many characters are printed whole without --full.
const SHORT_STRING: usize = 100;

/// Prints metadata, tensors and sizes by type; nothing is computed and no weight is read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// Print long arrays and strings of the metadata in full
    #[arg(long)]
    full: bool,
    /// Print the graph of the model's forward pass instead, as the CPU runs it unless --device is
    /// given
    #[arg(long, conflicts_with = "full")]
    graph: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// What both formats have in common.
pub(super) struct Report {
    pub(super) path: PathBuf,
    pub(super) format: String,
    /// Keys of `config.json` begin with `config.`, those of `generation_config.json` with
    /// `generation_config.`.
    pub(super) metadata: Vec<(String, serde_json::Value)>,
    pub(super) tensors: Vec<TensorInfo>,
}

impl Report {
    /// Reads what a model's files say of it; long arrays become their type and length unless `full`.
    pub(super) fn read(path: &Path, full: bool) -> Result<Self> {
        if is_gguf(path)? { gguf(path, full) } else { safetensors(path) }
    }
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let path = global.sources().resolve(&args.model)?;
    if args.graph {
        let engine = Engine::load(&path, &to_print(&args.load), global, Needs::default())?;
        if args.json {
            let graph = engine.model.placement().to_string();
            return ui::json(&json!({ "graph": graph.lines().collect::<Vec<_>>() }));
        }
        let mut out = ui::out();
        writeln!(out, "{}", engine.model.placement().to_string().trim_end())?;
        out.flush()?;
        return Ok(());
    }
    let report = Report::read(&path, args.full)?;
    if args.json { print_json(report) } else { print_text(&report, args.full) }
}

/// The options of a model that is printed and not run: no GPU is opened unless one is requested.
fn to_print(args: &LoadArgs) -> LoadArgs {
    let mut args = LoadArgs { packed_cache: None, ..args.clone() };
    let for_gpu =
        args.gpu_plain || args.cuda_dependent_launch || args.cuda_wgmma || args.cuda_bf16_decode;
    if args.gpu_layers.is_none() && !for_gpu && args.tensor_parallel.is_none() {
        args.device = args.device.or(Some(DeviceChoice::Cpu.into()));
    }
    args
}

/// True when the file starts as a GGUF file does.
fn is_gguf(path: &Path) -> Result<bool> {
    if path.is_dir() {
        return Ok(false);
    }
    if path.extension().is_some_and(|ext| ext == "gguf") {
        return Ok(true);
    }
    let context = || format!("cannot read {}", path.display());
    let mut magic = Vec::new();
    let file = open_regular(path).with_context(context)?;
    file.take(4).read_to_end(&mut magic).with_context(context)?;
    Ok(magic == b"GGUF")
}

fn gguf(path: &Path, full: bool) -> Result<Report> {
    let gguf = Gguf::open(path)?;
    let metadata = gguf.metadata().iter();
    Ok(Report {
        path: path.to_owned(),
        format: format!("GGUF v{}", gguf.version()),
        metadata: metadata.map(|(key, value)| (key.to_owned(), to_json(value, full))).collect(),
        tensors: gguf.tensors().to_vec(),
    })
}

fn safetensors(path: &Path) -> Result<Report> {
    let model = SafeTensors::open(path)?;
    let mut metadata: Vec<(String, serde_json::Value)> =
        model.metadata().iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    for name in ["config", "generation_config"] {
        let file = path.join(name).with_extension("json");
        if !file.is_file() {
            continue;
        }
        let text = read_regular(&file, MAX_JSON)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let keys: Map<String, serde_json::Value> = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a JSON object", file.display()))?;
        metadata.extend(keys.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
    }
    Ok(Report {
        path: path.to_owned(),
        format: "safetensors".to_owned(),
        metadata,
        tensors: model.tensors().to_vec(),
    })
}

/// A metadata value as JSON; a long array becomes its type and length unless `full`.
fn to_json(value: &Value, full: bool) -> serde_json::Value {
    match value {
        Value::U8(x) => json!(x),
        Value::I8(x) => json!(x),
        Value::U16(x) => json!(x),
        Value::I16(x) => json!(x),
        Value::U32(x) => json!(x),
        Value::I32(x) => json!(x),
        // The shortest decimal of the F32 value, not that of its widening to F64.
        Value::F32(x) => x.to_string().parse::<f64>().map_or(serde_json::Value::Null, |x| json!(x)),
        Value::Bool(x) => json!(x),
        Value::Str(x) => json!(x),
        Value::U64(x) => json!(x),
        Value::I64(x) => json!(x),
        Value::F64(x) => json!(x),
        Value::Array(array) if full || array.len() <= SHORT_ARRAY => {
            array.iter().map(|value| to_json(&value, full)).collect()
        }
        Value::Array(array) => json!({ "array_of": elem_name(array), "len": array.len() }),
    }
}

fn elem_name(array: &Array) -> String {
    array.elem_type().name().to_owned()
}

/// Tensors, elements and bytes of one type.
#[derive(Default, Clone, Copy)]
pub(super) struct Sum {
    pub(super) tensors: usize,
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

/// Sums by type, the type with the most bytes first.
pub(super) fn by_type(tensors: &[TensorInfo]) -> Vec<(String, Sum)> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for tensor in tensors {
        let sum = sums.entry(tensor.ty.to_string()).or_default();
        sum.tensors += 1;
        sum.elements += tensor.n_elements() as u64;
        sum.bytes += tensor.n_bytes as u64;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    sums
}

fn print_json(report: Report) -> Result<()> {
    let types: Vec<_> = by_type(&report.tensors)
        .into_iter()
        .map(|(name, sum)| {
            json!({
                "type": name,
                "tensors": sum.tensors,
                "elements": sum.elements,
                "bytes": sum.bytes,
            })
        })
        .collect();
    let tensors: Vec<_> = report
        .tensors
        .iter()
        .map(|t| json!({ "name": t.name, "type": t.ty.to_string(), "shape": t.shape, "bytes": t.n_bytes }))
        .collect();
    let metadata: Map<String, serde_json::Value> = report.metadata.into_iter().collect();
    ui::json(&json!({
        "path": report.path,
        "format": report.format,
        "metadata": metadata,
        "types": types,
        "tensors": tensors,
    }))
}

fn print_text(report: &Report, full: bool) -> Result<()> {
    let mut out = ui::out();
    let total = report.tensors.iter().fold(Sum::default(), |sum, tensor| Sum {
        tensors: sum.tensors + 1,
        elements: sum.elements + tensor.n_elements() as u64,
        bytes: sum.bytes + tensor.n_bytes as u64,
    });
    writeln!(
        out,
        "{}: {}, {} tensors, {} parameters, {}",
        report.path.display(),
        report.format,
        total.tensors,
        ui::count(total.elements),
        ByteSize(total.bytes)
    )?;

    writeln!(out, "\nMetadata")?;
    let rows: Vec<Vec<String>> = report
        .metadata
        .iter()
        .map(|(key, value)| vec![format!("  {}", shorten(key, full)), show(value, full)])
        .collect();
    ui::table(&mut out, &rows, &[])?;

    writeln!(out, "\nTensors")?;
    let rows: Vec<Vec<String>> = report
        .tensors
        .iter()
        .map(|tensor| {
            let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            vec![
                format!("  {}", shorten(&tensor.name, full)),
                tensor.ty.to_string(),
                format!("[{}]", shape.join(", ")),
                ByteSize::from(tensor.n_bytes).to_string(),
            ]
        })
        .collect();
    ui::table(&mut out, &rows, &[3])?;

    writeln!(out, "\nSizes by type")?;
    let row = |name: &str, sum: Sum| {
        let share = 100.0 * sum.bytes as f64 / (total.bytes.max(1)) as f64;
        vec![
            format!("  {name}"),
            format!("{} tensors", sum.tensors),
            ui::count(sum.elements),
            ByteSize(sum.bytes).to_string(),
            format!("{share:.1} %"),
        ]
    };
    let mut rows: Vec<_> =
        by_type(&report.tensors).iter().map(|(name, sum)| row(name, *sum)).collect();
    rows.push(row("total", total));
    ui::table(&mut out, &rows, &[1, 2, 3, 4])?;
    out.flush()?;
    Ok(())
}

/// One line for a metadata value.
fn show(value: &serde_json::Value, full: bool) -> String {
    match value {
        serde_json::Value::String(text) => format!("{:?}", shorten(text, full)),
        serde_json::Value::Object(map) => match (map.get("array_of"), map.get("len")) {
            (Some(serde_json::Value::String(ty)), Some(len)) => {
                format!("{len} values of type {ty}")
            }
            _ => shorten(&value.to_string(), full),
        },
        _ => shorten(&value.to_string(), full),
    }
}

/// Cuts long text unless `full`.
pub(super) fn shorten(text: &str, full: bool) -> String {
    let n_chars = text.chars().count();
    let kept = if full { n_chars } else { SHORT_STRING };
    let mut short: String = text.chars().take(kept).collect();
    if n_chars > kept {
        short.push_str(&format!("… ({n_chars} characters)"));
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_gpu_is_opened_to_print_unless_one_is_asked_for() {
        use DeviceChoice::{Auto, Cpu, Wgpu};

        #[derive(clap::Parser)]
        struct Options {
            #[command(flatten)]
            load: LoadArgs,
        }
        for (device, gpu_layers, gpu_plain, want) in [
            (None, None, false, Some(Cpu)),
            (Some(Auto), None, false, Some(Auto)),
            (Some(Wgpu(Some(1))), None, false, Some(Wgpu(Some(1)))),
            (None, Some(2), false, None),
            (None, None, true, None),
        ] {
            let Options { load } = clap::Parser::try_parse_from(["inspect"]).expect("defaults");
            let load = LoadArgs { device: device.map(Into::into), gpu_layers, gpu_plain, ..load };
            assert_eq!(to_print(&load).device, want.map(Into::into), "{load:?}");
        }
    }

    #[test]
    fn values() {
        let array = |n: usize| {
            let strs: Vec<String> = (0..n).map(|i| i.to_string()).collect();
            Value::Array(Array::from_strs(strs))
        };
        for (value, full, want) in [
            (Value::U32(3), false, "3"),
            (Value::Str("a\nb".to_owned()), false, "\"a\\nb\""),
            (array(2), false, r#"["0","1"]"#),
            (array(9), false, "9 values of type string"),
            (array(9), true, r#"["0","1","2","3","4","5","6","7","8"]"#),
        ] {
            assert_eq!(show(&to_json(&value, full), full), want);
        }
        let long = shorten(&"x".repeat(500), false);
        assert!(long.ends_with("… (500 characters)"), "{long}");
    }
}
