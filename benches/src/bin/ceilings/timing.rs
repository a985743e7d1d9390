//! Threads that do the same work at the same time, again and again.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// The seconds of a good sample of `work`, run by `n_threads` threads at once with the sample's and
/// their own number: from the first thread's start to the last one's end, in the tenth of the
/// samples that were fastest. A machine that is not quiet disturbs the others, least the short ones.
pub(crate) fn seconds(
    n_threads: usize,
    n_samples: usize,
    work: &(dyn Fn(usize, usize) + Sync),
) -> f64 {
    let arrived = AtomicUsize::new(0);
    let spans = thread::scope(|scope| {
        let handles: Vec<_> = (0..n_threads)
            .map(|thread| {
                let arrived = &arrived;
                scope.spawn(move || {
                    let sample = |i: usize| {
                        arrived.fetch_add(1, Ordering::AcqRel);
                        let mut spins = 0_u32;
                        while arrived.load(Ordering::Acquire) < n_threads * (i + 1) {
                            hint::spin_loop();
                            spins += 1;
                            if spins.is_multiple_of(1 << 14) {
                                thread::yield_now();
                            }
                        }
                        let start = Instant::now();
                        work(i, thread);
                        (start, Instant::now())
                    };
                    (0..=n_samples).map(sample).collect::<Vec<_>>()
                })
            })
            .collect();
        let join = |handle: thread::ScopedJoinHandle<'_, _>| handle.join().expect("it ran through");
        handles.into_iter().map(join).collect::<Vec<Vec<(Instant, Instant)>>>()
    });
    // The first sample warms up.
    let mut samples: Vec<f64> = (1..=n_samples)
        .filter_map(|i| {
            let start = spans.iter().map(|spans| spans[i].0).min()?;
            let end = spans.iter().map(|spans| spans[i].1).max()?;
            Some((end - start).as_secs_f64())
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 10).copied().unwrap_or(f64::NAN)
}
