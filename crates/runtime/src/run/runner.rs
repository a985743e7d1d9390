//! Sequences over an executable: which pages each holds, and the making of ragged
//! batches.
//!
//! A runner knows tokens, positions and pages; it knows no text and no sampling.

use super::angles::Offsets;
use super::chunk::{Chunk, OutputRows};
use super::prompt::Rows;
use super::rules::PromptRules;
use super::seq_id::{Ended, SeqId};
use crate::Error;
use realizar_backends::metrics::DispatchMetrics;
use realizar_backends::{Batch, Executable, Phase, SampleRequests};
use realizar_formats::FileWatch;
use realizar_kvcache::{
    BlockTable, CacheEvent, GroupPool, KvCache, KvLayout, PageCopy, PoolStats, PrefixStats,
    SeqPages, Symbol, Variant,
};
use realizar_model::architectures::ModelOutput;
use realizar_model::graph::plan::RowLimits;
use std::sync::Arc;

mod ahead;
mod draft;
mod launch;
mod layout;

use ahead::Ahead;

/// The keys and values of a sequence, as bytes.
#[derive(Debug)]
pub(crate) struct Saved {
    /// The recurrent state after its last position; empty for models without.
    pub(crate) state: Vec<u8>,
    /// Of each group, the pages at the front that were released.
    pub(crate) first_pages: Vec<usize>,
    /// The pages of all groups, in order of position.
    pub(crate) pages: Vec<u8>,
}

/// An executable with the sequences that run on it.
#[derive(Debug)]
pub struct Runner {
    executable: Box<dyn Executable>,
    limits: RowLimits,
    output: ModelOutput,
    output_width: usize,
    rules: PromptRules,
    max_seq_len: usize,
    /// What pages look like, in words.
    layout: String,
    cache: KvCache,
    seqs: Vec<Option<SeqPages>>,
    /// Of each sequence, how positions and those of angles differ.
    offsets: Vec<Offsets>, // [n_seqs]
    /// Of each sequence, the last step that it had a chunk in.
    last_steps: Vec<u64>, // [n_seqs]
    n_steps: u64,
    ended: Ended,
    copies: Vec<PageCopy>,
    batch: Batch,
    first_rows: Vec<usize>,
    /// What is wanted of the step that is launched.
    wants: SampleRequests,
    /// Between launch and collection no page changes its owner.
    is_launched: bool,
    /// The sequences of the step that is launched.
    launched: Vec<usize>,
    /// Their rows were noted already: a step was launched after it.
    is_noted: bool,
    /// The step after the one that is launched.
    ahead: Ahead,
    /// What steps read from.
    files: Vec<FileWatch>,
    /// Columns of the hidden states that drafting continues from; `None` if the model does not draft.
    hidden_dim: Option<usize>,
    /// Columns of the hidden states that are embeddings; `None` if the model computes none.
    embedding_dim: Option<usize>,
}

const LIVES: &str = "a sequence lives as long as its id";

