//! The Multi-IPs scheduler (Zeta section VI-B): which gateway of a cluster
//! answers for which vIP, and which cluster has which gateway, as loads change.
//!
//! 1. *Inside the cluster.* From the most loaded gateway above the threshold a
//!    vIP-vMAC pair goes to the least loaded one, and again, until none is above.
//! 2. *Between clusters.* Where that does not help, the least loaded cluster gives
//!    a gateway, once its vIPs have gone to its neighbours; where that would
//!    endanger it, a new gateway is asked for, once for as long as it is needed. One
//!    gateway goes at a time, and the next begins
//!    [`SchedulerSettings::expansion_wait_ms`] after it at the earliest.
//!
//! And, so that a gateway that came back or was added gets its share: one vIP at
//! a time goes from who has most to who has at least two less, if that does not
//! make loads more unequal.
//!
//! # Why it comes to rest
//!
//! A gateway is overloaded from [`SchedulerSettings::overload_above`] until it is
//! at [`SchedulerSettings::relieved_below`], and who takes a vIP is at most at
//! [`SchedulerSettings::receive_below`] with it, which is lower than both. So no
//! move overloads a gateway: on constant load, vIPs only leave those that were
//! overloaded from the start, each once. Sharing lowers the sum of the loads'
//! squares, or keeps it and lowers that of the numbers of vIPs, and overloads
//! nobody either. Neither can go on forever. Sharing does not bring a vIP back to
//! a gateway that it left because of overload, until its cluster forwards notably
//! less than then; and a vIP that has moved stays for
//! [`SchedulerSettings::hold_ms`], whatever a noisy report says.
//!
//! # Time
//!
//! The clock is the caller's. A load that was measured before a move that
//! concerns it, or partly before, is corrected by what the pair carried then, so
//! that a move is not made twice because its effect has not been reported yet.

mod engine;
mod text;

use serde::Serialize;
use sluice_types::{ClusterId, GatewayId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

/// From a decision to the first packet that goes another way: it is stored, told, and announced.
const EFFECT_MS: u64 = 20;

/// Above this no threshold makes sense: where demand is estimated a load may be above 1, but not by so much.
const LOAD_MAX: f64 = 10.0;
const HOUR_MS: u64 = 3_600_000;

/// Thresholds and limits. Loads are parts: 0.8 is 80%.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerSettings {
    /// A gateway above this is overloaded.
    pub overload_above: f64,
    /// An overloaded gateway is no longer so at this or below.
    pub relieved_below: f64,
    /// A gateway takes a vIP only if it is at most here with it.
    pub receive_below: f64,
    /// vIPs that move in any interval, at most.
    pub moves_per_interval: usize,
    /// The interval.
    pub interval_ms: u64,
    /// How long a vIP that moved stays.
    pub hold_ms: u64,
    /// How long to wait for a gateway that was asked for before another cluster's is looked for again, or
    /// for one that is on its way from another cluster, and between two of these.
    pub expansion_wait_ms: u64,
    /// Gateways that a cluster keeps when it gives one.
    pub gateways_min: usize,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            overload_above: 0.80,
            relieved_below: 0.75,
            receive_below: 0.70,
            moves_per_interval: 8,
            interval_ms: 100,
            hold_ms: 10_000,
            expansion_wait_ms: 120_000,
            gateways_min: 2,
        }
    }
}

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
    /// Its beginning.
    pub from_ms: u64,
    /// Its end.
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
    /// It shall own none: it is drained, or about to be upgraded.
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
    /// The order of the thresholds is what keeps the scheduler from moving vIPs back and forth.
    #[error(
        "thresholds must be 0 < receive_below < relieved_below <= overload_above <= {LOAD_MAX}, they are \
         {receive}, {relieved}, {overload}"
    )]
    Thresholds {
        /// `receive_below`.
        receive: f64,
        /// `relieved_below`.
        relieved: f64,
        /// `overload_above`.
        overload: f64,
    },
    /// A limit with which nothing would ever happen, or no limit at all.
    #[error("{what} must be {least} to {most}")]
    Limit {
        /// Which.
        what: &'static str,
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
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
    /// A number that is none, or negative.
    #[error("{gateway} reports {what} of {found}")]
    Number {
        /// Who.
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

/// Why.
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
    /// The owner shall own none.
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
    /// It has been emptied and told to join.
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
    /// Somebody else moves a gateway between clusters.
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
        let (receive, relieved, overload) =
            (settings.receive_below, settings.relieved_below, settings.overload_above);
        let ordered = 0.0 < receive && receive < relieved && relieved <= overload && overload <= LOAD_MAX;
        if !ordered {
            return Err(ReportError::Thresholds { receive, relieved, overload });
        }
        for (what, found, least, most) in [
            ("moves_per_interval", settings.moves_per_interval as u64, 1, 1_000),
            ("interval_ms", settings.interval_ms, 1, HOUR_MS),
            ("hold_ms", settings.hold_ms, 0, 24 * HOUR_MS),
            ("expansion_wait_ms", settings.expansion_wait_ms, 0, 24 * HOUR_MS),
            ("gateways_min", settings.gateways_min as u64, 1, 64),
        ] {
            if !(least..=most).contains(&found) {
                return Err(ReportError::Limit { what, least, most });
            }
        }
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

    /// Whether a gateway is on its way between clusters by somebody else's will: none is given away then.
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
