//! Forwards verbs from a test's store to the store that it wraps.

/// Inside `impl Backend for ..`: forwards these methods to the store in a field.
///
/// ```
/// # use std::sync::Arc;
/// # use latchwork_store::{Attempt, Backend, BackendError, Claim, MemoryBackend, Verb};
/// /// A store in memory that counts tries.
/// #[derive(Debug)]
/// struct Counting {
///     inner: Arc<MemoryBackend>,
///     tries: std::sync::atomic::AtomicUsize,
/// }
///
/// impl Backend for Counting {
///     latchwork_store::pass_on!(inner: capabilities, wait, renew_all, release, inspect);
///
///     fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
///         self.tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
///         self.inner.try_acquire(claim)
///     }
/// }
/// ```
#[macro_export]
macro_rules! pass_on {
    ($field:ident: $($verb:ident),+) => { $($crate::pass_on!(@$verb $field);)+ };
    (@capabilities $field:ident) => {
        fn capabilities(&self) -> $crate::Capabilities {
            self.$field.capabilities()
        }
    };
    (@try_acquire $field:ident) => {
        fn try_acquire<'a>(
            &'a self,
            claim: &'a $crate::Claim,
        ) -> $crate::Verb<'a, Result<$crate::Attempt, $crate::BackendError>> {
            self.$field.try_acquire(claim)
        }
    };
    (@wait $field:ident) => {
        fn wait<'a>(
            &'a self,
            claim: &'a $crate::Claim,
            blocked: &'a $crate::Blocked,
        ) -> $crate::Verb<'a, Result<$crate::Wake, $crate::BackendError>> {
            self.$field.wait(claim, blocked)
        }
    };
    (@renew_all $field:ident) => {
        fn renew_all<'a>(
            &'a self,
            claims: &'a [$crate::Claim],
        ) -> $crate::Verb<'a, Vec<Result<$crate::Renewal, $crate::BackendError>>> {
            self.$field.renew_all(claims)
        }
    };
    (@release $field:ident) => {
        fn release<'a>(
            &'a self,
            claim: &'a $crate::Claim,
            linger: $crate::Linger,
        ) -> $crate::Verb<'a, Result<$crate::Released, $crate::BackendError>> {
            self.$field.release(claim, linger)
        }
    };
    (@resize $field:ident) => {
        fn resize<'a>(
            &'a self,
            claim: &'a $crate::Claim,
        ) -> $crate::Verb<'a, Result<$crate::Resized, $crate::BackendError>> {
            self.$field.resize(claim)
        }
    };
    (@watch $field:ident) => {
        fn watch<'a>(
            &'a self,
            key: &'a $crate::Key,
        ) -> $crate::Verb<'a, Result<Option<Box<dyn $crate::Watch>>, $crate::BackendError>> {
            self.$field.watch(key)
        }
    };
    (@inspect $field:ident) => {
        fn inspect<'a>(
            &'a self,
            query: &'a $crate::Query,
        ) -> $crate::Verb<'a, Result<Vec<$crate::Snapshot>, $crate::BackendError>> {
            self.$field.inspect(query)
        }
    };
    (@ttl_may_change $field:ident) => {
        fn ttl_may_change(&self) -> bool {
            self.$field.ttl_may_change()
        }
    };
    (@renews_for_others $field:ident) => {
        fn renews_for_others(&self) -> bool {
            self.$field.renews_for_others()
        }
    };
    (@detach $field:ident) => {
        fn detach(&self, claim: &$crate::Claim) -> $crate::ClaimId {
            self.$field.detach(claim)
        }
    };
    (@adopt $field:ident) => {
        fn adopt(&self, claim: $crate::Claim, token: u64) -> $crate::Claim {
            self.$field.adopt(claim, token)
        }
    };
}
