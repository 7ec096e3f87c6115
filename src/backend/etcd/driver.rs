//! Carries out what is asked for: any number of resources at once on the one connection, each by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::calls::{Calls, Stop};
use super::connection::Connection;
use super::exchange::Exchange;
use super::plan::Plan;
use super::shared::Shared;
use super::sweep;
use super::transaction::{look_at, ranges, revision_of};
use super::view::View;
use crate::backend::BackendError;
use crate::backend::records::{Done, Failure, KeyBatch, Phase, Purpose, failed, running};
use crate::runtime::spawn;

/// How often a client thinks of records that nobody uses.
const SWEEP: Duration = Duration::from_secs(60 * 60);

/// How often a connection is tried, so that it is known if it is dead.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Carries out everything until the client is closed.
pub(super) async fn drive(shared: Arc<Shared>) {
    let beating = AbortOnDropHandle::new(spawn(heartbeat(Arc::clone(&shared))));
    let mut tasks = JoinSet::new();
    loop {
        while let Some(round) = shared.schedule.take() {
            tasks.spawn(carry_out(Arc::clone(&shared), round.into_batches()));
        }
        if shared.schedule.is_drained() {
            // Something may have to be done again.
            match tasks.join_next().await {
                Some(_) => continue,
                None => break,
            }
        }
        tokio::select! {
            () = shared.schedule.changed() => {}
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
        }
    }
    drop(beating);
    shared.schedule.abandon();
    shared.link.close().await;
}

/// From the first use of the connection on, checks it regularly and sweeps unused records.
async fn heartbeat(shared: Arc<Shared>) {
    shared.link.used().await;
    let mut next_sweep = Instant::now();
    loop {
        if next_sweep <= Instant::now() {
            sweep::sweep(&shared).await;
            next_sweep = Instant::now() + SWEEP;
        }
        // Whoever waits for a message must not wait long for it on a connection that is dead.
        let beat = if shared.is_in_use() { shared.settings.reply_timeout.min(HEARTBEAT) } else { HEARTBEAT };
        tokio::select! {
            () = sleep(beat) => {}
            () = shared.link.lost() => {}
        }
        while ping(Arc::clone(&shared)).await.is_err() {
            // There are pauses between attempts to connect, but it may be refused in another way.
            sleep(HEARTBEAT / 20).await;
        }
    }
}

async fn carry_out(shared: Arc<Shared>, batches: Vec<KeyBatch<View>>) {
    let connection = match shared.link.open().await {
        Ok(connection) => connection,
        Err(failure) => {
            shared.health.failed(Purpose::Changes, &failure.why);
            let error = failure.before_storing();
            for batch in batches {
                shared.schedule.finish(batch, Done::Failed { error: error.clone(), unsure: false });
            }
            return;
        }
    };
    let batches = read_many(&shared, &connection, batches).await;
    let done = batches.into_iter().map(|batch| change(&shared, &connection, batch));
    if join_all(done).await.into_iter().any(|is_done| is_done) {
        shared.health.succeeded(Purpose::Changes);
    }
}

/// Reads those records together that have to be read.
async fn read_many(
    shared: &Shared,
    connection: &Arc<Connection>,
    mut batches: Vec<KeyBatch<View>>,
) -> Vec<KeyBatch<View>> {
    if let [_] = batches.as_slice() {
        return batches;
    }
    let mut keys = Vec::new();
    for (n, batch) in batches.iter_mut().enumerate() {
        if batch.written.as_ref().is_none_or(|view| must_read(shared, batch, view)) {
            batch.written = None;
            keys.push((n, shared.keys.of(&batch.key)));
        }
    }
    let looked = async {
        let answer = connection.look(look_at(keys.iter().map(|(_, keys)| keys))).await?;
        let revision = revision_of(&answer)?;
        let views = keys.iter().zip(ranges(answer.responses));
        let views = views.map(|((n, keys), kvs)| Ok((*n, View::read(keys, kvs?, revision).ok())));
        views.collect::<Result<Vec<_>, Failure>>()
    };
    match looked.await {
        Ok(views) => views.into_iter().for_each(|(n, view)| batches[n].written = view),
        // Each of them finds out by itself.
        Err(failure) => tracing::debug!(%failure, "could not read several records at once"),
    }
    batches
}

/// Whether what is remembered does not do.
fn must_read(shared: &Shared, batch: &KeyBatch<View>, view: &View) -> bool {
    if batch.tasks.len() > 1 {
        return true;
    }
    let plan = Plan::of(view, &BTreeSet::new(), &shared.leases, running(&batch.tasks));
    plan.is_ok_and(|plan| !plan.is_to_be_written() || plan.needs_fresh)
}

/// Carries out one batch. Returns whether the server has answered.
async fn change(shared: &Shared, connection: &Arc<Connection>, mut batch: KeyBatch<View>) -> bool {
    let calls = Calls::new(shared, connection, &batch.key);
    let carried_out = Exchange::new(calls, &mut batch).carry_out().await;
    let (failure, phase) = match carried_out {
        Ok(()) => {
            connection.served();
            shared.schedule.finish(batch, Done::Finished);
            return true;
        }
        Err(Stop::Unreadable(error)) => {
            shared.schedule.finish(batch, Done::Failed { error, unsure: false });
            return true;
        }
        Err(Stop::Reading(failure)) => (failure, Phase::Reading),
        Err(Stop::Writing(failure)) => (failure, Phase::Writing),
    };
    tracing::debug!(store = %shared.settings.address, %failure, "changes were not stored");
    let is_answer = !failure.is_broken;
    if failure.is_broken {
        connection.give_up();
    }
    let (batches, why) = failed(vec![batch], failure, phase);
    for (batch, done) in batches {
        // A connection that was good until now may only have been closed: the next attempt to connect tells whether the
        // store is away.
        if let (Done::Failed { .. }, false, false) = (&done, is_answer, connection.has_served())
            && let Some(failure) = &why
        {
            shared.health.failed(Purpose::Changes, &failure.why);
        }
        shared.schedule.finish(batch, done);
    }
    is_answer
}

/// Asks the server for something that need not exist.
pub(super) async fn ping(shared: Arc<Shared>) -> Result<(), BackendError> {
    let mut answered = ask(&shared).await;
    if matches!(answered, Err(Asked { was_open: true, .. })) {
        // It may have been closed, or been dead, while nobody used it: only a new one tells whether the server can be
        // reached.
        answered = ask(&shared).await;
    }
    match answered {
        Ok(()) => {
            shared.health.succeeded(Purpose::Changes);
            Ok(())
        }
        Err(Asked { failure, .. }) => {
            if failure.is_broken {
                shared.health.failed(Purpose::Changes, &failure.why);
            }
            Err(failure.before_storing())
        }
    }
}

/// Why there was no answer.
struct Asked {
    failure: Failure,
    /// Whether a connection that was open before has been lost.
    was_open: bool,
}

async fn ask(shared: &Shared) -> Result<(), Asked> {
    let was_open = shared.link.is_open().await;
    let connection = shared.link.open().await.map_err(|failure| Asked { failure, was_open: false })?;
    let answered = connection.range(shared.keys.nothing()).await;
    answered.map(drop).map_err(|failure| {
        if failure.is_broken {
            connection.give_up();
        }
        Asked { was_open: was_open && failure.is_broken, failure }
    })
}
