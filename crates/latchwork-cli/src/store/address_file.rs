//! Files that hold the address of a store.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use latchwork::Error;

use super::passed_on::is_passed_on;
use super::variable;

/// No address is longer.
const LONGEST: u64 = 64 * 1024;

/// Where a store file is looked for if none is named: the user's, then the machine's.
pub(super) fn usual_places() -> Vec<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let user = config.map(|config| config.join("latchwork").join("store"));
    user.into_iter().chain([PathBuf::from("/etc/latchwork/store")]).collect()
}

/// The address in a file: its only line that is neither empty nor a comment (`#`).
///
/// # Errors
///
/// `Invalid`, with the file's name, if it cannot be read or has no line or more than one.
pub(super) fn read(file: &Path) -> Result<String, Error> {
    let invalid = |problem: String, step: &str| {
        let message = format!("store file {}: {problem}", file.display());
        Error::new(latchwork::ErrorKind::Invalid, message).next_step(step.to_owned())
    };
    let mut text = String::new();
    // It may be a pipe, so its length is not known before.
    let read = File::open(file).and_then(|it| it.take(LONGEST).read_to_string(&mut text));
    read.map_err(|error| {
        let step = match error.kind() {
            ErrorKind::InvalidData => "save it as UTF-8",
            ErrorKind::NotFound if is_passed_on(file) => {
                "the latchwork command that named it has ended, or runs in another container; name a store file \
                 of your own with --store-file or LATCHWORK_STORE_FILE"
            }
            _ => "check its name and its permissions",
        };
        invalid(error.to_string(), step)
    })?;
    // Some editors begin a file with a mark of its encoding.
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(address), None) => Ok(address.to_owned()),
        (None, _) => Err(invalid(
            "it is empty".to_owned(),
            "write one address into it, for example redis://:password@host",
        )),
        (Some(_), Some(_)) => Err(invalid(
            "more than one line".to_owned(),
            "leave one address in it; a line that begins with # is a comment",
        )),
    }
}

/// Whether users other than its owner may read the file.
pub(super) fn others_may_read(file: &Path) -> bool {
    std::fs::metadata(file)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o044 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_the_address() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store");
        let read_of = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read(&file).map_err(|error| error.to_string())
        };
        assert_eq!(read_of("# locks\n\n  redis://:pw@h1 \r\n").unwrap(), "redis://:pw@h1");
        assert_eq!(read_of("\u{feff}redis://h1\r\n").unwrap(), "redis://h1");
        assert!(read_of("# nothing\n").unwrap_err().contains("is empty"));
        std::fs::write(&file, b"\xff\xfer\0").unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("save it as UTF-8"));
        let error = read_of("redis://:pw@h1\nredis://h2").unwrap_err();
        assert!(error.contains("more than one line") && !error.contains("pw"), "{error}");
        assert!(read(&folder.path().join("none")).unwrap_err().to_string().contains("none: "));
    }
}
