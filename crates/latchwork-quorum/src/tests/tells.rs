//! What a majority tells of its keys, and of itself.

use super::cases::*;
use super::world::*;
use crate::Quorum;
use latchwork_store::testing::claim;
use latchwork_store::*;

#[tokio::test(start_paused = true)]
async fn inspect_shows_the_view_of_a_majority() {
    let (io, nodes) = world(3);
    let (process, other) = (Process::over(&nodes, &io), Process::over(&nodes, &io));
    let (one, rival) = (claim("k"), claim("k").with(|it| it.holder = "rival".into()));
    let grant = process.granted(process.quorum.try_acquire(&one).await);
    process.blocked(process.quorum.try_acquire(&rival).await);
    let stray = claim("stray").with(|it| it.holder = "stray".into());
    nodes[1].hold(&stray).await;
    let list = process.quorum.inspect(&Query::Prefix("".into())).await.unwrap();
    assert_eq!(list.len(), 1, "a single vote is no hold: {list:?}");
    let snapshot = &list[0];
    assert_eq!(snapshot.holders.len(), 1);
    let holder = &snapshot.holders[0];
    assert_eq!((holder.id, holder.token), (Some(one.id), Some(grant.token)));
    assert_eq!(snapshot.waiters.iter().map(|w| w.id).collect::<Vec<_>>(), [Some(rival.id)]);
    assert_eq!(snapshot.shape, Some(Shape::Mutex));
    let query = Query::Key(stray.key.clone());
    let notes = process.quorum.inspect(&query).await.unwrap().remove(0).notes;
    assert_eq!(notes, ["\"stray\" is on 1 of 3 nodes: less than a majority, so it is not held"]);
    // What another process sees can be released by that name.
    let query = Query::Key(one.key.clone());
    let seen = other.quorum.inspect(&query).await.unwrap().remove(0);
    let forced = one.clone().with(|it| it.id = seen.holders[0].id.unwrap());
    let released = other.quorum.release(&forced, Linger::None).await;
    assert_eq!(released.unwrap(), Released::Yes);
    assert_eq!(process.renew(&one).await.unwrap(), Renewal::Lost);
}

#[tokio::test(start_paused = true)]
async fn capabilities_are_reported() {
    let (io, nodes) = world(3);
    let process = Process::over(&nodes, &io);
    let capabilities = process.quorum.capabilities();
    assert_eq!(&*capabilities.store, "quorum(mem:, mem:, mem:)");
    assert!(capabilities.shared && capabilities.linger && capabilities.push);
    assert!(!capabilities.permits && !capabilities.fifo);
    assert_eq!(capabilities.fencing, Fencing::WhileDataSurvives);
    let permits = claim("k").with(|it| it.mode = Mode::Permits { take: 1, of: 2 });
    let error = process.quorum.try_acquire(&permits).await.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Unsupported, Effect::NotApplied));
    let step = "use a semaphore on one node, or one mutex for each slot";
    assert_eq!(error.next_step.as_deref(), Some(step));
    let none = Quorum::new(vec![], io).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Invalid);
    assert_eq!(none.next_step(), Some("name three or five independent stores"));
}
