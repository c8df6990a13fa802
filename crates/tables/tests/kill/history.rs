//! The history of operations, which is a pure function of a seed and a number, and its application to tables.

use crate::policies::Random as PolicyRandom;
use sluice_tables::{
    DirectPath, Endpoint, Error, NatAddress, NatGateway, NodeTables, Policy, PolicyPacket, PublicPrefix,
    Role, Route, Target, Vip, Vrf,
};
use sluice_types::{ForwardProtocol, IpNet, MacAddr, PortForward, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::sync::LazyLock;

/// With this many endpoints, tables that have grown once are nearly full, so that insertions move other
/// entries.
pub const ENDPOINTS: u32 = 430;
/// Direct paths; the numbers of their addresses follow those of the endpoints.
pub const DIRECT_PATHS: u32 = 60;
pub const VNIS: u32 = 4;
pub const HOSTS: u32 = 9;
/// Prefixes of each family.
pub const PREFIXES: u32 = 160;
/// Policies, with identifiers from 1 on.
pub const POLICIES: u32 = 3;
/// Different contents of each policy.
pub const POLICY_VARIANTS: u32 = 6;
/// Packets that a policy is asked about.
pub const POLICY_PACKETS: u32 = 60;

/// Public prefixes, and the vIPs that they may have.
pub const PUBLIC_PREFIXES: u32 = 60;
pub const VIPS: u32 = 3;
/// Different inside addresses of each public prefix.
pub const INSIDES: u32 = 2;
/// Addresses that the NAT gateway of each VPC may have.
pub const NAT_ADDRESSES: u32 = 5;

/// Operations after which the history changes between adding and removing more endpoints.
const FILL_PHASE_OPERATIONS: u64 = 4000;
/// Operations for which one VRF and family gets most of the changes of routes.
const FOCUS_PHASE_OPERATIONS: u64 = 700;
/// Tables are not made larger than this, so that the memory suffices for a round.
const SLOTS_MAX: u64 = 1800;

/// A random number generator (SplitMix) that generates the same numbers from the same seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64, number: u64) -> Self {
        Self(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((x >> 32) * u64::from(limit)) >> 32) as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Endpoint {
        number: u32,
        mac: MacAddr,
        host: u32,
    },
    RemoveEndpoint {
        number: u32,
    },
    /// Numbered from 0; the numbers of their addresses follow those of the endpoints.
    Direct {
        number: u32,
        mac: MacAddr,
        host: u32,
        path_vni: u32,
    },
    RemoveDirect {
        number: u32,
    },
    /// `prefix` is the number of a prefix.
    Route {
        vni: u32,
        prefix: u32,
        target: Target,
    },
    RemoveRoute {
        vni: u32,
        prefix: u32,
    },
    Vrf {
        vni: u32,
        mtu: u16,
    },
    RemoveVrf {
        vni: u32,
    },
    Vtep {
        host: u32,
        role: Role,
    },
    RemoveVtep {
        host: u32,
    },
    /// `variant` is the number of a content.
    Policy {
        number: u32,
        variant: u32,
    },
    RemovePolicy {
        number: u32,
    },
    Public {
        number: u32,
        value: Public,
    },
    RemovePublic {
        number: u32,
    },
    Nat {
        vni: u32,
        value: Nat,
    },
    RemoveNat {
        vni: u32,
    },
    Vip {
        number: u32,
        mac: MacAddr,
    },
    RemoveVip {
        number: u32,
    },
    /// Makes the exact match larger, which changes no answer.
    Grow,
}

/// What a public prefix stands for: VNI, and numbers of the inside addresses and of the vIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Public {
    pub vni: u32,
    pub inside: u32,
    pub vip: u32,
}

/// What a NAT gateway has: bits of its addresses, the number of the vIP, and its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat {
    pub addresses: u32,
    pub vip: u32,
    pub sessions: u32,
}

/// The address with a number of the NAT gateway of a VPC. No other has it.
pub fn nat_address(vni: u32, number: u32) -> NatAddress {
    let address = Ipv4Addr::from(0xcb00_7100 + vni * NAT_ADDRESSES + number);
    NatAddress { address, number: (vni * 100 + number) as u16 }
}

/// The NAT gateway of a VPC.
pub fn nat_gateway(at: u32, Nat { addresses, vip: of, sessions }: Nat) -> NatGateway {
    let addresses = (0..NAT_ADDRESSES).filter(|number| addresses >> number & 1 != 0);
    let addresses: Vec<_> = addresses.map(|number| nat_address(at, number)).collect();
    let forwards = port_forwards(&addresses, sessions);
    let (any_remote, shares_ports) = (sessions % 2 == 0, sessions % 3 == 0);
    let nat64 = (sessions % 3 == 0).then(|| Ipv6Addr::from((0x64_ff9b_0000 + u128::from(sessions)) << 80));
    NatGateway {
        vni: vni(at),
        addresses,
        vip: vip(of),
        sessions,
        blocks: 1,
        any_remote,
        shares_ports,
        forwards,
        nat64,
    }
}

