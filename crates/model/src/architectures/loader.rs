//! Where a graph's weights come from: found in the checkpoint by name, checked against the
//! settings, and bound to their bytes.
//!
//! Matrices stay where the file is mapped. Vectors (norms, biases) become F32.
//! Fused matrices are returned as their rows, so an architecture is written
//! with separate weights whatever the file does. Every tensor of the file must
//! be used: one that no architecture asked for is an error, not a loss.

mod convolution;
mod experts;
mod grouped_rows;
mod latent_heads;
mod made;
mod predictor;
mod turned_experts;
mod unneeded;

pub use grouped_rows::GroupedPart;

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::names::{self, NameTable};
use crate::graph::WeightInfo;
use crate::graph::weights::{Linear, NormWeights, Weight, WeightData, WeightId, Weights};
use realizar_formats::{Bytes, Tensor};
use realizar_quant::BlockType;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

/// Whether a linear or a norm has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// It has none; one in the file is an error.
    None,
    /// It has one when the file does.
    IfPresent,
    /// The setting of this name says that it has none; one in the file is an error that
    /// names both.
    Denied(&'static str),
    /// It must have one.
    Required,
}

/// Where a weight belongs: a leaf such as `wq`, in a layer or in none.
#[derive(Debug, Clone, Copy)]
pub struct Name {
    layer: Option<usize>,
    leaf: &'static str,
}

impl From<&'static str> for Name {
    fn from(leaf: &'static str) -> Self {
        Self { layer: None, leaf }
    }
}

impl From<(usize, &'static str)> for Name {
    fn from((layer, leaf): (usize, &'static str)) -> Self {
        Self { layer: Some(layer), leaf }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layers.{layer}.{}", self.leaf),
            None => f.write_str(self.leaf),
        }
    }
}

/// Finds, checks and binds weights while an architecture asks for them.
#[derive(Debug)]
pub struct WeightLoader<'a> {
    checkpoint: &'a Checkpoint,
    tables: [NameTable; 2],
    infos: Vec<WeightInfo>,
    data: Vec<WeightData>,
    used: HashSet<String>,
    norm_offset: f32,
    transposed: bool,
    /// Stacked experts may have rows and columns exchanged.
    experts_may_be_turned: bool,
    /// The orders of columns, each once.
    orders: HashMap<Vec<u32>, WeightId>,
    /// The layers after the model's own, whose tensors are not requested.
    beyond: Range<usize>,
    /// A layer whose tensors have names of their own, and what these begin with.
    renamed: Option<(usize, &'static str)>,
    /// Weights that were requested before are found by their names.
    shares: bool,
}

impl<'a> WeightLoader<'a> {
    /// A loader that looks names up in `own` before the format's common table.
    pub(crate) fn new(checkpoint: &'a Checkpoint, own: NameTable) -> Self {
        let common = match checkpoint {
            Checkpoint::Gguf(_) => names::GGUF,
            Checkpoint::Hf { .. } => names::HF,
        };
        Self {
            checkpoint,
            tables: [own, common],
            infos: Vec::new(),
            data: Vec::new(),
            used: HashSet::new(),
            norm_offset: 0.0,
            transposed: false,
            experts_may_be_turned: false,
            orders: HashMap::new(),
            beyond: 0..0,
            renamed: None,
            shares: false,
        }
    }

    /// The file that holds the settings, for messages.
    pub(crate) fn path(&self) -> &Path {
        self.checkpoint.path()
    }

    /// Whether the weights come from a Hugging Face directory.
    pub fn is_hf(&self) -> bool {
        matches!(self.checkpoint, Checkpoint::Hf { .. })
    }

    /// From now on, norm weights are stored as their difference from 1.
    pub fn norms_are_offsets(&mut self) {
        self.norm_offset = 1.0;
    }

    /// From now on, linear weights are stored as `[in, out]`.
    pub fn linears_are_transposed(&mut self) {
        self.transposed = true;
    }

