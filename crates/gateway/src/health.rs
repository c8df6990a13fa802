//! What the health checks of a gateway watch: its interfaces and tables, and the nodes that it knows. This file changes
//! when something else of a gateway is watched.

use std::time::Duration;

use sluice_agent::health::{NodeView, Placement};
use sluice_agent::underlay::Vteps;
use sluice_agent::{Applier, HealthConfig};
use sluice_tables::Role;

use crate::Args;
use crate::ports::SharedPorts;
use crate::role::GatewayRole;

/// The options of this gateway's health checks. The names of its interfaces are those that the kernel lists: options may
/// have alternative names.
pub fn config(args: &Args, ports: &SharedPorts, vteps: Vteps) -> HealthConfig {
    let link_period = Duration::from_secs(args.common.health_link_s);
    HealthConfig {
        vteps,
        underlay: ports.get().into_iter().map(|port| port.link.name).collect(),
        is_gateway: true,
        port: args.common.health_port,
        link_period,
        // A gateway has no VMs.
        vm_period: link_period,
        limits: args.common.health_limits(),
    }
}

/// What is to be watched now.
pub fn view(applier: &Applier<GatewayRole>) -> NodeView {
    let tables = &applier.tables;
    let peer = |address| match tables.role(address)? {
        Role::Gateway => Some((address, true)),
        Role::Host => Some((address, false)),
        Role::ForeignHost => None,
    };
    let usage = tables.usage();
    NodeView {
        peers: tables.vteps().filter_map(peer).collect(),
        ports: Vec::new(),
        placement: Placement::default(),
        tables_permille: (usage.cells_live() * 1000).checked_div(usage.cells_total).unwrap_or(0),
    }
}
