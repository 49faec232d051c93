//! All stores side by side: what a lock costs, how fast it changes hands, and how long it stays closed after a crash;
//! near, and over a slow link.

use std::time::Duration;

use crate::bars::{CONTENDED, HANDOFF};
use crate::contest::{PROCESSES, Round, middle, round};
use crate::free::{LENGTH, Runner, in_turns};
use crate::handoffs::{handoffs, takeover};
use crate::peers::{self, ETCD_CONCURRENCY, Kind, LATCHWORK, ZOOKEEPER_CLIENT};
use crate::roles::Outcome;
use crate::side::ON_REDIS;
use crate::stats::{head, median, micros, row, shortened};
use crate::store::{SlowLink, Store, Which, ping, redis};

/// What bytes take at least to pass the slow link, one way.
const DELAY: Duration = Duration::from_micros(2_500);
const CONTESTS: (usize, Duration) = (3, Duration::from_secs(2));
const TTL: Duration = Duration::from_secs(3);
const KILLS: u32 = 9;
const STORES: [Which; 6] =
    [Which::Files, Which::Redis, Which::Redlock, Which::Etcd, Which::ZooKeeper, Which::Postgres];

pub(crate) fn run() -> Outcome {
    let near = STORES.iter().map(|which| which.start()).collect::<Outcome<Vec<_>>>()?;
    let near: Vec<&dyn Store> = near.iter().map(|store| &**store).collect();
    // There is no link to files.
    let far = near[1..].iter().map(|store| SlowLink::new(*store, DELAY));
    let far = far.collect::<Outcome<Vec<_>>>()?;
    let far = far.iter().map(|store| store as &dyn Store);
    let all: Vec<&dyn Store> = near.iter().copied().chain(far).collect();

    let mut runners = Vec::new();
    for store in &all {
        runners.push(Runner::start(&LATCHWORK, *store)?);
    }
    let one = in_turns(&mut runners, 1, LENGTH)?;
    let many = in_turns(&mut runners, 64, LENGTH)?;
    drop(runners);
    let mut contests: Vec<Vec<Round>> = near.iter().map(|_| Vec::new()).collect();
    for _ in 0..shortened(CONTESTS.0, 1) {
        for (store, rounds) in near.iter().zip(&mut contests) {
            rounds.push(round(*store, &LATCHWORK, (PROCESSES, 1), CONTESTS.1)?);
        }
    }
    let mut hands = Vec::new();
    for store in &all {
        store.clear()?;
        hands.push(median(&mut handoffs(&LATCHWORK, &store.address())?));
    }
    for (store, rounds) in near.iter().zip(&contests) {
        CONTENDED.note(store.name(), LATCHWORK.name, middle(rounds, |r| r.handovers));
    }
    // Who is asked twice for a store notes the first: here what is near comes first.
    for (store, middle) in all.iter().zip(&hands) {
        HANDOFF.note(store.name(), LATCHWORK.name, *middle);
    }
    // All at once: nobody has anything to do but to wait.
    let takeovers = std::thread::scope(|scope| {
        let each = |store| move || takeovers(store).map_err(|error| error.to_string());
        let started: Vec<_> = near.iter().map(|store| scope.spawn(each(*store))).collect();
        let ended = started.into_iter().map(|one| one.join().expect("no panic"));
        ended.collect::<Result<Vec<_>, _>>()
    })?;

    let names: Vec<&str> = near.iter().map(|store| store.name()).collect();
    let columns = head(&format!("Latchwork on | {}", names.join(" | ")));
    let line = |title: &str, cells: Vec<String>| {
        let mut line = vec![title.to_string()];
        line.resize(columns - cells.len(), "-".into());
        line.extend(cells);
        row(&line);
    };
    let here = near.len();
    let of_rounds = |cell: fn(&Vec<Round>) -> String| contests.iter().map(cell).collect();
    for (over, part) in [("", 0..here), ("over the link: ", here..all.len())] {
        let cycle = |quantile: f64| {
            one[part.clone()].iter().map(|it| micros(it.cycles.quantile(quantile))).collect()
        };
        line(&format!("{over}free lock, 1 task: median of a cycle"), cycle(0.5));
        line("the same, 99 %", cycle(0.99));
        let rates = many[part.clone()].iter().map(|it| format!("{:.0}", it.rate())).collect();
        line(&format!("{over}free locks, 64 tasks: cycles a second"), rates);
        if over.is_empty() {
            let handovers = of_rounds(|rounds| format!("{:.0}", middle(rounds, |r| r.handovers)));
            line("one key, 8 processes: handovers a second", handovers);
            let fair = of_rounds(|rounds| format!("{:.3}", middle(rounds, |r| r.fair_processes)));
            line("the same, Jain of processes", fair);
            let overlaps = |rounds: &Vec<Round>| rounds.iter().map(|r| r.overlaps).sum::<f64>();
            let overlaps = contests.iter().map(|rounds| overlaps(rounds).to_string()).collect();
            line("the same, two owners at once", overlaps);
        }
        let hands = hands[part].iter().map(|middle| micros(*middle)).collect();
        line(&format!("{over}hand-off, held for 200 ms: median"), hands);
        if over.is_empty() {
            let title = "from SIGKILL of the holder to the next hold, ttl 3 s: median";
            line(title, takeovers.iter().map(|middle| micros(*middle)).collect());
        }
    }
    println!(
        "\nThe link takes {:.1} ms each way and a little more: a PING \
         over it took {:.1} ms in the median, all servers on this machine. Takeovers: {} each, killed \
         at different moments between two renewals.",
        DELAY.as_secs_f64() * 1e3,
        ping(&redis()?, DELAY)?,
        shortened(KILLS, 3),
    );
    Ok(())
}

