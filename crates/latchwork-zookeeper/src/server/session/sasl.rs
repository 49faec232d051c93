//! Authentication by SASL's mechanism DIGEST-MD5 (RFC 2831), as servers with a JAAS file require
//! it.
//!
//! The server sends a challenge; the answer is a hash of it and the password, and the server proves
//! in turn that it knows the password. The mechanism is old and its hash is weak: TLS keeps it from
//! being overheard.

use latchwork_store::ClaimId;
use latchwork_wire::address::Login;
use md5::{Digest, Md5};
use tokio::io::AsyncWriteExt;

use super::messages;
use super::transport::{Header, Trouble, Wire, malformed, read_frame};
use crate::config::Endpoint;
use crate::server::errors::denied;

/// What every server of ZooKeeper calls itself in this mechanism, whatever its host is.
const SERVICE: &str = "zookeeper/zk-sasl-md5";

/// What helps where a server does not even send a challenge: FIPS mode is on unless it is switched off.
const FIPS_STEP: &str = "start the servers with -Dzookeeper.fips-mode=false: from 3.9.6 on they refuse DIGEST-MD5 \
                         without it; or leave out auth=sasl";

/// Proves who we are on a connection that has a session.
pub(super) async fn prove(
    wire: &mut Box<dyn Wire>,
    server: &Endpoint,
    login: &Login,
) -> Result<(), Trouble> {
    let denied = |what: &str| denied(format!("{server} {what}"));
    let refused = |what: &str| Trouble::Refused(denied(what));
    let fips = || denied("refuses SASL's DIGEST-MD5").with_next_step(FIPS_STEP);
    let challenge = ask(wire, b"").await?.ok_or_else(|| Trouble::Refused(fips()))?;
    let challenge = Challenge::read(&challenge)
        .ok_or_else(|| refused("does not know users by SASL's DIGEST-MD5"))?;
    // Used once, and hard to guess: so are ids.
    let answer = Answer::new(login, &challenge, &ClaimId::random().to_string(), SERVICE);
    let proof = ask(wire, answer.text.as_bytes()).await?;
    let proof = proof.ok_or_else(|| refused("does not take user and password by SASL"))?;
    let proof = String::from_utf8_lossy(&proof);
    match directives(&proof).any(|(name, value)| name == "rspauth" && value == answer.expected) {
        true => Ok(()),
        false => Err(refused("does not know the password that it asked for")),
    }
}

/// Sends a token, and returns the one that the server answers; `None` if it refuses the login.
async fn ask(wire: &mut Box<dyn Wire>, token: &[u8]) -> Result<Option<Vec<u8>>, Trouble> {
    wire.write_all(&messages::sasl(token)).await?;
    wire.flush().await?;
    let answer = read_frame(wire).await?;
    let (header, body) = Header::read(&answer).ok_or_else(malformed)?;
    if header.refusal.is_some() {
        return Ok(None);
    }
    Ok(Some(messages::sasl_token(body).ok_or_else(malformed)?))
}

/// What the server wants to be answered.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    realm: String,
    nonce: String,
}

impl Challenge {
    fn read(token: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(token).ok()?;
        let find = |wanted: &str| directives(text).find(|(name, _)| name == wanted);
        let is_known = find("algorithm").is_none_or(|(_, value)| value == "md5-sess")
            && find("qop").is_none_or(|(_, value)| value.split(',').any(|one| one == "auth"));
        let realm = find("realm").map(|(_, value)| value).unwrap_or_default();
        is_known.then_some(Self { realm, nonce: find("nonce")?.1 })
    }
}

/// `name=value`, with commas between; values may be quoted.
fn directives(text: &str) -> impl Iterator<Item = (String, String)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches([',', ' ', '\n']);
        let (name, value) = rest.split_once('=')?;
        let mut read = String::new();
        let mut quoted = false;
        let mut end = value.len();
        let mut chars = value.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => quoted = !quoted,
                '\\' if quoted => read.extend(chars.next().map(|(_, c)| c)),
                ',' if !quoted => {
                    end = at;
                    break;
                }
                c => read.push(c),
            }
        }
        rest = &value[end..];
        Some((name.trim().to_owned(), read))
    })
}

/// What is answered to a challenge, and what the server has to answer to that.
struct Answer {
    text: String,
    expected: String,
}

