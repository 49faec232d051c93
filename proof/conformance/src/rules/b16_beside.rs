//! B16: a claim beside a hold of its own holder replaces it without a gap.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_store::{
    Attempt, BackendErrorKind, Cause, Claim, ClaimId, Effect, Grant, Mode, Order, Released, Stamp,
    random_between,
};
use tokio::task::JoinSet;

use super::b07_wakeups::woken;
use crate::case::{Case, case};
use crate::harness::{Client, Fault};
use crate::random::Random;
use crate::stage::{Stage, acquire, drop_after};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(the_only_reader_upgrades_at_once, |e| e.upgrade),
        case!(an_upgrade_waits_for_the_other_readers, |e| e.upgrade),
        case!(the_last_other_reader_wakes_the_upgrade, |e| e.upgrade && e.push),
        case!(later_readers_wait_behind_an_upgrade, |e| e.upgrade && e.fifo),
        case!(a_second_upgrade_is_refused, |e| e.upgrade),
        case!(an_upgrade_goes_ahead_of_the_queue, |e| e.upgrade && e.fifo),
        case!(a_later_reader_overtakes_no_earlier_waiter, |e| e.upgrade && e.fifo),
        case!(a_hold_keeps_its_rank_through_changes, |e| e.upgrade && e.fifo),
        case!(an_upgrade_without_its_hold_stops_no_other, |e| e.upgrade),
        case!(a_withdrawn_upgrade_lets_readers_in, |e| e.upgrade && e.push),
        case!(an_upgrade_that_is_not_repeated_lets_readers_in, |e| e.upgrade),
        case!(a_lost_hold_is_not_replaced, |e| e.upgrade),
        case!(a_downgrade_leaves_no_gap, |e| e.upgrade),
        case!(readers_join_after_a_downgrade, |e| e.upgrade),
        case!(tokens_grow_through_both, |e| e.upgrade),
        case!(a_repeated_claim_is_the_same_grant, |e| e.upgrade),
        case!(a_lost_answer_loses_no_hold, |e| e.upgrade),
        case!(each_of_the_two_ends_by_itself, |e| e.upgrade),
        case!(contending_upgrades_never_overlap, |e| e.upgrade),
        case!(a_claim_replaces_one_of_another_mode, |e| e.upgrade),
        case!(replacing_is_refused_clearly, |e| e.shared && !e.upgrade),
    ]
}

/// A fresh claim that is to replace a hold.
fn replacing(stage: &Stage, mode: Mode, hold: &Claim) -> Claim {
    stage.claim(mode).with(|it| it.beside = Some(hold.id))
}

/// An upgrade without other readers is granted beside the read hold, and excludes everybody else.
async fn the_only_reader_upgrades_at_once(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let read = stage.claim(Mode::Read);
    let write = replacing(&stage, Mode::Write, &read).with(|it| it.waits = false);
    let before = stage.granted(&a, &read, "the key is free").await.token;
    let after = stage.granted(&a, &write, "nobody else reads").await.token;
    assert!(after > before, "{after} after {before}");
    a.held(&read, "it was not released").await;
    for release_read in [true, false] {
        for mode in [Mode::Read, Mode::Write] {
            b.blocked(&stage.passer(mode), "somebody writes").await;
        }
        a.held(&write, "it was granted").await;
        if release_read {
            a.released(&read, "it was held").await;
        }
    }
    a.lost(&read, "it was released").await;
    a.released(&write, "it was held").await;
    stage.granted(&b, &stage.claim(Mode::Write), "the key is free").await;
}

/// While another client reads, the upgrade is blocked and the read hold stays.
async fn an_upgrade_waits_for_the_other_readers(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [read, first, last] = [(); 3].map(|()| stage.claim(Mode::Read));
    for (client, reader) in [(&a, &read), (&b, &first), (&a, &last)] {
        stage.granted(client, reader, "readers share").await;
    }
    let write = replacing(&stage, Mode::Write, &read);
    for (client, reader) in [(&b, &first), (&a, &last)] {
        let blocked = a.blocked(&write, "others read").await;
        assert_eq!(blocked.cause, Cause::Held);
        a.held(&read, "an upgrade keeps it").await;
        client.released(reader, "it was held").await;
    }
    stage.granted(&a, &write, "nobody else reads").await;
    b.blocked(&stage.passer(Mode::Read), "somebody writes").await;
    a.released(&read, "it was held").await;
    a.held(&write, "it was granted").await;
}

