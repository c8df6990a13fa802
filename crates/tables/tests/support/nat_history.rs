//! Random histories of source NAT. Packets, run by the C of `nat.h` in a process or as an eBPF program, the agent's side in Rust,
//! and a naive model must agree after every step.

use proptest::prelude::*;
use sluice_tables::Immediate;
use sluice_tables::nat::{Nat, NatBlock, NatEvent, NatPool, NatRegions, NatSettings};
use sluice_tables::sessions::{Flow, Region, Timeouts};
use sluice_tables_testing::nat::{self as testing, nat_test};
use sluice_tables_testing::tcp;
use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddrV4};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const PROTOCOLS: [u8; 3] = [TCP, UDP, ICMP];
/// Type of the ICMP query that VMs send.
const ECHO: u16 = 8;

/// One step of a history.
#[derive(Clone, Debug)]
pub enum Op {
    /// A packet of a VM.
    Out { vm: u32, protocol: usize, port: u16, remote: u32, flags: u8, peek: bool },
    /// A packet from the Internet: to the outside endpoint of a session (by number), or to any port.
    In { session: usize, port: Option<u16>, remote: Option<u32>, flags: u8, peek: bool },
    /// Time passes: a number of ticks.
    Pass(u32),
    /// The sweep makes a complete round, in steps of this many buckets.
    Round(u32),
    /// One step of the sweep.
    Step,
    /// The agent ends a session, by number.
    Remove(usize),
    /// Another agent adopts the tables.
    Adopt,
}

/// What is constant in a history.
#[derive(Clone, Debug)]
pub struct World {
    pub pool: NatPool,
    pub settings: NatSettings,
    pub seed: u64,
    pub now: u32,
}

pub fn worlds() -> impl Strategy<Value = World> {
    let now = prop::sample::select(vec![0, 5, 0x7fff_fff0, 0xffff_ff00, 0xffff_fffe]);
    let pool = (1..4_u8, prop::sample::select(vec![64, 512, 4096]));
    let settings = (3..60_u32, 1..4_u32, any::<bool>());
    (pool, settings, any::<u64>(), now).prop_map(|(pool, (sessions, blocks, any_remote), seed, now)| World {
        pool: NatPool {
            addresses: (1..=pool.0).map(|last| Ipv4Addr::new(198, 51, 100, last)).collect(),
            block_ports: pool.1,
        },
        settings: NatSettings {
            sessions,
            remote_sessions: sessions / 2,
            blocks,
            any_remote,
            lease: 7 << 32 | 3,
        },
        seed,
        now,
    })
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let flags = || prop::sample::select(vec![tcp::SYN, tcp::SYN, tcp::ACK, tcp::ACK, tcp::RST]);
    // Some VMs use few ports, and some many.
    let port = prop_oneof![0..4_u16, 0..300_u16, any::<u16>()];
    let peek = || prop::bool::weighted(0.1);
    let out = (0..12_u32, 0..3_usize, port, 0..4_u32, flags(), peek()).prop_map(
        |(vm, protocol, port, remote, flags, peek)| Op::Out { vm, protocol, port, remote, flags, peek },
    );
    let remote = prop::option::weighted(0.3, 0..4_u32);
    let port = prop::option::weighted(0.1, any::<u16>());
    let into = (any::<usize>(), port, remote, flags(), peek())
        .prop_map(|(session, port, remote, flags, peek)| Op::In { session, port, remote, flags, peek });
    let op = prop_oneof![
        60 => out,
        40 => into,
        12 => (0..30_u32).prop_map(Op::Pass),
        2 => (30..300_u32).prop_map(Op::Pass),
        4 => (1..40_u32).prop_map(Op::Round),
        6 => Just(Op::Step),
        3 => any::<usize>().prop_map(Op::Remove),
        1 => Just(Op::Adopt),
    ];
    prop::collection::vec(op, 1..500)
}

/// An inside endpoint: what has one outside endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Inside {
    vni: u32,
    protocol: u8,
    end: SocketAddrV4,
}

type Key = (Inside, SocketAddrV4);

#[derive(Clone, Copy, Debug)]
struct ModelSession {
    outside: SocketAddrV4,
    expires_at: u32,
    is_reset: bool,
}

/// The expected content of the tables.
struct Model<'a> {
    world: &'a World,
    now: u32,
    timeouts: Timeouts,
    /// Sessions that have not expired.
    sessions: HashMap<Key, ModelSession>,
    /// Who had an outside endpoint of a protocol last.
    holders: HashMap<(u8, SocketAddrV4), Inside>,
    /// Blocks of which the log has the claim and not the return.
    logged: Vec<NatBlock>,
}

