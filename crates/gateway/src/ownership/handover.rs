//! For which vIPs the tables answer: for those that this gateway owns, and for a moment for those that it has given up. The next owner's
//! agent says that it owns a vIP before its tables do, by the time that a table writer takes. If both tables said at once that the vIP
//! is at another gateway, packets by NAT gateways would be dropped: each gateway would pass them on to the other one. Two owners do no harm
//! (`docs/decisions/nat-replication.md`). It changes with how long that is.

use super::local_member::OwnedVips;
use sluice_types::MacAddr;
use std::collections::HashMap;
use std::net::IpAddr;

/// Longer than a table writer takes, which may wait for two grace periods, and so short that the next owner repeats its announcement later:
/// neighbors and switches that hear from both gateways in this time follow the last one.
const LINGER_US: u64 = 30_000;

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
        assert_eq!((tables.set(1_000, vips(&[2, 3])), tables.due_us()), (vips(&[1, 2, 3]), Some(31_000)));
        // A further change does not make it longer.
        assert_eq!(tables.set(11_000, vips(&[3])), vips(&[1, 2, 3]));
        assert_eq!((tables.expire(30_999), tables.due_us()), (None, Some(31_000)));
        assert_eq!((tables.expire(31_000), tables.due_us()), (Some(vips(&[2, 3])), Some(41_000)));
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
}
