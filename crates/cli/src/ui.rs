//! What the program prints besides its results: errors, notes, logging, colour.
//!
//! Results go to standard output through [`out`]; everything here goes to standard error.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::log;
use crate::screen::{self, Stdout, Styled, line_signs};
use crate::status;

/// When to colour messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    pub(crate) fn for_clap(self) -> clap::ColorChoice {
        match self {
            Self::Auto => clap::ColorChoice::Auto,
            Self::Always => clap::ColorChoice::Always,
            Self::Never => clap::ColorChoice::Never,
        }
    }

    fn enabled_for(self, is_terminal: bool) -> bool {
        match self {
            Self::Always => {
                // Colours are wished for where they cannot be shown, too.
                status::reads_escapes();
                true
            }
            Self::Never => false,
            Self::Auto => {
                let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
                status::is_capable(is_terminal) && !no_color
            }
        }
    }
}

static COLORED: OnceLock<bool> = OnceLock::new();
static STDOUT_COLORED: OnceLock<bool> = OnceLock::new();

/// Decides once whether messages and drawn answers are coloured.
pub(crate) fn init(color: Color) {
    COLORED.get_or_init(|| color.enabled_for(screen::stderr_is_terminal()));
    STDOUT_COLORED.get_or_init(|| color.enabled_for(screen::stdout_is_terminal()));
}

/// Whether what is drawn on standard output may have colours.
pub(crate) fn has_color_on_stdout() -> bool {
    *STDOUT_COLORED.get_or_init(|| Color::Auto.enabled_for(screen::stdout_is_terminal()))
}

fn colored() -> bool {
    *COLORED.get_or_init(|| Color::Auto.enabled_for(screen::stderr_is_terminal()))
}

/// Looks for `--color` before the arguments are parsed, because parsing prints help and usage
/// errors. A wrong value is reported by the parser.
pub(crate) fn requested_color(args: impl Iterator<Item = OsString>) -> Color {
    let args: Vec<OsString> = args.take_while(|arg| arg != "--").collect();
    let mut color = Color::Auto;
    for (i, arg) in args.iter().enumerate() {
        let Some(arg) = arg.to_str() else { continue };
        let value = match arg.strip_prefix("--color") {
            Some("") => args.get(i + 1).and_then(|next| next.to_str()),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        if let Some(value) = value
            && let Ok(value) = Color::from_str(value, false)
        {
            color = value;
        }
    }
    color
}

/// Sends log records to standard error: warnings, with `-v` what is done, with `-vv` the details.
/// `RUST_LOG` overrides this.
pub(crate) fn init_logging(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        1 => "realizar=info,realizar_runtime=info,realizar_formats=info,warn",
        2 => "realizar=debug,realizar_runtime=debug,realizar_formats=debug,info",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(log::Records)
        // What a writer that fails would be told by is a line on standard error.
        .log_internal_errors(false)
        .with_ansi(colored())
        .with_target(verbose > 1)
        .init();
}

/// An error in how the program was called that the argument parser cannot see; exit code 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// A [`UsageError`] with this text.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(UsageError(text.into()))
}

/// Prints an error with its causes on one line and returns the exit code. A reader that went away
/// is not an error.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let mut line = Styled::default();
    put(&mut line, "1;31", "error:");
    line.text(&format!(" {}\n", one_line(error)));
    styled(&line);
    if error.is::<UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// The chain of causes joined by `: `. A cause that the text before it already ends with is left
/// out, and control characters are spaces.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    let words: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Another error of Windows for the same, which the standard library has no kind for.
const PIPE_NOT_CONNECTED: i32 = 233;

/// True when the reader of standard output went away.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = |e: &io::Error| {
            e.kind() == io::ErrorKind::BrokenPipe
                || cfg!(windows) && e.raw_os_error() == Some(PIPE_NOT_CONNECTED)
        };
        cause.downcast_ref::<io::Error>().is_some_and(kind)
            || cause
                .downcast_ref::<serde_json::Error>()
                .is_some_and(|e| e.io_error_kind() == Some(io::ErrorKind::BrokenPipe))
    })
}

/// One line on standard error, if it can be written.
pub(crate) fn note(text: &str) {
    status::clear();
    let _ = screen::stderr().write_all(format!("{text}\n").as_bytes());
}

/// A dim line on standard error, for timings.
pub(crate) fn dim(text: &str) {
    if !colored() {
        return note(text);
    }
    let mut line = Styled::default();
    put(&mut line, "2", text);
    line.text("\n");
    styled(&line);
}

