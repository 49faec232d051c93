//! A fault that is made again and again until its window ends.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use latchwork_services::{Error, Result};

use crate::faults::Nemesis;
use crate::luck::Luck;

type Action = Arc<dyn Fn(&mut Luck) -> Result<()> + Send + Sync>;

/// Makes a fault that mends itself, pauses, and makes it again, in a thread of its own. `heal`
/// waits until the one under way is mended.
pub(crate) struct Repeated {
    name: &'static str,
    pause: Range<Duration>,
    action: Action,
    under_way: Option<(Sender<()>, JoinHandle<Result<()>>)>,
}

impl Repeated {
    pub(crate) fn boxed(
        name: &'static str,
        pause: Range<Duration>,
        action: impl Fn(&mut Luck) -> Result<()> + Send + Sync + 'static,
    ) -> Box<dyn Nemesis> {
        Box::new(Self { name, pause, action: Arc::new(action), under_way: None })
    }
}

impl Nemesis for Repeated {
    fn name(&self) -> &str {
        self.name
    }

    fn strike(&mut self, luck: &mut Luck) -> io::Result<()> {
        let (stop, stopped) = channel();
        let (action, pause, mut luck) = (self.action.clone(), self.pause.clone(), luck.part());
        #[expect(clippy::disallowed_methods, reason = "breaks servers, no part of a lock")]
        let thread = std::thread::spawn(move || {
            loop {
                action(&mut luck)?;
                let rest = pause.start + luck.times(pause.end - pause.start, 0.0..1.0);
                if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                    return Ok(());
                }
            }
        });
        self.under_way = Some((stop, thread));
        Ok(())
    }

    fn heal(&mut self) -> io::Result<()> {
        let Some((stop, thread)) = self.under_way.take() else { return Ok(()) };
        // A thread that has failed does not listen; its result says so.
        let _ = stop.send(());
        Ok(thread.join().unwrap_or_else(|_| Err(Error::new("the fault's thread panicked")))?)
    }
}

/// A range of lengths in milliseconds.
pub(crate) fn millis(from: u64, to: u64) -> Range<Duration> {
    Duration::from_millis(from)..Duration::from_millis(to)
}
