//! A file that has the address of a store.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use latchwork_store::{Error, ErrorKind as Kind};

/// No address is longer.
const LONGEST: u64 = 64 * 1024;

/// The address in a file: its only line that is neither empty nor a comment (`#`).
///
/// # Errors
///
/// `Invalid`, with the file's name, if it cannot be read or has no line or more than one.
pub(super) fn read(file: &Path) -> Result<String, Error> {
    let invalid = |problem: &str, step: &'static str| {
        let message = format!("store file {}: {problem}", file.display());
        Error::new(Kind::Invalid, message).with_next_step(step)
    };
    let mut text = String::new();
    // It may be a pipe, so its length is not known before.
    let read = File::open(file).and_then(|it| it.take(LONGEST).read_to_string(&mut text));
    read.map_err(|error| match error.kind() {
        ErrorKind::InvalidData => invalid(&error.to_string(), "save it as UTF-8"),
        _ => invalid(&error.to_string(), "check its name and its permissions"),
    })?;
    // Some editors begin a file with a mark of its encoding.
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(address), None) => Ok(address.to_owned()),
        (None, _) => Err(invalid(
            "it is empty",
            "write one address into it, for example redis://:password@host",
        )),
        (Some(_), Some(_)) => Err(invalid(
            "more than one line",
            "leave one address in it; a line that begins with # is a comment",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_the_address() {
        let folder = std::env::temp_dir().join(format!("latchwork-source-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("store");
        let read_of = |text: &[u8]| {
            std::fs::write(&file, text).unwrap();
            read(&file).map_err(|error| error.to_string())
        };
        let plain = "redis://:pw@h1";
        assert_eq!(read_of(b"# locks\n\n  redis://:pw@h1 \r\n").unwrap(), plain);
        assert_eq!(read_of("\u{feff}redis://:pw@h1\r\n".as_bytes()).unwrap(), plain);
        assert!(read_of(b"# nothing\n").unwrap_err().contains("is empty"));
        assert!(read_of(b"\xff\xfer\0").unwrap_err().contains("save it as UTF-8"));
        let error = read_of(b"redis://:pw@h1\nredis://h2").unwrap_err();
        assert!(error.contains("more than one line") && !error.contains("pw"), "{error}");
        assert!(read(&folder.join("none")).unwrap_err().to_string().contains("none: "));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
