//! Orders the moves from one placement to another, with the reason of each. This file changes when another
//! limit must hold between two moves.
//!
//! A VPC moves make before break: its entries are written to the new cluster, the groups of its hosts are
//! changed, and only then its entries are removed from the old cluster. So a move needs free entries at its
//! destination before it frees any at its source, and the order of moves decides whether they are free.

use crate::problem::{InputError, Placement, Problem};
use crate::state::State;
use serde::Serialize;
use sluice_types::{ClusterId, TenantId, VpcId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Why a VPC moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveReason {
    /// The VPC had no cluster.
    New,
    /// The VPC's cluster accepts no VPCs any more.
    ClusterRemoved,
    /// The tenant was on more clusters than its limit.
    TenantOverClusterLimit {
        /// The tenant.
        tenant: TenantId,
        /// Number of clusters that the tenant was on.
        clusters: usize,
        /// Number of clusters on which a tenant may be.
        limit: usize,
    },
    /// The cluster had more entries than its tables hold.
    TablesFull {
        /// Number of entries above the size of the tables.
        over: u64,
    },
    /// The old cluster was more loaded than the new one.
    Load {
        /// Load of the old cluster before the move.
        from: f64,
        /// Load of the new cluster before the move.
        to: f64,
    },
    /// The move frees capacity for another VPC that moves to its old cluster.
    FreesCapacity,
    /// The VPC moves again later: its final cluster has no capacity yet, and another VPC waits for the
    /// capacity that this move frees.
    Detour {
        /// The final cluster.
        wanted: ClusterId,
    },
}

impl fmt::Display for MoveReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => write!(f, "it had no cluster"),
            Self::ClusterRemoved => write!(f, "its cluster accepts no VPCs any more"),
            Self::TenantOverClusterLimit { tenant, clusters, limit } => {
                write!(f, "{tenant} is on {clusters} clusters; the limit is {limit}")
            }
            Self::TablesFull { over } => write!(f, "its cluster has {over} entries too many"),
            Self::Load { from, to } => {
                write!(
                    f,
                    "its cluster is at {:.1}% of its packet rate, the new one at {:.1}%",
                    from * 100.0,
                    to * 100.0
                )
            }
            Self::FreesCapacity => write!(f, "it frees capacity for another VPC"),
            Self::Detour { wanted } => {
                write!(
                    f,
                    "{wanted} has no free capacity yet, and other VPCs wait for the capacity that it uses"
                )
            }
        }
    }
}

/// A limit that is exceeded after a move, because no order avoids it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Excess {
    /// The destination cluster is above the water level temporarily.
    PacketRate {
        /// The destination cluster.
        cluster: ClusterId,
        /// Its load after the move.
        load: f64,
    },
    /// The destination cluster has more entries than fit into its tables: the move is impossible until other
    /// entries are removed.
    Entries {
        /// The destination cluster.
        cluster: ClusterId,
        /// Number of entries above the limit.
        over: u64,
    },
    /// The tenant is on more clusters than its limit, temporarily.
    Tenant {
        /// The tenant of the VPC.
        tenant: TenantId,
        /// Number of clusters that the tenant is on after the move.
        clusters: usize,
    },
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PacketRate { cluster, load } => {
                write!(f, "{cluster} is temporarily at {:.1}% of its packet rate", load * 100.0)
            }
            Self::Entries { cluster, over } => write!(f, "{cluster} has {over} free entries too few"),
            Self::Tenant { tenant, clusters } => write!(f, "{tenant} is temporarily on {clusters} clusters"),
        }
    }
}

/// One VPC moves from one cluster to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Move {
    /// The VPC that moves.
    pub vpc: VpcId,
    /// Its current cluster; `None` if it has none.
    pub from: Option<ClusterId>,
    /// Its new cluster.
    pub to: ClusterId,
    /// The cost: entries that each gateway of the new cluster must write.
    pub entries: u64,
    /// Why the VPC moves.
    pub reason: MoveReason,
    /// The limits that are exceeded after this move.
    pub excess: Vec<Excess>,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.vpc, self.to)?;
        if let Some(from) = self.from {
            write!(f, " from {from}")?;
        }
        write!(f, ", {} entries: {}", self.entries, self.reason)?;
        for excess in &self.excess {
            write!(f, "; {excess}")?;
        }
        Ok(())
    }
}

