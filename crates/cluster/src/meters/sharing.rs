//! A gateway's part in the sharing of meters: what it reports, and which shares it takes, as a state machine without clock and sockets.

use super::allocation::share;
use super::report::{DEMAND_MAX, Demand, MeterReport};
use sluice_types::{GatewayId, METER_WHOLE};
use std::collections::BTreeMap;

/// Interval at which the caller ticks.
pub const TICK_US: u64 = 100_000;

/// Interval of reports about a meter of which no other gateway has reported demand.
const ALONE_US: u64 = 500_000;

/// A report counts for this time: 15 reports in a row may be lost before a gateway counts as without demand. Also the time after its
/// start in which a gateway takes no larger share than it had before, because it may not have heard others yet.
const EXPIRY_US: u64 = 1_500_000;

/// Reports of a gateway that has died do not count for this time: it may have sent them before.
const LOST_US: u64 = 2 * TICK_US;

/// How often a gateway reports that it has no demand any more.
const LAST_REPORTS: u8 = 3;

/// Demand below this part of the rate that does not go on counts as none.
const NEGLIGIBLE_PARTS: u64 = 1_024;

/// What a gateway measures of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The controller's identifier.
    pub id: u32,
    /// Rates inward and outward in bytes per second; 0: no limit.
    pub rates: [u64; 2],
    /// The shares of them, in millionths, that this gateway enforces.
    pub shares: [u32; 2],
    /// Bytes of IP packets that were offered since the meter is there, whether they passed or not.
    pub offered: [u64; 2],
}

/// What a gateway does after it has measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Reports for each other gateway.
    pub reports: Vec<MeterReport>,
    /// Meters whose shares are others than those in the sample: identifiers, and the shares inward and outward in millionths.
    pub shares: Vec<(u32, [u32; 2])>,
}

/// Demand that another gateway has reported.
#[derive(Clone, Copy, Debug)]
struct Heard {
    from: GatewayId,
    at_us: u64,
    demand: [u64; 2],
}

/// What is known of a meter.
#[derive(Clone, Debug, Default)]
struct Known {
    /// When it was measured, and the bytes offered until then.
    measured: Option<(u64, [u64; 2])>,
    /// Recent demand at this gateway in bytes per second, as it is reported.
    demand: [u64; 2],
    reported_us: Option<u64>,
    /// Reports that are left to be sent about the end of the demand.
    last_reports: u8,
    others: Vec<Heard>,
}

impl Known {
    /// Follows the demand: half of it is that of the last interval, a quarter that of the one before, and so on.
    fn measure(&mut self, now_us: u64, sample: &Sample) {
        let before = self.measured.replace((now_us, sample.offered));
        let Some((elapsed_us, before)) = before.map(|(at_us, before)| (now_us.saturating_sub(at_us), before))
        else {
            return;
        };
        for (direction, demand) in self.demand.iter_mut().enumerate() {
            let rate = sample.rates[direction];
            let bytes = sample.offered[direction].saturating_sub(before[direction]);
            let last = u128::from(bytes) * 1_000_000 / u128::from(elapsed_us.max(1));
            let last = u64::try_from(last).unwrap_or(u64::MAX).min(DEMAND_MAX);
            *demand = if *demand == 0 { last } else { (*demand + last) / 2 };
            if rate == 0 || (last == 0 && *demand <= rate / NEGLIGIBLE_PARTS) {
                *demand = 0;
            }
        }
    }

    fn has_demand(&self) -> bool {
        self.demand != [0, 0]
    }

    /// Whether the demand is to be reported now: often only while other gateways have some.
    fn is_due(&mut self, now_us: u64) -> bool {
        let is_due = if self.has_demand() {
            let waits = |at_us| self.others.is_empty() && now_us < at_us + ALONE_US;
            !self.reported_us.filter(|_| self.last_reports > 0).is_some_and(waits)
        } else {
            self.last_reports > 0
        };
        if is_due {
            self.reported_us = Some(now_us);
            self.last_reports = if self.has_demand() { LAST_REPORTS } else { self.last_reports - 1 };
        }
        is_due
    }

