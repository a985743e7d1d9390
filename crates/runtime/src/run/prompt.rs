//! What a model is given: rows that are tokens, or embeddings in place of tokens.

use crate::Error;
use realizar_backends::EMBEDDED;
use realizar_kvcache::Symbol;
use realizar_model::architectures::config::MAX_POSITIONS;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;

/// Rows that take the place of the embeddings of tokens, as a vision tower or a prompt that was tuned
/// makes them. What the model does to the embedding of a token at once, such as Gemma's scale, is
/// not done to them.
///
/// ```
/// use realizar_runtime::{Embeddings, Prompt};
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), realizar_runtime::Error> {
/// let image = Embeddings::new(vec![0.5; 4 * 8], 8)?.bidirectional();
/// let mut prompt = Prompt::from(vec![2, 105]);
/// prompt.push_embeddings(Arc::new(image));
/// prompt.push_tokens(&[106]);
/// assert_eq!(prompt.len(), 7);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Embeddings {
    values: Vec<f32>, // [n_rows, dim]
    dim: usize,
    is_bidirectional: bool,
    positions: Option<Vec<[u32; 3]>>, // [n_rows]
    /// One past the largest of these.
    extent: u32,
    content: [u8; 32],
}

impl Embeddings {
    /// Rows of `dim` elements. They are hashed here, once: prompts with equal rows share keys and
    /// values in the prefix cache, whichever request computed them.
    ///
    /// # Errors
    /// If there are none, not as many elements as rows have, or some that are not finite.
    pub fn new(values: Vec<f32>, dim: usize) -> Result<Self, Error> {
        let refuse = |reason: &str| Err(Error::Request(format!("embeddings: {reason}")));
        if dim == 0 || values.is_empty() || !values.len().is_multiple_of(dim) {
            return refuse(&format!("{} elements are not whole rows of {dim}", values.len()));
        }
        if !values.iter().all(|x| x.is_finite()) {
            return refuse("an element is not finite");
        }
        let mut hash = Sha256::new();
        hash.update((dim as u64).to_le_bytes());
        values.iter().for_each(|x| hash.update(x.to_le_bytes()));
        Ok(Self {
            values,
            dim,
            is_bidirectional: false,
            positions: None,
            extent: 0,
            content: hash.finalize().into(),
        })
    }

    /// The same rows, each of which sees all others, as Gemma 3 has its images: in a prompt they see
    /// what is before them, and each other. All of them are run in one step; a model whose attention
    /// does not have this refuses them.
    #[must_use]
    pub fn bidirectional(mut self) -> Self {
        if !self.is_bidirectional {
            self.is_bidirectional = true;
            self.hash_further(b"bidirectional");
        }
        self
    }

    /// The same rows with positions of their own for the angles of rotary embeddings: of each row the
    /// temporal, the height and the width component, counted from where the segment begins. The row
    /// after them continues after the largest, as in Qwen2-VL and its successors. A model whose rotary
    /// embedding has one component takes rows whose three are the same.
    ///
    /// # Errors
    /// If there are not as many as rows, or one is 2^31 or more.
    pub fn with_positions(mut self, positions: Vec<[u32; 3]>) -> Result<Self, Error> {
        let refuse = |reason: String| Err(Error::Request(format!("embeddings: {reason}")));
        if positions.len() != self.n_rows() {
            return refuse(format!("{} positions for {} rows", positions.len(), self.n_rows()));
        }
        let largest = positions.iter().flatten().copied().max().unwrap_or(0);
        if largest as usize >= MAX_POSITIONS {
            return refuse(format!("position {largest} is too large"));
        }
        let bytes: Vec<u8> = positions.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        self.hash_further(b"positions");
        self.hash_further(&bytes);
        (self.extent, self.positions) = (largest + 1, Some(positions));
        Ok(self)
    }

    /// The content is not the same as without what these bytes say.
    fn hash_further(&mut self, bytes: &[u8]) {
        let hash = Sha256::new().chain_update(self.content).chain_update(bytes);
        self.content = hash.finalize().into();
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        self.values.len() / self.dim
    }

