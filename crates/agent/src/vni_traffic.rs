//! Reports the traffic of each VNI to the controller: counters, and only those that changed since the last
//! report. This file changes with the rate or the size of these reports.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use sluice_datapath::Traffic;
use sluice_southbound::MAX_VNI_LOADS;
use sluice_southbound::proto::VniLoad;

/// Time between two reports.
const INTERVAL: Duration = Duration::from_secs(5);

/// The counters reported on one stream.
#[derive(Debug, Default)]
pub struct VniTrafficReport {
    reported: HashMap<u32, Traffic>,
    /// VNI at which a report ended that was full; the next report begins behind it, so each VNI gets its
    /// turn.
    last_vni: u32,
    reported_at: Option<Instant>,
}

impl VniTrafficReport {
    /// Whether a report is due: every [`INTERVAL`], the first one at once. A due report counts as sent.
    pub fn is_due(&mut self) -> bool {
        let due = self.reported_at.is_none_or(|at| at.elapsed() >= INTERVAL);
        if due {
            self.reported_at = Some(Instant::now());
        }
        due
    }

    /// The counters that differ from those of the last report, at most [`MAX_VNI_LOADS`]. A VNI is reported
    /// from its first packet on.
    pub fn changes(&mut self, counters: impl Iterator<Item = (u32, Traffic)>) -> Vec<VniLoad> {
        self.changes_limited(counters, MAX_VNI_LOADS)
    }

    fn changes_limited(
        &mut self,
        counters: impl Iterator<Item = (u32, Traffic)>,
        limit: usize,
    ) -> Vec<VniLoad> {
        let counters: BTreeMap<u32, Traffic> = counters.collect();
        // A VNI that was removed may return, with counters that begin at 0 again.
        let present: HashSet<u32> = counters.keys().copied().collect();
        self.reported.retain(|vni, _| present.contains(vni));
        let behind = counters.range((Bound::Excluded(self.last_vni), Bound::Unbounded));
        let loads: Vec<VniLoad> = behind
            .chain(counters.range(..=self.last_vni))
            .filter(|(vni, traffic)| self.reported.get(vni).copied().unwrap_or_default() != **traffic)
            .take(limit)
            .map(|(vni, traffic)| VniLoad { vni: *vni, packets: traffic.packets, bytes: traffic.bytes })
            .collect();
        for load in &loads {
            self.reported.insert(load.vni, Traffic { packets: load.packets, bytes: load.bytes });
        }
        self.last_vni = loads.last().filter(|_| loads.len() == limit).map_or(0, |load| load.vni);
        loads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(packets: &[(u32, u64)]) -> Vec<(u32, Traffic)> {
        packets
            .iter()
            .map(|(vni, packets)| (*vni, Traffic { packets: *packets, bytes: packets * 64 }))
            .collect()
    }

    fn reported(report: &mut VniTrafficReport, packets: &[(u32, u64)], limit: usize) -> Vec<(u32, u64)> {
        let loads = report.changes_limited(counters(packets).into_iter(), limit);
        assert!(loads.iter().all(|load| load.bytes == load.packets * 64));
        loads.iter().map(|load| (load.vni, load.packets)).collect()
    }

    #[test]
    fn only_changed_counters_are_reported() {
        let mut report = VniTrafficReport::default();
        assert_eq!(reported(&mut report, &[(1, 10), (2, 0), (3, 7)], 9), [(1, 10), (3, 7)]);
        assert_eq!(reported(&mut report, &[(1, 10), (2, 0), (3, 7)], 9), []);
        assert_eq!(reported(&mut report, &[(1, 10), (2, 1), (3, 8)], 9), [(2, 1), (3, 8)]);
        // VNI 3 is removed and returns, by chance with the same count.
        assert_eq!(reported(&mut report, &[(2, 1)], 9), []);
        assert_eq!(reported(&mut report, &[(2, 1), (3, 8)], 9), [(3, 8)]);
    }

    #[test]
    fn each_vni_gets_its_turn_when_reports_are_full() {
        let mut report = VniTrafficReport::default();
        let all = |packets: u64| (1..=5).map(|vni| (vni, packets)).collect::<Vec<_>>();
        let vnis = |loads: Vec<(u32, u64)>| loads.into_iter().map(|(vni, _)| vni).collect::<Vec<_>>();
        assert_eq!(vnis(reported(&mut report, &all(1), 2)), [1, 2]);
        assert_eq!(vnis(reported(&mut report, &all(2), 2)), [3, 4]);
        assert_eq!(vnis(reported(&mut report, &all(3), 2)), [5, 1]);
        assert_eq!(reported(&mut report, &all(3), 9), [(2, 3), (3, 3), (4, 3)]);
        assert_eq!(reported(&mut report, &all(3), 9), []);
    }

    #[test]
    fn reports_are_due_at_once_and_then_every_interval() {
        let mut report = VniTrafficReport::default();
        assert!(report.is_due());
        assert!(!report.is_due());
        report.reported_at = Instant::now().checked_sub(INTERVAL);
        assert!(report.is_due());
    }
}
