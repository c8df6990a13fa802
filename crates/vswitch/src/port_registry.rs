//! What a host keeps of its instances and their ports besides the tables, and of which cluster each gateway is.
//! This file changes when an instance or an attachment gets another property.
//!
//! An instance comes from the controller, its interface from the operator, in either order; a port is in the
//! tables while both are here:
//!
//! ```text
//!     instance without port ----- attach ----> PORT <---- instance added ---- interface without instance
//!                           <---- detach -----      ----- instance removed ->  (its packets are dropped)
//! ```
//!
//! The port of an instance that migrates is closed at one of both hosts (`migration.rs`).

mod entry;
mod files;
mod filtering;
mod migration;
#[cfg(test)]
mod migration_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_agent::Error;
use sluice_southbound::{Port, Vtep, VtepRole};
use sluice_tables::NodeTables;
use sluice_types::{CreditPolicy, EntryKey, InstanceId, Vni};
use tokio::sync::watch;

use crate::credit::Terms;
use crate::policies::Policies;
use crate::rates::RatedPort;
use crate::scopes::{NoScope, Scopes};
pub use filtering::Filter;
pub use migration::{CopyTarget, MovingPort};

/// An interface that is the port of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Index of the interface. An interface with another index is another one, though it may have the same
    /// name.
    pub ifindex: u32,
    /// The instance.
    pub instance: InstanceId,
    /// Whether packets are redirected straight into the other end of the veth.
    pub peer_redirect: bool,
    /// Number under which the port's sessions and its meter are kept, which the registry gives; 0: none, until the port is written.
    #[serde(default)]
    pub scope: u16,
}

/// Reason why an instance was not found, or an interface not attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// There is no instance with this name or id on this host.
    #[error("no instance {0:?} is placed on this host")]
    Unknown(String),
    /// Several instances have this name.
    #[error("{name:?} names several instances of this host: {candidates}; give VPC/NAME or the id")]
    Ambiguous {
        /// The given name.
        name: String,
        /// Full names of the instances that it may mean.
        candidates: String,
    },
    /// The instance already has a port.
    #[error("instance {instance} already has the port {ifname}; detach that first")]
    InstanceTaken {
        /// The instance.
        instance: String,
        /// Its port.
        ifname: String,
    },
    /// The instance has no port yet.
    #[error("instance {0} has no port; attach an interface first")]
    NoPort(String),
    /// The interface already is the port of another instance.
    #[error("{ifname} already is the port of instance {instance}; detach it first")]
    InterfaceTaken {
        /// The interface.
        ifname: String,
        /// Its instance.
        instance: String,
    },
    /// The instance does not migrate, by another migration, or in the other direction.
    #[error("instance {instance} has no migration {migration} that this host may do this for")]
    NotMigrating {
        /// The instance.
        instance: String,
        /// Number of the migration.
        migration: u64,
    },
    /// The instance does not migrate to this host.
    #[error("instance {0} does not migrate to this host, so no port waits for its guest")]
    NotIncoming(String),
    /// The instance does not migrate from this host.
    #[error("instance {0} does not migrate from this host, so its guest is not stopped for that")]
    NotOutgoing(String),
    /// The guest runs at the target of the migration already.
    #[error("the guest of instance {0} runs at the host to which it has migrated")]
    NotStopped(String),
    /// The port could not be written to the tables.
    #[error("{0}")]
    Tables(String),
    /// There is no number for the port's sessions.
    #[error(transparent)]
    Scope(#[from] NoScope),
    /// The attachments could not be written to the state directory.
    #[error("{0}")]
    State(String),
}

