//! The interfaces of a gateway, and what each of them leads to. This file changes when the packet programs need another
//! property of an interface.

use std::sync::{Arc, PoisonError, RwLock};

use sluice_agent::netlink::Link;
use sluice_agent::underlay::{Vteps, node_config, underlay_port};
use sluice_tables::{NodeConfig, UnderlayPort};

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

/// The names of interfaces, in their order.
#[must_use]
pub fn port_names(ports: &[Port]) -> Vec<(String, Side)> {
    ports.iter().map(|port| (port.link.name.clone(), port.side)).collect()
}

/// This gateway's entry in the tables: each of the configured `names` keeps its position, also without its interface in
/// `ports`.
#[must_use]
pub fn gateway_config(names: &[(String, Side)], ports: &[Port], vteps: Vteps) -> NodeConfig {
    let entry = |(name, side): &(String, Side)| {
        let port = ports.iter().find(|port| port.link.name == *name);
        let internet = *side == Side::Internet;
        port.map_or(UnderlayPort::MISSING, |port| UnderlayPort { internet, ..underlay_port(&port.link) })
    };
    NodeConfig { ports: names.iter().map(entry).collect(), ..node_config(&[], vteps, 0) }
}

#[cfg(test)]
mod tests {
    use sluice_types::MacAddr;

    use super::*;

    /// Catches next hops that packets have found, and that lead by another interface because one is missing.
    #[test]
    fn interfaces_keep_their_positions() {
        let port = |name: &str, side| {
            let (index, mac) = (name.len() as u32, MacAddr::local(1));
            let (peer_elsewhere, external_vxlan, vxlan_gbp, enslaved, promiscuous) =
                (false, false, false, false, true);
            let name = name.to_owned();
            let (mtu, kind) = (1500, None);
            let link = Link {
                index,
                name,
                mac,
                mtu,
                kind,
                peer_elsewhere,
                external_vxlan,
                vxlan_gbp,
                enslaved,
                promiscuous,
            };
            Port { link, side }
        };
        let ports = [port("a", Side::Underlay), port("bb", Side::Underlay), port("ccc", Side::Internet)];
        let positions = |present: &[Port]| {
            let config = gateway_config(&port_names(&ports), present, Vteps::default());
            config.ports.iter().map(|port| (port.ifindex, port.internet)).collect::<Vec<_>>()
        };
        assert_eq!(positions(&ports), [(1, false), (2, false), (3, true)]);
        assert_eq!(positions(&ports[1..]), [(0, false), (2, false), (3, true)]);
        assert_eq!(positions(&[ports[2].clone(), ports[0].clone()]), [(1, false), (0, false), (3, true)]);
    }
}
