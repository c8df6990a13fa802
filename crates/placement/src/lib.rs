//! Which gateway cluster carries which VPC, and which gateway of a cluster
//! answers for which of its vIPs. Pure functions: no clock, no I/O, no global
//! state. The same arguments, seed included, give the same answer.
//!
//! - [`solve`] places all VPCs at once: RGCM, Zeta section VI-A.
//! - [`place`] finds the cluster for one new VPC and moves nothing else.
//! - [`rebalance`] finds few moves that bring the load of the fullest cluster
//!   down; [`Plan::between`] orders the moves from one placement to another.
//! - [`Scheduler`] moves vIPs between gateways, and gateways between clusters,
//!   as loads are reported: the Multi-IPs scheduler, Zeta section VI-B.
//!
//! # Terms and units
//!
//! - A VPC's *demand* is the traffic that its cluster forwards for it, in
//!   packets a second: what a gateway runs out of first. The paper's f(v), in
//!   Gbit/s there.
//! - A cluster's *capacity* is what all its gateways forward together, in
//!   packets a second (the paper's B(c)), and how many *entries* its tables
//!   hold. Each gateway of a cluster holds the same tables, so the entries are
//!   those of its smallest gateway, not a sum.
//! - A cluster's *load* is the demand of the VPCs on it divided by its
//!   capacity: 0.5 is half full.
//! - *Lambda*, the paper's load balancing factor, is the load of the fullest
//!   cluster. All clusters together forward all demand at most when each has
//!   the same load, so lambda cannot be below total demand by total capacity,
//!   and the nearer it is, the more of a burst any cluster can take.
//! - *k* is the number of clusters that one tenant's VPCs may be on: what a
//!   tenant's burst or attack can reach.
#![forbid(unsafe_code)]

mod exact;
mod lp;
mod place;
mod plan;
mod problem;
mod random;
mod rebalance;
mod relaxation;
mod repair;
mod rgcm;
mod rounding;
mod scheduler;
mod state;

pub use place::{NoRoom, PlaceError, place};
pub use plan::{Excess, Move, Plan, Reason};
pub use problem::{Cluster, InputError, Placement, Problem, Vpc};
pub use rebalance::{Rebalanced, rebalance};
pub use relaxation::{Detail, Relaxation, SolverError, relax};
pub use rgcm::{PlacementError, Settings, Solution, solve};
pub use scheduler::{
    Action, ClusterReport, Decision, GatewayReport, Measured, Outcome, Pair, ReportError, Scheduler,
    SchedulerSettings, Wait, Why,
};
