//! Seeds and tables of the fuzz target for the programs of the vSwitch.

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

use sluice_tables::{AddressPair, PortSources};
use sluice_types::{MacAddr, ROUTER_MAC};

use crate::Target;
use crate::support::build::*;
use frames::{addresses, datagram, packet, routed};
use world::{FE80_1, HOST4, HOST6, LINK_LOCAL, Place, REMOTE, ROUTER4, ROUTER6, vm4, vm6};

/// A VM on another host, with a direct path in the VPC of the sender.
const DIRECT: u8 = 55;
/// A VM on another host, with a direct path in a peered VPC.
const PEERED: u8 = 56;

/// The start of an input, `struct setup` of `fuzz/vswitch_fuzz.c`.
#[derive(Clone, Copy, Default)]
struct Setup {
    switches: u8,
    offload: u8,
    sender: u8,
    /// Changes the VNI of the tunnel.
    vni: u32,
    gso_size: u16,
    /// Start of the bytes over which a checksum is pending, and its place behind that.
    checksum: (u16, u16),
}

impl Setup {
    const UPLINK: u8 = 0x10;
    const HOST: u8 = 0x20;
    const OFFLOAD_CHECKSUM: u8 = 0x01;
    const OFFLOAD_NO_KEY: u8 = 0x02;
    const OFFLOAD_RESOLVED: u8 = 0x04;
    const OFFLOAD_OUTER: u8 = 0x08;
    const OFFLOAD_FIB: u8 = 0x10;
    const OFFLOAD_FILTERED: u8 = 0x20;
    const OFFLOAD_IDENTITY: u8 = 0x80;

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.switches, 0, self.offload, self.sender];
        bytes.extend(&self.vni.to_le_bytes()[..3]);
        for value in [self.gso_size, self.checksum.0, self.checksum.1] {
            bytes.extend(value.to_le_bytes());
        }
        bytes
    }
}

/// Frames from a VM: each port, a part in fragments, no budget, a VLAN tag, segments, pending checksums.
fn vm_setups() -> Vec<Vec<u8>> {
    let switches = [0, 0x01, 0x02, 0x04, 0x08, 0x80];
    let mut setups: Vec<_> = switches.map(|switches| Setup { switches, ..Setup::default() }).to_vec();
    // Usual segments, larger ones than the MTU, and SCTP's (GSO_BY_FRAGS).
    setups.extend([1000, 9000, 0xffff].map(|gso_size| Setup { gso_size, ..Setup::default() }));
    // Those of TCP and UDP as a guest leaves them, then some over addresses, ports and the ICMP type.
    let usual = [(34, 16), (54, 16), (34, 6), (54, 6)];
    let forged = [(0, 6), (0, 26), (0, 22), (14, 16), (34, 0), (34, 2), (54, 0)];
    let offload = Setup::OFFLOAD_CHECKSUM;
    let checksums = usual.into_iter().chain(forged);
    setups.extend(checksums.map(|checksum| Setup { offload, checksum, ..Setup::default() }));
    // The program encapsulates the same packets, and fails to resolve a next hop.
    let resolved: Vec<_> = setups
        .iter()
        .map(|setup| Setup { offload: setup.offload | Setup::OFFLOAD_RESOLVED, ..*setup })
        .collect();
    setups.extend(resolved);
    setups.push(Setup { offload: Setup::OFFLOAD_FIB, ..Setup::default() });
    setups.push(Setup { offload: Setup::OFFLOAD_FILTERED, ..Setup::default() });
    setups.iter().map(Setup::bytes).collect()
}

/// Frames from the underlay: gateways and hosts of either family, unknown senders, foreign VNIs, no tunnel.
fn uplink_setups() -> Vec<Vec<u8>> {
    let from = |switches| Setup { switches: Setup::UPLINK | switches, ..Setup::default() };
    let mut setups = [0, 0x40, Setup::HOST, 0x60, 0x04].map(from).to_vec();
    setups.extend([0, 0x40].map(|switches| Setup { sender: 0x55, ..from(switches) }));
    // The VPCs of other ports, and one that does not exist.
    setups.extend([100 ^ 200, 100 ^ 300, 0x12_3456].map(|vni| Setup { vni, ..from(Setup::HOST) }));
    setups.push(Setup { offload: Setup::OFFLOAD_NO_KEY, ..from(0) });
    setups.push(Setup { offload: Setup::OFFLOAD_RESOLVED, ..from(Setup::HOST) });
    // With their outer headers, whole, split, and with each byte changed.
    let outer = Setup { offload: Setup::OFFLOAD_OUTER, ..from(0) };
    setups.extend(
        [0, Setup::HOST, 0x04, 0x80].map(|switches| Setup { switches: outer.switches | switches, ..outer }),
    );
    setups.extend((0..50).map(|byte| Setup { checksum: (byte, 1), ..outer }));
    setups.push(Setup { sender: 0x55, ..outer });
    setups.push(Setup { offload: Setup::OFFLOAD_FILTERED, ..from(0) });
    setups.push(Setup { offload: outer.offload | Setup::OFFLOAD_FILTERED, ..outer });
    setups.push(Setup { vni: 100 ^ 200, switches: outer.switches | Setup::HOST, ..outer });
    // With an identity, of gateways and hosts, also in each byte of the VXLAN header.
    let identified: Vec<_> = [0, 0x40, Setup::HOST, 0x60]
        .map(from)
        .into_iter()
        .chain([outer, Setup { switches: outer.switches | Setup::HOST, ..outer }])
        .chain((42..50).map(|byte| Setup { checksum: (byte, 1), ..outer }))
        .map(|setup| Setup { offload: setup.offload | Setup::OFFLOAD_IDENTITY, ..setup })
        .collect();
    setups.extend(identified);
    setups.iter().map(Setup::bytes).collect()
}

