//! How evenly bursts load gateways (Zeta figures 12 to 18 and 26): computed, flow by
//! flow, with the placement and the spreading that the product uses, at the scale of
//! the paper's test bed, beside gateways that belong to host zones.

use crate::demands::Random;
use crate::{CLUSTERS, Failure, Outcome, Settings};
use sluice_bench_report::{Measure, median};
use sluice_placement::{Cluster, Placement, Problem, Settings as Rgcm, Vpc, solve};
use sluice_types::{ClusterId, TenantId, VpcId};

const HOSTS: usize = 20;
const VPCS: usize = 100;
/// VMs of a VPC, from and to; 50 on average.
const VMS: (usize, usize) = (10, 90);
/// vIPs of each gateway, of one family.
const VIPS: usize = 4;
/// Bursts begin evenly within this time, and loads are looked at in windows (sections VIII-C.1: 5 to 15 s, 0.5 s).
const BURST_S: f64 = 10.0;
const WINDOW_S: f64 = 0.5;
/// From the packet that makes a flow an elephant to its direct path: the same for both, so that only balance differs.
const OFFLOAD_S: f64 = 0.005;
/// Rate from which a flow is an elephant, bit/s, and for how long it is looked at.
const ELEPHANT_BPS: f64 = 20_000.0;
const PERIOD_S: f64 = 1.0;
/// Flows of a workload at the paper's largest burst.
const FLOWS: usize = 10_000;

/// What tenants do.
#[derive(Clone, Copy)]
enum Workload {
    /// All VMs of a VPC to all others: elephants that fill their link; all VPCs at once.
    MapReduce,
    /// The same, each VPC at a time of its own: the burst of a single VPC.
    Staggered,
    /// UDP of 2.4 to 100 Mbit/s.
    Video,
    /// UDP of 12.2 to 23.85 kbit/s.
    Audio,
}

/// Which VMs of a zone's hosts are whose.
#[derive(Clone, Copy)]
enum Layout {
    /// VMs are started VPC by VPC, and fill host after host.
    InSequence,
    /// Each VM on any host.
    Scattered,
}

/// A flow: what gateways see of it.
struct Flow {
    vpc: usize,
    source_host_place: usize,
    hash: u32,
    start_s: f64,
    bps: f64,
}

impl Flow {
    /// Bits that pass a gateway from the flow's begin until `after_s` later.
    fn bits(&self, after_s: f64) -> f64 {
        if self.bps < ELEPHANT_BPS {
            return self.bps * after_s;
        }
        let crossed_s = (ELEPHANT_BPS * PERIOD_S / self.bps).min(PERIOD_S);
        self.bps * after_s.min(crossed_s + OFFLOAD_S)
    }
}

struct Cloud {
    vms: Vec<usize>,
    /// First VM of each VPC in the order of their places.
    first: Vec<usize>,
    place: Vec<usize>,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    let workloads = [
        (Workload::MapReduce, "mapreduce"),
        (Workload::Video, "video"),
        (Workload::Audio, "audio"),
        (Workload::Staggered, "staggered"),
    ];
    let (mut worst, mut worst_zones) = (0.0_f64, 0.0_f64);
    for (workload, name) in workloads {
        for (layout, layout_name) in [(Layout::InSequence, ""), (Layout::Scattered, "_scattered")] {
            let (mut ours, mut zones) = (Vec::new(), Vec::new());
            for seed in 0..settings.rounds as u64 * 5 {
                let (our, zone) = balance(workload, layout, seed, FLOWS / settings.scale)?;
                ours.push(our);
                zones.push(zone);
            }
            let (ours, zones) = (median(ours), median(zones));
            // The paper's three workloads, and zones as the paper cuts them.
            if matches!(layout, Layout::InSequence) && !matches!(workload, Workload::Staggered) {
                (worst, worst_zones) = (worst.max(ours), worst_zones.max(zones));
            }
            let measure = format!("burst_{name}{layout_name}_max_over_mean");
            outcome.measures.push(Measure::beside_less(measure, "x", ours, "gwzone", Some(zones)));
        }
    }
    let measure = Measure::beside_less("burst_max_over_mean", "x", worst, "gwzone", Some(worst_zones));
    outcome.measures.push(measure);
    Ok(())
}

/// Largest by mean load of gateways, in the window in which the largest is largest: ours, then the zones'.
fn balance(workload: Workload, layout: Layout, seed: u64, flows: usize) -> Result<(f64, f64), Failure> {
    let mut random = Random::new(seed);
    let cloud = Cloud::draw(layout, &mut random);
    let placement = place(&cloud, seed)?;
    let flows = draw_flows(workload, &cloud, flows, &mut random);
    let gateways: usize = CLUSTERS.iter().sum();
    let starts: Vec<usize> = CLUSTERS
        .iter()
        .scan(0, |next, size| {
            *next += size;
            Some(*next - size)
        })
        .collect();
    let ours = |flow: &Flow| {
        let cluster = placement[&VpcId::new(flow.vpc as u64 + 1)].get() as usize - 1;
        // As tunnel_to_group() in bpf/include/vswitch/tunnel.h spreads flows over a group's vIPs.
        let vips = CLUSTERS[cluster] * VIPS;
        starts[cluster] + ((u64::from(flow.hash) * vips as u64) >> 32) as usize % CLUSTERS[cluster]
    };
    let zones = |flow: &Flow| flow.source_host_place * gateways / cloud.place.len();
    Ok((max_over_mean(&flows, gateways, ours), max_over_mean(&flows, gateways, zones)))
}

