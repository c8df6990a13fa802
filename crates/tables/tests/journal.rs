//! Random histories of a gateway's tables: whatever changes of a path that is told by network, the journal has it.

use proptest::prelude::*;
use sluice_tables::{
    Changes, Endpoint, Immediate, InstanceLocation, Journal, Location, Memory, NodeTables, Role, Route,
    Sizes, Target, Vrf,
};
use sluice_types::{IpNet, MacAddr, Vni};
use std::net::IpAddr;

const NETWORKS: u32 = 3;
const HOSTS: [&str; 3] = ["192.0.2.1", "192.0.2.2", "2001:db8::3"];
const ADDRESSES: [&str; 6] = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "fd00::1", "fd00::2", "fd00:1::1"];
const PREFIXES: [&str; 8] = [
    "0.0.0.0/0",
    "10.0.0.0/16",
    "10.0.0.0/24",
    "10.0.0.2/32",
    "::/0",
    "fd00::/16",
    "fd00::/64",
    "fd00::2/128",
];

#[derive(Clone, Debug)]
enum Op {
    Place {
        network: u32,
        address: usize,
        host: usize,
        mac: u64,
    },
    End {
        network: u32,
        address: usize,
    },
    Route {
        network: u32,
        prefix: usize,
        target: u8,
        to: u32,
    },
    Withdraw {
        network: u32,
        prefix: usize,
    },
    /// Many routes at once.
    Routes {
        network: u32,
    },
    Network {
        network: u32,
        mtu: u16,
        elephant_bytes: Option<u32>,
    },
    RemoveNetwork(u32),
    Role {
        host: usize,
        is_foreign: bool,
    },
    /// What was changed is complete.
    Complete,
    /// The agent is killed, perhaps in a step. Another one adopts the tables, and gets the step again.
    Adopt,
}

