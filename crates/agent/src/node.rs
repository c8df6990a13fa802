//! How a node agent starts, the same for gateways and hosts: from the command line to a node that is ready to
//! serve, and its removal. This file changes when a node opens or adopts something else.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::Flock;
use sluice_datapath::{Datapath, Interface, ObjectName, Settings, kernel};
use sluice_tables::{Membarrier, NodeTables, ReaderGate, SharedReader, Sizes, WaitForThreads};
use tokio::sync::watch;

use crate::changes::Changes;
use crate::enrollment::{check_identity, load_or_enroll};
use crate::health::HealthReports;
use crate::lock::{lock_pins, lock_state};
use crate::metric_source::MetricSource;
use crate::netlink::Netlink;
use crate::rsp::{KeyStore, Keys, RspTransport, TransportConfig};
use crate::stream_client::SharedStreamStatus;
use crate::underlay::Vteps;
use crate::{Applier, CommonArgs, Error, Role, TableWriter};

/// A node whose tables are open and whose programs are loaded.
pub struct Node<R> {
    /// "gateway" or "vswitch".
    pub role: &'static str,
    /// The controller's name for this node, such as `gateway:gw-7`.
    pub name: String,
    /// Programs and counters.
    pub datapath: Arc<Datapath>,
    /// Runs changes of the tables.
    pub writer: TableWriter<R>,
    /// State of the controller's stream.
    pub status: SharedStreamStatus,
    /// See [`Applier::topology_changes`].
    pub topology: watch::Sender<u64>,
    /// Whether the controller reports that this node was deleted.
    pub deleted: watch::Sender<bool>,
    /// See [`Applier::keys`].
    pub keys: watch::Receiver<Arc<Keys>>,
    /// See [`Applier::complete_revision`].
    pub complete_revision: watch::Receiver<u64>,
    /// Reads the tables concurrently with the writer.
    pub reader: SharedReader,
    /// What health checks have found.
    pub health: HealthReports,
    /// See [`Node::add_metrics`].
    metrics: Mutex<Vec<Arc<dyn MetricSource>>>,
}

impl<R> Node<R> {
    /// Opens this node's RSP sockets. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn open_rsp(&self, common: &CommonArgs, vteps: Vteps) -> Result<RspTransport, Error> {
        let node =
            match self.name.parse().map_err(|error| Error::Config(format!("{}: {error}", self.name)))? {
                sluice_southbound::Node::Gateway(id) => id.into(),
                sluice_southbound::Node::Host(id) => id.into(),
            };
        let config = TransportConfig { node, vteps, port: common.rsp_port };
        let transport = RspTransport::open(config, self.keys.clone())?;
        self.add_metrics(transport.stats());
        Ok(transport)
    }

    /// Adds metrics of the role to the node's metrics.
    pub fn add_metrics(&self, source: Arc<dyn MetricSource>) {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    pub(crate) fn metric_sources(&self) -> Vec<Arc<dyn MetricSource>> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Programs and tables that nothing serves yet.
pub struct Opened {
    /// Programs and counters.
    pub datapath: Arc<Datapath>,
    /// The tables.
    pub tables: NodeTables,
    /// Reads the tables concurrently with their writer.
    pub reader: SharedReader,
    // Ensure that there is one writer: held until this process ends, however it ends.
    _locks: [Flock<fs::File>; 2],
}

/// Loads programs and tables, adopting those of an earlier agent. `sizes` are numbers of entries of maps that are new, as
/// of [`Datapath::load_sized`].
///
/// # Errors
/// If the kernel lacks a feature, another agent runs, or the pinned tables have another layout.
pub fn open(
    common: &CommonArgs,
    role: &'static str,
    object: ObjectName,
    sizes: &[(&str, u32)],
) -> Result<Opened, Error> {
    kernel::check()?;
    kernel::mount_bpffs()?;
    let state_dir = common.state_dir()?;
    // Checked before anything on this machine is changed.
    check_identity(&state_dir, common.enrollment.as_deref(), role)?;
    let lock = lock_state(&state_dir)?;
    let pin_dir = common.pin_dir(role);
    sluice_datapath::create_pin_dir(&pin_dir)?;
    let locks = [lock, lock_pins(&pin_dir)?];
    let settings = Settings { object, cells: common.cells(), pin_dir: Some(pin_dir.clone()) };
    let datapath = Arc::new(Datapath::load_sized(&settings, sizes)?);
    let memory = datapath.memory()?;
    let gate = ReaderGate::default();
    let grace = Membarrier::new().map_err(sluice_tables::Error::Grace)?;
    let grace = WaitForThreads::new(grace, gate.clone());
    let mut tables = if memory.is_laid_out() {
        NodeTables::adopt(memory, grace).map_err(|error| adoption_error(error, &pin_dir))?
    } else {
        NodeTables::create(memory, grace, Sizes::default())?
    };
    let counters = datapath.vni_counters()?;
    let known: HashSet<u32> = tables.vrfs().map(|entry| entry.vrf.vni.get()).collect();
    counters.remove_unknown(|vni| known.contains(&vni))?;
    tables.set_counter_reset(counters);
    tracing::info!(
        adopted = datapath.adopted(),
        generation = tables.generation(),
        revision = tables.applied_revision(),
        "tables are open"
    );
    let reader = SharedReader::new(tables.reader(), gate);
    Ok(Opened { datapath, tables, reader, _locks: locks })
}

/// An error of [`NodeTables::adopt`], or of the adoption of other pinned tables. The tables of another version must be
/// removed; after other errors they are still usable.
pub fn adoption_error(error: sluice_tables::Error, pin_dir: &Path) -> Error {
    use sluice_tables::Error as E;
    match error {
        E::NotTables | E::LayoutVersion { .. } | E::Capacity { .. } | E::Corrupt(_) => {
            let difference = crate::error_chain(&error);
            sluice_datapath::Error::Incompatible { path: pin_dir.to_owned(), difference }.into()
        }
        other => other.into(),
    }
}

impl Opened {
    /// Enrolls if this node has no certificate, and starts the table writer. The tables are resumed from their
    /// applied revision if `resume` is true and they belong to this node; otherwise a snapshot is
    /// requested.
    ///
    /// # Errors
    /// If the node cannot be identified.
    pub async fn start<R: Role>(
        self,
        common: &CommonArgs,
        role_name: &'static str,
        role: R,
        resume: bool,
    ) -> Result<Started<R>, Error> {
        let identity = load_or_enroll(&common.state_dir()?, common.enrollment.as_deref()).await?;
        let name = identity.node()?.to_string();
        let mut tables = self.tables;
        let same_node = mark_owner(&common.pin_dir(role_name), &name)?;
        let (keys, has_keys) = KeyStore::load(&common.state_dir()?, R::KEY_KIND);
        if !(resume && same_node && has_keys) {
            // The tables are no base for deltas: request a snapshot.
            tables.set_applied_revision(0);
        }
        if !same_node {
            tables.set_complete_revision(0);
        }
        let applier = Applier::new(tables, role, keys);
        let (keys, complete_revision) = (applier.keys(), applier.complete_revision());
        let node = Arc::new(Node {
            role: role_name,
            name,
            datapath: self.datapath,
            writer: TableWriter::start(applier)?,
            status: SharedStreamStatus::default(),
            topology: watch::Sender::new(0),
            deleted: watch::Sender::new(false),
            keys,
            complete_revision,
            reader: self.reader,
            health: HealthReports::default(),
            metrics: Mutex::default(),
        });
        Ok(Started { node, identity, _locks: self._locks })
    }
}

/// Notes in the pin directory which node the tables belong to. False: they belonged to another node, or to
/// none.
fn mark_owner(pin_dir: &Path, name: &str) -> Result<bool, Error> {
    // The BPF file system has directories, but no regular files.
    let mark = format!("node-{}", name.replace(':', "-"));
    let failed = || Error::io(format!("mark {}", pin_dir.display()));
    let mut same = false;
    for entry in fs::read_dir(pin_dir).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let found = entry.file_name();
        if found == mark.as_str() {
            same = true;
        } else if found.to_string_lossy().starts_with("node-") {
            let owner = found.to_string_lossy();
            tracing::warn!(%owner, name, "the pinned tables belonged to another node");
            fs::remove_dir(entry.path()).map_err(failed())?;
        }
    }
    if !same {
        fs::create_dir(pin_dir.join(mark)).map_err(failed())?;
    }
    Ok(same)
}

