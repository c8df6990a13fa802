//! Which hosts may send in which networks.

use super::*;
use crate::exact::Entry;
use std::time::Duration;

#[test]
fn senders_are_the_hosts_of_a_network_s_endpoints() {
    const HOSTS: [&str; 4] = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"];
    // With the mask 0 all IPv6 hosts of a network have one key.
    for digest_mask in [u64::MAX, 0] {
        let memory = Memory::anonymous(4096).unwrap();
        let sizes = Sizes { endpoints: 100 };
        let mut tables = NodeTables::create_with_digest_mask(memory, Immediate, sizes, digest_mask).unwrap();
        let is_sender = |tables: &NodeTables| HOSTS.map(|host| tables.is_sender(5, ip(host)));
        for host in HOSTS {
            tables.upsert_vtep(ip(host), Role::Host).unwrap();
        }
        let before = used_after_flush(&mut tables);
        assert_eq!(is_sender(&tables), [false; 4]);
        for (number, host) in HOSTS.iter().enumerate() {
            for address in [format!("10.0.0.{}", number + 1), format!("fd00::{}", number + 1)] {
                tables.upsert_endpoint(&endpoint(5, &address, host)).unwrap();
            }
        }
        assert_eq!((is_sender(&tables), tables.senders()), ([true; 4], 4));
        assert!(!tables.is_sender(6, ip(HOSTS[0])), "of another network");
        // Adoption counts the endpoints again.
        tables = adopt_again(tables);
        assert_eq!((is_sender(&tables), tables.senders()), ([true; 4], 4));
        assert_eq!(tables.remove_idle_senders(Duration::ZERO).unwrap(), 0);
        for number in [1, 3] {
            tables.remove_endpoint(vni(5), ip(&format!("10.0.0.{number}"))).unwrap();
        }
        assert_eq!(tables.remove_idle_senders(Duration::ZERO).unwrap(), 0, "each has one endpoint left");
        for number in [1, 3] {
            tables.remove_endpoint(vni(5), ip(&format!("fd00::{number}"))).unwrap();
        }
        tables = adopt_again(tables);
        assert_eq!(is_sender(&tables), [true; 4], "for packets in transit");
        assert_eq!(tables.remove_idle_senders(Duration::from_secs(60)).unwrap(), 0);
        assert_eq!(tables.remove_idle_senders(Duration::ZERO).unwrap(), 2);
        // Hosts that have one key cannot be told apart.
        let shared = digest_mask == 0;
        assert_eq!(is_sender(&tables), [false, true, shared, true]);
        // A removed host may not send, whatever endpoints it has.
        for host in [HOSTS[1], HOSTS[3]] {
            tables.remove_vtep(ip(host)).unwrap();
            assert!(!tables.is_sender(5, ip(host)));
            tables = adopt_again(tables);
            assert!(!tables.is_sender(5, ip(host)));
            tables.upsert_vtep(ip(host), Role::Host).unwrap();
            assert!(tables.is_sender(5, ip(host)));
        }
        for number in [2, 4] {
            for address in [format!("10.0.0.{number}"), format!("fd00::{number}")] {
                tables.remove_endpoint(vni(5), ip(&address)).unwrap();
            }
        }
        tables.remove_idle_senders(Duration::ZERO).unwrap();
        assert_eq!((is_sender(&tables), tables.senders()), ([false; 4], 0));
        assert_eq!(tables.usage().endpoints, 0);
        assert!(used_after_flush(&mut tables) <= before + 60, "only IPv6 addresses of slots remain");
    }
}

#[test]
fn tables_without_senders_get_them_when_they_are_adopted() {
    let mut tables = tables(4096);
    for host in ["192.0.2.1", "2001:db8::1"] {
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
        tables.upsert_endpoint(&endpoint(5, "10.0.0.1", host)).unwrap();
        // As an earlier version of this program left them.
        let (key, _) = tables.exact.sender(5, ip(host));
        tables.exact.take(&mut tables.pool, key).unwrap();
        assert!(!tables.is_sender(5, ip(host)));
        tables = adopt_again(tables);
        assert!(tables.is_sender(5, ip(host)));
    }
}

