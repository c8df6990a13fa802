//! The first report of a stream: what the node has. This file changes when the controller needs to know more to start
//! the stream.

use sluice_southbound::proto::Hello;
use sluice_tables::NodeTables;
use sluice_types::{InstanceId, MacAddr};

use crate::Role;

/// Highest id that is taken from a MAC. A requested MAC may look like the derived one of a higher id.
const ID_MAX: u64 = 1 << 32;

/// The first report of a stream.
pub(crate) fn hello(tables: &NodeTables, role: &impl Role) -> Hello {
    // Most MACs are derived from the ids of their instances. One that was requested may look like a derived one,
    // and then makes the database skip some ids.
    let derived = tables.endpoints().filter_map(|endpoint| {
        let id = endpoint.mac.to_u64() & 0xff_ffff_ffff;
        (id <= ID_MAX && endpoint.mac == MacAddr::local(id)).then_some(id)
    });
    let instances = role.instances().into_iter().map(InstanceId::get);
    Hello {
        applied_revision: tables.applied_revision(),
        database_id: tables.database_id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit_id: tables.commit_id(),
        highest_revision: tables.applied_revision().max(tables.complete_revision()),
        highest_id: derived.chain(instances).max().unwrap_or_default(),
        highest_vni: tables.vrfs().map(|entry| entry.vrf.vni.get()).max().unwrap_or_default(),
    }
}
