//! Reads the outbox: compiles each revision once, in order, and appends it to the log of steps. A commit of
//! this replica wakes it; it polls for commits of other replicas.

use super::members::Members;
use super::steps::Step;
use super::timeline::{CompileStages, MIN_INSTANCES};
use super::{ChangeObserver, Push, history};
use crate::compile::{Intent, State, port_changes};
use sluice_store::{Change, InstancesOf, NodeId, OutboxRow, Position, SnapshotPart, StoreError, Topology};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinError;

/// Interval of polling: the longest delay until a commit of another replica is seen.
const POLL: Duration = Duration::from_millis(100);
/// Pause after a store error.
const RETRY: Duration = Duration::from_millis(250);
/// Most outbox rows that one read returns.
const ROWS: u32 = 1024;
/// At the start, this many earlier revisions are compiled too, so that nodes which were only a little behind
/// when the controller stopped need no snapshot.
const LOOK_BACK: u64 = 64;
/// Most outbox rows of these earlier revisions.
const LOOK_BACK_ROWS: usize = 128;

#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("compiling failed")]
    Compile(#[from] JoinError),
    #[error("the snapshot contains no topology")]
    NoTopology,
}

/// Follows the outbox until the future is dropped. Starts again from a snapshot after an error, also if the database
/// went back to an earlier state.
pub async fn follow(push: Arc<Push>, observer: Arc<dyn ChangeObserver>) {
    let follower = Follower { push, observer };
    // Where to continue; with a revision only if the database must still have this position.
    let mut at = Position::default();
    loop {
        let error = match follower.start(at).await {
            Ok((followed, position)) => {
                at = position;
                follower.keep_up(followed, &mut at).await
            }
            Err(error) => error,
        };
        if let FollowError::Store(StoreError::Rewound) = error {
            match history::rewind(&follower.push, at).await {
                Ok(()) => {
                    at = Position::default();
                    continue;
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "cannot continue after a rewind"
                    );
                }
            }
        }
        follower.push.db.count_error();
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "cannot follow the outbox; starting again from a snapshot"
        );
        tokio::time::sleep(RETRY).await;
    }
}

/// What the follower has compiled so far.
struct Followed {
    state: State,
    intent: Intent,
}

impl Followed {
    /// Advances by one revision and compiles it.
    fn apply(&mut self, revision: u64, changes: &[Change]) -> Step {
        let Self { state, intent } = self;
        let is_bulk = |change: &Change| match change {
            Change::InstancesCreated { instances, .. } => instances.len() >= MIN_INSTANCES,
            _ => false,
        };
        if !changes.iter().any(is_bulk) || !changes.iter().all(Intent::ignores_state) {
            intent.apply(state, revision, changes);
            return Step::new(state.apply(revision, changes));
        }
        let compiled = state.apply(revision, changes);
        std::thread::scope(|scope| {
            scope.spawn(|| intent.apply(state, revision, changes));
            Step::new(compiled)
        })
    }
}

/// The receivers of compiled steps and of changes.
struct Follower {
    push: Arc<Push>,
    observer: Arc<dyn ChangeObserver>,
}

impl Follower {
    /// Reads the topology and makes the compiler's state of it. The state contains instances only if the
    /// model preprograms paths; the digests and the membership contain them always.
    async fn read_topology(&self, known: Position) -> Result<(Topology, Followed, Members), FollowError> {
        let (sink, mut parts) = mpsc::channel(1);
        let preprograms = self.push.compiled.model().preprograms();
        let snapshot = self.push.db.store.snapshot_from(known, InstancesOf::All, sink);
        let (done, first) = tokio::join!(snapshot, async {
            let mut first: Option<(Topology, Followed, Members)> = None;
            while let Some(part) = parts.recv().await {
                match (part, &mut first) {
                    (SnapshotPart::Topology(topology), _) => {
                        let state = State::new(&topology, self.push.compiled.model());
                        let intent = Intent::new(&state);
                        let members = Members::new(&topology);
                        first = Some((*topology, Followed { state, intent }, members));
                    }
                    (SnapshotPart::Instances(instances), Some((_, followed, members))) => {
                        members.add_instances(&instances);
                        followed.intent.add_instances(&followed.state, &instances);
                        if preprograms {
                            followed.state.add_instances(&instances);
                        }
                    }
                    (SnapshotPart::Instances(_), None) => {}
                }
            }
            first
        });
        done?;
        first.ok_or(FollowError::NoTopology)
    }

    async fn start(&self, known: Position) -> Result<(Followed, Position), FollowError> {
        let (topology, followed, members) = self.read_topology(known).await?;
        let position = Position { revision: topology.revision, commit: topology.commit };
        let state = &followed.state;
        self.push.hub.load(self.push.db.store.node_states().await?);
        let recent = self.recent_steps(state).await?;
        let (counted, addresses) = self.push.db.store.address_counts().await?;
        self.push.change_members(|old| *old = members);
        self.push.topology.reset(position, state.mounted());
        // What was read or reported before a rewind is of another history.
        self.push.snapshots.forget();
        self.push.digests.forget();
        self.push.compiled.publish_updates(state);
        self.push.compiled.publish_zones(state);
        self.observer.reset(&topology, counted, &addresses);
        let floor = recent.first().map_or(state.revision(), |(before, _)| *before);
        self.push.log.reset(floor);
        for (_, step) in recent {
            self.push.log.push(step);
        }
        tracing::info!(revision = state.revision(), floor, "following the outbox");
        Ok((followed, position))
    }

