//! Gateways that die under traffic (Zeta figure 22): probes every half millisecond, seen where they
//! come out, and the announcements of who takes over.

use crate::cloud::{percentile, sinks, with_lab};
use crate::wire::{Capture, Frame, Frames, inside, sleep_until};
use crate::{Failure, Outcome, Settings};
use sluice_bench_report::Measure;
use sluice_client::Gateway;
use sluice_lab::Lab;
use sluice_types::VpcId;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KILLS: usize = 100;
const PROBE_EVERY: Duration = Duration::from_micros(500);
const PROBE_BYTES: usize = 64;
const PORT: u16 = 7001;
const SWITCH: &str = "tor-1";
/// Before and after the death of a gateway.
const CALM: Duration = Duration::from_millis(300);
/// A gateway that was killed counts as well again within this time.
const RETURN_MAX: Duration = Duration::from_secs(20);
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// No flow of the probed VPC is ever an elephant.
const NEVER: u32 = u32::MAX;

/// What one death cost.
struct Gap {
    total_ms: f64,
    /// From the first announcement of a new owner on.
    pure_ms: f64,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let ours = under(settings, None)?;
    let theirs = under(settings, Some("gwzone"))?;
    let totals = |gaps: &[Gap]| gaps.iter().map(|gap| gap.total_ms).collect::<Vec<f64>>();
    let (mut total, mut gwzone) = (totals(&ours), totals(&theirs));
    let mut pure: Vec<f64> = ours.iter().map(|gap| gap.pure_ms).collect();
    for (suffix, part) in [("p50", 0.5), ("p99", 0.99)] {
        let (ours, theirs) = (percentile(&mut total, part), percentile(&mut gwzone, part));
        let name = format!("failover_total_ms_{suffix}");
        outcome.measures.push(Measure::beside_less(name, "ms", ours, "gwzone", Some(theirs)));
        let pure = percentile(&mut pure, part);
        outcome.measures.push(Measure::alone(format!("failover_pure_ms_{suffix}"), "ms", pure));
    }
    Ok(())
}

