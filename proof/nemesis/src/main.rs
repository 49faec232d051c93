//! Runs workers at a store, breaks things meanwhile, and judges what they were told.

#![expect(clippy::print_stdout, reason = "a command for people")]

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use latchwork_nemesis::bounds::Bounds;
use latchwork_nemesis::eye;
use latchwork_nemesis::flags::Flags;
use latchwork_nemesis::foreign::Foreign;
use latchwork_nemesis::lies::Lies;
use latchwork_nemesis::offers;
use latchwork_nemesis::run::{Outcome, Plan};
use latchwork_nemesis::schedule::Schedule;
use latchwork_nemesis::service::{self, Fault};
use latchwork_nemesis::stores::{self, KINDS, Store};
use latchwork_nemesis::worker::{Orders, work};
use latchwork_serve::Listen;
use latchwork_store::random_u128;

const HELP: &str = "\
latchwork-nemesis run --store URL [options]
latchwork-nemesis run --store etcd|zookeeper|postgres|pgbouncer [options]
latchwork-nemesis run --redis single|sentinel|cluster|redlock [options]
latchwork-nemesis judge --folder DIR
latchwork-nemesis judge --folder DIR --store URL [--ttl 2s] [--slow 0ms] [--told 50ms]
latchwork-nemesis lies --folder DIR [--number 7] [--count 3]
latchwork-nemesis stores

  --store URL       file:///DIR, a server's URL, or mem: (with --processes 1)
  --store NAME      starts the servers of such a store for the run, and breaks them
  --redis KIND      the same with Redis servers
  --options TEXT    options of their address: guard=true&max_ttl=2s, min_replicas=2
  --for 60s         length of the run
  --faults LIST     kill,stop,evict; none if not given; all for everything that the store can have.
                    With etcd and zookeeper also cuts,lost-answers,late,partition,strand,member-kill,
                    leader-kill,all-kill,member-stop,leader-stop,silence,slow-members,member-wipe,
                    delete; postgres and pgbouncer: cuts,lost-answers,late,partition,strand,crash,
                    restart,freeze,terminate,truncate,delete, and failover,split or bouncer-kill.
                    With --redis single cuts,lost-answers,
                    late-answers,lost-messages,flush-scripts,freeze,restart,lose-data,old-data,
                    flush-all; sentinel: failover,hang,split; cluster: node-loss,node-hang,split;
                    redlock: cuts,late-answers,partition,freeze,freeze-most,restart,lose-data,old-data
  --fault 5s        length of a fault window
  --calm 5s         length of the calm before each
  --together 1      how many faults at most happen in one window, drawn by the seed
  --ttl 2s          ttl of all locks
  --longest 2       the longest hold, in ttls
  --processes 3     worker processes
  --tasks 10        tasks in each; of every twelve, three are on the hot keys
  --keys 1          keys of each kind: hot, long, fair, read and write, permits, several, entered
  --service LIST    the workers speak HTTP to a service, which is broken so: service-kill,service-stop,
                    service-restart,service-cut,service-lost-answers; calm for none of these
  --instances 1     of the service, with one key; one of them at a time is broken
  --frozen-clock true
                    the clocks of workers stand still while they are stopped
  --foreign NAME    one process more, with the locks of another client: kazoo or curator at ZooKeeper,
                    go-concurrency at etcd, redis-py and redsync at Redis, redsync at redlock, too,
                    python (the package of this repository) at all
  --slow 0ms        holds back answers of a file store for up to this long
  --seed N          what all random choices come from; drawn if not given
  --folder DIR      where the logs go; a new one below the temp directory if not given

stores prints what a soak runs: a line for each store, with the words of its `run`.

judge checks the history that a run has left in DIR, by what the run was judged by (terms.txt in DIR).
With a URL, it knows only the kind of the store.

lies writes corrupted copies of that history, one for each kind of lie, and gives them to proof/eye.
Exits 1 if it accepts a copy. The number chooses the places.
With a count, it tells so many lies, drawn by the number.

run, judge and lies need python3: proof/eye judges. It prints what each rule examined and found. Exits 1
if one of them is violated, or had nothing to examine where the run should have given it something.
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next();
    let flags = Flags::read(args);
    let done = match command.as_deref() {
        Some("run") => flags.map_err(Into::into).and_then(run),
        Some("serve") => flags.map_err(Into::into).and_then(serve),
        Some("stores") => {
            print!("{}", offers::lines());
            Ok(true)
        }
        Some("judge") => flags.map_err(Into::into).and_then(judge),
        Some("lies") => flags.map_err(Into::into).and_then(lies),
        Some("worker") => {
            flags.and_then(Orders::read).map_err(Into::into).and_then(work).map(|()| true)
        }
        _ => {
            print!("{HELP}");
            Ok(matches!(command.as_deref(), Some("help" | "--help" | "-h")))
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("latchwork-nemesis: {error}");
            ExitCode::from(2)
        }
    }
}

fn serve(mut flags: Flags) -> Result<bool, Box<dyn Error>> {
    let (store, namespace) = (flags.needed("store")?, flags.needed("namespace")?);
    let listen =
        [flags.needed("listen")?, flags.needed("admin")?].map(|text| text.parse::<Listen>());
    let listen = listen.into_iter().collect::<Result<_, _>>()?;
    let key = flags.text("seal-key-file").filter(|file| file != "none");
    flags.done()?;
    service::serve(&store, &namespace, listen, key.map(Into::into))?;
    Ok(true)
}

