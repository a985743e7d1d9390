//! The shared state of a team's threads: the current loop, the distribution of its units, and waiting.
//!
//! The caller publishes a loop as one word: a generation and a number of units. Each thread owns a part
//! of the units. The owner takes units from the front of its part, and threads that have finished
//! theirs steal from the back. So a thread reads the same weights each time, and no thread waits for
//! another to arrive. Parts need no initialization: a part whose word has an older generation is
//! whole.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use super::Padded;
use super::spin::{LONG_SPIN, SHORT_SPIN, spin_until};
use super::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use super::sync::{Condvar, InTask, Mutex, MutexGuard, Thread, UnsafeCell, park};

/// Bits of a number of units in a word.
const UNIT_BITS: u32 = 12;

/// Maximum number of units of a loop.
pub(super) const MAX_UNITS: usize = (1 << UNIT_BITS) - 1;

/// Bits of a generation.
const GENERATION_BITS: u32 = u64::BITS - 2 * UNIT_BITS;

/// All parts are rewritten every this many generations, so that an old part never looks newer than the
/// current generation after the counter wraps.
pub(super) const REFRESH: u64 = 1 << (GENERATION_BITS - 2);

pub(super) type Task = dyn Fn(usize, usize) + Sync;

/// The current loop: `n_tasks` tasks in units of `unit`.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) task: *const Task,
    pub(super) n_tasks: usize,
    pub(super) unit: usize,
}

/// The caller's publication of a loop, on one cache line.
struct Call {
    /// Number of threads: that of the members, less those that the system refused to start.
    n_threads: AtomicUsize,
    /// Generation and number of units.
    word: AtomicU64,
    /// Written by the caller while no unit is in progress; read by threads that have taken a unit.
    job: UnsafeCell<Job>,
}

/// State of one thread.
struct Member {
    /// Generation, and start and end of the units that are not taken.
    part: AtomicU64,
    sleeps: AtomicBool,
}

