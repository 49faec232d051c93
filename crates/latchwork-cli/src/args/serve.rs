//! What `latchwork serve` accepts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use latchwork_serve::{DEFAULT_ADDRESS, Listen};

use super::values::duration;

/// The heading of the options about who may connect.
const ACCESS: &str = "Access";
/// The heading of the options that bound what clients may use.
const LIMITS: &str = "Limits";

fn listen_help() -> String {
    format!(
        "Where to listen: HOST:PORT or unix:PATH; may be repeated [default: the sockets that systemd hands over, \
         else {DEFAULT_ADDRESS}]"
    )
}

// `serve`
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[arg(long, value_name = "ADDRESS", help = listen_help())]
    pub(crate) listen: Vec<Listen>,

    /// The certificate of the service (PEM), with those of its authorities
    #[arg(long, help_heading = ACCESS, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of the certificate (PEM)
    #[arg(long, help_heading = ACCESS, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// The file of tokens, with the rights of each: `latchwork help service` has its form
    #[arg(long, help_heading = ACCESS, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tokens: Option<PathBuf>,

    /// Demand a token on this machine too
    #[arg(long, help_heading = ACCESS, requires = "tokens")]
    pub(crate) require_token: bool,

    /// One more name by which clients without a token call the service; may be repeated
    #[arg(long, help_heading = ACCESS, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,

    /// Let other hosts connect without TLS: for a network where something else encrypts
    #[arg(long, help_heading = ACCESS)]
    pub(crate) insecure_plain_http: bool,

    /// Let other hosts take locks without a token: for a network that nobody else can reach
    #[arg(long, help_heading = ACCESS)]
    pub(crate) insecure_no_tokens: bool,

    /// The key that seals the ids of holds, the same for all instances: 32 bytes as hexadecimal digits or base64, on a
    /// line; below it the key before it, if there is one. Without it, holds end with this process
    #[arg(long, help_heading = ACCESS, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) seal_key_file: Option<PathBuf>,

    /// The most locks that one token may hold
    #[arg(long, help_heading = LIMITS, value_name = "NUMBER", default_value_t = 20_000)]
    pub(crate) max_holds: usize,

    /// The most requests of one token that may wait
    #[arg(long, help_heading = LIMITS, value_name = "NUMBER", default_value_t = 1_000)]
    pub(crate) max_waiters: usize,

    /// The most connections of each address
    #[arg(long, help_heading = LIMITS, value_name = "NUMBER", default_value_t = 4_096)]
    pub(crate) max_connections: usize,

    /// When a signal stops the service: how long to wait for the holds of clients to end
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s", allow_hyphen_values = true)]
    pub(crate) drain: Duration,

    /// Where to send each loss of a hold, as the JSON of its event: http://HOST/PATH or https://HOST/PATH
    /// [env: LATCHWORK_WEBHOOK_LOST, for an address with a secret]
    #[arg(long, value_name = "URL")]
    pub(crate) webhook_lost: Option<String>,

    /// Print the OpenAPI description of the API, and exit
    #[arg(long)]
    pub(crate) print_openapi: bool,
}
