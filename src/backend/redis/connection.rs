//! One connection to the server: reconnected whenever it is lost, until it is closed.
//!
//! A connection that was lost may still carry requests, in a buffer of the network or of a server that was stopped for
//! a while. If one were executed after the release of its lease, it would take a lock that nobody uses. So before a new
//! link is used, the server is asked to close the previous one; requests on it are then no longer executed.
//!
//! The client libraries do not notice a link that swallows everything while commands are still being written. If
//! nothing is answered for a reply timeout, another link is opened beside the current one, and takes its place if the
//! server answers on it and still not on the other. If it does not answer there either for two timeouts, the link is
//! given up.
//!
//! A link that ends is replaced at once and in silence: servers close idle connections, and nothing is wrong with the
//! store. Only if that fails, or takes long, is it reported as disconnected.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{Either, select, try_join};
use parking_lot::Mutex;
use scopeguard::guard;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::check::too_old;
use super::link::Value;
use super::link::{CallError, Connector, Link, command};
use super::refusal::of_connection_is_for_now;
use super::route::Route;
use super::status::{ConnectionStatus, Statuses};
use super::target::Login;
use super::target::Server;
use crate::backend::{BackendError, Cause, Status};
use crate::runtime::spawn_on;

/// The first and the longest pause before retrying to connect: a lease of 3 s must survive an outage of 2 s.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// After how many reply timeouts without any answer the link is replaced.
const SILENT_TIMEOUTS: u32 = 2;
/// How many characters of a label the names of connections have.
const MAX_SHOWN: usize = 64;
/// How long a link must have lasted to be replaced without a pause when it has ended.
const LASTING: Duration = LONGEST_PAUSE;

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub(super) connect: Duration,
    pub(super) reply: Duration,
}

/// The common data of all connections of a client.
#[derive(Clone, Debug)]
pub(super) struct ConnectionSettings {
    pub(super) connector: Arc<dyn Connector>,
    pub(super) login: Login,
    pub(super) timeouts: Timeouts,
    pub(super) statuses: Arc<Statuses>,
    /// With what the names of the connections begin.
    pub(super) named: Arc<str>,
    /// How many messages may wait until they are read: see [`Connector::open`].
    pub(super) messages: usize,
}

impl ConnectionSettings {
    /// Opens a single link.
    pub(super) async fn open(&self, server: &Server) -> Result<Arc<dyn Link>, CallError> {
        self.connector.open(server, &self.login, self.messages).await.map_err(in_plain_words)
    }
}

/// Adds advice to errors that a server gives to new connections.
fn in_plain_words(error: CallError) -> CallError {
    let CallError::Answer(text) = &error else { return error };
    let advice = if text.starts_with("NOAUTH") {
        "the server requires a password, and none was given"
    } else if text.starts_with("WRONGPASS") || text.contains("invalid password") {
        "the server does not accept this user name and password"
    } else if text.contains("unknown command") && text.contains("HELLO") {
        return CallError::Answer(too_old("it does not know HELLO"));
    } else {
        return error;
    };
    CallError::Answer(format!("{advice}: {text}"))
}

/// A connection to the server, over one link after another.
#[derive(Debug)]
pub(super) struct Connection {
    settings: ConnectionSettings,
    route: Arc<dyn Route>,
    status: ConnectionStatus,
    /// Its name at the server, unlike that of any other: a restarted server assigns the same ids again.
    name: String,
    /// The current link, while there is one. Changed while `state` is locked, so `state` is not locked while it is
    /// borrowed.
    link: watch::Sender<Option<Arc<dyn Link>>>,
    /// The number of the task that keeps it connected, which is odd; an even number while there is none. Changed while
    /// `state` is locked.
    task: AtomicU64,
    /// Notified when a call was not answered in time: perhaps the current link swallows everything.
    late: Notify,
    /// Whether the last attempt to open a link has failed for a reason that may not be over within seconds.
    has_failed: AtomicBool,
    state: Mutex<State>,
}

/// What is known about a connection.
#[derive(Debug, Default)]
struct State {
    /// Why it is currently not connected.
    failure: Option<CallError>,
    /// Whether that has been reported. A link that has just ended may be replaced in a moment.
    is_reported: bool,
    /// When the current link was opened: earlier calls say nothing about it. `None` while there is none, or it is
    /// being replaced.
    opened: Option<Instant>,
    /// Since when nothing has been answered on the current link.
    silent_since: Option<Instant>,
    is_silence_reported: bool,
    /// The ids of earlier links that may still be open at the server, also those of a runtime that has ended.
    earlier: Vec<i64>,
}

