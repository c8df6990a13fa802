//! Packets and rounds of the agent in many orders of their accesses to memory ([`crate::interleave::packets`]).

mod install;
mod shared;

use super::*;
use crate::interleave::packets::{ProgramGrace, Programs, Task, explore, pause, pause_packet_at, run};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

/// Schedules of a test by scheduler.
const RANDOM: usize = 1000;
const BY_PRIORITY: usize = 800;

/// The tables, the programs that run, and the answers that packets of VMs got.
struct Shared {
    protocol: u8,
    tables: TestNat,
    programs: Arc<Programs>,
    answers: Mutex<Vec<nat_test>>,
}

impl Shared {
    /// Sessions are UDP, or TCP in every other schedule.
    fn new(block_ports: u32, schedule: u64) -> (Self, Nat) {
        let limits = nat_pool { flags: testing::ANY_REMOTE, ..limits() };
        Self::with_limits(limits, block_ports, 2, schedule)
    }

    fn with_limits(limits: nat_pool, block_ports: u32, buckets: u32, schedule: u64) -> (Self, Nat) {
        let protocol = if schedule.is_multiple_of(2) { UDP } else { TCP };
        let programs = Arc::new(Programs::default());
        let grace = ProgramGrace(Arc::clone(&programs));
        let (tables, nat) = TestNat::with_grace(size(1, block_ports), limits, buckets, grace);
        (Self { protocol, tables, programs, answers: Mutex::default() }, nat)
    }

    /// A flow of the VM of these tests.
    fn flow(&self, inside_port: u16, remote_port: u16) -> Flow {
        Flow { protocol: self.protocol, ..flow(inside_port, remote_port) }
    }

    /// A packet of the VM, which succeeds before the schedule begins.
    fn before(&self) -> nat_test {
        let out = self.tables.out(self.protocol, vm(7), server(53), NOW);
        assert_eq!(out.answer, testing::NAT_BEGUN);
        out
    }

    /// A packet of a VM in a task, and the answer to it, which must reach the VM.
    fn exchange(&self, task: usize, inside: SocketAddrV4, remote: SocketAddrV4) {
        let mut out = nat_test::default();
        self.programs.run(task, || out = self.tables.out(self.protocol, inside, remote, NOW));
        if out.answer == testing::NAT_BUSY {
            self.answers.lock().unwrap().push(out);
            return;
        }
        assert!([testing::NAT_BEGUN, testing::NAT_TRANSLATED].contains(&out.answer), "{out:?}");
        let mut back = nat_test::default();
        let flags = if self.protocol == TCP { tcp::SYN | tcp::ACK } else { 0 };
        self.programs.run(task, || back = self.tables.back(&out, flags, NOW));
        assert_eq!((back.answer, testing::inside_of(&back)), (testing::NAT_TRANSLATED, inside), "{out:?}");
        self.answers.lock().unwrap().push(out);
    }

    /// A packet of another remote endpoint to the outside endpoint of this packet. If it begins a session, the VM answers.
    fn is_asked(&self, task: usize, out: &nat_test) {
        let (mut back, stranger) = (nat_test::default(), nat_test { remote_port: 99, ..*out });
        let flags = if self.protocol == TCP { tcp::SYN } else { 0 };
        self.programs.run(task, || back = self.tables.back(&stranger, flags, NOW));
        if back.answer == testing::NAT_BEGUN {
            assert_eq!(testing::inside_of(&back), vm(out.inside_port));
            self.exchange(task, vm(out.inside_port), server(99));
        } else {
            assert!([testing::NAT_MISS, testing::NAT_BUSY].contains(&back.answer), "{back:?}");
        }
    }

    /// Checks the mappings of all answers: an inside endpoint has one outside endpoint, and no other one has it. Returns the
    /// number of packets that got none because others were faster.
    fn check(&self) -> u64 {
        let answers = self.answers.lock().unwrap();
        let (busy, mapped): (Vec<&nat_test>, Vec<&nat_test>) =
            answers.iter().partition(|out| out.answer == testing::NAT_BUSY);
        for one in &mapped {
            for other in &mapped {
                let is_same_inside = (one.inside, one.inside_port) == (other.inside, other.inside_port);
                let is_same_outside = testing::outside_of(one) == testing::outside_of(other);
                assert_eq!(is_same_inside, is_same_outside, "{one:?} {other:?}");
            }
        }
        busy.len() as u64
    }
}

