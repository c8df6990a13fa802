//! What instances have besides their two addresses, in both address families: secondary addresses on a running VM, prefixes
//! of pods that follow their node to another host, ports without spoofing protection, and addresses that VMs have in turn
//! (`address_pairs`).
//!
//! Catches: addresses that are permitted on one node and unknown on another, that stay after they were taken away, or that
//! do not move with their instance.

use crate::Ground;
use crate::address_pairs;
use crate::spoofing::counted;
use crate::streams::Streams;
use crate::support::{
    Failure, Outcome, address, answers, ensure, eventually, execute, never_reaches, path_to, ping,
};
use futures::future::try_join_all;
use serde_json::{Value, json};
use sluice_client::{Instance, NewRoute, Peering, RouteTable, RouteTarget};
use sluice_lab::{Lab, Options, VmState};
use sluice_types::InstanceId;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

/// From the answer of the API until every node has the change.
const PROGRAMMED: Duration = Duration::from_secs(10);
const LEARNED: Duration = Duration::from_secs(5);
/// Of web-3, for a time.
const SECONDARY: [&str; 2] = ["10.1.0.50", "fd10:0:0:1::50"];
/// A prefix of each family outside of the subnets of the VPC, and one of each inside a subnet.
const PREFIXES: [&str; 4] = ["10.244.1.0/24", "fd10:244:0:1::/64", "10.1.0.128/28", "fd10:0:0:1:8000::/68"];
/// A pod in each of them, with the length of its prefix.
const PODS: [&str; 4] = ["10.244.1.7/24", "fd10:244:0:1::7/64", "10.1.0.130/28", "fd10:0:0:1:8000::7/68"];
/// Hosts of the node: the second one has an IPv6 underlay only.
const OLD: &str = "host-b";
const NEW: &str = "host-c";
const STREAM: u16 = 7091;
const PPS: u64 = 300;
/// What no VM has.
const FOREIGN: [&str; 2] = ["10.1.0.77", "fd10:0:0:1::77"];
const FOREIGN_MAC: &str = "02:00:00:00:0f:0f";

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    secondary_addresses(&lab).await?;
    delegated_prefixes(&lab).await?;
    unprotected_port(&lab).await?;
    address_pairs::are_had_in_turn(&lab).await
}

/// Changes an instance, and waits until all nodes have the change.
pub async fn set(lab: &Lab, id: InstanceId, patch: &Value) -> Outcome {
    lab.api().update::<Instance>(id, patch, None).await?;
    lab.api().wait_programmed::<Instance>(id, PROGRAMMED).await?;
    Ok(())
}

/// Adds an address, given with or without a length, to an interface of a VM.
async fn add_address(lab: &Lab, vm: &str, address: &str, interface: &str) -> Outcome {
    let add = ["ip", "addr", "add", address, "dev", interface, "nodad"];
    // IPv4 has no duplicate address detection.
    execute(lab, vm, if address.contains(':') { &add } else { &add[..6] }).await
}

/// A running VM gets an address of each family, and loses it again.
async fn secondary_addresses(lab: &Lab) -> Outcome {
    let vm = lab.vm("web-3")?;
    for at in SECONDARY {
        add_address(lab, "web-3", at, "eth0").await?;
    }
    are_strangers(lab, "web-3", &SECONDARY).await?;
    set(lab, vm.id, &json!({ "secondary_addresses": SECONDARY })).await?;
    for at in SECONDARY {
        // On another host, and in a peered VPC on the same host and on another one.
        for from in ["web-1", "db-1", "db-2"] {
            answers(lab, from, at.parse()?, &[]).await?;
        }
        sends_from(lab, "web-3", at).await?;
    }
    set(lab, vm.id, &json!({ "secondary_addresses": [] })).await?;
    are_strangers(lab, "web-3", &SECONDARY).await?;
    for at in SECONDARY {
        execute(lab, "web-3", &["ip", "addr", "del", at, "dev", "eth0"]).await?;
    }
    Ok(())
}

