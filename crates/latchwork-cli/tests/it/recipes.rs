//! The scripts of the recipes in `docs/guide/recipes`, with the faults that their pages promise to survive.
//!
//! Their text is in `proof/recipes`, which cannot know where this command is built.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::Signal;

use crate::common::{Finished, Running, Store, eventually};
use crate::hold::{path, status};

/// The text of a script between its marks, which belong to the page.
fn recipe(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proof/recipes/scripts");
    let text = fs::read_to_string(format!("{folder}/{name}")).unwrap();
    let (_, body) = text.split_once('\n').unwrap();
    body.trim_end().strip_suffix("# end").unwrap().to_owned()
}

/// Writes a script of this test's own.
fn write(store: &Store, name: &str, text: &str) {
    let file = store.file(name);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// What is done in the scripts' stead: `all` notes it, `build` runs as well.
fn steps(store: &Store, build: &str) {
    for step in ["build", "migrate", "switch", "report", "heartbeat"] {
        let rest = if step == "build" { build } else { "" };
        let note = format!("#!/bin/sh\necho \"{step} $*\" >> \"$TRACE/all\"\n{rest}\n");
        write(store, &format!("{step}.sh"), &note);
    }
}

fn done(store: &Store) -> Vec<String> {
    let all = fs::read_to_string(store.file("all")).unwrap_or_default();
    all.lines().map(str::to_owned).collect()
}

/// A recipe as a process, in the folder with its steps.
fn started(store: &Store, name: &str, wait: &str) -> Running {
    write(store, name, &recipe(name));
    let mut command = Command::new(store.file(name));
    command.env("PATH", path()).env("DEPLOY_WAIT", wait).env("LATCHWORK_TTL", "1s");
    command.current_dir(store.file(""));
    Running::start(store.at_this_store(command))
}

const DEPLOYMENTS: [&str; 2] = ["deploy-run.sh", "deploy-hold.sh"];

fn until_free(store: &Store, name: &str) {
    eventually("the release", || (status(store, name) == "free\n").then_some(()));
}

#[test]
fn a_deployment_passes_its_token_to_the_steps_and_releases() {
    for name in DEPLOYMENTS {
        let store = Store::new();
        steps(&store, "");
        let end = started(&store, name, "10m").finish();
        assert_eq!(end.code(), 0, "{name}: {end:?}");
        let [build, migrate, switch] = &done(&store)[..] else { panic!("{name}: {end:?}") };
        let token = migrate.strip_prefix("migrate ").unwrap();
        assert!(token.parse::<u64>().unwrap() > 0);
        assert_eq!((&**build, &**switch), ("build ", &*format!("switch {token}")), "{name}");
        until_free(&store, "deploy/shop");
    }
}

#[test]
fn a_second_deployment_does_nothing_when_its_wait_is_over() {
    for name in DEPLOYMENTS {
        let store = Store::new();
        steps(&store, "exec sleep 600");
        let mut first = started(&store, name, "10m");
        eventually("the build", || (!done(&store).is_empty()).then_some(()));
        let second = started(&store, name, "0").finish();
        assert_eq!(second.code(), 75, "{name}: {second:?}");
        assert_eq!(done(&store), ["build "], "of the first one");
        first.signal(Signal::TERM);
        first.wait();
        until_free(&store, "deploy/shop");
    }
}

/// The variables of a hold stay exported after its release, while somebody else deploys.
#[test]
fn a_deployment_takes_no_variable_for_a_lock() {
    let store = Store::new();
    steps(&store, "");
    write(&store, "deploy-run.sh", &recipe("deploy-run.sh"));
    let shell = |text: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", text]).env("PATH", path()).current_dir(store.file(""));
        Running::start(store.at_this_store(command))
    };
    let hold = "held=$(latchwork hold deploy/shop) && eval \"$held\" || exit; ";
    let script = "DEPLOY_WAIT=0 ./deploy-run.sh; echo $?";
    let under_its_hold = shell(&format!("{hold}{script}")).finish();
    assert_eq!(under_its_hold.stdout, "0\n", "{under_its_hold:?}");
    fs::remove_file(store.file("all")).unwrap();
    until_free(&store, "deploy/shop");
    let later = "test \"$LATCHWORK_KEY\" = deploy/shop || exit; until [ -e \"$TRACE/go\" ]; do sleep 0.05; done; ";
    let shell = shell(&format!("{hold}latchwork release; echo released; {later}{script}"));
    shell.stdout.until("released");
    let other =
        store.latchwork(&["run", "deploy/shop", "--", "sh", "-c", "echo up; exec sleep 600"]);
    let other = Running::start(other);
    other.stdout.until("up");
    write(&store, "go", "");
    let end = shell.finish();
    assert_eq!((&*end.stdout, done(&store)), ("75\n", Vec::new()), "{end:?}");
}

