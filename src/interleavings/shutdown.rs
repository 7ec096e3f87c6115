//! A client is closed while others request, hold and release.

use std::sync::Arc;
use std::time::Duration;

use super::explore::explore;
use super::runtime::Runtime;
use super::store::Link;
use super::world::World;
use crate::{Client, Error, LossReason};

async fn lock(world: Arc<World>, client: Client, is_awaited: bool) -> Result<(), Error> {
    let guard = client.mutex("a")?.lock().await?;
    world.use_alone(&guard).await;
    if is_awaited { guard.release().await } else { Ok(()) }
}

/// Nothing depends on time here. `grace` is for how long what is held may be held.
fn scene_of_a_shutdown(own_thread: bool, grace: Option<Duration>) {
    World::play(|world| {
        let client = world.client(Link { own_thread, ..Link::default() });
        let runtime = Runtime::new("app");
        let users = [true, false, true]
            .map(|is_awaited| runtime.handle().spawn(lock(Arc::clone(world), client.clone(), is_awaited)));
        let closed = runtime.block_on(async {
            match grace {
                None => client.shutdown().await,
                Some(grace) => client.close(grace).await,
            }
        });
        closed.expect("the store answers");
        for user in users {
            match runtime.block_on(user).expect("its runtime goes on") {
                Ok(()) | Err(Error::Closed { .. }) => {}
                Err(Error::Lost { reason: LossReason::ClientClosed, .. }) if grace.is_none() => {}
                other => panic!("{other:?}"),
            }
        }
        let late = runtime.block_on(lock(Arc::clone(world), client.clone(), true));
        assert!(matches!(late, Err(Error::Closed { .. })), "{late:?}");
        // A request that was on its way may be executed after its release: then another release follows its answer.
        world.until_released();
        drop(client);
        runtime.end();
    });
}

#[test]
fn a_shutdown_releases_everything_and_ends_every_request() {
    explore(|| scene_of_a_shutdown(false, None));
}

#[test]
fn the_same_if_the_crate_has_a_thread_of_its_own() {
    explore(|| scene_of_a_shutdown(true, None));
}

#[test]
fn a_client_that_is_closed_with_patience_loses_nothing() {
    explore(|| scene_of_a_shutdown(false, Some(Duration::from_secs(60))));
}
