//! `latchwork serve`: a running service, and clients that speak HTTP over plain sockets.

mod client;
mod events;
mod holds;
mod kinds;
mod repeated;
mod security;
mod service;

use client::Answer;
use service::Service;
