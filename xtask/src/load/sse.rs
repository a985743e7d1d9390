//! Server-sent events: the data of each event of a stream, as the WHATWG's HTML standard has them.

use std::io::{self, BufRead};

/// The data of each event, in order. An event without its empty line at the end is dropped.
pub(super) struct Events<R> {
    source: R,
    line: Vec<u8>,
}

impl<R: BufRead> Events<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, line: Vec::new() }
    }

    /// The next event's data; `None` at the end.
    fn event(&mut self) -> io::Result<Option<String>> {
        let mut data: Option<String> = None;
        loop {
            self.line.clear();
            if self.source.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                if data.is_some() {
                    return Ok(data);
                }
                continue;
            }
            // Comments and the other fields carry nothing that is measured.
            let Some(rest) = line.strip_prefix(b"data") else { continue };
            let rest = match rest {
                [] => rest,
                [b':', b' ', rest @ ..] | [b':', rest @ ..] => rest,
                _ => continue,
            };
            let rest = std::str::from_utf8(rest).map_err(io::Error::other)?;
            data = Some(match data {
                Some(before) => before + "\n" + rest,
                None => rest.to_owned(),
            });
        }
    }
}

impl<R: BufRead> Iterator for Events<R> {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.event().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_events() {
        let check = |text: &str, want: &[&str]| {
            let got: Vec<String> = Events::new(text.as_bytes()).map(Result::unwrap).collect();
            assert_eq!(got, want, "{text:?}");
        };
        check("", &[]);
        check("data: a\n\ndata: b\n\n", &["a", "b"]);
        check("data: a\r\n\r\ndata:b\r\n\r\n", &["a", "b"]);
        check(": ping\n\nevent: x\nid: 7\ndata: a\n\n", &["a"]);
        check("data: a\ndata:\ndata:  b\n\n", &["a\n\n b"]);
        check("data\n\ndatum: no\n\n", &[""]);
        check("data: {\"t\": \"é\"}\n\ndata: cut", &["{\"t\": \"é\"}"]);
        let odd = Events::new(&b"data: \xff\n\n"[..]).next();
        assert!(odd.is_some_and(|event| event.is_err()));
    }
}
