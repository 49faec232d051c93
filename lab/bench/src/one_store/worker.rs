//! One of several processes that want one lock.
//!
//! Its order is the first line of its standard input. It says `ready`, waits for a moment to start
//! at, and at its end writes a line for each hold, `lost` for one that it lost.

use std::fmt::Write as _;
use std::io::{BufRead, Write as _};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use latchwork::{ErrorKind, Guard, Handover};
use latchwork_store::clock::boot_time;
use latchwork_store::{Moment, random_between};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};

use super::section::Section;

/// The first argument that makes this binary a worker.
pub(crate) const ROLE: &str = "store-worker";

/// The line of a hold that was lost.
const LOST: &str = "lost";

/// What a worker is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) store: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) length: Duration,
    /// How long to hold, from and to, in microseconds.
    pub(super) holds: (u64, u64),
}

impl Order {
    pub(super) fn encode(&self) -> String {
        json!({
            "store": self.store,
            "namespace": self.namespace,
            "name": self.name,
            "length_ms": self.length.as_millis() as u64,
            "holds_us": [self.holds.0, self.holds.1],
        })
        .to_string()
    }

    fn decode(line: &str) -> Option<Self> {
        let order: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| order[name].as_str().map(str::to_owned);
        Some(Self {
            store: text("store")?,
            namespace: text("namespace")?,
            name: text("name")?,
            length: Duration::from_millis(order["length_ms"].as_u64()?),
            holds: (order["holds_us"][0].as_u64()?, order["holds_us"][1].as_u64()?),
        })
    }
}

/// Reads the line of a hold; the inner `None` is one that was lost.
pub(super) fn read(process: u32, line: &str) -> Option<Option<Section>> {
    if line == LOST {
        return Some(None);
    }
    let mut numbers = line.split(' ').map(|word| word.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    Some(Some(Section { process, token: next()?, from: next()?, to: next()? }))
}

type Trouble = Box<dyn std::error::Error>;

/// Does what it is told to.
pub(crate) fn main() -> ExitCode {
    let _ = rustix::thread::set_name(c"latchwork-bench");
    // If the parent died before this, the next line is not there.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    match take_part() {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            let mut stderr = std::io::stderr().lock();
            let _ = writeln!(stderr, "{trouble}");
            ExitCode::FAILURE
        }
    }
}

fn take_part() -> Result<(), Trouble> {
    let line = || {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    };
    let order = Order::decode(&line()?).ok_or("no order")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sections = runtime.block_on(async {
        let locks = latchwork::connect(&order.store).await?.namespace(&order.namespace);
        let lock = locks.clone().handover(Handover::OFF).mutex(&order.name);
        say("ready\n")?;
        let start = Moment::from_nanos(line()?.trim().parse()?);
        // This thread has nothing else to do: leases are renewed on one of Latchwork's.
        sleep(start.since(boot_time()));
        let end = start.plus(order.length);
        let mut sections = Vec::new();
        loop {
            let left = end.since(boot_time());
            if left.is_zero() {
                break;
            }
            let guard = match lock.acquire_within(left).await {
                Ok(guard) => guard,
                Err(error) if error.kind() == latchwork::ErrorKind::TimedOut => break,
                Err(error) => return Err(Trouble::from(error)),
            };
            let from = boot_time();
            if order.holds.1 > 0 {
                let (least, most) = order.holds;
                sleep(random_between(Duration::from_micros(least), Duration::from_micros(most)));
            }
            let section = held_until_now(&guard, from);
            match guard.release().await {
                // Its section says so.
                Err(error) if error.kind() == ErrorKind::Lost => {}
                released => released?,
            }
            sections.push(section);
        }
        locks.close().await;
        Ok(sections)
    })?;
    let mut text = String::new();
    for section in sections {
        let _ = match section {
            Some((token, from, to)) => writeln!(text, "{token} {from} {to}"),
            None => writeln!(text, "{LOST}"),
        };
    }
    say(&text)?;
    Ok(())
}

/// A hold that ends now: token, from and to. `None` if it was lost, for whoever asks would not go on.
fn held_until_now(guard: &Guard, from: Moment) -> Option<(u64, u64, u64)> {
    // In this order: what is held after `to` was held up to it, however long a pause in between is.
    let to = boot_time();
    let token = guard.ensure_held().ok()?;
    Some((token.get(), from.as_nanos(), to.as_nanos()))
}

fn say(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_holds_come_back() {
        let order = Order {
            store: "redis://user:p%40ss@h/1".into(),
            namespace: "a b".into(),
            name: "\u{e9}\n".into(),
            length: Duration::from_millis(1_234),
            holds: (5, 7),
        };
        assert_eq!(Order::decode(&order.encode()), Some(order));
        assert_eq!(Order::decode("{}"), None);
        let section = Section { process: 3, token: 1 << 62, from: 4, to: 5 };
        assert_eq!(read(3, "4611686018427387904 4 5"), Some(Some(section)));
        assert_eq!(read(3, "lost"), Some(None));
        assert_eq!(read(3, "1 2"), None);
    }

    #[test]
    fn a_lost_hold_is_not_counted_as_a_section() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locks = latchwork::connect("mem:").await.unwrap();
            let lock = locks.max_hold(Duration::from_millis(500)).mutex("x");
            let (guard, from) = (lock.acquire().await.unwrap(), boot_time());
            let (token, since, to) = held_until_now(&guard, from).unwrap();
            assert_eq!((token, since), (guard.token().get(), from.as_nanos()));
            assert!(to >= since);
            guard.lost().await;
            assert_eq!(held_until_now(&guard, from), None);
        });
    }
}
