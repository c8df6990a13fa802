//! Digests of a host's tables: what they contain, and faults in the tables' memory that they find and a snapshot repairs.

use sluice_agent::Repaired;
use sluice_southbound::Update;
use sluice_tables::damage::{find_words, flip};
use sluice_tables::{Endpoint, Memory, Role as NodeRole};
use sluice_types::{Digests, MacAddr};

use super::tests::{DELAY, Host, delta, gateway_vtep, group, host_vtep, ip, port, removal, vni, vrf};
use super::*;
use crate::port_registry::Attachment;

const IFINDEX: u32 = 0x7a31;
/// Ids that occur nowhere else in the memory.
const GROUP: u32 = 0x5b1c_77a1;
const VIPS: [&str; 2] = ["192.0.2.100", "192.0.2.101"];

/// A host with a port, and an instance without one.
fn cloud(revision: u64) -> Update {
    let second = Port { ipv4: "10.0.0.8/24".parse().ok(), ipv6: "fd00::8/64".parse().ok(), ..port(8) };
    Update {
        snapshot: true,
        vteps: vec![host_vtep("192.0.2.1"), gateway_vtep("192.0.2.11"), gateway_vtep("192.0.2.12")],
        groups: vec![group(GROUP, &VIPS), group(2, &[])],
        vrfs: vec![vrf(1, Some(GROUP)), vrf(2, None)],
        ports: vec![port(9), second],
        ..delta(revision)
    }
}

fn host() -> Host {
    let mut host = Host::new();
    host.apply(cloud(10));
    let instance = InstanceId::new(9);
    let attachment = Attachment { ifindex: IFINDEX, instance, peer_redirect: true, scope: 0 };
    host.applier.role.ports.attach(&mut host.applier.tables, "tap9", attachment).unwrap();
    host
}

/// The digests of what was compiled.
fn compiled() -> Digests {
    let mut sums = Digests::default();
    cloud(0).entry_hashes().for_each(|(_, hash)| sums.add(hash));
    sums
}

impl Host {
    fn digests(&self) -> Digests {
        self.applier.digests().expect("the tables are of a revision").1
    }

    /// Applies a snapshot that verifies the shards that differ from what was compiled.
    fn verify(&mut self) -> Repaired {
        let (found, right) = (self.digests(), compiled());
        let verify_shards = found.differences(&right).fold(0, |bits, shard| bits | 1 << shard);
        self.apply(Update { verify_shards, ..cloud(11) }).unwrap().repaired.unwrap_or_default()
    }
}

/// Flips bits of the only word of the memory for which `is_wanted` is true.
fn damage(memory: &Memory, bits: u64, is_wanted: impl Fn(u64) -> bool) {
    let words = find_words(memory, is_wanted);
    assert!(!words.is_empty(), "there is no such word");
    words.into_iter().for_each(|at| flip(memory, at, bits));
}

fn key_word(kind: u64, vni: u64, low: u32) -> impl Fn(u64) -> bool {
    move |word| word & ((1 << 58) - 1) == kind << 56 | vni << 32 | u64::from(low)
}

/// The second word of a cell that has an address of the underlay holds its first bytes.
fn address_word(address: &str) -> impl Fn(u64) -> bool {
    let IpAddr::V4(address) = ip(address) else { panic!("{address} is not an IPv4 address") };
    let word = u64::from(u32::from_le_bytes(address.octets()));
    move |found| found == word
}

