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

mod calibration;
mod contention;
mod costs;
mod keeper;
mod metrics;
#[cfg(test)]
pub mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use serde::Serialize;
use sluice_tables::{CREDIT_DIMENSIONS, CreditDimension, PortUse};
use sluice_types::{Allowance, CreditPolicy};

pub use calibration::{Calibrator, CostSetting, CostSettings};
pub use keeper::{CostsView, CreditKeeper, CreditPort, CreditView, STEP, Sensors};

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

/// What a port may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// What the network class of its instance grants.
    Class(CreditPolicy),
    /// What the default class grants: the instance has neither a class of its own nor a rate.
    Default(CreditPolicy),
    /// Always the same rate in each direction, in Mbit/s.
    Fixed(NonZeroU32),
    /// Anything while the host is not contended.
    Unclassed,
}

impl Terms {
    /// The policy of the class, if there is one.
    pub fn policy(&self) -> Option<CreditPolicy> {
        match self {
            Self::Class(policy) | Self::Default(policy) => Some(*policy),
            Self::Fixed(_) | Self::Unclassed => None,
        }
    }

    /// Whether the interface of the port shapes what its VM gets. If not, the packet program drops what is over the limit.
    pub fn is_shaped(&self) -> bool {
        !matches!(self.right(CreditDimension::ReceivedMbps), Right::Share)
    }

    fn right(&self, dimension: CreditDimension) -> Right {
        let is_bits = matches!(dimension, CreditDimension::SentMbps | CreditDimension::ReceivedMbps);
        match self {
            Self::Class(policy) | Self::Default(policy) => {
                allowance(policy, dimension).map_or(Right::Share, Right::Class)
            }
            Self::Fixed(rate) if is_bits => Right::Fixed(rate.get()),
            Self::Fixed(_) | Self::Unclassed => Right::Share,
        }
    }
}

/// What a port may use of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// What a class grants.
    Class(Allowance),
    /// A rate that never changes, and is enforced without credit.
    Fixed(u32),
    /// Anything, and while the host is contended an equal share of what classes have not reserved.
    Share,
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
    right: Right,
    /// In units times milliseconds: kbit, packets or microseconds. Negative: the port owes. Without a class it stays as it was.
    credit: i64,
    bursts: bool,
    /// What was used in the last step, in units times milliseconds.
    used: u64,
    /// `used` as a rate, in units.
    rate: u64,
    limited: Option<Limited>,
    /// What it may use while it is clamped, if no class says that.
    share: u32,
}

/// What a second of burst takes.
fn burst(allowance: &Allowance) -> i64 {
    i64::from(allowance.max - allowance.base) * BURST_MS
}

/// The most that can be saved.
fn most(allowance: &Allowance) -> i64 {
    i64::try_from(allowance.credit.saturating_mul(1000)).unwrap_or(i64::MAX)
}

impl Account {
    fn new(right: Right, credit: i64) -> Self {
        let mut account = Self { right, credit, bursts: false, used: 0, rate: 0, limited: None, share: 1 };
        if let Right::Class(allowance) = right {
            account.save(&allowance, 0);
            let is_at_base = !account.bursts && allowance.max > allowance.base;
            account.limited = is_at_base.then_some(Limited::NoCredit);
        }
        account
    }

    /// Notes what was used in a step: what was not used of the base is saved, and what was used above it is taken.
    fn note(&mut self, used: u64, elapsed: Duration) {
        self.used = used;
        self.rate = used * 1000 / u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
        if let Right::Class(allowance) = self.right {
            let granted = i64::try_from(amount(allowance.base, elapsed)).unwrap_or(i64::MAX);
            self.save(&allowance, granted - i64::try_from(used).unwrap_or(i64::MAX));
        }
    }

    /// Adds to the credit, within its bounds, and decides whether it is enough for a burst.
    fn save(&mut self, allowance: &Allowance, more: i64) {
        self.credit = self.credit.saturating_add(more).clamp(-burst(allowance), most(allowance));
        if self.credit <= 0 {
            self.bursts = false;
        } else if self.credit >= burst(allowance).min(most(allowance)) {
            self.bursts = true;
        }
    }

    /// Decides why it may not use its maximum until the next step.
    fn judge(&mut self, is_clamped: bool) {
        self.limited = match self.right {
            Right::Fixed(_) => None,
            Right::Class(allowance) if allowance.base == allowance.max => None,
            Right::Class(_) if !self.bursts => Some(Limited::NoCredit),
            Right::Class(_) | Right::Share => is_clamped.then_some(Limited::Contended),
        };
    }

    /// The limit for the next step; `None`: credit sets none.
    fn limit(&self) -> Option<u32> {
        match (self.right, self.limited) {
            (Right::Class(allowance), None) => Some(allowance.max),
            (Right::Class(allowance), Some(Limited::NoCredit)) => Some(allowance.base),
            (Right::Class(allowance), Some(Limited::Contended)) => Some(allowance.clamp),
            (Right::Share, Some(Limited::Contended)) => Some(self.share),
            (Right::Share | Right::Fixed(_), _) => None,
        }
    }

