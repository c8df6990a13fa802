//! Random histories of source NAT. Packets, run by the C of `nat.h` in a process or as an eBPF program, the agent's side in Rust,
//! and a naive model must agree after every step.

use sluice_tables::nat::{Nat, NatBlock, NatEvent, NatRegions};
use sluice_tables::sessions::{Flow, Region, Timeouts};
use sluice_tables::{Error, Immediate};
use sluice_tables_testing::nat::{self as testing, nat_pool, nat_test};
use sluice_tables_testing::tcp;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU32;

#[path = "nat_ops.rs"]
mod ops;

pub use ops::{Op, World, ops, worlds};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const PROTOCOLS: [u8; 3] = [TCP, UDP, ICMP];
/// Type of the ICMP query that VMs send.
const ECHO: u16 = 8;
/// VPCs, which have the same addresses, and their public addresses. The tables have room for fewer of these.
const VPCS: usize = 2;
const ADDRESSES: u32 = 5;
pub const NUMBERS_MAX: u32 = 4;
/// Ticks after which sessions are not limited if no round is complete (`NAT_ROUND_AGE_MAX`).
const ROUND_AGE_MAX: u32 = 4800;

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
    /// Whether a FIN came from the remote endpoint, and from the VM.
    fins: [bool; 2],
    is_of_remote: bool,
    /// Other inside ports may have its outside endpoint, to other remote endpoints.
    is_shared: bool,
    /// When its mapping was made: the number of changes of the VPC's pool.
    version: u32,
}

/// The pool of a VPC.
#[derive(Default)]
struct Pool {
    addresses: Vec<Ipv4Addr>,
    changes: u32,
}

