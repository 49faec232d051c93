//! The words on the pipe from latchwork (and the command before its exec) to the guardian.

use latchwork_store::Moment;

/// Bytes of one frame: a tag and a number. Far below `PIPE_BUF`, so a write is all or nothing and
/// the frames of two writers do not mix.
pub(crate) const FRAME: usize = 9;

/// A message to the guardian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The command's process group. Written by the command itself before its exec.
    Group(i32),
    /// The command must be dead by this moment unless a later frame moves it.
    KillAt(Moment),
    /// The command has ended, or never began: leave.
    Done,
}

impl Frame {
    /// The bytes of the frame. Allocates nothing: it is called between fork and exec.
    pub(crate) fn encode(self) -> [u8; FRAME] {
        let (tag, number) = match self {
            Frame::Group(pid) => (b'g', u64::from(pid.unsigned_abs())),
            Frame::KillAt(at) => (b'k', at.as_nanos()),
            Frame::Done => (b'd', 0),
        };
        let mut bytes = [tag; FRAME];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// Reads one frame; `None` for anything else.
    pub(crate) fn decode(bytes: &[u8; FRAME]) -> Option<Self> {
        let [tag, number @ ..] = *bytes;
        let number = u64::from_le_bytes(number);
        match tag {
            b'g' => i32::try_from(number).ok().filter(|&pid| pid > 1).map(Frame::Group),
            b'k' => Some(Frame::KillAt(Moment::from_nanos(number))),
            b'd' => Some(Frame::Done),
            _ => None,
        }
    }
}

/// The guardian's word that it stands by itself.
pub(crate) const READY: u8 = b'R';

/// The guardian's word that it killed the command because its validity ran out.
pub(crate) const KILLED: u8 = b'K';

/// The guardian's word that it ends, before the reason as text.
pub(crate) const FAILED: u8 = b'F';

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were() {
        for frame in [Frame::Group(4711), Frame::KillAt(Moment::from_nanos(1 << 60)), Frame::Done] {
            assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }
    }

    #[test]
    fn process_groups_0_and_1_are_refused() {
        // kill(-1) reaches every process, kill(0) the caller's own group.
        assert_eq!(Frame::decode(&Frame::Group(0).encode()), None);
        assert_eq!(Frame::decode(&Frame::Group(1).encode()), None);
        assert_eq!(Frame::decode(b"x00000000"), None);
    }
}
