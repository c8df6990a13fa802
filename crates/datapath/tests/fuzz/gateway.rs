//! Seeds and tables of the fuzz target for the gateway program.

#[allow(dead_code, reason = "shared with the fixtures, which use all of it")]
#[path = "../fixtures/gateway/world.rs"]
mod world;

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use sluice_tables::Target::NextHop;
use sluice_types::{MacAddr, ROUTER_MAC};

use crate::Target;
use crate::support::build::*;
use world::{HOST_A4, HOST_A6, HOST_B4, SENDER, Sent, VIP4, VIP6, VMAC, vm4, vm6};

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

fn packets() -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for host in [HOST_A4, HOST_A6] {
        let tunnel = |checksum| Tunnel { checksum, ..world::tunnel(host, 100) };
        let wrap = |checksum| move |frame| Sent { tunnel: tunnel(checksum), frame }.packet();
        packets.extend(frames().into_iter().map(wrap(true)));
        packets.extend(frames().into_iter().map(wrap(false)));
    }
    // With an identity, also of and to a foreign host.
    for host in [HOST_A4, HOST_A6, HOST_B4] {
        let tunnel = Tunnel { identity: 0x0102, ..world::tunnel(host, 100) };
        packets.extend(frames().into_iter().map(|frame| tunnel.wrap(&frame)));
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

    fn bytes(&self) -> Vec<u8> {
        vec![self.switches, 0, self.repair, self.sender]
    }
}

/// Each switch alone, and known and unknown senders with repaired headers.
fn setups() -> Vec<Vec<u8>> {
    let switches = [0, 0x02, 0x04, 0x08, 0x20, 0x40, 0x80, 0xc0];
    let plain = switches.map(|switches| Setup { switches, repair: 0, sender: 0 });
    let senders = [0, 1].map(|sender| Setup { switches: 0, repair: Setup::REPAIR_ALL, sender });
    plain.iter().chain(&senders).map(Setup::bytes).collect()
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
    write_tables(world, &target.tables());
    target.fuzz(&[(packets(), setups())]);
}

#[test]
fn fuzz_the_gateway_program() {
    world::run_any(in_world);
}
