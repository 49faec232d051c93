//! What the helper does: it connects, forks, and looks whether anything of it was harmed.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use latchwork::block_on;
use latchwork::{
    BlockOn, ErrorKind, Event, Guard, HoldState, LockManager, LostReason, Observer, Owner,
};
use rustix::process::{Pid, WaitOptions, kill_process, waitpid};

use super::{refused, use_everything};

/// A child that was forked, and by when it must have ended.
struct Forked(Pid, Instant);

const LIMIT: Duration = Duration::from_secs(60);

/// Forks. In the child it runs `what` and ends the process; whether that succeeded tells its code.
fn fork(what: impl FnOnce()) -> Forked {
    fork_by(
        || {
            #[expect(unsafe_code, reason = "this is what the tests are about")]
            // SAFETY: the child runs tests of what it finds, and ends without unwinding further.
            unsafe {
                libc::fork()
            }
        },
        what,
    )
}

/// Forks past the C library, which runs no handlers then.
fn fork_by_system_call(what: impl FnOnce()) -> Forked {
    fork_by(
        || {
            #[expect(unsafe_code, reason = "a fork that no handler is told of")]
            // SAFETY: as for `fork`; no flag shares memory or a stack.
            unsafe {
                libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32
            }
        },
        what,
    )
}

fn fork_by(fork: impl FnOnce() -> i32, what: impl FnOnce()) -> Forked {
    match fork() {
        0 => {
            let code = if catch_unwind(AssertUnwindSafe(what)).is_ok() { 0 } else { 101 };
            #[expect(unsafe_code, reason = "nothing of the parent's is to be run at the exit")]
            // SAFETY: ends the process.
            unsafe {
                libc::_exit(code)
            }
        }
        pid => Forked(Pid::from_raw(pid).expect("a child"), Instant::now() + LIMIT),
    }
}

impl Forked {
    #[track_caller]
    fn succeeds(self) {
        loop {
            if let Some((_, status)) = waitpid(Some(self.0), WaitOptions::NOHANG).unwrap() {
                assert_eq!(status.exit_status(), Some(0), "the child failed");
                return;
            }
            if Instant::now() > self.1 {
                let _ = kill_process(self.0, rustix::process::Signal::KILL);
                panic!("the child hangs");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A pipe whose end tells a child to stop.
fn pipe() -> (OwnedFd, OwnedFd) {
    let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
    rustix::pipe::pipe_with(flags).unwrap()
}

fn is_over(read: &OwnedFd) -> bool {
    rustix::io::read(read, &mut [0; 1]) == Ok(0)
}

fn names(locks: &LockManager) -> Vec<String> {
    locks.list("").block_on().unwrap().iter().map(|seen| seen.key.as_str().to_owned()).collect()
}

pub(super) fn tries_beside_a_busy_child(url: &str, tries: u32) {
    let other = latchwork::connect(url).block_on().unwrap();
    let held = other.mutex("held").acquire().block_on().unwrap();
    let locks = latchwork::connect(url).block_on().unwrap();
    let own = locks.mutex("own").acquire().block_on().unwrap();
    let mut own = Some(own);
    let rounds = 10;
    for round in 0..rounds {
        let (read, write) = pipe();
        let mut ours = Some(write);
        let child = |it: &mut Option<OwnedFd>, own: &mut Option<Guard>| {
            drop(it.take());
            while !is_over(&read) {
                use_everything(&locks, own.as_ref().unwrap());
            }
            // It goes as it would at the end of a function.
            match round % 2 {
                0 => drop(own.take()),
                _ => refused(own.take().unwrap().release().block_on()),
            }
            drop(locks.clone());
        };
        let forked = if round % 5 == 4 {
            fork_by_system_call(|| child(&mut ours, &mut own))
        } else {
            fork(|| child(&mut ours, &mut own))
        };
        for n in 0..tries / rounds {
            let tried = locks.mutex("held").try_acquire().block_on().unwrap();
            assert!(tried.is_none(), "granted what another process holds");
            own.as_ref().unwrap().ensure_held().unwrap();
            if n % 10 == 0 {
                locks
                    .mutex("free")
                    .try_acquire()
                    .block_on()
                    .unwrap()
                    .expect("free")
                    .release()
                    .block_on()
                    .unwrap();
            }
        }
        drop(ours.take());
        forked.succeeds();
        assert_eq!(names(&other), ["held", "own"], "a key was freed, or a ghost is left");
    }
    // A child that drops the last of everything.
    let mut locks = Some(locks);
    fork(|| {
        drop(own.take());
        drop(locks.take());
    })
    .succeeds();
    assert_eq!(names(&other), ["held", "own"]);
    own.unwrap().release().block_on().unwrap();
    held.release().block_on().unwrap();
    assert!(names(&other).is_empty());
}

pub(super) fn forks_while_its_threads_work(url: &str) {
    let locks = latchwork::connect(url).block_on().unwrap();
    let me = Owner::named("me");
    let own = locks.reentrant("own").acquire(&me).block_on().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (locks, done, me) = (&locks, &done, me.clone());
            scope.spawn(move || {
                // Half of them enter and leave the hold whose guard the children drop.
                while n % 2 == 0 && !done.load(Ordering::Relaxed) {
                    let guard = locks.reentrant("own").acquire(&me).block_on().unwrap();
                    guard.ensure_held().unwrap();
                }
                let fresh = format!("of {n}");
                while !done.load(Ordering::Relaxed) {
                    drop(locks.mutex(&fresh).acquire().block_on().unwrap());
                    locks.mutex("all").acquire().block_on().unwrap().release().block_on().unwrap();
                    drop(
                        locks
                            .reentrant("again")
                            .acquire(&Owner::current_thread())
                            .block_on()
                            .unwrap(),
                    );
                    let _ = locks.multi(["one", "two"]).try_acquire().block_on().unwrap();
                }
            });
        }
        let (mut locks, mut own) = (Some(locks.clone()), Some(own));
        // A panic here must not leave the others at work.
        let forked = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..200 {
                let child = fork(|| {
                    use_everything(locks.as_ref().unwrap(), own.as_ref().unwrap());
                    drop(own.take());
                    drop(locks.take());
                });
                child.succeeds();
                own.as_ref().unwrap().ensure_held().unwrap();
            }
            own.take().unwrap().release().block_on().unwrap();
        }));
        done.store(true, Ordering::Relaxed);
        forked.unwrap();
    });
}

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

