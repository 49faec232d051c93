//! The recipes of `docs/guide/recipes`, each with the faults that its page promises to survive.

#![expect(clippy::disallowed_methods, reason = "tests")]

mod axum_handler;
mod common;
mod graceful_shutdown;
mod leader;
mod migration;
mod postgres_write;
mod redis_write;
mod worker;
