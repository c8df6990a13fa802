//! A guest of QEMU, with a kernel and virtio-net of its own behind taps: it gets its addresses by DHCP, DHCPv6 and router
//! advertisement; TCP with the offloads that virtio negotiates carries every byte, in large segments; each of two
//! interfaces reaches the peers of its VPC; the Internet reaches it, and it the Internet, by its public addresses; a reset under
//! traffic disturbs no neighbor; security groups apply to it.
//!
//! Catches: checksums and segments that only a tap leaves unfinished, which the stacks of namespaces never produce.

use crate::Ground;
use crate::security_groups::{group, permit, reaches_at, set_groups};
use crate::streams::Streams;
use crate::support::{
    Failure, Outcome, PROBE, Probe, address, answers, checksum_errors, ensure, number, who,
};
use serde_json::Value;
use sluice_client::Remote;
use sluice_lab::internet::{CLIENT, WEB, page};

use sluice_lab::{Eip, Guest, Lab, Nic, Options, Vm};
use sluice_types::{IpNet, Ipv6Mode, Protocol};
use std::net::{IpAddr, SocketAddr};

/// Its first interface is in VPC web with DHCPv6, the second one in VPC db with SLAAC.
pub const GUEST: &str = "guest";
const SECOND: &str = "guest-eth1";
/// The neighbor on the guest's host.
const NEIGHBOR: &str = "web-2";
const REMOTE: &str = "web-3";
const BYTES: usize = 3 << 20;
const CONTENT: u16 = 7061;
const STREAM: u16 = 7062;
const ECHO: u16 = 7064;
const PPS: u64 = 200;
/// Longer than the lab waits for the return of a guest, in seconds: a stream that has ended cannot be stopped.
const RESET_MAX: &str = "400";
/// More than the first flight of a TCP connection. Emulated guests send slowly.
const PUBLIC_BYTES: usize = 400_000;
/// The guest's public addresses.
const PUBLIC: [&str; 2] = ["203.0.113.21", "2001:db8:200::21"];

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab(ground).await?;
    has_its_addresses(&lab).await?;
    has_offloads(&lab).await?;
    for (from, to) in [(GUEST, REMOTE), (REMOTE, GUEST), (GUEST, NEIGHBOR), (NEIGHBOR, GUEST)] {
        transfers(&lab, from, to).await?;
    }
    each_interface_has_its_peers(&lab).await?;
    reaches_the_internet(&lab).await?;
    reset_under_traffic(&lab).await?;
    groups_apply(&lab).await
}

async fn lab(ground: &Ground) -> Result<Lab, Failure> {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    let nic = |vpc: &str, subnet: &str| Nic {
        vpc: vpc.to_owned(),
        subnet: subnet.to_owned(),
        ipv4: None,
        mac: None,
        security_groups: Vec::new(),
    };
    options.topology.vms.push(Vm {
        name: GUEST.to_owned(),
        vpc: "web".to_owned(),
        subnet: "front".to_owned(),
        host: "host-a".to_owned(),
        ipv4: None,
        mac: None,
        security_groups: Vec::new(),
        guest: Guest::Qemu,
        nics: vec![nic("db", "store")],
    });
    let nstat = ["/usr/bin/nstat", "/usr/sbin/nstat", "/sbin/nstat"];
    let nstat = nstat.into_iter().find(|path| std::path::Path::new(path).exists());
    let programs = [PROBE, nstat.ok_or_else(|| Failure::new("nstat of iproute2 is not installed"))?];
    let internet = options.topology.internet.as_mut().ok_or_else(|| Failure::new("no Internet"))?;
    for address in PUBLIC {
        internet.eips.push(Eip { vm: GUEST.to_owned(), address: address.parse()? });
    }
    options.topology.guest_programs = programs.map(Into::into).into();
    Ok(Lab::up(options).await?)
}

