//! A plan on the device: its buffers, its bound kernels, and a step of them.

use super::bind::{Binder, KvGroup, Run};
use super::device_error;
use super::kv_spec;
use super::recurrent::States;
use super::room::{Room, ScratchRoom, f32_bytes};
use super::shortlists::RowLists;
use super::upload::DeviceWeights;
use super::words::{GroupPlaces, RowCounts, Rows, Words, rows_at};
use crate::Error;
use crate::gpu::weights::WeightLayout;
use crate::metrics::{DeviceKind, DispatchMetrics, OpClass};
use crate::{
    AsyncExecutable, Batch, Executable, ExecutableOptions, SampleLimits, SampleRequests, Shortlist,
};
use realizar_formats::FileWatch;
use realizar_kernels_wgpu as kernels;
use realizar_kernels_wgpu::{
    AttentionScratch, Buffer, ExpertPairs, Gpu, Kernel, KvLayer, QuantizedRows, Recorder, Timer,
};
use realizar_kvcache::{KvLayout, PageCopy, PageId, StateId};
use realizar_model::graph::plan::{Place, Plan, Step};
use realizar_model::graph::weights::Weights;
use realizar_model::graph::{Op, RowDomain};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A loaded plan.
#[derive(Debug)]
pub(super) struct WgpuExecutable {
    name: String,
    gpu: Gpu,
    plan: Plan,
    /// The kernels of each step.
    steps: Vec<Vec<Run>>,
    words: Words,
    batch: Buffer,
    values: Buffer,
    readback: Buffer,
    kv: Vec<KvGroup>,
    states: States,
    /// Room for the keys or values of one page of a layer, while it is copied.
    page: Buffer,
    /// The rows of the plan's output that were wanted.
    output: Vec<f32>, // [max rows, width]
    n_output: usize,
    /// Of these numbers, the hidden states that drafting continues from.
    hidden: Range<usize>,
    /// Shortlists of rows of logits; `None` if the output has none.
    lists: Option<RowLists>,
    launched: Instant,
    metrics: Arc<DispatchMetrics>,
    /// Set when each kernel is to be timed and the device can.
    profile: Option<Profile>,
}

/// The times of a step's kernels.
#[derive(Debug)]
struct Profile {
    timer: Timer,
    /// The class of each kernel that was recorded.
    classes: Vec<OpClass>,
    durations: Vec<Duration>,
}

/// Products of numbers after which a step's commands are submitted: about a second
/// on a small GPU.
const MAX_PRODUCTS: u64 = 1 << 37;

/// Products of numbers that a linear step or an attention takes.
fn products(step: &Step, counts: &RowCounts, words: &Words) -> u64 {
    match &step.op {
        Op::Linear { .. } => {
            let n_rows = counts.n(rows_at(step.output.rows, Rows::All));
            u64::from(n_rows) * (step.inputs[0].width * step.output.width) as u64
        }
        // What a key has in the state, what it gets, and what a query finds there.
        Op::DeltaNet(net) => {
            let n_rows = counts.n(rows_at(step.output.rows, Rows::All));
            u64::from(n_rows) * 3 * net.state.len as u64
        }
        Op::ExpertLinear(linear) => {
            let n_rows = counts.n(rows_at(step.output.rows, Rows::All));
            u64::from(n_rows) * (linear.n_in * step.output.width) as u64
        }
        // Scores and values.
        Op::Attention(a) => 2 * words.n_seen(a.kv.group) * (a.n_heads * a.head_dim) as u64,
        _ => 0,
    }
}

/// The key-value memory of a group.
fn kv_group(gpu: &Gpu, (layout, n_pages): &(KvLayout, usize)) -> Result<KvGroup, kernels::Error> {
    let spec = kv_spec(layout, *n_pages);
    let layer = |_| KvLayer::new(gpu, "keys and values", &spec);
    let layers = (0..layout.spec().n_layers).map(layer).collect::<Result<_, _>>()?;
    Ok(KvGroup { spec, layers })
}

/// Records that rows of an output come to the host, after the `n_before` numbers that do.
fn bring(
    recorder: &mut Recorder<'_>,
    output: &Place,
    (values, readback): (&Buffer, &Buffer),
    rows: Range<usize>,
    n_before: &mut usize,
) {
    let Place { start, stride, width, .. } = *output;
    assert_eq!(stride, width, "an output is dense");
    let n = rows.len() * width;
    if n > 0 {
        let from = (values, f32_bytes(start + rows.start * width));
        recorder.copy(from, (readback, f32_bytes(*n_before)), f32_bytes(n));
        *n_before += n;
    }
}

