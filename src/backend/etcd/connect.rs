//! Opening a connection to a member, with TLS or without.

use std::future::{Ready, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::{Channel, Endpoint, Uri};
use tower_service::Service;

use super::failure::{self, Unsent};
use super::settings::Settings;
use crate::backend::records::Failure;
use crate::backend::tls::explain;

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// How a connection ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    /// Closes it, whatever is still under way: otherwise, a stream that does not end would keep it open.
    pub(super) closing: CancellationToken,
    /// Set when it has been closed, or has failed.
    pub(super) broken: CancellationToken,
}

/// Opens a connection to an address of the member at `endpoint`. Nothing has been answered yet, except by TLS.
pub(super) async fn connect(
    settings: &Settings,
    endpoint: &str,
    address: SocketAddr,
    ends: Ends,
) -> Result<Channel, Failure> {
    let away = |error: io::Error| Failure::unavailable(error.to_string());
    let socket = TcpStream::connect(address).await.map_err(away)?;
    socket.set_nodelay(true).map_err(away)?;
    let socket: Box<dyn Duplex> = match &settings.tls {
        None => Box::new(socket),
        Some(tls) => {
            let encrypted = tls.connect(host_and_port(endpoint).0, socket).await;
            Box::new(encrypted.map_err(|error| Failure::unavailable(explain(error.to_string())))?)
        }
    };
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let invalid = |_| Failure::refused("it is not an address");
    let origin: Uri = format!("{scheme}://{endpoint}").parse().map_err(invalid)?;
    let uri: Uri = format!("http://{endpoint}").parse().map_err(invalid)?;
    let opened =
        Endpoint::from(uri).origin(origin).connect_with_connector(Once::new(Socket::new(socket, ends))).await;
    opened.map_err(|error| Failure::unavailable(failure::connecting(&error)))
}

/// The parts of an endpoint; the host without brackets.
pub(super) fn host_and_port(endpoint: &str) -> (&str, u16) {
    let (host, port) = endpoint.rsplit_once(':').unwrap_or((endpoint, ""));
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // It has been checked.
    (host, port.parse().unwrap_or(0))
}

/// A connection that can be closed from elsewhere, and tells elsewhere when it has been.
struct Socket {
    stream: Box<dyn Duplex>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    ends: Ends,
}

impl Socket {
    fn new(stream: Box<dyn Duplex>, ends: Ends) -> Self {
        Self { stream, closing: Box::pin(ends.closing.clone().cancelled_owned()), ends }
    }

    /// Notes whether the connection has failed.
    fn note<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(result, Poll::Ready(Err(_))) {
            self.ends.broken.cancel();
        }
        result
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ends.closing.is_cancelled() || self.closing.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let before = buf.remaining();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if matches!(read, Poll::Ready(Ok(()))) && buf.remaining() == before && before > 0 {
            self.ends.broken.cancel();
        }
        self.note(read)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.ends.closing.is_cancelled() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.ends.closing.is_cancelled() {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.note(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.ends.closing.is_cancelled() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Hands out a connection once: when it is lost, it is for [`Link`](super::link::Link) to decide where to connect next.
#[derive(Clone)]
struct Once(Arc<Mutex<Option<TokioIo<Socket>>>>);

impl Once {
    fn new(socket: Socket) -> Self {
        Self(Arc::new(Mutex::new(Some(TokioIo::new(socket)))))
    }
}

impl Service<Uri> for Once {
    type Response = TokioIo<Socket>;
    type Error = io::Error;
    type Future = Ready<Result<TokioIo<Socket>, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let socket = self.0.lock().take();
        ready(socket.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, Unsent)))
    }
}
