//! Sequences over an executable: who holds which pages, and the making of ragged
//! batches.
//!
//! A runner knows tokens, positions and pages; it knows no text and no sampling.

use crate::Error;
use crate::backend::{Batch, BatchSeq, Executable, Role, SeqTable};
use crate::plan::RowLimits;
use realizar_kvcache::{BlockTable, KvLayout, PAGE_LEN, PagePool, PoolStats};

/// A sequence of a [`Runner`].
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct SeqId(usize);

/// The rows of a chunk whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs<'a> {
    /// None.
    None,
    /// The last.
    Last,
    /// All.
    All,
    /// Those at these indices of the chunk, in rising order.
    At(&'a [usize]),
}

impl Outputs<'_> {
    /// How many there are in a chunk of `n_tokens`.
    fn count(&self, n_tokens: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => 1,
            Self::All => n_tokens,
            Self::At(idx) => idx.len(),
        }
    }
}

/// Tokens to append to a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// The sequence.
    pub seq: &'a SeqId,
    /// The tokens; at least one.
    pub tokens: &'a [u32],
    /// What they are to their request.
    pub role: Role,
    /// Whose logits are wanted.
    pub outputs: Outputs<'a>,
}

/// The logits of a step.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    values: &'a [f32], // [n_rows, vocab_size]
    vocab_size: usize,
    /// Of each chunk, the index of its first row.
    first_rows: &'a [usize],
}

impl<'a> Logits<'a> {
    /// Row `i` of the chunk's wanted rows: `[vocab_size]`.
    pub fn row(&self, chunk: usize, i: usize) -> &'a [f32] {
        let row = self.first_rows[chunk] + i;
        &self.values[row * self.vocab_size..][..self.vocab_size]
    }
}

#[derive(Debug)]
struct Sequence {
    tables: Vec<BlockTable>, // [n_groups]
    len: usize,
}

/// An executable with the sequences that run on it.
#[derive(Debug)]
pub struct Runner {
    executable: Box<dyn Executable>,
    limits: RowLimits,
    vocab_size: usize,
    max_seq_len: usize,
    windows: Vec<Option<usize>>, // [n_groups]
    pools: Vec<PagePool>,        // [n_groups]
    seqs: Vec<Option<Sequence>>,
    batch: Batch,
    order: Vec<usize>,
    first_rows: Vec<usize>,
}

impl Runner {
    /// A runner without sequences, over pages of these layouts and numbers.
    pub(crate) fn new(
        executable: Box<dyn Executable>,
        limits: RowLimits,
        vocab_size: usize,
        max_seq_len: usize,
        kv: &[(KvLayout, usize)],
    ) -> Self {
        let mut batch = Batch::with_capacity(limits.tokens, kv.len());
        for (group, (_, n_pages)) in batch.groups.iter_mut().zip(kv) {
            group.pages.reserve(*n_pages);
            group.slots.reserve(limits.tokens);
            group.tables.reserve(limits.tokens);
        }
        Self {
            executable,
            limits,
            vocab_size,
            max_seq_len,
            windows: kv.iter().map(|(layout, _)| layout.spec().window).collect(),
            pools: kv.iter().map(|(_, n_pages)| PagePool::new(*n_pages)).collect(),
            seqs: Vec::new(),
            batch,
            order: Vec::new(),
            first_rows: Vec::new(),
        }
    }

    /// The most tokens and output rows of a step.
    pub fn limits(&self) -> RowLimits {
        self.limits
    }

    /// The most tokens of a sequence.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// Columns of the logits.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Of each key-value group, what its pool has seen.
    pub fn pool_stats(&self) -> Vec<PoolStats> {
        self.pools.iter().map(PagePool::stats).collect()
    }

    /// A new, empty sequence.
    pub fn new_sequence(&mut self) -> SeqId {
        let table = || BlockTable::with_capacity(self.max_seq_len.div_ceil(PAGE_LEN));
        let tables = self.pools.iter().map(|_| table()).collect();
        let seq = Some(Sequence { tables, len: 0 });
        if let Some(free) = self.seqs.iter().position(Option::is_none) {
            self.seqs[free] = seq;
            return SeqId(free);
        }
        self.seqs.push(seq);
        SeqId(self.seqs.len() - 1)
    }

