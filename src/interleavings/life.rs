//! The life of a lease through a client: its guard is dropped or released while it is renewed, expires, is released by force.

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};

use super::explore::explore;
use super::runtime::Runtime;
use super::store::Link;
use super::world::World;
use crate::{Client, Error};

/// Holds `a` for about as long as it lasts, and lets go of it.
async fn hold(world: Arc<World>, client: Client, is_awaited: bool) -> Result<(), Error> {
    let guard = client.mutex("a")?.lock().await?;
    let lost = guard.lost();
    for _ in 0..4 {
        world.use_as_told(&guard).await;
    }
    if guard.is_held() {
        drop(lost);
    } else {
        // Whoever waits for the loss is told, and of the same one.
        assert_eq!(lost.await, guard.lost().await);
    }
    if is_awaited { guard.release().await } else { Ok(()) }
}

fn scene_of_holds(link: Link) {
    World::play(|world| {
        let (runtime, client, other) = (Runtime::new("app"), world.client(link), world.client(link));
        let users = [(&client, true), (&client, false), (&other, true)].map(|(client, is_awaited)| {
            runtime.handle().spawn(hold(Arc::clone(world), client.clone(), is_awaited))
        });
        let forced = thread_rng().gen_bool(0.5).then(|| {
            world.except_force();
            let mutex = other.mutex("a").expect("a name");
            runtime.handle().spawn(async move { mutex.force_release().await.map(drop) })
        });
        world.while_time_passes(|| {
            for user in users {
                let held = runtime.block_on(user).expect("not cancelled");
                assert!(matches!(held, Ok(()) | Err(Error::Lost { .. })), "{held:?}");
            }
            if let Some(forced) = forced {
                let forced = runtime.block_on(forced).expect("not cancelled");
                assert!(forced.is_ok() || link.loses_answers, "{forced:?}");
            }
            drop((client, other));
            world.until_released();
        });
        runtime.end();
    });
}

#[test]
fn a_lease_is_held_by_whom_the_store_says_or_lost() {
    explore(|| scene_of_holds(Link::default()));
}

#[test]
fn the_same_if_the_crate_has_a_thread_of_its_own() {
    explore(|| scene_of_holds(Link { own_thread: true, ..Link::default() }));
}

#[test]
fn the_same_if_answers_are_lost() {
    explore(|| scene_of_holds(Link { loses_answers: true, ..Link::default() }));
}
