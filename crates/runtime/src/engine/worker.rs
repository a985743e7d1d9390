//! The engine's thread: receives requests and iterates, with a guard against panics.
//!
//! The guard is around a whole iteration: drafting, masks, the model, sampling, sinks, and what
//! follows from them. After a panic the requests of the step end, and all others are recomputed, as
//! if they had been preempted.

use super::active::Submission;
use super::shared::Shared;
use super::step::Core;
use crate::Error;
use realizar_base::panics;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

/// A message to the engine's thread.
pub(super) enum Message {
    Submit(Box<Submission>),
    /// Finish the active requests until then, and end.
    Close(Instant),
}

/// The loop of the engine's thread.
pub(super) struct Worker {
    core: Core,
    receiver: Receiver<Message>,
    /// When unfinished requests are failed.
    deadline: Option<Instant>,
    shared: Arc<Shared>,
}

impl Worker {
    pub(super) fn new(core: Core, receiver: Receiver<Message>, shared: Arc<Shared>) -> Self {
        Self { core, receiver, deadline: None, shared }
    }

    /// Works until the engine is closed or fails. Every request gets its last event.
    pub(super) fn run(mut self) {
        let worked = panics::caught(|| self.work());
        if let Err(panic) = &worked {
            tracing::error!("the engine has ended: {panic}");
            self.core.queue.abandon(&format!("the engine has ended: {panic}"));
        }
        self.shared.closed.store(true, Ordering::Relaxed);
        while let Ok(message) = self.receiver.try_recv() {
            if let Message::Submit(submission) = message {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                self.shared.send_last(|_| submission.refuse(Error::Ended));
            }
        }
        let reason = worked.err().or_else(|| self.core.lost().map(str::to_owned));
        if let Some(reason) = reason
            && let Err(panic) = panics::caught(|| self.shared.fail(&reason))
        {
            tracing::error!("the listener for the engine's end panicked: {panic}");
        }
    }

    fn work(&mut self) {
        self.core.publish();
        while self.receive() {
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.core.fail_all(|| Error::Ended);
                break;
            }
            if let Err(panic) = panics::caught(|| self.core.iterate()) {
                self.core.recover(&panic);
            }
            if cfg!(debug_assertions) {
                self.core.check();
            }
            if self.core.lost().is_some() {
                break;
            }
        }
        self.core.publish();
    }

    /// Receives all messages; waits for one if the engine is idle. Returns false at the end.
    fn receive(&mut self) -> bool {
        loop {
            let message = if !self.core.is_idle() {
                match self.receiver.try_recv() {
                    Ok(message) => message,
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => {
                        self.close(Instant::now());
                        return true;
                    }
                }
            } else if self.deadline.is_some() {
                return false;
            } else {
                match self.receiver.recv() {
                    Ok(message) => message,
                    Err(_) => return false,
                }
            };
            match message {
                Message::Submit(submission) => self.core.queue.add(*submission),
                Message::Close(deadline) => self.close(deadline),
            }
        }
    }

    fn close(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |before| before.min(deadline)));
    }
}

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;
