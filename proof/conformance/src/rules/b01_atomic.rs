//! B1: no two incompatible claims are granted at once, by the store's own reckoning.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_store::{Claim, ClaimId, Io, Mode, Order};
use tokio::task::JoinSet;

use crate::case::{Case, case};
use crate::harness::Client;
use crate::stage::{Stage, acquire};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(exclusive_claims_exclude),
        case!(readers_share_and_writers_do_not, |e| e.shared),
        case!(permits_never_exceed_their_limit, |e| e.permits),
        case!(contending_mutexes_never_overlap),
        case!(contending_readers_and_writers_never_overlap, |e| e.shared),
        case!(contending_permits_never_exceed_their_limit, |e| e.permits),
    ]
}

/// While one exclusive claim is held no other is granted, to the same client or another.
async fn exclusive_claims_exclude(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let first = stage.claim(Mode::Exclusive);
    stage.granted(&a, &first, "the key is free").await;
    for order in [Order::Fifo, Order::Barging] {
        for client in [&a, &b] {
            let other = stage.claim(Mode::Exclusive).with(|it| { it.order = order; it.waits = false; });
            client.blocked(&other, "the key is held").await;
        }
    }
    a.held(&first, "nobody could take it").await;
    a.released(&first, "it was held").await;
    stage.granted(&b, &stage.claim(Mode::Exclusive), "the key is free again").await;
}

/// Readers hold together; a writer holds alone, among readers and writers.
async fn readers_share_and_writers_do_not(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let readers = [stage.claim(Mode::Read), stage.claim(Mode::Read), stage.claim(Mode::Read)];
    stage.granted(&a, &readers[0], "the key is free").await;
    stage.granted(&b, &readers[1], "readers share").await;
    stage.granted(&a, &readers[2], "readers share").await;
    for (left, client) in readers.iter().zip([&a, &b, &a]) {
        b.blocked(&stage.passer(Mode::Write), "somebody reads").await;
        client.released(left, "it was held").await;
    }
    let writer = stage.claim(Mode::Write);
    stage.granted(&b, &writer, "all readers have left").await;
    a.blocked(&stage.passer(Mode::Write), "somebody writes").await;
    a.blocked(&stage.passer(Mode::Read), "somebody writes").await;
    b.held(&writer, "nobody could take it").await;
}

/// The permits taken at one time are never more than the limit, whatever their sizes.
async fn permits_never_exceed_their_limit(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    let permits = |take| Mode::Permits { take, of: 5 };
    let (two, one) = (stage.claim(permits(2)), stage.claim(permits(1)));
    stage.granted(&a, &two, "5 of 5 are free").await;
    b.blocked(&stage.passer(permits(4)), "3 of 5 are free").await;
    stage.granted(&b, &one, "3 of 5 are free").await;
    b.blocked(&stage.passer(permits(3)), "2 of 5 are free").await;
    let last = stage.claim(permits(2));
    stage.granted(&b, &last, "2 of 5 are free").await;
    a.blocked(&stage.passer(permits(1)), "none is free").await;
    b.released(&one, "it was held").await;
    a.blocked(&stage.passer(permits(2)), "1 of 5 is free").await;
    stage.granted(&a, &stage.claim(permits(1)), "1 of 5 is free").await;
}

/// Many who contend for a mutex from several clients hold it one at a time, and all get it.
async fn contending_mutexes_never_overlap(stage: Stage) {
    contend(&stage, |_| Mode::Exclusive).await;
}

/// Many readers and writers: no writer ever beside anybody, and all get their turn.
async fn contending_readers_and_writers_never_overlap(stage: Stage) {
    contend(&stage, |n| if n % 3 == 0 { Mode::Write } else { Mode::Read }).await;
}

/// Many claims of different sizes never take more permits than there are, and all get theirs.
async fn contending_permits_never_exceed_their_limit(stage: Stage) {
    contend(&stage, |n| Mode::Permits { take: n % 3 + 1, of: 4 }).await;
}

/// Who holds, from the answer to before the release: a part of what the store reckons.
type Book = Arc<Mutex<Vec<(ClaimId, Mode)>>>;

fn enter(book: &Book, claim: &Claim) {
    let mut book = book.lock().expect("nobody panicked");
    let permits: u32 = book
        .iter()
        .map(|(_, mode)| match (mode, claim.mode) {
            (Mode::Permits { take, .. }, _) => *take,
            (Mode::Read, Mode::Read) => 0,
            (held, wanted) => panic!("{wanted:?} was granted beside {held:?}"),
        })
        .sum();
    if let Mode::Permits { take, of } = claim.mode {
        assert!(permits + take <= of, "{permits} of {of} taken, {take} more granted");
    }
    book.push((claim.id, claim.mode));
}

async fn contend(stage: &Stage, mode: impl Fn(u32) -> Mode) {
    let book = Book::default();
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let client = Arc::new(stage.client().await);
        for n in 0..3 {
            let claims = (0..8).map(|round| {
                let order = if (n + round) % 4 == 0 { Order::Barging } else { Order::Fifo };
                stage.claim(mode(n + round)).with(|it| it.order = order)
            });
            tasks.spawn(turns(stage.io(), client.clone(), claims.collect(), book.clone()));
        }
    }
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    assert!(book.lock().expect("nobody panicked").is_empty());
}

async fn turns(io: Io, client: Arc<Client>, claims: Vec<Claim>, book: Book) {
    for claim in claims {
        acquire(&io, &client, &claim).await;
        enter(&book, &claim);
        io.sleep(Duration::from_millis(1)).await;
        book.lock().expect("nobody panicked").retain(|(id, _)| *id != claim.id);
        client.released(&claim, "it was held").await;
    }
}
