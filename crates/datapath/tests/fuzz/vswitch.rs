//! The vSwitch's programs over the fixtures' tables, from frames as theirs.

#[allow(dead_code, reason = "shared with the fixtures, which use all of it")]
#[path = "../fixtures/vswitch/frames.rs"]
mod frames;
#[allow(dead_code, reason = "shared with the fixtures, which use all of it")]
#[path = "../fixtures/vswitch/wire.rs"]
mod wire;
#[allow(dead_code, reason = "shared with the fixtures, which use all of it")]
#[path = "../fixtures/vswitch/world.rs"]
mod world;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluice_types::{MacAddr, ROUTER_MAC};

use crate::Target;
use crate::support::build::*;
use frames::{addresses, datagram, packet, routed};
use world::{FE80_1, HOST4, HOST6, LINK_LOCAL, Place, REMOTE, ROUTER4, ROUTER6, vm4, vm6};

/// Ports number 1 to 3, segments, half in fragments, without budget, tagged; from either underlay, a gateway
/// or a host.
const SWITCHES: [u8; 11] = [0, 0x01, 0x02, 0x20, 0x04, 0x08, 0x80, 0x10, 0x50, 0x30, 0x70];
/// VMs on other hosts to which there is a direct path: in their own VPC, and in a peer.
const NEAR: u8 = 55;
const PEERED: u8 = 56;

/// A client's message of a kind (RFC 2131), with the options that clients send.
fn dhcp(kind: u8) -> Vec<u8> {
    let mut bytes = vec![1, 1, 6, 0, 1, 2, 3, 4];
    bytes.resize(28, 0);
    bytes.extend(Place::A.mac().octets());
    bytes.resize(236, 0);
    bytes.extend([0x63, 0x82, 0x53, 0x63, 53, 1, kind, 55, 4, 1, 3, 6, 26]);
    bytes.extend([&[50, 4][..], &Place::A.ip4().octets(), &[54, 4], &ROUTER4.octets(), &[255]].concat());
    let (from, to) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    let datagram = udp(from.into(), to.into(), (68, 67), &bytes);
    ethernet(BROADCAST, Place::A.mac(), ETHERTYPE_IPV4, &Ipv4::new(from, to, UDP).build(&datagram))
}

/// ICMPv6 between a VM and its network, at the hop limit that neighbour discovery wants.
fn control6(kind: u8, from: Ipv6Addr, to: Ipv6Addr, body: &[u8]) -> Vec<u8> {
    let message = icmpv6(from, to, kind, 0, 0, body);
    packet((ROUTER_MAC, Place::A.mac()), (from.into(), to.into()), ICMPV6, 255, &message)
}

fn control_frames() -> Vec<Vec<u8>> {
    let (vm, own6) = (Place::A, Place::A.ip6());
    let all_nodes: Ipv6Addr = "ff02::1".parse().unwrap();
    let all_routers: Ipv6Addr = "ff02::2".parse().unwrap();
    let solicit = |from, target| Solicit::new(from, vm.mac(), target).build();
    let mut frames: Vec<_> = [1, 3, 4, 7, 8].into_iter().map(dhcp).collect();
    frames.extend(
        [ROUTER4, vm.ip4(), vm4(1, 11), vm4(1, REMOTE)].map(|to| arp_request((vm.mac(), vm.ip4()), to)),
    );
    frames.push(arp_request((vm.mac(), Ipv4Addr::UNSPECIFIED), vm4(1, REMOTE)));
    for from in [own6, LINK_LOCAL, Ipv6Addr::UNSPECIFIED] {
        frames.extend([ROUTER6, FE80_1, own6, vm6(1, 11), vm6(1, REMOTE)].map(|to| solicit(from, to)));
        frames.push(control6(133, from, all_routers, &[]));
    }
    frames.push(advert((all_nodes, BROADCAST), (own6, vm.mac()), 0x2000_0000));
    frames.extend([130, 131, 132, 134, 137, 143].map(|kind| control6(kind, LINK_LOCAL, all_nodes, &[0; 24])));
    frames
}

