//! All that a client's store has under the client's prefixes, whatever it is for: for tools that look at a store.

use std::fmt;
use std::sync::Arc;

use futures::stream::Stream;

use crate::backend::{Capabilities, Detail, Inspection, Kind, Listed, Resource};
use crate::client::Client;
use crate::error::Error;
use crate::listing::{Pass, listed};
use crate::options::within;
use crate::{name, primitive};

/// Which primitive a key of the store belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Purpose {
    /// [`Client::mutex`] and [`Client::reentrant_lock`], which are the same lock.
    Mutex,
    /// [`Client::rw_lock`].
    RwLock,
    /// [`Client::election`].
    Election,
    /// The run of a tick of [`Client::once`], as long as it lasts.
    Schedule,
    /// [`Client::counting_semaphore`].
    CountingSemaphore,
    /// [`Client::fair_semaphore`].
    FairSemaphore,
}

impl Purpose {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Mutex,
        Self::RwLock,
        Self::Election,
        Self::Schedule,
        Self::CountingSemaphore,
        Self::FairSemaphore,
    ];

    /// A stable name: `mutex`, `rw_lock`, `election`, `schedule`, `counting_semaphore` or `fair_semaphore`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::RwLock => "rw_lock",
            Self::Election => "election",
            Self::Schedule => "schedule",
            Self::CountingSemaphore => "counting_semaphore",
            Self::FairSemaphore => "fair_semaphore",
        }
    }

    /// Whether its holders can be removed by [`Client::force_release`].
    #[must_use]
    pub const fn can_be_force_released(self) -> bool {
        !self.kind().is_semaphore()
    }

    const fn kind(self) -> Kind {
        match self {
            Self::Mutex | Self::Election | Self::Schedule => Kind::Mutex,
            Self::CountingSemaphore => Kind::Counting,
            Self::RwLock | Self::FairSemaphore => Kind::Fair,
        }
    }

    /// Whether the store may say that its key is of this kind.
    fn includes(self, kind: Kind) -> bool {
        match kind {
            Kind::Reentrant => self == Self::Mutex,
            kind => self.kind() == kind,
        }
    }
}

impl fmt::Display for Purpose {
    /// Its stable name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Something that is held or awaited: an item of [`Client::list_all`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overview {
    /// What it is.
    pub purpose: Purpose,
    /// Its name, who holds it, and how many wait.
    pub listed: Listed,
}

impl Client {
    /// As [`list`](Self::list), of all that a client can create with its own options: read/write locks, elections and
    /// the runs of schedules as well. The marks of ticks that are done are left out. Where possible, one pass over the
    /// store finds all of it.
    ///
    /// ```
    /// # use futures::TryStreamExt;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::Purpose;
    ///
    /// let client = leasehold::Client::memory();
    /// let leader = client.election("reports")?.campaign("api-7").await?;
    /// let found: Vec<_> = client.list_all("").try_collect().await?;
    /// assert_eq!((found[0].purpose, found[0].listed.resource.name()), (Purpose::Election, "reports"));
    /// # drop(leader);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`list`](Self::list).
    ///
    /// # Cancel safety
    ///
    /// Dropping the stream has no effect.
    pub fn list_all(
        &self,
        prefix: &str,
    ) -> impl Stream<Item = Result<Overview, Error>> + Send + Unpin + use<> {
        listed(Arc::clone(self.engine()), vec![self.keys(prefix)])
    }

    /// Who holds the thing of this name and purpose, and who waits for it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a name that is none, and as for [`DistMutex::inspect`](crate::DistMutex::inspect).
    /// [`Error::Unsupported`] if the store has nothing of this kind.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the call changes nothing.
    pub async fn inspect(&self, purpose: Purpose, name: &str) -> Result<Inspection, Error> {
        primitive::inspect(self.engine(), &self.resource(purpose, name)?, Detail::Full).await
    }

