//! Sentinels: which server is currently the primary.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::connection::ConnectionSettings;
use super::link::{CallError, Link, command};
use super::route::{Route, primary_of};
use super::target::Server;
use crate::runtime::spawn;

/// The sentinels that know which server is the primary.
///
/// After a failover some of them know it later than others, and the old primary may still believe that it is one. So
/// the answer with the greatest epoch counts, which increases with every failover, and the client listens to each
/// sentinel: a connection to an old primary is given up as soon as one of them announces another.
///
/// A deployment that is set up again under the same name begins with the epoch 0, and a primary that is removed and
/// monitored again keeps its epoch. So if the known primary cannot be used or does not answer, and none of the
/// sentinels names it any more, what they say now counts.
#[derive(Debug)]
pub(super) struct Sentinels {
    sentinels: Vec<Server>,
    service: String,
    connections: ConnectionSettings,
    /// The newest answer.
    known: watch::Sender<Option<Primary>>,
    /// The server that could not be used when it was the primary, last.
    unusable: Mutex<Option<Server>>,
    /// What was known before sentinels that were set up again named another: their old answers no longer count.
    outdated: Mutex<Option<Primary>>,
}

/// A primary, and the epoch of the failover that made it one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Primary {
    epoch: u64,
    server: Server,
}

