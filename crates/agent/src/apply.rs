//! Applies the controller's updates to the forwarding tables, step by step. This file changes when an update
//! gets another kind of entry, or steps end differently.
//!
//! A step is one or more messages; the last one has a revision. Steps are idempotent: after a crash the
//! controller sends again what was not applied. A snapshot is applied over the existing tables: its entries
//! are written one by one as in a delta, and entries that it did not mention are removed when it ends, so
//! an entry of both the old and the new state is never absent.
//!
//! A snapshot of another history of the database, which went back to an earlier state, removes nothing that it did
//! not mention of networks and instances: these are kept as [`UnconfirmedEntries`]. Services are removed.
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
//!
//! Entries that could not be written are tried again between the messages ([`Applier::retry`]).

mod public;
mod retries;
mod services;
mod snapshot;
#[cfg(test)]
pub(crate) mod tests;
mod unconfirmed;
mod verify;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use sluice_southbound::proto::NodeUpdate;
use sluice_southbound::{ClusterKeys, Endpoint, EndpointKey, Meter, Missing, RouteKey, Update};
use sluice_tables::NodeTables;
use sluice_types::{Digests, EntryHash, EntryKey, MacAddr};
use tokio::sync::watch;

use crate::error::{OtherDatabase, error_chain};
use crate::failures::Failures;
use crate::rsp::{KeyStore, Keys};
use crate::{Role, UpdateContext};

pub use retries::RETRIES_MAX;
use retries::{Entry, Key, Retries};
use snapshot::{SnapshotEntries, addresses};
pub use unconfirmed::UnconfirmedEntries;
pub use verify::Repaired;
use verify::Verification;

/// A step that has ended, or an attempt to write what earlier steps could not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The revision to acknowledge.
    pub revision: u64,
    /// Descriptions of the entries that could not be written.
    pub failures: Vec<String>,
    /// Number of these entries.
    pub failed_entries: u64,
    /// What a snapshot that the controller sent because of different digests has repaired.
    pub repaired: Option<Repaired>,
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
    /// Compares the snapshot with the tables, if the controller asked for it.
    verification: Option<Verification>,
    /// Some messages of a step have been applied, and the last one has not.
    in_step: bool,
    failures: Failures,
    /// Entries that could not be written, to be tried again.
    retries: Retries,
    /// Entries are missing that only a snapshot brings again.
    needs_snapshot: bool,
    /// The files of the role or of the keys are behind the tables.
    is_uncommitted: bool,
    /// Entries that are not written because an entry that the database lost has their address, at most
    /// [`RETRIES_MAX`], and why. Only a snapshot or a change of the entry brings it again.
    refused: BTreeMap<EntryKey, String>,
    /// What the controller was told to be missing.
    reported: Missing,
    /// Revision of the last step; 0 before the first.
    last_revision: u64,
    topology_changes: u64,
    entries: u64,
    keys: KeyStore,
    /// [`NodeTables::complete_revision`], for those who wait for it.
    complete: watch::Sender<u64>,
}

