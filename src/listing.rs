//! What a client's store has under the client's prefixes.

use std::cmp::Reverse;
use std::sync::Arc;

use futures::channel::mpsc::{Sender, channel};
use futures::future::ready;
use futures::stream::{self, Stream};
use futures::{SinkExt, StreamExt};

use crate::backend::{BackendError, Holder, Listed};
use crate::client::Client;
use crate::error::Error;
use crate::lease::Engine;
use crate::options::within;
use crate::purpose::Purpose;

/// Something that is held or awaited: an item of [`Client::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListEntry {
    /// What it is.
    pub purpose: Purpose,
    /// Its name, without the prefix.
    pub name: String,
    /// Who holds it, with as much as the store knows without further requests.
    pub holders: Vec<Holder>,
    /// How many wait for it.
    pub waiters: usize,
}

impl Client {
    /// Streams what anybody holds or waits for, of all that a client can create with its own options, in no particular
    /// order: locks, semaphores, elections and the runs of schedules whose names begin with `prefix`; all of them if it
    /// is empty. What was created with another key prefix than that of [`mutex_options`](Self::mutex_options) and
    /// [`semaphore_options`](Self::semaphore_options) is not found, and neither are the marks of ticks that are done.
    ///
    /// The store is read in small steps, each when the stream is polled, so that nobody is held up: what is held or
    /// awaited throughout is reported once; what begins or ends meanwhile may be reported or not. Of the holders of one
    /// semaphore on Redis, not more than 250 are reported, those whose leases end first.
    ///
    /// ```
    /// # use futures::TryStreamExt;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::Purpose;
    ///
    /// let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// let mut held = client.list("machine:");
    /// while let Some(found) = held.try_next().await? {
    ///     assert_eq!((found.purpose, &*found.name), (Purpose::Mutex, "machine:42"));
    ///     assert_eq!(found.holders[0].label.as_deref(), client.label());
    ///     assert_eq!(found.waiters, 0);
    /// }
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the store cannot list what it has. [`Error::StoreUnavailable`],
    /// [`Error::StoreRefused`] and [`Error::Closed`] as for [`ping`](Self::ping). After an error, more items may
    /// follow, but some may be missing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the stream has no effect.
    pub fn list(&self, prefix: &str) -> impl Stream<Item = Result<ListEntry, Error>> + Send + Unpin + use<> {
        // A stream of the store borrows what it reads.
        let (engine, sought) = (Arc::clone(self.engine()), self.sought(prefix));
        let (sender, listed) = channel(0);
        let read = stream::once(async move {
            if let Err(error) = read_all(&engine, &sought, sender.clone()).await {
                send(sender, Err(error)).await;
            }
        });
        stream::select(listed, read.filter_map(|()| ready(None))).boxed()
    }

    fn sought(&self, name: &str) -> Sought {
        let mut prefixes: Vec<_> =
            Purpose::ALL.map(|purpose| (self.key_prefix(purpose), Some(purpose))).into();
        let done = self.mutex_options().within(within::TICK_DONE).key_prefix().to_owned();
        prefixes.push((done, None));
        // A prefix may begin with another one: the longest decides.
        prefixes.sort_by_key(|(prefix, _)| Reverse(prefix.len()));
        let mut begin: Vec<_> = prefixes
            .iter()
            .filter(|(_, purpose)| purpose.is_some())
            .map(|(prefix, _)| format!("{prefix}{name}"))
            .collect();
        begin.sort_unstable();
        begin.dedup_by(|longer, shorter| longer.starts_with(&**shorter));
        Sought { name: name.to_owned(), prefixes, begin }
    }
}

/// Sends all that there is. Fails if nothing can be read.
async fn read_all(
    engine: &Engine,
    sought: &Sought,
    sender: Sender<Result<ListEntry, Error>>,
) -> Result<(), Error> {
    engine.check_process("list", None)?;
    if engine.closing().is_closed() {
        return Err(engine.error(BackendError::Closed, "list", None));
    }
    let mut listed = engine.backend().list_any(&sought.begin);
    while let Some(found) = listed.next().await {
        let item = match found {
            Ok(found) => sought.entry(found).map(Ok),
            Err(error) if !error.is_transient() => return Err(engine.error(error, "list", None)),
            Err(error) => Some(Err(engine.error(error, "list", None))),
        };
        if let Some(item) = item {
            send(sender.clone(), item).await;
        }
    }
    Ok(())
}

