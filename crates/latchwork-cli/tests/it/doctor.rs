//! `doctor` and `init`, on real directories.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use crate::common::{Finished, Holder, Running, Store};
use latchwork_services::{RedisOptions, RedisServer, ServerClock};
use serde_json::Value;

fn doctor(store: &Store) -> (Value, i32) {
    let done = store.output(&["--json", "doctor"]);
    assert_eq!(done.stdout.lines().count(), 1, "{done:?}");
    (serde_json::from_str(&done.stdout).unwrap(), done.code())
}

fn finding<'a>(report: &'a Value, code: &str) -> &'a Value {
    let mut all = report["findings"].as_array().unwrap().iter();
    all.find(|finding| finding["code"] == code).unwrap_or_else(|| panic!("{code}: {report}"))
}

/// Each problem has a consequence and, if it is more than information, a remedy.
pub(crate) fn explains_its_findings(report: &Value) {
    for one in report["findings"].as_array().unwrap() {
        let said = |field: &str| !one[field].as_str().unwrap().is_empty();
        assert!(said("found"), "{one}");
        match one["severity"].as_str().unwrap() {
            "ok" => assert!(!said("consequence") && !said("remedy"), "{one}"),
            "info" => assert!(said("consequence"), "{one}"),
            _ => assert!(said("consequence") && said("remedy"), "{one}"),
        }
    }
}

/// Runs a command of its own on a store by its address.
pub(crate) fn at(url: &str, args: &[&str]) -> Finished {
    let store = Store::new();
    let mut all = vec!["--store", url];
    all.extend(args);
    Running::start(store.latchwork(&all)).finish()
}

#[test]
fn doctor_names_consequence_and_remedy_of_each_problem() {
    let store = Store::new();
    assert_eq!(store.output(&["run", "x", "--", "true"]).code(), 0);
    let (report, code) = doctor(&store);
    assert_eq!(code, 0);
    assert_eq!(report["fit"], true);
    assert_eq!(report["store"], store.url());
    for code in ["directory", "rights", "usable", "sessions", "records", "boot-clock"] {
        assert_eq!(finding(&report, code)["severity"], "ok", "{report}");
    }
    explains_its_findings(&report);
}

#[test]
fn a_directory_below_a_temp_directory_is_warned_of() {
    // The stores of these tests lie in one.
    let store = Store::new();
    let (report, code) = doctor(&store);
    assert_eq!(code, 0, "a warning is not critical");
    let temp = finding(&report, "temp-directory");
    assert_eq!(temp["severity"], "warning");
    assert!(temp["remedy"].as_str().unwrap().contains("/var/lib"), "{temp}");
    let text = store.output(&["doctor"]).stdout;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], store.url());
    let at = lines.iter().position(|line| line.starts_with("warning   temp-directory")).unwrap();
    assert!(lines[at + 1].trim_start().starts_with("then  "), "{text}");
    assert!(lines[at + 2].trim_start().starts_with("do  "), "{text}");
    assert_eq!(lines.last(), Some(&"fit for locks; the worst is warning"));
}

#[test]
fn inspecting_creates_nothing_and_frees_nothing() {
    let store = Store::new();
    let (report, code) = doctor(&store);
    assert_eq!(code, 0);
    let directory = finding(&report, "directory");
    assert_eq!(directory["severity"], "info");
    assert_eq!(
        directory["remedy"],
        "to share it between users, create it first, with the mode that it needs"
    );
    assert_eq!(finding(&report, "rights")["severity"], "ok");
    assert!(!store.path().exists());
    fs::write(store.path(), "").unwrap();
    let (report, code) = doctor(&store);
    assert_eq!((code, &finding(&report, "directory")["severity"]), (71, &"critical".into()));
    // Below a file nothing can be made.
    let done = at(&format!("{}/below", store.url()), &["--json", "doctor"]);
    let report = serde_json::from_str(&done.stdout).unwrap();
    let directory = finding(&report, "directory");
    assert_eq!((done.code(), &directory["severity"]), (71, &"critical".into()));
    assert_eq!(directory["remedy"], "check the path of the lock directory");
    fs::remove_file(store.path()).unwrap();
    let holder = store.holder(&[], "sleep 300; echo x");
    let ready = holder.ready();
    let (report, _) = doctor(&store);
    assert!(finding(&report, "records")["found"].as_str().unwrap().starts_with("1 key"));
    assert!(finding(&report, "sessions")["found"].as_str().unwrap().starts_with("1 alive"));
    let shown = store.output(&["--json", "show", "x"]).stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["holders"][0]["token"], ready.token.to_string());
}

