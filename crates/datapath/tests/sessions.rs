//! Session tables in real BPF arrays: the eBPF programs, the Rust side and a
//! naive model agree, also while two processors create sessions and the agent
//! sweeps them. Needs root.

#[path = "../../tables/tests/support/history.rs"]
mod history;

use libbpf_rs::ProgramInput;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sluice_datapath::{Datapath, ObjectName, SESSION_MAPS, Settings, flush};
use sluice_tables::sessions::{Direction, Family, Fate, Flow, Session, SessionShares, Sessions, Timeouts};
use sluice_tables::{
    Direction as PolicyDirection, Immediate, Membarrier, Memory, NodeTables, Policy, Remote, Rule, Service,
    Sizes, Verdict, layout,
};
use sluice_tables_testing::{self as testing, OPERATION_BYTES, session_test};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Instant;

/// `OPERATIONS_MAX` of `bpf/sessions_test.bpf.c`.
const OPERATIONS_MAX: usize = 16;

struct Kernel(Datapath);

impl Kernel {
    fn load([buckets4, buckets6]: [u32; 2], pin_dir: Option<&Path>) -> Self {
        let settings =
            Settings { object: ObjectName::SessionsTest, cells: 0, pin_dir: pin_dir.map(Path::to_owned) };
        let sizes = [(SESSION_MAPS[0], buckets4), (SESSION_MAPS[1], buckets6)];
        Self(Datapath::load_sized(&settings, &sizes).expect("the test program loads (as root)"))
    }

    /// Carries out the operations in their order.
    fn run(&self, operations: &mut [session_test]) {
        let program = self.0.program("sessions_test").unwrap();
        for batch in operations.chunks_mut(OPERATIONS_MAX) {
            let data: Vec<u8> = batch.iter().flat_map(testing::to_bytes).collect();
            let mut out = vec![0; data.len()];
            let input =
                ProgramInput { data_in: Some(&data), data_out: Some(&mut out), ..ProgramInput::default() };
            program.test_run(input).expect("the test program runs");
            for (operation, answered) in batch.iter_mut().zip(out.chunks(OPERATION_BYTES)) {
                *operation = testing::from_bytes(answered);
            }
        }
    }
}

