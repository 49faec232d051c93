//! What each certificate that cannot be trusted is refused for, and what is accepted.

use std::path::{Path, PathBuf};

use latchwork_services::{Certificates, Folder, RedisOptions, RedisServer};
use latchwork_store::{Error, ErrorKind};

use crate::common::bare::Bare;
use crate::common::{Client, SEC, pause, run};
use crate::tls_acl::round;

/// Both are valid.
const NOW: [&str; 2] = ["20200101000000Z", "20990101000000Z"];
const LEAF: [&str; 2] = ["-addext", "basicConstraints=CA:FALSE"];
const SAN: [&str; 2] = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"];

fn server() -> RedisServer {
    RedisServer::start(&RedisOptions::new().tls()).unwrap()
}

/// From now on the server shows this certificate.
fn show(server: &RedisServer, [certificate, key]: &[PathBuf; 2]) {
    let [certificate, key] = [certificate, key].map(|it| it.display().to_string());
    let set = ["CONFIG", "SET", "tls-cert-file", &certificate, "tls-key-file", &key];
    server.command(&set).unwrap().ok().unwrap();
}

fn url(server: &RedisServer, ca: &Path) -> String {
    format!("{}?ca={}", server.url(), ca.display())
}

async fn refused(url: &str) -> Error {
    let error = Bare::connect(url).await.err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    error
}

/// The table of docs/tls.md, row by row.
#[test]
fn h283_each_refusal_of_tls_has_its_own_next_step() {
    let server = server();
    let made = server.certificates().unwrap();
    let [folder, other_folder, odd_folder] = [(); 3].map(|()| Folder::new().unwrap());
    let other = Certificates::make(other_folder.path()).unwrap();
    let odd = Certificates::by(odd_folder.path(), "ed448").unwrap();
    let own = Certificates::own_authority(folder.path(), "P-256", "IP:127.0.0.1").unwrap();
    let purpose = [&SAN[..], &["-addext", "extendedKeyUsage=clientAuth"]].concat();
    let names = ["-addext", "subjectAltName=DNS:a.example,DNS:b.example"];
    let another = |name: &str, request: &[&str], dates| made.another(name, request, dates).unwrap();
    let rows = [
        (another("old", &SAN, ["20200101000000Z", "20200102000000Z"]), "has expired", "renew it"),
        (another("new", &SAN, ["20980101000000Z", NOW[1]]), "not valid yet", "set the clock"),
        (another("nameless", &LEAF, NOW), "no subjectAltName", "make one with subjectAltName"),
        (
            another("named", &names, NOW),
            "for other names: a.example, b.example, and not 127.0.0.1",
            "write a name of the certificate",
        ),
        (another("client", &purpose, NOW), "not for servers", "serverAuth"),
        (made.version_1().unwrap(), "version 1", "make one of version 3"),
        (own, "that of an authority (CA:TRUE)", "name this very certificate: ca=/path"),
        (
            other.another("signed", &SAN, NOW).unwrap(),
            "not signed by the key",
            "may have been replaced",
        ),
    ];
    run(async {
        let at = url(&server, &made.ca_cert);
        round(&at, true).await.unwrap();
        for (pair, what, step) in rows {
            show(&server, &pair);
            let error = refused(&at).await;
            assert!(error.to_string().contains(what), "{pair:?}: {error}");
            assert!(error.next_step().unwrap().contains(step), "{pair:?}: {error}");
        }
        show(&server, &odd.another("signed", &SAN, NOW).unwrap());
        let error = refused(&url(&server, &odd.ca_cert)).await;
        assert!(error.to_string().contains("of a kind that is not supported"), "{error}");
        assert!(error.next_step().unwrap().contains("P-521"), "{error}");
        show(&server, &[made.server_cert.clone(), made.server_key.clone()]);
        let error = refused(&server.url()).await;
        assert!(error.to_string().contains("no authority that is trusted here"), "{error}");
        assert!(error.next_step().unwrap().starts_with("name the authority: ca=/path"), "{error}");
    });
}

