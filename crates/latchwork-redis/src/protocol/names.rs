//! The names of a key in Redis.
//!
//! On one node and behind Sentinel the lock's name is the key's text as given, so that a plain
//! client that takes the same name meets the same lock. On Cluster a name with a usable hash tag
//! is kept and any other becomes `namespace:{name}`, so that a lock and its helpers share a slot
//! (`namespace:{-}name-` where braces around the name would be an empty tag, which is none).
//! Helpers are the lock's name with a suffix, so a user limited to `~shop:*` needs no more.
//!
//! The names that many locks share (the counter of tokens, the marker of the guard, the channels) exist
//! once for each namespace that the address names, and once for all other keys. If they were cut from the
//! text of the key, keys such as `order-1:stock` and `order-2:stock` would leave one each.

use std::sync::Arc;

use latchwork_store::{BackendError, BackendErrorKind, Effect, Key};

use crate::server::slot::{hash_tag, slot_of, slot_text};

/// The endings of the helpers' names, after the lock's name.
const HELPERS: [&str; 6] = ["line", "claims", "held", "marks", "token", "guard"];

/// The names of one key in Redis. A clone is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    lock: Arc<str>,
    /// How much of `lock` is the namespace with its separator.
    namespace: usize,
    slot: Option<u16>,
}

impl Names {
    /// The names of `key` on one node.
    pub(crate) fn plain(key: &Key, spaces: &Namespaces) -> Result<Self, BackendError> {
        check(key.as_str())?;
        let namespace = spaces.length_in(key.as_str());
        Ok(Self { lock: key.into(), namespace, slot: None })
    }

    /// The names of a lock by the name it has on one node.
    pub(crate) fn of_stored(lock: &str, spaces: &Namespaces) -> Self {
        Self::new(lock, spaces.length_in(lock), None)
    }

    /// The names of some lock in a namespace (with its separator) and slot, for the names that its locks
    /// share. The address need not name the namespace.
    pub(crate) fn within(namespace: &str, slot: Option<u16>) -> Self {
        let name =
            slot.map_or_else(|| "lock".to_owned(), |slot| format!("{{{}}}", slot_text(slot)));
        Self::new(&format!("{namespace}{name}"), namespace.len(), slot)
    }

    fn new(lock: &str, namespace: usize, slot: Option<u16>) -> Self {
        Self { lock: lock.into(), namespace, slot }
    }

    /// The names of `key` on Cluster.
    pub(crate) fn tagged(key: &Key, spaces: &Namespaces) -> Result<Self, BackendError> {
        let text = key.as_str();
        check(text)?;
        let namespace = text.find(':').map_or(0, |at| at + 1);
        let name = &text[namespace..];
        let wrapped = name.starts_with('{') && name.ends_with('}');
        let keep = hash_tag(text)
            .is_some_and(|tag| tag.end <= namespace || !(wrapped || spelt_out(name).is_some()));
        let lock = if keep {
            text.to_owned()
        } else if has_no_tag(name) {
            format!("{}{{-}}{name}-", &text[..namespace])
        } else {
            format!("{}{{{name}}}", &text[..namespace])
        };
        let names = Self::of_stored_tagged(&lock, spaces);
        // A brace that opens in the namespace can pull a helper into another slot.
        let slot = slot_of(&lock);
        if slot_of(&names.token()) != slot || slot_of(&names.helper("line")) != slot {
            return Err(invalid(format!(
                "key: the brace in the namespace of {text:?} keeps its helpers from its slot"
            ))
            .with_next_step("use a namespace without '{'"));
        }
        Ok(names)
    }

    /// The names of a lock by the name it has on Cluster.
    pub(crate) fn of_stored_tagged(lock: &str, spaces: &Namespaces) -> Self {
        Self::new(lock, spaces.length_in(lock), Some(slot_of(lock)))
    }

    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    /// The slot on Cluster.
    pub(crate) fn slot(&self) -> Option<u16> {
        self.slot
    }

    /// The namespace with its separator, or nothing where the address names none.
    pub(crate) fn namespace(&self) -> &str {
        &self.lock[..self.namespace]
    }

    /// The name of a helper that belongs to this lock alone.
    pub(crate) fn helper(&self, kind: &str) -> String {
        [&self.lock, ":lw:", kind].concat()
    }

    /// The keys of the whole scripts.
    pub(crate) fn whole(&self) -> [String; 6] {
        let [line, claims, held, marks] =
            ["line", "claims", "held", "marks"].map(|kind| self.helper(kind));
        [self.lock.to_string(), self.token(), line, claims, held, marks]
    }

