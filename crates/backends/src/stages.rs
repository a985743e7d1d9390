//! Several executables as one: the parts of a model that is split by layer, each
//! on its own device.
//!
//! They run one after the other, as each needs the hidden states of the one
//! before. Those pass through the host, in the memory that an executable returns
//! its output in; nothing is copied here and nothing allocated.

use crate::Error;
use crate::metrics::DispatchMetrics;
use crate::{AsyncExecutable, Batch, Executable};
use realizar_formats::FileWatch;
use realizar_kvcache::{PageCopy, PageId, StateId};
use std::sync::Arc;

/// The parts of a model, in order.
#[derive(Debug)]
pub struct Stages {
    first: Box<dyn Executable>,
    /// Each takes the rows that the one before returns.
    rest: Vec<Box<dyn Executable>>,
}

impl Stages {
    /// The executables of a model's parts as one; a single one stays as it is.
    ///
    /// # Panics
    /// If there are none.
    pub fn join(mut parts: Vec<Box<dyn Executable>>) -> Box<dyn Executable> {
        let first = parts.remove(0);
        if parts.is_empty() { first } else { Box::new(Self { first, rest: parts }) }
    }
}

impl Executable for Stages {
    fn run(&mut self, batch: &Batch, input: &[f32]) -> Result<&[f32], Error> {
        let mut rows = self.first.run(batch, input)?;
        for stage in &mut self.rest {
            rows = stage.run(batch, rows)?;
        }
        Ok(rows)
    }

    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        self.rest.last_mut().and_then(|last| last.as_async())
    }

    /// The parts before the last run here, as each takes what the one before gives.
    fn launch(&mut self, batch: &Batch, input: &[f32]) -> Result<(), Error> {
        let Self { first, rest } = self;
        let mut rows = first.run(batch, input)?;
        let Some((last, others)) = rest.split_last_mut() else { return Ok(()) };
        for stage in others {
            rows = stage.run(batch, rows)?;
        }
        last.launch(batch, rows)
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), Error> {
        self.first.copy_pages(copies)?;
        self.rest.iter_mut().try_for_each(|stage| stage.copy_pages(copies))
    }

    fn page_bytes(&self, group: usize) -> usize {
        let rest: usize = self.rest.iter().map(|stage| stage.page_bytes(group)).sum();
        self.first.page_bytes(group) + rest
    }

    fn read_page(&mut self, group: usize, page: PageId, out: &mut Vec<u8>) -> Result<(), Error> {
        self.first.read_page(group, page, out)?;
        self.rest.iter_mut().try_for_each(|stage| stage.read_page(group, page, out))
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<(), Error> {
        let (first, mut bytes) = bytes.split_at(self.first.page_bytes(group));
        self.first.write_page(group, page, first)?;
        self.rest.iter_mut().try_for_each(|stage| {
            let (own, rest) = bytes.split_at(stage.page_bytes(group));
            bytes = rest;
            stage.write_page(group, page, own)
        })
    }

    fn state_bytes(&self) -> usize {
        let rest: usize = self.rest.iter().map(|stage| stage.state_bytes()).sum();
        self.first.state_bytes() + rest
    }

    fn read_state(&mut self, state: StateId, out: &mut Vec<u8>) -> Result<(), Error> {
        self.first.read_state(state, out)?;
        self.rest.iter_mut().try_for_each(|stage| stage.read_state(state, out))
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), Error> {
        let (first, mut bytes) = bytes.split_at(self.first.state_bytes());
        self.first.write_state(state, first)?;
        self.rest.iter_mut().try_for_each(|stage| {
            let (own, rest) = bytes.split_at(stage.state_bytes());
            bytes = rest;
            stage.write_state(state, own)
        })
    }

    fn files(&self) -> Vec<FileWatch> {
        self.rest.iter().fold(self.first.files(), |mut all, stage| {
            all.extend(stage.files());
            all
        })
    }

    fn metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        self.rest.iter().fold(self.first.metrics(), |mut all, stage| {
            all.extend(stage.metrics());
            all
        })
    }
}
