//! `latchwork run`: takes locks, runs a command, releases.

use std::time::Duration;

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
        store,
        output,
    };
    task.run(async |manager| acquire(args, manager).await.map(Admitted::Hold)).await
}

/// Takes the locks as the command line asks.
async fn acquire(args: &RunArgs, manager: &LockManager) -> Result<Hold, Error> {
    let locks = args.names.iter().map(|name| lock(args, manager, name));
    if let ([_], Some(lock)) = (&args.names[..], locks.clone().next()) {
        return match args.wait {
            None => lock.acquire().await.map(Hold::One),
            Some(Duration::ZERO) => match lock.try_acquire().await? {
                Some(guard) => Ok(Hold::One(guard)),
                None => Err(busy(args, manager).await),
            },
            Some(limit) => lock.acquire_within(limit).await.map(Hold::One),
        };
    }
    let locks = MultiLock::of(locks);
    match args.wait {
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
    for name in &args.names {
        if let Ok(seen) = manager.inspect(name).await
            && let Some(party) = seen.holders.first()
        {
            let message = format!("{name:?} is held by {}", party.holder);
            return Error::new(ErrorKind::TimedOut, message);
        }
    }
    Error::new(ErrorKind::TimedOut, format!("{:?} is taken", args.names[0]))
}
