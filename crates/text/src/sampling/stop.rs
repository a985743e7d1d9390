//! Stop strings: text is held back while it may be the beginning of one, and cut before it.

use super::Error;

/// Watches a stream of text for stop strings, across the borders of its pieces.
///
/// The result does not depend on how the text is cut into pieces: the stop string that is
/// complete first counts, and the longest one if several are complete at the same character.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    out: String,
}

/// The result of one piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOutcome<'a> {
    /// Text that can no longer be part of a stop string.
    pub text: &'a str,
    /// The position in the list of the stop string that was found. The text ends before it.
    pub stop: Option<usize>,
}

impl StopMatcher {
    /// A matcher for any of `stops`; an empty string is an error.
    pub fn new(stops: Vec<String>) -> Result<Self, Error> {
        match stops.iter().position(String::is_empty) {
            Some(idx) => Err(Error::EmptyStop { idx }),
            None => Ok(Self { stops, held: String::new(), out: String::new() }),
        }
    }

    /// The stop string at a position in the list.
    pub fn stop(&self, idx: usize) -> &str {
        &self.stops[idx]
    }

    /// Adds a piece of text. After a stop string was found, nothing more should be added.
    pub fn push(&mut self, text: &str) -> StopOutcome<'_> {
        self.held.push_str(text);
        self.out.clear();
        let found = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(idx, stop)| {
                self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, idx))
            })
            .min();
        if let Some((_, start, idx)) = found {
            self.out.push_str(&self.held[..start]);
            self.held.clear();
            return StopOutcome { text: &self.out, stop: Some(idx) };
        }
        let ready = self.held.len() - self.possible_start_len();
        self.out.push_str(&self.held[..ready]);
        self.held.drain(..ready);
        StopOutcome { text: &self.out, stop: None }
    }

    /// The text still held back, at the end of the stream.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The length of the longest end of the held text that begins a stop string.
    fn possible_start_len(&self) -> usize {
        let held = self.held.as_bytes();
        let longest = |stop: &String| {
            let stop = stop.as_bytes();
            (1..stop.len().min(held.len() + 1)).rev().find(|&n| held.ends_with(&stop[..n]))
        };
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` in pieces of every length; the result must be the same.
    fn check(stops: &[&str], text: &str, want: &str, want_stop: Option<usize>) {
        let chars: Vec<char> = text.chars().collect();
        for piece_len in 1..=chars.len().max(1) {
            let stops = stops.iter().map(ToString::to_string).collect();
            let mut matcher = StopMatcher::new(stops).unwrap();
            let (mut got, mut got_stop) = (String::new(), None);
            for piece in chars.chunks(piece_len) {
                let outcome = matcher.push(&piece.iter().collect::<String>());
                got.push_str(outcome.text);
                if outcome.stop.is_some() {
                    got_stop = outcome.stop;
                    break;
                }
            }
            if got_stop.is_none() {
                got.push_str(&matcher.finish());
            }
            assert_eq!((got.as_str(), got_stop), (want, want_stop), "{text:?} by {piece_len}");
        }
    }

    #[test]
    fn cuts_at_the_first_complete_stop_string() {
        check(&[], "plain text", "plain text", None);
        check(&["END"], "some text END more", "some text ", Some(0));
        check(&["END"], "some ENtext EN", "some ENtext EN", None);
        check(&["aab"], "aaab", "a", Some(0));
        check(&["bcd", "abcde"], "xabcde", "xa", Some(0));
        check(&["b", "ab"], "xab", "x", Some(1));
        check(&["\n\nUser:", "\n\n\n"], "hi\n\n\nUser:", "hi", Some(1));
        check(&["日本"], "日曜は日本", "日曜は", Some(0));
    }

    #[test]
    fn holds_back_only_what_may_become_a_stop_string() {
        let mut matcher = StopMatcher::new(vec!["</s>".to_owned()]).unwrap();
        assert_eq!(matcher.push("a<"), StopOutcome { text: "a", stop: None });
        assert_eq!(matcher.push("b</"), StopOutcome { text: "<b", stop: None });
        assert_eq!(matcher.push("s>c"), StopOutcome { text: "", stop: Some(0) });
        let error = StopMatcher::new(vec!["x".to_owned(), String::new()]).unwrap_err();
        assert_eq!(error, Error::EmptyStop { idx: 1 });
    }
}
