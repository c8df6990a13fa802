//! Elastic credit: how much of the host's network each instance may use now (Achelous section 5.1, Algorithm 1, with the differences
//! that `docs/decisions/credit.md` explains). This changes with that algorithm. Pure: [`Credits::step`] gets what ports have used, and
//! decides their limits for the time until the next step.
//!
//! ```text
//!              credit reaches what a second of burst needs (or the most that can be saved)
//!     at base ----------------------------------------------------------------------------> bursting
//!             <---------------------------------------------------------------------------- at max; at clamp while the
//!                                       credit is used up                                   host is contended and the port
//!                                                                                           is one of those that use most
//! ```

mod costs;
mod keeper;
#[cfg(test)]
pub mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use sluice_tables::{CREDIT_DIMENSIONS, CreditDimension, PortUse};
use sluice_types::{Allowance, CreditPolicy};

pub use costs::{Overhead, Times};
pub use keeper::{CreditKeeper, CreditPort, CreditView, STEP};

/// A clamp lasts for this time after the host was contended for the last time: what is clamped uses less, so the host would
/// otherwise be contended in every second step.
const CLAMP_HOLD: Duration = Duration::from_secs(1);
/// Burst for which there must be credit before a port exceeds its base again, and the most that a port can owe.
const BURST_MS: i64 = 1000;

/// What the host has, and when it is contended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// `R_T` by [`CreditDimension`]; `None`: it is never contended.
    pub total: [Option<u64>; CREDIT_DIMENSIONS],
    /// `lambda`: the part of it from which on the host is contended, in percent.
    pub contended_percent: u32,
    /// `k`: how many ports are clamped at most while it is.
    pub clamped: usize,
}

/// Why a port may not use its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limited {
    /// It has used up its credit, or has not saved enough: it may use its base.
    NoCredit,
    /// The host is contended, and the port is one of those that use most: it may use its clamp.
    Contended,
}

/// One dimension of a port.
#[derive(Clone, Copy, Debug)]
struct Account {
    allowance: Allowance,
    /// In units times milliseconds: kbit, packets or microseconds. Negative: the port owes.
    credit: i64,
    bursts: bool,
    /// What was used in the last step, in units times milliseconds.
    used: u64,
    /// `used` as a rate, in units.
    rate: u64,
    limited: Option<Limited>,
}

impl Account {
    fn new(allowance: Allowance, credit: i64) -> Self {
        let mut account = Self { allowance, credit, bursts: false, used: 0, rate: 0, limited: None };
        account.credit = credit.clamp(-account.burst(), account.most());
        account.judge();
        account
    }

    /// What a second of burst takes.
    fn burst(&self) -> i64 {
        i64::from(self.allowance.max - self.allowance.base) * BURST_MS
    }

    /// The most that can be saved.
    fn most(&self) -> i64 {
        i64::try_from(self.allowance.credit.saturating_mul(1000)).unwrap_or(i64::MAX)
    }

    /// Adds what was not used of the base, or takes what was used above it.
    fn settle(&mut self, elapsed: Duration) {
        let granted = amount(self.allowance.base, elapsed);
        let saved = i64::try_from(granted).unwrap_or(i64::MAX) - i64::try_from(self.used).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_add(saved).clamp(-self.burst(), self.most());
        self.judge();
    }

    fn judge(&mut self) {
        if self.credit <= 0 {
            self.bursts = false;
        } else if self.credit >= self.burst().min(self.most()) {
            self.bursts = true;
        }
    }

    /// The limit for the next step.
    fn limit(&self) -> u32 {
        match self.limited {
            None => self.allowance.max,
            Some(Limited::NoCredit) => self.allowance.base,
            Some(Limited::Contended) => self.allowance.clamp,
        }
    }

    fn is_above_base(&self, elapsed: Duration) -> bool {
        self.used > amount(self.allowance.base, elapsed)
    }
}

/// A rate over a time, in units times milliseconds.
fn amount(rate: impl Into<u64>, elapsed: Duration) -> u64 {
    let us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    rate.into().saturating_mul(us) / 1000
}

/// What a port has used in all, by dimension, in units times milliseconds.
fn totals(used: PortUse) -> [u64; CREDIT_DIMENSIONS] {
    let kbit = |bytes: u64| bytes.wrapping_mul(8) / 1000;
    let [sent, received] = used.bytes;
    [kbit(sent), kbit(received), used.packets[0], used.packets[1], used.cpu_ns / 1000]
}

fn allowance(policy: &CreditPolicy, dimension: CreditDimension) -> Option<Allowance> {
    match dimension {
        CreditDimension::SentMbps | CreditDimension::ReceivedMbps => policy.mbps,
        CreditDimension::SentKpps | CreditDimension::ReceivedKpps => policy.kpps,
        CreditDimension::Cpu => policy.cpu_permille,
    }
}

/// The accounts of a port.
#[derive(Clone, Debug)]
struct PortAccounts {
    policy: CreditPolicy,
    /// What it had used at the last step.
    totals: [u64; CREDIT_DIMENSIONS],
    accounts: [Option<Account>; CREDIT_DIMENSIONS],
}

/// What is known of one dimension of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What it may use, used in the last step, and could save, each in the unit of the dimension.
    pub limit: u32,
    /// Use in the last step.
    pub rate: u64,
    /// Saved credit, in units times seconds; negative: it owes.
    pub credit: i64,
    /// Why it may not use its maximum.
    pub limited: Option<Limited>,
}

