//! Addresses as they are written, and as they are miswritten.

use super::*;

fn at(host: &str, port: u16) -> Endpoint {
    Endpoint { host: host.into(), port }
}

#[test]
fn reads_every_deployment() {
    let single = RedisConfig::parse("redis://app:p%40ss@h:7/3").unwrap();
    assert_eq!(single.deployment, Deployment::Single(at("h", 7)));
    let login = single.credentials.current().0;
    assert_eq!((login.user(), login.password.as_deref()), ("app", Some("p@ss")));
    assert_eq!((single.database, single.tls), (3, None));
    let sentinel =
        RedisConfig::parse("rediss+sentinel://:pw@a,b:1,[::1]/main/2?sentinel_password=x").unwrap();
    let sentinels = vec![at("a", 26_379), at("b", 1), at("::1", 26_379)];
    assert_eq!(sentinel.deployment, Deployment::Sentinel { sentinels, service: "main".into() });
    assert_eq!(sentinel.shown(), "rediss+sentinel://a:26379,b:1,[::1]:26379/main/2");
    assert!(sentinel.tls.is_some());
    let cluster = RedisConfig::parse("redis+cluster://a,b?guard=true&max_ttl=90s&min_replicas=1");
    let cluster = cluster.unwrap();
    assert_eq!(cluster.deployment, Deployment::Cluster(vec![at("a", 6_379), at("b", 6_379)]));
    assert_eq!(cluster.max_ttl, Some(Duration::from_secs(90)));
    assert!(cluster.guard && cluster.min_replicas == 1);
}

#[test]
fn h282_a_path_in_place_of_a_host_is_a_socket() {
    let config = RedisConfig::parse("redis+unix://app:p%40ss@/run/my%40redis.sock?db=2").unwrap();
    assert_eq!(config.deployment, Deployment::Single(Endpoint::socket("/run/my@redis.sock")));
    assert_eq!(config.credentials.current().0.password.as_deref(), Some("p@ss"));
    assert_eq!((config.database, config.shown()), (2, "redis+unix:///...?db=2".into()));
    let valkey = RedisConfig::parse("valkey+unix:///run/v.sock?guard=true").unwrap();
    assert_eq!(valkey.shown(), "valkey+unix:///run/v.sock");
    for (url, step) in [
        ("redis+unix://", "redis+unix:///path/of/the/socket"),
        ("redis+unix:///", "redis+unix:///path/of/the/socket"),
        ("redis+unix:///:pw@/run/r.sock", "redis+unix://user:password@/path"),
        ("redis+unix://:pw/run/r.sock", "redis+unix://user:password@/path"),
        ("redis+unix://run/redis.sock", "redis+unix:///path/of/the/socket"),
        ("rediss+unix:///run/r.sock", "redis+unix:///path/of/the/socket"),
        ("redis:///run/r.sock", "redis+unix:///path/of/the/socket"),
        ("redis+unix:///r?db=x", "redis+unix"),
        ("redis+unix:///r?password=x", "before the path of a socket"),
        ("redis://h?db=2", "redis://host/2"),
    ] {
        let error = RedisConfig::parse(url).unwrap_err();
        assert!(error.next_step().unwrap().contains(step), "{url}: {error}");
    }
}

/// H280: a slip is answered with the right form.
#[test]
fn h280_a_slip_in_an_address_is_named() {
    for (url, step) in [
        ("redis://app:pw/x@h", "%2F"),
        ("redis://:pw/x@h", "%2F"),
        ("redis://:pw?x@h", "%3F"),
        ("redis+cluster://::1:6390", "[::1]:6379"),
        ("redis://::1", "[::1]:6379"),
        ("redis://h?ca=/x", "use the scheme with rediss, or leave the option out"),
        ("redis+cluster://h1/0,h2/0", "once, after the last server"),
        ("redis+sentinel://h1/main,h2/main", "once, after the last server"),
    ] {
        let error = RedisConfig::parse(url).unwrap_err();
        assert!(error.next_step().unwrap().contains(step), "{url}: {error}");
        assert!(!error.to_string().contains("pw"), "{error}");
    }
}

#[test]
fn valkey_means_what_redis_means_and_is_shown_as_written() {
    for (start, same) in [("valkey", "redis"), ("valkeys", "rediss")] {
        for rest in [
            "://app:p%40ss@h:7/3?min_replicas=1",
            "+sentinel://:pw@a,b:1,[::1]/main/2?sentinel_password=x",
            "+cluster://a,b?guard=true&max_ttl=90s&namespaces=a,b",
        ] {
            let valkey = RedisConfig::parse(&format!("{start}{rest}")).unwrap();
            let redis = RedisConfig::parse(&format!("{same}{rest}")).unwrap();
            assert_eq!(valkey.shown(), redis.shown().replacen(same, start, 1));
            assert_eq!(RedisConfig { word: Brand::Redis, ..valkey }, redis);
        }
    }
}

#[test]
fn a_bad_address_is_named_without_its_password() {
    for (url, part) in [
        ("redis:/x", "address"),
        ("http://h", "scheme"),
        ("valkeyss://h", "scheme"),
        ("valkey+://h", "scheme"),
        ("valkey+single://h", "scheme"),
        ("valkeys://a,b", "valkeys:// takes one host"),
        ("valkey://h?ca=/x", "TLS"),
        ("redis://", "host"),
        ("redis://a,b", "one host"),
        ("redis://h:0", "port"),
        ("redis://h:x", "port"),
        ("redis://h/x", "database"),
        ("redis://user@h", "user"),
        ("redis+sentinel://h", "service"),
        ("redis+cluster://h/1", "database"),
        ("redis://h?color=red", "an option is unknown"),
        ("redis://h?ca=/x", "TLS"),
        ("redis://h?min_replicas=x", "min_replicas"),
        ("redis://h?max_ttl=5s", "guard"),
        ("redis://h?guard=maybe", "guard"),
        ("redis://h?deposed=5s", "guard"),
        ("redis://h?guard=true&deposed=x", "deposed"),
        ("redis://h?guard=true&namespaces=a,,b", "namespaces"),
        ("redis://h?plain=maybe", "plain"),
        ("redis://[::1", "bracket"),
    ] {
        let error = RedisConfig::parse(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(part), "{url}: {error}");
        let hint = error.next_step().unwrap();
        assert!(!hint.contains("redis") || !url.starts_with("valkey"), "{url}: {hint}");
    }
    let config = RedisConfig::parse("redis://u:secret@h").unwrap();
    assert!(!format!("{config:?}{}", config.shown()).contains("secret"));
}

#[test]
fn hostile_addresses_are_read_without_harm() {
    let samples: [&[u8]; 4] = [
        b"rediss+sentinel://:pw@a,b:1,[::1]/main/2?sentinel_password=x&ca=/a",
        b"redis+cluster://a,b?guard=true&max_ttl=90s&min_replicas=1&namespaces=a,b",
        b"redis://user:p%40ss@h:7/3?deposed=18446744073709551615h&plain",
        b"redis://h/99999999999999999999?max_ttl=9999999999999999999s",
    ];
    latchwork_services::hostile::survives("addresses", &samples, |bytes| {
        let _ = RedisConfig::parse(&String::from_utf8_lossy(bytes));
    });
}
