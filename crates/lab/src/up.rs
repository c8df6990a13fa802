//! Brings a lab up: namespaces and controller at the same time, then the objects of the
//! cloud, agents, ports, VMs.

use crate::configure;
use crate::down::{clear, finish, lock};
use crate::error::{Error, IoContext, Result};
use crate::exec::check_tools;
use crate::internet;
use crate::lab::{CONTROLLER, Lab, Node, State};
use crate::net;
use crate::paths::{Paths, management};
use crate::process::{Process, read_json, write_json};
use crate::topology::Topology;
use crate::vm;
use futures::future::try_join_all;
use nix::fcntl::{Flock, FlockArg};
use sluice_client::{
    Client, CloudFile, ClusterSpec, Gateway, GatewaySpec, Host, HostSpec, TenantSpec, apply,
};
use sluice_datapath::{ObjectName, kernel};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOUTHBOUND_PORT: u16 = 7443;
const METRICS_PORT: u16 = 9100;
/// Connections that the ports of a host may have: all hosts are on one machine.
const SESSIONS: u32 = 16_384;
/// Names of the hosts' ends of VM interfaces: of the topology's VMs, of added and of moved ones (`vm.rs`).
const PORT_NAMES: &str = "vm*,x-*,y-*";
/// Longest wait until the controller answers.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// The lab to build.
#[derive(Clone, Debug)]
pub struct Options {
    /// The lab's name.
    pub name: String,
    /// Its topology.
    pub topology: Topology,
    /// The `sluice` binary.
    pub binary: PathBuf,
    /// URL of the controller's database; `None`: SQLite in its state directory.
    pub database: Option<String>,
    /// The controller's `--model`; `None`: its default.
    pub model: Option<String>,
    /// Puts the controller's state directory on a file system of this size.
    pub controller_disk_bytes: Option<u64>,
    /// Keeps what exists if something fails, for inspection.
    pub keep: bool,
}

impl Options {
    /// The default topology with a binary.
    ///
    /// # Errors
    /// None in practice: a test parses the default topology.
    pub fn standard(name: &str, binary: &Path) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            topology: Topology::standard()?,
            binary: binary.to_owned(),
            database: None,
            model: None,
            controller_disk_bytes: None,
            keep: false,
        })
    }
}

impl Lab {
    /// Brings a lab up. Remains of an earlier, unfinished lab of the same name are removed
    /// first; if this one fails, it is removed as well.
    ///
    /// # Errors
    /// [`Error::AlreadyUp`], [`Error::Busy`], and errors of the steps.
    pub async fn up(options: Options) -> Result<Self> {
        Self::up_unless(options, std::future::pending()).await
    }

    /// Like [`Lab::up`], unless `interrupted` ends first. Then the construction fails with its error.
    pub(crate) async fn up_unless(
        options: Options,
        interrupted: impl Future<Output = Error>,
    ) -> Result<Self> {
        check_tools()?;
        let paths = Paths::new(&options.name)?;
        let lock = lock(&paths).await?;
        if read_json::<State>(&paths.state()).is_ok_and(|state| state.ready) {
            return Err(Error::AlreadyUp(options.name));
        }
        clear(&paths).await?;
        let keep = options.keep;
        // Only while this command has the lock: otherwise the lab is another command's.
        let outcome = tokio::select! {
            outcome = build(&paths, options) => outcome,
            error = interrupted => Err(error),
        };
        if outcome.is_err() && !keep {
            let removed = match clear(&paths).await {
                Ok(()) => finish(&paths, lock),
                Err(error) => Err(error),
            };
            // The caller gets the error that made the lab fail.
            if let Err(error) = removed {
                eprintln!("cannot remove lab {}: {error}", paths.name());
            }
        }
        outcome
    }

    /// Stores the state.
    pub(crate) fn save(&self) -> Result<()> {
        write_json(&self.paths.state(), &self.state)
    }
}

async fn build(paths: &Paths, options: Options) -> Result<Lab> {
    prepare_files(paths, &options)?;
    let index = net::claim_network(paths).await?;
    let model = options.model.clone();
    let mut lab = lab_of(paths, options, index)?;
    lab.save()?;
    let controller = async {
        start_controller(&lab, model.as_deref()).await?;
        register_nodes(&lab).await
    };
    let network = async {
        net::build(paths, &lab.state.topology, lab.state.index).await?;
        internet::build(paths, &lab.state.topology).await
    };
    let (registered, ()) = tokio::try_join!(controller, network)?;
    lab.state.nodes = registered;
    let names: Vec<String> = lab.state.topology.nodes().map(str::to_owned).collect();
    if lab.state.topology.internet.is_some() {
        internet::start_web_server(&lab)?;
        internet::start_name_server(&lab)?;
    }
    let agents = try_join_all(names.iter().map(|node| start_agent(&lab, node)));
    let (_, cloud) = tokio::try_join!(agents, vm::create_cloud(&lab))?;
    lab.state.vpcs = cloud.vpcs;
    lab.state.vms = cloud.vms;
    lab.save()?;
    vm::bring_up(&lab).await?;
    lab.state.ready = true;
    lab.save()?;
    Ok(lab)
}

