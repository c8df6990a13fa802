//! The owner of a NAT gateway's vIP dies with its machine, comes back, and a gateway is drained: the connections of VMs to the
//! Internet go on, each by the public port that it has, and so does one to the EIP of a VM of another VPC. One download of each VM lasts for all of it.
//!
//! Catches: copies of sessions that are not made, or not as the first packets of a connection pass; an owner that becomes one
//! without copies; a gateway that ends sessions when it loses the vIP.

use crate::Ground;
use crate::internet::{copy, download, eip};
use crate::nat::{owner_of, sessions_at};
use crate::streams::Streams;
use crate::support::{Failure, Outcome, Probe, ensure, ensure_timely, eventually, execute, number, who};
use crate::takeover::{Hellos, lab_of_three};
use serde_json::Value;
use sluice_client::Gateway;
use sluice_lab::Lab;
use sluice_lab::internet::{ISP, WEB, web_address};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::sleep;

/// VMs behind the same NAT gateway, at different hosts, one of these with IPv6 underlay.
pub const VMS: [&str; 2] = ["shop-1", "shop-3"];
pub const PUBLIC: &str = "203.0.113.128";
/// A VM with an EIP, of another VPC.
const NEIGHBOR: &str = "web-1";
/// Downloads and streams.
const CONNECTIONS: usize = 2 * VMS.len() + 1;
const PORT: u16 = 7071;
const PPS: u64 = 50;
/// Two downloads share 7 Mbit/s: each takes about 19 s, what happens meanwhile less.
const SHAPER: [&str; 2] = [
    "qdisc add dev ix0 root handle 1: htb default 1",
    "class add dev ix0 parent 1: classid 1:1 htb rate 7mbit",
];
/// Copies are asked for at once, again after a second, and so on. A loaded machine included.
const COPIED: Duration = Duration::from_secs(15);
/// The takeover, and an announcement that was lost and is repeated; at hello intervals of 100 ms.
pub const TAKEN_OVER: Duration = Duration::from_secs(5);
/// A gateway that is back gets its vIPs after a delay, one each quarter of a second, when it has copies of all sessions.
const RETURNED: Duration = Duration::from_secs(15);
/// What a stream may lose. The bound of a takeover is that of the scenario `takeover`; here connections must only go on.
const LOST_MAX: Duration = Duration::from_secs(3);

pub async fn scenario(ground: &Ground) -> Outcome {
    for (stream, lost) in under_traffic(ground, owners_change).await? {
        ensure!(lost > Duration::ZERO, "{stream} has lost nothing, so nothing failed");
    }
    Ok(())
}

/// Does something while each VM downloads a file and sends a stream of datagrams through the NAT gateway. Returns for how long each
/// stream has lost packets, at most [`LOST_MAX`].
pub async fn under_traffic(
    ground: &Ground,
    change: impl AsyncFnOnce(&Lab, SocketAddr) -> Outcome,
) -> Result<Vec<(String, Duration)>, Failure> {
    let lab = lab_of_three(ground, None, Hellos::Slow).await?;
    everything_is_copied(&lab).await?;
    slow_down_downloads(&lab).await?;
    with_traffic(&lab, change).await
}

/// As [`under_traffic`], in a lab whose gateways have copies, and where a download lasts longer than the change.
pub async fn with_traffic(
    lab: &Lab,
    change: impl AsyncFnOnce(&Lab, SocketAddr) -> Outcome,
) -> Result<Vec<(String, Duration)>, Failure> {
    let at = SocketAddr::new(web_address(false), PORT);
    let _echo = Probe::listening(lab, WEB, &["echo", &at.to_string(), WEB]).await?;
    let neighbor = SocketAddr::new(eip(lab, NEIGHBOR, false)?, PORT).to_string();
    let _neighbor = Probe::listening(lab, NEIGHBOR, &["echo", &format!("0.0.0.0:{PORT}"), NEIGHBOR]).await?;
    let mut flows: Vec<_> = VMS.map(|vm| (vm, at.to_string())).into();
    flows.push((VMS[0], neighbor));
    let streams = Streams::to_flows(lab, &flows, PPS).await?;
    let downloads = async { tokio::try_join!(download(lab, VMS[0], false), download(lab, VMS[1], false)) };
    tokio::try_join!(downloads, change(lab, at))?;
    let mut all = Vec::new();
    for (stream, result) in streams.results().await? {
        let (sent, received) = (number(&result, "sent")?, number(&result, "received")?);
        let lost = Duration::from_millis((sent - received) * 1_000 / PPS);
        println!("    {stream}: {} of {sent} packets lost", sent - received);
        ensure!(lost < LOST_MAX, "{stream} has lost packets for {lost:?}: {result}");
        all.push((stream, lost));
    }
    Ok(all)
}

async fn slow_down_downloads(lab: &Lab) -> Outcome {
    for shaper in SHAPER {
        execute(lab, ISP, &[&["tc"], &shaper.split(' ').collect::<Vec<_>>()[..]].concat()).await?;
    }
    Ok(())
}

