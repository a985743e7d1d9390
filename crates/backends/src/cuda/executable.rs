//! A plan on the device: its memory, its captured steps, and a step of it.

use super::experts::{self, Experts};
use super::fused::FusedSteps;
use super::products::Products;
use super::recurrent::States;
use super::room::{Room, ScratchRoom};
use super::shortlists::RowLists;
use super::steps::{KvGroup, Launcher};
use super::store::{DeviceWeights, Store};
use super::timing::Timing;
use super::words::{Counts, SOURCE_WORDS, Words};
use super::{device_error, kv_spec};
use crate::gpu::weights::WeightLayout;
use crate::metrics::{DeviceKind, DispatchMetrics, OpClass};
use crate::{
    Arithmetic, AsyncExecutable, Batch, DeviceFault, Error, Executable, ExecutableOptions,
    SampleLimits, SampleRequests, Shortlist,
};
use realizar_formats::FileWatch;
use realizar_kernels_cuda as kernels;
use realizar_kernels_cuda::{
    AttentionScratch, Buffer, Captured, Device, Kernels, KvPages, List, RankRows, Rows,
};
use realizar_kvcache::{KvLayout, PageCopy, PageId, StateId};
use realizar_model::graph::plan::{Place, Plan};
use realizar_model::graph::weights::Weights;
use realizar_model::graph::{Op, RowDomain};
use realizar_text::sampling::NextToken;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Positions that a captured step sees at least, so that few captures serve all contexts.
const MIN_CAPTURED_LEN: usize = 1024;
/// What a captured step was made for: its numbers of rows, positions that a row sees at most, and whether it drafts.
type CapturedFor = (Counts, usize, bool);
/// Launches of a step by the class of the operation that they are counted for, in the order of [`OpClass::ALL`].
type Launches = [u64; OpClass::ALL.len()];

/// A loaded plan.
#[derive(Debug)]
pub(super) struct CudaExecutable<D: Device> {
    name: String,
    kernels: Arc<Kernels<D>>,
    store: Store<D>,
    plan: Plan,
    /// What becomes of each step of the plan.
    fused: FusedSteps,
    arithmetic: Arithmetic,
    max_seq_len: usize,
    /// Steps of decode rows.
    captured: HashMap<CapturedFor, (Captured<D>, Launches)>,
    weights: DeviceWeights<D>,
    words: Words,
    batch: Buffer<D>,
    values: Buffer<D>,
    kv: Vec<KvGroup<D>>,
    states: States<D>,
    products: Products<D>,
    experts: Experts<D>,
    scratch: Option<AttentionScratch<D>>,
    /// Its place in a group. Captured steps, which name the group, are dropped before it.
    ranks: Option<RankRows<D>>,
    /// The rows of the plan's output that were wanted.
    output: Vec<f32>, // [max rows, width]
    n_output: usize,
    /// Hidden states that drafting continues from, after the numbers of the output.
    hidden: Range<usize>,
    /// Shortlists of rows of logits; `None` if the output has none.
    lists: Option<RowLists<D>>,
    launched: Instant,
    /// A stream in which the host waits for shortlists while the next step runs.
    reading: D::Stream,
    /// That the shortlists of the step that is collected are made, where the next one was launched after it.
    ahead: Option<D::Event>,
    /// Of its rows, where the shortlists have their tokens.
    sources: Vec<[u32; SOURCE_WORDS]>, // [n_rows]
    /// Where operations are timed.
    timing: Option<Timing<D>>,
    metrics: Arc<DispatchMetrics>,
}

/// Rows that a step of `n` decode rows is filled up to, so that few captures serve all numbers.
fn bucket(n: usize) -> usize {
    match n {
        0..=8 => n.next_power_of_two(),
        9..=64 => n.next_multiple_of(8),
        _ => n.next_multiple_of(32),
    }
}

