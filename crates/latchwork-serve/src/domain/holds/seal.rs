//! Seals tickets: only an instance with the same key can read one, and nobody can make or change one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use latchwork::{Error, ErrorKind};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};

use super::ticket::Ticket;

/// What a seal is for. It is part of what is authenticated, so the id of a session opens no hold, and the other way
/// round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Hold,
    Session,
}

impl Purpose {
    fn word(self) -> &'static str {
        match self {
            Self::Hold => "latchwork serve hold 1",
            Self::Session => "latchwork serve session 1",
        }
    }
}

/// The most keys in a file: one that seals, and the one before it.
const MOST_KEYS: usize = 2;

/// A key, and another one that is made of it.
struct Key {
    seals: LessSafeKey,
    /// A nonce is a keyed hash of all that is sealed under it: the same ticket has the same text, and no two have the same
    /// nonce.
    nonces: hmac::Key,
}

/// The keys by which ids are sealed.
pub(crate) struct Seals {
    path: Option<PathBuf>,
    /// The first one seals; all of them open.
    keys: RwLock<Vec<Key>>,
    namespace: Box<str>,
}

impl Seals {
    /// Reads the keys of a file; without one, draws a key that ends with this process.
    ///
    /// # Errors
    ///
    /// `Invalid` for a file that cannot be used. No message shows a key.
    pub(crate) fn new(path: Option<&Path>, namespace: &str) -> Result<Self, Error> {
        let keys = match path {
            Some(path) => read(path)?,
            None => {
                let mut bytes = [0; 32];
                SystemRandom::new().fill(&mut bytes).map_err(|_| no_random())?;
                vec![key(&bytes).ok_or_else(no_random)?]
            }
        };
        let (path, namespace) = (path.map(Path::to_owned), namespace.into());
        Ok(Self { path, keys: RwLock::new(keys), namespace })
    }

    /// What is authenticated with a ticket: its purpose, and the namespace of its keys.
    fn context(&self, purpose: Purpose) -> String {
        format!("{}\0{}", purpose.word(), self.namespace)
    }

    /// Whether other instances may have the same keys.
    pub(crate) fn are_shared(&self) -> bool {
        self.path.is_some()
    }

    /// Reads the file of keys again; the old ones stay if it cannot be used. Returns the number of keys, if there is a
    /// file.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub(crate) fn reload(&self) -> Result<Option<usize>, Error> {
        let Some(path) = &self.path else { return Ok(None) };
        let keys = read(path)?;
        let count = keys.len();
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(Some(count))
    }

    /// Seals a ticket, as text for a path: the same text each time. `None` if the machine cannot.
    pub(crate) fn seal(&self, purpose: Purpose, ticket: &Ticket) -> Option<String> {
        self.seal_bytes(purpose, ticket.write())
    }

    fn seal_bytes(&self, purpose: Purpose, mut sealed: Vec<u8>) -> Option<String> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let (key, context) = (keys.first()?, self.context(purpose));
        let mut hash = hmac::Context::with_key(&key.nonces);
        hash.update(&(context.len() as u64).to_be_bytes());
        hash.update(context.as_bytes());
        hash.update(&sealed);
        let nonce_bytes: [u8; NONCE_LEN] = *hash.sign().as_ref().first_chunk()?;
        let nonce = Nonce::assume_unique_for_key(nonce_bytes);
        key.seals.seal_in_place_append_tag(nonce, Aad::from(context), &mut sealed).ok()?;
        drop(keys);
        sealed.splice(..0, nonce_bytes);
        Some(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Opens a sealed ticket. `None` whatever is wrong with it.
    pub(crate) fn open(&self, purpose: Purpose, text: &str) -> Option<Ticket> {
        Ticket::read(&self.unseal(purpose, text)?)
    }

    /// Whether an instance of a newer version with one of the same keys has sealed this.
    pub(crate) fn is_newer(&self, purpose: Purpose, text: &str) -> bool {
        self.unseal(purpose, text).is_some_and(|bytes| Ticket::is_newer(&bytes))
    }

    fn unseal(&self, purpose: Purpose, text: &str) -> Option<Vec<u8>> {
        let sealed = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().find_map(|key| {
            let (nonce, mut sealed) = (Nonce::assume_unique_for_key(*nonce), sealed.to_vec());
            let context = Aad::from(self.context(purpose));
            let opened = key.seals.open_in_place(nonce, context, &mut sealed).ok()?;
            Some(opened.to_vec())
        })
    }
}