/// The release of the last other reader ends the wait of an upgrade.
async fn the_last_other_reader_wakes_the_upgrade(stage: Stage) {
    for same_client in [true, false] {
        let stage = stage.again().await;
        let (a, b) = (stage.client().await, stage.client().await);
        let other = if same_client { &a } else { &b };
        let [read, last] = [(); 2].map(|()| stage.claim(Mode::Read));
        stage.granted(&a, &read, "the key is free").await;
        stage.granted(other, &last, "readers share").await;
        let write = replacing(&stage, Mode::Write, &read);
        let blocked = a.blocked(&write, "another reads").await;
        other.released(&last, "it was held").await;
        woken(&stage, &a, &write, &blocked, "the last other reader has left").await;
        stage.granted(&a, &write, "nobody else reads").await;
        a.held(&read, "it was not released").await;
        b.blocked(&stage.passer(Mode::Read), "somebody writes").await;
    }
}

/// Readers that come while an upgrade waits do not delay it.
async fn later_readers_wait_behind_an_upgrade(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [read, other, later] = [(); 3].map(|()| stage.claim(Mode::Read));
    stage.granted(&a, &read, "the key is free").await;
    stage.granted(&b, &other, "readers share").await;
    let write = replacing(&stage, Mode::Write, &read);
    a.blocked(&write, "another reads").await;
    b.blocked(&later, "an upgrade waits").await;
    b.blocked(&stage.passer(Mode::Read), "an upgrade waits").await;
    b.released(&other, "it was held").await;
    stage.granted(&a, &write, "nobody else reads").await;
    b.blocked(&later, "somebody writes").await;
    a.released(&read, "it was held").await;
    b.blocked(&later, "somebody writes").await;
    a.released(&write, "it was held").await;
    stage.granted(&b, &later, "the key is free").await;
}

/// Two upgrades would wait for each other: the second gets the holder of the first, and leaves nothing.
async fn a_second_upgrade_is_refused(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [ours, theirs] = [(); 2].map(|()| stage.claim(Mode::Read));
    stage.granted(&a, &ours, "the key is free").await;
    stage.granted(&b, &theirs, "readers share").await;
    let first = replacing(&stage, Mode::Write, &ours);
    a.blocked(&first, "another reads").await;
    let second = replacing(&stage, Mode::Write, &theirs);
    for _ in 0..2 {
        let blocked = b.blocked(&second, "another upgrade waits").await;
        assert_eq!(blocked.cause, Cause::Upgrade);
        assert!(blocked.holder.is_none_or(|by| by.text == first.holder.text), "not by the first upgrade");
    }
    let waits = |shown: &latchwork_store::Snapshot| {
        shown.waiters.iter().filter_map(|party| party.id).collect::<Vec<_>>()
    };
    let alone = [first.id];
    stage.soon(&b, &ours.key, "a refused upgrade has no place", |it| waits(it) == alone).await;
    assert_eq!(b.release(&second).await, Released::NotHeld, "it left nothing");
    b.held(&theirs, "a refused upgrade keeps it").await;
    // The one that was refused can upgrade when the other has withdrawn.
    a.released(&first, "it waited").await;
    let again = replacing(&stage, Mode::Write, &theirs);
    assert_eq!(b.blocked(&again, "another reads").await.cause, Cause::Held);
    a.released(&ours, "it was held").await;
    stage.granted(&b, &again, "nobody else reads").await;
}

