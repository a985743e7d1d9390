//! The queue: active requests, and their sequences, waiting and running.
//!
//! A sequence waits until it is admitted and again after it is preempted. Both queues are in the
//! order of [`SeqKey`], so the first sequence always makes progress.

use super::active::{ActiveRequest, Submission};
use super::sequence::{RequestId, SeqKey, Sequence};
use super::shared::Shared;
use super::stats::Counters;
use crate::Error;
use crate::run::Runner;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// See the [module](self).
pub(super) struct Queue {
    /// The maximum number of concurrent sequences.
    max_seqs: usize,
    requests: HashMap<RequestId, ActiveRequest>,
    last_id: RequestId,
    waiting: BTreeMap<SeqKey, Sequence>,
    /// Sorted by key.
    pub(super) running: Vec<Sequence>,
    /// Pages ran out, and no step has succeeded since.
    pub(super) out_of_pages: bool,
    shared: Arc<Shared>,
}

impl Queue {
    pub(super) fn new(max_seqs: usize, shared: Arc<Shared>) -> Self {
        Self {
            max_seqs,
            requests: HashMap::new(),
            last_id: 0,
            waiting: BTreeMap::new(),
            running: Vec::new(),
            out_of_pages: false,
            shared,
        }
    }

    /// Adds a request, whose sequence waits.
    pub(super) fn add(&mut self, submission: Submission) {
        self.last_id += 1;
        let (request, seq) = submission.into_request(self.last_id);
        self.requests.insert(self.last_id, request);
        self.waiting.insert(seq.key, seq);
    }

    /// Whether no sequence runs or waits.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The number of requests with running sequences.
    pub(super) fn n_running(&self) -> usize {
        self.running.chunk_by(|a, b| a.key.request == b.key.request).count()
    }

    /// The number of tokens of waiting sequences.
    pub(super) fn waiting_tokens(&self) -> usize {
        self.waiting.values().map(Sequence::n_tokens).sum()
    }

    pub(super) fn request(&mut self, id: RequestId) -> Option<&mut ActiveRequest> {
        self.requests.get_mut(&id)
    }

    /// The ids of the requests for which `filter` holds, in no order.
    pub(super) fn ids(
        &self,
        filter: impl Fn(&ActiveRequest) -> bool,
    ) -> impl Iterator<Item = RequestId> {
        self.requests.iter().filter(move |(_, request)| filter(request)).map(|(id, _)| *id)
    }

    /// A running sequence, by its index, and its request; `None` if that has ended.
    pub(super) fn running_mut(
        &mut self,
        idx: usize,
    ) -> Option<(&mut Sequence, &mut ActiveRequest)> {
        let seq = &mut self.running[idx];
        let request = self.requests.get_mut(&seq.key.request)?;
        Some((seq, request))
    }

    /// A sequence and its request.
    pub(super) fn find(&mut self, key: SeqKey) -> Option<(&mut Sequence, &mut ActiveRequest)> {
        let seq = match self.running.binary_search_by_key(&key, |seq| seq.key) {
            Ok(idx) => &mut self.running[idx],
            Err(_) => self.waiting.get_mut(&key)?,
        };
        Some((seq, self.requests.get_mut(&key.request)?))
    }

