//! The connection of a client: to the first member that can be reached, and to the next one when it is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::SetOnce;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::settings::Settings;
use crate::backend::records::{Failure, Remedy};

/// The pause between attempts to connect: it grows from the first of these to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

pub(super) struct Link {
    settings: Arc<Settings>,
    closing: CancellationToken,
    used: SetOnce<()>,
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
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let (closing, used, state) = Default::default();
        Self { settings, closing, used, state }
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
            sleep(failed.pause.saturating_sub(failed.at.elapsed())).await;
        }
        let attempt = self.closing.run_until_cancelled(self.connect(&mut state)).await;
        match attempt.unwrap_or_else(|| Err(Failure::unavailable("the client is closed"))) {
            Ok(connection) => {
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
        let share = *connect_timeout / u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
        let mut failures = Vec::new();
        for _ in endpoints {
            let endpoint = &endpoints[state.next % endpoints.len()];
            let opened = timeout(share, Connection::open(&self.settings, endpoint)).await;
            let silence = || Failure::unavailable(format!("{endpoint}: no answer within {share:?}"));
            match opened.unwrap_or_else(|_| Err(silence())) {
                Ok(connection) => return Ok(connection),
                Err(failure) => failures.push(failure),
            }
            state.next += 1;
        }
        Err(all(failures))
    }

    /// Closes the connection. There is no other one after it.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        if let Some(connection) = self.state.lock().await.connection.take() {
            connection.give_up();
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

/// Why none of several members could be connected to.
fn all(failures: Vec<Failure>) -> Failure {
    let why: Vec<_> = failures.iter().map(|failure| failure.why.as_str()).collect();
    let why = why.join("; ");
    if failures.iter().any(|failure| failure.remedy == Remedy::Fix) {
        Failure::refused(why)
    } else {
        Failure::unavailable(why)
    }
}
