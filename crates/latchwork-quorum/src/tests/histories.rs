//! Random histories: processes take and lose a key while messages and nodes fail.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::world::{Fault, Node, Process};
use latchwork_store::validity;
use latchwork_store::*;
use latchwork_store::{
    Io, Moment,
    testing::{claim, paused_io},
};

const MS: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_millis(2_000);
const PROCESSES: usize = 4;

/// A small random generator (splitmix64), so that a seed names a history.
#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn upto(&mut self, ms: u64) -> Duration {
        MS * self.roll(ms + 1) as u32
    }
}

#[derive(Debug, Clone)]
struct Hold {
    id: ClaimId,
    mode: Mode,
    token: u64,
    until: Moment,
}

/// What the resource sees: who believes to hold, and every token.
#[derive(Default)]
struct Witness {
    now: Vec<Hold>,
    tokens: Vec<(u64, Mode)>,
    holds: usize,
    faults: Vec<String>,
}

impl Witness {
    fn shares(a: Mode, b: Mode) -> bool {
        a == Mode::Read && b == Mode::Read
    }

    fn begin(&mut self, hold: Hold, now: Moment) {
        self.holds += 1;
        self.now.retain(|other| other.until > now);
        for other in self.now.iter().filter(|other| !Self::shares(other.mode, hold.mode)) {
            self.faults.push(format!("two holders at {now:?}: {other:?} and {hold:?}"));
        }
        for (token, mode) in &self.tokens {
            if *token >= hold.token && !Self::shares(*mode, hold.mode) {
                self.faults.push(format!("token {token} before {hold:?}"));
            }
        }
        self.tokens.push((hold.token, hold.mode));
        self.now.push(hold);
    }

    fn extend(&mut self, id: ClaimId, until: Moment) {
        self.now.iter_mut().filter(|h| h.id == id).for_each(|h| h.until = until);
    }

    fn end(&mut self, id: ClaimId) {
        self.now.retain(|hold| hold.id != id);
    }
}

/// Takes the key again and again, as the engine would, until `end`.
async fn compete(
    process: Arc<Process>,
    io: Io,
    mut dice: Dice,
    witness: Arc<Mutex<Witness>>,
    end: Moment,
    shared: bool,
) {
    let quorum = &process.quorum;
    while io.now() < end {
        let mut one = claim("k");
        one.ttl = TTL;
        one.waits = dice.roll(3) > 0;
        if shared {
            one.mode = if dice.roll(3) > 0 { Mode::Read } else { Mode::Write };
        }
        for _ in 0..1 + dice.roll(6) {
            let sent_at = io.now();
            // Some callers lose patience at any point.
            let limit = if dice.roll(8) == 0 { dice.upto(60) } else { TTL / 4 };
            match io.within(limit, quorum.try_acquire(&one)).await {
                Some(Ok(Attempt::Granted(grant))) => {
                    hold(&process, &io, &mut dice, &witness, &one, sent_at, grant).await;
                    break;
                }
                Some(Ok(Attempt::Blocked(blocked))) => {
                    let patience = dice.upto(700);
                    let _ = io.within(patience, quorum.wait(&one, &blocked)).await;
                }
                Some(Err(_)) | None => io.sleep(dice.upto(100)).await,
            }
            io.sleep(dice.upto(20)).await;
        }
        // A crashed process releases nothing, an impatient one does not wait for the answer.
        match dice.roll(8) {
            0 => {}
            1 => drop(io.within(dice.upto(30), quorum.release(&one, Linger::None)).await),
            _ => drop(quorum.release(&one, Linger::None).await),
        }
        io.sleep(dice.upto(300)).await;
    }
}

