//! Values as the tables have them.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use latchwork_store::{BackendError, BackendErrorKind, ClaimId, Effect, Holder, Mode};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// Stands behind the holder of a claim that replaces a hold, before the id of that.
pub(crate) const BESIDE: &str = "\u{1f}beside=";

type Failed = Box<dyn std::error::Error + Sync + Send>;

/// A claim's id, or another number of 128 bits, as a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uuid(pub(crate) u128);

impl From<ClaimId> for Uuid {
    fn from(id: ClaimId) -> Self {
        Self(id.as_u128())
    }
}

impl From<Uuid> for ClaimId {
    fn from(uuid: Uuid) -> Self {
        ClaimId::from_u128(uuid.0)
    }
}

impl ToSql for Uuid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Failed> {
        out.put_u128(self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Uuid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Failed> {
        Ok(Self(u128::from_be_bytes(raw.try_into()?)))
    }

    accepts!(UUID);
}

/// A length as the tables have it, in microseconds.
pub(crate) fn micros(length: Duration) -> i64 {
    // Two hundred years are for ever.
    const FOREVER: i64 = 200 * 365 * 86_400 * 1_000_000;
    i64::try_from(length.as_micros()).unwrap_or(FOREVER).min(FOREVER)
}

/// A mode as the tables have it: its number, the permits to take and the limit.
pub(crate) fn mode(mode: Mode) -> Result<(i16, i32, i32), BackendError> {
    let permits = |number: u32| {
        i32::try_from(number).map_err(|_| {
            let message = format!("permits: {number} is more than {}", i32::MAX);
            BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message)
        })
    };
    Ok(match mode {
        Mode::Exclusive => (0, 1, 0),
        Mode::Write => (1, 1, 0),
        Mode::Read => (2, 1, 0),
        Mode::Permits { take, of } => (3, permits(take)?, permits(of)?),
    })
}

/// A mode as it was stored.
pub(crate) fn mode_of(number: i16, take: i32, of: i32) -> Option<Mode> {
    Some(match number {
        0 => Mode::Exclusive,
        1 => Mode::Write,
        2 => Mode::Read,
        3 => Mode::Permits { take: take.try_into().ok()?, of: of.try_into().ok()? },
        _ => return None,
    })
}

/// A holder as it was stored.
pub(crate) fn holder_of(bytes: &[u8]) -> Holder {
    Holder::from_stored(&String::from_utf8_lossy(bytes))
}