fn max_over_mean(flows: &[Flow], gateways: usize, gateway: impl Fn(&Flow) -> usize) -> f64 {
    let windows = (BURST_S / WINDOW_S) as usize;
    let mut loads = vec![vec![0.0; gateways]; windows];
    for flow in flows {
        let at = gateway(flow);
        for (window, loads) in loads.iter_mut().enumerate() {
            let (from, to) =
                (window as f64 * WINDOW_S - flow.start_s, (window + 1) as f64 * WINDOW_S - flow.start_s);
            if to > 0.0 {
                loads[at] += flow.bits(to) - flow.bits(from.max(0.0));
            }
        }
    }
    let largest = |loads: &Vec<f64>| loads.iter().copied().fold(0.0, f64::max);
    let busiest = loads.iter().max_by(|a, b| largest(a).total_cmp(&largest(b)));
    busiest.map_or(0.0, |loads| largest(loads) / (loads.iter().sum::<f64>() / gateways as f64))
}

impl Cloud {
    fn draw(layout: Layout, random: &mut Random) -> Self {
        let vms: Vec<usize> =
            (0..VPCS).map(|_| VMS.0 + (random.unit() * (VMS.1 - VMS.0 + 1) as f64) as usize).collect();
        let total: usize = vms.iter().sum();
        let first = vms
            .iter()
            .scan(0, |next, count| {
                *next += count;
                Some(*next - count)
            })
            .collect();
        // A VM's place in the order in which zones are cut: host by host.
        let place = match layout {
            Layout::InSequence => (0..total).collect(),
            Layout::Scattered => random.ranks(total).into_iter().map(|rank| rank - 1).collect(),
        };
        Self { vms, first, place }
    }
}

/// By RGCM, each VPC with a demand by its number of VMs: bursts are not known in advance.
fn place(cloud: &Cloud, seed: u64) -> Result<Placement, Failure> {
    let clusters = CLUSTERS
        .iter()
        .zip(1..)
        .map(|(size, id)| Cluster {
            id: ClusterId::new(id),
            capacity_pps: *size as u64 * 10_000_000,
            capacity_entries: 1 << 20,
        })
        .collect();
    let total: usize = cloud.vms.iter().sum();
    let all: usize = CLUSTERS.iter().sum();
    let vpcs = cloud
        .vms
        .iter()
        .zip(1..)
        .map(|(vms, id)| Vpc {
            id: VpcId::new(id),
            tenant: TenantId::new(id),
            demand_pps: (all * 6_000_000 * vms / total) as u64,
            entries: *vms as u64,
        })
        .collect();
    let problem = Problem::new(clusters, vpcs, CLUSTERS.len(), 1.0)?;
    Ok(solve(&problem, &Rgcm { seed, ..Rgcm::default() })?.placement)
}

fn draw_flows(workload: Workload, cloud: &Cloud, count: usize, random: &mut Random) -> Vec<Flow> {
    let total = cloud.place.len();
    let mut flow = |vpc: usize, source: usize, bps: f64, start_s: f64| Flow {
        vpc,
        source_host_place: cloud.place[source],
        hash: random.next() as u32,
        start_s,
        bps,
    };
    let mut draw = Random::new(count as u64 ^ total as u64);
    if let Workload::MapReduce | Workload::Staggered = workload {
        let mut flows = Vec::new();
        for (vpc, (first, vms)) in cloud.first.iter().zip(&cloud.vms).enumerate() {
            let start_s = if let Workload::Staggered = workload { draw.unit() * BURST_S } else { 0.0 };
            for pair in 0..vms * vms {
                // A VM of 10 Gbit/s on HOSTS hosts shares it among its peers.
                let bps = 10e9 * HOSTS as f64 / total as f64 / *vms as f64;
                flows.push(flow(vpc, first + pair / vms, bps, start_s));
            }
        }
        return flows;
    }
    (0..count)
        .map(|_| {
            let source = (draw.unit() * total as f64) as usize;
            let vpc = cloud.first.partition_point(|first| *first <= source) - 1;
            let bps = match workload {
                Workload::Video => 2.4e6 * (100.0_f64 / 2.4).powf(draw.unit()),
                _ => 12_200.0 + draw.unit() * (23_850.0 - 12_200.0),
            };
            flow(vpc, source, bps, draw.unit() * BURST_S)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_elephant_passes_gateways_until_it_has_its_path() {
        let flow = |bps| Flow { vpc: 0, source_host_place: 0, hash: 0, start_s: 0.0, bps };
        assert_eq!(flow(10_000.0).bits(3.0), 30_000.0);
        assert_eq!(flow(2_000_000.0).bits(3.0), 2_000_000.0 * (0.01 + OFFLOAD_S));
        assert_eq!(flow(2_000_000.0).bits(0.001), 2_000.0);
    }

    #[test]
    fn one_gateway_with_all_load_is_as_far_above_the_mean_as_there_are_gateways() {
        let flows: Vec<Flow> = (0..8)
            .map(|number| Flow { vpc: 0, source_host_place: number, hash: 0, start_s: 0.0, bps: 1000.0 })
            .collect();
        assert_eq!(max_over_mean(&flows, 8, |_| 3), 8.0);
        assert_eq!(max_over_mean(&flows, 8, |flow| flow.source_host_place), 1.0);
    }
}
