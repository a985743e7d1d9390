//! The thread team: persistent threads that run the tasks of one parallel loop
//! after another.
//!
//! A thread prefers its own part of a loop's tasks, the same part of the same loop every
//! time, and takes from the others when it is done. A loop ends when its tasks are done,
//! not when its threads are: a thread whose core was taken, or that still sleeps,
//! delays nobody. Both sides spin for a bounded time and then sleep. How the threads
//! agree is the matter of `crew.rs`.

mod crew;
#[cfg(all(test, loom))]
mod model;
mod spin;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::{Arc, PoisonError, mpsc};

use crate::{RowsMut, topology};
use crew::{Crew, Job, MAX_UNITS, Task, lock};
use sync::{Builder, InTask, JoinHandle, Mutex, MutexGuard};

/// A value on cache lines of its own (two, as the prefetcher fetches pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

/// A team of `n_threads - 1` persistent threads and the thread that calls it.
///
/// ```
/// use realizar_kernels_cpu::{RowsMut, Team};
///
/// let team = Team::new(2);
/// let mut squares = vec![0.0; 100];
/// team.for_each_row_mut(RowsMut::new(&mut squares, 100, 1), 8, |i, row, _thread| {
///     row[0] = (i * i) as f32;
/// });
/// assert_eq!(squares[9], 81.0);
/// ```
pub struct Team {
    crew: Arc<Crew>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a loop, so that callers on several threads take turns.
    turn: Mutex<()>,
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("n_threads", &self.n_threads()).finish_non_exhaustive()
    }
}

/// Which processors the threads of a team may run on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Affinity {
    /// The system moves the threads as it sees fit.
    #[default]
    None,
    /// Each worker stays on a core of its own as long as there are enough. The caller's
    /// thread is left to the system, which finds it the core that is free.
    Cores,
}

impl Team {
    /// A team of `n_threads` threads, the caller included. Where the system
    /// refuses to start that many, the team is smaller.
    ///
    /// # Panics
    /// If `n_threads` is 0.
    pub fn new(n_threads: usize) -> Self {
        Self::with_affinity(n_threads, Affinity::None)
    }

    /// As [`Self::new`], with workers that stay where `affinity` says. Where the system
    /// does not let them, they are left free.
    ///
    /// # Panics
    /// If `n_threads` is 0.
    pub fn with_affinity(n_threads: usize, affinity: Affinity) -> Self {
        assert!(n_threads > 0, "a team has at least the caller's thread");
        let cpus = match affinity {
            Affinity::None => Vec::new(),
            Affinity::Cores => {
                topology::spread(&topology::allowed_cores().unwrap_or_default(), n_threads)
            }
        };
        let crew = Arc::new(Crew::new(n_threads));
        let (started, starts) = mpsc::channel();
        let start = |thread: usize| {
            let (crew, started) = (Arc::clone(&crew), started.clone());
            let cpu = cpus.get(thread).copied();
            let builder = Builder::new().name(format!("realizar-{thread}"));
            let serve = move || {
                if let Some(cpu) = cpu {
                    topology::stay_on(cpu);
                }
                // The team is being made, so somebody listens.
                started.send(()).ok();
                drop(started);
                crew.serve(thread);
            };
            builder.spawn(serve).ok()
        };
        let workers: Vec<_> = (1..n_threads).map_while(start).collect();
        // A team that is made is awake: nothing starts or allocates during a loop.
        starts.iter().take(workers.len()).for_each(drop);
        crew.set_n_threads(workers.len() + 1);
        Self { crew, workers, turn: Mutex::new(()) }
    }