/// A line on standard error that somebody is asked about: no attribute of text before it hides it.
pub(crate) fn reset_note(text: &str) {
    let mut line = Styled::default();
    if status::is_capable(screen::stderr_is_terminal()) {
        line.style("0");
    }
    line.text(&format!("{text}\n"));
    styled(&line);
}

/// Resets all attributes of text on standard output, if it is a terminal that has any.
pub(crate) fn reset() -> Result<()> {
    if status::is_capable(screen::stdout_is_terminal()) {
        let mut styled = Styled::default();
        styled.style("0");
        let mut out = out();
        out.styled(&styled)?;
        out.flush()?;
    }
    Ok(())
}

/// Adds a text in a style to what goes to standard error, if that is coloured.
fn put(line: &mut Styled, codes: &str, text: &str) {
    if colored() {
        line.style(codes);
        line.text(text);
        line.style("0");
    } else {
        line.text(text);
    }
}

fn styled(line: &Styled) {
    status::clear();
    let _ = screen::stderr().styled(line);
}

/// Prints help, or what is wrong with the arguments, as the argument parser words it, and returns the exit code.
pub(crate) fn report_usage(error: &clap::Error) -> ExitCode {
    let text = error.render();
    let has_color = if error.use_stderr() { colored() } else { has_color_on_stdout() };
    let text = if has_color { text.ansi().to_string() } else { text.to_string() };
    // Nobody reads a stream that is closed.
    let _ = if error.use_stderr() {
        screen::stderr().formatted(text.as_bytes())
    } else {
        let mut out = out();
        out.formatted(text.as_bytes()).and_then(|()| out.flush())
    };
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Buffered standard output.
pub(crate) fn out() -> Stdout {
    screen::stdout()
}

/// One line on standard output, at once.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = out();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// One JSON value and a line feed on standard output.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let mut out = out();
    serde_json::to_writer(&mut out, value).context("cannot write JSON")?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

/// A count as people read it: 134.52 M.
pub(crate) fn count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.2} K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

/// Cells with more characters than this stick out of their column instead of widening it.
const MAX_COLUMN: usize = 128;

/// Prints rows in columns as wide as their widest cell, up to [`MAX_COLUMN`]; `right` marks the
/// columns of numbers. Cells are lines of [signs](line_signs). The padding is not left to `format!`, whose widths end at
/// 65535.
pub(crate) fn table(out: &mut impl Write, rows: &[Vec<String>], right: &[usize]) -> Result<()> {
    let signs = |row: &Vec<String>| row.iter().map(|cell| line_signs(cell)).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = rows.iter().map(signs).collect();
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.filter(|&n| n <= MAX_COLUMN).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..n_columns).map(width).collect();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            if right.contains(&column) {
                line.push_str(&padding);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                if column + 1 < row.len() {
                    line.push_str(&padding);
                }
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn errors_are_one_line() {
        for (error, want) in [
            (anyhow!("a"), "a"),
            (anyhow!("b\nc").context("a"), "a: b c"),
            (anyhow!("b").context("a: b"), "a: b"),
            (anyhow!("b\u{1b}[31mx"), "b [31mx"),
        ] {
            assert_eq!(one_line(&error), want);
        }
        let pipe = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe)).context("x");
        assert!(is_broken_pipe(&pipe) && !is_broken_pipe(&anyhow!("x")));
    }

    #[test]
    fn color_is_found_before_parsing() {
        let check = |args: &[&str], want: Color| {
            assert_eq!(requested_color(args.iter().map(OsString::from)), want, "{args:?}");
        };
        check(&["run", "m"], Color::Auto);
        check(&["--color", "never", "run"], Color::Never);
        check(&["run", "--color=always"], Color::Always);
        check(&["run", "--", "--color=always"], Color::Auto);
        check(&["--color=loud"], Color::Auto);
    }

    #[test]
    fn counts_and_tables() {
        for (n, want) in [(7, "7"), (134_515_008, "134.52 M"), (1_500_000_000, "1.50 B")] {
            assert_eq!(count(n), want);
        }
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["bcd".to_owned(), "22".to_owned()]];
        let print = |rows: &[Vec<String>], right: &[usize]| {
            let mut text = Vec::new();
            table(&mut text, rows, right).expect("table");
            String::from_utf8(text).expect("text")
        };
        assert_eq!(print(&rows, &[1]), "a     1\nbcd  22\n");
        // A cell wider than a format width can be, at the end and within a row.
        let long = "x".repeat(70_000);
        let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        let rows = [row("a", &long), row("bc", "d")];
        for right in [&[][..], &[1]] {
            assert_eq!(print(&rows, right), format!("a   {long}\nbc  d\n"));
        }
        assert_eq!(print(&[row(&long, "1"), row("bc", "2")], &[]), format!("{long}  1\nbc  2\n"));
    }
}
