//! `bpf/include/cells.h`, `session_layout.h` and `drops.h`, bound at build time: the layout that
//! the writer here and the eBPF programs share.
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
    assert!(size_of::<vrf>() == cell);
    assert!(size_of::<next_hop>() == cell);
    assert!(size_of::<port>() == 2 * cell);
    assert!(size_of::<lpm_node>() == 2 * cell);
    assert!(size_of::<group>() == GROUP_CELLS_MAX as usize * cell);
    assert!(size_of::<node_config>() == (CELL_FIRST_FREE - CELL_NODE) as usize * cell);
    assert!(size_of::<lpm_scan4>() * LPM_SCAN4_PER_CELL as usize <= cell);
    assert!(size_of::<lpm_scan6>() * LPM_SCAN6_PER_CELL as usize <= cell);
    assert!(CELL_EXACT_ROOT + 1 == CELL_NODE);
    assert!(size_of::<session4>() == 64 && size_of::<session6>() == 96);
    assert!(size_of::<session_bucket4>() == 9 * cell && size_of::<session_bucket6>() == 13 * cell);
    assert!(size_of::<session_config>() == 4 * cell);
    assert!(core::mem::offset_of!(session_bucket4, record) == core::mem::offset_of!(session_bucket6, record));
};
