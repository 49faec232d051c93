//! The versions of servers that locks need, and those that this build was tested on.

use std::cmp::Ordering;

use super::Finding;
use crate::{BackendError, BackendErrorKind, Effect};

/// The oldest and the newest version of a server that the tests of this build ran on.
///
/// A version counts by its major and minor number: a later patch release is no new version. Of a
/// server whose versions have a major number and a patch number, the range names the major alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tested {
    /// The name of the server.
    pub server: &'static str,
    /// The first version that has what locks need.
    pub needed: &'static str,
    /// The oldest version.
    pub oldest: &'static str,
    /// The newest version.
    pub newest: &'static str,
}

impl Tested {
    /// The versions of Redis.
    pub const REDIS: Self = Self::new("Redis", "5.0", "6.2.5", "8.2.3");
    /// The versions of Valkey.
    pub const VALKEY: Self = Self::new("Valkey", "7.2", "8.0", "8.1.8");
    /// The versions of etcd.
    pub const ETCD: Self = Self::new("etcd", "3.4", "3.4.23", "3.7.3");
    /// The versions of ZooKeeper.
    pub const ZOOKEEPER: Self = Self::new("ZooKeeper", "3.5.3", "3.8.0", "3.9.6");
    /// The versions of PostgreSQL.
    pub const POSTGRES: Self = Self::new("PostgreSQL", "13", "13", "18");
    /// The versions of Kubernetes.
    pub const KUBERNETES: Self = Self::new("Kubernetes", "1.14", "1.31", "1.37");

    const fn new(
        server: &'static str,
        needed: &'static str,
        oldest: &'static str,
        newest: &'static str,
    ) -> Self {
        Self { server, needed, oldest, newest }
    }

    /// Returns an error if a server's version, as the server writes it, lacks what locks need. A text
    /// without a version is not judged.
    pub fn refuse(&self, version: &str) -> Option<BackendError> {
        let (needed, has) = (numbers(self.needed), numbers(version));
        if has.is_empty() || has.iter().chain([&0; 3]).ge(&needed) {
            return None;
        }
        let Self { server, needed, .. } = self;
        let message =
            format!("this server is {server} {version}, and locks need {needed} or later");
        let (kind, effect) = (BackendErrorKind::Unsupported, Effect::NotApplied);
        Some(BackendError::new(kind, effect, message).with_next_step("upgrade the server"))
    }

    /// Returns a finding if a server's version, as the server writes it, is outside the range. A
    /// text without a version is not judged.
    pub fn judge(&self, version: &str) -> Option<Finding> {
        let is = |bound: &str| {
            let bound = line(bound);
            let version = line(version);
            (version.len() >= bound.len()).then(|| version[..bound.len()].cmp(&bound))
        };
        let (than, bound, remedy) = if is(self.newest)? == Ordering::Greater {
            let remedy = "use a Latchwork release that was tested on it; if there is none, try your \
                          locks on a test server first";
            ("newer", self.newest, remedy)
        } else if is(self.oldest)? == Ordering::Less {
            ("older", self.oldest, "upgrade the server to a tested version")
        } else {
            return None;
        };
        let bound = line(bound).iter().map(u32::to_string).collect::<Vec<_>>().join(".");
        let server = self.server;
        let found = format!(
            "{server} {version} is {than} than any version that this build was tested on ({server} {bound})"
        );
        let consequence = "locks may fail where this version differs from the tested ones";
        Some(Finding::info("untested-version", found).consequence(consequence).remedy(remedy))
    }
}

/// A finding for a server that speaks the protocol of a tested one and is another, or belongs to a service.
pub fn untested(server: &str) -> Finding {
    let found = format!("{server}: this build was not tested on it");
    let consequence = "locks may fail where this server differs from the tested ones";
    let remedy = "try your locks on a test server first";
    Finding::info("untested-version", found).consequence(consequence).remedy(remedy)
}

/// The major and the minor number, as far as they are there: of `v1.37.2+k3s1` 1 and 37.
fn line(version: &str) -> Vec<u32> {
    let mut numbers = numbers(version);
    numbers.truncate(2);
    numbers
}

