//! What the health checks of a host watch: its VMs, the nodes that it knows, and what does not belong together. This file
//! changes when something else of a host is watched.

use std::net::IpAddr;

use sluice_agent::Applier;
use sluice_agent::health::{NodeView, Placement, WatchedPort};
use sluice_southbound::Port;
use sluice_tables::{NodeTables, Role};

use crate::port_registry::{Attachment, MovingPort, PortRegistry};
use crate::role::HostRole;

/// What is to be watched now.
pub fn view(applier: &Applier<HostRole>) -> NodeView {
    let (tables, registry) = (&applier.tables, &applier.role.ports);
    let usage = tables.usage();
    let tables_permille = (usage.cells_live() * 1000).checked_div(usage.cells_total).unwrap_or(0);
    NodeView {
        peers: peers(tables).collect(),
        ports: watched_ports(registry).collect(),
        placement: placement(registry),
        tables_permille,
    }
}

/// The nodes with an agent, of which the flag says whether it is a gateway.
fn peers(tables: &NodeTables) -> impl Iterator<Item = (IpAddr, bool)> {
    tables.vteps().filter_map(|address| match tables.role(address)? {
        Role::Gateway => Some((address, true)),
        Role::Host => Some((address, false)),
        Role::ForeignHost => None,
    })
}

/// The ports whose VMs run here: while an instance migrates, two hosts have its port, and one of them is open.
pub(crate) fn watched_ports(registry: &PortRegistry) -> impl Iterator<Item = WatchedPort> {
    registry.attachments().iter().filter_map(|(ifname, attachment)| {
        let port = registry.instance(attachment.instance).filter(|port| registry.is_open(port))?;
        // A guest that is stopped answers nothing.
        if registry.moving_port(port) == Some(MovingPort::Receiving) {
            return None;
        }
        Some(watched_port(ifname, attachment, port))
    })
}

/// A VM without a router for its IPv4 address is asked for its IPv6 address only: a question without a sender means to a
/// VM that another one begins to use its address.
pub(crate) fn watched_port(ifname: &str, attachment: &Attachment, port: &Port) -> WatchedPort {
    WatchedPort {
        ifindex: attachment.ifindex,
        ifname: ifname.to_owned(),
        instance: port.instance,
        mac: port.mac,
        ipv4: port.ipv4.map(|net| net.addr()).zip(port.router4),
        ipv6: port.ipv6.map(|net| net.addr()),
    }
}

/// What does not belong together on this host.
pub(crate) fn placement(registry: &PortRegistry) -> Placement {
    let (attached, orphans): (Vec<_>, Vec<_>) = registry
        .attachments()
        .iter()
        .map(|(ifname, attachment)| (ifname, attachment.instance))
        .partition(|(_, instance)| registry.instance(*instance).is_some());
    // The VM of a port that is not open runs on the other host of its migration.
    let missing = registry.without_interface().filter(|port| registry.is_open(port));
    Placement {
        attached: attached.into_iter().map(|(_, instance)| instance).collect(),
        orphans: orphans.into_iter().map(|(ifname, instance)| (ifname.clone(), instance)).collect(),
        missing: missing.map(|port| (port.instance, port.name.clone())).collect(),
    }
}