    /// Elements of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Whether its rows see each other in both directions.
    pub fn is_bidirectional(&self) -> bool {
        self.is_bidirectional
    }

    /// The positions of its rows, if they have their own.
    pub fn positions(&self) -> Option<&[[u32; 3]]> {
        self.positions.as_deref()
    }

    /// One past the largest of its positions.
    pub(crate) fn extent(&self) -> u32 {
        self.extent
    }

    fn row(&self, idx: usize) -> &[f32] {
        &self.values[idx * self.dim..][..self.dim]
    }
}

/// Embeddings in a prompt.
#[derive(Debug, Clone)]
struct Content {
    /// The prompt's row that the first of them is.
    first: usize,
    embeddings: Arc<Embeddings>,
}

impl Content {
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.embeddings.n_rows()
    }
}

/// A prompt: segments of tokens and of embeddings, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Prompt {
    /// Of each row its token, or [`EMBEDDED`].
    ids: Vec<u32>,
    contents: Vec<Content>, // in order
}

impl Prompt {
    /// Appends tokens.
    pub fn push_tokens(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
    }

    /// Appends rows of embeddings.
    pub fn push_embeddings(&mut self, embeddings: Arc<Embeddings>) {
        let first = self.ids.len();
        self.ids.resize(first + embeddings.n_rows(), EMBEDDED);
        self.contents.push(Content { first, embeddings });
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether some of its rows are embeddings.
    pub fn has_embeddings(&self) -> bool {
        !self.contents.is_empty()
    }

    /// Its tokens, without the rows that are embeddings.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.rows().tokens()
    }

    /// All its rows.
    pub fn rows(&self) -> Rows<'_> {
        Rows { ids: &self.ids, first: 0, contents: &self.contents }
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, contents: Vec::new() }
    }
}

impl FromIterator<u32> for Prompt {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        ids.into_iter().collect::<Vec<_>>().into()
    }
}

/// Some neighbouring rows of a prompt, or tokens that follow one.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    ids: &'a [u32],
    /// The prompt's row that the first of them is.
    first: usize,
    contents: &'a [Content],
}

/// A segment of embeddings among [`Rows`].
#[derive(Debug, Clone)]
pub(crate) struct Segment<'a> {
    /// Those of the rows that are part of it.
    pub(crate) rows: Range<usize>,
    /// Its row that the first of these is.
    pub(crate) first: usize,
    pub(crate) embeddings: &'a Embeddings,
}

impl Segment<'_> {
    /// Whether these rows are all of it.
    pub(crate) fn is_whole(&self) -> bool {
        self.first == 0 && self.rows.len() == self.embeddings.n_rows()
    }

    /// Whether its last row is among these.
    pub(crate) fn is_last_part(&self) -> bool {
        self.first + self.rows.len() == self.embeddings.n_rows()
    }

    /// Whether the first `len` rows end within it.
    fn is_cut_by(&self, len: usize) -> bool {
        let end = self.rows.start + self.embeddings.n_rows() - self.first;
        self.rows.start < len && len < end
    }
}

/// What a row is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    Token(u32),
    /// A row of embeddings.
    Embedded(&'a Embeddings, usize),
}

impl<'a> Source<'a> {
    fn symbol(self) -> Symbol {
        match self {
            Self::Token(id) => id.into(),
            Self::Embedded(embeddings, idx) => Symbol::embedded(embeddings.content, idx),
        }
    }

    /// The row's embedding, unless it is a token.
    pub(crate) fn embedding(self) -> Option<&'a [f32]> {
        match self {
            Self::Token(_) => None,
            Self::Embedded(embeddings, idx) => Some(embeddings.row(idx)),
        }
    }
}

