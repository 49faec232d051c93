//! Without the lock too much is sold, with it exactly what there was, and a late
//! write is refused.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use latchwork::{BlockOn, LockManager};
use latchwork_services::program::{Finished, Running, eventually, processes, state};
use latchwork_services::{RedisOptions, RedisServer};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// A folder of its own: for locks, for temporary files, and to tell this test's buyers by.
struct Store(tempfile::TempDir);

impl Store {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn url(&self) -> String {
        format!("file://{}", self.file("locks").display())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// The demo at a store, with a folder for temporary files of its own.
fn demo(store: &Store, url: &str, args: &[&str]) -> Command {
    fs::create_dir_all(temporary(store)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork-demo"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("LATCHWORK_STORE", url).env("TMPDIR", temporary(store));
    command
}

fn connect(url: &str) -> LockManager {
    latchwork::connect(url).block_on().unwrap()
}

fn temporary(store: &Store) -> PathBuf {
    store.file("tmp")
}

const SMALL: [&str; 5] = ["--json", "--buyers", "3", "--stock", "10"];

/// Plays all scenes, and checks what has to come of them on any store.
fn plays(store: &Store, url: &str) -> Value {
    let done = Running::start(demo(store, url, &SMALL)).finish();
    assert_eq!(done.code(), 0, "{done:?}");
    let value: Value = serde_json::from_str(&done.stdout).unwrap();
    let scene = |n: usize| &value["scenes"][n - 1];
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{done:?}"));
    for n in [1, 2] {
        assert!(number(&scene(n)["oversold"]) > 0, "scene {n}: {done:?}");
        assert_eq!(number(&scene(n)["sold"]), 10 + number(&scene(n)["oversold"]));
        assert!(number(&scene(n)["two_at_once"]) > 0, "scene {n}: {done:?}");
    }
    assert!(number(&scene(2)["expired"]) > 0, "{done:?}");
    assert!(number(&scene(2)["freed_by_others"]) > 0, "{done:?}");
    for n in [3, 4] {
        for (field, expected) in [("sold", 10), ("oversold", 0), ("left", 0), ("two_at_once", 0)] {
            assert_eq!(number(&scene(n)[field]), expected, "scene {n}: {done:?}");
        }
        assert_eq!(scene(n)["tokens_rise"], true, "scene {n}: {done:?}");
        assert_eq!(scene(n)["exact"], true, "scene {n}: {done:?}");
    }
    // On a busy machine there may be others.
    let mut refused = scene(4)["refused"].as_array().unwrap().iter();
    let late = refused.find(|late| late["buyer"] == 1).unwrap_or_else(|| panic!("{done:?}"));
    let token = |name: &str| late[name].as_str().unwrap().parse::<u64>().unwrap();
    assert!(token("token") < token("newest"), "{done:?}");
    // It would have undone what the others had sold.
    assert_eq!(number(&late["left"]), 9);
    assert!(number(&late["instead_of"]) <= 5, "{done:?}");
    assert!(number(&scene(4)["lost"]) > 0, "{done:?}");
    assert_eq!(value["exact"], true);
    for n in 1..=4 {
        assert!(done.stderr.contains(&format!("scene {n} of 4")), "{done:?}");
    }
    leaves_nothing(store);
    value
}

fn leaves_nothing(store: &Store) {
    let left: Vec<_> = fs::read_dir(temporary(store)).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(buyers(store), [] as [i32; 0]);
}

/// The buyers of a test's demo that run: they have its environment.
fn buyers(store: &Store) -> Vec<i32> {
    let own = format!("TMPDIR={}\0", temporary(store).display());
    let has = |pid: i32, file: &str, text: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    let is_one = |&pid: &i32| has(pid, "cmdline", "\0__buyer\0") && has(pid, "environ", &own);
    processes().into_iter().filter(is_one).collect()
}

fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "latchwork-demo-*"]).unwrap();
    keys.list().iter().map(|key| key.text()).collect()
}

