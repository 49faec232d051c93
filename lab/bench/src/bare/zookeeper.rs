//! The bare requests of a lock on ZooKeeper: makes a node and lists, in one flight; then deletes the node.

use latchwork_zookeeper::bare;
use tokio::sync::OnceCell;

use crate::roles::{Failed, Lock, Outcome};

/// A folder of its own.
pub(crate) struct Bare {
    requests: bare::Bare,
    folder: String,
    made: OnceCell<()>,
}

impl Bare {
    pub(crate) fn on(requests: &bare::Bare, key: &str) -> Self {
        let folder = format!("/bare-{}", key.replace('/', "-"));
        Self { requests: requests.clone(), folder, made: OnceCell::new() }
    }
}

fn failed(error: impl std::fmt::Display) -> Failed {
    error.to_string().into()
}

impl Lock for Bare {
    type Held = String;

    async fn acquire(&self) -> Outcome<String> {
        let folder = || self.requests.make_folder(&self.folder);
        self.made.get_or_try_init(folder).await.map_err(failed)?;
        match self.requests.create_and_list(&self.folder).await.map_err(failed)? {
            (node, 1) => Ok(node),
            _ => Err("the folder is another's".into()),
        }
    }

    async fn release(&self, node: String) -> Outcome {
        self.requests.delete(&node).await.map_err(failed)
    }
}
