//! A child that is forked after `connect`, without an `exec`.
//!
//! Only a process with one purpose may fork: each test starts this program again, and the test named
//! `helper` plays the parent that forks.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use latchwork::{
    BlockOn, Error, ErrorKind, Guard, HoldState, LockManager, LostReason, NotHeld, Owner, Period,
};

use super::stores::*;

mod parent;

/// How often the parent tries beside its child. Ten thousand take minutes on stores that write to a
/// disk; `LATCHWORK_TRIES=10000` is the full size.
fn tries() -> u32 {
    std::env::var("LATCHWORK_TRIES").map_or(1_000, |tries| tries.parse().unwrap())
}

/// Plays the parent in the other tests; on its own it has nothing to do.
#[test]
fn helper() {
    let Ok(role) = std::env::var("LATCHWORK_TEST_ROLE") else { return };
    let url = std::env::var("LATCHWORK_TEST_STORE").unwrap();
    match role.as_str() {
        "beside" => parent::tries_beside_a_busy_child(&url, tries()),
        "storm" => parent::forks_while_its_threads_work(&url),
        "under way" => parent::forks_with_futures_under_way(&url),
        "anew" => parent::has_a_child_that_connects(&url),
        "blocked" => parent::forks_inside_a_blocking_call(&url),
        "exec" => parent::starts_programs(&url),
        #[cfg(feature = "file")]
        "bare" => parent::has_a_backend_without_a_manager(&url),
        "dies" => parent::dies_before_its_child(&url),
        role => panic!("no role {role:?}"),
    }
    println!("\n>done");
}

