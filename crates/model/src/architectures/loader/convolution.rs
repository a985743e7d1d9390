//! The weights of short convolutions.

use super::{Name, WeightLoader};
use crate::Error;
use crate::graph::weights::{WeightData, WeightId};

impl WeightLoader<'_> {
    /// The weights of a convolution over rows, `[channels, n_taps]` or `[channels, 1, n_taps]` in the
    /// file, as a vector of `[n_taps, channels]`.
    ///
    /// # Errors
    /// If it is missing, or of another shape or an unusable type.
    pub fn taps(
        &mut self,
        name: impl Into<Name>,
        n_channels: usize,
        n_taps: usize,
    ) -> Result<WeightId, Error> {
        let name = name.into();
        let tensor = self.require(name, "weight")?;
        if tensor.shape != [n_channels, 1, n_taps] {
            self.check_shape(&tensor, &[n_channels, n_taps])?;
        }
        let by_channel = self.vector_of(&tensor, 0.0)?;
        let tap = |i: usize| by_channel.iter().skip(i).step_by(n_taps);
        let values = (0..n_taps).flat_map(tap).copied().collect();
        Ok(self.add(name.to_string(), vec![n_taps, n_channels], WeightData::Vector(values)))
    }
}