#[test]
fn sessions_of_the_dead_are_named_and_removed() {
    let store = Store::new();
    let mut holder = store.holder(&[], "sleep 300; echo x");
    holder.ready();
    let guardian = holder.guardian();
    holder.child.kill().unwrap();
    holder.wait();
    crate::common::eventually("the end of the guardian", || {
        matches!(crate::common::state(guardian), '-' | 'Z').then_some(())
    });
    let (report, code) = doctor(&store);
    assert_eq!(code, 0);
    let sessions = finding(&report, "sessions");
    assert_eq!(sessions["severity"], "info", "{sessions}");
    assert_eq!(sessions["found"], "0 alive, 1 of dead processes");
    let (report, _) = doctor(&store);
    assert_eq!(finding(&report, "sessions")["found"], "0 alive");
}

#[test]
fn a_damaged_record_is_critical() {
    let store = Store::new();
    assert_eq!(store.output(&["run", "x", "--", "true"]).code(), 0);
    let mut damaged = 0;
    for stripe in fs::read_dir(store.path().join("records")).unwrap() {
        for record in fs::read_dir(stripe.unwrap().path()).unwrap() {
            fs::write(record.unwrap().path(), [0xA5; 4096]).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    let (report, code) = doctor(&store);
    assert_eq!((code, &report["fit"]), (71, &Value::Bool(false)), "{report}");
    let records = finding(&report, "records");
    assert_eq!(records["severity"], "critical");
    assert!(records["found"].as_str().unwrap().contains("/records/"), "{records}");
    let done = store.output(&["doctor"]);
    assert_eq!(done.code(), 71);
    assert!(done.stdout.ends_with("NOT fit for locks; the worst is critical\n"), "{done:?}");
}

#[test]
fn doctor_reports_wrong_version_and_open_mode() {
    let store = Store::new();
    fs::create_dir(store.path()).unwrap();
    let locks = store.path().display().to_string();
    let sticky = |dir: &str| ["set the sticky bit: chmod +t ", dir].concat();
    for (mode, severity, remedy) in [
        (
            0o777,
            "warning",
            ["share it by a group: chgrp GROUP ", &locks, " && chmod 3770 ", &locks].concat(),
        ),
        (0o3770, "ok", String::new()),
        (0o770, "info", sticky(&locks)),
        (0o1770, "ok", String::new()),
    ] {
        fs::set_permissions(store.path(), fs::Permissions::from_mode(mode)).unwrap();
        let (report, code) = doctor(&store);
        let told = finding(&report, "mode");
        assert_eq!(code, 0);
        assert_eq!((&told["severity"], &told["remedy"]), (&severity.into(), &remedy.into()));
    }
    let parent = store.path().parent().unwrap().to_owned();
    for (mode, severity, remedy) in
        [(0o777, "warning", sticky(&parent.display().to_string())), (0o1777, "ok", String::new())]
    {
        fs::set_permissions(&parent, fs::Permissions::from_mode(mode)).unwrap();
        let (report, _) = doctor(&store);
        let told = finding(&report, "path");
        assert_eq!((&told["severity"], &told["remedy"]), (&severity.into(), &remedy.into()));
    }
    fs::write(store.path().join("latchwork.format"), "latchwork-file 7\n").unwrap();
    let (report, code) = doctor(&store);
    assert_eq!(code, 71);
    let usable = finding(&report, "usable");
    assert!(usable["found"].as_str().unwrap().contains("latchwork-file 7"), "{usable}");
    assert!(usable["remedy"].as_str().unwrap().contains("same version"), "{usable}");
}

/// `latchwork` in a mount namespace of its own, after a script has mounted something.
fn in_a_container(store: &Store, mount: &str, args: &[&str]) -> Finished {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
    command.arg(env!("CARGO_BIN_EXE_latchwork")).args(args);
    Running::start(store.at_this_store(command)).finish()
}

#[test]
fn a_container_without_proc_is_critical() {
    let store = Store::new();
    let mount = "mount -t tmpfs none /proc";
    let done = in_a_container(&store, mount, &["--json", "doctor"]);
    let report = serde_json::from_str(&done.stdout).unwrap();
    let boot = finding(&report, "boot-id");
    assert_eq!((done.code(), &boot["severity"]), (71, &"critical".into()), "{report}");
    assert_eq!(boot["remedy"], "mount /proc in this container");
    let done = in_a_container(&store, mount, &["run", "x", "--", "true"]);
    assert!(done.stderr.contains("; mount /proc in this container"), "{done:?}");
    assert!(!done.stderr.contains("panic"), "{done:?}");
}

#[test]
fn few_inodes_are_warned_of_and_none_are_critical() {
    let store = Store::new();
    fs::create_dir(store.path()).unwrap();
    let remedy =
        "remove files that are not needed from this file system (`df -i` shows its inodes)";
    for (inodes, severity, code) in [(900, "warning", 0), (10, "warning", 71), (1, "critical", 71)]
    {
        let mount = format!("mount -t tmpfs -o nr_inodes={inodes} none {}", store.path().display());
        let done = in_a_container(&store, &mount, &["--json", "doctor"]);
        let report: Value = serde_json::from_str(&done.stdout).unwrap();
        let told = finding(&report, "inodes");
        let judged = (&told["severity"], &told["remedy"], done.code());
        assert_eq!(judged, (&severity.into(), &remedy.into(), code), "{report}");
        if inodes == 10 {
            let usable = finding(&report, "usable")["remedy"].as_str().unwrap();
            assert!(usable.starts_with("free space or inodes on the file system"), "{usable}");
        }
    }
}

#[test]
fn a_wall_clock_that_was_not_set_is_warned_of() {
    let (store, clock) = (Store::new(), ServerClock::of_clients().unwrap());
    // A board without a battery starts at the beginning of time.
    clock.step_back(clock.now() - Duration::from_secs(60)).unwrap();
    let mut command = store.latchwork(&["--json", "doctor"]);
    clock.give_to(&mut command);
    let done = Running::start(command).finish();
    let report = serde_json::from_str(&done.stdout).unwrap();
    let wall = finding(&report, "wall-clock");
    assert_eq!((done.code(), &wall["severity"]), (0, &"warning".into()), "{report}");
    assert_eq!(wall["remedy"], "set it with a time service (NTP)");
}

/// Root has used the directory of a service by an older version, or restored it from a backup.
#[test]
fn h545_parts_of_another_owner_are_told_of_with_the_remedy() {
    let store = Store::new();
    let locks = store.path();
    assert_eq!(store.output(&["run", "x", "--", "true"]).code(), 0);
    let run = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words);
        Running::start(store.at_this_store(command)).finish()
    };
    let (program, dir) = (store.file("program"), store.file(""));
    let [program, dir, path] = [&program, &dir, &locks].map(|it| it.to_str().unwrap());
    assert_eq!(run("cp", &[env!("CARGO_BIN_EXE_latchwork"), program]).code(), 0);
    assert_eq!(run("chmod", &["0755", dir]).code(), 0);
    let as_owner = |words: &[&str]| {
        let user = ["--reuid", "65533", "--regid", "65533", "--clear-groups", "--", program];
        run("setpriv", &[&user[..], words].concat())
    };
    let chown = ["as root, run `", "chown -R 65533:65533 ", path, "`"].concat();
    for part in ["sessions", "stripes", "records", "records/00", "stripes/3f"] {
        assert_eq!(run("chown", &["-R", "65533:65533", path]).code(), 0);
        assert_eq!(as_owner(&["run", "x", "--", "true"]).code(), 0, "{part}");
        assert_eq!(finding(&doctor(&store).0, "owner")["severity"], "ok", "{part}");
        assert_eq!(run("chown", &["0:0", &format!("{path}/{part}")]).code(), 0);
        let (report, code) = doctor(&store);
        let owner = finding(&report, "owner");
        assert_eq!((code, &owner["severity"]), (0, &"warning".into()), "{part}: {report}");
        let found = owner["found"].as_str().unwrap();
        assert!(found.contains(&format!("{path}/{part} belongs to root")), "{part}: {found}");
        assert_eq!(owner["remedy"], chown, "{part}");
        explains_its_findings(&report);
        // These names use all stripes.
        let names: Vec<_> = (0..300).map(|name| name.to_string()).collect();
        let names = names.iter().map(String::as_str);
        let words: Vec<_> = ["run"].into_iter().chain(names).chain(["--", "true"]).collect();
        let done = as_owner(&words);
        assert!(done.code() == 77 && done.stderr.contains(&chown), "{part}: {done:?}");
    }
}

