//! The eBPF readers, the Rust reader and a naive model give the same answers
//! over tables in a real BPF array. Needs root.

mod ask;
mod policies;
mod public;
mod routes;

use ask::{Answer, BUSY, HIT, Kernel, Query, ask_rust};
use proptest::prelude::*;
use sluice_tables::{
    DirectPath, Endpoint, Error, Immediate, Membarrier, Memory, NextHop, NodeTables, Reader, Role, Route,
    Sizes, Target, Vrf,
};
use sluice_types::{IpNet, MacAddr, Vni};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{LazyLock, mpsc};

const CELLS: u32 = 8192;
#[derive(Clone, Debug)]
enum Op {
    Endpoint { number: u32, mac: u64, host: u8 },
    RemoveEndpoint { number: u32 },
    Direct { number: u32, mac: u64, host: u8, path_vni: u32 },
    RemoveDirect { number: u32 },
    Route { vni: u32, prefix: usize, target: Target },
    RemoveRoute { vni: u32, prefix: usize },
    Vrf { vni: u32, mtu: u16 },
    RemoveVrf { vni: u32 },
    Adopt,
}

const ENDPOINTS: u32 = 120;
const VNIS: u32 = 3;
/// Smallest number of random operations of a run, and largest number in one case.
const OPERATIONS_MIN: usize = 1_000_000;
const OPERATIONS_MAX: usize = 20_000;
/// Number of queries after each operation besides those whose answers it may change.
const OTHERS: usize = 4;
/// Number of operations after which all queries are checked.
const ALL_EVERY: usize = 1000;
const HOSTS: u8 = 4;

fn place(number: u32) -> (Vni, IpAddr) {
    let vni = Vni::new(1 + number % VNIS).unwrap();
    if number.is_multiple_of(2) {
        return (vni, Ipv4Addr::from(0x0a00_0000 + number / 2).into());
    }
    (vni, Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number / 2)).into())
}

fn host(number: u8) -> IpAddr {
    if number.is_multiple_of(2) {
        Ipv4Addr::new(192, 0, 2, number).into()
    } else {
        Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(number)).into()
    }
}

/// Prefixes of both families that contain each other or have the same first bits.
fn all_prefixes() -> Vec<IpNet> {
    let v4 = Ipv4Addr::new(10, 0, 0, 129);
    let v6 = Ipv6Addr::from(0xfd00_u128 << 112 | 0x81);
    let other4 = Ipv4Addr::new(10, 0, 2, 1);
    let mut all: Vec<IpNet> = (0..=32).map(|length| IpNet::new(v4.into(), length).unwrap().trunc()).collect();
    all.extend((0..=128).step_by(3).map(|length| IpNet::new(v6.into(), length).unwrap().trunc()));
    all.extend((20..=32).map(|length| IpNet::new(other4.into(), length).unwrap().trunc()));
    all.push("::/0".parse().unwrap());
    all.push(IpNet::new(v6.into(), 128).unwrap());
    all
}

fn prefixes() -> &'static [IpNet] {
    static PREFIXES: LazyLock<Vec<IpNet>> = LazyLock::new(all_prefixes);
    &PREFIXES
}

/// The operations of a history, each drawn as one tuple of all fields. `prop_oneof!` would seed a generator of random
/// numbers for each choice that it may never take, which takes longer than the operation.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let fields =
        (0u8..40, 0..ENDPOINTS, 1u64..4, 0..HOSTS, 1..=VNIS, 0..prefixes().len(), 1280u16..1500, target());
    let op = fields.prop_map(|(kind, number, mac, host, vni, prefix, mtu, target)| match kind {
        0..10 => Op::Endpoint { number, mac, host },
        10..15 => Op::RemoveEndpoint { number },
        15..19 => Op::Direct { number, mac, host, path_vni: vni },
        19..21 => Op::RemoveDirect { number },
        21..32 => Op::Route { vni, prefix, target },
        32..36 => Op::RemoveRoute { vni, prefix },
        36..38 => Op::Vrf { vni, mtu },
        38 => Op::RemoveVrf { vni },
        _ => Op::Adopt,
    });
    prop::collection::vec(op, 1..OPERATIONS_MAX)
}

