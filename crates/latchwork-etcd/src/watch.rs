//! One stream for all watches of a member.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use latchwork_core::Io;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::config::Endpoint;
use crate::errors::Failure;
use crate::proof::Proof;
use crate::proto::event::EventType;
use crate::proto::watch_client::WatchClient;
use crate::proto::watch_create_request::FilterType;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse};

/// What a watch tells. When it ends without a word, the stream has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// From now on nothing is missed.
    Open,
    /// These keys are gone.
    Gone(Vec<Gone>),
}

/// A key that was deleted, by hand or with its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) key: Vec<u8>,
    pub(crate) at: i64,
}

impl Gone {
    /// Whether this ended the key that was created at `revision`: a lease that is used again gives
    /// its next claim the same name, and a member may be behind.
    pub(crate) fn ended(&self, key: &[u8], revision: i64) -> bool {
        self.key == key && self.at > revision
    }
}

enum Order {
    Open { id: i64, key: Vec<u8>, end: Vec<u8>, notices: mpsc::UnboundedSender<Notice> },
    Close(i64),
}

/// The watches of one member.
pub(crate) struct Watches {
    orders: mpsc::UnboundedSender<Order>,
    next: AtomicI64,
}

/// A watch; dropping it ends it.
pub(crate) struct Watch {
    id: i64,
    notices: mpsc::UnboundedReceiver<Notice>,
    orders: mpsc::WeakUnboundedSender<Order>,
}

impl Watches {
    /// Starts the task; the stream is opened when it is first used.
    pub(crate) fn start(channel: &Channel, proof: &Arc<Proof>, io: &Io) -> Self {
        let (orders, todo) = mpsc::unbounded_channel();
        let stream = Stream { channel: channel.clone(), proof: proof.clone() };
        io.spawn(stream.serve(todo));
        // 0 asks the server to choose.
        Self { orders, next: AtomicI64::new(1) }
    }

    /// Watches for keys that go away, from the member's present revision on: what begins in the
    /// past is served late. An empty `end` means this key alone.
    pub(crate) fn open(&self, key: Vec<u8>, end: Vec<u8>) -> Watch {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, notices) = mpsc::unbounded_channel();
        // If the task is gone, so is the sender, and the watch ends.
        let _ = self.orders.send(Order::Open { id, key, end, notices: sender });
        Watch { id, notices, orders: self.orders.downgrade() }
    }
}

impl Watch {
    pub(crate) async fn notice(&mut self, from: &Endpoint) -> Result<Notice, Failure> {
        self.notices.recv().await.ok_or_else(|| Failure::broken(from, "watches").of_a_read())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(orders) = self.orders.upgrade() {
            let _ = orders.send(Order::Close(self.id));
        }
    }
}

struct Stream {
    channel: Channel,
    proof: Arc<Proof>,
}

/// Who is told of what.
#[derive(Default)]
struct Watchers {
    notices: HashMap<i64, mpsc::UnboundedSender<Notice>>,
    /// Which watches the member has been asked for and has not confirmed, in the order of the
    /// requests, in which it answers.
    opening: VecDeque<i64>,
}

impl Stream {
    async fn serve(self, mut orders: mpsc::UnboundedReceiver<Order>) {
        while let Some(first) = orders.recv().await {
            if matches!(first, Order::Close(_)) {
                continue; // it ended with its stream
            }
            // Whoever is still in here when it ends is told by that.
            let mut watchers = Watchers::default();
            let (out, requests) = mpsc::unbounded_channel();
            carry_out(first, &out, &mut watchers);
            if self.run(requests, &out, &mut watchers, &mut orders).await.is_none() {
                return;
            }
        }
    }

