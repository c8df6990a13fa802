//! VPCs with whole IPv6 prefixes of the Internet: one that is routed, and one that is mapped to another prefix by NPTv6 (RFC 6296). Real
//! programs use them in both directions: computers on the Internet fetch files from web servers in VMs, by IPv4 as well, VMs fetch a page
//! and a file, and ask a name server by both families, whose long answer comes in fragments. VMs of both VPCs reach each other by these
//! addresses. ICMP errors lead to the MTU. The scenario `internet` is about single addresses.
//!
//! Catches: a prefix of which only some addresses are answered for or translated, or in one direction only; another map than that of RFC
//! 6296; wrong checksums, in fragments and in quoted packets as well; a VM that is reached by the address of another one.

use crate::Ground;
use crate::internet::{both_ends_learn_the_mtu, curl, download, download_from, output_of};
use crate::nat::names_are_resolved_by;
use crate::support::{Failure, Outcome, Probe, address, ensure, execute, slow_hellos, who};
use sluice_client::{Eip, NewEip, PublicPool, Tenant};
use sluice_lab::internet::{CLIENT, LARGE_FILE, POOL, WEB, page};
use sluice_lab::{Lab, Options, Topology};
use sluice_types::Ipv6Net;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Child;

/// What the router before the gateways has on its link to them.
const POOLS: [&str; 2] = ["203.0.113.0/24", "2001:db8:200::/48"];
/// The prefix of subnet `front` of VPC web, which is routed, and VMs of it, at different hosts. The first one has an EIP of IPv4.
const ROUTED: &str = "2001:db8:200:1::/64";
const ROUTED_VMS: [&str; 2] = ["web-1", "web-3"];
const EIP: &str = "203.0.113.11";
/// What subnet `back` of VPC shop, whose own prefix is a private one, is mapped to, and its VM, at a host with IPv6 underlay.
const MAPPED: &str = "2001:db8:200:2::/64";
const MAPPED_VM: &str = "shop-3";
/// Where VMs echo, and where they have files.
const ECHO: u16 = 7101;
const FILES: u16 = 8101;
const PROGRAMMED: Duration = Duration::from_secs(10);

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    slow_hellos(&mut options.topology);
    with_public_prefix(&mut options.topology)?;
    let lab = Lab::up(options).await?;
    attach(&lab, ("red", "web", "front"), ROUTED, false).await?;
    attach(&lab, ("blue", "shop", "back"), MAPPED, true).await?;
    let mut servers = Vec::new();
    for vm in [ROUTED_VMS[0], ROUTED_VMS[1], MAPPED_VM] {
        servers.push(Servers::start(&lab, vm).await?);
    }
    let mut publics = Vec::new();
    for vm in ROUTED_VMS {
        let own = address(lab.vm(vm)?, true)?;
        let seen = seen_by_the_internet(&lab, vm, ROUTED.parse()?).await?;
        ensure!(own == IpAddr::V6(seen), "{vm} has {own}, which is routed, but the Internet saw {seen}");
        publics.push((vm, own));
    }
    let mapped = seen_by_the_internet(&lab, MAPPED_VM, MAPPED.parse()?).await?;
    is_map_of(address(lab.vm(MAPPED_VM)?, true)?, mapped)?;
    publics.push((MAPPED_VM, mapped.into()));
    for (vm, public) in &publics {
        is_reached(&lab, vm, *public).await?;
        // What TCP has learned of the path MTU, and then what pings have.
        forget_paths(&lab, vm).await?;
        both_ends_learn_the_mtu(&lab, vm, *public).await?;
        forget_paths(&lab, vm).await?;
        download(&lab, vm, true).await?;
        names_are_resolved_by(&lab, vm, true).await?;
    }
    is_reached(&lab, ROUTED_VMS[0], EIP.parse()?).await?;
    names_are_resolved_by(&lab, ROUTED_VMS[0], false).await
}

async fn forget_paths(lab: &Lab, vm: &str) -> Outcome {
    execute(lab, vm, &["ip", "-6", "route", "flush", "cache"]).await
}

/// The prefix of a subnet is one of the pool, and no VM has a single public address of IPv6.
fn with_public_prefix(topology: &mut Topology) -> Outcome {
    let internet = topology.internet.as_mut().ok_or_else(|| Failure::new("no Internet"))?;
    internet.pool = POOLS.iter().map(|prefix| prefix.parse()).collect::<Result<_, _>>()?;
    internet.eips.retain(|eip| eip.address.is_ipv4());
    topology.vpcs[0].subnets[0].ipv6 = Some(ROUTED.parse()?);
    Ok(())
}

