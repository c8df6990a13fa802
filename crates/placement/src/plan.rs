//! From one placement to another: which VPCs move, why, and in which order.
//!
//! A VPC moves make before break: its entries are written to the new cluster, its hosts' groups are changed,
//! and only then its entries are removed from the old cluster. So a move needs free entries at its
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
pub enum Reason {
    /// The VPC had no cluster.
    New,
    /// The VPC's cluster no longer takes VPCs.
    ClusterLeaves,
    /// The tenant was on more clusters than allowed.
    TenantOverK {
        /// The tenant.
        tenant: TenantId,
        /// Number of clusters that the tenant was on.
        clusters: usize,
        /// Number of clusters that a tenant may be on.
        k: usize,
    },
    /// The cluster had more entries than its tables hold.
    TablesFull {
        /// Number of entries above the limit.
        over: u64,
    },
    /// The old cluster was more loaded than the new one.
    Load {
        /// Load of the old cluster before the move.
        from: f64,
        /// Load of the new cluster before the move.
        to: f64,
    },
    /// The VPC frees capacity for another VPC that moves to its cluster.
    MakesRoom,
    /// The VPC moves on later: its final cluster has no capacity yet, and another VPC waits for the capacity
    /// that this move frees.
    Detour {
        /// The final cluster.
        wanted: ClusterId,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => write!(f, "it had no cluster"),
            Self::ClusterLeaves => write!(f, "its cluster takes no VPCs any more"),
            Self::TenantOverK { tenant, clusters, k } => {
                write!(f, "{tenant} is on {clusters} clusters and may be on {k}")
            }
            Self::TablesFull { over } => write!(f, "its cluster has {over} entries too many"),
            Self::Load { from, to } => {
                write!(
                    f,
                    "its cluster is at {:.1}% of its packet rate, the other at {:.1}%",
                    from * 100.0,
                    to * 100.0
                )
            }
            Self::MakesRoom => write!(f, "it makes room for others"),
            Self::Detour { wanted } => {
                write!(f, "{wanted} has no room for it yet, and others wait for its own")
            }
        }
    }
}

/// What a step exceeds because no order avoids it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Excess {
    /// The cluster it goes to is above the water level for now.
    PacketRate {
        /// Where.
        cluster: ClusterId,
        /// Its load then.
        load: f64,
    },
    /// The cluster it goes to has more entries than its tables hold: this step cannot be made before
    /// something else leaves.
    Entries {
        /// Where.
        cluster: ClusterId,
        /// Number of entries above the limit.
        over: u64,
    },
    /// The tenant is on more clusters than it may be, for now.
    Tenant {
        /// Whose.
        tenant: TenantId,
        /// On how many it is then.
        clusters: usize,
    },
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PacketRate { cluster, load } => {
                write!(f, "{cluster} at {:.1}% of its packet rate for now", load * 100.0)
            }
            Self::Entries { cluster, over } => write!(f, "{cluster} {over} entries short"),
            Self::Tenant { tenant, clusters } => write!(f, "{tenant} on {clusters} clusters for now"),
        }
    }
}

/// One VPC goes from one cluster to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Move {
    /// Which.
    pub vpc: VpcId,
    /// Where it is; `None`: nowhere yet.
    pub from: Option<ClusterId>,
    /// Where it goes.
    pub to: ClusterId,
    /// What it costs: entries to write in each gateway of the new cluster.
    pub entries: u64,
    /// Why.
    pub reason: Reason,
    /// What is exceeded behind this step; empty where nothing is.
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

/// Moves in the order in which they are to be made, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// The moves.
    pub moves: Vec<Move>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} moves, {} entries", self.moves.len(), self.entries())?;
        for (number, step) in self.moves.iter().enumerate() {
            writeln!(f, "{}. {step}", number + 1)?;
        }
        Ok(())
    }
}

