//! Which new objects certainly fit into the tables of the gateways. Gateways report how full their tables are, together
//! with the revision that the tables then have. What this controller has admitted after that revision is added.
//!
//! ```text
//!            admit                    commit                 a report covers the revision
//!   (none) ---------> open demand -------------> committed at -------------------------> (in the report)
//!                         |                      a revision
//!                         +--> (none)
//!                    dropped: the object was not created
//! ```

pub mod demand;

use demand::Demand;
use sluice_southbound::proto::{Heartbeat, Table};
use sluice_southbound::table_name;
use sluice_types::{ClusterId, GatewayId};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Committed demands that are remembered for each cluster. If there are more, the oldest count as one until all of them
/// are in the reports.
const COMMITTED_MAX: usize = 4096;

/// Reason for a refusal: a table of a gateway may not hold the objects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{cluster} cannot hold this: table `{table}` of {gateway} has {used} entries in use and certainly holds \
     {capacity}; {admitted} more were admitted after its report, so {} are left, and {needed} are needed",
    .capacity.saturating_sub(used.saturating_add(*.admitted))
)]
pub struct Full {
    /// The cluster.
    pub cluster: ClusterId,
    /// The gateway whose table is too small.
    pub gateway: GatewayId,
    /// Name of the table.
    pub table: &'static str,
    /// Entries in use.
    pub used: u64,
    /// Entries that certainly fit, with those in use.
    pub capacity: u64,
    /// Entries that were admitted and are not in the report; of a table that shares its memory, also the part that
    /// others take.
    pub admitted: u64,
    /// Entries of the refused objects.
    pub needed: u64,
}

/// How full a table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TableFill {
    used: u64,
    capacity: u64,
}

impl TableFill {
    fn free(self) -> u64 {
        self.capacity.saturating_sub(self.used)
    }
}

/// How full the tables of a gateway are, as it last reported.
#[derive(Clone, Debug, Default)]
struct Fill {
    /// The stream on which it reports; `None` after the stream's end.
    session: Option<u64>,
    /// The tables then had everything up to this revision; `None` before the first report.
    revision: Option<u64>,
    tables: BTreeMap<i32, TableFill>,
}

impl Fill {
    /// The capacities of this one, with the entries of another gateway of the cluster: all have the same.
    fn with_use_of(&self, other: &Self) -> Self {
        let tables = self.tables.iter().map(|(table, fill)| {
            let used = other.tables.get(table).map_or(fill.used, |other| other.used);
            (*table, TableFill { used, ..*fill })
        });
        Self { session: None, revision: other.revision, tables: tables.collect() }
    }
}

/// The reports of all gateways.
#[derive(Debug, Default)]
struct Fills(BTreeMap<GatewayId, Fill>);

impl Fills {
    fn report(&mut self, gateway: GatewayId, session: u64, heartbeat: &Heartbeat) {
        let Some(fill) = self.0.get_mut(&gateway).filter(|fill| fill.session == Some(session)) else {
            return;
        };
        // A gateway that starts with empty tables is not filled yet: its last report says more.
        let is_older = fill.revision.is_some_and(|known| heartbeat.tables_revision < known);
        if heartbeat.tables.is_empty() || is_older {
            return;
        }
        fill.revision = Some(heartbeat.tables_revision);
        let tables = heartbeat.tables.iter();
        fill.tables =
            tables.map(|fill| (fill.table, TableFill { used: fill.used, capacity: fill.capacity })).collect();
    }

    /// The fills of these gateways, as of a revision that is not before `base`. One without a stream has the capacity of its
    /// last report; how many entries there are by now is what another one says that has a stream, or has reported later.
    fn of(&self, gateways: &[GatewayId], base: u64) -> Vec<(GatewayId, Fill)> {
        let known: Vec<_> = gateways.iter().filter_map(|id| Some((*id, self.0.get(id)?.clone()))).collect();
        let is_current = |fill: &Fill| fill.revision.is_some_and(|at| at >= base);
        let current = known.iter().map(|(_, fill)| fill).filter(|fill| is_current(fill));
        let current = current.max_by_key(|fill| (fill.session.is_some(), fill.revision)).cloned();
        let with_current_use = |(id, fill): (GatewayId, Fill)| match &current {
            Some(current) if fill.session.is_none() && fill.revision.is_some() => {
                (id, fill.with_use_of(current))
            }
            _ => (id, fill),
        };
        known.into_iter().map(with_current_use).filter(|(_, fill)| is_current(fill)).collect()
    }
}