pub(super) struct Crew {
    call: Padded<Call>,
    /// Number of units that are not done.
    pending: Padded<AtomicU32>,
    /// Number of workers that sleep or are about to.
    sleepers: Padded<AtomicU32>,
    members: Vec<Padded<Member>>,
    caller_sleeps: AtomicBool,
    /// The caller's spin time in nanoseconds.
    caller_spin: AtomicU32,
    quit: AtomicBool,
    /// Orders the caller's sleeping and waking; guards no data.
    sleep: Mutex<()>,
    wake_caller: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: every field but `job` is `Sync`. `job` is written only while every unit is
// done and read only by a thread that has taken a unit that is not; the atomics order
// the two. The task it points to is `Sync`.
unsafe impl Sync for Crew {}
// SAFETY: the pointer in `job` is used only as described above, from any thread.
unsafe impl Send for Crew {}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Packs a part's word.
fn pack(generation: u64, first: u64, end: u64) -> u64 {
    generation << (2 * UNIT_BITS) | first << UNIT_BITS | end
}

/// Generation, first unit and end of a part's word.
fn unpack(word: u64) -> (u64, u64, u64) {
    let mask = (1 << UNIT_BITS) - 1;
    (word >> (2 * UNIT_BITS), word >> UNIT_BITS & mask, word & mask)
}

/// Whether generation `a` is later than `b`, modulo wrapping.
fn is_later(a: u64, b: u64) -> bool {
    let ahead = a.wrapping_sub(b) & ((1 << GENERATION_BITS) - 1);
    ahead != 0 && ahead < 1 << (GENERATION_BITS - 1)
}

impl Crew {
    pub(super) fn new(n_threads: usize) -> Self {
        let no_task: &Task = &|_, _| {};
        let job = Job { task: no_task, n_tasks: 0, unit: 1 };
        let member = || Padded(Member { part: AtomicU64::new(0), sleeps: AtomicBool::new(false) });
        Self {
            call: Padded(Call {
                n_threads: AtomicUsize::new(n_threads),
                word: AtomicU64::new(0),
                job: UnsafeCell::new(job),
            }),
            pending: Padded::default(),
            sleepers: Padded::default(),
            members: (0..n_threads).map(|_| member()).collect(),
            caller_sleeps: AtomicBool::new(false),
            caller_spin: AtomicU32::new(LONG_SPIN),
            quit: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake_caller: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Sets the number of threads that were started. Called before the first loop.
    pub(super) fn set_n_threads(&self, n_threads: usize) {
        self.call.0.n_threads.store(n_threads, Relaxed);
    }

    /// Sets the generation before the first loop's.
    #[cfg(test)]
    pub(super) fn begin_at(&self, generation: u64) {
        // The parts were last written by the refresh.
        let refreshed = generation / REFRESH * REFRESH;
        for member in &self.members {
            member.0.part.store(pack(refreshed, 0, 0), Relaxed);
        }
        self.call.0.word.store(pack(generation, 0, 0), Relaxed);
    }

    /// Runs a loop of 2 to [`MAX_UNITS`] units, and returns when it is done. `workers` are the threads of
    /// the members from the second on.
    ///
    /// # Safety
    /// No other thread may be in this function, and the job's task must be valid until
    /// this function returns or unwinds.
    pub(super) unsafe fn run<'a>(&self, job: Job, workers: impl Iterator<Item = &'a Thread>) {
        let n_units = job.n_tasks.div_ceil(job.unit) as u64;
        let call = &self.call.0;
        let n_threads = call.n_threads.load(Relaxed);
        // SAFETY: the last loop was joined and no other runs, so nobody has taken a unit
        // that is not done.
        call.job.with_mut(|place| unsafe { *place = job });
        self.pending.0.store(n_units as u32, Relaxed);
        let (last, _, _) = unpack(call.word.load(Relaxed));
        let generation = (last + 1) & ((1 << GENERATION_BITS) - 1);
        if generation.is_multiple_of(REFRESH) {
            for member in &self.members {
                member.0.part.store(pack(last, 0, 0), Relaxed);
            }
        }
        // Release: a thread that sees the word sees the job and what is pending.
        call.word.store(pack(generation, 0, n_units), Release);
        // With the fence in `sleep`: either a worker sees the loop or we see it asleep.
        fence(SeqCst);
        let n_asleep = self.n_asleep();
        if n_asleep > 0 {
            let n_awake = n_threads - n_asleep;
            self.wake((n_units as usize).saturating_sub(n_awake), workers);
        }
        let done = self.work(0, n_threads, generation, n_units);
        self.join(done);
        let panic = lock(&self.panic).take();
        if let Some(payload) = panic {
            std::panic::resume_unwind(payload);
        }
    }

    /// Takes a unit of a member's part: its first one for the owner, its last one for a thief.
    #[inline]
    fn take(
        &self,
        member: usize,
        n_threads: usize,
        is_own: bool,
        generation: u64,
        n_units: u64,
    ) -> Option<usize> {
        let part = &self.members[member].0.part;
        let bound = |i: usize| n_units * i as u64 / n_threads as u64;
        let mut word = part.load(Relaxed);
        loop {
            let (of, mut first, mut end) = unpack(word);
            if of != generation {
                if is_later(of, generation) {
                    return None;
                }
                // Nobody has taken a unit of this loop from this part. The loop cannot
                // be over, as then the part's word would be of its generation, unless
                // the part is empty.
                (first, end) = (bound(member), bound(member + 1));
            }
            if first == end {
                return None;
            }
            let (unit, next) = if is_own {
                (first, pack(generation, first + 1, end))
            } else {
                (end - 1, pack(generation, first, end - 1))
            };
            // The loop's word, which the caller of this function read, orders the job before
            // this, so no order is needed here.
            match part.compare_exchange_weak(word, next, Relaxed, Relaxed) {
                Ok(_) => return Some(unit as usize),
                Err(now) => word = now,
            }
        }
    }

    /// Takes and runs units until none is left to take; returns how many it ran.
    /// The caller of this function has read the loop's word with `Acquire`, or wrote it.
    fn work(&self, thread: usize, n_threads: usize, generation: u64, n_units: u64) -> u32 {
        let done = Cell::new(0);
        let run = || {
            let _in_task = InTask::enter();
            for i in 0..n_threads {
                let member =
                    if thread + i < n_threads { thread + i } else { thread + i - n_threads };
                while let Some(unit) = self.take(member, n_threads, i == 0, generation, n_units) {
                    // A unit whose task panics is done as well.
                    done.set(done.get() + 1);
                    // SAFETY: a unit is taken and not done, so the caller does not write
                    // `job`, which it wrote before the word.
                    let job = self.call.0.job.with(|job| unsafe { *job });
                    // SAFETY: the caller keeps the task borrowed until all units are done.
                    let task = unsafe { &*job.task };
                    let first = unit * job.unit;
                    for idx in first..job.n_tasks.min(first + job.unit) {
                        task(idx, thread);
                    }
                }
            }
        };
        while let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
            lock(&self.panic).get_or_insert(payload);
        }
        done.get()
    }

    /// The main loop of a worker.
    pub(super) fn serve(&self, thread: usize) {
        let (mut last, mut spin) = (0, LONG_SPIN);
        loop {
            let called = || self.call.0.word.load(Acquire) != last || self.quit.load(Acquire);
            if !spin_until(&mut spin, called) {
                self.sleep(thread, called);
            }
            if self.quit.load(Relaxed) {
                return;
            }
            last = self.call.0.word.load(Acquire);
            let (generation, _, n_units) = unpack(last);
            let n_threads = self.call.0.n_threads.load(Relaxed);
            let done = self.work(thread, n_threads, generation, n_units);
            // Release: what the tasks wrote is seen by a thread that sees them done.
            if done > 0 && self.pending.0.fetch_sub(done, AcqRel) == done {
                // With the fence in `join`: either the caller sees 0 or we see it asleep.
                fence(SeqCst);
                if self.caller_sleeps.load(Relaxed) {
                    drop(lock(&self.sleep));
                    self.wake_caller.notify_one();
                }
            }
        }
    }