    /// The share that this gateway has in a direction.
    fn share(&self, direction: usize, sample: &Sample, members: usize) -> u32 {
        let (rate, own) = (sample.rates[direction], self.demand[direction]);
        let others: Vec<u64> = self.others.iter().map(|heard| heard.demand[direction]).collect();
        let is_idle = own == 0 && others.iter().all(|other| *other == 0);
        // What divided the rate well before a pause probably does so after it.
        if rate == 0 || is_idle { sample.shares[direction] } else { share(rate, members, own, &others) }
    }
}

/// The meters of a gateway, and the demand at the gateways of its cluster.
#[derive(Debug)]
pub struct MeterSharing {
    own: GatewayId,
    members: Vec<GatewayId>,
    /// Gateways that have died, and when their reports count again.
    lost: BTreeMap<GatewayId, u64>,
    /// Until then no share is larger than before.
    cautious_until_us: u64,
    meters: BTreeMap<u32, Known>,
}

impl MeterSharing {
    /// A gateway whose agent starts.
    #[must_use]
    pub const fn new(own: GatewayId) -> Self {
        Self {
            own,
            members: Vec::new(),
            lost: BTreeMap::new(),
            cautious_until_us: 0,
            meters: BTreeMap::new(),
        }
    }

    /// Sets the members of the cluster. A gateway that becomes one has heard nothing yet.
    pub fn set_members(&mut self, now_us: u64, members: Vec<GatewayId>) {
        if !self.members.contains(&self.own) && members.contains(&self.own) {
            self.cautious_until_us = now_us + EXPIRY_US;
        }
        self.members = members;
        let members = if self.is_shared() { &self.members[..] } else { &[] };
        for meter in self.meters.values_mut() {
            meter.others.retain(|heard| members.contains(&heard.from));
        }
        self.lost.retain(|gateway, _| members.contains(gateway));
    }

    /// Another gateway has died: hosts and routers send what passed it to others.
    pub fn lose(&mut self, now_us: u64, gateway: GatewayId) {
        self.lost.insert(gateway, now_us + LOST_US);
        for meter in self.meters.values_mut() {
            meter.others.retain(|heard| heard.from != gateway);
        }
    }

    /// Handles a report. Meters that this gateway does not have are ignored: it gets them later, and the next report soon after.
    ///
    /// Returns false if the sender is not another gateway of the cluster.
    pub fn receive(&mut self, now_us: u64, from: GatewayId, report: &MeterReport) -> bool {
        if from == self.own || !self.is_shared() || !self.members.contains(&from) {
            return false;
        }
        if self.lost.get(&from).is_some_and(|until_us| now_us < *until_us) {
            return true;
        }
        for Demand { id, bytes_per_s: demand } in &report.demands {
            let Some(meter) = self.meters.get_mut(id) else { continue };
            meter.others.retain(|heard| heard.from != from);
            if *demand != [0, 0] {
                meter.others.push(Heard { from, at_us: now_us, demand: *demand });
            }
        }
        true
    }

    /// Measures all meters, at an interval of [`TICK_US`]. Those without a sample are gone.
    pub fn tick(&mut self, now_us: u64, samples: &[Sample]) -> Turn {
        let mut before = std::mem::take(&mut self.meters);
        let (is_shared, mut demands, mut turn) = (self.is_shared(), Vec::new(), Turn::default());
        for sample in samples {
            let mut meter = before.remove(&sample.id).unwrap_or_default();
            meter.measure(now_us, sample);
            meter.others.retain(|heard| now_us < heard.at_us + EXPIRY_US);
            if is_shared && meter.is_due(now_us) {
                demands.push(Demand { id: sample.id, bytes_per_s: meter.demand });
            }
            let shares = [0, 1].map(|direction| match is_shared {
                true => meter.share(direction, sample, self.members.len()),
                false => METER_WHOLE,
            });
            let [inward, outward] = [0, 1].map(|direction| {
                let most = if is_shared && now_us < self.cautious_until_us {
                    sample.shares[direction]
                } else {
                    METER_WHOLE
                };
                shares[direction].min(most)
            });
            if [inward, outward] != sample.shares {
                turn.shares.push((sample.id, [inward, outward]));
            }
            self.meters.insert(sample.id, meter);
        }
        demands.sort_unstable_by_key(|demand| demand.id);
        turn.reports = MeterReport::in_parts(&demands);
        turn
    }

