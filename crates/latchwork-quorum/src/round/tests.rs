use std::time::Duration;

use super::*;
use latchwork_store::BackendErrorKind;
use latchwork_store::testing::claim;

fn round() -> Arc<Round> {
    Round::of(&claim("k"), 0, false)
}

fn blocked() -> Attempt {
    Attempt::Blocked(Blocked::by(Cause::Held))
}

fn granted() -> Attempt {
    Attempt::Granted(Grant::new(1, Duration::from_secs(1)))
}

#[test]
fn what_an_answer_leaves_at_a_node() {
    let waits = Round::of(&claim("k").with(|it| it.waits = true), 0, false);
    let tries = Round::of(&claim("k").with(|it| it.waits = false), 0, false);
    let error = |effect| Err(BackendError::new(BackendErrorKind::Unreachable, effect, "silent"));
    assert!(tries.may_be_left_by(&Ok(granted())));
    assert!(waits.may_be_left_by(&Ok(blocked())), "a mark that asks for a wake-up");
    assert!(!tries.may_be_left_by(&Ok(blocked())));
    assert!(tries.may_be_left_by(&error(Effect::Unknown)));
    assert!(!tries.may_be_left_by(&error(Effect::NotApplied)));
}

#[test]
fn a_late_try_is_ended_unless_a_release_finds_it() {
    assert!(!round().lands(1), "it goes on: nothing is to be ended");
    // The release is on its way, and finds it.
    let one = round();
    one.release();
    assert!(!one.lands(1) && !one.released(1, true));
    // The release was there first.
    let one = round();
    one.release();
    assert!(!one.released(1, false) && one.lands(1));
    assert!(!one.lands(2), "it did not miss that of another node");
    // The release is answered last, and has found nothing.
    let one = round();
    one.end();
    assert!(one.lands(1), "no release was sent");
    one.release();
    assert!(one.released(1, false) && !one.released(2, false));
}

/// A release may have found one of two tries.
#[test]
fn a_late_second_try_is_ended_though_a_release_was_there() {
    let one = round();
    one.plants(1);
    one.release();
    assert!(one.lands(1) && !one.lands(2));
    assert!(one.released(1, false));
    assert!(one.lands(1), "planted, and missed");
}

#[test]
fn a_late_try_is_always_ended_at_a_node_beyond_the_64th() {
    let one = round();
    one.release();
    assert!(!one.lands(63) && one.lands(64) && one.lands(200));
}

#[test]
fn late_answers_are_noted_until_nobody_waits() {
    let standing = Standing::new(Vec::new(), 2, false, 0);
    assert!(standing.note(1, &blocked()), "its mark is kept");
    assert!(!standing.note(2, &granted()) && !standing.note(0, &granted()));
    assert_eq!((standing.seen().marks.len(), standing.seen().free), (1, 2));
    assert_eq!(standing.leave().len(), 1);
    assert!(!standing.note(3, &blocked()));
    assert_eq!((standing.seen().marks.len(), standing.seen().free), (0, 2));
}

#[test]
fn only_the_latest_round_advances_and_only_while_it_is_not_over() {
    let (id, first, second) = (ClaimId::random(), round(), round());
    let now = Moment::from_nanos(0);
    let mut book = Book::new();
    assert!(!book.advance(id, &first, State::Open, now), "it is in no book");
    book.enter(id, &first, State::Open, now);
    assert!(book.advance(id, &first, State::Held(1), now));
    book.enter(id, &second, State::Open, now);
    assert!(!book.advance(id, &first, State::Held(2), now));
    assert!(matches!(book.get(id), Some((_, State::Open))));
    second.end();
    assert!(!book.advance(id, &second, State::Held(3), now));
    assert!(matches!(book.get(id), Some((_, State::Open))));
}

/// Fills a book with claims whose ttl is a second.
fn enter(book: &mut Book, count: usize, now: Moment) {
    for _ in 0..count {
        let one = claim("k").with(|it| it.ttl = Duration::from_secs(1));
        book.enter(one.id, &Round::of(&one, 0, false), State::Open, now);
    }
}

#[test]
fn a_crowded_book_drops_what_all_nodes_have_dropped() {
    let at = |millis| Moment::from_nanos(0).plus(Duration::from_millis(millis));
    // Nobody looks through a book with room.
    let mut book = Book::new();
    enter(&mut book, 255, at(0));
    enter(&mut book, 1, at(10_000));
    assert_eq!(book.len(), 256);
    enter(&mut book, 1, at(10_000));
    assert_eq!(book.len(), 2);
    // A claim is kept for two of its ttls and a second.
    for (millis, left) in [(2_999, 257), (3_000, 1)] {
        let mut book = Book::new();
        enter(&mut book, 256, at(0));
        enter(&mut book, 1, at(millis));
        assert_eq!(book.len(), left, "after {millis} ms");
    }
    // Where all are alive, the next look is when there are twice as many.
    let mut book = Book::new();
    enter(&mut book, 257, at(0));
    enter(&mut book, 255, at(10_000));
    assert_eq!(book.len(), 512);
    enter(&mut book, 1, at(10_000));
    assert_eq!(book.len(), 256);
}

#[test]
fn a_node_may_take_a_tenth_of_the_ttl_and_200_ms_at_most() {
    let millis = |ttl| node_limit(Duration::from_millis(ttl)).as_millis();
    assert_eq!([100, 1_000, 2_000, 60_000].map(millis), [10, 100, 200, 200]);
}
