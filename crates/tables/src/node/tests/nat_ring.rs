//! The place of a gateway in the ring of its cluster.

use super::*;

const GATEWAYS: [&str; 2] = ["192.0.2.21", "2001:db8:1::21"];

/// Tables that know two gateways and a host.
fn known() -> NodeTables {
    let mut tables = tables(4096);
    for gateway in GATEWAYS {
        tables.upsert_vtep(ip(gateway), Role::Gateway).unwrap();
    }
    tables.upsert_vtep(ip("192.0.2.30"), Role::Host).unwrap();
    tables
}

#[test]
fn a_place_is_stored_and_survives_adoption() {
    let mut tables = known();
    assert_eq!(tables.nat_ring(), None);
    for (own, next) in [
        (0, Some((63, ip(GATEWAYS[0])))),
        (63, Some((0, ip(GATEWAYS[1])))),
        (5, None),
        (0, None),
        (1, Some((2, ip(GATEWAYS[0])))),
    ] {
        assert!(tables.set_nat_ring(own, next).unwrap());
        assert!(!tables.set_nat_ring(own, next).unwrap());
        assert_eq!(tables.nat_ring(), Some((own, next)));
        tables = adopt_again(tables);
        assert_eq!(tables.nat_ring(), Some((own, next)));
    }
    // The configuration of the node is in the same cell.
    let node = NodeConfig {
        vtep4: Some([192, 0, 2, 1].into()),
        vtep6: None,
        router_mac: ROUTER_MAC,
        vxlan_ifindex: 0,
        ports: vec![UnderlayPort { ifindex: 3, mtu: 1500, mac: mac(3), internet: false }],
    };
    tables.set_node(&node).unwrap();
    assert_eq!(tables.nat_ring(), Some((1, Some((2, ip(GATEWAYS[0]))))));
    assert!(tables.leave_nat_ring() && !tables.leave_nat_ring());
    assert_eq!(tables.nat_ring(), None);
}

#[test]
fn places_that_no_packet_can_have_are_refused() {
    let mut tables = known();
    tables.set_nat_ring(1, None).unwrap();
    for (own, next, message) in [
        (64, None, "this gateway has position 64 in the ring: a ring has 64 positions from 0"),
        (
            3,
            Some((64, ip(GATEWAYS[0]))),
            "gateway 192.0.2.21 has position 64 in the ring: a ring has 64 positions from 0",
        ),
        (
            3,
            Some((3, ip(GATEWAYS[0]))),
            "gateway 192.0.2.21 has position 3 in the ring, which is that of this gateway",
        ),
        (3, Some((4, ip("192.0.2.30"))), "192.0.2.30 is not the VTEP of a gateway in the tables"),
        (3, Some((4, ip("192.0.2.99"))), "192.0.2.99 is not the VTEP of a gateway in the tables"),
    ] {
        let error = tables.set_nat_ring(own, next).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(tables.nat_ring(), Some((1, None)), "unchanged");
    }
}

/// Catches a cell that packets use as that of a gateway when it is something else.
#[test]
fn a_gateway_that_is_none_any_more_is_left_out() {
    let next = |gateway| Some((2, ip(gateway)));
    let mut tables = known();
    tables.set_nat_ring(1, next(GATEWAYS[0])).unwrap();
    tables.remove_vtep(ip(GATEWAYS[1])).unwrap();
    assert_eq!(tables.nat_ring(), Some((1, next(GATEWAYS[0]))), "another gateway");
    tables.remove_vtep(ip(GATEWAYS[0])).unwrap();
    assert_eq!(tables.nat_ring(), Some((1, None)));
    let mut tables = known();
    tables.set_nat_ring(1, next(GATEWAYS[1])).unwrap();
    tables.upsert_vtep(ip(GATEWAYS[1]), Role::Host).unwrap();
    assert_eq!(tables.nat_ring(), Some((1, None)));
    // A predecessor may have ended in between, and memory may be damaged.
    let mut tables = known();
    tables.set_nat_ring(1, next(GATEWAYS[0])).unwrap();
    let cell = tables.vteps[&ip(GATEWAYS[0])].cell;
    tables.memory().store32(cell, offset_of!(layout::next_hop, kind), 1 | layout::NEXT_HOP_HOST << 8);
    tables = adopt_again(tables);
    assert_eq!(tables.nat_ring(), Some((1, None)));
}

/// Hosts have the generation of their policies in the same word.
#[test]
fn generations_of_policies_are_no_place() {
    let mut tables = known();
    let at = offset_of!(node_config, by_role);
    for generation in [1, u64::from(u32::MAX)] {
        tables.memory().store64(layout::CELL_NODE, at, generation);
        tables = adopt_again(tables);
        assert_eq!(tables.nat_ring(), None);
        assert_eq!(tables.memory().load64(layout::CELL_NODE, at), generation);
    }
}
