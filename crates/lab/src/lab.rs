//! A lab that is up: its state, and the operations on its processes and VMs.

use crate::error::{Error, IoContext, Result};
use crate::exec::{command, feed, words};
use crate::metrics::Metrics;
use crate::net;
use crate::paths::{Paths, management};
use crate::process::{Process, read_json};
use crate::topology::{Guest, Topology};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use sluice_client::Client;
use sluice_types::{InstanceId, Ipv6Mode, MacAddr, SubnetId, VpcId};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;
use tokio::process::Command;

/// Name of the controller's process.
pub const CONTROLLER: &str = "controller";

/// The state of a lab, stored in `lab.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// Name of the lab.
    pub name: String,
    /// Index of its management network.
    pub index: u16,
    /// The `sluice` binary.
    pub binary: PathBuf,
    /// Where the API listens.
    pub api: SocketAddr,
    /// The database's URL.
    pub database: String,
    /// The topology that it was built from.
    pub topology: Topology,
    /// VPCs by name.
    pub vpcs: BTreeMap<String, VpcState>,
    /// Gateways and hosts.
    pub nodes: BTreeMap<String, Node>,
    /// The VMs, by name.
    pub vms: BTreeMap<String, VmState>,
    /// Whether the lab came up completely.
    pub ready: bool,
}

/// Ids of a VPC and its subnets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VpcState {
    /// Its id in the API.
    pub id: VpcId,
    /// Its VNI.
    pub vni: u32,
    /// Its subnets by name.
    pub subnets: BTreeMap<String, SubnetId>,
}

/// Id and addresses of a gateway or host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its id in the API.
    pub id: String,
    /// True for a gateway.
    pub gateway: bool,
    /// Address and port of its metrics.
    pub metrics: SocketAddr,
}

/// Identity, place and addresses of a VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmState {
    /// Its instance in the API.
    pub id: InstanceId,
    /// Its VPC.
    pub vpc: String,
    /// VNI of its VPC.
    pub vni: u32,
    /// Its host.
    pub host: String,
    /// The host's end of its interface.
    pub port: String,
    /// The VM that has the interface, where commands run: another one's name for interfaces besides the first.
    pub machine: String,
    /// The interface in the VM.
    pub interface: String,
    /// Its MAC address.
    pub mac: MacAddr,
    /// Its IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// How it gets its IPv6 address.
    pub ipv6_mode: Option<Ipv6Mode>,
}

impl VmState {
    /// Its addresses, IPv4 first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.ipv4.map(IpAddr::from).into_iter().chain(self.ipv6.map(IpAddr::from)).collect()
    }
}

/// A lab that is up.
#[derive(Clone, Debug)]
pub struct Lab {
    pub(crate) paths: Paths,
    pub(crate) state: State,
    pub(crate) api: Client,
}

impl Lab {
    /// Opens the lab of that name.
    ///
    /// # Errors
    /// [`Error::NotUp`], and errors of reading its state.
    pub fn open(name: &str) -> Result<Self> {
        let paths = Paths::new(name)?;
        if !paths.state().exists() {
            return Err(Error::NotUp(name.to_owned()));
        }
        let state: State = read_json(&paths.state())?;
        let token = std::fs::read_to_string(paths.token()).context("cannot read", paths.token())?;
        let api = Client::new(&format!("http://{}", state.api), Some(token.trim().to_owned()))?;
        Ok(Self { paths, state, api })
    }

    /// Files and names of the lab.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// State of the lab.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Its controller's API.
    pub fn api(&self) -> &Client {
        &self.api
    }

    /// Address of the machine itself in the management network, by which all nodes reach it.
    pub fn management_address(&self) -> IpAddr {
        management(self.state.index, 1).into()
    }

