//! One server of Redis.

use std::fs;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, ready};

use super::{LEFT_OUT, Outcome, Server, Start, Strike, done, unknown, until};
use crate::fault::ServerFault;
use crate::line::Line;
use leasehold_support::{Clock, Raw, RedisServer, Setup, url_of};

pub(crate) const FAULTS: &[ServerFault] = &[
    ServerFault::Stop,
    ServerFault::Restart,
    ServerFault::RestartEmpty,
    ServerFault::Flush,
    ServerFault::ForgetScripts,
    ServerFault::EndConnections,
    ServerFault::PauseWrites,
    ServerFault::NoRoom,
    ServerFault::NoReplicas,
    ServerFault::CannotSave,
    ServerFault::Busy,
    ServerFault::TooManyClients,
    ServerFault::ReadOnly,
    ServerFault::ClockAhead,
    ServerFault::ClockBack,
    ServerFault::SetClockBack,
];

/// A script that takes longer is answered for. Snapshots are taken by hand.
pub(super) const OPTIONS: &str =
    "--lua-time-limit 20 --save 3600 1000000000 --dbfilename taken --stop-writes-on-bgsave-error no";
/// Those that need a clock of its own.
const CLOCK: [ServerFault; 3] = [ServerFault::ClockAhead, ServerFault::ClockBack, ServerFault::SetClockBack];
/// As far as a clock jumps.
const AHEAD: Duration = Duration::from_secs(31);
const BACK: Duration = Duration::from_secs(100);

#[derive(Debug)]
pub(crate) struct Redis {
    server: RedisServer,
    clock: Option<Clock>,
    /// A connection while there can be no other ones.
    kept: Option<Raw>,
}

impl Redis {
    pub(crate) fn start_or_skip(start: Start<'_>) -> Option<Self> {
        let has_clock = CLOCK.into_iter().any(|fault| start.will_suffer(fault));
        let clock = if has_clock { Clock::new_or_skip(LEFT_OUT) } else { None };
        let setup = if start.is_on_disk { Setup::on_disk() } else { Setup::default() };
        let mut setup = Setup { clock: clock.clone(), ..setup };
        setup.options.extend(OPTIONS.split(' ').map(str::to_owned));
        Some(Self { server: RedisServer::start_with_or_skip(LEFT_OUT, setup)?, clock, kept: None })
    }

    /// Between two scripts: within one, the server would measure some times by the old clock and some by the new one.
    fn set_clock(&self, set: impl FnOnce(&Clock)) {
        if let Some(clock) = &self.clock {
            let mut raw = self.server.raw();
            raw.send(&["CLIENT", "PAUSE", "60000", "WRITE"]);
            set(clock);
            clock.is_followed_by(&mut raw);
            raw.send(&["CLIENT", "UNPAUSE"]);
        }
    }
}

impl Redis {
    /// A snapshot cannot take the place of a directory.
    async fn fail_to_save(&self) -> Result<(), String> {
        fs::create_dir(self.server.dir().join("taken")).map_err(|error| error.to_string())?;
        let mut raw = self.server.raw();
        raw.send(&["BGSAVE"]);
        let failed = "bgsave_status:err";
        until("a snapshot fails", || {
            raw.send(&["INFO", "persistence"]).text().is_some_and(|info| info.contains(failed))
        })
        .await?;
        send(&self.server, &[&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]]);
        Ok(())
    }
}

impl Server for Redis {
    fn url(&self) -> String {
        self.server.url()
    }

