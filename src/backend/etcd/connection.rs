//! A connection to a member: calls, each with a time limit, and streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::Stream;
use futures::channel::mpsc::UnboundedReceiver;
use futures::future::try_join_all;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::connect::connect;
use super::failure;
use super::keep_alive::KeepAlive;
use super::proto::{
    AuthenticateRequest, AuthenticateResponse, Ignored, LeaseGrantRequest, LeaseGrantResponse, LeaseRequest,
    LeaseTimeToLiveResponse, RangeRequest, RangeResponse, StatusResponse, TxnRequest, TxnResponse,
    WatchRequest, WatchResponse,
};
use super::settings::Settings;
use crate::backend::records::Failure;
use crate::runtime::spawn;

/// Long queues are read in one piece.
const MAX_RESPONSE: usize = 256 * 1024 * 1024;

/// A connection to one member.
pub(super) struct Connection {
    grpc: Grpc<Channel>,
    /// What a login has returned.
    token: Option<MetadataValue<Ascii>>,
    reply_timeout: Duration,
    has_failed: AtomicBool,
    broken: CancellationToken,
    keep_alive: KeepAlive,
}

impl Connection {
    /// Connects, and logs in if there is a user.
    pub(super) async fn open(settings: &Settings, endpoint: &str) -> Result<Self, Failure> {
        let channel = connect(settings, endpoint).await?;
        let mut connection = Self {
            grpc: Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE),
            token: None,
            reply_timeout: settings.reply_timeout,
            has_failed: AtomicBool::new(false),
            broken: CancellationToken::new(),
            keep_alive: KeepAlive::default(),
        };
        if let Some(login) = &settings.login {
            let request = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
            let answer: AuthenticateResponse =
                connection.read("/etcdserverpb.Auth/Authenticate", request).await?;
            let token =
                answer.token.parse().map_err(|_| Failure::refused("the authentication token is not text"))?;
            connection.token = Some(token);
        }
        Ok(connection)
    }

    /// It is not used any more. Returns whether it was until now.
    pub(super) fn give_up(&self) -> bool {
        let was_used = !self.has_failed.swap(true, Ordering::Relaxed);
        self.broken.cancel();
        was_used
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
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.call(path, request).await.map_err(|status| failure::of_reading(&status))
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc.clone();
        let called = async {
            grpc.ready().await.map_err(|error| Status::unavailable(failure::connecting(&error)))?;
            let path = PathAndQuery::from_static(path);
            let answer = grpc.unary(self.with_metadata(request), path, ProstCodec::default()).await?;
            Ok(answer.into_inner())
        };
        let limit = self.reply_timeout;
        let silence = |_| Err(Status::deadline_exceeded(format!("no answer within {limit:?}")));
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
        let opened = grpc.streaming(self.with_metadata(requests), path, ProstCodec::default()).await;
        opened.map(tonic::Response::into_inner).map_err(|status| failure::of_reading(&status))
    }

    /// The next message on a stream; `None` at its end.
    pub(super) async fn next<A>(&self, stream: &mut Streaming<A>) -> Result<Option<A>, Failure> {
        stream.message().await.map_err(|status| failure::of_reading(&status))
    }

    fn with_metadata<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // A member that has lost the others says so, instead of waiting for them.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    pub(super) async fn within<T>(
        &self,
        exchange: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let limit = self.reply_timeout;
        timeout(limit, exchange).await.unwrap_or_else(|_| Err(Failure::timed_out(limit)))
    }
}
