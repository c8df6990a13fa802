//! VPCs that go from one cluster to another, make before break: first the new
//! cluster has all entries beside the old one, then hosts send there, then the old
//! one forgets. Each step is a transaction; who says when is the controller
//! (`crates/controller/src/moves.rs`).
//!
//! Going back is a move, too: both clusters have all entries, so only where hosts are
//! to send must be settled again. Either way the pair of clusters is swapped, and with
//! it `switched`, which leaves where hosts send as it was.

use super::{events, families, peerings};
use crate::codec;
use crate::rows::{Record, check_revision, find, get};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Cluster, Conflict, Host, Instance, Move, Result, StoreError, Vpc};
use serde_json::json;
use sluice_types::{ClusterId, HostId, VpcId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Instances in one row of the outbox.
const PART: u64 = 16384;

/// Kinds of events.
const BEGUN: &str = "vpc_move_begun";
const SWITCHED: &str = "vpc_move_switched";
const TURNED: &str = "vpc_move_turned";
const MOVED: &str = "vpc_moved";

/// The VPC and all that it is peered with, directly or over others: routes lead from
/// one into the other, so that they are on the same clusters always.
async fn together(w: &mut Write, first: Vpc) -> Result<Vec<Vpc>> {
    let mut found = BTreeMap::from([(first.id, first.clone())]);
    let mut next = vec![first.id];
    while let Some(id) = next.pop() {
        for peer in peerings::peers(w.q(), id).await? {
            if let Entry::Vacant(place) = found.entry(peer.id) {
                next.push(peer.id);
                place.insert(peer);
            }
        }
    }
    Ok(found.into_values().collect())
}

async fn save(w: &mut Write, vpc: &mut Vpc) -> Result<()> {
    vpc.revision = w.revision;
    let to = vpc.moving.map(|moving| moving.to.get() as i64);
    let (id, switched) = vpc.moving.map_or((0, false), |moving| (moving.id, moving.switched));
    let sql = "UPDATE vpcs SET cluster = $2, moving_to = $3, switched = $4, move_id = $5, revision = $6 \
               WHERE id = $1";
    let values = args![vpc.id.get(), vpc.cluster.get(), to, switched, id, vpc.revision];
    w.q().run(sql, values).await?;
    let subnets = find(w.q(), vec![("vpc", vpc.id.get().into())]).await?;
    w.push(&Change::VpcUpserted { vpc: vpc.clone(), subnets })
}

/// Appends the VPC's instances to the outbox, in parts, as what comes to or leaves a
/// cluster.
async fn carry(w: &mut Write, vpc: &Vpc, cluster: ClusterId, comes: bool) -> Result<()> {
    let mut hosts: BTreeMap<HostId, Host> = BTreeMap::new();
    let mut after = 0;
    loop {
        let sql = format!(
            "SELECT {} FROM instances WHERE vpc = $1 AND id > $2 ORDER BY id LIMIT $3",
            Instance::COLUMNS
        );
        let rows = w.q().rows(&sql, args![vpc.id.get(), after, PART]).await?;
        let instances = rows.iter().map(Instance::decode).collect::<Result<Vec<_>>>()?;
        let Some(last) = instances.last() else { return Ok(()) };
        after = last.id.get();
        let whole = instances.len() as u64 == PART;
        let payload = if comes {
            let mut used = BTreeSet::new();
            for instance in &instances {
                used.insert(instance.host);
                if let Entry::Vacant(place) = hosts.entry(instance.host) {
                    place.insert(get(w.q(), instance.host).await?);
                }
            }
            let hosts = hosts.values().filter(|host| used.contains(&host.id)).cloned().collect();
            codec::encode(&Change::EndpointsPlaced { vpc: vpc.clone(), cluster, hosts, instances })?
        } else {
            codec::encode(&Change::EndpointsWithdrawn { vpc: vpc.clone(), cluster, instances })?
        };
        w.push_encoded(payload);
        if !whole {
            return Ok(());
        }
    }
}

/// The VPCs of a move, in order of id.
async fn of_move(w: &mut Write, id: u64) -> Result<Vec<Vpc>> {
    let sql =
        format!("SELECT {} FROM vpcs WHERE move_id = $1 AND moving_to IS NOT NULL ORDER BY id", Vpc::COLUMNS);
    w.q().rows(&sql, args![id]).await?.iter().map(Vpc::decode).collect()
}

/// What happened to a VPC on its way, as its event's kind says.
async fn note(w: &mut Write, kind: &str, vpc: &Vpc, from: ClusterId, to: ClusterId) -> Result<()> {
    let (from, to): (Cluster, Cluster) = (get(w.q(), from).await?, get(w.q(), to).await?);
    let what = match kind {
        BEGUN => "begins to move",
        SWITCHED => "is known to its new gateways, and hosts are told to switch",
        TURNED => "turns back on its way",
        _ => "has moved",
    };
    let text = format!("VPC `{}` {what} from cluster `{}` to `{}`", vpc.name, from.name, to.name);
    let details = json!({"from": from.id.to_string(), "to": to.id.to_string(), "revision": w.revision});
    events::note(w, kind, &vpc.id, text, details).await
}

/// Begins a move, or turns one back.
pub(crate) async fn begin(w: &mut Write, id: VpcId, to: ClusterId, expected: Option<u64>) -> Result<Vpc> {
    let vpc: Vpc = get(w.q(), id).await?;
    check_revision(id, &vpc, expected)?;
    let target: Cluster = get(w.q(), to).await?;
    match vpc.moving {
        None if vpc.cluster == to => return Ok(vpc),
        Some(moving) if moving.to == to => return Ok(vpc),
        Some(moving) if vpc.cluster != to => {
            let to = moving.to.to_string();
            return Err(Conflict::VpcMoves { vpc: vpc.name, to }.into());
        }
        Some(moving) => turn_back(w, moving.id).await?,
        None => {
            let sql = "SELECT id FROM gateways WHERE cluster = $1 AND (other_cluster IS NULL OR joined = 1) LIMIT 1";
            if !w.q().any(sql, args![to.get()]).await? {
                return Err(Conflict::NoGateways { cluster: target.name }.into());
            }
            for mut vpc in together(w, vpc).await? {
                families::fits_vpc(w.q(), &target, &vpc).await?;
                let from = vpc.cluster;
                vpc.moving = Some(Move { id: w.revision, to, switched: false });
                save(w, &mut vpc).await?;
                carry(w, &vpc, to, true).await?;
                note(w, BEGUN, &vpc, from, to).await?;
            }
        }
    }
    get(w.q(), id).await
}

async fn turn_back(w: &mut Write, id: u64) -> Result<()> {
    for mut vpc in of_move(w, id).await? {
        let Some(Move { to, switched, .. }) = vpc.moving else { continue };
        let from = std::mem::replace(&mut vpc.cluster, to);
        vpc.moving = Some(Move { id: w.revision, to: from, switched: !switched });
        save(w, &mut vpc).await?;
        note(w, TURNED, &vpc, to, from).await?;
    }
    Ok(())
}

/// Takes a move one step on, if it is where `switched` says. False if it is not: it
/// was turned back, or another replica was first.
pub(crate) async fn advance(w: &mut Write, id: u64, switched: bool) -> Result<bool> {
    let vpcs = of_move(w, id).await?;
    let here = |vpc: &Vpc| vpc.moving.is_some_and(|moving| moving.switched == switched);
    if vpcs.is_empty() || !vpcs.iter().all(here) {
        return Ok(false);
    }
    for mut vpc in vpcs {
        let Some(moving) = vpc.moving else { continue };
        let (from, to) = (vpc.cluster, moving.to);
        if switched {
            carry(w, &vpc, from, false).await?;
            (vpc.cluster, vpc.moving) = (to, None);
            save(w, &mut vpc).await?;
            note(w, MOVED, &vpc, from, to).await?;
        } else {
            vpc.moving = Some(Move { switched: true, ..moving });
            save(w, &mut vpc).await?;
            note(w, SWITCHED, &vpc, from, to).await?;
        }
    }
    Ok(true)
}

/// Refuses what must not be done to a VPC on its way.
pub(crate) fn settled(vpc: &Vpc) -> Result<()> {
    match vpc.moving {
        None => Ok(()),
        Some(moving) => {
            let (vpc, to) = (vpc.name.clone(), moving.to.to_string());
            Err(StoreError::from(Conflict::VpcMoves { vpc, to }))
        }
    }
}
