//! Another user of a shared lock directory who wishes its users ill.
//!
//! What belongs to the victim lies outside of the lock directory. Whatever the other user puts into
//! the directory, and whenever: no file is made there, none is changed or removed, no mode changes.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use latchwork_file::FileBackend;
use latchwork_store::*;
use rustix::fs::RenameFlags;

use crate::common::*;

const NOBODY: u32 = 65_534;
const SOMEBODY: u32 = 65_533;

/// A directory that two users share, and what is the victim's own.
struct Scene {
    home: tempfile::TempDir,
    victim: u32,
    before: BTreeMap<PathBuf, String>,
}

impl Scene {
    /// With a lock directory of this mode, which belongs to the victim.
    fn new(victim: u32, mode: u32) -> Self {
        let home = tempfile::tempdir().unwrap();
        set_mode(home.path(), 0o755);
        // By a process of its own: one that another test starts now would inherit the file open for
        // writing, and nobody could run it.
        let program = std::env::current_exe().unwrap();
        let copied = Command::new("cp").arg(program).arg(home.path().join("program")).status();
        assert!(copied.unwrap().success());
        let mut this = Self { home, victim, before: BTreeMap::new() };
        std::fs::create_dir(this.locks()).unwrap();
        set_mode(&this.locks(), mode);
        // To be filled, to be written to, to be removed, to be opened up.
        std::fs::create_dir_all(this.outside().join("private")).unwrap();
        std::fs::write(this.outside().join("empty"), "").unwrap();
        std::fs::write(this.outside().join("zeros"), [0; 4096]).unwrap();
        std::fs::write(this.outside().join("text"), "mine").unwrap();
        let hash = "0".repeat(40);
        std::fs::write(this.outside().join(hash), "").unwrap();
        let pipe = this.outside().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, pipe, rustix::fs::Mode::RWXU).unwrap();
        for path in tree(&this.outside()).into_iter().chain([this.locks()]) {
            if rustix::process::geteuid().is_root() {
                std::os::unix::fs::chown(&path, Some(victim), Some(victim)).unwrap();
            }
        }
        for name in ["empty", "zeros", "text", &"0".repeat(40)] {
            set_mode(&this.outside().join(name), 0o600);
        }
        set_mode(&this.outside().join("private"), 0o700);
        this.before = this.look_outside();
        this
    }

    fn locks(&self) -> PathBuf {
        self.home.path().join("locks")
    }

    fn outside(&self) -> PathBuf {
        self.home.path().join("outside")
    }

    fn look_outside(&self) -> BTreeMap<PathBuf, String> {
        let describe = |path: PathBuf| {
            let found = path.symlink_metadata().unwrap();
            let content = if found.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            let (mode, uid, changed) = (found.mode(), found.uid(), found.mtime_nsec());
            (path, format!("{mode:o} {uid} {changed} {content:?}"))
        };
        tree(&self.outside()).into_iter().map(describe).collect()
    }

    /// Lets the victim do whatever can be done with a store, and checks that nothing outside was
    /// touched. Answers what the victim was told, a line for each step.
    fn victim_works(&self) -> String {
        let mut victim = self.start("surroundings::use", self.victim);
        let said = victim.line();
        victim.end();
        self.nothing_outside_was_touched(&said);
        said
    }

    fn nothing_outside_was_touched(&self, said: &str) {
        let after = self.look_outside();
        for (path, was) in &self.before {
            assert_eq!(after.get(path), Some(was), "{} was touched: {said}", path.display());
        }
        let new: Vec<_> = after.keys().filter(|path| !self.before.contains_key(*path)).collect();
        assert!(new.is_empty(), "made outside: {new:?}: {said}");
    }

    fn start(&self, role: &str, user: u32) -> Process {
        let mut command = command(&self.home.path().join("program"), role, &self.locks());
        self.run_as(&mut command, user);
        Process::spawn(command)
    }

    fn run_as(&self, command: &mut Command, user: u32) {
        if rustix::process::geteuid().is_root() && user != 0 {
            command.uid(user).gid(user);
        }
        command.current_dir("/");
    }

    /// Runs a script as the other user, in the lock directory.
    fn attack(&self, script: &str) {
        let mut shell = Command::new("sh");
        shell.args(["-ec", &format!("cd \"$1\"; {script}"), "sh"]).arg(self.locks());
        shell.env("outside", self.outside());
        self.run_as(&mut shell, NOBODY);
        assert!(shell.status().unwrap().success(), "{script}");
    }

    /// Runs a script with all rights: for links that this kernel lets nobody make.
    fn plant(&self, script: &str) {
        let mut shell = Command::new("sh");
        shell.args(["-ec", &format!("cd \"$1\"; {script}"), "sh"]).arg(self.locks());
        shell.env("outside", self.outside());
        assert!(shell.status().unwrap().success(), "{script}");
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The directory and all in it.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    let mut at = 0;
    while at < found.len() {
        if found[at].symlink_metadata().unwrap().is_dir() {
            let inside = std::fs::read_dir(&found[at]).unwrap();
            found.extend(inside.map(|entry| entry.unwrap().path()));
        }
        at += 1;
    }
    found
}