/// Instances, attachments and gateways.
pub struct PortRegistry {
    state_dir: PathBuf,
    instances: BTreeMap<InstanceId, Port>,
    /// Clusters, as group ids, by the VTEPs of their gateways.
    gateways: BTreeMap<IpAddr, u32>,
    /// Attachments by interface name.
    attachments: BTreeMap<String, Attachment>,
    policies: Policies,
    /// The policy of ports that have neither one of their own nor a rate.
    default_credit: Option<CreditPolicy>,
    scopes: Scopes,
    /// Instances that migrate.
    moving: migration::Migrations,
    /// Seconds for which a port that becomes filtered adopts the connections that it has.
    adopt_s: u32,
    /// MTU of the tunnel: no port has a larger one, whatever the MTU of its VPC.
    mtu_max: u16,
    /// Whether the last [`PortRegistry::reconcile`] wrote all ports, with the present `mtu_max`.
    is_reconciled: bool,
    /// Whether instances, policies or gateways have changed since the last commit.
    dirty: bool,
    /// Counts the changes of instances and gateways.
    changes: watch::Sender<u64>,
}

impl PortRegistry {
    /// Reads what an earlier agent saved. The flag is false if instances, policies, gateways or the default class are not known:
    /// then a snapshot is needed. A port that becomes filtered adopts the connections that it has for `adopt_s` seconds.
    ///
    /// # Errors
    /// If the attachments cannot be read.
    pub fn load(state_dir: &Path, scopes: Scopes, adopt_s: u32) -> Result<(Self, bool), Error> {
        let saved = files::read_instances(state_dir);
        let attachments = files::read_attachments(state_dir)?;
        let moving = migration::from_saved(files::read_migrations(state_dir)?);
        let files::Saved { instances, policies, gateways, default_credit, knows_default } =
            saved.unwrap_or_default();
        let is_complete = knows_default;
        let registry = Self {
            state_dir: state_dir.to_owned(),
            instances,
            gateways,
            attachments,
            policies: Policies::received(policies),
            default_credit,
            scopes,
            moving,
            adopt_s,
            mtu_max: u16::MAX,
            is_reconciled: true,
            dirty: !is_complete,
            changes: watch::Sender::new(0),
        };
        Ok((registry, is_complete))
    }

    /// Sets the MTU of the tunnel. Returns whether [`PortRegistry::reconcile`] must write the ports: the MTU
    /// changed, or a port could not be written before.
    pub fn limit_mtu(&mut self, mtu: u16) -> bool {
        self.is_reconciled &= std::mem::replace(&mut self.mtu_max, mtu) == mtu;
        !self.is_reconciled
    }

    /// MTU of the tunnel.
    pub fn mtu_max(&self) -> u16 {
        self.mtu_max
    }

    /// Whether the ports of the tables are in line with the attachments.
    pub fn is_reconciled(&self) -> bool {
        self.is_reconciled
    }

    /// Addresses of ports that packets do not find as this registry wrote them.
    pub fn wrong_ports(&self, tables: &NodeTables) -> HashSet<EntryKey> {
        let writer = self.writer();
        let attached = self.attachments.values().filter_map(|attachment| {
            // What migrates is not compared.
            let port = self.instances.get(&attachment.instance).filter(|port| port.migration.is_none())?;
            let known = tables.port(attachment.ifindex);
            Some((port, writer.entry(known.as_ref(), port, attachment)))
        });
        let wrong = attached.filter(|(_, entry)| !tables.is_port_right(entry));
        wrong.flat_map(|(port, _)| port.entry_hashes().map(|(key, _)| key)).collect()
    }

    /// The instances that no interface is attached to.
    pub fn without_interface(&self) -> impl Iterator<Item = &Port> {
        let attached: HashSet<InstanceId> = self.attachments.values().map(|known| known.instance).collect();
        self.instances.values().filter(move |port| !attached.contains(&port.instance))
    }

    /// Notifies changes of instances and gateways.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The instances of this host.
    pub fn instances(&self) -> impl Iterator<Item = &Port> {
        self.instances.values()
    }

    /// The instance with this id.
    pub fn instance(&self, id: InstanceId) -> Option<&Port> {
        self.instances.get(&id)
    }

    /// Whether an instance of a network is on this host.
    pub fn has_instance_in(&self, vni: Vni) -> bool {
        self.instances.values().any(|port| port.vni == vni)
    }

    /// Whether a VTEP is a gateway's.
    pub fn is_gateway(&self, vtep: IpAddr) -> bool {
        self.gateways.contains_key(&vtep)
    }

