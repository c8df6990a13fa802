//! What instances have besides their addresses: in the tables, in the saved instances and in digests; and claims.

use sluice_datapath::Claim;
use sluice_southbound::{
    AddressPair, MemberProbe, PortOptions, Service, ServiceAddress, ServiceMember, Update,
};
use sluice_tables::{Lookup, NextHop};
use sluice_types::{Digests, MacAddr, ROUTER_MAC};

use super::tests::{Host, delta, group, host_vtep, ip, port, removal, vni, vrf};
use super::*;
use crate::port_registry::Attachment;

const SHARED: &str = "10.0.0.80";
const VIRTUAL: &str = "fd00::81";

fn options(held: bool) -> PortOptions {
    let nets = ["10.0.0.70/32", "10.0.64.0/20", "fd00::70/128", "fd00:9::/64"];
    let pair = |address, mac| AddressPair { address: ip(address), mac, held };
    PortOptions {
        additional: nets.map(|net| net.parse().unwrap()).to_vec(),
        pairs: vec![pair(SHARED, None), pair(VIRTUAL, Some(MacAddr::local(99)))],
        unprotected: true,
        ..PortOptions::default()
    }
}

fn instance(held: bool) -> Port {
    Port { options: options(held), ..port(9) }
}

/// A snapshot with an instance.
fn snapshot(revision: u64, ports: Vec<Port>) -> Update {
    Update {
        snapshot: true,
        vteps: vec![host_vtep("192.0.2.1")],
        groups: vec![group(1, &["192.0.2.100"])],
        vrfs: vec![vrf(1, Some(1))],
        ports,
        ..delta(revision)
    }
}

fn attach(host: &mut Host, ifname: &str, ifindex: u32, number: u64) {
    let attachment = Attachment { ifindex, instance: InstanceId::new(number), peer_redirect: true, scope: 0 };
    host.applier.role.ports.attach(&mut host.applier.tables, ifname, attachment).unwrap();
}

/// A host on which the instance has a port.
fn host(held: bool) -> Host {
    let mut host = Host::new();
    host.apply(snapshot(10, vec![instance(held)]));
    attach(&mut host, "tap9", 50, 9);
    host
}

fn digests(update: &Update) -> Digests {
    let mut sums = Digests::default();
    update.entry_hashes().for_each(|(_, hash)| sums.add(hash));
    sums
}

/// The MAC address by which an address is reached, and the interface of its port.
fn found(host: &Host, address: &str) -> Option<(MacAddr, u32)> {
    let reader = host.tables().reader();
    let Lookup::Hit(hit) = reader.find(1, ip(address)) else { return None };
    let Some(NextHop::Port(ifindex)) = reader.next_hop(hit.cell) else { return None };
    Some((hit.mac, ifindex))
}

/// Catches routes of delegated prefixes that a snapshot removes because it does not mention them, and options that are not
/// written or that digests do not count as the controller does.
#[test]
fn options_are_in_the_tables_and_in_the_digests() {
    for held in [false, true] {
        let mut host = host(held);
        for revision in [11, 12] {
            host.apply(snapshot(revision, vec![instance(held)]));
            let own = Some((port(9).mac, 50));
            assert_eq!((found(&host, "10.0.0.70"), found(&host, "fd00::70")), (own, own));
            assert_eq!(found(&host, SHARED), held.then_some((ROUTER_MAC, 50)));
            assert_eq!(found(&host, VIRTUAL), held.then_some((MacAddr::local(99), 50)));
            for address in ["10.0.65.1", "fd00:9::1"] {
                let target = host.tables().reader().route(vni(1), ip(address));
                assert_eq!(target, Ok(Some(sluice_tables::Target::Port(50))), "{address}");
            }
            assert!(host.tables().port(50).unwrap().sources.unprotected);
            let compiled = digests(&snapshot(revision, vec![instance(held)]));
            assert_eq!(host.applier.digests().map(|(_, digests)| digests), Some(compiled));
        }
        host.apply(snapshot(13, vec![port(9)]));
        assert_eq!(found(&host, "10.0.0.70"), None);
        assert_eq!(host.tables().reader().route(vni(1), ip("10.0.65.1")), Ok(None));
        assert_eq!(host.applier.digests().unwrap().1, digests(&snapshot(13, vec![port(9)])));
    }
}

#[test]
fn options_survive_the_agent() {
    let mut host = host(true);
    host.restart();
    assert_eq!(host.applier.role.ports.instance(InstanceId::new(9)).unwrap().options, options(true));
    assert_eq!(found(&host, SHARED), Some((ROUTER_MAC, 50)));
    assert_eq!(host.applier.digests().unwrap().1, digests(&snapshot(10, vec![instance(true)])));
}

/// Catches an attachment that gets another number, by which its connections would end.
#[test]
fn connections_do_not_end_when_options_change() {
    let mut host = host(false);
    let scope = host.tables().port(50).unwrap().scope;
    host.apply(Update { ports: vec![instance(true)], ..delta(11) });
    host.apply(Update { ports: vec![port(9)], ..delta(12) });
    assert_eq!(host.tables().port(50).unwrap().scope, scope);
}