/// Moves in the order in which they must be made, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlacementPlan {
    /// The moves, first to last.
    pub moves: Vec<Move>,
}

impl fmt::Display for PlacementPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} moves, {} entries", self.moves.len(), self.entries())?;
        for (number, step) in self.moves.iter().enumerate() {
            writeln!(f, "{}. {step}", number + 1)?;
        }
        Ok(())
    }
}

impl PlacementPlan {
    /// Number of entries that all moves write.
    pub fn entries(&self) -> u64 {
        self.moves.iter().map(|step| step.entries).sum()
    }

    /// The placement after all moves, starting from `present`.
    ///
    /// # Errors
    /// [`InputError::PlanMismatch`] if a VPC is not on the cluster from which the plan moves it.
    pub fn apply(&self, present: &Placement) -> Result<Placement, InputError> {
        let mut placement = present.clone();
        for step in &self.moves {
            let found = placement.insert(step.vpc, step.to);
            if found != step.from {
                return Err(InputError::PlanMismatch { vpc: step.vpc, expected: step.from, found });
            }
        }
        Ok(placement)
    }

    /// Orders the moves from one placement to another. Each VPC whose cluster changes moves once, in such an
    /// order that no cluster exceeds the water level or the size of its tables, and no tenant its cluster
    /// limit. If moves wait for each other in a cycle, one VPC makes a detour over a cluster with free
    /// capacity; if every move exceeds a limit, [`Move::excess`] says what a move exceeds.
    ///
    /// Clusters that are in `present` and not in the problem are being removed: their VPCs move.
    ///
    /// # Errors
    /// VPCs or clusters that are not in the problem; a VPC that has no cluster in `wanted`.
    pub fn between(problem: &Problem, present: &Placement, wanted: &Placement) -> Result<Self, InputError> {
        let mut remaining = Vec::new();
        let wanted_at = problem.indices(wanted)?;
        let state = State::new(problem, problem.known_indices(present)?);
        for (vpc, to) in wanted_at.into_iter().enumerate() {
            let to = to.ok_or(InputError::NotPlaced(problem.vpcs()[vpc].id))?;
            if state.at(vpc) != Some(to) {
                remaining.push((vpc, to));
            }
        }
        // The cheapest moves first, because they free entries earliest.
        remaining.sort_by_key(|(vpc, _)| (problem.vpcs()[*vpc].entries, *vpc));
        let leaving: BTreeMap<usize, ClusterId> = present
            .iter()
            .filter(|(_, at)| problem.cluster_of(**at).is_none())
            .filter_map(|(vpc, at)| Some((problem.vpc_of(*vpc)?, *at)))
            .collect();
        let mut order = Order { state, leaving, remaining, detoured: BTreeSet::new(), moves: Vec::new() };
        order.run();
        Ok(Self { moves: order.moves })
    }
}

/// State of the search for an order.
struct Order<'a> {
    state: State<'a>,
    /// VPCs on clusters that are not in the problem.
    leaving: BTreeMap<usize, ClusterId>,
    /// VPCs that are not on their wanted cluster, and that cluster.
    remaining: Vec<(usize, usize)>,
    detoured: BTreeSet<usize>,
    moves: Vec<Move>,
}

