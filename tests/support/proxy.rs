//! A wire between client and server that can be cut, held, and made to lose one reply.
//!
//! It forwards whole requests and whole replies (RESP2 and RESP3), so that a fault hits exactly the command it
//! is meant for, however the bytes were packed.

use std::fmt;
use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::budget::Budget;
use super::resp::{Reply, parse_request};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
    Both,
}

/// What a connection of a client carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Commands; also on every connection that has not subscribed yet.
    Commands,
    /// Messages of subscriptions.
    Messages,
}

/// A proxy on loopback, on the runtime that started it. Ends when dropped, with all its connections.
#[derive(Debug)]
pub struct Proxy {
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
    /// How many connections are accepted at most.
    most: AtomicUsize,
    /// How long each reply takes longer, one after another, in microseconds.
    delay: AtomicU64,
    forgetting_tickets: AtomicBool,
    /// Sending is a log-out of every connection there is.
    log_outs: watch::Sender<()>,
    accepted: AtomicUsize,
    open: AtomicUsize,
    trap: Mutex<Option<Trap>>,
    watch: Mutex<Option<Trap>>,
    /// The request with which its connection is held.
    hold: Mutex<Option<Trap>>,
    /// Sending ends that.
    resumes: watch::Sender<()>,
    /// What may go to the server, and to the client.
    budgets: (Budget, Budget),
}

/// What is held back.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    by_traffic: [HeldTraffic; 2],
    /// What goes to the server on as many connections as this, those accepted first.
    earliest: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct HeldTraffic {
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
struct Trap {
    meant: Box<dyn Fn(&Request) -> bool + Send>,
    sprung: oneshot::Sender<()>,
}

impl fmt::Debug for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trap").finish_non_exhaustive()
    }
}

/// One request on its way to the server.
#[derive(Debug)]
pub struct Request {
    bytes: Vec<u8>,
    words: Vec<String>,
}

impl Request {
    /// The command and its arguments.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Whether the bytes occur anywhere in it.
    pub fn contains(&self, needle: &[u8]) -> bool {
        self.bytes.windows(needle.len()).any(|window| window == needle)
    }

    /// The keys and the arguments of a script call; `None` if it is none.
    pub fn script_call(&self) -> Option<(&[String], &[String])> {
        let [command, _, count, rest @ ..] = self.words() else { return None };
        let called = ["EVAL", "EVALSHA"].iter().any(|name| command.eq_ignore_ascii_case(name));
        if called { rest.split_at_checked(count.parse().ok()?) } else { None }
    }

    /// How many confirmations answer it, if it begins or ends subscriptions.
    fn confirmations(&self) -> Option<u64> {
        let (command, channels) = self.words.split_first()?;
        let subscribes = command.to_ascii_lowercase().ends_with("subscribe");
        subscribes.then_some(channels.len() as u64)
    }
}

/// What a server sends. In RESP3 it pushes confirmations as it pushes messages; in RESP2 all three look the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Answer,
    Confirmation,
    Message,
}

/// The state of one connection.
#[derive(Default)]
struct Connection {
    /// How many answers and how many confirmations are to be expected for what was asked so far.
    answers: u64,
    confirmations: u64,
    /// What to lose, counted from 0 among its kind, and whom to tell.
    doomed: Option<(Sent, u64, oneshot::Sender<()>)>,
}