    /// Meters of which other gateways have demand.
    #[must_use]
    pub fn shared_meters(&self) -> usize {
        self.meters.values().filter(|meter| !meter.others.is_empty()).count()
    }

    /// Whether there is another gateway to share with.
    fn is_shared(&self) -> bool {
        self.members.len() > 1 && self.members.contains(&self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1_000_000;

    fn id(number: u64) -> GatewayId {
        GatewayId::new(number)
    }

    fn report(id: u32, outward: u64) -> MeterReport {
        MeterReport { demands: vec![Demand { id, bytes_per_s: [0, outward] }] }
    }

    /// Gateway 1 of three, with a meter for packets outward, whose shares are applied at once.
    struct Gateway {
        sharing: MeterSharing,
        now_us: u64,
        sample: Sample,
    }

    impl Gateway {
        fn new() -> Self {
            let mut sharing = MeterSharing::new(id(1));
            sharing.set_members(0, vec![id(1), id(2), id(3)]);
            let sample = Sample { id: 7, rates: [0, RATE], shares: [METER_WHOLE; 2], offered: [0; 2] };
            let mut this = Self { sharing, now_us: 0, sample };
            this.pass(20, 0);
            this
        }

        /// Lets intervals pass, with this demand. Returns how many of them had a report.
        fn pass(&mut self, ticks: usize, bytes_per_s: u64) -> usize {
            let mut reported = 0;
            for _ in 0..ticks {
                self.now_us += TICK_US;
                self.sample.offered[1] += bytes_per_s / 10;
                let turn = self.sharing.tick(self.now_us, &[self.sample]);
                reported += turn.reports.len();
                for (_, shares) in turn.shares {
                    assert_ne!(shares, self.sample.shares);
                    self.sample.shares = shares;
                }
            }
            reported
        }

        fn hear(&mut self, from: u64, outward: u64) {
            assert!(self.sharing.receive(self.now_us, id(from), &report(7, outward)));
        }
    }

    #[test]
    fn meters_are_reported_often_only_while_others_have_demand() {
        let mut gateway = Gateway::new();
        assert_eq!(gateway.pass(100, 0), 0);
        assert_eq!(gateway.pass(1, 4 * RATE), 1, "new demand is reported at once");
        assert_eq!(gateway.pass(50, 4 * RATE), 10);
        gateway.hear(2, RATE);
        assert_eq!(gateway.pass(10, 4 * RATE), 10);
        gateway.hear(2, 0);
        assert_eq!(gateway.pass(50, 4 * RATE), 10);
        // The demand is halved until it is negligible, and its end is reported three times.
        assert_eq!(gateway.pass(11, 0), 2);
        assert_eq!(gateway.pass(100, 0), 3);
    }

    #[test]
    fn shares_follow_reports_until_these_expire() {
        let mut gateway = Gateway::new();
        gateway.pass(10, 4 * RATE);
        assert_eq!(gateway.sample.shares, [METER_WHOLE; 2]);
        gateway.hear(2, 4 * RATE);
        gateway.pass(1, 4 * RATE);
        assert_eq!(gateway.sample.shares, [METER_WHOLE, METER_WHOLE / 2]);
        gateway.hear(3, 4 * RATE);
        gateway.pass(1, 4 * RATE);
        assert_eq!(gateway.sample.shares[1], 333_333);
        gateway.sharing.lose(gateway.now_us, id(3));
        gateway.hear(3, 4 * RATE);
        gateway.pass(1, 4 * RATE);
        assert_eq!(gateway.sample.shares[1], METER_WHOLE / 2);
        gateway.pass(11, 4 * RATE);
        assert_eq!(gateway.sample.shares[1], METER_WHOLE / 2);
        gateway.pass(1, 4 * RATE);
        assert_eq!(gateway.sample.shares[1], METER_WHOLE, "no other gateway is heard");
    }

    #[test]
    fn gateway_without_demand_keeps_its_share_unless_others_have_demand() {
        let mut gateway = Gateway::new();
        gateway.hear(2, 2 * RATE);
        gateway.pass(1, 0);
        assert_eq!(gateway.sample.shares[1], METER_WHOLE / 12, "a twelfth is guaranteed to each of three");
        gateway.hear(2, 0);
        gateway.pass(100, 0);
        assert_eq!(gateway.sample.shares[1], METER_WHOLE / 12);
        gateway.pass(1, 10);
        assert_eq!(gateway.sample.shares[1], METER_WHOLE, "it alone has demand");
    }

    #[test]
    fn agent_that_starts_takes_no_larger_share_before_it_can_have_heard_others() {
        let mut gateway = Gateway::new();
        gateway.sharing = MeterSharing::new(id(1));
        gateway.sample.shares = [METER_WHOLE, 400_000];
        gateway.sharing.set_members(gateway.now_us, vec![id(1), id(2)]);
        gateway.pass(5, 4 * RATE);
        assert_eq!(gateway.sample.shares[1], 400_000);
        gateway.hear(2, 12 * RATE);
        gateway.pass(1, 4 * RATE);
        assert_eq!(gateway.sample.shares[1], 309_523);
        gateway.sharing.lose(gateway.now_us, id(2));
        gateway.pass(8, 4 * RATE);
        assert_eq!(gateway.sample.shares[1], 309_523);
        gateway.pass(1, 4 * RATE);
        assert_eq!(gateway.sample.shares[1], METER_WHOLE);
    }

    #[test]
    fn only_members_are_heard() {
        let mut gateway = Gateway::new();
        for stranger in [1, 4] {
            assert!(!gateway.sharing.receive(0, id(stranger), &report(7, RATE)), "{stranger}");
        }
        assert!(gateway.sharing.receive(0, id(2), &report(8, RATE)), "a meter that comes later");
        assert_eq!(gateway.sharing.shared_meters(), 0);
        gateway.hear(2, RATE);
        gateway.hear(3, RATE);
        gateway.pass(10, 4 * RATE);
        assert_eq!((gateway.sharing.shared_meters(), gateway.sample.shares[1] < METER_WHOLE), (1, true));
        // The cluster gets smaller, and then this gateway leaves it.
        gateway.sharing.set_members(gateway.now_us, vec![id(1), id(2)]);
        gateway.pass(1, 4 * RATE);
        assert_eq!((gateway.sharing.shared_meters(), gateway.sample.shares[1] < METER_WHOLE), (1, true));
        gateway.sharing.set_members(gateway.now_us, vec![id(2)]);
        gateway.pass(1, 4 * RATE);
        assert_eq!((gateway.sharing.shared_meters(), gateway.sample.shares[1]), (0, METER_WHOLE));
        assert!(!gateway.sharing.receive(0, id(2), &report(7, RATE)), "not of the cluster any more");
    }

    #[test]
    fn meter_that_was_removed_begins_again() {
        let mut gateway = Gateway::new();
        gateway.hear(2, RATE);
        gateway.pass(5, 4 * RATE);
        assert_eq!(gateway.sharing.tick(gateway.now_us, &[]), Turn::default());
        assert_eq!(gateway.sharing.shared_meters(), 0);
        gateway.sample.shares = [METER_WHOLE; 2];
        assert_eq!(gateway.pass(1, 1 << 40), 0, "it was not measured before");
        assert_eq!(gateway.sample.shares, [METER_WHOLE; 2]);
    }
}
