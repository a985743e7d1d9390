//! Linears as compressed-tensors stores them, the format of vLLM's llm-compressor (the library's
//! `compressors` and `quantization` say what its tensors and settings mean).
//!
//! Which linears are quantized, and how, shows in their tensors: words of integers ([`Ints`]), bytes of
//! FP4 ([`Fp4`]), or matrices of 8-bit integers or FP8 under the weight's own name. `config_groups` has to describe
//! every one of them, in a group whose `targets` it is among.
//! What is said of activations and of the key-value cache is how others run the model: activations are
//! rounded here as those of any model, and the cache has the type that it is given.

use super::super::HfSettings;
use super::Parts;
use super::fp4::{self, Fp4};
use super::fp8::Fp8;
use super::ints::{Ints, Names, Shares};
use crate::Error;
use fancy_regex::Regex;
use realizar_formats::{SafeTensors, Tensor, TensorType};
use std::collections::BTreeMap;

/// What the tensors of a linear end in.
const WEIGHT: &str = ".weight";
const PACKED: &str = ".weight_packed";
const SCALE: &str = ".weight_scale";
const SHAPE: &str = ".weight_shape";
const ZERO_POINT: &str = ".weight_zero_point";
const GROUPS: &str = ".weight_g_idx";
const GLOBAL_SCALE: &str = ".weight_global_scale";
/// What is beside them and says how others round activations.
const OF_ACTIVATIONS: [&str; 5] = [
    ".input_global_scale",
    ".input_scale",
    ".input_zero_point",
    ".output_scale",
    ".output_zero_point",
];

/// How a group of linears is stored.
const FORMATS: [&str; 6] = [
    "float-quantized",
    "int-quantized",
    "mxfp4-pack-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "pack-quantized",
];

/// How the linears of a checkpoint are quantized.
#[derive(Debug)]
pub struct Compressed {
    /// Those of integers and of FP4, by their names.
    linears: BTreeMap<String, Layout>,
    /// The names of the weights that are made and are not those of a stored tensor.
    weights: Vec<String>,
    fp8: Fp8,
}

/// How a linear is stored.
#[derive(Debug)]
enum Layout {
    Ints(Ints),
    Fp4(Fp4),
}

/// A group of `config_groups`.
#[derive(Debug)]
struct Group {
    targets: Vec<Target>,
    scheme: Scheme,
}

/// Which linears are in a group.
#[derive(Debug)]
enum Target {
    /// One linear, or all of a class, whose name has no dots.
    Name(String),
    /// Those whose names begin with a match.
    Pattern(Regex),
}

impl Target {
    fn open(group: &HfSettings, text: &str) -> Result<Self, Error> {
        let Some(pattern) = text.strip_prefix("re:") else {
            return Ok(Self::Name(text.to_owned()));
        };
        let pattern = Regex::new(&format!("^(?:{pattern})"));
        pattern
            .map(Self::Pattern)
            .map_err(|_| group.wrong("targets", "regular expressions after `re:`"))
    }

    fn is_of(&self, linear: &str) -> bool {
        match self {
            Self::Name(name) => name == linear || !name.contains('.'),
            // A pattern that takes too long to match does not.
            Self::Pattern(pattern) => pattern.is_match(linear).unwrap_or(false),
        }
    }
}

/// Whether a linear that is stored like `found` is described. Patterns may be for names of other releases; a linear
/// that none of them targets may be of any group.
fn is_described(groups: &[Group], linear: &str, found: &Scheme, n_in: usize) -> bool {
    let is_target = |group: &&Group| group.targets.iter().any(|it| it.is_of(linear));
    let describes = |group: &Group| group.scheme.describes(found, n_in);
    let is_targeted = groups.iter().any(|group| is_target(&group));
    groups.iter().filter(|group| !is_targeted || is_target(group)).any(describes)
}

/// What `config_groups` says of the weights of a group of linears.
#[derive(Debug, PartialEq, Eq)]
struct Scheme {
    is_float: bool,
    bits: usize,
    symmetric: bool,
    shares: Shares,
}

