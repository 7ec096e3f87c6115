//! PostgreSQL: one server, or the primary of several.
//!
//! | file | content |
//! |---|---|
//! | `builder`, `url` | public: what an application sets; parsing URLs |
//! | `settings` | the settings of a client, their defaults and bounds |
//! | `schema` | the tables, their version, and whether they can be used |
//! | `session`, `tls` | a session of the server: connecting, with TLS or without, its settings and checks |
//! | `pooler` | whether there is a pooler in between that would lose notifications |
//! | `reach` | the servers that a configuration names |
//! | `shared`, `server` | opening sessions that can be used; the server, as one client sees it |
//! | `statement` | the statements |
//! | `exchange` | reading and writing records |
//! | `listener` | the connection for notifications |
//! | `sweep` | records that nobody has used for a day |
//! | `check` | what the server's user should know about it |
//! | `failure` | errors of PostgreSQL in words, and what follows from them |
//! | `text` | text that PostgreSQL can store |
//!
//! What is the same for MySQL is in `backend::sql`.

mod builder;
mod check;
mod exchange;
mod failure;
mod listener;
mod pooler;
mod reach;
mod schema;
mod server;
mod session;
mod settings;
mod shared;
mod statement;
mod sweep;
mod text;
mod tls;
mod url;

use super::ledger_backend::{LedgerBackend, backend_on_ledger};
use super::sql::Store;
use crate::error::Error;
use shared::Postgres;

pub use builder::PostgresBuilder;
pub use schema::SCHEMA;

/// Leases in a table of a PostgreSQL database.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::Client;
/// use leasehold::postgres::PostgresBackend;
///
/// let backend = PostgresBackend::builder("postgres://app@db.example/app")?
///     .schema("locks")
///     .connect_lazy()?; // or `connect().await?`
/// let client = Client::with_backend(Arc::new(backend));
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// Each client has two connections, one for changes and one for notifications, and opens more for changes while changes
/// are held up by locked rows. See `docs/stores/postgres.md` for what this store guarantees and what it does not.
#[doc(alias = "pg_advisory_lock")]
#[doc(alias = "advisory lock")]
#[doc(alias = "sqlx")]
pub struct PostgresBackend(LedgerBackend<Store<Postgres>>);

backend_on_ledger!(PostgresBackend);

impl PostgresBackend {
    /// Connects to the server in a URL:
    /// `postgres://[user[:password]@]host[:port][,host...][/database][?option=value&...]`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed; otherwise as for [`PostgresBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.connect().await
    }

    /// A builder for the server that a configuration names.
    ///
    /// ```
    /// let config = "host=db.example user=app dbname=app".parse::<tokio_postgres::Config>()?;
    /// let builder = leasehold::postgres::PostgresBackend::builder_from_config(config);
    /// # drop(builder);
    /// # Ok::<(), tokio_postgres::Error>(())
    /// ```
    pub fn builder_from_config(config: tokio_postgres::Config) -> PostgresBuilder {
        PostgresBuilder::new(config)
    }

    /// A builder with the server and the options of a URL.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it cannot be parsed.
    pub fn builder(url: &str) -> Result<PostgresBuilder, Error> {
        url::parse(url)
    }
}

/// A notification comes back as it was sent.
#[cfg(all(any(test, fuzzing), feature = "all-stores"))]
pub(super) fn fuzzed(text: &str) {
    assert_eq!(text::unescape(&text::escape(text)), text);
    drop(text::unescape(text));
}