/// The receiver is gone only if the whole stream is, and with it whatever sends.
async fn send<T>(mut sender: Sender<T>, item: T) {
    let _ = sender.send(item).await;
}

/// Which keys are sought, and what for.
struct Sought {
    /// What the names begin with.
    name: String,
    /// What each prefix is for, the longest first; `None` for the marks of ticks.
    prefixes: Vec<(String, Option<Purpose>)>,
    /// What the keys begin with: none of these with another one.
    begin: Vec<String>,
}

impl Sought {
    /// `None` for what is none of the user's.
    fn entry(&self, Listed { resource, holders, waiters }: Listed) -> Option<ListEntry> {
        let key = &resource.key;
        let fits = |purpose: Option<Purpose>| purpose.is_none_or(|purpose| purpose.includes(resource.kind));
        let (prefix, purpose) = self.prefixes.iter().find(|(prefix, purpose)| {
            key.starts_with(prefix) && key.len() > prefix.len() && fits(*purpose)
        })?;
        let name = &key[prefix.len()..];
        // What the key begins with may have been part of a longer prefix.
        let purpose = purpose.filter(|_| name.starts_with(&self.name))?;
        Some(ListEntry { purpose, name: name.to_owned(), holders, waiters })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use futures::TryStreamExt;

    use super::*;
    use crate::options::{MutexOptions, SemaphoreOptions};
    use crate::{OnceOptions, Ticks};

    async fn found(client: &Client, prefix: &str) -> Vec<(Purpose, String)> {
        let all: Vec<_> = client.list(prefix).try_collect().await.unwrap();
        let mut all: Vec<_> = all.iter().map(|found| (found.purpose, found.name.clone())).collect();
        all.sort();
        all
    }

    #[tokio::test]
    async fn everything_that_a_client_can_create_is_found_once_with_what_it_is_for() {
        let plain = Client::memory();
        let same = Client::memory()
            .with_mutex_options(MutexOptions::new().prefix("a:"))
            .with_semaphore_options(SemaphoreOptions::new().prefix("s:"));
        let bare = Client::memory().with_mutex_options(MutexOptions::new().prefix(""));
        for client in [plain, same, bare] {
            let _mutex = client.mutex("x1").unwrap().lock().await.unwrap();
            let _owned = client.reentrant_lock("x2", "me").unwrap().lock().await.unwrap();
            let _reader = client.rw_lock("x").unwrap().read().await.unwrap();
            let _leader = client.election("x").unwrap().campaign("me").await.unwrap();
            let _calls = client.counting_semaphore("x", 3).unwrap().acquire().await.unwrap();
            let _gate = client.fair_semaphore("y", 3).unwrap().acquire().await.unwrap();
            let every = Ticks::every(Duration::from_secs(3600));
            let options = OnceOptions::new().at_least_for(Duration::from_secs(60));
            let begun = SystemTime::UNIX_EPOCH + Duration::from_secs(7200);
            let schedule = client.once_with("x", every, options).unwrap().by_clock(move || begun);
            let during =
                schedule.try_run(async |_| found(&client, "x").await).await.unwrap().expect("it is due");
            let named = |purpose, name: &str| (purpose, name.to_owned());
            let mut expected = vec![
                named(Purpose::Mutex, "x1"),
                named(Purpose::Mutex, "x2"),
                named(Purpose::RwLock, "x"),
                named(Purpose::Election, "x"),
                named(Purpose::Schedule, "x"),
                named(Purpose::CountingSemaphore, "x"),
            ];
            assert_eq!(during, expected);
            expected.push(named(Purpose::FairSemaphore, "y"));
            expected.retain(|(purpose, _)| *purpose != Purpose::Schedule);
            assert_eq!(found(&client, "").await, expected);
            // What the prefixes of keys begin with is no part of a name.
            for no_name in ["r", "e", "el", "o", "once:", "once:run:", "rwlock:", "election:x", "s", "c", "f"]
            {
                assert_eq!(found(&client, no_name).await, [], "{no_name}");
            }
            assert_eq!(found(&client, "x1").await, [named(Purpose::Mutex, "x1")]);
            for (purpose, name) in expected {
                assert_eq!(client.inspect(purpose, &name).await.unwrap().holders.len(), 1, "{purpose}");
                let broken = client.force_release(purpose, &name).await;
                assert_eq!(broken.ok(), purpose.can_be_force_released().then_some(true), "{purpose}");
            }
        }
    }
}
