//! Gateways that fail under traffic (Zeta figure 22): probes are sent every half millisecond and captured at the
//! destination's host, with the announcements of the new owner. It changes with how gateways fail.

use crate::cloud::{percentile, sinks, with_lab};
use crate::wire::{Capture, Frame, Frames, inside, now_ns, sleep_until};
use crate::{Failure, Outcome, Settings};
use sluice_bench_report::{Better, Measure};
use sluice_client::Gateway;
use sluice_lab::Lab;
use sluice_types::VpcId;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

/// Kills in each lab.
const KILLS: usize = 10;
const PROBE_EVERY: Duration = Duration::from_micros(500);
const EVERY_MS: f64 = 0.5;
/// A stream of probes that ends this much earlier than they were sent has not recovered.
const UNFINISHED_MS: f64 = 100.0;
const PROBE_BYTES: usize = 64;
const PORT: u16 = 7001;
const SWITCH: &str = "tor-1";
/// Time of probes before and after a kill.
const CALM: Duration = Duration::from_millis(300);
/// Time limit for a gateway that was killed to be ready again.
const RETURN_MAX: Duration = Duration::from_secs(20);
/// Time in which `ip` starts and waits for its input.
const COMMAND_START: Duration = Duration::from_millis(50);
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// An offload threshold that no flow reaches.
const NEVER: u32 = u32::MAX;

/// What one kill cost, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gap {
    /// From the kill to the first probe after which none is lost.
    from_kill: f64,
    /// Number of lost probes times their interval, as the paper counts.
    lost: f64,
    /// From the first announcement of a new owner to the next probe.
    pure: f64,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let kills = (KILLS / settings.scale).max(3);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // One lab at a time, so that the two do not share the processors.
    for _ in 0..settings.rounds {
        ours.push(one_lab(settings, None, kills)?);
        theirs.push(one_lab(settings, Some("gwzone"), kills)?);
    }
    outcome.note(format!(
        "failover: {} kills in each of {} labs of each model; worst: of the kills of a lab",
        kills, settings.rounds
    ));
    for (name, of) in [
        ("total", (|gap| gap.from_kill) as fn(&Gap) -> f64),
        ("lost", |gap| gap.lost),
        ("pure", |gap| gap.pure),
    ] {
        for (suffix, part) in [("p50", 0.5), ("worst", 1.0)] {
            let part_of = |labs: &[Vec<Gap>]| -> Vec<f64> {
                labs.iter()
                    .map(|gaps| percentile(&mut gaps.iter().map(of).collect::<Vec<f64>>(), part))
                    .collect()
            };
            let name = format!("failover_{name}_ms_{suffix}");
            let (ours, theirs) = (part_of(&ours), part_of(&theirs));
            outcome.measures.push(match name.starts_with("failover_pure") {
                // GWZone announces nothing.
                true => Measure::alone(name, "ms", &ours),
                false => Measure::zipped(name, "ms", Better::Less, &ours, ("gwzone", &theirs)),
            });
        }
    }
    Ok(())
}

/// What the kills of a new lab under a model cost.
fn one_lab(settings: &Settings, model: Option<&str>, kills: usize) -> Result<Vec<Gap>, Failure> {
    with_lab(settings, model, async move |lab| {
        let vpc: VpcId = lab.vpc("web")?.id;
        let never = serde_json::json!({ "offload_kbps": NEVER });
        lab.api().update::<sluice_client::Vpc>(vpc, &never, None).await?;
        let to = sinks(&lab, "probe", 1).await?;
        let to = *to.first().ok_or("no instance to probe")?;
        // A switch that floods packets to unknown MACs hides the failure, because all gateways forward them.
        for place in 0..lab.state().topology.gateways.len() {
            on_switch(&lab, &["bridge", "link", "set", "dev", &format!("p{place}"), "flood", "off"]).await?;
        }
        let mut gaps = Vec::new();
        for _ in 0..kills {
            gaps.push(one_kill(&lab, to).await?);
        }
        Ok(gaps)
    })
}

