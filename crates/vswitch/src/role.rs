//! The host's role: what a host does with groups, VRFs, ports and direct paths of an update, and what it keeps
//! besides the tables. This file changes when hosts get another kind of entry.
//!
//! A VRF sends its packets to the vIPs of its group. It may come before its group has a vIP of this host's
//! address family; until then the VPC works on this host alone:
//!
//! ```text
//!                    its group has vIPs
//!     VRF added --------------------------------------> CONNECTED
//!         |                                              |     ^
//!         | its group is absent or empty:                |     | its group is added
//!         | reported as a failure                        |     | or gets a vIP
//!         v                  its group is removed or     |     |
//!     WITHOUT GROUP <------- loses its last vIP ---------+     |
//!         |                                                    |
//!         +----------------------------------------------------+
//! ```

mod delayed_removal;
#[cfg(test)]
mod digest_tests;
mod fixed_paths;
#[cfg(test)]
mod fixed_paths_tests;
#[cfg(test)]
mod options_tests;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use sluice_agent::rsp::KeyKind;
use sluice_agent::{
    Claims, EndingSessionsJob, MigrationReports, Role, StateReports, UpdateContext, elephant_bytes,
    error_chain,
};
use sluice_southbound::{Group, MemberState, Path, PathKey, Policy, PolicyKey, Port, Vrf, Vtep};
use sluice_tables::NodeTables;
use sluice_tables::sessions::SessionReader;
use sluice_types::{CreditPolicy, EntryHash, EntryKey, InstanceId, SecurityRuleId, Vni};
use tokio::sync::watch;

use crate::elephants::PERIOD;
use crate::ending_sessions::Ending;
use crate::policies;
use crate::port_registry::PortRegistry;
use delayed_removal::DelayedRemovals;
use fixed_paths::PendingPaths;

/// A host's state besides the tables.
pub struct HostRole {
    /// The instances of this host and their ports.
    pub ports: PortRegistry,
    /// VRFs whose group is absent, with that group.
    without_group: BTreeMap<Vni, sluice_tables::Vrf>,
    delayed: DelayedRemovals,
    paths: PendingPaths,
    /// Policies that the controller was told not to have come.
    absent_policies: BTreeSet<PolicyKey>,
    /// Addresses that VMs have announced and do not hold.
    claims: Claims,
    /// States of migrations for the controller.
    migrations: MigrationReports,
    /// States of members of services for the controller.
    members: StateReports<MemberState>,
    /// The groups for which this host detects elephant flows itself, and the time in milliseconds for which such flows must last.
    detection: watch::Sender<BTreeMap<u32, u32>>,
    /// The sessions of the ports.
    sessions: Option<SessionReader>,
}

impl HostRole {
    /// Networks and gateways that the controller removes stay for `removal_delay`.
    pub fn new(ports: PortRegistry, removal_delay: Duration) -> Self {
        Self {
            ports,
            without_group: BTreeMap::new(),
            delayed: DelayedRemovals::new(removal_delay),
            paths: PendingPaths::default(),
            absent_policies: BTreeSet::new(),
            claims: Claims::default(),
            migrations: MigrationReports::default(),
            members: StateReports::default(),
            detection: watch::Sender::default(),
            sessions: None,
        }
    }

    /// With what reads the sessions of the ports.
    pub fn with_sessions(self, sessions: SessionReader) -> Self {
        Self { sessions: Some(sessions), ..self }
    }

    /// VMs have announced addresses, of which those that they may have and do not hold are claimed.
    pub fn note_claims(&self, announced: &[sluice_datapath::Claim]) {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
        for claim in announced {
            let Some(port) = self.ports.instance(InstanceId::new(claim.instance)) else { continue };
            if let Some(is_held) = holds(port, claim.address) {
                let age = (now.as_millis() as u32).wrapping_sub(claim.at_ms);
                let age = Duration::from_millis(age.into());
                self.claims.announce(port.instance, claim.address, is_held, age);
            }
        }
    }