fn no_random() -> Error {
    Error::new(ErrorKind::Unsupported, "seal key: the machine gives no random bytes")
        .with_next_step("give --seal-key-file FILE")
}

fn key(bytes: &[u8]) -> Option<Key> {
    let made = hmac::sign(&hmac::Key::new(HMAC_SHA256, bytes), b"latchwork serve nonces 1");
    let seals = UnboundKey::new(&AES_256_GCM, bytes).ok().map(LessSafeKey::new)?;
    Some(Key { seals, nonces: hmac::Key::new(HMAC_SHA256, made.as_ref()) })
}

const FORM: &str = "write one key a line, the newest first, each made with: openssl rand -hex 32";

fn bad(path: &Path, message: &str, step: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("seal key file: {}: {message}", path.display()))
        .with_next_step(step)
}

fn read(path: &Path) -> Result<Vec<Key>, Error> {
    let unread =
        |error: io::Error| bad(path, &error.to_string(), "name a file that the service may read");
    let text = fs::read_to_string(path).map_err(unread)?;
    if fs::metadata(path).map_err(unread)?.mode() & 0o077 != 0 {
        let step = format!("run chmod 600 {}", path.display());
        return Err(bad(path, "other users may read the key", &step));
    }
    let mut keys = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim().is_empty() {
            continue;
        }
        let bytes = bytes(text.trim()).and_then(|bytes| key(&bytes));
        let wrong = || format!("line {line}: no 32 bytes as hexadecimal digits or base64");
        keys.push(bytes.ok_or_else(|| bad(path, &wrong(), FORM))?);
    }
    if !(1..=MOST_KEYS).contains(&keys.len()) {
        let message = format!("{} keys, 1 or {MOST_KEYS} are needed", keys.len());
        return Err(bad(path, &message, FORM));
    }
    Ok(keys)
}

