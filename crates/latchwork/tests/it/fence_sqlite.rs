//! The statements of `fence::sql` in SQLite.

#![allow(clippy::disallowed_methods, reason = "tests")]

use latchwork::FencingToken;
use latchwork::fence::sql::{Dialect, Fences, bigint};
use rusqlite::{Connection, params};

fn token(raw: u64) -> i64 {
    bigint(FencingToken::from_raw(raw))
}

/// Two clients of one database, with a table of fences.
fn database() -> (tempfile::TempDir, Fences, [Connection; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let open = || Connection::open(dir.path().join("db")).unwrap();
    let clients = [open(), open()];
    let fences = Fences::new(Dialect::Sqlite, "fences").unwrap();
    clients[0].execute(&fences.create_table(), []).unwrap();
    clients[0].execute(&fences.create_table(), []).unwrap();
    (dir, fences, clients)
}

#[test]
fn the_count_of_rows_says_whether_a_token_is_admitted() {
    let (_dir, fences, [one, two]) = database();
    let admit = |client: &Connection, resource: &str, token: i64| {
        client.execute(&fences.admit().text, params![resource, token]).unwrap()
    };
    let rising = [1, 9, 10, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, (1 << 63) - 1];
    for (n, &largest) in rising.iter().enumerate() {
        assert_eq!(admit(&one, "a", token(largest)), 1, "{largest}");
        assert_eq!(admit(&two, "a", token(largest)), 1, "the holder itself writes again");
        for &smaller in &rising[..n] {
            assert_eq!(admit(&two, "a", token(smaller)), 0, "{smaller} after {largest}");
        }
    }
    assert_eq!(admit(&one, "A", token(1)), 1, "another resource");
    let kept: i64 =
        one.query_row("SELECT token FROM fences WHERE resource = 'a'", [], |r| r.get(0)).unwrap();
    assert_eq!(kept, token((1 << 63) - 1));
}

#[test]
fn a_resource_that_was_registered_starts_below_every_token() {
    let (_dir, fences, [one, _]) = database();
    assert_eq!(one.execute(&fences.register().text, ["a"]).unwrap(), 1);
    assert_eq!(one.execute(&fences.register().text, ["a"]).unwrap(), 0);
    assert_eq!(one.execute(&fences.admit().text, params!["a", token(1)]).unwrap(), 1);
}

#[test]
fn a_token_that_was_rolled_back_was_never_seen() {
    let (_dir, fences, [mut one, two]) = database();
    let transaction = one.transaction().unwrap();
    transaction.execute(&fences.admit().text, params!["a", token(9)]).unwrap();
    transaction.rollback().unwrap();
    assert_eq!(two.execute(&fences.admit().text, params!["a", token(8)]).unwrap(), 1);
}

#[test]
fn a_column_of_ones_own_needs_no_second_statement() {
    let (_dir, _, [one, _]) = database();
    one.execute_batch(
        "CREATE TABLE stock (id INTEGER PRIMARY KEY, amount INTEGER, token INTEGER NOT NULL);
         INSERT INTO stock VALUES (42, 20, 0)",
    )
    .unwrap();
    let d = Dialect::Sqlite;
    let sell = format!(
        "UPDATE stock SET amount = ?1, {} WHERE id = ?2 AND {}",
        d.assignment("token", 3).unwrap(),
        d.condition("token", 3).unwrap()
    );
    let sell = |amount: i64, token: i64| one.execute(&sell, params![amount, 42, token]).unwrap();
    assert_eq!(sell(19, token(2)), 1);
    assert_eq!(sell(19, token(2)), 1, "the same again");
    assert_eq!(sell(18, token(1)), 0, "late");
    let row: (i64, i64) = one
        .query_row("SELECT amount, token FROM stock", [], |r| Ok((r.get(0)?, r.get(1)?)))
        .unwrap();
    assert_eq!(row, (19, token(2)));
}

/// SQLite keeps a text where a number belongs, and orders it above all numbers.
#[test]
fn h233_what_is_no_token_is_refused_and_shuts_nobody_out() {
    let (_dir, fences, [one, _]) = database();
    let admit = |table: &str, token: &dyn rusqlite::ToSql| {
        let fences = Fences::new(Dialect::Sqlite, table).unwrap();
        one.execute(&fences.admit().text, params!["a", token])
    };
    let strange: [&dyn rusqlite::ToSql; 8] =
        [&"abc", &"", &"9x", &b"9".as_slice(), &7.5, &f64::INFINITY, &-1, &token(u64::MAX)];
    for token in strange {
        assert!(admit("fences", token).is_err(), "{:?}", token.to_sql());
    }
    assert!(admit("fences", &rusqlite::types::Null).is_err());
    assert_eq!(admit("fences", &token(7)).unwrap(), 1);
    for token in strange {
        assert!(!admit("fences", token).is_ok_and(|rows| rows > 0), "{:?}", token.to_sql());
    }
    assert_eq!(admit("fences", &"8").unwrap(), 1, "SQLite reads digits as a number");
    assert_eq!(admit("fences", &token(7)).unwrap(), 0);
    // A table of before it had a check, with a row that was spoilt: nobody is admitted, and it is read as it is.
    one.execute_batch(
        "CREATE TABLE old (resource TEXT PRIMARY KEY NOT NULL, token INTEGER NOT NULL) WITHOUT ROWID",
    )
    .unwrap();
    for spoilt in ["'abc'", "x'39'", "7.5"] {
        one.execute_batch(&format!("INSERT OR REPLACE INTO old VALUES ('a', {spoilt})")).unwrap();
        assert_eq!(admit("old", &token(9)).unwrap(), 0, "{spoilt}");
        let newest = Fences::new(Dialect::Sqlite, "old").unwrap().newest().text;
        let read = one.query_row(&newest, ["a"], |row| row.get::<_, i64>(0));
        assert!(read.is_err(), "{spoilt}: {read:?}");
    }
    one.execute_batch("UPDATE old SET token = 7").unwrap();
    for token in strange {
        assert!(!admit("old", token).is_ok_and(|rows| rows > 0), "{:?}", token.to_sql());
    }
    assert_eq!(admit("old", &token(7)).unwrap(), 1);
    let _ = fences;
}
