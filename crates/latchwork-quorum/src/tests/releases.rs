//! What a release sends, when, and what it says.

use super::cases::{LIMIT, MS, SEC, free, world};
use super::world::{Fault, Kind, Process};
use latchwork_store::testing::claim;
use latchwork_store::*;

/// Acquires a key for which the process has to wait first.
async fn wait_for(one: &Claim, process: &Process, rival: &Process, io: &Io) {
    let held = claim(one.key.as_str());
    rival.granted(rival.quorum.try_acquire(&held).await);
    process.blocked(process.quorum.try_acquire(one).await);
    rival.quorum.release(&held, Linger::None).await.unwrap();
    process.granted(process.quorum.try_acquire(one).await);
    io.sleep(50 * MS).await; // the marks are taken back
}

/// Others wait for it, probably: it does not wait until releases that are under way are answered.
#[tokio::test(start_paused = true)]
async fn a_release_of_who_had_to_wait_gathers_with_no_others() {
    let (io, nodes) = world(3);
    let [rival, process] = [(); 2].map(|()| Process::over(&nodes, &io));
    let [one, waited, had] = ["k", "silent", "silent too"].map(claim);
    wait_for(&one, &process, &rival, &io).await;
    wait_for(&waited, &process, &rival, &io).await;
    process.granted(process.quorum.try_acquire(&had).await);
    let contested =
        |process: &Process| process.quorum.shared.node_order.is_contested(&one.key, io.now());
    assert!(!contested(&rival), "it did not wait");
    io.sleep(SEC).await;
    for link in &process.links {
        link.plan(|kind, claim| match (kind, claim.key.as_str()) {
            (Kind::Release, "silent" | "silent too") => Fault::LoseRequest,
            _ => Fault::None,
        });
    }
    for silent in [waited, had] {
        let quorum = process.quorum.clone();
        io.spawn(async move {
            let _ = quorum.release(&silent, Linger::None).await;
        });
    }
    io.sleep(MS).await;
    let start = io.now();
    assert_eq!(process.quorum.release(&one, Linger::None).await.unwrap(), Released::Yes);
    assert_eq!(io.now(), start);
    assert!(contested(&process), "others are expected");
}

/// B10: the answers are still taken, and what failed is sent again.
#[tokio::test(start_paused = true)]
async fn a_dropped_release_is_sent_again_only_where_it_failed() {
    let (io, nodes) = world(3);
    let [rival, process] = [(); 2].map(|()| Process::over(&nodes, &io));
    let one = claim("k");
    wait_for(&one, &process, &rival, &io).await;
    process.links[0].next(Kind::Release, [Fault::Delay(5 * MS, 5 * MS)]);
    process.links[1].next(Kind::Release, [Fault::Delay(5 * MS, 5 * MS)]);
    process.links[2].next(Kind::Release, [Fault::LoseRequest]);
    let before = process.asked(Kind::Release);
    assert!(io.within(MS, process.quorum.release(&one, Linger::None)).await.is_none());
    io.sleep(4 * LIMIT).await;
    assert!(free(&nodes).await);
    let sent: Vec<_> =
        process.asked(Kind::Release).iter().zip(before).map(|(now, before)| now - before).collect();
    assert_eq!(sent, [1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_a_word_says_how_many_have_lost_it() {
    for lost in [false, true] {
        let (io, nodes) = world(3);
        let process = Process::over(&nodes, &io);
        let one = claim("k");
        process.granted(process.quorum.try_acquire(&one).await);
        process.links.iter().skip(1).for_each(|link| link.always(Fault::Refuse));
        if lost {
            nodes[0].forget();
        }
        let error = process.renew(&one).await.unwrap_err();
        assert_eq!(error.message.ends_with("; 1 said that it is lost"), lost, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_refuses_a_release_is_asked_less_and_less_until_the_ttl_ends() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    let one = claim("k").with(|it| it.ttl = 10 * SEC);
    process.granted(process.quorum.try_acquire(&one).await);
    process.links[2].always(Fault::Refuse);
    assert_eq!(process.quorum.release(&one, Linger::None).await.unwrap(), Released::Yes);
    io.sleep(10 * SEC).await;
    let sent = process.links[2].asked(Kind::Release);
    assert!((10..=60).contains(&sent), "{sent}");
    io.sleep(10 * SEC).await;
    assert!(process.links[2].asked(Kind::Release) <= sent + 1, "the node has dropped it by itself");
}

/// H540: what was never at a node is released there once. The releases of a node that is down would add up for a ttl.
#[tokio::test(start_paused = true)]
async fn h540_a_node_that_was_down_throughout_is_asked_once() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    process.links[2].always(Fault::Refuse);
    let claims: Vec<_> = (0..20).map(|n| claim(&format!("k{n}"))).collect();
    for one in &claims {
        process.granted(process.quorum.try_acquire(one).await);
    }
    // A node that refuses, one that loses the answer, and one that has it.
    process.links[2].next(Kind::Try, [Fault::LoseAnswer, Fault::None]);
    let there = ["lost", "had"].map(claim);
    for one in &there {
        process.granted(process.quorum.try_acquire(one).await);
    }
    io.sleep(SEC).await;
    process.links[2].always(Fault::Refuse);
    for one in claims.iter().chain(&there) {
        assert_eq!(process.quorum.release(one, Linger::None).await.unwrap(), Released::Yes);
    }
    io.sleep(SEC).await;
    let sent = process.links[2].sent.lock().unwrap().clone();
    let released = sent.iter().filter(|(kind, _)| *kind == Kind::Release).count();
    assert!(released > claims.len() + there.len() + 2, "{released}: what is there is released");
    assert!(released < 2 * claims.len(), "{released}: what never was there is released again");
    process.links[2].always(Fault::None);
    io.sleep(SEC).await;
    for one in &there {
        assert!(nodes[2].snapshot(one.key.as_str()).await.is_free());
    }
}
