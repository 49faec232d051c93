//! What a holder learns about its hold.

use std::fmt;

use latchwork_store::Lost;

/// The state of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum HoldState {
    /// Held: the validity has not ended, and there is no doubt.
    Held,
    /// In doubt until the store confirms it: the machine was paused, or a clock was set or ran at
    /// another rate.
    Suspect,
    /// Lost. This is final.
    Lost(Lost),
}

impl fmt::Display for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.write_str("held"),
            Self::Suspect => f.write_str("in doubt until the store confirms it"),
            Self::Lost(lost) => write!(f, "lost: {lost}"),
        }
    }
}