/// Kills the gateway that carries the probes as if its machine had failed: its link and its agent.
async fn one_kill(lab: &Lab, to: Ipv4Addr) -> Result<Gap, Failure> {
    let capture = Capture::start(lab, "host-b")?;
    let end = Arc::new(AtomicBool::new(false));
    let ending = end.clone();
    let sender = inside(lab, "web-1", move || probe(to, &ending, CALM * 2 + SILENCE_MAX));
    tokio::time::sleep(CALM).await;
    let (carrier, port) = carrier(lab, to).await?;
    let killed_ns = cut_link(lab, &port).await?;
    lab.kill(&carrier).await?;
    tokio::time::sleep(CALM).await;
    end.store(true, Ordering::Relaxed);
    let sent =
        tokio::task::spawn_blocking(move || sender.join().map_err(|_| "the prober panicked")?).await??;
    let frames = capture.frames()?;
    on_switch(lab, &["ip", "link", "set", &port, "up"]).await?;
    lab.restart(&carrier)?;
    lab.synchronized(&carrier, Duration::from_secs(20)).await?;
    all_ready(lab).await?;
    // A gateway whose stream is connected listens for some milliseconds before it may take over anything.
    tokio::time::sleep(CALM).await;
    gap(&frames, to, sent, killed_ns)
}

/// Takes a port of the switch down. Returns the time right before, by `CLOCK_REALTIME`. The command is
/// started earlier and waits for its input, so that its start is not part of the failure.
pub async fn cut_link(lab: &Lab, port: &str) -> Result<i64, Failure> {
    let mut command = lab.command(SWITCH, &["ip", "-batch", "-"])?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or("ip has no standard input")?;
    tokio::time::sleep(COMMAND_START).await;
    let killed_ns = now_ns()?;
    input.write_all(format!("link set {port} down\n").as_bytes()).await?;
    drop(input);
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(killed_ns)
}

