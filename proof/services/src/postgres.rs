//! One PostgreSQL server.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Signal, geteuid};

use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::process::{Process, log_tail};
use crate::wait::{LIMIT, until};
use crate::{Error, Result};

/// The user and group `nobody`: PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;

/// A PostgreSQL server with an empty database, as a process on a port of its own. Anybody on this
/// machine may log in as `postgres`. Dropping it ends the server and removes its folder.
#[derive(Debug)]
pub struct PostgresServer {
    process: Process,
    port: Port,
    programs: PathBuf,
    // Last: it is removed when the process is gone.
    folder: Folder,
}

impl PostgresServer {
    /// Makes a database, starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not answer; the text has the end of its log.
    pub fn start() -> Result<Self> {
        despite_collisions(|| {
            let mut server = Self::launch(Port::reserve()?)?;
            server.await_ready()?;
            Ok(server)
        })
    }

    fn launch(port: Port) -> Result<Self> {
        let programs = programs()?;
        let folder = Folder::new()?;
        let path = folder.path();
        if geteuid().is_root() {
            chown(path, Some(NOBODY), Some(NOBODY))?;
        }
        let mut initdb = unprivileged(&programs.join("initdb"));
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
        initdb.args(["--no-sync", "--no-instructions", "--pgdata"]).arg(path.join("data"));
        done(&mut initdb, "initdb")?;
        let mut postgres = unprivileged(&programs.join("postgres"));
        postgres.arg("-D").arg(path.join("data"));
        for setting in [
            format!("port={}", port.number()),
            "listen_addresses=127.0.0.1".into(),
            "unix_socket_directories=".into(),
            "fsync=off".into(),
        ] {
            postgres.args(["-c", &setting]);
        }
        let process = Process::start(&postgres, &path.join("log"))?;
        Ok(Self { process, port, programs, folder })
    }

    fn await_ready(&mut self) -> Result<()> {
        let what = format!("postgres on port {}", self.port());
        until(LIMIT, &what, || {
            // A server that ended will not answer.
            if let Some(status) = self.process.exit_status() {
                return Ok(Err(Error::new(format!(
                    "{what} has ended ({status}):\n{}",
                    self.log()
                ))));
            }
            self.psql("SELECT 1")
                .map(|_| Ok(()))
                .map_err(|e| format!("{e}; its log:\n{}", self.log()))
        })?
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// What clients connect with, in the words of libpq.
    pub fn conninfo(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port())
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The folder with its `log`, and its data in the folder `data`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        log_tail(&self.folder.path().join("log"))
    }

    /// What `psql` prints for a statement: rows in lines, columns separated by `|`.
    ///
    /// # Errors
    ///
    /// If it fails; the text is the server's.
    pub fn psql(&self, statement: &str) -> Result<String> {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args(["--no-psqlrc", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]);
        psql.args(["--dbname", &self.conninfo(), "--command", statement]);
        Ok(done(&mut psql, "psql")?.trim_end().to_owned())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // A killed server leaves a segment of shared memory behind; one that ends at once does not.
        let _ = self.process.end_by(Signal::QUIT, LIMIT);
    }
}

/// The command behind `setpriv`, as a user who is not root, and ended when this process ends.
fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if geteuid().is_root() {
        command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
        command.arg("--clear-groups");
    }
    // After a change of the user: that clears what was set before.
    command.args(["--pdeathsig", "QUIT"]).arg(program);
    // Where everybody may be.
    command.current_dir("/");
    command
}

fn done(command: &mut Command, name: &str) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.output().map_err(|e| Error::while_(format!("{name} (package postgresql)"), e))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&stderr).into_owned();
            Err(Error::new(format!("{name}: {status}: {}", said.trim_end())))
        }
    }
}

/// The folder with the programs of the newest version, which Debian does not put into the path.
fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())))
        .map(|(version, path)| (version, path.join("bin")))
        .filter(|(_, path)| path.join("postgres").is_file())
        .max();
    let path = std::env::var_os("PATH").unwrap_or_default();
    newest
        .map(|(_, path)| path)
        .or_else(|| std::env::split_paths(&path).find(|path| path.join("postgres").is_file()))
        .ok_or_else(|| Error::new("no postgres in /usr/lib/postgresql: install postgresql"))
}
