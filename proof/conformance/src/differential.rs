//! Random histories through a backend and through [`kit::record`](latchwork_store::kit::record), answer by answer.
//!
//! Use it for backends that are built on the record or mirror it (a script, a row): they must not
//! only keep the rules but give the same answers. Tokens are compared by order, not by value, as a
//! store may leave some out. Time is moved by hand.
//!
//! [`compare`] is for backends that take their time from their `Io` and wake waiters as the record
//! does. [`compare_punctual`] is for stores with a clock of their own and their own ways to serve
//! a line: there every waiter comes when it is its turn and when it promised to, so that it does
//! not matter how a store learns of one that does not.

mod time;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::kit::record::{Now, Record};
use latchwork_store::testing::paused_io;
use latchwork_store::{
    Attempt, BackendError, Blocked, Claim, ClaimId, Io, Key, Linger, Mode, Moment, Order, Renewal,
    Resize, Shape, Snapshot, Stamp,
};
use libtest_mimic::Trial;
use tokio::runtime::Builder;

use self::time::{ByHand, Time};
use crate::harness::{Client, Harness, Store};
use crate::random::Random;

/// Store and model may round times, but not by more.
const ROUNDING: Duration = Duration::from_millis(2);

/// The longest pause between two looks of a waiter.
const LONGEST_REST: Duration = Duration::from_secs(10);

const KEYS: usize = 4;
const SLOTS: usize = 7;

/// A trial that plays so many histories, each so many steps long, by [`compare`].
///
/// `LATCHWORK_SEED=17` plays that one history; `LATCHWORK_HISTORIES=100000` plays so many.
pub fn trial(name: &str, harness: impl Harness, histories: u64, steps: usize) -> Trial {
    Trial::test(name, move || {
        for seed in seeds(histories) {
            compare(&harness, seed, steps)?;
        }
        Ok(())
    })
}

/// The history that `LATCHWORK_SEED` names, else as many as `LATCHWORK_HISTORIES` or the test says.
///
/// # Panics
///
/// If a variable is no number.
pub fn seeds(histories: u64) -> Range<u64> {
    let number =
        |variable| std::env::var(variable).ok().map(|text: String| text.parse().expect("a number"));
    match number("LATCHWORK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LATCHWORK_HISTORIES").unwrap_or(histories),
    }
}

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
        Play::new(seed, clock, false, clients).steps(seed, steps).await
    })
}

/// Plays the history of `seed`, `steps` long, through a fresh store and the model, with waiters
/// that come when they should. `pass` moves the clock of the store, which stands still otherwise.
///
/// # Errors
///
/// The first answer that differs, with the steps on its key that led there.
pub async fn compare_punctual(
    store: &Store,
    io: &Io,
    pass: impl Fn(Duration) + 'static,
    seed: u64,
    steps: usize,
) -> Result<(), String> {
    let clients = vec![store.open(io).await, store.open(io).await];
    let time = ByHand::new(pass);
    let mut play = Play::new(seed, Arc::new(time), true, clients);
    play.let_them_listen().await;
    play.steps(seed, steps).await
}

struct Play {
    random: Random,
    time: Arc<dyn Time>,
    /// Every waiter comes when it is its turn and when it promised to. Times of different kinds
    /// (of steps, leases, lingers) then never fall on one millisecond, on which stores differ.
    punctual: bool,
    /// When the waiters have promised to look.
    look_at: HashMap<ClaimId, Duration>,
    clients: Vec<Client>,
    slots: Vec<Claim>,
    model: HashMap<Key, Record>,
    /// For each key, the store's tokens by the model's.
    tokens: HashMap<Key, BTreeMap<u64, u64>>,
    /// What was done, and to which key if not to all.
    told: Vec<(Option<Key>, String)>,
}

