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

mod files;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_agent::{Error, error_chain};
use sluice_southbound::{Port, Vtep, VtepRole};
use sluice_tables::{NodeTables, PortIpv4, PortIpv6};
use sluice_types::{EntryKey, InstanceId, Vni};
use tokio::sync::watch;

/// Seconds that a DHCP lease lasts. Addresses never change under an instance: it only has to renew its lease.
const LEASE_S: u32 = 86_400;

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
    /// The interface already is the port of another instance.
    #[error("{ifname} already is the port of instance {instance}; detach it first")]
    InterfaceTaken {
        /// The interface.
        ifname: String,
        /// Its instance.
        instance: String,
    },
    /// The port could not be written to the tables.
    #[error("{0}")]
    Tables(String),
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
    /// MTU of the tunnel: no port has a larger one, whatever the MTU of its VPC.
    mtu_max: u16,
    /// Whether the last [`PortRegistry::reconcile`] wrote all ports, with the present `mtu_max`.
    is_reconciled: bool,
    /// Whether instances or gateways have changed since the last commit.
    dirty: bool,
    /// Counts the changes of instances and gateways.
    changes: watch::Sender<u64>,
}

impl PortRegistry {
    /// Reads what an earlier agent saved. The flag is false if instances and gateways are not known: then a
    /// snapshot is needed.
    ///
    /// # Errors
    /// If the attachments cannot be read.
    pub fn load(state_dir: &Path) -> Result<(Self, bool), Error> {
        let saved = files::read_instances(state_dir);
        let attachments = files::read_attachments(state_dir)?;
        let is_complete = saved.is_some();
        let (instances, gateways) = saved.unwrap_or_default();
        let registry = Self {
            state_dir: state_dir.to_owned(),
            instances,
            gateways,
            attachments,
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

    /// Whether the ports of the tables are in line with the attachments.
    pub fn is_reconciled(&self) -> bool {
        self.is_reconciled
    }

    /// Addresses of ports that packets do not find as this registry wrote them.
    pub fn wrong_ports(&self, tables: &NodeTables) -> HashSet<EntryKey> {
        let attached = self.attachments.values().filter_map(|attachment| {
            let port = self.instances.get(&attachment.instance)?;
            Some((port, table_port(port, attachment, self.mtu_max)))
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

    /// Finds an instance by id, by `VPC/NAME`, or by a name that is unique on this host.
    pub fn find(&self, name: &str) -> Result<&Port, RegistryError> {
        if let Some(port) = name.parse().ok().and_then(|id: InstanceId| self.instances.get(&id)) {
            return Ok(port);
        }
        let has_name = |port: &&Port| {
            port.name == name || port.name.rsplit_once('/').is_some_and(|(_, short)| short == name)
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
        let mut attachments = self.attachments.clone();
        let old = attachments.insert(ifname.to_owned(), attachment.clone());
        files::write_attachments(&self.state_dir, &attachments)?;
        // The interface was removed and created again under its name: the old port still has the addresses.
        let recreated = old.filter(|old| old.ifindex != attachment.ifindex);
        let removed = recreated.map_or(Ok(()), |old| remove_port(tables, old.ifindex));
        match removed.and_then(|()| write_port(tables, port, &attachment, self.mtu_max)) {
            Ok(()) => {
                self.attachments = attachments;
                Ok(())
            }
            Err(error) => {
                // If the disk is full by now, the next agent attaches the port. The caller can repeat the call.
                if let Err(unsaved) = files::write_attachments(&self.state_dir, &self.attachments) {
                    tracing::error!(ifname, error = %unsaved, "cannot withdraw the attachment of the port");
                }
                Err(error)
            }
        }
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
        remove_port(tables, attachment.ifindex)?;
        self.attachments = others;
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
    fn write_ports(&self, tables: &mut NodeTables) -> Result<bool, RegistryError> {
        let mut all_written = true;
        let is_attached =
            |ifindex: u32| self.attachments.values().any(|attachment| attachment.ifindex == ifindex);
        let unknown: Vec<u32> =
            tables.ports().map(|port| port.ifindex).filter(|ifindex| !is_attached(*ifindex)).collect();
        for ifindex in unknown {
            remove_port(tables, ifindex)?;
        }
        for attachment in self.attachments.values() {
            let Some(port) = self.instances.get(&attachment.instance) else {
                remove_port(tables, attachment.ifindex)?;
                continue;
            };
            // New tables have no VRF for the port yet; it comes with the snapshot, which writes the port
            // again. Until then this port must not prevent the others, nor the connection to the controller.
            if let Err(error) = write_port(tables, port, attachment, self.mtu_max) {
                tracing::warn!(port = port.name, %error, "port is not in the tables yet");
                all_written = false;
            }
        }
        Ok(all_written)
    }

    /// Adds or changes an instance.
    ///
    /// # Errors
    /// If its port cannot be written to the tables.
    pub fn upsert_instance(&mut self, tables: &mut NodeTables, port: Port) -> Result<(), String> {
        let attachment = self.attachments.values().find(|attachment| attachment.instance == port.instance);
        let written =
            attachment.map_or(Ok(()), |attachment| write_port(tables, &port, attachment, self.mtu_max));
        let name = port.name.clone();
        if self.instances.insert(port.instance, port.clone()).as_ref() != Some(&port) {
            self.note_change();
        }
        written.map_err(|error| format!("port of {name}: {error}"))
    }

    /// Removes an instance. Its interface stays attached: the program drops packets of an unknown port.
    ///
    /// # Errors
    /// If its port cannot be removed from the tables.
    pub fn remove_instance(&mut self, tables: &mut NodeTables, instance: InstanceId) -> Result<(), String> {
        if self.instances.remove(&instance).is_some() {
            self.note_change();
        }
        let attachment = self.attachments.values().find(|attachment| attachment.instance == instance);
        let removed = attachment.map_or(Ok(()), |attachment| remove_port(tables, attachment.ifindex));
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

    /// Saves instances and gateways if they have changed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn commit(&mut self) -> Result<(), String> {
        if !self.dirty {
            return Ok(());
        }
        files::write_instances(&self.state_dir, &self.instances, &self.gateways)?;
        self.dirty = false;
        Ok(())
    }

    fn note_change(&mut self) {
        self.dirty = true;
        self.changes.send_modify(|count| *count += 1);
    }
}

fn write_port(
    tables: &mut NodeTables,
    port: &Port,
    attachment: &Attachment,
    mtu_max: u16,
) -> Result<(), RegistryError> {
    let entry = table_port(port, attachment, mtu_max);
    tables.upsert_port(&entry).map(drop).map_err(|error| RegistryError::Tables(error_chain(&error)))
}

/// The port as it is in the tables.
fn table_port(port: &Port, attachment: &Attachment, mtu_max: u16) -> sluice_tables::Port {
    let router = port.router4;
    sluice_tables::Port {
        ifindex: attachment.ifindex,
        peer_redirect: attachment.peer_redirect,
        mtu: port.mtu.min(mtu_max),
        vni: port.vni,
        mac: port.mac,
        ipv4: port.ipv4.map(|net| PortIpv4 { address: net.addr(), length: net.prefix_len(), router }),
        ipv6: port.ipv6.map(|net| PortIpv6 {
            address: net.addr(),
            length: net.prefix_len(),
            dhcp: port.ipv6_dhcp,
        }),
        dns4: port.dns4.clone(),
        instance: port.instance.get(),
        lease_s: LEASE_S,
        policy: None,
        scope: 0,
        identity: 0,
        adopt_until_s: 0,
    }
}

fn remove_port(tables: &mut NodeTables, ifindex: u32) -> Result<(), RegistryError> {
    tables.remove_port(ifindex).map(drop).map_err(|error| RegistryError::Tables(error_chain(&error)))
}
