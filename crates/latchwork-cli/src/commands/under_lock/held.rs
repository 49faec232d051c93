//! A command's life under a lock that is held: guardian, child, and the loop that watches both.

use std::ffi::OsString;
use std::os::fd::AsFd;

use latchwork::LockManager;
use latchwork_store::clock::boot_time;
use rustix::io::Errno;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{Failed, Task};
use crate::commands::around::{self, Mine};
use crate::commands::variables;
use crate::keeper::lender::Lender;
use crate::keeper::loan::Loan;
use crate::news::Heard;
use crate::process::child::{Child, Start};
use crate::process::deadlines::Deadlines;
use crate::process::guardian::{Guardian, Left};
use crate::process::hold::Hold;
use crate::process::signals::{Mask, Signals};
use crate::process::strays::Strays;
use crate::process::supervise::{Asked, Ended, Run, State};
use crate::process::terminal::Terminal;
use crate::process::timer::Naps;

/// A run that holds its lock.
pub(super) struct RunUnderLock<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) manager: &'a LockManager,
    pub(super) hold: &'a Hold,
    pub(super) holder: &'a str,
    pub(super) mask: Mask,
}

impl RunUnderLock<'_> {
    /// Starts guardian and command, and returns when the command has ended and the lock may go.
    pub(super) async fn run(
        &self,
        signals: &mut Signals,
        heard: &mut UnboundedReceiver<Heard>,
        mut terminal: Option<&mut Terminal>,
        asked: &mut Asked,
        left: &mut Option<Left>,
    ) -> Result<Ended, Failed> {
        signals.add_children()?;
        let naps = Naps::new()?;
        let deadlines = Deadlines::new(boot_time(), self.task.max_hold);
        let lifeline = self.manager.lifeline();
        // What is borrowed is lent by its holder.
        let lender = match self.hold.is_borrowed() {
            true => None,
            false => Lender::new(lifeline.clone()),
        };
        let lifeline = lifeline.as_ref().map(|lifeline| lifeline.0.as_fd());
        let kept = lifeline.into_iter().chain(self.hold.loans().iter().flat_map(Loan::descriptors));
        // Before the guardian is there: until it has a session of its own, it looks like one who shares the
        // terminal.
        let lent = terminal.as_deref_mut().and_then(Terminal::lend_at_start);
        let mark = lender.as_ref().map(|lender| lender.id.as_str().to_owned());
        let strays = || Strays::new(mark.as_deref());
        let guardian =
            Guardian::start(kept, strays()).map_err(|error| Failed::no_guardian(&error))?;
        let due = deadlines.due(self.hold.ttl(), self.hold.valid_until());
        guardian.kill_at(due.guardian);
        let child = Child::start(Start {
            words: self.task.command,
            environment: self.environment(lender.as_ref()),
            guardian: &guardian,
            terminal: lent,
            mask: self.mask,
            not_after: due.ask,
        });
        guardian.started()?;
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                let failed = match error.raw_os_error() == Some(Errno::CHILD.raw_os_error()) {
                    true => Failed::unguarded(&guardian.last_words(), false),
                    false => Failed::start(self.task.command, &error),
                };
                *left = Some(guardian.done(None));
                return Err(failed);
            }
        };
        let mut run = Run {
            hold: self.hold,
            child: &child,
            guardian: &guardian,
            signals,
            terminal,
            deadlines,
            output: &self.task.place.output,
            heard,
            lender,
            naps,
            told: due.guardian,
            strays: strays(),
            state: State::default(),
        };
        let ended = run.supervise().await;
        *asked = run.state.asked;
        // If watching failed, the guardian is left to end the group.
        let ended = ended?;
        let words = guardian.last_words();
        *left = Some(guardian.done(Some(child)));
        match ended {
            Ended::Unguarded if !words.is_empty() => Err(Failed::unguarded(&words, true)),
            ended => Ok(ended),
        }
    }

    fn environment(&self, lender: Option<&Lender>) -> Vec<(&'static str, Option<OsString>)> {
        let Task { place, lock_delay, .. } = *self.task;
        let lender = lender.map(|lender| &lender.id);
        let mine = Mine { holder: self.holder, lender, is_of_shell: false, lock_delay };
        let held = around::with(place, self.hold, &mine);
        let floor = place.token_floor.map(|floor| floor.to_string().into());
        let lock = [
            (around::KEY, Some(self.hold.keys().into())),
            (around::TOKEN, Some(self.hold.tokens().into())),
            (around::HELD, Some(held.into())),
        ];
        let floor = floor.map(|floor| (variables::TOKEN_FLOOR, Some(floor)));
        lock.into_iter().chain(floor).chain(place.store.environment()).collect()
    }
}
