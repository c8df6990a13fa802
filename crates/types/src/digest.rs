//! Digests of forwarding entries: the controller computes them from what it compiled, a node from what lookups in its
//! tables find. Equal sets of entries have equal digests, whatever their order and place in memory.
//!
//! An entry is hashed to 64 bits, and a digest is the sum of its entries' hashes modulo 2^64. A set is divided into
//! [`DIGEST_SHARDS`] shards by the hash of the entry's key, so that a difference says how much of the tables differs, and
//! a change concerns one shard only. Digests find faults, not attackers: the hash is not cryptographic. A single wrong,
//! missing or additional entry is overlooked with a probability of 2^-64.
//!
//! The hash is part of the southbound protocol: a change of it needs another `DIGEST_VERSION`.

use crate::{MacAddr, MeterLimit, PortForward, ServiceMember, Vni, ipv6_halves};
use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Version of the hash. Digests of different versions cannot be compared.
pub const DIGEST_VERSION: u32 = 8;
/// Number of shards of a digest.
pub const DIGEST_SHARDS: usize = 64;

/// The hash of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHash {
    shard: usize,
    hash: u64,
}

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntryKey {
    /// An address of an instance.
    Endpoint(Vni, IpAddr),
    /// A route.
    Route(Vni, IpNet),
    /// A VRF.
    Vrf(Vni),
    /// A node whose packets are accepted.
    Vtep(IpAddr),
    /// A vIP.
    Vip(IpAddr),
    /// An address of a port of a host.
    Port(Vni, IpAddr),
    /// A group of vIPs, by its identifier.
    Group(u32),
    /// What the ports of a VNI whose instances have the security groups of an identity may send and receive.
    Policy(Vni, u16),
    /// A prefix that is delegated to an instance of a host.
    Delegated(Vni, IpNet),
    /// Public addresses of a VPC.
    PublicPrefix(IpNet),
    /// The NAT gateway of a VPC.
    NatGateway(Vni),
    /// A meter of Internet traffic, by its identifier.
    Meter(u32),
    /// An address of a mount of a service.
    ServiceAddress(Vni, IpAddr),
    /// The members of a service, by its identifier.
    Service(u32),
    /// An interface of a host that is a port, by its index. Only names entries that are wrong: what was compiled has
    /// no interfaces.
    Interface(u32),
}

/// Sums of the hashes of entries, by shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests([u64; DIGEST_SHARDS]);

/// Kinds of entries. Numbers are part of the hash.
#[derive(Clone, Copy)]
enum Kind {
    Endpoint = 1,
    Route = 2,
    Vrf = 3,
    Vtep = 4,
    Vip = 5,
    Port = 6,
    Group = 7,
    Interface = 8,
    Policy = 9,
    Delegated = 10,
    PublicPrefix = 11,
    NatGateway = 12,
    Meter = 13,
    ServiceAddress = 14,
    Service = 15,
}

/// Where a route sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestTarget {
    /// To instances of the same VNI, by their addresses.
    Local,
    /// To the routes of this VNI.
    Peer(Vni),
    /// To the routes of another VNI, through meters, by their identifiers, which are not 0. Without both it is still another
    /// target than [`DigestTarget::Peer`], because it has no direct paths.
    MeteredPeer {
        /// The other VNI.
        vni: Vni,
        /// The meter of what the VNI of the route sends.
        out_meter: Option<u32>,
        /// The meter of what the other VNI gets.
        in_meter: Option<u32>,
    },
    /// Nowhere: they are dropped.
    Drop,
    /// To the instance of the same VNI that has this address.
    NextHop(IpAddr),
    /// To the Internet.
    Internet,
}

const KEYS: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db];

/// Both halves of a product, combined: each bit of the result depends on all bits of both factors.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The hash of a message, for entries that are too large for words of their own.
#[must_use]
pub fn bytes_hash(bytes: &[u8]) -> u64 {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    let sum = bytes.chunks(8).fold(KEYS[0], |sum, chunk| fold(sum ^ KEYS[1], word(chunk) ^ KEYS[2]));
    fold(sum ^ KEYS[3], bytes.len() as u64 ^ KEYS[0])
}

