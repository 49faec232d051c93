//! Bad input to every verb and option: a message that names the field and the next step, and nothing lost.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::common::{Finished, Running, Store};

/// Arguments, the exit code, and what the message must contain.
type Row = (&'static [&'static str], i32, &'static [&'static str]);

const TIME: &str = "500ms";

const RUNNERS: &[Row] = &[
    (&["run"], 64, &["<NAME>", "latchwork run"]),
    (&["run", "x"], 64, &["no command to run", "latchwork run NAME -- COMMAND"]),
    (&["run", "", "true"], 64, &["key: the name is empty"]),
    (&["run", "x", "--wait", "soon", "true"], 64, &["--wait", "soon", TIME]),
    (&["run", "x", "--wait", "-1", "true"], 64, &["--wait", "-1", TIME]),
    (&["run", "x", "--wait", "", "true"], 64, &["--wait", TIME]),
    (&["run", "x", "--ttl", "0", "true"], 64, &["--ttl", "at least 1s"]),
    (&["run", "x", "--ttl", "-5s", "true"], 64, &["--ttl", TIME]),
    (&["run", "x", "--ttl", "900d", "true"], 64, &["ttl:", "choose a ttl within the range"]),
    (&["run", "x", "--max-hold", "0", "true"], 64, &["--max-hold", "at least 1s"]),
    (&["run", "x", "--lock-delay", "900d", "true"], 64, &["lock_delay:", "shorter"]),
    (&["run", "x", "--lock-delay", "long", "true"], 64, &["--lock-delay", TIME]),
    (&["run", "x", "--permits", "0/1", "true"], 64, &["--permits", "at least 1"]),
    (&["run", "x", "--permits", "3/2", "true"], 64, &["--permits", "at most all"]),
    (&["run", "x", "--permits", "-1/2", "true"], 64, &["--permits", "2/5"]),
    (
        &["run", "x", "--permits", "1/99999999999", "true"],
        64,
        &["--permits", "out of range", "4294967295"],
    ),
    (&["run", "x", "--wait", "99999999999999999999", "true"], 64, &["--wait", "too long", "30d"]),
    (
        &["run", "a", "b-nowhere", "./job"],
        127,
        &["b-nowhere", "name of another lock", "NAME NAME --"],
    ),
    (&["once", "--every", "1d", "x", "--lock-delay", "long", "true"], 64, &["--lock-delay", TIME]),
    (&["run", "x", "--permits", "2", "true"], 64, &["--permits", "2/5"]),
    (&["run", "--read", "--write", "x", "true"], 64, &["--read", "--write"]),
    (&["run", "--read", "--permits", "1/2", "x", "true"], 64, &["--read", "--permits"]),
    (&["run", "-E", "256", "x", "true"], 64, &["--conflict-exit-code", "0 to 255"]),
    (&["run", "-E", "x", "x", "true"], 64, &["--conflict-exit-code", "0 to 255"]),
    (&["run", "-c", "true", "x", "--", "true"], 64, &["-c"]),
    (
        &["run", "x", "true", "-c", "echo"],
        64,
        &["latchwork run NAME -- COMMAND -c", "-c TEXT NAME"],
    ),
    (
        &["once", "--every", "1d", "x", "true", "-c", "echo"],
        64,
        &["latchwork once NAME -- COMMAND"],
    ),
    (&["elect", "x", "true", "-c", "echo"], 64, &["latchwork elect NAME -- COMMAND"]),
    (&["run", "x", "-c", "echo", "--", "true"], 64, &["-c"]),
    (&["run", "x", "x", "--", "true"], 64, &["names: the same lock is named twice"]),
    (&["run", "--waitt", "5", "x", "true"], 64, &["--waitt", "--wait"]),
    (&["run", "-n", "-w", "5", "x", "true"], 64, &["--no-wait", "--wait"]),
    (&["run", "-foo", "--", "true"], 64, &["'-foo'", "'-- -foo'"]),
    (&["run", "--", "true"], 64, &["<NAME>"]),
    (&["run", "x", MISSING], 127, &["{missing}: command not found"]),
    (&["run", "x", "ls -l"], 127, &["command not found", "-c"]),
    (&["run", "x", "/etc/passwd"], 126, &["not executable", "chmod"]),
    (&["run", "x", "/tmp"], 126, &["it is a directory"]),
    (&["once"], 64, &["--every"]),
    (&["once", "x", "true"], 64, &["--every"]),
    (&["once", "--every", "1d", "x"], 64, &["no command to run", "latchwork once"]),
    (&["once", "--every", "0s", "x", "true"], 64, &["every:", "15m"]),
    (&["once", "--every", "-1d", "x", "true"], 64, &["every:", "15m"]),
    (&["once", "--every", "often", "x", "true"], 64, &["every:", "15m"]),
    (&["once", "--every", "1d", "--tz", "Mars", "x", "true"], 64, &["tz:", "Europe/Berlin"]),
    (&["once", "--every", "1d", "--wait", "x", "x", "true"], 64, &["--wait", TIME]),
    (&["once", "--reset", "--every", "1d", "x"], 64, &["--reset", "--every"]),
    (&["once", "--reset", "x", "true"], 64, &["--reset"]),
    (&["once", "--reset"], 64, &["<NAME>"]),
    (&["elect"], 64, &["<NAME>"]),
    (&["elect", "x"], 64, &["no command to run", "latchwork elect"]),
    (&["elect", "--observe", "x", "true"], 64, &["--observe"]),
    (&["elect", "--ttl", "10ms", "x", "true"], 64, &["--ttl", "at least 1s"]),
];

