//! One MariaDB server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::Result;
use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::postgres::{own, unprivileged};
use crate::process::{Process, await_ready, is_a_process, said};
use crate::wait::LIMIT;

/// A MariaDB server with an empty database `test`, as a process on a port of its own. Anybody on this machine
/// may do everything. Dropping it ends the server and removes its folder.
#[derive(Debug)]
pub struct MariaDbServer {
    process: Process,
    port: Port,
    // Last: it is removed when the process is gone.
    _folder: Folder,
}

is_a_process!(MariaDbServer);

impl MariaDbServer {
    /// Makes a database, starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not answer; the text has the end of its log.
    pub fn start() -> Result<Self> {
        despite_collisions(|| {
            let mut server = Self::launch(Port::reserve()?)?;
            server.await_ready()?;
            server.sql("CREATE DATABASE test", "")?;
            Ok(server)
        })
    }

    fn launch(port: Port) -> Result<Self> {
        let folder = Folder::new()?;
        let path = folder.path();
        own(path)?;
        let data = format!("--datadir={}", path.join("data").display());
        let temporary = format!("--tmpdir={}", path.display());
        let mut install = unprivileged(Path::new("mariadb-install-db"));
        install.args(["--no-defaults", &data, &temporary, "--skip-test-db", "--skip-name-resolve"]);
        install.arg("--auth-root-authentication-method=normal");
        said("mariadb-install-db (package mariadb-server)", &mut install)?;
        let mut server = unprivileged(&program());
        server.args(["--no-defaults", &data, &temporary, "--skip-grant-tables"]);
        server.args(["--bind-address=127.0.0.1", "--innodb-flush-log-at-trx-commit=0"]);
        server.args(["--innodb-buffer-pool-size=16M", "--character-set-server=utf8mb4"]);
        server.arg(format!("--port={}", port.number()));
        server.arg(format!("--socket={}", path.join("socket").display()));
        let process = Process::start(&server, &path.join("log"))?;
        Ok(Self { process, port, _folder: folder })
    }

    fn await_ready(&mut self) -> Result<()> {
        let what = format!("mariadbd on port {}", self.port());
        await_ready(self, &what, |it| it.sql("SELECT 1", ""))
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// What `mariadb` prints for statements in one session on a database: rows in lines, columns
    /// separated by tabs.
    ///
    /// # Errors
    ///
    /// If one fails; the text is the server's.
    pub fn sql(&self, statements: &str, database: &str) -> Result<String> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--batch", "--skip-column-names", "--host=127.0.0.1"]);
        client.arg(format!("--port={}", self.port())).args(["--execute", statements]);
        if !database.is_empty() {
            client.arg(database);
        }
        said("mariadb", &mut client)
    }
}

impl Drop for MariaDbServer {
    fn drop(&mut self) {
        let _ = self.process.end_by(Signal::TERM, LIMIT);
    }
}

/// Debian puts it where only root looks.
fn program() -> PathBuf {
    let usual = Path::new("/usr/sbin/mariadbd");
    if fs::exists(usual).unwrap_or(false) { usual.into() } else { "mariadbd".into() }
}
