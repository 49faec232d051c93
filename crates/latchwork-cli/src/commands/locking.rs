//! Taking the locks that a command line names.

use std::time::Duration;

use latchwork::{Error, ErrorKind, Lock, LockManager, MultiLock};
use latchwork_store::clock::{boot_time, wall_time};
use latchwork_store::doctor::operand;
use latchwork_store::{Key, Mode, Party, Shape, Snapshot};

use super::nap;
use crate::args::{LockArgs, ResizePolicy};
use crate::output::{Done, is_done, opens_by_reset};
use crate::process::hold::Hold;

/// The pause before a store that did not answer for a ttl is asked again.
const RETRY: Duration = Duration::from_millis(500);

/// Waits by `acquire`, also while the store does not answer, for as long as the command line says. Without a time it
/// waits no longer than `acquire` does.
pub(super) async fn patiently<T>(
    wait: Option<Duration>,
    acquire: impl AsyncFn(Option<Duration>) -> Result<T, Error>,
) -> Result<T, Error> {
    let begun_at = boot_time();
    let mut left = wait;
    loop {
        let error = match acquire(left).await {
            Err(error) if error.kind() == ErrorKind::Unreachable => error,
            done => return done,
        };
        let Some(wait) = wait else { return Err(error) };
        let rest = wait.saturating_sub(boot_time().since(begun_at));
        if rest.is_zero() {
            return Err(error);
        }
        nap(RETRY.min(rest)).await;
        // Never a single try, which would say that the lock is not free.
        let rest = wait.saturating_sub(boot_time().since(begun_at));
        left = Some(rest.max(Duration::from_millis(1)));
    }
}

/// Takes the locks as the command line asks.
pub(super) async fn acquire(
    args: &LockArgs,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    manager: &LockManager,
) -> Result<Hold, Error> {
    patiently(wait, async |left| once(args, ttl, left, manager).await).await
}

async fn once(
    args: &LockArgs,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    manager: &LockManager,
) -> Result<Hold, Error> {
    let locks = args.names.iter().map(|name| lock(args, ttl, manager, name));
    if let ([_], Some(lock)) = (&args.names[..], locks.clone().next()) {
        return match wait {
            None => lock.acquire().await.map(Hold::One),
            Some(Duration::ZERO) => match lock.try_acquire().await? {
                Some(guard) => Ok(Hold::One(guard)),
                None => Err(busy(args, manager).await),
            },
            Some(limit) => lock.acquire_within(limit).await.map(Hold::One),
        };
    }
    let locks = MultiLock::of(locks);
    match wait {
        None => locks.acquire().await.map(Hold::Several),
        Some(Duration::ZERO) => match locks.try_acquire().await? {
            Some(guards) => Ok(Hold::Several(guards)),
            None => Err(busy(args, manager).await),
        },
        Some(limit) => locks.acquire_within(limit).await.map(Hold::Several),
    }
}

fn lock(args: &LockArgs, ttl: Option<Duration>, manager: &LockManager, name: &str) -> Lock {
    let mut lock = match args.permits {
        Some(permits) => {
            let semaphore = manager.semaphore(name, permits.of);
            let policy = args.resize.map(Into::into).unwrap_or_default();
            semaphore.resize_policy(policy).permits(permits.take)
        }
        None if args.read => manager.rwlock(name).read(),
        None if args.write => manager.rwlock(name).write(),
        None => manager.mutex(name),
    };
    if let Some(ttl) = ttl {
        lock = lock.ttl(ttl);
    }
    if let Some(max_hold) = args.max_hold {
        lock = lock.max_hold(max_hold);
    }
    if let Some(delay) = args.lock_delay {
        lock = lock.lock_delay(delay);
    }
    if args.fair { lock.fair() } else { lock }
}

/// The error that names the holder of a lock.
async fn busy(args: &LockArgs, manager: &LockManager) -> Error {
    let error = |message: String| {
        Error::new(ErrorKind::TimedOut, message).with_store(manager.capabilities().store.clone())
    };
    for name in &args.names {
        let Ok(seen) = manager.inspect(name).await else { continue };
        if is_done(&seen) {
            let done = Done::of(&seen).sentence(wall_time(), None);
            let step = opens_by_reset(seen.key.as_str());
            return error(format!("not free: {done}")).with_key(&seen.key).with_next_step(step);
        }
        if let Some(why) = seen.notes.iter().find_map(|note| note.strip_prefix("quarantine: ")) {
            let step = "wait until the quarantine has ended; if you know that no lock is held, run `latchwork init`";
            return error(format!("not free: {why}")).with_key(&seen.key).with_next_step(step);
        }
        if let Some(who) = in_the_way(args, &seen) {
            let name = operand(seen.key.as_str());
            let step = format!("wait longer (--wait), or see `latchwork show {name}`");
            return error(format!("not free: {who}")).with_key(&seen.key).with_next_step(step);
        }
    }
    let step = "it may be free by now: try again, or wait longer (--wait)";
    let error = error("not free a moment ago".to_owned()).with_next_step(step);
    match &args.names[..] {
        [name] => Key::new(name).map_or(error.clone(), |key| error.with_key(&key)),
        _ => error,
    }
}

/// Who keeps a key from what the command line asks for. Readers do not keep out readers, nor do
/// permits that leave enough.
fn in_the_way(args: &LockArgs, seen: &Snapshot) -> Option<String> {
    let taken = |party: &Party| match party.mode {
        Mode::Permits { take, .. } => take,
        _ => u32::MAX,
    };
    let shares = match args.permits {
        Some(permits) => {
            let all = seen.holders.iter().map(taken).fold(permits.take, u32::saturating_add);
            let limit = match args.resize {
                Some(ResizePolicy::Follow) => seen.shape.and_then(Shape::limit),
                _ => None,
            };
            all <= limit.unwrap_or(permits.of)
        }
        None => args.read && seen.holders.iter().all(|party| party.mode == Mode::Read),
    };
    match (seen.holders.first(), seen.waiters.first()) {
        (Some(party), _) if !shares => Some(format!("held by {}", party.holder)),
        (_, Some(party)) => Some(format!("{} is ahead in the queue", party.holder)),
        _ => None,
    }
}
