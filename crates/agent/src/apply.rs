//! Applies the controller's updates to the forwarding tables, step by step. This file changes when an update
//! gets another kind of entry, or steps end differently.
//!
//! A step is one or more messages; the last one has a revision. Steps are idempotent: after a crash the
//! controller sends again what was not applied. A snapshot is applied over the existing tables: its entries
//! are written one by one as in a delta, and entries that it did not mention are removed when it ends, so
//! an entry of both the old and the new state is never absent.
//!
//! A snapshot of another history of the database, which went back to an earlier state, removes nothing that it did
//! not mention of networks and instances: these are kept as [`UnconfirmedEntries`].
//!
//! ```text
//!                        message with snapshot flag:
//!                        set the applied revision to 0
//!     DELTA STEP -----------------------------------------> SNAPSHOT STEP --+  message without a
//!      |  ^   ^                                              |   |    ^     |  revision: apply it,
//!      |  |   |  message with a revision: apply it, remove   |   |    +-----+  note its entries
//!      |  |   +---- what was not mentioned, set the revision-+   |
//!      |  |                                                      |
//!      |  +--------- new stream: forget what was mentioned ------+
//!      |  |
//!      +--+  message: apply it; with a revision: set the applied revision
//! ```

mod snapshot;
#[cfg(test)]
pub(crate) mod tests;
mod unconfirmed;

use std::net::IpAddr;
use std::sync::Arc;

use sluice_southbound::proto::NodeUpdate;
use sluice_southbound::{ClusterKeys, Endpoint, Route, Scope, Update};
use sluice_tables::{NodeTables, Target};
use sluice_types::{MacAddr, Vni};
use tokio::sync::watch;

use crate::error::{OtherDatabase, error_chain};
use crate::failures::Failures;
use crate::rsp::{KeyStore, Keys};
use crate::{Role, UpdateContext};

use snapshot::{SnapshotEntries, addresses};
pub use unconfirmed::UnconfirmedEntries;

/// A step that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The revision to acknowledge.
    pub revision: u64,
    /// Descriptions of the entries that could not be written.
    pub failures: Vec<String>,
    /// Number of these entries.
    pub failed_entries: u64,
}

/// The tables, the node's role, and the state of the current step.
pub struct Applier<R> {
    /// The forwarding tables.
    pub tables: NodeTables,
    /// What the node's role keeps besides the tables.
    pub role: R,
    /// Entries mentioned so far; `None` during a delta step.
    snapshot: Option<SnapshotEntries>,
    unconfirmed: UnconfirmedEntries,
    failures: Failures,
    /// Entries of a step are missing, and the controller may not know it.
    is_incomplete: bool,
    topology_changes: u64,
    keys: KeyStore,
    /// [`NodeTables::complete_revision`], for those who wait for it.
    complete: watch::Sender<u64>,
}

impl<R: Role> Applier<R> {
    /// Continues with the tables as they are. The keys that `keys` has loaded are used at once.
    pub fn new(tables: NodeTables, role: R, keys: KeyStore) -> Self {
        let complete = watch::Sender::new(tables.complete_revision());
        Self {
            tables,
            role,
            snapshot: None,
            unconfirmed: UnconfirmedEntries::default(),
            failures: Failures::default(),
            is_incomplete: false,
            topology_changes: 0,
            keys,
            complete,
        }
    }

    /// The newest revision whose entries were all in the tables, and its changes; 0 while entries may be missing.
    pub fn complete_revision(&self) -> watch::Receiver<u64> {
        self.complete.subscribe()
    }

    fn set_complete_revision(&mut self, revision: u64) {
        self.tables.set_complete_revision(revision);
        self.complete.send_if_modified(|known| std::mem::replace(known, revision) != revision);
    }

    /// The current cluster keys, and their changes.
    pub fn keys(&self) -> watch::Receiver<Arc<Keys>> {
        self.keys.subscribe()
    }

    /// Entries that the database does not have, because it went back to an earlier state.
    pub fn unconfirmed(&self) -> &UnconfirmedEntries {
        &self.unconfirmed
    }

    /// Number of changes of VTEPs and vIPs so far.
    pub fn topology_changes(&self) -> u64 {
        self.topology_changes
    }

    /// A new stream begins: forgets the unfinished step of an earlier one.
    pub fn begin_stream(&mut self) {
        self.snapshot = None;
        self.failures = Failures::default();
        // The acknowledgment with the failures may be lost with the stream. A snapshot writes the entries again.
        if std::mem::take(&mut self.is_incomplete) {
            self.tables.set_applied_revision(0);
        }
        self.role.begin_stream();
    }

