//! A script, and the hash by which a server knows it.

/// A script in Lua.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) hash: String,
}

impl Script {
    pub(crate) fn new(source: String) -> Self {
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}
