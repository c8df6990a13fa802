//! A host accepts packets directly only from hosts that a gateway has permitted in the VPC: what a known host sends
//! straight to another one, in a VPC of which it has an instance or not, reaches no VM and is counted, over IPv4 and
//! IPv6. A VM's elephant gives its host a permit, and `make soak` sees it end when the path is no longer used.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, address, drops, ensure, eventually, execute, path_to, ping, soak};
use sluice_lab::{Foreign, Lab};
use std::time::Duration;

const TARGET: &str = "web-3";
const OWN: [&str; 2] = ["10.1.0.200/32", "fd00:1::200/128"];
const PORT: u16 = 7041;
const PINGS: f64 = 3.0;
const COUNTED: Duration = Duration::from_secs(2);
const LEARNED: Duration = Duration::from_secs(5);
/// Longer than a path without packets, which is removed after 30 s, and the permit after its last confirmation.
const FORGOTTEN: Duration = Duration::from_secs(140);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    for (name, vtep, target) in [("sender-4", "192.0.2.42", TARGET), ("sender-6", "2001:db8:0:1::42", "db-2")]
    {
        let foreign = lab.add_foreign(name, vtep.parse()?, "web", "front").await?;
        let outcome = nothing_arrives(lab, &foreign, target).await;
        lab.remove_foreign(foreign).await?;
        outcome?;
    }
    permits_follow_paths(lab).await
}

/// The host has an instance of the network `web`, and none of `db`.
async fn nothing_arrives(lab: &Lab, foreign: &Foreign, target: &str) -> Outcome {
    let (vtep, vm) = (foreign.host.vtep, lab.vm(target)?);
    let to = lab.state().topology.hosts.iter().find(|host| host.name == vm.host).map(sluice_lab::Host::vtep);
    let to = to.ok_or_else(|| Failure::new(format!("{} is not in the topology", vm.host)))?;
    ensure!(to.is_ipv4() == vtep.is_ipv4(), "{target} is on another underlay than {vtep}");
    for inner in vm.addresses() {
        let script = format!(
            "ip link del vx1 2>/dev/null; ip link del vx0 2>/dev/null\n\
             ip link add vx1 mtu 1400 type vxlan id {} local {vtep} remote {to} dstport 4789 nolearning udp6zerocsumrx &&\n\
             ip addr add {} dev vx1 nodad && ip addr add {} dev vx1 nodad && ip link set vx1 up &&\n\
             ip route replace {inner} dev vx1 && ip neigh replace {inner} lladdr {} dev vx1",
            vm.vni, OWN[0], OWN[1], vm.mac
        );
        execute(lab, &foreign.name, &["sh", "-c", &script]).await?;
        let before = drops(lab, vm.vni, "foreign_sender").await?;
        let ping = ping(lab, &foreign.name, inner, &["-I", "vx1", "-c", "3", "-i", "0.1", "-W", "1"]).await?;
        ensure!(ping.received == 0, "{inner} answers a host without a permit: {}", ping.text);
        eventually(COUNTED, || async {
            let counted = drops(lab, vm.vni, "foreign_sender").await? - before;
            ensure!(counted >= PINGS, "{counted} packets for {inner} were counted, of {PINGS}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Number of permitted senders of a host.
async fn permitted(lab: &Lab, host: &str) -> Result<f64, Failure> {
    Ok(lab.metrics(host).await?.sum("sluice_permitted_senders", &[]))
}

async fn permits_follow_paths(lab: &Lab) -> Outcome {
    let (sender, receiver) = (lab.vm("web-1")?, lab.vm(TARGET)?);
    let there = address(receiver, false)?;
    let before = drops(lab, receiver.vni, "foreign_sender").await?;
    let streams = Streams::start(lab, &[("web-1", TARGET, false)], PORT, 500).await?;
    eventually(LEARNED, || async {
        let path = path_to(lab, &sender.host, sender.vni, there).await?;
        ensure!(path.is_some(), "{} has learned no path to {there}", sender.host);
        Ok(())
    })
    .await?;
    ensure!(permitted(lab, &receiver.host).await? >= 1.0, "{} has permitted none", receiver.host);
    streams.end().await?;
    let refused = drops(lab, receiver.vni, "foreign_sender").await? - before;
    ensure!(refused == 0.0, "{refused} packets came before their permit");
    if soak().is_zero() {
        return Ok(());
    }
    eventually(FORGOTTEN, || async {
        let left = permitted(lab, &receiver.host).await?;
        ensure!(left == 0.0, "{left} permits are left, and no path is used");
        Ok(())
    })
    .await
}
