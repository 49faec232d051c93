//! The file of tokens and their rights. The service keeps no token as text, and takes none as an argument.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use latchwork::{Error, ErrorKind};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::principal::{LOCAL, Principal, Right};

/// The fewest characters of a token: it must not be guessed.
const SHORTEST: usize = 16;

/// The tokens that the service knows.
pub(crate) struct Tokens {
    path: PathBuf,
    known: Vec<([u8; 32], Arc<Principal>)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    tokens: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    /// The token itself.
    token: Option<String>,
    /// Or its SHA-256, as 64 hexadecimal digits.
    sha256: Option<String>,
    rights: Vec<Right>,
    /// The prefixes of the names that it may use; all names if it is left out, and an error if it is `null`.
    #[serde(default = "all_names")]
    prefixes: Option<Vec<String>>,
}

fn all_names() -> Option<Vec<String>> {
    Some(vec![String::new()])
}

fn bad(path: &Path, message: &str, step: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("tokens: {}: {message}", path.display()))
        .with_next_step(step)
}

const FORM: &str = "write {\"tokens\": [{\"name\": \"web\", \"sha256\": \"...\", \"rights\": [\"read\", \"lock\"], \
                    \"prefixes\": [\"shop/\"]}]}";

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// `Invalid` if it cannot be read, is no such file, has a token that is too short or twice, if other users may
    /// write it, or if they may read tokens in it. No message shows a token.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let (text, mode) = text_and_mode(path).map_err(|error| {
            bad(path, &error.to_string(), "name a file that the service may read")
        })?;
        // They could give themselves every right.
        if mode & 0o022 != 0 {
            let step = format!("run chmod go-w {}", path.display());
            return Err(bad(path, "other users may write it", &step));
        }
        // Some editors put a byte order mark before it.
        let text = text.trim_start_matches('\u{feff}');
        let file: Listed = serde_json::from_str(text).map_err(|error| {
            // The parser's own words may quote a token.
            let place = format!("not read: line {}, column {}", error.line(), error.column());
            bad(path, &place, FORM)
        })?;
        let mut known: Vec<([u8; 32], Arc<Principal>)> = Vec::new();
        for entry in file.tokens {
            let name = &entry.name;
            if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
                return Err(bad(path, "name: 1 to 100 plain characters are needed", FORM));
            }
            if **name == *LOCAL {
                let message = format!("name: {LOCAL:?} is what clients without a token are called");
                return Err(bad(path, &message, "choose another name"));
            }
            let hash = match (&entry.token, &entry.sha256) {
                (Some(token), None) => {
                    if mode & 0o077 != 0 {
                        let message = format!("other users may read the token {name:?}");
                        let step =
                            format!("run chmod 600 {}, or write sha256 instead", path.display());
                        return Err(bad(path, &message, &step));
                    }
                    if token.len() < SHORTEST || !token.bytes().all(|it| it.is_ascii_graphic()) {
                        let message = format!(
                            "token {name:?}: {SHORTEST} or more visible ASCII characters are needed"
                        );
                        return Err(bad(path, &message, "make one with: openssl rand -hex 32"));
                    }
                    hash(token.as_bytes())
                }
                (None, Some(hex)) => from_hex(hex).ok_or_else(|| {
                    let message = format!("sha256 of {name:?}: not 64 hexadecimal digits");
                    bad(path, &message, "make it with: printf %s TOKEN | sha256sum")
                })?,
                _ => {
                    let message = format!("token {name:?}: either token or sha256 is needed");
                    return Err(bad(path, &message, FORM));
                }
            };
            if known.iter().any(|(other, principal)| *other == hash || *principal.name == **name) {
                let message = format!("token {name:?}: its name or its token is there twice");
                return Err(bad(path, &message, "give each client a name and a token of its own"));
            }
            let prefixes = entry.prefixes.ok_or_else(|| {
                let message = format!("prefixes of {name:?}: null is no list");
                let step = "leave prefixes out for all names, or list the beginnings of names";
                bad(path, &message, step)
            })?;
            let principal = Principal {
                name: name.as_str().into(),
                rights: entry.rights,
                prefixes,
                token: Some(hash),
            };
            known.push((hash, Arc::new(principal)));
        }
        if known.is_empty() {
            return Err(bad(path, "there is no token in it", FORM));
        }
        Ok(Self { path: path.to_owned(), known })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The owner with this name and token, with its rights in this file.
    pub(crate) fn renewed(&self, before: &Principal) -> Option<&Arc<Principal>> {
        let mut known = self.known.iter().map(|(_, known)| known);
        known.find(|it| it.name == before.name && it.token == before.token)
    }

    /// The owner of this token. Takes the same time for every token of one length.
    pub(crate) fn find(&self, token: &[u8]) -> Option<Arc<Principal>> {
        let given = hash(token);
        let mut found = 0_u32;
        for (number, (known, _)) in (1..).zip(&self.known) {
            let is_it: Choice = known[..].ct_eq(&given[..]);
            found = u32::conditional_select(&found, &number, is_it);
        }
        let index = usize::try_from(found).ok()?.checked_sub(1)?;
        self.known.get(index).map(|(_, principal)| principal.clone())
    }

    /// The number of tokens.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The text and the mode of one file, also if the path leads to another one meanwhile.
