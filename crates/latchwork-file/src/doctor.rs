//! Whether a directory is fit for locks.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchwork_store::doctor::{Finding, Report};
use latchwork_store::{
    Backend as _, BackendError, BackendErrorKind, Effect, Error, ErrorKind, Io, Query, clock,
};
use rustix::fs::{Access, StatVfs};
use rustix::io::Errno;

use crate::backend::FileBackend;
use crate::disk::dir::Dir;
use crate::disk::failure::{FIND_THE_STOPPED_STEP, failed};
use crate::disk::fs_check;
use crate::disk::owner::{self, Owner};
use crate::protocol::inspect::UNREADABLE;
use crate::records::boot;
use crate::records::layout::Layout;
use crate::records::session::{self, Life};

/// How long reading all records may take.
const LOOK: Duration = Duration::from_secs(5);
/// A record takes some kilobytes; below this, new keys will soon be refused.
const LITTLE_ROOM: u64 = 16 << 20;
const FEW_INODES: u64 = 1_000;
/// A backend has three descriptors, a waiter two more for a while.
const FEW_DESCRIPTORS: u64 = 256;
const FREE_INODES_STEP: &str =
    "remove files that are not needed from this file system (`df -i` shows its inodes)";
/// 2024-01-01: a host that believes in an earlier time has not set its clock.
const CLOCK_WAS_SET: u64 = 1_704_067_200;

/// Examines a lock directory.
///
/// A directory that is not there is not made. One that is there is opened as any program opens it,
/// so what is missing in it is made and sessions of dead processes are removed.
///
/// # Errors
///
/// `Invalid` if the path cannot be made absolute. All else that is wrong is a finding.
pub async fn doctor(dir: impl AsRef<Path>, io: Io) -> Result<Report, Error> {
    let root = std::path::absolute(dir.as_ref()).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("store: {}: {error}", dir.as_ref().display()))
    })?;
    let mut report = Report::new(format!("file://{}", root.display()));
    // Of a directory that is still to be made, the place can be judged.
    let place = root.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned();
    let exists = place == root;
    let found = root.symlink_metadata();
    let can_be_made = found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    report.add(match found {
        _ if exists => Finding::ok("directory", format!("{} is there", root.display())),
        Ok(_) => Finding::critical("directory", format!("{} is no directory", root.display()))
            .consequence("no lock can be acquired")
            .remedy("remove it, or choose another directory"),
        Err(_) if can_be_made => {
            Finding::info("directory", format!("{} does not exist yet", root.display()))
                .consequence("the first program that uses it creates it, for its own user only")
                .remedy("to share it between users, create it first, with the mode that it needs")
        }
        Err(error) => {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            no_lock("directory", failed("examine", &root, errno, Effect::NotApplied))
        }
    });
    report.add(place_is_kept(&root, &place, std::env::temp_dir()));
    match look_at(&place, exists) {
        Ok(findings) => report.findings.extend(findings),
        Err(error) => report.add(no_lock("rights", error)),
    }
    if can_be_made {
        report.add(may_make(&place));
    }
    report.add(descriptors());
    report.add(boot_id(exists.then_some(&root)));
    report.findings.extend(clocks());
    if exists && report.is_fit() {
        report.add(owners(&root));
        use_it(&root, io, &mut report).await;
    }
    Ok(report)
}

/// Whether the directory stays where it is.
fn place_is_kept(root: &Path, place: &Path, temp: PathBuf) -> Finding {
    const CLEANED: &[&str] = &["/tmp", "/var/tmp"];
    const VOLATILE: &[&str] = &["/run", "/var/run", "/dev/shm"];
    // Links are followed as far as there is something; the rest is what will be made.
    let rest = root.strip_prefix(place).unwrap_or(Path::new(""));
    let real = place.canonicalize().unwrap_or_else(|_| place.to_owned()).join(rest);
    let own_temp = Some(temp).filter(|temp| temp.is_absolute());
    let below = |paths: &[&str]| paths.iter().map(PathBuf::from).find(|p| real.starts_with(p));
    if let Some(temp) = below(CLEANED).or_else(|| own_temp.filter(|temp| real.starts_with(temp))) {
        return Finding::warning("temp-directory", format!("it lies below {}", temp.display()))
            .consequence(
                "temp cleaners remove old files: closed periods of `once` are lost, and locks, unless the \
                cleaner is systemd-tmpfiles, which leaves a directory in use alone",
            )
            .remedy("choose a directory that no temp cleaner covers, such as /var/lib/app/locks");
    }
    if let Some(volatile) = below(VOLATILE) {
        return Finding::info("temp-directory", format!("it lies below {}", volatile.display()))
            .consequence(
                "it is empty after a restart: closed periods of `once` are lost, and \
                tokens follow the clock",
            );
    }
    Finding::ok("temp-directory", "no temp cleaner covers it")
}

