//! What flow detection costs the gateway's program (Zeta figures 8 and 9). It changes with how flows are counted.

use crate::{Failure, Outcome, Settings};
use sluice_bench_report::{Better, Measure, median, stay_on};
use sluice_bench_spine::contender::{FORWARDS, OTHERS};
use sluice_bench_spine::gateway::{DETECT, EventReader, Gateway, Routes};
use sluice_bench_spine::rig::{Rig, TIMED_PACKETS};
use sluice_tables::flows::Policy;
use sluice_types::ROUTER_MAC;
use std::cell::Cell;
use std::thread::spawn;
use std::time::Instant;

/// Destinations and flows to each: the paper's numbers of entries, and up to ten million flows.
const CASES: [(u32, u32, &str); 5] = [
    (2_000, 1, "2k"),
    (100_000, 1, "100k"),
    (2_000, 50, "100k_to_2k"),
    (2_000, 500, "1m_to_2k"),
    (2_000, 5_000, "10m_to_2k"),
];
/// The cases of the paper's figures.
const PAPER: [&str; 2] = ["2k", "100k"];
/// Elephants of a busy gateway at any time: in the paper's largest burst (section VIII-C.1) 10,000 video flows begin
/// within 10 s, which is 1,000 new elephants a second if one gateway gets them all. Here the flows get no direct
/// path, so these 1,000 are reported every second.
const ELEPHANTS: u32 = 1_000;
const SECONDS: f64 = 0.25;
/// Pairs of measurements without and with detection in each round. They are short and many, so that other work
/// of the machine affects both measurements of a pair, or few pairs.
const PAIRS: usize = 4;

/// How long and how often is measured.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    /// Pairs of each round.
    pairs: usize,
    /// Length of a measurement of the packet rate.
    seconds: f64,
    /// Packets of a measurement of the program alone.
    timed_packets: u32,
}

impl Effort {
    /// Figures of a small size are not compared, so it is enough that both sides are measured.
    fn of(settings: &Settings) -> Self {
        Self {
            rounds: settings.rounds,
            pairs: if settings.scale > 1 { 2 } else { PAIRS },
            seconds: SECONDS / settings.scale as f64,
            timed_packets: TIMED_PACKETS / settings.scale as u32,
        }
    }
}

/// Millions of packets a second, and nanoseconds of the program a packet.
#[derive(Default)]
struct Rates {
    mpps: Vec<f64>,
    ns: Vec<f64>,
}

/// Results without and with detection; those with the same index are a pair.
struct Case {
    without: Rates,
    with: Rates,
    /// Elephants that were reported, a second of the time with detection.
    elephants_per_s: f64,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let mut worst: Option<Vec<f64>> = None;
    for (destinations, flows_each, name) in CASES {
        let flows_each = if flows_each == 1 { 1 } else { (flows_each / settings.scale as u32).max(2) };
        let destinations = if flows_each == 1 { destinations / settings.scale as u32 } else { destinations };
        let effort = Effort::of(settings);
        let case = in_namespace(move || one_case(destinations, flows_each, effort))?;
        let Case { without, with, elephants_per_s } = case;
        let both = || without.mpps.iter().zip(&with.mpps);
        let cost: Vec<f64> = both().map(|(without, with)| (1.0 - with / without) * 100.0).collect();
        let added: Vec<f64> = with.ns.iter().zip(&without.ns).map(|(with, without)| with - without).collect();
        outcome.note(format!(
            "detection, {} flows to {destinations} destinations: {elephants_per_s:.0} elephants reported a second",
            destinations * flows_each
        ));
        outcome.measures.push(Measure::zipped(
            format!("detection_{name}_mpps"),
            "Mpps",
            Better::More,
            &with.mpps,
            ("without detection", &without.mpps),
        ));
        outcome.measures.push(Measure::alone(format!("detection_cost_{name}_pct"), "%", &cost));
        outcome.measures.push(Measure::alone(format!("detection_{name}_ns"), "ns", &added));
        let is_worse = |known: &Vec<f64>| median(cost.clone()) > median(known.clone());
        if PAPER.contains(&name) && worst.as_ref().is_none_or(is_worse) {
            worst = Some(cost);
        }
    }
    outcome.measures.push(Measure::alone("detection_cost_pct", "%", &worst.unwrap_or_default()));
    Ok(())
}

/// Each rig has its own interfaces and addresses.
fn in_namespace<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let inside = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        work()
    };
    spawn(inside).join().map_err(|_| "the measuring thread ended badly")?
}

fn one_case(destinations: u32, flows_each: u32, effort: Effort) -> Result<Case, Failure> {
    // The program and the reader of events have a core each. A thread that moves to another core finds none of
    // its memory in the cache.
    stay_on(FORWARDS)?;
    let rig = Rig::new()?;
    // Twice as many flows as there are, which is what an operator is told to configure.
    let gateway = Gateway::with_flows(&rig, destinations, Routes::One, destinations * flows_each * 2)?;
    rig.aim_with_elephants(destinations, flows_each, ROUTER_MAC.octets(), ELEPHANTS.min(destinations))?;
    let reader = EventReader::start(gateway.flow_events()?, OTHERS);
    let detecting = Cell::new(0.0);
    let set = |policy| gateway.count_flows(policy);
    let (mut without, mut with) = (Rates::default(), Rates::default());
    for _ in 0..effort.rounds {
        let _link = gateway.attach(&rig)?;
        let rate = |policy| {
            let start = Instant::now();
            let rate = rig.mpps(effort.seconds);
            if policy != Policy::Off {
                detecting.set(detecting.get() + start.elapsed().as_secs_f64());
            }
            rate
        };
        in_turns(effort.pairs, set, rate, [&mut without.mpps, &mut with.mpps])?;
    }
    let elephants_per_s = reader.seen() as f64 / detecting.get();
    for _ in 0..effort.rounds {
        let time = |_| gateway.nanoseconds(&rig, effort.timed_packets);
        in_turns(effort.pairs, set, time, [&mut without.ns, &mut with.ns])?;
    }
    reader.stop()?;
    Ok(Case { without, with, elephants_per_s })
}

/// Measures pairs without and with detection. Each pair has the reverse order of the one before, so that neither
/// side has the advantage of being second.
fn in_turns(
    pairs: usize,
    set: impl Fn(Policy) -> Result<(), Failure>,
    measure: impl Fn(Policy) -> Result<f64, Failure>,
    [without, with]: [&mut Vec<f64>; 2],
) -> Result<(), Failure> {
    for turn in 0..pairs {
        let mut sides = [(Policy::Off, &mut *without), (DETECT, &mut *with)];
        if turn % 2 == 1 {
            sides.reverse();
        }
        for (policy, found) in sides {
            set(policy)?;
            found.push(measure(policy)?);
        }
    }
    Ok(())
}
