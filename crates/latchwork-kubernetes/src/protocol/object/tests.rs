use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use latchwork_store::kit::record::{Record, Waiter};
use latchwork_store::testing::claim;
use latchwork_store::{Attempt, Claim, Linger, Moment, Released, Renewal};

use super::{Change, FOREIGN, Object, Sight, times};
use crate::protocol::attempt::ALIVE;
use crate::server::server_time::ServerTime;

const SEC: Duration = Duration::from_secs(1);
const WALL: Duration = Duration::from_secs(1_790_000_000);

/// An object as one process sees it, and a clock.
struct Bench {
    object: Option<Object>,
    sight: Sight,
    now: Moment,
    wall: Duration,
    version: u64,
    time: ServerTime,
}

impl Bench {
    fn new() -> Self {
        let now = Moment::from_nanos(5_000_000_000);
        let mut time = ServerTime::default();
        time.told(1_790_000_000, now, now);
        let (object, sight, version) = (None, Sight::default(), 40);
        Self { object, sight, now, wall: WALL, version, time }
    }

    /// Another process that sees the object for the first time, whose clocks show something else.
    fn other(&self) -> Self {
        let now = Moment::from_nanos(900_000_000_000);
        let object = self.object.clone();
        let sight = Sight::default().at(object.as_ref().expect("an object"), now);
        let mut time = ServerTime::default();
        time.told(1_790_000_000, now, now);
        Self { object, sight, now, wall: WALL - 3_600 * SEC, version: self.version, time }
    }

    fn pass(&mut self, length: Duration) {
        self.now = self.now.plus(length);
        self.wall += length;
    }

    fn record(&self) -> Record {
        let record = |object: &Object| object.record(&self.sight, self.now, self.wall, self.time);
        self.object.as_ref().map(record).unwrap_or_default()
    }

    fn write<T>(&mut self, claim: &Claim, judge: impl FnOnce(&mut Record) -> T) -> T {
        let before = self.record();
        let mut after = before.clone();
        let answer = judge(&mut after);
        let claims = std::slice::from_ref(claim);
        let (base, time) = (self.object.as_ref(), self.time);
        let (now, wall, before, after) = (self.now, self.wall, &before, &after);
        let key = claim.key.as_str();
        let change = Change { base, name: key, key, before, after, claims, now, wall, time };
        let (lease, _) = change.lease();
        self.served(lease);
        answer
    }

    /// The object as the server returns it.
    fn served(&mut self, mut lease: Lease) {
        self.version += 7;
        lease.metadata.resource_version = Some(self.version.to_string());
        let text = serde_json::to_string(&lease).unwrap();
        let object = Object::read(serde_json::from_str(&text).unwrap()).unwrap();
        self.sight = self.sight.at(&object, self.now);
        self.object = Some(object);
    }

    fn attempt(&mut self, claim: &Claim) -> bool {
        let now = times(self.now);
        let answer = self.write(claim, |record| record.try_acquire(claim, 0, 0, now, ALIVE).0);
        matches!(answer, Ok(Attempt::Granted(_)))
    }

    fn renew(&mut self, claim: &Claim) -> Renewal {
        let now = times(self.now);
        self.write(claim, |record| record.renew(claim, now, ALIVE).0)
    }

    /// The places that have not ended.
    fn queue(&self) -> impl Iterator<Item = Waiter> {
        let (queue, now) = (self.record().queue, times(self.now).lease);
        queue.into_iter().filter(move |waiter| waiter.expires > now)
    }

    fn lease(&self) -> &Lease {
        &self.object.as_ref().unwrap().lease
    }

    fn show(&self) -> (&str, i32, i32) {
        let spec = self.lease().spec.as_ref().unwrap();
        (
            spec.holder_identity.as_deref().unwrap(),
            spec.lease_duration_seconds.unwrap(),
            spec.lease_transitions.unwrap_or_default(),
        )
    }

    /// What another kind of client writes, which keeps what it does not know.
    fn foreign(&mut self, holder: &str, seconds: i32) {
        let mut lease = self.lease().clone();
        let spec = lease.spec.as_mut().unwrap();
        spec.holder_identity = Some(holder.into());
        spec.lease_duration_seconds = Some(seconds);
        let transitions = spec.lease_transitions.get_or_insert_default();
        *transitions += 1;
        self.served(lease);
    }
}