    fn seq(&mut self, id: &SeqId) -> &mut Sequence {
        self.seqs[id.0].as_mut().expect("a sequence lives until its id is given up")
    }

    /// Tokens of a sequence.
    pub fn seq_len(&self, id: &SeqId) -> usize {
        self.seqs[id.0].as_ref().map_or(0, |seq| seq.len)
    }

    /// Ends a sequence and frees its pages.
    #[expect(clippy::needless_pass_by_value, reason = "the id is given up")]
    pub fn remove(&mut self, id: SeqId) {
        if let Some(mut seq) = self.seqs[id.0].take() {
            for (table, pool) in seq.tables.iter_mut().zip(&mut self.pools) {
                table.clear(pool);
            }
        }
    }

    /// Forgets the tokens of a sequence from `len` on. Where a window has let go
    /// of positions that would be seen again, it forgets all of them. Returns the
    /// tokens that are left.
    pub fn truncate(&mut self, id: &SeqId, len: usize) -> usize {
        let Self { seqs, pools, windows, .. } = self;
        let seq = seqs[id.0].as_mut().expect("a sequence lives until its id is given up");
        let mut tables = seq.tables.iter_mut().zip(pools.iter_mut()).zip(windows.iter());
        let kept = tables.all(|((table, pool), window)| table.truncate(len, *window, pool));
        if kept {
            seq.len = seq.len.min(len);
        } else {
            for (table, pool) in seq.tables.iter_mut().zip(pools) {
                table.clear(pool);
            }
            seq.len = 0;
        }
        seq.len
    }

