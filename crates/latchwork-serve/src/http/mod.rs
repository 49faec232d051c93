//! The HTTP API, and its description that is made of the same code.

mod admin;
mod body;
mod counted;
mod elections;
pub(crate) mod error;
mod events;
pub(crate) mod gate;
pub(crate) mod holds;
pub(crate) mod locks;
mod once;
mod operation;
pub(crate) mod origin;
mod parts;
mod routes;
mod streamed;
pub(crate) mod views;
mod whoami;

pub(crate) use gate::Caller;
pub(crate) use parts::IdempotencyKey;
pub(crate) use routes::{document, router};
