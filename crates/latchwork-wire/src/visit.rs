//! The bell at which a thread listens while it blocks.
//!
//! What the thread polls offers it a bell ([`Visit::offer`]); the engine, which blocks the thread, makes
//! it listen there ([`Visit::bell`]).

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;

use latchwork_store::{Attending, Doorbell};

thread_local! {
    /// The visit that this thread is on, if it is on one.
    static VISIT: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// At which bell this thread listens.
struct Listener {
    can_listen: bool,
    at: Option<(Doorbell, Attending)>,
}

/// One poll of a future by a thread that blocks for it, and the sleep of the thread after it.
#[derive(Debug)]
#[must_use = "the thread can be offered bells until this is dropped"]
pub struct Visit {
    /// That of a visit around this one.
    outer: Option<Listener>,
    /// It belongs to its thread.
    here: PhantomData<*const ()>,
}

impl Visit {
    /// Begins a visit: from now on a bell can be offered to this thread, if it can listen to
    /// one.
    pub fn begin(can_listen: bool) -> Self {
        let outer = VISIT.replace(Some(Listener { can_listen, at: None }));
        Self { outer, here: PhantomData }
    }

    /// Returns the bell that the thread has to listen to.
    pub fn bell(&self) -> Option<Doorbell> {
        VISIT.with_borrow(|visit| Some(visit.as_ref()?.at.as_ref()?.0.clone()))
    }

    /// Returns whether this thread polls a future on which it will block, and can listen to a
    /// bell.
    pub fn can_listen() -> bool {
        VISIT.with_borrow(|visit| visit.as_ref().is_some_and(|listener| listener.can_listen))
    }

    /// Offers a bell to this thread while it blocks, and returns whether it will listen to it. It
    /// will not if it listens to another one. A future has to offer its bell at each poll.
    pub fn offer(bell: &Doorbell) -> bool {
        VISIT.with_borrow_mut(|visit| {
            // A thread that could not listen must not say so, or nobody would.
            let Some(listener) = visit.as_mut().filter(|it| it.can_listen) else {
                return false;
            };
            let (chosen, _) = listener.at.get_or_insert_with(|| (bell.clone(), bell.attend()));
            chosen.is(bell)
        })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let ended = VISIT.replace(self.outer.take());
        drop(ended);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("can_listen", &self.can_listen).finish_non_exhaustive()
    }
}
