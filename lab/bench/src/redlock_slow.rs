//! What one stopped server of five costs.

use std::time::Duration;

use crate::Outcome;
use crate::child::Worker;
use crate::goals::{self, Goal};
use crate::peers::{self, Kind};
use crate::redlock_servers::Five;
use crate::stats::{head, median, row, shortened};

const ROUNDS: usize = 5;
const LENGTH: Duration = Duration::from_secs(3);
/// How long a server that goes on has to answer what it was sent meanwhile.
const REST: Duration = Duration::from_millis(500);
/// How many times as long as without the stop.
const MOST: f64 = 1.5;

/// Cycles a second, and the median and 99th percentile of an acquire in microseconds.
#[derive(Default)]
struct Times {
    rate: Vec<f64>,
    mid: Vec<f64>,
    high: Vec<f64>,
    longest: f64,
}

pub(crate) fn run() -> Outcome {
    let (kinds, missing) =
        peers::install(vec![peers::LATCHWORK, peers::RSLOCK, peers::NODE_REDLOCK]);
    println!("One task and a free key, five servers; then one of them is stopped (SIGSTOP):\n");
    head(&[
        "what",
        "servers",
        "acquire, median",
        "99 %",
        "longest",
        "99 % to all healthy",
        goals::TITLE,
        "cycles a second",
    ]);
    for kind in &kinds {
        let (mut healthy, mut stopped) = measure(kind)?;
        let base = median(&mut healthy.high);
        for (name, times) in [("5 healthy", &mut healthy), ("1 stopped", &mut stopped)] {
            let high = median(&mut times.high);
            let goal = match (kind.name, name) {
                ("latchwork", "1 stopped") => Goal::at_most(MOST).judge(high / base).to_string(),
                _ => "-".into(),
            };
            row(&[
                kind.name.into(),
                name.into(),
                format!("{:.0} us", median(&mut times.mid)),
                format!("{high:.0} us"),
                format!("{:.0} us", times.longest),
                format!("{:.2}", high / base),
                goal,
                format!("{:.0}", median(&mut times.rate)),
            ]);
        }
    }
    peers::missing_rows(&missing, 8);
    println!(
        "\nMedians of {} rounds of {} s each. redis-semaphore's RedlockMutex waits for the \
         answer of every server, so it has no row.",
        shortened(ROUNDS, 2),
        shortened(LENGTH, LENGTH / 3).as_secs()
    );
    Ok(())
}

fn measure(kind: &Kind) -> Result<(Times, Times), Box<dyn std::error::Error>> {
    let mut five = Five::start()?;
    let mut worker = kind.start("timed", &five.url, &[])?;
    let (mut healthy, mut stopped) = (Times::default(), Times::default());
    for round in 0..shortened(ROUNDS, 2) {
        sample(&mut worker, &mut healthy)?;
        let server = round % five.servers.len();
        five.servers[server].stop()?;
        sample(&mut worker, &mut stopped)?;
        five.servers[server].cont()?;
        std::thread::sleep(REST);
    }
    Ok((healthy, stopped))
}

fn sample(worker: &mut Worker, times: &mut Times) -> Outcome {
    let length = shortened(LENGTH, LENGTH / 3);
    worker.tell(&length.as_millis().to_string())?;
    let line = worker.line()?;
    let numbers: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [count, mid, high, longest] = numbers[..] else {
        return Err(format!("a process said {line:?}").into());
    };
    times.rate.push(count / length.as_secs_f64());
    times.mid.push(mid);
    times.high.push(high);
    times.longest = times.longest.max(longest);
    Ok(())
}
