//! `cargo xtask matrix`: the contract and a minute of the nemesis on each version of each server, and the table of that.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::asked::Asked;
use super::jobs::Job;
use super::running::Ended;
use super::said::Said;
use super::{build, line, program, running};
use crate::servers;
use crate::workspace::root;

/// The page that is written.
const PAGE: &str = "docs/servers.md";

/// A server of the table of servers: the variable that chooses it, the package whose contract it passes, and its store
/// of the nemesis.
const KINDS: &[(&str, &str, &str, &str)] = &[
    ("redis", "LATCHWORK_REDIS", "latchwork-redis", "redis"),
    ("valkey", "LATCHWORK_REDIS", "latchwork-redis", "redis"),
    ("etcd", "LATCHWORK_ETCD", "latchwork-etcd", "etcd"),
    ("zookeeper", "LATCHWORK_ZOOKEEPER", "latchwork-zookeeper", "zookeeper"),
    ("postgres", "LATCHWORK_POSTGRES", "latchwork-postgres", "postgres"),
    ("kube-apiserver", "LATCHWORK_KUBE_APISERVER", "latchwork-kubernetes", "kubernetes"),
];

/// What is different in a version, for its users.
const DIFFERS: &[(&str, &str)] = &[
    ("redis@6.2.5", "errors inside a script have no code of their own"),
    (
        "redis@8.2.3",
        "a script without a right says `ACL failure in script`; the server was built without TLS",
    ),
    ("valkey@8.0.1", "says `redis_version:7.2.4`"),
    ("valkey@8.1.8", "says `redis_version:7.2.4`; the server was built without TLS"),
    ("etcd@3.4.23", "no `--unsafe-no-fsync`: each write is synced"),
    ("etcd@3.7.3", "a range of keys alone does not say under which lease they are"),
    ("postgres@13.23", "everybody may make functions in the schema `public`"),
    ("postgres@14.23", "as 13"),
];

const HEAD: &str = "\
# Servers that were tried

`cargo xtask matrix` writes this page: on each version it runs the contract of the store, and the nemesis for a minute
with all faults that its store has. Holds and violations are those of the nemesis; a contract counts its trials in
each form of the server (plain, guarded, cluster and so on), and a trial that fails runs a second time, alone. The servers come from the places that
`proof/services/servers.tsv` lists. CI runs all tests on the last version of each.

| server | contract | nemesis | date (UTC) | what differs |
| --- | --- | --- | --- | --- |
";

const TAIL: &str = "
On the API servers, all late answers of 2026-11-28 fell into the seconds after their start, when they take both processors of
the machine of the tests; the run notes for how long the servers' threads waited, and the checks leave that out.

Not tried, because nothing provides them to the tests: Redis 8.4 and later, Valkey 9, Dragonfly, KeyDB, ElastiCache,
MemoryDB, Aurora, CockroachDB, YugabyteDB, MySQL itself.
";

/// One row of the page, by the name and the version of its server.
struct Row {
    server: String,
    text: String,
}

/// The entry of the command: all versions, or those that are named. The rows of others stay.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let all: Vec<String> =
        servers::versions()?.into_iter().filter(|server| kind(server).is_some()).collect();
    if let Some(unknown) = args.iter().find(|name| !all.contains(name)) {
        return Err(format!("matrix: {unknown:?} is none of {}", all.join(", ")));
    }
    let asked = Asked::for_a_minute();
    build(&asked)?;
    let folder = root().join("target/matrix");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut rows = known(&fs::read_to_string(root().join(PAGE)).unwrap_or_default());
    let mut failed = Vec::new();
    for server in all.iter().filter(|name| args.is_empty() || args.contains(name)) {
        println!("{server}: {}", servers::place(server)?);
        let (text, is_well) = tried(server, &asked, &folder)?;
        println!("{text}");
        rows.retain(|row| row.server != *server);
        rows.push(Row { server: server.clone(), text });
        // In the order of the table of servers; after each, so that an interruption loses none.
        rows.sort_by_key(|row| all.iter().position(|name| *name == row.server));
        let text =
            HEAD.to_owned() + &rows.iter().map(|r| r.text.clone()).collect::<String>() + TAIL;
        fs::write(root().join(PAGE), text).map_err(|e| format!("{PAGE}: {e}"))?;
        if !is_well {
            failed.push(server.as_str());
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => {
            Err(format!("matrix: {} failed; the logs are in target/matrix", failed.join(", ")))
        }
    }
}

