//! The connection of a client: to the first member that can be reached, and to the next one when it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::sync::SetOnce;
use tokio::time::{sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::connect::host_and_port;
use super::connection::Connection;
use super::proto::RangeRequest;
use super::settings::Settings;
use crate::backend::dial;
use crate::backend::records::{Failure, Remedy};

/// The pause between attempts to connect: it grows from the first of these to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

pub(super) struct Link {
    settings: Arc<Settings>,
    /// What a new connection is asked for first.
    probe: RangeRequest,
    closing: CancellationToken,
    used: SetOnce<()>,
    /// Whether there has been a connection.
    was_reached: AtomicBool,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// Which member is tried next.
    next: usize,
    failed: Option<Failed>,
}

/// The latest attempt to connect, if it failed.
struct Failed {
    at: Instant,
    pause: Duration,
    failure: Failure,
}

impl Link {
    pub(super) fn new(settings: Arc<Settings>, probe: RangeRequest) -> Self {
        let (closing, used, was_reached, state) = Default::default();
        Self { settings, probe, closing, used, was_reached, state }
    }

    pub(super) fn was_reached(&self) -> bool {
        self.was_reached.load(Ordering::SeqCst)
    }

    /// The connection, which is opened if there is none. All that wait for the same attempt share its outcome.
    pub(super) async fn open(&self) -> Result<Arc<Connection>, Failure> {
        let asked = Instant::now();
        // An error means that it was used before.
        let _ = self.used.set(());
        let mut state = self.state.lock().await;
        if let Some(connection) = state.connection.take_if(|connection| connection.is_broken()) {
            drop(connection);
            state.next += 1;
        }
        if let Some(connection) = &state.connection {
            return Ok(Arc::clone(connection));
        }
        if let Some(failed) = &state.failed {
            if failed.at > asked {
                return Err(failed.failure.clone());
            }
            let pause = failed.pause.saturating_sub(failed.at.elapsed());
            self.closing.run_until_cancelled(sleep(pause)).await;
        }
        let attempt = self.closing.run_until_cancelled(self.connect(&mut state)).await;
        match attempt.unwrap_or_else(|| Err(Failure::closed())) {
            Ok(connection) => {
                self.was_reached.store(true, Ordering::SeqCst);
                state.failed = None;
                Ok(Arc::clone(state.connection.insert(Arc::new(connection))))
            }
            Err(failure) => {
                let pause = state.failed.as_ref();
                let pause = pause.map_or(PAUSES.0, |failed| (failed.pause * 2).min(PAUSES.1));
                state.failed = Some(Failed { at: Instant::now(), pause, failure: failure.clone() });
                Err(failure)
            }
        }
    }

    /// Tries all members, beginning with the next one.
    async fn connect(&self, state: &mut State) -> Result<Connection, Failure> {
        let Settings { endpoints, connect_timeout, .. } = &*self.settings;
        let (count, limit) = (endpoints.len(), *connect_timeout);
        let order: Vec<_> = (0..count).map(|n| (state.next + n) % count).collect();
        let end = Instant::now() + limit;
        let attempt = async |n: usize| self.reach(&endpoints[n], end).await.map(|connection| (n, connection));
        match dial::race(order.iter().copied(), limit, attempt).await {
            Ok((n, connection)) => {
                state.next = n;
                Ok(connection)
            }
            Err(failures) => {
                let failures = order
                    .iter()
                    .zip(failures)
                    .map(|(n, failure)| failure.unwrap_or_else(|| no_answer(&endpoints[*n], limit)));
                Err(all(failures))
            }
        }
    }

    /// Tries all addresses of a member.
    async fn reach(&self, endpoint: &str, end: Instant) -> Result<Connection, Failure> {
        let (host, port) = host_and_port(endpoint);
        let named = |failure: Failure| Failure { why: format!("{endpoint}: {failure}"), ..failure };
        let addresses = dial::resolve(host, port).await;
        let addresses = addresses.map_err(|error| named(Failure::unavailable(error.to_string())))?;
        let left = end.saturating_duration_since(Instant::now());
        let attempt = |address| Connection::open(&self.settings, endpoint, address, self.probe.clone());
        let opened = dial::race(addresses.iter().copied(), left, attempt).await;
        opened.map_err(|failures| {
            let limit = self.settings.connect_timeout;
            let silence = || Failure::unavailable(format!("no answer within {limit:?}"));
            let failures = failures.into_iter().map(|failure| failure.unwrap_or_else(silence));
            if addresses.len() == 1 {
                return named(all(failures));
            }
            let with_address = |(address, failure): (_, Failure)| {
                let why = format!("{address}: {failure}");
                Failure { why, ..failure }
            };
            named(all(addresses.iter().zip(failures).map(with_address)))
        })
    }

    /// Why each member cannot be used, of those that cannot.
    pub(super) async fn unreachable(&self) -> Vec<Failure> {
        let limit = self.settings.connect_timeout;
        let each = self.settings.endpoints.iter().map(async |endpoint| {
            let end = Instant::now() + limit;
            let reached = timeout_at(end.into(), self.reach(endpoint, end)).await;
            reached.unwrap_or_else(|_| Err(no_answer(endpoint, limit))).err()
        });
        join_all(each).await.into_iter().flatten().collect()
    }

    /// No further connection is opened.
    pub(super) fn stop_connecting(&self) {
        self.closing.cancel();
    }

    /// Closes the connection. There is no other one after it.
    pub(super) async fn close(&self) {
        self.stop_connecting();
        if let Some(connection) = self.state.lock().await.connection.take() {
            connection.give_up();
        }
    }

    /// Whether there is a connection, as far as is known.
    pub(super) async fn is_open(&self) -> bool {
        self.state.lock().await.connection.as_ref().is_some_and(|connection| !connection.is_broken())
    }

    /// Returns when the present connection is lost.
    pub(super) async fn lost(&self) {
        let connection = self.state.lock().await.connection.clone();
        match connection {
            Some(connection) => connection.broken().await,
            None => std::future::pending().await,
        }
    }

    /// Returns once a connection has been needed.
    pub(super) async fn used(&self) {
        self.used.wait().await;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closing.is_cancelled()
    }
}

fn no_answer(endpoint: &str, limit: Duration) -> Failure {
    Failure::unavailable(format!("{endpoint}: no answer within {limit:?}"))
}

/// Why none of several could be connected to.
fn all(failures: impl Iterator<Item = Failure>) -> Failure {
    let failures: Vec<_> = failures.collect();
    let why: Vec<_> = failures.iter().map(|failure| failure.why.as_str()).collect();
    let why = why.join("; ");
    let is_any = |remedy| failures.iter().any(|failure| failure.remedy == remedy);
    if is_any(Remedy::Fix) {
        Failure::refused(why)
    } else if is_any(Remedy::NotNow) {
        Failure::not_now(why)
    } else {
        Failure::unavailable(why)
    }
}
