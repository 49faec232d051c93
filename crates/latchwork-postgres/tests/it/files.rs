//! Sockets in the file system, files with passwords, and service files: as psql uses them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use latchwork_services::{Folder, PostgresOptions, PostgresServer};
use latchwork_store::{Backend as _, ErrorKind};

/// Set for the process that reads the files of its environment: the address that it connects to.
const ADDRESS: &str = "LATCHWORK_ADDRESS";
/// No variables beside those of the files.
const NONE: [(&str, &str); 0] = [];

/// A server with a socket in a folder, and these lines of `pg_hba.conf`.
fn server_in(folder: &Path, lines: &[&str]) -> PostgresServer {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    let options = PostgresOptions::new()
        .setting(format!("unix_socket_directories={}", folder.display()))
        .setting("password_encryption=scram-sha-256");
    let options = lines.iter().fold(options, |options, line| options.access(*line));
    server_with(&options, "")
}

/// A file for its owner alone.
fn private(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_socket_of_the_file_system_serves_its_own_user() {
    let folder = Folder::new().unwrap();
    let me = whoami::username().unwrap();
    let server = server_in(folder.path(), &[&format!("local all {me},other peer")]);
    for user in [&me, "other"] {
        server.psql(&format!("CREATE ROLE \"{user}\" LOGIN SUPERUSER")).unwrap();
    }
    run(async {
        let (path, port) = (folder.path().display().to_string(), server.port());
        let urls = [
            format!("postgres:///postgres?host={path}&port={port}"),
            // What the address asks of TLS concerns no socket, as for psql.
            format!("postgres://{}:{port}/postgres?sslmode=verify-full", path.replace('/', "%2F")),
        ];
        let (holder, waiter) = (bare(&urls[0]).await, bare(&urls[1]).await);
        assert!(waiter.capabilities().push, "waiters are notified");
        let (held, waits) = (claim("k").with(|it| it.ttl = 60 * SEC), claim("k"));
        holder.granted(&held).await;
        let release = async {
            until(&server, "SELECT count(*) FROM latchwork_line", |n| n == "1").await;
            holder.released(&held).await;
            std::time::Instant::now()
        };
        let (_, released) = tokio::join!(waiter.acquired(&waits), release);
        stalls::in_time(released, 5 * SEC);
        let report = examine(&urls[0]).await;
        assert_eq!(report.find("encryption").unwrap().found, "none, on this machine");
        let url = format!("postgres://other@/postgres?host={path}&port={port}");
        let error = connect(&url).await.err().expect("it is another user");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let error =
            connect(&urls[0].replace(&port.to_string(), "1")).await.err().expect("no server");
        let socket = format!("{path}/.s.PGSQL.1");
        assert!(error.to_string().contains(&socket), "{error}");
        assert!(error.next_step().unwrap().contains("unix_socket_directories"), "{error}");
    });
}

/// The server ends the connections through the socket; nothing is lost.
#[test]
fn a_hold_through_a_socket_survives_a_killed_server() {
    let folder = Folder::new().unwrap();
    let mut server = server_in(folder.path(), &[]);
    let url = format!(
        "postgres://postgres@/postgres?host={}&port={}",
        folder.path().display(),
        server.port()
    );
    run(async {
        let client = bare(&url).await;
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        client.granted(&held).await;
        server.crash().unwrap();
        assert!(client.held(&held).await);
        client.released(&held).await;
    });
}

#[test]
fn a_password_comes_from_a_file_that_others_cannot_read() {
    let folder = Folder::new().unwrap();
    let lines = ["local all app scram-sha-256", "host all app all scram-sha-256"];
    let server = server_in(folder.path(), &lines);
    server.psql("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'p:w'").unwrap();
    let (path, port) = (folder.path().display(), server.port());
    let file = folder.path().join("passwords");
    let shown = file.display().to_string();
    let (through, named) = (format!("host={path}&port={port}"), format!("passfile={shown}"));
    let socket = format!("postgres://app@/postgres?{through}&{named}");
    let net = format!("postgres://app@127.0.0.1:{port}/postgres?{named}");
    let refused = async |url: &str| connect(url).await.err().expect("it is refused");
    run(async {
        let error = refused(&net).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(
            error.to_string().contains(&format!("passfile: {shown} does not exist")),
            "{error}"
        );
        private(&file, &format!("# ours\n{path}:{port}:*:app:p\\:w\n"));
        bare(&socket).await.granted(&claim("k")).await;
        let error = refused(&net).await;
        assert!(error.to_string().contains(&format!("no line of {shown} is for app")), "{error}");
        private(&file, &format!("{path}:{port}:*:app:p\\:w\n127.0.0.1:*:postgres:app:p:w\n"));
        let error = refused(&net).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "p is not the password: {error}");
        private(&file, "127.0.0.1:*:app\n");
        let error = refused(&net).await;
        assert!(error.to_string().contains(&format!("{shown}, line 1: not host:port")), "{error}");
        private(&file, "*:*:*:*:p\\:w\n");
        for url in [&socket, &net] {
            bare(url).await.granted(&claim(url)).await;
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let error = refused(&net).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("permissions 0640 let others read it"), "{error}");
        assert!(error.next_step().unwrap().contains("chmod 0600"), "{error}");
        // A password of the address goes before the file, whatever that is.
        let own = net.replace("app@", "app:p%3Aw@");
        bare(&own).await.granted(&claim("own")).await;
    });
}

