//! Public prefixes and NAT gateways: what packets find by outside addresses, and by the inside addresses of a VPC.

use crate::ask::{Answer, HIT, Kernel, Query, ask_rust};
use sluice_tables::{Error, Membarrier, NatAddress, NatGateway, NodeTables, PublicPrefix, Sizes, Vip, Vrf};
use sluice_types::{ForwardProtocol, IpNet, MacAddr, PortForward, Vni, is_nptv6_prefix, overlap};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};

const CELLS: u32 = 1 << 16;
const CHANGES: usize = 40_000;
/// Number of changes after which all readers answer queries.
const CHANGES_PER_CHECK: usize = 200;
const QUERIES: usize = 500;
const VNIS: u32 = 3;
const VIPS: [&str; 2] = ["192.0.2.100", "2001:db8::100"];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    /// An address near others of the same kind: outside, inside, or both for IPv6.
    fn address(&mut self, is_ipv6: bool, is_outside: bool) -> IpAddr {
        let bits = [4, 9][self.below(2) as usize];
        let low = self.below(1 << bits);
        if !is_ipv6 {
            let base = if is_outside { 0xc633_6400 } else { 0x0a00_0000_u32 };
            return Ipv4Addr::from(base + low as u32).into();
        }
        let is_common = self.below(2) == 0;
        let base = if is_outside || is_common { 0x2001_0db8_u128 << 96 } else { 0xfd00_u128 << 112 };
        Ipv6Addr::from(base | u128::from(low) << [0, 62][self.below(2) as usize]).into()
    }

    fn public_prefix(&mut self) -> PublicPrefix {
        let is_ipv6 = self.below(2) == 0;
        let max = if is_ipv6 { 128 } else { 32 };
        let length = match self.below(4) {
            0 => max - self.below(5),
            1 => max / 2 + self.below(max / 2),
            _ => max,
        };
        let net = |address| IpNet::new(address, length as u8).unwrap().trunc();
        let outside = net(self.address(is_ipv6, true));
        let inside = if self.below(5) == 0 { outside } else { net(self.address(is_ipv6, false)) };
        let vni = Vni::new(1 + self.below(VNIS.into()) as u32).unwrap();
        let nptv6 = is_nptv6_prefix(outside) && self.below(2) == 0;
        PublicPrefix {
            outside,
            vni,
            inside,
            vip: VIPS[self.below(2) as usize].parse().unwrap(),
            meter: 0,
            nptv6,
        }
    }
}

/// A NAT gateway with addresses of which public prefixes often have some.
fn nat_gateway(random: &mut Random) -> NatGateway {
    let vni = Vni::new(1 + random.below(VNIS.into()) as u32).unwrap();
    let lows: BTreeSet<u32> = (0..=random.below(5)).map(|_| random.below(40) as u32).collect();
    let forwards = port_forwards(&lows, random.below(20) as u16);
    let address = |low| NatAddress {
        address: Ipv4Addr::from(0xc633_6400 + low),
        number: (2 * low + random.below(2) as u32) as u16,
    };
    NatGateway {
        vni,
        addresses: lows.into_iter().map(address).collect(),
        vip: VIPS[random.below(2) as usize].parse().unwrap(),
        sessions: 1 + random.below(3) as u32,
        blocks: 1,
        any_remote: random.below(2) == 0,
        shares_ports: random.below(2) == 0,
        forwards,
        nat64: (random.below(2) == 0).then(|| "64:ff9b::".parse().unwrap()),
    }
}

fn outside(low: u32, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(0xc633_6400 + low), port)
}

/// So many port forwards of each address, of both protocols.
fn port_forwards(lows: &BTreeSet<u32>, number: u16) -> Vec<PortForward> {
    let forward = |low: u32, port: u16| PortForward {
        protocol: [ForwardProtocol::Tcp, ForwardProtocol::Udp][usize::from(port % 3 / 2)],
        outside: outside(low, port),
        inside: SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 + low), 30 - port),
    };
    let mut all: Vec<_> =
        lows.iter().flat_map(|low| (1..=number).map(move |port| forward(*low, port))).collect();
    all.sort_unstable();
    all
}

fn vrf(vni: Vni, mtu: u16) -> Vrf {
    Vrf { vni, mtu, router4: None, router6: None, group: None, elephant_bytes: None }
}

fn net_of(address: &NatAddress) -> IpNet {
    IpNet::from(IpAddr::V4(address.address))
}

/// The prefixes by their outside addresses, NAT gateways by their VNIs, and the VNIs that have a VRF.
#[derive(Default)]
struct Model {
    prefixes: BTreeMap<IpNet, PublicPrefix>,
    nats: BTreeMap<Vni, NatGateway>,
    vnis: BTreeSet<Vni>,
}

