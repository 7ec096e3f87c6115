//! An election: who of many processes leads.
//!
//! The leader is whoever holds a mutex, and its value is the note of that lease. So an election has the guarantees of a
//! mutex and no state of its own. Leases are not passed on within a client: each leadership has its own value, which
//! the store must show.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream, Stream};
use tokio::time::{Instant, sleep, sleep_until};

use crate::backend::{Claim, Detail, Kind};
use crate::client::Client;
use crate::error::{Error, LossReason};
use crate::fence::FencingToken;
use crate::guard::{Guard, Lost, Protected};
use crate::lease::Wait;
use crate::name;
use crate::options::{MutexOptions, within};
use crate::primitive::Primitive;
use crate::retry::{self, BackOff};

/// How often an observer looks, whether or not the store has pushed anything.
const LOOK: Duration = Duration::from_secs(1);

/// Of all that campaign for it, in all processes that use the same store, one leads at a time.
///
/// Cheap to clone. All clones, and all elections with the same prefix and name on the same store, are the same
/// election. Candidates are served in order of arrival at the store, also those of one client: leadership is never
/// passed on within a client.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::memory();
/// let election = client.election("reports")?;
/// let leadership = election.campaign("api-7").await?; // waits until it leads
/// let leader = election.leader().await?.expect("somebody leads");
/// assert_eq!((&*leader.value, leader.token), ("api-7", leadership.token()));
/// leadership.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # Ok(()) }
/// ```
///
/// A job that one process at a time is to do, for as long as all of them run, is a few lines: see [`run`](Self::run).
///
/// # When a leader dies
///
/// The next candidate leads when the lease of the leader has expired: within one TTL ([`MutexOptions::ttl`], 30 s by
/// default). A leader that was paused for longer than that may act once more before it notices. If that would do harm,
/// let the resource compare [tokens](Leadership::token).
#[doc(alias = "leader")]
#[doc(alias = "leader election")]
#[doc(alias = "primary")]
#[doc(alias = "active/passive")]
#[derive(Clone)]
pub struct Election {
    primitive: Primitive,
}

/// Who leads.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let election = client.election("ingest")?;
/// let leadership = election.campaign("10.0.0.7:8080").await?;
/// let leader = election.leader().await?.expect("there is one");
/// assert_eq!((leader.value.as_str(), leader.token), ("10.0.0.7:8080", leadership.token()));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Leader {
    /// What it campaigned with. Empty on a store that does not record notes.
    pub value: String,
    /// The token of its leadership, greater than that of every earlier one. 0 if a client of another library holds the
    /// key.
    pub token: FencingToken,
    /// What its client is called; `None` if the store does not record labels, or it has none.
    pub label: Option<String>,
}

impl Client {
    /// The election called `name`. Its lease has the options of this client's locks
    /// ([`mutex_options`](Self::mutex_options)), except that it is not passed on within the client. Its key begins with
    /// their prefix, if one is set, and `election:`. No I/O.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let leadership = client.election("ingest")?.campaign("10.0.0.7:8080").await?; // waits until this one leads
    /// leadership.resign().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `name` is empty or longer than 512 bytes, or an option is out of bounds.
    #[doc(alias = "leader")]
    #[doc(alias = "leader election")]
    pub fn election(&self, name: &str) -> Result<Election, Error> {
        self.election_with(name, self.mutex_options())
    }

    /// The election called `name`, whose lease has these options. No I/O.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::memory();
    /// let brief = client.mutex_options().ttl(Duration::from_secs(5)); // another leads 5 s after this one has died
    /// let election = client.election_with("ingest", brief)?;
    /// # drop(election);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`election`](Self::election).
    pub fn election_with(&self, name: &str, options: MutexOptions) -> Result<Election, Error> {
        let options = options.within(within::ELECTION).local_handover(false);
        let resource = name::resource(options.key_prefix(), name, Kind::Mutex)?;
        Ok(Election { primitive: Primitive::new(Arc::clone(&self.engine), resource, options.validate()?)? })
    }
}

