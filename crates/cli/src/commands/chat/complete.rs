//! Completion by Tab: commands and their arguments, files, and the names of models.

use std::fs;
use std::path::is_separator;

use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};

use super::command;
use super::conversation::path;
use super::settings::{PARAMETERS, SETTINGS};
use super::show::TOPICS;
use crate::screen::line_signs;

/// The completer of the line editor.
pub(super) struct Completion {
    models: Vec<String>,
}

impl Completion {
    /// With these names of models.
    pub(super) fn new(models: Vec<String>) -> Self {
        Self { models: models.into_iter().filter(|name| line_signs(name) == *name).collect() }
    }

    /// The candidates for the end of `text`, and the offset at which they begin.
    fn candidates(&self, text: &str) -> (usize, Vec<Pair>) {
        let Some(end) = text.find(char::is_whitespace) else {
            return match text.starts_with('/') {
                true => (0, words(command::names(), text)),
                false => (text.len(), Vec::new()),
            };
        };
        let rest = text[end..].trim_start();
        let start = text.len() - rest.len();
        let (argument, _) = command::split(rest);
        let value = rest[argument.len()..].trim_start();
        match &text[..end] {
            "/save" | "/load" => files(rest, start),
            "/model" => {
                let names = words(self.models.iter().map(String::as_str), rest);
                if names.is_empty() { files(rest, start) } else { (start, names) }
            }
            "/show" => (start, words(TOPICS.iter().copied(), rest)),
            "/set" if argument.len() == rest.len() => {
                (start, words(SETTINGS.iter().copied(), rest))
            }
            "/set" => {
                let start = text.len() - value.len();
                let found = match argument {
                    "parameter" => words(PARAMETERS.iter().map(|p| p.name), value),
                    "format" => words(["json"].into_iter(), value),
                    "markdown" => words(["auto", "on", "off"].into_iter(), value),
                    _ => Vec::new(),
                };
                (start, found)
            }
            _ => (text.len(), Vec::new()),
        }
    }
}

fn pair(display: String, replacement: String) -> Pair {
    Pair { display, replacement }
}

/// The words that begin with `typed`, each once.
fn words<'w>(all: impl Iterator<Item = &'w str>, typed: &str) -> Vec<Pair> {
    let mut found: Vec<&str> = all.filter(|word| word.starts_with(typed)).collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(|word| pair(word.to_owned(), word.to_owned())).collect()
}

/// The files and folders whose paths begin with `typed`, which begins at `start`. Hidden ones are found by
/// their dot.
fn files(typed: &str, start: usize) -> (usize, Vec<Pair>) {
    let name_at = typed.rfind(is_separator).map_or(0, |at| at + 1);
    let (folder, begin) = typed.split_at(name_at);
    let folder = if folder.is_empty() { "." } else { folder };
    let Ok(entries) = fs::read_dir(path(folder)) else { return (start, Vec::new()) };
    let named = entries.flatten().filter_map(|entry| {
        // A name that a terminal would obey is not put into the line.
        let name = entry.file_name().into_string().ok().filter(|name| line_signs(name) == *name)?;
        let is_hidden = name.starts_with('.') && !begin.starts_with('.');
        let is_folder = entry.path().is_dir();
        (name.starts_with(begin) && !is_hidden).then(|| if is_folder { name + "/" } else { name })
    });
    let mut names: Vec<String> = named.collect();
    names.sort_unstable();
    let pairs = names.into_iter().map(|name| pair(name.clone(), name)).collect();
    (start + name_at, pairs)
}

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        Ok(self.candidates(&line[..pos]))
    }
}

impl Hinter for Completion {
    type Hint = String;
}

impl Highlighter for Completion {}
impl Validator for Completion {}
impl Helper for Completion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_arguments_and_files_are_completed() {
        let completion = Completion::new(vec!["smollm2".to_owned(), "qwen3:4b".to_owned()]);
        let check = |text: &str, at: usize, want: &[&str]| {
            let (start, found) = completion.candidates(text);
            let found: Vec<_> = found.iter().map(|pair| pair.replacement.as_str()).collect();
            assert_eq!(found, want, "{text:?}");
            if !want.is_empty() {
                assert_eq!(start, at, "{text:?}");
            }
        };
        check("/s", 0, &["/save", "/set", "/show", "/system"]);
        check("/re", 0, &["/reset", "/retry"]);
        check("hello", 0, &[]);
        check("what is /s", 0, &[]);
        check("/set ", 5, &{
            let mut all = SETTINGS.to_vec();
            all.sort_unstable();
            all
        });
        check("/set par", 5, &["parameter"]);
        check("/set parameter top", 15, &["top_k", "top_n_sigma", "top_p"]);
        check("/set format ", 12, &["json"]);
        check("/set markdown o", 14, &["off", "on"]);
        check("/set system t", 12, &[]);
        check("/show sy", 6, &["system"]);
        check("/model qw", 7, &["qwen3:4b"]);
        let temp = tempfile::tempdir().expect("a directory");
        for name in ["a b.json", "ab.json", "a\x1b[8m.json", ".hidden", "c.json"] {
            fs::write(temp.path().join(name), "").expect("write");
        }
        fs::create_dir(temp.path().join("ax")).expect("a directory");
        let dir = format!("{}/", temp.path().display());
        let check_files = |command: &str, begin: &str, want: &[&str]| {
            check(&format!("{command} {dir}{begin}"), command.len() + 1 + dir.len(), want);
        };
        check_files("/load", "a", &["a b.json", "ab.json", "ax/"]);
        check_files("/save", "a b", &["a b.json"]);
        check_files("/save", "", &["a b.json", "ab.json", "ax/", "c.json"]);
        check_files("/load", ".h", &[".hidden"]);
        check_files("/model", "c", &["c.json"]);
        check("/load /no/such/folder/", 0, &[]);
    }
}
