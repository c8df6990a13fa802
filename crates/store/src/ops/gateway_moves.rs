//! Gateways that go from one cluster to another, make before break: first one has the
//! entries of both and gives its vIPs to its neighbours, then it is a member of the other
//! and gets its share there, then it forgets the VPCs of the first. Each step is a
//! transaction; who says when is the controller (`crates/controller/src/gateway_moves.rs`).
//!
//! Until it has joined a gateway can stay after all. Once it has, going back is a move of
//! its own, which begins with the entries of both clusters already there.

use super::placement::{VPC_ON, others_stay, replan};
use super::{events, families};
use crate::rows::{check_revision, get};
use crate::value::args;
use crate::write::Write;
use crate::{Cluster, Conflict, Gateway, GatewayMove, Result};
use serde_json::json;
use sluice_types::{ClusterId, GatewayId};

/// Kinds of events.
const BEGUN: &str = "gateway_move_begun";
const TURNED: &str = "gateway_move_turned";
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

/// What happened to a gateway on its way, as its event's kind says, and why.
async fn note(
    w: &mut Write,
    kind: &str,
    gateway: &Gateway,
    (from, to): (&Cluster, &Cluster),
    why: &str,
) -> Result<()> {
    let what = match kind {
        BEGUN => "learns the VPCs of the cluster that it moves to, and gives its vIPs away",
        TURNED => "does not move after all",
        JOINED => "has joined the cluster that it moves to",
        _ => "has moved",
    };
    let text = format!("gateway `{}` {what}, from `{}` to `{}`: {why}", gateway.name, from.name, to.name);
    let details =
        json!({"from": from.id.to_string(), "to": to.id.to_string(), "why": why, "revision": w.revision});
    events::note(w, kind, &gateway.id, text, details).await
}

/// As one that has come to its cluster, or come back.
fn newcomer(gateway: &Gateway) -> Vec<GatewayId> {
    if gateway.retires() { Vec::new() } else { vec![gateway.id] }
}

/// Whether its cluster has VPCs, and nobody else to forward for them.
async fn needed(w: &mut Write, gateway: &Gateway) -> Result<bool> {
    Ok(!others_stay(w, gateway).await? && w.q().any(VPC_ON, args![gateway.cluster.get()]).await?)
}

/// Begins a move, or turns one back.
pub(crate) async fn begin(
    w: &mut Write,
    id: GatewayId,
    to: ClusterId,
    why: &str,
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
            return turn_back(w, gateway, why).await;
        }
        Some(GatewayMove { other, joined: true, .. }) if other == to => {}
        Some(GatewayMove { other, joined, .. }) => {
            let goes = if joined { gateway.cluster } else { other };
            let to = get::<Cluster>(w.q(), goes).await?.name;
            return Err(Conflict::GatewayMoves { gateway: gateway.name, to }.into());
        }
    }
    families::fits_gateway(&target, &gateway)?;
    if needed(w, &gateway).await? {
        return Err(Conflict::LastGateway { gateway: gateway.name }.into());
    }
    let mut gateway = gateway;
    gateway.moving = Some(GatewayMove { id: w.revision, other: to, joined: false });
    save(w, &mut gateway).await?;
    let from: Cluster = get(w.q(), gateway.cluster).await?;
    note(w, BEGUN, &gateway, (&from, &target), why).await?;
    replan(w, from, &[]).await?;
    Ok(gateway)
}

/// A gateway that has not joined stays where it is.
async fn turn_back(w: &mut Write, mut gateway: Gateway, why: &str) -> Result<Gateway> {
    let Some(moving) = gateway.moving.take() else { return Ok(gateway) };
    save(w, &mut gateway).await?;
    let (from, to): (Cluster, Cluster) =
        (get(w.q(), gateway.cluster).await?, get(w.q(), moving.other).await?);
    note(w, TURNED, &gateway, (&from, &to), why).await?;
    replan(w, from, &newcomer(&gateway)).await?;
    Ok(gateway)
}

/// Takes a move one step on, if it is at that step. False if it is not: it was turned
/// back, or another replica was first.
pub(crate) async fn advance(w: &mut Write, id: GatewayId, at: GatewayMove) -> Result<bool> {
    let mut gateway: Gateway = get(w.q(), id).await?;
    if gateway.moving != Some(at) {
        return Ok(false);
    }
    let here: Cluster = get(w.q(), gateway.cluster).await?;
    let other: Cluster = get(w.q(), at.other).await?;
    if at.joined {
        gateway.moving = None;
        save(w, &mut gateway).await?;
        note(w, MOVED, &gateway, (&other, &here), "it takes part there").await?;
        replan(w, here, &[]).await?;
    } else if needed(w, &gateway).await? {
        turn_back(w, gateway, "its cluster has VPCs, and no other gateway for them").await?;
    } else {
        (gateway.cluster, gateway.moving) =
            (other.id, Some(GatewayMove { other: here.id, joined: true, ..at }));
        save(w, &mut gateway).await?;
        let why = "it has the VPCs of both, and no vIP any more";
        note(w, JOINED, &gateway, (&here, &other), why).await?;
        // Where it is comes before where it no longer is: it is never without a cluster.
        replan(w, other, &newcomer(&gateway)).await?;
        replan(w, here, &[]).await?;
    }
    Ok(true)
}
