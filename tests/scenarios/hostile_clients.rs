//! Hostile computers on the Internet, as the scenarios `internet` and `nat` need them: what they send comes in raw frames from the
//! router in front of the gateways, so its sources are whatever they say.

use crate::internet::output_of;
use crate::security_groups::{group, set_groups};
use crate::support::{
    Failure, Outcome, PROBE, Probe, drops, ensure, eventually, execute, number, stack_counter,
};
use crate::{attack, nat};
use serde_json::Value;
use sluice_lab::Lab;
use sluice_lab::internet::ISP;
use sluice_types::IpNet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Addresses of the Internet that no computer has. The first ones scan, the others are routers.
const SCANNERS: [&str; 2] = ["198.51.100.222", "2001:db8:100:4::222"];
const HOPS: [&str; 2] = ["198.51.100.233", "2001:db8:100:4::233"];
/// How often forged packets of each kind are sent, and how many kinds are ICMP errors.
const ROUNDS: usize = 3;
const ERRORS: u64 = 4;
/// ICMP errors that quote a sequence number which the connection does not have.
const FORGED_ERRORS: &str = "TcpExtOutOfWindowIcmps";
/// Until a counter of a packet program shows.
const COUNTED: Duration = Duration::from_secs(2);

/// MAC address by which a place reaches an address of its link.
async fn mac_of(lab: &Lab, place: &str, address: &str) -> Result<String, Failure> {
    let text = output_of(&lab.exec(place, &["ip", "neigh", "show", address]).await?);
    let mac = text.split_whitespace().skip_while(|word| *word != "lladdr").nth(1);
    Ok(mac.ok_or_else(|| Failure::new(format!("{place} has no {address}: {text}")))?.to_owned())
}

/// Packets about a connection of a VM that seem to come from its server, and ICMP errors about it, to the VM's public endpoint.
/// All come to the VM, which sees that they are forged.
pub async fn forge_about(lab: &Lab, vm: &str, server: SocketAddr, client: SocketAddr) -> Outcome {
    let mac = mac_of(lab, ISP, &client.ip().to_string()).await?;
    let hop = HOPS[usize::from(client.is_ipv6())];
    let before = stack_counter(lab, vm, FORGED_ERRORS).await?;
    for _ in 0..ROUNDS {
        let words = ["forge", "ix0", &mac, hop, &server.to_string(), &client.to_string()];
        execute(lab, ISP, &[&[PROBE], &words[..]].concat()).await?;
    }
    eventually(COUNTED, async || {
        let more = stack_counter(lab, vm, FORGED_ERRORS).await? - before;
        ensure!(more >= ERRORS * ROUNDS as u64, "{more} forged ICMP errors about {client} came to {vm}");
        Ok(())
    })
    .await
}

/// Sends a scan of a prefix to a gateway. Returns the number of packets.
async fn scan(lab: &Lab, mac: &str, from: &str, prefix: &str) -> Result<f64, Failure> {
    let result = Probe::start(lab, ISP, &["scan", "ix0", mac, from, prefix])?.result().await?;
    Ok(number(&result, "sent")? as f64)
}

/// Drops of all gateways for a reason, whatever VPC they count for.
async fn dropped(lab: &Lab, reason: &str) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for gateway in &lab.state().topology.gateways {
        sum += lab.metrics(&gateway.name).await?.sum("sluice_drops_total", &[("reason", reason)]);
    }
    Ok(sum)
}

/// Whoever scans the whole pool, with a source of its own or one of the cluster, begins no session, and each packet is counted
/// by its reason. `elastic` is the only VM with public addresses of its own, `host` its host and `nat` the addresses of NAT gateways.
pub async fn pool_is_scanned(lab: &Lab, (elastic, host): (&str, &str), nat: &[&str]) -> Outcome {
    let (first, vm) = (lab.state().topology.gateways[0].name.clone(), lab.vm(elastic)?);
    // Otherwise the kernel gets what has no VM, and ignores it.
    execute(lab, &first, &["sysctl", "-qw", "net.ipv4.conf.eth1.forwarding=1"]).await?;
    let closed = group(lab, "closed").await?;
    set_groups(lab, elastic, &[closed]).await?;
    let link = output_of(&lab.exec(&first, &["ip", "-br", "link", "show", "eth1"]).await?);
    let mac = link.split_whitespace().nth(2);
    let mac = mac.ok_or_else(|| Failure::new(format!("{first} has no Internet port: {link}")))?;
    let eips = lab.state().topology.internet.iter().flat_map(|internet| &internet.eips);
    let eips: Vec<IpAddr> = eips.map(|eip| eip.address).collect();
    for (from, prefix) in SCANNERS.into_iter().zip(["203.0.113.0/24", "2001:db8:200::/120"]) {
        let shared = if from.contains(':') { 0.0 } else { nat.len() as f64 };
        let before = [dropped(lab, "not_routed").await?, dropped(lab, "no_nat_session").await?];
        let denied = drops(lab, vm.vni, "ingress_denied").await?;
        let sent = scan(lab, mac, from, prefix).await?;
        ensure!(sent == 3.0 * 256.0, "only {sent} packets were sent");
        eventually(COUNTED, async || {
            for (reason, before, addresses) in
                [("not_routed", before[0], 255.0 - shared), ("no_nat_session", before[1], shared)]
            {
                let more = dropped(lab, reason).await? - before;
                ensure!(
                    more >= 3.0 * addresses,
                    "{more} packets to {addresses} addresses of {prefix}: {reason}"
                );
            }
            let more = drops(lab, vm.vni, "ingress_denied").await? - denied;
            ensure!(more >= 3.0, "{more} of 3 packets to the public address of {elastic} were denied");
            Ok(())
        })
        .await?;
    }
    for own in &eips {
        let before = dropped(lab, "martian_source").await?;
        let (from, to) = (own.to_string(), IpNet::from(*own).to_string());
        let mut sent = scan(lab, mac, &from, &to).await?;
        for address in nat.iter().filter(|_| own.is_ipv4()) {
            sent += scan(lab, mac, &from, &format!("{address}/32")).await?;
            sent += scan(lab, mac, address, &to).await?;
        }
        eventually(COUNTED, async || {
            let more = dropped(lab, "martian_source").await? - before;
            ensure!(more >= sent, "{more} of {sent} packets from addresses of the cluster were dropped");
            Ok(())
        })
        .await?;
    }
    let of_a_scan = |session: &Value| SCANNERS.iter().any(|from| session.to_string().contains(from));
    for gateway in &lab.state().topology.gateways {
        let begun = nat::sessions_of(lab, &gateway.name, &[]).await?;
        ensure!(!begun.iter().any(of_a_scan), "a scan has begun sessions at {}: {begun:?}", gateway.name);
    }
    let begun = attack::sessions(lab, host, &vm.port).await?;
    ensure!(!begun.iter().any(of_a_scan), "a scan has begun sessions of {elastic}: {begun:?}");
    set_groups(lab, elastic, &[]).await?;
    execute(lab, &first, &["sysctl", "-qw", "net.ipv4.conf.eth1.forwarding=0"]).await
}