    /// As [`DistMutex::force_release`](crate::DistMutex::force_release), also for an election or the run of a schedule.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # use leasehold::Purpose;
    /// # let client = leasehold::Client::memory();
    /// let leader = client.election("reports")?.campaign("api-7").await?;
    /// assert!(client.force_release(Purpose::Election, "reports").await?);
    /// leader.lost().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for semaphores and read/write locks, whose holders no store can remove. Otherwise as for
    /// [`DistMutex::force_release`](crate::DistMutex::force_release).
    ///
    /// # Cancel safety
    ///
    /// As for [`DistMutex::force_release`](crate::DistMutex::force_release).
    pub async fn force_release(&self, purpose: Purpose, name: &str) -> Result<bool, Error> {
        if !purpose.can_be_force_released() {
            let reason =
                format!("the holders of a {purpose} cannot be removed: they leave, or their leases end");
            return Err(Error::Unsupported { store: self.store().to_owned(), reason });
        }
        primitive::force_release(self.engine(), &self.resource(purpose, name)?).await
    }

    /// The address of the store, as errors show it: without a password.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.capabilities().store
    }

    /// What the store supports.
    ///
    /// ```
    /// let client = leasehold::Client::memory();
    /// assert!(client.capabilities().pushes_losses); // whoever loses a lock by force is told at once
    /// ```
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.engine().backend().capabilities()
    }

    fn resource(&self, purpose: Purpose, name: &str) -> Result<Resource, Error> {
        let kind = purpose.kind();
        primitive::check_kind(self.engine(), kind)?;
        name::resource(&self.key_prefix(purpose), name, kind)
    }

    fn key_prefix(&self, purpose: Purpose) -> String {
        let (locks, semaphores) = (self.mutex_options(), self.semaphore_options());
        match purpose {
            Purpose::Mutex => locks.key_prefix().to_owned(),
            Purpose::RwLock => locks.within(within::RW_LOCK).key_prefix().to_owned(),
            Purpose::Election => locks.within(within::ELECTION).key_prefix().to_owned(),
            Purpose::Schedule => locks.within(within::TICK_RUN).key_prefix().to_owned(),
            Purpose::CountingSemaphore | Purpose::FairSemaphore => {
                semaphores.key_prefix(purpose.kind()).to_owned()
            }
        }
    }

    fn keys(&self, name: &str) -> Keys {
        let mut prefixes: Vec<_> =
            Purpose::ALL.map(|purpose| (self.key_prefix(purpose), Some(purpose))).into();
        let done = self.mutex_options().within(within::TICK_DONE).key_prefix().to_owned();
        prefixes.push((done, None));
        // A prefix may begin with another one: the longest decides.
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        let mut begin: Vec<_> = prefixes
            .iter()
            .filter(|(_, purpose)| purpose.is_some())
            .map(|(prefix, _)| format!("{prefix}{name}"))
            .collect();
        begin.sort_unstable();
        begin.dedup_by(|longer, shorter| longer.starts_with(&**shorter));
        Keys { name: name.to_owned(), prefixes, begin }
    }
}

/// Which keys are sought, and what for.
struct Keys {
    /// What the names begin with.
    name: String,
    /// What each prefix is for, the longest first; `None` for the marks of ticks.
    prefixes: Vec<(String, Option<Purpose>)>,
    /// What the keys begin with: none of these with another one.
    begin: Vec<String>,
}

impl Pass for Keys {
    type Item = Overview;

    fn begin(&self) -> &[String] {
        &self.begin
    }

    fn named(&self, Listed { resource, holders, waiters }: Listed) -> Option<Overview> {
        let key = &resource.key;
        let fits = |purpose: Option<Purpose>| purpose.is_none_or(|purpose| purpose.includes(resource.kind));
        let (prefix, purpose) = self.prefixes.iter().find(|(prefix, purpose)| {
            key.starts_with(prefix) && key.len() > prefix.len() && fits(*purpose)
        })?;
        let resource = Resource::split_at(key, prefix.len(), resource.kind)?;
        // What the key begins with may have been part of a longer prefix.
        let is_sought = resource.name().starts_with(&self.name);
        let purpose = purpose.filter(|_| is_sought)?;
        Some(Overview { purpose, listed: Listed::new(resource, holders, waiters) })
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
        let all: Vec<_> = client.list_all(prefix).try_collect().await.unwrap();
        let mut all: Vec<_> =
            all.iter().map(|found| (found.purpose, found.listed.resource.name().to_owned())).collect();
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
