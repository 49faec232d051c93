//! An election: one of many leads.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use latchwork::{Error, FencingToken, Leader, LockManager};
use latchwork_store::{Backend, BackendError, Key, Mode, Query, Snapshot, Verb, pass_on};

use crate::case::{Case, case};
use crate::harness::Fault;
use crate::stage::{NAME, Stage};

/// An observer does not ask so seldom, so what it sees in time it was notified of.
const HARDLY_EVER: Duration = Duration::from_secs(3_600);
/// Far less than the time after which an observer looks because a hint may be lost.
const SOON: Duration = Duration::from_secs(2);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(one_leads_and_its_term_is_larger),
        case!(an_observer_sees_who_leads),
        case!(a_leader_that_dies_is_followed),
        case!(an_observer_is_notified_of_each_change, |it| it.watch),
        case!(an_observer_is_notified_after_its_connection_broke, |it| it.watch),
        case!(nothing_is_asked_while_a_watched_election_is_quiet, |it| it.watch),
        case!(a_store_without_notifications_says_so, |it| !it.watch),
    ]
}

/// One leads at a time, others see who, and the next term is larger.
async fn one_leads_and_its_term_is_larger(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let ours = a.locks.election(NAME).candidate("a");
    let theirs = b.locks.election(NAME).candidate("b");
    assert_eq!(theirs.leader().await.unwrap(), None);
    let first = ours.campaign().await.unwrap();
    assert!(theirs.try_campaign().await.unwrap().is_none(), "somebody leads");
    let leader = theirs.leader().await.unwrap().expect("somebody leads");
    assert_eq!((&*leader.candidate, leader.term), ("a", first.term()));
    let seen = b.locks.inspect(NAME).await.unwrap();
    let holder = &seen.holders[0].holder;
    assert_eq!(holder.candidate.as_deref(), Some("a"));
    assert_ne!(&*holder.text, "a", "the text for people still names the machine");
    let term = first.term();
    let (second, resigned) = tokio::join!(theirs.campaign(), async {
        stage.settle().await;
        first.resign().await
    });
    resigned.unwrap();
    let second = second.unwrap();
    assert!(second.term() > term, "{} after {term}", second.term());
    let leader = ours.leader().await.unwrap().expect("somebody leads");
    assert_eq!((&*leader.candidate, leader.term), ("b", second.term()));
}

/// The first item is how it is, each further one a change.
async fn an_observer_sees_who_leads(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let quick = Duration::from_millis(20);
    let mut seen = pin!(b.locks.election(NAME).look_every(quick).observe());
    assert_eq!(seen.next().await.unwrap().unwrap(), None);
    let election = a.locks.election(NAME).candidate("10.0.0.7:80");
    let leadership = election.campaign().await.unwrap();
    let leader = seen.next().await.unwrap().unwrap().expect("somebody leads");
    assert_eq!((&*leader.candidate, leader.term), ("10.0.0.7:80", leadership.term()));
    leadership.resign().await.unwrap();
    assert_eq!(seen.next().await.unwrap().unwrap(), None);
}

/// A dead leader is followed after its ttl.
async fn a_leader_that_dies_is_followed(stage: Stage) {
    let (dead, b) = (stage.client().await, stage.peer().await);
    let claim = stage.short_claim(Mode::Exclusive);
    let grant = stage.granted(&dead, &claim, "nobody leads").await;
    let election = b.locks.election(NAME);
    let leader = election.leader().await.unwrap().expect("somebody leads");
    let next = election.campaign().await.unwrap();
    assert_eq!(leader.term, latchwork_store::FencingToken::from_grant(grant.token));
    assert!(next.term() > leader.term, "{} after {}", next.term(), leader.term);
}

/// Expects that an observer sees within a limit that this term leads, or that nobody does.
async fn sees(
    stage: &Stage,
    observer: &mut (impl Stream<Item = Result<Option<Leader>, Error>> + Unpin),
    limit: Duration,
    term: Option<FencingToken>,
) {
    let start = stage.now();
    let found = stage.within(Duration::from_secs(60), async {
        loop {
            match observer.next().await.expect("it never ends") {
                Ok(leader) if leader.as_ref().map(|it| it.term) == term => return,
                // Another one between two leaders, or a connection that broke.
                Ok(_) | Err(_) => {}
            }
        }
    });
    found.await.expect("the observer sees it");
    let took = stage.now().since(start);
    assert!(took <= limit + stage.lateness(start), "{term:?} was seen after {took:?}");
}

/// However seldom an observer looks by itself, it sees each change soon.
async fn an_observer_is_notified_of_each_change(stage: Stage) {
    let (a, b, c) = (stage.peer().await, stage.peer().await, stage.peer().await);
    let mut seen = pin!(c.locks.election(NAME).look_every(HARDLY_EVER).observe());
    assert_eq!(seen.next().await.unwrap().unwrap(), None);
    for _ in 0..3 {
        let first = a.locks.election(NAME).campaign().await.unwrap();
        sees(&stage, &mut seen, SOON, Some(first.term())).await;
        let next = b.locks.election(NAME);
        let (second, resigned) = tokio::join!(next.campaign(), async {
            stage.settle().await;
            first.resign().await
        });
        resigned.unwrap();
        let second = second.unwrap();
        sees(&stage, &mut seen, SOON, Some(second.term())).await;
        second.resign().await.unwrap();
        sees(&stage, &mut seen, SOON, None).await;
    }
}

/// A connection that breaks takes the subscription with it; the observer subscribes anew.
async fn an_observer_is_notified_after_its_connection_broke(stage: Stage) {
    let (a, c) = (stage.peer().await, stage.peer().await);
    let mut seen = pin!(c.locks.election(NAME).look_every(HARDLY_EVER).observe());
    assert_eq!(seen.next().await.unwrap().unwrap(), None);
    for _ in 0..2 {
        // Where there is no connection, none can break.
        if c.client.set_fault(Fault::LoseRequests) {
            c.client.set_fault(Fault::None);
        }
        let leadership = a.locks.election(NAME).campaign().await.unwrap();
        sees(&stage, &mut seen, 2 * SOON, Some(leadership.term())).await;
        leadership.resign().await.unwrap();
        sees(&stage, &mut seen, SOON, None).await;
    }
}

/// Counts the looks at a store.
#[derive(Debug)]
struct CountedLooks {
    inner: Arc<dyn Backend>,
    looks: AtomicU32,
}

// Not enrolled: it counts what is asked of a store that is.
impl Backend for CountedLooks {
    pass_on!(inner: capabilities, try_acquire, wait, renew_all, release, watch);

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.inner.inspect(query)
    }
}

/// The first look is the only one for at least 10 s.
async fn nothing_is_asked_while_a_watched_election_is_quiet(stage: Stage) {
    let client = stage.client().await;
    let inner = client.backend.clone();
    let counted = Arc::new(CountedLooks { inner, looks: AtomicU32::new(0) });
    let locks = LockManager::on_io(counted.clone(), stage.io());
    let mut seen = pin!(locks.election(NAME).observe());
    assert_eq!(seen.next().await.unwrap().unwrap(), None);
    assert!(stage.within(Duration::from_secs(4), seen.next()).await.is_none());
    assert_eq!(counted.looks.load(Ordering::Relaxed), 1);
}

/// Then an observer looks by a timer.
async fn a_store_without_notifications_says_so(stage: Stage) {
    let client = stage.client().await;
    let key = Key::new(NAME).unwrap();
    assert!(client.backend.watch(&key).await.unwrap().is_none());
}