/// Waits until all gateways are ready, and under GWZone each zone is with its primary again.
pub async fn all_ready(lab: &Lab) -> Result<(), Failure> {
    let start = Instant::now();
    loop {
        let gateways = lab.api().list::<Gateway>(&[], None).await?;
        if gateways.iter().all(|gateway| gateway.state == "ready") {
            return Ok(());
        }
        if start.elapsed() > RETURN_MAX {
            return Err(format!("not all gateways were ready within {RETURN_MAX:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs a command at the switch, so that the configuration of gateways does not change.
pub async fn on_switch(lab: &Lab, argv: &[&str]) -> Result<(), Failure> {
    let output = lab.exec(SWITCH, argv).await?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}

/// Sends numbered probes until the end, at most for `max`. Returns their number.
pub fn probe(to: Ipv4Addr, ending: &AtomicBool, max: Duration) -> Result<u32, Failure> {
    let socket = UdpSocket::bind("0.0.0.0:7001")?;
    let mut payload = [0; PROBE_BYTES];
    let (start, mut number) = (Instant::now(), 0_u32);
    while !ending.load(Ordering::Relaxed) && start.elapsed() < max {
        sleep_until(start + PROBE_EVERY * number);
        payload[..4].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&payload, (to, PORT))?;
        number += 1;
    }
    Ok(number)
}

/// The gateway through which the probes pass, and its port at the switch.
pub async fn carrier(lab: &Lab, to: Ipv4Addr) -> Result<(String, String), Failure> {
    let capture = Capture::start(lab, "host-b")?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let frames = capture.frames()?;
    let sender = frames.iter().rev().find_map(|(_, frame)| match frame {
        Frame::Tenant { sender, destination, .. } if *destination == to => Some(*sender),
        _ => None,
    });
    let sender = sender.ok_or("no probe arrived")?;
    let gateways = &lab.state().topology.gateways;
    let place = gateways.iter().position(|gateway| gateway.ipv4 == Some(sender));
    let place = place.ok_or_else(|| format!("{sender} is not a gateway"))?;
    Ok((gateways[place].name.clone(), format!("p{place}")))
}

/// What the kill at `killed_ns` cost: every probe that was lost after it, also if some arrived in between.
fn gap(frames: &Frames, to: Ipv4Addr, sent: u32, killed_ns: i64) -> Result<Gap, Failure> {
    let mut probes: Vec<(i64, u32)> = frames
        .iter()
        .filter_map(|(at_ns, frame)| match frame {
            Frame::Tenant { destination, number, .. } if *destination == to => Some((*at_ns, *number)),
            _ => None,
        })
        .collect();
    // A probe that was overtaken while its vIP moved was not lost.
    probes.sort_by_key(|(_, number)| *number);
    let last = probes.last().map_or(0, |(_, number)| *number);
    let silent = EVERY_MS * f64::from(sent.saturating_sub(last + 1));
    if silent > UNFINISHED_MS {
        return Err(format!("probes stopped at {last} of {sent}: no gateway took over").into());
    }
    let holes = || probes.windows(2).filter(|pair| pair[1].1 > pair[0].1 + 1 && pair[1].0 > killed_ns);
    let (Some(first), Some(end)) = (holes().next(), holes().next_back()) else {
        return Err("no probe was lost: the gateway did not carry them".into());
    };
    let lost: u32 = holes().map(|pair| pair[1].1 - pair[0].1 - 1).sum();
    let announcements = frames.iter().filter_map(|(at_ns, frame)| match frame {
        Frame::Announcement { address } => Some((*at_ns, *address)),
        _ => None,
    });
    let (earlier, later): (Vec<_>, Vec<_>) = announcements.partition(|(at_ns, _)| *at_ns <= first[0].0);
    // An announcement that was also made before the kill does not belong to the takeover.
    let is_new = |address: &Ipv4Addr| earlier.iter().all(|(_, known)| known != address);
    let recovered_ns = end[1].0;
    let announced = later.iter().find(|(_, address)| is_new(address)).map(|(at_ns, _)| *at_ns);
    let pure_ns = announced.map_or(recovered_ns - first[0].0, |at_ns| (recovered_ns - at_ns).max(0));
    Ok(Gap {
        from_kill: (recovered_ns - killed_ns) as f64 / 1e6,
        lost: EVERY_MS * f64::from(lost),
        pure: pure_ns as f64 / 1e6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a gap that ends at the first probe although more are lost, and losses from before the kill.
    #[test]
    fn a_gap_is_from_the_kill_to_the_probe_after_the_last_loss() {
        let to = Ipv4Addr::new(10, 2, 0, 2);
        let sender = Ipv4Addr::new(192, 0, 2, 11);
        let tenant = |number| Frame::Tenant { sender, destination: to, bytes: 106, number };
        let address = Ipv4Addr::new(192, 0, 2, 101);
        let other = Frame::Announcement { address: Ipv4Addr::new(192, 0, 2, 102) };
        let mut frames = vec![
            (0, tenant(0)),
            (100_000, other),
            (1_000_000, tenant(2)),
            (1_600_000, other),
            (10_000_000, Frame::Announcement { address }),
            (10_700_000, tenant(21)),
            (11_700_000, tenant(23)),
            (11_800_000, tenant(22)),
            (13_000_000, tenant(26)),
        ];
        let found = gap(&frames, to, 27, 1_200_000).unwrap();
        // Lost after the kill: 3 to 20, 24 and 25.
        assert_eq!(found, Gap { from_kill: 11.8, lost: 10.0, pure: 3.0 });
        frames.truncate(3);
        assert!(gap(&frames, to, 100, 1_200_000).is_err());
    }

    #[test]
    fn a_kill_that_costs_nothing_is_an_error() {
        let to = Ipv4Addr::new(10, 2, 0, 2);
        let sender = Ipv4Addr::new(192, 0, 2, 11);
        let probe = |number| Frame::Tenant { sender, destination: to, bytes: 106, number };
        let frames = (0..10).map(|number| (i64::from(number) * 500_000, probe(number))).collect();
        assert!(gap(&frames, to, 10, 2_000_000).is_err());
    }
}
