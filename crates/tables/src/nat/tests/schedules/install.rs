//! Sessions of other gateways that are installed while packets begin sessions and the agent makes rounds.

use super::*;

/// Where a session is installed in a schedule.
#[derive(Clone, Copy)]
struct Copied {
    inside: SocketAddrV4,
    remote: SocketAddrV4,
    port: u16,
}

impl Shared {
    /// Installs a session in a task. If that succeeds, it is one of the answers.
    fn install(&self, task: usize, copied: Copied) -> u32 {
        let Copied { inside, remote, port } = copied;
        let mut asked = testing::installed(VNI, self.protocol, (inside, remote), (0, port));
        (asked.now, asked.pool, asked.flags) = (NOW, self.tables.pool, testing::OF_OWNER);
        (asked.idle, asked.since) = (8, NOW);
        self.programs.run(task, || self.tables.tables.run(&mut asked));
        match asked.answer {
            testing::NAT_BEGUN | testing::NAT_TRANSLATED => self.answers.lock().unwrap().push(asked),
            testing::NAT_BUSY | testing::NAT_TAKEN | testing::NAT_ELSEWHERE => {}
            other => panic!("answer {other}: {asked:?}"),
        }
        asked.answer
    }

    /// Checks that no outside endpoint has two inside endpoints, and that all sessions of the answers work.
    fn check_copies(&self) {
        let answers = self.answers.lock().unwrap();
        let answers: Vec<&nat_test> =
            answers.iter().filter(|answer| answer.answer != testing::NAT_BUSY).collect();
        for one in &answers {
            for other in &answers {
                let is_same_inside = (one.inside, one.inside_port) == (other.inside, other.inside_port);
                let is_same_outside = testing::outside_of(one) == testing::outside_of(other);
                assert!(is_same_inside || !is_same_outside, "{one:?} {other:?}");
            }
            let back = self.tables.back(one, 0, NOW);
            let is_inside = (back.inside, back.inside_port) == (one.inside, one.inside_port);
            assert!(back.answer == testing::NAT_TRANSLATED && is_inside, "{one:?}: {back:?}");
        }
    }
}

/// A session that is installed at some time of the schedule, and stands still at some access.
fn installs(
    task: usize,
    copied: Copied,
    pauses: u64,
    pause_at: u64,
    counter: &Arc<AtomicU64>,
) -> Task<Shared> {
    let counter = Arc::clone(counter);
    Box::new(move |shared: &Shared| {
        pause(pauses);
        pause_packet_at(pause_at, 800);
        let is_begun = shared.install(task, copied) == testing::NAT_BEGUN;
        counter.fetch_add(u64::from(is_begun), Ordering::Relaxed);
    })
}

fn mix(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Two packets of an inside endpoint, and an installed session of it: by the port that packets prefer, or by another one, or beside
/// the session of another inside endpoint at the same port.
fn copy_among_packets(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let (shared, mut nat) = Shared::new(4096, schedule / 3);
    let preferred = shared.before().outside_port;
    assert!(nat.remove(&shared.flow(7, 53), NOW));
    round(&mut nat, NOW);
    assert!(shared.tables.is_empty());
    let (mode, random) = (schedule % 3, mix(schedule));
    let port = if mode == 1 { preferred ^ 4097 } else { preferred };
    let shared = Arc::new(shared);
    let [own, others] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let copied = Copied { inside: vm(7), remote: server(55), port };
    let mut tasks = vec![
        exchange(0, vm(7), server(53)),
        installs(1, copied, (random >> 20) % 100, (random >> 40) % 120, &own),
    ];
    if mode == 2 {
        let inside = [vm(8), end([10, 0, 0, 6], 7)][(schedule / 3 % 2) as usize];
        let other = Copied { inside, ..copied };
        tasks.push(installs(2, other, (random >> 30) % 100, (random >> 48) % 120, &others));
    } else {
        tasks.push(exchange(2, vm(7), server(54)));
    }
    explore(&shared, tasks);
    Counts::add(&counts.kept, own.load(Ordering::Relaxed));
    Counts::add(&counts.fresh, others.load(Ordering::Relaxed));
    shared.check_copies();
    if mode == 0 {
        Counts::add(&counts.busy, shared.check());
    }
    (0..2).for_each(|_| assert_eq!(round(&mut nat, NOW).0.astray, 0));
    shared.check_copies();
    check_end(&shared, &mut nat);
}

#[test]
fn copies_and_packets_agree_on_the_inside_endpoint_of_a_port() {
    let counts = run_schedules(copy_among_packets);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let all = (RANDOM + BY_PRIORITY) as u64;
    let (own, others, busy) = (count(&counts.kept), count(&counts.fresh), count(&counts.busy));
    assert!(
        own > all * 2 / 3 && others > 50 && busy < all / 20,
        "{own} and {others} copies, {busy} were busy"
    );
}

/// A session of the port is installed, and one of another inside endpoint at the same port, while a round frees the port and returns
/// the block. As in [`packets_in_a_round`], the round begins, looks at sessions, or frees ports.
fn copies_in_a_round(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let mode = (schedule % 3) as usize;
    let (shared, mut nat) = Shared::new([4096, 4096, 64][mode], schedule / 6);
    // Of the last block, after which the round ends.
    let copied = Copied { inside: vm(7), remote: server(53), port: 65_500 };
    assert_eq!(shared.install(0, copied), testing::NAT_BEGUN);
    shared.answers.lock().unwrap().clear();
    assert!(nat.remove(&shared.flow(7, 53), NOW));
    let block = nat.tables.block_of(0, copied.port).unwrap();
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
        for _ in 0..[3, 2, u64::MAX][mode] {
            let swept = nat.sweep(4, NOW, &mut drop).unwrap();
            (sum.ports, sum.blocks) = (sum.ports + swept.ports, sum.blocks + swept.blocks);
            assert_eq!(swept.astray, 0);
            if swept.round_completed {
                break;
            }
        }
        to_main.send((nat, sum)).unwrap();
    };
    let random = mix(schedule);
    let comes = |shift: u64| (random >> shift) % [200, 120, 2500][mode];
    let [own, others] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    // In every other schedule, a port that was free all the time.
    let fresh = u16::from((schedule / 3).is_multiple_of(2));
    let copied = Copied { inside: vm(7 + fresh), remote: server(54), port: copied.port + fresh };
    let other = Copied { inside: end([10, 0, 0, 6], 7), ..copied };
    let tasks = vec![
        installs(0, copied, comes(20), (random >> 44) % 120, &own),
        installs(1, other, comes(32), (random >> 50) % 120, &others),
        Box::new(sweep) as Task<Shared>,
    ];
    explore(&shared, tasks);
    let (mut nat, swept) = from_sweep.recv().unwrap();
    Counts::add(&counts.kept, own.load(Ordering::Relaxed));
    Counts::add(&counts.fresh, others.load(Ordering::Relaxed));
    Counts::add(&counts.ports, swept.ports);
    Counts::add(&counts.blocks, swept.blocks);
    for _ in 0..2 {
        shared.check_copies();
        assert_eq!(round(&mut nat, NOW).0.astray, 0, "a port was freed that a session uses");
    }
    shared.check_copies();
    check_end(&shared, &mut nat);
}

