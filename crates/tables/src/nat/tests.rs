//! What packets get, refusals, rounds, and the memory that sessions need.

mod addresses;
mod install;
mod killed;
mod nat64;
mod schedules;
mod seed;
mod shared;

use super::*;
use crate::grace::Immediate;
use sluice_tables_testing::nat::{self as testing, HostNat, nat_pool, nat_test};
use sluice_tables_testing::tcp;
use std::ptr::NonNull;

const NOW: u32 = 1000;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const VNI: u32 = 77;

/// The tables, and the packets' side of them.
struct TestNat {
    regions: NatRegions,
    size: NatSize,
    tables: HostNat,
    /// Of packets that have none.
    pool: nat_pool,
}

fn size(addresses: u32, block_ports: u32) -> NatSize {
    NatSize { addresses, block_ports }
}

/// What the public addresses of the tests' VPC share.
fn limits() -> nat_pool {
    nat_pool { sessions_limit: 1000, blocks_limit: 2, ..Default::default() }
}

/// A public address.
fn public(last: u32) -> Ipv4Addr {
    Ipv4Addr::from(0xc633_6400 + last)
}

impl TestNat {
    /// Tables of which all numbers are assigned, to the addresses from `public(0)` on, and are in one pool.
    fn with_grace(size: NatSize, limits: nat_pool, buckets: u32, grace: impl Grace + 'static) -> (Self, Nat) {
        let regions = NatRegions::anonymous(size, buckets).unwrap();
        let at = |region: &Region| NonNull::new(region.as_ptr()).unwrap();
        let count = |region: &Region, bytes: usize| region.bytes() / bytes;
        let mut nat = Nat::create(&regions, size, 5, &default_timeouts(), NOW, grace).unwrap();
        // SAFETY: the regions have these lengths, are accessed by atomic words only, and outlive the tables in each test.
        let tables = unsafe {
            HostNat::new(
                at(&regions.config),
                (at(&regions.groups), count(&regions.groups, NatRegions::GROUP_BYTES)),
                (at(&regions.ports), count(&regions.ports, NatRegions::CELL_BYTES)),
                (at(&regions.tuples), count(&regions.tuples, NatRegions::TUPLES_BYTES)),
                at(&regions.sessions.config),
                [
                    (
                        at(&regions.sessions.ipv4),
                        count(&regions.sessions.ipv4, SessionRegions::BUCKET4_BYTES),
                    ),
                    (
                        at(&regions.sessions.ipv6),
                        count(&regions.sessions.ipv6, SessionRegions::BUCKET6_BYTES),
                    ),
                ],
            )
        };
        let numbers: Vec<u16> =
            (0..size.addresses.min(16)).map(|last| nat.assign(public(last)).unwrap()).collect();
        let nat_pool { addresses, address, .. } = testing::pool_of(&numbers);
        (Self { regions, size, tables, pool: nat_pool { addresses, address, ..limits } }, nat)
    }

    fn new(size: NatSize, limits: nat_pool) -> (Self, Nat) {
        Self::with_grace(size, limits, 300, Immediate)
    }

    fn run(&self, mut packet: nat_test) -> nat_test {
        if packet.pool.addresses == 0 {
            packet.pool = self.pool;
        }
        self.tables.run(&mut packet);
        packet
    }

    /// A packet of a VM to a remote endpoint; TCP: SYN.
    fn out(&self, protocol: u8, inside: SocketAddrV4, remote: SocketAddrV4, now: u32) -> nat_test {
        let mut packet = testing::outgoing(VNI, protocol, inside, remote);
        packet.tcp_flags = if protocol == TCP { tcp::SYN } else { 0 };
        packet.flags = if protocol == ICMP { testing::QUERY } else { 0 };
        packet.now = now;
        self.run(packet)
    }

    /// The answer of a remote endpoint.
    fn back(&self, out: &nat_test, flags: u8, now: u32) -> nat_test {
        let remote = SocketAddrV4::new(out.remote.into(), out.remote_port);
        let mut packet =
            testing::incoming(out.vni, out.address, out.protocol, testing::outside_of(out), remote);
        (packet.tcp_flags, packet.now, packet.pool) = (flags, now, out.pool);
        self.run(packet)
    }

    /// Whether nothing is left in memory.
    fn is_empty(&self) -> bool {
        let words = |region: &Region| (0..region.bytes() / 8).all(|word| region.load64(word * 8) == 0);
        let tables = self.regions.tables(self.size).unwrap();
        let is_free = |id| {
            let word = tables.word(id);
            !word.is_claimed() && !word.has_owner() && !word.is_closed()
        };
        words(&self.regions.ports) && words(&self.regions.tuples) && tables.all_blocks().all(is_free)
    }
}

