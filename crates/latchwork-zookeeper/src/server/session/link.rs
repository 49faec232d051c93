//! One connection of a session: the requests to write, and the callers that wait for answers.

use std::collections::VecDeque;

use latchwork_store::{BackendError, Moment};
use tokio::sync::oneshot;

use super::messages::Request;
use super::proof::Reading;
use super::{Flight, Landed, Reply};

/// A connection: what is to be written, and who waits for which answer.
pub(super) struct Link {
    pub(super) out: Vec<u8>,
    next: i32,
    sent: VecDeque<Sent>,
}

/// Where the answers of a flight go.
type Answer = oneshot::Sender<Landed>;

/// What an answer tells beside what was asked.
pub(super) enum Learnt {
    /// A write that was sent then has been agreed on.
    Write(Reading),
    /// The server watches this node.
    Watch(Box<str>),
}

/// A flight on its way.
struct Sent {
    first: i32,
    requests: Vec<Request>,
    replies: Vec<Reply>,
    at: Reading,
    answer: Option<Answer>,
    is_pulse: bool,
}

impl Link {
    pub(super) fn new() -> Self {
        Self { out: Vec::new(), next: 1, sent: VecDeque::new() }
    }

    pub(super) fn take(&mut self, flight: Flight, now: Reading) {
        self.push(flight, now, false);
    }

    /// The same for a write of the session's node: a connection is of no use if that is refused.
    pub(super) fn take_pulse(&mut self, flight: Flight, now: Reading) {
        self.push(flight, now, true);
    }

    fn push(&mut self, flight: Flight, now: Reading, is_pulse: bool) {
        if !flight.is_awaited() {
            return;
        }
        let Flight { requests, answer } = flight;
        if requests.is_empty() {
            return land(answer, Vec::new(), None);
        }
        let first = self.next;
        for request in &requests {
            request.write(self.next, &mut self.out);
            self.next = self.next.checked_add(1).unwrap_or(1);
        }
        let replies = Vec::with_capacity(requests.len());
        self.sent.push_back(Sent { first, requests, replies, at: now, answer, is_pulse });
    }

    pub(super) fn oldest(&self) -> Option<Moment> {
        self.sent.front().map(|sent| sent.at.at)
    }

    /// Takes the answer with this number.
    pub(super) fn answer(&mut self, number: i32, reply: Reply) -> Result<Option<Learnt>, String> {
        let Some(sent) = self.sent.front_mut() else {
            return Err("an answer that nobody asked for".into());
        };
        let place = sent.replies.len();
        let mut expected = sent.first;
        for _ in 0..place {
            expected = expected.checked_add(1).unwrap_or(1);
        }
        if number != expected {
            return Err("an answer to another request".into());
        }
        if sent.is_pulse
            && let Err(refusal) = reply
        {
            return Err(format!("the node of the session: error {}", refusal.0));
        }
        let learnt = match &sent.requests[place] {
            request if request.is_write() => reply.is_ok().then_some(Learnt::Write(sent.at)),
            request => request
                .watched(reply.as_ref().err().copied())
                .map(|path| Learnt::Watch(path.into())),
        };
        sent.replies.push(reply);
        Ok(learnt)
    }

    /// Takes the first flight if all its answers are there, to be passed to its asker.
    pub(super) fn landed(&mut self) -> Option<(Answer, Vec<Reply>)> {
        let is_complete = |sent: &Sent| sent.replies.len() == sent.requests.len();
        if !self.sent.front().is_some_and(is_complete) {
            return None;
        }
        let sent = self.sent.pop_front()?;
        Some((sent.answer?, sent.replies))
    }

    /// The connection is gone: nobody gets another answer.
    pub(super) fn fail(&mut self, why: &BackendError) {
        for sent in self.sent.drain(..) {
            land(sent.answer, sent.replies, Some(why.clone()));
        }
    }
}

pub(super) fn land(answer: Option<Answer>, replies: Vec<Reply>, trouble: Option<BackendError>) {
    if let Some(answer) = answer {
        // Nobody listens if the asker was dropped.
        let _ = answer.send(Landed { replies: replies.into_iter(), trouble });
    }
}