/// The row of a server, and whether all was well on it.
fn tried(server: &str, asked: &Asked, folder: &Path) -> Result<(String, bool), String> {
    let (_, variable, package, store) = kind(server).ok_or("no such server")?;
    let nemesis = program(asked, "latchwork-nemesis").to_string_lossy().into_owned();
    let stores = line(&nemesis, &["stores"])?;
    let words = stores.lines().find_map(|line| line.split_once('\t').filter(|it| it.0 == *store));
    let (_, words) = words.ok_or_else(|| format!("the nemesis has no store {store}"))?;
    let words = words.split(' ').map(str::to_owned).collect();
    let jobs = [Job::Conformance((*package).into()), Job::Nemesis((*store).into(), words)];
    let never = AtomicBool::new(false);
    let (mut all, mut again) = (Vec::new(), 0);
    for job in &jobs {
        let log = folder.join(format!("{server}-{}.txt", job.name().replace(' ', "-")));
        let mut command = job.command(asked, 0);
        if matches!(job, Job::Conformance(_)) {
            // As many at a time as in CI: each trial of these has backends or watches of its own.
            let threads = if matches!(*store, "postgres" | "kubernetes") { "4" } else { "10" };
            // A form of its own in CI, beside the server that is chosen here.
            command.args(["--", "--skip", "valkey::", "--test-threads", threads]);
        }
        running::run(command.env(variable, server), &log, &never)?;
        let text = fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let mut said = Said::read(job, &text);
        if matches!(job, Job::Conformance(_)) {
            for trial in failed_trials(&text) {
                let log = folder.join(format!("{server}-{}.txt", trial.replace("::", "-")));
                let mut command = job.command(asked, 0);
                command.env(variable, server).args(["--", "--exact", &trial]);
                if running::run(&mut command, &log, &never)? == Ended::Exited(true) {
                    said.checked += 1;
                    said.violations -= 1;
                    again += 1;
                }
            }
        }
        all.push(said);
    }
    let [contract, faults] = &all[..] else { return Err("two jobs".into()) };
    let is_well = contract.is_whole() && faults.is_whole();
    let trials = contract.checked + contract.violations;
    let differs = DIFFERS.iter().find(|(name, _)| *name == server).map_or("", |(_, text)| text);
    let again = if again == 0 { String::new() } else { format!(", {again} at a second try") };
    let under_faults = match faults.holds {
        0 => "not run".to_owned(),
        holds => format!("{holds} holds, {} violations", faults.violations),
    };
    let text = format!(
        "| {} | {} of {trials}{again} | {under_faults} | {} | {differs} |\n",
        server.replace('@', " "),
        contract.checked,
        line("date", &["-u", "+%Y-%m-%d"])?,
    );
    Ok((text, is_well))
}

fn kind(server: &str) -> Option<&'static (&'static str, &'static str, &'static str, &'static str)> {
    let name = server.split('@').next()?;
    KINDS.iter().find(|(known, ..)| *known == name)
}

/// The trials that have failed, as the end of a test program's output names them.
fn failed_trials(text: &str) -> Vec<String> {
    let (_, last) = text.rsplit_once("\nfailures:\n").unwrap_or_default();
    let names = last.lines().map_while(|line| line.strip_prefix("    "));
    names.map(str::to_owned).collect()
}

/// The rows of the page as it is.
fn known(page: &str) -> Vec<Row> {
    let rows = page.lines().filter_map(|line| {
        let server = line.strip_prefix("| ")?.split(" | ").next()?.replace(' ', "@");
        kind(&server)?;
        Some(Row { server, text: format!("{line}\n") })
    });
    rows.collect()
}

impl Asked {
    /// A run of the nemesis of one minute, by programs that are there soon.
    fn for_a_minute() -> Self {
        Self { round: Duration::from_secs(60), debug: true, ..Self::nothing() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_other_servers_stay() {
        let page = format!("{HEAD}| etcd 3.7.3 | 1 of 1 | 2 holds, 0 violations | d | x |\n{TAIL}");
        let rows = known(&page);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].server, "etcd@3.7.3");
        assert!(page.contains(&rows[0].text));
    }

    #[test]
    fn the_front_pages_name_each_server_of_the_page() {
        let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
        let rows = known(&read(PAGE));
        assert!(rows.len() > 10, "{PAGE} has {} rows", rows.len());
        for Row { server, .. } in rows {
            let (name, version) = server.split_once('@').unwrap();
            let name = if name == "kube-apiserver" { "kubernetes" } else { name };
            for page in ["README.md", "README.zh-CN.md"] {
                let has = |line: &str| line.to_lowercase().contains(name) && line.contains(version);
                assert!(read(page).lines().any(has), "{page}: {server} is missing");
            }
        }
    }

    #[test]
    fn failed_trials_are_found_by_their_names() {
        let text =
            "\nfailures:\n\n---- a::b ----\nx\n\nfailures:\n    a::b\n    c::d\n\ntest result";
        assert_eq!(failed_trials(text), ["a::b", "c::d"]);
        assert_eq!(failed_trials("\ntest result: ok\n"), [""; 0]);
    }

    #[test]
    fn what_differs_is_said_of_servers_that_are_there() {
        let all = servers::versions().unwrap();
        assert!(DIFFERS.iter().all(|(name, _)| all.iter().any(|one| one == name)), "{all:?}");
        assert!(
            KINDS
                .iter()
                .all(|(name, ..)| all.iter().any(|one| kind(one).is_some_and(|k| k.0 == *name)))
        );
    }
}