/// Records that the hidden states that drafting continues from come to the host, behind the `n_before` numbers that
/// do; returns which numbers they are.
fn bring_hidden(
    recorder: &mut Recorder<'_>,
    plan: &Plan,
    batch: &Batch,
    buffers: (&Buffer, &Buffer),
    n_before: usize,
) -> Range<usize> {
    let mut end = n_before;
    if let Some(place) = plan.hidden_of(batch.drafts) {
        bring(recorder, place, buffers, 0..batch.outputs.len(), &mut end);
    }
    n_before..end
}

impl WgpuExecutable {
    pub(super) fn new(
        gpu: &Gpu,
        name: &str,
        plan: Plan,
        weights: (&Weights, WeightLayout),
        room: Room,
        options: &ExecutableOptions,
    ) -> Result<Self, Error> {
        Self::make(gpu, name, plan, weights, room, options).map_err(|e| device_error(name, &e))
    }

    fn make(
        gpu: &Gpu,
        name: &str,
        plan: Plan,
        (weights, layout): (&Weights, WeightLayout),
        room: Room,
        options: &ExecutableOptions,
    ) -> Result<Self, kernels::Error> {
        let list_rows = room.list_rows;
        let Room { places, n_values, n_outputs, page_bytes, scratch, quantized, .. } = room;
        let Room { pairs, n_kernels, .. } = room;
        let batch = gpu.buffer("words of a step", f32_bytes(places.n_words))?;
        let values = gpu.buffer("activations", f32_bytes(n_values))?;
        let readback = gpu.readback_buffer("rows of the output", f32_bytes(n_outputs))?;
        // What can be too large comes before the weights, which take long.
        let kv: Vec<KvGroup> =
            options.kv.iter().map(|pool| kv_group(gpu, pool)).collect::<Result<_, _>>()?;
        let states = States::new(gpu, &plan, options)?;
        let page = gpu.buffer("a page that is copied", page_bytes)?;
        let ScratchRoom { max_items, n_heads, head_dim } = scratch;
        let scratch = AttentionScratch::new(gpu, max_items, n_heads, head_dim)?;
        let quantized = quantized.map(|(rows, cols)| QuantizedRows::new(gpu, rows, cols));
        let quantized = quantized.transpose()?;
        let pairs = pairs.map(|(n_pairs, n_experts)| ExpertPairs::new(gpu, n_pairs, n_experts));
        let pairs = pairs.transpose()?;
        let lists = match list_rows {
            0 => None,
            n => Some(RowLists::new(gpu, &values, &plan.output, n)?),
        };
        let device_weights = DeviceWeights::upload(gpu, layout, weights)?;
        let next_wave =
            |group: &GroupPlaces| kernels::attention_next_wave(gpu, &batch, group.splits);
        let next_waves: Vec<Kernel> =
            places.groups.iter().map(next_wave).collect::<Result<_, _>>()?;
        let binder = Binder {
            gpu,
            arithmetic: options.arithmetic,
            weights: &device_weights,
            values: &values,
            batch: &batch,
            places: &places,
            kv: &kv,
            scratch: &scratch,
            next_waves: &next_waves,
            states: &states,
            quantized: quantized.as_ref(),
            pairs: pairs.as_ref(),
        };
        let bound = (0..plan.steps.len()).map(|i| binder.bind(&plan, i));
        let steps: Vec<Vec<Run>> = bound.collect::<Result<_, _>>()?;
        let profile = match options.profile {
            true => Timer::new(gpu, n_kernels)?,
            false => None,
        };
        if options.profile && profile.is_none() {
            tracing::warn!(device = name, "this device cannot time its kernels");
        }
        let profile = profile.map(|timer| Profile {
            timer,
            classes: Vec::with_capacity(n_kernels),
            durations: Vec::with_capacity(n_kernels),
        });
        let matrices = device_weights.matrices().map(kernels::Matrix::n_bytes);
        let bytes = matrices.sum::<u64>() + device_weights.vectors.n_bytes();
        tracing::debug!(device = name, bytes, "weights are uploaded");
        Ok(Self {
            name: name.to_owned(),
            metrics: Arc::new(DispatchMetrics::new(name.to_owned(), DeviceKind::Gpu)),
            profile,
            gpu: gpu.clone(),
            output: vec![0.0; n_outputs],
            n_output: 0,
            hidden: 0..0,
            lists,
            launched: Instant::now(),
            steps,
            words: Words::new(places),
            batch,
            values,
            readback,
            kv,
            states,
            page,
            plan,
        })
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
            let at = f32_bytes(start + row * stride);
            self.gpu.write(&self.values, at, bytemuck::cast_slice(embedding))?;
        }
        Ok(())
    }

    /// Records and submits the step; with `brings_all`, all of its output is copied to the host.
    fn submit(
        &mut self,
        batch: &Batch,
        input: &[f32],
        brings_all: bool,
    ) -> Result<(), kernels::Error> {
        let counts = RowCounts::of(batch);
        self.gpu.write(&self.batch, 0, bytemuck::cast_slice(self.words.words()))?;
        if let Some(place) = self.plan.input_of(batch.drafts) {
            assert_eq!(place.stride, place.width, "an input is dense");
            assert_eq!(input.len(), batch.n_rows() * place.width, "rows of the input");
            self.gpu.write(&self.values, f32_bytes(place.start), bytemuck::cast_slice(input))?;
        }
        if !batch.embedded.is_empty() {
            self.write_embedded(batch)?;
        }
        let mut classes = None;
        let mut recorder = match &mut self.profile {
            Some(profile) => {
                profile.classes.clear();
                classes = Some(&mut profile.classes);
                self.gpu.record_timed(&mut profile.timer)
            }
            None => self.gpu.record(),
        };
        let mut n_products = 0;
        for idx in self.plan.steps_of(batch.drafts) {
            let (step, runs) = (&self.plan.steps[idx], &self.steps[idx]);
            // Without rows that want logits, what follows their selection is idle.
            if step.output.rows == RowDomain::Outputs && batch.outputs.is_empty() {
                continue;
            }
            // A driver resets a device that is busy for seconds with one submission.
            let of_step = products(step, &counts, &self.words);
            if n_products > 0 && n_products + of_step > MAX_PRODUCTS && classes.is_none() {
                recorder.submit()?;
                recorder = self.gpu.record();
                n_products = 0;
            }
            n_products += of_step;
            let class = OpClass::of(&step.op);
            for run in runs {
                run.each(&counts, &self.words, |kernel, n| {
                    recorder.run(kernel, n);
                    if n > 0 {
                        self.metrics.count(class, 1);
                        classes.iter_mut().for_each(|classes| classes.push(class));
                    }
                });
            }
        }
        self.n_output = 0;
        if brings_all {
            let output = self.plan.output_of(batch.drafts);
            let n = counts.n(rows_at(output.rows, Rows::All)) as usize;
            let buffers = (&self.values, &self.readback);
            bring(&mut recorder, output, buffers, 0..n, &mut self.n_output);
            self.hidden = bring_hidden(&mut recorder, &self.plan, batch, buffers, self.n_output);
        }
        recorder.submit()
    }

    fn begin(&mut self, batch: &Batch, input: &[f32], brings_all: bool) -> Result<(), Error> {
        self.launched = Instant::now();
        self.words.fill(batch);
        self.submit(batch, input, brings_all).map_err(|e| device_error(&self.name, &e))
    }

    /// Rows of the output.
    fn output_rows(&self, batch: &Batch) -> usize {
        RowCounts::of(batch).n(rows_at(self.plan.output.rows, Rows::All)) as usize
    }

    /// Submits the copies to the host of what is wanted of the output.
    fn submit_wants(
        &mut self,
        batch: &Batch,
        wants: &SampleRequests,
    ) -> Result<(), kernels::Error> {
        let mut recorder = self.gpu.record();
        let buffers = (&self.values, &self.readback);
        for rows in wants.whole_rows() {
            bring(&mut recorder, &self.plan.output, buffers, rows, &mut self.n_output);
        }
        self.hidden = bring_hidden(&mut recorder, &self.plan, batch, buffers, self.n_output);
        if let Some(lists) = &mut self.lists {
            let class = OpClass::Select;
            lists.record(&self.gpu, &mut recorder, wants, || self.metrics.count(class, 1))?;
        }
        if wants.n_rows() > 0 { recorder.submit() } else { Ok(()) }
    }

    /// Waits for the copies of the output: whole rows and this many shortlists.
    fn finish(&mut self, n_lists: usize) -> Result<(), kernels::Error> {
        let n = self.n_output;
        let n_all = n.max(self.hidden.end);
        if n_all > 0 {
            self.gpu.read(&self.readback, &mut self.output[..n_all])?;
        }
        let mut n_bytes = f32_bytes(n_all);
        if let Some(lists) = self.lists.as_mut().filter(|_| n_lists > 0) {
            n_bytes += lists.read(&self.gpu)?;
        }
        let n_copied = n / self.plan.output.width;
        self.metrics.came_down(n_copied, n_lists, n_bytes);
        if let Some(profile) = &mut self.profile {
            profile.timer.read(&self.gpu, &mut profile.durations)?;
            for (&class, &duration) in profile.classes.iter().zip(&profile.durations) {
                self.metrics.time(class, duration);
            }
        }
        self.metrics.record(OpClass::Step, self.launched.elapsed());
        Ok(())
    }

    /// Reads an output row whose shortlist was made.
    fn whole_row(&mut self, wants: &SampleRequests, row: usize) -> Result<(), kernels::Error> {
        let mut recorder = self.gpu.record();
        let buffers = (&self.values, &self.readback);
        let mut n = 0;
        bring(&mut recorder, &self.plan.output, buffers, row..row + 1, &mut n);
        recorder.submit()?;
        let lists = self.lists.as_mut().expect("a shortlist was made of the row");
        self.gpu.read(&self.readback, &mut lists.row)?;
        lists.put_back(wants, row);
        self.metrics.came_down(1, 0, f32_bytes(n));
        Ok(())
    }
}

