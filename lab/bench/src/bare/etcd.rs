//! The bare writes of a lock on etcd, over the stubs and the library that Latchwork uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use self::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use self::proto::kv_client::KvClient;
use self::proto::lease_client::LeaseClient;
use self::proto::request_op::Request;
use self::proto::watch_client::WatchClient;
use self::proto::watch_request::RequestUnion;
use self::proto::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, RequestOp,
    TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use crate::handoffs::WAITING;
use crate::roles::{Lock, Outcome};

#[path = "../../../../crates/latchwork-etcd/src/proto.rs"]
mod proto;

/// To `etcd://HOST:PORT`.
async fn channel(url: &str) -> Outcome<Channel> {
    let (_, host) = url.split_once("://").ok_or("an address")?;
    Ok(Endpoint::from_shared(format!("http://{host}"))?.tcp_nodelay(true).connect().await?)
}

fn put(put: PutRequest) -> TxnRequest {
    let put = RequestOp { request: Some(Request::RequestPut(put)) };
    TxnRequest { success: vec![put], ..TxnRequest::default() }
}

/// Puts a key under a lease if it is not there and deletes it if it is the same: two transactions, and the lease is
/// kept alive.
#[derive(Clone)]
pub(crate) struct Bare {
    kv: KvClient<Channel>,
    lease: i64,
    /// Keeps it alive.
    alive: UnboundedSender<LeaseKeepAliveRequest>,
    key: Vec<u8>,
}

impl Bare {
    /// A connection that this runtime moves.
    pub(crate) async fn connect(url: &str, on: &Handle) -> Outcome<Self> {
        let url = url.to_owned();
        let made = on.spawn(async move {
            let channel = channel(&url).await?;
            let mut leases = LeaseClient::new(channel.clone());
            let (alive, requests) = unbounded_channel();
            let lease = leases.lease_grant(LeaseGrantRequest { ttl: 30, id: 0 }).await?;
            // Its answers begin with the first request.
            tokio::spawn(async move {
                let answers = leases.lease_keep_alive(UnboundedReceiverStream::new(requests));
                let Ok(answers) = answers.await else { return };
                let mut answers = answers.into_inner();
                while let Ok(Some(_)) = answers.message().await {}
            });
            let lease = lease.into_inner().id;
            Ok(Self { kv: KvClient::new(channel), lease, alive, key: Vec::new() })
        });
        made.await?
    }

    pub(crate) fn on(&self, key: &str) -> Self {
        Self { key: format!("bare/{key}/{:x}", self.lease).into_bytes(), ..self.clone() }
    }

    /// Puts the key without a lease.
    pub(crate) async fn put(&self) -> Outcome {
        let value = vec![b'x'; 100];
        let request = PutRequest { key: self.key.clone(), value, ..PutRequest::default() };
        self.kv.clone().txn(put(request)).await?;
        Ok(())
    }

    /// Does something if the create revision of the key is this; answers the revision.
    async fn only_if(&self, revision: i64, then: Request) -> Outcome<i64> {
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: self.key.clone(),
            target_union: Some(TargetUnion::CreateRevision(revision)),
            ..Compare::default()
        };
        let success = vec![RequestOp { request: Some(then) }];
        let request = TxnRequest { compare: vec![compare], success, failure: Vec::new() };
        let answer = self.kv.clone().txn(request).await?.into_inner();
        let header = answer.header.filter(|_| answer.succeeded);
        Ok(header.ok_or("the key is another's")?.revision)
    }
}

impl Lock for Bare {
    type Held = i64;

    async fn acquire(&self) -> Outcome<i64> {
        let (key, lease) = (self.key.clone(), self.lease);
        let _ = self.alive.send(LeaseKeepAliveRequest { id: lease });
        let put = PutRequest { key, value: b"bench".to_vec(), lease };
        self.only_if(0, Request::RequestPut(put)).await
    }

    async fn release(&self, revision: i64) -> Outcome {
        let key = self.key.clone();
        let delete = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        self.only_if(revision, Request::RequestDeleteRange(delete)).await.map(drop)
    }
}

/// A place in a ring of processes, each asleep with a watch on a key of its own: who is done puts the key of the next
/// one. One write, its answer, and one event. It is no lock: nobody can join, and nothing goes on if one of them dies.
pub(crate) struct Ring {
    kv: KvClient<Channel>,
    events: Mutex<Streaming<WatchResponse>>,
    next: usize,
    /// The first one begins.
    turn: AtomicBool,
}

impl Ring {
    /// Watches from now on.
    pub(crate) async fn join(url: &str, number: usize) -> Outcome<Arc<Self>> {
        let channel = channel(url).await?;
        let key = format!("ring/{number}").into_bytes();
        let create = WatchCreateRequest { key, ..WatchCreateRequest::default() };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The stream of requests stays open.
        let requests = tokio_stream::once(request).chain(tokio_stream::pending());
        let events = WatchClient::new(channel.clone()).watch(requests).await?;
        let mut events = events.into_inner();
        events.message().await?.filter(|first| first.created).ok_or("a watch")?;
        Ok(Arc::new(Self {
            kv: KvClient::new(channel),
            events: Mutex::new(events),
            next: (number + 1) % (WAITING + 1),
            turn: AtomicBool::new(number == 0),
        }))
    }
}

impl Lock for Arc<Ring> {
    type Held = ();

    async fn acquire(&self) -> Outcome {
        if self.turn.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let mut events = self.events.lock().await;
        while events.message().await?.ok_or("the watch has ended")?.events.is_empty() {}
        Ok(())
    }

    async fn release(&self, _held: ()) -> Outcome {
        let key = format!("ring/{}", self.next).into_bytes();
        let request = put(PutRequest { key, ..PutRequest::default() });
        self.kv.clone().txn(request).await?;
        Ok(())
    }
}
