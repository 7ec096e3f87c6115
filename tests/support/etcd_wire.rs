//! A wire between a client and an etcd server on which one message can get lost, lose its answer, or arrive late.
//!
//! It knows the frames of HTTP/2, so that a fault hits exactly the message it is meant for, however the bytes were packed.

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

/// How long a message that was late may take then.
const DELIVERY: Duration = Duration::from_secs(5);
/// What a client sends before its first frame.
const PREFACE: usize = 24;
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is cut before the message reaches the server.
    Lost,
    /// The connection is cut when the server has answered.
    Unanswered,
    /// The client hears nothing; the message reaches the server when [`Wire::deliver`] is called.
    Late,
}

/// How far a message is that is late.
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
    /// How many messages were sent: requests, and those on streams.
    messages: AtomicUsize,
    /// Which of them is hit, counted from 0, and how.
    trap: Mutex<Option<(usize, Fault)>>,
    /// Told when it was.
    sprung: Mutex<Option<oneshot::Sender<()>>>,
    /// What has become of the message that is late.
    late: watch::Sender<Late>,
    /// Sending is a cut.
    cuts: watch::Sender<()>,
    /// Whether nothing goes either way.
    is_held: watch::Sender<bool>,
}

/// A fault, and the stream that its message is on.
type Hit = Option<(Fault, u32)>;

struct Frame(Vec<u8>);

impl Frame {
    async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let mut bytes = vec![0; HEAD];
        from.read_exact(&mut bytes).await.ok()?;
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        bytes.resize(HEAD + length, 0);
        from.read_exact(&mut bytes[HEAD..]).await.ok()?;
        Some(Self(bytes))
    }

    fn stream(&self) -> u32 {
        u32::from_be_bytes(self.0[5..HEAD].try_into().expect("four bytes")) & 0x7fff_ffff
    }

    fn is_message(&self) -> bool {
        self.0[3] == DATA && self.0.len() > HEAD
    }

    /// Whether the server has carried out what was sent on this stream.
    fn is_answer_on(&self, stream: u32) -> bool {
        let is_end = self.0[3] == HEADERS && self.0[4] & END_STREAM != 0;
        self.stream() == stream && (self.is_message() || is_end)
    }
}

impl Shared {
    /// What happens to the message that has just been read.
    fn next(&self) -> Option<Fault> {
        let number = self.messages.fetch_add(1, Ordering::SeqCst);
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
            messages: AtomicUsize::default(),
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

    /// How many messages were sent so far.
    pub(crate) fn messages(&self) -> usize {
        self.shared.messages.load(Ordering::SeqCst)
    }

    /// Has the `nth` message from now on fail. The future is ready when it does.
    pub(crate) fn trap(&self, nth: usize, fault: Fault) -> oneshot::Receiver<()> {
        let (send, sprung) = oneshot::channel();
        *self.shared.sprung.lock().expect("no panic") = Some(send);
        *self.shared.trap.lock().expect("no panic") = Some((self.messages() + nth, fault));
        sprung
    }

    /// No message will fail.
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
    let (hit, hits) = watch::channel(None);
    tokio::select! {
        () = pass_requests(from_client, to_server, shared, hit) => {}
        () = pass_answers(from_server, to_client, shared, hits) => {}
    }
}

async fn unheld(shared: &Shared) {
    // An error means that the wire is gone, and this with it.
    let _ = shared.is_held.subscribe().wait_for(|is_held| !is_held).await;
}

async fn pass_requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    shared: &Shared,
    hit: watch::Sender<Hit>,
) {
    let mut preface = [0; PREFACE];
    if client.read_exact(&mut preface).await.is_err() || server.write_all(&preface).await.is_err() {
        return;
    }
    while let Some(frame) = Frame::read(&mut client).await {
        match frame.is_message().then(|| shared.next()).flatten() {
            None => {}
            Some(Fault::Lost) => return,
            Some(Fault::Unanswered) => drop(hit.send_replace(Some((Fault::Unanswered, frame.stream())))),
            Some(Fault::Late) => {
                hit.send_replace(Some((Fault::Late, frame.stream())));
                shared.late.send_replace(Late::Held);
                // Whatever the client does meanwhile.
                let _ = shared.late.subscribe().wait_for(|late| *late == Late::Sent).await;
                let _ = server.write_all(&frame.0).await;
                // Until it is answered.
                pending::<()>().await;
            }
        }
        unheld(shared).await;
        if server.write_all(&frame.0).await.is_err() {
            return;
        }
    }
}

async fn pass_answers(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    shared: &Shared,
    hits: watch::Receiver<Hit>,
) {
    // When this ends, a message that is late is done.
    let _late = scopeguard::guard((), |()| {
        if hits.borrow().is_some_and(|(fault, _)| fault == Fault::Late) {
            shared.late.send_replace(Late::Done);
        }
    });
    while let Some(frame) = Frame::read(&mut server).await {
        let hit = *hits.borrow();
        match hit {
            // What it answers to earlier messages is lost, too.
            Some((Fault::Late, _)) if *shared.late.borrow() != Late::Sent => continue,
            Some((_, stream)) if frame.is_answer_on(stream) => return,
            Some(_) => continue,
            None => {}
        }
        unheld(shared).await;
        if client.write_all(&frame.0).await.is_err() {
            return;
        }
    }
}
