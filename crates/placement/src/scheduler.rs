//! The Multi-IPs scheduler (Zeta section VI-B): it decides which gateway of a cluster owns which vIP, and
//! which cluster has which gateway, as loads change.
//!
//! 1. *In the cluster.* A vIP-vMAC pair moves from the most loaded gateway above the threshold to the least
//!    loaded one, and again, until no gateway is above the threshold.
//! 2. *Between clusters.* If that is not enough, the least loaded cluster gives a gateway, after its vIPs have
//!    moved to the other gateways of its cluster. If that would endanger the cluster, a new gateway is
//!    requested, once for each need. One gateway moves at a time, and the next one starts
//!    [`SchedulerSettings::expansion_wait_ms`] later at the earliest.
//!
//! In addition, a gateway that returned or was added gets its share: one vIP at a time moves from the
//! gateway with the most vIPs to one that has at least two less, if that does not make the loads more
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
//!   SENT (joins the other cluster, reports nothing) -> NORMAL when the other cluster reports it
//! ```
//!
//! # Why the moves end
//!
//! A gateway is overloaded from [`SchedulerSettings::overload_threshold`] until it is at
//! [`SchedulerSettings::relief_threshold`], and a gateway that takes a vIP is at most at
//! [`SchedulerSettings::accept_threshold`] with it, which is lower than both. So no move overloads a gateway:
//! on constant load, vIPs leave only gateways that were overloaded at the start, each once. Sharing lowers
//! the sum of the squares of the loads, or keeps it and lowers that of the numbers of vIPs, and overloads
//! no gateway either. Neither can continue forever. Sharing does not return a vIP to a gateway that it left
//! because of overload, until the cluster forwards notably less than at that time. A vIP that has moved
//! stays for [`SchedulerSettings::hold_down_ms`], even if a noisy report suggests otherwise.
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

/// A vIP and the traffic that comes to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The vIP; its vMAC goes with it.
    pub vip: IpAddr,
    /// Packets a second. Where gateways do not count by vIP: an equal part of what the gateway forwards.
    pub demand_pps: f64,
}

/// When something was measured: from `from_ms` to `to_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Start of the measurement, in milliseconds.
    pub from_ms: u64,
    /// End of the measurement, in milliseconds.
    pub to_ms: u64,
}

impl Measured {
    /// Which part of it was before a moment, 0 to 1.
    pub fn before(&self, at_ms: u64) -> f64 {
        if at_ms >= self.to_ms || self.from_ms >= self.to_ms {
            return f64::from(at_ms >= self.to_ms);
        }
        at_ms.saturating_sub(self.from_ms) as f64 / (self.to_ms - self.from_ms) as f64
    }
}

/// A live gateway as last reported, with the vIPs that it owns now.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayReport {
    /// Which.
    pub id: GatewayId,
    /// Packets a second that it can forward.
    pub capacity_pps: f64,
    /// How busy its forwarding cores are; may be above 1 where demand is estimated.
    pub load: f64,
    /// Packets a second that it forwards.
    pub pps: f64,
    /// When that was measured, by the scheduler's clock.
    pub measured: Measured,
    /// Its vIPs by the controller's present word, moves not yet reported included.
    pub pairs: Vec<Pair>,
    /// The gateway must give up its vIPs: it is drained, or about to be upgraded.
    pub draining: bool,
}

/// A cluster and its live gateways.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterReport {
    /// Which.
    pub id: ClusterId,
    /// Those that answer; vIPs of those that do not are the failover's concern.
    pub gateways: Vec<GatewayReport>,
}

