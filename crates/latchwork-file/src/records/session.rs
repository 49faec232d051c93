//! A session, by which the processes of a machine detect whether another one is alive.
//!
//! Each backend has one session with a random id, which marks its claims in the records. Its
//! `.life` file is a named pipe that the backend opens for reading and writing and locks. The lock
//! is the truth: a process that can take it knows that no process has the description open any more.
//! The pipe is the messenger: when its last writer is gone, the kernel notifies all its readers.
//!
//! The kernel does both at the end of a process, however it ends, and a process that is given a
//! duplicate of the descriptor keeps the session alive. A child that was merely forked does not: it
//! would keep the locks of a parent that has died.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use latchwork_store::{BackendError, Effect, random_u128};
use latchwork_wire::CloseOnFork;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::disk::dir::{Identity, identity_at};
use crate::disk::failure::{failed, failed_at};
use crate::disk::fs_check;
use crate::records::boot;
use crate::records::layout::Layout;

/// How many ids are tried before a session that cannot be made is an error.
const ATTEMPTS: u32 = 100;

/// This backend's own session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u128,
    life: CloseOnFork,
    wake: CloseOnFork,
    /// Where the others check whether it lives, and what they must find there.
    life_path: PathBuf,
    life_identity: Option<Identity>,
    /// Keeps temp cleaners away for as long as the session lives.
    _kept: Option<CloseOnFork>,
}

impl Session {
    /// Begins a session in this boot, and checks on the way that locks hold on this file system.
    pub(crate) fn begin(layout: &Layout, boot: u128) -> Result<Self, BackendError> {
        for _ in 0..ATTEMPTS {
            let id = boot::session_id(boot, random_u128());
            let Some((life, life_identity)) = begin_life(layout, id)? else { continue };
            let at = layout.life(id);
            let life_path = at.path();
            let checked = at
                .open_pipe(READ)
                .map_err(|errno| failed_at("open", &at, errno, Effect::NotApplied))
                .and_then(|second| fs_check::check_exclusion(layout.root(), second));
            let begun = checked.and_then(|()| {
                let at = layout.wake(id);
                at.create_pipe(layout.file_mode())
                    .map_err(|errno| failed_at("create", &at, errno, Effect::NotApplied))
            });
            let life = CloseOnFork::new(life);
            return match begun {
                Ok(wake) => {
                    let wake = CloseOnFork::new(wake);
                    let _kept = layout.keep_from_cleaners().map(CloseOnFork::new);
                    let life_identity = Some(life_identity);
                    Ok(Self { id, life, wake, life_path, life_identity, _kept })
                }
                Err(error) => {
                    remove_files(layout, id);
                    Err(error)
                }
            };
        }
        let path = layout.sessions().path();
        Err(failed("begin a session in", &path, Errno::AGAIN, Effect::NotApplied))
    }

    /// The session of a backend that only reads. It has no files, so nobody finds it, and it can hold nothing.
    pub(crate) fn without_files(layout: &Layout, boot: u128) -> Result<Self, BackendError> {
        let id = boot::session_id(boot, random_u128());
        // Stand-ins: nobody is given them.
        let stand_in = || -> Result<CloseOnFork, BackendError> {
            let fd = layout.dir().fd().try_clone().map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                failed("open", layout.root(), errno, Effect::NotApplied)
            })?;
            Ok(CloseOnFork::new(fd))
        };
        let life_path = layout.life(id).path();
        Ok(Self {
            id,
            life: stand_in()?,
            wake: stand_in()?,
            life_path,
            life_identity: None,
            _kept: None,
        })
    }

    /// Whether it is one without files.
    pub(crate) fn only_reads(&self) -> bool {
        self.life_identity.is_none()
    }

    /// The descriptor that keeps this session alive.
    pub(crate) fn life(&self) -> &Arc<OwnedFd> {
        self.life.fd()
    }

    /// Where this session is notified to check again.
    pub(crate) fn wake(&self) -> &Arc<OwnedFd> {
        self.wake.fd()
    }

    /// Whether the others can still find this session. Its file may have been removed by somebody
    /// who had no business to; or the path to the lock directory leads elsewhere now, where others
    /// look for it in vain. In both cases they take it for dead.
    pub(crate) fn can_be_found(&self) -> Result<bool, BackendError> {
        match identity_at(&self.life_path) {
            Ok(found) => Ok(found.is_some() && found == self.life_identity),
            Err(errno) => Err(failed("examine", &self.life_path, errno, Effect::NotApplied)),
        }
    }

    /// Whether the others can still wake the waiters of this session: the file for that may have
    /// been removed alone. What the session holds stays held then, and only waiting makes no sense.
    pub(crate) fn can_be_told(&self) -> bool {
        rustix::fs::fstat(&self.wake).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Ends the session, also when somebody still has the descriptor.
    pub(crate) fn end(&self, layout: &Layout) {
        if self.only_reads() {
            return;
        }
        remove_files(layout, self.id);
        // A byte notifies its watchers, in case the descriptor stays open.
        let _ = rustix::io::write(&self.life, &[0]);
    }
}

