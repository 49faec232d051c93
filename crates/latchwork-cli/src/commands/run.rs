//! `latchwork run`: takes locks, runs a command, releases.

use std::time::Duration;

use latchwork::store::{Key, Mode, Party, Snapshot};
use latchwork::{Error, ErrorKind, Lock, LockManager, MultiLock};

use super::under_lock::{Admitted, Task};
use crate::args::RunArgs;
use crate::output::Output;
use crate::process::hold::Hold;

/// Runs the command under the locks.
pub(crate) async fn run(args: &RunArgs, store: &str, output: &Output) -> Result<u8, Error> {
    let task = Task {
        names: &args.names,
        command: &args.command,
        holder: args.holder.as_deref(),
        max_hold: args.max_hold,
        wait: args.wait,
        store,
        output,
    };
    task.run(async |manager, wait| acquire(args, wait, manager).await.map(Admitted::Hold)).await
}

/// Takes the locks as the command line asks.
async fn acquire(
    args: &RunArgs,
    wait: Option<Duration>,
    manager: &LockManager,
) -> Result<Hold, Error> {
    let locks = args.names.iter().map(|name| lock(args, manager, name));
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

fn lock(args: &RunArgs, manager: &LockManager, name: &str) -> Lock {
    let mut lock = match args.permits {
        Some(permits) => manager.semaphore(name, permits.of).permits(permits.take),
        None if args.read => manager.rwlock(name).read(),
        None if args.write => manager.rwlock(name).write(),
        None => manager.mutex(name),
    };
    if let Some(ttl) = args.ttl {
        lock = lock.ttl(ttl);
    }
    if let Some(max_hold) = args.max_hold {
        lock = lock.max_hold(max_hold);
    }
    if args.fair { lock.fair() } else { lock }
}

/// Says who has the locks.
async fn busy(args: &RunArgs, manager: &LockManager) -> Error {
    let error = |message: String| {
        Error::new(ErrorKind::TimedOut, message).store(manager.capabilities().store.clone())
    };
    for name in &args.names {
        if let Ok(seen) = manager.inspect(name).await
            && let Some(who) = in_the_way(args, &seen)
        {
            let step = format!("wait longer (--wait), or look at it with latchwork show {name:?}");
            return error(format!("not admitted: {who}")).key(&seen.key).next_step(step);
        }
    }
    let step = "it may be free by now: try again, or wait longer (--wait)";
    let error = error("not admitted: taken a moment ago".to_owned()).next_step(step);
    match &args.names[..] {
        [name] => Key::new(name).map_or(error.clone(), |key| error.key(&key)),
        _ => error,
    }
}

/// Who keeps a key from what the command line asks for. Readers do not keep out readers, nor do
/// permits that leave enough.
fn in_the_way(args: &RunArgs, seen: &Snapshot) -> Option<String> {
    let taken = |party: &Party| match party.mode {
        Mode::Permits { take, .. } => take,
        _ => u32::MAX,
    };
    let shares = match args.permits {
        Some(permits) => {
            let all = seen.holders.iter().map(taken).fold(permits.take, u32::saturating_add);
            all <= permits.of
        }
        None => args.read && seen.holders.iter().all(|party| party.mode == Mode::Read),
    };
    match (seen.holders.first(), seen.waiters.first()) {
        (Some(party), _) if !shares => Some(format!("held by {}", party.holder)),
        (_, Some(party)) => Some(format!("{} waits for it before", party.holder)),
        _ => None,
    }
}
