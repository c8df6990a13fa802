//! The tenants' side: VPCs and instances in the API, VMs as namespaces that
//! configure themselves as any VM would.

use crate::error::{Error, IoContext, Result};
use crate::exec::{command, feed, ip_batch, script, tail, words};
use crate::lab::{Lab, VmState, VpcState};
use crate::paths::Paths;
use crate::topology::{self, Topology};
use futures::future::try_join_all;
use sluice_client::{
    CloudFile, Instance, InstanceSpec, Options, PeeringSpec, Subnet, SubnetSpec, Vpc, VpcSpec, apply,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

pub(crate) const PROGRAMMED: Duration = Duration::from_secs(15);
const ATTACHED: Duration = Duration::from_secs(15);
const CONFIGURED: Duration = Duration::from_secs(20);

/// What `create_cloud` made.
pub(crate) struct Cloud {
    pub vpcs: BTreeMap<String, VpcState>,
    pub vms: BTreeMap<String, VmState>,
}

/// VPCs, subnets, peerings and instances.
pub(crate) async fn create_cloud(lab: &Lab) -> Result<Cloud> {
    let topology = &lab.state.topology;
    let peering =
        |it: &topology::Peering| PeeringSpec { name: it.name.clone(), tenant: None, vpcs: it.vpcs.clone() };
    let cloud = CloudFile {
        vpcs: topology.vpcs.iter().map(|vpc| vpc_spec(topology, vpc)).collect(),
        peerings: topology.peerings.iter().map(peering).collect(),
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
        dns: Vec::new(),
    };
    let instance = |it: &topology::Vm| InstanceSpec {
        name: it.name.clone(),
        subnet: it.subnet.clone(),
        host: it.host.clone(),
        mac: it.mac,
        ipv4: it.ipv4,
        ipv6: None,
    };
    VpcSpec {
        name: vpc.name.clone(),
        tenant: vpc.tenant.clone(),
        cluster: None,
        vni: vpc.vni,
        mtu: vpc.mtu,
        subnets: vpc.subnets.iter().map(subnet).collect(),
        instances: topology.vms.iter().filter(|vm| vm.vpc == vpc.name).map(instance).collect(),
        routes: Vec::new(),
    }
}

/// The VPCs as the API has them.
async fn vpcs(lab: &Lab) -> Result<BTreeMap<String, VpcState>> {
    let subnets = lab.api.list::<Subnet>(&[], None).await?;
    let vpcs = lab.api.list::<Vpc>(&[], None).await?.into_iter().map(|vpc| {
        let own = subnets.iter().filter(|subnet| subnet.vpc == vpc.id);
        let subnets = own.map(|subnet| (subnet.name.clone(), subnet.id)).collect();
        (vpc.name, VpcState { id: vpc.id, vni: vpc.vni.get(), subnets })
    });
    Ok(vpcs.collect())
}

/// The VMs with what the API chose for them.
async fn vms(lab: &Lab) -> Result<BTreeMap<String, VmState>> {
    let vpcs = lab.api.list::<Vpc>(&[], None).await?;
    let mut vms = BTreeMap::new();
    for (number, vm) in lab.state.topology.vms.iter().enumerate() {
        let missing =
            || Error::Form { what: "the API's list".to_owned(), problem: format!("no VM {}", vm.name) };
        let vpc = vpcs.iter().find(|vpc| vpc.name == vm.vpc).ok_or_else(missing)?;
        let instance = lab.api.find::<Instance>(&vm.name, &[("vpc", &vpc.id.to_string())]).await?;
        let state = VmState {
            id: instance.id,
            vpc: vm.vpc.clone(),
            vni: vpc.vni.get(),
            host: vm.host.clone(),
            port: format!("vm{number}"),
            mac: instance.mac,
            ipv4: instance.ipv4,
            ipv6: instance.ipv6,
        };
        vms.insert(vm.name.clone(), state);
    }
    Ok(vms)
}

/// Plugs all VMs in, attaches their ports and lets them configure themselves.
pub(crate) async fn bring_up(lab: &Lab) -> Result<()> {
    let mut lines = String::new();
    for (name, vm) in &lab.state.vms {
        let (guest, host) = (lab.paths.namespace(name), lab.paths.namespace(&vm.host));
        let (mac, port) = (vm.mac, &vm.port);
        let _ = writeln!(
            lines,
            "link add eth0 address {mac} netns {guest} type veth peer name {port} netns {host}"
        );
    }
    ip_batch(&lab.paths, "plugging VMs in", &lines).await?;
    try_join_all(lab.state.vms.keys().map(|name| start(lab, name))).await.map(drop)
}

/// Attaches a VM's port and waits until the VM has its addresses.
async fn start(lab: &Lab, name: &str) -> Result<()> {
    let vm = lab.vm(name)?;
    let port = &vm.port;
    let text =
        format!("echo 1 >/proc/sys/net/ipv6/conf/{port}/disable_ipv6\nip link set {port} up alias {name}\n");
    script(&lab.paths, &vm.host, "preparing a port", &text).await?;
    attach(lab, name).await?;
    lab.api.wait_programmed::<Instance>(vm.id, PROGRAMMED).await?;
    configure(lab, name).await
}

/// Attaches a VM's port; the agent may just be starting, or not know the instance yet.
pub(crate) async fn attach(lab: &Lab, name: &str) -> Result<()> {
    let vm = lab.vm(name)?;
    let agent = lab.process(&vm.host)?;
    let binary = lab.state.binary.display().to_string();
    let socket = lab.paths.socket(&vm.host);
    let argv = words(&[
        &binary,
        "port",
        "attach",
        &vm.port,
        "--instance",
        &vm.id.to_string(),
        "--socket",
        &socket.display().to_string(),
    ]);
    let until = Instant::now() + ATTACHED;
    loop {
        agent.check(&lab.paths)?;
        let outcome = if socket.exists() {
            feed("attaching a port", command(&lab.paths, None, &argv), "").await.map(drop)
        } else {
            let what = format!("the socket of {}", vm.host);
            let hint = format!("; the end of its log:\n{}", tail(&lab.paths, &vm.host));
            Err(Error::Timeout { what, seconds: ATTACHED.as_secs(), hint })
        };
        if outcome.is_ok() || Instant::now() > until {
            return outcome;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Brings the VM's interface up: IPv4 by DHCP, IPv6 by the kernel.
async fn configure(lab: &Lab, name: &str) -> Result<()> {
    let vm = lab.vm(name)?;
    let mut text = "ip link set lo up\nip link set eth0 up\n".to_owned();
    if vm.ipv4.is_some() {
        text.push_str("busybox udhcpc -i eth0 -n -q -f -t 15 -T 1 -O mtu -s /bin/sh >&2\n");
    }
    if vm.ipv6.is_some() {
        text.push_str(
            "until ip -6 -o addr show dev eth0 scope global -tentative | grep -q inet6 &&\n\
             ip -6 -o route show default | grep -q via; do sleep 0.2; done\n",
        );
    }
    let mut shell = command(&lab.paths, Some(name), &words(&["sh", "-e"]));
    shell.current_dir(lab.paths.root().join("dhcp")).env("LEASE", lab.paths.lease(name));
    let run = feed("configuring a VM", shell, &text);
    match tokio::time::timeout(CONFIGURED, run).await {
        Ok(outcome) => outcome.map(drop),
        Err(_) => Err(Error::Timeout {
            what: format!("IPv6 autoconfiguration of VM {name}"),
            seconds: CONFIGURED.as_secs(),
            hint: String::new(),
        }),
    }
}

/// The DHCP client calls `/bin/sh EVENT` in a directory with a file for each
/// event: no file there needs to be executable, since /run often is mounted so
/// that none is.
pub(crate) fn write_dhcp_scripts(paths: &Paths) -> Result<()> {
    const BOUND: &str = "set -e\n\
        ip -4 addr flush dev \"$interface\"\n\
        ip link set dev \"$interface\" mtu \"${mtu:-1500}\"\n\
        ip addr add \"$ip/$mask\" dev \"$interface\"\n\
        [ -z \"$router\" ] || ip route replace default via \"${router%% *}\" dev \"$interface\"\n\
        printf 'ip=%s\\nmask=%s\\nrouter=%s\\nmtu=%s\\nlease=%s\\nserverid=%s\\n' \
        \"$ip\" \"$mask\" \"$router\" \"$mtu\" \"$lease\" \"$serverid\" >\"$LEASE\"\n";
    for (event, text) in
        [("bound", BOUND), ("renew", BOUND), ("deconfig", ""), ("leasefail", ""), ("nak", "")]
    {
        let file = paths.root().join("dhcp").join(event);
        fs::write(&file, text).context("cannot write", file)?;
    }
    Ok(())
}
