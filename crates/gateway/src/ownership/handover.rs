//! A vIP moves from a gateway to another one without a moment in which neither answers for it. An agent says that it owns a vIP before its
//! tables do, by the time that its table writer takes.
//!
//! - The one that has given the vIP up answers for it a moment longer. Otherwise packets by NAT gateways would be dropped: each of the two would pass
//!   them on to the other one. Two owners do no harm (`docs/decisions/nat-replication.md`).
//! - The one that gets it announces it when its tables answer for it. Otherwise it would pass these packets on to where switches already
//!   expect the vIP, which is itself. If the previous owner has died, it announces the vIP at once.
//!
//! This changes with the order in which a vIP moves.

use super::local_member::OwnedVips;
use sluice_types::MacAddr;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longer than the next owner waits before its first announcement, and shorter than until the next one, 20 ms later: neighbors and switches that hear
/// from both gateways in this time follow the last one, and the second announcement corrects them.
const LINGER_US: u64 = 15_000;

/// Longest time for which an announcement waits for the tables: packets without source NAT need only the announcement.
const WAIT_US: u64 = 5_000;
/// Interval at which it is checked whether the tables answer.
const CHECK_US: u64 = 200;

/// Says that the tables answer for what they were told to.
#[derive(Debug)]
pub struct Written {
    counter: Arc<AtomicU64>,
    number: u64,
}

impl Written {
    /// They do.
    pub fn done(self) {
        self.counter.fetch_max(self.number, Ordering::Release);
    }
}

/// Announcements that wait until the tables answer.
#[derive(Debug, Default)]
pub struct Announcements {
    /// Number of the last write that was ordered, and of the last one that is done.
    ordered: u64,
    written: Arc<AtomicU64>,
    /// With the time at which each of them came.
    waiting: Vec<(IpAddr, MacAddr, u64)>,
}

impl Announcements {
    /// A write is ordered.
    pub fn order(&mut self) -> Written {
        self.ordered += 1;
        Written { counter: self.written.clone(), number: self.ordered }
    }

    /// An announcement that waits.
    pub fn add(&mut self, now_us: u64, vip: IpAddr, mac: MacAddr) {
        if !self.waiting.iter().any(|(known, ..)| *known == vip) {
            self.waiting.push((vip, mac, now_us));
        }
    }

    /// The vIP is at another gateway.
    pub fn cancel(&mut self, vip: IpAddr) {
        self.waiting.retain(|(known, ..)| *known != vip);
    }

    /// Time at which [`Announcements::take`] is due; `None` if nothing waits.
    pub fn due_us(&self, now_us: u64) -> Option<u64> {
        (!self.waiting.is_empty()).then(|| now_us.saturating_add(CHECK_US))
    }

    /// Takes the announcements that are to be made now.
    pub fn take(&mut self, now_us: u64) -> Vec<(IpAddr, MacAddr)> {
        let is_written = self.written.load(Ordering::Acquire) >= self.ordered;
        let is_due = |(_, _, since_us): &mut (_, _, u64)| is_written || now_us >= *since_us + WAIT_US;
        self.waiting.extract_if(.., is_due).map(|(vip, mac, _)| (vip, mac)).collect()
    }
}

/// The vIPs for which the tables answer.
#[derive(Debug, Default)]
pub struct TableVips {
    owned: OwnedVips,
    /// Those that were given up, with their MAC addresses, and until when the tables answer for them.
    leaving: HashMap<IpAddr, (MacAddr, u64)>,
}

impl TableVips {
    /// The tables answer for these.
    pub fn new(owned: OwnedVips) -> Self {
        Self { owned, leaving: HashMap::new() }
    }

    /// This gateway owns these. Returns those for which the tables are to answer.
    pub fn set(&mut self, now_us: u64, owned: OwnedVips) -> OwnedVips {
        for (vip, mac) in std::mem::replace(&mut self.owned, owned) {
            self.leaving.entry(vip).or_insert((mac, now_us.saturating_add(LINGER_US)));
        }
        self.leaving.retain(|vip, (_, until_us)| !self.owned.contains_key(vip) && *until_us > now_us);
        self.all()
    }

    /// Time at which [`TableVips::expire`] is due; `None` if no vIP was given up.
    pub fn due_us(&self) -> Option<u64> {
        self.leaving.values().map(|(_, until_us)| *until_us).min()
    }

    /// Returns those for which the tables are to answer from now on, if these are others.
    pub fn expire(&mut self, now_us: u64) -> Option<OwnedVips> {
        let before = self.leaving.len();
        self.leaving.retain(|_, (_, until_us)| *until_us > now_us);
        (self.leaving.len() < before).then(|| self.all())
    }

    fn all(&self) -> OwnedVips {
        let leaving = self.leaving.iter().map(|(vip, (mac, _))| (*vip, *mac));
        leaving.chain(self.owned.iter().map(|(vip, mac)| (*vip, *mac))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vips(numbers: &[u8]) -> OwnedVips {
        numbers
            .iter()
            .map(|last| (IpAddr::from([192, 0, 2, *last]), MacAddr::local((*last).into())))
            .collect()
    }

    #[test]
    fn tables_answer_for_a_vip_for_a_moment_longer() {
        let mut tables = TableVips::new(vips(&[1, 2]));
        assert_eq!((tables.set(1_000, vips(&[2, 3])), tables.due_us()), (vips(&[1, 2, 3]), Some(16_000)));
        // A further change does not make it longer.
        assert_eq!(tables.set(11_000, vips(&[3])), vips(&[1, 2, 3]));
        assert_eq!((tables.expire(15_999), tables.due_us()), (None, Some(16_000)));
        assert_eq!((tables.expire(16_000), tables.due_us()), (Some(vips(&[2, 3])), Some(26_000)));
        assert_eq!(tables.expire(50_000), Some(vips(&[3])));
        assert_eq!((tables.expire(60_000), tables.due_us()), (None, None));
    }

    #[test]
    fn a_vip_that_returns_meanwhile_stays() {
        let mut tables = TableVips::new(vips(&[1]));
        tables.set(0, vips(&[]));
        assert_eq!(tables.set(10_000, vips(&[1])), vips(&[1]));
        assert_eq!((tables.due_us(), tables.expire(30_000)), (None, None));
        // If it was due, it is not there any more.
        tables.set(40_000, vips(&[]));
        assert_eq!(tables.set(70_000, vips(&[2])), vips(&[2]));
    }

    #[test]
    fn announcements_wait_for_the_tables_but_not_for_long() {
        let (vip, mac) = (IpAddr::from([192, 0, 2, 1]), MacAddr::local(1));
        let mut waiting = Announcements::default();
        waiting.add(0, vip, mac);
        assert_eq!((waiting.take(0), waiting.due_us(0)), (vec![(vip, mac)], None), "nothing was ordered");
        let (first, second) = (waiting.order(), waiting.order());
        waiting.add(1_000, vip, mac);
        waiting.add(2_000, vip, mac);
        first.done();
        assert_eq!((waiting.take(5_999), waiting.due_us(5_999)), (vec![], Some(6_199)));
        assert_eq!(waiting.take(6_000), [(vip, mac)]);
        waiting.add(7_000, vip, mac);
        second.done();
        assert_eq!((waiting.take(7_000), waiting.take(7_000)), (vec![(vip, mac)], vec![]));
        let _third = waiting.order();
        waiting.add(8_000, vip, mac);
        waiting.cancel(vip);
        assert_eq!((waiting.due_us(8_000), waiting.take(20_000)), (None, vec![]));
    }
}
