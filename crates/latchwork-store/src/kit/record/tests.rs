//! One example for each rule; [`histories`] has the random ones.

mod histories;

use super::*;
use crate::error::{BackendErrorKind, Effect};
use crate::key::Key;
use crate::testing;
use crate::words::{Linger, Released};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const WALL: Duration = Duration::from_secs(1_800_000_000);

fn at(lease: Duration) -> Now {
    Now { lease, wall: WALL + lease }
}

fn claim(n: u128, mode: Mode) -> Claim {
    Claim { id: ClaimId::from_u128(n), mode, holder: format!("h{n}").into(), ..testing::claim("k") }
}

/// The longest ttl that there is, right after the boot.
#[test]
fn a_waiter_behind_endless_claims_has_no_retry_time() {
    let mut bench = Bench { now: at(Duration::ZERO), ..Bench::new() };
    let endless = |n| claim(n, Mode::Exclusive).with(|it| it.ttl = Duration::MAX);
    assert_eq!(bench.granted(&endless(1)).ttl, Duration::MAX);
    bench.blocked(&endless(2));
    assert_eq!(bench.blocked(&endless(3)).retry_after, Some(Duration::MAX));
}

/// A record and a clock, with the short forms that the examples need.
struct Bench {
    record: Record,
    now: Now,
    dead: Vec<u128>,
    wakeups: Vec<Wakeup>,
}

impl Bench {
    fn new() -> Self {
        Self { record: Record::default(), now: at(SEC), dead: vec![], wakeups: vec![] }
    }

    fn pass(&mut self, time: Duration) {
        self.now = Now { lease: self.now.lease + time, wall: self.now.wall + time };
    }

    /// The claim's number is its session's mark too.
    fn attempt(&mut self, claim: &Claim) -> Result<Attempt, BackendError> {
        let dead = &self.dead;
        let alive = |tag: u128| !dead.contains(&tag);
        let (answer, wakeups) =
            self.record.try_acquire(claim, claim.id.as_u128(), 0, self.now, &alive);
        self.wakeups = wakeups;
        answer
    }

    #[track_caller]
    fn granted(&mut self, claim: &Claim) -> Grant {
        match self.attempt(claim).unwrap() {
            Attempt::Granted(grant) => grant,
            Attempt::Blocked(blocked) => panic!("blocked: {blocked:?}"),
        }
    }

    #[track_caller]
    fn blocked(&mut self, claim: &Claim) -> Blocked {
        match self.attempt(claim).unwrap() {
            Attempt::Blocked(blocked) => blocked,
            Attempt::Granted(grant) => panic!("granted: {grant:?}"),
        }
    }

    fn renew(&mut self, claim: &Claim) -> Renewal {
        let dead = &self.dead;
        let alive = |tag: u128| !dead.contains(&tag);
        let (renewal, wakeups) = self.record.renew(claim, self.now, &alive);
        self.wakeups = wakeups;
        renewal
    }

    fn release(&mut self, claim: &Claim, linger: Linger) -> Released {
        let dead = &self.dead;
        let alive = |tag: u128| !dead.contains(&tag);
        let (released, wakeups) = self.record.release(claim, linger, self.now, &alive);
        self.wakeups = wakeups;
        released
    }

    fn told(&self) -> Vec<u128> {
        self.wakeups.iter().filter(|w| w.admissible).map(|w| w.id.as_u128()).collect()
    }

    fn moved(&self) -> Vec<u128> {
        self.wakeups.iter().filter(|w| !w.admissible).map(|w| w.id.as_u128()).collect()
    }
}

const X: Mode = Mode::Exclusive;

fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

#[test]
fn b2_the_same_id_is_the_same_grant_with_its_ttl_anew() {
    let mut bench = Bench::new();
    let first = bench.granted(&claim(1, X));
    bench.pass(9 * SEC);
    assert_eq!(bench.granted(&claim(1, X)), first);
    bench.pass(9 * SEC);
    bench.blocked(&claim(2, X));
    bench.pass(SEC);
    assert!(bench.granted(&claim(2, X)).token > first.token);
}

