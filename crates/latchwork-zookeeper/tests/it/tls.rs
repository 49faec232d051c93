//! TLS, with the authority that the address names.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use latchwork::Driver;
use latchwork_store::ErrorKind;
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

#[test]
fn a_lock_works_over_tls_and_failures_are_explained() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new().tls()).unwrap();
    let certificates = server.certificates().unwrap().clone();
    run(async {
        let at = |host: &str, options: &str| {
            format!("zks://{host}:{}/app{options}", server.secure_port())
        };
        let ca = format!("?ca={}", certificates.ca_cert.display());
        for host in ["127.0.0.1", "localhost"] {
            let locks = client(&at(host, &ca)).await;
            let guard = locks.mutex("k").acquire().await.unwrap();
            let other = client(&server.url()).await;
            assert!(show(&other, "app").await.holders.is_empty());
            guard.release().await.unwrap();
        }
        let driver = Driver::start().unwrap();
        let refused = async |url: String| {
            let config = ZooKeeperConfig::parse(&url).unwrap();
            ZooKeeperBackend::connect(config, driver.io()).await.expect_err("no connection")
        };
        let stranger = refused(at("127.0.0.1", &format!("?ca={}", "/etc/hostname"))).await;
        assert_eq!(stranger.kind(), ErrorKind::Invalid, "{stranger}");
        assert!(stranger.to_string().contains("ca: cannot use /etc/hostname"), "{stranger}");
        let missing = refused(at("127.0.0.1", "?ca=/no/such/file")).await;
        assert_eq!(missing.kind(), ErrorKind::Invalid, "{missing}");
        // A server that speaks no TLS at that port.
        let plain = format!("zks://127.0.0.1:{}/app{ca}", server.port());
        let error = refused(plain).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("does not speak TLS at this port"), "{error}");
        assert!(error.next_step().unwrap().starts_with("use zk://"), "{error}");
        let error = refused(format!("zk://127.0.0.1:{}/app", server.secure_port())).await;
        assert!(error.to_string().contains("the server speaks TLS at this port"), "{error}");
        assert!(error.next_step().unwrap().starts_with("use zks://"), "{error}");
        let error = refused(at("127.0.0.1", "")).await;
        assert!(error.to_string().contains("no authority that is trusted here"), "{error}");
        assert!(error.next_step().unwrap().contains("ca=/path"), "{error}");
    });
}
