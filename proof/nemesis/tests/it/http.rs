//! Clients of `latchwork serve`: killed and stopped, their service killed, stopped and restarted, their
//! connections cut, the store away. No two believe at once, and each loss is told in time.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use latchwork_nemesis::bounds::Allowed;
use latchwork_nemesis::event::What;
use latchwork_nemesis::faults::ClientFault;
use latchwork_nemesis::redis::{Kind, Servers};
use latchwork_nemesis::run::{Outcome, Plan};
use latchwork_nemesis::schedule::Schedule;
use latchwork_nemesis::service::Fault;
use latchwork_nemesis::stores::{self, Store};

const TTL: Duration = Duration::from_secs(1);

fn plan(store: &str, folder: &tempfile::TempDir) -> Plan {
    let logs = folder.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let program = env!("CARGO_BIN_EXE_latchwork-nemesis").into();
    let plan = Plan::new(store, program, logs).ttl(TTL);
    let (fault, calm) = (Duration::from_millis(2_500), Duration::from_millis(1_000));
    let schedule = Schedule { length: Duration::from_millis(4_500), fault, calm, ..plan.schedule };
    Plan { schedule, keys: 2, ..plan }
}

fn on_files(folder: &tempfile::TempDir) -> Plan {
    plan(&format!("file://{}", folder.path().join("store").display()), folder)
}

/// Plays the run; where a rule is violated, the logs stay.
fn play(folder: tempfile::TempDir, mut plan: Plan) -> Outcome {
    // The witness sees one thread's delays, and telling takes two of them one after the other.
    plan.bounds.told = Duration::from_millis(150);
    let outcome = plan.run(&mut |_| {}).unwrap();
    if !outcome.passed() {
        let kept = folder.keep();
        panic!("{outcome}\nlogs in {}", kept.display());
    }
    outcome
}

#[test]
fn clients_of_the_service_are_killed_and_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { faults: vec![ClientFault::Kill, ClientFault::Stop], ..on_files(&folder) };
    let outcome = play(folder, plan.serve(&[]).unwrap());
    assert!(outcome.verdict("exclusion").unwrap().examined > 50, "{outcome}");
    for key in ["lead", "once"] {
        let of_it = |a: &&latchwork_nemesis::history::Attempt| a.key.starts_with(key);
        let held = outcome.history.attempts.iter().filter(of_it).filter(|a| a.granted.is_some());
        assert!(held.count() > 3, "{key}: {outcome}");
    }
}

/// Somebody at the store takes locks away from the service.
#[test]
fn locks_of_the_service_are_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { faults: vec![ClientFault::Evict], longest: 4.0, ..on_files(&folder) };
    let outcome = play(folder, plan.serve(&[]).unwrap());
    assert!(outcome.history.lost("taken") > 0, "{outcome}");
}

/// Clients queue at a store that grants a lock to the next one in the moment in which it is taken away: that one keeps it.
#[test]
fn h214_a_forced_release_spares_the_next_client() {
    let folder = tempfile::tempdir().unwrap();
    let servers = Servers::start(Kind::Single, "").unwrap();
    let plan = plan(&servers.url(), &folder).ttl(TTL * 2);
    let (length, fault) = (Duration::from_millis(6_500), Duration::from_millis(4_500));
    let schedule = Schedule { length, fault, ..plan.schedule };
    let faults = vec![ClientFault::Evict];
    let plan = Plan { faults, schedule, longest: 3.0, keys: 1, processes: 2, tasks: 14, ..plan };
    let outcome = play(folder, plan.serve(&[]).unwrap());
    assert!(outcome.history.lost("taken") > 0, "{outcome}");
    assert!(outcome.verdict("loss-reason").unwrap().examined > 0, "{outcome}");
}

/// Their clocks stand still while they are stopped, as those of a machine that sleeps. Such a client believes for
/// too long, whatever the service does, and the resource refuses its writes.
#[test]
fn the_fence_stops_clients_whose_clock_stood_still() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        faults: vec![ClientFault::Stop],
        frozen_clock: true,
        longest: 4.0,
        keys: 1,
        processes: 4,
        ..on_files(&folder)
    };
    let mut plan = plan.serve(&[]).unwrap();
    let believes = ["exclusion", "forgotten-claim", "told", "validity", "held", "token-order"];
    for rule in believes {
        plan.bounds.allowed.push(Allowed { rule, fault: "stop".into(), after: TTL * 4 });
    }
    let outcome = play(folder, plan);
    assert!(outcome.verdict("exclusion").unwrap().excused > 0, "no clock stood still: {outcome}");
    assert!(outcome.verdict("fence").unwrap().examined > 100, "{outcome}");
    let refused = |what: &What| matches!(what, What::Wrote { accepted: false, .. });
    assert!(outcome.history.events.iter().any(|event| refused(&event.what)), "{outcome}");
}

