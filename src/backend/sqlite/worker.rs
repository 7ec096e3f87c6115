//! The thread of a client, the only one that uses the file.

use std::collections::HashMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use uuid::Uuid;

use super::builder::Settings;
use super::database::Database;
use super::failure::{Failure, Then};
use super::health::Health;
use super::inbox::{Inbox, here};
use super::job::Job;
use super::sweep::{self, INTERVAL, PAUSE};
use super::transaction::{Stored, Transaction};
use crate::backend::{Event, Ledger};

/// Beyond this many changed records, further jobs go into the next transaction, because no other client can write
/// meanwhile.
const TOGETHER: usize = 128;
/// How many addresses of other clients are remembered.
const ADDRESSES: usize = 4096;
/// How long there must be no space until the store counts as disconnected.
const FULL_FOR: Duration = Duration::from_secs(1);

pub(super) enum Message {
    Job(Box<dyn Job>),
    /// Tell other clients where this one receives datagrams.
    Listen(Uuid),
    Close(oneshot::Sender<()>),
}

pub(super) struct Worker {
    settings: Arc<Settings>,
    health: Arc<Health>,
    inbox: Arc<Inbox>,
    /// While it can be used.
    pub(super) database: Option<Database>,
    /// Once known, the client whose address others should know.
    client: Option<Uuid>,
    /// For datagrams to others.
    socket: Option<UdpSocket>,
    addresses: HashMap<Uuid, u16>,
    /// The greatest number that this client has seen issued: even if the file is deleted, none below it is issued
    /// again.
    newest: u64,
    /// Since when there has been no space for what was to be written.
    full_since: Option<Instant>,
    /// The version of the file at which waiting leases were last looked for.
    seen: Option<i64>,
    next_look: Instant,
    next_sweep: Instant,
    /// The key after which sweeping continues, while it is in progress.
    swept: Option<String>,
}

impl Worker {
    pub(super) fn new(settings: Arc<Settings>, health: Arc<Health>, inbox: Arc<Inbox>) -> Self {
        let now = Instant::now();
        Self {
            settings,
            health,
            inbox,
            database: None,
            client: None,
            socket: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok(),
            addresses: HashMap::new(),
            newest: 0,
            full_since: None,
            seen: None,
            next_look: now,
            next_sweep: now + INTERVAL,
            swept: None,
        }
    }

