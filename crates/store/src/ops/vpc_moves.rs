//! Moves of VPCs between clusters, make before break. Each step is one transaction; the controller decides
//! when a step is due (`crates/controller/src/moves/vpcs.rs`).
//!
//! ```text
//!                start                  advance                  advance
//!  not moving ----------> filling ---------------> switching ---------------> not moving,
//!  (on A)                 A -> B                   A -> B                     on B
//!                         switched: false          switched: true
//!                            ^                        ^
//!                  reverse   |                        |   reverse
//!                            v                        v
//!                         switching                filling
//!                         B -> A                   B -> A
//! ```
//!
//! While filling, the new cluster receives all entries and hosts send to the old one. While switching, hosts
//! are reprogrammed to send to the new cluster. At the end the old cluster removes the entries.
//!
//! Reversing a move is a move, too. Both clusters have all entries, so only the cluster that hosts send to
//! changes back. `start` with the old cluster swaps the two clusters and inverts `switched`, which leaves the
//! cluster that hosts send to as it was.

use super::{eips, events, families, nat_gateways, peerings};
use crate::codec;
use crate::rows::{Record, check_revision, find, get};
use crate::value::args;
use crate::write::Write;
use crate::{Change, Cluster, Conflict, Host, Instance, Move, Result, Vpc};
use serde_json::json;
use sluice_types::{ClusterId, HostId, VpcId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Instances in one row of the outbox.
const INSTANCES_PER_ROW: u64 = super::bulk::INSTANCES_PER_ROW as u64;

/// Event kinds.
const STARTED: &str = "vpc_move_started";
const SWITCHED: &str = "vpc_move_switched";
const REVERSED: &str = "vpc_move_reversed";
const MOVED: &str = "vpc_moved";

/// The VPC and all VPCs that are peered with it, directly or through others. Routes lead from one into the
/// other, so they must always be on the same clusters.
async fn peered_group(w: &mut Write, first: Vpc) -> Result<Vec<Vpc>> {
    let mut found = BTreeMap::from([(first.id, first.clone())]);
    let mut next = vec![first.id];
    while let Some(id) = next.pop() {
        for peer in peerings::peers(w.q(), id).await? {
            if let Entry::Vacant(entry) = found.entry(peer.id) {
                next.push(peer.id);
                entry.insert(peer);
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

/// What happens to the entries of instances on a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entries {
    Added,
    Removed,
}

/// Appends the instances of the VPC to the outbox, in several rows.
async fn push_instances(w: &mut Write, vpc: &Vpc, cluster: ClusterId, entries: Entries) -> Result<()> {
    let mut hosts: BTreeMap<HostId, Host> = BTreeMap::new();
    let mut after = 0;
    loop {
        let sql = format!(
            "SELECT {} FROM instances WHERE vpc = $1 AND id > $2 ORDER BY id LIMIT $3",
            Instance::COLUMNS
        );
        let rows = w.q().rows(&sql, args![vpc.id.get(), after, INSTANCES_PER_ROW]).await?;
        let instances = rows.iter().map(Instance::decode).collect::<Result<Vec<_>>>()?;
        let Some(last) = instances.last() else { return Ok(()) };
        after = last.id.get();
        let is_full = instances.len() as u64 == INSTANCES_PER_ROW;
        let vpc = vpc.clone();
        let change = match entries {
            Entries::Added => {
                let mut used = BTreeSet::new();
                for instance in &instances {
                    used.insert(instance.host);
                    if let Entry::Vacant(entry) = hosts.entry(instance.host) {
                        entry.insert(get(w.q(), instance.host).await?);
                    }
                }
                let hosts = hosts.values().filter(|host| used.contains(&host.id)).cloned().collect();
                Change::EndpointsAdded { vpc, cluster, hosts, instances }
            }
            Entries::Removed => Change::EndpointsRemoved { vpc, cluster, instances },
        };
        w.push_encoded(codec::encode(&change)?);
        if !is_full {
            return Ok(());
        }
    }
}

/// The VPCs of a move, in order of id.
async fn vpcs_of_move(w: &mut Write, id: u64) -> Result<Vec<Vpc>> {
    let sql =
        format!("SELECT {} FROM vpcs WHERE move_id = $1 AND moving_to IS NOT NULL ORDER BY id", Vpc::COLUMNS);
    w.q().rows(&sql, args![id]).await?.iter().map(Vpc::decode).collect()
}

/// Records an event about a move.
async fn record(w: &mut Write, kind: &str, vpc: &Vpc, from: ClusterId, to: ClusterId) -> Result<()> {
    let (from, to): (Cluster, Cluster) = (get(w.q(), from).await?, get(w.q(), to).await?);
    let (name, from_name, to_name) = (&vpc.name, &from.name, &to.name);
    let text = match kind {
        STARTED => format!("VPC `{name}` starts to move from cluster `{from_name}` to `{to_name}`"),
        SWITCHED => format!(
            "VPC `{name}`: cluster `{to_name}` has all entries; hosts switch to it from `{from_name}`"
        ),
        REVERSED => format!("VPC `{name}` reverses its move: from cluster `{from_name}` back to `{to_name}`"),
        _ => format!("VPC `{name}` has moved from cluster `{from_name}` to `{to_name}`"),
    };
    let details = json!({"from": from.id.to_string(), "to": to.id.to_string(), "revision": w.revision});
    events::record(w, kind, &vpc.id, text, details).await
}

/// Starts a move, or reverses the move that is in progress.
pub(crate) async fn start(w: &mut Write, id: VpcId, to: ClusterId, expected: Option<u64>) -> Result<Vpc> {
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
        Some(moving) => reverse(w, moving.id).await?,
        None => {
            let sql = "SELECT id FROM gateways WHERE cluster = $1 AND (other_cluster IS NULL OR joined = 1) LIMIT 1";
            if !w.q().any(sql, args![to.get()]).await? {
                return Err(Conflict::NoGateways { cluster: target.name }.into());
            }
            for mut vpc in peered_group(w, vpc).await? {
                families::check_vpc(w.q(), &target, &vpc).await?;
                eips::check_movable(w.q(), &vpc).await?;
                nat_gateways::check_movable(w.q(), &vpc).await?;
                let from = vpc.cluster;
                vpc.moving = Some(Move { id: w.revision, to, switched: false });
                save(w, &mut vpc).await?;
                push_instances(w, &vpc, to, Entries::Added).await?;
                record(w, STARTED, &vpc, from, to).await?;
            }
        }
    }
    get(w.q(), id).await
}

async fn reverse(w: &mut Write, id: u64) -> Result<()> {
    for mut vpc in vpcs_of_move(w, id).await? {
        let Some(Move { to, switched, .. }) = vpc.moving else { continue };
        let from = std::mem::replace(&mut vpc.cluster, to);
        vpc.moving = Some(Move { id: w.revision, to: from, switched: !switched });
        save(w, &mut vpc).await?;
        record(w, REVERSED, &vpc, to, from).await?;
    }
    Ok(())
}

/// Takes the next step of a move if it is in the phase that `switched` says. Returns false if it is not,
/// because the move was reversed or another replica took the step.
pub(crate) async fn advance(w: &mut Write, id: u64, switched: bool) -> Result<bool> {
    let vpcs = vpcs_of_move(w, id).await?;
    let in_phase = |vpc: &Vpc| vpc.moving.is_some_and(|moving| moving.switched == switched);
    if vpcs.is_empty() || !vpcs.iter().all(in_phase) {
        return Ok(false);
    }
    for mut vpc in vpcs {
        let Some(moving) = vpc.moving else { continue };
        let (from, to) = (vpc.cluster, moving.to);
        if switched {
            push_instances(w, &vpc, from, Entries::Removed).await?;
            (vpc.cluster, vpc.moving) = (to, None);
            save(w, &mut vpc).await?;
            record(w, MOVED, &vpc, from, to).await?;
        } else {
            vpc.moving = Some(Move { switched: true, ..moving });
            save(w, &mut vpc).await?;
            record(w, SWITCHED, &vpc, from, to).await?;
        }
    }
    Ok(true)
}
