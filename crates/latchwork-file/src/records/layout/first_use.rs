//! The first use of a directory: whether it may become a lock directory, and how it is marked as one.
//!
//! The format file is made before anything else. So whatever else is there without it was put there by
//! somebody else: a home, for example, that was named by mistake. Two things look different and are ours: what a
//! temp cleaner has left, and what the machine had on its disk when it went down.

use std::ffi::OsStr;

use latchwork_store::{BackendError, Effect, random_u128};
use rustix::io::Errno;

use super::{DIGITS, FORMAT, FORMAT_FILE, Layout, PARTS, STRIPES, other_format, read_text};
use crate::disk::dir::Entry;
use crate::disk::failure::{failed, failed_at, in_use, not_set_up};
use crate::disk::owner::Owner;
use crate::records::record_file::write_at;

impl Layout {
    /// Whether the format file is there and says that this program may use the directory.
    pub(super) fn is_marked(&self, format: &Entry) -> Result<bool, BackendError> {
        match read_text(format) {
            Ok(text) if text == FORMAT => Ok(true),
            // Empty: the machine went down before the text reached the disk.
            Ok(text) if text.is_empty() => Ok(false),
            Ok(text) => Err(other_format(format, &text)),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed_at("read", format, errno, Effect::NotApplied)),
        }
    }

    /// Makes a lock directory of one that is not marked.
    ///
    /// # Errors
    ///
    /// `Unsupported` if there is anything in it that is not ours; then nothing is made. `Denied` if only its
    /// owner may do this.
    pub(super) fn take_into_use(&self, format: &Entry) -> Result<(), BackendError> {
        self.refuse_anothers(format)?;
        let user = Owner::this_user();
        if self.shared && self.kept && user != self.owner && !user.is_root() {
            return Err(not_set_up(format, self.owner));
        }
        // Made aside and renamed, so that nobody reads half of it. Others do the same at the same
        // time: the names are random, and the last rename is as right.
        let aside = self.dir.entry(format!("{FORMAT_FILE}.{:032x}", random_u128()));
        let made = aside.create(self.file_mode).and_then(|file| {
            write_at(&file, FORMAT.as_bytes(), 0)?;
            aside.rename(format)
        });
        made.or_else(|errno| {
            let _ = aside.remove();
            // In a sticky directory the file of another user cannot be replaced.
            if read_text(format).is_ok_and(|text| text == FORMAT) { Ok(()) } else { Err(errno) }
        })
        .map_err(|errno| failed("create", &format.path(), errno, Effect::NotApplied))
    }

    pub(super) fn refuse_anothers(&self, format: &Entry) -> Result<(), BackendError> {
        let look = |errno| failed_at("list", &self.dir.entry("."), errno, Effect::NotApplied);
        let mut names = self.dir.entry(".").list().map_err(look)?;
        // What a new file system has.
        names.retain(|name| name != "lost+found" && !self.is_of_format(name));
        names.sort_unstable();
        let parts: Option<Vec<_>> = names.iter().map(|name| self.names_in_part(name)).collect();
        let is_ours = match parts {
            None => false,
            // Others have empty directories of these names, too. If a quicker first user has made this one, the
            // format file was there before.
            Some(parts) => {
                parts.is_empty() || parts.iter().sum::<usize>() > 0 || format.look().is_ok()
            }
        };
        match names.first() {
            Some(first) if !is_ours => Err(in_use(&self.dir.entry(first), names.len())),
            _ => Ok(()),
        }
    }

    /// Whether this is the format file, or one that its maker had not renamed yet.
    fn is_of_format(&self, name: &OsStr) -> bool {
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(FORMAT_FILE)) else {
            return false;
        };
        if rest.is_empty() {
            // Its text was judged before.
            return true;
        }
        rest.strip_prefix('.').is_some_and(is_id)
            && match read_text(&self.dir.entry(name)) {
                Ok(text) => FORMAT.starts_with(&text),
                // Renamed since the names were listed.
                Err(errno) => errno == Errno::NOENT,
            }
    }

    /// How many names there are in a part of the directory; `None` if it is no part, or has a name that is
    /// not ours.
    fn names_in_part(&self, part: &OsStr) -> Option<usize> {
        let part = PARTS.iter().find(|one| part == **one)?;
        let names = self.dir.entry(*part).list().ok()?;
        let is_ours = |name: &str| match *part {
            "sessions" => {
                name.strip_suffix(".life").or_else(|| name.strip_suffix(".wake")).is_some_and(is_id)
            }
            _ => matches!(*name.as_bytes(), [high, low]
                if DIGITS[..STRIPES / 16].contains(&high) && DIGITS.contains(&low)),
        };
        names.iter().all(|name| name.to_str().is_some_and(is_ours)).then_some(names.len())
    }
}