    fn file_name(&self, name: Name, suffix: &str) -> String {
        self.file_name_of(name, suffix)
            .unwrap_or_else(|| names::with_suffix(name.to_string(), suffix))
    }

    /// The name in the file, if the tables have one.
    fn file_name_of(&self, name: Name, suffix: &str) -> Option<String> {
        let full = names::file_name(self.tables, name.leaf, name.layer, suffix)?;
        if let Some((layer, start)) = self.renamed
            && name.layer == Some(layer)
            && let Some(rest) = full.strip_prefix(&format!("model.layers.{layer}."))
        {
            return Some(format!("{start}{rest}"));
        }
        Some(full)
    }

    /// The tensor, under its name or without the base model's prefix, which
    /// checkpoints of the bare model leave out.
    fn look_up(&self, name: Name, suffix: &str) -> Option<Tensor> {
        self.look_up_file(&self.file_name(name, suffix))
    }

    fn look_up_file(&self, full: &str) -> Option<Tensor> {
        let bare = || {
            let rest = full.strip_prefix("model.").or(full.strip_prefix("transformer."))?;
            self.is_hf().then(|| self.checkpoint.tensor(rest)).flatten()
        };
        self.checkpoint.tensor(full).or_else(bare)
    }

    /// The tensor, which from now on counts as used.
    fn find(&mut self, name: Name, suffix: &str) -> Option<Tensor> {
        let tensor = self.look_up(name, suffix)?;
        self.used.insert(tensor.name.clone());
        Some(tensor)
    }

    /// Whether the file holds the weight.
    pub fn has(&self, name: impl Into<Name>) -> bool {
        self.look_up(name.into(), "weight").is_some()
    }

    /// The error for a weight that the file does not hold.
    pub fn missing(&self, name: impl Into<Name>) -> Error {
        self.missing_tensor(name.into(), "weight")
    }

    /// The error for a feature that is not built.
    pub fn unsupported(&self, feature: impl Into<String>) -> Error {
        let path = self.checkpoint.path().to_owned();
        Error::Unsupported { path, feature: feature.into() }
    }

    /// The error for a bias in the file that a setting says is not there.
    fn denied(&self, key: &str, bias: &Tensor) -> Error {
        Error::Setting {
            path: self.checkpoint.path().to_owned(),
            key: key.to_owned(),
            expected: format!("true, as the file holds `{}`", bias.name),
            found: "false".to_owned(),
        }
    }

    fn missing_tensor(&self, name: Name, suffix: &str) -> Error {
        Error::MissingTensor {
            path: self.checkpoint.path().to_owned(),
            tensor: self.file_name(name, suffix),
            weight: name.to_string(),
        }
    }

    fn require(&mut self, name: Name, suffix: &str) -> Result<Tensor, Error> {
        self.find(name, suffix).ok_or_else(|| self.missing_tensor(name, suffix))
    }

    fn check_shape(&self, tensor: &Tensor, expected: &[usize]) -> Result<(), Error> {
        if tensor.shape == expected {
            return Ok(());
        }
        let (path, found) = (self.checkpoint.path().to_owned(), tensor.shape.clone());
        Err(Error::Shape { path, tensor: tensor.name.clone(), expected: expected.to_vec(), found })
    }

    fn type_error(&self, tensor: &Tensor, reason: &str) -> Error {
        Error::TensorType {
            path: self.checkpoint.path().to_owned(),
            tensor: tensor.name.clone(),
            ty: tensor.ty.to_string(),
            reason: reason.to_owned(),
        }
    }

    fn block_type(&self, tensor: &Tensor) -> Result<BlockType, Error> {
        match tensor.ty.block_type() {
            Some(BlockType::Q8_1 | BlockType::Q8_K) => {
                Err(self.type_error(tensor, "is a format of activations, not of weights"))
            }
            Some(ty) => Ok(ty),
            None if !tensor.ty.is_known() => {
                Err(self.type_error(tensor, "is a block type that is not supported"))
            }
            None => Err(self.type_error(tensor, "is not a weight type that can be multiplied")),
        }
    }