    /// The VTEPs of all gateways.
    pub fn gateway_vteps(&self) -> impl Iterator<Item = IpAddr> {
        self.gateways.keys().copied()
    }

    /// The VTEPs of a cluster's gateways, by the cluster's group id.
    pub fn gateways_of(&self, cluster: u32) -> impl Iterator<Item = IpAddr> {
        let of_cluster = move |(_, of): &(&IpAddr, &u32)| **of == cluster;
        self.gateways.iter().filter(of_cluster).map(|(address, _)| *address)
    }

    /// The attached interfaces, by name.
    pub fn attachments(&self) -> &BTreeMap<String, Attachment> {
        &self.attachments
    }

    /// What the port of an instance may use.
    pub fn terms(&self, port: &Port) -> Terms {
        let qos = port.options.qos;
        let own = qos.credit.map(Terms::Class).or(qos.rate_mbps.map(Terms::Fixed));
        own.or(self.default_credit.map(Terms::Default)).unwrap_or(Terms::Unclassed)
    }

    /// The ports, with what they may use.
    pub fn rated(&self) -> Vec<RatedPort> {
        let rated = |(ifname, attachment): (&String, &Attachment)| {
            let terms = self.terms(self.instances.get(&attachment.instance)?);
            let (ifindex, scope) = (attachment.ifindex, attachment.scope);
            (scope != 0).then(|| RatedPort { ifname: ifname.clone(), ifindex, scope, terms })
        };
        self.attachments.iter().filter_map(rated).collect()
    }

    /// Finds an instance by id, by `VPC/NAME`, or by a name that is unique on this host. A bonding vNIC has the name of its member behind
    /// that of its mount, by which only the member is found.
    pub fn find(&self, name: &str) -> Result<&Port, RegistryError> {
        if let Some(port) = name.parse().ok().and_then(|id: InstanceId| self.instances.get(&id)) {
            return Ok(port);
        }
        let has_name = |port: &&Port| {
            let short = port.name.rsplit_once('/').filter(|_| !port.options.bonded);
            port.name == name || short.is_some_and(|(_, short)| short == name)
        };
        let found: Vec<&Port> = self.instances.values().filter(has_name).collect();
        match found.as_slice() {
            [] => Err(RegistryError::Unknown(name.to_owned())),
            [port] => Ok(port),
            several => {
                let candidates: Vec<_> = several.iter().map(|port| port.name.as_str()).collect();
                Err(RegistryError::Ambiguous { name: name.to_owned(), candidates: candidates.join(", ") })
            }
        }
    }

    fn name_of(&self, instance: InstanceId) -> String {
        self.instances.get(&instance).map_or_else(|| instance.to_string(), |port| port.name.clone())
    }

    /// Checks that the interface may become the port of the instance.
    pub fn check(&self, ifname: &str, ifindex: u32, instance: InstanceId) -> Result<(), RegistryError> {
        for (name, attachment) in &self.attachments {
            if name == ifname {
                // The port of an instance that the controller has removed may become another instance's.
                let other =
                    attachment.instance != instance && self.instances.contains_key(&attachment.instance);
                if attachment.ifindex == ifindex && other {
                    let instance = self.name_of(attachment.instance);
                    return Err(RegistryError::InterfaceTaken { ifname: name.clone(), instance });
                }
            } else if attachment.instance == instance {
                let instance = self.name_of(instance);
                return Err(RegistryError::InstanceTaken { instance, ifname: name.clone() });
            }
        }
        Ok(())
    }

