//! How an address is put together: its parts, the options, and the files and variables of libpq.
//!
//! | file | content |
//! | --- | --- |
//! | `reading.rs` | puts an address together |
//! | `host.rs` | where a server listens |
//! | `refused.rs` | options of libpq that are not supported |
//! | `service.rs`, `passfile.rs`, `surroundings.rs` | the service file, the file with passwords, the environment |
//!
//! `config.rs` imports this room, which imports `config.rs` and nothing else of the crate.

pub(crate) mod host;
pub(crate) mod passfile;
pub(crate) mod reading;
pub(crate) mod refused;
pub(crate) mod service;
pub(crate) mod surroundings;
