//! A wire between a client and a MySQL server on which one request can get lost, lose its answer, or arrive late.
//!
//! It knows where requests and answers end, so that a fault hits exactly the one it is meant for, however the bytes were packed.

use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::server::url_of;
use crate::support::within;

/// How long a request that was late may take then.
const DELIVERY: Duration = Duration::from_secs(5);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is cut before the request reaches the server.
    Lost,
    /// The connection is cut when the server has answered.
    Unanswered,
    /// The client hears nothing; the request reaches the server when [`Wire::deliver`] is called.
    Late,
}

/// How far a request is that is late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Late {
    /// There is none.
    #[default]
    None,
    Held,
    Sent,
    /// The server has carried it out, or has closed the connection.
    Done,
}

/// A proxy on loopback, on the runtime that started it. Ends when dropped, with all its connections.
#[derive(Debug)]
pub(crate) struct Wire {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    server_port: u16,
    /// How many requests were sent that open a session or change records,
    requests: AtomicUsize,
    /// how many others: that take or release named locks, or show that a connection is alive,
    others: AtomicUsize,
    /// and how many that look or wait, which is done again after some time.
    looks: AtomicUsize,
    /// Which of the former is hit, counted from 0, and how.
    trap: Mutex<Option<(usize, Fault)>>,
    /// Told when it was.
    sprung: Mutex<Option<oneshot::Sender<()>>>,
    /// What has become of the request that is late.
    late: watch::Sender<Late>,
    /// Sending is a cut.
    cuts: watch::Sender<()>,
    /// Whether nothing goes either way.
    is_held: watch::Sender<bool>,
}

impl Shared {
    /// What happens to the request that has just been read.
    fn next(&self, request: &Request) -> Option<Fault> {
        if !request.is_of_changes() {
            let count = if request.is_of_any(&LOOKS) { &self.looks } else { &self.others };
            count.fetch_add(1, Ordering::SeqCst);
            return None;
        }
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let mut trap = self.trap.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, fault) = trap.take_if(|(nth, _)| *nth == number)?;
        if let Some(sprung) = self.sprung.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The test may not wait for it.
            let _ = sprung.send(());
        }
        Some(fault)
    }
}

impl Wire {
    /// A wire to the server on `server_port`.
    pub(crate) async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("a listener has an address").port();
        let shared = Arc::new(Shared {
            server_port,
            requests: AtomicUsize::default(),
            others: AtomicUsize::default(),
            looks: AtomicUsize::default(),
            trap: Mutex::default(),
            sprung: Mutex::default(),
            late: watch::Sender::default(),
            cuts: watch::Sender::new(()),
            is_held: watch::Sender::new(false),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { port, shared, accepting }
    }

    pub(crate) fn url(&self) -> String {
        url_of(self.port)
    }

    /// How many requests were sent so far that open a session or change records.
    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// How many others: that take or release named locks, or show that a connection is alive.
    pub(crate) fn others(&self) -> usize {
        self.shared.others.load(Ordering::SeqCst)
    }

    /// How many that look or wait.
    pub(crate) fn looks(&self) -> usize {
        self.shared.looks.load(Ordering::SeqCst)
    }

    /// Has the `nth` request from now on fail. The future is ready when it does.
    pub(crate) fn trap(&self, nth: usize, fault: Fault) -> oneshot::Receiver<()> {
        let (send, sprung) = oneshot::channel();
        *self.shared.sprung.lock().expect("no panic") = Some(send);
        *self.shared.trap.lock().expect("no panic") = Some((self.requests() + nth, fault));
        sprung
    }

    /// No request will fail.
    pub(crate) fn disarm(&self) {
        *self.shared.trap.lock().expect("no panic") = None;
    }

    /// Lets what is late reach the server, if anything is, and waits until it has been carried out.
    pub(crate) async fn deliver(&self) {
        let is_held = self.shared.late.send_if_modified(|late| {
            let is_held = *late == Late::Held;
            *late = if is_held { Late::Sent } else { *late };
            is_held
        });
        if is_held {
            let mut late = self.shared.late.subscribe();
            within(DELIVERY, late.wait_for(|late| *late == Late::Done)).await.expect("the wire is there");
        }
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

impl Drop for Wire {
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
    let (fault, faults) = watch::channel(None);
    tokio::select! {
        () = pass_requests(from_client, to_server, shared, fault) => {}
        () = pass_answers(from_server, to_client, shared, faults) => {}
    }
}

/// A packet with its head: three bytes with its length, and its number in the exchange.
async fn packet(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4];
    from.read_exact(&mut bytes).await.ok()?;
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]) as usize;
    bytes.resize(4 + length, 0);
    from.read_exact(&mut bytes[4..]).await.ok()?;
    Some(bytes)
}