fn any_op() -> impl Strategy<Value = Op> {
    let network = || 1..=NETWORKS;
    let address = || 0..ADDRESSES.len();
    let prefix = || 0..PREFIXES.len();
    let elephant = prop::sample::select(vec![None, Some(2500), Some(Vrf::NEVER_ELEPHANTS)]);
    prop_oneof![
        6 => (network(), address(), 0..HOSTS.len(), 1..3_u64)
            .prop_map(|(network, address, host, mac)| Op::Place { network, address, host, mac }),
        3 => (network(), address()).prop_map(|(network, address)| Op::End { network, address }),
        4 => (network(), prefix(), 0..6_u8, network())
            .prop_map(|(network, prefix, target, to)| Op::Route { network, prefix, target, to }),
        2 => (network(), prefix()).prop_map(|(network, prefix)| Op::Withdraw { network, prefix }),
        1 => network().prop_map(|network| Op::Routes { network }),
        1 => (network(), 1400..1403_u16, elephant)
            .prop_map(|(network, mtu, elephant_bytes)| Op::Network { network, mtu, elephant_bytes }),
        1 => network().prop_map(Op::RemoveNetwork),
        1 => (0..HOSTS.len(), any::<bool>()).prop_map(|(host, is_foreign)| Op::Role { host, is_foreign }),
        6 => Just(Op::Complete),
        1 => Just(Op::Adopt),
    ]
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// A location, the role of its host, and whether its changes are told by network.
type Seen = Option<(InstanceLocation, Option<Role>, bool)>;

struct World {
    memory: Memory,
    tables: NodeTables,
    journal: Journal,
    revision: u64,
    /// Where all addresses of all networks were at each revision that was completed.
    seen: Vec<(u64, Vec<Seen>)>,
    /// The changes since the last revision.
    step: Vec<Op>,
}

fn places() -> impl Iterator<Item = (Vni, IpAddr)> {
    (1..=NETWORKS).flat_map(|network| ADDRESSES.map(move |address| (vni(network), ip(address))))
}

impl World {
    fn new() -> Self {
        let memory = Memory::anonymous(1 << 14).unwrap();
        let mut tables = NodeTables::create(memory.clone(), Immediate, Sizes::default()).unwrap();
        for host in HOSTS {
            tables.upsert_vtep(ip(host), Role::Host).unwrap();
        }
        let journal = tables.keep_journal();
        let mut world = Self { memory, tables, journal, revision: 10, seen: Vec::new(), step: Vec::new() };
        (1..=NETWORKS).for_each(|network| world.enter(network, 1400, None));
        for network in 1..=NETWORKS {
            for prefix in ["10.0.0.0/16", "fd00::/16"] {
                world.route(network, prefix, Target::Local);
            }
        }
        world.complete();
        world
    }

    fn enter(&mut self, network: u32, mtu: u16, elephant_bytes: Option<u32>) {
        let vrf = Vrf { vni: vni(network), mtu, router4: None, router6: None, group: None, elephant_bytes };
        self.tables.upsert_vrf(&vrf).unwrap();
    }

    fn route(&mut self, network: u32, prefix: &str, target: Target) {
        // A network may be missing.
        let _ = self.tables.upsert_route(&Route { vni: vni(network), prefix: net(prefix), target });
    }

    fn look(&self) -> Vec<Seen> {
        let reader = self.tables.reader();
        let seen = |(vni, address)| match reader.locate(vni, address) {
            Location::Found(location) => {
                let by_peer = location.by_peer && self.journal.tells_of_peer(vni, location.vni, address);
                let is_told = location.by_network || by_peer;
                Some((location, self.tables.role(location.host), is_told))
            }
            Location::NotFound => None,
            Location::Mount(_) => panic!("there is no service"),
            Location::Busy => panic!("the tables are at rest"),
        };
        places().map(seen).collect()
    }

    fn complete(&mut self) {
        self.revision += 1;
        self.tables.set_applied_revision(self.revision);
        self.seen.push((self.revision, self.look()));
        self.step.clear();
    }

    fn run(&mut self, op: Op) {
        if !matches!(op, Op::Complete | Op::Adopt) {
            self.tables.begin_step();
            self.step.push(op.clone());
        }
        match op {
            Op::Place { network, address, host, mac } => {
                let (address, host) = (ip(ADDRESSES[address]), ip(HOSTS[host]));
                let entry = Endpoint { vni: vni(network), address, mac: MacAddr::local(mac), host };
                self.tables.upsert_endpoint(&entry).unwrap();
            }
            Op::End { network, address } => {
                self.tables.remove_endpoint(vni(network), ip(ADDRESSES[address])).unwrap();
            }
            Op::Route { network, prefix, target, to } => {
                let target = match target {
                    0..=1 => Target::Local,
                    2 => Target::Peer(vni(to)),
                    3 => Target::Drop,
                    4 => Target::Internet,
                    _ => Target::NextHop(ip(ADDRESSES[to as usize])),
                };
                self.route(network, PREFIXES[prefix], target);
            }
            Op::Withdraw { network, prefix } => {
                self.tables.remove_route(vni(network), net(PREFIXES[prefix])).unwrap();
            }
            Op::Routes { network } => {
                let route =
                    |prefix: String, target| Route { vni: vni(network), prefix: net(&prefix), target };
                let routes: Vec<_> = (0..100)
                    .map(|last| {
                        route(
                            format!("10.0.0.{last}/32"),
                            if last % 2 == 0 { Target::Local } else { Target::Drop },
                        )
                    })
                    .collect();
                self.tables.upsert_routes(&routes);
            }
            Op::Network { network, mtu, elephant_bytes } => self.enter(network, mtu, elephant_bytes),
            Op::RemoveNetwork(network) => drop(self.tables.remove_vrf(vni(network)).unwrap()),
            Op::Role { host, is_foreign } => {
                let role = if is_foreign { Role::ForeignHost } else { Role::Host };
                self.tables.upsert_vtep(ip(HOSTS[host]), role).unwrap();
            }
            Op::Complete => self.complete(),
            Op::Adopt => {
                self.tables = NodeTables::adopt(self.memory.clone(), Immediate).unwrap();
                self.journal = self.tables.keep_journal();
                for op in std::mem::take(&mut self.step) {
                    self.run(op);
                }
            }
        }
    }

    /// Compares the tables at the last revision with those of all earlier ones.
    fn check(&self) -> Result<(), TestCaseError> {
        let (now, last) = self.seen.last().unwrap();
        for (since, before) in &self.seen {
            for (at, (vni, address)) in places().enumerate() {
                let place = |seen: &Seen| seen.map(|(location, role, _)| (location, role));
                let is_other = place(&before[at]) != place(&last[at]);
                let Some((_, _, must_be_told)) = before[at].filter(|_| is_other) else { continue };
                let changes = self.journal.changes(vni, *since, *now, usize::MAX).unwrap();
                let is_told = match changes {
                    Changes::Known { revision, prefixes } => {
                        prop_assert_eq!(revision, *now);
                        prefixes.iter().any(|prefix| prefix.contains(&address))
                    }
                    Changes::Unknown => true,
                };
                prop_assert!(is_told || !must_be_told, "{address} of VNI {vni} since {since}: {last:?}");
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_change_of_a_path_is_in_the_journal(ops in prop::collection::vec(any_op(), 1..80)) {
        let mut world = World::new();
        for op in ops {
            world.run(op);
        }
        world.complete();
        world.check()?;
        // Instances come, and nothing else changes: no host is told of it.
        let since = world.revision;
        let free: Vec<_> = places().filter(|(vni, address)| world.tables.endpoint(*vni, *address).is_none()).collect();
        for (vni, address) in free {
            let host = ip(HOSTS[0]);
            world.tables.upsert_endpoint(&Endpoint { vni, address, mac: MacAddr::local(9), host }).unwrap();
        }
        world.complete();
        for network in 1..=NETWORKS {
            let changes = world.journal.changes(vni(network), since, world.revision, 0);
            let nothing = Changes::Known { revision: world.revision, prefixes: Vec::new() };
            prop_assert_eq!(changes, Some(nothing));
        }
    }
}
