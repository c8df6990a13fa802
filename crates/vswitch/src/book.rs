//! What this host knows of its instances and their ports, and of which clusters
//! the gateways are. The tables hold what packets need; this is the rest, kept in
//! the state directory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_agent::{Error, Ports};
use sluice_southbound::proto::NodeUpdate;
use sluice_southbound::{Port, Update, Vtep, VtepRole};
use sluice_tables::{NodeTables, PortIpv4, PortIpv6};
use sluice_types::{InstanceId, Vni};
use tokio::sync::watch;

/// Seconds that a DHCP lease lasts. Addresses never change under an instance: it is only asked to come back.
const LEASE_S: u32 = 86_400;

/// Instances and gateways, as the controller sent them (a message of southbound.proto).
const INSTANCES_FILE: &str = "instances.bin";
/// The attachments, as the operator made them.
const ATTACHMENTS_FILE: &str = "attachments.json";

/// An interface that is an instance's port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Of the interface: another number is another interface, though of the same name.
    pub ifindex: u32,
    /// Whose port it is.
    pub instance: InstanceId,
    /// Whether packets go straight into the other end of the veth.
    pub peer_redirect: bool,
    /// Whether IPv6 was enabled on the interface before, to be so again.
    pub ipv6_enabled: bool,
}

/// Why an instance cannot be named, or a port not be joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    /// Nothing of this name here.
    #[error("no instance {0:?} is placed on this host")]
    Unknown(String),
    /// More than one.
    #[error("{name:?} names several instances of this host: {candidates}; give VPC/NAME or the id")]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// What it may mean.
        candidates: String,
    },
    /// The instance has a port already.
    #[error("instance {instance} already has the port {ifname}; detach that first")]
    InstanceTaken {
        /// The instance.
        instance: String,
        /// Its port.
        ifname: String,
    },
    /// The interface is another instance's port.
    #[error("{ifname} already is the port of instance {instance}; detach it first")]
    InterfaceTaken {
        /// The interface.
        ifname: String,
        /// Its instance.
        instance: String,
    },
    /// The tables refused it.
    #[error("{0}")]
    Tables(String),
    /// The state directory did.
    #[error("{0}")]
    State(String),
}

/// Instances and attachments.
pub struct PortBook {
    state_dir: PathBuf,
    instances: BTreeMap<InstanceId, Port>,
    /// Clusters by their gateways' VTEPs.
    gateways: BTreeMap<IpAddr, u32>,
    attachments: BTreeMap<String, Attachment>,
    /// What the tunnel carries: no port's MTU is larger, whatever its VPC's is.
    mtu_max: u16,
    dirty: bool,
    /// Counts changes of instances and gateways.
    changes: watch::Sender<u64>,
}

