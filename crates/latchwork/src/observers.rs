//! Observers for what operators read: metrics and traces.
//!
//! Give one to [`LockManager::observer`](crate::LockManager::observer), or a pair of them.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "metrics")]
pub use self::metrics::Metrics;
#[cfg(feature = "tracing")]
pub use self::tracing::Traces;
