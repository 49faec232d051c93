//! Commands under a lock that ask for the same lock.

use crate::common::{Running, Store};

const BINARY: &str = env!("CARGO_BIN_EXE_latchwork");

#[test]
fn a_command_that_would_wait_for_itself_is_refused() {
    let store = Store::new();
    for inner in [
        &["run", "x", "--", "true"][..],
        &["run", "y", "x", "--", "true"],
        &["run", "--read", "x", "--", "true"],
        &["elect", "x", "--", "true"],
        &["once", "--every", "1d", "x", "--", "true"],
    ] {
        let outer = ["run", "x", "--", BINARY];
        let done = store.output(&[&outer[..], inner].concat());
        assert_eq!(done.code(), 64, "{inner:?}: {done:?}");
        assert!(done.stderr.contains("waiting would never end"), "{done:?}");
        // Only `run` has the option.
        assert_eq!(done.stderr.contains("--inherit"), inner[0] == "run", "{done:?}");
    }
}

#[test]
fn an_inner_run_of_another_name_takes_its_lock() {
    let store = Store::new();
    for inner in [&["run", "y", "--", "true"][..], &["--namespace", "n", "run", "x", "--", "true"]]
    {
        let done = store.output(&[&["run", "x", "--", BINARY][..], inner].concat());
        assert_eq!((done.code(), &*done.stderr), (0, ""), "{inner:?}");
    }
    let outer = ["--namespace", "n", "run", "x", "--", BINARY];
    let done = store.output(&[&outer[..], &["run", "x", "--", "true"]].concat());
    assert_eq!(done.code(), 0, "{done:?}");
    let inner = ["--namespace", "n", "run", "x", "--", "true"];
    assert_eq!(store.output(&[&outer[..], &inner].concat()).code(), 64);
}

#[test]
fn permits_that_are_left_are_for_inner_commands() {
    let store = Store::new();
    let permits = |of: &'static str| ["run", "--permits", of, "x", "--"];
    let inner = [&[BINARY][..], &permits("1/2"), &["true"]].concat();
    let done = store.output(&[&permits("1/2")[..], &inner].concat());
    assert_eq!(done.code(), 0, "{done:?}");
    let inner = [&[BINARY][..], &permits("1/1"), &["true"]].concat();
    let done = store.output(&[&permits("1/1")[..], &inner].concat());
    assert_eq!(done.code(), 64, "{done:?}");
    // One of three is left, and two are asked for.
    let innermost = [&[BINARY][..], &permits("2/3"), &["true"]].concat();
    let inner = [&[BINARY][..], &permits("1/3"), &innermost].concat();
    let done = store.output(&[&permits("1/3")[..], &inner].concat());
    assert_eq!(done.code(), 64, "{done:?}");
}

#[test]
fn inherit_runs_under_the_outer_hold_with_its_token() {
    let store = Store::new();
    let script = format!(
        "echo $LATCHWORK_TOKEN; '{BINARY}' run --inherit x -- sh -c 'echo $LATCHWORK_TOKEN; exit 3'"
    );
    let done = store.output(&["run", "x", "--", "sh", "-c", &script]);
    assert_eq!(done.code(), 3, "{done:?}");
    let tokens: Vec<_> = done.stdout.lines().collect();
    assert_eq!(tokens.len(), 2, "{done:?}");
    assert_eq!(tokens[0], tokens[1]);
}

/// A loss ends the whole group, and an inherited command belongs to it.
#[test]
fn an_inherited_command_ends_with_the_outer_hold() {
    let store = Store::new();
    let script =
        format!("'{BINARY}' run --inherit x -- sh -c 'echo inside; sleep 300; echo x'; echo after");
    let outer = store.holder(&["--ttl", "1s"], &script);
    outer.stdout.until("inside");
    assert_eq!(store.output(&["release", "x", "--force"]).code(), 0);
    let done = outer.finish();
    assert_eq!(done.code(), 73, "{done:?}");
    assert!(!done.stdout.contains("after"), "{done:?}");
}

#[test]
fn inherit_takes_the_lock_if_no_outer_command_holds_it() {
    let store = Store::new();
    let args = ["run", "--inherit", "x", "--", BINARY, "status", "x"];
    let done = store.output(&args);
    assert_eq!((done.code(), &*done.stdout), (0, "held\n"));
}

/// The outermost command is noticed through another lock, and by a name with a newline.
#[test]
fn an_outer_hold_is_found_two_levels_up() {
    let store = Store::new();
    for name in ["x", "a\nb"] {
        let outer = ["run", name, "--", BINARY, "run", "y", "--", BINARY];
        let inner = ["run", name, "--", "true"];
        let done = store.output(&[&outer[..], &inner].concat());
        assert_eq!(done.code(), 64, "{done:?}");
        let inner = ["run", "--inherit", name, "--", "echo", "in"];
        let done = store.output(&[&outer[..], &inner].concat());
        assert_eq!((done.code(), &*done.stdout), (0, "in\n"), "{done:?}");
    }
}

/// A writer must not run beside the readers of a lock that the outer command shares with them.
#[test]
fn a_hold_is_inherited_by_smaller_requests_only() {
    let store = Store::new();
    for (outer, inner, code) in [
        (&["--read"][..], &["--read"][..], 0),
        (&["--write"], &["--read"], 0),
        (&["--read"], &["--write"], 64),
        (&["--read"], &[], 64),
        (&["--permits", "2/3"], &["--permits", "1/3"], 0),
        (&["--permits", "1/3"], &["--permits", "3/3"], 64),
        (&["--permits", "1/3"], &["--permits", "1/2"], 64),
    ] {
        let outer_line = [&["run"][..], outer, &["x", "--", BINARY]].concat();
        let inner_line = [&["run", "--inherit"][..], inner, &["x", "--", "true"]].concat();
        let done = store.output(&[outer_line, inner_line].concat());
        assert_eq!(done.code(), code, "{outer:?} {inner:?}: {done:?}");
        let step = "use the same kind in both, and acquire at least as much in the outer command";
        assert_eq!(done.stderr.contains(step), code == 64, "{outer:?} {inner:?}: {done:?}");
    }
}

#[test]
fn some_of_several_locks_cannot_be_inherited() {
    let store = Store::new();
    let inner = ["run", "--inherit", "x", "y", "--", "true"];
    let done = store.output(&[&["run", "x", "--", BINARY][..], &inner].concat());
    assert_eq!(done.code(), 64, "{done:?}");
    let both = store.output(&[&["run", "x", "y", "--", BINARY][..], &inner].concat());
    assert_eq!(both.code(), 0, "{both:?}");
}

/// A daemon that a command left behind has the environment of a hold that is over.
#[test]
fn the_environment_of_an_ended_hold_refuses_nothing() {
    let store = Store::new();
    for options in [&[][..], &["--inherit"]] {
        let args = [&["run"][..], options, &["x", "--", "true"]].concat();
        let mut command = store.latchwork(&args);
        let held = "[{\"key\":\"x\",\"token\":\"1024\",\"holder\":\"me\"}]";
        command.env("LATCHWORK_HELD", held);
        let done = Running::start(command).finish();
        assert_eq!((done.code(), &*done.stderr), (0, ""));
    }
}
