//! What a claim of the service says at the store of its origin: whose it is, in which session, and which claim it
//! replaced. By it, any instance finds the claims of an owner or a session again.

use std::sync::Arc;

use latchwork_store::{ClaimId, Holder};

/// The origin of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The name of the token that made it.
    pub(crate) owner: Arc<str>,
    /// The session that keeps it.
    pub(crate) session: Option<SessionNumber>,
    /// The claim whose hold goes on with this one, after an upgrade or a downgrade.
    pub(crate) was: Option<ClaimId>,
}

/// The number of a session at the store. It is no secret: the id that its client has is sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionNumber(pub(crate) u128);

impl SessionNumber {
    /// The name of the lock that is the session itself.
    pub(crate) fn name(self) -> String {
        format!("{SESSION_NAMES}{:032x}", self.0)
    }
}

/// The beginning of the names of the locks that are sessions.
pub(crate) const SESSION_NAMES: &str = "latchwork-session/";

impl Origin {
    /// The origin of a claim for this owner alone.
    pub(crate) fn of(owner: &Arc<str>, session: Option<SessionNumber>) -> Self {
        Self { owner: owner.clone(), session, was: None }
    }

    /// The session, the claim before and the owner; `-` where there is none.
    pub(crate) fn write(&self) -> String {
        let part =
            |number: Option<u128>| number.map_or("-".to_owned(), |number| format!("{number:032x}"));
        let (session, was) = (self.session.map(|it| it.0), self.was.map(|it| it.as_u128()));
        format!("{}.{}.{}", part(session), part(was), self.owner)
    }

    /// Reads what [`write`](Self::write) wrote; `None` for a claim of another origin.
    pub(crate) fn read(holder: &Holder) -> Option<Self> {
        let mut parts = holder.origin.as_deref()?.splitn(3, '.');
        let mut part = || match parts.next()? {
            "-" => Some(None),
            digits if digits.len() == 32 => u128::from_str_radix(digits, 16).ok().map(Some),
            _ => None,
        };
        let (session, was) = (part()?.map(SessionNumber), part()?.map(ClaimId::from_u128));
        Some(Self { owner: parts.next()?.into(), session, was })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_read_as_it_was_written() {
        for session in [None, Some(SessionNumber(7))] {
            for was in [None, Some(ClaimId::random())] {
                for owner in ["web", "a.b-c", ""] {
                    let origin = Origin { owner: owner.into(), session, was };
                    let holder =
                        Holder::new("me").with(|it| it.origin = Some(origin.write().into()));
                    assert_eq!(Origin::read(&Holder::from_stored(&holder.stored())), Some(origin));
                }
            }
        }
        for bad in ["", "-.-", "7.-.web", "web", "+0000000000000000000000000000007.-.web"] {
            let holder = Holder::new("me").with(|it| it.origin = Some(bad.into()));
            let read = Origin::read(&holder);
            assert!(read.is_none_or(|it| it.session == Some(SessionNumber(7))), "{bad}");
        }
        assert_eq!(Origin::read(&Holder::new("-.-.web")), None);
    }
}
