//! PgBouncer in front of a PostgreSQL server.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::postgres::{own, unprivileged};
use crate::process::{Process, await_ready, is_a_process};
use crate::wait::is_open;

/// The file with the users of clients.
const LOGINS: &str = "logins";

/// A PgBouncer. Unless it is started in another mode, each transaction gets whichever connection to the server is free.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    port: Port,
    folder: Folder,
}

is_a_process!(PgBouncer);

impl PgBouncer {
    /// Starts one in front of the server on this port, with so many connections to it, and waits until it
    /// takes connections.
    ///
    /// # Errors
    ///
    /// If it does not; the text has the end of its log.
    pub fn start(server: u16, connections: u32) -> Result<Self> {
        Self::start_in_mode(server, connections, "transaction")
    }

    /// As [`Self::start`], in another mode of pooling: `session` or `statement`. Other settings may follow it, each on a
    /// line of its own.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_in_mode(server: u16, connections: u32, mode: &str) -> Result<Self> {
        Self::start_as(server, connections, mode, None)
    }

    /// As [`Self::start`], for clients that log in as one of these users with its password.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_with_logins(
        server: u16,
        connections: u32,
        logins: &[(&str, &str)],
    ) -> Result<Self> {
        Self::start_as(server, connections, "transaction", Some(logins))
    }

    /// Replaces the users. They count from its next start on.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn replace_logins(&self, logins: &[(&str, &str)]) -> Result<()> {
        Ok(fs::write(self.folder.path().join(LOGINS), listed(logins))?)
    }

    fn start_as(
        server: u16,
        connections: u32,
        mode: &str,
        logins: Option<&[(&str, &str)]>,
    ) -> Result<Self> {
        despite_collisions(|| {
            let port = Port::reserve()?;
            let folder = Folder::new()?;
            let path = folder.path();
            let access = match logins {
                None => "auth_type = any".to_owned(),
                Some(logins) => {
                    let file = path.join(LOGINS);
                    fs::write(&file, listed(logins))?;
                    format!("auth_type = scram-sha-256\nauth_file = {}", file.display())
                }
            };
            let settings = format!(
                // Each client is the user that may do everything. A login that a fault has ended is tried again before a
                // run ends.
                "[databases]\n* = user=postgres host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                 listen_port = {}\n{access}\npool_mode = {mode}\nmax_client_conn = 500\n\
                 default_pool_size = {connections}\nunix_socket_dir =\nadmin_users = postgres\n\
                 server_login_retry = 1\n",
                port.number()
            );
            let file = path.join("pgbouncer.ini");
            fs::write(&file, settings)?;
            own(path)?;
            let process = launch(&file, path)?;
            let mut this = Self { process, port, folder };
            this.await_ready()?;
            Ok(this)
        })
    }

    /// Starts it again after it was killed.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn revive(&mut self) -> Result<()> {
        let path = self.folder.path();
        self.process = launch(&path.join("pgbouncer.ini"), path)?;
        self.await_ready()
    }

    fn await_ready(&mut self) -> Result<()> {
        let what = format!("pgbouncer on port {}", self.port());
        await_ready(self, &what, |it| is_open(it.port()))
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Its address for Latchwork.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }
}

/// The users in the form of its file.
fn listed(logins: &[(&str, &str)]) -> String {
    logins.iter().map(|(user, password)| format!("\"{user}\" \"{password}\"\n")).collect()
}

fn launch(file: &Path, folder: &Path) -> Result<Process> {
    let mut command = unprivileged(&program());
    command.arg(file);
    Process::start(&command, &folder.join("log"))
}

/// Debian puts it where only root looks.
fn program() -> PathBuf {
    let usual = Path::new("/usr/sbin/pgbouncer");
    if usual.is_file() { usual.into() } else { "pgbouncer".into() }
}