impl PortBook {
    /// Reads what a predecessor kept. The flag is false if the instances have to be asked for again.
    ///
    /// # Errors
    /// If the attachments cannot be read: forgetting them would cut VMs off.
    pub fn load(state_dir: &Path) -> Result<(Self, bool), Error> {
        let known = read_known(&state_dir.join(INSTANCES_FILE));
        let path = state_dir.join(ATTACHMENTS_FILE);
        let attachments = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| Error::Config(format!("{} is damaged: {error}", path.display())))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(Error::io(format!("read {}", path.display()))(error)),
        };
        let complete = known.is_some();
        let (instances, gateways) = known.unwrap_or_default();
        let book = Self {
            state_dir: state_dir.to_owned(),
            instances,
            gateways,
            attachments,
            mtu_max: u16::MAX,
            dirty: false,
            changes: watch::Sender::new(0),
        };
        Ok((book, complete))
    }

    /// Sets what the tunnel carries. True if that is news: [`PortBook::reconcile`] then tells the ports.
    pub fn limit_mtu(&mut self, mtu: u16) -> bool {
        std::mem::replace(&mut self.mtu_max, mtu) != mtu
    }

    /// Tells of changes of instances and gateways.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The instances of this host.
    pub fn instances(&self) -> impl Iterator<Item = &Port> {
        self.instances.values()
    }

    /// Whether an instance of a network is here.
    pub fn uses(&self, vni: Vni) -> bool {
        self.instances.values().any(|port| port.vni == vni)
    }

    /// Whether this VTEP is a gateway's.
    pub fn is_gateway(&self, vtep: IpAddr) -> bool {
        self.gateways.contains_key(&vtep)
    }

    /// The gateways of a cluster, by its group id.
    pub fn gateways(&self, cluster: u32) -> impl Iterator<Item = IpAddr> + '_ {
        let of_cluster = move |(_, of): &(&IpAddr, &u32)| **of == cluster;
        self.gateways.iter().filter(of_cluster).map(|(address, _)| *address)
    }

    /// The attached interfaces.
    pub fn attachments(&self) -> &BTreeMap<String, Attachment> {
        &self.attachments
    }

    /// Finds an instance by id, by `VPC/NAME`, or by a name that is unique on this host.
    pub fn find(&self, name: &str) -> Result<&Port, BookError> {
        if let Some(port) = name.parse().ok().and_then(|id: InstanceId| self.instances.get(&id)) {
            return Ok(port);
        }
        let short = |port: &&Port| {
            port.name == name || port.name.rsplit_once('/').is_some_and(|(_, short)| short == name)
        };
        let found: Vec<&Port> = self.instances.values().filter(short).collect();
        match found.as_slice() {
            [] => Err(BookError::Unknown(name.to_owned())),
            [port] => Ok(port),
            several => {
                let candidates: Vec<_> = several.iter().map(|port| port.name.as_str()).collect();
                Err(BookError::Ambiguous { name: name.to_owned(), candidates: candidates.join(", ") })
            }
        }
    }

    fn name_of(&self, instance: InstanceId) -> String {
        self.instances.get(&instance).map_or_else(|| instance.to_string(), |port| port.name.clone())
    }

    /// Whether the interface may become the instance's port.
    pub fn check(&self, ifname: &str, ifindex: u32, instance: InstanceId) -> Result<(), BookError> {
        for (name, attachment) in &self.attachments {
            if name == ifname {
                // The port of an instance that the controller has removed is free to be another's.
                let other =
                    attachment.instance != instance && self.instances.contains_key(&attachment.instance);
                if attachment.ifindex == ifindex && other {
                    let instance = self.name_of(attachment.instance);
                    return Err(BookError::InterfaceTaken { ifname: name.clone(), instance });
                }
            } else if attachment.instance == instance {
                let instance = self.name_of(instance);
                return Err(BookError::InstanceTaken { instance, ifname: name.clone() });
            }
        }
        Ok(())
    }

    /// Makes the interface the instance's port: in the tables, and for a successor.
    pub fn attach(
        &mut self,
        tables: &mut NodeTables,
        ifname: &str,
        attachment: Attachment,
    ) -> Result<(), BookError> {
        self.check(ifname, attachment.ifindex, attachment.instance)?;
        let Some(port) = self.instances.get(&attachment.instance) else {
            return Err(BookError::Unknown(attachment.instance.to_string()));
        };
        // An interface that went and came back under its name: its addresses are the old port's still.
        if let Some(old) = self.attachments.get(ifname).filter(|old| old.ifindex != attachment.ifindex) {
            remove_port(tables, old.ifindex)?;
        }
        write_port(tables, port, &attachment, self.mtu_max)?;
        self.attachments.insert(ifname.to_owned(), attachment);
        self.save_attachments()
    }

    /// The interface is a port no longer.
    pub fn detach(&mut self, tables: &mut NodeTables, ifname: &str) -> Result<Option<Attachment>, BookError> {
        let Some(attachment) = self.attachments.remove(ifname) else { return Ok(None) };
        remove_port(tables, attachment.ifindex)?;
        self.save_attachments()?;
        Ok(Some(attachment))
    }

    /// Brings the tables' ports in line with the attachments.
    pub fn reconcile(&self, tables: &mut NodeTables) -> Result<(), BookError> {
        let known = |ifindex: u32| self.attachments.values().any(|attachment| attachment.ifindex == ifindex);
        let strangers: Vec<u32> =
            tables.ports().map(|port| port.ifindex).filter(|ifindex| !known(*ifindex)).collect();
        for ifindex in strangers {
            remove_port(tables, ifindex)?;
        }
        for attachment in self.attachments.values() {
            let Some(port) = self.instances.get(&attachment.instance) else {
                remove_port(tables, attachment.ifindex)?;
                continue;
            };
            // The tables may be new, and know nothing of its VPC: then a snapshot is to come, and the
            // port with it. One port must not keep the others out, nor the agent from its controller.
            if let Err(error) = write_port(tables, port, attachment, self.mtu_max) {
                tracing::warn!(port = port.name, %error, "not in the tables yet");
            }
        }
        Ok(())
    }

    fn changed(&mut self) {
        self.dirty = true;
        self.changes.send_modify(|count| *count += 1);
    }

    fn save_attachments(&self) -> Result<(), BookError> {
        let path = self.state_dir.join(ATTACHMENTS_FILE);
        let bytes = serde_json::to_vec_pretty(&self.attachments)
            .map_err(|error| BookError::State(error.to_string()))?;
        replace_file(&path, &bytes)
            .map_err(|error| BookError::State(format!("cannot write {}: {error}", path.display())))
    }
}

