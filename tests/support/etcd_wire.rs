//! HTTP/2, as far as a [`Wire`](wire::Wire) to an etcd server needs it. Every message counts as a request: calls, and
//! those on streams.

use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

use leasehold_support::wire::{self, Message, Protocol};

/// What a client sends before its first frame.
const PREFACE: usize = 24;
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;

pub(crate) type Wire = wire::Wire<Etcd>;

/// The number of a message is that of its stream.
#[derive(Debug, Default)]
pub(crate) struct Etcd {
    has_begun: bool,
}

impl Protocol for Etcd {
    async fn request(&mut self, from: &mut OwnedReadHalf) -> Option<(Vec<u8>, Message)> {
        if !std::mem::replace(&mut self.has_begun, true) {
            let mut preface = vec![0; PREFACE];
            from.read_exact(&mut preface).await.ok()?;
            return Some((preface, Message::Part));
        }
        let frame = Frame(Self::answer(from).await?);
        let kind = if frame.is_message() { Message::Request(frame.stream()) } else { Message::Part };
        Some((frame.0, kind))
    }

    async fn answer(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
        let mut bytes = vec![0; HEAD];
        from.read_exact(&mut bytes).await.ok()?;
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        bytes.resize(HEAD + length, 0);
        from.read_exact(&mut bytes[HEAD..]).await.ok()?;
        Some(bytes)
    }

    fn ends_answer(&mut self, frame: &[u8], stream: u32) -> bool {
        Frame(frame).is_answer_on(stream)
    }
}

struct Frame<B>(B);

impl<B: AsRef<[u8]>> Frame<B> {
    fn stream(&self) -> u32 {
        u32::from_be_bytes(self.0.as_ref()[5..HEAD].try_into().expect("four bytes")) & 0x7fff_ffff
    }

    fn is_message(&self) -> bool {
        self.0.as_ref()[3] == DATA && self.0.as_ref().len() > HEAD
    }

    /// Whether the server has carried out what was sent on this stream.
    fn is_answer_on(&self, stream: u32) -> bool {
        let is_end = self.0.as_ref()[3] == HEADERS && self.0.as_ref()[4] & END_STREAM != 0;
        self.stream() == stream && (self.is_message() || is_end)
    }
}