fn victims() -> Vec<u32> {
    match rustix::process::geteuid() {
        root if root.is_root() => vec![0, SOMEBODY],
        user => vec![user.as_raw()],
    }
}

/// Each is in a stripe of its own, as a rule, and that costs a sync in a new directory.
const KEYS: u32 = 16;

/// The part of the victim: every verb, on several keys, and `doctor`.
pub(crate) async fn use_everything(dir: &Path) {
    let mut said = String::new();
    match FileBackend::connect(dir, io()) {
        Err(error) => {
            said = format!("refused {error} | {}", error.next_step().unwrap_or("no hint"))
        }
        Ok(backend) => {
            for n in 0..KEYS {
                let claim = claim(&if n == 0 { "k".to_owned() } else { format!("key {n}") });
                match backend.try_acquire(&claim).await {
                    Ok(_) => {
                        let _ = backend.renew_all(std::slice::from_ref(&claim)).await;
                        let _ = backend.release(&claim, Linger::None).await;
                    }
                    Err(error) => {
                        said = format!("{error} | {}", error.next_step.clone().unwrap_or_default());
                    }
                }
            }
            let everything = Query::Prefix("".into());
            if let Err(error) = backend.inspect(&everything).await {
                said = format!("{error} | {}", error.next_step.clone().unwrap_or_default());
            }
        }
    }
    let report = latchwork_file::doctor(dir, io()).await.unwrap();
    say(format_args!("{said} doctor: {}", report.worst().word()));
}

/// The part of the other user: swaps a directory and a link, as fast as it can.
pub(crate) fn swap(dir: &Path) {
    let (dir, outside) = (dir.to_owned(), dir.join("../outside"));
    for name in ["records", "stripes", "sessions"] {
        symlink(&outside, dir.join(format!("{name}.link"))).unwrap();
    }
    say("swapping");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        for name in ["records", "stripes", "sessions"] {
            let (name, link) = (dir.join(name), dir.join(format!("{name}.link")));
            let cwd = rustix::fs::CWD;
            let _ = rustix::fs::renameat_with(cwd, &name, cwd, &link, RenameFlags::EXCHANGE);
            let _ = rustix::fs::renameat_with(cwd, &name, cwd, &link, RenameFlags::EXCHANGE);
        }
    }
}

const EMPTY: &[&str] = &[
    "ln -s $outside stripes",
    "ln -s $outside records",
    "ln -s $outside sessions",
    "ln -s $outside/private sessions",
    "ln -s $outside/empty latchwork.format",
    "mkfifo latchwork.format",
    "mkdir latchwork.format",
    "truncate -s 1T latchwork.format",
    "mkfifo stripes",
    "mkdir -m 777 records; for i in 0 1 2 3; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do \
     ln -s $outside records/$i$j; done; done",
    "mkdir -m 777 stripes; for i in 0 1 2 3; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do \
     ln -s $outside/empty stripes/$i$j; done; done",
    "mkdir -m 777 stripes; for i in 0 1 2 3; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do \
     mkfifo stripes/$i$j; done; done",
];

