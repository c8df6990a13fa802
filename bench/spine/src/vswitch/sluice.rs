//! A host with Sluice's vSwitch, as its agent sets it up: guard, VXLAN device, tables, and programs attached by tcx.
//! It changes with what a host's tables need before packets are forwarded.

use super::place::{
    self, BY_PATH, GATEWAY, HOST_MAC, MTU, RECEIVER, REMOTE_VMS, UPLINK, UPLINK_MTU, VIPS, VMS, VNI, VTEP, Vm,
};
use super::rules;
use super::side::Rules;
use sluice_bench_report::shell::{Failure, run};
use sluice_datapath::{Datapath, FLOW_CELLS_MAP, Interface, ObjectName, SESSION_MAPS, Settings, kernel};
use sluice_tables::flows::Flows;
use sluice_tables::sessions::{Family, Fate, SessionShares, Sessions, ticks_now};
use sluice_tables::{
    DirectPath, Group, Membarrier, NodeConfig, NodeTables, Port, PortIpv4, PortQos, Role, Sizes,
    UnderlayPort, Vrf,
};
use sluice_types::{ROUTER_MAC, Vni};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The VXLAN device, by the name that the agent gives it.
const DEVICE: &str = "sluice-vx";
/// The program of ports.
pub const PORT_PROGRAM: &str = "port_ingress";
/// The program of the VXLAN device.
const UPLINK_PROGRAM: &str = "uplink_ingress";
/// The program of the underlay interface.
const UNDERLAY_PROGRAM: &str = "underlay_ingress";
const CELLS: u32 = 1 << 18;
/// Buckets of each table of sessions: room for 2^18 sessions, as conntrack has by default.
const SESSION_BUCKETS: u32 = (1 << 18) / 7 * 3 / 2;
/// Number under which the sessions of the VM that is filtered are kept.
const SCOPE: u16 = 1;
const GROUP: u32 = 1;
/// Router of the VMs' subnet.
const SUBNET_ROUTER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);

/// Hosts that this process has set up: each has pins of its own.
static HOSTS: AtomicU32 = AtomicU32::new(0);

/// The vSwitch of a host. Its pins are removed when it is dropped.
pub struct Sluice {
    datapath: Datapath,
    _tables: NodeTables,
    sessions: Sessions,
    _pins: Pins,
}

/// A directory of pins.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        if let Err(error) = sluice_datapath::flush(&self.0) {
            eprintln!("bench-spine: pins are left in {}: {error}", self.0.display());
        }
    }
}

impl Sluice {
    /// Sets the vSwitch up in the current namespace, which [`place::set_up`] has prepared.
    ///
    /// # Errors
    /// Errors of the tools, the datapath or the tables.
    pub fn start(rules: Rules) -> Result<Self, Failure> {
        install_guard()?;
        run("sysctl -qw net.ipv4.conf.lo.forwarding=1")?;
        let device = format!("ip link add {DEVICE} type vxlan external dstport 4789 nolearning");
        run(&device)?;
        run(&format!("ip link set {DEVICE} mtu 1450 up"))?;
        kernel::mount_bpffs()?;
        let number = HOSTS.fetch_add(1, Ordering::Relaxed);
        let pin_dir = Path::new(kernel::BPFFS).join(format!("sluice-bench-{}-{number}", std::process::id()));
        let settings = Settings { object: ObjectName::Vswitch, cells: CELLS, pin_dir: Some(pin_dir.clone()) };
        let pins = Pins(pin_dir);
        let flow_cells = u32::try_from(Flows::cells_for(0))?;
        let [ipv4, ipv6] = SESSION_MAPS.map(|map| (map, SESSION_BUCKETS));
        let datapath = Datapath::load_sized(&settings, &[(FLOW_CELLS_MAP, flow_cells), ipv4, ipv6])?;
        let tables = fill(&datapath, rules)?;
        let shares = SessionShares::new(datapath.session_shares()?)?;
        let sessions =
            Sessions::open(&datapath.sessions()?, shares.clone(), ticks_now(), Membarrier::new()?)?;
        shares.set_limit(SCOPE, u32::MAX);
        shares.set_assured(SCOPE, u32::MAX);
        let sluice = Self { datapath, _tables: tables, sessions, _pins: pins };
        for vm in VMS {
            sluice.attach(PORT_PROGRAM, vm.interface)?;
        }
        sluice.attach(UPLINK_PROGRAM, DEVICE)?;
        sluice.datapath.share_tc(UNDERLAY_PROGRAM, Some(&Interface::by_name(UPLINK)?))?;
        Ok(sluice)
    }

