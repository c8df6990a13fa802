//! The Multi-IPs scheduler (Zeta section VI-B): it decides which gateway of a cluster owns which vIP, and
//! which cluster has which gateway, as loads change.
//!
//! 1. *In the cluster.* A vIP-vMAC pair moves from the most loaded gateway above the threshold to the least
//!    loaded one, and again, until no gateway is above the threshold.
//! 2. *Between clusters.* If that is not enough, the least loaded cluster gives a gateway, after its vIPs
//!    have moved to the other gateways of its cluster. If no cluster can give one without becoming overloaded, a
//!    new gateway is requested, once until the cluster has it or is relieved. One gateway moves at a time, and the next one starts
//!    [`SchedulerSettings::expansion_wait_ms`] later at the earliest.
//!
//! In addition, a gateway that returned or was added gets its share: one vIP at a time moves from the
//! gateway with the most vIPs to one that has at least two fewer, if that does not make the loads more
//! unequal.
//!
//! # States of a gateway
//!
//! ```text
//!             load > overload_threshold
//!   NORMAL ---------------------------> OVERLOADED: its vIPs move to others, or its cluster needs a gateway
//!     |  ^ <---------------------------     |
//!     |  |    load <= relief_threshold        | its cluster needs a gateway, and no other can give one
//!     |  |                                  v
//!     |  |                              REQUESTED (state of the cluster) -> ends when it has a gateway more,
//!     |  |                                  or no gateway is overloaded
//!     |  | KeepGateway: its cluster is overloaded itself, or the gateway is lost or late
//!     v  |
//!   RELEASED (chosen for another cluster; its vIPs move to the others of its cluster)
//!     |
//!     | ReassignGateway: it has no vIP left
//!     v
//!   SENT (joins the other cluster, reports nothing) -> NORMAL when the other cluster reports it; or in its old
//!        cluster, by KeepGateway, if it does not arrive within expansion_wait_ms
//! ```
//!
//! # Why the moves end
//!
//! A gateway is overloaded from [`SchedulerSettings::overload_threshold`] until it is at
//! [`SchedulerSettings::relief_threshold`], and a gateway that takes a vIP is at most at
//! [`SchedulerSettings::accept_threshold`] with it, which is lower than both. So no move overloads a gateway:
//! on constant load, vIPs leave only gateways that were overloaded at the start, each once. Sharing lowers
//! the sum of the squares of the loads, or keeps it and lowers that of the numbers of vIPs, and overloads
//! no gateway either. Neither can continue forever. Sharing does not return a vIP to a gateway that it
//! left because of overload, until the cluster forwards notably less than at that time. A vIP that
//! has moved stays for [`SchedulerSettings::hold_down_ms`], even if a noisy report suggests otherwise.
//!
//! # Time
//!
//! The clock is the caller's. A load that was measured before a move that concerns it, or partly before, is
//! corrected by what the pair carried at that time. So a move is not made twice because its effect has not
//! been reported yet.

mod engine;
mod text;

use serde::Serialize;
pub use sluice_types::SchedulerSettings;
use sluice_types::{ClusterId, GatewayId, SchedulerSettingsError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

/// Time from a decision to the first packet on the new path: the decision is stored, sent, and announced.
const EFFECT_MS: u64 = 20;

/// A vIP and its traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VipDemand {
    /// The vIP, whose vMAC moves with it.
    pub vip: IpAddr,
    /// Packets per second. If gateways do not count by vIP, an equal part of the gateway's packets.
    pub demand_pps: f64,
}

/// The time in which something was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasurementTime {
    /// Start, in milliseconds of the scheduler's clock.
    pub from_ms: u64,
    /// End, in milliseconds of the scheduler's clock.
    pub to_ms: u64,
}

impl MeasurementTime {
    /// The fraction of the time that was before a moment, 0 to 1.
    pub fn before(&self, at_ms: u64) -> f64 {
        if at_ms >= self.to_ms || self.from_ms >= self.to_ms {
            return f64::from(at_ms >= self.to_ms);
        }
        at_ms.saturating_sub(self.from_ms) as f64 / (self.to_ms - self.from_ms) as f64
    }
}

/// The last report of a live gateway, with its current vIPs.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayReport {
    /// The gateway.
    pub id: GatewayId,
    /// Packets per second that it can forward.
    pub capacity_pps: f64,
    /// Load of its forwarding cores. May be above 1 if demand is estimated.
    pub load: f64,
    /// Packets per second that it forwards.
    pub pps: f64,
    /// When load and packets were measured.
    pub measured: MeasurementTime,
    /// Its vIPs according to the controller, after moves that are not reported yet.
    pub pairs: Vec<VipDemand>,
    /// The gateway must give up its vIPs: it is drained, or will be upgraded.
    pub draining: bool,
}