fn target() -> impl Strategy<Value = Target> {
    (0u8..6, 1u32..0xff_ffff).prop_map(|(kind, vni)| match kind {
        0 => Target::Local,
        1 => Target::Drop,
        2 => Target::NextHop(Ipv4Addr::from(vni).into()),
        3 => Target::NextHop(Ipv6Addr::from(u128::from(vni)).into()),
        4 => Target::MeteredPeer { vni: Vni::new(vni).unwrap(), out_meter: vni % 5, in_meter: vni % 3 },
        _ => Target::Peer(Vni::new(vni).unwrap()),
    })
}

#[derive(Default)]
struct Model {
    endpoints: HashMap<(Vni, IpAddr), (MacAddr, IpAddr)>,
    /// Direct paths, at addresses that have no endpoint.
    directs: HashMap<(Vni, IpAddr), (MacAddr, IpAddr, u32)>,
    routes: HashMap<Vni, HashMap<IpNet, Target>>,
}

impl Model {
    fn route(&self, vni: Vni, address: IpAddr) -> Option<Target> {
        let routes = self.routes.get(&vni)?;
        let covering = routes.iter().filter(|(prefix, _)| prefix.contains(&address));
        covering.max_by_key(|(prefix, _)| prefix.prefix_len()).map(|(_, &target)| target)
    }

    /// Applies an operation to the tables and to the model.
    fn apply(&mut self, tables: &mut NodeTables, op: &Op) -> Result<(), Error> {
        let vni_of = |vni: &u32| Vni::new(*vni).unwrap();
        match op {
            Op::Endpoint { number, mac, host: at } => {
                let (vni, address) = place(*number);
                let endpoint = Endpoint { vni, address, mac: MacAddr::local(*mac), host: host(*at) };
                let changed = tables.upsert_endpoint(&endpoint)?;
                let old = self.endpoints.insert((vni, address), (endpoint.mac, endpoint.host));
                assert_eq!(changed, old != Some((endpoint.mac, endpoint.host)));
                self.directs.remove(&(vni, address));
            }
            Op::RemoveEndpoint { number } => {
                let (vni, address) = place(*number);
                let old = self.endpoints.remove(&(vni, address));
                assert_eq!(tables.remove_endpoint(vni, address)?, old.is_some());
            }
            Op::Direct { number, mac, host: at, path_vni } => {
                let (vni, address) = place(*number);
                let (mac, host) = (MacAddr::local(*mac), host(*at));
                let path = DirectPath {
                    vni,
                    address,
                    mac,
                    host,
                    path_vni: vni_of(path_vni),
                    mtu: 0,
                    fixed: false,
                    moved: false,
                };
                if !self.routes.contains_key(&vni) {
                    assert_eq!(tables.upsert_direct_path(&path), Err(Error::UnknownVni(vni)));
                } else if self.endpoints.contains_key(&(vni, address)) {
                    assert!(matches!(tables.upsert_direct_path(&path), Err(Error::AddressTaken { .. })));
                } else {
                    let old = self.directs.insert((vni, address), (mac, host, *path_vni));
                    assert_eq!(tables.upsert_direct_path(&path)?, old != Some((mac, host, *path_vni)));
                }
            }
            Op::RemoveDirect { number } => {
                let (vni, address) = place(*number);
                let old = self.directs.remove(&(vni, address));
                assert_eq!(tables.remove_direct_path(vni, address)?, old.is_some());
            }
            Op::Route { vni, prefix, target } => {
                let route = Route { vni: vni_of(vni), prefix: prefixes()[*prefix], target: *target };
                match self.routes.get_mut(&route.vni) {
                    None => assert_eq!(tables.upsert_route(&route), Err(Error::UnknownVni(route.vni))),
                    Some(routes) => {
                        let old = routes.insert(route.prefix, route.target);
                        assert_eq!(tables.upsert_route(&route)?, old != Some(route.target));
                    }
                }
            }
            Op::RemoveRoute { vni, prefix } => {
                let prefix = prefixes()[*prefix];
                let old = self.routes.get_mut(&vni_of(vni)).and_then(|routes| routes.remove(&prefix));
                assert_eq!(tables.remove_route(vni_of(vni), prefix)?, old.is_some());
            }
            Op::Vrf { vni, mtu } => {
                let vrf = Vrf {
                    vni: vni_of(vni),
                    mtu: *mtu,
                    router4: None,
                    router6: None,
                    group: None,
                    elephant_bytes: None,
                };
                tables.upsert_vrf(&vrf)?;
                self.routes.entry(vrf.vni).or_default();
            }
            Op::RemoveVrf { vni } => {
                let old = self.routes.remove(&vni_of(vni));
                assert_eq!(tables.remove_vrf(vni_of(vni))?, old.is_some());
                self.directs.retain(|key, _| key.0 != vni_of(vni));
            }
            Op::Adopt => *tables = NodeTables::adopt(tables.memory().clone(), Immediate)?,
        }
        Ok(())
    }

