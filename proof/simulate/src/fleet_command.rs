//! The command line of a fleet: one load, or growing loads until the store gives way.

use std::time::Duration;

use latchwork_simulate::{Fleet, Load, fleet};

pub(crate) const HELP: &str = "\
Usage: latchwork-simulate fleet [options]

Clients in processes at one store that takes a known time for each request, on a paused clock. Prints what
the fleet asks of the store, how much of the store's time that takes, and what the clients see.

  --clients N       tasks that take a lock now and then (default 100000)
  --processes N     over which they are spread (default 1000)
  --keys N          that they share (default: each has its own)
  --every TIME      from one acquire of a client to its next (default 60s)
  --hold TIME       how long it holds the key (default 20s)
  --ttl TIME        (default 30s)
  --trip TIME       the round trip to the store (default 1ms)
  --cores N         requests that the store works on at a time (default 1)
  --acquire TIME    the store's time for an acquire (default 20us)
  --release TIME    for a release (default 20us)
  --renew TIME      for each renewed claim (default 5us)
  --length TIME     how long is measured, after as long a time to settle (default 60s)
  --grow            doubles the rate of acquires until the store gives way: until an acquire fails, a hold is
                    lost, or 1 % of the acquires take more than a second

Times: 20us, 1.5ms, 30s, 2m.
";

/// The entry of the command.
pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<(), String> {
    let Some((mut plan, grow)) = read(args)? else {
        print!("{HELP}");
        return Ok(());
    };
    println!(
        "| every | acquires a second | renewals a second | requests a second | store busy | p50 | p99 | failed | lost |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    loop {
        let load = fleet(&plan);
        println!("{}", row(&plan, &load));
        // Clients that hold all the time cannot ask more often.
        if !grow || load.gives_way() || plan.every <= plan.hold {
            return Ok(());
        }
        plan.every /= 2;
    }
}

fn row(plan: &Fleet, load: &Load) -> String {
    let Load { acquires, renewals, requests, busy, p50, p99, failed, lost, .. } = load;
    format!(
        "| {:?} | {acquires:.0} | {renewals:.0} | {requests:.0} | {:.1} % | {p50:.1?} | {p99:.1?} | {failed} | {lost} |",
        plan.every,
        busy * 100.0
    )
}

fn read(mut args: impl Iterator<Item = String>) -> Result<Option<(Fleet, bool)>, String> {
    let (mut plan, mut grow) = (Fleet::default(), false);
    while let Some(name) = args.next() {
        match name.as_str() {
            "--help" | "-h" => return Ok(None),
            "--grow" => {
                grow = true;
                continue;
            }
            _ => {}
        }
        let value = args.next().ok_or(format!("fleet: {name} needs a value"))?;
        let number = || match value.replace(['_', ','], "").parse::<usize>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("fleet: {name}: {value:?} is no number above 0")),
        };
        let time = || {
            duration(&value)
                .ok_or(format!("fleet: {name}: {value:?} is no time; 20us, 1.5ms, 30s and 2m are"))
        };
        match name.as_str() {
            "--clients" => plan.clients = number()?,
            "--processes" => plan.processes = number()?,
            "--keys" => plan.keys = number()?,
            "--cores" => plan.cores = number()?,
            "--every" => plan.every = time()?,
            "--hold" => plan.hold = time()?,
            "--ttl" => plan.ttl = time()?,
            "--trip" => plan.trip = time()?,
            "--acquire" => plan.acquire = time()?,
            "--release" => plan.release = time()?,
            "--renew" => plan.renew = time()?,
            "--length" => plan.length = time()?,
            _ => return Err(format!("fleet: no option {name}; see `fleet --help`")),
        }
    }
    Ok(Some((plan, grow)))
}

fn duration(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let number: f64 = text[..end].parse().ok()?;
    let unit = match &text[end..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> impl Iterator<Item = String> {
        text.split_whitespace().map(str::to_owned)
    }

    #[test]
    fn a_fleet_is_read_from_its_command_line() {
        let (plan, grow) =
            read(words("--clients 5,000 --renew 1.5us --grow --every 2m")).unwrap().unwrap();
        assert_eq!((plan.clients, plan.renew, grow), (5_000, Duration::from_nanos(1_500), true));
        assert_eq!(plan.every, Duration::from_secs(120));
        assert_eq!(read(words("--help")), Ok(None));
        for (text, part) in [
            ("--hold 5", "--hold: \"5\""),
            ("--cores 0", "--cores: \"0\""),
            ("--clients", "--clients needs a value"),
            ("--seeds 5", "no option --seeds"),
        ] {
            let error = read(words(text)).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