impl<'a> Rows<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Some of them.
    ///
    /// # Panics
    /// If the range is not within them.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        Self { ids: &self.ids[range.clone()], first: self.first + range.start, ..self }
    }

    /// The token of each, [`EMBEDDED`] where there is none.
    pub(crate) fn ids(self) -> &'a [u32] {
        self.ids
    }

    /// The tokens among them.
    pub(crate) fn tokens(self) -> impl Iterator<Item = u32> + 'a {
        self.sources().filter_map(|source| match source {
            Source::Token(id) => Some(id),
            Source::Embedded(..) => None,
        })
    }

    /// What each is made from.
    pub(crate) fn sources(self) -> impl ExactSizeIterator<Item = Source<'a>> + Clone {
        let mut contents = self.contents;
        self.ids.iter().enumerate().map(move |(i, &id)| {
            let row = self.first + i;
            while let [content, rest @ ..] = contents
                && content.range().end <= row
            {
                contents = rest;
            }
            match contents.first().filter(|content| content.range().contains(&row)) {
                Some(content) => Source::Embedded(&content.embeddings, row - content.first),
                None => Source::Token(id),
            }
        })
    }

    /// Its segments of embeddings, in order.
    pub(crate) fn segments(self) -> impl Iterator<Item = Segment<'a>> + Clone {
        let (first, end) = (self.first, self.first + self.ids.len());
        let before = self.contents.partition_point(|content| content.range().end <= first);
        let within = self.contents[before..].iter().take_while(move |content| content.first < end);
        within.map(move |content| {
            let Range { start, end: to } = content.range();
            let from = start.max(first);
            let rows = from - first..to.min(end) - first;
            Segment { rows, first: from - start, embeddings: &content.embeddings }
        })
    }

    /// Its segments whose rows see each other in both directions.
    pub(crate) fn bidirectional(self) -> impl Iterator<Item = Segment<'a>> + Clone {
        self.segments().filter(|segment| segment.embeddings.is_bidirectional)
    }

    /// Those that are run together or not at all.
    pub(crate) fn whole(self) -> Vec<Range<usize>> {
        self.bidirectional().map(|segment| segment.rows).collect()
    }

    /// The longest beginning of at most `len` rows that can be run without those after it: rows that
    /// see each other in both directions are run in one chunk.
    #[must_use]
    pub fn cut(self, len: usize) -> usize {
        let cut = self.bidirectional().find(|segment| segment.is_cut_by(len));
        cut.map_or(len, |segment| segment.rows.start)
    }

    /// The least rows at the beginning that can be run without those after them.
    pub(crate) fn least(self) -> usize {
        let first = self.bidirectional().next().filter(|segment| segment.rows.start == 0);
        first.map_or(1, |segment| segment.rows.end)
    }

    /// What distinguishes each from others.
    pub(crate) fn symbols(self) -> impl ExactSizeIterator<Item = Symbol> + Clone + 'a {
        self.sources().map(Source::symbol)
    }

    /// How many rows at the beginning are the same.
    pub(crate) fn common_len(self, other: Rows<'_>) -> usize {
        self.symbols().zip(other.symbols()).take_while(|(a, b)| a == b).count()
    }
}

impl<'a> From<&'a Prompt> for Rows<'a> {
    fn from(prompt: &'a Prompt) -> Self {
        prompt.rows()
    }
}

impl<'a> From<&'a [u32]> for Rows<'a> {
    fn from(ids: &'a [u32]) -> Self {
        Self { ids, first: 0, contents: &[] }
    }
}

