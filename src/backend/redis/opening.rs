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
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::credentials::Credentials;
use super::link::{Address, CallError, Connector, Library, Link, Opened};
use super::target::{Login, Server};
use super::tls;
use crate::backend::dial;
use crate::runtime::spawn;

/// How long a handshake may take before the server is asked in plain text.
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);

/// Opens links with a client library.
#[derive(Debug)]
pub(super) struct Opening {
    library: Arc<dyn Library>,
    tls: bool,
    connect_timeout: Duration,
    /// Whether a link was ever opened: if so, the servers are of the kind that is expected.
    succeeded: AtomicBool,
}

impl Opening {
    pub(super) fn new(library: Arc<dyn Library>, tls: bool, connect_timeout: Duration) -> Self {
        Self { library, tls, connect_timeout, succeeded: AtomicBool::default() }
    }

    async fn open_explained(
        &self,
        server: &Server,
        login: &Login,
        messages: usize,
    ) -> Result<Arc<dyn Link>, CallError> {
        let first = !self.succeeded.load(Ordering::Relaxed);
        let mut opening = self.start(server, login, messages);
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
    fn start(
        &self,
        server: &Server,
        login: &Login,
        messages: usize,
    ) -> JoinHandle<Result<Arc<dyn Link>, CallError>> {
        let (library, time_limit) = (Arc::clone(&self.library), self.connect_timeout);
        let limit = time_limit * 3 / 4;
        let (server, login) = (server.clone(), login.clone());
        spawn(async move {
            let login = login.provided(limit).await?;
            let addresses = addresses_of(&server, time_limit).await?;
            open_at_any(library, &addresses, &login, messages, time_limit).await
        })
    }
}

/// Where a server can be reached.
async fn addresses_of(server: &Server, time_limit: Duration) -> Result<Vec<Address>, CallError> {
    let (host, port) = match server {
        Server::Tcp { host, port } => (host, *port),
        Server::Unix(path) => return Ok(vec![Address::Unix(path.clone())]),
    };
    let resolved = match timeout(time_limit, dial::resolve(host, port)).await {
        Ok(resolved) => resolved.map_err(|error| CallError::NotSent(error.to_string()))?,
        Err(_) => {
            return Err(CallError::NotSent(format!("`{host}` was not resolved within {time_limit:?}")));
        }
    };
    Ok(resolved.into_iter().map(|at| Address::Tcp { host: host.clone(), at }).collect())
}

/// Opens a link at the first address that answers. Each attempt is a task, because it must not be given up halfway; the
/// link of one that comes too late is closed when it is dropped.
async fn open_at_any(
    library: Arc<dyn Library>,
    addresses: &[Address],
    login: &Login,
    messages: usize,
    time_limit: Duration,
) -> Result<Arc<dyn Link>, CallError> {
    if let [only] = addresses {
        return library.open(only, login, messages).await;
    }
    let opened = dial::race(addresses.to_vec(), time_limit, |address| {
        let (library, login) = (Arc::clone(&library), login.clone());
        let attempt = spawn(async move { library.open(&address, &login, messages).await });
        attempt.map(|opened| opened.unwrap_or_else(|gone| Err(CallError::NotSent(gone.to_string()))))
    });
    opened.await.map_err(|failures| all_failed(addresses, failures))
}

/// What the server said, if it has said something at one of its addresses; otherwise what happened at each.
fn all_failed(addresses: &[Address], failures: Vec<Option<CallError>>) -> CallError {
    let said = failures.iter().flatten().find(|failure| matches!(failure, CallError::Answer(_)));
    if let Some(said) = said {
        return said.clone();
    }
    let each = addresses.iter().zip(&failures).map(|(address, failure)| match failure {
        Some(failure) => format!("{address}: {failure}"),
        None => format!("{address}: no answer"),
    });
    let texts = each.collect::<Vec<_>>().join("; ");
    let was_ended = failures.iter().all(|failure| matches!(failure, Some(CallError::Lost(_))));
    if was_ended { CallError::Lost(texts) } else { CallError::Timeout(texts) }
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
    fn open<'a>(&'a self, server: &'a Server, login: &'a Login, messages: usize) -> Opened<'a> {
        self.open_explained(server, login, messages).boxed()
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
    let mut stream = dial::connect(host, *port, PROBE_TIMEOUT * 4).await.ok()?;
    stream.write_all(question).await.ok()?;
    stream.read_u8().await.ok()
}

/// Types of TLS records.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// A TLS 1.2 ClientHello without extensions, which offers one cipher suite. Every TLS server answers it with its own
/// hello or an alert.
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