    /// The block type of a matrix whose columns are for the inputs as they come.
    fn unordered_type(&self, tensor: &Tensor) -> Result<BlockType, Error> {
        if self.checkpoint.order(&tensor.name).is_some() {
            let reason =
                "has its inputs in another order (`desc_act`), which only linears may have";
            return Err(self.type_error(tensor, reason));
        }
        self.block_type(tensor)
    }

    fn add(&mut self, name: String, shape: Vec<usize>, data: WeightData) -> WeightId {
        if self.shares
            && let Some(at) = self.infos.iter().position(|info| info.name == name)
        {
            assert_eq!(self.infos[at].shape, shape, "{name}, asked for again");
            return WeightId(u32::try_from(at).expect("fewer than 2^32 weights"));
        }
        let ty = data.matrix_shape().map_or(BlockType::F32, |(ty, ..)| ty);
        self.infos.push(WeightInfo { name, shape, ty });
        self.data.push(data);
        WeightId(u32::try_from(self.data.len() - 1).expect("fewer than 2^32 weights"))
    }

    fn add_matrix(
        &mut self,
        name: String,
        ty: BlockType,
        shape: [usize; 2],
        data: Bytes,
    ) -> Weight {
        let [rows, cols] = shape;
        let matrix = WeightData::Matrix { ty, rows, cols, data };
        Weight { id: self.add(name, shape.to_vec(), matrix), rows, cols }
    }

    /// A matrix of `[rows, cols]`.
    ///
    /// # Errors
    /// If it is missing, or of another shape or an unusable type.
    pub fn matrix(
        &mut self,
        name: impl Into<Name>,
        rows: usize,
        cols: usize,
    ) -> Result<Weight, Error> {
        let name = name.into();
        let tensor = self.require(name, "weight")?;
        self.check_shape(&tensor, &[rows, cols])?;
        let tensor = self.checkpoint.with_factor(tensor);
        let ty = self.unordered_type(&tensor)?;
        Ok(self.add_matrix(name.to_string(), ty, [rows, cols], tensor.data))
    }

    fn vector_of(&self, tensor: &Tensor, offset: f32) -> Result<Vec<f32>, Error> {
        let ty = self.block_type(tensor)?;
        let mut values = vec![0.0; tensor.n_elements()];
        realizar_quant::dequantize(ty, &tensor.data, &mut values)
            .map_err(|e| self.type_error(tensor, &e.to_string()))?;
        if offset != 0.0 {
            values.iter_mut().for_each(|x| *x += offset);
        }
        Ok(values)
    }

    /// A vector that may be missing, outside of any layer and without a graph
    /// node: the factors of a rotary embedding.
    ///
    /// # Errors
    /// If it has another length or an unusable type.
    pub fn opt_factors(
        &mut self,
        leaf: &'static str,
        len: usize,
    ) -> Result<Option<Vec<f32>>, Error> {
        let Some(tensor) = self.find(leaf.into(), "weight") else { return Ok(None) };
        self.check_shape(&tensor, &[len])?;
        self.vector_of(&tensor, 0.0).map(Some)
    }

    /// A single number that may be missing, which becomes a constant of the graph. Its tensor may be called
    /// `NAME.weight` or `NAME`.
    ///
    /// # Errors
    /// If it is of another length or an unusable type.
    pub fn opt_scalar(&mut self, name: impl Into<Name>) -> Result<Option<f32>, Error> {
        let name = name.into();
        let tensor = self.find(name, "").or_else(|| self.find(name, "weight"));
        let Some(tensor) = tensor else { return Ok(None) };
        self.check_shape(&tensor, &[1])?;
        Ok(self.vector_of(&tensor, 0.0)?.first().copied())
    }

