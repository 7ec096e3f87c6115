//! The session of a client: it outlives its connections, and is replaced when it has expired.
//!
//! It runs in a task on the crate's own thread. Requests are pipelined: several are in flight at the same time, and the
//! server executes them in the order in which they were sent.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::builder::{Server, Settings};
use super::failure::{Code, Malformed};
use super::jute::{Message, Reader};
use super::link::{Handshake, Identity, Link, lost, unreachable};
use super::op::{MAX_REQUEST, Op, Reply};
use crate::backend::dial;
use crate::backend::records::{Failure, Health, Purpose, Remedy};
use crate::runtime::{spawn, spawn_on};

/// The pause between attempts to connect: it grows from the first of these to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));
/// How long the reply to a ping is waited for at least, unless the time limit for replies is shorter.
const MIN_PING: Duration = Duration::from_millis(500);
/// How long a connection on which nothing is sent is left alone at most.
const MAX_IDLE: Duration = Duration::from_secs(5);

const WATCH_XID: i32 = -1;
const PING_XID: i32 = -2;
const PING: i32 = 11;
const CLOSE: i32 = -11;

/// What happens besides replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// There is a connection, so that watches have to be set again. If the session is a new one, the ephemeral nodes of
    /// that before do not exist any more.
    Connected,
    /// A node that is watched has been created or written, or one of its children has been created or deleted,
    Changed(String),
    /// or deleted.
    Deleted(String),
}

/// The replies to the requests of a pipeline.
#[derive(Debug)]
pub(super) struct Replies {
    pub(super) replies: Vec<Result<Reply, Code>>,
    /// When they were sent, and when the last reply arrived.
    pub(super) sent: Instant,
    pub(super) received: Instant,
    /// On which connection: see [`Session::connections`].
    pub(super) connection: u64,
}

enum Request {
    Pipeline(Vec<Op>, oneshot::Sender<Result<Replies, Failure>>),
    /// To go on at another server, unless this connection has ended.
    Leave(u64),
    /// To end the session, or only the connection.
    Close(Ending),
}

/// What is ended when a client is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The session, and with it its ephemeral nodes.
    Session,
    /// The connection. The session ends when its time is over.
    Connection,
}

/// A session as its users see it.
pub(super) struct Session {
    settings: Arc<Settings>,
    health: Arc<Health>,
    requests: UnboundedSender<Request>,
    /// What the task begins with.
    carrier: Mutex<Option<(UnboundedReceiver<Request>, UnboundedSender<Signal>)>>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// How long the session lasts at the server without a message, in milliseconds; 0 if there has not been one yet.
    timeout: AtomicU64,
    /// How many connections there have been.
    connections: AtomicU64,
    /// Cancelled when the client is closed: no further session is begun.
    closing: CancellationToken,
    /// Whether the task that carries the session has ended.
    ended: watch::Sender<bool>,
}

impl Session {
    pub(super) fn new(settings: Arc<Settings>, health: Arc<Health>) -> (Self, UnboundedReceiver<Signal>) {
        let ((requests, to_send), (signals, signalled)) = (unbounded_channel(), unbounded_channel());
        let carrier = Mutex::new(Some((to_send, signals)));
        let state = Arc::new(State {
            timeout: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            closing: CancellationToken::new(),
            ended: watch::Sender::new(false),
        });
        (Self { settings, health, requests, carrier, state }, signalled)
    }

    /// Connects, unless it has begun to.
    pub(super) fn start(&self, runtime: &Handle) {
        let Some((requests, signals)) = self.carrier.lock().take() else { return };
        let carrier = Carrier {
            settings: Arc::clone(&self.settings),
            health: Arc::clone(&self.health),
            requests,
            signals,
            state: Arc::clone(&self.state),
            identity: None,
            last_zxid: 0,
            last_contact: Instant::now(),
            next_server: fresh_number() % self.settings.servers.len(),
            failed_rounds: 0,
        };
        spawn_on(runtime, carrier.run());
    }