    /// Checks that the three answers to each of these queries agree.
    fn check(&self, kernel: &Kernel, reader: &Reader, queries: &[Query]) {
        for (query, answer) in queries.iter().zip(kernel.ask(queries)) {
            assert_eq!(answer, ask_rust(reader, *query), "eBPF and Rust disagree on {query:?}");
            self.check_one(reader, *query, answer);
        }
    }

    fn check_one(&self, reader: &Reader, query: Query, answer: Answer) {
        let hop = reader.next_hop(answer.cell);
        match query {
            Query::Index(vni, _) => {
                assert_eq!(answer.answer == HIT, self.routes.contains_key(&Vni::new(vni).unwrap()));
            }
            Query::Address(0, address) => assert_eq!(hop, Some(NextHop::Vtep(address))),
            Query::Address(vni, address) => {
                let vni = Vni::new(vni).unwrap();
                let mac = MacAddr::from_u64(answer.mac);
                // MAC and host of an endpoint, and for a path also its VNI.
                let found = match hop {
                    Some(NextHop::Vtep(host)) if answer.answer == HIT => Some((mac, host, None)),
                    Some(NextHop::Direct { host, vni }) if answer.answer == HIT => {
                        Some((mac, host, Some(vni)))
                    }
                    _ => None,
                };
                let endpoints = self.endpoints.iter().map(|(key, &(mac, host))| (*key, (mac, host, None)));
                let directs =
                    self.directs.iter().map(|(key, &(mac, host, vni))| (*key, (mac, host, Some(vni))));
                let expected = match self.directs.get(&(vni, address)) {
                    Some(&(mac, host, vni)) => Some((mac, host, Some(vni))),
                    None => self.endpoints.get(&(vni, address)).map(|&(mac, host)| (mac, host, None)),
                };
                // An IPv6 address without an entry may have the same digest as one with an entry.
                let twin = expected.is_none()
                    && address.is_ipv6()
                    && endpoints.chain(directs).any(|(key, entry)| key.0 == vni && Some(entry) == found);
                assert!(found == expected || twin, "{query:?}: {found:?}, should be {expected:?}");
            }
            Query::Route(vni, address) => {
                let vni = Vni::new(vni).unwrap();
                assert_eq!(reader.route(vni, address), Ok(self.route(vni, address)), "{query:?}");
            }
            Query::Policy(..)
            | Query::Public(..)
            | Query::Source(..)
            | Query::Nat(_)
            | Query::NatForward(..)
            | Query::NatAddress(_) => {
                unreachable!("the histories of policies.rs and public.rs have these")
            }
        }
    }
}

/// All queries.
fn all_queries() -> Vec<Query> {
    let mut queries: Vec<Query> = Vec::new();
    for number in 0..ENDPOINTS {
        let (vni, address) = place(number);
        queries.push(Query::Address(vni.get(), address));
        queries.push(Query::Route(vni.get(), address));
    }
    for prefix in prefixes() {
        for vni in 1..=VNIS {
            queries.push(Query::Route(vni, prefix.addr()));
            queries.push(Query::Route(vni, prefix.broadcast()));
        }
    }
    queries.extend((1..=VNIS).map(|vni| Query::Index(vni, 0)));
    queries.extend((0..HOSTS).map(|number| Query::Address(0, host(number))));
    queries
}

