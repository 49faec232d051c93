//! Reads many keys in pages, so that a large key space fits in memory: names first, then the values
//! of possible claims.

use latchwork_store::BackendError;

use crate::proto::{KeyValue, RangeRequest};
use crate::protocol::requests::{self, MOST_OPS};
use crate::protocol::shared::Shared;
use crate::server::errors::{Failure, Reaction, error, strange};

/// How many names are asked for at once.
const PAGE: i64 = 5_000;

impl Shared {
    /// All keys whose names start so and that `wanted` takes by their names, with their values, as of one revision unless the store forgets that meanwhile.
    pub(crate) async fn read_all<T>(
        &self,
        prefix: &[u8],
        wanted: impl Fn(&KeyValue) -> bool + Send,
        mut take: impl FnMut(KeyValue) -> T + Send,
    ) -> Result<Vec<T>, BackendError>
    where
        T: Send,
    {
        let mut taken = Vec::new();
        let mut names = RangeRequest { keys_only: true, limit: PAGE, ..requests::all(prefix) };
        loop {
            let request = &names;
            let ask = self.members.ask(|link| async move { link.page(request.clone()).await });
            let page = match ask.await {
                Ok(page) => page,
                Err(failure) => {
                    match failure.reaction {
                        Reaction::TooLarge if names.limit > 1 => names.limit /= 2,
                        Reaction::Compacted if names.revision != 0 => names.revision = 0,
                        _ => return Err(error(failure)),
                    }
                    continue;
                }
            };
            if names.revision == 0 {
                names.revision = page.header.as_ref().map_or(0, |header| header.revision);
            }
            let Some(last) = page.kvs.last() else { return Ok(taken) };
            // The next name that there may be.
            names.key = [&*last.key, &[0]].concat();
            let keys: Vec<_> =
                page.kvs.into_iter().filter(&wanted).map(|entry| entry.key).collect();
            for keys in keys.chunks(MOST_OPS) {
                for entry in self.values(keys, names.revision).await? {
                    taken.push(take(entry));
                }
            }
            if !page.more {
                return Ok(taken);
            }
        }
    }

    /// These keys with their values, as far as they are there.
    async fn values(&self, keys: &[Vec<u8>], revision: i64) -> Result<Vec<KeyValue>, BackendError> {
        let (mut found, mut from, mut size, mut revision) = (Vec::new(), 0, keys.len(), revision);
        while from < keys.len() {
            let part = &keys[from..(from + size).min(keys.len())];
            let ask = self.members.ask(|link| {
                let request = requests::values(part.iter().map(|key| &**key), revision);
                async move { link.page_of(request).await.map_err(Failure::of_a_read) }
            });
            match ask.await {
                Ok(answer) => {
                    let before = found.len();
                    found.extend(requests::found(answer).take(part.len()));
                    if found.len() - before != part.len() {
                        return Err(strange("a transaction"));
                    }
                    from += part.len();
                }
                Err(failure) => match failure.reaction {
                    Reaction::TooLarge if size > 1 => size /= 2,
                    // One alone is no claim: those are small.
                    Reaction::TooLarge => {
                        found.push(None);
                        from += 1;
                    }
                    Reaction::Compacted if revision != 0 => revision = 0,
                    _ => return Err(error(failure)),
                },
            }
        }
        Ok(found.into_iter().flatten().collect())
    }
}
