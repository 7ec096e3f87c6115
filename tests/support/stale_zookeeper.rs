//! A way to a server of ZooKeeper on which nothing new can be read any more: as from a server that has lost what the
//! others have agreed on.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::proxy::{Zookeeper, int};
use leasehold_support::wire::Protocol;

const GET_DATA: i32 = 4;
const GET_CHILDREN: i32 = 12;
/// Of a reply, before its content: length, number, transaction.
const HEAD: usize = 16;

/// A proxy on loopback. Ends when dropped.
#[derive(Debug)]
pub(crate) struct StaleWay {
    port: u16,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

/// What is read, and of which node.
type Read = (i32, Vec<u8>);

#[derive(Debug, Default)]
struct State {
    connections: AtomicUsize,
    is_stale: AtomicBool,
    /// What was read last.
    replies: Mutex<HashMap<Read, Vec<u8>>>,
}

impl StaleWay {
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("it has one").port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await else { continue };
                tokio::spawn(carry(client, server, Arc::clone(&shared)));
            }
        });
        Self { port, state, accepting }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// From now on, what has been read is answered as it was.
    pub(crate) fn stop_learning(&self) {
        self.state.is_stale.store(true, Ordering::SeqCst);
    }
}

impl Drop for StaleWay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(client: TcpStream, server: TcpStream, state: Arc<State>) {
    state.connections.fetch_add(1, Ordering::SeqCst);
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let reading = Mutex::default();
    tokio::select! {
        _ = ask(&mut from_client, &mut to_server, &reading) => {}
        _ = answer(&mut from_server, &mut to_client, &reading, &state) => {}
    }
    state.connections.fetch_sub(1, Ordering::SeqCst);
}

/// The requests that read, by their numbers.
type Reading = Mutex<HashMap<i32, Read>>;

async fn ask(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, reading: &Reading) -> Option<()> {
    let mut is_handshake = true;
    loop {
        let message = Zookeeper::answer(from).await?;
        if !std::mem::take(&mut is_handshake)
            && let kind @ (GET_DATA | GET_CHILDREN) = int(&message, 8)
        {
            let length = usize::try_from(int(&message, 12)).ok()?;
            let path = message.get(16..16 + length)?.to_vec();
            lock(reading).insert(int(&message, 4), (kind, path));
        }
        to.write_all(&message).await.ok()?;
    }
}

async fn answer(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    reading: &Reading,
    state: &State,
) -> Option<()> {
    let mut is_handshake = true;
    loop {
        let mut message = Zookeeper::answer(from).await?;
        if !std::mem::take(&mut is_handshake)
            && let Some(read) = lock(reading).remove(&int(&message, 4))
        {
            let mut replies = lock(&state.replies);
            match replies.get(&read).filter(|_| state.is_stale.load(Ordering::SeqCst)) {
                Some(known) => {
                    message.truncate(HEAD);
                    message.extend(known);
                    let length = u32::try_from(message.len() - 4).ok()?;
                    message[..4].copy_from_slice(&length.to_be_bytes());
                }
                None => drop(replies.insert(read, message[HEAD..].to_vec())),
            }
        }
        to.write_all(&message).await.ok()?;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
