//! On a real pseudo-terminal: Ctrl-C, Ctrl-Z, fg, bg, reading, pipelines and scripts.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::pty::{CTRL_C, CTRL_Z, Terminal};
use crate::common::{Holder, Store, alive, eventually, state};
use rustix::process::Pid;

const LOOP: &str = "latchwork run x -- sh -c 'echo pg=$$; sleep 300; echo'";

/// Reads the command's group, and waits until it sleeps in a child of its own (`sleep`).
///
/// A shell that starts its child with vfork cannot be stopped until the child has got to its exec,
/// and a child that is stopped before never gets there: pressing Ctrl-Z within that moment hangs a
/// job of any shell until it is continued. A Ctrl-C within it is lost on some shells.
#[track_caller]
fn started(terminal: &mut Terminal) -> Pid {
    let group = terminal.number("pg=");
    asleep(group);
    group
}

#[track_caller]
fn asleep(group: Pid) {
    eventually("a sleeping child", || {
        let comm = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let members = alive(group);
        (members.iter().any(|&pid| comm(pid) == "sleep\n")
            && members.iter().all(|&pid| state(crate::common::pid(pid)) == 'S'))
        .then_some(())
    });
}

fn parent(process: Pid) -> Pid {
    let stat = crate::common::stat(process.as_raw_nonzero().get()).unwrap();
    crate::common::pid(stat[1].parse().unwrap())
}

#[track_caller]
fn becomes(process: Pid, states: &str) {
    eventually(states, || states.contains(state(process)).then_some(()));
}

fn free(store: &Store) {
    assert_eq!(store.output(&["run", "--wait", "30s", "x", "--", "true"]).code(), 0);
}

fn shells(store: &Store) -> [Terminal; 2] {
    [Terminal::bash(store), Terminal::sh(store)]
}

#[test]
fn ctrl_c_reaches_the_command_and_the_terminal_comes_back() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line(LOOP);
        let group = started(&mut terminal);
        terminal.foreground_becomes(group);
        terminal.keys(CTRL_C);
        assert_eq!(terminal.code(), 130);
        terminal.foreground_becomes(terminal.shell());
        assert!(alive(group).is_empty());
        free(&store);
    }
}

#[test]
fn a_command_that_handles_ctrl_c_decides_itself() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line(
            "latchwork run x -- sh -c 'trap \"echo caught; exit 3\" INT; echo pg=$$; \
             sleep 300; echo'",
        );
        let group = started(&mut terminal);
        terminal.foreground_becomes(group);
        terminal.keys(CTRL_C);
        terminal.until("caught");
        assert_eq!(terminal.code(), 3);
    }
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line(LOOP);
        let group = started(&mut terminal);
        for _ in 0..3 {
            terminal.foreground_becomes(group);
            terminal.keys(CTRL_Z);
            terminal.foreground_becomes(terminal.shell());
            becomes(group, "T");
            // Before the shell says so.
            terminal.until("latchwork: stopped;");
            terminal.until("topped");
            terminal.job_is_stopped();
            terminal.line("fg");
            terminal.foreground_becomes(group);
            becomes(group, "S");
        }
        terminal.keys(CTRL_C);
        assert_eq!(terminal.code(), 130);
        assert!(alive(group).is_empty());
        free(&store);
    }
}

/// A shell does not say `fg` to a job that runs, so latchwork keeps the terminal until the command
/// asks for it; Ctrl-C and Ctrl-Z reach the command all the same.
#[track_caller]
fn fg_of_a_running_job(terminal: &mut Terminal, group: Pid) {
    terminal.line("fg");
    terminal.foreground_leaves(terminal.shell());
    terminal.keys(CTRL_Z);
    becomes(group, "T");
    terminal.foreground_becomes(terminal.shell());
    terminal.line("fg");
    terminal.foreground_becomes(group);
    terminal.keys(CTRL_C);
    assert_eq!(terminal.code(), 130);
}

