//! The files of TLS, read once when the store is connected to.

use std::path::Path;

use latchwork_store::{Error, ErrorKind};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::config::Tls;

/// What tonic needs to know.
pub(crate) fn config(tls: &Tls) -> Result<ClientTlsConfig, Error> {
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca {
        Some(ca) => config.ca_certificate(Certificate::from_pem(read("ca", ca)?)),
        None => config.with_native_roots(),
    };
    if let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) {
        config = config.identity(Identity::from_pem(read("cert", certificate)?, read("key", key)?));
    }
    Ok(match &tls.server_name {
        Some(name) => config.domain_name(name),
        None => config,
    })
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|e| {
        Error::new(ErrorKind::Invalid, format!("store: {option}={}: {e}", path.display()))
            .next_step("name a file in the PEM format that this process may read")
    })
}
