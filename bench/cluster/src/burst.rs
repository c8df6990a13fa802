//! How evenly bursts load gateways, and how many rules they need (Zeta figures 12 and 16 to 19). It is computed for
//! each flow, with the placement and the spreading of the product, at the scale of the paper's test bed, compared
//! with gateways of host zones. It changes with how flows are spread over gateways.

use crate::demands::ranks;
use crate::{CLUSTERS, Failure, Outcome, Settings};
use sluice_bench_report::{Better, Measure};
use sluice_placement::{Cluster, Placement, Problem, Settings as Rgcm, Vpc, solve};
use sluice_types::{ClusterId, Random, TenantId, VpcId};

const HOSTS: usize = 20;
const VPCS: usize = 100;
/// Smallest and largest number of VMs of a VPC.
const VMS: (usize, usize) = (10, 90);
/// Packets a second that a gateway forwards.
const GATEWAY_PPS: usize = 10_000_000;
/// vIPs of each gateway, of one family.
const VIPS: usize = 4;
/// Flows begin evenly distributed over this time, and loads are computed for windows (section VIII-C.1: 10 and
/// 0.5 s).
const BURST_S: f64 = 10.0;
const WINDOW_S: f64 = 0.5;
/// Time from the packet that makes a flow an elephant to its direct path. It is the same for both sides, so that
/// only the balance differs.
const OFFLOAD_S: f64 = 0.005;
/// Rate from which a flow is an elephant, in bit/s, and the period over which it is measured.
const ELEPHANT_BPS: f64 = 20_000.0;
const PERIOD_S: f64 = 1.0;
/// A gateway with this many times the mean load is overloaded: 80% if the mean is 50%.
const OVERLOADED: f64 = 1.6;
/// Draws of a round.
const DRAWS: u64 = 5;
/// Flows of a workload at the paper's largest burst.
const FLOWS: usize = 10_000;

/// Traffic of the tenants.
#[derive(Clone, Copy)]
enum Workload {
    /// All VMs of a VPC send to all others, as fast as their links allow; all VPCs begin at once.
    MapReduce,
    /// The same, but each VPC begins at another time, so there are bursts of single VPCs.
    Staggered,
    /// UDP of 2.4 to 100 Mbit/s.
    Video,
    /// UDP of 12.2 to 23.85 kbit/s.
    Audio,
}

/// How VMs are distributed over hosts.
#[derive(Clone, Copy)]
enum Layout {
    /// VMs are started VPC by VPC, and fill host after host.
    InSequence,
    /// Each VM is on a random host.
    Scattered,
}

/// A flow, as a gateway sees it.
struct Flow {
    vpc: usize,
    source_host_place: usize,
    hash: u32,
    start_s: f64,
    bps: f64,
}

impl Flow {
    /// Bits that pass a gateway within the first `after_s` seconds of the flow.
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
    for (workload, name) in workloads {
        for (layout, layout_name) in [(Layout::InSequence, ""), (Layout::Scattered, "_scattered")] {
            let draws = (0..(settings.rounds as u64 * DRAWS))
                .map(|seed| balance(workload, layout, seed, FLOWS / settings.scale))
                .collect::<Result<Vec<_>, _>>()?;
            let mut compare = |measure: &str, unit, of: fn(&Loads) -> f64| {
                let pairs: Vec<(f64, f64)> =
                    draws.iter().map(|draw| (of(&draw.ours), of(&draw.zones))).collect();
                let measure = format!("burst_{name}{layout_name}_{measure}");
                outcome.measures.push(Measure::compared(measure, unit, Better::Less, "gwzone", &pairs));
            };
            compare("max_over_mean", "x", |loads| loads.most);
            if matches!(workload, Workload::Video) {
                compare("overloaded_pct", "%", |loads| loads.overloaded_pct);
            }
            if matches!((workload, layout), (Workload::Video, Layout::InSequence)) {
                let pairs: Vec<(f64, f64)> =
                    draws.iter().map(|draw| (draw.direct as f64, draw.preprogrammed as f64)).collect();
                let name = format!("burst_{name}_rules");
                let (better, peer) = (Better::Less, "preprogrammed");
                outcome.measures.push(Measure::compared(name, "rules", better, peer, &pairs));
            }
        }
    }
    Ok(())
}

/// Loads of the gateways in the window in which the largest is largest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loads {
    /// The largest load divided by the mean.
    most: f64,
    /// Part of the gateways that are above 80% if the mean is 50%.
    overloaded_pct: f64,
}

/// One draw of a cloud and its flows.
struct Draw {
    ours: Loads,
    zones: Loads,
    /// Direct paths at the end of the burst, one for each elephant.
    direct: usize,
    /// Paths of all hosts if all are programmed in advance.
    preprogrammed: usize,
}

fn balance(workload: Workload, layout: Layout, seed: u64, flows: usize) -> Result<Draw, Failure> {
    let mut random = Random::new(seed);
    let cloud = Cloud::draw(layout, &mut random);
    // Bursts are not known in advance, so the demand of a VPC is by its number of VMs.
    let demands: Vec<f64> = cloud.vms.iter().map(|vms| *vms as f64).collect();
    let placement = place(&cloud.vms, &demands, seed)?;
    let flows = draw_flows(workload, &cloud, flows, &mut random);
    let gateways: usize = CLUSTERS.iter().sum();
    let ours = |flow: &Flow| gateway_of(&placement, flow.vpc, flow.hash);
    let zones = |flow: &Flow| flow.source_host_place * gateways / cloud.place.len();
    Ok(Draw {
        ours: loads(&flows, gateways, ours),
        zones: loads(&flows, gateways, zones),
        direct: flows.iter().filter(|flow| flow.bps >= ELEPHANT_BPS).count(),
        preprogrammed: cloud.preprogrammed(),
    })
}

