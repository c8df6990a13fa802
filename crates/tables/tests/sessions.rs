//! The packets' C run in this process, the agent's Rust and a naive model agree on random histories of
//! session tables.

#[path = "support/history.rs"]
mod history;

use proptest::prelude::*;
use sluice_tables::sessions::{Region, SessionRegions};
use sluice_tables_testing::HostTables;
use std::ptr::NonNull;

fn host(regions: &SessionRegions) -> HostTables {
    let at = |region: &Region| NonNull::new(region.as_ptr()).unwrap();
    let buckets4 = regions.ipv4.bytes() / SessionRegions::BUCKET4_BYTES;
    let buckets6 = regions.ipv6.bytes() / SessionRegions::BUCKET6_BYTES;
    // SAFETY: the regions have these lengths, are laid out or zero, and outlive the tables in this test,
    // which has one thread.
    unsafe {
        HostTables::new(at(&regions.config), [(at(&regions.ipv4), buckets4), (at(&regions.ipv6), buckets6)])
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn host_c_rust_and_model_agree(
        buckets4 in 2..12_u32,
        buckets6 in 2..12_u32,
        seed in any::<u64>(),
        now in prop::sample::select(vec![0, 5, 0x7fff_fff0, 0xffff_ff00, 0xffff_fffe]),
        ops in history::ops(),
    ) {
        let regions = SessionRegions::anonymous(buckets4, buckets6).unwrap();
        let tables = host(&regions);
        history::run(&regions, seed, now, &ops, |operation| tables.run(operation));
    }
}