/// The halves of an address, and a bit that distinguishes the families.
fn words(address: IpAddr) -> (u64, u64, u64) {
    match address {
        IpAddr::V4(address) => (0, u32::from(address).into(), 0),
        IpAddr::V6(address) => {
            let (high, low) = ipv6_halves(address);
            (high, low, 1)
        }
    }
}

/// The hash of an address that many entries have: computed once for all of them.
#[must_use]
pub fn address_hash(address: IpAddr) -> u64 {
    let (high, low, family) = words(address);
    fold(fold(high ^ KEYS[2], low ^ KEYS[3]) ^ family, KEYS[0])
}

impl EntryHash {
    fn new(kind: Kind, vni: u32, address: IpAddr, length: u8, value: [u64; 2]) -> Self {
        let (high, low, family) = words(address);
        let about = (kind as u64) << 56 | u64::from(length) << 40 | family << 32 | u64::from(vni);
        let key = fold(fold(about ^ KEYS[0], high ^ KEYS[1]) ^ KEYS[2], low ^ KEYS[3]);
        let shard = (key >> 58) as usize;
        Self { shard, hash: fold(fold(key ^ KEYS[0], value[0] ^ KEYS[1]) ^ KEYS[3], value[1] ^ KEYS[2]) }
    }

    /// An address of an instance: its MAC address, and the [`address_hash`] of its host's VTEP.
    #[must_use]
    pub fn endpoint(vni: Vni, address: IpAddr, mac: MacAddr, host: u64) -> Self {
        Self::new(Kind::Endpoint, vni.get(), address, 0, [mac.to_u64(), host])
    }

    /// A route: its packets go to `target`.
    #[must_use]
    pub fn route(vni: Vni, prefix: IpNet, target: DigestTarget) -> Self {
        let value = match target {
            DigestTarget::Local => [0, 0],
            DigestTarget::Peer(peer) => [peer.get().into(), 0],
            DigestTarget::Drop => [1 << 32, 0],
            DigestTarget::NextHop(address) => [2 << 32, address_hash(address)],
            DigestTarget::Internet => [3 << 32, 0],
            DigestTarget::MeteredPeer { vni, out_meter, in_meter } => {
                let [out_meter, in_meter] = [out_meter, in_meter].map(|id| u64::from(id.unwrap_or_default()));
                [4 << 32 | u64::from(vni.get()), out_meter << 32 | in_meter]
            }
        };
        Self::new(Kind::Route, vni.get(), prefix.trunc().addr(), prefix.prefix_len(), value)
    }

    /// A prefix that is delegated to an instance of a host.
    #[must_use]
    pub fn delegated(vni: Vni, prefix: IpNet, mac: MacAddr, instance: u64) -> Self {
        let value = [mac.to_u64(), instance];
        Self::new(Kind::Delegated, vni.get(), prefix.trunc().addr(), prefix.prefix_len(), value)
    }

    /// Public addresses of a VPC: its own addresses that they are translated to, the vIP whose owner answers for them,
    /// the identifier of their meter, and whether they are mapped by NPTv6.
    #[must_use]
    pub fn public_prefix(
        outside: IpNet,
        vni: Vni,
        inside: IpNet,
        vip: IpAddr,
        meter: Option<u32>,
        nptv6: bool,
    ) -> Self {
        let further = u64::from(meter.unwrap_or(0)) << 1 | u64::from(nptv6);
        let vip = fold(address_hash(vip) ^ KEYS[0], further ^ KEYS[1]);
        let value = [address_hash(inside.trunc().addr()), vip];
        Self::new(Kind::PublicPrefix, vni.get(), outside.trunc().addr(), outside.prefix_len(), value)
    }