/// What was admitted for a cluster.
#[derive(Debug, Default)]
struct Admitted {
    /// Demands whose objects are being created, by number.
    open: BTreeMap<u64, Demand>,
    /// Demands with the revision of their objects, in any order.
    committed: VecDeque<(u64, Demand)>,
    /// Everything that this controller admitted after this revision is in `committed`.
    base: u64,
}

impl Admitted {
    /// What a report of this revision does not have.
    fn after(&self, revision: u64) -> Demand {
        let mut sum = Demand::default();
        let committed = self.committed.iter().filter(|(at, _)| *at > revision).map(|(_, demand)| demand);
        for demand in committed.chain(self.open.values()) {
            sum += *demand;
        }
        sum
    }

    fn commit(&mut self, number: u64, revision: u64) {
        let Some(demand) = self.open.remove(&number) else { return };
        self.committed.push_back((revision, demand));
        if self.committed.len() > COMMITTED_MAX
            && let Some((before, oldest)) = self.committed.pop_front()
            && let Some((at, next)) = self.committed.front_mut()
        {
            *at = before.max(*at);
            *next += oldest;
        }
    }

    /// Forgets what all reports have.
    fn forget_up_to(&mut self, revision: u64) {
        self.committed.retain(|(at, _)| *at > revision);
        self.base = self.base.max(revision);
    }
}

#[derive(Debug, Default)]
struct Inner {
    fills: Fills,
    clusters: HashMap<ClusterId, Admitted>,
    /// Revision at which this controller started to admit.
    base: u64,
    next: u64,
}

/// What was admitted, and the reports with which it is compared.
#[derive(Debug, Default)]
pub struct Admissions(Mutex<Inner>);

impl Admissions {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The follower starts from a snapshot of this revision. Reports of earlier revisions say nothing, because objects
    /// that others created since are not known.
    pub fn start(&self, revision: u64) {
        let mut inner = self.lock();
        if inner.base == 0 {
            inner.base = revision;
        }
    }

    /// A gateway's stream starts.
    pub fn open(&self, gateway: GatewayId, session: u64) {
        self.lock().fills.0.entry(gateway).or_default().session = Some(session);
    }

    /// A gateway's stream ended. Its last report counts until it is deleted, because it will need the entries when it
    /// returns.
    pub fn close(&self, gateway: GatewayId, session: u64) {
        if let Some(fill) = self.lock().fills.0.get_mut(&gateway).filter(|fill| fill.session == Some(session))
        {
            fill.session = None;
        }
    }

    /// A gateway was deleted.
    pub fn remove(&self, gateway: GatewayId) {
        self.lock().fills.0.remove(&gateway);
    }

    /// A gateway reports on a stream.
    pub fn report(&self, gateway: GatewayId, session: u64, heartbeat: &Heartbeat) {
        self.lock().fills.report(gateway, session, heartbeat);
    }

    /// Admits demands, each on a cluster with these gateways: all or none. A table of which no gateway has reported
    /// the fill has space for everything.
    ///
    /// # Errors
    /// [`Full`]: the first table that may be too small.
    pub fn admit(
        self: &Arc<Self>,
        demands: &[(ClusterId, Demand)],
        gateways_of: impl Fn(ClusterId) -> Vec<GatewayId>,
    ) -> Result<Admission, Full> {
        let mut inner = self.lock();
        let Inner { fills, clusters, base, next } = &mut *inner;
        for (id, demand) in demands {
            let admitted = clusters.entry(*id).or_default();
            admitted.base = admitted.base.max(*base);
            let fills = fills.of(&gateways_of(*id), admitted.base);
            if let Some(oldest) = fills.iter().filter_map(|(_, fill)| fill.revision).min() {
                admitted.forget_up_to(oldest);
            }
            for (gateway, fill) in fills {
                check(*id, gateway, &fill, admitted.after(fill.revision.unwrap_or_default()), *demand)?;
            }
        }
        let number = *next;
        *next += 1;
        for (id, demand) in demands {
            *clusters.entry(*id).or_default().open.entry(number).or_default() += *demand;
        }
        let clusters = demands.iter().map(|(id, _)| *id).collect();
        Ok(Admission { admissions: Some(self.clone()), number, clusters })
    }
}