fn prepare_files(paths: &Paths, options: &Options) -> Result<()> {
    for directory in ["logs", "processes", "nodes", "vms", "dhcp"] {
        let directory = paths.root().join(directory);
        fs::create_dir_all(&directory).context("cannot make", directory)?;
    }
    let nodes = options.topology.nodes().chain([CONTROLLER]);
    for directory in nodes.map(|node| paths.state_dir(node)) {
        fs::create_dir_all(&directory).context("cannot make", directory)?;
    }
    if let Some(bytes) = options.controller_disk_bytes {
        let target = paths.state_dir(CONTROLLER);
        let (none, size) = (nix::mount::MsFlags::empty(), format!("size={bytes}"));
        nix::mount::mount(Some("tmpfs"), &target, Some("tmpfs"), none, Some(size.as_str()))
            .map_err(std::io::Error::from)
            .context("cannot mount a file system on", target)?;
    }
    configure::write_dhcp_scripts(paths)?;
    let object = ObjectName::SwitchPort.bytes().unwrap_or_default();
    fs::write(paths.switch_port(), object).context("cannot write", paths.switch_port())?;
    let mut random = [0u8; 24];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut random))
        .context("cannot read", "/dev/urandom")?;
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(paths.token(), token).context("cannot write", paths.token())?;
    fs::set_permissions(paths.token(), fs::Permissions::from_mode(0o600))
        .context("cannot protect", paths.token())?;
    mount_bpffs()
}

/// Mounts bpffs before agents start: agents mount it if it is missing, and several that start at the same
/// time would mount it over each other.
fn mount_bpffs() -> Result<()> {
    let directory = File::open(Paths::labs()).context("cannot open", Paths::labs())?;
    let _lock = Flock::lock(directory, FlockArg::LockExclusive)
        .map_err(|(_, error)| error.into())
        .context("cannot lock", Paths::labs())?;
    kernel::mount_bpffs().map_err(std::io::Error::other).context("cannot mount bpffs on", kernel::BPFFS)
}

fn lab_of(paths: &Paths, options: Options, index: u16) -> Result<Lab> {
    let api = free_port()?;
    let sqlite = || format!("sqlite:{}", paths.state_dir(CONTROLLER).join("sluice.db").display());
    let token = fs::read_to_string(paths.token()).context("cannot read", paths.token())?;
    let state = State {
        name: options.name,
        index,
        binary: options.binary,
        api,
        database: options.database.unwrap_or_else(sqlite),
        topology: options.topology,
        vpcs: BTreeMap::new(),
        nodes: BTreeMap::new(),
        vms: BTreeMap::new(),
        ready: false,
    };
    let api = Client::new(&format!("http://{api}"), Some(token))?;
    Ok(Lab { paths: paths.clone(), state, api })
}

/// A port of the loopback address on which no process listens at the moment.
fn free_port() -> Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .context("cannot find a free port on", "127.0.0.1")
}