    /// The groups for which this host detects elephant flows, as received since the agent started. The value is the time in milliseconds for
    /// which such flows must last. If the map is empty, gateways detect elephant flows.
    pub fn detection(&self) -> watch::Receiver<BTreeMap<u32, u32>> {
        self.detection.subscribe()
    }

    fn set_detection(&mut self, id: u32, after_ms: Option<u32>) {
        self.detection.send_if_modified(|groups| match after_ms {
            Some(after_ms) => groups.insert(id, after_ms) != Some(after_ms),
            None => groups.remove(&id).is_some(),
        });
    }

    /// Begins the delayed removal of networks without an instance here and of VTEPs that are no known
    /// gateway's: an earlier agent may have delayed their removal, or died before it.
    pub fn delay_unused(&mut self, tables: &NodeTables, now: Instant) {
        for entry in tables.vrfs() {
            if !self.ports.has_instance_in(entry.vrf.vni) {
                self.delayed.delay_network(entry.vrf.vni, now);
            }
        }
        for vtep in tables.vteps() {
            if tables.role(vtep) == Some(sluice_tables::Role::Gateway) && !self.ports.is_gateway(vtep) {
                self.delayed.delay_vtep(vtep, now);
            }
        }
    }

    /// Removes networks and VTEPs whose delay is over, and groups that only such networks used. A network
    /// with an instance here stays.
    pub fn remove_expired(&mut self, tables: &mut NodeTables, now: Instant) {
        self.ports.remove_expired_redirects(tables, now);
        self.ports.permit_targets(tables);
        self.paths.write_held(tables);
        for vni in self.delayed.take_expired_networks(now) {
            if self.ports.has_instance_in(vni) {
                continue;
            }
            tracing::info!(%vni, "removing a network without instances on this host");
            // Otherwise the VRF would be written again when its group returns.
            self.without_group.remove(&vni);
            if let Err(error) = tables.remove_vrf(vni) {
                tracing::error!(%vni, error = error_chain(&error), "cannot remove a network; retrying later");
                self.delayed.delay_network(vni, now);
            }
        }
        for vtep in self.delayed.take_expired_vteps(now) {
            tracing::info!(%vtep, "refusing packets of a gateway that was removed");
            if let Err(error) = tables.remove_vtep(vtep) {
                tracing::error!(%vtep, error = error_chain(&error), "cannot remove a VTEP; retrying later");
                self.delayed.delay_vtep(vtep, now);
            }
        }
        let unused =
            self.delayed.take_unused_groups(|id| tables.vrfs().any(|entry| entry.vrf.group == Some(id)));
        for id in unused {
            if let Err(error) = tables.remove_group(id) {
                tracing::error!(id, error = error_chain(&error), "cannot remove a group; retrying later");
                self.delayed.delay_group(id);
            }
        }
    }

    /// Writes a VRF, without its group if that is absent.
    fn write_vrf(&mut self, context: &mut UpdateContext<'_>, vrf: sluice_tables::Vrf) {
        let mut entry = vrf;
        if let Some(id) = vrf.group.filter(|id| !context.tables.groups().any(|group| group.id == *id)) {
            (entry.group, entry.elephant_bytes) = (None, None);
            self.without_group.insert(vrf.vni, vrf);
            report_absent_group(context, vrf.vni, id);
        } else {
            self.without_group.remove(&vrf.vni);
        }
        context.upsert_vrf(&entry);
    }
}

/// Whether an instance holds an address that it may have in turn with others; `None` if it may not have it.
fn holds(port: &Port, address: IpAddr) -> Option<bool> {
    port.options.pairs.iter().find(|pair| pair.address == address).map(|pair| pair.held)
}

fn report_absent_group(context: &mut UpdateContext<'_>, vni: Vni, group: u32) {
    context.wait(|| format!("VNI {vni}: its gateway group {group} has no vIP for this host"));
}

impl Role for HostRole {
    const KEY_KIND: KeyKind = KeyKind::Host;
    const DIGESTS_ARE_RARE: bool = true;