fn judge(mut flags: Flags) -> Result<bool, Box<dyn Error>> {
    let folder = PathBuf::from(flags.needed("folder")?);
    let terms = match flags.text("store") {
        None => eye::terms(&folder)?,
        Some(store) => {
            let mut bounds =
                Bounds::of_store(&store, flags.duration("ttl", Duration::from_secs(2))?);
            bounds.travel = flags.duration("slow", bounds.travel)?;
            bounds.told = flags.duration("told", bounds.told)?;
            bounds.words()
        }
    };
    flags.done()?;
    let outcome = Outcome::judge(folder, terms)?;
    print!("{outcome}");
    Ok(outcome.passed())
}

fn lies(mut flags: Flags) -> Result<bool, Box<dyn Error>> {
    let folder = PathBuf::from(flags.needed("folder")?);
    let number = flags.parsed("number", 7)?;
    let count = flags.text("count").map(|count| count.parse()).transpose()?;
    flags.done()?;
    let terms = eye::terms(&folder)?;
    let outcome = Outcome::judge(folder, terms)?;
    if !outcome.passed() {
        print!("{outcome}");
        return Ok(false);
    }
    let lies = Lies::tell(&outcome, number, count)?;
    print!("{lies}");
    Ok(lies.unseen.is_empty())
}

fn run(mut flags: Flags) -> Result<bool, Box<dyn Error>> {
    let options = flags.text("options");
    let kind = match flags.text("redis") {
        Some(kind) => Some(kind),
        None => flags.text("store"),
    };
    let kind = kind.ok_or("--store is missing")?;
    let is_url = kind.contains(':');
    if is_url && options.is_some() {
        return Err(format!("--options is for --redis and --store {}", KINDS.join("|")).into());
    }
    let servers: Option<Box<dyn Store>> = match is_url {
        true => None,
        false => Some(stores::start(&kind, options.as_deref().unwrap_or_default())?),
    };
    let store = servers.as_ref().map_or(kind, |servers| servers.url());
    let seed = flags.parsed("seed", random_u128() as u64)?;
    let folder = flags.text("folder").map_or_else(
        || std::env::temp_dir().join(format!("latchwork-nemesis-{}", std::process::id())),
        PathBuf::from,
    );
    fs::create_dir_all(&folder)?;
    if fs::read_dir(&folder)?.next().is_some() {
        return Err(format!("--folder: {} is not empty", folder.display()).into());
    }
    let mut plan = Plan::new(&store, std::env::current_exe()?, folder);
    plan.seed = seed;
    plan.processes = flags.parsed("processes", plan.processes)?;
    plan.tasks = flags.parsed("tasks", plan.tasks)?;
    plan.keys = flags.parsed("keys", plan.keys)?;
    plan.longest = flags.parsed("longest", plan.longest)?;
    plan.frozen_clock = flags.parsed("frozen-clock", false)?;
    plan.slow = flags.duration("slow", plan.slow)?;
    if let Some(name) = flags.text("foreign") {
        let foreign = Foreign::named(&name, &store).map_err(|why| format!("--foreign: {why}"))?;
        plan.foreign = Some(foreign);
    }
    let usual = Schedule::default();
    plan.schedule = Schedule {
        length: flags.duration("for", usual.length)?,
        fault: flags.duration("fault", usual.fault)?,
        calm: flags.duration("calm", usual.calm)?,
        together: flags.parsed("together", usual.together)?,
    };
    let faults = flags.text("faults").unwrap_or_default();
    let faults: Vec<&str> = match &servers {
        Some(servers) if faults == "all" => stores::draw(servers.as_ref(), seed, usize::MAX),
        _ => faults.split(',').filter(|name| !name.is_empty()).collect(),
    };
    let ttl = flags.duration("ttl", plan.ttl)?;
    let (service, instances) = (flags.text("service"), flags.parsed("instances", 1)?);
    flags.done()?;
    if ttl < Duration::from_millis(100) {
        return Err("--ttl: at least 100ms, or scheduling alone breaks the bounds".into());
    }
    let mut plan = plan.ttl(ttl);
    match &servers {
        Some(servers) => servers.arm(&mut plan, &faults)?,
        None => plan.faults = faults.iter().map(|f| f.parse()).collect::<Result<_, _>>()?,
    }
    if let Some(names) = service {
        let named =
            |name| Fault::named(name).ok_or_else(|| format!("--service: {name:?} is unknown"));
        let faults = names.split(',').filter(|name| *name != "calm").map(named);
        plan = plan.serve_by(instances, &faults.collect::<Result<Vec<_>, _>>()?)?;
        if instances > 1 {
            // Their clients may lose nothing at all.
            plan.bounds.without.push("told");
        }
    }
    println!("seed {seed}, logs in {}", plan.folder.display());
    let (began, folder) = (latchwork_store::clock::boot_time(), plan.folder.clone());
    let outcome = plan.run(&mut |what| {
        let since = latchwork_store::clock::boot_time().since(began);
        println!("{:>7.1} s  {what}", since.as_secs_f64());
    });
    if let Some(servers) = servers.filter(|_| !outcome.as_ref().is_ok_and(Outcome::passed)) {
        servers.keep_logs(&folder)?;
    }
    let outcome = outcome?;
    print!("{outcome}");
    println!("logs in {}", outcome.folder.display());
    Ok(outcome.passed())
}
