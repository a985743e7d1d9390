//! How long a model stays loaded that no request uses.
//!
//! Models that the program names stay. Of those that it offers, one that a request has loaded goes when no
//! request has used it for a while: the server's time, or the one that a request of Ollama's API states.

use super::entry::Entry;
use super::unload::Ending;
use super::{Inner, Models, Pick, Registry};
use crate::error::LoadError;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a model stays that no request uses; forever without a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive(pub Option<Duration>);

impl KeepAlive {
    /// The model goes with the last request that uses it.
    pub const NOT: Self = Self(Some(Duration::ZERO));
    /// The model stays.
    pub const FOREVER: Self = Self(None);

    /// Seconds, of which negative ones are forever, as in Ollama's API. `None` if that is no number.
    pub fn from_seconds(seconds: f64) -> Option<Self> {
        match seconds {
            _ if seconds.is_nan() => None,
            _ if seconds < 0.0 => Some(Self::FOREVER),
            // Beyond what a duration can hold is as long.
            _ => Some(Self(Duration::try_from_secs_f64(seconds).ok())),
        }
    }

    /// The longer one of both.
    pub(crate) fn or_longer(self, other: Self) -> Self {
        Self(self.0.zip(other.0).map(|(a, b)| a.max(b)))
    }
}

impl Default for KeepAlive {
    /// Five minutes, as in Ollama.
    fn default() -> Self {
        Self(Some(Duration::from_secs(300)))
    }
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(duration) => write!(f, "{duration:?}"),
            None => f.write_str("-1"),
        }
    }
}

/// A text that is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoDuration;

impl fmt::Display for NoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected seconds, or a duration such as 5m or 1h30m; -1 is forever")
    }
}

impl std::error::Error for NoDuration {}

impl FromStr for KeepAlive {
    type Err = NoDuration;

    /// A duration as Go writes it, such as `1h30m`, or seconds alone.
    fn from_str(text: &str) -> Result<Self, NoDuration> {
        go_duration(text).and_then(Self::from_seconds).ok_or(NoDuration)
    }
}

/// The seconds of a duration as Go writes it: numbers with units, such as `1h30m`, or a number alone.
fn go_duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if let Ok(seconds) = rest.parse::<u32>() {
        return Some(sign * f64::from(seconds));
    }
    let units = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let mut seconds = 0.0;
    loop {
        let len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|&len| len > 0)?;
        let (number, behind) = rest.split_at(len);
        let unit_len =
            behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit_len);
        let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
        seconds += number.parse::<f64>().ok()? * scale;
        rest = behind;
        if rest.is_empty() {
            return Some(sign * seconds);
        }
    }
}

impl Entry {
    /// When it goes if no request uses it until then.
    pub(super) fn expiry(&self) -> Option<Instant> {
        let idle_since = self.idle_since.filter(|_| self.may_go())?;
        idle_since.checked_add(self.keep_alive.0?)
    }

    /// How long it still stays at `now`: all of its time while a request uses it, and none if it stays.
    pub(super) fn stays_for(&self, now: Instant) -> Option<Duration> {
        let keep_alive = self.keep_alive.0?;
        let idle_since = self.idle_since.filter(|_| self.may_go());
        Some(keep_alive.saturating_sub(idle_since.map_or(Duration::ZERO, |since| now - since)))
    }
}

impl Inner {
    /// Closes the models whose time is over at `now`.
    fn expired(&mut self, now: Instant) -> Vec<Ending> {
        let is_over = |entry: &&Entry| entry.expiry().is_some_and(|expiry| expiry <= now);
        let names: Vec<_> = self.entries.iter().filter(is_over).map(|e| e.name.clone()).collect();
        names.iter().filter_map(|name| self.begin_unload(name)).collect()
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.entries.iter().filter_map(Entry::expiry).min()
    }

    /// The last request that used the model of this name is over: it is idle from `now` on.
    pub(super) fn note_idle(&mut self, name: &str, now: Instant) -> Option<Ending> {
        let entry = self.entry(name)?;
        entry.idle_since = Some(now);
        let goes_now = entry.keep_alive == KeepAlive::NOT && entry.may_go();
        if goes_now { self.begin_unload(name) } else { None }
    }
}

impl Registry {
    /// Ends these models, which no request uses, on a thread.
    pub(super) fn end_idle(self: &Arc<Self>, endings: Vec<Ending>) {
        if endings.is_empty() {
            return;
        }
        let registry = self.clone();
        let thread = std::thread::Builder::new().name("unload".to_owned());
        let spawned = thread.spawn(move || {
            for ending in endings {
                registry.end(ending, Duration::ZERO);
            }
        });
        if let Err(error) = spawned {
            tracing::error!("idle models cannot be unloaded: {error}");
        }
    }
}

impl Models {
    /// Sets how long the loaded model with this name or alias stays. What the program has named goes only if
    /// that is not at all.
    ///
    /// # Errors
    /// If a model would go that cannot be loaded again.
    pub(crate) fn keep_alive(&self, name: &str, keep_alive: KeepAlive) -> Result<(), LoadError> {
        let mut inner = self.0.lock();
        let Some(idx) = inner.find(Pick::Named(name)) else { return Ok(()) };
        let entry = &mut inner.entries[idx];
        if entry.source.is_none() && keep_alive == KeepAlive::NOT {
            return Err(LoadError::NoSource { name: entry.name.clone() });
        }
        if entry.is_offered || keep_alive == KeepAlive::NOT {
            entry.keep_alive = keep_alive;
        }
        drop(inner);
        self.0.idle.notify_one();
        Ok(())
    }

    /// Unloads models whose time is over, for as long as it is polled.
    pub(crate) async fn unload_idle(&self) {
        loop {
            let (endings, next) = {
                let mut inner = self.0.lock();
                (inner.expired(Instant::now()), inner.next_expiry())
            };
            self.0.end_idle(endings);
            match next {
                None => self.0.idle.notified().await,
                Some(next) => tokio::select! {
                    () = self.0.idle.notified() => {}
                    () = tokio::time::sleep_until(next.into()) => {}
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_in_go() {
        for (text, want) in [
            ("5m", Some(300.0)),
            ("1h30m", Some(5400.0)),
            ("-1", Some(-1.0)),
            ("0", Some(0.0)),
            ("0s", Some(0.0)),
            ("1.5s", Some(1.5)),
            ("250ms", Some(0.25)),
            ("", None),
            ("5", Some(5.0)),
            ("m", None),
            ("5x", None),
        ] {
            assert_eq!(go_duration(text), want, "{text}");
        }
        assert_eq!("5m".parse(), Ok(KeepAlive::default()));
        assert_eq!("0".parse(), Ok(KeepAlive::NOT));
        assert_eq!("-1s".parse(), Ok(KeepAlive::FOREVER));
        assert_eq!(KeepAlive::from_seconds(1e300), Some(KeepAlive::FOREVER));
        assert_eq!("soon".parse::<KeepAlive>(), Err(NoDuration));
    }

    #[test]
    fn the_longer_time_counts() {
        let [short, long] = [1, 2].map(|n| KeepAlive(Some(Duration::from_secs(n))));
        assert_eq!(short.or_longer(long), long);
        assert_eq!(long.or_longer(short), long);
        assert_eq!(long.or_longer(KeepAlive::FOREVER), KeepAlive::FOREVER);
        assert_eq!(KeepAlive::FOREVER.or_longer(short), KeepAlive::FOREVER);
    }
}
