//! What was counted, for people and for programs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchwork::FencingToken;
use serde_json::{Value, json};

use crate::tally::{Refusal, Tally};
use crate::words::Scene;

/// All scenes, and under which conditions they were played.
pub(crate) struct Outcome<'a> {
    pub(crate) store: &'a str,
    pub(crate) framework: Framework,
    pub(crate) buyers: u32,
    pub(crate) stock: u32,
    pub(crate) ttl: Duration,
    pub(crate) tallies: &'a [Tally],
    pub(crate) svg: Option<&'a Path>,
}

/// What the buyers were, and where the stock was.
pub(crate) enum Framework {
    /// Tasks of this process, and a stock in it.
    Tasks,
    /// Processes, and a file in this folder.
    File(PathBuf),
    /// Processes, and keys that begin so in the server of the locks.
    Redis(String),
}

impl Framework {
    fn buyers(&self) -> &'static str {
        match self {
            Self::Tasks => "tasks",
            Self::File(_) | Self::Redis(_) => "processes",
        }
    }

    fn stock(&self) -> String {
        match self {
            Self::Tasks => "in this process".to_owned(),
            Self::File(folder) => format!("in a file beside, {}", folder.display()),
            Self::Redis(prefix) => format!("in the same Redis, {prefix}:stock"),
        }
    }
}

impl Outcome<'_> {
    pub(crate) fn is_as_promised(&self) -> bool {
        self.tallies.iter().all(Tally::is_as_promised)
    }
}

const HEAD: [&str; 7] =
    ["SCENE", "SOLD", "OVERSOLD", "TWO AT ONCE", "EXPIRED", "FREED BY OTHERS", "LATE, REFUSED"];

/// A table, and a sentence for each write that was refused.
pub(crate) fn text(outcome: &Outcome<'_>) -> String {
    let framework = &outcome.framework;
    let mut text = format!(
        "{} units, {} buyers ({}), ttl {}\nlocks  {}\nstock  {}\n\n",
        outcome.stock,
        outcome.buyers,
        framework.buyers(),
        humantime::format_duration(outcome.ttl),
        outcome.store,
        framework.stock(),
    );
    let rows: Vec<_> = outcome.tallies.iter().map(row).collect();
    let head = HEAD.map(str::to_owned);
    for row in std::iter::once(&head).chain(&rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let all = std::iter::once(&head).chain(&rows);
            let width = all.map(|row| row[column].chars().count()).max().unwrap_or(0);
            let _ = match column {
                0 => write!(line, "{cell:width$}  "),
                _ => write!(line, "{cell:>width$}  "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    for tally in outcome.tallies {
        for refusal in &tally.refused {
            let _ = write!(text, "\n{}", late(tally, refusal, framework));
        }
    }
    let holds: usize = outcome.tallies.iter().map(Tally::holds).sum();
    if outcome.tallies.iter().all(|tally| tally.tokens_rise != Some(false)) {
        let _ = write!(text, "\nEach of {holds} holds had a larger token than the one before.");
    } else {
        text.push_str("\nA hold had NO larger token than the one before.");
    }
    let verdict = if outcome.is_as_promised() { "exact" } else { "NOT exact" };
    let _ = write!(text, "\nWith latchwork: {verdict}.");
    if let Some(file) = outcome.svg {
        let _ = write!(text, "\nDrawn in {}", file.display());
    }
    text
}

fn row(tally: &Tally) -> [String; 7] {
    let naive = |count: u32| match tally.scene {
        Scene::Naive => count.to_string(),
        _ => "-".to_owned(),
    };
    let expired = match tally.scene {
        Scene::NoLock => "-".to_owned(),
        Scene::Naive => tally.expired.to_string(),
        Scene::Locked | Scene::Fenced => tally.lost.to_string(),
    };
    let refused = match tally.scene {
        Scene::Fenced => tally.refused.len().to_string(),
        _ => "-".to_owned(),
    };
    [
        format!("{} {}", tally.scene.number(), tally.scene.name()),
        tally.sold.to_string(),
        tally.oversold().to_string(),
        tally.overlaps.to_string(),
        expired,
        naive(tally.freed),
        refused,
    ]
}

/// The story of a late write.
fn late(tally: &Tally, refusal: &Refusal, framework: &Framework) -> String {
    let Refusal { buyer, left, instead_of, token, newest, .. } = refusal;
    let stop = tally.stops.iter().find(|stop| stop.buyer == *buyer);
    let how = match framework {
        Framework::Tasks => "held up past its --max-hold",
        _ => "stopped (SIGSTOP)",
    };
    let long = stop.map_or_else(String::new, |stop| {
        let millis = stop.to.since(stop.from).as_millis();
        format!(" for {}.{} s", millis / 1_000, millis % 1_000 / 100)
    });
    format!(
        "Buyer {buyer} was {how}{long}, and its lease passed on. It would have written\n\
         {left} where {instead_of} were left. Refused: its token {token}\n\
         was superseded by {newest}.\n"
    )
}

/// All of it as one value.
pub(crate) fn json(outcome: &Outcome<'_>) -> Value {
    json!({
        "store": outcome.store,
        "buyers": outcome.buyers,
        "buyers_are": outcome.framework.buyers(),
        "stock": outcome.stock,
        "stock_is": outcome.framework.stock(),
        "ttl_ms": millis(outcome.ttl),
        "scenes": Value::from_iter(outcome.tallies.iter().map(tally_json)),
        "exact": outcome.is_as_promised(),
        "svg": outcome.svg.map(Path::to_string_lossy),
    })
}

fn millis(length: Duration) -> u64 {
    length.as_millis() as u64
}

fn tally_json(tally: &Tally) -> Value {
    let leases = tally.scene.has_lease();
    let naive = tally.scene == Scene::Naive;
    json!({
        "scene": tally.scene.number(),
        "name": tally.scene.name(),
        "sold": tally.sold,
        "oversold": tally.oversold(),
        "left": tally.left,
        "two_at_once": tally.overlaps,
        "expired": naive.then_some(tally.expired),
        "freed_by_others": naive.then_some(tally.freed),
        "lost": leases.then_some(tally.lost),
        "tokens_rise": tally.tokens_rise,
        "refused": Value::from_iter(tally.refused.iter().map(|refusal| json!({
            "buyer": refusal.buyer,
            "left": refusal.left,
            "instead_of": refusal.instead_of,
            "token": FencingToken::from_raw(refusal.token).to_string(),
            "newest": FencingToken::from_raw(refusal.newest).to_string(),
        }))),
        "exact": tally.is_exact(),
        "took_ms": millis(tally.took()),
    })
}
