//! The gateway's forwarding beside a reflector, the kernel's own path and Open
//! vSwitch, in one run on one generator.

use crate::gateway::{Gateway, Routes};
use crate::peers::{self, Ovs};
use crate::rig::{Program, Rig, TIMED_PACKETS};
use sluice_bench_report::shell::Failure;
use sluice_bench_report::{Measure, median};
use sluice_types::{MacAddr, ROUTER_MAC};

/// Sizes of the VM-NC table.
pub const SIZES: [(u32, &str); 3] = [(2_000, "2k"), (100_000, "100k"), (1_000_000, "1m")];

/// How long and how often.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Seconds of each round.
    pub seconds: f64,
    /// Rounds, interleaved; the median counts.
    pub rounds: usize,
    /// Largest table that the peers are given.
    pub peers_to: u32,
}

struct Figures {
    gateway: f64,
    reflector: f64,
    kernel: Option<f64>,
    ovs: Option<f64>,
    nanoseconds: f64,
    routed: f64,
}

/// Those of all sizes whose names are among `wanted`.
///
/// # Errors
/// What tools or kernel said. A peer that cannot be set up is said and left out.
pub fn measure(effort: Effort, wanted: &[String]) -> Result<Vec<Measure>, Failure> {
    let mut measures = Vec::new();
    let mut nanoseconds = Vec::new();
    for (count, name) in SIZES.into_iter().filter(|(_, name)| wanted.iter().any(|size| size == name)) {
        let figures = one_size(count, effort)?;
        let measure = format!("gateway_mpps_{name}");
        for (peer, theirs) in [
            ("reflector", Some(figures.reflector)),
            ("kernel_vxlan", figures.kernel),
            ("ovs_netdev", figures.ovs),
        ] {
            measures.push(Measure::beside(&measure, "Mpps", figures.gateway, peer, theirs));
        }
        nanoseconds.push(Measure::alone(format!("gateway_ns_{name}"), "ns", figures.nanoseconds));
        nanoseconds.push(Measure::alone(format!("gateway_routed_ns_{name}"), "ns", figures.routed));
    }
    measures.extend(nanoseconds);
    Ok(measures)
}

/// What a peer gives, or why not.
fn or_said(peer: &str, result: Result<f64, Failure>) -> Option<f64> {
    result.map_err(|error| eprintln!("{peer}: {error}")).ok()
}

/// Each size has a network namespace of its own, on a thread of its own, so
/// that nothing of one is left for the next.
fn one_size(count: u32, effort: Effort) -> Result<Figures, Failure> {
    let run = move || -> Result<Figures, Failure> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        rounds(count, effort)
    };
    std::thread::spawn(run).join().map_err(|_| "the measuring thread ended badly")?
}

fn rounds(count: u32, effort: Effort) -> Result<Figures, Failure> {
    let rig = Rig::new()?;
    let gateway = Gateway::new(&rig, count, Routes::One)?;
    let routed = Gateway::new(&rig, count, Routes::Each)?;
    rig.aim(count, 1, ROUTER_MAC.octets())?;
    let alone = |gateway: &Gateway| -> Result<f64, Failure> {
        Ok(median(
            (0..effort.rounds).map(|_| gateway.nanoseconds(&rig, TIMED_PACKETS)).collect::<Result<_, _>>()?,
        ))
    };
    let (nanoseconds, routed) = (alone(&gateway)?, alone(&routed)?);
    let with_peers = count <= effort.peers_to;
    let kernel_ready = with_peers && or_said("kernel_vxlan", peers::kernel_up(count).map(|()| 0.0)).is_some();
    let (mut ours, mut reflector, mut kernel) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        {
            let _link = rig.attach(Program::Reflect)?;
            reflector.push(rig.mpps(effort.seconds)?);
        }
        {
            let _link = gateway.attach(&rig)?;
            ours.push(rig.mpps(effort.seconds)?);
        }
        if kernel_ready {
            let _link = rig.attach(Program::Pass)?;
            kernel.push(rig.mpps(effort.seconds)?);
        }
    }
    if kernel_ready {
        peers::kernel_down()?;
    }
    let ovs = if with_peers { or_said("ovs_netdev", ovs(&rig, count, effort)) } else { None };
    Ok(Figures {
        gateway: median(ours),
        reflector: median(reflector),
        kernel: kernel_ready.then(|| median(kernel)),
        ovs,
        nanoseconds,
        routed,
    })
}

fn ovs(rig: &Rig, count: u32, effort: Effort) -> Result<f64, Failure> {
    let _ovs =
        Ovs::start(count, &MacAddr::new(rig.dut_mac).to_string(), &MacAddr::new(rig.gen_mac).to_string())?;
    let _link = rig.attach(Program::Pass)?;
    let rounds = (0..effort.rounds).map(|_| rig.mpps(effort.seconds)).collect::<Result<_, _>>()?;
    Ok(median(rounds))
}
