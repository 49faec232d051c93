//! `latchwork serve`: a running service, and clients that speak HTTP over plain sockets.

mod browser;
mod client;
mod events;
mod holds;
mod kinds;
mod page;
mod repeated;
mod security;
mod service;

use client::Answer;
use service::Service;
