//! MySQL and MariaDB.
//!
//! | file | content |
//! |---|---|
//! | `builder`, `url` | public: making a client; parsing URLs |
//! | `settings` | the settings of a client |
//! | `schema` | the tables, their version, and whether they can be used |
//! | `session`, `tls` | a session of the server; TLS |
//! | `connect` | opening a session, its settings and checks |
//! | `statement` | the statements |
//! | `shared`, `server` | what the connections of a client share; the server, as one client sees it |
//! | `exchange` | reading and writing records |
//! | `view` | what a record is for one client |
//! | `watch`, `named_locks` | what a client waits for; the named locks that others wait for |
//! | `watcher`, `waiters` | the connection that looks at records and holds named locks; those that wait for named locks |
//! | `sweep` | records that nobody has used for a day |
//! | `check` | what the server's user should know about it |
//! | `failure` | errors of MySQL in words, and what follows from them |
//!
//! What is the same for PostgreSQL is in `backend::sql`.

mod builder;
mod check;
mod connect;
mod exchange;
mod failure;
mod named_locks;
mod schema;
mod server;
mod session;
mod settings;
mod shared;
mod statement;
mod sweep;
mod tls;
mod url;
mod view;
mod waiters;
mod watch;
mod watcher;

use super::ledger_backend::{LedgerBackend, backend_on_ledger};
use super::sql::Store;
use crate::error::Error;
use shared::Mysql;

pub use builder::MysqlBuilder;
pub use schema::SCHEMA;
pub use settings::MysqlPush;

/// Leases in a table of a MySQL or MariaDB database.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::Client;
/// use leasehold::mysql::MysqlBackend;
///
/// let backend = MysqlBackend::builder("mysql://app@db.example/app")?
///     .create(false)
///     .connect_lazy()?; // or `connect().await?`
/// let client = Client::with_backend(Arc::new(backend));
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// Each client has two connections, one for changes and one that watches the rows it waits for, and opens more to wait
/// for named locks, and for changes while they are held up by locked rows. See `docs/stores/mysql.md` for what this store
/// guarantees and what it does not.
#[doc(alias = "mariadb")]
#[doc(alias = "GET_LOCK")]
pub struct MysqlBackend(LedgerBackend<Store<Mysql>>);

backend_on_ledger!(MysqlBackend);

impl MysqlBackend {
    /// Connects to the server in a URL: `mysql://[user[:password]@]host[:port][,host...]/database[?option=value&...]`.
    /// Of several servers, the one that accepts changes is used.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed; otherwise as for [`MysqlBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.connect().await
    }

    /// A builder for the server in a configuration. `prefer_socket` and `client_found_rows` are turned off, and pool
    /// settings are ignored.
    ///
    /// ```
    /// let opts = mysql_async::OptsBuilder::default().ip_or_hostname("db.example").db_name(Some("app"));
    /// let builder = leasehold::mysql::MysqlBackend::builder_from_opts(opts);
    /// # drop(builder);
    /// ```
    pub fn builder_from_opts(opts: impl Into<mysql_async::Opts>) -> MysqlBuilder {
        MysqlBuilder::new(opts.into())
    }

    /// A builder with the server, the credentials and the TLS settings of a pool. A pool does not expose them, so this
    /// briefly borrows one of its connections to read them. The store opens its own connections and takes no others
    /// from the pool.
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if the pool provides no connection within 2 s; [`Error::StoreRefused`] if the server
    /// rejects the credentials.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future returns the connection to the pool.
    pub async fn builder_from_pool(pool: &mysql_async::Pool) -> Result<MysqlBuilder, Error> {
        MysqlBuilder::of_pool(pool).await
    }

    /// A builder with the server and the options of a URL.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it cannot be parsed.
    pub fn builder(url: &str) -> Result<MysqlBuilder, Error> {
        url::parse(url)
    }
}