impl Plan {
    /// Entries to write, in all moves.
    pub fn entries(&self) -> u64 {
        self.moves.iter().map(|step| step.entries).sum()
    }

    /// The placement behind the last move, from the one before the first.
    ///
    /// # Errors
    /// A VPC is not where its move expects it: the plan was made for another placement.
    pub fn apply(&self, present: &Placement) -> Result<Placement, InputError> {
        let mut placement = present.clone();
        for step in &self.moves {
            let found = placement.insert(step.vpc, step.to);
            if found != step.from {
                return Err(InputError::PlanOfAnother { vpc: step.vpc, expected: step.from, found });
            }
        }
        Ok(placement)
    }

    /// Orders the moves that lead from one placement to another: each VPC that is elsewhere moves once,
    /// and in such an order that no cluster gets above the water level or its tables' size, and no tenant
    /// above k. Where moves wait for each other in a circle, one of them takes a detour over a cluster
    /// with room; where there is none, [`Move::excess`] says what the step exceeds.
    ///
    /// Clusters that `present` names and the problem does not have are leaving; what is on them moves.
    ///
    /// # Errors
    /// VPCs or clusters that the problem does not have; a VPC that has no cluster in `wanted`.
    pub fn between(problem: &Problem, present: &Placement, wanted: &Placement) -> Result<Self, InputError> {
        let mut left = Vec::new();
        let wanted_at = problem.indices(wanted)?;
        let known: Placement = present
            .iter()
            .filter(|(_, at)| problem.cluster_of(**at).is_some())
            .map(|(v, c)| (*v, *c))
            .collect();
        if let Some(vpc) = present.keys().find(|vpc| problem.vpc_of(**vpc).is_none()) {
            return Err(InputError::UnknownVpc(*vpc));
        }
        let state = State::new(problem, problem.indices(&known)?);
        for (vpc, to) in wanted_at.into_iter().enumerate() {
            let to = to.ok_or(InputError::NotPlaced(problem.vpcs()[vpc].id))?;
            if state.at(vpc) != Some(to) {
                left.push((vpc, to));
            }
        }
        // What costs least first: it frees entries soonest.
        left.sort_by_key(|(vpc, _)| (problem.vpcs()[*vpc].entries, *vpc));
        let leaving: BTreeMap<usize, ClusterId> = present
            .iter()
            .filter(|(_, at)| problem.cluster_of(**at).is_none())
            .filter_map(|(vpc, at)| Some((problem.vpc_of(*vpc)?, *at)))
            .collect();
        let mut order = Order { state, leaving, left, detoured: BTreeSet::new(), moves: Vec::new() };
        order.run();
        Ok(Self { moves: order.moves })
    }
}

/// An order being found.
struct Order<'a> {
    state: State<'a>,
    /// VPCs on clusters that the problem does not have.
    leaving: BTreeMap<usize, ClusterId>,
    /// VPCs that are not where they are wanted, and where that is.
    left: Vec<(usize, usize)>,
    detoured: BTreeSet<usize>,
    moves: Vec<Move>,
}

