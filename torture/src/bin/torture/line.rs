//! The network between a worker and the store, which can be harmed.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

use leasehold_support::wire::{Message, Protocol, Wire};
use leasehold_support::{Direction, Proxy, Traffic};

/// A connection of a worker to each server of the store. A store in a file has none.
#[derive(Debug)]
pub(crate) enum Line {
    /// One for each server; commands can be told from messages.
    Redis(Vec<Proxy>),
    /// One for each server.
    Bytes(Vec<Wire<Bytes>>),
    None,
}

impl Line {
    pub(crate) async fn to(ports: &[u16]) -> Self {
        let mut wires = Vec::new();
        for port in ports {
            wires.push(Wire::start(*port).await);
        }
        Self::Bytes(wires)
    }

    pub(crate) async fn to_redis(ports: impl Iterator<Item = u16>) -> Self {
        let mut proxies = Vec::new();
        for port in ports {
            proxies.push(Proxy::start(port).await);
        }
        Self::Redis(proxies)
    }

    /// Where the worker connects.
    pub(crate) fn ports(&self) -> Vec<u16> {
        match self {
            Self::Redis(proxies) => proxies.iter().map(Proxy::port).collect(),
            Self::Bytes(wires) => wires.iter().map(Wire::port).collect(),
            Self::None => Vec::new(),
        }
    }

    /// Nothing goes that way any more, and what is sent meanwhile is kept.
    pub(crate) fn hold(&self, direction: Direction) {
        match self {
            Self::Redis(proxies) => proxies.iter().for_each(|proxy| proxy.hold(direction)),
            Self::Bytes(wires) => {
                let (to_server, to_client) =
                    (direction != Direction::ToClient, direction != Direction::ToServer);
                wires.iter().for_each(|wire| wire.hold_towards(to_server, to_client));
            }
            Self::None => {}
        }
    }

    /// The same for messages, or for everything else. Everything, where they cannot be told apart.
    pub(crate) fn hold_traffic(&self, traffic: Traffic, direction: Direction) {
        match self {
            Self::Redis(proxies) => {
                proxies.iter().for_each(|proxy| proxy.hold_traffic(traffic, direction));
            }
            Self::Bytes(_) | Self::None => self.hold(direction),
        }
    }

    /// What was kept is delivered.
    pub(crate) fn resume(&self) {
        match self {
            Self::Redis(proxies) => proxies.iter().for_each(Proxy::resume),
            Self::Bytes(wires) => wires.iter().for_each(Wire::resume),
            Self::None => {}
        }
    }

    pub(crate) fn cut(&self) {
        match self {
            Self::Redis(proxies) => proxies.iter().for_each(Proxy::cut),
            Self::Bytes(wires) => wires.iter().for_each(Wire::cut),
            Self::None => {}
        }
    }

    /// The next connection that is to carry more than so many bytes that way is cut after as many.
    pub(crate) fn cut_after(&self, to_server: bool, bytes: usize) {
        match self {
            Self::Redis(proxies) => proxies.iter().for_each(|proxy| proxy.cut_after(to_server, bytes)),
            Self::Bytes(wires) => wires.iter().for_each(|wire| wire.cut_after(to_server, bytes)),
            Self::None => {}
        }
    }

    /// Each answer takes so much longer.
    pub(crate) fn delay(&self, by: Duration) {
        if let Self::Redis(proxies) = self {
            proxies.iter().for_each(|proxy| proxy.delay_replies(by));
        }
    }
}

/// No protocol: whatever has arrived is passed on.
#[derive(Debug, Default)]
pub(crate) struct Bytes;

/// As much is passed on at once.
const CHUNK: usize = 16 * 1024;

impl Protocol for Bytes {
    async fn request(&mut self, from: &mut OwnedReadHalf) -> Option<(Vec<u8>, Message)> {
        Some((Self::answer(from).await?, Message::Part))
    }

    async fn answer(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(CHUNK);
        let read = from.read_buf(&mut bytes).await.ok()?;
        (read > 0).then_some(bytes)
    }

    fn ends_answer(&mut self, _: &[u8], _: u32) -> bool {
        false
    }
}
