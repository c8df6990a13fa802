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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{CompiledClusters, Model};
    use crate::database::Database;
    use crate::ownership::Ownership;
    use crate::push::Push;
    use sluice_southbound::{Finding, HealthReport, HealthSubject};
    use sluice_store::{Instance, NewHost, NewInstance, NewSubnet, NewVpc, PortSettings, Store};
    use sluice_types::{HealthAction, HealthPolicyPatch};

    const CLASS: AnomalyClass = AnomalyClass::ServerResources;

    async fn host(store: &Store, number: u8) -> HostId {
        let new = NewHost { name: format!("host-{number}"), vtep: [192, 0, 2, number].into(), agent: true };
        store.create_host(new).await.unwrap().into_inner().id
    }

    async fn instances(store: &Store, host: HostId) -> Vec<Instance> {
        let tenant = store.create_tenant("t").await.unwrap().into_inner();
        let cluster = store.create_cluster("c", &[[192, 0, 2, 100].into()], None).await.unwrap().into_inner();
        let new = NewVpc {
            name: "v".into(),
            tenant: tenant.id,
            vni: None,
            cluster: cluster.id,
            mtu: 1430,
            offload_kbps: None,
            internet_meter: None,
        };
        let vpc = store.create_vpc(new).await.unwrap().into_inner();
        let new = NewSubnet {
            name: "s".into(),
            vpc: vpc.id,
            ipv4: Some("10.0.0.0/24".parse().unwrap()),
            ipv6: None,
            ipv6_mode: None,
            dns: vec![],
        };
        let subnet = store.create_subnet(new).await.unwrap().into_inner();
        let mut instances = Vec::new();
        for name in ["a", "b"] {
            let new = NewInstance {
                name: name.into(),
                subnet: subnet.id,
                host,
                mac: None,
                ipv4: None,
                ipv6: None,
                security_groups: None,
                settings: PortSettings::default(),
            };
            instances.push(store.create_instance(vpc.id, new).await.unwrap().into_inner());
        }
        instances
    }

    fn overload() -> HealthReport {
        let finding = Finding {
            class: CLASS,
            subject: HealthSubject::Node,
            since_ms: 5,
            evidence: "processors used to 99 %".to_owned(),
            cause: "processes use all processors".to_owned(),
        };
        HealthReport { findings: vec![finding], ..HealthReport::default() }
    }

    async fn kinds(store: &Store, subject: String) -> Vec<String> {
        let events = store.events(Some(&subject), None, 100).await.unwrap();
        let kinds = events.into_iter().map(|event| event.kind);
        kinds.filter(|kind| kind != "instance_migration_started").collect()
    }

    /// Catches a migration that no policy wants, one to a host that does not report or is overloaded itself, and a host that is
    /// emptied at once.
    #[tokio::test]
    async fn an_instance_leaves_a_host_whose_anomaly_lasts() {
        let store = sluice_store::open("sqlite::memory:").await.unwrap();
        let (busy, other, third) = (host(&store, 1).await, host(&store, 2).await, host(&store, 3).await);
        let instances = instances(&store, busy).await;
        let db = Arc::new(Database::new(store.clone()));
        let compiled = Arc::new(CompiledClusters::new(Model::Zeta, 1));
        let push = Arc::new(Push::new(db.clone(), compiled.clone()));
        let ownership = Arc::new(Ownership::new(db.clone(), compiled));
        let moves = Moves::new(db.clone(), push.clone(), ownership);
        let (now, mut stuck) = (Instant::now(), Stuck::new());
        let report = |host, report: HealthReport, at| push.health.report(NodeId::Host(host), report, at);
        report(busy, overload(), now.checked_sub(Duration::from_secs(80)).unwrap());
        report(busy, overload(), now);
        report(third, overload(), now);
        moves.health_round(&mut stuck).await.unwrap();
        assert_eq!(kinds(&store, busy.to_string()).await, [""; 0]);
        let patch = HealthPolicyPatch { action: Some(HealthAction::Migrate), ..HealthPolicyPatch::default() };
        let change = |policies: &mut HealthPolicies| {
            policies.change(CLASS, &patch).unwrap();
            Ok::<_, StoreError>(())
        };
        db.change_settings(HEALTH_POLICIES, change).await.unwrap().unwrap();
        for _ in 0..2 {
            moves.health_round(&mut stuck).await.unwrap();
        }
        assert_eq!(kinds(&store, busy.to_string()).await, [IMPOSSIBLE], "no other host reports");
        report(other, HealthReport::default(), now);
        for _ in 0..2 {
            moves.health_round(&mut stuck).await.unwrap();
        }
        assert_eq!(kinds(&store, instances[0].id.to_string()).await, ["instance_migration_wanted"]);
        assert_eq!(kinds(&store, instances[1].id.to_string()).await, [""; 0], "one at once");
        let moving = store.instance(instances[0].id).await.unwrap();
        assert_eq!(moving.migration.unwrap().to, other);
        assert_eq!(push.counters.health_migrations.load(Ordering::Relaxed), 1);
    }
}
