//! The arena of the CPU backend: the borrowing of places that do not overlap.

use realizar_kernels_cpu::{Pages, Rows, RowsMut};
use realizar_model::graph::plan::Place;

/// The arena of a plan.
#[derive(Debug)]
pub(super) struct Arena(Pages);

/// The elements that `n_rows` rows of a place span, from its first on.
fn span(place: &Place, n_rows: usize) -> usize {
    if n_rows == 0 { 0 } else { (n_rows - 1) * place.stride + place.width }
}

fn rows_of<'a>(data: &'a [f32], place: &Place, n_rows: usize) -> Rows<'a> {
    Rows::with_stride(data, n_rows, place.width, place.stride)
}

impl Arena {
    /// An arena of `len` elements.
    pub(super) fn new(len: usize) -> Option<Self> {
        len.checked_mul(size_of::<f32>()).and_then(Pages::zeroed).map(Self)
    }

    fn elements(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }

    fn elements_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    /// The first `n_rows` rows of a place, to read.
    pub(super) fn rows(&self, place: &Place, n_rows: usize) -> Rows<'_> {
        rows_of(&self.elements()[place.start..][..span(place, n_rows)], place, n_rows)
    }

    /// The elements of the first `n_rows` rows of a dense place.
    pub(super) fn dense(&self, place: &Place, n_rows: usize) -> &[f32] {
        assert_eq!(place.stride, place.width, "a dense place");
        &self.elements()[place.start..][..n_rows * place.width]
    }

    /// The first `n_rows` rows of a place, to write.
    pub(super) fn rows_mut(&mut self, place: &Place, n_rows: usize) -> RowsMut<'_> {
        let data = &mut self.elements_mut()[place.start..][..span(place, n_rows)];
        RowsMut::with_stride(data, n_rows, place.width, place.stride)
    }

    /// Rows of one place to write, and rows of others to read.
    ///
    /// # Panics
    /// If a place that is read overlaps the one that is written; the plan keeps
    /// them apart.
    pub(super) fn borrow<const N: usize>(
        &mut self,
        out: (&Place, usize),
        inputs: [(&Place, usize); N],
    ) -> (RowsMut<'_>, [Rows<'_>; N]) {
        let (place, n_rows) = out;
        let len = span(place, n_rows);
        let (before, rest) = self.elements_mut().split_at_mut(place.start);
        let (written, after) = rest.split_at_mut(len);
        let (before, after) = (&*before, &*after);
        let after_start = place.start + len;
        let inputs = inputs.map(|(input, n_rows)| {
            let data = match input.start.checked_sub(after_start) {
                Some(start) => &after[start..],
                None => &before[input.start..],
            };
            rows_of(&data[..span(input, n_rows)], input, n_rows)
        });
        (RowsMut::with_stride(written, n_rows, place.width, place.stride), inputs)
    }
}
