//! Redis and Valkey: one server, the primary named by sentinels, or a cluster.
//!
//! | file | content |
//! |---|---|
//! | `keys` | every key, its type and its expiry |
//! | `lua/` | the protocol: one script per operation, which the server runs atomically |
//! | `linker` | how a script is put together from the files of `lua/` |
//! | `protocol` | what Rust and Lua must agree on |
//! | `script` | the scripts' text and digests; one with its resource and arguments, before it becomes a call or a part of a batch |
//! | `link` | what a client library must provide: one established connection, answers, and errors classified by what is known about the execution |
//! | `fred`, `redis_rs` | links of fred, and of redis-rs |
//! | `connection` | a connection: one link after another, until it is closed |
//! | `servers` | the connections and transports of a store are created |
//! | `route` | which server a connection leads to |
//! | `sentinel` | which server is currently the primary |
//! | `cluster` | which node serves which slot; redirections |
//! | `status`, `check`, `acceptance` | the state of the store, from that of its connections; checks of one server; of all servers |
//! | `runtime` | whether a runtime can be used for connections |
//! | `connections` | connections for commands, and the one that is subscribed, where the client lives |
//! | `transport` | operations called, once or until they are answered; those that wait for a call |
//! | `batch` | many operations in one call |
//! | `msgpack` | the encoding of a batch and its answers |
//! | `notifications` | the subscription: messages from the server become events |
//! | `elections` | the channels of the elections that this client observes, on the same connection |
//! | `opening` | opening links, with credentials that are requested each time, and why that failed |
//! | `credentials` | public: who logs in |
//! | `tls` | when a link is opened over TLS, and what it means if it is not |
//! | `url`, `target` | parsing URLs; where a store is, and who logs in |
//! | `calls` | the scripts as typed calls: their arguments, and what their answers say |
//! | `node` | a server as one of the nodes of a Redlock |
//! | `refusal` | which answers of a server that declines are temporary |
//! | `descriptions` | labels of clients and notes of leases, beside what the protocol needs |
//! | `listing` | what is held or awaited, in small steps |
//! | `renewals` | many renewals in one call of their own |
//! | `replicas` | waiting until replicas have a grant |
//! | `builder` | public: the settings of a client, and connecting with them |
//! | `backend` | the operations of the contract, on top of these |

mod acceptance;
mod backend;
mod batch;
mod builder;
mod calls;
mod check;
mod cluster;
mod connection;
mod connections;
mod credentials;
mod descriptions;
mod elections;
#[cfg(feature = "fred")]
mod fred;
#[cfg(all(any(test, fuzzing), feature = "all-stores"))]
pub(super) mod fuzzing;
mod keys;
mod link;
mod linker;
mod listing;
mod msgpack;
mod node;
mod notifications;
mod opening;
mod protocol;
#[cfg(feature = "redis-rs")]
mod redis_rs;
mod refusal;
mod renewals;
mod replicas;
mod route;
mod runtime;
mod script;
mod sentinel;
mod servers;
mod status;
mod target;
mod tls;
mod transport;
mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{BackendError, Capabilities, Status, StoreState};
use crate::background;
use crate::closing::Closing;
use crate::error::Error;
use crate::home::Home;
use crate::runtime::spawn_on;
use check::Expected;
use connection::{ConnectionSettings, names_after};
use connections::{Commands, Connections};
use descriptions::Descriptions;
use link::Library as LinkLibrary;
use notifications::Notifications;
use opening::Opening;
use replicas::Replicas;
use servers::Servers;
use status::Statuses;

pub use builder::RedisBuilder;
pub use credentials::{Credentials, CredentialsProvider};

/// Leases on a Redis server, version 6.2 or later, a Valkey server, the primary named by sentinels, or a cluster.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::Client;
/// use leasehold::redis::RedisBackend;
///
/// let backend = RedisBackend::builder("redis://127.0.0.1:6379")?
///     .fail_fast(true)
///     .connect_lazy()?; // or `connect().await?`
/// let client = Client::with_backend(Arc::new(backend));
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// It keeps three connections: one for commands and one that is subscribed to the channel `leasehold:<client id>`, on
/// the runtime on which it was connected, and one for renewals on the crate's own thread. If that runtime ends, or is
/// not driven while another one waits, the first two are opened again on another thread of the crate. There are more in
/// a cluster (for commands and renewals, one to each primary), with sentinels (one subscription to each), and with
/// [`wait_replicas`](RedisBuilder::wait_replicas) (one to each primary).
#[doc(alias = "valkey")]
#[doc(alias = "redlock")]
#[doc(alias = "sentinel")]
#[doc(alias = "cluster")]
pub struct RedisBackend {
    client: Uuid,
    capabilities: Capabilities,
    home: Arc<Home>,
    connections: Arc<Connections>,
    /// Those for commands, where the client lives.
    commands: Commands,
    /// Those for renewals, on the crate's own thread.
    renewing: Commands,
    /// The tasks on the crate's own thread.
    drivers: Mutex<Vec<JoinHandle<()>>>,
    notifications: Arc<Notifications>,
    descriptions: Arc<Descriptions>,
    poll_interval: Option<Duration>,
    repair: Option<Duration>,
    replicas: Option<Arc<Replicas>>,
    connect_timeout: Duration,
    /// How long a call is repeated while the server does not answer.
    repeat_for: Duration,
    fail_fast: bool,
    statuses: Arc<Statuses>,
    closing: Arc<Closing>,
}