    /// The NAT gateway of a VPC: its public addresses in ascending order, the vIP whose owner has the sessions, how many
    /// sessions and port blocks each instance may have, whether packets from any remote endpoint begin a session, whether
    /// connections to different remote endpoints share ports, its port forwards in ascending order, and the prefix of NAT64.
    #[must_use]
    pub fn nat_gateway(
        vni: Vni,
        addresses: impl IntoIterator<Item = Ipv4Addr>,
        vip: IpAddr,
        (sessions, blocks): (u32, u8),
        [any_remote, shares_ports]: [bool; 2],
        forwards: &[PortForward],
        nat64: Option<Ipv6Addr>,
    ) -> Self {
        let flags = u64::from(shares_ports) << 1 | u64::from(any_remote);
        let limits = u64::from(sessions) << 16 | u64::from(blocks) << 8 | flags;
        let mut octets: Vec<u8> = addresses.into_iter().flat_map(|address| address.octets()).collect();
        for PortForward { protocol, outside, inside } in forwards {
            octets.push(protocol.number());
            for end in [outside, inside] {
                octets.extend(end.ip().octets());
                octets.extend(end.port().to_be_bytes());
            }
        }
        octets.extend(forwards.len().to_be_bytes());
        octets.extend(nat64.iter().flat_map(Ipv6Addr::octets));
        let value = [fold(bytes_hash(&octets) ^ KEYS[0], limits ^ KEYS[1]), address_hash(vip)];
        Self::new(Kind::NatGateway, vni.get(), Ipv4Addr::UNSPECIFIED.into(), 0, value)
    }

    /// A meter: the limits of both directions, to the instances and from them.
    #[must_use]
    pub fn meter(id: u32, limits: [Option<MeterLimit>; 2]) -> Self {
        let hash = |limit: MeterLimit| fold(limit.rate_kbps ^ KEYS[2], limit.burst_bytes ^ KEYS[3]);
        let value = limits.map(|limit| limit.map_or(0, hash));
        Self::new(Kind::Meter, id, Ipv4Addr::UNSPECIFIED.into(), 0, value)
    }

    /// An address of a mount, and the identifier of its service.
    #[must_use]
    pub fn service_address(vni: Vni, address: IpAddr, service: u32) -> Self {
        Self::new(Kind::ServiceAddress, vni.get(), address, 0, [service.into(), 0])
    }

    /// A service: the seed of its hash, and its members in ascending order of numbers.
    #[must_use]
    pub fn service(id: u32, seed: [u64; 2], members: &[ServiceMember]) -> Self {
        let mut octets = Vec::with_capacity(members.len() * 16);
        for ServiceMember { number, mac, host, selected } in members {
            octets.extend([*number, u8::from(*selected)]);
            octets.extend(mac.octets());
            octets.extend(address_hash(*host).to_le_bytes());
        }
        let value = [bytes_hash(&octets), fold(seed[0] ^ KEYS[0], seed[1] ^ KEYS[1])];
        Self::new(Kind::Service, id, Ipv4Addr::UNSPECIFIED.into(), 0, value)
    }

    /// A VRF without its routes: MTU and router addresses.
    #[must_use]
    pub fn vrf(vni: Vni, mtu: u16, router4: Option<Ipv4Addr>, router6: Option<Ipv6Addr>) -> Self {
        let router4 = router4.map_or(0, |router| u64::from(u32::from(router)));
        let router6 = address_hash(router6.unwrap_or(Ipv6Addr::UNSPECIFIED).into());
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self::new(Kind::Vrf, vni.get(), unspecified, 0, [u64::from(mtu) << 32 | router4, router6])
    }

    /// A node whose packets are accepted: a gateway, or a host that may be foreign.
    #[must_use]
    pub fn vtep(address: IpAddr, is_gateway: bool, is_foreign: bool) -> Self {
        Self::new(Kind::Vtep, 0, address, 0, [u64::from(is_gateway), u64::from(is_foreign)])
    }

    /// A vIP. Whether this node answers for it is not part of the entry.
    #[must_use]
    pub fn vip(address: IpAddr, mac: MacAddr) -> Self {
        Self::new(Kind::Vip, 0, address, 0, [mac.to_u64(), 0])
    }

    /// An address of a port of a host, with the MAC address by which neighbors reach it, and the identity of the port's
    /// security groups. What else a port contains follows from its
    /// instance and subnet; the host compares it itself.
    #[must_use]
    pub fn port(vni: Vni, address: IpAddr, mac: MacAddr, instance: u64, identity: u16) -> Self {
        let value = [mac.to_u64() | u64::from(identity) << 48, instance];
        Self::new(Kind::Port, vni.get(), address, 0, value)
    }