#[test]
fn b3_a_place_lasts_its_ttl_and_is_kept_by_repeating() {
    let mut bench = Bench::new();
    let mut holder = claim(1, X);
    holder.ttl = 100 * SEC;
    bench.granted(&holder);
    assert_eq!(bench.blocked(&claim(2, X)).ahead, Some(0));
    assert_eq!(bench.blocked(&claim(3, X)).ahead, Some(1));
    bench.pass(9 * SEC);
    assert_eq!(bench.blocked(&claim(3, X)).ahead, Some(1));
    bench.pass(SEC);
    assert_eq!(bench.blocked(&claim(4, X)).ahead, Some(1), "2 has lost its place");
    assert_eq!(bench.moved(), [3], "3 stands behind somebody else now");
    assert_eq!(bench.blocked(&claim(2, X)).ahead, Some(2), "and starts at the end");
}

#[test]
fn b3_a_claim_that_does_not_wait_leaves_nothing() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, X));
    let before = bench.record.clone();
    let passer_by = Claim { waits: false, ..claim(2, X) };
    assert_eq!(bench.blocked(&passer_by).cause, Cause::Held);
    assert_eq!(bench.record, before);
    // It also gives up a place that it had, and who stood behind it must know.
    bench.blocked(&claim(2, X));
    bench.blocked(&claim(3, X));
    bench.blocked(&passer_by);
    assert_eq!(bench.moved(), [3]);
    assert_eq!(bench.record.queue.len(), 1);
}

#[test]
fn b5_a_renewal_never_revives() {
    let mut bench = Bench::new();
    assert_eq!(bench.renew(&claim(1, X)), Renewal::Lost);
    bench.granted(&claim(1, X));
    bench.pass(10 * SEC);
    assert_eq!(bench.renew(&claim(1, X)), Renewal::Lost, "the ttl is over, to the nanosecond");
    bench.granted(&claim(2, X));
    assert_eq!(bench.renew(&claim(1, X)), Renewal::Lost);
    bench.blocked(&claim(1, X));
    assert_eq!(bench.renew(&claim(1, X)), Renewal::Lost, "a place in line is no hold");
}

#[test]
fn b6_a_release_touches_its_own_claim_alone() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, X));
    bench.blocked(&claim(2, X));
    let before = bench.record.clone();
    assert_eq!(bench.release(&claim(3, X), Linger::For(SEC)), Released::NotHeld);
    assert_eq!(bench.record, before);
    assert_eq!(bench.release(&claim(2, X), Linger::For(SEC)), Released::Yes);
    assert!(bench.record.queue.is_empty() && bench.record.closed_until.is_zero());
    assert_eq!(bench.release(&claim(2, X), Linger::None), Released::NotHeld);
    assert_eq!(bench.renew(&claim(1, X)), {
        let ttl = claim(1, X).ttl;
        Renewal::Held { ttl, token: before.token, store_time: None }
    });
}

#[test]
fn an_adopted_claim_ends_with_its_new_session_alone() {
    let mut bench = Bench::new();
    let mut held = claim(1, X);
    held.holder.lock_delay = Some(SEC);
    bench.granted(&held);
    let before = bench.record.clone();
    bench.record.adopt(&claim(5, X), 9);
    assert_eq!(bench.record, before, "of another claim");
    held.holder.lock_delay = None;
    bench.record.adopt(&held, 9);
    bench.dead = vec![1];
    bench.blocked(&claim(2, X));
    bench.dead = vec![9];
    bench.granted(&claim(2, X));
}

