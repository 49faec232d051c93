//! Which message of a server answers which command of a client: without this, the proxy could not
//! put an answer of its own between two of the server's.

use std::collections::{HashSet, VecDeque};

use super::Cut;
use crate::resp::strings;

/// What to do with a message from the server, or in place of one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// It answers a command (or goes on answering it, if not `last`).
    Answer { bytes: &'a [u8], last: bool },
    /// The proxy's own answer, whose turn has come.
    Own(Vec<u8>),
    /// Nobody asked for it.
    Push(&'a [u8]),
    /// It is to be swallowed.
    Lost { last: bool, cut: Option<Cut> },
}

/// An answer that a client waits for.
#[derive(Debug)]
struct Expected {
    kind: Kind,
    /// Set if it is to be swallowed; what then happens to the connection.
    lost: Option<Option<Cut>>,
}

#[derive(Debug)]
enum Kind {
    One,
    Own(Vec<u8>),
    /// One message for each channel; without channels in the command one for each that is
    /// subscribed to, but at least one.
    Confirmations {
        verb: Verb,
        left: Option<usize>,
    },
}

/// A subscribing command, or the opposite of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Verb {
    /// Channels, patterns, or channels of a cluster's slot.
    family: usize,
    on: bool,
}

impl Verb {
    fn of(name: &[u8]) -> Option<Self> {
        let all: [&[u8]; 6] = [
            b"SUBSCRIBE",
            b"UNSUBSCRIBE",
            b"PSUBSCRIBE",
            b"PUNSUBSCRIBE",
            b"SSUBSCRIBE",
            b"SUNSUBSCRIBE",
        ];
        let at = all.iter().position(|verb| verb.eq_ignore_ascii_case(name))?;
        Some(Self { family: at / 2, on: at % 2 == 0 })
    }
}

/// The commands of one connection that wait for answers, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Order {
    waiting: VecDeque<Expected>,
    subscribed: [HashSet<Vec<u8>>; 3],
}

impl Order {
    /// A command is passed on to the server. `lost` says that its answer is to be swallowed.
    pub(super) fn forwarded(&mut self, words: &[&[u8]], lost: Option<Option<Cut>>) {
        let kind = match Verb::of(words[0]) {
            Some(verb) => {
                let channels = words.len() - 1;
                Kind::Confirmations { verb, left: (channels > 0).then_some(channels) }
            }
            None => Kind::One,
        };
        self.waiting.push_back(Expected { kind, lost });
    }

    /// The proxy answers a command itself. Gives the answer back if its turn has come.
    pub(super) fn refused(&mut self, answer: Vec<u8>) -> Option<Vec<u8>> {
        if self.waiting.is_empty() {
            return Some(answer);
        }
        self.waiting.push_back(Expected { kind: Kind::Own(answer), lost: None });
        None
    }

    /// A message came from the server.
    pub(super) fn message<'a>(&mut self, frame: &'a [u8], mut step: impl FnMut(Step<'a>)) {
        let pushed = frame.first() == Some(&b'>');
        let words =
            if matches!(frame.first(), Some(b'*' | b'>')) { strings(frame) } else { Vec::new() };
        let verb = words.first().and_then(|name| Verb::of(name));
        let Some(last) = self.answers(verb, &words, pushed, frame) else {
            self.note(verb, &words);
            return step(Step::Push(frame));
        };
        let lost = match last {
            true => self.waiting.pop_front().and_then(|expected| expected.lost),
            false => self.waiting.front().and_then(|expected| expected.lost),
        };
        step(match lost {
            Some(cut) => Step::Lost { last, cut: cut.filter(|_| last) },
            None => Step::Answer { bytes: frame, last },
        });
        while let Some(Expected { kind: Kind::Own(answer), .. }) = self.waiting.front_mut() {
            step(Step::Own(std::mem::take(answer)));
            self.waiting.pop_front();
        }
    }

    /// Whether a message answers the first waiting command, and if so whether it is the last
    /// one that does.
    fn answers(
        &mut self,
        verb: Option<Verb>,
        words: &[&[u8]],
        pushed: bool,
        frame: &[u8],
    ) -> Option<bool> {
        if let Some(Expected { kind: Kind::Confirmations { verb: asked, .. }, .. }) =
            self.waiting.front()
        {
            if verb == Some(*asked) {
                self.note(verb, words);
                return Some(self.count_down());
            }
            // The whole command is refused.
            return matches!(frame.first(), Some(b'-' | b'!' | b'+')).then_some(true);
        }
        if pushed || (verb.is_some() || is_message(words)) && self.is_subscribed() {
            return None;
        }
        Some(true)
    }

