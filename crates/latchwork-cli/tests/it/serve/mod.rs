//! `latchwork serve`: a running service, and clients that speak HTTP over plain sockets.

mod attack;
mod bounds;
mod browser;
mod client;
mod clients;
mod described;
mod events;
mod forced;
mod given_up;
mod holds;
mod instances;
mod kinds;
mod operation;
mod page;
mod proxies;
mod readers;
mod repeated;
mod security;
mod service;
mod sessions;
mod tickets;
mod vanished;
mod webhook;

use client::Answer;
use service::Service;
