//! How long a free lock takes, in a process of its own: by HTTP, or by the library.

use std::time::Duration;

use latchwork::Lock;

use super::api::{Api, Hold, grant, lock, unlock};
use super::http::{Client, Result};
use crate::roles::{input, now};
use crate::times::Times;

/// Between two cycles: one client of many, which does not take a processor for itself.
const PAUSE: Duration = Duration::from_millis(1);
/// Of the locks that are taken.
const TTL: Duration = Duration::from_secs(15);

/// How a lock is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Library,
    Http(Api),
    /// By etcd's gateway, all locks with one lease of the client.
    OneLease,
}

impl Way {
    const ALL: [Self; 4] =
        [Self::Library, Self::Http(Api::Latchwork), Self::Http(Api::Gateway), Self::OneLease];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Http(api) => api.word(),
            Self::OneLease => "one-lease",
        }
    }
}

enum Probe {
    Library(Lock),
    Http(Api, Client),
    OneLease(Client, String),
}

enum Held {
    Library(latchwork::Guard),
    Http(Hold),
    Key(String),
}

impl Probe {
    async fn open(way: Way, address: &str) -> Result<Self> {
        Ok(match way {
            Way::Library => {
                Self::Library(latchwork::connect(address).await?.mutex("probe/library"))
            }
            Way::Http(api) => Self::Http(api, Client::connect(address.parse()?).await?),
            Way::OneLease => {
                let mut client = Client::connect(address.parse()?).await?;
                let lease = grant(&mut client, TTL * 100).await?;
                Self::OneLease(client, lease)
            }
        })
    }

    async fn acquire(&mut self) -> Result<Held> {
        Ok(match self {
            Self::Library(free) => Held::Library(free.try_acquire().await?.ok_or("not free")?),
            Self::Http(api, client) => {
                Held::Http(api.acquire(client, "probe/http", TTL, Duration::ZERO).await?)
            }
            Self::OneLease(client, lease) => Held::Key(lock(client, "probe/one", lease).await?),
        })
    }

    async fn release(&mut self, held: Held) -> Result<()> {
        match (self, held) {
            (_, Held::Library(guard)) => Ok(guard.release().await?),
            (Self::Http(_, client), Held::Http(hold)) => hold.release(client).await,
            (Self::OneLease(client, _), Held::Key(key)) => unlock(client, &key).await,
            _ => Err("what it did not take".into()),
        }
    }
}

/// `WAY ADDRESS`; for each line of milliseconds says how long the acquires and the cycles took.
pub(super) async fn run(args: &[String]) -> Result<()> {
    let [way, address] = args else { return Err("WAY ADDRESS".into()) };
    let way = Way::ALL.into_iter().find(|it| it.word() == way).ok_or("no such way")?;
    let mut opened = None;
    let mut lines = input();
    println!("ready");
    while let Some(line) = lines.recv().await {
        // Not before it is needed: a service closes a connection over which nothing is asked.
        let probe = match &mut opened {
            Some(probe) => probe,
            None => opened.insert(Probe::open(way, address).await?),
        };
        let until = now() + line.parse::<u64>()? * 1_000_000;
        let (mut acquires, mut cycles) = (Times::default(), Times::default());
        loop {
            let start = now();
            if start >= until {
                break;
            }
            let held = probe.acquire().await?;
            acquires.record(now() - start);
            probe.release(held).await?;
            cycles.record(now() - start);
            tokio::time::sleep(PAUSE).await;
        }
        println!("times {acquires}");
        println!("times {cycles}");
    }
    Ok(())
}
