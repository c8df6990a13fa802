//! Time from the packet that makes a flow an elephant to the first packet on the direct path, for flows that begin
//! slowly (Zeta figure 10) and in bursts (figure 20). It changes with how hosts learn direct paths.

use crate::cloud::{percentile, sinks, with_lab};
use crate::wire::{Capture, Frame, Frames, inside, sleep_until};
use crate::{Failure, Outcome, Settings};
use sluice_bench_report::{Better, Measure};
use sluice_lab::Lab;
use std::collections::HashMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

const FLOWS: usize = 500;
/// Intervals in which flows begin, and the names of the measures.
const BEGIN_EVERY: [(Duration, &str); 2] =
    [(Duration::from_millis(1), "offload_ms"), (Duration::from_micros(250), "offload_burst_ms")];
/// Interval of the packets of a flow; with 1400 bytes each, a flow has 22 Mbit/s.
const EVERY: Duration = Duration::from_micros(500);
const PACKETS: u32 = 60;
const PAYLOAD_BYTES: usize = 1300;
const PORT: u16 = 7000;
/// Bytes from which a flow is an elephant by default: 20 kbit/s for a period, which is a second on gateways, and a quarter of it on hosts.
fn elephant_bytes(model: Option<&str>) -> u32 {
    if model.is_some() { 625 } else { 2_500 }
}
const GATEWAYS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(192, 0, 2, 11), Ipv4Addr::new(192, 0, 2, 12), Ipv4Addr::new(192, 0, 2, 13)];

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let flows = (FLOWS / settings.scale).max(10);
    for (begin_every, name) in BEGIN_EVERY {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let (mut never, mut never_theirs) = (0, 0);
        for _ in 0..settings.rounds {
            ours.push(one_lab(settings, None, flows, begin_every, &mut never)?);
            theirs.push(one_lab(settings, Some("gwzone"), flows, begin_every, &mut never_theirs)?);
        }
        outcome.note(format!(
            "{name}: of {} flows, {never} got no direct path while they lasted, under gwzone {never_theirs}",
            settings.rounds * flows
        ));
        for (part, of) in [("p50", 0.5), ("p99", 0.99)] {
            let part_of = |rounds: &mut Vec<Vec<f64>>| -> Vec<f64> {
                rounds.iter_mut().map(|latencies| percentile(latencies, of)).collect()
            };
            let (ours, theirs) = (part_of(&mut ours), part_of(&mut theirs));
            let peer = ("gwzone", theirs.as_slice());
            outcome.measures.push(Measure::zipped(format!("{name}_{part}"), "ms", Better::Less, &ours, peer));
        }
    }
    Ok(())
}

/// Latencies in milliseconds of all flows of a round, in a new lab under a model.
fn one_lab(
    settings: &Settings,
    model: Option<&str>,
    flows: usize,
    begin_every: Duration,
    never: &mut usize,
) -> Result<Vec<f64>, Failure> {
    let elephant_bytes = elephant_bytes(model);
    let (mut latencies, missing) = with_lab(settings, model, async move |lab| {
        let addresses = sinks(&lab, "flow", flows).await?;
        one_round(&lab, addresses, begin_every, elephant_bytes).await
    })?;
    *never += missing;
    // A flow without a direct path counts as one whose latency was its whole time.
    latencies.extend(std::iter::repeat_n((EVERY * PACKETS).as_secs_f64() * 1000.0, missing));
    Ok(latencies)
}

/// Latencies of the flows that got a direct path, and the number of those that did not.
async fn one_round(
    lab: &Lab,
    addresses: Vec<Ipv4Addr>,
    begin_every: Duration,
    elephant_bytes: u32,
) -> Result<(Vec<f64>, usize), Failure> {
    let capture = Capture::start(lab, "host-b")?;
    let count = addresses.len();
    let sender = inside(lab, "web-1", move || send(&addresses, begin_every));
    tokio::task::spawn_blocking(move || sender.join().map_err(|_| "the sender panicked")?)
        .await?
        .map_err(|error| format!("sending: {error}"))?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let latencies = latencies(&capture.frames()?, elephant_bytes);
    Ok((latencies.clone(), count - latencies.len()))
}

/// Sends overlapping flows: each tick sends a packet of every flow that has begun and not ended.
fn send(addresses: &[Ipv4Addr], begin_every: Duration) -> Result<(), Failure> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let mut payload = [0; PAYLOAD_BYTES];
    let (start, mut tick) = (Instant::now(), 0_u32);
    let begun = |at: Duration| (at.as_nanos() / begin_every.as_nanos()) as usize + 1;
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

/// Milliseconds until the direct path, of each flow that got one.
fn latencies(frames: &Frames, elephant_bytes: u32) -> Vec<f64> {
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
        if flow.bytes >= elephant_bytes {
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
        assert_eq!(latencies(&frames, 2_500), [2.5]);
    }
}
