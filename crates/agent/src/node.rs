//! What gateways and hosts have in common: from the command line to a running node.

use std::collections::HashSet;
use std::fs;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use nix::fcntl::{Flock, FlockArg};
use sluice_datapath::{Datapath, ObjectName, Settings, kernel};
use sluice_southbound::ClusterPlan;
use sluice_tables::{Membarrier, NodeTables, ReaderGate, SharedReader, Sizes, WaitForThreads};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::metrics::Source;
use crate::rsp::{Edge, EdgeConfig, KeyBook, Keys, Trust};
use crate::underlay::Vteps;
use crate::watch::{SharedLoad, SharedStatus, Watch, check_identity, identity};
use crate::{Applier, CommonArgs, Error, Ports, Writer, api, metrics};

/// A node whose tables are open and whose programs are loaded.
pub struct Node<P> {
    /// "gateway" or "vswitch".
    pub role: &'static str,
    /// The controller's name for it, once known.
    pub name: String,
    /// Programs and counters.
    pub datapath: Arc<Datapath>,
    /// Where the tables are changed.
    pub writer: Writer<P>,
    /// The controller's stream.
    pub status: SharedStatus,
    /// See [`Applier::topology`].
    pub topology: watch::Sender<u64>,
    /// Whether the controller says that this node has been deleted.
    pub deleted: watch::Sender<bool>,
    /// See [`Applier::keys`].
    pub keys: watch::Receiver<Arc<Keys>>,
    /// See [`Applier::plan`].
    pub plan: watch::Receiver<Option<ClusterPlan>>,
    /// Reads the tables beside the writer.
    pub reader: SharedReader,
    /// Told to the controller.
    pub load: SharedLoad,
    /// See [`Node::add_source`].
    sources: Mutex<Vec<Arc<dyn Source>>>,
}

impl<P> Node<P> {
    /// Opens this node's end of RSP. To be called within a runtime.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn open_rsp(&self, common: &CommonArgs, vteps: Vteps) -> Result<Edge, Error> {
        let node =
            match self.name.parse().map_err(|error| Error::Config(format!("{}: {error}", self.name)))? {
                sluice_southbound::Node::Gateway(id) => id.into(),
                sluice_southbound::Node::Host(id) => id.into(),
            };
        let edge = Edge::open(EdgeConfig { node, vteps, port: common.rsp_port }, self.keys.clone())?;
        self.add_source(edge.stats());
        Ok(edge)
    }

    /// Adds to the node's metrics.
    pub fn add_source(&self, source: Arc<dyn Source>) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    pub(crate) fn sources(&self) -> Vec<Arc<dyn Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Programs and tables, before anything serves them.
pub struct Opened {
    /// Programs and counters.
    pub datapath: Arc<Datapath>,
    /// The tables.
    pub tables: NodeTables,
    /// Reads the tables beside their writer.
    pub reader: SharedReader,
    // One writer: held until this process ends, however it ends.
    _lock: Flock<fs::File>,
}

/// Loads programs and tables, adopting what a predecessor left.
///
/// # Errors
/// If the kernel lacks something, another agent runs, or what is pinned does not fit.
pub fn open(common: &CommonArgs, role: &'static str, object: ObjectName) -> Result<Opened, Error> {
    kernel::check()?;
    kernel::mount_bpffs()?;
    let state_dir = common.state_dir()?;
    // Before anything of this machine changes.
    check_identity(&state_dir, common.enrolment.as_deref())?;
    let lock = lock(&state_dir)?;
    let pin_dir = common.pin_dir(role);
    let settings = Settings { object, cells: common.cells(), pin_dir: Some(pin_dir.clone()) };
    let datapath = Arc::new(Datapath::load(&settings)?);
    let memory = datapath.memory()?;
    let gate = ReaderGate::default();
    let grace = Membarrier::new().map_err(sluice_tables::Error::Grace)?;
    let grace = WaitForThreads::new(grace, gate.clone());
    let mut tables = if memory.is_laid_out() {
        NodeTables::adopt(memory, grace).map_err(|error| incompatible(error, &pin_dir))?
    } else {
        NodeTables::create(memory, grace, Sizes::default())?
    };
    let counters = datapath.vni_counters()?;
    let known: HashSet<u32> = tables.vrfs().map(|entry| entry.vrf.vni.get()).collect();
    counters.forget_unknown(|vni| known.contains(&vni))?;
    tables.set_vni_counts(counters);
    tracing::info!(
        adopted = datapath.adopted(),
        generation = tables.generation(),
        revision = tables.applied_revision(),
        "tables are open"
    );
    let reader = SharedReader::new(tables.reader(), gate);
    Ok(Opened { datapath, tables, reader, _lock: lock })
}

fn incompatible(error: sluice_tables::Error, pin_dir: &Path) -> Error {
    sluice_datapath::Error::Incompatible { path: pin_dir.to_owned(), why: crate::chain(&error) }.into()
}

fn lock(state_dir: &Path) -> Result<Flock<fs::File>, Error> {
    let path = state_dir.join("lock");
    let failed = || Error::io(format!("lock {}", path.display()));
    let file = fs::File::create(&path).map_err(failed())?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, number)| match number {
        nix::errno::Errno::EWOULDBLOCK => Error::Config(format!(
            "another agent is running with the state directory {}",
            state_dir.display()
        )),
        number => failed()(number.into()),
    })
}

