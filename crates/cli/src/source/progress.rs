//! Progress bars of downloads and long measurements.
//!
//! A bar is drawn on standard error and only when that is a terminal; otherwise every call does
//! nothing. The module does not know what is being counted.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::screen::{line_signs, stderr_is_terminal};

/// A progress bar, or nothing where nobody would see it.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar that counts bytes; a spinner when `total` is not known.
    pub(crate) fn bytes(label: &str, total: Option<u64>) -> Self {
        Self::new(label, total, bytes_template(total))
    }

    /// A bar that counts steps; the caller may append text with [`Progress::note`].
    pub(crate) fn steps(label: &str, total: u64) -> Self {
        Self::new(label, Some(total), "{prefix} [{bar:30}] {pos}/{len} eta {eta} {msg}")
    }

    fn new(label: &str, total: Option<u64>, template: &str) -> Self {
        let target = if stderr_is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        Self::on(target, label, total, template)
    }

    fn on(target: ProgressDrawTarget, label: &str, total: Option<u64>, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(total, target);
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        bar.set_style(style);
        bar.set_prefix(line_signs(label));
        bar.set_message(line_signs(label));
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
    pub(crate) fn note(&self, text: &str) {
        self.bar.set_message(line_signs(text));
    }

    /// Removes the bar.
    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}

/// A long label is cut and not the numbers, which a terminal would otherwise cut off at its edge.
fn bytes_template(total: Option<u64>) -> &'static str {
    match total {
        Some(_) => "{wide_msg} [{bar:20}] {bytes}/{total_bytes} {binary_bytes_per_sec} eta {eta}",
        None => "{wide_msg} {spinner} {bytes} {binary_bytes_per_sec}",
    }
}

impl Drop for Progress {
    /// An error on the way leaves no half-drawn bar behind.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::io;
    use std::sync::{Arc, Mutex};

    /// A terminal of 80 columns that keeps what is written.
    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl Screen {
        fn put(&self, text: &str) -> io::Result<()> {
            self.0.lock().expect("the text").push_str(text);
            Ok(())
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.put(&format!("{text}\n"))
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.put(text)
        }
        fn clear_line(&self) -> io::Result<()> {
            self.put("\n")
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn labels_leave_room_for_the_rate_and_are_text() {
        let label = format!("pulling {}", "llm-package==0.1.2/member/".repeat(5));
        for (total, numbers) in [(Some(1 << 30), "/1.00 GiB "), (None, "512.00 MiB ")] {
            let screen = Screen::default();
            let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
            let progress = Progress::on(target, &label, total, bytes_template(total));
            progress.set(1 << 29);
            progress.bar.force_draw();
            let text = screen.0.lock().expect("the text").clone();
            let line = text.lines().rfind(|line| line.contains("pulling llm")).expect("a line");
            assert!(line.contains(numbers) && line.contains("/s"), "{line}");
            assert!(line.trim_end().chars().count() <= 80, "{line}");
        }
        let screen = Screen::default();
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let progress = Progress::on(target, "a\x1b]0;t\x07\n\u{202e}", Some(1), "{prefix} {msg}");
        progress.note("b\x1b[8m");
        progress.bar.force_draw();
        let text = screen.0.lock().expect("the text").clone();
        assert!(text.contains("a␛]0;t␇␊<U+202E> b␛[8m"), "{text:?}");
    }
}
