//! The model: the expected content of the tables, and the expected answers, after any operation of a history.

use crate::history::{
    self, DIRECT_PATHS, ENDPOINTS, HOSTS, INSIDES, MOUNTS, NAT_ADDRESSES, Nat, Op, POLICIES, POLICY_PACKETS,
    PREFIXES, PUBLIC_PREFIXES, PolicyVariants, Public, Random, SERVICES, VIPS, VNIS, policies,
};
use crate::policies::is_right;
use sluice_tables::{
    Busy, DirectPath, Endpoint, Lookup, MemberService, NatGateway, NextHop, NodeTables, PublicPrefix, Reader,
    Role, Route, Target, Verdict, Vip,
};
use sluice_types::{MacAddr, ServiceMember, Vni};
use std::net::IpAddr;

/// The values of an entry, each with the number of the operation that set it.
#[derive(Clone, Debug)]
struct ValueHistory<T>(Vec<(u64, T)>);

impl<T: Copy + PartialEq + Default> ValueHistory<T> {
    fn new() -> Self {
        Self(vec![(0, T::default())])
    }

    /// Index of the value after operation `number`.
    fn index(&self, number: u64) -> usize {
        let after = self.0.iter().position(|&(at, _)| at > number).unwrap_or(self.0.len());
        after.checked_sub(1).expect("values are kept back to the floor")
    }

    fn at(&self, number: u64) -> T {
        self.0[self.index(number)].1
    }

    fn last(&self) -> T {
        self.0.last().expect("never empty").1
    }

    /// All values from after operation `from` to after operation `to`.
    fn within(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, T)> + '_ {
        self.0[self.index(from)..=self.index(to)].iter().copied()
    }

    fn push(&mut self, number: u64, value: T, floor: u64) {
        if self.last() != value {
            let old = self.index(floor);
            self.0.drain(..old);
            self.0.push((number, value));
        }
    }
}

/// An address for which routes are looked up.
struct ProbedAddress {
    address: IpAddr,
    /// Numbers of the prefixes that cover the address, the longest first.
    covering: Vec<u32>,
}

