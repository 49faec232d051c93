//! Values that begin like a lock and are none: written by hand, by a mistake, or by a newer version.

use latchwork_store::doctor::Severity;
use latchwork_store::*;

use crate::common::*;

const TTL: Duration = Duration::from_secs(10);
const ID: &str = "694d8a0b1c2d3e4f5a6b7c8d9e0f1a2b";

fn modes() -> [Mode; 4] {
    [Mode::Exclusive, Mode::Write, Mode::Read, Mode::Permits { take: 1, of: 5 }]
}

/// Whether this is the refusal of a value that is no lock, with the value in it.
#[track_caller]
fn refuses(error: &BackendError, value: &str, what: &str) {
    assert_eq!(error.kind, BackendErrorKind::Mismatch, "{value:?}, {what}: {error:?}");
    assert_eq!(error.effect, Effect::NotApplied, "{value:?}, {what}: {error:?}");
    let start: String = value.chars().take(20).collect();
    let start = format!("{start:?}");
    assert!(error.message.contains(start.trim_matches('"')), "{value:?}, {what}: {error:?}");
}

/// H232: each verb answers with a mismatch that names the value, and changes nothing.
#[test]
fn h232_a_value_that_is_no_lock_is_a_mismatch_to_every_verb() {
    run(async {
        let world = World::new();
        let url = world.server.url();
        let (whole, plain) = (connect(&url).await, connect(&format!("{url}?plain=true")).await);
        let manager = Client::new(&url, TTL).await;
        for value in [
            "lw:",
            "lw:x:+:zz",
            "lw:x:-:zz",
            "lw:w:.:zz",
            "lw:r:-:abc",
            "lw:r:-:",
            "lw:p:-:0",
            "lw:p:-:0:5:x",
            "lw:p:-:0:99999999999:1",
            "lw:q:-:0",
            "lw:2:x:-:zz",
            "lw:r:-:9999999999999999999999",
            &format!("lw:x:-:{ID}"),
            &format!("lw:x:+:{ID}:"),
            &format!("lw:x:+:{ID}:abc:1790000000007|host"),
            &format!("lw:x:+:{ID}:9007199254740992:1790000000007|host"),
            &format!("lw:w:-:{}:1790000000000001:h", &ID[1..]),
        ] {
            world.ask(&["SET", "k", value]);
            for mode in modes() {
                for waits in [false, true] {
                    let one = with_mode("k", TTL, mode).with(|it| it.waits = waits);
                    let error = whole.try_acquire(&one).await.unwrap_err();
                    refuses(&error, value, &format!("{mode:?}, {waits}"));
                    let renewed = renew(&whole, &one).await;
                    assert!(matches!(renewed, Ok(Renewal::Lost)), "{value:?}: {renewed:?}");
                    assert_eq!(release(&whole, &one).await, Released::NotHeld, "{value:?}");
                }
            }
            let one = passing("k", TTL);
            refuses(&plain.try_acquire(&one).await.unwrap_err(), value, "plain");
            let renewed = renew(&plain, &one).await;
            assert!(matches!(renewed, Ok(Renewal::Lost)), "{value:?}: {renewed:?}");
            assert_eq!(release(&plain, &one).await, Released::NotHeld, "{value:?}");
            let error: Error = manager.mutex("k").acquire_within(5 * SEC).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{value:?}: {error}");
            assert!(error.to_string().contains("\"k\""), "{value:?}: {error}");
            for seen in [
                manager.locks.inspect("k").await.unwrap(),
                manager.locks.list("").await.unwrap().pop().unwrap(),
            ] {
                let told = format!("{:?}", seen.holders[0].holder);
                assert!(told.contains("no lock") && told.contains("lw:"), "{value:?}: {told}");
            }
            let error = manager.locks.force_release("k").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{value:?}: {error}");
            assert!(error.to_string().contains("no lock"), "{value:?}: {error}");
            assert!(error.to_string().contains("delete the key"), "{value:?}: {error}");
            assert_eq!(world.text(&["GET", "k"]), value, "nobody has changed it");
            assert_eq!(world.keys(), ["k"], "{value:?}");
        }
    });
}

/// H232: whatever a value is, no verb fails with an error of a script or a parser.
#[test]
fn h232_no_value_of_a_key_breaks_a_script() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let plain = connect(&format!("{}?plain=true", world.server.url())).await;
        let samples = [
            format!("lw:x:+:{ID}:1790000000000001:1790000000007|host:pid 7"),
            format!("lw:w:-:{ID}:1790000000000001:1790000000007|host"),
            "lw:r:-:1790000000007".into(),
            "lw:p:-:77:5:2".into(),
            "lw:c:-:1790000000007|web-2".into(),
        ];
        let bytes = [
            "",
            ":",
            "::",
            "9",
            "99999999999999999999",
            "-",
            "e300",
            "z",
            "\0",
            "\u{e9}",
            "%d",
            "\n",
        ];
        let seed = latchwork_services::hostile::seed();
        let mut random = Random(seed | 1);
        for _ in 0..400 {
            let sample = &samples[random.below(samples.len())];
            let (from, to) = (random.below(sample.len() + 1), random.below(6));
            let to = (from + to).min(sample.len());
            let value = [&sample[..from], bytes[random.below(bytes.len())], &sample[to..]].concat();
            let ends: &[&str] = if random.below(2) == 0 { &["PX", "60000"] } else { &[] };
            let mode = modes()[random.below(4)];
            let told = format!("LATCHWORK_SEED={seed}: {value:?}, {ends:?}, {mode:?}");
            let fine = |kind: BackendErrorKind| kind == BackendErrorKind::Mismatch;
            for (backend, mode) in [(&backend, mode), (&plain, Mode::Exclusive)] {
                world.ask(&[&["SET", "k", &value][..], ends].concat());
                let one = with_mode("k", TTL, mode).with(|it| it.waits = random.below(2) == 0);
                let tried = backend.try_acquire(&one).await;
                assert!(tried.as_ref().err().is_none_or(|it| fine(it.kind)), "{told}: {tried:?}");
                let renewed = renew(backend, &one).await;
                assert!(
                    renewed.as_ref().err().is_none_or(|it| fine(it.kind)),
                    "{told}: {renewed:?}"
                );
                let seen = backend.inspect(&Query::Key(one.key.clone())).await;
                assert!(seen.is_ok(), "{told}: {seen:?}");
                let listed = backend.inspect(&Query::Prefix("".into())).await;
                assert!(listed.is_ok(), "{told}: {listed:?}");
                let ended = backend.release(&one, Linger::None).await;
                assert!(ended.is_ok(), "{told}: {ended:?}");
                // The holder that the value names, if it names one.
                let holder = one.with(|it| it.id = ClaimId::parse(ID).unwrap());
                let renewed = renew(backend, &holder).await;
                assert!(renewed.is_ok(), "{told}: {renewed:?}");
                let ended = backend.release(&holder, Linger::None).await;
                assert!(ended.is_ok(), "{told}: {ended:?}");
                world.ask(&["FLUSHALL"]);
            }
        }
    });
}

/// The doctor names a key that nobody can acquire.
#[test]
fn h232_the_doctor_names_a_value_that_is_no_lock() {
    run(async {
        let world = World::new();
        world.ask(&["SET", "k", "lw:x:+:zz"]);
        let config = latchwork_redis::RedisConfig::parse(&world.server.url()).unwrap();
        let report = latchwork_redis::doctor(config, io()).await.unwrap();
        let found = report.findings.iter().find(|one| one.code == "foreign-locks").unwrap();
        assert!(found.severity == Severity::Warning && found.found.contains('k'), "{found:?}");
    });
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}
