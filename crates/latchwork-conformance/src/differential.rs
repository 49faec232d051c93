//! Random histories through a backend and through [`kit::record`](latchwork_core::kit::record), answer by answer.
//!
//! Use it for backends that are built on the record or mirror it (a script, a row): they must not
//! only keep the rules but give the same answers. Tokens are compared by order, not by value, as a
//! store may leave some out. Time is moved by hand, so the backend must take it from its `Io`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use latchwork_core::kit::record::{Now, Record};
use latchwork_core::testing::{PausedClock, paused_io};
use latchwork_core::{
    Attempt, BackendError, Blocked, Claim, ClaimId, Clock, Key, Linger, Mode, Moment, Order,
    Renewal, Snapshot, Stamp,
};
use tokio::runtime::Builder;

use crate::harness::{Client, Harness};

/// Store and model may round times, but not by more.
const ROUNDING: Duration = Duration::from_millis(2);

const KEYS: usize = 4;
const SLOTS: usize = 7;

/// Plays the history of `seed`, `steps` long, through a fresh store of the harness and the model.
///
/// # Errors
///
/// The first answer that differs, with the steps on its key that led there.
pub fn compare(harness: &dyn Harness, seed: u64, steps: usize) -> Result<(), String> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    runtime.block_on(async {
        let (io, clock) = paused_io();
        let store = harness.fresh(&io).await;
        let clients = vec![store.open(&io).await, store.open(&io).await];
        let mut play = Play::new(seed, clock, clients);
        for step in 0..steps {
            play.step().await.map_err(|difference| {
                let told = play.told.join("\n  ");
                format!("seed {seed}, step {step}: {difference}\n  {told}")
            })?;
        }
        Ok(())
    })
}

struct Play {
    random: Random,
    clock: Arc<PausedClock>,
    clients: Vec<Client>,
    slots: Vec<Claim>,
    model: HashMap<Key, Record>,
    /// For each key, the store's tokens by the model's.
    tokens: HashMap<Key, BTreeMap<u64, u64>>,
    told: Vec<String>,
}

impl Play {
    fn new(seed: u64, clock: Arc<PausedClock>, clients: Vec<Client>) -> Self {
        let mut play = Self {
            random: Random(seed),
            clock,
            clients,
            slots: Vec::new(),
            model: HashMap::new(),
            tokens: HashMap::new(),
            told: Vec::new(),
        };
        for slot in 0..KEYS * SLOTS {
            let claim = play.fresh_claim(slot);
            play.slots.push(claim);
        }
        play
    }

    fn fresh_claim(&mut self, slot: usize) -> Claim {
        let key = slot % KEYS;
        let kind = if self.random.one_in(25) { self.random.below(4) } else { key as u64 };
        let mode = match kind {
            0 => Mode::Exclusive,
            1 if self.random.one_in(2) => Mode::Read,
            1 => Mode::Write,
            _ => Mode::Permits { take: 1 + self.random.below(3) as u32, of: 1 + kind as u32 },
        };
        let seconds = [1, 3, 10, 60][self.random.below(4) as usize];
        Claim {
            key: Key::new(format!("differential/{key}")).expect("a good key"),
            id: ClaimId::from_u128(u128::from(self.random.next()) << 64 | slot as u128),
            mode,
            order: if self.random.one_in(4) { Order::Barging } else { Order::Fifo },
            ttl: Duration::from_secs(seconds),
            holder: format!("slot {slot}").into(),
            waits: !self.random.one_in(6),
            floor: 0,
            stamp: Stamp::new(Moment::from_nanos(0)),
        }
    }

    async fn step(&mut self) -> Result<(), String> {
        let slot = self.random.below((KEYS * SLOTS) as u64) as usize;
        let client = slot / KEYS % self.clients.len();
        let claim = self.slots[slot].clone();
        match self.random.below(100) {
            0..45 => self.attempt(client, &claim).await?,
            45..60 => self.renew(client, &claim).await?,
            60..75 => {
                self.release(client, &claim).await?;
                self.slots[slot] = self.fresh_claim(slot);
            }
            75..78 => {
                self.told.push(format!("slot {slot} is given up"));
                self.slots[slot] = self.fresh_claim(slot);
            }
            _ => {
                let millis = [1, 50, 500, 999, 1_000, 2_000, 2_001, 5_000, 20_000];
                let length = Duration::from_millis(millis[self.random.below(9) as usize]);
                self.told.push(format!("{length:?} pass"));
                self.clock.suspend(length);
            }
        }
        self.look(client, &claim.key).await
    }

    fn now(&self) -> Now {
        Now { lease: self.clock.now().since(Moment::from_nanos(0)), wall: self.clock.wall() }
    }

    fn record(&mut self, key: &Key) -> &mut Record {
        self.model.entry(key.clone()).or_default()
    }

    /// A claim for the store and the same for the model, now and then with a floor above all
    /// tokens of the key.
    fn floored(&mut self, claim: &Claim) -> (Claim, Claim) {
        let (mut ours, mut theirs) = (claim.clone(), claim.clone());
        if self.random.one_in(8) {
            let lift = 1 + self.random.below(5);
            let last = self.tokens.get(&claim.key).and_then(|known| known.last_key_value());
            let (model, store) = last.map_or((0, 0), |(model, store)| (*model, *store));
            ours.floor = model + lift;
            theirs.floor = store + lift;
        }
        (ours, theirs)
    }

