//! The transactions and reads that make up the verbs.

use std::num::NonZeroI64;

use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::range_request::{SortOrder, SortTarget};
use crate::proto::request_op::Request;
use crate::proto::response_op::Response;
use crate::proto::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp,
    ResponseOp, TxnRequest, TxnResponse,
};
use crate::protocol::names::{self, end_of};
use crate::protocol::queue::{Place, Queue};

/// The whole queue whose keys start so, in order.
pub(crate) fn queue(prefix: &[u8]) -> RangeRequest {
    RangeRequest {
        key: prefix.to_vec(),
        range_end: end_of(prefix),
        sort_order: SortOrder::Ascend as i32,
        sort_target: SortTarget::Create as i32,
        ..RangeRequest::default()
    }
}

/// The queue up to the place that was made at this revision.
pub(crate) fn queue_up_to(prefix: &[u8], own: NonZeroI64) -> RangeRequest {
    RangeRequest { max_create_revision: own.get(), ..queue(prefix) }
}

/// The queue, up to a place if one is named, and the limit beside it.
pub(crate) fn queue_and_limit(prefix: &[u8], own: Option<NonZeroI64>) -> TxnRequest {
    let queue = own.map_or_else(|| queue(prefix), |own| queue_up_to(prefix, own));
    let reads = [queue, one(&names::limit(prefix))];
    let success = reads.map(|read| op(Request::RequestRange(read))).into();
    TxnRequest { success, ..TxnRequest::default() }
}

/// Sets the limit beside a queue if it is the one that was changed at this revision. At the first step
/// of a change it reads the queue, and a place that was read has to be there still.
pub(crate) fn set_limit(
    prefix: &[u8],
    changed: i64,
    text: &str,
    first_step: Option<&Place>,
) -> TxnRequest {
    let limit = names::limit(prefix);
    let put = op(Request::RequestPut(put_under(&limit, text.as_bytes(), 0)));
    let read = first_step.map(|_| op(Request::RequestRange(queue(prefix))));
    let is_there = first_step.map(|place| created(&place.key, place.revision));
    TxnRequest {
        compare: [put_at(&limit, changed)].into_iter().chain(is_there).collect(),
        success: [put].into_iter().chain(read).collect(),
        failure: Vec::new(),
    }
}

/// Deletes the limit beside a queue if it is the one that was changed at this revision.
pub(crate) fn delete_limit(prefix: &[u8], changed: i64) -> TxnRequest {
    let key = names::limit(prefix);
    TxnRequest {
        compare: vec![put_at(&key, changed)],
        success: vec![op(Request::RequestDeleteRange(DeleteRangeRequest {
            key,
            range_end: Vec::new(),
        }))],
        failure: Vec::new(),
    }
}

/// One key.
pub(crate) fn one(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

/// All keys whose names start so.
pub(crate) fn all(prefix: &[u8]) -> RangeRequest {
    let key = if prefix.is_empty() { vec![0] } else { prefix.to_vec() };
    RangeRequest { key, range_end: end_of(prefix), ..RangeRequest::default() }
}

/// What a try sends.
pub(crate) enum Ask {
    /// The claim may take a place.
    Put(TxnRequest),
    /// It has one, and need not know who stands behind.
    Read(RangeRequest),
    /// The same for permits, with the limit.
    ReadBoth(TxnRequest),
}

/// When a claim may put its key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum If {
    /// It has none yet: it takes a place at the end of the queue.
    NoPlace,
    /// Nobody is in queue.
    NobodyThere,
    /// Nobody is in queue but the claim whose key was created at this revision.
    NobodyBut(i64),
    /// Nobody has joined the queue since this revision.
    NobodyJoinedSince(i64),
}

/// Puts the key of a claim under its lease, and reads the queue. Who put it where nobody was is all
/// there is of a queue, and reads nothing. For permits the limit is read last.
pub(crate) fn put(
    condition: If,
    prefix: &[u8],
    key: &[u8],
    value: &[u8],
    lease: i64,
    limit: Option<&[u8]>,
) -> TxnRequest {
    let absent = created(key, 0);
    let compare = match condition {
        If::NoPlace => vec![absent],
        If::NobodyThere => vec![Compare { range_end: end_of(prefix), ..created(prefix, 0) }],
        // Of no keys at all, a server compares the revision 0.
        If::NobodyBut(hold) => {
            vec![absent, Compare { range_end: end_of(prefix), ..created(prefix, hold) }]
        }
        If::NobodyJoinedSince(revision) => {
            let unchanged = Compare {
                result: CompareResult::Less as i32,
                target: CompareTarget::Mod as i32,
                key: prefix.to_vec(),
                range_end: end_of(prefix),
                target_union: Some(TargetUnion::ModRevision(revision + 1)),
            };
            vec![absent, unchanged]
        }
    };
    let put = op(Request::RequestPut(put_under(key, value, lease)));
    let read = || op(Request::RequestRange(queue(prefix)));
    let mut success = match condition {
        If::NobodyThere => vec![put],
        If::NoPlace | If::NobodyBut(_) | If::NobodyJoinedSince(_) => vec![put, read()],
    };
    let mut failure = vec![read()];
    if let Some(limit) = limit {
        let read = || op(Request::RequestRange(one(limit)));
        success.push(read());
        failure.push(read());
    }
    TxnRequest { compare, success, failure }
}

/// Whether these keys are still the ones that were created at these revisions, and the limit is the one
/// that was changed at its; if so, the key `first` is read, too.
///
/// A majority is asked: a transaction without such a read may be answered by a member that is behind.
pub(crate) fn unchanged<'a>(
    places: impl Iterator<Item = (&'a [u8], i64)>,
    first: &[u8],
    limit: Option<(&[u8], i64)>,
) -> TxnRequest {
    let limit = limit.map(|(key, changed)| put_at(key, changed));
    TxnRequest {
        compare: places.map(|(key, revision)| created(key, revision)).chain(limit).collect(),
        success: vec![op(Request::RequestRange(one(first)))],
        failure: Vec::new(),
    }
}

