//! A proxy between clients and a server on which one request can get lost, lose its answer, or arrive late.
//!
//! It knows the [`Protocol`], so that a fault hits exactly the request it is meant for, however the bytes were packed.

use std::future::pending;
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::budget::Budget;
use super::within;

/// How long a request that was late may take then.
const DELIVERY: Duration = Duration::from_secs(5);

/// Where messages end on a connection, and what they are.
pub trait Protocol: Default + Send + 'static {
    /// The next message of the client, and what it is.
    fn request(
        &mut self,
        from: &mut OwnedReadHalf,
    ) -> impl Future<Output = Option<(Vec<u8>, Message)>> + Send;

    /// The next message of the server.
    fn answer(from: &mut OwnedReadHalf) -> impl Future<Output = Option<Vec<u8>>> + Send;

    /// Whether this message of the server ends its answer to the request with this number. Called for each message
    /// after that request.
    fn ends_answer(&mut self, message: &[u8], request: u32) -> bool;
}

/// A message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request, with the number by which its answer is known if the protocol has one.
    Request(u32),
    /// A request that only looks or waits, and is made again after some time.
    Look,
    /// Another request: that the connection is alive, say. It comes at any time.
    Other,
    /// No request, or a part of one.
    Part,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
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
pub struct Wire<P> {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
    protocol: PhantomData<fn() -> P>,
}

#[derive(Debug)]
struct Shared {
    server_port: u16,
    requests: AtomicUsize,
    looks: AtomicUsize,
    others: AtomicUsize,
    trap: Mutex<Option<Trap>>,
    /// What has become of the request that is late.
    late: watch::Sender<Late>,
    /// Sending is a cut.
    cuts: watch::Sender<()>,
    /// Whether nothing goes to the server, and nothing to the client.
    held: watch::Sender<Held>,
    /// Sending freezes all connections there are.
    freezes: watch::Sender<()>,
    /// What may go to the server, and to the client.
    budgets: (Budget, Budget),
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    to_server: bool,
    to_client: bool,
}

/// Which request is hit, counted from 0, how, and whom to tell.
#[derive(Debug)]
struct Trap {
    nth: usize,
    fault: Fault,
    sprung: oneshot::Sender<()>,
}

/// A fault, and the number of the request that it hit.
type Hit = Option<(Fault, u32)>;

impl Shared {
    fn trap(&self) -> MutexGuard<'_, Option<Trap>> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a message, and says what happens to it.
    fn note(&self, message: Message) -> Hit {
        let (count, number) = match message {
            Message::Request(number) => (&self.requests, number),
            Message::Look => (&self.looks, 0),
            Message::Other => (&self.others, 0),
            Message::Part => return None,
        };
        let nth = count.fetch_add(1, Ordering::SeqCst);
        if !matches!(message, Message::Request(_)) {
            return None;
        }
        let Trap { fault, sprung, .. } = self.trap().take_if(|trap| trap.nth <= nth)?;
        // The test may not wait for it.
        let _ = sprung.send(());
        Some((fault, number))
    }

    /// Until nothing that goes this way is held.
    async fn unheld(&self, is_held: fn(&Held) -> bool) {
        // An error means that the wire is gone, and this with it.
        let _ = self.held.subscribe().wait_for(|held| !is_held(held)).await;
    }
}

impl<P: Protocol> Wire<P> {
    /// A wire to the server on `server_port`.
    pub async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("a listener has an address").port();
        let shared = Arc::new(Shared {
            server_port,
            requests: AtomicUsize::default(),
            looks: AtomicUsize::default(),
            others: AtomicUsize::default(),
            trap: Mutex::default(),
            late: watch::Sender::default(),
            cuts: watch::Sender::new(()),
            held: watch::Sender::default(),
            freezes: watch::Sender::new(()),
            budgets: Default::default(),
        });
        let accepting = tokio::spawn(accept::<P>(listener, Arc::clone(&shared)));
        Self { port, shared, accepting, protocol: PhantomData }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// How many requests were sent so far.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// How many requests poll or wait.
    pub fn looks(&self) -> usize {
        self.shared.looks.load(Ordering::SeqCst)
    }

    /// How many others.
    pub fn others(&self) -> usize {
        self.shared.others.load(Ordering::SeqCst)
    }