/// The new holder comes first or last in the update: no entry fails, and none is missing.
#[test]
fn an_address_moves_between_two_ports_of_the_host() {
    let mut host = host(true);
    let second = |held| Port {
        ipv4: "10.0.0.8/24".parse().ok(),
        options: PortOptions { additional: Vec::new(), ..options(held) },
        ..port(8)
    };
    host.apply(Update { ports: vec![second(false)], ..delta(11) });
    attach(&mut host, "tap8", 51, 8);
    let mut revision = 12;
    for holder in [8, 9, 8] {
        for is_reversed in [false, true] {
            let mut ports = vec![second(holder == 8), instance(holder == 9)];
            if is_reversed {
                ports.reverse();
            }
            let applied = host.apply(Update { ports: ports.clone(), ..delta(revision) }).unwrap();
            assert_eq!(applied.failures, Vec::<String>::new());
            let ifindex = if holder == 8 { 51 } else { 50 };
            assert_eq!(found(&host, SHARED), Some((ROUTER_MAC, ifindex)));
            assert_eq!(host.applier.digests().unwrap().1, digests(&snapshot(revision, ports)));
            revision += 1;
        }
    }
}

fn now_ms() -> u32 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap().as_millis() as u32
}

#[test]
fn announcements_are_claims_until_the_controller_has_decided() {
    let mut host = host(false);
    let announced = |number, address| Claim { instance: number, address: ip(address), at_ms: now_ms() };
    let waiting = |host: &Host| -> Vec<IpAddr> {
        host.applier.role.claims().waiting().iter().map(|(_, address)| *address).collect()
    };
    // Neither other instances nor other addresses are claimed.
    let none = [announced(7, SHARED), announced(9, "10.0.0.70"), announced(9, "10.0.0.81")];
    host.applier.role.note_claims(&none);
    assert_eq!(waiting(&host), Vec::<IpAddr>::new());
    let both = [announced(9, SHARED), announced(9, VIRTUAL)];
    host.applier.role.note_claims(&both);
    assert_eq!(waiting(&host), [ip(SHARED), ip(VIRTUAL)]);
    // An update that decides about one of them.
    let mut half = instance(false);
    half.options.pairs[0].held = true;
    host.apply(Update { ports: vec![half], ..delta(11) });
    assert_eq!(waiting(&host), [ip(VIRTUAL)]);
    host.applier.role.note_claims(&both);
    assert_eq!(waiting(&host), [ip(VIRTUAL)], "the other one is held");
    // The holder announced the address again before another became the holder.
    host.apply(Update { ports: vec![instance(false)], ..delta(12) });
    assert_eq!(waiting(&host), [ip(SHARED), ip(VIRTUAL)]);
    host.apply(Update { removed_ports: vec![InstanceId::new(9)], ..removal(13, &[], &[]) });
    assert_eq!(waiting(&host), Vec::<IpAddr>::new());
}

/// Catches a vNIC that takes the addresses of its mount from the service, and one that digests count otherwise than they were compiled.
#[test]
fn vnics_are_counted_as_compiled_and_leave_their_addresses_to_the_service() {
    let probe = MemberProbe { interval_ms: 10, failures: 3, epoch: 1 };
    let options = PortOptions { member: Some(probe), ..PortOptions::default() };
    let second = Port { ipv4: "10.0.0.8/24".parse().ok(), ipv6: "fd00::8/64".parse().ok(), ..port(8) };
    let vnic = Port { options: PortOptions { bonded: true, ..PortOptions::default() }, ..port(9) };
    let host_of_member = ip("192.0.2.1");
    let member = ServiceMember { number: 1, mac: vnic.mac, host: host_of_member, selected: true };
    let (ipv4, ipv6) = (vnic.ipv4.map(|net| net.addr()), vnic.ipv6.map(|net| net.addr()));
    let sent = Update {
        services: vec![Service { id: 5, seed: [1, 2], members: vec![member] }],
        service_addresses: vec![ServiceAddress { vni: vni(1), service: 5, ipv4, ipv6 }],
        ..snapshot(10, vec![vnic.clone(), Port { options, ..second }])
    };
    let compiled = digests(&sent);
    let mut host = Host::new();
    assert_eq!(host.apply(sent).unwrap().failed_entries, 0);
    assert_eq!(host.applier.digests().unwrap().1, compiled, "without interfaces");
    attach(&mut host, "tap9", 50, 9);
    attach(&mut host, "tap8", 51, 8);
    assert_eq!(host.applier.digests().unwrap().1, compiled, "with interfaces");
    let reader = host.applier.tables.reader();
    for address in ipv4.map(IpAddr::V4).into_iter().chain(ipv6.map(IpAddr::V6)) {
        let Lookup::Hit(hit) = reader.find(1, address) else { panic!("no entry of {address}") };
        assert_eq!(reader.next_hop(hit.cell), Some(NextHop::Service(5)));
    }
    assert_eq!(host.applier.role.ports.instance(vnic.instance), Some(&vnic));
}