/// A hold outlives the service that took it, for as long as its client relies on it.
#[test]
fn h156_the_service_is_killed_stopped_and_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let plan = on_files(&folder);
    let plan = plan.serve(&[Fault::Kill, Fault::Stop, Fault::Restart]).unwrap();
    let outcome = play(folder, plan);
    assert!(outcome.verdict("told").unwrap().examined > 0, "{outcome}");
}

/// Two instances with one key, and one of them at a time killed, stopped or restarted: a client that reaches the other
/// one loses no hold, and no two believe at once.
fn clients_of_two_instances_lose_no_hold(servers: &dyn Store, (most, renewals): (usize, usize)) {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&servers.url(), &folder).ttl(TTL * 2);
    let schedule = Schedule { length: Duration::from_millis(9_000), ..plan.schedule };
    let plan = Plan { schedule, longest: 3.0, ..plan };
    let mut plan = plan.serve_by(2, &[Fault::Kill, Fault::Stop, Fault::Restart]).unwrap();
    // Nothing is lost, so nothing is to be told.
    plan.bounds.without.push("told");
    let outcome = play(folder, plan);
    let held = outcome.history.attempts.iter().filter(|one| one.granted.is_some());
    let renewed = outcome.history.events.iter();
    let renewed = renewed.filter(|event| matches!(event.what, What::Renewed { .. })).count();
    assert!(held.count() > most && renewed > renewals, "{outcome}");
    let changed = outcome.verdict("beside").is_some_and(|beside| beside.examined > 3);
    assert!(changed || servers.url().starts_with("redlock"), "no change: {outcome}");
    // An instance that was stopped may answer an acquire when there is no time left for a renewal.
    let mut late = HashSet::new();
    for event in &outcome.history.events {
        match &event.what {
            What::Granted { attempt, valid_until, .. } if valid_until.since(event.at) < TTL => {
                late.insert((&event.process, *attempt));
            }
            What::Lost { attempt, .. } => {
                assert!(late.contains(&(&event.process, *attempt)), "{event:?}\n{outcome}");
            }
            _ => {}
        }
    }
}

#[test]
fn h375_clients_of_two_instances_lose_no_hold() {
    let servers = Servers::start(Kind::Single, "").unwrap();
    clients_of_two_instances_lose_no_hold(&servers, (100, 50));
}

#[test]
fn h436_clients_of_two_instances_lose_no_hold_on_redlock() {
    let servers = Servers::start(Kind::Redlock, "").unwrap();
    clients_of_two_instances_lose_no_hold(&servers, (50, 20));
}

fn clients_of_two_instances_lose_no_hold_on(kind: &str) {
    let servers = stores::start(kind, "").unwrap();
    clients_of_two_instances_lose_no_hold(&*servers, (20, 20));
}

#[test]
fn h436_clients_of_two_instances_lose_no_hold_on_etcd() {
    clients_of_two_instances_lose_no_hold_on("etcd");
}

#[test]
fn h436_clients_of_two_instances_lose_no_hold_on_postgres() {
    clients_of_two_instances_lose_no_hold_on("postgres");
}

#[test]
fn h436_clients_of_two_instances_lose_no_hold_on_kubernetes() {
    clients_of_two_instances_lose_no_hold_on("kubernetes");
}

#[test]
fn connections_to_the_service_are_cut() {
    let folder = tempfile::tempdir().unwrap();
    let plan = on_files(&folder).serve(&[Fault::Cut, Fault::LoseAnswers]).unwrap();
    play(folder, plan);
}

#[test]
fn the_store_of_the_service_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let servers = Servers::start(Kind::Single, "").unwrap();
    let mut plan = plan(&servers.url(), &folder);
    servers.arm(&mut plan, &["freeze", "cuts"]).unwrap();
    let outcome = play(folder, plan.serve(&[Fault::Kill]).unwrap());
    assert!(outcome.verdict("told").unwrap().examined > 0, "{outcome}");
}
