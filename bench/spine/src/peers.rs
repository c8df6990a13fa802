//! The kernel's own forwarding, which sends a VXLAN packet on to the host of its inner destination. It changes
//! with the entries that Sluice's tables hold, so that the kernel holds the same number.

use crate::packet;
use sluice_bench_report::shell::{Failure, feed, run};
use sluice_types::MacAddr;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// Number of hosts over which the instances are spread.
pub const HOSTS: u32 = 1000;
/// MAC to which inner frames are addressed.
pub const ROUTER: &str = "02:53:4c:00:00:01";
/// Next hop of the routes of [`Kernel::Nexthops`], which all have the same inner destination MAC.
const INNER_NEXT_HOP: &str = "169.254.99.1";

/// The host of instance number `index`.
pub fn host_of(index: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 16, 0, 1)) + index % HOSTS)
}

/// The address of instance number `index`.
pub fn instance(index: u32) -> Ipv4Addr {
    Ipv4Addr::from(packet::INNER_BASE + index)
}

/// The MAC of instance number `index`.
pub fn mac_of(index: u32) -> MacAddr {
    MacAddr::local(u64::from(index))
}

/// How the kernel finds host and MAC of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// One route for all, a neighbor entry (address to MAC) and an FDB entry (MAC to host) for each instance.
    OneRoute,
    /// The same, and one more route for each instance.
    RouteEach,
    /// A route for each instance, which refers to a nexthop object with the encapsulation to its host. There
    /// are no neighbor and FDB entries, so the inner MAC is the same for all instances.
    Nexthops,
}

/// Lets the kernel route packets from VXLAN to VXLAN, in the current network namespace.
///
/// # Errors
/// Errors of `ip`, `bridge` and `sysctl`.
pub fn set_up_kernel(form: Kernel, count: u32) -> Result<(), Failure> {
    let kind = match form {
        Kernel::Nexthops => "external".to_owned(),
        Kernel::OneRoute | Kernel::RouteEach => format!("id {} local {}", packet::VNI, packet::GATEWAY),
    };
    run(&format!("ip link add vx0 type vxlan {kind} dstport 4789 nolearning"))?;
    run(&format!("ip link set vx0 address {ROUTER} mtu 1450 up"))?;
    for setting in ["all.rp_filter=0", "vx0.rp_filter=0", "all.send_redirects=0", "vx0.send_redirects=0"] {
        run(&format!("sysctl -qw net.ipv4.conf.{setting}"))?;
    }
    if form == Kernel::Nexthops {
        return add_nexthop_routes(count);
    }
    run("ip address add 10.0.0.1/8 dev vx0")?;
    let (mut neighbors, mut fdb, mut routes) = (String::new(), String::new(), String::new());
    for index in 0..count {
        let (address, mac, host) = (instance(index), mac_of(index), host_of(index));
        writeln!(neighbors, "neigh add {address} lladdr {mac} dev vx0 nud permanent")?;
        writeln!(fdb, "fdb add {mac} dev vx0 dst {host} self permanent")?;
        if form == Kernel::RouteEach {
            writeln!(routes, "route add {address}/32 dev vx0 scope link")?;
        }
    }
    feed("bridge -batch -", &fdb)?;
    feed("ip -batch -", &neighbors)?;
    feed("ip -batch -", &routes)
}

fn add_nexthop_routes(count: u32) -> Result<(), Failure> {
    run("ip address add 169.254.99.2/30 dev vx0")?;
    run(&format!("ip neigh add {INNER_NEXT_HOP} lladdr 02:00:00:00:00:63 dev vx0 nud permanent"))?;
    let mut batch = String::new();
    for index in 0..HOSTS.min(count) {
        let (id, host, vni) = (index + 1, host_of(index), packet::VNI);
        writeln!(batch, "nexthop add id {id} via {INNER_NEXT_HOP} dev vx0 encap ip id {vni} dst {host} key")?;
    }
    for index in 0..count {
        writeln!(batch, "route add {}/32 nhid {}", instance(index), index % HOSTS + 1)?;
    }
    feed("ip -batch -", &batch)
}
