//! A wire between clients and a ZooKeeper server on which one request can get lost, lose its reply, or hold up everything.
//!
//! It knows where requests end, so that a fault hits exactly the one it is meant for, however the bytes were packed.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is cut before the request reaches the server.
    Lost,
    /// The connection is cut when the server has replied.
    Unanswered,
}

const PING: i32 = 11;

/// A proxy on loopback, on the runtime that started it. Ends when dropped, with all its connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    server_port: u16,
    /// How many requests were sent, without pings and handshakes, and how long they were.
    requests: AtomicUsize,
    bytes: AtomicUsize,
    /// Which of them is hit, counted from 0, and how; and whom to tell.
    trap: Mutex<Option<(usize, Fault, oneshot::Sender<()>)>>,
    /// Sending is a cut.
    cuts: watch::Sender<()>,
    /// Whether nothing goes either way.
    is_held: watch::Sender<bool>,
}

impl Shared {
    fn trap(&self) -> MutexGuard<'_, Option<(usize, Fault, oneshot::Sender<()>)>> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens to the request that has just been read.
    fn next(&self, length: usize) -> Option<Fault> {
        self.bytes.fetch_add(length, Ordering::SeqCst);
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let (_, fault, sprung) = self.trap().take_if(|(nth, ..)| *nth == number)?;
        // The test may not wait for it.
        let _ = sprung.send(());
        Some(fault)
    }
}

impl Proxy {
    pub(crate) async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("a listener has an address").port();
        let shared = Arc::new(Shared {
            server_port,
            requests: AtomicUsize::default(),
            bytes: AtomicUsize::default(),
            trap: Mutex::default(),
            cuts: watch::Sender::new(()),
            is_held: watch::Sender::new(false),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { port, shared, accepting }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// How many requests were sent so far, without pings.
    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Has the `nth` request from now on fail. The receiver is told when it does.
    pub(crate) fn trap(&self, nth: usize, fault: Fault) -> oneshot::Receiver<()> {
        let (send, sprung) = oneshot::channel();
        *self.shared.trap() = Some((self.requests() + nth, fault, send));
        sprung
    }

    /// No request will fail.
    pub(crate) fn disarm(&self) {
        *self.shared.trap() = None;
    }

    /// Closes all connections there are. New ones are welcome.
    pub(crate) fn cut(&self) {
        self.shared.cuts.send_replace(());
    }

    /// Black hole: nothing goes either way any more, and no connection is closed.
    pub(crate) fn hold(&self) {
        self.shared.is_held.send_replace(true);
    }

    /// Ends the hold; what was sent meanwhile arrives.
    pub(crate) fn let_go(&self) {
        self.shared.is_held.send_replace(false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let mut cuts = shared.cuts.subscribe();
            tokio::select! {
                () = connect(client, &shared) => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

async fn connect(client: TcpStream, shared: &Shared) {
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.server_port)).await else { return };
    for end in [&client, &server] {
        // Messages are passed on one by one.
        end.set_nodelay(true).expect("a connection");
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // The number of the request whose reply is lost.
    let (unanswered, of) = watch::channel(None);
    tokio::select! {
        () = pass_requests(from_client, to_server, shared, unanswered) => {}
        () = pass_replies(from_server, to_client, shared, of) => {}
    }
}

async fn message(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4];
    from.read_exact(&mut bytes).await.ok()?;
    let length = u32::from_be_bytes(bytes[..4].try_into().ok()?) as usize;
    bytes.resize(4 + length, 0);
    from.read_exact(&mut bytes[4..]).await.ok()?;
    Some(bytes)
}

fn int(message: &[u8], at: usize) -> i32 {
    message.get(at..at + 4).map_or(0, |four| i32::from_be_bytes(four.try_into().expect("four bytes")))
}

async fn unheld(shared: &Shared) {
    // An error means that the wire is gone, and this with it.
    let _ = shared.is_held.subscribe().wait_for(|is_held| !is_held).await;
}

async fn pass_requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    shared: &Shared,
    unanswered: watch::Sender<Option<i32>>,
) {
    let mut is_first = true;
    while let Some(message) = message(&mut client).await {
        let counts = !is_first && int(&message, 8) != PING;
        is_first = false;
        match counts.then(|| shared.next(message.len())).flatten() {
            None => {}
            Some(Fault::Lost) => return,
            Some(Fault::Unanswered) => drop(unanswered.send_replace(Some(int(&message, 4)))),
        }
        unheld(shared).await;
        if server.write_all(&message).await.is_err() {
            return;
        }
    }
}

async fn pass_replies(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    shared: &Shared,
    unanswered: watch::Receiver<Option<i32>>,
) {
    while let Some(message) = message(&mut server).await {
        if *unanswered.borrow() == Some(int(&message, 4)) {
            return;
        }
        unheld(shared).await;
        if client.write_all(&message).await.is_err() {
            return;
        }
    }
}
