//! TLS settings by the files that an address names.

#[cfg(feature = "p521")]
mod p521;
mod refusal;
mod verifier;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect, Io};
use tokio::sync::oneshot;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

use tokio_rustls::TlsConnector;
pub use tokio_rustls::client::TlsStream;

pub use self::refusal::{OptionNames, Refusal, refusal, speaks_plain, speaks_tls};
use self::verifier::{Trusts, TrustsAll};
use crate::address::Endpoint;

/// How long a server may take to show whether it speaks TLS.
const LOOK: Duration = Duration::from_millis(500);

/// The TLS settings for a store's servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authority to trust instead of those that the system trusts, in the PEM format.
    pub ca: Option<PathBuf>,
    /// The client's certificate, in the PEM format.
    pub certificate: Option<PathBuf>,
    /// Its key, in the PEM format.
    pub key: Option<PathBuf>,
    /// Trust any certificate.
    pub insecure: bool,
}

impl Tls {
    /// Creates the handshake for a server of this name. The files are read each time, so that they
    /// can be replaced.
    ///
    /// # Errors
    ///
    /// `Invalid`, which names the option and the file that cannot be used.
    pub fn greeting(&self, host: &str) -> Result<Greeting, BackendError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            let message = format!("store: {host:?} is no name that a certificate can have");
            bad(message, "use the name that the server's certificate has")
        })?;
        Ok(Greeting { settings: self.settings()?, name })
    }

    fn settings(&self) -> Result<ClientConfig, BackendError> {
        let provider = provider();
        let failed = |e: Error| bad(format!("store: TLS: {e}"), "check the files of cert and key");
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        let builder = if self.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustsAll(provider)))
        } else {
            let (roots, named) = self.roots()?;
            let trusts = Trusts::new(roots, named, provider).map_err(|error| {
                bad(format!("store: TLS: {error}"), "name an authority: ca=/path")
            })?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(trusts))
        };
        match (&self.certificate, &self.key) {
            (None, None) => Ok(builder.with_no_client_auth()),
            (Some(certificate), Some(key)) => {
                let chain = certificates("cert", certificate)?;
                let key =
                    PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable("key", key, &e))?;
                builder.with_client_auth_cert(chain, key).map_err(failed)
            }
            _ => Err(bad("store: cert and key are needed together".into(), "give both or none")),
        }
    }

    /// The authorities, and those of them that the address names.
    fn roots(&self) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), BackendError> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.ca {
            let named = certificates("ca", path)?;
            for certificate in &named {
                let added = roots.add(certificate.clone());
                added.map_err(|e| unreadable("ca", path, &e))?;
            }
            return Ok((roots, named));
        }
        let native = rustls_native_certs::load_native_certs().certs;
        let (added, _) = roots.add_parsable_certificates(native);
        if added == 0 {
            let message = "store: this system trusts no certificate authority".to_owned();
            return Err(bad(message, "name one: ca=/path"));
        }
        Ok((roots, Vec::new()))
    }
}

/// Ring, and with the feature `p521` the one curve of certificates that it lacks.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        #[cfg_attr(not(feature = "p521"), expect(unused_mut, reason = "the curve is added to it"))]
        let mut provider = ring::default_provider();
        #[cfg(feature = "p521")]
        p521::add_to(&mut provider.signature_verification_algorithms);
        Arc::new(provider)
    };
    PROVIDER.get_or_init(make).clone()
}

/// Returns whether a server speaks TLS at this port: for a server that has closed a connection without TLS, and
/// without a word.
pub async fn is_tls(server: &Endpoint, io: &Io) -> bool {
    let (told, known) = oneshot::channel();
    let (server, clock) = (server.clone(), io.clone());
    io.spawn(async move {
        // The caller may have gone.
        let _ = told.send(shakes_hands(&server, &clock).await);
    });
    known.await.unwrap_or(false)
}

async fn shakes_hands(server: &Endpoint, io: &Io) -> bool {
    let tls = Tls { insecure: true, ..Tls::default() };
    let Ok(greeting) = tls.greeting(&server.host) else { return false };
    let asked = async {
        let stream = crate::dial(server, io).await?;
        stream.set_nonblocking(true)?;
        greeting.greet(tokio::net::TcpStream::from_std(stream)?).await
    };
    match io.within(LOOK, asked).await {
        Some(Ok(_)) => true,
        // It may want a certificate, or another version: all but what is no message of TLS.
        Some(Err(error)) => match error.get_ref().and_then(|it| it.downcast_ref::<Error>()) {
            Some(error) => !matches!(error, Error::InvalidMessage(_)),
            None => false,
        },
        None => false,
    }
}

/// A TLS handshake with one server.
pub struct Greeting {
    settings: ClientConfig,
    name: ServerName<'static>,
}

impl Greeting {
    /// Sets the protocol after the handshake, by its ALPN name.
    #[must_use]
    pub fn speaking(mut self, protocol: &[u8]) -> Self {
        self.settings.alpn_protocols = vec![protocol.to_vec()];
        self
    }

    /// Performs the handshake on a connected stream.
    ///
    /// # Errors
    ///
    /// Those of the stream, and `InvalidData` for what the two sides do not agree on.
    pub async fn greet<S>(self, stream: S) -> std::io::Result<TlsStream<S>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        TlsConnector::from(Arc::new(self.settings)).connect(self.name, stream).await
    }
}

impl fmt::Debug for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Greeting").field("name", &self.name).finish_non_exhaustive()
    }
}

fn bad(message: String, step: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message).with_next_step(step)
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, BackendError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let read: Vec<_> = read.map_err(|e| unreadable(option, path, &e))?;
    match read.is_empty() {
        true => Err(unreadable(option, path, &"there is no certificate in it")),
        false => Ok(read),
    }
}

fn unreadable(option: &str, path: &Path, why: &dyn fmt::Display) -> BackendError {
    let message = format!("store: {option}: cannot use {}: {why}", path.display());
    bad(message, "name a file in the PEM format that this process may read")
}
