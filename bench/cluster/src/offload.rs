//! From the packet that makes a flow an elephant to the first packet that does without the gateway (Zeta figure 10).

use crate::cloud::{percentile, sinks, with_lab};
use crate::wire::{Capture, Frame, Frames, inside, sleep_until};
use crate::{Failure, Outcome, Settings};
use sluice_bench_report::Measure;
use sluice_lab::Lab;
use std::collections::HashMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

const FLOWS: usize = 500;
/// One begins after the other.
const BEGIN_EVERY: Duration = Duration::from_millis(1);
/// Packets of a flow: 1400 bytes each half millisecond are 22 Mbit/s.
const EVERY: Duration = Duration::from_micros(500);
const PACKETS: u32 = 60;
const PAYLOAD_BYTES: usize = 1300;
const PORT: u16 = 7000;
/// 20 kbit/s for a period of a second: the default.
const ELEPHANT_BYTES: u32 = 2500;
const GATEWAYS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(192, 0, 2, 11), Ipv4Addr::new(192, 0, 2, 12), Ipv4Addr::new(192, 0, 2, 13)];

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let mut ours = under(settings, None, outcome)?;
    let mut theirs = under(settings, Some("gwzone"), outcome)?;
    for (name, part) in [("offload_ms_p50", 0.5), ("offload_ms_p99", 0.99)] {
        let (ours, theirs) = (percentile(&mut ours, part), percentile(&mut theirs, part));
        outcome.measures.push(Measure::beside_less(name, "ms", ours, "gwzone", Some(theirs)));
    }
    Ok(())
}

/// Latencies in milliseconds of all flows under a model.
fn under(settings: &Settings, model: Option<&str>, outcome: &mut Outcome) -> Result<Vec<f64>, Failure> {
    let rounds = settings.rounds;
    let flows = (FLOWS / settings.scale).max(10);
    let (mut ms, never) = with_lab(settings, model, move |lab| async move {
        let (mut all, mut never) = (Vec::new(), 0);
        for round in 0..rounds {
            let addresses = sinks(&lab, &format!("flow{round}"), flows).await?;
            let (latencies, missing) = one_round(&lab, addresses).await?;
            all.extend(latencies);
            never += missing;
        }
        Ok((all, never))
    })?;
    outcome.note(format!(
        "offload, {}: {} flows, of which {never} got no direct path while they lasted",
        model.unwrap_or("zeta"),
        rounds * flows
    ));
    // A flow without one counts as one that took as long as it lasted.
    ms.extend(std::iter::repeat_n((EVERY * PACKETS).as_secs_f64() * 1000.0, never));
    Ok(ms)
}

async fn one_round(lab: &Lab, addresses: Vec<Ipv4Addr>) -> Result<(Vec<f64>, usize), Failure> {
    let capture = Capture::start(lab, "host-b")?;
    let count = addresses.len();
    let sender = inside(lab, "web-1", move || send(&addresses));
    tokio::task::spawn_blocking(move || sender.join().map_err(|_| "the sender panicked")?)
        .await?
        .map_err(|error| format!("sending: {error}"))?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let latencies = latencies(&capture.frames()?);
    Ok((latencies.clone(), count - latencies.len()))
}

/// Flows that overlap: each tick sends a packet of every flow that has begun and not ended.
fn send(addresses: &[Ipv4Addr]) -> Result<(), Failure> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let mut payload = [0; PAYLOAD_BYTES];
    let (start, mut tick) = (Instant::now(), 0_u32);
    let begun = |at: Duration| (at.as_nanos() / BEGIN_EVERY.as_nanos()) as usize + 1;
    loop {
        let at = EVERY * tick;
        let ended = at.checked_sub(EVERY * PACKETS).map_or(0, begun);
        if ended >= addresses.len() {
            return Ok(());
        }
        sleep_until(start + at);
        payload[..4].copy_from_slice(&tick.to_be_bytes());
        for address in &addresses[ended..begun(at).min(addresses.len())] {
            socket.send_to(&payload, (*address, PORT))?;
        }
        tick += 1;
    }
}

/// Milliseconds of each flow that got a direct path.
fn latencies(frames: &Frames) -> Vec<f64> {
    #[derive(Default)]
    struct Seen {
        bytes: u32,
        crossed_ns: Option<i64>,
        direct_ns: Option<i64>,
    }
    let mut flows: HashMap<Ipv4Addr, Seen> = HashMap::new();
    for (at_ns, frame) in frames {
        let Frame::Tenant { sender, destination, bytes, .. } = *frame else { continue };
        let flow = flows.entry(destination).or_default();
        flow.bytes += bytes;
        if flow.bytes >= ELEPHANT_BYTES {
            flow.crossed_ns.get_or_insert(*at_ns);
        }
        if !GATEWAYS.contains(&sender) {
            flow.direct_ns.get_or_insert(*at_ns);
        }
    }
    let ms = |flow: &Seen| Some((flow.direct_ns? - flow.crossed_ns?).max(0) as f64 / 1e6);
    flows.values().filter_map(ms).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_offloaded_from_its_crossing_to_its_first_direct_packet() {
        let tenant = |sender: u8, last: u8, bytes| Frame::Tenant {
            sender: Ipv4Addr::new(192, 0, 2, sender),
            destination: Ipv4Addr::new(10, 2, 0, last),
            bytes,
            number: 0,
        };
        let frames = vec![
            (0, tenant(11, 1, 1400)),
            (1_000_000, tenant(11, 1, 1400)),
            (1_500_000, tenant(12, 2, 1400)),
            (2_000_000, tenant(11, 1, 1400)),
            (3_500_000, tenant(21, 1, 1400)),
            (4_000_000, tenant(21, 1, 1400)),
        ];
        assert_eq!(latencies(&frames), [2.5]);
    }
}