    /// Admits waiting sequences in order, as long as there is room for all their tokens. After pages
    /// ran out, none is admitted before the others make progress, or it would be preempted again.
    pub(super) fn admit(&mut self, runner: &mut Runner) {
        if self.out_of_pages && !self.running.is_empty() {
            return;
        }
        let mut n_answers: usize = self.running.iter().map(Sequence::n_answers).sum();
        while let Some(first) = self.waiting.first_entry() {
            let seq = first.get();
            n_answers += seq.n_answers();
            // A running sequence may soon need one more page.
            let n_spare = self.running.len();
            let is_alone = self.running.is_empty();
            let has_room = is_alone || runner.has_room(seq.n_tokens() + 1, n_spare);
            if n_answers > self.max_seqs || !has_room {
                break;
            }
            let seq = first.remove();
            if seq.is_whole_request() {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            let at = self.running.partition_point(|other| other.key < seq.key);
            self.running.insert(at, seq);
        }
    }

    /// Preempts the last running sequence that holds pages. It waits, and is recomputed when there
    /// is room.
    pub(super) fn preempt(&mut self) {
        let last = self.running.iter().rposition(|seq| seq.kv.is_some());
        let mut seq = self.running.remove(last.unwrap_or(self.running.len() - 1));
        seq.free();
        tracing::debug!(request = seq.key.request, answer = seq.key.answer, "preempted");
        self.shared.stats.update(|stats| stats.preemptions += 1);
        self.wait(seq);
    }

    /// Frees the pages of all running sequences.
    pub(super) fn free_running(&mut self) {
        self.running.iter_mut().for_each(Sequence::free);
    }

    /// Lets all running sequences wait, after their pages were freed.
    pub(super) fn requeue_running(&mut self) {
        while let Some(seq) = self.running.pop() {
            self.wait(seq);
        }
        self.out_of_pages = false;
    }

    fn wait(&mut self, seq: Sequence) {
        if seq.is_whole_request() {
            self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        }
        self.waiting.insert(seq.key, seq);
    }

    /// Adds the forks of running sequences.
    pub(super) fn extend_running(&mut self, forks: Vec<Sequence>) {
        self.running.extend(forks);
        self.running.sort_unstable_by_key(|seq| seq.key);
    }

    /// Removes sequences whose answers are complete.
    pub(super) fn remove(&mut self, keys: impl Iterator<Item = SeqKey>) {
        for key in keys {
            match self.running.binary_search_by_key(&key, |seq| seq.key) {
                Ok(idx) => drop(self.running.remove(idx)),
                Err(_) => drop(self.waiting.remove(&key)),
            }
        }
    }

    /// Ends a request with its `last` event, and frees the pages of its sequences. A panic of its
    /// sink concerns no other request.
    pub(super) fn finish(
        &mut self,
        id: RequestId,
        last: impl FnOnce(&mut ActiveRequest, &Counters),
    ) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        self.shared.send_last(|stats| last(&mut request, stats));
        self.shared.send_last(|_| drop(request));
        self.running.retain(|seq| seq.key.request != id);
        self.waiting.retain(|key, seq| {
            let stays = key.request != id;
            if !stays && seq.is_whole_request() {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            stays
        });
    }

    /// Fails every request after a panic that may have left the sequences inconsistent.
    pub(super) fn abandon(&mut self, reason: &str) {
        for mut request in std::mem::take(&mut self.requests).into_values() {
            let error = Error::Step(reason.to_owned());
            self.shared.send_last(|stats| request.fail(error, stats));
            self.shared.send_last(|_| drop(request));
        }
    }

    /// Asserts what holds between two steps: sequences are in order and belong to requests, requests
    /// have sequences or pending output, and exactly the running sequences hold pages.
    pub(super) fn check(&self, runner: &mut Runner, has_pending: impl Fn(RequestId) -> bool) {
        assert!(
            self.running.is_sorted_by(|a, b| a.key < b.key),
            "sequences run in order, each once"
        );
        assert!(self.waiting.iter().all(|(key, seq)| *key == seq.key && seq.kv.is_none()));
        let all = self.running.iter().chain(self.waiting.values());
        let is_active = |seq: &Sequence| self.requests.contains_key(&seq.key.request);
        assert!(all.clone().all(is_active), "a sequence belongs to a request");
        let is_open =
            |id: &RequestId| all.clone().any(|seq| seq.key.request == *id) || has_pending(*id);
        assert!(self.requests.keys().all(is_open), "an active request has a sequence");
        let n_whole = self.waiting.values().filter(|seq| seq.is_whole_request()).count();
        let n_counted = self.shared.waiting.load(Ordering::Relaxed);
        assert!(n_counted >= n_whole, "waiting requests are counted");
        let n_seqs = self.running.iter().filter(|seq| seq.kv.is_some()).count();
        assert_eq!(runner.n_seqs(), n_seqs, "running sequences hold all pages");
    }
}
