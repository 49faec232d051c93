//! TLS of the service, with certificates that can be replaced while it runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use latchwork::{Error, ErrorKind};
use latchwork_store::clock::wall_time;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{self, CertificateError, RootCertStore, ServerConfig};

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

/// Warns of files that can be used, and should not be: of a certificate that clients refuse, and of a key that others
/// know.
fn warn(files: &TlsFiles, chain: &[CertificateDer<'_>]) {
    if let Some(why) = chain.iter().find_map(out_of_time) {
        let file = files.certificate.display();
        tracing::warn!(%file, "tls-cert: clients refuse the certificate: {why}; replace the file and send SIGHUP");
    }
    // The group may be one that is for this: 0640 is usual where several services share a key.
    if fs::metadata(&files.key).is_ok_and(|found| found.mode() & 0o027 != 0) {
        let file = files.key.display();
        tracing::warn!(%file, "tls-key: other users may read the key, or its group may write it; run chmod 600 {file}");
    }
}

/// Why a certificate is not valid now, if that is because of the time.
fn out_of_time(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    // The time is checked before the authorities, of which there are none.
    let (nobody, now) = (RootCertStore::empty(), UnixTime::since_unix_epoch(wall_time()));
    let checked = verify_server_cert_signed_by_trust_anchor(&parsed, &nobody, &[], now, &[]);
    let shown = |at: UnixTime| {
        let at = i64::try_from(at.as_secs()).ok().and_then(|at| Timestamp::from_second(at).ok());
        at.map_or_else(|| "a time beyond all calendars".to_owned(), |at| at.to_string())
    };
    match checked.err()? {
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after, ..
        }) => Some(format!("it has expired at {}", shown(not_after))),
        rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before,
            ..
        }) => Some(format!("it is not valid yet, but from {} on", shown(not_before))),
        _ => None,
    }
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
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain.clone(), key));
    let mut config = config.map_err(|error| bad("tls-cert", &files.certificate, &error))?;
    warn(files, &chain);
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
