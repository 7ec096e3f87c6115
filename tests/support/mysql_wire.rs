//! MySQL's protocol, as far as a [`Wire`](wire::Wire) needs it.

// Each of the programs that include this uses a part.
#![allow(dead_code)]

use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

use leasehold_support::wire::{self, Message, Protocol};

pub(crate) type Wire = wire::Wire<Mysql>;

/// There is one request at a time.
#[derive(Debug, Default)]
pub(crate) struct Mysql {
    answer: Answer,
}

impl Protocol for Mysql {
    async fn request(&mut self, from: &mut OwnedReadHalf) -> Option<(Vec<u8>, Message)> {
        let packet = packet(from).await?;
        let kind = Request(&packet).kind();
        Some((packet, kind))
    }

    async fn answer(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
        packet(from).await
    }

    fn ends_answer(&mut self, packet: &[u8], _: u32) -> bool {
        self.answer.ends_with(packet)
    }
}

/// A packet with its head: three bytes with its length, and its number in the exchange.
async fn packet(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
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
    fn kind(&self) -> Message {
        match () {
            () if !self.is_command() => Message::Part,
            () if self.is_of_any(&LOOKS) => Message::Look,
            () if self.is_of_changes() => Message::Request(0),
            () => Message::Other,
        }
    }

    /// Whether a command begins, and not a part of the login.
    fn is_command(&self) -> bool {
        self.0[3] == 0
    }

    /// Whether it is a query that reads or changes records, or sets up a session.
    fn is_of_changes(&self) -> bool {
        const QUERY: u8 = 3;

        self.0.get(4) == Some(&QUERY) && !self.is_of_any(&OTHERS)
    }

    /// Whether its text begins like one of these.
    fn is_of_any(&self, beginnings: &[&str]) -> bool {
        let text = self.0.get(5..).unwrap_or_default();
        beginnings.iter().any(|beginning| text.starts_with(beginning.as_bytes()))
    }
}

const OTHERS: [&str; 3] = ["DO 0", "SELECT GET_LOCK('", "SELECT RELEASE_LOCK"];
const LOOKS: [&str; 2] = ["SELECT CASE GET_LOCK", "SELECT k, version, doc FROM leasehold WHERE (k"];

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