    fn add_vector(&mut self, name: Name, suffix: &str, tensor: &Tensor) -> Result<WeightId, Error> {
        let offset = if suffix == "weight" { self.norm_offset } else { 0.0 };
        let values = self.vector_of(tensor, offset)?;
        let name = if suffix == "bias" { format!("{name}.bias") } else { name.to_string() };
        Ok(self.add(name, vec![values.len()], WeightData::Vector(values)))
    }

    /// A vector of `len` numbers that is neither a norm's nor a linear's, such as
    /// the sinks of attention. Its tensor may be called `NAME.weight` or `NAME`, and may be a matrix of
    /// one row.
    ///
    /// # Errors
    /// If it is missing, or of another length or an unusable type.
    pub fn vector(&mut self, name: impl Into<Name>, len: usize) -> Result<WeightId, Error> {
        let name = name.into();
        let tensor = match self.find(name, "") {
            Some(tensor) => tensor,
            None => self.require(name, "weight")?,
        };
        if tensor.shape != [1, len] {
            self.check_shape(&tensor, &[len])?;
        }
        let values = self.vector_of(&tensor, 0.0)?;
        Ok(self.add(name.to_string(), vec![len], WeightData::Vector(values)))
    }

    fn bias_tensor(&mut self, name: Name, bias: Bias, len: usize) -> Result<Option<Tensor>, Error> {
        let tensor = match bias {
            Bias::None => None,
            Bias::Denied(key) => match self.look_up(name, "bias") {
                Some(tensor) => return Err(self.denied(key, &tensor)),
                None => None,
            },
            Bias::IfPresent => self.find(name, "bias"),
            Bias::Required => Some(self.require(name, "bias")?),
        };
        if let Some(tensor) = &tensor {
            self.check_shape(tensor, &[len])?;
        }
        Ok(tensor)
    }

    /// The weights of a normalization over `len` columns.
    ///
    /// # Errors
    /// If a vector is missing, or of another length or an unusable type.
    pub fn norm(
        &mut self,
        name: impl Into<Name>,
        len: usize,
        bias: Bias,
    ) -> Result<NormWeights, Error> {
        let name = name.into();
        let tensor = self.require(name, "weight")?;
        self.check_shape(&tensor, &[len])?;
        let weight = Some(self.add_vector(name, "weight", &tensor)?);
        let bias = match self.bias_tensor(name, bias, len)? {
            Some(tensor) => Some(self.add_vector(name, "bias", &tensor)?),
            None => None,
        };
        Ok(NormWeights { weight, bias, len })
    }

