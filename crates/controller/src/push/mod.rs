//! Sends compiled revisions to nodes, and records what nodes acknowledge.
//!
//! `follow` reads each revision from the outbox and compiles it; `steps` keeps the encoded result in a
//! bounded log; `stream` is one node's position in that log; `snapshots` limits how many nodes are sent their whole
//! tables at a time, and shares what is equal in them; `southbound` is the gRPC service that opens
//! streams and receives acknowledgments, which `hub` keeps; from these, `members` and `written` determine which objects
//! are programmed. `enrollment` issues the tokens with which nodes get their certificates, and `timeline`
//! measures the stages of bulk creations. `history` finds databases that went back to an earlier state, and
//! `unconfirmed` has what nodes then keep. `removals` ends the wait for nodes that may have entries of deleted objects.
//!
//! Upper layers implement [`ChangeObserver`] and [`LoadObserver`] to receive changes and gateways' reports.
//! This module does not depend on these layers.

mod claims;
mod connection;
mod digests;
mod ending;
mod enrollment;
mod follow;
mod health;
mod health_store;
mod history;
mod hub;
mod members;
mod migrations;
mod node;
mod node_states;
mod removals;
mod services;
mod snapshots;
mod southbound;
mod steps;
mod stream;
mod timeline;
mod topology;
mod unconfirmed;
mod written;

pub use claims::{Claims, process_claims};
pub use connection::NodeConnection;
pub use ending::{Ending, HostEnding};
pub use enrollment::{EnrollError, Reach, issue};
pub use follow::follow;
pub use health::{HealthStates, LastingFinding};
pub use health_store::{NodeHealth, ReportedFinding, save_health};
#[cfg(test)]
pub use health_store::{Reported, WatchedNode};
pub use history::{hold_writes, release_writes};
pub use hub::{Hub, NodeView};
pub use members::{Members, MovingGateway, Needs, VpcLocation};
pub use migrations::{MigrationReports, process_migrations};
pub use node::southbound_id;
pub use node_states::{compact_outbox, save_all, save_node_states};
pub use removals::{PendingRemovals, release_removals};
pub use services::{MemberHealth, judge_members};
pub use snapshots::{BYTES_MAX, PLACES, SLOW_PLACES};
pub use southbound::SouthboundService;
pub use steps::{MAX_BYTES, MAX_STEPS, StepLog};
#[cfg(test)]
pub use steps::{Step, encode};
pub use timeline::{ApiStages, Finished, MIN_INSTANCES, Timeline};
pub use unconfirmed::{UnconfirmedLists, addresses, has_address, is_of, is_route_to};
pub use written::{Entries, EntryFailure, Written};

use self::snapshots::Snapshots;
use self::topology::SharedTopology;
use crate::compile::CompiledClusters;
use crate::database::Database;
use digests::{DigestReports, Verifications};
use ending::EndingQuestions;
use history::Histories;
use sluice_southbound::proto::Heartbeat;
use sluice_store::{AddressCounts, Change, NodeId, Topology};
use sluice_types::{GatewayId, VpcId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Receives every change, in the order of revisions. Implemented by a layer above.
pub trait ChangeObserver: Send + Sync {
    /// The follower starts from a snapshot. `addresses` has the numbers of addresses of each VPC as of revision
    /// `counted`, which is not older than the topology.
    fn reset(&self, topology: &Topology, counted: u64, addresses: &[(VpcId, AddressCounts)]);
    /// All changes of the next revision.
    fn apply(&self, revision: u64, changes: &[Change]);
    /// A gateway was deleted.
    fn gateway_removed(&self, gateway: GatewayId);
}

/// Receives gateways' reports of their streams. Implemented by a layer above.
pub trait LoadObserver: Send + Sync {
    /// A gateway's stream starts; `session` distinguishes it from earlier streams.
    fn stream_opened(&self, gateway: GatewayId, session: u64);
    /// That stream ended.
    fn stream_closed(&self, gateway: GatewayId, session: u64);
    /// A heartbeat arrived on that stream.
    fn heartbeat(&self, gateway: GatewayId, session: u64, heartbeat: &Heartbeat);
}

/// Counters of streams and enrollments, for the metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Snapshots sent.
    pub snapshots: AtomicU64,
    /// Steps sent, over all streams.
    pub steps: AtomicU64,
    /// Bytes of updates sent, over all streams.
    pub bytes: AtomicU64,
    /// Certificates issued for tokens.
    pub enrolled: AtomicU64,
    /// Refused enrollments and streams.
    pub refused: AtomicU64,
    /// Digests of gateways' tables that agree with what was compiled.
    pub digests_equal: AtomicU64,
    /// Digests that differ.
    pub digests_different: AtomicU64,
    /// Digests that could not be compared because of changes in the meantime.
    pub digests_undecided: AtomicU64,
    /// Entries that nodes repaired.
    pub repaired: AtomicU64,
    /// Streams that were ended because the node took or acknowledged nothing.
    pub stalled: AtomicU64,
    /// Transactions that saved what nodes acknowledged.
    pub saves: AtomicU64,
    /// Addresses that got another holder.
    pub claims: AtomicU64,
    /// Claims of addresses whose holder has announced them later.
    pub claims_late: AtomicU64,
    /// Claims of addresses that were refused.
    pub claims_refused: AtomicU64,
    /// Instances that have migrated.
    pub migrations: AtomicU64,
    /// Reports of target hosts that had switched although the migration was canceled.
    pub migrations_refused: AtomicU64,
    /// Reports of migrations that were ignored: not of the target host, of a migration that has ended, or malformed.
    pub migrations_ignored: AtomicU64,
    /// Migrations that health checks have started.
    pub health_migrations: AtomicU64,
    /// Members of services that got another status.
    pub member_changes: AtomicU64,
    /// Events about the health of nodes.
    pub health_events: AtomicU64,
    /// Answers of hosts to questions about sessions that nothing awaits.
    pub answers_ignored: AtomicU64,
}