/// The port forwards of a NAT gateway: the more sessions, the more, up to five of each address.
pub fn port_forwards(addresses: &[NatAddress], sessions: u32) -> Vec<PortForward> {
    let of_address = |address: Ipv4Addr| {
        (1..=sessions as u16 % 6).map(move |port| PortForward {
            protocol: ForwardProtocol::Tcp,
            outside: SocketAddrV4::new(address, port),
            inside: SocketAddrV4::new([10, 0, port as u8, address.octets()[3]].into(), 80),
        })
    };
    addresses.iter().flat_map(|it| of_address(it.address)).collect()
}

pub fn vip(number: u32) -> IpAddr {
    match number {
        0 => Ipv6Addr::from(0x2001_0db8_u128 << 96 | 0x100).into(),
        _ => Ipv4Addr::from(0xc000_0264 + number).into(),
    }
}

/// The public prefix with this number; the families alternate. Neither outside nor inside addresses overlap.
pub fn public_prefix(number: u32, Public { vni: at, inside, vip: of }: Public) -> PublicPrefix {
    let own = number / 2;
    let net = |v4: u32, v6: u128| {
        let length = [0, 4][own as usize % 2];
        let (address, length): (IpAddr, u8) = match number % 2 {
            0 => (Ipv4Addr::from(v4 + (own << 4)).into(), 32 - length),
            _ => (Ipv6Addr::from(v6 + (u128::from(own) << 64)).into(), [128, 64][own as usize % 2]),
        };
        IpNet::new(address, length).expect("the length fits")
    };
    let outside = net(0xc633_6400, 0x2001_0db8_0001_u128 << 80);
    let inside = match (inside, number % 2) {
        // IPv6 is also routed without translation.
        (1, 1) => outside,
        _ => net(0x0a00_0000 + (inside << 16), 0xfd00_u128 << 112),
    };
    PublicPrefix { outside, vni: vni(at), inside, vip: vip(of), meter: 0, nptv6: false }
}

pub fn vni(number: u32) -> Vni {
    Vni::new(number).expect("small and not 0")
}

/// VNI and address of an endpoint or direct path; the families alternate.
pub fn address_of(number: u32) -> (Vni, IpAddr) {
    let own = number / 2;
    let address = match number % 2 {
        0 => Ipv4Addr::from(0x0a00_0000 + own).into(),
        _ => Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(own % 5) << 64 | u128::from(own)).into(),
    };
    (vni(1 + own % VNIS), address)
}

pub fn host(number: u32) -> IpAddr {
    match number % 3 {
        0 => Ipv4Addr::from(0xc000_0200 + number).into(),
        _ => Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(number)).into(),
    }
}

/// The prefix with this number: first IPv4, then IPv6; in each family first the prefixes that cover one
/// address, then prefixes of many lengths near it.
pub fn prefix(number: u32) -> IpNet {
    let (family, own) = (number / PREFIXES, number % PREFIXES);
    let (address, length): (IpAddr, u32) = match (family, own) {
        (0, 0..=32) => (Ipv4Addr::new(10, 0, 0, 129).into(), own),
        (0, _) => {
            (Ipv4Addr::from(0x0a00_0000 | own << 6 | 1).into(), [32, 24, 26, 31, 28, 22][own as usize % 6])
        }
        (_, 0..=42) => (Ipv6Addr::from(0xfd00_u128 << 112 | 0x81).into(), own * 3 + own / 42 * 2),
        _ => {
            let bits = 0xfd00_u128 << 112 | u128::from(own % 7) << 70 | u128::from(own) << 8 | 1;
            (Ipv6Addr::from(bits).into(), [128, 64, 120, 56, 126, 112][own as usize % 6])
        }
    };
    IpNet::new(address, length as u8).expect("the length fits").trunc()
}

/// The contents of a policy, and packets that some of them permit.
pub struct PolicyVariants {
    pub variants: Vec<Policy>,
    pub packets: Vec<PolicyPacket>,
}

