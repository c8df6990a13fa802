//! Measures the traffic of each VPC: packet rates from the packet counts that gateways report.
//!
//! A gateway reports the cumulative counts of those VNIs whose count changed. The packets of a VPC arrive at
//! all gateways of its cluster, so its rate is the sum of their rates. Placement needs the traffic of minutes,
//! not of a second: the sum is smoothed exponentially as a function of time, so the result does not depend on
//! when the reports arrive.

use sluice_types::{GatewayId, Vni};
use std::collections::{BTreeMap, HashMap};

/// Time constant of the smoothing in milliseconds: after this time, 63% of a change is visible.
pub const SMOOTHING_MS: u64 = 60_000;
/// A VNI whose count has not changed for this time is forgotten.
const FORGOTTEN_MS: u64 = 3_600_000;

/// Cumulative count of one VNI on one gateway.
#[derive(Clone, Copy, Debug)]
struct Count {
    packets: u64,
    /// When the count was last confirmed.
    known_ms: u64,
    /// When it last changed.
    changed_ms: u64,
    /// Rate between the last two confirmed values.
    pps: u64,
}

#[derive(Clone, Debug, Default)]
struct Gateway {
    reports: u64,
    vnis: HashMap<Vni, Count>,
}

/// A smoothed rate. The rate is constant between changes.
#[derive(Clone, Copy, Debug)]
struct Smoothed {
    now_pps: u64,
    /// Exponentially weighted integral of the rate.
    sum: f64,
    /// Weight of the integral.
    weight: f64,
    at_ms: u64,
}

impl Smoothed {
    fn new(at_ms: u64) -> Self {
        Self { now_pps: 0, sum: 0.0, weight: 0.0, at_ms }
    }

    fn advanced(mut self, now_ms: u64) -> Self {
        let elapsed_ms = now_ms.saturating_sub(self.at_ms);
        let keeps = (-(elapsed_ms as f64) / SMOOTHING_MS as f64).exp();
        self.sum = self.sum * keeps + self.now_pps as f64 * (1.0 - keeps);
        self.weight = self.weight * keeps + (1.0 - keeps);
        self.at_ms = self.at_ms.max(now_ms);
        self
    }

    fn value(self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { self.now_pps as f64 }
    }

    /// Whether it rounds to zero.
    fn is_zero(self, now_ms: u64) -> bool {
        self.now_pps == 0 && self.advanced(now_ms).value() < 0.5
    }
}

/// Packet rates of all VNIs.
#[derive(Clone, Debug, Default)]
pub struct Demands {
    gateways: BTreeMap<GatewayId, Gateway>,
    vnis: HashMap<Vni, Smoothed>,
}

impl Demands {
    /// Adds a gateway's report at `now_ms`: packet counts by VNI. If `complete` is true, the counts of all
    /// other VNIs have not changed since the last report. The first count of a VNI on a stream, and a count
    /// that is lower than the one before, only start the measurement.
    pub fn report(
        &mut self,
        id: GatewayId,
        counts: impl IntoIterator<Item = (Vni, u64)>,
        complete: bool,
        now_ms: u64,
    ) {
        let Self { gateways, vnis } = self;
        let gateway = gateways.entry(id).or_default();
        gateway.reports += 1;
        for (vni, packets) in counts {
            let now = Count { packets, known_ms: now_ms, changed_ms: now_ms, pps: 0 };
            let Some(before) = gateway.vnis.insert(vni, now) else { continue };
            let elapsed_ms = now_ms.saturating_sub(before.known_ms);
            let pps = match packets.checked_sub(before.packets) {
                // Two reports in one millisecond give no rate.
                Some(_) if elapsed_ms == 0 => before.pps,
                Some(more) => rate(more, elapsed_ms),
                None => 0,
            };
            gateway.vnis.insert(vni, Count { pps, ..now });
            change(vnis, vni, before.pps, pps, now_ms);
        }
        if complete {
            for (vni, count) in &mut gateway.vnis {
                if count.known_ms < now_ms {
                    change(vnis, *vni, count.pps, 0, now_ms);
                    (count.pps, count.known_ms) = (0, now_ms);
                }
            }
            gateway.vnis.retain(|vni, count| {
                let is_recent = now_ms.saturating_sub(count.changed_ms) < FORGOTTEN_MS;
                // Another gateway may still count it.
                if !is_recent && vnis.get(vni).is_some_and(|rate| rate.is_zero(now_ms)) {
                    vnis.remove(vni);
                }
                is_recent
            });
        }
    }

    /// Forgets a gateway whose stream ended or starts: other gateways forward its traffic now.
    pub fn forget(&mut self, id: GatewayId, now_ms: u64) {
        for (vni, count) in self.gateways.remove(&id).unwrap_or_default().vnis {
            change(&mut self.vnis, vni, count.pps, 0, now_ms);
        }
        self.vnis.retain(|_, rate| !rate.is_zero(now_ms));
    }

    /// Smoothed rate of each VNI that had traffic in the last hour, in packets a second.
    pub fn all(&self, now_ms: u64) -> HashMap<Vni, f64> {
        self.vnis.iter().map(|(vni, rate)| (*vni, rate.advanced(now_ms).value())).collect()
    }

    /// True if the gateway has sent at least two reports. Then a VNI without a count has no traffic there.
    pub fn is_measured(&self, id: GatewayId) -> bool {
        self.gateways.get(&id).is_some_and(|gateway| gateway.reports >= 2)
    }
}

fn rate(packets: u64, elapsed_ms: u64) -> u64 {
    u64::try_from(u128::from(packets) * 1000 / u128::from(elapsed_ms)).unwrap_or(u64::MAX)
}