/// Detached by one process and adopted by another: what the first one sent before, and lands now, is lost and leaves the
/// claim with the second.
#[test]
fn h241_a_late_renewal_of_a_detached_claim_changes_nothing() {
    let mut bench = Bench::new();
    let old = claim(1, X);
    bench.granted(&old);
    let detached = old.clone().with(|it| {
        it.holder.detached = 1;
        it.holder.lock_delay = Some(SEC);
    });
    assert!(matches!(bench.renew(&detached), Renewal::Held { .. }));
    let adopted = detached.with(|it| it.holder.lock_delay = None);
    assert!(matches!(bench.renew(&adopted), Renewal::Held { .. }));
    bench.record.adopt(&adopted, 9);
    let before = bench.record.clone();
    assert_eq!(bench.renew(&old), Renewal::Lost);
    bench.record.adopt(&old, 1);
    assert_eq!(bench.record, before);
    // The process of the old one ends, and then that of the new one.
    bench.dead = vec![1];
    bench.blocked(&claim(2, X));
    bench.dead = vec![9];
    bench.granted(&claim(2, X));
}

#[test]
fn b8_tokens_respect_base_and_floor_and_renewal_raises_them() {
    let mut bench = Bench::new();
    let mut first = claim(1, X);
    first.floor = 40;
    assert_eq!(bench.granted(&first).token, 40);
    first.floor = 50;
    assert_eq!(bench.granted(&first).token, 40, "the same grant");
    assert!(matches!(bench.renew(&first), Renewal::Held { token: 50, .. }));
    first.floor = 0;
    assert!(matches!(bench.renew(&first), Renewal::Held { token: 50, .. }));
    bench.release(&first, Linger::None);
    let stale = Claim { floor: 99, ..claim(1, X) };
    assert_eq!(bench.renew(&stale), Renewal::Lost);
    assert_eq!(bench.granted(&claim(2, X)).token, 51, "a lost claim raised nothing");
    bench.release(&claim(2, X), Linger::None);
    let (answer, _) = bench.record.try_acquire(&claim(3, X), 3, 70, bench.now, &|_| true);
    assert!(matches!(answer, Ok(Attempt::Granted(Grant { token: 71, .. }))));
}

#[test]
fn b12_one_kind_of_lock_and_one_limit_for_a_key() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, permits(1, 2)));
    for mode in [X, Mode::Read, Mode::Write, permits(1, 3)] {
        let error = bench.attempt(&claim(2, mode)).unwrap_err();
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Mismatch, Effect::NotApplied));
        assert!(bench.record.queue.is_empty());
    }
    bench.release(&claim(1, X), Linger::None);
    bench.granted(&claim(2, Mode::Write));
}

#[test]
fn each_reader_has_its_own_ttl() {
    let mut bench = Bench::new();
    let (left, stayed) = (claim(1, Mode::Read), claim(2, Mode::Read));
    bench.granted(&left);
    bench.pass(5 * SEC);
    bench.granted(&stayed);
    assert!(matches!(bench.renew(&stayed), Renewal::Held { .. }));
    bench.pass(5 * SEC);
    assert_eq!(bench.renew(&left), Renewal::Lost, "the later reader did not keep it");
    assert!(matches!(bench.renew(&stayed), Renewal::Held { .. }));
    bench.pass(9 * SEC);
    bench.blocked(&claim(3, Mode::Write));
    bench.pass(SEC);
    bench.granted(&claim(3, Mode::Write));
}

#[test]
fn a_waiting_writer_stops_later_readers_and_is_not_starved() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, Mode::Read));
    bench.blocked(&claim(2, Mode::Write));
    bench.blocked(&claim(3, Mode::Read));
    let barging = Claim { order: Order::Barging, ..claim(4, Mode::Read) };
    bench.blocked(&barging);
    bench.release(&claim(1, Mode::Read), Linger::None);
    assert_eq!(bench.told(), [2]);
    bench.granted(&claim(2, Mode::Write));
    bench.release(&claim(2, Mode::Write), Linger::None);
    assert_eq!(bench.told(), [3, 4], "readers are not in each other's way");
}

/// A claim `n` that is to replace the hold of claim `hold`.
fn replacing(n: u128, mode: Mode, hold: u128) -> Claim {
    claim(n, mode).with(|it| it.beside = Some(ClaimId::from_u128(hold)))
}

