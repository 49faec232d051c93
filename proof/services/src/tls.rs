//! Certificates for one server, made by `openssl` for one test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result};

/// Files in the PEM format.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The authority that a client has to trust.
    pub ca_cert: PathBuf,
    /// The server's certificate, for 127.0.0.1 and localhost.
    pub server_cert: PathBuf,
    /// The server's key.
    pub server_key: PathBuf,
    /// A client's certificate, from the same authority.
    pub client_cert: PathBuf,
    /// The client's key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes an authority and certificates of it in a folder: for a client that trusts somebody
    /// else than the server's.
    ///
    /// # Errors
    ///
    /// If `openssl` cannot be run or fails.
    pub fn make(folder: &Path) -> Result<Self> {
        make(folder)
    }
}

pub(crate) fn make(folder: &Path) -> Result<Certificates> {
    let file = |name: &str| folder.join(name).display().to_string();
    let (ca_cert, ca_key) = (file("ca.pem"), file("ca.key"));
    let (server_cert, server_key) = (file("server.pem"), file("server.key"));
    let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"];
    let ca = ["-days", "2", "-subj", "/CN=latchwork test authority", "-keyout", &ca_key];
    openssl(&[&new[..], &ca, &["-out", &ca_cert]].concat())?;
    let server = ["-days", "2", "-subj", "/CN=localhost", "-keyout", &server_key];
    let signed = ["-out", &server_cert, "-CA", &ca_cert, "-CAkey", &ca_key];
    let names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"];
    let purpose = ["-addext", "basicConstraints=critical,CA:FALSE"];
    openssl(&[&new[..], &server, &signed, &names, &purpose].concat())?;
    let (client_cert, client_key) = (file("client.pem"), file("client.key"));
    let client = ["-days", "2", "-subj", "/CN=client", "-keyout", &client_key];
    let signed = ["-out", &client_cert, "-CA", &ca_cert, "-CAkey", &ca_key];
    openssl(&[&new[..], &client, &signed, &purpose].concat())?;
    Ok(Certificates {
        ca_cert: ca_cert.into(),
        server_cert: server_cert.into(),
        server_key: server_key.into(),
        client_cert: client_cert.into(),
        client_key: client_key.into(),
    })
}

pub(crate) fn openssl(args: &[&str]) -> Result<()> {
    let output = Command::new("openssl")
        .args(args)
        .output()
        .map_err(|e| Error::while_("openssl (package openssl)", e))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::while_("openssl", String::from_utf8_lossy(&output.stderr))),
    }
}