/// The tensors of linears of integers.
const INTS: Names = Names {
    packed: Some((PACKED, SHAPE)),
    plain: WEIGHT,
    scale: SCALE,
    zero_point: Some(ZERO_POINT),
    groups: Some(GROUPS),
    divisor: 1.0,
};

/// The tensors of linears of FP4.
const FP4: fp4::Names =
    fp4::Names { packed: PACKED, global: GLOBAL_SCALE, divides: true, may_lack: true };

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ty = if self.is_float { "float" } else { "int" };
        write!(f, "weights of {} bits, type `{ty}`, ", self.bits)?;
        f.write_str(if self.symmetric { "symmetric, " } else { "with zero points, " })?;
        match self.shares {
            Shares::Tensor => f.write_str("with one scale"),
            Shares::Row => f.write_str("with a scale for each row"),
            Shares::Group(len) => write!(f, "in groups of {len}"),
            Shares::Tile([rows, cols]) => write!(f, "in tiles of {rows} x {cols}"),
        }
    }
}

impl Scheme {
    /// Whether a linear that is stored like `found` may be of the group: a row of `n_in` may be one group, and
    /// zero points may all be 0.
    fn describes(&self, found: &Self, n_in: usize) -> bool {
        let is_row_a_group =
            found.shares == Shares::Row && matches!(self.shares, Shares::Group(len) if len >= n_in);
        (self.is_float, self.bits) == (found.is_float, found.bits)
            && (self.shares == found.shares || is_row_a_group)
            && (self.symmetric == found.symmetric || !self.symmetric)
    }

    /// Reads `config_groups.GROUP.weights`.
    fn open(weights: &HfSettings) -> Result<Self, Error> {
        let (ty, bits) = (weights.opt_str("type")?.unwrap_or("int"), weights.usize("num_bits")?);
        let is_float = match ty.to_ascii_lowercase().as_str() {
            "float" => true,
            "int" => false,
            _ => return Err(weights.wrong("type", "`int` or `float`")),
        };
        if ![4, 8].contains(&bits) {
            let what = format!("compressed-tensors with weights of {bits} bits, type `{ty}`");
            return Err(weights.unsupported(what));
        }
        let symmetric = weights.bool_or("symmetric", true)?;
        if is_float && !symmetric {
            return Err(weights.unsupported("compressed-tensors with zero points of floats"));
        }
        let group_len = match weights.opt_f32("group_size")? {
            None | Some(-1.0) => None,
            Some(len) if len > 0.0 => Some(weights.usize("group_size")?),
            Some(_) => return Err(weights.wrong("group_size", "a whole number above 0, or -1")),
        };
        let in_groups = || group_len.ok_or_else(|| weights.wrong("group_size", "a whole number"));
        let shares = match weights.opt_str("strategy")? {
            None if weights.has("group_size") => group_len.map_or(Shares::Row, Shares::Group),
            None | Some("tensor") => Shares::Tensor,
            Some("channel") => Shares::Row,
            Some("group" | "tensor_group") => Shares::Group(in_groups()?),
            Some("block") => Shares::Tile(tile(weights)?),
            Some(_) => {
                let expected = "`tensor`, `channel`, `group`, `tensor_group` or `block`";
                return Err(weights.wrong("strategy", expected));
            }
        };
        let order = weights.opt_str_or_bool("actorder")?;
        if order.is_some_and(|order| !["weight", "static", "group", "dynamic"].contains(&order)) {
            return Err(weights.wrong("actorder", "`weight` or `group`"));
        }
        if weights.bool_or("dynamic", false)? {
            return Err(weights.unsupported("compressed-tensors with weights that are `dynamic`"));
        }
        for key in ["observer", "scale_dtype", "zp_dtype"] {
            weights.opt_str(key)?;
        }
        weights.opt_object("observer_kwargs")?;
        Ok(Self { is_float, bits, symmetric, shares })
    }
}

