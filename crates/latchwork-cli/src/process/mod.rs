//! The command's processes: its group, the guardian beside it, the terminal and the signals.
//!
//! `run` promises that the command's whole process group is dead before the lease can pass on,
//! whatever happens to latchwork itself. Three processes keep it:
//!
//! | process | group | what ends it |
//! | --- | --- | --- |
//! | latchwork | the shell's job | its own work; anything that kills it |
//! | guardian | a session of its own | "done" or the end of the pipe from latchwork |
//! | the command | a group of its own, on the terminal the foreground one | itself, latchwork, or the guardian |
//!
//! The guardian holds what keeps the backend's session alive, so a killed latchwork does not open
//! the lock before the guardian has ended the command. So it does with what has left the group ([`strays`]),
//! but for a daemon: a process in another session whose parent has ended.

pub(crate) mod child;
pub(crate) mod deadlines;
pub(crate) mod frames;
pub(crate) mod group;
pub(crate) mod guardian;
pub(crate) mod guardian_main;
pub(crate) mod hold;
pub(crate) mod name;
pub(crate) mod reaper;
pub(crate) mod signals;
mod start;
pub(crate) mod stat;
pub(crate) mod strays;
pub(crate) mod supervise;
pub(crate) mod terminal;
pub(crate) mod timer;
