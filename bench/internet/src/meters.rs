//! How exactly a meter limits what VMs send, beside the limits of the kernel. It changes with what is limited, and by which peer.

use crate::gateway::{Edge, Public};
use crate::kernel;
use crate::rig::{Order, Rig, Sessions};
use nix::time::{ClockId, clock_gettime};
use sluice_bench_report::shell::{Failure, feed, run};
use sluice_bench_report::{Better, Measure};
use sluice_bench_spine::contender::{Contender, Turns};
use sluice_types::{MacAddr, MeterLimit, ROUTER_MAC};
use std::time::{Duration, Instant};

/// Bytes of a packet with its tunnel, and at rates above 1 Gbit/s, for which one core cannot forward enough of these.
const BYTES: [usize; 2] = [1500, 3000];
/// What the IP packet that leaves has less, and its frame.
const WITHOUT_TUNNEL: u64 = 64;
const ETHERNET: u64 = 14;
/// Of all interfaces.
const MTU: u32 = 3400;
const FLOWS: Sessions = Sessions { vms: 100, ports: 50, remotes: 2 };
/// Rates in kbit/s, and their names in measures.
const RATES: [(u64, &str); 4] = [(10_000, "10m"), (100_000, "100m"), (1_000_000, "1g"), (10_000_000, "10g")];
/// Time in which a burst passes at the rate, and the least burst in bytes.
const BURST_MS: u64 = 50;
const BURST_MIN: u64 = 16 << 10;
/// Time in which bursts are used up, and time of a measurement.
const WARM_UP: Duration = Duration::from_millis(300);
const SECOND: Duration = Duration::from_secs(1);
/// Packets that are sent between two looks at the time.
const FRAMES: u32 = 1 << 14;
/// What differs by less counts as this, because the ratio of differences would have no meaning.
const LEAST_PERCENT: f64 = 0.001;

fn burst(kbps: u64) -> u64 {
    (kbps * BURST_MS / 8).max(BURST_MIN)
}

/// Bytes of the packets that are sent at a rate.
fn bytes_at(kbps: u64) -> usize {
    BYTES[usize::from(kbps > 1_000_000)]
}

/// A rig for long packets.
fn rig() -> Result<Rig, Failure> {
    let rig = Rig::new()?;
    for interface in ["gen", "dut", "out", "web"] {
        run(&format!("ip link set {interface} mtu {MTU}"))?;
    }
    Ok(rig)
}

/// Sends as fast as possible. Returns by how many percent what leaves differs from the rate, if an IP packet counts with so many bytes
/// more. Fails if not more than the rate is offered.
fn error_percent(rig: &Rig, kbps: u64, more: u64) -> Result<f64, Failure> {
    let length = bytes_at(kbps);
    let bytes = length as u64 - WITHOUT_TUNNEL + more;
    let offer = |time: Duration| -> Result<(f64, u64, u64), Failure> {
        let (before, start, mut sent) = (rig.arrived()?.outside, Instant::now(), 0);
        while start.elapsed() < time {
            rig.send_long(length, FRAMES)?;
            sent += u64::from(FRAMES);
        }
        Ok((start.elapsed().as_secs_f64(), rig.arrived()?.outside - before, sent))
    };
    offer(WARM_UP)?;
    let (seconds, left, sent) = offer(SECOND)?;
    let right = kbps as f64 * 1000.0 / 8.0 / bytes as f64 * seconds;
    if (sent as f64) < right * 1.1 {
        return Err(format!("only {sent} packets were offered, of which {right:.0} may leave").into());
    }
    Ok(((left as f64 / right - 1.0).abs() * 100.0).max(LEAST_PERCENT))
}

/// A gateway whose VMs share a meter. A turn is a rate in kbit/s.
fn sluice() -> Result<Contender<u64>, Failure> {
    Contender::start("meter", |turns: &Turns<u64>| {
        let rig = rig()?;
        let mut edge = Edge::new(&rig, Public::Own, FLOWS)?;
        turns.serve(|kbps| {
            rig.aim_long(bytes_at(kbps), FLOWS, Order::Random, ROUTER_MAC)?;
            let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos();
            let limit = MeterLimit { rate_kbps: kbps, burst_bytes: burst(kbps) };
            edge.limit(limit, u64::try_from(now)?)?;
            let _links = edge.attach(&rig)?;
            error_percent(&rig, kbps, 0)
        })
    })
}

/// A kernel that forwards the same packets, and limits them.
fn kernel(
    name: &'static str,
    limit: fn(u64) -> Result<(), Failure>,
    more: u64,
) -> Result<Contender<u64>, Failure> {
    Contender::start(name, move |turns: &Turns<u64>| {
        let rig = rig()?;
        let router: MacAddr = sluice_bench_spine::peers::ROUTER.parse()?;
        kernel::forward(FLOWS.vms)?;
        turns.serve(|kbps| {
            rig.aim_long(bytes_at(kbps), FLOWS, Order::Random, router)?;
            limit(kbps)?;
            let _links = rig.pass()?;
            error_percent(&rig, kbps, more)
        })
    })
}

fn limit_by_nft(kbps: u64) -> Result<(), Failure> {
    let (rate, burst) = (kbps * 1000 / 8, burst(kbps));
    let ruleset = format!(
        "table ip limits
        delete table ip limits
        table ip limits {{
            chain out {{
                type filter hook forward priority filter; policy accept;
                oifname \"out\" limit rate over {rate} bytes/second burst {burst} bytes drop
            }}
        }}
        "
    );
    feed("nft -f -", &ruleset)
}

fn limit_by_tbf(kbps: u64) -> Result<(), Failure> {
    let burst = burst(kbps);
    run(&format!("tc qdisc replace dev out root tbf rate {kbps}kbit burst {burst} limit {burst}")).map(drop)
}

/// Measures `meter_error_pct` of each rate, beside both peers. A rate that this machine cannot offer is left out, with a message.
///
/// # Errors
/// Errors of the datapath, the tools or the kernel.
pub fn errors(rounds: usize) -> Result<Vec<Measure>, Failure> {
    let ours = sluice()?;
    let peers = [
        ("nft limit", kernel("nft limit", limit_by_nft, 0)?),
        ("tbf", kernel("tbf", limit_by_tbf, ETHERNET)?),
    ];
    let mut measures = Vec::new();
    for (kbps, name) in RATES {
        for (peer, theirs) in &peers {
            let pairs: Result<Vec<(f64, f64)>, Failure> =
                (0..rounds).map(|_| Ok((ours.measure(kbps)?, theirs.measure(kbps)?))).collect();
            match pairs {
                Ok(pairs) => {
                    let measure = format!("meter_error_pct_{name}");
                    measures.push(Measure::compared(measure, "%", Better::Less, peer, &pairs));
                }
                Err(error) => eprintln!("bench-internet: {name} beside {peer}: {error}"),
            }
        }
    }
    Ok(measures)
}
