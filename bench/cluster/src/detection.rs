//! What flow detection costs the gateway's program (Zeta figures 8 and 9).

use crate::{Failure, Outcome, Settings};
use sluice_bench_report::{Measure, median, stay_on};
use sluice_bench_spine::gateway::{Gateway, Routes};
use sluice_bench_spine::rig::{Rig, TIMED_PACKETS};
use sluice_tables::flows::{FlowConfig, Policy};
use sluice_types::ROUTER_MAC;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::spawn;
use std::time::Duration;

/// Destinations and flows to each: the paper's numbers of entries, and on to ten million.
const CASES: [(u32, u32, &str); 5] = [
    (2_000, 1, "2k"),
    (100_000, 1, "100k"),
    (2_000, 50, "100k_to_2k"),
    (2_000, 500, "1m_to_2k"),
    (2_000, 5_000, "10m_to_2k"),
];
/// Those that the paper's figures have.
const PAPER: [&str; 2] = ["2k", "100k"];
const SECONDS: f64 = 0.25;
/// Pairs of measurements without and with detection in each round. They are short and many, so that other work
/// of the machine affects both measurements of a pair, or few pairs.
const PAIRS: usize = 16;
/// Who forwards and who reads events have a core each: whoever moves between them finds none of its memory in a cache.
const FORWARDS: usize = 1;
const READS: usize = 0;
/// The default: 20 kbit/s for a second.
const DETECT: Policy = Policy::Detect(FlowConfig { period: Duration::from_secs(1), elephant_bytes: 2_500 });

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
    /// The figures of a small size are not compared, so it is enough that both sides are measured.
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

/// The same without and with detection, in turns.
struct Case {
    without: Rates,
    with: Rates,
    elephants: usize,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let mut worst = f64::MIN;
    for (destinations, flows_each, name) in CASES {
        let flows_each = if flows_each == 1 { 1 } else { (flows_each / settings.scale as u32).max(2) };
        let destinations = if flows_each == 1 { destinations / settings.scale as u32 } else { destinations };
        let effort = Effort::of(settings);
        let case = in_namespace(move || one_case(destinations, flows_each, effort))?;
        let Case { without, with, elephants } = case;
        let cost = median(
            without
                .mpps
                .iter()
                .zip(&with.mpps)
                .map(|(without, with)| (1.0 - with / without) * 100.0)
                .collect(),
        );
        let (without_mpps, with_mpps) = (median(without.mpps), median(with.mpps));
        if PAPER.contains(&name) {
            worst = worst.max(cost);
        }
        let added = median(with.ns.iter().zip(&without.ns).map(|(with, without)| with - without).collect());
        outcome.note(format!(
            "detection, {} flows to {destinations} destinations: {with_mpps:.3} Mpps with {elephants} elephants told, \
             without {without_mpps:.3}",
            destinations * flows_each
        ));
        outcome.measures.push(Measure::alone(format!("detection_cost_{name}_pct"), "%", cost));
        outcome.measures.push(Measure::alone(format!("detection_{name}_ns"), "ns", added));
    }
    outcome.measures.push(Measure::alone("detection_cost_pct", "%", worst));
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
    stay_on(FORWARDS)?;
    let rig = Rig::new()?;
    // Twice as many as there are: what an operator is told to give.
    let gateway = Gateway::with_flows(&rig, destinations, Routes::One, destinations * flows_each * 2)?;
    rig.aim(destinations, flows_each, ROUTER_MAC.octets())?;
    let end = Arc::new(AtomicBool::new(false));
    let ending = end.clone();
    let mut events = gateway.flow_events()?;
    let reader = spawn(move || -> Result<usize, Failure> {
        stay_on(READS)?;
        let (mut seen, mut batch) = (0, Vec::new());
        while !ending.load(Ordering::Relaxed) {
            events.drain(&mut batch)?;
            seen += batch.len();
            batch.clear();
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(seen)
    });
    let (mut without, mut with) = (Rates::default(), Rates::default());
    for _ in 0..effort.rounds {
        in_turns(
            effort.pairs,
            |policy| gateway.count_flows(policy),
            || gateway.nanoseconds(&rig, effort.timed_packets),
            [&mut without.ns, &mut with.ns],
        )?;
        let _link = gateway.attach(&rig)?;
        in_turns(
            effort.pairs,
            |policy| gateway.count_flows(policy),
            || rig.mpps(effort.seconds),
            [&mut without.mpps, &mut with.mpps],
        )?;
    }
    end.store(true, Ordering::Relaxed);
    let elephants = reader.join().map_err(|_| "the reader of events panicked")??;
    Ok(Case { without, with, elephants })
}

/// Measures pairs without and with detection, each pair in the other order than the one before: whoever comes
/// second has no advantage.
fn in_turns(
    pairs: usize,
    set: impl Fn(Policy) -> Result<(), Failure>,
    measure: impl Fn() -> Result<f64, Failure>,
    [without, with]: [&mut Vec<f64>; 2],
) -> Result<(), Failure> {
    for turn in 0..pairs {
        let mut sides = [(Policy::Off, &mut *without), (DETECT, &mut *with)];
        if turn % 2 == 1 {
            sides.reverse();
        }
        for (policy, found) in sides {
            set(policy)?;
            found.push(measure()?);
        }
    }
    Ok(())
}
