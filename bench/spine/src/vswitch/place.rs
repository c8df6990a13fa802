//! The host that is measured, without its vSwitch: interfaces, addresses and neighbors. It changes with what a host is
//! connected to.
//!
//! ```text
//!  outside: sl-a  sl-b  sl-c   VMs                         under  idle
//!             |     |     |                                  |     |
//!  host:    sl-a  sl-b  sl-c ---- vSwitch or bridge ------ under  idle
//! ```
//!
//! Packets that `idle` receives end there: the time of one is the time of a packet without a path. Every address and
//! neighbor is permanent, so nothing is resolved while it is measured.

use super::namespace::Namespace;
use sluice_bench_report::shell::{Failure, run};
use sluice_types::MacAddr;
use std::net::Ipv4Addr;

/// VNI of the VMs.
pub const VNI: u32 = 100;
/// MTU of the VMs.
pub const MTU: u16 = 1430;
/// The host's underlay interface.
pub const UPLINK: &str = "under";
/// Its MTU.
pub const UPLINK_MTU: u16 = 1500;
/// The host's address on the underlay.
pub const VTEP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Address of the router to all other hosts and gateways.
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// MAC of that router.
pub const ROUTER_MAC: MacAddr = MacAddr::new([0x02, 0, 0, 0, 0, 0x01]);
/// MAC of the host's interfaces.
pub const HOST_MAC: MacAddr = MacAddr::new([0x02, 0, 0, 0, 0, 0x02]);
/// The gateway that sends to this host.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 1);
/// vIPs of the VPC's gateway group.
pub const VIPS: [Ipv4Addr; 4] = [
    Ipv4Addr::new(172, 16, 0, 11),
    Ipv4Addr::new(172, 16, 0, 12),
    Ipv4Addr::new(172, 16, 0, 13),
    Ipv4Addr::new(172, 16, 0, 14),
];
/// Number of other hosts.
const HOSTS: u32 = 64;
/// Number of VMs on other hosts that are reached through gateways, and by direct paths.
pub const REMOTE_VMS: u32 = 1024;
/// First VM that is reached through gateways.
pub const BY_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 1, 16, 0);
/// First VM that is reached by a direct path.
pub const BY_PATH: Ipv4Addr = Ipv4Addr::new(10, 1, 32, 0);
/// Addresses by which a packet from outside reaches `idle`.
pub const IDLE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const IDLE_PEER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Devices outside that send VXLAN to the host, and to `idle`.
pub const TUNNELS: [(&str, u32, Ipv4Addr); 2] = [("to-host", VNI, VTEP), ("to-idle", VNI + 1, IDLE)];

/// A VM on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Its interface, which has the same name on both ends.
    pub interface: &'static str,
    /// Its address.
    pub address: Ipv4Addr,
    /// Whether packets are delivered into the peer of its port, as it is possible with containers.
    pub peer_redirect: bool,
}

/// The VM that sends.
pub const SENDER: Vm = Vm { interface: "sl-a", address: Ipv4Addr::new(10, 1, 0, 10), peer_redirect: true };
/// The VM that receives.
pub const RECEIVER: Vm = Vm { interface: "sl-b", address: Ipv4Addr::new(10, 1, 0, 11), peer_redirect: true };
/// A VM that receives through its port, as all VMs with a tap interface do.
pub const PLAIN_RECEIVER: Vm =
    Vm { interface: "sl-c", address: Ipv4Addr::new(10, 1, 0, 12), peer_redirect: false };
/// All VMs of this host.
pub const VMS: [Vm; 3] = [SENDER, RECEIVER, PLAIN_RECEIVER];

/// MAC of the VM with this address. The generator writes it, too (`bench/spine/bpf/host.bpf.c`).
pub fn mac_of(address: Ipv4Addr) -> MacAddr {
    MacAddr::local(u64::from(u32::from(address)))
}

/// VM number `index` behind `first`.
pub fn remote_vm(first: Ipv4Addr, index: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(first) + index)
}

/// The host of VM number `index` with a direct path.
pub fn host_of(index: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 16, 1, 1)) + index % HOSTS)
}

/// All other hosts.
pub fn hosts() -> impl Iterator<Item = Ipv4Addr> {
    (0..HOSTS).map(host_of)
}

/// Index of an interface of the current namespace.
///
/// # Errors
/// If nothing has this name.
pub fn ifindex(name: &str) -> Result<u32, Failure> {
    let found = nix::net::if_::if_nametoindex(name);
    found.map_err(|error| format!("no interface {name}: {error}").into())
}

fn all(lines: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    lines.into_iter().try_for_each(|line| run(&line).map(drop))
}

/// Creates the interfaces of a host in the current namespace, with their other ends in the namespace `outside`.
///
/// # Errors
/// Errors of the tools or the kernel.
pub fn set_up(outside: &Namespace) -> Result<(), Failure> {
    // IPv6 would send by itself.
    let no_ipv6 = || run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1").map(drop);
    no_ipv6()?;
    outside.within(no_ipv6)?;
    let names = VMS.map(|vm| vm.interface).into_iter().chain(["under", "idle"]);
    for name in names.clone() {
        run(&format!(
            "ip link add {name} address {HOST_MAC} type veth peer name {name} netns {}",
            outside.path()
        ))?;
        run(&format!("ip link set {name} up"))?;
    }
    run("ip link add unused-0 type veth peer name unused-1")?;
    all([
        format!("ip address add {VTEP}/24 dev under"),
        format!("ip neigh replace {ROUTER} lladdr {ROUTER_MAC} dev under nud permanent"),
        format!("ip route add 172.16.0.0/12 via {ROUTER} dev under"),
    ])?;
    outside.within(|| {
        for name in names {
            run(&format!("ip link set {name} up"))?;
        }
        all([
            format!("ip address add {GATEWAY}/32 dev under"),
            format!("ip route add {VTEP}/32 dev under src {GATEWAY}"),
            format!("ip neigh replace {VTEP} lladdr {HOST_MAC} dev under nud permanent"),
            format!("ip address add {IDLE_PEER}/24 dev idle"),
            format!("ip neigh replace {IDLE} lladdr {HOST_MAC} dev idle nud permanent"),
        ])?;
        for (name, vni, remote) in TUNNELS {
            run(&format!(
                "ip link add {name} type vxlan id {vni} remote {remote} dstport 4789 nolearning noudpcsum"
            ))?;
            run(&format!("ip link set {name} mtu {MTU} up"))?;
        }
        Ok(())
    })
}