#[test]
fn the_fields_are_written_as_client_go_does() {
    let mut bench = Bench::new();
    let first = claim("k").with(|it| {
        it.holder = "app@web-2 (pid 812)".into();
        it.ttl = Duration::from_millis(15_500);
    });
    assert!(bench.attempt(&first));
    let identity = format!("app@web-2 (pid 812) [{}]", &first.id.to_string()[..8]);
    assert_eq!(bench.show(), (&*identity, 16, 0));
    bench.pass(SEC);
    assert!(matches!(bench.renew(&first), Renewal::Held { .. }));
    assert_eq!(bench.show(), (&*identity, 16, 0));
    let now = times(bench.now);
    bench.write(&first, |record| record.release(&first, Linger::None, now, ALIVE));
    assert_eq!(bench.show(), ("", 1, 0));
    assert!(bench.attempt(&claim("k")));
    assert_eq!(bench.show().2, 1, "another holder");
}

#[test]
fn a_token_is_the_version_of_its_granting_write() {
    let mut bench = Bench::new();
    let first = claim("k");
    assert!(bench.attempt(&first));
    assert_eq!(bench.object.as_ref().unwrap().token_of(first.id), Some(47));
    assert!(matches!(bench.renew(&first), Renewal::Held { token: 47, .. }));
    assert_eq!(bench.object.as_ref().unwrap().token_of(first.id), Some(47));
    let raised = first.clone().with(|it| it.floor = 1_000);
    assert!(matches!(bench.renew(&raised), Renewal::Held { token: 1_000, .. }));
    let now = times(bench.now);
    bench.write(&first, |record| record.release(&first, Linger::None, now, ALIVE));
    let next = claim("k");
    assert!(bench.attempt(&next));
    assert_eq!(bench.object.as_ref().unwrap().token_of(next.id), Some(1_001), "not the version");
}

/// Two processes whose clocks have nothing in common.
#[test]
fn a_ttl_counts_from_the_moment_when_its_beat_was_first_seen() {
    let mut here = Bench::new();
    let holder = claim("k");
    assert!(here.attempt(&holder));
    let mut there = here.other();
    let rival = claim("k").with(|it| it.waits = false);
    there.pass(holder.ttl - SEC);
    let blocked = |bench: &Bench| {
        let mut record = bench.record();
        matches!(
            record.try_acquire(&rival, 0, 0, times(bench.now), ALIVE).0,
            Ok(Attempt::Blocked(_))
        )
    };
    assert!(blocked(&there));
    // A renewal is seen, and the whole ttl begins anew.
    here.pass(SEC);
    here.renew(&holder);
    there.served(here.lease().clone());
    there.pass(holder.ttl - SEC);
    assert!(blocked(&there));
    // Another write is no renewal.
    let waiter = claim("k");
    assert!(!here.attempt(&waiter));
    there.served(here.lease().clone());
    assert!(blocked(&there));
    there.pass(SEC);
    let shown = there.record().snapshot(holder.key.clone(), times(there.now), ALIVE);
    assert!(shown.holders.is_empty(), "its ttl is over, whatever else was written");
    assert_eq!(shown.waiters.len(), 1);
}

#[test]
fn a_waiters_place_is_no_renewal_for_client_go() {
    let mut bench = Bench::new();
    assert!(bench.attempt(&claim("k")));
    let spec = bench.lease().spec.clone();
    bench.pass(SEC);
    assert!(!bench.attempt(&claim("k")));
    assert_eq!(bench.lease().spec, spec);
}

