//! Worker processes at a directory: calm, killed, stopped, and with the store's own files locked.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use latchwork_nemesis::bounds::Allowed;
use latchwork_nemesis::event::What;
use latchwork_nemesis::faults::{ClientFault, Nemesis};
use latchwork_nemesis::luck::Luck;
use latchwork_nemesis::run::{Outcome, Plan};
use latchwork_nemesis::schedule::Schedule;

use crate::eye::lie_about;

const TTL: Duration = Duration::from_secs(1);

fn plan(folder: &tempfile::TempDir) -> Plan {
    let store = format!("file://{}", folder.path().join("store").display());
    let logs = folder.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let program = env!("CARGO_BIN_EXE_latchwork-nemesis").into();
    let plan = Plan::new(&store, program, logs).ttl(TTL);
    let (fault, calm) = (Duration::from_millis(2_500), Duration::from_millis(1_500));
    let schedule = Schedule { length: Duration::from_secs(7), fault, calm, ..plan.schedule };
    Plan { schedule, ..plan }
}

/// Plays the run; where a rule is violated, the logs stay.
fn play(folder: tempfile::TempDir, mut plan: Plan) -> Outcome {
    // The witness sees one thread's delays, and telling takes two of them one after the other.
    plan.bounds.told = Duration::from_millis(100);
    let outcome = plan.run(&mut |_| {}).unwrap();
    let judged = if outcome.passed() { lie_about(&outcome) } else { Err(outcome.to_string()) };
    if let Err(said) = judged {
        let kept = folder.keep();
        panic!("{said}\nlogs in {}", kept.display());
    }
    outcome
}

fn checked(outcome: &Outcome, rule: &str) -> u64 {
    outcome.verdict(rule).unwrap().examined
}

#[test]
fn calm() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&folder);
    let schedule = Schedule { length: Duration::from_secs(5), ..plan.schedule };
    let outcome = play(folder, Plan { schedule, ..plan });
    assert!(outcome.history.faults.is_empty());
    assert!(checked(&outcome, "exclusion") > 100, "{outcome}");
    assert!(checked(&outcome, "calm") > 100, "{outcome}");
    let changed = outcome.history.attempts.iter().filter(|a| a.beside.is_some());
    let (granted, refused): (Vec<_>, Vec<_>) =
        changed.partition(|attempt| attempt.granted.is_some());
    assert!(granted.len() > 5, "{granted:?} were upgraded or downgraded, {refused:?} were not");
}

#[test]
fn workers_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { faults: vec![ClientFault::Kill], ..plan(&folder) };
    let outcome = play(folder, plan);
    assert!(outcome.history.faults.iter().all(|fault| &**fault == "kill"));
    assert!(checked(&outcome, "takeover") > 0, "{outcome}");
}

/// Locks of every kind are taken away by force while they are held.
#[test]
fn the_next_renewal_reports_a_forced_release() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { faults: vec![ClientFault::Evict], longest: 4.0, keys: 2, ..plan(&folder) };
    let outcome = play(folder, plan);
    assert!(outcome.history.lost("taken") > 0, "{outcome}");
    assert!(checked(&outcome, "kept") > 100, "{outcome}");
}

#[test]
fn workers_are_stopped_and_answers_are_slow() {
    let folder = tempfile::tempdir().unwrap();
    // A shorter ttl, and long holds of many keys at once: most stops make some holder outlive it.
    let ttl = TTL * 3 / 5;
    let plan = Plan { keys: 3, processes: 4, tasks: 10, longest: 4.0, ..plan(&folder) };
    let plan = plan.ttl(ttl);
    let plan = Plan { faults: vec![ClientFault::Stop], slow: ttl / 6, ..plan };
    let fault = Duration::from_secs(6);
    let schedule = Schedule { fault, length: Duration::from_secs(9), ..plan.schedule };
    let mut plan = Plan { schedule, ..plan };
    // On a loaded machine an answer that is held back may come after the time limit of its verb.
    plan.bounds.allowed.push(Allowed { rule: "calm", fault: "stop".into(), after: TTL * 3 });
    let outcome = play(folder, plan);
    assert!(outcome.history.lost("expired") > 0, "nobody was stopped for long enough: {outcome}");
}

/// Locks all stripe files of the directory, as a process does that is stopped in the middle of a
/// verb: nobody is admitted, renewed or released meanwhile.
struct LockedStripes {
    store: PathBuf,
    locked: Vec<File>,
}

impl Nemesis for LockedStripes {
    fn name(&self) -> &str {
        "locked stripes"
    }

    fn strike(&mut self, _: &mut Luck) -> io::Result<()> {
        for entry in fs::read_dir(&self.store)? {
            let file = File::options().write(true).open(entry?.path())?;
            file.lock()?;
            self.locked.push(file);
        }
        Ok(())
    }

    fn heal(&mut self) -> io::Result<()> {
        self.locked.clear();
        Ok(())
    }
}

#[test]
fn a_silent_store_lengthens_no_validity() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").join("stripes");
    let nemesis = LockedStripes { store, locked: Vec::new() };
    // Long holds on many keys, so that some of them need their renewals meanwhile.
    let plan = Plan { nemeses: vec![Box::new(nemesis)], keys: 4, longest: 6.0, ..plan(&folder) };
    let outcome = play(folder, plan);
    assert!(!outcome.history.faults.is_empty());
    let alarms = outcome.history.events.iter().filter(|e| matches!(e.what, What::Alarm { .. }));
    assert!(alarms.count() > 0, "the fault was not noticed: {outcome}");
}
