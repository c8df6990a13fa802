//! What each stage of the gateway's fast path costs: nanoseconds, and instructions of which the kernel's verifier and
//! processor see. Measured by programs that end after a stage (`bpf/include/gateway/stage_end.h`), each of which
//! is compared with the one that ends a stage earlier. It changes with the stages.

use crate::contender::FORWARDS;
use crate::forward::{Effort, SIZES};
use crate::gateway::{DETECT, Gateway, Routes};
use crate::rig::{self, Aligned, Rig};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions, ProgramInfo};
use libbpf_rs::{Object, ObjectBuilder, Program};
use sluice_bench_report::shell::Failure;
use sluice_bench_report::{Measure, stay_on};
use sluice_types::ROUTER_MAC;
use std::os::fd::{AsFd, BorrowedFd};

macro_rules! stage {
    ($name:literal, $number:literal) => {{
        static OBJECT: &Aligned<[u8]> =
            &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/stage-", $number, ".bpf.o")));
        ($name, &OBJECT.0)
    }};
}

/// Name of the program in each object.
const PROGRAM: &str = "gateway";
/// Packets of a timed run.
const PACKETS: u32 = 500_000;

/// Names of the stages, and the object that ends after each. The first has only the call and the lookups of what all
/// packets need, and the functions that count sampled packets, which it does not call. The last is the whole fast path.
fn objects() -> [(&'static str, &'static [u8]); 8] {
    [
        stage!("begin", "0"),
        stage!("parse", "1"),
        stage!("admit", "2"),
        stage!("route", "3"),
        stage!("endpoint", "4"),
        stage!("next_hop", "5"),
        stage!("rewrite", "6"),
        stage!("count_send", "7"),
    ]
}

/// Instructions of a program, or of a stage of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// BPF instructions, which do not depend on the kernel.
    pub instructions: u32,
    /// Instructions that the kernel's verifier processed.
    pub verified: u32,
    /// Bytes of machine code.
    pub bytes: u32,
}

/// A program that ends after a stage.
struct Stage {
    name: &'static str,
    object: Object,
}

impl Stage {
    /// Loads the program, with the maps of `gateway`.
    fn load(name: &'static str, bytes: &[u8], gateway: &Gateway) -> Result<Self, Failure> {
        let mut open = ObjectBuilder::default().name(name)?.open_memory(bytes)?;
        for mut map in open.maps_mut() {
            map.reuse_fd(gateway.map(&map.name().to_string_lossy())?.as_fd())?;
        }
        Ok(Self { name, object: open.load()? })
    }

    fn cost(&self) -> Result<Cost, Failure> {
        let program = rig::program(&self.object, PROGRAM)?;
        cost_of(u32::try_from(program.insns().len())?, program.as_fd())
    }

    fn nanoseconds(&self, rig: &Rig) -> Result<f64, Failure> {
        rig.nanoseconds(rig::program(&self.object, PROGRAM)?.as_fd(), PACKETS)
    }
}

fn cost_of(instructions: u32, program: BorrowedFd<'_>) -> Result<Cost, Failure> {
    let info = info(program)?;
    Ok(Cost { instructions, verified: info.verified_insns, bytes: info.jited_func_lens.iter().sum() })
}

fn info(program: BorrowedFd<'_>) -> Result<ProgramInfo, Failure> {
    let id = Program::id_from_fd(program)?;
    let options = ProgInfoQueryOptions::default().include_jited_func_lens(true);
    let found = ProgInfoIter::with_query_opts(options).find(|info| info.id == id);
    found.ok_or_else(|| "the kernel has no information about a program".into())
}

fn load_all(gateway: &Gateway) -> Result<Vec<Stage>, Failure> {
    objects().into_iter().map(|(name, bytes)| Stage::load(name, bytes, gateway)).collect()
}

/// What each stage adds to the one before it. The stages of a program that ends early may be compiled to fewer
/// instructions than the whole program has for them, so a stage can have less than 0, which counts as 0.
fn added(stages: &[Stage]) -> Result<Vec<(&'static str, Cost)>, Failure> {
    let mut before = Cost { instructions: 0, verified: 0, bytes: 0 };
    let mut costs = Vec::new();
    for stage in stages {
        let all = stage.cost()?;
        let cost = Cost {
            instructions: all.instructions.saturating_sub(before.instructions),
            verified: all.verified.saturating_sub(before.verified),
            bytes: all.bytes.saturating_sub(before.bytes),
        };
        costs.push((stage.name, cost));
        before = all;
    }
    Ok(costs)
}

/// Costs of the stages, in their order. Creates interfaces in the network namespace of the thread.
///
/// # Errors
/// Errors of the gateway or the kernel.
pub fn costs() -> Result<Vec<(&'static str, Cost)>, Failure> {
    let rig = Rig::new()?;
    let gateway = Gateway::with_flows(&rig, 1, Routes::One, 0)?;
    added(&load_all(&gateway)?)
}

fn whole(gateway: &Gateway) -> Result<Cost, Failure> {
    cost_of(gateway.instructions()?, gateway.program()?.as_fd())
}

/// Measures `stage_*` of the sizes whose names are among `wanted`, and `machine_code_*`.
///
/// # Errors
/// Errors of the gateway or the kernel.
pub fn measure(effort: Effort, wanted: &[String]) -> Result<Vec<Measure>, Failure> {
    let sizes = SIZES.into_iter().filter(|(_, name)| wanted.iter().any(|size| size == name));
    let sizes: Vec<_> = sizes.collect();
    let work = move || -> Result<Vec<Measure>, Failure> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        stay_on(FORWARDS)?;
        let rig = Rig::new()?;
        let mut measures = Vec::new();
        for (number, (count, size)) in sizes.into_iter().enumerate() {
            let gateway = Gateway::with_flows(&rig, count, Routes::One, count * 2)?;
            rig.aim(count, 1, ROUTER_MAC.octets())?;
            gateway.count_flows(DETECT)?;
            let stages = load_all(&gateway)?;
            if number == 0 {
                measures.extend(sizes_of_code(&stages, &gateway)?);
            }
            measures.extend(times(&rig, size, &stages, effort.rounds)?);
        }
        Ok(measures)
    };
    std::thread::spawn(work).join().map_err(|_| "the measuring thread panicked")?
}

fn sizes_of_code(stages: &[Stage], gateway: &Gateway) -> Result<Vec<Measure>, Failure> {
    let mut measures = Vec::new();
    for (name, cost) in added(stages)? {
        measures.push(Measure::computed(format!("stage_{name}_verified"), "insns", cost.verified.into()));
        measures.push(Measure::computed(format!("stage_{name}_bytes"), "bytes", cost.bytes.into()));
    }
    let fast = stages.last().ok_or("there are no stages")?.cost()?;
    for (name, cost) in [("fast_path", fast), ("gateway", whole(gateway)?)] {
        measures.push(Measure::computed(format!("machine_code_{name}"), "bytes", cost.bytes.into()));
    }
    Ok(measures)
}

fn times(rig: &Rig, size: &str, stages: &[Stage], rounds: usize) -> Result<Vec<Measure>, Failure> {
    let mut added = vec![Vec::new(); stages.len()];
    for _ in 0..rounds {
        let mut before = 0.0;
        for (stage, added) in stages.iter().zip(&mut added) {
            let all = stage.nanoseconds(rig)?;
            added.push(all - before);
            before = all;
        }
    }
    let measures = stages.iter().zip(added);
    Ok(measures
        .map(|(stage, added)| Measure::alone(format!("stage_{}_ns_{size}", stage.name), "ns", &added))
        .collect())
}