impl Order<'_> {
    /// Ends, because each round makes a move, or a detour that is made only once.
    fn run(&mut self) {
        while !self.remaining.is_empty() {
            if !self.make_fitting_moves() && !self.make_detour() {
                self.make_least_excessive_move();
            }
        }
    }

    /// Makes all moves that exceed no limit. Returns true if there was one.
    fn make_fitting_moves(&mut self) -> bool {
        let before = self.remaining.len();
        let mut waiting = Vec::new();
        for (vpc, to) in std::mem::take(&mut self.remaining) {
            if self.fits(vpc, to) {
                self.make(vpc, to, None);
            } else {
                waiting.push((vpc, to));
            }
        }
        self.remaining = waiting;
        self.remaining.len() < before
    }

    /// Moves a VPC to a temporary cluster if that enables the move of another VPC. Returns true if it did.
    fn make_detour(&mut self) -> bool {
        for index in 0..self.remaining.len() {
            let (vpc, wanted) = self.remaining[index];
            let Some(from) = self.state.at(vpc) else { continue };
            if self.detoured.contains(&vpc) || !self.remaining.iter().any(|(_, to)| *to == from) {
                continue;
            }
            let over = self
                .state
                .clusters()
                .filter(|over| *over != from && *over != wanted && self.fits(vpc, *over))
                .min_by(|a, b| self.state.load(*a).total_cmp(&self.state.load(*b)));
            let Some(over) = over else { continue };
            self.state.reassign(vpc, over);
            let frees = |(other, to): &(usize, usize)| *other != vpc && self.fits(*other, *to);
            let helps = self.remaining.iter().any(frees);
            self.state.reassign(vpc, from);
            if helps {
                self.detoured.insert(vpc);
                let wanted = self.state.problem.clusters()[wanted].id;
                self.make(vpc, over, Some(MoveReason::Detour { wanted }));
                return true;
            }
        }
        false
    }

    /// Makes the move that exceeds limits least: preferably that of a tenant, then of a packet rate, then of
    /// tables.
    fn make_least_excessive_move(&mut self) {
        let cost = |(vpc, to): &(usize, usize)| {
            let (demand, entries) = amounts(&self.state, *vpc);
            let capacity = self.state.problem.clusters()[*to].capacity_entries;
            let over = (self.state.entries(*to) + entries).saturating_sub(capacity);
            let load = (self.state.load_with(*to, demand) - self.state.problem.water_level()).max(0.0);
            (over, load)
        };
        let least = (0..self.remaining.len()).min_by(|a, b| {
            let (a, b) = (cost(&self.remaining[*a]), cost(&self.remaining[*b]));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        if let Some(index) = least {
            let (vpc, to) = self.remaining.remove(index);
            self.make(vpc, to, None);
        }
    }

    /// Whether a move exceeds no limit: the new cluster has capacity for the VPC in addition to its others.
    fn fits(&self, vpc: usize, to: usize) -> bool {
        let (demand, entries) = amounts(&self.state, vpc);
        self.state.has_entries(to, entries)
            && self.state.load_with(to, demand) <= self.state.problem.water_level()
            && self.state.is_open_to_tenant(self.state.problem.tenant_of(vpc), self.state.at(vpc), to, 1)
    }

    fn make(&mut self, vpc: usize, to: usize, reason: Option<MoveReason>) {
        let problem = self.state.problem;
        let reason = reason.unwrap_or_else(|| self.reason(vpc, to));
        let leaving = self.leaving.remove(&vpc);
        let from = self.state.at(vpc).map(|from| problem.clusters()[from].id).or(leaving);
        self.state.reassign(vpc, to);
        let cluster = problem.clusters()[to];
        let (load, over) = (self.state.load(to), self.state.entries_over(to));
        let tenant = problem.tenant_of(vpc);
        let mut excess = Vec::new();
        if load > problem.water_level() {
            excess.push(Excess::PacketRate { cluster: cluster.id, load });
        }
        if over > 0 {
            excess.push(Excess::Entries { cluster: cluster.id, over });
        }
        if self.state.exceeds_cluster_limit(tenant) {
            let clusters = self.state.presence(tenant).len();
            excess.push(Excess::Tenant { tenant: problem.tenant_id(tenant), clusters });
        }
        let Some(vpc) = problem.vpcs().get(vpc) else { return };
        self.moves.push(Move { vpc: vpc.id, from, to: cluster.id, entries: vpc.entries, reason, excess });
    }

    fn reason(&self, vpc: usize, to: usize) -> MoveReason {
        let problem = self.state.problem;
        let Some(from) = self.state.at(vpc) else {
            return if self.leaving.contains_key(&vpc) {
                MoveReason::ClusterRemoved
            } else {
                MoveReason::New
            };
        };
        let tenant = problem.tenant_of(vpc);
        if self.state.exceeds_cluster_limit(tenant) {
            let (clusters, limit) = (self.state.presence(tenant).len(), problem.clusters_per_tenant());
            return MoveReason::TenantOverClusterLimit { tenant: problem.tenant_id(tenant), clusters, limit };
        }
        let over = self.state.entries_over(from);
        if over > 0 {
            return MoveReason::TablesFull { over };
        }
        let (from, to) = (self.state.load(from), self.state.load(to));
        if from > to { MoveReason::Load { from, to } } else { MoveReason::FreesCapacity }
    }
}

fn amounts(state: &State<'_>, vpc: usize) -> (u64, u64) {
    let vpc = &state.problem.vpcs()[vpc];
    (vpc.demand_pps, vpc.entries)
}