/// The credits of all ports with a class.
#[derive(Debug)]
pub struct Credits {
    capacity: Capacity,
    ports: BTreeMap<u16, PortAccounts>,
    /// By dimension: for how long what uses most is still clamped, and which ports these are.
    clamps: [(Duration, BTreeSet<u16>); CREDIT_DIMENSIONS],
}

impl Credits {
    /// Of no port yet.
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            ports: BTreeMap::new(),
            clamps: std::array::from_fn(|_| (Duration::ZERO, BTreeSet::new())),
        }
    }

    /// Adds a port, or gives it another policy. A new one goes on with the credit that an earlier agent has saved, and counts from what it has used so far.
    /// Of another policy, credit up to its maximum stays.
    pub fn set_port(
        &mut self,
        scope: u16,
        policy: CreditPolicy,
        saved: impl FnOnce() -> (PortUse, [i64; CREDIT_DIMENSIONS]),
    ) {
        let known = self.ports.get(&scope);
        if known.is_some_and(|known| known.policy == policy) {
            return;
        }
        let (before, credit) = match known {
            Some(known) => {
                (known.totals, known.accounts.map(|account| account.map_or(0, |account| account.credit)))
            }
            None => {
                let (used, credit) = saved();
                (totals(used), credit)
            }
        };
        let accounts = CreditDimension::ALL.map(|dimension| {
            allowance(&policy, dimension).map(|allowance| Account::new(allowance, credit[dimension as usize]))
        });
        let mut port = PortAccounts { policy, totals: before, accounts };
        for account in port.accounts.iter_mut().flatten() {
            account.limited =
                (!account.bursts && account.limit() > account.allowance.base).then_some(Limited::NoCredit);
        }
        self.ports.insert(scope, port);
    }

    /// Forgets all other ports.
    pub fn retain(&mut self, scopes: &BTreeSet<u16>) -> Vec<u16> {
        let gone: Vec<u16> = self.ports.keys().copied().filter(|scope| !scopes.contains(scope)).collect();
        self.ports.retain(|scope, _| scopes.contains(scope));
        gone
    }

    /// One round of the algorithm: `elapsed` after the last one, with what each port has used in all.
    pub fn step(&mut self, elapsed: Duration, used: impl Fn(u16) -> PortUse) {
        for (scope, port) in &mut self.ports {
            let now = totals(used(*scope));
            for (number, account) in port.accounts.iter_mut().enumerate() {
                if let Some(account) = account {
                    account.used = now[number].saturating_sub(port.totals[number]);
                    if number == CreditDimension::ReceivedMbps as usize {
                        // Counted in front of the queueing discipline, which lets no more pass.
                        account.used = account.used.min(amount(account.limit(), elapsed));
                    }
                    account.rate =
                        account.used * 1000 / u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
                    account.settle(elapsed);
                }
            }
            port.totals = now;
        }
        for dimension in CreditDimension::ALL {
            self.find_contention(dimension as usize, elapsed);
        }
        for (scope, port) in &mut self.ports {
            for (account, (hold, clamped)) in port.accounts.iter_mut().zip(&self.clamps) {
                if let Some(account) = account {
                    let is_clamped = !hold.is_zero() && clamped.contains(scope);
                    account.limited = match account.bursts {
                        _ if account.allowance.base == account.allowance.max => None,
                        false => Some(Limited::NoCredit),
                        true if is_clamped => Some(Limited::Contended),
                        true => None,
                    };
                }
            }
        }
    }

    /// Decides whether the host is contended, and which ports are clamped.
    fn find_contention(&mut self, number: usize, elapsed: Duration) {
        let accounts = || {
            self.ports
                .iter()
                .filter_map(|(scope, port)| port.accounts[number].as_ref().map(|it| (*scope, it)))
        };
        let sum = accounts().fold(0u64, |sum, (_, account)| sum.saturating_add(account.used));
        let threshold = self.capacity.total[number]
            .map(|total| amount(total, elapsed) / 100 * u64::from(self.capacity.contended_percent));
        if threshold.is_none_or(|threshold| sum <= threshold) {
            self.clamps[number].0 = self.clamps[number].0.saturating_sub(elapsed);
            return;
        }
        let mut most: Vec<(u64, u16)> = accounts()
            .filter(|(_, it)| it.is_above_base(elapsed))
            .map(|(scope, it)| (it.used, scope))
            .collect();
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

    /// The state of each dimension of a port, which is `None` if its class does not limit it.
    pub fn standing(&self, scope: u16) -> [Option<Standing>; CREDIT_DIMENSIONS] {
        let port = self.ports.get(&scope);
        std::array::from_fn(|number| {
            let account = port?.accounts[number]?;
            let (limit, limited) = (account.limit(), account.limited);
            Some(Standing { limit, rate: account.rate, credit: account.credit / 1000, limited })
        })
    }

    /// What the next agent goes on with.
    pub fn saved(&self, scope: u16) -> [i64; CREDIT_DIMENSIONS] {
        let port = self.ports.get(&scope);
        std::array::from_fn(|number| {
            port.and_then(|port| port.accounts[number]).map_or(0, |account| account.credit)
        })
    }

    /// The numbers of all ports.
    pub fn scopes(&self) -> impl Iterator<Item = u16> {
        self.ports.keys().copied()
    }
}
