//! Many locks by one renewal: sessions of the service, beside its tickets and beside leases of etcd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use latchwork_services::{EtcdOptions, EtcdServer, Folder, RedisOptions, RedisServer};

use super::api::Api;
use super::scene::{Load, Scene};
use super::service::Service;
use super::{WATCHED, kilobytes};
use crate::Outcome;
use crate::child::processor_time;
use crate::stats::{head, micros, row, shortened};

/// Beyond the usual limit of a token.
const MOST: &str = "100000";

/// The server of a store, new for each load.
enum Server {
    Redis(RedisServer),
    Etcd(EtcdServer),
}

impl Server {
    fn start(store: &str) -> Result<Self, Box<dyn std::error::Error>> {
        Ok(match store {
            "Redis" => Self::Redis(RedisServer::start(&RedisOptions::new())?),
            _ => Self::Etcd(EtcdServer::start(&EtcdOptions::new())?),
        })
    }

    fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Etcd(server) => server.url(),
        }
    }

    fn port(&self) -> u16 {
        match self {
            Self::Redis(server) => server.port(),
            Self::Etcd(server) => server.port(),
        }
    }

    fn pid(&self) -> u32 {
        match self {
            Self::Redis(server) => server.pid(),
            Self::Etcd(server) => server.pid(),
        }
    }
}

/// A load: whose locks, how many, and how many of them one renewal keeps.
struct Case {
    name: &'static str,
    store: &'static str,
    api: Api,
    connections: usize,
    locks: usize,
    /// Whether other instances may grant in the same sessions.
    is_shared: bool,
}

impl Case {
    fn title(&self) -> String {
        format!("{}: {} locks on {}", self.name, self.locks, self.store)
    }

    /// The locks that a renewal keeps.
    fn each(&self) -> usize {
        match self.api {
            Api::Latchwork | Api::Gateway => 1,
            Api::Sessions | Api::Marked | Api::Leases => self.locks / self.connections,
        }
    }
}

const fn case(
    name: &'static str,
    store: &'static str,
    api: Api,
    numbers: [usize; 2],
    is_shared: bool,
) -> Case {
    let [connections, locks] = numbers;
    Case { name, store, api, connections, locks, is_shared }
}

const TICKETS: &str = "tickets";
const SESSIONS: &str = "sessions";
const SHARED: &str = "sessions, a seal key";
const MARKED: &str = "sessions, a seal key, marks";

/// A thousand locks by each renewal, and many sessions of fifty. `LATCHWORK_SESSION_CASES=6,7` measures some of them.
const CASES: [Case; 12] = [
    case(TICKETS, "Redis", Api::Latchwork, [1_000, 10_000], false),
    case(SESSIONS, "Redis", Api::Sessions, [10, 10_000], false),
    case(SHARED, "Redis", Api::Sessions, [10, 10_000], true),
    case(TICKETS, "etcd", Api::Latchwork, [1_000, 10_000], false),
    case(SESSIONS, "etcd", Api::Sessions, [10, 10_000], false),
    case(SHARED, "etcd", Api::Sessions, [10, 10_000], true),
    case(SESSIONS, "Redis", Api::Sessions, [1_000, 50_000], false),
    case(SHARED, "Redis", Api::Sessions, [1_000, 50_000], true),
    case(MARKED, "Redis", Api::Marked, [1_000, 50_000], true),
    case(SESSIONS, "etcd", Api::Sessions, [1_000, 50_000], false),
    case(MARKED, "etcd", Api::Marked, [1_000, 50_000], true),
    case("leases of etcd's gateway", "etcd", Api::Leases, [1_000, 50_000], false),
];

pub(crate) fn run() -> Outcome {
    let ttl = Duration::from_secs(15);
    println!("A ttl of {} s, renewed every {} s:\n", ttl.as_secs(), ttl.as_secs() / 3);
    head(&[
        "what",
        "by each renewal",
        "taken a second",
        "locks renewed a second",
        "the same for each core of the service",
        "renewal p50",
        "renewal p99",
        "failed",
        "resident memory by each lock, with its connection",
        "the service's CPU",
        "the store's CPU",
    ]);
    let part = shortened(1, 10);
    let chosen = std::env::var("LATCHWORK_SESSION_CASES").ok();
    for (number, case) in CASES.iter().enumerate() {
        if chosen.as_ref().is_some_and(|it| !it.split(',').any(|it| it == number.to_string())) {
            continue;
        }
        let case = Case { connections: case.connections / part, locks: case.locks / part, ..*case };
        let scene = Scene { connections: case.connections, locks: case.locks, waiters: 0, ttl };
        if let Err(error) = measure(&case, &scene) {
            eprintln!("{}: {error}", case.title());
            let mut cells = vec!["does not stand".to_owned(); 11];
            cells[0] = case.title();
            row(&cells);
        }
    }
    Ok(())
}

fn measure(case: &Case, scene: &Scene) -> Outcome {
    let server = Server::start(case.store)?;
    let folder = Folder::new()?;
    let key = folder.path().join("seal.key");
    fs::write(&key, "5".repeat(64))?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    let key = key.to_str().ok_or("a path of UTF-8")?;
    let more = ["--max-holds", MOST, "--seal-key-file", key];
    let more = if case.is_shared { &more[..] } else { &more[..2] };
    let service = match case.api {
        Api::Latchwork | Api::Sessions | Api::Marked => Some(Service::with(&server.url(), more)?),
        Api::Gateway | Api::Leases => None,
    };
    let port = service.as_ref().map_or(server.port(), Service::port);
    let mut load = Load::start(case.api, port, scene)?;
    let memory = || service.as_ref().map_or(Ok(f64::NAN), Service::memory);
    let connected = memory()?;
    let took = load.order("take")?;
    // The first renewals are of locks that were taken at different times.
    std::thread::sleep(scene.ttl / 3);
    let held = memory()?;
    load.numbers()?;
    let times = || {
        let of_server = processor_time(server.pid());
        (service.as_ref().map_or(f64::NAN, Service::processor_time), of_server)
    };
    let before = times();
    std::thread::sleep(WATCHED);
    let after = times();
    let seen = load.numbers()?;
    let seconds = WATCHED.as_secs_f64();
    let renewed = seen.renewed * case.each() as f64 / seconds;
    let (cores, store) = ((after.0 - before.0) / seconds, (after.1 - before.1) / seconds);
    let hold = (held - connected) / case.locks as f64;
    let or_none = |is_there: bool, text: String| if is_there { text } else { "-".into() };
    row(&[
        case.title(),
        case.each().to_string(),
        format!("{:.0}", case.locks as f64 / took),
        format!("{renewed:.0}"),
        or_none(service.is_some(), format!("{:.0}", renewed / cores)),
        micros(seen.times.quantile(0.5)),
        micros(seen.times.quantile(0.99)),
        format!("{:.0}", seen.failed),
        or_none(service.is_some(), kilobytes(hold)),
        or_none(service.is_some(), format!("{:.1} % of one core", cores * 100.0)),
        format!("{:.1} % of one core", store * 100.0),
    ]);
    if let Some(service) = &service
        && service.warnings() > 0
    {
        eprintln!("{}: {} warnings", case.title(), service.warnings());
    }
    Ok(())
}