/// Settings or reports that make no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SchedulerSettingsError),
    /// A gateway is reported twice.
    #[error("{0} is reported twice")]
    GatewayTwice(GatewayId),
    /// A cluster is reported twice.
    #[error("{0} is reported twice")]
    ClusterTwice(ClusterId),
    /// A vIP has two owners.
    #[error("{vip} belongs to {one} and to {other}")]
    TwoOwners {
        /// The vIP.
        vip: IpAddr,
        /// An owner.
        one: GatewayId,
        /// Another.
        other: GatewayId,
    },
    /// A value that is not a number, or is negative.
    #[error("{gateway} reports {what} of {found}")]
    Number {
        /// Gateway that reported the number.
        gateway: GatewayId,
        /// Of what.
        what: &'static str,
        /// The number.
        found: f64,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A vIP gets another owner in its cluster.
    MoveVip {
        /// The vIP.
        vip: IpAddr,
        /// In which cluster.
        cluster: ClusterId,
        /// Its owner.
        from: GatewayId,
        /// Its owner from now on.
        to: GatewayId,
    },
    /// A gateway is to be given to another cluster: its vIPs move to its neighbours first.
    ReleaseGateway {
        /// Which.
        gateway: GatewayId,
        /// Whose it is.
        from: ClusterId,
        /// Whose it will be.
        to: ClusterId,
    },
    /// A released gateway has no vIPs any more: it gets the other cluster's tables, and joins it.
    ReassignGateway {
        /// Which.
        gateway: GatewayId,
        /// Whose it was.
        from: ClusterId,
        /// Whose it is.
        to: ClusterId,
    },
    /// A gateway is not given away after all: its own cluster needs it, or it is gone.
    KeepGateway {
        /// Which.
        gateway: GatewayId,
        /// Whose it stays.
        cluster: ClusterId,
    },
    /// A cluster needs a gateway that no other can give.
    RequestGateway {
        /// Which.
        cluster: ClusterId,
    },
}

/// Reason for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The owner is overloaded.
    Overloaded {
        /// Its load.
        load: f64,
        /// What it is to be below.
        threshold: f64,
        /// What it is at without the vIP.
        after: f64,
        /// The new owner's load.
        receiver: f64,
        /// The same with the vIP.
        receiver_after: f64,
    },
    /// The owner must give up its vIPs.
    Draining {
        /// vIPs that it has left.
        left: usize,
        /// The new owner's load.
        receiver: f64,
        /// The same with the vIP.
        receiver_after: f64,
    },
    /// The new owner has fewer vIPs than others.
    Share {
        /// vIPs of the owner.
        from: usize,
        /// vIPs of the new owner.
        to: usize,
    },
    /// No gateway of the cluster can take a vIP.
    ClusterOverloaded {
        /// The overloaded gateway.
        gateway: GatewayId,
        /// Its load.
        load: f64,
        /// The mean of its cluster.
        mean: f64,
        /// Where a gateway comes from, and the mean of that cluster without it.
        donor: Option<(ClusterId, f64)>,
    },
    /// It has no vIP left.
    Emptied,
    /// Its cluster has an overloaded gateway itself.
    NeededAtHome {
        /// Which.
        gateway: GatewayId,
        /// Its load.
        load: f64,
    },
    /// It is not reported any more, or did not arrive in time.
    Lost,
}

/// What is to be done, and why.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// What.
    pub action: Action,
    /// Why.
    pub why: Why,
}

/// Why an overloaded or draining gateway keeps its vIPs for now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// As many vIPs moved in this interval as may.
    Limit {
        /// Whose.
        gateway: GatewayId,
        /// The limit.
        moves_per_interval: usize,
    },
    /// Those of its vIPs that others could take have just moved.
    Held {
        /// Whose.
        gateway: GatewayId,
    },
    /// No other gateway of the cluster can take any.
    NoReceiver {
        /// Whose.
        gateway: GatewayId,
    },
    /// A cluster could give a gateway, but one is on its way already, or was lately.
    OneAtATime {
        /// Whose.
        gateway: GatewayId,
        /// Which cluster could.
        donor: ClusterId,
    },
    /// A gateway for its cluster is on its way, or was asked for.
    Expansion {
        /// Whose.
        gateway: GatewayId,
        /// Which cluster.
        cluster: ClusterId,
    },
    /// It has one vIP, or none that another gateway could take even if it had no other: more gateways
    /// do not help, more vIPs would.
    Indivisible {
        /// Whose.
        gateway: GatewayId,
        /// Its load.
        load: f64,
    },
}

/// What a round came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// In the order in which they are to be carried out.
    pub decisions: Vec<Decision>,
    /// What would be done but for a limit.
    pub waits: Vec<Wait>,
}

