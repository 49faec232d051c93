//! The second judge, `proof/eye`: what it has to know of a run, and what it says of a history.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::checks::Allowed;
use crate::history::History;
use crate::terms::Terms;

/// The rules of the eye that judge what a check judges, where that may be excused.
fn rules_of(check: &str) -> &'static [&'static str] {
    match check {
        // Of two that hold at once, neither is the later one.
        "exclusion" => &["exclusion", "token-order"],
        // A holder that has lost its hold, whose claim nobody took away by force.
        "loss_reason" => &["loss-reason", "release"],
        "store_keeps" => &["kept"],
        "told_in_time" => &["told"],
        _ => &[],
    }
}

/// Where it is.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../eye")
}

/// Runs one of its programs.
///
/// # Errors
///
/// If there is no Python.
pub fn python(words: &[&str]) -> io::Result<Output> {
    let mut command = Command::new("python3");
    command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(folder()).args(words).output()
}

/// What it must be told to judge this history by the same terms, with its own rules.
pub fn words(terms: &Terms, history: &History) -> Vec<String> {
    let bounds = &terms.bounds;
    let millis = |length: Duration| format!("{}ms", length.as_millis());
    let ends = bounds.ends + bounds.grain.unwrap_or_default();
    let lengths = [("--ttl", bounds.ttl), ("--told", bounds.told), ("--ends", ends)];
    let mut words: Vec<String> = Vec::new();
    for (flag, length) in lengths {
        words.extend([flag.to_owned(), millis(length)]);
    }
    let mut allow = |rule: &str, fault: &str, after: Duration, who: &str| {
        words.extend(["--allow".into(), format!("{rule}:{fault}:{}{who}", after.as_secs_f64())]);
    };
    let faults: BTreeSet<&str> = history.faults.iter().map(|fault| &*fault.name).collect();
    for fault in &faults {
        // What a fault did to a lease shows when that lease ends.
        allow("calm", fault, bounds.settle * 2, "");
        // While a voter is away, the one that keeps a claim for the shortest time is asked.
        if bounds.votes {
            allow("kept", fault, bounds.settle, "");
        }
        // Elections and a quarantine keep a key closed for longer than the eye knows, and what another client left does.
        if bounds.settle > bounds.ttl || bounds.foreign.is_some() {
            allow("handed-on", fault, bounds.settle * 2, "");
        }
    }
    let mut allow_all = |allowed: &[Allowed], who: &str| {
        let struck = |it: &&Allowed| faults.contains(&*it.fault);
        for allowed in allowed.iter().filter(struck) {
            let after = allowed.after.max(bounds.ttl * 2);
            for rule in rules_of(&allowed.check) {
                allow(rule, &allowed.fault, after, who);
            }
        }
    };
    allow_all(&bounds.allowed, "");
    if let Some(foreign) = &bounds.foreign {
        allow_all(&foreign.overstays, &format!(":{}", foreign.name));
        allow_all(&foreign.enters, &format!(":+{}", foreign.name));
    }
    if !terms.checks.iter().any(|check| check.name == "no_false_alarm") {
        words.extend(["--without".into(), "calm".into()]);
    }
    words
}

/// Whether it accepts the history in a folder, and what it said.
///
/// # Errors
///
/// If there is no Python.
pub fn judge(logs: &Path, words: &[String]) -> io::Result<(bool, String)> {
    // It runs in a folder of its own.
    let logs = logs.canonicalize()?.display().to_string();
    let words = words.iter().map(String::as_str);
    let output = python(&["check.py", &logs].into_iter().chain(words).collect::<Vec<_>>())?;
    Ok((output.status.success(), said(&output)))
}

/// What a program printed.
pub fn said(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}
