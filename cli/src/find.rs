//! Everything in the store that has a name.

use std::collections::BTreeSet;

use futures::future::join_all;
use leasehold::{BackendError, Client, Error, Inspection, Purpose};

use crate::args::Which;
use crate::exit::Failure;
use crate::output;
use crate::wording;

/// Something that has the name, and who holds it or waits for it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) purpose: Purpose,
    pub(crate) now: Inspection,
}

impl Found {
    pub(crate) fn is_held(&self) -> bool {
        !self.now.holders.is_empty()
    }

    fn is_in_use(&self) -> bool {
        self.is_held() || !self.now.waiters.is_empty()
    }

    /// Whether somebody who asked for it now would get it.
    pub(crate) fn is_free(&self) -> bool {
        let Inspection { holders, waiters, limit, in_use, .. } = &self.now;
        let has_permits = matches!(self.purpose, Purpose::CountingSemaphore | Purpose::FairSemaphore);
        let is_available = has_permits && limit.is_none_or(|limit| *in_use < limit);
        waiters.is_empty() && (holders.is_empty() || is_available)
    }

    /// The ids of the holders.
    pub(crate) fn ids(&self) -> BTreeSet<&str> {
        self.now.holders.iter().map(|holder| &*holder.id).collect()
    }

    /// Whether the same leases hold it and wait for it.
    fn is_same(&self, other: &Self) -> bool {
        let places = |found: &Self| found.now.waiters.iter().map(|waiter| waiter.id).collect::<Vec<_>>();
        self.ids() == other.ids() && places(self) == places(other)
    }
}

/// What a look for a name has found.
#[derive(Debug)]
pub(crate) struct Answer {
    /// What is held or awaited.
    pub(crate) found: Vec<Found>,
    /// What the store has refused to tell, for people.
    pub(crate) unknown: Vec<String>,
}

/// What has this name, if it is held or awaited. What the store refuses to tell is said on standard error.
pub(crate) async fn in_use(client: &Client, which: &Which) -> Result<Vec<Found>, Failure> {
    let Answer { found, unknown } = ask(client, which).await?;
    unknown.iter().for_each(|unknown| output::note(unknown));
    Ok(found)
}

/// The same, and nothing is said. Fails if the store refuses to tell anything at all.
pub(crate) async fn ask(client: &Client, which: &Which) -> Result<Answer, Failure> {
    let purposes = match which.kind {
        Some(purpose) => vec![purpose],
        None => Purpose::ALL.into(),
    };
    let looks = purposes.iter().map(|purpose| client.inspect(*purpose, &which.name));
    let (mut all, mut refused, mut answered) = (Vec::new(), Vec::new(), 0);
    for (purpose, look) in purposes.iter().zip(join_all(looks).await) {
        match look {
            Ok(now) => {
                answered += 1;
                all.push(Found { purpose: *purpose, now });
            }
            Err(error) if which.kind.is_none() && is_of_no_such_kind(&error) => {}
            Err(error @ Error::StoreRefused { .. }) if which.kind.is_none() => {
                refused.push((*purpose, error))
            }
            Err(error) => return Err(error.into()),
        }
    }
    if answered == 0
        && let Some((_, error)) = refused.pop()
    {
        return Err(error.into());
    }
    let unknown = |(purpose, error)| {
        format!("cannot look up the {purpose} called {}: {error}", wording::clean(&which.name))
    };
    let unknown = refused.into_iter().map(unknown).collect();
    all.retain(Found::is_in_use);
    Ok(Answer { found: distinct(all), unknown })
}

/// Both kinds of semaphores have one key if they have one prefix.
fn distinct(mut all: Vec<Found>) -> Vec<Found> {
    all.dedup_by(|later, earlier| later.is_same(earlier));
    all
}

/// The store has no such thing, or what has this key is something else.
fn is_of_no_such_kind(error: &Error) -> bool {
    match error {
        Error::Unsupported { .. } => true,
        Error::StoreRefused { source, .. } => matches!(source, BackendError::WrongType { .. }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use leasehold::SemaphoreOptions;

    use super::*;

    #[tokio::test]
    async fn a_semaphore_is_found_once_if_both_kinds_have_one_prefix_also_if_it_is_only_awaited() {
        let client = Client::memory().with_semaphore_options(SemaphoreOptions::new().prefix("s:"));
        let slots = client.fair_semaphore("slots", 2).unwrap();
        let held = slots.acquire().await.unwrap();
        let which = Which { name: "slots".to_owned(), kind: None };
        let both = tokio::spawn(async move { slots.acquire_many(2).await });
        let mut found = in_use(&client, &which).await.unwrap();
        while found[0].now.waiters.is_empty() {
            tokio::task::yield_now().await;
            found = in_use(&client, &which).await.unwrap();
        }
        assert_eq!(found.len(), 1);
        let only_awaited = Inspection::new(Vec::new(), found[0].now.waiters.clone(), Some(2), 0);
        let look = |purpose| Found { purpose, now: only_awaited.clone() };
        let twice = vec![look(Purpose::CountingSemaphore), look(Purpose::FairSemaphore)];
        assert_eq!(distinct(twice).len(), 1);
        held.release().await.unwrap();
        drop(both.await.unwrap().unwrap());
    }
}