/// Why no lock can be acquired.
fn no_lock(code: &'static str, error: BackendError) -> Finding {
    Finding::critical(code, error.message)
        .consequence("no lock can be acquired")
        .remedy(error.next_step.unwrap_or_default())
}

/// What a directory tells without being used.
fn look_at(place: &Path, exists: bool) -> Result<Vec<Finding>, BackendError> {
    let failed = |errno| failed("open", place, errno, Effect::NotApplied);
    let dir = Dir::open(place.to_owned()).map_err(failed)?;
    let found = rustix::fs::fstat(dir.fd()).map_err(failed)?;
    let mut findings = file_system(&dir);
    findings.push(if exists {
        mode(place, found.st_mode & 0o7777)
    } else {
        Finding::ok("mode", "it will be accessible to this user only")
    });
    findings.push(way(place, Owner::of_stat(&found)));
    Ok(findings)
}

fn file_system(dir: &Dir) -> Vec<Finding> {
    let mut findings = Vec::new();
    match fs_check::check_kind(dir) {
        Ok(()) => findings.push(match fs_check::kind_name(dir) {
            Some(name @ "overlay") => Finding::info("file-system", name)
                .consequence(
                    "it is in the container's own layer: other containers do not see \
                    these locks",
                )
                .remedy("to share locks between containers, mount one directory into each"),
            Some(name) => Finding::ok("file-system", format!("{name}, local")),
            None => Finding::info("file-system", "unknown kind of file system").consequence(
                "each start checks that a held lock excludes others; nothing else \
                    is known of it",
            ),
        }),
        Err(error) => findings.push(
            Finding::critical("file-system", error.message)
                .consequence("two processes may hold the same lock")
                .remedy(error.next_step.unwrap_or_default()),
        ),
    }
    if let Ok(room) = rustix::fs::fstatvfs(dir.fd()) {
        findings.extend(space(&room));
    }
    findings
}

fn space(room: &StatVfs) -> [Finding; 2] {
    let bytes = room.f_bavail.saturating_mul(room.f_frsize);
    let found = format!("{} MiB free", bytes >> 20);
    let bytes = match bytes {
        0 => Finding::critical("space", found)
            .consequence("locks with new names cannot be acquired")
            .remedy("free space on the file system"),
        few if few < LITTLE_ROOM => Finding::warning("space", found)
            .consequence("soon locks with new names cannot be acquired")
            .remedy("free space on the file system"),
        _ => Finding::ok("space", found),
    };
    // Some file systems do not count them.
    let found = format!("{} of {} inodes free", room.f_favail, room.f_files);
    let inodes = match room.f_favail {
        _ if room.f_files == 0 => Finding::ok("inodes", "not limited"),
        0 => Finding::critical("inodes", found)
            .consequence("no process can begin a session, and no new key can be locked")
            .remedy(FREE_INODES_STEP),
        few if few < FEW_INODES => Finding::warning("inodes", found)
            .consequence("soon no process can begin a session, and no new key can be locked")
            .remedy(FREE_INODES_STEP),
        _ => Finding::ok("inodes", found),
    };
    [bytes, inodes]
}

/// Who may break the locks.
fn mode(place: &Path, mode: u32) -> Finding {
    let found = format!("{mode:04o}");
    if mode & 0o002 != 0 {
        let place = place.display();
        return Finding::warning("mode", found)
            .consequence("every user of this machine can break the locks")
            .remedy(format!("share it by a group: chgrp GROUP {place} && chmod 3770 {place}"));
    }
    if mode & 0o1020 == 0o020 {
        return Finding::info("mode", found)
            .consequence("every user of its group can replace its files")
            .remedy(make_sticky(place));
    }
    Finding::ok("mode", found)
}

