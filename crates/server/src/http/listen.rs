//! Connections: the loop that accepts them, how many there may be, how long they may take, and TLS.
//! What is answered on them is not decided here.

use crate::config::{ConnectionLimits, ServerConfig};
use crate::error::Error;
use crate::http::peers::{Addresses, Peer, Place};
use crate::http::tls::Tls;
use crate::ignored::Logged;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use futures_util::future::{Either, Ready, ready};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ipnet::IpNet;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, Sleep, interval, sleep, timeout};
use tower_http::add_extension::AddExtension;

/// Connections beyond the limit that may be open: they get their answer, and probes theirs. With further ones
/// the oldest of these is closed.
const REFUSALS: usize = 64;
/// How long a connection that is refused may take.
const REFUSAL_TIME: Duration = Duration::from_secs(5);
/// How long nothing is accepted after the system refused to, mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// The longest head of a request in bytes; a longer one is answered with status 431.
const HEAD_BYTES: usize = 64 << 10;
/// The shortest time between two looks at the files of TLS.
const MIN_RENEWAL: Duration = Duration::from_millis(1);
/// Longer times are taken as this one, so that sums of times have no end that cannot be told.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// An address that is listened on.
#[derive(Debug)]
pub(crate) struct Listener {
    tcp: TcpListener,
    address: SocketAddr,
    limits: ConnectionLimits,
    tls: Option<Tls>,
}

impl Listener {
    /// Begins to listen.
    ///
    /// # Errors
    /// If a file for TLS cannot be used, or the address cannot be listened on.
    pub(crate) async fn bind(config: &ServerConfig) -> Result<Self, Error> {
        let tls = config.tls.as_ref().map(Tls::new).transpose()?;
        let (host, port) = (config.host.as_str(), config.port);
        let failed = |source| Error::Bind { address: format!("{host}:{port}"), source };
        let tcp = TcpListener::bind((host, port)).await.map_err(failed)?;
        let address = tcp.local_addr().map_err(failed)?;
        Ok(Self { tcp, address, limits: config.connections.clone(), tls })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves connections with `app`, and those beyond the limit with `full`, until `stop` is true.
    /// Then nothing more is accepted, connections end with the answer that they are at, and this
    /// ends with the last of them. Dropping the future drops the connections.
    pub(crate) async fn serve(self, app: Router, full: Router, mut stop: watch::Receiver<bool>) {
        let Self { tcp, limits, tls, .. } = self;
        let idle_timeout = limits.idle_timeout.min(MAX_TIME);
        let stall_timeout = limits.stall_timeout.min(MAX_TIME);
        let stopped = stop.clone();
        let handshake_timeout = limits.handshake_timeout.min(MAX_TIME);
        let renewal = tls.as_ref().map_or(MAX_TIME, Tls::renewal);
        let mut renewal = interval(renewal.clamp(MIN_RENEWAL, MAX_TIME));
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let of = |peer: Peer, permit: Permit| {
            let refused = permit.is_none();
            Connection {
                service: if refused { full.clone() } else { app.clone() },
                peer,
                tls: tls.clone(),
                refused,
                idle_timeout: if refused { REFUSAL_TIME } else { idle_timeout },
                handshake_timeout: if refused { REFUSAL_TIME } else { handshake_timeout },
                stall_timeout,
                stop: stopped.clone(),
                _permit: permit,
            }
        };
        let proxies: Arc<[IpNet]> = limits.trusted_proxies.into();
        let open = Arc::new(Semaphore::new(limits.open.min(Semaphore::MAX_PERMITS)));
        let addresses = Addresses::default();
        let mut refused: VecDeque<AbortHandle> = VecDeque::new();
        let mut connections = JoinSet::new();
        let mut is_full = false;
        loop {
            let (stream, address) = tokio::select! {
                accepted = accept(&tcp) => accepted,
                _ = renewal.tick(), if tls.is_some() => {
                    if let Some(tls) = tls.clone() {
                        tokio::task::spawn_blocking(move || tls.renew());
                    }
                    continue;
                }
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended
                        && !error.is_cancelled()
                    {
                        tracing::error!("a connection failed: {error}");
                    }
                    continue;
                }
                () = told_to_stop(&mut stop) => break,
            };
            let peer = Peer::new(address.ip(), &proxies);
            if let Ok(permit) = open.clone().try_acquire_owned() {
                is_full = false;
                let place = peer.counted().map(|of| addresses.enter(of, limits.per_address));
                if !matches!(place, Some(None)) {
                    connections.spawn(of(peer, Some((permit, place.flatten()))).run(stream));
                    continue;
                }
                tracing::debug!("{} has {} connections", address.ip(), limits.per_address);
            } else if !is_full {
                is_full = true;
                tracing::warn!("{} connections are open; further ones are refused", limits.open);
            }
            refused.retain(|connection| !connection.is_finished());
            if refused.len() >= REFUSALS
                && let Some(oldest) = refused.pop_front()
            {
                oldest.abort();
            }
            let connection = of(peer, None).run(stream);
            let refusal = async { drop(timeout(REFUSAL_TIME, connection).await) };
            refused.push_back(connections.spawn(refusal));
        }
        drop(tcp);
        while connections.join_next().await.is_some() {}
    }
}

