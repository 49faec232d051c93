//! `latchwork serve` under load: what its hop costs, and what each hold of a client takes.

mod api;
mod beside;
mod http;
mod load;
mod probe;
mod service;
mod slow;

use std::time::Duration;

use hyper::Method;
use latchwork::BlockOn;
use tokio::runtime::Builder;

use crate::goals::{Goal, Verdict};
use crate::roles::{Outcome, now};
use crate::stats::{head, median, micros, row, shortened};
use crate::store::redis;
use crate::worker::Worker;

use api::Api;
use probe::Probe;
use service::{Load, SERVICE, Scene, Service, UNTIL_THEY_WAIT, WATCHED, kilobytes};

pub(crate) use beside::{beside_gateway, sessions};
pub(crate) use service::CHILD;
pub(crate) use slow::run as slow_clients;

/// The entry of a started process: `load`, `own` or `probe`, and what each needs.
pub(crate) fn child(args: &[String]) -> Outcome {
    let [what, rest @ ..] = args else { return Err("load, own or probe".into()) };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match what.as_str() {
            "load" => load::run(rest).await,
            "own" => load::own(rest).await,
            _ => probe::run(rest).await,
        }
    })
}

/// What a number is of, the number, and its goals.
#[derive(Default)]
struct Lines(Vec<[String; 3]>);

impl Lines {
    fn push(&mut self, what: &str, number: String) {
        self.0.push([what.into(), number, "-".into()]);
    }

    fn judged(&mut self, what: &str, number: String, verdict: &Verdict) {
        self.0.push([what.into(), number, verdict.to_string()]);
    }
}

pub(crate) fn run() -> Outcome {
    let (scene, server, mut lines) = (Scene::new(), redis()?, Lines::default());
    let url = server.url();
    let service = Service::start(&url, &[])?;
    let bare = service.memory()?;
    lines.push("its memory without a client", kilobytes(bare));
    let mut load = Load::start(Api::Latchwork, service.port(), &scene)?;
    let connected = service.memory()?;
    let took = load.order("take")?;
    let holding = service.memory()?;
    load.order(&format!("wait {}", scene.waiters))?;
    std::thread::sleep(UNTIL_THEY_WAIT);
    let waiting = service.memory()?;
    let each = |more: f64, of: usize| kilobytes(more / of as f64);
    let connection = each(connected - bare, scene.connections);
    lines.push("memory of a connection", connection);
    let hold = (holding - connected) / scene.locks as f64;
    let goal = Goal::below(4.0).unit("kB").judge(hold);
    lines.judged("memory of a hold", kilobytes(hold), &goal);
    let waiter = each(waiting - holding, scene.waiters);
    lines.push("memory of a waiting request, with its connection", waiter);
    lines.push("locks taken a second", format!("{:.0}", scene.locks as f64 / took));
    lists(service.port(), &mut lines)?;
    let failed = renewals(&service, &mut load, &mut lines)?;
    let mut probes = vec![
        Probe::start("the library, beside the service", "library", &url)?,
        Probe::start(SERVICE, Api::Latchwork.word(), &service.port().to_string())?,
    ];
    probe::in_turns(&mut probes)?;
    let library = probes[0].p99();
    // After so many requests there must not be more in memory.
    let grown = service.memory()? - waiting;
    lines.push("it grows by, while all this is measured", kilobytes(grown));
    let failed = failed + load.numbers()?.failed;
    let goal = Goal::at_most(0.0).judge(failed);
    lines.judged("renewals that failed", failed.to_string(), &goal);
    ends(&scene, service, load, &url, &mut lines)?;

    let mut own = vec![Probe::start("the library, beside its own load", "library", &url)?];
    let numbers = [scene.locks, scene.waiters, scene.ttl.as_millis() as usize * 2];
    let [locks, waiters, ttl] = numbers.map(|number| number.to_string());
    let mut worker = Worker::own(&[CHILD, "own", &url, &locks, &waiters, &ttl])?;
    worker.expect("taken")?;
    std::thread::sleep(shortened(UNTIL_THEY_WAIT, UNTIL_THEY_WAIT / 2));
    probe::in_turns(&mut own)?;
    let held = worker.ask("end")?;
    println!("Redis; {}:\n", scene.told());
    own.extend(probes);
    probe::table(&own, library);
    println!("\nThe library's own load is {held} locks of one process, and as many waiters.\n");
    println!("The service with this load:\n");
    head("what | number | goal");
    lines.0.iter().for_each(|line| row(line));
    Ok(())
}

/// How long it takes to list the locks: all of them, and a page.
fn lists(port: u16, lines: &mut Lines) -> Outcome {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    for (what, limit) in
        [("a list of all locks takes", 10_000), ("a first page of 100 of them takes", 100)]
    {
        let path = format!("/v1/locks?prefix=held&limit={limit}");
        let asked = async {
            let mut client = http::Client::connect(port).await?;
            let mut took = Vec::new();
            for _ in 0..5 {
                let start = now();
                client.ask(Method::GET, &path, None, String::new()).await?;
                took.push((now() - start) as f64 / 1e3);
            }
            Outcome::Ok(took)
        };
        lines.push(what, micros(median(&mut runtime.block_on(asked)?)));
    }
    Ok(())
}

/// The processor time of renewals; how many failed.
fn renewals(service: &Service, load: &mut Load, lines: &mut Lines) -> Outcome<f64> {
    // Of the service in cores: with renewals by HTTP, and without.
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
    lines.push("renewals a second", format!("{:.0}", seen.renewed / seconds));
    let quantile = |part| micros(seen.times.quantile(part));
    lines.push("renewal p50, p99", format!("{}, {}", quantile(0.5), quantile(0.99)));
    let shares = format!("{:.1} %; {:.1} % of one core", with * 100.0, without * 100.0);
    lines.push("its processor time; while nobody renews by HTTP", shares);
    let each = (with - without) * seconds * 1e6 / seen.renewed;
    lines.push("its processor time for a renewal", format!("{each:.1} us"));
    let client = (seen.cpu - before) / seen.renewed;
    lines.push("the same of the client", format!("{client:.1} us"));
    Ok(seen.failed)
}

/// What remains when the holds have ended, and how the service stops.
fn ends(scene: &Scene, service: Service, mut load: Load, url: &str, lines: &mut Lines) -> Outcome {
    let before = service.memory()?;
    load.order("withdraw")?;
    load.order("release")?;
    let after = service.memory()?;
    load.order("take")?;
    let again = service.memory()?;
    let each = |more: f64| kilobytes(more / scene.locks as f64);
    lines.push("memory that the end of a hold gives back", each(before - after));
    lines.push("memory of a hold, when as many are taken again", each(again - after));
    lines.push("lines of warnings in its log", service.warnings().to_string());
    let took = service.stop(|| load.order("release").map(drop))?;
    let goal = Goal::at_most(5.0).unit("s").judge(took);
    lines.judged("its stop, clients release at once", format!("{took:.2} s"), &goal);

    let service = Service::start(url, &[])?;
    let mut load = Load::start(Api::Latchwork, service.port(), scene)?;
    load.order("take")?;
    load.order("pause")?;
    let took = service.stop(|| Ok(()))?;
    // All ttls, a hundredth for the clocks, and the releases.
    let goal = Goal::at_most(scene.ttl.as_secs_f64() * 1.01 + 3.0).unit("s").judge(took);
    lines.judged("its stop, clients do nothing", format!("{took:.2} s"), &goal);
    let left = latchwork::connect(url).block_on()?.list("held").block_on()?.len();
    lines.push("locks that are left at the store then", left.to_string());
    Ok(())
}
