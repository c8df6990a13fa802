//! Reports and admissions in all orders that matter.

use super::*;
use sluice_southbound::proto;

const CLUSTER: ClusterId = ClusterId::new(1);
const GATEWAYS: [GatewayId; 2] = [GatewayId::new(1), GatewayId::new(2)];

fn heartbeat(revision: u64, fills: &[(Table, u64, u64)]) -> Heartbeat {
    let fill = |(table, used, capacity): &(Table, u64, u64)| proto::TableFill {
        table: *table as i32,
        used: *used,
        capacity: *capacity,
    };
    Heartbeat { tables: fills.iter().map(fill).collect(), tables_revision: revision, ..Heartbeat::default() }
}

/// A report of the tables of entries and of the memory for routes.
fn report(revision: u64, entries: u64, entries_with_ipv6: u64, routes: u64) -> Heartbeat {
    heartbeat(
        revision,
        &[
            (Table::Entries, 100, 100 + entries),
            (Table::EntriesWithIpv6, 100, 100 + entries_with_ipv6),
            (Table::Routes, 50, 50 + routes),
            (Table::Vrfs, 7, 7 + routes / 2),
        ],
    )
}

/// Admissions of a controller that started at revision 10, and whose gateways have streams.
fn started() -> Arc<Admissions> {
    let admissions = Arc::new(Admissions::default());
    admissions.start(10);
    GATEWAYS.iter().for_each(|gateway| admissions.open(*gateway, 1));
    admissions
}

fn entries(others: u64, ipv6: u64) -> Demand {
    Demand { others, ipv6, ..Demand::default() }
}

fn admit(admissions: &Arc<Admissions>, demand: Demand) -> Result<Admission, Full> {
    admissions.admit(&[(CLUSTER, demand)], |_| GATEWAYS.to_vec())
}

#[test]
fn what_was_admitted_counts_until_the_report_has_it() {
    let admissions = started();
    admissions.report(GATEWAYS[0], 1, &report(20, 10, 6, 0));
    admit(&admissions, entries(6, 0)).unwrap().commit(21);
    let refused = admit(&admissions, entries(5, 0)).unwrap_err();
    let (gateway, table) = (GATEWAYS[0], "entries");
    let expected =
        Full { cluster: CLUSTER, gateway, table, used: 100, capacity: 110, admitted: 6, needed: 5 };
    assert_eq!(refused, expected);
    assert_eq!(
        refused.to_string(),
        "cluster-1 cannot hold this: table `entries` of gw-1 has 100 entries in use and certainly holds 110; \
         6 more were admitted after its report, so 4 are left, and 5 are needed"
    );
    // An object that is not created, and one whose creation is not complete.
    drop(admit(&admissions, entries(4, 0)).unwrap());
    let open = admit(&admissions, entries(4, 0)).unwrap();
    assert_eq!(admit(&admissions, entries(1, 0)).unwrap_err().admitted, 10);
    open.commit(23);
    // The report has the first object only.
    admissions.report(GATEWAYS[0], 1, &report(22, 4, 4, 0));
    assert_eq!(admit(&admissions, entries(1, 0)).unwrap_err().admitted, 4);
    admissions.report(GATEWAYS[0], 1, &report(23, 1, 1, 0));
    admit(&admissions, entries(1, 0)).unwrap();
}

#[test]
fn the_fullest_gateway_decides() {
    let admissions = started();
    admissions.report(GATEWAYS[0], 1, &report(20, 10, 10, 0));
    admissions.report(GATEWAYS[1], 1, &report(20, 3, 3, 0));
    assert_eq!(admit(&admissions, entries(4, 0)).unwrap_err().gateway, GATEWAYS[1]);
    // A gateway without a stream needs all entries when it returns: its capacity counts.
    admissions.close(GATEWAYS[1], 1);
    assert_eq!(admit(&admissions, entries(4, 0)).unwrap_err().gateway, GATEWAYS[1]);
    admit(&admissions, entries(2, 0)).unwrap().commit(21);
    assert_eq!(admit(&admissions, entries(2, 0)).unwrap_err().admitted, 2);
    // How many entries there are by now is what another gateway reports.
    admissions.report(GATEWAYS[0], 1, &report(30, 15, 15, 0));
    drop(admit(&admissions, entries(3, 0)).unwrap());
    admissions.report(GATEWAYS[1], 1, &report(30, 9, 9, 0));
    drop(admit(&admissions, entries(3, 0)).unwrap());
    admissions.close(GATEWAYS[0], 1);
    assert_eq!(admit(&admissions, entries(4, 0)).unwrap_err().gateway, GATEWAYS[1]);
    admissions.remove(GATEWAYS[1]);
    admit(&admissions, entries(4, 0)).unwrap();
}

#[test]
fn ipv6_addresses_need_the_memory_of_ipv6() {
    let admissions = started();
    admissions.report(GATEWAYS[0], 1, &report(20, 10, 6, 0));
    assert_eq!(admit(&admissions, entries(4, 3)).unwrap_err().table, "entries_with_ipv6");
    let open = admit(&admissions, entries(4, 2)).unwrap();
    assert_eq!(admit(&admissions, entries(1, 0)).unwrap_err().table, "entries_with_ipv6", "one of them is");
    drop(open);
    admit(&admissions, entries(10, 0)).unwrap();
}

