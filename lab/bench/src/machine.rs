//! The machine that measures, as it tells of itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use latchwork_services::Folder;

/// One line: cores, kernel, file systems, Rust.
pub(crate) fn line() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let of = |path: &Path| {
        let path = path.canonicalize().unwrap_or_default();
        file_system(&mounts, &path).unwrap_or("an unknown file system").to_string()
    };
    let files = of(Path::new("."));
    let servers = Folder::new().map_or("nothing".into(), |folder| of(folder.path()));
    format!(
        "{cores} cores, Linux {}, {files} (the servers' data on {servers}), {}",
        version(&kernel),
        rust()
    )
}

/// What a kernel calls itself, without what its builder has added.
fn version(release: &str) -> &str {
    let end = release.find(|c: char| !c.is_ascii_digit() && c != '.');
    release[..end.unwrap_or(release.len())].trim_end_matches('.')
}

/// The kind of the file system that has this path; the deepest mount counts, and the last of two at
/// one place.
fn file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((Path::new(words.next()?), words.next()?))
        })
        .filter(|(at, _)| path.starts_with(at))
        .max_by_key(|(at, _)| at.components().count())
        .map(|(_, kind)| kind)
}

fn rust() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    let text = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let number = text.ok().and_then(|text| text.split(' ').nth(1).map(str::to_owned));
    number.map_or("an unknown Rust".into(), |number| format!("Rust {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_has_the_path() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /dev tmpfs rw 0 0\nshm /dev/shm ramfs rw 0 0\n";
        let of = |path| file_system(mounts, Path::new(path));
        assert_eq!(of("/home/me"), Some("ext4"));
        assert_eq!(of("/dev/shm/one"), Some("ramfs"));
        assert_eq!(of("/dev/shmoo"), Some("tmpfs"));
        assert_eq!(file_system("", Path::new("/")), None);
    }

    #[test]
    fn the_results_name_the_machine() {
        let line = line();
        for word in [" cores, Linux ", " data on ", "Rust 1."] {
            assert!(line.contains(word), "{line}");
        }
        assert!(!line.contains("unknown"), "{line}");
    }
}
