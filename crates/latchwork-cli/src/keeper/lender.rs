//! Lending: a `run --inherit` inside runs its command under a hold, and the holder knows of it.
//!
//! A loan is a stream that the borrower and its guardian keep open for as long as the command may run. Until it
//! is closed, the holder does not release the lock. The end of the holder ends the stream on the other side, and
//! so ends the command.

use std::future::pending;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use latchwork_store::Lifeline;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Pid;
use tokio::net::UnixStream;
use tokio::select;

use super::hold_id::{Answer, HoldId, Wish};
use super::requests::{Request, Requests, gone};
use crate::process::hold::Hold;

/// A hold's loans that are not returned yet.
pub(crate) struct Loans {
    lifeline: Option<Lifeline>,
    next: u64,
    out: Vec<Loan>,
    returned: FuturesUnordered<Pin<Box<dyn Future<Output = u64>>>>,
}

struct Loan {
    number: u64,
    key: String,
    borrower: Option<Pid>,
    stream: Rc<UnixStream>,
}

impl Loans {
    /// For a hold of the session that this descriptor keeps alive. Each borrower gets a copy of it, so that the
    /// store does not open the lock before the command has ended.
    pub(crate) fn new(lifeline: Option<Lifeline>) -> Self {
        Self { lifeline, next: 0, out: Vec::new(), returned: FuturesUnordered::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// The borrower of this key, or of any: its process, if that can be seen from here. `None` if nobody
    /// borrows it.
    pub(crate) fn borrower(&self, key: Option<&str>) -> Option<Option<Pid>> {
        let is_of = |loan: &&Loan| key.is_none_or(|key| loan.key == key);
        self.out.iter().find(is_of).map(|loan| loan.borrower)
    }

    /// Answers a request that is about lending, and returns any other.
    pub(crate) fn answer(&mut self, request: Request, hold: &Hold) -> Option<Request> {
        match &request.wish {
            Wish::Held(key) => {
                let answer = hold.terms(key).map_or(Answer::Unknown, Answer::Held);
                request.answer_at_once(&answer);
            }
            Wish::Borrow(key) => match hold.terms(key) {
                Some(_) => self.lend(key.clone(), request),
                None => request.answer_at_once(&Answer::Unknown),
            },
            _ => return Some(request),
        }
        None
    }

    fn lend(&mut self, key: String, request: Request) {
        let borrower = request.from;
        let stream = Rc::new(request.into_stream());
        // The borrower notices that nothing comes.
        if send(&stream, self.lifeline.as_ref()).is_err() {
            return;
        }
        let number = self.next;
        self.next += 1;
        self.out.push(Loan { number, key, borrower, stream: stream.clone() });
        self.returned.push(Box::pin(async move {
            gone(&stream).await;
            number
        }));
    }

    /// Completes when a loan was returned. May be dropped.
    pub(crate) async fn returned(&mut self) {
        match self.returned.next().await {
            Some(number) => self.out.retain(|loan| loan.number != number),
            None => pending().await,
        }
    }

    /// Tells all borrowers that the hold is over.
    pub(crate) fn call_in(&self) {
        for loan in &self.out {
            let _ = loan.stream.try_write(b"over\n");
        }
    }
}

/// Says that the hold is lent, and gives the lifeline along.
fn send(stream: &UnixStream, lifeline: Option<&Lifeline>) -> io::Result<()> {
    let text = Answer::Lent(lifeline.is_some()).write();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    let descriptor = lifeline.map(|lifeline| [lifeline.0.as_fd()]);
    if let Some(descriptor) = &descriptor {
        along.push(SendAncillaryMessage::ScmRights(descriptor));
    }
    sendmsg(stream, &[IoSlice::new(text.as_bytes())], &mut along, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Where a command that holds a lock is asked for it. A keeper has more to answer.
pub(crate) struct Lender {
    pub(crate) id: HoldId,
    pub(crate) loans: Loans,
    requests: Requests,
}

impl Lender {
    /// Listens. `None` where that is not possible: then nobody can run under this hold.
    pub(crate) fn new(lifeline: Option<Lifeline>) -> Option<Self> {
        let id = HoldId::random();
        let requests = Requests::listen(&id).ok()?;
        Some(Self { id, loans: Loans::new(lifeline), requests })
    }

    /// Completes with a request, or when a loan was returned. May be dropped.
    pub(crate) async fn next(&mut self) -> Option<Request> {
        select! {
            request = self.requests.next() => Some(request),
            () = self.loans.returned() => None,
        }
    }
}
