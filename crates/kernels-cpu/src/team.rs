//! The thread team: persistent threads that run the tasks of one parallel loop
//! after another.
//!
//! Tasks are claimed from one counter, and a loop ends when its tasks are done,
//! not when its threads are: a thread whose core was taken, or that still sleeps,
//! delays nobody. Both sides of the barrier spin for a bounded time and then sleep.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::RowsMut;

/// How long a thread spins before it sleeps. A wake-up costs a few microseconds,
/// and the serial gaps between the loops of one step are about as long.
const SPIN: Duration = Duration::from_micros(30);

/// Spins between two looks at the clock.
const SPINS_PER_LOOK: u32 = 32;

type Task = dyn Fn(usize, usize) + Sync;

/// The loop that runs now.
#[derive(Clone, Copy)]
struct Job {
    task: *const Task,
    n_tasks: u32,
}

/// A value on cache lines of its own (two, as the prefetcher fetches pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
    /// Tasks not yet claimed.
    unclaimed: Padded<AtomicU32>,
    /// Tasks not yet done.
    pending: Padded<AtomicU32>,
    /// Workers that sleep or are about to.
    sleepers: Padded<AtomicU32>,
    caller_sleeps: AtomicBool,
    quit: AtomicBool,
    /// Written by the caller while `pending` is 0, read by whoever has claimed a
    /// task that is not done.
    job: UnsafeCell<Job>,
    /// Guards nothing but the order of sleeping and waking.
    sleep: Mutex<()>,
    wake_workers: Condvar,
    wake_caller: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: every field but `job` is `Sync`. `job` is written only while `pending`
// is 0 and read only by holders of a claimed task, which keeps `pending` above 0;
// the atomics order the two. The task it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only as described above, from any thread.
unsafe impl Send for Shared {}

thread_local! {
    /// Whether this thread is inside a task of a team.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as inside a task until it is dropped.
struct InTask;

impl InTask {
    fn enter() -> Self {
        IN_TASK.set(true);
        Self
    }
}

impl Drop for InTask {
    fn drop(&mut self) {
        IN_TASK.set(false);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spins until `ready` or until the time is up; says which.
#[inline]
fn spin_until(ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return false;
        }
    }
}

impl Shared {
    /// Claims and runs tasks until none is left to claim.
    fn work(&self, thread: usize) {
        let mut unclaimed = self.unclaimed.0.load(Ordering::Relaxed);
        while unclaimed > 0 {
            // Acquire: the job was written before `unclaimed` rose above 0.
            if let Err(now) = self.unclaimed.0.compare_exchange_weak(
                unclaimed,
                unclaimed - 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                unclaimed = now;
                continue;
            }
            // SAFETY: a task is claimed and not done, so `pending` is above 0 and
            // the caller does not write `job`.
            let job = unsafe { *self.job.get() };
            // SAFETY: the caller keeps the task borrowed until `pending` is 0.
            let task = unsafe { &*job.task };
            let idx = (job.n_tasks - unclaimed) as usize;
            let result = catch_unwind(AssertUnwindSafe(|| {
                let _in_task = InTask::enter();
                task(idx, thread);
            }));
            if let Err(payload) = result {
                lock(&self.panic).get_or_insert(payload);
            }
            // SeqCst with `caller_sleeps`: either the caller sees 0 or we see it asleep.
            if self.pending.0.fetch_sub(1, Ordering::SeqCst) == 1
                && self.caller_sleeps.load(Ordering::SeqCst)
            {
                drop(lock(&self.sleep));
                self.wake_caller.notify_one();
            }
            unclaimed = self.unclaimed.0.load(Ordering::Relaxed);
        }
    }

    /// The life of a worker.
    fn serve(&self, thread: usize) {
        let called =
            || self.unclaimed.0.load(Ordering::SeqCst) > 0 || self.quit.load(Ordering::SeqCst);
        loop {
            if !spin_until(called) {
                // SeqCst with `unclaimed`: either we see the tasks or the caller sees us.
                self.sleepers.0.fetch_add(1, Ordering::SeqCst);
                let mut guard = lock(&self.sleep);
                while !called() {
                    guard = self.wake_workers.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
                drop(guard);
                self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
            }
            if self.quit.load(Ordering::SeqCst) {
                return;
            }
            self.work(thread);
        }
    }

    /// Wakes the workers that sleep.
    fn wake(&self) {
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.wake_workers.notify_all();
        }
    }

    /// Waits until every task is done.
    fn join(&self) {
        let done = || self.pending.0.load(Ordering::SeqCst) == 0;
        if spin_until(done) {
            return;
        }
        self.caller_sleeps.store(true, Ordering::SeqCst);
        let mut guard = lock(&self.sleep);
        while !done() {
            guard = self.wake_caller.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }
}

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
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a loop, so that callers on several threads take turns.
    turn: Mutex<()>,
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("n_threads", &self.n_threads()).finish_non_exhaustive()
    }
}

