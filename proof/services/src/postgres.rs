//! One PostgreSQL server.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, geteuid};

use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::process::{Process, await_ready, is_a_process, provided, said, version};
use crate::program;
use crate::tls;
use crate::wait::{LIMIT, is_open, until};
use crate::{Certificates, Result, ServerClock};

/// The user and group `nobody`: PostgreSQL refuses to run as root.
pub(crate) const NOBODY: u32 = 65_534;

const PSQL: &str = "psql (package postgresql)";

/// How a server is to be.
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    settings: Vec<String>,
    /// Lines in front of those that let everybody in.
    access: Vec<String>,
    tls: bool,
    clock: bool,
    place: Option<PathBuf>,
    /// Which server of the table of servers it is.
    name: &'static str,
    is_of_its_own: bool,
}

impl PostgresOptions {
    /// A server that writes nothing to the disk for sure, and lets everybody in.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`new`](Self::new), of the version that the system has, as `pg_dump` must be.
    pub fn of_the_system() -> Self {
        Self { name: "postgres@system", ..Self::default() }
    }

    /// As in [`new`](Self::new), of a version that lacks what locks need.
    pub fn too_old() -> Self {
        Self { name: "postgres-too-old", ..Self::default() }
    }

    /// With a system identifier of its own. All others of a version have the same, as if each were a copy of one.
    #[must_use]
    pub fn of_its_own(mut self) -> Self {
        self.is_of_its_own = true;
        self
    }

    /// A setting as in `postgresql.conf`: `max_connections=20`.
    #[must_use]
    pub fn setting(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// A line of `pg_hba.conf`, before the one that lets everybody in.
    #[must_use]
    pub fn access(mut self, line: impl Into<String>) -> Self {
        self.access.push(line.into());
        self
    }

    /// With certificates of its own ([`PostgresServer::certificates`]); connections without TLS are taken as well.
    #[must_use]
    pub fn with_tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// With a wall clock of its own ([`PostgresServer::clock`]).
    #[must_use]
    pub fn with_clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// With its data in this folder, which must exist: a file system that is small, for example.
    #[must_use]
    pub fn data_in(mut self, place: impl Into<PathBuf>) -> Self {
        self.place = Some(place.into());
        self
    }
}

/// A PostgreSQL server with an empty database, as a process on a port of its own. Unless the options say
/// otherwise, anybody on this machine may log in as `postgres`. Dropping it ends the server and removes its
/// folder.
#[derive(Debug)]
pub struct PostgresServer {
    process: Process,
    port: Port,
    programs: PathBuf,
    options: PostgresOptions,
    certificates: Option<Certificates>,
    clock: Option<ServerClock>,
    // Last: it is removed when the process is gone.
    folder: Folder,
}

is_a_process!(PostgresServer);

impl PostgresServer {
    /// Makes a database, starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not answer; the text has the end of its log.
    pub fn start() -> Result<Self> {
        Self::start_with(&PostgresOptions::new())
    }

    /// As [`Self::start`], with options.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_with(options: &PostgresOptions) -> Result<Self> {
        Self::begin(options, |programs, data| {
            if options.is_of_its_own {
                return initdb(programs, data);
            }
            said("cp", Command::new("cp").arg("-r").arg(template(programs)?).arg(data))?;
            own_all(data)
        })
    }

    /// Copies this server while it runs, and starts the copy: as a standby that follows it, or on its own as
    /// after a restore of the backup. The settings are those of this server.
    ///
    /// # Errors
    ///
    /// If it cannot be copied, or the copy does not answer.
    pub fn copy(&self, follows: bool) -> Result<Self> {
        let from = data_of(&self.options, self.folder.path());
        let has_new_names = "SELECT current_setting('server_version_num')::int >= 150000";
        let (start, stop) = match self.psql(has_new_names)?.trim() {
            "t" => ("pg_backup_start('copy', true)", "pg_backup_stop(false)"),
            _ => ("pg_start_backup('copy', true, false)", "pg_stop_backup(false)"),
        };
        Self::begin(&self.options, |_, data| {
            // As `pg_basebackup` does, which not every version here has. What is written meanwhile may vanish.
            let (from, to) = (from.display(), data.display());
            let script = self.folder.path().join("copy");
            fs::write(
                &script,
                format!(
                    "\\o /dev/null\nSELECT {start};\n\\o\n\
                     \\! cp -r {from} {to} 2>/dev/null\n\
                     SELECT labelfile FROM {stop};\n\
                     \\! cp -r {from}/pg_wal/. {to}/pg_wal\n"
                ),
            )?;
            let label = self.client_with(&["--tuples-only", "--no-align", "--file"], &script)?;
            fs::write(data.join("backup_label"), label + "\n")?;
            for of_the_other in ["postmaster.pid", "postmaster.opts"] {
                fs::remove_file(data.join(of_the_other))?;
            }
            if follows {
                fs::write(data.join("standby.signal"), "")?;
                let source = format!("primary_conninfo = '{}'\n", self.conninfo());
                let mut settings =
                    fs::OpenOptions::new().append(true).open(data.join("postgresql.auto.conf"))?;
                settings.write_all(source.as_bytes())?;
            }
            own_all(data)
        })
    }

