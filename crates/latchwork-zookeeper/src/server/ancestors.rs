//! The nodes above another one, which are created where they are missing.
//!
//! ZooKeeper checks whether a user may create a node before it checks whether the node exists. So an
//! ancestor whose creation was refused may exist all the same. Only the node below all of them tells:
//! if it was created, its ancestors exist, whatever was said of them.

use latchwork_store::BackendError;

use crate::names::parents;
use crate::server::errors::not_created;
use crate::server::session::Reply;
use crate::server::session::messages::{Access, Kind, Refusal, Request};

/// The nodes above one that is created after them.
#[derive(Debug, Default)]
pub(crate) struct Ancestors {
    /// From the top.
    paths: Vec<String>,
    /// How many of them were answered.
    answered: usize,
    /// The last one that was refused without being known to exist.
    refused: Option<BackendError>,
}

impl Ancestors {
    /// All of them.
    pub(crate) fn of(path: &str) -> Self {
        Self { paths: parents(path).map(str::to_owned).collect(), ..Self::default() }
    }

    /// The last of them alone: the others are known to exist.
    pub(crate) fn only(parent: &str) -> Self {
        Self { paths: vec![parent.to_owned()], ..Self::default() }
    }

    pub(crate) fn requests(&self, access: Access) -> impl Iterator<Item = Request> {
        self.paths.iter().map(move |path| Request::create(Kind::Container, path, b"", access))
    }

    /// How many answers are missing.
    pub(crate) fn left(&self) -> usize {
        self.paths.len() - self.answered
    }

    /// Takes the answer for the next one.
    pub(crate) fn answer(&mut self, reply: &Reply) {
        let Some(path) = self.paths.get(self.answered) else { return };
        self.answered += 1;
        match reply {
            Ok(_) | Err(Refusal::NODE_EXISTS) => self.refused = None,
            Err(Refusal::NO_NODE) => {}
            Err(refusal) => self.refused = Some(not_created(*refusal, path)),
        }
    }

    /// The one that is missing, if the node below all of them had no parent: `None` if none of them
    /// was refused.
    pub(crate) fn missing(&mut self) -> Option<BackendError> {
        self.refused.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_AUTH: Reply = Err(Refusal::NO_AUTH);

    fn missing(replies: &[Reply]) -> Option<String> {
        let mut ancestors = Ancestors::of("/a/b/c/node");
        assert_eq!(ancestors.left(), 3);
        replies.iter().for_each(|reply| ancestors.answer(reply));
        assert_eq!(ancestors.left(), 0);
        ancestors.missing().map(|error| error.message)
    }

    #[test]
    fn the_ancestor_that_is_missing_is_named() {
        let no_node = || Err(Refusal::NO_NODE);
        let there = || Err(Refusal::NODE_EXISTS);
        for (replies, named) in [
            ([there(), there(), Ok(Vec::new())], None),
            ([NO_AUTH, no_node(), no_node()], Some("/a")),
            // That the second was refused proves the first.
            ([NO_AUTH, NO_AUTH, no_node()], Some("/a/b")),
            ([NO_AUTH, NO_AUTH, NO_AUTH], Some("/a/b/c")),
            ([NO_AUTH, there(), there()], None),
            ([no_node(), no_node(), no_node()], None),
        ] {
            let said = missing(&replies);
            assert_eq!(said.is_some(), named.is_some(), "{replies:?}: {said:?}");
            if let (Some(said), Some(named)) = (said, named) {
                assert!(said.contains(&format!("{named}:")), "{said}");
            }
        }
    }
}
