//! How evenly long-lived traffic loads gateways in the paper's public and private clouds (Zeta figure 26). It is
//! computed like the bursts (`burst.rs`), and changes with them.

use crate::burst::{gateway_of, place};
use crate::demands::Cloud;
use crate::launch::sizes;
use crate::{CLUSTERS, Failure, Outcome, Settings};
use sluice_bench_report::{Better, Measure};
use sluice_types::Random;

/// Clouds, their containers and the names of the measures.
const CASES: [(&str, Cloud, usize); 2] =
    [("steady_public_100k", Cloud::PUBLIC, 100_000), ("steady_private_10k", Cloud::PRIVATE, 10_000)];
/// Part of the pairs of containers of a VPC that communicate, and their rates in bit/s (section VIII-D).
const PAIRS: f64 = 0.16;
const RATES: (f64, f64) = (10e3, 1e9);
/// Rate from which a flow has a direct path, in bit/s.
const ELEPHANT_BPS: f64 = 20e3;

/// Largest and smallest load divided by the mean.
struct Spread {
    most: f64,
    least: f64,
}

pub fn measure(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    for (name, cloud, count) in CASES {
        let sizes = sizes(&cloud, count / settings.scale)?;
        let (mut most, mut least) = (Vec::new(), Vec::new());
        for seed in 0..settings.rounds as u64 {
            let (ours, zones) = one_draw(&sizes, seed)?;
            most.push((ours.most, zones.most));
            least.push((ours.least, zones.least));
        }
        for (measure, better, pairs) in
            [("max_over_mean", Better::Less, most), ("min_over_mean", Better::More, least)]
        {
            let name = format!("{name}_{measure}");
            outcome.measures.push(Measure::compared(name, "x", better, "gwzone", &pairs));
        }
    }
    Ok(())
}

/// Loads under Zeta and under GWZone. Elephants have direct paths, so only the other flows load gateways.
fn one_draw(sizes: &[usize], seed: u64) -> Result<(Spread, Spread), Failure> {
    let mut random = Random::new(seed);
    let pairs = |size: usize| (size * (size - 1)) as f64;
    // Long-lived traffic is measured, so the placement knows it.
    let demands: Vec<f64> = sizes.iter().map(|size| pairs(*size).max(1.0)).collect();
    let placement = place(sizes, &demands, seed)?;
    let (gateways, total): (usize, usize) = (CLUSTERS.iter().sum(), sizes.iter().sum());
    let (mut ours, mut zones) = (vec![0.0; gateways], vec![0.0; gateways]);
    // Rates are evenly distributed on a logarithmic scale.
    let mice = (ELEPHANT_BPS / RATES.0).ln() / (RATES.1 / RATES.0).ln();
    let mut first = 0;
    for (vpc, size) in sizes.iter().enumerate() {
        for _ in 0..(pairs(*size) * PAIRS * mice).round() as usize {
            let bps = RATES.0 * (ELEPHANT_BPS / RATES.0).powf(random.unit());
            let source = first + (random.unit() * *size as f64) as usize;
            ours[gateway_of(&placement, vpc, random.number() as u32)] += bps;
            zones[source * gateways / total] += bps;
        }
        first += size;
    }
    Ok((spread(&ours), spread(&zones)))
}

fn spread(loads: &[f64]) -> Spread {
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    let of = |pick: fn(f64, f64) -> f64, start| loads.iter().copied().fold(start, pick) / mean;
    Spread { most: of(f64::max, 0.0), least: of(f64::min, f64::INFINITY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches flows that are counted for another zone than that of their source.
    #[test]
    fn a_large_vpc_loads_its_zones_and_all_gateways_of_its_cluster() {
        let mut sizes = vec![2; 450];
        sizes[0] = 900;
        let (ours, zones) = one_draw(&sizes, 1).unwrap();
        // Its instances are in half of the zones, which have all of its traffic.
        assert!((1.8..2.2).contains(&zones.most) && zones.least < 0.1, "{} {}", zones.most, zones.least);
        // It is on one of ten clusters, with four or five of 45 gateways.
        assert!((8.0..13.0).contains(&ours.most), "{}", ours.most);
    }
}
