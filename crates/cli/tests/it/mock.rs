//! A web server for tests: answers each request by a function of its head, one after the other.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// A server of this machine; it ends with the program.
pub(crate) struct Mock {
    pub(crate) origin: String,
    heads: Arc<Mutex<Vec<String>>>,
}

/// What a request is answered with, given its path and its whole head in lower case.
type Answer = dyn Fn(&str, &str) -> Vec<u8> + Send;

impl Mock {
    pub(crate) fn start(answer: impl Fn(&str, &str) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        let heads = Arc::default();
        let (seen, answer): (_, Box<Answer>) = (Arc::clone(&heads), Box::new(answer));
        std::thread::spawn(move || serve(&listener, &seen, &*answer));
        Self { origin, heads }
    }

    /// The heads of all requests so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("heads").clone()
    }
}

fn serve(listener: &TcpListener, heads: &Mutex<Vec<String>>, answer: &Answer) {
    for stream in listener.incoming() {
        let mut stream = stream.expect("accept");
        let mut reader = BufReader::new(stream.try_clone().expect("clone"));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                break;
            }
        }
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let head = head.to_ascii_lowercase();
        let bytes = answer(&path, &head);
        heads.lock().expect("heads").push(head);
        // A client that has read enough may be gone.
        let _ = stream.write_all(&bytes);
    }
}

/// An answer with a body.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !headers.iter().any(|(name, _)| *name == "Content-Length") {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