impl State {
    /// Nothing has been sent on the link that was opened then.
    fn set_opened(&mut self, opened: Option<Instant>) {
        (self.opened, self.silent_since, self.is_silence_reported) = (opened, None, false);
    }
}

impl Connection {
    /// One that is not connected yet.
    pub(super) fn new(settings: &ConnectionSettings, route: Arc<dyn Route>) -> Arc<Self> {
        Arc::new(Self {
            settings: settings.clone(),
            route,
            status: settings.statuses.connection(),
            name: format!("{}-{}", settings.named, Uuid::new_v4().simple()),
            link: watch::Sender::default(),
            task: AtomicU64::new(0),
            late: Notify::new(),
            has_failed: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    pub(super) const fn timeouts(&self) -> Timeouts {
        self.settings.timeouts
    }

    /// Starts the task that connects from `runtime` and keeps it connected until `closed`, instead of an earlier one.
    /// Does not wait for that.
    pub(super) fn start(self: &Arc<Self>, runtime: &Handle, closed: CancellationToken) -> JoinHandle<()> {
        let number = self.task.load(Ordering::Acquire);
        if !number.is_multiple_of(2) {
            self.give_up(number);
        }
        let number = {
            let _state = self.state.lock();
            // Odd, even if another one was started at this moment.
            let number = (self.task.load(Ordering::Acquire) + 1) | 1;
            self.task.store(number, Ordering::Release);
            number
        };
        // Dropped with the task, perhaps because its runtime ends.
        let driven = guard(Arc::clone(self), move |connection| connection.give_up(number));
        spawn_on(runtime, async move { driven.stay_connected(number, closed).await })
    }

    /// Waits until it is connected, or the last attempt has failed for a reason that may not be over within seconds.
    pub(super) async fn connected(&self) -> Result<(), BackendError> {
        let mut links = self.links();
        let decided = links.wait_for(|link| link.is_some() || self.has_failed.load(Ordering::Acquire));
        let decided = timeout(self.timeouts().connect, decided).await.map(drop);
        if self.is_connected() {
            return Ok(());
        }
        let failure = self.state.lock().failure.clone();
        let late = || decided.err().map_or_else(|| "not connected".into(), Cause::from);
        match failure {
            Some(error) if error.is_refusal_for_now() => {
                Err(BackendError::RefusedForNow { source: error.into() })
            }
            Some(error @ CallError::Answer(_)) => Err(BackendError::Refused { source: error.into() }),
            Some(error @ CallError::Timeout(_)) => Err(BackendError::Unanswered { source: error.into() }),
            Some(error) => Err(BackendError::NotSent { source: error.into() }),
            None => Err(BackendError::Unanswered { source: late() }),
        }
    }

    fn is_in_charge(&self, number: u64) -> bool {
        self.task.load(Ordering::Acquire) == number
    }

    /// The task with this number is over, or must no longer be relied on.
    fn give_up(&self, number: u64) {
        let mut state = self.state.lock();
        if !self.is_in_charge(number) {
            return;
        }
        state.set_opened(None);
        // First, for those that are notified that there is no link.
        self.task.store(number + 1, Ordering::Release);
        let lost = self.link.send_replace(None);
        self.status.remove();
        drop(state);
        if let Some(link) = lost {
            link.abort();
        }
    }

    /// Whether no task keeps it connected: none has been started, its runtime has ended, or it was given up.
    pub(super) fn has_ended(&self) -> bool {
        self.task.load(Ordering::Acquire).is_multiple_of(2)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.link.borrow().is_some()
    }

    /// Completes when it is not connected.
    pub(super) async fn until_lost(&self) {
        // The sender is in `self`, so waiting cannot fail.
        let _ = self.links().wait_for(Option::is_none).await;
    }

    /// The current link and future ones.
    pub(super) fn links(&self) -> watch::Receiver<Option<Arc<dyn Link>>> {
        self.link.subscribe()
    }

    /// The current link, if there is one.
    pub(super) fn current_link(&self) -> Option<Arc<dyn Link>> {
        self.link.borrow().clone()
    }

    /// The current link. Waits for one for as long as an answer may take, unless nothing keeps it connected.
    pub(super) async fn link(&self) -> Result<Arc<dyn Link>, CallError> {
        if let Some(link) = self.current_link() {
            return Ok(link);
        }
        let mut links = self.links();
        let decided = links.wait_for(|link| link.is_some() || self.has_ended());
        let link = match timeout(self.timeouts().reply, decided).await {
            Ok(decided) => decided.ok().and_then(|link| link.clone()),
            Err(_) => {
                self.report_lost();
                None
            }
        };
        link.ok_or_else(|| self.not_connected())
    }

    /// Where it leads to.
    pub(super) fn address(&self) -> String {
        self.route.to_string()
    }

    /// What the server has said if it is not connected because of that.
    pub(super) fn refusal(&self) -> Option<String> {
        if self.is_connected() {
            return None;
        }
        match &self.state.lock().failure {
            Some(CallError::Answer(text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// The same, if it may be over within seconds.
    pub(super) fn refusal_for_now(&self) -> Option<String> {
        self.refusal().filter(|text| of_connection_is_for_now(text))
    }

    /// Whether it is not connected, and not only because its link has just ended and is being replaced.
    pub(super) fn is_unreachable(&self) -> bool {
        !self.is_connected() && (self.has_ended() || self.state.lock().is_reported)
    }

    pub(super) fn not_connected(&self) -> CallError {
        let state = self.state.lock();
        let why = state.failure.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        CallError::NotSent(format!("not connected{why}"))
    }

    /// Sends a command once.
    pub(super) async fn command(&self, words: &[&str]) -> Result<Value, CallError> {
        let link = self.link().await?;
        let sent = Instant::now();
        let answer = command(&*link, words).await;
        self.record_answer(&answer, sent);
        answer
    }

    /// Records since when nothing has been answered; if that is too long ago, or the server is no longer a primary or
    /// demands a login, the link is replaced. The number of timeouts does not matter: the calls may have been sent
    /// together, or have had short timeouts.
    pub(super) fn record_answer(&self, answer: &Result<Value, CallError>, sent: Instant) {
        if matches!(answer, Err(CallError::NotSent(_) | CallError::Lost(_))) {
            return;
        }
        let is_late = matches!(answer, Err(CallError::Timeout(_)));
        let mut state = self.state.lock();
        if !is_late {
            state.silent_since = None;
            if mem::take(&mut state.is_silence_reported) {
                self.status.change(Status::Connected);
            }
            if matches!(answer, Err(error) if error.answers("READONLY") || error.answers("NOAUTH")) {
                drop(state);
                self.replace_link();
            }
        } else if state.opened.is_some_and(|opened| opened <= sent) {
            let since = *state.silent_since.get_or_insert(sent);
            self.late.notify_one();
            if since.elapsed() >= self.timeouts().reply && !mem::replace(&mut state.is_silence_reported, true)
            {
                self.status.change(Status::Silent { since: since.into_std() });
            }
            if since.elapsed() >= self.timeouts().reply * SILENT_TIMEOUTS {
                state.set_opened(None);
                drop(state);
                tracing::debug!(silent = ?since.elapsed(), "the server does not answer, reconnecting");
                self.replace_link();
            }
        }
    }

    fn replace_link(&self) {
        if let Some(link) = &*self.link.borrow() {
            link.abort();
        }
    }

    async fn stay_connected(&self, number: u64, closed: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        while !closed.is_cancelled() && self.is_in_charge(number) {
            let begun = Instant::now();
            let Some(opened) = closed.run_until_cancelled(self.open_soon()).await else { return };
            match opened {
                Ok((link, server)) => {
                    let opened = Instant::now();
                    if !self.opened(number, &link, &server) {
                        return link.abort();
                    }
                    let (link, server) = self.until_ended(number, link, server, &closed).await;
                    if closed.is_cancelled() {
                        self.remove_link(number);
                        return link.close().await;
                    }
                    tracing::debug!("the connection was lost, connecting again");
                    let why = CallError::Lost("the connection was lost".to_owned());
                    if opened.elapsed() > LASTING {
                        self.lost(number, why);
                        pause = FIRST_PAUSE;
                        continue;
                    }
                    self.failed(number, &server.to_string(), why);
                }
                Err(error) => {
                    tracing::debug!(%error, "not connected");
                    self.failed(number, &self.route.to_string(), error);
                }
            }
            pause =
                if begun.elapsed() > LONGEST_PAUSE { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            tokio::select! {
                () = closed.cancelled() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Completes when the link, or the one that has taken its place, has ended, or when `closed`.
    async fn until_ended(
        &self,
        number: u64,
        mut link: Arc<dyn Link>,
        mut server: Server,
        closed: &CancellationToken,
    ) -> (Arc<dyn Link>, Server) {
        loop {
            let next = tokio::select! {
                biased;
                () = closed.cancelled() => break,
                () = link.ended().cancelled() => break,
                () = self.route.until_replaced(&server) => {
                    link.abort();
                    break;
                }
                next = self.until_superseded(&server) => next,
            };
            // Whoever waits for an answer on the old one is told when there is a new one.
            let old = mem::replace(&mut link, next.0);
            server = next.1;
            let is_open = self.opened(number, &link, &server);
            old.abort();
            if !is_open {
                link.abort();
                break;
            }
            tracing::debug!("the connection did not answer, and another one did");
        }
        (link, server)
    }

    /// Completes with another link when the server answers on it, or another one that is the right one by now, and
    /// `server` not on the current link.
    async fn until_superseded(&self, server: &Server) -> (Arc<dyn Link>, Server) {
        loop {
            self.late.notified().await;
            // A server that stands still for a moment is not asked for another connection.
            while let Some(left) = self.silence_left() {
                sleep(left).await;
            }
            if !self.is_silent() {
                continue;
            }
            self.route.failed(server);
            match self.reach().await {
                Ok((link, server)) => {
                    if !self.is_silent() {
                        link.abort();
                    } else if self.prepare(&*link).await.is_ok() {
                        return (link, server);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "the server does not answer on another connection either")
                }
            }
        }
    }

    /// How much longer the server must be silent on the current link until another one is opened; `None` if it is not
    /// silent, or was silent for long enough.
    fn silence_left(&self) -> Option<Duration> {
        let since = self.state.lock().silent_since?;
        self.timeouts().reply.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    fn is_silent(&self) -> bool {
        self.state.lock().silent_since.is_some()
    }

    /// It is connected over this link. `false` if the task is no longer in charge.
    fn opened(&self, number: u64, link: &Arc<dyn Link>, server: &Server) -> bool {
        let mut state = self.state.lock();
        if !self.is_in_charge(number) {
            return false;
        }
        state.set_opened(Some(Instant::now()));
        (state.failure, state.is_reported) = (None, false);
        self.has_failed.store(false, Ordering::Release);
        self.link.send_replace(Some(Arc::clone(link)));
        self.status.connected(server);
        true
    }

    /// Nothing more is sent on the link of this task.
    fn remove_link(&self, number: u64) {
        let mut state = self.state.lock();
        if self.is_in_charge(number) {
            state.set_opened(None);
            self.link.send_replace(None);
        }
    }

    /// Its link has ended, and may be replaced in a moment.
    fn lost(&self, number: u64, reason: CallError) {
        let mut state = self.state.lock();
        if self.is_in_charge(number) {
            state.set_opened(None);
            (state.failure, state.is_reported) = (Some(reason), false);
            self.link.send_if_modified(|link| link.take().is_some());
        }
    }

    /// Reports that the link which was lost has not been replaced yet.
    fn report_lost(&self) {
        let mut state = self.state.lock();
        if let Some(reason) = state.failure.as_ref().filter(|_| !state.is_reported && !self.is_connected()) {
            self.status.disconnected(&self.route.to_string(), reason.to_string());
            state.is_reported = true;
        }
    }

    /// It is not connected, for this reason, unless the task is no longer in charge.
    fn failed(&self, number: u64, server: &str, reason: CallError) {
        let mut state = self.state.lock();
        if !self.is_in_charge(number) {
            return;
        }
        self.status.disconnected(server, reason.to_string());
        // First, for those that are notified that there is no link.
        state.set_opened(None);
        self.has_failed.store(!reason.is_refusal_for_now(), Ordering::Release);
        (state.failure, state.is_reported) = (Some(reason), true);
        self.link.send_replace(None);
    }

    /// Opens a link. If that takes long after one was lost, this is reported.
    async fn open_soon(&self) -> Result<(Arc<dyn Link>, Server), CallError> {
        let late = sleep(self.timeouts().reply / 2);
        match select(pin!(self.open()), pin!(late)).await {
            Either::Left((opened, _)) => opened,
            Either::Right(((), opening)) => {
                self.report_lost();
                opening.await
            }
        }
    }

    /// Opens a link, and makes the server close earlier ones.
    async fn open(&self) -> Result<(Arc<dyn Link>, Server), CallError> {
        let (link, server) = self.reach().await?;
        self.prepare(&*link).await?;
        Ok((link, server))
    }

    /// Opens a link to the right server, which answers on it.
    async fn reach(&self) -> Result<(Arc<dyn Link>, Server), CallError> {
        let server = self.route.server().await?;
        let checked = async {
            let link = self.settings.open(&server).await?;
            let checked = timeout(self.timeouts().connect, self.route.check(&*link)).await;
            if let Err(error) = checked.unwrap_or_else(|late| Err(CallError::Timeout(late.to_string()))) {
                link.abort();
                return Err(error);
            }
            Ok(link)
        };
        let checked = checked.await;
        if checked.is_err() {
            self.route.failed(&server);
        }
        Ok((checked?, server))
    }

    /// Makes the server close the earlier links. If that fails, the link is closed.
    async fn prepare(&self, link: &dyn Link) -> Result<(), CallError> {
        let prepare = async {
            match self.close_earlier(link).await {
                // This user may not do that, or the server does not support it. Releases continue without this
                // safeguard.
                Err(error) if is_refusal(&error) => {
                    tracing::debug!(%error, "could not have the server close lost connections");
                    let earlier = &mut self.state.lock().earlier;
                    // All but the newest.
                    earlier.drain(..earlier.len().saturating_sub(1));
                    Ok(())
                }
                closed => closed,
            }
        };
        let prepared = timeout(self.timeouts().connect, prepare).await;
        let prepared = prepared.unwrap_or_else(|late| Err(CallError::Timeout(late.to_string())));
        if prepared.is_err() {
            link.abort();
        }
        prepared
    }

    async fn close_earlier(&self, link: &dyn Link) -> Result<(), CallError> {
        let (set_name, get_id) = (["CLIENT", "SETNAME", &self.name], ["CLIENT", "ID"]);
        let (_, id) = try_join(command(link, &set_name), command(link, &get_id)).await?;
        let now = id.as_i64();
        let earlier = {
            let mut state = self.state.lock();
            let earlier = state.earlier.clone();
            // If this fails, it is closed with them the next time.
            state.earlier.extend(now);
            earlier
        };
        let earlier = earlier.into_iter().filter(|id| Some(*id) != now).collect();
        self.have_closed(earlier, link).await
    }

    /// Makes the server close the links with these ids.
    async fn have_closed(&self, ids: Vec<i64>, link: &dyn Link) -> Result<(), CallError> {
        for id in &ids {
            let id = &id.to_string();
            let found = command(link, &["CLIENT", "LIST", "ID", id]).await?;
            if let Some(address) = found.as_str().and_then(|line| address_of(line, &self.name)) {
                // The address as well: if the server is restarted at this moment, the id may belong to another client.
                command(link, &["CLIENT", "KILL", "ID", id, "ADDR", &address]).await?;
                tracing::debug!("the previous connection was still open on the server and has been closed");
            }
        }
        self.state.lock().earlier.retain(|id| !ids.contains(id));
        Ok(())
    }
}

/// What the names of the connections of a client with this label begin with. A server accepts only printable ASCII
/// characters other than spaces.
pub(super) fn names_after(label: Option<&str>) -> Arc<str> {
    let Some(label) = label else { return "leasehold".into() };
    let shown = |c: char| if c.is_ascii_graphic() { c } else { '_' };
    let label: String = label.chars().take(MAX_SHOWN).map(shown).collect();
    format!("leasehold-{label}").into()
}

/// The address in a line of `CLIENT LIST`, if the connection has this name.
fn address_of(line: &str, name: &str) -> Option<String> {
    let field = |field: &str| line.split_whitespace().find_map(|part| part.strip_prefix(field));
    field("name=").filter(|found| *found == name)?;
    field("addr=").map(str::to_owned)
}

/// Whether this user may not do that, or the server does not support it. Other errors are temporary.
fn is_refusal(error: &CallError) -> bool {
    matches!(error, CallError::Answer(text)
        if text.starts_with("NOPERM") || text.to_ascii_lowercase().contains("unknown"))
}

#[cfg(test)]
pub(super) mod tests {
    use futures::FutureExt;
    use futures::future::{BoxFuture, pending, ready};
    use futures::stream::{BoxStream, StreamExt, pending as no_messages};
    use tokio::time::advance;

    use super::super::link::{Message, Opened, Reply};
    use super::super::route::ToServer;
    use super::super::script::{Arguments, Script};
    use super::*;

    /// Never opens a link.
    #[derive(Debug)]
    struct Unused;

    impl Connector for Unused {
        fn open<'a>(&'a self, _: &'a Server, _: &'a Login, _: usize) -> Opened<'a> {
            unreachable!()
        }
    }

    /// For connections that are never connected.
    pub(in super::super) fn unused_settings() -> ConnectionSettings {
        let timeout = Duration::from_secs(1);
        ConnectionSettings {
            connector: Arc::new(Unused),
            login: Login::default(),
            timeouts: Timeouts { connect: timeout, reply: timeout },
            statuses: Statuses::new("a store".to_owned()),
            named: names_after(None),
            messages: 1,
        }
    }

    /// Is never answered.
    #[derive(Debug, Default)]
    struct Silent(CancellationToken);

    impl Link for Silent {
        fn evalsha(&self, _: &'static Script, _: Arguments) -> Reply<'_> {
            pending().boxed()
        }

        fn eval(&self, _: &'static Script, _: Arguments) -> Reply<'_> {
            pending().boxed()
        }

        fn eval_asking(&self, _: &'static Script, _: Arguments) -> Reply<'_> {
            pending().boxed()
        }

        fn command(&self, _: Vec<String>) -> Reply<'_> {
            pending().boxed()
        }

        fn subscribe<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), CallError>> {
            pending().boxed()
        }

        fn unsubscribe<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), CallError>> {
            pending().boxed()
        }

        fn messages(&self) -> BoxStream<'static, Message> {
            no_messages().boxed()
        }

        fn ended(&self) -> &CancellationToken {
            &self.0
        }

        fn close(&self) -> BoxFuture<'_, ()> {
            ready(()).boxed()
        }

        fn abort(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_found_no_link_is_no_silence_of_the_server() {
        let settings = unused_settings();
        let server = Server::Tcp { host: "localhost".to_owned(), port: 7000 };
        let connection = Connection::new(&settings, Arc::new(ToServer(server.clone())));
        let link: Arc<dyn Link> = Arc::new(Silent::default());
        let late_call = async || {
            let sent = Instant::now();
            advance(settings.timeouts.reply).await;
            connection.record_answer(&Err(CallError::Timeout("in this test".to_owned())), sent);
            settings.statuses.state().status
        };
        connection.task.store(1, Ordering::Release);
        assert!(connection.opened(1, &link, &server));
        assert!(matches!(late_call().await, Status::Silent { .. }));
        assert!(connection.opened(1, &link, &server));
        connection.failed(1, "localhost:7000", CallError::Lost("in this test".to_owned()));
        let Status::Disconnected { since } = settings.statuses.state().status else {
            panic!("the link is gone")
        };
        assert_eq!(late_call().await, Status::Disconnected { since });
    }

    #[test]
    fn connections_are_named_after_the_label_in_characters_that_a_server_accepts() {
        for (label, name) in [
            (None, "leasehold"),
            (Some("api-7 (pid 4711)"), "leasehold-api-7_(pid_4711)"),
            (Some("ü\n\u{1f600}~"), "leasehold-___~"),
        ] {
            assert_eq!(&*names_after(label), name);
        }
        assert_eq!(names_after(Some(&"é".repeat(256))).len(), "leasehold-".len() + MAX_SHOWN);
    }

    #[test]
    fn a_connection_is_recognized_by_its_name() {
        let line =
            "id=7 addr=127.0.0.1:50412 laddr=127.0.0.1:6379 fd=8 name=leasehold-1 age=12 idle=0 flags=N";
        assert_eq!(address_of(line, "leasehold-1").as_deref(), Some("127.0.0.1:50412"));
        assert_eq!(address_of(line, "leasehold-").or(address_of("", "leasehold-1")), None);
    }
}