/// The gateway of a flow. Its VPC is on one cluster, over whose vIPs `tunnel_to_group (tunnel.h)` spreads flows.
pub(crate) fn gateway_of(placement: &Placement, vpc: usize, hash: u32) -> usize {
    let cluster = placement[&VpcId::new(vpc as u64 + 1)].get() as usize - 1;
    let first: usize = CLUSTERS[..cluster].iter().sum();
    let vips = CLUSTERS[cluster] * VIPS;
    first + ((u64::from(hash) * vips as u64) >> 32) as usize % CLUSTERS[cluster]
}

fn loads(flows: &[Flow], gateways: usize, gateway: impl Fn(&Flow) -> usize) -> Loads {
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
    let Some(busiest) = busiest else { return Loads { most: 0.0, overloaded_pct: 0.0 } };
    let mean = busiest.iter().sum::<f64>() / gateways as f64;
    let overloaded = busiest.iter().filter(|load| **load > mean * OVERLOADED).count();
    Loads { most: largest(busiest) / mean, overloaded_pct: overloaded as f64 * 100.0 / gateways as f64 }
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
            Layout::Scattered => ranks(random, total).into_iter().map(|rank| rank - 1).collect(),
        };
        Self { vms, first, place }
    }

    /// Paths of all hosts to the VMs of the VPCs that they have a VM of, without their own VMs.
    fn preprogrammed(&self) -> usize {
        let total = self.place.len();
        let of_vpc = |(first, vms): (&usize, &usize)| {
            let mut on_host = [0; HOSTS];
            for place in &self.place[*first..first + vms] {
                on_host[place * HOSTS / total] += 1;
            }
            on_host.iter().filter(|own| **own > 0).map(|own| vms - own).sum::<usize>()
        };
        self.first.iter().zip(&self.vms).map(of_vpc).sum()
    }
}

/// Places VPCs with these numbers of VMs and relative demands by RGCM on the clusters of the paper's test bed.
pub(crate) fn place(vms: &[usize], demands: &[f64], seed: u64) -> Result<Placement, Failure> {
    let clusters = CLUSTERS
        .iter()
        .zip(1..)
        .map(|(size, id)| Cluster {
            id: ClusterId::new(id),
            capacity_pps: (size * GATEWAY_PPS) as u64,
            capacity_entries: 1 << 20,
        })
        .collect();
    let total: f64 = demands.iter().sum();
    let largest = demands.iter().copied().fold(0.0, f64::max);
    // Only relative demands matter. Clusters are 60% full, or less if the largest VPC would not fit otherwise.
    let smallest = CLUSTERS.iter().min().map_or(0, |gateways| gateways * GATEWAY_PPS) as f64;
    let all = (CLUSTERS.iter().sum::<usize>() * GATEWAY_PPS) as f64 * 0.6;
    let unit = (all / total).min(smallest * 0.9 / largest);
    let vpcs = vms
        .iter()
        .zip(demands)
        .zip(1..)
        .map(|((vms, demand), id)| Vpc {
            id: VpcId::new(id),
            tenant: TenantId::new(id),
            demand_pps: (demand * unit) as u64,
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
        hash: random.number() as u32,
        start_s,
        bps,
    };
    let mut draw = Random::new(count as u64 ^ total as u64);
    if let Workload::MapReduce | Workload::Staggered = workload {
        let mut flows = Vec::new();
        for (vpc, (first, vms)) in cloud.first.iter().zip(&cloud.vms).enumerate() {
            let start_s = if let Workload::Staggered = workload { draw.unit() * BURST_S } else { 0.0 };
            for pair in 0..vms * vms {
                // Each host has 10 Gbit/s, which its VMs share. A VM divides its share among its peers.
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
    fn preprogrammed_hosts_have_paths_to_the_vms_of_other_hosts() {
        // Twenty VMs, one on each host: a VPC of two of them needs one path on each of its hosts.
        let cloud = Cloud { vms: vec![2, 18], first: vec![0, 2], place: (0..20).collect() };
        assert_eq!(cloud.preprogrammed(), 2 + 18 * 17);
    }

    /// Uneven bursts come from the flows, not from the placement.
    #[test]
    fn clusters_have_their_share_of_vms() {
        for seed in 0..5 {
            let cloud = Cloud::draw(Layout::InSequence, &mut Random::new(seed));
            let demands: Vec<f64> = cloud.vms.iter().map(|vms| *vms as f64).collect();
            let placement = place(&cloud.vms, &demands, seed).unwrap();
            let mut vms = [0; CLUSTERS.len()];
            for (vpc, count) in (1..).zip(&cloud.vms) {
                vms[placement[&VpcId::new(vpc)].get() as usize - 1] += count;
            }
            let mean = cloud.vms.iter().sum::<usize>() as f64 / CLUSTERS.iter().sum::<usize>() as f64;
            let most =
                vms.iter().zip(CLUSTERS).map(|(vms, size)| *vms as f64 / size as f64).fold(0.0, f64::max);
            assert!(most <= 1.002 * mean, "seed {seed}: {most} VMs for each gateway, mean {mean}");
        }
    }

    #[test]
    fn one_gateway_with_all_load_is_as_far_above_the_mean_as_there_are_gateways() {
        let flows: Vec<Flow> = (0..8)
            .map(|number| Flow { vpc: 0, source_host_place: number, hash: 0, start_s: 0.0, bps: 1000.0 })
            .collect();
        assert_eq!(loads(&flows, 8, |_| 3), Loads { most: 8.0, overloaded_pct: 12.5 });
        let even = loads(&flows, 8, |flow| flow.source_host_place);
        assert_eq!(even, Loads { most: 1.0, overloaded_pct: 0.0 });
    }
}