/// Adds one to a counter.
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The handle of this module: the state of all nodes, and the steps to send.
pub struct Push {
    db: Arc<Database>,
    compiled: Arc<CompiledClusters>,
    /// Streams, acknowledgments and heartbeats of nodes.
    pub hub: Hub,
    /// The log of compiled steps.
    pub log: StepLog,
    /// Snapshots that are sent.
    pub snapshots: Snapshots,
    topology: SharedTopology,
    /// Stage times of bulk creations.
    pub timeline: Timeline,
    /// Counters for the metrics.
    pub counters: Counters,
    /// Claims of addresses that instances have in turn.
    pub claims: Claims,
    /// What hosts report of live migrations.
    pub migrations: MigrationReports,
    /// What hosts and gateways report of members of services and their hosts.
    pub services: MemberHealth,
    /// Entries that nodes have and the database lost.
    pub unconfirmed: UnconfirmedLists,
    /// What health checks of nodes have found.
    pub health: HealthStates,
    /// Deletions that nodes have not acknowledged, as of the last look.
    pub removals: PendingRemovals,
    ending: EndingQuestions,
    histories: Histories,
    members: RwLock<Members>,
    digests: DigestReports,
    verifications: Verifications,
}

impl Push {
    /// Starts without nodes and steps.
    pub fn new(db: Arc<Database>, compiled: Arc<CompiledClusters>) -> Self {
        Self {
            db,
            compiled,
            hub: Hub::default(),
            log: StepLog::default(),
            snapshots: Snapshots::default(),
            topology: SharedTopology::default(),
            timeline: Timeline::default(),
            counters: Counters::default(),
            claims: Claims::default(),
            migrations: MigrationReports::default(),
            services: MemberHealth::default(),
            unconfirmed: UnconfirmedLists::default(),
            health: HealthStates::default(),
            removals: PendingRemovals::default(),
            ending: EndingQuestions::default(),
            histories: Histories::default(),
            members: RwLock::default(),
            digests: DigestReports::default(),
            verifications: Verifications::default(),
        }
    }

    /// The database id that nodes get. It depends on the model, so that to a node the tables of another model
    /// look like those of another database.
    fn database_id(&self) -> u64 {
        self.db.store.database_id() ^ self.compiled.model().salt()
    }

    /// Calls `read` with the membership as of the last revision that was followed.
    pub fn members<R>(&self, read: impl FnOnce(&Members) -> R) -> R {
        read(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the membership. Only the follower calls it.
    fn change_members(&self, change: impl FnOnce(&mut Members)) {
        change(&mut self.members.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// For each object, given by its needs, revision and entries, whether it is programmed.
    pub fn written(&self, objects: &[(Needs, u64, Entries)]) -> Vec<Written> {
        self.members(|members| written::written(members, &self.hub, objects))
    }

    /// Names of nodes, for messages to people.
    pub fn names(&self, nodes: &[NodeId]) -> Vec<String> {
        self.members(|members| nodes.iter().map(|node| members.name(*node)).collect())
    }
}