fn end(address: [u8; 4], port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address.into(), port)
}

fn vm(port: u16) -> SocketAddrV4 {
    end([10, 0, 0, 5], port)
}

fn server(port: u16) -> SocketAddrV4 {
    end([203, 0, 113, 9], port)
}

/// A complete round. Returns the sum of its steps, and the events.
fn round(nat: &mut Nat, now: u32) -> (NatSwept, Vec<NatEvent>) {
    let (mut sum, mut events) = (NatSwept::default(), Vec::new());
    while !sum.round_completed {
        let swept = nat.sweep(64, now, &mut |event| events.push(event)).unwrap();
        sum = NatSwept {
            expired: sum.expired + swept.expired,
            freed: sum.freed + swept.freed,
            astray: sum.astray + swept.astray,
            ports: sum.ports + swept.ports,
            tuples: sum.tuples + swept.tuples,
            blocks: sum.blocks + swept.blocks,
            round_completed: swept.round_completed,
        };
    }
    (sum, events)
}

#[test]
fn answers_return_to_the_inside_endpoint() {
    let (tables, nat) = TestNat::new(size(2, 64), limits());
    for (protocol, remote) in [(TCP, server(443)), (UDP, server(53)), (ICMP, server(8))] {
        let out = tables.out(protocol, vm(7), remote, NOW);
        assert_eq!(out.answer, testing::NAT_BEGUN);
        assert_eq!(public(out.address), *testing::outside_of(&out).ip());
        assert!(out.outside_port >= 1024);
        let again = tables.out(protocol, vm(7), remote, NOW);
        assert_eq!((again.answer, again.outside_port), (testing::NAT_TRANSLATED, out.outside_port));
        let back = tables.back(&out, tcp::SYN | tcp::ACK, NOW);
        assert_eq!((back.answer, testing::inside_of(&back)), (testing::NAT_TRANSLATED, vm(7)));
    }
    assert_eq!(nat.translations().count(), 3);
    assert!(
        nat.translations().all(|shown| shown.outside.ip() == nat.translations().next().unwrap().outside.ip())
    );
}

#[test]
fn packets_of_other_remote_endpoints_are_filtered_unless_any_is_permitted() {
    let (mut tables, nat) = TestNat::new(size(1, 64), limits());
    let out = tables.out(UDP, vm(7), server(53), NOW);
    let stranger = nat_test { remote: Ipv4Addr::new(203, 0, 113, 10).into(), ..out };
    let other_port = nat_test { remote_port: 54, ..out };
    let free_port = nat_test { outside_port: if out.outside_port == 2000 { 2001 } else { 2000 }, ..out };
    for packet in [&stranger, &other_port, &free_port] {
        assert_eq!(tables.back(packet, 0, NOW).answer, testing::NAT_MISS);
    }
    assert_eq!(nat.translations().count(), 1);
    tables.pool.flags = testing::ANY_REMOTE;
    for packet in [&stranger, &other_port] {
        let back = tables.back(&nat_test { pool: tables.pool, ..*packet }, 0, NOW);
        assert_eq!((back.answer, testing::inside_of(&back)), (testing::NAT_BEGUN, vm(7)));
        // The VM's answer leaves from the port that was asked.
        let answer = tables.out(UDP, vm(7), SocketAddrV4::new(packet.remote.into(), packet.remote_port), NOW);
        let translated = (answer.answer, testing::outside_of(&answer));
        assert_eq!(translated, (testing::NAT_TRANSLATED, testing::outside_of(&out)));
    }
    assert_eq!(tables.back(&free_port, 0, NOW).answer, testing::NAT_MISS);
    // What remote endpoints begin counts as well. They leave half of the sessions to the VM.
    let third = nat_test { remote_port: 55, ..out };
    for (limit, answer) in [(7, testing::NAT_SESSIONS), (8, testing::NAT_BEGUN)] {
        tables.pool.sessions_limit = limit;
        assert_eq!(tables.back(&nat_test { pool: tables.pool, ..third }, 0, NOW).answer, answer);
    }
    assert_eq!(tables.out(UDP, vm(7), server(56), NOW).answer, testing::NAT_BEGUN);
}