    /// Sends requests, and returns with the replies to all of them. They are carried out even if the future is dropped.
    pub(super) async fn pipeline(&self, ops: Vec<Op>) -> Result<Replies, Failure> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(Request::Pipeline(ops, answer)).map_err(|_| Failure::closed())?;
        answered.await.map_err(|_| Failure::closed())?
    }

    /// How long it lasts at the server without a message; zero before the first connection.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.state.timeout.load(Ordering::Relaxed))
    }

    /// How many connections there have been. As long as there is one, the same server leads.
    pub(super) fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Continues at another server of the list: the one of this connection does not know what the others have agreed on.
    pub(super) fn leave_server(&self, connection: u64) {
        // An error means that the session has ended.
        let _ = self.requests.send(Request::Leave(connection));
    }

    /// Begins no further session: what is asked for while there is none fails.
    pub(super) fn stop_connecting(&self) {
        self.state.closing.cancel();
    }

    /// Ends the session, or leaves it, after what was sent before.
    pub(super) fn close(&self, ending: Ending) {
        // An error means that it has ended.
        let _ = self.requests.send(Request::Close(ending));
        if self.carrier.lock().take().is_some() {
            self.state.ended.send_replace(true);
        }
    }

    /// Returns when it has ended, after it was closed.
    pub(super) async fn ended(&self) {
        // An error is impossible: the sender is here.
        let _ = self.state.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

/// A number that differs from client to client, so that clients are spread over the servers.
fn fresh_number() -> usize {
    uuid::Uuid::new_v4().as_fields().0 as usize
}

/// The task that carries a session.
struct Carrier {
    settings: Arc<Settings>,
    health: Arc<Health>,
    requests: UnboundedReceiver<Request>,
    signals: UnboundedSender<Signal>,
    state: Arc<State>,
    identity: Option<Identity>,
    last_zxid: i64,
    last_contact: Instant,
    next_server: usize,
    /// How often all servers have been asked to resume the session without success.
    failed_rounds: u32,
}

impl Carrier {
    async fn run(mut self) {
        let mut pause = Duration::ZERO;
        loop {
            sleep(pause).await;
            pause = (pause * 2).clamp(PAUSES.0, PAUSES.1);
            let link = match self.connect().await {
                Ok(link) => link,
                Err(failure) => {
                    // First, so that callers whose requests fail below find the reason in the state.
                    self.health.failed(Purpose::Changes, &failure.why);
                    tracing::debug!(store = %self.settings.address, %failure, "no server can be reached");
                    if self.fail_pending(&failure) {
                        break;
                    }
                    continue;
                }
            };
            self.health.succeeded(Purpose::Changes);
            let begun = Instant::now();
            let Some(failure) = self.drive(link).await else { break };
            if begun.elapsed() > PAUSES.1 {
                pause = Duration::ZERO;
            }
            // Unless a call could not be done, nobody needs to know: it is replaced first.
            tracing::debug!(store = %self.settings.address, %failure, "the connection is lost");
        }
        self.state.ended.send_replace(true);
    }

    /// What was asked for while there is no connection fails. `true` if the session is to end.
    fn fail_pending(&mut self, failure: &Failure) -> bool {
        loop {
            use tokio::sync::mpsc::error::TryRecvError;
            match self.requests.try_recv() {
                Ok(Request::Pipeline(_, answer)) => {
                    drop(answer.send(Err(Failure { is_certain: true, ..failure.clone() })))
                }
                Ok(Request::Leave(_)) => {}
                Ok(Request::Close(_)) | Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => return false,
            }
        }
    }

    async fn connect(&mut self) -> Result<Link, Failure> {
        if self.identity.is_some()
            && let Some(link) = self.resume().await?
        {
            return Ok(link);
        }
        let state = Arc::clone(&self.state);
        state
            .closing
            .run_until_cancelled(self.begin_session())
            .await
            .unwrap_or_else(|| Err(Failure::closed()))
    }

    /// Begins a session on whichever server answers first.
    async fn begin_session(&mut self) -> Result<Link, Failure> {
        let count = self.settings.servers.len();
        let order: Vec<_> = (0..count).map(|n| (self.next_server + n) % count).collect();
        let begin = |n| {
            let settings = Arc::clone(&self.settings);
            async move { session_of_server(settings, n).await.map(|begun| (n, begun)) }
        };
        match dial::race(order.iter().copied(), self.settings.connect_timeout, begin).await {
            Ok((server, (link, identity))) => {
                self.next_server = server;
                self.begin(identity);
                Ok(link)
            }
            Err(failures) => {
                let names = order.iter().map(|n| self.settings.servers[*n].to_string());
                let failure = all_failed(names, failures, self.settings.connect_timeout);
                self.choose_another_server();
                Err(failure)
            }
        }
    }

    /// Asks the servers one after another, because the session moves to the one that was asked last: each has a share
    /// of the time limit. `None` if the session has ended.
    async fn resume(&mut self) -> Result<Option<Link>, Failure> {
        let count = self.settings.servers.len();
        let (mut names, mut failures) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let server = self.settings.servers[self.next_server].clone();
            match self.resume_at(&server).await {
                Ok(resumed) => return Ok(resumed),
                Err(failure) => failures.push(Some(failure)),
            }
            names.push(server.to_string());
            self.choose_another_server();
        }
        // Perhaps all of them are slow.
        self.failed_rounds += 1;
        Err(all_failed(names.into_iter(), failures, self.settings.connect_timeout))
    }

    async fn resume_at(&mut self, server: &Server) -> Result<Option<Link>, Failure> {
        let Some(known) = self.identity.clone() else { return Ok(None) };
        let share = self.settings.time_per_server(self.failed_rounds);
        let end = Instant::now() + share;
        let resolving = timeout(share / 2, dial::resolve(&server.host, server.port));
        let addresses = resolving.await.map_err(|_| Failure::timed_out(share / 2))?.map_err(unreachable)?;
        let mut failures = Vec::new();
        for (address, left) in addresses.iter().zip((1..=addresses.len()).rev()) {
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            let limit = end.saturating_duration_since(Instant::now()) / left;
            let opening = Link::open(server, *address, &self.settings, Some(&known), self.last_zxid);
            let opened = timeout(limit, opening).await.unwrap_or_else(|_| Err(Failure::timed_out(limit)));
            match opened {
                Ok(Handshake::Session(link, identity)) => {
                    self.begin(identity);
                    return Ok(Some(link));
                }
                Ok(Handshake::Expired) => {
                    self.forget_session();
                    return Ok(None);
                }
                // A server that has lost its data will never accept it.
                Ok(Handshake::Refused(_)) if self.last_contact.elapsed() > known.timeout => {
                    self.forget_session();
                    return Ok(None);
                }
                Ok(Handshake::Refused(failure)) | Err(failure) => failures.push(Some(failure)),
            }
        }
        Err(failure_of_addresses(&addresses, failures, share))
    }

    fn begin(&mut self, identity: Identity) {
        let timeout = u64::try_from(identity.timeout.as_millis()).unwrap_or(u64::MAX);
        self.state.timeout.store(timeout, Ordering::Relaxed);
        self.state.connections.fetch_add(1, Ordering::SeqCst);
        self.identity = Some(identity);
        self.last_contact = Instant::now();
        self.failed_rounds = 0;
        self.signal(Signal::Connected);
    }

    fn forget_session(&mut self) {
        (self.identity, self.last_zxid) = (None, 0);
    }

    fn signal(&self, signal: Signal) {
        // An error means that the store has been dropped.
        let _ = self.signals.send(signal);
    }

    /// Returns when the connection is lost, and why; `None` if the session was to end.
    async fn drive(&mut self, link: Link) -> Option<Failure> {
        let mut traffic = Traffic::new(link, self.state.connections.load(Ordering::Relaxed));
        let uncontended = (self.timeout_of_session() / 3).min(MAX_IDLE);
        let limits = Limits::new(self.settings.reply_timeout, self.timeout_of_session());
        let failure = loop {
            if traffic.is_done() {
                return None;
            }
            let deadline = traffic.deadline(limits, uncontended);
            tokio::select! {
                biased;
                received = traffic.exchange() => {
                    if let Err(failure) = received.and_then(|()| self.process_received(&mut traffic)) {
                        break failure;
                    }
                }
                request = self.requests.recv(), if !traffic.is_closing => {
                    if let Err(failure) = self.send(request, &mut traffic) {
                        break failure;
                    }
                }
                () = sleep_until(deadline.into()) => {
                    if traffic.is_overdue(limits) {
                        // It would probably not answer now either.
                        self.choose_another_server();
                        break Failure::timed_out(self.settings.reply_timeout);
                    }
                    traffic.ping_if_due(uncontended);
                }
            }
        };
        if !traffic.is_closing && !traffic.pipelines.is_empty() {
            // First, so that callers whose requests fail find the reason in the state.
            self.health.failed(Purpose::Changes, &failure.why);
        }
        traffic.abandon(&failure);
        (!traffic.is_closing).then_some(failure)
    }

    fn timeout_of_session(&self) -> Duration {
        self.identity.as_ref().map_or(MAX_IDLE, |known| known.timeout)
    }

    fn choose_another_server(&mut self) {
        self.next_server = (self.next_server + 1) % self.settings.servers.len();
    }

    /// Sends a request, and those that have been asked for since. Fails if the connection is to be left.
    fn send(&mut self, request: Option<Request>, traffic: &mut Traffic) -> Result<(), Failure> {
        let mut next = Some(request.unwrap_or(Request::Close(Ending::Connection)));
        while let Some(request) = next {
            match request {
                Request::Pipeline(ops, answer) => traffic.send(ops, answer, &self.settings),
                Request::Leave(connection) if connection == traffic.connection => {
                    let server = &self.settings.servers[self.next_server];
                    tracing::warn!(
                        target: "leasehold::store", store = %self.settings.address, %server,
                        "a server does not know what the servers have agreed on: another one is used"
                    );
                    let why = format!("{server} does not know what the servers have agreed on");
                    self.choose_another_server();
                    return Err(Failure::unavailable(why));
                }
                Request::Leave(_) => {}
                Request::Close(ending) => {
                    traffic.close(ending);
                    break;
                }
            }
            next = self.requests.try_recv().ok();
        }
        Ok(())
    }

    /// Reads what has been received.
    fn process_received(&mut self, traffic: &mut Traffic) -> Result<(), Failure> {
        while let Some(message) = traffic.link.take()? {
            self.last_contact = Instant::now();
            let mut reader = Reader(&message);
            let (xid, zxid, code) = (reader.int()?, reader.long()?, Code(reader.int()?));
            match xid {
                WATCH_XID => {
                    if let Some(signal) = read_event(&mut reader)? {
                        self.signal(signal);
                    }
                }
                PING_XID => traffic.pinged = None,
                _ => {
                    self.last_zxid = self.last_zxid.max(zxid);
                    traffic.receive(xid, code, &mut reader)?;
                }
            }
        }
        Ok(())
    }
}