fn text_and_mode(path: &Path) -> io::Result<(String, u32)> {
    let mut file = File::open(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok((text, file.metadata()?.mode()))
}

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| u8::try_from(digit.to_digit(16)?).ok()).collect();
    let digits = digits.filter(|digits| digits.len() == 64)?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn read(text: &str, mode: u32) -> Result<Tokens, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Tokens::read(&path)
    }

    const SECRET: &str = "correct-horse-battery";

    fn plain(token: &str) -> String {
        format!(r#"{{"tokens":[{{"name":"web","token":"{token}","rights":["read"]}}]}}"#)
    }

    #[test]
    fn a_token_is_found_by_itself_or_by_its_hash() {
        let tokens = read(&plain(SECRET), 0o600).unwrap();
        assert_eq!(&*tokens.find(SECRET.as_bytes()).unwrap().name, "web");
        // As some editors write a file.
        let marked = format!("\u{feff}{}\r\n", plain(SECRET));
        assert!(read(&marked, 0o600).unwrap().find(SECRET.as_bytes()).is_some());
        assert!(tokens.find(b"correct-horse-batterz").is_none());
        assert!(tokens.find(b"").is_none());
        let hex: String =
            hash(SECRET.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let hashed = format!(r#"{{"tokens":[{{"name":"a","sha256":"{hex}","rights":[]}}]}}"#);
        // A hash may be read by others.
        assert!(read(&hashed, 0o644).unwrap().find(SECRET.as_bytes()).is_some());
    }

    /// H559: a user who may write the file makes himself an administrator, and waits for the next `SIGHUP`.
    #[test]
    fn h559_a_token_file_that_others_may_write_is_refused() {
        let hashed = format!(
            r#"{{"tokens":[{{"name":"web","sha256":"{}","rights":["read"]}}]}}"#,
            "0".repeat(64)
        );
        for mode in [0o666, 0o620, 0o602] {
            let error = read(&hashed, mode).unwrap_err().to_string();
            assert!(error.contains("tokens.json: other users may write it"), "{error}");
            assert!(error.contains("run chmod go-w ") && error.contains("tokens.json"), "{error}");
            assert!(read(&hashed, mode & 0o644).is_ok());
        }
    }

    #[test]
    fn a_bad_file_is_refused_and_shows_no_token() {
        let twice = format!(
            r#"{{"tokens":[{{"name":"a","token":"{SECRET}","rights":[]}},{{"name":"b","token":"{SECRET}","rights":[]}}]}}"#
        );
        let unknown = plain(SECRET).replace("rights", "right");
        let local = plain(SECRET).replace("web", "local");
        let prefixes = plain(SECRET).replace("\"rights\"", "\"prefixes\":null,\"rights\"");
        let cases = [
            (plain(SECRET), 0o644, "other users may read"),
            (plain("short"), 0o600, "16 or more"),
            (twice, 0o600, "twice"),
            (unknown, 0o600, "line 1"),
            (local, 0o600, "without a token are called"),
            (
                prefixes,
                0o600,
                "prefixes of \"web\": null is no list; leave prefixes out for all names",
            ),
            (r#"{"tokens":[]}"#.into(), 0o600, "no token"),
            (r#"{"tokens":[{"name":"a","sha256":"xyz","rights":[]}]}"#.into(), 0o600, "64 hex"),
            (r#"{"tokens":[{"name":"a","rights":[]}]}"#.into(), 0o600, "either"),
            (format!("{{{SECRET}"), 0o600, "not read"),
        ];
        for (text, mode, part) in cases {
            let error = read(&text, mode).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains(SECRET), "{error}");
        }
    }
}