#[test]
fn routes_and_vrfs_share_their_memory() {
    let admissions = started();
    admissions.report(GATEWAYS[0], 1, &report(20, 100, 100, 8));
    let demand = |routes, vrfs| Demand { routes, vrfs, ..entries(vrfs, 0) };
    for (routes, vrfs) in [(8, 0), (0, 4), (4, 2), (7, 0), (6, 1)] {
        drop(admit(&admissions, demand(routes, vrfs)).unwrap());
    }
    for (routes, vrfs, table) in [(9, 0, "routes"), (0, 5, "vrfs"), (5, 2, "routes"), (1, 4, "routes")] {
        assert_eq!(admit(&admissions, demand(routes, vrfs)).unwrap_err().table, table, "{routes} {vrfs}");
    }
    admissions.report(GATEWAYS[0], 1, &report(20, 100, 100, 0));
    assert_eq!(admit(&admissions, demand(0, 1)).unwrap_err().table, "vrfs");
    admit(&admissions, entries(5, 0)).unwrap();
}

#[test]
fn unknown_fill_never_refuses() {
    let admissions = started();
    let all =
        Demand { ipv6: 1 << 40, others: 1 << 40, routes: 1 << 40, vrfs: 1 << 40, nat_addresses: 1 << 40 };
    drop(admit(&admissions, all).unwrap());
    // A report that does not have what others created before this controller started.
    admissions.report(GATEWAYS[0], 1, &report(9, 0, 0, 0));
    drop(admit(&admissions, all).unwrap());
    // A gateway that reports nothing, and a stream that has been replaced.
    admissions.report(GATEWAYS[0], 1, &heartbeat(20, &[]));
    admissions.report(GATEWAYS[0], 7, &report(20, 0, 0, 0));
    drop(admit(&admissions, all).unwrap());
    admissions.report(GATEWAYS[0], 1, &report(20, 0, 0, 0));
    admit(&admissions, all).unwrap_err();
}

/// Catches NAT gateways for whose addresses a gateway has no numbers: their entries could not be written.
#[test]
fn addresses_of_nat_gateways_need_numbers_where_they_are_translated() {
    let admissions = started();
    let demand = |nat_addresses| Demand { nat_addresses, ..Demand::default() };
    admissions.report(GATEWAYS[0], 1, &report(20, 10, 10, 10));
    drop(admit(&admissions, demand(1 << 40)).unwrap());
    admissions.report(GATEWAYS[1], 1, &heartbeat(20, &[(Table::NatAddresses, 13, 16)]));
    admit(&admissions, demand(2)).unwrap().commit(21);
    let refused = admit(&admissions, demand(2)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "cluster-1 cannot hold this: table `nat_addresses` of gw-2 has 13 entries in use and certainly holds 16; \
         2 more were admitted after its report, so 1 are left, and 2 are needed"
    );
    drop(admit(&admissions, demand(1)).unwrap());
    // Other objects need no numbers.
    admissions.report(GATEWAYS[1], 1, &heartbeat(21, &[(Table::NatAddresses, 16, 16)]));
    drop(admit(&admissions, entries(1, 0)).unwrap());
    admit(&admissions, demand(1)).unwrap_err();
}

#[test]
fn tables_that_are_being_filled_again_keep_their_last_report() {
    let admissions = started();
    admissions.report(GATEWAYS[0], 1, &report(20, 5, 5, 0));
    admissions.open(GATEWAYS[0], 2);
    admissions.report(GATEWAYS[0], 2, &report(0, 1000, 1000, 0));
    assert_eq!(admit(&admissions, entries(6, 0)).unwrap_err().capacity, 105);
    // What was admitted before the oldest report of the others is forgotten: a new gateway's must not be older.
    admit(&admissions, entries(2, 0)).unwrap().commit(21);
    admissions.report(GATEWAYS[0], 2, &report(30, 5, 5, 0));
    drop(admit(&admissions, entries(1, 0)).unwrap());
    admissions.report(GATEWAYS[1], 1, &report(20, 1, 1, 0));
    admit(&admissions, entries(4, 0)).unwrap();
}

#[test]
fn many_admissions_are_counted_together() {
    let admissions = started();
    let many = COMMITTED_MAX as u64 * 3;
    admissions.report(GATEWAYS[0], 1, &report(20, many, many, 0));
    for number in 1..=many {
        admit(&admissions, entries(1, 0)).unwrap().commit(20 + number);
    }
    assert!(admissions.lock().clusters[&CLUSTER].committed.len() <= COMMITTED_MAX);
    assert_eq!(admit(&admissions, entries(1, 0)).unwrap_err().admitted, many);
    // The oldest count until the report has the newest.
    admissions.report(GATEWAYS[0], 1, &report(20 + many, 1, 1, 0));
    admit(&admissions, entries(1, 0)).unwrap();
}
