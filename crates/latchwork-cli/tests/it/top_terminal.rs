//! `top` and the terminal itself: sizes, colours, hostile texts, and that it is given back in every way to end.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::process::Command;

use crate::common::pty::{CTRL_C, CTRL_Z, Terminal};
use crate::common::{Running, Store, eventually, processes};
use crate::top::{hold, row, top};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::LocalModes;

#[path = "../../src/top/screen.rs"]
mod screen;

/// The process of `top` on this terminal.
fn process(terminal: &Terminal) -> Pid {
    let shell = terminal.shell().as_raw_nonzero().get().to_string();
    crate::common::pid(eventually("a top", || {
        processes()
            .into_iter()
            .find(|&process| crate::common::stat(process).is_some_and(|stat| stat[1] == shell))
    }))
}

/// Waits until the terminal is as it was before, with nothing of `top` on it.
#[track_caller]
fn is_given_back(terminal: &mut Terminal, code: i32) {
    assert_eq!(terminal.code(), code);
    is_usual(terminal);
}

#[track_caller]
fn is_usual(terminal: &Terminal) {
    terminal.sees("the usual screen", |screen| {
        (!screen.alternate_screen() && !screen.hide_cursor()).then_some(())
    });
    eventually("the usual modes", || {
        let usual = LocalModes::ICANON | LocalModes::ISIG;
        terminal.modes().local_modes.contains(usual).then_some(())
    });
    assert!(!terminal.picture().contents().contains("Space pause"));
}

#[test]
fn top_gives_the_terminal_back_when_it_is_quit() {
    let store = Store::new();
    for keys in ["q", CTRL_C] {
        let mut terminal = top(&store, 24, 80, "top");
        assert!(terminal.picture().alternate_screen());
        assert!(!terminal.modes().local_modes.contains(LocalModes::ICANON));
        terminal.keys(keys);
        is_given_back(&mut terminal, 0);
    }
}

#[test]
fn top_gives_the_terminal_back_when_a_signal_ends_it() {
    let store = Store::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let mut terminal = top(&store, 24, 80, "top");
        kill_process(process(&terminal), signal).unwrap();
        // Some shells say so first.
        is_given_back(&mut terminal, 128 + signal.as_raw());
    }
}

#[test]
fn ctrl_z_gives_the_terminal_back_and_fg_draws_again() {
    let store = Store::new();
    let _held = hold(&store, "shop", "me", &[]);
    let mut terminal = top(&store, 24, 80, "top");
    for _ in 0..2 {
        terminal.sees("the lock", |_| row(&terminal, "shop"));
        terminal.keys(CTRL_Z);
        terminal.foreground_becomes(terminal.shell());
        is_usual(&terminal);
        terminal.job_is_stopped();
        terminal.line("fg");
        terminal.foreground_leaves(terminal.shell());
    }
    terminal.sees("the lock", |_| row(&terminal, "shop"));
    // A stop that nobody can prepare for.
    let process = process(&terminal);
    kill_process(process, Signal::STOP).unwrap();
    terminal.foreground_becomes(terminal.shell());
    terminal.line("stty sane; stty -echo; clear; fg");
    terminal.foreground_leaves(terminal.shell());
    eventually("the modes of top", || {
        (!terminal.modes().local_modes.contains(LocalModes::ICANON)).then_some(())
    });
    terminal.sees("the lock", |screen| {
        (screen.alternate_screen() && row(&terminal, "shop").is_some()).then_some(())
    });
    terminal.keys("q");
    is_given_back(&mut terminal, 0);
}

/// The same code as `top` has, in a program that panics with the terminal taken.
#[test]
fn a_panic_gives_the_terminal_back_and_is_reported() {
    const CHILD: &str = "LATCHWORK_TRIAL_PANICS";
    if std::env::var_os(CHILD).is_some() {
        let mut screen = screen::Screen::take().unwrap();
        screen.draw(|_| {}).unwrap();
        screen.take_again().unwrap();
        std::mem::forget(screen);
        panic!("on purpose");
    }
    let store = Store::new();
    let mut terminal = Terminal::bash(&store);
    terminal.resize(24, 200);
    let own = std::env::current_exe().unwrap();
    let trial = "top_terminal::a_panic_gives_the_terminal_back_and_is_reported";
    terminal.line(&format!(
        "{CHILD}=1 RUST_BACKTRACE=0 '{}' --exact {trial} --nocapture",
        own.display()
    ));
    terminal.until("\x1b[?1049h");
    terminal.until("on purpose");
    assert_eq!(terminal.code(), 101);
    is_usual(&terminal);
    // Readable, because the terminal was given back first.
    assert!(terminal.picture().contents().contains("on purpose"));
}

