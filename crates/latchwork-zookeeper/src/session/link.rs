//! One connection of a session: what is to be written, and who waits for which answer.

use std::collections::VecDeque;

use latchwork_core::{BackendError, Moment};
use tokio::sync::oneshot;

use super::messages::Request;
use super::{Flight, Landed, Reply};

/// A connection: what is to be written, and who waits for which answer.
pub(super) struct Link {
    pub(super) out: Vec<u8>,
    next: i32,
    sent: VecDeque<Sent>,
}

/// A flight on its way.
struct Sent {
    first: i32,
    writes: Vec<bool>,
    replies: Vec<Reply>,
    at: Moment,
    answer: Option<oneshot::Sender<Landed>>,
    is_pulse: bool,
}

impl Link {
    pub(super) fn new() -> Self {
        Self { out: Vec::new(), next: 1, sent: VecDeque::new() }
    }

    pub(super) fn take(&mut self, flight: Flight, now: Moment) {
        self.push(flight, now, false);
    }

    pub(super) fn send_pulse(&mut self, pulse: &str, now: Moment) {
        let flight = Flight { requests: vec![Request::set(pulse)], answer: None };
        self.push(flight, now, true);
    }

    fn push(&mut self, flight: Flight, now: Moment, is_pulse: bool) {
        let Flight { requests, answer } = flight;
        // Whoever has asked may have given up since.
        if answer.as_ref().is_some_and(oneshot::Sender::is_closed) {
            return;
        }
        if requests.is_empty() {
            return land(answer, Vec::new(), None);
        }
        let first = self.next;
        for request in &requests {
            request.write(self.next, &mut self.out);
            self.next = self.next.checked_add(1).unwrap_or(1);
        }
        let writes = requests.iter().map(Request::is_write).collect::<Vec<_>>();
        let replies = Vec::with_capacity(writes.len());
        self.sent.push_back(Sent { first, writes, replies, at: now, answer, is_pulse });
    }

    pub(super) fn oldest(&self) -> Option<Moment> {
        self.sent.front().map(|sent| sent.at)
    }

    /// Takes the answer with this number; tells when a write was sent that has been answered.
    pub(super) fn answer(&mut self, number: i32, reply: Reply) -> Result<Option<Moment>, String> {
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
        let proves = sent.writes[place] && reply.is_ok();
        sent.replies.push(reply);
        Ok(proves.then_some(sent.at))
    }

    /// Tells the asker of the first flight, if it is complete.
    pub(super) fn land_front(&mut self) {
        let is_complete = |sent: &Sent| sent.replies.len() == sent.writes.len();
        if self.sent.front().is_some_and(is_complete)
            && let Some(sent) = self.sent.pop_front()
        {
            land(sent.answer, sent.replies, None);
        }
    }

    /// The connection is gone: nobody gets another answer.
    pub(super) fn fail(&mut self, why: &BackendError) {
        for sent in self.sent.drain(..) {
            land(sent.answer, sent.replies, Some(why.clone()));
        }
    }
}

pub(super) fn land(
    answer: Option<oneshot::Sender<Landed>>,
    replies: Vec<Reply>,
    trouble: Option<BackendError>,
) {
    if let Some(answer) = answer {
        // Nobody listens if the asker was dropped.
        let _ = answer.send(Landed { replies: replies.into_iter(), trouble });
    }
}
