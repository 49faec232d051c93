//! The hosts that servers name for one another.
//!
//! `CLUSTER SLOTS`, `CLUSTER NODES`, `MOVED`, `ASK` and Sentinels name hosts. How they write an unknown host depends on
//! the server's version and on its `cluster-preferred-endpoint-type`.

/// A host as another server names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    Named(String),
    /// The one that was asked: an empty name, or nil.
    Asked,
    /// The server does not know it: `?`.
    Unknown,
}

impl Host {
    /// Reads a name; `None` stands for nil.
    pub(crate) fn read(text: Option<&str>) -> Self {
        match text.map(|text| text.trim_start_matches('[').trim_end_matches(']')) {
            None | Some("") => Self::Asked,
            Some("?") => Self::Unknown,
            Some(name) => Self::Named(name.to_owned()),
        }
    }

    /// The name, if there is one.
    pub(crate) fn name(self) -> Option<String> {
        match self {
            Self::Named(name) => Some(name),
            Self::Asked | Self::Unknown => None,
        }
    }
}