const READ: OFlags = OFlags::RDONLY;

/// Makes and locks a `.life` file; `None` if somebody took it for dead in between.
fn begin_life(layout: &Layout, id: u128) -> Result<Option<(OwnedFd, Identity)>, BackendError> {
    let at = layout.life(id);
    let failed = |doing, errno| failed_at(doing, &at, errno, Effect::NotApplied);
    let life = match at.create_pipe(layout.file_mode()) {
        Ok(life) => life,
        Err(Errno::EXIST) => return Ok(None),
        Err(Errno::NOENT) if layout.sessions().identity().is_ok_and(|it| it.is_some()) => {
            return Ok(None);
        }
        Err(errno) => return Err(failed("create", errno)),
    };
    match rustix::fs::flock(&life, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        // Somebody who looks for the dead was here between the two calls.
        Err(Errno::WOULDBLOCK | Errno::INTR) => {
            remove_files(layout, id);
            return Ok(None);
        }
        Err(errno) => {
            remove_files(layout, id);
            return Err(failed("lock", errno));
        }
    }
    let stat = rustix::fs::fstat(&life).map_err(|errno| failed("examine", errno))?;
    Ok((stat.st_nlink > 0).then(|| (life, stat.into())))
}

/// What is known of another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Alive,
    Dead,
    /// It could not be looked at; to be taken for alive.
    Unknown,
}

/// Looks whether a session lives.
pub(crate) fn probe(layout: &Layout, id: u128) -> Life {
    match layout.life(id).open_pipe(READ) {
        Ok(life) => probe_open(life),
        Err(Errno::NOENT) => Life::Dead,
        Err(_) => Life::Unknown,
    }
}

/// Looks whether the session lives whose file this is.
pub(crate) fn probe_open(life: impl AsFd) -> Life {
    match rustix::fs::flock(&life, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = rustix::fs::flock(&life, FlockOperation::Unlock);
            Life::Dead
        }
        Err(Errno::WOULDBLOCK) => Life::Alive,
        Err(_) => Life::Unknown,
    }
}