/// What happens under the downloads.
async fn owners_change(lab: &Lab, at: SocketAddr) -> Outcome {
    let ports = established(lab).await?;
    let victim = lab.owner_of_public(PUBLIC.parse()?).await?;
    let name = lab.state().topology.gateways[victim].name.clone();

    lab.connect_gateway(victim, false).await?;
    lab.kill(&name).await?;
    let heir = goes_on_elsewhere(lab, &name, &ports).await?;
    new_connections_work(lab, at, "the owner has died").await?;

    lab.connect_gateway(victim, true).await?;
    lab.restart(&name)?;
    lab.synchronized(&name, RETURNED).await?;
    eventually(RETURNED, async || {
        let gateway = owner_of(lab, PUBLIC).await?;
        ensure!(gateway == name, "{PUBLIC} is at {gateway}, not back at {name}");
        Ok(())
    })
    .await?;
    same_ports(lab, &name, &ports, "the owner is back").await?;
    new_connections_work(lab, at, "the owner is back").await?;
    everything_is_copied(lab).await?;

    let id = lab.api().find::<Gateway>(&name, &[]).await?.id;
    lab.api().drain(id, true, None).await?;
    let heir = goes_on_elsewhere(lab, &name, &ports).await.map(|next| (heir, next))?;
    new_connections_work(lab, at, &format!("{name} was drained, {heir:?}")).await?;
    for vm in VMS {
        ensure_timely!(copy(lab, vm, false).exists(), "{vm} had its file before everything had happened");
    }
    Ok(())
}

/// Waits until both downloads and both streams have begun, and more than one packet of each has gone each way. Returns their public ports.
pub async fn established(lab: &Lab) -> Result<Ports, Failure> {
    eventually(TAKEN_OVER, async || {
        let gateway = owner_of(lab, PUBLIC).await?;
        let open = ports_at(lab, &gateway, &["established"]).await?;
        ensure!(open.len() == CONNECTIONS, "not all connections are at {gateway} yet: {open:?}");
        Ok(())
    })
    .await?;
    ports_at(lab, &owner_of(lab, PUBLIC).await?, &["established"]).await
}

/// Waits until another gateway than `old` has the vIP, where the connections have the public ports that they had. Returns its name.
async fn goes_on_elsewhere(lab: &Lab, old: &str, ports: &Ports) -> Result<String, Failure> {
    let next = std::cell::RefCell::new(String::new());
    eventually(TAKEN_OVER, async || {
        let gateway = owner_of(lab, PUBLIC).await?;
        ensure!(gateway != old, "{PUBLIC} is still at {old}");
        *next.borrow_mut() = gateway;
        Ok(())
    })
    .await?;
    let next = next.into_inner();
    same_ports(lab, &next, ports, &format!("{old} has lost {PUBLIC}")).await?;
    Ok(next)
}

/// The public port of each connection: of the VM's address and port, the other end, and the protocol.
pub type Ports = BTreeMap<String, Value>;

/// Those of the downloads and streams that a gateway has in one of these states.
pub async fn ports_at(lab: &Lab, gateway: &str, states: &[&str]) -> Result<Ports, Failure> {
    let mut ports = Ports::new();
    for vm in VMS {
        for session in sessions_at(lab, vm, gateway, &["--outside", PUBLIC]).await? {
            let is_long = session["remote_port"] == 80 || session["remote_port"] == PORT;
            if is_long && states.iter().any(|state| session["state"] == *state) {
                let ends = ["protocol", "inside_port", "remote_address", "remote_port"];
                let key = ends.map(|end| session[end].to_string()).join(" ");
                ports.insert(format!("{vm} {key}"), session["outside_port"].clone());
            }
        }
    }
    Ok(ports)
}

pub async fn same_ports(lab: &Lab, gateway: &str, ports: &Ports, when: &str) -> Outcome {
    // A copy of a session that began a moment ago has the state of its first packet.
    let found = ports_at(lab, gateway, &["new", "established"]).await?;
    let is_same = |(connection, port): (&String, &Value)| found.get(connection) == Some(port);
    ensure!(ports.iter().all(is_same), "{when}: {gateway} has {found:?}, not {ports:?}");
    // Packets still go both ways, some seconds later than the takeover.
    sleep(Duration::from_millis(500)).await;
    Ok(())
}

pub async fn new_connections_work(lab: &Lab, at: SocketAddr, when: &str) -> Outcome {
    for vm in VMS {
        for protocol in ["udp", "tcp"] {
            let name = who(lab, vm, protocol, at).await?;
            ensure!(
                name.as_deref() == Some(WEB),
                "{when}: {vm} asked {at} by {protocol}, and {name:?} answered"
            );
        }
    }
    Ok(())
}

/// Waits until each gateway has copies of what the others own, as `sluice nat copies` shows it.
pub async fn everything_is_copied(lab: &Lab) -> Outcome {
    let gateways = lab.state().topology.gateways.iter();
    copied_at(lab, &gateways.map(|gateway| &*gateway.name).collect::<Vec<_>>()).await
}

/// Waits until each of these gateways, which are all of a cluster, has them.
pub async fn copied_at(lab: &Lab, gateways: &[&str]) -> Outcome {
    eventually(COPIED, async || {
        for gateway in gateways {
            let socket = lab.paths().socket(gateway).display().to_string();
            let argv = ["nat", "copies", "--output", "json", "--socket", &socket];
            let output = Command::new(&lab.state().binary).args(argv).output().await?;
            let copies: Vec<Value> = serde_json::from_slice(&output.stdout)?;
            let is_whole = copies.iter().all(|copy| copy["complete"] == true);
            ensure!(!copies.is_empty() && is_whole, "{gateway} has {copies:?}");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(said.is_empty(), "{gateway}: {said}");
        }
        Ok(())
    })
    .await
}
