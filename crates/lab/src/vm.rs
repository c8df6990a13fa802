//! The tenants' part of a lab: VPCs and instances in the API, and VMs, which are namespaces
//! that configure themselves (`configure.rs`).

use crate::error::{Error, Result};
use crate::exec::{command, feed, ip_batch, script, tail, words};
use crate::guest;
use crate::internet;
use crate::lab::{Lab, VmState, VpcState};
use crate::paths::Paths;
use crate::topology::{self, Guest, Topology};
use futures::future::try_join_all;
use sluice_client::{
    CloudFile, Instance, InstanceSpec, NewInstance, Options, PeeringSpec, Subnet, SubnetSpec, Vpc, VpcSpec,
    apply,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Longest wait until an instance is programmed.
pub(crate) const PROGRAMMED_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait until an agent attaches a port.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(15);

/// VPCs and VMs that `create_cloud` created.
pub(crate) struct Cloud {
    pub vpcs: BTreeMap<String, VpcState>,
    pub vms: BTreeMap<String, VmState>,
}

/// Creates VPCs, subnets, peerings and instances by the API.
pub(crate) async fn create_cloud(lab: &Lab) -> Result<Cloud> {
    let topology = &lab.state.topology;
    let peering = |it: &topology::Peering| {
        let (name, vpcs) = (it.name.clone(), it.vpcs.clone());
        PeeringSpec { name, tenant: None, vpcs, meters: BTreeMap::new() }
    };
    let cloud = CloudFile {
        vpcs: topology.vpcs.iter().map(|vpc| vpc_spec(topology, vpc)).collect(),
        peerings: topology.peerings.iter().map(peering).collect(),
        public_pools: internet::pools(topology),
        eips: internet::eips(topology),
        ..CloudFile::default()
    };
    apply(&lab.api, &cloud, Options::default(), &mut |_| {}).await?;
    let made = Cloud { vpcs: vpcs(lab).await?, vms: vms(lab).await? };
    Ok(made)
}

fn vpc_spec(topology: &Topology, vpc: &topology::Vpc) -> VpcSpec {
    let subnet = |it: &topology::Subnet| SubnetSpec {
        name: it.name.clone(),
        ipv4: it.ipv4,
        ipv6: it.ipv6,
        ipv6_mode: it.ipv6_mode,
        dns: Vec::new(),
    };
    let instances =
        topology.vms.iter().flat_map(|vm| vm.instances().map(|(name, nic)| (&vm.host, name, nic)));
    let instances = instances.filter(|(.., nic)| nic.vpc == vpc.name).map(|(host, name, nic)| InstanceSpec {
        name,
        subnet: nic.subnet,
        host: host.clone(),
        mac: nic.mac,
        ipv4: nic.ipv4,
        ipv6: None,
        security_groups: Some(nic.security_groups),
        secondary_addresses: None,
        delegated_prefixes: None,
        address_pairs: None,
        spoofing_protection: None,
        qos: None,
        network_class: None,
    });
    VpcSpec {
        name: vpc.name.clone(),
        tenant: vpc.tenant.clone(),
        cluster: Some(topology.cluster.name.clone()),
        vni: vpc.vni,
        mtu: vpc.mtu,
        offload_kbps: None,
        internet_meter: None,
        subnets: vpc.subnets.iter().map(subnet).collect(),
        security_groups: vpc.security_groups.clone(),
        instances: instances.collect(),
        routes: internet::routes(vpc),
        nat_gateway: internet::nat_gateway(vpc),
    }
}

/// The VPCs with their ids from the API.
async fn vpcs(lab: &Lab) -> Result<BTreeMap<String, VpcState>> {
    let subnets = lab.api.list::<Subnet>(&[], None).await?;
    let vpcs = lab.api.list::<Vpc>(&[], None).await?.into_iter().map(|vpc| {
        let own = subnets.iter().filter(|subnet| subnet.vpc == vpc.id);
        let subnets = own.map(|subnet| (subnet.name.clone(), subnet.id)).collect();
        (vpc.name, VpcState { id: vpc.id, vni: vpc.vni.get(), subnets })
    });
    Ok(vpcs.collect())
}

/// The VMs with the addresses that the API chose for them.
async fn vms(lab: &Lab) -> Result<BTreeMap<String, VmState>> {
    let vpcs = lab.api.list::<Vpc>(&[], None).await?;
    let subnets = lab.api.list::<Subnet>(&[], None).await?;
    let modes: BTreeMap<_, _> = subnets.iter().map(|subnet| (subnet.id, subnet.ipv6_mode)).collect();
    let mut vms = BTreeMap::new();
    let instances = lab.state.topology.vms.iter().flat_map(|vm| {
        vm.instances().enumerate().map(move |(interface, (name, nic))| (vm, interface, name, nic))
    });
    for (number, (vm, interface, name, nic)) in instances.enumerate() {
        let missing = || Error::Form { what: "the API's list".to_owned(), problem: format!("no VM {name}") };
        let vpc = vpcs.iter().find(|vpc| vpc.name == nic.vpc).ok_or_else(missing)?;
        let instance = lab.api.find::<Instance>(&name, &[("vpc", &vpc.id.to_string())]).await?;
        let state = VmState {
            id: instance.id,
            vpc: nic.vpc,
            vni: vpc.vni.get(),
            host: vm.host.clone(),
            port: format!("vm{number}"),
            machine: vm.name.clone(),
            interface: topology::interface(interface),
            mac: instance.mac,
            ipv4: instance.ipv4,
            ipv6: instance.ipv6,
            ipv6_mode: modes.get(&instance.subnet).copied().flatten(),
        };
        vms.insert(name, state);
    }
    Ok(vms)
}

/// Connects all VMs, attaches their ports, boots guests, and waits until all have configured themselves.
pub(crate) async fn bring_up(lab: &Lab) -> Result<()> {
    let namespaces = lab.state.vms.values().filter(|vm| !lab.is_guest(&vm.machine));
    let lines: String = namespaces.map(|vm| link(&lab.paths, vm)).collect();
    ip_batch(&lab.paths, "plugging VMs in", &lines).await?;
    if lab.state.topology.vms.iter().any(|vm| vm.guest == Guest::Qemu) {
        guest::build_image(lab).await?;
    }
    let start = async |vm: &topology::Vm| {
        let vms = vm.instances().filter_map(|(name, _)| lab.state.vms.get(&name).map(|vm| (name, vm)));
        let vms: Vec<(String, &VmState)> = vms.collect();
        for (name, vm) in &vms {
            prepare_port(lab, name, vm).await?;
            attach_and_wait(lab, vm).await?;
        }
        if vm.guest == Guest::Qemu {
            guest::boot(lab, &vm.name).await?;
        }
        for (name, vm) in &vms {
            lab.configure_vm(name, vm).await?;
        }
        Ok(())
    };
    try_join_all(lab.state.topology.vms.iter().map(start)).await.map(drop)
}

/// The line of `ip -batch` that connects a VM to its host.
pub(crate) fn link(paths: &Paths, vm: &VmState) -> String {
    let (guest, host) = (paths.namespace(&vm.machine), paths.namespace(&vm.host));
    let VmState { mac, port, interface, .. } = vm;
    format!("link add {interface} address {mac} netns {guest} type veth peer name {port} netns {host}\n")
}

impl Lab {
    /// Adds a VM while the lab runs; returns when it has its addresses.
    ///
    /// # Errors
    /// Errors of the API and of the commands.
    pub async fn add_vm(&self, name: &str, vpc: &str, subnet: &str, host: &str) -> Result<VmState> {
        let vm = self.plug_vm(name, vpc, subnet, host).await?;
        prepare_port(self, name, &vm).await?;
        self.start_vm(name, &vm).await?;
        Ok(vm)
    }

    /// Creates an instance, and a namespace for its VM that is connected to the host. Both ends of the link are down,
    /// and the port is not attached.
    ///
    /// # Errors
    /// Errors of the API and of the commands.
    pub async fn plug_vm(&self, name: &str, vpc: &str, subnet: &str, host: &str) -> Result<VmState> {
        let at = self.vpc(vpc)?;
        let unknown = || {
            let known: Vec<&str> = at.subnets.keys().map(String::as_str).collect();
            Error::Unknown { name: subnet.to_owned(), known: known.join(", ") }
        };
        let bad = |_| Error::Form { what: "the lab's state".to_owned(), problem: format!("id of {host}") };
        let new = NewInstance {
            name: name.to_owned(),
            subnet: *at.subnets.get(subnet).ok_or_else(unknown)?,
            host: self.node(host)?.id.parse().map_err(bad)?,
            mac: None,
            ipv4: None,
            ipv6: None,
            security_groups: Some(Vec::new()),
            settings: Default::default(),
        };
        let made = self.api.create(at.id, &new).await?.object;
        // Interface names have at most 15 characters.
        let port = format!("x-{name}").chars().take(15).collect();
        let vm = VmState {
            id: made.id,
            vpc: vpc.to_owned(),
            vni: at.vni,
            host: host.to_owned(),
            port,
            machine: name.to_owned(),
            interface: topology::interface(0),
            mac: made.mac,
            ipv4: made.ipv4,
            ipv6: made.ipv6,
            ipv6_mode: self.api.get::<Subnet>(made.subnet).await?.ipv6_mode,
        };
        let lines = format!("netns add {}\n{}", self.paths.namespace(name), link(&self.paths, &vm));
        ip_batch(&self.paths, "plugging a VM in", &lines).await?;
        Ok(vm)
    }

    /// Attaches the port of a VM and waits until the VM has its addresses.
    ///
    /// # Errors
    /// Errors of the API and of the commands.
    pub async fn start_vm(&self, name: &str, vm: &VmState) -> Result<()> {
        attach_and_wait(self, vm).await?;
        self.configure_vm(name, vm).await
    }

    /// Disconnects a VM from its host and connects it to another one, with the same addresses. This is possible
    /// once for each VM with one interface that is no guest of QEMU, because its interface is then `eth1`.
    /// Controller and agents do not learn of it before [`Lab::end_move`].
    ///
    /// # Errors
    /// Errors of the commands.
    pub async fn begin_move(&self, name: &str, vm: &VmState, host: &str) -> Result<VmState> {
        self.node(host)?;
        let port: String = format!("y-{name}").chars().take(15).collect();
        let interface = topology::interface(1);
        let moved = VmState { host: host.to_owned(), port, interface, ..vm.clone() };
        let line = link(&self.paths, &moved);
        ip_batch(&self.paths, "plugging a VM in elsewhere", &line).await?;
        script(&self.paths, name, "moving a VM's addresses", MOVE_ADDRESSES_SCRIPT).await?;
        prepare_port(self, name, &moved).await?;
        Ok(moved)
    }

    /// Reports the VM's new host to the controller, and attaches its port there.
    ///
    /// # Errors
    /// Errors of the API and of the commands.
    pub async fn end_move(&self, moved: &VmState) -> Result<()> {
        let bad = |_| Error::Form { what: "the lab's state".to_owned(), problem: "a host's id".to_owned() };
        let host: sluice_types::HostId = self.node(&moved.host)?.id.parse().map_err(bad)?;
        let patch = serde_json::json!({ "host": host });
        let change = async {
            self.api.update::<Instance>(moved.id, &patch, None).await.map(drop).map_err(Error::from)
        };
        // The agent of the new host attaches the port when the controller has sent it the instance.
        tokio::try_join!(attach(self, moved), change)?;
        self.api
            .wait_programmed::<Instance>(moved.id, PROGRAMMED_TIMEOUT)
            .await
            .map(drop)
            .map_err(Error::from)
    }

    /// Removes a VM's namespace with its interface. The instance stays in the API.
    ///
    /// # Errors
    /// Errors of `ip`.
    pub async fn unplug_vm(&self, name: &str) -> Result<()> {
        let lines = format!("netns del {}\n", self.paths.namespace(name));
        ip_batch(&self.paths, "unplugging a VM", &lines).await
    }
}

/// Moves MTU, addresses and routes from the first interface to the second one. The router has the same address on
/// all hosts.
const MOVE_ADDRESSES_SCRIPT: &str = "\
    mtu=$(ip -o link show dev eth0 | sed 's/.* mtu \\([0-9]*\\).*/\\1/')\n\
    router4=$(ip -4 -o route show default | sed -n 's/.* via \\([^ ]*\\).*/\\1/p')\n\
    addresses=$(ip -o addr show dev eth0 scope global | awk '{ print $4 }')\n\
    ip link del eth0\n\
    ip link set eth1 mtu $mtu up\n\
    for address in $addresses; do\n\
    case $address in *:*) ip addr add $address dev eth1 nodad;; *) ip addr add $address dev eth1;; esac\n\
    done\n\
    [ -z \"$router4\" ] || ip route replace default via $router4 dev eth1\n\
    ip -6 route replace default via fe80::1 dev eth1\n";

pub(crate) async fn prepare_port(lab: &Lab, name: &str, vm: &VmState) -> Result<()> {
    let port = &vm.port;
    // The port of a guest is a tap, which QEMU opens.
    let tap = format!("ip tuntap add dev {port} mode tap vnet_hdr\n");
    let make = if lab.is_guest(&vm.machine) { tap } else { String::new() };
    let text = format!(
        "{make}echo 1 >/proc/sys/net/ipv6/conf/{port}/disable_ipv6\nip link set {port} up alias {name}\n"
    );
    script(&lab.paths, &vm.host, "preparing a port", &text).await.map(drop)
}

async fn attach_and_wait(lab: &Lab, vm: &VmState) -> Result<()> {
    attach(lab, vm).await?;
    lab.api.wait_programmed::<Instance>(vm.id, PROGRAMMED_TIMEOUT).await.map(drop).map_err(Error::from)
}

/// Says to the agent of a VM's host that the VM is stopped, because it migrates.
pub(crate) async fn pause(lab: &Lab, vm: &VmState) -> Result<()> {
    let binary = lab.state.binary.display().to_string();
    let (instance, socket) = (vm.id.to_string(), lab.paths.socket(&vm.host).display().to_string());
    let argv = words(&[&binary, "port", "pause", "--instance", &instance, "--socket", &socket]);
    feed("pausing a port", command(&lab.paths, None, &argv), "").await.map(drop)
}

/// Attaches a VM's port; repeated while the agent starts or does not know the instance yet.
pub(crate) async fn attach(lab: &Lab, vm: &VmState) -> Result<()> {
    let agent = lab.process(&vm.host)?;
    let binary = lab.state.binary.display().to_string();
    let socket = lab.paths.socket(&vm.host);
    let (instance, path) = (vm.id.to_string(), socket.display().to_string());
    let argv = words(&[&binary, "port", "attach", &vm.port, "--instance", &instance, "--socket", &path]);
    let until = Instant::now() + ATTACH_TIMEOUT;
    loop {
        agent.check(&lab.paths)?;
        let outcome = if socket.exists() {
            feed("attaching a port", command(&lab.paths, None, &argv), "").await.map(drop)
        } else {
            let what = format!("opening of the socket of {}", vm.host);
            let hint = format!("; the end of its log:\n{}", tail(&lab.paths, &vm.host));
            Err(Error::Timeout { what, seconds: ATTACH_TIMEOUT.as_secs(), hint })
        };
        if outcome.is_ok() || Instant::now() > until {
            return outcome;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
