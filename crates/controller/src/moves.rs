//! Drives VPCs from cluster to cluster, make before break (`crates/store/src/ops/moves.rs`
//! has the steps). What is to be waited for follows from the database and from what nodes
//! acknowledged, so that a controller that starts goes on where another one ended.
//!
//! A node that is away is waited for: its tables stay, and so does what they do. A
//! gateway or host that does not come back has to be deleted for a move to end.

use crate::core::{Core, count};
use crate::members::Members;
use sluice_store::{NodeId, StoreError};
use sluice_types::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Acknowledgements are looked at this often while something moves.
const LOOK: Duration = Duration::from_millis(20);
/// While nothing does.
const IDLE: Duration = Duration::from_millis(250);
/// What hosts sent before they heard where to send has passed by then.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
/// Who is waited for is logged this often.
const SAY: Duration = Duration::from_secs(10);
/// Pause after a store error.
const RETRY: Duration = Duration::from_millis(250);

/// A move's step, and what its end depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// [`sluice_store::Move::id`].
    pub id: u64,
    /// As in [`sluice_store::Move`].
    pub switched: bool,
    /// What must be acknowledged.
    pub revision: u64,
    /// By whom.
    pub awaited: BTreeSet<NodeId>,
}

impl Stage {
    /// Those who have not written it, by what `written` says of a node and a revision.
    pub fn lacking(&self, written: impl Fn(NodeId, u64) -> bool) -> Vec<NodeId> {
        self.awaited.iter().copied().filter(|node| !written(*node, self.revision)).collect()
    }
}

/// The step that each move is in. `hosts`: those that have instances of its VPCs, which is
/// asked for once hosts are told to switch; without an answer the stage is left out.
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

/// How long it is until moves are looked at again, by what came of the last time.
pub(crate) fn pause(core: &Core, outcome: Result<(), StoreError>, idle: bool) -> Duration {
    match outcome {
        Ok(()) if idle => IDLE,
        Ok(()) => LOOK,
        Err(error) => {
            count(&core.counters.store_errors);
            tracing::warn!(error = &error as &dyn std::error::Error, "moves have to wait");
            RETRY
        }
    }
}

/// A step that waits, and whoever looks after it.
#[derive(Debug)]
pub(crate) struct Wait {
    /// Since when nothing is waited for any more.
    reached: Option<Instant>,
    said: Instant,
}

impl Default for Wait {
    fn default() -> Self {
        Self { reached: None, said: Instant::now() }
    }
}

impl Wait {
    /// For how long nothing has been waited for; `None` if something is, which `say` tells now and then.
    pub(crate) fn over(&mut self, waits: bool, say: impl FnOnce()) -> Option<Duration> {
        if !waits {
            return Some(self.reached.get_or_insert_with(Instant::now).elapsed());
        }
        self.reached = None;
        if self.said.elapsed() >= SAY {
            self.said = Instant::now();
            say();
        }
        None
    }
}

/// What is remembered of a move while it lasts.
#[derive(Debug, Default)]
struct Progress {
    switched: bool,
    /// Hosts with its instances, once hosts are told to switch. Those that get their first
    /// one later are told with it where to send.
    hosts: Option<BTreeSet<HostId>>,
    wait: Wait,
}

/// Runs until it is dropped.
pub async fn drive_moves(core: Arc<Core>) {
    let mut moves: BTreeMap<u64, Progress> = BTreeMap::new();
    loop {
        let outcome = round(&core, &mut moves).await;
        tokio::time::sleep(pause(&core, outcome, moves.is_empty())).await;
    }
}

async fn round(core: &Core, moves: &mut BTreeMap<u64, Progress>) -> Result<(), StoreError> {
    let now: BTreeMap<u64, (bool, Vec<_>)> = core.members(|members| {
        let one = |(id, placed): (u64, Vec<crate::members::Placed>)| {
            let switched = placed.iter().any(|vpc| vpc.moving.is_some_and(|moving| moving.switched));
            (id, (switched, placed.iter().map(|vpc| vpc.vpc).collect()))
        };
        members.moves().into_iter().map(one).collect()
    });
    moves.retain(|id, _| now.contains_key(id));
    for (id, (switched, vpcs)) in now {
        let progress = moves.entry(id).or_default();
        if progress.switched != switched {
            *progress = Progress { switched, ..Progress::default() };
        }
        if switched && progress.hosts.is_none() {
            let mut hosts = BTreeSet::new();
            for vpc in vpcs {
                hosts.extend(core.store.vpc_hosts(vpc).await?);
            }
            progress.hosts = Some(hosts);
        }
    }
    let mut all_lacking = BTreeMap::new();
    for stage in core.members(|members| stages(members, |id| moves.get(&id)?.hosts.clone())) {
        let Some(progress) = moves.get_mut(&stage.id).filter(|p| p.switched == stage.switched) else {
            continue;
        };
        let lacking = core.hub.with_written(|written| stage.lacking(written));
        let say = || {
            tracing::warn!(move_id = stage.id, switched = stage.switched, ?lacking, "a move waits for nodes");
        };
        let reached = progress.wait.over(!lacking.is_empty(), say);
        let over = reached.is_some_and(|reached| !stage.switched || reached >= LINGER);
        all_lacking.insert(stage.id, lacking);
        if over && core.store.advance_move(stage.id, stage.switched).await? {
            tracing::info!(move_id = stage.id, switched = stage.switched, "a move went one step on");
            core.wake();
        }
    }
    core.set_lacking(all_lacking);
    Ok(())
}
