//! Hand-over within a client: against waiters that leave, and beside other clients.

use std::sync::Arc;
use std::time::Duration;

use super::explore::explore;
use super::runtime::Runtime;
use super::store::Link;
use super::world::World;
use crate::{Client, Error};

/// Locks `a` and lets go of it, in one of two ways.
async fn lock(world: Arc<World>, client: Client, is_awaited: bool) -> Result<(), Error> {
    let guard = client.mutex("a")?.lock().await?;
    world.use_alone(&guard).await;
    if is_awaited { guard.release().await } else { Ok(()) }
}

#[test]
fn all_that_wait_are_served_one_at_a_time() {
    fn scene() {
        World::play(|world| {
            let (runtime, client, other) =
                (Runtime::new("app"), world.client(Link::default()), world.client(Link::default()));
            let users = [(&client, true), (&client, false), (&client, true), (&other, false)];
            let users = users.map(|(client, is_awaited)| {
                runtime.handle().spawn(lock(Arc::clone(world), client.clone(), is_awaited))
            });
            for user in users {
                runtime.block_on(user).expect("not cancelled").expect("served");
            }
            drop((client, other));
            world.until_released();
            runtime.end();
        });
    }
    explore(scene);
}

#[test]
fn a_waiter_that_leaves_keeps_nobody_waiting() {
    fn scene() {
        World::play(|world| {
            let (runtime, client) = (Runtime::new("app"), world.client(Link::default()));
            let spawn =
                |is_awaited| runtime.handle().spawn(lock(Arc::clone(world), client.clone(), is_awaited));
            let (first, leaves, third) = (spawn(false), spawn(false), spawn(true));
            leaves.abort_handle().abort();
            for user in [first, third] {
                runtime.block_on(user).expect("not cancelled").expect("served");
            }
            // It may have been served first.
            let left = runtime.block_on(leaves);
            assert!(left.is_err() || left.is_ok_and(|served| served.is_ok()));
            drop(client);
            world.until_released();
            runtime.end();
        });
    }
    explore(scene);
}

#[test]
fn a_waiter_whose_time_is_up_keeps_nobody_waiting() {
    fn scene() {
        World::play(|world| {
            let (runtime, client) = (Runtime::new("app"), world.client(Link::default()));
            let in_time = {
                let (world, client) = (Arc::clone(world), client.clone());
                runtime.handle().spawn(async move {
                    match client.mutex("a")?.lock_timeout(Duration::from_millis(100)).await {
                        Ok(guard) => {
                            world.use_as_told(&guard).await;
                            guard.release().await
                        }
                        Err(error) => Err(error),
                    }
                })
            };
            let others = [true, false].map(|is_awaited| {
                runtime.handle().spawn(lock_as_told(Arc::clone(world), client.clone(), is_awaited))
            });
            world.while_time_passes(|| {
                for user in others {
                    check(runtime.block_on(user).expect("not cancelled"));
                }
                let in_time = runtime.block_on(in_time).expect("not cancelled");
                // The answer may be late as well.
                assert!(
                    matches!(
                        in_time,
                        Ok(())
                            | Err(Error::TimedOut { .. }
                                | Error::StoreUnavailable { .. }
                                | Error::Lost { .. })
                    ),
                    "{in_time:?}"
                );
                drop(client);
                world.until_released();
            });
            runtime.end();
        });
    }
    explore(scene);
}

async fn lock_as_told(world: Arc<World>, client: Client, is_awaited: bool) -> Result<(), Error> {
    let guard = client.mutex("a")?.lock().await?;
    world.use_as_told(&guard).await;
    if is_awaited { guard.release().await } else { Ok(()) }
}

/// Time passes, so that leases may be lost.
fn check(used: Result<(), Error>) {
    assert!(matches!(used, Ok(()) | Err(Error::Lost { .. })), "{used:?}");
}