    fn begin(options: &PostgresOptions, fill: impl Fn(&Path, &Path) -> Result<()>) -> Result<Self> {
        despite_collisions(|| {
            let mut server = Self::launch(Port::reserve()?, options, &fill)?;
            server.await_ready()?;
            Ok(server)
        })
    }

    fn launch(
        port: Port,
        options: &PostgresOptions,
        fill: impl Fn(&Path, &Path) -> Result<()>,
    ) -> Result<Self> {
        let name = if options.name.is_empty() { "postgres" } else { options.name };
        let programs = PathBuf::from(provided(name)?);
        let folder = Folder::new()?;
        own(folder.path())?;
        let data = data_of(options, folder.path());
        if let Some(place) = &options.place {
            own(place)?;
        }
        fill(&programs, &data)?;
        let hba = data.join("pg_hba.conf");
        let rest = fs::read_to_string(&hba)?;
        fs::write(&hba, options.access.join("\n") + "\n" + &rest)?;
        let certificates = options.tls.then(|| tls::make(folder.path())).transpose()?;
        if let Some(made) = &certificates {
            // It refuses a key that others may read.
            fs::set_permissions(&made.server_key, fs::Permissions::from_mode(0o600))?;
            own(&made.server_key)?;
        }
        let clock = options.clock.then(|| ServerClock::new(folder.path())).transpose()?;
        let command = command(
            &programs,
            &data,
            port.number(),
            options,
            certificates.as_ref(),
            clock.as_ref(),
        );
        let process = Process::start(&command, &folder.path().join("log"))?;
        let options = options.clone();
        Ok(Self { process, port, programs, options, certificates, clock, folder })
    }

    /// Ends it as a crash does, all its processes at once, and starts it again.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn crash(&mut self) -> Result<()> {
        self.process.kill();
        self.revive()
    }

    /// Stops it in an orderly way, and starts it again.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn restart(&mut self) -> Result<()> {
        // Those who are logged in are sent away.
        self.process.end_by(Signal::INT, LIMIT)?;
        self.revive()
    }

    /// Starts it again after it has ended.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn revive(&mut self) -> Result<()> {
        let data = data_of(&self.options, self.folder.path());
        let port = self.port.number();
        let what = format!("postgres on port {port} to come back");
        // Processes of the one before may take a moment to notice that it has gone.
        until(LIMIT, &what, || {
            let command = command(
                &self.programs,
                &data,
                port,
                &self.options,
                self.certificates.as_ref(),
                self.clock.as_ref(),
            );
            let started = Process::start(&command, &self.folder.path().join("log"));
            self.process = started.map_err(|e| e.to_string())?;
            self.await_ready().map_err(|e| e.to_string())
        })
    }

    fn await_ready(&mut self) -> Result<()> {
        let what = format!("postgres on port {}", self.port());
        await_ready(self, &what, |it| is_open(it.port()).and_then(|()| it.psql("SELECT 1")))
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The ids of all its processes, the parent first.
    pub fn processes(&self) -> Vec<i32> {
        let parent = self.pid().to_string();
        let is_child = |pid: &i32| program::stat(*pid).is_some_and(|stat| stat[1] == parent);
        let mut all = vec![self.pid() as i32];
        all.extend(program::processes().into_iter().filter(is_child));
        all
    }

    /// What clients connect with, in the words of libpq.
    pub fn conninfo(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port())
    }

    /// Its address for Latchwork.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }

    /// Its certificates, if it has some.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Its clock, if it has one of its own.
    pub fn clock(&self) -> Option<&ServerClock> {
        self.clock.as_ref()
    }

    /// The folder with its `log`, and its data in the folder `data`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What `pg_dump` with these options writes of its database: statements for [`load`](Self::load).
    ///
    /// # Errors
    ///
    /// If it fails; the text is the program's.
    pub fn dump(&self, options: &[&str]) -> Result<String> {
        let mut dump = client("pg_dump")?;
        dump.args(["--dbname", &self.conninfo()]).args(options);
        said("pg_dump (package postgresql)", &mut dump)
    }

    /// Runs statements of a file, as a restore does.
    ///
    /// # Errors
    ///
    /// If one of them fails; the text is the server's.
    pub fn load(&self, statements: &str) -> Result<()> {
        let file = self.folder.path().join("statements");
        fs::write(&file, statements)?;
        self.client_with(&["--file"], &file).map(drop)
    }

    fn client_with(&self, args: &[&str], file: &Path) -> Result<String> {
        let mut psql = client("psql")?;
        psql.args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"]);
        psql.args(["--dbname", &self.conninfo()]).args(args);
        said(PSQL, psql.arg(file))
    }

    /// What `psql` prints for a statement: rows in lines, columns separated by `|`.
    ///
    /// # Errors
    ///
    /// If it fails; the text is the server's.
    pub fn psql(&self, statement: &str) -> Result<String> {
        let mut psql = client("psql")?;
        psql.args(["--no-psqlrc", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]);
        psql.args(["--dbname", &self.conninfo(), "--command", statement]);
        said(PSQL, &mut psql)
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // A killed server leaves a segment of shared memory behind; one that ends at once does not.
        let _ = self.process.end_by(Signal::QUIT, LIMIT);
    }
}

