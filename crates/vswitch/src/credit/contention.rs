//! Decides whether the host is contended, which ports are clamped then, and to what if no class says that. This file changes with how
//! contention is found and shared. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Account, CLAMP_HOLD, Credits, Right, amount};

/// A port without a class may use at least an equal share of the host, of all its ports, divided by this number, also if classes have
/// reserved everything.
const SHARE_LEAST: u64 = 10;

/// What each port without a class may use of a dimension whose use is `capacity` in all: an equal share of what classes have not
/// reserved. What a port does not use of its share is shared by the others.
fn share<'a>(accounts: impl Iterator<Item = &'a Account>, capacity: u64) -> u32 {
    let (mut left, mut ports, mut wanted) = (capacity, 0u64, Vec::new());
    for account in accounts {
        ports += 1;
        match account.right {
            Right::Class(allowance) => left = left.saturating_sub(allowance.base.into()),
            Right::Fixed(_) => left = left.saturating_sub(account.rate),
            Right::Share => wanted.push(account.rate),
        }
    }
    wanted.sort_unstable();
    let mut sharing = wanted.len() as u64;
    let mut share = left / sharing.max(1);
    for rate in wanted {
        if rate > share {
            break;
        }
        // It leaves the rest of its share to those that want more. The last one may have what is left.
        (left, sharing) = (left - rate, sharing - 1);
        share = left.checked_div(sharing).unwrap_or(left + rate);
    }
    let least = capacity / (SHARE_LEAST * ports.max(1));
    u32::try_from(share.max(least).max(1)).unwrap_or(u32::MAX)
}

impl Credits {
    /// Decides whether the host is contended, and which ports are clamped.
    pub(super) fn find_contention(&mut self, number: usize, elapsed: Duration) {
        let percent = u64::from(self.capacity.contended_percent);
        let total = self.capacity.total[number];
        let used = self.ports.values().map(|port| port.accounts[number].used);
        let sum = used.fold(0u64, u64::saturating_add);
        let Some(total) = total.filter(|total| sum > amount(*total, elapsed) / 100 * percent) else {
            self.clamps[number].0 = self.clamps[number].0.saturating_sub(elapsed);
            return;
        };
        let share = share(self.ports.values().map(|port| &port.accounts[number]), total * percent / 100);
        let mut most = Vec::new();
        for (scope, port) in &mut self.ports {
            let account = &mut port.accounts[number];
            account.share = share;
            if account.is_above_base(elapsed) {
                most.push((account.used, *scope));
            }
        }
        most.sort_unstable_by(|a, b| b.cmp(a));
        let most: BTreeSet<u16> =
            most.into_iter().take(self.capacity.clamped).map(|(_, scope)| scope).collect();
        let (hold, clamped) = &mut self.clamps[number];
        // A port that is clamped already uses less because of that.
        if hold.is_zero() {
            clamped.clear();
        }
        clamped.extend(most);
        *hold = CLAMP_HOLD;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::Allowance;

    fn account(right: Right, rate: u64) -> Account {
        Account { rate, ..Account::new(right, 0) }
    }

    /// Catches a share that ports with a class or a rate have already, one that nothing uses, and none at all.
    #[test]
    fn shares_are_equal_parts_of_what_is_not_reserved() {
        let of = |shares: &[u64], others: &[Account]| {
            let shares: Vec<Account> = shares.iter().map(|rate| account(Right::Share, *rate)).collect();
            share(shares.iter().chain(others), 9000)
        };
        assert_eq!(of(&[8000, 8000, 8000], &[]), 3000);
        assert_eq!(of(&[8000, 8000, 1000], &[]), 4000, "the last one needs no more");
        assert_eq!(of(&[8000, 0, 0, 0, 0, 0], &[]), 9000, "idle ports take nothing");
        assert_eq!(of(&[9500], &[]), 9000);
        let class = account(Right::Class(Allowance { base: 3000, max: 9000, clamp: 3000, credit: 0 }), 8000);
        assert_eq!(of(&[8000, 8000], &[class]), 3000, "its base is reserved, not what it uses");
        assert_eq!(of(&[8000, 8000], &[class, account(Right::Fixed(5000), 2000)]), 2000);
        // Classes that have reserved more than there is leave a small part.
        assert_eq!(of(&[8000], &[class; 4]), 9000 / 10 / 5);
        assert_eq!(share([account(Right::Share, 5)].iter(), 0), 1, "a limit of 0 would be none");
        assert_eq!(of(&[], &[class]), 6000);
    }
}
