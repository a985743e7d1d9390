//! M-RoPE: rotary embeddings whose pairs take their angles from one of three components of a position,
//! temporal, height and width (arXiv:2409.12191, Qwen2-VL). For text all three are the same.

use crate::Error;
use crate::checkpoint::{GgufSettings, HfSettings};

/// How many pairs each component has, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sections {
    /// Pairs of the temporal component, of height and of width.
    pub sizes: [usize; 3],
    /// Whether the components take turns (Qwen3-VL) or have a run of pairs each (Qwen2-VL).
    pub interleaved: bool,
}

impl Sections {
    /// What `mrope_section` of the parameters `p` says, or these, for `n_pairs` pairs.
    ///
    /// # Errors
    /// If it is no list of three numbers, or they do not fit the pairs.
    pub(super) fn or_from_hf(self, p: Option<&HfSettings>, n_pairs: usize) -> Result<Self, Error> {
        const KEY: &str = "mrope_section";
        let Some(p) = p else { return Ok(self) };
        // The family says whether they take turns, as in transformers.
        p.pass_over("mrope_interleaved");
        let sizes = match p.opt_usizes(KEY)? {
            None => self.sizes,
            Some(sizes) => <[usize; 3]>::try_from(sizes).map_err(|_| p.wrong(KEY, THREE))?,
        };
        let sections = Self { sizes, ..self };
        if !sections.fit(n_pairs) {
            return Err(p.wrong(KEY, format!("{THREE} that add up to {n_pairs}")));
        }
        Ok(sections)
    }

    /// What a GGUF file says, for `n_pairs` pairs; `None` if it says nothing.
    ///
    /// # Errors
    /// If it is no list of three numbers and a zero, or they do not fit the pairs.
    pub(crate) fn from_gguf(
        s: GgufSettings<'_>,
        interleaved: bool,
        n_pairs: usize,
    ) -> Result<Option<Self>, Error> {
        const KEY: &str = "rope.dimension_sections";
        let Some(list) = s.opt_usizes(KEY)? else { return Ok(None) };
        let sections = match list[..] {
            [t, h, w] | [t, h, w, 0] => Some(Self { sizes: [t, h, w], interleaved }),
            _ => None,
        };
        match sections.filter(|sections| sections.fit(n_pairs)) {
            Some(sections) => Ok(Some(sections)),
            None => Err(s.wrong(KEY, format!("{THREE} for {n_pairs} pairs"), format!("{list:?}"))),
        }
    }

    /// Whether the runs are those of so many pairs.
    fn fit(&self, n_pairs: usize) -> bool {
        let sum = self.sizes.iter().fold(0, |sum: usize, n| sum.saturating_add(*n));
        self.interleaved || sum == n_pairs
    }

    /// The component of each pair: 0 temporal, 1 height, 2 width.
    pub fn components(&self, n_pairs: usize) -> Vec<u8> {
        let [t, h, w] = self.sizes;
        let component = |pair: usize| match (self.interleaved, pair % 3) {
            (true, 1) if pair / 3 < h => 1,
            (true, 2) if pair / 3 < w => 2,
            (true, _) => 0,
            (false, _) => u8::from(pair >= t) + u8::from(pair >= t + h),
        };
        (0..n_pairs).map(component).collect()
    }
}

const THREE: &str = "three numbers of pairs";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_have_runs_or_take_turns() {
        let of = |sizes, interleaved, n| Sections { sizes, interleaved }.components(n);
        assert_eq!(of([2, 3, 3], false, 8), [0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(of([4, 2, 2], true, 8), [0, 1, 2, 0, 1, 2, 0, 0]);
        assert_eq!(of([11, 11, 10], true, 2), [0, 1]);
        assert_eq!(of([usize::MAX; 3], true, 4), [0, 1, 2, 0]);
        // The published sizes: each component has as many pairs as its section says.
        for (sizes, interleaved) in
            [([16, 24, 24], false), ([24, 20, 20], true), ([11, 11, 10], true)]
        {
            let all = of(sizes, interleaved, sizes.iter().sum());
            let count = |c: u8| all.iter().filter(|&&x| x == c).count();
            assert_eq!([count(0), count(1), count(2)], sizes, "{interleaved}");
        }
    }
}
