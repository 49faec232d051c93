//! The code of the recipes in `docs/guide/recipes`, a file each.
//!
//! `cargo xtask fix` copies what stands between `// recipe: NAME` and `// end` into the pages, and the tests run
//! it with the faults that the pages promise to survive. Scripts are in `scripts`.

#![expect(
    clippy::disallowed_methods,
    reason = "written as users write it: on tokio, with its timers and threads"
)]

pub mod axum_handler;
pub mod graceful_shutdown;
pub mod leader;
pub mod migration;
pub mod postgres_write;
pub mod redis_write;
pub mod worker;
