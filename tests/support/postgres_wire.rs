//! PostgreSQL's protocol, as far as a [`Wire`](wire::Wire) needs it.

// Each of the programs that include this uses a part.
#![allow(dead_code)]

use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

use leasehold_support::wire::{self, Message, Protocol};

pub(crate) type Wire = wire::Wire<Postgres>;

/// A request is everything up to a message that the server answers to.
#[derive(Debug, Default)]
pub(crate) struct Postgres {
    /// Whether the first message has been sent, the only one without a tag.
    has_begun: bool,
}

impl Protocol for Postgres {
    async fn request(&mut self, from: &mut OwnedReadHalf) -> Option<(Vec<u8>, Message)> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let mut request = message(from, !is_first).await?;
        if is_first {
            return Some((request, Message::Part));
        }
        let mut last = request.clone();
        while !matches!(last[0], b'Q' | b'S' | b'p' | b'X') {
            last = message(from, true).await?;
            request.extend_from_slice(&last);
        }
        let is_heartbeat = last.ends_with(b"SELECT 1\0");
        let kind = match last[0] {
            b'Q' | b'S' if is_heartbeat => Message::Other,
            b'Q' | b'S' => Message::Request(0),
            _ => Message::Part,
        };
        Some((request, kind))
    }

    async fn answer(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
        message(from, true).await
    }

    fn ends_answer(&mut self, message: &[u8], _: u32) -> bool {
        message[0] == b'Z'
    }
}

async fn message(from: &mut OwnedReadHalf, has_tag: bool) -> Option<Vec<u8>> {
    let mut bytes = vec![0; if has_tag { 5 } else { 4 }];
    from.read_exact(&mut bytes).await.ok()?;
    let length = u32::from_be_bytes(bytes[bytes.len() - 4..].try_into().ok()?) as usize;
    let head = bytes.len();
    bytes.resize(head + length - 4, 0);
    from.read_exact(&mut bytes[head..]).await.ok()?;
    Some(bytes)
}