#[test]
fn a_vpc_has_no_more_sessions_than_permitted() {
    let (mut tables, mut nat) = TestNat::new(size(4, 1024), limits());
    nat.limit_vpcs(NonZeroU32::new(40).unwrap(), NonZeroU32::MIN);
    // The VPC has three of the addresses, and the other one has the fourth.
    tables.pool.addresses = 3;
    let other = testing::pool_of(&[3]);
    let other = nat_pool { addresses: 1, address: other.address, ..limits() };
    let of_vm = |last, now| tables.out(UDP, end([10, 0, 0, last], 9), server(53), now);
    let begun: Vec<_> = (0..40).map(|last| of_vm(last, NOW)).collect();
    assert!(begun.iter().all(|out| out.answer == testing::NAT_BEGUN));
    let addresses: std::collections::HashSet<_> = begun.iter().map(|out| out.address).collect();
    assert_eq!(addresses.len(), 3);
    assert_eq!(of_vm(40, NOW).answer, testing::NAT_VPC_SESSIONS);
    assert_eq!(of_vm(3, NOW).answer, testing::NAT_TRANSLATED);
    // The other VPC has its own, of which remote endpoints leave half.
    let begin = |last| {
        let packet = testing::outgoing(VNI + 1, UDP, end([10, 0, 0, last], 9), server(53));
        tables.run(nat_test { now: NOW, pool: other, ..packet })
    };
    let out = begin(0);
    let pool = nat_pool { flags: testing::ANY_REMOTE, ..other };
    let asked = |port| tables.back(&nat_test { remote_port: port, pool, ..out }, 0, NOW).answer;
    assert_eq!((1..20).map(asked).collect::<Vec<_>>(), [testing::NAT_BEGUN; 19]);
    assert_eq!((asked(20), begin(1).answer), (testing::NAT_VPC_SESSIONS, testing::NAT_BEGUN));
    // Sessions that have ended do not count after a round, and those that have begun in a round count twice until the next one.
    (0..2).for_each(|_| drop(round(&mut nat, NOW)));
    assert_eq!(of_vm(40, NOW).answer, testing::NAT_VPC_SESSIONS);
    assert!(nat.remove(&Flow { source: end([10, 0, 0, 3], 9).into(), ..flow(9, 53) }, NOW));
    assert_eq!(of_vm(40, NOW).answer, testing::NAT_VPC_SESSIONS);
    round(&mut nat, NOW);
    assert_eq!(
        (of_vm(40, NOW).answer, of_vm(41, NOW).answer),
        (testing::NAT_BEGUN, testing::NAT_VPC_SESSIONS)
    );
    // The next agent finds the limit.
    let _nat = Nat::adopt(&tables.regions, tables.size, NOW, Immediate).unwrap();
    assert_eq!(of_vm(41, NOW).answer, testing::NAT_VPC_SESSIONS);
}

#[test]
fn while_no_agent_counts_sessions_their_number_is_not_limited() {
    let (tables, mut nat) = TestNat::new(size(1, 64), nat_pool { sessions_limit: 1, ..limits() });
    let age = layout::NAT_ROUND_AGE_MAX;
    assert_eq!(tables.out(UDP, vm(7), server(53), NOW).answer, testing::NAT_BEGUN);
    assert_eq!(tables.out(UDP, vm(7), server(54), NOW + age).answer, testing::NAT_SESSIONS);
    assert_eq!(tables.out(UDP, vm(7), server(54), NOW + age + 1).answer, testing::NAT_BEGUN);
    round(&mut nat, NOW + age + 1);
    assert_eq!(tables.out(UDP, vm(7), server(55), NOW + age + 1).answer, testing::NAT_SESSIONS);
}

#[test]
fn packets_that_cannot_begin_a_session_are_refused() {
    let (tables, nat) = TestNat::new(size(1, 64), limits());
    for flags in [tcp::ACK, tcp::SYN | tcp::ACK, tcp::RST, tcp::RST | tcp::SYN, tcp::FIN] {
        let packet =
            nat_test { tcp_flags: flags, now: NOW, ..testing::outgoing(VNI, TCP, vm(7), server(80)) };
        assert_eq!(tables.run(packet).answer, testing::NAT_NO_SESSION);
    }
    let answer = nat_test { now: NOW, ..testing::outgoing(VNI, ICMP, vm(8), server(7)) };
    assert_eq!(tables.run(answer).answer, testing::NAT_NO_SESSION);
    for protocol in [0, 47, 50, 132] {
        assert_eq!(tables.out(protocol, vm(0), server(0), NOW).answer, testing::NAT_PROTOCOL);
    }
    assert_eq!(nat.blocks().count(), 0);
}

