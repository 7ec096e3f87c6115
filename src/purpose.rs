//! What a key of the store is for, and what tools do with any of them: look, and end the hold.

use std::fmt;
use std::str::FromStr;

use crate::backend::{Detail, Inspection, Kind, Resource};
use crate::client::Client;
use crate::error::Error;
use crate::options::within;
use crate::{name, primitive};

/// Which primitive a key of the store belongs to.
///
/// ```
/// use leasehold::Purpose;
///
/// assert_eq!(Purpose::RwLock.to_string(), "rw_lock");
/// assert_eq!("rw_lock".parse::<Purpose>()?, Purpose::RwLock);
/// # Ok::<(), leasehold::Error>(())
/// ```
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
    pub(crate) fn includes(self, kind: Kind) -> bool {
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

impl FromStr for Purpose {
    type Err = Error;

    /// By its stable name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a text that is none.
    fn from_str(name: &str) -> Result<Self, Error> {
        let named = Self::ALL.into_iter().find(|purpose| purpose.as_str() == name);
        named.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            Error::invalid("purpose", format!("`{name}` is none of {names}"))
        })
    }
}

impl Client {
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

    fn resource(&self, purpose: Purpose, name: &str) -> Result<Resource, Error> {
        let kind = purpose.kind();
        primitive::check_kind(self.engine(), kind)?;
        name::resource(&self.key_prefix(purpose), name, kind)
    }

    /// What the keys of this purpose begin with.
    pub(crate) fn key_prefix(&self, purpose: Purpose) -> String {
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
}