impl Model<'_> {
    fn timeout(&self, protocol: u8) -> u32 {
        8 * match protocol {
            TCP => self.timeouts.tcp_new_s,
            UDP => self.timeouts.udp_one_way_s,
            _ => self.timeouts.icmp_s,
        }
    }

    fn pass(&mut self, ticks: u32) {
        self.now = self.now.wrapping_add(ticks);
        let now = self.now;
        self.sessions.retain(|_, session| session.expires_at.wrapping_sub(now).cast_signed() > 0);
    }

    /// Applies a packet to a session that exists. Returns false if it ends the session.
    fn touch(&mut self, key: &Key, flags: u8) -> bool {
        let expires_at = self.now.wrapping_add(self.timeout(key.0.protocol));
        let session = self.sessions.get_mut(key).unwrap();
        let is_tcp = key.0.protocol == TCP;
        if is_tcp && session.is_reset && flags & (tcp::SYN | tcp::ACK) == tcp::SYN {
            self.sessions.remove(key);
            return false;
        }
        session.is_reset = is_tcp && flags & tcp::RST != 0;
        if expires_at.wrapping_sub(session.expires_at).cast_signed().unsigned_abs() >= 8 {
            session.expires_at = expires_at;
        }
        true
    }

    fn begin(&mut self, key: Key, outside: SocketAddrV4, flags: u8) {
        let expires_at = self.now.wrapping_add(self.timeout(key.0.protocol));
        let is_reset = key.0.protocol == TCP && flags & tcp::RST != 0;
        self.check_mapping(&key, outside);
        self.sessions.insert(key, ModelSession { outside, expires_at, is_reset });
        self.holders.insert((key.0.protocol, outside), key.0);
    }

    /// Checks the outside endpoint of a session that begins against all other sessions.
    fn check_mapping(&self, (inside, _): &Key, outside: SocketAddrV4) {
        assert!(self.world.pool.addresses.contains(outside.ip()) && outside.port() >= 1024, "{outside}");
        for ((other, _), session) in &self.sessions {
            let is_same_end = session.outside == outside && other.protocol == inside.protocol;
            if other == inside {
                assert_eq!(session.outside, outside, "the mapping of {inside:?} depends on the remote");
            } else if is_same_end {
                panic!("{inside:?} and {other:?} have the same outside endpoint {outside}");
            } else if (other.vni, other.end.ip()) == (inside.vni, inside.end.ip()) {
                assert_eq!(session.outside.ip(), outside.ip(), "two public addresses of {inside:?}");
            }
        }
    }

    fn begins(protocol: u8, flags: u8) -> bool {
        protocol != TCP || flags & (tcp::SYN | tcp::ACK | tcp::RST) == tcp::SYN
    }

    fn check_out(&mut self, nat: &Nat, key: Key, asked: &nat_test) {
        let (outside, peeks) = (testing::outside_of(asked), asked.flags & testing::PEEK != 0);
        if let Some(&session) = self.sessions.get(&key)
            && (peeks || self.touch(&key, asked.tcp_flags))
        {
            assert_eq!((asked.answer, outside), (testing::NAT_TRANSLATED, session.outside), "{asked:?}");
            return;
        }
        if peeks || !Self::begins(key.0.protocol, asked.tcp_flags) {
            assert_eq!(asked.answer, testing::NAT_NO_SESSION, "{asked:?}");
            return;
        }
        if asked.answer == testing::NAT_BEGUN {
            self.begin(key, outside, asked.tcp_flags);
            return;
        }
        let is_own = |block: &NatBlock| (block.vni.get(), block.inside) == (key.0.vni, *key.0.end.ip());
        let own: Vec<NatBlock> = nat.blocks().filter(is_own).collect();
        let is_mapped = self.sessions.keys().any(|(inside, _)| *inside == key.0);
        match asked.answer {
            testing::NAT_SESSIONS => {
                let sessions: u32 = own.iter().map(|block| block.sessions).sum();
                assert!(sessions >= self.world.settings.sessions, "{sessions} sessions: {asked:?}");
            }
            testing::NAT_BLOCKS => {
                assert!(own.len() as u32 >= self.world.settings.blocks && !is_mapped, "{asked:?}");
            }
            testing::NAT_EXHAUSTED => {
                assert!((own.len() as u32) < self.world.settings.blocks && !is_mapped, "{asked:?}");
                // A pool of one group has no other block.
                let is_one_group =
                    self.world.pool.block_ports == 4096 && self.world.pool.addresses.len() == 1;
                let is_empty = nat.blocks().count() as u64 == nat.usage().blocks_total;
                assert!(!is_one_group || is_empty, "{asked:?}");
            }
            other => panic!("answer {other} without concurrency: {asked:?}"),
        }
    }

    fn check_in(&mut self, protocol: u8, outside: SocketAddrV4, remote: SocketAddrV4, asked: &nat_test) {
        let peeks = asked.flags & testing::PEEK != 0;
        let answered = Inside { vni: asked.vni, protocol, end: testing::inside_of(asked) };
        let found = self.sessions.iter().find(|((inside, with), session)| {
            inside.protocol == protocol && *with == remote && session.outside == outside
        });
        if let Some((&key, _)) = found
            && (peeks || self.touch(&key, asked.tcp_flags))
        {
            assert_eq!((asked.answer, answered), (testing::NAT_TRANSLATED, key.0), "{asked:?}");
            return;
        }
        match asked.answer {
            testing::NAT_MISS => {}
            testing::NAT_SESSIONS => assert!(self.world.settings.any_remote, "{asked:?}"),
            testing::NAT_BEGUN => {
                let begins = Self::begins(protocol, asked.tcp_flags) && protocol != ICMP && !peeks;
                assert!(self.world.settings.any_remote && begins, "{asked:?}");
                // Also if all sessions of the mapping have ended, and its port was not freed yet.
                assert_eq!(self.holders.get(&(protocol, outside)), Some(&answered), "{asked:?}");
                self.begin((answered, remote), outside, asked.tcp_flags);
            }
            other => panic!("answer {other}: {asked:?}"),
        }
    }

    /// Checks that the agent shows the sessions of the model.
    fn check_translations(&self, nat: &Nat) {
        let shown: HashMap<_, _> = nat
            .translations()
            .filter(|shown| shown.session.expires_at.wrapping_sub(self.now).cast_signed() > 0)
            .map(|shown| {
                let ends = [shown.session.flow.source, shown.session.flow.destination];
                (
                    (shown.session.flow.scope, shown.session.flow.protocol, ends.into_iter().min()),
                    shown.outside,
                )
            })
            .collect();
        // VMs have lower addresses than remote endpoints.
        let expected: HashMap<_, _> = self
            .sessions
            .iter()
            .map(|((inside, _), session)| {
                ((inside.vni, inside.protocol, Some(inside.end.into())), session.outside)
            })
            .collect();
        assert_eq!(shown, expected);
        assert_eq!(
            nat.translations()
                .filter(|shown| shown.session.expires_at.wrapping_sub(self.now).cast_signed() > 0)
                .count(),
            self.sessions.len()
        );
    }

    fn log(&mut self, event: NatEvent, events: &mut Vec<NatEvent>) {
        events.push(event.clone());
        let is_same = |one: &NatBlock, other: &NatBlock| {
            (one.outside, one.ports.start(), one.claimed_at)
                == (other.outside, other.ports.start(), other.claimed_at)
                && (one.vni, one.inside, one.lease) == (other.vni, other.inside, other.lease)
        };
        match event {
            NatEvent::Claimed(block) => {
                let overlaps =
                    |other: &NatBlock| (other.outside, &other.ports) == (block.outside, &block.ports);
                assert!(!self.logged.iter().any(overlaps), "claimed twice: {block:?}");
                assert_eq!(block.lease, self.world.settings.lease);
                self.logged.push(block);
            }
            NatEvent::Returned(block, at) => {
                assert_eq!(at, self.now);
                let position = self.logged.iter().position(|other| is_same(other, &block));
                self.logged.swap_remove(position.expect("the return of a block whose claim was logged"));
                let range = block.ports.clone();
                let holds = |session: &&ModelSession| {
                    session.outside.ip() == &block.outside && range.contains(&session.outside.port())
                };
                assert_eq!(self.sessions.values().filter(holds).count(), 0, "{block:?} was in use");
            }
        }
    }

    /// One step of the sweep. Returns whether it completed a round.
    fn step(&mut self, nat: &mut Nat, buckets: u32) -> bool {
        let (now, mut events) = (self.now, Vec::new());
        let swept = nat.sweep(buckets, now, &mut |event| events.push(event)).unwrap();
        let mut logged = Vec::new();
        for event in events {
            self.log(event, &mut logged);
        }
        assert_eq!(swept.astray, 0);
        swept.round_completed
    }

    fn round(&mut self, nat: &mut Nat, buckets: u32) {
        while !self.step(nat, buckets) {}
        let owned: HashSet<_> = nat.blocks().map(|block| (block.outside, *block.ports.start())).collect();
        let logged = self.logged.iter().map(|block| (block.outside, *block.ports.start())).collect();
        assert_eq!(owned, logged, "blocks in the log");
    }
}