struct Helper {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Helper {
    fn start(role: &str, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "surroundings::fork::helper", "--nocapture"])
            .env("LATCHWORK_TEST_ROLE", role)
            .env("LATCHWORK_TEST_STORE", url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "the helper failed");
            if let Some(said) = line.strip_prefix('>') {
                return said.trim().to_owned();
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets a helper play its role to the end.
fn play(role: &str, url: &str) {
    let mut helper = Helper::start(role, url);
    let mut said = String::new();
    helper.said.read_to_string(&mut said).unwrap();
    assert!(helper.child.wait().unwrap().success() && said.contains("\n>done"), "{said}");
}

#[track_caller]
fn refused<T>(answer: Result<T, Error>) {
    let error = answer.err().expect("refused in a child");
    assert_eq!(error.kind(), ErrorKind::Forked, "{error}");
    assert!(error.to_string().contains("connect again in the child"), "{error}");
}

/// Uses all that a child has of its parent. None of it may be granted, change anything or hang.
fn use_everything(locks: &LockManager, own: &Guard) {
    const LIMIT: Duration = Duration::from_secs(60);
    for name in ["own", "held", "free"] {
        let mutex = locks.mutex(name);
        refused(mutex.try_acquire().block_on());
        refused(mutex.acquire().block_on());
        refused(mutex.acquire_within(LIMIT).block_on());
        refused(mutex.clone().fair().acquire().block_on());
        refused(locks.inspect(name).block_on());
        refused(locks.force_release(name).block_on());
        refused(locks.reentrant(name).acquire(&Owner::current_thread()).block_on());
        refused(locks.reentrant(name).try_acquire(&Owner::named("me")).block_on());
        refused(locks.multi([name, "other"]).try_acquire().block_on());
        refused(locks.multi([name, "other"]).acquire_within(LIMIT).block_on());
    }
    refused(locks.rwlock("shared").read().acquire().block_on());
    refused(locks.semaphore("five", 5).permit().try_acquire().block_on());
    refused(locks.once("task", Period::parse("1h", None).unwrap()).try_begin().block_on());
    let election = locks.election("leader");
    refused(election.campaign().block_on());
    refused(election.leader().block_on());
    let mut changes = std::pin::pin!(election.observe());
    refused(changes.next().block_on().unwrap());
    assert!(changes.next().block_on().is_none());
    refused(locks.list("").block_on());
    locks.clone().close().block_on();
    let lost = |state| matches!(state, HoldState::Lost(lost) if lost.reason == LostReason::Forked);
    refused(own.prepare_upgrade(None).block_on());
    refused(own.prepare_downgrade().block_on());
    assert!(lost(own.state()) && own.remaining() == Duration::ZERO);
    let told = own.ensure_held().unwrap_err();
    assert!(matches!(told, NotHeld::Lost(lost) if lost.reason == LostReason::Forked), "{told}");
    assert_eq!(own.lost().block_on().reason, LostReason::Forked);
    assert!(own.valid_until() < latchwork_store::clock::boot_time() && own.ttl() > Duration::ZERO);
}

macro_rules! on_each_store {
    ($role:literal: $($(#[$attr:meta])* $name:ident in $store:ident;)*) => {$(
        $(#[$attr])*
        #[test]
        fn $name() {
            let (_server, url) = $store();
            play($role, &url);
        }
    )*};
}

// The parent tries beside a child that uses everything: no false grant, no key freed, no hang.
on_each_store! { "beside":
    h97_a_busy_child_harms_nothing_of_its_parent_on_files in files;
    #[cfg(feature = "redis")]
    h97_a_busy_child_harms_nothing_of_its_parent_on_redis in redis;
    #[cfg(feature = "redis")]
    h97_a_busy_child_harms_nothing_of_its_parent_on_redlock in redlock;
    #[cfg(feature = "redis")]
    h97_a_busy_child_harms_nothing_of_its_parent_on_a_cluster in cluster;
    #[cfg(feature = "etcd")]
    h97_a_busy_child_harms_nothing_of_its_parent_on_etcd in etcd;
    #[cfg(feature = "zookeeper")]
    h97_a_busy_child_harms_nothing_of_its_parent_on_zookeeper in zookeeper;
}

// Children are forked while other threads of the parent have any lock at all.
on_each_store! { "storm":
    h97_children_of_a_busy_parent_do_not_hang_in_memory in memory;
    h97_children_of_a_busy_parent_do_not_hang_on_files in files;
    #[cfg(feature = "redis")]
    h97_children_of_a_busy_parent_do_not_hang_on_redis in redis;
}

// Futures that wait, release, watch and work are polled and dropped in a child.
on_each_store! { "under way":
    h97_futures_under_way_are_refused_in_a_child_in_memory in memory;
    h97_futures_under_way_are_refused_in_a_child_on_files in files;
    #[cfg(feature = "redis")]
    h97_futures_under_way_are_refused_in_a_child_on_redis in redis;
    #[cfg(feature = "etcd")]
    h97_futures_under_way_are_refused_in_a_child_on_etcd in etcd;
    #[cfg(feature = "zookeeper")]
    h97_futures_under_way_are_refused_in_a_child_on_zookeeper in zookeeper;
}

// A child connects, and its own child does.
on_each_store! { "anew":
    h97_a_child_that_connects_has_locks_of_its_own_on_files in files;
    #[cfg(feature = "redis")]
    h97_a_child_that_connects_has_locks_of_its_own_on_redis in redis;
    #[cfg(feature = "etcd")]
    h97_a_child_that_connects_has_locks_of_its_own_on_etcd in etcd;
    #[cfg(feature = "zookeeper")]
    h97_a_child_that_connects_has_locks_of_its_own_on_zookeeper in zookeeper;
}

// An observer forks while its thread is blocked in an acquire.
on_each_store! { "blocked":
    h97_a_fork_inside_a_blocking_call_ends_it_in_the_child in files;
}

// `Command` with and without `pre_exec`.
on_each_store! { "exec":
    h97_programs_that_are_started_change_nothing in files;
}

// A backend that no manager has yet.
#[cfg(feature = "file")]
on_each_store! { "bare":
    h97_a_backend_dropped_in_a_child_leaves_its_session in files;
}

/// The child has copies of the descriptors that say that the parent lives, and that it is in a verb.
#[test]
fn h97_locks_of_a_dead_parent_are_free_though_its_child_lives() {
    let (_dir, url) = files();
    let mut parent = Helper::start("dies", &url);
    let child: i32 = parent.line().parse().unwrap();
    let locks = latchwork::connect(&url).block_on().unwrap();
    assert!(locks.mutex("own").try_acquire().block_on().unwrap().is_none());
    parent.child.kill().unwrap();
    parent.child.wait().unwrap();
    let start = Instant::now();
    let guard = locks.mutex("own").acquire_within(Duration::from_secs(10)).block_on().unwrap();
    let took = start.elapsed();
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    assert!(rustix::process::test_kill_process(pid).is_ok(), "the child lives");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert!(took < Duration::from_secs(5), "the ttl is 30 s; took {took:?}");
    guard.release().block_on().unwrap();
}
