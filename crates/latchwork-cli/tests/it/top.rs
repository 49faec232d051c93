//! `top` on a pseudo-terminal: real locks that come and go, filter, sort, pause, and its cost to a store.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::{Duration, Instant};

use latchwork_store::testing::stalls;

use crate::common::pty::Terminal;
use crate::common::{Holder, Running, Store};
use latchwork_services::{RedisOptions, RedisServer};

/// A terminal of this size with `top` on it.
pub(crate) fn top(store: &Store, rows: u16, columns: u16, words: &str) -> Terminal {
    let mut terminal = Terminal::bash(store);
    terminal.resize(rows, columns);
    terminal.line(&format!("export TERM=xterm-256color; latchwork {words}"));
    terminal.sees_text("latchwork top");
    terminal
}

/// The row of the table that begins so.
pub(crate) fn row(terminal: &Terminal, start: &str) -> Option<String> {
    row_of(&terminal.picture(), start)
}

/// The same of a picture.
pub(crate) fn row_of(screen: &vt100::Screen, start: &str) -> Option<String> {
    let columns = screen.size().1.get();
    screen.rows(0, columns).find(|row| row.starts_with(start))
}

/// Starts a run that holds this lock until it is ended.
pub(crate) fn hold(store: &Store, name: &str, holder: &str, options: &[&str]) -> Running {
    let mut words = vec!["run", name, "--holder", holder];
    words.extend(options);
    words.extend(["--", "sh", "-c", "echo up; sleep 300; echo"]);
    let run = Running::start(store.latchwork(&words));
    run.stdout.until("up");
    run
}

