//! Opening links, with any client library: credentials are requested each time, and failures that a library reports as
//! a timeout or a lost connection are explained.
//!
//! A server without TLS mistakes the beginning of a handshake for an unfinished command, and waits for the rest; one
//! with TLS ends a connection on which it finds a command. So if the first handshake takes long, or the first
//! connection is ended, the server is asked on a separate connection whether it understands the other protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::pending;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::credentials::Credentials;
use super::link::{CallError, Connector, Link, Opened};
use super::target::{Login, Server};
use super::tls;
use crate::runtime::spawn;

/// How long a handshake may take before the server is asked in plain text.
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);

/// Opens links with a client library.
#[derive(Debug)]
pub(super) struct Opening {
    library: Arc<dyn Connector>,
    tls: bool,
    connect_timeout: Duration,
    /// Whether a link was ever opened: if so, the servers are of the kind that is expected.
    succeeded: AtomicBool,
}

impl Opening {
    pub(super) fn new(library: Arc<dyn Connector>, tls: bool, connect_timeout: Duration) -> Self {
        Self { library, tls, connect_timeout, succeeded: AtomicBool::default() }
    }

    async fn open_explained(&self, server: &Server, login: &Login) -> Result<Arc<dyn Link>, CallError> {
        let first = !self.succeeded.load(Ordering::Relaxed);
        let mut opening = self.start(server, login);
        let opened = tokio::select! {
            biased;
            opened = &mut opening => opened,
            () = speaks_plain_text(server), if first && self.tls => {
                return Err(CallError::NotSent(format!("TLS: {}", tls::NO_TLS)));
            }
        };
        let opened = opened.unwrap_or_else(|gone| Err(CallError::NotSent(gone.to_string())));
        self.succeeded.fetch_or(opened.is_ok(), Ordering::Relaxed);
        match opened {
            Err(error) if self.tls => Err(tls::explain(error)),
            Err(CallError::Lost(text)) if first && speaks_tls(server).await => {
                Err(CallError::NotSent(format!("{} ({text})", tls::NEEDS_TLS)))
            }
            opened => opened,
        }
    }

    /// Opens a link in a task: if this future is dropped, the task continues, and the link is closed when it is
    /// dropped.
    fn start(&self, server: &Server, login: &Login) -> JoinHandle<Result<Arc<dyn Link>, CallError>> {
        let (library, limit) = (Arc::clone(&self.library), self.connect_timeout * 3 / 4);
        let (server, login) = (server.clone(), login.clone());
        spawn(async move {
            let login = login.provided(limit).await?;
            library.open(&server, &login).await
        })
    }
}

impl Login {
    /// With the credentials that are valid now.
    async fn provided(mut self, time_limit: Duration) -> Result<Self, CallError> {
        let Some(provider) = self.provider.take() else { return Ok(self) };
        let provided = timeout(time_limit, provider.credentials()).await;
        let provided = provided.unwrap_or_else(|_| Err(format!("not provided within {time_limit:?}").into()));
        let Credentials { user, password } =
            provided.map_err(|error| CallError::NotSent(format!("no credentials: {error}")))?;
        Ok(Self { user, password: Some(password), ..self })
    }
}

impl Connector for Opening {
    fn open<'a>(&'a self, server: &'a Server, login: &'a Login) -> Opened<'a> {
        self.open_explained(server, login).boxed()
    }
}

/// Completes if the server answers a command in plain text.
async fn speaks_plain_text(server: &Server) {
    sleep(PROBE_TIMEOUT).await;
    // `+PONG`, or `-NOAUTH` and the like.
    if !matches!(first_byte_after(server, b"PING\r\n").await, Some(b'+' | b'-')) {
        pending().await
    }
}

/// Whether the server answers the beginning of a TLS handshake.
async fn speaks_tls(server: &Server) -> bool {
    let answer = timeout(PROBE_TIMEOUT, first_byte_after(server, &CLIENT_HELLO)).await;
    matches!(answer, Ok(Some(HANDSHAKE | ALERT)))
}

/// The first byte of the server's answer, if it gives any.
async fn first_byte_after(server: &Server, question: &[u8]) -> Option<u8> {
    let Server::Tcp { host, port } = server else { return None };
    let mut stream = TcpStream::connect((host.as_str(), *port)).await.ok()?;
    stream.write_all(question).await.ok()?;
    stream.read_u8().await.ok()
}

/// Types of TLS records.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// A TLS 1.2 ClientHello without extensions, which offers one cipher suite. Every TLS server answers it with its own hello or an alert.
const CLIENT_HELLO: [u8; 50] = {
    let mut record = [0; 50];
    record[0] = HANDSHAKE;
    // The version of the record, its length, the type of the message and its length.
    [record[1], record[2], record[4], record[5], record[8]] = [3, 1, 45, 1, 41];
    // The version of the protocol; 32 bytes that need not be random here; no session.
    [record[9], record[10]] = [3, 3];
    // One suite, ECDHE-RSA-AES128-GCM-SHA256; one method of compression, none.
    [record[45], record[46], record[47], record[48]] = [2, 0xc0, 0x2f, 1];
    record
};
