//! A connection to a server, and the handshake that begins or resumes a session on it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::builder::{Server, Settings};
use super::failure::{Code, Malformed};
use super::jute::{Message, Reader};
use crate::backend::records::{Failure, Remedy};
use crate::backend::tls::explain;

/// The longest reply that is accepted: the names of all children of a node.
const MAX_REPLY: usize = 256 << 20;
const AUTH_XID: i32 = -4;
const AUTH: i32 = 100;

/// What a server knows a client by, from one connection to the next.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
    /// How long it lasts at the server without a message.
    pub(super) timeout: Duration,
}

/// How a handshake ended.
pub(super) enum Handshake {
    /// The session begins, or goes on.
    Session(Link, Identity),
    /// The session to be resumed has ended.
    Expired,
    /// The server has closed the connection without an answer. It does so if it knows less than this session has seen.
    Refused(Failure),
}

pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// A connection, and what has been received of the next message.
pub(super) struct Link {
    pub(super) wire: Box<dyn Wire>,
    pub(super) received: Vec<u8>,
}

impl Link {
    /// Connects to an address of a server, and begins or resumes a session.
    pub(super) async fn open(
        server: &Server,
        address: SocketAddr,
        settings: &Settings,
        identity: Option<&Identity>,
        last_zxid: i64,
    ) -> Result<Handshake, Failure> {
        let wire = connect(server, address, settings).await?;
        let mut link = Self { wire, received: Vec::new() };
        // The server may have closed the connection before that is written.
        let answered = match link.send(handshake(settings, identity, last_zxid)).await {
            Ok(()) => link.next().await,
            Err(failure) => Err(failure),
        };
        let reply = match answered {
            Ok(reply) => reply,
            Err(failure) if identity.is_some() => return Ok(Handshake::Refused(unanswered(&failure))),
            Err(failure) => return Err(unanswered(&failure)),
        };
        let Some(identity) = read_handshake(&reply)? else { return Ok(Handshake::Expired) };
        link.authenticate(settings).await?;
        Ok(Handshake::Session(link, identity))
    }

    pub(super) async fn send(&mut self, message: Vec<u8>) -> Result<(), Failure> {
        self.wire.write_all(&message).await.map_err(lost)?;
        self.wire.flush().await.map_err(lost)
    }

    /// The next message, without its length.
    pub(super) async fn next(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            Self::read(&mut self.wire, &mut self.received).await?;
        }
    }

    /// Waits for more. Cancel safe.
    pub(super) async fn read(
        wire: &mut (impl AsyncRead + Unpin),
        received: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        match wire.read_buf(received).await {
            Ok(0) => Err(lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(lost(error)),
        }
    }

    /// The next message of those that have been received in full.
    pub(super) fn take(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let Some((length, rest)) = self.received.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| Malformed)?;
        if length > MAX_REPLY {
            return Err(Malformed.into());
        }
        let Some(message) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.received.drain(..4 + length);
        Ok(Some(message))
    }

    async fn authenticate(&mut self, settings: &Settings) -> Result<(), Failure> {
        let Some(credentials) = &settings.credentials else { return Ok(()) };
        let mut message = Message::new();
        message.int(AUTH_XID).int(AUTH).int(0).bytes(b"digest").bytes(credentials.as_bytes());
        self.send(message.finish()).await?;
        let reply = self.next().await?;
        let mut reader = Reader(&reply);
        let (xid, _zxid, code) = (reader.int()?, reader.long()?, Code(reader.int()?));
        match (xid, code) {
            (AUTH_XID, Code::NONE) => Ok(()),
            (AUTH_XID, code) => Err(code.failure("the session")),
            _ => Err(Malformed.into()),
        }
    }
}

async fn connect(
    server: &Server,
    address: SocketAddr,
    settings: &Settings,
) -> Result<Box<dyn Wire>, Failure> {
    let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        // It was accepted, and closed before this program has noticed that it was.
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => unanswered(&lost(error)),
        _ => unreachable(error),
    })?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let Some(tls) = &settings.tls else { return Ok(Box::new(stream)) };
    let encrypted = tls.connect(&server.host, stream).await;
    encrypted
        .map(|stream| Box::new(stream) as Box<dyn Wire>)
        .map_err(|error| Failure::unavailable(explain(error.to_string())))
}

fn handshake(settings: &Settings, identity: Option<&Identity>, last_zxid: i64) -> Vec<u8> {
    let timeout = i32::try_from(settings.session_timeout.as_millis()).unwrap_or(i32::MAX);
    let (id, password) = identity.map_or((0, &[0; 16][..]), |known| (known.id, &known.password));
    let mut message = Message::new();
    message.int(0).long(last_zxid).int(timeout).long(id).bytes(password).bool(false);
    message.finish()
}

/// `None` if the session has expired.
pub(super) fn read_handshake(reply: &[u8]) -> Result<Option<Identity>, Malformed> {
    let mut reader = Reader(reply);
    let (_protocol, timeout, id) = (reader.int()?, reader.int()?, reader.long()?);
    let password = reader.bytes()?.to_vec();
    let timeout = Duration::from_millis(u64::try_from(timeout).unwrap_or(0));
    Ok((!timeout.is_zero()).then_some(Identity { id, password, timeout }))
}

pub(super) fn unreachable(error: io::Error) -> Failure {
    Failure::unavailable(error.to_string())
}

/// A server gives no reason when it ends a connection instead of answering the handshake.
fn unanswered(failure: &Failure) -> Failure {
    Failure::unavailable(format!(
        "{failure} before it answered: probably it accepts no further connections from this address (`maxClientCnxns`), or serves nobody \
         at the moment, because it has no leader or is starting"
    ))
}

/// The connection has ended; what was sent may have been carried out.
pub(super) fn lost(error: io::Error) -> Failure {
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server has closed the connection".to_owned(),
        _ => error.to_string(),
    };
    Failure { remedy: Remedy::Reconnect, is_certain: false, ..Failure::unavailable(why) }
}