    /// The counter of tokens: one for a namespace, on Cluster one for each of its slots.
    pub(crate) fn token(&self) -> String {
        self.shared("token")
    }

    /// The marker of the guard, one for as many keys as the counter of tokens.
    pub(crate) fn guard(&self) -> String {
        self.shared("guard")
    }

    /// The channel of a process.
    pub(crate) fn channel(&self, process: &str) -> String {
        let (start, end) = self.channel_parts();
        [&start, process, &end].concat()
    }

    /// The beginning and the end of the channels of all processes.
    pub(crate) fn channel_parts(&self) -> (String, String) {
        ([self.namespace(), "lw:push:"].concat(), self.slot_tag())
    }

    /// A name that all keys of the namespace (and slot) share.
    fn shared(&self, kind: &str) -> String {
        [self.namespace(), "lw:", kind, &self.slot_tag()].concat()
    }

    /// The ending that puts a name into the slot on Cluster.
    fn slot_tag(&self) -> String {
        self.slot.map_or_else(String::new, |slot| format!(":{{{}}}", slot_text(slot)))
    }
}

/// The rule by which a store names its keys.
#[derive(Debug)]
pub(crate) struct Naming {
    pub(crate) namespaces: Namespaces,
    pub(crate) is_cluster: bool,
}

impl Naming {
    /// The names of a key.
    pub(crate) fn of(&self, key: &Key) -> Result<Names, BackendError> {
        match self.is_cluster {
            false => Names::plain(key, &self.namespaces),
            true => Names::tagged(key, &self.namespaces),
        }
    }

    /// The names of a lock by the name that it has in the store.
    pub(crate) fn of_stored(&self, lock: &str) -> Names {
        match self.is_cluster {
            false => Names::of_stored(lock, &self.namespaces),
            true => Names::of_stored_tagged(lock, &self.namespaces),
        }
    }

    /// The names of some lock in a namespace and slot.
    pub(crate) fn within(&self, namespace: &str, slot: u16) -> Names {
        Names::within(namespace, self.is_cluster.then_some(slot))
    }
}

/// The namespaces that an address names, each with its separator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Namespaces(Arc<[String]>);

impl Namespaces {
    pub(crate) fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| format!("{name}:")).collect())
    }

    pub(crate) fn names(&self, namespace: &str) -> bool {
        namespace.is_empty() || self.0.iter().any(|one| one == namespace)
    }

    /// How much of a name is its namespace.
    fn length_in(&self, name: &str) -> usize {
        self.0.iter().find(|one| name.starts_with(one.as_str())).map_or(0, String::len)
    }
}

/// FNV-1a, with its halves mixed.
pub(crate) fn hash(text: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let hash = text
        .bytes()
        .fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    hash ^ (hash >> 32)
}

/// The lock that a stored name belongs to, and whether it is the lock itself; `None` for what is
/// shared by a namespace.
pub(crate) fn lock_of(stored: &str) -> Option<(&str, bool)> {
    if let Some(at) = stored.rfind(":lw:") {
        let kind = &stored[at + 4..];
        if HELPERS[..4].contains(&kind) {
            return Some((&stored[..at], false));
        }
        if kind.starts_with("token") || kind.starts_with("guard") {
            return None;
        }
    }
    if stored.starts_with("lw:") { None } else { Some((stored, true)) }
}

/// The text of the key with this name on Cluster.
pub(crate) fn key_text_of_tagged(lock: &str) -> String {
    let namespace = lock.find(':').map_or(0, |at| at + 1);
    let (namespace, name) = lock.split_at(namespace);
    let in_namespace = hash_tag(lock).is_some_and(|tag| tag.end <= namespace.len());
    let inner = name.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    match inner.or_else(|| spelt_out(name)) {
        Some(inner) if !in_namespace => format!("{namespace}{inner}"),
        _ => lock.to_owned(),
    }
}

/// Whether braces around a name make no hash tag of it: an empty one is none.
fn has_no_tag(name: &str) -> bool {
    name.is_empty() || name.starts_with('}')
}

/// The name in `{-}name-`, which stands for one that [`has_no_tag`].
fn spelt_out(stored: &str) -> Option<&str> {
    stored.strip_prefix("{-}")?.strip_suffix('-').filter(|name| has_no_tag(name))
}

