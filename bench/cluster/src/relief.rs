//! A gateway that gets more than it can forward: from the first packet too many to the first that a
//! neighbour forwards in its place (Zeta figure 23).

use crate::cloud::{sinks, with_lab};
use crate::wire::{Capture, Frame, Frames, inside, sleep_until};
use crate::{Failure, Outcome, Settings};
use sluice_bench_report::Measure;
use sluice_client::{Cluster, PlacementSettingsPatch, SchedulerPatch};
use sluice_lab::Lab;
use sluice_types::{GatewayId, VpcId};
use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const FLOWS: usize = 60;
const PORT: u16 = 7002;
/// Interval of the packets of each flow before the burst.
const CALM_EVERY: Duration = Duration::from_millis(80);
/// Time for which the packets before the burst are captured.
const LOOK: Duration = Duration::from_millis(600);
const BURST_EVERY: Duration = Duration::from_millis(20);
const BURST: Duration = Duration::from_secs(1);
/// Packets of the burst have numbers from here on.
const BURST_NUMBER: u32 = 1 << 31;
/// Rate of the burst divided by the capacity of its gateway.
const TOO_MUCH: f64 = 1.1;
/// Bursts of a round.
const BURSTS: usize = 2;
/// Time for which a vIP that has moved stays; the default is longer, for which the bench would have to wait.
const HOLD: Duration = Duration::from_secs(2);
/// Interval of the scheduler's regular rounds, and half a second for their moves.
const ROUND: Duration = Duration::from_millis(1_500);
/// Time limit for vIPs to return to their preferred owners after a burst, more than the longest hold-down.
const REST: Duration = Duration::from_secs(330);
/// Capacity of all gateways before the burst, in packets a second. It is so small that the traffic before the
/// burst is their load, by which vIPs are shared. Otherwise vIPs would move when the limit of the burst is set.
const CALM_PPS: u64 = 1_500;
/// Capacity of the other gateways during the burst, in packets a second.
const PLENTY: u64 = 1_000_000;
/// An offload threshold that no flow reaches.
const NEVER: u32 = u32::MAX;

/// Result of one burst.
struct Relief {
    /// Milliseconds until the gateway was relieved; `None` if that did not happen during the burst.
    ms: Option<f64>,
    lost: usize,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let bursts = settings.rounds * BURSTS;
    let (reliefs, voids) = with_lab(settings, None, async move |lab| {
        let vpc: VpcId = lab.vpc("web")?.id;
        let never = serde_json::json!({ "offload_kbps": NEVER });
        lab.api().update::<sluice_client::Vpc>(vpc, &never, None).await?;
        let to = sinks(&lab, "relief", FLOWS).await?;
        let hold_down_ms = Some(HOLD.as_millis() as u64);
        lab.api().set_scheduler(&SchedulerPatch { hold_down_ms, ..Default::default() }).await?;
        let (mut reliefs, mut voids) = (Vec::new(), 0);
        while reliefs.len() < bursts && voids < bursts {
            match one_burst(&lab, to.clone()).await? {
                Some(relief) => reliefs.push(relief),
                None => voids += 1,
            }
        }
        Ok((reliefs, voids))
    })?;
    if reliefs.is_empty() {
        return Err("no burst could be counted".into());
    }
    let lost: usize = reliefs.iter().map(|relief| relief.lost).sum();
    let never = reliefs.iter().filter(|relief| relief.ms.is_none()).count();
    outcome.note(format!(
        "overload: {lost} packets lost in {} bursts; {never} gateways were not relieved within {} ms; {voids} \
         bursts were not counted, because not all flows were seen before them or vIPs moved then",
        reliefs.len(),
        BURST.as_millis()
    ));
    let burst_ms = BURST.as_secs_f64() * 1000.0;
    let ms: Vec<f64> = reliefs.iter().map(|relief| relief.ms.unwrap_or(burst_ms)).collect();
    outcome.measures.push(Measure::alone("overload_relief_ms", "ms", &ms));
    Ok(())
}