    /// Appends every chunk to its sequence, in one batch, and returns the logits
    /// that are wanted. A sequence has at most one chunk in a step.
    ///
    /// # Errors
    /// If a chunk is not as [`Chunk`] says, a token is not in the vocabulary, a
    /// sequence would outgrow the context, the chunks exceed the step's limits,
    /// pages run out, or the device fails. Nothing is appended then.
    pub fn step(&mut self, chunks: &[Chunk<'_>]) -> Result<Logits<'_>, Error> {
        self.check(chunks)?;
        self.grow(chunks)?;
        self.fill_batch(chunks);
        let values = match self.executable.run(&self.batch, &[]) {
            Ok(values) => values,
            Err(error) => {
                shrink(&mut self.seqs, &mut self.pools, chunks);
                return Err(error);
            }
        };
        // What a window has passed is given back once it was read.
        for chunk in chunks {
            let seq = self.seqs[chunk.seq.0].as_mut().expect("checked above");
            seq.len += chunk.tokens.len();
            let state = seq.tables.iter_mut().zip(&mut self.pools).zip(&self.windows);
            for ((table, pool), window) in state {
                if let Some(window) = window {
                    table.release_before((seq.len + 1).saturating_sub(*window), pool);
                }
            }
        }
        Ok(Logits { values, vocab_size: self.vocab_size, first_rows: &self.first_rows })
    }

    fn check(&mut self, chunks: &[Chunk<'_>]) -> Result<(), Error> {
        let (mut n_tokens, mut n_outputs) = (0, 0);
        let request = |text: &str| Err(Error::Request(text.to_owned()));
        for (i, chunk) in chunks.iter().enumerate() {
            if chunk.tokens.is_empty() {
                return request("a chunk has no tokens");
            }
            if chunks[..i].iter().any(|other| other.seq == chunk.seq) {
                return request("a sequence has two chunks in one step");
            }
            if let Outputs::At(idx) = chunk.outputs
                && !(idx.is_sorted_by(|a, b| a < b)
                    && idx.last().is_none_or(|&last| last < chunk.tokens.len()))
            {
                return request("the wanted rows of a chunk are not in it or not in rising order");
            }
            if let Some(id) = chunk.tokens.iter().find(|&&id| id as usize >= self.vocab_size) {
                let n = self.vocab_size;
                return Err(Error::Request(format!("token {id} is not in the vocabulary of {n}")));
            }
            let len = self.seq(chunk.seq).len + chunk.tokens.len();
            if len > self.max_seq_len {
                let n = self.max_seq_len;
                let text = format!("{len} tokens do not fit the context of {n}");
                return Err(Error::Request(text));
            }
            n_tokens += chunk.tokens.len();
            n_outputs += chunk.outputs.count(chunk.tokens.len());
        }
        let RowLimits { tokens, outputs } = self.limits;
        if n_tokens > tokens || n_outputs > outputs {
            return Err(Error::Request(format!(
                "a step of {n_tokens} tokens and {n_outputs} rows of logits exceeds its limits of \
                 {tokens} and {outputs}"
            )));
        }
        Ok(())
    }

    /// Gets the pages that the chunks need, or leaves everything as it was.
    fn grow(&mut self, chunks: &[Chunk<'_>]) -> Result<(), Error> {
        let Self { seqs, pools, .. } = self;
        for (i, chunk) in chunks.iter().enumerate() {
            let seq = seqs[chunk.seq.0].as_mut().expect("checked before");
            let len = seq.len + chunk.tokens.len();
            let mut tables = seq.tables.iter_mut().zip(pools.iter_mut());
            let grown = tables.try_for_each(|(table, pool)| table.grow(len, pool));
            if let Err(error) = grown {
                shrink(seqs, pools, &chunks[..=i]);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Lays the chunks out as rows: generated tokens first, then prompts.
    fn fill_batch(&mut self, chunks: &[Chunk<'_>]) {
        let Self { batch, order, first_rows, seqs, .. } = self;
        batch.clear();
        order.clear();
        order.extend((0..chunks.len()).filter(|&i| chunks[i].role == Role::Generated));
        order.extend((0..chunks.len()).filter(|&i| chunks[i].role == Role::Prompt));
        first_rows.clear();
        first_rows.resize(chunks.len(), 0);
        for &i in order.iter() {
            let chunk = &chunks[i];
            let seq = seqs[chunk.seq.0].as_ref().expect("checked before");
            let (first_row, n_rows) = (batch.tokens.len(), chunk.tokens.len());
            batch.tokens.extend_from_slice(chunk.tokens);
            // A context has at most 2^31 positions.
            batch.positions.extend((seq.len..seq.len + n_rows).map(|pos| pos as u32));
            if chunk.role == Role::Generated {
                batch.n_generated += n_rows;
            }
            first_rows[i] = batch.outputs.len();
            let row = |idx: usize| (first_row + idx) as u32;
            match chunk.outputs {
                Outputs::None => {}
                Outputs::Last => batch.outputs.push(row(n_rows - 1)),
                Outputs::All => batch.outputs.extend((0..n_rows).map(row)),
                Outputs::At(idx) => batch.outputs.extend(idx.iter().map(|&i| row(i))),
            }
            batch.seqs.push(BatchSeq { first_row, n_rows, first_pos: seq.len });
            for (group, table) in batch.groups.iter_mut().zip(&seq.tables) {
                let start = group.pages.len();
                group.pages.extend(table.pages().iter().map(|page| page.0));
                let (len, first_page) = (table.pages().len(), table.first_page());
                group.tables.push(SeqTable { start, len, first_page });
                group.slots.extend((seq.len..seq.len + n_rows).map(|pos| {
                    let (page, idx) = table.locate(pos);
                    (page.0, idx as u32)
                }));
            }
        }
    }
}

/// Takes back what [`Runner::grow`] added for `chunks`.
fn shrink(seqs: &mut [Option<Sequence>], pools: &mut [PagePool], chunks: &[Chunk<'_>]) {
    for chunk in chunks {
        let seq = seqs[chunk.seq.0].as_mut().expect("a chunk's sequence lives");
        for (table, pool) in seq.tables.iter_mut().zip(pools.iter_mut()) {
            // What was added holds nothing yet, so no window misses it.
            table.truncate(seq.len, Some(1), pool);
        }
    }
}