/// Writers and readers that waited before do not delay an upgrade: they wait for its read hold.
async fn an_upgrade_goes_ahead_of_the_queue(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (read, writer) = (stage.claim(Mode::Read), stage.claim(Mode::Write));
    let (other, reader) = (stage.claim(Mode::Read), stage.claim(Mode::Read));
    stage.granted(&a, &read, "the key is free").await;
    stage.granted(&b, &other, "readers share").await;
    b.blocked(&writer, "others read").await;
    b.blocked(&reader, "a writer waits").await;
    let write = replacing(&stage, Mode::Write, &read);
    a.blocked(&write, "another reads").await;
    b.released(&other, "it was held").await;
    b.blocked(&writer, "somebody reads").await;
    stage.granted(&a, &write, "it is ahead of the writer").await;
    b.blocked(&writer, "somebody writes").await;
    a.released(&read, "it was held").await;
    for waiter in [&writer, &reader] {
        b.blocked(waiter, "somebody writes").await;
    }
    a.held(&write, "it was granted").await;
    a.released(&write, "it was held").await;
    b.blocked(&reader, "a writer is ahead").await;
    stage.granted(&b, &writer, "it is its turn").await;
    b.released(&writer, "it was held").await;
    stage.granted(&b, &reader, "it is its turn").await;
}

/// H546: an upgrade that is given up may let a later reader pass a waiter, but that reader's upgrade goes ahead of no
/// claim that came before it. So the waiter is passed by one generation of readers at most.
async fn a_later_reader_overtakes_no_earlier_waiter(stage: Stage) {
    for waits in [true, false] {
        let stage = stage.again().await;
        let (a, b, c) = (stage.client().await, stage.client().await, stage.client().await);
        let [read, other, later] = [(); 3].map(|()| stage.claim(Mode::Read));
        let writer = stage.claim(Mode::Write);
        stage.granted(&a, &read, "the key is free").await;
        stage.granted(&a, &other, "readers share").await;
        b.blocked(&writer, "others read").await;
        let upgrade = replacing(&stage, Mode::Write, &read);
        a.blocked(&upgrade, "another reads").await;
        c.blocked(&later, "a writer waits").await;
        a.released(&upgrade, "it waited").await;
        // Where the upgrade has removed the writer's place, it is behind the reader until it asks again.
        let passes = matches!(c.attempt(&later).await, Ok(Attempt::Granted(_)));
        b.blocked(&writer, "others read").await;
        if passes {
            let upgrade = replacing(&stage, Mode::Write, &later).with(|it| it.waits = waits);
            for _ in 0..2 {
                assert_eq!(c.blocked(&upgrade, "a writer waits").await.cause, Cause::Earlier);
                c.held(&later, "a refused upgrade keeps it").await;
            }
            assert_eq!(c.release(&upgrade).await, Released::NotHeld, "it left nothing");
        }
        for mode in [Mode::Read, Mode::Write] {
            c.blocked(&stage.passer(mode), "a writer waits").await;
        }
        // Its own hold came before the writer.
        let upgrade = replacing(&stage, Mode::Write, &read);
        assert_eq!(a.blocked(&upgrade, "another reads").await.cause, Cause::Held);
        a.released(&upgrade, "it waited").await;
        b.blocked(&writer, "others read").await;
        for (client, reader) in [(&a, &read), (&a, &other), (&c, &later)] {
            client.release(reader).await;
        }
        stage.granted(&b, &writer, "it is its turn").await;
    }
}

/// A hold that came before a waiter goes ahead of it each time, however often it has become another hold.
async fn a_hold_keeps_its_rank_through_changes(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (mut hold, writer) = (stage.claim(Mode::Read), stage.claim(Mode::Write));
    stage.granted(&a, &hold, "the key is free").await;
    for mode in [Mode::Write, Mode::Read].into_iter().cycle().take(6) {
        b.blocked(&writer, "somebody holds").await;
        let next = replacing(&stage, mode, &hold);
        stage.granted(&a, &next, "it is ahead of the writer").await;
        a.released(&hold, "it was held").await;
        hold = next;
    }
    b.blocked(&writer, "somebody reads").await;
    a.released(&hold, "it was held").await;
    stage.granted(&b, &writer, "it is its turn").await;
}

