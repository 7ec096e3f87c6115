//! What runs for each store, with the faults that it can have: one module for each.

pub(crate) mod etcd;
pub(crate) mod mysql;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod redlock;
pub(crate) mod sqlite;
pub(crate) mod zookeeper;

use std::fmt::Debug;
use std::time::Duration;

use futures::future::{FutureExt, LocalBoxFuture, ready};

use crate::fault::ServerFault;
use crate::line::Line;

/// How a server is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// Whether it keeps everything on disk.
    pub(crate) is_on_disk: bool,
}

/// Named when a machine does not have a server.
const LEFT_OUT: &str = "torture";

/// One time that a fault hits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strike {
    pub(crate) fault: ServerFault,
    /// For how long.
    pub(crate) lasts: Duration,
    /// A random number: which of several servers, and the like.
    pub(crate) which: usize,
}

pub(crate) type Outcome<'a> = LocalBoxFuture<'a, Result<(), String>>;

/// The server of a store, or several that belong together.
pub(crate) trait Server: Debug {
    /// Where its clients connect.
    fn url(&self) -> String;

    /// The line of a worker, and the URL through it.
    fn line(&self) -> LocalBoxFuture<'_, (Line, String)>;

    /// Begins a fault.
    fn begin(&mut self, strike: Strike) -> Outcome<'_>;

    /// Ends it, if it has not ended the moment it began.
    fn end(&mut self, strike: Strike) -> Outcome<'_>;

    /// Connections of clients at the server, where that can be told.
    fn connections(&self) -> Option<u64> {
        None
    }

    /// What is in the store besides fences. `None` where the crate's own list has to do.
    fn records(&self) -> Option<Vec<String>> {
        None
    }
}

/// What is done at once is done.
fn done<'a>() -> Outcome<'a> {
    ready(Ok(())).boxed_local()
}

/// A fault is not one of those that the store has said it can have.
fn unknown<'a>(fault: ServerFault) -> Outcome<'a> {
    ready(Err(format!("this store cannot have {fault:?}"))).boxed_local()
}

/// A line to one server, through which `url` leads.
async fn one_line(port: u16, url: impl FnOnce(u16) -> String) -> (Line, String) {
    let line = Line::to(&[port]).await;
    let through = line.ports()[0];
    (line, url(through))
}

/// Two of five.
fn minority<T>(nodes: &mut [T], which: usize) -> impl Iterator<Item = &mut T> {
    let count = nodes.len();
    let (size, first) = (count.saturating_sub(1) / 2, which % count);
    nodes
        .iter_mut()
        .enumerate()
        .filter(move |(n, _)| (n + count - first) % count < size)
        .map(|(_, node)| node)
}
