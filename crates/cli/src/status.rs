//! A line on standard error that says what the program is doing while nothing else is printed.
//!
//! It is drawn only where standard error is a terminal, only after a moment, and is gone when the
//! work is done. Whatever else writes to the terminal calls [`clear`] first.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unicode_width::UnicodeWidthChar;

use crate::screen::{self, Styled, line_signs};

/// What takes less time is not announced.
const DELAY: Duration = Duration::from_millis(500);
/// How often the line is drawn again.
const INTERVAL: Duration = Duration::from_millis(120);
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];
/// Columns of a terminal that does not report its width.
const COLUMNS: usize = 80;

/// Whether the line is on the terminal; held while anything is written about it.
static DRAWN: Mutex<bool> = Mutex::new(false);

/// The line, until it is dropped.
pub(crate) struct Status {
    thread: Option<(SyncSender<()>, JoinHandle<()>)>,
}

impl Status {
    /// Shows `text`, which gets the time for which the work has been running.
    pub(crate) fn show(text: impl Fn(Duration) -> String + Send + 'static) -> Self {
        if !is_capable(screen::stderr_is_terminal()) {
            return Self { thread: None };
        }
        let (stop, stopped) = sync_channel::<()>(0);
        let draw = move || {
            let start = Instant::now();
            let mut wait = DELAY;
            for frame in SPINNER.into_iter().cycle() {
                match stopped.recv_timeout(wait) {
                    Err(RecvTimeoutError::Timeout) => {
                        draw(&format!("{frame} {}", text(start.elapsed())));
                    }
                    _ => break,
                }
                wait = INTERVAL;
            }
            clear();
        };
        let thread = std::thread::Builder::new().name("status".to_owned()).spawn(draw);
        // Without a thread the work continues unannounced.
        Self { thread: thread.ok().map(|thread| (stop, thread)) }
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // A thread that panicked has drawn nothing more.
            let _ = thread.join();
        }
    }
}

/// The line while a prompt is read.
pub(crate) struct Reading {
    status: Option<Status>,
    at: Arc<Mutex<Progress>>,
}

#[derive(Debug, Default)]
struct Progress {
    done: usize,
    first: Option<(usize, Instant)>, // what was done when the first part was
    last: Option<Instant>,
}

impl Reading {
    /// For a prompt of this many tokens.
    pub(crate) fn show(total: usize) -> Self {
        let at: Arc<Mutex<Progress>> = Arc::default();
        let shown = at.clone();
        let status = Status::show(move |time| {
            shown.lock().unwrap_or_else(PoisonError::into_inner).text(total, time)
        });
        Self { status: Some(status), at }
    }

    /// So many tokens are done.
    pub(crate) fn set(&mut self, done: usize) {
        let now = Instant::now();
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.first.get_or_insert((done, now));
        (at.done, at.last) = (done, Some(now));
    }

    /// The prompt is read.
    pub(crate) fn done(&mut self) {
        self.status = None;
    }
}

impl Progress {
    fn text(&self, total: usize, time: Duration) -> String {
        let mut text = match self.done {
            0 => format!("prefill: {total} tokens"),
            done => format!("prefill: {done} of {total} tokens"),
        };
        // What a cache had of it is in the first part, which therefore has no rate.
        if let (Some((done, first)), Some(last)) = (self.first, self.last)
            && last > first
        {
            let rate = (self.done - done) as f64 / (last - first).as_secs_f64();
            text.push_str(&format!(", {rate:.0} tok/s"));
        }
        text + &format!(", {:.0} s", time.as_secs_f64())
    }
}

/// Removes the line from the terminal, if it is shown; it reappears when it is drawn next.
pub(crate) fn clear() {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    if std::mem::take(&mut *drawn) {
        let mut styled = Styled::default();
        styled.clear_line();
        let _ = screen::stderr().styled(&styled);
    }
}

/// Whether a stream that is a terminal, or is not, understands more than text.
pub(crate) fn is_capable(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("TERM").is_none_or(|term| term != "dumb") && reads_escapes()
}

/// Whether terminals read escape sequences. The console of Windows does once it is told to, which this
/// does; where it cannot be, or standard output is no console, it prints them.
pub(crate) fn reads_escapes() -> bool {
    static READS: LazyLock<bool> =
        LazyLock::new(|| anstyle_query::windows::enable_ansi_colors().unwrap_or(true));
    *READS
}

/// Columns of the terminal.
pub(crate) fn columns() -> usize {
    terminal_size::terminal_size().map_or(COLUMNS, |(width, _)| usize::from(width.0).max(1))
}

fn draw(text: &str) {
    // A line that reaches the edge would wrap and could not be taken back.
    let text = line_signs(text);
    let mut styled = Styled::default();
    styled.clear_line();
    styled.text(cut(&text, columns().saturating_sub(1)));
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    *drawn = screen::stderr().styled(&styled).is_ok();
}

/// The beginning of `text` that fits `columns`.
fn cut(text: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > columns {
            return &text[..at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_a_rate_from_its_second_part() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut at = Progress::default();
        assert_eq!(at.text(900, second), "prefill: 900 tokens, 1 s");
        (at.done, at.first, at.last) = (256, Some((256, start)), Some(start));
        assert_eq!(at.text(900, second), "prefill: 256 of 900 tokens, 1 s");
        (at.done, at.last) = (768, Some(start + second * 2));
        let want = "prefill: 768 of 900 tokens, 256 tok/s, 4 s";
        assert_eq!(at.text(900, second * 4), want);
    }

    #[test]
    fn a_line_is_cut_by_columns() {
        for (columns, want) in [(9, "ab漢字c"), (7, "ab漢字c"), (6, "ab漢字"), (5, "ab漢"), (0, "")]
        {
            assert_eq!(cut("ab漢字c", columns), want, "{columns}");
        }
    }
}
