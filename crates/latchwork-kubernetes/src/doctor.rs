//! Whether an API server and an account are fit for locks. What is asked for takes no lock.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use latchwork_store::doctor::{Finding, Report, Tested, quoted};
use latchwork_store::{BackendError, Error, Io};
use serde::Deserialize;
use serde_json::json;

use crate::config::KubernetesConfig;
use crate::protocol::shared::Store;

/// Rights without which there are no locks, and what else they are for.
const NEEDED: &[(&str, &str)] = &[
    ("get", "no lock can be acquired or shown"),
    ("create", "no lock can be acquired that was never held"),
    ("update", "no lock can be acquired, renewed or released"),
];
const USEFUL: &[(&str, &str)] = &[
    ("watch", "waiters look every one to two seconds instead of being notified"),
    (
        "list",
        "`ls` and `top` are refused, and waiters may miss changes when a watch is interrupted",
    ),
];

/// The shortest ttl that the answers are judged for is that of client-go.
const TTL: Duration = Duration::from_secs(15);
/// So many reads are timed.
const READS: u32 = 5;
/// A wall clock that differs by more puzzles people who read the times of a lease.
const SKEW: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Version {
    #[serde(rename = "gitVersion")]
    git_version: String,
    #[serde(default)]
    minor: String,
}

#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    status: Allowed,
}

/// Who the API server takes this client for.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Myself {
    status: Known,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Known {
    user_info: User,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
struct Allowed {
    #[serde(default)]
    allowed: bool,
}

/// Examines the API server of an address and the rights of the account: are they fit for locks, what follows if not,
/// and what is to be done.
///
/// # Errors
///
/// `Unreachable` and `Denied` if the server does not answer, `Invalid` for what the address names that cannot be read.
/// Whatever else is wrong is a finding.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn doctor(config: KubernetesConfig, io: Io) -> Result<Report, Error> {
    let shown: Arc<str> = config.shown().into();
    let named = |error| Error::from_backend(error, None, &shown);
    let store = Arc::new(Store::open(config, io).await.map_err(named)?);
    let mut report = Report::new(shown.clone());
    for finding in store.version().await.map_err(named)? {
        report.add(finding);
    }
    for finding in store.rights().await.map_err(named)? {
        report.add(finding);
    }
    if report.is_fit() {
        report.add(store.write_on_trial().await.map_err(named)?);
    }
    for finding in store.namespace_and_latency().await.map_err(named)? {
        report.add(finding);
    }
    report.add(store.clock());
    report.add(
        Finding::info("restore", "tokens are versions of the API server's etcd")
            .consequence(
                "a restore of an older state of etcd takes tokens back, and may bring back a holder of that time; processes \
                 that run through it notice it and go on, those that start after it cannot know what was lost",
            )
            .remedy(
                "stop the holders before a restore, and raise the tokens of fenced resources after it; nothing has to \
                 be restarted",
            ),
    );
    store.link.shut();
    Ok(report)
}

const SLOW_WEBHOOK: &str = "use a longer ttl, or find out which webhook of the API server is slow";

/// What the length of a write says.
fn write_took(took: Duration) -> Finding {
    let found = format!("a lease on trial took {took:?}");
    match took * 20 <= TTL {
        true => Finding::ok("write", found),
        false => Finding::warning("write", found)
            .consequence("renewals of a ttl of 15 s may come too late")
            .remedy(SLOW_WEBHOOK),
    }
}

/// What a server says of its version, if it says it as Kubernetes does.
fn version(said: Option<Version>) -> Vec<Finding> {
    let Some(version) = said else {
        let found = "the server does not say its version as Kubernetes does";
        return vec![
            Finding::warning("version", found)
                .consequence("it may be no API server")
                .remedy("check the address"),
        ];
    };
    let tested = Tested::KUBERNETES.judge(&version.git_version);
    let minor: u32 = version.minor.trim_end_matches('+').parse().unwrap_or_default();
    let found = format!("Kubernetes {}", version.git_version);
    let finding = match minor {
        // The API of leases is as it is since 1.14.
        14.. => Finding::ok("version", found),
        1.. => Finding::critical("version", found)
            .consequence("no lock can be acquired: the API of leases is newer than this version")
            .remedy("use Kubernetes 1.14 or later"),
        0 => Finding::warning("version", found)
            .consequence("it cannot be checked whether the server has the API of leases")
            .remedy("check that it is Kubernetes 1.14 or later, with: kubectl version"),
    };
    std::iter::once(finding).chain(tested).collect()
}

