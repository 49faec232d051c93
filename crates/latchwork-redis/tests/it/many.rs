//! Many tasks at the same time, whose requests go out together.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use latchwork_store::{Attempt, Backend, Claim, Released};

use crate::common::*;

/// One command takes keys for many; who is refused is refused for good reason.
#[test]
fn many_tasks_on_few_keys_never_meet() {
    run(async {
        let world = World::new();
        let url = world.proxy.url();
        let clients = [
            Arc::new(Client::warm(&url, 10 * SEC).await),
            Arc::new(Client::warm(&url, 10 * SEC).await),
        ];
        let inside: Arc<Mutex<HashMap<usize, u64>>> = Arc::default();
        let mut tasks = Vec::new();
        world.proxy.reset_counts();
        for task in 0..64 {
            let (client, inside) = (clients[task % 2].clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                let (mut taken, mut last) = (0_u64, HashMap::new());
                for turn in 0..50 {
                    let key = (task * 7 + turn * 13) % 256;
                    let mutex = client.mutex(&format!("k{key}"));
                    let Some(guard) = mutex.try_acquire().await.unwrap() else { continue };
                    let token = guard.token().get();
                    let before = last.insert(key, token);
                    assert!(before.is_none_or(|before| before < token), "{before:?} then {token}");
                    let other = inside.lock().unwrap().insert(key, token);
                    assert_eq!(other, None, "two hold k{key}");
                    tokio::task::yield_now().await;
                    assert_eq!(inside.lock().unwrap().remove(&key), Some(token));
                    guard.release().await.unwrap();
                    taken += 1;
                }
                taken
            }));
        }
        let mut taken = 0;
        for task in tasks {
            taken += task.await.unwrap();
        }
        let counts = world.proxy.counts();
        let commands = counts["EVALSHA"] + counts["EVAL"];
        assert!(taken > 1_000, "only {taken} were taken");
        assert!(commands < taken, "{commands} commands for {taken} acquires and as many releases");
        world.empties(SEC).await;
    });
}

/// Who names a floor gets a token that is not below it, and in the order in which they ask the floor
/// itself: so that several servers give the same one.
#[test]
fn many_with_floors_of_their_own_get_them_as_tokens() {
    run(async {
        let world = World::new();
        let backend = connect(&world.proxy.url()).await;
        let warm = claim("warm", 10 * SEC);
        let first = granted(&backend, &warm).await;
        let claims: Vec<_> = (0..64)
            .map(|n| {
                claim(&format!("k{n}"), 10 * SEC).with(|it| it.floor = first + 60_000_000 + 3 * n)
            })
            .collect();
        world.proxy.reset_counts();
        let tries = claims.iter().map(|claim| granted(&backend, claim));
        let tokens = join_all(tries).await;
        assert_eq!(tokens, claims.iter().map(|claim| claim.floor).collect::<Vec<_>>());
        // The first one alone, and all others together.
        assert!(world.proxy.counts()["EVALSHA"] <= 3, "{:?}", world.proxy.counts());
        let next = granted(&backend, &claim("next", 10 * SEC)).await;
        assert!(next > *tokens.last().unwrap());
    });
}

/// One command frees keys for many, and none of a claim that has come after.
#[test]
fn many_late_releases_free_nothing_of_others() {
    run(async {
        let world = World::new();
        let (first, second) =
            (connect(&world.server.url()).await, connect(&world.server.url()).await);
        let old: Vec<_> = (0..64).map(|n| claim(&format!("k{n}"), 10 * SEC)).collect();
        let new: Vec<_> = (0..64).map(|n| claim(&format!("k{n}"), 10 * SEC)).collect();
        for (old, new) in old.iter().zip(&new) {
            granted(&first, old).await;
            assert_eq!(release(&first, old).await, Released::Yes);
            granted(&second, new).await;
        }
        let mut late = Vec::new();
        for claim in old {
            let backend = first.clone();
            late.push(tokio::spawn(async move { release(&backend, &claim).await }));
        }
        for release in late {
            assert_eq!(release.await.unwrap(), Released::NotHeld);
        }
        for claim in &new {
            assert_eq!(release(&second, claim).await, Released::Yes);
        }
    });
}

/// How many requests of a kind are under way before others gather.
const SLOTS: usize = 6;