/// A process with these files and variables in its environment connects to the address, and psql as well.
fn beside_psql(
    folder: &Path,
    variables: &[(&str, impl AsRef<OsStr>)],
    url: &str,
    test: &str,
) -> [Result<(), String>; 2] {
    let environment = |command: &mut Command| {
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PG")) {
            command.env_remove(name);
        }
        command.env("HOME", folder).env("PGSYSCONFDIR", folder.join("system")).env(ADDRESS, url);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let output = command.output().unwrap();
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into()),
        }
    };
    let mut ours = Command::new(std::env::current_exe().unwrap());
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--no-password", "--dbname", url, "--command", "SELECT 1"]);
    [environment(ours.args(["--exact", test, "--nocapture"])), environment(&mut psql)]
}

/// Takes a lock at this address, in the process that [`beside_psql`] starts.
fn take_a_lock(url: &str) {
    run(async {
        let client = connect(url).await.unwrap_or_else(|error| panic!("{error}"));
        client
            .granted(&claim(&format!("{:032x}", latchwork_store::ClaimId::random().as_u128())))
            .await;
    });
}

/// As with psql, also where the address says otherwise.
#[test]
fn h281_the_environment_is_read_as_psql_reads_it() {
    if let Ok(url) = std::env::var(ADDRESS) {
        return take_a_lock(&url);
    }
    let test = "files::h281_the_environment_is_read_as_psql_reads_it";
    let folder = Folder::new().unwrap();
    let lines = ["local all app scram-sha-256", "host all app all scram-sha-256"];
    let server = server_in(folder.path(), &lines);
    server.psql("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'p:w'").unwrap();
    let (path, port) = (folder.path().display().to_string(), server.port().to_string());
    let place = [("PGPORT", &*port), ("PGDATABASE", "postgres")];
    let login = [("PGUSER", "app"), ("PGPASSWORD", "p:w")];
    let with = |more: &[(&'static str, &'static str)]| {
        let mut all: Vec<(&str, &str)> = [&place[..], &login].concat();
        all.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
        all.extend(more);
        all
    };
    let at =
        |variables: &[(&str, &str)], url: &str| beside_psql(folder.path(), variables, url, test);
    let socket = [&with(&[])[..], &[("PGHOST", &path)]].concat();
    for (variables, url) in [
        (socket, "postgresql://"),
        (with(&[("PGHOST", "127.0.0.1")]), "postgresql://"),
        (with(&[("PGHOST", "nowhere.invalid")]), "postgresql://127.0.0.1"),
        (with(&[("PGUSER", "nobody"), ("PGPASSWORD", "x")]), "postgresql://app:p%3Aw@127.0.0.1"),
        (with(&[("PGDATABASE", "none")]), "postgresql://127.0.0.1/postgres"),
        (with(&[("PGSSLMODE", "require")]), "postgresql://127.0.0.1/?sslmode=disable"),
    ] {
        for (who, said) in ["latchwork", "psql"].iter().zip(at(&variables, url)) {
            said.unwrap_or_else(|error| panic!("{who} at {url} with {variables:?}: {error}"));
        }
    }
    for (variables, part) in [
        (with(&[("PGPASSWORD", "wrong")]), "check the user, the password"),
        (with(&[("PGSSLMODE", "require")]), "sslmode"),
        (with(&[("PGSSLMODE", "maybe")]), "PGSSLMODE: sslmode is not disable"),
        (with(&[("PGPORT", "x")]), "port is not a number"),
    ] {
        let [ours, psql] = at(&variables, "postgresql://127.0.0.1");
        let ours = ours.expect_err("it is refused");
        assert!(ours.contains(part), "{variables:?}: {ours}");
        psql.expect_err("psql refuses it, too");
    }
    let strange = [("PGUSER", OsStr::from_bytes(b"\xff"))];
    let [ours, _] = beside_psql(folder.path(), &strange, "postgresql://127.0.0.1", test);
    let ours = ours.expect_err("it is not UTF-8");
    let (_, step) = ours.split_once("store: PGUSER: not UTF-8").unwrap_or_else(|| panic!("{ours}"));
    assert!(step.contains("unset it, and write ") && step.contains(" user="), "{ours}");
}

