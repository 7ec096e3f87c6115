//! Changing keys: reading what is there, and writing it if nobody else has changed it in the meantime.
//!
//! `docs/stores/zookeeper.md` has a picture of this.

use std::sync::Arc;

use futures::future::join_all;

use super::Shared;
use super::failure::{Code, Malformed};
use super::names;
use super::names::ChildName;
use super::op::{MAX_REQUEST, Mode, Op, Reply, Stat};
use super::plan::{Changed, Context, Step, Writing, create};
use super::view::{Child, Known, Mark, Record, Seen, Unreadable, View, reads};
use crate::backend::records::{Done, Failure, KeyBatch, Round, running};
use crate::backend::{BackendError, Event, LeaseId, Request};

/// How often a change is tried if other clients keep changing the record first.
const TRIES: usize = 64;
/// After how many attempts requests join the queue before anything else, so that others serve them.
const CONTENDED: usize = 2;
/// After how many conflicts that nothing explains, one after another, the server is left: what others have written into
/// the nodes of leases may explain one.
const UNEXPLAINED: usize = CONTENDED;
/// How many nodes are looked at in one pipeline.
const TOGETHER: usize = 256;
/// How many bytes are written together at most.
const BYTES: usize = MAX_REQUEST / 2;

/// Why a key was not changed.
enum Refusal {
    /// The server, or the way to it.
    Failed(Failure),
    /// What is stored there.
    Wrong(BackendError),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Refusal {
    fn done(self) -> Done {
        match self {
            Self::Failed(failure) => {
                Done::Failed { unsure: !failure.is_certain, error: failure.while_storing() }
            }
            Self::Wrong(error) => Done::Failed { error, unsure: false },
        }
    }
}

/// Carries out a round, and says what became of it.
pub(super) async fn carry_out(shared: &Arc<Shared>, round: Round<Known>) {
    let batches = round.into_batches();
    if batches.len() == 1 {
        for batch in batches {
            alone(shared, batch).await;
        }
        return;
    }
    let left = together(shared, batches).await;
    join_all(left.into_iter().map(|batch| alone(shared, batch))).await;
}

/// Changes keys of which only the records have to be written by one request. Returns those that are left.
async fn together(shared: &Arc<Shared>, batches: Vec<KeyBatch<Known>>) -> Vec<KeyBatch<Known>> {
    let opened = join_all(batches.into_iter().map(|batch| async {
        let mut attempt = Attempt::of(shared, batch);
        let changed = attempt.begin().await;
        (attempt, changed)
    }));
    let (mut left, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut batches = Vec::new();
    for (attempt, changed) in opened.await {
        match changed {
            Ok((changed, Step::Write(writing))) if attempt.may_write_with_others(&writing) => {
                let size = writing.ops.iter().map(Op::size).sum::<usize>();
                if bytes + size > BYTES {
                    batches.push(std::mem::take(&mut batch));
                    bytes = 0;
                }
                bytes += size;
                batch.push((attempt, changed, writing));
            }
            Ok(_) => left.push(attempt.batch),
            Err(refusal) => attempt.end(refusal.done()),
        }
    }
    batches.push(batch);
    let written = join_all(batches.into_iter().map(|batch| write_batch(shared, batch))).await;
    left.extend(written.into_iter().flatten());
    left
}

async fn write_batch(
    shared: &Arc<Shared>,
    batch: Vec<(Attempt<'_>, Changed, Writing)>,
) -> Vec<KeyBatch<Known>> {
    if batch.is_empty() {
        return Vec::new();
    }
    let ops = batch.iter().flat_map(|(.., writing)| writing.ops.iter().cloned()).collect();
    let mut replies = match shared.send_all(vec![Op::Multi(ops)]).await {
        Ok(replies) => match replies.replies.into_iter().next() {
            Some(Ok(Reply::All(replies))) => replies.into_iter(),
            // One of them was changed, or is not permitted: each is written on its own.
            _ => return batch.into_iter().map(|(attempt, ..)| attempt.batch).collect(),
        },
        Err(failure) => {
            for (attempt, ..) in batch {
                attempt.end(Refusal::Failed(failure.clone()).done());
            }
            return Vec::new();
        }
    };
    for (mut attempt, changed, writing) in batch {
        let own = replies.by_ref().take(writing.ops.len()).collect();
        attempt.written(&changed, &writing, own, None);
        attempt.end(Done::Finished);
    }
    Vec::new()
}

async fn alone(shared: &Arc<Shared>, batch: KeyBatch<Known>) {
    let mut attempt = Attempt::of(shared, batch);
    let done = match attempt.carry_out().await {
        Ok(()) => Done::Finished,
        Err(refusal) => refusal.done(),
    };
    attempt.end(done);
}

/// One key that is being changed.
struct Attempt<'a> {
    shared: &'a Arc<Shared>,
    path: String,
    batch: KeyBatch<Known>,
    view: View,
    /// Leases whose places were created or extended in this attempt.
    fresh: Vec<LeaseId>,
    /// Whether only the first task is carried out for now.
    is_first_only: bool,
    /// Whether the changes have been stored, and only the queue remains to be served.
    is_stored: bool,
    conflicts: usize,
    /// How many of them, at the end, nothing explains.
    unexplained: usize,
    /// The connection on which the key was read.
    connection: u64,
}

impl<'a> Attempt<'a> {
    fn of(shared: &'a Arc<Shared>, batch: KeyBatch<Known>) -> Self {
        let path = names::record(&shared.settings.root, &batch.key);
        Self {
            shared,
            path,
            batch,
            view: View::default(),
            fresh: Vec::new(),
            is_first_only: false,
            is_stored: false,
            conflicts: 0,
            unexplained: 0,
            connection: 0,
        }
    }

    fn end(mut self, done: Done) {
        let is_known = matches!(done, Done::Finished) && self.view.record.is_some();
        self.batch.written = is_known.then(|| Known::new(self.view));
        self.shared.schedule.finish(self.batch, done);
    }

    async fn carry_out(&mut self) -> Result<(), Refusal> {
        let (mut changed, mut step) = self.begin().await?;
        for _ in 0..TRIES {
            let is_remembered = !self.view.is_current;
            match step {
                Step::Nothing if is_remembered && !self.is_stored => self.look().await?,
                Step::Nothing => {
                    self.note(&changed, &[]);
                    if self.is_stored || self.finish() {
                        return Ok(());
                    }
                }
                Step::LookAt(children) => self.look_at(&children).await?,
                // Whether a request may join the queue of a semaphore depends on its limit.
                Step::Join(..) if is_remembered && self.view.may_have_waiters() => self.look().await?,
                Step::Join(requests, prolonged) => self.join(&requests, &prolonged).await?,
                Step::Write(writing) if !self.may_write(&writing) => self.look().await?,
                Step::Write(writing) => {
                    if self.write(&changed, &writing).await? && self.is_stored && !writing.concerns_newcomers
                    {
                        return Ok(());
                    }
                }
            }
            (changed, step) = self.change().await?;
        }
        Err(Failure {
            is_broken: false,
            ..Failure::unavailable(format!("{}: other clients keep changing the record", self.path))
        }
        .into())
    }

    /// Uses the cached key, or reads it, and changes it.
    async fn begin(&mut self) -> Result<(Changed, Step), Refusal> {
        match self.batch.written.take() {
            Some(known) => self.view = known.into_view(),
            None => self.look().await?,
        }
        self.change().await
    }

    /// Whether this write cannot miss anything that has happened since the key was read. If it writes the record, it
    /// fails if another client has written the record; but the record does not contain the waiters for permits.
    fn may_write(&self, writing: &Writing) -> bool {
        let overlooks_nobody = !writing.concerns_waiters || !self.view.may_have_waiters();
        self.view.is_current || (writing.generation.is_some() && overlooks_nobody)
    }

    /// Whether nothing else has to be done for this key, before or after.
    fn may_write_with_others(&self, writing: &Writing) -> bool {
        let is_whole = self.view.record.is_some() && !self.is_first_only && writing.is_of_record_only();
        is_whole && self.may_write(writing)
    }

    /// Runs the changes on the current view.
    async fn change(&mut self) -> Result<(Changed, Step), Refusal> {
        self.shared.places.recall(&self.batch.key, &mut self.view);
        let clock = self.shared.clock().await?;
        let exists = self.view.record.as_ref().is_some_and(|record| record.ledger.last_number() > 0);
        let stamp = clock.stamp(exists);
        let client = self.shared.places.client();
        let context = Context {
            path: &self.path,
            client,
            session: self.shared.session.timeout(),
            fresh: &self.fresh,
            is_crowded: self.conflicts >= CONTENDED,
            must_write: self.batch.must_write && !self.is_stored,
        };
        if let Some(first) = self.view.uncertain(stamp.now) {
            return Ok((Changed::nothing(), Step::LookAt(vec![first])));
        }
        if self.is_stored {
            let changed = Changed::by_serving(&self.batch.key, &self.view, stamp, client);
            let step = changed.step(&self.view, &context);
            return Ok((changed, step));
        }
        let changed = Changed::by(&self.view, stamp, running(&self.batch.tasks[..self.tasks()]));
        let step = changed.step(&self.view, &context);
        if self.tasks() > 1 && matches!(step, Step::Join(..)) && !self.view.is_held(stamp.now) {
            // A request can only wait for a key that is held, so the first task runs alone and becomes the holder.
            self.is_first_only = true;
            let changed = Changed::by(&self.view, stamp, running(&self.batch.tasks[..1]));
            let step = changed.step(&self.view, &context);
            return Ok((changed, step));
        }
        Ok((changed, step))
    }

    /// How many tasks are carried out now.
    fn tasks(&self) -> usize {
        if self.is_first_only { 1 } else { self.batch.tasks.len() }
    }

    /// The tasks that were carried out have been stored. `true` if there are no others.
    fn finish(&mut self) -> bool {
        let done = self.tasks();
        self.batch.tasks.drain(..done).for_each(|task| task.finish(Ok(())));
        self.is_first_only = false;
        self.batch.tasks.is_empty()
    }

    /// Reads the key.
    async fn look(&mut self) -> Result<(), Refusal> {
        let [record, children] = reads(&self.path);
        let sync = Op::Sync { path: self.path.clone() };
        let replies = self.shared.send_all(vec![sync, record, children]).await?;
        self.connection = replies.connection;
        self.read(replies.replies.into_iter().skip(1))
    }

    /// Another client has written the key, so it is read again. What is found then must differ, because the server was
    /// asked for all that the leader has confirmed before. A server that has lost some of it, which happens when leaders
    /// are killed (ZOOKEEPER-5010), would never show it.
    async fn look_after_a_conflict(&mut self) -> Result<(), Refusal> {
        self.conflicts += 1;
        let before = self.view.versions();
        self.look().await?;
        let is_same = before.is_some() && self.view.versions() == before;
        self.unexplained = if is_same { self.unexplained + 1 } else { 0 };
        if self.unexplained >= UNEXPLAINED && self.shared.settings.servers.len() > 1 {
            self.unexplained = 0;
            self.shared.session.leave_server(self.connection);
            self.look().await?;
        }
        Ok(())
    }

    fn read(&mut self, mut replies: impl Iterator<Item = Result<Reply, Code>>) -> Result<(), Refusal> {
        self.view =
            View::read(&self.batch.key, &self.path, &mut replies).map_err(|unreadable| match unreadable {
                Unreadable::Refused(failure) => Refusal::Failed(failure),
                Unreadable::Foreign => Refusal::Wrong(unreadable.error(&self.path)),
            })?;
        Ok(())
    }

    /// Looks at these children.
    async fn look_at(&mut self, children: &[usize]) -> Result<(), Refusal> {
        let (mut gone, mut served, mut asked) = (Vec::new(), Vec::new(), Vec::new());
        for some in children.chunks(TOGETHER) {
            let paths = some.iter().map(|n| format!("{}/{}", self.path, self.view.children[*n].node));
            let ops = paths.map(|path| Op::Get { path, watch: false }).collect();
            let replies = self.shared.send_all(ops).await?;
            for (n, reply) in some.iter().zip(replies.replies) {
                match reply {
                    Ok(Reply::Data(data, stat)) => {
                        let child = &mut self.view.children[*n];
                        child.seen = Some(Seen::of(&data, stat));
                        match Mark::read(&data) {
                            Some(Mark::Granted(_)) => served.push(child.clone()),
                            // If it is this client's, the next write replaces the mark, and its watch would miss it.
                            Some(Mark::AskAgain(_)) => asked.push(child.name.lease()),
                            _ => {}
                        }
                    }
                    Ok(_) => return Err(Failure::from(Malformed).into()),
                    Err(Code::NO_NODE) => gone.push(*n),
                    Err(code) => return Err(code.failure(&self.path).into()),
                }
            }
        }
        self.view.remove(&gone);
        let client = self.shared.places.client();
        let own = asked.into_iter().filter(|lease| Some(lease.client()) == client);
        self.shared.send(own.map(Event::AskAgain));
        if !served.is_empty() {
            // The record has been written since it was read. If it still lacks these holds, another program has
            // interfered.
            self.look().await?;
            self.view.end_unless_held(&served);
        }
        Ok(())
    }

    /// Creates and extends places in the queue, regardless of other clients. Then reads the key again.
    async fn join(&mut self, requests: &[Request], prolonged: &[usize]) -> Result<(), Refusal> {
        let session = self.shared.session.timeout();
        let mut ops: Vec<_> = requests.iter().map(|request| create(&self.path, request, session)).collect();
        let touched: Vec<_> = prolonged.iter().map(|n| self.view.children[*n].clone()).collect();
        ops.extend(touched.iter().map(|child| Op::Set {
            path: format!("{}/{}", self.path, child.node),
            data: Mark::Nothing.data(),
            version: child.seen.map_or(0, |seen| seen.version),
        }));
        let written = ops.len();
        ops.extend(reads(&self.path));
        let replies = self.shared.send_all(ops.clone()).await?;
        let mut replies = replies.replies.into_iter();
        let results: Vec<_> = ops.iter().zip(replies.by_ref().take(written)).collect();
        let mut seen = Vec::new();
        for (op, result) in results {
            match (op, result) {
                (Op::Create { .. }, Ok(Reply::Created(path, Some(stat)))) => seen.push((path, stat)),
                (Op::Set { path, .. }, Ok(Reply::Set(stat))) => seen.push((path.clone(), stat)),
                (_, Ok(_)) => {}
                (_, Err(code)) if code.is_conflict() => {}
                (Op::Create { path, .. } | Op::Set { path, .. }, Err(code)) => {
                    return Err(code.failure(path).into());
                }
                (_, Err(code)) => return Err(code.failure(&self.path).into()),
            }
        }
        self.read(replies)?;
        self.note_seen(&seen);
        // A place that was served or prompted has another version; it is read again.
        let missed = touched.iter().filter(|child| !seen.iter().any(|(path, _)| path.ends_with(&child.node)));
        let missed: Vec<_> = missed.map(|child| child.name.lease()).collect();
        self.shared.places.mark_uncertain(&self.batch.key, &missed);
        Ok(())
    }

    /// The children at these paths were written by this client.
    fn note_seen(&mut self, seen: &[(String, Stat)]) {
        for (path, stat) in seen {
            self.fresh.extend(self.view.see(path, Seen::of(b"", *stat)));
        }
        self.shared.note(&self.batch.key, &self.path, &self.view, |_| false);
    }

    /// Updates this client's places from the view. The client already knows the leases that it has requested or served.
    fn note(&self, changed: &Changed, served: &[LeaseId]) {
        let is_asked = |lease| changed.requests.iter().any(|request| request.lease.id == lease);
        let knows = |lease| is_asked(lease) || served.contains(&lease);
        self.shared.note(&self.batch.key, &self.path, &self.view, knows);
    }

    /// Stores a change. `false` if another client changed the key first; the key has then been read again.
    async fn write(&mut self, changed: &Changed, writing: &Writing) -> Result<bool, Refusal> {
        let leaving = writing.deleted.iter().map(|n| self.view.children[*n].name.lease());
        self.shared.places.leave(&self.batch.key, leaving);
        let mut ops = vec![Op::Multi(writing.ops.clone())];
        // The reply usually shows that there are no unknown children.
        if self.view.record.is_none() || (writing.concerns_newcomers && self.view.child_version.is_none()) {
            ops.push(self.listing());
        }
        let replies = self.shared.send_all(ops).await?;
        let mut replies = replies.replies.into_iter();
        match replies.next() {
            Some(Ok(Reply::All(stored))) => {
                let listed = replies.next();
                let is_listed = listed.is_some();
                self.written(changed, writing, stored, listed);
                if writing.concerns_newcomers && !is_listed && self.view.child_version.is_none() {
                    let listed = self.shared.send_all(vec![self.listing()]).await?.replies.pop();
                    self.listed(listed);
                }
                Ok(true)
            }
            Some(Err(code)) if code.is_conflict() => {
                if code == Code::NO_NODE && self.view.record.is_none() {
                    self.shared.make_root().await?;
                }
                self.look_after_a_conflict().await?;
                Ok(false)
            }
            Some(Err(code)) => Err(code.failure(&self.path).into()),
            _ => Err(Failure::from(Malformed).into()),
        }
    }

    fn listing(&self) -> Op {
        Op::Children { path: self.path.clone(), watch: false }
    }

    fn listed(&mut self, reply: Option<Result<Reply, Code>>) {
        if let Some(Ok(Reply::Children(names, stat))) = reply {
            self.view.list(&self.batch.key, names, stat);
        }
    }

    /// What was asked for has been stored, and its children may have been listed after that.
    fn written(
        &mut self,
        changed: &Changed,
        writing: &Writing,
        stored: Vec<Reply>,
        listed: Option<Result<Reply, Code>>,
    ) {
        let served: Vec<_> = changed.diff.granted.iter().map(|granted| granted.lease).collect();
        let (mut created, mut record, mut children) = (Vec::new(), None, None);
        for (op, reply) in writing.ops.iter().zip(stored) {
            match (op, reply) {
                // The listing of the children returns when it was created.
                (Op::Create { path, .. }, _) if *path == self.path => record = Some((0, 0)),
                (Op::Create { mode: Mode::Persistent, .. }, _) => self.view.has_generation = true,
                (Op::Create { .. }, Reply::Created(path, _)) => created.push(path),
                (Op::Set { path, .. }, Reply::Set(stat)) if *path == self.path => {
                    record = Some((stat.version, stat.ctime));
                    // It comes first, before children are created or deleted.
                    children = Some(stat.child_version);
                }
                (Op::Set { path, data, .. }, Reply::Set(stat)) => {
                    self.view.see(path, Seen::of(data, stat));
                }
                _ => {}
            }
        }
        if let Some(((version, created), generation)) = record.zip(writing.generation.clone()) {
            let ledger = changed.ledger.without_queue();
            self.view.record = Some(Record { generation, version, created, ledger });
        }
        let changes = writing.ops.iter().filter(|op| op.changes_children_of(&self.path)).count();
        let met = children.filter(|met| self.view.child_version == Some(*met));
        self.view.child_version = met.map(|met| met.wrapping_add(i32::try_from(changes).unwrap_or(i32::MAX)));
        self.view.remove(&writing.deleted);
        for path in created {
            let node = path.rsplit('/').next().unwrap_or_default().to_owned();
            if let Some(name) = ChildName::parse(&node, &self.batch.key) {
                self.view.children.push(Child { node, name, seen: None });
            }
        }
        self.view.is_current = true;
        self.listed(listed);
        self.note(changed, &served);
        self.shared.send(changed.own.iter().cloned());
        self.is_stored = self.finish();
    }
}
