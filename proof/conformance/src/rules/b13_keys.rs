//! B13: distinct keys never collide (case, separators, length).

use latchwork_store::{BackendErrorKind, Claim, Key, Mode, Query};

use crate::case::{Case, case};
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(hostile_keys_are_distinct), case!(long_keys_are_distinct), case!(prefixes_are_text)]
}

/// Names that stores are known to fold, cut, unescape or walk.
const HOSTILE: &[&str] = &[
    ".", "..", "...", "../x", "../../x", "x", "X", "/x", "x/", "x//", "x/.", "x/..", "./x", "/",
    "//", "\\", "x\\", "a/b", "a//b", "a:b", "a::b", "a b", "a  b", " a b", "a b ", "a\tb", "a\nb",
    "a\r\nb", "a\0b", "\0", "a", "A", "a.", "a. ", "a ", " a", "%2F", "%2f", "%252F", "%00", "%",
    "{a}", "{a}b", "{}", "a{b}", "}", "}a", "a:", "{-}}a-", "*", "?", "[a]", "~", "$HOME", "`x`", "'", "\"", "-rf", "con",
    "NUL", "x.lock", "x:lw:queue", "x:lw:token", "x~1", "lock", "session", "wake", "\u{feff}a",
    "\u{202e}a", "stra\u{df}e", "strasse", "STRASSE", "\u{e9}", "e\u{301}", "\u{130}", "i\u{307}",
    "\u{131}", "\u{1f512}", "\u{10ffff}", "\u{fffd}", "\u{3a9}", "\u{2126}", "0", "00", "0x0",
    "null", "undefined", "_", "__", "a_b", "a-b", "a+b", "a%20b", "a%2Fb", "a%2fb",
];

/// Names that differ in any way, also in case or spaces only, are different keys.
async fn hostile_keys_are_distinct(stage: Stage) {
    distinct(&stage, HOSTILE.iter().map(|name| name.to_string()).collect()).await;
}

/// Long names that differ in one place, and the longest that a key may be.
async fn long_keys_are_distinct(stage: Stage) {
    let mut names = Vec::new();
    for length in [200, 255, 256, 257, 1_024, 4_096, 10_000] {
        let stem = "k".repeat(length - 1);
        names.extend(["a", "b", "A"].map(|end| format!("{stem}{end}")));
        names.push(stem);
        names.push(format!("{}{}", "/".repeat(length / 2), "\u{e9}".repeat(length / 4)));
        names.push(format!("{}a", "../".repeat(length / 3)));
    }
    names.push("z".repeat(Key::MAX_LEN));
    names.push("z".repeat(Key::MAX_LEN - 1));
    names.sort();
    names.dedup();
    distinct(&stage, names).await;
}

async fn distinct(stage: &Stage, names: Vec<String>) {
    let (a, b) = (stage.client().await, stage.client().await);
    let claim = |name: &String| stage.claim(Mode::Exclusive).with(|it| it.key = Key::new(name).expect("a good key"));
    let (reserved, names): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| stage.is_reserved(name));
    for claim in reserved.iter().map(claim) {
        let error = a.attempt(&claim).await.expect_err("the name is reserved");
        assert_eq!(error.kind, BackendErrorKind::Invalid, "{error:?}");
        assert!(error.message.contains(&format!("{:?}", claim.key.as_str())), "{error:?}");
    }
    let claims: Vec<Claim> = names.iter().map(claim).collect();
    for claim in &claims {
        stage.granted(&a, claim, "no other key is in its way").await;
    }
    for claim in &claims {
        let shown = b.show(&claim.key).await;
        let holders: Vec<_> = shown.holders.iter().map(|h| &h.holder).collect();
        assert_eq!(holders, [&claim.holder], "{:.80}", claim.key.as_str().escape_debug());
    }
    let mut sorted: Vec<Key> = claims.iter().map(|c| c.key.clone()).collect();
    sorted.sort();
    let all = Query::Prefix("".into());
    let listed = b.backend.inspect(&all).await.expect("an inspection without fault");
    let listed: Vec<Key> = listed.into_iter().map(|s| s.key).collect();
    assert_eq!(listed.len(), sorted.len(), "each key is listed once");
    assert!(listed == sorted, "listed by their own names, in order");
    for (n, claim) in claims.iter().enumerate() {
        a.released(claim, "it was held").await;
        if let Some(next) = claims.get(n + 1) {
            a.held(next, "the release of another key does not touch it").await;
        }
    }
    let listed = b.backend.inspect(&all).await.expect("an inspection without fault");
    assert!(listed.is_empty(), "all were released: {} left", listed.len());
}

/// A prefix is text, not a path or a pattern.
async fn prefixes_are_text(stage: Stage) {
    let a = stage.client().await;
    let names = ["job/1", "job/10", "job/2", "job", "Job/1", "jobs", "job*", "job%", "jo"];
    for name in names {
        let key = Key::new(name).expect("a good key");
        stage.granted(&a, &stage.claim(Mode::Exclusive).with(|it| it.key = key), "it is free").await;
    }
    for prefix in ["job", "job/", "job/1", "job*", "job%", "j", "J", "nothing", "job/1\0"] {
        let mut expected: Vec<&str> =
            names.iter().copied().filter(|n| n.starts_with(prefix)).collect();
        expected.sort_unstable();
        let query = Query::Prefix(prefix.into());
        let listed = a.backend.inspect(&query).await.expect("an inspection without fault");
        let listed: Vec<&str> = listed.iter().map(|s| s.key.as_str()).collect();
        assert_eq!(listed, expected, "prefix {prefix:?}");
    }
}
