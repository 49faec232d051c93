//! The statements of `fence::sql` in MariaDB, in the words of MySQL.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::thread;

use latchwork::FencingToken;
use latchwork::fence::sql::{Dialect, Fences, Parameter, Statement, bigint};
use latchwork_services::MariaDbServer;

fn token(raw: u64) -> i64 {
    bigint(FencingToken::from_raw(raw))
}

/// A server with a table of fences.
fn database() -> (MariaDbServer, Fences) {
    let server = MariaDbServer::start().unwrap();
    let fences = Fences::new(Dialect::MySql, "fences").unwrap();
    server.sql(&format!("{0}; {0}", fences.create_table()), "test").unwrap();
    (server, fences)
}

/// A statement as a client runs it, prepared and with its parameters; it prints how many rows it has changed.
fn execute(statement: &Statement, resource: &str, token: i64) -> String {
    let given: Vec<_> = statement
        .parameters
        .iter()
        .map(|parameter| match parameter {
            Parameter::Resource => "@resource",
            Parameter::Token => "@token",
        })
        .collect();
    format!(
        "SET @resource = '{resource}', @token = {token}; PREPARE s FROM '{}'; EXECUTE s USING {}; \
         SELECT ROW_COUNT();",
        statement.text,
        given.join(", ")
    )
}

#[test]
fn mariadb_counts_rows_for_an_admitted_token() {
    let (server, fences) = database();
    let run = |statement: &Statement, resource: &str, token: i64| {
        server.sql(&execute(statement, resource, token), "test").unwrap()
    };
    assert_eq!(run(&fences.admit(), "a", token(1)), "0", "it is not registered");
    assert_eq!(run(&fences.register(), "a", 0), "1");
    assert_eq!(run(&fences.register(), "a", 0), "0");
    let rising = [1, 9, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, (1 << 63) - 1];
    for (n, &largest) in rising.iter().enumerate() {
        assert_eq!(run(&fences.admit(), "a", token(largest)), "1", "{largest}");
        assert_eq!(run(&fences.admit(), "a", token(largest)), "1", "the holder writes again");
        for &smaller in &rising[..n] {
            assert_eq!(run(&fences.admit(), "a", token(smaller)), "0", "{smaller} after {largest}");
        }
    }
    assert_eq!(run(&fences.register(), "A", 0), "1", "another resource");
    let newest = format!(
        "SET @resource = 'a'; PREPARE s FROM '{}'; EXECUTE s USING @resource",
        fences.newest().text
    );
    assert_eq!(server.sql(&newest, "test").unwrap(), token((1 << 63) - 1).to_string());
}

#[test]
fn mariadb_forgets_a_token_that_was_rolled_back() {
    let (server, fences) = database();
    let admit = |token: i64| execute(&fences.admit(), "a", token);
    let rolled =
        format!("{} BEGIN; {} ROLLBACK", execute(&fences.register(), "a", 0), admit(token(9)));
    assert_eq!(server.sql(&rolled, "test").unwrap(), "1\n1");
    assert_eq!(server.sql(&admit(token(8)), "test").unwrap(), "1");
}

/// What two sessions print, of which the second begins while the first one sleeps.
fn beside(server: &MariaDbServer, first: &str, second: &str) -> (String, String) {
    thread::scope(|scope| {
        let first = scope.spawn(|| server.sql(first, "test").unwrap());
        let sleeps =
            "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'";
        while server.sql(sleeps, "").unwrap() != "1" {
            assert!(!first.is_finished(), "it does not sleep");
        }
        let second = server.sql(second, "test").unwrap();
        (first.join().unwrap(), second)
    })
}

/// The stale one comes while the newer one is not committed, and waits for the outcome.
#[test]
fn mariadb_refuses_a_stale_writer_after_its_wait() {
    let (server, fences) = database();
    let level = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;";
    server.sql(&execute(&fences.register(), "a", 0), "test").unwrap();
    let newer = format!(
        "{level} BEGIN; {} SELECT SLEEP(2); COMMIT",
        execute(&fences.admit(), "a", token(2))
    );
    let stale = format!("{level} BEGIN; {} ROLLBACK", execute(&fences.admit(), "a", token(1)));
    assert_eq!(beside(&server, &newer, &stale), ("1\n0".into(), "0".into()));
}

/// Both have run `register` before one of them runs `admit`, as far as the server lets them.
#[test]
fn h566_two_writers_of_a_resource_are_no_deadlock_on_mariadb() {
    let (server, fences) = database();
    let register = execute(&fences.register(), "a", 0);
    server.sql(&register, "test").unwrap();
    let rightful = format!(
        "BEGIN; {register} SELECT SLEEP(1); {} COMMIT",
        execute(&fences.admit(), "a", token(2))
    );
    let stale = format!("BEGIN; {register} {} ROLLBACK", execute(&fences.admit(), "a", token(1)));
    assert_eq!(beside(&server, &rightful, &stale), ("0\n0\n1".into(), "0\n0".into()));
}

#[test]
fn h566_a_name_that_is_too_long_is_an_error_on_mariadb() {
    let (server, fences) = database();
    let long = "x".repeat(256);
    let error = server.sql(&execute(&fences.register(), &long, 0), "test").unwrap_err();
    assert!(error.to_string().contains("Data too long for column 'resource'"), "{error}");
    assert_eq!(server.sql("SELECT COUNT(*) FROM fences", "test").unwrap(), "0");
}

#[test]
fn mariadb_checks_an_own_column_in_one_statement() {
    let (server, _) = database();
    server
        .sql("CREATE TABLE stock (id INT PRIMARY KEY, amount INT, token BIGINT NOT NULL); INSERT INTO stock VALUES (42, 20, 0)", "test")
        .unwrap();
    let d = Dialect::MySql;
    let sell = format!(
        "UPDATE stock SET amount = ?, {} WHERE id = 42 AND {}",
        d.assignment("token", 2).unwrap(),
        d.condition("token", 3).unwrap()
    );
    let sell = |amount: i64, token: i64| {
        let run = format!(
            "SET @amount = {amount}, @token = {token}; PREPARE s FROM '{sell}'; \
             EXECUTE s USING @amount, @token, @token; SELECT ROW_COUNT()"
        );
        server.sql(&run, "test").unwrap()
    };
    assert_eq!(sell(19, token(2)), "1");
    assert_eq!(sell(18, token(2)), "1", "the holder writes again");
    assert_eq!(sell(17, token(1)), "0", "late");
    assert_eq!(
        server.sql("SELECT amount, token FROM stock", "test").unwrap(),
        format!("18\t{}", token(2))
    );
}

#[test]
fn h233_mariadb_refuses_what_is_no_token() {
    let (server, fences) = database();
    server.sql(&execute(&fences.register(), "a", 0), "test").unwrap();
    let admit = |token: i64| server.sql(&execute(&fences.admit(), "a", token), "test");
    for raw in [1 << 63, u64::MAX] {
        assert_eq!(admit(token(raw)).unwrap(), "0", "{raw}");
    }
    assert_eq!(admit(-1).unwrap(), "0");
    let spoilt = server.sql("UPDATE fences SET token = -1", "test").unwrap_err().to_string();
    assert!(spoilt.contains("CONSTRAINT"), "{spoilt}");
    assert_eq!(admit(token(1)).unwrap(), "1");
}
