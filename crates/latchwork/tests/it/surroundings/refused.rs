//! Programs whose system refuses what Latchwork needs: a thread, a timer, descriptors. At the start that is an
//! error, and what is held goes on.
//!
//! Only a process with one purpose may refuse itself something: each test starts this program again.

use std::process::Command;
use std::time::Duration;

use latchwork::once::Begun;
use latchwork::{ErrorKind, Period};
use latchwork_services::Refused;
use tokio::runtime::Builder;

use super::stores::*;

/// Plays the program in the other tests; on its own it has nothing to do.
#[test]
fn helper() {
    let Ok(role) = std::env::var("LATCHWORK_TEST_REFUSED") else { return };
    let url = std::env::var("LATCHWORK_TEST_STORE").unwrap();
    let words: Vec<_> = role.split(' ').collect();
    let (call, errno) = (words[2].parse().unwrap(), words[3].parse().unwrap());
    let refuse = || Refused { call, errno }.here().unwrap();
    let mut builder = match words[1] {
        "one-thread" => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match words[0] {
            "start" => {
                refuse();
                starts(&url).await;
            }
            _ => goes_on(&url, words[1], refuse).await,
        }
    });
    println!("\n>done");
}

/// Connects, or gets an error that says why not.
async fn starts(url: &str) {
    match latchwork::connect(url).await {
        Ok(locks) => {
            let guard = locks.mutex("x").acquire_within(Duration::from_secs(5)).await;
            println!("\n>works: {:?}", guard.map(drop).map_err(|error| error.to_string()));
        }
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::Lost);
            println!(
                "\n>refused: {:?}: {error}; {}",
                error.kind(),
                error.next_step().unwrap_or_default()
            );
        }
    }
}

/// Keeps its lock for longer than the ttl, releases it, and uses others.
async fn goes_on(url: &str, task: &str, refuse: impl Fn()) {
    const TTL: Duration = Duration::from_secs(3);
    let locks = latchwork::connect(url).await.unwrap();
    let guard = locks.mutex("held").ttl(TTL).acquire().await.unwrap();
    refuse();
    let lost = tokio::time::timeout(TTL + Duration::from_secs(1), guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.ensure_held().unwrap();
    guard.release().await.unwrap();
    for name in 0..100 {
        let guard = locks.mutex(format!("n{name}")).try_acquire().await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
    // Its end is put on the disk by stores that have one.
    let task = locks.once(task, Period::parse("1h", None).unwrap());
    let Begun::Run(run) = task.try_begin().await.unwrap() else { panic!("already done") };
    run.succeed().await.unwrap();
    let Begun::Skipped(_) = task.try_begin().await.unwrap() else { panic!("not closed") };
}

/// Lets a program play its role to the end, and returns what it said.
fn play(role: &str, url: &str) -> String {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "surroundings::refused::helper", "--nocapture"])
        .env("LATCHWORK_TEST_REFUSED", role)
        .env("LATCHWORK_TEST_STORE", url)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("\n>done"), "{role} {url}: {said}{errors}");
    assert!(!errors.contains("panicked"), "{role} {url}: {errors}");
    said
}

/// What a thread is made with.
const CLONE: libc::c_long = libc::SYS_clone3;

macro_rules! on_each_store {
    ($test:ident: $($(#[$attr:meta])* $name:ident in $store:ident;)*) => {$(
        $(#[$attr])*
        #[test]
        fn $name() {
            let (_server, url) = $store();
            $test(&url);
        }
    )*};
}

/// Each of these is refused before `connect`: an error that names it, in every kind of runtime.
fn errors(url: &str) {
    for kind in ["one-thread", "threads"] {
        for (call, errno, words) in [
            (CLONE, libc::EAGAIN, "Unreachable: driver: cannot start a thread"),
            (CLONE, libc::EPERM, "Unsupported: driver: cannot start a thread"),
            (libc::SYS_timerfd_create, libc::EMFILE, "cannot make a timer"),
            (libc::SYS_timerfd_create, libc::ENOSYS, "seccomp"),
            (libc::SYS_timerfd_settime, libc::EPERM, "cannot make a timer"),
            (libc::SYS_eventfd2, libc::EMFILE, "ulimit -n"),
            (libc::SYS_epoll_create1, libc::ENFILE, "ulimit -n"),
            (libc::SYS_socketpair, libc::EPERM, "cannot make a runtime"),
        ] {
            let said = play(&format!("start {kind} {call} {errno}"), url);
            let is_named = said.contains(">refused: ") && said.contains(words);
            assert!(is_named, "{kind} {call} {errno}: {said}");
        }
    }
}

on_each_store! { errors:
    h292_a_refused_start_is_an_error_on_files in files;
    #[cfg(feature = "redis")]
    h292_a_refused_start_is_an_error_on_redis in redis;
    #[cfg(feature = "etcd")]
    h292_a_refused_start_is_an_error_on_etcd in etcd;
    #[cfg(feature = "zookeeper")]
    h292_a_refused_start_is_an_error_on_zookeeper in zookeeper;
    #[cfg(feature = "postgres")]
    h292_a_refused_start_is_an_error_on_postgresql in postgres;
}

/// No thread is to be had any more while a lock is held.
fn holds(url: &str) {
    for kind in ["one-thread", "threads"] {
        let said = play(&format!("later {kind} {CLONE} {}", libc::EAGAIN), url);
        assert!(said.contains(">done"), "{said}");
    }
}

on_each_store! { holds:
    h293_holds_go_on_when_no_thread_is_to_be_had_on_files in files;
    #[cfg(feature = "redis")]
    h293_holds_go_on_when_no_thread_is_to_be_had_on_redis in redis;
    #[cfg(feature = "etcd")]
    h293_holds_go_on_when_no_thread_is_to_be_had_on_etcd in etcd;
    #[cfg(feature = "zookeeper")]
    h293_holds_go_on_when_no_thread_is_to_be_had_on_zookeeper in zookeeper;
    #[cfg(feature = "postgres")]
    h293_holds_go_on_when_no_thread_is_to_be_had_on_postgresql in postgres;
}