    /// Workers that sleep or are about to.
    pub(super) fn n_asleep(&self) -> usize {
        self.sleepers.0.load(Relaxed) as usize
    }

    /// Sleeps until `called`.
    pub(super) fn sleep(&self, thread: usize, called: impl Fn() -> bool) {
        let sleeps = &self.members[thread].0.sleeps;
        self.sleepers.0.fetch_add(1, Relaxed);
        // Counted first, and released by what follows: a thread that counts this one as awake has
        // it in the count. A swap, as loom would let a store come between what the swap in `rise`
        // reads and what it writes.
        sleeps.swap(true, Release);
        // With the fence in `run`: either we see the loop or the caller sees us.
        fence(SeqCst);
        while sleeps.load(Acquire) && !called() {
            park();
        }
        self.rise(thread);
    }

    /// Counts a worker as awake; returns whether it was counted as asleep.
    fn rise(&self, thread: usize) -> bool {
        let sleeps = self.members[thread].0.sleeps.swap(false, AcqRel);
        if sleeps {
            self.sleepers.0.fetch_sub(1, Relaxed);
        }
        sleeps
    }

    /// Wakes up to `n` sleeping workers.
    pub(super) fn wake<'a>(&self, n: usize, workers: impl Iterator<Item = &'a Thread>) {
        let asleep = (1..).zip(workers).filter(|&(thread, _)| self.rise(thread));
        asleep.take(n).for_each(|(_, worker)| worker.unpark());
    }

    /// Tells the workers to end.
    pub(super) fn quit<'a>(&self, workers: impl Iterator<Item = &'a Thread>) {
        self.quit.store(true, Release);
        workers.for_each(Thread::unpark);
    }

    /// Waits until every unit is done. The caller itself has done `done` units.
    fn join(&self, done: u32) {
        let pending = &self.pending.0;
        let mut spin = self.caller_spin.load(Relaxed);
        let is_done = spin_until(&mut spin, || pending.load(Acquire) == done);
        // If a task takes longer, its thread was probably preempted.
        let spin = if is_done { spin } else { SHORT_SPIN };
        self.caller_spin.store(spin, Relaxed);
        if is_done {
            return;
        }
        if pending.fetch_sub(done, AcqRel) == done {
            return;
        }
        self.caller_sleeps.store(true, Relaxed);
        // With the fence in `serve`: either we see 0 or the last worker sees us asleep.
        fence(SeqCst);
        let mut guard = lock(&self.sleep);
        while pending.load(Acquire) > 0 {
            guard = self.wake_caller.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.caller_sleeps.store(false, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn owners_take_from_the_front_and_others_from_the_back() {
        let crew = Crew::new(2);
        let take = |member, is_own, generation, n_units| {
            let unit = || crew.take(member, 2, is_own, generation, n_units);
            std::iter::from_fn(unit).collect::<Vec<_>>()
        };
        assert_eq!(take(0, true, 1, 7), [0, 1, 2]);
        assert_eq!(take(1, false, 1, 7), [6, 5, 4, 3]);
        assert_eq!(take(1, true, 1, 7), []);
        // A loop of one unit leaves the first part empty; then the next loop, and a thread that
        // comes late to the one before.
        assert_eq!(take(0, true, 2, 1), []);
        assert_eq!(crew.take(1, 2, true, 3, 4), Some(2));
        assert_eq!(crew.take(1, 2, false, 3, 4), Some(3));
        assert_eq!(take(1, true, 2, 1), []);
        assert_eq!(take(0, false, 3, 4), [1, 0]);
    }

    #[test]
    fn generations_go_around() {
        let last = (1 << GENERATION_BITS) - 1;
        for (a, b, later) in [(1, 0, true), (0, 0, false), (0, last, true), (last, 0, false)] {
            assert_eq!(is_later(a, b), later, "{a} after {b}");
        }
        for k in [1, 2, 4] {
            let crew = Crew::new(2);
            crew.begin_at(k * REFRESH - 3);
            for _ in 0..6 {
                let count = AtomicU32::new(0);
                let task = |_, _| {
                    count.fetch_add(1, Relaxed);
                };
                let task: &(dyn Fn(usize, usize) + Sync) = &task;
                // SAFETY: only the lifetime is forgotten; the borrow outlives the call below.
                let task: *const Task = unsafe { std::mem::transmute(task) };
                // SAFETY: this is the only thread, and the task lives until the end of the block.
                unsafe { crew.run(Job { task, n_tasks: 5, unit: 1 }, std::iter::empty()) };
                assert_eq!(count.into_inner(), 5);
            }
        }
    }
}
