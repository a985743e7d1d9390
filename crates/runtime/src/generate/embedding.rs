//! Embeddings: a vector for a text, pooled from the hidden states after the final norm.
//!
//! A model is loaded for embeddings with [`ModelOutput::Embeddings`], or for text and embeddings with
//! [`LoadOptions::embeddings`](crate::LoadOptions::embeddings). Rows are pooled in `f32` in the
//! order of their positions, so the vector does not depend on how the text was cut into steps.

use super::check_len;
use crate::Error;
use crate::run::require_output;
use crate::run::{Chunk, Model, Outputs, Runner, SeqId};
use realizar_backends::Phase;
use realizar_model::architectures::ModelOutput;
use realizar_model::checkpoint::Pooling;
use realizar_model::graph::plan::RowLimits;

/// Parameters of an embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedParams {
    /// The pooling; `None` is that of the model's files, see [`Model::pooling`].
    pub pooling: Option<Pooling>,
    /// The number of elements to keep from the front, for models that were trained for that (Kusupati
    /// et al., 2022, "Matryoshka Representation Learning"). `None` keeps all.
    pub dimensions: Option<usize>,
    /// Whether the vector is scaled to length 1, after truncation.
    pub normalize: bool,
}

impl Default for EmbedParams {
    fn default() -> Self {
        Self { pooling: None, dimensions: None, normalize: true }
    }
}

/// Pools the hidden states of one text.
#[derive(Debug)]
pub(crate) struct Pooler {
    pooling: Pooling,
    dimensions: usize,
    normalize: bool,
    sum: Vec<f32>, // [dim], empty before the first row
    n_rows: usize,
}

impl Pooler {
    /// A pooler of rows of `dim` columns. `pooling` is the default.
    pub(crate) fn new(params: &EmbedParams, pooling: Pooling, dim: usize) -> Result<Self, Error> {
        let dimensions = params.dimensions.unwrap_or(dim);
        if dimensions == 0 || dimensions > dim {
            let text = format!("an embedding must have 1 to {dim} dimensions, not {dimensions}");
            return Err(Error::Request(text));
        }
        Ok(Self {
            pooling: params.pooling.unwrap_or(pooling),
            dimensions,
            normalize: params.normalize,
            sum: Vec::new(),
            n_rows: 0,
        })
    }

    pub(crate) fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Removes all rows.
    pub(crate) fn clear(&mut self) {
        self.sum.clear();
        self.n_rows = 0;
    }

    /// Adds a row. Rows come in the order of positions.
    pub(crate) fn add(&mut self, row: &[f32] /* [dim] */) {
        self.n_rows += 1;
        if self.sum.is_empty() {
            self.sum.extend_from_slice(row);
        } else {
            self.sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
    }

    /// The embedding; `None` if it is not finite.
    pub(crate) fn finish(&mut self) -> Option<Vec<f32>> {
        let mut values = std::mem::take(&mut self.sum);
        values.truncate(self.dimensions);
        let n_rows = self.n_rows as f32;
        values.iter_mut().for_each(|x| *x /= n_rows);
        if self.normalize {
            // In f64, where the square of an f32 cannot overflow.
            let squares: f64 = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let length = squares.sqrt();
            if length > 0.0 {
                values.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
            }
        }
        values.iter().all(|x| x.is_finite()).then_some(values)
    }
}

impl Model {
    /// The embedding of a text's tokens. It has as many elements as a hidden state, unless `params` set
    /// fewer.
    ///
    /// ```
    /// use realizar_runtime::backend::cpu::CpuBackend;
    /// use realizar_runtime::tokenizer::EncodeOptions;
    /// use realizar_runtime::{EmbedParams, LoadOptions, Model, ModelOutput, Pooling};
    /// use std::path::Path;
    ///
    /// # fn main() -> Result<(), realizar_runtime::Error> {
    /// let backend = CpuBackend::new(None, None)?;
    /// let options = LoadOptions { output: ModelOutput::Embeddings, ..LoadOptions::default() };
    /// let mut model = Model::load(Path::new("examples/alphabet.gguf"), &backend, &options)?;
    /// let params = EmbedParams { pooling: Some(Pooling::Mean), ..EmbedParams::default() };
    /// let mut embed = |text: &str| -> Result<Vec<f32>, realizar_runtime::Error> {
    ///     let ids = model.tokenizer()?.encode(text, EncodeOptions::default())?;
    ///     model.embed(&ids, &params)
    /// };
    /// let likeness = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    /// // This model distinguishes letters, and nothing else.
    /// let (one, other, none) = (embed("abcd")?, embed("dcxy")?, embed("uvw")?);
    /// assert!((likeness(&one, &one) - 1.0).abs() < 1e-5);
    /// assert!((likeness(&one, &other) - 0.5).abs() < 1e-5);
    /// assert_eq!(likeness(&one, &none), 0.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A text model that was loaded with [`LoadOptions::embeddings`](crate::LoadOptions::embeddings)
    /// gives the same vectors, up to rounding:
    ///
    /// ```
    /// use realizar_runtime::backend::cpu::CpuBackend;
    /// use realizar_runtime::template::Message;
    /// use realizar_runtime::{EmbedParams, GenerateParams, LoadOptions, Model, Pooling};
    /// use std::path::Path;
    ///
    /// # fn main() -> Result<(), realizar_runtime::Error> {
    /// let options = LoadOptions { embeddings: true, ..LoadOptions::default() };
    /// let backend = CpuBackend::new(None, None)?;
    /// let mut model = Model::load(Path::new("examples/alphabet.gguf"), &backend, &options)?;
    /// let params = EmbedParams { pooling: Some(Pooling::Mean), ..EmbedParams::default() };
    /// // `a` and `b` are tokens 4 and 5, and each has an element of its own.
    /// let vector = model.embed(&[4, 5], &params)?;
    /// assert!((vector[4] - 0.5_f32.sqrt()).abs() < 1e-5 && vector[4] == vector[5]);
    /// let answer = model.chat(&[Message::user("uv")], &GenerateParams::default())?.finish()?;
    /// assert_eq!(answer.text, "wxyz");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the model was not loaded for embeddings, there are no tokens, a token is not in the
    /// vocabulary, the text does not fit the context, more elements are requested than there are,
    /// or a hidden state is not finite.
    pub fn embed(&mut self, ids: &[u32], params: &EmbedParams) -> Result<Vec<f32>, Error> {
        let pooling = self.pooling()?;
        let runner = self.runner();
        let mut pooler = Pooler::new(params, pooling, runner.embedding_dim().unwrap_or_default())?;
        check_len(ids.len(), runner.max_seq_len())?;
        let seq = runner.new_sequence();
        let result = pool(runner, &seq, ids, &mut pooler);
        runner.remove(seq);
        result?;
        pooler.finish().ok_or_else(|| Error::NotFinite { path: self.path().to_owned() })
    }