/// The expected content of the tables.
struct Model<'a> {
    world: &'a World,
    now: u32,
    timeouts: Timeouts,
    /// Sessions that have not expired.
    sessions: HashMap<Key, ModelSession>,
    /// Who had an outside endpoint of a protocol last, and the version of the mapping.
    holders: HashMap<(u8, SocketAddrV4), (Inside, u32)>,
    /// Who had a shared outside endpoint last at a remote endpoint.
    sharers: HashMap<(u8, SocketAddrV4), HashMap<SocketAddrV4, Inside>>,
    /// `flags` of all pools.
    flags: u8,
    /// Blocks of which the log has the claim and not the return.
    logged: Vec<NatBlock>,
    pools: [Pool; VPCS],
    /// The numbers of public addresses, and whether they were released.
    numbers: HashMap<Ipv4Addr, (u16, bool)>,
    /// A round has begun and is not complete, or blocks were closed beside it.
    is_mid_round: bool,
    /// When the last round was completed.
    round_at: u32,
    /// Sessions that have begun or ended, by inside and public address: since the last complete round began, and since the
    /// present one did. As many may count besides those that exist.
    turnover: [HashMap<(u32, Ipv4Addr, Ipv4Addr), u32>; 2],
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
        self.end_expired();
    }

    fn end_expired(&mut self) {
        let now = self.now;
        self.end_sessions(|_, session| session.expires_at.wrapping_sub(now).cast_signed() <= 0);
    }

    fn turn_over(&mut self, inside: &Inside, outside: SocketAddrV4) {
        for turnover in &mut self.turnover {
            *turnover.entry((inside.vni, *inside.end.ip(), *outside.ip())).or_default() += 1;
        }
    }

    fn end_sessions(&mut self, ends: impl Fn(&Key, &ModelSession) -> bool) {
        let ended: Vec<Key> =
            self.sessions.iter().filter(|(key, session)| ends(key, session)).map(|(key, _)| *key).collect();
        for key in ended {
            let session = self.sessions.remove(&key).unwrap();
            self.turn_over(&key.0, session.outside);
        }
    }

    /// Number of sessions of an inside address at a public address, and the most that may count.
    fn count(&self, inside: &Inside, outside: Ipv4Addr) -> [u32; 2] {
        let is_same = |(key, session): &(&Key, &ModelSession)| {
            (key.0.vni, key.0.end.ip(), *session.outside.ip()) == (inside.vni, inside.end.ip(), outside)
        };
        let live = self.sessions.iter().filter(is_same).count() as u32;
        let more = self.turnover[0].get(&(inside.vni, *inside.end.ip(), outside)).copied().unwrap_or(0);
        [live, live + more]
    }

    /// The same for a VPC, at all addresses of its pool.
    fn count_of_vpc(&self, vni: u32) -> [u32; 2] {
        let pool = &self.pools[vpc_of(vni)].addresses;
        let live = self.sessions.values().filter(|session| pool.contains(session.outside.ip())).count();
        let more = self.turnover[0].iter().filter(|((.., outside), _)| pool.contains(outside));
        [live as u32, live as u32 + more.map(|(_, number)| number).sum::<u32>()]
    }

    /// The pool as packets have it.
    fn pool_of(&self, vni: u32) -> nat_pool {
        let numbers: Vec<u16> =
            self.pools[vpc_of(vni)].addresses.iter().map(|address| self.numbers[address].0).collect();
        let nat_pool { addresses, address, .. } = testing::pool_of(&numbers);
        nat_pool { addresses, address, flags: self.flags, ..self.world.limits }
    }

    fn address_of(&self, number: u32) -> Option<Ipv4Addr> {
        let is_it = |(_, (other, _)): &(&Ipv4Addr, &(u16, bool))| u32::from(*other) == number;
        self.numbers.iter().find(is_it).map(|(address, _)| *address)
    }

    /// Applies a packet to a session that exists. Returns false if it ends the session.
    fn touch(&mut self, key: &Key, flags: u8, is_of_vm: bool) -> bool {
        let expires_at = self.now.wrapping_add(self.timeout(key.0.protocol));
        let session = self.sessions.get_mut(key).unwrap();
        let is_tcp = key.0.protocol == TCP;
        if is_tcp && session.fins == [true; 2] && flags & (tcp::SYN | tcp::ACK) == tcp::SYN {
            let outside = session.outside;
            self.sessions.remove(key);
            self.turn_over(&key.0, outside);
            return false;
        }
        session.fins[usize::from(is_of_vm)] |= is_tcp && flags & tcp::FIN != 0;
        if expires_at.wrapping_sub(session.expires_at).cast_signed().unsigned_abs() >= 8 {
            session.expires_at = expires_at;
        }
        true
    }

    /// A session begins, by a packet with a limit of sessions. `holder_version` is that of the mapping, if a remote endpoint
    /// begins it.
    fn begin(&mut self, key: Key, outside: SocketAddrV4, holder_version: Option<u32>, limit: u32) {
        let version = holder_version.unwrap_or(self.pools[vpc_of(key.0.vni)].changes);
        let expires_at = self.now.wrapping_add(self.timeout(key.0.protocol));
        let is_shared = holder_version.is_none() && self.flags & testing::SHARES_PORTS != 0;
        self.check_mapping(&key, outside, is_shared, version);
        let [live, _] = self.count(&key.0, *outside.ip());
        let is_limited = self.now.wrapping_sub(self.round_at) <= ROUND_AGE_MAX;
        // Blocks that were installed elsewhere than packets search do not count for the inside address.
        assert!(
            live < limit || !is_limited || is_installed(&key.0),
            "{live} sessions of {key:?} are not limited"
        );
        let [of_vpc, _] = self.count_of_vpc(key.0.vni);
        let limit = self.world.vpc_sessions.get() / if holder_version.is_some() { 2 } else { 1 };
        assert!(of_vpc < limit || !is_limited, "{of_vpc} sessions of the VPC of {key:?} are not limited");
        self.turn_over(&key.0, outside);
        self.sessions.insert(
            key,
            ModelSession {
                outside,
                expires_at,
                fins: [false; 2],
                is_of_remote: holder_version.is_some(),
                is_shared,
                version,
            },
        );
        self.hold(&key, outside, is_shared, version);
    }

    /// Notes who has an outside endpoint now.
    fn hold(&mut self, (inside, remote): &Key, outside: SocketAddrV4, is_shared: bool, version: u32) {
        let at = (inside.protocol, outside);
        if is_shared {
            self.holders.remove(&at);
            self.sharers.entry(at).or_default().insert(*remote, *inside);
        } else {
            self.sharers.remove(&at);
            self.holders.insert(at, (*inside, version));
        }
    }

    /// Checks that an inside address was refused a session because of its number of sessions.
    fn check_limit(&self, inside: &Inside, outside: Ipv4Addr, limit: u32, asked: &nat_test) {
        let [_, most] = self.count(inside, outside);
        assert!(most >= limit, "at most {most} sessions count: {asked:?}");
    }

    /// The same because of that of its VPC.
    fn check_limit_of_vpc(&self, inside: &Inside, limit: u32, asked: &nat_test) {
        let [_, most] = self.count_of_vpc(inside.vni);
        assert!(most >= limit, "at most {most} sessions of the VPC count: {asked:?}");
    }

    /// Checks the outside endpoint of a session that begins against all other sessions.
    fn check_mapping(&self, (inside, remote): &Key, outside: SocketAddrV4, is_shared: bool, version: u32) {
        let pool = &self.pools[vpc_of(inside.vni)].addresses;
        assert!(pool.contains(outside.ip()) && outside.port() >= 1024, "{outside} of {pool:?}");
        for ((other, with), session) in &self.sessions {
            let is_same_end = session.outside == outside && other.protocol == inside.protocol;
            // An inside address whose public address has changed has sessions at both.
            let is_comparable = session.version == version || session.outside.ip() == outside.ip();
            if is_same_end && is_shared && session.is_shared {
                assert_ne!(with, remote, "{inside:?} and {other:?} have {outside} at one remote endpoint");
                assert_eq!(
                    (other.vni, other.end.ip()),
                    (inside.vni, inside.end.ip()),
                    "sharers of {outside}"
                );
            } else if is_same_end && (is_shared || session.is_shared) {
                panic!("{outside} of {inside:?} or {other:?} is not shared");
            } else if other == inside && is_comparable && !is_shared && !session.is_shared {
                assert_eq!(session.outside, outside, "the mapping of {inside:?} depends on the remote");
            } else if is_same_end {
                panic!("{inside:?} and {other:?} have the same outside endpoint {outside}");
            } else if (other.vni, other.end.ip()) == (inside.vni, inside.end.ip()) && is_comparable {
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
            && (peeks || self.touch(&key, asked.tcp_flags, true))
        {
            assert_eq!((asked.answer, outside), (testing::NAT_TRANSLATED, session.outside), "{asked:?}");
            return;
        }
        if peeks || !Self::begins(key.0.protocol, asked.tcp_flags) {
            assert_eq!(asked.answer, testing::NAT_NO_SESSION, "{asked:?}");
            return;
        }
        let (limits, pool) = (self.world.limits, &self.pools[vpc_of(key.0.vni)]);
        if asked.answer == testing::NAT_BEGUN {
            self.begin(key, outside, None, limits.sessions_limit);
            return;
        }
        if pool.addresses.is_empty() {
            assert_eq!(asked.answer, testing::NAT_EXHAUSTED, "{asked:?}");
            return;
        }
        let address = self.address_of(asked.address).unwrap();
        assert!(pool.addresses.contains(&address), "{asked:?}");
        let at_address: Vec<NatBlock> = nat.blocks().filter(|block| block.outside == address).collect();
        let is_own =
            |block: &&NatBlock| (block.vni.get(), block.inside) == (key.0.vni, IpAddr::V4(*key.0.end.ip()));
        let own = at_address.iter().filter(is_own).count();
        let is_mapped = self.sessions.iter().any(|((inside, _), session)| {
            *inside == key.0 && *session.outside.ip() == address && !session.is_shared
        });
        let is_mapped = is_mapped && self.flags & testing::SHARES_PORTS == 0;
        match asked.answer {
            testing::NAT_SESSIONS => self.check_limit(&key.0, address, limits.sessions_limit, asked),
            testing::NAT_VPC_SESSIONS => {
                self.check_limit_of_vpc(&key.0, self.world.vpc_sessions.get(), asked);
            }
            testing::NAT_BLOCKS => {
                assert!(own >= limits.blocks_limit.into() && !is_mapped, "{asked:?}");
            }
            testing::NAT_EXHAUSTED => {
                assert!(own < limits.blocks_limit.into() && !is_mapped, "{asked:?}");
                // An address of one group has no other block.
                let is_one_group = self.world.size.block_ports == 4096 && !self.is_mid_round;
                assert!(!is_one_group || at_address.len() == 15, "{asked:?}");
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
        let admits =
            self.flags & testing::ANY_REMOTE != 0 && found.is_some_and(|(_, session)| !session.is_shared);
        let ignored = if admits { 0 } else { tcp::SYN };
        if let Some((&key, _)) = found
            && (peeks || self.touch(&key, asked.tcp_flags & !ignored, false))
        {
            assert_eq!((asked.answer, answered), (testing::NAT_TRANSLATED, key.0), "{asked:?}");
            return;
        }
        let begins = Self::begins(protocol, asked.tcp_flags) && protocol != ICMP && !peeks;
        let begins = begins && self.flags & testing::ANY_REMOTE != 0;
        let limit = self.world.limits.sessions_limit / 2;
        match asked.answer {
            testing::NAT_MISS => {
                // A mapping with a session lets others begin, unless that of this remote endpoint is at another address.
                let mapped = self.sessions.iter().find(|((inside, _), session)| {
                    inside.protocol == protocol && session.outside == outside && !session.is_shared
                });
                let is_new =
                    mapped.is_some_and(|((inside, _), _)| !self.sessions.contains_key(&(*inside, remote)));
                assert!(!(begins && is_new), "{asked:?}");
            }
            testing::NAT_SESSIONS => {
                assert!(begins, "{asked:?}");
                self.check_limit(&answered, *outside.ip(), limit, asked);
            }
            testing::NAT_VPC_SESSIONS => {
                assert!(begins, "{asked:?}");
                self.check_limit_of_vpc(&answered, self.world.vpc_sessions.get() / 2, asked);
            }
            testing::NAT_BEGUN => {
                // Also if all sessions of the mapping have ended, and its port was not freed yet.
                let holder = self.holders.get(&(protocol, outside)).copied();
                assert_eq!((begins, holder.map(|held| held.0)), (true, Some(answered)), "{asked:?}");
                let version = holder.map(|held| held.1);
                self.begin((answered, remote), outside, version, limit);
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
                let Flow { scope, protocol, .. } = shown.session.flow;
                let what = (shown.outside, shown.is_of_remote, shown.is_shared);
                ((scope, protocol, shown.inside, shown.remote), what)
            })
            .collect();
        let expected: HashMap<_, _> = self
            .sessions
            .iter()
            .map(|((inside, remote), session)| {
                let ends = (inside.vni, inside.protocol, inside.end.into(), *remote);
                (ends, (session.outside, session.is_of_remote, session.is_shared))
            })
            .collect();
        assert_eq!(shown, expected);
    }

    fn log(&mut self, event: NatEvent, events: &mut Vec<NatEvent>) {
        events.push(event.clone());
        let is_same = |one: &NatBlock, other: &NatBlock| {
            (one.outside, one.ports.start(), one.claimed_at)
                == (other.outside, other.ports.start(), other.claimed_at)
                && (one.vni, one.inside) == (other.vni, other.inside)
        };
        match event {
            NatEvent::Claimed(block) => {
                let overlaps =
                    |other: &NatBlock| (other.outside, &other.ports) == (block.outside, &block.ports);
                assert!(!self.logged.iter().any(overlaps), "claimed twice: {block:?}");
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
        if !self.is_mid_round {
            self.turnover[1].clear();
        }
        self.is_mid_round = !swept.round_completed;
        if swept.round_completed {
            self.round_at = self.now;
            self.turnover[0] = self.turnover[1].clone();
        }
        swept.round_completed
    }

    /// A complete round, after the present one.
    fn round(&mut self, nat: &mut Nat, buckets: u32) {
        while self.is_mid_round {
            self.step(nat, buckets);
        }
        while !self.step(nat, buckets) {}
        self.numbers.retain(|_, (_, is_released)| !*is_released);
        self.check_numbers(nat);
        let owned: HashSet<_> = nat.blocks().map(|block| (block.outside, *block.ports.start())).collect();
        let logged = self.logged.iter().map(|block| (block.outside, *block.ports.start())).collect();
        assert_eq!(owned, logged, "blocks in the log");
    }
}

/// The number of a VPC.
fn vpc_of(vni: u32) -> usize {
    vni as usize % VPCS
}

fn remote(number: u32, protocol: u8) -> SocketAddrV4 {
    let port = if protocol == ICMP { ECHO } else { 80 + (number % 2) as u16 };
    SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 1 + (number / 2) as u8), port)
}

/// Whether an inside address has only sessions that were installed, and those that remote endpoints began at their ports.
fn is_installed(inside: &Inside) -> bool {
    u32::from(*inside.end.ip()) & 0xff >= 31
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
        (asked.now, asked.bytes, asked.pool) = (self.now, 100, self.pool_of(key.0.vni));
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
        let mut asked =
            testing::incoming(key.0.vni, self.numbers[outside.ip()].0.into(), protocol, outside, with);
        (asked.now, asked.bytes, asked.pool) = (self.now, 100, self.pool_of(key.0.vni));
        asked.tcp_flags = if protocol == TCP { flags } else { 0 };
        asked.flags = if peek { testing::PEEK } else { 0 };
        packet(&mut asked);
        self.check_in(protocol, outside, with, &asked);
    }
}

impl Model<'_> {
    /// Installs a session by the first address of the pool, and a port that depends only on the inside endpoint. Several may have it.
    fn install(&mut self, nat: &Nat, op: &Op, packet: &mut dyn FnMut(&mut nat_test)) {
        let Op::Install { vm, protocol, port, remote: number, idle, of_owner, shares } = *op else { return };
        let key = (inside(vm, PROTOCOLS[protocol], port), remote(number, PROTOCOLS[protocol]));
        let Some(&address) = self.pools[vpc_of(key.0.vni)].addresses.first() else { return };
        // Two inside ports share one, which a third one may have alone.
        let number_of_port = if shares { port % 2 } else { port } + protocol as u16;
        let outside = SocketAddrV4::new(address, 900 + 700 * (vm as u16 - 60) + 20 * number_of_port);
        let at = (self.numbers[&address].0.into(), outside.port());
        let mut asked = testing::installed(key.0.vni, key.0.protocol, (key.0.end, key.1), at);
        (asked.now, asked.idle, asked.since) = (self.now, idle, self.now);
        asked.flags = if of_owner { testing::OF_OWNER } else { 0 };
        asked.state = if shares { testing::COPY_OF_SHARED } else { 0 };
        packet(&mut asked);
        let expires_at = self.now.wrapping_sub(idle).wrapping_add(self.timeout(key.0.protocol));
        if !self.merge(&key, outside, expires_at, &asked) {
            self.add(nat, key, outside, expires_at, &asked);
        }
    }

    /// The session exists and stays. False: it does not, or is older and ends because it has another outside endpoint.
    fn merge(&mut self, key: &Key, outside: SocketAddrV4, expires_at: u32, asked: &nat_test) -> bool {
        let (now, timeout) = (self.now, self.timeout(key.0.protocol));
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let newer = session.expires_at.wrapping_sub(expires_at).cast_signed();
        let is_same = session.outside == outside;
        let is_replaced = if asked.flags & testing::OF_OWNER != 0 {
            // There is activity in the owner's pass only at this moment.
            newer <= 0 || session.expires_at.wrapping_sub(timeout) != now
        } else {
            newer < -8
        };
        if !is_same && is_replaced {
            return false;
        }
        let answer = if is_same { testing::NAT_TRANSLATED } else { testing::NAT_ELSEWHERE };
        assert_eq!(asked.answer, answer, "{asked:?}");
        let is_moved = newer.unsigned_abs() >= 8 && (is_replaced || newer == -8);
        if is_moved {
            session.expires_at = expires_at;
        }
        if is_replaced {
            session.fins = [false; 2];
        }
        self.end_expired();
        true
    }

    /// The session is added, or there is a reason why not.
    fn add(&mut self, nat: &Nat, key: Key, outside: SocketAddrV4, expires_at: u32, asked: &nat_test) {
        let block_ports = self.world.size.block_ports as u16;
        let is_withheld = outside.port() / block_ports * block_ports < 1024;
        let is_too_old = asked.idle >= self.timeout(key.0.protocol);
        let is_shared = asked.state & testing::COPY_OF_SHARED != 0;
        let at = (key.0.protocol, outside);
        let holder = self.holders.get(&at).map(|held| held.0);
        let sharers = self.sharers.get(&at);
        let sharer = sharers.and_then(|sharers| sharers.get(&key.1)).copied();
        let is_of_other_mapping = if is_shared { holder.is_some() } else { sharers.is_some() };
        let is_of_port =
            |block: &NatBlock| block.outside == *outside.ip() && block.ports.contains(&outside.port());
        let is_other =
            |block: NatBlock| (block.vni.get(), block.inside) != (key.0.vni, IpAddr::V4(*key.0.end.ip()));
        match asked.answer {
            testing::NAT_BEGUN => {
                assert!(!is_too_old && !is_withheld, "{asked:?}");
                let has = |((inside, with), session): (&Key, &ModelSession)| {
                    inside.protocol == key.0.protocol
                        && session.outside == outside
                        && *inside != key.0
                        && !(is_shared && session.is_shared && *with != key.1)
                };
                assert!(!self.sessions.iter().any(has), "the port has another inside endpoint: {asked:?}");
                self.end_sessions(|other, _| *other == key);
                self.turn_over(&key.0, outside);
                let version = self.pools[vpc_of(key.0.vni)].changes;
                let (fins, is_of_remote) = ([false; 2], false);
                // Expiries move only by a second or more.
                let expires_at =
                    if asked.idle < 8 { expires_at.wrapping_add(asked.idle) } else { expires_at };
                let session = ModelSession { outside, expires_at, fins, is_of_remote, is_shared, version };
                self.sessions.insert(key, session);
                self.hold(&key, outside, is_shared, version);
            }
            testing::NAT_MISS => assert!(is_too_old, "{asked:?}"),
            testing::NAT_TAKEN => {
                let is_others = nat.blocks().find(is_of_port).is_some_and(is_other);
                let is_others = is_others || [holder, sharer].iter().flatten().any(|holder| *holder != key.0);
                let is_others = is_others || is_of_other_mapping;
                assert!(is_withheld || is_others, "{asked:?}");
            }
            testing::NAT_BUSY => assert!(self.is_mid_round, "{asked:?}"),
            other => panic!("answer {other}: {asked:?}"),
        }
    }
}

impl Model<'_> {
    /// Checks the numbers of public addresses. Those that were released may be free now.
    fn check_numbers(&mut self, nat: &Nat) {
        let found: HashMap<Ipv4Addr, (u16, bool)> =
            nat.addresses().map(|found| (found.address, (found.number, found.is_released))).collect();
        self.numbers.retain(|address, (_, is_released)| !*is_released || found.contains_key(address));
        assert_eq!(found, self.numbers);
        let numbers: HashSet<u16> = found.values().map(|(number, _)| *number).collect();
        assert_eq!(numbers.len(), found.len(), "two addresses have one number: {found:?}");
    }

    fn assign(&mut self, nat: &mut Nat, vpc: usize, address: Ipv4Addr) {
        self.check_numbers(nat);
        let released = self.numbers.values().filter(|(_, is_released)| *is_released).count() as u32;
        let total = self.world.size.addresses;
        match nat.assign(address) {
            Ok(number) => {
                let known = self.numbers.insert(address, (number, false));
                assert!(known.is_none_or(|known| known.0 == number), "another number of {address}");
                self.pools[vpc].addresses.push(address);
                self.pools[vpc].changes += 1;
            }
            Err(error) => {
                assert_eq!(error, Error::NoNatNumber { address, total, released });
                assert_eq!(self.numbers.len() as u32, total, "{error}");
                assert!(!self.numbers.contains_key(&address), "{error}");
            }
        }
        self.check_numbers(nat);
    }

    /// Takes an address from a VPC. Returns false if it does not have it.
    fn release(&mut self, nat: &mut Nat, vpc: usize, address: Ipv4Addr) -> bool {
        let pool = &mut self.pools[vpc];
        let Some(at) = pool.addresses.iter().position(|has| *has == address) else { return false };
        pool.addresses.remove(at);
        pool.changes += 1;
        assert_eq!(nat.release(&[address]), Ok(1));
        assert_eq!(nat.release(&[address]), Ok(0));
        self.numbers.get_mut(&address).unwrap().1 = true;
        self.end_sessions(|_, session| *session.outside.ip() == address);
        self.holders.retain(|(_, outside), _| *outside.ip() != address);
        self.is_mid_round = true;
        true
    }

    fn change_pool(&mut self, nat: &mut Nat, vpc: usize, number: u32) {
        let address = public(number);
        if !self.release(nat, vpc, address) {
            self.release(nat, (vpc + 1) % VPCS, address);
            self.assign(nat, vpc, address);
        }
    }

    fn end(&mut self, nat: &mut Nat, vm: u32, is_vpc: bool) {
        let ended = inside(vm, UDP, 0);
        let ends = |vni: u32, ip: IpAddr| vni == ended.vni && (is_vpc || ip == *ended.end.ip());
        nat.end(|block| ends(block.vni.get(), block.inside)).unwrap();
        self.end_sessions(|key, _| ends(key.0.vni, (*key.0.end.ip()).into()));
        self.holders.retain(|_, (inside, _)| !ends(inside.vni, (*inside.end.ip()).into()));
        self.is_mid_round = true;
    }
}

