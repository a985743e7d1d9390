//! Weights that are made at load: of small tensors, or of nothing but settings.

use super::{Name, WeightLoader};
use crate::Error;
use crate::graph::weights::{Linear, Weight, WeightData, WeightId};
use realizar_formats::Bytes;
use realizar_quant::BlockType;
use std::iter::repeat_n;

impl WeightLoader<'_> {
    /// The numbers of a tensor of this shape, which is too small to stay where it is. It may be called
    /// `NAME.weight` or `NAME`.
    ///
    /// # Errors
    /// If it is missing, or of another shape or an unusable type.
    pub(crate) fn numbers<const N: usize>(
        &mut self,
        name: impl Into<Name>,
        shape: [usize; N],
    ) -> Result<Vec<f32>, Error> {
        let name = name.into();
        let tensor = match self.find(name, "weight") {
            Some(tensor) => tensor,
            None => self.require(name, "")?,
        };
        self.check_shape(&tensor, &shape)?;
        self.unordered_type(&tensor)?;
        self.vector_of(&tensor, 0.0)
    }

    /// A vector of these numbers.
    pub(crate) fn made_vector(&mut self, name: impl Into<Name>, values: Vec<f32>) -> WeightId {
        let name = name.into().to_string();
        self.add(name, vec![values.len()], WeightData::Vector(values))
    }

    /// A vector of `len` numbers, each of them `n` times.
    ///
    /// # Errors
    /// If it is missing, or of another length or an unusable type.
    pub(crate) fn repeated(
        &mut self,
        name: impl Into<Name>,
        len: usize,
        n: usize,
    ) -> Result<WeightId, Error> {
        let name = name.into();
        let values = self.numbers(name, [len])?;
        Ok(self.made_vector(name, values.into_iter().flat_map(|x| repeat_n(x, n)).collect()))
    }

    /// A linear layer with the F32 matrix whose elements `of` gives by row and column.
    pub(crate) fn made_linear(
        &mut self,
        name: impl Into<Name>,
        [rows, cols]: [usize; 2],
        bias: Option<Vec<f32>>,
        of: impl Fn(usize, usize) -> f32,
    ) -> Linear {
        let name = name.into();
        let row = |row: usize| {
            let of = &of;
            (0..cols).flat_map(move |col| of(row, col).to_le_bytes())
        };
        let data = Bytes::from((0..rows).flat_map(row).collect::<Vec<u8>>());
        let weight = self.add_matrix(name.to_string(), BlockType::F32, [rows, cols], data);
        let bias = bias
            .map(|values| self.add(format!("{name}.bias"), vec![rows], WeightData::Vector(values)));
        Linear { weight, bias, order: None, factor: 1.0 }
    }

    /// A table of `rows.1` rows, of which the file has the first `rows.0`; the others are its first once
    /// more.
    ///
    /// # Errors
    /// If it is missing, or of another shape or an unusable type.
    pub(crate) fn extended_table(
        &mut self,
        name: impl Into<Name>,
        (own, rows): (usize, usize),
        cols: usize,
    ) -> Result<Weight, Error> {
        let name = name.into();
        if own >= rows {
            return self.matrix(name, own, cols);
        }
        let tensor = self.require(name, "weight")?;
        self.check_shape(&tensor, &[own, cols])?;
        let ty = self.unordered_type(&tensor)?;
        let row_bytes = ty.row_bytes(cols).map_err(|e| self.type_error(&tensor, &e.to_string()))?;
        let source = tensor.data.clone();
        let data = Bytes::made(vec![source.clone()], rows * row_bytes, move || {
            let source = source.for_once();
            let mut table = source.to_vec();
            (own..rows).for_each(|_| table.extend_from_slice(&source[..row_bytes]));
            table
        });
        Ok(self.add_matrix(name.to_string(), ty, [rows, cols], data))
    }
}