impl Order<'_> {
    /// Every round takes a move off the list, or makes a detour that is not made again: it ends.
    fn run(&mut self) {
        while !self.left.is_empty() {
            if !self.pass() && !self.detour() {
                self.force();
            }
        }
    }

    /// Makes all moves that exceed nothing; true where there was any.
    fn pass(&mut self) -> bool {
        let before = self.left.len();
        let mut waiting = Vec::new();
        for (vpc, to) in std::mem::take(&mut self.left) {
            if self.fits(vpc, to) {
                self.make(vpc, to, None);
            } else {
                waiting.push((vpc, to));
            }
        }
        self.left = waiting;
        self.left.len() < before
    }

    /// Takes a VPC out of the way to where it does not belong; true where that lets another move on.
    fn detour(&mut self) -> bool {
        for place in 0..self.left.len() {
            let (vpc, wanted) = self.left[place];
            let Some(from) = self.state.at(vpc) else { continue };
            if self.detoured.contains(&vpc) || !self.left.iter().any(|(_, to)| *to == from) {
                continue;
            }
            let over = self
                .state
                .clusters()
                .filter(|over| *over != from && *over != wanted && self.fits(vpc, *over))
                .min_by(|a, b| self.state.load(*a).total_cmp(&self.state.load(*b)));
            let Some(over) = over else { continue };
            self.state.shift(vpc, over);
            let frees = |(other, to): &(usize, usize)| *other != vpc && self.fits(*other, *to);
            let helps = self.left.iter().any(frees);
            self.state.shift(vpc, from);
            if helps {
                self.detoured.insert(vpc);
                let wanted = self.state.problem.clusters()[wanted].id;
                self.make(vpc, over, Some(Reason::Detour { wanted }));
                return true;
            }
        }
        false
    }

    /// Makes the move that exceeds least: tenants before packet rates before entries.
    fn force(&mut self) {
        let cost = |(vpc, to): &(usize, usize)| {
            let (demand, entries) = amounts(&self.state, *vpc);
            let capacity = self.state.problem.clusters()[*to].capacity_entries;
            let over = (self.state.entries(*to) + entries).saturating_sub(capacity);
            let load = (self.state.load_with(*to, demand) - self.state.problem.water_level()).max(0.0);
            (over, load)
        };
        let least = (0..self.left.len()).min_by(|a, b| {
            let (a, b) = (cost(&self.left[*a]), cost(&self.left[*b]));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        if let Some(place) = least {
            let (vpc, to) = self.left.remove(place);
            self.make(vpc, to, None);
        }
    }

    /// True where a move exceeds nothing: the new cluster holds the VPC beside all it has.
    fn fits(&self, vpc: usize, to: usize) -> bool {
        let (demand, entries) = amounts(&self.state, vpc);
        self.state.has_entries(to, entries)
            && self.state.load_with(to, demand) <= self.state.problem.water_level()
            && self.state.tenant_may(self.state.problem.tenant_of(vpc), self.state.at(vpc), to, 1)
    }

    fn make(&mut self, vpc: usize, to: usize, reason: Option<Reason>) {
        let problem = self.state.problem;
        let reason = reason.unwrap_or_else(|| self.reason(vpc, to));
        let leaving = self.leaving.remove(&vpc);
        let from = self.state.at(vpc).map(|from| problem.clusters()[from].id).or(leaving);
        self.state.shift(vpc, to);
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
        if self.state.over_k(tenant) {
            let clusters = self.state.presence(tenant).len();
            excess.push(Excess::Tenant { tenant: problem.tenant_id(tenant), clusters });
        }
        let Some(vpc) = problem.vpcs().get(vpc) else { return };
        self.moves.push(Move { vpc: vpc.id, from, to: cluster.id, entries: vpc.entries, reason, excess });
    }

    fn reason(&self, vpc: usize, to: usize) -> Reason {
        let problem = self.state.problem;
        let Some(from) = self.state.at(vpc) else {
            return if self.leaving.contains_key(&vpc) { Reason::ClusterLeaves } else { Reason::New };
        };
        let tenant = problem.tenant_of(vpc);
        if self.state.over_k(tenant) {
            let (clusters, k) = (self.state.presence(tenant).len(), problem.clusters_per_tenant());
            return Reason::TenantOverK { tenant: problem.tenant_id(tenant), clusters, k };
        }
        let over = self.state.entries_over(from);
        if over > 0 {
            return Reason::TablesFull { over };
        }
        let (from, to) = (self.state.load(from), self.state.load(to));
        if from > to { Reason::Load { from, to } } else { Reason::MakesRoom }
    }
}

fn amounts(state: &State<'_>, vpc: usize) -> (u64, u64) {
    let vpc = &state.problem.vpcs()[vpc];
    (vpc.demand_pps, vpc.entries)
}
