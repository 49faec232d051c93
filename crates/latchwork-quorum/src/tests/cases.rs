//! One case for each promise and hazard.

use std::sync::Arc;
use std::time::Duration;

use super::world::{Fault, Kind, Node, Process};
use latchwork_store::*;
use latchwork_store::{
    BackendErrorKind, Effect, Io,
    testing::{claim, paused_io},
};

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SEC: Duration = Duration::from_secs(1);
pub(super) const LIMIT: Duration = Duration::from_millis(200);

pub(super) fn world(size: usize) -> (Io, Vec<Arc<Node>>) {
    let (io, _) = paused_io();
    let nodes = (0..size).map(|_| Node::new(&io, Duration::ZERO)).collect();
    (io, nodes)
}

pub(super) async fn holders(nodes: &[Arc<Node>]) -> Vec<usize> {
    let mut holders = Vec::new();
    for node in nodes {
        holders.push(node.snapshot("k").await.holders.len());
    }
    holders
}

pub(super) async fn free(nodes: &[Arc<Node>]) -> bool {
    for node in nodes {
        if !node.snapshot("k").await.is_free() {
            return false;
        }
    }
    true
}

#[tokio::test(start_paused = true)]
async fn a_dead_minority_costs_nothing() {
    let (io, nodes) = world(5);
    let process = Process::over(&nodes, &io);
    process.links[1].always(Fault::LoseRequest);
    process.links[3].always(Fault::LoseRequest);
    let start = io.now();
    for n in 0..50 {
        let one = claim("k");
        let grant = process.granted(process.quorum.try_acquire(&one).await);
        assert_eq!(grant.ttl, one.ttl);
        assert!(matches!(process.renew(&one).await, Ok(Renewal::Held { .. })), "{n}");
        let rival = claim("k");
        process.blocked(process.quorum.try_acquire(&rival).await);
        process.quorum.release(&rival, Linger::None).await.unwrap();
        let released = process.quorum.release(&one, Linger::None).await;
        assert_eq!(released.unwrap(), Released::Yes);
    }
    assert_eq!(io.now(), start, "nobody waited for the dead nodes");
}

#[tokio::test(start_paused = true)]
async fn a_dead_majority_is_an_error_that_names_it_and_leaves_nothing() {
    let (io, nodes) = world(5);
    let process = Process::over(&nodes, &io);
    process.links[0].always(Fault::LoseAnswer);
    process.links[2].always(Fault::LoseRequest);
    process.links[3].always(Fault::Refuse);
    let (start, one) = (io.now(), claim("k"));
    let error = process.quorum.try_acquire(&one).await.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::Unknown));
    assert!(error.message.starts_with("3 of 5 nodes did not answer: mem: ("), "{error}");
    assert!(error.message.contains("connection refused"), "{error}");
    assert_eq!(io.now().since(start), LIMIT);
    io.sleep(MS).await;
    assert!(free(&nodes).await, "released everywhere, also where no answer came");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_all_is_certain() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    process.links.iter().for_each(|link| link.always(Fault::Refuse));
    let error = process.quorum.try_acquire(&claim("k")).await.unwrap_err();
    assert_eq!(error.effect, Effect::NotApplied);
    let other = Process::over(&nodes, &io);
    other.granted(other.quorum.try_acquire(&claim("k")).await);
    let reader = claim("k").with(|it| it.mode = Mode::Read);
    let error = other.quorum.try_acquire(&reader).await.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Mismatch, Effect::NotApplied));
    assert!(error.message.starts_with("3 of 3 nodes refused"), "{error}");
}

/// The others have not said yet whether they keep the claim.
#[tokio::test(start_paused = true)]
async fn a_refusal_by_a_majority_alone_is_not_certain() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    process.links[0].always(Fault::Refuse);
    process.links[1].always(Fault::Refuse);
    process.links[2].always(Fault::Delay(MS, MS));
    let error = process.quorum.try_acquire(&claim("k")).await.unwrap_err();
    assert_eq!(error.effect, Effect::Unknown);
}

