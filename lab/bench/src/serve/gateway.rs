//! The service on etcd, beside the locks of etcd's own HTTP gateway.

use latchwork_services::{EtcdOptions, EtcdServer};

use super::api::Api;
use super::probe::Way;
use super::probes::{self, Probe};
use super::scene::{Load, Scene};
use super::service::Service;
use super::{HOP, UNTIL_THEY_WAIT, WATCHED};
use crate::Outcome;
use crate::child::processor_time;
use crate::goals::{self, Goal};
use crate::stats::{head, micros, row};

const SERVICE: &str = "the service, by HTTP";
const GATEWAY: &str = "etcd's gateway, a lease for each lock";

/// What the processes of a row did while the load went on.
struct Row {
    name: &'static str,
    taken: f64,
    renewed: f64,
    failed: f64,
    times: [f64; 2],
    service: f64,
    etcd: f64,
}

pub(crate) fn run() -> Outcome {
    let scene = Scene::new();
    let mut rows = Vec::new();
    let mut probes = {
        let server = EtcdServer::start(&EtcdOptions::new())?;
        let service = Service::start(&server.url())?;
        let mut probes = vec![
            Probe::start("the library, beside the service", Way::Library, &server.url())?,
            Probe::start(SERVICE, Way::Http(Api::Latchwork), &service.port().to_string())?,
        ];
        let port = service.port();
        let row = under_load(
            SERVICE,
            Api::Latchwork,
            port,
            &scene,
            &server,
            Some(&service),
            &mut probes,
        )?;
        rows.push(row);
        probes
    };
    {
        let server = EtcdServer::start(&EtcdOptions::new())?;
        let port = server.port().to_string();
        let mut others = vec![
            Probe::start(GATEWAY, Way::Http(Api::Gateway), &port)?,
            Probe::start("etcd's gateway, one lease of the client", Way::OneLease, &port)?,
        ];
        let api = Api::Gateway;
        rows.push(under_load(GATEWAY, api, server.port(), &scene, &server, None, &mut others)?);
        probes.extend(others);
    }
    println!("etcd; {}:\n", scene.told());
    let most = |name: &str| (name == SERVICE).then(|| Goal::at_most(HOP).unit("ms"));
    probes::table(&probes, probes::library(&probes), most);
    println!("\nThe load itself:\n");
    head(&[
        "what",
        "locks taken a second",
        "renewals a second",
        "failed",
        goals::TITLE,
        "renewal p50",
        "renewal p99",
        "the service's CPU",
        "etcd's CPU",
    ]);
    for Row { name, taken, renewed, failed, times, service, etcd } in rows {
        let verdict = (name == SERVICE).then(|| Goal::at_most(0.0).of("failed").judge(failed));
        row(&[
            name.into(),
            format!("{taken:.0}"),
            format!("{renewed:.0}"),
            failed.to_string(),
            goals::cell(&Vec::from_iter(verdict)),
            micros(times[0]),
            micros(times[1]),
            format!("{service:.1} % of one core"),
            format!("{etcd:.1} % of one core"),
        ]);
    }
    Ok(())
}

fn under_load(
    name: &'static str,
    api: Api,
    port: u16,
    scene: &Scene,
    server: &EtcdServer,
    service: Option<&Service>,
    probes: &mut [Probe],
) -> Result<Row, Box<dyn std::error::Error>> {
    let mut load = Load::start(api, port, scene)?;
    let took = load.order("take")?;
    load.order(&format!("wait {}", scene.waiters))?;
    std::thread::sleep(UNTIL_THEY_WAIT);
    load.numbers()?;
    let times = || {
        let of_server = processor_time(server.pid());
        (service.map_or(f64::NAN, Service::processor_time), of_server)
    };
    let before = times();
    std::thread::sleep(WATCHED);
    let after = times();
    let seen = load.numbers()?;
    probes::in_turns(probes)?;
    let seconds = WATCHED.as_secs_f64();
    Ok(Row {
        name,
        taken: scene.locks as f64 / took,
        renewed: seen.renewed / seconds,
        failed: seen.failed + load.numbers()?.failed,
        times: [seen.times.quantile(0.5), seen.times.quantile(0.99)],
        service: (after.0 - before.0) / seconds * 100.0,
        etcd: (after.1 - before.1) / seconds * 100.0,
    })
}