/// A node that is ready to serve.
pub struct Started<R> {
    /// The node.
    pub node: Arc<Node<R>>,
    pub(crate) identity: sluice_southbound::Identity,
    _locks: [Flock<fs::File>; 2],
}

impl<R: Role> Started<R> {
    /// The node's certificate, and the controller's address.
    #[must_use]
    pub fn identity(&self) -> &sluice_southbound::Identity {
        &self.identity
    }
}

/// Removes the programs and tables that a node has pinned, and restores what its agents have changed on interfaces.
///
/// # Errors
/// If an agent runs, or something cannot be restored or removed; the call can be repeated.
pub async fn flush(common: &CommonArgs, role: &'static str, netlink: &Netlink) -> Result<(), Error> {
    let pins = lock_to_flush(common, role)?;
    Changes::new(&pins.dir).restore(netlink, |_| true).await?;
    if sluice_datapath::flush(&pins.dir)? {
        tracing::info!(path = %pins.dir.display(), "removed programs and tables");
    }
    Ok(())
}

/// Removes the tables that a node has pinned. Its interfaces keep a TC program, which drops everything, except the
/// interfaces named in `without`. Returns the interfaces that are closed in this way. What agents have changed on the others
/// is restored.
///
/// # Errors
/// As [`flush`].
pub async fn flush_closed(
    common: &CommonArgs,
    role: &'static str,
    netlink: &Netlink,
    without: &[&str],
) -> Result<Vec<Interface>, Error> {
    let pins = lock_to_flush(common, role)?;
    let closed = sluice_datapath::flush_closed(&pins.dir, without)?;
    let is_closed = |index| closed.iter().any(|interface| interface.index == index);
    Changes::new(&pins.dir).restore(netlink, |index| !is_closed(index)).await?;
    if closed.is_empty() {
        sluice_datapath::flush(&pins.dir)?;
    }
    Ok(closed)
}

/// The pin directory of a node, while no agent can start.
struct LockedPins {
    dir: PathBuf,
    _locks: [Option<Flock<fs::File>>; 2],
}

fn lock_to_flush(common: &CommonArgs, role: &'static str) -> Result<LockedPins, Error> {
    kernel::check()?;
    let state = match &common.state_dir {
        Some(dir) if dir.exists() => Some(lock_state(dir)?),
        _ => None,
    };
    let dir = common.pin_dir(role);
    let pins = if dir.exists() { Some(lock_pins(&dir)?) } else { None };
    Ok(LockedPins { dir, _locks: [state, pins] })
}