/// H54: one node is stopped and answers much later.
#[tokio::test(start_paused = true)]
async fn a_stopped_node_delays_nobody_and_keeps_nothing() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    process.links[2].next(Kind::Try, [Fault::Delay(3 * SEC, Duration::ZERO)]);
    let (start, one) = (io.now(), claim("k"));
    process.granted(process.quorum.try_acquire(&one).await);
    process.quorum.release(&one, Linger::None).await.unwrap();
    assert_eq!(io.now(), start);
    io.sleep(4 * SEC).await;
    assert_eq!(holders(&nodes).await, [0, 0, 1], "the late try landed after its release");
    let next = claim("k");
    process.granted(process.quorum.try_acquire(&next).await);
    process.quorum.release(&next, Linger::None).await.unwrap();
    io.sleep(one.ttl).await;
    assert!(free(&nodes).await, "gone within its ttl");
}

/// A try that is slow, yet within its time limit, is overtaken by its own release.
#[tokio::test(start_paused = true)]
async fn a_release_that_overtook_its_try_is_sent_again() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    process.links[2].next(Kind::Try, [Fault::Delay(100 * MS, 100 * MS)]);
    let one = claim("k");
    process.granted(process.quorum.try_acquire(&one).await);
    process.quorum.release(&one, Linger::None).await.unwrap();
    io.sleep(150 * MS).await;
    assert_eq!(holders(&nodes).await, [0, 0, 1]);
    io.sleep(60 * MS).await;
    assert!(free(&nodes).await);
}

/// H56: a failed try with answers lost on a minority.
#[tokio::test(start_paused = true)]
async fn a_failed_try_leaves_nothing_for_longer_than_one_time_limit() {
    let (io, nodes) = world(3);
    let (holder, rival) = (Process::over(&nodes, &io), Process::over(&nodes, &io));
    holder.links[2].always(Fault::LoseRequest);
    let held = claim("k");
    holder.granted(holder.quorum.try_acquire(&held).await);
    rival.links[2].next(Kind::Try, [Fault::LoseAnswer]);
    let one = claim("k").with(|it| it.waits = false);
    let blocked = rival.blocked(rival.quorum.try_acquire(&one).await);
    assert_eq!(blocked.cause, Cause::Held);
    assert_eq!(holders(&nodes).await, [1, 1, 1]);
    io.sleep(LIMIT + MS).await;
    assert_eq!(holders(&nodes).await, [1, 1, 0]);
    holder.quorum.release(&held, Linger::None).await.unwrap();
    assert!(free(&nodes).await);
}

/// H10: a renewal that fails releases nothing.
#[tokio::test(start_paused = true)]
async fn a_failed_renewal_never_releases() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    let one = claim("k");
    process.granted(process.quorum.try_acquire(&one).await);
    process.links[0].always(Fault::Refuse);
    assert!(matches!(process.renew(&one).await, Ok(Renewal::Held { .. })));
    assert_eq!(holders(&nodes).await, [1, 1, 1]);
    process.links[1].always(Fault::LoseAnswer);
    let error = process.renew(&one).await.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::Unknown));
    assert!(error.message.starts_with("2 of 3 nodes did not answer"), "{error}");
    io.sleep(SEC).await;
    assert_eq!(holders(&nodes).await, [1, 1, 1]);
    let sent = |n: usize| process.links[n].sent.lock().unwrap().clone();
    assert!((0..3).all(|n| sent(n).iter().all(|(kind, _)| *kind != Kind::Release)));
}

#[tokio::test(start_paused = true)]
async fn lost_is_reported_only_without_a_possible_majority() {
    let (io, nodes) = world(5);
    let process = Process::over(&nodes, &io);
    let one = claim("k");
    process.granted(process.quorum.try_acquire(&one).await);
    nodes[0].forget();
    nodes[1].forget();
    process.links[2].always(Fault::Refuse);
    process.links[0].next(Kind::Try, [Fault::Refuse]);
    process.links[1].next(Kind::Try, [Fault::Refuse]);
    assert!(process.renew(&one).await.is_err(), "2 held, 2 lost, 1 unknown");
    nodes[3].forget();
    assert_eq!(process.renew(&one).await.unwrap(), Renewal::Lost);
}