    /// Threads of the team, the caller included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(task index, thread index)` once for each index below `n_tasks`,
    /// and returns when all are done. Thread indices are below [`Self::n_threads`],
    /// and one thread runs one task at a time. Which thread runs which task is open,
    /// so a result must not depend on it; with as many threads and tasks, a thread
    /// mostly gets the tasks that it got before. Allocates nothing.
    ///
    /// # Panics
    /// If a task panics (with its payload; on several threads once every task has ended), or when
    /// called from inside a task.
    pub fn parallel_for(&self, n_tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        assert!(!InTask::is_entered(), "a task must not start a parallel loop");
        let _turn = lock(&self.turn);
        if self.workers.is_empty() || n_tasks < 2 {
            let _in_task = InTask::enter();
            for idx in 0..n_tasks {
                task(idx, 0);
            }
            return;
        }
        // SAFETY: this only forgets the lifetime of the borrow, which outlives the call
        // of `Crew::run`.
        let task = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + '_), *const Task>(task)
        };
        let job = Job { task, n_tasks, unit: n_tasks.div_ceil(MAX_UNITS) };
        // SAFETY: `turn` is held, and the task is borrowed until the call returns or unwinds.
        unsafe { self.crew.run(job, self.workers.iter().map(JoinHandle::thread)) };
    }

    /// Calls `f(row index, row, thread index)` for each row of `out`, `grain` rows
    /// to a task.
    ///
    /// # Panics
    /// As [`Self::parallel_for`], or if `grain` is 0.
    pub fn for_each_row_mut<F>(&self, out: RowsMut<'_>, grain: usize, f: F)
    where
        F: Fn(usize, &mut [f32], usize) + Sync,
    {
        let n_cols = out.n_cols();
        self.for_each_tile_mut(out, grain, n_cols.max(1), |mut tile, row, _col, thread| {
            for i in 0..tile.n_rows() {
                f(row + i, tile.row_mut(i), thread);
            }
        });
    }

    /// Calls `f(index, item, thread index)` for each item, an item to a task.
    ///
    /// # Panics
    /// As [`Self::parallel_for`].
    pub fn for_each_mut<T: Send, F>(&self, items: &mut [T], f: F)
    where
        F: Fn(usize, &mut T, usize) + Sync,
    {
        /// The items, to be reached from any thread of the team.
        struct Items<T>(*mut T);
        // SAFETY: the loop below gives each item to one thread, and `T: Send`.
        unsafe impl<T: Send> Sync for Items<T> {}
        impl<T> Items<T> {
            fn get(&self, i: usize) -> *mut T {
                self.0.wrapping_add(i)
            }
        }
        let n_items = items.len();
        let items = Items(items.as_mut_ptr());
        self.parallel_for(n_items, &|task, thread| {
            // SAFETY: `task` is below `n_items` and handed out once, so this is the
            // only borrow of the item, within the exclusive borrow of the slice.
            let item = unsafe { &mut *items.get(task) };
            f(task, item, thread);
        });
    }

    /// Calls `f(tile, first row, first column, thread index)` for each tile of
    /// `row_grain` rows and `col_grain` columns of `out`, a tile to a task; the last
    /// tiles may be smaller. Tiles of the same columns follow each other.
    ///
    /// # Panics
    /// As [`Self::parallel_for`], or if a grain is 0.
    #[expect(clippy::needless_pass_by_value, reason = "the view must be exclusive for the loop")]
    pub fn for_each_tile_mut<F>(&self, out: RowsMut<'_>, row_grain: usize, col_grain: usize, f: F)
    where
        F: Fn(RowsMut<'_>, usize, usize, usize) + Sync,
    {
        let (n_rows, n_cols) = (out.n_rows(), out.n_cols());
        let n_down = n_rows.div_ceil(row_grain);
        let n_tasks = n_down * n_cols.div_ceil(col_grain);
        self.parallel_for(n_tasks, &|task, thread| {
            let (row, col) = (task % n_down * row_grain, task / n_down * col_grain);
            let rows = row..n_rows.min(row + row_grain);
            let cols = col..n_cols.min(col + col_grain);
            // SAFETY: a task index is handed out once, tiles of two indices are
            // disjoint, and `out` is not used otherwise during the loop.
            let tile = unsafe { out.tile(rows, cols) };
            f(tile, row, col, thread);
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.crew.quit(self.workers.iter().map(JoinHandle::thread));
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so there is none to pass on.
            let _ = worker.join();
        }
    }
}

/// A value for each thread of a team, such as scratch memory.
#[derive(Debug)]
pub struct PerThread<T>(Vec<Padded<Mutex<T>>>);

impl<T> PerThread<T> {
    /// One value for each of `n_threads` threads, from the thread's index.
    pub fn new(n_threads: usize, make: impl FnMut(usize) -> T) -> Self {
        Self((0..n_threads).map(make).map(|value| Padded(Mutex::new(value))).collect())
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a thread. It never waits when each thread asks for its own.
    ///
    /// # Panics
    /// If there is no such thread.
    #[inline]
    pub fn get(&self, thread: usize) -> MutexGuard<'_, T> {
        lock(&self.0[thread].0)
    }

    /// The values in order of the threads.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|v| v.0.get_mut().unwrap_or_else(PoisonError::into_inner))
    }
}