/// A new session on whichever address of a server answers first.
async fn session_of_server(settings: Arc<Settings>, n: usize) -> Result<(Link, Identity), Failure> {
    let server = &settings.servers[n];
    let limit = settings.connect_timeout;
    let addresses = dial::resolve(&server.host, server.port).await.map_err(unreachable)?;
    let begin = |address| session_at(Arc::clone(&settings), n, address);
    let begun = dial::race(addresses.iter().copied(), limit, begin).await;
    begun.map_err(|failures| failure_of_addresses(&addresses, failures, limit))
}

/// A new session, begun in a task of its own: if another server or address was faster, the session is ended again.
async fn session_at(
    settings: Arc<Settings>,
    n: usize,
    address: SocketAddr,
) -> Result<(Link, Identity), Failure> {
    let (answer, answered) = oneshot::channel();
    let limit = settings.connect_timeout;
    drop(spawn(async move {
        let opening = Link::open(&settings.servers[n], address, &settings, None, 0);
        let opened = timeout(limit, opening).await.unwrap_or_else(|_| Err(Failure::timed_out(limit)));
        let begun = match opened {
            Ok(Handshake::Session(link, identity)) => Ok((link, identity)),
            Ok(Handshake::Expired) => Err(Failure::unavailable("the server did not start a session")),
            Ok(Handshake::Refused(failure)) | Err(failure) => Err(failure),
        };
        if let Err(Ok((link, _))) = answer.send(begun) {
            // What does not end in time ends by itself, when the session's time is over.
            let _ = timeout(limit, end_session(link)).await;
        }
    }));
    answered.await.unwrap_or_else(|gone| Err(Failure::unavailable(gone.to_string())))
}

