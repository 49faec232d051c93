//! The checker in Python, which knows of Latchwork only what the documents say, beside the checks of this crate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use latchwork_nemesis::checks::{ALL, Bounds};
use latchwork_nemesis::faults::ClientFault;
use latchwork_nemesis::run::{Outcome, Plan};
use latchwork_nemesis::schedule::Schedule;

const TTL: Duration = Duration::from_secs(1);

/// The lies that only the eye finds. A check that begins to find one takes it off this list.
const ONLY_THE_EYE: &[&str] = &[
    "answer-of-a-write-turned",
    "answer-without-a-write",
    "ended-with-a-hold",
    "eviction-not-told",
    "granted-twice",
    "granted-without-a-try",
    "held-after-release",
    "lost-before-the-end",
    "lost-in-the-future",
    "number-used-twice",
    "one-order-twice",
    "release-of-an-evicted-hold-confirmed",
    "store-keeps-more",
    "write-of-a-stranger",
    "write-with-another-token",
];

fn eye() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../eye")
}

fn python(words: &[&str]) -> Output {
    Command::new("python3")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(eye())
        .args(words)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Whether the eye accepts the history in a folder, and what it said.
pub(crate) fn judge(logs: &Path, words: &[String]) -> (bool, String) {
    let logs = logs.to_str().unwrap();
    let words = words.iter().map(String::as_str);
    let output = python(&["check.py", logs].into_iter().chain(words).collect::<Vec<_>>());
    (output.status.success(), said(&output))
}

#[test]
fn each_rule_of_the_eye_accepts_and_refuses() {
    let output = python(&["-m", "unittest", "discover", "-t", ".", "-s", "tests"]);
    assert!(output.status.success(), "{}", said(&output));
}

/// A run with every fault that a file store's workers have, judged by both.
#[test]
fn the_eye_accepts_a_run_under_faults() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let program = env!("CARGO_BIN_EXE_latchwork-nemesis").into();
    let plan = Plan::new(&store, program, logs.clone()).ttl(TTL);
    let (fault, calm) = (Duration::from_millis(1_500), Duration::from_millis(700));
    let mut plan = Plan {
        schedule: Schedule { length: Duration::from_secs(5), fault, calm, ..plan.schedule },
        faults: vec![ClientFault::Kill, ClientFault::Stop, ClientFault::Evict],
        ..plan
    };
    plan.bounds.told = Duration::from_millis(250);
    let outcome = plan.run(&mut |_| {}).unwrap();
    let required = ["exclusion", "kept", "release", "fence", "token-order", "handed-on", "ghost"];
    let required = required.iter().flat_map(|rule| ["--require", rule]);
    let words: Vec<_> = ["--ttl", "1s"].into_iter().chain(required).map(str::to_owned).collect();
    let (accepted, said) = judge(&logs, &words);
    if !accepted || !outcome.passed() {
        let logs = folder.keep().join("logs");
        panic!("the eye: {said}\nthe checks: {outcome}\nlogs in {}", logs.display());
    }
}

/// The eye's tests prove the same of the eye.
#[test]
fn the_checks_find_every_lie_that_the_eye_finds() {
    let folder = tempfile::tempdir().unwrap();
    let original = folder.path().join("original");
    let lies = folder.path().join("lies");
    fs::create_dir(&original).unwrap();
    let archive = eye().join("histories/files.tar.xz");
    let unpacked = Command::new("tar").arg("xf").arg(archive).arg("-C").arg(&original).status();
    assert!(unpacked.unwrap().success());
    let words = ["corrupt.py", original.to_str().unwrap(), lies.to_str().unwrap()];
    let output = python(&words);
    assert!(output.status.success(), "{}", said(&output));

    let mut bounds = Bounds::of_store("file:", TTL, 3);
    bounds.travel = Duration::from_millis(40);
    bounds.told = Duration::from_millis(100);
    bounds.allow_evictions();
    let judge = |folder: PathBuf| Outcome::judge(folder, &bounds, ALL, &[]);
    let outcome = judge(original).unwrap();
    assert!(outcome.passed(), "{outcome}");
    let mut unseen = Vec::new();
    for lie in fs::read_dir(&lies).unwrap() {
        let lie = lie.unwrap();
        if judge(lie.path()).is_ok_and(|outcome| outcome.passed()) {
            unseen.push(lie.file_name().into_string().unwrap());
        }
    }
    unseen.sort();
    assert_eq!(unseen, ONLY_THE_EYE);
}
