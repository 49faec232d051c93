//! The bare writes of a lock on etcd, over the stubs and the library that Latchwork uses.

use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tonic::transport::{Channel, Endpoint};

use self::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use self::proto::kv_client::KvClient;
use self::proto::lease_client::LeaseClient;
use self::proto::request_op::Request;
use self::proto::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, RequestOp,
    TxnRequest,
};
use crate::free_cycles::Work;

#[path = "../../../crates/latchwork-etcd/src/proto.rs"]
pub(crate) mod proto;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The seconds of a lease.
const TTL: i64 = 30;

/// A connection, which a thread of its own moves.
#[derive(Clone)]
pub(crate) struct Bare {
    kv: KvClient<Channel>,
    leases: LeaseClient<Channel>,
    /// Keeps leases alive.
    alive: UnboundedSender<LeaseKeepAliveRequest>,
}

impl Bare {
    /// `etcd://HOST:PORT`
    pub(crate) fn connect(url: &str, on: &Runtime) -> Result<Self> {
        let (_, host) = url.split_once("://").ok_or("an address")?;
        let address = format!("http://{host}");
        let made = on.spawn(async move {
            let channel = Endpoint::from_shared(address)?.tcp_nodelay(true).connect().await?;
            let mut leases = LeaseClient::new(channel.clone());
            let (alive, requests) = unbounded_channel();
            let requests = tokio_stream::wrappers::UnboundedReceiverStream::new(requests);
            // Its answers begin with the first request.
            let mut listening = leases.clone();
            tokio::spawn(async move {
                let Ok(answers) = listening.lease_keep_alive(requests).await else { return };
                let mut answers = answers.into_inner();
                while let Ok(Some(_)) = answers.message().await {}
            });
            leases.lease_grant(LeaseGrantRequest { ttl: TTL, id: 0 }).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Self {
                kv: KvClient::new(channel),
                leases,
                alive,
            })
        });
        on.block_on(made)?
    }

    /// Puts a key under a lease if it is not there and deletes it if it is the same: two transactions,
    /// and the lease is kept alive.
    pub(crate) async fn cycles(mut self, mut work: Work) {
        let grant = LeaseGrantRequest { ttl: TTL, id: 0 };
        let lease = self.leases.lease_grant(grant).await.expect("a lease").into_inner().id;
        let key = format!("bare/{}/{lease:x}", work.name).into_bytes();
        while work.goes_on() {
            let put = PutRequest { key: key.clone(), value: b"bench".to_vec(), lease };
            let _ = self.alive.send(LeaseKeepAliveRequest { id: lease });
            let taken = self.only_if(&key, 0, Request::RequestPut(put)).await;
            let delete = DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() };
            self.only_if(&key, taken, Request::RequestDeleteRange(delete)).await;
        }
    }

    /// Puts a key without a lease.
    pub(crate) async fn put(&mut self, key: &[u8]) -> std::result::Result<(), String> {
        let value = vec![b'x'; 100];
        let put = PutRequest { key: key.to_vec(), value, ..PutRequest::default() };
        let put = RequestOp { request: Some(Request::RequestPut(put)) };
        let request = TxnRequest { success: vec![put], ..TxnRequest::default() };
        self.kv.txn(request).await.map(drop).map_err(|error| error.to_string())
    }

    /// Does something if the create revision of the key is this; answers the revision.
    async fn only_if(&mut self, key: &[u8], revision: i64, then: Request) -> i64 {
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.to_vec(),
            target_union: Some(TargetUnion::CreateRevision(revision)),
            ..Compare::default()
        };
        let request = TxnRequest {
            compare: vec![compare],
            success: vec![RequestOp { request: Some(then) }],
            failure: Vec::new(),
        };
        let answer = self.kv.txn(request).await.expect("the server answers").into_inner();
        assert!(answer.succeeded, "the key is its own");
        answer.header.expect("a header").revision
    }
}