/// Catches a kind of damage to a host's entries that digests do not see, that is named wrongly, or that a snapshot does not
/// repair.
#[test]
fn damage_is_named_and_repaired() {
    type Fault = (&'static str, &'static [&'static str], fn(&mut Host));
    let faults: &[Fault] = &[
        ("MAC of an address", &["port 10.0.0.9 of VNI 1 was wrong"], |host| {
            let mac = MacAddr::local(9).to_u64();
            damage(host.tables().memory(), 1 << 5, |word| word == mac);
        }),
        ("MTU of a port", &["port 10.0.0.9 of VNI 1 was wrong"], |host| {
            let is_port = |word: u64| (word >> 32) as u32 == IFINDEX && (word >> 16 & 0xffff) == 1430;
            damage(host.tables().memory(), 1 << 17, is_port);
        }),
        ("interface number in a port", &["port 10.0.0.9 of VNI 1 was wrong"], |host| {
            let is_port = |word: u64| (word >> 32) as u32 == IFINDEX && (word >> 16 & 0xffff) == 1430;
            damage(host.tables().memory(), 1 << 33, is_port);
        }),
        ("address of a port", &["port 10.0.0.9 of VNI 1 was missing"], |host| {
            damage(host.tables().memory(), 1 << 40, key_word(1, 1, 0x0a00_0009));
        }),
        ("interface of a port", &["port 10.0.0.9 of VNI 1 was wrong"], |host| {
            damage(host.tables().memory(), 1 << 40, key_word(3, 0, IFINDEX));
        }),
        ("address of a node", &["VTEP 192.0.2.11 was wrong"], |host| {
            damage(host.tables().memory(), 1 << 9, address_word("192.0.2.11"));
        }),
        ("next hop of a group", &["was wrong"], |host| {
            damage(host.tables().memory(), 1 << 9, address_word(VIPS[1]));
        }),
        ("group", &["was missing"], |host| {
            damage(host.tables().memory(), 1 << 5, key_word(3, 0x00ff_ffff, GROUP));
        }),
        ("group of a VRF", &["VRF of VNI 1 was wrong"], |host| {
            damage(host.tables().memory(), 1 << 40, |word| (word >> 32) as u32 == GROUP);
        }),
        ("foreign node", &["VTEP 192.0.2.77 was additional"], |host| {
            host.applier.tables.upsert_vtep(ip("192.0.2.77"), NodeRole::Host).unwrap();
        }),
        ("foreign endpoint", &["endpoint 10.0.0.77 of VNI 1 was additional"], |host| {
            let (address, host_address) = (ip("10.0.0.77"), ip("192.0.2.1"));
            let entry = Endpoint { vni: vni(1), address, mac: MacAddr::local(77), host: host_address };
            host.applier.tables.upsert_endpoint(&entry).unwrap();
        }),
        ("lost network", &["VRF of VNI 2 was missing"], |host| {
            host.applier.tables.remove_vrf(vni(2)).unwrap();
        }),
        ("lost port", &["port 10.0.0.9 of VNI 1 was missing"], |host| {
            host.applier.tables.remove_port(IFINDEX).unwrap();
        }),
    ];
    for (fault, names, inject) in faults {
        let mut host = host();
        assert_eq!(host.digests(), compiled(), "{fault}");
        inject(&mut host);
        assert_ne!(host.digests(), compiled(), "{fault}: not seen");
        let named = host.verify().named;
        let has = |name: &&str| named.iter().any(|text| text.ends_with(*name));
        assert!(names.iter().all(has), "{fault}: {named:?}");
        // What the first snapshot could only remove is entered by the second.
        if host.digests() != compiled() {
            host.verify();
        }
        assert_eq!(host.digests(), compiled(), "{fault}: not repaired");
        let kept = host.tables().port(IFINDEX).expect("the port is in the tables");
        assert!(host.tables().is_port_right(&kept) && kept.mtu == 1430, "{fault}: {kept:?}");
    }
}

/// Catches digests that contain what only the host knows: entries whose removal it delays, and paths that it learned.
#[test]
fn entries_of_the_host_itself_do_not_differ() {
    let mut host = host();
    let path = sluice_tables::DirectPath {
        vni: vni(1),
        address: ip("10.0.0.50"),
        mac: MacAddr::local(50),
        host: ip("192.0.2.1"),
        path_vni: vni(1),
        mtu: 0,
        fixed: false,
        moved: false,
    };
    host.applier.tables.upsert_direct_path(&path).unwrap();
    assert_eq!(host.digests(), compiled());
    host.apply(Update { removed_vteps: vec![ip("192.0.2.12")], ..removal(11, &[2], &[]) });
    assert!(host.tables().vrf(vni(2)).is_some() && host.tables().role(ip("192.0.2.12")).is_some());
    let mut without = cloud(0);
    without.vteps.pop();
    without.vrfs.pop();
    let mut sums = Digests::default();
    without.entry_hashes().for_each(|(_, hash)| sums.add(hash));
    assert_eq!(host.digests(), sums);
    host.remove_expired(Instant::now() + DELAY);
    assert!(host.tables().vrf(vni(2)).is_none());
    assert_eq!(host.digests(), sums);
}
