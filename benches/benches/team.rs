//! The thread team: what a loop costs, and what is left of its speed when other programs
//! want the same cores. Prints its own tables: a mean over loops would hide what matters here.
//!
//! The second table runs steps of a small model's shape, 200 loops of 16 tasks with 30 us of
//! work each, beside 0, 1, 2 … programs that only use the processor.

use realizar_kernels_cpu::{Team, default_threads};
use std::hint::black_box;
use std::io::{self, Write};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// Loops whose median is a cell of the first table.
const N_LOOPS: usize = 2000;
/// Loops of a step.
const LOOPS_PER_STEP: usize = 200;
const TASKS_PER_LOOP: usize = 16;
const WORK_PER_LOOP: Duration = Duration::from_micros(30);
/// Time for which a cell of the second table is measured.
const CELL: Duration = Duration::from_secs(2);

/// Programs that use a processor each, until this is dropped.
struct Competitors(Vec<Child>);

impl Competitors {
    fn start(n: usize) -> io::Result<Self> {
        let mut all = Self(Vec::new());
        for _ in 0..n {
            all.0.push(Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?);
        }
        // The system spreads them over the cores.
        thread::sleep(Duration::from_millis(500));
        Ok(all)
    }
}

impl Drop for Competitors {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that is gone already needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Median time of a loop of empty tasks after a serial gap.
fn empty_loop(team: &Team, n_tasks: usize, gap: Duration) -> Duration {
    let mut times: Vec<Duration> = (0..N_LOOPS)
        .map(|_| {
            spin(gap);
            let start = Instant::now();
            team.parallel_for(n_tasks, &|task, _| _ = black_box(task));
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[N_LOOPS / 2]
}

/// A chain of dependent multiplications: work that takes processor time, not wall-clock time.
fn work(n: usize) {
    black_box((0..n).fold(1.0_f32, |x, _| black_box(x * 1.000_1)));
}

/// Steps per second of a team beside `n` competitors.
fn steps_per_second(team: &Team, work_per_task: usize, n: usize) -> io::Result<f64> {
    let _competitors = Competitors::start(n)?;
    let (start, mut n_steps) = (Instant::now(), 0);
    while start.elapsed() < CELL {
        for _ in 0..LOOPS_PER_STEP {
            team.parallel_for(TASKS_PER_LOOP, &|_, _| work(work_per_task));
            work(work_per_task / 8);
        }
        n_steps += 1;
    }
    Ok(f64::from(n_steps) / start.elapsed().as_secs_f64())
}

fn main() -> io::Result<()> {
    let mut out = io::stdout();
    let n_threads = default_threads();
    let team = Team::new(n_threads);
    writeln!(out, "median time of a loop of empty tasks on {n_threads} threads, in ns")?;
    let gaps = [0, 5, 20, 100].map(Duration::from_micros);
    writeln!(
        out,
        "{:>6} {:>10} {:>10} {:>10} {:>10}",
        "tasks", "no gap", "5 us", "20 us", "100 us"
    )?;
    for n_tasks in [2, 4, 16] {
        write!(out, "{n_tasks:>6}")?;
        for gap in gaps {
            write!(out, " {:>10}", empty_loop(&team, n_tasks, gap).as_nanos())?;
        }
        writeln!(out)?;
    }

    let start = Instant::now();
    work(10_000_000);
    let per_second = 1e7 / start.elapsed().as_secs_f64();
    let work_per_task = (WORK_PER_LOOP.as_secs_f64() * per_second) as usize / TASKS_PER_LOOP;
    writeln!(out, "\nsteps per second of {n_threads} threads beside other programs")?;
    writeln!(out, "{:>9} {:>9} {:>9} {:>12}", "programs", "steps/s", "of alone", "fair share")?;
    let mut alone = None;
    for n in 0..=2 * n_threads {
        let found = steps_per_second(&team, work_per_task, n)?;
        let alone = *alone.get_or_insert(found);
        let share = n_threads as f64 / (n_threads + n) as f64;
        writeln!(out, "{n:>9} {found:>9.1} {:>9.2} {share:>12.2}", found / alone)?;
    }
    Ok(())
}
