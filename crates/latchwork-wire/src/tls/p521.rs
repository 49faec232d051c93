//! Signatures of the curve P-521, which ring does not check.
//!
//! Authorities of companies and of devices that inspect TLS use it, often with SHA-256.

use sha2::{Digest, Sha256, Sha384, Sha512};

use p521::ecdsa::signature::hazmat::PrehashVerifier;
use p521::ecdsa::{Signature, VerifyingKey};
use tokio_rustls::rustls::SignatureScheme;
use tokio_rustls::rustls::crypto::WebPkiSupportedAlgorithms;
use tokio_rustls::rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id,
};

/// As long as the longest of the digests.
const LENGTH: usize = 64;

/// A digest that a key of the curve signs.
#[derive(Debug)]
enum P521 {
    Sha256,
    Sha384,
    Sha512,
}

static ALL: [&dyn SignatureVerificationAlgorithm; 3] =
    [&P521::Sha512, &P521::Sha384, &P521::Sha256];
/// What a server may sign a handshake with.
static OF_HANDSHAKES: [&dyn SignatureVerificationAlgorithm; 1] = [&P521::Sha512];

/// Adds the curve to what a provider checks, as its last choice. What is added stays for as long as the process.
pub(super) fn add_to(algorithms: &mut WebPkiSupportedAlgorithms) {
    let all = algorithms.all.iter().chain(&ALL).copied().collect::<Vec<_>>();
    algorithms.all = all.leak();
    let mapping = algorithms.mapping.iter().copied();
    let own = (SignatureScheme::ECDSA_NISTP521_SHA512, &OF_HANDSHAKES[..]);
    algorithms.mapping = mapping.chain([own]).collect::<Vec<_>>().leak();
}

impl P521 {
    /// The digest as a number of [`LENGTH`] bytes: a short one has zeros before it.
    fn digest(&self, message: &[u8]) -> [u8; LENGTH] {
        let mut number = [0; LENGTH];
        match self {
            Self::Sha256 => number[LENGTH - 32..].copy_from_slice(&Sha256::digest(message)),
            Self::Sha384 => number[LENGTH - 48..].copy_from_slice(&Sha384::digest(message)),
            Self::Sha512 => number.copy_from_slice(&Sha512::digest(message)),
        }
        number
    }
}

impl SignatureVerificationAlgorithm for P521 {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = Signature::from_der(signature).map_err(|_| InvalidSignature)?;
        key.verify_prehash(&self.digest(message), &signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        match self {
            Self::Sha256 => alg_id::ECDSA_SHA256,
            Self::Sha384 => alg_id::ECDSA_SHA384,
            Self::Sha512 => alg_id::ECDSA_SHA512,
        }
    }
}