/// An account as `kubectl create rolebinding` names it. Servers before 1.28 do not say which it is.
fn subject(name: &str, namespace: &str) -> String {
    match (name, name.strip_prefix("system:serviceaccount:")) {
        ("", _) => format!("--serviceaccount={namespace}:default"),
        (_, Some(account)) => format!("--serviceaccount={account}"),
        (name, None) => format!("--user={}", quoted(name)),
    }
}

impl Store {
    async fn version(&self) -> Result<Vec<Finding>, BackendError> {
        let answer = self.link.ask(Method::GET, "/version", None).await?;
        if !answer.is_success() {
            return Err(self.refused(&answer, "say its version", false));
        }
        Ok(version(serde_json::from_slice(&answer.body).ok()))
    }

    /// The lines that give the account all verbs, as somebody types them who may.
    async fn role_lines(&self) -> String {
        let review =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let body = serde_json::to_vec(&review).unwrap_or_default();
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let answer = self.link.ask(Method::POST, path, Some(body)).await.ok();
        let told = answer.and_then(|answer| serde_json::from_slice::<Myself>(&answer.body).ok());
        let subject = subject(&told.unwrap_or_default().status.user_info.username, &self.namespace);
        let verbs: Vec<_> = NEEDED.iter().chain(USEFUL).map(|(verb, _)| *verb).collect();
        format!(
            "kubectl -n {0} create role latchwork --verb={1} --resource=leases.coordination.k8s.io; \
             kubectl -n {0} create rolebinding latchwork --role=latchwork {subject}",
            self.namespace,
            verbs.join(",")
        )
    }

