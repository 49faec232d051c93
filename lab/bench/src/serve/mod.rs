//! `latchwork serve` under load: what its hop costs, and what each hold of a client takes.

mod api;
mod gateway;
mod http;
mod load;
mod own_load;
mod probe;
mod probes;
mod scene;
mod service;
mod sessions;
mod slow;

use std::process::Command;
use std::time::Duration;

use hyper::Method;
use latchwork::BlockOn;
use latchwork_services::{RedisOptions, RedisServer};
use tokio::runtime::Builder;

use crate::Outcome;
use crate::child::Worker;
use crate::goals::{self, Goal, Verdict};
use crate::roles::now;
use crate::stats::{head, median, micros, row, shortened};

use api::Api;
use probe::Way;
use probes::Probe;
use scene::{Load, Numbers, Scene};
use service::Service;

pub(crate) use gateway::run as beside_gateway;
pub(crate) use sessions::run as sessions;
pub(crate) use slow::run as slow_clients;

/// The most that the p99 of a free acquire by HTTP may be above the library's, in milliseconds.
const HOP: f64 = 1.5;
/// The most memory of a hold, in kilobytes.
const KILOBYTES: f64 = 4.0;
/// How long the processor time of the renewals is watched: two rounds of them.
const WATCHED: Duration = Duration::from_secs(10);
/// Until 200 requests wait.
const UNTIL_THEY_WAIT: Duration = Duration::from_secs(2);

/// The entry of a started process: `load`, `own` or `probe`, and what each needs.
pub(crate) fn child(args: &[String]) -> Outcome {
    let [what, rest @ ..] = args else { return Err("load, own or probe".into()) };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        match what.as_str() {
            "load" => load::run(rest).await,
            "own" => own_load::run(rest).await,
            _ => probe::run(rest).await,
        }
    });
    done.map_err(|error| error.to_string().into())
}

