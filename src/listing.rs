//! What a client's store has under the client's prefixes.

use std::slice;
use std::sync::Arc;

use futures::channel::mpsc::{Sender, channel};
use futures::future::ready;
use futures::stream::{self, Stream};
use futures::{SinkExt, StreamExt};

use crate::backend::{BackendError, Kind, Listed, Resource};
use crate::client::Client;
use crate::error::Error;
use crate::lease::Engine;

impl Client {
    /// Streams the locks and semaphores that anybody holds or waits for, of those whose names begin with `prefix`, in
    /// no particular order; all of them if it is empty. A name is sought under the prefix that
    /// [`mutex_options`](Self::mutex_options) and [`semaphore_options`](Self::semaphore_options) have for its kind:
    /// what was created with another one is not found.
    ///
    /// The store is read in small steps, each when the stream is polled, so that nobody is held up: what is held or
    /// awaited throughout is reported once; what begins or ends meanwhile may be reported or not. Reentrant locks may
    /// be reported as [`Kind::Mutex`], which they are to other clients. Of the holders of one semaphore on Redis, not
    /// more than 250 are reported, those whose leases end first.
    ///
    /// ```
    /// # use futures::TryStreamExt;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// let mut held = client.list("machine:");
    /// while let Some(found) = held.try_next().await? {
    ///     assert_eq!(found.resource.name(), "machine:42");
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
    pub fn list(&self, prefix: &str) -> impl Stream<Item = Result<Listed, Error>> + Send + Unpin + use<> {
        listed(Arc::clone(&self.engine), self.ranges(prefix))
    }

    /// What is to be read.
    fn ranges(&self, name: &str) -> Vec<Range> {
        let (locks, semaphores) = (self.mutex_options(), self.semaphore_options());
        let mut ranges: Vec<Range> = Vec::new();
        for kind in Kind::ALL {
            let prefix = if kind.is_semaphore() { semaphores.key_prefix(kind) } else { locks.key_prefix() };
            match ranges.iter_mut().find(|range| range.prefix == prefix) {
                Some(range) => range.kinds.push(kind),
                None => {
                    let begin = format!("{prefix}{name}");
                    ranges.push(Range { prefix: prefix.to_owned(), begin, kinds: vec![kind] });
                }
            }
        }
        ranges
    }
}

/// What one pass over the store is to find.
pub(crate) trait Pass: Send + Sync + 'static {
    /// Something that was found, as users know it.
    type Item: Send + 'static;

    /// What the keys begin with: none of these with another one.
    fn begin(&self) -> &[String];

    /// `None` for what is none of the user's.
    fn named(&self, found: Listed) -> Option<Self::Item>;
}

/// What these passes find, one after the other.
pub(crate) fn listed<P: Pass>(
    engine: Arc<Engine>,
    passes: Vec<P>,
) -> impl Stream<Item = Result<P::Item, Error>> + Send + Unpin + use<P> {
    // A stream of the store borrows what it reads.
    let (sender, listed) = channel(0);
    let read = stream::once(async move {
        if let Err(error) = read_all(&engine, &passes, sender.clone()).await {
            send(sender, Err(error)).await;
        }
    });
    stream::select(listed, read.filter_map(|()| ready(None))).boxed()
}

/// Sends all that there is. Fails if nothing can be read.
async fn read_all<P: Pass>(
    engine: &Engine,
    passes: &[P],
    sender: Sender<Result<P::Item, Error>>,
) -> Result<(), Error> {
    engine.check_process("list", None)?;
    if engine.closing().is_closed() {
        return Err(engine.error(BackendError::Closed, "list", None));
    }
    for pass in passes {
        let mut listed = engine.backend().list_any(pass.begin());
        while let Some(found) = listed.next().await {
            let item = match found {
                Ok(found) => pass.named(found).map(Ok),
                Err(error) if !error.is_transient() => return Err(engine.error(error, "list", None)),
                Err(error) => Some(Err(engine.error(error, "list", None))),
            };
            if let Some(item) = item {
                send(sender.clone(), item).await;
            }
        }
    }
    Ok(())
}

/// The receiver is gone only if the whole stream is, and with it whatever sends.
async fn send<T>(mut sender: Sender<T>, item: T) {
    let _ = sender.send(item).await;
}

/// Keys that begin alike.
struct Range {
    /// Of the kinds that are sought.
    prefix: String,
    /// The same, and what the name begins with.
    begin: String,
    kinds: Vec<Kind>,
}

impl Pass for Range {
    type Item = Listed;

    fn begin(&self) -> &[String] {
        slice::from_ref(&self.begin)
    }

    fn named(&self, found: Listed) -> Option<Listed> {
        let Listed { resource, holders, waiters } = found;
        let resource = Resource::split_at(&resource.key, self.prefix.len(), resource.kind)?;
        let is_sought = self.kinds.contains(&resource.kind) && !resource.name().is_empty();
        is_sought.then(|| Listed::new(resource, holders, waiters))
    }
}