impl AsyncExecutable for WgpuExecutable {
    fn sample_limits(&self) -> SampleLimits {
        self.lists.as_ref().expect("its output is logits").sample_limits()
    }

    fn collect(&mut self, batch: &Batch, wants: &SampleRequests) -> Result<(), Error> {
        assert_eq!(wants.n_rows(), self.output_rows(batch), "rows of the output");
        let collected =
            self.submit_wants(batch, wants).and_then(|()| self.finish(wants.n_shortlists()));
        collected.map_err(|e| device_error(&self.name, &e))
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
        self.whole_row(wants, row).map_err(|e| device_error(&self.name, &e))?;
        Ok(&self.lists.as_ref().expect("a shortlist was made of the row").row)
    }
}

impl Executable for WgpuExecutable {
    fn run(&mut self, batch: &Batch, input: &[f32]) -> Result<&[f32], Error> {
        self.begin(batch, input, true)?;
        self.finish(0).map_err(|e| device_error(&self.name, &e))?;
        Ok(&self.output[..self.n_output])
    }

    fn hidden(&self) -> &[f32] {
        &self.output[self.hidden.clone()]
    }

    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        if self.lists.is_some() { Some(self) } else { None }
    }

    fn launch(&mut self, batch: &Batch, input: &[f32]) -> Result<(), Error> {
        self.begin(batch, input, false)
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), Error> {
        let mut recorder = self.gpu.record();
        for copy in copies {
            let group = &self.kv[copy.group];
            for layer in &group.layers {
                layer.copy_page(&mut recorder, &group.spec, copy.from.0, copy.to.0, &self.page);
            }
        }
        recorder.submit().map_err(|e| device_error(&self.name, &e))
    }

    fn page_bytes(&self, group: usize) -> usize {
        let KvGroup { spec, layers } = &self.kv[group];
        spec.planes() * layers.len() * spec.page_bytes() as usize
    }

    fn read_page(&mut self, group: usize, page: PageId, out: &mut Vec<u8>) -> Result<(), Error> {
        let KvGroup { spec, layers } = &self.kv[group];
        let read = |out: &mut Vec<u8>| -> Result<(), kernels::Error> {
            let room = self.gpu.readback_buffer("a page that is saved", spec.page_bytes())?;
            layers.iter().try_for_each(|layer| layer.read_page(&self.gpu, spec, page.0, &room, out))
        };
        read(out).map_err(|e| device_error(&self.name, &e))
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<(), Error> {
        let KvGroup { spec, layers } = &self.kv[group];
        let parts = bytes.chunks_exact(spec.planes() * spec.page_bytes() as usize);
        let mut layers = layers.iter().zip(parts);
        layers
            .try_for_each(|(layer, bytes)| layer.write_page(&self.gpu, spec, page.0, bytes))
            .map_err(|e| device_error(&self.name, &e))
    }

    fn state_bytes(&self) -> usize {
        self.states.state_bytes()
    }

    fn read_state(&mut self, state: StateId, out: &mut Vec<u8>) -> Result<(), Error> {
        self.states.read(&self.gpu, state, out).map_err(|e| device_error(&self.name, &e))
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), Error> {
        self.states.write(&self.gpu, state, bytes).map_err(|e| device_error(&self.name, &e))
    }

    fn host_bytes(&self) -> usize {
        let lists = self.lists.as_ref().map_or(0, RowLists::host_bytes);
        (f32_bytes(self.output.len() + self.words.capacity()) + lists) as usize
    }

    fn files(&self) -> Vec<FileWatch> {
        Vec::new() // everything is on the device
    }

    fn metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        vec![self.metrics.clone()]
    }
}
