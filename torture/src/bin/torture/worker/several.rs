//! Several mutexes that are locked at once, all of them or none.

use std::time::Duration;

use futures::future::join_all;
use leasehold::{Error, Locks, LossReason, MutexOptions};
use leasehold_torture::history::{Asked, HoldId, Micros, What};
use tokio::time::sleep;

use super::lease::{LOOK, loss};
use super::open::Holding;
use super::user::{User, Way};
use crate::clock::{micros, now};
use crate::sites::{Kind, SEVERAL};

/// One of those that are locked at once.
#[derive(Clone, Copy, Debug)]
struct Part {
    site: usize,
    hold: HoldId,
}

impl User {
    /// Once, this one and some others.
    pub(super) async fn take_several(&mut self) -> Result<(), Error> {
        let parts = self.parts();
        let options = MutexOptions::new().ttl(self.taken().lease);
        let names = parts.iter().map(|part| &self.shared.sites[part.site].name);
        let handle = self.shared.client.lock_all_with(names, options)?;
        let way = self.way();
        let first = parts.first().map(|part| part.hold);
        for Part { site, hold } in &parts {
            let asked = Asked {
                site: *site,
                client: self.shared.orders.client,
                owner: None,
                permits: 1,
                waits_forever: way == Way::Wait,
                within: None,
                together: first,
                continues: None,
            };
            self.shared.log.event(*hold, What::Asked(asked));
        }
        let holds: Vec<_> = parts.iter().map(|part| part.hold).collect();
        match self.ask_noting(holds, &handle, way).await {
            Ok(locks) => self.hold_several(&parts, locks).await,
            Err(refusal) => self.note_each(&parts, What::Refused(refusal)),
        }
        Ok(())
    }

    /// In any order: callers need not know of it.
    fn parts(&mut self) -> Vec<Part> {
        let all = self.shared.sites.iter().enumerate().filter(|(_, taken)| taken.kind == Kind::Several);
        let mut others: Vec<usize> = all.map(|(site, _)| site).filter(|site| *site != self.site).collect();
        let mut sites = vec![self.site];
        let count = 2 + usize::from(self.random.one_in(2));
        while sites.len() < count.min(SEVERAL) && !others.is_empty() {
            let next = self.random.within(0..others.len() as u64) as usize;
            sites.push(others.swap_remove(next));
        }
        sites.into_iter().map(|site| Part { site, hold: self.shared.next_hold() }).collect()
    }

    fn note_each(&self, parts: &[Part], what: What) {
        parts.iter().for_each(|part| self.shared.log.event(part.hold, what));
    }

    async fn hold_several(&mut self, parts: &[Part], locks: Locks) {
        let log = &self.shared.log;
        let holding = Holding::new(&self.shared, parts.iter().map(|part| part.hold).collect(), locks);
        let Some(locks) = holding.get() else { return };
        for (part, (_, token)) in parts.iter().zip(locks.tokens()) {
            log.event(part.hold, What::Granted { token: token.get() });
        }
        self.note_each(parts, What::Held { until: until(locks) });
        let is_long = self.random.one_in(self.shared.orders.long);
        let length = if is_long {
            self.taken().lease * 5 / 4
        } else {
            Duration::from_micros(self.random.within(0..3_000))
        };
        let writes = is_long || self.random.one_in(8);
        let section = async {
            if writes {
                let tokens = locks.tokens().map(|(_, token)| token.get());
                join_all(parts.iter().zip(tokens).map(|(part, token)| self.write(part.site, token, length)))
                    .await;
            } else {
                sleep(length).await;
            }
        };
        let lost = tokio::select! {
            biased;
            lost = self.watch_several(parts, locks) => Some(lost),
            () = section => None,
        };
        if let Some((name, reason)) = lost {
            let these = parts.iter().filter(|part| self.shared.sites[part.site].name == name);
            these.for_each(|part| self.shared.log.event(part.hold, What::Lost(loss(reason))));
        }
        if let Some(locks) = holding.take() {
            self.let_go_of_several(parts, locks).await;
        }
    }

    /// Until one of them is lost: its name, and why.
    async fn watch_several(&self, parts: &[Part], locks: &Locks) -> (String, LossReason) {
        let mut lost = locks.lost();
        let mut noted = until(locks);
        loop {
            tokio::select! {
                biased;
                lost = &mut lost => return lost,
                () = sleep(LOOK) => {
                    let until = until(locks);
                    if locks.is_held() && until > noted + micros(LOOK) {
                        self.note_each(parts, What::Held { until });
                        noted = until;
                    }
                }
            }
        }
    }

    /// Releases them, drops them, or lets go of one after another.
    async fn let_go_of_several(&mut self, parts: &[Part], locks: Locks) {
        let log = &self.shared.log;
        match self.random.within(0..4) {
            0 | 1 => {
                self.note_each(parts, What::Releasing);
                match locks.release().await {
                    Ok(()) => self.note_each(parts, What::Released),
                    Err(not_released) => {
                        let lost = |error: &&Error| matches!(error, Error::Lost { .. });
                        let failed = not_released.errors().iter().filter(|error| !lost(error));
                        failed.for_each(|error| log.error("release of several", error));
                    }
                }
            }
            2 => {
                for (part, guard) in parts.iter().zip(locks.into_guards()) {
                    log.event(part.hold, What::Releasing);
                    drop(guard);
                }
            }
            _ => {
                self.note_each(parts, What::Releasing);
                drop(locks);
            }
        }
    }
}

/// When the first of their leases ends.
fn until(locks: &Locks) -> Micros {
    now() + micros(locks.remaining())
}
