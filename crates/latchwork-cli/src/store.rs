//! The store that a command uses: where its address comes from, and how its password stays hidden.

mod address_file;
mod passed_on;
mod recognised;
mod second;
mod secrets;
mod spoken;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use latchwork::{Error, ErrorKind, Source};
use latchwork_store::doctor::word;
use latchwork_wire::system::refusal_step;
use percent_encoding::percent_decode_str;
use rustix::io::Errno;

use self::passed_on::PassedOn;

pub(crate) use self::second::unseen_directory;

/// The variable with the store's address.
const ADDRESS: &str = "LATCHWORK_STORE";
/// The variable with the name of a file that has the store's address.
const FILE: &str = "LATCHWORK_STORE_FILE";

/// The variable with the command that prints the store's address.
const COMMAND: &str = "LATCHWORK_STORE_COMMAND";

/// The variable with which a machine refuses the default store.
const REQUIRED: &str = "LATCHWORK_REQUIRE_STORE";

/// A store, and who named it.
#[derive(Debug)]
pub(crate) struct Store {
    address: String,
    named_by: NamedBy,
    /// Where the address is read again.
    source: Source,
    /// What the commands inside of a command read an address with a password from.
    passed_on: OnceLock<Option<PassedOn>>,
    /// What its server is, if it is of another kind than the address says.
    other: OnceLock<Option<(String, &'static str)>>,
}

/// Who named the store.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NamedBy {
    /// `--store`
    Option,
    /// `--store-file`, the variable, or one of the usual places.
    File(PathBuf),
    /// `--store-file` with what can be read once only: a pipe of the shell.
    Pipe(PathBuf),
    /// `--store-command`, or the variable.
    Command(String),
    /// `LATCHWORK_STORE`
    Variable,
    /// Nobody: a directory of this user.
    Default,
}

impl Store {
    /// The first of: `--store`, `--store-file`, `--store-command`, `LATCHWORK_STORE`, `LATCHWORK_STORE_FILE`,
    /// `LATCHWORK_STORE_COMMAND`, the store file of the user, that of the machine, a directory of the user. White space
    /// at the ends of an address is left out.
    ///
    /// # Errors
    ///
    /// `Invalid` if a variable is set and empty: the user meant another store than the default one. Also if a
    /// file that is named cannot be read or has no address, if the command fails, or if there is no default or it is
    /// refused by a variable.
    pub(crate) fn find(
        address: Option<String>,
        file: Option<PathBuf>,
        command: Option<String>,
    ) -> Result<Self, Error> {
        if let Some(address) = address {
            secrets::hide_in_arguments(&address);
            return Ok(Self::new(absolute(address.trim().to_owned()), NamedBy::Option));
        }
        if let Some(file) = file {
            return Self::of_file(file);
        }
        if let Some(command) = command {
            return Self::of_command(command);
        }
        let text = |name: &str, value: OsString| {
            value.into_string().map_err(|_| {
                let step = match name {
                    ADDRESS => "write bytes that are not ASCII as %XX",
                    _ => "write such a command into a script, and name the script",
                };
                Error::new(ErrorKind::Invalid, format!("{name}: not UTF-8")).with_next_step(step)
            })
        };
        if let Some(address) = set(ADDRESS, "an address, for example redis://host")? {
            let address = text(ADDRESS, address)?;
            return Ok(Self::new(absolute(address.trim().to_owned()), NamedBy::Variable));
        }
        if let Some(file) = set(FILE, "the name of a file with an address")? {
            return Self::of_file(file.into());
        }
        if let Some(command) = set(COMMAND, "a command that prints an address")? {
            return Self::of_command(text(COMMAND, command)?);
        }
        if let Some(file) = address_file::usual_places().into_iter().find(|file| file.exists()) {
            return Self::of_file(file);
        }
        if is_required()? {
            let message = format!("{REQUIRED} is set, and no store is named");
            return Err(Error::new(ErrorKind::Invalid, message).with_next_step(
                "name it with --store, --store-file, --store-command or their variables",
            ));
        }
        Ok(Self::new(latchwork::default_store()?, NamedBy::Default))
    }

    fn new(address: String, named_by: NamedBy) -> Self {
        let source = Source::text(&*address);
        let (passed_on, other) = (OnceLock::new(), OnceLock::new());
        Self { address, named_by, source, passed_on, other }
    }

    fn of_file(file: PathBuf) -> Result<Self, Error> {
        let file = std::path::absolute(&file).unwrap_or(file);
        let source = Source::file(&*file);
        let address = source.read_now().map_err(|error| address_file::explained(error, &file))?;
        if !file.is_file() {
            return Ok(Self::new(address, NamedBy::Pipe(file)));
        }
        Ok(Self { source, ..Self::new(address, NamedBy::File(file)) })
    }