#[test]
fn an_upgrade_is_granted_beside_its_read_hold_alone() {
    let mut bench = Bench::new();
    let read = bench.granted(&claim(1, Mode::Read)).token;
    bench.granted(&claim(2, Mode::Read));
    bench.blocked(&claim(3, Mode::Write));
    let upgrade = replacing(4, Mode::Write, 1);
    let blocked = bench.blocked(&upgrade);
    assert_eq!((blocked.cause, blocked.ahead), (Cause::Held, Some(0)));
    assert_eq!(blocked.holder, Some("h2".into()), "not by its own hold");
    assert!(bench.told().is_empty());
    bench.blocked(&claim(5, Mode::Read));
    bench.blocked(&Claim { order: Order::Barging, ..claim(6, Mode::Read) });
    bench.release(&claim(2, Mode::Read), Linger::None);
    assert_eq!(bench.told(), [4], "it is ahead of the writer");
    bench.blocked(&claim(3, Mode::Write));
    assert!(bench.granted(&upgrade).token > read);
    for release in [1, 4] {
        for (n, mode) in [(3, Mode::Write), (5, Mode::Read), (6, Mode::Read)] {
            bench.blocked(&Claim { waits: false, ..claim(n + 10, mode) });
        }
        assert!(bench.told().is_empty());
        bench.release(&claim(release, Mode::Read), Linger::None);
    }
    assert_eq!(bench.told(), [3]);
}

#[test]
fn one_upgrade_is_under_way_at_a_time() {
    let mut bench = Bench::new();
    for n in 1..=2 {
        bench.granted(&claim(n, Mode::Read));
    }
    bench.blocked(&replacing(3, Mode::Write, 1));
    let before = bench.record.clone();
    let blocked = bench.blocked(&replacing(4, Mode::Write, 2));
    assert_eq!((blocked.cause, blocked.holder), (Cause::Upgrade, Some("h3".into())));
    assert_eq!(bench.record, before, "it leaves nothing");
    // A version that does not know of upgrades writes the queue without the mark.
    bench.record.queue[0].beside = None;
    bench.blocked(&replacing(4, Mode::Write, 2));
    assert_eq!(bench.blocked(&replacing(3, Mode::Write, 1)).cause, Cause::Upgrade);
    assert_eq!(bench.record.queue.len(), 1, "it gives up its place");
}

#[test]
fn an_upgrade_that_ends_lets_readers_in() {
    for ends in ["withdrawn", "silent", "its hold is released", "its hold expires", "its hold dies"]
    {
        let mut bench = Bench::new();
        bench.granted(&claim(1, Mode::Read));
        bench.granted(&claim(2, Mode::Read).with(|it| it.ttl = 100 * SEC));
        let upgrade = replacing(3, Mode::Write, 1);
        bench.blocked(
            &upgrade.clone().with(|it| it.ttl = if ends == "silent" { SEC } else { it.ttl }),
        );
        bench.blocked(&claim(4, Mode::Read).with(|it| it.ttl = 100 * SEC));
        match ends {
            "withdrawn" => drop(bench.release(&upgrade, Linger::None)),
            "silent" => bench.pass(SEC),
            "its hold is released" => drop(bench.release(&claim(1, Mode::Read), Linger::None)),
            "its hold expires" => {
                bench.pass(9 * SEC);
                bench.blocked(&upgrade);
                bench.pass(SEC);
            }
            _ => bench.dead = vec![1],
        }
        if bench.record.queue.len() > 1 {
            bench.renew(&claim(2, Mode::Read));
        }
        assert_eq!(bench.told(), [4], "{ends}");
        if !matches!(ends, "withdrawn" | "silent") {
            let before = bench.record.clone();
            assert_eq!(bench.blocked(&upgrade).cause, Cause::Gone, "{ends}");
            assert_eq!(bench.record, before, "{ends}");
        }
        bench.granted(&claim(4, Mode::Read));
    }
}

