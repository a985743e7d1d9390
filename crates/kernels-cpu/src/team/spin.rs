//! Spinning: a thread waits actively for a bounded time before it sleeps.

#[cfg(not(all(test, loom)))]
use std::time::{Duration, Instant};

/// Spin time on a processor that is not shared. It exceeds the serial gaps of a step and the sampling
/// between two steps. Sleeping and being woken takes tens of microseconds.
pub(super) const LONG_SPIN: u32 = 500_000; // ns

/// Spin time on a shared processor, where spinning uses up the thread's time slice.
pub(super) const SHORT_SPIN: u32 = 20_000; // ns

/// A gap between two looks at the clock of at least this length means that the thread was preempted.
#[cfg(not(all(test, loom)))]
const KEPT_FROM_RUNNING: Duration = Duration::from_micros(100);

/// Spin iterations between two looks at the clock.
#[cfg(not(all(test, loom)))]
const SPINS_PER_LOOK: u32 = 32;

/// The next, slightly longer, spin time in nanoseconds. It grows with every wait that ends while
/// spinning, and falls to [`SHORT_SPIN`] once the processor turns out to be shared.
fn longer(spin: u32) -> u32 {
    LONG_SPIN.min(spin + spin / 256)
}

/// Spins until `ready` returns true, for at most `spin` nanoseconds; returns whether it did, and
/// adapts `spin`.
#[cfg(not(all(test, loom)))]
#[inline]
pub(super) fn spin_until(spin: &mut u32, ready: impl Fn() -> bool) -> bool {
    let limit = Duration::from_nanos(u64::from(*spin));
    let mut clock: Option<(Instant, Instant)> = None; // start and last look
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if ready() {
                *spin = longer(*spin);
                return true;
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        let (start, last) = clock.unwrap_or((now, now));
        if now - last > KEPT_FROM_RUNNING {
            *spin = SHORT_SPIN;
            return ready();
        }
        if now - start > limit {
            return false;
        }
        clock = Some((start, now));
    }
}

/// In loom models no time passes, so this looks once: looking later is another interleaving.
#[cfg(all(test, loom))]
pub(super) fn spin_until(spin: &mut u32, ready: impl Fn() -> bool) -> bool {
    *spin = longer(*spin);
    ready()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_slowly_and_have_a_limit() {
        assert_eq!(longer(LONG_SPIN), LONG_SPIN);
        assert!(longer(SHORT_SPIN) > SHORT_SPIN);
        let n_waits = std::iter::successors(Some(SHORT_SPIN), |&spin| Some(longer(spin)))
            .take_while(|&spin| spin < LONG_SPIN)
            .count();
        assert!((500..2000).contains(&n_waits), "{n_waits}");
    }
}
