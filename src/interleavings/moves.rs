//! The move of a client that is in use: its home ends, or is not driven any more, while others wait on another runtime.

use std::future::pending;
use std::sync::Arc;

use shuttle::thread;

use super::explore::explore;
use super::runtime::Runtime;
use super::store::Link;
use super::world::World;
use crate::{Client, Error};

async fn lock(world: Arc<World>, client: Client, is_awaited: bool) -> Result<(), Error> {
    let guard = client.mutex("a")?.lock().await?;
    world.use_alone(&guard).await;
    if is_awaited { guard.release().await } else { Ok(()) }
}

/// The same, where leases may be lost.
async fn lock_as_told(world: Arc<World>, client: Client, is_awaited: bool) -> Result<(), Error> {
    let guard = client.mutex("a")?.lock().await?;
    world.use_as_told(&guard).await;
    if is_awaited { guard.release().await } else { Ok(()) }
}

/// Without a thread of its own, a client needs no time for this: a wake-up that is lost is a deadlock.
fn scene_of_an_end() {
    World::play(|world| {
        let client = world.client(Link::default());
        let (first, second) = (Runtime::new("first"), Runtime::new("second"));
        let spawn = |runtime: &Runtime, is_awaited| {
            runtime.handle().spawn(lock(Arc::clone(world), client.clone(), is_awaited))
        };
        let at_first = [true, false].map(|is_awaited| spawn(&first, is_awaited));
        let at_second = [spawn(&second, false), spawn(&second, true)];
        let ending = thread::spawn(move || first.end());
        for user in at_second {
            world.join(&client, user).expect("its runtime goes on").expect("served");
        }
        ending.join().expect("no panic");
        for user in at_first {
            // Unless its runtime has ended before.
            if let Ok(served) = world.join(&client, user) {
                served.expect("served");
            }
        }
        world.join(&client, spawn(&second, true)).expect("its runtime goes on").expect("served");
        drop(client);
        world.until_released();
        second.end();
    });
}

/// The end of the runtime waits for releases, for up to 100 ms, and after the move some are repeated for a while.
fn scene_of_a_move() {
    World::play(|world| {
        let client = world.client(Link { own_thread: true, ..Link::default() });
        let (first, second) = (Runtime::new("first"), Runtime::new("second"));
        let spawn = |runtime: &Runtime, is_awaited| {
            runtime.handle().spawn(lock_as_told(Arc::clone(world), client.clone(), is_awaited))
        };
        let at_first = [true, false].map(|is_awaited| spawn(&first, is_awaited));
        let at_second = [spawn(&second, false), spawn(&second, true)];
        world.while_time_passes(|| {
            let ending = thread::spawn(move || first.end());
            let served = at_second.map(|user| second.block_on(user).expect("its runtime goes on"));
            ending.join().expect("no panic");
            // Unless its runtime has ended before.
            let left = at_first.into_iter().filter_map(|user| second.block_on(user).ok());
            for served in served.into_iter().chain(left) {
                assert!(matches!(served, Ok(()) | Err(Error::Lost { .. })), "{served:?}");
            }
            drop(client);
            world.until_released();
            second.end();
        });
    });
}

#[test]
fn whoever_waits_elsewhere_is_served_when_the_home_ends() {
    explore(scene_of_an_end);
}

#[test]
fn the_same_if_the_client_may_move_to_a_thread_of_the_crate() {
    explore(scene_of_a_move);
}

fn scene_of_a_standstill(own_thread: bool) {
    World::play(|world| {
        let client = world.client(Link { own_thread, ..Link::default() });
        let (first, second) = (Runtime::new("first"), Runtime::new("second"));
        first.block_on(lock(Arc::clone(world), client.clone(), true)).expect("served");
        let users = [true, false].map(|is_awaited| {
            second.handle().spawn(lock_as_told(Arc::clone(world), client.clone(), is_awaited))
        });
        first.stop_driving();
        world.while_time_passes(|| {
            for user in users {
                let served = second.block_on(user).expect("its runtime goes on");
                // A lease may be over before that is noticed, where nobody renews it.
                assert!(matches!(served, Ok(()) | Err(Error::Lost { .. })), "{served:?}");
            }
            drop(client);
            world.until_released();
        });
        second.end();
        first.end();
    });
}

#[test]
fn whoever_waits_elsewhere_is_served_when_the_home_stands_still() {
    explore(|| scene_of_a_standstill(false));
}

#[test]
fn the_same_if_it_may_move_to_a_thread_of_the_crate() {
    explore(|| scene_of_a_standstill(true));
}

/// A guard is dropped where there is no runtime, while its client moves.
fn scene_of_a_drop(own_thread: bool) {
    World::play(|world| {
        let client = world.client(Link { own_thread, ..Link::default() });
        let (first, second) = (Runtime::new("first"), Runtime::new("second"));
        let guard = first.block_on(client.mutex("a").expect("a name").lock()).expect("it is free");
        let next = second.handle().spawn(lock(Arc::clone(world), client.clone(), false));
        let threads = [thread::spawn(move || drop(guard)), thread::spawn(move || first.end())];
        for thread in threads {
            thread.join().expect("no panic");
        }
        world.join(&client, next).expect("its runtime goes on").expect("served");
        // A client without a thread of its own sends its releases where it is used next.
        second.block_on(lock(Arc::clone(world), client.clone(), true)).expect("served");
        world.while_time_passes(|| {
            drop(client);
            world.until_released();
            second.end();
        });
    });
}

#[test]
fn a_guard_that_is_dropped_without_a_runtime_is_released_although_its_client_moves() {
    explore(|| scene_of_a_drop(false));
}

#[test]
fn the_same_from_a_thread_of_the_crate() {
    explore(|| scene_of_a_drop(true));
}

/// A guard is dropped as the last thing that its runtime does, or with it, and the process may end next: so the end of the
/// runtime waits for the release, whoever notices it first.
fn scene_of_the_last_thing(with_its_runtime: bool) {
    World::play(|world| {
        let client = world.client(Link { own_thread: true, ..Link::default() });
        let first = Runtime::new("first");
        let guard = first.block_on(client.mutex("a").expect("a name").lock()).expect("it is free");
        if with_its_runtime {
            drop(first.handle().spawn(async move {
                pending::<()>().await;
                drop(guard);
            }));
        } else {
            first.handle().within(|| drop(guard));
        }
        drop(client);
        first.end();
        assert!(world.is_released(), "the runtime has ended before the release was confirmed");
    });
}

#[test]
fn a_guard_that_is_dropped_as_the_last_thing_is_released_before_its_runtime_has_ended() {
    explore(|| scene_of_the_last_thing(false));
}

#[test]
fn the_same_if_it_is_dropped_with_its_runtime() {
    explore(|| scene_of_the_last_thing(true));
}