/// A cluster and its live gateways.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterReport {
    /// The cluster.
    pub id: ClusterId,
    /// Only gateways that answer. The vIPs of a gateway that does not answer are taken over without the scheduler.
    pub gateways: Vec<GatewayReport>,
}

/// Invalid settings or reports.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SchedulerSettingsError),
    /// A gateway is reported twice.
    #[error("{0} is reported twice")]
    DuplicateGateway(GatewayId),
    /// A cluster is reported twice.
    #[error("{0} is reported twice")]
    DuplicateCluster(ClusterId),
    /// Two gateways report the same vIP.
    #[error("{vip} belongs to {one} and to {other}")]
    TwoOwners {
        /// The vIP.
        vip: IpAddr,
        /// One owner.
        one: GatewayId,
        /// Another owner.
        other: GatewayId,
    },
    /// A value is negative or not a number.
    #[error("{gateway} reports {what} of {found}")]
    Number {
        /// The gateway that reported the value.
        gateway: GatewayId,
        /// Name of the value.
        what: &'static str,
        /// The value.
        found: f64,
    },
}

/// A decision that the caller must carry out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A vIP gets another owner in its cluster.
    MoveVip {
        /// The vIP.
        vip: IpAddr,
        /// The cluster of the vIP.
        cluster: ClusterId,
        /// The current owner.
        from: GatewayId,
        /// The new owner.
        to: GatewayId,
    },
    /// A gateway will be given to another cluster: its vIPs move to the other gateways of its cluster first.
    ReleaseGateway {
        /// The gateway.
        gateway: GatewayId,
        /// Its current cluster.
        from: ClusterId,
        /// Its future cluster.
        to: ClusterId,
    },
    /// A released gateway has no vIP left: it gets the other cluster's tables and joins it.
    ReassignGateway {
        /// The gateway.
        gateway: GatewayId,
        /// The cluster that it leaves.
        from: ClusterId,
        /// The cluster that it joins.
        to: ClusterId,
    },
    /// A released or sent gateway stays in its cluster: the cluster needs it, or the gateway is lost or late.
    KeepGateway {
        /// The gateway.
        gateway: GatewayId,
        /// The cluster in which it stays.
        cluster: ClusterId,
    },
    /// A cluster needs a gateway that no other cluster can give.
    RequestGateway {
        /// The cluster.
        cluster: ClusterId,
    },
}

/// Why a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionReason {
    /// The owner of the vIP is overloaded.
    Overloaded {
        /// Load of the owner.
        load: f64,
        /// The relief threshold, below which the load must get.
        threshold: f64,
        /// Load of the owner without the vIP.
        after: f64,
        /// Load of the new owner.
        receiver: f64,
        /// Load of the new owner with the vIP.
        receiver_after: f64,
    },
    /// The owner must give up its vIPs.
    Draining {
        /// Number of vIPs that it still has.
        left: usize,
        /// Load of the new owner.
        receiver: f64,
        /// Load of the new owner with the vIP.
        receiver_after: f64,
    },
    /// The new owner has fewer vIPs than others.
    Share {
        /// Number of vIPs of the owner.
        from: usize,
        /// Number of vIPs of the new owner.
        to: usize,
    },
    /// No gateway of the cluster can take a vIP.
    ClusterOverloaded {
        /// The overloaded gateway.
        gateway: GatewayId,
        /// Its load.
        load: f64,
        /// Mean load of its cluster.
        mean: f64,
        /// The cluster that gives a gateway, and its mean load without that gateway.
        donor: Option<(ClusterId, f64)>,
    },
    /// The gateway has no vIP left.
    Emptied,
    /// The gateway's own cluster has an overloaded gateway.
    NeededByOwnCluster {
        /// The overloaded gateway.
        gateway: GatewayId,
        /// Its load.
        load: f64,
    },
    /// It sends no reports any more, or did not give up its vIPs or arrive in the other cluster in time.
    Lost,
}

/// A decision and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The decision.
    pub action: Action,
    /// The reason.
    pub reason: DecisionReason,
}

/// Why an overloaded or draining gateway keeps its vIPs for now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// The limit of moves in this interval is reached.
    Limit {
        /// The gateway.
        gateway: GatewayId,
        /// The limit.
        moves_per_interval: usize,
    },
    /// The vIPs that other gateways could take are in hold-down.
    Held {
        /// The gateway.
        gateway: GatewayId,
    },
    /// No other gateway of the cluster can take a vIP.
    NoReceiver {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A cluster could give a gateway, but another one is moving between clusters, or was lately.
    OneAtATime {
        /// The gateway.
        gateway: GatewayId,
        /// The cluster that could give a gateway.
        donor: ClusterId,
    },
    /// A gateway for its cluster was requested, or is moving there.
    Expansion {
        /// The gateway.
        gateway: GatewayId,
        /// Its cluster.
        cluster: ClusterId,
    },
    /// It has only one vIP, or no vIP that even an empty gateway could take: more gateways would not help,
    /// more vIPs would.
    Indivisible {
        /// The gateway.
        gateway: GatewayId,
        /// Its load.
        load: f64,
    },
}

