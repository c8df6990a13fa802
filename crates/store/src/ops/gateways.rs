//! Gateways: creation, drain, deletion. Moves between clusters are in `gateway_moves.rs`.

use super::clusters::{VPC_ON_CLUSTER, publish_assignment};
use super::removals::{self, Hold};
use super::underlay::{claim, release};
use super::{check_unused, events, families, keys, southbound};
use crate::check::{self, Difference};
use crate::rows::{check_revision, find_one, get};
use crate::value::args;
use crate::write::Write;
use crate::{Cluster, Conflict, Created, Gateway, NewGateway, Result};
use serde_json::json;
use sluice_types::GatewayId;
use std::net::IpAddr;

pub(crate) async fn create(w: &mut Write, new: &NewGateway) -> Result<Created<Gateway>> {
    check::name("gateway", &new.name)?;
    let vteps: Vec<IpAddr> = new.vtep4.map(IpAddr::V4).into_iter().chain(new.vtep6.map(IpAddr::V6)).collect();
    if vteps.is_empty() {
        return Err(check::invalid("vtep4", "a gateway needs an IPv4 or an IPv6 VTEP address"));
    }
    for vtep in &vteps {
        check::underlay(*vtep)?;
    }
    let cluster: Cluster = get(w.q(), new.cluster).await?;
    if let Some(existing) = find_one::<Gateway>(w.q(), vec![("name", new.name.as_str().into())]).await? {
        Difference::default()
            .field("cluster", existing.cluster, new.cluster)
            .optional("vtep4", existing.vtep4, new.vtep4)
            .optional("vtep6", existing.vtep6, new.vtep6)
            .conflict("gateway", &new.name)?;
        return Ok(Created::Existing(existing));
    }
    let gateway = Gateway {
        id: GatewayId::new(w.id()),
        name: new.name.clone(),
        cluster: new.cluster,
        vtep4: new.vtep4,
        vtep6: new.vtep6,
        draining: false,
        moving: None,
        revision: w.revision,
    };
    families::check_gateway(&cluster, &gateway)?;
    let (id, vtep4, vtep6) =
        (gateway.id.get(), new.vtep4.map(|a| a.to_string()), new.vtep6.map(|a| a.to_string()));
    claim(w.q(), &vteps, "gateway", id, &new.name).await?;
    let sql =
        "INSERT INTO gateways (id, name, cluster, vtep4, vtep6, revision) VALUES ($1, $2, $3, $4, $5, $6)";
    let revision = w.revision;
    w.q().run(sql, args![id, new.name.as_str(), new.cluster.get(), vtep4, vtep6, revision]).await?;
    publish_assignment(w, cluster, &[gateway.id]).await?;
    Ok(Created::New(gateway))
}

/// True if another gateway of the same cluster neither drains nor leaves.
pub(super) async fn has_staying_peer(w: &mut Write, gateway: &Gateway) -> Result<bool> {
    let sql = "SELECT id FROM gateways WHERE cluster = $1 AND id <> $2 AND draining = 0 \
               AND (other_cluster IS NULL OR joined = 1) LIMIT 1";
    w.q().any(sql, args![gateway.cluster.get(), gateway.id.get()]).await
}

pub(crate) async fn drain(
    w: &mut Write,
    id: GatewayId,
    draining: bool,
    expected: Option<u64>,
) -> Result<Gateway> {
    let mut gateway: Gateway = get(w.q(), id).await?;
    check_revision(id, &gateway, expected)?;
    if gateway.draining == draining {
        return Ok(gateway);
    }
    if draining && !has_staying_peer(w, &gateway).await? {
        return Err(Conflict::LastGateway { gateway: gateway.name }.into());
    }
    gateway.draining = draining;
    gateway.revision = w.revision;
    let sql = "UPDATE gateways SET draining = $2, revision = $3 WHERE id = $1";
    w.q().run(sql, args![id.get(), draining, gateway.revision]).await?;
    let cluster: Cluster = get(w.q(), gateway.cluster).await?;
    let details = json!({"cluster": cluster.id.to_string(), "revision": w.revision});
    let (kind, text) = if draining {
        ("gateway_draining", "gives its vIPs to the other gateways of cluster")
    } else {
        ("gateway_undrained", "can own vIPs again in cluster")
    };
    let text = format!("gateway `{}` {text} `{}`", gateway.name, cluster.name);
    events::record(w, kind, &id, text, details).await?;
    let newcomers: &[GatewayId] = if gateway.is_retiring() { &[] } else { &[id] };
    publish_assignment(w, cluster, newcomers).await?;
    Ok(gateway)
}

pub(crate) async fn delete(w: &mut Write, id: GatewayId, expected: Option<u64>) -> Result<u64> {
    let gateway: Gateway = get(w.q(), id).await?;
    check_revision(id, &gateway, expected)?;
    let others = "SELECT id FROM gateways WHERE cluster = $1 AND id <> $2 \
                  AND (other_cluster IS NULL OR joined = 1) LIMIT 1";
    if !w.q().any(others, args![gateway.cluster.get(), id.get()]).await? {
        // It is the last gateway that forwards for the VPCs of the cluster.
        let object = ("gateway", gateway.name.as_str(), gateway.cluster.get());
        check_unused(w.q(), object, "VPC", VPC_ON_CLUSTER).await?;
    }
    release(w.q(), id.get()).await?;
    w.q().run("DELETE FROM gateways WHERE id = $1", args![id.get()]).await?;
    if southbound::forget_node(w.q(), "gateway", id.get()).await? {
        // It may have been a member of other clusters and have their keys, too.
        keys::request_renewal_of_all(w).await?;
    }
    let cluster = get(w.q(), gateway.cluster).await?;
    publish_assignment(w, cluster, &[]).await?;
    let nodes = removals::clusters_and_hosts(w.q(), gateway.clusters()).await?;
    let vteps = gateway.vtep4.map(IpAddr::V4).into_iter().chain(gateway.vtep6.map(IpAddr::V6));
    let holds: Vec<_> = vteps.map(Hold::Underlay).collect();
    removals::record(w, ("gateway", id.get(), &gateway.name), nodes, &holds).await
}