impl Answer {
    fn new(login: &Login, challenge: &Challenge, own_nonce: &str, service: &str) -> Self {
        let Challenge { realm, nonce } = challenge;
        let parts = [&*login.user, &**realm, &*login.password].map(hashed_as).join(&b':');
        let mut secret = Md5::digest(parts).to_vec();
        secret.extend(format!(":{nonce}:{own_nonce}").as_bytes());
        let secret = hex(&secret);
        const COUNT: &str = "00000001";
        let hash = |what: &str| {
            let what = hex(format!("{what}:{service}").as_bytes());
            hex(format!("{secret}:{nonce}:{COUNT}:{own_nonce}:auth:{what}").as_bytes())
        };
        let (user, realm, nonce) = (quote(&login.user), quote(realm), quote(nonce));
        let text = format!(
            "charset=utf-8,username={user},realm={realm},nonce={nonce},nc={COUNT},\
             cnonce=\"{own_nonce}\",digest-uri=\"{service}\",maxbuf=65536,response={},qop=auth",
            hash("AUTHENTICATE")
        );
        Self { text, expected: hash("") }
    }
}

/// A text as it goes into the hash: in Latin-1 where that has all its characters.
fn hashed_as(text: &str) -> Vec<u8> {
    let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
    latin.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The hash of these bytes, in hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exchange of RFC 2831, section 4.
    #[test]
    fn a_challenge_is_answered_as_the_standard_has_it() {
        let sent = r#"realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",
                      algorithm=md5-sess,charset=utf-8"#;
        let challenge = Challenge::read(sent.as_bytes()).unwrap();
        let login = Login { user: "chris".into(), password: "secret".into() };
        let service = "imap/elwood.innosoft.com";
        let answer = Answer::new(&login, &challenge, "OA6MHXh6VqTrRk", service);
        let said =
            |wanted: &str| directives(&answer.text).find(|(name, _)| name == wanted).unwrap().1;
        assert_eq!(said("response"), "d388dad90d4bbd760a152321f2143af7");
        assert_eq!(answer.expected, "ea40f60335c427b5527b84dbabcdfffd");
        assert_eq!((said("username"), said("digest-uri")), ("chris".into(), service.into()));
        assert!(!answer.text.contains("secret"));
    }

    /// An impostor of the server does not know the password.
    #[test]
    fn a_server_without_scram_proof_is_refused() {
        let login = Login { user: "app".into(), password: "secret".into() };
        let server = Endpoint { host: "h".into(), port: 1 };
        for proof in ["rspauth=ea40f60335c427b5527b84dbabcdfffd", ""] {
            let (mine, mut theirs) = tokio::io::duplex(4_096);
            let mut mine: Box<dyn Wire> = Box::new(mine);
            let speaks = async {
                for token in [r#"nonce="n",algorithm=md5-sess"#, proof] {
                    read_frame(&mut theirs).await.unwrap();
                    let mut answer = vec![0; 16];
                    answer.extend((token.len() as i32).to_be_bytes());
                    answer.extend(token.as_bytes());
                    theirs.write_all(&(answer.len() as i32).to_be_bytes()).await.unwrap();
                    theirs.write_all(&answer).await.unwrap();
                }
            };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let both = async { tokio::join!(prove(&mut mine, &server, &login), speaks).0 };
            assert!(matches!(runtime.block_on(both), Err(Trouble::Refused(_))), "{proof}");
        }
    }

    #[test]
    fn hostile_challenges() {
        let whole = br#"realm="zk, \"md5\"",nonce="a=b,c",qop="auth-int,auth",algorithm=md5-sess"#;
        let login = Login { user: "app".into(), password: "secret".into() };
        latchwork_services::hostile::survives("Challenge", &[whole, b"nonce=n"], |bytes| {
            if let Some(challenge) = Challenge::read(bytes) {
                let _ = Answer::new(&login, &challenge, "own", SERVICE);
            }
            let _ = directives(&String::from_utf8_lossy(bytes)).count();
        });
    }

    #[test]
    fn challenges_are_read() {
        let read = |text: &str| Challenge::read(text.as_bytes());
        let whole = r#"realm="zk, \"md5\"",nonce="a=b,c",charset=utf-8,algorithm=md5-sess"#;
        let challenge = read(whole).unwrap();
        assert_eq!((&*challenge.realm, &*challenge.nonce), (r#"zk, "md5""#, "a=b,c"));
        assert_eq!(read(r#"nonce="n",qop="auth-int,auth""#).unwrap().realm, "");
        for unknown in ["", "realm=x", "nonce=n,algorithm=other", r#"nonce=n,qop="auth-conf""#] {
            assert_eq!(read(unknown), None, "{unknown}");
        }
        assert_eq!(quote(r#"a"b\c"#), r#""a\"b\\c""#);
        assert_eq!(hashed_as("\u{df}"), [0xdf]);
        assert_eq!(hashed_as("\u{20ac}"), "\u{20ac}".as_bytes());
    }
}
