//! The address of a namespace of Kubernetes, read strictly.

use std::path::PathBuf;

use latchwork_store::{Error, ErrorKind};
use latchwork_wire::address::{self, is_plain, unknown_option};

/// Where a Kubernetes store is, and how to reach it.
///
/// `k8s://namespace` inside a cluster uses the service account of the pod. Elsewhere it is the current context of
/// the kubeconfig, and `k8s://context/namespace` is a context by its name. `%XX` stands for a byte in each part:
/// `%2F` for a slash in the name of a context.
///
/// | option | meaning |
/// | --- | --- |
/// | `kubeconfig=/path` | this file instead of `KUBECONFIG` and `~/.kube/config`; also inside a cluster |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesConfig {
    pub(crate) context: Option<String>,
    pub(crate) namespace: String,
    pub(crate) kubeconfig: Option<PathBuf>,
}

const NEXT: &str = "use k8s://namespace or k8s://context/namespace";

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message).with_next_step(NEXT)
}

impl KubernetesConfig {
    /// Reads an address.
    ///
    /// # Errors
    ///
    /// `Invalid` with the part that cannot be read.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let rest =
            url.strip_prefix("k8s://").ok_or_else(|| invalid("store: not a Kubernetes address"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (context, namespace) = match rest.split_once('/') {
            Some((context, namespace)) => (Some(decode(context, "context")?), namespace),
            None => (None, rest),
        };
        if context.as_deref() == Some("") {
            return Err(invalid("store: the context is empty"));
        }
        let namespace = decode(namespace, "namespace")?;
        // A namespace is a label of DNS.
        let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = (1..=63).contains(&namespace.len()) && namespace.bytes().all(inside);
        if !fits || namespace.starts_with('-') || namespace.ends_with('-') {
            return Err(invalid(
                "store: the namespace is not a name of 1 to 63 small letters, digits and inner hyphens",
            ));
        }
        let mut kubeconfig = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value, name)?;
            match name {
                "kubeconfig" if value.is_empty() => {
                    return Err(invalid("store: kubeconfig is empty"));
                }
                "kubeconfig" => kubeconfig = Some(value.into()),
                _ => return Err(unknown_option(name, &["kubeconfig"])),
            }
        }
        Ok(Self { context, namespace, kubeconfig })
    }

    /// The address for messages.
    pub(crate) fn shown(&self) -> String {
        match &self.context {
            Some(context) if is_plain(context) => format!("k8s://{context}/{}", self.namespace),
            Some(_) => format!("k8s://.../{}", self.namespace),
            None => format!("k8s://{}", self.namespace),
        }
    }
}

fn decode(text: &str, what: &str) -> Result<String, Error> {
    address::decode(text, what).map_err(|error| error.with_next_step(NEXT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_addresses_are_accepted() {
        let inside = KubernetesConfig::parse("k8s://shop").unwrap();
        assert_eq!((inside.context.as_deref(), &*inside.namespace), (None, "shop"));
        assert_eq!(inside.shown(), "k8s://shop");
        let named = KubernetesConfig::parse("k8s://kind-dev/shop?kubeconfig=/etc/k%20c").unwrap();
        assert_eq!(named.context.as_deref(), Some("kind-dev"));
        assert_eq!(named.kubeconfig, Some("/etc/k c".into()));
        assert_eq!(named.shown(), "k8s://kind-dev/shop");
        let amazon = KubernetesConfig::parse("k8s://arn:aws:eks:eu:1:cluster%2Fa/shop-2").unwrap();
        assert_eq!(amazon.context.as_deref(), Some("arn:aws:eks:eu:1:cluster/a"));
        assert_eq!(amazon.shown(), "k8s://.../shop-2");
    }

    #[test]
    fn names_what_it_cannot_read() {
        for (url, part) in [
            ("k8s:/x", "address"),
            ("k8s://", "namespace"),
            ("k8s://Shop", "namespace"),
            ("k8s://-a", "namespace"),
            ("k8s:///shop", "context"),
            ("k8s://a/b/c", "namespace"),
            ("k8s://a?kubeconfig=", "kubeconfig"),
            ("k8s://a?kubeconfg=x", "kubeconfg"),
            ("k8s://%zz", "namespace"),
        ] {
            let error = KubernetesConfig::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(part), "{url}: {error}");
            assert!(error.next_step().is_some());
        }
    }

    #[test]
    fn hostile_addresses_are_read_without_harm() {
        let samples: [&[u8]; 2] =
            [b"k8s://a%2Fb/shop?kubeconfig=/a%00", b"k8s://%ff/-?kubeconfig&&x=%"];
        latchwork_services::hostile::survives("addresses", &samples, |bytes| {
            let _ = KubernetesConfig::parse(&String::from_utf8_lossy(bytes));
        });
    }
}
