//! The facts about a server that are read while connecting: its identity and its capabilities.

use crate::server::reply::fields;

/// The facts that a server reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Major and minor version of the Redis whose commands it has, if it says.
    pub(crate) version: Option<(u32, u32)>,
    /// `SET` takes `NX` and `GET` together, which a free key is taken with.
    pub(crate) set_nx_get: bool,
    pub(crate) run_id: String,
    pub(crate) role: String,
    pub(crate) maxmemory_policy: String,
    /// Messages come on the same connection: it speaks RESP3 and takes subscriptions.
    pub(crate) pushes: bool,
    pub(crate) scripts: ScriptSupport,
    /// The server's words for refusing scripts of several keys.
    pub(crate) refused: Option<String>,
    /// It tells how many clients listen on a channel.
    pub(crate) counts_listeners: bool,
}

impl Facts {
    /// Reads the answer to INFO.
    pub(crate) fn read(info: &str) -> Self {
        let field = |wanted: &str| {
            let field = fields(info).find(|(name, _)| *name == wanted);
            field.map_or("", |(_, value)| value.trim()).to_owned()
        };
        let numbers = |version: &str| {
            let mut numbers = version.split('.').map(|part| part.parse().ok());
            Some((numbers.next().flatten()?, numbers.next().flatten()?))
        };
        // A Valkey says both. All of its versions have the commands of Redis 7.2.
        let version = numbers(&field("redis_version"))
            .or_else(|| numbers(&field("valkey_version")).map(|_| (7, 2)));
        Self {
            version,
            set_nx_get: version.is_some_and(|version| version >= (7, 0)),
            run_id: field("run_id"),
            role: field("role"),
            maxmemory_policy: field("maxmemory_policy"),
            pushes: false,
            scripts: ScriptSupport::default(),
            refused: None,
            counts_listeners: false,
        }
    }
}

/// The scripts that a store runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ScriptSupport {
    /// Of several keys.
    #[default]
    Whole,
    /// Of one key: plain mode.
    OneKey,
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
        let only_valkey = "redis_version:\r\nserver_name:valkey\r\nvalkey_version:10.0.1\r\n";
        assert_eq!(Facts::read(only_valkey).version, Some((7, 2)));
        assert_eq!(Facts::read("valkey_version:new\r\n").version, None);
        survives("INFO", &[sample], |bytes| {
            let _ = Facts::read(&String::from_utf8_lossy(bytes));
        });
    }
}
