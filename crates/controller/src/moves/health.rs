//! Starts live migrations of instances of hosts that have an anomaly, where policy says so. `health_plan` decides; this file
//! changes when a decision has another effect.
//!
//! A replica decides about the hosts that have a stream to it, so that only one replica acts for each host. The limits over all
//! hosts are checked in the transaction that starts a migration (`crates/store/src/ops/health.rs`).

use super::Moves;
use super::health_plan::{HostState, Site, Wanted, reporting, sick, wanted};
use crate::clock::now_ms;
use crate::push::southbound_id;
use serde_json::json;
use sluice_store::{HealthMigrationOutcome, Host, NewEvent, NewHealthMigration, NodeId, Page, StoreError};
use sluice_types::{AnomalyClass, HealthPolicies, HostId, InstanceId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Name under which the policies are stored.
pub const HEALTH_POLICIES: &str = "health_policies";
/// Interval between two looks at what hosts have found.
const ROUND: Duration = Duration::from_secs(2);
/// Migrations before this time do not matter: the longest time for which an instance stays where it is.
const PAST_MS: u64 = 7 * 24 * 3600 * 1000;
/// Hosts in one query.
const PAGE: u32 = 10_000;
/// Instances that are looked at for each that may migrate: some may be refused.
const CANDIDATES: u64 = 4;
/// Kind of the event about a host that instances cannot leave.
const IMPOSSIBLE: &str = "health_migration_impossible";

/// Hosts that instances cannot leave, of which an event exists.
type Stuck = BTreeSet<(HostId, AnomalyClass)>;

/// Starts migrations until it is dropped.
pub async fn drive_health_migrations(moves: Arc<Moves>) {
    let (mut stuck, mut is_failing) = (Stuck::new(), false);
    loop {
        tokio::time::sleep(ROUND).await;
        let result = moves.health_round(&mut stuck).await;
        if let Err(error) = &result {
            moves.db.count_error();
            if !is_failing {
                let error = error as &dyn std::error::Error;
                tracing::warn!(error, "cannot start migrations for the health of hosts");
            }
        }
        is_failing = result.is_err();
    }
}

impl Moves {
    async fn health_round(&self, stuck: &mut Stuck) -> Result<(), StoreError> {
        let policies: HealthPolicies = self.db.settings(HEALTH_POLICIES).await?;
        let wanted = if policies.is_idle() {
            Vec::new()
        } else {
            wanted(&policies, &self.push.health.lasting(Instant::now()))
        };
        stuck.retain(|key| wanted.iter().any(|it| (it.host, it.class) == *key));
        if wanted.is_empty() {
            return Ok(());
        }
        let mut site = self.site().await?;
        for wanted in wanted {
            let started = self.relieve(&mut site, &wanted, stuck).await?;
            if started > 0 {
                site.note_left(wanted.host, now_ms());
            }
        }
        Ok(())
    }

    /// All hosts, as the database has them.
    async fn site(&self) -> Result<Site, StoreError> {
        let store = &self.db.store;
        let health = self.push.node_health().await?;
        let (sick, reporting) = (sick(&health), reporting(&health));
        let counts = store.instances_by_host().await?;
        let mut hosts = BTreeMap::new();
        let mut after = 0;
        loop {
            let page: Vec<Host> = store.hosts(None, Page { after, limit: PAGE }).await?;
            let Some(last) = page.last() else { break };
            after = last.id.get();
            hosts.extend(page.iter().map(|host| {
                let state = HostState {
                    is_ipv4: host.vtep.is_ipv4(),
                    is_healthy: host.agent && reporting.contains(&host.id) && !sick.contains(&host.id),
                    instances: counts.get(&host.id).copied().unwrap_or(0),
                    left_ms: None,
                };
                (host.id, state)
            }));
        }
        let past = store.health_migrations(now_ms().saturating_sub(PAST_MS)).await?;
        Ok(Site::new(hosts, &past))
    }

    /// Starts as many migrations from a host as may be. Returns how many.
    async fn relieve(&self, site: &mut Site, wanted: &Wanted, stuck: &mut Stuck) -> Result<u64, StoreError> {
        let now_ms = now_ms();
        let (room, cooldown_ms) = (site.room(wanted, now_ms), wanted.policy.cooldown_s * 1000);
        if room == 0 {
            return Ok(0);
        }
        let since_ms = now_ms.saturating_sub(cooldown_ms);
        let store = &self.db.store;
        let mut started = 0;
        for instance in store.movable_instances(wanted.host, since_ms, room * CANDIDATES).await? {
            if started == room {
                break;
            }
            let Some(target) = site.target(wanted, now_ms) else {
                self.note_stuck(wanted, stuck).await?;
                break;
            };
            match store.start_health_migration(&request(wanted, instance, target)).await {
                Ok(HealthMigrationOutcome::Started(moving)) => {
                    self.db.notify_commit();
                    self.push.counters.health_migrations.fetch_add(1, Ordering::Relaxed);
                    let (host, class) = (wanted.host, wanted.class);
                    tracing::info!(%host, %class, name = moving.name, %target, "a VM is to leave its host");
                    site.note(wanted, target);
                    started += 1;
                }
                Ok(HealthMigrationOutcome::Full) => break,
                Ok(HealthMigrationOutcome::Unavailable) => {}
                // For example, the VPC's cluster has no vIP in the address family of the target.
                Err(
                    error
                    @ (StoreError::Conflict(_) | StoreError::NotFound { .. } | StoreError::Stale { .. }),
                ) => {
                    tracing::info!(%instance, %target, %error, "an instance cannot leave its host");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(started)
    }

    /// Records once that no host can take the instances.
    async fn note_stuck(&self, wanted: &Wanted, stuck: &mut Stuck) -> Result<(), StoreError> {
        let Wanted { host, class, evidence, cause, .. } = wanted;
        if !stuck.insert((*host, *class)) {
            return Ok(());
        }
        let name = self.push.names(&[NodeId::Host(*host)]).concat();
        let text = format!(
            "no healthy host can take instances of {name}, which are to leave it: {class} of {name}: {evidence}. Likely \
             cause: {cause}."
        );
        tracing::warn!(text, "health");
        let event = NewEvent {
            kind: IMPOSSIBLE.to_owned(),
            subject: southbound_id(NodeId::Host(*host)).id(),
            text,
            details: json!({ "class": class, "evidence": evidence, "cause": cause }),
        };
        self.db.store.add_event(event).await.map(drop)
    }
}

fn request(wanted: &Wanted, instance: InstanceId, to: HostId) -> NewHealthMigration {
    let Wanted { host, class, policy, evidence, cause } = wanted;
    NewHealthMigration {
        instance,
        from: *host,
        to,
        sessions: policy.sessions,
        class: *class,
        evidence: evidence.clone(),
        cause: cause.clone(),
        at_once: policy.max_at_once,
        cooldown_ms: policy.cooldown_s * 1000,
    }
}
