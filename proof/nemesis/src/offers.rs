//! The runs that a soak makes: each store that this program starts or finds here, with all its faults.
//!
//! `latchwork-nemesis stores` prints them, a line each: a name, a tab, and the words of `run`.

use crate::stores::KINDS;

/// Names, the words that start their servers, and the faults.
const REDIS: &[(&str, &str, &str)] = &[
    (
        "redis",
        "--redis single --options guard=true&max_ttl=2s",
        "kill,stop,evict,cuts,lost-answers,late-answers,lost-messages,flush-scripts,freeze,restart,\
         lose-data,old-data,flush-all",
    ),
    // Without the guard two may hold at once after a loss of data: exceptions.
    ("redis-unguarded", "--redis single", "kill,stop,restart,lose-data,old-data,flush-all"),
    (
        "sentinel",
        "--redis sentinel --options guard=true&max_ttl=2s&deposed=3s",
        "kill,stop,failover,hang,split",
    ),
    (
        "cluster",
        "--redis cluster --options guard=true&max_ttl=2s&deposed=6s",
        "kill,stop,node-loss,node-hang",
    ),
    (
        "redlock",
        "--redis redlock --options max_ttl=2s",
        "kill,stop,cuts,late-answers,partition,freeze,freeze-most,restart,lose-data,old-data",
    ),
];

/// Other clients in the same contest: their names, their stores and the faults.
const FOREIGN: &[(&str, &str, &str)] = &[
    (
        "redis-py",
        "--redis single --options guard=true&max_ttl=2s",
        "kill,stop,cuts,lost-answers,late-answers,freeze,restart,lose-data,old-data",
    ),
    (
        "redis-py",
        "--redis sentinel --options guard=true&max_ttl=2s&deposed=3s",
        "kill,stop,failover,hang",
    ),
    (
        "redsync",
        "--redis single --options guard=true&max_ttl=2s",
        "kill,stop,cuts,lost-answers,late-answers,freeze,restart,lose-data,flush-all",
    ),
    (
        "redsync",
        "--redis redlock --options max_ttl=2s",
        "kill,stop,cuts,late-answers,partition,freeze,freeze-most,restart,lose-data,old-data",
    ),
    ("go-concurrency", "--store etcd", "all"),
    ("curator", "--store zookeeper", "all"),
    ("kazoo", "--store zookeeper", "all"),
    (
        "python",
        "--redis single --options guard=true&max_ttl=2s",
        "kill,stop,evict,cuts,lost-answers,late-answers,freeze,restart,lose-data,old-data",
    ),
    (
        "python",
        "--redis redlock --options max_ttl=2s",
        "kill,stop,cuts,partition,freeze-most,lose-data",
    ),
    ("python", "--store etcd", "all"),
    ("python", "--store zookeeper", "all"),
    ("python", "--store postgres", "all"),
    ("python", "--store kubernetes", "all"),
];

/// Stores under two instances of the service with one key, whose clients speak HTTP. A calm outlasts the quarantine of a
/// guarded store, or nothing is undisturbed enough for `takeover`.
const HTTP: &[(&str, &str)] = &[
    ("redis", "--redis single --options guard=true&max_ttl=8s --calm 12s"),
    ("redlock", "--redis redlock --options max_ttl=8s --calm 12s"),
    ("etcd", "--store etcd"),
    ("postgres", "--store postgres"),
    ("kubernetes", "--store kubernetes"),
];

const SERVICE: &str = "--service service-kill,service-stop,service-restart";

/// A line for each run. Of the other stores each has its own list of all faults.
pub fn lines() -> String {
    let folder = std::env::temp_dir().join("latchwork-nemesis-files");
    let files = format!("files\t--store file://{} --faults kill,stop,evict\n", folder.display());
    let redis =
        REDIS.iter().map(|(name, words, faults)| format!("{name}\t{words} --faults {faults}\n"));
    let others =
        KINDS.iter().map(|kind| format!("{kind}\t--store {kind} --faults all --tasks 14\n"));
    let foreign = FOREIGN.iter().map(|(client, words, faults)| {
        let store = words.split(' ').nth(1).unwrap_or_default();
        format!("{client}-{store}\t{words} --foreign {client} --faults {faults}\n")
    });
    let http = HTTP.iter().map(|(store, words)| {
        format!("http-{store}\t{words} {SERVICE} --instances 2 --faults kill,stop\n")
    });
    std::iter::once(files).chain(redis).chain(others).chain(foreign).chain(http).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Flags;

    #[test]
    fn every_offered_run_is_a_command_line() {
        let lines = lines();
        let mut names: Vec<&str> = Vec::new();
        for line in lines.lines() {
            let (name, words) = line.split_once('\t').unwrap();
            assert!(!names.contains(&name), "{name} is there twice");
            names.push(name);
            let mut flags = Flags::read(words.split(' ').map(str::to_owned)).unwrap();
            let faults = flags.needed("faults").unwrap();
            assert!(faults.split(',').all(|fault| !fault.is_empty()), "{faults}");
            let store = flags.text("redis").map(|kind| kind.parse::<crate::redis::Kind>());
            assert!(store.map_or(flags.text("store").is_some(), |kind| kind.is_ok()), "{line}");
            flags.text("options");
            let client = flags.text("foreign");
            let foreign = crate::foreign::ALL.iter().map(crate::foreign::Foreign::name);
            assert!(client.is_none_or(|client| foreign.into_iter().any(|f| f == client)), "{line}");
            flags.text("tasks");
            flags.text("calm");
            flags.text("service");
            flags.text("instances");
            flags.done().unwrap();
        }
        assert!(
            KINDS.iter().all(|kind| names.contains(kind)) && names.len() > KINDS.len(),
            "{names:?}"
        );
    }
}
