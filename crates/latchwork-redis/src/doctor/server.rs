//! One server under examination, and what it reports.

use std::collections::HashMap;
use std::sync::Arc;

use latchwork_store::{BackendError, Io};
use redis::{Value, cmd};

use crate::config::{Endpoint, RedisConfig};
use crate::server::access::Access;
use crate::server::connection::command;
use crate::server::link::Link;
use crate::server::reply::{fields, pairs, text};

/// A connection of the examination.
pub(super) async fn open(
    endpoint: &Endpoint,
    access: &Arc<Access>,
    io: &Io,
) -> Result<Link, BackendError> {
    Link::open(endpoint.clone(), access, io.clone(), Arc::new(|_| {}), None).await
}

/// A server, and what it reports.
pub(super) struct Server {
    pub(super) link: Link,
    pub(super) part: Arc<str>,
    pub(super) info: HashMap<String, String>,
    /// Why it refuses INFO.
    pub(super) no_info: Option<BackendError>,
}

impl Server {
    pub(super) async fn open(
        at: &Endpoint,
        config: &RedisConfig,
        io: &Io,
    ) -> Result<Self, BackendError> {
        let link = open(at, &Access::to_servers(config, None, None), io).await?;
        let asked = link.send(cmd("INFO").arg("all")).await;
        let (info, no_info) = match asked {
            Ok(answer) => (info(&answer), None),
            Err(failure) => (HashMap::new(), Some(failure.error)),
        };
        Ok(Self { link, part: at.to_string().into(), info, no_info })
    }

    pub(super) fn field(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.field(name).parse().ok()
    }

    pub(super) fn is_master(&self) -> bool {
        self.field("role") != "slave"
    }

    /// A setting; `None` if the user may not read it.
    pub(super) async fn setting(&self, name: &str) -> Option<String> {
        let mut get = cmd("CONFIG");
        get.arg("GET").arg(name);
        let answer = self.link.send(&get).await.ok()?;
        let (_, value) = *pairs(&answer)?.first()?;
        text(value)
    }

    /// The answer to a command, or its error as text.
    pub(super) async fn ask(&self, words: &[&str]) -> Result<Value, String> {
        self.link.send(&command(words)).await.map_err(|failure| failure.error.message)
    }
}

/// The fields of `INFO` or its like.
pub(super) fn info(answer: &Value) -> HashMap<String, String> {
    let text = text(answer).unwrap_or_default();
    fields(&text).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
