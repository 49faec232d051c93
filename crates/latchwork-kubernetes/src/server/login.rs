//! Reads a kubeconfig or a service account. No message repeats a line of a file, what a plugin printed, or the user of
//! a proxy.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::FutureExt as _;
use kube::Config;
use kube::client::{AuthError, RustlsTlsError};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError, LoadDataError};
use latchwork_store::{BackendError, BackendErrorKind, Effect};

use crate::config::KubernetesConfig;
use crate::server::plugin;

/// What a client is built from.
pub(super) struct Settings {
    pub(super) config: Config,
    /// How long a login is good that a plugin gave.
    pub(super) lifetime: Option<Duration>,
}

/// Reads the settings, and runs the exec plugin if there is one. Blocks. `tell` is given the name of the plugin.
pub(super) fn read(
    config: &KubernetesConfig,
    wall: Duration,
    tell: impl FnOnce(String),
) -> Result<Settings, BackendError> {
    let mut settings = Settings { config: of_files(config)?, lifetime: None };
    let config = &mut settings.config;
    // A watch says nothing for long; each request has its own limit.
    config.read_timeout = None;
    // Only a verb knows whether its request may be sent again.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    let user = &mut config.auth_info;
    if user.auth_provider.as_ref().is_some_and(|old| old.config.contains_key("cmd-path")) {
        return Err(invalid("kubeconfig: kubectl has removed the auth-provider of the user")
            .with_next_step("name an exec plugin for the user in the kubeconfig"));
    }
    let has_login = user.token.is_some() || user.token_file.is_some() || user.username.is_some();
    if let Some(exec) = user.exec.take().filter(|_| !has_login && user.auth_provider.is_none()) {
        tell(plugin::shown(&exec));
        let login = plugin::run(&exec)?;
        settings.lifetime = login.lifetime(wall);
        user.token = login.token.map(Into::into);
        if let (Some(certificate), Some(key)) =
            (login.client_certificate_data, login.client_key_data)
        {
            user.client_certificate_data = Some(BASE64.encode(certificate));
            user.client_key_data = Some(BASE64.encode(key).into());
        }
    }
    Ok(settings)
}

fn of_files(config: &KubernetesConfig) -> Result<Config, BackendError> {
    let inside = config.kubeconfig.is_none() && config.context.is_none();
    if inside && env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Config::incluster()
            .map_err(|error| invalid(format!("the pod's service account: {error}")));
    }
    let wrong = |error: KubeconfigError| invalid(format!("kubeconfig: {}", of_kubeconfig(&error)));
    let mut read = kubeconfig(config).map_err(wrong)?;
    let named = config.context.as_ref().or(read.current_context.as_ref());
    let context = read.contexts.iter().find(|context| Some(&context.name) == named);
    let cluster = context.and_then(|context| context.context.as_ref()).map(|it| it.cluster.clone());
    let mut proxy = None;
    for one in &mut read.clusters {
        if let Some(inner) = &mut one.cluster {
            let own = inner.proxy_url.replace(NO_PROXY.to_owned());
            if Some(&one.name) == cluster.as_ref() {
                proxy = own.filter(|own| !own.is_empty());
            }
        }
    }
    let options =
        KubeConfigOptions { context: config.context.clone(), ..KubeConfigOptions::default() };
    // Nothing in it waits.
    let made = Config::from_custom_kubeconfig(read, &options).now_or_never();
    let mut settings = made.unwrap_or(Err(KubeconfigError::FindPath)).map_err(wrong)?;
    settings.proxy_url = None;
    let proxy = match proxy {
        Some(proxy) => Some((proxy, "proxy-url in the kubeconfig")),
        None => of_environment(&settings.cluster_url, |name| env::var(name).ok()),
    };
    match proxy {
        None => Ok(settings),
        Some((proxy, from)) => Err(invalid(format!(
            "the API server is behind the proxy {} ({from}), and Latchwork uses no proxy",
            without_user(&proxy)
        ))
        .with_next_step(
            "name the API server's host in NO_PROXY if it can be reached directly, or remove proxy-url from the \
             kubeconfig",
        )),
    }
}

/// Stands for the proxy while the kubeconfig is judged; it is not used.
const NO_PROXY: &str = "http://unused.invalid";

/// The files that kubectl reads. One that is missing from a list is skipped.
fn kubeconfig(config: &KubernetesConfig) -> Result<Kubeconfig, KubeconfigError> {
    if let Some(path) = &config.kubeconfig {
        return Kubeconfig::read_from(path);
    }
    let listed = env::var_os("KUBECONFIG").unwrap_or_default();
    let listed = env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty());
    match listed.collect::<Vec<_>>() {
        listed if listed.is_empty() => Kubeconfig::read(),
        listed => merged(&listed),
    }
}