/// What a number is of, the number, and its goals.
type Line = (&'static str, String, Vec<Verdict>);

fn kilobytes(kilobytes: f64) -> String {
    match kilobytes.abs() {
        many if many > 10_000.0 => format!("{:.1} MB", kilobytes / 1e3),
        _ => format!("{kilobytes:.2} kB"),
    }
}

pub(crate) fn run() -> Outcome {
    let scene = Scene::new();
    let server = RedisServer::start(&RedisOptions::new())?;
    let url = server.url();
    let service = Service::start(&url)?;
    let mut lines = vec![("its memory without a client", kilobytes(service.memory()?), Vec::new())];
    let (mut load, holding) = memory(&service, &scene, &mut lines)?;
    lists(service.port(), &mut lines)?;
    let cpu = renewals(&service, &mut load)?;
    let mut probes = vec![
        Probe::start("the library, beside the service", Way::Library, &url)?,
        Probe::start(SERVICE, Way::Http(Api::Latchwork), &service.port().to_string())?,
    ];
    probes::in_turns(&mut probes)?;
    let library = probes::library(&probes);
    // After so many requests there must not be more in memory.
    let grown = service.memory()? - holding;
    lines.push(("it grows by, while all this is measured", kilobytes(grown), Vec::new()));
    cpu.told(&mut load, &mut lines)?;
    ends(&scene, service, load, &url, &mut lines)?;

    let mut own = vec![Probe::start("the library, beside its own load", Way::Library, &url)?];
    let held = own_load(&scene, &url, &mut own)?;
    let most = |name: &str| (name == SERVICE).then(|| Goal::at_most(HOP).unit("ms"));
    println!("Redis; {}:\n", scene.told());
    probes.splice(0..0, own);
    probes.rotate_left(1);
    probes::table(&probes, library, most);
    println!("\nThe library's own load is {held} locks of one process, and as many waiters.\n");
    println!("The service with this load:\n");
    table(lines);
    Ok(())
}

const SERVICE: &str = "the service, by HTTP";

fn table(lines: Vec<Line>) {
    head(&["what", "number", goals::TITLE]);
    for (what, number, verdicts) in lines {
        row(&[what.into(), number, goals::cell(&verdicts)]);
    }
}

/// Opens the connections, takes the locks, and lets requests wait: the memory of each.
fn memory(
    service: &Service,
    scene: &Scene,
    lines: &mut Vec<Line>,
) -> Result<(Load, f64), Box<dyn std::error::Error>> {
    let bare = service.memory()?;
    let mut load = Load::start(Api::Latchwork, service.port(), scene)?;
    let connected = service.memory()?;
    let took = load.order("take")?;
    let holding = service.memory()?;
    load.order(&format!("wait {}", scene.waiters))?;
    std::thread::sleep(UNTIL_THEY_WAIT);
    let waiting = service.memory()?;
    let each = |more: f64, of: usize| more / of as f64;
    let hold = each(holding - connected, scene.locks);
    let most = Goal::below(KILOBYTES).unit("kB");
    lines.push((
        "memory of a connection",
        kilobytes(each(connected - bare, scene.connections)),
        vec![],
    ));
    lines.push(("memory of a hold", kilobytes(hold), vec![most.judge(hold)]));
    lines.push((
        "memory of a waiting request, with its connection",
        kilobytes(each(waiting - holding, scene.waiters)),
        vec![],
    ));
    lines.push(("locks taken a second", format!("{:.0}", scene.locks as f64 / took), vec![]));
    Ok((load, waiting))
}

/// How long it takes to list the locks: all of them, and a page.
fn lists(port: u16, lines: &mut Vec<Line>) -> Outcome {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let ask = async |path: &str| {
        let mut client = http::Client::connect(port).await?;
        let mut took = Vec::new();
        for _ in 0..5 {
            let start = now();
            client.done(Method::GET, path, &[], String::new()).await?;
            took.push((now() - start) as f64 / 1e3);
        }
        http::Result::Ok(micros(median(&mut took)))
    };
    for (what, path) in [
        ("a list of all locks takes", "/v1/locks?prefix=held&limit=10000"),
        ("a first page of 100 of them takes", "/v1/locks?prefix=held&limit=100"),
    ] {
        let took = runtime.block_on(ask(path)).map_err(|error| error.to_string())?;
        lines.push((what, took, vec![]));
    }
    Ok(())
}

/// The processor time of renewals.
struct Renewals {
    seen: Numbers,
    /// Of the service in percent of a core: with renewals by HTTP, and without.
    with: f64,
    without: f64,
    /// Processor time of one, in microseconds: of the service, and of the client.
    each: f64,
    client: f64,
    seconds: f64,
}

fn renewals(service: &Service, load: &mut Load) -> Result<Renewals, Box<dyn std::error::Error>> {
    let share = |length: Duration| {
        let before = service.processor_time();
        std::thread::sleep(length);
        (service.processor_time() - before) / length.as_secs_f64()
    };
    let before = load.numbers()?.cpu;
    let with = share(WATCHED);
    let seen = load.numbers()?;
    load.order("pause")?;
    let settle = load::PAUSE / 8;
    std::thread::sleep(settle);
    let without = share(load::PAUSE - settle * 2);
    load.order("go")?;
    // The renewals that were kept back.
    std::thread::sleep(load::PAUSE * 2);
    let seconds = WATCHED.as_secs_f64();
    Ok(Renewals {
        with: with * 100.0,
        without: without * 100.0,
        each: (with - without) * seconds * 1e6 / seen.renewed,
        client: (seen.cpu - before) / seen.renewed,
        seen,
        seconds,
    })
}

impl Renewals {
    fn told(self, load: &mut Load, lines: &mut Vec<Line>) -> Outcome {
        let Self { seen, with, without, each, client, seconds } = self;
        let failed = seen.failed + load.numbers()?.failed;
        lines.push(("renewals a second", format!("{:.0}", seen.renewed / seconds), vec![]));
        lines.push((
            "renewals that failed",
            failed.to_string(),
            vec![Goal::at_most(0.0).judge(failed)],
        ));
        let quantile = |part| micros(seen.times.quantile(part));
        lines.push(("renewal p50, p99", format!("{}, {}", quantile(0.5), quantile(0.99)), vec![]));
        lines.push((
            "its processor time; while nobody renews by HTTP",
            format!("{with:.1} %; {without:.1} % of one core"),
            vec![],
        ));
        lines.push(("its processor time for a renewal", format!("{each:.1} us"), vec![]));
        lines.push(("the same of the client", format!("{client:.1} us"), vec![]));
        Ok(())
    }
}

/// What remains when the holds have ended, and how the service stops.
fn ends(
    scene: &Scene,
    service: Service,
    mut load: Load,
    url: &str,
    lines: &mut Vec<Line>,
) -> Outcome {
    let before = service.memory()?;
    load.order("withdraw")?;
    load.order("release")?;
    let after = service.memory()?;
    load.order("take")?;
    let again = service.memory()?;
    let each = |more: f64| kilobytes(more / scene.locks as f64);
    lines.push(("memory that the end of a hold gives back", each(before - after), vec![]));
    lines.push(("memory of a hold, when as many are taken again", each(again - after), vec![]));
    lines.push(("lines of warnings in its log", service.warnings().to_string(), vec![]));
    let most = Goal::at_most(5.0).unit("s");
    let took = service.stop(|| load.order("release").map(drop))?;
    lines.push((
        "its stop, clients release at once",
        format!("{took:.2} s"),
        vec![most.judge(took)],
    ));

    let service = Service::start(url)?;
    let mut load = Load::start(Api::Latchwork, service.port(), scene)?;
    load.order("take")?;
    load.order("pause")?;
    let took = service.stop(|| Ok(()))?;
    // All ttls, a hundredth for the clocks, and the releases.
    let most = Goal::at_most(scene.ttl.as_secs_f64() * 1.01 + 3.0).unit("s");
    lines.push(("its stop, clients do nothing", format!("{took:.2} s"), vec![most.judge(took)]));
    let left = latchwork::connect(url).block_on()?.list("held").block_on()?.len();
    lines.push(("locks that are left at the store then", left.to_string(), vec![]));
    Ok(())
}

/// A process that holds as much by the library; how much it still holds in the end.
fn own_load(
    scene: &Scene,
    url: &str,
    probes: &mut [Probe],
) -> Result<String, Box<dyn std::error::Error>> {
    let numbers = [scene.locks, scene.waiters, scene.ttl.as_millis() as usize * 2];
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["child-serve", "own", url]).args(numbers.map(|number| number.to_string()));
    let mut worker = Worker::spawn(&mut command)?;
    match worker.line()?.as_str() {
        "taken" => {}
        other => return Err(format!("{other:?} instead of \"taken\"").into()),
    }
    std::thread::sleep(shortened(UNTIL_THEY_WAIT, UNTIL_THEY_WAIT / 2));
    probes::in_turns(probes)?;
    worker.tell("end")?;
    Ok(worker.line()?)
}
