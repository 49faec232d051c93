//! ZooKeeper's messages: which is which, and which answer a client waits for.

use std::collections::VecDeque;
use std::io;

use super::Cut;

/// No message is longer.
const LONGEST: usize = 256 << 20;
/// The number of messages that nobody asked for.
const NEWS: i32 = -1;

/// Whole messages out of bytes.
#[derive(Debug, Default)]
pub(super) struct Frames(Vec<u8>);

impl Frames {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// The next message, with its length in front.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(length) = self.0.first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((self.0.len() >= length + 4).then(|| self.0.drain(..length + 4).collect()))
    }
}

/// What one connection has said.
#[derive(Debug, Default)]
pub(super) struct Talk {
    pub(super) requests: Frames,
    pub(super) answers: Frames,
    greeted: bool,
    welcomed: bool,
    /// For each request without answer: whether that is to be swallowed, and what happens then.
    waiting: VecDeque<Option<Option<Cut>>>,
}

/// What a message from the server is.
pub(super) enum Said {
    Answer,
    News,
    Lost(Option<Cut>),
}

impl Talk {
    /// The name of a request.
    pub(super) fn name(&mut self, frame: &[u8]) -> String {
        if !std::mem::replace(&mut self.greeted, true) {
            return "HELLO".into();
        }
        let watches = frame.last() == Some(&1);
        let name = match number_at(frame, 8) {
            1 | 15 => "CREATE",
            2 => "DELETE",
            3 => "EXISTS",
            4 if watches => "WATCH",
            4 => "GET",
            5 => "SET",
            8 | 12 => "CHILDREN",
            11 => "PING",
            14 => "MULTI",
            18 => "UNWATCH",
            19 => "CONTAINER",
            100 => "AUTH",
            -11 => "CLOSE",
            other => return other.to_string(),
        };
        name.into()
    }

    pub(super) fn forwarded(&mut self, lost: Option<Option<Cut>>) {
        self.waiting.push_back(lost);
    }

    /// A message came from the server.
    pub(super) fn said(&mut self, frame: &[u8]) -> Said {
        let is_welcome = !std::mem::replace(&mut self.welcomed, true);
        if !is_welcome && number_at(frame, 4) == NEWS {
            return Said::News;
        }
        match self.waiting.pop_front().flatten() {
            Some(cut) => Said::Lost(cut),
            None => Said::Answer,
        }
    }
}

fn number_at(frame: &[u8], at: usize) -> i32 {
    let bytes = frame.get(at..).and_then(|rest| rest.first_chunk::<4>());
    bytes.map_or(0, |bytes| i32::from_be_bytes(*bytes))
}