/// A question to a reader.
#[derive(Clone, Copy, Debug)]
pub enum Question {
    Endpoint(u32),
    Direct(u32),
    /// VNI, and index of the probed address.
    Route(u32, u32),
    Vrf(u32),
    Vtep(u32),
    /// Number of the policy, and index of the packet.
    Policy(u32, u32),
    /// By the outside addresses of a public prefix.
    Public(u32),
    /// By inside addresses of a public prefix, and a VNI.
    Source(u32, u32, u32),
    /// The NAT gateway of a VNI.
    Nat(u32),
    /// The NAT gateway that has an address: that of this VNI with this number.
    NatAddress(u32, u32),
    Vip(u32),
    /// The member for a flow to the address of a mount: its port, and the number of the member that it has.
    Member(u32, u16, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Busy,
    Endpoint(Option<(MacAddr, IpAddr)>),
    /// MAC, host, and the VNI with which packets are encapsulated.
    Direct(Option<(MacAddr, IpAddr, u32)>),
    Route(Option<Target>),
    Present(bool),
    /// The verdict on a packet; `None` if there is no policy.
    Verdict(Option<Verdict>),
    Public(Option<PublicPrefix>),
    /// The limit of sessions and the addresses of a NAT gateway as bits.
    Nat(Option<(u32, u32)>),
    NatAddress(Option<(Vni, u16)>),
    Member(Option<ServiceMember>),
    /// A hit that leads to a cell of the wrong kind.
    Stale,
}

/// The states after all operations from a floor on.
pub struct Model {
    seed: u64,
    /// Number of operations that were applied.
    applied: u64,
    endpoints: Vec<ValueHistory<Option<(MacAddr, u32)>>>,
    /// MAC, host, and the VNI with which packets are encapsulated.
    direct_paths: Vec<ValueHistory<Option<(MacAddr, u32, u32)>>>,
    /// By VNI and number of the prefix.
    routes: Vec<ValueHistory<Option<Target>>>,
    /// MTU of each VRF.
    vrfs: Vec<ValueHistory<Option<u16>>>,
    vteps: Vec<ValueHistory<Option<Role>>>,
    /// Number of the content of each policy.
    policies: Vec<ValueHistory<Option<u32>>>,
    public_prefixes: Vec<ValueHistory<Option<Public>>>,
    /// By VNI.
    nats: Vec<ValueHistory<Option<Nat>>>,
    vips: Vec<ValueHistory<Option<MacAddr>>>,
    /// Number of the members of each service, and number of the service of each mount.
    services: Vec<ValueHistory<Option<u32>>>,
    mounts: Vec<ValueHistory<Option<u32>>>,
    probes: Vec<ProbedAddress>,
    first_equal: Vec<u32>,
}

fn probes() -> Vec<ProbedAddress> {
    let all: Vec<_> = (0..2 * PREFIXES).map(history::prefix).collect();
    let mut addresses: Vec<IpAddr> = all.iter().flat_map(|net| [net.addr(), net.broadcast()]).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let covering = |address: &IpAddr| {
        let mut covering: Vec<u32> =
            (0..2 * PREFIXES).filter(|&i| all[i as usize].contains(address)).collect();
        covering.sort_by_key(|&i| std::cmp::Reverse(all[i as usize].prefix_len()));
        covering
    };
    addresses.into_iter().map(|address| ProbedAddress { covering: covering(&address), address }).collect()
}

/// The limit of sessions and the addresses of a NAT gateway as bits. Its port forwards belong to these.
fn value_of(vni: u32, nat: &NatGateway) -> (u32, u32) {
    if nat.forwards != history::port_forwards(&nat.addresses, nat.sessions) {
        return (0, 0);
    }
    let has = |number: &u32| nat.addresses.contains(&history::nat_address(vni, *number));
    (nat.sessions, (0..NAT_ADDRESSES).filter(has).map(|number| 1 << number).sum())
}

/// For each prefix, the number of the first equal prefix.
fn first_equal() -> Vec<u32> {
    let all: Vec<_> = (0..2 * PREFIXES).map(history::prefix).collect();
    all.iter().map(|net| all.iter().position(|other| other == net).expect("itself") as u32).collect()
}

/// All entries of the tables, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub endpoints: Vec<Endpoint>,
    pub routes: Vec<Route>,
    pub vrfs: Vec<(Vni, u16)>,
    pub vteps: Vec<(IpAddr, Role)>,
    pub direct_paths: Vec<DirectPath>,
    /// Identifiers of policies and their numbers of rules, which say which content it is.
    pub policies: Vec<(u32, u32)>,
    pub public_prefixes: Vec<PublicPrefix>,
    pub nat_gateways: Vec<NatGateway>,
    pub vips: Vec<Vip>,
    pub services: Vec<MemberService>,
    pub service_addresses: Vec<(Vni, IpAddr, u32)>,
}

impl Content {
    pub fn of(tables: &NodeTables) -> Self {
        let vrfs: Vec<_> = tables.vrfs().map(|entry| (entry.vrf.vni, entry.vrf.mtu)).collect();
        Self {
            endpoints: tables.endpoints().collect(),
            routes: tables.routes().collect(),
            vrfs,
            vteps: tables.vteps().filter_map(|vtep| Some((vtep, tables.role(vtep)?))).collect(),
            direct_paths: tables.direct_paths().map(|(path, _)| path).collect(),
            policies: tables.policies().map(|entry| (entry.id, entry.rules)).collect(),
            public_prefixes: tables.public_prefixes().collect(),
            nat_gateways: tables.nat_gateways().collect(),
            vips: tables.vips().collect(),
            services: tables.services().collect(),
            service_addresses: tables.service_addresses().collect(),
        }
        .sorted()
    }

    fn sorted(mut self) -> Self {
        self.endpoints.sort_unstable_by_key(|endpoint| (endpoint.vni, endpoint.address));
        self.routes.sort_unstable_by_key(|route| (route.vni, route.prefix));
        self.vrfs.sort_unstable();
        self.vteps.sort_unstable();
        self.direct_paths.sort_unstable_by_key(|path| (path.vni, path.address));
        self.public_prefixes.sort_unstable_by_key(|public| public.outside);
        self.vips.sort_unstable_by_key(|vip| vip.address);
        self.service_addresses.sort_unstable();
        self
    }
}