/// The contents of policy `number`. They have different numbers of rules, and their rules different identifiers.
fn policy_variants(number: u32) -> PolicyVariants {
    let mut random = PolicyRandom(0x5eed + u64::from(number));
    let mut variants: Vec<Policy> = Vec::new();
    while variants.len() < POLICY_VARIANTS as usize {
        let mut policy = random.policy(1 + number, 60);
        if variants.iter().all(|known| known.rules.len() != policy.rules.len()) {
            policy.rules.iter_mut().for_each(|rule| rule.id += 1000 * variants.len() as u32);
            variants.push(policy);
        }
    }
    let packets =
        (0..POLICY_PACKETS as usize).map(|i| random.packet(&variants[i % variants.len()])).collect();
    PolicyVariants { variants, packets }
}

/// All policies, by number.
pub fn policies() -> &'static [PolicyVariants] {
    static ALL: LazyLock<Vec<PolicyVariants>> =
        LazyLock::new(|| (0..POLICIES).map(policy_variants).collect());
    &ALL
}

/// A MAC that encodes the endpoint and, half of the time, the operation. Otherwise the MAC does not change,
/// so that sometimes only the host does.
fn mac(random: &mut Random, endpoint: u32, number: u64) -> MacAddr {
    let stamp = if random.below(2) == 0 { 0 } else { number & 0xff_ffff };
    MacAddr::from_u64(0x0200_0000_0000 | u64::from(endpoint) << 24 | stamp)
}

fn endpoint_op(random: &mut Random, number: u64) -> Op {
    let endpoint = random.below(ENDPOINTS);
    let filling = (number / FILL_PHASE_OPERATIONS).is_multiple_of(2);
    if random.below(10) < if filling { 2 } else { 7 } {
        return Op::RemoveEndpoint { number: endpoint };
    }
    Op::Endpoint { number: endpoint, mac: mac(random, endpoint, number), host: random.below(HOSTS) }
}

/// A change of a direct path, with few hosts and VNIs, so that often only the MAC changes.
fn direct_op(random: &mut Random, number: u64) -> Op {
    let path = random.below(DIRECT_PATHS);
    if random.below(10) < 3 {
        return Op::RemoveDirect { number: path };
    }
    let mac = mac(random, path, number);
    Op::Direct { number: path, mac, host: random.below(3), path_vni: 1 + random.below(2) }
}

/// A change of a public prefix, of a NAT gateway, or of a vIP.
fn public_op(random: &mut Random, number: u64) -> Op {
    match random.below(26) {
        20 => Op::RemoveNat { vni: 1 + random.below(VNIS) },
        21.. => {
            let addresses = 1 + random.below((1 << NAT_ADDRESSES) - 1);
            let value = Nat { addresses, vip: random.below(VIPS), sessions: 1 + random.below(3) };
            Op::Nat { vni: 1 + random.below(VNIS), value }
        }
        0 => Op::RemoveVip { number: random.below(VIPS) },
        1..3 => Op::Vip { number: random.below(VIPS), mac: mac(random, 0, number) },
        3..9 => Op::RemovePublic { number: random.below(PUBLIC_PREFIXES) },
        _ => {
            let number = random.below(PUBLIC_PREFIXES);
            let value = Public {
                vni: 1 + random.below(VNIS),
                inside: random.below(INSIDES),
                vip: random.below(VIPS),
            };
            Op::Public { number, value }
        }
    }
}

fn role(random: &mut Random) -> Role {
    if random.below(2) == 0 { Role::Host } else { Role::Gateway }
}

fn route_op(random: &mut Random, number: u64) -> Op {
    let turn = (number / FOCUS_PHASE_OPERATIONS) as u32;
    let focused = random.below(8) != 0;
    let (vni, family) = if focused {
        (1 + turn / 2 % VNIS, turn / 2 / VNIS % 2)
    } else {
        (1 + random.below(VNIS), random.below(2))
    };
    let prefix = family * PREFIXES + random.below(PREFIXES);
    let filling = turn.is_multiple_of(2);
    if random.below(10) < if filling { 1 } else { 8 } {
        return Op::RemoveRoute { vni, prefix };
    }
    let target = match random.below(10) {
        0 => Target::Local,
        1 => Target::Drop,
        2 => Target::NextHop(Ipv4Addr::from(number as u32).into()),
        3 => Target::NextHop(Ipv6Addr::from(u128::from(number)).into()),
        4..6 => {
            let (out_meter, in_meter) = (number as u32 % 9, number as u32 % 7);
            Target::MeteredPeer { vni: self::vni(1 + (number % 0xff_fff0) as u32), out_meter, in_meter }
        }
        _ => Target::Peer(self::vni(1 + (number % 0xff_fff0) as u32)),
    };
    Op::Route { vni, prefix, target }
}

