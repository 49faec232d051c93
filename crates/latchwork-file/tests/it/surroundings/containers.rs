//! Containers whose manager gives each a boot id of its own, as systemd-nspawn and LXC do.
//!
//! A container is a mount namespace here, with another file mounted over the kernel's boot id.

use std::path::{Path, PathBuf};
use std::process::Command;

use latchwork_store::*;
use rustix::process::Signal;

use crate::common::*;

/// A place for the files, and what the containers believe to be their boots.
struct Machine {
    home: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn locks(&self) -> PathBuf {
        self.home.path().join("locks")
    }

    /// A process on the machine itself.
    fn on_the_host(&self) -> Process {
        connected(start("surroundings::steps", &self.locks()))
    }

    /// A process in a container that says it was booted as number `boot`.
    fn in_a_container(&self, boot: u32) -> Process {
        let id = self.home.path().join(format!("boot-{boot}"));
        std::fs::write(&id, format!("{boot:08x}-1111-4222-8333-444455556666\n")).unwrap();
        let inner =
            command(&std::env::current_exe().unwrap(), "surroundings::steps", &self.locks());
        let mut outer = unshare();
        let mount = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        outer.args(["--mount", "sh", "-c", mount]).arg(&id);
        within(outer, &inner)
    }

    /// A process that is number 1 where it runs, sees no other, and no other sees by this number.
    fn in_a_pid_namespace(&self) -> Process {
        let inner =
            command(&std::env::current_exe().unwrap(), "surroundings::steps", &self.locks());
        let mut outer = unshare();
        outer.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        within(outer, &inner)
    }
}

/// Runs one command by another.
fn within(mut outer: Command, inner: &Command) -> Process {
    outer.arg(inner.get_program()).args(inner.get_args());
    outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    connected(Process::spawn(outer))
}

/// What starts a process in namespaces of its own.
fn unshare() -> Command {
    let mut outer = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        outer.args(["--user", "--map-root-user"]);
    }
    outer
}

fn connected(mut process: Process) -> Process {
    assert_eq!(process.line(), "connected");
    process
}

fn ask(process: &mut Process, what: &str) -> String {
    process.tell(what);
    process.line()
}

fn token(answer: &str) -> u64 {
    match answer.strip_prefix("granted ") {
        Some(token) => token.parse().unwrap(),
        None => panic!("not granted: {answer}"),
    }
}

fn kill(mut process: Process) {
    process.signal(Signal::KILL);
    process.child.wait().unwrap();
}

/// H89: the holder has one boot id and the other one another, in both directions and between two
/// containers. The other is blocked, the holder keeps its lock, and the token grows when it passes.
#[test]
fn h89_other_boot_ids_make_no_second_holder() {
    let machine = Machine::new();
    let start: [fn(&Machine) -> Process; 3] =
        [Machine::on_the_host, |m| m.in_a_container(1), |m| m.in_a_container(2)];
    let mut last = 0;
    for (first, second) in [(0, 1), (1, 0), (1, 2)] {
        let (mut holder, mut other) = (start[first](&machine), start[second](&machine));
        let given = token(&ask(&mut holder, "try"));
        assert!(given > last, "{given} after {last}");
        assert_eq!(ask(&mut other, "try"), "blocked", "{first} holds, {second} tries");
        assert_eq!(ask(&mut holder, "renew"), "held", "{first} holds, {second} tried");
        assert_eq!(ask(&mut other, "try"), "blocked");
        assert_eq!(ask(&mut holder, "release"), "released");
        last = token(&ask(&mut other, "wait"));
        assert!(last > given, "{last} after {given}");
        assert_eq!(ask(&mut holder, "try without a place"), "blocked");
    }
}

/// H89: a pid says nothing in another PID namespace. The holder of one is alive for all others, in both
/// directions and between two that have the same pid, and its death is noticed.
#[test]
fn h89_pid_namespaces_make_no_second_holder() {
    let machine = Machine::new();
    let start: [fn(&Machine) -> Process; 3] =
        [Machine::on_the_host, Machine::in_a_pid_namespace, Machine::in_a_pid_namespace];
    let mut last = 0;
    for (first, second) in [(0, 1), (1, 0), (1, 2)] {
        let (mut holder, mut other) = (start[first](&machine), start[second](&machine));
        let given = token(&ask(&mut holder, "try"));
        assert!(given > last, "{given} after {last}");
        assert_eq!(ask(&mut other, "try"), "blocked", "{first} holds, {second} tries");
        assert_eq!(ask(&mut holder, "renew"), "held", "{first} holds, {second} tried");
        assert_eq!(ask(&mut other, "try"), "blocked");
        // One that comes later removes what dead processes left.
        let mut third = start[second](&machine);
        assert_eq!(ask(&mut third, "try"), "blocked", "{first} holds, {second} connected");
        kill(third);
        other.tell("wait");
        kill(holder);
        last = token(&other.line());
        assert!(last > given, "{last} after {given}");
        assert_eq!(ask(&mut other, "release"), "released");
    }
}

