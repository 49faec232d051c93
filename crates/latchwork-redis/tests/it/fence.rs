//! The fence on data in Redis, asked by the tokens of real holds.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::future::poll_fn;
use std::task::Poll;

use crate::common::*;
use latchwork::Handover;
use latchwork_redis::fence;
use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::{Fenced, FencingToken};
use redis::{Connection, RedisError, cmd};

fn server() -> (RedisServer, Connection) {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    (server, connection)
}

fn eval(
    redis: &mut Connection,
    script: &str,
    token: &str,
    value: &str,
) -> Result<String, RedisError> {
    let mut eval = cmd("EVAL");
    eval.arg(script).arg(2).arg("{x}fence").arg("{x}data").arg(token).arg(value).query(redis)
}

fn write(redis: &mut Connection, token: FencingToken, value: &str) -> Result<(), Fenced> {
    match eval(redis, &fence::set(), &token.to_string(), value) {
        Ok(answer) => {
            assert_eq!(answer, "OK");
            Ok(())
        }
        Err(error) => {
            assert_eq!(error.code(), Some("FENCED"), "{error}");
            Err(fence::refusal(&error.to_string()).unwrap())
        }
    }
}

fn data(redis: &mut Connection) -> Option<String> {
    cmd("GET").arg("{x}data").query(redis).unwrap()
}

/// Two holds within one grant of the store: their tokens are one apart, and the same number to Lua.
#[test]
fn h49_tokens_of_a_handover_are_distinguished() {
    let (server, mut redis) = server();
    let (mut old, mut new) = (FencingToken::from_raw(0), FencingToken::from_raw(0));
    run(async {
        let client = Client::warm(&server.url(), 30 * SEC).await;
        let locks = client.locks.clone().handover(Handover::new(10 * SEC, 1));
        let mutex = locks.mutex("k");
        let first = mutex.acquire().await.unwrap();
        old = first.token();
        let mut next = std::pin::pin!(mutex.acquire());
        let waits = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending())).await;
        assert!(waits, "the lock is held");
        first.release().await.unwrap();
        let next = next.await.unwrap();
        new = next.token();
    });
    assert_eq!(new.get(), old.get() + 1, "handed over");
    assert_eq!(new.get() as f64, old.get() as f64, "a number of Lua does not tell them apart");
    assert_eq!(write(&mut redis, old, "1"), Ok(()));
    assert_eq!(write(&mut redis, new, "2"), Ok(()));
    assert_eq!(write(&mut redis, new, "3"), Ok(()), "the holder itself writes again");
    assert_eq!(write(&mut redis, old, "4"), Err(Fenced { refused: old, newest: new }));
    assert_eq!(data(&mut redis).as_deref(), Some("3"));
}

#[test]
fn tokens_are_compared_by_their_length_first() {
    let (_server, mut redis) = server();
    let token = FencingToken::from_raw;
    let rising = [1, 9, 10, 999, 1_000, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, (1 << 63) - 1];
    for (n, &largest) in rising.iter().enumerate() {
        assert_eq!(write(&mut redis, token(largest), "x"), Ok(()), "{largest}");
        for &smaller in &rising[..n] {
            let refused = write(&mut redis, token(smaller), "y").unwrap_err();
            assert_eq!((refused.refused, refused.newest), (token(smaller), token(largest)));
        }
    }
    assert_eq!(data(&mut redis).as_deref(), Some("x"));
}

#[test]
fn a_custom_script_runs_only_with_a_valid_token() {
    let (_server, mut redis) = server();
    let script = fence::script("return tostring(redis.call('DECRBY', KEYS[2], ARGV[2]))");
    assert_eq!(eval(&mut redis, &script, "2000", "1").unwrap(), "-1");
    assert_eq!(eval(&mut redis, &script, "1000", "1").unwrap_err().code(), Some("FENCED"));
    assert_eq!(eval(&mut redis, &script, "2000", "1").unwrap(), "-2");
    assert_eq!(data(&mut redis).as_deref(), Some("-2"));
}

#[test]
fn h233_a_number_that_is_no_token_writes_nothing() {
    let (_server, mut redis) = server();
    // H233: 2^63 and more would shut out all others.
    let large = ["9223372036854775808", "18446744073709551615", "99999999999999999999"];
    let strange = ["", "0", "01", "-1", "1e9", " 1", "1 ", "abc", "1.5", "nan", "inf", "True"];
    for token in strange.into_iter().chain(large) {
        let error = eval(&mut redis, &fence::set(), token, "x").unwrap_err();
        assert!(error.to_string().contains("not a token"), "{token:?}: {error}");
        assert_eq!(fence::refusal(&error.to_string()), None);
    }
    for garbage in ["abc", "1.5", "007", "", "-1", "nan"].into_iter().chain(large) {
        cmd("SET").arg("{x}fence").arg(garbage).exec(&mut redis).unwrap();
        let error = eval(&mut redis, &fence::set(), "5", "x").unwrap_err();
        assert!(error.to_string().contains("something else"), "{garbage:?}: {error}");
        assert!(error.to_string().contains("{x}fence"), "the key is named: {error}");
        assert_eq!(fence::refusal(&error.to_string()), None);
    }
    cmd("DEL").arg("{x}fence").exec(&mut redis).unwrap();
    cmd("RPUSH").arg("{x}fence").arg("1").exec(&mut redis).unwrap();
    assert_eq!(eval(&mut redis, &fence::set(), "5", "x").unwrap_err().code(), Some("WRONGTYPE"));
    assert_eq!(data(&mut redis), None);
}
