//! Files that hold the address of a store.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use latchwork::Error;

use super::passed_on::is_passed_on;
use super::variable;

/// Where a store file is looked for if none is named: the user's, then the machine's.
pub(super) fn usual_places() -> Vec<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let user = config.map(|config| config.join("latchwork").join("store"));
    user.into_iter().chain([PathBuf::from("/etc/latchwork/store")]).collect()
}

/// The error of a file that cannot be read.
pub(super) fn explained(error: Error, file: &Path) -> Error {
    if !is_passed_on(file) || file.exists() {
        return error;
    }
    error.with_next_step(
        "the latchwork command that named it has ended, or runs in another container; name a store file of your own \
         with --store-file or LATCHWORK_STORE_FILE",
    )
}

/// Whether users other than its owner may read the file.
pub(super) fn others_may_read(file: &Path) -> bool {
    std::fs::metadata(file)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o044 != 0)
}