impl<D: Device> CudaExecutable<D> {
    pub(super) fn new(
        (kernels, wgmma): (&Arc<Kernels<D>>, Option<&Arc<kernels::WgmmaKernels<D>>>),
        name: &str,
        plan: Plan,
        (weights, layout): (&Weights, WeightLayout),
        (room, rank): (Room, Option<D::Rank>),
        options: &ExecutableOptions,
    ) -> Result<Self, kernels::Error> {
        let device = kernels.device();
        let store = Store { device: Arc::clone(device), stream: device.stream()? };
        let buffer = |what: &str, n: usize| Buffer::new(device, what, 4 * n);
        let batch = buffer("numbers of a step", room.places.n_words)?;
        let values = buffer("activations", room.n_values)?;
        // What can be too large comes before the weights, which take long.
        let pages = |(layout, n_pages): &(KvLayout, usize)| {
            let layer = |_| KvPages::new(device, "keys and values", kv_spec(layout, *n_pages));
            (0..layout.spec().n_layers).map(layer).collect::<Result<KvGroup<D>, _>>()
        };
        let kv = options.kv.iter().map(pages).collect::<Result<_, _>>()?;
        let states = States::new(device, &plan, options)?;
        let products = Products::new(device, &store.stream, room.products, wgmma)?;
        let pairs = Experts::new(device, room.pairs)?;
        let lists = match room.list_rows {
            0 => None,
            n => Some(RowLists::new(device, &store.stream, plan.output.width, n)?),
        };
        let scratch = room.scratch.map(|room| {
            let ScratchRoom { max_rows, n_heads, head_dim, max_kv_len } = room;
            let stream = &store.stream;
            AttentionScratch::new(device, stream, max_rows, n_heads, head_dim, max_kv_len)
        });
        let scratch = scratch.transpose()?;
        let ranks = rank
            .zip(room.exchange)
            .map(|(rank, (n_ranks, n_values))| RankRows::new(device, rank, n_ranks, n_values));
        let ranks = ranks.transpose()?;
        // A driver may not load kernels while it captures.
        layout.types(weights).try_for_each(|ty| kernels.prepare(ty))?;
        experts::types(&plan, weights).try_for_each(|ty| kernels.prepare_experts(ty))?;
        super::prepare_attention(kernels, options)?;
        let weights = DeviceWeights::upload(&store, layout, weights)?;
        let bytes = weights.matrices().map(kernels::Matrix::n_bytes).sum::<usize>();
        tracing::debug!(device = name, bytes, "weights are uploaded");
        Ok(Self {
            name: name.to_owned(),
            kernels: Arc::clone(kernels),
            metrics: Arc::new(DispatchMetrics::new(name.to_owned(), DeviceKind::Gpu)),
            output: vec![0.0; room.n_outputs],
            n_output: 0,
            hidden: 0..0,
            lists,
            launched: Instant::now(),
            reading: device.stream()?,
            ahead: None,
            sources: Vec::with_capacity(plan.limits.outputs),
            timing: options.profile.then(Timing::new),
            arithmetic: options.arithmetic,
            words: Words::new(room.places),
            max_seq_len: options.max_seq_len,
            captured: HashMap::new(),
            store,
            fused: room.fused,
            plan,
            weights,
            batch,
            values,
            kv,
            states,
            products,
            experts: pairs,
            scratch,
            ranks,
        })
    }

    /// The rows that a captured step is padded to; `None` unless all rows are decode rows with an output.
    fn captured_rows(&self, batch: &Batch) -> Option<usize> {
        let n = batch.n_rows();
        let all_wanted = self.plan.output.rows == RowDomain::Tokens || batch.outputs.len() == n;
        let limits = self.plan.limits;
        let most = limits.tokens.min(limits.outputs);
        let fits = n <= most && batch.n_decode == n && all_wanted && batch.embedded.is_empty();
        fits.then(|| bucket(n).min(most))
    }

    /// Writes the rows that are embedded where the embedding of tokens leaves them out.
    fn write_embedded(&self, batch: &Batch) -> Result<(), kernels::Error> {
        let mut steps = self.plan.steps.iter();
        // Another device has the embedding where there is none here.
        let Some(embed) = steps.find(|step| matches!(step.op, Op::Embed { .. })) else {
            return Ok(());
        };
        let Place { start, stride, width, .. } = embed.output;
        for (row, embedding) in batch.embedded_rows(width) {
            self.values.write(&self.store.stream, 4 * (start + row * stride), embedding)?;
        }
        Ok(())
    }

