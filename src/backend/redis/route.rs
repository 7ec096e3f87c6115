//! How a connection finds its server, each time before it connects.

use std::fmt;
use std::future::pending;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use super::check::Hello;
use super::link::Value;
use super::link::{CallError, Link};
use super::target::Server;

/// Where a connection leads. `Display` says so while that is not known to be a certain server.
pub(super) trait Route: fmt::Debug + fmt::Display + Send + Sync {
    /// The server to connect to.
    fn server(&self) -> BoxFuture<'_, Result<Server, CallError>>;

    /// Whether the server is the right one: what others say about it may be out of date, and the address may belong to
    /// another server by now.
    fn check<'a>(&'a self, link: &'a dyn Link) -> BoxFuture<'a, Result<(), CallError>>;

    /// This server could not be connected to, does not answer, or is not the right one.
    fn failed(&self, _server: &Server) {}

    /// Completes when the server is no longer the right one, as far as that can be known without asking it.
    fn until_replaced<'a>(&'a self, _server: &'a Server) -> BoxFuture<'a, ()> {
        pending().boxed()
    }
}

/// Always to the same server, which must be a primary.
#[derive(Debug)]
pub(super) struct ToServer(pub(super) Server);

impl Route for ToServer {
    fn server(&self) -> BoxFuture<'_, Result<Server, CallError>> {
        ready(Ok(self.0.clone())).boxed()
    }

    fn check<'a>(&'a self, link: &'a dyn Link) -> BoxFuture<'a, Result<(), CallError>> {
        async {
            if let Some(text) = Hello::of(link).await?.refusal(false) {
                return Err(CallError::Answer(text));
            }
            match primary_of(link).await? {
                None => Ok(()),
                Some(primary) => Err(CallError::Answer(format!(
                    "this server is a replica{primary}, which cannot grant locks: connect to the primary, or use `redis-sentinel://`"
                ))),
            }
        }
        .boxed()
    }
}

impl fmt::Display for ToServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// If the server is a replica, " of " and its primary, as far as that is known.
pub(super) async fn primary_of(link: &dyn Link) -> Result<Option<String>, CallError> {
    let role = match link.command(vec!["ROLE".to_owned()]).await {
        Ok(role) => role,
        // This user may not ask where the primary is.
        Err(CallError::Answer(_)) => return Ok(Hello::of(link).await?.is_replica().then(String::new)),
        Err(error) => return Err(error),
    };
    let role = role.as_list();
    if role.first().and_then(Value::as_str) != Some("slave") {
        return Ok(None);
    }
    let primary = || Some(format!(" of {}:{}", role.get(1)?.as_str()?, role.get(2)?.as_u64()?));
    Ok(Some(primary().unwrap_or_default()))
}
