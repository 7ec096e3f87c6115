//! What etcd's clients do with their own means: a put, and the lock of the textbook.

use std::sync::Arc;
use std::time::Instant;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::Mutex;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request as Call, Streaming};
use tonic_prost::ProstCodec;

use self::proto::{
    Compare, CompareResult, CompareTarget, CompareWith, DeleteRangeRequest, EventType, Ignored,
    LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest, RangeResponse, Request, RequestOp,
    Response, SortOrder, SortTarget, TxnRequest, TxnResponse, WatchCancelRequest, WatchCreateRequest,
    WatchEvent, WatchRequest, WatchResponse, WatchWish,
};
use super::recipes::Recipe;
use super::site::Site;
use crate::common::turns::Contender;
use crate::common::{LEASE, Result};

// The messages of the crate.
#[allow(dead_code)]
#[path = "../../src/backend/etcd/proto.rs"]
mod proto;

/// A connection of the same gRPC library that the crate uses.
#[derive(Clone)]
pub(crate) struct Etcd(Grpc<Channel>);

impl Etcd {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let endpoint = Endpoint::from_shared(url.replace("etcd://", "http://"))?.tcp_nodelay(true);
        Ok(Self(Grpc::new(endpoint.connect().await?)))
    }

    pub(crate) async fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let put = PutRequest { key: key.to_vec(), value: value.to_vec(), lease: 0 };
        self.call::<_, Ignored>("/etcdserverpb.KV/Put", put).await.map(drop)
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.0.clone();
        grpc.ready().await?;
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(Call::new(request), path, ProstCodec::default()).await?.into_inner())
    }
}

/// As etcd's own `concurrency` package does it: a key under the session's lease; the oldest one holds, and everybody
/// else watches the one before. Its session is kept alive by a task, which this bench does not need. No place survives
/// a lost connection, and only the key's revision can serve as a token.
#[derive(Clone)]
pub(crate) struct WatchedPredecessor {
    etcd: Etcd,
    lease: i64,
    prefix: String,
    watching: Arc<Mutex<Watching>>,
}

struct Watching {
    wishes: UnboundedSender<WatchRequest>,
    /// Opened with the first wish, as it answers only then.
    changes: Option<Streaming<WatchResponse>>,
    requests: Option<futures::channel::mpsc::UnboundedReceiver<WatchRequest>>,
}

impl Recipe for WatchedPredecessor {
    const NAME: &str = "watch on the predecessor";

    async fn connect(site: &Site, name: &str) -> Result<Self> {
        let etcd = Etcd::connect(&site.url()).await?;
        let ttl = i64::try_from(LEASE.as_secs())? * 10;
        let granted: LeaseGrantResponse =
            etcd.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl }).await?;
        let (wishes, requests) = unbounded();
        let watching = Watching { wishes, changes: None, requests: Some(requests) };
        let watching = Arc::new(Mutex::new(watching));
        Ok(Self { etcd, lease: granted.id, prefix: format!("{name}/"), watching })
    }
}

impl WatchedPredecessor {
    fn key(&self) -> Vec<u8> {
        format!("{}{:x}", self.prefix, self.lease).into_bytes()
    }

    /// The keys that were made until this revision, in this order; the first one only.
    fn first(&self, order: SortOrder, max_create_revision: i64) -> RangeRequest {
        let mut range_end = self.prefix.clone().into_bytes();
        *range_end.last_mut().expect("it ends with a slash") += 1;
        RangeRequest {
            key: self.prefix.clone().into_bytes(),
            range_end,
            limit: 1,
            sort_order: order.into(),
            sort_target: SortTarget::Create.into(),
            max_create_revision,
            ..RangeRequest::default()
        }
    }

    /// Makes its key, and returns the revision of that, and of the oldest key.
    async fn join(&self) -> Result<(i64, i64)> {
        let key = self.key();
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.clone(),
            with: Some(CompareWith::CreateRevision(0)),
            range_end: Vec::new(),
        };
        let put = PutRequest { key, value: Vec::new(), lease: self.lease };
        let ops = [Request::Put(put), Request::Range(self.first(SortOrder::Ascend, 0))];
        let success = ops.map(|request| RequestOp { request: Some(request) }).to_vec();
        let request = TxnRequest { compare: vec![compare], success, failure: Vec::new() };
        let answer: TxnResponse = self.etcd.call("/etcdserverpb.KV/Txn", request).await?;
        let oldest = match answer.responses.into_iter().next_back().and_then(|last| last.response) {
            Some(Response::Range(range)) => range.kvs.first().map(|kv| kv.create_revision),
            _ => None,
        };
        let own = answer.header.ok_or("no revision")?.revision;
        Ok((own, oldest.ok_or("its key exists")?))
    }

    /// Returns when this key has been deleted since a revision.
    async fn deleted(&self, key: Vec<u8>, since: i64) -> Result<()> {
        let mut watching = self.watching.lock().await;
        let create = WatchCreateRequest { key, range_end: Vec::new(), start_revision: since };
        watching.wishes.unbounded_send(WatchRequest { wish: Some(WatchWish::Create(create)) })?;
        if let Some(requests) = watching.requests.take() {
            let mut grpc = self.etcd.0.clone();
            grpc.ready().await?;
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let opened = grpc.streaming(Call::new(requests), path, ProstCodec::default()).await?;
            watching.changes = Some(opened.into_inner());
        }
        let mut watch = None;
        loop {
            let changes = watching.changes.as_mut().ok_or("the stream was not opened")?;
            let change = changes.message().await?.ok_or("the stream has ended")?;
            if change.created {
                watch = Some(change.watch_id);
            }
            let is_deleted = |event: &WatchEvent| event.kind == i32::from(EventType::Delete);
            // An earlier watch may have seen more before it was canceled.
            if watch == Some(change.watch_id) && change.events.iter().any(is_deleted) {
                let cancel = WatchCancelRequest { watch_id: change.watch_id };
                watching.wishes.unbounded_send(WatchRequest { wish: Some(WatchWish::Cancel(cancel)) })?;
                return Ok(());
            }
        }
    }
}

impl Contender for WatchedPredecessor {
    type Held = ();

    /// Everybody releases, so it is granted in the end.
    async fn acquire(&self, _: Instant) -> Result<Option<()>> {
        let (own, oldest) = self.join().await?;
        if own == oldest {
            return Ok(Some(()));
        }
        loop {
            let before = self.first(SortOrder::Descend, own - 1);
            let found: RangeResponse = self.etcd.call("/etcdserverpb.KV/Range", before).await?;
            let since = found.header.ok_or("no revision")?.revision;
            let Some(before) = found.kvs.into_iter().next() else { return Ok(Some(())) };
            self.deleted(before.key, since).await?;
        }
    }

    async fn release(&self, (): ()) -> Result<()> {
        let delete = DeleteRangeRequest { key: self.key(), range_end: Vec::new() };
        self.etcd.call::<_, Ignored>("/etcdserverpb.KV/DeleteRange", delete).await.map(drop)
    }
}
