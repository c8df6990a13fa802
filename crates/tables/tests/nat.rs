//! The packets' C run in this process, the agent's Rust and a naive model agree on random histories of source NAT.

#[path = "support/nat_history.rs"]
mod nat_history;

use proptest::prelude::*;
use sluice_tables::nat::NatRegions;
use sluice_tables::sessions::{Region, SessionRegions};
use sluice_tables_testing::nat::HostNat;
use std::ptr::NonNull;

fn host(regions: &NatRegions) -> HostNat {
    let at = |region: &Region| NonNull::new(region.as_ptr()).unwrap();
    let buckets = regions.sessions.ipv4.bytes() / SessionRegions::BUCKET4_BYTES;
    let buckets6 = regions.sessions.ipv6.bytes() / SessionRegions::BUCKET6_BYTES;
    let groups = regions.groups.bytes() / NatRegions::GROUP_BYTES;
    let cells = regions.ports.bytes() / NatRegions::CELL_BYTES;
    // SAFETY: the regions have these lengths, are laid out or zero, and outlive the tables in this test, which has one thread.
    unsafe {
        HostNat::new(
            at(&regions.config),
            (at(&regions.groups), groups),
            (at(&regions.ports), cells),
            (at(&regions.tuples), regions.tuples.bytes() / NatRegions::TUPLES_BYTES),
            at(&regions.sessions.config),
            [(at(&regions.sessions.ipv4), buckets), (at(&regions.sessions.ipv6), buckets6)],
        )
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn host_c_rust_and_model_agree(world in nat_history::worlds(), ops in nat_history::ops()) {
        let regions = NatRegions::anonymous(world.size, 200).unwrap();
        let tables = host(&regions);
        nat_history::run(&regions, &world, &ops, &mut |packet| tables.run(packet));
    }
}