fn polled<T>(future: impl Future<Output = T> + 'static) -> Boxed<T> {
    let mut future: Boxed<T> = Box::pin(future);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_pending());
    future
}

pub(super) fn forks_with_futures_under_way(url: &str) {
    let in_memory = url == "mem:";
    let locks = block_on(latchwork::connect(url)).unwrap();
    // Memory is of one process and manager.
    let other = if in_memory { locks.clone() } else { block_on(latchwork::connect(url)).unwrap() };
    let held = block_on(other.mutex("held").acquire()).unwrap();
    let own = Arc::new(block_on(locks.mutex("own").acquire()).unwrap());
    for drops in [false, true] {
        let (mutex, multi, reentrant) =
            (locks.mutex("held"), locks.multi(["held", "last"]), locks.reentrant("held"));
        let fair = mutex.clone().fair();
        let waits = polled(async move { mutex.acquire().await });
        let behind = polled({
            let mutex = locks.mutex("held");
            async move { mutex.acquire_within(LIMIT).await }
        });
        let beside = polled(async move { fair.acquire().await });
        let several = polled(async move { multi.acquire().await.map(drop) });
        let again = polled(async move {
            let owner = Owner::named("me");
            reentrant.acquire(&owner).await.map(drop)
        });
        let told = polled({
            let own = own.clone();
            async move { own.lost().await }
        });
        let works = polled({
            let own = own.clone();
            async move { own.run(std::future::pending::<()>()).await }
        });
        let mut all = Some((waits, behind, beside, several, again, told, works));
        let child = || {
            let all = all.take().unwrap();
            if drops {
                return drop(all);
            }
            let (waits, behind, beside, several, again, told, works) = all;
            refused(block_on(waits));
            refused(block_on(behind));
            refused(block_on(beside));
            refused(block_on(several));
            refused(block_on(again));
            assert_eq!(block_on(told).reason, LostReason::Forked);
            assert_eq!(block_on(works).unwrap_err().reason, LostReason::Forked);
        };
        fork(child).succeeds();
        assert_eq!(own.state(), HoldState::Held);
        let (waits, behind, beside, several, again, ..) = all.unwrap();
        drop((behind, beside, several, again));
        if drops {
            block_on(held.release()).unwrap();
            // In the parent they go on as if there had been no child.
            let mut guard = block_on(waits).unwrap();
            guard.ensure_held().unwrap();
            block_on(guard.release()).unwrap();
            guard = block_on(locks.mutex("held").acquire()).unwrap();
            block_on(guard.release()).unwrap();
            return;
        }
    }
}

