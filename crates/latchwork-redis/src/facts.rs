//! What a server says of itself when a connection is made.

use crate::answers::fields;
use crate::probe::Scripts;

/// What a server says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Major and minor version, if it says.
    pub(crate) version: Option<(u32, u32)>,
    pub(crate) run_id: String,
    pub(crate) role: String,
    pub(crate) maxmemory_policy: String,
    /// Messages come on the same connection: it speaks RESP3 and takes subscriptions.
    pub(crate) pushes: bool,
    pub(crate) scripts: Scripts,
    /// It tells how many listen on a channel.
    pub(crate) counts_listeners: bool,
}

impl Facts {
    /// Whether `SET` takes `NX` and `GET` together, which a free key is taken with.
    pub(crate) fn set_nx_get(&self) -> bool {
        self.version.is_some_and(|version| version >= (7, 0))
    }

    /// Reads the answer to INFO.
    pub(crate) fn read(info: &str) -> Self {
        let field = |wanted: &str| {
            let field = fields(info).find(|(name, _)| *name == wanted);
            field.map_or("", |(_, value)| value.trim()).to_owned()
        };
        let version = field("redis_version");
        let mut numbers = version.split('.').map(|part| part.parse().ok());
        let version = match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Some((major, minor)),
            _ => None,
        };
        Self {
            version,
            run_id: field("run_id"),
            role: field("role"),
            maxmemory_policy: field("maxmemory_policy"),
            pushes: false,
            scripts: Scripts::default(),
            counts_listeners: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use latchwork_services::hostile::survives;

    use super::*;

    #[test]
    fn hostile_words_about_a_server_are_read_or_left() {
        let sample = b"# Server\r\nredis_version:7.0.15\r\nrun_id:0123\r\nrole:master\r\n\
            maxmemory_policy:noeviction\r\n";
        assert_eq!(Facts::read(str::from_utf8(sample).unwrap()).version, Some((7, 0)));
        survives("INFO", &[sample], |bytes| {
            Facts::read(&String::from_utf8_lossy(bytes)).set_nx_get();
        });
    }
}
