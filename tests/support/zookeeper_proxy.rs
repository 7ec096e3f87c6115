//! ZooKeeper's protocol, as far as a [`Wire`] needs it.

use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

use leasehold_support::wire::{Message, Protocol, Wire};

const PING: i32 = 11;

pub(crate) type Proxy = Wire<Zookeeper>;

/// The number of a request is that which the client gives it.
#[derive(Debug, Default)]
pub(crate) struct Zookeeper {
    has_begun: bool,
}

impl Protocol for Zookeeper {
    async fn request(&mut self, from: &mut OwnedReadHalf) -> Option<(Vec<u8>, Message)> {
        let message = Self::answer(from).await?;
        let is_handshake = !std::mem::replace(&mut self.has_begun, true);
        let kind = match (is_handshake, int(&message, 8)) {
            (true, _) => Message::Part,
            (_, PING) => Message::Other,
            _ => Message::Request(int(&message, 4).cast_unsigned()),
        };
        Some((message, kind))
    }

    async fn answer(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 4];
        from.read_exact(&mut bytes).await.ok()?;
        let length = u32::from_be_bytes(bytes[..4].try_into().ok()?) as usize;
        bytes.resize(4 + length, 0);
        from.read_exact(&mut bytes[4..]).await.ok()?;
        Some(bytes)
    }

    fn ends_answer(&mut self, message: &[u8], request: u32) -> bool {
        int(message, 4).cast_unsigned() == request
    }
}

/// The number at this place of a message; zero if it is shorter.
pub(crate) fn int(message: &[u8], at: usize) -> i32 {
    message.get(at..at + 4).map_or(0, |four| i32::from_be_bytes(four.try_into().expect("four bytes")))
}
