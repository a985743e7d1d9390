//! Loom models of the team: loom runs them in every interleaving that the memory model allows, up to a
//! number of preemptions (`cargo xtask loom`).
//!
//! Each task writes to a cell of its own, and the caller reads the cells after the loop. The models
//! detect tasks that run twice, are skipped or not waited for, a job that is written while a thread
//! reads it, lost wake-ups, and threads that never end.

use super::crew::{Crew, Job, MAX_UNITS, Task};
use super::sync::atomic::{AtomicBool, Ordering, fence};
use super::sync::{JoinHandle, Thread, UnsafeCell};
use loom::model::Builder;
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// One cell per task of a loop.
struct Cells(Vec<UnsafeCell<u32>>);

// SAFETY: loom stops where two threads access a cell at once.
unsafe impl Sync for Cells {}

impl Cells {
    fn add_one(&self, i: usize) {
        // SAFETY: task `i` alone writes to the cell, which the model checks.
        self.0[i].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn get(&self, i: usize) -> u32 {
        // SAFETY: the loop is over, which the model checks.
        self.0[i].with(|cell| unsafe { *cell })
    }
}

/// A crew whose next loop has the generation after `generation`, and its workers.
fn start(n_threads: usize, generation: u64) -> (Arc<Crew>, Vec<JoinHandle<()>>) {
    let crew = Arc::new(Crew::new(n_threads));
    crew.begin_at(generation);
    let worker = |member: usize| {
        let crew = Arc::clone(&crew);
        thread::spawn(move || crew.serve(member))
    };
    let workers = (1..n_threads).map(worker).collect();
    (crew, workers)
}

fn run(crew: &Crew, workers: &[JoinHandle<()>], n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    let task = |i, _| task(i);
    let task: &(dyn Fn(usize, usize) + Sync) = &task;
    // SAFETY: only the lifetime is forgotten; the borrow outlives the call below.
    let task: *const Task = unsafe { std::mem::transmute(task) };
    let job = Job { task, n_tasks, unit: n_tasks.div_ceil(MAX_UNITS) };
    // SAFETY: loops come from the model's first thread alone, and the task lives until the
    // end of this function.
    unsafe { crew.run(job, workers.iter().map(JoinHandle::thread)) };
}

/// Ends the workers and joins them.
fn end(crew: &Crew, workers: Vec<JoinHandle<()>>) {
    crew.quit(workers.iter().map(JoinHandle::thread));
    workers.into_iter().for_each(|worker| worker.join().expect("a worker ends"));
}

/// Runs loops with these numbers of tasks in every interleaving with at most `preemptions`
/// preemptions.
fn check(n_threads: usize, preemptions: usize, generation: u64, loops: &'static [usize]) {
    let mut model = Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let (crew, workers) = start(n_threads, generation);
        for &n_tasks in loops {
            let cells = Cells((0..n_tasks).map(|_| UnsafeCell::new(0)).collect());
            run(&crew, &workers, n_tasks, &|i| cells.add_one(i));
            assert!((0..n_tasks).all(|i| cells.get(i) == 1));
        }
        end(&crew, workers);
    });
}

#[test]
fn two_threads_run_loop_after_loop() {
    check(2, 3, 0, &[2, 3]);
    check(2, 2, 0, &[2, 2, 2]);
}

#[test]
fn three_threads_run_loop_after_loop() {
    check(3, 2, 0, &[2]);
    check(3, 1, 0, &[3, 2]);
}

#[test]
fn parts_are_brought_up_to_date_between_loops() {
    check(2, 2, super::crew::REFRESH - 2, &[2, 2]);
}

#[test]
fn a_panic_ends_the_loop_and_nothing_else() {
    let mut model = Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (crew, workers) = start(2, 0);
        for bad in 0..2 {
            let cells = Cells((0..2).map(|_| UnsafeCell::new(0)).collect());
            let ended = catch_unwind(AssertUnwindSafe(|| {
                run(&crew, &workers, 2, &|i| {
                    cells.add_one(i);
                    if i == bad {
                        // Without the message of a panic.
                        resume_unwind(Box::new(bad));
                    }
                });
            }));
            let payload = ended.expect_err("the panic is passed on");
            assert_eq!(payload.downcast_ref(), Some(&bad));
            assert!((0..2).all(|i| cells.get(i) == 1));
        }
        end(&crew, workers);
    });
}

#[test]
fn a_team_without_a_loop_ends() {
    check(3, 3, 0, &[]);
}

#[test]
fn sleepers_are_counted_and_woken() {
    let mut model = Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
        let (crew, called) = (Arc::new(Crew::new(3)), Arc::new(AtomicBool::new(false)));
        let worker = |member: usize| {
            let (crew, called) = (Arc::clone(&crew), Arc::clone(&called));
            thread::spawn(move || crew.sleep(member, || called.load(Ordering::Acquire)))
        };
        let workers: Vec<JoinHandle<()>> = (1..3).map(worker).collect();
        called.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        let n_asleep = crew.n_asleep();
        assert!(n_asleep <= 2, "{n_asleep}");
        if n_asleep > 0 {
            crew.wake(1, workers.iter().map(JoinHandle::thread));
        }
        let n_asleep = crew.n_asleep();
        assert!(n_asleep <= 2, "{n_asleep}");
        // A worker that was not woken sleeps on.
        workers.iter().map(JoinHandle::thread).for_each(Thread::unpark);
        workers.into_iter().for_each(|worker| worker.join().expect("a worker wakes"));
        assert_eq!(crew.n_asleep(), 0);
    });
}
