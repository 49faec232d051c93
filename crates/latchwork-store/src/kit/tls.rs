//! TLS settings by the files that an address names.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use tokio_rustls::TlsConnector;
pub use tokio_rustls::client::TlsStream;

use crate::error::{BackendError, BackendErrorKind, Effect};

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
        let provider = Arc::new(ring::default_provider());
        let failed = |e: Error| bad(format!("store: TLS: {e}"), "check the files of cert and key");
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        let builder = if self.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustsAll(provider)))
        } else {
            builder.with_root_certificates(self.roots()?)
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

    fn roots(&self) -> Result<RootCertStore, BackendError> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.ca {
            for certificate in certificates("ca", path)? {
                let added = roots.add(certificate);
                added.map_err(|e| unreadable("ca", path, &e))?;
            }
            return Ok(roots);
        }
        let native = rustls_native_certs::load_native_certs().certs;
        let (added, _) = roots.add_parsable_certificates(native);
        if added == 0 {
            let message = "store: this system trusts no certificate authority".to_owned();
            return Err(bad(message, "name one: ca=/path"));
        }
        Ok(roots)
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

/// Trusts any certificate whose owner has its key.
#[derive(Debug)]
struct TrustsAll(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustsAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn bad(message: String, step: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message).next_step(step)
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
