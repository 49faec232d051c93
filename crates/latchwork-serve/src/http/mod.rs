//! The HTTP API, and its description that is made of the same code.
//!
//! Routes, bodies, views, and the gate that every request passes. `error` makes a status and a JSON body of a refusal,
//! `views` makes JSON of the plain values of the domain.
//!
//! `server` imports this room. It imports `domain` and `page`, and never `server`.

mod admin;
mod body;
mod counted;
mod elections;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod gate;
mod holds;
mod locks;
mod once;
mod operation;
mod origin;
mod parts;
mod routes;
mod sessions;
mod streamed;
mod views;
mod whoami;

pub(crate) use routes::{document, router};