impl Election {
    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.primitive.name()
    }

    /// Waits until this candidate leads. `value` is what others see of it: an address, for instance.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let leadership = client.election("ingest")?.campaign("10.0.0.7:8080").await?;
    /// assert_eq!(leadership.value(), "10.0.0.7:8080");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `value` has more than [`MAX_NOTE_BYTES`](crate::MAX_NOTE_BYTES), or control
    /// characters. Otherwise as for [`DistMutex::lock`](crate::DistMutex::lock).
    ///
    /// # Panics
    ///
    /// When it is polled outside a tokio runtime, or in one without timers.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point, which withdraws the candidate. Nothing is left behind.
    pub async fn campaign(&self, value: &str) -> Result<Leadership, Error> {
        let mut candidate = self.primitive.clone();
        candidate.set_note(value);
        let guard = candidate.acquire(&Claim::Sole, Wait::Forever).await?;
        Ok(Leadership { guard, value: value.into() })
    }

    /// Who leads now; `None` if nobody does. This is a snapshot and may already be out of date.
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::inspect`](crate::DistMutex::inspect).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the call changes nothing.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let now = self.primitive.inspect(Detail::Full).await?;
        Ok(now.holders.into_iter().next().map(|holder| Leader {
            value: holder.note.unwrap_or_default(),
            token: holder.token.unwrap_or(FencingToken::new(0)),
            label: holder.label,
        }))
    }

    /// Who leads, now and whenever it changes; `None` while nobody does.
    ///
    /// | store | when a change is reported |
    /// |---|---|
    /// | Redis, Redlock, PostgreSQL, etcd, ZooKeeper, memory | at once: the store pushes it |
    /// | MySQL, SQLite | within a second |
    ///
    /// For as long as the stream is polled, the store is also asked once a second, for what is not pushed or was lost,
    /// and at once when a connection that was lost is open again. The end of a leader that has died is pushed by etcd,
    /// when its lease ends, and by ZooKeeper, when its session does; elsewhere it is pushed with the next leader, and
    /// otherwise seen within a second. A leader, or a time without one, that lasts for less than that, or than a request takes, may be missed; the last
    /// state is not. The same state is not reported twice. While the store does not answer, nothing is reported, and
    /// the stream goes on when it does; see [`Client::state`]. It ends when the client is shut down.
    ///
    /// ```
    /// # use futures::StreamExt;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let election = client.election("reports")?;
    /// let mut leaders = election.observe();
    /// assert_eq!(leaders.next().await, Some(None)); // nobody
    /// let leadership = election.campaign("api-7").await?;
    /// let leader = leaders.next().await.flatten().expect("somebody leads");
    /// assert_eq!(leader.value, "api-7");
    /// # drop(leadership);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Awaiting the next item is cancel safe. Dropping the stream has no effect on the election, and ends the
    /// subscription at the store, which the observers of a client share on all stores but etcd.
    pub fn observe(&self) -> impl Stream<Item = Option<Leader>> + Send + Unpin + use<> {
        self.observe_looking_every(LOOK)
    }

    /// The same with another interval than a second: for tests of what the store pushes.
    #[doc(hidden)]
    pub fn observe_looking_every(
        &self,
        interval: Duration,
    ) -> impl Stream<Item = Option<Leader>> + Send + Unpin + use<> {
        // Before the first look, so that no change after it is missed.
        let changes = self.primitive.engine.backend().changes(&self.primitive.resource);
        let observer = Observer { election: self.clone(), changes, interval, last: None, next_look: None };
        stream::unfold(observer, Observer::next).boxed()
    }

    /// Campaigns, runs `job` for as long as it leads, and campaigns again when that has ended: for a job that one
    /// process at a time is to do. Returns when `job` has ended without an error.
    ///
    /// ```
    /// # async fn write_reports(token: leasehold::FencingToken) -> std::io::Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let election = client.election("reports")?;
    /// election.run("api-7", |leader| write_reports(leader.token)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// | what happens | what follows |
    /// |---|---|
    /// | `job` ends with `Ok` | the leader resigns, and `run` returns the output |
    /// | `job` ends with an error | it is logged at WARN, the leader resigns, and campaigns again after a pause |
    /// | the leadership is lost | `job` is dropped at its current await point, as by [`Guard::protect`]; the candidate campaigns again after a pause |
    /// | the store does not answer, or refuses the request | the same is tried again after a pause |
    /// | the client is [closed](Client::close) or [shut down](Client::shutdown) | `job` is dropped, the leader resigns, and `run` fails with [`Error::Closed`] |
    /// | `job` panics, or the future is dropped | the leader resigns, in the background |
    ///
    /// Pauses are random: 50 to 100 ms at first, up to twice as long each time, and 15 to 30 s at most. After a
    /// leadership of 30 s, they begin again with the first.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] as above, [`Error::InvalidArgument`] for the value, and [`Error::Forked`]. Nothing else ends
    /// it.
    ///
    /// # Panics
    ///
    /// When it is polled outside a tokio runtime, or in one without timers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `job`, and withdraws the candidate or resigns in the background.
    pub async fn run<T, E, W>(&self, value: &str, mut job: impl FnMut(Leader) -> W + Send) -> Result<T, Error>
    where
        T: Send,
        E: fmt::Display + Send,
        W: Future<Output = Result<T, E>> + Send,
    {
        let mut back_off = BackOff::default();
        loop {
            match self.campaign(value).await {
                Ok(leadership) => {
                    let since = Instant::now();
                    if let Some(output) = self.lead(leadership, &mut job).await? {
                        return Ok(output);
                    }
                    if since.elapsed() >= retry::LONGEST {
                        back_off.reset();
                    }
                }
                Err(error) if retry::is_final(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(target: "leasehold::client", name = %self.name(), %error, "campaigning failed, and is repeated")
                }
            }
            let draining = self.primitive.engine.draining();
            if draining.unless(pin!(sleep(back_off.pause()))).await.is_none() {
                return Err(self.closed());
            }
        }
    }

    /// Runs the job under this leadership. `None` if another one must follow.
    async fn lead<T, E, W>(
        &self,
        leadership: Leadership,
        job: &mut (impl FnMut(Leader) -> W + Send),
    ) -> Result<Option<T>, Error>
    where
        T: Send,
        E: fmt::Display + Send,
        W: Future<Output = Result<T, E>> + Send,
    {
        let name = self.name();
        let token = leadership.token();
        tracing::info!(target: "leasehold::client", %name, %token, "leads");
        let me = Leader {
            value: leadership.value.to_string(),
            token,
            label: self.primitive.engine.label().map(|label| label.to_string()),
        };
        let worked = self.primitive.engine.draining().unless(pin!(leadership.protect(job(me)))).await;
        let (output, steps_down) = match worked {
            None | Some(Err(Error::Lost { reason: LossReason::ClientClosed, .. })) => (None, true),
            Some(Ok(Ok(output))) => (Some(output), false),
            Some(Ok(Err(error))) => {
                tracing::warn!(target: "leasehold::client", %name, %token, %error, "the job of the leader failed");
                (None, false)
            }
            Some(Err(lost)) => {
                tracing::warn!(target: "leasehold::client", %name, %token, error = %lost, "leads no longer");
                return Ok(None);
            }
        };
        if let Err(error) = leadership.resign().await {
            // The lease expires on its own.
            tracing::warn!(target: "leasehold::client", %name, %token, %error, "the resignation was not confirmed");
        }
        if steps_down { Err(self.closed()) } else { Ok(output) }
    }

    fn closed(&self) -> Error {
        Error::Closed { name: Some(self.name().to_owned()), operation: "lead" }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.primitive.debug("Election", f).finish_non_exhaustive()
    }
}

