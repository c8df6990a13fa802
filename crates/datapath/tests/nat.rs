//! Source NAT in real BPF arrays: the eBPF program, the Rust side and a naive model agree, and packets on two processors agree
//! on mappings while the agent frees ports. Needs root.

#[path = "../../tables/tests/support/nat_history.rs"]
mod nat_history;

use libbpf_rs::ProgramInput;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sluice_datapath::{Datapath, ObjectName, Settings, nat_sizes};
use sluice_tables::Membarrier;
use sluice_tables::nat::{Nat, NatRegions, NatSize, default_timeouts};
use sluice_tables_testing::nat::{self as testing, PACKET_BYTES, nat_pool, nat_test};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// `OPERATIONS_MAX` of `bpf/nat_test.bpf.c`.
const OPERATIONS_MAX: usize = 16;
const UDP: u8 = 17;

struct Kernel(Datapath);

impl Kernel {
    fn load(size: NatSize, buckets: u32) -> Self {
        let settings = Settings { object: ObjectName::NatTest, cells: 0, pin_dir: None };
        let (groups, cells) = (NatRegions::groups(size).unwrap(), NatRegions::port_cells(size));
        let sizes = nat_sizes(groups, cells, [buckets; 2]);
        Self(Datapath::load_sized(&settings, &sizes).expect("the test program loads (as root)"))
    }

    /// Runs packets in their order.
    fn run(&self, packets: &mut [nat_test]) {
        let program = self.0.program("nat_test").unwrap();
        for batch in packets.chunks_mut(OPERATIONS_MAX) {
            let data: Vec<u8> = batch.iter().flat_map(testing::to_bytes).collect();
            let mut out = vec![0; data.len()];
            let input =
                ProgramInput { data_in: Some(&data), data_out: Some(&mut out), ..ProgramInput::default() };
            program.test_run(input).expect("the test program runs");
            for (packet, answered) in batch.iter_mut().zip(out.chunks(PACKET_BYTES)) {
                *packet = testing::from_bytes(answered);
            }
        }
    }
}

#[test]
fn ebpf_rust_and_model_agree() {
    // Large enough for each size of the histories.
    let kernel = Kernel::load(NatSize { addresses: nat_history::NUMBERS_MAX, block_ports: 64 }, 200);
    let regions = kernel.0.nat().unwrap();
    let config = ProptestConfig {
        cases: ProptestConfig::default().cases / 2,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(&(nat_history::worlds(), nat_history::ops()), |(world, ops)| {
        nat_history::run(&regions, &world, &ops, &mut |packet| kernel.run(std::slice::from_mut(packet)));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

fn vm(number: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 + number / 4), (number % 4) as u16)
}

fn packet_of(number: u32, remote_port: u16, now: u32) -> nat_test {
    let remote = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 1), remote_port);
    let pool = nat_pool { sessions_limit: u32::MAX, blocks_limit: 4, ..testing::pool_of(&[0]) };
    nat_test { now, bytes: 100, pool, ..testing::outgoing(9, UDP, vm(number), remote) }
}

/// Sets a variable when it is dropped, also if the test fails: the agent's thread waits for it.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// In each round, two processors send packets of the same inside endpoints to different remote endpoints, while the agent frees
/// what was used in the round before.
#[test]
fn two_processors_and_the_agent_agree_on_mappings() {
    const ROUNDS_OF_AGENT: u32 = 6;
    /// With all sessions of so many rounds, the session table is half full.
    const ROUNDS: u32 = 500;
    const ENDPOINTS: u32 = 64;
    let size = NatSize { addresses: 1, block_ports: 64 };
    // Room for all sessions, however slow the agent is.
    let kernel = Kernel::load(size, 20_000);
    let regions = kernel.0.nat().unwrap();
    let mut nat = Nat::create(&regions, size, 3, &default_timeouts(), 0, Membarrier::new().unwrap()).unwrap();
    assert_eq!(nat.assign(Ipv4Addr::new(198, 51, 100, 1)), Ok(0));
    let barrier = std::sync::Barrier::new(2);
    let (done, now, of_agent) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let (mut busy, mut sent) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let swept = nat.sweep(5000, now.load(Ordering::SeqCst), &mut drop).unwrap();
                assert_eq!(swept.astray, 0);
                of_agent.fetch_add(swept.round_completed.into(), Ordering::SeqCst);
            }
        });
        let _done = SetAtEnd(&done);
        for round in 0..ROUNDS {
            // All sessions of the round before have expired.
            let ticks = (round + 1) * 8 * 400;
            let send = |port: u16| {
                barrier.wait();
                let mut packets: Vec<_> =
                    (0..ENDPOINTS).map(|number| packet_of(number, port, ticks)).collect();
                packets.chunks_mut(4).for_each(|batch| kernel.run(batch));
                packets
            };
            let answers: Vec<nat_test> = std::thread::scope(|pair| {
                // Other ports in each round: the records of one key would fill its buckets before the agent frees them.
                let other = pair.spawn(|| send(1000 + 2 * round as u16));
                let one = send(1001 + 2 * round as u16);
                [one, other.join().unwrap()].concat()
            });
            busy += check_round(&answers);
            sent += answers.len() as u32;
            now.store(ticks, Ordering::SeqCst);
            if of_agent.load(Ordering::SeqCst) >= ROUNDS_OF_AGENT {
                break;
            }
        }
    });
    assert!(of_agent.into_inner() > 0, "the agent has completed no round");
    assert!(busy < sent / 50, "{busy} of {sent} packets were busy");
    let end = (ROUNDS + 2) * 8 * 400;
    let mut rounds = 0;
    while rounds < 3 {
        rounds += u32::from(nat.sweep(20_000, end, &mut drop).unwrap().round_completed);
    }
    assert_eq!((nat.blocks().count(), nat.translations().count(), nat.usage().ports), (0, 0, 0));
}

/// Checks that each inside endpoint has one outside endpoint, which no other one has. Returns the number of packets that got none.
fn check_round(answers: &[nat_test]) -> u32 {
    let (mut outside, mut inside, mut busy) = (HashMap::new(), HashMap::new(), 0);
    for asked in answers {
        if asked.answer == testing::NAT_BUSY {
            busy += 1;
            continue;
        }
        assert!([testing::NAT_BEGUN, testing::NAT_TRANSLATED].contains(&asked.answer), "{asked:?}");
        let ends = ((asked.inside, asked.inside_port), (asked.outside, asked.outside_port));
        assert_eq!(*outside.entry(ends.0).or_insert(ends.1), ends.1, "{asked:?}");
        assert_eq!(*inside.entry(ends.1).or_insert(ends.0), ends.0, "{asked:?}");
    }
    busy
}