fn merged(listed: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    let (mut whole, mut missing): (Option<Kubeconfig>, _) = (None, None);
    for path in listed {
        match Kubeconfig::read_from(path) {
            Ok(next) => whole = Some(whole.take().unwrap_or_default().merge(next)?),
            Err(KubeconfigError::ReadConfig(error, path))
                if error.kind() == std::io::ErrorKind::NotFound =>
            {
                missing.get_or_insert(KubeconfigError::ReadConfig(error, path));
            }
            Err(error) => return Err(error),
        }
    }
    whole.ok_or_else(|| missing.unwrap_or(KubeconfigError::FindPath))
}

/// The proxy that the environment names for a server, as kubectl reads it. The matcher of hyper-util reads it as curl does:
/// without ports, `*.name` and the exemption of this machine.
fn of_environment(
    server: &http::Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<(String, &'static str)> {
    let either = |upper, lower| {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        set(upper).or_else(|| set(lower))
    };
    let proxy = either("HTTPS_PROXY", "https_proxy")?;
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let ip: Option<std::net::IpAddr> = host.parse().ok();
    let is_here = host == "localhost" || ip.is_some_and(|ip| ip.is_loopback());
    let port = server.port_u16().unwrap_or(443).to_string();
    let exempt = either("NO_PROXY", "no_proxy").unwrap_or_default();
    let is_exempt = exempt.split(',').any(|entry| {
        let entry = entry.trim().to_ascii_lowercase();
        let entry = match entry.rsplit_once(':') {
            Some((name, its)) if !name.contains(':') || name.ends_with(']') => {
                if its != port {
                    return false;
                }
                name.trim_matches(['[', ']']).to_owned()
            }
            _ => entry.trim_matches(['[', ']']).to_owned(),
        };
        if let (Some((network, bits)), Some(ip)) = (entry.split_once('/'), ip) {
            return network
                .parse()
                .is_ok_and(|network| bits.parse().is_ok_and(|bits| is_within(ip, network, bits)));
        }
        if entry == "*" || (ip.is_some() && entry.parse().ok() == ip) {
            return true;
        }
        let (only_below, name) = match entry.trim_start_matches('*').strip_prefix('.') {
            Some(name) => (true, name),
            None => (false, &*entry),
        };
        let below = || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
        !name.is_empty() && ((!only_below && host == name) || below())
    });
    let is_direct = is_here || is_exempt || server.scheme_str() != Some("https");
    (!is_direct).then_some((proxy, "from HTTPS_PROXY"))
}

/// Whether an address is in a network.
fn is_within(ip: std::net::IpAddr, network: std::net::IpAddr, bits: u32) -> bool {
    use std::net::IpAddr::{V4, V6};
    match (ip, network) {
        (V4(ip), V4(network)) if bits <= 32 => {
            (u32::from(ip) ^ u32::from(network)).checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (V6(ip), V6(network)) if bits <= 128 => {
            (u128::from(ip) ^ u128::from(network)).checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// The scheme, host and port of a proxy; its user and path may be secrets.
fn without_user(proxy: &str) -> String {
    let Ok(uri) = proxy.parse::<http::Uri>() else { return "that cannot be read".into() };
    let Some(host) = uri.host() else { return "that has no host".into() };
    let scheme = uri.scheme_str().unwrap_or("http");
    let port = uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{scheme}://{host}{port}")
}

/// What is wrong with a kubeconfig. Names are repeated, values are not.
pub(super) fn of_kubeconfig(error: &KubeconfigError) -> String {
    use KubeconfigError as Wrong;
    let data = |what: &str, error: &LoadDataError| match error {
        LoadDataError::DecodeBase64(_) => format!("{what} is not base64"),
        LoadDataError::ReadFile(error, path) => {
            format!("{what} cannot be read from {}: {error}", path.display())
        }
        LoadDataError::NoBase64DataOrFile => format!("{what} is missing"),
    };
    match error {
        Wrong::CurrentContextNotSet => "it names no current-context".into(),
        Wrong::KindMismatch => "its files have several kinds".into(),
        Wrong::ApiVersionMismatch => "its files have several versions of the API".into(),
        Wrong::LoadContext(name) => format!("it has no context `{name}`"),
        Wrong::LoadClusterOfContext(name) => format!("it has no cluster `{name}`"),
        Wrong::FindPath => "there is no home directory".into(),
        Wrong::ReadConfig(error, path) => format!("{} cannot be read: {error}", path.display()),
        Wrong::Parse(error) => match error.location() {
            Some(at) => {
                format!("it cannot be understood at line {}, column {}", at.line(), at.column())
            }
            None => "it is no kubeconfig in YAML".into(),
        },
        Wrong::MissingClusterUrl => "its cluster has no server".into(),
        Wrong::ParseClusterUrl(error) => {
            format!("the server of its cluster is no address: {error}")
        }
        Wrong::ParseProxyUrl(error) => format!("its proxy-url is no address: {error}"),
        Wrong::LoadCertificateAuthority(error) => data("certificate-authority", error),
        Wrong::LoadClientCertificate(error) => data("client-certificate", error),
        Wrong::LoadClientKey(error) => data("client-key", error),
        Wrong::ParseCertificates(_) => "certificate-authority has no certificate in PEM".into(),
    }
}

/// Why there is no login.
pub(super) fn of_login(error: &AuthError) -> String {
    match error {
        AuthError::InvalidBasicAuth(_) => "no header can have its username and password".into(),
        AuthError::InvalidBearerToken(_) => "no header can have its token".into(),
        AuthError::ReadTokenFile(error, path) => {
            format!("the token file {} cannot be read: {error}", path.display())
        }
        _ => "the auth-provider of the user gives no login".into(),
    }
}

/// Why there is no client.
pub(super) fn of_client(error: &kube::Error) -> BackendError {
    invalid(match error {
        kube::Error::Auth(error) => format!("kubeconfig: {}", of_login(error)),
        kube::Error::InferKubeconfig(error) => format!("kubeconfig: {}", of_kubeconfig(error)),
        kube::Error::RustlsTls(error) => match error {
            RustlsTlsError::MissingPrivateKey | RustlsTlsError::UnknownPrivateKeyFormat => {
                "kubeconfig: client-key has no private key of PKCS8 or PKCS1".into()
            }
            RustlsTlsError::MissingCertificate => {
                "kubeconfig: client-certificate has no certificate".into()
            }
            RustlsTlsError::InvalidIdentityPem(_) | RustlsTlsError::InvalidPrivateKey(_) => {
                "kubeconfig: client-certificate and client-key cannot be used".into()
            }
            RustlsTlsError::InvalidServerName(_) => {
                "kubeconfig: tls-server-name is no name of a host".into()
            }
            _ => "the certificates of the authority cannot be used".into(),
        },
        _ => "the settings of the kubeconfig cannot be used".into(),
    })
}

pub(super) fn invalid(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message).with_next_step(
        "check the context in the address and the kubeconfig, with: kubectl config get-contexts",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H504
    #[test]
    fn h504_a_file_that_is_missing_from_the_list_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let good = folder.path().join("good");
        std::fs::write(&good, "current-context: c\n").unwrap();
        let missing = folder.path().join("none");
        let read = merged(&[missing.clone(), good]).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("c"));
        let error = of_kubeconfig(&merged(std::slice::from_ref(&missing)).unwrap_err());
        assert!(error.contains(&missing.display().to_string()), "{error}");
    }

    /// H504
    #[test]
    fn h504_a_proxy_counts_only_for_servers_that_it_leads_to() {
        let is_used = |server: &str, exempt: &'static str| {
            let variable = |name: &str| match name {
                "HTTPS_PROXY" => Some("http://me:s3cret@proxy:3128".to_owned()),
                "NO_PROXY" => Some(exempt.to_owned()),
                _ => None,
            };
            of_environment(&server.parse().unwrap(), variable).is_some()
        };
        for (server, exempt) in [
            ("https://api.example.com:6443", "other, example.com"),
            ("https://api.example.com:6443", ".example.com"),
            ("https://api.example.com:6443", "*.example.com"),
            ("https://api.example.com:6443", "api.example.com:6443"),
            ("https://API.example.com", "api.EXAMPLE.com"),
            ("https://10.1.2.3:6443", "10.0.0.0/8"),
            ("https://10.1.2.3:6443", "10.1.2.3"),
            ("https://[fd00::1]:6443", "fd00::/8"),
            ("https://[fd00::1]:6443", "fd00::1"),
            ("https://api", "*"),
            ("https://localhost:6443", ""),
            ("https://127.0.0.1:6443", ""),
            ("http://api:8001", ""),
        ] {
            assert!(!is_used(server, exempt), "{server} {exempt}");
        }
        for (server, exempt) in [
            ("https://api.example.com:6443", ""),
            ("https://api.example.com:6443", "ample.com,api.example.com:443"),
            ("https://example.com", ".example.com"),
            ("https://11.1.2.3:6443", "10.0.0.0/8,fd00::/8"),
        ] {
            assert!(is_used(server, exempt), "{server} {exempt}");
        }
        assert_eq!(without_user("http://me:s3cret@proxy:3128/s3cret"), "http://proxy:3128");
        assert!(!without_user("me:s3cret@@proxy").contains("s3cret"));
    }
}
