//! Addresses under which a lock would exclude nobody.

use crate::common::{Finished, Running, Store};

fn at(url: &str, args: &[&str]) -> Finished {
    let store = Store::new();
    let words = [&["--store", url], args].concat();
    Running::start(store.latchwork(&words)).finish()
}

/// Two terminals with `--store mem:` would both run.
#[test]
fn h95_a_command_on_a_store_of_one_process_is_refused() {
    for args in [
        &["run", "x", "--", "echo", "ran"][..],
        &["once", "--every", "1d", "x", "--", "echo", "ran"],
        &["elect", "x", "--", "echo", "ran"],
        &["elect", "--observe", "x"],
        &["ls"],
        &["show", "x"],
        &["release", "x", "--force"],
    ] {
        let done = at("mem:", args);
        assert_eq!((done.code(), &*done.stdout), (64, ""), "{args:?}: {done:?}");
        assert!(done.stderr.contains("excludes no other command"), "{args:?}: {done:?}");
    }
}

/// A directory called `locks?ttl=5s` would have locks of its own.
#[test]
fn h95_a_directory_with_options_is_refused_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/locks?ttl=5s", folder.path().display());
    let done = at(&url, &["run", "x", "--", "echo", "ran"]);
    assert_eq!((done.code(), &*done.stdout), (64, ""), "{done:?}");
    assert!(done.stderr.contains("takes no options"), "{done:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