/// H90: what another user put into an empty directory before the victim came.
#[test]
fn h90_links_in_an_empty_directory_lead_nowhere() {
    for victim in victims() {
        for script in EMPTY {
            let scene = Scene::new(victim, 0o1777);
            scene.attack(script);
            let said = scene.victim_works();
            let told = said.contains("uid 65534") || victim != 0;
            assert!(told && said.contains(scene.locks().to_str().unwrap()), "{script}: {said}");
            assert!(said.contains("doctor: critical"), "{script}: {said}");
        }
    }
}

/// Sets up as the victim would, then lets the other user change it.
const IN_USE: &[&str] = &[
    "mv records kept; ln -s $outside records",
    "mv stripes kept; ln -s $outside stripes",
    "mv sessions kept; ln -s $outside sessions",
    "mv sessions kept; ln -s $outside/private sessions",
    "mv records/00 records/kept; ln -s $outside records/00",
    "for i in 0 1 2 3; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do \
     for r in records/$i$j/*; do rm -f $r; ln -s $outside/empty $r; done; done; done",
    "for i in 0 1 2 3; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do \
     for r in records/$i$j/*; do rm -f $r; mkfifo $r; done; done; done",
    "for i in 0 1 2 3; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do \
     for r in records/$i$j/*; do rm -f $r; mkdir $r; done; done; done",
    "for i in 0 1 2 3; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do \
     rm stripes/$i$j; ln -s $outside/zeros stripes/$i$j; done; done",
    "for i in 0 1 2 3; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do \
     rm stripes/$i$j; mkfifo stripes/$i$j; done; done",
    "rm latchwork.format; ln -s $outside/text latchwork.format",
];

#[test]
fn h90_links_in_a_directory_in_use_lead_nowhere() {
    for victim in victims() {
        for script in IN_USE {
            let scene = Scene::new(victim, 0o777);
            let said = scene.victim_works();
            assert!(!said.contains("refused"), "{said}");
            scene.attack(script);
            scene.victim_works();
        }
    }
}

/// H90: a file with a second name outside is not written to. Where `fs.protected_hardlinks` is on,
/// nobody may make such a name; so the test makes it with all rights.
#[test]
fn h90_a_second_name_of_a_file_is_not_written_to() {
    let scripts = [
        "for i in 0 1 2 3; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do \
         rm -f records/$i$j/*; ln $outside/empty records/$i$j/$name; done; done",
        "for i in 0 1 2 3; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do \
         ln -f $outside/zeros stripes/$i$j; done; done",
        "for r in records/??/*; do ln -f $outside/zeros $r; done",
        "for r in records/??/*; do ln -f $outside/pipe $r; done",
    ];
    for script in scripts {
        let scene = Scene::new(victims()[0], 0o777);
        scene.victim_works();
        let hash = "0".repeat(40);
        scene.plant(&format!("name={hash}; {script}"));
        scene.victim_works();
    }
}

