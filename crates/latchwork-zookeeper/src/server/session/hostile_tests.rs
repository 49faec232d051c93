//! Bytes that no honest server sends, for every parser of answers.

use futures_util::FutureExt as _;
use latchwork_services::hostile::survives;

use super::jute::Writer;
use super::messages::{self, News, Stat, Welcome, code};
use super::transport::{Header, first_frame, read_frame};
use crate::names::key_of;
use crate::protocol::queue::{Queue, Told};

/// A message of the server: its number, the last transaction, no refusal, and the rest.
fn answer(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.int(7).long(0x1_0000_0009).int(0);
    fill(&mut writer);
    writer.0
}

fn body(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    fill(&mut writer);
    writer.0
}

fn stat(writer: &mut Writer) {
    writer.long(9).long(9).long(1_700_000_000_000).long(1_700_000_000_001);
    writer.int(0).int(0).int(0).long(0x1_2345).int(3).int(0).long(9);
}

fn framed(message: &[u8]) -> Vec<u8> {
    body(|w| {
        w.buffer(message);
    })
}

#[test]
fn hostile_frames() {
    let one = framed(&answer(|_| {}));
    let two = [one.clone(), framed(&answer(stat))].concat();
    let lie = i32::MAX.to_be_bytes();
    survives("first_frame", &[&one, &two, &lie], |bytes| {
        let mut rest = bytes;
        while let Ok(Some((message, taken))) = first_frame(rest) {
            assert_eq!(message.len() + 4, taken);
            let _ = Header::read(message);
            rest = &rest[taken..];
        }
    });
    survives("read_frame", &[&one, &two, &lie], |bytes| {
        let mut wire = bytes;
        let read = read_frame(&mut wire).now_or_never().expect("all has come");
        if let Ok(message) = read {
            assert_eq!(bytes.len(), message.len() + 4 + wire.len());
        }
    });
}

#[test]
fn an_oversized_frame_is_refused_by_its_header() {
    for length in [256 * 1024 * 1024 + 1, i32::MAX, -1, i32::MIN] {
        first_frame(&length.to_be_bytes()).expect_err("nobody sends as much");
    }
    for length in [32 * 1024 + 1, i32::MAX, -1] {
        let frame = [&length.to_be_bytes()[..], &vec![0; 100 * 1024]].concat();
        let read = read_frame(&mut &*frame).now_or_never().expect("all has come");
        read.expect_err("what is said at first is short");
    }
}

#[test]
fn hostile_headers_and_welcomes() {
    let header = answer(|_| {});
    survives("Header", &[&header], |bytes| {
        let _ = Header::read(bytes);
    });
    let welcome = body(|w| {
        w.int(0).int(40_000).long(0x1_2345).buffer(&[7; 16]).bool(false);
    });
    survives("Welcome", &[&welcome], |bytes| drop(Welcome::read(bytes)));
}

#[test]
fn hostile_stats_and_nodes() {
    let exists = body(stat);
    survives("Stat", &[&exists], |bytes| {
        let _ = Stat::read(bytes);
    });
    let created = body(|w| stat(w.text("/k/_c_0-lock-0000000003")));
    survives("created", &[&created], |bytes| drop(messages::created(bytes)));
    let data = body(|w| stat(w.buffer(b"lw1 9000 1700000000000 host a, pid 7")));
    survives("data", &[&data], |bytes| {
        if let Some((data, _)) = messages::data(bytes) {
            let _ = Told::read(&data);
        }
    });
    survives("Told", &[b"lw1 9000 1700000000000 host a, pid 7", b"10.0.0.1"], |bytes| {
        let _ = Told::read(bytes);
    });
}

/// Any client that may write to the lock names its children.
#[test]
fn hostile_lists() {
    let names = [
        "_c_12345678-9abc-def0-1122-334455667788-lock-0000000001",
        "_c_12345678-9abc-def0-1122-334455667788-__READ__0000000002",
        "_c_12345678-9abc-def0-1122-334455667788-__WRIT__-000000003",
        "_c_12345678-9abc-def0-1122-334455667788-permits-2-5-0000000004",
        "closed-1700000000000-12345678-9abc-def0-1122-334455667788",
        "%2e%F0%9F%94%92",
    ];
    let list = body(|w| {
        names.iter().fold(w.int(names.len() as i32), |w, name| w.text(name));
    });
    let many = body(|w| {
        w.int(i32::MAX).text("a");
    });
    survives("children", &[&list, &many], |bytes| {
        let Some(children) = messages::children(bytes) else { return };
        for own in names {
            let _ = Queue::read_up_to(&children, Some(own));
        }
        let queue = Queue::read_up_to(&children, None);
        for (me, holds) in queue.holding().into_iter().enumerate() {
            let admission = queue.admission(me);
            let claim = latchwork_store::testing::claim("k");
            let claim = claim.with(|it| it.mode = queue.places[me].mode);
            if queue.clash(&claim, me, false).is_none() {
                assert_eq!(admission == latchwork_store::kit::lineup::Admission::Granted, holds);
            }
        }
    });
    let names = names.map(str::as_bytes);
    survives("names", &names, |bytes| {
        let name = String::from_utf8_lossy(bytes).into_owned();
        let _ = key_of(&name);
        let queue = Queue::read_up_to(&[&*name], None);
        assert_eq!(queue.places.len() + queue.closed.len() + queue.strangers.len(), 1);
    });
}

#[test]
fn hostile_rights_transactions_and_news() {
    let access = body(|w| {
        w.int(1).int(31).text("world").text("anyone");
        stat(w);
    });
    survives("access", &[&access], |bytes| drop(messages::access(bytes)));
    let done = body(|w| {
        w.int(code::DELETE).bool(false).int(0);
        stat(w.int(code::CREATE).bool(false).int(0).text("/x"));
        w.int(-1).bool(true).int(-1);
    });
    let refused = body(|w| {
        w.int(-1).bool(false).int(-101).int(-101);
        w.int(-1).bool(true).int(-1);
    });
    survives("together", &[&done, &refused], |bytes| {
        let _ = messages::together(bytes);
    });
    let children = body(|w| {
        stat(w.int(1).text("_c_0-lock-0000000003"));
    });
    survives("children", &[&children], |bytes| drop(messages::children_and_stat(bytes)));
    let news = body(|w| {
        w.int(2).int(3).text("/k/_c_0-lock-0000000003");
    });
    survives("News", &[&news], |bytes| drop(News::read(bytes)));
    let token = body(|w| {
        w.buffer(b"rspauth=ea40f60335c427b5527b84dbabcdfffd");
    });
    survives("sasl_token", &[&token], |bytes| drop(messages::sasl_token(bytes)));
}