/// An upgrade waits, and is not repeated after its hold has ended. A later reader upgrades all the same.
async fn an_upgrade_without_its_hold_stops_no_other(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [read, other] = [(); 2].map(|()| stage.claim(Mode::Read));
    stage.granted(&a, &read, "the key is free").await;
    stage.granted(&b, &other, "readers share").await;
    a.blocked(&replacing(&stage, Mode::Write, &read), "another reads").await;
    a.released(&read, "it was held").await;
    let write = replacing(&stage, Mode::Write, &other);
    stage.granted(&b, &write, "nobody else reads").await;
    b.held(&other, "it was not released").await;
}

/// An upgrade that gives up leaves the key to readers, and the read hold to its holder.
async fn a_withdrawn_upgrade_lets_readers_in(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [read, other, later] = [(); 3].map(|()| stage.claim(Mode::Read));
    stage.granted(&a, &read, "the key is free").await;
    stage.granted(&b, &other, "readers share").await;
    let write = replacing(&stage, Mode::Write, &read);
    a.blocked(&write, "another reads").await;
    let blocked = b.blocked(&later, "an upgrade waits").await;
    a.released(&write, "it waited").await;
    woken(&stage, &b, &later, &blocked, "the upgrade was withdrawn").await;
    stage.granted(&b, &later, "readers share").await;
    a.held(&read, "a withdrawn upgrade keeps it").await;
}

/// A waiting upgrade whose client is not heard of stops readers no longer than its ttl.
async fn an_upgrade_that_is_not_repeated_lets_readers_in(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [read, other] = [(); 2].map(|()| stage.claim(Mode::Read));
    stage.granted(&a, &read, "the key is free").await;
    stage.granted(&b, &other, "readers share").await;
    let write = replacing(&stage, Mode::Write, &read).with(|it| it.ttl = stage.short());
    a.blocked(&write, "another reads").await;
    let end = stage.now().plus(write.ttl);
    stage.sleep_until(end.plus(stage.lateness(end))).await;
    stage.granted(&b, &stage.claim(Mode::Read), "the upgrade has not been heard of").await;
    a.held(&read, "its own ttl is not over").await;
}

/// A claim beside a hold that has ended is blocked by `Gone` and leaves nothing, also if it waited.
async fn a_lost_hold_is_not_replaced(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let [read, other] = [(); 2].map(|()| stage.claim(Mode::Read));
    let gone = async |write: &Claim, why: &str| {
        assert_eq!(a.blocked(write, why).await.cause, Cause::Gone, "{why}");
        let nobody = |it: &latchwork_store::Snapshot| it.waiters.is_empty();
        stage.soon(&b, &read.key, "it leaves nothing", nobody).await;
        assert_eq!(a.release(write).await, Released::NotHeld, "{why}: it left nothing");
    };
    gone(&replacing(&stage, Mode::Write, &read), "nobody ever held").await;
    stage.granted(&a, &read, "the key is free").await;
    stage.granted(&b, &other, "readers share").await;
    let write = replacing(&stage, Mode::Write, &read);
    a.blocked(&write, "another reads").await;
    a.released(&read, "it was held").await;
    gone(&write, "the hold was released").await;
    stage.granted(&b, &stage.claim(Mode::Read), "no upgrade waits").await;
    // The grant does not depend on the hold that it replaced.
    let stage = stage.again().await;
    let a = stage.client().await;
    let read = stage.claim(Mode::Read);
    let write = replacing(&stage, Mode::Write, &read);
    stage.granted(&a, &read, "the key is free").await;
    let token = stage.granted(&a, &write, "nobody else reads").await.token;
    a.released(&read, "it was held").await;
    let again = stage.granted(&a, &write, "it is held already").await.token;
    assert_eq!(again, token, "the same grant");
}

