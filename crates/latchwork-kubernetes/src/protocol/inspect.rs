//! `inspect`: one key by one read, or all keys of a prefix by pages.

use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use latchwork_store::{BackendError, Key, Query, Snapshot};
use serde::Deserialize;

use crate::lock;
use crate::protocol::attempt::ALIVE;
use crate::protocol::known::LastView;
use crate::protocol::names::{LABEL, object_of};
use crate::protocol::object::{FOREIGN, Object, Sight, key_of, times};
use crate::protocol::shared::Store;
use crate::server::errors::corrupt;

/// The holder's text of an object that cannot be read.
const UNREADABLE: &str = "(unknown: the Lease cannot be read)";
/// So many objects are in one answer.
const PAGE: u32 = 500;

#[derive(Deserialize)]
struct Page {
    metadata: PageMeta,
    #[serde(default)]
    items: Vec<Lease>,
}

#[derive(Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: String,
}

impl Store {
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>, BackendError> {
        match query {
            Query::Key(key) => Ok(vec![self.show(key).await?]),
            Query::Prefix(prefix) => self.list(prefix).await,
        }
    }

    async fn show(&self, key: &Key) -> Result<Snapshot, BackendError> {
        let entry = self.known.entry(&object_of(key));
        self.fetch(&entry).await?;
        let (seen, sight) = entry.seen();
        Ok(match seen {
            LastView::Here(object) => self.snapshot(key.clone(), &object, &sight),
            _ => Snapshot::free(key.clone()),
        })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Snapshot>, BackendError> {
        let (mut found, mut next) = (Vec::new(), String::new());
        loop {
            let path = format!(
                "{}?labelSelector={}%3Dtrue&limit={PAGE}{}",
                self.link.leases(),
                LABEL.replace('/', "%2F"),
                if next.is_empty() { String::new() } else { format!("&continue={next}") }
            );
            let answer = self.link.ask(Method::GET, &path, None).await?;
            if answer.status == 410 {
                // The list took too long: it restarts.
                (found, next) = (Vec::new(), String::new());
                continue;
            }
            if !answer.is_success() {
                return Err(self.refused(&answer, "list leases", false));
            }
            let page: Page = serde_json::from_slice(&answer.body)
                .map_err(|error| corrupt(&self.namespace, "list", &error.to_string()))?;
            for lease in page.items {
                let key = key_of(&lease).filter(|key| key.starts_with(prefix));
                let Some(Ok(key)) = key.map(Key::new) else { continue };
                let name = lease.metadata.name.clone().unwrap_or_default();
                let object = match Object::read(lease) {
                    Ok(object) => object,
                    Err(why) => {
                        found.push(Snapshot::unreadable(
                            key,
                            UNREADABLE,
                            corrupt(&self.namespace, &name, &why),
                        ));
                        continue;
                    }
                };
                // Of an object that is not known here, all claims are new.
                let known = self.known.find(&name).map(|entry| entry.seen().1).unwrap_or_default();
                let sight = known.at(&object, answer.at);
                found.push(self.snapshot(key, &object, &sight));
            }
            next = page.metadata.next;
            if next.is_empty() {
                break;
            }
        }
        found.retain(|snapshot| !snapshot.is_free());
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn snapshot(&self, key: Key, object: &Object, sight: &Sight) -> Snapshot {
        let (now, wall) = (self.link.io.now(), self.link.io.clock().wall());
        let record = object.record(sight, now, wall, *lock(&self.link.time));
        record.snapshot(key, times(now), ALIVE).with(|it| {
            it.notes.push(format!("the Lease {}/{}", self.namespace, object.name()));
            if let Some(field) = object.managed_by() {
                it.notes.push(format!("managed by coordinated leader election: {field}"));
            }
            for party in it.holders.iter_mut().filter(|party| party.id == Some(FOREIGN)) {
                (party.id, party.token) = (None, None);
                let endless = object.foreign.as_ref().is_some_and(|it| it.duration.is_none());
                if endless {
                    party.remaining = None;
                }
                it.notes.push(format!(
                    "held by a client of another kind{}",
                    if endless {
                        ", without leaseDurationSeconds: it never ends by itself"
                    } else {
                        ""
                    }
                ));
            }
        })
    }
}
