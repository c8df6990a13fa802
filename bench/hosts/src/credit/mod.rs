//! Elastic credit (Achelous figures 13 and 14): how high a busy VM bursts, how soon it is held at its base, and what its quiet neighbor
//! keeps. It changes with the stages and with what is compared.

mod load;

use load::{Pair, Recorded, SAMPLE, Sample, Step, play};
use serde_json::{Value, json};
use sluice_bench_report::shell::{Failure, run};
use sluice_bench_report::{Better, Measure};
use sluice_client::{Instance, NewNetworkClass};
use sluice_lab::{Lab, Options, Topology};
use sluice_types::{Allowance, NetworkClassId};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LAB: &str = "benchcredit";
const BUSY: [&str; 2] = ["busy", "to-busy"];
const QUIET: [&str; 2] = ["quiet", "to-quiet"];
const HOST: &str = "host-a";
/// Where the packets to both VMs come from.
const SENDERS: &str = "host-b";
/// A burst of 3 s, in proportion to the paper's 1000, 1500 and 1200 Mbit/s.
const ELASTIC: Allowance = Allowance { base: 160, max: 240, clamp: 192, credit: 240 };
const STATIC: Allowance = Allowance { base: 160, max: 160, clamp: 160, credit: 0 };
/// What the host is told to have, and the link by which it gets packets. Nine tenths of the first are less than what both VMs want
/// in the third stage.
const CAPACITY_MBPS: u32 = 400;
const LINK: &str = "tbf rate 450mbit burst 128kb latency 20ms";
/// The stages: both steady; the busy VM bursts until it is at its base; after a rest in which it saves, both at once.
const STEPS: [Step; 4] = [
    Step { at_ms: 0, busy_mbps: 48, quiet_mbps: 48, is_flood: false, is_timed: false },
    Step { at_ms: BURST_MS, busy_mbps: 0, quiet_mbps: 48, is_flood: true, is_timed: false },
    Step { at_ms: REST_MS, busy_mbps: 0, quiet_mbps: 48, is_flood: false, is_timed: false },
    Step { at_ms: BOTH_MS, busy_mbps: 0, quiet_mbps: 150, is_flood: true, is_timed: true },
];
const BURST_MS: u64 = 5_000;
const REST_MS: u64 = 13_000;
const BOTH_MS: u64 = 17_000;
const END_MS: u64 = 23_000;
/// TCP and the agent need some time until a stage has its rates.
const SETTLED_MS: u64 = 1_000;
const HELD_MS: u64 = 3_000;
/// Samples of the rate that a time is found by, and of the highest second.
const SMOOTHED: usize = 3;
const SECOND: usize = 10;
const PROGRAMMED: Duration = Duration::from_secs(15);
const UNLIMITED: &str = "no limits";
const PEER: &str = "static rate";
/// Sides that take turns, with the class of both VMs.
const SIDES: [(&str, Option<Allowance>); 3] =
    [("elastic", Some(ELASTIC)), (PEER, Some(STATIC)), (UNLIMITED, None)];

/// Explanation of the measurements for readers of the results.
pub const METHOD: &str = "\
`credit_*`: two VMs of a host get packets of IPv4 from two VMs of another one. Both have a network class of base 160, maximum 240 and clamp 192 Mbit/s and a
credit of 240 Mbit, in proportion to the paper's 1000, 1500 and 1200 Mbit/s. First each gets 48 Mbit/s by UDP for 5 s; then the busy one what four
connections of TCP can send, for 8 s; then it rests for 4 s, and for 6 s it gets as much again, while the quiet one gets 150 Mbit/s by UDP, which is below
its base. The link to the host has 450 Mbit/s (TBF, 20 ms), and the host is told that it has 400 (`--capacity-mbps`), so it is contended in the last stage.
Rates are of IP packets, by the counters of the VMs' interfaces each 100 ms; a large segment counts with one header.
`credit_burst_mbps`: the highest second of the busy VM's burst. `credit_clamp_s`: from the begin of the burst until its rate stays below the middle of
maximum and base; `by the class`: credit divided by what a burst takes of it in a second. `credit_base_mbps`: its mean in the last 3 s of the burst.
`credit_contended_mbps`: its mean while the host is contended, after the first second; `by the class`: the clamp. `credit_quiet_share_pct`: of the bytes that were sent
to the quiet VM in that time, those that it got. `credit_quiet_p99_us`: 99th percentile of round trips to it in that stage, one after the other, by UDP; all
VMs, hosts and senders share the machine's processors, and that is part of it. `static rate`: the same shaper without credit (base and maximum 160), which protects a
neighbor as well, but never lends what is idle. `no limits`: no classes, so that the link alone limits. All sides take turns on the same lab.";