    /// Makes the interface the port of the instance: in the state directory, and in the tables. An agent that is
    /// killed in between completes the attachment at its next start. After an error nothing has changed.
    pub fn attach(
        &mut self,
        tables: &mut NodeTables,
        ifname: &str,
        attachment: Attachment,
    ) -> Result<(), RegistryError> {
        self.check(ifname, attachment.ifindex, attachment.instance)?;
        let Some(port) = self.instances.get(&attachment.instance) else {
            return Err(RegistryError::Unknown(attachment.instance.to_string()));
        };
        let is_migrating = port.migration.is_some();
        let old = self.attachments.get(ifname).cloned();
        let is_same = |old: &&Attachment| {
            (old.ifindex, old.instance) == (attachment.ifindex, attachment.instance)
                && self.scopes.is_given(old.scope)
        };
        let known_scope = old.as_ref().filter(is_same).map(|old| old.scope);
        let scope = known_scope.map_or_else(|| self.scopes.take(), Ok)?;
        let attachment = Attachment { scope, ..attachment };
        let mut attachments = self.attachments.clone();
        attachments.insert(ifname.to_owned(), attachment.clone());
        let written = files::write_attachments(&self.state_dir, &attachments).and_then(|()| {
            // The interface was removed and created again under its name: the old port still has the addresses.
            let recreated = old.as_ref().filter(|old| old.ifindex != attachment.ifindex);
            recreated.map_or(Ok(()), |old| self.writer().remove(tables, old))?;
            if self.elsewhere_with(&attachments, attachment.instance).is_some() {
                self.scopes.reserve(attachment.scope);
                return Ok(());
            }
            let written = self.writer().write(tables, port, (ifname, &attachment));
            if written.is_err()
                // If the disk is full by now, the next agent attaches the port. The caller can repeat the call.
                && let Err(unsaved) = files::write_attachments(&self.state_dir, &self.attachments)
            {
                tracing::error!(ifname, error = %unsaved, "cannot withdraw the attachment of the port");
            }
            written
        });
        if written.is_ok() {
            self.attachments = attachments;
            // The port has replaced the paths of its addresses, so that only what is known of them is left.
            if self.elsewhere(attachment.instance).is_none()
                && let Err(error) = self.remove_redirect(tables, attachment.instance)
            {
                tracing::error!(ifname, %error, "cannot remove the paths to the other host; retrying later");
                self.is_reconciled = false;
            }
            if is_migrating {
                // The migration goes on now.
                self.changes.send_modify(|count| *count += 1);
            }
        } else if known_scope.is_none() {
            self.scopes.retire(scope);
        }
        written
    }

    /// Removes the port that an interface is: from the state directory, and from the tables. An agent that is
    /// killed in between completes this at its next start. Returns the attachment, or `None` if the interface is
    /// not a port. After an error the interface is still attached for this agent, so that the call can be repeated.
    pub fn detach(
        &mut self,
        tables: &mut NodeTables,
        ifname: &str,
    ) -> Result<Option<Attachment>, RegistryError> {
        let Some(attachment) = self.attachments.get(ifname).cloned() else { return Ok(None) };
        let mut others = self.attachments.clone();
        others.remove(ifname);
        files::write_attachments(&self.state_dir, &others)?;
        self.writer().remove(tables, &attachment)?;
        self.attachments = others;
        if self.elsewhere(attachment.instance).is_some()
            && let Err(error) = self.write_port(tables, attachment.instance)
        {
            tracing::error!(ifname, %error, "cannot redirect the packets of an instance; retrying later");
            self.is_reconciled = false;
        }
        Ok(Some(attachment))
    }

    /// Brings the ports of the tables in line with the attachments. [`PortRegistry::limit_mtu`] remembers if this
    /// failed for a port.
    pub fn reconcile(&mut self, tables: &mut NodeTables) -> Result<(), RegistryError> {
        self.is_reconciled = false;
        self.is_reconciled = self.write_ports(tables)?;
        Ok(())
    }

    /// Returns whether all ports were written.
    fn write_ports(&mut self, tables: &mut NodeTables) -> Result<bool, RegistryError> {
        let mut all_written = true;
        let is_attached =
            |ifindex: u32| self.attachments.values().any(|attachment| attachment.ifindex == ifindex);
        let unknown: Vec<u32> =
            tables.ports().map(|port| port.ifindex).filter(|ifindex| !is_attached(*ifindex)).collect();
        for ifindex in unknown {
            self.writer().remove_interface(tables, ifindex)?;
        }
        let attached: Vec<InstanceId> = self.attachments.values().map(|known| known.instance).collect();
        for instance in attached {
            if !self.instances.contains_key(&instance) {
                self.remove_port(tables, instance)?;
                continue;
            }
            // New tables have no VRF for the port yet; it comes with the snapshot, which writes the port
            // again. Until then this port must not prevent the others, nor the connection to the controller.
            if let Err(error) = self.write_port(tables, instance) {
                tracing::warn!(port = self.name_of(instance), %error, "port is not in the tables yet");
                all_written = false;
            }
        }
        Ok(self.write_redirects(tables)? && all_written)
    }

