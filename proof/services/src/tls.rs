//! Certificates for one server, made by `openssl` for one test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::process::said;

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

    /// As [`make`](Self::make), with an authority whose key is of another kind, as `openssl req` calls it: `ed448`,
    /// or a curve for `ec`.
    ///
    /// # Errors
    ///
    /// If `openssl` cannot be run or fails.
    pub fn by(folder: &Path, kind: &str) -> Result<Self> {
        make_by(folder, &key_of(kind))
    }

    /// Writes other certificates and keys into these files, as a rotation does.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn replace_with(&self, others: &Self) -> Result<()> {
        for (from, to) in [
            (&others.ca_cert, &self.ca_cert),
            (&others.server_cert, &self.server_cert),
            (&others.server_key, &self.server_key),
            (&others.client_cert, &self.client_cert),
            (&others.client_key, &self.client_key),
        ] {
            std::fs::write(to, std::fs::read(from)?)?;
        }
        Ok(())
    }

    /// Makes one more certificate with its key, signed by the authority: the arguments of `openssl req -new` after
    /// `openssl ca`'s dates. Without any it is as good as the server's.
    ///
    /// # Errors
    ///
    /// If `openssl` cannot be run or fails.
    pub fn another(&self, name: &str, request: &[&str], dates: [&str; 2]) -> Result<[PathBuf; 2]> {
        let folder = self.ca_cert.parent().expect("it is in a folder");
        let file = |end: &str| folder.join(format!("{name}{end}")).display().to_string();
        let (config, key, csr, certificate) =
            (file(".conf"), file(".key"), file(".csr"), file(".pem"));
        let text = format!(
            "[ca]\ndefault_ca=d\n[d]\ndatabase={0}\nnew_certs_dir={1}\ndefault_md=sha256\nserial={0}.serial\npolicy=p\n\
             copy_extensions=copyall\nunique_subject=no\n[p]\ncommonName=optional\n\
             [req]\ndistinguished_name=n\n[n]\n",
            file(".index"),
            folder.display()
        );
        std::fs::write(&config, text)?;
        std::fs::write(file(".index"), "")?;
        std::fs::write(file(".index.serial"), "1000")?;
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
        let has_key = request.contains(&"-newkey");
        let new = ["req", "-new", "-noenc", "-config", &config, "-subj", "/CN=localhost"];
        let files = ["-keyout", &key, "-out", &csr];
        let curve = if has_key { &[][..] } else { &curve };
        openssl(&[&new[..], curve, &files, request].concat())?;
        let (ca, ca_key) =
            (self.ca_cert.display().to_string(), self.ca_key().display().to_string());
        let [start, end] = dates;
        openssl(&[
            "ca",
            "-batch",
            "-notext",
            "-config",
            &config,
            "-cert",
            &ca,
            "-keyfile",
            &ca_key,
            "-startdate",
            start,
            "-enddate",
            end,
            "-in",
            &csr,
            "-out",
            &certificate,
        ])?;
        Ok([certificate.into(), key.into()])
    }

    /// Makes a certificate that is its own authority (`CA:TRUE`), as `etcd --auto-tls` and `openssl req -x509` do; and
    /// its key, of a kind as in [`by`](Self::by).
    ///
    /// # Errors
    ///
    /// If `openssl` cannot be run or fails.
    pub fn own_authority(folder: &Path, kind: &str, names: &str) -> Result<[PathBuf; 2]> {
        let file = |name: &str| folder.join(name).display().to_string();
        let (certificate, key) = (file("own.pem"), file("own.key"));
        let names = format!("subjectAltName={names}");
        let new = [&["req", "-x509", "-noenc", "-days", "2"][..], &key_of(kind)].concat();
        let who = ["-subj", "/CN=itself", "-addext", &names, "-keyout", &key, "-out", &certificate];
        openssl(&[&new[..], &who].concat())?;
        Ok([certificate.into(), key.into()])
    }

    /// Makes a certificate of X.509 version 1, signed by the authority, and its key.
    ///
    /// # Errors
    ///
    /// If `openssl` cannot be run or fails.
    pub fn version_1(&self) -> Result<[PathBuf; 2]> {
        let folder = self.ca_cert.parent().expect("it is in a folder");
        let file = |name: &str| folder.join(name).display().to_string();
        let (certificate, key, csr) = (file("v1.pem"), file("v1.key"), file("v1.csr"));
        let new = [&["req", "-new", "-noenc"][..], &key_of("P-256")].concat();
        openssl(&[&new[..], &["-subj", "/CN=localhost", "-keyout", &key, "-out", &csr]].concat())?;
        let (ca, ca_key) =
            (self.ca_cert.display().to_string(), self.ca_key().display().to_string());
        openssl(&[
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            &csr,
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-out",
            &certificate,
        ])?;
        Ok([certificate.into(), key.into()])
    }

    fn ca_key(&self) -> PathBuf {
        self.ca_cert.with_extension("key")
    }
}

fn key_of(kind: &str) -> Vec<&str> {
    match kind {
        "ed448" => vec!["-newkey", "ed448"],
        "P-521" => vec!["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-521"],
        _ => vec!["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"],
    }
}

pub(crate) fn make(folder: &Path) -> Result<Certificates> {
    make_by(folder, &key_of("P-256"))
}

fn make_by(folder: &Path, ca_key_of: &[&str]) -> Result<Certificates> {
    let file = |name: &str| folder.join(name).display().to_string();
    let (ca_cert, ca_key) = (file("ca.pem"), file("ca.key"));
    let (server_cert, server_key) = (file("server.pem"), file("server.key"));
    let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"];
    let ca = ["-days", "2", "-subj", "/CN=latchwork test authority", "-keyout", &ca_key];
    let new_ca = [&["req", "-x509", "-noenc"][..], ca_key_of].concat();
    openssl(&[&new_ca[..], &ca, &["-out", &ca_cert]].concat())?;
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
    said("openssl (package openssl)", Command::new("openssl").args(args)).map(drop)
}