impl<'a> From<&'a Vec<u32>> for Rows<'a> {
    fn from(ids: &'a Vec<u32>) -> Self {
        ids.as_slice().into()
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for Rows<'a> {
    fn from(ids: &'a [u32; N]) -> Self {
        ids.as_slice().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embeddings(n_rows: usize, first: f32) -> Arc<Embeddings> {
        let values = (0..n_rows * 2).map(|i| first + i as f32).collect();
        Arc::new(Embeddings::new(values, 2).unwrap())
    }

    #[test]
    fn rows_are_tokens_and_embeddings_wherever_they_are_cut() {
        let mut prompt = Prompt::from(vec![5, 6]);
        prompt.push_embeddings(embeddings(3, 1.0));
        prompt.push_embeddings(embeddings(1, 1.0));
        prompt.push_tokens(&[7]);
        assert_eq!((prompt.len(), prompt.tokens().collect::<Vec<_>>()), (7, vec![5, 6, 7]));
        let tell = |rows: Rows<'_>| -> Vec<Result<u32, f32>> {
            let one = |source: Source<'_>| match source {
                Source::Token(id) => Ok(id),
                Source::Embedded(embeddings, idx) => Err(embeddings.row(idx)[0]),
            };
            rows.sources().map(one).collect()
        };
        let all = [Ok(5), Ok(6), Err(1.0), Err(3.0), Err(5.0), Err(1.0), Ok(7)];
        assert_eq!(tell(prompt.rows()), all);
        let symbols: Vec<_> = prompt.rows().symbols().collect();
        for start in 0..=7 {
            for end in start..=7 {
                let rows = prompt.rows().slice(start..end);
                assert_eq!(tell(rows), all[start..end]);
                assert!(rows.symbols().eq(symbols[start..end].iter().copied()));
            }
        }
        // Row 0 of one content is not row 0 of another with the same beginning.
        assert_ne!(symbols[2], symbols[5]);
    }

    #[test]
    fn prompts_agree_as_far_as_their_contents_do() {
        let prompt = |content, token| {
            let mut prompt = Prompt::from(vec![5]);
            prompt.push_embeddings(content);
            prompt.push_tokens(&[token]);
            prompt
        };
        let a = prompt(embeddings(2, 1.0), 7);
        let common = |other: &Prompt| a.rows().common_len(other.rows());
        assert_eq!(common(&prompt(embeddings(2, 1.0), 7)), 4);
        assert_eq!(common(&prompt(embeddings(2, 1.0), 8)), 3);
        assert_eq!(common(&prompt(embeddings(2, 1.5), 7)), 1);
        assert_eq!(common(&vec![5, EMBEDDED, EMBEDDED, 7].into()), 1);
    }

    #[test]
    fn rows_that_see_each_other_stay_together() {
        let image = |n_rows: usize| Arc::new(Embeddings::new(vec![0.5; n_rows * 2], 2).unwrap());
        let both = |n_rows: usize| {
            Arc::new(Embeddings::new(vec![0.5; n_rows * 2], 2).unwrap().bidirectional())
        };
        let mut prompt = Prompt::from(vec![5, 6]);
        prompt.push_embeddings(both(3));
        prompt.push_embeddings(both(2));
        prompt.push_embeddings(image(4));
        prompt.push_tokens(&[7]);
        assert_eq!(prompt.rows().whole(), [2..5, 5..7]);
        let cuts: Vec<_> = (0..=12).map(|len| prompt.rows().cut(len)).collect();
        assert_eq!(cuts, [0, 1, 2, 2, 2, 5, 5, 7, 8, 9, 10, 11, 12]);
        let rest = |start| prompt.rows().slice(start..12);
        let least: Vec<_> = [0, 1, 2, 5, 7, 8].map(|start| rest(start).least()).into();
        assert_eq!(least, [1, 1, 3, 2, 1, 1]);
        assert_eq!(rest(2).cut(1), 0);
        assert_eq!(rest(2).slice(0..4).cut(4), 3, "the second goes on behind them");
        let is_whole = |rows: Rows<'_>| rows.segments().map(|s| s.is_whole()).collect::<Vec<_>>();
        assert_eq!(is_whole(prompt.rows().slice(3..9)), [false, true, false]);
        // The two forms are different contents.
        let symbols = |content| {
            let mut prompt = Prompt::default();
            prompt.push_embeddings(content);
            prompt.rows().symbols().collect::<Vec<_>>()
        };
        assert!(symbols(image(3)).iter().zip(symbols(both(3))).all(|(a, b)| *a != b));
        let twice = Embeddings::new(vec![0.5; 6], 2).unwrap().bidirectional().bidirectional();
        assert_eq!(symbols(both(3)), symbols(Arc::new(twice)));
    }

    #[test]
    fn embeddings_are_whole_rows_of_numbers() {
        for (values, dim) in [(vec![], 2), (vec![1.0], 2), (vec![1.0], 0), (vec![1.0, f32::NAN], 2)]
        {
            assert!(Embeddings::new(values.clone(), dim).is_err(), "{values:?} of {dim}");
        }
    }
}