/// H90: a record as large as can be is refused without being read.
#[test]
fn h90_a_huge_record_is_refused() {
    let scene = Scene::new(victims()[0], 0o777);
    scene.victim_works();
    scene.attack("for r in records/??/*; do rm -f $r; truncate -s 1T $r; done");
    let start = Instant::now();
    let said = scene.victim_works();
    assert!(said.contains("larger"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// H90: the wake file of a waiter is swapped, and the victim that releases writes a poke to it.
#[test]
fn h90_a_poke_reaches_only_the_claims_own_pipe() {
    for target in ["text", "pipe"] {
        let scene = Scene::new(victims()[0], 0o777);
        let mut victim = scene.start("surroundings::steps", scene.victim);
        assert_eq!(victim.line(), "connected");
        victim.tell("try");
        assert!(victim.line().starts_with("granted"));
        let mut other = scene.start("surroundings::steps", NOBODY);
        assert_eq!(other.line(), "connected");
        other.tell("try");
        assert_eq!(other.line(), "blocked");
        // Keeps the pipe open, so that it takes what is written.
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK;
        let path = scene.outside().join("pipe");
        let pipe = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
        scene.plant(&format!("for w in sessions/*.wake; do ln -f $outside/{target} $w; done"));
        victim.tell("release");
        assert_eq!(victim.line(), "released");
        let said = format!("released to {target}");
        scene.nothing_outside_was_touched(&said);
        let read = rustix::io::read(&pipe, &mut [0; 16]);
        assert_eq!(read, Err(rustix::io::Errno::AGAIN), "a pipe outside was written to");
    }
}

/// H90: directories and links take turns while the victim works, for three seconds.
#[test]
fn h90_no_race_leads_outside() {
    for victim in victims() {
        let scene = Scene::new(victim, 0o777);
        scene.victim_works();
        let mut hostile = scene.start("surroundings::swap", NOBODY);
        assert_eq!(hostile.line(), "swapping");
        let start = Instant::now();
        let mut rounds = 0;
        while start.elapsed() < Duration::from_secs(3) || rounds == 0 {
            scene.victim_works();
            rounds += 1;
        }
        hostile.end();
    }
}

/// H90: directories that another user made are not used, and the error says whose they are.
#[test]
fn h90_directories_of_another_user_are_refused() {
    let root = rustix::process::geteuid().is_root();
    for name in ["stripes", "records", "sessions", "records/07"] {
        let scene = Scene::new(victims()[0], 0o1777);
        let script = match name.split_once('/') {
            Some((first, _)) => format!("mkdir -m 777 {first}; mkdir -m 777 {name}"),
            None => format!("mkdir -m 777 {name}"),
        };
        scene.attack(&script);
        let said = scene.victim_works();
        let first = name.split('/').next().unwrap();
        if root {
            assert!(said.contains("refused") && said.contains("uid 65534"), "{said}");
            assert!(said.contains(scene.locks().join(first).to_str().unwrap()), "{said}");
            assert!(said.contains("doctor: critical"), "{said}");
        }
    }
}

/// H90: with the sticky bit the owner goes first, and then all users share. Without it everybody may
/// replace the parts of the directory, whoever made them, and everybody may go first.
#[test]
fn h90_a_sticky_directory_is_set_up_by_its_owner() {
    for (mode, first) in [(0o1777, false), (0o777, true)] {
        let scene = Scene::new(victims()[0], mode);
        let use_as = |user| {
            let mut process = scene.start("surroundings::use", user);
            let said = process.line();
            process.end();
            said
        };
        let said = use_as(NOBODY);
        let shared = rustix::process::geteuid().is_root();
        if shared && !first {
            assert!(said.contains("refused") && said.contains("only its owner"), "{said}");
            assert!(said.contains("latchwork --store file://"), "{said}");
        } else {
            assert!(said.starts_with(" doctor"), "{said}");
        }
        for user in [scene.victim, NOBODY, SOMEBODY] {
            let said = use_as(user);
            assert!(said.starts_with(" doctor"), "{mode:o}, user {user}: {said}");
        }
    }
}

/// H525: root lists the locks of a service before the service has run.
#[test]
fn h525_what_root_makes_belongs_to_the_owner_of_the_directory() {
    let scene = Scene::new(SOMEBODY, 0o755);
    let users = match rustix::process::geteuid().is_root() {
        true => [0, SOMEBODY, 0, SOMEBODY],
        false => [scene.victim; 4],
    };
    for user in users {
        let mut process = scene.start("surroundings::use", user);
        let said = process.line();
        process.end();
        assert!(said.starts_with(" doctor"), "user {user}: {said}");
    }
}

/// H90: a link on the way to the directory is followed only if its owner may decide where it leads.
#[test]
fn h90_a_link_to_the_directory_by_another_user_is_refused() {
    let scene = Scene::new(victims()[0], 0o1777);
    let root = rustix::process::geteuid().is_root();
    // In a place where everybody may make names, as in /tmp.
    scene.attack("ln -s $outside/private trap");
    let trap = scene.locks().join("trap");
    let error = FileBackend::connect(&trap, io()).err();
    if root {
        let error = error.expect("a refusal").to_string();
        assert!(error.contains("trap") && error.contains("uid 65534"), "{error}");
        scene.nothing_outside_was_touched(&error);
    }
    // One's own link, in one's own directory.
    std::fs::remove_file(&trap).unwrap();
    let own = scene.home.path().join("own");
    symlink(scene.locks(), &own).unwrap();
    drop(connect(&own));
}