#[test]
fn few_descriptors_are_warned_of() {
    let store = Store::new();
    let script = format!("ulimit -n 100; '{}' --json doctor", env!("CARGO_BIN_EXE_latchwork"));
    let done = Running::start(store.script(&script)).finish();
    let report = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(finding(&report, "descriptors")["severity"], "warning");
}

#[test]
fn the_doctor_names_the_limits_of_memory() {
    let done = at("mem:", &["doctor"]);
    assert_eq!(done.code(), 0);
    assert!(done.stdout.contains("other processes are not excluded"), "{done:?}");
    assert!(
        done.stdout.contains("use another store if tokens must outlive the process"),
        "{done:?}"
    );
}

#[test]
fn a_cache_is_no_place_for_locks() {
    let options =
        RedisOptions::new().config("maxmemory 64mb").config("maxmemory-policy allkeys-lru");
    let server = RedisServer::start(&options).unwrap();
    let done = at(&server.url(), &["--json", "doctor"]);
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((done.code(), &report["fit"]), (71, &Value::Bool(false)), "{done:?}");
    let eviction = finding(&report, "eviction-policy");
    assert_eq!(eviction["severity"], "critical", "{eviction}");
    assert_eq!(eviction["part"], format!("127.0.0.1:{}", server.port()));
    let text = at(&server.url(), &["doctor"]).stdout;
    assert!(text.contains("maxmemory-policy noeviction"), "{text}");
}