impl Proxy {
    /// A proxy before the server on `server_port`.
    pub async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("a listener has an address").port();
        let wire = Arc::new(Wire {
            server_port,
            held: watch::Sender::default(),
            cuts: watch::Sender::default(),
            most: AtomicUsize::new(usize::MAX),
            delay: AtomicU64::default(),
            forgetting_tickets: AtomicBool::default(),
            log_outs: watch::Sender::default(),
            accepted: AtomicUsize::default(),
            open: AtomicUsize::default(),
            trap: Mutex::default(),
            watch: Mutex::default(),
            hold: Mutex::default(),
            resumes: watch::Sender::default(),
            budgets: Default::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&wire)));
        Self { port, wire, accepting }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        super::acl::url_of(self.port)
    }

    /// How many connections were accepted so far; refused ones do not count.
    pub fn accepted(&self) -> usize {
        self.wire.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open now.
    pub fn open(&self) -> usize {
        self.wire.open.load(Ordering::SeqCst)
    }

    /// Closes all connections there are (FIN), on both sides. New ones are welcome.
    pub fn cut(&self) {
        self.wire.cuts.send_replace(Cut::Close);
    }

    /// Closes the next connection that is to carry more than so many bytes that way, after as many.
    pub fn cut_after(&self, to_server: bool, bytes: usize) {
        let (requests, replies) = &self.wire.budgets;
        let budget = if to_server { requests } else { replies };
        budget.cut_after(bytes);
    }

    /// Resets all connections there are (RST), on both sides. New ones are welcome.
    pub fn reset(&self) {
        self.wire.cuts.send_replace(Cut::Reset);
    }

    /// Black hole: nothing goes that way any more, no connection is closed, and new ones are accepted and
    /// held as well. The bytes are kept.
    pub fn hold(&self, direction: Direction) {
        self.hold_traffic(Traffic::Commands, direction);
        self.hold_traffic(Traffic::Messages, direction);
    }

    /// The connections there are keep back what goes to the server, also their end: a network that loses its route.
    /// Others are not affected.
    pub fn hold_connections(&self) {
        let earliest = self.accepted();
        self.wire.held.send_modify(|held| held.earliest = earliest);
    }

    /// The same for the connections with this traffic, of every client.
    pub fn hold_traffic(&self, traffic: Traffic, direction: Direction) {
        self.wire.held.send_modify(|held| {
            let held = &mut held.by_traffic[traffic as usize];
            held.to_server |= direction != Direction::ToClient;
            held.to_client |= direction != Direction::ToServer;
        });
    }

    /// Stops holding this traffic; what was kept is delivered.
    pub fn resume_traffic(&self, traffic: Traffic) {
        self.wire.held.send_modify(|held| held.by_traffic[traffic as usize] = HeldTraffic::default());
    }

    /// From now on, all places in queues seem to have the same ticket: a server that does not tell one from another.
    pub fn forget_tickets(&self) {
        self.wire.forgetting_tickets.store(true, Ordering::SeqCst);
    }

    /// From its next request on, each connection there is has not logged in. New ones can. (The server must require
    /// it.)
    pub fn log_out(&self) {
        self.wire.log_outs.send_replace(());
    }

    /// Completes when the next request that is `meant` goes to the server.
    pub fn next_request(&self, meant: impl Fn(&Request) -> bool + Send + 'static) -> oneshot::Receiver<()> {
        let (sprung, done) = oneshot::channel();
        *lock(&self.wire.watch) = Some(Trap { meant: Box::new(meant), sprung });
        done
    }

    /// Holds one connection: what it sends to the server from the next request on that is `meant`, also its end. The
    /// returned receiver completes when that request has arrived here.
    pub fn hold_connection_at(
        &self,
        meant: impl Fn(&Request) -> bool + Send + 'static,
    ) -> oneshot::Receiver<()> {
        let (sprung, held) = oneshot::channel();
        *lock(&self.wire.hold) = Some(Trap { meant: Box::new(meant), sprung });
        held
    }

    /// Ends all holding; what was kept is delivered.
    pub fn resume(&self) {
        self.wire.resumes.send_replace(());
        self.wire.held.send_replace(Held::default());
    }

    /// From now on each reply takes so much longer, one after another: a server that is slow.
    pub fn delay_replies(&self, by: Duration) {
        self.wire.delay.store(by.as_micros() as u64, Ordering::SeqCst);
    }

    /// From now on, closes every new connection at once; `false` ends that.
    pub fn refuse(&self, refusing: bool) {
        self.accept_at_most(if refusing { 0 } else { usize::MAX });
    }

    /// Closes every new connection at once after this many have been accepted.
    pub fn accept_at_most(&self, connections: usize) {
        self.wire.most.store(connections, Ordering::SeqCst);
    }

    /// Loses one reply: the next request that contains `needle` reaches the server, and when the server has
    /// answered it, its connection is closed instead of delivering the answer. Replies to requests before it
    /// are delivered.
    ///
    /// The returned receiver completes when that has happened. Not for connections that unsubscribe from
    /// everything at once, since the number of answers to that cannot be told from the request.
    pub fn cut_after_next_request_matching(&self, needle: impl Into<Vec<u8>>) -> oneshot::Receiver<()> {
        let needle = needle.into();
        self.cut_after_next_request(move |request| request.contains(&needle))
    }

    /// The same for the next request that is `meant`.
    pub fn cut_after_next_request(
        &self,
        meant: impl Fn(&Request) -> bool + Send + 'static,
    ) -> oneshot::Receiver<()> {
        let (sprung, done) = oneshot::channel();
        *lock(&self.wire.trap) = Some(Trap { meant: Box::new(meant), sprung });
        done
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Wire {
    /// Waits until bytes may go that way, on a connection for what `listens` says.
    async fn passable(&self, direction: Direction, number: usize, listens: &AtomicBool) {
        let mut held = self.held.subscribe();
        let free = |all: &Held| {
            if direction == Direction::ToServer && number < all.earliest {
                return false;
            }
            let traffic = if listens.load(Ordering::SeqCst) { Traffic::Messages } else { Traffic::Commands };
            let held = all.by_traffic[traffic as usize];
            if direction == Direction::ToServer { !held.to_server } else { !held.to_client }
        };
        held.wait_for(free).await.expect("the wire outlives its connections");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the trap if `request` springs it.
fn spring(trap: &Mutex<Option<Trap>>, request: &Request) -> Option<oneshot::Sender<()>> {
    let trapped = |trap: &mut Trap| (trap.meant)(request);
    lock(trap).take_if(trapped).map(|trap| trap.sprung)
}

async fn accept(listener: TcpListener, wire: Arc<Wire>) {
    // Aborted with this task.
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        while connections.try_join_next().is_some() {}
        if wire.accepted.load(Ordering::SeqCst) >= wire.most.load(Ordering::SeqCst) {
            continue;
        }
        // Before it is counted: a cut must reach every connection that was seen.
        let cuts = wire.cuts.subscribe();
        let number = wire.accepted.fetch_add(1, Ordering::SeqCst);
        let counted = Counted::new(Arc::clone(&wire));
        connections.spawn(async move {
            // However it ends, both sides are closed.
            let _ = serve(client, number, cuts, &counted.0).await;
        });
    }
}

async fn serve(
    mut client: TcpStream,
    number: usize,
    mut cuts: watch::Receiver<Cut>,
    wire: &Wire,
) -> io::Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, wire.server_port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (connection, listens) = (Mutex::new(Connection::default()), AtomicBool::default());
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    tokio::select! {
        end = requests(client_reads, server_writes, wire, number, &connection, &listens) => end,
        end = replies(server_reads, client_writes, wire, number, &connection, &listens) => end,
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
    number: usize,
    connection: &Mutex<Connection>,
    listens: &AtomicBool,
) -> io::Result<()> {
    let mut frames = Frames::default();
    let mut log_outs = wire.log_outs.subscribe();
    loop {
        let request = frames.next(&mut client, parse_request).await?;
        let Some((bytes, words)) = request else {
            // Its end takes the same way.
            wire.passable(Direction::ToServer, number, listens).await;
            return Ok(());
        };
        let request = Request { bytes, words };
        if request.confirmations().is_some() {
            listens.store(true, Ordering::SeqCst);
        }
        if let Some(held) = spring(&wire.hold, &request) {
            let mut resumes = wire.resumes.subscribe();
            let _ = held.send(());
            resumes.changed().await.expect("the wire outlives its connections");
        }
        wire.passable(Direction::ToServer, number, listens).await;
        if log_outs.has_changed().is_ok_and(|changed| changed) {
            log_outs.mark_unchanged();
            server.write_all(b"RESET\r\n").await?;
        }
        lock(connection).note(&request, wire);
        let some = wire.budgets.0.take(&request.bytes);
        server.write_all(some).await?;
        if some.len() < request.bytes.len() {
            return Ok(());
        }
        if let Some(seen) = spring(&wire.watch, &request) {
            let _ = seen.send(());
        }
    }
}

impl Connection {
    /// Counts what will come for `request`, and dooms it if the trap says so.
    fn note(&mut self, request: &Request, wire: &Wire) {
        let (kind, next, count) = match request.confirmations() {
            Some(count) => (Sent::Confirmation, &mut self.confirmations, count),
            None => (Sent::Answer, &mut self.answers, 1),
        };
        if let Some(sprung) = spring(&wire.trap, request) {
            self.doomed = Some((kind, *next, sprung));
        }
        *next += count;
    }
}

async fn replies(
    mut server: ReadHalf<'_>,
    mut client: WriteHalf<'_>,
    wire: &Wire,
    number: usize,
    connection: &Mutex<Connection>,
    listens: &AtomicBool,
) -> io::Result<()> {
    let mut frames = Frames::default();
    let (mut answers, mut confirmations) = (0, 0);
    loop {
        let Some((mut bytes, reply)) = frames.next(&mut server, Reply::parse).await? else { return Ok(()) };
        if reply == Reply::Simple("RESET".to_owned()) {
            // No client has asked for that.
            continue;
        }
        if wire.forgetting_tickets.load(Ordering::SeqCst) {
            forget_ticket(&mut bytes, &reply);
        }
        let sent = kind_of(&reply);
        let count = match sent {
            Sent::Answer => Some(&mut answers),
            Sent::Confirmation => Some(&mut confirmations),
            Sent::Message => None,
        };
        if let Some(count) = count {
            let mut connection = lock(connection);
            let is_doomed = |doomed: &mut (Sent, u64, _)| (doomed.0, doomed.1) == (sent, *count);
            if let Some((_, _, sprung)) = connection.doomed.take_if(is_doomed) {
                let _ = sprung.send(());
                return Ok(());
            }
            *count += 1;
        }
        match wire.delay.load(Ordering::SeqCst) {
            0 => {}
            micros => sleep(Duration::from_micros(micros)).await,
        }
        wire.passable(Direction::ToClient, number, listens).await;
        let some = wire.budgets.1.take(&bytes);
        client.write_all(some).await?;
        if some.len() < bytes.len() {
            return Ok(());
        }
    }
}

/// Cuts a stream of bytes into requests or replies.
#[derive(Default)]
struct Frames {
    unread: Vec<u8>,
}

impl Frames {
    async fn next<T>(
        &mut self,
        stream: &mut ReadHalf<'_>,
        parse: impl Fn(&[u8]) -> Option<(T, usize)>,
    ) -> io::Result<Option<(Vec<u8>, T)>> {
        loop {
            if let Some((frame, len)) = parse(&self.unread) {
                let rest = self.unread.split_off(len);
                return Ok(Some((mem::replace(&mut self.unread, rest), frame)));
            }
            if stream.read_buf(&mut self.unread).await? == 0 {
                return Ok(None);
            }
        }
    }
}

fn kind_of(reply: &Reply) -> Sent {
    let (items, unasked) = match reply {
        Reply::Array(items) => (items, Sent::Answer),
        Reply::Push(items) => (items, Sent::Message),
        _ => return Sent::Answer,
    };
    // `message`, channel, payload; `subscribe`, channel, number of subscriptions.
    let kind = items.first().and_then(Reply::text).unwrap_or_default();
    match (&*kind, items.last()) {
        ("message" | "pmessage" | "smessage", _) => Sent::Message,
        (kind, Some(Reply::Int(_))) if kind.ends_with("subscribe") => Sent::Confirmation,
        _ => unasked,
    }
}

/// Overwrites the ticket in a grant (`grant`, lease, token, ticket, ...) or in the answer "queued", where it comes
/// last.
fn forget_ticket(bytes: &mut [u8], reply: &Reply) {
    let text = match reply {
        Reply::Push(items) => items.last().and_then(Reply::text),
        Reply::Array(items) if matches!(items[..], [_, _, _] | [_, _, _, _, _, _]) => {
            items.last().and_then(Reply::text)
        }
        _ => None,
    };
    let Some(text) = text else { return };
    let ticket = if text.starts_with("grant ") { text.split(' ').nth(3) } else { Some(&*text) };
    let is_ticket = |text: &&str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(ticket) = ticket.filter(is_ticket) else { return };
    let at = bytes.windows(ticket.len()).rposition(|window| window == ticket.as_bytes());
    let at = at.expect("the reply was made of these bytes");
    bytes[at..at + ticket.len()].fill(b'1');
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