/// A downgrade is granted although a writer waits, which gets in only when the read hold has ended.
async fn a_downgrade_leaves_no_gap(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (write, writer) = (stage.claim(Mode::Write), stage.claim(Mode::Write));
    stage.granted(&a, &write, "the key is free").await;
    b.blocked(&writer, "somebody writes").await;
    let read = replacing(&stage, Mode::Read, &write).with(|it| it.waits = false);
    stage.granted(&a, &read, "a downgrade never waits").await;
    b.blocked(&writer, "somebody writes").await;
    b.blocked(&stage.passer(Mode::Read), "somebody writes").await;
    a.released(&write, "it was held").await;
    b.blocked(&writer, "somebody reads").await;
    b.blocked(&stage.passer(Mode::Write), "somebody reads").await;
    a.held(&read, "it was granted").await;
    a.released(&read, "it was held").await;
    stage.granted(&b, &writer, "it is its turn").await;
}

/// Readers that waited for a writer come in when it has become a reader.
async fn readers_join_after_a_downgrade(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (write, reader) = (stage.claim(Mode::Write), stage.claim(Mode::Read));
    stage.granted(&a, &write, "the key is free").await;
    b.blocked(&reader, "somebody writes").await;
    let read = replacing(&stage, Mode::Read, &write).with(|it| it.waits = false);
    stage.granted(&a, &read, "a downgrade never waits").await;
    b.blocked(&reader, "somebody writes").await;
    a.released(&write, "it was held").await;
    stage.granted(&b, &reader, "readers share").await;
    a.held(&read, "it was granted").await;
    b.blocked(&stage.passer(Mode::Write), "others read").await;
}

/// Every grant of a holder that goes up and down has a larger token than the one before.
async fn tokens_grow_through_both(stage: Stage) {
    let a = stage.client().await;
    let mut hold = stage.claim(Mode::Read);
    let mut last = stage.granted(&a, &hold, "the key is free").await.token;
    for mode in [Mode::Write, Mode::Read, Mode::Write, Mode::Read] {
        let next = replacing(&stage, mode, &hold);
        let token = stage.granted(&a, &next, "nobody else is there").await.token;
        assert!(token > last, "{mode:?}: {token} after {last}");
        a.released(&hold, "it was held").await;
        assert_eq!(a.held(&next, "it was granted").await.1, token);
        (hold, last) = (next, token);
    }
    a.released(&hold, "it was held").await;
    let writer = stage.claim(Mode::Write);
    assert!(stage.granted(&a, &writer, "the key is free").await.token > last);
}

/// The same id is the same claim, before and after the hold that it replaces was released (B2).
async fn a_repeated_claim_is_the_same_grant(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for (held, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
        let hold = stage.claim(held);
        let next = replacing(&stage, wanted, &hold);
        stage.granted(&a, &hold, "the key is free").await;
        let token = stage.granted(&a, &next, "nobody else is there").await.token;
        for holders in [2, 1] {
            for _ in 0..2 {
                let again = stage.granted(&a, &next, "it is held already").await.token;
                assert_eq!(again, token, "{wanted:?}");
                let shown = b.show(&hold.key).await.holders.len();
                assert_eq!(shown, holders, "{wanted:?}: one claim, one holder");
            }
            if holders == 2 {
                a.released(&hold, "it was held").await;
            }
        }
        a.released(&next, "one release ends what many tries began").await;
        stage.soon_free(&b, &hold.key, "both were released").await;
    }
}

/// A request that was abandoned, or whose answer was lost, is repeated or withdrawn; the hold stays.
async fn a_lost_answer_loses_no_hold(stage: Stage) {
    for (polls, repeats) in (0..8).flat_map(|polls| [(polls, true), (polls, false)]) {
        for (held, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
            let stage = stage.again().await;
            let (a, b) = (stage.client().await, stage.client().await);
            let hold = stage.claim(held);
            let next = replacing(&stage, wanted, &hold);
            stage.granted(&a, &hold, "the key is free").await;
            if polls == 0 && a.set_fault(Fault::LoseAnswers) {
                let lost = stage.within(stage.short(), a.attempt(&next)).await;
                assert!(!matches!(lost, Some(Ok(_))), "the answer was lost, but {lost:?}");
                a.set_fault(Fault::None);
            } else {
                drop_after(polls, a.attempt(&next)).await;
            }
            if repeats {
                reach(&stage, &a, &next).await;
                stage.granted(&a, &next, "nobody else is there").await;
                a.held(&hold, "it was not released").await;
                a.released(&hold, "it was held").await;
                b.blocked(&stage.passer(Mode::Write), "somebody holds").await;
            } else {
                withdraw(&stage, &a, &next).await;
                a.held(&hold, "it was not released").await;
                a.released(&hold, "it was held").await;
            }
            withdraw(&stage, &a, &next).await;
            stage.soon_free(&b, &hold.key, "all were released").await;
        }
    }
}