/// Whether a text is a number of 128 bits as our names have it.
fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|digit| DIGITS.contains(&digit))
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, read_dir, remove_dir_all, remove_file, write};
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use latchwork_store::BackendErrorKind;

    use super::*;

    fn fill(dir: &Path) -> Result<(), BackendError> {
        Layout::open(dir).unwrap().fill()
    }

    /// Each of them is a directory with one thing in it that nobody would want to find locks beside.
    #[test]
    fn a_directory_with_anything_else_in_it_is_refused() {
        let aside = format!("latchwork.format.{}", "0".repeat(32));
        type Case<'a> = (&'a str, &'a dyn Fn(&Path));
        let cases: [Case<'_>; 14] = [
            ("letter", &|at| write(at, "dear").unwrap()),
            (".bashrc", &|at| write(at, "").unwrap()),
            (".config", &|at| create_dir(at).unwrap()),
            ("sessions", &|at| create_dir(at).unwrap()),
            ("records", &|at| create_dir(at).unwrap()),
            ("stripes", &|at| write(at, "").unwrap()),
            ("records", &|at| write(at, "mine").unwrap()),
            ("sessions", &|at| symlink("/tmp", at).unwrap()),
            ("records", &|at| {
                create_dir(at).unwrap();
                write(at.join("beatles.flac"), "").unwrap();
            }),
            ("sessions", &|at| {
                create_dir(at).unwrap();
                create_dir(at.join("00")).unwrap();
            }),
            ("stripes", &|at| {
                create_dir(at).unwrap();
                write(at.join("00"), "").unwrap();
                write(at.join("40"), "").unwrap();
            }),
            ("latchwork.format.bak", &|at| write(at, FORMAT).unwrap()),
            ("latchwork.formats", &|at| write(at, "").unwrap()),
            (&aside, &|at| write(at, "another text").unwrap()),
        ];
        for (name, make) in cases {
            let dir = tempfile::tempdir().unwrap();
            make(&dir.path().join(name));
            let error = fill(dir.path()).expect_err(name);
            assert_eq!(error.kind, BackendErrorKind::Unsupported, "{name}");
            let path = dir.path().join(name).display().to_string();
            assert!(error.message.contains(&format!("contains {path}, ")), "{error}");
            assert_eq!(read_dir(dir.path()).unwrap().count(), 1, "{name}: something was made");
        }
    }

    #[test]
    fn an_empty_directory_and_a_new_file_system_are_taken() {
        for name in [None, Some("lost+found")] {
            let dir = tempfile::tempdir().unwrap();
            if let Some(name) = name {
                create_dir(dir.path().join(name)).unwrap();
            }
            fill(dir.path()).unwrap();
            // From now on it is one of ours, whatever else comes to lie there.
            write(dir.path().join("letter"), "dear").unwrap();
            fill(dir.path()).unwrap();
        }
    }

    /// Most rounds end with the format file: there they get into each other's way.
    #[test]
    fn first_users_at_the_same_time_all_succeed() {
        for round in 0..200 {
            let base = tempfile::tempdir().unwrap();
            let dir = base.path().join("locks");
            let is_whole = round % 20 == 0;
            let all_here = std::sync::Barrier::new(12);
            let use_it = || {
                all_here.wait();
                let layout = Layout::open(&dir)?;
                let format = layout.dir.entry(FORMAT_FILE);
                match is_whole {
                    true => layout.fill(),
                    false if layout.is_marked(&format)? => Ok(()),
                    false => layout.take_into_use(&format),
                }
            };
            std::thread::scope(|scope| {
                let users: Vec<_> = (0..12).map(|_| scope.spawn(use_it)).collect();
                for user in users {
                    user.join().unwrap().unwrap_or_else(|e| panic!("round {round}: {e}"));
                }
            });
            let left = read_dir(&dir).unwrap().count();
            assert_eq!(
                left,
                if is_whole { 4 } else { 1 },
                "round {round}: a file of the race remains"
            );
        }
    }

    /// A first user that was killed, or whose machine went down, between any two of its steps.
    #[test]
    fn an_interrupted_first_use_is_completed_by_the_next() {
        let id = "0123456789abcdef".repeat(2);
        for (text, is_renamed) in
            [("", false), ("latch", false), (FORMAT, false), ("", true), (FORMAT, true)]
        {
            for parts in 0..=PARTS.len() {
                // Without a format file nothing else was made.
                if parts > 0 && !is_renamed {
                    continue;
                }
                let dir = tempfile::tempdir().unwrap();
                let aside = format!("latchwork.format.{id}");
                let name = if is_renamed { FORMAT_FILE } else { &aside };
                write(dir.path().join(name), text).unwrap();
                for part in &PARTS[..parts] {
                    create_dir(dir.path().join(part)).unwrap();
                }
                fill(dir.path()).unwrap_or_else(|e| panic!("{name} {text:?} {parts}: {e}"));
                let text = std::fs::read_to_string(dir.path().join(FORMAT_FILE)).unwrap();
                assert_eq!(text, FORMAT);
                assert_eq!(read_dir(dir.path().join("stripes")).unwrap().count(), STRIPES);
            }
        }
    }

    /// A temp cleaner takes what nobody has read for long: the format file, and the parts that are not in use.
    #[test]
    fn a_partly_cleaned_directory_is_repaired() {
        for gone in [&["stripes"][..], &["stripes", "records"], &["sessions", "stripes"], &[]] {
            let dir = tempfile::tempdir().unwrap();
            fill(dir.path()).unwrap();
            write(dir.path().join(format!("sessions/{}.life", "a".repeat(32))), "").unwrap();
            remove_file(dir.path().join(FORMAT_FILE)).unwrap();
            for part in gone {
                remove_dir_all(dir.path().join(part)).unwrap();
            }
            fill(dir.path()).unwrap();
        }
    }
}