/// On a connection on which nothing was asked for yet.
async fn end_session(mut link: Link) -> Result<(), Failure> {
    let mut message = Message::new();
    message.int(1).int(CLOSE);
    link.send(message.finish()).await?;
    link.next().await.map(drop)
}

/// Why nothing could be reached at any of these addresses of a server.
fn failure_of_addresses(
    addresses: &[SocketAddr],
    mut failures: Vec<Option<Failure>>,
    limit: Duration,
) -> Failure {
    if failures.len() == 1 {
        return failures.remove(0).unwrap_or_else(|| Failure::timed_out(limit));
    }
    all_failed(addresses.iter().map(ToString::to_string), failures, limit)
}

/// Why each of several was of no use; what has to be mended counts more than what may pass by itself.
fn all_failed(
    names: impl Iterator<Item = String>,
    failures: Vec<Option<Failure>>,
    limit: Duration,
) -> Failure {
    let failures: Vec<_> =
        failures.into_iter().map(|failure| failure.unwrap_or_else(|| Failure::timed_out(limit))).collect();
    let each = names.zip(&failures).map(|(name, failure)| format!("{name}: {}", failure.why));
    let why = each.collect::<Vec<_>>().join("; ");
    let most = failures.into_iter().max_by_key(|failure| failure.remedy == Remedy::Fix);
    Failure { why, ..most.unwrap_or_else(|| Failure::timed_out(limit)) }
}