fn check(text: &str) -> Result<(), BackendError> {
    let reserved = text.starts_with("lw:")
        || text.as_bytes().windows(4).rposition(|four| four == b":lw:").is_some_and(|at| {
            let kind = &text[at + 4..];
            HELPERS.iter().any(|helper| kind == *helper || kind.starts_with(&format!("{helper}:")))
        });
    if !reserved {
        return Ok(());
    }
    Err(invalid(format!("key: {text:?} is a name that Latchwork reserves in Redis"))
        .with_next_step(
            "use a name that does not start with \"lw:\" or end with \":lw:\" and a word",
        ))
}

fn invalid(message: String) -> BackendError {
    BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn shop() -> Namespaces {
        Namespaces::new(&["shop".into(), "{n".into()])
    }

    #[test]
    fn one_node_keeps_the_name_as_given() {
        let names = Names::plain(&key("shop:stock/42"), &shop()).unwrap();
        assert_eq!(names.lock(), "shop:stock/42");
        assert_eq!(names.helper("line"), "shop:stock/42:lw:line");
        assert_eq!(names.token(), "shop:lw:token");
        assert_eq!(names.channel_parts(), ("shop:lw:push:".into(), String::new()));
        for other in ["job", "shop", "shopping:x", "order-1:stock", "order-2:stock"] {
            let names = Names::plain(&key(other), &shop()).unwrap();
            assert_eq!((&*names.token(), &*names.guard()), ("lw:token", "lw:guard"), "{other}");
            assert_eq!(names.channel_parts(), ("lw:push:".into(), String::new()));
        }
    }

    #[test]
    fn reserved_names_are_refused_by_name() {
        for text in ["lw:token", "lw:x", "a:lw:line", "a:b:lw:claims", "a:lw:token:{3}"] {
            let error = Names::plain(&key(text), &shop()).unwrap_err();
            assert_eq!(error.kind, BackendErrorKind::Invalid, "{text}");
            assert!(error.message.contains(text));
            assert!(error.next_step.unwrap().contains("use a name that does not start with"));
        }
        assert!(Names::plain(&key("a:lw:liner"), &shop()).is_ok());
    }

    #[test]
    fn a_slot_has_the_helpers_too() {
        for text in [
            "job",
            "shop:stock/42",
            "shop:{a}b",
            "{x}",
            "a}b",
            "shop:{x}",
            "a{b}:c",
            "{}x",
            "}x",
            "a:",
            "a:}",
            "}",
            "{}",
        ] {
            let names = Names::tagged(&key(text), &shop()).unwrap();
            let slot = names.slot().unwrap();
            assert_eq!(slot_of(names.lock()), slot);
            for helper in ["line", "claims", "held", "marks"] {
                assert_eq!(slot_of(&names.helper(helper)), slot, "{text}");
            }
            assert_eq!(slot_of(&names.token()), slot, "{text}");
            assert_eq!(slot_of(&names.channel("0123")), slot, "{text}");
        }
    }

    #[test]
    fn distinct_keys_keep_distinct_names_on_cluster() {
        let texts = [
            "x", "{x}", "{{x}}", "{x", "x}", "{}", "{}x", "{x}y", "y{x}", "a:x", "a:{x}",
            "a:{{x}}", "a:{x", "a:b:{x}", "{a}:x", "{a}:{x}", "a{b}:{x}", "a{b}:x", "x{}", "{{x}",
            "}x", "}", "{-}}x-", "{-}}-", "{-}-", "{-}", "{-}}", "-}", "{{-}}x-}", "a:}x",
            "a:{-}}x-", "a:", "a:{-}-", "{a}:", "{a}:}", "{-}x-", "{-}}x", "}x-", "-",
        ];
        let names: HashSet<String> = texts
            .iter()
            .map(|text| Names::tagged(&key(text), &shop()).unwrap().lock().to_owned())
            .collect();
        assert_eq!(names.len(), texts.len());
        for text in texts {
            let lock = Names::tagged(&key(text), &shop()).unwrap();
            assert_eq!(key_text_of_tagged(lock.lock()), *text);
        }
    }

    #[test]
    fn stored_names_map_back_to_lock_names() {
        assert_eq!(lock_of("shop:stock/42"), Some(("shop:stock/42", true)));
        assert_eq!(lock_of("shop:stock/42:lw:line"), Some(("shop:stock/42", false)));
        assert_eq!(lock_of("shop:lw:token"), None);
        assert_eq!(lock_of("shop:lw:token:{17}"), None);
        assert_eq!(lock_of("lw:token"), None);
    }
}