#[test]
fn bg_continues_it_in_the_background() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line(LOOP);
        let group = started(&mut terminal);
        terminal.foreground_becomes(group);
        terminal.keys(CTRL_Z);
        terminal.foreground_becomes(terminal.shell());
        becomes(group, "T");
        terminal.line("bg");
        becomes(group, "S");
        terminal.line("echo still-'here'");
        terminal.until("still-here");
        terminal.foreground_becomes(terminal.shell());
        fg_of_a_running_job(&mut terminal, group);
        free(&store);
    }
}

#[test]
fn a_job_of_the_background_comes_to_the_foreground() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line(&format!("{LOOP} &"));
        let group = started(&mut terminal);
        terminal.foreground_becomes(terminal.shell());
        fg_of_a_running_job(&mut terminal, group);
    }
}

#[test]
fn the_command_reads_the_terminal() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line("latchwork run x -- sh -c 'echo pg=$$; read a; echo go\\t=$a.'");
        let group = terminal.number("pg=");
        terminal.foreground_becomes(group);
        terminal.line("some words");
        assert_eq!(terminal.until("got="), "some words.");
        assert_eq!(terminal.code(), 0);
    }
}

#[test]
fn a_background_job_that_reads_is_stopped_until_fg() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line("latchwork run x -- sh -c 'echo pg=$$; read a </dev/tty; echo go\\t=$a.' &");
        let group = terminal.number("pg=");
        becomes(group, "T");
        becomes(parent(group), "T");
        terminal.line("echo still-'here'");
        terminal.until("still-here");
        terminal.job_is_stopped();
        terminal.line("fg");
        terminal.foreground_becomes(group);
        becomes(group, "S");
        terminal.line("late words");
        assert_eq!(terminal.until("got="), "late words.");
        assert_eq!(terminal.code(), 0);
    }
}

#[test]
fn a_pipeline_keeps_the_terminal_until_the_command_asks() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line(
            "latchwork run x -- sh -c 'echo pg=$$; read a </dev/tty; echo go\\t=$a.; sleep 300; echo' | cat",
        );
        let group = terminal.number("pg=");
        // It reads, so it is lent the terminal.
        terminal.foreground_becomes(group);
        becomes(group, "S");
        terminal.line("typed");
        assert_eq!(terminal.until("got="), "typed.");
        asleep(group);
        // The Ctrl-Z that only the command sees stops the whole job.
        terminal.keys(CTRL_Z);
        terminal.foreground_becomes(terminal.shell());
        becomes(group, "T");
        terminal.line("fg");
        becomes(group, "S");
        terminal.foreground_becomes(group);
        terminal.keys(CTRL_C);
        terminal.foreground_becomes(terminal.shell());
        terminal.line("echo it is 'over'");
        terminal.until("it is over");
        assert!(alive(group).is_empty());
        free(&store);
    }
}

#[test]
fn a_quiet_pipeline_gets_ctrl_c_and_ctrl_z_through_latchwork() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line("latchwork run x -- sh -c 'echo pg=$$; sleep 300; echo' | cat");
        let group = started(&mut terminal);
        terminal.keys(CTRL_Z);
        becomes(group, "T");
        terminal.foreground_becomes(terminal.shell());
        terminal.line("fg");
        becomes(group, "S");
        terminal.keys(CTRL_C);
        terminal.foreground_becomes(terminal.shell());
        terminal.line("echo it is 'over'");
        terminal.until("it is over");
        assert!(alive(group).is_empty());
    }
}

#[test]
fn ctrl_c_ends_the_script_around_it() {
    let store = Store::new();
    for script in [
        "latchwork run x -- sh -c 'echo pg=\\$\\$; sleep 300; echo'; echo nev'er'",
        "latchwork run x -- sh -c 'echo pg=\\$\\$; read a; echo'; echo nev'er'",
    ] {
        let mut terminal = Terminal::bash(&store);
        terminal.line(&format!("bash -c \"{script}\""));
        let group = terminal.number("pg=");
        if script.contains("read") {
            terminal.foreground_becomes(group);
        } else {
            asleep(group);
        }
        terminal.keys(CTRL_C);
        assert_eq!(terminal.code(), 130);
        assert!(!terminal.shown().contains("never"), "{}", terminal.shown());
        assert!(alive(group).is_empty());
    }
}

