//! Checks of address families in the underlay. A host sends to the vIPs of its own family, so a cluster must
//! have vIPs of each family that the hosts of its VPCs have. Any gateway may take over any vIP, so each
//! gateway of a cluster must have a VTEP of each family that the vIPs have. Without these checks a change
//! would be committed that forwards no packets.

use crate::backend::Query;
use crate::rows::{Record, get};
use crate::value::args;
use crate::{Cluster, Conflict, Gateway, Host, Result, Vpc};
use sluice_types::VpcId;

fn family_name(ipv4: bool) -> &'static str {
    if ipv4 { "IPv4" } else { "IPv6" }
}

fn has_vip_of(cluster: &Cluster, ipv4: bool) -> bool {
    cluster.vips.iter().any(|vip| vip.address.is_ipv4() == ipv4)
}

/// Checks that a host can send the packets of a VPC to a cluster.
///
/// # Errors
/// [`Conflict::NoVipForHost`].
pub(crate) fn check_host(cluster: &Cluster, vpc: &str, host: &Host) -> Result<()> {
    let ipv4 = host.vtep.is_ipv4();
    if has_vip_of(cluster, ipv4) {
        return Ok(());
    }
    Err(Conflict::NoVipForHost {
        cluster: cluster.name.clone(),
        family: family_name(ipv4),
        host: host.name.clone(),
        vtep: host.vtep.to_string(),
        vpc: vpc.to_owned(),
    }
    .into())
}

/// Checks that a gateway can own each vIP of a cluster.
///
/// # Errors
/// [`Conflict::FamilyMissing`].
pub(crate) fn check_gateway(cluster: &Cluster, gateway: &Gateway) -> Result<()> {
    for ipv4 in [true, false] {
        if !gateway.has_family(ipv4) && has_vip_of(cluster, ipv4) {
            let (gateway, cluster) = (gateway.name.clone(), cluster.name.clone());
            return Err(Conflict::FamilyMissing { gateway, cluster, family: family_name(ipv4) }.into());
        }
    }
    Ok(())
}

/// The clusters that have the entries of a VPC: one, or two while it moves.
pub(crate) async fn clusters(q: &mut dyn Query, vpc: &Vpc) -> Result<Vec<Cluster>> {
    let mut clusters = Vec::new();
    for id in vpc.clusters() {
        clusters.push(get(q, id).await?);
    }
    Ok(clusters)
}

/// [`check_host`] for all hosts that have ports of the VPC.
pub(crate) async fn check_vpc(q: &mut dyn Query, cluster: &Cluster, vpc: &Vpc) -> Result<()> {
    let hosts = "SELECT host FROM instances WHERE vpc = $1 UNION SELECT host FROM vnics WHERE vpc = $1";
    for ipv4 in [true, false].into_iter().filter(|ipv4| !has_vip_of(cluster, *ipv4)) {
        if let Some(host) = first_host(q, ipv4, hosts, vpc.id.get()).await? {
            return check_host(cluster, &vpc.name, &host);
        }
    }
    Ok(())
}

/// [`check_host`] and [`check_gateway`] for all VPCs and gateways that the cluster has or that are moving to
/// it, when its vIPs change. `before` is the cluster before the change: what did not fit then is not refused
/// now.
pub(crate) async fn check_vip_change(q: &mut dyn Query, before: &Cluster, cluster: &Cluster) -> Result<()> {
    let hosts = "SELECT i.host FROM instances i JOIN vpcs v ON v.id = i.vpc \
              WHERE v.cluster = $1 OR v.moving_to = $1 \
              UNION SELECT n.host FROM vnics n JOIN vpcs v ON v.id = n.vpc \
              WHERE v.cluster = $1 OR v.moving_to = $1";
    for ipv4 in
        [true, false].into_iter().filter(|ipv4| has_vip_of(before, *ipv4) && !has_vip_of(cluster, *ipv4))
    {
        let Some(host) = first_host(q, ipv4, hosts, cluster.id.get()).await? else { continue };
        let sql = "SELECT v.id FROM vpcs v JOIN \
                   (SELECT vpc FROM instances WHERE host = $2 UNION SELECT vpc FROM vnics WHERE host = $2) p \
                   ON p.vpc = v.id WHERE v.cluster = $1 OR v.moving_to = $1 ORDER BY v.id LIMIT 1";
        if let Some(row) = q.row(sql, args![cluster.id.get(), host.id.get()]).await? {
            let vpc: Vpc = get(q, VpcId::new(row.number(0)?)).await?;
            return check_host(cluster, &vpc.name, &host);
        }
    }
    for (ipv4, vtep) in [(true, "vtep4"), (false, "vtep6")] {
        if has_vip_of(before, ipv4) || !has_vip_of(cluster, ipv4) {
            continue;
        }
        let columns = Gateway::COLUMNS;
        let sql = format!(
            "SELECT {columns} FROM gateways WHERE (cluster = $1 OR other_cluster = $1 AND joined = 0) \
             AND {vtep} IS NULL ORDER BY id LIMIT 1"
        );
        if let Some(row) = q.row(&sql, args![cluster.id.get()]).await? {
            return check_gateway(cluster, &Gateway::decode(&row)?);
        }
    }
    Ok(())
}

/// The first host of a family among those that the query `hosts` selects by `id`.
async fn first_host(q: &mut dyn Query, ipv4: bool, hosts: &str, id: u64) -> Result<Option<Host>> {
    // Only IPv6 addresses contain colons.
    let like = if ipv4 { "NOT LIKE" } else { "LIKE" };
    let columns = Host::COLUMNS;
    let sql = format!(
        "SELECT {columns} FROM hosts WHERE vtep {like} '%:%' AND id IN ({hosts}) ORDER BY id LIMIT 1"
    );
    q.row(&sql, args![id]).await?.map(|row| Host::decode(&row)).transpose()
}