    /// The last revisions before the state's revision, back to the newest one that changed more than
    /// instances and tenants: changes of instances compile to the same entries, and with the same policies, as long as
    /// nothing else changes. Each step comes with the revision before it.
    async fn recent_steps(&self, state: &State) -> Result<Vec<(u64, Step)>, FollowError> {
        if self.push.compiled.model().preprograms() {
            // The paths of a revision depend on the instances of that time, which the state no longer has.
            return Ok(Vec::new());
        }
        let mut after = state.revision().saturating_sub(LOOK_BACK);
        let mut rows = Vec::new();
        while after < state.revision() && rows.len() <= LOOK_BACK_ROWS {
            match self.push.db.store.outbox(after, 16).await {
                Ok(more) if more.is_empty() => break,
                Ok(more) => {
                    after = more.last().map_or(after, |row| row.revision);
                    rows.extend(more);
                }
                Err(StoreError::Compacted { compacted, .. }) if compacted > after => {
                    rows.clear();
                    after = compacted;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if after < state.revision() || rows.len() > LOOK_BACK_ROWS {
            return Ok(Vec::new());
        }
        let mut scratch = state.clone();
        let mounted = state.mounted();
        let mut steps = Vec::new();
        let mut before = None;
        let until = state.revision();
        for (Position { revision, commit }, changes) in
            by_revision(rows).into_iter().take_while(|(at, _)| at.revision <= until)
        {
            let simple = changes.iter().all(|change| {
                // The state has the numbers of ports in VPCs with mounts as of now.
                let counts = port_changes(change).is_some_and(|vpc| mounted.contains(&vpc.id));
                !counts
                    && matches!(
                        change,
                        Change::InstancesCreated { .. }
                            | Change::InstancesRemoved { .. }
                            | Change::InstanceGroupsChanged { .. }
                            | Change::InstancesChanged { .. }
                            | Change::SecurityGroupUpdated { .. }
                            | Change::TenantUpserted(_)
                            | Change::TenantRemoved(_)
                            | Change::CreditChanged { .. }
                    )
            });
            match before.filter(|_| simple) {
                Some(before) => {
                    steps.push((before, Step::new(scratch.apply(revision, &changes)).of_commit(commit)));
                }
                None => steps.clear(),
            }
            before = Some(revision);
        }
        Ok(steps)
    }

    /// Follows until an error that is not temporary, and returns that error. `at` is the position of the state.
    async fn keep_up(&self, mut followed: Followed, at: &mut Position) -> FollowError {
        let mut failing = false;
        loop {
            let began = Instant::now();
            self.push.compare_digests(&followed.state, &mut followed.intent);
            let rows = match self.push.db.store.outbox_from(*at, ROWS).await {
                Ok(rows) => rows,
                Err(error @ StoreError::Unavailable { .. }) => {
                    self.push.db.count_error();
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
                let _ = tokio::time::timeout(POLL, self.push.db.wait_for_commit()).await;
                continue;
            }
            let read = began.elapsed();
            for (position, changes) in by_revision(rows) {
                match self.apply_revision(followed, position, changes, read).await {
                    Ok(next) => (followed, *at) = (next, position),
                    Err(error) => return error,
                }
            }
        }
    }

    async fn apply_revision(
        &self,
        mut followed: Followed,
        position: Position,
        changes: Vec<Change>,
        read: Duration,
    ) -> Result<Followed, FollowError> {
        let Position { revision, commit } = position;
        self.push.change_members(|members| members.apply(revision, &changes));
        self.push.topology.apply(position, &changes);
        self.observer.apply(revision, &changes);
        let clusters: BTreeSet<_> = changes
            .iter()
            .filter_map(|change| match change {
                Change::InstancesCreated { vpc, .. } => Some(vpc.clusters()),
                _ => None,
            })
            .flatten()
            .collect();
        let clusters_change = changes.iter().any(|change| {
            matches!(
                change,
                Change::ClusterUpserted { .. } | Change::ClusterRemoved(_) | Change::KeysChanged { .. }
            )
        });
        let hosts_change =
            changes.iter().any(|change| matches!(change, Change::HostUpserted(_) | Change::HostRemoved(_)));
        let began = Instant::now();
        // Compiling a bulk creation takes long and must not block the streams.
        let (followed, step) = tokio::task::spawn_blocking(move || {
            let step = followed.apply(revision, &changes).of_commit(commit);
            // It takes a while to free a million instances.
            tokio::task::spawn_blocking(move || drop(changes));
            (followed, step)
        })
        .await?;
        if step.created >= MIN_INSTANCES {
            let stages = CompileStages { read, compile: began.elapsed() };
            let gateways = self.push.members(|m| clusters.iter().flat_map(|c| m.gateways_of(*c)).collect());
            self.push.timeline.compiled(revision, step.created, stages, gateways);
        }
        if clusters_change {
            self.push.compiled.publish_updates(&followed.state);
        }
        if clusters_change || hosts_change {
            self.push.compiled.publish_zones(&followed.state);
        }
        let removed = step.removed_nodes.clone();
        self.push.log.push(step);
        for node in removed {
            self.push.hub.remove(node);
            self.push.verifications.end(node);
            if let NodeId::Gateway(id) = node {
                self.observer.gateway_removed(id);
            }
        }
        Ok(followed)
    }
}

fn by_revision(rows: Vec<OutboxRow>) -> Vec<(Position, Vec<Change>)> {
    let mut revisions: Vec<(Position, Vec<Change>)> = Vec::new();
    for OutboxRow { revision, commit, change, .. } in rows {
        match revisions.last_mut() {
            Some((at, changes)) if at.revision == revision => changes.push(change),
            _ => revisions.push((Position { revision, commit }, vec![change])),
        }
    }
    revisions
}