fn numbers(version: &str) -> Vec<u32> {
    let numbers = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    numbers.map_while(|number| number.parse().ok()).take(3).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::doctor::Severity;

    const ALL: [(&str, Tested, &str); 6] = [
        ("redis", Tested::REDIS, "redis.md"),
        ("valkey", Tested::VALKEY, "redis.md"),
        ("etcd", Tested::ETCD, "etcd.md"),
        ("zookeeper", Tested::ZOOKEEPER, "zookeeper.md"),
        ("postgres", Tested::POSTGRES, "postgres.md"),
        ("kube-apiserver", Tested::KUBERNETES, "kubernetes.md"),
    ];

    fn repository(path: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn only_a_major_or_minor_outside_the_range_is_named() {
        for (tested, version, than) in [
            (Tested::REDIS, "6.0.16", "older"),
            (Tested::REDIS, "6.2.0", ""),
            (Tested::REDIS, "7.4.9", ""),
            (Tested::REDIS, "8.2.99", ""),
            (Tested::REDIS, "8.3.0", "newer"),
            (Tested::REDIS, "8.10.1", "newer"),
            (Tested::VALKEY, "7.2.12", "older"),
            (Tested::VALKEY, "8.1.9", ""),
            (Tested::VALKEY, "9.0.0", "newer"),
            (Tested::ETCD, "3.3.27", "older"),
            (Tested::ETCD, "3.7.0-alpha.1", ""),
            (Tested::ETCD, "3.8.0-rc.0", "newer"),
            (Tested::ETCD, "4.0.0", "newer"),
            (Tested::ZOOKEEPER, "3.7.2-x, built on y", "older"),
            (Tested::ZOOKEEPER, "3.9.9", ""),
            (Tested::ZOOKEEPER, "3.10.0", "newer"),
            (Tested::POSTGRES, "12.22", "older"),
            (Tested::POSTGRES, "18.9", ""),
            (Tested::POSTGRES, "19beta1", "newer"),
            (Tested::KUBERNETES, "v1.30.14", "older"),
            (Tested::KUBERNETES, "v1.37.9+k3s1", ""),
            (Tested::KUBERNETES, "v1.38.0-alpha.1", "newer"),
            (Tested::REDIS, "", ""),
            (Tested::REDIS, "unknown", ""),
            (Tested::REDIS, "9", ""),
            (Tested::REDIS, "99999999999999999999.1", ""),
        ] {
            let Some(finding) = tested.judge(version) else {
                assert_eq!(than, "", "{} {version}", tested.server);
                continue;
            };
            assert_eq!(finding.severity, Severity::Info);
            let start = format!("{} {version} is {than} than any", tested.server);
            assert!(!than.is_empty() && finding.found.starts_with(&start), "{finding:?}");
        }
    }

    #[test]
    fn a_version_that_lacks_what_locks_need_is_refused() {
        for (tested, version, is_refused) in [
            (Tested::REDIS, "4.0.14", true),
            (Tested::REDIS, "5.0.0", false),
            (Tested::REDIS, "5", false),
            (Tested::REDIS, "", false),
            (Tested::REDIS, "unknown", false),
            (Tested::VALKEY, "7.2.4", false),
            (Tested::ETCD, "3.3.27", true),
            (Tested::ETCD, "3.4.0", false),
            (Tested::ETCD, "3.10.0", false),
            (Tested::ZOOKEEPER, "3.4.14", true),
            (Tested::ZOOKEEPER, "3.5.2-alpha", true),
            (Tested::ZOOKEEPER, "3.5.3-beta", false),
            (Tested::POSTGRES, "12.22", true),
            (Tested::POSTGRES, "13beta1", false),
            (Tested::KUBERNETES, "v1.13.12", true),
            (Tested::KUBERNETES, "v1.14.0+k3s1", false),
        ] {
            let refused = tested.refuse(version);
            assert_eq!(refused.is_some(), is_refused, "{} {version}: {refused:?}", tested.server);
            if let Some(error) = refused {
                assert!(error.next_step.as_ref().unwrap().contains("upgrade the server"));
                assert!(error.message.contains(version), "{error:?}");
                assert!(error.message.contains(tested.needed), "{error:?}");
            }
        }
    }

    #[test]
    fn the_newest_tested_version_is_named_without_its_patch() {
        let finding = Tested::ETCD.judge("3.8.1").unwrap();
        let end = "newer than any version that this build was tested on (etcd 3.7)";
        assert!(finding.found.ends_with(end), "{finding:?}");
    }

    /// A server that is added to the tests, or taken away, changes the range and the pages.
    #[test]
    fn the_ranges_are_those_of_the_tests_and_of_the_pages() {
        let servers = repository("proof/services/servers.tsv");
        for (name, tested, page) in ALL {
            let rows = servers.lines().filter_map(|row| row.strip_prefix(name)?.strip_prefix('\t'));
            let versions: Vec<_> = rows.filter_map(|row| row.split('\t').next()).collect();
            assert!(versions.iter().all(|version| tested.judge(version).is_none()), "{versions:?}");
            let is_newest = |version: &&str| line(version).starts_with(&line(tested.newest));
            assert!(versions.iter().any(is_newest), "{name} {versions:?}: {tested:?}");
            let range = format!("{} {} to {}", tested.server, tested.oldest, tested.newest);
            let page = repository(&format!("docs/{page}"));
            assert!(page.contains(&range), "{range}");
            let needed = format!("{} {} or later", tested.server, tested.needed);
            assert!(page.contains(&needed), "{needed}");
        }
    }
}