#[test]
fn a_grant_does_not_depend_on_the_hold_it_replaced() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, Mode::Read));
    let token = bench.granted(&replacing(2, Mode::Write, 1)).token;
    bench.release(&claim(1, Mode::Read), Linger::None);
    assert_eq!(bench.granted(&replacing(2, Mode::Write, 1)).token, token);
    assert_eq!(bench.blocked(&replacing(3, Mode::Write, 1)).cause, Cause::Gone);
}

#[test]
fn a_downgrade_never_waits_and_keeps_writers_out() {
    let mut bench = Bench::new();
    let write = bench.granted(&claim(1, Mode::Write)).token;
    bench.blocked(&claim(2, Mode::Read));
    bench.blocked(&claim(3, Mode::Write));
    assert!(bench.granted(&replacing(4, Mode::Read, 1)).token > write);
    assert!(bench.told().is_empty());
    bench.release(&claim(1, Mode::Write), Linger::None);
    assert_eq!(bench.told(), [2], "the reader ahead of the writer");
    bench.blocked(&claim(3, Mode::Write));
    bench.granted(&claim(2, Mode::Read));
    for n in [2, 4] {
        bench.release(&claim(n, Mode::Read), Linger::None);
    }
    assert_eq!(bench.told(), [3]);
}

/// Later readers pass an upgrade that could have come and did not, as they pass any other waiter.
#[test]
fn a_silent_upgrade_is_passed_over() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, Mode::Read));
    bench.granted(&claim(2, Mode::Read));
    bench.blocked(&replacing(3, Mode::Write, 1));
    bench.pass(5 * SEC);
    bench.blocked(&claim(4, Mode::Read));
    bench.release(&claim(2, Mode::Read), Linger::None);
    bench.blocked(&claim(4, Mode::Read));
    bench.pass(WAITER_PATIENCE);
    bench.granted(&claim(4, Mode::Read));
    assert_eq!(bench.blocked(&replacing(3, Mode::Write, 1)).ahead, Some(0));
}

#[test]
fn a_hold_is_replaced_by_the_other_mode_alone() {
    for (held, wanted) in [
        (X, X),
        (permits(1, 3), permits(1, 3)),
        (Mode::Read, Mode::Read),
        (Mode::Write, Mode::Write),
        (Mode::Read, X),
    ] {
        let mut bench = Bench::new();
        bench.granted(&claim(1, held));
        let before = bench.record.clone();
        let error = bench.attempt(&replacing(2, wanted, 1)).unwrap_err();
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Mismatch, Effect::NotApplied));
        assert_eq!(bench.record, before, "{held:?} {wanted:?}");
    }
}

#[test]
fn permits_are_counted_and_a_large_take_is_not_starved() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, permits(2, 3)));
    bench.blocked(&claim(2, permits(3, 3)));
    bench.blocked(&claim(3, permits(1, 3)));
    bench.pass(5 * SEC);
    bench.blocked(&claim(3, permits(1, 3)));
    bench.release(&claim(1, permits(2, 3)), Linger::None);
    assert_eq!(bench.told(), [2]);
    bench.granted(&claim(2, permits(3, 3)));
}

#[test]
fn a_silent_waiter_is_skipped_and_keeps_its_place() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, X));
    for n in 2..=4 {
        bench.blocked(&claim(n, X));
    }
    bench.release(&claim(1, X), Linger::None);
    assert_eq!(bench.told(), [2]);
    let blocked = bench.blocked(&claim(4, X));
    assert_eq!((blocked.cause, blocked.retry_after), (Cause::Queued, Some(2 * WAITER_PATIENCE)));
    bench.pass(WAITER_PATIENCE);
    assert_eq!(bench.blocked(&claim(4, X)).retry_after, Some(WAITER_PATIENCE));
    bench.granted(&claim(3, X));
    assert_eq!(bench.moved(), [4], "4 stands behind 2 now");
    assert_eq!(bench.record.queue[0].id, ClaimId::from_u128(2));
    bench.release(&claim(3, X), Linger::None);
    bench.blocked(&claim(4, X));
    bench.granted(&claim(2, X));
}

