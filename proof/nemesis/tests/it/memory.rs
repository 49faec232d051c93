//! The same workers at the store of one process.

use std::time::Duration;

use latchwork_nemesis::bounds::Bounds;
use latchwork_nemesis::faults::ClientFault;
use latchwork_nemesis::run::Plan;
use latchwork_nemesis::schedule::Schedule;

fn plan(folder: &tempfile::TempDir) -> Plan {
    let program = env!("CARGO_BIN_EXE_latchwork-nemesis").into();
    let plan = Plan::new("mem:", program, folder.path().into());
    let schedule = Schedule { length: Duration::from_secs(4), ..Schedule::default() };
    let ttl = Duration::from_millis(500);
    // The witness sees one thread's delays, and telling takes two of them one after the other.
    let bounds = Bounds { told: Duration::from_millis(100), ..Bounds::new(ttl) };
    Plan { processes: 1, tasks: 20, ttl, bounds, schedule, ..plan }
}

#[test]
fn calm() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = plan(&folder).run(&mut |_| {}).unwrap();
    assert!(outcome.passed(), "{outcome}");
}

#[test]
fn a_memory_store_refuses_processes_and_kills() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Plan { processes: 2, ..plan(&folder) }.run(&mut |_| {}).is_err());
    let faults = vec![ClientFault::Kill];
    assert!(Plan { faults, ..plan(&folder) }.run(&mut |_| {}).is_err());
}