pub(super) fn read_event(reader: &mut Reader<'_>) -> Result<Option<Signal>, Malformed> {
    const CREATED: i32 = 1;
    const DELETED: i32 = 2;
    const CHANGED: i32 = 3;
    const CHILDREN: i32 = 4;
    let (kind, _state, path) = (reader.int()?, reader.int()?, reader.string()?);
    Ok(match kind {
        DELETED => Some(Signal::Deleted(path)),
        CREATED | CHANGED | CHILDREN => Some(Signal::Changed(path)),
        _ => None,
    })
}

/// Writes some of the pending bytes, or flushes those that were written. Cancel safe.
async fn push(
    wire: &mut (impl AsyncWrite + Unpin),
    out: &mut Vec<u8>,
    must_flush: &mut bool,
) -> io::Result<()> {
    if out.is_empty() {
        wire.flush().await?;
        *must_flush = false;
    } else {
        let written = wire.write(out).await?;
        out.drain(..written);
        *must_flush = true;
    }
    Ok(())
}

/// Negative numbers are those of other messages.
const fn following(xid: i32) -> i32 {
    if xid == i32::MAX { 1 } else { xid + 1 }
}

/// How long the server may take to answer.
#[derive(Clone, Copy, Debug)]
struct Limits {
    reply: Duration,
    /// So short that a server that hangs is noticed before the session has ended.
    ping: Duration,
}

impl Limits {
    fn new(reply: Duration, session: Duration) -> Self {
        Self { reply, ping: reply.min((session / 3).max(MIN_PING)) }
    }
}

/// What is on its way through a connection.
struct Traffic {
    link: Link,
    connection: u64,
    /// What is to be written, and whether what was written may be held back somewhere.
    out: Vec<u8>,
    must_flush: bool,
    pipelines: VecDeque<Pipeline>,
    /// Of the next request, and of the next reply.
    next_xid: i32,
    next_reply: i32,
    last_sent: Instant,
    pinged: Option<Instant>,
    /// Nothing more is sent.
    is_closing: bool,
    is_leaving: bool,
}

struct Pipeline {
    ops: Vec<Op>,
    replies: Vec<Result<Reply, Code>>,
    sent: Instant,
    answer: oneshot::Sender<Result<Replies, Failure>>,
}

impl Traffic {
    fn new(link: Link, connection: u64) -> Self {
        Self {
            link,
            connection,
            out: Vec::new(),
            must_flush: false,
            pipelines: VecDeque::new(),
            next_xid: 1,
            next_reply: 1,
            last_sent: Instant::now(),
            pinged: None,
            is_closing: false,
            is_leaving: false,
        }
    }

    /// Writes what is to be written, until something has been received. Cancel safe.
    async fn exchange(&mut self) -> Result<(), Failure> {
        let (mut read, mut write) = tokio::io::split(&mut self.link.wire);
        let received = &mut self.link.received;
        loop {
            tokio::select! {
                biased;
                received = Link::read(&mut read, received) => return received,
                pushed = push(&mut write, &mut self.out, &mut self.must_flush),
                    if !self.out.is_empty() || self.must_flush => pushed.map_err(lost)?,
            }
        }
    }

