//! A server that lacks a node which the others have, or has one that they have deleted.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use latchwork::ErrorKind;
use latchwork_store::LostReason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::common::*;

const EXISTS: i32 = 3;
const GET_CHILDREN: i32 = 8;
const NO_NODE: i32 = -101;

/// A way to a server, on which it says of every node that it has none, or names one more child, from some moment on.
#[derive(Default)]
struct Relay {
    lacks: AtomicBool,
    /// A child of each node.
    adds: Mutex<Option<&'static str>>,
    /// The kinds of the requests that ask for nodes or for children, by their numbers.
    asked: Mutex<HashMap<i32, i32>>,
}

impl Relay {
    async fn open(server: u16) -> (u16, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let relay = Arc::new(Self::default());
        let this = relay.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(this.clone().requests(from_client, to_server));
                tokio::spawn(this.clone().answers(from_server, to_client));
            }
        });
        (port, relay)
    }

    async fn requests(self: Arc<Self>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut is_hello = true;
        while let Some(frame) = frame(&mut from).await {
            if !std::mem::take(&mut is_hello) && [EXISTS, GET_CHILDREN].contains(&int(&frame, 8)) {
                self.asked.lock().unwrap().insert(int(&frame, 4), int(&frame, 8));
            }
            if to.write_all(&frame).await.is_err() {
                return;
            }
        }
    }

    async fn answers(self: Arc<Self>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut is_hello = true;
        while let Some(mut frame) = frame(&mut from).await {
            let asked = match std::mem::take(&mut is_hello) {
                true => None,
                false => self.asked.lock().unwrap().remove(&int(&frame, 4)),
            };
            if asked == Some(EXISTS) && self.lacks.load(Ordering::SeqCst) {
                // The number, the last transaction, and the error; nothing of the node.
                frame.truncate(4 + 16);
                frame[16..].copy_from_slice(&NO_NODE.to_be_bytes());
            }
            if asked == Some(GET_CHILDREN)
                && int(&frame, 16) == 0
                && let Some(child) = *self.adds.lock().unwrap()
            {
                let count = int(&frame, 20) + 1;
                frame[20..24].copy_from_slice(&count.to_be_bytes());
                let text = [&(child.len() as i32).to_be_bytes()[..], child.as_bytes()].concat();
                frame.splice(24..24, text);
            }
            let length = frame.len() as i32 - 4;
            frame[..4].copy_from_slice(&length.to_be_bytes());
            if to.write_all(&frame).await.is_err() {
                return;
            }
        }
    }
}

/// A message with its length in front.
async fn frame(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let length = from.read_i32().await.ok()?;
    let mut frame = length.to_be_bytes().to_vec();
    frame.resize(4 + length as usize, 0);
    from.read_exact(&mut frame[4..]).await.ok()?;
    Some(frame)
}

fn int(frame: &[u8], at: usize) -> i32 {
    frame[at..].first_chunk().map_or(0, |bytes| i32::from_be_bytes(*bytes))
}

/// The holder learns of it, and the servers that have the node delete it: its session goes on.
#[test]
fn a_node_that_one_server_lacks_blocks_nobody() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    run(async {
        let (port, relay) = Relay::open(server.port()).await;
        let (locks, other) = (client(&url(port)).await, client(&server.url()).await);
        let guard = locks.mutex("k").acquire().await.unwrap();
        let beside = locks.mutex("beside").acquire().await.unwrap();
        relay.lacks.store(true, Ordering::SeqCst);
        let lost = tokio::time::timeout(10 * SEC, guard.lost()).await.unwrap();
        assert_eq!(lost.reason, LostReason::Taken);
        let next = other.mutex("k").acquire_within(2 * SEC).await.unwrap();
        assert!(next.token() > guard.token());
        assert_eq!(beside.lost().await.reason, LostReason::Taken);
        relay.lacks.store(false, Ordering::SeqCst);
        let again = locks.mutex("beside").acquire_within(2 * SEC).await.unwrap();
        again.ensure_held().unwrap();
    });
}

/// H555: a server has a node that the others have deleted, ahead of a hold, as one of ZooKeeper 3.8.0 had that had lost
/// transactions.
#[test]
fn h555_a_place_that_one_server_alone_has_ends_no_hold() {
    const WRITER: &str = "_c_44af0139-9eb7-0e39-9f38-69a193a682fd-__WRIT__0000000000";
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    run(async {
        let (port, relay) = Relay::open(server.port()).await;
        let locks = client(&url(port)).await;
        let rw = locks.rwlock("k");
        // The next number is larger than that of the place which is over.
        rw.write().acquire().await.unwrap().release().await.unwrap();
        let mut guard = rw.read().acquire().await.unwrap();
        *relay.adds.lock().unwrap() = Some(WRITER);
        let error = guard.upgrade_within(SEC).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(guard.try_upgrade().await.unwrap().is_none());
        guard.ensure_held().unwrap();
        *relay.adds.lock().unwrap() = None;
        guard.upgrade_within(5 * SEC).await.unwrap();
        guard.release().await.unwrap();
    });
}
