//! Torn writes, flipped bits, growth, other boots.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::disk::dir::entry_at;
use crate::records::boot::Lives;
use crate::records::codec::tests::sample;
use latchwork_store::BackendErrorKind;

const BOOT: u128 = 77;
/// No session lives, or all that are asked for.
pub(crate) struct All(pub(crate) Life);

impl Lives for All {
    fn life(&self, _: u128) -> Life {
        self.0
    }

    fn has_boot(&self, _: u128) -> bool {
        self.0 == Life::Alive
    }
}

/// Before the end of the sample's closing.
const NOW: Now = Now { lease: Duration::from_secs(100), wall: Duration::from_secs(1_795_000_000) };

const DEAD: Era<'_> = Era { boot: BOOT, lives: &All(Life::Dead), now: NOW };

const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

fn key() -> Key {
    Key::new("k").unwrap()
}

fn write(path: &Path, record: &Record) {
    let (mut file, _) = RecordFile::open(entry_at(path), &key(), DEAD).unwrap();
    file.write(&key(), record, MODE).unwrap();
}

fn read(path: &Path) -> Result<Record, BackendError> {
    RecordFile::open(entry_at(path), &key(), DEAD).map(|(_, record)| record)
}

fn with_token(token: u64) -> Record {
    Record { token, ..sample() }
}

#[test]
fn a_write_cut_at_any_byte_leaves_the_old_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    for token in 1..=3 {
        write(&path, &with_token(token));
    }
    let before = std::fs::read(&path).unwrap();
    write(&path, &with_token(4));
    let after = std::fs::read(&path).unwrap();
    let changed = (0..before.len()).filter(|i| before[*i] != after[*i]);
    for cut in changed {
        let mut torn = before.clone();
        torn[..cut].copy_from_slice(&after[..cut]);
        std::fs::write(&path, &torn).unwrap();
        assert_eq!(read(&path).unwrap(), with_token(3), "cut at {cut}");
    }
    std::fs::write(&path, &after).unwrap();
    assert_eq!(read(&path).unwrap(), with_token(4));
}

#[test]
fn a_creation_cut_at_any_byte_is_an_empty_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    write(&path, &with_token(1));
    let whole = std::fs::read(&path).unwrap();
    for cut in (0..200).chain([1_000, 2_048, 4_000]) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let record = read(&path).unwrap();
        assert!(record == Record::default() || record == with_token(1), "cut at {cut}");
        write(&path, &with_token(9));
        assert_eq!(read(&path).unwrap(), with_token(9));
        write(&path, &with_token(10));
        assert_eq!(read(&path).unwrap(), with_token(10));
    }
}

#[test]
fn zeros_are_an_empty_record_and_garbage_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    std::fs::write(&path, [0; 4096]).unwrap();
    assert_eq!(read(&path).unwrap(), Record::default());
    std::fs::write(&path, [b'x'; 4096]).unwrap();
    let error = read(&path).unwrap_err();
    assert_eq!(error.kind, BackendErrorKind::Corrupt);
    assert!(error.message.contains(path.to_str().unwrap()), "{error}");
    assert!(error.next_step.is_some());
}

#[test]
fn a_flipped_bit_costs_at_most_the_newest_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    write(&path, &with_token(1));
    write(&path, &with_token(2));
    let whole = std::fs::read(&path).unwrap();
    for at in (0..400).chain(2048..2448) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&path, bytes).unwrap();
        let token = read(&path).unwrap().token;
        assert!(token == 1 || token == 2, "bit in {at}");
    }
}

