//! Weights of a layer that predicts further tokens: names of its own, weights that it shares, and the two halves
//! of the matrix that joins a hidden state and an embedding.

use super::{Linear, Name, WeightLoader};
use crate::Error;
use crate::graph::weights::{Weight, WeightData, WeightId};
use realizar_formats::Bytes;
use std::ops::Range;

impl WeightLoader<'_> {
    /// Tensors of these layers, which the file has after the model's own, are not requested.
    pub(crate) fn pass_over_layers(&mut self, layers: Range<usize>) {
        self.beyond = layers;
    }

    /// Whether the tensor of this name in the file is of a layer that is passed over.
    pub(super) fn is_beyond(&self, name: &str) -> bool {
        let start = if self.is_hf() { "model.layers." } else { "blk." };
        let layer = name.strip_prefix(start).and_then(|rest| rest.split('.').next());
        layer.and_then(|layer| layer.parse().ok()).is_some_and(|layer| self.beyond.contains(&layer))
    }

    /// From now on, names in safetensors files that begin with `model.layers.LAYER.` begin with `start` instead.
    pub(crate) fn rename_layer(&mut self, layer: usize, start: &'static str) {
        self.renamed = Some((layer, start));
    }

    /// From now on, a weight that was requested before is the one from then.
    pub(crate) fn share_weights(&mut self) {
        self.shares = true;
    }

    /// The matrices of the first and of the second half of a linear layer's columns, `[n_out, n_in / 2]` each, by the
    /// names of the two leaves; rows are copied.
    ///
    /// # Errors
    /// If the tensor is missing, of another shape or an unusable type, or a half does not end where a block does.
    pub(crate) fn column_halves(
        &mut self,
        name: impl Into<Name>,
        leaves: [&'static str; 2],
        (n_out, n_in): (usize, usize),
    ) -> Result<[Linear; 2], Error> {
        let name = name.into();
        let tensor = self.require(name, "weight")?;
        self.check_shape(&tensor, &[n_out, n_in])?;
        let ty = self.unordered_type(&tensor)?;
        let cols = n_in / 2;
        let half_bytes =
            ty.row_bytes(cols).map_err(|e| self.type_error(&tensor, &e.to_string()))?;
        Ok([0, 1].map(|half| {
            let source = tensor.data.clone();
            let data = Bytes::made(vec![source.clone()], n_out * half_bytes, move || {
                let source = source.for_once();
                let rows = source.chunks_exact(2 * half_bytes);
                rows.flat_map(|row| &row[half * half_bytes..][..half_bytes]).copied().collect()
            });
            let leaf = Name { leaf: leaves[half], ..name };
            let weight = self.add_matrix(leaf.to_string(), ty, [n_out, cols], data);
            Linear { weight, bias: None, order: None, factor: 1.0 }
        }))
    }

    /// The taps of a convolution over `n_channels` columns that gives each row the one before it.
    pub(crate) fn delay(&mut self, name: &str, n_channels: usize) -> (WeightId, usize) {
        let values = [1.0, 0.0].into_iter().flat_map(|tap| vec![tap; n_channels]).collect();
        (self.add(name.to_owned(), vec![2, n_channels], WeightData::Vector(values)), 2)
    }

    /// A matrix of the shape of `model`, or `model` itself where the file has no such tensor, or one with the same
    /// contents as the tensor `of`.
    ///
    /// # Errors
    /// If the tensor is of another shape or an unusable type.
    pub(crate) fn own_or(
        &mut self,
        name: impl Into<Name>,
        of: &'static str,
        model: Weight,
    ) -> Result<Weight, Error> {
        let name = name.into();
        let Some(own) = self.find(name, "weight") else { return Ok(model) };
        let is_same = self.look_up(of.into(), "weight").is_some_and(|of| {
            (of.ty, &of.shape) == (own.ty, &own.shape) && of.data[..] == own.data[..]
        });
        if is_same { Ok(model) } else { self.matrix(name, model.rows, model.cols) }
    }
}
