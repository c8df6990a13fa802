//! The files of the port registry in the state directory. This file changes with their format.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;

use sluice_agent::Error;
use sluice_southbound::proto::NodeUpdate;
use sluice_southbound::{Policy, Port, Update, Vtep, VtepRole};
use sluice_types::{CreditPolicy, InstanceId};

use super::migration::Moving;
use super::{Attachment, RegistryError};

/// What was done for migrations of instances.
pub(super) const MIGRATIONS_FILE: &str = "migrations.json";
/// Instances, policies and gateways, as the controller sent them: a message of `api/southbound.proto`.
pub(super) const INSTANCES_FILE: &str = "instances.bin";
/// The attachments, as the operator made them.
pub(super) const ATTACHMENTS_FILE: &str = "attachments.json";

/// What the controller sent to an earlier agent.
#[derive(Default)]
pub(super) struct Saved {
    /// Instances of this host.
    pub instances: BTreeMap<InstanceId, Port>,
    /// Policies of their ports.
    pub policies: Vec<Policy>,
    /// Clusters by the VTEPs of their gateways.
    pub gateways: BTreeMap<IpAddr, u32>,
    /// The policy of ports that have neither one of their own nor a rate.
    pub default_credit: Option<CreditPolicy>,
    /// Whether that agent knew default classes. What an older one saved does not say whether there is one.
    pub knows_default: bool,
}

/// Reads instances, policies and gateways; `None` if the file is absent or damaged, which a snapshot repairs.
pub(super) fn read_instances(state_dir: &Path) -> Option<Saved> {
    let path = state_dir.join(INSTANCES_FILE);
    let bytes = fs::read(&path).ok()?;
    let message: NodeUpdate = prost::Message::decode(bytes.as_slice()).ok()?;
    let (update, malformed) = Update::read(message);
    // A file of an older version has no gateways; it lacks the snapshot flag.
    if !malformed.is_empty() || !update.snapshot {
        let path = path.display();
        tracing::warn!(%path, "damaged or incomplete; requesting a snapshot from the controller");
        return None;
    }
    let cluster = |vtep: Vtep| match vtep.role {
        VtepRole::Gateway { cluster } => Some((vtep.address, cluster)),
        VtepRole::Host | VtepRole::ForeignHost => None,
    };
    let gateways = update.vteps.into_iter().filter_map(cluster).collect();
    let instances = update.ports.into_iter().map(|port| (port.instance, port)).collect();
    let knows_default = update.default_credit.is_some();
    let default_credit = update.default_credit.flatten();
    Some(Saved { instances, policies: update.policies, gateways, default_credit, knows_default })
}

/// Writes instances, the policies of their ports, gateways, and the default network class.
pub(super) fn write_instances(
    state_dir: &Path,
    instances: &BTreeMap<InstanceId, Port>,
    policies: Vec<Policy>,
    gateways: &BTreeMap<IpAddr, u32>,
    default_credit: Option<CreditPolicy>,
) -> Result<(), String> {
    let vtep = |(address, cluster): (&IpAddr, &u32)| Vtep {
        address: *address,
        role: VtepRole::Gateway { cluster: *cluster },
    };
    let (vteps, ports) = (gateways.iter().map(vtep).collect(), instances.values().cloned().collect());
    let default_credit = Some(default_credit);
    let update = Update { snapshot: true, vteps, policies, ports, default_credit, ..Update::default() };
    let path = state_dir.join(INSTANCES_FILE);
    replace_file(&path, &prost::Message::encode_to_vec(&NodeUpdate::from(update)))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Reads the attachments. A damaged file is an error: without its attachments VMs would lose their
/// connection.
pub(super) fn read_attachments(state_dir: &Path) -> Result<BTreeMap<String, Attachment>, Error> {
    let path = state_dir.join(ATTACHMENTS_FILE);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| Error::Config(format!("{} is damaged: {error}", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(Error::io(format!("read {}", path.display()))(error)),
    }
}

/// Writes the attachments.
pub(super) fn write_attachments(
    state_dir: &Path,
    attachments: &BTreeMap<String, Attachment>,
) -> Result<(), RegistryError> {
    let path = state_dir.join(ATTACHMENTS_FILE);
    let bytes =
        serde_json::to_vec_pretty(attachments).map_err(|error| RegistryError::State(error.to_string()))?;
    replace_file(&path, &bytes)
        .map_err(|error| RegistryError::State(format!("cannot write {}: {error}", path.display())))
}

/// Reads what was done for migrations. A damaged file is an error: an agent that does not know whether a guest runs here would
/// close its port, or open that of one that runs elsewhere.
pub(super) fn read_migrations(state_dir: &Path) -> Result<Vec<Moving>, Error> {
    let path = state_dir.join(MIGRATIONS_FILE);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| Error::Config(format!("{} is damaged: {error}", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io(format!("read {}", path.display()))(error)),
    }
}

/// Writes what was done for migrations. Guests wait for it, so it does not wait for the disk.
pub(super) fn write_migrations(state_dir: &Path, moving: &[&Moving]) -> Result<(), RegistryError> {
    let path = state_dir.join(MIGRATIONS_FILE);
    let bytes = serde_json::to_vec_pretty(moving).map_err(|error| RegistryError::State(error.to_string()))?;
    let new = path.with_extension("new");
    fs::write(&new, bytes)
        .and_then(|()| fs::rename(&new, &path))
        .map_err(|error| RegistryError::State(format!("cannot write {}: {error}", path.display())))
}

/// After a crash of the machine there is either the old or the new file.
fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)
}
