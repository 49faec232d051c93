//! What users meet, over the backend: the primitives, one file each.
//!
//! The rules say what a backend promises; these say what follows from it once core stands on top.

use crate::rules::Rule;

macro_rules! primitives {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        /// All primitives with their checks.
        pub(crate) fn all() -> Vec<Rule> {
            vec![$(Rule { name: stringify!($name), cases: $name::cases() }),*]
        }
    };
}

primitives!(
    mutex,
    rwlock,
    semaphore,
    reentrant,
    multi,
    election,
    once,
    lock_delay,
    token_floor,
    detach
);
