//! The limit on connections, so that they never take the descriptors that the store needs.

use latchwork::{Error, ErrorKind};
use latchwork_wire::system::open_files_limit;
use rustix::process::{Resource, Rlimit, setrlimit};

/// The descriptors that are reserved for files and for the store: renewals need them.
const RESERVED: u64 = 192;

/// With fewer connections of a socket, the service does not start.
const FEWEST: usize = 4;

/// The most connections of a socket that the settings may allow; a semaphore cannot count more.
const MOST: usize = 1 << 20;

/// Raises the limit of this process as far as it may, and returns how many connections each socket can have.
///
/// # Errors
///
/// `Invalid` if the setting is zero, or if the limit leaves no room for connections.
pub(super) fn room(wanted: usize, sockets: usize) -> Result<usize, Error> {
    if wanted == 0 || wanted > MOST {
        let message = format!("max-connections: {wanted} is outside of 1 to {MOST}");
        return Err(Error::new(ErrorKind::Invalid, message).with_next_step("choose another number"));
    }
    let limit = open_files_limit();
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let allowed = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let fits = fits(allowed, sockets);
    if fits < FEWEST {
        let message =
            format!("the limit on open files leaves no room for connections: {allowed:?}");
        return Err(Error::new(ErrorKind::Invalid, message).with_next_step(
            "raise the limit: ulimit -n 65536, or LimitNOFILE=65536 in a unit of systemd",
        ));
    }
    if fits < wanted {
        tracing::warn!(
            wanted,
            fits,
            "max-connections: the limit on open files allows fewer; raise it with ulimit -n or LimitNOFILE="
        );
    }
    Ok(fits.min(wanted))
}

/// The most connections of each socket. Without a limit, `allowed` is `None`.
fn fits(allowed: Option<u64>, sockets: usize) -> usize {
    let Some(allowed) = allowed else { return MOST };
    let sockets = u64::try_from(sockets.max(1)).unwrap_or(u64::MAX);
    usize::try_from(allowed.saturating_sub(RESERVED) / sockets).unwrap_or(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_keeps_descriptors_of_its_own() {
        assert_eq!(fits(None, 1), MOST);
        assert_eq!(fits(Some(1024), 2), 416);
        assert_eq!(fits(Some(100), 1), 0);
        assert!(room(0, 1).is_err() && room(usize::MAX, 1).is_err());
    }
}
