//! What libpq takes from the environment: options that an address leaves out, and where its files are.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use latchwork_store::{Error, ErrorKind};

/// Where `psql` looks for service files of the whole system: Debian's folder, and those of the project's packages.
const SYSTEM: [&str; 3] = ["/etc/postgresql-common", "/etc/sysconfig/pgsql", "/etc"];

/// The variables that stand for an option which neither the address nor its service has.
const VARIABLES: [(&str, &str); 13] = [
    ("PGHOST", "host"),
    ("PGPORT", "port"),
    ("PGDATABASE", "dbname"),
    ("PGUSER", "user"),
    ("PGPASSWORD", "password"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
    ("PGAPPNAME", "application_name"),
    ("PGCONNECT_TIMEOUT", "connect_timeout"),
    ("PGTARGETSESSIONATTRS", "target_session_attrs"),
    ("PGCHANNELBINDING", "channel_binding"),
];

/// A variable that stands for an option.
#[derive(Clone)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) option: &'static str,
    value: OsString,
}

impl Variable {
    /// What it says.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is not UTF-8.
    pub(crate) fn value(&self) -> Result<String, Error> {
        self.value.clone().into_string().map_err(|_| {
            Error::new(ErrorKind::Invalid, format!("store: {}: not UTF-8", self.name))
                .with_next_step(format!("unset it, and write {}= in the address", self.option))
        })
    }

    /// An error that this variable gives, with its name.
    pub(crate) fn blame(&self, error: &Error) -> Error {
        let Self { name, option, .. } = self;
        let message = error.message().strip_prefix("store: ").unwrap_or(error.message());
        Error::new(error.kind(), format!("store: {name}: {message}")).with_next_step(format!(
            "unset {name} for this process, or write {option}= in the address, which goes before it"
        ))
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What of the environment counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// Options, none of them empty.
    pub(crate) variables: Vec<Variable>,
    /// `PGSERVICE`.
    pub(crate) service: Option<OsString>,
    pub(crate) home: Option<PathBuf>,
    /// `PGPASSFILE`.
    pub(crate) passfile: Option<PathBuf>,
    /// `PGSERVICEFILE`.
    pub(crate) services: Option<PathBuf>,
    /// `PGSYSCONFDIR`.
    pub(crate) system: Option<PathBuf>,
}

impl Surroundings {
    pub(crate) fn of_this_process() -> Self {
        let named = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty());
        let path = |it: OsString| PathBuf::from(it);
        let variables = VARIABLES
            .into_iter()
            .filter_map(|(name, option)| Some(Variable { name, option, value: named(name)? }));
        Self {
            variables: variables.collect(),
            service: named("PGSERVICE"),
            home: std::env::home_dir(),
            passfile: named("PGPASSFILE").map(path),
            services: named("PGSERVICEFILE").map(path),
            system: named("PGSYSCONFDIR").map(path),
        }
    }

    /// The same with these variables.
    #[cfg(test)]
    pub(crate) fn with(mut self, variables: &[(&str, &str)]) -> Self {
        let known = |name| VARIABLES.into_iter().find(|(known, _)| *known == name).unwrap();
        self.variables.extend(variables.iter().map(|(name, value)| {
            let (name, option) = known(*name);
            Variable { name, option, value: value.into() }
        }));
        self
    }

    /// The file with passwords if the address names none.
    pub(crate) fn passfile(&self) -> Option<PathBuf> {
        self.passfile.clone().or_else(|| Some(self.home.as_ref()?.join(".pgpass")))
    }

    /// The files with services, the user's first.
    pub(crate) fn services(&self) -> Vec<PathBuf> {
        let own = || Some(self.home.as_ref()?.join(".pg_service.conf"));
        let mut files: Vec<PathBuf> = self.services.clone().or_else(own).into_iter().collect();
        match &self.system {
            Some(folder) => files.push(folder.join("pg_service.conf")),
            None => {
                files.extend(SYSTEM.map(|folder| PathBuf::from(folder).join("pg_service.conf")))
            }
        }
        files
    }
}
