//! What an answer of the API server means for a verb.

use latchwork_store::doctor::Tested;
use latchwork_store::{BackendError, BackendErrorKind, Effect};
use serde::Deserialize;

use crate::link::Answer;

/// The words of a refusal.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
}

fn words(answer: &Answer) -> String {
    let said = serde_json::from_slice::<Status>(&answer.body).map(|status| status.message);
    said.unwrap_or_default()
}

/// Whether an object was refused because its annotations are larger than the server takes.
pub(crate) fn is_too_long(answer: &Answer) -> bool {
    let said = words(answer);
    answer.status == 422 && said.contains("metadata.annotations") && said.contains("Too long")
}

/// A refusal, as an error of a request that may have written something or has not.
pub(crate) fn refused(answer: &Answer, doing: &str, namespace: &str, writes: bool) -> BackendError {
    let said = words(answer);
    let words = if said.is_empty() { String::new() } else { format!(": {said}") };
    let status = answer.status;
    let message = format!("the API server refused to {doing} (status {status}){words}");
    let (kind, effect, step) = match status {
        401 => (
            BackendErrorKind::Denied,
            Effect::NotApplied,
            "check the credentials: a token may have expired".to_owned(),
        ),
        403 if said.contains("exceeded quota") => (
            BackendErrorKind::Denied,
            Effect::NotApplied,
            format!(
                "raise the quota of leases in the namespace, or delete leases that nobody uses: kubectl -n \
                 {namespace} describe quota"
            ),
        ),
        403 => (
            BackendErrorKind::Denied,
            Effect::NotApplied,
            format!(
                "give the account the verbs get, list, watch, create and update on leases of \
                 coordination.k8s.io in the namespace {namespace}"
            ),
        ),
        404 if !said.contains("namespaces") => (
            BackendErrorKind::Unsupported,
            Effect::NotApplied,
            format!(
                "the API of leases is missing: use Kubernetes {} or later, and check the path of the address",
                Tested::KUBERNETES.needed
            ),
        ),
        404 => (
            BackendErrorKind::Invalid,
            Effect::NotApplied,
            format!("create the namespace: kubectl create namespace {namespace}"),
        ),
        400 | 405 | 413 | 415 | 422 => (
            BackendErrorKind::Invalid,
            Effect::NotApplied,
            "check whether an admission policy changes or refuses leases".to_owned(),
        ),
        429 => (
            BackendErrorKind::Unreachable,
            Effect::NotApplied,
            "the API server is overloaded; retry later".to_owned(),
        ),
        _ => (
            BackendErrorKind::Unreachable,
            if writes { Effect::Unknown } else { Effect::NotApplied },
            "check the API server and its etcd".to_owned(),
        ),
    };
    BackendError::new(kind, effect, message).next_step(step)
}

/// The Lease belongs to a leader election that a controller decides.
pub(crate) fn managed(namespace: &str, name: &str, field: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Mismatch,
        Effect::NotApplied,
        format!(
            "the Lease {namespace}/{name} is managed by coordinated leader election ({field}): a controller decides \
             who holds it"
        ),
    )
    .next_step("use another name, or remove that field if no candidate uses the Lease any more")
}

/// An object that cannot be understood.
pub(crate) fn corrupt(namespace: &str, name: &str, why: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Corrupt,
        Effect::NotApplied,
        format!("the Lease {namespace}/{name} cannot be read: {why}"),
    )
    .next_step(format!(
        "if nobody uses the lock, delete it: kubectl -n {namespace} delete lease {name}"
    ))
}
