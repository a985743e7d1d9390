//! Streams of work that run in order, events between streams, and graphs of captured work.
//!
//! Work runs at the latest moment that CUDA allows, when the host waits for its stream or for one that depends on it. A
//! missing dependency therefore shows in the results, in the same way in every run.

use crate::{Error, Rank};

/// A stream of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream(pub(crate) usize);

/// A point in a stream that other streams can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(usize);

/// Captured work, with the addresses and arguments of the capture.
#[derive(Debug, Clone)]
pub struct Graph(pub(crate) Vec<Work>);

impl Graph {
    /// Number of launches, copies, fills and exchanges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the graph is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An item of work in a stream.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Launch {
        module: usize,
        program: usize,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: usize,
        is_dependent: bool,
        params: Vec<u8>,
    },
    Write {
        to: u64,
        bytes: Vec<u8>,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        value: u8,
        bytes: usize,
    },
    Gather {
        rank: Rank,
        to: u64,
        from: u64,
        bytes: usize,
    },
    Record(usize),
    Wait(usize),
}

#[derive(Debug, Default)]
struct Queue {
    work: Vec<Work>,
    captured: Option<Vec<Work>>,
}

/// All streams of a device.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    queues: Vec<Queue>,
    /// For each event its stream, and the number of instructions that the device had run when the stream passed it.
    events: Vec<(usize, Option<u64>)>,
}

impl Streams {
    pub(crate) fn create(&mut self) -> Stream {
        self.queues.push(Queue::default());
        Stream(self.queues.len() - 1)
    }

    fn queue(&mut self, stream: Stream) -> Result<&mut Queue, Error> {
        let queue = self.queues.get_mut(stream.0);
        queue.ok_or_else(|| Error::Stream("a stream of another device".to_owned()))
    }

    /// Adds work to a stream, or to the graph that is being captured from it.
    pub(crate) fn push(&mut self, stream: Stream, work: Work) -> Result<(), Error> {
        let queue = self.queue(stream)?;
        queue.captured.as_mut().unwrap_or(&mut queue.work).push(work);
        Ok(())
    }

    pub(crate) fn record(&mut self, stream: Stream) -> Result<Event, Error> {
        if self.queue(stream)?.captured.is_some() {
            return Err(Error::Stream("events are not recorded into graphs".to_owned()));
        }
        let event = self.events.len();
        self.events.push((stream.0, None));
        self.push(stream, Work::Record(event))?;
        Ok(Event(event))
    }

    pub(crate) fn wait(&mut self, stream: Stream, event: Event) -> Result<(), Error> {
        if event.0 >= self.events.len() {
            return Err(Error::Stream("an event of another device".to_owned()));
        }
        if self.queue(stream)?.captured.is_some() {
            return Err(Error::Stream("events are not recorded into graphs".to_owned()));
        }
        self.push(stream, Work::Wait(event.0))
    }

    pub(crate) fn begin_capture(&mut self, stream: Stream) -> Result<(), Error> {
        let queue = self.queue(stream)?;
        if queue.captured.is_some() {
            return Err(Error::Stream("the stream is recorded already".to_owned()));
        }
        queue.captured = Some(Vec::new());
        Ok(())
    }

    pub(crate) fn end_capture(&mut self, stream: Stream) -> Result<Graph, Error> {
        let captured = self.queue(stream)?.captured.take();
        captured.map(Graph).ok_or_else(|| Error::Stream("the stream is not recorded".to_owned()))
    }

    /// Checks that no stream that is waited for is being captured, because it would never run.
    pub(crate) fn check_not_captured(&mut self, stream: Stream) -> Result<(), Error> {
        if self.queue(stream)?.captured.is_some() {
            return Err(Error::Stream("the host waits for a stream that is recorded".to_owned()));
        }
        Ok(())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Stream> + use<> {
        (0..self.queues.len()).map(Stream)
    }

    pub(crate) fn take(&mut self, stream: Stream) -> Vec<Work> {
        std::mem::take(&mut self.queues[stream.0].work)
    }

    /// Puts back work that has not run.
    pub(crate) fn put_back(&mut self, stream: Stream, mut work: Vec<Work>) {
        let later = std::mem::take(&mut self.queues[stream.0].work);
        work.extend(later);
        self.queues[stream.0].work = work;
    }

    pub(crate) fn passed(&mut self, event: usize, instructions: u64) {
        self.events[event].1 = Some(instructions);
    }

    /// The number of instructions that the device had run when an event was passed.
    pub(crate) fn instructions_at(&self, event: Event) -> Result<u64, Error> {
        let passed = self.events.get(event.0).and_then(|event| event.1);
        passed.ok_or_else(|| Error::Stream("an event that was not passed".to_owned()))
    }

    /// The stream of an event that has not been passed yet.
    pub(crate) fn behind(&self, event: usize) -> Option<Stream> {
        let (stream, passed) = self.events[event];
        passed.is_none().then_some(Stream(stream))
    }
}
