//! The same host without Sluice: a bridge with the VMs' interfaces and one VXLAN device. It changes with how a kernel of
//! this version forwards fastest.
//!
//! The kernel's figure is a lower bound of what such a host takes in practice: nothing is learned, every MAC is in the
//! tables before, no rule of netfilter is called, and no source is checked.

use super::place::{self, BY_GATEWAY, BY_PATH, REMOTE_VMS, VIPS, VMS, VNI, VTEP};
use super::rules;
use super::side::Rules;
use sluice_bench_report::shell::{Failure, feed, run};
use std::fmt::Write as _;

/// Sets bridge and VXLAN device up in the current namespace, which [`place::set_up`] has prepared.
///
/// # Errors
/// Errors of `ip`, `bridge` and `sysctl`.
pub fn start(rules: Rules) -> Result<(), Failure> {
    run("ip link add name br0 type bridge mcast_snooping 0 stp_state 0")?;
    run(&format!(
        "ip link add vx type vxlan id {VNI} local {VTEP} dstport 4789 ttl 64 df set nolearning noudpcsum"
    ))?;
    run("ip link set vx mtu 1450")?;
    for kind in ["iptables", "ip6tables", "arptables"] {
        run(&format!("sysctl -qw net.bridge.bridge-nf-call-{kind}=0"))?;
    }
    for port in VMS.map(|vm| vm.interface).into_iter().chain(["vx"]) {
        run(&format!("ip link set {port} master br0 up"))?;
        run(&format!("bridge link set dev {port} learning off"))?;
    }
    run("ip link set br0 up")?;
    let mut fdb = String::new();
    for vm in VMS {
        writeln!(fdb, "fdb add {} dev {} master static", place::mac_of(vm.address), vm.interface)?;
    }
    for index in 0..REMOTE_VMS {
        let vip = VIPS[index as usize % VIPS.len()];
        for (first, host) in [(BY_GATEWAY, vip), (BY_PATH, place::host_of(index))] {
            let mac = place::mac_of(place::remote_vm(first, index));
            writeln!(fdb, "fdb add {mac} dev vx master static")?;
            writeln!(fdb, "fdb add {mac} dev vx dst {host} self permanent")?;
        }
    }
    feed("bridge -batch -", &fdb)?;
    match rules {
        Rules::None => Ok(()),
        Rules::Count(count) => filter(count),
        Rules::Nested => Err("a set of nftables has no overlapping elements".into()),
    }
}

/// Filters what VMs receive: connection tracking, a verdict map that is asked for the first packet of a flow, and a mark by
/// which the others pass, because conntrack takes a flow for established only when it was answered.
fn filter(count: u32) -> Result<(), Failure> {
    run("sysctl -qw net.bridge.bridge-nf-call-iptables=1")?;
    let mut elements = String::new();
    for (source, first, last) in rules::others(count) {
        write!(elements, "{source} . tcp . {first}-{last} : jump permit, ")?;
    }
    let (source, first, last) = rules::MEASURED;
    let ruleset = format!(
        "table ip walls {{
            chain permit {{
                ct mark set 1 accept
            }}
            map rules {{
                type ipv4_addr . inet_proto . inet_service : verdict
                flags interval
                elements = {{ {elements} {source} . udp . {first}-{last} : jump permit }}
            }}
            chain forward {{
                type filter hook forward priority 0; policy drop;
                ct state established,related accept
                ct mark 1 accept
                ip saddr . ip protocol . th dport vmap @rules
            }}
        }}
        "
    );
    feed("nft -f -", &ruleset)
}

/// Removes all connections that the kernel tracks in the current namespace.
///
/// # Errors
/// Errors of `conntrack`.
pub fn forget_flows() -> Result<(), Failure> {
    run("conntrack -F").map(drop)
}