    fn attach(&self, program: &str, interface: &str) -> Result<(), Failure> {
        self.datapath.attach_tc(program, &Interface::by_name(interface)?)?;
        Ok(())
    }

    /// Ends all sessions.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn forget_flows(&mut self) -> Result<(), Failure> {
        for family in [Family::Ipv4, Family::Ipv6] {
            self.sessions.review(family, 0..SESSION_BUCKETS, |_| Fate::Ends);
        }
        // The first round may have begun in the middle.
        for _ in 0..2 {
            while !self.sessions.sweep(u32::MAX, ticks_now())?.round_completed {}
        }
        Ok(())
    }

    /// A program, to be timed alone.
    ///
    /// # Errors
    /// If nothing has this name.
    pub fn program(&self, name: &str) -> Result<OwnedFd, Failure> {
        Ok(self.datapath.program(name)?.as_fd().try_clone_to_owned()?)
    }
}

/// Rules by which the agent keeps VMs away from the host's own stack. Packets from the underlay pass them, too.
fn install_guard() -> Result<(), Failure> {
    let names = ["sl-*".parse::<sluice_vswitch::PortName>()?];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(sluice_vswitch::install_guard(&names))?)
}

fn fill(datapath: &Datapath, rules: Rules) -> Result<NodeTables, Failure> {
    let mut tables = NodeTables::create(datapath.memory()?, Membarrier::new()?, Sizes::default())?;
    let vni = Vni::new(VNI)?;
    tables.set_node(&NodeConfig {
        vtep4: Some(VTEP),
        vtep6: None,
        router_mac: ROUTER_MAC,
        vxlan_ifindex: place::ifindex(DEVICE)?,
        ports: vec![UnderlayPort {
            ifindex: place::ifindex(UPLINK)?,
            mtu: UPLINK_MTU,
            mac: HOST_MAC,
            internet: false,
        }],
    })?;
    tables.upsert_vtep(GATEWAY.into(), Role::Gateway)?;
    for host in place::hosts() {
        tables.upsert_vtep(host.into(), Role::Host)?;
    }
    tables.upsert_group(&Group { id: GROUP, vips: VIPS.map(IpAddr::V4).to_vec() })?;
    tables.upsert_vrf(&Vrf {
        vni,
        mtu: MTU,
        router4: Some(SUBNET_ROUTER),
        router6: None,
        group: Some(GROUP),
        elephant_bytes: None,
    })?;
    let policy = rules::policy(rules);
    if let Some(policy) = &policy {
        tables.upsert_policy(policy)?;
    }
    for vm in VMS {
        let is_filtered = policy.is_some() && vm == RECEIVER;
        tables.upsert_port(&port(vni, vm, is_filtered)?)?;
    }
    for index in 0..REMOTE_VMS {
        let address = place::remote_vm(BY_PATH, index);
        tables.upsert_direct_path(&DirectPath {
            vni,
            address: address.into(),
            mac: place::mac_of(address),
            host: place::host_of(index).into(),
            path_vni: vni,
            mtu: 0,
            fixed: false,
            moved: false,
        })?;
    }
    Ok(tables)
}

fn port(vni: Vni, vm: Vm, is_filtered: bool) -> Result<Port, Failure> {
    Ok(Port {
        ifindex: place::ifindex(vm.interface)?,
        peer_redirect: vm.peer_redirect,
        mtu: MTU,
        vni,
        mac: place::mac_of(vm.address),
        ipv4: Some(PortIpv4 { address: vm.address, length: 16, router: Some(SUBNET_ROUTER) }),
        ipv6: None,
        dns4: vec![],
        instance: 1,
        lease_s: 3600,
        policy: is_filtered.then_some(rules::POLICY),
        scope: if is_filtered { SCOPE } else { 0 },
        identity: 0,
        adopt_until_s: 0,
        qos: PortQos::default(),
        sources: sluice_tables::PortSources::default(),
        bonded: false,
    })
}