fn remote(number: u32, protocol: u8) -> SocketAddrV4 {
    let port = if protocol == ICMP { ECHO } else { 80 + (number % 2) as u16 };
    SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 1 + (number / 2) as u8), port)
}

fn inside(vm: u32, protocol: u8, port: u16) -> Inside {
    // Two VPCs with the same addresses.
    let end = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1 + (vm / 2) as u8), port);
    Inside { vni: 100 + vm % 2, protocol, end }
}

fn is_zero(region: &Region) -> bool {
    // SAFETY: the region is mapped, and nothing writes to it during the call.
    let bytes = unsafe { std::slice::from_raw_parts(region.as_ptr(), region.bytes()) };
    bytes.iter().all(|&byte| byte == 0)
}

fn flow_of(key: &Key) -> Flow {
    Flow { scope: key.0.vni, protocol: key.0.protocol, source: key.0.end.into(), destination: key.1.into() }
}

impl Model<'_> {
    /// The key of a session, by number.
    fn key(&self, number: usize) -> Option<Key> {
        let mut keys: Vec<Key> = self.sessions.keys().copied().collect();
        keys.sort_by_key(|(inside, with)| (inside.vni, inside.protocol, inside.end, *with));
        (!keys.is_empty()).then(|| keys[number % keys.len()])
    }

    fn packet_from_vm(&mut self, nat: &Nat, op: &Op, packet: &mut dyn FnMut(&mut nat_test)) {
        let Op::Out { vm, protocol, port, remote: number, flags, peek } = *op else { return };
        let protocol = PROTOCOLS[protocol];
        let key = (inside(vm, protocol, port), remote(number, protocol));
        let mut asked = testing::outgoing(key.0.vni, protocol, key.0.end, key.1);
        (asked.now, asked.bytes) = (self.now, 100);
        asked.tcp_flags = if protocol == TCP { flags } else { 0 };
        asked.flags =
            if peek { testing::PEEK } else { 0 } | if protocol == ICMP { testing::QUERY } else { 0 };
        packet(&mut asked);
        self.check_out(nat, key, &asked);
    }

    fn packet_from_internet(&mut self, op: &Op, packet: &mut dyn FnMut(&mut nat_test)) {
        let Op::In { session, port, remote: number, flags, peek } = *op else { return };
        let Some(key) = self.key(session) else { return };
        let protocol = key.0.protocol;
        let mut outside = self.sessions[&key].outside;
        outside.set_port(port.unwrap_or(outside.port()));
        let with = number.map_or(key.1, |number| remote(number, protocol));
        let address = self.world.pool.addresses.iter().position(|address| address == outside.ip()).unwrap();
        let mut asked = testing::incoming(address as u32, protocol, outside, with);
        (asked.now, asked.bytes) = (self.now, 100);
        asked.tcp_flags = if protocol == TCP { flags } else { 0 };
        asked.flags = if peek { testing::PEEK } else { 0 };
        packet(&mut asked);
        self.check_in(protocol, outside, with, &asked);
    }
}

