//! A wire between client and server that can be cut, held, and made to lose one reply.
//!
//! It forwards whole requests and whole replies (RESP2), so that a fault hits exactly the command it is meant
//! for, however the bytes were packed.

use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::resp::Reply;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
    Both,
}

/// A proxy on loopback, on the runtime that started it. Ends when dropped, with all its connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    wire: Arc<Wire>,
    accepting: JoinHandle<()>,
}

/// What the test controls and the connections obey.
#[derive(Debug)]
struct Wire {
    server_port: u16,
    held: watch::Sender<Held>,
    /// How the last cut is made; sending again is another cut.
    cuts: watch::Sender<Cut>,
    refusing: AtomicBool,
    accepted: AtomicUsize,
    open: AtomicUsize,
    trap: Mutex<Option<Trap>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    to_server: bool,
    to_client: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Cut {
    #[default]
    Close,
    Reset,
}

/// A request to wait for, whose reply shall be lost.
#[derive(Debug)]
struct Trap {
    needle: Vec<u8>,
    sprung: oneshot::Sender<()>,
}

/// Where one connection stands.
#[derive(Default)]
struct Connection {
    requests: u64,
    /// The reply to lose, counted from 0, and whom to tell.
    doomed: Option<(u64, oneshot::Sender<()>)>,
}

impl Proxy {
    /// A proxy before the server on `server_port`.
    pub(crate) async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("a listener has an address").port();
        let wire = Arc::new(Wire {
            server_port,
            held: watch::Sender::default(),
            cuts: watch::Sender::default(),
            refusing: AtomicBool::default(),
            accepted: AtomicUsize::default(),
            open: AtomicUsize::default(),
            trap: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&wire)));
        Self { port, wire, accepting }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// How many connections were accepted so far; refused ones do not count.
    pub(crate) fn accepted(&self) -> usize {
        self.wire.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open now.
    pub(crate) fn open(&self) -> usize {
        self.wire.open.load(Ordering::SeqCst)
    }

    /// Closes all connections there are (FIN), on both sides. New ones are welcome.
    pub(crate) fn cut(&self) {
        self.wire.cuts.send_replace(Cut::Close);
    }

    /// Resets all connections there are (RST), on both sides. New ones are welcome.
    pub(crate) fn reset(&self) {
        self.wire.cuts.send_replace(Cut::Reset);
    }

    /// Black hole: nothing goes that way any more, no connection is closed, and new ones are accepted and
    /// held as well. The bytes are kept.
    pub(crate) fn hold(&self, direction: Direction) {
        self.wire.held.send_modify(|held| {
            held.to_server |= direction != Direction::ToClient;
            held.to_client |= direction != Direction::ToServer;
        });
    }

    /// Ends all holding; what was kept is delivered.
    pub(crate) fn resume(&self) {
        self.wire.held.send_replace(Held::default());
    }

    /// From now on, closes every new connection at once; `false` ends that.
    pub(crate) fn refuse(&self, refusing: bool) {
        self.wire.refusing.store(refusing, Ordering::SeqCst);
    }

    /// Loses one reply: the next request that contains `needle` reaches the server, and when the server has
    /// answered it, its connection is closed instead of delivering the answer. Replies to requests before it
    /// are delivered.
    ///
    /// The returned receiver completes when that has happened. Counts one reply per request, so it is not for
    /// connections that have subscribed to several channels in one request.
    pub(crate) fn cut_after_next_request_matching(
        &self,
        needle: impl Into<Vec<u8>>,
    ) -> oneshot::Receiver<()> {
        let (sprung, done) = oneshot::channel();
        *self.wire.trap() = Some(Trap { needle: needle.into(), sprung });
        done
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Wire {
    fn trap(&self) -> std::sync::MutexGuard<'_, Option<Trap>> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the trap if `request` springs it.
    fn spring(&self, request: &[u8]) -> Option<oneshot::Sender<()>> {
        let trapped = |trap: &mut Trap| contains(request, &trap.needle);
        self.trap().take_if(trapped).map(|trap| trap.sprung)
    }

    /// Waits until bytes may go that way.
    async fn passable(&self, direction: Direction) {
        let mut held = self.held.subscribe();
        let free = |held: &Held| match direction {
            Direction::ToServer => !held.to_server,
            Direction::ToClient => !held.to_client,
            Direction::Both => !held.to_server && !held.to_client,
        };
        held.wait_for(free).await.expect("the wire outlives its connections");
    }
}

async fn accept(listener: TcpListener, wire: Arc<Wire>) {
    // Aborted with this task.
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        while connections.try_join_next().is_some() {}
        if wire.refusing.load(Ordering::SeqCst) {
            continue;
        }
        wire.accepted.fetch_add(1, Ordering::SeqCst);
        let counted = Counted::new(Arc::clone(&wire));
        connections.spawn(async move {
            // However it ends, both sides are closed.
            let _ = serve(client, &counted.0).await;
        });
    }
}

async fn serve(mut client: TcpStream, wire: &Wire) -> io::Result<()> {
    let mut cuts = wire.cuts.subscribe();
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, wire.server_port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let connection = Mutex::new(Connection::default());
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    tokio::select! {
        end = requests(client_reads, server_writes, wire, &connection) => end,
        end = replies(server_reads, client_writes, wire, &connection) => end,
        _ = cuts.changed() => {
            if *cuts.borrow() == Cut::Reset {
                client.set_zero_linger()?;
                server.set_zero_linger()?;
            }
            Ok(())
        }
    }
}

async fn requests(
    mut client: ReadHalf<'_>,
    mut server: WriteHalf<'_>,
    wire: &Wire,
    connection: &Mutex<Connection>,
) -> io::Result<()> {
    let mut frames = Frames::default();
    loop {
        let Some((request, _)) = frames.next(&mut client).await? else { return Ok(()) };
        wire.passable(Direction::ToServer).await;
        {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(sprung) = wire.spring(&request) {
                connection.doomed = Some((connection.requests, sprung));
            }
            connection.requests += 1;
        }
        server.write_all(&request).await?;
    }
}

async fn replies(
    mut server: ReadHalf<'_>,
    mut client: WriteHalf<'_>,
    wire: &Wire,
    connection: &Mutex<Connection>,
) -> io::Result<()> {
    let mut frames = Frames::default();
    let mut count = 0;
    loop {
        let Some((bytes, reply)) = frames.next(&mut server).await? else { return Ok(()) };
        if !is_message(&reply) {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, sprung)) = connection.doomed.take_if(|(doomed, _)| *doomed == count) {
                let _ = sprung.send(());
                return Ok(());
            }
            count += 1;
        }
        wire.passable(Direction::ToClient).await;
        client.write_all(&bytes).await?;
    }
}

/// Cuts a stream of bytes into requests or replies, which have the same form.
#[derive(Default)]
struct Frames {
    unread: Vec<u8>,
}

impl Frames {
    async fn next(&mut self, stream: &mut ReadHalf<'_>) -> io::Result<Option<(Vec<u8>, Reply)>> {
        loop {
            if let Some((reply, len)) = Reply::parse(&self.unread) {
                let rest = self.unread.split_off(len);
                return Ok(Some((mem::replace(&mut self.unread, rest), reply)));
            }
            if stream.read_buf(&mut self.unread).await? == 0 {
                return Ok(None);
            }
        }
    }
}

/// Whether this was published to a subscription, and so answers no request.
fn is_message(reply: &Reply) -> bool {
    let Reply::Array(items) = reply else { return false };
    let kind = items.first().and_then(Reply::text);
    matches!(kind.as_deref(), Some("message" | "pmessage" | "smessage"))
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

/// Counts a connection as open for as long as it lives.
struct Counted(Arc<Wire>);

impl Counted {
    fn new(wire: Arc<Wire>) -> Self {
        wire.open.fetch_add(1, Ordering::SeqCst);
        Self(wire)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}