/// Three waiters while somebody holds for minutes: one that was never repeated, one that answers calls, one that does not.
#[test]
fn a_repeated_place_rests_until_it_is_called() {
    let mut bench = Bench::new();
    let [holder, silent, lives, dies] = [(); 4].map(|()| claim("k"));
    assert!(bench.attempt(&holder));
    for waiter in [&silent, &lives, &dies] {
        assert!(!bench.attempt(waiter));
    }
    let hold_on = |bench: &mut Bench, times: u32| {
        for _ in 0..times {
            bench.pass(4 * SEC);
            assert!(matches!(bench.renew(&holder), Renewal::Held { .. }));
        }
    };
    hold_on(&mut bench, 2);
    for waiter in [&lives, &dies] {
        assert!(!bench.attempt(waiter));
    }
    hold_on(&mut bench, 1);
    let queue = |bench: &Bench| bench.queue().map(|waiter| waiter.id).collect::<Vec<_>>();
    assert_eq!(queue(&bench), [lives.id, dies.id], "a single try leaves within its ttl");
    hold_on(&mut bench, 30);
    assert_eq!(queue(&bench), [lives.id, dies.id], "nobody has called");
    assert_eq!(bench.other().queue().count(), 2, "a new client sees the same");
    assert!(!bench.attempt(&claim("k").with(|it| it.ttl *= 10)));
    hold_on(&mut bench, 2);
    assert!(!bench.attempt(&lives), "it answers the call");
    hold_on(&mut bench, 2);
    assert_eq!(queue(&bench)[0], lives.id);
    assert_eq!(queue(&bench).len(), 2, "{:?}: the one that comes has called", dies.id);
    // For ever it does not rest either.
    let rest = super::longest_rest(holder.ttl);
    hold_on(&mut bench, (rest.as_secs() / 4) as u32 + 1);
    assert_eq!(queue(&bench), []);
}

/// Its holder was killed, nobody comes, and nothing is written: still it is not shown for long.
#[test]
fn a_repeated_place_of_a_free_key_ends_with_its_ttl() {
    let mut bench = Bench::new();
    let (holder, dead) = (claim("k"), claim("k"));
    assert!(bench.attempt(&holder));
    for _ in 0..2 {
        bench.pass(SEC);
        assert!(!bench.attempt(&dead));
    }
    bench.pass(holder.ttl - 2 * SEC + dead.ttl - SEC);
    assert_eq!(bench.queue().count(), 1, "its holder has ended nine seconds ago");
    bench.pass(SEC);
    assert_eq!(bench.queue().count(), 0);
}

/// While client-go holds, waiters write nothing, and client-go knows of no queue: after its release the queue is as it was.
#[test]
fn a_queue_outlives_a_foreign_holder() {
    let mut bench = Bench::new();
    let [holder, first, second] = [(); 3].map(|()| claim("k"));
    assert!(bench.attempt(&holder));
    for waiter in [&first, &second, &first, &second] {
        bench.pass(SEC);
        assert!(!bench.attempt(waiter));
    }
    for _ in 0..6 {
        bench.foreign("pod-7_1234", 15);
        bench.pass(10 * SEC);
    }
    assert_eq!(bench.queue().count(), 2);
    bench.foreign("", 1);
    assert_eq!(bench.queue().count(), 2, "they had no chance to answer");
    assert!(!bench.attempt_dry(&second), "the first has time to come");
    bench.pass(2 * SEC);
    assert!(bench.attempt_dry(&second), "which it has not");
    assert!(bench.attempt(&first));
    bench.pass(first.ttl);
    assert_eq!(bench.queue().count(), 0);
}

/// A key that opens calls, by a release or by the end of its holder's ttl.
#[test]
fn a_key_that_opens_calls_its_waiters() {
    for releases in [true, false] {
        let mut bench = Bench::new();
        let [holder, dead, lives] = [(); 3].map(|()| claim("k"));
        assert!(bench.attempt(&holder));
        for waiter in [&dead, &lives, &dead, &lives] {
            bench.pass(SEC);
            assert!(!bench.attempt(waiter));
        }
        let now = times(bench.now);
        if releases {
            bench.write(&holder, |record| record.release(&holder, Linger::None, now, ALIVE).0);
        } else {
            bench.pass(holder.ttl - 4 * SEC);
        }
        assert!(!bench.attempt_dry(&lives), "the one before it has time to come");
        bench.pass(2 * SEC);
        assert!(bench.attempt(&lives));
        assert_eq!(bench.queue().count(), 1);
        // Who takes a key whose holder did not release it calls again.
        bench.pass(dead.ttl - if releases { 3 * SEC } else { SEC });
        assert!(matches!(bench.renew(&lives), Renewal::Held { .. }));
        assert_eq!(bench.queue().count(), 1);
        bench.pass(SEC);
        assert_eq!(bench.queue().count(), 0, "it did not answer");
    }
}