/// The output of a command in the guest.
pub async fn told(lab: &Lab, argv: &[&str]) -> Result<String, Failure> {
    let output = lab.exec(GUEST, argv).await?;
    ensure!(output.status.success(), "{argv:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Both interfaces have the addresses and the MTU of the API, and no others.
async fn has_its_addresses(lab: &Lab) -> Outcome {
    for name in [GUEST, SECOND] {
        let vm = lab.vm(name)?;
        let shown = told(lab, &["ip", "addr", "show", "dev", &vm.interface, "scope", "global"]).await?;
        let length = if vm.ipv6_mode == Some(Ipv6Mode::Dhcp) { 128 } else { 64 };
        let own = [format!("{}/24", address(vm, false)?), format!("{}/{length}", address(vm, true)?)];
        for own in own {
            ensure!(shown.contains(&format!(" {own} ")), "{name}: {own} is not there: {shown}");
        }
        ensure!(shown.matches("inet").count() == 2, "{name} has other addresses: {shown}");
        ensure!(shown.contains("mtu 1430"), "{name}: {shown}");
        let route = told(lab, &["ip", "-6", "route", "show", "default", "dev", &vm.interface]).await?;
        ensure!(route.contains("via fe80::1"), "{name}: no default route by advertisement: {route}");
    }
    Ok(())
}

/// The guest's driver has negotiated checksums and segmentation with the tap.
async fn has_offloads(lab: &Lab) -> Outcome {
    let shown = told(lab, &["ethtool", "-k", "eth0"]).await?;
    for feature in ["rx-checksumming", "tx-checksumming", "tx-tcp-segmentation", "tx-tcp6-segmentation"] {
        ensure!(shown.contains(&format!("{feature}: on")), "{feature} is not on: {shown}");
    }
    Ok(())
}

/// Packets and bytes that the guest sent by its first interface, as the tap counts them.
async fn sent_by_guest(lab: &Lab) -> Result<[u64; 2], Failure> {
    let vm = lab.vm(GUEST)?;
    let output = lab.exec(&vm.host, &["ip", "-j", "-s", "link", "show", &vm.port]).await?;
    let links: Value = serde_json::from_slice(&output.stdout)?;
    let from_guest = &links[0]["stats64"]["rx"];
    Ok([number(from_guest, "packets")?, number(from_guest, "bytes")?])
}

/// Every byte arrives over TCP, in both families. What the guest sends leaves it in large segments.
async fn transfers(lab: &Lab, from: &str, to: &str) -> Outcome {
    for ipv6 in [false, true] {
        let at = SocketAddr::new(address(lab.vm(from)?, ipv6)?, CONTENT).to_string();
        let errors = [checksum_errors(lab, from).await?, checksum_errors(lab, to).await?];
        let bytes = BYTES.to_string();
        let _giver = Probe::listening(lab, from, &["give", &at, &bytes]).await?;
        let before = sent_by_guest(lab).await?;
        let result = Probe::start(lab, to, &["take", &at, &bytes])?.result().await?;
        ensure!(result["equal"] == true, "{to} took {result} of {BYTES} bytes from {at}");
        let after = sent_by_guest(lab).await?;
        let mean = (after[1] - before[1]) / (after[0] - before[0]).max(1);
        // Without segmentation offload no packet is longer than the MTU and its header.
        ensure!(from != GUEST || mean > 1600, "{to} from {at}: the guest sent packets of {mean} bytes");
        let now = [checksum_errors(lab, from).await?, checksum_errors(lab, to).await?];
        ensure!(errors == now, "{from} -> {to}: wrong checksums, from {errors:?} to {now:?}");
    }
    Ok(())
}

/// By its public addresses: it fetches a page, and sends data to a computer on the Internet in segments that are as long as its own
/// MTU permits, which is less than that of the Internet.
async fn reaches_the_internet(lab: &Lab) -> Outcome {
    for (ipv6, public) in [false, true].into_iter().zip(PUBLIC) {
        let text = told(lab, &["wget", "-q", "-O", "-", &page(ipv6)]).await?;
        ensure!(text == "Welcome to the Internet.\n", "the guest got from {}: {text}", page(ipv6));
        let log = std::fs::read_to_string(lab.paths().log(WEB))?;
        ensure!(log.contains(public), "{WEB} was not reached from {public}: {log}");
        let at = |address: IpAddr| SocketAddr::new(address, CONTENT).to_string();
        let bytes = PUBLIC_BYTES.to_string();
        let inside = at(address(lab.vm(GUEST)?, ipv6)?);
        let _giver = Probe::listening(lab, GUEST, &["give", &inside, &bytes]).await?;
        let result = Probe::start(lab, CLIENT, &["take", &at(public.parse()?), &bytes])?.result().await?;
        ensure!(result["equal"] == true, "{CLIENT} took {result} of {PUBLIC_BYTES} bytes from {public}");
    }
    Ok(())
}

async fn each_interface_has_its_peers(lab: &Lab) -> Outcome {
    for (name, peer) in [(GUEST, REMOTE), (SECOND, "db-1"), (SECOND, "db-2")] {
        let vm = lab.vm(name)?;
        for ipv6 in [false, true] {
            let (own, target) = (address(vm, ipv6)?, address(lab.vm(peer)?, ipv6)?);
            answers(lab, GUEST, target, &["-I", &vm.interface]).await?;
            let at = SocketAddr::new(own, ECHO);
            let echo = Probe::listening(lab, GUEST, &["echo", &at.to_string(), name]).await?;
            for protocol in ["tcp", "udp"] {
                let answer = who(lab, peer, protocol, at).await?;
                ensure!(answer.as_deref() == Some(name), "{peer} asked {at} by {protocol}: {answer:?}");
            }
            echo.kill().await?;
        }
    }
    Ok(())
}

/// The guest is reset while it is sent to, and then its QEMU is restarted. Its neighbor on the same host loses nothing, and the guest comes back with its
/// addresses.
async fn reset_under_traffic(lab: &Lab) -> Outcome {
    let pairs = [(NEIGHBOR, REMOTE, false), (NEIGHBOR, REMOTE, true)];
    let neighbor = Streams::start(lab, &pairs, STREAM, PPS).await?;
    let at = SocketAddr::new(address(lab.vm(GUEST)?, false)?, ECHO).to_string();
    let echo = Probe::listening(lab, GUEST, &["echo", &at, GUEST]).await?;
    let mut stream = Probe::start(lab, REMOTE, &["stream", &at, &PPS.to_string(), RESET_MAX])?;
    lab.reset_guest(GUEST).await?;
    drop(echo);
    stream.stop().await?;
    let result = stream.result().await?;
    ensure!(number(&result, "received")? < number(&result, "sent")?, "nothing was lost by a reset: {result}");
    neighbor.end().await?;
    has_its_addresses(lab).await?;
    // QEMU ends and is started again.
    lab.stop(GUEST).await?;
    lab.restart_guest(GUEST).await?;
    has_its_addresses(lab).await?;
    let unknown = lab.command("nosuch", &["true"]).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(unknown.contains(GUEST), "the places of a lab include its guests: {unknown}");
    transfers(lab, GUEST, REMOTE).await
}

async fn groups_apply(lab: &Lab) -> Outcome {
    let mut echoes = Vec::new();
    for at in lab.vm(GUEST)?.addresses() {
        let at = SocketAddr::new(at, ECHO).to_string();
        echoes.push(Probe::listening(lab, GUEST, &["echo", &at, GUEST]).await?);
    }
    let server = group(lab, "server").await?;
    reaches_at(lab, NEIGHBOR, GUEST, ECHO, true).await?;
    set_groups(lab, GUEST, &[server]).await?;
    for from in [NEIGHBOR, REMOTE] {
        reaches_at(lab, from, GUEST, ECHO, false).await?;
    }
    for at in lab.vm(REMOTE)?.addresses() {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            permit(lab, server, protocol, ECHO, Remote::Prefix(IpNet::from(at))).await?;
        }
    }
    reaches_at(lab, REMOTE, GUEST, ECHO, true).await?;
    reaches_at(lab, NEIGHBOR, GUEST, ECHO, false).await
}