/// The bytes of a key that is written as hexadecimal digits or base64.
fn bytes(text: &str) -> Option<Vec<u8>> {
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).ok();
        return (0..64).step_by(2).map(byte).collect();
    }
    let forms = [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD];
    forms.iter().find_map(|form| form.decode(text).ok()).filter(|bytes| bytes.len() == 32)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use latchwork::{FencingToken, Unwatched};
    use latchwork_store::{ClaimId, Holder, Mode};

    use super::*;

    const ONE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const TWO: &str = "//79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";

    struct File(tempfile::TempDir);

    impl File {
        fn new(text: &str, mode: u32) -> Self {
            let file = Self(tempfile::tempdir().unwrap());
            file.write(text, mode);
            file
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("key")
        }

        fn write(&self, text: &str, mode: u32) {
            fs::write(self.path(), text).unwrap();
            fs::set_permissions(self.path(), fs::Permissions::from_mode(mode)).unwrap();
        }

        fn seals(&self, namespace: &str) -> Seals {
            Seals::new(Some(&self.path()), namespace).unwrap()
        }
    }

    fn ticket() -> Ticket {
        let (key, token) = (latchwork_store::Key::new("stock").unwrap(), FencingToken::from_raw(7));
        let (id, ttl) = (ClaimId::random(), Duration::from_secs(15));
        let lock = Unwatched::new(key, id, Mode::Exclusive, token, ttl, Holder::new("me"));
        Ticket {
            owner: "web".into(),
            locks: vec![lock],
            ttl,
            since: Duration::from_secs(1),
            max_end: None,
            period: None,
        }
    }

    #[test]
    fn a_ticket_that_was_changed_is_none() {
        let seals = File::new(ONE, 0o600).seals("");
        let (ticket, other) = (ticket(), ticket());
        let text = seals.seal(Purpose::Hold, &ticket).unwrap();
        assert_eq!(seals.open(Purpose::Hold, &text), Some(ticket.clone()));
        assert_eq!(seals.seal(Purpose::Hold, &ticket).unwrap(), text);
        // Nothing else has its nonce: not the same ticket for another purpose, in another namespace or by another key.
        let sealed = [seals.seal(Purpose::Session, &ticket), seals.seal(Purpose::Hold, &other)];
        let elsewhere = [(ONE, "shop"), (TWO, "")].map(|(key, namespace)| {
            File::new(key, 0o600).seals(namespace).seal(Purpose::Hold, &ticket)
        });
        for sealed in sealed.into_iter().chain(elsewhere) {
            assert_ne!(sealed.unwrap()[..NONCE_LEN / 3 * 4], text[..NONCE_LEN / 3 * 4]);
        }
        let sealed = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for at in 0..sealed.len() {
            assert_eq!(seals.open(Purpose::Hold, &URL_SAFE_NO_PAD.encode(&sealed[..at])), None);
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(
                    seals.open(Purpose::Hold, &URL_SAFE_NO_PAD.encode(changed)),
                    None,
                    "{at} {bit}"
                );
            }
        }
        // One half of each.
        let other = URL_SAFE_NO_PAD.decode(seals.seal(Purpose::Hold, &other).unwrap()).unwrap();
        let half = sealed.len() / 2;
        let mixed = [&sealed[..half], &other[half..]].concat();
        assert_eq!(seals.open(Purpose::Hold, &URL_SAFE_NO_PAD.encode(mixed)), None);
        for bad in ["", "x", &format!("{text}="), &format!("{text}A"), &format!(" {text}")] {
            assert_eq!(seals.open(Purpose::Hold, bad), None, "{bad}");
        }
    }

    #[test]
    fn a_ticket_of_another_key_or_namespace_is_none() {
        let (one, two) = (File::new(ONE, 0o600), File::new(TWO, 0o400));
        let text = one.seals("shop").seal(Purpose::Hold, &ticket()).unwrap();
        assert!(one.seals("shop").open(Purpose::Hold, &text).is_some());
        assert!(one.seals("shop").open(Purpose::Session, &text).is_none(), "another purpose");
        assert!(one.seals("shop2").open(Purpose::Hold, &text).is_none());
        assert!(two.seals("shop").open(Purpose::Hold, &text).is_none());
        assert!(Seals::new(None, "shop").unwrap().open(Purpose::Hold, &text).is_none());
    }

    #[test]
    fn a_ticket_of_a_newer_version_is_told_from_nonsense() {
        let seals = File::new(ONE, 0o600).seals("shop");
        let newer =
            seals.seal_bytes(Purpose::Hold, [&[0, 2][..], &ticket().write()].concat()).unwrap();
        assert!(
            seals.open(Purpose::Hold, &newer).is_none() && seals.is_newer(Purpose::Hold, &newer)
        );
        let known = seals.seal(Purpose::Hold, &ticket()).unwrap();
        for text in [&*known, "", "x", &newer[1..]] {
            assert!(!seals.is_newer(Purpose::Hold, text), "{text}");
        }
        assert!(!File::new(TWO, 0o600).seals("shop").is_newer(Purpose::Hold, &newer));
        assert!(!File::new(ONE, 0o600).seals("").is_newer(Purpose::Hold, &newer));
    }

    #[test]
    fn an_old_key_opens_and_a_new_one_seals() {
        let file = File::new(ONE, 0o600);
        let seals = file.seals("");
        let old = seals.seal(Purpose::Hold, &ticket()).unwrap();
        file.write(&format!("{TWO}\n\n{ONE}\n"), 0o600);
        assert_eq!(seals.reload().unwrap(), Some(2));
        let new = seals.seal(Purpose::Hold, &ticket()).unwrap();
        assert!(
            seals.open(Purpose::Hold, &old).is_some() && seals.open(Purpose::Hold, &new).is_some()
        );
        file.write("nonsense", 0o600);
        assert!(seals.reload().is_err());
        assert!(
            seals.open(Purpose::Hold, &old).is_some(),
            "a file that cannot be used changes nothing"
        );
        file.write(TWO, 0o600);
        seals.reload().unwrap();
        assert!(
            seals.open(Purpose::Hold, &old).is_none() && seals.open(Purpose::Hold, &new).is_some()
        );
    }

    #[test]
    fn a_bad_key_file_is_refused_and_shows_no_key() {
        let three = format!("{ONE}\n{TWO}\n{ONE}");
        for (text, mode, part) in [
            (ONE, 0o644, "other users may read"),
            (ONE, 0o620, "other users may read"),
            ("", 0o600, "0 keys"),
            (&*three, 0o600, "3 keys"),
            (&ONE[2..], 0o600, "line 1: no 32 bytes"),
            ("correct horse battery staple", 0o600, "line 1: no 32 bytes"),
        ] {
            let error = Seals::new(Some(&File::new(text, mode).path()), "").err().unwrap();
            let error = error.to_string();
            assert!(error.contains(part) && !error.contains("0405"), "{error}");
        }
        assert!(Seals::new(Some(Path::new("/nonexistent/key")), "").is_err());
    }
}
