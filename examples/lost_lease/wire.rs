//! A wire to a server that swallows everything from some moment on, and closes nothing.

use std::future::pending;
use std::io;
use std::net::Ipv4Addr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Ends when dropped, with all its connections.
#[derive(Debug)]
pub(crate) struct Wire {
    /// Leads to the server through the wire.
    pub(crate) url: String,
    accepting: AbortHandle,
}

impl Wire {
    /// A wire to the server at `url`, which swallows everything from when `silence` turns true.
    pub(crate) async fn to(url: &str, silence: watch::Receiver<bool>) -> io::Result<Self> {
        let Place { before, server, after } = Place::of(url)
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "the server is not on TCP"))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("{before}{}{after}", listener.local_addr()?);
        let accepting = tokio::spawn(accept(listener, server, silence)).abort_handle();
        Ok(Self { url, accepting })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, server: String, silence: watch::Receiver<bool>) {
    let mut connections = JoinSet::new(); // aborted with this task
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(carry(client, server.clone(), silence.clone()));
    }
}

async fn carry(mut client: TcpStream, server: String, mut silence: watch::Receiver<bool>) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    tokio::select! {
        biased;
        _ = silence.wait_for(|silent| *silent) => {}
        _ = copy_bidirectional(&mut client, &mut server) => return Ok(()),
    }
    pending().await // and both connections stay open
}

/// Whether there can be a wire to the server at `url`.
pub(crate) fn is_tcp(url: &str) -> bool {
    Place::of(url).is_some()
}

/// A URL of a TCP server, taken apart around its address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// Scheme and credentials.
    before: String,
    /// Host and port.
    server: String,
    /// Database and options.
    after: String,
}

impl Place {
    /// `None` if the URL is of another kind.
    fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, after) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (credentials, server) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let port = match scheme {
            "redis" | "valkey" => ":6379",
            "postgres" | "postgresql" => ":5432",
            "mysql" | "mariadb" => ":3306",
            "etcd" => ":2379",
            "zookeeper" => ":2181",
            _ => return None,
        };
        if server.contains(',') {
            return None;
        }
        let bare_host = !server.contains(':') || server.ends_with(']');
        Some(Self {
            before: format!("{scheme}://{credentials}"),
            server: format!("{server}{}", if bare_host { port } else { "" }),
            after: after.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_parts(url: &str, before: &str, server: &str, after: &str) {
        let [before, server, after] = [before, server, after].map(str::to_owned);
        assert_eq!(Place::of(url), Some(Place { before, server, after }));
    }

    #[test]
    fn a_url_is_taken_apart_around_its_address() {
        assert_parts("redis://127.0.0.1:7001", "redis://", "127.0.0.1:7001", "");
        assert_parts("valkey://host/2", "valkey://", "host:6379", "/2");
        assert_parts("redis://me:p@ss@[::1]/0?x=1", "redis://me:p@ss@", "[::1]:6379", "/0?x=1");
        assert_parts("postgres://me:x@host/locks", "postgres://me:x@", "host:5432", "/locks");
        assert_eq!(Place::of("redis+unix:///tmp/redis.sock"), None);
        assert_eq!(Place::of("memory:"), None);
    }
}
