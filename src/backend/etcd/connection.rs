//! A connection to a member: calls, each with a time limit, and streams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::Stream;
use futures::channel::mpsc::UnboundedReceiver;
use futures::future::try_join_all;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::connect::{Ends, connect};
use super::failure;
use super::keep_alive::KeepAlive;
use super::proto::{
    AuthenticateRequest, AuthenticateResponse, Ignored, LeaseGrantRequest, LeaseGrantResponse, LeaseRequest,
    LeaseTimeToLiveResponse, RangeRequest, RangeResponse, StatusResponse, TxnRequest, TxnResponse,
    WatchRequest, WatchResponse,
};
use super::settings::{Login, Settings};
use crate::backend::records::Failure;
use crate::runtime::spawn;

/// Long queues are read in one piece.
const MAX_RESPONSE: usize = 256 * 1024 * 1024;

/// A connection to one member.
pub(super) struct Connection {
    grpc: Grpc<Channel>,
    login: Option<Login>,
    /// What the latest login has returned.
    token: Mutex<Option<MetadataValue<Ascii>>>,
    /// Held during a login.
    logging_in: tokio::sync::Mutex<()>,
    reply_timeout: Duration,
    has_served: AtomicBool,
    broken: CancellationToken,
    keep_alive: KeepAlive,
    /// Closes it when nobody uses it any more.
    _open: DropGuard,
}

impl Connection {
    /// Connects to an address of the member at `endpoint`, logs in if there is a user, and waits until it has answered
    /// something that all members have to agree to: one that hangs, or is cut off from the others, is of no use.
    pub(super) async fn open(
        settings: &Settings,
        endpoint: &str,
        address: SocketAddr,
        probe: RangeRequest,
    ) -> Result<Self, Failure> {
        let ends = Ends::default();
        let open = ends.closing.clone().drop_guard();
        let connection = Self {
            grpc: Grpc::new(connect(settings, endpoint, address, ends.clone()).await?)
                .max_decoding_message_size(MAX_RESPONSE),
            login: settings.login.clone(),
            token: Mutex::default(),
            logging_in: tokio::sync::Mutex::default(),
            reply_timeout: settings.reply_timeout,
            has_served: AtomicBool::new(false),
            broken: ends.broken,
            keep_alive: KeepAlive::default(),
            _open: open,
        };
        if connection.login.is_some() {
            connection.log_in(None).await.map_err(|status| failure::of_reading(&status))?;
        }
        match connection.range(probe).await {
            Err(failure) if failure.is_broken => Err(failure),
            // Whoever asks for something is told what is refused.
            Ok(_) | Err(_) => Ok(connection),
        }
    }

    /// Logs in, unless that has been done since the token `old` was used.
    async fn log_in(&self, old: Option<&MetadataValue<Ascii>>) -> Result<(), Status> {
        let Some(login) = &self.login else { return Ok(()) };
        let _one_at_a_time = self.logging_in.lock().await;
        if self.token.lock().as_ref() != old {
            return Ok(());
        }
        let request = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
        let answer: AuthenticateResponse =
            self.call_once("/etcdserverpb.Auth/Authenticate", request, None).await?;
        let not_text = |_| Status::failed_precondition("the authentication token is not text");
        *self.token.lock() = Some(answer.token.parse().map_err(not_text)?);
        Ok(())
    }

    /// Logs in again on the same connection.
    pub(super) async fn renew_login(&self) -> Result<(), Failure> {
        let old = self.token();
        self.log_in(old.as_ref()).await.map_err(|status| failure::of_reading(&status))
    }

    pub(super) const fn has_login(&self) -> bool {
        self.login.is_some()
    }

    fn token(&self) -> Option<MetadataValue<Ascii>> {
        self.token.lock().clone()
    }

    /// It is not used any more. What is under way on it still ends.
    pub(super) fn give_up(&self) {
        self.broken.cancel();
    }

    /// Changes have been carried out on it.
    pub(super) fn served(&self) {
        self.has_served.store(true, Ordering::Relaxed);
    }

