//! The owner that may acquire a [`ReentrantMutex`](crate::ReentrantMutex) again.

use std::fmt;
use std::sync::Arc;
use std::thread::ThreadId;

/// The owner of a [`ReentrantMutex`](crate::ReentrantMutex), which it may acquire again.
///
/// Take a [name](Owner::named) of your own (a request, a job) where work moves between tasks and
/// threads; the task or the thread where it does not.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Who);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Who {
    Task(tokio::task::Id),
    Thread(ThreadId),
    Named(Arc<str>),
}

impl Owner {
    /// Returns the current tokio task as an owner, or `None` outside any.
    ///
    /// Futures that run side by side within one task (`join!`, `select!`) are one owner: they do
    /// not exclude each other.
    pub fn current_task() -> Option<Self> {
        tokio::task::try_id().map(|id| Self(Who::Task(id)))
    }

    /// Returns the current thread as an owner. Not for async code, which may resume on another
    /// thread.
    pub fn current_thread() -> Self {
        Self(Who::Thread(std::thread::current().id()))
    }

    /// Creates an owner from a name. Equal names are the same owner within this process.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self(Who::Named(name.into()))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Who::Task(id) => write!(f, "Owner(task {id})"),
            Who::Thread(id) => write!(f, "Owner({id:?})"),
            Who::Named(name) => write!(f, "Owner({name:?})"),
        }
    }
}