    /// A policy, and the [`bytes_hash`] of its rules.
    #[must_use]
    pub fn policy(vni: Vni, identity: u16, rules: u64) -> Self {
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self::new(Kind::Policy, vni.get(), unspecified, 0, [u64::from(identity), rules])
    }

    /// A VRF of a host, whose packets go to a group.
    #[must_use]
    pub fn with_group(self, group: Option<u32>) -> Self {
        let hash = group.map_or(self.hash, |group| fold(self.hash ^ KEYS[1], u64::from(group) ^ KEYS[3]));
        Self { hash, ..self }
    }

    /// A VRF of a gateway, whose Internet traffic has a meter.
    #[must_use]
    pub fn with_internet_meter(self, meter: Option<u32>) -> Self {
        let hash = meter.map_or(self.hash, |meter| fold(self.hash ^ KEYS[2], u64::from(meter) ^ KEYS[0]));
        Self { hash, ..self }
    }

    /// A group: its vIPs in the order of buckets.
    #[must_use]
    pub fn group(id: u32, vips: &[IpAddr]) -> Self {
        let sum = vips.iter().fold(KEYS[0], |sum, vip| fold(sum ^ KEYS[1], address_hash(*vip) ^ KEYS[2]));
        Self::new(Kind::Group, id, Ipv4Addr::UNSPECIFIED.into(), 0, [sum, vips.len() as u64])
    }

    /// An entry in which the right contents cannot be recognized. No set of right entries contains it.
    #[must_use]
    pub fn unreadable(key: EntryKey) -> Self {
        let (vni, address) = match key {
            EntryKey::Endpoint(vni, address)
            | EntryKey::Port(vni, address)
            | EntryKey::ServiceAddress(vni, address) => (vni.get(), address),
            EntryKey::Route(vni, prefix) | EntryKey::Delegated(vni, prefix) => (vni.get(), prefix.addr()),
            EntryKey::Vrf(vni) | EntryKey::Policy(vni, _) | EntryKey::NatGateway(vni) => {
                (vni.get(), Ipv4Addr::UNSPECIFIED.into())
            }
            EntryKey::Vtep(address) | EntryKey::Vip(address) => (0, address),
            EntryKey::PublicPrefix(prefix) => (0, prefix.addr()),
            EntryKey::Group(number)
            | EntryKey::Interface(number)
            | EntryKey::Meter(number)
            | EntryKey::Service(number) => (number, Ipv4Addr::UNSPECIFIED.into()),
        };
        let kind = match key {
            EntryKey::Endpoint(..) => Kind::Endpoint,
            EntryKey::Route(..) => Kind::Route,
            EntryKey::Vrf(_) => Kind::Vrf,
            EntryKey::Vtep(_) => Kind::Vtep,
            EntryKey::Vip(_) => Kind::Vip,
            EntryKey::Port(..) => Kind::Port,
            EntryKey::Group(_) => Kind::Group,
            EntryKey::Interface(_) => Kind::Interface,
            EntryKey::Policy(..) => Kind::Policy,
            EntryKey::Delegated(..) => Kind::Delegated,
            EntryKey::PublicPrefix(_) => Kind::PublicPrefix,
            EntryKey::NatGateway(_) => Kind::NatGateway,
            EntryKey::Meter(_) => Kind::Meter,
            EntryKey::ServiceAddress(..) => Kind::ServiceAddress,
            EntryKey::Service(_) => Kind::Service,
        };
        let identity = if let EntryKey::Policy(_, identity) = key { identity.into() } else { u64::MAX };
        Self::new(kind, vni, address, 0, [identity, u64::MAX])
    }

