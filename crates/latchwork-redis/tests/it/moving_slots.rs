//! What readers are shown while a slot of a Cluster moves, whatever the nodes call each other.

use latchwork_services::program::eventually;
use latchwork_services::{ClusterOptions, RedisCluster, RedisOptions};
use latchwork_store::{ErrorKind, Snapshot};

use crate::failover::{Test, locks, runtime};

/// A holder's note that tells of the move.
fn tells_of_the_move(seen: &Snapshot) -> bool {
    seen.notes.iter().any(|note| note.contains("moving to another node"))
}

/// H315: a node dies and none takes its slots. The locks of the others are listed, each with a note, and with what can
/// not be read of it; without any other a list is an error.
#[test]
fn h315_a_listing_goes_on_while_a_node_of_a_cluster_is_down() -> Test {
    for coverage in ["no", "yes"] {
        let redis = RedisOptions::new().config(format!("cluster-require-full-coverage {coverage}"));
        let options = ClusterOptions { redis, replicas: 0, ..ClusterOptions::default() };
        let mut cluster = RedisCluster::start(&options)?;
        let runtime = runtime();
        let (holder, reader) =
            (runtime.block_on(locks(&cluster.url())), runtime.block_on(locks(&cluster.url())));
        let mut names = Vec::new();
        for node in 0..3 {
            let mut tried = (0..).map(|n| format!("name {n}"));
            let is_there = |name: &String| {
                let slot = cluster.slot_of(&format!("{{{name}}}")).unwrap();
                cluster.node_of_slot(slot).unwrap() == node
            };
            names.push(tried.find(is_there).unwrap());
        }
        let ttl = std::time::Duration::from_secs(60);
        let hold = |name: &String| runtime.block_on(holder.mutex(name).ttl(ttl).acquire());
        let held = names.iter().map(hold).collect::<Result<Vec<_>, _>>()?;
        let list = || {
            let start = std::time::Instant::now();
            let listed = runtime.block_on(reader.list(""));
            assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
            listed
        };
        let is_partial =
            |one: &Snapshot| one.notes.iter().any(|note| note.contains("is not complete"));
        assert_eq!(list()?.iter().map(is_partial).collect::<Vec<_>>(), [false; 3]);
        cluster.node_mut(1).stop()?;
        let check = |listed: &[Snapshot], what: &str| {
            let mut keys: Vec<_> = listed.iter().map(|one| one.key.as_str()).collect();
            let mut expected = vec![&*names[0], &*names[2]];
            keys.sort_unstable();
            expected.sort_unstable();
            if coverage == "yes" && !keys.is_empty() {
                // One of the others may know before the other does.
                expected.retain(|name| keys.contains(name));
            }
            assert_eq!(keys, expected, "{coverage}, {what}: {listed:?}");
            for one in listed {
                assert!(is_partial(one) && one.holders.len() == 1, "{coverage}, {what}: {one:?}");
            }
        };
        let look = |what: &str| match list() {
            // Then the others refuse every command for a key, as soon as they know.
            Err(error) if coverage == "yes" => {
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{what}: {error}");
            }
            Err(error) => panic!("{what}: {error}"),
            Ok(listed) => check(&listed, what),
        };
        look("it is silent");
        cluster.node_mut(1).cont()?;
        cluster.node_mut(1).kill();
        // Until the others know, and after that.
        for _ in 0..15 {
            look("it is down");
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        cluster.node_mut(0).kill();
        cluster.node_mut(2).kill();
        let error = list().expect_err("none is there");
        assert!(error.next_step().is_some(), "{error}");
        drop(held);
    }
    Ok(())
}

/// H252 and H253: under a hold, a slot moves away and back. Its lock is listed and shown all the time, as are the
/// others, and renewals go on.
#[test]
fn h253_a_listing_goes_on_while_a_slot_moves() -> Test {
    for (kind, name) in [
        ("ip", None),
        ("hostname", None),
        ("hostname", Some("localhost")),
        ("unknown-endpoint", None),
    ] {
        let mut redis =
            RedisOptions::new().config(format!("cluster-preferred-endpoint-type {kind}"));
        if let Some(name) = name {
            redis = redis.config(format!("cluster-announce-hostname {name}"));
        }
        let options = ClusterOptions { redis, replicas: 0, ..ClusterOptions::default() };
        let cluster = RedisCluster::start(&options)?;
        let runtime = runtime();
        // It knows one node: where the others are, that one has to say.
        let url = format!("redis+cluster://127.0.0.1:{}", cluster.nodes()[0].port());
        let connected = || runtime.block_on(locks(&url)).ttl(std::time::Duration::from_secs(3));
        let (holder, reader) = (connected(), connected());
        let slot = cluster.slot_of("{foo}")?;
        let other = (0..).map(|n| format!("other {n}"));
        let other = other
            .filter(|name| cluster.slot_of(name).is_ok_and(|it| it != slot))
            .find(|_| true)
            .unwrap();
        let held = runtime.block_on(holder.mutex("foo").acquire())?;
        let beside = runtime.block_on(holder.mutex(&*other).acquire())?;
        // Whether the list and the key alone say that the slot moves.
        let look = |phase: &str| {
            let listed = runtime.block_on(reader.list("")).unwrap_or_else(|error| {
                panic!("{kind} {name:?}, {phase}: {error}");
            });
            let keys: Vec<_> = listed.iter().map(|one| one.key.as_str()).collect();
            assert_eq!(keys, ["foo", &*other], "{kind} {name:?}, {phase}");
            let shown = runtime.block_on(reader.inspect("foo")).unwrap_or_else(|error| {
                panic!("{kind} {name:?}, {phase}: {error}");
            });
            let told = [&listed[0], &shown].map(|seen| {
                assert!(seen.holders[0].token.is_some(), "{phase}: {seen:?}");
                tells_of_the_move(seen)
            });
            // What it may not have is said in words.
            let attempt = runtime.block_on(reader.mutex("foo").try_acquire());
            let said = attempt.map(|guard| assert!(guard.is_none())).map_err(|e| e.to_string());
            let said = said.err().unwrap_or_default();
            for word in ["MOVED", "ASK ", "TRYAGAIN"] {
                assert!(!said.contains(word), "{kind}, {phase}: {said}");
            }
            told
        };
        assert_eq!(look("before"), [false; 2], "{kind}");
        let from = cluster.node_of_slot(slot)?;
        for to in [(from + 1) % 3, from] {
            let migration = cluster.begin_migration(slot, to)?;
            assert_eq!(look("some keys are here"), [true; 2], "{kind}");
            cluster.move_keys(migration, &["{foo}"])?;
            assert_eq!(look("the lock is there"), [true; 2], "{kind}");
            cluster.finish_migration(migration)?;
            // The reader's map of the slots may be that of a moment ago.
            let is_over = || (look("after") == [false; 2]).then_some(());
            eventually("the reader to know the end of the move", is_over);
        }
        assert!(held.ensure_held().is_ok() && beside.ensure_held().is_ok(), "{kind}");
        runtime.block_on(held.release())?;
        runtime.block_on(beside.release())?;
    }
    Ok(())
}