/// Repeats a try until it is answered: a connection of before the end of a fault may still fail.
async fn reach(stage: &Stage, client: &Client, claim: &Claim) {
    while client.attempt(claim).await.is_err() {
        stage.settle().await;
    }
}

async fn withdraw(stage: &Stage, client: &Client, claim: &Claim) {
    while client.backend.release(claim, latchwork_store::Linger::None).await.is_err() {
        stage.settle().await;
    }
}

/// The ttl of one of the two passes: the other is held as before.
async fn each_of_the_two_ends_by_itself(stage: Stage) {
    for (held, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
        for ends in [true, false] {
            let stage = stage.again().await;
            let (a, b) = (stage.client().await, stage.client().await);
            let short = |claim: Claim, is_short: bool| {
                claim.with(|it| it.ttl = if is_short { stage.short() } else { it.ttl })
            };
            let hold = short(stage.claim(held), ends);
            let next = short(replacing(&stage, wanted, &hold), !ends);
            stage.granted(&a, &hold, "the key is free").await;
            stage.granted(&a, &next, "nobody else is there").await;
            let end = stage.now().plus(stage.short());
            stage.sleep_until(end.plus(stage.lateness(end))).await;
            let (gone, stays) = if ends { (&hold, &next) } else { (&next, &hold) };
            b.blocked(&stage.passer(Mode::Write), "the other is held").await;
            if stays.mode == Mode::Read {
                stage.granted(&b, &stage.claim(Mode::Read), "readers share").await;
            } else {
                b.blocked(&stage.passer(Mode::Read), "somebody writes").await;
            }
            a.lost(gone, "its ttl is over").await;
            a.held(stays, "its own ttl is not over").await;
        }
    }
}

/// Who holds, from the answer to before the release.
type Book = Arc<Mutex<Vec<(ClaimId, Mode)>>>;

fn enter(book: &Book, claim: &Claim) {
    let mut book = book.lock().expect("nobody panicked");
    for (id, mode) in book.iter().filter(|(id, _)| Some(*id) != claim.beside) {
        let share = (*mode, claim.mode) == (Mode::Read, Mode::Read);
        assert!(share, "{claim:?} was granted beside {id} ({mode:?})");
    }
    book.push((claim.id, claim.mode));
}

fn leave(book: &Book, claim: &Claim) {
    book.lock().expect("nobody panicked").retain(|(id, _)| *id != claim.id);
}

/// Readers that upgrade and downgrade at random among writers: nobody holds beside a writer but
/// its own hold that it replaces, and all get their turn.
async fn contending_upgrades_never_overlap(stage: Stage) {
    let book = Book::default();
    let mut tasks = JoinSet::new();
    for number in 0..3 {
        let client = Arc::new(stage.client().await);
        for n in 0..3_u64 {
            let make = |mode| (0..24).map(move |_| mode);
            let claims = [make(Mode::Read), make(Mode::Write)];
            let [reads, writes] = claims.map(|modes| modes.map(|m| stage.claim(m)).collect());
            let worker = Worker {
                io: stage.io(),
                client: client.clone(),
                book: book.clone(),
                random: Random(number * 3 + n),
                reads,
                writes,
            };
            tasks.spawn(worker.run(n == 2));
        }
    }
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    assert!(book.lock().expect("nobody panicked").is_empty());
}

struct Worker {
    io: latchwork_store::Io,
    client: Arc<Client>,
    book: Book,
    random: Random,
    reads: Vec<Claim>,
    writes: Vec<Claim>,
}

