//! One server of PostgreSQL.

use futures::future::{BoxFuture, FutureExt};

use super::{LEFT_OUT, Outcome, Server, Strike, done, one_line, unknown};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::postgres::PostgresServer;

pub(crate) const FAULTS: &[ServerFault] = &[
    ServerFault::Stop,
    ServerFault::Restart,
    ServerFault::EndConnections,
    ServerFault::ReadOnly,
    ServerFault::TooManyClients,
    ServerFault::StatementLimit,
    ServerFault::Busy,
];

pub(super) const TERMINATE: &str =
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'";
pub(super) const RELOAD: &str = "SELECT pg_reload_conf()";

#[derive(Debug)]
pub(crate) struct Postgres {
    server: PostgresServer,
    /// What holds the table.
    stranger: Option<tokio_postgres::Client>,
}

impl Postgres {
    pub(crate) fn start_or_skip() -> Option<Self> {
        Some(Self { server: PostgresServer::start_or_skip(LEFT_OUT)?, stranger: None })
    }

    async fn lock(&mut self) -> Result<(), String> {
        let stranger = self.server.session("postgres").await;
        let locked = stranger.batch_execute("BEGIN; LOCK TABLE leasehold IN EXCLUSIVE MODE").await;
        self.stranger = Some(stranger);
        locked.map_err(|error| error.to_string())
    }
}

/// Has the superuser execute these.
pub(super) fn execute<'a>(server: &'a PostgresServer, statements: &'static [&'static str]) -> Outcome<'a> {
    async move {
        for statement in statements {
            server.execute(statement).await;
        }
        Ok(())
    }
    .boxed()
}

impl Server for Postgres {
    fn url(&self) -> String {
        self.server.url()
    }

    fn line(&self) -> BoxFuture<'_, (Line, String)> {
        one_line(self.server.port(), |port| self.server.url_through(port)).boxed()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        let statements: &[_] = match strike.fault {
            ServerFault::Stop => {
                self.server.pause();
                return done();
            }
            ServerFault::Restart => {
                self.server.restart();
                return done();
            }
            ServerFault::Busy => return self.lock().boxed(),
            ServerFault::EndConnections => &[TERMINATE],
            ServerFault::ReadOnly => &["ALTER SYSTEM SET default_transaction_read_only = on", RELOAD],
            ServerFault::StatementLimit => &["ALTER ROLE leasehold SET statement_timeout = 1", TERMINATE],
            ServerFault::TooManyClients => &["ALTER ROLE leasehold CONNECTION LIMIT 0", TERMINATE],
            fault => return unknown(fault),
        };
        execute(&self.server, statements)
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        let statements: &[_] = match strike.fault {
            ServerFault::Stop => {
                self.server.resume();
                return done();
            }
            ServerFault::Busy => {
                self.stranger = None;
                return done();
            }
            ServerFault::ReadOnly => &["ALTER SYSTEM RESET default_transaction_read_only", RELOAD],
            ServerFault::StatementLimit => &["ALTER ROLE leasehold RESET statement_timeout", TERMINATE],
            ServerFault::TooManyClients => &["ALTER ROLE leasehold CONNECTION LIMIT -1"],
            _ => return done(),
        };
        execute(&self.server, statements)
    }
}
