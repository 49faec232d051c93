//! The judge of histories, in Python, and the lies that it must find.

use std::process::Command;
use std::time::Duration;

use latchwork_nemesis::bounds::Bounds;
use latchwork_nemesis::eye;
use latchwork_nemesis::lies::Lies;
use latchwork_nemesis::run::Outcome;

const TTL: Duration = Duration::from_secs(1);

/// So many lies are told about each run: they cost more than it does. `LATCHWORK_LIES` chooses how many, or `all`.
const LIES: usize = 1;

/// Tells lies about a history that was accepted.
///
/// # Errors
///
/// The lies that were not found.
pub(crate) fn lie_about(outcome: &Outcome) -> Result<(), String> {
    // The lies are about Latchwork's own workers, whose holds have numbers.
    if outcome.history.attempts.iter().any(|attempt| !attempt.process.starts_with('w')) {
        return Ok(());
    }
    let count = std::env::var("LATCHWORK_LIES").unwrap_or_default();
    let count = if count == "all" { None } else { Some(count.parse().unwrap_or(LIES)) };
    // Of the moments of a run no two are alike, so the run itself draws the lies.
    let drawn = outcome.history.events.len() as u64;
    let lies = Lies::tell(outcome, drawn, count).map_err(|e| e.to_string())?;
    let few = count.unwrap_or(30);
    match lies.unseen.is_empty() && lies.found.len() >= few {
        true => Ok(()),
        false => Err(format!("lies, drawn by {drawn}: {lies}\n{outcome}")),
    }
}

#[test]
fn each_rule_of_the_eye_accepts_and_refuses() {
    let words = ["-m", "unittest", "discover", "-t", ".", "-s", "tests"];
    let output = eye::python(&words).unwrap();
    assert!(output.status.success(), "{}", eye::said(&output));
}

/// A recorded history, of which everything is known.
#[test]
fn the_eye_finds_every_lie() {
    let folder = tempfile::tempdir().unwrap();
    let archive = eye::folder().join("histories/files.tar.xz");
    let unpacked = Command::new("tar").arg("xf").arg(archive).arg("-C").arg(folder.path()).status();
    assert!(unpacked.unwrap().success());
    let mut bounds = Bounds::of_store("file:", TTL);
    bounds.travel = Duration::from_millis(40);
    bounds.told = Duration::from_millis(100);
    let outcome = Outcome::judge(folder.path().into(), bounds.words()).unwrap();
    assert!(outcome.passed(), "{outcome}");
    let lies = Lies::tell(&outcome, 7, None).unwrap();
    assert!(lies.unseen.is_empty() && lies.without_a_place.is_empty(), "{lies}");
    assert!(lies.found.len() > 60, "{lies}");
}