/// The first packet of what a client sends.
struct Request<'a>(&'a [u8]);

impl Request<'_> {
    /// Whether a command begins, and not a part of the login.
    fn is_command(&self) -> bool {
        self.0[3] == 0
    }

    /// Whether it is a query that reads or changes records, or sets up a session.
    fn is_of_changes(&self) -> bool {
        const QUERY: u8 = 3;

        self.0.get(4) == Some(&QUERY) && !self.is_of_any(&OTHERS) && !self.is_of_any(&LOOKS)
    }

    /// Whether its text begins like one of these.
    fn is_of_any(&self, beginnings: &[&str]) -> bool {
        let text = self.0.get(5..).unwrap_or_default();
        beginnings.iter().any(|beginning| text.starts_with(beginning.as_bytes()))
    }
}

const OTHERS: [&str; 3] = ["DO 0", "SELECT GET_LOCK('", "SELECT RELEASE_LOCK"];
const LOOKS: [&str; 2] = ["SELECT IF(GET_LOCK", "SELECT k, version, doc FROM leasehold WHERE (k"];

/// Finds the end of the answer to a command.
#[derive(Debug, Default)]
enum Answer {
    #[default]
    Begins,
    Columns(u8),
    Rows,
}

impl Answer {
    /// Whether this packet is the last one. Ends of rows are of the kind that clients of today are sent.
    fn ends_with(&mut self, packet: &[u8]) -> bool {
        let body = &packet[4..];
        let kind = body.first().copied().unwrap_or_default();
        match self {
            _ if kind == 0xff => true,
            Self::Begins if kind == 0 => !has_more(body),
            Self::Begins => {
                *self = Self::Columns(kind);
                false
            }
            Self::Columns(left) if *left > 1 => {
                *left -= 1;
                false
            }
            Self::Columns(_) => {
                *self = Self::Rows;
                false
            }
            Self::Rows if kind == 0xfe => {
                *self = Self::Begins;
                !has_more(body)
            }
            Self::Rows => false,
        }
    }
}

/// Whether the answer to another statement follows.
fn has_more(body: &[u8]) -> bool {
    const MORE_RESULTS: u8 = 8;
    let mut rest = &body[1..];
    for _ in 0..2 {
        let bytes = match rest[0] {
            0xfc => 3,
            0xfd => 4,
            0xfe => 9,
            _ => 1,
        };
        rest = &rest[bytes..];
    }
    rest[0] & MORE_RESULTS != 0
}

async fn unheld(shared: &Shared) {
    // An error means that the wire is gone, and this with it.
    let _ = shared.is_held.subscribe().wait_for(|is_held| !is_held).await;
}

async fn pass_requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    shared: &Shared,
    fault: watch::Sender<Option<Fault>>,
) {
    while let Some(packet) = packet(&mut client).await {
        let request = Request(&packet);
        let hit = request.is_command().then(|| shared.next(&request)).flatten();
        match hit {
            None => {}
            Some(Fault::Lost) => return,
            Some(Fault::Unanswered) => drop(fault.send_replace(Some(Fault::Unanswered))),
            Some(Fault::Late) => {
                fault.send_replace(Some(Fault::Late));
                shared.late.send_replace(Late::Held);
                // Whatever the client does meanwhile.
                let _ = shared.late.subscribe().wait_for(|late| *late == Late::Sent).await;
                let _ = server.write_all(&packet).await;
                // Until it is answered.
                pending::<()>().await;
            }
        }
        unheld(shared).await;
        if server.write_all(&packet).await.is_err() {
            return;
        }
    }
}

async fn pass_answers(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    shared: &Shared,
    faults: watch::Receiver<Option<Fault>>,
) {
    // When this ends, a request that is late is done.
    let _late = scopeguard::guard((), |()| {
        if *faults.borrow() == Some(Fault::Late) {
            shared.late.send_replace(Late::Done);
        }
    });
    let mut answer = Answer::default();
    while let Some(packet) = packet(&mut server).await {
        let fault = *faults.borrow();
        if fault.is_some() {
            // There is one request at a time, so this is its answer.
            if answer.ends_with(&packet) {
                return;
            }
            continue;
        }
        unheld(shared).await;
        if client.write_all(&packet).await.is_err() {
            return;
        }
    }
}