/// A DHCP client's message of this type (RFC 2131), with the options that clients send.
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

/// A DHCPv6 client's message of this type (RFC 8415), with the options that clients send, and IAs of each kind.
fn dhcp6(kind: u8) -> Vec<u8> {
    let option = |code: u16, value: &[u8]| {
        [&code.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), value].concat()
    };
    let address = |ip: Ipv6Addr| option(5, &[&ip.octets()[..], &[0, 0, 1, 0, 0, 0, 2, 0]].concat());
    let ia = |code, iaid, options: &[u8]| option(code, &[&[0, 0, 0, iaid][..], &[0; 8], options].concat());
    let client = option(1, &[&[0, 3, 0, 1][..], &Place::A.mac().octets()].concat());
    let server = option(2, &[&[0, 3, 0, 1][..], &ROUTER_MAC.octets()].concat());
    let named = [3, 5, 8, 9].contains(&kind);
    let ias =
        [ia(3, 1, &[address(Place::A.ip6()), address(vm6(1, REMOTE))].concat()), ia(25, 2, &[])].concat();
    let parts = [
        vec![kind, 1, 2, 3],
        client,
        if named { server } else { vec![] },
        option(6, &[0, 23]),
        option(8, &[0, 0]),
        if kind == 1 { option(14, &[]) } else { vec![] },
        if kind == 11 { vec![] } else { ias },
    ];
    let to: Ipv6Addr = "ff02::1:2".parse().unwrap();
    let datagram = udp(LINK_LOCAL.into(), to.into(), (546, 547), &parts.concat());
    packet((BROADCAST, Place::A.mac()), (LINK_LOCAL.into(), to.into()), UDP, 1, &datagram)
}

/// ICMPv6 from a VM to its network, with the hop limit that neighbor discovery requires.
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
    frames.extend([1, 3, 4, 5, 6, 8, 9, 11].map(dhcp6));
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
    frames.extend(further_frames());
    let targets: [IpAddr; 10] = [
        vm4(1, 11).into(),
        vm6(1, 11).into(),
        vm4(1, REMOTE).into(),
        vm6(1, REMOTE).into(),
        vm4(1, DIRECT).into(),
        vm6(1, DIRECT).into(),
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

/// The MAC address of a pair of B.
const PAIR_MAC: MacAddr = MacAddr::new([0, 0, 0x5e, 0, 1, 7]);
/// A secondary address, one of a delegated prefix, and one of a pair, of each family.
const FURTHER: [&str; 6] =
    ["10.1.0.70", "10.1.70.5", "10.1.0.80", "fd00:1::70", "fd00:1:0:9::5", "fd00:1::80"];

/// What B has besides its addresses, which `has_ipv4()` and `has_ipv6()` of `fuzz/vswitch_fuzz.c` know.
fn sources() -> PortSources {
    let nets = ["10.1.0.70/32", "10.1.70.0/24", "fd00:1::70/128", "fd00:1:0:9::/64"];
    let pair = |address, mac, held| AddressPair { address: ip(address), mac, held };
    PortSources {
        additional: nets.map(|net| net.parse().unwrap()).to_vec(),
        pairs: vec![pair(FURTHER[2], None, true), pair(FURTHER[5], Some(PAIR_MAC), false)],
        unprotected: false,
    }
}

/// Frames from B by its further addresses: packets, questions about neighbors, announcements.
fn further_frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (address, from) in FURTHER.iter().flat_map(|address| [(address, Place::B.mac()), (address, PAIR_MAC)])
    {
        match ip(address) {
            IpAddr::V4(own) => {
                let ips = (own.into(), vm4(1, REMOTE).into());
                frames.push(datagram((ROUTER_MAC, from), ips, 64, b"further"));
                frames.extend([ROUTER4, own, vm4(1, REMOTE)].map(|to| arp_request((from, own), to)));
                frames.push(arp_request((from, Ipv4Addr::UNSPECIFIED), own));
            }
            IpAddr::V6(own) => {
                let ips = (own.into(), vm6(1, REMOTE).into());
                frames.push(datagram((ROUTER_MAC, from), ips, 64, b"further"));
                let solicit = |source, target| Solicit::new(source, from, target).build();
                frames.extend([ROUTER6, own, vm6(1, REMOTE)].map(|to| solicit(own, to)));
                frames.push(solicit(Ipv6Addr::UNSPECIFIED, own));
                frames.push(advert((own, BROADCAST), (own, from), 0x2000_0000));
            }
        }
    }
    frames
}

