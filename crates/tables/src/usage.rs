//! Reports of the table writer: how full the tables are, and the result of a bulk change.

use crate::error::Error;

/// Cells that a new route takes, at most. Usually it is less than one: a bucket holds three to nine routes. The worst
/// case is a bucket of long prefixes that overflows because of a route that shares some bits with the others: a
/// chain of directories or a skip for each of its routes, and new buckets; and one cell for its next hop.
const CELLS_PER_ROUTE: u64 = 9;
/// Cells that a change of a route can take at once, beside those that it replaces.
const CELLS_PER_CHANGE: u64 = 64;
/// Cells that a VRF takes, at most: its own, and a list or root directory for each family.
const CELLS_PER_VRF: u64 = 16;

/// Number of entries and cells in the tables, and their limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUsage {
    /// Capacity in cells.
    pub cells_total: u64,
    /// Cells in use, including those that wait for a grace period.
    pub cells_used: u64,
    /// Cells that wait for a grace period.
    pub cells_pending: u64,
    /// Cells that new entries and routes can get: not those that are kept for withdrawals.
    pub cells_available: u64,
    /// Entries of the exact match, of all kinds.
    pub entries: u64,
    /// Number of further entries that certainly fit, if none of them is the first IPv6 address.
    pub entry_capacity: u64,
    /// Number of further entries that certainly fit, whatever they are.
    pub entry_capacity_v6: u64,
    /// Current slots of the exact match; it grows while there is memory.
    pub entry_slots: u64,
    /// IPv6 addresses in the conflict table, because another address has the same digest.
    pub conflicts: u64,
    /// Current cells of the conflict table; it grows while there is memory.
    pub conflict_slots: u64,
    /// Per-VNI counters in use.
    pub counters_used: u64,
    /// Number of per-VNI counters.
    pub counters_total: u64,
    /// Accepted VTEPs.
    pub vteps: u64,
    /// Number of vIPs.
    pub vips: u64,
    /// Groups of vIPs.
    pub groups: u64,
    /// Policies of ports.
    pub policies: u64,
    /// Number of VRFs.
    pub vrfs: u64,
    /// Ports of VMs.
    pub ports: u64,
    /// Number of endpoints.
    pub endpoints: u64,
    /// Entries for pairs of host and VNI from which this node accepts packets.
    pub senders: u64,
    /// Direct paths.
    pub direct_paths: u64,
    /// Routes of all VRFs.
    pub routes: u64,
    /// Number of public prefixes, and of public addresses of NAT gateways.
    pub public_prefixes: u64,
    /// Number of NAT gateways.
    pub nat_gateways: u64,
    /// Meters of Internet traffic.
    pub meters: u64,
    /// Meters for which there is room; 0 on a node that has none.
    pub meters_total: u64,
}

impl TableUsage {
    /// Cells that cannot be allocated. Those that wait for a grace period can: an allocation that needs them
    /// waits for it.
    #[must_use]
    pub fn cells_live(&self) -> u64 {
        self.cells_used.saturating_sub(self.cells_pending)
    }

    /// Number of further routes that certainly fit, if nothing else takes memory meanwhile.
    #[must_use]
    pub fn route_capacity(&self) -> u64 {
        self.cells_available.saturating_sub(CELLS_PER_CHANGE) / CELLS_PER_ROUTE
    }

    /// Number of further VRFs that certainly fit, if nothing else takes memory meanwhile. Each also needs an entry of
    /// the exact match.
    #[must_use]
    pub fn vrf_capacity(&self) -> u64 {
        self.cells_available.saturating_sub(CELLS_PER_CHANGE) / CELLS_PER_VRF
    }
}

/// Result of a change of many entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BulkResult {
    /// Entries that were new or differed.
    pub changed: usize,
    /// Entries that could not be written.
    pub failed: usize,
    /// The first errors, at most [`BulkResult::ERRORS_MAX`], each with the entry's index in the slice.
    pub errors: Vec<(usize, Error)>,
}

impl BulkResult {
    /// Number of errors that are kept.
    pub const ERRORS_MAX: usize = 16;

    /// Counts the result of entry `i`.
    pub(crate) fn record(&mut self, i: usize, result: Result<bool, Error>) {
        match result {
            Ok(changed) => self.changed += usize::from(changed),
            Err(error) => {
                self.failed += 1;
                if self.errors.len() < Self::ERRORS_MAX {
                    self.errors.push((i, error));
                }
            }
        }
    }
}