impl Worker {
    async fn run(mut self, writes: bool) {
        for _ in 0..6 {
            let first = if writes { self.writes.pop() } else { self.reads.pop() };
            let mut hold = first.expect("enough claims");
            acquire(&self.io, &self.client, &hold).await;
            enter(&self.book, &hold);
            self.work().await;
            for _ in 0..self.random.below(4) {
                let fresh = match hold.mode {
                    Mode::Read => self.writes.pop(),
                    _ => self.reads.pop(),
                };
                let next = fresh.expect("enough claims").with(|it| {
                    it.beside = Some(hold.id);
                    it.waits = hold.mode == Mode::Read;
                });
                if self.replace(&next).await.is_none() {
                    break;
                }
                enter(&self.book, &next);
                self.work().await;
                leave(&self.book, &hold);
                self.client.released(&hold, "it was held").await;
                self.work().await;
                hold = next;
            }
            leave(&self.book, &hold);
            self.client.released(&hold, "it was held").await;
        }
    }

    async fn work(&self) {
        self.io.sleep(random_between(Duration::ZERO, Duration::from_millis(2))).await;
    }

    /// Replaces a hold; none if another upgrade is under way, or would overtake an earlier claim.
    async fn replace(&self, claim: &Claim) -> Option<Grant> {
        let mut claim = claim.clone();
        for _ in 0..10_000 {
            claim.stamp = Stamp::new(self.io.now());
            match self.client.attempt(&claim).await.expect("contention is no error") {
                Attempt::Granted(grant) => return Some(grant),
                Attempt::Blocked(blocked)
                    if matches!(blocked.cause, Cause::Upgrade | Cause::Earlier) =>
                {
                    return None;
                }
                Attempt::Blocked(blocked) => {
                    assert_ne!(blocked.cause, Cause::Gone, "it is held");
                    let third = claim.ttl / 3;
                    let pause = blocked.retry_after.unwrap_or(third).min(third);
                    let wait = self.client.backend.wait(&claim, &blocked);
                    if let Some(wake) = self.io.within(pause, wait).await {
                        wake.expect("a wait without fault");
                    }
                    self.work().await;
                }
            }
        }
        panic!("no grant after 10,000 tries: {claim:?}")
    }
}

/// A reader replaces a writer and a writer a reader; everything else is a mistake of the client.
async fn a_claim_replaces_one_of_another_mode(stage: Stage) {
    for (held, wanted) in [
        (Mode::Read, Mode::Read),
        (Mode::Write, Mode::Write),
        (Mode::Exclusive, Mode::Exclusive),
    ] {
        let stage = stage.again().await;
        let a = stage.client().await;
        let hold = stage.claim(held);
        stage.granted(&a, &hold, "the key is free").await;
        let next = replacing(&stage, wanted, &hold);
        let error = a.attempt(&next).await.expect_err("it replaces nothing");
        assert_eq!(error.kind, BackendErrorKind::Mismatch, "{wanted:?}: {error:?}");
        let step = error.next_step.as_deref().unwrap_or_default();
        assert!(step.contains("replace a read hold by a write claim"), "{wanted:?}: {step}");
        assert_eq!(a.release(&next).await, Released::NotHeld, "{wanted:?}: it left nothing");
        a.held(&hold, "a refusal keeps it").await;
    }
}

/// A store that cannot replace holds says so, with `Unsupported`, and the hold stays.
async fn replacing_is_refused_clearly(stage: Stage) {
    for (held, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
        let stage = stage.again().await;
        let a = stage.client().await;
        let hold = stage.claim(held);
        stage.granted(&a, &hold, "the key is free").await;
        for order in [Order::Fifo, Order::Barging] {
            let next = replacing(&stage, wanted, &hold).with(|it| it.order = order);
            let error = a.attempt(&next).await.expect_err("it cannot do this");
            assert_eq!(error.kind, BackendErrorKind::Unsupported, "{wanted:?}: {error:?}");
            assert_eq!(error.effect, Effect::NotApplied, "{wanted:?}: a refusal changes nothing");
            assert_eq!(a.release(&next).await, Released::NotHeld, "{wanted:?}: it left nothing");
        }
        a.held(&hold, "a refusal keeps it").await;
    }
}
