//! Metrics of migrations. This file changes with what is counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::registry::Registry;
use sluice_agent::metric_source::{MetricSource, counter, gauge};

use crate::sessions::InstallCounts;

/// What has been counted since the agent started.
#[derive(Clone, Debug, Default)]
pub struct MigrationStats {
    /// Migrations to this host, and from it.
    pub incoming: u64,
    pub outgoing: u64,
    /// Sessions that came from other hosts.
    pub sessions: InstallCounts,
    /// Connections that were made to end, and segments sent to guests for that.
    pub resets: u64,
    pub provoked: u64,
    /// Requests of targets that were answered, and datagrams that were refused.
    pub answered: u64,
    pub refused: u64,
    /// Ports that were opened here, and closed here because their guest runs elsewhere.
    pub opened: u64,
    pub frozen: u64,
    /// Ports that were closed because their guest was stopped to migrate away.
    pub paused: u64,
    /// Time from the last guest's first frame here, or the call for it, until its port was open.
    pub last_switch: Duration,
}

/// The counters, shared between the migrator and the node's metrics.
#[derive(Clone, Debug, Default)]
pub struct MigrationMetrics(Arc<Mutex<MigrationStats>>);

impl MigrationMetrics {
    /// Changes the counters.
    pub fn change(&self, change: impl FnOnce(&mut MigrationStats)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl MetricSource for MigrationMetrics {
    fn register(&self, registry: &mut Registry) {
        let stats = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let InstallCounts { installed, known: _, refused, expired, full } = stats.sessions;
        gauge(registry, "migration_incoming", "Instances that migrate to this host", stats.incoming);
        gauge(registry, "migration_outgoing", "Instances that migrate from this host", stats.outgoing);
        let last_us = u64::try_from(stats.last_switch.as_micros()).unwrap_or(u64::MAX);
        let help = "Time from the guest's first frame until its port was open, of the last migration";
        gauge(registry, "migration_last_switch_microseconds", help, last_us);
        for (name, help, value) in [
            ("migration_sessions_copied", "Sessions installed that other hosts had", installed),
            (
                "migration_sessions_refused",
                "Sessions not installed: the policy here does not permit them",
                refused,
            ),
            ("migration_sessions_expired", "Sessions not installed: they had expired", expired),
            ("migration_sessions_full", "Sessions not installed: there was no room", full),
            (
                "migration_connections_reset",
                "Connections that are made to end because their instance has migrated here",
                stats.resets,
            ),
            (
                "migration_guests_provoked",
                "Segments sent to guests so that a connection that is idle ends",
                stats.provoked,
            ),
            ("migration_requests_answered", "Requests of targets that were answered", stats.answered),
            (
                "migration_datagrams_refused",
                "Datagrams of no migration of this host, or malformed",
                stats.refused,
            ),
            ("migration_ports_opened", "Ports opened because their guest has migrated here", stats.opened),
            (
                "migration_ports_paused",
                "Ports closed because their guest was stopped to migrate away",
                stats.paused,
            ),
            ("migration_ports_frozen", "Ports closed because their guest has migrated away", stats.frozen),
        ] {
            registry.register(name, help, counter(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;

    #[test]
    fn each_figure_has_its_metric() {
        let metrics = MigrationMetrics::default();
        metrics.change(|stats| {
            stats.incoming = 1;
            stats.frozen = 3;
            (stats.resets, stats.provoked) = (5, 6);
            stats.paused = 5;
            stats.sessions = InstallCounts { installed: 7, full: 2, ..InstallCounts::default() };
            stats.last_switch = Duration::from_millis(4);
        });
        let (mut registry, mut page) = (Registry::default(), String::new());
        metrics.register(&mut registry);
        text::encode(&mut page, &registry).unwrap();
        for line in [
            "migration_incoming 1",
            "migration_ports_frozen_total 3",
            "migration_ports_paused_total 5",
            "migration_sessions_copied_total 7",
            "migration_sessions_full_total 2",
            "migration_connections_reset_total 5",
            "migration_guests_provoked_total 6",
            "migration_last_switch_microseconds 4000",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
    }
}
