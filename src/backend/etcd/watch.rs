//! Whether something about a resource has changed, for clients that neither hold it nor wait for it: a watch of its
//! keys. It costs nobody else anything.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::connection::Connection;
use super::keys::KeysOf;
use super::proto::{WatchCreateRequest, WatchRequest, WatchWish};
use super::shared::Shared;
use crate::backend::records::Failure;
use crate::runtime::spawn_on;

/// The pause between attempts to watch.
const PAUSE: Duration = Duration::from_millis(200);

/// Yields whenever something about the resource with this key has changed, or may have changed unseen. Several changes
/// that nobody has waited for are one.
pub(super) fn changes(shared: &Arc<Shared>, key: &str, runtime: &Handle) -> BoxStream<'static, ()> {
    let (changed, changes) = mpsc::channel(1);
    let (shared, keys) = (Arc::clone(shared), shared.keys.of(key));
    spawn_on(runtime, async move {
        tokio::select! {
            () = watch(&shared, &keys, &changed) => {}
            () = changed.closed() => {}
        }
    });
    let changes = stream::unfold(changes, async |mut changes| changes.recv().await.map(|()| ((), changes)));
    changes.chain(stream::pending()).boxed()
}

/// Watches on one connection after another, until the client is closed.
async fn watch(shared: &Shared, keys: &KeysOf, changed: &mpsc::Sender<()>) {
    while !shared.link.is_closed() {
        let Err(failure) = watch_once(shared, keys, changed).await;
        tracing::debug!(store = %shared.settings.address, %failure, "the watch of a resource begins again");
        sleep(PAUSE).await;
    }
}

async fn watch_once(
    shared: &Shared,
    keys: &KeysOf,
    changed: &mpsc::Sender<()>,
) -> Result<Infallible, Failure> {
    let connection = shared.link.open().await?;
    tokio::select! {
        ended = watch_on(&connection, keys, changed) => ended,
        () = connection.broken() => Err(Failure::unavailable("the connection was lost")),
    }
}

async fn watch_on(
    connection: &Connection,
    keys: &KeysOf,
    changed: &mpsc::Sender<()>,
) -> Result<Infallible, Failure> {
    let all = keys.read();
    let create = WatchCreateRequest { key: all.key, range_end: all.range_end, start_revision: 0 };
    let create = WatchRequest { wish: Some(WatchWish::Create(create)) };
    // The watch ends with the stream of requests, and that when this is dropped.
    let (_open, dropped) = oneshot::channel::<Infallible>();
    let requests = stream::iter([create]).chain(stream::pending()).take_until(dropped);
    let mut responses = connection.within(connection.watch_stream(requests)).await?;
    loop {
        let response = connection.next(&mut responses).await?;
        let response = response.ok_or_else(|| Failure::unavailable("the watch has ended"))?;
        if response.canceled {
            if connection.has_login() {
                // If the token has expired, the reason is that permission is denied.
                connection.renew_login().await?;
            }
            return Err(Failure::unavailable(format!("the watch was canceled: {}", response.cancel_reason)));
        }
        // The first one says that the watch has begun: what has changed before that was not seen. If the channel is
        // full, a change is reported already.
        let _ = changed.try_send(());
    }
}