impl<R: Role> Applier<R> {
    /// Continues with the tables as they are. The keys that `keys` has loaded are used at once.
    pub fn new(tables: NodeTables, role: R, keys: KeyStore) -> Self {
        let complete = watch::Sender::new(tables.complete_revision());
        // What the earlier agent would have tried again, or has kept for a role's entries that wait, is lost.
        let is_behind = tables.complete_revision() != tables.applied_revision();
        // So is what lacks only its meter, which the tables do not say.
        let needs_snapshot = is_behind || tables.meters_are_full();
        Self {
            tables,
            role,
            snapshot: None,
            unconfirmed: UnconfirmedEntries::default(),
            verification: None,
            in_step: false,
            failures: Failures::default(),
            retries: Retries::default(),
            needs_snapshot,
            is_uncommitted: false,
            refused: BTreeMap::new(),
            reported: Missing::default(),
            last_revision: 0,
            topology_changes: 0,
            entries: 0,
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

    /// Number of entries in all updates so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The revision of the tables, and digests of what lookups find in them; `None` while the tables are of no revision.
    pub fn digests(&self) -> Option<(u64, Digests)> {
        let revision = self.tables.applied_revision();
        let is_between = self.is_in_step() || !self.is_complete() || revision == 0;
        // With unconfirmed entries, the tables differ from what the controller compiled.
        let is_comparable = !is_between && self.unconfirmed.is_empty() && self.role.is_settled();
        is_comparable.then(|| {
            let mut sums = Digests::default();
            self.visit_entries(&mut |_, hash| sums.add(hash));
            (revision, sums)
        })
    }

    /// Calls `call` for every entry that digests count. What lacks only its meter, because there is no room for it, is counted with
    /// it: the tables are not damaged.
    fn visit_entries(&self, call: &mut dyn FnMut(EntryKey, EntryHash)) {
        self.role.visit_entries(&self.tables, &mut |key, hash| call(key, self.retries.counted(key, hash)));
        for (key, hash) in self.retries.meters().map(Meter::entry_hash) {
            call(key, hash);
        }
    }

    /// Whether some messages of a step have been applied, and the last one has not.
    pub fn is_in_step(&self) -> bool {
        self.snapshot.is_some() || self.in_step
    }

    /// Whether all entries of the last step and of those before are in the tables. Meters for which there is no room are not
    /// needed for that.
    pub fn is_complete(&self) -> bool {
        let is_nothing_behind = !self.needs_snapshot && !self.is_uncommitted;
        is_nothing_behind
            && self.retries.has_only_unmetered()
            && self.refused.is_empty()
            && self.role.waiting().is_empty()
    }

    /// What is missing in the tables, if that is not what the controller was told last on this stream.
    pub fn take_missing(&mut self) -> Option<Missing> {
        let mut missing = self.retries.missing();
        for key in self.role.waiting() {
            missing.add(key, "another entry is missing that it needs".to_owned());
        }
        for (key, reason) in &self.refused {
            missing.add(*key, reason.clone());
        }
        missing.others |= self.needs_snapshot || self.is_uncommitted;
        (missing != self.reported).then(|| {
            self.reported.clone_from(&missing);
            missing
        })
    }

    /// Number of entries that wait to be tried again: at most [`RETRIES_MAX`], and those that lack only a meter.
    pub fn retries(&self) -> usize {
        self.retries.len()
    }

    /// A new stream begins: forgets the unfinished step of an earlier one.
    pub fn begin_stream(&mut self) {
        self.snapshot = None;
        self.verification = None;
        self.failures = Failures::default();
        self.reported = Missing::default();
        // The acknowledgment with the failures may be lost with the stream. A snapshot writes the entries again.
        if !self.is_complete() {
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
            self.failures.add_lost(|| format!("malformed: {error}"));
        }
        if update.snapshot && self.snapshot.is_none() {
            // Until the snapshot is complete the tables are of no revision.
            self.tables.set_applied_revision(0);
            if update.database_id != self.tables.database_id() {
                self.set_complete_revision(0);
            }
            self.snapshot = Some(SnapshotEntries::default());
            if update.verify_shards != 0 {
                self.begin_verification(update.verify_shards);
            }
            // It has all entries.
            (self.retries, self.needs_snapshot) = (Retries::default(), false);
            self.refused.clear();
        }
        let ours = self.tables.database_id();
        if self.snapshot.is_none() && update.database_id != ours {
            self.tables.set_applied_revision(0);
            return Err(OtherDatabase { sent: update.database_id, ours });
        }
        self.refuse_conflicts(&mut update);
        let given_to_others = self.unconfirmed.forget(&update);
        if let Some(mentioned) = &mut self.snapshot {
            mentioned.note(&update);
        }
        if let Some(verification) = &mut self.verification {
            verification.note(&update);
        }
        self.entries += update.entry_count() as u64;
        // Keys, plans and watched hosts belong to no step. They are not part of the tables.
        let of_no_step = update.keys.len()
            + usize::from(update.cluster.is_some())
            + usize::from(update.watched_hosts.is_some());
        self.in_step |= update.entry_count() > of_no_step;
        if self.is_in_step() {
            self.tables.begin_step();
        }
        self.retries.forget(&update);
        self.remove_public_prefixes(&given_to_others);
        self.take_prefixes_of_nat(&update);
        self.upsert(&mut update);
        self.remove(&update, false);
        self.remove_idle_networks();
        Ok(if update.revision == 0 { None } else { Some(self.finish(&update)) })
    }

    /// The controller compiled other entries than these tables contain.
    fn begin_verification(&mut self, shards: u64) {
        tracing::warn!(shards = shards.count_ones(), "the tables differ from what the controller compiled");
        if Verification::is_mass(shards) {
            self.set_complete_revision(0);
        }
        let mut verification = Verification::begin(shards);
        self.visit_entries(&mut |key, hash| verification.note_present(key, hash));
        let result = self.tables.remove_damage();
        self.failures.check(result, "removal of damaged entries");
        self.verification = Some(verification);
    }

    fn finish(&mut self, update: &Update) -> Applied {
        let is_other_database = update.database_id != self.tables.database_id();
        // A path is not tried again by itself, because the paths of a step depend on each other.
        let paths_failed = self.fails(is_other_database, |role, context| role.end_step(context));
        self.needs_snapshot |= paths_failed;
        if let Some(mut mentioned) = self.snapshot.take() {
            let result = self.keys.update(std::mem::take(&mut mentioned.keys), true);
            self.check_lost(result, "cluster keys");
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
        self.remove_unused_meters();
        let (role, mut context) = self.split(is_other_database);
        for key in role.remove_unused(&mut context) {
            self.retries.remove(Key::Policy(key));
        }
        self.tables.set_database_id(update.database_id);
        // Stored before the revision: an earlier revision of this history is accepted, a lost history must be found.
        if self.unconfirmed.is_empty() {
            self.tables.set_commit_id(update.commit_id);
        }
        self.commit(update.revision);
        self.needs_snapshot |= self.failures.lost() > 0;
        let (failures, failed_entries) = std::mem::take(&mut self.failures).into_report();
        self.note_complete();
        self.in_step = false;
        let repaired = self.verification.take().map(Verification::end);
        Applied { revision: update.revision, failures, failed_entries, repaired }
    }

    /// Makes the role's changes and the keys survive a crash, and sets the applied revision.
    fn commit(&mut self, revision: u64) {
        let committed = self.role.commit();
        // The next agent reads what was committed before this step, so it must request a snapshot.
        self.tables.set_applied_revision(if committed.is_ok() { revision } else { 0 });
        self.last_revision = revision;
        let (is_role_behind, keys) = (committed.is_err(), self.keys.commit());
        self.is_uncommitted = is_role_behind || keys.is_err();
        if let Err(error) = committed {
            self.failures.add(1, || error);
        }
        self.failures.check(keys, "key file");
    }

    fn note_complete(&mut self) {
        if self.is_complete() {
            self.set_complete_revision(self.last_revision);
        }
    }

    /// Tries again what could not be written, if it is time. Returns `Some` if less is missing afterwards. Must be
    /// called about once a second.
    pub fn retry(&mut self, now: Instant) -> Option<Applied> {
        let applied = self.write_again(now);
        if !self.is_in_step() {
            self.role.settle(&self.tables);
        }
        applied
    }

    fn write_again(&mut self, now: Instant) -> Option<Applied> {
        let missing = self.retries.len() + usize::from(self.is_uncommitted);
        if missing == 0 || self.snapshot.is_some() || !self.retries.is_due(now) {
            return None;
        }
        // The failures of a step that has not ended are reported at its end.
        let of_step = std::mem::replace(&mut self.failures, Failures::of_repetition());
        self.tables.begin_step();
        let mut update = self.retries.take();
        self.upsert(&mut update);
        self.remove(&update, false);
        self.remove_idle_networks();
        self.remove_unused_meters();
        if self.is_uncommitted {
            self.commit(self.last_revision);
        }
        let (failures, failed_entries) = std::mem::replace(&mut self.failures, of_step).into_report();
        let remaining = self.retries.len() + usize::from(self.is_uncommitted);
        self.retries.attempted(now, remaining < missing);
        self.note_complete();
        tracing::info!(missing, remaining, "tried to write again what could not be written before");
        let applied = Applied { revision: self.last_revision, failures, failed_entries, repaired: None };
        (remaining < missing).then_some(applied)
    }

    /// Runs `write`. Returns whether something failed that may be tried again.
    fn fails(&mut self, is_other_database: bool, write: impl FnOnce(&mut R, &mut UpdateContext<'_>)) -> bool {
        let before = self.failures.retriable();
        let (role, mut context) = self.split(is_other_database);
        write(role, &mut context);
        self.failures.retriable() > before
    }

    /// Runs `write` of a meter, or of an entry that may have one. Returns whether all of it is in the tables. If not,
    /// it is tried again.
    fn write_metered(&mut self, entry: Entry, write: impl FnOnce(&mut R, &mut UpdateContext<'_>)) -> bool {
        let before = self.failures.unmetered();
        if self.fails(false, write) {
            self.try_again(entry);
        } else if self.failures.unmetered() > before {
            self.retries.add_unmetered(entry, self.failures.last_reason());
        } else {
            return true;
        }
        false
    }

    fn try_again(&mut self, entry: Entry) {
        let reason = self.failures.last_reason();
        self.needs_snapshot |= !self.retries.add(entry, reason);
    }

    fn try_removal_again(&mut self, key: Key) {
        let reason = self.failures.last_reason();
        self.needs_snapshot |= !self.retries.add_removal(key, reason);
    }

    fn check_lost<T, E: std::error::Error>(&mut self, result: Result<T, E>, what: &str) {
        if let Err(error) = result {
            self.failures.add_lost(|| format!("{what}: {}", error_chain(&error)));
        }
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
    /// groups and meters, routes to VRFs and meters, public prefixes and NAT gateways to VRFs, vIPs and meters, addresses of
    /// mounts to services.
    fn upsert(&mut self, update: &mut Update) {
        self.update_keys(std::mem::take(&mut update.keys));
        for vtep in &update.vteps {
            if self.fails(false, |role, context| role.upsert_vtep(context, vtep)) {
                self.try_again(Entry::Vtep(*vtep));
            }
        }
        for vip in &update.vips {
            if self.fails(false, |role, context| role.upsert_vip(context, vip)) {
                self.try_again(Entry::Vip(*vip));
            }
        }
        if let Some(plan) = update.cluster.take() {
            let (role, mut context) = self.split(false);
            role.set_cluster_plan(&mut context, plan);
        }
        if let Some(hosts) = update.watched_hosts.take() {
            let (role, mut context) = self.split(false);
            role.set_watched_hosts(&mut context, hosts);
        }
        for group in update.groups.drain(..) {
            let copy = group.clone();
            if self.fails(false, |role, context| role.upsert_group(context, copy)) {
                self.try_again(Entry::Group(group));
            }
        }
        self.upsert_meters(&update.meters);
        for vrf in &update.vrfs {
            self.write_metered(Entry::Vrf(*vrf), |role, context| role.upsert_vrf(context, vrf));
        }
        self.upsert_endpoints(&update.endpoints);
        for route in &update.routes {
            self.write_metered(Entry::Route(*route), |_, context| context.upsert_route(route));
        }
        self.upsert_public(update);
        self.upsert_services(update);
        for policy in update.policies.drain(..) {
            let copy = policy.clone();
            if self.fails(false, |role, context| role.upsert_policy(context, copy)) {
                self.try_again(Entry::Policy(policy));
            }
        }
        if let Some(policy) = update.default_credit.take() {
            let (role, mut context) = self.split(false);
            role.set_default_credit(&mut context, policy);
        }
        for port in update.ports.drain(..) {
            let copy = port.clone();
            if self.fails(false, |role, context| role.upsert_port(context, copy)) {
                self.try_again(Entry::Port(Box::new(port)));
            }
        }
        let (role, mut context) = self.split(false);
        role.note_paths(&mut context, &update.paths, &update.removed_paths);
    }

    fn update_keys(&mut self, keys: Vec<ClusterKeys>) {
        match &mut self.snapshot {
            Some(mentioned) => mentioned.keys.extend(keys),
            None => {
                let result = self.keys.update(keys, false);
                self.check_lost(result, "cluster keys");
            }
        }
    }

    fn upsert_endpoints(&mut self, endpoints: &[Endpoint]) {
        let entries: Vec<_> = endpoints.iter().flat_map(endpoint_entries).collect();
        let bulk = self.tables.upsert_endpoints(&entries);
        if bulk.failed == 0 {
            return;
        }
        let named = bulk.errors.len();
        for (index, error) in bulk.errors {
            let name =
                entries.get(index).map_or_else(String::new, |e| format!("{} of VNI {}", e.address, e.vni));
            self.failures.add(1, || format!("endpoint {name}: {}", error_chain(&error)));
        }
        // The result names only the first errors. The others count as failed for the same reason as the last of these.
        let reason = self.failures.last_reason();
        let rest = bulk.failed.saturating_sub(named) as u64;
        if rest > 0 {
            self.failures.add(rest, || format!("endpoints: {rest} more of one message"));
        }
        for entry in entries {
            match self.tables.endpoint(entry.vni, entry.address) == Some(entry) {
                true => self.retries.remove(Key::Endpoint(entry.vni, entry.address)),
                false => {
                    self.needs_snapshot |= !self.retries.add(Entry::Endpoint(entry), reason.clone());
                }
            }
        }
    }

    /// Entries go in the reverse order of [`Applier::upsert`].
    fn remove(&mut self, update: &Update, is_other_database: bool) {
        for instance in &update.removed_ports {
            if self.fails(is_other_database, |role, context| role.remove_port(context, *instance)) {
                self.try_removal_again(Key::Port(*instance));
            }
        }
        self.remove_services(update);
        for key in &update.removed_endpoints {
            for address in addresses(key.ipv4, key.ipv6) {
                let result = self.tables.remove_endpoint(key.vni, address);
                let what = format_args!("removal of endpoint {address} of VNI {}", key.vni);
                if self.failures.check(result, what).is_none() {
                    self.try_removal_again(Key::Endpoint(key.vni, address));
                }
            }
        }
        self.remove_nat_gateways(&update.removed_nat_gateways);
        self.remove_public_prefixes(&update.removed_public_prefixes);
        for key in &update.removed_routes {
            self.remove_route(*key);
        }
        if !update.removed_vnis.is_empty()
            && self.fails(is_other_database, |role, context| role.remove_vrfs(context, &update.removed_vnis))
        {
            update.removed_vnis.iter().for_each(|vni| self.try_removal_again(Key::Vrf(*vni)));
        }
        if self.tables.remove_meters(&update.removed_meters) && self.retries.len() > 0 {
            self.retries.expedite();
        }
        for id in &update.removed_groups {
            if self.fails(is_other_database, |role, context| role.remove_group(context, *id)) {
                self.try_removal_again(Key::Group(*id));
            }
        }
        for address in &update.removed_vips {
            if self.fails(is_other_database, |role, context| role.remove_vip(context, *address)) {
                self.try_removal_again(Key::Vip(*address));
            }
        }
        for address in &update.removed_vteps {
            if self.fails(is_other_database, |role, context| role.remove_vtep(context, *address)) {
                self.try_removal_again(Key::Vtep(*address));
            }
        }
        if self.retries.len() > 0 && frees_memory(update) {
            self.retries.expedite();
        }
    }

    fn remove_route(&mut self, key: RouteKey) {
        let result = self.tables.remove_route(key.vni, key.prefix);
        let what = format_args!("removal of route {} of VNI {}", key.prefix, key.vni);
        if self.failures.check(result, what).is_none() {
            self.try_removal_again(Key::Route(key));
        }
    }

    /// Removes endpoints from an update whose address an entry has that the database lost, with another MAC: packets
    /// for the instance that runs would get lost. The controller gets a failure by name.
    fn refuse_conflicts(&mut self, update: &mut Update) {
        self.forget_refused(update);
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
                // Not tried again by itself: it would fail until an operator decides about the other entry.
                let reason = conflict(known.mac);
                self.failures.add_waiting(|| format!("endpoint {address} of VNI {vni}: {reason}"));
                let fits = self.refused.len() < RETRIES_MAX;
                self.needs_snapshot |= !fits;
                if fits {
                    self.refused.insert(EntryKey::Endpoint(vni, address), reason);
                }
                match address {
                    IpAddr::V4(_) => endpoint.ipv4 = None,
                    IpAddr::V6(_) => endpoint.ipv6 = None,
                }
            }
        }
        update.endpoints.retain(|endpoint| endpoint.ipv4.is_some() || endpoint.ipv6.is_some());
    }

    /// An update writes or removes refused entries: what was refused is out of date. A removal is then not of the
    /// entry that has the address.
    fn forget_refused(&mut self, update: &mut Update) {
        if self.refused.is_empty() {
            return;
        }
        let is_removed =
            |key: &EntryKey| matches!(key, EntryKey::Endpoint(vni, _) if update.removed_vnis.contains(vni));
        self.refused.retain(|key, _| !is_removed(key));
        for Endpoint { vni, ipv4, ipv6, .. } in &update.endpoints {
            for address in addresses(*ipv4, *ipv6) {
                self.refused.remove(&EntryKey::Endpoint(*vni, address));
            }
        }
        if update.removes_unconfirmed {
            return;
        }
        for EndpointKey { vni, ipv4, ipv6 } in &mut update.removed_endpoints {
            let mut is_refused = |address| self.refused.remove(&EntryKey::Endpoint(*vni, address)).is_some();
            *ipv4 = ipv4.filter(|v4| !is_refused(IpAddr::V4(*v4)));
            *ipv6 = ipv6.filter(|v6| !is_refused(IpAddr::V6(*v6)));
        }
        update.removed_endpoints.retain(|key| key.ipv4.is_some() || key.ipv6.is_some());
    }

    /// Removes networks that were kept only for ports which have been removed.
    fn remove_idle_networks(&mut self) {
        let idle = self.unconfirmed.take_idle_networks(&self.role);
        if !idle.is_empty() && self.fails(false, |role, context| role.remove_vrfs(context, &idle)) {
            idle.iter().for_each(|vni| self.try_removal_again(Key::Vrf(*vni)));
        }
    }

    fn remove_unmentioned(&mut self, mentioned: &SnapshotEntries, is_other_database: bool) {
        let mut routes = mentioned.unmentioned_routes(&self.tables);
        routes.retain(|(vni, prefix)| !self.unconfirmed.has_route(*vni, *prefix));
        for (vni, prefix) in routes {
            self.remove_route(RouteKey { vni, prefix });
        }
        let result = self.tables.retain_endpoints(|endpoint| {
            mentioned.has_endpoint(endpoint) || self.unconfirmed.has_endpoint(endpoint.vni, endpoint.address)
        });
        self.check_lost(result, "removal of endpoints that the snapshot does not have");
        let mut removals = mentioned.removals(&self.tables, &self.role);
        self.unconfirmed.keep(&mut removals, &self.tables);
        self.remove(&removals, is_other_database);
        // Old entries may have taken the memory that new ones did not get.
        if self.retries.len() > 0 {
            self.retries.expedite();
        }
    }
}

fn conflict(mac: MacAddr) -> String {
    format!(
        "an instance with MAC {mac}, which the database does not have, has this address: adopt or remove it first"
    )
}

/// Whether an update removes entries that others may take the memory of.
fn frees_memory(update: &Update) -> bool {
    !(update.removed_ports.is_empty()
        && update.removed_endpoints.is_empty()
        && update.removed_routes.is_empty()
        && update.removed_public_prefixes.is_empty()
        && update.removed_nat_gateways.is_empty()
        && update.removed_service_addresses.is_empty()
        && update.removed_services.is_empty()
        && update.removed_vnis.is_empty()
        && update.removed_groups.is_empty()
        && update.removed_vips.is_empty()
        && update.removed_vteps.is_empty())
}

fn endpoint_entries(endpoint: &Endpoint) -> impl Iterator<Item = sluice_tables::Endpoint> {
    let Endpoint { vni, mac, host, ipv4, ipv6 } = *endpoint;
    addresses(ipv4, ipv6).map(move |address: IpAddr| sluice_tables::Endpoint { vni, address, mac, host })
}
