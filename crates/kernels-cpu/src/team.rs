//! The thread team: persistent threads that run one parallel loop after another.
//!
//! Each thread owns a part of a loop's tasks, the same part every time the loop runs, and steals from
//! other parts when its own is done. A loop ends when all tasks are done, whichever threads ran them:
//! a thread that is preempted or still asleep delays no one unless it holds a task. Waiting threads
//! spin for a bounded time and then sleep. `crew.rs` has the protocol between the threads.

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

/// A value on cache lines of its own: two, because hardware prefetches pairs of lines.
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
    /// Held during a loop, so that loops of several callers run one at a time.
    turn: Mutex<()>,
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("n_threads", &self.n_threads()).finish_non_exhaustive()
    }
}

/// The placement of a team's threads on cores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Affinity {
    /// The operating system places the threads.
    #[default]
    None,
    /// Each worker is pinned to a hardware thread, on a core of its own if there are enough cores. The
    /// caller's thread is not pinned.
    Cores,
}

impl Team {
    /// A team of `n_threads` threads, the caller included. The team is smaller if the system refuses to
    /// start that many.
    ///
    /// # Panics
    /// If `n_threads` is 0.
    pub fn new(n_threads: usize) -> Self {
        Self::with_affinity(n_threads, Affinity::None)
    }

    /// As [`Self::new`], with workers pinned as `affinity` says. Workers that the system refuses to pin
    /// stay unpinned.
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
                // The constructor holds the receiver.
                started.send(()).ok();
                drop(started);
                crew.serve(thread);
            };
            builder.spawn(serve).ok()
        };
        let workers: Vec<_> = (1..n_threads).map_while(start).collect();
        // Wait for every worker, so that no thread starts or allocates during a loop.
        starts.iter().take(workers.len()).for_each(drop);
        crew.set_n_threads(workers.len() + 1);
        Self { crew, workers, turn: Mutex::new(()) }
    }

    /// Number of threads, the caller included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(task index, thread index)` once for each task index below `n_tasks`, and returns when
    /// all calls have returned. Thread indices are below [`Self::n_threads`], and calls with the same
    /// thread index never overlap. Results must not depend on which thread runs a task; repeated loops of
    /// the same size mostly give a thread the same tasks. Allocates nothing.
    ///
    /// # Panics
    /// With a task's payload, once all tasks have ended, if a task panics; or if called from a task.
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

    /// Calls `f(row index, row, thread index)` for each row of `out`, in tasks of `grain` rows.
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

    /// Calls `f(index, item, thread index)` for each item, in tasks of one item.
    ///
    /// # Panics
    /// As [`Self::parallel_for`].
    pub fn for_each_mut<T: Send, F>(&self, items: &mut [T], f: F)
    where
        F: Fn(usize, &mut T, usize) + Sync,
    {
        /// Start of the items, for access from all threads of the team.
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

    /// Calls `f(tile, first row, first column, thread index)` for each tile of `row_grain` rows and
    /// `col_grain` columns of `out`, in tasks of one tile. Tiles at the edges may be smaller. Tiles of the
    /// same columns have consecutive task indices.
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

/// One value per thread of a team, such as scratch memory.
#[derive(Debug)]
pub struct PerThread<T>(Vec<Padded<Mutex<T>>>);

impl<T> PerThread<T> {
    /// Creates the value of each of `n_threads` threads from its index.
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

    /// The value of a thread. Never blocks if each thread uses only its own value.
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
