//! Inspects one key without changing anything.

use latchwork_store::{BackendError, BackendErrorKind, Key, Snapshot};

use crate::protocol::names::Names;
use crate::protocol::plain::one_key;
use crate::protocol::scripted::Scripted;
use crate::protocol::scripts::{INSPECT, PLAIN_INSPECT};
use crate::protocol::snapshot::{read, read_plain};
use crate::protocol::store::Store;
use crate::server::errors::{is_moving, strange};
use crate::server::topology::Route;

/// How many holders and how many waiters of one key are shown at most.
const MOST: usize = 1_000;

impl Scripted {
    pub(crate) async fn look_at(&self, key: &Key, names: &Names) -> Result<Snapshot, BackendError> {
        let mut route = self.store.topology.route(names.slot()).await?;
        route.set_impatient(true);
        let run = route.run(&INSPECT, |command, _| {
            command.arg(names.whole().len()).arg(&names.whole()).arg(MOST);
        });
        let answer = match run.await.map_err(BackendError::from) {
            Ok(answer) => answer,
            // Its keys are on two nodes. One key alone is always found.
            Err(error) if is_moving(&error) => {
                let answer = one_key(&self.store, names, PLAIN_INSPECT, names.lock(), &[]).await?;
                let why = "its slot is moving to another node";
                return read_plain(&answer, key, names, why).ok_or_else(|| strange(&answer));
            }
            Err(error) if error.kind == BackendErrorKind::Mismatch => {
                let mut snapshot = Snapshot::free(key.clone());
                snapshot.notes.push(format!("{:?} is in use by another program", names.lock()));
                return Ok(snapshot);
            }
            Err(error) => return Err(error),
        };
        let mut snapshot = read(&answer, key, names).ok_or_else(|| strange(&answer))?;
        snapshot.notes.extend(self.store.quarantine(&mut route, names).await?);
        Ok(snapshot)
    }
}

impl Store {
    /// A note for people while the guard closes the namespace.
    async fn quarantine(
        &self,
        route: &mut Route,
        names: &Names,
    ) -> Result<Option<String>, BackendError> {
        let Some(guard) = &self.guard else { return Ok(None) };
        let look = guard.read_marker(route, names).await?;
        if look.left.is_zero() || !look.marked {
            return Ok(None);
        }
        let when = if look.begun { "more" } else { "from the next try on" };
        Ok(Some(format!(
            "quarantine: the server may have lost locks, and grants none for {:?} {when}",
            look.left
        )))
    }
}