/// Operation `number`, counted from 1. With some seeds the exact match is made larger than necessary.
pub fn op(seed: u64, number: u64) -> Op {
    let mut random = Random::new(seed, number);
    let vni = |random: &mut Random| 1 + random.below(VNIS);
    match number {
        0 => unreachable!("operations are counted from 1"),
        1..=9 => return Op::Vtep { host: number as u32 - 1, role: Role::Host },
        10..=13 => return Op::Vrf { vni: number as u32 - 9, mtu: 1500 },
        14..=16 => return Op::Vip { number: number as u32 - 14, mac: MacAddr::local(1) },
        _ => {}
    }
    match random.below(1000) {
        0..350 => endpoint_op(&mut random, number),
        350..400 => public_op(&mut random, number),
        400..500 => direct_op(&mut random, number),
        500..900 => route_op(&mut random, number),
        900..950 => Op::Vrf { vni: vni(&mut random), mtu: 1280 + random.below(200) as u16 },
        950..954 => Op::RemoveVrf { vni: vni(&mut random) },
        954..970 => Op::Policy { number: random.below(POLICIES), variant: random.below(POLICY_VARIANTS) },
        970..973 => Op::RemovePolicy { number: random.below(POLICIES) },
        973..985 => Op::Vtep { host: random.below(HOSTS), role: role(&mut random) },
        985..994 => Op::RemoveVtep { host: random.below(HOSTS) },
        _ if (seed / 3).is_multiple_of(3) => Op::Grow,
        _ => endpoint_op(&mut random, number),
    }
}

/// Applies an operation and returns whether the tables changed. Operations on unknown VTEPs, VRFs or
/// vIPs change nothing.
pub fn apply(tables: &mut NodeTables, op: Op) -> Result<bool, Error> {
    let result = match op {
        Op::Endpoint { number, mac, host: at } => {
            let (vni, address) = address_of(number);
            tables.upsert_endpoint(&Endpoint { vni, address, mac, host: host(at) })
        }
        Op::RemoveEndpoint { number } => {
            let (vni, address) = address_of(number);
            tables.remove_endpoint(vni, address)
        }
        Op::Direct { number, mac, host: at, path_vni } => {
            let (vni, address) = address_of(ENDPOINTS + number);
            let path_vni = self::vni(path_vni);
            tables.upsert_direct_path(&DirectPath {
                vni,
                address,
                mac,
                host: host(at),
                path_vni,
                mtu: 0,
                fixed: false,
                moved: false,
            })
        }
        Op::RemoveDirect { number } => {
            let (vni, address) = address_of(ENDPOINTS + number);
            tables.remove_direct_path(vni, address)
        }
        Op::Route { vni: at, prefix: of, target } => {
            tables.upsert_route(&Route { vni: vni(at), prefix: prefix(of), target })
        }
        Op::RemoveRoute { vni: at, prefix: of } => tables.remove_route(vni(at), prefix(of)),
        Op::Vrf { vni: at, mtu } => tables.upsert_vrf(&Vrf {
            vni: vni(at),
            mtu,
            router4: None,
            router6: None,
            group: None,
            elephant_bytes: None,
        }),
        Op::RemoveVrf { vni: at } => tables.remove_vrf(vni(at)),
        Op::Vtep { host: at, role } => tables.upsert_vtep(host(at), role),
        Op::RemoveVtep { host: at } => tables.remove_vtep(host(at)),
        Op::Policy { number, variant } => {
            tables.upsert_policy(&policies()[number as usize].variants[variant as usize])
        }
        Op::RemovePolicy { number } => tables.remove_policy(1 + number),
        Op::Public { number, value } => tables.upsert_public_prefix(&public_prefix(number, value)),
        Op::RemovePublic { number } => {
            let any = Public { vni: 1, inside: 0, vip: 0 };
            tables.remove_public_prefix(public_prefix(number, any).outside)
        }
        Op::Nat { vni: at, value } => tables.upsert_nat_gateway(&nat_gateway(at, value)),
        Op::RemoveNat { vni: at } => tables.remove_nat_gateway(vni(at)),
        Op::Vip { number, mac } => tables.upsert_vip(&Vip { address: vip(number), mac, owned: false }),
        Op::RemoveVip { number } => tables.remove_vip(vip(number)),
        Op::Grow => grow(tables),
    };
    match result {
        Err(Error::UnknownVtep { .. } | Error::UnknownVni(_) | Error::UnknownVip { .. }) => Ok(false),
        other => other,
    }
}

fn grow(tables: &mut NodeTables) -> Result<bool, Error> {
    let slots = tables.usage().entry_slots;
    if slots < SLOTS_MAX {
        tables.reserve_endpoints(slots as usize)?;
    }
    Ok(false)
}