    /// The default pooling: that of the model's files, or the last token if they set none.
    ///
    /// # Errors
    /// If the model was not loaded for embeddings.
    pub fn pooling(&self) -> Result<Pooling, Error> {
        if self.embedding_dim().is_none() {
            require_output(self.output(), ModelOutput::Embeddings)?;
        }
        Ok(self.default_pooling())
    }
}

/// Runs a text, and adds the rows that its pooling needs to the pooler.
fn pool(runner: &mut Runner, seq: &SeqId, ids: &[u32], pooler: &mut Pooler) -> Result<(), Error> {
    let mut at = 0;
    let RowLimits { tokens: max_rows, outputs } = runner.limits();
    // A text model keeps hidden states beside its logits, of output rows only.
    let is_text_model = runner.output() == ModelOutput::Logits;
    let is_mean = pooler.pooling() == Pooling::Mean;
    let chunk_len = if is_mean { max_rows.min(outputs) } else { max_rows };
    for tokens in ids.chunks(chunk_len) {
        let (outputs, n_rows) = match pooler.pooling() {
            Pooling::Mean => (Outputs::All, tokens.len()),
            Pooling::Last if at + tokens.len() == ids.len() => (Outputs::Last, 1),
            Pooling::Cls if at == 0 => (Outputs::At(&[0]), 1),
            Pooling::Last | Pooling::Cls => (Outputs::None, 0),
        };
        let rows =
            runner.step(&[Chunk { seq, rows: tokens.into(), phase: Phase::Prefill, outputs }])?;
        if is_text_model {
            let row = |i| runner.embedding_row(0, i).expect("a step keeps its hidden states");
            (0..n_rows).for_each(|i| pooler.add(row(i)));
        } else {
            (0..n_rows).for_each(|i| pooler.add(rows.row(0, i)));
        }
        at += tokens.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_pooled() {
        let check = |params: EmbedParams, rows: &[[f32; 3]], want: &[f32]| {
            let mut pooler = Pooler::new(&params, Pooling::Last, 3).unwrap();
            // Removed rows leave no trace.
            pooler.add(&[9.0; 3]);
            pooler.clear();
            rows.iter().for_each(|row| pooler.add(row));
            assert_eq!(pooler.finish().unwrap(), want, "{params:?}");
        };
        let plain = EmbedParams { normalize: false, ..EmbedParams::default() };
        let unit = EmbedParams::default();
        check(plain, &[[3.0, 4.0, 0.0]], &[3.0, 4.0, 0.0]);
        check(plain, &[[3.0, 4.0, 0.0], [1.0, 0.0, 1.0]], &[2.0, 2.0, 0.5]);
        check(unit, &[[3.0, 4.0, 0.0]], &[0.6, 0.8, 0.0]);
        let large = 2.0_f32.powi(100);
        check(unit, &[[3.0 * large, 4.0 * large, 0.0]], &[0.6, 0.8, 0.0]);
        check(unit, &[[0.0; 3]], &[0.0; 3]);
        // The vector is truncated before it is normalized.
        let two = EmbedParams { dimensions: Some(2), ..unit };
        check(two, &[[3.0, 4.0, 12.0]], &[0.6, 0.8]);
        for value in [f32::NAN, f32::INFINITY] {
            for params in [plain, unit] {
                let mut pooler = Pooler::new(&params, Pooling::Mean, 2).unwrap();
                pooler.add(&[value, 1.0]);
                assert_eq!(pooler.finish(), None);
            }
        }
    }

    #[test]
    fn dimensions_outside_of_the_model_are_refused() {
        for n in [0, 4] {
            let params = EmbedParams { dimensions: Some(n), ..EmbedParams::default() };
            let error = Pooler::new(&params, Pooling::Last, 3).map(|_| ()).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("an embedding must have 1 to 3 dimensions, not {n}")
            );
        }
    }
}
