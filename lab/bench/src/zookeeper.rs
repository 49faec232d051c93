//! Locks on ZooKeeper, against the bare requests of a lock, Curator, kazoo and the recipe of the
//! crate zookeeper-client.

use std::time::Duration;

use latchwork_services::{ZooKeeperOptions, ZooKeeperServer};
use latchwork_zookeeper::bare::Bare;
use tokio::runtime::Builder;

use crate::Outcome;
use crate::contest::Contest;
use crate::free_cycles::{self, Entry, Work};
use crate::goals::Goal;
use crate::peers::{self, CURATOR, KAZOO, Kind, LATCHWORK, LATCHWORK_HANDOVER, ZOOKEEPER_CLIENT};
use crate::store::Store;
use crate::{contest, free_child, handoffs, held_by_one};

/// Cycles of so many tasks, and then some contention, make the server's machine compile what it does
/// often.
const WARM: (usize, usize) = (16, 1_000);

/// As servers are run: with the better compiler and more memory than tests give them, and the usual
/// tick; and not as the first thing that they do.
pub(crate) fn start() -> Result<ZooKeeperServer, Box<dyn std::error::Error>> {
    start_with(ZooKeeperOptions::new())
}

/// The same, with these options.
pub(crate) fn start_with(
    options: ZooKeeperOptions,
) -> Result<ZooKeeperServer, Box<dyn std::error::Error>> {
    let options =
        options.tick(Duration::from_secs(2)).flag("-XX:TieredStopAtLevel=4").flag("-Xmx512m");
    let server = ZooKeeperServer::start(&options)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let driver = latchwork::Driver::start()?;
    let (tasks, cycles) = WARM;
    runtime.block_on(async {
        let bare = Bare::connect(&server.url(), driver.io()).await?;
        let warm = (0..tasks).map(|n| {
            let bare = bare.clone();
            tokio::spawn(async move {
                let mut left = cycles;
                bare_cycles(bare, &format!("/warm-{n}"), || {
                    left -= 1;
                    left > 0
                })
                .await;
            })
        });
        for task in warm.collect::<Vec<_>>() {
            task.await?;
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    let (url, folder) = (server.address(), latchwork_services::Folder::new()?);
    let (processes, tasks, length) = (2, 8, Duration::from_secs(2));
    let contest = Contest { url: &url, folder: folder.path(), processes, tasks, length };
    contest.run(&LATCHWORK, || Ok(0.0))?;
    Ok(server)
}

pub(crate) fn free() -> Outcome {
    let server = start()?;
    let (kinds, missing) = peers::install(vec![ZOOKEEPER_CLIENT, CURATOR, KAZOO]);
    let mut entries = vec![
        Entry::apart("bare", free_child::BARE_ZOOKEEPER, &server.url(), &[])?
            .goal(|_| Some(0.9))
            .counted(&server, &LATCHWORK),
        Entry::latchwork("latchwork, with fencing token", &server)?,
    ];
    for kind in &kinds {
        entries.push(Entry::of(kind, &server)?);
    }
    free_cycles::run(entries, &missing, &server, "")
}

/// Bare cycles in a folder of their own.
pub(crate) async fn bare_work(bare: Bare, mut work: Work) {
    let folder = format!("/bare-{}", work.name);
    bare_cycles(bare, &folder, || work.goes_on()).await;
}

/// Makes a node and lists, in one flight; then deletes the node.
async fn bare_cycles(bare: Bare, folder: &str, mut goes_on: impl FnMut() -> bool) {
    bare.make_folder(folder).await.expect("a folder");
    while goes_on() {
        let (node, count) = bare.create_and_list(folder).await.expect("the server answers");
        assert_eq!(count, 1, "the folder is its own");
        bare.delete(&node).await.expect("the server answers");
    }
}

/// A quarter more than the other client of this language, half as much again as the rest.
fn goal(kind: &Kind) -> Option<Goal> {
    let least = if kind.name == ZOOKEEPER_CLIENT.name { 1.25 } else { 1.5 };
    (!kind.is_ours()).then(|| Goal::at_least(least))
}

pub(crate) fn contend() -> Outcome {
    let kinds = vec![LATCHWORK, LATCHWORK_HANDOVER, ZOOKEEPER_CLIENT, CURATOR, KAZOO];
    contest::run(&start()?, kinds, contest::APART, (3, Duration::from_secs(3)), |kind, _| {
        goal(kind)
    })
}

pub(crate) fn local() -> Outcome {
    let kinds = vec![LATCHWORK_HANDOVER, LATCHWORK, ZOOKEEPER_CLIENT, CURATOR, KAZOO];
    contest::run(&start()?, kinds, contest::LOCAL, (3, Duration::from_secs(2)), |kind, _| {
        goal(kind)
    })
}

pub(crate) fn handoff() -> Outcome {
    let goal = |kind: &Kind| (!kind.is_ours()).then(|| Goal::at_most(0.95));
    handoffs::run(&start()?, vec![LATCHWORK, ZOOKEEPER_CLIENT, CURATOR, KAZOO], goal)
}

pub(crate) fn held() -> Outcome {
    held_by_one::run(vec![LATCHWORK, ZOOKEEPER_CLIENT, CURATOR], start)
}