impl Opened {
    /// Enrols if need be, starts the table writer and makes the tables' origin known.
    ///
    /// # Errors
    /// If the node cannot be identified.
    pub async fn start<P: Ports>(
        self,
        common: &CommonArgs,
        role: &'static str,
        ports: P,
        resume: bool,
    ) -> Result<Started<P>, Error> {
        let identity = identity(&common.state_dir()?, common.enrolment.as_deref()).await?;
        let name = identity.node()?.to_string();
        let mut tables = self.tables;
        let same_node = mark_owner(&common.pin_dir(role), &name)?;
        let trust = match identity.node()? {
            sluice_southbound::Node::Gateway(_) => Trust::Cluster,
            sluice_southbound::Node::Host(_) => Trust::Rsp,
        };
        let (book, has_keys) = KeyBook::load(&common.state_dir()?, trust);
        if !(resume && same_node && has_keys) {
            // Whatever the tables hold is no base for changes: a snapshot is needed.
            tables.set_applied_revision(0);
        }
        let mut applier = Applier::new(tables, ports);
        applier.set_key_book(book);
        let (keys, plan) = (applier.keys(), applier.plan());
        let writer = Writer::start(applier)?;
        let node = Arc::new(Node {
            role,
            name,
            datapath: self.datapath,
            writer,
            status: SharedStatus::default(),
            topology: watch::Sender::new(0),
            deleted: watch::Sender::new(false),
            keys,
            plan,
            reader: self.reader,
            load: SharedLoad::default(),
            sources: Mutex::default(),
        });
        Ok(Started { node, identity, _lock: self._lock })
    }
}

/// Notes in the pin directory whose tables these are. False: they were another node's, or nobody's.
fn mark_owner(pin_dir: &Path, name: &str) -> Result<bool, Error> {
    // The BPF file system has directories, but no files to write to.
    let mark = format!("node-{}", name.replace(':', "-"));
    let failed = || Error::io(format!("mark {}", pin_dir.display()));
    let mut same = false;
    for entry in fs::read_dir(pin_dir).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let found = entry.file_name();
        if found == mark.as_str() {
            same = true;
        } else if found.to_string_lossy().starts_with("node-") {
            tracing::warn!(was = %found.to_string_lossy(), now = name, "the pinned tables were another node's");
            fs::remove_dir(entry.path()).map_err(failed())?;
        }
    }
    if !same {
        fs::create_dir(pin_dir.join(mark)).map_err(failed())?;
    }
    Ok(same)
}

/// A node that is ready to serve.
pub struct Started<P> {
    /// The node.
    pub node: Arc<Node<P>>,
    identity: sluice_southbound::Identity,
    _lock: Flock<fs::File>,
}

impl<P: Ports> Started<P> {
    /// Who this node is, and where its controller.
    #[must_use]
    pub fn identity(&self) -> &sluice_southbound::Identity {
        &self.identity
    }

    /// Follows the controller, serves API and metrics, and runs `work`, until SIGTERM or SIGINT.
    /// Programs, tables and attachments stay.
    ///
    /// # Errors
    /// If a listener cannot be opened, or one of the tasks fails for good.
    pub async fn serve(
        self,
        common: &CommonArgs,
        routes: Router,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), Error> {
        let node = self.node;
        let mut tasks = JoinSet::new();
        let socket = common.socket(node.role);
        let listener = api::listen(&socket)?;
        let local = api::router(node.clone()).merge(routes);
        tasks.spawn(
            async move { axum::serve(listener, local).await.map_err(Error::io("serve the local API")) },
        );
        if let Some(address) = common.metrics {
            let listener = TcpListener::bind(address)
                .await
                .map_err(Error::io(format!("listen on {address} for metrics")))?;
            let router = metrics::router(node.clone());
            tasks.spawn(
                async move { axum::serve(listener, router).await.map_err(Error::io("serve metrics")) },
            );
        }
        let watch = Watch {
            identity: self.identity,
            writer: node.writer.clone(),
            datapath: node.datapath.clone(),
            status: node.status.clone(),
            topology: node.topology.clone(),
            deleted: node.deleted.clone(),
            load: node.load.clone(),
        };
        tasks.spawn(watch.run());
        tasks.spawn(work);
        tracing::info!(node = node.name, socket = %socket.display(), "running");
        let result = tokio::select! {
            signal = stop_signal() => signal,
            Some(result) = tasks.join_next() => match result {
                Ok(result) => result,
                Err(panic) => Err(Error::io("a task failed")(io::Error::other(panic))),
            },
        };
        // A successor may have its own socket there already if this one was stopped slowly, but it
        // cannot: the lock is still held here.
        let _ = fs::remove_file(&socket);
        result
    }
}

async fn stop_signal() -> Result<(), Error> {
    let failed = || Error::io("listen for signals");
    let mut terminate = signal(SignalKind::terminate()).map_err(failed())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping; programs and tables stay in place");
    Ok(())
}

/// Removes what a node left pinned.
///
/// # Errors
/// If another agent runs, or something cannot be removed.
pub fn flush(common: &CommonArgs, role: &'static str) -> Result<(), Error> {
    kernel::check()?;
    let _lock = match &common.state_dir {
        Some(dir) if dir.exists() => Some(lock(dir)?),
        _ => None,
    };
    let pin_dir = common.pin_dir(role);
    if sluice_datapath::flush(&pin_dir)? {
        tracing::info!(path = %pin_dir.display(), "removed programs and tables");
    }
    Ok(())
}