#[test]
fn a_job_stopped_for_too_long_loses_the_lock() {
    let store = Store::new();
    let mut terminal = Terminal::bash(&store);
    terminal.line("latchwork run --ttl 2s x -- sh -c 'echo pg=$$; sleep 300; echo'");
    let group = started(&mut terminal);
    terminal.foreground_becomes(group);
    let waiter = store.waiter("true");
    terminal.keys(CTRL_Z);
    terminal.foreground_becomes(terminal.shell());
    waiter.ready();
    assert!(alive(group).is_empty());
    terminal.line("fg");
    terminal.until("lost \"x\"");
    assert_eq!(terminal.code(), 73);
    terminal.foreground_becomes(terminal.shell());
}

#[test]
fn a_killed_full_screen_program_leaves_a_sane_terminal() {
    let store = Store::new();
    let mut terminal = Terminal::bash(&store);
    terminal.line("stty -a | tr ';' '\\n' | grep -o -- '-*icanon' | sed 's/^/mode=/'");
    assert_eq!(terminal.until("mode="), "icanon");
    terminal.line("latchwork run x -- sh -c 'stty raw; echo pg=$$; sleep 300; echo'");
    let group = started(&mut terminal);
    crate::common::kill_group(group);
    assert_eq!(terminal.code(), 137);
    terminal.line("stty -a | tr ';' '\\n' | grep -o -- '-*icanon' | sed 's/^/mode=/'");
    assert_eq!(terminal.until("mode="), "icanon");
}

#[test]
fn a_killed_latchwork_leaves_no_command_and_a_usable_terminal() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line(LOOP);
        let group = started(&mut terminal);
        terminal.foreground_becomes(group);
        crate::common::kill(parent(group));
        assert_eq!(terminal.code(), 137);
        eventually("the end of the command", || alive(group).is_empty().then_some(()));
        free(&store);
    }
}

#[test]
fn ctrl_c_while_waiting_withdraws() {
    let store = Store::new();
    let holder = store.holder(&["--holder", "the other"], "sleep 300; echo x");
    holder.ready();
    for mut terminal in shells(&store) {
        terminal.line("latchwork run x -- true");
        // On a terminal the waiting is told without being asked for.
        terminal.shows("waiting for \"x\", held by the other");
        terminal.keys(CTRL_C);
        assert_eq!(terminal.code(), 130);
        let shown = store.output(&["--json", "show", "x"]).stdout;
        assert!(shown.contains("\"waiters\":[]"), "{shown}");
    }
}

/// One line with the time that has passed, which is erased at the end.
#[test]
fn the_waiting_line_is_refreshed() {
    let store = Store::new();
    let holder = store.holder(&["--holder", "the other"], "sleep 300; echo x");
    holder.ready();
    let mut terminal = Terminal::bash(&store);
    terminal.line("latchwork run x -- echo go't'");
    terminal.shows("\r\x1b[Klatchwork: waiting for \"x\", held by the other");
    terminal.shows("\r\x1b[Klatchwork: waiting for \"x\" for 1s, held by the other");
    terminal.shows("\r\x1b[Klatchwork: waiting for \"x\" for 2s, held by the other");
    drop(holder);
    terminal.shows("\r\x1b[Kgot");
}

/// On 80 columns the name of a holder is shortened, and the place is not.
#[test]
fn a_waiter_sees_its_place_on_a_narrow_terminal() {
    let store = Store::new();
    let holder = store.holder(&["--holder", &"h".repeat(100)], "sleep 300; echo x");
    holder.ready();
    let _second = store.waiter("true");
    let mut terminal = Terminal::bash(&store);
    terminal.line("stty cols 80; latchwork run --fair x -- echo go't'");
    let line = "\r\x1b[Klatchwork: waiting for \"x\", 2nd in the queue, held by hhh";
    terminal.shows(line);
    terminal.shows("hhh...\r");
}

