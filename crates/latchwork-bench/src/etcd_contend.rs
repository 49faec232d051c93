//! Many processes that want one key on etcd.

use std::time::Duration;

use latchwork_services::{EtcdOptions, EtcdServer};

use crate::Outcome;
use crate::contest::{self, Contest, PROCESSES, Round};
use crate::peers;
use crate::stats::shortened;

const ROUNDS: usize = 5;
const LENGTH: Duration = Duration::from_secs(3);

/// How many times its handovers Latchwork's should be.
fn goal(kind: &str) -> Option<f64> {
    (kind == "etcd-concurrency").then_some(10.0)
}

pub(crate) fn run() -> Outcome {
    let server = EtcdServer::start(&EtcdOptions::new())?;
    let folder = latchwork_services::Folder::new()?;
    let (kinds, missing) =
        peers::install(vec![peers::LATCHWORK, peers::LATCHWORK_HANDOVER, peers::ETCD_CONCURRENCY]);
    for tasks in [1, 8] {
        let url = server.url();
        let contest = Contest {
            url: &url,
            folder: folder.path(),
            processes: PROCESSES,
            tasks,
            length: LENGTH,
        };
        let mut rounds: Vec<Vec<Round>> = kinds.iter().map(|_| Vec::new()).collect();
        for _ in 0..shortened(ROUNDS, 1) {
            for (kind, rounds) in kinds.iter().zip(&mut rounds) {
                rounds.push(contest.run(kind, || requests(&server))?.0);
            }
        }
        println!("{PROCESSES} processes of {tasks} task(s), one key:\n");
        contest::table(&kinds, &missing, &rounds, goal);
    }
    Ok(())
}

/// How many messages clients have sent since the server was started.
pub(crate) fn requests(server: &EtcdServer) -> Result<f64, Box<dyn std::error::Error>> {
    let mut sum = 0.0;
    for service in ["KV", "Lease", "Watch"] {
        let label = format!("grpc_service=\"etcdserverpb.{service}\"");
        sum += server.measure("grpc_server_msg_received_total", &label)?;
    }
    Ok(sum)
}
