//! A plan on the device: its buffers, its bound kernels, and a step of them.

use super::bind::{Binder, KvGroup, Run};
use super::device_error;
use super::kv_spec;
use super::recurrent::States;
use super::room::{Room, ScratchRoom, f32_bytes};
use super::upload::{DeviceWeights, WeightLayout};
use super::words::{GroupPlaces, RowCounts, Rows, Words, rows_at};
use crate::Error;
use crate::backend::metrics::{DeviceKind, DispatchMetrics, OpClass};
use crate::backend::{Batch, Executable, ExecutableOptions};
use crate::graph::plan::{Place, Plan, Step};
use crate::graph::weights::Weights;
use crate::graph::{Op, RowDomain};
use realizar_formats::FileWatch;
use realizar_kernels_wgpu as kernels;
use realizar_kernels_wgpu::{AttentionScratch, Buffer, Gpu, Kernel, KvLayer, QuantizedRows, Timer};
use realizar_kvcache::{KvLayout, PageCopy, PageId, StateId};
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
    /// The rows of the plan's output.
    output: Vec<f32>, // [max rows, width]
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
        let Room { places, n_values, n_outputs, page_bytes, scratch, quantized, n_kernels, .. } =
            room;
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
        tracing::debug!(device = name, bytes = device_weights.n_bytes(), "weights are uploaded");
        Ok(Self {
            name: name.to_owned(),
            metrics: Arc::new(DispatchMetrics::new(name.to_owned(), DeviceKind::Gpu)),
            profile,
            gpu: gpu.clone(),
            output: vec![0.0; n_outputs],
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

    /// Bytes of the lists on the host.
    #[cfg(test)]
    pub(super) fn host_bytes(&self) -> u64 {
        f32_bytes(self.output.len() + self.words.capacity())
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

    /// Records and submits the step, and reads the rows of its output; returns how
    /// many numbers they are.
    fn step(&mut self, batch: &Batch, input: &[f32]) -> Result<usize, kernels::Error> {
        let counts = RowCounts::of(batch);
        self.gpu.write(&self.batch, 0, bytemuck::cast_slice(self.words.words()))?;
        if let Some(place) = &self.plan.input {
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
        for (step, runs) in self.plan.steps.iter().zip(&self.steps) {
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
        let Place { start, stride, width, rows } = self.plan.output;
        assert_eq!(stride, width, "an output is dense");
        let n = counts.n(rows_at(rows, Rows::All)) as usize * width;
        if n > 0 {
            recorder.copy((&self.values, f32_bytes(start)), (&self.readback, 0), f32_bytes(n));
        }
        recorder.submit()?;
        if n > 0 {
            self.gpu.read(&self.readback, &mut self.output[..n])?;
        }
        if let Some(profile) = &mut self.profile {
            profile.timer.read(&self.gpu, &mut profile.durations)?;
            for (&class, &duration) in profile.classes.iter().zip(&profile.durations) {
                self.metrics.time(class, duration);
            }
        }
        Ok(n)
    }
}

impl Executable for WgpuExecutable {
    fn run(&mut self, batch: &Batch, input: &[f32]) -> Result<&[f32], Error> {
        let started = Instant::now();
        self.words.fill(batch);
        let n = self.step(batch, input).map_err(|e| device_error(&self.name, &e))?;
        self.metrics.record(OpClass::Step, started.elapsed());
        Ok(&self.output[..n])
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), Error> {
        let mut recorder = self.gpu.record();
        for copy in copies {
            let group = &self.kv[copy.group];
            for layer in &group.layers {
                layer.copy_page(&mut recorder, &group.spec, (copy.from.0, copy.to.0), &self.page);
            }
        }
        recorder.submit().map_err(|e| device_error(&self.name, &e))
    }

    fn page_bytes(&self, group: usize) -> usize {
        let KvGroup { spec, layers } = &self.kv[group];
        2 * layers.len() * spec.page_bytes() as usize
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
        let parts = bytes.chunks_exact(2 * spec.page_bytes() as usize);
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

    fn files(&self) -> Vec<FileWatch> {
        Vec::new() // everything is on the device
    }

    fn metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        vec![self.metrics.clone()]
    }
}