#[test]
fn a_waiters_patience_starts_after_a_linger() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, X));
    bench.release(&claim(1, X), Linger::For(5 * SEC));
    for n in 2..=3 {
        let blocked = bench.blocked(&claim(n, X));
        assert_eq!((blocked.cause, blocked.retry_after), (Cause::Linger, Some(5 * SEC)));
    }
    bench.pass(5 * SEC);
    assert_eq!(bench.blocked(&claim(3, X)).retry_after, Some(WAITER_PATIENCE), "2 comes first");
    bench.granted(&claim(2, X));
}

#[test]
fn opening_a_key_wakes_its_waiters() {
    let mut bench = Bench::new();
    let first = bench.granted(&claim(1, X)).token;
    bench.blocked(&claim(2, X));
    assert_eq!(bench.release(&claim(9, X), Linger::End), Released::NotHeld, "1 holds it");
    assert_eq!(bench.release(&claim(1, X), Linger::End), Released::NotHeld, "it ends no claim");
    bench.release(&claim(1, X), Linger::For(5 * SEC));
    assert_eq!(bench.told(), [0; 0]);
    bench.blocked(&claim(3, X));
    assert_eq!(bench.release(&claim(9, X), Linger::End), Released::Yes);
    assert_eq!(bench.told(), [2]);
    assert_eq!(bench.release(&claim(9, X), Linger::End), Released::NotHeld, "it is open");
    assert_eq!(bench.blocked(&claim(3, X)).retry_after, Some(WAITER_PATIENCE), "2 comes first");
    assert!(bench.granted(&claim(2, X)).token > first);
}

#[test]
fn readers_that_hold_a_closed_key_keep_it_closed() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, Mode::Read));
    bench.granted(&claim(2, Mode::Read));
    bench.release(&claim(1, X), Linger::For(4 * SEC));
    assert_eq!(bench.release(&claim(9, X), Linger::End), Released::NotHeld);
    bench.release(&claim(2, X), Linger::None);
    assert_eq!(bench.release(&claim(9, X), Linger::End), Released::Yes);
    assert!(bench.record.is_idle(bench.now));
}

#[test]
fn the_longest_linger_keeps_the_key_closed() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, Mode::Read));
    bench.granted(&claim(2, Mode::Read));
    bench.release(&claim(1, X), Linger::For(4 * SEC));
    bench.release(&claim(2, X), Linger::For(2 * SEC));
    assert!(!bench.record.is_idle(bench.now));
    assert_eq!(bench.blocked(&Claim { waits: false, ..claim(3, X) }).cause, Cause::Linger);
    bench.pass(4 * SEC);
    assert!(bench.record.is_idle(bench.now));
    bench.granted(&claim(3, X));
}

/// A linger tells who asked for it while it lasts, and never a member or a waiter that has not.
#[test]
fn a_closed_key_names_the_holder_that_closed_it_for_longest() {
    let mut bench = Bench::new();
    let named = |id, text: &str| claim(id, Mode::Read).with(|it| it.holder = text.into());
    for (id, text) in [(1, "one"), (2, "two"), (3, "stays")] {
        bench.granted(&named(id, text));
    }
    let shown = |bench: &Bench| {
        let key = Key::new("k").unwrap();
        bench.record.snapshot(key, bench.now, &|_| true).closed_by.map(|by| by.text.to_string())
    };
    assert_eq!(shown(&bench), None);
    bench.release(&named(1, "one"), Linger::For(4 * SEC));
    bench.release(&named(2, "two"), Linger::For(2 * SEC));
    assert_eq!(shown(&bench).as_deref(), Some("one"));
    let blocked = bench.blocked(&named(4, "waits"));
    assert_eq!((blocked.cause, blocked.holder), (Cause::Linger, Some("one".into())));
    bench.pass(4 * SEC);
    assert_eq!(shown(&bench), None, "it is over");
    bench.release(&named(4, "waits"), Linger::None);
    bench.release(&named(3, "stays"), Linger::For(SEC));
    assert_eq!(shown(&bench).as_deref(), Some("stays"));
    bench.release(&claim(9, X), Linger::End);
    assert_eq!((shown(&bench), &bench.record.closed_by), (None, &None));
}