async fn start_controller(lab: &Lab, model: Option<&str>) -> Result<()> {
    let State { index, binary, api, database, .. } = &lab.state;
    let southbound = management(*index, 1);
    let mut argv = vec![
        binary.display().to_string(),
        "controller".to_owned(),
        format!("--database={database}"),
        format!("--api={api}"),
        format!("--southbound={southbound}:{SOUTHBOUND_PORT}"),
        format!("--southbound-name={southbound}"),
        format!("--state-dir={}", lab.paths.state_dir(CONTROLLER).display()),
        format!("--api-token-file={}", lab.paths.token().display()),
    ];
    argv.extend(model.map(|model| format!("--model={model}")));
    let process = Process::start(&lab.paths, CONTROLLER, None, argv)?;
    let watch = async {
        loop {
            process.check(&lab.paths)?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        ready = lab.api.wait_ready(READY_TIMEOUT) => Ok(ready?),
        died = watch => died,
    }
}

fn cluster_spec(cluster: &crate::topology::Cluster) -> ClusterSpec {
    let (name, vips) = (cluster.name.clone(), cluster.vips.clone());
    ClusterSpec { name, vips, hello_interval_ms: cluster.hello_interval_ms }
}

/// Tenants, clusters, gateways and hosts in the API.
async fn register_nodes(lab: &Lab) -> Result<BTreeMap<String, Node>> {
    let topology = &lab.state.topology;
    let cluster = topology.cluster.name.clone();
    let gateways = topology.gateways.iter().map(|it| GatewaySpec {
        name: it.name.clone(),
        cluster: it.cluster.clone().unwrap_or_else(|| cluster.clone()),
        vtep4: it.ipv4,
        vtep6: it.ipv6,
    });
    let hosts = topology.hosts.iter();
    let cloud = CloudFile {
        tenants: topology.tenants.iter().map(|name| TenantSpec { name: name.clone() }).collect(),
        clusters: topology.clusters().map(cluster_spec).collect(),
        gateways: gateways.collect(),
        hosts: hosts.map(|it| HostSpec { name: it.name.clone(), vtep: it.vtep(), agent: true }).collect(),
        ..CloudFile::default()
    };
    apply(&lab.api, &cloud, sluice_client::Options::default(), &mut |_| {}).await?;
    let gateways = lab.api.list::<Gateway>(&[], None).await?;
    let hosts = lab.api.list::<Host>(&[], None).await?;
    let gateways = gateways.into_iter().map(|it| (it.name, it.id.to_string(), true));
    let hosts = hosts.into_iter().map(|it| (it.name, it.id.to_string(), false));
    let node = |(name, id, gateway): (String, String, bool)| {
        let address = net::node_management(topology, lab.state.index, &name)?;
        Some((name, Node { id, gateway, metrics: SocketAddr::from((address, METRICS_PORT)) }))
    };
    Ok(gateways.chain(hosts).filter_map(node).collect())
}

/// Enrolls a node and starts its agent in its namespace.
async fn start_agent(lab: &Lab, node: &str) -> Result<Process> {
    let Node { id, gateway, metrics } = lab.node(node)?;
    let bad = |_| Error::Form { what: format!("node {node}"), problem: format!("id {id}") };
    let bundle = if *gateway {
        lab.api.enroll::<Gateway>(id.parse().map_err(bad)?).await?
    } else {
        lab.api.enroll::<Host>(id.parse().map_err(bad)?).await?
    };
    let file = lab.paths.enrollment(node);
    write_json(&file, &bundle)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).context("cannot protect", &file)?;
    let mut argv = vec![
        lab.state.binary.display().to_string(),
        if *gateway { "gateway" } else { "vswitch" }.to_owned(),
        format!("--enrollment={}", file.display()),
        format!("--state-dir={}", lab.paths.state_dir(node).display()),
        format!("--metrics={metrics}"),
        format!("--pin-dir={}", lab.paths.pin_dir(node).display()),
        format!("--socket={}", lab.paths.socket(node).display()),
    ];
    let topology = &lab.state.topology;
    if let Some(gateway) = topology.gateways.iter().find(|g| g.name == node) {
        argv.push("--interface=eth0".to_owned());
        argv.extend(topology.internet.as_ref().map(|_| "--internet=eth1".to_owned()));
        argv.extend(gateway.ipv4.map(|address| format!("--vtep4={address}")));
        argv.extend(gateway.table_memory_mib.map(|mib| format!("--table-memory-mib={mib}")));
        for option in ["nat-sessions", "nat-sessions-per-vpc"] {
            argv.extend(gateway.nat_sessions.map(|sessions| format!("--{option}={sessions}")));
        }
        argv.extend(gateway.nat_timeouts.as_ref().map(|timeouts| format!("--nat-timeouts={timeouts}")));
        argv.extend(gateway.nat_log.as_ref().map(|events| format!("--nat-log={events}")));
        let collector = gateway.nat_ipfix_port.map(|port| SocketAddr::new(lab.management_address(), port));
        argv.extend(collector.map(|collector| format!("--nat-ipfix={collector}")));
        argv.extend(gateway.ipv6.map(|address| format!("--vtep6={address}")));
    }
    if let Some(host) = topology.hosts.iter().find(|h| h.name == node) {
        let names = format!("--port-names={PORT_NAMES}");
        let sessions = format!("--sessions={}", host.sessions.unwrap_or(SESSIONS));
        argv.extend(["--uplink=eth0".to_owned(), format!("--vtep={}", host.vtep()), names, sessions]);
        argv.extend(host.table_memory_mib.map(|mib| format!("--table-memory-mib={mib}")));
        // All nodes share this machine, so its software interrupts say nothing of one host's packets.
        argv.extend(["--packet-cost-ns=600".to_owned(), "--kib-cost-ns=60".to_owned()]);
    }
    Process::start(&lab.paths, node, Some(node), argv)
}
