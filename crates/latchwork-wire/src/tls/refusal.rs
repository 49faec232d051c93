//! What a TLS handshake is refused for, in words, and what helps.
//!
//! One table for all stores: rustls says what it has found, and this says what that means at the server or in the
//! address. `docs/tls.md` lists the same.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

/// What the addresses of a store call the parts of TLS.
#[derive(Debug, Clone, Copy)]
pub struct OptionNames {
    /// The option for an authority: `ca=/path`.
    pub authority: &'static str,
    /// The options for the client's certificate and its key.
    pub client: &'static str,
    /// What an address without TLS has: `redis://`.
    pub plain: &'static str,
    /// What an address with TLS has: `rediss://`.
    pub secure: &'static str,
}

/// Why there is no TLS between a client and a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The fault.
    pub said: String,
    /// The next step.
    pub step: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl StdError for Refusal {}

/// The rows of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    Authority,
    Expired,
    NotYetValid,
    Nameless,
    OtherName,
    Version1,
    UnknownIssuer,
    OtherSigner,
    Algorithm,
    Purpose,
    Revoked,
    Unreadable,
    ClientCertificate,
    Versions,
    NothingInCommon,
    Plain,
    Protocol,
}

impl Row {
    /// The fault and the next step, with the names of [`OptionNames`] in braces.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Authority => (
                "the server's certificate is that of an authority (CA:TRUE)",
                "name this very certificate: {authority}, or give the server one with basicConstraints=CA:FALSE",
            ),
            Self::Expired => (
                "the server's certificate has expired",
                "renew it at the server; if it is valid, set the clock of this machine",
            ),
            Self::NotYetValid => (
                "the server's certificate is not valid yet",
                "set the clock of this machine; if it is right, use the certificate before until then",
            ),
            Self::Nameless => (
                "the server's certificate has no subjectAltName",
                "make one with subjectAltName=DNS:host or IP:number; a name in its subject (CN) is not read",
            ),
            Self::OtherName => (
                "the server's certificate is for other names",
                "write a name of the certificate in the address, or make a certificate for this name",
            ),
            Self::Version1 => (
                "the server's certificate is of X.509 version 1 or 2",
                "make one of version 3, with a subjectAltName (openssl req -x509 -addext subjectAltName=DNS:host)",
            ),
            Self::UnknownIssuer => (
                "no authority that is trusted here has signed the server's certificate",
                "name the authority: {authority}; if it signs through another one, let the server send the whole chain",
            ),
            Self::OtherSigner => (
                "the server's certificate was not signed by the key of the authority with that name",
                "name the authority that has signed it: {authority}; it may have been replaced",
            ),
            Self::Algorithm => (
                "the server's certificate has a key or a signature of a kind that is not supported",
                "make one with a key of ECDSA (P-256, P-384, P-521), Ed25519 or RSA of at least 2048 bits, signed with SHA-2",
            ),
            Self::Purpose => (
                "the server's certificate is not for servers",
                "make one with extendedKeyUsage=serverAuth",
            ),
            Self::Revoked => ("the server's certificate was revoked", "give the server a new one"),
            Self::Unreadable => (
                "the server's certificate is not well-formed",
                "see it with openssl s_client -showcerts, and make a new one",
            ),
            Self::ClientCertificate => (
                "the server wants a certificate of the client that it trusts",
                "name one that is in date and signed by an authority of the server: {client}",
            ),
            Self::Versions => {
                ("the server has no TLS 1.2 or 1.3", "allow TLS 1.2 or 1.3 at the server")
            }
            Self::NothingInCommon => (
                "the server shares no cipher suite and no kind of signature with this client",
                "allow the usual suites of TLS 1.2 or 1.3 at the server (AES-GCM or ChaCha20 with ECDHE)",
            ),
            Self::Plain => (
                "the server does not speak TLS at this port",
                "use {plain} in place of {secure}, or the port at which the server speaks TLS",
            ),
            Self::Protocol => (
                "the server speaks TLS, and not the protocol of this store",
                "check that the address is that of the store, and which proxies are in front of it",
            ),
        }
    }

    fn of(error: &Error) -> Option<Self> {
        Some(match error {
            Error::InvalidCertificate(error) => Self::of_certificate(error)?,
            Error::InvalidMessage(_) => Self::Plain,
            Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::AccessDenied => Self::ClientCertificate,
                AlertDescription::ProtocolVersion => Self::Versions,
                AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
                    Self::NothingInCommon
                }
                AlertDescription::UnrecognisedName => Self::OtherName,
                AlertDescription::NoApplicationProtocol => Self::Protocol,
                _ => return None,
            },
            Error::PeerIncompatible(why) => match why {
                PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig => Self::Versions,
                _ => Self::NothingInCommon,
            },
            Error::NoCertificatesPresented => Self::NothingInCommon,
            Error::NoApplicationProtocol => Self::Protocol,
            _ => return None,
        })
    }

    #[expect(deprecated, reason = "rustls may still say it")]
    fn of_certificate(error: &CertificateError) -> Option<Self> {
        Some(match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                Self::Nameless
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::OtherName
            }
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            CertificateError::BadSignature => Self::OtherSigner,
            CertificateError::UnsupportedSignatureAlgorithm
            | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
                Self::Algorithm
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::Purpose
            }
            CertificateError::Revoked => Self::Revoked,
            CertificateError::BadEncoding => Self::Unreadable,
            // The words of webpki.
            CertificateError::Other(why) => match &*why.to_string() {
                CA_AS_SERVER => Self::Authority,
                "UnsupportedCertVersion" => Self::Version1,
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// What webpki says of an authority's certificate in the place of a server's.
pub(super) const CA_AS_SERVER: &str = "CaUsedAsEndEntity";

/// Returns what an error says of TLS, if it or one of its causes is about that.
pub fn refusal(error: &(dyn StdError + 'static), words: &OptionNames) -> Option<Refusal> {
    let said = by_rustls(error)?;
    let row = Row::of(said)?;
    let names = match said {
        Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected,
            presented,
        }) => names(expected, presented),
        _ => String::new(),
    };
    // What rustls calls it, for those who look it up.
    let called = match said {
        Error::InvalidCertificate(CertificateError::Other(why)) => format!(" ({why})"),
        Error::AlertReceived(alert) => format!(" (alert {alert:?})"),
        _ => String::new(),
    };
    Some(told(row, &format!("{names}{called}"), words))
}