/// How much is done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `sluice` binary that the lab runs.
    pub binary: PathBuf,
    /// Rounds, in each of which every side has all stages once.
    pub rounds: usize,
}

/// The figures of a side in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    burst_mbps: f64,
    clamp_s: f64,
    base_mbps: f64,
    contended_mbps: f64,
    quiet_share_pct: f64,
    quiet_p99_us: f64,
}

/// Measures `credit_*`. Returns the measures and the time series of the first round. That of all rounds is written to
/// `bench/out/hosts-credit.json`.
///
/// # Errors
/// Errors of the lab.
pub fn measure(settings: &Settings) -> Result<(Vec<Measure>, Vec<String>), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rounds = runtime.block_on(async {
        let mut options = Options::standard(LAB, &settings.binary)?;
        options.topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("vms.yaml"))?;
        options.topology.vms.retain(|vm| [BUSY, QUIET].concat().contains(&vm.name.as_str()));
        let outcome = match Lab::up(options).await {
            Ok(lab) => in_lab(&lab, settings.rounds).await,
            Err(error) => Err(error.into()),
        };
        sluice_lab::down(LAB).await?;
        outcome
    })?;
    let series: Vec<Value> = rounds.iter().map(|round| json!(round.each_ref().map(series))).collect();
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../out");
    std::fs::create_dir_all(&out)?;
    std::fs::write(out.join("hosts-credit.json"), serde_json::to_string(&series)?)?;
    let figures: Vec<[Figures; 3]> = rounds.iter().map(|round| round.each_ref().map(figures)).collect();
    Ok((measures(&figures), rounds.first().map(notes).unwrap_or_default()))
}

async fn in_lab(lab: &Lab, rounds: usize) -> Result<Vec<[Recorded; 3]>, Failure> {
    let mut argv = lab.process(HOST)?.argv;
    argv.push(format!("--capacity-mbps={CAPACITY_MBPS}"));
    lab.restart_with(HOST, argv).await?;
    lab.synchronized(HOST, PROGRAMMED).await?;
    run(&format!("tc -n {} qdisc replace dev eth0 root {LINK}", lab.paths().namespace(SENDERS)))?;
    let mut classes = Vec::new();
    for (name, allowance) in SIDES {
        classes.push(match allowance {
            Some(allowance) => Some(create(lab, name, allowance).await?),
            None => None,
        });
    }
    let (busy, quiet) = (pair(lab, BUSY)?, pair(lab, QUIET)?);
    let mut all = Vec::new();
    for round in 0..rounds {
        let mut sides: [Recorded; 3] = Default::default();
        for ((side, class), (name, _)) in sides.iter_mut().zip(&classes).zip(SIDES) {
            for vm in [BUSY[0], QUIET[0]] {
                set_class(lab, vm, *class).await?;
            }
            let (busy, quiet) = (busy.clone(), quiet.clone());
            let played = tokio::task::spawn_blocking(move || play(&busy, &quiet, &STEPS, END_MS));
            *side = played.await??;
            eprintln!("bench-hosts: credit, round {round}, {name}: {:.1?}", figures(side));
        }
        all.push(sides);
    }
    Ok(all)
}

