//! The queue before the compiler of grammars.
//!
//! Grammars are compiled on threads of their own, of which there are few, and which the server does
//! not wait for when it ends. A request whose client has disconnected leaves the queue, or its compilation
//! as far as that can be given up.

use crate::error::ApiError;
use crate::http::work::blocking;
use crate::registry::ModelLease;
use realizar_runtime::constrain::{
    AdditionalProperties, CompileHandle, Constraint, Error, Grammar, MAX_COMPILE_TIME,
};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Grammars that are compiled at a time.
const COMPILERS: usize = 4;
/// Grammars that wait for it.
const WAITING: usize = 64;

static QUEUE: Queue = Queue::new(COMPILERS, WAITING);

/// Compiles a grammar for a model; `param` is the parameter that asks for it. What a request says of additional properties comes before
/// what the server does.
pub(crate) async fn compile(
    model: &ModelLease,
    grammar: Grammar,
    additional_properties: Option<AdditionalProperties>,
    param: &'static str,
) -> Result<Constraint, ApiError> {
    let leased = model.clone();
    let mut constrainer = blocking(move || leased.constrainer().cloned()).await?;
    if let Some(objects) = additional_properties {
        constrainer = constrainer.additional_properties(objects);
    }
    let given_up = GiveUp(CompileHandle::default());
    let handle = given_up.0.clone();
    let compiled = QUEUE.run(move |done| constrainer.start(grammar, &handle, done)).await?;
    compiled.map_err(|error| ApiError::invalid(param, error.to_string()))
}

/// Cancels a compilation when nothing waits for it any longer.
struct GiveUp(CompileHandle);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// What is called when a compilation is over.
type Done = Box<dyn FnOnce(Result<Constraint, Error>) + Send>;

/// Places for compilations, and for those that wait for one.
struct Queue {
    /// Held by the thread of a compilation until it ends, whoever waits for it.
    compilers: Semaphore,
    waiting: Semaphore,
}

impl Queue {
    const fn new(compilers: usize, waiting: usize) -> Self {
        Self {
            compilers: Semaphore::const_new(compilers),
            waiting: Semaphore::const_new(compilers + waiting),
        }
    }

    /// Starts a compilation when it is its turn, and waits for its end.
    async fn run(
        &'static self,
        start: impl FnOnce(Done) -> Result<(), Error>,
    ) -> Result<Result<Constraint, Error>, ApiError> {
        let message = "too many grammars are waiting to be compiled; try again";
        let full = |_| ApiError::queue_full(message);
        let _waiting = self.waiting.try_acquire().map_err(full)?;
        let late = |_| ApiError::unavailable(message);
        let turn = timeout(MAX_COMPILE_TIME, self.compilers.acquire()).await.map_err(late)?;
        let turn = turn.map_err(|_| ApiError::unavailable(message))?;
        let (sender, receiver) = oneshot::channel();
        let done = Box::new(move |compiled| {
            drop(turn);
            // The client may have left.
            let _ = sender.send(compiled);
        });
        if let Err(error) = start(done) {
            return Ok(Err(error));
        }
        match timeout(MAX_COMPILE_TIME, receiver).await {
            Ok(Ok(compiled)) => Ok(compiled),
            Ok(Err(_)) => Err(ApiError::internal("the grammar compiler has ended")),
            Err(_) => Ok(Err(Error::Time { limit: MAX_COMPILE_TIME })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use tokio::task::yield_now;

    #[tokio::test]
    async fn a_place_is_free_when_its_compilation_is_over() {
        static QUEUE: Queue = Queue::new(1, 1);
        let (sender, started) = channel::<Done>();
        let ask = || {
            let sender = sender.clone();
            QUEUE.run(move |done| {
                sender.send(done).expect("the test waits for it");
                Ok(())
            })
        };
        let first = tokio::spawn(ask());
        let second = tokio::spawn(ask());
        yield_now().await;
        let full = ask().await.expect_err("one is compiled, one waits");
        assert_eq!(full.status().as_u16(), 429);
        // The client leaves; its thread continues, and is waited for.
        first.abort();
        yield_now().await;
        let compiling: Vec<Done> = started.try_iter().collect();
        assert_eq!(compiling.len(), 1);
        for done in compiling {
            done(Err(Error::NoToken));
        }
        yield_now().await;
        for done in started.try_iter() {
            done(Err(Error::Follow("second".to_owned())));
        }
        let error = second.await.expect("it was not aborted").expect("it had a place");
        assert_eq!(error.unwrap_err().to_string(), Error::Follow("second".into()).to_string());
    }
}
