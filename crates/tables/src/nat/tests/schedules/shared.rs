//! Packets, copies and rounds that claim, settle and free the tuples of shared ports.

use super::*;

const SHARING: nat_pool = nat_pool {
    sessions_limit: 1000,
    blocks_limit: 1,
    addresses: 0,
    flags: testing::SHARES_PORTS,
    reserved: 0,
    address: [0; 16],
};

/// Tables in which a VM has one block, and two inside ports of it that begin their search at the same outside port.
struct Rivals {
    shared: Shared,
    nat: Nat,
    inside: [SocketAddrV4; 2],
    port: u16,
}

impl Rivals {
    fn new(schedule: u64) -> Self {
        let (shared, nat) = Shared::with_limits(SHARING, 64, 40, schedule);
        let mut first = std::collections::HashMap::new();
        for number in 100.. {
            let out = shared.tables.out(shared.protocol, vm(number), server(number), NOW);
            assert_eq!(out.answer, testing::NAT_BEGUN);
            if let Some(other) = first.insert(out.outside_port, number) {
                return Self { shared, nat, inside: [vm(other), vm(number)], port: out.outside_port };
            }
        }
        unreachable!("64 ports")
    }

    /// Other inside ports have all ports of the block at port 53 of the server, except that of the two.
    fn leave_one(&self) {
        let id = self.nat.tables.block_of(0, self.port).unwrap();
        for port in self.nat.tables.port_range(id).filter(|port| *port != self.port) {
            let asked =
                testing::installed(VNI, self.shared.protocol, (vm(1000 + port), server(53)), (0, port));
            let asked = nat_test { now: NOW, state: testing::COPY_OF_SHARED, ..asked };
            assert_eq!(self.shared.tables.run(asked).answer, testing::NAT_BEGUN);
        }
    }
}

impl Shared {
    /// As [`Shared::exchange`], of a packet that may find no port.
    fn try_to_exchange(&self, task: usize, inside: SocketAddrV4, remote: SocketAddrV4) {
        let mut out = nat_test::default();
        self.programs.run(task, || out = self.tables.out(self.protocol, inside, remote, NOW));
        if [testing::NAT_BEGUN, testing::NAT_TRANSLATED].contains(&out.answer) {
            let mut back = nat_test::default();
            self.programs.run(task, || back = self.tables.back(&out, tcp::SYN | tcp::ACK, NOW));
            assert_eq!(
                (back.answer, testing::inside_of(&back)),
                (testing::NAT_TRANSLATED, inside),
                "{out:?}"
            );
        } else {
            assert!([testing::NAT_BUSY, testing::NAT_BLOCKS].contains(&out.answer), "{out:?}");
        }
        self.answers.lock().unwrap().push(out);
    }

    /// Checks that a session has one outside endpoint, and no other one of its remote endpoint has it. Returns how many packets of
    /// remote port 53 got one, and how many none because others were faster.
    fn check_tuples(&self) -> [u64; 2] {
        let answers = self.answers.lock().unwrap();
        let is_mapped = |out: &&nat_test| [testing::NAT_BEGUN, testing::NAT_TRANSLATED].contains(&out.answer);
        let mapped: Vec<&nat_test> = answers.iter().filter(is_mapped).collect();
        for one in &mapped {
            for other in mapped
                .iter()
                .filter(|other| (other.remote, other.remote_port) == (one.remote, one.remote_port))
            {
                let is_same_inside = one.inside_port == other.inside_port;
                let is_same_outside = testing::outside_of(one) == testing::outside_of(other);
                assert_eq!(is_same_inside, is_same_outside, "{one:?} {other:?}");
            }
        }
        let got = mapped.iter().filter(|out| out.remote_port == 53).count();
        let busy = answers.iter().filter(|out| out.answer == testing::NAT_BUSY).count();
        [got as u64, busy as u64]
    }
}

fn tries(task: usize, inside: SocketAddrV4, remote_port: u16) -> Task<Shared> {
    Box::new(move |shared: &Shared| shared.try_to_exchange(task, inside, server(remote_port)))
}