    /// Counts a confirmation; true for the last one of its command.
    fn count_down(&mut self) -> bool {
        let Some(Expected { kind: Kind::Confirmations { verb, left }, .. }) =
            self.waiting.front_mut()
        else {
            return true;
        };
        match left {
            Some(left) => {
                *left -= 1;
                *left == 0
            }
            None => self.subscribed[verb.family].is_empty(),
        }
    }

    /// Keeps the set of channels: also the server itself ends a subscription, when a slot moves.
    fn note(&mut self, verb: Option<Verb>, words: &[&[u8]]) {
        let (Some(verb), Some(channel)) = (verb, words.get(1)) else { return };
        let set = &mut self.subscribed[verb.family];
        if verb.on {
            set.insert(channel.to_vec());
        } else {
            set.remove(*channel);
        }
    }

    fn is_subscribed(&self) -> bool {
        self.subscribed.iter().any(|set| !set.is_empty())
    }
}

fn is_message(words: &[&[u8]]) -> bool {
    let kinds: [&[u8]; 3] = [b"message", b"pmessage", b"smessage"];
    words.first().is_some_and(|kind| kinds.contains(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of messages, one letter each: a answer, c one of several, o own, p push, l lost.
    fn letters(order: &mut Order, frames: &[&str]) -> String {
        let mut seen = String::new();
        for frame in frames {
            order.message(frame.as_bytes(), |step| {
                seen.push(match step {
                    Step::Answer { last: true, .. } => 'a',
                    Step::Answer { last: false, .. } => 'c',
                    Step::Own(_) => 'o',
                    Step::Push(_) => 'p',
                    Step::Lost { .. } => 'l',
                });
            });
        }
        seen
    }

    #[test]
    fn own_answers_wait_for_their_turn() {
        let mut order = Order::default();
        assert_eq!(order.refused(b"-no\r\n".to_vec()), Some(b"-no\r\n".to_vec()));
        order.forwarded(&[b"GET", b"a"], None);
        assert_eq!(order.refused(b"-1\r\n".to_vec()), None);
        assert_eq!(order.refused(b"-2\r\n".to_vec()), None);
        order.forwarded(&[b"GET", b"b"], None);
        assert_eq!(letters(&mut order, &[">1\r\n+x\r\n", "$-1\r\n", "$-1\r\n"]), "paooa");
    }

    #[test]
    fn subscription_confirmations_count_as_answers() {
        for sign in ["*", ">"] {
            let mut order = Order::default();
            let confirm = |verb: &str, channel: &str| {
                format!("{sign}3\r\n${}\r\n{verb}\r\n$1\r\n{channel}\r\n:1\r\n", verb.len())
            };
            let message = format!("{sign}3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n");
            order.forwarded(&[b"SUBSCRIBE", b"a", b"b"], None);
            order.forwarded(&[b"UNSUBSCRIBE"], None);
            order.forwarded(&[b"PING"], None);
            let on = [&confirm("subscribe", "a"), &message, &confirm("subscribe", "b")];
            let off = [&confirm("unsubscribe", "a"), &confirm("unsubscribe", "b")];
            let frames: Vec<&str> = on.into_iter().chain(off).map(String::as_str).collect();
            assert_eq!(letters(&mut order, &frames), "cpaca", "{sign}");
            assert_eq!(letters(&mut order, &["+PONG\r\n"]), "a", "{sign}");
        }
    }

    #[test]
    fn unsubscribing_from_nothing_is_confirmed_once() {
        let mut order = Order::default();
        order.forwarded(&[b"unsubscribe"], None);
        order.forwarded(&[b"LRANGE", b"k", b"0", b"-1"], None);
        let frames = ["*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n", "*1\r\n$7\r\nmessage\r\n"];
        assert_eq!(letters(&mut order, &frames), "aa");
    }

    #[test]
    fn a_refused_subscription_is_answered_once() {
        let mut order = Order::default();
        order.forwarded(&[b"SUBSCRIBE", b"a", b"b"], None);
        order.forwarded(&[b"GET", b"a"], Some(None));
        assert_eq!(letters(&mut order, &["-NOPERM\r\n", "$-1\r\n"]), "al");
    }
}
