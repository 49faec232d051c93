//! How answers are read, and how parameters are sent.

use bytes::BytesMut;
use latchwork_store::{BackendError, BackendErrorKind, Effect};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

type Failed = Box<dyn std::error::Error + Sync + Send>;

/// A parameter in the bytes of the protocol; none for NULL.
#[derive(Debug)]
pub(crate) struct Encoded(pub(crate) Option<BytesMut>);

impl ToSql for Encoded {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Failed> {
        let Some(bytes) = &self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A column of an answer.
///
/// # Errors
///
/// `Corrupt` if it is not what the statement says: the functions in the database are others.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, BackendError> {
    row.try_get(at).map_err(|_| strange(at))
}

/// As `column`, of a number that cannot be negative.
pub(crate) fn number(row: &Row, at: usize) -> Result<u64, BackendError> {
    let number: i64 = column(row, at)?;
    u64::try_from(number).map_err(|_| strange(at))
}

pub(crate) fn strange(at: usize) -> BackendError {
    let message = format!("the server's answer has something else than expected in column {at}");
    BackendError::new(BackendErrorKind::Corrupt, Effect::Unknown, message).with_next_step(
        "run `latchwork init` with this address: the functions may be of another version",
    )
}
