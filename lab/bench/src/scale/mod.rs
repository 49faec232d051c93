//! What locks ask of a store, and what they leave of it for others: the measurements of `docs/scale.md`.
//!
//! | file | job |
//! | --- | --- |
//! | `costs.rs` | what a cycle and a renewal cost the store, and at which rate it has no more |
//! | `beside.rs` | other work of the same server, alone and beside locks |
//! | `other_work.rs` | that other work |

pub(crate) mod beside;
pub(crate) mod costs;
mod other_work;

use tempfile::TempDir;

use crate::roles::Outcome;
use crate::store::{Store, Which, sync};

/// The stores with a server.
const STORES: [Which; 4] = [Which::Redis, Which::Etcd, Which::ZooKeeper, Which::Postgres];

/// A server whose data is on a disk, and the folder of its data, which is removed after it has ended.
fn on_disk(which: Which) -> Outcome<(Box<dyn Store>, TempDir)> {
    let folder = tempfile::tempdir_in(std::env::temp_dir())?;
    Ok((which.start_in(folder.path())?, folder))
}

/// Says where the data is, and how fast that is.
fn say_disk() -> Outcome {
    println!(
        "The data of etcd, ZooKeeper and PostgreSQL is on a disk and synced to it; Redis writes none, as it is installed. A page \
         written and synced to that disk took {:.0} us before.\n",
        sync()?
    );
    Ok(())
}
