//! A Redis server as a part of a set, with or without a proxy that all others reach it through.

use std::ops::{Deref, DerefMut};

use crate::port::{BUS, Port};
use crate::{Proxy, RedisOptions, RedisServer, Result};

/// One server of a set; use it as a [`RedisServer`].
#[derive(Debug)]
pub struct Node {
    server: RedisServer,
    proxy: Option<Proxy>,
    bus: Option<Proxy>,
}

/// A node whose ports are known, and that is not started yet.
#[derive(Debug)]
pub(crate) struct Place {
    port: Port,
    proxy: Option<Proxy>,
    bus: Option<Proxy>,
}

impl Place {
    pub(crate) fn reserve(behind_proxy: bool) -> Result<Self> {
        let port = Port::reserve()?;
        let proxy = match behind_proxy {
            true => Some(Proxy::redis(port.number())?),
            false => None,
        };
        Ok(Self { port, proxy, bus: None })
    }

    /// A place behind a proxy, whose bus is behind a proxy of its own.
    pub(crate) fn reserve_with_bus() -> Result<Self> {
        let place = Self::reserve(true)?;
        let bus = Proxy::plain(place.server_bus())?;
        Ok(Self { bus: Some(bus), ..place })
    }

    /// See [`Node::address_port`].
    pub(crate) fn address_port(&self) -> u16 {
        self.proxy.as_ref().map_or(self.port.number(), Proxy::port)
    }

    /// The port of the server itself.
    pub(crate) fn server_port(&self) -> u16 {
        self.port.number()
    }

    /// The port at which the other nodes of a cluster reach its bus.
    pub(crate) fn bus_port(&self) -> u16 {
        self.bus.as_ref().map_or(self.server_bus(), Proxy::port)
    }

    fn server_bus(&self) -> u16 {
        self.server_port() + BUS
    }

    /// Starts the process and does not wait.
    pub(crate) fn launch(self, options: &RedisOptions) -> Result<Node> {
        let server = RedisServer::launch(options, self.port)?;
        Ok(Node { server, proxy: self.proxy, bus: self.bus })
    }
}

impl Node {
    /// The port at which clients and the other servers reach it: the proxy's, if it has one.
    pub fn address_port(&self) -> u16 {
        self.proxy.as_ref().map_or(self.server.port(), Proxy::port)
    }

    /// The proxy in front of it.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// All proxies in front of it: that of clients and replicas, and that of the bus.
    pub(crate) fn ways(&self) -> impl Iterator<Item = &Proxy> {
        self.proxy.iter().chain(&self.bus)
    }
}

impl Deref for Node {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.server
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut RedisServer {
        &mut self.server
    }
}