/// Changes one gateway's part of a VNI's rate.
fn change(vnis: &mut HashMap<Vni, Smoothed>, vni: Vni, before: u64, now: u64, now_ms: u64) {
    if before == now && (now == 0 || vnis.contains_key(&vni)) {
        return;
    }
    let rate = vnis.entry(vni).or_insert_with(|| Smoothed::new(now_ms));
    *rate = rate.advanced(now_ms);
    rate.now_pps = rate.now_pps.saturating_sub(before).saturating_add(now);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vni(number: u32) -> Vni {
        Vni::new(number).unwrap()
    }

    const ONE: GatewayId = GatewayId::new(1);
    const TWO: GatewayId = GatewayId::new(2);

    fn of(demands: &Demands, number: u32, now_ms: u64) -> Option<f64> {
        demands.all(now_ms).get(&vni(number)).copied()
    }

    fn rounded(demands: &Demands, number: u32, now_ms: u64) -> Option<u64> {
        of(demands, number, now_ms).map(|pps| pps.round() as u64)
    }

    #[test]
    fn first_count_only_starts_the_measurement() {
        let mut demands = Demands::default();
        demands.report(ONE, [(vni(7), 1_000_000)], true, 1_000);
        assert_eq!(of(&demands, 7, 1_000), None);
        assert!(!demands.is_measured(ONE));
        demands.report(ONE, [(vni(7), 1_010_000)], true, 6_000);
        assert_eq!(rounded(&demands, 7, 6_000), Some(2_000), "the first rate is not smoothed");
        assert!(demands.is_measured(ONE) && !demands.is_measured(TWO));
        // The counter restarts at a lower value.
        demands.report(ONE, [(vni(7), 5)], true, 11_000);
        demands.report(ONE, [(vni(7), 10_005)], true, 16_000);
        assert!(of(&demands, 7, 16_000).unwrap() < 2_001.0, "a lower count gives no rate");
    }

    #[test]
    fn rates_of_gateways_add_up_and_decay() {
        let mut demands = Demands::default();
        for (id, counts) in [(ONE, [0, 5_000, 10_000]), (TWO, [7, 15_007, 30_007])] {
            for (at, packets) in (0..).step_by(5_000).zip(counts) {
                demands.report(id, [(vni(9), packets)], true, at);
            }
        }
        // From the fifth second on, 1,000 packets a second of gateway 1 and 3,000 of gateway 2.
        assert_eq!(rounded(&demands, 9, 600_000), Some(4_000));
        // A complete report without the VNI: its count has not changed, so it has no traffic.
        demands.report(ONE, [], true, 600_000);
        let after = of(&demands, 9, 600_000 + SMOOTHING_MS).unwrap();
        assert!((after - (3_000.0 + 1_000.0 / std::f64::consts::E)).abs() < 2.0, "{after}");
        // An incomplete report says nothing about the VNIs that it omits.
        demands.report(TWO, [(vni(8), 1)], false, 605_000);
        assert!(rounded(&demands, 9, 2_000_000).unwrap() >= 2_999);
        demands.forget(TWO, 2_000_000);
        demands.forget(ONE, 3_000_000);
        assert_eq!(of(&demands, 9, 3_000_000), None, "no gateway forwards it");
    }

    #[test]
    fn vni_without_traffic_is_forgotten() {
        let mut demands = Demands::default();
        for id in [ONE, TWO] {
            demands.report(id, [(vni(7), 0)], true, 0);
            demands.report(id, [(vni(7), 1_000)], true, 1_000);
        }
        demands.report(ONE, [], true, 2_000);
        let later_ms = 1_000 + FORGOTTEN_MS;
        demands.report(TWO, [(vni(7), 9_000_000)], true, later_ms - 10_000);
        demands.report(ONE, [], true, later_ms);
        assert!(demands.gateways[&ONE].vnis.is_empty());
        assert!(of(&demands, 7, later_ms).is_some(), "the other gateway counts it");
        demands.report(TWO, [], true, later_ms + 1_000);
        demands.report(TWO, [], true, later_ms + FORGOTTEN_MS);
        assert_eq!(of(&demands, 7, later_ms + FORGOTTEN_MS), None);
        assert!(demands.vnis.is_empty());
    }

    #[test]
    fn rate_does_not_depend_on_the_report_interval() {
        let demand = |step_ms: u64| {
            let mut demands = Demands::default();
            for at in (0..=120_000).step_by(step_ms as usize) {
                // 500 packets a second for a minute, then 100.
                let packets = if at <= 60_000 { at / 2 } else { 30_000 + (at - 60_000) / 10 };
                demands.report(ONE, [(vni(3), packets)], true, at);
            }
            of(&demands, 3, 120_000).unwrap()
        };
        let (fine, coarse) = (demand(500), demand(5_000));
        assert!((fine - coarse).abs() < 20.0 && fine > 100.0 && fine < 500.0, "{fine} and {coarse}");
    }

    #[test]
    fn maximum_counts_do_not_overflow() {
        let mut demands = Demands::default();
        demands.report(ONE, [(vni(1), 0)], true, 0);
        demands.report(ONE, [(vni(1), u64::MAX)], true, 1);
        demands.report(TWO, [(vni(1), 0)], true, 1);
        demands.report(TWO, [(vni(1), u64::MAX)], true, 2);
        assert!(of(&demands, 1, 10).unwrap().is_finite());
        demands.report(ONE, [(vni(1), u64::MAX)], true, 1);
    }
}
