//! The kernel as a NAT gateway: a VXLAN device, routes, nftables and connection tracking. It changes with how a kernel of this
//! version translates fastest.

use crate::rig::{Rig, Sessions};
use sluice_bench_report::shell::{Failure, feed, run};
use sluice_bench_spine::peers::{self, Kernel};
use std::fs;

/// The public addresses, as many as a NAT gateway of Sluice has.
const ADDRESSES: &str = "203.0.113.1-203.0.113.16";
const CONNECTIONS_MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// The kernel's limits of tracked connections, which are of the whole machine. They get their old values when this is dropped.
pub struct Limits {
    old: Vec<(&'static str, String)>,
}

impl Limits {
    /// Makes place for so many connections, with as many buckets as the kernel has by default for them.
    ///
    /// # Errors
    /// If they cannot be changed.
    pub fn raise(connections: u32) -> Result<Self, Failure> {
        let mut limits = Self { old: Vec::new() };
        for file in [CONNECTIONS_MAX, BUCKETS] {
            let old = fs::read_to_string(file)?.trim().to_owned();
            if old.parse::<u32>()? < connections {
                fs::write(file, connections.to_string()).map_err(|error| format!("{file}: {error}"))?;
                limits.old.push((file, old));
            }
        }
        Ok(limits)
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        for (file, old) in &self.old {
            if let Err(error) = fs::write(file, old) {
                eprintln!("bench-internet: {file} is not {old} again: {error}");
            }
        }
    }
}

/// Lets the kernel forward what VMs send in the current namespace, which has the interfaces of `rig`.
///
/// # Errors
/// Errors of the tools.
pub fn forward(vms: u32) -> Result<(), Failure> {
    peers::set_up_kernel(Kernel::OneRoute, vms)?;
    run("sysctl -qw net.ipv4.conf.out.rp_filter=0").map(drop)
}

/// Lets it translate that as well.
///
/// # Errors
/// Errors of the tools.
pub fn set_up(vms: u32) -> Result<(), Failure> {
    forward(vms)?;
    run("ip address add 203.0.113.1/32 dev out")?;
    // Answers to the other addresses are for this machine as well: they are translated before they are routed.
    let ruleset = format!(
        "table ip nat {{
            chain post {{
                type nat hook postrouting priority srcnat; policy accept;
                oifname \"out\" snat to {ADDRESSES}
            }}
        }}
        "
    );
    feed("nft -f -", &ruleset)
}

/// Lets the kernel begin all sessions, by two packets of each: one may have been dropped by a queue.
///
/// # Errors
/// If many sessions have not begun.
pub fn fill(rig: &Rig, sessions: Sessions) -> Result<(), Failure> {
    let _links = rig.pass()?;
    rig.send(sessions.count())?;
    rig.send(sessions.count())?;
    let begun = count()?;
    if begun * 100 < u64::from(sessions.count()) * 99 {
        return Err(format!("only {begun} of {} connections are tracked", sessions.count()).into());
    }
    Ok(())
}

/// Connections that the kernel tracks in the current namespace.
///
/// # Errors
/// Errors of `conntrack`.
pub fn count() -> Result<u64, Failure> {
    Ok(run("conntrack -C")?.trim().parse()?)
}

/// Ends all connections that the kernel tracks in the current namespace.
///
/// # Errors
/// Errors of `conntrack`.
pub fn forget() -> Result<(), Failure> {
    run("conntrack -F").map(drop)
}

/// Bytes of kernel memory in slabs.
///
/// # Errors
/// If the system does not report it.
pub fn slab_bytes() -> Result<u64, Failure> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:")).ok_or("no Slab in /proc/meminfo")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}