/// Who may put another directory in its place.
fn way(place: &Path, owner: Owner) -> Finding {
    use std::os::unix::fs::MetadataExt;
    let real = place.canonicalize().unwrap_or_else(|_| place.to_owned());
    let open = real
        .ancestors()
        .skip(1)
        .find(|parent| parent.metadata().is_ok_and(|found| found.mode() & 0o1002 == 0o002));
    match open {
        Some(open) => Finding::warning(
            "path",
            format!("every user can rename the entries of {}", open.display()),
        )
        .consequence("every user of this machine can replace it with another lock directory")
        .remedy(make_sticky(open)),
        None => Finding::ok("path", format!("belongs to {owner}")),
    }
}

fn make_sticky(dir: &Path) -> String {
    format!("set the sticky bit: chmod +t {}", dir.display())
}

/// Whether this user may make what is missing below a directory.
fn may_make(place: &Path) -> Finding {
    match rustix::fs::access(place, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Finding::ok("rights", format!("this user can create it in {}", place.display())),
        Err(errno) => {
            let error = std::io::Error::from(errno);
            Finding::critical("rights", format!("cannot write to {}: {error}", place.display()))
                .consequence("the directory cannot be created, and no lock can be acquired")
                .remedy(
                    "give this user the right to write there, or create the directory for \
                    this user",
                )
        }
    }
}

fn descriptors() -> Finding {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next())
        .and_then(|soft| soft.parse::<u64>().ok());
    match soft {
        Some(few) if few < FEW_DESCRIPTORS => {
            Finding::warning("descriptors", format!("at most {few} open files for this process"))
                .consequence("waiters without a file descriptor poll every 50 ms")
                .remedy("raise the limit of open files (ulimit -n)")
        }
        Some(soft) => Finding::ok("descriptors", format!("at most {soft} open files")),
        None => Finding::ok("descriptors", "not limited"),
    }
}

/// What tells one boot from another, and whether all agree about it.
fn boot_id(root: Option<&PathBuf>) -> Finding {
    let boot = match boot::id() {
        Ok(boot) => boot,
        Err(error) => {
            return no_lock("boot-id", error);
        }
    };
    let found = format!("{boot:032x}");
    let alive = root.map(|root| sessions(root).0).unwrap_or_default();
    let others = alive.iter().filter(|id| !boot::is_of(**id, boot)).count();
    if others == 0 {
        return Finding::ok("boot-id", found);
    }
    let all = alive.len();
    Finding::info("boot-id", format!("{found}; {others} of {all} sessions have a different one"))
        .consequence(
            "none: they run in containers with a boot id of their own, and their held \
            locks prove that they are alive",
        )
}

fn clocks() -> Vec<Finding> {
    let mut findings = Vec::new();
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    findings.push(if is_shifted(&offsets) {
        Finding::critical("boot-clock", "this process is in a time namespace of its own")
            .consequence(
                "processes with different boot clocks end each other's leases at wrong times",
            )
            .remedy("run all programs that use the directory in the same time namespace")
    } else {
        Finding::ok("boot-clock", "that of the machine")
    });
    findings.push(if clock::wall_time().as_secs() < CLOCK_WAS_SET {
        Finding::warning("wall-clock", "it was not set")
            .consequence(
                "tokens may repeat if the directory is lost, and closed periods of `once` end at \
                 wrong times",
            )
            .remedy("set it with a time service (NTP)")
    } else {
        Finding::ok("wall-clock", "set")
    });
    findings
}

/// Whether the boot clock of a time namespace differs from that of the machine.
fn is_shifted(timens_offsets: &str) -> bool {
    let boot = timens_offsets.lines().find_map(|line| line.strip_prefix("boottime"));
    boot.is_some_and(|offsets| offsets.split_whitespace().any(|offset| offset != "0"))
}

/// Whether the owner of the directory can use all that is in it.
fn owners(root: &Path) -> Finding {
    let found = Layout::open_to_read(root).ok();
    let others = found.as_ref().map(Layout::parts_of_others).unwrap_or_default();
    let (Some(layout), Some((first, owner))) = (found, others.first()) else {
        return Finding::ok("owner", "its owner can use all parts");
    };
    let more = match others.len() {
        1 => String::new(),
        count => format!(", and {} more parts belong to others", count - 1),
    };
    let found = format!("{} belongs to {owner}{more}", first.path().display());
    let finding = Finding::warning("owner", found)
        .consequence("the owner of the directory cannot acquire all locks");
    match rustix::fs::fstat(layout.dir().fd()) {
        Ok(directory) => {
            finding.remedy(format!("as root, run `{}`", owner::chown(&directory, root)))
        }
        Err(_) => finding,
    }
}