/// Somebody takes the lock away, as a store does that was silent for a ttl.
#[test]
fn a_deployment_that_loses_its_lock_stops_within_a_step() {
    for name in DEPLOYMENTS {
        let store = Store::new();
        steps(&store, "exec sleep 600");
        let deployment = started(&store, name, "10m");
        eventually("the build", || (!done(&store).is_empty()).then_some(()));
        assert_eq!(store.output(&["release", "--force", "deploy/shop"]).code(), 0);
        let end = deployment.finish();
        assert_eq!(end.code(), 73, "{name}: {end:?}");
        assert_eq!(done(&store), ["build "], "{name}");
    }
}

/// What CI systems do to a job that is cancelled.
#[test]
fn a_cancelled_deployment_ends_its_step_and_releases() {
    for name in DEPLOYMENTS {
        for signal in [Signal::TERM, Signal::KILL] {
            let store = Store::new();
            steps(&store, "exec sleep 5");
            let mut deployment = started(&store, name, "10m");
            eventually("the build", || (!done(&store).is_empty()).then_some(()));
            deployment.signal(signal);
            let end = deployment.wait();
            assert!(!end.success(), "{name}: {end}");
            until_free(&store, "deploy/shop");
            assert_eq!(done(&store), ["build "], "{name}");
        }
    }
}

/// The crontab's commands, for a period that ends when nobody tests any more.
fn crontab(store: &Store) -> Vec<String> {
    let text = recipe("crontab").replace("/srv/shop", &store.file("").display().to_string());
    let text = text.replace("--every 1d", "--every 100y");
    // Five fields of time, and the command.
    let commands = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let commands = commands.map(|line| line.split_whitespace().skip(5).collect::<Vec<_>>());
    commands.map(|words| words.join(" ")).collect()
}

/// As cron does it: by `sh -c`, with a few variables.
fn by_cron(store: &Store, command: &str) -> Running {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", path());
    Running::start(store.at_this_store(shell))
}

#[test]
fn one_of_three_cron_hosts_runs_the_task() {
    let store = Store::new();
    steps(&store, "");
    let fails_once = "#!/bin/sh\necho report >> \"$TRACE/all\"\nmkdir \"$TRACE/failed\" 2> /dev/null && echo broken && exit 1\nexit 0\n";
    write(&store, "report.sh", fails_once);
    let [report, check] = &crontab(&store)[..] else { panic!("two lines") };
    let mail = by_cron(&store, check).finish();
    assert_eq!(mail.stdout, "the report of today is missing\n");

    let hosts: Vec<_> = (0..3).map(|_| by_cron(&store, report)).collect();
    let ends: Vec<Finished> = hosts.into_iter().map(Running::finish).collect();
    let mut codes: Vec<_> = ends.iter().map(Finished::code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 0, 1], "{ends:?}");
    assert_eq!(done(&store), ["report", "report"]);
    // Cron mails what is printed: one of the three hosts has something to say.
    let mails = ends.iter().filter(|end| !end.stdout.is_empty() || !end.stderr.is_empty());
    assert_eq!(mails.count(), 1, "{ends:?}");
    let mail = by_cron(&store, check).finish();
    assert_eq!((&*mail.stdout, &*mail.stderr), ("", ""));
}

#[test]
fn only_the_reporting_host_sends_a_heartbeat() {
    let store = Store::new();
    steps(&store, "");
    for _ in 0..3 {
        assert_eq!(started(&store, "must-run.sh", "").finish().code(), 0);
    }
    assert_eq!(done(&store), ["report ", "heartbeat "]);
    assert_eq!(store.output(&["once", "--reset", "report"]).code(), 0);
    write(&store, "report.sh", "#!/bin/sh\nexit 9\n");
    assert_eq!(started(&store, "must-run.sh", "").finish().code(), 9);
    assert_eq!(done(&store), ["report ", "heartbeat "]);
}
