//! A proxy to a database server that refuses queries or connections with an error of the test's choice, stops, or is
//! slow.

// Each of the programs that include this uses a part.
#![allow(dead_code)]

use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::wire::{Message, Protocol};

/// A protocol in which errors can be told.
pub trait Refusable: Protocol {
    /// Whether the client sends the first message.
    const CLIENT_BEGINS: bool;

    /// What a server says to a client, to the first message or to a query.
    fn error(code: &str, is_first: bool) -> Vec<u8>;
}

/// What it does with what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Passes,
    /// Each part of an answer is passed on this much later.
    Late(Duration),
    /// Nothing is passed on any more, and new connections are accepted and not answered, as by a process that is
    /// stopped.
    Hangs,
    /// Closes all connections, and each new one as soon as it is accepted.
    Drops,
    /// Closes all connections, and answers each new one with this error.
    Refuses(&'static str),
    /// Answers queries that contain one of these texts with this error.
    RefusesQueries(&'static str, &'static [&'static str]),
    /// Passes on queries with the second text, which is as long, instead of the first one.
    Replaces(&'static str, &'static str),
}

/// What becomes of the connections there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Swallowed,
    Closed,
}

/// Ends when dropped, with all its connections.
#[derive(Debug)]
pub struct RefusingProxy<P> {
    port: u16,
    mode: watch::Sender<Mode>,
    /// Each connection that is open has one.
    fates: watch::Sender<Fate>,
    accepting: JoinHandle<()>,
    protocol: PhantomData<fn() -> P>,
}

impl<P: Refusable> RefusingProxy<P> {
    pub async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let (mode, fates) = (watch::Sender::new(Mode::Passes), watch::Sender::new(Fate::Closed));
        let accepting = tokio::spawn(accept::<P>(listener, server_port, mode.clone(), fates.clone()));
        Self { port, mode, fates, accepting, protocol: PhantomData }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// From now on.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
        match mode {
            Mode::Hangs => self.swallow(),
            Mode::Drops | Mode::Refuses(_) => drop(self.fates.send_replace(Fate::Closed)),
            _ => {}
        }
    }

    /// The connections there are swallow everything, as behind a router that has forgotten them.
    pub fn swallow(&self) {
        self.fates.send_replace(Fate::Swallowed);
    }

    pub fn open(&self) -> usize {
        self.fates.receiver_count()
    }
}

impl<P> Drop for RefusingProxy<P> {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept<P: Refusable>(
    listener: TcpListener,
    server_port: u16,
    mode: watch::Sender<Mode>,
    fates: watch::Sender<Fate>,
) {
    // Aborted with this task.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(serve::<P>(client, server_port, mode.subscribe(), fates.subscribe()));
    }
}

async fn serve<P: Refusable>(
    mut client: TcpStream,
    server_port: u16,
    mode: watch::Receiver<Mode>,
    mut fates: watch::Receiver<Fate>,
) {
    let now = *mode.borrow();
    match now {
        Mode::Hangs => return std::future::pending().await,
        Mode::Drops => return,
        Mode::Refuses(code) => return refuse::<P>(&mut client, code).await,
        _ => {}
    }
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server_port)).await else { return };
    let _ = client.set_nodelay(true);
    let ((mut from_client, to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let to_client = Mutex::new(to_client);
    tokio::select! {
        () = requests::<P>(&mut from_client, &mut to_server, &to_client, &mode) => return,
        () = answers(&mut from_server, &to_client, &mode) => return,
        _ = fates.changed() => {}
    }
    let fate = *fates.borrow();
    if fate == Fate::Swallowed {
        std::future::pending().await
    }
}

async fn requests<P: Refusable>(
    client: &mut OwnedReadHalf,
    server: &mut OwnedWriteHalf,
    to_client: &Mutex<OwnedWriteHalf>,
    mode: &watch::Receiver<Mode>,
) {
    let mut protocol = P::default();
    while let Some((request, kind)) = protocol.request(client).await {
        let now = *mode.borrow();
        let contains = |text: &str| request.windows(text.len()).any(|part| part == text.as_bytes());
        let passed_on = match now {
            Mode::RefusesQueries(code, texts)
                if kind != Message::Part && texts.iter().any(|text| contains(text)) =>
            {
                to_client.lock().await.write_all(&P::error(code, false)).await
            }
            Mode::Replaces(from, to) => server.write_all(&replaced(request, from, to)).await,
            _ => server.write_all(&request).await,
        };
        if passed_on.is_err() {
            return;
        }
    }
}

fn replaced(mut request: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    while let Some(at) = request.windows(from.len()).position(|part| part == from.as_bytes()) {
        request[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    request
}

async fn answers(
    server: &mut OwnedReadHalf,
    to_client: &Mutex<OwnedWriteHalf>,
    mode: &watch::Receiver<Mode>,
) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = server.read(&mut bytes).await {
        let now = *mode.borrow();
        if let Mode::Late(by) = now {
            sleep(by).await;
        }
        if to_client.lock().await.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

async fn refuse<P: Refusable>(client: &mut TcpStream, code: &str) {
    if P::CLIENT_BEGINS {
        let _ = client.read(&mut vec![0; 4096]).await;
    }
    let _ = client.write_all(&P::error(code, true)).await;
}