/// Checks that a VM may not send from addresses that it has configured, and does not get the packets to them.
async fn are_strangers(lab: &Lab, vm: &str, addresses: &[&str]) -> Outcome {
    let to = lab.vm("web-1")?;
    for at in addresses {
        let target = address(to, at.contains(':'))?;
        counted(lab, "spoofed_ip", (vm, to.vni), target, &["-I", at]).await?;
    }
    let ways = addresses.iter().flat_map(|at| ["web-1", "db-1"].map(|from| (from, at)));
    try_join_all(ways.map(async |(from, at)| never_reaches(lab, from, at.parse()?).await)).await?;
    for vm in [vm, "web-1", "db-1"] {
        // Of the neighbors that were not found, they would drop the next packet as well.
        execute(lab, vm, &["ip", "neigh", "flush", "all"]).await?;
    }
    Ok(())
}

/// Checks that a VM may send from an address, to another host.
async fn sends_from(lab: &Lab, vm: &str, at: &str) -> Outcome {
    answers(lab, vm, address(lab.vm("web-1")?, at.contains(':'))?, &["-I", at]).await
}

/// The address of a pod.
fn pod(with_length: &str) -> &str {
    with_length.split('/').next().unwrap_or(with_length)
}

/// A Kubernetes node with its pods moves to another host.
async fn delegated_prefixes(lab: &Lab) -> Outcome {
    let node = lab.add_vm("node", "web", "front", OLD).await?;
    // A router that still accepts router advertisements keeps its default route.
    let code = "echo 2 >/proc/sys/net/ipv6/conf/eth0/accept_ra\n\
        echo 1 >/proc/sys/net/ipv6/conf/all/forwarding\n\
        echo 1 >/proc/sys/net/ipv4/ip_forward\n\
        ip link add pods type bridge\nip link set pods up\n";
    execute(lab, "node", &["sh", "-ec", code]).await?;
    for at in PODS {
        add_address(lab, "node", at, "pods").await?;
    }
    are_strangers(lab, "node", &PODS.map(pod)).await?;
    set(lab, node.id, &json!({ "delegated_prefixes": PREFIXES })).await?;
    let (outside, inside) = PODS.split_at(2);
    let alone = outside.iter().map(async |at| never_reaches(lab, "db-1", pod(at).parse()?).await);
    try_join_all(alone).await?;
    routes_by_peering(lab, &PREFIXES[..2]).await?;
    has_its_pods(lab).await?;
    goes_direct(lab, &node).await?;
    let moved = lab.begin_move("node", &node, NEW).await?;
    lab.end_move(&moved).await?;
    has_its_pods(lab).await?;
    set(lab, node.id, &json!({ "delegated_prefixes": PREFIXES[2..] })).await?;
    are_strangers(lab, "node", &[pod(outside[0]), pod(outside[1])]).await?;
    for at in inside {
        answers(lab, "web-1", pod(at).parse()?, &[]).await?;
    }
    set(lab, node.id, &json!({ "delegated_prefixes": [] })).await?;
    are_strangers(lab, "node", &PODS.map(pod)).await?;
    lab.api().delete::<Instance>(node.id, None).await?;
    Ok(lab.unplug_vm("node").await?)
}

/// Gives the peered VPC routes to prefixes outside of subnets.
async fn routes_by_peering(lab: &Lab, prefixes: &[&str]) -> Outcome {
    let peering = lab.api().find::<Peering>("web-db", &[]).await?.id;
    let vpc = lab.vpc("db")?.id.to_string();
    let tables = lab.api().list::<RouteTable>(&[("vpc", &vpc)], None).await?;
    let table = tables.first().ok_or_else(|| Failure::new("VPC db has no route table"))?.id;
    for prefix in prefixes {
        let new = NewRoute { destination: prefix.parse()?, target: RouteTarget::Peering(peering) };
        let route = lab.api().create(table, &new).await?.object;
        lab.api().wait_programmed::<sluice_client::Route>(route.id, PROGRAMMED).await?;
    }
    Ok(())
}

