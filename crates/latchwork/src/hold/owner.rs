//! Who may enter a reentrant mutex again.

use std::fmt;
use std::sync::Arc;
use std::thread::ThreadId;

/// Who may enter a [`ReentrantMutex`](crate::ReentrantMutex) that it holds.
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
    /// The tokio task that runs this; `None` outside any.
    ///
    /// Futures that run side by side within one task (`join!`, `select!`) are one owner: they do
    /// not exclude each other.
    pub fn current_task() -> Option<Self> {
        tokio::task::try_id().map(|id| Self(Who::Task(id)))
    }

    /// The thread that runs this. Not for async code, which may go on on another one.
    pub fn current_thread() -> Self {
        Self(Who::Thread(std::thread::current().id()))
    }

    /// An owner by its name: the same name is the same owner within this process.
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
