//! The gateway's forwarding compared with a minimal forwarder, a reflector, the kernel's own forwarding and Open
//! vSwitch, all by the same generator, in turns. It changes with what is compared.

use crate::contender::{Contender, OTHERS, Turn, Turns};
use crate::gateway::{DETECT, EventReader, Gateway, Routes};
use crate::minimal::Minimal;
use crate::ovs::Ovs;
use crate::peers::{self, Kernel};
use crate::rig::{Program, Rig, TIMED_PACKETS};
use sluice_bench_report::shell::Failure;
use sluice_bench_report::{Better, Measure};
use sluice_types::{MacAddr, ROUTER_MAC};
use std::collections::BTreeMap;

/// Sizes of the VM-NC table.
pub const SIZES: [(u32, &str); 3] = [(2_000, "2k"), (100_000, "100k"), (1_000_000, "1m")];

/// How long and how often is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Length of a measurement.
    pub seconds: f64,
    /// Rounds; in each round every side has a turn.
    pub rounds: usize,
    /// Largest table for which the kernel and Open vSwitch are measured.
    pub peers_to: u32,
}

/// A side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    /// The gateway with one route.
    One,
    /// The gateway with a route for each VM.
    Routed,
    Minimal,
    Reflector,
    KernelOne,
    KernelEach,
    KernelNexthops,
    Ovs,
}

/// Sides in the order of their turns: what is compared is close together.
const ORDER: [Side; 8] = [
    Side::Reflector,
    Side::One,
    Side::Minimal,
    Side::KernelOne,
    Side::Ovs,
    Side::Routed,
    Side::KernelEach,
    Side::KernelNexthops,
];

/// A peer of a measure: its name in the results, and its side.
type Peer = (&'static str, Side);

/// Measures: their names, our side, and the peers.
const MEASURES: [(&str, Side, &[Peer]); 2] =
    [("gateway_mpps", Side::One, &PEERS_ONE), ("gateway_routed_mpps", Side::Routed, &PEERS_EACH)];
const PEERS_ONE: [Peer; 4] = [
    ("minimal", Side::Minimal),
    ("reflector", Side::Reflector),
    ("kernel_vxlan", Side::KernelOne),
    ("ovs_netdev", Side::Ovs),
];
const PEERS_EACH: [Peer; 3] = [
    ("reflector", Side::Reflector),
    ("kernel_vxlan", Side::KernelEach),
    ("kernel_nexthops", Side::KernelNexthops),
];

/// Packet rates of each side, round by round.
type Rates = BTreeMap<Side, Vec<f64>>;

/// Measures the sizes whose names are among `wanted`.
///
/// # Errors
/// Errors of the gateway, the tools or the kernel. A peer that cannot be set up is reported and left out.
pub fn measure(effort: Effort, wanted: &[String]) -> Result<Vec<Measure>, Failure> {
    let mut measures = Vec::new();
    for (count, name) in SIZES.into_iter().filter(|(_, name)| wanted.iter().any(|size| size == name)) {
        measures.extend(one_size(count, name, effort)?);
    }
    Ok(measures)
}

fn one_size(count: u32, size: &str, effort: Effort) -> Result<Vec<Measure>, Failure> {
    let (sides, contenders) = set_up(count, effort)?;
    let mut rates = Rates::new();
    let mut routed_ns = Vec::new();
    for round in 0..effort.rounds {
        // Every second round has the reverse order, so that no side always follows the same one.
        let mut order: Vec<Side> = ORDER.into_iter().filter(|side| sides.contains_key(side)).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            let rate = contenders[sides[&side]].measure(Turn::Mpps(effort.seconds))?;
            rates.entry(side).or_default().push(rate);
        }
        routed_ns.push(contenders[sides[&Side::Routed]].measure(Turn::Nanoseconds(TIMED_PACKETS))?);
    }
    let mut measures = compare(size, &rates);
    measures.push(over_reflector(size, &rates));
    measures.push(Measure::alone(format!("gateway_routed_ns_{size}"), "ns", &routed_ns));
    Ok(measures)
}

fn compare(size: &str, rates: &Rates) -> Vec<Measure> {
    let mut measures = Vec::new();
    for (name, ours, peers) in MEASURES {
        let name = format!("{name}_{size}");
        for &(peer, theirs) in peers {
            measures.push(match rates.get(&theirs) {
                Some(theirs) => Measure::zipped(&name, "Mpps", Better::More, &rates[&ours], (peer, theirs)),
                None => Measure::unfinished(&name, "Mpps", &rates[&ours], peer),
            });
        }
    }
    measures
}