const OTHERS: &[Row] = &[
    (&["hold"], 64, &["<NAME>", "latchwork hold"]),
    (&["hold", ""], 64, &["key: the name is empty"]),
    (&["hold", "--pid", "0", "x"], 64, &["--pid", "number of a process"]),
    (&["hold", "--pid", "-5", "x"], 64, &["--pid", "number of a process"]),
    (&["hold", "--pid", "99999999", "x"], 64, &["--pid", "running"]),
    (&["hold", "--on-loss", "stop", "x"], 64, &["--on-loss", "term"]),
    (&["hold", "--wait", "soon", "x"], 64, &["--wait", TIME]),
    (&["attach"], 64, &["<ID>"]),
    (&["attach", "x"], 64, &["latchwork hold"]),
    (&["attach", "0123456789abcdef0123456789abcdef"], 64, &["<SHELL>"]),
    (&["attach", "0123456789abcdef0123456789abcdef", "x"], 64, &["process", "$$"]),
    (&["attach", "0123456789abcdef0123456789abcdef", "4194305"], 64, &["4194305", "evaluate"]),
    (&["attach", "0123456789abcdef0123456789abcdef", "1"], 73, &["no longer held", "again"]),
    (&["release", "--pid", "0"], 64, &["--pid", "process"]),
    (&["release", "--pid", "1", "--force", "x"], 64, &["--pid", "--force"]),
    (&["release"], 64, &["this shell holds no lock", "--force"]),
    (&["release", "x"], 64, &["\"x\"", "--force"]),
    (&["release", "--force"], 64, &["<NAME>"]),
    (&["resize", "x"], 64, &["<OF>"]),
    (&["resize", "x", "0"], 64, &["how many permits"]),
    (&["resize", "x", "-1"], 64, &["how many permits"]),
    (&["run", "--resize", "to-mine", "x", "--", "true"], 64, &["--permits"]),
    (&["show"], 64, &["<NAME>"]),
    (&["status"], 64, &["<NAME>"]),
    (&["status", "a", "b"], 64, &["'b'", "latchwork status"]),
    (&["ls", "a", "b"], 64, &["'b'", "latchwork ls"]),
    (&["ls", "--watch=0"], 64, &["--watch", "100ms"]),
    (&["ls", "--watch=often"], 64, &["--watch", TIME]),
    (&["doctor", "x"], 64, &["'x'", "latchwork doctor"]),
    (&["init", "x"], 64, &["'x'", "latchwork init"]),
    (&["completions"], 64, &["<SHELL>"]),
    (&["completions", "tcsh"], 64, &["<SHELL>", "bash"]),
    (&["man", "--dir", "/etc/passwd"], 64, &["--dir", "/etc/passwd", "not a directory"]),
    (&["help", "postgers"], 64, &["no verb and no page", "did you mean postgres?", "exit-codes"]),
    (&["man", "./pages"], 64, &["\"./pages\" is no verb", "latchwork man --dir ./pages"]),
    (&["lock", "x"], 64, &["no command to run"]),
    (&["unlock"], 64, &["this shell holds no lock"]),
    (&["acquire", "x"], 64, &["'acquire'", "'run', 'hold'"]),
    (&["rnu", "x", "true"], 64, &["'rnu'", "'run'"]),
    (&["runn", "x", "true"], 64, &["'runn'", "'run'"]),
    (&["--namespace", "a:b", "status", "x"], 64, &["namespace:", "':'"]),
    (&["--token-floor", "x", "ls"], 64, &["--token-floor", "number"]),
    (&["--token-floor", "-1", "ls"], 64, &["--token-floor", "number"]),
    (&["--store", "", "ls"], 64, &["store:", "use one of"]),
    (&["--store", "ftp://h", "ls"], 64, &["store:", "the scheme is unknown", "use one of"]),
    (&["--store", "redis://h:x", "ls"], 64, &["store:", "port"]),
    (
        &["--store", "kubernetes://shop", "ls"],
        64,
        &["the scheme kubernetes:", "did you mean k8s:?"],
    ),
    (&["--store", "127.0.0.1:6379", "ls"], 64, &["no scheme", "did you mean redis://HOST:6379?"]),
    (&["--store", "http://127.0.0.1:2379", "ls"], 64, &["did you mean etcd:?"]),
    (&["--store", "redis://h?gard=true", "ls"], 64, &["store:", "\"gard\"", "guard"]),
    (&["--store", "mem:", "run", "x", "true"], 64, &["mem:", "leave --store out"]),
    (&["--store-file", MISSING, "ls"], 64, &["store file {missing}", "check its name"]),
    (&["--store-file", "/tmp", "ls"], 64, &["store file /tmp", "check its name"]),
    (&["-v", "-q", "ls"], 64, &["--verbose", "--quiet"]),
];

