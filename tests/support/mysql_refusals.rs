//! A proxy to a MySQL server that answers some queries, or new connections, with an error of the test's choice.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, JoinSet};

/// What is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    None,
    /// Queries that contain one of these texts, with this error.
    Queries(u16, &'static [&'static str]),
    /// Nothing is passed on any more, in either direction, as by a process that is stopped.
    Everything,
    /// New connections; those that there are end.
    Connections(u16),
}

/// Ends when dropped, with all its connections.
#[derive(Debug)]
pub(crate) struct RefusingProxy {
    port: u16,
    refusal: watch::Sender<Refusal>,
    /// Each connection has one.
    cuts: watch::Sender<()>,
    accepting: JoinHandle<()>,
}

impl RefusingProxy {
    pub(crate) async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let (refusal, cuts) = (watch::Sender::new(Refusal::None), watch::Sender::default());
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server_port));
        let accepting = tokio::spawn(accept(listener, server, refusal.clone(), cuts.clone()));
        Self { port, refusal, cuts, accepting }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        self.refusal.send_replace(refusal);
        if matches!(refusal, Refusal::Connections(_)) {
            self.cut();
        }
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.cuts.receiver_count()
    }

    /// Closes all connections there are.
    pub(crate) fn cut(&self) {
        self.cuts.send_replace(());
    }
}

impl Drop for RefusingProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    server: SocketAddr,
    refusal: watch::Sender<Refusal>,
    cuts: watch::Sender<()>,
) {
    // Aborted with this task.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (refusal, mut cuts) = (refusal.clone(), cuts.subscribe());
        connections.spawn(async move {
            let now = *refusal.borrow();
            if let Refusal::Connections(code) = now {
                return drop(client.try_write(&error(0, code, false)));
            }
            if now == Refusal::Everything {
                return std::future::pending().await;
            }
            let Ok(server) = TcpStream::connect(server).await else { return };
            let _ = client.set_nodelay(true);
            let ((from_client, to_client), (mut from_server, to_server)) =
                (client.into_split(), server.into_split());
            let to_client = Arc::new(Mutex::new(to_client));
            let answers = async {
                let mut bytes = vec![0; 16 * 1024];
                while let Ok(read @ 1..) = from_server.read(&mut bytes).await {
                    if to_client.lock().await.write_all(&bytes[..read]).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = requests(from_client, to_server, &to_client, &refusal) => {}
                () = answers => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    to_client: &Mutex<OwnedWriteHalf>,
    refusal: &watch::Sender<Refusal>,
) {
    while let Some(packet) = packet(&mut client).await {
        let now = *refusal.borrow();
        let refused = match now {
            Refusal::Everything => return std::future::pending().await,
            Refusal::Queries(code, texts) if is_query(&packet, texts) => Some(code),
            _ => None,
        };
        let passed_on = match refused {
            Some(code) => to_client.lock().await.write_all(&error(1, code, true)).await,
            None => server.write_all(&packet).await,
        };
        if passed_on.is_err() {
            return;
        }
    }
}

async fn packet(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4];
    from.read_exact(&mut bytes).await.ok()?;
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]) as usize;
    bytes.resize(4 + length, 0);
    from.read_exact(&mut bytes[4..]).await.ok()?;
    Some(bytes)
}

fn is_query(packet: &[u8], texts: &[&str]) -> bool {
    const QUERY: u8 = 3;
    let is_query = packet[3] == 0 && packet.get(4) == Some(&QUERY);
    let text = String::from_utf8_lossy(packet.get(5..).unwrap_or_default());
    is_query && texts.iter().any(|part| text.contains(part))
}

/// Before the login, an error has no state.
fn error(number: u8, code: u16, has_state: bool) -> Vec<u8> {
    let mut body = vec![0xff];
    body.extend(code.to_le_bytes());
    body.extend(if has_state { "#HY000as a test" } else { "as a test" }.bytes());
    let mut packet = vec![body.len() as u8, 0, 0, number];
    packet.extend(body);
    packet
}