/// Catches a sender whose entry is damaged, so that its packets are dropped until the agent ends.
#[test]
fn damaged_senders_are_entered_again() {
    const HOSTS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
    let mut tables = tables(4096);
    for (number, host) in HOSTS.iter().enumerate() {
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
        tables.upsert_endpoint(&endpoint(5, &format!("10.0.0.{}", number + 1), host)).unwrap();
    }
    assert_eq!(tables.repair_senders().unwrap(), 0);
    let usage = tables.usage();
    let memory = tables.memory().clone();
    for host in HOSTS {
        let (key, check) = tables.exact.sender(5, ip(host));
        let Key::Index { id, .. } = key else { panic!("{key:?}") };
        let word = u64::from(layout::EXACT_INDEX) << layout::EXACT_KIND_SHIFT | 5 << 32 | u64::from(id);
        // First the key, then the value that tells hosts with one key apart.
        let is_key = |found: u64| found & layout::EXACT_KEY_MASK == word;
        for is_wanted in [&is_key as &dyn Fn(u64) -> bool, &|found: u64| {
            found & !layout::EXACT_MAC_MASK == 0 && found == check
        }] {
            for at in crate::damage::find_words(&memory, is_wanted) {
                crate::damage::flip(&memory, at, 1 << 30);
            }
            assert!(!tables.is_sender(5, ip(host)), "the damage changed nothing");
            assert_eq!(tables.repair_senders().unwrap(), 1);
            assert!(HOSTS.iter().all(|host| tables.is_sender(5, ip(host))));
        }
    }
    assert_eq!(tables.usage().senders, usage.senders);
}

#[test]
fn permits_linger_from_the_last_one_on() {
    let mut tables = tables(4096);
    for host in ["192.0.2.1", "2001:db8::1"] {
        assert!(tables.permit_sender(vni(5), ip(host)).is_err(), "no node has the address");
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
        tables.permit_sender(vni(5), ip(host)).unwrap();
        tables.permit_sender(vni(5), ip(host)).unwrap();
        assert!(tables.is_sender(5, ip(host)) && !tables.is_sender(6, ip(host)));
    }
    assert_eq!(
        (tables.senders(), tables.idle_senders.len()),
        (2, 2),
        "a renewal within the step is not recorded"
    );
    // The first permit was long ago, and was renewed.
    let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    tables.senders.values_mut().for_each(|sender| sender.make_idle_since(long_ago));
    tables.idle_senders.iter_mut().for_each(|(since, ..)| *since = long_ago);
    tables.permit_sender(vni(5), ip("192.0.2.1")).unwrap();
    assert_eq!(tables.remove_idle_senders(Duration::from_secs(50)).unwrap(), 1);
    assert!(tables.is_sender(5, ip("192.0.2.1")) && !tables.is_sender(5, ip("2001:db8::1")));
    // After an adoption the time begins again.
    tables = adopt_again(tables);
    assert_eq!(tables.remove_idle_senders(Duration::from_secs(50)).unwrap(), 0);
    assert_eq!(tables.remove_idle_senders(Duration::ZERO).unwrap(), 1);
    assert_eq!(tables.senders(), 0);
}

#[test]
fn fixed_paths_let_their_hosts_send() {
    let mut tables = tables(4096);
    let hosts = ["192.0.2.1", "2001:db8::1"];
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    for host in hosts {
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
        let learned = direct(5, "10.0.0.9", host);
        tables.upsert_direct_path(&learned).unwrap();
        assert_eq!(tables.senders(), 0, "a learned path permits nobody");
        tables.remove_direct_path(vni(5), learned.address).unwrap();
    }
    let fixed = |address, host| DirectPath { fixed: true, ..direct(5, address, host) };
    for address in ["10.0.0.1", "fd00::1"] {
        tables.upsert_direct_path(&fixed(address, hosts[0])).unwrap();
    }
    tables = adopt_again(tables);
    assert_eq!(tables.remove_idle_senders(Duration::ZERO).unwrap(), 0);
    // One moves, then the other is removed.
    tables.upsert_direct_path(&fixed("10.0.0.1", hosts[1])).unwrap();
    assert_eq!(tables.remove_idle_senders(Duration::ZERO).unwrap(), 0);
    assert!(hosts.iter().all(|host| tables.is_sender(5, ip(host))));
    tables.remove_direct_path(vni(5), ip("fd00::1")).unwrap();
    assert_eq!(tables.remove_idle_senders(Duration::ZERO).unwrap(), 1);
    assert!(!tables.is_sender(5, ip(hosts[0])) && tables.is_sender(5, ip(hosts[1])));
    tables.remove_vtep(ip(hosts[1])).unwrap();
    assert_eq!(tables.senders(), 0);
}

