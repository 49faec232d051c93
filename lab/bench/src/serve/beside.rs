//! Loads beside one another: the service on etcd beside the locks of etcd's own HTTP gateway, and many locks by one
//! renewal, sessions beside tickets and beside leases of etcd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use latchwork_services::Folder;

use super::api::Api;
use super::probe::{self, Probe};
use super::service::{Load, Numbers, SERVICE, Scene, Service, UNTIL_THEY_WAIT, WATCHED, kilobytes};
use crate::goals::{self, Goal};
use crate::roles::Outcome;
use crate::stats::{head, micros, row, shortened};
use crate::store::{Store, Which};

/// Beyond the usual limit of a token.
const MOST: &str = "100000";

/// What was seen of a load.
struct Seen {
    taken: f64,
    numbers: Numbers,
    /// Kilobytes of a lock.
    memory: f64,
    /// Of the service and of the store, in cores.
    cpu: [f64; 2],
}

/// A load, and what bears it.
struct Loaded {
    load: Load,
    service: Option<Service>,
    store: Box<dyn Store>,
    seen: Seen,
}

impl Loaded {
    /// Watches a load for a while, on a server of its own.
    fn start(which: Which, api: Api, scene: &Scene, more: &[&str]) -> Outcome<Self> {
        let store = which.start()?;
        let service = match api {
            Api::Latchwork | Api::Sessions | Api::Marked => {
                Some(Service::start(&store.address(), more)?)
            }
            Api::Gateway | Api::Leases => None,
        };
        let port = service.as_ref().map_or(store.ports()[0], Service::port);
        let mut load = Load::start(api, port, scene)?;
        let memory = || service.as_ref().map_or(Ok(f64::NAN), Service::memory);
        let connected = memory()?;
        let took = load.order("take")?;
        if scene.waiters > 0 {
            load.order(&format!("wait {}", scene.waiters))?;
            std::thread::sleep(UNTIL_THEY_WAIT);
        } else {
            // The first renewals are of locks that were taken at different times.
            std::thread::sleep(scene.ttl / 3);
        }
        let memory = (memory()? - connected) / scene.locks as f64;
        load.numbers()?;
        let times = || [service.as_ref().map_or(f64::NAN, Service::processor_time), store.cpu()];
        let before = times();
        std::thread::sleep(WATCHED);
        let after = times();
        let cpu = [0, 1].map(|n| (after[n] - before[n]) / WATCHED.as_secs_f64());
        let numbers = load.numbers()?;
        let seen = Seen { taken: scene.locks as f64 / took, numbers, memory, cpu };
        Ok(Self { store, service, load, seen })
    }
}

fn of_a_core(cores: f64) -> String {
    format!("{:.1} % of one core", cores * 100.0)
}

/// The service on etcd, beside the gateway.
pub(crate) fn beside_gateway() -> Outcome {
    const GATEWAY: &str = "etcd's gateway, a lease for each lock";
    let scene = Scene::new();
    let (mut rows, mut probes) = (Vec::new(), Vec::new());
    for (name, api) in [(SERVICE, Api::Latchwork), (GATEWAY, Api::Gateway)] {
        let mut loaded = Loaded::start(Which::Etcd, api, &scene, &[])?;
        let own = loaded.store.ports()[0].to_string();
        let mut some = match &loaded.service {
            Some(service) => {
                let (url, port) = (loaded.store.address(), service.port().to_string());
                vec![
                    Probe::start("the library, beside the service", "library", &url)?,
                    Probe::start(name, api.word(), &port)?,
                ]
            }
            None => vec![
                Probe::start(name, api.word(), &own)?,
                Probe::start("etcd's gateway, one lease of the client", "one-lease", &own)?,
            ],
        };
        probe::in_turns(&mut some)?;
        probes.extend(some);
        loaded.seen.numbers.failed += loaded.load.numbers()?.failed;
        rows.push((name, loaded.seen));
    }
    println!("etcd; {}:\n", scene.told());
    probe::table(&probes, probes[0].p99());
    println!("\nThe load itself:\n");
    head(
        "what | locks taken a second | renewals a second | failed | goal | renewal p50 | renewal p99 | the service's CPU | etcd's CPU",
    );
    for (name, Seen { taken, numbers, cpu, .. }) in rows {
        let failed = numbers.failed;
        let verdict = (name == SERVICE).then(|| Goal::at_most(0.0).of("failed").judge(failed));
        row(&[
            name.into(),
            format!("{taken:.0}"),
            format!("{:.0}", numbers.renewed / WATCHED.as_secs_f64()),
            failed.to_string(),
            goals::cell(&Vec::from_iter(verdict)),
            micros(numbers.times.quantile(0.5)),
            micros(numbers.times.quantile(0.99)),
            of_a_core(cpu[0]),
            of_a_core(cpu[1]),
        ]);
    }
    Ok(())
}

