//! Attention over paged keys and values. Decode steps split the context; prefill runs in tiles.
//!
//! Contexts are split at absolute positions, so the bits of a row do not depend on the other rows of the step, the
//! chunks of a prompt, or the page numbers of its sequence.

mod decode;
mod prefill;
#[cfg(any(test, feature = "tests"))]
pub(super) mod tests;

pub use decode::{AttentionScratch, DecodeAttention, attention_decode, takes_new_heads};
pub use prefill::{PrefillAttention, PrefillResults, TILE_ROWS, attention_prefill, rounds_results};

use super::rows::optional;
use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{KvPages, List, Rows};

/// Where the rows of a step find their keys and values: lists that the kernels read when they run.
#[derive(Debug)]
pub struct Tables<'a, D: Device> {
    /// The position of each row.
    pub positions: List<'a, D>, // [n_rows]
    /// The sequence of each row, or `u32::MAX` for padding, whose result is zero and which reads nothing else.
    pub seq_of_row: List<'a, D>, // [n_rows]
    /// Per sequence, the wrapping offset from the number of a page within the sequence to its index in `words`.
    pub bases: List<'a, D>, // [n_seqs]
    /// Page numbers. Only pages that hold a visible position are looked up: none before the row's window, and none past
    /// its reach.
    pub words: List<'a, D>,
    /// Exclusive end of the positions that each row attends to; without it, rows attend up to themselves. A row whose
    /// reach is at or before the start of its window attends to nothing.
    pub reaches: Option<List<'a, D>>, // [n_rows]
}

impl<D: Device> Clone for Tables<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Tables<'_, D> {}

/// Attention of a layer: `softmax(cap(scale * q k)) v` over the positions that a row attends to. Their keys and values
/// are stored already.
///
/// Rows have the same indices in `q`, in `out` and in the lists.
#[derive(Debug)]
pub struct Attention<'a, D: Device> {
    /// Queries, `[n_rows, n_heads * head_dim]`.
    pub q: Rows<'a, D>,
    /// Keys and values.
    pub pages: &'a KvPages<D>,
    /// Locations of each row's keys and values.
    pub tables: Tables<'a, D>,
    /// Query heads. `n_heads / n_kv_heads` consecutive ones share a head of keys and values.
    pub n_heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// Number of positions that a row attends to, up to and including its own; at least 1. Without it, rows attend to
    /// all positions up to their own.
    pub sliding_window: Option<usize>,
    /// Whether windows are aligned chunks: a row attends only to its own chunk, up to itself.
    pub chunked: bool,
    /// A score per head that takes part in the softmax without a value, `[1, n_heads]`.
    pub sinks: Option<Rows<'a, D>>,
    /// The result, `[n_rows, n_heads * head_dim]`; it may be `q`.
    pub out: Rows<'a, D>,
}

impl<D: Device> Clone for Attention<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Attention<'_, D> {}

impl<D: Device> Attention<'_, D> {
    /// Query heads that share a head of keys and values.
    fn group(&self) -> usize {
        self.n_heads / self.pages.spec().n_kv_heads
    }

    /// Asserts that shapes and devices match.
    fn check(&self, kernels: &Kernels<D>) {
        let &Self { q, pages, tables, n_heads, sliding_window, sinks, out, .. } = self;
        let (n_rows, spec) = (q.n_rows(), pages.spec());
        assert!(n_heads > 0 && n_heads.is_multiple_of(spec.n_kv_heads), "{n_heads} query heads");
        q.check(kernels, "q", n_rows, n_heads * spec.head_dim);
        out.check(kernels, "out", n_rows, n_heads * spec.head_dim);
        kernels.check("pages", pages.buffer(), 0);
        tables.positions.check(kernels, "positions", n_rows);
        tables.seq_of_row.check(kernels, "seq_of_row", n_rows);
        tables.bases.check(kernels, "bases", 1);
        tables.words.check(kernels, "words", 1);
        if let Some(reaches) = tables.reaches {
            reaches.check(kernels, "reaches", n_rows);
        }
        assert!(sliding_window != Some(0), "a window without positions");
        assert!(self.softcap.is_none_or(|cap| cap > 0.0), "a soft cap above zero");
        if let Some(sinks) = sinks {
            sinks.check(kernels, "sinks", 1, n_heads);
        }
    }

    /// The leading arguments of all attention kernels: queries, pages, tables, parameters of the scores, and results,
    /// if they are stored.
    fn arguments(&self, out: Option<Rows<'_, D>>) -> [Argument; 22] {
        let Tables { positions, seq_of_row, bases, words, reaches } = self.tables;
        let [k_pages, v_pages, n_pages, n_kv_heads, page_shift, head_dim] = self.pages.arguments();
        // No window is equivalent to one that exceeds every context.
        let window = self.sliding_window.map_or(0, |n| n.min(i32::MAX as usize) as i32);
        let window = if self.chunked { -window } else { window };
        let count = |list: List<'_, D>| Argument::I32(list.len().min(i32::MAX as usize) as i32);
        [
            self.q.address(),
            self.q.stride(),
            k_pages,
            v_pages,
            n_pages,
            n_kv_heads,
            page_shift,
            head_dim,
            words.address(),
            positions.address(),
            seq_of_row.address(),
            bases.address(),
            reaches.map_or(Argument::Address(0), |list| list.address()),
            count(words),
            count(bases),
            Argument::I32(window),
            Argument::I32(self.n_heads as i32),
            Argument::F32(self.scale),
            Argument::F32(self.softcap.unwrap_or(0.0)),
            optional(self.sinks)[0],
            optional(out)[0],
            self.out.stride(),
        ]
    }

    /// The last argument of kernels that handle every type of keys and values: the type.
    fn type_argument(&self, is_tensor: bool) -> Option<Argument> {
        (!is_tensor).then(|| Argument::I32(self.pages.spec().type_index() as i32))
    }
}
