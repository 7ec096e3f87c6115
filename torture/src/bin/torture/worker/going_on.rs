//! Holds that go on in others, under the same token: by a ticket for somebody else, or from writing to reading.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, Guard, LeaseTicket, WriteGuard};
use leasehold_torture::history::{Asked, HoldId, Refusal, What};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Shared;
use super::handle::Held;
use super::lease::{Lease, loss, until};
use super::open::Holding;
use super::user::User;
use crate::clock::now;
use crate::register::Collected;

/// One of how many tickets is lost on its way.
const LOST_ON_THE_WAY: u64 = 8;
/// The number of those who go on by tickets.
const RECIPIENT: usize = 98;

/// A ticket on its way.
struct Letter {
    hold: HoldId,
    site: usize,
    owner: Option<u32>,
    permits: u32,
    ticket: LeaseTicket,
}

impl Letter {
    /// In one line.
    fn text(&self) -> String {
        let Self { hold, site, owner, permits, ticket } = self;
        let owner = owner.map_or_else(|| "-".to_owned(), |owner| owner.to_string());
        format!("{hold} {site} {owner} {permits} {}", ticket.expose())
    }

    fn read(text: &str) -> Option<Self> {
        let words: Vec<_> = text.split(' ').collect();
        let [hold, site, owner, permits, ticket] = words[..] else { return None };
        Some(Self {
            hold: hold.parse().ok()?,
            site: site.parse().ok()?,
            owner: if owner == "-" { None } else { Some(owner.parse().ok()?) },
            permits: permits.parse().ok()?,
            ticket: ticket.parse().ok()?,
        })
    }
}

impl User {
    /// Gives it to somebody else, in any worker.
    pub(super) async fn hand_over(&self, hold: HoldId, guard: Guard, asked: Asked) {
        let (at, permits, log) = (now(), guard.permits(), &self.shared.log);
        match guard.into_ticket() {
            Ok(ticket) => {
                log.event_at(at, hold, What::HandedOver);
                let Asked { site, owner, .. } = asked;
                let letter = Letter { hold, site, owner, permits, ticket };
                if !hold.is_multiple_of(LOST_ON_THE_WAY) {
                    self.shared.register.post(&letter.text()).await;
                }
            }
            Err(Error::Lost { reason, .. }) => log.event(hold, What::Lost(loss(reason))),
            Err(error) => {
                // It was released instead.
                log.event_at(at, hold, What::Releasing);
                if !matches!(error, Error::Unsupported { .. } | Error::InvalidArgument { .. }) {
                    log.error("ticket", &error);
                }
            }
        }
    }

    /// Goes on by reading. Others may read from when it begins to.
    pub(super) async fn downgrade(&mut self, hold: HoldId, guard: WriteGuard, asked: Asked) {
        let shared = Arc::clone(&self.shared);
        let (at, next, token) = (now(), shared.next_hold(), guard.token().get());
        let continuing = Asked { permits: 1, waits_forever: false, continues: Some(hold), ..asked };
        shared.log.event_at(at, next, What::Asked(continuing));
        shared.log.event_at(at, next, What::Granted { token });
        shared.log.event_at(at, next, What::Held { until: until(&guard) });
        shared.log.event_at(at, hold, What::Releasing);
        let holding = Holding::new(&shared, vec![next], ());
        let lost = guard.lost();
        let downgraded = tokio::select! {
            biased;
            reason = lost => Err(reason),
            downgraded = guard.downgrade() => Ok(downgraded),
        };
        match downgraded {
            Ok(Ok(reader)) => {
                holding.take();
                self.read_on(next, reader).await;
            }
            Err(reason) | Ok(Err(Error::Lost { reason, .. })) => {
                shared.log.event(next, What::Lost(loss(reason)));
                holding.take();
            }
            Ok(Err(error)) => shared.log.error("downgrade", &error),
        }
    }

    async fn read_on(&mut self, hold: HoldId, reader: Guard) {
        let lease = Lease::of(&self.shared, hold, &reader);
        let holding = Holding::new(&self.shared, vec![hold], reader);
        let length = Duration::from_micros(self.random.within(0..3_000));
        if let Some(reader) = holding.get() {
            tokio::select! {
                biased;
                () = lease.watch(reader) => {}
                () = sleep(length) => {}
            }
        }
        if let Some(reader) = holding.take() {
            self.release(hold, Held::Guard(reader)).await;
        }
    }

    /// Goes on holding what somebody has handed over.
    async fn go_on_by(mut self, letter: Letter) {
        let Letter { hold: last, site, owner, permits, ticket } = letter;
        let shared = Arc::clone(&self.shared);
        let hold = shared.next_hold();
        let (client, continues) = (shared.orders.client, Some(last));
        let (waits_forever, within, together) = (false, None, None);
        let asked = Asked { site, client, owner, permits, waits_forever, within, together, continues };
        shared.log.event(hold, What::Asked(asked));
        match shared.client.resume(&ticket).await {
            Ok(guard) => {
                let lease = Lease::granted(&shared, hold, &guard);
                let (token, writes) = (guard.token().get(), self.taken().kind.is_exclusive());
                let length = Duration::from_micros(self.random.within(0..20_000));
                let section = async {
                    if writes { self.write(site, token, length).await } else { sleep(length).await }
                };
                tokio::select! {
                    biased;
                    () = lease.watch(&guard) => {}
                    () = section => {}
                }
                self.let_go(hold, Held::Guard(guard), asked).await;
            }
            Err(Error::Lost { .. }) => shared.log.event(hold, What::Refused(Refusal::Lost)),
            Err(error) => {
                shared.log.error("resume", &error);
                shared.log.event(hold, What::Refused(Refusal::Failed));
            }
        }
    }
}

/// Goes on by all tickets that come for this worker, until there is nobody who could send them.
pub(super) async fn receive(shared: Arc<Shared>, mut end: oneshot::Receiver<()>) -> io::Result<()> {
    let mut letters = Collected::connect(shared.orders.register).await?;
    let mut recipients = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut end => break,
            letter = letters.next() => {
                let Some(text) = letter? else { break };
                let letter = Letter::read(&text).ok_or_else(|| io::Error::other(format!("no letter: {text}")))?;
                recipients.spawn(User::new(&shared, letter.site, RECIPIENT).go_on_by(letter));
            }
            Some(done) = recipients.join_next() => done.map_err(io::Error::other)?,
        }
    }
    while let Some(done) = recipients.join_next().await {
        done.map_err(io::Error::other)?;
    }
    Ok(())
}
