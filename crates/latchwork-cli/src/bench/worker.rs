//! One of several processes that want one lock.
//!
//! Its order is the first line of its standard input. It says `ready`, waits for a moment to start
//! at, and at its end writes a line for each hold.

use std::fmt::Write as _;
use std::io::{BufRead, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use latchwork::clock::boot_time;
use latchwork::{Handover, Moment, random_between};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};

use super::section::Section;
use crate::process::timer::Naps;

/// The first argument that makes this binary a worker.
pub(crate) const ROLE: &str = "__bench-worker";

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

/// Reads the line of a hold.
pub(super) fn read(process: u32, line: &str) -> Option<Section> {
    let mut numbers = line.split(' ').map(|word| word.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    Some(Section { process, token: next()?, from: next()?, to: next()? })
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
        let naps = Naps::new()?;
        say("ready\n")?;
        let start = Moment::from_nanos(line()?.trim().parse()?);
        naps.nap(start.since(boot_time())).await?;
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
                let hold =
                    random_between(Duration::from_micros(least), Duration::from_micros(most));
                naps.nap(hold).await?;
            }
            let (token, to) = (guard.token().get(), boot_time());
            guard.release().await?;
            sections.push((token, from.as_nanos(), to.as_nanos()));
        }
        locks.close().await;
        Ok(sections)
    })?;
    let mut text = String::new();
    for (token, from, to) in sections {
        let _ = writeln!(text, "{token} {from} {to}");
    }
    say(&text)?;
    Ok(())
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
        assert_eq!(read(3, "4611686018427387904 4 5"), Some(section));
        assert_eq!(read(3, "1 2"), None);
    }
}