#[test]
fn a_foreign_holder_takes_our_place_and_ends_by_its_duration() {
    let mut bench = Bench::new();
    let ours = claim("k");
    assert!(bench.attempt(&ours));
    bench.foreign("pod-7_1234", 15);
    assert_eq!(bench.renew_dry(&ours), Renewal::Lost);
    let record = bench.record();
    assert_eq!(record.held.len(), 1);
    assert_eq!((record.held[0].id, &*record.held[0].holder.text), (FOREIGN, "pod-7_1234"));
    bench.pass(14 * SEC);
    bench.foreign("pod-7_1234", 15);
    bench.pass(14 * SEC);
    assert!(!bench.attempt_dry(&claim("k")), "it was renewed");
    bench.pass(SEC);
    let next = claim("k");
    assert!(bench.attempt(&next));
    assert!(bench.object.as_ref().unwrap().foreign.is_none());
    bench.foreign("", 1);
    assert!(bench.attempt_dry(&claim("k")), "another client has released it");
}

impl Bench {
    fn renew_dry(&self, claim: &Claim) -> Renewal {
        self.record().renew(claim, times(self.now), ALIVE).0
    }

    fn attempt_dry(&self, claim: &Claim) -> bool {
        let answer = self.record().try_acquire(claim, 0, 0, times(self.now), ALIVE).0;
        matches!(answer, Ok(Attempt::Granted(_)))
    }
}

#[test]
fn a_closing_outlives_its_process_and_is_opened_by_any() {
    let mut here = Bench::new();
    let holder = claim("k");
    assert!(here.attempt(&holder));
    let now = times(here.now);
    here.write(&holder, |record| record.release(&holder, Linger::For(60 * SEC), now, ALIVE));
    assert_eq!(here.show().1, 60, "client-go is excluded for as long");
    here.pass(60 * SEC);
    assert!(here.attempt_dry(&claim("k")));
    // Who comes later counts by the server's clock, and not from the moment when it came.
    here.now = here.now.minus(60 * SEC);
    let mut there = here.other();
    there.time = ServerTime::default();
    there.time.told(1_790_000_059, there.now, there.now);
    assert!(!there.attempt_dry(&claim("k")));
    there.pass(3 * SEC);
    assert!(there.attempt_dry(&claim("k")));
    let now = times(here.now);
    let opened = here.write(&holder, |record| record.release(&holder, Linger::End, now, ALIVE).0);
    assert_eq!(opened, Released::Yes);
    assert!(here.attempt_dry(&claim("k")));
}

#[test]
fn an_object_that_cannot_be_understood_is_refused() {
    let mut bench = Bench::new();
    assert!(bench.attempt(&claim("k")));
    for (from, to) in [("\\\"form\\\":1", "\\\"form\\\":2"), ("\\\"form\\\":1", "\\\"form\\\":{")] {
        let text = serde_json::to_string(bench.lease()).unwrap().replace(from, to);
        let read = Object::read(serde_json::from_str(&text).unwrap());
        assert!(read.unwrap_err().contains("latchwork/record"));
    }
    let mut lease = bench.lease().clone();
    lease.metadata.resource_version = Some("a7".into());
    assert!(Object::read(lease).unwrap_err().contains("resourceVersion"));
}

#[test]
fn hostile_objects_are_read_without_harm() {
    let mut bench = Bench::new();
    assert!(bench.attempt(&claim("k")));
    assert!(!bench.attempt(&claim("k")));
    let whole = serde_json::to_vec(bench.lease()).unwrap();
    latchwork_services::hostile::survives("objects", &[&whole], |bytes| {
        let Ok(lease) = serde_json::from_slice::<Lease>(bytes) else { return };
        if let Ok(object) = Object::read(lease) {
            let now = Moment::from_nanos(u64::MAX / 2);
            let sight = Sight::default().at(&object, now);
            let record = object.record(&sight, now, WALL, ServerTime::default());
            let key = latchwork_store::Key::new("k").unwrap();
            let _ = record.snapshot(key, times(now), ALIVE);
        }
    });
}
