//! The slots in which packets find most vIPs.

use super::*;
use crate::layout::vip_slot;
use std::collections::BTreeMap;

/// Address and MAC address of each slot that is in use.
fn slots(tables: &NodeTables) -> BTreeMap<IpAddr, MacAddr> {
    let memory = tables.memory();
    let slots = (layout::CELL_VIPS..layout::CELL_FIRST_FREE)
        .flat_map(|cell| (0..4).map(move |slot| (cell, slot * size_of::<vip_slot>())));
    slots
        .filter_map(|(cell, at)| {
            let address = ipv4_from_word(memory.load32(cell, at + offset_of!(vip_slot, address)))?;
            let mac = memory.load64(cell, at + offset_of!(vip_slot, mac)).to_ne_bytes();
            Some((address.into(), mac_from_bytes(mac)))
        })
        .collect()
}

fn vip(last: u8, number: u64) -> Vip {
    Vip { address: IpAddr::from([192, 0, 2, last]), mac: mac(number), owned: false }
}

fn expected(vips: &[Vip]) -> BTreeMap<IpAddr, MacAddr> {
    vips.iter().map(|vip| (vip.address, vip.mac)).collect()
}

/// Catches a slot of a vIP that was removed or has another MAC address, for which packets would be accepted.
#[test]
fn slots_have_the_present_vips() {
    let mut tables = tables(4096);
    let mut vips: Vec<Vip> = (100..116).map(|last| vip(last, last.into())).collect();
    for vip in &vips {
        tables.upsert_vip(vip).unwrap();
    }
    tables.upsert_vip(&Vip { address: ip("2001:db8::1"), ..vips[0] }).unwrap();
    assert_eq!(slots(&tables), expected(&vips), "addresses that follow each other have a slot each");
    vips[3].mac = mac(7);
    tables.upsert_vip(&vips[3]).unwrap();
    tables.remove_vip(vips.remove(5).address).unwrap();
    assert_eq!(slots(&tables), expected(&vips));
    // Damage, or a writer that was killed: the next writer, and the next time that the vIP is given, repair it.
    for repair in [adopt_again as fn(NodeTables) -> NodeTables, |mut tables| {
        tables.upsert_vip(&vip(100, 100)).unwrap();
        tables
    }] {
        for cell in layout::CELL_VIPS..layout::CELL_FIRST_FREE {
            tables.memory().store64(cell, 0, 0x1234_5678);
        }
        assert_ne!(slots(&tables), expected(&vips));
        tables = repair(tables);
        assert_eq!(slots(&tables), expected(&vips));
    }
}

/// Catches a slot that stays empty, or has the wrong vIP, when the other one of its vIPs is removed.
#[test]
fn vips_that_share_a_slot_take_turns() {
    let mut tables = tables(4096);
    let [one, other] = [[192, 0, 2, 100], [192, 0, 6, 84]].map(IpAddr::from);
    let [one, other] =
        [(one, 1), (other, 2)].map(|(address, number)| Vip { address, mac: mac(number), owned: true });
    tables.upsert_vip(&other).unwrap();
    assert_eq!(slots(&tables), expected(&[other]));
    tables.upsert_vip(&one).unwrap();
    assert_eq!(slots(&tables), expected(&[one]), "they share a slot");
    tables.remove_vip(one.address).unwrap();
    assert_eq!(slots(&tables), expected(&[other]));
}