impl Ports for PortBook {
    fn upsert(&mut self, tables: &mut NodeTables, port: Port) -> Result<(), String> {
        let attachment = self.attachments.values().find(|attachment| attachment.instance == port.instance);
        let written =
            attachment.map_or(Ok(()), |attachment| write_port(tables, &port, attachment, self.mtu_max));
        let name = port.name.clone();
        if self.instances.insert(port.instance, port.clone()).as_ref() != Some(&port) {
            self.changed();
        }
        written.map_err(|error| format!("port of {name}: {error}"))
    }

    fn remove(&mut self, tables: &mut NodeTables, instance: InstanceId) -> Result<(), String> {
        if self.instances.remove(&instance).is_some() {
            self.changed();
        }
        // The program stays on the interface: it drops what comes from there, as from an unknown port.
        let attachment = self.attachments.values().find(|attachment| attachment.instance == instance);
        let removed = attachment.map_or(Ok(()), |attachment| remove_port(tables, attachment.ifindex));
        removed.map_err(|error| format!("removal of the port of {instance}: {error}"))
    }

    fn instances(&self) -> Vec<InstanceId> {
        self.instances.keys().copied().collect()
    }

    fn upsert_vtep(&mut self, vtep: &Vtep) {
        let before = match vtep.role {
            VtepRole::Gateway { cluster } => (Some(cluster), self.gateways.insert(vtep.address, cluster)),
            VtepRole::Host => (None, self.gateways.remove(&vtep.address)),
        };
        if before.0 != before.1 {
            self.changed();
        }
    }

    fn remove_vteps(&mut self, gone: &dyn Fn(IpAddr) -> bool) {
        let before = self.gateways.len();
        self.gateways.retain(|address, _| !gone(*address));
        if self.gateways.len() != before {
            self.changed();
        }
    }

    fn commit(&mut self) -> Result<(), String> {
        if !self.dirty {
            return Ok(());
        }
        let vtep = |(address, cluster): (&IpAddr, &u32)| (*address, VtepRole::Gateway { cluster: *cluster });
        let vteps = self.gateways.iter().map(vtep).map(|(address, role)| Vtep { address, role });
        let ports = self.instances.values().cloned().collect();
        let update = Update { snapshot: true, vteps: vteps.collect(), ports, ..Update::default() };
        let path = self.state_dir.join(INSTANCES_FILE);
        replace_file(&path, &prost::Message::encode_to_vec(&NodeUpdate::from(update)))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        self.dirty = false;
        Ok(())
    }
}

fn write_port(
    tables: &mut NodeTables,
    port: &Port,
    attachment: &Attachment,
    mtu_max: u16,
) -> Result<(), BookError> {
    let router = port.router4;
    let entry = sluice_tables::Port {
        ifindex: attachment.ifindex,
        peer_redirect: attachment.peer_redirect,
        mtu: port.mtu.min(mtu_max),
        vni: port.vni,
        mac: port.mac,
        ipv4: port.ipv4.map(|net| PortIpv4 { address: net.addr(), length: net.prefix_len(), router }),
        ipv6: port.ipv6.map(|net| PortIpv6 { address: net.addr(), length: net.prefix_len() }),
        dns4: port.dns4.clone(),
        instance: port.instance.get(),
        lease_s: LEASE_S,
    };
    tables.upsert_port(&entry).map(drop).map_err(|error| BookError::Tables(sluice_agent::chain(&error)))
}

fn remove_port(tables: &mut NodeTables, ifindex: u32) -> Result<(), BookError> {
    tables.remove_port(ifindex).map(drop).map_err(|error| BookError::Tables(sluice_agent::chain(&error)))
}

type Known = (BTreeMap<InstanceId, Port>, BTreeMap<IpAddr, u32>);

/// None: absent or damaged, which a snapshot mends.
fn read_known(path: &Path) -> Option<Known> {
    let bytes = fs::read(path).ok()?;
    let message: NodeUpdate = prost::Message::decode(bytes.as_slice()).ok()?;
    let (update, malformed) = Update::read(message);
    // A file of an older version has no gateways, and does not say that it is whole.
    if !malformed.is_empty() || !update.snapshot {
        tracing::warn!(path = %path.display(), "damaged or incomplete; asking the controller for a snapshot");
        return None;
    }
    let cluster = |vtep: Vtep| match vtep.role {
        VtepRole::Gateway { cluster } => Some((vtep.address, cluster)),
        VtepRole::Host => None,
    };
    let gateways = update.vteps.into_iter().filter_map(cluster).collect();
    Some((update.ports.into_iter().map(|port| (port.instance, port)).collect(), gateways))
}

/// The whole file or the old one, whenever the machine dies.
fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
