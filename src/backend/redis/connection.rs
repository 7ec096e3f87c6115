//! One connection to the server: configured as this crate needs it, kept connected, and closed in the end.
//!
//! Properties of fred, and how they are dealt with here:
//!
//! * Its driver task can end while the client reports that it is connected, and then commands hang: one task per connection
//!   watches the driver and starts it again.
//! * Dropping its clients leaks the connection, and so does dropping `init` before it is done, or quitting a client that is
//!   not connected yet: the same task connects, never gives up before that is done, and quits on request.
//! * By default it waits for 10 s, repeats commands three times and queues without limit: changed below. In most examples it waits
//!   for up to 2 s between attempts to connect; a lease of 3 s would not survive an outage of 2 s, so here it is 200 ms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error as FredError, ErrorKind};
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectError, ReconnectPolicy, TcpConfig,
};
use fred::types::{ConnectHandle, RespVersion};
use scopeguard::guard;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::backend::BackendError;
use crate::sync::Mutex;

/// How many commands may wait in fred's queue.
const MAX_QUEUED_COMMANDS: usize = 65_536;
/// How many messages may wait until they are read. If more arrive, that is noticed, and waiting requests are repeated.
const MESSAGE_BUFFER: usize = 4096;
/// The pause before a driver that ended is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(50);

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub(super) connect: Duration,
    pub(super) reply: Duration,
}

/// A connection to the server: a client of fred, and what this crate has to know about it beyond that.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) timeouts: Timeouts,
    /// Whether no task drives the connection any more.
    ended: AtomicBool,

    // For `commands`: since when nothing has been answered, and whether the connection is being replaced because of that.
    pub(super) silent_since: Mutex<Option<Instant>>,
    pub(super) is_reconnecting: AtomicBool,

    // For `replaced`.
    /// The name of the client's connections at the server, unlike that of any other: a restarted server assigns the same ids again.
    pub(super) name: String,
    /// The id at the server of the present connection, as last seen, and how often it has changed.
    pub(super) present: Mutex<Option<i64>>,
    pub(super) generation: AtomicU64,
    /// The generation for which all earlier connections are closed.
    pub(super) sole: watch::Sender<u64>,
    /// The ids of connections that may still be open at the server, also those of a runtime that has ended.
    pub(super) earlier: tokio::sync::Mutex<Vec<i64>>,
}

impl Connection {
    /// One that is not connected yet.
    pub(super) fn new(config: &Config, timeouts: Timeouts) -> Arc<Self> {
        Arc::new(Self {
            client: client(config, timeouts),
            timeouts,
            ended: AtomicBool::default(),
            silent_since: Mutex::default(),
            is_reconnecting: AtomicBool::default(),
            name: format!("leasehold-{}", Uuid::new_v4().simple()),
            present: Mutex::default(),
            generation: AtomicU64::default(),
            sole: watch::Sender::default(),
            earlier: tokio::sync::Mutex::default(),
        })
    }

    /// Connects. The returned task keeps it connected until `closed`, then quits and ends.
    ///
    /// If the returned future is dropped or fails, the task ends as well.
    pub(super) async fn connect(
        self: &Arc<Self>,
        closed: CancellationToken,
    ) -> Result<JoinHandle<()>, BackendError> {
        let (tell, connected) = oneshot::channel();
        let closed = closed.child_token();
        let given_up = closed.clone().drop_guard();
        let reconnects = self.client.reconnect_rx();
        self.ended.store(false, Ordering::Release);
        // Dropped with the task, perhaps because its runtime ends.
        let driven = guard(Arc::clone(self), |driven| driven.ended.store(true, Ordering::Release));
        let close = closed.clone();
        let task = tokio::spawn(async move { driven.drive(close, tell).await });
        match timeout(self.timeouts.connect, connected).await {
            Ok(Ok(Ok(()))) => {
                let connection = Arc::clone(self);
                tokio::spawn(async move { connection.close_replaced(reconnects, closed).await });
                given_up.disarm();
                Ok(task)
            }
            Ok(Ok(Err(error))) if is_server_text(&error) => {
                Err(BackendError::Refused { source: error.into() })
            }
            Ok(Ok(Err(error))) => Err(BackendError::NotSent { source: error.into() }),
            Ok(Err(gone)) => Err(BackendError::NotSent { source: gone.into() }),
            Err(late) => Err(BackendError::Unanswered { source: late.into() }),
        }
    }

    /// Whether no task drives the connection any more, because the runtime of the task has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    async fn drive(&self, closed: CancellationToken, tell: oneshot::Sender<Result<(), FredError>>) {
        let client = &self.client;
        let mut driver = match client.init().await {
            Ok(driver) => driver,
            // The receiver is gone if connecting was given up.
            Err(error) => return drop(tell.send(Err(error))),
        };
        let _ = tell.send(Ok(()));
        loop {
            tokio::select! {
                biased;
                () = closed.cancelled() => break,
                ended = &mut driver => tracing::warn!(?ended, "a connection's driver ended, starting it again"),
            }
            match start_again(client, &closed).await {
                Some(again) => driver = again,
                None => return,
            }
        }
        quit(client, self.timeouts.reply).await;
        // QUIT has been sent; the connection is closed when its driver has ended.
        if timeout(self.timeouts.reply, &mut driver).await.is_err() {
            driver.abort();
        }
    }
}

/// A client of fred that is not connected yet.
fn client(config: &Config, timeouts: Timeouts) -> Client {
    let mut config = config.clone();
    config.version = RespVersion::RESP3;
    config.fail_fast = true;
    let performance = PerformanceConfig {
        default_command_timeout: timeouts.reply,
        broadcast_channel_capacity: MESSAGE_BUFFER,
        ..PerformanceConfig::default()
    };
    let connection = ConnectionConfig {
        connection_timeout: timeouts.connect,
        internal_command_timeout: timeouts.connect,
        max_command_attempts: 1,
        max_redirections: 0,
        max_command_buffer_len: MAX_QUEUED_COMMANDS,
        tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
        reconnect_errors: vec![
            ReconnectError::ReadOnly,
            ReconnectError::Loading,
            ReconnectError::ClusterDown,
        ],
        ..ConnectionConfig::default()
    };
    let policy = ReconnectPolicy::new_exponential(0, 10, 200, 2);
    Client::new(config, Some(performance), Some(connection), Some(policy))
}

/// Connects again. `None` if `closed` is cancelled first.
async fn start_again(client: &Client, closed: &CancellationToken) -> Option<ConnectHandle> {
    while !closed.is_cancelled() {
        sleep(RESTART_PAUSE).await;
        match client.init().await {
            Ok(driver) => return Some(driver),
            Err(error) => tracing::debug!(%error, "not connected"),
        }
    }
    None
}

async fn quit(client: &Client, time_limit: Duration) {
    match timeout(time_limit, client.quit()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "connection closed without QUIT"),
        Err(_) => tracing::debug!("connection closed without an answer to QUIT"),
    }
}

/// Whether the error comes from the server: its errors start with a word in capitals.
fn is_server_text(error: &FredError) -> bool {
    let word = error.details().split(' ').next().unwrap_or_default();
    *error.kind() == ErrorKind::Auth || (word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase()))
}