/// For how many reply timeouts a call is repeated while the server does not answer.
const ATTEMPTS: u32 = 2;
/// How long the removal of the label may take when the client is closed.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Makes all waiting requests repeat when the store becomes unreachable, so that they fail, until `closed`.
async fn fail_waiting(
    mut changes: BoxStream<'static, StoreState>,
    notifications: Arc<Notifications>,
    closed: CancellationToken,
) {
    while let Some(Some(state)) = closed.run_until_cancelled(changes.next()).await {
        if matches!(state.status, Status::Disconnected { .. }) {
            notifications.resync();
        }
    }
}

fn background_handle() -> Result<Handle, BackendError> {
    background::handle().map_err(|error| BackendError::NotSent { source: error.into() })
}

impl RedisBackend {
    /// A backend that is not connected. What must run in any case is started on the crate's own thread.
    fn new(
        settings: &RedisBuilder,
        library: Arc<dyn LinkLibrary>,
        store: String,
    ) -> Result<Self, BackendError> {
        let own = background_handle()?;
        let (closing, statuses) = (Arc::<Closing>::default(), Statuses::new(store.clone()));
        let (client, home) = settings.node_of.clone().unwrap_or_else(|| (Uuid::new_v4(), Arc::default()));
        home.may_move(&own);
        let notifications = Arc::new(Notifications::new(client, settings.quota.is_some()));
        let connections = ConnectionSettings {
            connector: Arc::new(Opening::new(library, settings.target.tls, settings.timeouts.connect)),
            login: settings.target.login.clone(),
            timeouts: settings.timeouts,
            statuses: Arc::clone(&statuses),
            named: names_after(settings.label.as_deref()),
            messages: 1,
        };
        let (topology, notified) = (settings.target.topology.clone(), Arc::clone(&notifications));
        let sentinel_login = settings.sentinel_login.clone().unwrap_or_default();
        let servers = Servers::new(topology, connections, sentinel_login, notified, closing.token());
        let own_home = Home::own(&own);
        let (commands, renewing) = (servers.commands(&home), servers.commands(&own_home));
        let subscriber = servers.subscriber();
        let mut drivers = vec![spawn_on(&own, servers.stay_up_to_date(&[&commands, &renewing]))];
        if settings.fail_fast {
            let (changes, notified) = (statuses.changes(), Arc::clone(&notifications));
            drivers.push(spawn_on(&own, fail_waiting(changes, notified, closing.token())));
        }
        drivers.extend(renewing.start(&own, &closing.token()));
        let replicas = settings.quota.map(|quota| {
            let waiting = servers.commands(&own_home);
            drivers.extend(waiting.start(&own, &closing.token()));
            Replicas::new(quota, waiting, own.clone())
        });
        let expected = Expected {
            in_cluster: commands.are_in_cluster(),
            has_replicas: replicas.is_some(),
            channel: notifications.channel.clone(),
            store: store.clone(),
        };
        let notified = Arc::clone(&notifications);
        let descriptions = Arc::new(Descriptions::new(client, Arc::clone(&notifications)));
        let lives = (Arc::clone(&home), own);
        let connections =
            Connections::new(lives, commands.clone(), subscriber, notified, expected, Arc::clone(&closing));
        Ok(Self {
            client,
            capabilities: Capabilities { labels: true, lists: true, ..Capabilities::new(store) },
            home,
            connections,
            commands,
            renewing,
            drivers: Mutex::new(drivers),
            notifications,
            descriptions,
            poll_interval: settings.poll_interval,
            repair: settings.repair,
            replicas,
            connect_timeout: settings.timeouts.connect,
            repeat_for: settings.timeouts.reply * ATTEMPTS,
            fail_fast: settings.fail_fast,
            statuses,
            closing,
        })
    }

    fn connect_error(&self, error: BackendError) -> Error {
        Error::from_backend(error, "connect", None, &self.capabilities.store)
    }

    /// Connects from the current runtime and from the crate's own, and looks at the servers. If it is dropped,
    /// `closing` is cancelled with the backend, which ends what was begun.
    ///
    /// Boxed, so that connecting, which involves most of the client library, is compiled here and not again in every
    /// crate that calls an `async fn` built on this.
    fn open(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        async move {
            self.connections.connect().await?;
            self.renewing.connected().await
        }
        .boxed()
    }

    /// Starts connecting from the crate's own thread; the first call opens the connections where the client lives.
    fn start(&self) -> Result<(), BackendError> {
        let finding = self.renewing.find_when_possible(&background_handle()?, &self.closing.token());
        self.drivers.lock().extend(finding);
        Ok(())
    }

    /// Closes all connections and waits until they are closed.
    async fn close_connections(&self) {
        if let Some(removed) = self.descriptions.send_at_end(&self.commands) {
            // It expires in any case.
            let _ = timeout(LAST_WORDS, removed).await;
        }
        // First, so that the end of the connections is not mistaken for an outage.
        self.statuses.close();
        self.closing.close();
        // Tasks on a runtime that is not driven do not end.
        self.home.move_if_stuck().await;
        let mut drivers = self.connections.take_drivers();
        drivers.extend(std::mem::take(&mut *self.drivers.lock()));
        drivers.extend(self.renewing.take_drivers());
        let Ok(all) = timeout(self.connect_timeout, join_all(drivers)).await else {
            tracing::warn!(target: "leasehold::store", "the connections were not closed in time");
            return;
        };
        for ended in all {
            match ended {
                // It ended with its runtime.
                Err(error) if error.is_cancelled() => {}
                Err(error) => {
                    tracing::warn!(target: "leasehold::store", %error, "a connection was not closed cleanly")
                }
                Ok(()) => {}
            }
        }
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("store", &self.capabilities.store).finish_non_exhaustive()
    }
}

impl Drop for RedisBackend {
    fn drop(&mut self) {
        self.statuses.close();
        self.closing.close();
    }
}
