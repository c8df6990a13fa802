//! Packet rate of the gateway's program on one core and on two cores at once (Zeta figure 11). It changes with the
//! number of cores that machines have.

use crate::contender::OTHERS;
use crate::forward::{Effort, SIZES};
use crate::gateway::{DETECT, EventReader, Gateway, Routes};
use crate::rig::{Rig, TIMED_PACKETS};
use sluice_bench_report::shell::Failure;
use sluice_bench_report::{Better, Measure, stay_on};
use sluice_types::ROUTER_MAC;
use std::os::fd::AsFd;
use std::sync::Barrier;

/// Cores that run the program at once.
const CORES: usize = 2;

/// Measures `gateway_two_cores_*` compared with one core.
///
/// # Errors
/// Errors of the gateway or the kernel, such as a missing second core.
pub fn measure(effort: Effort, wanted: &[String]) -> Result<Vec<Measure>, Failure> {
    let mut measures = Vec::new();
    for (count, name) in SIZES.into_iter().filter(|(_, name)| wanted.iter().any(|size| size == name)) {
        let work = move || one_size(count, effort);
        let inside = move || -> Result<Vec<(f64, f64)>, Failure> {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
            work()
        };
        let pairs = std::thread::spawn(inside).join().map_err(|_| "the measuring thread panicked")??;
        measures.push(Measure::compared(
            format!("gateway_two_cores_{name}"),
            "Mpps",
            Better::More,
            "one core",
            &pairs,
        ));
    }
    Ok(measures)
}

/// Pairs of the rate of both cores together, and the mean rate of each core alone. In each round one core is
/// measured alone before both and the other one after, and in the next round in the reverse order.
fn one_size(count: u32, effort: Effort) -> Result<Vec<(f64, f64)>, Failure> {
    let rig = Rig::new()?;
    let gateway = Gateway::with_flows(&rig, count, Routes::One, count * 2)?;
    gateway.count_flows(DETECT)?;
    let _reader = EventReader::start(gateway.flow_events()?, OTHERS);
    let (program, interfaces) = (gateway.program()?, rig.interfaces);
    let barrier = Barrier::new(CORES);
    let run = |core: usize| -> Vec<Result<(f64, f64), Failure>> {
        // Timed runs of two threads need two rigs, because the program to be measured is in a map of the rig.
        let ready = || -> Result<Rig, Failure> {
            stay_on(core)?;
            let rig = Rig::over(interfaces)?;
            rig.aim(count, 1, ROUTER_MAC.octets())?;
            Ok(rig)
        };
        let rig = ready();
        let rate = || match &rig {
            Ok(rig) => Ok(1e3 / rig.nanoseconds(program.as_fd(), TIMED_PACKETS)?),
            Err(error) => Err(Failure::from(error.to_string())),
        };
        // A thread that failed passes all barriers, because the other one waits there.
        let turn = |is_mine: bool| {
            barrier.wait();
            if is_mine { rate() } else { Ok(0.0) }
        };
        let round = |round: usize| {
            let is_first = core == round % CORES;
            let (before, together, after) = (turn(is_first), turn(true), turn(!is_first));
            Ok((together?, before? + after?))
        };
        (0..effort.rounds).map(round).collect()
    };
    let per_core = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..CORES).map(|core| scope.spawn(move || run(core))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.collect::<Result<Vec<_>, _>>().map_err(|_| "the thread of a core panicked")
    })?;
    let mut pairs = vec![(0.0, 0.0); effort.rounds];
    for rounds in per_core {
        for (pair, round) in pairs.iter_mut().zip(rounds) {
            let (together, alone) = round?;
            *pair = (pair.0 + together, pair.1 + alone / CORES as f64);
        }
    }
    Ok(pairs)
}