impl Play {
    fn new(seed: u64, time: Arc<dyn Time>, punctual: bool, clients: Vec<Client>) -> Self {
        let mut play = Self {
            random: Random(seed),
            time,
            punctual,
            look_at: HashMap::new(),
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

    async fn steps(&mut self, seed: u64, steps: usize) -> Result<(), String> {
        for step in 0..steps {
            self.step().await.map_err(|difference| {
                format!("seed {seed}, step {step}: {difference}\n{}", self.story())
            })?;
        }
        Ok(())
    }

    /// What has happened to the key of the last step.
    fn story(&self) -> String {
        let key = self.told.iter().rev().find_map(|(key, _)| key.as_ref());
        let about = |of: &Option<Key>| of.is_none() || of.as_ref() == key;
        let told = self.told.iter().filter(|(of, _)| about(of));
        told.map(|(_, what)| format!("  {what}\n")).collect()
    }

    fn tell(&mut self, key: &Key, what: String) {
        self.told.push((Some(key.clone()), what));
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
        let (mode, beside) = self.beside(key, mode);
        let seconds = [1, 3, 10, 60][self.random.below(4) as usize];
        Claim::new(
            key_of(key),
            ClaimId::from_u128(u128::from(self.random.next()) << 64 | slot as u128),
            mode,
            Duration::from_secs(seconds) + self.only_punctual(5),
            Stamp::new(Moment::from_nanos(0)),
        )
        .with(|it| {
            it.beside = beside;
            let barges = beside.is_none() && self.random.one_in(4);
            it.order = if barges { Order::Barging } else { Order::Fifo };
            it.holder = format!("slot {slot}").into();
            it.waits = !self.random.one_in(6);
            // A claim without a place has no limit that another client could change.
            if let (Mode::Permits { take, .. }, Order::Fifo, true) =
                (it.mode, it.order, self.random.one_in(3))
            {
                it.mode = Mode::Permits { take, of: 3 + self.random.below(3) as u32 };
                it.resize = [Resize::ToMine, Resize::Follow][self.random.below(2) as usize];
            }
        })
    }

    /// Now and then the hold that a fresh claim is to replace, and mostly the mode for that.
    fn beside(&mut self, key: usize, mode: Mode) -> (Mode, Option<ClaimId>) {
        let can = self.clients.iter().all(|client| client.backend.capabilities().upgrade);
        if !can || mode.shape() != Shape::ReadWrite || !self.random.one_in(3) {
            return (mode, None);
        }
        if self.random.one_in(8) {
            return (mode, Some(ClaimId::from_u128(u128::from(self.random.next()))));
        }
        let held = self.model.get(&key_of(key)).map_or(&[][..], |record| &record.held);
        let held: Vec<_> = held.iter().map(|member| (member.id, member.mode)).collect();
        if held.is_empty() {
            return (mode, None);
        }
        let (id, was) = held[self.random.below(held.len() as u64) as usize];
        let other = if was == Mode::Read { Mode::Write } else { Mode::Read };
        (if self.random.one_in(12) { mode } else { other }, Some(id))
    }

    async fn step(&mut self) -> Result<(), String> {
        let slot = self.random.below((KEYS * SLOTS) as u64) as usize;
        let client = self.client_of(slot);
        let claim = self.slots[slot].clone();
        // A punctual waiter waits until it is admitted or withdraws.
        let stays = self.punctual && self.stands_in_line(&claim);
        match self.random.below(100) {
            0..45 => self.attempt(client, &claim).await?,
            45..60 if !stays => self.renew(client, &claim).await?,
            60..75 => {
                self.release(client, &claim).await?;
                self.slots[slot] = self.fresh_claim(slot);
            }
            75..78 if !stays => {
                self.tell(&claim.key, format!("slot {slot} is given up"));
                self.slots[slot] = self.fresh_claim(slot);
            }
            78..82 => self.open(client, &claim).await?,
            82..85 => self.resize(client, &claim).await?,
            _ => {
                let exact = [1, 50, 500, 999, 1_000, 2_000, 2_001, 5_000, 20_000];
                let round = [10, 50, 500, 990, 1_000, 2_000, 2_010, 5_000, 20_000];
                let millis = if self.punctual { round } else { exact };
                let length = Duration::from_millis(millis[self.random.below(9) as usize]);
                self.told.push((None, format!("{length:?} pass")));
                if self.punctual {
                    self.pass_punctually(length).await?;
                } else {
                    self.time.pass(length);
                }
            }
        }
        if self.punctual {
            self.serve(&claim.key).await?;
        }
        self.look(client, &claim.key).await
    }

    /// So many milliseconds if times of different kinds must not coincide.
    fn only_punctual(&self, millis: u64) -> Duration {
        Duration::from_millis(if self.punctual { millis } else { 0 })
    }

    fn stands_in_line(&self, claim: &Claim) -> bool {
        let line = self.model.get(&claim.key).map_or(&[][..], |record| &record.queue);
        line.iter().any(|waiter| waiter.id == claim.id)
    }

    /// Lets time pass, and waiters come when they should meanwhile.
    async fn pass_punctually(&mut self, length: Duration) -> Result<(), String> {
        const GRAIN: u128 = 10;
        let until = self.now().lease + length;
        loop {
            let now = self.now().lease;
            let next = self.next_event(now).unwrap_or(until);
            let grains = (next - now).as_millis().div_ceil(GRAIN) as u64;
            let pause = Duration::from_millis(grains * GRAIN as u64).min(until - now);
            self.time.pass(pause);
            self.told.push((None, format!("  {pause:?} of it have passed")));
            let now = self.now().lease;
            let keys: Vec<Key> = self.model.keys().cloned().collect();
            for key in keys {
                self.serve(&key).await?;
                for slot in self.line(&key) {
                    let claim = self.slots[slot].clone();
                    if self.look_at.get(&claim.id).is_some_and(|at| *at <= now) {
                        self.attempt(self.client_of(slot), &claim).await?;
                        self.serve(&key).await?;
                    }
                }
            }
            if now >= until {
                return Ok(());
            }
        }
    }

    /// When the next lease or linger ends, or a waiter has promised to look.
    fn next_event(&self, now: Duration) -> Option<Duration> {
        let records = self.model.values();
        let ends = records.flat_map(|record| {
            let held = record.held.iter().map(|member| member.expires);
            held.chain(record.queue.iter().map(|waiter| waiter.expires))
                .chain([record.closed_until])
        });
        ends.chain(self.look_at.values().copied()).filter(|at| *at > now).min()
    }

    /// The slots of those who wait for a key: the line, and those who have no place.
    fn line(&self, key: &Key) -> Vec<usize> {
        let line = self.model.get(key).map_or(&[][..], |record| &record.queue);
        let slot = |id| self.slots.iter().position(|claim| claim.id == id);
        let mut slots: Vec<_> = line.iter().filter_map(|waiter| slot(waiter.id)).collect();
        slots.sort_by_key(|slot| self.slots[*slot].order == Order::Barging);
        slots
    }

    /// Lets everybody come whose turn it is, and who was told that it might be.
    async fn serve(&mut self, key: &Key) -> Result<(), String> {
        while let Some(slot) = self.next_to_come(key) {
            let claim = self.slots[slot].clone();
            self.attempt(self.client_of(slot), &claim).await?;
        }
        Ok(())
    }

    fn next_to_come(&self, key: &Key) -> Option<usize> {
        let line = self.line(key);
        let answer = |slot: &usize| {
            let mut trial = self.model[key].clone();
            trial.try_acquire(&self.slots[*slot], 0, 0, self.now(), &|_| true).0
        };
        let is_admitted = |slot: &usize| matches!(answer(slot), Ok(Attempt::Granted(_)));
        // Whom another limit refuses has an answer, and does not come again and again.
        let was_told = |slot: &usize| {
            let id = self.slots[*slot].id;
            self.model[key].queue.iter().any(|waiter| waiter.id == id && waiter.told)
                && answer(slot).is_ok()
        };
        line.iter().copied().find(is_admitted).or_else(|| line.iter().copied().find(was_told))
    }

    /// Makes each client a waiter once, so that the store can reach it from then on.
    async fn let_them_listen(&mut self) {
        for (holder, waiter) in [(0, 1), (1, 0)] {
            let claims = [self.fresh_claim(0), self.fresh_claim(0)];
            let [held, mut waits] = claims.map(|claim| claim.with(|it| it.mode = Mode::Exclusive));
            (waits.waits, waits.order) = (true, Order::Fifo);
            let _ = self.clients[holder].attempt(&held).await;
            let answer = self.clients[waiter].attempt(&waits).await;
            let Ok(Attempt::Blocked(blocked)) = answer else { panic!("{answer:?}") };
            let backend = &self.clients[waiter].backend;
            backend.wait(&waits, &blocked).await.expect("a wait without fault");
            backend.release(&waits, Linger::None).await.expect("a release without fault");
            let backend = &self.clients[holder].backend;
            backend.release(&held, Linger::None).await.expect("a release without fault");
        }
    }

    fn client_of(&self, slot: usize) -> usize {
        slot / KEYS % self.clients.len()
    }

    fn now(&self) -> Now {
        self.time.now()
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
        self.tell(&claim.key, format!("try {}", brief(&ours)));
        let now = self.now();
        let (model, _) = self.record(&claim.key).try_acquire(&ours, 0, 0, now, &|_| true);
        let store = self.clients[client].attempt(&theirs).await;
        self.look_at.remove(&claim.id);
        if let (Ok(Attempt::Blocked(blocked)), true) = (&store, claim.waits) {
            let rest = (claim.ttl / 3).min(LONGEST_REST);
            let retry = blocked.retry_after.unwrap_or(Duration::MAX);
            self.look_at.insert(claim.id, now.lease + rest.min(retry));
        }
        let punctual = self.punctual;
        let same = match (&model, &store) {
            (Ok(Attempt::Granted(m)), Ok(Attempt::Granted(s))) => {
                self.same_token(&claim.key, m.token, s.token)? && m.ttl == s.ttl
            }
            (Ok(Attempt::Blocked(m)), Ok(Attempt::Blocked(s))) if punctual => {
                // Readers are not in each other's way; who does not wait has no place.
                let counts = claim.waits && claim.mode != Mode::Read;
                m.cause == s.cause && (!counts || m.ahead == s.ahead)
            }
            (Ok(Attempt::Blocked(m)), Ok(Attempt::Blocked(s))) => same_blocked(m, s),
            (Err(m), Err(s)) => same_error(m, s),
            _ => false,
        };
        same.then_some(()).ok_or(format!("try: the model says {model:?}, the store {store:?}"))
    }

    async fn renew(&mut self, client: usize, claim: &Claim) -> Result<(), String> {
        let (ours, theirs) = self.floored(claim);
        self.tell(&claim.key, format!("renew {}", brief(&ours)));
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
        // Clients release a hold that they have replaced without a linger, and stores need not keep one.
        let held = self.model.get(&claim.key).map_or(&[][..], |record| &record.held);
        let is_beside = held.len() > 1 && held.iter().any(|member| member.mode == Mode::Write);
        let linger = match !is_beside && self.random.one_in(8) {
            true => {
                let millis = 500 + self.random.below(4_000);
                let odd = if self.punctual { millis / 10 * 10 + 7 } else { millis };
                Linger::For(Duration::from_millis(odd))
            }
            false => Linger::None,
        };
        self.look_at.remove(&claim.id);
        self.tell(&claim.key, format!("release {} {linger:?}", brief(claim)));
        let now = self.now();
        let (model, _) = self.record(&claim.key).release(claim, linger, now, &|_| true);
        let store = self.clients[client].backend.release(claim, linger).await;
        let store = store.map_err(|error| format!("release: {error:?}"))?;
        let same = model == store;
        same.then_some(()).ok_or(format!("release: the model says {model:?}, the store {store:?}"))
    }

    /// Opens the key of a claim, which it may hold or wait for.
    async fn open(&mut self, client: usize, claim: &Claim) -> Result<(), String> {
        self.tell(&claim.key, format!("open, asked by {}", brief(claim)));
        let now = self.now();
        let (model, _) = self.record(&claim.key).release(claim, Linger::End, now, &|_| true);
        let store = self.clients[client].backend.release(claim, Linger::End).await;
        let store = store.map_err(|error| format!("open: {error:?}"))?;
        let same = model == store;
        same.then_some(()).ok_or(format!("open: the model says {model:?}, the store {store:?}"))
    }

    /// Sets the limit of a claim's key, whatever the key is used as.
    async fn resize(&mut self, client: usize, claim: &Claim) -> Result<(), String> {
        let of = 2 + self.random.below(4) as u32;
        // A store that serves its queue grants by the new limit what a waiter would try by its own.
        let is_mine = |slot: &usize| self.slots[*slot].resize == Resize::ToMine;
        if self.punctual && self.line(&claim.key).iter().any(is_mine) {
            return Ok(());
        }
        let claim = claim.clone().with(|it| {
            it.id = ClaimId::from_u128(u128::from(self.random.next()));
            it.mode = Mode::Permits { take: 1, of };
        });
        self.tell(&claim.key, format!("the limit becomes {of}"));
        let now = self.now();
        let (model, _) = self.record(&claim.key).resize(&claim, now, &|_| true);
        let store = self.clients[client].backend.resize(&claim).await;
        let same = match (&model, &store) {
            (Ok(model), Ok(store)) => model == store,
            (Err(model), Err(store)) => same_error(model, store),
            _ => false,
        };
        same.then_some(()).ok_or(format!("resize: the model says {model:?}, the store {store:?}"))
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
        let same = self.outline(&model) == self.outline(&store);
        same.then_some(()).ok_or(format!("the model shows {model:?}, the store {store:?}"))
    }

    /// The parts of a snapshot that must be equal: order among holders says nothing, nor does it
    /// among those who have no place in line.
    fn outline(&self, snapshot: &Snapshot) -> String {
        let mut text = format!("{:?} linger {}", snapshot.shape, snapshot.linger.is_some());
        let mut holders: Vec<_> = snapshot.holders.iter().collect();
        holders.sort_by_key(|party| party.id);
        let mut waiters: Vec<_> = snapshot.waiters.iter().collect();
        if self.punctual {
            waiters.sort_by_key(|party| party.id.filter(|id| self.has_no_place(*id)));
        }
        for party in holders.into_iter().chain(waiters) {
            let left = party.remaining.map(|left| left.as_millis() / (2 * ROUNDING.as_millis()));
            let _ = write!(text, "; {:?} {:?} {} {left:?}", party.id, party.mode, party.holder);
        }
        text
    }

    fn has_no_place(&self, id: ClaimId) -> bool {
        self.slots.iter().any(|claim| claim.id == id && claim.order == Order::Barging)
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

fn key_of(number: usize) -> Key {
    Key::new(format!("differential/{number}")).expect("a good key")
}

fn brief(claim: &Claim) -> String {
    let Claim { key, mode, resize, order, ttl, holder, waits, floor, beside, .. } = claim;
    let beside = beside.map_or(String::new(), |id| format!(" beside {id}"));
    format!(
        "{holder} on {key} {mode:?} {resize:?} {order:?} ttl {ttl:?} waits {waits} floor {floor}{beside}"
    )
}