    /// A VM by name.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn vm(&self, name: &str) -> Result<&VmState> {
        self.state.vms.get(name).ok_or_else(|| unknown(name, self.state.vms.keys()))
    }

    /// A node by name.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.state.nodes.get(name).ok_or_else(|| unknown(name, self.state.nodes.keys()))
    }

    /// A VPC by name.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn vpc(&self, name: &str) -> Result<&VpcState> {
        self.state.vpcs.get(name).ok_or_else(|| unknown(name, self.state.vpcs.keys()))
    }

    /// Whether a place is a guest of QEMU.
    pub fn is_guest(&self, place: &str) -> bool {
        self.state.topology.vms.iter().any(|vm| vm.name == place && vm.guest == Guest::Qemu)
    }

    /// A command to run in a VM, node or switch; the caller sets its pipes. In a guest of QEMU its input and output are
    /// lines of text (`guest/channel.rs`), and it can be a program that the guest has.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the lab has no such place.
    pub fn command(&self, place: &str, argv: &[&str]) -> Result<Command> {
        if self.is_guest(place) {
            let binary = self.state.binary.display().to_string();
            let enter = [&binary, "lab", "exec", "--name", &self.state.name, place];
            return Ok(command(&self.paths, None, &words(&[&enter[..], argv].concat())));
        }
        if !self.paths.namespace_file(place).exists() {
            let prefix = self.paths.namespace_prefix();
            let mut places = net::namespaces(&self.paths);
            places.iter_mut().for_each(|place| drop(place.drain(..prefix.len())));
            let vms = self.state.topology.vms.iter().map(|vm| &vm.name);
            places.extend(vms.filter(|vm| self.is_guest(vm)).cloned());
            places.sort();
            return Err(unknown(place, &places));
        }
        Ok(command(&self.paths, Some(place), &words(argv)))
    }

    /// Runs a command in a VM, node or switch to its end.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Io`]; a command that fails is no error.
    pub async fn exec(&self, place: &str, argv: &[&str]) -> Result<Output> {
        self.command(place, argv)?.output().await.context("cannot run", argv[0])
    }

    /// A process by name: `controller` or a node's.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it was never started.
    pub fn process(&self, name: &str) -> Result<Process> {
        let all = Process::all(&self.paths);
        let found = all.iter().find(|process| process.name == name).cloned();
        found.ok_or_else(|| unknown(name, all.iter().map(|process| &process.name)))
    }

    /// Sends SIGKILL to a process; returns when it has ended.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Timeout`].
    pub async fn kill(&self, name: &str) -> Result<()> {
        self.end(name, Signal::SIGKILL).await
    }

    /// Sends SIGTERM to a process; returns when it has ended.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Timeout`].
    pub async fn stop(&self, name: &str) -> Result<()> {
        self.end(name, Signal::SIGTERM).await
    }

    async fn end(&self, name: &str, signal: Signal) -> Result<()> {
        const WITHIN: Duration = Duration::from_secs(10);
        let process = self.process(name)?;
        process.signal(signal);
        if process.ended(WITHIN).await {
            return Ok(());
        }
        let what = format!("end of {name} after {signal}");
        Err(Error::Timeout { what, seconds: WITHIN.as_secs(), hint: String::new() })
    }

    /// Starts a process again, as it was started before.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Io`].
    pub fn restart(&self, name: &str) -> Result<Process> {
        let process = self.process(name)?;
        Process::start(&self.paths, name, process.place.as_deref(), process.argv)
    }

    /// Ends a process and starts it again with other arguments; returns its previous arguments.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Timeout`], [`Error::Io`].
    pub async fn restart_with(&self, name: &str, argv: Vec<String>) -> Result<Vec<String>> {
        let process = self.process(name)?;
        self.stop(name).await?;
        Process::start(&self.paths, name, process.place.as_deref(), argv)?;
        Ok(process.argv)
    }

    /// The direct paths of a host, as `sluice path list` shows them.
    ///
    /// # Errors
    /// [`Error::Command`] if the agent does not answer, [`Error::Form`].
    pub async fn paths_of(&self, host: &str) -> Result<Vec<serde_json::Value>> {
        let binary = self.state.binary.display().to_string();
        let socket = self.paths.socket(host).display().to_string();
        let argv = words(&[&binary, "path", "list", "--output", "json", "--socket", &socket]);
        let what = format!("listing the paths of {host}");
        let text = feed(&what, command(&self.paths, None, &argv), "").await?;
        serde_json::from_str(&text).map_err(|error| Error::Form { what, problem: error.to_string() })
    }

    /// Waits until the controller reports that a node's stream is up and has acknowledged
    /// everything.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Died`] and errors of the API.
    pub async fn synchronized(&self, node: &str, within: Duration) -> Result<()> {
        let until = std::time::Instant::now() + within;
        let id = &self.node(node)?.id;
        let process = self.process(node)?;
        loop {
            process.check(&self.paths)?;
            let status = self.api.nodes().await?.into_iter().find(|status| status.node == *id);
            if status
                .as_ref()
                .is_some_and(|status| status.connected && status.acknowledged_revision >= status.current)
            {
                return Ok(());
            }
            if std::time::Instant::now() > until {
                let what = format!("synchronization of {node}");
                let hint = format!("; the API says {status:?}");
                return Err(Error::Timeout { what, seconds: within.as_secs(), hint });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Reads the metrics of a node.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Metrics`].
    pub async fn metrics(&self, node: &str) -> Result<Metrics> {
        Metrics::fetch(self.node(node)?.metrics, None).await
    }

    /// The controller's metrics.
    ///
    /// # Errors
    /// [`Error::Metrics`]; [`Error::Io`] if the token cannot be read.
    pub async fn controller_metrics(&self) -> Result<Metrics> {
        let token = std::fs::read_to_string(self.paths.token()).context("cannot read", self.paths.token())?;
        Metrics::fetch(self.state.api, Some(token.trim())).await
    }
}

fn unknown<'a>(name: &str, known: impl IntoIterator<Item = &'a String>) -> Error {
    let known: Vec<&str> = known.into_iter().map(String::as_str).collect();
    Error::Unknown { name: name.to_owned(), known: known.join(", ") }
}
