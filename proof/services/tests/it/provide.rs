//! The script that fetches and builds servers: what it chooses, and what it says when it cannot.

use std::error::Error;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

type Test = Result<(), Box<dyn Error>>;

/// What the script calls, but for what fetches and builds.
const TOOLS: &[&str] = &[
    "sh",
    "dirname",
    "basename",
    "sed",
    "head",
    "tail",
    "mkdir",
    "flock",
    "grep",
    "cut",
    "tr",
    "printenv",
    "uname",
    "rm",
    "mv",
    "ls",
    "id",
    "stat",
    "sha256sum",
    "readlink",
    "chmod",
    "tar",
    "ln",
    "nice",
    "cp",
    "sort",
];

/// A copy of the script with its tables, on a machine that has `TOOLS` alone.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Result<Self, Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let place = folder.path().join("proof/services");
        std::fs::create_dir_all(place.join("etcd"))?;
        for file in ["provide", "servers.tsv", "etcd/go.mod"] {
            std::fs::copy(here.join(file), place.join(file))?;
        }
        let machine = Self { folder };
        std::fs::create_dir(machine.tools())?;
        for tool in TOOLS {
            let found = ["/usr/bin", "/bin"].map(|dir| Path::new(dir).join(tool));
            let found = found.iter().find(|path| path.exists()).ok_or(*tool)?;
            symlink(found, machine.tools().join(tool))?;
        }
        Ok(machine)
    }

    fn tools(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// Gives it one more program.
    fn has(&self, name: &str, script: &str) -> Test {
        let path = self.tools().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
        Ok(std::fs::set_permissions(path, PermissionsExt::from_mode(0o755))?)
    }

    fn asks(&self, name: &str, variable: Option<(&str, &str)>) -> std::io::Result<Output> {
        let mut command = Command::new("/bin/sh");
        command.arg(self.folder.path().join("proof/services/provide")).arg(name);
        command.env_clear().env("PATH", self.tools()).envs(variable);
        command.output()
    }

    /// What it prints where it succeeds, or what it says where it does not.
    fn answer(&self, name: &str, variable: Option<(&str, &str)>) -> Result<String, String> {
        let output = self.asks(name, variable).map_err(|e| e.to_string())?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
    }
}

/// Without Go, or with an old one, the error names each way out.
#[test]
fn a_machine_without_a_new_go_gets_a_clear_error() -> Test {
    let machine = Machine::new()?;
    let said = machine.answer("etcd", None).unwrap_err();
    assert!(said.contains("there is no go") && said.contains("LATCHWORK_ETCD"), "{said}");
    machine.has("go", "echo go1.19.8")?;
    let said = machine.answer("etcd", None).unwrap_err();
    assert!(said.contains("go1.19.8") && said.contains("1.26 or later"), "{said}");
    Ok(())
}

/// A variable chooses a version, another server, or a program. The error for an unknown version lists the known ones.
#[test]
fn a_variable_chooses_the_server() -> Test {
    let machine = Machine::new()?;
    let choose = |value| machine.answer("etcd", Some(("LATCHWORK_ETCD", value)));
    assert_eq!(choose("/opt/etcd")?, "/opt/etcd");
    assert!(choose("3.4.23").unwrap_err().contains("the system has no etcd"));
    let unknown = choose("9.9").unwrap_err();
    assert!(unknown.contains("9.9") && unknown.contains("etcd@3.4.23"), "{unknown}");
    machine.has("etcd", "echo etcd Version: 3.3.25")?;
    assert!(choose("3.4.23").unwrap_err().contains("another version: etcd Version: 3.3.25"));
    assert!(choose("system")?.ends_with("/bin/etcd"));
    machine.has("redis-server", "echo v=7.0.15")?;
    assert!(choose("redis@7.0.15")?.ends_with("/bin/redis-server"));
    Ok(())
}

/// What does not have the checksum of the table is not used, now or later.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_has_another_checksum_is_refused() -> Test {
    let machine = Machine::new()?;
    // It is given the folder as its fourth word.
    machine.has("npm", "echo no postgres > \"$4/embedded.tgz\"")?;
    for _ in 0..2 {
        let said = machine.answer("postgres", None).unwrap_err();
        assert!(said.contains("is not what it was"), "{said}");
    }
    // Nobody waits here for a registry that may come back.
    machine.has("sleep", "true")?;
    machine.has("npm", "exit 1")?;
    let said = machine.answer("postgres", None).unwrap_err();
    assert!(said.contains("did not come from the registry of npm"), "{said}");
    Ok(())
}
