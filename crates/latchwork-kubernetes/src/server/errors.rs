//! What an answer of the API server means for a verb.

use latchwork_store::doctor::Tested;
use latchwork_store::{BackendError, BackendErrorKind, Effect};
use serde::Deserialize;

use crate::server::link::Answer;

/// The words of a refusal.
#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
    #[serde(default)]
    details: Details,
}

#[derive(Default, Deserialize)]
struct Details {
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Deserialize)]
struct Cause {
    #[serde(default)]
    reason: String,
}

impl Status {
    fn of(answer: &Answer) -> Self {
        serde_json::from_slice(&answer.body).unwrap_or_else(|_| Self {
            // A server or proxy that does not speak JSON.
            message: String::from_utf8_lossy(&answer.body).trim().chars().take(200).collect(),
            details: Details::default(),
        })
    }

    fn has_cause(&self, reason: &str) -> bool {
        self.details.causes.iter().any(|cause| cause.reason == reason)
    }
}

/// Why the server refused a request, whatever its status: plugins choose that.
enum Why {
    Quota,
    Terminating,
    /// A webhook or a policy has decided.
    Policy,
    /// A webhook did not decide: nothing was written.
    NoWebhook,
    Rights,
    PlainText,
    Other,
}

impl Why {
    fn of(status: u16, said: &Status) -> Self {
        let words = &*said.message;
        if words.contains("exceeded quota") {
            Self::Quota
        } else if said.has_cause("NamespaceTerminating") || words.contains("is being terminated") {
            Self::Terminating
        } else if words.contains("failed calling webhook") {
            Self::NoWebhook
        } else if words.contains("admission webhook") || words.contains("ValidatingAdmissionPolicy")
        {
            Self::Policy
        } else if status == 403 && words.contains(" cannot ") {
            Self::Rights
        } else if words.contains("HTTP request to an HTTPS server") {
            Self::PlainText
        } else {
            Self::Other
        }
    }
}

/// Whether an object was refused because its annotations are larger than the server takes.
pub(crate) fn is_too_long(answer: &Answer) -> bool {
    let said = Status::of(answer).message;
    answer.status == 422 && said.contains("metadata.annotations") && said.contains("Too long")
}