/// The command behind `setpriv`, as a user who is not root, and ended when this process ends.
pub(crate) fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if geteuid().is_root() {
        command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
        command.arg("--clear-groups");
    }
    // After a change of the user: that clears what was set before.
    command.args(["--pdeathsig", "QUIT"]).arg(program);
    // Those of the registries bring their libraries.
    let libraries = program.parent().map(|programs| programs.with_file_name("lib"));
    if let Some(libraries) = libraries.filter(|folder| folder.join("libpq.so.5").exists()) {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    // Where everybody may be.
    command.current_dir("/");
    command
}

fn data_of(options: &PostgresOptions, folder: &Path) -> PathBuf {
    options.place.as_deref().unwrap_or(folder).join("data")
}

/// Gives a file or a folder to the user as whom the server runs.
pub(crate) fn own(path: &Path) -> Result<()> {
    if geteuid().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY))?;
    }
    Ok(())
}

/// The same for a folder and all that is in it.
fn own_all(folder: &Path) -> Result<()> {
    if geteuid().is_root() {
        let owner = format!("{NOBODY}:{NOBODY}");
        said("chown", Command::new("chown").args(["-R", &owner]).arg(folder))?;
    }
    Ok(())
}

fn initdb(programs: &Path, data: &Path) -> Result<()> {
    let mut initdb = unprivileged(&programs.join("initdb"));
    initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
    initdb.args(["--no-sync", "--pgdata"]).arg(data);
    said("initdb (package postgresql)", &mut initdb).map(drop)
}

/// A database that was made once for each version: making one takes a second of a processor, and a copy of it little.
fn template(programs: &Path) -> Result<PathBuf> {
    let numbers: Vec<_> =
        version(programs.join("postgres")).iter().map(ToString::to_string).collect();
    let name = format!("postgres-data-{}", numbers.join("."));
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers");
    fs::create_dir_all(&place)?;
    let lock = fs::File::create(place.join(format!("{name}.lock")))?;
    lock.lock()?;
    let template = place.join(&name);
    if !template.exists() {
        // Where the user may write as whom the server runs.
        let folder = Folder::new()?;
        own(folder.path())?;
        let made = folder.path().join("data");
        initdb(programs, &made)?;
        let new = place.join(format!("{name}.new"));
        let _ = fs::remove_dir_all(&new);
        said("cp", Command::new("cp").arg("-r").args([&made, &new]))?;
        fs::rename(&new, &template)?;
    }
    Ok(template)
}

/// What starts the server.
fn command(
    programs: &Path,
    data: &Path,
    port: u16,
    options: &PostgresOptions,
    certificates: Option<&Certificates>,
    clock: Option<&ServerClock>,
) -> Command {
    let mut postgres = unprivileged(&programs.join("postgres"));
    postgres.arg("-D").arg(data);
    let mut settings = vec![
        format!("port={port}"),
        "listen_addresses=127.0.0.1".into(),
        "unix_socket_directories=".into(),
        "fsync=off".into(),
    ];
    if let Some(made) = certificates {
        settings.push("ssl=on".into());
        for (name, file) in [
            ("ssl_cert_file", &made.server_cert),
            ("ssl_key_file", &made.server_key),
            ("ssl_ca_file", &made.ca_cert),
        ] {
            settings.push(format!("{name}={}", file.display()));
        }
    }
    settings.extend(options.settings.iter().cloned());
    for setting in settings {
        postgres.args(["-c", &setting]);
    }
    if let Some(clock) = clock {
        clock.give_to(&mut postgres);
    }
    postgres
}

/// A client of the system: those of the registries have none.
fn client(name: &str) -> Result<Command> {
    Ok(Command::new(Path::new(&provided("postgres@system")?).join(name)))
}
