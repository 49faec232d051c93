//! How the API server is reached. Nothing here knows what a lock is.
//!
//! | file | content |
//! | --- | --- |
//! | `access.rs` | the client that the present credentials give, and its replacement |
//! | `login.rs` | the credentials of a kubeconfig or of a pod, and what is wrong with them |
//! | `plugin.rs` | the program that a kubeconfig names for a login |
//! | `connector.rs` | the client of the cluster, from its settings |
//! | `link.rs` | the requests, of which several are under way at a time |
//! | `server_time.rs` | the time of the API server, from its answers |
//! | `errors.rs` | errors of the API server and of the connection |
//!
//! This room imports `config.rs`, and nothing else of the crate.

mod access;
mod connector;
pub(crate) mod errors;
pub(crate) mod link;
mod login;
mod plugin;
pub(crate) mod server_time;
