//! Steps that are launched, and collected later.

use super::{LIVES, Runner, note, shrink};
use crate::Error;
use crate::run::chunk::{Chunk, OutputRows};
use crate::run::results::{Results, RowRequests};
use realizar_formats::FileWatch;

impl Runner {
    /// Whether steps run beside the host, so that it can work between [`Self::launch`] and
    /// [`Self::collect`].
    pub(crate) fn runs_beside(&mut self) -> bool {
        self.executable.as_async().is_some()
    }

    /// Begins a step of these chunks, of whose outputs all logits are wanted unless
    /// [`Self::wants`] is told otherwise. Where the host itself runs the steps, it does so when this
    /// one is collected. Until then the sequences stay as they are, also those whose ids are dropped.
    ///
    /// # Errors
    /// As for [`Self::step`].
    pub(crate) fn launch<'c>(
        &mut self,
        chunks: impl Iterator<Item = Chunk<'c>> + Clone,
    ) -> Result<(), Error> {
        self.prepare(&chunks)?;
        self.wants.reset(self.batch.outputs.len());
        if self.runs_beside()
            && let Err(error) = self.executable.launch(&self.batch, &[])
        {
            shrink(&mut self.seqs, &mut self.cache, chunks, &[]);
            return Err(error.into());
        }
        self.is_launched = true;
        self.is_noted = false;
        self.launched.clear();
        self.launched.extend(chunks.map(|chunk| chunk.seq.idx));
        Ok(())
    }

    /// What is wanted of the step that was launched, and the shortlists that there can be; `None` if
    /// rows have to be whole.
    pub(crate) fn wants(&mut self) -> Option<RowRequests<'_>> {
        let offer = self.executable.as_async()?.sample_limits();
        Some(RowRequests { wants: &mut self.wants, offer, first_rows: &self.first_rows })
    }

    /// Waits for the step of these chunks, which was launched, and returns what was wanted of it. A step that was launched
    /// [ahead](Self::launch_ahead) may have had further chunks, of sequences that have ended since.
    ///
    /// # Errors
    /// As for [`Self::step`].
    pub(crate) fn collect<'c>(
        &mut self,
        chunks: impl Iterator<Item = Chunk<'c>> + Clone,
    ) -> Result<Results<'_>, Error> {
        assert!(std::mem::take(&mut self.is_launched), "a step that was launched is collected");
        let is_noted = std::mem::take(&mut self.is_noted);
        let Self { executable, batch, files, wants, seqs, offsets, cache, .. } = self;
        let (first_rows, ahead) = (&self.first_rows, &self.ahead);
        let ahead = ahead.is_launched.then_some(&*ahead.sources);
        let width = self.output_width;
        let check = || files.iter().try_for_each(FileWatch::check).map_err(Error::from);
        if executable.as_async().is_none() {
            let rows = executable.run(batch, &[]).map_err(Error::from);
            let rows = rows.and_then(|rows| check().map(|()| rows));
            let values = note((seqs, offsets), cache, chunks, rows)?;
            return Ok(Results::of_rows(OutputRows { values, width, first_rows }));
        }
        wants.settle();
        let beside = executable.as_async().expect("it was there");
        let collected = beside.collect(batch, wants).map_err(Error::from).and_then(|()| check());
        if is_noted {
            collected?;
        } else {
            note((seqs, offsets), cache, chunks, collected)?;
        }
        Ok(Results::of_wants(beside, wants, (width, first_rows), ahead))
    }

    /// Forgets the steps that were launched, if there are any: the sequences are as before them. What the
    /// device still writes for them does no harm, as it does everything in order.
    pub(crate) fn discard(&mut self) {
        let Self { cache, seqs, launched, ahead, .. } = self;
        let mut shrink = |launched: &[usize]| {
            for &idx in launched {
                cache.shrink(seqs[idx].as_mut().expect(LIVES), &[]);
            }
        };
        if std::mem::take(&mut self.is_launched) && !std::mem::take(&mut self.is_noted) {
            shrink(launched);
        }
        if std::mem::take(&mut ahead.is_launched) {
            shrink(&ahead.launched);
        }
    }
}
