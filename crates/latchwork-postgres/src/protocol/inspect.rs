//! What there is of keys.

use std::time::Duration;

use latchwork_store::{BackendError, ClaimId, Key, Party, Query, Snapshot};
use tokio_postgres::Row;

use crate::names::{range, stored};
use crate::protocol::statements::Ask;
use crate::protocol::store::Store;
use crate::protocol::values::{BESIDE, Uuid, holder_of, mode_of};
use crate::server::reply::{column, number, strange};

impl Store {
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>, BackendError> {
        let checkout = self.pool.checkout().await?;
        match query {
            Query::Key(key) => {
                let rows = checkout.ask(Ask::Look, &[&stored(key).0], None).await?;
                let mut found = read(&rows)?;
                Ok(vec![found.pop().unwrap_or_else(|| Snapshot::free(key.clone()))])
            }
            Query::Prefix(prefix) => {
                let (first, end) = range(prefix);
                let rows = checkout.ask(Ask::List, &[&first, &end], None).await?;
                let mut found = read(&rows)?;
                found.retain(|it| it.key.as_str().starts_with(&**prefix) && !it.is_free());
                found.sort_by(|a, b| a.key.cmp(&b.key));
                Ok(found)
            }
        }
    }
}

/// The keys that rows are about: one row for each claim in the line, or one for the key.
fn read(rows: &[Row]) -> Result<Vec<Snapshot>, BackendError> {
    let mut found: Vec<(Vec<u8>, Snapshot)> = Vec::new();
    for row in rows {
        let stored: &[u8] = column(row, 0)?;
        if found.last().is_none_or(|(last, _)| last != stored) {
            found.push((stored.to_vec(), alone(row, stored)?));
        }
        let Some((_, snapshot)) = found.last_mut() else { continue };
        let Some(id) = column::<Option<Uuid>>(row, 10)? else { continue };
        let (mode, take, of) = (column(row, 11)?, column(row, 12)?, column(row, 13)?);
        let mode = mode_of(mode, take, of).ok_or_else(|| strange(11))?;
        let token: Option<i64> = column(row, 14)?;
        let stored: &[u8] = column(row, 17)?;
        let party = Party::new(mode, holder_of(stored)).with(|it| {
            it.id = Some(id.into());
            it.token = token.map(i64::unsigned_abs);
            it.beside = beside_in(stored).filter(|_| token.is_none());
        });
        let party = timed(party, row, 15)?;
        snapshot.shape.get_or_insert(mode.shape());
        if token.is_some() { snapshot.holders.push(party) } else { snapshot.waiters.push(party) }
    }
    Ok(found.into_iter().map(|(_, snapshot)| snapshot).collect())
}

/// The hold that a claim is to replace: its id stands behind the holder.
fn beside_in(stored: &[u8]) -> Option<ClaimId> {
    ClaimId::parse(std::str::from_utf8(stored).ok()?.rsplit_once(BESIDE)?.1.get(..32)?)
}

/// What the key's own row says.
fn alone(row: &Row, stored: &[u8]) -> Result<Snapshot, BackendError> {
    let name = column::<Option<&[u8]>>(row, 1)?.unwrap_or(stored);
    let name = std::str::from_utf8(name).map_err(|_| strange(0))?;
    let key = Key::new(name).map_err(|_| strange(0))?;
    let mut snapshot = Snapshot::free(key).with(|it| it.token = 0);
    snapshot.token = number(row, 2)?;
    let left: i64 = column(row, 5)?;
    if let Some(id) = column::<Option<Uuid>>(row, 3)?
        && left > 0
    {
        let mode = mode_of(column(row, 4)?, 1, 0).ok_or_else(|| strange(4))?;
        let holder = column::<Option<&[u8]>>(row, 7)?.map(holder_of);
        let party = Party::new(mode, holder.unwrap_or_else(|| "".into())).with(|it| {
            it.id = Some(id.into());
            it.token = Some(snapshot.token);
        });
        snapshot.shape = Some(mode.shape());
        snapshot.holders.push(timed(party, row, 5)?);
    }
    if let Some(left) = column::<Option<i64>>(row, 8)?
        && left > 0
    {
        snapshot.linger = Some(Duration::from_micros(left.unsigned_abs()));
        snapshot.closed_by = column::<Option<&[u8]>>(row, 9)?.map(holder_of);
    }
    Ok(snapshot)
}

/// The party with the times that stand at this place in the row.
fn timed(party: Party, row: &Row, at: usize) -> Result<Party, BackendError> {
    let length = |at| -> Result<Option<Duration>, BackendError> {
        let micros: Option<i64> = column(row, at)?;
        Ok(micros.map(|micros| Duration::from_micros(micros.max(0) as u64)))
    };
    let (remaining, age) = (length(at)?, length(at + 1)?);
    Ok(party.with(|it| {
        it.remaining = remaining;
        it.age = age;
    }))
}