impl Runner {
    /// A runner without sequences for an executable with this output of this many columns, over
    /// pages of these layouts and numbers and this many recurrent states, which keeps the pages of prompts for
    /// others when `prefixes` says so.
    pub(crate) fn new(
        executable: Box<dyn Executable>,
        limits: RowLimits,
        (output, output_width): (ModelOutput, usize),
        rules: PromptRules,
        max_seq_len: usize,
        (kv, n_states): (&[(KvLayout, usize)], Option<usize>),
        prefixes: bool,
    ) -> Self {
        let mut batch = Batch::with_capacity(limits.tokens, kv.len());
        for (group, (layout, n_pages)) in batch.groups.iter_mut().zip(kv) {
            // A shared page is listed for each of its sequences, which are at most as many as rows.
            let per_seq = layout.pages_for(max_seq_len, limits.tokens).min(*n_pages);
            group.pages.reserve(per_seq.saturating_mul(limits.tokens));
            group.slots.reserve(limits.tokens);
            group.tables.reserve(limits.tokens);
        }
        let group = |(layout, n_pages): &(KvLayout, usize)| GroupPool {
            window: layout.spec().window,
            n_pages: *n_pages,
        };
        let groups: Vec<_> = kv.iter().map(group).collect();
        Self {
            files: executable.files(),
            executable,
            limits,
            output,
            output_width,
            rules,
            max_seq_len,
            layout: kv.iter().map(|(layout, _)| layout.to_string()).collect::<Vec<_>>().join(", "),
            cache: KvCache::new(&groups, n_states, max_seq_len, prefixes),
            seqs: Vec::new(),
            offsets: Vec::new(),
            last_steps: Vec::new(),
            n_steps: 0,
            ended: Ended::default(),
            copies: Vec::with_capacity(limits.tokens * kv.len()),
            batch,
            first_rows: Vec::with_capacity(limits.tokens),
            wants: SampleRequests::with_capacity(limits.outputs),
            is_launched: false,
            launched: Vec::with_capacity(limits.tokens),
            is_noted: false,
            ahead: Ahead::with_capacity(limits, kv.len()),
            hidden_dim: None,
            embedding_dim: None,
        }
    }

    /// The maximum number of tokens and output rows of a step.
    pub fn limits(&self) -> RowLimits {
        self.limits
    }

    /// The maximum number of tokens of a sequence.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// What the rows of a step's output are.
    pub fn output(&self) -> ModelOutput {
        self.output
    }

    /// The same runner of a model that computes embeddings, of this many elements.
    pub(crate) fn with_embeddings(mut self, embedding_dim: Option<usize>) -> Self {
        self.embedding_dim = embedding_dim;
        self
    }

    /// Elements of an embedding; `None` if the model computes none.
    pub(crate) fn embedding_dim(&self) -> Option<usize> {
        self.embedding_dim
    }

    /// Columns of a step's output: as many as the vocabulary has tokens, or as a hidden state
    /// has elements.
    pub fn output_width(&self) -> usize {
        self.output_width
    }