#[test]
fn on_files() {
    let store = Store::new();
    let value = plays(&store, &store.url());
    assert_eq!(value["buyers_are"], "processes");
    let left = connect(&store.url()).list("").block_on().unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_late_write_is_refused_on_redis_and_no_key_remains() {
    let store = Store::new();
    let server = RedisServer::start(&RedisOptions::new().requirepass("p@ss")).unwrap();
    // What an address may not hold, and an option that is for the locks alone.
    let url = format!("redis://:p%40ss@127.0.0.1:{}/?min_replicas=0", server.port());
    let value = plays(&store, &url);
    assert_eq!(value["buyers_are"], "processes");
    assert!(!value.to_string().contains("p@ss") && !value.to_string().contains("p%40ss"));
    assert!(value["stock_is"].as_str().unwrap().contains("in the same Redis"), "{value}");
    assert_eq!(keys(&server), [] as [&str; 0]);
    // What the articles have is what was asked of the server.
    for used in ["cmdstat_set", "cmdstat_del", "cmdstat_eval"] {
        assert!(server.info(used).unwrap().starts_with("calls="), "{used}");
    }
}

#[test]
fn in_memory_with_tasks() {
    let store = Store::new();
    let value = plays(&store, "mem:");
    assert_eq!(value["buyers_are"], "tasks");
}

#[test]
fn the_demo_prints_a_table_and_a_picture() {
    let store = Store::new();
    let args = ["--buyers", "2", "--stock", "2", "--svg"];
    let mut command = demo(&store, &store.url(), &args);
    command.current_dir(store.file(""));
    let done = Running::start(command).finish();
    assert_eq!(done.code(), 0, "{done:?}");
    for line in ["1 no lock ", "2 SET NX PX, then DEL ", "3 latchwork ", "With latchwork: exact."] {
        assert!(done.stdout.lines().any(|l| l.starts_with(line)), "{line:?}: {done:?}");
    }
    assert!(done.stdout.contains("Buyer 1 was stopped (SIGSTOP)"), "{done:?}");
    assert!(done.stdout.contains("a larger token than the one before"), "{done:?}");
    let svg = fs::read_to_string(store.file("latchwork-stock.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("class=\"two\""), "{svg}");
    assert!(svg.contains("4. latchwork, one buyer stopped, fence: 2 sold of 2"), "{svg}");
}

/// Somebody who holds the lock takes units away in the third scene: not exact, and the exit code
/// says so.
#[test]
fn a_stock_that_is_not_sold_exactly_is_an_error() {
    let (store, server) = (Store::new(), RedisServer::start(&RedisOptions::new()).unwrap());
    let run = Running::start(demo(&store, &server.url(), &SMALL));
    run.stderr.until("scene 3 of 4");
    // Held while the first unit is packed, which takes a second.
    let lock = eventually("a lock", || keys(&server).into_iter().find(|key| !key.contains(':')));
    let guard = connect(&server.url()).mutex(&lock).acquire().block_on().unwrap();
    server.command(&["SET", &format!("{lock}:stock"), "2"]).unwrap();
    guard.release().block_on().unwrap();
    let done = run.finish();
    assert_eq!(done.code(), 70, "{done:?}");
    let value: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(value["exact"], false, "{done:?}");
    assert_eq!(value["scenes"][2]["exact"], false, "{done:?}");
}

fn gone(store: &Store) {
    eventually("the end of the buyers", || buyers(store).is_empty().then_some(()));
}

#[test]
fn ctrl_c_leaves_nothing() {
    let (store, server) = (Store::new(), RedisServer::start(&RedisOptions::new()).unwrap());
    for url in [store.url(), server.url()] {
        let run = Running::start(demo(&store, &url, &SMALL));
        run.stderr.until("scene 2 of 4");
        eventually("buyers", || (buyers(&store).len() == 3).then_some(()));
        run.signal(Signal::INT);
        let Finished { status, .. } = run.finish();
        assert_eq!(status.signal(), Some(2));
        gone(&store);
        leaves_nothing(&store);
        assert_eq!(keys(&server), [] as [&str; 0]);
    }
}

#[test]
fn killing_the_demo_ends_its_buyers() {
    let store = Store::new();
    let args = ["--json", "--buyers", "3", "--stock", "100"];
    let mut run = Running::start(demo(&store, &store.url(), &args));
    run.stderr.until("scene 4 of 4");
    let left = || {
        let folder = fs::read_dir(temporary(&store)).unwrap().next()?.unwrap().path();
        let stock = fs::read_to_string(folder.join("stock")).ok()?;
        // It may be in the middle of being written.
        serde_json::from_str::<Value>(&stock).ok()?["stock"].as_u64()
    };
    let stopped = |pid: &i32| state(Pid::from_raw(*pid).unwrap()) == 'T';
    eventually("sales beside a stopped buyer", || {
        (left().is_some_and(|left| left < 100) && buyers(&store).iter().any(stopped)).then_some(())
    });
    run.signal(Signal::KILL);
    assert_eq!(run.wait().signal(), Some(9));
    gone(&store);
    // A buyer that was killed in the middle of its write leaves a stock that nobody can read.
    assert!(left().is_none_or(|left| left > 0), "they went on until all was sold");
}

#[test]
fn bad_arguments_are_refused_with_the_reason() {
    let store = Store::new();
    for args in [&["--buyers", "1"][..], &["--buyers", "21"], &["--stock", "0"]] {
        let done = Running::start(demo(&store, &store.url(), args)).finish();
        assert_eq!(done.code(), 64, "{args:?}");
    }
    let nowhere = store.file("missing/stock.svg").display().to_string();
    let args = ["--stock", "1", "--svg", &nowhere];
    let done = Running::start(demo(&store, &store.url(), &args)).finish();
    assert_eq!(done.code(), 64, "{done:?}");
    assert!(done.stderr.contains("svg: cannot write"), "{done:?}");
    assert!(done.stdout.contains("With latchwork: exact."), "{done:?}");
}