    /// Whether changes have been carried out on it. If it fails nevertheless, a new one may do.
    pub(super) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_cancelled()
    }

    /// Returns when it is not used any more.
    pub(super) async fn broken(&self) {
        self.broken.cancelled().await;
    }

    // Calls that change nothing

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        self.read("/etcdserverpb.KV/Range", request).await
    }

    /// A transaction that only reads.
    pub(super) async fn look(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        self.read("/etcdserverpb.KV/Txn", request).await
    }

    pub(super) async fn time_to_live(&self, lease: i64) -> Result<LeaseTimeToLiveResponse, Failure> {
        self.read("/etcdserverpb.Lease/LeaseTimeToLive", LeaseRequest { id: lease }).await
    }

    pub(super) async fn status(&self) -> Result<StatusResponse, Failure> {
        self.read("/etcdserverpb.Maintenance/Status", Ignored {}).await
    }

    /// A lease that nobody hears of ends by itself.
    pub(super) async fn grant(&self, ttl: u32) -> Result<LeaseGrantResponse, Failure> {
        let request = LeaseGrantRequest { ttl: i64::from(ttl) };
        let granted: LeaseGrantResponse = self.read("/etcdserverpb.Lease/LeaseGrant", request).await?;
        if granted.error.is_empty() {
            Ok(granted)
        } else {
            Err(Failure { is_broken: false, ..Failure::refused(granted.error) })
        }
    }

    /// Keeps leases alive. Returns for each of them whether there is such a lease.
    pub(super) async fn keep_all_alive(self: &Arc<Self>, leases: &[i64]) -> Result<Vec<bool>, Failure> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let open = |requests| drop(spawn(Arc::clone(self).carry_keep_alive(requests)));
        let answers = try_join_all(self.keep_alive.ask(leases, open));
        let answers = async { answers.await.map_err(|_| Failure::unavailable("the connection was lost")) };
        self.within(answers).await.map_err(|failure| Failure { is_certain: true, ..failure })
    }

    // Calls that change something

    pub(super) async fn change(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        self.call("/etcdserverpb.KV/Txn", request).await.map_err(|status| failure::of(&status))
    }

    pub(super) async fn revoke(&self, lease: i64) -> Result<(), Failure> {
        let revoked: Result<Ignored, _> =
            self.call("/etcdserverpb.Lease/LeaseRevoke", LeaseRequest { id: lease }).await;
        match revoked {
            Ok(_) => Ok(()),
            Err(status) if status.message().contains(failure::NO_LEASE) => Ok(()),
            Err(status) => Err(failure::of(&status)),
        }
    }

    // Streams

    /// Carries the stream of renewals until it ends, or the connection is not used any more.
    async fn carry_keep_alive(self: Arc<Self>, requests: UnboundedReceiver<LeaseRequest>) {
        let answers = async {
            let mut answers = self.stream("/etcdserverpb.Lease/LeaseKeepAlive", requests).await?;
            while let Some(answer) = self.next(&mut answers).await? {
                self.keep_alive.answer(answer)?;
            }
            Ok::<_, Failure>(())
        };
        tokio::select! {
            ended = answers => {
                if let Err(failure) = ended {
                    tracing::debug!(%failure, "the stream of renewals has ended");
                }
                self.give_up();
            }
            () = self.broken() => {}
        }
        self.keep_alive.end();
    }

    pub(super) async fn watch_stream(
        &self,
        requests: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchResponse>, Failure> {
        self.stream("/etcdserverpb.Watch/Watch", requests).await
    }

    async fn read<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.call(path, request).await.map_err(|status| failure::of_reading(&status))
    }

    /// A call. If the token has expired, logs in and calls again: nothing was done.
    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        if self.login.is_none() {
            return self.call_once(path, request, None).await;
        }
        let token = self.token();
        match self.call_once(path, request.clone(), token.as_ref()).await {
            Err(status) if failure::is_logged_out(&status) && !self.is_broken() => {
                self.log_in(token.as_ref()).await?;
                self.call_once(path, request, self.token().as_ref()).await
            }
            called => called,
        }
    }

    async fn call_once<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        token: Option<&MetadataValue<Ascii>>,
    ) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        // Whoever has used it until now learns the same, without waiting as long once more.
        if self.is_broken() {
            return Err(Status::unavailable("the connection was given up"));
        }
        let mut grpc = self.grpc.clone();
        let called = async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let path = PathAndQuery::from_static(path);
            let answer = grpc.unary(with_metadata(request, token), path, ProstCodec::default()).await?;
            Ok(answer.into_inner())
        };
        let limit = self.reply_timeout;
        let silence = |_| {
            self.give_up();
            Err(Status::deadline_exceeded(format!("no answer within {limit:?}")))
        };
        timeout(limit, called).await.unwrap_or_else(silence)
    }

    /// What arrives on a new stream. Returns with the first message.
    async fn stream<Q, A>(
        &self,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| Failure::unavailable(failure::connecting(&error)))?;
        let path = PathAndQuery::from_static(path);
        let opened =
            grpc.streaming(with_metadata(requests, self.token().as_ref()), path, ProstCodec::default()).await;
        opened.map(tonic::Response::into_inner).map_err(|status| failure::of_reading(&status))
    }

    /// The next message on a stream; `None` at its end.
    pub(super) async fn next<A>(&self, stream: &mut Streaming<A>) -> Result<Option<A>, Failure> {
        stream.message().await.map_err(|status| failure::of_reading(&status))
    }

    pub(super) async fn within<T>(
        &self,
        exchange: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let limit = self.reply_timeout;
        timeout(limit, exchange).await.unwrap_or_else(|_| Err(Failure::timed_out(limit)))
    }
}

fn with_metadata<T>(message: T, token: Option<&MetadataValue<Ascii>>) -> Request<T> {
    let mut request = Request::new(message);
    // A member that has lost the others says so, instead of waiting for them.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}
