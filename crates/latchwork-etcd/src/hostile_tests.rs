//! What others may have written into keys and values, and what stands in addresses.

use latchwork_services::hostile::survives;
use latchwork_store::Blocked;
use prost::Message as _;

use crate::config::EtcdConfig;
use crate::proto::{KeyValue, RangeResponse, ResponseOp, TxnResponse, WatchResponse};
use crate::protocol::names;
use crate::protocol::queue::{Queue, Target};
use crate::protocol::requests;

fn entry(key: &[u8], value: &[u8], lease: i64) -> KeyValue {
    let (key, value) = (key.to_vec(), value.to_vec());
    KeyValue { key, value, lease, create_revision: 3, mod_revision: 3, ..KeyValue::default() }
}

#[test]
fn hostile_names_of_keys() {
    let samples: [&[u8]; 4] = [b"k/1f", b"a%2Fb%25/694d8f2a1c3b5e07", b"/", b"%E9/-1"];
    survives("names", &samples, |name| {
        if let Some(lease) = names::lease_in(name)
            && let Some(key) = names::lock_of(name, lease)
        {
            assert_eq!(names::claim(&names::queue(&key), lease), name);
        }
        assert!(names::end_of(name) > name.to_vec() || names::end_of(name) == [0]);
    });
}

#[test]
fn hostile_values_of_places() {
    let samples: [&[u8]; 4] = [
        b"lw1 5f0c0000000000000000000000000001 x 1795200000000 0@host pid 4711: sh -c x",
        b"lw1 5f0c0000000000000000000000000002 p2/5 1795200000000 h",
        b"lw1 5f0c0000000000000000000000000003 p4294967295/4294967295 18446744073709551615 h",
        b"lwc 5f0c0000000000000000000000000004 r 60000 h",
    ];
    survives("values", &samples, |value| {
        let places = vec![entry(b"k/1", samples[1], 1), entry(b"k/2", value, 2)];
        let queue = Queue::new(places, 9).without_what_is_over(std::time::Duration::MAX);
        let queue = if queue.places.len() < 2 { return } else { queue };
        let admission = queue.admission_of_waiter(1);
        let Blocked { resume, .. } = queue.blocked(1, &admission, 2);
        assert!(Target::read_all(&resume.unwrap()).len() <= 2);
        queue.holding();
    });
}

#[test]
fn hostile_waiter_addresses_are_survived() {
    let samples: [&[u8]; 3] = [b"3@1f 9@b%20c%40 next", b"next", b"9223372036854775807@%FF"];
    survives("targets", &samples, |resume| {
        Target::read_all(&String::from_utf8_lossy(resume));
    });
}

#[test]
fn hostile_addresses() {
    let samples: [&[u8]; 3] = [
        b"etcd://app:p%40ss@a,b:1,[::1]",
        b"etcds://h?ca=/a%20b&cert=/c&key=/k&server_name=etcd.example",
        b"etcd://[::1",
    ];
    survives("address", &samples, |url| {
        let _ = EtcdConfig::parse(&String::from_utf8_lossy(url));
    });
}

/// The library decodes them; what is made of them is ours.
#[test]
fn hostile_answers() {
    let queue = RangeResponse {
        kvs: vec![entry(b"k/1f", b"lw1 x", 0x1f)],
        more: true,
        ..RangeResponse::default()
    };
    let response = crate::proto::response_op::Response::ResponseRange(queue.clone());
    let txn = TxnResponse {
        header: Some(Default::default()),
        responses: vec![ResponseOp { response: Some(response) }],
        ..TxnResponse::default()
    };
    let samples = [queue.encode_to_vec(), txn.encode_to_vec()];
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    survives("answers", &samples, |bytes| {
        if let Ok(answer) = TxnResponse::decode(bytes) {
            for has_limit in [false, true] {
                requests::queue_of(answer.clone(), b"k/1f", b"", 0x1f, has_limit);
            }
            requests::limit_in(answer.clone());
            assert!(requests::found(answer).count() <= bytes.len());
        }
        if let Ok(answer) = RangeResponse::decode(bytes) {
            requests::queue_in(answer);
        }
        let _ = WatchResponse::decode(bytes);
    });
}