/// The queries whose answers an operation may change.
fn queries_of(op: &Op) -> Vec<Query> {
    match *op {
        Op::Endpoint { number, .. }
        | Op::RemoveEndpoint { number }
        | Op::Direct { number, .. }
        | Op::RemoveDirect { number } => {
            let (vni, address) = place(number);
            vec![Query::Address(vni.get(), address)]
        }
        Op::Route { vni, prefix, .. } | Op::RemoveRoute { vni, prefix } => {
            let prefix = prefixes()[prefix];
            vec![Query::Route(vni, prefix.addr()), Query::Route(vni, prefix.broadcast())]
        }
        Op::Vrf { vni, .. } | Op::RemoveVrf { vni } => vec![Query::Index(vni, 0)],
        Op::Adopt => Vec::new(),
    }
}

fn run(kernel: &Kernel, memory: &Memory, ops: &[Op], digest_mask: u64) {
    let mut tables =
        NodeTables::create_with_digest_mask(memory.clone(), Immediate, Sizes { endpoints: 1 }, digest_mask)
            .unwrap();
    let mut model = Model::default();
    for number in 0..HOSTS {
        tables.upsert_vtep(host(number), Role::Host).unwrap();
    }
    let reader = Reader::new(memory.clone());
    let all = all_queries();
    let mut others = all.iter().copied().cycle();
    for (i, op) in ops.iter().enumerate() {
        model.apply(&mut tables, op).unwrap_or_else(|error| panic!("{op:?}: {error}"));
        let mut queries = queries_of(op);
        queries.extend(others.by_ref().take(OTHERS));
        model.check(kernel, &reader, &queries);
        if i % ALL_EVERY == 0 {
            model.check(kernel, &reader, &all);
        }
    }
    model.check(kernel, &reader, &all);
}

