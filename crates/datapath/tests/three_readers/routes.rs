//! Longest prefix match with thousands of routes: tables grow and shrink through all
//! forms (lists, directories, buckets of all lengths and skips).

use crate::ask::{Kernel, Query, ask_rust};
use sluice_tables::{Membarrier, NodeTables, Route, Sizes, Target, Vrf};
use sluice_types::{IpNet, Vni};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const CELLS: u32 = 1 << 18;
const ROUNDS: usize = 6;
const CHANGES_PER_ROUND: usize = 20_000;
const QUESTIONS_PER_ROUND: usize = 10_000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// Returns an address. Addresses are close together or spread over all bits.
    fn address(&mut self, ipv6: bool) -> IpAddr {
        let spread = [3, 6, 10, 14, 32][self.below(5) as usize];
        let low = self.below(1 << spread);
        if !ipv6 {
            let clump = [0x0a00_0000, 0x0a01_0000, 0xac10_0000_u32][self.below(3) as usize];
            return Ipv4Addr::from(clump ^ low as u32).into();
        }
        let clump = [0xfd00_1234_u128 << 96, 0x2001_0db8 << 96, (0x2001_0db8 << 96) | 7 << 64];
        let at = [0, 40, 64, 80][self.below(4) as usize];
        Ipv6Addr::from(clump[self.below(3) as usize] ^ u128::from(low) << at).into()
    }

    fn prefix(&mut self, ipv6: bool) -> IpNet {
        let max = if ipv6 { 128 } else { 32 };
        let length = match self.below(4) {
            0 => max,
            1 => max - self.below(9),
            2 => max / 4 + self.below(max / 2),
            _ => self.below(max + 1),
        };
        IpNet::new(self.address(ipv6), length as u8).unwrap().trunc()
    }
}

fn longest(model: &BTreeMap<IpNet, Target>, address: IpAddr) -> Option<Target> {
    let max = if address.is_ipv6() { 128 } else { 32 };
    (0..=max).rev().find_map(|length| model.get(&IpNet::new(address, length).unwrap().trunc()).copied())
}

#[test]
fn three_readers_agree_on_thousands_of_routes() {
    let kernel = Kernel::load(CELLS);
    let memory = kernel.0.memory().unwrap();
    let mut tables = NodeTables::create(memory, Membarrier::new().unwrap(), Sizes { endpoints: 1 }).unwrap();
    let vni = Vni::new(7).unwrap();
    tables
        .upsert_vrf(&Vrf { vni, mtu: 1430, router4: None, router6: None, group: None, elephant_bytes: None })
        .unwrap();
    let (mut random, mut model) = (Random(0x5eed), BTreeMap::new());
    for round in 0..ROUNDS {
        for _ in 0..CHANGES_PER_ROUND {
            let prefix = random.prefix(random.0 & 1 == 1);
            // In even rounds most changes add a route, in odd rounds most remove one.
            if random.below(10) < if round % 2 == 0 { 7 } else { 2 } {
                let target = match 1 + random.below(1000) as u32 {
                    number @ ..300 => Target::NextHop(Ipv4Addr::from(number).into()),
                    number @ ..600 => {
                        let vni = Vni::new(number).unwrap();
                        Target::MeteredPeer { vni, out_meter: number % 5, in_meter: number % 3 }
                    }
                    number => Target::Peer(Vni::new(number).unwrap()),
                };
                let changed = tables.upsert_route(&Route { vni, prefix, target }).unwrap();
                assert_eq!(changed, model.insert(prefix, target) != Some(target), "{prefix}");
            } else {
                let gone = model.range(prefix..).next().map_or(prefix, |(&known, _)| known);
                assert_eq!(tables.remove_route(vni, gone).unwrap(), model.remove(&gone).is_some(), "{gone}");
            }
        }
        if round % 2 == 1 {
            let more: Vec<Route> = (0..4000)
                .map(|_| Route { vni, prefix: random.prefix(random.0 & 1 == 1), target: Target::Local })
                .collect();
            assert_eq!(tables.upsert_routes(&more).failed, 0);
            model.extend(more.iter().map(|route| (route.prefix, route.target)));
            tables = NodeTables::adopt(tables.memory().clone(), Membarrier::new().unwrap()).unwrap();
        }
        let there: BTreeMap<IpNet, Target> =
            tables.routes().map(|route| (route.prefix, route.target)).collect();
        assert!(there == model, "round {round}: {} routes for {}", there.len(), model.len());
        let queries: Vec<Query> = (0..QUESTIONS_PER_ROUND)
            .map(|_| Query::Route(vni.get(), random.address(random.0 & 1 == 1)))
            .collect();
        let reader = tables.reader();
        for (query, answer) in queries.iter().zip(kernel.ask(&queries)) {
            assert_eq!(answer, ask_rust(&reader, *query), "eBPF and Rust disagree on {query:?}");
            let Query::Route(_, address) = *query else { continue };
            assert_eq!(reader.route(vni, address), Ok(longest(&model, address)), "{address}");
        }
    }
}