/// Checks that a gateway's tables hold a demand beside what was admitted after its report.
fn check(
    cluster: ClusterId,
    gateway: GatewayId,
    fill: &Fill,
    admitted: Demand,
    demand: Demand,
) -> Result<(), Full> {
    let table = |table: Table| fill.tables.get(&(table as i32)).copied();
    let full = |of: Table, TableFill { used, capacity }: TableFill, admitted, needed| {
        let table = table_name(of as i32).unwrap_or_default();
        Err(Full { cluster, gateway, table, used, capacity, admitted, needed })
    };
    let with_ipv6 = demand.ipv6 + admitted.ipv6 > 0;
    let entries = if with_ipv6 { Table::EntriesWithIpv6 } else { Table::Entries };
    if let Some(fill) = table(entries).filter(|_| demand.entries() > 0)
        && admitted.entries() + demand.entries() > fill.free()
    {
        return full(entries, fill, admitted.entries(), demand.entries());
    }
    // Gateways without an interface to the Internet do not report this table.
    if let Some(fill) = table(Table::NatAddresses).filter(|_| demand.nat_addresses > 0)
        && admitted.nat_addresses + demand.nat_addresses > fill.free()
    {
        return full(Table::NatAddresses, fill, admitted.nat_addresses, demand.nat_addresses);
    }
    let (Some(routes), Some(vrfs)) = (table(Table::Routes), table(Table::Vrfs)) else { return Ok(()) };
    if demand.routes == 0 && demand.vrfs == 0 {
        return Ok(());
    }
    // Both are of the same memory. A route counts as that part of a VRF that needs as much of it, and the reverse.
    let (mut all_routes, mut all_vrfs) = (admitted.routes, admitted.vrfs);
    if routes.free() > 0 && vrfs.free() > 0 {
        all_routes = all_routes.saturating_add(
            (admitted.vrfs + demand.vrfs).saturating_mul(routes.free()).div_ceil(vrfs.free()),
        );
        all_vrfs = all_vrfs.saturating_add(
            (admitted.routes + demand.routes).saturating_mul(vrfs.free()).div_ceil(routes.free()),
        );
    }
    if demand.routes > 0 && all_routes.saturating_add(demand.routes) > routes.free() {
        return full(Table::Routes, routes, all_routes, demand.routes);
    }
    if demand.vrfs > 0 && all_vrfs.saturating_add(demand.vrfs) > vrfs.free() {
        return full(Table::Vrfs, vrfs, all_vrfs, demand.vrfs);
    }
    Ok(())
}

/// An admission of objects that are being created. Dropped without a commit, it ends.
#[derive(Debug, Default)]
pub struct Admission {
    admissions: Option<Arc<Admissions>>,
    number: u64,
    clusters: Vec<ClusterId>,
}

impl Admission {
    /// The objects were created with this revision.
    pub fn commit(mut self, revision: u64) {
        if let Some(admissions) = self.admissions.take() {
            let mut inner = admissions.lock();
            for cluster in &self.clusters {
                inner.clusters.entry(*cluster).or_default().commit(self.number, revision);
            }
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(admissions) = self.admissions.take() {
            let mut inner = admissions.lock();
            for cluster in &self.clusters {
                inner.clusters.entry(*cluster).or_default().open.remove(&self.number);
            }
        }
    }
}

#[cfg(test)]
mod tests;
