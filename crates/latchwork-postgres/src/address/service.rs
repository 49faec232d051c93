//! Services: the options of an address, from a file, as libpq reads them.

use std::path::PathBuf;

use latchwork_store::{Error, ErrorKind};

use crate::address::surroundings::Surroundings;

/// An option of a service, and where it stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) value: String,
    file: PathBuf,
    number: usize,
}

impl Line {
    /// An error that this option gives, with its place.
    pub(crate) fn blame(&self, error: &Error) -> Error {
        let message = error.message().strip_prefix("store: ").unwrap_or(error.message());
        let place = format!("store: {}, line {}: {message}", self.file.display(), self.number);
        let blamed = Error::new(error.kind(), place);
        match error.next_step() {
            Some(hint) => blamed.with_next_step(hint.to_owned()),
            None => blamed,
        }
    }
}

/// The options of a service, from the first file that has it.
///
/// # Errors
///
/// `Invalid`, with the file and the line.
pub(crate) fn find(name: &str, surroundings: &Surroundings) -> Result<Vec<Line>, Error> {
    let files = surroundings.services();
    let mut read = Vec::new();
    for (n, file) in files.iter().enumerate() {
        let text = match std::fs::read(file) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            // One that somebody has named has to be there.
            Err(error) if n > 0 || surroundings.services.is_none() => match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => continue,
                _ => return Err(unreadable(file, &error)),
            },
            Err(error) => return Err(unreadable(file, &error)),
        };
        if let Some(lines) = section(&text, name, file)? {
            return Ok(lines);
        }
        read.push(file.display().to_string());
    }
    let message = match read.is_empty() {
        true => "store: service: there is no service file".to_owned(),
        false => format!("store: service: the service is not in {}", read.join(" nor in ")),
    };
    let places: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    let step = format!(
        "write a section with this name, or set PGSERVICEFILE; looked for in {}",
        places.join(", ")
    );
    Err(Error::new(ErrorKind::Invalid, message).with_next_step(step))
}

fn unreadable(file: &std::path::Path, error: &std::io::Error) -> Error {
    let message = format!("store: service: {} cannot be read: {error}", file.display());
    Error::new(ErrorKind::Invalid, message)
        .with_next_step("name a file that this process may read: PGSERVICEFILE")
}

/// The lines of the first section with this name.
fn section(text: &str, name: &str, file: &std::path::Path) -> Result<Option<Vec<Line>>, Error> {
    let mut found: Option<Vec<Line>> = None;
    for (n, line) in text.lines().enumerate() {
        let line = line.trim_matches(|c: char| c.is_ascii_whitespace());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            if rest.strip_suffix(']') == Some(name) {
                found = Some(Vec::new());
            }
            continue;
        }
        let Some(lines) = &mut found else { continue };
        let place = |name: &str, value: &str| Line {
            name: name.into(),
            value: value.into(),
            file: file.into(),
            number: n + 1,
        };
        let wrong = |what: &str, step: &str| {
            let error =
                Error::new(ErrorKind::Invalid, what.to_owned()).with_next_step(step.to_owned());
            place("", "").blame(&error)
        };
        match line.split_once('=') {
            None => return Err(wrong("not NAME=VALUE", "write one option in each line")),
            Some(("service" | "servicefile", _)) => {
                return Err(wrong("service: a service in a service", "write out its options"));
            }
            Some((option, value)) => lines.push(place(option, value)),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Vec<(String, String)>>, Error> {
        let lines = section(text, "shop", "/etc/services".as_ref())?;
        Ok(lines.map(|lines| lines.into_iter().map(|it| (it.name, it.value)).collect()))
    }

    #[test]
    fn the_first_section_with_the_name_counts() {
        let text = "# locks\n[other]\nhost=x\nnonsense\n[shop]\n  host=h \n\npassword=a = b\n[shop]\nport=7\n";
        let lines = read(text).unwrap().unwrap();
        let expected = [("host", "h"), ("password", "a = b")];
        assert_eq!(lines, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(read("[shops]\nhost=h\n").unwrap(), None);
    }

    #[test]
    fn an_error_names_the_file_and_the_line() {
        for (text, part) in [
            ("[shop]\n\nhost h\n", "/etc/services, line 3: not NAME=VALUE"),
            ("[shop]\nservice=other\n", "/etc/services, line 2: service: a service in a service"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn hostile_service_files_are_read_without_harm() {
        let samples: [&[u8]; 2] = [b"[shop]\nhost=h\n#x\nport=7\n", b"[\n]\n=\n[shop\n[shop]\n="];
        latchwork_services::hostile::survives("service files", &samples, |bytes| {
            let _ = section(&String::from_utf8_lossy(bytes), "shop", "/f".as_ref());
        });
    }
}