const TICKETS: &str = "tickets";
const SESSIONS: &str = "sessions";
const SHARED: &str = "sessions, a seal key";
const MARKED: &str = "sessions, a seal key, marks";
const LEASES: &str = "leases of etcd's gateway";

/// A load: whose locks, on how many connections, and how many. A thousand locks by each renewal, and many sessions of
/// fifty. `LATCHWORK_SESSION_CASES=6,7` measures some of them.
const CASES: [(&str, Which, Api, usize, usize); 12] = [
    (TICKETS, Which::Redis, Api::Latchwork, 1_000, 10_000),
    (SESSIONS, Which::Redis, Api::Sessions, 10, 10_000),
    (SHARED, Which::Redis, Api::Sessions, 10, 10_000),
    (TICKETS, Which::Etcd, Api::Latchwork, 1_000, 10_000),
    (SESSIONS, Which::Etcd, Api::Sessions, 10, 10_000),
    (SHARED, Which::Etcd, Api::Sessions, 10, 10_000),
    (SESSIONS, Which::Redis, Api::Sessions, 1_000, 50_000),
    (SHARED, Which::Redis, Api::Sessions, 1_000, 50_000),
    (MARKED, Which::Redis, Api::Marked, 1_000, 50_000),
    (SESSIONS, Which::Etcd, Api::Sessions, 1_000, 50_000),
    (MARKED, Which::Etcd, Api::Marked, 1_000, 50_000),
    (LEASES, Which::Etcd, Api::Leases, 1_000, 50_000),
];

/// Many locks by one renewal.
pub(crate) fn sessions() -> Outcome {
    let ttl = Duration::from_secs(15);
    println!("A ttl of {} s, renewed every {} s:\n", ttl.as_secs(), ttl.as_secs() / 3);
    let columns = head(
        "what | by each renewal | taken a second | locks renewed a second | the same for each core of the service | renewal p50 | renewal p99 | failed | resident memory by each lock, with its connection | the service's CPU | the store's CPU",
    );
    let folder = Folder::new()?;
    let key = folder.path().join("seal.key");
    fs::write(&key, "5".repeat(64))?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    let key = key.to_str().ok_or("a path of UTF-8")?;
    let part = shortened(1, 10);
    let chosen = std::env::var("LATCHWORK_SESSION_CASES").ok();
    for (number, (name, which, api, connections, locks)) in CASES.into_iter().enumerate() {
        if chosen.as_ref().is_some_and(|it| !it.split(',').any(|it| it == number.to_string())) {
            continue;
        }
        let (connections, locks) = (connections / part, locks / part);
        let scene = Scene { connections, locks, waiters: 0, ttl };
        let is_shared = [SHARED, MARKED].contains(&name);
        let more = ["--max-holds", MOST, "--seal-key-file", key];
        let more = if is_shared { &more[..] } else { &more[..2] };
        let store = if which == Which::Etcd { "etcd" } else { "Redis" };
        let mut cells = vec![format!("{name}: {locks} locks on {store}")];
        match Loaded::start(which, api, &scene, more) {
            Ok(loaded) => {
                cells
                    .extend(shown(&loaded, if api.keeps_many() { locks / connections } else { 1 }));
            }
            Err(error) => {
                eprintln!("{}: {error}", cells[0]);
                cells.resize(columns, "does not stand".into());
            }
        }
        row(&cells);
    }
    Ok(())
}

/// The cells of a load in which each renewal keeps so many locks.
fn shown(Loaded { service, seen, .. }: &Loaded, each: usize) -> Vec<String> {
    let Seen { taken, numbers, memory, cpu } = seen;
    let renewed = numbers.renewed * each as f64 / WATCHED.as_secs_f64();
    let or_none = |text: String| if service.is_some() { text } else { "-".into() };
    match service.as_ref().map_or(0, Service::warnings) {
        0 => {}
        some => eprintln!("{some} warnings"),
    }
    vec![
        each.to_string(),
        format!("{taken:.0}"),
        format!("{renewed:.0}"),
        or_none(format!("{:.0}", renewed / cpu[0])),
        micros(numbers.times.quantile(0.5)),
        micros(numbers.times.quantile(0.99)),
        format!("{:.0}", numbers.failed),
        or_none(kilobytes(*memory)),
        or_none(of_a_core(cpu[0])),
        of_a_core(cpu[1]),
    ]
}