impl Team {
    /// A team of `n_threads` threads, the caller included. Where the system
    /// refuses to start that many, the team is smaller.
    ///
    /// # Panics
    /// If `n_threads` is 0.
    pub fn new(n_threads: usize) -> Self {
        assert!(n_threads > 0, "a team has at least the caller's thread");
        let no_task: &Task = &|_, _| {};
        let shared = Arc::new(Shared {
            unclaimed: Padded::default(),
            pending: Padded::default(),
            sleepers: Padded::default(),
            caller_sleeps: AtomicBool::new(false),
            quit: AtomicBool::new(false),
            job: UnsafeCell::new(Job { task: no_task, n_tasks: 0 }),
            sleep: Mutex::new(()),
            wake_workers: Condvar::new(),
            wake_caller: Condvar::new(),
            panic: Mutex::new(None),
        });
        let (started, starts) = mpsc::channel();
        let start = |thread: usize| {
            let (shared, started) = (Arc::clone(&shared), started.clone());
            let builder = thread::Builder::new().name(format!("realizar-{thread}"));
            let serve = move || {
                // The team is being made, so somebody listens.
                started.send(()).ok();
                drop(started);
                shared.serve(thread);
            };
            builder.spawn(serve).ok()
        };
        let workers: Vec<_> = (1..n_threads).map_while(start).collect();
        // A team that is made is awake: nothing starts or allocates during a loop.
        starts.iter().take(workers.len()).for_each(drop);
        Self { shared, workers, turn: Mutex::new(()) }
    }

    /// Threads of the team, the caller included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(task index, thread index)` once for each index below `n_tasks`,
    /// and returns when all are done. Thread indices are below [`Self::n_threads`],
    /// and one thread runs one task at a time. Which thread runs which task is open,
    /// so a result must not depend on it. Allocates nothing.
    ///
    /// # Panics
    /// If a task panics (with its payload; on several threads once every task has ended), or when
    /// called from inside a task.
    pub fn parallel_for(&self, n_tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        assert!(!IN_TASK.get(), "a task must not start a parallel loop");
        let n_tasks = u32::try_from(n_tasks).expect("the number of tasks fits 32 bits");
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        if self.workers.is_empty() || n_tasks < 2 {
            let _in_task = InTask::enter();
            for idx in 0..n_tasks as usize {
                task(idx, 0);
            }
            return;
        }
        // SAFETY: this only forgets the lifetime of the borrow. The pointer is used
        // by holders of a task that is not done, and this function does not return
        // or unwind before every task is done.
        let task = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + '_), *const Task>(task)
        };
        // SAFETY: `pending` is 0 (the last loop was joined and `turn` is held), so
        // nobody holds a task and nobody reads `job`.
        unsafe { *shared.job.get() = Job { task, n_tasks } };
        shared.pending.0.store(n_tasks, Ordering::SeqCst);
        shared.unclaimed.0.store(n_tasks, Ordering::SeqCst);
        shared.wake();
        shared.work(0);
        shared.join();
        let panic = lock(&shared.panic).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
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
        self.shared.quit.store(true, Ordering::SeqCst);
        self.shared.wake();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_task_runs_once_on_a_thread_of_the_team() {
        for n_threads in [1, 2, 3, 7] {
            let team = Team::new(n_threads);
            assert_eq!(team.n_threads(), n_threads);
            for n_tasks in [0, 1, 2, 5, 64, 1000] {
                let counts: Vec<AtomicUsize> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
                team.parallel_for(n_tasks, &|task, thread| {
                    assert!(thread < n_threads);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn thousands_of_short_loops_and_sleeps_lose_nothing() {
        let team = Team::new(3);
        let sums = PerThread::new(3, |_| 0_usize);
        for round in 0..5000_usize {
            team.parallel_for(4, &|task, thread| *sums.get(thread) += task + 1);
            if round.is_multiple_of(1000) {
                // Long enough for the workers to fall asleep.
                let start = Instant::now();
                while start.elapsed() < SPIN * 4 {
                    thread::yield_now();
                }
            }
        }
        let mut sums = sums;
        assert_eq!(sums.iter_mut().map(|s| *s).sum::<usize>(), 50_000);
    }

    #[test]
    fn callers_on_two_threads_take_turns() {
        let team = Team::new(2);
        let count = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        team.parallel_for(3, &|_, _| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 1200);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        for n_threads in [1, 3] {
            let team = Team::new(n_threads);
            for bad in 0..4 {
                let result = catch_unwind(AssertUnwindSafe(|| {
                    team.parallel_for(4, &|task, _| assert_ne!(task, bad, "task {bad}"));
                }));
                let payload = result.expect_err("the panic is passed on");
                let text = payload.downcast_ref::<String>().expect("a formatted message");
                assert!(text.contains(&format!("task {bad}")), "{text}");
            }
            let count = AtomicUsize::new(0);
            team.parallel_for(9, &|_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 9);
        }
    }

    #[test]
    fn a_loop_inside_a_task_is_refused() {
        for n_threads in [1, 2] {
            let team = Team::new(n_threads);
            let nested = || team.parallel_for(2, &|_, _| team.parallel_for(2, &|_, _| {}));
            catch_unwind(AssertUnwindSafe(nested)).expect_err("a nested loop panics");
            team.parallel_for(2, &|_, _| {});
        }
    }

    #[test]
    fn tiles_cover_a_matrix() {
        let team = Team::new(2);
        let mut out = vec![-1.0; 7 * 10];
        let view = RowsMut::with_stride(&mut out, 7, 9, 10);
        team.for_each_tile_mut(view, 2, 4, |mut tile, row, col, _| {
            for i in 0..tile.n_rows() {
                for (j, v) in tile.row_mut(i).iter_mut().enumerate() {
                    *v += 1.0 + (100 * (row + i) + col + j) as f32;
                }
            }
        });
        for (i, row) in out.chunks(10).enumerate() {
            let expected: Vec<f32> = (0..9).map(|j| (100 * i + j) as f32).chain([-1.0]).collect();
            assert_eq!(row, expected);
        }
    }

    #[test]
    fn items_are_visited_once() {
        let mut items: Vec<usize> = (0..300).collect();
        Team::new(3).for_each_mut(&mut items, |i, item, _| *item += i);
        assert!(items.iter().enumerate().all(|(i, &item)| item == 2 * i));
    }
}
