//! Names of hosts that this process alone knows.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Names = HashMap<String, Host>;

#[derive(Debug, Default)]
struct Host {
    addresses: Vec<IpAddr>,
    /// How long a lookup takes. None: there is no lookup.
    after: Option<Duration>,
    lookups: usize,
}

static NAMES: LazyLock<Mutex<Names>> = LazyLock::new(Mutex::default);

/// Gives a host addresses, in the order in which the system would tell them. An empty list takes
/// the name away.
pub fn name_host(host: &str, addresses: &[IpAddr]) {
    match addresses {
        [] => drop(names().remove(host)),
        all => name(host, all, None),
    }
}

/// Gives a host addresses that a lookup finds after so long.
pub fn name_host_slowly(host: &str, addresses: &[IpAddr], after: Duration) {
    name(host, addresses, Some(after));
}

fn name(host: &str, addresses: &[IpAddr], after: Option<Duration>) {
    let mut names = names();
    let host = names.entry(host.to_owned()).or_default();
    (host.addresses, host.after) = (addresses.to_vec(), after);
}

/// Returns how many lookups of a host have begun.
pub fn lookups_of(host: &str) -> usize {
    names().get(host).map_or(0, |host| host.lookups)
}

/// The addresses of a host that needs no lookup.
pub(crate) fn addresses_of(host: &str) -> Option<Vec<IpAddr>> {
    let names = names();
    names.get(host).filter(|host| host.after.is_none()).map(|host| host.addresses.clone())
}

/// The addresses that a lookup finds, and after how long.
pub(crate) fn looked_up(host: &str) -> Option<(Vec<IpAddr>, Duration)> {
    let mut names = names();
    let host = names.get_mut(host)?;
    let after = host.after?;
    host.lookups += 1;
    Some((host.addresses.clone(), after))
}

fn names() -> MutexGuard<'static, Names> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}
