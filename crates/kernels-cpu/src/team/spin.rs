//! Spinning: how long a thread waits for another before it sleeps.

#[cfg(not(all(test, loom)))]
use std::time::{Duration, Instant};

/// How long a thread spins for another before it sleeps, when nobody else wants its
/// processor: longer than the serial gaps of a step, and than it takes to choose a token
/// between two steps. To sleep and be woken takes tens of microseconds.
pub(super) const LONG_SPIN: u32 = 500_000; // ns

/// The same where others do: what a thread spins away is taken from its share.
pub(super) const SHORT_SPIN: u32 = 20_000; // ns

/// A spinning thread that sees no time pass for this long was kept from running.
#[cfg(not(all(test, loom)))]
const KEPT_FROM_RUNNING: Duration = Duration::from_micros(100);

/// Spins between two looks at the clock.
#[cfg(not(all(test, loom)))]
const SPINS_PER_LOOK: u32 = 32;

/// How long a thread spins, in nanoseconds. Less once a processor turns out to be shared,
/// then slowly more with every wait that ends well.
fn longer(spin: u32) -> u32 {
    LONG_SPIN.min(spin + spin / 256)
}

/// Spins until `ready`, for up to `spin` nanoseconds; says whether it is, and changes
/// `spin` by what it learned.
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

/// The same for models, where no time passes: one look. A thread that is ready at a later
/// one is a thread that looked later.
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
