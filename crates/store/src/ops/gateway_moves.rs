//! Moves of gateways between clusters, make before break. Each step is one transaction; the controller
//! decides when a step is due (`crates/controller/src/moves/gateways.rs`).
//!
//! ```text
//!              start                      advance                        advance
//!  member of A -----> leaving A --------------------------> joined B ---------------> member of B
//!      ^              has the entries of A and B,           has the entries           has the entries
//!      |              gives its vIPs away                   of A and B                of B
//!      |                   |                                   |
//!      +-------------------+                                   | start with A:
//!        reversed: start with A, or no other                   v a new move
//!        gateway is left for the VPCs of A                 leaving B
//! ```
//!
//! Until the gateway has joined B, the move can be reversed. After that, going back to A is a new move, which
//! starts with the entries of both clusters present.

use super::clusters::{VPC_ON_CLUSTER, publish_assignment};
use super::gateways::has_staying_peer;
use super::{events, families};
use crate::rows::{check_revision, get};
use crate::value::args;
use crate::write::Write;
use crate::{Cluster, Conflict, Gateway, GatewayMove, Result};
use serde_json::json;
use sluice_types::{ClusterId, GatewayId};

/// Event kinds.
const STARTED: &str = "gateway_move_started";
const REVERSED: &str = "gateway_move_reversed";
const JOINED: &str = "gateway_move_joined";
const MOVED: &str = "gateway_moved";

async fn save(w: &mut Write, gateway: &mut Gateway) -> Result<()> {
    gateway.revision = w.revision;
    let other = gateway.moving.map(|moving| moving.other.get() as i64);
    let (id, joined) = gateway.moving.map_or((0, false), |moving| (moving.id, moving.joined));
    let sql = "UPDATE gateways SET cluster = $2, other_cluster = $3, joined = $4, move_id = $5, revision = $6 \
               WHERE id = $1";
    let values = args![gateway.id.get(), gateway.cluster.get(), other, joined, id, gateway.revision];
    w.q().run(sql, values).await.map(drop)
}

/// Records an event about a move.
async fn record(
    w: &mut Write,
    kind: &str,
    gateway: &Gateway,
    (from, to): (&Cluster, &Cluster),
    reason: &str,
) -> Result<()> {
    let (name, from_name, to_name) = (&gateway.name, &from.name, &to.name);
    let text = match kind {
        STARTED => format!(
            "gateway `{name}` starts to move from cluster `{from_name}` to `{to_name}`: it receives the entries of \
             `{to_name}` and gives its vIPs away"
        ),
        REVERSED => {
            format!("gateway `{name}` stays in cluster `{from_name}`, its move to `{to_name}` is reversed")
        }
        JOINED => format!("gateway `{name}` has left cluster `{from_name}` and joined `{to_name}`"),
        _ => format!("gateway `{name}` has moved from cluster `{from_name}` to `{to_name}`"),
    };
    let details = json!({
        "from": from.id.to_string(), "to": to.id.to_string(), "reason": reason, "revision": w.revision,
    });
    events::record(w, kind, &gateway.id, format!("{text} (reason: {reason})"), details).await
}

/// The gateway as the list of newcomers of its cluster; empty if it must own no vIP.
fn as_newcomer(gateway: &Gateway) -> Vec<GatewayId> {
    if gateway.is_retiring() { Vec::new() } else { vec![gateway.id] }
}

/// True if the cluster of the gateway has VPCs, and no other gateway to forward for them.
async fn is_last_for_vpcs(w: &mut Write, gateway: &Gateway) -> Result<bool> {
    Ok(!has_staying_peer(w, gateway).await?
        && w.q().any(VPC_ON_CLUSTER, args![gateway.cluster.get()]).await?)
}

/// Starts a move, or reverses the move that is in progress.
pub(crate) async fn start(
    w: &mut Write,
    id: GatewayId,
    to: ClusterId,
    reason: &str,
    expected: Option<u64>,
) -> Result<Gateway> {
    let gateway: Gateway = get(w.q(), id).await?;
    check_revision(id, &gateway, expected)?;
    let target: Cluster = get(w.q(), to).await?;
    match gateway.moving {
        None if gateway.cluster == to => return Ok(gateway),
        None => {}
        Some(GatewayMove { other, joined: false, .. }) if other == to => return Ok(gateway),
        Some(GatewayMove { joined: true, .. }) if gateway.cluster == to => return Ok(gateway),
        Some(GatewayMove { joined: false, .. }) if gateway.cluster == to => {
            return reverse(w, gateway, reason).await;
        }
        Some(GatewayMove { other, joined: true, .. }) if other == to => {}
        Some(GatewayMove { other, joined, .. }) => {
            let destination = if joined { gateway.cluster } else { other };
            let to = get::<Cluster>(w.q(), destination).await?.name;
            return Err(Conflict::GatewayMoves { gateway: gateway.name, to }.into());
        }
    }
    families::check_gateway(&target, &gateway)?;
    if is_last_for_vpcs(w, &gateway).await? {
        return Err(Conflict::LastGateway { gateway: gateway.name }.into());
    }
    let mut gateway = gateway;
    gateway.moving = Some(GatewayMove { id: w.revision, other: to, joined: false });
    save(w, &mut gateway).await?;
    let from: Cluster = get(w.q(), gateway.cluster).await?;
    record(w, STARTED, &gateway, (&from, &target), reason).await?;
    publish_assignment(w, from, &[]).await?;
    Ok(gateway)
}

/// Ends the move of a gateway that has not joined its new cluster.
async fn reverse(w: &mut Write, mut gateway: Gateway, reason: &str) -> Result<Gateway> {
    let Some(moving) = gateway.moving.take() else { return Ok(gateway) };
    save(w, &mut gateway).await?;
    let (from, to): (Cluster, Cluster) =
        (get(w.q(), gateway.cluster).await?, get(w.q(), moving.other).await?);
    record(w, REVERSED, &gateway, (&from, &to), reason).await?;
    publish_assignment(w, from, &as_newcomer(&gateway)).await?;
    Ok(gateway)
}

/// Takes the next step of a move if it is in the phase `at`. Returns false if it is not, because the move was
/// reversed or another replica took the step.
pub(crate) async fn advance(w: &mut Write, id: GatewayId, at: GatewayMove) -> Result<bool> {
    let mut gateway: Gateway = get(w.q(), id).await?;
    if gateway.moving != Some(at) {
        return Ok(false);
    }
    let own: Cluster = get(w.q(), gateway.cluster).await?;
    let other: Cluster = get(w.q(), at.other).await?;
    if at.joined {
        gateway.moving = None;
        save(w, &mut gateway).await?;
        record(w, MOVED, &gateway, (&other, &own), "it takes part in its new cluster").await?;
        publish_assignment(w, own, &[]).await?;
    } else if is_last_for_vpcs(w, &gateway).await? {
        reverse(w, gateway, "its cluster has VPCs and no other gateway").await?;
    } else {
        (gateway.cluster, gateway.moving) =
            (other.id, Some(GatewayMove { other: own.id, joined: true, ..at }));
        save(w, &mut gateway).await?;
        let reason = "it has the entries of both clusters and owns no vIP";
        record(w, JOINED, &gateway, (&own, &other), reason).await?;
        // The new cluster is published before the old one, so that the gateway is always a member of one.
        publish_assignment(w, other, &as_newcomer(&gateway)).await?;
        publish_assignment(w, own, &[]).await?;
    }
    Ok(true)
}
