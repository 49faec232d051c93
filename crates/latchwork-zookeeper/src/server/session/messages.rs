//! The requests that this crate sends, and the parsers of their answers.

use super::jute::{Reader, Writer};

/// The numbers of the requests.
pub(crate) mod code {
    pub(crate) const OLD_CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_ACL: i32 = 6;
    pub(crate) const GET_CHILDREN: i32 = 8;
    pub(crate) const GET_CHILDREN_AND_STAT: i32 = 12;
    pub(crate) const CHECK: i32 = 13;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CREATE: i32 = 15;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SASL: i32 = 102;
    pub(crate) const CLOSE: i32 = -11;
}

/// What the server refuses with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) i32);

impl Refusal {
    pub(crate) const UNIMPLEMENTED: Self = Self(-6);
    pub(crate) const NO_NODE: Self = Self(-101);
    pub(crate) const NO_AUTH: Self = Self(-102);
    pub(crate) const BAD_VERSION: Self = Self(-103);
    pub(crate) const NO_CHILDREN_FOR_EPHEMERALS: Self = Self(-108);
    pub(crate) const NODE_EXISTS: Self = Self(-110);
    pub(crate) const SESSION_EXPIRED: Self = Self(-112);
    pub(crate) const INVALID_ACL: Self = Self(-114);
    pub(crate) const AUTH_FAILED: Self = Self(-115);
    pub(crate) const SESSION_MOVED: Self = Self(-118);
    pub(crate) const NOT_READ_ONLY: Self = Self(-119);
    pub(crate) const SASL_NEEDED: Self = Self(-124);
    pub(crate) const QUOTA: Self = Self(-125);
    pub(crate) const THROTTLED: Self = Self(-127);
}

/// How a node lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Persistent = 0,
    Ephemeral = 1,
    EphemeralSequential = 3,
    /// The server removes it some time after its last child has gone.
    Container = 4,
}

/// Who may do what with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Everybody,
    /// The client that proves to be its creator.
    Creator,
}

/// A request without its number.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) code: i32,
    body: Vec<u8>,
    /// The node that is watched from then on.
    watched: Option<Box<str>>,
    /// It is watched only if it is not there: for being created.
    is_for_absent: bool,
}

impl Request {
    fn new(code: i32, fill: impl FnOnce(&mut Writer)) -> Self {
        let mut writer = Writer::default();
        fill(&mut writer);
        Self { code, body: writer.0, watched: None, is_for_absent: false }
    }

    pub(crate) fn create(kind: Kind, path: &str, data: &[u8], access: Access) -> Self {
        let code = if kind == Kind::Container { code::CREATE_CONTAINER } else { code::CREATE };
        let (scheme, id) = match access {
            Access::Everybody => ("world", "anyone"),
            Access::Creator => ("auth", ""),
        };
        const ALL: i32 = 31;
        Self::new(code, |w| {
            w.text(path).buffer(data).int(1).int(ALL).text(scheme).text(id).int(kind as i32);
        })
    }

    /// Deletes a node, whatever its version.
    pub(crate) fn delete(path: &str) -> Self {
        Self::new(code::DELETE, |w| {
            w.text(path).int(-1);
        })
    }

    /// Fails if a node is not there; a part of [`Self::together`].
    pub(crate) fn check(path: &str) -> Self {
        Self::new(code::CHECK, |w| {
            w.text(path).int(-1);
        })
    }

    pub(crate) fn exists(path: &str) -> Self {
        Self::new(code::EXISTS, |w| {
            w.text(path).bool(false);
        })
    }

    pub(crate) fn get(path: &str) -> Self {
        Self::new(code::GET_DATA, |w| {
            w.text(path).bool(false);
        })
    }

    /// Reads a node and watches it; a node that is not there is not watched.
    pub(crate) fn watch(path: &str) -> Self {
        let watch = Self::new(code::GET_DATA, |w| {
            w.text(path).bool(true);
        });
        Self { watched: Some(path.into()), ..watch }
    }

    /// Reads a node and watches its data alone, for [`data_news`].
    pub(crate) fn watch_data(path: &str) -> Self {
        Self { watched: Some(data_news(path).into()), ..Self::watch(path) }
    }

    pub(crate) fn set(path: &str) -> Self {
        Self::set_data(path, b"", -1)
    }

    /// Sets the data of a node that has this version; -1 is any.
    pub(crate) fn set_data(path: &str, data: &[u8], version: i32) -> Self {
        Self::new(code::SET_DATA, |w| {
            w.text(path).buffer(data).int(version);
        })
    }

    /// Lists a node's children, with the stat of the node at that time.
    pub(crate) fn children_and_stat(path: &str) -> Self {
        Self::new(code::GET_CHILDREN_AND_STAT, |w| {
            w.text(path).bool(false);
        })
    }

    pub(crate) fn children(path: &str) -> Self {
        Self::new(code::GET_CHILDREN, |w| {
            w.text(path).bool(false);
        })
    }

