//! Passwords from a file, as libpq reads them: `.pgpass`, or what `PGPASSFILE` and `passfile=` name.

use std::path::{Path, PathBuf};

use latchwork_store::{BackendError, BackendErrorKind, Effect};

use crate::address::host::Host;
use crate::config::Secret;

/// A file that may have the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Passfile {
    pub(crate) path: PathBuf,
    /// The address names it: it has to be there and to be good.
    pub(crate) is_named: bool,
}

/// What a file says about one login.
pub(crate) enum Found {
    Password(Secret),
    /// No password; why, if there is more to say than that nothing fits.
    Nothing(Option<String>),
}

impl Passfile {
    /// Looks for the password of a user. The file is read each time, so that it can be replaced.
    ///
    /// # Errors
    ///
    /// `Invalid` if the address names a file that cannot be used. Any other one is passed over, as by psql: the
    /// reason is for the error of a login that fails for want of a password.
    pub(crate) fn find(
        &self,
        host: &Host,
        database: &str,
        user: &str,
    ) -> Result<Found, BackendError> {
        let shown = self.path.display();
        let text = match read(&self.path) {
            Ok(text) => text,
            Err(Unusable::Missing) if !self.is_named => return Ok(Found::Nothing(None)),
            Err(why) if !self.is_named => {
                return Ok(Found::Nothing(Some(format!("{shown} {}", why.words()))));
            }
            Err(why) => {
                let message = format!("store: passfile: {shown} {}", why.words());
                let error =
                    BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message);
                return Err(error.with_next_step(why.step()));
            }
        };
        Ok(search(&text, host, database, user).unwrap_or_else(|broken| {
            Found::Nothing(Some(match broken {
                Some(line) => format!(
                    "{shown}, line {line}: not host:port:database:user:password, with \\ before a : in one of them"
                ),
                None => format!("no line of {shown} is for {user} at {host}, database {database}"),
            }))
        }))
    }
}

/// Why a file cannot be used.
enum Unusable {
    Missing,
    Other(String),
    /// It is no plain file.
    NoFile,
    /// Its permissions.
    Open(u32),
}

impl Unusable {
    fn words(&self) -> String {
        match self {
            Self::Missing => "does not exist".into(),
            Self::Other(why) => format!("cannot be read: {why}"),
            Self::NoFile => "is not a plain file".into(),
            Self::Open(mode) => {
                format!("is not used: its permissions {mode:04o} let others read it")
            }
        }
    }

    fn step(&self) -> &'static str {
        match self {
            Self::Open(_) => "make it readable for its owner alone: chmod 0600",
            _ => "name a file that this process may read, or leave passfile out",
        }
    }
}

fn read(path: &Path) -> Result<String, Unusable> {
    let other = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Unusable::Missing,
        _ => Unusable::Other(error.to_string()),
    };
    let about = std::fs::metadata(path).map_err(other)?;
    if !about.is_file() {
        return Err(Unusable::NoFile);
    }
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o777;
        if mode & 0o077 != 0 {
            return Err(Unusable::Open(mode));
        }
    }
    // Whatever is no text concerns a line of its own.
    Ok(String::from_utf8_lossy(&std::fs::read(path).map_err(other)?).into_owned())
}

/// The first line that fits; else the number of the first line that cannot be read.
fn search(text: &str, host: &Host, database: &str, user: &str) -> Result<Found, Option<usize>> {
    let (names, port) = host.names();
    let port = port.to_string();
    let mut broken = None;
    for (n, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fields = fields(line);
        let [on, at, of, by, password] = &fields[..] else {
            broken.get_or_insert(n + 1);
            continue;
        };
        let fits = |field: &Field, wanted: &str| field.is_any || field.text == wanted;
        let fits = names.iter().any(|name| fits(on, name))
            && fits(at, &port)
            && fits(of, database)
            && fits(by, user);
        if fits {
            return Ok(Found::Password(Secret(password.text.clone())));
        }
    }
    Err(broken)
}

struct Field {
    text: String,
    /// It is a bare `*`.
    is_any: bool,
}

/// The first five fields of a line: a `:` ends one, and `\` takes what follows as it is.
fn fields(line: &str) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut rest = line.chars();
    let (mut text, mut is_any, mut is_over) = (String::new(), false, false);
    while fields.len() < 5 && !is_over {
        match rest.next() {
            Some('\\') => {
                text.push(rest.next().unwrap_or('\\'));
                is_any = false;
            }
            Some(c) if c != ':' => {
                is_any = c == '*' && text.is_empty();
                text.push(c);
            }
            end => {
                is_over = end.is_none();
                fields.push(Field { text: std::mem::take(&mut text), is_any });
                is_any = false;
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use latchwork_wire::address::Endpoint;

    fn net(host: &str, port: u16) -> Host {
        Host::Net(Endpoint { host: host.into(), port })
    }

    fn socket(folder: &str) -> Host {
        Host::Socket { folder: folder.into(), port: 5_432 }
    }

    fn password(text: &str, host: &Host) -> Option<String> {
        match search(text, host, "shop", "app") {
            Ok(Found::Password(Secret(password))) => Some(password),
            _ => None,
        }
    }

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# a comment\n\nh:5432:*:app:first\n*:*:shop:app:second\nh:7:shop:app:never\n";
        assert_eq!(password(text, &net("h", 5_432)).as_deref(), Some("first"));
        assert_eq!(password(text, &net("h", 7)).as_deref(), Some("second"));
        assert_eq!(password("h:*:*:other:x\n", &net("h", 7)), None);
        assert_eq!(password("H:*:*:app:x\n", &net("h", 7)), None, "names are compared as they are");
    }

    #[test]
    fn a_backslash_takes_a_colon_into_a_field() {
        let text = "\\:\\:1:*:*:app:p\\:a\\\\ss word:more";
        assert_eq!(password(text, &net("::1", 1)).as_deref(), Some("p:a\\ss word"));
        let literal = "\\*:*:*:app:x";
        assert_eq!(password(literal, &net("h", 1)), None, "an escaped star is a name");
        assert_eq!(password("**:*:*:app:x", &net("h", 1)), None);
        assert_eq!(password("*:*:*:app:", &net("h", 1)).as_deref(), Some(""));
    }

    #[test]
    fn a_socket_is_its_folder_and_the_usual_one_is_localhost() {
        assert_eq!(password("localhost:5432:*:app:x", &socket("/tmp")).as_deref(), Some("x"));
        assert_eq!(password("/data/pg:5432:*:app:x", &socket("/data/pg")).as_deref(), Some("x"));
        assert_eq!(password("localhost:5432:*:app:x", &socket("/data/pg")), None);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named() {
        let found = search("# x\nh:1:shop:app\n", &net("h", 1), "shop", "app");
        assert!(matches!(found, Err(Some(2))));
    }

    #[test]
    fn hostile_password_files_are_read_without_harm() {
        let samples: [&[u8]; 2] = [b"h:5432:*:app:p\\:w\n*:*:*:*:x", b"\\:::\\\n:::::\n#\n\\"];
        latchwork_services::hostile::survives("password files", &samples, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _ = search(&text, &net("h", 5_432), "shop", "app");
        });
    }
}
