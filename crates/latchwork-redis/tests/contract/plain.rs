//! The rules against the Redis backend where the way to the server does not let everything pass:
//! proxies that refuse what others leave out.

use std::sync::Arc;

use latchwork_conformance::Expected;
use latchwork_services::{Proxy, RedisOptions};
use latchwork_store::Fencing;
use libtest_mimic::Trial;

use crate::one_server::OneServer;

/// What does not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    /// Scripts of several keys, subscriptions, INFO and more: Codis and its like.
    ManyKeys,
    /// Subscriptions and INFO.
    Subscriptions,
    /// RESP3.
    Hello,
}

fn proxy(port: u16, without: Without) -> Proxy {
    let proxy = Proxy::redis(port).expect("a proxy");
    let unknown = |name: &str| {
        proxy.refuse(name, &format!("ERR unknown command '{name}'"));
    };
    match without {
        Without::ManyKeys => {
            let keys = |words: &[&[u8]]| words.get(2) != Some(&b"1".as_slice());
            proxy.refuse_if("EVAL", "ERR wrong number of keys for 'EVAL': only 1 works", keys);
            // Not every proxy knows which server has the script.
            unknown("EVALSHA");
            for name in ["INFO", "SUBSCRIBE", "UNSUBSCRIBE", "PUBLISH", "CLIENT", "MULTI"] {
                unknown(name);
            }
        }
        Without::Subscriptions => {
            for name in ["INFO", "SUBSCRIBE", "UNSUBSCRIBE"] {
                unknown(name);
            }
        }
        Without::Hello => unknown("HELLO"),
    }
    proxy
}

fn expected(without: Without) -> Expected {
    let whole = without != Without::ManyKeys;
    Expected {
        shared: whole,
        upgrade: whole,
        permits: whole,
        mixed_limits: whole,
        resize: whole,
        fifo: whole,
        linger: whole,
        push: false,
        watch: false,
        floor: whole,
        fencing: Fencing::WhileDataSurvives,
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let server = OneServer::new(4_000, RedisOptions::new());
    let mut trials = Vec::new();
    for (name, without) in [
        ("redis_plain", Without::ManyKeys),
        ("redis_no_pubsub", Without::Subscriptions),
        ("redis_resp2", Without::Hello),
    ] {
        let redis = OneServer {
            expected: expected(without),
            proxy: Arc::new(move |port| proxy(port, without)),
            // In RESP2 nobody is told of an end: the next command notices.
            looks: true,
            ..server.clone()
        };
        trials.extend(latchwork_conformance::trials(name, redis));
    }
    trials
}
