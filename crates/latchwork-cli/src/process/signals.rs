//! Signals: which are passed on to the command, and how latchwork stops or dies by one itself.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::FutureExt;
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What ends latchwork while it waits for the lock: the claim is withdrawn first.
const ENDING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// What is passed on while the command runs, beside [`ENDING`] and the real-time signals: all that a process
/// can catch, but for faults of its own, SIGPIPE, and the stops by which a terminal answers a background job.
const PASSED_ON: [Signal; 16] = [
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
    Signal::TSTP,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
    Signal::XCPU,
    Signal::STKFLT,
    Signal::TRAP,
    Signal::ABORT,
    Signal::URG,
];

/// All signals that latchwork handles while a command runs, unless they were ignored when it started.
pub(super) fn handled() -> impl Iterator<Item = Signal> {
    ENDING.into_iter().chain(passed_on()).chain([Signal::CHILD])
}

fn passed_on() -> impl Iterator<Item = Signal> {
    PASSED_ON.into_iter().chain(real_time())
}

/// The real-time signals, without those that the C library keeps for itself.
#[expect(unsafe_code, reason = "rustix has names for the others only")]
fn real_time() -> impl Iterator<Item = Signal> {
    // SAFETY: signals that the C library leaves to programs.
    (libc::SIGRTMIN()..=libc::SIGRTMAX()).map(|it| unsafe { Signal::from_raw_unchecked(it) })
}

/// Signals that latchwork listens to instead of being hit by them.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
    hears_children: bool,
}

impl Signals {
    /// Listens to what would end latchwork.
    ///
    /// A signal that was ignored when latchwork started (`nohup`, a background job of a script)
    /// stays ignored, here and in the command.
    pub(crate) fn ending() -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new(), hears_children: false };
        signals.listen(ENDING)?;
        Ok(signals)
    }

    /// Listens to everything that is passed on to a command, and so to all that would end a waiter.
    pub(crate) fn of_command() -> io::Result<Self> {
        let mut signals = Self::ending()?;
        signals.listen(passed_on())?;
        Ok(signals)
    }

    /// Listens to the command's changes of state as well. For good: once is enough for all commands.
    pub(crate) fn add_children(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.hears_children, true) {
            return Ok(());
        }
        self.listen_to_children()
    }

    /// Listens to changes of children alone.
    pub(super) fn of_children() -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new(), hears_children: false };
        signals.listen_to_children()?;
        Ok(signals)
    }

    /// Also where the caller ignored them: the kernel would forget each child at its end.
    fn listen_to_children(&mut self) -> io::Result<()> {
        self.streams.push((Signal::CHILD, signal(SignalKind::child())?));
        unblock(Signal::CHILD);
        Ok(())
    }

    /// Listens also to a stop and to its end, which a program that has the whole terminal has to know.
    #[cfg(feature = "top")]
    pub(crate) fn add_stops(&mut self) -> io::Result<()> {
        self.listen([Signal::TSTP, Signal::CONT, Signal::QUIT])
    }

    fn listen(&mut self, which: impl IntoIterator<Item = Signal>) -> io::Result<()> {
        for one in which {
            if !is_ignored(one) {
                self.streams.push((one, signal(SignalKind::from_raw(one.as_raw()))?));
                unblock(one);
            }
        }
        Ok(())
    }

    /// Those that have come and that nobody has read.
    pub(crate) fn come(&mut self) -> Vec<Signal> {
        std::iter::from_fn(|| self.next().now_or_never()).collect()
    }

    /// Completes with the next signal. May be dropped without losing one.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (which, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    return Poll::Ready(*which);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Whether this process ignores a signal: as it was started, since latchwork itself ignores SIGPIPE only.
