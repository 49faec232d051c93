//! Options of libpq that are not supported, and what to do in place of each.

use latchwork_store::Error;
use latchwork_wire::address::unknown_option;

use crate::config::{OPTIONS, invalid};

/// An option that is none of ours: of libpq, or unknown.
pub(crate) fn refused(name: &str) -> Error {
    let step = match name {
        "servicefile" => "name the file in the environment: PGSERVICEFILE",
        "sslpassword" => "use a key without a password, in a file that only this user may read",
        "hostaddr" => "give the numbers as the host",
        "options" => "set it by ALTER ROLE .. SET for the user of the address",
        "sslcrl"
        | "sslcrldir"
        | "sslsni"
        | "sslcompression"
        | "ssl_min_protocol_version"
        | "ssl_max_protocol_version"
        | "sslnegotiation"
        | "sslcertmode"
        | "requiressl" => "leave it out; use sslmode=verify-full with sslrootcert=",
        "gssencmode" | "krbsrvname" | "gsslib" | "gssdelegation" | "require_auth"
        | "requirepeer" => "leave it out: a user logs in by a password or a certificate",
        "keepalives"
        | "keepalives_idle"
        | "keepalives_interval"
        | "keepalives_count"
        | "tcp_user_timeout" => "leave it out: each connection without a sign of life is replaced",
        "client_encoding" | "replication" | "fallback_application_name" | "load_balance_hosts" => {
            "leave it out"
        }
        _ => return unknown_option(name, OPTIONS),
    };
    invalid(format!("store: {name} is an option of libpq that is not supported"))
        .with_next_step(step)
}
