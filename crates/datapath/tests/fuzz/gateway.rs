//! Seeds and tables of the fuzz targets for the gateway's programs.

#[allow(dead_code, reason = "shared with the fixtures, which use all of it")]
#[path = "../fixtures/gateway/world.rs"]
mod world;

use std::net::{IpAddr, Ipv6Addr, SocketAddrV4};
use std::path::Path;

use sluice_tables::Target::{Internet, MeteredPeer, NextHop};
use sluice_tables::{NatAddress, NatGateway, PublicPrefix, Role};
use sluice_types::{ForwardProtocol, MacAddr, PortForward, ROUTER_MAC};

use crate::Target;
use crate::support::build::*;
use world::{HOST_A4, HOST_A6, HOST_B4, REMOTE4, REMOTE6, ROUTER4, ROUTER6};
use world::{SENDER, Sent, VIP4, VIP6, VMAC, vm4, vm6};

/// Tenants' frames, each of which takes another branch of the program.
fn frames() -> Vec<Vec<u8>> {
    let (from, to) = (vm6(1, SENDER), vm6(1, 10));
    let arp_query = arp_request((mac(SENDER), vm4(1, SENDER)), vm4(1, 10));
    let expired = |frame: Vec<u8>, at: usize| {
        let mut frame = frame;
        frame[at] = 1;
        frame
    };
    let macs = (ROUTER_MAC, mac(SENDER));
    let echo = Ipv6::new(from, to, ICMPV6).build(&icmpv6(from, to, 128, 0, 1, b"ping"));
    let chain = [&[60, 0, 1, 4, 0, 0, 0, 0][..], &[UDP, 0, 1, 4, 0, 0, 0, 0], &[0, 1, 0, 2, 0, 8, 0, 0]];
    let long = udp_frame(macs, 2000);
    let options = Ipv4 { options: vec![1; 8], ..Ipv4::new(vm4(1, SENDER), vm4(1, 10), UDP) };
    let datagram = udp(vm4(1, SENDER).into(), vm4(1, 10).into(), (1, 2), b"options");
    vec![
        world::routed4(1, 10),
        world::routed4(1, 11),
        world::routed4(1, 12),
        world::routed4(2, 10),
        world::routed4(66, 1),
        world::routed4(1, 20),
        world::routed6(1, 10),
        world::routed6(1, 13),
        world::routed6(2, 11),
        expired(world::routed6(1, 10), 21),
        arp_query,
        Solicit::new(from, mac(SENDER), to).build(),
        Solicit::new(Ipv6Addr::UNSPECIFIED, mac(SENDER), to).build(),
        arp_request((mac(SENDER), vm4(1, SENDER)), "10.1.64.5".parse().unwrap()),
        Solicit::new(from, mac(SENDER), "fd00:1:9::5".parse().unwrap()).build(),
        delegated(macs, vm4(1, SENDER).into(), "10.1.64.5"),
        delegated(macs, from.into(), "fd00:1:9::5"),
        ethernet(macs.0, macs.1, ETHERTYPE_IPV6, &echo),
        ethernet(macs.0, macs.1, ETHERTYPE_IPV6, &Ipv6::new(from, to, 0).build(&chain.concat())),
        ethernet(macs.0, macs.1, ETHERTYPE_IPV4, &options.build(&datagram)),
        expired4(macs),
        long,
    ]
}

fn udp_frame(macs: (MacAddr, MacAddr), bytes: usize) -> Vec<u8> {
    world::udp_frame(macs, vm4(1, SENDER).into(), vm4(1, 10).into(), 64, &vec![7; bytes])
}

fn delegated(macs: (MacAddr, MacAddr), from: IpAddr, to: &str) -> Vec<u8> {
    world::udp_frame(macs, from, ip(to), 64, b"delegated")
}

fn expired4(macs: (MacAddr, MacAddr)) -> Vec<u8> {
    world::udp_frame(macs, vm4(1, SENDER).into(), vm4(1, 10).into(), 1, b"expired")
}