/// A public address.
fn public(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(0xc633_6401 + number)
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
    let mut nat = Nat::create(regions, world.size, world.seed, &timeouts, world.now, Immediate).unwrap();
    nat.limit_vpcs(world.vpc_sessions, NonZeroU32::MIN);
    let mut model = Model {
        world,
        now: world.now,
        timeouts,
        sessions: HashMap::new(),
        holders: HashMap::new(),
        sharers: HashMap::new(),
        flags: world.limits.flags,
        logged: Vec::new(),
        pools: Default::default(),
        numbers: HashMap::new(),
        is_mid_round: false,
        round_at: world.now,
        turnover: Default::default(),
    };
    (0..VPCS).for_each(|vpc| model.assign(&mut nat, vpc, public(vpc as u32)));
    for (number, op) in ops.iter().enumerate() {
        match *op {
            Op::Out { .. } => model.packet_from_vm(&nat, op, packet),
            Op::In { .. } => model.packet_from_internet(op, packet),
            Op::Install { .. } => model.install(&nat, op, packet),
            Op::Pass(ticks) => model.pass(ticks),
            Op::Round(buckets) => model.round(&mut nat, buckets),
            Op::Step => drop(model.step(&mut nat, 5)),
            Op::Remove(session) => {
                let Some(key) = model.key(session) else { continue };
                assert!(nat.remove(&flow_of(&key), model.now));
                model.end_sessions(|other, _| *other == key);
            }
            Op::End { vm, is_vpc } => model.end(&mut nat, vm, is_vpc),
            Op::Pool { vpc, address } => model.change_pool(&mut nat, vpc, address),
            Op::Change(flags) => model.flags = flags,
            Op::Adopt => {
                let generation = nat.generation();
                nat = Nat::adopt(regions, world.size, model.now, Immediate).unwrap();
                assert_eq!(nat.generation(), generation + 1);
                model.check_numbers(&nat);
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
    assert!(is_zero(&regions.tuples), "tuples have leaked");
    assert_eq!((nat.usage().blocks, nat.usage().ports, nat.usage().tuples), (0, 0, 0));
    assert_eq!(nat.usage().addresses as usize, model.numbers.len());
}