/// Runs a history; `packet` runs a packet.
pub fn run(regions: &NatRegions, world: &World, ops: &[Op], packet: &mut dyn FnMut(&mut nat_test)) {
    let timeouts = Timeouts {
        tcp_new_s: 20,
        tcp_established_s: 20,
        tcp_closing_s: 20,
        udp_one_way_s: 9,
        udp_two_way_s: 9,
        icmp_s: 4,
        other_s: 2,
    };
    let mut nat =
        Nat::create(regions, &world.pool, world.seed, (&world.settings, &timeouts), world.now, Immediate)
            .unwrap();
    let mut model = Model {
        world,
        now: world.now,
        timeouts,
        sessions: HashMap::new(),
        holders: HashMap::new(),
        logged: Vec::new(),
    };
    for (number, op) in ops.iter().enumerate() {
        match *op {
            Op::Out { .. } => model.packet_from_vm(&nat, op, packet),
            Op::In { .. } => model.packet_from_internet(op, packet),
            Op::Pass(ticks) => model.pass(ticks),
            Op::Round(buckets) => model.round(&mut nat, buckets),
            Op::Step => drop(model.step(&mut nat, 5)),
            Op::Remove(session) => {
                let Some(key) = model.key(session) else { continue };
                assert!(nat.remove(&flow_of(&key), model.now));
                model.sessions.remove(&key);
            }
            Op::Adopt => {
                let generation = nat.generation();
                nat = Nat::adopt(regions, &world.pool, model.now, Immediate).unwrap();
                assert_eq!(nat.generation(), generation + 1);
            }
        }
        if number.is_multiple_of(16) {
            model.check_translations(&nat);
        }
    }
    model.check_translations(&nat);
    // After all sessions have expired, nothing is left.
    model.pass(8 * 21);
    (0..3).for_each(|_| model.round(&mut nat, 7));
    assert_eq!(nat.translations().count(), 0);
    assert!(model.logged.is_empty() && is_zero(&regions.ports), "ports or blocks have leaked");
    assert_eq!((nat.usage().blocks, nat.usage().ports), (0, 0));
}