    /// Tokens of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.rules.vocab_size
    }

    /// What prompts may be made of.
    pub(crate) fn rules(&self) -> PromptRules {
        self.rules
    }

    /// Of each key-value group, what its pool has seen.
    pub fn pool_stats(&mut self) -> Vec<PoolStats> {
        self.pools().collect()
    }

    /// As [`Self::pool_stats`], in no list.
    pub(crate) fn pools(&mut self) -> impl Iterator<Item = PoolStats> {
        self.free_ended();
        self.cache.pool_stats()
    }

    /// What the pool of recurrent states has seen; `None` if the model has none.
    pub fn state_stats(&self) -> Option<PoolStats> {
        self.cache.state_stats()
    }

    /// Whether the pages of prompts are kept for other requests.
    pub fn keeps_prefixes(&self) -> bool {
        self.cache.keeps_prefixes()
    }

    /// What the prefix cache did; all zero without one.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.cache.prefix_stats()
    }

    /// Begins to keep the changes of the prefix cache for [`Self::take_cache_events`].
    pub fn keep_cache_events(&mut self) {
        self.cache.keep_events();
    }

    /// The changes of the prefix cache since the last call.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.free_ended();
        self.cache.take_events()
    }

    /// Evicts all prefixes that no sequence continues from.
    pub fn clear_prefixes(&mut self) {
        self.free_ended();
        self.cache.clear_prefixes();
    }

    /// Whether there are pages for a further sequence of `len` tokens, beside `spare` pages.
    pub fn has_room(&mut self, len: usize, spare: usize) -> bool {
        self.free_ended();
        self.cache.has_room(len, spare)
    }

    /// Whether the cache is large enough for a sequence of `len` tokens that is alone in it.
    pub fn could_hold(&self, len: usize) -> bool {
        self.cache.could_hold(len, self.limits.tokens)
    }

    /// The counters of the devices that it runs on, to be read from any thread.
    pub fn dispatch_metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        self.executable.metrics()
    }

    /// A new, empty sequence.
    pub fn new_sequence(&mut self) -> SeqId {
        self.free_ended();
        let seq = self.cache.sequence();
        self.insert(seq)
    }

    /// A new sequence with the tokens of another, whose pages they share as long as neither
    /// writes to them.
    pub fn fork(&mut self, id: &SeqId) -> SeqId {
        self.free_ended();
        let seq = self.seqs[id.idx].as_ref().expect(LIVES);
        let seq = self.cache.fork(seq);
        let fork = self.insert(seq);
        if let Ok([from, to]) = self.offsets.get_disjoint_mut([id.idx, fork.idx]) {
            to.copy(from);
        }
        fork
    }

    fn insert(&mut self, seq: SeqPages) -> SeqId {
        let idx = match self.seqs.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.seqs.push(None);
                self.last_steps.push(0);
                self.offsets.push(Offsets::default());
                self.seqs.len() - 1
            }
        };
        self.seqs[idx] = Some(seq);
        self.offsets[idx].truncate(0);
        // So that no drop has to allocate.
        self.ended.lock().reserve(self.seqs.len());
        SeqId { idx, ended: self.ended.clone() }
    }

    fn seq(&mut self, id: &SeqId) -> &mut SeqPages {
        self.seqs[id.idx].as_mut().expect(LIVES)
    }

    /// Frees the pages of sequences whose ids were dropped.
    fn free_ended(&mut self) {
        if self.is_launched || self.ahead.is_launched {
            return;
        }
        let Self { ended, seqs, cache, .. } = self;
        for idx in ended.lock().drain(..) {
            cache.clear(&mut seqs[idx].take().expect("a sequence ends once"));
        }
    }

    /// How many sequences there are.
    pub(crate) fn n_seqs(&mut self) -> usize {
        self.free_ended();
        // Those that a step holds are freed after it.
        self.seqs.iter().flatten().count() - self.ended.lock().len()
    }

    /// Ends every sequence, frees every page and forgets every prefix, whatever state a panic has
    /// left them in. Ids from before must no longer be used, only dropped.
    pub(crate) fn reset(&mut self) {
        // Earlier ids are moved into a list that nothing reads.
        self.ended = Ended::default();
        self.seqs.clear();
        self.last_steps.clear();
        self.offsets.clear();
        self.copies.clear();
        self.is_launched = false;
        self.ahead.is_launched = false;
        self.cache.reset();
    }

    /// Gives an empty sequence what the prefix cache has of the beginning of `prompt`, up to
    /// `max_len` tokens; returns how many it has. They do not end within rows that see each other.
    ///
    /// # Panics
    /// If the sequence is not empty.
    pub fn adopt(&mut self, id: &SeqId, prompt: Rows<'_>, max_len: usize) -> usize {
        let seq = self.seqs[id.idx].as_mut().expect(LIVES);
        let symbols: Vec<_> = prompt.symbols().collect();
        let found = self.cache.adopt(seq, Variant::default(), &symbols, max_len, &prompt.whole());
        self.offsets[id.idx].extend(0, prompt.slice(0..found));
        found
    }

    /// As [`Self::adopt`], of all rows that a sequence had, by their symbols and its offsets. They may end
    /// anywhere.
    pub(crate) fn adopt_again(
        &mut self,
        id: &SeqId,
        symbols: &[Symbol],
        offsets: &Offsets,
    ) -> usize {
        let seq = self.seqs[id.idx].as_mut().expect(LIVES);
        let found = self.cache.adopt(seq, Variant::default(), symbols, symbols.len(), &[]);
        self.offsets[id.idx].copy(offsets);
        self.offsets[id.idx].truncate(found);
        found
    }

    /// By how much positions of angles and those of its rows differ.
    pub(crate) fn offsets(&self, id: &SeqId) -> &Offsets {
        &self.offsets[id.idx]
    }

    /// The prompt that the sequence's next rows belong to has `len` tokens in all.
    pub fn expect_prompt(&mut self, id: &SeqId, len: usize) {
        let seq = self.seqs[id.idx].as_mut().expect(LIVES);
        self.cache.expect_prompt(seq, len);
    }

    /// Another prompt will begin with the first `len` tokens of the sequence's.
    pub fn note_junction(&mut self, id: &SeqId, len: usize) {
        let seq = self.seqs[id.idx].as_mut().expect(LIVES);
        self.cache.note_junction(seq, len);
    }

    /// What its pages look like, in words.
    pub(crate) fn layout(&self) -> &str {
        &self.layout
    }

    /// The keys and values of a sequence.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn save(&mut self, id: &SeqId) -> Result<Saved, Error> {
        let seq = self.seqs[id.idx].as_ref().expect(LIVES);
        let mut saved = Saved { first_pages: Vec::new(), pages: Vec::new(), state: Vec::new() };
        if let Some(state) = seq.states().current() {
            self.executable.read_state(state, &mut saved.state)?;
        }
        for (group, table) in seq.tables().iter().enumerate() {
            saved.first_pages.push(table.first_page());
            for &page in table.pages() {
                self.executable.read_page(group, page, &mut saved.pages)?;
            }
        }
        Ok(saved)
    }

    /// A new sequence of `len` rows with these offsets and the [saved](Saved) keys and values of another;
    /// `None` if they are not those of this many rows.
    ///
    /// # Errors
    /// If there are too few pages, or the device fails.
    pub(crate) fn restore(
        &mut self,
        (len, offsets): (usize, &Offsets),
        first_pages: &[usize],
        saved: &[u8],
    ) -> Result<Option<SeqId>, Error> {
        self.free_ended();
        let Some(mut seq) = self.cache.place(len, first_pages)? else { return Ok(None) };
        let executable = &mut self.executable;
        let n_bytes = |(group, table): (usize, &BlockTable)| {
            table.pages().len() * executable.page_bytes(group)
        };
        let state = seq.states().current();
        let state_bytes = state.map_or(0, |_| executable.state_bytes());
        let page_bytes: usize = seq.tables().iter().enumerate().map(n_bytes).sum();
        if page_bytes + state_bytes != saved.len() {
            self.cache.clear(&mut seq);
            return Ok(None);
        }
        let (mut saved, saved_state) = saved.split_at(page_bytes);
        if let Some(state) = state
            && let Err(error) = executable.write_state(state, saved_state)
        {
            self.cache.clear(&mut seq);
            return Err(error.into());
        }
        for (group, table) in seq.tables().iter().enumerate() {
            for &page in table.pages() {
                let (bytes, rest) = saved.split_at(executable.page_bytes(group));
                saved = rest;
                if let Err(error) = executable.write_page(group, page, bytes) {
                    self.cache.clear(&mut seq);
                    return Err(error.into());
                }
            }
        }
        let id = self.insert(seq);
        self.offsets[id.idx].copy(offsets);
        Ok(Some(id))
    }

    /// Tokens of a sequence.
    pub fn seq_len(&self, id: &SeqId) -> usize {
        self.seqs[id.idx].as_ref().map_or(0, SeqPages::len)
    }

    /// Ends a sequence and frees its pages, as dropping its id does.
    pub fn remove(&mut self, id: SeqId) {
        drop(id);
        self.free_ended();
    }

    /// Forgets the tokens of a sequence from `len` on. Where a window has let go
    /// of positions that would be seen again, it forgets all of them. Returns the
    /// tokens that are left. They should not end within rows that see each other in both directions,
    /// as what is left of these has seen the others.
    pub fn truncate(&mut self, id: &SeqId, len: usize) -> usize {
        let seq = self.seqs[id.idx].as_mut().expect(LIVES);
        let left = self.cache.truncate(seq, len);
        self.offsets[id.idx].truncate(left);
        left
    }

    /// Appends every chunk to its sequence, in one batch, and returns the output rows
    /// that are wanted. A sequence has at most one chunk in a step.
    ///
    /// # Errors
    /// If a chunk is not as [`Chunk`] says, a token is not in the vocabulary, a
    /// sequence would outgrow the context, the chunks exceed the step's limits,
    /// pages run out, the device fails, or a file that it reads from was truncated. Nothing is
    /// appended then.
    pub fn step(&mut self, chunks: &[Chunk<'_>]) -> Result<OutputRows<'_>, Error> {
        self.step_of(chunks.iter().copied())
    }

    /// As [`Self::step`], for chunks that lie in no list.
    pub(crate) fn step_of<'c>(
        &mut self,
        chunks: impl Iterator<Item = Chunk<'c>> + Clone,
    ) -> Result<OutputRows<'_>, Error> {
        self.prepare(&chunks)?;
        let Self { executable, batch, files, seqs, offsets, cache, .. } = self;
        let result = executable.run(batch, &[]).map_err(Error::from).and_then(|values| {
            files.iter().try_for_each(FileWatch::check)?;
            Ok(values)
        });
        let values = note((seqs, offsets), cache, chunks, result)?;
        Ok(OutputRows { values, width: self.output_width, first_rows: &self.first_rows })
    }

    /// Gets the pages of a step, and lays it out.
    fn prepare<'c>(
        &mut self,
        chunks: &(impl Iterator<Item = Chunk<'c>> + Clone),
    ) -> Result<(), Error> {
        self.discard();
        self.free_ended();
        self.check(chunks.clone())?;
        self.grow(chunks.clone())?;
        self.fill_batch(chunks);
        Ok(())
    }

    /// Gets the pages that the chunks need, or leaves everything as it was.
    fn grow<'c>(&mut self, chunks: impl Iterator<Item = Chunk<'c>> + Clone) -> Result<(), Error> {
        let Self { seqs, cache, copies, executable, .. } = self;
        copies.clear();
        let (mut n_grown, mut grown) = (0, Ok(()));
        for chunk in chunks.clone() {
            let seq = seqs[chunk.seq.idx].as_mut().expect(LIVES);
            n_grown += 1;
            // After the first of the decode rows whose output is wanted are drafts, which may
            // be rejected.
            let n = chunk.rows.len();
            let n_states = match chunk.phase {
                Phase::Decode => chunk.outputs.count(n).max(1),
                Phase::Prefill => 1,
            };
            grown = cache.grow(seq, seq.len() + n, n_states, copies).map_err(Error::from);
            if grown.is_err() {
                break;
            }
        }
        if grown.is_ok() && !copies.is_empty() {
            grown = executable.copy_pages(copies).map_err(Error::from);
        }
        match grown {
            Ok(()) => cache.copied(copies),
            Err(_) => shrink(seqs, cache, chunks.take(n_grown), copies),
        }
        grown
    }
}