    /// The weights of normalizations of heads, each with its own, as one vector of `[n_heads * head_dim]`:
    /// from a tensor of `[n_heads, head_dim]`, or from one of each head, whose name ends in `.norms.HEAD`.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub fn head_norms(
        &mut self,
        name: impl Into<Name>,
        n_heads: usize,
        head_dim: usize,
    ) -> Result<NormWeights, Error> {
        let name = name.into();
        let mut values = Vec::new();
        if self.has(name) {
            let tensor = self.require(name, "weight")?;
            self.check_shape(&tensor, &[n_heads, head_dim])?;
            values = self.vector_of(&tensor, 0.0)?;
        } else {
            let stem = self.file_name(name, "");
            for head in 0..n_heads {
                let full = format!("{stem}.norms.{head}.weight");
                let Some(tensor) = self.look_up_file(&full) else {
                    return Err(self.missing_tensor(name, "weight"));
                };
                self.used.insert(tensor.name.clone());
                self.check_shape(&tensor, &[head_dim])?;
                values.extend(self.vector_of(&tensor, 0.0)?);
            }
        }
        let len = values.len();
        let weight = Some(self.add(name.to_string(), vec![len], WeightData::Vector(values)));
        Ok(NormWeights { weight, bias: None, len })
    }

    /// The vector of a normalization that is stored as it is, also where the others are offsets.
    ///
    /// # Errors
    /// If it is missing, or of another length or an unusable type.
    pub fn plain_norm(&mut self, name: impl Into<Name>, len: usize) -> Result<NormWeights, Error> {
        let weight = Some(self.vector(name, len)?);
        Ok(NormWeights { weight, bias: None, len })
    }

    /// A vector of `len` numbers, each passed through `f`.
    ///
    /// # Errors
    /// If it is missing, or of another length or an unusable type.
    pub fn vector_map(
        &mut self,
        name: impl Into<Name>,
        len: usize,
        f: impl Fn(f32) -> f32,
    ) -> Result<WeightId, Error> {
        let id = self.vector(name, len)?;
        if let WeightData::Vector(values) = &mut self.data[id.idx()] {
            values.iter_mut().for_each(|x| *x = f(*x));
        }
        Ok(id)
    }

    /// The bias of a linear or a convolution that is an operand of its own.
    ///
    /// # Errors
    /// If it is missing, or of another length or an unusable type.
    pub fn bias_vector(&mut self, name: impl Into<Name>, len: usize) -> Result<WeightId, Error> {
        let name = name.into();
        let tensor = self.require(name, "bias")?;
        self.check_shape(&tensor, &[len])?;
        self.add_vector(name, "bias", &tensor)
    }

    /// The vector of the input that each column of a matrix is for, if that is not its own.
    fn order(&mut self, tensor: &Tensor) -> Option<WeightId> {
        let order = self.checkpoint.order(&tensor.name)?;
        if let Some(id) = self.orders.get(&order) {
            return Some(*id);
        }
        let values = order.iter().map(|&input| input as f32).collect();
        let name = format!("orders.{}", self.orders.len());
        let id = self.add(name, vec![order.len()], WeightData::Vector(values));
        self.orders.insert(order, id);
        Some(id)
    }

    /// A linear layer of `n_out` outputs.
    ///
    /// # Errors
    /// If a tensor is missing, or of another shape or an unusable type.
    pub fn linear(
        &mut self,
        name: impl Into<Name>,
        n_out: usize,
        n_in: usize,
        bias: Bias,
    ) -> Result<Linear, Error> {
        let name = name.into();
        let [linear] = self.stacked_linears(name, [(name.leaf, n_out)], n_in, bias)?;
        Ok(linear)
    }

    /// The elements of `[rows, cols]` as `[cols, rows]`, copied.
    fn transpose(&self, tensor: &Tensor, rows: usize, cols: usize) -> Result<Bytes, Error> {
        let ty = self.block_type(tensor)?;
        if ty.block_len() != 1 {
            return Err(self.type_error(tensor, "cannot be transposed, as this tensor must be"));
        }
        let n = ty.block_bytes();
        let mut out = vec![0; tensor.data.len()];
        for (r, row) in tensor.data.chunks_exact(cols * n).enumerate() {
            for (c, element) in row.chunks_exact(n).enumerate() {
                out[(c * rows + r) * n..][..n].copy_from_slice(element);
            }
        }
        Ok(Bytes::from(out))
    }

    /// The head: its own matrix, or the embedding when the two are tied.
    ///
    /// `tied` is what the settings say; when they are silent, a missing head is
    /// the embedding. A head in the file that is not equal to the embedding is the
    /// head even where the settings call the two tied, as in transformers.
    ///
    /// # Errors
    /// If the head is missing and not tied, or its tensors do not fit.
    pub fn lm_head(
        &mut self,
        tok_embed: Weight,
        tied: Option<bool>,
        bias: Bias,
    ) -> Result<Linear, Error> {
        let own = self.look_up("lm_head".into(), "weight");
        let is_embedding = match &own {
            Some(head) => tied == Some(true) && self.is_embedding(head),
            None => tied != Some(false),
        };
        if is_embedding {
            // Some files store the tied head a second time.
            self.find("lm_head".into(), "weight");
            let bias = match self.bias_tensor("lm_head".into(), bias, tok_embed.rows)? {
                Some(tensor) => Some(self.add_vector("lm_head".into(), "bias", &tensor)?),
                None => None,
            };
            return Ok(Linear { weight: tok_embed, bias, order: None, factor: 1.0 });
        }
        let transposed = std::mem::take(&mut self.transposed);
        let head = self.linear("lm_head", tok_embed.rows, tok_embed.cols, bias);
        self.transposed = transposed;
        head
    }

    /// Whether the file's embedding is the same as `head`, or is not there beside it.
    fn is_embedding(&self, head: &Tensor) -> bool {
        self.look_up("tok_embed".into(), "weight").is_none_or(|embedding| {
            (embedding.ty, &embedding.shape) == (head.ty, &head.shape)
                && embedding.data[..] == head.data[..]
        })
    }

    /// The weights, once every tensor of the file is accounted for: used, or
    /// ending in one of `ignored`, beginning with one that ends in a dot, or of a layer that is passed
    /// over.
    ///
    /// # Errors
    /// If a tensor is neither.
    pub(crate) fn finish(
        self,
        architecture: &str,
        ignored: &[&str],
    ) -> Result<(Vec<WeightInfo>, Weights), Error> {
        let unused: Vec<&str> = self
            .checkpoint
            .tensor_names()
            .filter(|name| !self.used.contains(*name))
            .filter(|name| !self.is_beyond(name))
            .filter(|name| {
                !ignored.iter().any(|part| {
                    name.ends_with(part) || (part.ends_with('.') && name.starts_with(part))
                })
            })
            .collect();
        if let Some(first) = unused.first() {
            return Err(Error::UnusedTensor {
                path: self.checkpoint.path().to_owned(),
                tensor: (*first).to_owned(),
                n: unused.len(),
                architecture: architecture.to_owned(),
            });
        }
        Ok((self.infos, Weights(self.data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_formats::{SafeTensorsWriter, TensorType};

    /// A directory with a vector under each of these names, of 1, 2, 3, … elements.
    fn checkpoint(dir: &Path, names: &[&str]) -> Checkpoint {
        std::fs::write(dir.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
        let data: Vec<Vec<u8>> = (1..=names.len())
            .map(|len| (1..=len).flat_map(|i| (i as f32).to_le_bytes()).collect())
            .collect();
        let mut file = SafeTensorsWriter::new();
        for (name, data) in names.iter().zip(&data) {
            file.tensor(name, TensorType::F32, &[data.len() / 4], data).unwrap();
        }
        file.write_file(dir.join("model.safetensors")).unwrap();
        Checkpoint::open(dir).unwrap()
    }

    #[test]
    fn a_vector_is_found_with_and_without_a_suffix() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["model.layers.0.self_attn.sinks", "model.layers.1.self_attn.sinks.weight"];
        let checkpoint = checkpoint(dir.path(), &names);
        let table = &[("attn_sinks", "model.layers.{}.self_attn.sinks")];
        let mut loader = WeightLoader::new(&checkpoint, table);
        // What is said of norms does not hold for other vectors.
        loader.norms_are_offsets();
        let ids = [(0, 1), (1, 2)].map(|(l, len)| loader.vector((l, "attn_sinks"), len).unwrap());

        let check = |found: Result<WeightId, Error>, expected: &str| {
            let text = found.unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        };
        check(loader.vector((0, "attn_sinks"), 3), "model.layers.0.self_attn.sinks");
        check(loader.vector((2, "attn_sinks"), 1), "model.layers.2.self_attn.sinks.weight");

        let (infos, weights) = loader.finish("llama", &[]).unwrap();
        assert_eq!(ids.map(|id| weights.vector(id)), [&[1.0][..], &[1.0, 2.0]]);
        let names: Vec<_> =
            infos.iter().map(|info| (info.name.as_str(), &info.shape[..])).collect();
        assert_eq!(names, [("layers.0.attn_sinks", &[1][..]), ("layers.1.attn_sinks", &[2])]);
    }
}