/// Public addresses of the sender and of VM 10.
const PUBLIC: [[&str; 2]; 2] = [["203.0.113.5", "2001:db8:e::5"], ["203.0.113.10", "2001:db8:e::a"]];

/// The public address of the NAT gateway, through which VM 13 sends.
const SHARED: &str = "203.0.114.1";
/// Another gateway of the cluster, which passes packets on.
const GATEWAY: world::Host = world::Host { address: "192.0.2.21", mac: mac(0x22), port: 0 };

/// The gateway after this one in the ring.
const NEXT: world::Host = world::Host { address: "2001:db8:1::21", mac: mac(0x23), port: 0 };
/// Its position, and that of this gateway.
const RING: [u8; 2] = [5, 4];

/// The tunnel of a record of the owner at a position, with an outside port.
fn record(owner: u8) -> Tunnel {
    let port = 49_152 + (u16::from(owner) | u16::from(RING[1]) << 6);
    // The first address of the pool, 203.0.114.1, is 3 modulo 15.
    Tunnel { port, identity: 20_000, reserved: 4, ..world::tunnel(GATEWAY, 100) }
}

/// IP packets between two addresses, each of which is translated in another way.
fn translated(from: &str, to: &str) -> Vec<Vec<u8>> {
    let (from, to) = (ip(from), ip(to));
    let packet = |protocol, payload: &[u8]| match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Ipv4::new(from, to, protocol).build(payload),
        (IpAddr::V6(from), IpAddr::V6(to)) => Ipv6::new(from, to, protocol).build(payload),
        _ => panic!("two families"),
    };
    let mut syn = tcp_segment(from, to, (33000, 80), 2, &[1, 2, 4, 5, 0xb4, 1, 3, 3, 7, 1, 1, 0]);
    syn[12] = 0x80;
    let datagram = udp(from, to, (4000, 5000), b"sluice");
    let mut packets = vec![packet(UDP, &datagram), packet(TCP, &syn), packet(50, &[9; 20])];
    let mut expired = packet(UDP, &datagram);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let about = Ipv4::new(to, from, UDP).build(&udp(to.into(), from.into(), (1, 2), b"quoted"));
            packets.push(packet(ICMP, &icmp(3, 1, 0, &about)));
            packets.push(packet(ICMP, &icmp(8, 0, 1, b"ping")));
            packets.push(Ipv4 { options: vec![1; 8], ..Ipv4::new(from, to, UDP) }.build(&datagram));
            packets.push(Ipv4 { fragment: 0x2000, ..Ipv4::new(from, to, UDP) }.build(&datagram));
            expired = Ipv4 { ttl: 1, ..Ipv4::new(from, to, UDP) }.build(&datagram);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let about = Ipv6::new(to, from, UDP).build(&udp(to.into(), from.into(), (1, 2), b"quoted"));
            packets.push(packet(ICMPV6, &icmpv6(from, to, 1, 1, 0, &about)));
            packets.push(packet(ICMPV6, &icmpv6(from, to, 128, 0, 1, b"ping")));
            packets.push(packet(0, &[&[UDP, 0, 1, 4, 0, 0, 0, 0][..], &datagram].concat()));
            expired[7] = 1;
        }
        _ => panic!("two families"),
    }
    packets.push(expired);
    packets.push(packet(UDP, &udp(from, to, (1, 2), &[7; 1500])));
    packets
}

/// Frames of the sender to the Internet, and to a public address.
fn outward() -> Vec<Vec<u8>> {
    let ends = [
        (vm4(1, SENDER).to_string(), [REMOTE4, PUBLIC[1][0]]),
        (vm6(1, SENDER).to_string(), [REMOTE6, PUBLIC[1][1]]),
    ];
    let shared = translated(&vm4(1, 13).to_string(), REMOTE4);
    let packets = ends.iter().flat_map(|(from, to)| to.iter().flat_map(move |to| translated(from, to)));
    packets.chain(shared).map(|packet| framed((ROUTER_MAC, mac(SENDER)), &packet)).collect()
}

fn framed(macs: (MacAddr, MacAddr), packet: &[u8]) -> Vec<u8> {
    ethernet(macs.0, macs.1, if packet[0] >> 4 == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }, packet)
}

