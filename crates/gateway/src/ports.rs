//! The interfaces of a gateway, and what each of them leads to. This file changes when the packet programs need another
//! property of an interface.

use std::sync::{Arc, PoisonError, RwLock};

use sluice_agent::netlink::Link;
use sluice_agent::underlay::{Vteps, node_config};
use sluice_tables::NodeConfig;

/// What an interface leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The hosts and the other gateways.
    Underlay,
    /// The Internet: packets without encapsulation.
    Internet,
}

impl Side {
    /// The XDP program in bpf/gateway.bpf.c for interfaces of this side.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Underlay => "gateway",
            Self::Internet => "internet",
        }
    }
}

/// An interface of this gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The interface as the kernel has it.
    pub link: Link,
    /// What it leads to.
    pub side: Side,
}

/// The interfaces that exist now, shared between the monitor, which follows them, and those who announce addresses.
#[derive(Clone, Debug, Default)]
pub struct SharedPorts(Arc<RwLock<Vec<Port>>>);

impl SharedPorts {
    /// Shares these interfaces.
    #[must_use]
    pub fn new(ports: Vec<Port>) -> Self {
        Self(Arc::new(RwLock::new(ports)))
    }

    /// The interfaces now.
    #[must_use]
    pub fn get(&self) -> Vec<Port> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the interfaces.
    pub fn set(&self, ports: &[Port]) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = ports.to_vec();
    }
}

/// This gateway's entry in the tables.
#[must_use]
pub fn gateway_config(ports: &[Port], vteps: Vteps) -> NodeConfig {
    let links: Vec<Link> = ports.iter().map(|port| port.link.clone()).collect();
    let mut config = node_config(&links, vteps, 0);
    for (entry, port) in config.ports.iter_mut().zip(ports) {
        entry.internet = port.side == Side::Internet;
    }
    config
}