fn told(row: Row, more: &str, words: &OptionNames) -> Refusal {
    let (said, step) = row.words();
    let step = step.replace("{authority}", words.authority).replace("{client}", words.client);
    let mut step = step.replace("{plain}", words.plain).replace("{secure}", words.secure);
    if !cfg!(feature = "p521") && matches!(row, Row::Algorithm | Row::NothingInCommon) {
        step += "; a key on P-521 needs a build with the feature `p521`";
    }
    Refusal { said: format!("{said}{more}"), step }
}

fn names(expected: &ServerName<'_>, presented: &[String]) -> String {
    let expected = expected.to_str();
    match presented {
        [] => format!(", so it is not for {expected}"),
        presented => {
            // As webpki writes them: `DnsName("h")`.
            let bare = |name: &String| {
                let inside = name.split_once('(').map_or(&**name, |(_, inside)| inside);
                inside.trim_matches(['"', '(', ')']).to_owned()
            };
            let presented = presented.iter().map(bare).collect::<Vec<_>>();
            format!(": {}, and not {expected}", presented.join(", "))
        }
    }
}

/// The error of rustls among an error and its causes.
fn by_rustls<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<Error>() {
            return Some(found);
        }
        // What these have inside is not among their sources.
        let inside: Option<&(dyn StdError + 'static)> =
            if let Some(error) = error.downcast_ref::<io::Error>() {
                error.get_ref().map(|inside| inside as _)
            } else {
                let shared = error.downcast_ref::<Arc<dyn StdError + Send + Sync>>();
                shared.map(|shared| &**shared as _)
            };
        if let Some(found) = inside.and_then(by_rustls) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Describes a server that does not speak TLS, for a client that does.
pub fn speaks_plain(words: &OptionNames) -> Refusal {
    told(Row::Plain, "", words)
}

/// Describes a server that speaks TLS, for a client that does not.
pub fn speaks_tls(words: &OptionNames) -> Refusal {
    Refusal {
        said: "the server speaks TLS at this port".into(),
        step: format!(
            "use {} in place of {}; {} names its authority",
            words.secure, words.plain, words.authority
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: OptionNames = OptionNames {
        authority: "ca=/path",
        client: "cert=/path and key=/path",
        plain: "redis://",
        secure: "rediss://",
    };

    #[test]
    fn a_cause_is_found_at_any_depth() {
        let refused = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let io = io::Error::new(io::ErrorKind::InvalidData, refused.clone());
        let shared: Arc<dyn StdError + Send + Sync> = Arc::new(io);
        let outer = io::Error::other(shared);
        for error in [&refused as &(dyn StdError + 'static), &outer] {
            let refusal = refusal(error, &WORDS).unwrap();
            assert!(refusal.said.starts_with("no authority that is trusted"), "{refusal}");
            assert!(refusal.step.starts_with("name the authority: ca=/path;"), "{refusal:?}");
        }
        assert_eq!(refusal(&io::Error::from(io::ErrorKind::TimedOut), &WORDS), None);
        assert!(speaks_tls(&WORDS).step.starts_with("use rediss:// in place of redis://"));
    }

    #[test]
    fn every_step_names_what_the_address_calls_it() {
        for error in [
            Error::AlertReceived(AlertDescription::CertificateRequired),
            Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13),
            Error::NoApplicationProtocol,
            Error::InvalidMessage(tokio_rustls::rustls::InvalidMessage::InvalidContentType),
            Error::InvalidCertificate(CertificateError::Revoked),
            Error::InvalidCertificate(CertificateError::BadEncoding),
            Error::AlertReceived(AlertDescription::HandshakeFailure),
        ] {
            let refusal = refusal(&error, &WORDS).unwrap();
            assert!(!refusal.step.is_empty() && !refusal.step.contains('{'), "{refusal:?}");
        }
    }
}
