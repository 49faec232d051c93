//! What the roles of the user allow, and the lines of `etcdctl` that give what is missing.
//!
//! A queue is a range of keys, so a right to single keys is none. Which names a program uses is not known here: a user
//! who may read and write some range is fit.

use latchwork_store::doctor::{self, Finding};

use crate::proto::Permission;
use crate::proto::permission::Type;
use crate::protocol::names::end_of;
use crate::server::members::Members;

/// A range of keys, and what a role may do with them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Right {
    role: String,
    key: Vec<u8>,
    end: Vec<u8>,
    reads: bool,
    writes: bool,
}

impl Right {
    fn of(role: &str, permission: Permission) -> Self {
        let kind = permission.perm_type();
        Self {
            role: role.to_owned(),
            reads: kind != Type::Write,
            writes: kind != Type::Read,
            key: permission.key,
            end: permission.range_end,
        }
    }

    /// The range as arguments of `etcdctl`.
    fn range(&self) -> String {
        let key = word(&self.key);
        match &*self.end {
            // etcdctl has a zero byte for an empty key.
            [0] if self.key.is_empty() || *self.key == [0] => "'' --prefix".into(),
            [0] => format!("{key} --from-key"),
            end if end == end_of(&self.key) => format!("{key} --prefix"),
            end => format!("{key} {}", word(end)),
        }
    }
}

/// A word of a command line.
fn word(text: &[u8]) -> String {
    doctor::word(&String::from_utf8_lossy(text))
}

/// Asks for the roles of the user; `None` if the members do not tell.
pub(super) async fn examine(members: &Members, user: &str) -> Option<Finding> {
    let asked = members.ask(|link| async move { link.roles(user.to_owned()).await });
    let roles = asked.await.ok()?;
    // This one needs no permissions.
    if roles.iter().any(|role| role == "root") {
        return Some(Finding::ok("rights", "all keys, as root"));
    }
    let mut rights = Vec::new();
    for role in &roles {
        let asked = members.ask(|link| async move { link.permissions(role.clone()).await });
        rights.extend(asked.await.ok()?.into_iter().map(|it| Right::of(role, it)));
    }
    Some(judge(user, &roles, &rights))
}

fn judge(user: &str, roles: &[String], rights: &[Right]) -> Finding {
    let is_usable = |right: &&Right| {
        let same = |other: &&Right| (&other.key, &other.end) == (&right.key, &right.end);
        !right.end.is_empty()
            && rights.iter().filter(same).any(|it| it.reads)
            && rights.iter().filter(same).any(|it| it.writes)
    };
    let mut usable: Vec<_> = rights.iter().filter(is_usable).map(Right::range).collect();
    usable.dedup();
    if !usable.is_empty() {
        return Finding::ok("rights", format!("readwrite {}", usable.join(", ")));
    }
    let (user, names) =
        (word(user.as_bytes()), format!("{} --prefix", word(format!("{user}:").as_bytes())));
    let grant = |role: &str, range: &str| {
        format!("etcdctl role grant-permission {} readwrite {range}", word(role.as_bytes()))
    };
    let half = rights.iter().find(|right| !right.end.is_empty());
    let (found, lines) = match (half, roles.first()) {
        (Some(half), _) => {
            let only = if half.reads { "only read" } else { "only write" };
            let found = format!("the role {} may {only} {}", half.role, half.range());
            (found, grant(&half.role, &half.range()))
        }
        (None, Some(role)) => {
            let found = format!("no role of the user allows a range of keys: {}", roles.join(", "));
            (found, grant(role, &names))
        }
        (None, None) => (
            "the user has no role".to_owned(),
            format!(
                "etcdctl role add {user}; {}; etcdctl user grant-role {user} {user}",
                grant(&user, &names)
            ),
        ),
    };
    Finding::critical("rights", found)
        .consequence(
            "no lock can be acquired: its name is the beginning of the keys that are written",
        )
        .remedy(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(key: &[u8], end: &[u8], kind: Type) -> Right {
        let permission =
            Permission { perm_type: kind.into(), key: key.to_vec(), range_end: end.to_vec() };
        Right::of("r", permission)
    }

    #[test]
    fn a_range_is_what_its_line_gives() {
        for (key, end, line) in [
            (&b"app:"[..], &b"app;"[..], "app: --prefix"),
            (b"a b", b"a c", "'a b' --prefix"),
            (b"", b"\0", "'' --prefix"),
            (b"a", b"\0", "a --from-key"),
            (b"a", b"f", "a f"),
            (b"it's", b"it't", r"'it'\''s' --prefix"),
        ] {
            assert_eq!(right(key, end, Type::Read).range(), line);
        }
    }

    #[test]
    fn rights_of_two_roles_add_up() {
        let (reads, writes) = (right(b"a", b"b", Type::Read), right(b"a", b"b", Type::Write));
        let roles = ["r".to_owned()];
        let one = judge("app", &roles, std::slice::from_ref(&reads));
        assert_eq!(one.remedy, "etcdctl role grant-permission r readwrite a --prefix");
        assert!(one.found.contains("only read"), "{one:?}");
        let both = judge("app", &roles, &[reads, Right { role: "s".into(), ..writes }]);
        assert_eq!(both, Finding::ok("rights", "readwrite a --prefix"));
        // A key that is no range holds no queue.
        let single = judge("app", &roles, &[right(b"a", b"", Type::Readwrite)]);
        assert_eq!(single.remedy, "etcdctl role grant-permission r readwrite app: --prefix");
    }
}
