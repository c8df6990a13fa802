//! The layout that Rust and the eBPF programs share: the headers of `bpf/include/layout`, bound at build
//! time.
#![allow(missing_docs, non_camel_case_types, non_upper_case_globals, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/layout.rs"));

const _: () = {
    use core::mem::size_of;
    let cell = CELL_BYTES as usize;
    assert!(size_of::<cell>() == cell);
    assert!(size_of::<superblock>() == cell);
    assert!(size_of::<exact_bucket>() == cell);
    assert!(size_of::<exact_root>() == cell);
    assert!(size_of::<exact_conflict>() == cell);
    assert!(size_of::<service>() == cell);
    assert!(size_of::<vrf>() == cell);
    assert!(size_of::<next_hop>() == cell);
    assert!(size_of::<public_prefix>() == cell);
    assert!(size_of::<peering>() == cell);
    assert!(size_of::<internet>() == cell);
    assert!(size_of::<nat_gateway>() == cell);
    assert!(size_of::<nat_addresses>() == (NAT_GATEWAY_CELLS - 1) as usize * cell);
    assert!(size_of::<nat_forwards>() == cell);
    assert!(size_of::<port>() == 2 * cell);
    assert!(size_of::<policy>() == cell);
    assert!(size_of::<group>() == GROUP_CELLS_MAX as usize * cell);
    assert!(size_of::<node_config>() == (CELL_VIPS - CELL_NODE) as usize * cell);
    assert!(VIP_SLOTS as usize * size_of::<vip_slot>() == (CELL_FIRST_FREE - CELL_VIPS) as usize * cell);
    assert!(SENDER_IPV4 >> SENDER_CHECK_SHIFT == 1 && 1 << SENDER_CHECK_SHIFT == CELL_INDEX_MASK as u64 + 1);
    assert!(size_of::<lpm_scan4>() == cell);
    assert!(size_of::<lpm_scan6>() == cell);
    assert!(size_of::<lpm_narrow>() == cell);
    assert!(size_of::<lpm_wide>() == cell);
    assert!(size_of::<lpm_long>() == cell);
    assert!(size_of::<lpm_skip>() == cell);
    assert!(size_of::<flow_table>() == cell);
    assert!(size_of::<flow_bucket>() == cell);
    assert!(size_of::<meter_table>() == cell);
    assert!(size_of::<meter>() == cell && size_of::<meter_name>() == cell);
    assert!(CELL_EXACT_ROOT + 1 == CELL_NODE);
    assert!(size_of::<session4>() == 64 && size_of::<session6>() == 96);
    assert!(size_of::<session_bucket4>() == 8 * cell && size_of::<session_bucket6>() == 12 * cell);
    assert!(size_of::<session_config>() == 4 * cell);
    assert!(size_of::<nat_config>() == cell && size_of::<nat_ports>() == cell);
    assert!(size_of::<nat_block>() == 48 && size_of::<nat_group>() == 15 * cell);
    assert!(core::mem::offset_of!(session_bucket4, record) == core::mem::offset_of!(session_bucket6, record));
    assert!(core::mem::offset_of!(session_bucket4, tag) == core::mem::offset_of!(session_bucket6, tag));
};
