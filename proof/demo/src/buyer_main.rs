//! A buyer as a process of its own.
//!
//! Its order is the first line of its standard input, its standard output the pipe that all buyers
//! share. It ends with the demo, also when it is stopped at that time.

use std::io::BufRead;
use std::process::ExitCode;

use latchwork_store::clock::boot_time;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::buyer::{Buyer, Desk, Trouble};
use crate::shop;
use crate::words::{Event, Invitation, Said};

/// The first argument that makes this binary a buyer.
pub(crate) const ROLE: &str = "__buyer";

/// The desk of a buyer that is a process. It has nothing else to do while it waits for a word; its
/// leases are renewed on a thread of Latchwork.
struct Pipes;

impl Desk for Pipes {
    fn say(&self, said: &Said) {
        // One write for a line, so that lines of several buyers do not mix. Without anybody who
        // reads, the demo has ended.
        let _ = rustix::io::write(rustix::stdio::stdout(), said.encode().as_bytes());
    }

    async fn word(&self) -> Result<String, Trouble> {
        line()
    }
}

fn line() -> Result<String, Trouble> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line)? {
        0 => Err("the demo has ended".into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

/// Buys what it is told to.
pub(crate) fn main() -> ExitCode {
    let _ = rustix::thread::set_name(c"latchwork-buyer");
    // If the demo died before this, the next line is not there.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let invitation = line().ok().as_deref().and_then(Invitation::decode);
    let Some(invitation) = invitation else { return ExitCode::FAILURE };
    let buyer = invitation.order.buyer;
    match take_part(&invitation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            let event = Event::Failed(trouble.to_string());
            Pipes.say(&Said { buyer, at: boot_time(), event });
            ExitCode::FAILURE
        }
    }
}

fn take_part(invitation: &Invitation) -> Result<(), Trouble> {
    let Invitation { order, store, place } = invitation;
    let shop = shop::open(place, store)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locks = match order.scene.has_lease() {
            true => Some(latchwork::connect(store).await?),
            false => None,
        };
        Buyer::new(order, &*shop, locks.as_ref(), Pipes).buy().await?;
        if let Some(locks) = &locks {
            locks.close().await;
        }
        Ok(())
    })
}