/// Two inside ports, of which one sends twice, begin at the same outside port. Others are free, or in every other schedule not.
fn rivals(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let rivals = Rivals::new(schedule / 2);
    let is_last = schedule.is_multiple_of(2);
    if is_last {
        rivals.leave_one();
    }
    let Rivals { shared, mut nat, inside: [one, other], .. } = rivals;
    let shared = Arc::new(shared);
    explore(&shared, vec![tries(0, one, 53), tries(1, one, 53), tries(2, other, 53), tries(3, other, 54)]);
    let [got, busy] = shared.check_tuples();
    Counts::add(&counts.busy, busy);
    Counts::add(&counts.duplicates, nat.sessions().counters().duplicates);
    let answers = shared.answers.lock().unwrap().clone();
    let of_one = answers.iter().any(|out| out.inside_port == one.port() && out.answer == testing::NAT_BEGUN);
    Counts::add(if of_one { &counts.kept } else { &counts.fresh }, 1);
    // Claims that lost went back: what is left belongs to the sessions.
    assert!(got + busy >= if is_last { 1 } else { 3 }, "{answers:?}");
    let sessions = nat.translations().count() as u64;
    for _ in 0..2 {
        assert_eq!(round(&mut nat, NOW).0.astray, 0);
    }
    assert_eq!((nat.usage().tuples, nat.translations().count() as u64), (sessions, sessions));
    shared.check_tuples();
    check_end(&shared, &mut nat);
}

#[test]
fn first_packets_agree_on_the_inside_port_of_a_tuple() {
    let counts = run_schedules(rivals);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let packets = 4 * (RANDOM + BY_PRIORITY) as u64;
    assert!(count(&counts.kept) > 300 && count(&counts.fresh) > 100, "both win: {}", count(&counts.fresh));
    assert!(count(&counts.busy) < packets / 20, "{} of {packets} packets were busy", count(&counts.busy));
}

