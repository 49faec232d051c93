//! The terminal: lent to the command, reclaimed, and left as it was found.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::{Pid, getpgrp, getpid};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::group::Group;

/// The controlling terminal of this process.
///
/// While latchwork's group is the foreground one, the command is lent the terminal, so that
/// Ctrl-C, Ctrl-Z, reading and full-screen programs work as if latchwork were not there. If other
/// processes share latchwork's group (a pipeline, a script), they need the terminal too: then it is
/// lent only when the command asks for it by reading it (SIGTTIN) or setting it (SIGTTOU), and
/// until then Ctrl-C reaches the command through latchwork. The same goes for a running background
/// job that `fg` brings to the front, which nobody tells it, and for a task of `once`, which is not done if a
/// Ctrl-C has cut it short.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own: Pid,
    found: Option<Termios>,
    lent: bool,
    /// Whether the command asked for a terminal that was not lent to it at once.
    wanted: bool,
    /// Whether it is lent only to a command that asks for it.
    on_request: bool,
}

impl Terminal {
    /// The controlling terminal, if there is one. It may be lent `on_request` only, so that latchwork knows of a
    /// Ctrl-C.
    pub(crate) fn open(on_request: bool) -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        let found = tcgetattr(&tty).ok();
        Some(Self { tty, own: getpgrp(), found, lent: false, wanted: false, on_request })
    }

    /// Whether others share latchwork's process group.
    pub(crate) fn is_shared(&self) -> bool {
        Group(self.own).has_others_than(getpid())
    }

    /// Whether nobody is left who could continue latchwork's process group after a stop.
    pub(crate) fn is_orphaned(&self) -> bool {
        Group(self.own).is_orphaned()
    }

    /// Whether latchwork's group is the one in the foreground.
    pub(crate) fn in_foreground(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == self.own)
    }

    /// The terminal to start the command with, if it is lent at once.
    pub(crate) fn lend_at_start(&mut self) -> Option<BorrowedFd<'_>> {
        self.lent = self.may_lend();
        self.lent.then(|| self.tty.as_fd())
    }

    fn may_lend(&self) -> bool {
        self.in_foreground()
            && (self.wanted
                || (!self.on_request
                    && stdin().is_terminal()
                    && stdout().is_terminal()
                    && !self.is_shared()))
    }

    /// Lends the terminal to the command if that is right now: after latchwork was continued, or
    /// because the command was stopped for `wanting` it. Says whether the command has it now.
    pub(crate) fn lend(&mut self, group: Group, wanting: bool) -> bool {
        self.wanted |= wanting;
        // Again when it asks although it has it: another group may have been put in front since.
        if (!self.lent && self.may_lend()) || (self.lent && wanting) {
            self.lent = tcsetpgrp(&self.tty, group.0).is_ok();
        }
        self.lent
    }

    /// Whether the command has the terminal.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Takes the terminal back.
    pub(crate) fn take_back(&mut self) {
        if std::mem::take(&mut self.lent) {
            let _ = tcsetpgrp(&self.tty, self.own);
        }
    }

    /// Puts the terminal's modes back after a command that was killed in the middle of its work.
    pub(crate) fn restore_modes(&self) {
        if let Some(found) = &self.found
            && self.in_foreground()
        {
            let _ = tcsetattr(&self.tty, OptionalActions::Drain, found);
        }
    }
}
