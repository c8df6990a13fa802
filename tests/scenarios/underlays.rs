//! A host on an IPv6 underlay and hosts on an IPv4 underlay: the gateway changes the outer address family,
//! whatever the family of the tenant's packets.

use crate::Ground;
use crate::support::{Outcome, ensure, reaches};

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let hosts = &lab.state().topology.hosts;
    let ipv6_only = |name: &str| hosts.iter().any(|host| host.name == name && host.ipv4.is_none());
    ensure!(ipv6_only(&lab.vm("db-2")?.host), "db-2 is not on an IPv6 underlay");
    ensure!(!ipv6_only(&lab.vm("db-1")?.host), "db-1 is not on an IPv4 underlay");
    reaches(lab, "db-1", "db-2").await?;
    reaches(lab, "db-2", "db-1").await?;
    // Between peered VPCs and different underlays at the same time.
    reaches(lab, "web-1", "db-2").await?;
    reaches(lab, "shop-3", "shop-1").await
}