/// What a packet takes longer through the gateway than through the reflector. The time of generator, sink and
/// interfaces, which share the core with both, cancels out.
fn over_reflector(size: &str, rates: &Rates) -> Measure {
    let both = rates[&Side::One].iter().zip(&rates[&Side::Reflector]);
    let added: Vec<f64> = both.map(|(gateway, reflector)| 1e3 / gateway - 1e3 / reflector).collect();
    Measure::alone(format!("gateway_over_reflector_ns_{size}"), "ns", &added)
}

/// Index in the list of contenders of each side that could be set up.
type Sides = BTreeMap<Side, usize>;

fn set_up(count: u32, effort: Effort) -> Result<(Sides, Vec<Contender>), Failure> {
    let mut contenders = vec![
        start_gateway(count, Routes::One)?,
        start_gateway(count, Routes::Each)?,
        start_minimal(count)?,
        Contender::start("reflector", move |turns| {
            let rig = Rig::new()?;
            rig.aim(count, 1, ROUTER_MAC.octets())?;
            serve_program(&rig, Program::Reflect, turns)
        })?,
    ];
    let mut sides =
        Sides::from([(Side::One, 0), (Side::Routed, 1), (Side::Minimal, 2), (Side::Reflector, 3)]);
    if count > effort.peers_to {
        return Ok((sides, contenders));
    }
    let kernel = |name, form| {
        Contender::start(name, move |turns: &Turns| {
            let rig = Rig::new()?;
            rig.aim(count, 1, ROUTER_MAC.octets())?;
            peers::set_up_kernel(form, count)?;
            serve_program(&rig, Program::Pass, turns)
        })
    };
    let ovs = Contender::start("ovs_netdev", move |turns| {
        let rig = Rig::new()?;
        rig.aim(count, 1, ROUTER_MAC.octets())?;
        let (dut, peer) = (
            MacAddr::new(rig.interfaces.dut_mac).to_string(),
            MacAddr::new(rig.interfaces.gen_mac).to_string(),
        );
        let _ovs = Ovs::start(count, &dut, &peer)?;
        serve_program(&rig, Program::Pass, turns)
    });
    for (side, started) in [
        (Side::KernelOne, kernel("kernel_vxlan", Kernel::OneRoute)),
        (Side::KernelEach, kernel("kernel_vxlan, routed", Kernel::RouteEach)),
        (Side::KernelNexthops, kernel("kernel_nexthops", Kernel::Nexthops)),
        (Side::Ovs, ovs),
    ] {
        match started {
            Ok(contender) => {
                sides.insert(side, contenders.len());
                contenders.push(contender);
            }
            Err(error) => eprintln!("bench-spine: left out: {error}"),
        }
    }
    Ok((sides, contenders))
}

/// The gateway as it is installed: with flow detection, and an agent that reads the events.
///
/// # Errors
/// Errors of the gateway or the kernel.
pub fn start_gateway(count: u32, routes: Routes) -> Result<Contender, Failure> {
    let name = if routes == Routes::One { "gateway" } else { "gateway, routed" };
    Contender::start(name, move |turns| {
        let rig = Rig::new()?;
        // Twice as many flows as there are, which is what an operator is told to configure.
        let gateway = Gateway::with_flows(&rig, count, routes, count * 2)?;
        gateway.count_flows(DETECT)?;
        rig.aim(count, 1, ROUTER_MAC.octets())?;
        let _reader = EventReader::start(gateway.flow_events()?, OTHERS);
        turns.serve(|turn| match turn {
            Turn::Nanoseconds(packets) => gateway.nanoseconds(&rig, packets),
            Turn::Mpps(seconds) => {
                let _link = gateway.attach(&rig)?;
                rig.mpps(seconds)
            }
        })
    })
}

/// The minimal forwarder.
///
/// # Errors
/// Errors of the kernel.
pub fn start_minimal(count: u32) -> Result<Contender, Failure> {
    Contender::start("minimal", move |turns| {
        let rig = Rig::new()?;
        let minimal = Minimal::new(&rig, count)?;
        rig.aim(count, 1, ROUTER_MAC.octets())?;
        turns.serve(|turn| match turn {
            Turn::Nanoseconds(packets) => minimal.nanoseconds(&rig, packets),
            Turn::Mpps(seconds) => {
                let _link = minimal.attach(&rig)?;
                rig.mpps(seconds)
            }
        })
    })
}

fn serve_program(rig: &Rig, program: Program, turns: &Turns) -> Result<(), Failure> {
    turns.serve(|turn| match turn {
        Turn::Mpps(seconds) => {
            let _link = rig.attach(program)?;
            rig.mpps(seconds)
        }
        other => Err(format!("{other:?} is measured of the gateway and the minimal forwarder only").into()),
    })
}