/// Stands for a path in the test's own folder where nothing is.
const MISSING: &str = "{missing}";

fn output(store: &Store, args: &[&str]) -> Finished {
    let mut command = store.latchwork(args);
    command.env_remove("LATCHWORK_HELD");
    Running::start(command).finish()
}

fn check(rows: &[Row]) {
    let store = Store::new();
    // A lock, and a task that is done, stay as they are.
    assert_eq!(output(&store, &["once", "--every", "1d", "kept", "--", "true"]).code(), 0);
    let before = listed(&store);
    let missing = store.file("missing").display().to_string();
    for (args, code, parts) in rows {
        let args = &args.iter().map(|arg| arg.replace(MISSING, &missing)).collect::<Vec<_>>();
        let args = &args.iter().map(String::as_str).collect::<Vec<_>>()[..];
        let done = output(&store, args);
        assert_eq!(done.code(), *code, "{args:?}: {done:?}");
        for part in *parts {
            let part = &*part.replace(MISSING, &missing);
            assert!(done.stderr.contains(part), "{args:?} says no {part:?}: {done:?}");
        }
        assert_eq!(listed(&store), before, "{args:?}");
        // For programs: one line, with the same code.
        let json = output(&store, &[&["--json"], args].concat());
        assert_eq!(json.code(), *code, "{args:?}: {json:?}");
        let lines: Vec<_> = json.stderr.lines().collect();
        assert!(!lines.is_empty(), "{args:?}: {json:?}");
        assert!(lines.iter().all(|line| line.starts_with('{')), "{args:?}: {json:?}");
    }
}

/// All locks of the store, and all files beside it.
fn listed(store: &Store) -> (String, usize) {
    let locks = output(store, &["status", "kept"]).stdout;
    (locks, fs::read_dir(store.file(".")).unwrap().count())
}

#[test]
fn bad_input_to_run_once_and_elect_is_named() {
    check(RUNNERS);
}

#[test]
fn bad_input_to_other_verbs_is_named() {
    check(OTHERS);
}