/// A refusal, as an error of a request that may have written something or has not.
pub(crate) fn refused(answer: &Answer, doing: &str, namespace: &str, writes: bool) -> BackendError {
    let told = Status::of(answer);
    let said = &told.message;
    let words = if said.is_empty() { String::new() } else { format!(": {said}") };
    let status = answer.status;
    let message = format!("the API server refused to {doing} (status {status}){words}");
    let (kind, effect, step) = match (Why::of(status, &told), status) {
        (_, 401) => (
            BackendErrorKind::Denied,
            Effect::NotApplied,
            "check the credentials: a token may have expired".to_owned(),
        ),
        (Why::Quota, _) => (
            BackendErrorKind::Denied,
            Effect::NotApplied,
            format!(
                "raise the quota of leases in the namespace, or delete leases that nobody uses: kubectl -n \
                 {namespace} describe quota"
            ),
        ),
        (Why::Terminating, _) => (
            BackendErrorKind::Denied,
            Effect::NotApplied,
            format!(
                "the namespace is being deleted: use another one, or make it again when it has gone (kubectl get \
                 namespace {namespace})"
            ),
        ),
        (Why::Policy, _) => (
            BackendErrorKind::Denied,
            Effect::NotApplied,
            format!(
                "change the policy that the message names, or exempt leases.coordination.k8s.io of the namespace \
                 {namespace} from it"
            ),
        ),
        (Why::NoWebhook, _) => (
            BackendErrorKind::Unreachable,
            Effect::NotApplied,
            "check the service of the webhook that the message names; kubectl get validatingwebhookconfigurations,\
             mutatingwebhookconfigurations shows its failurePolicy"
                .to_owned(),
        ),
        (Why::PlainText, _) => (
            BackendErrorKind::Invalid,
            Effect::NotApplied,
            "write https:// for the server in the kubeconfig".to_owned(),
        ),
        (Why::Rights, _) => (
            BackendErrorKind::Denied,
            Effect::NotApplied,
            format!(
                "give the account the verbs get, list, watch, create and update on leases of \
                 coordination.k8s.io in the namespace {namespace}"
            ),
        ),
        (_, 403) => (
            BackendErrorKind::Denied,
            Effect::NotApplied,
            format!(
                "see what the message names; kubectl auth can-i update leases.coordination.k8s.io -n {namespace} says \
                 whether a right is missing"
            ),
        ),
        (_, 404) if !said.contains("namespaces") => (
            BackendErrorKind::Unsupported,
            Effect::NotApplied,
            format!(
                "the API of leases is missing: use Kubernetes {} or later, and check the path of the address",
                Tested::KUBERNETES.needed
            ),
        ),
        (_, 404) => (
            BackendErrorKind::Invalid,
            Effect::NotApplied,
            format!("create the namespace: kubectl create namespace {namespace}"),
        ),
        (_, 400 | 405 | 413 | 415 | 422) => (
            BackendErrorKind::Invalid,
            Effect::NotApplied,
            "check whether an admission policy changes or refuses leases".to_owned(),
        ),
        (_, 429) => (
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
    BackendError::new(kind, effect, message).with_next_step(step)
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
    .with_next_step("use another name, or remove that field if no candidate uses the Lease any more")
}

/// An object that cannot be understood.
pub(crate) fn corrupt(namespace: &str, name: &str, why: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Corrupt,
        Effect::NotApplied,
        format!("the Lease {namespace}/{name} cannot be read: {why}"),
    )
    .with_next_step(format!(
        "if nobody uses the lock, delete it: kubectl -n {namespace} delete lease {name}"
    ))
}

/// A write after which the object has something else than was sent.
pub(crate) fn altered(namespace: &str, name: &str) -> BackendError {
    BackendError::new(
        BackendErrorKind::Corrupt,
        Effect::Unknown,
        format!(
            "the API server changed the Lease {namespace}/{name} as Latchwork wrote it: a mutating webhook or policy \
             does not keep what is in it"
        ),
    )
    .with_next_step(format!(
        "exempt the Leases of the namespace {namespace}: kubectl get \
         mutatingwebhookconfigurations,mutatingadmissionpolicies lists what may change them"
    ))
}

#[cfg(test)]
mod tests {
    use latchwork_store::Moment;

    use super::*;

    /// The words are those of servers; the status is what each plugin has chosen.
    #[test]
    fn h288_the_next_step_follows_what_was_said_not_the_status() {
        use BackendErrorKind::{Denied, Invalid, Unreachable};
        for (status, said, kind, step) in [
            (
                403,
                "leases.. is forbidden: exceeded quota: few, requested: count/leases..=1",
                Denied,
                "describe quota",
            ),
            (
                403,
                "leases.. is forbidden: unable to create new content in namespace shop because it is being terminated",
                Denied,
                "being deleted",
            ),
            (
                403,
                "admission webhook \"v.example.com\" denied the request: no",
                Denied,
                "change the policy",
            ),
            (
                400,
                "admission webhook \"validate.kyverno.svc-fail\" denied the request: no",
                Denied,
                "change the policy",
            ),
            (
                422,
                "leases.. is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
                Denied,
                "change the policy",
            ),
            (
                500,
                "Internal error occurred: failed calling webhook \"w\": connection refused",
                Unreachable,
                "failurePolicy",
            ),
            (
                403,
                "leases.. is forbidden: User \"u\" cannot create resource \"leases\"",
                Denied,
                "the verbs get, list",
            ),
            (403, "something that a plugin says", Denied, "kubectl auth can-i"),
            (422, "Lease is invalid: spec.x", Invalid, "admission policy"),
            (429, "too many requests", Unreachable, "overloaded"),
            (401, "Unauthorized", Denied, "token may have expired"),
            (503, "etcdserver: leader changed", Unreachable, "its etcd"),
        ] {
            let body = serde_json::json!({"message": said}).to_string().into_bytes();
            let answer = Answer { status, body, at: Moment::from_nanos(0), retry_after: None };
            let error = refused(&answer, "write", "shop", true);
            assert_eq!(error.kind, kind, "{said}");
            assert!(error.next_step.as_ref().unwrap().contains(step), "{said}: {error:?}");
            assert_eq!(error.effect == Effect::Unknown, status == 503, "{said}");
        }
        let body = b"Client sent an HTTP request to an HTTPS server.\n".to_vec();
        let answer = Answer { status: 400, body, at: Moment::from_nanos(0), retry_after: None };
        let error = refused(&answer, "read", "shop", false);
        assert!(error.message.ends_with("an HTTPS server."), "{error}");
        assert!(error.next_step.unwrap().contains("https://"));
    }
}
