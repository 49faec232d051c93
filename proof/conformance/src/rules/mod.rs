//! The rules, one file each.

use crate::case::Case;

/// A rule file and its checks.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) cases: Vec<Case>,
}

macro_rules! rules {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        /// All rules with their checks.
        pub(crate) fn all() -> Vec<Rule> {
            vec![$(Rule { name: stringify!($name), cases: $name::cases() }),*]
        }
    };
}

rules!(
    b01_atomic,
    b02_idempotent,
    b03_place,
    b04_full_measure,
    b05_no_revival,
    b06_own_claim,
    b07_wakeups,
    b08_tokens,
    b09_honest_errors,
    b10_droppable,
    b11_no_own_time,
    b12_shape,
    b13_keys,
    b14_inspect,
    b15_no_ghosts,
    b16_beside,
);
