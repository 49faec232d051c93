//! The files of libpq that an address may lead to: where this process looks for them.

use std::ffi::OsString;
use std::path::PathBuf;

/// Where `psql` looks for service files of the whole system: Debian's folder, and those of the project's packages.
const SYSTEM: [&str; 3] = ["/etc/postgresql-common", "/etc/sysconfig/pgsql", "/etc"];

/// What of the environment counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
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
        Self {
            home: std::env::home_dir(),
            passfile: named("PGPASSFILE").map(path),
            services: named("PGSERVICEFILE").map(path),
            system: named("PGSYSCONFDIR").map(path),
        }
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