    async fn attempt(&mut self, client: usize, claim: &Claim) -> Result<(), String> {
        let (ours, theirs) = self.floored(claim);
        self.told.push(format!("try {}", brief(&ours)));
        let now = self.now();
        let (model, _) = self.record(&claim.key).try_acquire(&ours, 0, 0, now, &|_| true);
        let store = self.clients[client].attempt(&theirs).await;
        let same = match (&model, &store) {
            (Ok(Attempt::Granted(m)), Ok(Attempt::Granted(s))) => {
                self.same_token(&claim.key, m.token, s.token)? && m.ttl == s.ttl
            }
            (Ok(Attempt::Blocked(m)), Ok(Attempt::Blocked(s))) => same_blocked(m, s),
            (Err(m), Err(s)) => same_error(m, s),
            _ => false,
        };
        same.then_some(()).ok_or(format!("try: the model says {model:?}, the store {store:?}"))
    }

    async fn renew(&mut self, client: usize, claim: &Claim) -> Result<(), String> {
        let (ours, theirs) = self.floored(claim);
        self.told.push(format!("renew {}", brief(&ours)));
        let now = self.now();
        let (model, _) = self.record(&claim.key).renew(&ours, now, &|_| true);
        let store = self.clients[client].renew(&theirs).await;
        let same = match (model, store) {
            (Renewal::Held { ttl, token, .. }, Renewal::Held { ttl: other, token: theirs, .. }) => {
                self.same_token(&claim.key, token, theirs)? && ttl == other
            }
            (Renewal::Lost, Renewal::Lost) => true,
            _ => false,
        };
        same.then_some(()).ok_or(format!("renew: the model says {model:?}, the store {store:?}"))
    }

    async fn release(&mut self, client: usize, claim: &Claim) -> Result<(), String> {
        let linger = match self.random.one_in(8) {
            true => Linger::For(Duration::from_millis(500 + self.random.below(4_000))),
            false => Linger::None,
        };
        self.told.push(format!("release {} {linger:?}", brief(claim)));
        let now = self.now();
        let (model, _) = self.record(&claim.key).release(claim.id, linger, now, &|_| true);
        let store = self.clients[client].backend.release(claim, linger).await;
        let store = store.map_err(|error| format!("release: {error:?}"))?;
        let same = model == store;
        same.then_some(()).ok_or(format!("release: the model says {model:?}, the store {store:?}"))
    }

    /// Compares what the store shows of a key.
    async fn look(&mut self, client: usize, key: &Key) -> Result<(), String> {
        let now = self.now();
        let model = self.record(key).snapshot(key.clone(), now, &|_| true);
        let store = self.clients[client].show(key).await;
        for (ours, theirs) in model.holders.iter().zip(&store.holders) {
            if let (Some(ours), Some(theirs)) = (ours.token, theirs.token) {
                self.same_token(key, ours, theirs)?;
            }
        }
        let same = outline(&model) == outline(&store);
        same.then_some(()).ok_or(format!("the model shows {model:?}, the store {store:?}"))
    }

    /// Whether the store's tokens on a key are in the order of the model's.
    fn same_token(&mut self, key: &Key, model: u64, store: u64) -> Result<bool, String> {
        let known = self.tokens.entry(key.clone()).or_default();
        if let Some(before) = known.get(&model) {
            return Ok(*before == store);
        }
        let below = known.range(..model).next_back().is_none_or(|(_, other)| *other < store);
        let above = known.range(model..).next().is_none_or(|(_, other)| *other > store);
        known.insert(model, store);
        match below && above {
            true => Ok(true),
            false => Err(format!("token {store} (model: {model}) is out of order: {known:?}")),
        }
    }
}

/// The parts of a snapshot that must be equal: order among holders says nothing.
fn outline(snapshot: &Snapshot) -> String {
    let mut text = format!("{:?} linger {}", snapshot.shape, snapshot.linger.is_some());
    let mut holders: Vec<_> = snapshot.holders.iter().collect();
    holders.sort_by_key(|party| party.id);
    for party in holders.into_iter().chain(&snapshot.waiters) {
        let left = party.remaining.map(|left| left.as_millis() / (2 * ROUNDING.as_millis()));
        let _ = write!(text, "; {:?} {:?} {} {left:?}", party.id, party.mode, party.holder);
    }
    text
}

fn same_blocked(model: &Blocked, store: &Blocked) -> bool {
    let near = match (model.retry_after, store.retry_after) {
        (Some(model), Some(store)) => model.abs_diff(store) <= ROUNDING,
        (model, store) => model == store,
    };
    near && (model.cause, model.ahead) == (store.cause, store.ahead) && model.holder == store.holder
}

fn same_error(model: &BackendError, store: &BackendError) -> bool {
    (model.kind, model.effect) == (store.kind, store.effect)
}

fn brief(claim: &Claim) -> String {
    format!(
        "{} on {} {:?} {:?} ttl {:?} waits {} floor {}",
        claim.holder, claim.key, claim.mode, claim.order, claim.ttl, claim.waits, claim.floor
    )
}

/// A small generator with one number as its state (SplitMix64; Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}
