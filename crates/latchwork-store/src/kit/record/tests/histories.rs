//! Random histories of five claims on one key, against plain bookkeeping.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// What a random history is made of. Claims are numbered; a number is used until its claim was
/// released, then the next act on it is a fresh claim.
#[derive(Debug, Clone)]
enum Act {
    Try {
        who: usize,
        waits: bool,
        floor: u64,
    },
    /// The next claim of `who` replaces a hold of another.
    Replace {
        who: usize,
        hold: usize,
    },
    Renew {
        who: usize,
        floor: u64,
    },
    Release {
        who: usize,
        linger: Option<u64>,
    },
    Open,
    Die {
        who: usize,
    },
    Pass {
        ms: u64,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let who = 0usize..5;
    prop_oneof![
        6 => (who.clone(), prop::bool::weighted(0.8), 0u64..60)
            .prop_map(|(who, waits, floor)| Act::Try { who, waits, floor }),
        2 => (who.clone(), who.clone()).prop_map(|(who, hold)| Act::Replace { who, hold }),
        2 => (who.clone(), 0u64..60).prop_map(|(who, floor)| Act::Renew { who, floor }),
        3 => (who.clone(), prop::option::weighted(0.1, 1u64..3_000))
            .prop_map(|(who, linger)| Act::Release { who, linger }),
        1 => Just(Act::Open),
        1 => who.prop_map(|who| Act::Die { who }),
        3 => prop_oneof![3 => 0u64..400, 1 => 400u64..6_000].prop_map(|ms| Act::Pass { ms }),
    ]
}

fn any_mode(shape: u8, pick: u8) -> Mode {
    match shape {
        0 => X,
        1 => [Mode::Read, Mode::Write][usize::from(pick % 2)],
        _ => permits(1 + u32::from(pick % 3), 3),
    }
}

/// Plain bookkeeping of what must hold, from the answers alone.
#[derive(Default)]
struct Book {
    /// Held claims: mode, end, token, session.
    held: HashMap<ClaimId, (Mode, Duration, u64)>,
    largest: u64,
    told: HashMap<ClaimId, bool>,
    /// The hold that each claim is to replace.
    beside: HashMap<ClaimId, ClaimId>,
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn histories(
        shape in 0u8..3,
        picks in prop::array::uniform5(any::<(u8, bool, u8)>()),
        acts in prop::collection::vec(act(), 1..120),
    ) {
        let mut bench = Bench::new();
        let mut book = Book::default();
        let mut fresh = 0u128;
        let mut claims: Vec<Claim> = Vec::new();
        let mut draw = |who: usize| {
            fresh += 1;
            let (pick, barging, ttl) = picks[who];
            Claim {
                order: if barging { Order::Barging } else { Order::Fifo },
                ttl: SEC + MS * 20 * u32::from(ttl),
                ..claim(fresh, any_mode(shape, pick))
            }
        };
        for who in 0..5 {
            claims.push(draw(who));
        }
        for act in acts {
            let before = bench.record.clone();
            bench.wakeups.clear();
            let now = bench.now;
            book.held.retain(|_, (_, end, _)| *end > now.lease);
            match act {
                Act::Try { who, waits, floor } => {
                    let one = Claim { waits, floor, ..claims[who].clone() };
                    if bench.dead.contains(&one.id.as_u128()) {
                        continue;
                    }
                    let queue = bench.record.queue.clone();
                    let attempt = bench.attempt(&one);
                    if attempt.is_ok() {
                        book.told.insert(one.id, false);
                    }
                    match attempt {
                        // What it has swept away before may have woken others.
                        Err(_) => {
                            let held = one.beside.and_then(|hold| book.held.get(&hold));
                            prop_assert_eq!(held.map(|(mode, ..)| *mode), Some(one.mode), "B12");
                        }
                        Ok(Attempt::Granted(grant)) => {
                            prop_assert_eq!(grant.ttl, one.ttl);
                            if let Some((_, _, token)) = book.held.get(&one.id) {
                                prop_assert_eq!(*token, grant.token, "B2");
                            } else {
                                prop_assert!(grant.token > book.largest, "B8");
                                prop_assert!(grant.token >= floor, "B8 floor");
                                check_order(&bench, &one, &queue)?;
                            }
                            let entry = (one.mode, now.lease + one.ttl, grant.token);
                            book.held.insert(one.id, entry);
                            book.largest = book.largest.max(grant.token);
                        }
                        Ok(Attempt::Blocked(blocked)) => {
                            prop_assert!(!book.held.contains_key(&one.id), "B4");
                            let gone = one.beside.is_some_and(|it| !book.held.contains_key(&it));
                            prop_assert_eq!(blocked.cause == Cause::Gone, gone, "B16");
                            let refused = gone || blocked.cause == Cause::Upgrade;
                            let kept = bench.record.queue.iter().any(|w| w.id == one.id);
                            prop_assert_eq!(kept, waits && !refused, "B3 B16");
                            let upgrades =
                                queue.iter().any(|w| w.id != one.id && w.upgrades());
                            let rival = blocked.cause == Cause::Upgrade;
                            prop_assert!(!rival || upgrades && one.beside.is_some(), "B16");
                        }
                    }
                }
                Act::Replace { who, hold } => {
                    let hold = claims[hold].clone();
                    if shape != 1 || before.queue.iter().any(|w| w.id == claims[who].id) {
                        continue;
                    }
                    if book.held.contains_key(&claims[who].id) {
                        continue;
                    }
                    claims[who] = draw(who).with(|it| {
                        it.order = Order::Fifo;
                        it.beside = Some(hold.id);
                    });
                    book.beside.insert(claims[who].id, hold.id);
                    continue;
                }
                Act::Renew { who, floor } => {
                    let one = Claim { floor, ..claims[who].clone() };
                    match (bench.renew(&one), book.held.get_mut(&one.id)) {
                        (Renewal::Held { ttl, token, .. }, Some((_, end, old))) => {
                            prop_assert_eq!(token, floor.max(*old));
                            *end = now.lease + ttl;
                            *old = token;
                            book.largest = book.largest.max(token);
                        }
                        (Renewal::Lost, None) => {}
                        (answer, kept) => prop_assert!(false, "B4 B5: {answer:?} for {kept:?}"),
                    }
                }
                Act::Release { who, linger } => {
                    let one = claims[who].clone();
                    let linger = linger.map_or(Linger::None, |ms| Linger::For(MS * ms as u32));
                    let held = book.held.remove(&one.id).is_some();
                    // A place that was to replace a hold went with it.
                    let waits = before.queue.iter().any(|w| {
                        let has_hold = w.beside.is_none_or(|hold| book.held.contains_key(&hold));
                        w.id == one.id && live(&bench, w) && has_hold
                    });
                    let released = bench.release(&one, linger);
                    prop_assert_eq!(released == Released::Yes, held || waits, "B6");
                    claims[who] = draw(who);
                }
                Act::Open => {
                    let lives = before.held.iter().any(|m| {
                        m.expires > now.lease && !bench.dead.contains(&m.tag)
                    });
                    let closed = before.closed_until > now.wall;
                    // Of any id, also of one that holds or waits.
                    let opened = bench.release(&claims[0].clone(), Linger::End);
                    prop_assert_eq!(opened == Released::Yes, closed && !lives, "opens what is closed");
                    prop_assert_eq!(bench.record.closed_until > now.wall, closed && lives);
                    prop_assert_eq!(bench.record.token, before.token, "B8");
                }
                Act::Die { who } => {
                    // A dead session takes its claim along; the next act of `who` is a new claim.
                    bench.dead.push(claims[who].id.as_u128());
                    book.held.remove(&claims[who].id);
                    claims[who] = draw(who);
                    continue;
                }
                Act::Pass { ms } => {
                    bench.pass(MS * ms as u32);
                    continue;
                }
            }
            check_held(&bench, &book)?;
            check_queue(&bench, &before)?;
            check_wakeups(&bench, &mut book)?;
            check_reading(&bench)?;
        }
    }
}

fn live(bench: &Bench, waiter: &Waiter) -> bool {
    waiter.expires > bench.now.lease && !bench.dead.contains(&waiter.tag)
}

/// B1, B4, B6: exactly those hold who were told so, and they go together.
fn check_held(bench: &Bench, book: &Book) -> Result<(), TestCaseError> {
    let mut ids: Vec<_> = bench.record.held.iter().map(|m| m.id).collect();
    let mut expected: Vec<_> = book.held.keys().copied().collect();
    ids.sort_unstable();
    expected.sort_unstable();
    prop_assert_eq!(ids, expected);
    let modes: Vec<Mode> = book.held.values().map(|(mode, ..)| *mode).collect();
    for (id, (mode, ..)) in book.held.iter().filter(|(_, (mode, ..))| mode.is_alone()) {
        let replaces = |one, other| book.beside.get(one) == Some(other);
        let mut others = book.held.keys().filter(|other| *other != id);
        let own = others.all(|other| replaces(id, other) || replaces(other, id));
        prop_assert!(own, "B1 B16: {mode:?} among {modes:?}");
    }
    let taken: u32 =
        modes.iter().map(|m| if let Mode::Permits { take, .. } = m { *take } else { 0 }).sum();
    prop_assert!(taken <= 3, "B1: {taken} permits of 3");
    Ok(())
}

/// A grant goes past a place in the queue only after patience for each, and never past one who could
/// not have come.
fn check_order(bench: &Bench, one: &Claim, queue: &[Waiter]) -> Result<(), TestCaseError> {
    if one.beside.is_some() {
        return Ok(());
    }
    let own = queue.iter().position(|w| w.id == one.id && one.order == Order::Fifo);
    let passed = queue[..own.unwrap_or(queue.len())].iter().filter(|w| {
        w.order == Order::Fifo
            && w.id != one.id
            && bench.record.queue.iter().any(|l| l.id == w.id)
            && !(w.mode == Mode::Read && one.mode == Mode::Read)
    });
    let patience = WAITER_PATIENCE * passed.clone().count() as u32;
    prop_assert!(bench.now.lease >= bench.record.open_since + patience, "fifo");
    prop_assert!(bench.now.wall >= bench.record.closed_until + patience, "fifo after a linger");
    for waiter in passed {
        let other = |m: &&Member| m.id != one.id && Some(m.id) != waiter.beside;
        let others = bench.record.held.iter().filter(other).map(|m| m.mode);
        prop_assert!(fits(others, waiter.mode), "passed over one who could not have come");
    }
    Ok(())
}

/// B3: live places are kept, in their order, and nothing but the end of a claim moves them.
fn check_queue(bench: &Bench, before: &Record) -> Result<(), TestCaseError> {
    let lived = |id| before.queue.iter().any(|w| w.id == id && live(bench, w));
    let stays = |id| bench.record.queue.iter().any(|w| w.id == id);
    let order = |queue: &[Waiter]| -> Vec<ClaimId> {
        queue.iter().map(|w| w.id).filter(|id| lived(*id) && stays(*id)).collect()
    };
    prop_assert_eq!(order(&before.queue), order(&bench.record.queue));
    // Who left was admitted, was released, gave its place up, or had died, it or its hold.
    let holds = |id| bench.record.held.iter().any(|m| m.id == id);
    let left = before.queue.iter().filter(|w| lived(w.id) && !stays(w.id));
    let left = left.filter(|w| w.beside.is_none_or(holds));
    prop_assert!(left.count() <= 1);
    let upgrades = bench.record.queue.iter().filter(|w| w.upgrades());
    prop_assert!(upgrades.count() <= 1, "B16");
    Ok(())
}

/// Nobody is told twice, everybody told would be admitted, and everybody who would be was told.
fn check_wakeups(bench: &Bench, book: &mut Book) -> Result<(), TestCaseError> {
    let admitted = |waiter: &Waiter| {
        let alone = |w: &&Waiter| {
            w.order == Order::Fifo && !(w.mode == Mode::Read && waiter.mode == Mode::Read)
        };
        let queue = &bench.record.queue;
        let place = queue.iter().position(|w| w.id == waiter.id).unwrap();
        let end = if waiter.order == Order::Fifo { place } else { queue.len() };
        let mut copy = bench.record.clone();
        // Judged without patience: a wake-up is for who is next, not for who may pass.
        let ahead = &queue[..if waiter.beside.is_some() { 0 } else { end }];
        if ahead.iter().filter(|w| w.id != waiter.id).any(|w| alone(&w)) {
            return false;
        }
        let again = Claim {
            id: waiter.id,
            order: waiter.order,
            beside: waiter.beside,
            ..claim(0, waiter.mode)
        };
        let (answer, _) = copy.try_acquire(&again, 0, 0, bench.now, &|_| true);
        matches!(answer, Ok(Attempt::Granted(_)))
    };
    for wakeup in bench.wakeups.iter().filter(|w| w.admissible) {
        let told = book.told.insert(wakeup.id, true);
        prop_assert!(told != Some(true), "told twice: {wakeup:?}");
        let waiter = bench.record.queue.iter().find(|w| w.id == wakeup.id).unwrap();
        prop_assert!(admitted(waiter), "told in vain: {wakeup:?}");
    }
    for waiter in &bench.record.queue {
        let told = book.told.get(&waiter.id) == Some(&true);
        prop_assert!(told || !admitted(waiter), "never told: {waiter:?}");
        prop_assert!(told == waiter.told);
    }
    Ok(())
}

/// B14, and what `is_idle` says: a record can be dropped exactly if a look finds nothing.
fn check_reading(bench: &Bench) -> Result<(), TestCaseError> {
    let copy = bench.record.clone();
    let key = Key::new("k").unwrap();
    let alive = |tag: u128| !bench.dead.contains(&tag);
    let snapshot = bench.record.snapshot(key, bench.now, &alive);
    prop_assert!(bench.record == copy);
    if bench.record.is_idle(bench.now) {
        prop_assert!(snapshot.is_free());
    }
    prop_assert_eq!(snapshot.holders.len(), bench.record.held.len());
    prop_assert_eq!(snapshot.token, bench.record.token);
    Ok(())
}
