//! `bpf/meters_flows_test.bpf.c`, its maps, and what is asked of it.

use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use sluice_datapath::{Datapath, FLOW_CELLS_MAP, FlowEvents, ObjectName, Settings};
use sluice_tables::flows::{FlowKey, Flows};
use sluice_tables::meters::Meters;
use std::net::IpAddr;
use std::thread;

/// `struct query`; its fields in order.
const QUERY_BYTES: usize = 80;
/// The program's `METER_QUERIES_MAX`.
const QUERIES_MAX: usize = 40;
/// The program's `LOAD_PACKETS`.
pub const LOAD_PACKETS: u64 = 64;
const ANSWERED_AT: usize = QUERY_BYTES + 16;
const XDP_PASS: u32 = 2;
pub const SEED: u64 = 0x5eed;

/// Towards the tenant: `METER_IN`.
pub const IN: u32 = 0;
/// From the tenant: `METER_OUT`.
pub const OUT: u32 = 1;

/// What a packet asks.
#[derive(Clone, Copy, Debug)]
pub enum Query {
    /// Take so many bytes from a meter.
    Meter { id: u32, direction: u32, bytes: u32, now_ns: u64 },
    /// Count so many bytes for the flow of a hash.
    /// `own`: the network's threshold.
    Flow { hash: u64, bytes: u32, own: u32, now_ns: u64 },
    /// The same, but it may wait in this processor's queue; an event has the VNI `vni`.
    Enqueue { vni: u32, hash: u64, bytes: u32, now_ns: u64 },
}

impl Query {
    fn to_bytes(self) -> [u8; QUERY_BYTES] {
        let (kind, meter, direction, bytes, now_ns, hash, own) = match self {
            Self::Meter { id, direction, bytes, now_ns } => (1_u32, id, direction, bytes, now_ns, 0, 0),
            Self::Flow { hash, bytes, own, now_ns } => (2, 0, 0, bytes, now_ns, hash, own),
            Self::Enqueue { vni, hash, bytes, now_ns } => (4, vni, 0, bytes, now_ns, hash, 0),
        };
        let words = [kind, meter, direction, bytes].map(u32::to_ne_bytes).concat();
        let halves = [now_ns, hash].map(u64::to_ne_bytes).concat();
        let mut out = [0; QUERY_BYTES];
        out[..16].copy_from_slice(&words);
        out[16..32].copy_from_slice(&halves);
        out[36..40].copy_from_slice(&own.to_ne_bytes());
        out
    }
}

/// The test's programs over empty tables.
pub struct Rig {
    datapath: Datapath,
    pub meters: Meters,
    pub flows: Flows,
}

impl Rig {
    pub fn load() -> Self {
        let settings = Settings { object: ObjectName::MetersFlowsTest, cells: 0, pin_dir: None };
        let datapath = Datapath::load(&settings).expect("the verifier accepts the programs (as root)");
        let meters = Meters::lay_out(datapath.memory_of("meters").unwrap()).unwrap();
        let flows = Flows::lay_out(datapath.memory_of(FLOW_CELLS_MAP).unwrap(), SEED).unwrap();
        Self { datapath, meters, flows }
    }

    /// Each query's answer, in order: true where the packet conforms, or crosses the threshold.
    pub fn ask(&self, queries: &[Query]) -> Vec<bool> {
        let program = self.datapath.program("answer_queries").unwrap();
        let mut answers = Vec::with_capacity(queries.len());
        for batch in queries.chunks(QUERIES_MAX) {
            let data: Vec<u8> = batch.iter().flat_map(|query| query.to_bytes()).collect();
            let mut out = vec![0; data.len()];
            let input =
                ProgramInput { data_in: Some(&data), data_out: Some(&mut out), ..ProgramInput::default() };
            program.test_run(input).expect("the test program runs");
            answers.extend(out.chunks(QUERY_BYTES).map(|query| query[32] == 1));
        }
        answers
    }

    /// What crossed in queues is told here.
    pub fn events(&self) -> FlowEvents {
        self.datapath.flow_events().unwrap()
    }

    pub fn ask_one(&self, query: Query) -> bool {
        self.ask(&[query])[0]
    }

    /// `flow_hash` of a flow, by the program.
    pub fn hash(&self, key: &FlowKey) -> u64 {
        let mut data = [0; QUERY_BYTES];
        data[..4].copy_from_slice(&3_u32.to_ne_bytes());
        for (at, address) in [(40, key.source), (56, key.destination)] {
            let IpAddr::V6(v6) = (match address {
                IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
                v6 => v6,
            }) else {
                unreachable!("mapped")
            };
            let bits = u128::from(v6);
            data[at..at + 8].copy_from_slice(&((bits >> 64) as u64).to_ne_bytes());
            data[at + 8..at + 16].copy_from_slice(&(bits as u64).to_ne_bytes());
        }
        let vni_protocol = key.vni.get() << 8 | u32::from(key.protocol);
        let ports = u32::from(key.source_port) << 16 | u32::from(key.destination_port);
        data[72..76].copy_from_slice(&vni_protocol.to_ne_bytes());
        data[76..80].copy_from_slice(&ports.to_ne_bytes());
        let mut out = [0; QUERY_BYTES];
        let input =
            ProgramInput { data_in: Some(&data), data_out: Some(&mut out), ..ProgramInput::default() };
        self.datapath.program("answer_queries").unwrap().test_run(input).expect("the test program runs");
        u64::from_ne_bytes(out[24..32].try_into().unwrap())
    }

    pub fn set_clock(&self, clock: u32, now_ns: u64) {
        let map = self.datapath.map("clocks").unwrap();
        map.update(&clock.to_ne_bytes(), &now_ns.to_ne_bytes(), MapFlags::ANY).unwrap();
    }

    pub fn clock(&self, clock: u32) -> u64 {
        let value = self.datapath.map("clocks").unwrap().lookup(&clock.to_ne_bytes(), MapFlags::ANY).unwrap();
        u64::from_ne_bytes(value.unwrap().try_into().unwrap())
    }

    /// Runs `runs` times LOAD_PACKETS packets like `query` in each of so many
    /// threads at once, each packet a step of the clock after another one; how
    /// many answers were true.
    pub fn load_from_threads(
        &self,
        threads: u32,
        query: Query,
        clock: u32,
        step_ns: u64,
        runs: u32,
    ) -> Vec<u64> {
        let mut data = query.to_bytes().to_vec();
        data.extend(step_ns.to_ne_bytes());
        data.extend([clock, 0].map(u32::to_ne_bytes).concat());
        data.extend(0_u64.to_ne_bytes());
        thread::scope(|scope| {
            let run = || self.run_load(&data, runs);
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn run_load(&self, data: &[u8], runs: u32) -> u64 {
        let mut out = vec![0; data.len()];
        let input = ProgramInput {
            data_in: Some(data),
            data_out: Some(&mut out),
            repeat: runs,
            ..ProgramInput::default()
        };
        // The packet stays from run to run, so that the sum is in it.
        let output = self.datapath.program("make_load").unwrap().test_run(input).unwrap();
        assert_eq!(output.return_value, XDP_PASS);
        u64::from_ne_bytes(out[ANSWERED_AT..ANSWERED_AT + 8].try_into().unwrap())
    }
}