/// Notes that chunks were run, or takes back what was done for them.
fn note<'c, T>(
    (seqs, offsets): (&mut [Option<SeqPages>], &mut [Offsets]),
    cache: &mut KvCache,
    chunks: impl Iterator<Item = Chunk<'c>>,
    result: Result<T, Error>,
) -> Result<T, Error> {
    if result.is_err() {
        shrink(seqs, cache, chunks, &[]);
    } else {
        for chunk in chunks {
            let seq = seqs[chunk.seq.idx].as_mut().expect(LIVES);
            offsets[chunk.seq.idx].extend(seq.len(), chunk.rows);
            cache.written(seq, chunk.rows.symbols(), chunk.phase == Phase::Prefill);
        }
    }
    result
}

/// Takes back what [`Runner::grow`] did for `chunks`, of whose copies these were not made.
fn shrink<'c>(
    seqs: &mut [Option<SeqPages>],
    cache: &mut KvCache,
    chunks: impl Iterator<Item = Chunk<'c>>,
    copies: &[PageCopy],
) {
    shrink_seqs(seqs, cache, chunks.map(|chunk| chunk.seq), copies);
}

/// The same of sequences.
fn shrink_seqs<'s>(
    seqs: &mut [Option<SeqPages>],
    cache: &mut KvCache,
    ids: impl Iterator<Item = &'s SeqId>,
    copies: &[PageCopy],
) {
    for id in ids {
        cache.shrink(seqs[id.idx].as_mut().expect(LIVES), copies);
    }
}