/// The result of a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Decisions, in the order in which they must be carried out.
    pub decisions: Vec<Decision>,
    /// Gateways for which nothing was decided because of a limit.
    pub waits: Vec<Wait>,
}

/// A move of a vIP that was decided.
#[derive(Clone, Copy, Debug, PartialEq)]
struct VipMove {
    at_ms: u64,
    from: GatewayId,
    to: GatewayId,
    /// Demand of the vIP at that time, which corresponds to its load.
    demand_pps: f64,
    /// Packets per second of the vIP at that time.
    pps: f64,
}

impl VipMove {
    /// The fraction of a measurement that was before the move took effect.
    fn before(&self, measured: &MeasurementTime) -> f64 {
        measured.before(self.at_ms + EFFECT_MS)
    }
}

/// A gateway that moves to another cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transfer {
    from: ClusterId,
    to: ClusterId,
    since_ms: u64,
    /// The gateway had no vIP left and was sent to the other cluster.
    sent: bool,
}

/// A request for a new gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    since_ms: u64,
    /// Number of gateways that the cluster had at that time.
    gateways: usize,
}

/// The state between reports. Everything else is in the reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduler {
    settings: SchedulerSettings,
    /// Times of the moves in the last interval.
    recent_ms: VecDeque<u64>,
    /// The last move of each vIP, as long as it matters.
    moved: BTreeMap<IpAddr, VipMove>,
    overloaded: BTreeSet<GatewayId>,
    transfers: BTreeMap<GatewayId, Transfer>,
    /// When the last transfer began.
    transferred_ms: Option<u64>,
    /// An operator is moving a gateway between clusters.
    operator_move: bool,
    /// Gateways that could not be given away, and when that was tried.
    refused: BTreeMap<GatewayId, u64>,
    requests: BTreeMap<ClusterId, Request>,
    /// When each cluster last moved a vIP for sharing.
    shared_ms: BTreeMap<ClusterId, u64>,
    /// Gateways that a vIP left because they were overloaded, with the traffic of their cluster at
    /// that time in packets per second.
    left_overloaded: BTreeMap<IpAddr, BTreeMap<GatewayId, f64>>,
}

impl Scheduler {
    /// A scheduler that has decided nothing yet.
    ///
    /// # Errors
    /// Thresholds with which vIPs could move back and forth; values out of their range.
    pub fn new(settings: SchedulerSettings) -> Result<Self, ReportError> {
        settings.check()?;
        Ok(Self {
            settings,
            recent_ms: VecDeque::new(),
            moved: BTreeMap::new(),
            overloaded: BTreeSet::new(),
            transfers: BTreeMap::new(),
            transferred_ms: None,
            operator_move: false,
            refused: BTreeMap::new(),
            requests: BTreeMap::new(),
            shared_ms: BTreeMap::new(),
            left_overloaded: BTreeMap::new(),
        })
    }

    /// The settings.
    pub fn settings(&self) -> &SchedulerSettings {
        &self.settings
    }

    /// Sets whether an operator is moving a gateway between clusters. The scheduler moves no gateway
    /// meanwhile.
    pub fn set_operator_move(&mut self, yes: bool) {
        self.operator_move = yes;
    }

    /// A gateway cannot be given away: it stays, and is not chosen again for
    /// [`SchedulerSettings::expansion_wait_ms`].
    pub fn refuse(&mut self, gateway: GatewayId, now_ms: u64) {
        self.transfers.remove(&gateway);
        self.transferred_ms = None;
        self.refused.insert(gateway, now_ms);
    }

    /// Clusters that need a gateway which no other cluster can give.
    pub fn requested_clusters(&self) -> Vec<ClusterId> {
        self.requests.keys().copied().collect()
    }

    /// The fraction of a vIP's load by which [`Scheduler::decide`] corrects a load that was measured in
    /// this time, because the vIP has moved since.
    pub fn correction(&self, vip: IpAddr, measured: &MeasurementTime) -> f64 {
        self.moved.get(&vip).map_or(0.0, |moved| moved.before(measured))
    }

    /// Decides from reports. The caller carries the decisions out in order, and reports the new owners from
    /// then on.
    ///
    /// # Errors
    /// Reports that contradict themselves; nothing is decided or recorded then.
    pub fn decide(&mut self, now_ms: u64, clusters: &[ClusterReport]) -> Result<Outcome, ReportError> {
        engine::check(clusters)?;
        Ok(engine::Engine::new(self, now_ms, clusters).run())
    }
}
