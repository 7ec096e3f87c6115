//! The settings that both databases have: their defaults and bounds.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::backend::records::{Failure, TIMEOUT, check_timeouts};
use crate::backend::tls::TlsOptions;
use crate::error::Error;

const CONNECTIONS: usize = 5;
const MAX_CONNECTIONS: usize = 64;

/// The settings of a client.
#[derive(Clone)]
pub(in crate::backend) struct Settings<T> {
    /// What is connected to, and how.
    pub(in crate::backend) target: T,
    /// Without credentials.
    pub(in crate::backend) address: String,
    pub(in crate::backend) connect_timeout: Duration,
    pub(in crate::backend) reply_timeout: Duration,
    pub(in crate::backend) max_connections: usize,
    pub(in crate::backend) create: bool,
    pub(in crate::backend) tls_options: Option<TlsOptions>,
}

impl<T> Settings<T> {
    /// The defaults.
    pub(in crate::backend) fn for_target(target: T, address: String) -> Self {
        Self {
            target,
            address,
            connect_timeout: TIMEOUT,
            reply_timeout: TIMEOUT,
            max_connections: CONNECTIONS,
            create: true,
            tls_options: None,
        }
    }

    /// Refuses what is out of bounds. A client needs at least this many connections.
    pub(in crate::backend) fn check_bounds(&self, min_connections: usize) -> Result<(), Error> {
        check_timeouts(self.connect_timeout, self.reply_timeout)?;
        if (min_connections..=MAX_CONNECTIONS).contains(&self.max_connections) {
            return Ok(());
        }
        let reason =
            format!("{} is not between {min_connections} and {MAX_CONNECTIONS}", self.max_connections);
        Err(Error::invalid("max_connections", reason))
    }

    /// When an attempt to connect that begins now has to end.
    pub(in crate::backend) fn connected_by(&self) -> Instant {
        Instant::now() + self.connect_timeout
    }

    /// What a part of connecting returns, within the time limit for all of it.
    pub(in crate::backend) async fn in_time<V>(
        &self,
        end: Instant,
        connecting: impl Future<Output = Result<V, Failure>> + Send,
    ) -> Result<V, Failure>
    where
        T: Sync,
    {
        timeout_at(end, connecting).await.unwrap_or_else(|_| Err(self.late()))
    }

    /// Why an attempt to connect has failed that took too long.
    pub(in crate::backend) fn late(&self) -> Failure {
        Failure::unavailable(format!("no answer within {:?}", self.connect_timeout))
    }
}

impl<T> fmt::Debug for Settings<T> {
    /// Without what is connected to, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("address", &self.address)
            .field("connect_timeout", &self.connect_timeout)
            .field("reply_timeout", &self.reply_timeout)
            .field("max_connections", &self.max_connections)
            .field("create", &self.create)
            .finish_non_exhaustive()
    }
}
