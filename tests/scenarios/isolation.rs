//! Two tenants with equal IPv4, IPv6 and MAC addresses: packets reach their own
//! tenant's VM only; what only the other tenant has is out of reach.

use crate::Ground;
use crate::support::{Outcome, Probe, address, drops, ensure, eventually, never_reaches, who};
use std::net::SocketAddr;
use std::time::Duration;

const PORT: u16 = 7007;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    for (ours, theirs) in [("web-1", "shop-1"), ("web-3", "shop-2")] {
        let (ours, theirs) = (lab.vm(ours)?, lab.vm(theirs)?);
        ensure!(ours.addresses() == theirs.addresses(), "{ours:?} and {theirs:?} are not equal");
    }
    let mut listeners = Vec::new();
    for name in ["web-1", "shop-1", "web-3", "shop-2"] {
        for at in lab.vm(name)?.addresses() {
            let at = SocketAddr::new(at, PORT).to_string();
            listeners.push(Probe::listening(lab, name, &["echo", &at, name]).await?);
        }
    }
    // Same host, across hosts, across underlays.
    let cases = [
        ("web-2", "web-1"),
        ("web-3", "web-1"),
        ("web-1", "web-3"),
        ("db-2", "web-3"),
        ("shop-2", "shop-1"),
        ("shop-1", "shop-2"),
        ("shop-3", "shop-1"),
    ];
    for (from, to) in cases {
        for at in lab.vm(to)?.addresses() {
            for protocol in ["udp", "tcp"] {
                let name = who(lab, from, protocol, SocketAddr::new(at, PORT)).await?;
                ensure!(
                    name.as_deref() == Some(to),
                    "{from} asked {to} by {protocol}, {name:?} answered at {at}"
                );
            }
        }
    }
    for ipv6 in [false, true] {
        let vni = lab.vm("db-1")?.vni;
        let before = drops(lab, vni, "no_route").await?;
        // VPC web has a route to the Internet, where no host has the address.
        for from in ["db-1", "web-1", "web-2"] {
            never_reaches(lab, from, address(lab.vm("shop-3")?, ipv6)?).await?;
        }
        never_reaches(lab, "shop-3", address(lab.vm("db-1")?, ipv6)?).await?;
        eventually(Duration::from_secs(2), async || {
            let more = drops(lab, vni, "no_route").await? - before;
            ensure!(more >= 3.0, "only {more} of 3 packets to the other tenant were counted as no_route");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