#[test]
fn peeking_changes_nothing() {
    let (tables, nat) = TestNat::new(size(1, 64), limits());
    let peek = nat_test { flags: testing::PEEK, now: NOW, ..testing::outgoing(VNI, UDP, vm(7), server(53)) };
    assert_eq!(tables.run(peek).answer, testing::NAT_NO_SESSION);
    assert_eq!(nat.blocks().count(), 0);
    let out = tables.out(UDP, vm(7), server(53), NOW);
    let before = nat.translations().next();
    assert_eq!(tables.run(nat_test { now: NOW + 80, ..peek }).outside_port, out.outside_port);
    let mut back = testing::incoming(VNI, 0, UDP, testing::outside_of(&out), server(53));
    (back.flags, back.now) = (testing::PEEK, NOW + 80);
    assert_eq!(tables.run(back).answer, testing::NAT_TRANSLATED);
    assert_eq!(nat.translations().next(), before);
}

#[test]
fn an_inside_address_has_no_more_blocks_and_sessions_than_permitted() {
    let (mut tables, mut nat) = TestNat::new(size(1, 64), limits());
    let mut begun = 0;
    let refused = (1..=200).map(|port| tables.out(UDP, vm(port), server(53), NOW)).find(|packet| {
        begun += u32::from(packet.answer == testing::NAT_BEGUN);
        packet.answer != testing::NAT_BEGUN
    });
    assert_eq!(refused.unwrap().answer, testing::NAT_BLOCKS);
    // Ports have two cells in a block. So the last ones of two blocks of 64 ports are not found.
    assert!((90..=128).contains(&begun), "{begun} ports of two blocks");
    assert_eq!(nat.blocks().count(), 2);
    // Mapped ports go on, and other protocols have ports of their own.
    assert_eq!(tables.out(UDP, vm(1), server(54), NOW).answer, testing::NAT_BEGUN);
    assert_eq!(tables.out(TCP, vm(1), server(54), NOW).answer, testing::NAT_BEGUN);
    // So do other VMs, and the same address in another VPC.
    assert_eq!(tables.out(UDP, end([10, 0, 0, 6], 1), server(53), NOW).answer, testing::NAT_BEGUN);
    let other = nat_test { vni: VNI + 1, now: NOW, ..testing::outgoing(0, UDP, vm(1), server(53)) };
    assert_eq!(tables.run(other).answer, testing::NAT_BEGUN);
    tables.pool.sessions_limit = begun + 3;
    assert_eq!(tables.out(UDP, vm(1), server(55), NOW).answer, testing::NAT_BEGUN);
    assert_eq!(tables.out(UDP, vm(1), server(56), NOW).answer, testing::NAT_SESSIONS);
    assert_eq!(tables.out(UDP, vm(1), server(53), NOW).answer, testing::NAT_TRANSLATED);
    // Sessions that have ended do not count after two rounds.
    let later = NOW + 8 * 299;
    assert_eq!(tables.out(UDP, vm(1), server(53), later).answer, testing::NAT_TRANSLATED);
    (0..2).for_each(|_| drop(round(&mut nat, later + 8)));
    assert_eq!(
        nat.blocks().filter(|block| block.inside == *vm(1).ip()).map(|block| block.sessions).sum::<u32>(),
        1
    );
    assert_eq!(tables.out(UDP, vm(1), server(56), later + 8).answer, testing::NAT_BEGUN);
}

#[test]
fn a_pool_without_free_blocks_refuses_other_addresses_only() {
    let (tables, nat) = TestNat::new(size(1, 4096), limits());
    for last in 0..15 {
        assert_eq!(tables.out(UDP, end([10, 0, 1, last], 9), server(53), NOW).answer, testing::NAT_BEGUN);
    }
    let more = |last| tables.out(UDP, end([10, 0, 1, last], 9), server(53), NOW).answer;
    assert_eq!((more(15), more(3)), (testing::NAT_EXHAUSTED, testing::NAT_TRANSLATED));
    assert_eq!((nat.blocks().count() as u64, nat.usage().blocks_total), (15, 15));
}

#[test]
fn a_full_session_table_refuses_sessions_and_leaves_no_port() {
    let (tables, mut nat) = TestNat::with_grace(size(1, 64), limits(), 2, Immediate);
    let answers: Vec<u32> = (0..15).map(|port| tables.out(UDP, vm(port), server(53), NOW).answer).collect();
    assert_eq!(answers[..14], [testing::NAT_BEGUN; 14]);
    assert_eq!(answers[14], testing::NAT_FULL);
    let (swept, _) = round(&mut nat, NOW);
    assert_eq!((swept.ports, nat.usage().ports), (1, 14));
}

