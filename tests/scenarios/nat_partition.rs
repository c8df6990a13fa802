//! The owner of a NAT gateway's vIP and the other gateways do not hear from each other for some seconds, while hosts, the Internet and
//! the controller reach all of them. So two gateways translate, until the owner finds that it is cut off. The connections of VMs to the Internet go on,
//! each by the public port that it has, and no public port has two meanings.
//!
//! Catches: two owners that give out one port; a loser whose connections are lost when the network is whole; copies of one
//! connection that differ.

use crate::Ground;
use crate::internet::copy;
use crate::nat::{owner_of, sessions_of};
use crate::nat_failover::{
    PUBLIC, TAKEN_OVER, VMS, established, everything_is_copied, new_connections_work, same_ports,
    under_traffic,
};
use crate::support::{Failure, Outcome, ensure, ensure_timely, eventually, execute};
use sluice_lab::Lab;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Until one of the two owners gives the vIP up, and its connections are at the other one.
const HEALED: Duration = Duration::from_secs(15);
/// While each side believes the other one dead, the vIP changes its owner some times, for 3 s at hello intervals of 100 ms. A connection that begins
/// in this time may fail: its first packet and the repetition get two ports. The VM notices after 5 s, and begins another one.
const SETTLED: Duration = Duration::from_secs(20);
/// New connections of each VM while the network is split.
const ROUNDS: usize = 5;

pub async fn scenario(ground: &Ground) -> Outcome {
    under_traffic(ground, split_and_heal).await.map(drop)
}

/// What happens under the downloads.
async fn split_and_heal(lab: &Lab, at: SocketAddr) -> Outcome {
    let ports = established(lab).await?;
    let owner = owner_of(lab, PUBLIC).await?;
    let before = owned(lab).await?;

    execute(lab, &owner, &["nft", &silence(lab, &owner)]).await?;
    eventually(TAKEN_OVER, async || {
        let now = owned(lab).await?;
        ensure!(now > before, "{now} NAT gateways are owned, {before} before the network was split");
        Ok(())
    })
    .await?;
    // The one that hears no other gives the vIP up meanwhile.
    eventually(SETTLED, async || new_connections_work(lab, at, "the network is split").await).await?;
    for _ in 1..ROUNDS {
        new_connections_work(lab, at, "the network is still split").await?;
    }

    execute(lab, &owner, &["nft", "delete table inet split"]).await?;
    eventually(HEALED, async || {
        let now = owned(lab).await?;
        ensure!(now == before, "{now} NAT gateways are owned, {before} before the network was split");
        Ok(())
    })
    .await?;
    everything_is_copied(lab).await?;
    for gateway in &lab.state().topology.gateways {
        same_ports(lab, &gateway.name, &ports, "the network is whole").await?;
    }
    no_port_has_two_meanings(lab).await?;
    new_connections_work(lab, at, "the network is whole").await?;
    for vm in VMS {
        ensure_timely!(copy(lab, vm, false).exists(), "{vm} had its file before everything had happened");
    }
    Ok(())
}

/// Rules by which a gateway exchanges no message with the other ones. Tunnels do not pass through them.
fn silence(lab: &Lab, gateway: &str) -> String {
    let others = lab.state().topology.gateways.iter().filter(|other| other.name != gateway);
    let (mut input, mut output) = (String::new(), String::new());
    let addresses = others
        .flat_map(|other| [other.ipv4.map(IpAddr::from), other.ipv6.map(IpAddr::from)].into_iter().flatten());
    for address in addresses {
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        input += &format!("{family} saddr {address} meta l4proto udp drop; ");
        output += &format!("{family} daddr {address} meta l4proto udp drop; ");
    }
    format!(
        "table inet split {{
            chain in {{ type filter hook input priority 0; {input} }}
            chain out {{ type filter hook output priority 0; {output} }}
        }}"
    )
}

/// How many NAT gateways the gateways own, together.
async fn owned(lab: &Lab) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for gateway in &lab.state().topology.gateways {
        sum += lab.metrics(&gateway.name).await?.sum("sluice_nat_gateways_owned", &[]);
    }
    Ok(sum)
}

/// Each public port belongs to one port of one VM, whichever gateway is asked.
async fn no_port_has_two_meanings(lab: &Lab) -> Outcome {
    let mut meanings = BTreeMap::new();
    for gateway in &lab.state().topology.gateways {
        for session in sessions_of(lab, &gateway.name, &["--outside", PUBLIC]).await? {
            let [outside, inside] =
                [["protocol", "outside_address", "outside_port"], ["vni", "inside_address", "inside_port"]]
                    .map(|keys| keys.map(|key| session[key].to_string()).join(" "));
            let first = meanings.entry(outside.clone()).or_insert_with(|| inside.clone());
            ensure!(*first == inside, "{outside} is {first} and at {} {inside}", gateway.name);
        }
    }
    ensure!(meanings.len() >= 2 * VMS.len(), "there are only {meanings:?}");
    Ok(())
}