/// Packets of the two inside ports, and of another remote endpoint, while a round frees the last tuple. In a third of the schedules
/// each, the round begins, looks at sessions, or frees tuples when the packets come.
fn tuples_in_a_round(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let mode = schedule % 3;
    let rivals = Rivals::new(schedule / 3);
    rivals.leave_one();
    let Rivals { shared, mut nat, inside: [one, other], port } = rivals;
    let out = shared.tables.out(shared.protocol, one, server(53), NOW);
    assert_eq!((out.answer, out.outside_port), (testing::NAT_BEGUN, port));
    assert!(nat.remove(&shared.flow(one.port(), 53), NOW));
    let is_there = |nat: &Nat| match mode {
        0 => true,
        1 => matches!(nat.progress.phase, Phase::Sessions),
        _ => nat.progress.phase == Phase::Tuples(0),
    };
    while !is_there(&nat) {
        nat.sweep(4, NOW, &mut drop).unwrap();
    }
    let shared = Arc::new(shared);
    let (to_main, from_sweep) = mpsc::channel();
    let sweep = move |_: &Shared| {
        let mut freed = 0;
        while !matches!(nat.progress.phase, Phase::Blocks(_)) {
            let swept = nat.sweep(4, NOW, &mut drop).unwrap();
            assert_eq!(swept.astray, 0);
            freed += swept.tuples;
        }
        to_main.send((nat, freed)).unwrap();
    };
    let comes = |task: usize, inside: SocketAddrV4, remote_port: u16| -> Task<Shared> {
        let pauses = (schedule * 4 + task as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        Box::new(move |shared: &Shared| {
            pause(pauses % 3000);
            shared.try_to_exchange(task, inside, server(remote_port));
        })
    };
    explore(&shared, vec![comes(0, one, 53), comes(1, other, 53), comes(2, one, 54), Box::new(sweep)]);
    let (mut nat, freed) = from_sweep.recv().unwrap();
    let [_, busy] = shared.check_tuples();
    Counts::add(&counts.busy, busy);
    Counts::add(&counts.ports, freed);
    let answers = shared.answers.lock().unwrap().clone();
    let begun: Vec<_> = answers.iter().filter(|out| out.answer == testing::NAT_BEGUN).collect();
    for out in begun.iter().filter(|out| out.remote_port == 53) {
        Counts::add(if out.inside_port == one.port() { &counts.kept } else { &counts.fresh }, 1);
    }
    for _ in 0..2 {
        assert_eq!(round(&mut nat, NOW).0.astray, 0);
        for out in &begun {
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
fn a_tuple_is_freed_or_used_again_but_not_both() {
    let counts = run_schedules(tuples_in_a_round);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (kept, fresh, freed) = (count(&counts.kept), count(&counts.fresh), count(&counts.ports));
    assert!(kept > 100 && fresh > 100 && freed > 100, "{kept} the same, {fresh} the other, {freed} freed");
}

/// A packet that stands still at any access, while the agent makes a round.
fn slow_sharer(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let accesses = schedule % 400;
    let (shared, mut nat) = Shared::with_limits(SHARING, 64, 4, schedule / 400);
    let shared = Arc::new(shared);
    let packet: Task<Shared> = Box::new(move |shared: &Shared| {
        pause_packet_at(accesses, 2000);
        shared.exchange(0, vm(7), server(53));
    });
    let (to_main, from_sweep) = mpsc::channel();
    let sweep = move |_: &Shared| {
        while !matches!(nat.progress.phase, Phase::Blocks(_)) {
            nat.sweep(4, NOW, &mut drop).unwrap();
        }
        to_main.send(nat).unwrap();
    };
    explore(&shared, vec![packet, Box::new(sweep)]);
    let mut nat = from_sweep.recv().unwrap();
    assert_eq!(shared.check(), 0, "busy without another packet");
    round(&mut nat, NOW);
    let out = shared.answers.lock().unwrap()[0];
    assert_eq!(shared.tables.back(&out, 0, NOW).answer, testing::NAT_TRANSLATED, "its tuple was freed");
    check_end(&shared, &mut nat);
}

#[test]
fn a_round_waits_for_packets_that_claim_tuples() {
    run_schedules(slow_sharer);
}

/// A session of one inside port is installed at the last port, and a packet of the other one wants it.
fn copy_of_a_rival(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let rivals = Rivals::new(schedule);
    rivals.leave_one();
    let Rivals { shared, mut nat, inside: [one, other], port } = rivals;
    let shared = Arc::new(shared);
    let install = move |shared: &Shared| {
        let asked = testing::installed(VNI, shared.protocol, (one, server(53)), (0, port));
        let mut asked =
            nat_test { now: NOW, state: testing::COPY_OF_SHARED, flags: testing::OF_OWNER, ..asked };
        asked.since = NOW;
        pause(schedule % 150);
        shared.programs.run(0, || shared.tables.tables.run(&mut asked));
        if asked.answer != testing::NAT_BEGUN {
            assert!([testing::NAT_TAKEN, testing::NAT_BUSY].contains(&asked.answer), "{asked:?}");
        }
        shared.answers.lock().unwrap().push(asked);
    };
    explore(&shared, vec![Box::new(install), tries(1, other, 53)]);
    let [got, busy] = shared.check_tuples();
    assert!(got + busy >= 1);
    Counts::add(&counts.busy, busy);
    let answers = shared.answers.lock().unwrap().clone();
    for out in answers.iter().filter(|out| out.answer == testing::NAT_BEGUN) {
        Counts::add(if out.inside_port == one.port() { &counts.kept } else { &counts.fresh }, 1);
        assert_eq!(testing::inside_of(&shared.tables.back(out, 0, NOW)), vm(out.inside_port));
    }
    assert_eq!(round(&mut nat, NOW).0.astray, 0);
    check_end(&shared, &mut nat);
}

#[test]
fn a_copy_and_a_packet_do_not_get_the_same_tuple() {
    let counts = run_schedules(copy_of_a_rival);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert!(count(&counts.kept) > 100 && count(&counts.fresh) > 100, "{} copies", count(&counts.kept));
}