    /// Queues the step, with the tokens of the batch, or those of the shortlists that were queued before.
    fn queue(&mut self, batch: &Batch, input: &[f32], is_fed: bool) -> Result<(), kernels::Error> {
        let captured_rows = self.captured_rows(batch).filter(|_| self.timing.is_none());
        let counts = self.words.fill(batch, captured_rows.unwrap_or(batch.n_rows()));
        if is_fed {
            self.words.fill_sources(&self.sources, counts.rows);
        }
        self.batch.write(&self.store.stream, 0, self.words.words())?;
        if is_fed {
            self.feed(counts.rows)?;
        }
        if let Some(place) = self.plan.input_of(batch.drafts) {
            assert_eq!(place.stride, place.width, "an input is dense");
            assert_eq!(input.len(), batch.n_rows() * place.width, "rows of the input");
            self.values.write(&self.store.stream, 4 * place.start, input)?;
        }
        if !batch.embedded.is_empty() {
            self.write_embedded(batch)?;
        }
        let seen = batch.reaches.iter().copied().max().unwrap_or(0) as usize;
        let seen = batch.positions.iter().map(|&p| p as usize + 1).max().unwrap_or(1).max(seen);
        if captured_rows.is_none() {
            let mut timing = self.timing.take();
            let queued = self.queue_steps(batch.drafts, counts, seen, false, timing.as_mut());
            self.timing = timing;
            self.count(&queued?);
            return Ok(());
        }
        let max_kv_len = seen.next_power_of_two().max(MIN_CAPTURED_LEN).min(self.max_seq_len);
        let key = (counts, max_kv_len, batch.drafts);
        if !self.captured.contains_key(&key) {
            let mut launches = Launches::default();
            let work = || {
                launches = self.queue_steps(batch.drafts, counts, max_kv_len, true, None)?;
                Ok(())
            };
            let captured = Captured::new(&self.kernels, &self.store.stream, work)?;
            self.captured.insert(key, (captured, launches));
        }
        let (captured, launches) = &self.captured[&key];
        captured.replay(&self.store.stream)?;
        self.count(launches);
        Ok(())
    }

    /// Counts the launches of a step.
    fn count(&self, launches: &Launches) {
        for (&class, &n) in OpClass::ALL.iter().zip(launches).filter(|(_, n)| **n > 0) {
            self.metrics.count(class, n);
        }
    }

    /// Queues the copy of tokens to the step of `n_rows` rows whose numbers were written.
    fn feed(&mut self, n_rows: usize) -> Result<(), kernels::Error> {
        let Self { lists, words, batch, sources, kernels, store, metrics, .. } = self;
        let lists = lists.as_mut().expect("its output is logits");
        let places = words.places();
        let from = List::new(batch, places.sources, SOURCE_WORDS * n_rows);
        let tokens = List::new(batch, places.tokens, n_rows);
        lists.feed(kernels, &store.stream, from, tokens, sources.len())?;
        metrics.count(OpClass::Select, 1);
        // What the host reads of the step before is complete.
        self.ahead = Some(store.device.record(&store.stream)?);
        Ok(())
    }

    /// Queues the launches of a step, and counts them by class.
    fn queue_steps(
        &self,
        drafts: bool,
        counts: Counts,
        max_kv_len: usize,
        is_captured: bool,
        mut timing: Option<&mut Timing<D>>,
    ) -> Result<Launches, kernels::Error> {
        let launcher = Launcher {
            kernels: &self.kernels,
            store: &self.store,
            plan: &self.plan,
            fused: &self.fused,
            weights: &self.weights,
            values: &self.values,
            words: &self.batch,
            places: self.words.places(),
            kv: &self.kv,
            states: &self.states,
            products: &self.products,
            experts: &self.experts,
            scratch: self.scratch.as_ref(),
            ranks: self.ranks.as_ref(),
            arithmetic: self.arithmetic,
            counts,
            max_kv_len,
            is_captured,
        };
        let mut launches = Launches::default();
        let Store { device, stream } = &self.store;
        if let Some(timing) = &mut timing {
            timing.begin(device, stream)?;
        }
        for idx in self.plan.steps_of(drafts) {
            let step = &self.plan.steps[idx];
            let (before, class) = (kernels::launches_of_thread(), OpClass::of(&step.op));
            launcher.launch(idx)?;
            let n = kernels::launches_of_thread() - before;
            launches[class as usize] += n;
            if let Some(timing) = timing.as_mut().filter(|_| n > 0) {
                timing.mark(device, stream, class)?;
            }
        }
        Ok(launches)
    }