#[test]
fn reset_shortens_a_tcp_session_until_another_segment_follows() {
    let (tables, nat) = TestNat::new(size(1, 64), limits());
    let left = || nat.translations().next().unwrap().session.expires_at.wrapping_sub(NOW) / 8;
    let out = tables.out(TCP, vm(7), server(443), NOW);
    assert_eq!(left(), 240);
    let send = |flags| {
        let packet = testing::outgoing(VNI, TCP, vm(7), server(443));
        tables.run(nat_test { tcp_flags: flags, now: NOW, ..packet }).answer
    };
    tables.back(&out, tcp::SYN | tcp::ACK, NOW);
    assert_eq!((send(tcp::ACK), left()), (testing::NAT_TRANSLATED, 7440));
    assert_eq!((tables.back(&out, tcp::RST, NOW).answer, left()), (testing::NAT_TRANSLATED, 240));
    assert_eq!((send(tcp::ACK), left()), (testing::NAT_TRANSLATED, 7440));
    assert_eq!((send(tcp::RST), left()), (testing::NAT_TRANSLATED, 240));
    // Neither RST and SYN of a forger nor those of a new connection on the same ports end the session.
    assert_eq!((send(tcp::SYN), left()), (testing::NAT_TRANSLATED, 7440));
    tables.back(&out, tcp::RST, NOW);
    assert_eq!((tables.back(&out, tcp::SYN, NOW).answer, left()), (testing::NAT_TRANSLATED, 7440));
    // A closed connection is not open again.
    for flags in [tcp::ACK, tcp::FIN | tcp::ACK] {
        tables.back(&out, flags, NOW);
        send(flags);
    }
    assert_eq!((send(tcp::ACK), left()), (testing::NAT_TRANSLATED, 240));
    assert_eq!((send(tcp::SYN), left()), (testing::NAT_BEGUN, 240));
}

#[test]
fn ports_and_blocks_return_after_their_sessions() {
    let (tables, mut nat) = TestNat::new(size(1, 64), limits());
    let out = tables.out(UDP, vm(7), server(53), NOW);
    tables.out(UDP, vm(7), server(54), NOW + 8 * 200);
    let block = nat.blocks().next().unwrap();
    assert_eq!((block.vni.get(), block.inside, block.outside), (VNI, (*vm(7).ip()).into(), public(0)));
    assert!(block.ports.contains(&out.outside_port));
    assert_eq!((block.claimed_at, block.sessions), (NOW, 2));
    let (swept, events) = round(&mut nat, NOW);
    assert_eq!((swept.ports, swept.blocks), (0, 0));
    assert!(matches!(&events[..], [NatEvent::Claimed(claimed)] if claimed.ports == block.ports));
    // The first session has expired, the second one holds the port.
    let later = NOW + 8 * 301;
    let (swept, events) = round(&mut nat, later);
    assert_eq!((swept.expired, swept.ports, events.len()), (1, 0, 0));
    assert_eq!(tables.out(UDP, vm(7), server(55), later).outside_port, out.outside_port);
    let last = later + 8 * 301;
    // One round ends sessions, and frees their port and block.
    let (swept, events) = round(&mut nat, last);
    assert_eq!((swept.expired, swept.ports, swept.blocks), (2, 1, 1));
    assert!(
        matches!(&events[..], [NatEvent::Returned(returned, at)] if returned.ports == block.ports && *at == last)
    );
    assert!(tables.is_empty());
}

type Act = Box<dyn FnOnce() + Send>;

/// Does something while the agent waits for the next time.
struct ActsMeanwhile(std::sync::Arc<std::sync::Mutex<Option<Act>>>);

impl Grace for ActsMeanwhile {
    fn wait(&self) -> Result<(), crate::grace::GraceError> {
        let act = self.0.lock().unwrap().take();
        act.into_iter().for_each(|act| act());
        Ok(())
    }
}