/// How much later than the first sentinel's answer another answer may arrive and still count.
const LATER: Duration = Duration::from_millis(20);
/// The pause before reconnecting to a sentinel.
const PAUSE: Duration = Duration::from_millis(500);

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Server>, service: String, connections: ConnectionSettings) -> Self {
        Self {
            sentinels,
            service,
            connections,
            known: watch::Sender::default(),
            unusable: Mutex::default(),
            outdated: Mutex::default(),
        }
    }

    /// Asks all sentinels at once, of which some may hang.
    async fn primary(self: &Arc<Self>) -> Result<Server, CallError> {
        let (sender, mut answers) = mpsc::unbounded_channel();
        for sentinel in self.sentinels.clone() {
            let (sentinels, sender) = (Arc::clone(self), sender.clone());
            // A task, because connecting must not be given up halfway.
            spawn(async move {
                let answer = sentinels.ask(&sentinel).await;
                // The receiver is gone if others were faster.
                let _ = sender.send(answer.map_err(|error| format!("{sentinel}: {error}")));
            });
        }
        drop(sender);
        let begun = Instant::now();
        let (mut reasons, mut answered, mut until) = (Vec::new(), Vec::new(), None);
        loop {
            let answer = match until {
                None => answers.recv().await,
                Some(until) => timeout_at(until, answers.recv()).await.unwrap_or_default(),
            };
            match answer {
                Some(Ok(primary)) => {
                    self.adopt(primary.clone());
                    answered.push(primary);
                    let later = if self.is_contradicted(&answered) {
                        self.connections.timeouts.connect / 4
                    } else {
                        LATER
                    };
                    until = Some(until.unwrap_or_else(Instant::now).max(begun + later));
                }
                Some(Err(reason)) => reasons.push(reason),
                None => break,
            }
        }
        self.begin_anew(&answered);
        let known =
            self.known.borrow().as_ref().filter(|_| until.is_some()).map(|known| known.server.clone());
        known.ok_or_else(|| {
            let (service, reasons) = (&self.service, reasons.join("; "));
            CallError::NotSent(format!("no sentinel knows the primary of `{service}`: {reasons}"))
        })
    }

    /// Whether the known primary could not be used, and no sentinel has named it.
    fn is_contradicted(&self, answered: &[Primary]) -> bool {
        let known = self.known.borrow();
        known.as_ref().is_some_and(|known| {
            self.unusable.lock().as_ref() == Some(&known.server)
                && answered.iter().all(|primary| primary.server != known.server)
        })
    }

    /// If so, what the sentinels say now is known.
    fn begin_anew(&self, answered: &[Primary]) {
        let Some(newest) = answered.iter().max_by_key(|primary| primary.epoch) else { return };
        if self.is_contradicted(answered) {
            tracing::debug!(server = %newest.server, "the sentinels name another primary than the one that cannot be reached");
            *self.outdated.lock() = self.known.send_replace(Some(newest.clone()));
        }
    }

    fn adopt(&self, primary: Primary) {
        if self.outdated.lock().as_ref() == Some(&primary) {
            return;
        }
        self.known.send_if_modified(|known| {
            let is_newer = known.as_ref().is_none_or(|known| known.epoch < primary.epoch);
            if is_newer {
                *known = Some(primary);
            }
            is_newer
        });
    }

    async fn ask(&self, sentinel: &Server) -> Result<Primary, CallError> {
        let link = self.connections.open(sentinel).await?;
        let answer = timeout(self.connections.timeouts.reply, self.ask_on(&*link)).await;
        link.abort();
        answer.unwrap_or_else(|late| Err(CallError::Timeout(late.to_string())))
    }

    /// The epoch first: the address is then that of this epoch, or of a later one, which will be announced. (The
    /// description of a primary contains an address as well, but it is the old one while a failover is being finished.)
    async fn ask_on(&self, link: &dyn Link) -> Result<Primary, CallError> {
        let description = command(link, &["SENTINEL", "MASTER", &self.service]).await?;
        let mut fields = description.as_list().chunks_exact(2);
        let epoch = fields.find(|field| field[0].as_str() == Some("config-epoch"));
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.service];
        let address = command(link, &question).await?;
        let primary = || {
            let [host, port] = address.as_list() else { return None };
            let port = u16::try_from(port.as_u64()?).ok()?;
            let server = Server::Tcp { host: host.as_str()?.to_owned(), port };
            Some(Primary { epoch: epoch?[1].as_u64()?, server })
        };
        primary()
            .ok_or_else(|| CallError::NotSent("the sentinel did not return the primary's address".to_owned()))
    }

    /// Completes when another server than this one is the primary.
    async fn until_replaced(&self, server: &Server) {
        let mut known = self.known.subscribe();
        // The sender is in `self`, so waiting cannot fail.
        let _ = known.wait_for(|known| known.as_ref().is_some_and(|known| known.server != *server)).await;
    }

    /// Listens to all sentinels until `closed`.
    pub(super) async fn listen(self: Arc<Self>, closed: CancellationToken) {
        let all = self.sentinels.iter().map(|sentinel| self.listen_to(sentinel, &closed).boxed());
        join_all(all).await;
    }

    async fn listen_to(&self, sentinel: &Server, closed: &CancellationToken) {
        while !closed.is_cancelled() {
            match self.connections.open(sentinel).await {
                Ok(link) => {
                    tokio::select! {
                        () = closed.cancelled() => {}
                        ended = self.follow(&*link) => if let Err(error) = ended {
                            tracing::debug!(%sentinel, %error, "could not subscribe to the sentinel");
                        },
                    }
                    link.abort();
                }
                Err(error) => tracing::debug!(%sentinel, %error, "the sentinel is not listened to"),
            }
            tokio::select! {
                () = closed.cancelled() => {}
                () = sleep(PAUSE) => {}
            }
        }
    }

    /// Asks a sentinel at first and whenever it announces a failover, until the link ends.
    async fn follow(&self, link: &dyn Link) -> Result<(), CallError> {
        let mut messages = link.messages();
        link.subscribe("+switch-master").await?;
        loop {
            self.adopt(self.ask_on(link).await?);
            if messages.next().await.is_none() {
                return Ok(());
            }
        }
    }
}

/// To the server that is currently the primary.
#[derive(Debug)]
pub(super) struct ToPrimary(pub(super) Arc<Sentinels>);

impl Route for ToPrimary {
    fn server(&self) -> BoxFuture<'_, Result<Server, CallError>> {
        self.0.primary().boxed()
    }

    fn check<'a>(&'a self, link: &'a dyn Link) -> BoxFuture<'a, Result<(), CallError>> {
        async {
            match primary_of(link).await? {
                None => Ok(()),
                Some(_) => Err(CallError::NotSent(
                    "the sentinels name a server that has become a replica".to_owned(),
                )),
            }
        }
        .boxed()
    }

    fn failed(&self, server: &Server) {
        *self.0.unusable.lock() = Some(server.clone());
    }

    fn until_replaced<'a>(&'a self, server: &'a Server) -> BoxFuture<'a, ()> {
        self.0.until_replaced(server).boxed()
    }
}

impl fmt::Display for ToPrimary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the primary of `{}`", self.0.service)
    }
}