/// What deaths cost under a model.
fn under(settings: &Settings, model: Option<&str>) -> Result<Vec<Gap>, Failure> {
    let kills = (KILLS / settings.scale).max(3);
    with_lab(settings, model, move |lab| async move {
        let vpc: VpcId = lab.vpc("web")?.id;
        let never = serde_json::json!({ "offload_kbps": NEVER });
        lab.api().update::<sluice_client::Vpc>(vpc, &never, None).await?;
        let to = sinks(&lab, "probe", 1).await?;
        let to = *to.first().ok_or("no instance to probe")?;
        // A switch that floods what it does not know hides the failure: all gateways forward it.
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

/// Kills the gateway that carries the probes as when a machine dies: its link and its agent.
async fn one_kill(lab: &Lab, to: Ipv4Addr) -> Result<Gap, Failure> {
    let capture = Capture::start(lab, "host-b")?;
    let end = Arc::new(AtomicBool::new(false));
    let ending = end.clone();
    let sender = inside(lab, "web-1", move || probe(to, &ending));
    tokio::time::sleep(CALM).await;
    let (carrier, port) = carrier(lab, to).await?;
    set_port(lab, &port, "down").await?;
    lab.kill(&carrier).await?;
    tokio::time::sleep(CALM).await;
    end.store(true, Ordering::Relaxed);
    let sent =
        tokio::task::spawn_blocking(move || sender.join().map_err(|_| "the prober panicked")?).await??;
    let frames = capture.frames()?;
    set_port(lab, &port, "up").await?;
    lab.restart(&carrier)?;
    lab.synchronized(&carrier, Duration::from_secs(20)).await?;
    fit(lab).await?;
    // Once its stream is up it listens for some milliseconds before it may take anything.
    tokio::time::sleep(CALM).await;
    gap(&frames, to, sent)
}

/// Waits until no gateway counts as failed any more: a zone is with its primary again.
async fn fit(lab: &Lab) -> Result<(), Failure> {
    let start = Instant::now();
    loop {
        let gateways = lab.api().list::<Gateway>(&[], None).await?;
        if gateways.iter().all(|gateway| gateway.state == "ready") {
            return Ok(());
        }
        if start.elapsed() > RETURN_MAX {
            return Err(format!("not all gateways are well in {RETURN_MAX:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// At the switch: what a gateway has configured stays.
async fn set_port(lab: &Lab, port: &str, state: &str) -> Result<(), Failure> {
    on_switch(lab, &["ip", "link", "set", port, state]).await
}

async fn on_switch(lab: &Lab, argv: &[&str]) -> Result<(), Failure> {
    let output = lab.exec(SWITCH, argv).await?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}

fn probe(to: Ipv4Addr, ending: &AtomicBool) -> Result<u32, Failure> {
    let socket = UdpSocket::bind("0.0.0.0:7001")?;
    let mut payload = [0; PROBE_BYTES];
    let (start, mut number) = (Instant::now(), 0_u32);
    while !ending.load(Ordering::Relaxed) && start.elapsed() < CALM * 2 + SILENCE_MAX {
        sleep_until(start + PROBE_EVERY * number);
        payload[..4].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&payload, (to, PORT))?;
        number += 1;
    }
    Ok(number)
}

/// Which gateway the probes pass, by looking; and its port of the switch.
async fn carrier(lab: &Lab, to: Ipv4Addr) -> Result<(String, String), Failure> {
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
    let place = place.ok_or_else(|| format!("{sender} is no gateway"))?;
    Ok((gateways[place].name.clone(), format!("p{place}")))
}

/// The longest silence, in probes that were lost, and what of it came after the takeover was announced.
fn gap(frames: &Frames, to: Ipv4Addr, sent: u32) -> Result<Gap, Failure> {
    let probes: Vec<(i64, u32)> = frames
        .iter()
        .filter_map(|(at_ns, frame)| match frame {
            Frame::Tenant { destination, number, .. } if *destination == to => Some((*at_ns, *number)),
            _ => None,
        })
        .collect();
    // A packet that was overtaken while its vIP moved follows one with a larger number.
    let longest = probes.windows(2).max_by_key(|pair| pair[1].1.saturating_sub(pair[0].1));
    let Some([before, after]) = longest else { return Err("no probe arrived".into()) };
    let last = probes.last().map_or(0, |(_, number)| *number);
    if sent.saturating_sub(last) > after.1.saturating_sub(before.1) {
        return Err(format!("probes stopped at {last} of {sent}: no gateway took over").into());
    }
    let lost = after.1.saturating_sub(before.1).saturating_sub(1);
    let announcements = frames.iter().filter_map(|(at_ns, frame)| match frame {
        Frame::Announcement { address } => Some((*at_ns, *address)),
        _ => None,
    });
    let (earlier, later): (Vec<_>, Vec<_>) = announcements.partition(|(at_ns, _)| *at_ns <= before.0);
    // One that only repeats what was announced before is no takeover's.
    let is_new = |address: &Ipv4Addr| earlier.iter().all(|(_, known)| known != address);
    let announced = later.iter().find(|(_, address)| is_new(address)).map(|(at_ns, _)| *at_ns);
    let every_ms = PROBE_EVERY.as_secs_f64() * 1000.0;
    let pure_ns = announced.map_or(after.0 - before.0, |at_ns| (after.0 - at_ns).max(0));
    Ok(Gap { total_ms: f64::from(lost) * every_ms, pure_ms: pure_ns as f64 / 1e6 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_what_was_lost_and_what_followed_the_announcement() {
        let to = Ipv4Addr::new(10, 2, 0, 2);
        let sender = Ipv4Addr::new(192, 0, 2, 11);
        let tenant = |number| Frame::Tenant { sender, destination: to, bytes: 106, number };
        let address = Ipv4Addr::new(192, 0, 2, 101);
        let other = Frame::Announcement { address: Ipv4Addr::new(192, 0, 2, 102) };
        let mut frames = vec![
            (0, tenant(0)),
            (100_000, other),
            (500_000, tenant(1)),
            (600_000, other),
            (10_000_000, Frame::Announcement { address }),
            (10_700_000, tenant(21)),
            (11_000_000, tenant(22)),
        ];
        let found = gap(&frames, to, 23).unwrap();
        assert_eq!((found.total_ms, found.pure_ms), (9.5, 0.7));
        frames.truncate(5);
        assert!(gap(&frames, to, 23).is_err());
    }
}
