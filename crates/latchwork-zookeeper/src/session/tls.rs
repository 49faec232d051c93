//! TLS around a connection, with the certificates that the address names.

use std::path::Path;
use std::sync::Arc;

use latchwork_store::{BackendError, BackendErrorKind, Effect};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::transport::Trouble;
use crate::config::{Endpoint, Tls};

fn bad(message: String, step: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message).next_step(step)
}

/// Greets a server by TLS. The files are read each time, so that they can be exchanged.
pub(super) async fn wrap(
    stream: TcpStream,
    server: &Endpoint,
    tls: &Tls,
) -> Result<TlsStream<TcpStream>, Trouble> {
    let settings = settings(tls).map_err(Trouble::Refused)?;
    let name = ServerName::try_from(server.host.clone()).map_err(|_| {
        Trouble::Refused(bad(
            format!("store: {:?} is no name that a certificate can have", server.host),
            "use the name that the server's certificate has",
        ))
    })?;
    Ok(TlsConnector::from(Arc::new(settings)).connect(name, stream).await?)
}

fn settings(tls: &Tls) -> Result<ClientConfig, BackendError> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            for certificate in certificates("ca", path)? {
                let added = roots.add(certificate);
                added.map_err(|e| unreadable("ca", path, &e))?;
            }
        }
        None => {
            let (added, _) =
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                let message = "store: this system trusts no certificate authority".to_owned();
                return Err(bad(message, "name one: ca=/path"));
            }
        }
    }
    let failed =
        |e: tokio_rustls::rustls::Error| bad(format!("store: TLS: {e}"), "look at cert and key");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_root_certificates(roots);
    match &tls.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let chain = certificates("cert", certificate)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable("key", key, &e))?;
            builder.with_client_auth_cert(chain, key).map_err(failed)
        }
    }
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, BackendError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let read: Vec<_> = read.map_err(|e| unreadable(option, path, &e))?;
    match read.is_empty() {
        true => Err(unreadable(option, path, &"there is no certificate in it")),
        false => Ok(read),
    }
}

fn unreadable(option: &str, path: &Path, why: &dyn std::fmt::Display) -> BackendError {
    let message = format!("store: {option}: cannot use {}: {why}", path.display());
    bad(message, "name a file in the PEM format that this process may read")
}
