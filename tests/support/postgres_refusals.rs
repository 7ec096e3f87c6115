//! A proxy to a PostgreSQL server that refuses connections with an error of the test's choice, stops, or is slow.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// What it does with what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Passes,
    /// Each part of an answer is passed on this much later.
    Late(Duration),
    /// Nothing is passed on any more, and new connections are accepted and not answered, as by a process that is stopped.
    Hangs,
    /// Closes all connections, and each new one as soon as it is accepted.
    Drops,
    /// Closes all connections, and answers each new one with this SQLSTATE.
    Refuses(&'static str),
}

/// Ends when dropped, with all its connections.
#[derive(Debug)]
pub(crate) struct RefusingProxy {
    port: u16,
    mode: watch::Sender<Mode>,
    accepting: JoinHandle<()>,
}

impl RefusingProxy {
    pub(crate) async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let mode = watch::Sender::new(Mode::Passes);
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server_port));
        let accepting = tokio::spawn(accept(listener, server, mode.clone()));
        Self { port, mode, accepting }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// From now on.
    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for RefusingProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, mode: watch::Sender<Mode>) {
    // Aborted with this task.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(client, server, mode.subscribe()));
    }
}

async fn serve(mut client: TcpStream, server: SocketAddr, mode: watch::Receiver<Mode>) {
    let now = *mode.borrow();
    match now {
        Mode::Hangs => return std::future::pending().await,
        Mode::Drops => return,
        Mode::Refuses(code) => return refuse(&mut client, code).await,
        Mode::Passes | Mode::Late(_) => {}
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let mut changes = mode.clone();
    tokio::select! {
        () = pass_on(from_client, to_server, mode.clone(), false) => {}
        () = pass_on(from_server, to_client, mode, true) => {}
        _ = changes.wait_for(|mode| matches!(mode, Mode::Drops | Mode::Refuses(_))) => {}
    }
}

async fn pass_on(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mode: watch::Receiver<Mode>,
    is_answer: bool,
) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        let now = *mode.borrow();
        match now {
            Mode::Hangs => return std::future::pending().await,
            Mode::Late(by) if is_answer => sleep(by).await,
            _ => {}
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

/// Answers the first message of a client.
async fn refuse(client: &mut TcpStream, code: &str) {
    let mut bytes = vec![0; 4096];
    let _ = client.read(&mut bytes).await;
    let fields = format!("SFATAL\0VFATAL\0C{code}\0Mas a test\0\0");
    let mut message = vec![b'E'];
    message.extend((fields.len() as u32 + 4).to_be_bytes());
    message.extend(fields.bytes());
    let _ = client.write_all(&message).await;
}
