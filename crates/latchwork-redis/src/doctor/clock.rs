//! Compares the server's clock with this machine's: its difference and its rate.

use std::time::Duration;

use latchwork_store::doctor::{Finding, Report};
use latchwork_store::{Io, Moment};
use redis::{Value, cmd};

use super::rights::acl;
use super::server::Server;
use crate::config::RedisConfig;
use crate::server::reply::time;

/// The pause between the two samples.
const BETWEEN: Duration = Duration::from_millis(400);
/// The tries for each sample; the one with the shortest round trip counts.
const SAMPLES: u32 = 4;
/// The offset (s) that is accepted: tokens follow the clock after a loss of data.
const TOLERATED: f64 = 1.0;
/// The difference of the rates that the drift covers.
const RATE: f64 = 0.01;

/// One sample: the server's time, and ours half-way.
#[derive(Debug, Clone, Copy)]
struct Sample {
    theirs: Duration,
    wall: Duration,
    boot: Moment,
    trip: Duration,
}

pub(super) async fn examine(server: &Server, config: &RedisConfig, io: &Io) -> Vec<Finding> {
    let Some(first) = sample(server, io).await else {
        return vec![
            Finding::critical("clock", "TIME is refused")
                .consequence("Latchwork's scripts need it")
                .remedy(acl(config, "+time")),
        ];
    };
    io.sleep(BETWEEN).await;
    let Some(last) = sample(server, io).await else { return Vec::new() };
    vec![offset(&last), rate(&first, &last)]
}

async fn sample(server: &Server, io: &Io) -> Option<Sample> {
    let mut best: Option<Sample> = None;
    for _ in 0..SAMPLES {
        let (boot, wall) = (io.now(), io.clock().wall());
        let answer = server.link.send(&cmd("TIME")).await.ok()?;
        let trip = io.now().since(boot);
        let Value::Array(parts) = &answer else { return None };
        let theirs = time(parts.first()?, parts.get(1)?)?;
        let half = trip / 2;
        let one = Sample { theirs, wall: wall + half, boot: boot.plus(half), trip };
        if best.is_none_or(|best| one.trip < best.trip) {
            best = Some(one);
        }
    }
    best
}

fn offset(sample: &Sample) -> Finding {
    let ahead = sample.theirs.as_secs_f64() - sample.wall.as_secs_f64();
    let doubt = sample.trip.as_secs_f64() / 2.0;
    let found = format!("{ahead:+.3} s off this machine's clock (± {doubt:.3} s)");
    if ahead.abs() - doubt <= TOLERATED {
        return Finding::ok("clock", found);
    }
    Finding::warning("clock", found)
        .consequence("after a loss of data or a failover, tokens may go back by that much")
        .remedy("set both clocks with a time service (NTP)")
}

fn rate(first: &Sample, last: &Sample) -> Finding {
    let ours = last.boot.since(first.boot).as_secs_f64();
    let theirs = last.theirs.as_secs_f64() - first.theirs.as_secs_f64();
    let doubt = (first.trip + last.trip).as_secs_f64() / 2.0;
    let found = format!("{theirs:.3} s passed there in {ours:.3} s here");
    if theirs.abs() <= doubt {
        return Finding::critical("clock-rate", found)
            .consequence("the clock does not advance: no lock ever expires")
            .remedy("check the server's clock source (the TSC of a virtual machine)");
    }
    if (theirs - ours).abs() <= ours * RATE + doubt {
        return Finding::ok("clock-rate", found);
    }
    Finding::critical("clock-rate", found)
        .consequence("locks expire earlier than their holders expect, or later than waiters expect")
        .remedy("check the server's clock: it was set just now, or it runs at another rate")
}

/// Whether the servers' clocks agree with one another.
pub(crate) fn spread(report: &Report) -> Option<Finding> {
    let ahead = |finding: &Finding| {
        let first = finding.found.split(' ').next()?;
        first.parse::<f64>().ok()
    };
    let all: Vec<f64> =
        report.findings.iter().filter(|one| one.code == "clock").filter_map(ahead).collect();
    if all.len() < 2 {
        return None;
    }
    let least = all.iter().copied().fold(f64::MAX, f64::min);
    let most = all.iter().copied().fold(f64::MIN, f64::max);
    let found = format!("the servers' clocks are {:.3} s apart", most - least);
    Some(if most - least <= TOLERATED {
        Finding::ok("clock-spread", found)
    } else {
        Finding::warning("clock-spread", found)
            .consequence(
                "a replica whose clock is ahead expires locks early after a failover to it",
            )
            .remedy("set the clocks of all servers with a time service (NTP)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(theirs: f64, ours: u64) -> Sample {
        let ours = Duration::from_millis(ours);
        Sample {
            theirs: Duration::from_secs_f64(theirs),
            wall: ours,
            boot: Moment::from_nanos(ours.as_nanos() as u64),
            trip: Duration::from_millis(2),
        }
    }

    #[test]
    fn a_clock_is_judged_with_the_trip_taken_off() {
        for (theirs, severity) in
            [(100.0, "ok"), (100.9, "ok"), (101.1, "warning"), (95.0, "warning")]
        {
            assert_eq!(offset(&sample(theirs, 100_000)).severity.word(), severity, "{theirs}");
        }
        for (theirs, severity) in [
            (100.400, "ok"),
            (100.405, "ok"),
            (100.0, "critical"),
            (100.44, "critical"),
            (100.36, "critical"),
            (99.0, "critical"),
        ] {
            let found = rate(&sample(100.0, 100_000), &sample(theirs, 100_400));
            assert_eq!(found.severity.word(), severity, "{theirs}: {found:?}");
        }
    }
}