/// Catches a host that may send forever after the port of an instance that has come from it has replaced the path there.
#[test]
fn a_path_that_a_port_replaces_lets_its_host_send_no_longer() {
    let mut tables = tables(4096);
    tables.upsert_vrf(&plain_vrf(5)).unwrap();
    let host = "192.0.2.1";
    tables.upsert_vtep(ip(host), Role::Host).unwrap();
    for (fixed, moved) in [(true, true), (true, false), (false, false)] {
        let path = DirectPath { fixed, moved, ..direct(5, "10.0.0.9", host) };
        tables.upsert_direct_path(&path).unwrap();
        assert_eq!((tables.is_sender(5, ip(host)), tables.has_endpoint_in(5, ip(host))), (fixed, fixed));
        tables.upsert_port(&port(9)).unwrap();
        assert!(!tables.has_endpoint_in(5, ip(host)));
        assert_eq!(tables.remove_idle_senders(Duration::ZERO).unwrap(), usize::from(fixed));
        assert_eq!((tables.is_sender(5, ip(host)), tables.direct_paths().count()), (false, 0));
        tables.remove_port(9).unwrap();
    }
}

/// Catches a sender's entry that leads packets to a VRF that moved or was removed.
#[test]
fn entries_of_senders_lead_to_the_vrf_of_their_vni() {
    const HOSTS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
    let mut tables = tables(4096);
    let vrf_cells = |tables: &NodeTables| {
        HOSTS.map(|host| {
            let (key, check) = tables.exact.sender(5, ip(host));
            let value = tables.exact.get(tables.memory(), key).expect("the sender has an entry").mac;
            assert_eq!(value & layout::SENDER_CHECK_MASK, check);
            (value & u64::from(layout::CELL_INDEX_MASK)) as u32
        })
    };
    for (number, host) in HOSTS.iter().enumerate() {
        tables.upsert_vtep(ip(host), Role::Host).unwrap();
        tables.upsert_endpoint(&endpoint(5, &format!("10.0.0.{}", number + 1), host)).unwrap();
    }
    assert_eq!(vrf_cells(&tables), [0; 2], "there is no VRF yet");
    for mtu in [0, 1400, 1300] {
        tables.upsert_vrf(&Vrf { mtu, ..plain_vrf(5) }).unwrap();
        assert_eq!(vrf_cells(&tables), [tables.vrfs[&5]; 2], "a changed VRF has another cell");
        tables.upsert_vrf(&plain_vrf(6)).unwrap();
        assert_eq!(vrf_cells(&tables), [tables.vrfs[&5]; 2]);
    }
    // As a writer leaves them that is killed before it has changed them.
    let (key, _) = tables.exact.sender(5, ip(HOSTS[0]));
    let old = tables.exact.get(tables.memory(), key).unwrap();
    tables.exact.overwrite(&mut tables.pool, key, Entry { mac: old.mac ^ 1, ..old }).unwrap();
    tables = adopt_again(tables);
    assert_eq!(vrf_cells(&tables), [tables.vrfs[&5]; 2]);
    tables.exact.overwrite(&mut tables.pool, key, Entry { mac: old.mac ^ 1, ..old }).unwrap();
    assert_eq!(tables.repair_senders().unwrap(), 1, "damage is repaired");
    assert_eq!(vrf_cells(&tables), [tables.vrfs[&5]; 2]);
    tables.remove_vrf(vni(5)).unwrap();
    assert_eq!(vrf_cells(&tables), [0; 2]);
    assert!(HOSTS.iter().all(|host| tables.is_sender(5, ip(host))));
}
