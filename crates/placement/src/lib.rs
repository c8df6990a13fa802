//! Decides which gateway cluster carries which VPC, and which gateway of a cluster owns which of its vIPs.
//! Pure functions: no clock, no I/O, no global state. The same arguments, seed included, give the same
//! result.
//!
//! - [`solve`] places all VPCs at once: RGCM, Zeta section VI-A.
//! - [`place`] finds the cluster of one new VPC, and moves no other.
//! - [`rebalance`] lowers the maximum load with few moves; [`PlacementPlan::between`] orders the moves from
//!   one placement to another.
//! - [`Scheduler`] moves vIPs between gateways, and gateways between clusters, as loads are reported: the
//!   Multi-IPs scheduler, Zeta section VI-B.
//!
//! # Modules
//!
//! `problem` is the checked input, `state` a placement that is being changed. For [`solve`], `relaxation` and
//! `lp` solve the relaxed problem, `rounding` rounds it, `repair` improves the result, `exact` tries all
//! placements of a small problem, and `rgcm` combines them. `place`, `rebalance` and `plan` use `state`.
//! `scheduler` uses none of these.
//!
//! # Terms and units
//!
//! - A VPC's *demand* is the traffic that its cluster forwards for it, in packets per second, because that is
//!   the resource that a gateway exhausts first. The paper's f(v), there in Gbit/s.
//! - A cluster's *capacity* is the packet rate of all its gateways together, in packets per second (the
//!   paper's B(c)), and the number of *entries* in its tables. All gateways of a cluster have the same
//!   tables, so the entries are those of its smallest gateway, not a sum.
//! - A cluster's *load* is the demand of its VPCs divided by its capacity: 0.5 means half of its capacity is
//!   used.
//! - The *maximum load* (lambda, the paper's load balancing factor) is the load of the most loaded cluster.
//!   It cannot be below total demand divided by total capacity, the load of all clusters if it is the same
//!   for all. The lower it is, the larger a burst that every cluster can take.
//! - The *cluster limit* (the paper's k) is the number of clusters on which one tenant's VPCs may be. It
//!   limits the damage of a tenant's burst or of an attack on it.
#![forbid(unsafe_code)]

mod exact;
mod lp;
mod place;
mod plan;
mod problem;
mod rebalance;
mod relaxation;
mod repair;
mod rgcm;
mod rounding;
mod scheduler;
mod state;

pub use place::{InsufficientCapacity, PlaceError, place};
pub use plan::{Excess, Move, MoveReason, PlacementPlan};
pub use problem::{Cluster, InputError, Placement, Problem, Vpc};
pub use rebalance::{Rebalanced, rebalance};
pub use relaxation::{Detail, Relaxation, SolverError, relax};
pub use rgcm::{PlacementError, Settings, Solution, solve};
pub use scheduler::{
    Action, ClusterReport, Decision, DecisionReason, GatewayReport, MeasurementTime, Outcome, ReportError,
    Scheduler, SchedulerSettings, VipDemand, Wait,
};