/// Rows and columns of a tile, as a list or as `128x128`.
fn tile(weights: &HfSettings) -> Result<[usize; 2], Error> {
    let wrong = || weights.wrong("block_structure", "two whole numbers above 0");
    let sizes = match weights.opt_str("block_structure") {
        Ok(Some(text)) => {
            let sizes: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
            sizes.map_err(|_| wrong())?
        }
        _ => weights.opt_usizes("block_structure")?.unwrap_or_default(),
    };
    match sizes[..] {
        [rows, cols] if rows > 0 && cols > 0 => Ok([rows, cols]),
        _ => Err(wrong()),
    }
}

/// Checks what is said of activations, or of the key-value cache, which changes nothing here.
fn check_rounding(args: Option<&HfSettings>) -> Result<bool, Error> {
    let Some(args) = args else { return Ok(false) };
    let ty = args.opt_str("type")?.unwrap_or("int");
    if !["float", "int"].contains(&ty.to_ascii_lowercase().as_str()) {
        return Err(args.wrong("type", "`int` or `float`"));
    }
    args.opt_usize("num_bits")?;
    args.opt_f32("group_size")?;
    args.opt_str("strategy")?;
    args.bool_or("symmetric", true)?;
    if args.opt_str_or_bool("dynamic")?.is_some_and(|dynamic| dynamic != "local") {
        return Err(args.wrong("dynamic", "true, false or `local`"));
    }
    args.opt_str_or_bool("actorder")?;
    Ok(true)
}

/// Reads the settings: what they say of weights, by group.
fn groups(config: &HfSettings) -> Result<Vec<Group>, Error> {
    let check_format = |of: &HfSettings, mixed: bool| match of.opt_str("format")? {
        Some(format) if FORMATS.contains(&format) => Ok(()),
        Some("mixed-precision") if mixed => Ok(()),
        None if !mixed => Ok(()),
        other => {
            let other = other.unwrap_or("unnamed");
            let feature = format!("compressed-tensors in the format `{other}` (`format`)");
            Err(of.unsupported_value(feature, &FORMATS))
        }
    };
    check_format(config, true)?;
    match config.opt_str("quantization_status")? {
        None | Some("compressed" | "frozen") => {}
        Some(_) => return Err(config.wrong("quantization_status", "`compressed`")),
    }
    config.opt_strs("ignore")?;
    config.opt_f32("global_compression_ratio")?;
    config.opt_str("version")?;
    if let Some(sparsity) = config.opt_object("sparsity_config")?
        && let Some(format) = sparsity.opt_str("format")?
        && format != "dense"
    {
        return Err(sparsity.unsupported(format!("compressed-tensors with sparsity (`{format}`)")));
    }
    if let Some(transforms) = config.opt_object("transform_config")?
        && transforms.opt_object("config_groups")?.is_some_and(|groups| !groups.is_empty())
    {
        return Err(transforms.unsupported("compressed-tensors with transforms of activations"));
    }
    let mut rounded = check_rounding(config.opt_object("kv_cache_scheme")?.as_ref())?;
    let groups = config.opt_object("config_groups")?;
    let groups = groups.ok_or_else(|| config.wrong("config_groups", "an object"))?;
    let mut found = Vec::new();
    for name in groups.map().keys() {
        let wrong = || groups.wrong(name, "an object");
        let group = groups.opt_object(name)?.ok_or_else(wrong)?;
        check_format(&group, false)?;
        let targets = group.opt_strs("targets")?.unwrap_or_default().into_iter();
        let targets: Result<Vec<Target>, Error> =
            targets.map(|text| Target::open(&group, text)).collect();
        let targets = targets?;
        for activations in ["input_activations", "output_activations"] {
            rounded |= check_rounding(group.opt_object(activations)?.as_ref())?;
        }
        if let Some(weights) = group.opt_object("weights")? {
            found.push(Group { targets, scheme: Scheme::open(&weights)? });
        }
    }
    if rounded {
        tracing::info!(
            "{}: `quantization_config` is not applied to activations and the key-value cache",
            config.path().display()
        );
    }
    Ok(found)
}

