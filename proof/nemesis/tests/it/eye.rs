//! The checker in Python, which knows of Latchwork only what the documents say, beside the checks of this crate.

use std::process::Command;
use std::time::Duration;

use latchwork_nemesis::checks::Bounds;
use latchwork_nemesis::eye;
use latchwork_nemesis::lies::Lies;
use latchwork_nemesis::run::Outcome;
use latchwork_nemesis::terms::Terms;

const TTL: Duration = Duration::from_secs(1);

/// What every run must give the eye to examine.
const REQUIRED: &[&str] = &["exclusion", "fence", "token-order", "handed-on", "release", "ghost"];

/// So many lies are told about each run: they cost more than it does. `LATCHWORK_LIES` chooses how many, or `all`.
const LIES: usize = 1;

/// Gives a history that the checks accept to the eye, and tells lies about it to both.
///
/// # Errors
///
/// What the eye found in it, or the lies that were not found.
pub(crate) fn judge_too(outcome: &Outcome) -> Result<(), String> {
    let mut words = eye::words(&outcome.terms, &outcome.history);
    let kept = outcome.verdict("store_keeps").filter(|verdict| verdict.checked > 0).map(|_| "kept");
    let required = REQUIRED.iter().copied().chain(kept);
    words.extend(required.flat_map(|rule| ["--require".into(), rule.into()]));
    let (accepted, said) = eye::judge(&outcome.folder, &words).map_err(|e| e.to_string())?;
    if !accepted {
        return Err(format!("{outcome}\nthe eye ({}): {said}", words.join(" ")));
    }
    // The lies are about Latchwork's own workers, whose holds have numbers.
    if outcome.terms.bounds.foreign.is_some() {
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
        false => Err(format!("{outcome}\nlies, drawn by {drawn}: {lies}")),
    }
}

#[test]
fn each_rule_of_the_eye_accepts_and_refuses() {
    let words = ["-m", "unittest", "discover", "-t", ".", "-s", "tests"];
    let output = eye::python(&words).unwrap();
    assert!(output.status.success(), "{}", eye::said(&output));
}

/// A recorded history, of which both judges know everything.
#[test]
fn both_judges_find_every_lie() {
    let folder = tempfile::tempdir().unwrap();
    let archive = eye::folder().join("histories/files.tar.xz");
    let unpacked = Command::new("tar").arg("xf").arg(archive).arg("-C").arg(folder.path()).status();
    assert!(unpacked.unwrap().success());
    let mut bounds = Bounds::of_store("file:", TTL, 3);
    bounds.travel = Duration::from_millis(40);
    bounds.told = Duration::from_millis(100);
    let outcome = Outcome::judge(folder.path().into(), Terms::all(bounds), &[]).unwrap();
    assert!(outcome.passed(), "{outcome}");
    let lies = Lies::tell(&outcome, 7, None).unwrap();
    assert!(lies.unseen.is_empty() && lies.without_a_place.is_empty(), "{lies}");
    assert!(lies.found.len() > 50, "{lies}");
}