    /// The shard of the entry's key.
    #[must_use]
    pub fn shard(self) -> usize {
        self.shard
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(vni, address) => write!(f, "endpoint {address} of VNI {vni}"),
            Self::Route(vni, prefix) => write!(f, "route {prefix} of VNI {vni}"),
            Self::Delegated(vni, prefix) => write!(f, "delegated prefix {prefix} of VNI {vni}"),
            Self::NatGateway(vni) => write!(f, "NAT gateway of VNI {vni}"),
            Self::Meter(id) => write!(f, "meter {id}"),
            Self::ServiceAddress(vni, address) => write!(f, "service address {address} of VNI {vni}"),
            Self::Service(id) => write!(f, "service {id}"),
            Self::PublicPrefix(prefix) => write!(f, "public prefix {prefix}"),
            Self::Vrf(vni) => write!(f, "VRF of VNI {vni}"),
            Self::Vtep(address) => write!(f, "VTEP {address}"),
            Self::Vip(address) => write!(f, "vIP {address}"),
            Self::Port(vni, address) => write!(f, "port {address} of VNI {vni}"),
            Self::Group(id) => write!(f, "group {id}"),
            Self::Policy(vni, identity) => write!(f, "policy of identity {identity} of VNI {vni}"),
            Self::Interface(ifindex) => write!(f, "interface {ifindex}"),
        }
    }
}

impl Default for Digests {
    fn default() -> Self {
        Self([0; DIGEST_SHARDS])
    }
}

impl Digests {
    /// Digests in the order of shards.
    #[must_use]
    pub fn from_shards(shards: [u64; DIGEST_SHARDS]) -> Self {
        Self(shards)
    }

    /// The digests in the order of shards.
    #[must_use]
    pub fn shards(&self) -> &[u64; DIGEST_SHARDS] {
        &self.0
    }

    /// An entry was added.
    pub fn add(&mut self, entry: EntryHash) {
        self.0[entry.shard] = self.0[entry.shard].wrapping_add(entry.hash);
    }

    /// An entry was removed.
    pub fn remove(&mut self, entry: EntryHash) {
        self.0[entry.shard] = self.0[entry.shard].wrapping_sub(entry.hash);
    }