    fn begin(&mut self, batch: &Batch, input: &[f32]) -> Result<(), kernels::Error> {
        self.launched = Instant::now();
        self.n_output = 0;
        self.ahead = None;
        self.queue(batch, input, false)
    }

    /// Rows of the output.
    fn output_rows(&self, batch: &Batch) -> usize {
        match self.plan.output.rows {
            RowDomain::Tokens => batch.n_rows(),
            RowDomain::Outputs => batch.outputs.len(),
        }
    }

    /// Copies rows of the output to the host, after those that were copied.
    fn bring(&mut self, rows: Range<usize>) -> Result<(), kernels::Error> {
        self.bring_of(self.plan.output, rows)
    }

    /// The same of rows at another place.
    fn bring_of(&mut self, place: Place, rows: Range<usize>) -> Result<(), kernels::Error> {
        let Place { start, stride, width, .. } = place;
        assert_eq!(stride, width, "an output is dense");
        let n = rows.len() * width;
        if n > 0 {
            let to = &mut self.output[self.n_output..self.n_output + n];
            self.values.read(&self.store.stream, 4 * (start + rows.start * width), to)?;
            self.n_output += n;
        }
        Ok(())
    }

    /// Copies the hidden states that drafting continues from behind what was copied of the output.
    fn bring_hidden(&mut self, batch: &Batch) -> Result<(), kernels::Error> {
        let n_output = self.n_output;
        if let Some(&place) = self.plan.hidden_of(batch.drafts) {
            self.bring_of(place, 0..batch.outputs.len())?;
        }
        self.hidden = n_output..self.n_output;
        self.n_output = n_output;
        Ok(())
    }

    /// Queues the making of the shortlists that are wanted of the output.
    fn queue_wants(&mut self, batch: &Batch, wants: &SampleRequests) -> Result<(), kernels::Error> {
        let n_rows = self.output_rows(batch);
        assert_eq!(wants.n_rows(), n_rows, "rows of the output");
        if let Some(lists) = self.lists.as_mut().filter(|_| wants.n_shortlists() > 0) {
            let Place { start, stride, width, .. } = self.plan.output;
            let logits = Rows::new(&self.values, start, n_rows, width, stride);
            let n = lists.queue(&self.kernels, &self.store.stream, wants, logits)?;
            self.metrics.count(OpClass::Select, n);
            if let Some(timing) = &mut self.timing {
                timing.mark(&self.store.device, &self.store.stream, OpClass::Select)?;
            }
        }
        Ok(())
    }

    /// Queues the shortlists of the step that was launched, and the next one after them.
    fn queue_next(
        &mut self,
        batch: &Batch,
        wants: &SampleRequests,
        next: &Batch,
        sources: &[(usize, NextToken)],
    ) -> Result<(), kernels::Error> {
        assert_eq!(wants.n_shortlists(), wants.n_rows(), "shortlists of all rows");
        assert_eq!(sources.len(), next.n_rows(), "a source for each row");
        self.queue_wants(batch, wants)?;
        let lists = self.lists.as_ref().expect("its output is logits");
        let source = |&(row, next)| lists.source(wants.row(row).1, next);
        self.sources.clear();
        self.sources.extend(sources.iter().map(source));
        self.queue(next, &[], true)
    }

    /// Copies the shortlists of a step after which the next one was launched.
    fn bring_lists(
        &mut self,
        wants: &SampleRequests,
        made: &D::Event,
    ) -> Result<(), kernels::Error> {
        let lists = self.lists.as_mut().expect("its output is logits");
        // The step's own stream is busy with the next step.
        self.store.device.wait(&self.reading, made)?;
        let n_bytes = lists.read(&self.reading)?;
        self.finish(wants.n_shortlists(), n_bytes)
    }

