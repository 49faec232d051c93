//! Kinds of locks.

use latchwork_store::*;

use crate::common::*;
use crate::redlock::world::*;

const TTL: Duration = Duration::from_secs(5);

/// D7: with three nodes and a limit of two, three could hold.
#[test]
fn permits_are_refused_with_the_reason() {
    run(async {
        let five = Five::new("max_ttl=5s").await;
        let voter = five.voter().await;
        assert!(!voter.0.capabilities().permits);
        let permits = with_mode("k", TTL, Mode::Permits { take: 1, of: 2 });
        let error = voter.refused(&permits).await;
        assert_eq!(error.kind, BackendErrorKind::Unsupported);
        assert_eq!(error.effect, Effect::NotApplied);
        assert!(error.message.contains("majority of nodes cannot count permits"), "{error}");
        assert!(error.next_step.is_some());
        assert_eq!(five.left(), []);
    });
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    run(async {
        let five = Five::new("max_ttl=5s").await;
        let (voter, other) = (five.voter().await, five.voter().await);
        let mode = |mode| with_mode("k", TTL, mode).with(|it| it.waits = false);
        let (one, two) = (mode(Mode::Read), mode(Mode::Read));
        voter.granted(&one).await;
        other.granted(&two).await;
        let write = mode(Mode::Write);
        other.blocked(&write).await;
        voter.renewed(&one).await;
        other.renewed(&two).await;
        voter.released(&one).await;
        other.blocked(&mode(Mode::Write)).await;
        other.released(&two).await;
        let write = mode(Mode::Write);
        let token = voter.granted(&write).await;
        other.blocked(&mode(Mode::Read)).await;
        other.blocked(&mode(Mode::Write)).await;
        voter.released(&write).await;
        let read = mode(Mode::Read);
        assert!(other.granted(&read).await > token);
        let error = voter.refused(&passing("k", TTL)).await;
        assert_eq!(error.kind, BackendErrorKind::Mismatch);
        other.released(&read).await;
        five.empties(SEC).await;
    });
}

/// Readers whose majorities are not the same nodes keep a writer out all the same.
#[test]
fn readers_on_different_nodes_keep_a_writer_out() {
    run(async {
        let five = Five::new("max_ttl=5s").await;
        let (left, right) = (five.way(), five.way());
        left.refuse(&[3, 4]);
        right.refuse(&[0, 1]);
        let (left, right, third) = (left.voter().await, right.voter().await, five.voter().await);
        let mode = |mode| with_mode("k", TTL, mode).with(|it| it.waits = false);
        let (one, two) = (mode(Mode::Read), mode(Mode::Read));
        left.granted(&one).await;
        right.granted(&two).await;
        third.blocked(&mode(Mode::Write)).await;
        left.released(&one).await;
        third.blocked(&mode(Mode::Write)).await;
        right.released(&two).await;
        let write = mode(Mode::Write);
        third.granted(&write).await;
        left.blocked(&mode(Mode::Read)).await;
        third.released(&write).await;
        five.empties(SEC).await;
    });
}
