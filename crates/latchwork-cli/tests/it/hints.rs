//! Commands that messages name: pasted into another shell, they find the lock that the message is about.

use std::fs;

use latchwork_services::{RedisOptions, RedisServer};

use crate::common::{Finished, Holder, Running, Store};

/// Names that a shell would change, or take for an option.
const NAMES: [&str; 6] = ["nightly", "a b", "it's", "-rf", "$HOME%`id`\\", "two\nlines"];

/// Each way to name a store, with what a shell needs to read its URL.
fn stores(store: &Store, url: &str) -> [Vec<String>; 3] {
    let file = store.file("locks url");
    fs::write(&file, url).unwrap();
    let words = |words: [&str; 2]| words.map(str::to_owned).to_vec();
    [
        words(["--store", url]),
        words(["--store-file", file.to_str().unwrap()]),
        words(["--store-command", &format!("echo '{url}'")]),
    ]
}

/// Runs a command without a store in its environment, at a home of its own.
fn alone(store: &Store, mut command: std::process::Command) -> Finished {
    command.env_remove("LATCHWORK_STORE").env("HOME", store.file("home"));
    command.env_remove("XDG_STATE_HOME").env_remove("XDG_CONFIG_HOME");
    Running::start(command).finish()
}

fn latchwork(store: &Store, at: &[String], words: &[&str]) -> Finished {
    let at = at.iter().map(String::as_str);
    alone(store, store.latchwork(&at.chain(words.iter().copied()).collect::<Vec<_>>()))
}

/// The last command that a text names.
fn hint(text: &str) -> &str {
    let (_, line) = text.rsplit_once("`latchwork ").unwrap_or_else(|| panic!("no command: {text}"));
    let line = line.trim_end_matches('\n');
    // Behind the command is a sentence, or nothing.
    let end = line.rfind("` with this").or_else(|| line.rfind('`')).unwrap();
    &line[..end]
}

/// Pastes it into another shell.
fn pasted(store: &Store, hint: &str) -> Finished {
    let mut command = store.script(&format!("latchwork {hint}"));
    command.env("PATH", crate::hold::path());
    alone(store, command)
}

/// H330: without the store of the command that prints it, a hint asks the default store, where the lock is free.
fn hints_find_the_lock(store: &Store, at: &[String], names: &[&str]) {
    for name in names {
        let words =
            ["run", "--ttl", "3s", "--", name, "--", "sh", "-c", "echo up; sleep 300; echo"];
        let mut holder =
            store.latchwork(&at.iter().map(String::as_str).chain(words).collect::<Vec<_>>());
        holder.env_remove("LATCHWORK_STORE");
        let holder = Running::start(holder);
        holder.stdout.until("up");
        for wait in ["0", "200ms"] {
            let busy = latchwork(store, at, &["run", "--wait", wait, "--", name, "--", "true"]);
            assert_eq!(busy.code(), 75, "{busy:?}");
            let shown = pasted(store, hint(&busy.stderr));
            assert!(shown.stdout.contains(": held (a mutex)"), "{busy:?}: {shown:?}");
        }
        let reset = latchwork(store, at, &["once", "--reset", "--", name]);
        assert_eq!(reset.code(), 75, "{reset:?}");
        let shown = pasted(store, hint(&reset.stderr));
        assert!(shown.stdout.contains(": held (a mutex)"), "{reset:?}: {shown:?}");
        let foreign = latchwork(store, at, &["release", "--", name]);
        assert_eq!(foreign.code(), 64, "{foreign:?}");
        let released = pasted(store, hint(&foreign.stderr));
        assert!(released.stdout.contains(": taken away from "), "{foreign:?}: {released:?}");
        assert_eq!(holder.finish().code(), 73);
        let once = ["once", "--every", "1d", "--", name, "--", "true"];
        assert_eq!(latchwork(store, at, &once).code(), 0, "{name:?}");
        for words in [
            &["run", "--wait", "0", "--", name, "--", "true"][..],
            &["run", "--wait", "200ms", "--", name, "--", "true"],
            &["release", "--force", "--", name],
        ] {
            let closed = latchwork(store, at, words);
            let said = format!("{}{}", closed.stderr, closed.stdout);
            let opened = pasted(store, hint(&said));
            assert!(opened.stdout.contains(": was closed for "), "{said}: {opened:?}");
            assert_eq!(latchwork(store, at, &once).code(), 0, "{name:?}");
        }
        assert_eq!(pasted(store, &format!("--json {}", "ls")).stdout, "[]\n", "the default store");
    }
}

#[test]
fn h330_hints_find_the_lock_on_files() {
    let store = Store::new();
    for at in stores(&store, &store.url()) {
        hints_find_the_lock(&store, &at, &NAMES);
        let opened = latchwork(&store, &at, &["once", "--reset", NAMES[0]]);
        assert_eq!(opened.code(), 0, "{opened:?}");
        fs::remove_dir_all(store.path()).unwrap();
    }
}

#[test]
fn h330_hints_find_the_lock_on_redis() {
    let store = Store::new();
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let url = format!("{}?plain=false", server.url());
    hints_find_the_lock(&store, &["--store".to_owned(), url], &NAMES[2..4]);
}

/// A name in a namespace is the whole key in a hint.
#[test]
fn h330_hints_name_the_whole_key_of_a_namespace() {
    let store = Store::new();
    let at = ["--store".to_owned(), store.url(), "--namespace".to_owned(), "shop".to_owned()];
    hints_find_the_lock(&store, &at, &["stock"]);
}

/// No password is in a hint, and none that the environment or a usual place has is repeated.
#[test]
fn h330_hints_have_no_password_and_nothing_that_is_known() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300; echo");
    holder.ready();
    let busy = store.output(&["run", "--wait", "0", "x", "--", "true"]);
    assert_eq!(hint(&busy.stderr), "show x", "{busy:?}");
    let server = RedisServer::start(&RedisOptions::new().requirepass("s3cret")).unwrap();
    let address = format!("redis://:s3cret@127.0.0.1:{}", server.port());
    let at = ["--store".to_owned(), address];
    assert_eq!(latchwork(&store, &at, &["once", "--every", "1d", "x", "--", "true"]).code(), 0);
    let done = latchwork(&store, &at, &["run", "--wait", "0", "x", "--", "true"]);
    assert!(!done.stderr.contains("s3cret"), "{done:?}");
    assert_eq!(
        hint(&done.stderr),
        format!("--store redis://127.0.0.1:{} once --reset x", server.port())
    );
}

/// What `doctor` advises is for the store that it has examined.
#[test]
fn h330_remedies_of_the_doctor_name_its_store() {
    let store = Store::new();
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let at = ["--store".to_owned(), format!("{}?guard=true", server.url())];
    for format in [&["doctor"][..], &["--json", "doctor"]] {
        let found = latchwork(&store, &at, format);
        let (_, rest) =
            found.stdout.split_once("`latchwork ").unwrap_or_else(|| panic!("{found:?}"));
        let line = rest.split('`').next().unwrap();
        let done = pasted(&store, line);
        assert!(line.ends_with("init") && done.stdout.contains("prepared"), "{found:?}: {done:?}");
        server.command(&["FLUSHALL"]).unwrap();
    }
}