/// TLS on one side alone, and a client without the certificate that the server wants.
#[test]
fn h283_tls_on_one_side_is_named() {
    let secure = server();
    let plain = RedisServer::start(&RedisOptions::new()).unwrap();
    let strict = RedisOptions::new().tls().config("tls-auth-clients yes");
    let strict = RedisServer::start(&strict).unwrap();
    run(async {
        let error = refused(&secure.url().replacen("rediss", "redis", 1)).await;
        assert!(error.to_string().contains("the server speaks TLS at this port"), "{error}");
        assert!(error.next_step().unwrap().starts_with("use rediss://"), "{error}");
        let error = refused(&plain.url().replacen("redis", "rediss", 1)).await;
        assert!(error.to_string().contains("does not speak TLS"), "{error}");
        assert!(error.next_step().unwrap().starts_with("use redis://"), "{error}");
        let error = refused(&url(&strict, &strict.certificates().unwrap().ca_cert)).await;
        assert!(error.to_string().contains("wants a certificate of the client"), "{error}");
        assert!(error.next_step().unwrap().contains("cert=/path and key=/path"), "{error}");
    });
}

/// A certificate that is its own authority, and is the very one that the address names: as `etcd --auto-tls` makes it.
/// Its name and its dates are checked, and no other certificate is accepted by it.
#[test]
fn h285_the_certificate_that_is_named_is_trusted() {
    let server = server();
    let [folder, other] = [(); 2].map(|()| Folder::new().unwrap());
    let own =
        Certificates::own_authority(folder.path(), "P-256", "IP:127.0.0.1,DNS:localhost").unwrap();
    let stranger =
        Certificates::own_authority(other.path(), "P-256", "IP:127.0.0.1,DNS:localhost").unwrap();
    run(async {
        show(&server, &own);
        round(&url(&server, &own[0]), true).await.unwrap();
        let error = refused(&url(&server, &own[0]).replace("127.0.0.1", "ip6-localhost")).await;
        assert!(!error.to_string().contains("CA:TRUE"), "{error}");
        // The same name, and another key.
        let error = refused(&url(&server, &stranger[0])).await;
        assert!(error.to_string().contains("certificate"), "{error}");
        show(
            &server,
            &Certificates::own_authority(folder.path(), "P-256", "DNS:elsewhere").unwrap(),
        );
        let error = refused(&url(&server, &own[0])).await;
        assert!(error.next_step().unwrap().contains("write a name of the certificate"), "{error}");
    });
}

/// Keys and signatures of the curve that ring lacks, also with the digest that openssl takes for them.
#[test]
fn h285_certificates_of_p521_are_accepted() {
    let server = server();
    let folder = Folder::new().unwrap();
    let made = Certificates::by(folder.path(), "P-521").unwrap();
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-521"];
    run(async {
        show(&server, &[made.server_cert.clone(), made.server_key.clone()]);
        round(&url(&server, &made.ca_cert), true).await.unwrap();
        show(&server, &made.another("both", &[&SAN[..], &curve].concat(), NOW).unwrap());
        // With TLS 1.2 the curve would have to be one of key exchange as well.
        round(&url(&server, &made.ca_cert), true).await.unwrap();
    });
}

/// H286: all certificates and the authority are replaced, the client's key a moment after its certificate, and the
/// connections are cut meanwhile.
#[test]
fn h286_a_hold_survives_the_rotation_of_all_certificates() {
    let options = RedisOptions::new().tls().config("tls-auth-clients yes");
    let server = RedisServer::start(&options).unwrap();
    let made = server.certificates().unwrap();
    let folder = Folder::new().unwrap();
    let others = Certificates::make(folder.path()).unwrap();
    let (cert, key) = (made.client_cert.display(), made.client_key.display());
    let url = format!("{}&cert={cert}&key={key}", url(&server, &made.ca_cert));
    let cut = || server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    run(async {
        let holder = Client::alone(&url, 3 * SEC).await;
        let guard = holder.acquire("k").await;
        std::fs::copy(&others.client_cert, &made.client_cert).unwrap();
        cut();
        pause(SEC / 2).await;
        made.replace_with(&others).unwrap();
        show(&server, &[made.server_cert.clone(), made.server_key.clone()]);
        let ca = made.ca_cert.display().to_string();
        server.command(&["CONFIG", "SET", "tls-ca-cert-file", &ca]).unwrap().ok().unwrap();
        cut();
        pause(6 * SEC).await;
        guard.ensure_held().expect("it was renewed with the new files");
        guard.release().await.unwrap();
    });
}
