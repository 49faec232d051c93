//! What was counted, for people and for programs.

use std::fmt::Write as _;
use std::iter::once;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Args;
use crate::tally::{Refusal, Tally};
use crate::words::{Place, Scene};

/// All scenes, and under which conditions they were played.
pub(crate) struct Outcome<'a> {
    pub(crate) args: &'a Args,
    /// The kind of store of the locks.
    pub(crate) locks: &'a str,
    /// Where the stock was: `None` if the buyers were tasks of this process.
    pub(crate) place: Option<&'a Place>,
    pub(crate) ttl: Duration,
    pub(crate) tallies: &'a [Tally],
    pub(crate) svg: Option<&'a Path>,
}

const HEAD: [&str; 7] =
    ["SCENE", "SOLD", "OVERSOLD", "TWO AT ONCE", "EXPIRED", "FREED BY OTHERS", "LATE, REFUSED"];

impl Outcome<'_> {
    pub(crate) fn is_as_promised(&self) -> bool {
        self.tallies.iter().all(Tally::is_as_promised)
    }

    fn buyers_are(&self) -> &'static str {
        if self.place.is_some() { "processes" } else { "tasks" }
    }

    fn stock_is(&self) -> String {
        match self.place {
            None => "in this process".to_owned(),
            Some(Place::Folder(folder)) => format!("in a file beside, {}", folder.display()),
            Some(Place::Redis(prefix)) => format!("in the same Redis, {prefix}:stock"),
        }
    }

    /// A table, and a sentence for each write that was refused.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{} units, {} buyers ({}), ttl {}\nlocks  {}\nstock  {}\n\n",
            self.args.stock,
            self.args.buyers,
            self.buyers_are(),
            humantime::format_duration(self.ttl),
            self.locks,
            self.stock_is(),
        );
        let rows: Vec<_> =
            once(HEAD.map(str::to_owned)).chain(self.tallies.iter().map(row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        for row in &rows {
            let mut line = format!("{:1$}", row[0], width(0));
            for (column, cell) in row.iter().enumerate().skip(1) {
                let _ = write!(line, "  {cell:>0$}", width(column));
            }
            let _ = writeln!(text, "{line}");
        }
        for tally in self.tallies {
            for refusal in &tally.refused {
                let _ = write!(text, "\n{}", self.late(tally, refusal));
            }
        }
        let holds: usize = self.tallies.iter().map(Tally::holds).sum();
        if self.tallies.iter().all(|tally| tally.tokens_rise != Some(false)) {
            let _ = write!(text, "\nEach of {holds} holds had a larger token than the one before.");
        } else {
            text.push_str("\nA hold had NO larger token than the one before.");
        }
        let verdict = if self.is_as_promised() { "exact" } else { "NOT exact" };
        let _ = write!(text, "\nWith latchwork: {verdict}.");
        if let Some(file) = self.svg {
            let _ = write!(text, "\nDrawn in {}", file.display());
        }
        text
    }

    /// The story of a late write.
    fn late(&self, tally: &Tally, refusal: &Refusal) -> String {
        let Refusal { buyer, left, instead_of, token, newest, .. } = refusal;
        let stop = tally.stops.iter().find(|stop| stop.buyer == *buyer);
        let how = match self.place {
            None => "held up past its --max-hold",
            Some(_) => "stopped (SIGSTOP)",
        };
        let long = stop.map_or_else(String::new, |stop| {
            let tenths = (stop.to - stop.from) / 100_000_000;
            format!(" for {}.{} s", tenths / 10, tenths % 10)
        });
        format!(
            "Buyer {buyer} was {how}{long}, and its lease passed on. It would have written\n\
             {left} where {instead_of} were left. Refused: its token {token}\n\
             was superseded by {newest}.\n"
        )
    }

    /// All of it as one value.
    pub(crate) fn json(&self) -> Value {
        json!({
            "store": self.locks,
            "buyers": self.args.buyers,
            "buyers_are": self.buyers_are(),
            "stock": self.args.stock,
            "stock_is": self.stock_is(),
            "ttl_ms": self.ttl.as_millis() as u64,
            "scenes": Value::from_iter(self.tallies.iter().map(tally_json)),
            "exact": self.is_as_promised(),
            "svg": self.svg.map(Path::to_string_lossy),
        })
    }
}

fn row(tally: &Tally) -> [String; 7] {
    let scene = tally.scene;
    let shown = |is_counted: bool, count: u32| match is_counted {
        true => count.to_string(),
        false => "-".to_owned(),
    };
    let expired = if scene == Scene::Naive { tally.expired } else { tally.lost };
    [
        format!("{} {}", scene.number(), scene.name()),
        tally.sold.to_string(),
        tally.oversold().to_string(),
        tally.overlaps.to_string(),
        shown(scene != Scene::NoLock, expired),
        shown(scene == Scene::Naive, tally.freed),
        shown(scene == Scene::Fenced, tally.refused.len() as u32),
    ]
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
            "token": refusal.token.to_string(),
            "newest": refusal.newest.to_string(),
        }))),
        "exact": tally.is_exact(),
        "took_ms": tally.took() / 1_000_000,
    })
}