/// Frames from the Internet.
fn inward() -> Vec<Vec<u8>> {
    let four = [PUBLIC[1][0], SHARED].into_iter().flat_map(|to| translated(REMOTE4, to));
    let four = four.map(|packet| (ROUTER4.mac, packet));
    let six = translated(REMOTE6, PUBLIC[1][1]).into_iter().map(|packet| (ROUTER6.mac, packet));
    let mut frames: Vec<_> = four.chain(six).map(|(from, packet)| framed((VMAC, from), &packet)).collect();
    let router4 = (ROUTER4.mac, ROUTER4.address.parse().unwrap());
    frames.push(arp_request(router4, PUBLIC[1][0].parse().unwrap()));
    let target = PUBLIC[1][1].parse().unwrap();
    frames.push(Solicit::new(ROUTER6.address.parse().unwrap(), ROUTER6.mac, target).build());
    frames.push(Solicit::new(Ipv6Addr::UNSPECIFIED, ROUTER6.mac, target).build());
    frames
}

/// Gives VPC 1 a route to the Internet, and two VMs public addresses.
fn connect(world: &mut world::World) {
    world.route(100, "0.0.0.0/0", Internet);
    world.route(100, "::/0", Internet);
    for (number, public) in [SENDER, 10].into_iter().zip(PUBLIC) {
        let inside = [vm4(1, number).to_string() + "/32", vm6(1, number).to_string() + "/128"];
        for ((outside, inside), vip) in public.into_iter().zip(inside).zip([VIP4, VIP6]) {
            let length = if outside.contains(':') { 128 } else { 32 };
            let public = PublicPrefix {
                outside: format!("{outside}/{length}").parse().unwrap(),
                vni: 100.try_into().unwrap(),
                inside: inside.parse().unwrap(),
                vip: ip(vip),
                // As in fuzz/meter_table.h.
                meter: u32::from(!outside.contains(':')),
                nptv6: false,
            };
            world.bench.tables.upsert_public_prefix(&public).unwrap();
        }
    }
    assert!(world.bench.tables.set_internet_meter(100.try_into().unwrap(), 2).unwrap());
    let address = SHARED.parse().unwrap();
    let number = world.nat.assign(address).unwrap();
    let nat = NatGateway {
        vni: 100.try_into().unwrap(),
        addresses: vec![NatAddress { address, number }],
        vip: ip(VIP4),
        sessions: 100,
        blocks: 2,
        any_remote: false,
        shares_ports: false,
        // Both ends are in the packets.
        forwards: vec![PortForward {
            protocol: ForwardProtocol::Udp,
            outside: SocketAddrV4::new(address, 5000),
            inside: SocketAddrV4::new(vm4(1, 13), 1),
        }],
        nat64: "64:ff9b::".parse().ok(),
    };
    world.bench.tables.upsert_nat_gateway(&nat).unwrap();
    for gateway in [GATEWAY, NEXT] {
        world.bench.tables.upsert_vtep(gateway.ip(), Role::Gateway).unwrap();
    }
    world.bench.tables.set_nat_ring(RING[1], Some((RING[0], NEXT.ip()))).unwrap();
}