    /// Lists a node's children and watches for changes of the list; a node that is not there is not
    /// watched.
    pub(crate) fn watch_children(path: &str) -> Self {
        let watch = Self::new(code::GET_CHILDREN, |w| {
            w.text(path).bool(true);
        });
        Self { watched: Some(path.into()), ..watch }
    }

    /// Watches for a node that is not there; it need not even have a parent.
    pub(crate) fn watch_creation(path: &str) -> Self {
        let watch = Self::new(code::EXISTS, |w| {
            w.text(path).bool(true);
        });
        Self { watched: Some(path.into()), is_for_absent: true, ..watch }
    }

    pub(crate) fn access_of(path: &str) -> Self {
        Self::new(code::GET_ACL, |w| {
            w.text(path);
        })
    }

    /// All of them, or none.
    pub(crate) fn together(requests: &[Self]) -> Self {
        Self::new(code::MULTI, |w| {
            for request in requests {
                w.int(request.code).bool(false).int(-1);
                w.0.extend(&request.body);
            }
            w.int(-1).bool(true).int(-1);
        })
    }

    pub(crate) fn close() -> Self {
        Self::new(code::CLOSE, |_| {})
    }

    /// Whether it is agreed on by a majority.
    pub(crate) fn is_write(&self) -> bool {
        use code::{CREATE, CREATE_CONTAINER, DELETE, MULTI, SET_DATA};
        [CREATE, CREATE_CONTAINER, DELETE, MULTI, SET_DATA].contains(&self.code)
    }

    /// The node that the server watches when it has given this answer.
    pub(crate) fn watched(&self, refusal: Option<Refusal>) -> Option<&str> {
        let expected = self.is_for_absent.then_some(Refusal::NO_NODE);
        self.watched.as_deref().filter(|_| refusal == expected)
    }

    /// Appends the message with its length.
    pub(crate) fn write(&self, number: i32, out: &mut Vec<u8>) {
        out.extend((self.body.len() as i32 + 8).to_be_bytes());
        out.extend(number.to_be_bytes());
        out.extend(self.code.to_be_bytes());
        out.extend(&self.body);
    }
}

/// Asks for a session, or for one that there is to go on.
pub(crate) struct Hello<'a> {
    pub(crate) last_seen: i64,
    pub(crate) timeout_ms: i32,
    pub(crate) session: i64,
    pub(crate) password: &'a [u8],
}

impl Hello<'_> {
    /// The message with its length.
    pub(crate) fn to_frame(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.int(0).long(self.last_seen).int(self.timeout_ms).long(self.session);
        // Not content with a server that only reads.
        w.buffer(self.password).bool(false);
        framed(&w.0)
    }
}

/// The server's answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) timeout_ms: i32,
    /// 0 if the session has ended.
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
}

impl Welcome {
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        let mut r = Reader(message);
        r.int()?;
        let (timeout_ms, session) = (r.int()?, r.long()?);
        Some(Self { timeout_ms, session, password: r.buffer()?.to_vec() })
    }
}

/// The number that answers to [`introduction`] carry.
pub(crate) const INTRODUCTION: i32 = -4;
/// The number that news of watches carry.
pub(crate) const NEWS: i32 = -1;

/// Says who we are, by user and password.
pub(crate) fn introduction(user: &str, password: &str) -> Vec<u8> {
    let mut w = Writer::default();
    w.int(INTRODUCTION).int(code::AUTH).int(0).text("digest");
    w.text(&format!("{user}:{password}"));
    framed(&w.0)
}

/// A step of a proof by SASL.
pub(crate) fn sasl(token: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    w.int(0).int(code::SASL).buffer(token);
    framed(&w.0)
}

/// The server's answer to a step.
pub(crate) fn sasl_token(body: &[u8]) -> Option<Vec<u8>> {
    Reader(body).buffer().map(<[u8]>::to_vec)
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = Writer::default();
    frame.buffer(message);
    frame.0
}

/// What a node is, besides its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The transaction that made it.
    pub(crate) created: i64,
    /// When it was made and last changed, in ms on the leader's clock.
    pub(crate) created_ms: i64,
    pub(crate) changed_ms: i64,
    /// How often its data was set.
    pub(crate) version: i32,
    /// How often a child was made or has gone.
    pub(crate) children_version: i32,
    /// The session that it ends with; 0 if it does not.
    pub(crate) owner: i64,
}

impl Stat {
    fn read_from(r: &mut Reader<'_>) -> Option<Self> {
        let created = r.long()?;
        r.long()?;
        let (created_ms, changed_ms) = (r.long()?, r.long()?);
        let (version, children_version) = (r.int()?, r.int()?);
        r.int()?;
        let owner = r.long()?;
        r.int()?;
        r.int()?;
        r.long()?;
        Some(Self { created, created_ms, changed_ms, version, children_version, owner })
    }

    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        Self::read_from(&mut Reader(body))
    }
}