#[test]
fn a_moved_notice_does_not_replace_a_wake_up() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, X));
    bench.blocked(&claim(2, X));
    bench.blocked(&claim(3, X));
    bench.release(&claim(2, X), Linger::None);
    assert_eq!((bench.told(), bench.moved()), (vec![], vec![3]));
    bench.release(&claim(1, X), Linger::None);
    assert_eq!(bench.told(), [3]);
}

/// The next waiter is notified when the new holder leaves, and not before.
#[test]
fn the_grant_of_the_head_wakes_nobody_behind_it() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, X));
    bench.blocked(&claim(2, X));
    bench.blocked(&claim(3, X));
    bench.release(&claim(1, X), Linger::None);
    assert_eq!(bench.told(), [2]);
    bench.granted(&claim(2, X));
    assert!(bench.wakeups.is_empty(), "{:?}", bench.wakeups);
}

#[test]
fn waiters_behind_a_slow_one_stay_asleep() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, permits(3, 3)));
    for n in 2..=4 {
        bench.blocked(&claim(n, permits(1, 3)));
    }
    bench.release(&claim(1, X), Linger::None);
    assert_eq!(bench.told(), [2]);
    for _ in 0..3 {
        for n in 3..=4 {
            bench.blocked(&claim(n, permits(1, 3)));
            assert!(bench.wakeups.is_empty(), "{:?}", bench.wakeups);
        }
    }
    bench.granted(&claim(2, permits(1, 3)));
    assert_eq!(bench.told(), [3], "each who is admitted tells the next");
}

#[test]
fn dead_claims_leave_and_the_first_waiter_watches_holders() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, Mode::Read));
    bench.granted(&claim(2, Mode::Read));
    bench.blocked(&claim(3, Mode::Write));
    bench.blocked(&claim(4, Mode::Write));
    assert_eq!(bench.record.behind(ClaimId::from_u128(3), &|_| true), [1, 2]);
    assert_eq!(bench.record.behind(ClaimId::from_u128(4), &|_| true), [3]);
    assert_eq!(bench.record.behind(ClaimId::from_u128(4), &|tag| tag != 3), [1, 2]);
    bench.dead = vec![1, 3];
    assert_eq!(bench.blocked(&claim(4, Mode::Write)).ahead, Some(0));
    assert_eq!(bench.record.behind(ClaimId::from_u128(4), &|_| true), [2]);
    bench.dead = vec![1, 2, 3];
    bench.granted(&claim(4, Mode::Write));
}

/// Later claims pass a silent head after a while, and that begins anew with each head.
#[test]
fn patience_begins_when_the_head_of_the_queue_dies() {
    let mut bench = Bench::new();
    bench.granted(&claim(1, X));
    bench.blocked(&claim(2, X));
    bench.blocked(&Claim { ttl: SEC, ..claim(3, X) });
    bench.blocked(&claim(4, X));
    let open_since = bench.record.open_since;
    bench.pass(2 * SEC);
    bench.blocked(&claim(4, X));
    assert_eq!(bench.record.queue.len(), 2, "the third has dropped out");
    assert_eq!(bench.record.open_since, open_since, "it was no head");
    bench.dead = vec![2];
    bench.blocked(&claim(4, X));
    assert_eq!(bench.record.queue.len(), 1);
    assert_eq!(bench.record.open_since, bench.now.lease);
}

#[test]
fn a_linger_or_ttl_without_end_does_not_overflow() {
    let mut bench = Bench::new();
    let endless = Claim { ttl: Duration::MAX, ..claim(1, X) };
    bench.granted(&endless);
    assert!(matches!(bench.renew(&endless), Renewal::Held { .. }));
    assert_eq!(bench.release(&endless, Linger::For(Duration::MAX)), Released::Yes);
    assert_eq!(bench.blocked(&claim(2, X)).cause, Cause::Linger);
}