    fn is_settled(&self) -> bool {
        self.ports.is_reconciled()
    }

    fn visit_entries(&self, tables: &NodeTables, call: &mut dyn FnMut(EntryKey, EntryHash)) {
        let wrong = self.ports.wrong_ports(tables);
        // Their place is a matter between both hosts, so the controller leaves them out, too.
        let migrating = self.ports.migrating_entries();
        tables.visit_entries(|key, hash| {
            if !self.delayed.has(key) && !migrating.contains(&key) {
                call(key, if wrong.contains(&key) { EntryHash::unreadable(key) } else { hash });
            }
        });
        for port in self.ports.without_interface().filter(|port| port.migration.is_none()) {
            port.entry_hashes().for_each(|(key, hash)| call(key, hash));
        }
        self.ports.visit_policies(tables, call);
    }

    fn claims(&self) -> Claims {
        self.claims.clone()
    }

    fn migrations(&self) -> MigrationReports {
        self.migrations.clone()
    }

    fn members(&self) -> StateReports<MemberState> {
        self.members.clone()
    }

    fn begin_stream(&mut self) {
        self.paths.clear();
        self.absent_policies.clear();
    }

    fn upsert_vtep(&mut self, context: &mut UpdateContext<'_>, vtep: &Vtep) {
        self.ports.upsert_vtep(vtep);
        self.delayed.cancel_vtep(vtep.address);
        context.upsert_vtep(vtep);
    }

    fn remove_vtep(&mut self, context: &mut UpdateContext<'_>, address: IpAddr) {
        self.ports.remove_vtep(address);
        let is_gateway = context.tables.role(address) == Some(sluice_tables::Role::Gateway);
        if is_gateway && !context.is_other_database {
            self.delayed.delay_vtep(address, Instant::now());
        } else {
            context.remove_vtep(address);
        }
    }

    fn known_vteps(&self) -> Vec<IpAddr> {
        self.ports.gateway_vteps().collect()
    }

    fn upsert_group(&mut self, context: &mut UpdateContext<'_>, group: Group) {
        let Group { id, vips, detect_after_ms } = group;
        if vips.is_empty() {
            self.remove_group(context, id);
            return;
        }
        self.set_detection(id, detect_after_ms);
        self.delayed.cancel_group(id);
        let result = context.tables.upsert_group(&sluice_tables::Group { id, vips });
        if context.check(result, format_args!("group {id}")).is_none() {
            return;
        }
        let connected: Vec<_> =
            self.without_group.values().filter(|vrf| vrf.group == Some(id)).copied().collect();
        for vrf in connected {
            self.write_vrf(context, vrf);
        }
    }

    fn remove_group(&mut self, context: &mut UpdateContext<'_>, id: u32) {
        self.set_detection(id, None);
        let vrfs = context.tables.vrfs().map(|entry| entry.vrf);
        let users: Vec<_> = vrfs.filter(|vrf| vrf.group == Some(id)).collect();
        if !users.is_empty() && users.iter().all(|vrf| self.delayed.has_network(vrf.vni)) {
            return self.delayed.delay_group(id);
        }
        let result = context.tables.remove_group(id);
        if context.check(result, format_args!("removal of group {id}")).is_none() {
            return;
        }
        // In a snapshot VRFs come after the groups, and may have other groups than before.
        if !context.is_snapshot {
            users.iter().for_each(|vrf| report_absent_group(context, vrf.vni, id));
        }
        self.without_group.extend(users.into_iter().map(|vrf| (vrf.vni, vrf)));
    }

    fn upsert_vrf(&mut self, context: &mut UpdateContext<'_>, vrf: &Vrf) {
        self.delayed.cancel_network(vrf.vni);
        let Vrf { vni, mtu, router4, router6, group, elephant_kbps, internet_meter: _ } = *vrf;
        // Without a group, it would be that of a gateway.
        let elephant_bytes = group.and_then(|_| elephant_bytes(elephant_kbps, PERIOD));
        let entry = sluice_tables::Vrf { vni, mtu, router4, router6, group, elephant_bytes };
        self.write_vrf(context, entry);
    }