#[test]
fn a_vm_gets_a_port_of_its_block_while_this_closes() {
    let meanwhile = std::sync::Arc::default();
    let grace = ActsMeanwhile(std::sync::Arc::clone(&meanwhile));
    let limits = nat_pool { blocks_limit: 1, ..limits() };
    let (tables, mut nat) = TestNat::with_grace(size(1, 1024), limits, 4, grace);
    tables.out(UDP, vm(7), server(53), NOW);
    let block = nat.blocks().next().unwrap();
    assert!(nat.remove(&flow(7, 53), NOW));
    while nat.progress.phase != Phase::Close(0) {
        nat.sweep(64, NOW, &mut drop).unwrap();
    }
    let (packets, pool, answers) = (tables.tables, tables.pool, std::sync::mpsc::channel());
    *meanwhile.lock().unwrap() = Some(Box::new(move || {
        let mut packet = nat_test { now: NOW, pool, ..testing::outgoing(VNI, UDP, vm(8), server(53)) };
        packets.run(&mut packet);
        answers.0.send(packet).unwrap();
    }));
    assert_eq!(round(&mut nat, NOW).0.blocks, 0);
    let out = answers.1.recv().unwrap();
    assert_eq!((out.answer, nat.blocks().count()), (testing::NAT_BEGUN, 1));
    assert!(block.ports.contains(&out.outside_port));
    assert_eq!(tables.back(&out, 0, NOW).answer, testing::NAT_TRANSLATED);
}

#[test]
fn a_port_that_a_packet_is_claiming_is_not_freed_before_the_next_round() {
    let (tables, mut nat) = TestNat::new(size(1, 1024), limits());
    let out = tables.out(UDP, vm(7), server(53), NOW);
    let id = nat.tables.block_of(0, out.outside_port).unwrap();
    for _ in 0..2 {
        // After the agent has begun the round.
        nat.sweep(64, NOW, &mut drop).unwrap();
        let at = (id.group, layout::NAT_TCP, *nat.tables.port_range(id).start());
        let stamp = layout::NAT_TENTATIVE | nat.config.load32(offset_of!(nat_config, round)) & 1;
        nat.tables.swap_port(at, memory::PortWord(0), memory::PortWord(stamp << 16 | 9)).unwrap();
        assert_eq!(round(&mut nat, NOW).0.ports, 0);
        assert_eq!(round(&mut nat, NOW).0.ports, 1);
        round(&mut nat, NOW);
    }
}

#[test]
fn what_an_inside_address_or_a_vpc_has_ends() {
    let (tables, mut nat) = TestNat::new(size(1, 64), nat_pool { flags: testing::ANY_REMOTE, ..limits() });
    let of =
        |vni, inside| tables.run(nat_test { now: NOW, ..testing::outgoing(vni, UDP, inside, server(53)) });
    let [one, other, elsewhere] =
        [(VNI, vm(7)), (VNI, end([10, 0, 0, 6], 7)), (VNI + 1, vm(7))].map(|(vni, inside)| of(vni, inside));
    let remain = |nat: &Nat| (nat.blocks().count(), nat.translations().count());
    assert_eq!(remain(&nat), (3, 3));
    // In the midst of a round.
    while !matches!(nat.progress.phase, Phase::Blocks(_)) {
        nat.sweep(64, NOW, &mut drop).unwrap();
    }
    let vni = Vni::new(VNI).unwrap();
    assert_eq!(nat.end(|block| block.vni == vni && block.inside == *vm(7).ip()), Ok(1));
    assert_eq!(remain(&nat), (2, 2));
    // Also with another remote endpoint.
    for packet in [one, nat_test { remote_port: 99, ..one }] {
        assert_eq!(tables.back(&packet, 0, NOW).answer, testing::NAT_MISS);
    }
    for packet in [&other, &elsewhere] {
        assert_eq!(tables.back(packet, 0, NOW).answer, testing::NAT_TRANSLATED);
    }
    assert_eq!(nat.end(|block| block.vni == vni), Ok(1));
    assert_eq!((remain(&nat), tables.back(&other, 0, NOW).answer), ((1, 1), testing::NAT_MISS));
    let (_, first) = round(&mut nat, NOW);
    let (_, second) = round(&mut nat, NOW);
    let returned = |event: &&NatEvent| matches!(event, NatEvent::Returned(block, NOW) if block.vni == vni);
    assert_eq!([first, second].concat().iter().filter(returned).count(), 2);
    assert_eq!(tables.back(&elsewhere, 0, NOW).answer, testing::NAT_TRANSLATED);
    assert_eq!(nat.end(|block| block.vni.get() == VNI + 1), Ok(1));
    round(&mut nat, NOW);
    assert!(tables.is_empty());
}