/// Creates an EIP that is a whole prefix, attached to a subnet, and waits until all gateways have it.
async fn attach(
    lab: &Lab,
    (tenant, vpc, subnet): (&str, &str, &str),
    prefix: &str,
    is_mapped: bool,
) -> Outcome {
    let prefix: Ipv6Net = prefix.parse()?;
    let new = NewEip {
        name: format!("{vpc}-prefix"),
        tenant: lab.api().find::<Tenant>(tenant, &[]).await?.id,
        pool: lab.api().find::<PublicPool>(POOL, &[]).await?.id,
        address: Some(prefix.network().into()),
        family: None,
        prefix_length: Some(prefix.prefix_len()),
        nptv6: Some(is_mapped),
        instance: None,
        subnet: lab.vpc(vpc)?.subnets.get(subnet).copied(),
        inside: None,
        meter: None,
    };
    let eip = lab.api().create((), &new).await?.object.id;
    lab.api().wait_programmed::<Eip>(eip, PROGRAMMED).await?;
    Ok(())
}

/// What a VM serves by both families. It ends when this is dropped.
struct Servers {
    _echoes: Vec<Probe>,
    _files: Child,
}

impl Servers {
    async fn start(lab: &Lab, vm: &str) -> Result<Self, Failure> {
        let mut echoes = Vec::new();
        for at in lab.vm(vm)?.addresses() {
            let at = SocketAddr::new(at, ECHO).to_string();
            echoes.push(Probe::listening(lab, vm, &["echo", &at, vm]).await?);
        }
        let root = lab.paths().web_root().display().to_string();
        let argv = ["busybox", "httpd", "-f", "-p", &FILES.to_string(), "-h", &root];
        let mut files = lab.command(vm, &argv)?;
        let files = files.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
        Ok(Self { _echoes: echoes, _files: files })
    }
}

/// The VM fetches the page of the web server. Returns the address of this prefix from which the server was asked.
async fn seen_by_the_internet(lab: &Lab, vm: &str, prefix: Ipv6Net) -> Result<Ipv6Addr, Failure> {
    let before = std::fs::read_to_string(lab.paths().log(WEB))?.len();
    let output = lab.exec(vm, &curl(&[], &page(true))).await?;
    let text = output_of(&output);
    ensure!(text == "Welcome to the Internet.\n", "{vm} got from {}: {text}", page(true));
    let log = std::fs::read_to_string(lab.paths().log(WEB))?;
    let new = log.get(before..).unwrap_or_default();
    let sources = new.split(['[', ']']).filter_map(|word| word.parse::<Ipv6Addr>().ok());
    let sources: Vec<_> = sources.collect();
    let of_prefix = sources.iter().find(|source| prefix.contains(*source)).copied();
    of_prefix.ok_or_else(|| Failure::new(format!("{WEB} was not asked from {prefix} by {vm}: {new}")))
}

/// The sum of the words of both addresses is the same, modulo 0xffff: so no checksum changes (RFC 6296 section 2.6).
fn is_map_of(inside: IpAddr, outside: Ipv6Addr) -> Outcome {
    let IpAddr::V6(inside) = inside else { return Err(Failure::new("an address of IPv4 is not mapped")) };
    let sum = |address: Ipv6Addr| address.segments().into_iter().map(u32::from).sum::<u32>() % 0xffff;
    ensure!(inside != outside && sum(inside) == sum(outside), "{outside} is not the map of {inside}");
    Ok(())
}

/// The VM is reached at this address by TCP and UDP, from the Internet, from both VPCs and from itself, and has a file there.
async fn is_reached(lab: &Lab, vm: &str, public: IpAddr) -> Outcome {
    let at = SocketAddr::new(public, ECHO);
    for from in [CLIENT, WEB, ROUTED_VMS[0], ROUTED_VMS[1], MAPPED_VM] {
        for protocol in ["tcp", "udp"] {
            let name = who(lab, from, protocol, at).await?;
            ensure!(name.as_deref() == Some(vm), "{from} reached {name:?} at {at} by {protocol}, not {vm}");
        }
    }
    let url = format!("http://{}/{LARGE_FILE}", SocketAddr::new(public, FILES));
    for from in [CLIENT, WEB] {
        download_from(lab, from, public.is_ipv6(), &url).await?;
    }
    Ok(())
}