fn put_under(key: &[u8], value: &[u8], lease: i64) -> PutRequest {
    PutRequest { key: key.to_vec(), value: value.to_vec(), lease }
}

/// The most operations that a server takes in one transaction, unless configured otherwise.
pub(crate) const MOST_OPS: usize = 128;

/// The members that have to agree to what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// A majority: what has been answered to anybody is seen.
    OfAll,
    /// The member that is asked, which may be behind.
    OfOneMember,
}

/// As it is at the member that is asked, which may be behind.
pub(crate) fn local(read: RangeRequest) -> RangeRequest {
    RangeRequest { serializable: true, ..read }
}

/// What these keys are, without their values, and since 3.7 without their leases. A compare would be less to send, but a transaction
/// that only compares is answered by one member alone.
pub(crate) fn glance<'a>(keys: impl Iterator<Item = &'a [u8]>, freshness: Freshness) -> TxnRequest {
    let serializable = freshness == Freshness::OfOneMember;
    let read = |key| RangeRequest { keys_only: true, serializable, ..one(key) };
    let success = keys.map(|key| op(Request::RequestRange(read(key)))).collect();
    TxnRequest { success, ..TxnRequest::default() }
}

/// What these keys are and hold, as of a revision, or now.
pub(crate) fn values<'a>(keys: impl Iterator<Item = &'a [u8]>, revision: i64) -> TxnRequest {
    let read = |key| RangeRequest { revision, ..one(key) };
    let success = keys.map(|key| op(Request::RequestRange(read(key)))).collect();
    TxnRequest { success, ..TxnRequest::default() }
}

/// What was found by [`glance`], in its order; `None` where there is no such key.
pub(crate) fn found(answer: TxnResponse) -> impl Iterator<Item = Option<KeyValue>> {
    answer.responses.into_iter().map(|op| match op.response {
        Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
        _ => None,
    })
}

/// Deletes the key if it is still the one that was put last at this revision. Of permits the limit is read.
pub(crate) fn delete(key: &[u8], revision: i64, limit: Option<&[u8]>) -> TxnRequest {
    let delete = DeleteRangeRequest { key: key.to_vec(), range_end: Vec::new() };
    let read = limit.map(|limit| op(Request::RequestRange(one(limit))));
    TxnRequest {
        compare: vec![put_at(key, revision)],
        success: [op(Request::RequestDeleteRange(delete))].into_iter().chain(read).collect(),
        failure: Vec::new(),
    }
}

/// Deletes the keys of waiters, if none of these and of the others has been changed since it was
/// created.
pub(crate) fn remove(waiters: &[Place], others: &[&Place]) -> TxnRequest {
    let unchanged = |place: &Place| put_at(&place.key, place.revision);
    let delete = |place: &Place| {
        let key = place.key.clone();
        op(Request::RequestDeleteRange(DeleteRangeRequest { key, range_end: Vec::new() }))
    };
    TxnRequest {
        compare: waiters.iter().chain(others.iter().copied()).map(unchanged).collect(),
        success: waiters.iter().map(delete).collect(),
        failure: Vec::new(),
    }
}

/// Leaves a place in the queue that keeps the key closed until this lease ends.
pub(crate) fn close(key: &[u8], revision: i64, value: &[u8], lease: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![created(key, revision)],
        success: vec![op(Request::RequestPut(put_under(key, value, lease)))],
        failure: Vec::new(),
    }
}

/// The queue that the transaction of [`put`] has read; or, if it has read nothing, what it has put. With
/// the limit, if it has read that.
pub(crate) fn queue_of(
    answer: TxnResponse,
    key: &[u8],
    value: &[u8],
    lease: i64,
    has_limit: bool,
) -> Option<Queue> {
    let (revision, term) = answer.header.as_ref().map(|it| (it.revision, it.raft_term))?;
    let mut responses = answer.responses.into_iter();
    let limit = if has_limit { Some(first_of(responses.next_back()?)?) } else { None };
    let places = match responses.next_back()?.response? {
        Response::ResponseRange(range) => range.kvs,
        Response::ResponsePut(_) => vec![KeyValue {
            key: key.to_vec(),
            create_revision: revision,
            mod_revision: revision,
            value: value.to_vec(),
            lease,
            ..KeyValue::default()
        }],
        Response::ResponseDeleteRange(_) => return None,
    };
    let queue = Queue::new(places, revision).in_term(term);
    Some(match limit {
        Some(limit) => queue.with_limit(limit),
        None => queue,
    })
}

/// The first key that an operation has read.
fn first_of(op: ResponseOp) -> Option<Option<KeyValue>> {
    match op.response? {
        Response::ResponseRange(range) => Some(range.kvs.into_iter().next()),
        _ => None,
    }
}

/// The limit that the transaction of [`delete`] has read, if there is one.
pub(crate) fn limit_in(answer: TxnResponse) -> Option<KeyValue> {
    first_of(answer.responses.into_iter().next_back()?)?
}

/// The queue that a read has found.
pub(crate) fn queue_in(answer: RangeResponse) -> Queue {
    let (revision, term) = answer.header.map_or((0, 0), |it| (it.revision, it.raft_term));
    Queue::new(answer.kvs, revision).in_term(term)
}

fn created(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        key: key.to_vec(),
        range_end: Vec::new(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
    }
}

fn put_at(key: &[u8], revision: i64) -> Compare {
    Compare {
        target: CompareTarget::Mod as i32,
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..created(key, 0)
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}
