//! Names of hosts that this process alone knows.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

static NAMES: Mutex<Option<HashMap<String, Vec<IpAddr>>>> = Mutex::new(None);

/// Gives a host addresses, in the order in which the system would tell them. An empty list takes
/// the name away.
pub fn name_host(host: &str, addresses: &[IpAddr]) {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    match addresses {
        [] => drop(names.remove(host)),
        all => drop(names.insert(host.to_owned(), all.to_vec())),
    }
}

pub(crate) fn addresses_of(host: &str) -> Option<Vec<IpAddr>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(host).cloned()
}