/// Opens a session's `.life` to learn of its end; `None` if it has no file any more.
pub(crate) fn open_life(layout: &Layout, id: u128) -> Result<Option<OwnedFd>, Errno> {
    match layout.life(id).open_pipe(READ) {
        Ok(life) => Ok(Some(life)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Removes the files of a session if it is dead.
///
/// Under its lock, so that the owner of a file that was just made notices: it finds its lock taken
/// or its file without a name, and begins again.
pub(crate) fn remove_if_dead(layout: &Layout, id: u128) {
    let Ok(Some(life)) = open_life(layout, id) else { return };
    if rustix::fs::flock(&life, FlockOperation::NonBlockingLockShared).is_ok() {
        remove_files(layout, id);
    }
}

/// Removes what dead sessions left, so that crashes leave no litter.
pub(crate) fn remove_dead(layout: &Layout) {
    all(layout).into_iter().for_each(|id| remove_if_dead(layout, id));
}

/// All sessions that have a life file.
pub(crate) fn all(layout: &Layout) -> Vec<u128> {
    let names = layout.sessions().list().unwrap_or_default();
    names.iter().filter_map(|name| parse_life(name.to_str()?)).collect()
}

/// The session of a life file, by its name exactly as it is written.
fn parse_life(name: &str) -> Option<u128> {
    let digits = name.strip_suffix(".life").filter(|digits| digits.len() == 32)?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    u128::from_str_radix(digits, 16).ok().filter(|_| plain)
}

/// The wake file first: while the life file is there, somebody will come to finish this.
fn remove_files(layout: &Layout, id: u128) {
    for at in [layout.wake(id), layout.life(id)] {
        let _ = at.remove();
    }
}

/// The result of a poke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poke {
    /// It was left, or its pipe is full: the process is stopped and has much to read already.
    Left,
    /// Nobody reads there any more.
    Gone,
    /// This process cannot open a file now.
    Failed,
    /// The pipe belongs to another user, and this one may not write there.
    Denied,
}

/// Notifies a session that one of its claims should check again.
pub(crate) fn poke(layout: &Layout, session: u128, claim: u128) -> Poke {
    let pipe = match layout.wake(session).open_pipe(OFlags::WRONLY) {
        Ok(pipe) => pipe,
        Err(Errno::NXIO | Errno::NOENT) => return Poke::Gone,
        Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return Poke::Failed,
        Err(Errno::ACCESS | Errno::PERM) => return Poke::Denied,
        Err(_) => return Poke::Left,
    };
    // Sixteen bytes go into a pipe as one piece or not at all.
    match retry_on_intr(|| rustix::io::write(&pipe, &claim.to_le_bytes())) {
        Err(Errno::PIPE) => Poke::Gone,
        _ => Poke::Left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        layout.fill().unwrap();
        (dir, layout)
    }

    #[test]
    fn a_session_lives_as_long_as_its_descriptor() {
        let (_dir, layout) = layout();
        let session = Session::begin(&layout, 1).unwrap();
        let id = session.id;
        assert_eq!(probe(&layout, id), Life::Alive);
        let lifeline = session.life().clone();
        drop(session);
        assert_eq!(probe(&layout, id), Life::Alive, "as in a guardian process");
        remove_dead(&layout);
        assert_eq!(probe(&layout, id), Life::Alive);
        drop(lifeline);
        assert_eq!(probe(&layout, id), Life::Dead);
        remove_dead(&layout);
        assert_eq!(layout.sessions().list().unwrap().len(), 0);
        assert_eq!(probe(&layout, id), Life::Dead);
    }

    #[test]
    fn an_ended_session_is_dead_despite_open_descriptors() {
        let (_dir, layout) = layout();
        let session = Session::begin(&layout, 1).unwrap();
        let _lifeline = session.life().clone();
        session.end(&layout);
        assert_eq!(probe(&layout, session.id), Life::Dead);
        assert!(!session.can_be_found().unwrap());
    }

    #[test]
    fn sessions_start_during_a_sweep() {
        let (_dir, layout) = layout();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (layout, flag) = (&layout, &done);
            let looking = scope.spawn(move || {
                while !flag.load(std::sync::atomic::Ordering::Relaxed) {
                    remove_dead(layout);
                }
            });
            let sessions: Vec<_> =
                (0..200).map(|_| Session::begin(layout, 1).expect("a session begins")).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            looking.join().unwrap();
            for session in &sessions {
                assert!(session.can_be_found().unwrap());
                assert_eq!(probe(layout, session.id), Life::Alive);
            }
        });
    }

    /// Names that another user may have made.
    #[test]
    fn hostile_names_of_session_files_are_passed_over() {
        let long = format!("{}.life", "a".repeat(33));
        let upper = format!("{}.life", "A".repeat(32));
        let signed = format!("+{}.life", "a".repeat(31));
        for name in [".life", "1.life", "x", "../../x.life", &long, &upper, &signed] {
            assert_eq!(parse_life(name), None, "{name}");
        }
        assert_eq!(parse_life(&format!("{:032x}.life", 77)), Some(77));
        latchwork_services::hostile::survives(
            "the name of a session file",
            &[b"000000000000000000000000000004d2.life"],
            |bytes| {
                let _ = std::str::from_utf8(bytes).map(parse_life);
            },
        );
    }

    #[test]
    fn a_poke_arrives_or_reports_no_reader() {
        let (_dir, layout) = layout();
        let session = Session::begin(&layout, 1).unwrap();
        assert_eq!(poke(&layout, session.id, 7), Poke::Left);
        let mut bytes = [0; 32];
        assert_eq!(rustix::io::read(session.wake(), &mut bytes).unwrap(), 16);
        assert_eq!(bytes[..16], 7u128.to_le_bytes());
        for _ in 0..5_000 {
            assert_eq!(poke(&layout, session.id, 7), Poke::Left, "a full pipe is no error");
        }
        let id = session.id;
        drop(session);
        assert_eq!(poke(&layout, id, 7), Poke::Gone);
    }
}
