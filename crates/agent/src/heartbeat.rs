//! Heartbeats: what a node reports about itself every second. This file changes when the controller needs
//! another figure.

use std::collections::HashMap;

use sluice_datapath::{Datapath, Traffic};
use sluice_southbound::proto::{Heartbeat, Table, TableFill};
use sluice_tables::{NodeTables, TableUsage};

use crate::vni_traffic::VniTrafficReport;

/// How busy a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeLoad {
    /// Share of the forwarding cores' time that packets take, in thousandths.
    pub cpu_permille: u32,
    /// Share of memory in use, in thousandths.
    pub memory_permille: u32,
    /// Whether every flow is offloaded, whatever its rate.
    pub offload_all: bool,
}

/// Numbers of public addresses on a gateway that translates addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatAddresses {
    /// Addresses that have one and were not released.
    pub used: u64,
    /// Numbers that there are.
    pub total: u64,
}

/// What a heartbeat reports of the tables.
#[derive(Debug)]
pub(crate) struct TableFigures {
    usage: TableUsage,
    revision: u64,
    /// VNIs with the indices of their packet counters.
    counters: Vec<(u32, u32)>,
    /// `None` if the node translates none.
    nat_addresses: Option<NatAddresses>,
}

impl TableFigures {
    pub(crate) fn read(tables: &NodeTables, nat_addresses: Option<NatAddresses>) -> Self {
        let counters = tables.vrfs().map(|entry| (entry.vrf.vni.get(), entry.counters));
        Self {
            usage: tables.usage(),
            revision: tables.applied_revision(),
            counters: counters.collect(),
            nat_addresses,
        }
    }
}

/// The packet counters of a node.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Traffic of the VNIs that have counters of their own.
    by_vni: Vec<(u32, Traffic)>,
    total: Traffic,
    drops: u64,
}

impl Counters {
    /// Reads the counters of all VNIs.
    pub(crate) fn read(datapath: &Datapath, tables: &TableFigures) -> Result<Self, sluice_datapath::Error> {
        let mut indices: Vec<u32> = tables.counters.iter().map(|(_, index)| *index).collect();
        // Index 0 is shared by the VNIs for which no counters were left: it counts once.
        indices.sort_unstable();
        indices.dedup();
        let by_index: HashMap<u32, Traffic> =
            indices.iter().copied().zip(datapath.vni_traffic(&indices)?).collect();
        let own = tables.counters.iter().filter(|(_, index)| *index != 0);
        let by_vni = own.filter_map(|(vni, index)| Some((*vni, *by_index.get(index)?))).collect();
        let packets = by_index.values().map(|traffic| traffic.packets).sum();
        let bytes = by_index.values().map(|traffic| traffic.bytes).sum();
        let drops = datapath.drops()?.iter().map(|count| count.packets).sum();
        Ok(Self { by_vni, total: Traffic { packets, bytes }, drops })
    }
}

/// How full the tables are.
pub(crate) fn fills(usage: &TableUsage) -> impl Iterator<Item = TableFill> {
    let fill = |(table, used, more)| TableFill { table: table as i32, used, capacity: used + more };
    [
        (Table::Entries, usage.entries, usage.entry_capacity),
        (Table::EntriesWithIpv6, usage.entries, usage.entry_capacity_v6),
        (Table::Routes, usage.routes, usage.route_capacity()),
        (Table::Vrfs, usage.vrfs, usage.vrf_capacity()),
    ]
    .into_iter()
    .map(fill)
}

/// Builds a heartbeat. `vni_traffic` is `None` on nodes that do not report the traffic of each VNI. These do not report
/// how full each table is either: they are hosts, whose entries follow from their instances.
pub(crate) fn build(
    tables: &TableFigures,
    counters: Counters,
    load: NodeLoad,
    vni_traffic: Option<&mut VniTrafficReport>,
) -> Heartbeat {
    let Counters { by_vni, total, drops } = counters;
    let of_nat = tables.nat_addresses.map(|NatAddresses { used, total }| TableFill {
        table: Table::NatAddresses as i32,
        used,
        capacity: total,
    });
    let fills = vni_traffic.is_some().then(|| fills(&tables.usage).chain(of_nat));
    let report = vni_traffic.and_then(|report| report.is_due().then_some(report));
    let vnis = report.map(|report| report.changes(by_vni.into_iter()));
    Heartbeat {
        cells_used: tables.usage.cells_live(),
        cells_total: tables.usage.cells_total,
        packets: total.packets,
        drops,
        cpu_permille: load.cpu_permille,
        memory_permille: load.memory_permille,
        offload_all: load.offload_all,
        tx_bytes: total.bytes,
        tx_packets: total.packets,
        vnis_reported: vnis.is_some(),
        vnis: vnis.unwrap_or_default(),
        tables: fills.into_iter().flatten().collect(),
        tables_revision: tables.revision,
        ..Heartbeat::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches VNI traffic in heartbeats of nodes that do not report it, or in each heartbeat.
    #[test]
    fn vni_traffic_is_reported_when_it_is_due() {
        let tables = TableFigures {
            usage: TableUsage {
                cells_total: 100,
                cells_used: 30,
                cells_pending: 10,
                entries: 7,
                entry_capacity: 5,
                entry_capacity_v6: 3,
                ..TableUsage::default()
            },
            revision: 9,
            counters: Vec::new(),
            nat_addresses: Some(NatAddresses { used: 2, total: 16 }),
        };
        let counters = || Counters {
            by_vni: vec![(7, Traffic { packets: 3, bytes: 300 })],
            total: Traffic { packets: 4, bytes: 400 },
            drops: 5,
        };
        let load = NodeLoad { cpu_permille: 6, memory_permille: 8, offload_all: true };
        let host = build(&tables, counters(), load, None);
        assert_eq!((host.vnis_reported, host.vnis.len()), (false, 0));
        assert!(host.tables.is_empty(), "admission asks for the fill of gateways only");
        assert_eq!((host.cells_used, host.cells_total), (20, 100));
        assert_eq!((host.packets, host.tx_bytes, host.drops), (4, 400, 5));
        assert_eq!((host.cpu_permille, host.memory_permille, host.offload_all), (6, 8, true));
        let mut report = VniTrafficReport::default();
        let gateway = build(&tables, counters(), load, Some(&mut report));
        assert!(gateway.vnis_reported);
        let fill = |table, capacity| TableFill { table: table as i32, used: 7, capacity };
        let expected = [fill(Table::Entries, 12), fill(Table::EntriesWithIpv6, 10)];
        assert_eq!((&gateway.tables[..2], gateway.tables_revision), (&expected[..], 9));
        let of_nat = TableFill { table: Table::NatAddresses as i32, used: 2, capacity: 16 };
        assert_eq!(gateway.tables[2..].iter().find(|fill| fill.table == of_nat.table), Some(&of_nat));
        assert_eq!((gateway.vnis[0].vni, gateway.vnis[0].packets), (7, 3));
        assert!(!build(&tables, counters(), load, Some(&mut report)).vnis_reported, "not due yet");
    }
}
