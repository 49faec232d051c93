//! TLS of the service, with certificates that can be replaced while it runs.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use latchwork::{Error, ErrorKind};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::settings::TlsFiles;

/// The certificate in use.
pub(super) struct Tls {
    files: TlsFiles,
    acceptor: RwLock<TlsAcceptor>,
}

fn bad(option: &str, path: &Path, why: &dyn std::fmt::Display) -> Error {
    let message = format!("{option}: cannot use {}: {why}", path.display());
    Error::new(ErrorKind::Invalid, message)
        .with_next_step("name a file in the PEM format that the service may read")
}

fn read(files: &TlsFiles) -> Result<TlsAcceptor, Error> {
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad("tls-cert", &files.certificate, &error))?;
    if chain.is_empty() {
        return Err(bad("tls-cert", &files.certificate, &"there is no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| bad("tls-key", &files.key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| bad("tls-cert", &files.certificate, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// `Invalid`, which names the option and the file.
    pub(super) fn read(files: &TlsFiles) -> Result<Self, Error> {
        Ok(Self { files: files.clone(), acceptor: RwLock::new(read(files)?) })
    }

    /// Reads the same files again, for connections from now on; the old ones stay if they cannot be used.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub(super) fn reload(&self) -> Result<(), Error> {
        let new = read(&self.files)?;
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