/// H89: a holder that is killed in one container is followed at once by the waiter of another.
#[test]
fn h89_a_death_in_another_container_is_noticed() {
    let machine = Machine::new();
    let mut waiter = machine.on_the_host();
    for boot in [1, 2] {
        let mut holder = machine.in_a_container(boot);
        let given = token(&ask(&mut holder, "try"));
        assert_eq!(ask(&mut waiter, "try"), "blocked");
        waiter.tell("wait");
        kill(holder);
        assert!(token(&waiter.line()) > given);
        assert_eq!(ask(&mut waiter, "release"), "released");
    }
}

/// H89: after a restart of the machine nothing is held: another boot id, and no process that was
/// there before. A process of the new boot that merely lives changes nothing.
#[test]
fn h89_a_reboot_frees_held_locks() {
    let machine = Machine::new();
    let mut last = 0;
    for boot in 1..4 {
        let _idle = machine.in_a_container(boot);
        let mut holder = machine.in_a_container(boot);
        let given = token(&ask(&mut holder, "try"));
        assert!(given > last, "{given} after {last}");
        last = given;
        assert_eq!(ask(&mut holder, "renew"), "held");
        kill(holder);
    }
}

/// H89: the holder's process is gone, and the command that it started holds its session open.
#[test]
fn h89_a_command_left_in_a_container_keeps_its_lock() {
    let machine = Machine::new();
    let mut holder = machine.in_a_container(1);
    token(&ask(&mut holder, "try"));
    let command: i32 = ask(&mut holder, "leave a command behind").parse().unwrap();
    kill(holder);
    let mut other = machine.in_a_container(2);
    assert_eq!(ask(&mut other, "try"), "blocked", "the command still runs");
    other.tell("wait");
    let command = rustix::process::Pid::from_raw(command).unwrap();
    rustix::process::kill_process(command, Signal::KILL).unwrap();
    token(&other.line());
}

/// H89: containers that take turns draw their tokens from one counter: it is not put up to its
/// ceiling, with a sync, whenever another one comes.
#[test]
fn h89_containers_share_the_counter_of_tokens() {
    let machine = Machine::new();
    let mut both = [machine.in_a_container(1), machine.in_a_container(2)];
    let mut first = 0;
    let mut last = 0;
    for turn in 0..20 {
        let process = &mut both[turn % 2];
        let given = token(&ask(process, "wait"));
        assert!(given > last, "{given} after {last}");
        last = given;
        if first == 0 {
            first = given;
        }
        assert_eq!(ask(process, "release"), "released");
    }
    assert!(last - first < 100, "twenty grants raised the token by {}", last - first);
}

/// H89: a session that cannot be looked at might be of a container or of a former boot. Nobody is
/// let in, and the error says why.
#[test]
fn h89_an_unverifiable_session_blocks_grants() {
    let machine = Machine::new();
    let mut holder = machine.in_a_container(1);
    token(&ask(&mut holder, "try"));
    let sessions = machine.locks().join("sessions");
    let life = only(&sessions, "life");
    // Nobody follows a link, not even root.
    std::fs::rename(&life, life.with_extension("kept")).unwrap();
    std::os::unix::fs::symlink("nowhere", &life).unwrap();
    let mut other = machine.in_a_container(2);
    let answer = ask(&mut other, "try");
    assert!(answer.starts_with("error "), "{answer}");
    assert!(answer.contains("boot id") && answer.contains(life.to_str().unwrap()), "{answer}");
    let next_step = "give this user the right to read the session files; if the machine was restarted since \
                     then, remove that session file";
    assert!(answer.ends_with(next_step), "{answer}");
    // As it says.
    kill(holder);
    std::fs::remove_file(&life).unwrap();
    token(&ask(&mut other, "try"));
}

/// The one file with this ending.
fn only(dir: &Path, ending: &str) -> PathBuf {
    let mut found = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    found.find(|path| path.extension().is_some_and(|e| e == ending)).unwrap()
}

/// H89: `doctor` tells that processes with another boot id use the directory.
#[tokio::test]
async fn h89_the_doctor_reports_other_boot_ids() {
    let machine = Machine::new();
    let finding = async || {
        let report = latchwork_file::doctor(machine.locks(), io()).await.unwrap();
        report.findings.into_iter().find(|finding| finding.code == "boot-id").unwrap()
    };
    let _host = machine.on_the_host();
    assert_eq!(finding().await.severity, doctor::Severity::Ok);
    let _container = machine.in_a_container(1);
    let told = finding().await;
    assert_eq!(told.severity, doctor::Severity::Info);
    assert!(told.found.contains("1 of 2"), "{}", told.found);
}
