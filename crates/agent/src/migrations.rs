//! The states of the migrations of instances that this node takes part in, as the stream reports them. The controller needs the
//! present ones only, so each change and each new stream sends all of them. This file changes when something else decides when
//! they are sent.

use std::sync::{Arc, Mutex, PoisonError};

use sluice_southbound::{MigrationState, ReportSender};
use tokio::sync::Notify;

use crate::Error;

#[derive(Debug, Default)]
struct Shared {
    states: Mutex<Vec<MigrationState>>,
    changed: Notify,
}

/// The states, shared between those who know them and the stream that sends them.
#[derive(Clone, Debug, Default)]
pub struct MigrationReports(Arc<Shared>);

impl MigrationReports {
    /// Replaces the states.
    pub fn set(&self, states: Vec<MigrationState>) {
        let mut known = self.0.states.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != states {
            *known = states;
            self.0.changed.notify_one();
        }
    }

    /// The present states.
    #[must_use]
    pub fn get(&self) -> Vec<MigrationState> {
        self.0.states.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends the states, and again after each change, until the stream ends.
    pub(crate) async fn send(&self, reports: &ReportSender) -> Result<(), Error> {
        let mut sent = Vec::new();
        loop {
            let states = self.get();
            if states != sent {
                reports.migrations(states.clone()).await?;
                sent = states;
            }
            self.0.changed.notified().await;
        }
    }
}