/// The path and the stat of a created node.
pub(crate) fn created(body: &[u8]) -> Option<(String, Stat)> {
    let mut r = Reader(body);
    Some((r.text()?.to_owned(), Stat::read_from(&mut r)?))
}

/// The data of a node.
pub(crate) fn data(body: &[u8]) -> Option<(Vec<u8>, Stat)> {
    let mut r = Reader(body);
    Some((r.buffer()?.to_vec(), Stat::read_from(&mut r)?))
}

/// The names of a node's children.
pub(crate) fn children(body: &[u8]) -> Option<Vec<&str>> {
    let mut r = Reader(body);
    let count = r.int()?.max(0);
    (0..count).map(|_| r.text()).collect()
}

/// The names of a node's children, and its stat.
pub(crate) fn children_and_stat(body: &[u8]) -> Option<(Vec<&str>, Stat)> {
    let mut r = Reader(body);
    let count = r.int()?.max(0);
    let names: Option<_> = (0..count).map(|_| r.text()).collect();
    Some((names?, Stat::read_from(&mut r)?))
}

/// Who may do something with a node: the rights, the scheme, the id.
pub(crate) fn access(body: &[u8]) -> Option<Vec<(i32, String, String)>> {
    let mut r = Reader(body);
    let count = r.int()?.max(0);
    let mut read = || Some((r.int()?, r.text()?.to_owned(), r.text()?.to_owned()));
    (0..count).map(|_| read()).collect()
}

/// The result of requests sent together: none took effect if one was refused.
pub(crate) fn together(body: &[u8]) -> Option<Result<(), Refusal>> {
    let mut r = Reader(body);
    let mut first = None;
    loop {
        let (kind, done) = (r.int()?, r.bool()?);
        r.int()?;
        match kind {
            _ if done => return Some(first.map_or(Ok(()), Err)),
            // Those that were not to blame carry 0, or "not tried".
            -1 => {
                let refusal = r.int()?;
                const NOT_TRIED: i32 = -2;
                if refusal != 0 && refusal != NOT_TRIED {
                    first = first.or(Some(Refusal(refusal)));
                }
            }
            code::CREATE => drop((r.text()?, Stat::read_from(&mut r)?)),
            // Some servers answer as to the request of old, which has the path alone.
            code::OLD_CREATE => drop(r.text()?),
            code::DELETE | code::CHECK => {}
            _ => return None,
        }
    }
}

/// Under this name the data of a node is watched, and not its children. No path ends so.
pub(crate) fn data_news(path: &str) -> String {
    format!("{path}/")
}

/// News of a watch: what happened, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) path: String,
    /// Of the data of the node too, if somebody watches it.
    pub(crate) is_of_data: bool,
}

impl News {
    /// `None` for what is of no node.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let mut r = Reader(body);
        /// The node has gone; its data was set.
        const OF_DATA: [i32; 2] = [2, 3];
        let kind = r.int()?;
        r.int()?;
        let path = r.text()?.to_owned();
        (kind > 0).then_some(Self { path, is_of_data: OF_DATA.contains(&kind) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(writer: &mut Writer, created: i64, owner: i64) {
        writer.long(created).long(0).long(7).long(8);
        writer.int(3).int(5).int(0).long(owner).int(0).int(0).long(0);
    }

    #[test]
    fn answers_are_read() {
        let mut body = Writer::default();
        body.text("/a/b0000000003");
        stat(&mut body, 99, 5);
        let (path, made) = created(&body.0).unwrap();
        assert_eq!(path, "/a/b0000000003");
        let (version, children_version) = (3, 5);
        let expected =
            Stat { created: 99, created_ms: 7, changed_ms: 8, version, children_version, owner: 5 };
        assert_eq!(made, expected);
        assert_eq!(created(&body.0[..body.0.len() - 1]), None);
        let mut body = Writer::default();
        body.int(2).text("x").text("y");
        assert_eq!(children(&body.0), Some(vec!["x", "y"]));
        assert_eq!(children(&[0, 0, 0, 9]), None);
    }

    #[test]
    fn a_failed_batch_names_its_failed_request() {
        let mut body = Writer::default();
        body.int(code::DELETE).bool(false).int(0);
        body.int(code::CREATE).bool(false).int(0).text("/x");
        stat(&mut body, 1, 0);
        body.int(code::OLD_CREATE).bool(false).int(0).text("/y");
        body.int(-1).bool(true).int(-1);
        assert_eq!(together(&body.0), Some(Ok(())));
        let mut body = Writer::default();
        body.int(code::CHECK).bool(false).int(0);
        for refusal in [0, -101, -2] {
            body.int(-1).bool(false).int(refusal).int(refusal);
        }
        body.int(-1).bool(true).int(-1);
        assert_eq!(together(&body.0), Some(Err(Refusal::NO_NODE)));
        assert_eq!(together(&[]), None);
    }
}
