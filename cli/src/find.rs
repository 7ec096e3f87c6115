//! Everything in the store that has a name.

use std::collections::BTreeSet;

use futures::future::join_all;
use leasehold::{BackendError, Client, Error, Inspection, Purpose};

use crate::args::Which;
use crate::exit::Failure;
use crate::output;

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
}

/// What has this name, if it is held or awaited. What the store refuses to tell of is said on standard error, unless
/// that is all there is.
pub(crate) async fn in_use(client: &Client, which: &Which) -> Result<Vec<Found>, Failure> {
    let purposes = match which.kind {
        Some(kind) => vec![kind.purpose()],
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
    for (purpose, error) in refused {
        output::note(&format!("the {purpose} of this name is not known: {error}"));
    }
    all.retain(Found::is_in_use);
    // Both kinds of semaphores have one key if they have one prefix.
    all.dedup_by(|later, earlier| earlier.is_held() && later.ids() == earlier.ids());
    Ok(all)
}

/// The store has no such thing, or what has this key is something else.
fn is_of_no_such_kind(error: &Error) -> bool {
    match error {
        Error::Unsupported { .. } => true,
        Error::StoreRefused { source, .. } => matches!(source, BackendError::WrongType { .. }),
        _ => false,
    }
}