    /// Another set of entries was added.
    pub fn add_all(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.wrapping_add(*more);
        }
    }

    /// The shards that differ.
    pub fn differences<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        (0..DIGEST_SHARDS).filter(|shard| self.0[*shard] != other.0[*shard])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ForwardProtocol;
    use std::collections::BTreeSet;

    fn vni(number: u32) -> Vni {
        Vni::new(number).unwrap()
    }

    fn endpoint(number: u32, mac: u64, host: &str) -> EntryHash {
        let address = IpAddr::V4(number.into());
        EntryHash::endpoint(vni(7), address, MacAddr::from_u64(mac), address_hash(host.parse().unwrap()))
    }

    /// Catches a meter of a route that the hash ignores, or takes for the other one.
    #[test]
    fn every_meter_changes_the_hash_of_a_route() {
        let metered = |peer, out_meter, in_meter| {
            let vni = vni(peer);
            DigestTarget::MeteredPeer { vni, out_meter, in_meter }
        };
        let all = [
            DigestTarget::Peer(vni(8)),
            metered(8, None, None),
            metered(9, None, None),
            metered(8, Some(1), None),
            metered(8, None, Some(1)),
            metered(8, Some(2), None),
        ];
        let hash = |target| EntryHash::route(vni(7), "10.0.0.0/8".parse().unwrap(), target);
        assert_eq!(all.map(|target| hash(target).hash).into_iter().collect::<BTreeSet<_>>().len(), all.len());
        assert!(all.into_iter().all(|target| hash(target).shard() == hash(all[0]).shard()));
    }

    /// Catches a field that the hash ignores, and fields that cancel each other out.
    #[test]
    fn every_field_changes_the_hash() {
        let at = |address: &str| address.parse::<IpAddr>().unwrap();
        let prefix = |prefix: &str| prefix.parse().unwrap();
        let router = "2001:db8::1".parse().ok();
        let public = |outside, number, inside, vip| {
            EntryHash::public_prefix(prefix(outside), vni(number), prefix(inside), at(vip), None, false)
        };
        let nat = |number, addresses: &[&str], vip, limits, flags| {
            let addresses = addresses.iter().map(|address| address.parse::<Ipv4Addr>().unwrap());
            EntryHash::nat_gateway(vni(number), addresses, at(vip), limits, flags, &[], None)
        };
        let all = [
            endpoint(1, 2, "192.0.2.1"),
            endpoint(2, 2, "192.0.2.1"),
            endpoint(1, 3, "192.0.2.1"),
            endpoint(1, 2, "192.0.2.2"),
            endpoint(1, 2, "::c000:201"),
            EntryHash::endpoint(vni(8), at("0.0.0.1"), MacAddr::from_u64(2), address_hash(at("192.0.2.1"))),
            EntryHash::endpoint(vni(7), at("::1"), MacAddr::from_u64(2), address_hash(at("192.0.2.1"))),
            EntryHash::route(vni(7), prefix("10.0.0.0/8"), DigestTarget::Local),
            EntryHash::route(vni(7), prefix("10.0.0.0/9"), DigestTarget::Local),
            EntryHash::route(vni(7), prefix("10.0.0.0/8"), DigestTarget::Drop),
            EntryHash::route(vni(7), prefix("10.0.0.0/8"), DigestTarget::Peer(vni(8))),
            EntryHash::route(vni(7), prefix("10.0.0.0/8"), DigestTarget::NextHop(at("0.0.0.8"))),
            EntryHash::route(vni(7), prefix("10.0.0.0/8"), DigestTarget::NextHop(at("::8"))),
            EntryHash::route(vni(7), prefix("10.0.0.0/8"), DigestTarget::Internet),
            public("198.51.100.1/32", 7, "10.0.0.1/32", "192.0.2.1"),
            public("198.51.100.2/32", 7, "10.0.0.1/32", "192.0.2.1"),
            public("198.51.100.1/32", 8, "10.0.0.1/32", "192.0.2.1"),
            public("198.51.100.1/32", 7, "10.0.0.2/32", "192.0.2.1"),
            public("198.51.100.1/32", 7, "10.0.0.1/32", "192.0.2.2"),
            nat(7, &["198.51.100.1"], "192.0.2.1", (1, 1), [false; 2]),
            nat(8, &["198.51.100.1"], "192.0.2.1", (1, 1), [false; 2]),
            nat(7, &["198.51.100.2"], "192.0.2.1", (1, 1), [false; 2]),
            nat(7, &["198.51.100.1", "198.51.100.2"], "192.0.2.1", (1, 1), [false; 2]),
            nat(7, &["198.51.100.1"], "192.0.2.2", (1, 1), [false; 2]),
            nat(7, &["198.51.100.1"], "192.0.2.1", (2, 1), [false; 2]),
            nat(7, &["198.51.100.1"], "192.0.2.1", (1, 2), [false; 2]),
            nat(7, &["198.51.100.1"], "192.0.2.1", (1, 1), [true, false]),
            nat(7, &["198.51.100.1"], "192.0.2.1", (1, 1), [false, true]),
            EntryHash::unreadable(EntryKey::NatGateway(vni(7))),
            EntryHash::unreadable(EntryKey::PublicPrefix(prefix("198.51.100.1/32"))),
            EntryHash::delegated(vni(7), prefix("10.0.0.0/8"), MacAddr::from_u64(2), 1),
            EntryHash::delegated(vni(7), prefix("10.0.0.0/8"), MacAddr::from_u64(2), 2),
            EntryHash::delegated(vni(7), prefix("10.0.0.0/8"), MacAddr::from_u64(3), 1),
            EntryHash::unreadable(EntryKey::Endpoint(vni(7), at("0.0.0.1"))),
            EntryHash::unreadable(EntryKey::Vrf(vni(7))),
            EntryHash::unreadable(EntryKey::Vtep(at("192.0.2.1"))),
            EntryHash::vrf(vni(7), 1450, None, None),
            EntryHash::vrf(vni(7), 1451, None, None),
            EntryHash::vrf(vni(7), 1450, Some(Ipv4Addr::LOCALHOST), None),
            EntryHash::vrf(vni(7), 1450, None, router),
            EntryHash::vtep(at("192.0.2.1"), false, false),
            EntryHash::vtep(at("192.0.2.1"), false, true),
            EntryHash::vtep(at("192.0.2.1"), true, false),
            EntryHash::vip(at("192.0.2.1"), MacAddr::from_u64(1)),
            EntryHash::vip(at("192.0.2.1"), MacAddr::from_u64(2)),
            EntryHash::vrf(vni(7), 1450, None, None).with_group(Some(1)),
            EntryHash::vrf(vni(7), 1450, None, None).with_group(Some(2)),
            EntryHash::port(vni(7), at("0.0.0.1"), MacAddr::from_u64(2), 1, 0),
            EntryHash::port(vni(7), at("0.0.0.1"), MacAddr::from_u64(2), 2, 0),
            EntryHash::port(vni(7), at("0.0.0.1"), MacAddr::from_u64(3), 1, 0),
            EntryHash::port(vni(7), at("0.0.0.1"), MacAddr::from_u64(3), 1, 1),
            EntryHash::policy(vni(7), 1, bytes_hash(b"12345678")),
            EntryHash::policy(vni(7), 2, bytes_hash(b"12345678")),
            EntryHash::policy(vni(8), 1, bytes_hash(b"12345678")),
            EntryHash::policy(vni(7), 1, bytes_hash(b"123456780")),
            EntryHash::policy(vni(7), 1, bytes_hash(b"12345678\0")),
            EntryHash::policy(vni(7), 1, bytes_hash(b"1234567")),
            EntryHash::unreadable(EntryKey::Policy(vni(7), 1)),
            EntryHash::unreadable(EntryKey::Policy(vni(7), 2)),
            EntryHash::group(1, &[at("192.0.2.1"), at("192.0.2.2")]),
            EntryHash::group(1, &[at("192.0.2.2"), at("192.0.2.1")]),
            EntryHash::group(1, &[at("192.0.2.1")]),
            EntryHash::group(2, &[at("192.0.2.1")]),
        ];
        assert_eq!(all.iter().map(|entry| entry.hash).collect::<BTreeSet<_>>().len(), all.len());
    }

    /// Catches a field of meters, or of what has them, that the hash ignores.
    #[test]
    fn meters_change_the_hash() {
        let outside: IpNet = "198.51.100.1/32".parse().unwrap();
        let mapped =
            |meter, nptv6| EntryHash::public_prefix(outside, vni(7), outside, outside.addr(), meter, nptv6);
        let metered = |meter| mapped(meter, false);
        let limit = |rate_kbps, burst_bytes| Some(MeterLimit { rate_kbps, burst_bytes });
        let vrf = EntryHash::vrf(vni(7), 1450, None, None);
        let all = [
            metered(None),
            metered(Some(1)),
            metered(Some(2)),
            mapped(None, true),
            mapped(Some(1), true),
            vrf,
            vrf.with_internet_meter(Some(1)),
            vrf.with_internet_meter(Some(2)),
            vrf.with_group(Some(1)),
            vrf.with_group(Some(2)),
            EntryHash::meter(1, [None, None]),
            EntryHash::meter(1, [limit(64, 20_000), None]),
            EntryHash::meter(2, [limit(64, 20_000), None]),
            EntryHash::meter(1, [None, limit(64, 20_000)]),
            EntryHash::meter(1, [limit(64, 20_000), limit(64, 20_000)]),
            EntryHash::meter(1, [limit(65, 20_000), None]),
            EntryHash::meter(1, [limit(20_000, 64), None]),
            EntryHash::unreadable(EntryKey::Meter(1)),
        ];
        assert_eq!(all.iter().map(|entry| entry.hash).collect::<BTreeSet<_>>().len(), all.len());
    }

    /// Catches a field of services that the hash ignores.
    #[test]
    fn every_field_of_a_service_changes_the_hash() {
        let member = |number, mac, host: &str, selected| ServiceMember {
            number,
            mac: MacAddr::from_u64(mac),
            host: host.parse().unwrap(),
            selected,
        };
        let one = member(1, 2, "192.0.2.1", true);
        let two = member(2, 3, "192.0.2.1", true);
        let address = |number, address: &str, service| {
            EntryHash::service_address(vni(number), address.parse().unwrap(), service)
        };
        let all = [
            EntryHash::service(1, [1, 2], &[]),
            EntryHash::service(2, [1, 2], &[]),
            EntryHash::service(1, [2, 1], &[]),
            EntryHash::service(1, [1, 3], &[]),
            EntryHash::service(1, [1, 2], &[one]),
            EntryHash::service(1, [1, 2], &[two]),
            EntryHash::service(1, [1, 2], &[one, two]),
            EntryHash::service(1, [1, 2], &[member(1, 3, "192.0.2.1", true)]),
            EntryHash::service(1, [1, 2], &[member(1, 2, "192.0.2.2", true)]),
            EntryHash::service(1, [1, 2], &[member(1, 2, "::c000:201", true)]),
            EntryHash::service(1, [1, 2], &[member(1, 2, "192.0.2.1", false)]),
            EntryHash::unreadable(EntryKey::Service(1)),
            address(7, "10.0.0.9", 1),
            address(8, "10.0.0.9", 1),
            address(7, "10.0.0.9", 2),
            address(7, "::a00:9", 1),
            EntryHash::unreadable(EntryKey::ServiceAddress(vni(7), "10.0.0.9".parse().unwrap())),
        ];
        assert_eq!(all.iter().map(|entry| entry.hash).collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn the_prefix_of_nat64_changes_the_hash() {
        let with = |prefix: Option<&str>| {
            let (addresses, vip) = ([Ipv4Addr::new(198, 51, 100, 1)], "192.0.2.1".parse().unwrap());
            let prefix = prefix.map(|prefix| prefix.parse().unwrap());
            EntryHash::nat_gateway(vni(7), addresses, vip, (1, 1), [false; 2], &[], prefix)
        };
        let all = [with(None), with(Some("64:ff9b::")), with(Some("64:ff9b:1::"))];
        assert_eq!(all.iter().map(|entry| entry.hash).collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn every_field_of_a_port_forward_changes_the_hash() {
        let forwarding = |protocol, outside: &str, inside: &str| {
            let (outside, inside) = (outside.parse().unwrap(), inside.parse().unwrap());
            let forwards = [PortForward { protocol, outside, inside }];
            let (address, vip) = ([Ipv4Addr::new(198, 51, 100, 1)], "192.0.2.1".parse().unwrap());
            EntryHash::nat_gateway(vni(7), address, vip, (1, 1), [false; 2], &forwards, None)
        };
        let all = [
            forwarding(ForwardProtocol::Tcp, "198.51.100.1:1", "10.0.0.1:1"),
            forwarding(ForwardProtocol::Udp, "198.51.100.1:1", "10.0.0.1:1"),
            forwarding(ForwardProtocol::Tcp, "198.51.100.2:1", "10.0.0.1:1"),
            forwarding(ForwardProtocol::Tcp, "198.51.100.1:2", "10.0.0.1:1"),
            forwarding(ForwardProtocol::Tcp, "198.51.100.1:1", "10.0.0.2:1"),
            forwarding(ForwardProtocol::Tcp, "198.51.100.1:1", "10.0.0.1:2"),
        ];
        assert_eq!(all.iter().map(|entry| entry.hash).collect::<BTreeSet<_>>().len(), all.len());
    }

    /// Catches shards that are not used, or that most entries share.
    #[test]
    fn entries_spread_over_all_shards() {
        let mut counts = [0_u32; DIGEST_SHARDS];
        for number in 0..64_000 {
            counts[endpoint(0x0a00_0000 + number, 1, "192.0.2.1").shard()] += 1;
        }
        // Six standard deviations from the mean of 1,000.
        assert!(counts.iter().all(|count| (811..1_189).contains(count)), "{counts:?}");
    }

    #[test]
    fn digests_do_not_depend_on_the_order() {
        let entries: Vec<_> = (0..100).map(|number| endpoint(number, 5, "192.0.2.1")).collect();
        let (mut one, mut two) = (Digests::default(), Digests::default());
        entries.iter().for_each(|entry| one.add(*entry));
        entries.iter().rev().for_each(|entry| two.add(*entry));
        assert_eq!(one, two);
        two.remove(entries[50]);
        assert_eq!(one.differences(&two).collect::<Vec<_>>(), [entries[50].shard()]);
        let mut rest = Digests::default();
        rest.add(entries[50]);
        two.add_all(&rest);
        assert_eq!(one, two);
    }
}