/// R2: what a renewal plants does not count for it.
#[tokio::test(start_paused = true)]
async fn an_expired_holder_is_not_granted_by_a_renewal() {
    let (io, nodes) = world(3);
    let (first, second) = (Process::over(&nodes, &io), Process::over(&nodes, &io));
    let (one, other) = (claim("k"), claim("k"));
    first.granted(first.quorum.try_acquire(&one).await);
    io.sleep(one.ttl).await;
    second.granted(second.quorum.try_acquire(&other).await);
    second.quorum.release(&other, Linger::None).await.unwrap();
    assert_eq!(first.renew(&one).await.unwrap(), Renewal::Lost);
    io.sleep(SEC).await;
    assert_eq!(first.renew(&one).await.unwrap(), Renewal::Lost);
    assert!(free(&nodes).await, "a lost claim is planted nowhere");
    // One node alone knows of the next claim: no majority, whatever a renewal would plant.
    let one = claim("k");
    first.granted(first.quorum.try_acquire(&one).await);
    nodes[0].forget();
    nodes[1].forget();
    assert_eq!(first.renew(&one).await.unwrap(), Renewal::Lost);
    assert_eq!(holders(&nodes).await, [0, 0, 1]);
}

/// H58: nodes restart one after another under a long hold.
#[tokio::test(start_paused = true)]
async fn a_long_hold_outlives_every_single_node() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    let one = claim("k");
    let grant = process.granted(process.quorum.try_acquire(&one).await);
    for round in 0..9 {
        nodes[round % 3].forget();
        io.sleep(SEC).await;
        match process.renew(&one).await {
            Ok(Renewal::Held { token, .. }) => assert_eq!(token, grant.token),
            other => panic!("{round}: {other:?}"),
        }
        io.sleep(MS).await;
        assert_eq!(holders(&nodes).await, [1, 1, 1], "planted again");
        assert!(nodes[round % 3].snapshot("k").await.token >= grant.token);
    }
}

/// R3: a late copy of the holder's own try can plant the claim anew, so `Held` alone proves no
/// unbroken hold: the engine drops an answer that comes after the old validity. What the nodes have can
/// only be the vote of that very round, and goes with its release or its ttl.
#[tokio::test(start_paused = true)]
async fn a_late_copy_counts_for_its_own_round_only() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    let one = claim("k");
    for link in &process.links[..2] {
        link.next(Kind::Try, [Fault::Again(15 * SEC)]);
    }
    let first = process.granted(process.quorum.try_acquire(&one).await);
    io.sleep(11 * SEC).await;
    // The round has lapsed; the same claim again is another round, with a greater token.
    let second = process.granted(process.quorum.try_acquire(&one).await);
    assert!(second.token > first.token);
    io.sleep(2 * SEC).await;
    process.quorum.release(&one, Linger::None).await.unwrap();
    io.sleep(3 * SEC).await;
    assert_eq!(holders(&nodes).await, [1, 1, 0], "the copies of the first round");
    assert_eq!(process.renew(&one).await.unwrap(), Renewal::Lost, "are nobody's hold");
    io.sleep(10 * SEC).await;
    assert!(free(&nodes).await);
}

