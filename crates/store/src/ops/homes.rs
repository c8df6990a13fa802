//! One vIP gets another home, as the scheduler decides; a cluster gets another hello interval.

use super::events;
use super::placement::{next_plan, replan, save_plan};
use crate::check;
use crate::rows::{check_revision, find, get};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Cluster, Gateway, Result};
use serde_json::json;
use sluice_types::{ClusterId, GatewayId};
use std::net::IpAddr;

/// Gives a vIP whose home is `from` the home `to`. False, and nothing changes, if its home is another, or
/// `to` is no gateway of the cluster, is draining, or has no VTEP of the vIP's family.
pub(crate) async fn move_home(
    w: &mut Write,
    id: ClusterId,
    address: IpAddr,
    from: GatewayId,
    to: GatewayId,
) -> Result<bool> {
    let mut cluster: Cluster = get(w.q(), id).await?;
    let gateways: Vec<Gateway> = find(w.q(), vec![("cluster", id.get().into())]).await?;
    let fits =
        |gateway: &Gateway| gateway.id == to && !gateway.retires() && gateway.has_family(address.is_ipv4());
    let vip = cluster.vips.iter_mut().find(|vip| vip.address == address && vip.home == Some(from));
    let Some(vip) = vip.filter(|_| gateways.iter().any(fits)) else { return Ok(false) };
    vip.home = Some(to);
    cluster.plan_revision = next_plan(&cluster, w.revision);
    save_plan(w, &cluster).await?;
    w.push(&Change::ClusterUpserted { cluster, gateways })?;
    Ok(true)
}

/// Sets how often the gateways of a cluster say hello to each other.
pub(crate) async fn set_hello(
    w: &mut Write,
    id: ClusterId,
    hello_ms: u16,
    expected: Option<u64>,
) -> Result<Cluster> {
    check::hello(hello_ms)?;
    let mut cluster: Cluster = get(w.q(), id).await?;
    check_revision(id, &cluster, expected)?;
    if cluster.hello_ms == hello_ms {
        return Ok(cluster);
    }
    let text = format!(
        "gateways of cluster `{}` say hello every {hello_ms} ms, not every {} ms any more",
        cluster.name, cluster.hello_ms
    );
    events::note(w, "cluster_hello", &id, text, json!({"from": cluster.hello_ms, "to": hello_ms})).await?;
    cluster.hello_ms = hello_ms;
    cluster.revision = w.revision;
    let sql = "UPDATE clusters SET hello_ms = $2 WHERE id = $1";
    w.q().run(sql, args![id.get(), u64::from(hello_ms)]).await?;
    replan(w, cluster, &[]).await
}
