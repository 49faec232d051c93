//! The default directory of another environment of the same person: locks there exclude nobody here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Dir;

use super::variable;

/// A default directory, with something in it, that the same person uses from elsewhere: from a shell where
/// `XDG_STATE_HOME` is set and from cron where it is not, or with sudo and without it. `used` is the
/// default here.
pub(crate) fn unseen_directory(used: &str) -> Option<PathBuf> {
    let mut others = Vec::new();
    let home = variable("HOME").map(PathBuf::from);
    others.extend(home.map(|home| home.join(".local").join("state")));
    if let Some(sudo_user) = variable("SUDO_USER") {
        let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
        others.extend(home_of(&sudo_user, &passwd).map(|home| home.join(".local").join("state")));
    }
    let used = used.strip_prefix("file://").unwrap_or(used);
    let mut others = others.into_iter().map(|state| state.join("latchwork"));
    others.find(|other| other.as_os_str() != OsStr::new(used) && has_entries(other))
}

/// The home directory of a user, by the text of `/etc/passwd`.
fn home_of(user: &OsStr, passwd: &[u8]) -> Option<PathBuf> {
    let mut lines = passwd.split(|&byte| byte == b'\n');
    let fields = lines.find_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        (fields.next()? == user.as_bytes()).then_some(fields)
    });
    let home = PathBuf::from(OsStr::from_bytes(fields?.nth(4)?));
    home.is_absolute().then_some(home)
}

fn has_entries(directory: &Path) -> bool {
    let Ok(opened) = std::fs::File::open(directory) else { return false };
    let Ok(entries) = Dir::read_from(opened) else { return false };
    entries.flatten().any(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_found_by_name() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\nann:x:1:1::/home/ann:/bin/sh\nbad:x\n";
        assert_eq!(home_of(OsStr::new("ann"), passwd), Some("/home/ann".into()));
        assert_eq!(home_of(OsStr::new("bad"), passwd), None);
        assert_eq!(home_of(OsStr::new("an"), passwd), None);
    }
}