    /// Applies one message. Returns `Some` when the message ended a step.
    ///
    /// # Errors
    /// [`OtherDatabase`]: nothing was applied, and a new stream must be opened.
    pub fn apply(&mut self, message: NodeUpdate) -> Result<Option<Applied>, OtherDatabase> {
        let (mut update, malformed) = Update::read(message);
        for error in malformed {
            self.failures.add(1, || format!("malformed: {error}"));
        }
        if update.snapshot && self.snapshot.is_none() {
            // Until the snapshot is complete the tables are of no revision.
            self.tables.set_applied_revision(0);
            if update.database_id != self.tables.database_id() {
                self.set_complete_revision(0);
            }
            self.snapshot = Some(SnapshotEntries::default());
        }
        let ours = self.tables.database_id();
        if self.snapshot.is_none() && update.database_id != ours {
            self.tables.set_applied_revision(0);
            return Err(OtherDatabase { sent: update.database_id, ours });
        }
        self.refuse_conflicts(&mut update);
        self.unconfirmed.forget(&update);
        if let Some(mentioned) = &mut self.snapshot {
            mentioned.note(&update);
        }
        self.upsert(&mut update);
        self.remove(&update, false);
        self.remove_idle_networks();
        Ok(if update.revision == 0 { None } else { Some(self.finish(&update)) })
    }

    fn finish(&mut self, update: &Update) -> Applied {
        let is_other_database = update.database_id != self.tables.database_id();
        let (role, mut context) = self.split(is_other_database);
        role.end_step(&mut context);
        if let Some(mut mentioned) = self.snapshot.take() {
            self.is_incomplete = false;
            let result = self.keys.update(std::mem::take(&mut mentioned.keys), true);
            self.failures.check(result, "cluster keys");
            if is_other_database {
                self.role.database_changed();
                self.unconfirmed.clear();
            } else if update.keep_unmentioned {
                self.unconfirmed.derive(&mentioned, &self.tables, &self.role);
                let entries = self.unconfirmed.len();
                tracing::warn!(entries, "the database went back: entries that it does not have are kept");
            }
            self.remove_unmentioned(&mentioned, is_other_database);
        }
        let committed = self.role.commit();
        // The next agent reads what was committed before this step, so it must request a snapshot.
        let revision = if committed.is_ok() { update.revision } else { 0 };
        if let Err(error) = committed {
            self.failures.add(1, || error);
        }
        let result = self.keys.commit();
        self.failures.check(result, "key file");
        self.tables.set_database_id(update.database_id);
        if self.unconfirmed.is_empty() {
            self.tables.set_commit_id(update.commit_id);
        }
        self.tables.set_applied_revision(revision);
        let (failures, failed_entries) = std::mem::take(&mut self.failures).into_report();
        self.is_incomplete |= failed_entries > 0;
        if !self.is_incomplete {
            self.set_complete_revision(update.revision);
        }
        Applied { revision: update.revision, failures, failed_entries }
    }

    fn split(&mut self, is_other_database: bool) -> (&mut R, UpdateContext<'_>) {
        let context = UpdateContext {
            tables: &mut self.tables,
            is_snapshot: self.snapshot.is_some(),
            is_other_database,
            failures: &mut self.failures,
            topology_changes: &mut self.topology_changes,
        };
        (&mut self.role, context)
    }

    /// Entries come in the order in which they refer to each other: endpoints to VTEPs and VRFs, VRFs to
    /// groups.
    fn upsert(&mut self, update: &mut Update) {
        self.update_keys(std::mem::take(&mut update.keys));
        let (role, mut context) = self.split(false);
        for vtep in &update.vteps {
            role.upsert_vtep(&mut context, vtep);
        }
        for vip in &update.vips {
            role.upsert_vip(&mut context, vip);
        }
        if let Some(plan) = update.cluster.take() {
            role.set_cluster_plan(&mut context, plan);
        }
        for group in update.groups.drain(..) {
            role.upsert_group(&mut context, group);
        }
        for vrf in &update.vrfs {
            role.upsert_vrf(&mut context, vrf);
        }
        self.upsert_endpoints(&update.endpoints);
        for route in &update.routes {
            self.upsert_route(route);
        }
        let (role, mut context) = self.split(false);
        for port in update.ports.drain(..) {
            role.upsert_port(&mut context, port);
        }
        role.note_paths(&mut context, &update.paths, &update.removed_paths);
    }

    fn update_keys(&mut self, keys: Vec<ClusterKeys>) {
        match &mut self.snapshot {
            Some(mentioned) => mentioned.keys.extend(keys),
            None => {
                let result = self.keys.update(keys, false);
                self.failures.check(result, "cluster keys");
            }
        }
    }

    fn upsert_endpoints(&mut self, endpoints: &[Endpoint]) {
        let entries: Vec<_> = endpoints.iter().flat_map(endpoint_entries).collect();
        let bulk = self.tables.upsert_endpoints(&entries);
        let named = bulk.errors.len();
        for (index, error) in bulk.errors {
            let name =
                entries.get(index).map_or_else(String::new, |e| format!("{} of VNI {}", e.address, e.vni));
            self.failures.add(1, || format!("endpoint {name}: {}", error_chain(&error)));
        }
        let rest = bulk.failed.saturating_sub(named) as u64;
        if rest > 0 {
            self.failures.add(rest, || format!("endpoints: {rest} more of one message"));
        }
    }