impl Model {
    /// Whether the tables must accept a prefix.
    fn accepts(&self, public: &PublicPrefix) -> bool {
        let is_in_its_way = |known: &&PublicPrefix| {
            let is_other = known.outside != public.outside && known.vni == public.vni;
            is_other && overlap(&known.inside, &public.inside)
        };
        let has_it = |nat: &NatGateway| nat.addresses.iter().any(|it| net_of(it) == public.outside);
        self.vnis.contains(&public.vni)
            && self.prefixes.values().find(is_in_its_way).is_none()
            && !self.nats.values().any(has_it)
    }

    fn accepts_nat(&self, nat: &NatGateway) -> bool {
        let has =
            |other: &NatGateway, it: &NatAddress| other.addresses.iter().any(|its| its.address == it.address);
        let is_free = |it: &NatAddress| {
            let mut others = self.nats.values().filter(|known| known.vni != nat.vni);
            !self.prefixes.contains_key(&net_of(it)) && !others.any(|other| has(other, it))
        };
        self.vnis.contains(&nat.vni) && nat.addresses.iter().all(is_free)
    }

    fn answer(&self, query: Query) -> Answer {
        let nats = self.nats.values();
        match query {
            Query::Nat(vni) => Answer::of_nat(self.nats.get(&Vni::new(vni).unwrap())),
            Query::NatAddress(address) => {
                let mut all = nats.flat_map(|nat| nat.addresses.iter().map(|it| (it, nat.vni)));
                let found = all.find(|(it, _)| it.address == address);
                Answer::of_nat_address(found.map(|(it, vni)| (vni, it.number)))
            }
            Query::NatForward(vni, protocol, end, is_inside) => {
                Answer::of_forward(self.nats.get(&Vni::new(vni).unwrap()), protocol, end, is_inside)
            }
            _ => Answer::of_public(Ok(self.public(query))),
        }
    }

    fn public(&self, query: Query) -> Option<PublicPrefix> {
        match query {
            // The longest prefix is that of a NAT gateway.
            Query::Public(IpAddr::V4(address))
                if self.nats.values().flat_map(|nat| &nat.addresses).any(|it| it.address == address) =>
            {
                None
            }
            Query::Public(address) => {
                let covering = self.prefixes.values().filter(|known| known.outside.contains(&address));
                covering.max_by_key(|known| known.outside.prefix_len()).copied()
            }
            Query::Source(vni, address) => {
                let is_it = |known: &&PublicPrefix| known.vni.get() == vni && known.inside.contains(&address);
                self.prefixes.values().find(is_it).copied()
            }
            _ => unreachable!("only these are asked"),
        }
    }

    fn change(&mut self, random: &mut Random, tables: &mut NodeTables) {
        let vni = Vni::new(1 + random.below(VNIS.into()) as u32).unwrap();
        match random.below(1000) {
            0 => {
                assert_eq!(tables.remove_vrf(vni), Ok(self.vnis.remove(&vni)));
                self.prefixes.retain(|_, known| known.vni != vni);
                self.nats.remove(&vni);
            }
            1..24 => {
                tables.upsert_vrf(&vrf(vni, 1300 + random.below(100) as u16)).unwrap();
                self.vnis.insert(vni);
            }
            24..30 => {
                assert_eq!(tables.remove_nat_gateway(vni), Ok(self.nats.remove(&vni).is_some()));
            }
            30..100 => {
                let nat = nat_gateway(random);
                let accepts = self.accepts_nat(&nat);
                match tables.upsert_nat_gateway(&nat) {
                    Ok(changed) => {
                        assert!(accepts, "{nat:?}");
                        assert_eq!(changed, self.nats.insert(nat.vni, nat.clone()) != Some(nat));
                    }
                    Err(Error::UnknownVni(_) | Error::PublicAddressTaken { .. }) => {
                        assert!(!accepts, "{nat:?}")
                    }
                    Err(error) => panic!("{nat:?}: {error}"),
                }
            }
            100..350 => {
                let any = random.public_prefix().outside;
                let gone = self.prefixes.range(any..).next().map_or(any, |(&outside, _)| outside);
                assert_eq!(tables.remove_public_prefix(gone), Ok(self.prefixes.remove(&gone).is_some()));
            }
            _ => {
                let mut public = random.public_prefix();
                // Often another inside, VNI or vIP of a prefix that is there.
                if random.below(3) == 0
                    && let Some((_, known)) = self.prefixes.range(public.outside..).next()
                    && known.outside.prefix_len() == public.outside.prefix_len()
                {
                    public.outside = known.outside;
                    public.inside = if random.below(2) == 0 { known.inside } else { public.inside };
                }
                let accepts = self.accepts(&public);
                match tables.upsert_public_prefix(&public) {
                    Ok(changed) => {
                        assert!(accepts, "{public:?}");
                        assert_eq!(changed, self.prefixes.insert(public.outside, public) != Some(public));
                    }
                    Err(
                        Error::UnknownVni(_) | Error::AddressTaken { .. } | Error::PublicAddressTaken { .. },
                    ) => {
                        assert!(!accepts, "{public:?}")
                    }
                    Err(error) => panic!("{public:?}: {error}"),
                }
            }
        }
    }