fn packets() -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for host in [HOST_A4, HOST_A6] {
        let tunnel = |checksum| Tunnel { checksum, ..world::tunnel(host, 100) };
        let wrap = |checksum| move |frame| Sent { tunnel: tunnel(checksum), frame }.packet();
        packets.extend(frames().into_iter().map(wrap(true)));
        packets.extend(frames().into_iter().map(wrap(false)));
        packets.extend(outward().into_iter().map(wrap(true)));
    }
    // With an identity, also of and to a foreign host.
    for host in [HOST_A4, HOST_A6, HOST_B4] {
        let tunnel = Tunnel { identity: 0x0102, ..world::tunnel(host, 100) };
        packets.extend(frames().into_iter().map(|frame| tunnel.wrap(&frame)));
    }
    // Of another gateway: from a VM, and from the Internet.
    let passed_on = |vni| move |frame| Sent { tunnel: world::tunnel(GATEWAY, vni), frame }.packet();
    packets.extend(outward().into_iter().map(passed_on(100)));
    packets.extend(inward().into_iter().map(passed_on(0)));
    // In the ring, on the way to the next gateway, and at the end.
    for owner in [3, RING[0]] {
        packets.extend(outward().into_iter().map(|frame| record(owner).wrap(&frame)));
    }
    let (host4, host6) = (HOST_A4.address.parse().unwrap(), HOST_A6.address.parse().unwrap());
    let (vip4, vip6) = (VIP4.parse().unwrap(), VIP6.parse().unwrap());
    packets.push(arp_request((HOST_A4.mac, host4), vip4));
    packets.push(Solicit::new(host6, HOST_A6.mac, vip6).build());
    let echo = Ipv4::new(host4, vip4, ICMP).build(&icmp(8, 0, 1, b"ping"));
    packets.push(ethernet(VMAC, HOST_A4.mac, ETHERTYPE_IPV4, &echo));
    let echo = Ipv6::new(host6, vip6, ICMPV6).build(&icmpv6(host6, vip6, 128, 0, 1, b"ping"));
    packets.push(ethernet(VMAC, HOST_A6.mac, ETHERTYPE_IPV6, &echo));
    packets
}

/// The start of an input, `struct setup` of `fuzz/gateway_fuzz.c`.
struct Setup {
    switches: u8,
    repair: u8,
    sender: u8,
}

impl Setup {
    const REPAIR_ALL: u8 = 0x03;
    /// For the program of underlay ports.
    const FIB_INTERNET: u8 = 0x04;
    /// For the program of Internet ports.
    const REPAIR_PORT: u8 = 0x04;

    fn bytes(&self) -> Vec<u8> {
        vec![self.switches, 0, self.repair, self.sender]
    }
}

/// Each switch alone, and known and unknown senders with repaired headers.
fn setups() -> Vec<Vec<u8>> {
    let switches = [0, 0x02, 0x04, 0x08, 0x20, 0x40, 0x80, 0xc0];
    let plain = switches.map(|switches| Setup { switches, repair: 0, sender: 0 });
    let senders = [0, 1].map(|sender| Setup { switches: 0, repair: Setup::REPAIR_ALL, sender });
    let internet = [0, 0x02].map(|switches| Setup { switches, repair: Setup::FIB_INTERNET, sender: 0 });
    plain.iter().chain(&senders).chain(&internet).map(Setup::bytes).collect()
}

/// Setups of the target for the program of Internet ports: each switch alone, and repaired headers.
fn internet_setups() -> Vec<Vec<u8>> {
    let switches = [0, 0x01, 0x02, 0x04, 0x10].map(|switches| vec![switches, 0, 0, 0]);
    let repaired = [0, Setup::REPAIR_PORT].map(|port| vec![0, 0, Setup::REPAIR_ALL | port, 0]);
    [&switches[..], &repaired].concat()
}

/// Sends packets, which fill the caches of the tables, and writes an image of the tables.
fn write_tables(world: &mut world::World, path: &Path) {
    for packet in packets() {
        world.send(&packet);
    }
    crate::write_cells(&world.bench, path);
}

fn in_world(world: &mut world::World) {
    let target = Target::new("gateway");
    world.bench.tables.upsert_vtep(HOST_B4.ip(), sluice_tables::Role::ForeignHost).unwrap();
    world.route(100, "10.1.64.0/20", NextHop(vm6(1, 12).into()));
    world.route(100, "fd00:1:9::/64", NextHop(vm4(1, 10).into()));
    // As in fuzz/meter_table.h.
    world.route(100, "10.2.0.0/16", MeteredPeer { vni: 200.try_into().unwrap(), out_meter: 1, in_meter: 2 });
    connect(world);
    write_tables(world, &target.tables());
    target.fuzz(&[(packets(), setups())]);
    let target = Target::new("internet");
    crate::write_cells(&world.bench, &target.tables());
    target.fuzz(&[(inward(), internet_setups())]);
}

#[test]
fn fuzz_the_gateway_s_programs() {
    world::run_any(in_world);
}
