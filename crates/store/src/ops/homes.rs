//! One vIP gets another home, as the scheduler decides.

use super::placement::{next_plan, save_plan};
use crate::rows::{find, get};
use crate::write::Write;
use crate::{Change, Cluster, Gateway, Result};
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
    let fits = |gateway: &Gateway| {
        let has_vtep = if address.is_ipv4() { gateway.vtep4.is_some() } else { gateway.vtep6.is_some() };
        gateway.id == to && !gateway.retires() && has_vtep
    };
    let vip = cluster.vips.iter_mut().find(|vip| vip.address == address && vip.home == Some(from));
    let Some(vip) = vip.filter(|_| gateways.iter().any(fits)) else { return Ok(false) };
    vip.home = Some(to);
    cluster.plan_revision = next_plan(&cluster, w.revision);
    save_plan(w, &cluster).await?;
    w.push(&Change::ClusterUpserted { cluster, gateways })?;
    Ok(true)
}