impl Compressed {
    /// Reads `quantization_config`, and finds the linears.
    ///
    /// # Errors
    /// If it asks for what is not supported, or a tensor is missing, of another shape or type, or of a
    /// linear that it does not describe.
    pub(super) fn open(
        settings: &HfSettings,
        config: &HfSettings,
        tensors: &SafeTensors,
    ) -> Result<Self, Error> {
        let groups = groups(config)?;
        let tile = groups.iter().find_map(|group| match group.scheme.shares {
            Shares::Tile(tile) => Some(tile),
            _ => None,
        });
        let fp8 = Fp8::find(settings, tile, tensors)?;
        let has_fp8 = groups.iter().any(|it| it.scheme.is_float && it.scheme.bits == 8);
        if let Some(linear) = fp8.linears().first().filter(|_| !has_fp8) {
            let parts = Parts { settings, tensors, linear };
            return Err(parts.refuse("FP8, which `config_groups` does not describe"));
        }
        let mut linears = BTreeMap::new();
        let mut weights = Vec::new();
        for info in tensors.tensors() {
            let packed = info.name.strip_suffix(PACKED);
            let plain = info.name.strip_suffix(WEIGHT).filter(|_| info.ty == TensorType::I8);
            let Some(linear) = packed.or(plain) else { continue };
            let parts = Parts { settings, tensors, linear };
            let (layout, scheme, n_in) = if info.ty == TensorType::U8 {
                let fp4 = Fp4::open(&parts, &FP4)?;
                let scheme = Scheme {
                    is_float: true,
                    bits: 4,
                    symmetric: true,
                    shares: Shares::Group(fp4.group_len()),
                };
                let n_in = fp4.n_in();
                (Layout::Fp4(fp4), scheme, n_in)
            } else {
                let ints = Ints::open(&parts, &INTS)?;
                let scheme = Scheme {
                    is_float: false,
                    bits: ints.bits(),
                    symmetric: !ints.has_zero_points(),
                    shares: ints.shares(),
                };
                let n_in = ints.n_in();
                (Layout::Ints(ints), scheme, n_in)
            };
            if !is_described(&groups, linear, &scheme, n_in) {
                let what = format!("{scheme}, which `config_groups` does not describe");
                return Err(parts.refuse(&what));
            }
            if packed.is_some() {
                weights.push(format!("{linear}{WEIGHT}"));
            }
            linears.insert(linear.to_owned(), layout);
        }
        Ok(Self { linears, weights, fp8 })
    }

    pub(super) fn weights(&self) -> &[String] {
        &self.weights
    }

    /// Whether a tensor is part of a weight of another name, or says how others round activations.
    pub(super) fn is_part(&self, name: &str) -> bool {
        let parts = [PACKED, SCALE, SHAPE, ZERO_POINT, GROUPS, GLOBAL_SCALE];
        let mut parts = parts.into_iter().chain(OF_ACTIVATIONS);
        let linear = parts.find_map(|part| name.strip_suffix(part));
        linear.is_some_and(|linear| self.linears.contains_key(linear)) || self.fp8.is_part(name)
    }

    fn layout<'a>(&self, name: &'a str) -> Option<(&'a str, &Layout)> {
        let linear = name.strip_suffix(WEIGHT)?;
        Some((linear, self.linears.get(linear)?))
    }

    /// The weight `name`, `[n_out, n_in]`, if it is that of a quantized linear.
    pub(super) fn weight(&self, tensors: &SafeTensors, name: &str) -> Option<Tensor> {
        match self.layout(name) {
            Some((linear, Layout::Ints(ints))) => ints.weight(tensors, linear),
            Some((linear, Layout::Fp4(fp4))) => fp4.weight(tensors, linear),
            None => self.fp8.weight(tensors, name),
        }
    }

    /// The input that each column of a weight is for, where that is not its own.
    pub(super) fn order(&self, tensors: &SafeTensors, name: &str) -> Option<Vec<u32>> {
        match self.layout(name)? {
            (linear, Layout::Ints(ints)) => ints.order(tensors, linear),
            (_, Layout::Fp4(_)) => None,
        }
    }

    /// What the products of a weight are to be multiplied by.
    pub(super) fn factor(&self, name: &str) -> f32 {
        match self.layout(name) {
            Some((_, Layout::Ints(ints))) => ints.factor(),
            Some((_, Layout::Fp4(fp4))) => fp4.factor(),
            None => self.fp8.factor(name),
        }
    }
}
