//! The counter, its ceiling on the disk, and who keeps whom out.

use std::path::PathBuf;
use std::time::Duration;

use latchwork_store::kit::record::Now;

use super::*;
use crate::disk::dir::entry_at;
use crate::records::boot::Lives;
use crate::records::session::Life;

const WALL: u64 = 1_800_000_000_000_000;

/// Boot 77 is a container's name for whatever boot it is.
struct OneContainer;

impl Lives for OneContainer {
    fn life(&self, _: u128) -> Life {
        Life::Dead
    }

    fn has_boot(&self, boot: u128) -> bool {
        boot == 77
    }
}

fn era(boot: u128) -> Era<'static> {
    let now = Now { lease: Duration::ZERO, wall: Duration::ZERO };
    Era { boot, lives: &OneContainer, now }
}

/// Gives tokens as a verb does; answers them, and how many ceilings had to be put on the disk.
fn grants_and_syncs(stripe: &Stripe, boot: u128, wall: u64, count: u64) -> (Vec<u64>, u32) {
    let lock = || match stripe.try_lock().unwrap() {
        Try::Locked(locked) => locked,
        other => panic!("{other:?}"),
    };
    let mut syncs = 0;
    let mut tokens = Vec::new();
    while (tokens.len() as u64) < count {
        let mut locked = lock();
        let token = locked.counter(era(boot), wall).unwrap() + 1;
        if locked.covers(token, era(boot), wall).unwrap() {
            locked.grant(token, false, era(boot), wall).unwrap();
            tokens.push(token);
        } else {
            let reserved = locked.reserve(token, era(boot), wall).unwrap();
            drop(locked);
            reserved.sync().unwrap();
            lock().raise_ceiling(&reserved, era(boot), wall).unwrap();
            syncs += 1;
        }
    }
    (tokens, syncs)
}

fn grants(stripe: &Stripe, boot: u128, wall: u64, count: u64) -> Vec<u64> {
    grants_and_syncs(stripe, boot, wall, count).0
}

fn stripe() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00");
    std::fs::write(&path, "").unwrap();
    (dir, path)
}

#[test]
fn a_token_counter_starts_at_the_clock() {
    let (_dir, path) = stripe();
    assert_eq!(grants(&Stripe::new(entry_at(&path)), 1, WALL, 2), [WALL + 1, WALL + 2]);
    // Another process of the same boot, and a clock that was set back.
    assert_eq!(grants(&Stripe::new(entry_at(&path)), 1, WALL / 2, 2), [WALL + 3, WALL + 4]);
}

#[test]
fn h82_another_boot_starts_above_the_ceiling_or_the_clock() {
    let (_dir, path) = stripe();
    grants(&Stripe::new(entry_at(&path)), 1, WALL, 3);
    let header = Header::newest(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(header.ceiling, WALL + 1 + RESERVE);
    // What the disk kept may be as old as the last sync.
    let back = grants(&Stripe::new(entry_at(&path)), 2, WALL / 2, 1)[0];
    assert!(back > header.ceiling);
    let ahead = grants(&Stripe::new(entry_at(&path)), 3, WALL * 2, 1)[0];
    assert_eq!(ahead, WALL * 2 + 1);
}

#[test]
fn h82_a_lost_header_starts_again_at_the_clock() {
    let (_dir, path) = stripe();
    let given = grants(&Stripe::new(entry_at(&path)), 1, WALL, 50);
    for damage in [Vec::new(), vec![0; 128], vec![b'x'; 128], vec![0; 17]] {
        std::fs::write(&path, damage).unwrap();
        let wall = WALL + 1_000;
        let token = grants(&Stripe::new(entry_at(&path)), 1, wall, 1)[0];
        assert!(token > given[49]);
    }
}

#[test]
fn a_torn_header_falls_back_by_one_grant_at_most() {
    let (_dir, path) = stripe();
    let given = grants(&Stripe::new(entry_at(&path)), 1, WALL, 5);
    let mut bytes = std::fs::read(&path).unwrap();
    let newest = Header::newest(&bytes).unwrap().sequence as usize % 2;
    bytes[newest * SLOT + 33] ^= 0xff;
    assert_eq!(Header::newest(&bytes).unwrap().counter, given[3]);
}

#[test]
fn a_stripe_locked_elsewhere_is_busy() {
    let (_dir, path) = stripe();
    let other = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&other, FlockOperation::LockExclusive).unwrap();
    let stripe = Stripe::new(entry_at(&path));
    assert!(matches!(stripe.try_lock().unwrap(), Try::Busy));
    drop(other);
    assert!(matches!(stripe.try_lock().unwrap(), Try::Locked(_)));
}

#[test]
fn a_removed_stripe_file_is_noticed() {
    let (_dir, path) = stripe();
    let stripe = Stripe::new(entry_at(&path));
    assert!(matches!(stripe.try_lock().unwrap(), Try::Locked(_)));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(stripe.try_lock().unwrap(), Try::Removed));
    assert!(matches!(Stripe::new(entry_at(&path)).try_lock().unwrap(), Try::Removed));
}

