//! How long a session is certain to be alive, as the answers so far prove.
//!
//! A server tells the leader of the sessions it has heard from only when the leader pings it, each
//! half tick; a server that is cut off goes on answering reads and pings of clients while the leader
//! ends their sessions. So only answers of a majority count, that is: to writes.
//!
//! Let a write be sent at `s`, and let an earlier one have been sent at `a` and answered by `s`, on
//! the same connection. The leader sent its last ping before the answer to the earlier write at most
//! half a tick before `a`, and the server got both in that order. So it had answered the ping when it
//! answered us, and it told then of everything that it had heard from us. That reached the leader
//! before the write of `s` did. Whatever was answered by `a - tick/2` had been heard then; so the
//! session was touched at the leader no earlier than the last such request was *sent*, and it lives
//! for its whole timeout from then. A tick is at most half of the shortest session.
//!
//! A hello goes to the leader itself: a session that was made or resumed lives for its timeout from
//! when that was sent. What was answered on an earlier connection does not count: that server may
//! never have told of it.
//!
//! The leader counts on while this machine is paused. The boot clock of a virtual machine is stopped
//! then, and its wall clock is set right afterwards. So what was sent before a pause is as old as the
//! clock says that ran on ([`Reading`]).

use std::collections::VecDeque;
use std::time::Duration;

use latchwork_store::{Io, Moment, validity};

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// By the boot clock.
    pub(crate) at: Moment,
    /// Wall minus boot time, in nanoseconds.
    offset: i64,
}

impl Reading {
    /// Reads the clocks.
    pub(crate) fn now(io: &Io) -> Self {
        let at = io.now();
        Self { at, offset: validity::wall_offset(io.clock().wall(), at) }
    }