/// Waits until all vIPs are with their preferred owners, and the scheduler has moved nothing for a while.
async fn at_rest(lab: &Lab) -> Result<(), Failure> {
    let until = Instant::now() + REST;
    loop {
        let scheduler = lab.api().scheduler().await?;
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
        let last_ms = scheduler.decisions.last().map_or(0, |decision| decision.time_ms);
        let clusters = lab.api().list::<Cluster>(&[], None).await?;
        let are_back =
            clusters.iter().flat_map(|cluster| &cluster.vips).all(|vip| vip.owner == vip.preferred_owner);
        if are_back && now_ms.saturating_sub(last_ms) > (HOLD + ROUND).as_millis() as u64 {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("vIPs do not come to rest: {clusters:?}, {scheduler:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Sets the capacity of the gateway that carries most flows below the rate of the burst, and starts the burst.
/// `None` if the flows of that gateway changed before the burst.
async fn one_burst(lab: &Lab, to: Vec<Ipv4Addr>) -> Result<Option<Relief>, Failure> {
    set_capacities(lab, |_| Some(CALM_PPS)).await?;
    let burst = Burst::default();
    let (flows, begin) = (to.clone(), burst.clone());
    let sender = inside(lab, "web-1", move || send(&flows, &begin));
    at_rest(lab).await?;
    let capture = Capture::start(lab, "host-b")?;
    tokio::time::sleep(LOOK).await;
    let carriers = carriers(&capture.frames()?);
    let all = carriers.len() == to.len();
    let mut counts: BTreeMap<Ipv4Addr, usize> = BTreeMap::new();
    for carrier in carriers.values() {
        *counts.entry(*carrier).or_default() += 1;
    }
    let (&busiest, &flows) = counts.iter().max_by_key(|(_, flows)| **flows).ok_or("no packet arrived")?;
    let burst_pps = flows as f64 / BURST_EVERY.as_secs_f64();
    let limit = (burst_pps / TOO_MUCH) as u64;
    if all {
        set_capacities(lab, |address| Some(if address == Some(busiest) { limit } else { PLENTY })).await?;
    }
    tokio::time::sleep(ROUND).await;
    let capture = Capture::start(lab, "host-b")?;
    tokio::time::sleep(LOOK).await;
    burst.begin();
    let sent =
        tokio::task::spawn_blocking(move || sender.join().map_err(|_| "the sender panicked")?).await??;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let frames = capture.frames()?;
    set_capacities(lab, |_| None).await?;
    if !all {
        return Ok(None);
    }
    Ok(relief(&frames, busiest, flows, sent))
}

/// Sets the capacity of each gateway in packets a second, by its address; `None` is what the gateway reports.
async fn set_capacities(lab: &Lab, of: impl Fn(Option<Ipv4Addr>) -> Option<u64>) -> Result<(), Failure> {
    let mut gateways: BTreeMap<GatewayId, Option<u64>> = BTreeMap::new();
    for gateway in &lab.state().topology.gateways {
        gateways.insert(lab.node(&gateway.name)?.id.parse()?, of(gateway.ipv4));
    }
    lab.api().set_placement(&PlacementSettingsPatch { gateways, ..Default::default() }).await?;
    Ok(())
}

/// Tells the sender to begin the burst, also if it is dropped.
#[derive(Clone, Default)]
struct Burst(Arc<AtomicBool>);

impl Burst {
    fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_due(&self) -> bool {
        self.0.load(Ordering::Relaxed) || Arc::strong_count(&self.0) == 1
    }
}

/// Sends slowly, then the burst. Returns the number of packets of the burst.
fn send(to: &[Ipv4Addr], burst: &Burst) -> Result<usize, Failure> {
    let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
    let mut start = Instant::now();
    let tick = |number: u32, at: Instant| -> Result<(), Failure> {
        sleep_until(at);
        for address in to {
            socket.send_to(&number.to_be_bytes(), (*address, PORT))?;
        }
        Ok(())
    };
    let mut number = 0;
    while !burst.is_due() {
        tick(number, start)?;
        start += CALM_EVERY;
        number += 1;
    }
    let ticks = (BURST.as_nanos() / BURST_EVERY.as_nanos()) as u32;
    for number in 0..ticks {
        tick(BURST_NUMBER + number, start + BURST_EVERY * number)?;
    }
    Ok(to.len() * ticks as usize)
}

/// The gateway that sent the last packet to each destination.
fn carriers(frames: &Frames) -> HashMap<Ipv4Addr, Ipv4Addr> {
    let last = frames.iter().filter_map(|(_, frame)| match *frame {
        Frame::Tenant { sender, destination, .. } => Some((destination, sender)),
        Frame::Announcement { .. } => None,
    });
    last.collect()
}

/// Time from the first packet of the burst through `busiest` until the last of the flows that leave it has left.
/// `None` if it did not carry `flows` flows when the burst began.
fn relief(frames: &Frames, busiest: Ipv4Addr, flows: usize, sent: usize) -> Option<Relief> {
    let mut begun_ns = None;
    let mut left: HashMap<Ipv4Addr, i64> = HashMap::new();
    let mut was_there: HashMap<Ipv4Addr, bool> = HashMap::new();
    let mut arrived = 0;
    for (at_ns, frame) in frames {
        let Frame::Tenant { sender, destination, number, .. } = *frame else { continue };
        if number < BURST_NUMBER {
            was_there.insert(destination, sender == busiest);
            continue;
        }
        arrived += 1;
        if was_there.get(&destination) != Some(&true) {
            continue;
        }
        if sender == busiest {
            begun_ns.get_or_insert(*at_ns);
        } else {
            left.entry(destination).or_insert(*at_ns);
        }
    }
    if was_there.values().filter(|there| **there).count() != flows {
        return None;
    }
    let relieved_ns = left.values().max().copied();
    let ms = begun_ns.zip(relieved_ns).map(|(begun, relieved)| (relieved - begun) as f64 / 1e6);
    Some(Relief { ms, lost: sent.saturating_sub(arrived) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relief_ends_when_the_last_flow_that_leaves_has_left() {
        let address = |last| Ipv4Addr::new(192, 0, 2, last);
        let tenant = |sender, to, number| Frame::Tenant {
            sender: address(sender),
            destination: Ipv4Addr::new(10, 2, 0, to),
            bytes: 60,
            number,
        };
        let burst = |number| BURST_NUMBER + number;
        let frames = vec![
            (0, tenant(11, 1, 1)),
            (0, tenant(11, 2, 1)),
            (0, tenant(12, 3, 1)),
            (5_000_000, tenant(11, 1, burst(0))),
            (5_000_000, tenant(11, 2, burst(0))),
            (5_000_000, tenant(12, 3, burst(0))),
            (45_000_000, tenant(13, 2, burst(1))),
            (65_000_000, tenant(13, 1, burst(2))),
            (85_000_000, tenant(13, 1, burst(3))),
            (99_000_000, tenant(13, 3, burst(4))),
        ];
        let found = |frames: &[_], flows, sent| {
            relief(&frames.to_vec(), address(11), flows, sent).map(|it| (it.ms, it.lost))
        };
        assert_eq!(found(&frames, 2, 8), Some((Some(60.0), 1)));
        assert_eq!(found(&frames[..6], 2, 3), Some((None, 0)));
        assert_eq!(found(&frames, 3, 8), None);
    }
}
