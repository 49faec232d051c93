//! B3: a blocked fifo claim keeps its place until released, or until its ttl passes without being
//! repeated; `waits = false` leaves nothing.

use std::time::Duration;

use latchwork_store::{Mode, Order};

use crate::case::{Case, case};
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(the_queue_is_served_in_order, |e| e.fifo),
        case!(a_withdrawn_place_is_never_granted, |e| e.fifo),
        case!(the_next_waiter_has_time_to_take_the_lock, |e| e.fifo && e.permits),
        case!(a_place_that_is_not_repeated_ends_with_its_ttl, |e| e.fifo),
        case!(a_waiting_writer_stops_later_readers, |e| e.fifo && e.shared),
        case!(a_barging_claim_does_not_overtake_the_queue, |e| e.fifo),
        case!(a_barging_claim_has_no_place),
        case!(a_try_without_waiting_leaves_nothing),
        case!(fifo_falls_back_to_barging_without_a_queue, |e| !e.fifo),
    ]
}

/// Who came first is admitted first, however often the others look.
async fn the_queue_is_served_in_order(stage: Stage) {
    for mode in [Mode::Exclusive, Mode::Write, Mode::Permits { take: 2, of: 2 }] {
        if !stage.filling_modes().contains(&mode) {
            continue;
        }
        let clients = [stage.client().await, stage.client().await];
        let mut held = (stage.claim(mode), &clients[0]);
        stage.granted(held.1, &held.0, "the key is free").await;
        let line = [0, 1, 0, 1].map(|client| (stage.claim(mode), &clients[client]));
        for (place, (waiter, client)) in line.iter().enumerate() {
            let ahead = client.blocked(waiter, "the key is held").await.ahead;
            assert!(ahead.is_none_or(|n| n as usize == place), "place {place}, told {ahead:?}");
        }
        for (place, next) in line.iter().enumerate() {
            held.1.released(&held.0, "it was held").await;
            for (other, client) in line[place + 1..].iter().rev() {
                client.blocked(other, "it is not its turn").await;
            }
            stage.granted(next.1, &next.0, "it is its turn").await;
            held = next.clone();
        }
        held.1.released(&held.0, "it was held").await;
    }
}

/// Who withdraws from the line is no longer in the way of those behind.
async fn a_withdrawn_place_is_never_granted(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [held, first, second] = [(); 3].map(|()| stage.claim(Mode::Exclusive));
    stage.granted(&a, &held, "the key is free").await;
    a.blocked(&first, "the key is held").await;
    b.blocked(&second, "the key is held").await;
    a.released(&first, "it waited").await;
    a.released(&held, "it was held").await;
    stage.granted(&b, &second, "the one ahead has withdrawn").await;
}

/// Whose turn has just come, since the one ahead was admitted or withdrew, is not overtaken by who
/// asks first, however long the key was open to others before.
async fn the_next_waiter_has_time_to_take_the_lock(stage: Stage) {
    let permits = |take| Mode::Permits { take, of: 4 };
    for withdraws in [true, false] {
        let stage = stage.again().await;
        let (a, b) = (stage.client().await, stage.client().await);
        let [held, leaving] = [2, 1].map(|take| stage.claim(permits(take)));
        stage.granted(&a, &held, "4 of 4 are free").await;
        stage.granted(&a, &leaving, "2 of 4 are free").await;
        let head = stage.claim(permits(if withdraws { 3 } else { 2 }));
        let next = stage.claim(permits(if withdraws { 2 } else { 1 }));
        a.blocked(&head, "1 of 4 is free").await;
        b.blocked(&next, "another is first in line").await;
        stage.sleep(Duration::from_secs(1)).await;
        if withdraws {
            a.released(&leaving, "it was held").await;
            stage.sleep(Duration::from_secs(3)).await;
            a.released(&head, "it waited").await;
        } else {
            a.released(&held, "it was held").await;
            stage.sleep(Duration::from_secs(3)).await;
            stage.granted(&a, &head, "it is its turn").await;
        }
        a.blocked(&stage.passer(permits(1)), "the next in line was told just now").await;
        stage.granted(&b, &next, "it is its turn").await;
    }
}