#[test]
fn a_block_of_which_a_port_was_claimed_while_it_closed_opens_again() {
    let meanwhile = std::sync::Arc::default();
    let grace = ActsMeanwhile(std::sync::Arc::clone(&meanwhile));
    let (tables, mut nat) = TestNat::with_grace(size(1, 1024), limits(), 4, grace);
    let out = tables.out(UDP, vm(7), server(53), NOW);
    assert!(nat.remove(&flow(7, 53), NOW));
    // Up to the step that waits for the closing block.
    while !matches!(nat.progress.phase, Phase::Blocks(_)) {
        nat.sweep(64, NOW, &mut drop).unwrap();
    }
    let id = nat.tables.block_of(0, out.outside_port).unwrap();
    let (own, at) = (nat.tables.clone(), (id.group, layout::NAT_UDP, out.outside_port));
    // As a program does that saw the block before it was closing.
    *meanwhile.lock().unwrap() = Some(Box::new(move || {
        own.swap_port(at, memory::PortWord(0), memory::PortWord(layout::NAT_TENTATIVE << 16 | 7)).unwrap();
    }));
    let (swept, _) = round(&mut nat, NOW);
    assert_eq!((swept.ports, swept.blocks, swept.round_completed), (1, 0, true));
    assert!(nat.tables.word(id).is_owned());
    // That program does not finish.
    round(&mut nat, NOW);
    assert!(tables.is_empty());
}

fn flow(inside_port: u16, remote_port: u16) -> Flow {
    Flow {
        scope: VNI,
        protocol: UDP,
        source: vm(inside_port).into(),
        destination: server(remote_port).into(),
    }
}

#[test]
fn sessions_whose_port_is_not_theirs_end() {
    let (tables, mut nat) = TestNat::new(size(1, 64), limits());
    let out = tables.out(UDP, vm(7), server(53), NOW);
    let id = nat.tables.block_of(0, out.outside_port).unwrap();
    let at = (id.group, layout::NAT_UDP, out.outside_port);
    let word = nat.tables.port(at.0, at.1, at.2);
    nat.tables.swap_port(at, word, memory::PortWord(word.0 + 1)).unwrap();
    assert_eq!(tables.back(&out, 0, NOW).answer, testing::NAT_MISS);
    assert_eq!(round(&mut nat, NOW).0.astray, 1);
    assert_eq!(nat.translations().count(), 0);
}

thread_local! {
    /// The session table and the tag word of a session that a packet refreshes before each access of this thread.
    static REFRESHED: std::cell::Cell<Option<(Region, usize)>> = const { std::cell::Cell::new(None) };
}

fn refresh() {
    // What this accesses is not refreshed.
    if let Some((table, at)) = REFRESHED.take() {
        table.store64(at, table.load64(at) + (8 << layout::SESSION_EXPIRES_SHIFT));
        REFRESHED.set(Some((table, at)));
    }
}

#[test]
fn a_round_begins_again_if_a_session_that_must_end_was_refreshed() {
    let (tables, mut nat) = TestNat::new(size(1, 64), limits());
    let out = tables.out(UDP, vm(7), server(53), NOW);
    // As an agent does that was killed before it ended the session.
    let id = nat.tables.block_of(0, out.outside_port).unwrap();
    assert!(nat.tables.close(id));
    while nat.progress.phase != Phase::Sessions {
        nat.sweep(64, NOW, &mut drop).unwrap();
    }
    let table = tables.regions.sessions.ipv4.clone();
    let words = (0..table.bytes() / SessionRegions::BUCKET4_BYTES)
        .flat_map(|bucket| (0..7).map(move |slot| bucket * SessionRegions::BUCKET4_BYTES + 8 + slot * 8));
    let at = words.into_iter().find(|&at| table.load64(at) != 0).unwrap();
    REFRESHED.set(Some((table, at)));
    crate::interleave::set_hook(Some(refresh));
    let buckets = nat.sessions().buckets(Family::Ipv4);
    let swept = nat.sweep(buckets, NOW, &mut drop).unwrap();
    crate::interleave::set_hook(None);
    assert_eq!((swept.astray, nat.progress.phase, nat.translations().count()), (0, Phase::Begin, 1));
    assert_eq!((round(&mut nat, NOW).0.astray, nat.translations().count()), (1, 0));
    round(&mut nat, NOW);
    assert!(tables.is_empty());
}

/// Catches sessions whose last packet seems to come in the future after a restart with shorter timeouts.
#[test]
fn shorter_timeouts_of_the_next_agent_limit_sessions() {
    let (tables, nat) = TestNat::new(size(1, 64), limits());
    tables.out(UDP, vm(7), server(53), NOW);
    drop(nat);
    for (udp_one_way_s, left_s) in [(400, 300), (100, 100), (200, 100)] {
        let timeouts = Timeouts { udp_one_way_s, ..default_timeouts() };
        let nat = Nat::open(&tables.regions, tables.size, &timeouts, NOW, Immediate).unwrap();
        let expires_at = nat.translations().next().unwrap().session.expires_at;
        assert_eq!(expires_at.wrapping_sub(NOW) / 8, left_s);
    }
}