///
/// Asked signal by signal: the kernel makes a whole page of text of `/proc/self/status`, which is 20 times
/// as long.
#[expect(unsafe_code, reason = "nothing safe tells it")]
pub(super) fn is_ignored(signal: Signal) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only fills `now`, which is read if it succeeded.
    unsafe {
        libc::sigaction(signal.as_raw(), std::ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Whether the caller ignored SIGPIPE.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Looks before the standard library ignores SIGPIPE for this process, which it does before `main`,
/// and sets it to its default in what this process starts.
#[used]
#[expect(unsafe_code, reason = "nothing runs earlier")]
// SAFETY: the section holds pointers to functions of this kind, which the C library calls once each
// on the only thread there is.
#[unsafe(link_section = ".init_array")]
static LOOK_AT_PIPE: extern "C" fn() = look_at_pipe;

/// Uses nothing of the standard library that needs its start.
extern "C" fn look_at_pipe() {
    PIPE_IGNORED.store(is_ignored(Signal::PIPE), Ordering::Relaxed);
}

/// Whether the caller let SIGXFSZ end this process.
static FILE_SIZE_ENDED: AtomicBool = AtomicBool::new(false);

/// A write beyond the limit on the size of files (`ulimit -f`) is an error in words, and does not end
/// latchwork with locks held. The command gets the signal as the caller had it.
#[expect(unsafe_code, reason = "nothing safe ignores a signal")]
pub(crate) fn survive_file_size_limit() {
    if !is_ignored(Signal::XFSZ) {
        FILE_SIZE_ENDED.store(true, Ordering::Relaxed);
        // SAFETY: no handler is set.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }
}

/// Whether the command is to be ended by SIGXFSZ, as a process that does nothing about it.
pub(super) fn file_size_ends() -> bool {
    FILE_SIZE_ENDED.load(Ordering::Relaxed)
}

/// Whether a signal is one to end by.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    matches!(signal, Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT)
}

/// Whether the caller ignored SIGPIPE, so that the command does too.
pub(crate) fn pipe_was_ignored() -> bool {
    PIPE_IGNORED.load(Ordering::Relaxed)
}

/// The signals that the main thread blocked when it started.
pub(crate) type Mask = libc::sigset_t;

/// Blocks SIGTTOU for this thread and returns what was blocked before, for the command.
///
/// Without that, taking the terminal back from the command, or a message of latchwork's own,
/// would stop latchwork.
#[expect(unsafe_code, reason = "rustix has no safe signal masks")]
pub(crate) fn block_ttou() -> Mask {
    let mut set = MaybeUninit::<Mask>::uninit();
    let mut before = MaybeUninit::<Mask>::uninit();
    // SAFETY: sigemptyset initialises `set` before it is used, pthread_sigmask fills `before`;
    // with a valid `how` and valid pointers none of the calls can fail.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Blocks every signal for this thread and those that it starts. The kernel delivers SIGKILL, SIGSTOP and
/// faults all the same.
#[expect(unsafe_code, reason = "rustix has no safe signal masks")]
pub(crate) fn block_all() {
    let mut all = MaybeUninit::<Mask>::uninit();
    // SAFETY: sigfillset initialises the set before it is read; neither call fails with valid pointers.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Lets a signal through to this thread that the caller may have left blocked. The command gets the
/// caller's mask all the same: see [`block_ttou`].
#[expect(unsafe_code, reason = "rustix has no safe signal masks")]
fn unblock(signal: Signal) {
    let mut set = MaybeUninit::<Mask>::uninit();
    // SAFETY: sigemptyset initialises `set` before it is used; with a valid `how` and valid
    // pointers none of the calls can fail.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Does to this process what `signal` does to one that does not handle it, to the whole own
/// process group if so asked. Returns when a stopped process is continued.
///
/// A stop by SIGTSTP, SIGTTIN or SIGTTOU does nothing when no shell could continue this process
/// (its group is orphaned): the kernel sees to that.
#[expect(unsafe_code, reason = "a handled signal has to be unhandled for a moment")]
pub(crate) fn be_hit_by(signal: Signal, whole_group: bool) {
    let mut default = MaybeUninit::<libc::sigaction>::zeroed();
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a zeroed sigaction is SIG_DFL without flags and with an empty mask, and every
    // pointer is valid for its call. Between the calls the signal meets its default action, which
    // is what this function is for; the handler put back is the one that was there.
    unsafe {
        (*default.as_mut_ptr()).sa_sigaction = libc::SIG_DFL;
        if libc::sigaction(signal.as_raw(), default.as_ptr(), before.as_mut_ptr()) != 0 {
            return;
        }
        let mut only = MaybeUninit::<Mask>::uninit();
        let mut mask = MaybeUninit::<Mask>::uninit();
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), signal.as_raw());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), mask.as_mut_ptr());
        if whole_group {
            // This thread is the main one, so the kernel delivers to it before the call returns.
            libc::kill(0, signal.as_raw());
        } else {
            libc::raise(signal.as_raw());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), std::ptr::null_mut());
        libc::sigaction(signal.as_raw(), before.as_ptr(), std::ptr::null_mut());
    }
}