/// A place lives by repeats: one that is not repeated for its ttl is gone, one that is stays.
async fn a_place_that_is_not_repeated_ends_with_its_ttl(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(Mode::Exclusive);
    let (lapsing, repeated) = (stage.short_claim(held.mode), stage.short_claim(held.mode));
    let last = stage.claim(Mode::Exclusive);
    stage.granted(&a, &held, "the key is free").await;
    a.blocked(&lapsing, "the key is held").await;
    b.blocked(&repeated, "the key is held").await;
    a.blocked(&last, "the key is held").await;
    let end = stage.now().plus(lapsing.ttl);
    while stage.now() < end.plus(stage.lateness(end)) {
        stage.sleep(repeated.ttl / 5).await;
        b.blocked(&repeated, "the key is held").await;
    }
    a.released(&held, "it was held").await;
    a.blocked(&last, "a repeated place is kept").await;
    stage.granted(&b, &repeated, "the one ahead has not been heard of").await;
}

/// A reader that comes after a waiting writer stands behind it.
async fn a_waiting_writer_stops_later_readers(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (reader, writer, later) =
        (stage.claim(Mode::Read), stage.claim(Mode::Write), stage.claim(Mode::Read));
    stage.granted(&a, &reader, "the key is free").await;
    b.blocked(&writer, "somebody reads").await;
    a.blocked(&later, "a writer waits").await;
    a.released(&reader, "it was held").await;
    a.blocked(&later, "a writer waits").await;
    stage.granted(&b, &writer, "it is its turn").await;
    b.released(&writer, "it was held").await;
    stage.granted(&a, &later, "it is its turn").await;
}

/// A barging try stands behind a live line, also when the key is free at that instant.
async fn a_barging_claim_does_not_overtake_the_queue(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (held, waiter) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
    stage.granted(&a, &held, "the key is free").await;
    b.blocked(&waiter, "the key is held").await;
    a.released(&held, "it was held").await;
    a.blocked(&stage.passer(Mode::Exclusive), "somebody stands in line").await;
    stage.granted(&b, &waiter, "it is its turn").await;
}

/// A blocked barging claim is in nobody's way.
async fn a_barging_claim_has_no_place(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (held, later) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
    let barging = stage.claim(Mode::Exclusive).with(|it| it.order = Order::Barging);
    stage.granted(&a, &held, "the key is free").await;
    b.blocked(&barging, "the key is held").await;
    a.released(&held, "it was held").await;
    stage.granted(&a, &later, "a barging claim has no place").await;
    b.blocked(&barging, "the key is held").await;
    b.release(&barging).await; // a mark is withdrawn, or there was none
    a.released(&later, "it was held").await;
    stage.soon_free(&b, &held.key, "all were released").await;
}

/// A blocked try of a claim that does not wait cannot be seen, nor felt by others.
async fn a_try_without_waiting_leaves_nothing(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(Mode::Exclusive);
    stage.granted(&a, &held, "the key is free").await;
    let before = b.show(&held.key).await;
    for order in [Order::Fifo, Order::Barging] {
        let passer = stage.passer(Mode::Exclusive).with(|it| it.order = order);
        b.blocked(&passer, "the key is held").await;
        let after = b.show(&held.key).await;
        assert_eq!(after.waiters, before.waiters, "{order:?}");
        assert_eq!(after.token, before.token, "{order:?}");
    }
    a.released(&held, "it was held").await;
    stage.granted(&a, &stage.claim(Mode::Exclusive), "nobody waits").await;
}

/// A store without a line takes fifo claims, and promises them no place.
async fn fifo_falls_back_to_barging_without_a_queue(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (held, waiter) = (stage.claim(Mode::Exclusive), stage.claim(Mode::Exclusive));
    stage.granted(&a, &held, "the key is free").await;
    let blocked = b.blocked(&waiter, "the key is held").await;
    assert_eq!(blocked.ahead, None, "there is no line to count");
    a.released(&held, "it was held").await;
    stage.granted(&a, &stage.passer(Mode::Exclusive), "nobody has a place").await;
}