    /// Runs until the stream breaks; `None` if nobody can ask any more.
    async fn run(
        &self,
        requests: mpsc::UnboundedReceiver<WatchRequest>,
        out: &mpsc::UnboundedSender<WatchRequest>,
        watchers: &mut Watchers,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Option<()> {
        let mut client =
            WatchClient::new(self.channel.clone()).max_decoding_message_size(256 << 20);
        let token = self.proof.token();
        let requests = UnboundedReceiverStream::new(requests);
        let requests = self.proof.request_as(requests, token.clone());
        let mut opening = std::pin::pin!(client.watch(requests));
        let mut answers: Streaming<WatchResponse> = loop {
            tokio::select! {
                opened = &mut opening => match opened {
                    Ok(opened) => break opened.into_inner(),
                    Err(_) => return Some(()),
                },
                order = orders.recv() => carry_out(order?, out, watchers),
            }
        };
        loop {
            tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => {
                        if answer.canceled && answer.cancel_reason.contains("auth") {
                            self.proof.refused(token.as_ref());
                            return Some(());
                        }
                        tell(answer, watchers);
                    }
                    Ok(None) | Err(_) => return Some(()),
                },
                order = orders.recv() => carry_out(order?, out, watchers),
            }
        }
    }
}

impl Watchers {
    /// The watch that an answer to a request for one is about: from 3.5 on a member does not say
    /// which one it refuses, and it answers in the order of the requests.
    fn confirmed(&mut self, id: i64) -> i64 {
        let at = self.opening.iter().position(|opening| id < 0 || *opening == id);
        at.and_then(|at| self.opening.remove(at)).unwrap_or(id)
    }
}

fn carry_out(order: Order, out: &mpsc::UnboundedSender<WatchRequest>, watchers: &mut Watchers) {
    let request = match order {
        Order::Open { id, key, end, notices } => {
            watchers.notices.insert(id, notices);
            watchers.opening.push_back(id);
            RequestUnion::CreateRequest(WatchCreateRequest {
                key,
                range_end: end,
                start_revision: 0,
                progress_notify: false,
                filters: vec![FilterType::Noput as i32],
                watch_id: id,
            })
        }
        Order::Close(id) => {
            if watchers.notices.remove(&id).is_none() {
                return;
            }
            RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id })
        }
    };
    // It fails only if the stream is broken; then all watches end.
    let _ = out.send(WatchRequest { request_union: Some(request) });
}

fn tell(answer: WatchResponse, watchers: &mut Watchers) {
    let id = match answer.created {
        true => watchers.confirmed(answer.watch_id),
        false => answer.watch_id,
    };
    let Some(watcher) = watchers.notices.get(&id) else { return };
    if answer.canceled {
        watchers.notices.remove(&id);
        return;
    }
    // Nobody listens if the watch was dropped.
    if answer.created {
        let _ = watcher.send(Notice::Open);
    }
    let deleted =
        answer.events.into_iter().filter(|event| event.r#type == EventType::Delete as i32);
    let gone: Vec<_> = deleted
        .filter_map(|event| event.kv.map(|kv| Gone { key: kv.key, at: kv.mod_revision }))
        .collect();
    if !gone.is_empty() {
        let _ = watcher.send(Notice::Gone(gone));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_watch_ends_alone() {
        let (out, _requests) = mpsc::unbounded_channel();
        let mut watchers = Watchers::default();
        let mut open = |id| {
            let (notices, told) = mpsc::unbounded_channel();
            carry_out(Order::Open { id, key: vec![], end: vec![], notices }, &out, &mut watchers);
            told
        };
        let (mut first, mut second, mut third) = (open(1), open(2), open(3));
        let created = |watch_id, canceled| WatchResponse {
            watch_id,
            canceled,
            created: true,
            ..WatchResponse::default()
        };
        tell(created(1, false), &mut watchers);
        tell(created(-1, true), &mut watchers);
        tell(created(3, false), &mut watchers);
        assert_eq!(first.try_recv(), Ok(Notice::Open));
        assert_eq!(second.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
        assert_eq!(third.try_recv(), Ok(Notice::Open));
        assert!(watchers.opening.is_empty());
    }

    #[test]
    fn an_older_key_of_the_same_name_ended_nothing() {
        let gone = Gone { key: b"k/5".to_vec(), at: 9 };
        assert!(gone.ended(b"k/5", 8));
        assert!(!gone.ended(b"k/5", 9) && !gone.ended(b"k/5", 12), "created since");
        assert!(!gone.ended(b"k/6", 8));
    }
}
