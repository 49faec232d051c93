//! The statements that are sent on a connection. The verbs hand them down.

use tokio_postgres::types::Type;

/// One statement, and the types of what it is given.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) text: String,
    pub(crate) types: &'static [Type],
}

/// The place of a statement in the lists of [`StatementList`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Number(pub(crate) usize);

/// All statements that connections are asked.
#[derive(Debug)]
pub(crate) struct StatementList {
    /// For sessions of our own, which have their settings.
    pub(crate) own: Vec<Statement>,
    /// For sessions of a pooler: each brings the settings along.
    pub(crate) pooled: Vec<Statement>,
}
