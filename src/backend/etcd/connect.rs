//! Opening a connection to a member, with TLS or without.

use std::future::{Ready, ready};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower_service::Service;

use super::failure;
use super::settings::Settings;
use crate::backend::records::Failure;
use crate::backend::tls::explain;

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

type Socket = TokioIo<Box<dyn Duplex>>;

/// Opens a connection to the member at `endpoint`.
pub(super) async fn connect(settings: &Settings, endpoint: &str) -> Result<Channel, Failure> {
    let away = |error: io::Error| Failure::unavailable(format!("{endpoint}: {error}"));
    let socket = TcpStream::connect(endpoint).await.map_err(away)?;
    socket.set_nodelay(true).map_err(away)?;
    let socket: Box<dyn Duplex> = match &settings.tls {
        None => Box::new(socket),
        Some(tls) => {
            let encrypted = tls.connect(host_of(endpoint), socket).await;
            Box::new(encrypted.map_err(|error| Failure::unavailable(explain(error.to_string())))?)
        }
    };
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let invalid = |_| Failure::refused(format!("`{endpoint}` is not an address"));
    let origin: Uri = format!("{scheme}://{endpoint}").parse().map_err(invalid)?;
    let uri: Uri = format!("http://{endpoint}").parse().map_err(invalid)?;
    let opened = Endpoint::from(uri).origin(origin).connect_with_connector(Once::new(socket)).await;
    opened.map_err(|error| Failure::unavailable(failure::connecting(&error)))
}

fn host_of(endpoint: &str) -> &str {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Hands out a connection once: when it is lost, it is for [`Link`](super::link::Link) to decide where to connect next.
#[derive(Clone)]
struct Once(Arc<Mutex<Option<Socket>>>);

impl Once {
    fn new(socket: Box<dyn Duplex>) -> Self {
        Self(Arc::new(Mutex::new(Some(TokioIo::new(socket)))))
    }
}

impl Service<Uri> for Once {
    type Response = Socket;
    type Error = io::Error;
    type Future = Ready<Result<Socket, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let socket = self.0.lock().take();
        ready(socket.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the connection was lost")))
    }
}
