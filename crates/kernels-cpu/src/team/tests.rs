//! Tests of the team: every task once, by any number of threads, through sleep and panic.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn every_task_runs_once_on_a_thread_of_the_team() {
    for n_threads in [1, 2, 3, 7] {
        let team = Team::new(n_threads);
        assert_eq!(team.n_threads(), n_threads);
        let many: &[usize] = if cfg!(miri) { &[130] } else { &[64, 1000, 10_001] };
        for &n_tasks in [0, 1, 2, 5].iter().chain(many) {
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
    let (n_rounds, between) = if cfg!(miri) { (60, 20) } else { (5000_usize, 500) };
    let team = Team::new(3);
    let sums = PerThread::new(3, |_| 0_usize);
    for round in 0..n_rounds {
        team.parallel_for(4, &|task, thread| *sums.get(thread) += task + 1);
        if round.is_multiple_of(between) {
            // Long enough for the workers to fall asleep.
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(2) {
                thread::yield_now();
            }
        }
    }
    let mut sums = sums;
    assert_eq!(sums.iter_mut().map(|s| *s).sum::<usize>(), 10 * n_rounds);
}

#[test]
fn callers_on_two_threads_take_turns() {
    let n_loops = if cfg!(miri) { 20 } else { 200 };
    let team = Team::new(2);
    let count = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..n_loops {
                    team.parallel_for(3, &|_, _| {
                        count.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 6 * n_loops);
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

#[test]
fn a_team_that_stays_on_its_cores_does_the_same() {
    let team = Team::with_affinity(3, Affinity::Cores);
    let mut items: Vec<usize> = (0..100).collect();
    team.for_each_mut(&mut items, |i, item, _| *item += i);
    assert!(items.iter().enumerate().all(|(i, &item)| item == 2 * i));
}