/// What is typed in the foreground is not written over.
#[test]
fn a_background_job_reports_once_that_it_waits() {
    let store = Store::new();
    let holder = store.holder(&["--holder", "the other"], "sleep 300; echo x");
    holder.ready();
    let mut terminal = Terminal::bash(&store);
    terminal.line("latchwork run x -- echo go't' &");
    let told = terminal.until("waiting for");
    assert!(told.contains("the other"), "{told}");
    terminal.line("sleep 2.5; echo sle'pt'");
    terminal.until("slept");
    assert_eq!(terminal.shown().matches("waiting for").count(), 1, "{}", terminal.shown());
    drop(holder);
    terminal.until("got");
}

#[test]
fn closing_the_terminal_ends_the_command() {
    let store = Store::new();
    let mut terminal = Terminal::bash(&store);
    terminal.line(LOOP);
    let group = started(&mut terminal);
    terminal.foreground_becomes(group);
    drop(terminal);
    eventually("the end of the command", || alive(group).is_empty().then_some(()));
    free(&store);
}

#[test]
fn an_orphaned_job_that_reads_the_terminal_is_hung_up() {
    let store = Store::new();
    let mut terminal = Terminal::bash(&store);
    // The subshell between the job and the shell has gone when the command reads.
    terminal.line(
        "(s=$BASHPID; latchwork run x -- sh -c 'while [ $(ps -o ppid= $PPID) = '$s' ]; do \
         sleep 0.02; done; echo pg=$$; read a </dev/tty; echo nev\\er' &)",
    );
    let group = terminal.number("pg=");
    eventually("the end of the command", || alive(group).is_empty().then_some(()));
    free(&store);
    terminal.line("echo e'nd'");
    terminal.until("end");
    let shown = terminal.shown();
    assert_eq!(shown.matches("stopped").count(), 0, "{shown}");
    assert!(!shown.contains("never"), "{shown}");
}

#[test]
fn fg_resumes_a_program_that_stopped_itself() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        // As top does when its terminal is not its own.
        terminal.line(
            "latchwork run x -- sh -c 'echo pg=$$; kill -STOP $$; echo ba\\ck; sleep 300; echo' &",
        );
        let group = terminal.number("pg=");
        becomes(group, "T");
        becomes(parent(group), "T");
        terminal.job_is_stopped();
        terminal.line("fg");
        terminal.until("back");
        terminal.foreground_becomes(group);
        asleep(group);
        terminal.keys(CTRL_C);
        assert_eq!(terminal.code(), 130);
        free(&store);
    }
}

#[test]
fn a_command_that_somebody_stopped_still_follows_the_keys() {
    let store = Store::new();
    for mut terminal in shells(&store) {
        terminal.line("latchwork run x -- sh -c 'echo pg=$$; sleep 300; echo' | cat");
        let group = started(&mut terminal);
        rustix::process::kill_process_group(group, rustix::process::Signal::STOP).unwrap();
        becomes(group, "T");
        // Ctrl-Z stops the job around it, and fg continues all.
        terminal.keys(CTRL_Z);
        terminal.foreground_becomes(terminal.shell());
        terminal.line("fg");
        becomes(group, "S");
        // Ctrl-C ends it although it is stopped again.
        rustix::process::kill_process_group(group, rustix::process::Signal::STOP).unwrap();
        becomes(group, "T");
        terminal.keys(CTRL_C);
        terminal.foreground_becomes(terminal.shell());
        terminal.line("echo it is 'over'");
        terminal.until("it is over");
        eventually("the end of the command", || alive(group).is_empty().then_some(()));
        free(&store);
    }
}
