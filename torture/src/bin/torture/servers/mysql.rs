//! One server of MariaDB.

use futures::future::{BoxFuture, FutureExt};

use super::{LEFT_OUT, Outcome, Server, Strike, done, one_line, unknown};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::mysql::MysqlServer;

pub(crate) const FAULTS: &[ServerFault] = &[
    ServerFault::Stop,
    ServerFault::Restart,
    ServerFault::EndConnections,
    ServerFault::ReadOnly,
    ServerFault::TooManyClients,
    ServerFault::StatementLimit,
];

pub(super) const KILL: &str = "KILL USER leasehold";

#[derive(Debug)]
pub(crate) struct Mysql {
    server: MysqlServer,
}

impl Mysql {
    pub(crate) fn start_or_skip() -> Option<Self> {
        Some(Self { server: MysqlServer::start_or_skip(LEFT_OUT)? })
    }
}

/// Has the superuser execute these.
pub(super) fn execute<'a>(server: &'a MysqlServer, statements: &'static [&'static str]) -> Outcome<'a> {
    async move {
        for statement in statements {
            let executed = server.try_to_execute(statement).await;
            executed.map_err(|error| format!("{statement}: {error}"))?;
        }
        Ok(())
    }
    .boxed()
}

impl Server for Mysql {
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
            ServerFault::EndConnections => &[KILL],
            ServerFault::ReadOnly => &["SET GLOBAL read_only = 1"],
            ServerFault::StatementLimit => &["SET GLOBAL max_statement_time = 0.0001", KILL],
            // A client needs two.
            ServerFault::TooManyClients => &["ALTER USER leasehold@'%' WITH MAX_USER_CONNECTIONS 1", KILL],
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
            ServerFault::ReadOnly => &["SET GLOBAL read_only = 0"],
            ServerFault::StatementLimit => &["SET GLOBAL max_statement_time = 0", KILL],
            ServerFault::TooManyClients => &["ALTER USER leasehold@'%' WITH MAX_USER_CONNECTIONS 0"],
            _ => return done(),
        };
        execute(&self.server, statements)
    }
}