#[test]
fn rounds_wrap() {
    let (tables, mut nat) = TestNat::new(size(1, 64), limits());
    nat.config.store32(offset_of!(nat_config, round), layout::NAT_ROUND_MAX - 1);
    let out = tables.out(UDP, vm(7), server(53), NOW);
    for _ in 0..4 {
        assert_eq!(round(&mut nat, NOW).0.ports, 0);
        assert_eq!(tables.back(&out, 0, NOW).answer, testing::NAT_TRANSLATED);
    }
    assert_eq!(nat.config.load32(offset_of!(nat_config, round)), 3);
}

#[test]
fn sizes_out_of_bounds_are_refused() {
    let reason = |size: NatSize| {
        let regions = NatRegions::anonymous(self::size(1, 64), 4).unwrap();
        match Nat::create(&regions, size, 1, &default_timeouts(), NOW, Immediate) {
            Err(Error::Invalid(reason)) => reason,
            other => panic!("{other:?}"),
        }
    };
    for ports in [0, 32, 65, 8192] {
        let expected =
            format!("a block of {ports} ports is not possible: it is a power of 2 from 64 to 4096");
        assert_eq!(reason(size(1, ports)), expected);
    }
    for addresses in [0, 4097] {
        let expected = format!("room for {addresses} public addresses is not possible: 1 to 4096 are");
        assert_eq!(reason(size(addresses, 64)), expected);
    }
    assert!(reason(size(2, 64)).contains("but needs"), "memory of one address");
}

#[test]
fn tables_of_another_size_are_not_adopted() {
    let (tables, nat) = TestNat::new(size(2, 64), limits());
    let adopt = |size| Nat::adopt(&tables.regions, size, NOW, Immediate).map(drop);
    assert_eq!(adopt(tables.size), Ok(()));
    for other in [size(1, 64), size(2, 128), size(3, 64)] {
        let NatSize { addresses, block_ports } = other;
        assert_eq!(
            adopt(other),
            Err(Error::Invalid(format!(
                "the tables of address translation were laid out for 2 public addresses and blocks of 64 ports, but \
                 {addresses} and {block_ports} are demanded"
            )))
        );
    }
    nat.config.store32(offset_of!(nat_config, layout_version), 9);
    assert_eq!(adopt(tables.size), Err(Error::LayoutVersion { found: 9, known: layout::NAT_LAYOUT_VERSION }));
    nat.config.store64(offset_of!(nat_config, magic), 0);
    assert_eq!(adopt(tables.size), Err(Error::NotTables));
}

#[test]
fn packets_are_not_translated_before_the_tables_are_laid_out() {
    let (tables, nat) = TestNat::new(size(1, 64), limits());
    nat.config.store32(offset_of!(nat_config, groups), 0);
    assert_eq!(tables.out(UDP, vm(7), server(53), NOW).answer, testing::NAT_PROTOCOL);
    assert_eq!(nat.blocks().count() + nat.translations().count(), 0);
}

/// Fills a pool with VMs that have 100 sessions each, all of different ports, up to 68% of the session table.
#[test]
fn a_session_needs_at_most_160_bytes() {
    const SESSIONS: u32 = 120_000;
    let buckets = SESSIONS * 100 / 68 / 7;
    let (tables, nat) =
        TestNat::with_grace(size(4, 128), nat_pool { blocks_limit: 4, ..limits() }, buckets, Immediate);
    let mut begun = 0;
    for number in 0..SESSIONS {
        let inside = SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 + number / 100), (number % 100) as u16 + 1);
        begun += u32::from(tables.out(UDP, inside, server(53), NOW).answer == testing::NAT_BEGUN);
    }
    assert!(begun > SESSIONS * 999 / 1000, "{begun} of {SESSIONS}");
    // Blocks in use have port words of all three protocols, of which this test uses one.
    let blocks = nat.blocks().count();
    let bytes = buckets as usize * (SessionRegions::BUCKET4_BYTES + NatRegions::TUPLES_BYTES)
        + blocks * (3 * 128 * 4 + NatRegions::GROUP_BYTES / 16);
    let each = bytes as f64 / f64::from(begun);
    println!("{each:.1} bytes a session: {begun} sessions, {blocks} blocks of 128 ports");
    assert!(each <= 160.0, "{each} bytes a session");
}