#[test]
fn a_stripe_file_that_gave_its_name_to_another_is_noticed() {
    let (_dir, path) = stripe();
    let stripe = Stripe::new(entry_at(&path));
    assert!(matches!(stripe.try_lock().unwrap(), Try::Locked(_)));
    std::fs::rename(&path, path.with_file_name("kept")).unwrap();
    std::fs::write(&path, "").unwrap();
    assert!(matches!(stripe.try_lock().unwrap(), Try::Removed));
}

/// H82: a ceiling that was noted and is not on the disk covers no token, in this process and in
/// others, and also if another one has just put a lower one on the disk.
#[test]
fn h82_no_token_passes_a_ceiling_that_is_not_on_the_disk() {
    let (_dir, path) = stripe();
    let (first, second) = (Stripe::new(entry_at(&path)), Stripe::new(entry_at(&path)));
    grants(&first, 1, WALL, 1);
    let lock = |stripe| match Stripe::try_lock(stripe).unwrap() {
        Try::Locked(locked) => locked,
        other => panic!("{other:?}"),
    };
    let low = lock(&first).reserve(WALL + 20_000, era(1), WALL).unwrap();
    let high = lock(&second).reserve(WALL + 50_000, era(1), WALL).unwrap();
    let covers = |token| lock(&first).covers(token, era(1), WALL).unwrap();
    assert!(!covers(WALL + 20_001) && !covers(WALL + 50_001));
    low.sync().unwrap();
    lock(&first).raise_ceiling(&low, era(1), WALL).unwrap();
    assert!(covers(WALL + 20_001) && !covers(WALL + 50_001));
    high.sync().unwrap();
    lock(&second).raise_ceiling(&high, era(1), WALL).unwrap();
    lock(&first).raise_ceiling(&low, era(1), WALL).unwrap();
    assert!(covers(WALL + 50_001), "a ceiling does not come down");
}

/// H82: another boot starts above what was noted last, whether it was put on the disk or not.
#[test]
fn h82_an_unsynced_ceiling_counts_after_a_reboot() {
    let (_dir, path) = stripe();
    let stripe = Stripe::new(entry_at(&path));
    grants(&stripe, 1, WALL, 1);
    let Try::Locked(mut locked) = stripe.try_lock().unwrap() else { panic!("busy") };
    let noted = locked.reserve(WALL + 70_000, era(1), WALL).unwrap();
    drop(locked);
    assert!(grants(&stripe, 2, WALL, 1)[0] > noted.ceiling);
}

/// H89: a container's id of this boot needs no new ceiling, and raises no token.
#[test]
fn h89_another_id_of_this_boot_goes_on_counting() {
    let (_dir, path) = stripe();
    let stripe = Stripe::new(entry_at(&path));
    assert_eq!(grants_and_syncs(&stripe, 77, WALL, 2), (vec![WALL + 1, WALL + 2], 1));
    assert_eq!(grants_and_syncs(&stripe, 1, WALL, 2), (vec![WALL + 3, WALL + 4], 0));
}

/// H88: a stripe that another thread has is busy, and the thread that asks goes on.
#[test]
fn h88_a_thread_that_has_the_stripe_blocks_no_other() {
    let (_dir, path) = stripe();
    let stripe = Stripe::new(entry_at(&path));
    let Try::Locked(_locked) = stripe.try_lock().unwrap() else { panic!("busy") };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| matches!(stripe.try_lock().unwrap(), Try::Busy));
        assert!(other.join().unwrap());
    });
}

/// H90: headers that another user wrote, also with a right checksum.
#[test]
fn hostile_headers_of_a_stripe_are_survived() {
    let good =
        Header { sequence: 7, boot: 1, counter: WALL, ceiling: WALL + 9, ..Header::default() };
    let mut both = good.to_bytes().to_vec();
    both.extend(Header { sequence: 8, ..good }.to_bytes());
    let (_dir, path) = stripe();
    let use_it = |bytes: &[u8]| {
        let header = Header::newest(bytes).unwrap_or_default().in_era(era(1), WALL);
        assert!(header.counter <= LARGEST && header.ceiling <= LARGEST);
    };
    latchwork_services::hostile::survives("the header of a stripe", &[&both], |bytes| {
        use_it(bytes);
        let mut signed = bytes.to_vec();
        for slot in signed.chunks_exact_mut(SLOT) {
            slot[0..4].copy_from_slice(&MAGIC.to_le_bytes());
            let sum = crc32fast::hash(&slot[8..]);
            slot[4..8].copy_from_slice(&sum.to_le_bytes());
        }
        use_it(&signed);
    });
    for counter in [LARGEST - 1, LARGEST, LARGEST + 1, u64::MAX] {
        let header = Header { counter, reserved: counter, ceiling: counter, ..good };
        std::fs::write(&path, header.to_bytes()).unwrap();
        let stripe = Stripe::new(entry_at(&path));
        let Try::Locked(mut locked) = stripe.try_lock().unwrap() else { panic!("busy") };
        let counter = locked.counter(era(1), WALL).unwrap();
        let room = locked.reserve(counter + 1, era(1), WALL).is_ok();
        assert_eq!(room, counter < LARGEST);
        locked.grant(counter, true, era(1), WALL).unwrap();
        locked.swept(u32::MAX, era(1), WALL).unwrap();
    }
}
