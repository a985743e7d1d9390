//! What an engine is given, with a panic in it: a log, sinks, and a device.

use realizar_backends::Error;
use realizar_backends::cpu::CpuBackend;
use realizar_backends::metrics::DispatchMetrics;
use realizar_backends::{
    AsyncExecutable, Backend, Batch, Executable, ExecutableOptions, MemoryUse, SampleLimits,
    SampleRequests, Shortlist,
};
use realizar_formats::FileWatch;
use realizar_kvcache::{PageCopy, PageId, StateId};
use realizar_model::graph::Fusions;
use realizar_model::graph::plan::Plan;
use realizar_model::graph::weights::Weights;
use std::fmt;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Where an engine calls what it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The log gets an event of the engine with this message.
    Log(&'static str),
    /// A sink gets a token.
    Sink,
    /// The model's device has run a step.
    Device,
    /// The draft model's device has run a step.
    DraftDevice,
}

/// A panic that happens once, at a place that was passed some times before. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Fault(Arc<Mutex<Option<(Place, usize)>>>);

impl Fault {
    /// A panic at `place` after it was passed `n` times.
    pub(super) fn after(place: Place, n: usize) -> Self {
        Self(Arc::new(Mutex::new(Some((place, n)))))
    }

    /// Whether the panic has not happened yet.
    pub(super) fn is_due(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    /// Panics if it is time.
    pub(super) fn reach(&self, place: Place) {
        let mut next = self.0.lock().unwrap();
        match &mut *next {
            Some((at, 0)) if *at == place => *next = None,
            Some((at, n)) if *at == place => {
                *n -= 1;
                return;
            }
            _ => return,
        }
        drop(next);
        panic!("injected at {place:?}");
    }
}

/// A log that keeps nothing.
pub(super) struct Log(pub(super) Fault);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("realizar_runtime::engine")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        let next = *self.0.0.lock().unwrap();
        if let Some((Place::Log(at), _)) = next
            && message.0 == at
        {
            self.0.reach(Place::Log(at));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// The CPU, with a fault at `place` after each step.
#[derive(Debug)]
pub(super) struct FaultyBackend {
    pub(super) cpu: CpuBackend,
    /// Whether steps seem to run asynchronously to the host.
    pub(super) is_async: bool,
    pub(super) fault: Fault,
    pub(super) place: Place,
}

impl Backend for FaultyBackend {
    fn name(&self) -> String {
        self.cpu.name()
    }

    fn fusions(&self) -> Fusions {
        self.cpu.fusions()
    }

    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse {
        self.cpu.memory(plan, weights, options)
    }

    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, Error> {
        Ok(Box::new(FaultyExecutable {
            inner: self.cpu.load(plan, weights, options)?,
            is_async: self.is_async,
            rows: Vec::new(),
            fault: self.fault.clone(),
            place: self.place,
        }))
    }
}

#[derive(Debug)]
struct FaultyExecutable {
    inner: Box<dyn Executable>,
    is_async: bool,
    /// The output of the step that was collected.
    rows: Vec<f32>,
    fault: Fault,
    place: Place,
}

impl Executable for FaultyExecutable {
    fn run(&mut self, batch: &Batch, input: &[f32]) -> Result<&[f32], Error> {
        let rows = self.inner.run(batch, input)?;
        self.fault.reach(self.place);
        Ok(rows)
    }

    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        if self.is_async { Some(self) } else { None }
    }

    fn launch(&mut self, _: &Batch, _: &[f32]) -> Result<(), Error> {
        Ok(())
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), Error> {
        self.inner.copy_pages(copies)
    }

    fn page_bytes(&self, group: usize) -> usize {
        self.inner.page_bytes(group)
    }

    fn read_page(&mut self, group: usize, page: PageId, out: &mut Vec<u8>) -> Result<(), Error> {
        self.inner.read_page(group, page, out)
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write_page(group, page, bytes)
    }

    fn state_bytes(&self) -> usize {
        self.inner.state_bytes()
    }

    fn read_state(&mut self, state: StateId, out: &mut Vec<u8>) -> Result<(), Error> {
        self.inner.read_state(state, out)
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write_state(state, bytes)
    }

    fn files(&self) -> Vec<FileWatch> {
        self.inner.files()
    }

    fn metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        self.inner.metrics()
    }
}

/// Steps run when they are collected, and give whole rows.
impl AsyncExecutable for FaultyExecutable {
    fn sample_limits(&self) -> SampleLimits {
        SampleLimits { max_rows: 0, max_best: 0, max_listed: 0, max_draws: 0 }
    }

    fn collect(&mut self, batch: &Batch, _: &SampleRequests) -> Result<(), Error> {
        self.rows.clear();
        self.rows.extend_from_slice(self.inner.run(batch, &[])?);
        self.fault.reach(self.place);
        Ok(())
    }

    fn rows(&self) -> &[f32] {
        &self.rows
    }

    fn shortlist(&self, _: usize) -> Shortlist<'_> {
        unreachable!("none is offered")
    }

    fn logprobs(&self, _: usize) -> Shortlist<'_> {
        unreachable!("none is offered")
    }

    fn read_row(&mut self, _: &SampleRequests, _: usize) -> Result<&[f32], Error> {
        unreachable!("all rows are given")
    }
}
