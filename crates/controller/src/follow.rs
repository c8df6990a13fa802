//! Follows the outbox: every revision is compiled once, in order, into the log
//! of steps. Woken by commits of this replica; polls for those of others.
//! Also keeps the store up to date about nodes, and the outbox short.

use crate::compile::State;
use crate::core::{Core, count};
use crate::ledger::Ledger;
use crate::members::Members;
use crate::steps::Step;
use crate::timeline::{CompileStages, MIN_INSTANCES};
use sluice_store::{Change, InstancesOf, NodeId, OutboxRow, SnapshotPart, StoreError, Topology};
use sluice_types::HostId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinError;

/// Commits of other replicas are seen this late at most.
const POLL: Duration = Duration::from_millis(100);
/// Pause after a store error.
const RETRY: Duration = Duration::from_millis(250);
/// Rows read at once.
const ROWS: u32 = 1024;
/// Revisions before the start that are looked at, so that nodes which were only
/// a little behind when the controller ended need no snapshot.
const LOOK_BACK: u64 = 64;
/// But not more rows than this.
const LOOK_BACK_ROWS: usize = 128;
/// Acknowledgements that are due are looked for this often.
const SAVE: Duration = Duration::from_millis(20);
/// Other replicas' acknowledgements are read this often.
const REFRESH: Duration = Duration::from_millis(500);
/// Outbox rows are kept this long for replicas that fell behind.
const KEEP: Duration = Duration::from_secs(600);
/// And looked through this often.
const COMPACT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("compiling failed")]
    Compile(#[from] JoinError),
    #[error("the picture has no topology")]
    NoTopology,
}

/// Runs until it is dropped.
pub async fn follow(core: Arc<Core>) {
    loop {
        let error = match start(&core).await {
            Ok(state) => keep_up(&core, state).await,
            Err(error) => error,
        };
        count(&core.counters.store_errors);
        tracing::warn!(error = &error as &dyn std::error::Error, "following the outbox starts over");
        tokio::time::sleep(RETRY).await;
    }
}

/// The topology, and its state, which knows instances only where the model needs them.
async fn read_topology(core: &Core) -> Result<(Topology, State), FollowError> {
    let (sink, mut parts) = mpsc::channel(1);
    let all = core.model.preprograms();
    let of = if all { InstancesOf::All } else { InstancesOf::Host(HostId::new(0)) };
    let (done, first) = tokio::join!(core.store.snapshot(of, sink), async {
        let mut first: Option<(Topology, State)> = None;
        while let Some(part) = parts.recv().await {
            match (part, &mut first) {
                (SnapshotPart::Topology(topology), _) => {
                    let state = State::new(&topology, core.model);
                    first = Some((*topology, state));
                }
                (SnapshotPart::Instances(instances), Some((_, state))) => state.place(&instances),
                (SnapshotPart::Instances(_), None) => {}
            }
        }
        first
    });
    done?;
    first.ok_or(FollowError::NoTopology)
}

async fn start(core: &Core) -> Result<State, FollowError> {
    let (topology, state) = read_topology(core).await?;
    core.hub.load(core.store.node_states().await?);
    let recent = recent_steps(core, &state).await?;
    let (counted, instances) = core.store.instance_counts().await?;
    core.change_members(|members| *members = Members::new(&topology));
    core.set_standings(state.standings());
    zone(core, &state);
    core.change_ledger(|ledger, _| {
        let mut new = Ledger::new(&topology, counted, &instances);
        new.keep_ages(ledger);
        *ledger = new;
    });
    let floor = recent.first().map_or(state.revision(), |(before, _)| *before);
    core.log.reset(floor);
    for (_, step) in recent {
        core.log.push(step);
    }
    tracing::info!(revision = state.revision(), floor, "following the outbox");
    Ok(state)
}