#[test]
fn a_guarded_server_is_in_quarantine_until_init() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = format!("{}?guard=true", server.url());
    let blocked = at(&url, &["run", "--wait", "100ms", "x", "--", "true"]);
    assert_eq!(blocked.code(), 75, "{blocked:?}");
    assert!(blocked.stderr.contains("quarantine"), "{blocked:?}");
    assert!(at(&url, &["doctor"]).stdout.contains("quarantine"));
    let done = at(&url, &["init"]);
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(
        done.stdout.contains("no quarantine") && done.stdout.contains("max_ttl 60s"),
        "{done:?}"
    );
    assert_eq!(at(&url, &["run", "--wait", "100ms", "x", "--", "true"]).code(), 0);
    assert_eq!(at(&server.url(), &["init"]).stdout.lines().count(), 1);
}

#[test]
fn a_store_that_needs_no_preparation_says_so() {
    let store = Store::new();
    for said in
        ["prepared\n  made the directory and the files in it", "this store needs no preparation"]
    {
        let done = store.output(&["init"]);
        assert_eq!((done.code(), done.stdout), (0, format!("{}: {said}\n", store.url())));
        assert!(store.path().join("sessions").exists());
    }
    let mistyped = store.file("none/locks");
    let done = store.output(&["--store", mistyped.to_str().unwrap(), "init"]);
    assert!(done.code() == 64 && !mistyped.exists(), "{done:?}");
    let value: Value = serde_json::from_str(&at("mem:", &["--json", "init"]).stdout).unwrap();
    assert_eq!(value["steps"], Value::Array(vec![]));
    for command in ["doctor", "init"] {
        assert_eq!(at("file:locks", &[command]).code(), 64);
        assert!(store.output(&[command, "--help"]).stdout.contains("Examples:\n  latchwork"));
    }
}
