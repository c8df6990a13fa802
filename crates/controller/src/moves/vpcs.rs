//! Drives moves of VPCs between clusters, make before break (`crates/store/src/ops/vpc_moves.rs` has the
//! transactions). What a move waits for follows from the database and from what nodes acknowledged, so a
//! controller that starts continues where another one ended.
//!
//! ```text
//!           move_vpc()                all gateways of the              all hosts with its instances
//!                                     new cluster wrote it             wrote it, and 1 s passed
//!  at rest ───────────▶ filling ──────────────────────▶ switching ──────────────────────▶ at rest
//!                          ▲  hosts send to the old        │   hosts send to the new
//!                          └────── move_vpc() back ────────┘
//! ```
//!
//! A move waits for nodes that are offline, because their tables still forward packets. A gateway or host
//! that does not come back must be deleted for the move to end.

use super::{LINGER, Moves, Wait};
use crate::push::{Members, VpcLocation};
use sluice_store::{NodeId, StoreError};
use sluice_types::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

/// The phase of a move, and the nodes on which its end depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Identifier of the move ([`sluice_store::Move::id`]).
    pub id: u64,
    /// Hosts send to the new cluster ([`sluice_store::Move::switched`]).
    pub switched: bool,
    /// Revision that must be acknowledged.
    pub revision: u64,
    /// Nodes that must acknowledge it.
    pub awaited: BTreeSet<NodeId>,
}

impl Stage {
    /// The nodes that have not written it. `written` says whether a node has written a revision.
    pub fn missing(&self, written: impl Fn(NodeId, u64) -> bool) -> Vec<NodeId> {
        self.awaited.iter().copied().filter(|node| !written(*node, self.revision)).collect()
    }
}

/// The phase of each move. `hosts` returns the hosts that have instances of its VPCs, and is called for moves
/// whose hosts switch; a move for which it returns `None` is left out.
pub fn stages(members: &Members, mut hosts: impl FnMut(u64) -> Option<BTreeSet<HostId>>) -> Vec<Stage> {
    let mut stages = Vec::new();
    for (id, placed) in members.moves() {
        let Some(first) = placed.first().and_then(|vpc| vpc.moving) else { continue };
        let revision = placed.iter().map(|vpc| vpc.revision).max().unwrap_or(0);
        let awaited = if first.switched {
            let Some(hosts) = hosts(id) else { continue };
            let agents = hosts.into_iter().filter(|host| members.has_agent(*host));
            agents.map(NodeId::Host).collect()
        } else {
            members.gateways_of(first.to).into_iter().map(NodeId::Gateway).collect()
        };
        stages.push(Stage { id, switched: first.switched, revision, awaited });
    }
    stages
}

/// What the driver remembers of a move.
#[derive(Debug, Default)]
struct Progress {
    switched: bool,
    /// Hosts with its instances when hosts start to switch. A host that gets its first instance later gets
    /// the new cluster with it.
    hosts: Option<BTreeSet<HostId>>,
    wait: Wait,
}

/// Drives all moves of VPCs until it is dropped.
pub async fn drive_vpc_moves(moves: Arc<Moves>) {
    let mut known: BTreeMap<u64, Progress> = BTreeMap::new();
    loop {
        let outcome = moves.vpc_round(&mut known).await;
        tokio::time::sleep(moves.pause(outcome, known.is_empty())).await;
    }
}

impl Moves {
    async fn vpc_round(&self, known: &mut BTreeMap<u64, Progress>) -> Result<(), StoreError> {
        let now: BTreeMap<u64, (bool, Vec<_>)> = self.push.members(|members| {
            let one = |(id, placed): (u64, Vec<VpcLocation>)| {
                let switched = placed.iter().any(|vpc| vpc.moving.is_some_and(|moving| moving.switched));
                (id, (switched, placed.iter().map(|vpc| vpc.vpc).collect()))
            };
            members.moves().into_iter().map(one).collect()
        });
        known.retain(|id, _| now.contains_key(id));
        for (id, (switched, vpcs)) in now {
            let progress = known.entry(id).or_default();
            if progress.switched != switched {
                *progress = Progress { switched, ..Progress::default() };
            }
            if switched && progress.hosts.is_none() {
                let mut hosts = BTreeSet::new();
                for vpc in vpcs {
                    hosts.extend(self.db.store.vpc_hosts(vpc).await?);
                }
                progress.hosts = Some(hosts);
            }
        }
        let mut all_waits = BTreeMap::new();
        for stage in self.push.members(|members| stages(members, |id| known.get(&id)?.hosts.clone())) {
            let Some(progress) = known.get_mut(&stage.id).filter(|p| p.switched == stage.switched) else {
                continue;
            };
            let missing = self.push.hub.with_written(|written| stage.missing(written));
            let log = || {
                tracing::warn!(
                    move_id = stage.id,
                    switched = stage.switched,
                    ?missing,
                    "the move of a VPC waits for nodes"
                );
            };
            let complete_for = progress.wait.complete_for(!missing.is_empty(), log);
            let is_over = complete_for.is_some_and(|time| !stage.switched || time >= LINGER);
            all_waits.insert(stage.id, missing);
            if is_over && self.db.store.advance_move(stage.id, stage.switched).await? {
                tracing::info!(
                    move_id = stage.id,
                    switched = stage.switched,
                    "the move of a VPC entered its next phase"
                );
                self.db.notify_commit();
            }
        }
        *self.vpc_waits.write().unwrap_or_else(PoisonError::into_inner) = all_waits;
        Ok(())
    }
}