    /// The time since `earlier`, by the clock that has run on for longer: the wall clock where the
    /// machine was paused in between. A wall clock that was set forward looks the same, and one
    /// that was set back changes nothing.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.at.since(earlier.at).saturating_add(self.stood_still_since(earlier))
    }

    /// How much less than the wall clock the boot clock has run since `earlier`.
    pub(crate) fn stood_still_since(self, earlier: Self) -> Duration {
        let nanos = self.offset.saturating_sub(earlier.offset);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

/// A write that was answered.
#[derive(Debug, Clone, Copy)]
struct AnsweredWrite {
    sent: Reading,
    at: Moment,
}

/// What the answers on one connection prove.
#[derive(Debug)]
pub(crate) struct Proof {
    timeout: Duration,
    hello: Reading,
    /// In order; those that cannot matter any more have left.
    writes: VecDeque<AnsweredWrite>,
    last: Option<AnsweredWrite>,
}

impl Proof {
    /// A session was made or resumed by a hello that was sent at this moment.
    pub(crate) fn new(timeout: Duration, hello: Reading) -> Self {
        Self { timeout, hello, writes: VecDeque::new(), last: None }
    }

    /// A write that was sent then has been answered now.
    pub(crate) fn answered(&mut self, sent: Reading, now: Moment) {
        let write = AnsweredWrite { sent, at: now };
        self.last = Some(write);
        // As many as are needed to be exact to a small part of the timeout.
        let step = self.timeout / 128;
        if self.writes.back().is_none_or(|back| back.sent.at.plus(step) <= sent.at) {
            self.writes.push_back(write);
        }
        // What is older than the timeout proves nothing to anybody.
        let heard_by = sent.at.minus(self.timeout);
        while self.writes.get(1).is_some_and(|next| next.at <= heard_by) {
            self.writes.pop_front();
        }
    }

    /// When the last write that was answered was sent, and for how long from then on the session
    /// certainly lives.
    pub(crate) fn proven(&self) -> (Reading, Duration) {
        let sent = self.last.map_or(self.hello, |write| write.sent);
        (sent, self.lives_for(sent))
    }

    /// For how long from `sent` on the session certainly lives, if a write that was sent at that
    /// moment is answered.
    pub(crate) fn lives_for(&self, sent: Reading) -> Duration {
        let earlier = self.writes.iter().chain(&self.last).filter(|write| write.at <= sent.at);
        let heard_by =
            earlier.map(|write| write.sent.at).max().map(|at| at.minus(self.timeout / 4));
        let heard = heard_by.and_then(|by| {
            let heard = self.writes.iter().filter(|write| write.at <= by);
            heard.map(|write| write.sent).max_by_key(|sent| sent.at)
        });
        let touched = heard.filter(|heard| heard.at > self.hello.at).unwrap_or(self.hello);
        self.timeout.saturating_sub(sent.since(touched))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_600;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    /// As long as the machine runs.
    fn sent(ms: u64) -> Reading {
        Reading { at: at(ms), offset: 77 }
    }

    /// After pauses of so long together.
    fn sent_after_a_pause(ms: u64, pause: i64) -> Reading {
        Reading { at: at(ms), offset: 77 + pause * 1_000_000 }
    }

    fn ms(length: Duration) -> u64 {
        length.as_millis() as u64
    }

    fn proof() -> Proof {
        Proof::new(Duration::from_millis(T), sent(0))
    }

    #[test]
    fn a_login_gets_the_whole_timeout() {
        let proof = proof();
        assert_eq!(ms(proof.lives_for(sent(10))), T - 10);
        assert_eq!(ms(proof.lives_for(sent(2 * T))), 0);
    }

    #[test]
    fn a_steady_heart_beat_proves_three_fifths() {
        let mut proof = proof();
        for beat in 1..200 {
            let then = beat * T / 16;
            let most = if beat < 100 { 4 } else { 20 };
            proof.answered(sent(then), at(then + most));
            // The worst moment is just before the next one.
            let left = ms(proof.lives_for(sent(then + T / 16 - 1)));
            assert!(left >= T * 3 / 5, "{left} after beat {beat}");
            assert!(left <= T * 3 / 4 || beat < 8, "{left}: what is not proven is not told");
        }
        assert!(proof.writes.len() < 140);
    }

    /// H67, H74: what a server hears while it is cut off proves nothing, nor does the first answer
    /// after that, which may have overtaken the news of us.
    #[test]
    fn a_time_without_answers_counts_in_full() {
        let mut proof = proof();
        for beat in 1..=32 {
            proof.answered(sent(beat * 100), at(beat * 100 + 1));
        }
        // Cut off from 3,201 to 4,000: heart-beats are sent, and all are answered at the end.
        for then in [3_300, 3_400, 3_500, 3_600, 3_700, 3_800, 3_900] {
            proof.answered(sent(then), at(4_001));
        }
        let left = ms(proof.lives_for(sent(4_000)));
        // The leader may have heard of us last by what was answered by 2,800.
        assert!(left <= 2_700 + T - 4_000, "{left}");
        assert!(left + 200 >= 2_700 + T - 4_000, "{left}");
        // A later write confirms what was answered at 4,001.
        let left = ms(proof.lives_for(sent(4_002)));
        assert!(left <= T - 500, "{left}");
    }

    /// What is believed without a write of one's own counts from the last one that was answered.
    #[test]
    fn proof_counts_from_the_last_acknowledged_write() {
        let mut proof = proof();
        assert_eq!(proof.proven(), (sent(0), Duration::from_millis(T)), "a hello proves as well");
        for beat in 1..=32 {
            proof.answered(sent(beat * 100), at(beat * 100 + 1));
        }
        let (last, length) = proof.proven();
        assert_eq!(last, sent(3_200));
        assert_eq!(length, proof.lives_for(sent(3_200)));
        assert!(ms(length) < T, "the leader may have heard of us earlier");
        // Two that are under way together confirm each other as little.
        proof.answered(sent(3_210), at(3_400));
        proof.answered(sent(3_211), at(3_401));
        let (last, length) = proof.proven();
        assert!(last.at.plus(length) <= at(3_201 + T - T / 4), "{last:?} {length:?}");
    }

    #[test]
    fn a_paused_holder_proves_less_validity() {
        let mut proof = proof();
        for beat in 1..=32 {
            proof.answered(sent(beat * 100), at(beat * 100 + 1));
        }
        let left = ms(proof.lives_for(sent(3_200 + 800)));
        assert!(left <= T - 800 - T / 4, "{left}");
    }

    #[test]
    fn an_unread_answer_confirms_nothing() {
        let mut proof = proof();
        for beat in 1..=32 {
            proof.answered(sent(beat * 100), at(beat * 100 + 1));
        }
        let before = proof.lives_for(sent(3_250));
        proof.answered(sent(3_240), at(3_260));
        assert_eq!(proof.lives_for(sent(3_250)), before);
    }

    /// H86: the leader has heard nothing while the machine was paused, though the boot clock shows
    /// that all was answered a moment ago.
    #[test]
    fn h86_answers_before_a_pause_age_by_the_wall_clock() {
        const PAUSE: i64 = 900;
        let mut proof = proof();
        for beat in 1..=32 {
            proof.answered(sent(beat * 100), at(beat * 100 + 1));
        }
        let before = ms(proof.lives_for(sent(3_250)));
        let after = sent_after_a_pause(3_250, PAUSE);
        assert_eq!(ms(proof.lives_for(after)), before - PAUSE as u64);
        proof.answered(after, at(3_260));
        assert_eq!(ms(proof.proven().1), before - PAUSE as u64);
        // A longer one leaves nothing, and a wall clock that is set back no more than before.
        assert_eq!(ms(proof.lives_for(sent_after_a_pause(3_270, 26_000))), 0);
        let back = proof.lives_for(sent_after_a_pause(3_250, -26_000));
        assert_eq!(ms(back), before);
        // As soon as the heart-beats after it prove enough, it is forgotten.
        for beat in 33..=64 {
            proof.answered(sent_after_a_pause(beat * 100, PAUSE), at(beat * 100 + 1));
        }
        assert_eq!(ms(proof.lives_for(sent_after_a_pause(6_450, PAUSE))), before);
    }

    #[test]
    fn a_login_before_a_pause_ages_by_the_wall_clock() {
        let proof = proof();
        assert_eq!(ms(proof.lives_for(sent_after_a_pause(10, 1_000))), T - 1_010);
    }
}