/// Waits until the server is to end.
async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end as well.
    drop(stop.wait_for(|&stop| stop).await);
}

/// The next connection. What goes wrong with a single one, or for a while, is no end.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error)
                if matches!(
                    error.kind(),
                    ConnectionAborted | ConnectionRefused | ConnectionReset
                ) => {}
            Err(error) => {
                tracing::error!("cannot accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection's part of the limits; a refused one has none.
type Permit = Option<(OwnedSemaphorePermit, Option<Place>)>;

/// What a connection is served with.
struct Connection {
    service: Router,
    peer: Peer,
    tls: Option<Tls>,
    /// It takes one request, to say no to it.
    refused: bool,
    idle_timeout: Duration,
    handshake_timeout: Duration,
    stall_timeout: Duration,
    stop: watch::Receiver<bool>,
    _permit: Permit,
}

impl Connection {
    async fn run(mut self, stream: TcpStream) {
        // Small packets of streams are not held back.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("cannot set TCP_NODELAY on a connection: {error}");
        }
        let stream = Patient { io: stream, limit: self.stall_timeout, stalled: None };
        let Some(tls) = self.tls.take() else { return self.converse(stream).await };
        let handshake = timeout(self.handshake_timeout, tls.acceptor.accept(stream));
        let stream = tokio::select! {
            stream = handshake => stream,
            () = told_to_stop(&mut self.stop) => return,
        };
        match stream {
            Ok(Ok(stream)) => self.converse(stream).await,
            Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
            Err(_) => tracing::debug!("a TLS handshake timed out"),
        }
    }

    /// Answers requests until the client has no more, or the server ends.
    async fn converse<S: AsyncRead + AsyncWrite + Unpin>(mut self, stream: S) {
        let mut http = http1::Builder::new();
        // The time for a head begins when the connection is idle.
        http.timer(TokioTimer::new()).header_read_timeout(self.idle_timeout);
        http.keep_alive(!self.refused).max_buf_size(HEAD_BYTES);
        let service = AddExtension::new(self.service, Logged::default());
        let service = AddExtension::new(service, self.peer);
        let service = ShortHeads(TowerToHyperService::new(service));
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = told_to_stop(&mut self.stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!("a connection ended: {error}");
        }
    }
}

/// Refuses heads that are too long: the buffer that they are read into may hold more than one read past the limit.
struct ShortHeads<S>(S);

impl<S> Service<Request<Incoming>> for ShortHeads<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<S::Response, S::Error>>, S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if head_bytes(&request) <= HEAD_BYTES {
            return Either::Right(self.0.call(request));
        }
        // As hyper answers longer ones.
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        Either::Left(ready(Ok(response)))
    }
}

/// The bytes of a request's head, as it is written without needless blanks.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let target = request.uri();
    let path = target.path_and_query().map_or(0, |path| path.as_str().len());
    let host = target.authority().map_or(0, |host| host.as_str().len());
    let scheme = target.scheme_str().map_or(0, |scheme| scheme.len() + "://".len());
    let line = request.method().as_str().len() + scheme + host + path + "  HTTP/1.1\r\n".len();
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    line + fields.sum::<usize>() + "\r\n".len()
}

/// A stream that fails when the peer takes nothing of what is written for too long.
struct Patient<S> {
    io: S,
    limit: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    /// Notes whether a write went on, and makes an error of one that waited too long.
    fn note<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        stalled.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, buf);
        self.note(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.note(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_flush(cx);
        self.note(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_shutdown(cx);
        self.note(cx, result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    /// Takes this many bytes.
    struct Room(usize);

    impl AsyncWrite for Room {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            let n = self.0.min(buf.len());
            self.0 -= n;
            if n > 0 { Poll::Ready(Ok(n)) } else { Poll::Pending }
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn writes_that_nobody_takes_fail() {
        let mut stream = Patient { io: Room(4), limit: Duration::from_millis(10), stalled: None };
        for (room, want) in [(4, Ok(4)), (0, Err(io::ErrorKind::TimedOut)), (2, Ok(2))] {
            stream.io = Room(room);
            let n = poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, b"abcd")).await;
            assert_eq!(n.map_err(|error| error.kind()), want);
        }
    }
}