#[test]
fn top_uses_no_colour_if_no_color_is_set() {
    let store = Store::new();
    let _held = hold(&store, "shop", "me", &[]);
    let is_coloured = |screen: &vt100::Screen| {
        let (rows, columns) = screen.size();
        (0..rows.get()).flat_map(|row| (0..columns.get()).map(move |column| (row, column))).any(
            |(row, column)| {
                let cell = screen.cell(row, column).unwrap();
                cell.fgcolor() != vt100::Color::Default || cell.bgcolor() != vt100::Color::Default
            },
        )
    };
    let terminal = top(&store, 24, 100, "top");
    terminal.sees("colours", |screen| is_coloured(screen).then_some(()));
    let mut terminal = Terminal::bash(&store);
    terminal.resize(24, 100);
    terminal.line("TERM=xterm-256color NO_COLOR=1 latchwork top");
    terminal.sees("the lock", |_| row(&terminal, "shop"));
    terminal.sees("the bar", |screen| screen.contents().contains('█').then_some(()));
    assert!(!is_coloured(&terminal.picture()));
}

#[test]
fn top_fits_into_any_size_and_follows_a_resize() {
    let store = Store::new();
    let _held = hold(&store, "nightly-backup", "ada@web-1, pid 812", &[]);
    let _queued = {
        let run = Running::start(store.latchwork(&["run", "-v", "nightly-backup", "--", "true"]));
        run.stderr.until("waiting for");
        run
    };
    let mut terminal = top(&store, 24, 160, "top");
    terminal
        .sees("both side by side", |screen| screen.contents().contains("Queue of 1").then_some(()));
    for (rows, columns) in [(24, 80), (12, 44), (5, 30), (3, 12), (1, 1), (2, 200), (50, 20)] {
        terminal.resize(rows, columns);
        if columns >= 12 && rows >= 4 {
            terminal.sees("the lock", |screen| {
                let all = screen.contents();
                all.lines().any(|line| line.starts_with("nightly")).then_some(())
            });
        }
    }
    terminal.resize(24, 100);
    terminal.sees("the whole row again", |_| {
        let row = row(&terminal, "nightly-backup")?;
        (row.contains("ada@web-1, pid 812") && row.contains("mutex")).then_some(())
    });
    terminal.keys("q");
    is_given_back(&mut terminal, 0);
}

/// A cursor that jumps, a colour, a title, a turned writing direction, and a character without a width.
#[test]
fn hostile_texts_do_not_reach_the_terminal_of_top() {
    let store = Store::new();
    let hostile = "\x1b[2J\x1b]0;owned\x07\u{9b}31mme\u{202e}gnp.exe\u{2066}\u{200b}\r\n<b>";
    let _held = hold(&store, "bad\x1b[31m\u{202e}name", hostile, &[]);
    let terminal = top(&store, 24, 140, "top");
    terminal.sees("the lock", |_| row(&terminal, r"bad\u{1b}[31m\u{202e}name"));
    terminal.sees_text(
        r"\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31mme\u{202e}gnp.exe\u{2066}\u{200b}\r\n<b>",
    );
    let shown = terminal.shown();
    for c in ['\u{202e}', '\u{2066}', '\u{200b}', '\u{9b}', '\x07'] {
        assert!(!shown.contains(c), "{c:?}");
    }
    assert!(!shown.contains("\x1b[2J\x1b]0;"), "the text's own commands");
}

#[test]
fn top_without_a_terminal_names_ls_watch() {
    let store = Store::new();
    let done = store.output(&["top"]);
    assert_eq!((done.code(), &*done.stdout), (64, ""));
    assert!(done.stderr.contains("standard output is none"), "{done:?}");
    assert!(done.stderr.contains("`latchwork ls --watch`"), "{done:?}");
    let done = store.output(&["--json", "top"]);
    assert_eq!(done.code(), 64);
    assert!(done.stderr.contains("latchwork --json ls --watch"), "{done:?}");
    let mut terminal = Terminal::bash(&store);
    for words in ["TERM=dumb latchwork top", "TERM=xterm latchwork top < /dev/null"] {
        terminal.line(words);
        terminal.until("use `latchwork ls --watch`");
        assert_eq!(terminal.code(), 64);
    }
}

#[test]
fn top_at_a_wrong_address_is_an_error_and_no_picture() {
    let store = Store::new();
    let mut terminal = Terminal::bash(&store);
    terminal.line("TERM=xterm latchwork --store redis://127.0.0.1:1 top");
    terminal.until("latchwork: ");
    assert_eq!(terminal.code(), 69);
    assert!(!terminal.shown().contains("\x1b[?1049h"));
    let done =
        Command::new(env!("CARGO_BIN_EXE_latchwork")).args(["help", "top"]).output().unwrap();
    assert!(String::from_utf8_lossy(&done.stdout).contains("NO_COLOR"));
}
