//! What a gateway tells of the traffic of each VNI: counts, and only of those that
//! changed.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use sluice_datapath::Traffic;
use sluice_southbound::MAX_VNI_LOADS;
use sluice_southbound::proto::VniLoad;

/// Between two lists.
const EVERY: Duration = Duration::from_secs(5);

/// What was told on one stream.
#[derive(Debug, Default)]
pub struct VniLoads {
    told: HashMap<u32, Traffic>,
    /// The list before ended here: where there is more than fits, each gets its turn.
    last: u32,
    listed: Option<Instant>,
}

impl VniLoads {
    /// True every few seconds, the first time at once.
    pub fn is_due(&mut self) -> bool {
        let due = self.listed.is_none_or(|at| at.elapsed() >= EVERY);
        if due {
            self.listed = Some(Instant::now());
        }
        due
    }

    /// The counts that are not as they were last told, at most [`MAX_VNI_LOADS`]; a VNI without traffic
    /// is told of from its first packet on.
    pub fn changed(&mut self, now: impl Iterator<Item = (u32, Traffic)>) -> Vec<VniLoad> {
        self.changed_at_most(now, MAX_VNI_LOADS)
    }

    fn changed_at_most(&mut self, now: impl Iterator<Item = (u32, Traffic)>, most: usize) -> Vec<VniLoad> {
        let now: std::collections::BTreeMap<u32, Traffic> = now.collect();
        // A VNI that is gone may come back, its counters begun anew.
        let there: HashSet<u32> = now.keys().copied().collect();
        self.told.retain(|vni, _| there.contains(vni));
        let behind = now.range((Bound::Excluded(self.last), Bound::Unbounded));
        let loads: Vec<VniLoad> = behind
            .chain(now.range(..=self.last))
            .filter(|(vni, traffic)| self.told.get(vni).copied().unwrap_or_default() != **traffic)
            .take(most)
            .map(|(vni, traffic)| VniLoad { vni: *vni, packets: traffic.packets, bytes: traffic.bytes })
            .collect();
        for load in &loads {
            self.told.insert(load.vni, Traffic { packets: load.packets, bytes: load.bytes });
        }
        self.last = loads.last().filter(|_| loads.len() == most).map_or(0, |load| load.vni);
        loads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(packets: &[(u32, u64)]) -> Vec<(u32, Traffic)> {
        packets
            .iter()
            .map(|(vni, packets)| (*vni, Traffic { packets: *packets, bytes: packets * 64 }))
            .collect()
    }

    fn told(loads: &mut VniLoads, packets: &[(u32, u64)], most: usize) -> Vec<(u32, u64)> {
        let told = loads.changed_at_most(counts(packets).into_iter(), most);
        assert!(told.iter().all(|load| load.bytes == load.packets * 64));
        told.iter().map(|load| (load.vni, load.packets)).collect()
    }

    #[test]
    fn only_what_changed_is_told() {
        let mut loads = VniLoads::default();
        assert_eq!(told(&mut loads, &[(1, 10), (2, 0), (3, 7)], 9), [(1, 10), (3, 7)]);
        assert_eq!(told(&mut loads, &[(1, 10), (2, 0), (3, 7)], 9), []);
        assert_eq!(told(&mut loads, &[(1, 10), (2, 1), (3, 8)], 9), [(2, 1), (3, 8)]);
        // Gone and there again, with as many packets by chance.
        assert_eq!(told(&mut loads, &[(2, 1)], 9), []);
        assert_eq!(told(&mut loads, &[(2, 1), (3, 8)], 9), [(3, 8)]);
    }

    #[test]
    fn where_there_is_too_much_each_gets_its_turn() {
        let mut loads = VniLoads::default();
        let all = |packets: u64| (1..=5).map(|vni| (vni, packets)).collect::<Vec<_>>();
        let vnis = |told: Vec<(u32, u64)>| told.into_iter().map(|(vni, _)| vni).collect::<Vec<_>>();
        assert_eq!(vnis(told(&mut loads, &all(1), 2)), [1, 2]);
        assert_eq!(vnis(told(&mut loads, &all(2), 2)), [3, 4]);
        assert_eq!(vnis(told(&mut loads, &all(3), 2)), [5, 1]);
        assert_eq!(told(&mut loads, &all(3), 9), [(2, 3), (3, 3), (4, 3)]);
        assert_eq!(told(&mut loads, &all(3), 9), []);
    }

    #[test]
    fn lists_are_due_at_once_and_then_now_and_again() {
        let mut loads = VniLoads::default();
        assert!(loads.is_due());
        assert!(!loads.is_due());
        loads.listed = Instant::now().checked_sub(EVERY);
        assert!(loads.is_due());
    }
}