/// The names in the table, from the top.
fn names(screen: &vt100::Screen) -> Vec<String> {
    let columns = screen.size().1.get();
    let rows: Vec<_> = screen.rows(0, columns).collect();
    let rows =
        rows.into_iter().skip(3).take_while(|row| !row.starts_with('─') && !row.trim().is_empty());
    rows.map(|row| row.split_whitespace().next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn top_shows_locks_as_they_come_and_go() {
    let store = Store::new();
    let terminal = top(&store, 24, 110, "top");
    terminal.sees_text("No lock is held or waited for.");
    let holder = store.holder(&["--holder", "ada@web-1"], "sleep 300; echo");
    let token = holder.ready().token;
    terminal.sees("the holder", |screen| {
        let row = row_of(screen, "x ")?;
        let words: Vec<_> = row.split_whitespace().collect();
        let is_all = words[1] == "mutex" && words[2] == "ada@web-1";
        (is_all && words.contains(&&*token.to_string()) && words.last() == Some(&"-")).then_some(())
    });
    terminal.sees_text("1 held, 0 waiting");
    let waiters = ["bob@web-2", "eve@web-3"].map(|name| {
        let run =
            Running::start(store.latchwork(&["run", "-v", "x", "--holder", name, "--", "true"]));
        run.stderr.until("waiting for");
        run
    });
    // The waiters, in their order.
    terminal.sees("the queue", |screen| {
        let text = screen.contents();
        let first = text.find("1 bob@web-2, waiting for ")?;
        let second = text.find("2 eve@web-3, waiting for ")?;
        (first < second && row_of(screen, "x ")?.trim_end().ends_with(" 2")).then_some(())
    });
    drop(holder);
    for waiter in waiters {
        assert_eq!(waiter.finish().code(), 0);
    }
    terminal.sees_text("No lock is held or waited for.");
}

#[test]
fn every_kind_of_lock_is_named_by_top() {
    let store = Store::new();
    let _held = [
        hold(&store, "a-read", "r1", &["--read"]),
        hold(&store, "a-read", "r2", &["--read"]),
        hold(&store, "a-write", "w", &["--write"]),
        hold(&store, "permits", "p", &["--permits", "2/5"]),
    ];
    let words = ["elect", "--candidate", "10.0.0.7:80", "led", "--", "sleep", "300"];
    let _leader = Running::start(store.latchwork(&words));
    let done = store.output(&["once", "--every", "1d", "report", "--holder", "cron", "--", "true"]);
    assert_eq!(done.code(), 0);
    let terminal = top(&store, 30, 120, "top");
    for (name, kind, holder) in [
        ("a-read", "read ×2", "r"),
        ("a-write", "write", "w"),
        ("permits", "permits 2/5", "p"),
        ("led", "election", "10.0.0.7:80 ("),
        ("report", "done", "(done by cron)"),
    ] {
        terminal.sees(name, |screen| {
            let row = row_of(screen, name)?;
            let rest = row[name.len()..].trim_start().strip_prefix(kind)?;
            rest.trim_start().starts_with(holder).then_some(())
        });
    }
}

/// The bar of the row, in eighths of a column.
fn bar(screen: &vt100::Screen, name: &str) -> Option<usize> {
    let row = row_of(screen, name)?;
    let eighths = |c: char| " ▏▎▍▌▋▊▉█".chars().position(|one| one == c);
    let some = row.chars().filter(|&c| c != ' ').filter_map(eighths).sum::<usize>();
    (some > 0).then_some(some)
}

#[test]
fn the_bar_of_top_drains_and_a_renewal_fills_it() {
    let store = Store::new();
    let _held = hold(&store, "short", "me", &["--ttl", "6s"]);
    let terminal = top(&store, 24, 100, "top");
    let mut full = 0;
    terminal.sees("a drained bar", |screen| {
        let now = bar(screen, "short")?;
        full = full.max(now);
        (now + 8 < full).then_some(())
    });
    terminal.sees("a filled bar", |screen| (bar(screen, "short")? + 4 >= full).then_some(()));
}

#[test]
fn top_filters_by_typing_and_sorts_by_column() {
    let store = Store::new();
    let _held =
        ["shop/b", "shop/a", "zoo"].map(|name| hold(&store, name, &format!("h-{name}"), &[]));
    let mut terminal = top(&store, 24, 100, "top");
    let shows = |terminal: &Terminal, wanted: &[&str]| {
        terminal.sees("those names", |screen| (names(screen) == wanted).then_some(()));
    };
    shows(&terminal, &["shop/a", "shop/b", "zoo"]);
    // The name, the other way round.
    terminal.keys("1");
    shows(&terminal, &["zoo", "shop/b", "shop/a"]);
    // How long it has been held: the first one first.
    terminal.keys("4");
    shows(&terminal, &["shop/b", "shop/a", "zoo"]);
    terminal.keys("r");
    shows(&terminal, &["zoo", "shop/a", "shop/b"]);
    terminal.keys("1/SHOP");
    shows(&terminal, &["shop/a", "shop/b"]);
    terminal.sees_text("filter: SHOP");
    terminal.sees_text("2 of 3 shown");
    // What is typed into the filter is no command.
    terminal.keys("q");
    terminal.sees_text("No lock matches the filter.");
    terminal.keys("\x7f\r");
    shows(&terminal, &["shop/a", "shop/b"]);
    terminal.keys("\x1b");
    shows(&terminal, &["shop/a", "shop/b", "zoo"]);
    // Also by holder.
    terminal.keys("/h-zoo\r");
    shows(&terminal, &["zoo"]);
    terminal.keys("?");
    terminal.sees_text("any key closes");
    terminal.keys("qq");
    assert_eq!(terminal.code(), 0);
}

#[test]
fn a_prefix_and_a_namespace_limit_what_top_shows() {
    let store = Store::new();
    let _held = ["app:shop/a", "app:zoo", "shop/b"].map(|name| hold(&store, name, "me", &[]));
    let terminal = top(&store, 24, 100, "--namespace app top shop/");
    terminal.sees("the names", |screen| (names(screen) == ["app:shop/a"]).then_some(()));
}

#[test]
fn a_paused_top_stands_still_and_goes_on() {
    let store = Store::new();
    let held = hold(&store, "first", "me", &["--ttl", "6s"]);
    let mut terminal = top(&store, 24, 100, "top");
    terminal.sees("the lock", |screen| row_of(screen, "first"));
    terminal.keys(" ");
    terminal.sees_text("PAUSED");
    let before = terminal.picture().contents();
    drop(held);
    let _second = hold(&store, "second", "me", &[]);
    // Longer than the time between two readings.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(terminal.picture().contents(), before);
    terminal.keys(" ");
    terminal.sees("the second lock", |screen| (names(screen) == ["second"]).then_some(()));
    terminal.sees_no("PAUSED");
}

#[test]
fn top_asks_again_while_the_store_is_away() {
    let store = Store::new();
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let terminal = top(&store, 24, 120, &format!("--store {} top", server.url()));
    terminal.sees_text("No lock is held or waited for.");
    server.shutdown().unwrap();
    terminal.sees_text("asking again");
    server.restart(latchwork_services::Data::Kept).unwrap();
    terminal.sees_no("asking again");
}

/// 10,000 locks on Redis: `top` shows and scrolls them, and asks the server for a bounded number of commands.
#[test]
fn ten_thousand_locks_cost_a_bounded_number_of_commands() {
    const LOCKS: usize = 10_000;
    let store = Store::new();
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let held = latchwork::block_on(async {
        let manager = latchwork::connect(&server.url()).await.unwrap();
        let manager = manager.ttl(Duration::from_secs(600));
        let mut held = Vec::new();
        for number in 0..LOCKS {
            held.push(manager.mutex(format!("lock-{number:05}")).acquire().await.unwrap());
        }
        held
    });
    let mut terminal = top(&store, 40, 120, &format!("--store {} top", server.url()));
    terminal.sees_text("10000 held, 0 waiting");
    // There are so many that they are read every 10 s.
    let shown = || terminal.picture().contents();
    let begun = Instant::now();
    while !shown().contains("again every ") {
        assert!(begun.elapsed() < Duration::from_secs(100), "{}", shown());
        std::thread::sleep(Duration::from_millis(100));
    }
    terminal.keys("G");
    terminal.sees("the last lock", |screen| row_of(screen, "lock-09999"));
    let processed = || -> u64 { server.info("total_commands_processed").unwrap().parse().unwrap() };
    let (before, begun) = (processed(), Instant::now());
    // Over a whole reading of all locks.
    let reading = Duration::from_secs(12);
    std::thread::sleep(reading);
    let rate = (processed() - before) as f64 / begun.elapsed().as_secs_f64();
    println!("{rate:.0} commands a second for {LOCKS} locks");
    // All locks of a reading, which comes every 10 s at most and may have come twice; its steps; a screen each second.
    let looks = 2.0 * LOCKS as f64 / reading.as_secs_f64() + 60.0;
    // The server counts a script and each of the 12 commands in it.
    assert!(rate <= 13.0 * looks, "{rate} commands a second");
    // A lock on the screen that ends is gone long before all are read again.
    latchwork::block_on(async {
        let mut held = held;
        let ended = Instant::now();
        held.pop().unwrap().release().await.unwrap();
        terminal.sees("its end", |screen| row_of(screen, "lock-09999").is_none().then_some(()));
        stalls::in_time(ended, Duration::from_secs(5));
    });
}
