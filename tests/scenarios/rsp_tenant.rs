//! A tenant that sends RSP packets to other instances, to routers and to underlay addresses learns and changes
//! nothing: to the underlay they are payload of a tunnel.

use crate::Ground;
use crate::support::{Failure, Outcome, Probe, address, ensure, number};
use sluice_lab::Lab;
use std::net::{IpAddr, SocketAddr};

const RSP_PORT: u16 = 4797;
/// A key that no node has.
const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let vm = lab.vm("web-1")?;
    let before = heard(lab).await?;
    let topology = &lab.state().topology;
    let mut targets: Vec<IpAddr> = topology.hosts.iter().map(|host| host.vtep()).collect();
    for gateway in &topology.gateways {
        targets.extend(gateway.ipv4.map(IpAddr::from).into_iter().chain(gateway.ipv6.map(IpAddr::from)));
    }
    targets.extend(&topology.cluster.vips);
    for router in ["10.1.0.1", "fd10:0:0:1::1"] {
        targets.push(router.parse()?);
    }
    for target in targets {
        // From a gateway with the key, this notification about a neighbor would be accepted.
        let to = SocketAddr::new(target, RSP_PORT).to_string();
        let vni = vm.vni.to_string();
        Probe::start(lab, "web-1", &["rsp", &to, "1", SECRET, &vni, "10.1.0.200", "192.0.2.22"])?
            .end()
            .await?;
    }
    // Between instances it is an ordinary datagram.
    let there = SocketAddr::new(address(lab.vm("web-3")?, false)?, RSP_PORT).to_string();
    let echo = Probe::listening(lab, "web-3", &["echo", &there, "web-3"]).await?;
    let answer = Probe::start(lab, "web-1", &["stream", &there, "20", "1"])?.result().await?;
    drop(echo);
    ensure!(number(&answer, "received")? > 0, "web-3 does not get what is sent to port {RSP_PORT}");
    let after = heard(lab).await?;
    ensure!(before == after, "nodes took notice of a tenant's packets: {before:?}, then {after:?}");
    for host in lab.state().topology.hosts.iter().map(|host| &host.name) {
        for path in lab.paths_of(host).await? {
            ensure!(path["destination"] != "10.1.0.200", "{host} believed a tenant: {path}");
        }
    }
    Ok(())
}

/// Number of refused packets of each node, which packets of tenants would increase.
async fn heard(lab: &Lab) -> Result<Vec<(String, f64)>, Failure> {
    let mut heard = Vec::new();
    for node in lab.state().nodes.keys() {
        heard.push((node.clone(), lab.metrics(node).await?.sum("sluice_rsp_refused_total", &[])));
    }
    Ok(heard)
}