/// The last revisions before the state's, as far as they changed instances
/// only: such changes compile the same under any later topology. Each with the
/// revision before it.
async fn recent_steps(core: &Core, state: &State) -> Result<Vec<(u64, Step)>, FollowError> {
    if core.model.preprograms() {
        // What instances mean for paths is another thing when later ones are there.
        return Ok(Vec::new());
    }
    let mut after = state.revision().saturating_sub(LOOK_BACK);
    let mut rows = Vec::new();
    while after < state.revision() && rows.len() <= LOOK_BACK_ROWS {
        match core.store.outbox(after, 16).await {
            Ok(more) if more.is_empty() => break,
            Ok(more) => {
                after = more.last().map_or(after, |row| row.revision);
                rows.extend(more);
            }
            Err(StoreError::Compacted { oldest, .. }) if oldest > after => {
                rows.clear();
                after = oldest;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if after < state.revision() || rows.len() > LOOK_BACK_ROWS {
        return Ok(Vec::new());
    }
    let mut scratch = state.clone();
    let mut steps = Vec::new();
    let mut before = None;
    for (revision, changes) in by_revision(rows).into_iter().take_while(|(r, _)| *r <= state.revision()) {
        let simple = changes.iter().all(|change| {
            matches!(
                change,
                Change::InstancesCreated { .. }
                    | Change::InstancesRemoved { .. }
                    | Change::TenantUpserted(_)
                    | Change::TenantRemoved(_)
            )
        });
        match before.filter(|_| simple) {
            Some(before) => steps.push((before, Step::new(scratch.apply(revision, &changes)))),
            None => steps.clear(),
        }
        before = Some(revision);
    }
    Ok(steps)
}

fn by_revision(rows: Vec<OutboxRow>) -> Vec<(u64, Vec<Change>)> {
    let mut revisions: Vec<(u64, Vec<Change>)> = Vec::new();
    for row in rows {
        match revisions.last_mut() {
            Some((revision, changes)) if *revision == row.revision => changes.push(row.change),
            _ => revisions.push((row.revision, vec![row.change])),
        }
    }
    revisions
}

/// Ends with what went wrong; errors that pass are waited out.
async fn keep_up(core: &Core, mut state: State) -> FollowError {
    let mut failing = false;
    loop {
        let began = Instant::now();
        let rows = match core.store.outbox(state.revision(), ROWS).await {
            Ok(rows) => rows,
            Err(error @ StoreError::Unavailable { .. }) => {
                count(&core.counters.store_errors);
                if !failing {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot read the outbox");
                }
                failing = true;
                tokio::time::sleep(RETRY).await;
                continue;
            }
            Err(error) => return error.into(),
        };
        if std::mem::take(&mut failing) {
            tracing::info!("the outbox can be read again");
        }
        if rows.is_empty() {
            let _ = tokio::time::timeout(POLL, core.woken()).await;
            continue;
        }
        let read = began.elapsed();
        for (revision, changes) in by_revision(rows) {
            match take_in(core, state, revision, changes, read).await {
                Ok(next) => state = next,
                Err(error) => return error,
            }
        }
    }
}

fn zone(core: &Core, state: &State) {
    if core.model.zones() {
        core.change_zones(|zones| zones.set(state.zoned()));
    }
}

async fn take_in(
    core: &Core,
    mut state: State,
    revision: u64,
    changes: Vec<Change>,
    read: Duration,
) -> Result<State, FollowError> {
    core.change_members(|members| members.apply(revision, &changes));
    core.change_ledger(|ledger, now_ms| ledger.apply(revision, &changes, now_ms));
    let clusters: BTreeSet<_> = changes
        .iter()
        .filter_map(|change| match change {
            Change::InstancesCreated { vpc, .. } => Some(vpc.clusters()),
            _ => None,
        })
        .flatten()
        .collect();
    let standings_change = changes.iter().any(|change| {
        matches!(
            change,
            Change::ClusterUpserted { .. } | Change::ClusterRemoved(_) | Change::KeysChanged { .. }
        )
    });
    let hosts_change =
        changes.iter().any(|change| matches!(change, Change::HostUpserted(_) | Change::HostRemoved(_)));
    let began = Instant::now();
    // A large creation takes a while; streams must not wait for it.
    let (state, step) = tokio::task::spawn_blocking(move || {
        let step = Step::new(state.apply(revision, &changes));
        (state, step)
    })
    .await?;
    if step.created >= MIN_INSTANCES {
        let stages = CompileStages { read, compile: began.elapsed() };
        let gateways = core.members(|m| clusters.iter().flat_map(|c| m.gateways_of(*c)).collect());
        core.timeline.compiled(revision, step.created, stages, gateways);
    }
    if standings_change {
        core.set_standings(state.standings());
    }
    if standings_change || hosts_change {
        zone(core, &state);
    }
    let removed = step.removed_nodes.clone();
    core.log.push(step);
    for node in removed {
        core.hub.remove(node);
        if let NodeId::Gateway(id) = node {
            core.loads.remove(id);
        }
    }
    Ok(state)
}

/// Writes down what nodes acknowledged, and reads what other replicas' nodes
/// did. Runs until it is dropped.
pub async fn save_nodes(core: Arc<Core>) {
    let mut refreshed = Instant::now();
    let mut failing = false;
    loop {
        tokio::time::sleep(SAVE).await;
        let result = save_round(&core, &mut refreshed).await;
        if let Err(error) = &result {
            count(&core.counters.store_errors);
            if !failing {
                let error = error as &dyn std::error::Error;
                tracing::warn!(error, "cannot save what nodes acknowledged");
            }
            tokio::time::sleep(RETRY).await;
        }
        failing = result.is_err();
    }
}

async fn save_round(core: &Core, refreshed: &mut Instant) -> Result<(), StoreError> {
    let mut unsaved = core.hub.take_unsaved(false).into_iter();
    while let Some(state) = unsaved.next() {
        let node = state.node;
        match core.store.save_node_state(state).await {
            // A node deleted in the meantime has nothing to be remembered.
            Ok(()) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => {
                core.hub.mark_unsaved(node);
                unsaved.for_each(|state| core.hub.mark_unsaved(state.node));
                return Err(error);
            }
        }
    }
    if refreshed.elapsed() >= REFRESH {
        *refreshed = Instant::now();
        core.hub.load(core.store.node_states().await?);
    }
    Ok(())
}

/// Drops outbox rows that no replica can still need. Runs until it is dropped.
pub async fn compact(core: Arc<Core>) {
    let mut seen: std::collections::VecDeque<(Instant, u64)> = Default::default();
    loop {
        tokio::time::sleep(COMPACT).await;
        seen.push_back((Instant::now(), core.members(Members::revision)));
        let mut old = None;
        while seen.front().is_some_and(|(at, _)| at.elapsed() >= KEEP) {
            old = seen.pop_front();
        }
        let Some((_, revision)) = old else { continue };
        if let Err(error) = core.store.compact_outbox(revision).await {
            count(&core.counters.store_errors);
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot shorten the outbox");
        }
    }
}