    fn upsert_route(&mut self, route: &Route) {
        let target = match route.scope {
            Scope::Local => Target::Local,
            Scope::Peer(vni) => Target::Peer(vni),
            Scope::Drop => Target::Drop,
        };
        let (vni, prefix) = (route.key.vni, route.key.prefix);
        let result = self.tables.upsert_route(&sluice_tables::Route { vni, prefix, target });
        self.failures.check(result, format_args!("route {prefix} of VNI {vni}"));
    }

    /// Entries go in the reverse order of [`Applier::upsert`].
    fn remove(&mut self, update: &Update, is_other_database: bool) {
        let (role, mut context) = self.split(is_other_database);
        for instance in &update.removed_ports {
            role.remove_port(&mut context, *instance);
        }
        for key in &update.removed_endpoints {
            for address in addresses(key.ipv4, key.ipv6) {
                let result = context.tables.remove_endpoint(key.vni, address);
                context.check(result, format_args!("removal of endpoint {address} of VNI {}", key.vni));
            }
        }
        for key in &update.removed_routes {
            let result = context.tables.remove_route(key.vni, key.prefix);
            context.check(result, format_args!("removal of route {} of VNI {}", key.prefix, key.vni));
        }
        if !update.removed_vnis.is_empty() {
            role.remove_vrfs(&mut context, &update.removed_vnis);
        }
        for id in &update.removed_groups {
            role.remove_group(&mut context, *id);
        }
        for address in &update.removed_vips {
            role.remove_vip(&mut context, *address);
        }
        for address in &update.removed_vteps {
            role.remove_vtep(&mut context, *address);
        }
    }

    /// Removes endpoints from an update whose address an entry has that the database lost, with another MAC: packets
    /// for the instance that runs would get lost. The controller gets a failure by name.
    fn refuse_conflicts(&mut self, update: &mut Update) {
        let is_first = update.keep_unmentioned && update.database_id == self.tables.database_id();
        if !is_first && self.unconfirmed.is_empty() {
            return;
        }
        for endpoint in &mut update.endpoints {
            let Endpoint { vni, mac, ipv4, ipv6, .. } = *endpoint;
            for address in addresses(ipv4, ipv6) {
                let known = self.tables.endpoint(vni, address).filter(|known| known.mac != mac);
                let is_kept = is_first || self.unconfirmed.has_endpoint(vni, address);
                let Some(known) = known.filter(|_| is_kept) else { continue };
                self.failures.add(1, || conflict(vni, address, known.mac));
                match address {
                    IpAddr::V4(_) => endpoint.ipv4 = None,
                    IpAddr::V6(_) => endpoint.ipv6 = None,
                }
            }
        }
        update.endpoints.retain(|endpoint| endpoint.ipv4.is_some() || endpoint.ipv6.is_some());
    }

    /// Removes networks that were kept only for ports which have been removed.
    fn remove_idle_networks(&mut self) {
        let idle = self.unconfirmed.take_idle_networks(&self.role);
        if !idle.is_empty() {
            let (role, mut context) = self.split(false);
            role.remove_vrfs(&mut context, &idle);
        }
    }

    fn remove_unmentioned(&mut self, mentioned: &SnapshotEntries, is_other_database: bool) {
        let mut routes = mentioned.unmentioned_routes(&self.tables);
        routes.retain(|(vni, prefix)| !self.unconfirmed.has_route(*vni, *prefix));
        for (vni, prefix) in routes {
            let result = self.tables.remove_route(vni, prefix);
            self.failures.check(result, format_args!("removal of route {prefix} of VNI {vni}"));
        }
        let result = self.tables.retain_endpoints(|endpoint| {
            mentioned.has_endpoint(endpoint) || self.unconfirmed.has_endpoint(endpoint.vni, endpoint.address)
        });
        self.failures.check(result, "removal of endpoints that the snapshot does not have");
        let mut removals = mentioned.removals(&self.tables, &self.role);
        self.unconfirmed.keep(&mut removals);
        self.remove(&removals, is_other_database);
    }
}

fn conflict(vni: Vni, address: IpAddr, mac: MacAddr) -> String {
    format!(
        "endpoint {address} of VNI {vni}: an instance with MAC {mac}, which the database does not have, has this \
         address: adopt or remove it first"
    )
}

fn endpoint_entries(endpoint: &Endpoint) -> impl Iterator<Item = sluice_tables::Endpoint> {
    let Endpoint { vni, mac, host, ipv4, ipv6 } = *endpoint;
    addresses(ipv4, ipv6).map(move |address: IpAddr| sluice_tables::Endpoint { vni, address, mac, host })
}