    /// Carries out jobs until the store is closed or dropped.
    pub(super) fn work(mut self, messages: &Receiver<Message>) {
        let closed = loop {
            match messages.recv_timeout(self.until_next_task()) {
                Ok(message) => {
                    if let Some(closed) = self.handle(message, messages) {
                        break Some(closed);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break None,
            }
            self.look_if_due();
            self.sweep_if_due();
        };
        self.leave();
        drop(self);
        if let Some(closed) = closed {
            // It is closed even if the receiver is gone.
            let _ = closed.send(());
        }
    }

    /// Handles a message and, if it is a job, those that have arrived since. `Some` if the store must be closed.
    fn handle(&mut self, message: Message, messages: &Receiver<Message>) -> Option<oneshot::Sender<()>> {
        let (mut jobs, mut records) = (Vec::new(), 0);
        let mut next = Some(message);
        while let Some(message) = next {
            match message {
                Message::Job(job) => {
                    records += job.records();
                    jobs.push(job);
                }
                Message::Listen(client) => self.listen(client),
                Message::Close(closed) => {
                    self.carry_out(jobs);
                    return Some(closed);
                }
            }
            next = if records < TOGETHER { messages.try_recv().ok() } else { None };
        }
        self.carry_out(jobs);
        None
    }

    fn until_next_task(&self) -> Duration {
        let next =
            if self.inbox.is_waiting() { self.next_look.min(self.next_sweep) } else { self.next_sweep };
        next.saturating_duration_since(Instant::now())
    }

    /// Carries out jobs in one transaction. If it fails, all of them have failed, unless others of them can succeed
    /// alone.
    pub(super) fn carry_out(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        if jobs.is_empty() {
            return;
        }
        match self.transact(&mut jobs) {
            Ok(events) => {
                // A waiter that is granted something has waited longer than the caller of this job.
                events.into_iter().for_each(|event| self.send(event));
                jobs.into_iter().for_each(|job| job.finish(Ok(())));
            }
            Err(failure) if jobs.len() > 1 && failure.is_of_one_job() => {
                jobs.into_iter().for_each(|job| self.carry_out(vec![job]));
            }
            Err(failure) => {
                self.note(&failure);
                jobs.into_iter().for_each(|job| job.finish(Err(failure.error.clone())));
            }
        }
    }

    fn transact(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<Vec<Event>, Failure> {
        self.open()?;
        let Some(database) = &self.database else { return Ok(Vec::new()) };
        let mut transaction = Transaction::begin(database, &self.settings, &self.inbox, self.newest)?;
        for job in jobs {
            if let Err(failure) = job.run(&mut transaction, self.full_since.is_some()) {
                transaction.roll_back();
                return Err(failure);
            }
        }
        let Stored { newest, ledgers, events, has_written } = transaction.commit()?;
        self.newest = newest;
        self.note_success(has_written);
        for (key, ledger) in &ledgers {
            self.inbox.note(key, ledger);
        }
        Ok(events)
    }

    // The file

    /// Opens the file, unless it is open and still the file of that name.
    fn open(&mut self) -> Result<(), Failure> {
        let mut is_again = false;
        if let Some(database) = &self.database {
            if database.is_intact()? {
                return Ok(());
            }
            let path = self.settings.path.display();
            tracing::warn!(target: "leasehold::store", %path, "the file was deleted or replaced: what was held in it is forgotten");
            self.database = None;
            is_again = true;
        }
        self.database = Some(Database::open(&self.settings)?);
        self.seen = None;
        // A process may not live for an hour.
        self.next_sweep = Instant::now();
        if is_again || self.inbox.is_waiting() {
            self.inbox.send(Event::Resync);
        }
        Ok(())
    }

    /// What only reads says nothing about whether there is space again.
    fn note_success(&mut self, has_written: bool) {
        if has_written {
            self.full_since = None;
        }
        if self.full_since.is_none() {
            self.health.succeeded();
        }
    }

    fn note(&mut self, failure: &Failure) {
        match failure.then {
            Then::Reopen => self.database = None,
            Then::ReadOnly => {
                self.database.iter().for_each(Database::make_room);
                let since = *self.full_since.get_or_insert_with(Instant::now);
                // It is repeated, and nobody needs to know if there is space by then.
                if self.database.is_some() && since.elapsed() < FULL_FOR {
                    return;
                }
            }
            Then::Stay => {}
        }
        if self.database.is_none() || failure.error.is_transient() {
            self.health.failed(failure.error.to_string());
        }
    }

    // Events

    /// Tells other clients where this one receives datagrams. If the file is not open yet, that happens when it is.
    fn listen(&mut self, client: Uuid) {
        self.client = Some(client);
        if let Err(failure) = self.announce() {
            self.note(&failure);
        }
    }

    fn announce(&self) -> Result<(), Failure> {
        let (Some(database), Some(client)) = (&self.database, self.client) else { return Ok(()) };
        // Without an address, it polls.
        let Some(port) = self.inbox.port() else { return Ok(()) };
        database.within_transaction(|| database.set_port(client, port, self.settings.now()))
    }

    fn send(&mut self, event: Event) {
        let Some(client) = event.lease().map(|lease| lease.client()) else { return };
        if let Some(inbox) = here(client) {
            inbox.send(event);
        } else if let (Some(port), Some(socket)) = (self.port_of(client), &self.socket)
            && let Err(error) = socket.send_to(event.to_string().as_bytes(), (Ipv4Addr::LOCALHOST, port))
        {
            tracing::debug!(%error, "an event was not sent; its client polls");
        }
    }

    /// Where a client receives datagrams. The port stays the same for as long as the client exists.
    fn port_of(&mut self, client: Uuid) -> Option<u16> {
        if let Some(port) = self.addresses.get(&client) {
            return Some(*port);
        }
        let port = match self.database.as_ref()?.port(client) {
            Ok(port) => port?,
            Err(failure) => {
                self.note(&failure);
                return None;
            }
        };
        if self.addresses.len() >= ADDRESSES {
            self.addresses.clear();
        }
        self.addresses.insert(client, port);
        Some(port)
    }

    /// Checks whether waiting leases of this client have been granted: datagrams may be lost.
    fn look_if_due(&mut self) {
        if self.next_look > Instant::now() {
            return;
        }
        self.next_look = Instant::now() + self.settings.poll_interval;
        if self.inbox.is_waiting()
            && let Err(failure) = self.look()
        {
            self.note(&failure);
        }
    }

    fn look(&mut self) -> Result<(), Failure> {
        self.open()?;
        let Some(database) = &self.database else { return Ok(()) };
        let version = Some(database.version()?);
        if self.seen == version {
            return Ok(());
        }
        for key in self.inbox.keys() {
            // If there is no record, or none that can be read, there are no waiters.
            let record = database.record(&key)?;
            let ledger = record.and_then(|record| record.parse::<Ledger>().ok()).unwrap_or_default();
            self.inbox.compare(&key, &ledger);
        }
        self.seen = version;
        Ok(())
    }

    // What is done now and then

    fn sweep_if_due(&mut self) {
        if self.next_sweep > Instant::now() {
            return;
        }
        match self.sweep() {
            Ok(next) => self.swept = next,
            Err(failure) => {
                self.swept = None;
                self.note(&failure);
            }
        }
        self.next_sweep = Instant::now() + if self.swept.is_some() { PAUSE } else { INTERVAL };
    }

    /// Starts looking for unused rows, or continues. Returns where to continue.
    fn sweep(&self) -> Result<Option<String>, Failure> {
        let Some(database) = &self.database else { return Ok(None) };
        if let Some(after) = &self.swept {
            return sweep::go_on(database, &self.settings, after);
        }
        // Others consider this client dead if it has not said for a day that it is alive.
        self.announce()?;
        if sweep::begin(database, &self.settings)? { Ok(Some(String::new())) } else { Ok(None) }
    }

    /// Nothing should be sent to this client any longer.
    fn leave(&self) {
        if let (Some(database), Some(client)) = (&self.database, self.client)
            && matches!(database.is_intact(), Ok(true))
            && let Err(Failure { error, .. }) = database.delete_port(client)
        {
            tracing::debug!(%error, "the address of this client stays in the file for a day");
        }
    }
}