    /// Sets the policy of ports that have neither one of their own nor a rate. Their entries change only if their interfaces begin or
    /// end to shape what they get; what cannot be written is written at the next review.
    pub fn set_default_credit(&mut self, tables: &mut NodeTables, policy: Option<CreditPolicy>) {
        let old = std::mem::replace(&mut self.default_credit, policy);
        if old == policy {
            return;
        }
        self.note_change();
        let is_shaped = |policy: Option<CreditPolicy>| policy.is_some_and(|policy| policy.mbps.is_some());
        if is_shaped(old) == is_shaped(policy) {
            return;
        }
        let attached = self.attachments.values().map(|known| known.instance);
        let attached: Vec<InstanceId> = attached.filter(|id| self.instances.contains_key(id)).collect();
        for instance in attached {
            if let Err(error) = self.write_port(tables, instance) {
                tracing::warn!(port = self.name_of(instance), %error, "cannot write the port; retrying later");
                self.is_reconciled = false;
            }
        }
    }

    /// Adds or changes an instance.
    ///
    /// # Errors
    /// If its port cannot be written to the tables.
    pub fn upsert_instance(&mut self, tables: &mut NodeTables, port: Port) -> Result<(), String> {
        let (instance, name) = (port.instance, port.name.clone());
        let old = self.instances.insert(instance, port.clone());
        if old.as_ref() != Some(&port) {
            self.note_change();
        }
        if old.is_some_and(|old| entry::ends_sessions(&old, &port)) {
            self.retire_scope(instance);
        }
        self.follow_migration(instance);
        if port.migration.is_some() {
            self.permit_targets(tables);
        }
        self.write_port(tables, instance).map_err(|error| format!("port of {name}: {error}"))
    }

    /// Removes an instance. Its interface stays attached: the program drops packets of an unknown port.
    ///
    /// # Errors
    /// If its port cannot be removed from the tables.
    pub fn remove_instance(&mut self, tables: &mut NodeTables, instance: InstanceId) -> Result<(), String> {
        let way_back = self.way_back(instance);
        if self.instances.remove(&instance).is_some() {
            self.note_change();
        }
        let removed =
            self.remove_port(tables, instance).and_then(|()| self.end_migration(tables, instance, way_back));
        removed.map_err(|error| format!("removal of the port of {instance}: {error}"))
    }

    /// Notes whether another node is a gateway, and of which cluster.
    pub fn upsert_vtep(&mut self, vtep: &Vtep) {
        let (new, old) = match vtep.role {
            VtepRole::Gateway { cluster } => (Some(cluster), self.gateways.insert(vtep.address, cluster)),
            VtepRole::Host | VtepRole::ForeignHost => (None, self.gateways.remove(&vtep.address)),
        };
        if new != old {
            self.note_change();
        }
    }

    /// Notes that another node was removed.
    pub fn remove_vtep(&mut self, address: IpAddr) {
        if self.gateways.remove(&address).is_some() {
            self.note_change();
        }
    }

    /// Saves instances, policies and gateways if they have changed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn commit(&mut self) -> Result<(), String> {
        if !self.dirty {
            return Ok(());
        }
        let policies = self.policies.sent().cloned().collect();
        let (instances, gateways) = (&self.instances, &self.gateways);
        files::write_instances(&self.state_dir, instances, policies, gateways, self.default_credit)?;
        self.dirty = false;
        Ok(())
    }

    fn note_change(&mut self) {
        self.dirty = true;
        self.changes.send_modify(|count| *count += 1);
    }
}
