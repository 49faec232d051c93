//! Installs what the tests need beyond a Rust toolchain.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the tests use.
#[derive(Clone, Copy)]
enum Need {
    Program(&'static str),
    /// A Java library.
    Jar(&'static str),
    /// A module of the system's Python: the test's peers are installed there, and another Python
    /// may come first in the path.
    PythonModule(&'static str),
    /// A library of .NET, for Mono.
    Assembly(&'static str),
    /// A PostgreSQL server, which Debian puts beside the path, in a folder of its version.
    Postgres,
}

use Need::{Assembly, Jar, Postgres, Program, PythonModule};

/// What the tests use, and the Debian package that has it.
const NEEDED: &[(Need, &str)] = &[
    (Program("bash"), "bash"),
    (Program("cc"), "gcc"),
    (Program("setpriv"), "util-linux"),
    (Program("unshare"), "util-linux"),
    (Program("strace"), "strace"),
    (Program("groff"), "groff-base"),
    (Program("systemd-analyze"), "systemd"),
    (Program("openssl"), "openssl"),
    (Program("redis-server"), "redis-server"),
    (Program("redis-sentinel"), "redis-sentinel"),
    (Program("redis-cli"), "redis-tools"),
    (Program("etcd"), "etcd-server"),
    (Program("etcdctl"), "etcd-client"),
    (PythonModule("redis"), "python3-redis"),
    (Program("java"), "default-jre-headless"),
    (Jar("zookeeper"), "zookeeper"),
    (Jar("slf4j-simple"), "libslf4j-java"),
    (Jar("curator-recipes"), "libcurator-recipes-java"),
    (Program("javac"), "default-jdk-headless"),
    (PythonModule("kazoo"), "python3-kazoo"),
    (Postgres, "postgresql"),
    (Program("pgbouncer"), "pgbouncer"),
    (Program("mariadbd"), "mariadb-server"),
    (Program("chromium"), "chromium"),
    (Program("chromedriver"), "chromium-driver"),
    (PythonModule("ensurepip"), "python3-venv"),
    (Program("curl"), "curl"),
    (Program("go"), "golang-go"),
    (Program("node"), "nodejs"),
    // Servers come from their registries.
    (Program("npm"), "npm"),
    (Program("mvn"), "maven"),
    (Program("mcs"), "mono-mcs"),
    (Program("mono"), "mono-runtime"),
    (Assembly("System.Net.Http"), "libmono-system-net-http4.0-cil"),
    (Assembly("System.Runtime.Serialization"), "libmono-system-runtime-serialization4.0-cil"),
    (Program("nginx"), "nginx-light"),
    (Program("haproxy"), "haproxy"),
    (Program("ip"), "iproute2"),
    (Program("tc"), "iproute2"),
];

pub(crate) fn run() -> Result<(), String> {
    let missing = missing();
    if missing.is_empty() {
        println!("setup: everything is there");
        return Ok(());
    }
    println!("setup: installing {}", missing.join(", "));
    install(&missing).map_err(|why| {
        let packages = missing.join(" ");
        format!(
            "setup: {why}\nThe tests need packages that are not installed. On Debian, as root:\n\
             \n    apt-get install --no-install-recommends {packages}\n"
        )
    })
}

fn missing() -> Vec<&'static str> {
    NEEDED.iter().filter(|(need, _)| !is_there(*need)).map(|(_, package)| *package).collect()
}

fn is_there(need: Need) -> bool {
    match need {
        Program(name) => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            // Debian puts servers where only root looks.
            let sbin = Path::new("/usr/sbin").to_owned();
            let mut places = std::env::split_paths(&path).chain([sbin]);
            places.any(|dir| dir.join(name).is_file())
        }
        Postgres => {
            let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
            let mut servers = versions.map(|version| version.path().join("bin/postgres"));
            servers.any(|server| server.is_file()) || is_there(Program("postgres"))
        }
        Assembly(name) => Path::new(&format!("/usr/lib/mono/4.5/{name}.dll")).is_file(),
        Jar(name) => Path::new(&format!("/usr/share/java/{name}.jar")).is_file(),
        PythonModule(name) => Command::new("/usr/bin/python3")
            .args(["-c", &format!("import {name}")])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success()),
    }
}

fn install(packages: &[&str]) -> Result<(), String> {
    let _no_services = NoServices::declare()?;
    apt_get(&["update"])?;
    let options = ["install", "--yes", "--no-install-recommends"];
    apt_get(&[&options[..], packages].concat())?;
    match missing()[..] {
        [] => Ok(()),
        ref missing => Err(format!("installed, and yet not there: {}", missing.join(", "))),
    }
}

/// Keeps packages from starting services while it lives: the tests start their own servers, and
/// nobody asked for one on the usual port.
struct NoServices {
    declared: bool,
}

impl NoServices {
    const POLICY: &str = "/usr/sbin/policy-rc.d";

    /// Puts a policy in place, unless the system has one already.
    fn declare() -> Result<Self, String> {
        let mut options = fs::OpenOptions::new();
        match options.write(true).create_new(true).mode(0o755).open(Self::POLICY) {
            Ok(mut file) => {
                let declared = Self { declared: true };
                // 101 is the answer "not allowed" of invoke-rc.d's policy interface.
                std::io::Write::write_all(&mut file, b"#!/bin/sh\nexit 101\n")
                    .map_err(|e| format!("cannot write {}: {e}", Self::POLICY))?;
                Ok(declared)
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(Self { declared: false }),
            Err(e) => Err(format!("cannot write {}: {e}", Self::POLICY)),
        }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.declared
            && let Err(e) = fs::remove_file(Self::POLICY)
        {
            eprintln!("setup: remove {} by hand: {e}", Self::POLICY);
        }
    }
}

fn apt_get(args: &[&str]) -> Result<(), String> {
    let status = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .map_err(|e| format!("cannot run apt-get: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("apt-get {} failed: {status}", args[0])) }
}