    fn of_command(text: String) -> Result<Self, Error> {
        let source = Source::command(&*text);
        let address = source.read_now()?;
        Ok(Self { source, ..Self::new(address, NamedBy::Command(text)) })
    }

    /// Where the address comes from, and its login is read again.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// The address, with its password.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The address without its password, and who named it.
    pub(crate) fn shown(&self) -> String {
        let address = recognised::shown(&self.address);
        let address = address
            .as_deref()
            .unwrap_or("(address hidden: part of it is not recognised and may be a secret)");
        match &self.named_by {
            NamedBy::Option => format!("{address} (--store)"),
            NamedBy::File(file) | NamedBy::Pipe(file) => format!("{address} ({})", file.display()),
            NamedBy::Command(_) => format!("{address} (the store command)"),
            NamedBy::Variable => format!("{address} ({ADDRESS})"),
            NamedBy::Default => format!("{address} (the default)"),
        }
    }

    /// The options with which another command uses this store, for a line that somebody types: without a password,
    /// and none if it finds the store by itself.
    pub(crate) fn options(&self) -> String {
        match &self.named_by {
            // What is read once from a pipe cannot be read again.
            NamedBy::Option | NamedBy::Pipe(_) => options(Some(&self.address), None, None),
            NamedBy::File(file) if address_file::usual_places().contains(file) => String::new(),
            NamedBy::File(file) => options(None, Some(file), None),
            NamedBy::Command(text) => options(None, None, Some(text)),
            NamedBy::Variable | NamedBy::Default => String::new(),
        }
    }

    /// The directory that it is, if it is one.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        let path = match self.address.strip_prefix("file://") {
            // An address with options is refused, and is no directory.
            Some(path) if path.contains(['?', '#']) => return None,
            Some(path) => percent_decode_str(path).collect(),
            None if self.address.starts_with("//") && self.address.contains('@') => return None,
            None => self.address.clone().into_bytes(),
        };
        Some(PathBuf::from(OsString::from_vec(path))).filter(|path| path.is_absolute())
    }

    /// Whether nobody named it.
    pub(crate) fn is_default(&self) -> bool {
        self.named_by == NamedBy::Default
    }

    /// The file that the address was read from, if other users may read the password in it.
    pub(crate) fn exposed_file(&self) -> Option<&Path> {
        match &self.named_by {
            NamedBy::File(file)
                if secrets::are_in(&self.address) && address_file::others_may_read(file) =>
            {
                Some(file)
            }
            _ => None,
        }
    }

    /// What the environment of a command says of the store; `None` takes a variable away.
    ///
    /// There is no password in it, also if the user has set one: a command hands its environment to all that it
    /// starts, and much of that shows it to others. `latchwork` inside of the command reads a file instead.
    pub(crate) fn environment(&self) -> [(&'static str, Option<OsString>); 3] {
        let (mut address, mut file, mut command) = (None, None, None);
        match &self.named_by {
            NamedBy::File(named) => file = Some(named.into()),
            NamedBy::Command(text) => command = Some(text.into()),
            _ => match self.passed_on() {
                Some(passed_on) => file = Some(passed_on.path().into()),
                None => address = Some(secrets::without(&self.address).into()),
            },
        }
        [(ADDRESS, address), (FILE, file), (COMMAND, command)]
    }

    /// `None` if there is no password, or no way to pass it on.
    fn passed_on(&self) -> Option<&PassedOn> {
        if !secrets::are_in(&self.address) {
            return None;
        }
        self.passed_on.get_or_init(|| PassedOn::new(&self.address)).as_ref()
    }

    /// The error of a server that could not be used: if it is of another kind than the address says, no later try
    /// can succeed.
    pub(crate) fn explained(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Unreachable if lacks_descriptors(&error) => {
                error.with_next_step(refusal_step(&Errno::MFILE.into()))
            }
            ErrorKind::Unreachable => self.other_kind().unwrap_or_else(|| self.blamed(error)),
            _ => self.blamed(error),
        }
    }

    /// The error of a server of another kind than the address says. The server is asked once.
    pub(crate) fn other_kind(&self) -> Option<Error> {
        let found = self.other.get_or_init(|| spoken::other_than_named(&self.address)).as_ref();
        let (what, step) = found?;
        let error = Error::new(ErrorKind::Invalid, format!("store: {what}"));
        Some(self.blamed(error.with_next_step(*step)))
    }

    /// The error of an address that cannot be used, with the name of what it was read from in place of `store`.
    pub(crate) fn blamed(&self, error: Error) -> Error {
        let Some(problem) = error.message().strip_prefix("store: ") else { return error };
        let source = match &self.named_by {
            NamedBy::Option => "--store".to_owned(),
            NamedBy::File(file) | NamedBy::Pipe(file) => format!("store file {}", file.display()),
            NamedBy::Command(text) => format!("store command `{text}`"),
            NamedBy::Variable => ADDRESS.to_owned(),
            NamedBy::Default => "the default store".to_owned(),
        };
        let blamed = Error::new(error.kind(), format!("{source}: {problem}"));
        match error.next_step() {
            Some(step) => blamed.with_next_step(step),
            None => blamed,
        }
    }
}