#[test]
fn a_round_frees_no_port_of_a_copy() {
    let counts = run_schedules(copies_in_a_round);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (own, others) = (count(&counts.kept), count(&counts.fresh));
    assert!(own > 100 && others > 10, "{own} copies of the old owner of the port, {others} of the other one");
    assert!(count(&counts.ports) > 10 && count(&counts.blocks) > 10, "{} blocks", count(&counts.blocks));
}

/// A session is installed while packets use it, and while the agent ends it.
fn copy_of_a_session_in_use(counts: &Counts) {
    let schedule = counts.schedules.fetch_add(1, Ordering::Relaxed);
    let (shared, mut nat) = Shared::new(4096, schedule / 2);
    let before = shared.before();
    let (flow, random) = (shared.flow(7, 53), mix(schedule));
    let moves = schedule.is_multiple_of(2);
    let port = if moves { before.outside_port ^ 1 } else { before.outside_port };
    let shared = Arc::new(shared);
    let begun = Arc::new(AtomicU64::new(0));
    let (to_main, from_agent) = mpsc::channel();
    let end = move |_: &Shared| {
        pause((random >> 50) % 100);
        nat.remove(&flow, NOW);
        to_main.send(nat).unwrap();
    };
    let copied = Copied { inside: vm(7), remote: server(53), port };
    let send = |shared: &Shared| {
        let mut out = nat_test::default();
        shared.programs.run(1, || out = shared.tables.out(shared.protocol, vm(7), server(53), NOW));
        let answered = [testing::NAT_BEGUN, testing::NAT_TRANSLATED, testing::NAT_BUSY].contains(&out.answer);
        assert!(answered, "{out:?}");
    };
    let tasks = vec![
        installs(0, copied, (random >> 20) % 100, (random >> 40) % 120, &begun),
        Box::new(send) as Task<Shared>,
        Box::new(end),
    ];
    explore(&shared, tasks);
    let mut nat = from_agent.recv().unwrap();
    Counts::add(&counts.fresh, begun.load(Ordering::Relaxed));
    for shown in nat.translations() {
        let back = nat_test { outside_port: shown.outside.port(), ..before };
        assert_eq!(shared.tables.back(&back, 0, NOW).answer, testing::NAT_TRANSLATED, "{shown:?}");
        Counts::add(&counts.kept, 1);
    }
    assert!(nat.translations().count() <= 1);
    assert_eq!(round(&mut nat, NOW).0.astray, 0);
    check_end(&shared, &mut nat);
}

#[test]
fn a_copy_of_a_session_in_use_leaves_one_session() {
    let counts = run_schedules(copy_of_a_session_in_use);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (begun, live) = (count(&counts.fresh), count(&counts.kept));
    assert!(begun > 100 && live > 100, "{begun} copies were added, {live} sessions were live at the end");
}
