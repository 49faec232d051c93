//! The least that telling another process can cost on etcd: processes in a ring, each asleep with a
//! watch on a key of its own. Who is done puts the key of the next one: one write, its answer, and one
//! event. It is no lock: nobody can join, and nothing goes on if one of them dies.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Mutex;
use tokio_stream::StreamExt;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::etcd_bare::proto::kv_client::KvClient;
use crate::etcd_bare::proto::request_op::Request;
use crate::etcd_bare::proto::watch_client::WatchClient;
use crate::etcd_bare::proto::watch_request::RequestUnion;
use crate::etcd_bare::proto::{
    PutRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use crate::handoffs::WAITING;
use crate::roles::Lock;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A place in the ring.
pub(crate) struct Ring {
    kv: KvClient<tonic::transport::Channel>,
    events: Mutex<Streaming<WatchResponse>>,
    next: usize,
    /// The first one begins.
    turn: AtomicBool,
}

fn key(number: usize) -> Vec<u8> {
    format!("ring/{number}").into_bytes()
}

impl Ring {
    /// Watches from now on.
    pub(crate) async fn join(url: &str, number: usize) -> Result<Self> {
        let host = url.strip_prefix("etcd://").ok_or("etcd://HOST:PORT")?;
        let endpoint = Endpoint::from_shared(format!("http://{host}"))?;
        let channel = endpoint.tcp_nodelay(true).connect().await?;
        let create = WatchCreateRequest { key: key(number), ..WatchCreateRequest::default() };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The stream of requests stays open.
        let requests = tokio_stream::once(request).chain(tokio_stream::pending());
        let events = WatchClient::new(channel.clone()).watch(requests).await?;
        let mut events = events.into_inner();
        events.message().await?.filter(|first| first.created).ok_or("a watch")?;
        Ok(Self {
            kv: KvClient::new(channel),
            events: Mutex::new(events),
            next: (number + 1) % (WAITING + 1),
            turn: AtomicBool::new(number == 0),
        })
    }
}

impl Lock for Ring {
    type Held = ();

    async fn acquire(&self) {
        if self.turn.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut events = self.events.lock().await;
        loop {
            let message = events.message().await.expect("the server answers");
            if !message.expect("the watch goes on").events.is_empty() {
                return;
            }
        }
    }

    async fn release(&self, _held: ()) {
        let put = PutRequest { key: key(self.next), ..PutRequest::default() };
        let put = RequestOp { request: Some(Request::RequestPut(put)) };
        let always = TxnRequest { success: vec![put], ..TxnRequest::default() };
        self.kv.clone().txn(always).await.expect("the server answers");
    }
}
