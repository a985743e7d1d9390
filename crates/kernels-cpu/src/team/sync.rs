//! Synchronization types: the standard library's, or loom's in its models (`cfg(loom)`, see
//! `model.rs`), which interleave the threads' accesses.

use std::cell::Cell;

#[cfg(all(test, loom))]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread::{Builder, JoinHandle, Thread, park},
};
#[cfg(not(all(test, loom)))]
pub(super) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread::{Builder, JoinHandle, Thread, park},
};

/// The standard library's cell with the interface of loom's, which tells reads from writes.
#[cfg(not(all(test, loom)))]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer to read from.
    #[inline]
    pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer to write to.
    #[inline]
    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

#[cfg(not(all(test, loom)))]
thread_local! {
    /// Whether this thread is inside a task of a team.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

#[cfg(all(test, loom))]
loom::thread_local! {
    static IN_TASK: Cell<bool> = Cell::new(false);
}

/// Marks this thread as inside a task until it is dropped.
pub(super) struct InTask;

impl InTask {
    pub(super) fn enter() -> Self {
        IN_TASK.with(|inside| inside.set(true));
        Self
    }

    pub(super) fn is_entered() -> bool {
        IN_TASK.with(Cell::get)
    }
}

impl Drop for InTask {
    fn drop(&mut self) {
        IN_TASK.with(|inside| inside.set(false));
    }
}