fn vm_frames() -> Vec<Vec<u8>> {
    let (vm, macs) = (Place::A, (ROUTER_MAC, Place::A.mac()));
    let mut frames = control_frames();
    let targets: [IpAddr; 10] = [
        vm4(1, 11).into(),
        vm6(1, 11).into(),
        vm4(1, REMOTE).into(),
        vm6(1, REMOTE).into(),
        vm4(1, NEAR).into(),
        vm6(1, NEAR).into(),
        vm4(1, PEERED).into(),
        vm6(1, PEERED).into(),
        ROUTER4.into(),
        ROUTER6.into(),
    ];
    for to in targets {
        frames.push(routed(vm, to, 64, b"some"));
        frames.push(routed(vm, to, 1, b"expired"));
        frames.push(routed(vm, to, 64, &[7; 1500]));
        let [own4, own6] = addresses(vm);
        let own = if to.is_ipv4() { own4 } else { own6 };
        frames.push(packet(macs, (own, to), TCP, 64, &tcp(own, to, (1, 2), &[7; 3000])));
        frames.push(datagram((mac(11), vm.mac()), (own, to), 64, b"bridged"));
        frames.push(datagram((mac(REMOTE), vm.mac()), (own, to), 64, b"bridged"));
    }
    let echo = packet(macs, (vm.ip4().into(), ROUTER4.into()), ICMP, 64, &icmp(8, 0, 1, b"ping"));
    frames.push(echo);
    frames.push(control6(128, vm.ip6(), ROUTER6, b"ping"));
    frames.push(packet(macs, (vm.ip4().into(), Ipv4Addr::new(224, 0, 0, 22).into()), 2, 1, &[0x22; 16]));
    let chain = [&[60, 0, 1, 4, 0, 0, 0, 0][..], &[UDP, 0, 1, 4, 0, 0, 0, 0], &[0, 1, 0, 2, 0, 8, 0, 0]];
    frames.push(packet(macs, (vm.ip6().into(), vm6(1, 11).into()), 0, 64, &chain.concat()));
    frames
}

/// What a gateway sends to the VM.
fn uplink_frames() -> Vec<Vec<u8>> {
    let macs: (MacAddr, MacAddr) = (Place::A.mac(), ROUTER_MAC);
    let mut frames = vec![
        datagram(macs, (vm4(1, REMOTE).into(), Place::A.ip4().into()), 64, b"in"),
        datagram(macs, (vm6(1, REMOTE).into(), Place::A.ip6().into()), 64, b"in"),
        advert((Place::A.ip6(), Place::A.mac()), (vm6(1, REMOTE), mac(REMOTE)), 0x6000_0000),
    ];
    for number in [REMOTE, NEAR] {
        let macs = (mac(REMOTE), ROUTER_MAC);
        frames.push(datagram(macs, (vm4(1, 7).into(), vm4(1, number).into()), 64, b"stray"));
        frames.push(datagram(macs, (vm6(1, 7).into(), vm6(1, number).into()), 64, b"stray"));
    }
    let reply = arp(2, (mac(REMOTE), vm4(1, REMOTE)), (Place::A.mac(), Place::A.ip4()));
    frames.push(ethernet(Place::A.mac(), mac(REMOTE), ETHERTYPE_ARP, &reply));
    frames
}

/// In a case's world, as function pointers catch nothing: everything lies at fixed places.
fn in_world(world: &mut world::World) {
    let target = Target::new("vswitch");
    for (number, path_vni) in [(NEAR, 100), (PEERED, 200)] {
        world.direct(100, vm4(1, number).into(), HOST6, path_vni);
        world.direct(100, vm6(1, number).into(), HOST4, path_vni);
    }
    crate::write_cells(&world.bench, &target.tables());
    target.fuzz(&[vm_frames(), uplink_frames()].concat(), &SWITCHES);
}

#[test]
fn fuzz_the_vswitch_programs() {
    world::run(&[], in_world);
}