/// H22: the release of one round arrives during the next.
#[tokio::test(start_paused = true)]
async fn a_late_release_of_one_round_does_not_end_the_next() {
    let (io, nodes) = world(3);
    let (holder, process) = (Process::over(&nodes, &io), Process::over(&nodes, &io));
    holder.links[2].always(Fault::LoseRequest);
    let held = claim("k");
    holder.granted(holder.quorum.try_acquire(&held).await);
    let one = claim("k");
    // Two nodes are in the way, and all releases of what the third granted come late.
    process.links.iter().for_each(|link| {
        link.next(Kind::Release, vec![Fault::Delay(3 * SEC, SEC); 20]);
    });
    for _ in 0..2 {
        process.blocked(process.quorum.try_acquire(&one).await);
        io.sleep(500 * MS).await;
    }
    holder.quorum.release(&held, Linger::None).await.unwrap();
    process.granted(process.quorum.try_acquire(&one).await);
    for _ in 0..8 {
        io.sleep(SEC).await;
        assert!(matches!(process.renew(&one).await, Ok(Renewal::Held { .. })));
        let rival = claim("k").with(|it| it.waits = false);
        holder.blocked(holder.quorum.try_acquire(&rival).await);
    }
    let names = |n: usize| process.links[n].sent.lock().unwrap().clone();
    for n in 0..3 {
        let mut burnt = Vec::new();
        for (kind, id) in names(n) {
            match kind {
                Kind::Release => burnt.push(id),
                Kind::Try => assert!(!burnt.contains(&id), "a name that was released before"),
                Kind::Renew => {}
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_by_the_release_and_marks_are_taken_back() {
    let (io, nodes) = world(3);
    let (holder, waiter) = (Process::over(&nodes, &io), Process::over(&nodes, &io));
    let (held, one) = (claim("k"), claim("k"));
    holder.granted(holder.quorum.try_acquire(&held).await);
    waiter.links[0].next(Kind::Try, [Fault::Refuse]);
    let blocked = waiter.blocked(waiter.quorum.try_acquire(&one).await);
    assert_eq!(blocked.retry_after, Some(held.ttl));
    assert_eq!(blocked.holder, Some("a test".into()));
    let (start, quorum) = (io.now(), holder.quorum.clone());
    let later = io.sleep(SEC);
    io.spawn(async move {
        later.await;
        quorum.release(&held, Linger::None).await.unwrap();
    });
    assert_eq!(waiter.quorum.wait(&one, &blocked).await.unwrap(), Wake::Look);
    assert_eq!(io.now().since(start), SEC);
    waiter.granted(waiter.quorum.try_acquire(&one).await);
    io.sleep(MS).await;
    for node in &nodes {
        assert!(node.snapshot("k").await.waiters.is_empty());
    }
    // A waiter that goes away takes its marks along.
    let rival = claim("k");
    holder.blocked(holder.quorum.try_acquire(&rival).await);
    assert_eq!(nodes[0].snapshot("k").await.waiters.len(), 1);
    let released = holder.quorum.release(&rival, Linger::None).await;
    assert_eq!(released.unwrap(), Released::Yes);
    assert!(nodes[0].snapshot("k").await.waiters.is_empty());
    assert_eq!(holder.quorum.shared.book().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_split_vote_the_losers_draw_a_pause() {
    let (io, nodes) = world(4);
    let processes = [Process::over(&nodes, &io), Process::over(&nodes, &io)];
    // Each is near to two nodes and far from the other two.
    for (number, process) in processes.iter().enumerate() {
        for (n, link) in process.links.iter().enumerate() {
            let far = if n / 2 == number { MS } else { 5 * MS };
            link.always(Fault::Delay(far, far));
        }
    }
    let claims = [
        claim("k").with(|it| it.holder = "a".into()),
        claim("k").with(|it| it.holder = "b".into()),
    ];
    let (first, second) = tokio::join!(
        processes[0].quorum.try_acquire(&claims[0]),
        processes[1].quorum.try_acquire(&claims[1]),
    );
    let (first, second) = (processes[0].blocked(first), processes[1].blocked(second));
    for (process, (one, blocked)) in processes.iter().zip(claims.iter().zip([&first, &second])) {
        let pause = blocked.retry_after.unwrap();
        assert!(!pause.is_zero() && pause <= 20 * MS, "two trips at most: {pause:?}");
        let start = io.now();
        process.quorum.wait(one, blocked).await.unwrap();
        let waited = io.now().since(start);
        assert!(waited >= pause && waited <= pause + MS, "{waited:?} of {pause:?}");
    }
    io.sleep(100 * MS).await;
    processes[1].granted(processes[1].quorum.try_acquire(&claims[1]).await);
}

/// H55: many at once, and somebody always wins.
#[tokio::test(start_paused = true)]
async fn twenty_clients_all_get_their_turn() {
    let (io, nodes) = world(5);
    let (done, mut turns) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..20 {
        let process = Process::over(&nodes, &io);
        for (m, link) in process.links.iter().enumerate() {
            link.always(Fault::Delay(MS * ((n * 7 + m * 3) % 5 + 1) as u32, MS));
        }
        let (io, done) = (io.clone(), done.clone());
        io.clone().spawn(async move {
            for _ in 0..3 {
                let one = claim("k").with(|it| it.holder = format!("{n}").into());
                while let Attempt::Blocked(blocked) =
                    process.quorum.try_acquire(&one).await.unwrap()
                {
                    process.quorum.wait(&one, &blocked).await.unwrap();
                }
                io.sleep(5 * MS).await;
                process.quorum.release(&one, Linger::None).await.unwrap();
                done.send(n).unwrap();
            }
        });
    }
    drop(done);
    let (start, mut count) = (io.now(), 0);
    while let Some(Some(_)) = io.within(30 * SEC, turns.recv()).await {
        count += 1;
    }
    assert_eq!(count, 60, "after {:?}", io.now().since(start));
    assert!(io.now().since(start) < 30 * SEC, "{:?}", io.now().since(start));
}

/// B10: dropped after any number of polls, a verb leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_dropped_call_leaves_nothing() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    for (n, link) in process.links.iter().enumerate() {
        link.always(Fault::Delay(MS * (n as u32 + 1), MS * (n as u32 + 1)));
    }
    for after in 0..12 {
        let one = claim("k");
        let _ = io.within(MS * after, process.quorum.try_acquire(&one)).await;
        process.quorum.release(&one, Linger::None).await.unwrap();
        io.sleep(50 * MS).await;
        assert!(free(&nodes).await, "a try dropped after {after} ms, then released");
        let one = claim("k");
        if io.within(MS * after, process.quorum.try_acquire(&one)).await.is_none() {
            io.sleep(50 * MS).await;
            assert!(free(&nodes).await, "a try dropped after {after} ms");
            assert_eq!(process.quorum.shared.book().len(), 0);
        } else {
            let _ = io.within(MS * (after / 2), process.renew(&one)).await;
            let _ = io.within(MS * (after / 2), process.quorum.release(&one, Linger::None)).await;
            io.sleep(50 * MS).await;
            assert!(free(&nodes).await, "a release dropped after {after} ms");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_a_majority_and_reaches_all() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    let one = claim("k");
    process.granted(process.quorum.try_acquire(&one).await);
    process.links[0].next(Kind::Release, [Fault::LoseRequest, Fault::Refuse]);
    let start = io.now();
    process.quorum.release(&one, Linger::None).await.unwrap();
    assert_eq!(io.now(), start);
    assert_eq!(holders(&nodes).await, [1, 0, 0]);
    io.sleep(4 * LIMIT).await;
    assert!(free(&nodes).await, "repeated in the background");
    let again = process.quorum.release(&one, Linger::None).await;
    assert_eq!(again.unwrap(), Released::NotHeld);
    let other = claim("k");
    process.granted(process.quorum.try_acquire(&other).await);
    process.links[0].always(Fault::Refuse);
    process.links[1].always(Fault::Refuse);
    let error = process.quorum.release(&other, Linger::None).await.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::Unknown));
    process.links[1].always(Fault::None);
    let again = process.quorum.release(&other, Linger::None).await;
    assert_eq!(again.unwrap(), Released::Yes, "the name at the nodes is still known");
    io.sleep(other.ttl).await;
    let last = claim("k");
    process.links[0].next(Kind::Release, [Fault::Refuse]);
    process.granted(process.quorum.try_acquire(&last).await);
    process.quorum.release(&last, Linger::None).await.unwrap();
    assert_eq!(holders(&nodes).await, [1, 0, 0]);
    io.sleep(4 * LIMIT).await;
    assert!(free(&nodes).await, "a refused release is repeated too");
}

#[tokio::test(start_paused = true)]
async fn forgotten_claims_do_not_fill_the_book() {
    let (io, nodes) = world(1);
    let process = Process::over(&nodes, &io);
    for n in 0..5_000 {
        let one = claim(&format!("{n}"));
        process.granted(process.quorum.try_acquire(&one).await);
        io.sleep(100 * MS).await;
    }
    assert!(process.quorum.shared.book().len() < 1_000);
}
