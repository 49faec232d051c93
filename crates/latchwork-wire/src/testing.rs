//! Names of hosts that this process alone knows.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

type Names = HashMap<String, Vec<IpAddr>>;

static NAMES: LazyLock<Mutex<Names>> = LazyLock::new(Mutex::default);

/// Gives a host addresses, in the order in which the system would tell them. An empty list takes
/// the name away.
pub fn name_host(host: &str, addresses: &[IpAddr]) {
    match addresses {
        [] => drop(names().remove(host)),
        all => drop(names().insert(host.to_owned(), all.to_vec())),
    }
}

pub(crate) fn addresses_of(host: &str) -> Option<Vec<IpAddr>> {
    names().get(host).cloned()
}

fn names() -> MutexGuard<'static, Names> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}