pub(super) fn has_a_child_that_connects(url: &str) {
    const TTL: Duration = Duration::from_secs(3);
    let locks = latchwork::connect(url).block_on().unwrap();
    let own = locks.mutex("own").ttl(TTL).acquire().block_on().unwrap();
    // Holds a lock over its ttl, which needs a thread that renews.
    let holds = |locks: &LockManager, name: &str| {
        assert!(
            locks.mutex("own").try_acquire().block_on().unwrap().is_none(),
            "the first one has it"
        );
        let guard = locks.mutex(name).ttl(TTL).acquire().block_on().unwrap();
        let end = Instant::now() + TTL + TTL / 2;
        while Instant::now() < end {
            guard.ensure_held().unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        guard
    };
    let child = fork(|| {
        let fresh = latchwork::connect(url).block_on().unwrap();
        let guard = holds(&fresh, "child");
        use_everything(&locks, &own);
        let grandchild = fork(|| {
            use_everything(&locks, &own);
            use_everything(&fresh, &guard);
            let fresher = latchwork::connect(url).block_on().unwrap();
            assert!(fresher.mutex("child").try_acquire().block_on().unwrap().is_none());
            holds(&fresher, "grandchild").release().block_on().unwrap();
        });
        grandchild.succeeds();
        guard.release().block_on().unwrap();
    });
    child.succeeds();
    own.release().block_on().unwrap();
    assert!(names(&locks).is_empty());
}

/// Forks once, when an acquire begins to wait.
struct ForksWhenItWaits(AtomicBool);

impl Observer for ForksWhenItWaits {
    fn event(&self, event: &Event<'_>) {
        if !matches!(event, Event::Waiting { .. }) || self.0.swap(true, Ordering::SeqCst) {
            return;
        }
        #[expect(unsafe_code, reason = "this is what the test is about")]
        // SAFETY: the child goes on in the blocked call, which ends, and ends itself then.
        if unsafe { libc::fork() } == 0 {
            CHILD.store(true, Ordering::SeqCst);
        }
    }
}

static CHILD: AtomicBool = AtomicBool::new(false);

pub(super) fn forks_inside_a_blocking_call(url: &str) {
    let held =
        latchwork::connect(url).block_on().unwrap().mutex("held").acquire().block_on().unwrap();
    let observer = Arc::new(ForksWhenItWaits(AtomicBool::new(false)));
    let locks = latchwork::connect(url).block_on().unwrap().observer(observer);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let answer = locks.mutex("held").acquire().block_on();
            if CHILD.load(Ordering::SeqCst) {
                let forked = answer.is_err_and(|error| error.kind() == ErrorKind::Forked);
                #[expect(unsafe_code, reason = "nothing of the parent's is to be run at the exit")]
                // SAFETY: ends the process.
                unsafe {
                    libc::_exit(if forked { 0 } else { 101 })
                }
            }
            answer.unwrap().release().block_on().unwrap();
        });
        let ends = Instant::now() + LIMIT;
        loop {
            match waitpid(None, WaitOptions::NOHANG) {
                Ok(Some((_, status))) => {
                    assert_eq!(status.exit_status(), Some(0), "the child was granted it");
                    break;
                }
                _ => assert!(Instant::now() < ends, "the child hangs"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // The wake-up comes to the parent, which has not lost it to the child.
        held.release().block_on().unwrap();
        waits.join().unwrap();
    });
}

pub(super) fn starts_programs(url: &str) {
    use std::os::unix::process::CommandExt;
    let locks = latchwork::connect(url).block_on().unwrap();
    let own = locks.mutex("own").acquire().block_on().unwrap();
    for n in 0..40 {
        let mut command = Command::new("true");
        if n % 2 == 0 {
            #[expect(unsafe_code, reason = "makes the library fork instead of spawn")]
            // SAFETY: it does nothing.
            unsafe {
                command.pre_exec(|| Ok(()));
            }
        }
        assert!(command.status().unwrap().success());
        own.ensure_held().unwrap();
        locks.mutex("free").acquire().block_on().unwrap().release().block_on().unwrap();
    }
    assert_eq!(names(&latchwork::connect(url).block_on().unwrap()), ["own"]);
    own.release().block_on().unwrap();
}

#[cfg(feature = "file")]
pub(super) fn has_a_backend_without_a_manager(url: &str) {
    let driver = latchwork::Driver::start().unwrap();
    let directory = url.strip_prefix("file://").unwrap();
    let backend = latchwork_file::FileBackend::connect(directory, driver.io()).unwrap();
    let (mut backend, mut driver) = (Some(backend), Some(driver));
    fork(|| {
        drop(backend.take());
        drop(driver.take());
    })
    .succeeds();
    // A child makes a manager of both: it is the parent's all the same.
    fork(|| {
        let locks = latchwork::LockManager::new(backend.take().unwrap(), driver.take().unwrap());
        refused(block_on(locks.mutex("k").try_acquire()));
    })
    .succeeds();
    let locks = latchwork::LockManager::new(backend.unwrap(), driver.unwrap());
    let guard = block_on(locks.mutex("k").try_acquire()).unwrap().expect("free");
    block_on(guard.release()).unwrap();
}

pub(super) fn dies_before_its_child(url: &str) {
    let locks = latchwork::connect(url).block_on().unwrap();
    let _own = locks.mutex("own").acquire().block_on().unwrap();
    let child = fork(|| std::thread::sleep(LIMIT));
    println!("\n>{}", child.0.as_raw_nonzero());
    std::thread::sleep(LIMIT);
}