    async fn rights(&self) -> Result<Vec<Finding>, BackendError> {
        let mut findings = Vec::new();
        let (mut allowed, all) = (Vec::new(), NEEDED.iter().chain(USEFUL));
        for (n, (verb, consequence)) in all.enumerate() {
            let attributes = json!({
                "namespace": self.namespace, "verb": verb,
                "group": "coordination.k8s.io", "resource": "leases",
            });
            let review = json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": { "resourceAttributes": attributes },
            });
            let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            let body = serde_json::to_vec(&review).unwrap_or_default();
            let answer = self.link.ask(Method::POST, path, Some(body)).await?;
            if answer.status == 401 {
                return Err(self.refused(&answer, "tell the rights of the account", false));
            }
            let told = serde_json::from_slice::<Review>(&answer.body).ok();
            if told.is_some_and(|review| review.status.allowed) {
                allowed.push(*verb);
                continue;
            }
            let found = format!("the account may not {verb} leases in {}", self.namespace);
            let finding = match n < NEEDED.len() {
                true => Finding::critical("rights", found),
                false => Finding::warning("rights", found),
            };
            findings.push(finding.consequence(*consequence));
        }
        if !findings.is_empty() {
            let lines = self.role_lines().await;
            findings = findings.into_iter().map(|finding| finding.remedy(&*lines)).collect();
        }
        if findings.is_empty() {
            let found = format!("{} leases in {}", allowed.join(", "), self.namespace);
            findings.push(Finding::ok("rights", found));
        }
        Ok(findings)
    }

    /// Creates a lease on trial: quotas, policies and webhooks judge it, and nothing is kept.
    async fn write_on_trial(&self) -> Result<Finding, BackendError> {
        let path = format!("{}?dryRun=All", self.link.leases());
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "generateName": "latchwork-doctor-" },
        });
        let body = serde_json::to_vec(&lease).unwrap_or_default();
        let start = self.link.io.now();
        let answer = match self.link.ask(Method::POST, &path, Some(body)).await {
            Ok(answer) => answer,
            // The server has just answered other requests.
            Err(error) => {
                return Ok(Finding::critical("write", error.message)
                    .consequence("no lock can be acquired, renewed or released")
                    .remedy(SLOW_WEBHOOK));
            }
        };
        let took = self.link.io.now().since(start);
        // A webhook may take no part in trials, and a name that is just there has passed.
        if !answer.is_success() && !matches!(answer.status, 400 | 409) {
            let refused = self.refused(&answer, "create a lease on trial", true);
            return Ok(Finding::critical("write", refused.message)
                .consequence("no lock can be acquired, renewed or released")
                .remedy(refused.next_step.unwrap_or_default()));
        }
        Ok(write_took(took))
    }

    /// A read of a lease takes what a renewal takes, without its write.
    async fn namespace_and_latency(&self) -> Result<Vec<Finding>, BackendError> {
        let path = format!("{}/latchwork", self.link.leases());
        let mut longest = Duration::ZERO;
        for _ in 0..READS {
            let start = self.link.io.now();
            let answer = self.link.ask(Method::GET, &path, None).await?;
            longest = longest.max(self.link.io.now().since(start));
            if !answer.is_success() && answer.status != 404 {
                // Its right is examined apart.
                return Ok(Vec::new());
            }
        }
        let mut findings = Vec::new();
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        let answer = self.link.ask(Method::GET, &path, None).await?;
        match answer.status {
            200 => findings.push(Finding::ok("namespace", self.namespace.clone())),
            404 => findings.push(
                Finding::critical("namespace", format!("{} does not exist", self.namespace))
                    .consequence("no lock can be acquired")
                    .remedy(format!("kubectl create namespace {}", self.namespace)),
            ),
            // The account need not be allowed to read it.
            _ => {}
        }
        let found = format!("the slowest of {READS} reads took {longest:?}");
        findings.push(match longest {
            longest if longest * 20 <= TTL => Finding::ok("latency", found),
            _ => Finding::warning("latency", found)
                .consequence("renewals of a ttl of 15 s may come too late")
                .remedy("use a longer ttl, or find out why the API server is slow"),
        });
        Ok(findings)
    }

    fn clock(&self) -> Finding {
        let (now, wall) = (self.link.io.now(), self.link.io.clock().wall());
        let Some(server) = crate::lock(&self.link.time).latest(now) else {
            return Finding::warning("clock", "the server's answers have no date")
                .consequence("a closed key stays closed by the clock of the host that closed it")
                .remedy("set proxies in front of the API server to pass the Date header on");
        };
        let skew = server.abs_diff(wall);
        let found = format!("this host and the API server differ by {:.0} s", skew.as_secs_f64());
        match skew <= SKEW {
            true => Finding::ok("clock", "this host agrees with the API server"),
            false => Finding::info("clock", found)
                .consequence("none for locks; the times that kubectl shows of a lease are off")
                .remedy("set both clocks with a time service (NTP)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use latchwork_store::doctor::Severity;

    use super::*;

    #[test]
    fn h412_a_slow_write_is_a_warning() {
        assert_eq!(write_took(Duration::from_millis(20)).severity, Severity::Ok);
        let slow = write_took(Duration::from_secs(2));
        assert_eq!(slow.severity, Severity::Warning);
        let remedy = "use a longer ttl, or find out which webhook of the API server is slow";
        assert_eq!(slow.remedy, remedy);
    }

    #[test]
    fn accounts_are_named_as_kubectl_names_them() {
        for (name, expected) in [
            ("system:serviceaccount:shop:app", "--serviceaccount=shop:app"),
            ("jane@example.com", "--user='jane@example.com'"),
            ("", "--serviceaccount=shop:default"),
        ] {
            assert_eq!(subject(name, "shop"), expected);
        }
    }

    #[test]
    fn judges_versions() {
        let newer = "use Kubernetes 1.14 or later";
        let unknown = "check that it is Kubernetes 1.14 or later, with: kubectl version";
        for (said, remedy) in [
            (r#"{"major":"1","minor":"13","gitVersion":"v1.13.12"}"#, newer),
            (r#"{"gitVersion":"unknown"}"#, unknown),
            (r#"{"version":"other"}"#, "check the address"),
        ] {
            assert_eq!(version(serde_json::from_str(said).ok())[0].remedy, remedy, "{said}");
        }
        for (said, severity, tested) in [
            (
                r#"{"major":"1","minor":"13","gitVersion":"v1.13.12"}"#,
                Severity::Critical,
                Some("older"),
            ),
            (r#"{"major":"1","minor":"30","gitVersion":"v1.30.14"}"#, Severity::Ok, Some("older")),
            (r#"{"major":"1","minor":"31+","gitVersion":"v1.31.4-gke.1"}"#, Severity::Ok, None),
            (r#"{"major":"1","minor":"37","gitVersion":"v1.37.9+k3s1"}"#, Severity::Ok, None),
            (r#"{"major":"1","minor":"38","gitVersion":"v1.38.0"}"#, Severity::Ok, Some("newer")),
            (r#"{"gitVersion":"unknown"}"#, Severity::Warning, None),
            (r#"{"version":"other"}"#, Severity::Warning, None),
        ] {
            let findings = version(serde_json::from_str(said).ok());
            assert_eq!(findings[0].severity, severity, "{said}");
            let outside = findings.get(1).map(|one| one.found.as_str());
            let right = match (outside, tested) {
                (Some(found), Some(than)) => found.contains(than),
                (outside, tested) => outside.is_none() && tested.is_none(),
            };
            assert!(right, "{said}: {outside:?}");
        }
    }
}