#[test]
fn ebpf_rust_and_model_agree() {
    let tables: Vec<Kernel> = [[2, 3], [7, 4]].map(|buckets| Kernel::load(buckets, None)).into();
    let regions: Vec<_> = tables.iter().map(|kernel| kernel.0.sessions().unwrap()).collect();
    let starts = prop::sample::select(vec![0, 0x7fff_fff0, 0xffff_ff00]);
    let strategy = (0..tables.len(), any::<u64>(), starts, history::ops());
    let config = ProptestConfig {
        cases: ProptestConfig::default().cases / 2,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(&strategy, |(size, seed, start, ops)| {
        history::run(&regions[size], seed, start, &ops, |asked| {
            tables[size].run(std::slice::from_mut(asked));
        });
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Pins that are removed when the test ends, also if it fails.
struct Pins(PathBuf);

impl Pins {
    fn new(name: &str) -> Self {
        let pins = Self(PathBuf::from(format!("/sys/fs/bpf/sluice-{name}-{}", std::process::id())));
        flush(&pins.0).unwrap();
        pins
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = flush(&self.0);
    }
}

/// Returns flow `number`: even numbers are IPv4, odd numbers IPv6.
fn flow(number: u32) -> Flow {
    let (low, port) = (number / 2 % 5, (1000 + number) as u16);
    let ends: [SocketAddr; 2] = if number.is_multiple_of(2) {
        [(Ipv4Addr::from(0x0a00_0000 + low), port).into(), (Ipv4Addr::new(10, 0, 0, 3), 53).into()]
    } else {
        let at = |low: u32| Ipv6Addr::from((0xfd00_u128 << 112) + u128::from(low));
        [(at(low), port).into(), (at(3), 53).into()]
    };
    Flow { scope: 9, protocol: 17, source: ends[0], destination: ends[1] }
}

fn operation(op: u32, flow: &Flow, now: u32, action: u32) -> session_test {
    let mut asked = testing::operation(op, flow.scope, flow.protocol, [flow.source, flow.destination]);
    (asked.now, asked.action, asked.bytes) = (now, [action, !action], 100);
    asked
}

/// Checks that the session that was found belongs to the flow that was looked up.
fn assert_own(asked: &session_test) {
    let (s, d) = ((asked.source, asked.source_port), (asked.destination, asked.destination_port));
    let (low, high) = if s <= d { (s, d) } else { (d, s) };
    let who = u64::from(asked.scope)
        | u64::from(asked.protocol) << 24
        | u64::from(low.1) << 32
        | u64::from(high.1) << 48;
    let expected = if asked.family == 4 {
        [who, low.0[1] | high.0[1] << 32, 0, 0, 0]
    } else {
        [who, low.0[0], low.0[1], high.0[0], high.0[1]]
    };
    assert_eq!(asked.key, expected, "another key's session: {asked:?}");
    assert_eq!(asked.found_action[0], !asked.found_action[1], "half a session: {asked:?}");
}

const KEYS: u32 = 48;

/// One packet of each flow, from the originator (side 0) or from the other end (side 1).
fn side_of_keys(side: u32, round: u32) -> Vec<session_test> {
    let flows = (0..KEYS).map(|number| if side == 0 { flow(number) } else { flow(number).reversed() });
    flows.map(|flow| operation(testing::SESSION_OP_PACKET, &flow, round, side)).collect()
}

/// Checks the answers that both sides got in a round, and the sessions that they created.
fn check_round(sessions: &mut Sessions, round: u32, answers: [&[session_test]; 2]) {
    for (number, (one, other)) in answers[0].iter().zip(answers[1]).enumerate() {
        let created = [one, other].iter().filter(|a| a.answer == testing::SESSION_CREATED).count();
        assert!(created >= 1, "{one:?} {other:?}");
        for asked in [one, other] {
            assert!([testing::SESSION_CREATED, testing::SESSION_HIT].contains(&asked.answer), "{asked:?}");
            assert_own(asked);
        }
        let flow = flow(number as u32);
        let (session, direction) = sessions.reader().lookup(&flow, round).expect("it was created");
        let is_original = session.flow == flow;
        assert_eq!(direction, if is_original { Direction::Original } else { Direction::Reply });
        assert_eq!(session.action[0], u32::from(!is_original), "the originator's action");
    }
    assert_eq!(sessions.reader().iter().count(), KEYS as usize, "one record of each key, round {round}");
    for number in 0..KEYS {
        assert!(sessions.remove(&flow(number), round));
    }
    let swept = sessions.sweep(u32::MAX, round).unwrap();
    assert!(swept.round_completed && swept.freed >= u64::from(KEYS), "{swept:?}");
}

/// Two processors create the same sessions, one from each direction.
#[test]
fn concurrent_creators_leave_one_session() {
    const ROUNDS: u32 = 400;
    let pins = Pins::new("creators");
    // The tables must exist before both threads load.
    let first = Kernel::load([32, 32], Some(&pins.0));
    let regions = first.0.sessions().unwrap();
    let mut sessions =
        Sessions::create(&regions, 11, &Timeouts::default(), Membarrier::new().unwrap()).unwrap();
    let arrived = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let sides = [0, 1].map(|side| {
            let (to_side, rounds) = mpsc::channel::<u32>();
            let (to_main, answers) = mpsc::channel::<Vec<session_test>>();
            let (pins, arrived) = (&pins, &arrived);
            scope.spawn(move || {
                let kernel = Kernel::load([32, 32], Some(&pins.0));
                for round in rounds {
                    let mut asked = side_of_keys(side, round);
                    // Waits a short time for the other side, so that both create at the same time.
                    arrived.fetch_add(1, Ordering::SeqCst);
                    let together = || arrived.load(Ordering::SeqCst) >= 2 * (round + 1);
                    (0..1_000_000).take_while(|_| !together()).for_each(|_| std::hint::spin_loop());
                    kernel.run(&mut asked);
                    to_main.send(asked).unwrap();
                }
            });
            (to_side, answers)
        });
        for round in 0..ROUNDS {
            for (to_side, _) in &sides {
                to_side.send(round).unwrap();
            }
            let answers = [&sides[0], &sides[1]].map(|(_, answers)| answers.recv().unwrap());
            check_round(&mut sessions, round, [&answers[0], &answers[1]]);
        }
        drop(sides);
    });
    println!("{:?} in {} creations", sessions.counters(), ROUNDS * KEYS);
}

const KEPT: u32 = 40;
const CHURNING: u32 = 160;
const ROUNDS: u32 = 4000;

/// Time in ticks, and the time that each side has reached.
struct Clock {
    now: AtomicU32,
    seen: [AtomicU32; 2],
    stop: AtomicBool,
}

/// Stops the other side when a side ends.
struct StopAtEnd<'a>(&'a Clock);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

impl Clock {
    fn new(now: u32) -> Self {
        let at = || AtomicU32::new(now);
        Self { now: at(), seen: [at(), at()], stop: AtomicBool::new(false) }
    }

    fn now(&self) -> u32 {
        self.now.load(Ordering::SeqCst)
    }

    /// Returns the time for the next round of a side. As in a program that reads the kernel's clock,
    /// a packet's time is never far behind: the time does not advance until the other side is near.
    fn tick(&self, side: usize) -> u32 {
        let now =
            if side == 0 { self.now.fetch_add(1, Ordering::SeqCst).wrapping_add(1) } else { self.now() };
        self.seen[side].store(now, Ordering::SeqCst);
        let lag = || now.wrapping_sub(self.seen[1].load(Ordering::SeqCst)).cast_signed();
        while side == 0 && lag() > 16 && !self.stop.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        now
    }
}

/// Sends the packets of one thread during the sweep. Sessions that are kept alive
/// must always exist, and no packet may find the session of another flow.
fn packets(kernel: &Kernel, side: u32, clock: &Clock) -> u64 {
    let _stop = StopAtEnd(clock);
    let mut found = 0;
    for round in 0..ROUNDS {
        if side == 1 && clock.stop.load(Ordering::SeqCst) {
            break;
        }
        let now = clock.tick(side as usize);
        let mut asked: Vec<session_test> = (0..KEPT)
            .map(|number| {
                let flow = if side == 0 { flow(number) } else { flow(number).reversed() };
                operation(testing::SESSION_OP_TOUCH, &flow, now, 0)
            })
            .collect();
        // A moving window of flows. A session expires before the window returns to its flow.
        let churning = (0..24).map(|i| KEPT + (round / 8 * 3 + i) % CHURNING);
        asked.extend(churning.map(|number| {
            let flow = if (number + side).is_multiple_of(2) { flow(number) } else { flow(number).reversed() };
            operation(testing::SESSION_OP_PACKET, &flow, now, number)
        }));
        kernel.run(&mut asked);
        for (i, asked) in asked.iter().enumerate() {
            if i < KEPT as usize {
                assert_eq!(asked.answer, testing::SESSION_HIT, "round {round}: {asked:?}");
                assert_eq!(asked.touched, testing::SESSION_HIT, "round {round}: {asked:?}");
            }
            if [testing::SESSION_HIT, testing::SESSION_CREATED].contains(&asked.answer) {
                assert_own(asked);
                found += 1;
            } else {
                // A bucket may be full of sessions that are not swept yet.
                assert_eq!(asked.answer, testing::SESSION_FULL, "round {round}: {asked:?}");
            }
        }
    }
    found
}

#[test]
fn sessions_stay_beside_a_sweep() {
    let pins = Pins::new("sweep");
    let first = Kernel::load([32, 32], Some(&pins.0));
    let regions = first.0.sessions().unwrap();
    // Sessions are refreshed when this time, in seconds, less 8 ticks is left.
    let timeouts = Timeouts { udp_one_way_s: 6, udp_two_way_s: 6, ..Timeouts::default() };
    let grace = || Membarrier::new().unwrap();
    let mut sessions = Sessions::create(&regions, 12, &timeouts, grace()).unwrap();
    let clock = Clock::new(u32::MAX - 500);
    let mut asked: Vec<session_test> = (0..KEPT)
        .map(|number| operation(testing::SESSION_OP_CREATE, &flow(number), u32::MAX - 500, number))
        .collect();
    first.run(&mut asked);
    assert!(asked.iter().all(|asked| asked.answer == testing::SESSION_CREATED));
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|side| {
            let (pins, clock) = (&pins, &clock);
            scope.spawn(move || packets(&Kernel::load([32, 32], Some(&pins.0)), side, clock))
        });
        let (mut expired, mut freed, mut rounds) = (0, 0, 0_u32);
        while !threads[0].is_finished() {
            let swept = sessions.sweep(16, clock.now()).unwrap();
            (expired, freed, rounds) = (expired + swept.expired, freed + swept.freed, rounds + 1);
            if rounds.is_multiple_of(64) {
                sessions = Sessions::adopt(&regions, clock.now(), grace()).unwrap();
            }
        }
        for thread in threads {
            assert!(thread.join().unwrap() > 1000);
        }
        assert!(expired > 0 && freed >= expired, "{expired} expired, {freed} freed");
    });
    let now = clock.now();
    let mut flows: Vec<Flow> =
        sessions.reader().iter().map(|session| session.flow.min(session.flow.reversed())).collect();
    flows.sort();
    let all = flows.len();
    flows.dedup();
    assert_eq!(flows.len(), all, "two live records of one key");
    for number in 0..KEPT {
        let (session, _) = sessions.reader().lookup(&flow(number), now).expect("kept");
        assert_eq!(session.created_at, u32::MAX - 500, "never created again");
        assert_eq!(session.action, [number, !number]);
        assert!(session.packets[0] >= u64::from(ROUNDS), "{session:?}");
    }
    // All remaining sessions expire together.
    let later = now + 8 * 100;
    while !sessions.sweep(1024, later).unwrap().round_completed {}
    while !sessions.sweep(1024, later).unwrap().round_completed {}
    assert_eq!(sessions.reader().iter().count(), 0);
    for family in [Family::Ipv4, Family::Ipv6] {
        assert_eq!(sessions.usage(family).live, 0);
    }
}