    /// Computes and copies what is wanted of the output.
    fn bring_wants(&mut self, batch: &Batch, wants: &SampleRequests) -> Result<(), kernels::Error> {
        if let Some(made) = self.ahead.take() {
            self.bring_lists(wants, &made)?;
            // The next step begins where this one ends.
            self.launched = Instant::now();
            return Ok(());
        }
        self.queue_wants(batch, wants)?;
        let n_lists = wants.n_shortlists();
        wants.whole_rows().try_for_each(|rows| self.bring(rows))?;
        self.bring_hidden(batch)?;
        let mut n_bytes = 0;
        if let Some(lists) = self.lists.as_mut().filter(|_| n_lists > 0) {
            n_bytes = lists.read(&self.store.stream)?;
        }
        self.finish(n_lists, n_bytes)
    }

    /// The step is complete: so many shortlists came down, with these bytes.
    fn finish(&mut self, n_lists: usize, n_bytes: u64) -> Result<(), kernels::Error> {
        if self.n_output == 0 && n_lists == 0 {
            self.store.device.synchronize(&self.store.stream)?;
        }
        self.read_times()?;
        let n_rows = self.n_output / self.plan.output.width;
        self.metrics.came_down(n_rows, n_lists, n_bytes + 4 * self.n_output as u64);
        self.metrics.record(OpClass::Step, self.launched.elapsed());
        Ok(())
    }

    /// Adds the times of the step that has run to the metrics.
    fn read_times(&mut self) -> Result<(), kernels::Error> {
        let Self { timing, store, metrics, .. } = self;
        timing.iter_mut().try_for_each(|timing| timing.read(&store.device, metrics))
    }

    /// Reads an output row whose shortlist was made.
    fn whole_row(&mut self, wants: &SampleRequests, row: usize) -> Result<(), kernels::Error> {
        let Place { start, width, .. } = self.plan.output;
        let lists = self.lists.as_mut().expect("a shortlist was made of the row");
        self.values.read(&self.store.stream, 4 * (start + row * width), &mut lists.row)?;
        lists.put_back(wants, row);
        self.metrics.came_down(1, 0, 4 * width as u64);
        Ok(())
    }

    fn error(&self, error: &kernels::Error) -> Error {
        device_error(&self.name, error)
    }

    /// That the device can do nothing more.
    pub(super) fn failed(&self, reason: String) -> Error {
        Error::Device { device: self.name.clone(), fault: DeviceFault::Other, reason }
    }

    /// Waits for all queued work.
    pub(super) fn wait(&self) -> Result<(), Error> {
        self.store.device.synchronize(&self.store.stream).map_err(|e| self.error(&e))
    }

    /// Runs a step as a rank whose output nothing reads.
    pub(super) fn follow(&mut self, batch: &Batch, input: &[f32]) -> Result<(), Error> {
        self.begin(batch, input).map_err(|e| self.error(&e))?;
        self.wait()?;
        self.read_times().map_err(|e| self.error(&e))?;
        self.metrics.record(OpClass::Step, self.launched.elapsed());
        Ok(())
    }

    /// Lets the exchanges of all ranks fail, if it is one of several.
    pub(super) fn abort(&self) {
        if let Some(ranks) = &self.ranks {
            D::abort(ranks.rank());
        }
    }
}

impl<D: Device> AsyncExecutable for CudaExecutable<D> {
    fn sample_limits(&self) -> SampleLimits {
        self.lists.as_ref().expect("its output is logits").sample_limits()
    }

    fn collect(&mut self, batch: &Batch, wants: &SampleRequests) -> Result<(), Error> {
        self.bring_wants(batch, wants).map_err(|e| self.error(&e))
    }

    fn runs_ahead(&self) -> bool {
        // Steps that are timed run one at a time, as do those of a part whose rows come from another device.
        self.timing.is_none() && self.plan.input.is_none()
    }

