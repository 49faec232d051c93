//! The verbs of the contract, and the formats of locks in the objects of Kubernetes.
//!
//! | file | content |
//! | --- | --- |
//! | `attempt.rs`, `wait.rs`, `renew.rs`, `release.rs`, `inspect.rs` | the verbs |
//! | `change.rs` | changes an object in one step: reads it, decides, writes it if nobody else has |
//! | `known.rs`, `watcher.rs` | what this client knows of each object, and the watch that keeps it fresh |
//! | `restored.rs`, `pauses.rs` | older data than before; how long to wait after fruitless writes |
//! | `names.rs`, `object.rs`, `stored.rs`, `room.rs` | formats: names of objects, a lease and its record, and how much fits |
//! | `shared.rs` | what all verbs share |
//!
//! This room imports `server/` and `config.rs`. `backend.rs` and `doctor.rs` import it.

pub(crate) mod attempt;
pub(crate) mod change;
pub(crate) mod inspect;
pub(crate) mod known;
pub(crate) mod names;
pub(crate) mod object;
pub(crate) mod pauses;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod restored;
pub(crate) mod room;
pub(crate) mod shared;
pub(crate) mod stored;
pub(crate) mod wait;
pub(crate) mod watcher;