/// The options with which a command line has named a store, for one that somebody types; without a password.
pub(crate) fn options(address: Option<&str>, file: Option<&Path>, command: Option<&str>) -> String {
    match (address, file, command) {
        (Some(address), ..) => {
            let address = recognised::typed(&absolute(address.trim().to_owned()));
            format!("--store {}", address.as_deref().map_or("URL".into(), word))
        }
        (_, Some(file), _) => {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.into());
            format!("--store-file {}", word(&file.to_string_lossy()))
        }
        (_, _, Some(text)) => format!("--store-command {}", word(text)),
        _ => String::new(),
    }
}

/// The address of a directory by its absolute path, because the command may go to another directory.
fn absolute(address: String) -> String {
    let is_relative = |start: &&str| address.starts_with(start);
    if !["./", "../"].iter().any(is_relative) {
        return address;
    }
    match std::path::absolute(&address).map(|path| path.into_os_string().into_string()) {
        Ok(Ok(path)) => path,
        _ => address,
    }
}

/// The value of a variable that names the store, if it is set.
///
/// # Errors
///
/// `Invalid` if there is nothing in it: a program that fills it in has found nothing, and the default would be another
/// store, whose locks exclude nobody that uses the right one.
fn set(name: &str, meant: &str) -> Result<Option<OsString>, Error> {
    let value = std::env::var_os(name);
    match value.as_ref().is_some_and(|value| value.as_encoded_bytes().trim_ascii().is_empty()) {
        true => Err(Error::new(ErrorKind::Invalid, format!("{name}: it is set, and empty"))
            .with_next_step(format!("set it to {meant}, or unset it"))),
        false => Ok(value),
    }
}

/// Whether each command must name its store.
fn is_required() -> Result<bool, Error> {
    let value = variable(REQUIRED).unwrap_or_default();
    match value.to_string_lossy().to_ascii_lowercase().as_str() {
        "" | "0" | "false" | "no" | "off" => Ok(false),
        "1" | "true" | "yes" | "on" => Ok(true),
        other => {
            Err(Error::new(ErrorKind::Invalid, format!("{REQUIRED}={other}: not a yes or no"))
                .with_next_step("set it to 1 or 0"))
        }
    }
}

/// The value of a variable, unless it is empty.
fn variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Whether no connection was tried: this process, or the system, has no descriptor left.
fn lacks_descriptors(error: &Error) -> bool {
    let says =
        |errno: Errno| error.message().contains(&format!("(os error {})", errno.raw_os_error()));
    says(Errno::MFILE) || says(Errno::NFILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(address: &str, by: NamedBy) -> Store {
        Store::new(address.into(), by)
    }

    #[test]
    fn no_environment_of_a_command_has_a_password() {
        let address = "redis://app:s3cret@h1:6379/2?guard=true";
        let shown = "redis://h1:6379/2?guard=true";
        for (by, name) in [(NamedBy::Option, "--store"), (NamedBy::Variable, ADDRESS)] {
            let store = named(address, by);
            let [(_, None), (FILE, Some(file)), (_, None)] = store.environment() else {
                panic!("{store:?}")
            };
            assert_eq!(Source::file(&*file).read_now().unwrap(), address);
            assert_eq!(store.environment()[1].1, Some(file), "one file for all commands");
            assert_eq!(store.shown(), format!("{shown} ({name})"));
            let open = named(shown, NamedBy::Variable);
            let plain = [(ADDRESS, Some(shown.into())), (FILE, None), (COMMAND, None)];
            assert_eq!(open.environment(), plain);
        }
        let file = named(address, NamedBy::File("/etc/store".into())).environment();
        assert_eq!(file, [(ADDRESS, None), (FILE, Some("/etc/store".into())), (COMMAND, None)]);
        let by = named(address, NamedBy::Command("print it".into())).environment();
        assert_eq!(by, [(ADDRESS, None), (FILE, None), (COMMAND, Some("print it".into()))]);
    }

    #[test]
    fn an_error_names_what_the_address_was_read_from() {
        let problem =
            || Error::new(ErrorKind::Invalid, "store: no host").with_next_step("name one");
        for (source, said) in [
            (NamedBy::Option, "--store: no host; name one"),
            (NamedBy::Variable, "LATCHWORK_STORE: no host; name one"),
            (NamedBy::File("/etc/x".into()), "store file /etc/x: no host; name one"),
        ] {
            assert_eq!(named("redis://", source).blamed(problem()).to_string(), said);
        }
    }
}
