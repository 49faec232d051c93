//! One stream for all watches of a member.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender as Teller, unbounded};
use futures_util::StreamExt;
use latchwork_core::Io;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::config::Endpoint;
use crate::errors::Failure;
use crate::proof::Proof;
use crate::proto::watch_client::WatchClient;
use crate::proto::{WatchRequest, WatchResponse};
use crate::watchers::{Notice, Watchers};

enum Order {
    Open { id: i64, key: Vec<u8>, end: Vec<u8>, notices: Teller<Notice> },
    Close(i64),
}

/// The watches of one member.
pub(crate) struct Watches {
    orders: mpsc::UnboundedSender<Order>,
    next: AtomicI64,
}

/// Somebody who listens to a watch, until it is dropped.
pub(crate) struct Watch {
    id: i64,
    // Each lock that is held has one: tokio's has room for 32 notices from the start.
    notices: UnboundedReceiver<Notice>,
    orders: mpsc::WeakUnboundedSender<Order>,
}

impl Watches {
    /// Starts the task; the stream is opened when it is first used.
    pub(crate) fn start(channel: &Channel, proof: &Arc<Proof>, io: &Io) -> Self {
        let (orders, todo) = mpsc::unbounded_channel();
        let (channel, proof, clock) = (channel.clone(), proof.clone(), io.clone());
        let stream = Stream { channel, proof, io: clock };
        io.spawn(stream.serve(todo));
        // 0 asks the server to choose.
        Self { orders, next: AtomicI64::new(1) }
    }

    /// Watches for keys that go away, from the member's present revision on: what begins in the
    /// past is served late. An empty `end` means this key alone.
    pub(crate) fn open(&self, key: Vec<u8>, end: Vec<u8>) -> Watch {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, notices) = unbounded();
        // If the task is gone, so is the sender, and the watch ends.
        let _ = self.orders.send(Order::Open { id, key, end, notices: sender });
        Watch { id, notices, orders: self.orders.downgrade() }
    }
}

impl Watch {
    pub(crate) async fn notice(&mut self, from: &Endpoint) -> Result<Notice, Failure> {
        self.notices.next().await.ok_or_else(|| Failure::broken(from, "watches").of_a_read())
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
    io: Io,
}

impl Stream {
    async fn serve(self, mut orders: mpsc::UnboundedReceiver<Order>) {
        while let Some(first) = orders.recv().await {
            if matches!(first, Order::Close(_)) {
                continue; // it ended with its stream
            }
            // Whoever is still in here when it ends is told by that.
            let (out, requests) = mpsc::unbounded_channel();
            let mut watchers = Watchers::new(out);
            self.carry_out(first, &mut watchers);
            if self.run(requests, &mut watchers, &mut orders).await.is_none() {
                return;
            }
        }
    }

    /// Runs until the stream breaks; `None` if nobody can ask any more.
    async fn run(
        &self,
        requests: mpsc::UnboundedReceiver<WatchRequest>,
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
                order = orders.recv() => self.carry_out(order?, watchers),
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
                        watchers.tell(answer);
                    }
                    Ok(None) | Err(_) => return Some(()),
                },
                order = orders.recv() => self.carry_out(order?, watchers),
                () = self.io.clock().sleep_until(watchers.next_sweep()) => {
                    watchers.sweep(self.io.now());
                }
            }
        }
    }

    fn carry_out(&self, order: Order, watchers: &mut Watchers) {
        match order {
            Order::Open { id, key, end, notices } => watchers.open(id, (key, end), notices),
            Order::Close(id) => watchers.close(id, self.io.now()),
        }
    }
}