/// After each operation, all three readers answer the queries that it may have changed
/// and a few other ones; after every `ALL_EVERY` operations, they answer all queries.
#[test]
fn three_readers_agree() {
    let kernel = Kernel::load(CELLS);
    let memory = kernel.0.memory().unwrap();
    let masks = [u64::MAX, 0xffff_0000_0000_0007, 0x0003_0000_0000_0003];
    let strategy = (ops(), prop::sample::select(masks.to_vec()));
    let config = ProptestConfig {
        cases: ProptestConfig::default().cases / 32,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    // An emulated processor would take minutes for this many (scripts/test-kernels.sh).
    let wanted = std::env::var("SLUICE_OPERATIONS").ok().and_then(|count| count.parse().ok());
    let operations = AtomicUsize::new(0);
    while operations.load(Ordering::Relaxed) < wanted.unwrap_or(OPERATIONS_MIN) {
        let mut runner = proptest::test_runner::TestRunner::new(config.clone());
        let result = runner.run(&strategy, |(ops, mask)| {
            run(&kernel, &memory, &ops, mask);
            operations.fetch_add(ops.len(), Ordering::Relaxed);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
    }
    println!("{} operations", operations.into_inner());
}

const STABLE: u32 = 48;

/// How far the writer is with the changes of one endpoint.
#[derive(Default)]
struct Progress {
    begun: AtomicU32,
    ended: AtomicU32,
}

/// Returns an endpoint whose MAC and host both identify the change that wrote it.
fn stamped(number: u32, change: u32) -> Endpoint {
    let (vni, address) = place(number);
    let mac = MacAddr::from_u64(0x0200_0000_0000 | u64::from(number) << 24 | u64::from(change));
    Endpoint { vni, address, mac, host: host((change % u32::from(HOSTS)) as u8) }
}

/// Looks up existing endpoints by the eBPF program until `stop` is set. Returns the number of answers and of
/// busy answers.
///
/// An answer is at least as new as the last change that had ended before the lookup. It may be older than the answer
/// before it only while a change is in progress (`exact.rs`), which a reader sees that was stopped in the middle.
fn look_up(kernel: &Kernel, reader: &Reader, progress: &[Progress], stop: &AtomicBool) -> (u64, u64) {
    let queries: Vec<Query> = (0..STABLE)
        .map(|number| {
            let (vni, address) = place(number);
            Query::Address(vni.get(), address)
        })
        .collect();
    let (mut answers, mut busy) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let ended: Vec<u32> = progress.iter().map(|change| change.ended.load(Ordering::SeqCst)).collect();
        for (number, answer) in kernel.ask(&queries).into_iter().enumerate() {
            answers += 1;
            if answer.answer == BUSY {
                busy += 1;
                continue;
            }
            assert_eq!(answer.answer, HIT, "missed {:?}, which is there", queries[number]);
            let change = answer.mac as u32 & 0xff_ffff;
            let expected = stamped(number as u32, change);
            assert_eq!(answer.mac, expected.mac.to_u64(), "another key's MAC for {:?}", queries[number]);
            assert_eq!(reader.next_hop(answer.cell), Some(NextHop::Vtep(expected.host)), "mixed");
            let begun = progress[number].begun.load(Ordering::SeqCst);
            let possible = ended[number]..=begun;
            assert!(possible.contains(&change), "change {change} of {number}, possible is {possible:?}");
        }
    }
    (answers, busy)
}

/// Runs the eBPF program while a writer changes and moves entries, enlarges and adopts
/// the tables, with the kernel's own grace periods.
fn packets_beside_a_writer(digest_mask: u64) {
    let stop = AtomicBool::new(false);
    let progress: Vec<Progress> = (0..STABLE).map(|_| Progress::default()).collect();
    let (to_main, from_reader) = mpsc::channel();
    let (to_reader, from_main) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (stop, progress) = (&stop, &progress);
        let reader = scope.spawn(move || {
            let kernel = Kernel::load(CELLS);
            let memory = kernel.0.memory().unwrap();
            to_main.send(memory.clone()).unwrap();
            from_main.recv().unwrap();
            look_up(&kernel, &Reader::new(memory), progress, stop)
        });
        let memory = from_reader.recv().unwrap();
        let grace = || Membarrier::new().unwrap();
        let sizes = Sizes { endpoints: 1 };
        let mut tables =
            NodeTables::create_with_digest_mask(memory.clone(), grace(), sizes, digest_mask).unwrap();
        for number in 0..HOSTS {
            tables.upsert_vtep(host(number), Role::Host).unwrap();
        }
        for number in 0..STABLE {
            tables.upsert_endpoint(&stamped(number, 0)).unwrap();
        }
        to_reader.send(()).unwrap();
        for change in 1..=250u32 {
            for number in 0..ENDPOINTS {
                let (vni, address) = place(number);
                if number < STABLE {
                    let progress = &progress[number as usize];
                    progress.begun.store(change, Ordering::SeqCst);
                    tables.upsert_endpoint(&stamped(number, change)).unwrap();
                    progress.ended.store(change, Ordering::SeqCst);
                } else if (change + number).is_multiple_of(3) {
                    tables.remove_endpoint(vni, address).unwrap();
                } else {
                    tables.upsert_endpoint(&stamped(number, change)).unwrap();
                }
            }
            if change.is_multiple_of(20) {
                let _ = tables.reserve_endpoints(tables.usage().entry_slots as usize + 3);
            }
            if change.is_multiple_of(50) {
                tables = NodeTables::adopt(memory.clone(), grace()).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        let (answers, busy) = reader.join().unwrap();
        assert!(answers > 1000, "the reader never ran: {answers}");
        assert!(busy * 1000 <= answers, "{busy} of {answers} lookups were busy");
    });
}

#[test]
fn packets_never_miss_or_mix() {
    packets_beside_a_writer(u64::MAX);
}

#[test]
fn packets_never_miss_or_mix_when_digests_conflict() {
    packets_beside_a_writer(0xffff_0000_0000_0007);
}