/// A move that has been decided.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moved {
    at_ms: u64,
    from: GatewayId,
    to: GatewayId,
    /// What it was taken for, which is that of the load.
    demand_pps: f64,
    /// Packets a second.
    pps: f64,
}

impl Moved {
    /// Which part of that time was before the move took effect.
    fn before(&self, measured: &Measured) -> f64 {
        measured.before(self.at_ms + EFFECT_MS)
    }
}

/// A gateway on its way to another cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transfer {
    from: ClusterId,
    to: ClusterId,
    since_ms: u64,
    /// The gateway has no vIP left and was sent to the other cluster.
    sent: bool,
}

/// A gateway that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    since_ms: u64,
    /// Gateways that the cluster had.
    gateways: usize,
}

/// What is remembered between reports; all else is in them.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduler {
    settings: SchedulerSettings,
    /// When vIPs moved, the last of an interval.
    recent_ms: VecDeque<u64>,
    /// The last move of each vIP, while it matters.
    moved: BTreeMap<IpAddr, Moved>,
    overloaded: BTreeSet<GatewayId>,
    transfers: BTreeMap<GatewayId, Transfer>,
    /// When the last one began.
    transferred_ms: Option<u64>,
    /// An operator moves a gateway between clusters.
    others_move: bool,
    /// Gateways that could not be given away, and when that was tried.
    refused: BTreeMap<GatewayId, u64>,
    requests: BTreeMap<ClusterId, Request>,
    /// When a cluster last shared.
    shared_ms: BTreeMap<ClusterId, u64>,
    /// Gateways that a vIP left because they were overloaded, with what their cluster forwarded then,
    /// in packets a second.
    left: BTreeMap<IpAddr, BTreeMap<GatewayId, f64>>,
}

impl Scheduler {
    /// With nothing decided yet.
    ///
    /// # Errors
    /// Thresholds that would let vIPs move back and forth; limits of 0, or that limit nothing.
    pub fn new(settings: SchedulerSettings) -> Result<Self, ReportError> {
        settings.check()?;
        Ok(Self {
            settings,
            recent_ms: VecDeque::new(),
            moved: BTreeMap::new(),
            overloaded: BTreeSet::new(),
            transfers: BTreeMap::new(),
            transferred_ms: None,
            others_move: false,
            refused: BTreeMap::new(),
            requests: BTreeMap::new(),
            shared_ms: BTreeMap::new(),
            left: BTreeMap::new(),
        })
    }

    /// The settings.
    pub fn settings(&self) -> &SchedulerSettings {
        &self.settings
    }

    /// Sets whether an operator moves a gateway between clusters; the scheduler moves no other one meanwhile.
    pub fn others_move(&mut self, yes: bool) {
        self.others_move = yes;
    }

    /// A gateway that was to be given away cannot be: it stays, and is not chosen again for
    /// [`SchedulerSettings::expansion_wait_ms`].
    pub fn refuse(&mut self, gateway: GatewayId, now_ms: u64) {
        self.transfers.remove(&gateway);
        self.transferred_ms = None;
        self.refused.insert(gateway, now_ms);
    }

    /// Clusters that need a gateway which no other can give.
    pub fn wanted(&self) -> Vec<ClusterId> {
        self.requests.keys().copied().collect()
    }

    /// By which part of what a vIP carries [`Scheduler::decide`] corrects a load that was measured then,
    /// because it has moved meanwhile.
    pub fn corrects(&self, vip: IpAddr, measured: &Measured) -> f64 {
        self.moved.get(&vip).map_or(0.0, |moved| moved.before(measured))
    }

    /// Decides on what is reported. The caller carries decisions out in order, and reports the new owners
    /// from then on.
    ///
    /// # Errors
    /// Reports that contradict themselves; nothing is decided or remembered then.
    pub fn decide(&mut self, now_ms: u64, clusters: &[ClusterReport]) -> Result<Outcome, ReportError> {
        engine::check(clusters)?;
        Ok(engine::Engine::new(self, now_ms, clusters).run())
    }
}
