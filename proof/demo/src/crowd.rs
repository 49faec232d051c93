//! All buyers of a scene: started, heard, spoken to, stopped.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::task::Poll;
use std::time::Duration;

use latchwork::LockManager;
use latchwork_store::clock::boot_time;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep;

use crate::buyer::{Buyer, Channels};
use crate::buyer_main::ROLE;
use crate::shop::Shop;
use crate::words::{Event, GO, Invitation, Order, Said};

/// The buyers of one scene.
pub(crate) enum Crowd<'a> {
    Processes(Processes),
    Tasks(Tasks<'a>),
}

impl Crowd<'_> {
    /// What is said next; `None` when everybody has gone.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Said>> {
        match self {
            Self::Processes(all) => all.next().await,
            Self::Tasks(all) => Ok(all.next().await),
        }
    }

    /// Lets a buyer go in, or on.
    pub(crate) fn go(&mut self, buyer: u32) -> io::Result<()> {
        match self {
            Self::Processes(all) => all.go(buyer),
            Self::Tasks(all) => {
                let word = all.words[buyer as usize - 1].send(GO.to_owned());
                word.map_err(|_| io::Error::other("a buyer has gone too early"))
            }
        }
    }

    /// Stops a buyer that waits at the till, and returns when it stands still. A task does already.
    pub(crate) async fn stop(&mut self, buyer: u32) -> io::Result<()> {
        match self {
            Self::Processes(all) => all.stop(buyer).await,
            Self::Tasks(_) => Ok(()),
        }
    }

    /// Lets it run again.
    pub(crate) fn cont(&mut self, buyer: u32) -> io::Result<()> {
        match self {
            Self::Processes(all) => Ok(kill_process(all.pid(buyer), Signal::CONT)?),
            Self::Tasks(_) => Ok(()),
        }
    }
}

/// Buyers as processes: this binary, started again. Killed when dropped.
pub(crate) struct Processes {
    children: Vec<Child>,
    says: Lines<BufReader<Receiver>>,
}

impl Processes {
    /// Starts a process for each.
    pub(crate) fn start(invitations: &[Invitation]) -> io::Result<Self> {
        let (read, write) = io::pipe()?;
        let says = BufReader::new(Receiver::from_owned_fd(read.into())?).lines();
        let mut all = Self { children: Vec::new(), says };
        for invitation in invitations {
            // The running file, also when its name is gone or has another file by now.
            let mut command = Command::new("/proc/self/exe");
            command.arg0("latchwork-buyer").arg(ROLE);
            // Not hit by the Ctrl-C of a terminal: the demo ends them.
            command.process_group(0).stdin(Stdio::piped()).stdout(write.try_clone()?);
            all.children.push(command.spawn()?);
            all.tell(invitation.order.buyer, &invitation.encode())?;
        }
        Ok(all)
    }

    async fn next(&mut self) -> io::Result<Option<Said>> {
        let Some(line) = self.says.next_line().await? else { return Ok(None) };
        let strange = || io::Error::other(format!("a buyer says {line:?}"));
        Said::decode(&line).map(Some).ok_or_else(strange)
    }

    fn tell(&mut self, buyer: u32, word: &str) -> io::Result<()> {
        let gone = || io::Error::other("a buyer has gone too early");
        let stdin = self.children[buyer as usize - 1].stdin.as_mut().ok_or_else(gone)?;
        writeln!(stdin, "{word}")
    }

    fn go(&mut self, buyer: u32) -> io::Result<()> {
        self.tell(buyer, GO)
    }

    fn pid(&self, buyer: u32) -> Pid {
        Pid::from_child(&self.children[buyer as usize - 1])
    }

    async fn stop(&mut self, buyer: u32) -> io::Result<()> {
        let pid = self.pid(buyer);
        kill_process(pid, Signal::STOP)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while waitid(WaitId::Pid(pid), options)?.is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Most have ended by themselves.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

type Life<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Buyers as tasks of this process, which move while what they say is awaited.
pub(crate) struct Tasks<'a> {
    lives: VecDeque<Life<'a>>,
    words: Vec<UnboundedSender<String>>,
    says: UnboundedReceiver<Said>,
}

impl<'a> Tasks<'a> {
    /// Makes a task for each.
    pub(crate) fn start(
        orders: &'a [Order],
        shop: &'a dyn Shop,
        locks: &'a LockManager,
    ) -> io::Result<Self> {
        let (says, heard) = unbounded_channel();
        let mut all = Self { lives: VecDeque::new(), words: Vec::new(), says: heard };
        for order in orders {
            let (word, hears) = unbounded_channel();
            all.words.push(word);
            let desk = Channels { says: says.clone(), hears: RefCell::new(hears) };
            let buyer = Buyer::new(order, shop, Some(locks), desk);
            let says = says.clone();
            all.lives.push_back(Box::pin(async move {
                if let Err(trouble) = buyer.buy().await {
                    let event = Event::Failed(trouble.to_string());
                    let _ = says.send(Said { buyer: order.buyer, at: boot_time(), event });
                }
            }));
        }
        Ok(all)
    }

    async fn next(&mut self) -> Option<Said> {
        poll_fn(|cx| {
            self.lives.retain_mut(|life| life.as_mut().poll(cx).is_pending());
            match self.says.poll_recv(cx) {
                Poll::Pending if self.lives.is_empty() => Poll::Ready(None),
                other => other,
            }
        })
        .await
    }
}
