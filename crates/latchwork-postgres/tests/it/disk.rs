//! A disk that is full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;
use latchwork_services::{Folder, PostgresOptions};
use latchwork_store::{Attempt, Backend, BackendErrorKind};

/// A small file system in memory. Only root may mount one.
struct SmallDisk {
    place: PathBuf,
    _folder: Folder,
}

impl SmallDisk {
    fn new(size: &str) -> Self {
        let folder = Folder::new().unwrap();
        let place = folder.path().join("disk");
        fs::create_dir(&place).unwrap();
        let size = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "latchwork"])
            .arg(&place)
            .output();
        let mounted = mounted.unwrap();
        assert!(
            mounted.status.success(),
            "mount (as root): {}",
            String::from_utf8_lossy(&mounted.stderr)
        );
        Self { place, _folder: folder }
    }

    /// Fills it to the last page.
    fn fill(&self) -> PathBuf {
        let filler = self.place.join("filler");
        let mut size = 1 << 20;
        let mut bytes = Vec::new();
        while size >= 4_096 {
            bytes.resize(size, 0);
            let mut file = fs::OpenOptions::new().create(true).append(true).open(&filler).unwrap();
            if std::io::Write::write_all(&mut file, &bytes).is_err() {
                size /= 2;
            }
        }
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let place: &Path = &self.place;
        let _ = Command::new("umount").arg("--lazy").arg(place).status();
    }
}

/// H153: the server's disk is full.
#[test]
fn h153_a_full_disk_refuses_new_locks_and_keeps_held_ones() {
    let disk = SmallDisk::new("200m");
    let options = PostgresOptions::new()
        .data_in(&disk.place)
        .setting("max_wal_size=32MB")
        .setting("min_wal_size=32MB")
        .setting("shared_buffers=4MB");
    let server = server_with(&options, "");
    run(async {
        let client = bare(&server.url()).await;
        let held = claim("held").with(|it| it.ttl = 600 * SEC);
        client.granted(&held).await;
        let filler = disk.fill();
        let mut refused = None;
        for n in 0..200_000 {
            // Each takes a row of its own, with a long name.
            let claim = claim(&format!("{n}{}", "x".repeat(900)));
            match client.try_acquire(&claim).await {
                Ok(Attempt::Granted(_)) => {}
                Ok(blocked) => panic!("{blocked:?}"),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let refused = refused.expect("the disk is full");
        assert_eq!(refused.kind, BackendErrorKind::Unreachable, "{refused:?}");
        fs::remove_file(filler).unwrap();
        // Whether it has refused or crashed: what was granted is there, and it goes on.
        assert!(client.held(&held).await);
        client.granted(&claim("new")).await;
        client.released(&held).await;
    });
    drop(server);
}