/// Opens it as any program does, and reads all of it.
async fn use_it(root: &Path, io: Io, report: &mut Report) {
    let (alive, dead) = sessions(root);
    let alive = alive.len();
    let backend = match FileBackend::begin(root, io.clone()) {
        Ok(backend) => backend,
        Err(error) => {
            let code = if error.kind == BackendErrorKind::Denied { "rights" } else { "usable" };
            return report.add(no_lock(code, error));
        }
    };
    report.add(Finding::ok("rights", "this user may read and write it"));
    report.add(Finding::ok("usable", "file locks exclude other processes, and named pipes work"));
    report.add(match dead {
        0 => Finding::ok("sessions", format!("{alive} alive")),
        _ => Finding::info("sessions", format!("{alive} alive, {dead} of dead processes"))
            .consequence(
                "nothing to do: their locks are already free, and their files were removed",
            ),
    });
    let everything = Query::Prefix("".into());
    let Some(all) = io.within(LOOK, backend.inspect(&everything)).await else {
        return report.add(
            Finding::warning("records", "not all could be checked in time")
                .consequence("a process may have been stopped in the middle of a change")
                .remedy(FIND_THE_STOPPED_STEP),
        );
    };
    report.add(match all {
        Err(error) => Finding::warning("records", error.message)
            .consequence("some keys cannot be checked, and may not be lockable")
            .remedy(error.next_step.unwrap_or_default()),
        Ok(all) => {
            let damaged: Vec<_> = all
                .iter()
                .filter(|one| one.holders.iter().any(|party| &*party.holder.text == UNREADABLE))
                .collect();
            match damaged.first() {
                None => Finding::ok("records", format!("{} keys in use, all readable", all.len())),
                Some(first) => Finding::critical(
                    "records",
                    format!("{} cannot be read, the first is {}", damaged.len(), first.key),
                )
                .consequence("their keys cannot be locked")
                .remedy("make sure that no process holds these keys, then remove the files"),
            }
        }
    });
}

/// The sessions that live, and how many are left of dead processes.
fn sessions(root: &Path) -> (Vec<u128>, usize) {
    let Ok(layout) = Layout::open(root) else { return (Vec::new(), 0) };
    let all = session::all(&layout);
    let is_dead = |id: &u128| session::probe(&layout, *id) == Life::Dead;
    let (dead, alive): (Vec<u128>, Vec<u128>) = all.into_iter().partition(is_dead);
    (alive, dead.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_clock_of_another_namespace_is_noticed() {
        assert!(!is_shifted(""));
        assert!(!is_shifted("monotonic           0         0\nboottime            0         0\n"));
        assert!(is_shifted("monotonic           0         0\nboottime       172800         0\n"));
    }

    #[test]
    fn directories_of_temp_cleaners_are_named() {
        for (place, severity) in [
            ("/tmp/locks", "warning"),
            ("/var/tmp/a/b", "warning"),
            ("/dev/shm/locks", "info"),
            ("/var/lib/app/locks", "ok"),
            ("/tmpfiles/locks", "ok"),
        ] {
            let finding = place_is_kept(Path::new(place), Path::new("/"), PathBuf::from("/tmp"));
            assert_eq!(finding.severity.word(), severity, "{place}");
        }
    }

    #[test]
    fn where_nothing_can_be_made_is_critical() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(may_make(dir.path()).severity.word(), "ok");
        assert_eq!(may_make(&dir.path().join("gone")).severity.word(), "critical");
    }

    #[test]
    fn room_is_judged() {
        let dir = Dir::open("/".into()).unwrap();
        let room = rustix::fs::fstatvfs(dir.fd()).unwrap();
        let with = |blocks, inodes| {
            let room = StatVfs { f_frsize: 4096, f_bavail: blocks, f_favail: inodes, ..room };
            let room = StatVfs { f_files: 1 << 20, ..room };
            space(&room).map(|finding| (finding.severity.word(), finding.remedy))
        };
        let both = |severity, [bytes, inodes]: [&str; 2]| {
            [(severity, bytes.to_owned()), (severity, inodes.to_owned())]
        };
        let free = [
            "free space on the file system",
            "remove files that are not needed from this file system (`df -i` shows its inodes)",
        ];
        assert_eq!(with(0, 0), both("critical", free));
        assert_eq!(with(100, 100), both("warning", free));
        assert_eq!(with(1 << 20, 1 << 19), both("ok", ["", ""]));
    }
}
