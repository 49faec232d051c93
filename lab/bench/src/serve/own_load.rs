//! The same load without HTTP: a process that holds as many locks by the library, and waits for some.

use std::time::Duration;

use super::http::Result;
use crate::roles::input;

/// How many locks are taken at the same time.
const AT_ONCE: usize = 100;

/// `URL LOCKS WAITERS TTL_MS`; says when all are held, and how many still are when it is told to end.
pub(super) async fn run(args: &[String]) -> Result<()> {
    let [url, locks, waiters, ttl] = args else { return Err("URL LOCKS WAITERS TTL_MS".into()) };
    let (count, ttl): (usize, u64) = (locks.parse()?, ttl.parse()?);
    let mut lines = input();
    let manager = latchwork::connect(url).await?.ttl(Duration::from_millis(ttl));
    let mut takers = Vec::new();
    for taker in 0..AT_ONCE {
        let manager = manager.clone();
        takers.push(tokio::spawn(async move {
            let mut guards = Vec::new();
            for number in (taker..count).step_by(AT_ONCE) {
                guards.push(manager.mutex(format!("own/{number}")).acquire().await?);
            }
            Ok::<_, latchwork::Error>(guards)
        }));
    }
    let mut guards = Vec::new();
    for taker in takers {
        guards.extend(taker.await??);
    }
    for number in 0..waiters.parse()? {
        let mutex = manager.mutex(format!("own/{number}"));
        // Nobody gives it up before the process ends.
        tokio::spawn(async move { drop(mutex.acquire().await) });
    }
    println!("taken");
    lines.recv().await;
    println!("{}", guards.iter().filter(|guard| guard.ensure_held().is_ok()).count());
    // It ends with its process: nothing of it is measured.
    std::process::exit(0);
}