/// Every pod is reached from both hosts and from the peered VPC, and may send.
async fn has_its_pods(lab: &Lab) -> Outcome {
    for at in PODS.map(pod) {
        for from in ["web-1", "web-3", "db-1"] {
            answers(lab, from, at.parse()?, &[]).await?;
        }
        sends_from(lab, "node", at).await?;
    }
    Ok(())
}

/// Elephants to all pods go to the host of their node, and lose nothing when they change their path.
async fn goes_direct(lab: &Lab, node: &VmState) -> Outcome {
    let ways = PODS.iter().map(|at| Ok(("web-1", "node", pod(at).parse::<IpAddr>()?)));
    let ways = ways.collect::<Result<Vec<_>, Failure>>()?;
    let host = lab.state().topology.hosts.iter().find(|host| host.name == node.host);
    let vtep = host.ok_or_else(|| Failure::new("the node has no host"))?.vtep().to_string();
    let sender = lab.vm("web-1")?;
    let streams = Streams::to(lab, &ways, STREAM, PPS).await?;
    eventually(LEARNED, || async {
        for (.., at) in &ways {
            let path = path_to(lab, &sender.host, sender.vni, *at).await?;
            let leads = path.as_ref().is_some_and(|path| path["host"] == vtep && path["installed"] == true);
            ensure!(leads, "{} has no path to {at} by {vtep}: {path:?}", sender.host);
        }
        Ok(())
    })
    .await?;
    streams.end().await
}

/// A port that is not protected sends from foreign addresses, with a foreign MAC address.
async fn unprotected_port(lab: &Lab) -> Outcome {
    let vm = lab.vm("web-2")?;
    for at in FOREIGN {
        add_address(lab, "web-2", at, "eth0").await?;
    }
    set(lab, vm.id, &json!({ "spoofing_protection": false })).await?;
    execute(lab, "web-2", &["ip", "link", "set", "eth0", "address", FOREIGN_MAC]).await?;
    for at in FOREIGN {
        arrives_from(lab, at).await?;
    }
    set(lab, vm.id, &json!({ "spoofing_protection": true })).await?;
    let target = |at: &str| address(lab.vm("web-3")?, at.contains(':'));
    for at in FOREIGN {
        counted(lab, "spoofed_mac", ("web-2", vm.vni), target(at)?, &["-I", at]).await?;
    }
    execute(lab, "web-2", &["ip", "link", "set", "eth0", "address", &vm.mac.to_string()]).await?;
    for at in FOREIGN {
        counted(lab, "spoofed_ip", ("web-2", vm.vni), target(at)?, &["-I", at]).await?;
        execute(lab, "web-2", &["ip", "addr", "del", at, "dev", "eth0"]).await?;
    }
    Ok(())
}

/// Checks that web-3 receives packets of web-2 from an address.
async fn arrives_from(lab: &Lab, at: &str) -> Outcome {
    let target = address(lab.vm("web-3")?, at.contains(':'))?;
    let filter = format!("src host {at} and (icmp or icmp6) and ether src {FOREIGN_MAC}");
    let argv = ["timeout", "10", "tcpdump", "-nn", "-i", "eth0", "--immediate-mode", "-c", "3", &filter];
    let mut capture = lab.command("web-3", &argv)?.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    // No answer arrives: answers are sent to the address, which is not the port's.
    ping(lab, "web-2", target, &["-c", "15", "-i", "0.2", "-W", "0.2", "-I", at]).await?;
    ensure!(capture.wait().await?.success(), "no packet from {at} of {FOREIGN_MAC} has arrived at {target}");
    Ok(())
}