    /// Has the `nth` request from now on fail. The receiver is told when it does.
    pub fn trap(&self, nth: usize, fault: Fault) -> oneshot::Receiver<()> {
        let (sprung, told) = oneshot::channel();
        // One that comes at this moment is hit as well.
        *self.shared.trap() = Some(Trap { nth: self.requests() + nth, fault, sprung });
        told
    }

    /// No request will fail.
    pub fn disarm(&self) {
        *self.shared.trap() = None;
    }

    /// Lets what is late reach the server, if anything is, and waits until it has been carried out.
    pub async fn deliver(&self) {
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
    pub fn cut(&self) {
        self.shared.cuts.send_replace(());
    }

    /// Closes the next connection that is to carry more than so many bytes that way, after as many.
    pub fn cut_after(&self, to_server: bool, bytes: usize) {
        let (requests, answers) = &self.shared.budgets;
        let budget = if to_server { requests } else { answers };
        budget.cut_after(bytes);
    }

    /// Black hole: nothing goes either way any more, and no connection is closed.
    pub fn hold(&self) {
        self.hold_towards(true, true);
    }

    /// The same for one way.
    pub fn hold_towards(&self, to_server: bool, to_client: bool) {
        self.shared.held.send_replace(Held { to_server, to_client });
    }

    /// The same for the connections there are, for ever. New ones are welcome.
    pub fn freeze_connections(&self) {
        self.shared.freezes.send_replace(());
    }

    /// Ends the hold; what was sent meanwhile arrives.
    pub fn resume(&self) {
        self.shared.held.send_replace(Held::default());
    }
}

impl<P> Drop for Wire<P> {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept<P: Protocol>(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let (mut cuts, mut freezes) = (shared.cuts.subscribe(), shared.freezes.subscribe());
            let hits = watch::Sender::new(None);
            let mut connected = pin!(connect::<P>(client, &shared, &hits));
            tokio::select! {
                () = &mut connected => {}
                _ = cuts.changed() => {}
                // It stays open.
                _ = freezes.changed() => drop(cuts.changed().await),
            }
            if is_late(&hits.subscribe()) {
                shared.late.send_replace(Late::Done);
            }
        });
    }
}

fn is_late(hits: &watch::Receiver<Hit>) -> bool {
    hits.borrow().is_some_and(|(fault, _)| fault == Fault::Late)
}

async fn connect<P: Protocol>(client: TcpStream, shared: &Shared, hits: &watch::Sender<Hit>) {
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.server_port)).await else { return };
    for end in [&client, &server] {
        // Messages are passed on one by one.
        end.set_nodelay(true).expect("a connection");
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let told = hits.subscribe();
    tokio::select! {
        () = pass_requests::<P>(from_client, to_server, shared, hits) => {}
        () = pass_answers::<P>(from_server, to_client, shared, &told) => {}
    }
}

async fn pass_requests<P: Protocol>(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    shared: &Shared,
    hits: &watch::Sender<Hit>,
) {
    let mut protocol = P::default();
    while let Some((bytes, message)) = protocol.request(&mut client).await {
        let hit = shared.note(message);
        match hit {
            None => {}
            Some((Fault::Lost, _)) => return,
            Some((Fault::Unanswered, _)) => drop(hits.send_replace(hit)),
            Some((Fault::Late, _)) => {
                hits.send_replace(hit);
                shared.late.send_replace(Late::Held);
                // Whatever the client does meanwhile.
                let _ = shared.late.subscribe().wait_for(|late| *late == Late::Sent).await;
                let _ = server.write_all(&bytes).await;
                // Until it is answered.
                pending::<()>().await;
            }
        }
        shared.unheld(|held| held.to_server).await;
        let some = shared.budgets.0.take(&bytes);
        if server.write_all(some).await.is_err() || some.len() < bytes.len() {
            return;
        }
    }
}

async fn pass_answers<P: Protocol>(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    shared: &Shared,
    hits: &watch::Receiver<Hit>,
) {
    let mut protocol = P::default();
    while let Some(bytes) = P::answer(&mut server).await {
        let hit = *hits.borrow();
        match hit {
            // What it answers to requests before that one is lost, too.
            Some((Fault::Late, _)) if *shared.late.borrow() != Late::Sent => continue,
            Some((_, number)) if protocol.ends_answer(&bytes, number) => return,
            Some(_) => continue,
            None => {}
        }
        shared.unheld(|held| held.to_client).await;
        let some = shared.budgets.1.take(&bytes);
        if client.write_all(some).await.is_err() || some.len() < bytes.len() {
            return;
        }
    }
}
