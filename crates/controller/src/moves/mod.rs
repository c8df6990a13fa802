//! Drives moves between clusters, make before break: those of VPCs (`vpcs`) and those of gateways (`gateways`). Starts
//! migrations of instances of hosts that have an anomaly (`health`).
//! Each move is a sequence of phases in the database; a phase ends when the nodes that it depends on have
//! acknowledged it. This file changes when all moves are to be driven in another way.

mod gateways;
mod health;
mod health_plan;
mod vpcs;

pub use gateways::drive_gateway_moves;
pub use health::{HEALTH_POLICIES, drive_health_migrations};
pub use vpcs::drive_vpc_moves;
#[cfg(test)]
pub use vpcs::stages;

use crate::database::Database;
use crate::ownership::Ownership;
use crate::push::Push;
use sluice_store::{NodeId, StoreError};
use sluice_types::GatewayId;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Interval between looks at acknowledgments while something moves.
const LOOK: Duration = Duration::from_millis(20);
/// Interval while nothing moves.
const IDLE: Duration = Duration::from_millis(250);
/// After this time, packets have arrived that hosts sent before they received the new destination.
const LINGER: Duration = Duration::from_secs(1);
/// Interval between log lines about what a move waits for.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Pause after a store error.
const RETRY: Duration = Duration::from_millis(250);

/// The handle of this module: what each move waits for.
pub struct Moves {
    db: Arc<Database>,
    push: Arc<Push>,
    ownership: Arc<Ownership>,
    vpc_waits: RwLock<BTreeMap<u64, Vec<NodeId>>>,
    gateway_waits: RwLock<BTreeMap<GatewayId, Vec<&'static str>>>,
}

impl Moves {
    /// Starts without knowledge of any move.
    pub fn new(db: Arc<Database>, push: Arc<Push>, ownership: Arc<Ownership>) -> Self {
        let (vpc_waits, gateway_waits) = Default::default();
        Self { db, push, ownership, vpc_waits, gateway_waits }
    }

    /// Names of the nodes that a move of VPCs waits for.
    pub fn vpc_waits(&self, id: u64) -> Vec<String> {
        let waits = self.vpc_waits.read().unwrap_or_else(PoisonError::into_inner);
        let nodes = waits.get(&id).cloned().unwrap_or_default();
        drop(waits);
        self.push.names(&nodes)
    }

    /// What the move of a gateway waits for, in words.
    pub fn gateway_waits(&self, id: GatewayId) -> Vec<&'static str> {
        let waits = self.gateway_waits.read().unwrap_or_else(PoisonError::into_inner);
        waits.get(&id).cloned().unwrap_or_default()
    }

    /// Time until moves are looked at again, from the outcome of the last look.
    fn pause(&self, outcome: Result<(), StoreError>, idle: bool) -> Duration {
        match outcome {
            Ok(()) if idle => IDLE,
            Ok(()) => LOOK,
            Err(error) => {
                self.db.count_error();
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot drive moves between clusters"
                );
                RETRY
            }
        }
    }
}

/// How long a phase has been complete, and when its wait was last logged.
#[derive(Debug)]
struct Wait {
    /// Time since which nothing is missing.
    complete_since: Option<Instant>,
    logged: Instant,
}

impl Default for Wait {
    fn default() -> Self {
        Self { complete_since: None, logged: Instant::now() }
    }
}

impl Wait {
    /// Time for which the phase has been complete; `None` if it still waits. Then `log` is called every ten
    /// seconds.
    fn complete_for(&mut self, waits: bool, log: impl FnOnce()) -> Option<Duration> {
        if !waits {
            return Some(self.complete_since.get_or_insert_with(Instant::now).elapsed());
        }
        self.complete_since = None;
        if self.logged.elapsed() >= LOG_INTERVAL {
            self.logged = Instant::now();
            log();
        }
        None
    }
}