/// The time of the measurements, in ticks.
const NOW: u32 = 1000;
/// Sessions of the measurement.
const MEASURED: u32 = 100_000;

/// A session of VM 10.0.0.1 or fd00::1 that it has begun to one of 1000 ports.
fn begun(number: u32) -> session_test {
    let port = 1000 + (number / 2 % 1000) as u16;
    let ends: [SocketAddr; 2] = if number.is_multiple_of(2) {
        let remote = Ipv4Addr::from(0xc612_0000 + number / 2000);
        [(Ipv4Addr::new(10, 0, 0, 1), number as u16).into(), (remote, port).into()]
    } else {
        let remote = Ipv6Addr::from((0x2001_0db8_u128 << 96) + u128::from(number / 2000));
        [(Ipv6Addr::from((0xfd00_u128 << 112) + 1), number as u16).into(), (remote, port).into()]
    };
    let flow = Flow { scope: 7, protocol: 17, source: ends[0], destination: ends[1] };
    let mut asked = operation(testing::SESSION_OP_CREATE, &flow, NOW, 0);
    asked.action = [0, 1 | layout::SESSION_EGRESS];
    asked
}

/// How long a host takes to judge all of its sessions after a policy was replaced, with the grace period. Catches a session
/// that lives on without a rule; its time is only printed.
#[test]
fn review_of_100_000_sessions() {
    const RULES: u16 = 500;
    let kernel = Kernel::load([28_087, 28_087], None);
    let shares = SessionShares::anonymous().unwrap();
    let grace = Membarrier::new().unwrap();
    let mut sessions = Sessions::open(&kernel.0.sessions().unwrap(), shares, NOW, grace).unwrap();
    let mut operations: Vec<_> = (0..MEASURED).map(begun).collect();
    kernel.run(&mut operations);
    assert!(operations.iter().all(|asked| asked.answer == testing::SESSION_CREATED));

    let memory = Memory::anonymous(1 << 16).unwrap();
    let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
    // One port of two is permitted.
    let rule = |(id, net): (u32, &str)| Rule {
        id,
        direction: PolicyDirection::Egress,
        service: Service::Ports {
            protocol: 17,
            first: 1000 + (id as u16 - 1) % RULES * 2,
            last: 1000 + (id as u16 - 1) % RULES * 2,
        },
        remote: Remote::Prefix(net.parse().unwrap()),
    };
    let nets = ["0.0.0.0/0", "::/0"].into_iter().flat_map(|net| std::iter::repeat_n(net, RULES.into()));
    let rules = (1..).zip(nets).map(rule).collect();
    let begin = Instant::now();
    tables.upsert_policy(&Policy { id: 1, rules, ..Policy::default() }).unwrap();
    let written = begin.elapsed();
    let (reader, generation) = (tables.reader(), tables.policy_generation(1).unwrap());
    let cell = reader.policy_cell(1).unwrap().unwrap();
    sessions.wait_for_packets().unwrap();
    let waited = begin.elapsed() - written;
    let mut ended = 0;
    for family in [Family::Ipv4, Family::Ipv6] {
        let decide = |session: &Session| match reader.evaluate(cell, &session.first_packet()) {
            Verdict::Permitted(rule) => Fate::Changes(session.permitted_by(generation, rule)),
            _ => Fate::Ends,
        };
        ended += sessions.review(family, 0..u32::MAX, decide).ended;
    }
    let time = begin.elapsed();
    println!(
        "policy written in {written:?}, grace period {waited:?}, {MEASURED} sessions judged: {time:?} in all"
    );
    assert_eq!(ended, u64::from(MEASURED / 2));
    assert!(sessions.reader().iter().all(|session| session.flow.destination.port() % 2 == 0));
}

/// What the sweep costs while nothing happens, at the size that hosts have by default; only printed.
#[test]
fn sweep_of_idle_tables() {
    let buckets = 56_174;
    let kernel = Kernel::load([buckets, buckets], None);
    let shares = SessionShares::anonymous().unwrap();
    let grace = Membarrier::new().unwrap();
    let mut sessions = Sessions::open(&kernel.0.sessions().unwrap(), shares, NOW, grace).unwrap();
    let begin = Instant::now();
    let swept = sessions.sweep(2 * buckets, NOW).unwrap();
    println!("{} buckets swept in {:?}", swept.buckets, begin.elapsed());
    assert!(swept.round_completed && swept.buckets == u64::from(2 * buckets));
}
