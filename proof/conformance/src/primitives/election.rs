//! An election: one of many leads.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use latchwork_store::Mode;

use crate::case::{Case, case};
use crate::stage::{NAME, Stage};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(one_leads_and_its_term_is_larger),
        case!(an_observer_sees_who_leads),
        case!(a_leader_that_dies_is_followed),
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