fn pair(lab: &Lab, [receiver, sender]: [&str; 2]) -> Result<Pair, Failure> {
    let address = lab.vm(receiver)?.ipv4.ok_or("the VM has no IPv4 address")?.into();
    let file = |vm: &str| lab.paths().namespace_file(vm);
    Ok(Pair { receiver: file(receiver), sender: file(sender), address })
}

async fn create(lab: &Lab, name: &str, mbps: Allowance) -> Result<NetworkClassId, Failure> {
    let name = name.replace(' ', "-");
    let class = NewNetworkClass { name, mbps: Some(mbps), kpps: None, cpu_permille: None, is_default: false };
    Ok(lab.api().create((), &class).await?.object.id)
}

/// Gives a VM a class, or none, and waits until its host enforces that.
async fn set_class(lab: &Lab, vm: &str, class: Option<NetworkClassId>) -> Result<(), Failure> {
    let vm = lab.vm(vm)?;
    lab.api().update::<Instance>(vm.id, &json!({ "network_class": class }), None).await?;
    lab.api().wait_programmed::<Instance>(vm.id, PROGRAMMED).await?;
    let begun = Instant::now();
    let labels = [("interface", vm.port.as_str()), ("dimension", "received_mbps")];
    while (lab.metrics(&vm.host).await?.sum("sluice_port_limit", &labels) > 0.0) != class.is_some() {
        if begun.elapsed() > PROGRAMMED {
            return Err(format!("{} does not enforce the class {class:?} of {}", vm.host, vm.id).into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Mbit/s of each interval between samples, with its end in milliseconds.
fn rates(samples: &[Sample]) -> Vec<(u64, f64)> {
    let rate = |pair: &[Sample]| {
        let bits = pair[1].received.saturating_sub(pair[0].received) as f64 * 8.0;
        ((pair[1].at_s * 1e3) as u64, bits / 1e6 / (pair[1].at_s - pair[0].at_s).max(1e-9))
    };
    samples.windows(2).map(rate).collect()
}

/// Those of a time, of which the last interval is complete.
fn between(rates: &[(u64, f64)], from_ms: u64, to_ms: u64) -> Vec<f64> {
    let own = rates.iter().filter(|(at_ms, _)| *at_ms > from_ms && *at_ms <= to_ms);
    own.map(|(_, rate)| *rate).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn highest(values: &[f64], window: usize) -> f64 {
    values.windows(window).map(mean).fold(0.0, f64::max)
}

fn figures(recorded: &Recorded) -> Figures {
    let busy = rates(&recorded.busy);
    let burst = between(&busy, BURST_MS, REST_MS);
    let middle = f64::from(ELASTIC.base + ELASTIC.max) / 2.0;
    // The last of the smoothed rates that is above: it ends so many samples after the begin.
    let last_above = burst.windows(SMOOTHED).rposition(|rates| mean(rates) > middle);
    let clamped = last_above.map_or(0, |number| number + SMOOTHED.div_ceil(2));
    let in_stage = |sample: &&Sample| sample.at_s * 1e3 > (BOTH_MS + SETTLED_MS) as f64;
    let mut quiet = recorded.quiet.iter().filter(in_stage);
    let (first, last) = (quiet.next().copied(), quiet.next_back().copied());
    let share = first.zip(last).map_or(0.0, |(first, last)| {
        (last.received - first.received) as f64 / (last.offered - first.offered).max(1) as f64
    });
    Figures {
        burst_mbps: highest(&burst, SECOND),
        clamp_s: clamped as f64 * SAMPLE.as_secs_f64(),
        base_mbps: mean(&between(&busy, REST_MS - HELD_MS, REST_MS)),
        contended_mbps: mean(&between(&busy, BOTH_MS + SETTLED_MS, END_MS)),
        quiet_share_pct: share * 100.0,
        quiet_p99_us: percentile_99(recorded.latencies_us.clone()),
    }
}

/// The smallest value such that 99% of all are not larger; 0 without a value.
fn percentile_99(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * 0.99).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or_default()
}

fn measures(rounds: &[[Figures; 3]]) -> Vec<Measure> {
    let column = |side: usize, of: fn(&Figures) -> f64| -> Vec<f64> {
        rounds.iter().map(|round| of(&round[side])).collect()
    };
    let beside = |name: &str, unit, better, side: usize, of: fn(&Figures) -> f64| {
        Measure::zipped(name, unit, better, &column(0, of), (SIDES[side].0, &column(side, of)))
    };
    let by_class = |name: &str, unit, expected: f64, of: fn(&Figures) -> f64| {
        Measure::apart(name, unit, &column(0, of), ("by the class", &[expected]))
    };
    let burst_s = ELASTIC.credit as f64 / f64::from(ELASTIC.max - ELASTIC.base);
    vec![
        beside("credit_burst_mbps", "Mbit/s", Better::More, 1, |it| it.burst_mbps),
        by_class("credit_clamp_s", "s", burst_s, |it| it.clamp_s),
        beside("credit_base_mbps", "Mbit/s", Better::More, 1, |it| it.base_mbps),
        by_class("credit_contended_mbps", "Mbit/s", f64::from(ELASTIC.clamp), |it| it.contended_mbps),
        beside("credit_quiet_share_pct", "%", Better::More, 1, |it| it.quiet_share_pct),
        beside("credit_quiet_share_pct", "%", Better::More, 2, |it| it.quiet_share_pct),
        beside("credit_quiet_p99_us", "us", Better::Less, 1, |it| it.quiet_p99_us),
        beside("credit_quiet_p99_us", "us", Better::Less, 2, |it| it.quiet_p99_us),
    ]
}

/// The rates of both VMs by the 100 ms.
fn series(recorded: &Recorded) -> Value {
    json!({ "busy_mbps": rates(&recorded.busy), "quiet_mbps": rates(&recorded.quiet) })
}

/// The time series of all sides, by the half second.
fn notes(round: &[Recorded; 3]) -> Vec<String> {
    let listed = |samples: &[Sample]| -> String {
        let rates: Vec<f64> = rates(samples).iter().map(|(_, rate)| *rate).collect();
        let halves: Vec<String> = rates.chunks(5).map(|some| format!("{:.0}", mean(some))).collect();
        halves.join(" ")
    };
    let note = |((name, _), recorded): ((&str, Option<Allowance>), &Recorded)| {
        format!(
            "credit, {name}, Mbit/s in each half second of the first round: busy {}; quiet {}",
            listed(&recorded.busy),
            listed(&recorded.quiet)
        )
    };
    SIDES.into_iter().zip(round).map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of a VM that gets so many Mbit/s in each 100 ms.
    fn samples(rate_at: impl Fn(u64) -> u64) -> Vec<Sample> {
        let mut all = vec![Sample::default()];
        for number in 1..=END_MS / 100 {
            let before = all[all.len() - 1].received;
            let received = before + rate_at(number * 100 - 50) * 12_500;
            all.push(Sample { at_s: number as f64 / 10.0, received, offered: received * 2 });
        }
        all
    }

    /// Catches stages that are cut at the wrong times, and a share of other bytes.
    #[test]
    fn figures_are_of_their_stages() {
        let busy = |at_ms: u64| match at_ms {
            BURST_MS..8_000 => 240,
            8_000..REST_MS => 160,
            BOTH_MS..18_000 => 300,
            18_000.. => 192,
            _ => 0,
        };
        let latencies_us = (1..=100).map(f64::from).collect();
        let quiet = samples(|at_ms| if at_ms < BOTH_MS { 0 } else { 150 });
        let found = figures(&Recorded { busy: samples(busy), quiet, latencies_us });
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-6;
        assert!(near(found.burst_mbps, 240.0) && near(found.base_mbps, 160.0), "{found:?}");
        assert!((2.8..=3.2).contains(&found.clamp_s), "{found:?}");
        assert!(near(found.contended_mbps, 192.0), "{found:?}");
        assert!(near(found.quiet_share_pct, 50.0) && near(found.quiet_p99_us, 99.0), "{found:?}");
    }
}