/// Numbers of events over all schedules of a test, by which it checks that the schedules differ.
#[derive(Default)]
struct Counts {
    schedules: AtomicU64,
    busy: AtomicU64,
    /// Sessions that two packets created at the same moment.
    duplicates: AtomicU64,
    /// Ports and blocks that the agent freed while packets ran.
    ports: AtomicU64,
    blocks: AtomicU64,
    /// Packets that got the port of a session that had ended, and another one.
    kept: AtomicU64,
    fresh: AtomicU64,
    /// Packets of remote endpoints that began a session.
    asked: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, number: u64) {
        counter.fetch_add(number, Ordering::Relaxed);
    }
}

/// Runs a test in the schedules of both schedulers.
fn run_schedules(schedule: fn(&Counts)) -> Counts {
    let counts = Arc::new(Counts::default());
    for random in [true, false] {
        let counted = Arc::clone(&counts);
        let once = move || schedule(&counted);
        if random {
            run(RandomScheduler::new_from_seed(1, RANDOM), once);
        } else {
            run(PctScheduler::new_from_seed(1, 3, BY_PRIORITY), once);
        }
    }
    Arc::into_inner(counts).unwrap()
}

fn exchange(task: usize, inside: SocketAddrV4, remote: SocketAddrV4) -> Task<Shared> {
    Box::new(move |shared: &Shared| shared.exchange(task, inside, remote))
}

/// After the tasks: all sessions end, and nothing is left.
fn check_end(shared: &Shared, nat: &mut Nat) {
    for shown in nat.translations() {
        assert_eq!(shown.session.flow.protocol, shared.protocol);
    }
    let mut ends: Vec<_> = nat.translations().map(|shown| shown.session.flow).collect();
    ends.sort();
    ends.dedup();
    assert_eq!(ends.len(), nat.translations().count(), "two records of one session");
    // The longest timeout is that of an established TCP session.
    (0..2).for_each(|_| drop(round(nat, NOW + 8 * 7441)));
    assert!(shared.tables.is_empty(), "ports or blocks have leaked");
}

/// Four packets of a VM that has no block: of one session, of the same port to another remote endpoint, of another port.
fn first_packets(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let (shared, mut nat) = Shared::new(64, schedule);
    let shared = Arc::new(shared);
    explore(
        &shared,
        vec![
            exchange(0, vm(7), server(53)),
            exchange(1, vm(7), server(53)),
            exchange(2, vm(7), server(54)),
            exchange(3, vm(8), server(53)),
        ],
    );
    Counts::add(&counts.busy, shared.check());
    Counts::add(&counts.duplicates, nat.sessions().counters().duplicates);
    check_end(&shared, &mut nat);
}

#[test]
fn first_packets_of_an_inside_endpoint_agree_on_its_port() {
    let counts = run_schedules(first_packets);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let packets = 4 * (RANDOM + BY_PRIORITY) as u64;
    assert!(count(&counts.duplicates) > 5, "{} duplicates", count(&counts.duplicates));
    assert!(count(&counts.busy) < packets / 20, "{} of {packets} packets were busy", count(&counts.busy));
}