fn takeovers(store: &dyn Store) -> Outcome<f64> {
    store.clear()?;
    let kills = shortened(KILLS, 3);
    // Renewals come every third of the ttl; this is after the first.
    let waited = (0..kills).map(|n| TTL / 2 + TTL / 3 * n / kills);
    let took = waited.map(|waited| takeover(&LATCHWORK, &store.address(), TTL.as_millis(), waited));
    Ok(median(&mut took.collect::<Outcome<Vec<_>>>()?))
}

/// A free lock over a slow link, beside others: what counts is how often bytes go there and back.
pub(crate) fn slow_link() -> Outcome {
    let others: [(Which, &[Kind]); 3] = [
        (Which::Redis, ON_REDIS),
        (Which::Etcd, &[ETCD_CONCURRENCY]),
        (Which::ZooKeeper, &[ZOOKEEPER_CLIENT, peers::CURATOR, peers::KAZOO]),
    ];
    let length = shortened(LENGTH * 2, LENGTH);
    for (which, others) in others {
        let store = which.start()?;
        let far = SlowLink::new(&*store, DELAY)?;
        let trip = ping(&redis()?, DELAY)?;
        let (kinds, missing) = peers::install(&[&[LATCHWORK], others].concat());
        let mut runners: Vec<_> =
            kinds.iter().map(|kind| Runner::start(kind, &far)).collect::<Outcome<_>>()?;
        let samples = in_turns(&mut runners, 1, length)?;
        println!("{}, one task and a free key:\n", store.name());
        let columns = head(
            "what | cycles a second | cycle p50 | cycle p99 | trips a cycle | latchwork's cycle to it | commands a cycle",
        );
        let ours = samples[0].cycles.quantile(0.5);
        for (kind, seen) in kinds.iter().zip(&samples) {
            let middle = seen.cycles.quantile(0.5);
            row(&[
                kind.name.into(),
                format!("{:.1}", seen.rate()),
                micros(middle),
                micros(seen.cycles.quantile(0.99)),
                format!("{:.1}", middle / 1e3 / trip),
                format!("{:.2}", ours / middle),
                format!("{:.2}", seen.commands()),
            ]);
        }
        peers::missing_rows(&missing, columns);
        println!(
            "\nA trip there and back took {trip:.1} ms in the median (a PING to Redis over such a link).\n"
        );
    }
    Ok(())
}