#[test]
fn a_flipped_bit_in_the_only_slot_is_damage_and_no_empty_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    write(&path, &with_token(1));
    let whole = std::fs::read(&path).unwrap();
    for at in 0..200 {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, bytes).unwrap();
            let error = read(&path).unwrap_err();
            assert_eq!(error.kind, BackendErrorKind::Corrupt, "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn a_record_that_outgrows_its_slot_moves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    write(&path, &with_token(1));
    std::fs::write(dir.path().join(ASIDE), "left behind").unwrap();
    let mut long = with_token(2);
    let waiter = long.queue[0].clone();
    long.queue = vec![waiter; 300];
    write(&path, &long);
    assert_eq!(read(&path).unwrap(), long);
    for token in 3..6 {
        long.token = token;
        write(&path, &long);
        assert_eq!(read(&path).unwrap(), long);
    }
    write(&path, &with_token(9));
    assert_eq!(read(&path).unwrap(), with_token(9));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_record_of_another_boot_keeps_token_and_linger_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    write(&path, &sample());
    let era = Era { boot: BOOT + 1, ..DEAD };
    let (mut file, record) = RecordFile::open(entry_at(&path), &key(), era).unwrap();
    let expected = Record {
        token: sample().token,
        closed_until: sample().closed_until,
        closed_by: sample().closed_by,
        ..Record::default()
    };
    assert_eq!(record, expected);
    file.write(&key(), &record, MODE).unwrap();
    let (_, again) = RecordFile::open(entry_at(&path), &key(), era).unwrap();
    assert_eq!(again, expected);
}

/// H89: another boot id and a living session mean a container, and nothing is dropped; a session
/// that cannot be looked at decides nothing.
#[test]
fn h89_a_living_session_proves_that_the_boot_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    write(&path, &sample());
    let look = |life| {
        let era = Era { boot: BOOT + 1, lives: &All(life), now: NOW };
        RecordFile::open(entry_at(&path), &key(), era).map(|(_, record)| record)
    };
    assert_eq!(look(Life::Alive).unwrap(), sample());
    let error = look(Life::Unknown).unwrap_err();
    assert_eq!(error.kind, BackendErrorKind::Denied);
    assert!(error.message.contains("boot id") && error.message.contains("sessions/"), "{error}");
}

#[test]
fn a_record_of_another_key_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    write(&path, &sample());
    let other = Key::new("other").unwrap();
    let error = RecordFile::open(entry_at(&path), &other, DEAD).unwrap_err();
    assert_eq!(error.kind, BackendErrorKind::Corrupt);
    let found = RecordFile::look(entry_at(&path), DEAD).unwrap();
    assert_eq!((found.key, found.record), (Some(key()), sample()));
}

/// H90: files that another user wrote, also with right checksums, are read, or called damaged.
#[test]
fn hostile_record_files_are_survived() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    write(&path, &with_token(1));
    write(&path, &with_token(2));
    let whole = std::fs::read(&path).unwrap();
    latchwork_services::hostile::survives("a record file", &[&whole], |bytes| {
        let mut signed = bytes.to_vec();
        let half = signed.len() / 2;
        for at in [0, half, SMALLEST] {
            sign(&mut signed, at);
        }
        for bytes in [bytes, &signed] {
            let mut file = RecordFile::new(entry_at(&path), DEAD);
            if let Ok(Some(slot)) = file.choose(bytes) {
                codec::decode(slot.payload);
            }
        }
    });
}

/// Puts a right checksum into what might be a slot.
fn sign(bytes: &mut [u8], at: usize) {
    let Some(slot) = bytes.get_mut(at..) else { return };
    if slot.len() < HEADER {
        return;
    }
    slot[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    let length = u32::from_le_bytes([slot[36], slot[37], slot[38], slot[39]]) as usize;
    let end = (HEADER + length % 4096).min(slot.len());
    slot[36..40].copy_from_slice(&((end - HEADER) as u32).to_le_bytes());
    let sum = crc32fast::hash(&slot[8..end]);
    slot[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// H90: what lies in place of a record and is no file of its own is not written to.
#[test]
fn h90_only_a_plain_file_is_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let target = dir.path().join("target");
    std::fs::write(&target, "").unwrap();
    let pipe = |path: &Path| rustix::fs::mkfifoat(rustix::fs::CWD, path, MODE).unwrap();
    let in_place: [(&str, &dyn Fn()); 4] = [
        ("symbolic link", &|| std::os::unix::fs::symlink(&target, &path).unwrap()),
        ("2 names", &|| std::fs::hard_link(&target, &path).unwrap()),
        ("named pipe", &|| pipe(&path)),
        ("directory", &|| std::fs::create_dir(&path).unwrap()),
    ];
    for (what, put) in in_place {
        put();
        let error = read(&path).unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Corrupt);
        assert!(error.message.contains(what) && error.message.contains("belongs to"), "{error}");
        let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
    }
    assert_eq!(std::fs::read(&target).unwrap(), b"");
}