    fn send(&mut self, ops: Vec<Op>, answer: oneshot::Sender<Result<Replies, Failure>>, settings: &Settings) {
        let (start, mut xid) = (self.out.len(), self.next_xid);
        for op in &ops {
            let message = op.message(xid, settings.access());
            if message.len() > MAX_REQUEST {
                self.out.truncate(start);
                let why = format!("a request of {} bytes exceeds the limit of ZooKeeper", message.len());
                let refused = Failure { is_broken: false, ..Failure::refused(why) };
                drop(answer.send(Err(refused)));
                return;
            }
            self.out.extend_from_slice(&message);
            xid = following(xid);
        }
        self.next_xid = xid;
        let sent = Instant::now();
        self.last_sent = sent;
        self.pipelines.push_back(Pipeline { replies: Vec::with_capacity(ops.len()), ops, sent, answer });
    }

    /// The reply to the request with this number.
    fn receive(&mut self, xid: i32, code: Code, reader: &mut Reader<'_>) -> Result<(), Failure> {
        if self.is_closing && self.pipelines.is_empty() {
            // The end of the session: the server closes the connection next.
            return Ok(());
        }
        let Some(pipeline) = self.pipelines.front_mut().filter(|_| xid == self.next_reply) else {
            return Err(Malformed.into());
        };
        self.next_reply = following(xid);
        let op = &pipeline.ops[pipeline.replies.len()];
        // The errors of a multi may also be in the header.
        let reply = match (code, op) {
            (Code::NONE, op) => op.read(reader)?,
            (code, Op::Multi(_)) if !reader.0.is_empty() => Err(op.read(reader)?.err().unwrap_or(code)),
            (code, _) => Err(code),
        };
        if let Err(code @ (Code::SESSION_EXPIRED | Code::SESSION_MOVED)) = reply {
            return Err(code.failure("the session"));
        }
        pipeline.replies.push(reply);
        if pipeline.replies.len() == pipeline.ops.len()
            && let Some(Pipeline { replies, sent, answer, .. }) = self.pipelines.pop_front()
        {
            let connection = self.connection;
            // If nobody waits for the replies any more, it was still done.
            drop(answer.send(Ok(Replies { replies, sent, received: Instant::now(), connection })));
        }
        Ok(())
    }

    /// The connection is lost.
    fn abandon(&mut self, failure: &Failure) {
        for Pipeline { ops, answer, .. } in self.pipelines.drain(..) {
            // What only reads has certainly changed nothing.
            let is_certain = !ops.iter().any(Op::writes);
            drop(answer.send(Err(Failure { is_certain, ..failure.clone() })));
        }
    }

    fn deadline(&self, limits: Limits, uncontended: Duration) -> Instant {
        let ping = self.last_sent + uncontended;
        self.end_of_wait(limits).map_or(ping, |end| ping.min(end))
    }

    fn is_overdue(&self, limits: Limits) -> bool {
        self.end_of_wait(limits).is_some_and(|end| end <= Instant::now())
    }

    /// When the server has to have answered.
    fn end_of_wait(&self, limits: Limits) -> Option<Instant> {
        let request = self.pipelines.front().map(|pipeline| pipeline.sent + limits.reply);
        let ping = self.pinged.map(|sent| sent + if self.is_closing { limits.reply } else { limits.ping });
        request.into_iter().chain(ping).min()
    }

    fn ping_if_due(&mut self, uncontended: Duration) {
        if self.last_sent.elapsed() < uncontended {
            return;
        }
        self.last_sent = Instant::now();
        self.pinged.get_or_insert(self.last_sent);
        self.control(PING_XID, PING);
    }

    /// The server closes the connection when it has ended the session.
    fn close(&mut self, ending: Ending) {
        self.is_closing = true;
        if ending == Ending::Connection {
            self.is_leaving = true;
            return;
        }
        self.pinged.get_or_insert_with(Instant::now);
        let xid = self.next_xid;
        self.control(xid, CLOSE);
    }

    /// Whether the connection is to be left, and nothing is on its way through it any more.
    fn is_done(&self) -> bool {
        self.is_leaving && self.pipelines.is_empty()
    }

    fn control(&mut self, xid: i32, code: i32) {
        let mut message = Message::new();
        message.int(xid).int(code);
        self.out.extend_from_slice(&message.finish());
    }
}
