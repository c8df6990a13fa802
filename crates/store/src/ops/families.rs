//! Hosts send to a cluster's vIPs of their own underlay family, so a cluster must have
//! vIPs of each family that hosts of its VPCs have, and each of its gateways, as any may
//! take over any vIP, a VTEP of each family of the vIPs. What this module refuses would
//! be committed, and forward nothing.

use crate::backend::Query;
use crate::rows::{Record, get};
use crate::value::args;
use crate::{Cluster, Conflict, Gateway, Host, Result, Vpc};
use sluice_types::VpcId;

fn name(ipv4: bool) -> &'static str {
    if ipv4 { "IPv4" } else { "IPv6" }
}

fn has(cluster: &Cluster, ipv4: bool) -> bool {
    cluster.vips.iter().any(|vip| vip.address.is_ipv4() == ipv4)
}

/// That a host can send to a cluster what instances of a VPC say.
///
/// # Errors
/// [`Conflict::NoVipForHost`].
pub(crate) fn fits(cluster: &Cluster, vpc: &str, host: &Host) -> Result<()> {
    let ipv4 = host.vtep.is_ipv4();
    if has(cluster, ipv4) {
        return Ok(());
    }
    Err(Conflict::NoVipForHost {
        cluster: cluster.name.clone(),
        family: name(ipv4),
        host: host.name.clone(),
        vtep: host.vtep.to_string(),
        vpc: vpc.to_owned(),
    }
    .into())
}

/// That a gateway can have each of a cluster's vIPs.
///
/// # Errors
/// [`Conflict::FamilyMissing`].
pub(crate) fn fits_gateway(cluster: &Cluster, gateway: &Gateway) -> Result<()> {
    for ipv4 in [true, false] {
        if !gateway.has_family(ipv4) && has(cluster, ipv4) {
            let (gateway, cluster) = (gateway.name.clone(), cluster.name.clone());
            return Err(Conflict::FamilyMissing { gateway, cluster, family: name(ipv4) }.into());
        }
    }
    Ok(())
}

/// The clusters that have a VPC: one, or two while it moves.
pub(crate) async fn clusters(q: &mut dyn Query, vpc: &Vpc) -> Result<Vec<Cluster>> {
    let mut clusters = Vec::new();
    for id in vpc.clusters() {
        clusters.push(get(q, id).await?);
    }
    Ok(clusters)
}

/// As [`fits`], for all hosts that have instances of the VPC.
pub(crate) async fn fits_vpc(q: &mut dyn Query, cluster: &Cluster, vpc: &Vpc) -> Result<()> {
    let of = "SELECT host FROM instances WHERE vpc = $1";
    for ipv4 in [true, false].into_iter().filter(|ipv4| !has(cluster, *ipv4)) {
        if let Some(host) = host_of(q, ipv4, of, vpc.id.get()).await? {
            return fits(cluster, &vpc.name, &host);
        }
    }
    Ok(())
}

/// As [`fits`] and [`fits_gateway`], for all VPCs and gateways that the cluster has or is about to have;
/// `cluster` is as it shall be and `before` as it was: what did not fit then is not its change's fault.
pub(crate) async fn fits_still(q: &mut dyn Query, before: &Cluster, cluster: &Cluster) -> Result<()> {
    let of = "SELECT i.host FROM instances i JOIN vpcs v ON v.id = i.vpc \
              WHERE v.cluster = $1 OR v.moving_to = $1";
    for ipv4 in [true, false].into_iter().filter(|ipv4| has(before, *ipv4) && !has(cluster, *ipv4)) {
        let Some(host) = host_of(q, ipv4, of, cluster.id.get()).await? else { continue };
        let sql = "SELECT v.id FROM vpcs v JOIN instances i ON i.vpc = v.id \
                   WHERE (v.cluster = $1 OR v.moving_to = $1) AND i.host = $2 ORDER BY v.id LIMIT 1";
        if let Some(row) = q.row(sql, args![cluster.id.get(), host.id.get()]).await? {
            let vpc: Vpc = get(q, VpcId::new(row.number(0)?)).await?;
            return fits(cluster, &vpc.name, &host);
        }
    }
    for (ipv4, vtep) in [(true, "vtep4"), (false, "vtep6")] {
        if has(before, ipv4) || !has(cluster, ipv4) {
            continue;
        }
        let columns = Gateway::COLUMNS;
        let sql = format!(
            "SELECT {columns} FROM gateways WHERE (cluster = $1 OR other_cluster = $1 AND joined = 0) \
             AND {vtep} IS NULL ORDER BY id LIMIT 1"
        );
        if let Some(row) = q.row(&sql, args![cluster.id.get()]).await? {
            return fits_gateway(cluster, &Gateway::decode(&row)?);
        }
    }
    Ok(())
}

/// The first host of a family among those that a query names.
async fn host_of(q: &mut dyn Query, ipv4: bool, of: &str, id: u64) -> Result<Option<Host>> {
    // An IPv6 address is the one that has colons.
    let like = if ipv4 { "NOT LIKE" } else { "LIKE" };
    let columns = Host::COLUMNS;
    let sql =
        format!("SELECT {columns} FROM hosts WHERE vtep {like} '%:%' AND id IN ({of}) ORDER BY id LIMIT 1");
    q.row(&sql, args![id]).await?.map(|row| Host::decode(&row)).transpose()
}