/// For programs and their logs: what may have been meant, and how the command is written.
#[test]
fn json_errors_of_the_command_line_carry_the_tip() {
    let store = Store::new();
    for (args, parts) in [
        (
            &["runn", "x"][..],
            ["unrecognized subcommand 'runn'; tip: ", "'run'", "; Usage: latchwork"],
        ),
        (
            &["run", "--waitt", "5", "x"],
            ["'--waitt' found; tip: ", "'--wait'", "; Usage: latchwork run"],
        ),
        (
            &["completions", "tcsh"],
            ["[possible values: bash", "; tip: ", "; for more information, try --help"],
        ),
    ] {
        let done = output(&store, &[&["--json"], args].concat());
        let value: serde_json::Value = serde_json::from_str(&done.stderr).unwrap();
        let message = value["error"]["message"].as_str().unwrap();
        for part in parts {
            assert!(message.contains(part), "{part:?} in {message:?}");
        }
    }
}

/// Bytes that are no text cannot be a key.
#[test]
fn a_name_that_is_no_text_is_refused() {
    let store = Store::new();
    let mut command = store.latchwork(&["run"]);
    command.arg(OsStr::from_bytes(b"\xff")).args(["--", "true"]);
    let done = Running::start(command).finish();
    assert_eq!(done.code(), 64, "{done:?}");
    assert!(done.stderr.contains("argument 2, \"\\xFF\", is not UTF-8"), "{done:?}");
    let mut command = store.latchwork(&["run", "x", "--holder"]);
    command.arg(OsStr::from_bytes(b"me\xff")).args(["--", "true"]);
    let done = Running::start(command).finish();
    assert!(done.stderr.contains("argument 4, \"me\\xFF\", is not UTF-8"), "{done:?}");
}

/// A home that is no absolute path is set all the same.
#[test]
fn a_home_that_leads_nowhere_is_named() {
    let store = Store::new();
    for (home, part) in [("rel", "HOME is no absolute path"), ("", "HOME is not set")] {
        let mut command = store.latchwork(&["ls"]);
        command.env_remove("LATCHWORK_STORE").env_remove("XDG_STATE_HOME").env("HOME", home);
        let done = Running::start(command).finish();
        assert!(done.code() == 64 && done.stderr.contains(part), "{done:?}");
    }
}

#[test]
fn bad_variables_are_named() {
    let store = Store::new();
    let missing = store.file("missing").display().to_string();
    for (name, value, part) in [
        ("LATCHWORK_WAIT", "soon", TIME),
        ("LATCHWORK_TTL", "1ms", "at least 1s"),
        ("LATCHWORK_TOKEN_FLOOR", "high", "number"),
        ("LATCHWORK_STORE_FILE", &*missing, "check its name"),
        ("LATCHWORK_STORE", "ftp://h", "use one of"),
    ] {
        let mut command = store.latchwork(&["run", "x", "--", "true"]);
        if name == "LATCHWORK_STORE_FILE" {
            command.env_remove("LATCHWORK_STORE");
        }
        command.env(name, value);
        let done = Running::start(command).finish();
        assert_eq!(done.code(), 64, "{name}: {done:?}");
        assert!(done.stderr.contains(part), "{name}: {done:?}");
        if !name.starts_with("LATCHWORK_STORE") {
            let option = name.trim_start_matches("LATCHWORK").to_lowercase().replace('_', "-");
            let step = ["correct or unset ", name, ", or use -", &option].concat();
            assert!(done.stderr.contains(&step), "{name}: {done:?}");
        }
    }
    for (name, step) in [
        ("LATCHWORK_STORE", "write bytes that are not ASCII as %XX"),
        ("LATCHWORK_STORE_COMMAND", "write such a command into a script, and name the script"),
    ] {
        let mut command = store.latchwork(&["ls"]);
        command.env_remove("LATCHWORK_STORE").env(name, OsStr::from_bytes(b"mem:\xff"));
        let done = Running::start(command).finish();
        assert_eq!(done.code(), 64, "{name}: {done:?}");
        assert!(done.stderr.contains(&format!("{name}: not UTF-8; {step}")), "{name}: {done:?}");
    }
    // What another program wrote there is no hold.
    let odd = "[{\"key\":\"x\",\"token\":\"one\",\"holder\":\"me\",\"hold\":\"zz\"}]";
    for held in ["", "x", "{}", "[1]", "[[\"x\"]]", "[{\"key\":\"x\"}]", odd] {
        let mut command = store.latchwork(&["run", "x", "--", "echo", "ran"]);
        command.env("LATCHWORK_HELD", held);
        let done = Running::start(command).finish();
        assert_eq!((&*done.stdout, &*done.stderr), ("ran\n", ""), "{held:?}");
    }
}