/// Leads, until this is dropped or the lease is lost.
///
/// It is a [`Guard`]: what is said there about dropping and about losing the lease applies here.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let leadership = client.election("ingest")?.campaign("10.0.0.7:8080").await?;
/// leadership.protect(async { /* lead */ }).await?; // stops when the lease is lost
/// leadership.resign().await?; // the next candidate leads at once
/// # Ok(()) }
/// ```
#[must_use = "dropping the leadership resigns at once"]
pub struct Leadership {
    guard: Guard,
    value: Arc<str>,
}

impl Leadership {
    /// What it campaigned with. No I/O.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The fencing token, greater than that of every earlier leader. Pass it to the protected resource with every
    /// write. No I/O.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// Whether this process can still be sure that it leads: [`Guard::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Waits until the leadership is lost, and says why: [`Guard::lost`].
    pub fn lost(&self) -> Lost {
        self.guard.lost()
    }

    /// Runs `work` for as long as it leads: [`Guard::protect`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the leadership was lost before `work` was done.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the leadership is not affected.
    pub fn protect<F: Future>(&self, work: F) -> Protected<'_, F> {
        self.guard.protect(work)
    }

    /// As [`protect`](Self::protect), for work that can fail itself: [`Guard::try_protect`].
    ///
    /// # Errors
    ///
    /// The error of `work`, or [`Error::Lost`] as its type of error.
    ///
    /// # Cancel safety
    ///
    /// As for [`protect`](Self::protect).
    pub async fn try_protect<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.guard.try_protect(work).await
    }

    /// Gives up the leadership, and waits until the store has confirmed it: the next candidate leads at once. `Ok`
    /// means that this one led until the end.
    ///
    /// # Errors
    ///
    /// As for [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future after it was polled does not keep the leadership: the release continues in the background.
    pub async fn resign(self) -> Result<(), Error> {
        self.guard.release().await
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("value", &self.value).field("guard", &self.guard).finish()
    }
}

struct Observer {
    election: Election,
    /// What the store pushes.
    changes: BoxStream<'static, ()>,
    interval: Duration,
    last: Option<Option<Leader>>,
    next_look: Option<Instant>,
}

impl Observer {
    /// `None` when the client is shut down.
    async fn next(mut self) -> Option<(Option<Leader>, Self)> {
        let engine = Arc::clone(&self.election.primitive.engine);
        let leader = engine.closing().unless(pin!(self.change())).await?;
        Some((leader, self))
    }

    async fn change(&mut self) -> Option<Leader> {
        loop {
            if let Some(next_look) = self.next_look {
                tokio::select! {
                    Some(()) = self.changes.next() => {}
                    () = sleep_until(next_look) => {}
                }
            }
            self.next_look = Some(Instant::now() + self.interval);
            match self.election.leader().await {
                Ok(leader) if self.last.as_ref() == Some(&leader) => {}
                Ok(leader) => {
                    self.last = Some(leader.clone());
                    return leader;
                }
                Err(error) => {
                    tracing::debug!(name = %self.election.name(), %error, "who leads is not known");
                    self.next_look = Some(Instant::now() + self.interval.min(LOOK));
                }
            }
        }
    }
}