impl Model {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            applied: 0,
            endpoints: vec![ValueHistory::new(); ENDPOINTS as usize],
            direct_paths: vec![ValueHistory::new(); DIRECT_PATHS as usize],
            routes: vec![ValueHistory::new(); (VNIS * 2 * PREFIXES) as usize],
            vrfs: vec![ValueHistory::new(); VNIS as usize],
            vteps: vec![ValueHistory::new(); HOSTS as usize],
            policies: vec![ValueHistory::new(); POLICIES as usize],
            public_prefixes: vec![ValueHistory::new(); PUBLIC_PREFIXES as usize],
            nats: vec![ValueHistory::new(); VNIS as usize],
            vips: vec![ValueHistory::new(); VIPS as usize],
            services: vec![ValueHistory::new(); SERVICES as usize],
            mounts: vec![ValueHistory::new(); MOUNTS as usize],
            probes: probes(),
            first_equal: first_equal(),
        }
    }

    fn route_index(&self, vni: u32, prefix: u32) -> usize {
        ((vni - 1) * 2 * PREFIXES + self.first_equal[prefix as usize]) as usize
    }

    /// Applies the history up to operation `to`. States before `floor` are not needed any more.
    pub fn advance(&mut self, to: u64, floor: u64) {
        while self.applied < to {
            self.applied += 1;
            self.apply(self.applied, floor.min(self.applied));
        }
    }

    fn apply(&mut self, number: u64, floor: u64) {
        match history::op(self.seed, number) {
            Op::Endpoint { number: endpoint, mac, host } => {
                if self.vteps[host as usize].last().is_some() {
                    self.endpoints[endpoint as usize].push(number, Some((mac, host)), floor);
                }
            }
            Op::RemoveEndpoint { number: endpoint } => {
                self.endpoints[endpoint as usize].push(number, None, floor);
            }
            Op::Direct { number: path, mac, host, path_vni } => {
                let vni = history::address_of(ENDPOINTS + path).0.get();
                let has_vrf = self.vrfs[vni as usize - 1].last().is_some();
                if has_vrf && self.vteps[host as usize].last().is_some() {
                    self.direct_paths[path as usize].push(number, Some((mac, host, path_vni)), floor);
                }
            }
            Op::RemoveDirect { number: path } => self.direct_paths[path as usize].push(number, None, floor),
            Op::Route { vni, prefix, target } => {
                if self.vrfs[vni as usize - 1].last().is_some() {
                    let index = self.route_index(vni, prefix);
                    self.routes[index].push(number, Some(target), floor);
                }
            }
            Op::RemoveRoute { vni, prefix } => {
                let index = self.route_index(vni, prefix);
                self.routes[index].push(number, None, floor);
            }
            Op::Vrf { vni, mtu } => self.vrfs[vni as usize - 1].push(number, Some(mtu), floor),
            Op::RemoveVrf { vni } => self.remove_vrf(vni, number, floor),
            Op::Vtep { host, role } => self.vteps[host as usize].push(number, Some(role), floor),
            Op::RemoveVtep { host } => {
                self.vteps[host as usize].push(number, None, floor);
                for path in &mut self.direct_paths {
                    if path.last().is_some_and(|(_, at, _)| at == host) {
                        path.push(number, None, floor);
                    }
                }
            }
            Op::Policy { number: policy, variant } => {
                self.policies[policy as usize].push(number, Some(variant), floor);
            }
            Op::RemovePolicy { number: policy } => self.policies[policy as usize].push(number, None, floor),
            Op::Public { number: public, value } => {
                let has_vrf = self.vrfs[value.vni as usize - 1].last().is_some();
                if has_vrf && self.vips[value.vip as usize].last().is_some() {
                    self.public_prefixes[public as usize].push(number, Some(value), floor);
                }
            }
            Op::RemovePublic { number: public } => {
                self.public_prefixes[public as usize].push(number, None, floor);
            }
            Op::Nat { vni, value } => {
                let has_vrf = self.vrfs[vni as usize - 1].last().is_some();
                if has_vrf && self.vips[value.vip as usize].last().is_some() {
                    self.nats[vni as usize - 1].push(number, Some(value), floor);
                }
            }
            Op::RemoveNat { vni } => self.nats[vni as usize - 1].push(number, None, floor),
            Op::Vip { number: vip, mac } => self.vips[vip as usize].push(number, Some(mac), floor),
            Op::RemoveVip { number: vip } => self.vips[vip as usize].push(number, None, floor),
            op @ (Op::Service { .. }
            | Op::RemoveService { .. }
            | Op::Mount { .. }
            | Op::RemoveMount { .. }) => {
                self.apply_to_services(op, number, floor);
            }
            Op::Grow => {}
        }
    }

    /// Removes a VRF with its routes, public prefixes, NAT gateway and direct paths.
    fn remove_vrf(&mut self, vni: u32, number: u64, floor: u64) {
        self.vrfs[vni as usize - 1].push(number, None, floor);
        let first = self.route_index(vni, 0);
        for route in &mut self.routes[first..first + 2 * PREFIXES as usize] {
            route.push(number, None, floor);
        }
        for public in &mut self.public_prefixes {
            if public.last().is_some_and(|value| value.vni == vni) {
                public.push(number, None, floor);
            }
        }
        self.nats[vni as usize - 1].push(number, None, floor);
        for path in (0..DIRECT_PATHS).filter(|&i| history::address_of(ENDPOINTS + i).0.get() == vni) {
            self.direct_paths[path as usize].push(number, None, floor);
        }
    }

    fn apply_to_services(&mut self, op: Op, number: u64, floor: u64) {
        match op {
            Op::Service { number: service, variant } => {
                self.services[service as usize].push(number, Some(variant), floor);
            }
            Op::RemoveService { number: service } => {
                self.services[service as usize].push(number, None, floor);
                for mount in &mut self.mounts {
                    if mount.last() == Some(service) {
                        mount.push(number, None, floor);
                    }
                }
            }
            Op::Mount { number: mount, service } => {
                if self.services[service as usize].last().is_some() {
                    self.mounts[mount as usize].push(number, Some(service), floor);
                }
            }
            Op::RemoveMount { number: mount } => self.mounts[mount as usize].push(number, None, floor),
            other => unreachable!("{other:?} changes no service"),
        }
    }

    /// The content after an operation.
    pub fn content(&self, number: u64) -> Content {
        let endpoints = (0..ENDPOINTS).filter_map(|i| {
            let (mac, host) = self.endpoints[i as usize].at(number)?;
            let (vni, address) = history::address_of(i);
            Some(Endpoint { vni, address, mac, host: history::host(host) })
        });
        let mut content = Content { endpoints: endpoints.collect(), ..Content::default() };
        for at in 1..=VNIS {
            let vni = history::vni(at);
            content.vrfs.extend(self.vrfs[at as usize - 1].at(number).map(|mtu| (vni, mtu)));
            for i in (0..2 * PREFIXES).filter(|&i| self.first_equal[i as usize] == i) {
                let target = self.routes[self.route_index(at, i)].at(number);
                let route = target.map(|target| Route { vni, prefix: history::prefix(i), target });
                content.routes.extend(route);
            }
        }
        let vteps = (0..HOSTS).filter_map(|i| Some((history::host(i), self.vteps[i as usize].at(number)?)));
        content.vteps = vteps.collect();
        let direct_paths = (0..DIRECT_PATHS).filter_map(|i| {
            let (mac, host, path_vni) = self.direct_paths[i as usize].at(number)?;
            let (vni, address) = history::address_of(ENDPOINTS + i);
            let path_vni = history::vni(path_vni);
            Some(DirectPath {
                vni,
                address,
                mac,
                host: history::host(host),
                path_vni,
                mtu: 0,
                fixed: false,
                moved: false,
            })
        });
        content.direct_paths = direct_paths.collect();
        let policies = (0..POLICIES).filter_map(|i| {
            let variant = self.policies[i as usize].at(number)?;
            Some((1 + i, policies()[i as usize].variants[variant as usize].rules.len() as u32))
        });
        content.policies = policies.collect();
        let public = (0..PUBLIC_PREFIXES)
            .filter_map(|i| Some(history::public_prefix(i, self.public_prefixes[i as usize].at(number)?)));
        content.public_prefixes = public.collect();
        let nats = (1..=VNIS)
            .filter_map(|vni| Some(history::nat_gateway(vni, self.nats[vni as usize - 1].at(number)?)));
        content.nat_gateways = nats.collect();
        let vips = (0..VIPS).filter_map(|i| {
            Some(Vip { address: history::vip(i), mac: self.vips[i as usize].at(number)?, owned: false })
        });
        content.vips = vips.collect();
        let services =
            (0..SERVICES).filter_map(|i| Some(history::service(i, self.services[i as usize].at(number)?)));
        content.services = services.collect();
        let mounts = (0..MOUNTS).filter_map(|i| {
            let (vni, address) = history::address_of(ENDPOINTS + DIRECT_PATHS + i);
            Some((vni, address, 1 + self.mounts[i as usize].at(number)?))
        });
        content.service_addresses = mounts.collect();
        content.sorted()
    }

    /// All questions.
    pub fn questions(&self) -> impl Iterator<Item = Question> + use<> {
        let probes = self.probes.len() as u32;
        (0..ENDPOINTS)
            .map(Question::Endpoint)
            .chain((0..DIRECT_PATHS).map(Question::Direct))
            .chain((1..=VNIS).flat_map(move |vni| (0..probes).map(move |i| Question::Route(vni, i))))
            .chain((1..=VNIS).map(Question::Vrf))
            .chain((0..HOSTS).map(Question::Vtep))
            .chain(
                (0..POLICIES)
                    .flat_map(|i| (0..POLICY_PACKETS).map(move |packet| Question::Policy(i, packet))),
            )
            .chain((0..PUBLIC_PREFIXES).map(Question::Public))
            .chain((0..PUBLIC_PREFIXES).flat_map(|i| {
                let places = (0..INSIDES).flat_map(|inside| (1..=VNIS).map(move |vni| (inside, vni)));
                places.map(move |(inside, vni)| Question::Source(i, inside, vni))
            }))
            .chain((1..=VNIS).map(Question::Nat))
            .chain((1..=VNIS).flat_map(|vni| (0..NAT_ADDRESSES).map(move |i| Question::NatAddress(vni, i))))
            .chain((0..VIPS).map(Question::Vip))
            .chain(
                (0..MOUNTS).flat_map(|i| (0..6).map(move |port| Question::Member(i, port, port as u8 * 2))),
            )
    }

    pub fn random_question(&self, random: &mut Random) -> Question {
        match random.below(28) {
            26.. => {
                let (port, pinned) = (random.below(1000) as u16, random.below(12) as u8);
                Question::Member(random.below(MOUNTS), port, pinned)
            }
            24 => Question::Nat(1 + random.below(VNIS)),
            25 => Question::NatAddress(1 + random.below(VNIS), random.below(NAT_ADDRESSES)),
            20..22 => Question::Public(random.below(PUBLIC_PREFIXES)),
            22 => {
                let (number, inside) = (random.below(PUBLIC_PREFIXES), random.below(INSIDES));
                Question::Source(number, inside, 1 + random.below(VNIS))
            }
            23 => Question::Vip(random.below(VIPS)),
            0 => Question::Vrf(1 + random.below(VNIS)),
            1 => Question::Vtep(random.below(HOSTS)),
            2..4 => Question::Direct(random.below(DIRECT_PATHS)),
            4..6 => Question::Policy(random.below(POLICIES), random.below(POLICY_PACKETS)),
            6..12 => Question::Route(1 + random.below(VNIS), random.below(self.probes.len() as u32)),
            _ => Question::Endpoint(random.below(ENDPOINTS)),
        }
    }

    /// Asks a reader.
    pub fn ask(&self, reader: &Reader, question: Question) -> Answer {
        let present = |lookup| match lookup {
            Lookup::Busy => Answer::Busy,
            Lookup::Miss => Answer::Present(false),
            Lookup::Hit(_) => Answer::Present(true),
        };
        match question {
            Question::Endpoint(number) => {
                let (vni, address) = history::address_of(number);
                match reader.find(vni.get(), address) {
                    Lookup::Busy => Answer::Busy,
                    Lookup::Miss => Answer::Endpoint(None),
                    Lookup::Hit(hit) => match reader.next_hop(hit.cell) {
                        Some(NextHop::Vtep(host)) => Answer::Endpoint(Some((hit.mac, host))),
                        _ => Answer::Stale,
                    },
                }
            }
            Question::Direct(number) => {
                let (vni, address) = history::address_of(ENDPOINTS + number);
                match reader.find(vni.get(), address) {
                    Lookup::Busy => Answer::Busy,
                    Lookup::Miss => Answer::Direct(None),
                    Lookup::Hit(hit) => match reader.next_hop(hit.cell) {
                        Some(NextHop::Direct { host, vni }) => Answer::Direct(Some((hit.mac, host, vni))),
                        _ => Answer::Stale,
                    },
                }
            }
            Question::Route(vni, probe) => {
                let address = self.probes[probe as usize].address;
                reader.route(history::vni(vni), address).map_or(Answer::Busy, Answer::Route)
            }
            Question::Policy(number, packet) => {
                let packet = &policies()[number as usize].packets[packet as usize];
                match reader.policy_cell(1 + number) {
                    Err(Busy) => Answer::Busy,
                    Ok(cell) => Answer::Verdict(cell.map(|cell| reader.evaluate(cell, packet))),
                }
            }
            Question::Public(number) => {
                let any = Public { vni: 1, inside: 0, vip: 0 };
                let outside = history::public_prefix(number, any).outside;
                reader.public_prefix(outside.broadcast()).map_or(Answer::Busy, Answer::Public)
            }
            Question::Source(number, inside, vni) => {
                let inside = history::public_prefix(number, Public { vni, inside, vip: 0 }).inside;
                let found = reader.public_source(history::vni(vni), inside.broadcast());
                found.map_or(Answer::Busy, Answer::Public)
            }
            Question::Nat(vni) => {
                let found = reader.nat_gateway(history::vni(vni));
                found.map_or(Answer::Busy, |nat| Answer::Nat(nat.map(|nat| value_of(vni, &nat))))
            }
            Question::NatAddress(vni, number) => {
                let found = reader.nat_address(history::nat_address(vni, number).address);
                found.map_or(Answer::Busy, Answer::NatAddress)
            }
            Question::Vip(number) => {
                let address = history::vip(number);
                match reader.find(0, address) {
                    Lookup::Hit(hit) if reader.next_hop(hit.cell) != Some(NextHop::Vip(address)) => {
                        Answer::Stale
                    }
                    lookup => present(lookup),
                }
            }
            Question::Member(number, port, pinned) => Self::ask_member(reader, number, port, pinned),
            Question::Vrf(vni) => present(reader.find_index(vni, 0)),
            Question::Vtep(host) => {
                let address = history::host(host);
                match reader.find(0, address) {
                    Lookup::Hit(hit) if reader.next_hop(hit.cell) != Some(NextHop::Vtep(address)) => {
                        Answer::Stale
                    }
                    lookup => present(lookup),
                }
            }
        }
    }

    fn ask_member(reader: &Reader, number: u32, port: u16, pinned: u8) -> Answer {
        let (vni, address) = history::address_of(ENDPOINTS + DIRECT_PATHS + number);
        match reader.find(vni.get(), address) {
            Lookup::Busy => Answer::Busy,
            Lookup::Miss => Answer::Member(None),
            Lookup::Hit(hit) if !matches!(reader.next_hop(hit.cell), Some(NextHop::Service(_))) => {
                Answer::Stale
            }
            Lookup::Hit(hit) => {
                Answer::Member(reader.member(hit.cell, &history::flow_to(address, port), pinned))
            }
        }
    }

    /// True if the answer was right at some time between the end of operation `from` and the end of operation
    /// `to`.
    pub fn allows(&self, question: Question, answer: Answer, from: u64, to: u64) -> bool {
        match (question, answer) {
            (_, Answer::Busy) => true,
            (Question::Endpoint(number), Answer::Endpoint(seen)) => self.endpoints[number as usize]
                .within(from, to)
                .any(|(_, value)| value.map(|(mac, host)| (mac, history::host(host))) == seen),
            (Question::Direct(number), Answer::Direct(seen)) => self.direct_paths[number as usize]
                .within(from, to)
                .any(|(_, value)| value.map(|(mac, host, vni)| (mac, history::host(host), vni)) == seen),
            (Question::Vrf(vni), Answer::Present(seen)) => {
                self.vrfs[vni as usize - 1].within(from, to).any(|(_, value)| value.is_some() == seen)
            }
            (Question::Vtep(host), Answer::Present(seen)) => {
                self.vteps[host as usize].within(from, to).any(|(_, value)| value.is_some() == seen)
            }
            (Question::Vip(vip), Answer::Present(seen)) => {
                self.vips[vip as usize].within(from, to).any(|(_, value)| value.is_some() == seen)
            }
            (Question::Public(number), Answer::Public(seen)) => self.public_prefixes[number as usize]
                .within(from, to)
                .any(|(_, value)| value.map(|value| history::public_prefix(number, value)) == seen),
            (Question::Nat(vni), Answer::Nat(seen)) => self.nats[vni as usize - 1]
                .within(from, to)
                .any(|(_, value)| value.map(|nat| (nat.sessions, nat.addresses)) == seen),
            (Question::NatAddress(vni, number), Answer::NatAddress(seen)) => {
                let has = |nat: &Nat| nat.addresses >> number & 1 != 0;
                let expected = (history::vni(vni), history::nat_address(vni, number).number);
                self.nats[vni as usize - 1]
                    .within(from, to)
                    .any(|(_, value)| value.filter(has).map(|_| expected) == seen)
            }
            (Question::Source(number, inside, vni), Answer::Public(seen)) => {
                let is_it = |value: &Public| (value.inside, value.vni) == (inside, vni);
                self.public_prefixes[number as usize].within(from, to).any(|(_, value)| {
                    value.filter(is_it).map(|value| history::public_prefix(number, value)) == seen
                })
            }
            (Question::Policy(number, packet), Answer::Verdict(seen)) => {
                let PolicyVariants { variants, packets } = &policies()[number as usize];
                let is_right = |variant: Option<u32>| match (variant, seen) {
                    (Some(variant), Some(verdict)) => {
                        is_right(&variants[variant as usize], &packets[packet as usize], verdict)
                    }
                    (variant, seen) => variant.is_none() && seen.is_none(),
                };
                self.policies[number as usize].within(from, to).any(|(_, variant)| is_right(variant))
            }
            (Question::Member(mount, _, pinned), Answer::Member(seen)) => self.mounts[mount as usize]
                .within(from, to)
                .any(|(_, service)| self.allows_member(service, pinned, seen, (from, to))),
            (Question::Route(vni, probe), Answer::Route(seen)) => {
                self.allows_route(vni, probe, seen, from, to)
            }
            _ => false,
        }
    }

    /// Whether a flow could have this member of a service then. Which of those that are selected is a matter of hashing.
    fn allows_member(
        &self,
        service: Option<u32>,
        pinned: u8,
        seen: Option<ServiceMember>,
        (from, to): (u64, u64),
    ) -> bool {
        let Some(number) = service else { return seen.is_none() };
        self.services[number as usize].within(from, to).any(|(_, variant)| {
            let members =
                variant.map(|variant| history::service(number, variant).members).unwrap_or_default();
            if let Some(known) = members.iter().find(|member| member.number == pinned) {
                return seen == Some(*known);
            }
            let mut selected = members.into_iter().filter(|member| member.selected).peekable();
            match seen {
                None => selected.peek().is_none(),
                Some(_) => selected.any(|member| seen == Some(member)),
            }
        })
    }

    fn allows_route(&self, vni: u32, probe: u32, seen: Option<Target>, from: u64, to: u64) -> bool {
        let covering: Vec<&ValueHistory<_>> = self.probes[probe as usize]
            .covering
            .iter()
            .map(|&prefix| &self.routes[self.route_index(vni, prefix)])
            .collect();
        let changes = covering.iter().flat_map(|values| values.within(from, to).skip(1).map(|(at, _)| at));
        let mut times: Vec<u64> = std::iter::once(from).chain(changes).collect();
        times.sort_unstable();
        times.dedup();
        let longest = |at| covering.iter().find_map(|values| values.at(at));
        if times.iter().any(|&at| longest(at) == seen) {
            return true;
        }
        // A lookup makes several loads. If several changes happened meanwhile, it may have seen one and not
        // another. But it can only find routes that existed, and none for which a longer route existed all
        // the time.
        if times.len() <= 2 {
            return false;
        }
        for values in covering {
            if values.within(from, to).any(|(_, value)| value.is_some() && value == seen) {
                return true;
            }
            if values.within(from, to).all(|(_, value)| value.is_some()) {
                return false;
            }
        }
        seen.is_none()
    }
}