async fn hold(
    process: &Process,
    io: &Io,
    dice: &mut Dice,
    witness: &Mutex<Witness>,
    one: &Claim,
    mut sent_at: Moment,
    grant: Grant,
) {
    let mut until = validity::valid_until(sent_at, grant.ttl);
    if !validity::is_worth_taking(until, io.now(), grant.ttl) {
        return;
    }
    let hold = Hold { id: one.id, mode: one.mode, token: grant.token, until };
    witness.lock().unwrap().begin(hold, io.now());
    let leave = io.now().plus(dice.upto(3_000));
    while io.now() < leave.min(until) {
        let renew_at = sent_at.plus(TTL / 3).max(io.now().plus(MS));
        io.clock().sleep_until(renew_at.min(leave).min(until)).await;
        if io.now() >= leave.min(until) {
            break;
        }
        if dice.roll(10) == 0 {
            io.sleep(dice.upto(2_500)).await; // paused by its machine
        }
        sent_at = io.now();
        match io.within(TTL / 4, process.renew(one)).await {
            // An answer that comes after the old validity counts for nothing.
            Some(Ok(Renewal::Held { ttl, token, .. })) if io.now() < until => {
                assert_eq!(token, grant.token, "a renewal keeps the token");
                until = validity::valid_until(sent_at, ttl);
                witness.lock().unwrap().extend(one.id, until);
            }
            Some(Ok(Renewal::Lost)) => break,
            _ => {}
        }
    }
    witness.lock().unwrap().end(one.id);
}

/// Draws the fate of one message.
fn fault(dice: &mut Dice) -> Fault {
    match dice.roll(40) {
        0 | 1 => Fault::LoseRequest,
        2 | 3 => Fault::LoseAnswer,
        4 => Fault::Refuse,
        5 | 6 => Fault::Again(dice.upto(5_000)),
        7 => Fault::Delay(dice.upto(3_000), dice.upto(3_000)),
        8..=12 => Fault::Delay(dice.upto(150), dice.upto(150)),
        _ => Fault::Delay(dice.upto(8), dice.upto(8)),
    }
}

async fn history(seed: u64) -> Result<usize, String> {
    let (io, _) = paused_io();
    let mut dice = Dice(seed);
    let size = 1 + dice.roll(5) as usize;
    let shared = dice.roll(4) == 0;
    let calm = dice.roll(4) == 0;
    let nodes: Vec<_> = (0..size).map(|_| Node::new(&io, TTL.mul_f64(1.01) + 10 * MS)).collect();
    let witness = Arc::new(Mutex::new(Witness::default()));
    let end = io.now().plus(Duration::from_secs(20));
    let mut processes = Vec::new();
    let (done, mut all_done) = tokio::sync::mpsc::channel::<()>(1);
    for _ in 0..PROCESSES {
        let process = Arc::new(Process::over(&nodes, &io));
        for link in &process.links {
            let mut dice = Dice(dice.roll(u64::MAX));
            link.plan(move |_, _| match calm {
                true => Fault::Delay(dice.upto(8), dice.upto(8)),
                false => fault(&mut dice),
            });
        }
        processes.push(process.clone());
        let dice = Dice(dice.roll(u64::MAX));
        let run = compete(process, io.clone(), dice, witness.clone(), end, shared);
        let done = done.clone();
        io.spawn(async move {
            run.await;
            drop(done);
        });
    }
    drop(done);
    while io.now() < end {
        io.sleep(dice.upto(8_000)).await;
        if !calm {
            nodes[dice.roll(size as u64) as usize].forget();
        }
    }
    all_done.recv().await;
    for link in processes.iter().flat_map(|process| &process.links) {
        link.always(Fault::None);
    }
    // The last copies have landed by 5 s, and what they planted is gone a ttl later.
    io.sleep(3 * TTL + Duration::from_secs(5)).await;
    let mut faults = std::mem::take(&mut witness.lock().unwrap().faults);
    for node in &nodes {
        let left = node.snapshot("k").await;
        if !left.is_free() {
            faults.push(format!("left behind: {left:?}"));
        }
    }
    let last = claim("k");
    match processes[0].quorum.try_acquire(&last).await {
        Ok(Attempt::Granted(_)) => {}
        other => faults.push(format!("the key is free, and yet: {other:?}")),
    }
    match faults.is_empty() {
        true => Ok(witness.lock().unwrap().holds),
        false => Err(faults.join("\n")),
    }
}

/// How many histories to run, and from which seed: `QUORUM_SEED=17 QUORUM_HISTORIES=1`.
fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

#[test]
fn one_holder_and_growing_tokens_whatever_fails() {
    let (first, histories) = (number("QUORUM_SEED", 1), number("QUORUM_HISTORIES", 200));
    let mut holds = 0;
    for seed in first..first + histories {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        match runtime.block_on(history(seed)) {
            Ok(count) => holds += count,
            Err(faults) => panic!("QUORUM_SEED={seed} QUORUM_HISTORIES=1\n{faults}"),
        }
    }
    assert!(holds as u64 >= histories * 5, "the histories hold the key: {holds}");
}