    fn line(&self) -> BoxFuture<'_, (Line, String)> {
        let line = Line::to_redis([self.server.port()].into_iter());
        line.map(|line| (url_of(line.ports()[0]), line)).map(|(url, line)| (line, url)).boxed()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        match strike.fault {
            ServerFault::Stop => self.server.pause(),
            // With what the setup keeps on disk.
            ServerFault::Restart | ServerFault::RestartEmpty => self.server.restart(),
            ServerFault::ClockAhead => self.set_clock(|clock| clock.shift(AHEAD)),
            ServerFault::ClockBack => self.set_clock(|clock| clock.set_back(BACK)),
            ServerFault::SetClockBack => self.set_clock(|clock| clock.set_back(strike.lasts)),
            ServerFault::CannotSave => return self.fail_to_save().boxed(),
            ServerFault::Busy => {
                let mut raw = self.server.raw();
                let sent = raw.write(&["EVAL", "while true do end", "0"]);
                self.kept = Some(raw);
                return ready(sent.map_err(|error| error.to_string())).boxed();
            }
            ServerFault::TooManyClients => {
                let mut raw = self.server.raw();
                raw.send(&["CONFIG", "SET", "maxclients", "1"]);
                raw.send(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                self.kept = Some(raw);
            }
            _ if !begin_by_command(&self.server, strike) => return unknown(strike.fault),
            _ => {}
        }
        done()
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        match strike.fault {
            ServerFault::Stop => self.server.resume(),
            ServerFault::ClockBack => self.set_clock(|clock| clock.shift(BACK)),
            ServerFault::Busy => {
                self.server.raw().send(&["SCRIPT", "KILL"]);
                self.kept = None;
            }
            ServerFault::TooManyClients => {
                if let Some(mut raw) = self.kept.take() {
                    raw.send(&["CONFIG", "SET", "maxclients", "1000"]);
                }
            }
            ServerFault::CannotSave => {
                send(&self.server, &[&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]]);
                let removed = fs::remove_dir(self.server.dir().join("taken"));
                return ready(removed.map_err(|error| error.to_string())).boxed();
            }
            fault => end_by_command(&self.server, fault),
        }
        done()
    }

    fn can_have(&self, fault: ServerFault) -> bool {
        !CLOCK.contains(&fault) || self.clock.is_some()
    }

    fn connections(&self) -> Option<u64> {
        let list = self.server.raw().send(&["CLIENT", "LIST"]).text()?;
        // One is that of the question.
        Some(list.lines().count() as u64 - 1)
    }

    fn records(&self) -> Option<Vec<String>> {
        let mut keys = self.server.raw().keys("*");
        keys.retain(|key| !key.ends_with(":fence") && !key.ends_with(":revoked"));
        Some(keys)
    }
}

/// What a server is told so that it fails. `false` if that is no such fault.
pub(super) fn begin_by_command(server: &RedisServer, strike: Strike) -> bool {
    let lasts = strike.lasts.as_millis().to_string();
    let commands: &[&[&str]] = match strike.fault {
        ServerFault::Flush => &[&["FLUSHALL"]],
        ServerFault::ForgetScripts => &[&["SCRIPT", "FLUSH"]],
        ServerFault::EndConnections => {
            &[&["CLIENT", "KILL", "TYPE", "normal"], &["CLIENT", "KILL", "TYPE", "pubsub"]]
        }
        ServerFault::PauseWrites => &[&["CLIENT", "PAUSE", &lasts, "WRITE"]],
        ServerFault::NoRoom => &[&["CONFIG", "SET", "maxmemory", "1"]],
        ServerFault::NoReplicas => &[&["CONFIG", "SET", "min-replicas-to-write", "1"]],
        ServerFault::ReadOnly => &[&["REPLICAOF", "127.0.0.1", "1"]],
        _ => return false,
    };
    send(server, commands);
    true
}

/// The opposite.
pub(super) fn end_by_command(server: &RedisServer, fault: ServerFault) {
    match fault {
        ServerFault::NoRoom => send(server, &[&["CONFIG", "SET", "maxmemory", "0"]]),
        ServerFault::NoReplicas => send(server, &[&["CONFIG", "SET", "min-replicas-to-write", "0"]]),
        ServerFault::ReadOnly => send(server, &[&["REPLICAOF", "NO", "ONE"]]),
        _ => {}
    }
}

fn send(server: &RedisServer, commands: &[&[&str]]) {
    let mut raw = server.raw();
    for command in commands {
        raw.send(command);
    }
}