/// Packets of a VM whose only session has ended, while a round frees its port and returns its block. In the third of the schedules
/// each, the round begins, looks at sessions, or frees ports when the packets come.
fn packets_in_a_round(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let mode = schedule % 3;
    // Few blocks where a round looks at all of them, and few ports where it looks at these.
    let (shared, mut nat) = Shared::new([4096, 4096, 64][mode as usize], schedule / 6);
    let before = shared.before();
    assert!(nat.remove(&shared.flow(7, 53), NOW));
    let block = nat.tables.block_of(0, before.outside_port).unwrap();
    let is_there = |nat: &Nat| match mode {
        0 => true,
        1 => matches!(nat.progress.phase, Phase::Sessions),
        _ => nat.progress.phase == Phase::Blocks(block.group & !3),
    };
    while !is_there(&nat) {
        nat.sweep(4, NOW, &mut drop).unwrap();
    }
    let shared = Arc::new(shared);
    let (to_main, from_sweep) = mpsc::channel();
    let sweep = move |_: &Shared| {
        let mut sum = NatSwept::default();
        // The steps that look at ports are many, so they follow after the packets, except in the third case.
        for _ in 0..[3, 2, u64::MAX][mode as usize] {
            let swept = nat.sweep(4, NOW, &mut drop).unwrap();
            (sum.ports, sum.blocks) = (sum.ports + swept.ports, sum.blocks + swept.blocks);
            assert_eq!(swept.astray, 0);
            if swept.round_completed {
                break;
            }
        }
        to_main.send((nat, sum)).unwrap();
    };
    // The packets come at any time of the round.
    let comes = |task: usize, inside: SocketAddrV4, remote: SocketAddrV4| -> Task<Shared> {
        let pauses = (schedule * 4 + task as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let pauses = pauses % [120, 60, 2500][mode as usize];
        Box::new(move |shared: &Shared| {
            pause(pauses);
            shared.exchange(task, inside, remote);
        })
    };
    explore(
        &shared,
        vec![
            comes(0, vm(7), server(53)),
            comes(1, vm(7), server(54)),
            if schedule.is_multiple_of(2) {
                comes(2, vm(8), server(53))
            } else {
                Box::new(move |shared: &Shared| {
                    pause(schedule % 500);
                    shared.is_asked(2, &before);
                })
            },
            Box::new(sweep),
        ],
    );
    let (mut nat, swept) = from_sweep.recv().unwrap();
    Counts::add(&counts.busy, shared.check());
    for out in shared.answers.lock().unwrap().iter().filter(|out| out.inside_port == 7) {
        let is_kept = out.outside_port == before.outside_port;
        Counts::add(if is_kept { &counts.kept } else { &counts.fresh }, 1);
    }
    Counts::add(&counts.ports, swept.ports);
    Counts::add(&counts.blocks, swept.blocks);
    // The round ends, and a complete one follows: what packets have begun works all the time.
    for _ in 0..2 {
        round(&mut nat, NOW);
        for out in shared.answers.lock().unwrap().iter().filter(|out| out.answer != testing::NAT_BUSY) {
            let back = shared.tables.back(out, 0, NOW);
            assert_eq!(
                (back.answer, back.inside_port),
                (testing::NAT_TRANSLATED, out.inside_port),
                "{out:?}"
            );
        }
    }
    check_end(&shared, &mut nat);
}

#[test]
fn a_port_is_freed_or_used_again_but_not_both() {
    let counts = run_schedules(packets_in_a_round);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (kept, fresh) = (count(&counts.kept), count(&counts.fresh));
    // A packet keeps the port unless it comes while the block is closed.
    assert!(kept > 100 && fresh > 10, "{kept} packets kept the port, {fresh} did not");
    assert!(count(&counts.ports) > 100 && count(&counts.blocks) > 10, "{} blocks", count(&counts.blocks));
    let packets = 3 * (RANDOM + BY_PRIORITY) as u64;
    assert!(count(&counts.busy) < packets / 20, "{} of {packets} packets were busy", count(&counts.busy));
}

/// A packet that stands still at any access, while the agent makes a round: what it has read before is old then.
fn slow_packet(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let accesses = schedule % 500;
    let (shared, mut nat) = Shared::new(4096, schedule / 500);
    let shared = Arc::new(shared);
    let packet: Task<Shared> = Box::new(move |shared: &Shared| {
        pause_packet_at(accesses, 2000);
        shared.exchange(0, vm(7), server(53));
    });
    let (to_main, from_sweep) = mpsc::channel();
    let sweep = move |_: &Shared| {
        // Until all sessions were looked at. No port is freed yet.
        for _ in 0..3 {
            nat.sweep(4, NOW, &mut drop).unwrap();
        }
        to_main.send(nat).unwrap();
    };
    explore(&shared, vec![packet, Box::new(sweep)]);
    let mut nat = from_sweep.recv().unwrap();
    assert_eq!(shared.check(), 0, "busy without another packet");
    round(&mut nat, NOW);
    let out = shared.answers.lock().unwrap()[0];
    assert_eq!(shared.tables.back(&out, 0, NOW).answer, testing::NAT_TRANSLATED, "its port was freed");
    check_end(&shared, &mut nat);
}

#[test]
fn a_round_waits_for_packets_that_began_before_it() {
    run_schedules(slow_packet);
}

/// Two packets of an inside endpoint, while the agent ends their session and makes a round.
fn packets_of_an_ending_session(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let (shared, mut nat) = Shared::new(64, schedule / 2);
    let before = shared.before();
    let flow = shared.flow(7, 53);
    let shared = Arc::new(shared);
    let send = |task: usize| -> Task<Shared> {
        Box::new(move |shared: &Shared| {
            for _ in 0..2 {
                let mut out = nat_test::default();
                shared
                    .programs
                    .run(task, || out = shared.tables.out(shared.protocol, vm(7), server(53), NOW));
                let answered = [testing::NAT_BEGUN, testing::NAT_TRANSLATED].contains(&out.answer);
                assert!(answered || out.answer == testing::NAT_BUSY, "{out:?}");
            }
        })
    };
    let (to_main, from_sweep) = mpsc::channel();
    let ends_twice = schedule.is_multiple_of(2);
    let end = move |_: &Shared| {
        nat.remove(&flow, NOW);
        nat.sweep(4, NOW, &mut drop).unwrap();
        if ends_twice {
            nat.remove(&flow, NOW);
        }
        to_main.send(nat).unwrap();
    };
    explore(&shared, vec![send(0), send(1), Box::new(end)]);
    let mut nat = from_sweep.recv().unwrap();
    // The port was not freed: no round was complete.
    for shown in nat.translations() {
        assert_eq!(shown.outside, testing::outside_of(&before));
        Counts::add(&counts.kept, 1);
    }
    assert!(nat.translations().count() <= 1);
    check_end(&shared, &mut nat);
}

#[test]
fn a_session_that_ends_under_its_packets_is_one_or_none() {
    let counts = run_schedules(packets_of_an_ending_session);
    let (all, live) = ((RANDOM + BY_PRIORITY) as u64, counts.kept.load(Ordering::Relaxed));
    assert!(live > 100 && live < all - 100, "{live} of {all} sessions were live at the end");
}

/// Two packets of a port, one of them from before a round of the agent, which ends the session of that one. Each packet stands
/// still at some access.
fn packets_of_two_rounds(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let (shared, mut nat) = Shared::new(4096, schedule);
    let before = shared.before();
    assert!(nat.remove(&shared.flow(7, 53), NOW));
    let ending = shared.flow(7, 54);
    let shared = Arc::new(shared);
    let random = schedule.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let send = move |task: usize, comes_at: u64, accesses: u64, switches: u64| -> Task<Shared> {
        Box::new(move |shared: &Shared| {
            pause(comes_at);
            pause_packet_at(accesses, switches);
            let mut out = nat_test::default();
            let remote = server(54 + task as u16);
            shared.programs.run(task, || out = shared.tables.out(shared.protocol, vm(7), remote, NOW));
            shared.answers.lock().unwrap().push(out);
        })
    };
    let (to_main, from_sweep) = mpsc::channel();
    let sweep = move |_: &Shared| {
        pause(300);
        // Until all sessions were looked at. No port is freed yet.
        for _ in 0..3 {
            assert_eq!(nat.sweep(4, NOW, &mut drop).unwrap().astray, 0);
            nat.remove(&ending, NOW);
        }
        to_main.send(nat).unwrap();
    };
    let tasks = vec![
        send(0, 0, (random >> 20) % 250, 800),
        send(1, 600, (random >> 40) % 250, 2000),
        Box::new(sweep) as Task<Shared>,
    ];
    explore(&shared, tasks);
    let mut nat = from_sweep.recv().unwrap();
    shared.check();
    for _ in 0..2 {
        assert_eq!(round(&mut nat, NOW).0.astray, 0, "a port was freed that a session uses");
    }
    for out in shared.answers.lock().unwrap().iter().filter(|out| out.remote_port == 55) {
        assert_eq!(shared.tables.back(out, 0, NOW).answer, testing::NAT_TRANSLATED, "{out:?}");
        Counts::add(&counts.kept, u64::from(out.outside_port == before.outside_port));
    }
    check_end(&shared, &mut nat);
}

#[test]
fn a_packet_of_an_earlier_round_frees_no_port() {
    let counts = run_schedules(packets_of_two_rounds);
    let kept = counts.kept.load(Ordering::Relaxed);
    assert!(kept > 100, "{kept} packets kept the port");
}

/// Leaves only one block to two inside addresses. Returns their addresses, and the block.
fn compete(shared: &Shared, nat: &mut Nat) -> ([Ipv4Addr; 2], memory::BlockId) {
    let id = nat.tables.block_of(0, u16::MAX).unwrap();
    for other in nat.tables.all_blocks().filter(|&other| other != id) {
        let word = nat.tables.word(other);
        nat.tables.swap_word(other, word, word.withheld());
    }
    let mut found = Vec::new();
    for address in (0..).map(|last| Ipv4Addr::from(0x0a00_0100 + last)) {
        let inside = SocketAddrV4::new(address, 1);
        if shared.tables.out(shared.protocol, inside, server(1), NOW).answer == testing::NAT_BEGUN {
            found.push(address);
            let flow = Flow { source: inside.into(), ..shared.flow(1, 1) };
            assert!(nat.remove(&flow, NOW));
            if found.len() == 2 {
                break;
            }
            (0..2).for_each(|_| drop(round(nat, NOW)));
        }
    }
    // The second one has the block, without a session. The next step of the agent looks at it.
    while nat.progress.phase != Phase::Blocks(id.group & !3) {
        nat.sweep(4, NOW, &mut drop).unwrap();
    }
    ([found[1], found[0]], id)
}

/// A packet of a VM whose block the agent returns, and one of another VM that gets it. The first one stands still at any access.
fn packets_of_two_owners(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let (shared, mut nat) = Shared::new(64, schedule / 16);
    let ([owner, heir], _) = compete(&shared, &mut nat);
    let shared = Arc::new(shared);
    let random = schedule.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let port = 1 + (schedule % 16) as u16;
    let send = |task: usize, inside: Ipv4Addr, comes_at: u64, pause_at: Option<u64>| -> Task<Shared> {
        let inside = SocketAddrV4::new(inside, port);
        Box::new(move |shared: &Shared| {
            pause(comes_at);
            if let Some(accesses) = pause_at {
                pause_packet_at(accesses, 1500);
            }
            let mut out = nat_test::default();
            shared.programs.run(task, || out = shared.tables.out(shared.protocol, inside, server(53), NOW));
            if out.answer == testing::NAT_BEGUN {
                shared.answers.lock().unwrap().push(out);
            } else {
                assert!([testing::NAT_EXHAUSTED, testing::NAT_BUSY].contains(&out.answer), "{out:?}");
            }
        })
    };
    let (to_main, from_sweep) = mpsc::channel();
    let sweep = move |_: &Shared| {
        let mut swept = NatSwept::default();
        while !swept.round_completed {
            swept = nat.sweep(4, NOW, &mut drop).unwrap();
        }
        to_main.send(nat).unwrap();
    };
    explore(
        &shared,
        vec![
            send(0, owner, (random >> 20) % 600, Some((random >> 40) % 200)),
            send(1, heir, 600 + (random >> 30) % 600, None),
            Box::new(sweep),
        ],
    );
    let mut nat = from_sweep.recv().unwrap();
    assert_eq!(shared.check(), 0);
    for out in shared.answers.lock().unwrap().iter() {
        Counts::add(if out.inside == u32::from(owner) { &counts.kept } else { &counts.fresh }, 1);
    }
    for _ in 0..2 {
        assert_eq!(round(&mut nat, NOW).0.astray, 0);
        for out in shared.answers.lock().unwrap().iter() {
            let back = shared.tables.back(out, 0, NOW);
            assert_eq!((back.answer, back.inside), (testing::NAT_TRANSLATED, out.inside), "{out:?}");
        }
    }
    check_end(&shared, &mut nat);
}

#[test]
fn a_block_has_one_owner_while_packets_of_two_compete_for_it() {
    let counts = run_schedules(packets_of_two_owners);
    let (kept, fresh) = (counts.kept.load(Ordering::Relaxed), counts.fresh.load(Ordering::Relaxed));
    assert!(kept > 100 && fresh > 100, "{kept} packets kept the block, {fresh} got it");
}

/// The VPC whose pool has an address, and what packets of the other one get.
#[derive(Default)]
struct Pools(Mutex<nat_pool>);

impl Pools {
    /// The pool of a VPC, as packets read it.
    fn of(&self, vni: u32) -> nat_pool {
        let pool = *self.0.lock().unwrap();
        nat_pool { addresses: u8::from(self.owner() == vni), ..pool }
    }

    fn owner(&self) -> u32 {
        self.0.lock().unwrap().reserved.into()
    }

    /// Gives the address of number 0 to a VPC; 0: to none.
    fn give(&self, vni: u32) {
        *self.0.lock().unwrap() = nat_pool { reserved: vni as u8, ..limits() };
    }
}

/// A packet from the Internet to the outside endpoint of this packet, with the VPC that has the address when it comes. Any remote
/// endpoint may begin a session. Counts whether this one does.
fn asks(task: usize, out: nat_test, pools: &Arc<Pools>, begun: &Arc<AtomicU64>) -> Task<Shared> {
    let (pools, begun) = (Arc::clone(pools), Arc::clone(begun));
    Box::new(move |shared: &Shared| {
        let remote = SocketAddrV4::new(out.remote.into(), 99);
        let mut asked = testing::incoming(VNI, 0, shared.protocol, testing::outside_of(&out), remote);
        (asked.now, asked.tcp_flags) = (NOW, if shared.protocol == TCP { tcp::SYN } else { 0 });
        shared.programs.run(task, || {
            asked.vni = pools.owner();
            asked.pool = nat_pool { flags: testing::ANY_REMOTE, ..pools.of(asked.vni) };
            if asked.vni != 0 {
                shared.tables.tables.run(&mut asked);
            }
        });
        begun.fetch_add(u64::from(asked.vni != 0 && asked.answer == testing::NAT_BEGUN), Ordering::Relaxed);
    })
}

/// A packet of the VPC that loses its address has a session by this address, or is refused.
fn count_loser(counts: &Counts, out: &nat_test) {
    let is_begun = out.answer == testing::NAT_BEGUN;
    assert!(is_begun || [testing::NAT_EXHAUSTED, testing::NAT_BUSY].contains(&out.answer), "{out:?}");
    assert!(!is_begun || *testing::outside_of(out).ip() == public(0), "{out:?}");
    Counts::add(if is_begun { &counts.kept } else { &counts.fresh }, 1);
}

/// Packets of a VPC that loses its address, while the agent releases it, and gives its number to another address, or the same
/// one, of another VPC. A packet of this one follows. In every third schedule, one of the first VPC's packets is from the Internet.
fn packets_of_two_pools(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let (shared, mut nat) = Shared::new([1024, 4096][schedule as usize % 2], schedule / 4);
    let keeps_address = (schedule / 2).is_multiple_of(2);
    let (shared, pools) = (Arc::new(shared), Arc::new(Pools::default()));
    pools.give(VNI);
    let asked =
        schedule.is_multiple_of(3).then(|| shared.tables.out(shared.protocol, vm(9), server(53), NOW));
    let begun = Arc::new(AtomicU64::new(0));
    let random = schedule.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let send = |task: usize, vni: u32, comes_at: u64, pause_at: u64| -> Task<Shared> {
        let pools = Arc::clone(&pools);
        Box::new(move |shared: &Shared| {
            pause(comes_at);
            // The second VPC's packets come when it has the address.
            while vni != VNI && pools.owner() != vni {
                shuttle::thread::yield_now();
            }
            pause_packet_at(pause_at, 1000);
            let mut out = testing::outgoing(vni, shared.protocol, vm(7), server(53 + task as u16));
            (out.now, out.tcp_flags) = (NOW, if shared.protocol == TCP { tcp::SYN } else { 0 });
            shared.programs.run(task, || {
                out.pool = pools.of(vni);
                // Without a pool, there is no NAT gateway, and no call.
                if out.pool.addresses > 0 {
                    shared.tables.tables.run(&mut out);
                    shared.answers.lock().unwrap().push(out);
                }
            });
        })
    };
    let (to_main, from_agent) = mpsc::channel();
    let of_agent = Arc::clone(&pools);
    let agent = move |_: &Shared| {
        pause((random >> 50) % 200);
        of_agent.give(0);
        assert_eq!(nat.release(&[public(0)]), Ok(1));
        while !keeps_address && nat.addresses().count() > 0 {
            nat.sweep(4, NOW, &mut drop).unwrap();
        }
        assert_eq!(nat.assign(public(u32::from(!keeps_address))), Ok(0));
        of_agent.give(VNI + 1);
        to_main.send(nat).unwrap();
    };
    let tasks = vec![
        send(0, VNI, (random >> 20) % 300, (random >> 40) % 200),
        asked.map_or_else(
            || send(1, VNI, (random >> 30) % 300, (random >> 44) % 200),
            |out| {
                let ask = asks(1, out, &pools, &begun);
                Box::new(move |shared: &Shared| {
                    pause((random >> 30) % 300);
                    pause_packet_at((random >> 44) % 120, 1000);
                    ask(shared);
                })
            },
        ),
        send(2, VNI + 1, 0, (random >> 36) % 200),
        Box::new(agent) as Task<Shared>,
    ];
    explore(&shared, tasks);
    let mut nat = from_agent.recv().unwrap();
    Counts::add(&counts.asked, begun.load(Ordering::Relaxed));
    let answers = shared.answers.lock().unwrap().clone();
    let is_heir = |out: &&nat_test| out.vni != VNI;
    answers.iter().filter(|out| !is_heir(out)).for_each(|out| count_loser(counts, out));
    let heir = answers.iter().find(is_heir).unwrap();
    assert_eq!(heir.answer, testing::NAT_BEGUN);
    assert_eq!(*testing::outside_of(heir).ip(), public(u32::from(!keeps_address)));
    for _ in 0..2 {
        let back = shared.tables.back(heir, 0, NOW);
        assert_eq!((back.answer, back.vni), (testing::NAT_TRANSLATED, VNI + 1), "{heir:?}");
        assert!(nat.translations().all(|shown| shown.session.flow.scope == VNI + 1), "a session is left");
        round(&mut nat, NOW);
    }
    check_end(&shared, &mut nat);
}

#[test]
fn an_address_that_is_released_has_no_session_of_its_old_vpc() {
    let counts = run_schedules(packets_of_two_pools);
    let (kept, fresh) = (counts.kept.load(Ordering::Relaxed), counts.fresh.load(Ordering::Relaxed));
    assert!(kept > 100 && fresh > 10, "{kept} packets began a session, {fresh} were refused");
    let (all, asked) = ((RANDOM + BY_PRIORITY) as u64 / 3, counts.asked.load(Ordering::Relaxed));
    assert!(asked > 10 && asked < all - 10, "{asked} of {all} remote endpoints began a session");
}

/// Packets of a VM, and one of a remote endpoint to it, while the agent ends what it has.
fn packets_of_an_ending_vm(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let (shared, mut nat) = Shared::new(1024, schedule);
    let before = shared.before();
    let (shared, pools, begun) = (Arc::new(shared), Arc::new(Pools::default()), Arc::default());
    pools.give(VNI);
    let random = schedule.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let comes = |shift: u64, packet: Task<Shared>| -> Task<Shared> {
        Box::new(move |shared: &Shared| {
            pause((random >> shift) % 200);
            pause_packet_at((random >> (shift + 8)) % 120, 800);
            packet(shared);
        })
    };
    let send = |task: usize| -> Task<Shared> {
        Box::new(move |shared: &Shared| {
            let mut out = nat_test::default();
            let remote = server(54 + task as u16);
            shared.programs.run(task, || out = shared.tables.out(shared.protocol, vm(7), remote, NOW));
            assert!([testing::NAT_BEGUN, testing::NAT_BUSY].contains(&out.answer), "{out:?}");
        })
    };
    let (to_main, from_agent) = mpsc::channel();
    let agent = move |_: &Shared| {
        pause((random >> 50) % 200);
        assert!(nat.end(|_| true).unwrap() > 0);
        to_main.send(nat).unwrap();
    };
    let tasks = vec![
        comes(20, send(0)),
        comes(28, send(1)),
        comes(36, asks(2, before, &pools, &begun)),
        Box::new(agent) as Task<Shared>,
    ];
    explore(&shared, tasks);
    let mut nat = from_agent.recv().unwrap();
    Counts::add(&counts.asked, begun.load(Ordering::Relaxed));
    // What is left has begun afterwards, in another block.
    for shown in nat.translations() {
        let id = nat.tables.block_of(0, shown.outside.port()).unwrap();
        assert!(nat.tables.word(id).has_owner(), "a session has no block: {shown:?}");
        Counts::add(&counts.fresh, 1);
    }
    assert_eq!(round(&mut nat, NOW).0.astray + round(&mut nat, NOW).0.astray, 0);
    check_end(&shared, &mut nat);
}

#[test]
fn a_block_that_is_ended_leaves_no_session() {
    let counts = run_schedules(packets_of_an_ending_vm);
    let packets = 2 * (RANDOM + BY_PRIORITY) as u64;
    let (fresh, asked) = (counts.fresh.load(Ordering::Relaxed), counts.asked.load(Ordering::Relaxed));
    assert!(fresh > 100 && fresh < packets - 100, "{fresh} of {packets} sessions began afterwards");
    assert!(asked > 10, "{asked} remote endpoints began a session");
}