/// Requests that are dropped while they gather are never sent, and those behind them go on.
#[test]
fn dropped_requests_leave_the_slots_to_others() {
    run(async {
        let world = World::new();
        let backend = connect(&world.proxy.url()).await;
        let warm = claim("warm", 10 * SEC);
        granted(&backend, &warm).await;
        assert_eq!(release(&backend, &warm).await, Released::Yes);
        for round in 0..5 {
            let claims: Vec<_> =
                (0..32).map(|n| claim(&format!("round {round} key {n}"), 10 * SEC)).collect();
            world.proxy.hold_answers(true);
            let mut asked = Vec::new();
            for claim in claims.clone() {
                let backend = backend.clone();
                asked.push(tokio::spawn(async move { backend.try_acquire(&claim).await }));
                // Each slot leaves with one.
                for _ in 0..8 {
                    tokio::task::yield_now().await;
                }
            }
            // The first ones are under way, on all slots; the others gather behind them.
            let behind = asked.split_off(SLOTS);
            for task in &behind {
                task.abort();
            }
            for task in behind {
                assert!(task.await.is_err(), "it has no answer yet");
            }
            world.proxy.hold_answers(false);
            for (task, claim) in asked.into_iter().zip(&claims) {
                task.await.unwrap().unwrap();
                assert_eq!(release(&backend, claim).await, Released::Yes);
            }
            for claim in &claims[SLOTS..] {
                assert!(!world.is_held(claim.key.as_str()), "it gathered, and was sent");
            }
            let free = claim("free", 10 * SEC);
            let attempt = within("an answer", SEC, backend.try_acquire(&free)).await.unwrap();
            assert!(matches!(attempt, Attempt::Granted(_)));
            assert_eq!(release(&backend, &free).await, Released::Yes);
        }
    });
}

/// The server does not know the script any more. The requests of one command are not sent again: those who made them may
/// be gone, and nobody would release the key.
#[test]
fn h480_a_shared_command_is_not_sent_again_for_callers_that_are_gone() {
    run(async {
        let world = World::new();
        let backend = connect(&world.proxy.url()).await;
        for n in 0..4 {
            let claims = join_all((0..3).map(|key| {
                let (backend, claim) = (&backend, claim(&format!("warm{n} {key}"), 10 * SEC));
                async move {
                    granted(backend, &claim).await;
                    claim
                }
            }));
            for claim in claims.await {
                assert_eq!(release(&backend, &claim).await, Released::Yes);
            }
        }
        world.server.command(&["SCRIPT", "FLUSH"]).unwrap();
        world.proxy.reset_counts();
        world.proxy.hold_answers(true);
        let claims: Vec<_> = (0..4).map(|n| claim(&format!("key{n}"), 10 * SEC)).collect();
        let ask = |claim: &Claim| {
            let (backend, claim) = (backend.clone(), claim.clone());
            tokio::spawn(async move { backend.try_acquire(&claim).await })
        };
        let asked: Vec<_> = claims.iter().map(ask).collect();
        // The first one alone, and the others in one command.
        until("both are sent", SEC, || world.proxy.counts()["EVALSHA"] == 2).await;
        for task in &asked {
            task.abort();
        }
        for task in asked {
            assert!(task.await.is_err(), "it has no answer yet");
        }
        world.proxy.hold_answers(false);
        // Once more, so that all answers have come.
        granted(&backend, &claim("next", 10 * SEC)).await;
        tokio::task::yield_now().await;
        for claim in &claims[1..] {
            assert!(!world.is_held(claim.key.as_str()), "it was sent again");
        }
    });
}

/// Requests that are dropped at any time, by many, cost the others no answer.
#[test]
fn dropped_requests_lose_no_other_answer() {
    run(async {
        let world = World::new();
        let client = Arc::new(Client::warm(&world.proxy.url(), 10 * SEC).await);
        let mut tasks = Vec::new();
        for task in 0..64_u64 {
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                for turn in 0..40_u64 {
                    let mutex = client.mutex(&format!("k{task}"));
                    let patience = Duration::from_micros((task * 37 + turn * 101) % 900);
                    if task % 2 == 0 {
                        // What it took meanwhile is given back in the background.
                        let _ = tokio::time::timeout(patience, mutex.acquire()).await;
                    } else {
                        let guard = within("its lock", 5 * SEC, mutex.acquire()).await.unwrap();
                        guard.release().await.unwrap();
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        world.empties(3 * SEC).await;
    });
}