/// Frames from the underlay to B's further addresses, by each MAC address that they may have.
fn frames_to_further() -> Vec<Vec<u8>> {
    let macs = [Place::B.mac(), ROUTER_MAC, PAIR_MAC];
    let all = FURTHER.iter().flat_map(|address| macs.map(|mac| (mac, ip(address))));
    all.map(|(mac, to)| {
        let from = if to.is_ipv4() { vm4(1, REMOTE).into() } else { vm6(1, REMOTE).into() };
        datagram((mac, ROUTER_MAC), (from, to), 64, b"further")
    })
    .collect()
}

/// Frames from the underlay: to a VM, and strays.
fn uplink_frames() -> Vec<Vec<u8>> {
    let macs: (MacAddr, MacAddr) = (Place::A.mac(), ROUTER_MAC);
    let mut frames = vec![
        datagram(macs, (vm4(1, REMOTE).into(), Place::A.ip4().into()), 64, b"in"),
        datagram(macs, (vm6(1, REMOTE).into(), Place::A.ip6().into()), 64, b"in"),
        advert((Place::A.ip6(), Place::A.mac()), (vm6(1, REMOTE), mac(REMOTE)), 0x6000_0000),
    ];
    // Errors that quote a packet, and fragments, the first and the last.
    let quoted = frames[0][14..].to_vec();
    let ips = (vm4(1, REMOTE).into(), Place::A.ip4().into());
    frames.push(packet(macs, ips, ICMP, 64, &icmp(3, 3, 0, &quoted)));
    let quoted = frames[1][14..].to_vec();
    let (from, to) = (vm6(1, REMOTE), Place::A.ip6());
    frames.push(packet(macs, (from.into(), to.into()), ICMPV6, 64, &icmpv6(from, to, 1, 4, 0, &quoted)));
    for fragment in [0x2000, 3] {
        let header = Ipv4 { fragment, ..Ipv4::new(vm4(1, REMOTE), Place::A.ip4(), UDP) };
        frames.push(ethernet(macs.0, macs.1, ETHERTYPE_IPV4, &header.build(&[7; 24])));
        let header =
            [UDP, 0, 0, u8::from(fragment == 0x2000) | if fragment == 3 { 24 } else { 0 }, 0, 0, 0, 9];
        let payload = [&header[..], &[7; 24]].concat();
        frames.push(ethernet(macs.0, macs.1, ETHERTYPE_IPV6, &Ipv6::new(from, to, 44).build(&payload)));
    }
    for number in [REMOTE, DIRECT] {
        let macs = (mac(REMOTE), ROUTER_MAC);
        frames.push(datagram(macs, (vm4(1, 7).into(), vm4(1, number).into()), 64, b"stray"));
        frames.push(datagram(macs, (vm6(1, 7).into(), vm6(1, number).into()), 64, b"stray"));
    }
    frames.extend(frames_to_further());
    let reply = arp(2, (mac(REMOTE), vm4(1, REMOTE)), (Place::A.mac(), Place::A.ip4()));
    frames.push(ethernet(Place::A.mac(), mac(REMOTE), ETHERTYPE_ARP, &reply));
    frames
}

fn in_world(world: &mut world::World) {
    let target = Target::new("vswitch");
    world.change_port(Place::A, |port| port.identity = 0x0304);
    world.bench.tables.upsert_vtep(ip(HOST6), sluice_tables::Role::ForeignHost).unwrap();
    for (number, path_vni) in [(DIRECT, 100), (PEERED, 200)] {
        world.direct(100, vm4(1, number).into(), HOST6, path_vni);
        world.direct(100, vm6(1, number).into(), HOST4, path_vni);
    }
    world.change_port(Place::B, |port| port.sources = sources());
    crate::write_cells(&world.bench, &target.tables());
    target.fuzz(&[(vm_frames(), vm_setups()), (uplink_frames(), uplink_setups())]);
}

#[test]
fn fuzz_the_vswitch_programs() {
    world::run_learning(&[], in_world);
}