    fn launch_next(
        &mut self,
        batch: &Batch,
        wants: &SampleRequests,
        next: &Batch,
        sources: &[(usize, NextToken)],
    ) -> Result<(), Error> {
        self.queue_next(batch, wants, next, sources).map_err(|e| self.error(&e))
    }

    fn fed(&self, row: usize) -> u32 {
        self.lists.as_ref().expect("its output is logits").fed(row)
    }

    fn rows(&self) -> &[f32] {
        &self.output[..self.n_output]
    }

    fn shortlist(&self, idx: usize) -> Shortlist<'_> {
        self.lists.as_ref().expect("a shortlist was made").list(idx)
    }

    fn logprobs(&self, idx: usize) -> Shortlist<'_> {
        self.lists.as_ref().expect("log-probabilities were wanted").logprobs(idx)
    }

    fn read_row(&mut self, wants: &SampleRequests, row: usize) -> Result<&[f32], Error> {
        self.whole_row(wants, row).map_err(|e| self.error(&e))?;
        Ok(&self.lists.as_ref().expect("a shortlist was made of the row").row)
    }
}

impl<D: Device> Executable for CudaExecutable<D> {
    fn run(&mut self, batch: &Batch, input: &[f32]) -> Result<&[f32], Error> {
        let output = *self.plan.output_of(batch.drafts);
        let n_rows = if batch.drafts { batch.outputs.len() } else { self.output_rows(batch) };
        self.begin(batch, input)
            .and_then(|()| self.bring_of(output, 0..n_rows))
            .and_then(|()| self.bring_hidden(batch))
            .and_then(|()| self.finish(0, 0))
            .map_err(|e| self.error(&e))?;
        Ok(&self.output[..self.n_output])
    }

    fn hidden(&self) -> &[f32] {
        &self.output[self.hidden.clone()]
    }

    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        if self.lists.is_some() { Some(self) } else { None }
    }

    fn launch(&mut self, batch: &Batch, input: &[f32]) -> Result<(), Error> {
        self.begin(batch, input).map_err(|e| self.error(&e))
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), Error> {
        let copied = copies.iter().try_for_each(|copy| {
            let mut layers = self.kv[copy.group].iter();
            layers.try_for_each(|layer| layer.copy_page(&self.store.stream, copy.from.0, copy.to.0))
        });
        copied.map_err(|e| self.error(&e))
    }

    fn page_bytes(&self, group: usize) -> usize {
        let of_layer = |spec: &kernels::KvSpec| spec.planes() * spec.page_bytes();
        self.kv[group].iter().map(|layer| of_layer(layer.spec())).sum()
    }

    fn read_page(&mut self, group: usize, page: PageId, out: &mut Vec<u8>) -> Result<(), Error> {
        let mut layers = self.kv[group].iter();
        layers
            .try_for_each(|layer| layer.read_page(&self.store.stream, page.0, out))
            .map_err(|e| self.error(&e))
    }

    fn write_page(&mut self, group: usize, page: PageId, mut bytes: &[u8]) -> Result<(), Error> {
        let written = self.kv[group].iter().try_for_each(|layer| {
            let spec = layer.spec();
            let (own, rest) = bytes.split_at(spec.planes() * spec.page_bytes());
            bytes = rest;
            layer.write_page(&self.store.stream, page.0, own)
        });
        written.map_err(|e| self.error(&e))
    }

    fn state_bytes(&self) -> usize {
        self.states.state_bytes()
    }

    fn read_state(&mut self, state: StateId, out: &mut Vec<u8>) -> Result<(), Error> {
        self.states.read(&self.store.stream, state, out).map_err(|e| self.error(&e))
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), Error> {
        self.states.write(&self.store.stream, state, bytes).map_err(|e| self.error(&e))
    }

    fn host_bytes(&self) -> usize {
        4 * (self.output.len() + self.words.capacity())
            + self.lists.as_ref().map_or(0, RowLists::host_bytes)
    }

    fn files(&self) -> Vec<FileWatch> {
        Vec::new() // everything is on the device
    }

    fn metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        vec![self.metrics.clone()]
    }
}