    fn remove_vrfs(&mut self, context: &mut UpdateContext<'_>, vnis: &[Vni]) {
        for vni in vnis {
            self.without_group.remove(vni);
            if !context.is_other_database && context.tables.vrf(*vni).is_some() {
                self.delayed.delay_network(*vni, Instant::now());
            } else {
                context.remove_vrf(*vni);
            }
        }
        // While the removal of a network is delayed, the controller no longer updates its paths.
        self.paths.forget(vnis);
        let result = context.tables.retain_fixed(|path| !vnis.contains(&path.vni));
        context.check(result, "removal of the fixed paths of networks");
    }

    fn upsert_policy(&mut self, context: &mut UpdateContext<'_>, policy: Policy) {
        if let Err(error) = self.ports.upsert_policy(context.tables, policy) {
            context.fail(|| error);
        }
    }

    fn set_default_credit(&mut self, context: &mut UpdateContext<'_>, policy: Option<CreditPolicy>) {
        self.ports.set_default_credit(context.tables, policy);
    }

    fn upsert_port(&mut self, context: &mut UpdateContext<'_>, port: Port) {
        self.claims.decide(port.instance, |address| holds(&port, address));
        if let Err(error) = self.ports.upsert_instance(context.tables, port) {
            context.fail(|| error);
        }
    }

    fn remove_port(&mut self, context: &mut UpdateContext<'_>, instance: InstanceId) {
        self.claims.decide(instance, |_| None);
        if let Err(error) = self.ports.remove_instance(context.tables, instance) {
            context.fail(|| error);
        }
    }

    fn instances(&self) -> Vec<InstanceId> {
        self.ports.instances().map(|port| port.instance).collect()
    }

    fn port(&self, instance: InstanceId) -> Option<Port> {
        self.ports.instance(instance).cloned()
    }

    fn keeps_network(&self, vni: Vni) -> bool {
        self.ports.has_instance_in(vni)
    }

    fn note_paths(&mut self, _: &mut UpdateContext<'_>, paths: &[Path], removed: &[PathKey]) {
        self.paths.note(paths, removed);
    }

    fn waiting(&self) -> Vec<EntryKey> {
        let policies = self.ports.absent_policies().map(|key| EntryKey::Policy(key.vni, key.identity));
        self.without_group.keys().map(|vni| EntryKey::Vrf(*vni)).chain(policies).collect()
    }

    fn end_step(&mut self, context: &mut UpdateContext<'_>) {
        self.paths.write(context);
        if context.is_snapshot {
            self.ports.end_unknown_migrations();
        }
    }

    fn remove_unused(&mut self, context: &mut UpdateContext<'_>) -> Vec<PolicyKey> {
        let absent: BTreeSet<PolicyKey> = self.ports.absent_policies().collect();
        for key in absent.difference(&self.absent_policies) {
            context.wait(|| format!("{}: it has not come, so its ports are closed", policies::name(*key)));
        }
        self.absent_policies = absent;
        self.ports.remove_unused_policies(context.tables)
    }

    fn find_ending_sessions(&self, tables: &NodeTables, rules: &[u64]) -> EndingSessionsJob {
        let Some(sessions) = self.sessions.clone() else {
            return Box::new(|| Err("the sessions are not open yet".to_owned()));
        };
        let rules: Vec<_> = rules.iter().map(|id| SecurityRuleId::new(*id)).collect();
        let ports = self.ports.attachments().values().map(|it| (it.scope.into(), it.instance)).collect();
        let ending = Ending { sessions, ports, policies: self.ports.policies().without(tables, &rules) };
        Box::new(move || ending.find())
    }

    fn database_changed(&mut self) {
        self.delayed.clear();
    }

    fn commit(&mut self) -> Result<(), String> {
        self.ports.commit()
    }
}
