//! HTTP by hand over TCP, for clients that do what a library would not: half requests, endless
//! bodies, silence.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a server may be silent.
const READ_LIMIT: Duration = Duration::from_secs(120);
/// The maximum number of bytes of an answer that are kept.
const ANSWER_BYTES: usize = 1 << 20;

/// A connection to the server on a port of 127.0.0.1.
pub(super) fn connect(port: u16) -> Result<TcpStream> {
    limited(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connect")?)
}

/// As [`connect`], from another address of this machine: all of 127.0.0.0/8 are on Linux.
#[cfg(target_os = "linux")]
pub(super) fn connect_from(client: Ipv4Addr, port: u16) -> Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    use std::net::SocketAddrV4;

    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddrV4::new(client, 0))?;
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).context("connect")?;
    limited(TcpStream::from(socket))
}

/// A connection from another address of this machine.
#[cfg(not(target_os = "linux"))]
pub(super) fn connect_from(_: Ipv4Addr, _: u16) -> Result<TcpStream> {
    bail!("this system has one loopback address")
}

/// A connection whose reads and writes end.
fn limited(stream: TcpStream) -> Result<TcpStream> {
    stream.set_read_timeout(Some(READ_LIMIT))?;
    stream.set_write_timeout(Some(READ_LIMIT))?;
    Ok(stream)
}

/// The head of a request whose body is JSON of this many bytes, or comes in chunks.
pub(super) fn head(path: &str, body_bytes: Option<usize>) -> String {
    let length = match body_bytes {
        Some(n) => format!("Content-Length: {n}"),
        None => "Transfer-Encoding: chunked".to_owned(),
    };
    format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Connection: close\r\n{length}\r\n\r\n"
    )
}

/// Sends all parts, as far as the server takes them: one that refuses a request may close the
/// connection before it has all of it.
pub(super) fn send_all(stream: &mut TcpStream, parts: &[&[u8]]) -> io::Result<()> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    match parts.iter().try_for_each(|part| stream.write_all(part)) {
        Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset) => Ok(()),
        sent => sent,
    }
}

/// Sends a whole request.
pub(super) fn post(port: u16, path: &str, body: &[u8]) -> Result<TcpStream> {
    let mut stream = connect(port)?;
    stream.write_all(head(path, Some(body.len())).as_bytes())?;
    stream.write_all(body)?;
    Ok(stream)
}

/// An answer's status and the beginning of its body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
}

/// Reads an answer to its end; `None` when the server closed the connection without one.
pub(super) fn answer(stream: &mut impl Read) -> Result<Option<Answer>> {
    let mut bytes = Vec::new();
    let mut part = vec![0; 16 << 10];
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(n) if bytes.len() < ANSWER_BYTES => bytes.extend_from_slice(&part[..n]),
            Ok(_) => {}
            // A server that does not read a body to its end resets the connection when it closes.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error).context("read the answer"),
        }
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    match status.and_then(|digits| digits.parse().ok()) {
        Some(status) => Ok(Some(Answer { status, body: body.to_owned() })),
        None => bail!("no answer of HTTP/1: {:?}", head.chars().take(60).collect::<String>()),
    }
}

/// Sends a body of `n_bytes` blanks, whole or in chunks, until all is sent or the server answers or
/// closes the connection. Returns the answer and how many bytes went out.
pub(super) fn flood(
    port: u16,
    path: &str,
    n_bytes: usize,
    chunked: bool,
) -> Result<(Option<Answer>, usize)> {
    let mut stream = connect(port)?;
    let mut reader = stream.try_clone()?;
    // The answer is read while the body is sent: a reset after it would take it away.
    let reading = thread::spawn(move || answer(&mut reader));
    stream.write_all(head(path, (!chunked).then_some(n_bytes)).as_bytes())?;
    let part = vec![b' '; 64 << 10];
    let mut sent = 0;
    while sent < n_bytes && !reading.is_finished() {
        let part = &part[..part.len().min(n_bytes - sent)];
        let written = if chunked {
            let chunk = [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
            stream.write_all(&chunk)
        } else {
            stream.write_all(part)
        };
        // A server that had enough closes the connection.
        if written.is_err() {
            break;
        }
        sent += part.len();
    }
    if chunked && sent == n_bytes {
        // As above: the server may be gone.
        let _ = stream.write_all(b"0\r\n\r\n");
    }
    let answer = match reading.join() {
        Ok(answer) => answer?,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    Ok((answer, sent))
}

/// Makes the system hold little of what the server sends, so that the server meets a full
/// connection.
#[cfg(unix)]
pub(super) fn narrow(stream: &TcpStream) -> Result<()> {
    Ok(rustix::net::sockopt::set_socket_recv_buffer_size(stream, 1024)?)
}

/// Makes the system hold little of what the server sends.
#[cfg(not(unix))]
pub(super) fn narrow(_: &TcpStream) -> Result<()> {
    bail!("this system's buffers cannot be set")
}

/// Reads a few bytes and waits, repeatedly, for this long; then reads all at once. Returns
/// everything that came.
pub(super) fn read_slowly(stream: &mut TcpStream, time: Duration) -> io::Result<Vec<u8>> {
    let start = Instant::now();
    let mut bytes = Vec::new();
    let mut part = [0; 64];
    while start.elapsed() < time {
        let n = stream.read(&mut part)?;
        bytes.extend_from_slice(&part[..n]);
        if n == 0 {
            return Ok(bytes);
        }
        thread::sleep(Duration::from_millis(100));
    }
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Closes a connection in both directions, as a client that is gone.
pub(super) fn leave(stream: &TcpStream) {
    // The server may have closed it already.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Lets this process, and the servers it starts, have as many connections as the system permits.
pub(super) fn allow_connections(n: u64) -> Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        anyhow::ensure!(
            limit.maximum.is_none_or(|maximum| maximum >= n),
            "the system permits {:?} open files, {n} are needed",
            limit.maximum
        );
        setrlimit(Resource::Nofile, limit)?;
    }
    #[cfg(not(unix))]
    {
        // Connections are not files there.
        let _ = n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_to_their_end() {
        let check = |bytes: &str, want: Option<(u16, &str)>| {
            let got = answer(&mut bytes.as_bytes()).unwrap();
            let want = want.map(|(status, body)| Answer { status, body: body.to_owned() });
            assert_eq!(got, want, "{bytes:?}");
        };
        check("", None);
        check("HTTP/1.1 413 Payload Too Large\r\nA: b\r\n\r\nlarge", Some((413, "large")));
        check("HTTP/1.0 400\r\n\r\n", Some((400, "")));
        assert!(answer(&mut &b"hello"[..]).is_err());
    }

    #[test]
    fn heads_tell_how_the_body_comes() {
        assert!(head("/x", Some(7)).starts_with("POST /x HTTP/1.1\r\n"));
        assert!(head("/x", Some(7)).ends_with("\r\nContent-Length: 7\r\n\r\n"));
        assert!(head("/x", None).ends_with("\r\nTransfer-Encoding: chunked\r\n\r\n"));
    }
}