#[test]
fn the_files_of_a_home_are_read_as_psql_reads_them() {
    if let Ok(url) = std::env::var(ADDRESS) {
        return take_a_lock(&url);
    }
    let test = "files::the_files_of_a_home_are_read_as_psql_reads_them";
    let folder = Folder::new().unwrap();
    let lines = ["local all app scram-sha-256", "host all app all scram-sha-256"];
    let server = server_in(folder.path(), &lines);
    server.psql("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'p:w'").unwrap();
    let (path, port) = (folder.path().display(), server.port());
    let good = |url: &str| {
        for (who, said) in
            ["latchwork", "psql"].iter().zip(beside_psql(folder.path(), &NONE, url, test))
        {
            said.unwrap_or_else(|error| panic!("{who} at {url}: {error}"));
        }
    };
    let bad = |url: &str, part: &str| {
        let [ours, psql] = beside_psql(folder.path(), &NONE, url, test);
        let ours = ours.expect_err("no password fits");
        assert!(ours.contains(part), "{url}: {ours}");
        psql.expect_err("no password fits for psql either");
    };
    let net = format!("postgresql://app@127.0.0.1:{port}/postgres");
    bad(&net, "~/.pgpass");
    let pgpass = folder.path().join(".pgpass");
    private(&pgpass, &format!("127.0.0.1:{port}:postgres:app:p\\:w\n{path}:*:*:app:p\\:w\n"));
    good(&net);
    good(&format!("postgresql://app@/postgres?host={path}&port={port}"));
    let services = folder.path().join(".pg_service.conf");
    fs::write(&services, format!("[shop]\nhost={path}\nport={port}\nuser=app\ndbname=postgres\n"))
        .unwrap();
    good("postgresql:///?service=shop");
    good(&format!("postgresql://127.0.0.1:{port}/?service=shop"));
    bad("postgresql:///?service=none", ".pg_service.conf");
    fs::create_dir(folder.path().join("system")).unwrap();
    let system = folder.path().join("system/pg_service.conf");
    fs::write(&system, format!("[none]\nhost=127.0.0.1\nport={port}\nuser=app\ndbname=postgres\n"))
        .unwrap();
    good("postgresql:///?service=none");
    fs::write(&services, "[shop]\nhost=127.0.0.1\nport 5432\n").unwrap();
    bad("postgresql:///?service=shop", ".pg_service.conf, line 3");
    fs::set_permissions(&pgpass, fs::Permissions::from_mode(0o644)).unwrap();
    bad(&net, "permissions 0644 let others read it");
}
