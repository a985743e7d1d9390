//! Progress bars of downloads and long measurements.
//!
//! A bar is drawn on standard error and only when that is a terminal; otherwise every call does
//! nothing. The module does not know what is being counted.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar, or nothing where nobody would see it.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar that counts bytes; a spinner when `total` is not known.
    pub(crate) fn bytes(label: &str, total: Option<u64>) -> Self {
        let template = match total {
            Some(_) => "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} eta {eta}",
            None => "{msg} {spinner} {bytes} {binary_bytes_per_sec}",
        };
        Self::new(label, total, template)
    }

    /// A bar that counts steps; the caller may append text with [`Progress::note`].
    pub(crate) fn steps(label: &str, total: u64) -> Self {
        Self::new(label, Some(total), "{prefix} [{bar:30}] {pos}/{len} eta {eta} {msg}")
    }

    fn new(label: &str, total: Option<u64>, template: &str) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(total, target);
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        bar.set_style(style);
        bar.set_prefix(label.to_owned());
        bar.set_message(label.to_owned());
        if total.is_none() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Self { bar }
    }

    /// Adds `n` to the position.
    pub(crate) fn add(&self, n: u64) {
        self.bar.inc(n);
    }

    /// Sets the position; a known total is never passed, so that an estimate may be one.
    pub(crate) fn set(&self, n: u64) {
        self.bar.set_position(self.bar.length().map_or(n, |total| n.min(total)));
    }

    /// Changes the total, for a length that is learned late.
    pub(crate) fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Shows text after the bar of [`Progress::steps`].
    pub(crate) fn note(&self, text: String) {
        self.bar.set_message(text);
    }

    /// Removes the bar.
    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    /// An error on the way leaves no half-drawn bar behind.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