    /// What the queueing discipline of an interface lets pass.
    fn shaped(&self) -> Option<u32> {
        match self.right {
            Right::Fixed(rate) => Some(rate),
            Right::Class(_) => self.limit(),
            Right::Share => None,
        }
    }

    /// Whether it uses more than what it may use always. `elapsed` is the time of the last step.
    fn is_above_base(&self, elapsed: Duration) -> bool {
        match self.right {
            Right::Class(allowance) => self.used > amount(allowance.base, elapsed),
            Right::Share => self.used > amount(self.share, elapsed),
            Right::Fixed(_) => false,
        }
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
    terms: Terms,
    /// What it had used at the last step.
    totals: [u64; CREDIT_DIMENSIONS],
    accounts: [Account; CREDIT_DIMENSIONS],
}

/// What is known of one dimension of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What it may use, in the unit of the dimension; `None`: credit sets no limit.
    pub limit: Option<u32>,
    /// Use in the last step.
    pub rate: u64,
    /// Saved credit, in units times seconds; negative: it owes. `None`: no class grants any.
    pub credit: Option<i64>,
    /// Why it may not use its maximum.
    pub limited: Option<Limited>,
}

/// The credits of all ports.
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

    /// Adds a port, or gives it other terms. A new one goes on with the credit that an earlier agent has saved, and counts from what it has used so far.
    /// With other terms, credit up to the maximum of the new class stays, and no clamp does.
    pub fn set_port(
        &mut self,
        scope: u16,
        terms: Terms,
        saved: impl FnOnce() -> (PortUse, [i64; CREDIT_DIMENSIONS]),
    ) {
        let known = self.ports.get(&scope);
        if known.is_some_and(|known| known.terms == terms) {
            return;
        }
        let (before, credit) = match known {
            Some(known) => (known.totals, known.accounts.map(|account| account.credit)),
            None => {
                let (used, credit) = saved();
                (totals(used), credit)
            }
        };
        let account = |dimension| Account::new(terms.right(dimension), credit[dimension as usize]);
        let accounts = CreditDimension::ALL.map(account);
        self.ports.insert(scope, PortAccounts { terms, totals: before, accounts });
        // It was clamped for what its former terms, or another port of this number, let it use.
        for (_, clamped) in &mut self.clamps {
            clamped.remove(&scope);
        }
    }

    /// Forgets all other ports.
    pub fn retain(&mut self, scopes: &BTreeSet<u16>) -> Vec<u16> {
        let gone: Vec<u16> = self.ports.keys().copied().filter(|scope| !scopes.contains(scope)).collect();
        self.ports.retain(|scope, _| scopes.contains(scope));
        for (_, clamped) in &mut self.clamps {
            clamped.retain(|scope| scopes.contains(scope));
        }
        gone
    }

    /// One round of the algorithm: `elapsed` after the last one, with what each port has used in all.
    pub fn step(&mut self, elapsed: Duration, used: impl Fn(u16) -> PortUse) {
        for (scope, port) in &mut self.ports {
            let now = totals(used(*scope));
            for (number, account) in port.accounts.iter_mut().enumerate() {
                let used = now[number].saturating_sub(port.totals[number]);
                // Counted in front of the queueing discipline, which lets no more pass.
                let shaped = account.shaped().filter(|_| number == CreditDimension::ReceivedMbps as usize);
                account.note(used.min(shaped.map_or(u64::MAX, |limit| amount(limit, elapsed))), elapsed);
            }
            port.totals = now;
        }
        for dimension in CreditDimension::ALL {
            self.find_contention(dimension as usize, elapsed);
        }
        for (scope, port) in &mut self.ports {
            for (account, (hold, clamped)) in port.accounts.iter_mut().zip(&self.clamps) {
                account.judge(!hold.is_zero() && clamped.contains(scope));
            }
        }
    }

    /// The state of each dimension of a port, which is `None` if there is no such port.
    pub fn standing(&self, scope: u16) -> [Option<Standing>; CREDIT_DIMENSIONS] {
        let port = self.ports.get(&scope);
        std::array::from_fn(|number| {
            let account = port?.accounts[number];
            let credit = matches!(account.right, Right::Class(_)).then_some(account.credit / 1000);
            let (limit, rate, limited) = (account.limit(), account.rate, account.limited);
            Some(Standing { limit, rate, credit, limited })
        })
    }

    /// What a port may use.
    pub fn terms(&self, scope: u16) -> Option<Terms> {
        self.ports.get(&scope).map(|port| port.terms)
    }

    /// What the next agent goes on with.
    pub fn saved(&self, scope: u16) -> [i64; CREDIT_DIMENSIONS] {
        self.ports
            .get(&scope)
            .map_or([0; CREDIT_DIMENSIONS], |port| port.accounts.map(|account| account.credit))
    }

    /// The numbers of all ports.
    pub fn scopes(&self) -> impl Iterator<Item = u16> {
        self.ports.keys().copied()
    }
}