    /// An end of a port forward of the NAT gateway, or a port that is not forwarded.
    fn forward_query(&self, random: &mut Random, vni: u32) -> Query {
        let forwards = self.nats.get(&Vni::new(vni).unwrap()).map_or(&[][..], |nat| &nat.forwards);
        let Some(it) = forwards.get(random.below(forwards.len().max(1) as u64) as usize) else {
            return Query::NatForward(vni, ForwardProtocol::Tcp, outside(1, 1), false);
        };
        let is_inside = random.below(2) == 0;
        let mut end = if is_inside { it.inside } else { it.outside };
        end.set_port(end.port() + random.below(2) as u16);
        Query::NatForward(vni, it.protocol, end, is_inside)
    }

    /// Addresses of prefixes, first and last, and others.
    fn queries(&self, random: &mut Random) -> Vec<Query> {
        let known: Vec<&PublicPrefix> = self.prefixes.values().collect();
        let one = |random: &mut Random| {
            let is_ipv6 = random.below(2) == 0;
            let vni = 1 + random.below(VNIS.into()) as u32;
            let known = known.get(random.below(known.len().max(1) as u64) as usize);
            match (random.below(11), known) {
                (9 | 10, _) => self.forward_query(random, vni),
                (6, _) => Query::Nat(vni),
                (7 | 8, _) => Query::NatAddress(Ipv4Addr::from(0xc633_6400 + random.below(40) as u32)),
                (0, _) | (_, None) => Query::Public(random.address(is_ipv6, true)),
                (1, _) => Query::Source(vni, random.address(is_ipv6, false)),
                (2, Some(known)) => Query::Public(known.outside.addr()),
                (3, Some(known)) => Query::Public(known.outside.broadcast()),
                (4, Some(known)) => Query::Source(known.vni.get(), known.inside.broadcast()),
                (_, Some(known)) => Query::Source(vni, known.inside.addr()),
            }
        };
        (0..QUERIES).map(|_| one(random)).collect()
    }
}

#[test]
fn three_readers_agree_on_public_prefixes() {
    let kernel = Kernel::load(CELLS);
    let memory = kernel.0.memory().unwrap();
    let grace = || Membarrier::new().unwrap();
    let mut tables = NodeTables::create(memory.clone(), grace(), Sizes { endpoints: 1 }).unwrap();
    for (number, vip) in (1..).zip(VIPS) {
        let vip = Vip { address: vip.parse().unwrap(), mac: MacAddr::local(number), owned: true };
        tables.upsert_vip(&vip).unwrap();
    }
    let (mut random, mut model, mut most, mut hits) = (Random(0x5eed), Model::default(), 0, [0; 5]);
    for change in 1..=CHANGES {
        model.change(&mut random, &mut tables);
        most = most.max(model.prefixes.len());
        if change % CHANGES_PER_CHECK != 0 {
            continue;
        }
        if change % (20 * CHANGES_PER_CHECK) == 0 {
            tables = NodeTables::adopt(memory.clone(), grace()).unwrap();
        }
        let mut found: Vec<_> = tables.public_prefixes().collect();
        found.sort_by_key(|known| known.outside);
        assert!(tables.nat_gateways().eq(model.nats.values().cloned()), "{:?}", model.nats);
        assert!(found.iter().eq(model.prefixes.values()), "{found:?} instead of {:?}", model.prefixes);
        let queries = model.queries(&mut random);
        let reader = tables.reader();
        for (query, answer) in queries.iter().zip(kernel.ask(&queries)) {
            assert_eq!(answer, ask_rust(&reader, *query), "eBPF and Rust disagree on {query:?}");
            assert_eq!(answer, model.answer(*query), "{query:?}");
            let kind = match query {
                Query::Source(..) => 1,
                Query::NatAddress(_) => 2,
                Query::Nat(_) => 3,
                Query::NatForward(..) => 4,
                _ => 0,
            };
            hits[kind] += usize::from(answer.answer == HIT);
        }
    }
    println!(
        "at most {most} prefixes; {hits:?} were found from outside and from inside, of NAT gateways their addresses, themselves and \
         their port forwards"
    );
    assert!(most > 100 && hits.iter().all(|hits| *hits > CHANGES / 20), "{most}, {hits:?}");
}
