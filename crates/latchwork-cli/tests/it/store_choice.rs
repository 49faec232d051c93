//! Which store a command uses, and who can read its password.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use latchwork_services::{RedisOptions, RedisServer};

use crate::common::{Finished, Holder, Running, Store};

const PASSWORD: &str = "s3cret";

/// A server that asks for a password, and its address with it.
fn server() -> (RedisServer, String) {
    let server = RedisServer::start(&RedisOptions::new().requirepass(PASSWORD)).unwrap();
    let address = format!("redis://:{PASSWORD}@127.0.0.1:{}", server.port());
    (server, address)
}

/// `latchwork` without any store in its environment, at home in the test's own folder.
fn homeless(store: &Store, args: &[&str]) -> Command {
    let mut command = store.latchwork(args);
    command.env_remove("LATCHWORK_STORE").env("HOME", store.file("home"));
    command.env_remove("XDG_STATE_HOME").env_remove("XDG_CONFIG_HOME").env_remove("SUDO_USER");
    command
}

/// Runs such a command to its end.
fn homeless_output(store: &Store, args: &[&str]) -> Finished {
    Running::start(homeless(store, args)).finish()
}

/// Writes a store file that only its owner may read.
fn store_file(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// The store that `latchwork -v ls` names.
fn named(mut command: Command) -> String {
    command.args(["-v", "ls"]);
    let done = Running::start(command).finish();
    assert_eq!(done.code(), 0, "{done:?}");
    let line = done.stderr.lines().find(|line| line.starts_with("latchwork: store: "));
    line.unwrap_or_else(|| panic!("{done:?}"))["latchwork: store: ".len()..].to_owned()
}

#[test]
fn the_first_that_is_named_is_the_store() {
    let store = Store::new();
    let address = |name: &str| format!("file://{}", store.file(name).display());
    let usual = store.file("home/.config/latchwork/store");
    let other = store.file("other");
    assert_eq!(
        named(homeless(&store, &[])),
        format!("{} (the default)", address("home/.local/state/latchwork"))
    );
    store_file(&usual, &format!("# ours\n{}\n", address("usual")));
    assert_eq!(named(homeless(&store, &[])), format!("{} ({})", address("usual"), usual.display()));
    store_file(&other, &address("by-file"));
    let with_file = || {
        let mut command = homeless(&store, &[]);
        command.env("LATCHWORK_STORE_FILE", &other);
        command
    };
    assert_eq!(named(with_file()), format!("{} ({})", address("by-file"), other.display()));
    let with_variable = || {
        let mut command = with_file();
        command.env("LATCHWORK_STORE", address("by-variable"));
        command
    };
    assert_eq!(named(with_variable()), format!("{} (LATCHWORK_STORE)", address("by-variable")));
    let mut command = with_variable();
    command.args(["--store-file", other.to_str().unwrap()]);
    assert_eq!(named(command), format!("{} ({})", address("by-file"), other.display()));
    let mut command = with_variable();
    command.args(["--store", &address("by-option")]);
    assert_eq!(named(command), format!("{} (--store)", address("by-option")));
    // White space at its ends is left out, as in a file.
    let mut command = with_file();
    command.env("LATCHWORK_STORE", format!(" {}\r\n", address("by-variable")));
    assert_eq!(named(command), format!("{} (LATCHWORK_STORE)", address("by-variable")));
}

/// H280: whoever set the variable meant another store than the default one, whose locks exclude nobody there.
#[test]
fn h280_an_empty_variable_is_refused() {
    let store = Store::new();
    for (name, value) in
        [("LATCHWORK_STORE", ""), ("LATCHWORK_STORE", " \n"), ("LATCHWORK_STORE_FILE", "")]
    {
        let mut command = homeless(&store, &["run", "x", "--", "true"]);
        let done = Running::start({
            command.env(name, value);
            command
        })
        .finish();
        assert_eq!(done.code(), 64, "{done:?}");
        assert!(done.stderr.contains(&format!("{name}: it is set, and empty")), "{done:?}");
        assert!(done.stderr.contains("or unset it"), "{done:?}");
        assert!(!store.file("home/.local/state/latchwork").exists(), "the default is not used");
    }
    let mut command = homeless(&store, &["--store", &store.url(), "run", "x", "--", "true"]);
    command.env("LATCHWORK_STORE", "");
    assert_eq!(Running::start(command).finish().code(), 0, "it is not asked");
}

/// H331: where no store is named, as in a crontab without the variable, each user of each host has locks of its own.
#[test]
fn h331_the_default_store_is_named_without_a_terminal() {
    let store = Store::new();
    let directory = store.file("home/.local/state/latchwork").display().to_string();
    let held = format!("held=$('{}' hold x) && eval \"$held\"", env!("CARGO_BIN_EXE_latchwork"));
    for words in [
        &["run", "x", "--", "true"][..],
        &["once", "--every", "1d", "y", "--", "true"],
        &["elect", "x", "--", "true"],
    ] {
        let done = homeless_output(&store, words);
        assert_eq!((done.code(), done.stderr.lines().count()), (0, 1), "{done:?}");
        assert!(done.stderr.contains(&format!("the locks are in file://{directory}")), "{done:?}");
        let quiet = homeless_output(&store, &[&["-q"], words].concat());
        assert_eq!((quiet.code(), &*quiet.stderr), (0, ""), "{quiet:?}");
    }
    let mut shell = store.script(&held);
    shell.env_remove("LATCHWORK_STORE").env("HOME", store.file("home"));
    shell.env_remove("XDG_STATE_HOME");
    let shell = Running::start(shell).finish();
    assert!(shell.code() == 0 && shell.stderr.contains("no store is named"), "{shell:?}");
    for words in [&["status", "x"][..], &["ls"], &["once", "--reset", "y"]] {
        assert!(!homeless_output(&store, words).stderr.contains("no store is named"));
    }
    assert_eq!(store.output(&["run", "x", "--", "true"]).stderr, "", "one is named");
}

/// A machine may refuse the default store.
#[test]
fn h331_a_variable_makes_the_default_store_an_error() {
    let store = Store::new();
    let with = |value: &str, words: &[&str]| {
        let mut command = homeless(&store, words);
        command.env("LATCHWORK_REQUIRE_STORE", value);
        Running::start(command).finish()
    };
    for words in [&["run", "x", "--", "true"][..], &["ls"], &["doctor"], &["hold", "x"]] {
        let done = with("1", words);
        assert_eq!(done.code(), 64, "{done:?}");
        assert!(done.stderr.contains("name it with --store, --store-file"), "{done:?}");
        assert!(!store.file("home/.local").exists());
    }
    let done = with("perhaps", &["ls"]);
    assert!(done.code() == 64 && done.stderr.contains("set it to 1 or 0"), "{done:?}");
    assert_eq!(with("1", &["--store", &store.url(), "run", "x", "--", "true"]).code(), 0);
    assert_eq!(with("0", &["run", "x", "--", "true"]).code(), 0);
}

/// H332: a mistyped path is another store, and was made with all directories above it.
#[test]
fn h332_a_directory_without_a_parent_is_refused() {
    let store = Store::new();
    let path = store.file("no/such").display().to_string();
    let parent = store.file("no");
    let file = store.file("locks.url");
    store_file(&file, &path);
    let held = [&["run", "x", "--", "true"][..], &["hold", "x"], &["elect", "x", "--", "true"]];
    for words in held {
        for at in [["--store", &path], ["--store-file", file.to_str().unwrap()]] {
            let done = homeless_output(&store, &[&at, words].concat());
            assert_eq!(done.code(), 64, "{done:?}");
            let said = format!("there is no directory {}; check the path", parent.display());
            assert!(done.stderr.contains(&said) && done.stderr.contains("--create"), "{done:?}");
            assert!(!parent.exists(), "{words:?}");
        }
    }
    let made = homeless_output(&store, &["--create", "--store", &path, "run", "x", "--", "true"]);
    assert_eq!((made.code(), &*made.stderr), (0, ""), "{made:?}");
    let again = homeless_output(&store, &["--store", &path, "run", "x", "--", "true"]);
    assert_eq!((again.code(), &*again.stderr), (0, ""), "{again:?}");
}

/// The command and its inner commands reach a server through its socket in the file system.
#[test]
fn h282_commands_reach_their_store_through_a_socket() {
    let store = Store::new();
    let options = RedisOptions::new().user(format!("app on >{PASSWORD} ~* &* +@all"));
    let server = RedisServer::start(&options).unwrap();
    let socket = server.folder().join("socket").display().to_string();
    let address = format!("redis+unix://app:{PASSWORD}@{socket}?db=2");
    let binary = env!("CARGO_BIN_EXE_latchwork");
    let script = format!("env | grep -c s3[c]ret; '{binary}' -v show x");
    let args = ["--store", &address, "run", "x", "--", "sh", "-c", &script];
    let done = homeless_output(&store, &args);
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(done.stdout.starts_with("0\nx: held (a mutex)"), "{done:?}");
    assert!(done.stderr.contains(&format!("redis+unix://{socket}?db=2")), "{done:?}");
    let doctor = homeless_output(&store, &["--store", &address, "doctor"]);
    assert_eq!(doctor.code(), 0, "{doctor:?}");
    assert!(doctor.stdout.contains("fit for locks"), "{doctor:?}");
}

/// `ps` shows the arguments of all processes to all users.
#[test]
fn a_password_on_the_command_line_is_overwritten() {
    let store = Store::new();
    let (_server, address) = server();
    let script = "tr '\\0' ' ' < /proc/$PPID/cmdline; echo; env; echo end; sleep 300; echo";
    let args = ["--store", &address, "run", "x", "--", "sh", "-c", script];
    let run = Running::start(homeless(&store, &args));
    let arguments = run.stdout.next().unwrap();
    assert!(arguments.contains("redis://*"), "{arguments}");
    assert!(!arguments.contains(PASSWORD), "{arguments}");
    while let Some(line) = run.stdout.next().filter(|line| line != "end") {
        assert!(!line.contains(PASSWORD) && !line.starts_with("LATCHWORK_STORE="), "{line}");
    }
    // Neither latchwork nor its guardian.
    let shown = Running::start({
        let mut ps = store.script("cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'");
        ps.env_remove("LATCHWORK_STORE");
        ps
    })
    .finish();
    assert!(!shown.stdout.contains(&address), "{}", shown.stdout);
}

#[test]
fn a_store_file_keeps_the_password_and_serves_inner_commands() {
    let store = Store::new();
    let (_server, address) = server();
    let file = store.file("locks.url");
    store_file(&file, &address);
    let script = format!(
        "env | grep ^LATCHWORK_STORE; '{}' show x | head -1",
        env!("CARGO_BIN_EXE_latchwork")
    );
    let args = ["--store-file", file.to_str().unwrap(), "run", "x", "--", "sh", "-c", &script];
    let done = homeless_output(&store, &args);
    let expected = format!("LATCHWORK_STORE_FILE={}\nx: held (a mutex)\n", file.display());
    assert_eq!((done.code(), &*done.stdout, &*done.stderr), (0, &*expected, ""));
}

/// However the address is given, and at any depth.
#[test]
fn a_command_gets_no_password_and_its_inner_commands_work() {
    let store = Store::new();
    let (_server, address) = server();
    let binary = env!("CARGO_BIN_EXE_latchwork");
    let ends = "env | grep -c s3[c]ret; '{binary}' status x".replace("{binary}", binary);
    let nested = format!(
        "'{binary}' run --inherit x -- sh -c \"$ENDS\"; '{binary}' run y -- sh -c \"$ENDS\""
    );
    let script = format!("{ends}; {nested}");
    let words = ["run", "x", "--", "sh", "-c", &script];
    let by_option = homeless(&store, &[&["--store", &address][..], &words].concat());
    let mut by_variable = homeless(&store, &words);
    by_variable.env("LATCHWORK_STORE", &address);
    for mut command in [by_option, by_variable] {
        command.env("ENDS", &ends);
        let done = Running::start(command).finish();
        let expected = "0\nheld\n".repeat(3);
        assert_eq!((&*done.stdout, &*done.stderr), (&*expected, ""), "{done:?}");
    }
}

/// A process that outlives its lock gets an error whose next step is to name a store.
#[test]
fn a_store_that_was_passed_on_ends_with_its_command() {
    let store = Store::new();
    let (_server, address) = server();
    let words = ["--store", &address, "run", "x", "--", "sh", "-c", "echo $LATCHWORK_STORE_FILE"];
    let file = homeless_output(&store, &words).stdout;
    let done = homeless_output(&store, &["--store-file", file.trim(), "ls"]);
    assert_eq!(done.code(), 64, "{done:?}");
    assert!(done.stderr.contains("latchwork command that named it has ended"), "{done:?}");
}

#[test]
fn a_readable_store_file_is_warned_about() {
    let store = Store::new();
    let (_server, address) = server();
    let file = store.file("locks.url");
    store_file(&file, &address);
    let args = ["--store-file", file.to_str().unwrap(), "ls"];
    let done = homeless_output(&store, &args);
    assert_eq!((done.code(), &*done.stderr), (0, "latchwork: no lock is held or waited for\n"));
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let done = homeless_output(&store, &args);
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(done.stderr.contains("other users may read the password"), "{done:?}");
}

/// `--store-file <(..)` can be read once: the command gets a file that can be read again.
#[test]
fn a_store_file_from_a_pipe_is_not_inherited() {
    let store = Store::new();
    let (_server, address) = server();
    let script = "latchwork --store-file <(echo \"$ADDRESS\") run x -- \
                  sh -c 'env | grep ^LATCHWORK_STORE=; latchwork status x'";
    let mut command = Command::new("bash");
    command.args(["-c", script]).env("PATH", crate::hold::path()).env("ADDRESS", &address);
    let mut command = store.at_this_store(command);
    command.env_remove("LATCHWORK_STORE");
    let done = Running::start(command).finish();
    assert_eq!((done.code(), &*done.stdout), (0, "held\n"), "{done:?}");
}

/// The command may go to another directory, and latchwork there must mean the same store.
#[test]
fn a_relative_directory_is_the_same_everywhere() {
    let store = Store::new();
    let script = format!("cd / && '{}' status x", env!("CARGO_BIN_EXE_latchwork"));
    let mut command =
        homeless(&store, &["--store", "./here", "run", "x", "--", "sh", "-c", &script]);
    command.current_dir(store.file("."));
    let done = Running::start(command).finish();
    assert_eq!((done.code(), &*done.stdout), (0, "held\n"), "{done:?}");
    assert!(store.file("here").is_dir());
}

/// The error names the variable, the option or the file, also if all three are set.
#[test]
fn a_wrong_address_is_named_by_where_it_came_from() {
    let store = Store::new();
    let file = store.file("locks.url");
    store_file(&file, "\u{feff}redi://h\n");
    let named =
        format!("store file {}: the scheme is unknown; did you mean redis:?", file.display());
    for verb in ["ls", "doctor", "init"] {
        let by_file = homeless_output(&store, &["--store-file", file.to_str().unwrap(), verb]);
        assert!(by_file.stderr.contains(&named), "{by_file:?}");
        let by_option = homeless_output(&store, &["--store", "etcd://h?ttls=3", verb]);
        let named = "--store: the option \"ttls\" is unknown; the ttl is set on the lock";
        assert!(by_option.stderr.contains(named), "{by_option:?}");
        let mut by_variable = homeless(&store, &[verb]);
        by_variable.env("LATCHWORK_STORE", "redis://h:x");
        let by_variable = Running::start(by_variable).finish();
        assert!(by_variable.stderr.contains("LATCHWORK_STORE: "), "{by_variable:?}");
        assert_eq!(by_variable.code(), 64);
    }
}

/// However the address is written.
#[test]
fn a_password_in_a_wrong_address_is_not_shown() {
    let store = Store::new();
    for address in [
        "redis://:s3cret@nobody:x",
        "redis:/:s3cret@nobody",
        "redis//:s3cret@nobody",
        "s3cret@nobody",
        "rediss3://app:s3cret@nobody",
        "redis://:s3cret?x@nobody",
        "redis://nobody?password=s3cret",
        "etcd://app:s3cret@nobody?what=1",
        "zk://app:s3cret@nobody?what=1",
    ] {
        let done = homeless_output(&store, &["-v", "--store", address, "ls"]);
        assert_eq!(done.code(), 64, "{done:?}");
        assert!(!done.stderr.contains(PASSWORD), "{address}: {done:?}");
    }
}

/// No command shows what it has not recognised, in text and in JSON.
#[test]
fn an_odd_address_is_not_shown() {
    let store = Store::new();
    for address in include_str!("../../src/store/odd_addresses.txt").lines() {
        for command in [&["-v", "ls"][..], &["--json", "-v", "ls"], &["doctor"], &["init"]] {
            let done = homeless_output(&store, &[&["--store", address], command].concat());
            let shown = format!("{}{}", done.stdout, done.stderr);
            assert!(!shown.contains("sekret"), "{address} {command:?}: {done:?}");
        }
    }
}

#[test]
fn a_release_of_an_own_hold_needs_no_store() {
    let store = Store::new();
    let mut command = homeless(&store, &["release"]);
    command.env_remove("HOME");
    let done = Running::start(command).finish();
    assert_eq!(done.code(), 64, "{done:?}");
    assert!(done.stderr.contains("this shell holds no lock"), "{done:?}");
}

#[test]
fn an_empty_store_file_is_refused() {
    let store = Store::new();
    let file = store.file("locks.url");
    for (text, problem) in
        [("", "it is empty"), ("# mine\n\n", "it is empty"), ("mem:\nmem:\n", "more than one line")]
    {
        store_file(&file, text);
        let done = store.output(&["--store-file", file.to_str().unwrap(), "ls"]);
        assert_eq!(done.code(), 64, "{done:?}");
        assert!(done.stderr.contains(problem), "{done:?}");
        assert!(done.stderr.contains("locks.url"), "{done:?}");
    }
    let missing = store.file("missing/file").display().to_string();
    let done = store.output(&["--store-file", &missing, "ls"]);
    assert_eq!(done.code(), 64, "{done:?}");
    let done = store.output(&["--store-file", "/x", "--store", "mem:", "ls"]);
    assert_eq!(done.code(), 64, "both were named: {done:?}");
}

/// A shell sets `XDG_STATE_HOME` and cron does not: locks of the one exclude nobody in the other.
#[test]
fn a_second_default_directory_is_reported() {
    let store = Store::new();
    let in_shell = |args: &[&str]| {
        let mut command = homeless(&store, args);
        command.env("XDG_STATE_HOME", store.file("xdg"));
        Running::start(command).finish()
    };
    let args = ["run", "x", "--", "true"];
    let alone = in_shell(&args);
    assert!(!alone.stderr.contains("also has locks"), "there is no other yet: {alone:?}");
    let in_cron = homeless_output(&store, &args);
    assert!(in_cron.code() == 0 && !in_cron.stderr.contains("also has locks"), "{in_cron:?}");
    let told = in_shell(&args);
    assert_eq!(told.code(), 0, "{told:?}");
    assert!(told.stderr.contains("home/.local/state/latchwork also has locks"), "{told:?}");
    assert_eq!(in_shell(&["--quiet", "run", "x", "--", "true"]).stderr, "");
    // Who names a store has chosen.
    let named = format!("file://{}", store.file("xdg/latchwork").display());
    assert_eq!(in_shell(&["--store", &named, "run", "x", "--", "true"]).stderr, "");
}

#[test]
fn h544_commands_that_only_read_make_nothing() {
    let store = Store::new();
    let read = [&["ls"][..], &["show", "x"], &["status", "x"]];
    let change = [&["release", "--force", "x"][..], &["once", "--reset", "x"]];
    for args in read.into_iter().chain(change) {
        let code = i32::from(args[0] == "status");
        let done = store.output(args);
        assert!(done.stderr.contains("does not exist"), "{done:?}");
        assert_eq!(done.code(), code, "{done:?}");
        assert!(!store.path().exists(), "{args:?}");
        let done = homeless_output(&store, args);
        assert!(!done.stderr.contains("does not exist"), "{done:?}");
        assert!(!store.file("home").exists(), "{args:?}");
        fs::create_dir(store.path()).unwrap();
        let done = store.output(args);
        assert_eq!((done.code(), done.stderr.contains("is empty")), (code, true), "{done:?}");
        fs::remove_dir(store.path()).expect("nothing is in it");
    }
    // In one that is in use, or was half made, or is another version's, nothing changes either.
    let holder = store.holder(&[], "sleep 300");
    holder.ready();
    let entries = || {
        let mut find = Command::new("find");
        let found =
            find.arg(store.path()).args(["-printf", "%p %m %s %T@ %C@\n"]).output().unwrap();
        String::from_utf8(found.stdout).unwrap()
    };
    let before = entries();
    for args in read {
        let done = store.output(args);
        assert_eq!((done.code(), &*done.stderr), (0, ""), "{args:?}");
        assert!(args[0] == "status" || done.stdout.contains("x"), "{done:?}");
        assert_eq!(entries(), before, "{args:?}");
    }
    holder.signal(rustix::process::Signal::TERM);
    holder.finish();
    let format = fs::read(store.path().join("latchwork.format")).unwrap();
    fs::remove_dir_all(store.path()).unwrap();
    fs::create_dir(store.path()).unwrap();
    for (text, code) in [(&format[..], 0), (b"latchwork-file 7\n", 64)] {
        fs::write(store.path().join("latchwork.format"), text).unwrap();
        let before = entries();
        assert_eq!(store.output(&["ls"]).code(), code);
        assert_eq!(entries(), before);
    }
}

/// An operator who may read the directory sees its locks, and so does one on a mount that is read-only.
#[test]
fn h544_reading_needs_no_right_to_write() {
    let store = Store::new();
    let holder = store.holder(&[], "sleep 300");
    holder.ready();
    let program = store.file("program");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_latchwork")).arg(&program).status();
    assert!(copied.unwrap().success());
    let mut open = Command::new("chmod");
    assert!(open.args(["-R", "a+rX"]).arg(store.file("")).status().unwrap().success());
    let mut command = Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    command.arg("--").arg(&program).arg("ls").current_dir("/");
    let done = Running::start(store.at_this_store(command)).finish();
    assert!(done.code() == 0 && done.stdout.contains("x"), "{done:?}");
    let done = store.output(&["run", "--wait", "0", "y", "--", "true"]);
    assert_eq!(done.code(), 0, "the lock of the reader is gone: {done:?}");
}

/// It waits for the directory instead.
#[test]
fn an_observer_of_an_election_makes_no_directory() {
    let store = Store::new();
    let observer = Running::start(store.latchwork(&["elect", "--observe", "x"]));
    observer.stderr.until("does not exist");
    observer.stdout.until("x: nobody leads");
    assert!(!store.path().exists());
    let leader = store.latchwork(&["elect", "--candidate", "me", "x", "--", "sleep", "300"]);
    let _leader = Running::start(leader);
    observer.stdout.until("me");
}

/// Four steps under a hold: the new password is valid beside the old one, the file has it, the connections are
/// cut, and the old one is no longer valid.
#[test]
fn h273_a_password_replaced_under_a_hold_does_not_end_it() {
    let store = Store::new();
    let rules = "app on >old ~* &* +@all";
    let server = RedisServer::start(&RedisOptions::new().user(rules)).unwrap();
    let file = store.file("locks.url");
    let write = |password: &str| {
        let new = store.file("locks.new");
        store_file(&new, &server.url().replacen("://", &format!("://app:{password}@"), 1));
        fs::rename(new, &file).unwrap();
    };
    let cut = || drop(server.command(&["CLIENT", "KILL", "USER", "app"]).unwrap());
    write("old");
    let print = format!("cat {}", file.display());
    let kept = ["--ttl", "3s", "--wait", "9", "kept", "--", "sh", "-c", "echo in; sleep 8"];
    let runs = [["--store-file", file.to_str().unwrap()], ["--store-command", &print]];
    let runs = runs.map(|by| {
        let name = by[0].replace("--", "");
        let mut args = vec![by[0], by[1], "run"];
        args.extend(kept.map(|arg| if arg == "kept" { &*name } else { arg }));
        let run = Running::start(homeless(&store, &args));
        run.stdout.until("in");
        run
    });
    server.command(&["ACL", "SETUSER", "app", ">new"]).unwrap().ok().unwrap();
    write("new");
    cut();
    std::thread::sleep(Duration::from_millis(3_500));
    server.command(&["ACL", "SETUSER", "app", "<old"]).unwrap().ok().unwrap();
    cut();
    std::thread::sleep(Duration::from_millis(3_500));
    for run in runs {
        let done = run.finish();
        assert_eq!(done.code(), 0, "{done:?}");
    }
}

#[test]
fn h274_a_store_command_is_named_with_its_status_and_its_words() {
    let store = Store::new();
    let (_server, address) = server();
    let by = |text: &str, words: &[&str]| {
        homeless_output(&store, &[&["--store-command", text][..], words].concat())
    };
    for (text, said) in [
        (
            "echo no token >&2; exit 3",
            "`echo no token >&2; exit 3`: exit status 3, saying: no token",
        ),
        ("true", "`true`: printed nothing"),
        ("echo redis://h/x", "`echo redis://h/x`: the database"),
    ] {
        let done = by(text, &["status", "x"]);
        assert_eq!(done.code(), 64, "{done:?}");
        assert!(done.stderr.contains(said), "{done:?}");
    }
    // Inner commands run it themselves.
    store_file(&store.file("address"), &address);
    let print = format!("cat {}", store.file("address").display());
    let binary = env!("CARGO_BIN_EXE_latchwork");
    let script = format!("env | grep -c s3[c]ret; '{binary}' status x");
    let done = by(&print, &["run", "x", "--", "sh", "-c", &script]);
    assert_eq!((&*done.stdout, &*done.stderr), ("0\nheld\n", ""), "{done:?}");
    let mut command = homeless(&store, &["status", "x"]);
    command.env("LATCHWORK_STORE_COMMAND", &print);
    assert_eq!(Running::start(command).finish().stdout, "free\n");
}
