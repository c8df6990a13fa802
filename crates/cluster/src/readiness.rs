//! Whether a gateway's forwarding tables contain what its cluster needs. A gateway without them drops packets that its
//! peers would forward, so gateways with current tables take over vIPs before others, and from others.
//!
//! ```text
//!              tables contain a whole snapshot               a reachable peer has had a newer revision
//!                                                            for longer than `behind_us`
//!   PARTIAL ------------------------------------> CURRENT ------------------------------------> BEHIND
//!      ^                                             | ^                                           | |
//!      |                                             | +-------- the newest revision of the -------+ |
//!      |                                             |           peers is reached in time            |
//!      +---------------------------------------------+-----------------------------------------------+
//!                          tables are lost, or come from another database
//! ```
//!
//! A gateway judges itself and reports the result, so all nodes see the same state. If no gateway's tables are current,
//! the cluster is served by those with the newest ones: a gateway that knows no better one is CURRENT as soon as
//! its tables are whole.

use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// State of a gateway's forwarding tables, in ascending order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Readiness {
    /// Entries are missing: the gateway started with empty tables, and no snapshot is complete yet.
    Partial,
    /// The tables are whole but old: they no longer receive the changes that other gateways receive.
    Behind,
    /// No gateway is known to have newer tables for longer than a moment.
    Current,
}

/// What a gateway reports about its forwarding tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableReport {
    /// Revision of the database that the tables contain completely; 0 if they contain none.
    pub revision: u64,
    /// The gateway is behind other gateways.
    pub behind: bool,
    /// The gateway has copies of all sessions of NAT gateways that others own, so no session ends if it takes their vIPs over.
    pub copies: bool,
    /// The gateway has interfaces to the Internet, so it translates for NAT gateways whose vIPs it owns.
    pub translates: bool,
}

impl TableReport {
    /// Returns whether no session ends if a gateway with these tables takes vIPs over.
    #[must_use]
    pub const fn is_heir(self) -> bool {
        matches!(self.readiness(), Readiness::Current) && self.copies && self.translates
    }

    /// Returns the state of the tables.
    #[must_use]
    pub const fn readiness(self) -> Readiness {
        match self {
            Self { revision: 0, .. } => Readiness::Partial,
            Self { behind: true, .. } => Readiness::Behind,
            Self { behind: false, .. } => Readiness::Current,
        }
    }

    /// Returns by how much a gateway with these tables is preferred as the next owner of a vIP. Copies count among gateways
    /// whose tables are equally good: without entries no packet is forwarded, without copies only those of sessions are dropped.
    pub(crate) const fn fitness(self) -> (Readiness, bool) {
        (self.readiness(), self.copies)
    }

    /// Returns a key by which gateways with better tables come first. Current tables are equal whatever their revisions
    /// are: these differ for moments, because changes do not reach all gateways at the same time.
    pub(crate) fn order(self) -> (Reverse<(Readiness, bool)>, Reverse<u64>) {
        let is_current = self.readiness() == Readiness::Current;
        (Reverse(self.fitness()), Reverse(if is_current { 0 } else { self.revision }))
    }
}

/// The tables of this gateway, compared with those of its peers.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnTables {
    report: TableReport,
    /// This gateway has had copies of all sessions since its agent began.
    has_had_copies: bool,
    /// A revision that a peer had and this gateway did not have, and since when.
    missing: Option<(u64, u64)>,
}

impl OwnTables {
    /// The tables contain this revision completely; 0 if they contain none.
    pub fn set_revision(&mut self, revision: u64) {
        self.report.revision = revision;
    }

    /// This gateway has copies of all sessions, or not.
    pub fn set_copies(&mut self, complete: bool) {
        self.report.copies = complete;
        self.has_had_copies |= complete;
    }

    /// This gateway has interfaces to the Internet, or not.
    pub fn set_translates(&mut self, translates: bool) {
        self.report.translates = translates;
    }

    pub fn report(&self) -> TableReport {
        self.report
    }

    /// Returns whether this gateway has just begun to translate: it does not know the ports that are in use. One that has had all copies
    /// may lack those of a moment, or of a new NAT gateway.
    pub fn knows_no_ports(&self) -> bool {
        self.report.translates && !self.has_had_copies
    }

    /// Compares the tables with the newest ones of the peers that are reachable. `behind_us` is the time for which a peer
    /// may have newer ones.
    pub fn compare(&mut self, now_us: u64, newest: u64, behind_us: u64) {
        let own = self.report.revision;
        if newest <= own {
            (self.missing, self.report.behind) = (None, false);
            return;
        }
        let (revision, since_us) = *self.missing.get_or_insert((newest, now_us));
        let late = now_us - since_us > behind_us;
        if own >= revision {
            // Still behind, because the peers have newer revisions again.
            self.report.behind = late;
            self.missing = Some((newest, now_us));
        } else if late {
            self.report.behind = true;
        }
    }

    /// Time at which [`compare`](Self::compare) may find that the tables are behind.
    pub fn due_us(&self, behind_us: u64) -> Option<u64> {
        self.missing.filter(|_| !self.report.behind).map(|(_, since_us)| since_us + behind_us + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEHIND_US: u64 = 100;

    /// Catches a gateway that is behind at once or never, or that returns before it keeps up.
    #[test]
    fn tables_are_behind_while_they_do_not_keep_up() {
        let mut tables = OwnTables::default();
        let at = |tables: &mut OwnTables, now_us, own, newest| {
            tables.set_revision(own);
            tables.compare(now_us, newest, BEHIND_US);
            tables.report().readiness()
        };
        assert_eq!(at(&mut tables, 0, 0, 0), Readiness::Partial);
        assert_eq!(at(&mut tables, 0, 5, 0), Readiness::Current);
        // Each revision of the peers is reached in time, though never the newest one.
        for step in 1..20 {
            assert_eq!(at(&mut tables, step * 90, 5 + step - 1, 5 + step), Readiness::Current, "{step}");
        }
        // The gateway gets no more changes.
        assert_eq!(at(&mut tables, 1_800, 24, 30), Readiness::Current);
        assert_eq!(tables.due_us(BEHIND_US), Some(1_901));
        assert_eq!(at(&mut tables, 1_900, 24, 31), Readiness::Current);
        assert_eq!(at(&mut tables, 1_901, 24, 31), Readiness::Behind);
        assert_eq!(tables.due_us(BEHIND_US), None);
        // What it missed first arrives late, the next revision in time.
        assert_eq!(at(&mut tables, 2_000, 30, 32), Readiness::Behind);
        assert_eq!(at(&mut tables, 2_050, 32, 33), Readiness::Current);
        // It loses its tables, and has newer ones than its peers later.
        assert_eq!(at(&mut tables, 2_300, 0, 33), Readiness::Partial);
        assert_eq!(at(&mut tables, 2_900, 34, 33), Readiness::Current);
    }

    #[test]
    fn better_tables_come_first() {
        let with =
            |revision, behind, copies| TableReport { revision, behind, copies, translates: true }.order();
        let report = |revision, behind| with(revision, behind, false);
        assert!(report(3, false) < report(9, true));
        assert!(report(9, true) < report(8, true));
        assert!(report(1, true) < report(0, false));
        assert_eq!(report(3, false), report(4, false));
        // Copies count among equals only.
        assert!(with(3, false, true) < with(4, false, false));
        assert!(with(3, false, false) < with(3, true, true));
    }
}
